//! The study of NVMe/TCP with journaling file systems over metropolitan and
//! wide areas (2021; 100 Gb/s, six drives, mean of five runs): the throughput of the
//! network and of a drive alone; then 1, 10, 100 and 1,000 files at once, on a raw
//! device, on ext4, on XFS and on XFS over six striped devices, at two distances; and
//! the same with less in-capsule data, with smaller log buffers, and with the congestion
//! control of this machine instead of CUBIC.

mod ask;

use super::device::{self, AttachedDevice};
use super::links::{Links, Scratch, Server, serve_at};
use super::{Defaults, Experiment, PlanEntry, Results, Settings, result, suited_scale};
use crate::filesystems::{
    BS, BYTES, DEVICES, DeviceFormat, FAR, Load, NEAR, On, SMALL_LOG, STRIPED, WORKLOADS, in_capsule,
    throughput,
};
use crate::published::filesystems as said;
use crate::{Error, Outcome};
use longhaul_results::record::{Better, Cell, EVENTS, Place, Question};
use longhaul_wan::Conditions;
use std::time::Duration;

const RATE: f64 = said::RATE.value();
/// The workload that `--quick` leaves out, and the one that it has only on a raw device and on XFS: they
/// are between two others.
const SLOW_ONLY: &str = "C";
const SELDOM: &str = "B";
/// The workloads of variants with `--quick`.
const ENDS: [&str; 2] = ["A", "D"];
/// I/O size with a thousand files and `--quick`: all I/Os in flight take a drive one second.
const BS_MANY_QUICK: u64 = 16 << 10;
/// Bytes of all files of a workload with `--quick`, and of a device.
const BYTES_QUICK: u64 = 48 << 20;
const SIZE: &str = "2GiB";
const SIZE_QUICK: &str = "512MiB";
/// Published sizes of in-capsule data; Longhaul's default is larger.
const IN_CAPSULE: [&str; 2] = ["8KiB", "16KiB"];
/// The congestion control of the publication.
const CUBIC: &str = "cubic";
/// Ramp and connections of the measurement of the network.
const RAMP: &str = "500ms";
const STREAMS: &str = "4";
const DRIVE_DEPTH: &str = "32";

/// Differences from the default setup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Variant {
    /// Size of in-capsule data, an option of the target.
    in_capsule: Option<&'static str>,
    /// A mount option that differs.
    option: Option<&'static str>,
    /// Congestion control of this machine instead of the published one.
    own_congestion: bool,
}

impl Variant {
    const USUAL: Variant = Variant { in_capsule: None, option: None, own_congestion: false };
    const OWN: Variant = Variant { own_congestion: true, ..Variant::USUAL };
    const LOG: Variant = Variant { option: Some(SMALL_LOG), ..Variant::USUAL };

    fn capsule(size: &'static str) -> Variant {
        Variant { in_capsule: Some(size), ..Variant::USUAL }
    }

    /// Suffix of the device in cell names.
    fn name(self) -> String {
        match self {
            Variant { in_capsule: Some(size), .. } => format!(", {size} in the capsule"),
            Variant { option: Some(_), .. } => ", log buffers of 32 KiB".into(),
            Variant { own_congestion: true, .. } => ", this machine's congestion control".into(),
            Variant::USUAL => String::new(),
        }
    }

    /// Whether the plan has this workload on this device in this variant.
    fn fits(self, on: On, workload: usize, (write, far): (bool, bool), quick: bool) -> bool {
        let name = WORKLOADS[workload].name;
        let is_xfs = matches!(on, On::Xfs | On::Striped);
        match self {
            Variant::USUAL if quick && name == SELDOM => matches!(on, On::Raw | On::Xfs),
            Variant::USUAL => !quick || name != SLOW_ONLY,
            Variant { option: Some(_), .. } if quick => on == On::Xfs && write && far && ENDS.contains(&name),
            Variant { option: Some(_), .. } => is_xfs,
            Variant { own_congestion: true, .. } if quick => on == On::Raw && far && ENDS.contains(&name),
            _ if quick => on == On::Xfs && write && ENDS.contains(&name),
            _ => true,
        }
    }
}

