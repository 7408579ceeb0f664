//! The study of NVMe over fabrics (a poster; 100 Gb/s InfiniBand, RoCE and TCP;
//! one target, one client, one to six drives, depth 32): local and remote, block
//! devices and ext4, random blocks of 4 KiB and sequential ones of 128 KiB. The
//! network is measured first, and last what the study names as future work: several
//! clients of one target, each on a host (a namespace) of its own.

use super::device::{AttachedDevice, missing};
use super::links::{Links, Scratch, Server, serve_at};
use super::{Defaults, Experiment, PlanEntry, Results, Settings, result, suited_scale};
use crate::filesystems::DeviceFormat;
use crate::published::{fabrics as said, filesystems};
use crate::{Error, Outcome};
use longhaul_initiator::Uri;
use longhaul_results::published::Statement;
use longhaul_results::record::{Better, Cell, Code, Place, Question};
use longhaul_wan::Conditions;
use std::path::Path;
use std::time::Duration;

const RATE: f64 = said::RATE.value();
/// Round trip of a local network.
const RTT: Duration = Duration::from_micros(200);
/// Rate of a drive in bits per second. The poster has none: this is the value of the
/// file-system study, whose network is as fast.
const DRIVE: f64 = filesystems::DRIVE.value();
/// Least share of an emulated link's rate that plain TCP gets if the machine keeps up with the
/// emulation: headers take about 3 %.
const CARRIED: f64 = 0.85;
const DRIVES: [usize; 6] = [1, 2, 3, 4, 5, 6];
const DRIVES_QUICK: [usize; 2] = [1, 6];
/// Bytes of a drive, and of its region or file under load (published: 16 GB).
const SIZE: u64 = 2 << 30;
const SIZE_QUICK: u64 = 256 << 20;
const LOADED: u64 = 1 << 30;
const LOADED_QUICK: u64 = 32 << 20;
/// Numbers of clients, each with all drives.
const CLIENTS: [usize; 3] = [1, 2, 4];
const CLIENTS_QUICK: [usize; 2] = [1, 4];
const CLIENTS_MOST: usize = 4;
const DEPTH: &str = "32";
const RAMP: &str = "300ms";
/// The loads: name, order and direction, bytes of an I/O.
const LOADS: [(&str, &str, u64); 4] = [
    ("Random reads of 4 KiB", "randread", 4 << 10),
    ("Random writes of 4 KiB", "randwrite", 4 << 10),
    ("Sequential reads of 128 KiB", "read", 128 << 10),
    ("Sequential writes of 128 KiB", "write", 128 << 10),
];
/// The fabrics of the study besides TCP.
const ELSEWHERE: [&str; 2] = ["InfiniBand", ROCE];
const ROCE: &str = "RoCE";
/// The load for which the publication reports an anomaly over `RoCE`, and the fewest drives that
/// show it.
const ROCE_SLOW: (&str, usize) = ("write", 5);
/// A file system in memory.
const MEMORY: &str = "/dev/shm";
/// Listen address of a target that is reached over several links.
const ANY_ADDRESS: &str = "0.0.0.0:4420";

/// Location of the drives, and whether they have a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DriveSetup {
    remote: bool,
    ext4: bool,
}

impl DriveSetup {
    const ALL: [DriveSetup; 4] = [
        DriveSetup { remote: false, ext4: false },
        DriveSetup { remote: false, ext4: true },
        DriveSetup { remote: true, ext4: false },
        DriveSetup { remote: true, ext4: true },
    ];

    fn name(self) -> &'static str {
        match (self.remote, self.ext4) {
            (false, false) => "local",
            (false, true) => "local, ext4",
            (true, false) => "TCP",
            (true, true) => "TCP, ext4",
        }
    }
}

/// A measurement of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FabricMeasurement {
    /// The network alone: number of streams, and whether data is sent to the target.
    Network(u16, bool),
    /// A number of drives under one of [`LOADS`] (its index).
    Drives(DriveSetup, usize, usize),
    /// A number of clients, with all drives, under one of [`LOADS`] (its index).
    Clients(usize, usize),
}

/// Location of the drives relative to their clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Site {
    Local,
    Remote,
    Clients,
}

/// The experiment and its testbed.
#[derive(Default)]
pub(super) struct Fabrics(Option<FabricsTestbed>);

