//! One large file of a file system in a pool, striped over targets behind a link each, against one plain stream over
//! each link at the same time: the experiment of the Network Storage Manager, with files.

use super::{ADMIN, Site, trees};
use crate::link;
use crate::process::Guard;
use crate::program;
use crate::reference::Iperf;
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
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
const PIECE: usize = 1 << 20;

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
    iperf: Vec<Iperf>,
    layout: &'static str,
    source: PathBuf,
    /// Bytes of the file.
    bytes: u64,
}

impl Bench {
    fn start(setup: &Setup, (rate, rtt): (u64, Duration), targets: usize) -> Result<Bench> {
        let site = Site::of(setup, rtt, rate, targets)?;
        let etcd = trees::etcd(&site)?;
        let catalog = format!("etcd:{}:2379", site.setup.target.address);
        site.run(&[&site.create()[..], &["--catalog", &catalog]].concat())?;
        let start = |index: usize| {
            Iperf::start(&site.link.setup(setup, index))?
                .context("iperf3 is the reference here, and is not installed")
        };
        let iperf = (1..=targets).map(start).collect::<Result<Vec<_>>>()?;
        let (layout, data) = if targets < 3 { ("stripe", targets) } else { ("parity", targets - 1) };
        let (source, bytes) = (site.home.path().join("source"), EACH * data as u64);
        fill(&source, bytes)?;
        Ok(Bench { _etcd: etcd, site, iperf, layout, source, bytes })
    }

    /// Bytes per second of one plain stream over each link at the same time.
    fn plain(&self, setup: &Setup, write: bool) -> Result<f64> {
        std::thread::scope(|scope| {
            let streams: Vec<_> = (1..)
                .zip(&self.iperf)
                .map(|(index, iperf)| {
                    let setup = self.site.link.setup(setup, index);
                    scope.spawn(move || iperf.bytes(&setup, write, PLAIN))
                })
                .collect();
            streams.into_iter().map(|stream| stream.join().expect("a thread that does not panic")).sum()
        })
    }

    /// Makes the file system anew: a file that takes the place of another one has to free its content.
    fn renew(&self) -> Result<()> {
        // There is none before the first round.
        let _ = self.site.run(&["fs", "rm", "bench/files", "--force"]);
        let (size, width) = ((self.bytes + self.bytes / 2).to_string(), self.iperf.len().to_string());
        let create = ["fs", "create", "bench/files", "--size", &size, "--layout", self.layout];
        self.site.run(&[&create[..], &["--width", &width]].concat()).map(drop)
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
    let (far, near) = ("fs:bench/files/large", bench.site.home.path().join("back"));
    let (source, back) = (text(&bench.source)?, text(&near)?);
    let mut late = 0;
    let measured = setup.interleave(&[Subject::Plain, Subject::Copy], |subject| {
        let (rates, is_late) = bench.site.link.mostly_on_time(|| match subject {
            Subject::Plain => Ok([true, false].map(|write| bench.plain(setup, write))),
            Subject::Copy => {
                bench.renew()?;
                let written = bench.copy(source, far)?;
                let read = bench.copy(far, back)?;
                ensure!(same(&bench.source, &near)?, "the file that was read back differs");
                fs::remove_file(&near)?;
                Ok([EACH as f64 * targets as f64 / written, bench.bytes as f64 / read].map(Ok))
            }
        })?;
        late += u32::from(is_late);
        let [written, read] = rates;
        let rates = [written?, read?];
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

/// Makes a file of random bytes.
fn fill(path: &Path, bytes: u64) -> io::Result<()> {
    let (mut file, mut random) = (BufWriter::new(File::create(path)?), fastrand::Rng::with_seed(1));
    let mut piece = vec![0; PIECE];
    for _ in 0..bytes / PIECE as u64 {
        random.fill(&mut piece);
        file.write_all(&piece)?;
    }
    file.flush()
}

/// Whether two files have the same content.
fn same(one: &Path, other: &Path) -> io::Result<bool> {
    let (one, other) = (File::open(one)?, File::open(other)?);
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut one, mut other) = (BufReader::with_capacity(PIECE, one), BufReader::with_capacity(PIECE, other));
    let (mut a, mut b) = (vec![0; PIECE], vec![0; PIECE]);
    loop {
        let read = one.read(&mut a)?;
        other.read_exact(&mut b[..read])?;
        if read == 0 || a[..read] != b[..read] {
            return Ok(read == 0);
        }
    }
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