/// A measurement of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilesystemMeasurement {
    /// The network alone: its round trip, and whether data is sent to the target.
    Network(Duration, bool),
    /// A drive without a network, written (`true`) or read.
    Drive(bool),
    /// A workload on a device.
    Load(DeviceWorkload),
}

/// A workload on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceWorkload {
    /// Round trip of the link; `None` on devices of `--target`.
    rtt: Option<Duration>,
    variant: Variant,
    on: DeviceSetup,
    load: Load,
}

/// Format of the devices, and how they are mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DeviceSetup {
    kind: DeviceFormat,
    striped: bool,
    option: Option<&'static str>,
    own_congestion: bool,
}

/// The experiment and its testbed.
#[derive(Default)]
pub(super) struct WanFilesystems {
    testbed: Option<FilesystemTestbed>,
}

/// The variants, ordered so that those with the same target are together.
fn variants() -> Vec<Variant> {
    let mut all = vec![Variant::USUAL, Variant::LOG];
    if own_congestion() != CUBIC {
        all.push(Variant::OWN);
    }
    all.extend(IN_CAPSULE.map(Variant::capsule));
    all
}

/// The congestion control of this machine.
fn own_congestion() -> String {
    longhaul_results::host::Host::here().congestion
}

fn distances(settings: &Settings) -> Vec<Option<Duration>> {
    match settings.targets.is_empty() {
        true => vec![Some(NEAR), Some(FAR)],
        false => vec![None],
    }
}

impl Experiment for WanFilesystems {
    type Measurement = FilesystemMeasurement;

    fn usual(quick: bool) -> Defaults {
        let (runs, seconds) = if quick { (2, 1) } else { (5, 10) };
        Defaults { scale: suited_scale(RATE, quick), runs, runtime: Duration::from_secs(seconds) }
    }

    fn plan(settings: &Settings) -> Vec<PlanEntry<FilesystemMeasurement>> {
        let mut all = Vec::new();
        if settings.targets.is_empty() {
            all.extend([false, true].map(|write| drive(write, settings)));
        }
        for rtt in distances(settings) {
            if let Some(rtt) = rtt {
                all.extend([true, false].map(|away| network(rtt, away, settings)));
            }
            for variant in variants() {
                for device in DEVICES {
                    for write in [true, false] {
                        let how = (write, rtt == Some(FAR));
                        let is_wanted = |w: &usize| variant.fits(device.0, *w, how, settings.quick);
                        let workloads = (0..WORKLOADS.len()).filter(is_wanted);
                        all.extend(workloads.map(|w| grid(rtt, variant, device, w, write, settings)));
                    }
                }
            }
        }
        all
    }

    fn questions(settings: &Settings) -> Vec<Question> {
        ask::questions(settings)
    }

    fn measure(
        &mut self,
        case: &FilesystemMeasurement,
        settings: &Settings,
        _: &[Cell],
        found: &mut Results,
    ) -> Outcome {
        let (rtt, variant) = match case {
            FilesystemMeasurement::Drive(write) => return of_drive(*write, settings, found),
            FilesystemMeasurement::Network(rtt, _) => (Some(*rtt), Variant::USUAL),
            FilesystemMeasurement::Load(DeviceWorkload { rtt, variant, .. }) => (*rtt, *variant),
        };
        let key = (rtt, variant.in_capsule, variant.own_congestion);
        if self.testbed.as_ref().is_none_or(|testbed| testbed.key != key) {
            // Dropped before the new one starts, so that they do not compete for memory and processors.
            self.testbed = None;
            self.testbed = Some(FilesystemTestbed::start(key, settings)?);
        }
        let Some(testbed) = &mut self.testbed else { return Err(Error::failed("there is no device")) };
        match case {
            FilesystemMeasurement::Network(_, away) => testbed.network(*away, settings, found)?,
            FilesystemMeasurement::Load(workload) => testbed.measure(workload, settings, found)?,
            FilesystemMeasurement::Drive(_) => {}
        }
        // Six drives are faster than the link.
        if !matches!(case, FilesystemMeasurement::Load(workload) if !workload.on.striped) {
            result::count_with_losses(&mut found.cells);
        }
        Ok(())
    }
}