/// The drives of `--target`: those of other machines if `remote`, otherwise those of this one.
fn named(settings: &Settings, remote: bool) -> Vec<String> {
    settings.targets.iter().filter(|uri| uri.contains("://") == remote).cloned().collect()
}

impl Experiment for Fabrics {
    type Measurement = FabricMeasurement;

    fn usual(quick: bool) -> Defaults {
        let (runs, seconds) = if quick { (2, 1) } else { (5, 20) };
        Defaults { scale: suited_scale(RATE, quick), runs, runtime: Duration::from_secs(seconds) }
    }

    fn plan(settings: &Settings) -> Vec<PlanEntry<FabricMeasurement>> {
        let mut all = Vec::new();
        for streams in [1, 4] {
            for away in [true, false] {
                all.push(network(streams, away, settings));
            }
        }
        let drives = if settings.quick { &DRIVES_QUICK[..] } else { &DRIVES };
        for on in DriveSetup::ALL {
            for &number in drives {
                for load in 0..LOADS.len() {
                    all.push(on_drives(on, number, load, settings));
                }
            }
        }
        let clients = if settings.quick { &CLIENTS_QUICK[..] } else { &CLIENTS };
        for &number in clients {
            all.extend((0..LOADS.len()).map(|load| by_clients(number, load, settings)));
        }
        for fabric in ELSEWHERE {
            for &number in drives {
                for (load, &(_, rw, _)) in LOADS.iter().enumerate() {
                    let mut cell = cell(fabric, number, load);
                    cell.cite(elsewhere(fabric, number, rw));
                    all.push(PlanEntry { cells: vec![cell], how: Err(without_rdma(fabric)) });
                }
            }
        }
        all
    }

    fn questions(settings: &Settings) -> Vec<Question> {
        let drives = if settings.quick { &DRIVES_QUICK[..] } else { &DRIVES };
        let (Some(&least), Some(&most)) = (drives.first(), drives.last()) else { return Vec::new() };
        let [local, local_ext4, tcp, tcp_ext4] = DriveSetup::ALL.map(DriveSetup::name);
        let pairs = |question: Question, drives: &[usize], of: (&str, usize), to: (&str, usize)| {
            let mut question = question;
            for (load, (name, ..)) in LOADS.iter().enumerate() {
                for &number in drives {
                    let at = |(on, fixed): (&str, usize)| {
                        name_of(on, if fixed > 0 { fixed } else { number }, load)
                    };
                    let label =
                        if drives.len() > 1 { format!("{name}, {number} drives") } else { (*name).into() };
                    question = question.pair(label, at(of), at(to));
                }
            }
            question
        };
        let new = |title: String, said: Option<&Statement>| Question::new(title, said);
        let mut all = vec![
            pairs(
                new("Over the network, against this machine".into(), None).in_summary(),
                drives,
                (tcp, 0),
                (local, 0),
            ),
            pairs(
                new(format!("{most} drives of this machine, against {least}"), Some(&said::LINEAR)),
                &[most],
                (local, most),
                (local, least),
            ),
            pairs(
                new(format!("{most} drives over the network, against {least}"), None).in_summary(),
                &[most],
                (tcp, most),
                (tcp, least),
            ),
            pairs(
                new("ext4 over the network, against block devices".into(), None),
                drives,
                (tcp_ext4, 0),
                (tcp, 0),
            ),
            pairs(
                new("ext4 on this machine, against block devices".into(), None),
                drives,
                (local_ext4, 0),
                (local, 0),
            ),
        ];
        let clients = if settings.quick { &CLIENTS_QUICK[..] } else { &CLIENTS };
        if let (Some(&one), Some(&most)) = (clients.first(), clients.last()) {
            let question = Question::new(format!("{most} clients of one target, against {one}"), None);
            all.push((0..LOADS.len()).fold(question, |question, load| {
                question.pair(LOADS[load].0, of_clients(most, load), of_clients(one, load))
            }));
        }
        all
    }

