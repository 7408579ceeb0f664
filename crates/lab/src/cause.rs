//! Finds the cause that keeps a copy from being faster, the remedy, and the gain to expect.
//!
//! [`diagnose`] gets the measurements ([`CopyMeasurements`]): the copy and its stages alone, each fitted by
//! [`crate::model`], the same copy with more and with less at the same time, and the state of
//! sockets and hosts. It finds causes that explain them and predicts for each how many times as
//! fast the copy would be without it. The one with the largest gain is named first.
//!
//! Invariants:
//! - a prediction comes from measurements alone: the gain of a remedy is that of a run with it, or
//!   else the time by which the slowest stage exceeds the next one; where neither is known, nothing
//!   is promised;
//! - a symptom is not named beside the cause that explains it: that more files at the same time
//!   help where each takes long to open, that more connections help where one cannot have enough
//!   under way.

mod decide;
mod words;

use crate::model::Fit;
pub use decide::{black_hole, diagnose, rank};
use std::fmt;

/// Seconds a file, of all threads together, above which opening or creating it
/// is slow: a local file system takes a tenth of it.
pub const SLOW_FILE: f64 = 0.002;
/// Seconds that one file takes one thread above which it is not for want of
/// threads: a disk seeks in less.
pub const SLOW_OPERATION: f64 = 0.01;
/// Seconds of a metadata operation on a file above which the metadata server is
/// slow: a round trip within a site and a seek are less.
pub const SLOW_LOOKUP: f64 = 0.005;
/// Congestion controls that slow down for each loss as Reno does, but grow back
/// faster on a long path.
const LOSS_BASED: [&str; 6] = ["bic", "cubic", "highspeed", "htcp", "hybla", "scalable"];
/// Less than this gain is not worth a change, and within the noise of runs.
pub const GAIN_MIN: f64 = 1.1;

/// An end of the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Where it is read.
    Source,
    /// Where it is written.
    Destination,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::Source => "source",
            End::Destination => "destination",
        })
    }
}

/// Runs with another number of something at the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConcurrencyRun {
    /// The number that was tried.
    pub value: u32,
    /// Seconds that the quickest one took.
    pub seconds: f64,
    /// Seconds that the slowest one took.
    pub slowest: f64,
}

/// The same number now, and others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sweep {
    /// How many there are now.
    pub now: u32,
    /// Runs, that of now among them.
    pub tried: Vec<ConcurrencyRun>,
}

impl Sweep {
    /// The fewest that are within 3 % of the best. Another number is better only
    /// if its slowest run was quicker than the quickest of those with `now`:
    /// otherwise it may be noise.
    fn best(&self, now: ConcurrencyRun) -> Option<ConcurrencyRun> {
        let better = |tried: &&ConcurrencyRun| tried.value == now.value || tried.slowest < now.seconds;
        let least = self.tried.iter().filter(better).map(|tried| tried.seconds).fold(f64::INFINITY, f64::min);
        let good = self.tried.iter().filter(better).filter(|tried| tried.seconds <= least * 1.03);
        good.min_by_key(|tried| tried.value).copied()
    }

    fn now(&self) -> Option<ConcurrencyRun> {
        self.tried.iter().find(|tried| tried.value == self.now).copied()
    }

    /// The best setting and its gain, if that is worth it.
    pub fn gain(&self) -> Option<(ConcurrencyRun, f64)> {
        let now = self.now()?;
        let best = self.best(now)?;
        let gain = now.seconds / best.seconds;
        (best.value != now.value && gain >= GAIN_MIN).then_some((best, gain))
    }
}

/// Seconds that the same copy takes in two ways.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// As it is.
    pub with: f64,
    /// Without the suspected cause.
    pub without: f64,
}

impl Pair {
    fn gain(&self) -> f64 {
        self.with / self.without
    }
}

/// Congestion controls, on the path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Congestion {
    /// The one that is used.
    pub now: String,
    /// Seconds with it.
    pub seconds: f64,
    /// Seconds with others that this host has.
    pub others: Vec<(String, f64)>,
}

impl Congestion {
    /// The best of the others and its gain, if that is worth it.
    fn gain(&self) -> Option<(&str, f64)> {
        self.best_of(|_| true)
    }

    /// The best of those of the others that also take each loss for a full queue:
    /// if they do nearly as well as any, it is not losses that slow the copy down.
    fn gain_of_loss_based(&self) -> Option<(&str, f64)> {
        self.best_of(|name| LOSS_BASED.contains(&name))
    }

    fn best_of(&self, counts: impl Fn(&str) -> bool) -> Option<(&str, f64)> {
        let others = self.others.iter().filter(|(name, _)| counts(name));
        let (name, seconds) = others.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let gain = self.seconds / seconds;
        (gain >= GAIN_MIN).then_some((name.as_str(), gain))
    }
}

/// What the sockets of the network stage said.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sockets {
    /// Share of segments that were retransmitted, 0 to 1.
    pub retransmitted: f64,
    /// The same at half the rate, where that was tried: what only a burst or a
    /// full queue loses arrives then.
    pub at_half_rate: Option<f64>,
    /// Share of those retransmitted that had arrived: they were late, not lost.
    pub needless: f64,
    /// Share of the time in which the receiver's window was full.
    pub peer_window: f64,
    /// Share of the time in which the sender's buffer was full.
    pub send_buffer: f64,
    /// Large packets vanish: only small ones get through.
    pub black_hole: bool,
}