fn load(workload: usize, write: bool, settings: &Settings) -> Load {
    let one = WORKLOADS[workload];
    let bytes = if settings.quick { BYTES_QUICK } else { BYTES };
    let bs = if settings.quick && one.files >= 1000 { BS_MANY_QUICK } else { BS };
    one.load(bs, bytes, write)
}

/// The distance in words.
fn distance(rtt: Option<Duration>) -> String {
    rtt.map_or("this path".into(), |rtt| format!("{} ms", rtt.as_secs_f64() * 1e3))
}

fn rw(write: bool) -> &'static str {
    if write { "writes" } else { "reads" }
}

/// Values of a workload.
const THROUGHPUT: &str = "Throughput";
const SUBMISSION: &str = "Submission latency";
const COMPLETION: &str = "Completion latency";

/// The name of a workload's cell.
fn name_of(
    rtt: Option<Duration>,
    variant: Variant,
    device: &str,
    (workload, write): (usize, bool),
    what: &str,
) -> String {
    let (far, rw, name) = (distance(rtt), rw(write), WORKLOADS[workload].name);
    format!("{far}, {name} {rw}, {device}{}: {what}", variant.name())
}

fn cell(name: String, unit: &str, figure: &str, series: &str, x: &str, x_label: &str) -> Cell {
    let better = if matches!(unit, "B/s" | "bit/s") { Better::Higher } else { Better::Lower };
    let mut cell = Cell::new(name, unit, better);
    cell.place = Some(Place {
        figure: figure.into(),
        series: series.into(),
        x: x.into(),
        x_number: None,
        x_label: x_label.into(),
    });
    cell
}

/// How a published value was scaled.
fn scaled(settings: &Settings) -> String {
    if settings.scale < 1.0 { format!("times {}, as the links are", settings.scale) } else { String::new() }
}

fn network(rtt: Duration, away: bool, settings: &Settings) -> PlanEntry<FilesystemMeasurement> {
    let (way, far) = (if away { "to the target" } else { "from the target" }, distance(Some(rtt)));
    let figure = "What the network carries: 4 connections, CUBIC";
    let mut cell = cell(format!("network {way}, {far}"), "bit/s", figure, way, &far, "Round trip");
    cell.published.push(said::CAPACITY.scaled(settings.scale, &scaled(settings)));
    PlanEntry { cells: vec![cell], how: Ok(FilesystemMeasurement::Network(rtt, away)) }
}

fn drive(write: bool, settings: &Settings) -> PlanEntry<FilesystemMeasurement> {
    let rw = rw(write);
    let figure = "What a drive moves without a network";
    let mut cell = cell(format!("drive: {rw}"), "B/s", figure, "in calls of 64 KiB", rw, "Sequential");
    cell.published.push(said::DRIVE.scaled(settings.scale / 8.0, &scaled(settings)));
    PlanEntry { cells: vec![cell], how: Ok(FilesystemMeasurement::Drive(write)) }
}

