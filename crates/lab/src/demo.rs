//! A demonstration on one machine.
//!
//! Two targets run behind relays that add a round trip. In each round, a data set is written to
//! them, read back and compared, and plain TCP through the same kind of relay is measured in
//! the same way, as the anchor. Then a tree of small files is copied over such a link, by
//! Longhaul and by scp.

mod copy;
mod files;
mod plain;
mod scp;
mod spread;
mod targets;
mod temporary;
mod trees;
mod window;

pub use spread::{Phase, PhaseSummary, Spread};
pub use temporary::remove_temporary;
pub use trees::SmallFileCopies;
pub use window::{MeasuredRate, Window};

use crate::Error;
use copy::Copier;
use files::DataSet;
use longhaul_block::units::{format_rate, format_size};
use longhaul_engine::Config;
use longhaul_transfer::dataset::Scale;
use longhaul_wan::Link;
use plain::StreamDirection;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use targets::RelayedTargets;

/// Targets that the data set is spread over.
pub const TARGETS: usize = 2;
/// Number of files and total size of the tree of small files, which have equal sizes.
const SMALL_FILES: u64 = 200;
const SMALL_BYTES: u64 = 25 << 20;
const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// What to demonstrate.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// Copy the files of this directory; `None`: generated data sets.
    pub data: Option<PathBuf>,
    /// Size of the generated data set in bytes.
    pub scale: u64,
    /// Round trip of the links.
    pub rtt: Duration,
    /// Rate of each link in bits per second; 0: no limit.
    pub rate: u64,
    /// Rounds of each measurement.
    pub rounds: u16,
    /// Engine of all ends.
    pub engine: Config,
}

impl DemoOptions {
    /// The link to one target.
    fn link(&self) -> Link {
        Link { rate: (self.rate > 0).then_some(self.rate), ..Link::round_trip(self.rtt) }
    }

    /// Description of the link.
    fn link_name(&self) -> String {
        let rate = if self.rate > 0 { format_rate(self.rate as f64) } else { "no limit of rate".into() };
        format!("{} ms of round trip, {rate}", self.rtt.as_secs_f64() * 1e3)
    }
}

/// Hears of the progress of a demonstration.
pub trait DemoProgress {
    /// A sentence on what is about to be done.
    fn note(&self, text: &str);

    /// A step begins.
    fn step(&self, text: &str);

    /// A step begins that moves data; the returned function takes the bytes moved so far.
    fn follow<'a>(&'a self, text: String) -> Box<dyn FnMut(u64) + 'a>;
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Demonstration {
    /// Number of files on the devices.
    pub files: usize,
    /// Size of all files.
    pub bytes: u64,
    /// When the rates were measured.
    pub window: Window,
    /// Rates of writing and of reading.
    pub phases: [Phase; 2],
    /// Times of copies of a tree of small files.
    pub trees: SmallFileCopies,
}

/// Runs the demonstration: some ten seconds a round. Uses memory, the directory for temporary files
/// and loopback.
///
/// # Errors
/// The data cannot be read or made, [`Error::Mismatch`] if what was read back is not what was
/// written, or any error of the targets, devices and copies.
pub fn run(options: &DemoOptions, progress: &dyn DemoProgress) -> Result<Demonstration, Error> {
    let source = match &options.data {
        Some(dir) => DataSet::of(dir)?,
        None => generated("demo", "real", Scale::bytes(options.scale), progress)?,
    };
    let (files, bytes) = (source.files.len(), source.bytes());
    if bytes == 0 {
        return Err(Error::failed(format!("{} has no file with content", source.dir.display())));
    }
    progress.note(&format!("{files} files, {} in {}", format_size(bytes), source.dir.display()));
    progress.note(&format!("{TARGETS} targets, each behind a link of its own: {}", options.link_name()));
    let window = Window::of(options.rtt);
    let phases = rates(&source, window, options, progress)?;

    let small = Scale { files: Some(SMALL_FILES), bytes: Some(SMALL_BYTES) };
    let small = match &options.data {
        Some(_) => source,
        None => generated("demo-small", "equal", small, progress)?,
    };
    let trees = trees::measure(&small, options, &|words| progress.step(words))?;
    Ok(Demonstration { files, bytes, window, phases, trees })
}

fn generated(name: &str, set: &str, scale: Scale, progress: &dyn DemoProgress) -> Result<DataSet, Error> {
    progress.note("making a data set");
    DataSet::make(name, set, scale)
}

/// Writes, reads and verifies in rounds, and measures plain TCP in each direction.
fn rates(
    source: &DataSet,
    window: Window,
    options: &DemoOptions,
    progress: &dyn DemoProgress,
) -> Result<[Phase; 2], Error> {
    let testbed = RelayedTargets::start(options, source.space_for_each(TARGETS))?;
    let copier = Copier::new(source, &testbed.devices, options.engine.clone())?;
    let mut phases = ["write", "read"].map(|name| Phase { name, ours: Vec::new(), plain: Vec::new() });
    for round in 1..=options.rounds {
        let follow = |stage: &str| progress.follow(format!("round {round} of {}: {stage}", options.rounds));
        let plain = |way, moved: &mut dyn FnMut(u64)| {
            plain::measure(&|| options.link(), TARGETS, way, window, &options.engine, moved)
                .map_err(|e| Error::failed(format_args!("plain TCP: {e}")))
        };
        let [write, read] = &mut phases;
        write.ours.push(copier.write(window, &mut *follow("write"))?);
        write.plain.push(plain(StreamDirection::There, &mut *follow("plain TCP there"))?);
        let (counted, wrong) = copier.read_and_verify(window, &mut *follow("read and verify"))?;
        if let Some(first) = wrong.first() {
            let message = format!("{} pieces differ, first: {first}", wrong.len());
            return Err(Error::Mismatch(message));
        }
        read.ours.push(counted);
        read.plain.push(plain(StreamDirection::Back, &mut *follow("plain TCP back"))?);
    }
    Ok(phases)
}
