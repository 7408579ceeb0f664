//! `longhaul mount` and `longhaul umount`: attach, a loop device on the file,
//! and the file system on that.
//!
//! Once the file system is mounted nothing but it holds the loop device, and
//! nothing but that the file: so whoever unmounts it, with whatever tool, ends
//! it all. Where it is on a block device of the kernel, we look for that.

use super::open::{DeviceArgs, OpenDevice};
use super::serve::{self, Attached, Event, Service};
use super::via::{self, Stopped, Via};
use super::{background, detach_at, tell_why};
use crate::attached::{Attachment, absolute, log_of};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::runtime;
use crate::user;
use longhaul_attach::filesystem::{Content, Kind};
use longhaul_attach::fuse::{self, FuseFile, FuseOptions, unmount_served};
use longhaul_attach::kernel::{KernelDevice, Way};
use longhaul_attach::{LoopDevice, Request, Shared, keep_out_of_reclaim, users};
use longhaul_block::units::format_size;
use longhaul_block::{DeviceInfo, IoResult};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use uuid::Uuid;

/// How these are listed.
fn listed(via: Via) -> String {
    match via {
        Via::Fuse => "fuse+loop".into(),
        kernel => format!("{}+mount", kernel.name()),
    }
}

/// Whether what is listed so is a mounted file system.
pub(super) fn is_mount(via: &str) -> bool {
    via.contains('+')
}