    fn measure(
        &mut self,
        case: &FabricMeasurement,
        settings: &Settings,
        known: &[Cell],
        found: &mut Results,
    ) -> Outcome {
        let site = match case {
            FabricMeasurement::Clients(..) => Site::Clients,
            FabricMeasurement::Drives(DriveSetup { remote: false, .. }, ..) => Site::Local,
            FabricMeasurement::Drives(..) | FabricMeasurement::Network(..) => Site::Remote,
        };
        if self.0.as_ref().is_none_or(|testbed| testbed.site != site) {
            // Dropped before the new one starts, since they use the same drives.
            self.0 = None;
            self.0 = Some(FabricsTestbed::start(site, settings)?);
        }
        let Some(testbed) = &mut self.0 else { return Err(Error::failed("there are no drives")) };
        match *case {
            FabricMeasurement::Network(streams, away) => {
                testbed.network(streams, away, settings, found)?;
                result::count_with_losses(&mut found.cells);
                Ok(())
            }
            FabricMeasurement::Clients(clients, load) => testbed.clients(clients, load, settings, found),
            FabricMeasurement::Drives(on, drives, load) => {
                testbed.drives(on.ext4, drives, load, settings, found)?;
                // So many are faster than the link.
                if on.remote && drives as f64 * DRIVE >= RATE {
                    result::count_with_losses(&mut found.cells);
                }
                if let Some(why) = unfit(settings, known).filter(|_| on.remote) {
                    found.cells.iter_mut().for_each(|cell| cell.validity.mark(Code::LateLink, why.clone()));
                }
                Ok(())
            }
        }
    }
}

/// Why measurements over the emulated network are not valid: plain TCP did not reach the rate
/// of the link.
fn unfit(settings: &Settings, known: &[Cell]) -> Option<String> {
    let rate = RATE * settings.scale;
    [true, false].into_iter().filter(|_| settings.targets.is_empty()).find_map(|away| {
        let way = way(away);
        let cells = known.iter().filter(|cell| cell.name.starts_with(&format!("network {way}")));
        let Some(best) = cells.flat_map(|cell| &cell.samples).copied().reduce(f64::max) else {
            return Some(format!(
                "the throughput of plain TCP {way} could not be measured, so the limit is not known"
            ));
        };
        let share = best / rate;
        let percent = share * 100.0;
        (share < CARRIED).then(|| {
            format!("plain TCP {way} got {percent:.0} % of the link's rate: this machine cannot emulate it")
        })
    })
}

fn way(away: bool) -> &'static str {
    if away { "to the target" } else { "from the target" }
}

fn network(streams: u16, away: bool, settings: &Settings) -> PlanEntry<FabricMeasurement> {
    let (x, of) = (way(away), if streams == 1 { "stream" } else { "streams" });
    let series = format!("{streams} {of}");
    let mut cell = Cell::new(format!("network {x}, {series}"), "bit/s", Better::Higher);
    cell.place = Some(Place {
        figure: "The network alone".into(),
        series,
        x: x.into(),
        x_number: None,
        x_label: "Direction".into(),
    });
    let has_path = settings.targets.is_empty() || !named(settings, true).is_empty();
    let how = match has_path {
        true => Ok(FabricMeasurement::Network(streams, away)),
        false => Err("no drive of another machine was named".into()),
    };
    PlanEntry { cells: vec![cell], how }
}

/// The name of the cell of a number of drives under a load.
fn name_of(series: &str, drives: usize, load: usize) -> String {
    format!("{}, {series}, {drives} drives", LOADS[load].0)
}

/// The name of the cell of a number of clients under a load.
fn of_clients(clients: usize, load: usize) -> String {
    format!("{}, {clients} clients", LOADS[load].0)
}

/// The unit of a load.
fn unit(load: usize) -> &'static str {
    if LOADS[load].2 <= 4096 { "IOPS" } else { "B/s" }
}

/// The plan entry of a number of clients under a load.
fn by_clients(clients: usize, load: usize, settings: &Settings) -> PlanEntry<FabricMeasurement> {
    let mut cell = Cell::new(of_clients(clients, load), unit(load), Better::Higher);
    let (_, rw, bs) = LOADS[load];
    let way = if rw.ends_with("read") { "reads" } else { "writes" };
    let what = if bs <= 4096 { "random blocks of 4 KiB" } else { "sequential blocks of 128 KiB" };
    cell.place = Some(Place {
        figure: format!("Several clients of one target: {what}"),
        series: way.into(),
        x: clients.to_string(),
        x_number: Some(clients as f64),
        x_label: "Clients, each with six drives and a link".into(),
    });
    let how = match settings.targets.is_empty() {
        true => Ok(FabricMeasurement::Clients(clients, load)),
        false => Err("other clients of the devices that were named cannot be started from here".into()),
    };
    PlanEntry { cells: vec![cell], how }
}

