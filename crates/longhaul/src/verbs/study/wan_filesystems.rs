//! The study of NVMe/TCP with journaling file systems over metropolitan and
//! wide areas (2021; 100 Gb/s, six drives, mean of five runs): 1, 10, 100 and
//! 1,000 files at once, on a raw device, on ext4, on XFS and on XFS over six
//! striped devices, near and far; then data in the capsule, and log buffers.

use super::place::{Kind, Load, Place};
use super::rig::{Rig, Scratch, Server};
use super::{Experiment, Found, Settings, Usual, Wanted, suited_scale};
use crate::exit::{Failure, Outcome};
use longhaul_bench::record::{Better, Cell, EVENTS, Place as Spot};
use longhaul_wan::Conditions;
use std::time::Duration;

const RATE: f64 = 100e9;
/// The study's distances.
const NEAR: Duration = Duration::from_micros(150);
const FAR: Duration = Duration::from_millis(15);
/// Its workloads: files at once, and calls under way for each of them.
const WORKLOADS: [(&str, u64, u32); 4] = [("A", 1, 32), ("B", 10, 8), ("C", 100, 2), ("D", 1000, 1)];
/// The one that is left out where minutes have to do: between two others.
const SLOW_ONLY: &str = "C";
const BS: u64 = 64 << 10;
/// Bytes of all files of a workload, and of a device.
const BYTES: u64 = 256 << 20;
const BYTES_QUICK: u64 = 64 << 20;
const SIZE: &str = "2GiB";
const SIZE_QUICK: &str = "512MiB";
/// Devices of the stripe.
const STRIPED: usize = 6;
/// What a workload is on, in the order of the tables.
const DEVICES: [(&str, Kind, bool); 4] = [
    ("raw", Kind::Raw, false),
    ("ext4", Kind::Ext4, false),
    ("XFS", Kind::Xfs, false),
    ("XFS, striped", Kind::Xfs, true),
];
/// Data in the capsule, as published and as it is by default; and calls that fit
/// in the larger ones.
const IN_CAPSULE: [&str; 3] = ["8KiB", "16KiB", "1MiB"];
const IN_CAPSULE_BS: u64 = 16 << 10;
/// Log buffers of XFS.
const LOGS: [&str; 2] = ["logbsize=32k", "logbsize=256k"];

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    /// Of the link; nothing on devices that were named.
    rtt: Option<Duration>,
    /// What the target is told, if anything.
    in_capsule: Option<&'static str>,
    on: On,
    load: Load,
}

/// What is on which devices, and how it is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct On {
    kind: Kind,
    striped: bool,
    option: Option<&'static str>,
}

/// The experiment, and what it is measured on.
#[derive(Default)]
pub(super) struct WanFilesystems {
    bed: Option<Bed>,
}

impl Experiment for WanFilesystems {
    type Case = Case;

    fn usual(quick: bool) -> Usual {
        let (runs, seconds) = if quick { (2, 1) } else { (5, 10) };
        Usual { scale: suited_scale(RATE, quick), runs, runtime: Duration::from_secs(seconds) }
    }

    fn plan(settings: &Settings) -> Vec<Wanted<Case>> {
        let distances = match settings.targets.is_empty() {
            true => vec![Some(NEAR), Some(FAR)],
            false => vec![None],
        };
        let is_wanted = |workload: &usize| !settings.quick || WORKLOADS[*workload].0 != SLOW_ONLY;
        let mut all = Vec::new();
        for rtt in distances {
            for device in DEVICES {
                for write in [true, false] {
                    let workloads = (0..WORKLOADS.len()).filter(is_wanted);
                    all.extend(workloads.map(|w| grid(rtt, device, w, write, settings)));
                }
            }
            all.extend(IN_CAPSULE.map(|size| capsule(rtt, size, settings)));
            all.extend(LOGS.map(|option| log(rtt, option, settings)));
        }
        all
    }

    fn measure(&mut self, case: &Case, settings: &Settings, _: &[Cell], found: &mut Found) -> Outcome {
        let key = (case.rtt, case.in_capsule);
        if self.bed.as_ref().is_none_or(|bed| bed.key != key) {
            // The old one goes first: both together would be too much.
            self.bed = None;
            self.bed = Some(Bed::start(key, settings)?);
        }
        let Some(bed) = &mut self.bed else { return Err(Failure::failed("there is no device")) };
        bed.measure(case, settings, found)
    }
}

