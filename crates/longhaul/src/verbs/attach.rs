//! `longhaul attach` and `longhaul detach`.

mod background;
mod far_mount;
pub(crate) use background::is_this as is_background;
pub(crate) mod mkfs;
pub(crate) mod mount;
pub(crate) mod nbd;
mod observe;
mod open;
mod pool_mount;
mod tree_mount;

use crate::complete;
use crate::events::{
    AttachReady, AttachmentList, DetachSummary, ListedAttachment, MissingAttachment, ServiceSummary,
};
use crate::exit::{Exit, Failure, Outcome};
use crate::metrics::MetricsArgs;
use crate::output::Output;
use crate::words::front_ends;
use comfy_table::Table;
use longhaul_attach::fuse::{self, FuseFile, FuseOptions};
use longhaul_attach::kernel::KernelDevice;
use longhaul_attach::{
    FrontEnd, Service, ServiceEvent, Via, first_available, keep_out_of_reclaim, listen, users,
};
use longhaul_block::units::format_size;
use longhaul_device::attached::{Attachment, absolute, log_of};
use longhaul_device::{Opener, Reason};
use longhaul_metrics::{HostSource, Server};
use open::{DeviceArgs, UseArgs};
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
With fuse, the device appears as one file, which losetup and mount -o loop
accept (longhaul mount does both). With ublk, nbd or nvme it is a block device,
and PATH is a symbolic link to it: this needs root. Without --via it is ublk
where this machine has it, else fuse; the choice is printed. A background
process serves the device until longhaul detach, or SIGTERM.

Examples:
  longhaul attach nvme+tcp://dtn1/scratch --at /tmp/scratch
  losetup --find --show --direct-io=on /tmp/scratch
  longhaul attach --list
  longhaul detach /tmp/scratch")]
