//! `longhaul volume`.

mod show;

use super::attach::mkfs;
use super::pool::moves::{MoveArgs, Mover};
use crate::arguments::{InitiatorArgs, parse_bytes, parse_time};
use crate::events::{VolumeMade, VolumeOpened, VolumeRenamed, VolumeResized, VolumeSnapshot, VolumesRemoved};
use crate::exit::{Exit, Failure, NothingToDo, Outcome};
use crate::output::Output;
use crate::pools::{NoHost, OpenPool, PoolArgs, end};
use crate::words::volume_layouts;
use longhaul_array::DEFAULT_UNIT;
use longhaul_attach::filesystem::FileSystemKind;
use longhaul_block::units::format_size;
use longhaul_device::Reason;
use longhaul_pool::{
    HostArrays, Pool, Removed, SCHEME, SnapshotRequest, VolumeLayout, VolumeName, VolumeRecord, VolumeRequest,
};
use std::time::Duration;

#[derive(Debug, clap::Args)]
pub(crate) struct VolumeVerbArgs {
    #[command(subcommand)]
    verb: VolumeVerb,
}

#[derive(Debug, clap::Subcommand)]
enum VolumeVerb {
    /// Make a volume
    Create(CreateVolume),
    /// List the volumes of pools
    #[command(alias = "list")]
    Ls(ListVolumes),
    /// Show a volume: its members, its hosts
    #[command(alias = "status")]
    Info(VolumeNamed),
    /// Let further hosts use a volume
    Open(Open),
    /// Let hosts use a volume no more
    Close(Close),
    /// Give a volume another name
    Rename(Rename),
    /// Make a volume larger, while it is used
    Resize(Resize),
    /// Make a volume with the content that another one has now
    Snapshot(Snapshot),
    /// Replace members of a volume that are lost, and spares that are used up
    Repair(Repair),
    /// Remove volumes and their data
    Rm(RemoveVolumes),
}