fn load(workload: usize, write: bool, bs: u64, settings: &Settings) -> Load {
    let (name, files, depth) = WORKLOADS[workload];
    let bytes = if settings.quick { BYTES_QUICK } else { BYTES };
    Load { name, files, depth, bs, bytes, write }
}

/// The distance in words.
fn distance(rtt: Option<Duration>) -> String {
    rtt.map_or("this path".into(), |rtt| format!("{} ms", rtt.as_secs_f64() * 1e3))
}

fn rw(write: bool) -> &'static str {
    if write { "writes" } else { "reads" }
}

fn cell(name: String, unit: &str, figure: &str, series: &str, x: &str, x_label: &str) -> Cell {
    let better = if unit == "B/s" { Better::Higher } else { Better::Lower };
    let mut cell = Cell::new(name, unit, better);
    cell.place = Some(Spot {
        figure: figure.into(),
        series: series.into(),
        x: x.into(),
        x_number: None,
        x_label: x_label.into(),
    });
    cell
}

/// A workload on a device.
fn grid(
    rtt: Option<Duration>,
    (device, kind, striped): (&str, Kind, bool),
    workload: usize,
    write: bool,
    settings: &Settings,
) -> Wanted<Case> {
    let load = load(workload, write, BS, settings);
    let (far, rw) = (distance(rtt), rw(write));
    let name = |what: &str| format!("{far}, {} {rw}, {device}: {what}", load.name);
    let x = format!("{} ({})", load.files, load.name);
    let number = |what: &str, unit: &str| {
        cell(name(what), unit, &format!("{what} of {rw}, {far}"), device, &x, "Files at once")
    };
    let mut cells = vec![
        number("Throughput", "B/s"),
        number("Submission latency", "s"),
        number("Completion latency", "s"),
    ];
    cells[0].found = published(rtt, &load, device).into();
    if load.files == 1000 {
        let figure = "Connections lost with 1,000 files at once";
        cells.push(cell(name("connections lost"), EVENTS, figure, &format!("{rw}, {far}"), device, "Device"));
    }
    let how = missing(kind, striped, settings);
    Wanted { cells, how: how.map(|on| Case { rtt, in_capsule: None, on, load }) }
}

/// What the study says of a cell in words; it has no numbers.
fn published(rtt: Option<Duration>, load: &Load, device: &str) -> &'static str {
    match (device, load.files, rtt) {
        (_, _, None) => "",
        ("XFS, striped", 1000, _) => "connections lost",
        ("raw", 1000, Some(FAR)) => "not completed",
        (_, 1, Some(FAR)) => "collapsed with the round trip",
        _ if load.write => "far slower than reads",
        _ => "",
    }
}

fn missing(kind: Kind, striped: bool, settings: &Settings) -> Result<On, String> {
    if striped && settings.targets.len() == 1 {
        return Err("a stripe takes two devices or more: name them with --target".into());
    }
    kind.missing().map_or(Ok(On { kind, striped, option: None }), Err)
}

/// Writes with more or less data in the capsule.
fn capsule(rtt: Option<Duration>, size: &'static str, settings: &Settings) -> Wanted<Case> {
    let far = distance(rtt);
    let load = load(2, true, IN_CAPSULE_BS, settings);
    let figure = "Data in the capsule: XFS, 100 files written in calls of 16 KiB";
    let mut cell =
        cell(format!("{far}, in capsule {size}"), "B/s", figure, &far, size, "Data in the capsule");
    cell.found = match (rtt, size) {
        (Some(NEAR), "16KiB") => "better than 8 KiB",
        (Some(FAR), "16KiB") => "worse than 8 KiB",
        _ => "",
    }
    .into();
    let how = match rtt {
        Some(_) => missing(Kind::Xfs, false, settings),
        None => Err("it is the target's setting: start that with --in-capsule".into()),
    };
    Wanted { cells: vec![cell], how: how.map(|on| Case { rtt, in_capsule: Some(size), on, load }) }
}

/// Many small files written with smaller or larger log buffers.
fn log(rtt: Option<Duration>, option: &'static str, settings: &Settings) -> Wanted<Case> {
    let far = distance(rtt);
    let load = load(3, true, BS, settings);
    let figure = "Log buffers: XFS, 1,000 files written";
    let cell = cell(format!("{far}, {option}"), "B/s", figure, &far, option, "Mount option");
    let how = missing(Kind::Xfs, false, settings).map(|on| On { option: Some(option), ..on });
    Wanted { cells: vec![cell], how: how.map(|on| Case { rtt, in_capsule: None, on, load }) }
}