/// Where the device of the file system at `dir` is, for nobody to look at.
pub(super) fn hidden(dir: &Path) -> PathBuf {
    let id = Uuid::new_v5(&Uuid::NAMESPACE_URL, dir.as_os_str().as_encoded_bytes());
    runtime::directory().join(format!("mount-{}", id.simple()))
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Needs root, for the loop device and the mount: under sudo, the arrays that you
created are found. A background process serves the device until longhaul umount,
or umount.

Examples:
  sudo longhaul mount nvme+tcp://dtn1/scratch /mnt/scratch
  sudo longhaul mount array:scratch /mnt/scratch --read-only
  sudo longhaul umount /mnt/scratch")]
pub(crate) struct Args {
    /// The device; several are joined by --layout
    #[arg(value_name = "DEVICE", required = true, num_args = 1..)]
    devices: Vec<String>,
    /// Directory to mount it at
    #[arg(value_name = "DIR", required = true)]
    dir: PathBuf,
    /// Further mount options, as for mount(8)
    #[arg(short, long, value_name = "OPTIONS")]
    options: Option<String>,
    /// How the device is attached; fuse adds a loop device
    #[arg(long, value_name = "WAY", default_value = "auto")]
    via: Via,
    /// Serve the device in the foreground, until SIGTERM
    #[arg(long)]
    foreground: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

impl Args {
    /// Where it is to be mounted in the background, and of what.
    pub(crate) fn place(&self) -> Option<(PathBuf, Vec<String>)> {
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

pub(crate) fn run(args: &Args, output: Output) -> Outcome {
    user::needs_root("longhaul mount", "to mount a file system")?;
    let dir = directory(&args.dir)?;
    if !args.foreground && !background::is_this() {
        let ready = background::start(&log_of(&dir), output)?;
        tell(&ready, output);
        return Ok(());
    }
    serve(args, &dir, output)
}

pub(crate) fn umount(args: &Umount, output: Output) -> Outcome {
    let dir = absolute(&args.dir)?;
    if users::is_mounted(&dir) {
        user::needs_root("longhaul umount", "to unmount a file system")?;
    }
    detach_at(&dir, args.lazy, output)
}

/// A directory that something can be mounted at.
fn directory(dir: &Path) -> Result<PathBuf, Failure> {
    let dir = absolute(dir)?;
    match Attachment::find(&dir) {
        Some((_, true)) => {
            return Err(Failure::new(Exit::Refused, format!("{}: mounted already", dir.display())));
        }
        Some((_, false)) => {
            let why = "what was mounted there lost its process; end it: longhaul umount";
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

fn serve(args: &Args, dir: &Path, mut output: Output) -> Outcome {
    // From here on a signal is an event, also before all is ready.
    let (events_in, events) = serve::events()?;
    // The threads that come have it from this one.
    keep_out_of_reclaim();
    let opened = args.device.open(&args.devices, dir)?;
    background::leave();
    let (kind, options) = options(args, &opened)?;
    let info = opened.requests.info();
    let ways = args.via.ways(false);
    let mut record = Attachment {
        path: dir.to_owned(),
        devices: args.devices.clone(),
        via: listed(args.via),
        size: info.size,
        read_only: info.read_only,
        pid: std::process::id(),
        trouble: None,
    };
    let mut held = record.hold()?;
    let server = serve::listen(dir, &events_in)?;
    // Made before the first write of the mount: its flush tells of all losses.
    let told = opened.requests.handle();
    let durable = || opened.requests.wait(Request::Flush(Arc::clone(&told))).map(drop);
    let mounting = Mounting {
        durable: &durable,
        name: args.devices.join("+"),
        info: &info,
        kind,
        options: RefCell::new(options),
        shared: RefCell::default(),
        dir,
    };
    let ((file, device), passed_over) = via::first(ways, |way| {
        record.via = listed(way);
        held.write(&record)?;
        let tell = events_in.clone();
        match way.kernel() {
            None => mounting.through_file(&opened, move || drop(tell.send(Event::Ended))),
            Some(way) => mounting.through_kernel(&opened, way),
        }
    })?;
    let (options, shared) = (mounting.options.into_inner(), mounting.shared.into_inner());
    let journal_left = options.split(',').any(|option| option == without_journal(kind));
    let ready = json!({
        "path": dir, "via": record.via, "pid": record.pid, "size": info.size, "read_only": info.read_only,
        "fs": kind.name(), "options": options, "journal_left": journal_left,
        "device": device, "passed_over": passed_over,
        // As it was called before there were others.
        "loop": (record.via == listed(Via::Fuse)).then_some(&device),
    });
    tell(&ready, output);
    if background::is_this() {
        // Nobody reads standard output any more.
        output = Output::new(false);
    }
    let release = Box::new(|lazily| Ok(unmount_served(dir, lazily)?));
    let released = Box::new(|| !users::is_mounted(dir));
    let requests = &*opened.requests;
    let trouble = Box::new(|| opened.trouble());
    let service =
        Service { file, path: dir, requests, trouble, release, released, record, held: &mut held, output };
    let mut asked = None;
    let result = service.run(&events, &mut asked);
    background::finish(&log_of(dir), &result);
    // Who asked may mount it again at once.
    drop((server, held, opened, shared));
    if let Some(asked) = asked {
        asked.answer(&result);
    }
    output.event("summary", json!({ "clean": result.is_ok() }));
    result
}

/// What is on the device, and how it is mounted.
fn options(args: &Args, opened: &OpenDevice) -> Result<(Kind, String), Failure> {
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
            return Err(Failure::failed(why));
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

/// A file system about to be mounted.
struct Mounting<'a> {
    /// Makes durable what was written since before the mount.
    durable: &'a dyn Fn() -> IoResult<()>,
    /// For people.
    name: String,
    info: &'a DeviceInfo,
    kind: Kind,
    /// What it is mounted with in the end.
    options: RefCell<String>,
    /// How the loop device was scheduled before.
    shared: RefCell<Option<Shared>>,
    dir: &'a Path,
}

/// What serves a mounted file system, and the block device that it is on.
type Mounted = (Box<dyn Attached>, PathBuf);

impl Mounting<'_> {
    /// On a loop device on a file that only that has.
    fn through_file(
        &self,
        opened: &OpenDevice,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<Mounted, Stopped> {
        let hidden = hidden(self.dir);
        // Of one that was killed while it did this.
        fuse::clear(&hidden, true)?;
        let fuse = FuseOptions { name: self.name.clone(), allow_other: false };
        let mut file = FuseFile::new(opened.requests.clone(), &hidden, &fuse, ended)?;
        let read_only = self.info.read_only;
        let open = OpenOptions::new().read(true).write(!read_only).open(file.path());
        let open = open.map_err(|e| Failure::failed(format!("{}: {e}", file.path().display())))?;
        let device = LoopDevice::new(open.as_fd(), Path::new(&self.name), self.info.block_size, read_only)?;
        drop(open);
        let shared = device.share();
        self.mount(device.path())?;
        *self.shared.borrow_mut() = shared;
        let path = device.path().to_owned();
        drop(device);
        // Only the loop device has it now.
        file.hide()?;
        Ok((Box::new(file), path))
    }

    /// On a block device of the kernel.
    fn through_kernel(&self, opened: &OpenDevice, way: Way) -> Result<Mounted, Stopped> {
        let device = KernelDevice::new(opened.requests.clone(), &hidden(self.dir), way)?;
        let path = device.device().map(Path::to_owned).unwrap_or_default();
        self.mount(&path)?;
        Ok((Box::new(device), path))
    }

    /// A journal that was not replayed cannot be on a device that is only
    /// read: it is mounted without then, and that is said.
    fn mount(&self, device: &Path) -> Outcome {
        let plain = self.options.borrow().clone();
        let failed = match self.mount_with(device, &plain) {
            Err(failed) if self.info.read_only => failed,
            Err(failed) => return Err(self.with_cause(failed)),
            Ok(()) => return self.check(),
        };
        let without = format!("{plain},{}", without_journal(self.kind));
        // Why the plain mount failed says more.
        self.mount_with(device, &without).map_err(|_| failed)?;
        tracing::warn!(
            "{}: its journal has changes that were not made yet, and the device is read-only: it shows \
             the file system without them, which may be inconsistent; mount it once without --read-only \
             to have it whole",
            self.dir.display()
        );
        *self.options.borrow_mut() = without;
        Ok(())
    }

    /// Why a mount failed, with the device's error if there is one: the kernel
    /// says only that its writes failed.
    fn with_cause(&self, failed: Failure) -> Failure {
        match (self.durable)() {
            Ok(()) => failed,
            Err(e) => Failure::new(failed.exit, format!("{}: {e}", failed.message)),
        }
    }

    /// A file system may be mounted though what the recovery of its journal
    /// wrote is lost: a write is taken before the device below has it, and the
    /// kernel does not ask again. So all of it is made durable, and a file
    /// system that is not usable is unmounted.
    fn check(&self) -> Outcome {
        // `sync` is another process: this one must not wait for the file system
        // whose device it serves.
        let mut sync = Command::new("sync");
        let ran = sync.env("LC_ALL", "C").arg("-f").arg(self.dir).stdin(Stdio::null()).output();
        // What the device says is the cause, and comes first.
        let (exit, why) = match ((self.durable)(), ran) {
            (Err(e), _) => (Failure::from(e.clone()).exit, format!("what it wrote is lost: {e}")),
            (Ok(()), Ok(ran)) if !ran.status.success() => {
                (Exit::Failed, String::from_utf8_lossy(&ran.stderr).trim().to_owned())
            }
            (Ok(()), Err(e)) => {
                tracing::debug!("sync -f: {e}");
                return Ok(());
            }
            (Ok(()), Ok(_)) => return Ok(()),
        };
        let unmounted = unmount_served(self.dir, false).or_else(|_| unmount_served(self.dir, true));
        let left = unmounted.err().map(|e| format!(" (and cannot be unmounted: {e})")).unwrap_or_default();
        Err(Failure::new(
            exit,
            format!(
                "{}: the {} file system of {} was mounted, and cannot be used: {why}. It is unmounted \
                 again{left}; mount it when the cause is gone, and the journal makes it whole",
                self.dir.display(),
                self.kind,
                self.name
            ),
        ))
    }

    fn mount_with(&self, device: &Path, options: &str) -> Outcome {
        let mut command = Command::new("mount");
        command.args(["-t", self.kind.name(), "-o", options]).arg(device).arg(self.dir);
        let ran = command.stdin(Stdio::null()).output();
        let ran = ran.map_err(|e| Failure::failed(format!("cannot run mount: {e}")))?;
        if ran.status.success() {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&ran.stderr);
        Err(Failure::failed(why.trim()))
    }
}

/// The option that leaves the journal alone.
fn without_journal(kind: Kind) -> &'static str {
    match kind {
        Kind::Xfs => "norecovery",
        Kind::Ext4 => "noload",
    }
}

fn tell(ready: &Value, output: Output) {
    output.event("ready", ready.clone());
    if !output.is_json() {
        let text = |name: &str| ready[name].as_str().unwrap_or_default().to_owned();
        let size = format_size(ready["size"].as_u64().unwrap_or_default());
        output.line(format_args!(
            "ready {} ({}, {size}, {} through {}, {})",
            text("path"),
            text("fs"),
            text("device"),
            text("via"),
            text("options")
        ));
        tell_why(ready);
        if ready["journal_left"] == true {
            output.note("its journal was not replayed: mount it once without --read-only to have it whole");
        }
    }
}