/// A workload on a device.
fn grid(
    rtt: Option<Duration>,
    variant: Variant,
    (place, device, kind): (On, &str, DeviceFormat),
    workload: usize,
    write: bool,
    settings: &Settings,
) -> PlanEntry<FilesystemMeasurement> {
    let load = load(workload, write, settings);
    let (far, rw) = (distance(rtt), rw(write));
    let x = format!("{} ({})", load.files, load.name);
    let number = |what: &str, unit: &str| {
        let (figure, series) = match variant {
            Variant::USUAL => (format!("{what} of {rw}, {far}"), device.to_owned()),
            Variant { in_capsule: Some(size), .. } => {
                (format!("{what} of {rw} with less data in the capsule, {far}"), format!("{device}, {size}"))
            }
            Variant { option: Some(_), .. } => {
                (format!("{what} of {rw} with log buffers of 32 KiB, {far}"), device.to_owned())
            }
            _ => (format!("{what} of {rw} with this machine's congestion control, {far}"), device.to_owned()),
        };
        let name = name_of(rtt, variant, device, (workload, write), what);
        cell(name, unit, &figure, &series, &x, "Files at once")
    };
    let mut cells = vec![number(THROUGHPUT, "B/s"), number(SUBMISSION, "s"), number(COMPLETION, "s")];
    if let Some(rtt) = rtt {
        match variant {
            Variant::USUAL => {
                cells[0].cite(throughput(rtt, &load, place));
                cells[2].cite(said::completion(rtt == FAR, write));
            }
            Variant { in_capsule: Some(size), .. } if size == IN_CAPSULE[1] => {
                cells[0].cite(in_capsule(rtt, &load, place));
            }
            Variant { option: Some(_), .. } if rtt == FAR && write => cells[0].cite([&said::LOG_FAR]),
            _ => {}
        }
    }
    if load.files == 1000 && variant == Variant::USUAL {
        let figure = "Connections lost with 1,000 files at once";
        let name = name_of(rtt, variant, device, (workload, write), "connections lost");
        cells.push(cell(name, EVENTS, figure, &format!("{rw}, {far}"), device, "Device"));
    }
    let how = match (rtt, variant) {
        (None, Variant { in_capsule: Some(_), .. }) => {
            Err("it is the target's setting: start that with --in-capsule".into())
        }
        (None, Variant { own_congestion: true, .. }) => {
            Err("the target's congestion control is not this program's to choose".into())
        }
        _ => missing(kind, place == On::Striped, settings),
    };
    let option = variant.option;
    let how = how.map(|on| DeviceSetup { option, own_congestion: variant.own_congestion, ..on });
    PlanEntry {
        cells,
        how: how.map(|on| FilesystemMeasurement::Load(DeviceWorkload { rtt, variant, on, load })),
    }
}

fn missing(kind: DeviceFormat, striped: bool, settings: &Settings) -> Result<DeviceSetup, String> {
    if striped && settings.targets.len() == 1 {
        return Err("a stripe takes two devices or more: name them with --target".into());
    }
    device::missing(kind).map_or(Ok(DeviceSetup { kind, striped, option: None, own_congestion: false }), Err)
}

/// Export of a drive: memory, limited to the scaled rate of a drive.
fn drive_of(settings: &Settings) -> String {
    let size = if settings.quick { SIZE_QUICK } else { SIZE };
    format!("mem:{size},rate={:.0}bit", said::DRIVE.value() * settings.scale)
}

/// Measures a drive without a network.
fn of_drive(write: bool, settings: &Settings, found: &mut Results) -> Outcome {
    let (drive, rw) = (drive_of(settings), if write { "write" } else { "read" });
    let (bs, runs) = (BS.to_string(), settings.runs.to_string());
    let runtime = format!("{}ms", settings.runtime.as_millis());
    let words = ["bench", &drive, "--rw", rw, "--bs", &bs, "--iodepth", DRIVE_DEPTH];
    let more = ["--ramp", RAMP, "--runtime", &runtime, "--runs", &runs];
    let args: Vec<String> = words.into_iter().chain(more).map(str::to_owned).collect();
    Links::here().load(&args, &[&format!("{rw} bandwidth")], found)
}

