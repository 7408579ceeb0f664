//! `longhaul mkfs`.

use super::open::{DeviceArgs, OpenDevice};
use super::serve::{self, Event};
use crate::complete;
use crate::events::MkfsSummary;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use longhaul_attach::filesystem::{Content, EDGE, Kind};
use longhaul_attach::fuse::{self, FuseFile, FuseOptions};
use longhaul_attach::{Request, Requests};
use longhaul_block::units::format_size;
use longhaul_block::{IoError, signature};
use longhaul_device::runtime;
use rustix::process::Pid;
use signal_hook::consts::SIGHUP;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use uuid::Uuid;

/// Prefix of the name of the file that `mkfs` works on, in the runtime directory.
const HIDDEN_PREFIX: &str = "mkfs-";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Journal size and alignment are chosen from the stripes of the device and its
round trip, and printed. All data on the device is discarded.

Example:
  longhaul mkfs --fs xfs nvme+tcp://dtn1/scratch
  sudo longhaul mount nvme+tcp://dtn1/scratch /mnt/scratch")]
pub(crate) struct MkfsArgs {
    /// The device; several are joined by --layout
    #[arg(value_name = "DEVICE", required = true, add = complete::device())]
    devices: Vec<String>,
    /// xfs or ext4
    #[arg(long, value_name = "KIND")]
    fs: Kind,
    /// Label of the file system
    #[arg(long, value_name = "NAME")]
    label: Option<String>,
    /// Overwrite a device that holds data
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

pub(crate) fn run(args: &MkfsArgs, output: Output) -> Outcome {
    runtime::make()?;
    clear_leftovers();
    // A file of this process alone, with a random name, removed at its end.
    let path = runtime::directory().join(format!("{HIDDEN_PREFIX}{}", Uuid::new_v4().simple()));
    let opened = args.device.open(&args.devices, &path)?;
    if opened.requests.info().read_only {
        return Err(Failure::new(Exit::Refused, "the device is read-only"));
    }
    let name = args.devices.join(" ");
    match opened.content()? {
        Content::Nothing => {}
        _ if args.force => {}
        content => return Err(refuse(&name, content, &opened)?),
    }
    let shape = opened.shape()?;
    let arguments = shape
        .mkfs(args.fs, args.label.as_deref())
        .map_err(|why| Failure::failed(format!("{name} has {}: {why}", format_size(shape.size))))?;
    let program = program(args.fs)?;
    let options = FuseOptions { name, allow_other: false };
    // From here on there is a mount to clean up: a signal is an event.
    let (event_sender, events) = serve::events()?;
    let mut file = FuseFile::new(opened.requests.clone(), &path, &options, || {})?;
    // A dry run first: the data on the device is discarded only once mkfs accepts its arguments.
    let dry_run = if args.fs == Kind::Xfs { "-N" } else { "-n" };
    let commands = [vec![dry_run.to_owned()], Vec::new()].map(|more| {
        let mut command = Command::new(&program);
        command.args(more).args(&arguments).arg(&path);
        command
    });
    make(&opened.requests, commands, (event_sender, &events), output)?;
    file.detach()?;
    print_summary(args, &arguments, &opened, shape.round_trip.as_secs_f64() * 1e3, output);
    Ok(())
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
fn program(kind: Kind) -> Result<String, Failure> {
    let program = format!("mkfs.{kind}");
    let tried = Command::new(&program).arg("-V").stdin(Stdio::null()).output();
    tried.map_err(|e| {
        let package = if kind == Kind::Xfs { "xfsprogs" } else { "e2fsprogs" };
        Failure::failed(format!("cannot run {program}: {e}; install it (Debian: {package})"))
    })?;
    Ok(program)
}

/// Runs the first command (a dry run), discards the device and runs the second one, which creates
/// the file system. A signal kills the command.
fn make(
    requests: &Arc<dyn Requests>,
    [mut dry_run, mut command]: [Command; 2],
    (sender, events): (Sender<Event>, &Receiver<Event>),
    output: Output,
) -> Outcome {
    let child = Arc::new(Mutex::new(None));
    let (requests, started) = (Arc::clone(requests), Arc::clone(&child));
    let run = move |command: &mut Command| -> Outcome {
        let program = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let running = command.spawn().map_err(|e| Failure::failed(format!("cannot run {program}: {e}")))?;
        *started.lock().unwrap_or_else(PoisonError::into_inner) = Some(Pid::from_child(&running));
        let made = running.wait_with_output().map_err(Failure::failed)?;
        *started.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if made.status.success() {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&made.stderr);
        let why = if stderr.trim().is_empty() { made.status.to_string() } else { stderr.trim().to_owned() };
        Err(Failure::failed(format!("{program}: {why}")))
    };
    let mut work = move || -> Outcome {
        run(&mut dry_run)?;
        discard(&*requests, output)?;
        run(&mut command)
    };
    let ended = move || {
        let result = work();
        // The receiver was dropped after a signal.
        let _ = sender.send(Event::Ended);
        result
    };
    let thread =
        std::thread::Builder::new().name("longhaul-mkfs".into()).spawn(ended).map_err(Failure::failed)?;
    for event in events {
        match event {
            Event::Signal(SIGHUP) | Event::Detach(_) => {}
            Event::Ended => break,
            Event::Signal(_) => {
                // Killed, and its thread not joined: the device may be unreachable.
                if let Some(pid) = *child.lock().unwrap_or_else(PoisonError::into_inner) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
                let why = "interrupted: the device has no file system, and its previous data may be lost";
                return Err(Failure::failed(why));
            }
        }
    }
    thread.join().unwrap_or_else(|_| Err(Failure::failed("a thread of mkfs panicked")))
}

fn refuse(name: &str, content: Content, opened: &OpenDevice) -> Result<Failure, Failure> {
    let what = match content {
        Content::FileSystem(kind, size) => format!("an {kind} file system of {}", format_size(size)),
        _ => match opened.signature()? {
            // `content` found it beyond the edges that signatures are read from.
            signature::Content::Nothing => "data of an unknown kind".into(),
            found => found.to_string(),
        },
    };
    Ok(Failure::new(Exit::Refused, format!("{name} has {what} on it: --force overwrites it")))
}

/// Discards the whole device where it supports that, and zeroes its edges.
fn discard(requests: &dyn Requests, output: Output) -> Outcome {
    let len = requests.info().size;
    match requests.wait(Request::Discard { offset: 0, len }) {
        Ok(_) => {}
        Err(IoError::Unsupported(_)) => {
            output.note("the device does not support discard: the space of its old data is not freed")
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

fn print_summary(
    args: &MkfsArgs,
    arguments: &[String],
    opened: &OpenDevice,
    round_trip: f64,
    output: Output,
) {
    let options = args.device.layout_flags(opened);
    // Options precede the devices, since the argument after them is the directory.
    let mount = format!("longhaul mount{options} {} DIR", args.devices.join(" "));
    output.event(&MkfsSummary {
        fs: args.fs.name().to_owned(),
        arguments: arguments.to_vec(),
        round_trip_us: (round_trip * 1e3).round() as u64,
        mount: mount.clone(),
    });
    if !output.is_json() {
        output.line(format_args!("mkfs.{} {} (round trip {round_trip:.2} ms)", args.fs, arguments.join(" ")));
        output.line(mount);
    }
}