fn cell(series: &str, drives: usize, load: usize) -> Cell {
    let figure = LOADS[load].0;
    let mut cell = Cell::new(name_of(series, drives, load), unit(load), Better::Higher);
    cell.place = Some(Place {
        figure: figure.into(),
        series: series.into(),
        x: drives.to_string(),
        x_number: Some(drives as f64),
        x_label: "Drives".into(),
    });
    cell
}

fn on_drives(
    on: DriveSetup,
    drives: usize,
    load: usize,
    settings: &Settings,
) -> PlanEntry<FabricMeasurement> {
    let mut cell = cell(on.name(), drives, load);
    // The published figures of local drives are of block devices.
    cell.cite(match on {
        DriveSetup { remote: true, .. } => Some(&said::TCP_WORDS),
        DriveSetup { remote: false, ext4: false } => Some(&said::LINEAR),
        DriveSetup { remote: false, ext4: true } => None,
    });
    let there = named(settings, on.remote).len();
    let how = if !settings.targets.is_empty() && there < drives {
        let whose = if on.remote { "of another machine" } else { "of this machine" };
        Err(format!("this takes {drives} drives {whose}, and --target names {there}"))
    } else if on.ext4 {
        missing(DeviceFormat::Ext4).map_or(Ok(()), Err)
    } else {
        Ok(())
    };
    PlanEntry { cells: vec![cell], how: how.map(|()| FabricMeasurement::Drives(on, drives, load)) }
}

/// The published statement on another fabric.
fn elsewhere(fabric: &str, drives: usize, rw: &str) -> Option<&'static Statement> {
    match fabric {
        ROCE if rw == ROCE_SLOW.0 && drives >= ROCE_SLOW.1 => Some(&said::ROCE_WRITES),
        ROCE => None,
        _ => Some(&said::INFINIBAND),
    }
}

/// Why another fabric cannot be measured here.
fn without_rdma(fabric: &str) -> String {
    let devices = std::fs::read_dir("/sys/class/infiniband").map_or(0, Iterator::count);
    match devices {
        0 => format!("this machine has no {fabric}: there is no RDMA device in /sys/class/infiniband"),
        _ => format!("this program carries NVMe over TCP, and not over {fabric}"),
    }
}

/// The drives, their file systems, and the network to them.
struct FabricsTestbed {
    site: Site,
    drives: Vec<String>,
    // Fields are dropped in order: file systems, the target that exports the drives, the link.
    places: Vec<AttachedDevice>,
    /// Number of drives whose file is written.
    laid_out: usize,
    _servers: Vec<Server>,
    links: Links,
    /// The server of the network's own measurement.
    network: Option<String>,
    scratch: Scratch,
    _memory: Option<Scratch>,
}

impl FabricsTestbed {
    fn start(site: Site, settings: &Settings) -> Result<FabricsTestbed, Error> {
        let remote = site != Site::Local;
        let scratch = Scratch::make("fabrics")?;
        if !settings.targets.is_empty() {
            let drives = named(settings, remote);
            let network = drives.first().filter(|_| remote).and_then(|uri| uri.parse::<Uri>().ok());
            let network =
                network.map(|uri| if uri.host.contains(':') { format!("[{}]", uri.host) } else { uri.host });
            let (places, links) = (Vec::new(), Links::here());
            return Ok(FabricsTestbed {
                site,
                drives,
                places,
                laid_out: 0,
                _servers: Vec::new(),
                links,
                network,
                scratch,
                _memory: None,
            });
        }
        // Drives are files in memory, limited to the scaled rate of a drive.
        let memory =
            Scratch::below(Path::new(MEMORY), "fabrics").or_else(|_| Scratch::make("fabrics-drives"))?;
        let (rate, size) = (DRIVE * settings.scale, if settings.quick { SIZE_QUICK } else { SIZE });
        let dir = memory.path().to_string_lossy().replace(',', ",,");
        let drive =
            |number: &usize| format!("file:{dir}/drive{number},size={size},buffered,rate={rate:.0}bit");
        let mut drives: Vec<String> = DRIVES.iter().map(drive).collect();
        let (mut servers, mut network, mut links) = (Vec::new(), None, Links::here());
        let conditions = Conditions::new(RTT, Some((RATE * settings.scale) as u64));
        if site == Site::Clients {
            // The target is in the namespace that all links share, with a client behind each link.
            links = Links::emulated(CLIENTS_MOST, conditions)?;
            let mut command = links.command()?;
            serve_at(&mut command, ANY_ADDRESS);
            for (number, drive) in (1..).zip(&drives) {
                command.args(["--export", &format!("drive{number}={drive}")]);
            }
            let target = Server::start(command)?;
            drives = target.uris();
            servers = vec![target];
        } else if remote {
            links = Links::emulated(1, conditions)?;
            let (mut command, address) = links.behind(1)?;
            serve_at(&mut command, &format!("{address}:4420"));
            for (number, drive) in (1..).zip(&drives) {
                command.args(["--export", &format!("drive{number}={drive}")]);
            }
            let target = Server::start(command)?;
            drives = target.uris();
            let (mut command, address) = links.behind(1)?;
            command.args(["netbench", "--listen", &format!("{address}:7411")]);
            servers = vec![target, Server::start(command)?];
            network = Some(address);
        }
        let places = Vec::new();
        Ok(FabricsTestbed {
            site,
            drives,
            places,
            laid_out: 0,
            _servers: servers,
            links,
            network,
            scratch,
            _memory: Some(memory),
        })
    }

