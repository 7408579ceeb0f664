//! `longhaul info`.

use crate::arguments::InitiatorArgs;
use crate::events::{
    ControllerFields, InfoSummary, MeasuredPath, NamespaceFields, OneOfPaths, PathFields, PathLimit,
    SetUpFields, micros,
};
use crate::exit::{Failure, Outcome};
use crate::output::Output;
use crate::screen::Line;
use longhaul_block::BlockDevice;
use longhaul_block::units::format_size;
use longhaul_device::Device;
use longhaul_initiator::path::Limit;
use longhaul_initiator::{ControllerInfo, PathReport, PathStatus, RemoteDevice, SetUp};
use longhaul_load::{Job, Live, Stop, Threads};
use std::sync::Arc;
use std::time::Duration;

/// I/O size of the path measurement in bytes.
const MEASURE_IO: u64 = 1 << 20;
/// Shortest and longest measurement of a path. The longest allows several doublings of the
/// number of connections at a round trip of 200 ms.
const MEASURE_MIN: Duration = Duration::from_secs(3);
const MEASURE_MAX: Duration = Duration::from_secs(30);
/// Most bytes that a measurement reads: seven seconds at 10 Gb/s.
const MEASURE_BYTES: u64 = 8 << 30;

#[derive(Debug, clap::Args)]
pub(crate) struct InfoArgs {
    /// The namespace: nvme+tcp://HOST[:PORT][,HOST…]/SUBNQN[?nsid=N]; or volume:POOL/NAME
    uri: String,
    /// Measure each path to it, by reading for several seconds
    #[arg(long)]
    path: bool,
    #[command(flatten)]
    initiator: InitiatorArgs,
}

pub(crate) fn run(args: &InfoArgs, output: Output) -> Outcome {
    if let Some(name) = args.uri.strip_prefix(longhaul_pool::SCHEME) {
        if args.path {
            return Err(Failure::usage("a volume has several paths: give --path with the URI of a member"));
        }
        let name = name.parse().map_err(Failure::usage)?;
        return super::volume::info(name, args.initiator.clone(), output);
    }
    let opened = args.initiator.opener().connect_any(&args.uri)?;
    let Some(device) = opened.remotes().into_iter().next() else {
        return Err(Failure::usage("info describes remote namespaces: nvme+tcp://HOST/SUBNQN"));
    };
    let (controller, ns) = (device.controller(), device.namespace());
    let round_trip = controller.round_trip;
    let measured = if args.path { Some(measure(&opened, &device, args)?) } else { None };
    let paths = match &opened {
        Device::Multipath(device) => device.paths(),
        _ => Vec::new(),
    };
    if output.is_json() {
        output.event(&InfoSummary {
            uri: opened.block().info().name,
            controller: controller_fields(&controller),
            namespace: NamespaceFields {
                nsid: ns.nsid,
                size: ns.size,
                block_size: ns.block_size,
                optimal_io: ns.optimal_io,
                read_only: ns.read_only,
                uuid: ns.uuid.map(|u| u.to_string()),
            },
            path: PathFields {
                round_trip_us: micros(round_trip.0),
                variation_us: micros(round_trip.1),
                congestion: controller.congestion.clone(),
                measured: measured.as_ref().map(Measured::fields),
            },
            setup: setup(&device.set_up()),
            paths: paths.iter().map(one_of_paths).collect(),
        });
        return Ok(());
    }
    let digests = match (controller.hdr_digest, controller.data_digest) {
        (true, true) => "header and data",
        (true, false) => "header",
        (false, true) => "data",
        (false, false) => "none",
    };
    let max = controller.max_transfer.map_or_else(|| "no limit".to_owned(), format_size);
    let optional = |on: bool, what: &str| if on { what.to_owned() } else { format!("no {what}") };
    let lines = [
        ("namespace", format!("{} of {}", ns.nsid, controller.subnqn)),
        ("size", format!("{} in blocks of {}", format_size(ns.size), format_size(ns.block_size.into()))),
        ("uuid", ns.uuid.map_or_else(|| "none".into(), |uuid| uuid.to_string())),
        ("access", if ns.read_only { "read-only".into() } else { "read and write".into() }),
        (
            "controller",
            format!(
                "{} {} (serial {}, NVMe {}), id {}",
                controller.model,
                controller.firmware,
                controller.serial,
                controller.version,
                controller.cntlid
            ),
        ),
        (
            "transfers",
            format!("{max} a command, {} of a write in the capsule", format_size(controller.in_capsule)),
        ),
        ("queues", format!("{} of {} entries", controller.queues, controller.queue_entries)),
        ("write cache", optional(controller.write_cache, "volatile write cache")),
        ("digests", digests.to_owned()),
        ("encryption", if controller.tls { "TLS 1.3" } else { "none" }.to_owned()),
        (
            "path",
            format!(
                "{} at {:.3} ms round trip (± {:.3} ms), {}",
                controller.address,
                round_trip.0.as_secs_f64() * 1e3,
                round_trip.1.as_secs_f64() * 1e3,
                controller.congestion
            ),
        ),
    ];
    for (name, value) in lines {
        output.line(format_args!("{name:12} {value}"));
    }
    let up = device.set_up();
    let queues = match up.queues {
        0 => String::new(),
        n => format!(" with {n} I/O queues"),
    };
    output.line(format_args!(
        "{:12} {:.1} ms, {} round trips{queues}",
        "set up",
        up.total.as_secs_f64() * 1e3,
        up.round_trips + up.queue_round_trips
    ));
    for (number, path) in (1..).zip(&paths) {
        let fields = one_of_paths(path);
        let round_trip =
            path.round_trip.map_or_else(String::new, |rtt| format!(", {:.3} ms", rtt.as_secs_f64() * 1e3));
        let more = fields
            .why
            .or(fields.sentence.filter(|_| args.path))
            .map_or_else(String::new, |more| format!(": {more}"));
        output.line(format_args!(
            "{:12} {} {}{round_trip}{more}",
            format!("path {number}"),
            fields.address,
            fields.state
        ));
    }
    if let Some(measured) = measured.filter(|_| paths.is_empty()) {
        output.line(format_args!("{}", measured.report.sentence()));
    }
    Ok(())
}