/// What a volume is like.
#[derive(Debug, clap::Args)]
pub(crate) struct ShapeArgs {
    /// Size of the volume
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    size: u64,
    /// parity, double-parity, mirror, stripe+mirror, stripe, or single: one
    /// namespace, for hosts without Longhaul
    #[arg(long, value_name = "KIND", value_parser = volume_layouts(), hide_possible_values = true)]
    layout: VolumeLayout,
    /// Members, without spares [default: two of a mirror, otherwise one for each
    /// failure domain, at most 8]
    #[arg(long, value_name = "N")]
    width: Option<usize>,
    /// Members that wait to replace one
    #[arg(long, value_name = "N", default_value_t = 0)]
    spares: usize,
    /// Bytes of a stripe on one member
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    stripe_unit: Option<u64>,
    /// Most members in one failure domain
    #[arg(long, value_name = "N", default_value_t = 1)]
    per_domain: usize,
    /// Take capacity as it is written to, instead of all of it now
    #[arg(long)]
    thin: bool,
    /// Host that may use it [default: this one]; may be repeated
    #[arg(long = "for", value_name = "HOSTNQN")]
    pub(crate) hosts: Vec<String>,
    #[command(flatten)]
    no_host: NoHost,
    /// Make a file system on it: xfs or ext4
    #[arg(long, value_name = "KIND")]
    pub(crate) fs: Option<FileSystemKind>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Members are in different failure domains, on the targets with the most free
capacity. volume:POOL/NAME is then the name of a device.

Example:
  longhaul volume create scratch/run7 --size 2TiB --layout parity --fs xfs
  sudo longhaul mount volume:scratch/run7 /mnt/run7")]
struct CreateVolume {
    /// The volume: POOL/NAME
    volume: VolumeName,
    #[command(flatten)]
    shape: ShapeArgs,
    /// Time after which it may be removed, by any later command [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    lifetime: Option<Duration>,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
struct ListVolumes {
    /// Pools [default: all that this host knows]
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
struct VolumeNamed {
    /// The volume: POOL/NAME
    volume: VolumeName,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
struct Open {
    /// The volume: POOL/NAME
    volume: VolumeName,
    /// Host that may use it too [default: this one]; may be repeated
    #[arg(long = "for", value_name = "HOSTNQN")]
    hosts: Vec<String>,
    /// These hosts only, in place of those that may use it now
    #[arg(long)]
    only: bool,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Targets take the namespaces from these hosts at once, also while they are used.
May also be given for a file system in a pool.

Example:
  longhaul volume close scratch/run7 --for nqn.2014-08.org.example:n1")]
struct Close {
    /// The volume: POOL/NAME
    volume: VolumeName,
    /// Host that may not use it any more; may be repeated
    #[arg(long = "for", value_name = "HOSTNQN", required = true)]
    hosts: Vec<String>,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
struct Rename {
    /// The volume: POOL/NAME
    volume: VolumeName,
    /// Its new name, without the pool
    to: String,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Its array grows where it runs: on this host at once, on another one when it is
opened there next, or when this is run there. File systems are grown by their
own tools then.

Example:
  longhaul volume resize scratch/run7 --size 4TiB
  sudo xfs_growfs /mnt/run7")]
struct Resize {
    /// The volume: POOL/NAME
    volume: VolumeName,
    /// Its new size: it does not shrink
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    size: u64,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The snapshot is a volume of its own. It shares blocks with the other one until
one of the two is written to, where targets can do that: spaces in directories
of XFS or Btrfs. It has what the volume has acknowledged; 'sync' before it
brings in what a file system holds back. A volume that another host uses is
snapshotted there.

Example:
  longhaul volume snapshot scratch/run7 run7-monday
  sudo longhaul mount volume:scratch/run7-monday /mnt/monday")]
struct Snapshot {
    /// The volume: POOL/NAME
    volume: VolumeName,
    /// Name of the snapshot, without the pool
    name: String,
    /// Host that may use it [default: those of the volume]; may be repeated
    #[arg(long = "for", value_name = "HOSTNQN")]
    hosts: Vec<String>,
    #[command(flatten)]
    no_host: NoHost,
    /// Time after which it may be removed, by any later command [default: that
    /// of the volume]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    lifetime: Option<Duration>,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A member that is missing now counts as lost, also where its target may come back:
wait for a target that restarts. The volume stays in use; a volume that another
host uses is repaired there.

Example:
  longhaul volume repair scratch/run7")]
struct Repair {
    /// The volume: POOL/NAME
    volume: VolumeName,
    #[command(flatten)]
    moves: MoveArgs,
    #[command(flatten)]
    nothing: NothingToDo,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
struct RemoveVolumes {
    /// The volumes: POOL/NAME
    #[arg(value_name = "VOLUME", required = true)]
    volumes: Vec<VolumeName>,
    /// Also volumes that a host uses, or used when it crashed
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    access: PoolArgs,
}

impl ShapeArgs {
    /// A volume of this shape in a pool, of no job and for no host yet.
    pub(crate) fn request(&self, pool: &Pool, name: String) -> Result<VolumeRequest, Failure> {
        let width = match self.width {
            Some(width) => width,
            None => pool.suited_width(self.layout, self.spares, self.per_domain)?,
        };
        Ok(VolumeRequest {
            name,
            size: self.size,
            layout: self.layout,
            width,
            spares: self.spares,
            unit: self.stripe_unit.unwrap_or(DEFAULT_UNIT),
            per_domain: self.per_domain,
            hosts: Vec::new(),
            job: None,
            lifetime: None,
            thin: self.thin,
        })
    }

    /// The hosts that may use it: this one, unless others are named.
    pub(crate) fn hosts_or(&self, own: &str) -> Vec<String> {
        self.no_host.or_default(&self.hosts, own)
    }