/// Devices, and what is on them.
struct Bed {
    key: (Option<Duration>, Option<&'static str>),
    // In this order: the place, the target that it is on, and the link.
    place: Option<(On, Place)>,
    uris: Vec<String>,
    _target: Option<Server>,
    rig: Rig,
    scratch: Scratch,
    places: u32,
}

impl Bed {
    fn start(key: (Option<Duration>, Option<&'static str>), settings: &Settings) -> Result<Bed, Failure> {
        let scratch = Scratch::make("wan-filesystems")?;
        let Some(rtt) = key.0 else {
            let (uris, rig) = (settings.targets.clone(), Rig::here());
            return Ok(Bed { key, place: None, uris, _target: None, rig, scratch, places: 0 });
        };
        let rig = Rig::emulated(1, Conditions::new(rtt, Some((RATE * settings.scale) as u64)))?;
        let (mut command, address) = rig.behind(1)?;
        command.args(["target", "--discovery", "none", "--listen", &format!("{address}:4420")]);
        command.args(key.1.iter().flat_map(|size| ["--in-capsule", size]));
        let size = if settings.quick { SIZE_QUICK } else { SIZE };
        for number in 1..=STRIPED {
            command.args(["--export", &format!("device{number}=mem:{size}")]);
        }
        let target = Server::start(command)?;
        let exports = target.ready["exports"].as_array().map(Vec::as_slice).unwrap_or_default();
        let uris = exports.iter().filter_map(|export| export["uri"].as_str().map(str::to_owned)).collect();
        Ok(Bed { key, place: None, uris, _target: Some(target), rig, scratch, places: 0 })
    }

    fn measure(&mut self, case: &Case, settings: &Settings, found: &mut Found) -> Outcome {
        if self.place.as_ref().is_none_or(|(on, _)| *on != case.on) {
            // They are on the same devices.
            self.place = None;
            let devices = if case.on.striped { self.uris.len() } else { 1 };
            let uris = self.uris.get(..devices).unwrap_or_default();
            self.places += 1;
            let path = self.scratch.path().join(self.places.to_string());
            let more: Vec<&str> = case.on.option.iter().flat_map(|option| ["-o", option]).collect();
            self.place = Some((case.on, Place::new(&self.rig, &path, case.on.kind, uris, &more)?));
        }
        let Some((_, place)) = &self.place else { return Err(Failure::failed("there is no device")) };
        place.trim()?;
        // What is in the capsule says nothing of how space is found for a file.
        if !case.load.write || case.in_capsule.is_some() {
            case.load.lay_out(&self.rig, place)?;
        }
        case.load.run(&self.rig, place, settings, found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(quick: bool, targets: &[&str]) -> Settings {
        let targets = targets.iter().map(|uri| (*uri).to_owned()).collect();
        Settings { quick, targets, scale: 0.01, runs: 1, runtime: Duration::from_secs(1) }
    }

    fn all(settings: &Settings) -> Vec<Wanted<Case>> {
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
            let workloads = if quick { 3 } else { 4 };
            assert_eq!(all.len(), 2 * (4 * 2 * workloads + 3 + 2));
            for one in &all {
                if let Ok(Case { load, .. }) = &one.how {
                    let most = if quick { BYTES_QUICK } else { BYTES };
                    assert!(
                        load.size() * load.files <= most && load.size().is_multiple_of(load.bs),
                        "{load:?}"
                    );
                }
            }
            let said = all.iter().filter(|one| one.cells[0].found == "connections lost").count();
            assert_eq!(said, 4, "1,000 files on a stripe, near and far, read and written");
        }
    }

    #[test]
    fn what_named_devices_cannot_do_is_said() {
        let all = all(&settings(true, &["nvme+tcp://a/b"]));
        let why = |part: &str| {
            let of = |one: &&Wanted<Case>| one.how.as_ref().is_err_and(|why| why.contains(part));
            all.iter().filter(of).count()
        };
        assert_eq!(why("a stripe takes two devices"), 2 * 3);
        assert_eq!(why("the target's setting"), 3);
        assert!(all.iter().flat_map(|one| &one.cells).all(|cell| cell.found.is_empty()));
    }
}