/// What a host said during the whole copy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostSeen {
    /// Of the thread of the copy that wants a processor most: share of the time
    /// in which it had one.
    pub busiest: f64,
    /// How many of the copy's threads had a processor or waited for one, on
    /// average.
    pub wanted: f64,
    /// Share of the time that went by because other programs had the processors
    /// that the copy waited for.
    pub lost: f64,
    /// Its processors save power.
    pub saves_power: bool,
    /// One processor serves all interrupts of the network, and has no time
    /// left.
    pub interrupts: bool,
    /// Share of the time in which its storage's device was busy, where it is
    /// one.
    pub device: Option<f64>,
    /// Seconds that asking for a file's metadata takes.
    pub lookup: Option<f64>,
}

/// The measurements that a diagnosis is made from.
#[derive(Clone, Debug)]
pub struct CopyMeasurements {
    /// Files of the copy.
    pub files: f64,
    /// Bytes of the copy.
    pub bytes: f64,
    /// The copy as it is.
    pub whole: Fit,
    /// Its stages alone, in the order of [`crate::model::Stage::ALL`], where they
    /// were measured.
    pub stages: [Option<Fit>; 3],
    /// Threads that read and that write, as many of each.
    pub threads: Sweep,
    /// Seconds with the best of those for reading alone, and for writing alone.
    pub alone: [Option<f64>; 2],
    /// The copy with other numbers of connections.
    pub streams: Sweep,
    /// With and without checksums of the strength that is in use.
    pub checksum: Option<Pair>,
    /// With and without encryption.
    pub encryption: Option<Pair>,
    /// How TCP is controlled.
    pub congestion: Option<Congestion>,
    /// The network stage's sockets.
    pub sockets: Option<Sockets>,
    /// The hosts: source and destination.
    pub hosts: [HostSeen; 2],
    /// Files are written by an agent on another machine: how many threads it has
    /// for that is not for the copy to say.
    pub agent_writes: bool,
}

impl CopyMeasurements {
    /// Leaves out what gave reason to a change: it was tried, and brought nothing.
    pub fn without(&mut self, change: &Change) {
        match change {
            Change::Threads(_) | Change::Readers(_) | Change::Writers(_) => {
                self.threads = Sweep::default();
                self.alone = [None; 2];
            }
            Change::Streams(_) => self.streams = Sweep::default(),
            Change::Congestion(name) => {
                if let Some(congestion) = &mut self.congestion {
                    congestion.others.retain(|(other, _)| other != name);
                }
            }
            Change::QuickChecksum => self.checksum = None,
        }
    }
}

/// The slow part of the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Finding and opening files.
    SlowOpen,
    /// Reading their bytes.
    SlowRead,
    /// Creating files at the destination.
    SlowCreate,
    /// Writing their bytes.
    SlowWrite,
    /// Metadata operations of any kind.
    SlowMetadata(End),
    /// The network carries no more.
    LinkFull,
    /// Something on the way costs time for each file.
    NetworkPerFile,
    /// TCP's receive buffer at the destination.
    ReceiveBuffer,
    /// TCP's send buffer at the source.
    SendBuffer,
    /// Packets are lost, at any rate.
    Loss,
    /// Packets are lost where many come at once.
    SmallQueue,
    /// Packets overtake each other.
    Reordering,
    /// TCP is controlled in a way that does not fit the path.
    Congestion,
    /// Large packets vanish.
    BlackHole,
    /// Computing checksums of the content.
    Checksum,
    /// Encrypting and decrypting the content.
    Encryption,
    /// A processor, all of it.
    Processor(End),
    /// Other programs on a host.
    Others(End),
    /// A host saves power.
    PowerSaving(End),
    /// Interrupts on one processor.
    Interrupts(End),
    /// Fewer files at the same time than it takes.
    TooFewFiles,
    /// More than is good.
    TooManyFiles,
    /// Fewer threads that read.
    TooFewReaders,
    /// Fewer threads that write.
    TooFewWriters,
    /// Fewer connections than it takes.
    TooFewStreams,
    /// More than is good.
    TooManyStreams,
}

/// A setting of the copy itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Threads that read and that write, so many of each.
    Threads(u32),
    /// Threads that read.
    Readers(u32),
    /// Threads that write.
    Writers(u32),
    /// Number of data connections.
    Streams(u32),
    /// Congestion control of the sending end, by the kernel's name.
    Congestion(String),
    /// The quick checksum.
    QuickChecksum,
}

/// What to do about a cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Give the copy another setting.
    Copy(Change),
    /// Give a host other settings. [`Finding::gain`] is a lower bound: it was measured without
    /// them.
    Tune(End),
    /// Start the agent at the destination with so many threads that write, or do
    /// what people do.
    AgentWriters(u32),
    /// What people do; see [`Cause::advice`].
    People,
}

/// A cause, and its cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The cause that explains the measurements.
    pub cause: Cause,
    /// What to do about it.
    pub remedy: Remedy,
    /// How many times as fast the copy would be with that, where that can be
    /// predicted; 1 where nothing can be gained.
    pub gain: Option<f64>,
    /// What shows it.
    pub evidence: String,
}
