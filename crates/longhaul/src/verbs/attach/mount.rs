//! `longhaul mount` and `longhaul umount`: attach, a loop device on the file,
//! and the file system on that.
//!
//! Once the file system is mounted nothing but it holds the loop device, and
//! nothing but that the file: so whoever unmounts it, with whatever tool, ends
//! it all.

use super::open::{DeviceArgs, Opened};
use super::serve::{self, Event, Service};
use super::{background, detach_at};
use crate::attached::{Record, absolute, log_of};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::runtime;
use longhaul_attach::filesystem::{Content, Kind};
use longhaul_attach::fuse::{FuseFile, FuseOptions, unmount};
use longhaul_attach::{LoopDevice, keep_out_of_reclaim};
use longhaul_block::units::format_size;
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use uuid::Uuid;

/// How these are listed.
pub(super) const VIA: &str = "fuse+loop";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Needs root, for the loop device and the mount. A process in the background
serves the device until longhaul umount, or umount.

Examples:
  longhaul mount nvme+tcp://dtn1/scratch /mnt/scratch
  longhaul mount array:scratch /mnt/scratch --read-only
  longhaul umount /mnt/scratch")]
pub(crate) struct Args {
    /// The device; several are joined by --layout
    #[arg(value_name = "DEVICE", required = true, num_args = 1..)]
    devices: Vec<String>,
    /// Where to mount it: a directory
    #[arg(value_name = "DIR", required = true)]
    dir: PathBuf,
    /// More options of the file system, as for mount(8)
    #[arg(short, long, value_name = "OPTIONS")]
    options: Option<String>,
    /// Serve the device in this process, until SIGTERM
    #[arg(long)]
    foreground: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Arguments of `umount`.
#[derive(Debug, clap::Args)]
pub(crate) struct Umount {
    /// Where it is mounted
    dir: PathBuf,
}

pub(crate) fn run(args: &Args, output: Output) -> Outcome {
    let dir = directory(&args.dir)?;
    if !args.foreground {
        let ready = background::start(&log_of(&dir), output)?;
        tell(&ready, output);
        return Ok(());
    }
    serve(args, &dir, output)
}

pub(crate) fn umount(args: &Umount, output: Output) -> Outcome {
    detach_at(&absolute(&args.dir)?, output)
}

/// A directory that something can be mounted at.
fn directory(dir: &Path) -> Result<PathBuf, Failure> {
    let dir = absolute(dir)?;
    match Record::find(&dir) {
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
    let record = Record {
        path: dir.to_owned(),
        devices: args.devices.clone(),
        via: VIA.into(),
        size: info.size,
        read_only: info.read_only,
        pid: std::process::id(),
    };
    let _held = record.hold()?;
    let _server = serve::listen(dir, &events_in)?;
    let hidden = runtime::directory().join(format!("mount-{}", Uuid::new_v4().simple()));
    let name = args.devices.join("+");
    let fuse = FuseOptions { name: name.clone(), allow_other: false };
    let ended = move || drop(events_in.send(Event::Ended));
    let mut file = FuseFile::new(opened.requests.clone(), &hidden, &fuse, ended)?;
    let device = {
        let open = OpenOptions::new().read(true).write(!info.read_only).open(file.path());
        let open = open.map_err(|e| Failure::failed(format!("{}: {e}", file.path().display())))?;
        let device = LoopDevice::new(open.as_fd(), Path::new(&name), info.block_size, info.read_only)?;
        drop(open);
        mount(&device, kind, &options, dir)?;
        device.path().to_owned()
    };
    // Only the loop device has it now.
    file.hide()?;
    let ready = json!({
        "path": dir, "via": VIA, "pid": record.pid, "size": info.size, "read_only": info.read_only,
        "fs": kind.name(), "options": options, "loop": device,
    });
    tell(&ready, output);
    if background::is_this() {
        // Nobody reads standard output any more.
        output = Output::new(false);
    }
    let release = Box::new(|lazily| Ok(unmount(dir, lazily)?));
    let service = Service { file, path: dir, requests: &*opened.requests, release, output };
    let result = service.run(&events);
    background::finish(&log_of(dir), &result);
    output.event("summary", json!({ "clean": result.is_ok() }));
    result
}

/// What is on the device, and how it is mounted.
fn options(args: &Args, opened: &Opened) -> Result<(Kind, String), Failure> {
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

fn mount(device: &LoopDevice, kind: Kind, options: &str, dir: &Path) -> Outcome {
    let mut command = Command::new("mount");
    command.args(["-t", kind.name(), "-o", options]).arg(device.path()).arg(dir);
    let ran = command.stdin(Stdio::null()).output();
    let ran = ran.map_err(|e| Failure::failed(format!("cannot run mount: {e}")))?;
    if ran.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&ran.stderr);
    Err(Failure::failed(why.trim()))
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
            text("loop"),
            text("via"),
            text("options")
        ));
    }
}
