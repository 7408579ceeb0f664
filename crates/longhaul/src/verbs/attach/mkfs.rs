//! `longhaul mkfs`.

use super::open::{DeviceArgs, Opened};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::runtime;
use longhaul_attach::Request;
use longhaul_attach::filesystem::{Content, Kind};
use longhaul_attach::fuse::{FuseFile, FuseOptions};
use longhaul_block::IoError;
use longhaul_block::units::format_size;
use serde_json::json;
use std::process::{Command, Stdio};
use uuid::Uuid;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Journal and alignment are chosen by the shape of the device and its distance,
and printed. What was on the device is discarded.

Example:
  longhaul mkfs --fs xfs nvme+tcp://dtn1/scratch
  longhaul mount nvme+tcp://dtn1/scratch /mnt/scratch")]
pub(crate) struct Args {
    /// The device; several are joined by --layout
    #[arg(value_name = "DEVICE", required = true)]
    devices: Vec<String>,
    /// xfs or ext4
    #[arg(long, value_name = "KIND")]
    fs: Kind,
    /// Name of the file system
    #[arg(long, value_name = "NAME")]
    label: Option<String>,
    /// Overwrite what is on the device
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

pub(crate) fn run(args: &Args, output: Output) -> Outcome {
    runtime::make()?;
    // The file is there for as long as this runs, and nobody else looks for it.
    let path = runtime::directory().join(format!("mkfs-{}", Uuid::new_v4().simple()));
    let opened = args.device.open(&args.devices, &path)?;
    if opened.requests.info().read_only {
        return Err(Failure::new(Exit::Refused, "the device is read-only"));
    }
    let name = args.devices.join(" ");
    match opened.content()? {
        Content::Nothing => {}
        _ if args.force => {}
        content => return Err(refuse(&name, content)),
    }
    let shape = opened.shape()?;
    let arguments = shape
        .mkfs(args.fs, args.label.as_deref())
        .map_err(|why| Failure::failed(format!("{name} has {}: {why}", format_size(shape.size))))?;
    discard(&opened, output)?;
    let program = format!("mkfs.{}", args.fs);
    let options = FuseOptions { name: name.clone(), allow_other: false };
    let mut file = FuseFile::new(opened.requests.clone(), &path, &options, || {})?;
    let made = Command::new(&program).args(&arguments).arg(&path).stdin(Stdio::null()).output();
    let detached = file.detach();
    let made = made.map_err(|e| {
        let package = if args.fs == Kind::Xfs { "xfsprogs" } else { "e2fsprogs" };
        Failure::failed(format!("cannot run {program}: {e}; install it (Debian: {package})"))
    })?;
    if !made.status.success() {
        let why = String::from_utf8_lossy(&made.stderr);
        return Err(Failure::failed(format!("{program}: {}", why.trim())));
    }
    detached?;
    tell(args, &arguments, shape.round_trip.as_secs_f64() * 1e3, output);
    Ok(())
}

fn refuse(name: &str, content: Content) -> Failure {
    let what = match content {
        Content::FileSystem(kind, size) => format!("an {kind} file system of {}", format_size(size)),
        Content::Partitions => "a partition table".into(),
        Content::Unknown | Content::Nothing => "something".into(),
    };
    Failure::new(Exit::Refused, format!("{name} has {what} on it: --force overwrites it"))
}

/// Gives back what was on the device, where it can.
fn discard(opened: &Opened, output: Output) -> Outcome {
    let len = opened.requests.info().size;
    match opened.requests.wait(Request::Discard { offset: 0, len }) {
        Ok(_) => {}
        Err(IoError::Unsupported(_)) => output.note("the device does not give space back"),
        Err(e) => return Err(e.into()),
    }
    // A device that discards nothing still has what was there, and no tool is
    // to find an old file system next to the new one.
    let flags = longhaul_block::ZeroFlags { may_deallocate: true, fua: false };
    opened.requests.wait(Request::Zero { offset: 0, len: len.min(1 << 20), flags })?;
    Ok(())
}

fn tell(args: &Args, arguments: &[String], round_trip: f64, output: Output) {
    let options = args.device.layout_words();
    let mount = format!("longhaul mount {}{options} DIR", args.devices.join(" "));
    output.event(
        "summary",
        json!({ "fs": args.fs.name(), "arguments": arguments, "round_trip_ms": round_trip, "mount": mount }),
    );
    if !output.is_json() {
        output.line(format_args!("mkfs.{} {} (round trip {round_trip:.2} ms)", args.fs, arguments.join(" ")));
        output.line(mount);
    }
}
