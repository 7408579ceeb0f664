//! Making file systems on devices.

use crate::error::failed;
use crate::filesystem::{Content, EDGE, FileSystemKind, Shape};
use crate::fuse::{self, FuseFile, FuseOptions};
use crate::open::OpenDevice;
use crate::served::{Request, Requests};
use crate::service::ServiceEvent;
use longhaul_block::units::format_size;
use longhaul_block::{IoError, signature};
use longhaul_device::{Error, ErrorKind, Result, runtime};
use rustix::process::Pid;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use uuid::Uuid;

/// Prefix of the name of the file that `mkfs` works on, in the runtime directory.
const HIDDEN_PREFIX: &str = "mkfs-";

/// A path for the file that a file system is made on: of this process alone, with a random name. Files
/// that killed processes left are removed.
///
/// # Errors
/// The runtime directory cannot be made.
pub fn hidden_file() -> Result<PathBuf> {
    runtime::make()?;
    clear_leftovers();
    Ok(runtime::directory().join(format!("{HIDDEN_PREFIX}{}", Uuid::new_v4().simple())))
}

/// A file system that can be made on a device, with its arguments for `mkfs`.
#[derive(Debug)]
pub struct NewFileSystem {
    /// The devices, for messages.
    name: String,
    kind: FileSystemKind,
    program: String,
    arguments: Vec<String>,
    shape: Shape,
}

impl NewFileSystem {
    /// Chooses the arguments by the stripes of the device and its round trip. Nothing is changed.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if the device is read-only, or holds data without `force`; it is too
    /// small, or the machine has no program for it.
    pub fn check(
        opened: &OpenDevice,
        name: String,
        kind: FileSystemKind,
        label: Option<&str>,
        force: bool,
    ) -> Result<NewFileSystem> {
        if opened.requests.info().read_only {
            return Err(Error::new(ErrorKind::Refused, "the device is read-only"));
        }
        match opened.content()? {
            Content::Nothing => {}
            _ if force => {}
            content => return Err(refuse(&name, content, opened)?),
        }
        let shape = opened.shape()?;
        let arguments = shape
            .mkfs(kind, label)
            .map_err(|why| failed(format!("{name} has {}: {why}", format_size(shape.size))))?;
        Ok(NewFileSystem { name, kind, program: program(kind)?, arguments, shape })
    }

    /// The arguments of `mkfs`.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// The fastest read of the device that was measured.
    pub fn round_trip(&self) -> Duration {
        self.shape.round_trip
    }

    /// Discards the data of the device and makes the file system, through the file `path` of
    /// [`hidden_file`]. [`ServiceEvent::Stop`] ends it. `note` takes a sentence for the user.
    ///
    /// # Errors
    /// Of the device or of `mkfs`, or it was ended: then the device has no file system.
    pub fn make(
        &self,
        opened: &OpenDevice,
        path: &Path,
        events: (Sender<ServiceEvent>, &Receiver<ServiceEvent>),
        note: fn(&str),
    ) -> Result<()> {
        let options = FuseOptions { name: self.name.clone(), allow_other: false };
        let mut file = FuseFile::new(opened.requests.clone(), path, &options, || {})?;
        // A dry run first: the data on the device is discarded only once mkfs accepts its arguments.
        let dry_run = if self.kind == FileSystemKind::Xfs { "-N" } else { "-n" };
        let commands = [vec![dry_run.to_owned()], Vec::new()].map(|more| {
            let mut command = Command::new(&self.program);
            command.args(more).args(&self.arguments).arg(path);
            command
        });
        make(&opened.requests, commands, events, note)?;
        Ok(file.detach()?)
    }
}

