//! `longhaul mount` and `longhaul umount`: attach, a loop device on the file,
//! and the file system on that.
//!
//! Once mounted, only the file system holds the loop device, and only the loop device holds the
//! file: an unmount by any tool ends the attachment. For a block device of the kernel, the serving
//! process polls whether the file system is still mounted.

use super::far_mount::FarMountArgs;
use super::open::DeviceArgs;
use super::{
    background, detach_at, far_mount, log_passed_over, observe, pool_mount, ready_at, tree_mount, watched,
};
use crate::complete;
use crate::events::{MountReady, ServiceSummary};
use crate::exit::{Exit, Failure, Outcome};
use crate::metrics::MetricsArgs;
use crate::output::Output;
use crate::words::front_ends;
use longhaul_attach::filesystem::{Content, FileSystemKind};
use longhaul_attach::fuse::unmount_served;
use longhaul_attach::{
    Mounting, OpenDevice, Request, Service, ServiceEvent, Via, first_available, keep_out_of_reclaim, listen,
    no_replay_option, users,
};
use longhaul_block::units::format_size;
use longhaul_device::attached::{Attachment, absolute, log_of};
use longhaul_device::{Reason, needs_root};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The `via` of a mount in its record.
fn recorded_via(via: Via) -> String {
    match via {
        Via::Fuse => "fuse+loop".into(),
        kernel => format!("{}+mount", kernel.name()),
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A file system on a device needs root, for the loop device and the mount: under
sudo, the arrays that you created are found. A directory of another machine
(HOST:PATH through ssh, or lh://HOST/PATH of a running agent) and a file system
in a pool (fs:POOL/NAME) need FUSE only. A background process serves any of them
until longhaul umount, or umount.

Examples:
  longhaul mount me@dtn1:/data /home/me/data
  longhaul mount fs:scratch/home /home/me/shared
  sudo longhaul mount nvme+tcp://dtn1/scratch /mnt/scratch
  sudo longhaul mount array:scratch /mnt/scratch --read-only
  sudo longhaul umount /mnt/scratch")]
pub(crate) struct MountArgs {
    /// The device, several of which are joined by --layout; a directory of another
    /// machine; or a file system in a pool
    #[arg(value_name = "DEVICE", required = true, num_args = 1.., add = complete::device())]
    pub(super) devices: Vec<String>,
    /// Directory to mount it at
    #[arg(value_name = "DIR", required = true)]
    dir: PathBuf,
    /// Further mount options, as for mount(8)
    #[arg(short, long, value_name = "OPTIONS")]
    options: Option<String>,
    /// How the device is attached; fuse adds a loop device
    #[arg(long, value_name = "WAY", default_value = "auto", value_parser = front_ends())]
    via: Via,
    /// Serve the device in the foreground, until SIGTERM
    #[arg(long)]
    pub(super) foreground: bool,
    #[command(flatten)]
    pub(super) metrics: MetricsArgs,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    #[command(flatten)]
    pub(super) far: FarMountArgs,
}

impl MountArgs {
    /// Directory and devices of a mount in the background; `None` in the foreground.
    pub(crate) fn in_background(&self) -> Option<(PathBuf, Vec<String>)> {
        (!self.foreground).then(|| (self.dir.clone(), self.devices.clone()))
    }
}

/// Arguments of `umount`.
#[derive(Debug, clap::Args)]
pub(crate) struct Umount {
    /// Directory where it is mounted
    dir: PathBuf,
    /// Unmount at once, even if it is in use or the device does not respond; unflushed writes go
    /// to the device when it responds again, or are lost
    #[arg(short, long)]
    lazy: bool,
}

pub(crate) fn run(args: &MountArgs, output: Output) -> Outcome {
    if let Some(name) = pool_mount::name(args)? {
        return tree_mount::run(args, &directory(&args.dir)?, output, |opener| {
            pool_mount::open(args, &name, opener)
        });
    }
    if let Some(endpoint) = far_mount::endpoint(args)? {
        return tree_mount::run(args, &directory(&args.dir)?, output, |opener| {
            far_mount::open(args, &endpoint, opener)
        });
    }
    needs_root("longhaul mount", "to mount a file system")?;
    let dir = directory(&args.dir)?;
    if !args.foreground && !background::is_this() {
        let ready = background::start(&log_of(&dir), output)?;
        print_ready(&ready, output);
        return Ok(());
    }
    serve(args, &dir, output)
}

pub(crate) fn umount(args: &Umount, output: Output) -> Outcome {
    let dir = absolute(&args.dir)?;
    // What a user has mounted through FUSE, the user's process unmounts.
    let is_far = Attachment::find(&dir)
        .is_some_and(|(record, _)| [far_mount::VIA, pool_mount::VIA].contains(&&*record.via));
    if users::is_mounted(&dir) && !is_far {
        needs_root("longhaul umount", "to unmount a file system")?;
    }
    detach_at(&dir, args.lazy, output)
}

/// The absolute path of an existing directory without an attachment.
fn directory(dir: &Path) -> Result<PathBuf, Failure> {
    let dir = absolute(dir)?;
    match Attachment::find(&dir) {
        Some((_, true)) => {
            return Err(Failure::new(Exit::Refused, format!("{}: mounted already", dir.display()))
                .because(Some(Reason::InUse)));
        }
        Some((_, false)) => {
            let why = "the process of the earlier mount has ended; remove that mount: longhaul umount";
            return Err(Failure::usage(format!("{}: {why} {}", dir.display(), dir.display())));
        }
        None => {}
    }
    match std::fs::metadata(&dir) {
        Ok(meta) if meta.is_dir() => Ok(dir),
        Ok(_) => Err(Failure::usage(format!("{}: not a directory", dir.display()))),
        Err(e) => Err(Failure::usage(format!("{}: {e}", dir.display()))),
    }
}

fn serve(args: &MountArgs, dir: &Path, mut output: Output) -> Outcome {
    // From here on a signal is an event, also while the device is being opened.
    let (event_sender, events) = observe::events()?;
    // Before the threads that serve the device are started: they inherit the setting.
    keep_out_of_reclaim();
    let (opener, metrics) = watched(&args.device.using, &args.metrics)?;
    let opened = args.device.open_by(&opener, &args.devices, dir)?;
    background::leave();
    let (kind, options) = options(args, &opened)?;
    let info = opened.requests.info();
    let candidates = args.via.candidates(false);
    let mut record = Attachment {
        path: dir.to_owned(),
        devices: args.devices.clone(),
        via: recorded_via(args.via),
        size: info.size,
        read_only: info.read_only,
        pid: std::process::id(),
        trouble: None,
    };
    let mut held = record.hold()?;
    let server = listen(dir, &event_sender)?;
    // A flush reports writes lost since its handle was made, so the handle precedes the mount.
    let handle = opened.requests.handle();
    let durable = || opened.requests.wait(Request::Flush(Arc::clone(&handle))).map(drop);
    let mounting = Mounting {
        durable: &durable,
        name: args.devices.join("+"),
        info: &info,
        kind,
        options: RefCell::new(options),
        shared: RefCell::default(),
        dir,
    };
    let ((front_end, device), passed_over) = first_available(candidates, |via| {
        record.via = recorded_via(via);
        held.write(&record)?;
        let sender = event_sender.clone();
        match via.kernel() {
            None => mounting.through_file(&opened, move || drop(sender.send(ServiceEvent::Ended))),
            Some(driver) => mounting.through_kernel(&opened, driver),
        }
    })?;
    let (options, shared) = (mounting.options.into_inner(), mounting.shared.into_inner());
    let journal_left = options.split(',').any(|option| option == no_replay_option(kind));
    let device = device.display().to_string();
    let ready = MountReady {
        path: dir.display().to_string(),
        via: record.via.clone(),
        pid: record.pid,
        size: info.size,
        read_only: info.read_only,
        fs: kind.name().to_owned(),
        options,
        journal_left,
        passed_over,
        loop_device: (record.via == recorded_via(Via::Fuse)).then(|| device.clone()),
        device,
        metrics: ready_at(metrics.as_ref()),
    };
    print_ready(&ready, output);
    if background::is_this() {
        // The starting process reads standard output only until the `ready` event.
        output = Output::new(false);
    }
    let release = Box::new(|lazily| Ok(unmount_served(dir, lazily)?));
    let released = Box::new(|| !users::is_mounted(dir));
    let size = Box::new(|| opened.requests.info().size);
    let trouble = Box::new(|| opened.trouble());
    let held = &mut held;
    let service =
        Service { front_end, path: dir, size, trouble, release, released, record, held, observer: &output };
    let mut detach_request = None;
    let result = service.run(&events, &mut detach_request);
    background::finish(&log_of(dir), result.is_ok());
    // Released before the reply, so that `longhaul umount` can be followed by a mount at once.
    drop((server, held, opened, shared));
    if let Some(request) = detach_request {
        request.answer(result.clone());
    }
    output.event(&ServiceSummary { clean: result.is_ok() });
    Ok(result?)
}

/// The kind of the file system on the device, and its mount options.
fn options(args: &MountArgs, opened: &OpenDevice) -> Result<(FileSystemKind, String), Failure> {
    let (name, size) = (args.devices.join(" "), opened.requests.info().size);
    let kind = match opened.content()? {
        Content::FileSystem(kind, needs) if needs > size => {
            return Err(Failure::failed(format!(
                "{name} has {}, and the {kind} file system on it {}: the device has become smaller",
                format_size(size),
                format_size(needs)
            )));
        }
        Content::FileSystem(kind, _) => kind,
        Content::Nothing => {
            let why = format!("{name} has no file system; make one: longhaul mkfs --fs xfs {name}");
            return Err(Failure::failed(why).because(Some(Reason::Empty)));
        }
        Content::Partitions | Content::Unknown => {
            return Err(Failure::failed(format!("{name} has no XFS or ext4 file system on it")));
        }
    };
    let read_only = opened.requests.info().read_only;
    let mut options = vec![if read_only { "ro".into() } else { "rw".to_owned() }];
    options.push(opened.shape()?.mount_options(kind, read_only));
    options.extend(args.options.clone());
    options.retain(|option| !option.is_empty());
    Ok((kind, options.join(",")))
}

fn print_ready(ready: &MountReady, output: Output) {
    output.event(ready);
    if !output.is_json() {
        let MountReady { path, fs, device, via, options, .. } = ready;
        let size = format_size(ready.size);
        output.line(format_args!("ready {path} ({fs}, {size}, {device} through {via}, {options})"));
        log_passed_over(&ready.passed_over);
        if ready.journal_left {
            output.note("its journal was not replayed: mount it once without --read-only to replay it");
        }
    }
}
