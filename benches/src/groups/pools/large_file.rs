//! One large file of a file system in a pool, striped over targets behind a link each, against one plain stream over
//! each link at the same time: the experiment of the Network Storage Manager, with files.

use super::super::transfer::write_noise;
use super::{ADMIN, Site, trees};
use crate::link;
use crate::process::Guard;
use crate::program;
use crate::reference::Iperf;
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What a machine of two processors emulates beside all programs, in bits per second.
const RATE: u64 = 200_000_000;
const ROUND_TRIPS: [Duration; 3] =
    [Duration::from_micros(150), Duration::from_millis(15), Duration::from_millis(45)];
const TARGETS: [usize; 5] = [1, 2, 3, 4, 6];
/// Bytes that each link carries when the file is written.
const EACH: u64 = 512 << 20;
/// Bytes that the plain stream over each link moves.
const PLAIN: u64 = 128 << 20;
/// The least share of the plain streams that is good enough.
const FLOOR: f64 = 0.95;

#[derive(Clone, Copy, Debug)]
enum Subject {
    /// iperf3, one stream a link.
    Plain,
    /// `longhaul cp`.
    Copy,
}

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let header =
        ["links", "targets", "layout", "copy", "iperf3, Mb/s", "on the links, Mb/s", "of iperf3", "≥ 0.95"];
    let mut section = Section::new("large-file", &header);
    let mut late = 0;
    for &rate in setup.rates(&[RATE]) {
        for &rtt in setup.round_trips(&ROUND_TRIPS) {
            for &targets in setup.servers(&TARGETS) {
                late += measure(setup, (rate, rtt), targets, &mut section)?;
            }
        }
    }
    notes(&mut section, late);
    Ok(section)
}

/// A pool over some targets with the catalog in etcd, and a file to copy.
struct Bench {
    _etcd: Guard,
    site: Site,
    /// How to measure over each link.
    links: Vec<Setup>,
    iperf: Vec<Iperf>,
    layout: &'static str,
    source: PathBuf,
    /// Bytes of the file.
    bytes: u64,
}

impl Bench {
    fn start(setup: &Setup, (rate, rtt): (u64, Duration), targets: usize) -> Result<Bench> {
        let site = Site::of(setup, rtt, rate, targets)?;
        let etcd = trees::pool_by_etcd(&site)?;
        let links: Vec<Setup> = (1..=targets).map(|index| site.link.setup(setup, index)).collect();
        let iperf = Iperf::start_all(&links)?;
        let (layout, data) = if targets < 3 { ("stripe", targets) } else { ("parity", targets - 1) };
        let (source, bytes) = (site.home.path().join("source"), EACH * data as u64);
        write_noise(&source, bytes, &mut fastrand::Rng::with_seed(1))?;
        Ok(Bench { _etcd: etcd, site, links, iperf, layout, source, bytes })
    }

    /// Bytes per second of one plain stream over each link at the same time.
    fn plain(&self, write: bool) -> Result<f64> {
        let links = self.iperf.iter().zip(&self.links);
        Iperf::together(links, |iperf, setup| iperf.bytes(setup, write, PLAIN))
    }

    /// Bytes per second on the links while the file is copied to a new file system, and back to `back`. Each round has
    /// a file system of its own: a file that takes the place of another one has to free its content.
    fn copies(&self, back: &Path) -> Result<[f64; 2]> {
        let (targets, size) = (self.links.len(), (self.bytes + self.bytes / 2).to_string());
        let create = ["fs", "create", "bench/files", "--size", &size, "--layout", self.layout];
        self.site.run(&[&create[..], &["--width", &targets.to_string()]].concat())?;
        let (source, far) = (text(&self.source)?, "fs:bench/files/large");
        let (written, read) = (self.copy(source, far)?, self.copy(far, text(back)?)?);
        trees::finish(Command::new("cmp").arg(&self.source).arg(back))?;
        fs::remove_file(back)?;
        self.site.run(&["fs", "rm", "bench/files"])?;
        Ok([EACH as f64 * targets as f64 / written, self.bytes as f64 / read])
    }

