//! `longhaul mount` and `longhaul umount`: attach, a loop device on the file,
//! and the file system on that.
//!
//! Once mounted, only the file system holds the loop device, and only the loop device holds the
//! file: an unmount by any tool ends the attachment. For a block device of the kernel, the serving
//! process polls whether the file system is still mounted.

use super::open::{DeviceArgs, OpenDevice};
use super::serve::{self, Event, FrontEnd, Service};
use super::via::{self, FrontEndError, Via};
use super::{background, detach_at, log_passed_over};
use crate::complete;
use crate::events::{MountReady, ServiceSummary};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::user;
use longhaul_attach::filesystem::{Content, Kind};
use longhaul_attach::fuse::{self, FuseFile, FuseOptions, unmount_served};
use longhaul_attach::kernel::{KernelDevice, Way};
use longhaul_attach::{LoopDevice, Request, Shared, keep_out_of_reclaim, users};
use longhaul_block::units::format_size;
use longhaul_block::{DeviceInfo, IoResult};
use longhaul_device::attached::{Attachment, absolute, log_of};
use longhaul_device::runtime;
use std::cell::RefCell;
use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use uuid::Uuid;

/// The `via` of a mount in its record.
fn recorded_via(via: Via) -> String {
    match via {
        Via::Fuse => "fuse+loop".into(),
        kernel => format!("{}+mount", kernel.name()),
    }
}

/// Whether a record with this `via` is of a mounted file system.
pub(super) fn is_mount(via: &str) -> bool {
    via.contains('+')
}

/// Path of the file or link of the device below the mount at `dir`, in the runtime directory.
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
pub(crate) struct MountArgs {
    /// The device; several are joined by --layout
    #[arg(value_name = "DEVICE", required = true, num_args = 1.., add = complete::device())]
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
    user::needs_root("longhaul mount", "to mount a file system")?;
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
    if users::is_mounted(&dir) {
        user::needs_root("longhaul umount", "to unmount a file system")?;
    }
    detach_at(&dir, args.lazy, output)
}

/// The absolute path of an existing directory without an attachment.
fn directory(dir: &Path) -> Result<PathBuf, Failure> {
    let dir = absolute(dir)?;
    match Attachment::find(&dir) {
        Some((_, true)) => {
            return Err(Failure::new(Exit::Refused, format!("{}: mounted already", dir.display())));
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
    let (event_sender, events) = serve::events()?;
    // Before the threads that serve the device are started: they inherit the setting.
    keep_out_of_reclaim();
    let opened = args.device.open(&args.devices, dir)?;
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
    let server = serve::listen(dir, &event_sender)?;
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
    let ((front_end, device), passed_over) = via::first_available(candidates, |via| {
        record.via = recorded_via(via);
        held.write(&record)?;
        let sender = event_sender.clone();
        match via.kernel() {
            None => mounting.through_file(&opened, move || drop(sender.send(Event::Ended))),
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
    };
    print_ready(&ready, output);
    if background::is_this() {
        // The starting process reads standard output only until the `ready` event.
        output = Output::new(false);
    }
    let release = Box::new(|lazily| Ok(unmount_served(dir, lazily)?));
    let released = Box::new(|| !users::is_mounted(dir));
    let requests = &*opened.requests;
    let trouble = Box::new(|| opened.trouble());
    let held = &mut held;
    let service =
        Service { front_end, path: dir, requests, trouble, release, released, record, held, output };
    let mut detach_request = None;
    let result = service.run(&events, &mut detach_request);
    background::finish(&log_of(dir), &result);
    // Released before the reply, so that `longhaul umount` can be followed by a mount at once.
    drop((server, held, opened, shared));
    if let Some(request) = detach_request {
        serve::answer(request, &result);
    }
    output.event(&ServiceSummary { clean: result.is_ok() });
    result
}

/// The kind of the file system on the device, and its mount options.
fn options(args: &MountArgs, opened: &OpenDevice) -> Result<(Kind, String), Failure> {
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
    /// Flushes the device; fails if a write since the mount began was lost.
    durable: &'a dyn Fn() -> IoResult<()>,
    /// The devices, for messages.
    name: String,
    info: &'a DeviceInfo,
    kind: Kind,
    /// The mount options; `mount` adds the one that skips the journal.
    options: RefCell<String>,
    /// Restores the scheduling of the loop device when dropped.
    shared: RefCell<Option<Shared>>,
    dir: &'a Path,
}

/// The front end below a mounted file system, and its block device.
type Mounted = (Box<dyn FrontEnd>, PathBuf);

impl Mounting<'_> {
    /// Mounts a loop device on a FUSE file, which is hidden once the loop device has it open.
    fn through_file(
        &self,
        opened: &OpenDevice,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<Mounted, FrontEndError> {
        let hidden = hidden(self.dir);
        // A process killed during these steps leaves the hidden file.
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
        // Only the loop device has the file open now.
        file.hide()?;
        Ok((Box::new(file), path))
    }

    /// Mounts a block device of the kernel.
    fn through_kernel(&self, opened: &OpenDevice, driver: Way) -> Result<Mounted, FrontEndError> {
        let device = KernelDevice::new(opened.requests.clone(), &hidden(self.dir), driver)?;
        let path = device.device().map(Path::to_owned).unwrap_or_default();
        self.mount(&path)?;
        Ok((Box::new(device), path))
    }

    /// Mounts `device`. A read-only device whose journal needs a replay cannot be mounted normally:
    /// it is mounted without the journal, with a warning.
    fn mount(&self, device: &Path) -> Outcome {
        let plain = self.options.borrow().clone();
        let failed = match self.mount_with(device, &plain) {
            Err(failed) if self.info.read_only => failed,
            Err(failed) => return Err(self.with_cause(failed)),
            Ok(()) => return self.check(),
        };
        let without = format!("{plain},{}", no_replay_option(self.kind));
        // The error of the first attempt names the cause.
        self.mount_with(device, &without).map_err(|_| failed)?;
        tracing::warn!(
            "{}: its journal has changes that were not applied yet, and the device is read-only: it shows \
             the file system without them, which may be inconsistent; mount it once without --read-only \
             to apply them",
            self.dir.display()
        );
        *self.options.borrow_mut() = without;
        Ok(())
    }

    /// Adds the error of the device, if there is one, to that of a failed mount: the kernel reports
    /// only that its writes failed.
    fn with_cause(&self, failed: Failure) -> Failure {
        match (self.durable)() {
            Ok(()) => failed,
            Err(e) => Failure::new(failed.exit, format!("{}: {e}", failed.message)),
        }
    }

    /// Checks a mount by making all its writes durable, and unmounts it if that fails. Journal
    /// replay writes are acknowledged by write-behind, so a mount can succeed although they are
    /// lost, and the kernel does not repeat them.
    fn check(&self) -> Outcome {
        // `sync` in a child process: this process serves the device, and would deadlock if it
        // waited for the file system.
        let mut sync = Command::new("sync");
        let ran = sync.env("LC_ALL", "C").arg("-f").arg(self.dir).stdin(Stdio::null()).output();
        // An error of the device is the cause of any error of `sync`.
        let (exit, why) = match ((self.durable)(), ran) {
            (Err(e), _) => (Failure::from(e.clone()).exit, format!("its last writes are lost: {e}")),
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
                 again{left}; mount it again once the device works: the journal is replayed then",
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

/// The mount option that skips the replay of the journal.
fn no_replay_option(kind: Kind) -> &'static str {
    match kind {
        Kind::Xfs => "norecovery",
        Kind::Ext4 => "noload",
    }
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
