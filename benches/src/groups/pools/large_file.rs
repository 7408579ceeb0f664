//! One large file of a file system in a pool, striped over targets behind a link each, against one plain stream over
//! each link at the same time: the experiment of the Network Storage Manager, with files. More targets are all behind
//! one link, which is the port of the client.

use super::super::transfer::write_noise;
use super::mounted::pool_by_etcd;
use super::{ADMIN, Site, trees};
use crate::link::{self, Link};
use crate::process::{Guard, together};
use crate::program;
use crate::reference::Iperf;
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result, ensure};
use longhaul_wan::Conditions;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What a machine of two processors emulates beside all programs, in bits per second.
const RATE: u64 = 200_000_000;
const ROUND_TRIPS: [Duration; 3] =
    [Duration::from_micros(150), Duration::from_millis(15), Duration::from_millis(45)];
const TARGETS: [usize; 6] = [1, 2, 3, 4, 6, 16];
/// Most targets that have a link each.
const LINKS: usize = 6;
/// Bytes that each link carries when the file is written.
const EACH: u64 = 512 << 20;
/// Bytes that the plain stream over each link moves.
pub(super) const PLAIN: u64 = 128 << 20;
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
pub(super) struct Bench {
    _etcd: Guard,
    pub(super) site: Site,
    /// How to measure over each link.
    links: Vec<Setup>,
    iperf: Vec<Iperf>,
    targets: usize,
    pub(super) layout: &'static str,
    source: PathBuf,
    /// Bytes of the file, and those that all links carry when it is written.
    pub(super) bytes: u64,
    pub(super) carried: u64,
}

/// Whether that many targets are behind one link.
fn is_shared(targets: usize) -> bool {
    targets > LINKS
}

impl Bench {
    /// The file is so large that `each` link carries so many bytes when `copies` of it are written.
    pub(super) fn start(
        setup: &Setup,
        link: Link,
        targets: usize,
        (each, copies): (u64, u64),
    ) -> Result<Bench> {
        let links = if is_shared(targets) { 1 } else { targets };
        let site = match is_shared(targets) {
            true => Site::behind_one(setup, link, targets)?,
            false => Site::star(setup, link, targets)?,
        };
        let etcd = pool_by_etcd(&site)?;
        let setups: Vec<Setup> = (1..=links).map(|index| site.link.setup(setup, index)).collect();
        let iperf = Iperf::start_all(&setups)?;
        let (layout, data) = if targets < 3 { ("stripe", targets) } else { ("parity", targets - 1) };
        let carried = each * links as u64 / copies;
        let (source, bytes) = (site.home.path().join("source"), carried / targets as u64 * data as u64);
        write_noise(&source, bytes, &mut fastrand::Rng::with_seed(1))?;
        Ok(Bench { _etcd: etcd, site, links: setups, iperf, targets, layout, source, bytes, carried })
    }

    /// Bytes per second of one plain stream over each link at the same time.
    pub(super) fn plain(&self, write: bool) -> Result<f64> {
        let links = self.iperf.iter().zip(&self.links);
        Ok(together(links, |(iperf, setup)| iperf.bytes(setup, write, PLAIN))?.iter().sum())
    }

    /// Seconds that `clients` take, each to copy the file to a new file system, and back, all at the same time. Each
    /// round has a file system of its own: a file that takes the place of another one has to free its content.
    pub(super) fn copies(&self, clients: usize) -> Result<[Vec<f64>; 2]> {
        let size = (self.bytes + self.bytes / 2) * clients as u64;
        let create = ["fs", "create", "bench/files", "--size", &size.to_string(), "--layout", self.layout];
        self.site.run(&[&create[..], &["--width", &self.targets.to_string()]].concat())?;
        let source = text(&self.source)?;
        let far = |client: usize| format!("fs:bench/files/large{client}");
        let back = |client: usize| self.site.home.path().join(format!("back{client}"));
        let written = together(0..clients, |client| self.copy(source, &far(client)))?;
        let read = together(0..clients, |client| self.copy(&far(client), text(&back(client))?))?;
        for client in 0..clients {
            trees::finish(Command::new("cmp").arg(&self.source).arg(back(client)))?;
            fs::remove_file(back(client))?;
        }
        self.site.run(&["fs", "rm", "bench/files"])?;
        Ok([written, read])
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
fn measure(
    setup: &Setup,
    (rate, rtt): (u64, Duration),
    targets: usize,
    section: &mut Section,
) -> Result<u32> {
    let conditions = Conditions::new(rtt, Some(rate));
    let link = match is_shared(targets) {
        // The queue of one such link has room for few large packets of so many connections.
        true => Link::ethernet(conditions, None)?,
        false => Link::start(conditions, Some(targets))?,
    };
    let bench = Bench::start(setup, link, targets, (EACH, 1))?;
    let name = format!("{}, {}", link::rate(rate), link::round_trip(rtt));
    let mut late = 0;
    let measured = setup.interleave(&[Subject::Plain, Subject::Copy], |subject| {
        let (rates, is_late) = bench.site.link.mostly_on_time(|| match subject {
            Subject::Plain => Ok([bench.plain(true)?, bench.plain(false)?]),
            Subject::Copy => {
                let [written, read] = bench.copies(1)?.map(|seconds| seconds.iter().sum::<f64>());
                Ok([bench.carried as f64 / written, bench.bytes as f64 / read])
            }
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
        let placed = if is_shared(targets) { " behind one link" } else { "" };
        let mut row = vec![name.clone(), format!("{targets}{placed}"), bench.layout.into(), way.into()];
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
        "longhaul cp --congestion cubic large fs:bench/files/large; longhaul cp fs:bench/files/large back"
            .to_owned(),
        "for i in 1 2 3 4 5 6; do iperf3 -c 10.77.$i.2 --bytes 128M & done; wait".to_owned(),
    ];
}