/// Removes the files of killed `longhaul mkfs` processes.
fn clear_leftovers() {
    for entry in std::fs::read_dir(runtime::directory()).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_hidden_file = entry.file_name().to_string_lossy().starts_with(HIDDEN_PREFIX);
        // `clear` leaves the file of a running process alone.
        if is_hidden_file && fuse::clear(&path, false).is_ok_and(|was_there| was_there) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The program that creates file systems of this kind.
///
/// # Errors
/// It cannot be run on this machine; with the package to install.
fn program(kind: FileSystemKind) -> Result<String> {
    let program = format!("mkfs.{kind}");
    let tried = Command::new(&program).arg("-V").stdin(Stdio::null()).output();
    tried.map_err(|e| {
        let package = if kind == FileSystemKind::Xfs { "xfsprogs" } else { "e2fsprogs" };
        failed(format!("cannot run {program}: {e}; install it (Debian: {package})"))
    })?;
    Ok(program)
}

/// Runs the first command (a dry run), discards the device and runs the second one, which creates
/// the file system. A signal kills the command.
fn make(
    requests: &Arc<dyn Requests>,
    [mut dry_run, mut command]: [Command; 2],
    (sender, events): (Sender<ServiceEvent>, &Receiver<ServiceEvent>),
    note: fn(&str),
) -> Result<()> {
    let child = Arc::new(Mutex::new(None));
    let (requests, started) = (Arc::clone(requests), Arc::clone(&child));
    let run = move |command: &mut Command| -> Result<()> {
        let program = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let running = command.spawn().map_err(|e| failed(format!("cannot run {program}: {e}")))?;
        *started.lock().unwrap_or_else(PoisonError::into_inner) = Some(Pid::from_child(&running));
        let made = running.wait_with_output().map_err(failed)?;
        *started.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if made.status.success() {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&made.stderr);
        let why = if stderr.trim().is_empty() { made.status.to_string() } else { stderr.trim().to_owned() };
        Err(failed(format!("{program}: {why}")))
    };
    let mut work = move || -> Result<()> {
        run(&mut dry_run)?;
        discard(&*requests, note)?;
        run(&mut command)
    };
    let ended = move || {
        let result = work();
        // The receiver was dropped after a signal.
        let _ = sender.send(ServiceEvent::Ended);
        result
    };
    let thread = std::thread::Builder::new().name("longhaul-mkfs".into()).spawn(ended).map_err(failed)?;
    for event in events {
        match event {
            ServiceEvent::Detach(_) => {}
            ServiceEvent::Ended => break,
            ServiceEvent::Stop => {
                // Killed, and its thread not joined: the device may be unreachable.
                if let Some(pid) = *child.lock().unwrap_or_else(PoisonError::into_inner) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
                let why = "interrupted: the device has no file system, and its previous data may be lost";
                return Err(failed(why));
            }
        }
    }
    thread.join().unwrap_or_else(|_| Err(failed("a thread of mkfs panicked")))
}

fn refuse(name: &str, content: Content, opened: &OpenDevice) -> Result<Error> {
    let what = match content {
        Content::FileSystem(kind, size) => format!("an {kind} file system of {}", format_size(size)),
        _ => match opened.signature()? {
            // `content` found it beyond the edges that signatures are read from.
            signature::Content::Nothing => "data of an unknown kind".into(),
            found => found.to_string(),
        },
    };
    Ok(Error::new(ErrorKind::Refused, format!("{name} has {what} on it: --force overwrites it")))
}

/// Discards the whole device where it supports that, and zeroes its edges.
fn discard(requests: &dyn Requests, note: fn(&str)) -> Result<()> {
    let len = requests.info().size;
    match requests.wait(Request::Discard { offset: 0, len }) {
        Ok(_) => {}
        Err(IoError::Unsupported(_)) => {
            note("the device does not support discard: the space of its old data is not freed")
        }
        Err(e) => return Err(e.into()),
    }
    // Without discard the old data stays on the device: zeroed edges have no signature of an old
    // file system beside the new one.
    let flags = longhaul_block::ZeroFlags { may_deallocate: true, fua: false };
    let edge = len.min(EDGE);
    for offset in [0, len - edge] {
        requests.wait(Request::Zero { offset, len: edge, flags })?;
    }
    Ok(())
}