/// One of several paths.
fn one_of_paths(path: &PathStatus) -> OneOfPaths {
    OneOfPaths {
        address: path.address.clone(),
        state: path.state.to_string(),
        round_trip_us: path.round_trip.map(micros),
        bits_per_second: path.report.as_ref().map(|report| (report.rate() * 8.0) as u64),
        disconnects: path.disconnects,
        why: path.why.clone(),
        sentence: path.report.as_ref().map(PathReport::sentence),
    }
}

/// The time until the controller and its first I/O queues were ready.
fn setup(up: &SetUp) -> SetUpFields {
    SetUpFields {
        setup_us: micros(up.total),
        controller_us: micros(up.controller),
        round_trips: up.round_trips + up.queue_round_trips,
        queues: up.queues,
    }
}

fn controller_fields(controller: &ControllerInfo) -> ControllerFields {
    ControllerFields {
        address: controller.address.to_string(),
        subnqn: controller.subnqn.clone(),
        cntlid: controller.cntlid,
        model: controller.model.clone(),
        serial: controller.serial.clone(),
        firmware: controller.firmware.clone(),
        version: controller.version.clone(),
        max_transfer: controller.max_transfer,
        in_capsule: controller.in_capsule,
        queue_entries: controller.queue_entries,
        queues: controller.queues,
        kato_ms: controller.kato.as_millis() as u64,
        traffic_keep_alive: controller.traffic_keep_alive,
        hdr_digest: controller.hdr_digest,
        data_digest: controller.data_digest,
        tls: controller.tls,
        write_cache: controller.write_cache,
        resets_others: controller.resets_others,
    }
}

/// Result of a path measurement.
struct Measured {
    report: PathReport,
    bytes: u64,
    time: Duration,
}

impl Measured {
    fn fields(&self) -> MeasuredPath {
        let PathReport { plan, advice, smoothed, .. } = self.report;
        let limit = plan.limit.map(|limit| match limit {
            Limit::Socket(limit) => PathLimit {
                setting: Some(limit.buffer.setting()),
                side: Some(if limit.buffer.is_far() { "far" } else { "near" }),
                bytes_in_flight: Some(limit.bytes),
                ..PathLimit::default()
            },
            Limit::Loss => PathLimit { loss: Some(true), ..PathLimit::default() },
            Limit::Hosts => PathLimit { hosts: Some(true), ..PathLimit::default() },
        });
        MeasuredPath {
            sentence: self.report.sentence(),
            round_trip_us: micros(plan.rtt),
            round_trip_now_us: micros(smoothed),
            bits_per_second: (self.report.rate() * 8.0) as u64,
            bandwidth_delay_product: self.report.bandwidth_delay_product(),
            full: plan.full[0],
            settled: plan.settled,
            limit,
            connections: plan.connections,
            in_flight: plan.in_flight[0],
            io_size: advice.io_size.into(),
            read_ahead: advice.read_ahead,
            bytes_read: self.bytes,
            seconds: self.time.as_secs_f64(),
        }
    }
}

/// Reads until the tuner has settled, or one of the `MEASURE_` limits is reached.
fn measure(opened: &Device, device: &RemoteDevice, args: &InfoArgs) -> Result<Measured, Failure> {
    let info = device.info();
    let block = u64::from(info.block_size);
    let bs = MEASURE_IO.min(info.size / block * block).max(block);
    let job = Job { bs, iodepth_auto: true, runtime: Some(MEASURE_MAX), time_based: true, ..Job::default() };
    let (stop, line) = (Stop::new(), Line::new());
    let mut progress = |now: &Live| {
        let reports: Vec<_> = opened.remotes().iter().filter_map(|device| device.path()).collect();
        let settled = !reports.is_empty() && reports.iter().all(|path| path.plan.settled);
        if (now.elapsed >= MEASURE_MIN && settled) || now.done_bytes >= MEASURE_BYTES {
            stop.stop();
        }
        let rate = longhaul_block::units::format_rate(now.read.bytes_per_second * 8.0);
        line.show(None, format!("measuring the path, {:.0} s, {rate}", now.elapsed.as_secs_f64()));
    };
    let threads = Threads::Own(args.initiator.engine.config());
    let devices: [Arc<dyn BlockDevice>; 1] = [opened.block()];
    let results = longhaul_load::run(&devices, &job, &threads, &stop, &mut progress);
    drop(line);
    let results = results?;
    if let Some(e) = results.error() {
        return Err(e.clone().into());
    }
    let total = results.total();
    let (bytes, time) = total.map_or((0, Duration::ZERO), |total| (total.read.bytes, total.elapsed));
    let report = device.path().ok_or_else(|| Failure::failed("nothing could be read to measure the path"))?;
    Ok(Measured { report, bytes, time })
}