    /// Copies the file; seconds by its summary.
    fn copy(&self, from: &str, to: &str) -> Result<f64> {
        let congestion = &self.site.setup.congestion;
        let mut command = self.site.command(&["cp", "--json", "--congestion", congestion, from, to]);
        let said =
            program::finish(&mut command, &self.site.setup).with_context(|| format!("cp {from} {to}"))?;
        let mut events = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let summary = events.next_back().filter(|last| last["event"] == "summary").context("no summary")?;
        ensure!(summary["bytes"] == self.bytes, "{summary}");
        summary["seconds"].as_f64().context("no time in the summary")
    }
}

/// Writes and reads the file once a round; measurements that count though the emulator was late.
fn measure(setup: &Setup, link: (u64, Duration), targets: usize, section: &mut Section) -> Result<u32> {
    let bench = Bench::start(setup, link, targets)?;
    let name = format!("{}, {}", link::rate(link.0), link::round_trip(link.1));
    let back = bench.site.home.path().join("back");
    let mut late = 0;
    let measured = setup.interleave(&[Subject::Plain, Subject::Copy], |subject| {
        let (rates, is_late) = bench.site.link.mostly_on_time(|| match subject {
            Subject::Plain => Ok([bench.plain(true)?, bench.plain(false)?]),
            Subject::Copy => bench.copies(&back),
        })?;
        late += u32::from(is_late);
        eprintln!("  {name}, {targets} targets, {subject:?}: {:.0?} Mb/s", rates.map(|rate| 8e-6 * rate));
        Ok(rates)
    })?;
    for (direction, way) in ["to the pool", "from it"].into_iter().enumerate() {
        let by = |subject: usize| Samples::of(&measured[subject], |rates| rates[direction]);
        let (plain, ours) = (by(0), by(1));
        let case = format!("{name}, {targets} targets, {way}");
        section.keep(&case, "iperf3", "bytes/s", &plain);
        section.keep(&case, "longhaul cp", "bytes/s", &ours);
        let ratio = ours.ratio(&plain);
        let mut row = vec![name.clone(), targets.to_string(), bench.layout.into(), way.into()];
        row.extend([plain.show(125_000.0, 0), ours.show(125_000.0, 0)]);
        row.extend([ratio.show_ratio(), ratio.at_least(FLOOR).into()]);
        section.row(row);
    }
    Ok(late)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is text")
}

fn notes(section: &mut Section, late: u32) {
    section.notes.push(format!(
        "Each link carries {} MiB when the file is written, content and parity; what is read is content alone, over \
         all links. The catalog is an etcd at the first target; each round has a file system of its own",
        EACH >> 20
    ));
    section.notes.push(format!(
        "iperf3: {} MiB over each link at the same time, one stream each. The time of `longhaul cp` is that of its \
         summary: from the first look at the destination until the file is durable under its name, without the \
         beginning and the end of the session",
        PLAIN >> 20
    ));
    section.notes.push(format!("{late} measurements count though the emulator was late twice in a row"));
    section.commands = vec![
        "longhaul wan --rtt 15ms --rate 200Mbit --star 6 --name link &".to_owned(),
        format!(
            "ip netns exec link-server1 longhaul target --insecure --listen 10.77.1.2:4420 \
             --space fast=dir:/srv/1,size=8GiB --admin {ADMIN}  # and so on; etcd at the first one"
        ),
        format!(
            "longhaul pool create bench --target 10.77.1.2 … --catalog etcd:10.77.1.2:2379 --hostnqn {ADMIN}"
        ),
        "longhaul fs create bench/files --size 4GiB --layout parity --width 6".to_owned(),
        "longhaul cp large fs:bench/files/large; longhaul cp fs:bench/files/large back".to_owned(),
        "for i in 1 2 3 4 5 6; do iperf3 -c 10.77.$i.2 --bytes 128M & done; wait".to_owned(),
    ];
}