    /// The hosts that may use it while it is made: this one too if it makes the file system.
    pub(crate) fn hosts_while_made(&self, hosts: &[String], own: &str) -> Vec<String> {
        let more = (self.fs.is_some() && !hosts.iter().any(|host| host == own)).then(|| own.to_owned());
        hosts.iter().cloned().chain(more).collect()
    }
}

pub(crate) fn run(args: VolumeVerbArgs, output: Output) -> Outcome {
    match args.verb {
        VolumeVerb::Create(args) => create(&args, output),
        VolumeVerb::Ls(args) => show::list(&args, output),
        VolumeVerb::Info(args) => show::info(&args, output),
        VolumeVerb::Open(args) => open(&args, output),
        VolumeVerb::Close(args) => close(&args, output),
        VolumeVerb::Rename(args) => rename(&args, output),
        VolumeVerb::Resize(args) => resize(&args, output),
        VolumeVerb::Snapshot(args) => snapshot(&args, output),
        VolumeVerb::Repair(args) => repair(&args, output),
        VolumeVerb::Rm(args) => remove(&args, output),
    }
}

/// Shows a volume, as `longhaul volume info` does.
pub(crate) fn info(volume: VolumeName, initiator: InitiatorArgs, output: Output) -> Outcome {
    show::info(&VolumeNamed { volume, access: PoolArgs { catalog: None, initiator } }, output)
}

fn device(name: &VolumeName) -> String {
    format!("{SCHEME}{name}")
}

fn create(args: &CreateVolume, output: Output) -> Outcome {
    let (opened, _) = args.access.open_and_collect(&args.volume.pool)?;
    let own = args.access.hostnqn();
    let hosts = args.shape.hosts_or(&own);
    let request = VolumeRequest {
        hosts: args.shape.hosts_while_made(&hosts, &own),
        lifetime: args.lifetime,
        ..args.shape.request(&opened.pool, args.volume.name.clone())?
    };
    let volume = opened.pool.create_volume(&request)?;
    if let Some(fs) = args.shape.fs
        && let Err(failure) = make_file_system(&opened.pool, &volume.name, fs, &hosts, &args.access)
    {
        if let Err(e) = opened.pool.remove_volume(&volume.name) {
            tracing::warn!("volume {} is left: {e}", args.volume);
        }
        return Err(failure);
    }
    let device = device(&args.volume);
    if !output.is_json() {
        match args.shape.fs {
            Some(_) => output.line(format_args!("longhaul mount {device} DIR")),
            None => output.line(&device),
        }
    }
    output.event(&VolumeMade {
        device,
        uuid: volume.uuid.to_string(),
        size: volume.shape.size,
        layout: volume.shape.layout.to_string(),
        targets: opened.pool.member_addresses(&volume)?,
        hosts,
        fs: args.shape.fs.map(|fs| fs.name().to_owned()),
    });
    Ok(())
}

/// Makes a file system on a volume that this host may use, and leaves it to `hosts`.
pub(crate) fn make_file_system(
    pool: &Pool,
    name: &str,
    fs: FileSystemKind,
    hosts: &[String],
    access: &PoolArgs,
) -> Outcome {
    let device = format!("{SCHEME}{}/{name}", pool.record().name);
    mkfs::make_on(device, fs, access.initiator.clone())?;
    if pool.volume(name)?.hosts != hosts {
        let (_, waiting) = pool.set_hosts(name, hosts)?;
        for why in waiting {
            tracing::warn!("volume {name} is still attached to this host: {why}");
        }
    }
    Ok(())
}

fn open(args: &Open, output: Output) -> Outcome {
    let opened = args.access.open(&args.volume.pool)?;
    let more = if args.hosts.is_empty() { vec![args.access.hostnqn()] } else { args.hosts.clone() };
    let changed = opened.pool.change_hosts(&args.volume.name, |hosts| {
        if args.only {
            hosts.clear();
        }
        for host in &more {
            if !hosts.contains(host) {
                hosts.push(host.clone());
            }
        }
    })?;
    end_of_hosts(&args.volume, changed, output)
}

fn close(args: &Close, output: Output) -> Outcome {
    let opened = args.access.open(&args.volume.pool)?;
    let name = &args.volume.name;
    let changed = opened.pool.change_hosts(name, |hosts| hosts.retain(|host| !args.hosts.contains(host)))?;
    end_of_hosts(&args.volume, changed, output)
}

/// Ends a change of the hosts of a volume, which these targets do not know of yet.
fn end_of_hosts(name: &VolumeName, changed: (VolumeRecord, Vec<String>), output: Output) -> Outcome {
    let (volume, waiting) = changed;
    let device = device(name);
    if !output.is_json() {
        match &volume.hosts[..] {
            [] => output.line(format_args!("{device} is for no host")),
            hosts => output.line(format_args!("{device} is for {}", hosts.join(", "))),
        }
    }
    output.event(&VolumeOpened { device: device.clone(), hosts: volume.hosts, waiting: waiting.clone() });
    end(&waiting, &device, output)
}

fn rename(args: &Rename, output: Output) -> Outcome {
    let opened = args.access.open(&args.volume.pool)?;
    opened.pool.rename_volume(&args.volume.name, &args.to)?;
    let device = format!("{SCHEME}{}/{}", args.volume.pool, args.to);
    if !output.is_json() {
        output.line(&device);
    }
    output.event(&VolumeRenamed { device });
    Ok(())
}

fn resize(args: &Resize, output: Output) -> Outcome {
    let (opened, _) = args.access.open_and_collect(&args.volume.pool)?;
    let volume = opened.pool.volume(&args.volume.name)?;
    if volume.shape.layout.is_files() {
        let name = &args.volume;
        let message = format!("{name} is a file system, not a volume: longhaul fs resize {name} --size SIZE");
        return Err(Failure::new(Exit::Refused, message));
    }
    let before = volume.shape.size;
    let volume = opened.pool.resize_volume(&args.volume.name, args.size)?;
    let device = device(&args.volume);
    let size = volume.shape.size;
    let grown = opened.pool.grow_running(&volume).map_err(|e| {
        let failure = Failure::from(e);
        let message =
            format!("the namespaces of {device} have grown, but not its array: {}", failure.message);
        Failure { message, ..failure }
    })?;
    let array = grown.map(|(_, after)| after);
    if !output.is_json() {
        output.line(format_args!("{device} has {} instead of {}", format_size(size), format_size(before)));
    }
    if array.is_none() && volume.array.is_some() {
        output.note(
            "its array does not run on this host, or runs for another user (sudo): it grows when the volume is opened \
             next, or by this command there",
        );
    }
    output.event(&VolumeResized { device, before, size, array });
    Ok(())
}

fn snapshot(args: &Snapshot, output: Output) -> Outcome {
    let request = SnapshotRequest {
        of: args.volume.name.clone(),
        name: args.name.clone(),
        hosts: (args.no_host.no_host || !args.hosts.is_empty()).then(|| args.hosts.clone()),
        lifetime: args.lifetime,
    };
    let (opened, _) = args.access.open_and_collect(&args.volume.pool)?;
    let arrays = HostArrays::new(&opened.targets, args.access.initiator.opener());
    let (snapshot, held) = opened.pool.snapshot_volume(&request, &arrays)?;
    let device = device(&VolumeName { name: snapshot.name.clone(), ..args.volume.clone() });
    if !output.is_json() {
        output.line(&device);
    }
    output.event(&VolumeSnapshot {
        device,
        of: self::device(&args.volume),
        uuid: snapshot.uuid.to_string(),
        size: snapshot.shape.size,
        targets: opened.pool.member_addresses(&snapshot)?,
        hosts: snapshot.hosts,
        held_seconds: held.as_secs_f64(),
    });
    Ok(())
}

fn repair(args: &Repair, output: Output) -> Outcome {
    let (opened, _) = args.access.open_and_collect(&args.volume.pool)?;
    let mut mover = Mover::new(&opened, &args.access, &args.moves, output);
    mover.resume()?;
    let moves = opened.pool.plan_repair(&args.volume.name, mover.arrays())?;
    mover.carry_out(&moves)?;
    mover.end()?;
    if moves.is_empty() {
        let message = format!("nothing to do: no member of {} is missing", device(&args.volume));
        return args.nothing.nothing(message, output);
    }
    Ok(())
}

fn remove(args: &RemoveVolumes, output: Output) -> Outcome {
    let (mut removed, mut waiting) = (Vec::new(), Vec::new());
    let mut opened: Option<OpenPool> = None;
    for name in &args.volumes {
        let pool = match opened.take().filter(|opened| opened.known.name == name.pool) {
            Some(pool) => pool,
            None => args.access.open_and_collect(&name.pool)?.0,
        };
        if !args.force {
            check_unused(&pool, name)?;
        }
        if let Removed::Later(why) = pool.pool.remove_volume(&name.name)? {
            waiting.extend(why);
        }
        removed.push(device(name));
        if !output.is_json() {
            output.line(format_args!("removed {}", device(name)));
        }
        opened = Some(pool);
    }
    let what = removed.join(", ");
    output.event(&VolumesRemoved { volumes: removed, waiting: waiting.clone() });
    end(&waiting, &what, output)
}

/// Refuses a volume whose array runs.
fn check_unused(opened: &OpenPool, name: &VolumeName) -> Outcome {
    let volume = opened.pool.volume(&name.name)?;
    if volume.shape.layout.is_files() {
        let why = format!("{name} is a file system and not removed: longhaul fs rm {name}");
        return Err(Failure::new(Exit::Refused, why));
    }
    let user = match opened.pool.running_status(&volume)? {
        Some(_) => "a process of this host uses it",
        None if opened.pool.is_unstopped(&volume, &opened.targets)? => {
            "its array was not stopped: a host uses it, or did so when it crashed"
        }
        None => return Ok(()),
    };
    let why = format!("volume {name} is not removed: {user}; end that, or give --force");
    Err(Failure::new(Exit::Refused, why).because(Some(Reason::InUse)))
}