/// The settings that need a new testbed: the round trip, the target's size of in-capsule data, and
/// whether congestion control is this machine's.
type TestbedKey = (Option<Duration>, Option<&'static str>, bool);

/// The devices, the file systems mounted on them, and the network to them.
struct FilesystemTestbed {
    key: TestbedKey,
    // Fields are dropped in order: the mounted device, the target that exports it, the link.
    place: Option<(DeviceSetup, AttachedDevice)>,
    uris: Vec<String>,
    /// Address of the `netbench` server.
    network: Option<String>,
    _servers: Vec<Server>,
    links: Links,
    scratch: Scratch,
    places: u32,
}

impl FilesystemTestbed {
    fn start(key: TestbedKey, settings: &Settings) -> Result<FilesystemTestbed, Error> {
        let scratch = Scratch::make("wan-filesystems")?;
        let Some(rtt) = key.0 else {
            let (uris, links) = (settings.targets.clone(), Links::here());
            let (network, servers) = (None, Vec::new());
            return Ok(FilesystemTestbed {
                key,
                place: None,
                uris,
                network,
                _servers: servers,
                links,
                scratch,
                places: 0,
            });
        };
        let links = Links::emulated(1, Conditions::new(rtt, Some((RATE * settings.scale) as u64)))?;
        let (mut command, address) = links.behind(1)?;
        serve_at(&mut command, &format!("{address}:4420"));
        command.args(key.1.iter().flat_map(|size| ["--in-capsule", size]));
        command.args(congestion(key.2));
        for number in 1..=STRIPED {
            command.args(["--export", &format!("device{number}={}", drive_of(settings))]);
        }
        let target = Server::start(command)?;
        let uris = target.uris();
        let (mut command, address) = links.behind(1)?;
        command.args(["netbench", "--listen", &format!("{address}:7411")]);
        let servers = vec![target, Server::start(command)?];
        Ok(FilesystemTestbed {
            key,
            place: None,
            uris,
            network: Some(address),
            _servers: servers,
            links,
            scratch,
            places: 0,
        })
    }

    /// Measures plain TCP over the network.
    fn network(&self, away: bool, settings: &Settings, found: &mut Results) -> Outcome {
        let Some(server) = &self.network else { return Err(Error::failed("there is no network")) };
        let (direction, number) = match away {
            true => ("send", "throughput to server"),
            false => ("receive", "throughput from server"),
        };
        let (time, runs) = (format!("{}ms", settings.runtime.as_millis()), settings.runs.to_string());
        let words = ["netbench", server, "--direction", direction, "--streams", STREAMS, "--time", &time];
        let more = ["--ramp", RAMP, "--interval", "250ms", "--runs", &runs, "--congestion", CUBIC];
        let args: Vec<String> = words.into_iter().chain(more).map(str::to_owned).collect();
        self.links.load(&args, &[number], found)
    }

    fn measure(&mut self, case: &DeviceWorkload, settings: &Settings, found: &mut Results) -> Outcome {
        if self.place.as_ref().is_none_or(|(on, _)| *on != case.on) {
            // Dropped before the new one is mounted, since both use the same devices.
            self.place = None;
            let devices = if case.on.striped { self.uris.len() } else { 1 };
            let uris = self.uris.get(..devices).unwrap_or_default();
            self.places += 1;
            let path = self.scratch.path().join(self.places.to_string());
            let mut more = congestion(case.on.own_congestion);
            more.extend(case.on.option.iter().flat_map(|option| ["-o", option]));
            self.place = Some((case.on, AttachedDevice::new(&self.links, &path, case.on.kind, uris, &more)?));
        }
        let Some((_, place)) = &self.place else { return Err(Error::failed("there is no device")) };
        place.trim()?;
        if !case.load.write {
            device::lay_out(&case.load, &self.links, place)?;
        }
        let drives = if case.on.striped { STRIPED } else { 1 };
        let rate = case.rtt.map(|_| said::DRIVE.value() * settings.scale * drives as f64);
        device::run(&case.load, (&self.links, rate), place, settings, found)
    }
}

/// The option for congestion control: the published one, or none for that of the machine.
fn congestion(own: bool) -> Vec<&'static str> {
    if own { Vec::new() } else { vec!["--congestion", CUBIC] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::tests::{assert_cited, settings};

    fn all(settings: &Settings) -> Vec<PlanEntry<FilesystemMeasurement>> {
        let all = WanFilesystems::plan(settings);
        let mut names: Vec<String> =
            all.iter().flat_map(|one| &one.cells).map(|cell| cell.name.clone()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "a name is of one number only");
        all
    }

    #[test]
    fn the_whole_grid_is_wanted() {
        for quick in [false, true] {
            let all = all(&settings(quick, &[]));
            let of = |name: &str| all.iter().filter(|one| one.cells[0].name.contains(name)).count();
            // Two distances in both directions; then the default variant and the others.
            assert_eq!((of("network "), of("drive: ")), (4, 2));
            let (capsule, logs) = (of("16KiB in the capsule"), of("log buffers"));
            assert_eq!(of("8KiB in the capsule"), capsule);
            // `--quick` has the smallest and the largest workload on XFS.
            let expected = if quick { (2 * 2, 2) } else { (2 * 4 * 2 * 4, 2 * 2 * 2 * 4) };
            assert_eq!((capsule, logs), expected, "the whole grid, quick: {quick}");
            let base = all.len() - 6 - 2 * capsule - logs - of("congestion control");
            // Of four formats of devices two have workload B with `--quick`, and none C.
            let workloads = if quick { 2 * 3 + 2 * 2 } else { 4 * 4 };
            assert_eq!(base, 2 * 2 * workloads);
            for one in &all {
                if let Ok(FilesystemMeasurement::Load(DeviceWorkload { load, .. })) = &one.how {
                    let most = if quick { BYTES_QUICK } else { BYTES };
                    assert!(
                        load.size() * load.files <= most && load.size().is_multiple_of(load.bs),
                        "{load:?}"
                    );
                }
            }
            assert_cited::<WanFilesystems>(&settings(quick, &[]));
            let of = |what: &longhaul_results::published::Statement| {
                let usual = |one: &&PlanEntry<FilesystemMeasurement>| {
                    let is = |load: &DeviceWorkload| load.variant == Variant::USUAL;
                    one.how
                        .as_ref()
                        .map_or(true, |case| matches!(case, FilesystemMeasurement::Load(load) if is(load)))
                };
                let is = |one: &&PlanEntry<FilesystemMeasurement>| {
                    usual(one) && one.cells[0].found.split("; ").any(|words| words == what.what)
                };
                all.iter().filter(is).map(|one| one.cells[0].name.as_str()).collect::<Vec<_>>()
            };
            let lost = of(&said::NEAR_STRIPE_LOST);
            assert_eq!(lost, ["0.15 ms, D reads, XFS, striped: Throughput"], "reads, near");
            let raw = of(&said::FAR_RAW);
            assert_eq!(raw, ["15 ms, D writes, raw: Throughput", "15 ms, D reads, raw: Throughput"]);
            let slow = of(&said::NEAR_FEW_WRITES);
            assert!(
                slow.len() == 4 && slow.iter().all(|name| name.contains("0.15 ms, A writes")),
                "{slow:?}"
            );
            let many = of(&said::NEAR_MANY_WRITES);
            assert!(
                many.len() == 3 && many.iter().all(|name| name.contains("0.15 ms, D writes")),
                "{many:?}"
            );
        }
    }

    #[test]
    fn what_named_devices_cannot_do_is_said() {
        let all = all(&settings(true, &["nvme+tcp://a/b"]));
        let why = |part: &str| {
            let of = |one: &&PlanEntry<FilesystemMeasurement>| {
                one.how.as_ref().is_err_and(|why| why.contains(part))
            };
            all.iter().filter(of).count()
        };
        assert_eq!(why("a stripe takes two devices"), 2 * 2);
        assert_eq!(why("the target's setting"), 2 * 2);
        assert!(all.iter().flat_map(|one| &one.cells).all(|cell| cell.found.is_empty()));
    }
}