    /// Measures plain TCP over the network.
    fn network(&self, streams: u16, away: bool, settings: &Settings, found: &mut Results) -> Outcome {
        let Some(server) = &self.network else { return Err(Error::failed("there is no network")) };
        let (direction, number) = match away {
            true => ("send", "throughput to server"),
            false => ("receive", "throughput from server"),
        };
        let (streams, time) = (streams.to_string(), format!("{}ms", settings.runtime.as_millis()));
        let runs = settings.runs.to_string();
        let args = ["netbench", server, "--direction", direction, "--streams", &streams, "--time", &time];
        let more = ["--ramp", RAMP, "--interval", "500ms", "--runs", &runs];
        let args: Vec<String> = args.into_iter().chain(more).map(str::to_owned).collect();
        self.links.load(&args, &[number], found)
    }

    /// Runs a load on all drives from `clients` clients at the same time.
    fn clients(&self, clients: usize, load: usize, settings: &Settings, found: &mut Results) -> Outcome {
        let size = if settings.quick { LOADED_QUICK } else { LOADED };
        let (_, rw, bs) = LOADS[load];
        let way = if rw.ends_with("read") { "read" } else { "write" };
        let what = format!("{way} {}", if found.cells[0].unit == "IOPS" { "IOPS" } else { "bandwidth" });
        let (bs, size) = (bs.to_string(), size.to_string());
        let runtime = format!("{}ms", settings.runtime.as_millis());
        let mut loads = Vec::new();
        for link in 1..=clients {
            let address = self.links.client_address(link).unwrap_or_default();
            let devices = self.drives.iter().map(|uri| {
                uri.parse::<Uri>()
                    .map_or_else(|_| uri.clone(), |there| uri.replacen(&there.host, &address, 1))
            });
            let mut args = vec!["bench".to_owned()];
            args.extend(devices);
            let words = ["--rw", rw, "--bs", &bs, "--size", &size, "--iodepth", DEPTH, "--group-reporting"];
            args.extend(words.into_iter().chain(["--ramp", RAMP, "--runtime", &runtime]).map(str::to_owned));
            loads.push((link, args));
        }
        self.links.loads(&loads, &what, settings.runs, found)
    }

    /// Runs a load on `number` drives.
    fn drives(
        &mut self,
        ext4: bool,
        number: usize,
        load: usize,
        settings: &Settings,
        found: &mut Results,
    ) -> Outcome {
        let size = if settings.quick { LOADED_QUICK } else { LOADED };
        let (_, rw, bs) = LOADS[load];
        let devices = match ext4 {
            true => self.files(number, size)?,
            false => {
                self.places.clear();
                self.laid_out = 0;
                self.drives.iter().take(number).cloned().collect()
            }
        };
        let way = if rw.ends_with("read") { "read" } else { "write" };
        let what = format!("{way} {}", if found.cells[0].unit == "IOPS" { "IOPS" } else { "bandwidth" });
        let (bs, size) = (bs.to_string(), size.to_string());
        let (runtime, runs) = (format!("{}ms", settings.runtime.as_millis()), settings.runs.to_string());
        let mut args = vec!["bench".to_owned()];
        args.extend(devices);
        let words = ["--rw", rw, "--bs", &bs, "--size", &size, "--iodepth", DEPTH, "--group-reporting"];
        let more = ["--ramp", RAMP, "--runtime", &runtime, "--runs", &runs];
        args.extend(words.into_iter().chain(more).map(str::to_owned));
        self.links.load(&args, &[&what], found)
    }

