//! `longhaul fs`.

mod quota;
mod serve;

use crate::arguments::{parse_bytes, parse_mode};
use crate::events::{
    FsChecked, FsList, FsListed, FsMade, FsMember, FsMount, FsRemoved, FsResized, FsScrubbed, FsShown,
    FsSnapshotList, FsSnapshotListed, FsSnapshotMade,
};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::pools::{NoHost, PoolArgs, end};
use crate::screen::Line;
use crate::verbs::top::{self, Refreshes};
use crate::words::file_layouts;
use longhaul_array::{DEFAULT_UNIT, Layout};
use longhaul_block::units::format_size;
use longhaul_engine::UtcTime;
use longhaul_pool::{KnownPool, Removed, VolumeLayout, VolumeRequest, VolumeState};
use longhaul_poolfs::{FsName, FsRef, FsStatus, SCHEME, ScrubReport, TopDirectory};

#[derive(Debug, clap::Args)]
pub(crate) struct FsVerbArgs {
    #[command(subcommand)]
    verb: FsVerb,
}

#[derive(Debug, clap::Subcommand)]
enum FsVerb {
    /// Make a file system
    Create(CreateFs),
    /// List the file systems of pools
    #[command(alias = "list")]
    Ls(ListFs),
    /// Show a file system: its members, its mounts
    #[command(alias = "info")]
    Status(FsNamed),
    /// Check the metadata of a file system
    Check(CheckFs),
    /// Read all content of a file system, and repair what is wrong
    Scrub(ScrubFs),
    /// Watch the file systems that are mounted or copied on this host
    Top(TopFs),
    /// Make a file system larger, while it is used
    Resize(ResizeFs),
    /// Make a snapshot of a file system, while it is used
    Snapshot(SnapshotFs),
    /// List the snapshots of a file system, with what they hold
    Snapshots(FsNamed),
    /// Limit what users and groups may have, and show what they have
    Quota(quota::QuotaArgs),
    /// Remove file systems and their files, or snapshots
    Rm(RemoveFs),
    /// Serve the catalog of pools to other hosts
    Serve(serve::ServeArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Its data is in different failure domains, on the targets with the most free
capacity, and its metadata in the catalog of the pool: in a file, one host mounts
it; at a server (longhaul fs serve) or in etcd, many do.

Example:
  longhaul fs create scratch/home --size 2TiB --layout parity
  longhaul mount fs:scratch/home /home/me/shared")]
struct CreateFs {
    /// The file system: POOL/NAME
    name: FsName,
    /// Bytes of files that it has room for
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    size: u64,
    /// parity, double-parity, mirror (two copies), or stripe (one)
    #[arg(long, value_name = "KIND", value_parser = file_layouts(), hide_possible_values = true)]
    layout: Layout,
    /// Members [default: one for each failure domain, at most 8]
    #[arg(long, value_name = "N")]
    width: Option<usize>,
    /// Most bytes of a stripe on one member: 64KiB to 1MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    stripe_unit: Option<u64>,
    /// Most members in one failure domain
    #[arg(long, value_name = "N", default_value_t = 1)]
    per_domain: usize,
    /// Permissions of its top directory, in octal digits: 1777 lets all users make
    /// files there
    #[arg(long, value_name = "MODE", value_parser = parse_mode, default_value = "755")]
    mode: u32,
    /// Take capacity as it is written to, instead of all of it now
    #[arg(long)]
    thin: bool,
    /// Host that may mount it [default: this one]; may be repeated
    #[arg(long = "for", value_name = "HOSTNQN")]
    hosts: Vec<String>,
    #[command(flatten)]
    no_host: NoHost,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
struct ListFs {
    /// Pools [default: all that this host knows]
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
struct FsNamed {
    /// The file system: POOL/NAME
    name: FsName,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Shows what goes over the paths to the members of each, and how they are, as
'longhaul top' does of all that runs on this host.")]
struct TopFs {
    /// File systems: POOL/NAME [default: all that are mounted or copied here]
    #[arg(value_name = "POOL/NAME")]
    names: Vec<FsName>,
    #[command(flatten)]
    refreshes: Refreshes,
}

#[derive(Debug, clap::Args)]
struct CheckFs {
    /// The file system: POOL/NAME
    name: FsName,
    /// Count anew what users and groups have, if their usage is wrong: nothing else
    /// can be repaired
    #[arg(long)]
    repair: bool,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
struct ScrubFs {
    /// The file system: POOL/NAME
    name: FsName,
    /// Most bytes per second that are read
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    limit: Option<u64>,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
struct ResizeFs {
    /// The file system: POOL/NAME
    name: FsName,
    /// Its new size: it does not shrink
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    size: u64,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The snapshot has what was durable at one moment, on all hosts: what was closed or
synced before. It takes space only for what is changed or removed afterwards.

Example:
  longhaul fs snapshot scratch/home@monday
  longhaul mount fs:scratch/home@monday /home/me/monday
  longhaul cp fs:scratch/home@monday/thesis.tex .
  longhaul fs rm scratch/home@monday")]
struct SnapshotFs {
    /// The snapshot: POOL/NAME@SNAPSHOT
    #[arg(value_name = "NAME")]
    snapshot: FsRef,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
What a snapshot alone has is freed when the command ends. If the file system cannot
be opened here, the next host that mounts it frees it.")]
struct RemoveFs {
    /// The file systems: POOL/NAME; or snapshots: POOL/NAME@SNAPSHOT
    #[arg(value_name = "NAME", required = true)]
    names: Vec<FsRef>,
    /// Also those that a host has mounted, or had when it crashed
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    access: PoolArgs,
}

pub(crate) fn run(args: FsVerbArgs, output: Output) -> Outcome {
    match args.verb {
        FsVerb::Create(args) => create(&args, output),
        FsVerb::Ls(args) => list(&args, output),
        FsVerb::Status(args) => status(&args, output),
        FsVerb::Check(args) => check(&args, output),
        FsVerb::Scrub(args) => scrub(&args, output),
        FsVerb::Top(args) => top::files(&args.names, &args.refreshes, output),
        FsVerb::Resize(args) => resize(&args, output),
        FsVerb::Snapshot(args) => snapshot(&args, output),
        FsVerb::Snapshots(args) => snapshots(&args, output),
        FsVerb::Quota(args) => quota::run(args, output),
        FsVerb::Rm(args) => remove(&args, output),
        FsVerb::Serve(args) => serve::serve(&args, output),
    }
}

fn create(args: &CreateFs, output: Output) -> Outcome {
    let (opened, _) = args.access.open_and_collect(&args.name.pool)?;
    let kind = VolumeLayout::Files(args.layout);
    let width = match args.width {
        Some(width) => width,
        None => opened.pool.suited_width(kind, 0, args.per_domain)?,
    };
    let hosts = args.no_host.or_default(&args.hosts, &args.access.hostnqn());
    let request = VolumeRequest {
        name: args.name.name.clone(),
        size: args.size,
        layout: kind,
        width,
        spares: 0,
        unit: args.stripe_unit.unwrap_or(DEFAULT_UNIT),
        per_domain: args.per_domain,
        hosts,
        job: None,
        lifetime: None,
        thin: args.thin,
    };
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let volume = longhaul_poolfs::create(&opened.pool, &request, TopDirectory { uid, gid, mode: args.mode })?;
    let name = format!("{SCHEME}{}", args.name);
    if !output.is_json() {
        output.line(format_args!("longhaul mount {name} DIR"));
    }
    output.event(&FsMade {
        name,
        uuid: volume.uuid.to_string(),
        size: volume.shape.size,
        layout: volume.shape.layout.redundancy().to_owned(),
        width,
        targets: opened.pool.member_addresses(&volume)?,
        hosts: request.hosts,
    });
    Ok(())
}

fn list(args: &ListFs, output: Output) -> Outcome {
    let pools: Vec<String> = match (&args.pools[..], &args.access.catalog) {
        ([], None) => KnownPool::all()?.into_iter().map(|pool| pool.name).collect(),
        ([], Some(catalog)) => KnownPool::new("", catalog)?.host(args.access.targets()?)?.pools()?,
        (pools, _) => pools.to_vec(),
    };
    let (mut file_systems, mut size) = (0, 0u64);
    for pool in &pools {
        for volume in longhaul_poolfs::list(&args.access.open(pool)?.pool)? {
            let creating = volume.state == VolumeState::Creating;
            let listed = FsListed {
                name: format!("{SCHEME}{pool}/{}", volume.name),
                size: volume.shape.size,
                layout: volume.shape.layout.redundancy().to_owned(),
                width: volume.shape.width,
                creating,
            };
            if !output.is_json() {
                let note = if creating { " (being made)" } else { "" };
                let FsListed { name, layout, width, .. } = &listed;
                output
                    .line(format_args!("{name:<32} {:>10} {layout} {width}{note}", format_size(listed.size)));
            }
            output.event(&listed);
            file_systems += 1;
            size = size.saturating_add(listed.size);
        }
    }
    output.event(&FsList { file_systems, size });
    if !output.is_json() {
        output.line(format_args!("{file_systems} file systems, {}", format_size(size)));
    }
    Ok(())
}

fn status(args: &FsNamed, output: Output) -> Outcome {
    let opened = args.access.open(&args.name.pool)?;
    let FsStatus { volume, is_whole, size, free, filling, sessions, not_fenced } =
        longhaul_poolfs::status(&opened.pool, &args.name.name)?;
    let targets = opened.pool.status()?.targets;
    let uris = opened.pool.member_uris(&volume)?;
    let members: Vec<FsMember> = uris
        .into_iter()
        .zip(&volume.members)
        .map(|(uri, member)| {
            let target = targets.iter().find(|target| target.record.id == member.target);
            let error = match (&uri, target.map(|target| &target.space)) {
                (None, _) | (_, None) => Some("it was not found".to_owned()),
                (_, Some(Err(e))) => Some(e.to_string()),
                (_, Some(Ok(_))) => None,
            };
            FsMember { uri, size: volume.shape.member_size, error, filled: None }
        })
        .collect();
    let mut members = members;
    for (member, done, all) in filling {
        if let Some(member) = members.get_mut(member) {
            member.filled = Some(f64::from(done) / f64::from(all.max(1)));
        }
    }
    let missing = members.iter().filter(|member| member.error.is_some()).count();
    let health = match missing {
        _ if !is_whole => "failed",
        0 => "healthy",
        _ if missing <= volume.shape.redundancy() => "degraded",
        _ => "failed",
    };
    let shown = FsShown {
        name: format!("{SCHEME}{}", args.name),
        uuid: volume.uuid.to_string(),
        health: health.to_owned(),
        size,
        free,
        layout: volume.shape.layout.redundancy().to_owned(),
        members,
        hosts: volume.hosts.clone(),
        mounts: sessions.into_iter().map(|(session, host)| FsMount { session, host }).collect(),
        fencing: not_fenced.map_or_else(|| "at the targets".into(), |why| format!("by time ({why})")),
    };
    if !output.is_json() {
        tell(&shown, output);
    }
    output.event(&shown);
    if health == "healthy" {
        return Ok(());
    }
    let message = match is_whole {
        true => format!("{}: {health}: {missing} members cannot be reached", shown.name),
        false => {
            format!("{}: failed: it has no metadata; remove it: longhaul fs rm {}", shown.name, args.name)
        }
    };
    let exit = if health == "degraded" { Exit::Partly } else { Exit::Failed };
    Err(Failure { in_result: true, ..Failure::new(exit, message) })
}

fn tell(shown: &FsShown, output: Output) {
    let FsShown { name, health, layout, members, .. } = shown;
    let (size, free) = (format_size(shown.size), format_size(shown.free));
    let width = members.len();
    output.line(format_args!("{name}: {health}, {size}, {free} free, {layout} over {width} members"));
    for (index, member) in members.iter().enumerate() {
        let uri = member.uri.as_deref().unwrap_or("missing");
        let why = member.error.as_ref().map(|why| format!(", unreachable: {why}")).unwrap_or_default();
        let filled =
            member.filled.map(|part| format!(", filled to {:.0} %", part * 100.0)).unwrap_or_default();
        output.line(format_args!("member {index}: {uri}, {}{filled}{why}", format_size(member.size)));
    }
    output.line(format_args!("for {}", shown.hosts.join(", ")));
    output.line(format_args!("fencing of lost hosts: {}", shown.fencing));
    for mount in &shown.mounts {
        output.line(format_args!("mounted on {} (session {})", mount.host, mount.session));
    }
}

fn check(args: &CheckFs, output: Output) -> Outcome {
    let opened = args.access.open(&args.name.pool)?;
    let volume = longhaul_poolfs::find(&opened.pool, &args.name.name)?;
    let shown = args.name.to_string();
    let catalog = &*opened.pool.host().catalog;
    let mut report = longhaul_poolfs::check(catalog, volume.uuid, &shown)?;
    let recounted =
        args.repair && report.wrong_usage > 0 && longhaul_poolfs::recount(&opened.pool, &args.name.name)?;
    if recounted {
        output.note(format_args!(
            "the usage of {} users and groups was wrong, and was counted anew",
            report.wrong_usage
        ));
        report = longhaul_poolfs::check(catalog, volume.uuid, &shown)?;
    }
    let checked = FsChecked {
        name: format!("{SCHEME}{}", args.name),
        files: report.files,
        directories: report.directories,
        bytes: report.bytes,
        segments_used: report.segments.0,
        segments: report.segments.1,
        snapshots: report.snapshots,
        kept: report.kept,
        left: report.left.len(),
        recounted,
        problems: report.count,
        described: report.problems,
    };
    if !output.is_json() {
        let FsChecked { name, files, directories, problems, .. } = &checked;
        let bytes = format_size(checked.bytes);
        output.line(format_args!(
            "{name}: {files} files with {bytes}, {directories} directories: {problems} problems"
        ));
        if checked.snapshots > 0 {
            let kept = format_size(checked.kept);
            output.line(format_args!("{} snapshots, which alone have {kept}", checked.snapshots));
        }
        for problem in &checked.described {
            output.line(problem);
        }
        if checked.left > 0 {
            output.note(format_args!(
                "{} hosts were lost: the next mount removes what they left",
                checked.left
            ));
        }
    }
    output.event(&checked);
    if checked.problems == 0 {
        return Ok(());
    }
    let message = format!("the metadata of {} has {} problems", checked.name, checked.problems);
    Err(Failure { in_result: true, ..Failure::new(Exit::Mismatch, message) })
}

fn scrub(args: &ScrubFs, output: Output) -> Outcome {
    let opened = args.access.open(&args.name.pool)?;
    let line = Line::new();
    let mut show = |report: &ScrubReport| {
        line.show(None, format!("{} read, {} units wrong", format_size(report.bytes), report.wrong));
    };
    let opener = args.access.initiator.opener();
    let report = longhaul_poolfs::scrub(&opened.pool, &args.name.name, &opener, args.limit, &mut show)?;
    drop(line);
    let name = format!("{SCHEME}{}", args.name);
    let ScrubReport { bytes, wrong, missing, repaired, waiting, lost, files, .. } = report;
    if !output.is_json() {
        output.line(format_args!(
            "{name}: {} read, {wrong} units wrong, {} repaired, {missing} missing, {} lost",
            format_size(bytes),
            format_size(repaired),
            format_size(lost)
        ));
        for inode in &files {
            output.line(format_args!("inode {inode} has lost content"));
        }
    }
    let files = files.into_iter().collect();
    output.event(&FsScrubbed { name: name.clone(), bytes, wrong, missing, repaired, waiting, lost, files });
    let (exit, message) = match (lost, waiting + missing) {
        (0, 0) => return Ok(()),
        (0, _) => (Exit::Partly, format!("{name}: members are missing: what they have is not repaired")),
        (lost, _) => (Exit::Mismatch, format!("{name}: {} of content are lost", format_size(lost))),
    };
    Err(Failure { in_result: true, ..Failure::new(exit, message) })
}

fn resize(args: &ResizeFs, output: Output) -> Outcome {
    let (opened, _) = args.access.open_and_collect(&args.name.pool)?;
    let before = longhaul_poolfs::find(&opened.pool, &args.name.name)?.shape.size;
    let size = longhaul_poolfs::resize(&opened.pool, &args.name.name, args.size)?.shape.size;
    let name = format!("{SCHEME}{}", args.name);
    if !output.is_json() {
        output.line(format_args!("{name} has {} instead of {}", format_size(size), format_size(before)));
    }
    output.event(&FsResized { name, before, size });
    Ok(())
}

fn snapshot(args: &SnapshotFs, output: Output) -> Outcome {
    let FsRef { fs, snapshot: Some(name) } = &args.snapshot else {
        let why = format!("{} is no snapshot: the form is POOL/NAME@SNAPSHOT", args.snapshot);
        return Err(Failure::usage(why));
    };
    let opened = args.access.open(&fs.pool)?;
    let made = longhaul_poolfs::make_snapshot(&opened.pool, &fs.name, name)?;
    let name = format!("{SCHEME}{}", args.snapshot);
    if !output.is_json() {
        output.line(format_args!("longhaul mount {name} DIR"));
    }
    output.event(&FsSnapshotMade {
        name,
        made: made.made.seconds.max(0).cast_unsigned(),
        revision: made.revision,
    });
    Ok(())
}

/// A time in UTC, in seconds since 1970.
fn date(seconds: u64) -> String {
    let UtcTime { year, month, day, hour, minute, second, .. } = UtcTime::of_epoch_seconds(seconds);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

fn snapshots(args: &FsNamed, output: Output) -> Outcome {
    let opened = args.access.open(&args.name.pool)?;
    let all = longhaul_poolfs::snapshots(&opened.pool, &args.name.name)?;
    let volume = longhaul_poolfs::find(&opened.pool, &args.name.name)?;
    let kept = longhaul_poolfs::kept(&*opened.pool.host().catalog, volume.uuid)?;
    let count = all.len();
    for one in all {
        let listed = FsSnapshotListed {
            name: format!("{SCHEME}{}@{}", args.name, one.name),
            made: one.made.seconds.max(0).cast_unsigned(),
            revision: one.revision,
            held: one.held,
            removing: one.is_removed,
            mounts: one.mounts,
        };
        if !output.is_json() {
            let FsSnapshotListed { name, removing, mounts, .. } = &listed;
            let made = date(listed.made);
            let note = if *removing { " (being removed)" } else { "" };
            let mounted = match mounts.is_empty() {
                true => String::new(),
                false => format!(", mounted on {}", mounts.join(", ")),
            };
            let held = format_size(listed.held);
            output.line(format_args!("{name:<40} {made} {held:>10}{note}{mounted}"));
        }
        output.event(&listed);
    }
    if !output.is_json() {
        output.line(format_args!("{count} snapshots, which alone have {}", format_size(kept)));
    }
    output.event(&FsSnapshotList { snapshots: count, kept });
    Ok(())
}

fn remove(args: &RemoveFs, output: Output) -> Outcome {
    let (mut names, mut waiting) = (Vec::new(), Vec::new());
    for FsRef { fs, snapshot } in &args.names {
        let name = match snapshot {
            Some(snapshot) => {
                let opened = args.access.open(&fs.pool)?;
                let opener = args.access.initiator.opener();
                longhaul_poolfs::remove_snapshot(&opened.pool, &fs.name, snapshot, &opener, args.force)?;
                format!("{SCHEME}{fs}@{snapshot}")
            }
            None => {
                let (opened, _) = args.access.open_and_collect(&fs.pool)?;
                if let Removed::Later(why) = longhaul_poolfs::remove(&opened.pool, &fs.name, args.force)? {
                    waiting.extend(why);
                }
                format!("{SCHEME}{fs}")
            }
        };
        if !output.is_json() {
            output.line(format_args!("removed {name}"));
        }
        names.push(name);
    }
    let what = names.join(", ");
    output.event(&FsRemoved { names, waiting: waiting.clone() });
    end(&waiting, &what, output)
}