pub(crate) struct AttachArgs {
    /// The device; several are joined by --layout
    #[arg(value_name = "DEVICE", required_unless_present = "list", add = complete::device())]
    devices: Vec<String>,
    /// Path where the device appears, which must not exist
    #[arg(long, value_name = "PATH", required_unless_present = "list")]
    at: Option<PathBuf>,
    /// Front end of the kernel
    #[arg(long, value_name = "WAY", default_value = "auto", value_parser = front_ends())]
    via: Via,
    /// Attach a member of an array by itself, writable
    #[arg(long)]
    force: bool,
    /// List attached devices
    #[arg(long, conflicts_with_all = ["devices", "at"])]
    list: bool,
    /// Let other users access the file (implies fuse, without --via)
    #[arg(long)]
    allow_other: bool,
    /// Serve the device in the foreground, until SIGTERM
    #[arg(long)]
    foreground: bool,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Arguments of `detach`.
#[derive(Debug, clap::Args)]
pub(crate) struct Detach {
    /// Path where the device is attached
    #[arg(add = complete::attached())]
    path: PathBuf,
    /// Remove PATH at once, even if it is in use or the device does not respond; unflushed writes
    /// go to the device when it responds again, or are lost
    #[arg(long)]
    lazy: bool,
}

pub(crate) fn run(args: AttachArgs, output: Output) -> Outcome {
    if args.list {
        return list(&[], output);
    }
    let at = args.at.as_deref().ok_or_else(|| Failure::usage("--at PATH says where"))?;
    let path = absolute(at)?;
    fuse::check(&path)?;
    if let Some((_, true)) = Attachment::find(&path) {
        return Err(Failure::new(Exit::Refused, format!("{}: attached already", path.display()))
            .because(Some(Reason::InUse)));
    }
    if !args.foreground && !background::is_this() {
        let log = log_of(&path);
        let ready = background::start(&log, output)?;
        print_ready(&ready, output);
        return Ok(());
    }
    serve(&args, &path, output)
}

fn serve(args: &AttachArgs, path: &Path, mut output: Output) -> Outcome {
    // From here on a signal is an event, also while the device is being opened.
    let (event_sender, events) = observe::events()?;
    let candidates = args.via.candidates(args.allow_other);
    // The kernel may write back to this device, or to a loop device on it, to free memory: the
    // threads that serve the device inherit the setting, and must not wait for such writes.
    keep_out_of_reclaim();
    let (opener, metrics) = watched(&args.device.using, &args.metrics)?;
    let opened = args.device.open_by(&opener, &args.devices, path)?;
    if !args.force && !opened.requests.info().read_only && opened.signature()?.is_array_member() {
        let why = format!(
            "{} is a member of an array, which a write to it alone would corrupt: attach the array \
             (array:NAME), or this with --read-only; --force attaches it all the same",
            args.devices.join(" ")
        );
        return Err(Failure::new(Exit::Refused, why));
    }
    background::leave();
    let requests = &opened.requests;
    let info = requests.info();
    let mut record = Attachment {
        path: path.to_owned(),
        devices: args.devices.clone(),
        via: args.via.name().into(),
        size: info.size,
        read_only: info.read_only,
        pid: std::process::id(),
        trouble: None,
    };
    let mut held = record.hold()?;
    let server = listen(path, &event_sender)?;
    let ((front_end, device), passed_over) = first_available(candidates, |via| {
        record.via = via.name().into();
        held.write(&record)?;
        let (front_end, device): (Box<dyn FrontEnd>, _) = match via.kernel() {
            None => {
                let options = FuseOptions { name: args.devices.join("+"), allow_other: args.allow_other };
                let sender = event_sender.clone();
                let ended = move || drop(sender.send(ServiceEvent::Ended));
                (Box::new(FuseFile::new(requests.clone(), path, &options, ended)?), path.to_owned())
            }
            Some(driver) => {
                let kernel_device = KernelDevice::new(requests.clone(), path, driver)?;
                let device = kernel_device.device().unwrap_or(path).to_owned();
                (Box::new(kernel_device), device)
            }
        };
        Ok((front_end, device))
    })?;
    let ready = AttachReady {
        path: path.display().to_string(),
        via: record.via.clone(),
        device: device.display().to_string(),
        pid: record.pid,
        size: info.size,
        block_size: info.block_size,
        optimal_io: info.optimal_io,
        read_only: info.read_only,
        passed_over,
        metrics: ready_at(metrics.as_ref()),
    };
    print_ready(&ready, output);
    if background::is_this() {
        // The starting process reads standard output only until the `ready` event.
        output = Output::new(false);
    }
    let release = Box::new(|_| Ok(()));
    let released = Box::new(|| false);
    let service = Service {
        front_end,
        path,
        size: Box::new(|| requests.info().size),
        trouble: Box::new(|| opened.trouble()),
        release,
        released,
        record,
        held: &mut held,
        observer: &output,
    };
    let mut detach_request = None;
    let result = service.run(&events, &mut detach_request);
    background::finish(&log_of(path), result.is_ok());
    // Released before the reply, so that `longhaul detach` can be followed by an attach at once.
    drop((server, held, opened));
    if let Some(request) = detach_request {
        request.answer(result.clone());
    }
    output.event(&ServiceSummary { clean: result.is_ok() });
    Ok(result?)
}

/// What opens devices, and the server of metrics that shows their paths if there is to be one: it listens before
/// anything is opened.
fn watched(using: &UseArgs, metrics: &MetricsArgs) -> Result<(Opener, Option<Server>), Failure> {
    let opener = using.initiator.opener();
    let metrics = metrics.start("the device is being opened")?;
    if let Some(metrics) = &metrics {
        metrics.add(Arc::new(HostSource::new(opener.clone())));
    }
    Ok((opener, metrics))
}

/// The program is ready: the address of its metrics, for the `ready` event.
fn ready_at(metrics: Option<&Server>) -> Option<String> {
    metrics.map(|server| {
        server.set_ready();
        server.address().to_string()
    })
}

/// Prints the `ready` event, or its text.
fn print_ready(ready: &AttachReady, output: Output) {
    output.event(ready);
    if !output.is_json() {
        let AttachReady { path, device, via, .. } = ready;
        let at = if device == path { path.clone() } else { format!("{path} -> {device}") };
        output.line(format_args!("ready {at} ({}, via {via})", format_size(ready.size)));
        log_passed_over(&ready.passed_over);
    }
}

/// Logs, with `-v` only, why preferred front ends were passed over: the chosen one works, so the
/// operator need not act.
fn log_passed_over(reasons: &[String]) {
    for why in reasons {
        tracing::info!("not by {why}");
    }
}

impl AttachArgs {
    /// Path and devices of an attach in the background; `None` for other uses of the verb.
    pub(crate) fn in_background(&self) -> Option<(PathBuf, Vec<String>)> {
        let at = self.at.clone().filter(|_| !self.foreground)?;
        Some((at, self.devices.clone()))
    }
}

/// Lists attachments; `missing` are paths and devices of configured ones that are not attached.
pub(crate) fn list(missing: &[(PathBuf, Vec<String>)], output: Output) -> Outcome {
    let all = Attachment::all();
    let mut table = Table::new();
    table
        .load_preset(comfy_table::presets::NOTHING)
        .set_header(["path", "device", "size", "via", "health", "process", "used by"]);
    for (record, lives) in &all {
        let users = users::of(&record.path);
        output.event(&ListedAttachment {
            path: record.path.display().to_string(),
            devices: record.devices.clone(),
            via: record.via.clone(),
            size: record.size,
            read_only: record.read_only,
            pid: record.pid,
            served: *lives,
            users: users.clone(),
            health: if *lives { record.health() } else { "lost" }.to_owned(),
            trouble: record.trouble.clone(),
        });
        let process = if *lives { record.pid.to_string() } else { "lost: detach it".into() };
        let devices = record.devices.join(" ") + if record.read_only { " (read-only)" } else { "" };
        let path = record.path.display().to_string();
        table.add_row([
            path,
            devices,
            format_size(record.size),
            record.via.clone(),
            if *lives { record.health().to_owned() } else { "lost".into() },
            process,
            users.join(", "),
        ]);
    }
    for (path, devices) in missing {
        let path = path.display().to_string();
        output.event(&MissingAttachment { path: path.clone(), devices: devices.clone() });
        table.add_row([&path, &devices.join(" "), "", "", "not connected: longhaul connect-all", ""]);
    }
    output.event(&AttachmentList { attached: all.len(), missing: missing.len() });
    if !output.is_json() && all.len() + missing.len() > 0 {
        output.line(table.trim_fmt());
        for (record, _) in all.iter().filter(|(_, lives)| *lives) {
            if let Some(why) = &record.trouble {
                output.note(format_args!("{}: {why}", record.path.display()));
            }
        }
    }
    Ok(())
}

/// `longhaul detach PATH`.
pub(crate) fn detach(args: &Detach, output: Output) -> Outcome {
    detach_at(&absolute(&args.path)?, args.lazy, output)
}

fn detach_at(path: &Path, lazily: bool, output: Output) -> Outcome {
    longhaul_attach::detach(path, lazily)?;
    output.event(&DetachSummary { path: path.display().to_string(), lazily });
    Ok(())
}