    /// A file on each of `number` drives, whose file systems are created on first use.
    fn files(&mut self, number: usize, size: u64) -> Result<Vec<String>, Error> {
        for at in self.places.len()..number {
            let path = self.scratch.path().join(format!("drive{at}"));
            let drive = self.drives.get(at..=at).unwrap_or_default();
            self.places.push(AttachedDevice::new(&self.links, &path, DeviceFormat::Ext4, drive, &[])?);
        }
        let file = |place: &AttachedDevice| {
            format!("file:{}/load,size={size}", place.path.to_string_lossy().replace(',', ",,"))
        };
        let files: Vec<String> = self.places.iter().take(number).map(file).collect();
        if self.laid_out < number {
            let fresh = &files[self.laid_out..];
            let mut command = self.links.command()?;
            command.arg("bench").args(fresh).args(["--rw", "write", "--bs", "128k", "--end-fsync"]);
            self.links.finish(command.args(["--size", &size.to_string()]))?;
            self.laid_out = number;
        }
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::tests::{assert_cited, settings};

    fn all(quick: bool, targets: &[&str]) -> Vec<PlanEntry<FabricMeasurement>> {
        Fabrics::plan(&settings(quick, targets))
    }

    #[test]
    fn what_takes_other_hardware_is_not_left_out() {
        for (quick, drives) in [(false, 6), (true, 2)] {
            let all = all(quick, &[]);
            let clients = if quick { 2 } else { 3 };
            assert_eq!(all.len(), 4 + 6 * drives * 4 + clients * 4);
            assert_cited::<Fabrics>(&settings(quick, &[]));
            let of = |name: &str| {
                let is = |one: &&PlanEntry<FabricMeasurement>| {
                    one.cells[0].place.as_ref().is_some_and(|place| place.series == name)
                };
                all.iter().filter(is).collect::<Vec<_>>()
            };
            for fabric in ELSEWHERE {
                let cells = of(fabric);
                assert_eq!(cells.len(), drives * 4);
                assert!(cells.iter().all(|one| one.how.as_ref().is_err_and(|why| why.contains(fabric))));
            }
            assert!(of("local").iter().chain(&of("TCP")).all(|one| one.how.is_ok()));
            let mut names: Vec<&str> = all.iter().map(|one| one.cells[0].name.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all.len(), "a name is of one number only");
        }
    }

    #[test]
    fn the_network_comes_first() {
        let all = all(true, &[]);
        assert!(all[..4].iter().all(|one| matches!(one.how, Ok(FabricMeasurement::Network(..)))));
        assert!(!all[4..].iter().any(|one| matches!(one.how, Ok(FabricMeasurement::Network(..)))));
    }

    #[test]
    fn drives_behind_a_network_that_is_not_what_it_should_be_do_not_count() {
        let targets = Vec::new();
        let settings =
            Settings { quick: true, targets, scale: 0.001, runs: 1, runtime: Duration::from_secs(1) };
        let rate = RATE * settings.scale;
        let network = |there: f64, back: f64| -> Vec<Cell> {
            let of = |away, share: f64| {
                let mut cell = network(1, away, &settings).cells.remove(0);
                cell.samples = vec![0.5 * share * rate, share * rate];
                cell
            };
            vec![of(true, there), of(false, back)]
        };
        assert_eq!(unfit(&settings, &network(0.96, 0.9)), None);
        let why = unfit(&settings, &network(0.96, 0.5)).expect("one way");
        assert!(why.contains("from the target got 50 %"), "{why}");
        let named = Settings { targets: vec!["nvme+tcp://a/b".into()], ..settings };
        assert_eq!(unfit(&named, &[]), None, "the rate of a named target's network is not known");
    }

    #[test]
    fn named_drives_are_as_many_as_they_are() {
        let all = all(false, &["mem:1MiB", "mem:2MiB", "nvme+tcp://a/b"]);
        let measured = |remote: bool| {
            let is = |one: &&PlanEntry<FabricMeasurement>| matches!(one.how, Ok(FabricMeasurement::Drives(on, ..)) if on == DriveSetup { remote, ext4: false });
            all.iter().filter(is).count()
        };
        assert_eq!((measured(false), measured(true)), (2 * 4, 4));
    }
}
