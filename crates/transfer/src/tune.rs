//! Tuning of a running session: measures stages, and sets their numbers of threads and
//! connections.

pub(crate) mod connections;
pub(crate) mod gate;
mod known;
pub(crate) mod limiter;
pub(crate) mod ramp;
pub(crate) mod service;
mod stage;
#[cfg(test)]
mod tests;
pub(crate) mod threads;
pub(crate) mod workers;

pub use known::KnownPaths;

use crate::monitor::Monitor;
use crate::wire::Tuned;
use limiter::TcpCounters;
use longhaul_engine::net::TcpStream;
use longhaul_engine::{now, sleep_until};
use stage::StageTuner;
pub(crate) use stage::{StageProgress, TunedStage, WaitingFiles};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use threads::CountChange;

/// Sampling period: short enough to decide within seconds, and to see stalls of a file
/// system as such.
const PERIOD: Duration = Duration::from_millis(200);
/// The same for a ramp, which is to decide within a service time of slow files, tens of
/// milliseconds.
const RAMP_PERIOD: Duration = Duration::from_millis(10);
/// So long after the beginning of a copy ramps are looked at that often; later only while one
/// tries a number, so that a long copy wakes few times a second.
const RAMP_TIME: Duration = Duration::from_secs(2);
/// Round trips until the effect of a further connection shows: TCP slow start doubles its
/// rate in each.
const RAMP: u32 = 12;
/// The longest wait for that effect, in periods.
const RAMP_MOST: u32 = 25;
/// Per-file cost in bytes, which makes rates of small and large files comparable.
pub const FILE_WORK: u64 = 32 << 10;

/// Initial threads of a stage; the most while rates are what is measured; and the most with slow
/// files, which 64 readers hide down to a millisecond if each takes 64 ms.
const START: usize = 4;
const MOST: usize = 16;
const MOST_WAITING: usize = 64;
/// The same for threads that read from a file system that is far away: each waits for a round trip, and as many
/// blocks of 1 MiB fill 6 Gb/s at 45 ms.
pub(crate) const START_FAR: usize = 32;
/// Initial connections. Each begins with a burst that may overflow the path's queue: with
/// 4 to 16, 9 to 12 % of the segments were retransmitted.
const STREAMS_START: usize = 1;
/// The most connections: those that random losses slow down carry a small fixed rate each.
const STREAMS_MOST: usize = 32;

/// A sender's connection is given so much time's worth of content beyond its congestion
/// window, within bounds. A connection that losses slow down would keep what the kernel has
/// taken, and the end of the copy would wait for it.
const UNSENT: Duration = Duration::from_millis(50);
const UNSENT_LEAST: u64 = 512 << 10;
const UNSENT_MOST: u64 = 64 << 20;

/// How many threads or connections to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Concurrency {
    /// As many as measurably improve the rate.
    #[default]
    Measured,
    /// The same, with this number to begin with.
    MeasuredFrom(usize),
    /// This number; 0 counts as 1.
    Fixed(usize),
}

impl Concurrency {
    /// Whether the number follows measurements.
    pub(crate) fn is_measured(self) -> bool {
        matches!(self, Concurrency::Measured | Concurrency::MeasuredFrom(_))
    }

    pub(crate) fn start(self) -> usize {
        match self {
            Concurrency::Measured => START,
            Concurrency::MeasuredFrom(number) | Concurrency::Fixed(number) => number.max(1),
        }
    }

    /// The greatest number of threads.
    pub fn most(self) -> usize {
        match self {
            Concurrency::Measured => MOST_WAITING,
            Concurrency::MeasuredFrom(number) => number.max(MOST_WAITING),
            Concurrency::Fixed(number) => number.max(1),
        }
    }

    /// The number of threads for whose large blocks there is memory at the same time.
    pub(crate) fn blocks(self) -> usize {
        match self {
            Concurrency::Measured => MOST,
            Concurrency::MeasuredFrom(number) => number.max(MOST),
            Concurrency::Fixed(number) => number.max(1),
        }
    }

    /// The greatest number of connections.
    pub(crate) fn most_streams(self) -> usize {
        match self {
            Concurrency::Measured => STREAMS_MOST,
            Concurrency::MeasuredFrom(number) => number.max(STREAMS_MOST),
            Concurrency::Fixed(number) => number.max(1),
        }
    }

    /// The initial number of connections.
    pub(crate) fn streams(self) -> usize {
        match self {
            Concurrency::MeasuredFrom(number) | Concurrency::Fixed(number) => number.max(1),
            Concurrency::Measured => STREAMS_START,
        }
    }
}

/// The connections of a session, as sources of measurements.
pub(crate) struct Connections {
    pub(crate) streams: Vec<Rc<TcpStream>>,
    /// Whether this side sends.
    pub(crate) sends: bool,
}

/// Bounds the content that waits in the kernel for each connection by the rate of the
/// connection.
struct UnsentLimits {
    /// Bytes acknowledged at the last look.
    acknowledged: Vec<u64>,
    at: Instant,
}

impl UnsentLimits {
    fn new(path: &Connections) -> UnsentLimits {
        UnsentLimits { acknowledged: vec![0; path.streams.len()], at: now() }
    }

    fn adjust(&mut self, path: &Connections, at: Instant) {
        if !path.sends {
            return;
        }
        let elapsed = at.saturating_duration_since(self.at).max(Duration::from_millis(1));
        self.at = at;
        for (stream, before) in path.streams.iter().zip(&mut self.acknowledged) {
            let Ok(info) = stream.info() else { continue };
            let rate = info.acknowledged.saturating_sub(*before) as f64 / elapsed.as_secs_f64();
            *before = info.acknowledged;
            let bytes = (rate * UNSENT.as_secs_f64()) as u64;
            if let Err(e) = stream.limit_unsent(bytes.clamp(UNSENT_LEAST, UNSENT_MOST) as u32) {
                tracing::debug!("cannot bound what waits to be sent: {e}");
            }
        }
    }
}

impl Connections {
    /// Bytes transferred on all connections.
    fn carried(&self) -> Option<u64> {
        let info = self.streams.iter().filter_map(|stream| stream.info().ok());
        let carried = info.map(|info| if self.sends { info.acknowledged } else { info.received });
        (!self.streams.is_empty()).then(|| carried.sum())
    }

    /// The kernel's counters of all connections.
    fn counted(&self, at: Duration) -> TcpCounters {
        TcpCounters::of(at, self.streams.iter().filter_map(|stream| stream.info().ok()))
    }

    /// The peer's address.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        Some(self.streams.first()?.peer_addr().ok()?.ip())
    }

    /// The least round trip of all connections.
    pub(crate) fn least_round_trip(&self) -> Duration {
        self.counted(Duration::ZERO).min_rtt
    }

    fn congestion(&self) -> String {
        self.streams.first().and_then(|stream| stream.congestion().ok()).unwrap_or_default()
    }

    /// The longest round trip of all connections.
    fn round_trip(&self) -> Duration {
        let trips = self.streams.iter().filter_map(|stream| stream.round_trip().ok());
        trips.map(|(rtt, _)| rtt).max().unwrap_or_default()
    }

    /// Periods until the effect of a further connection shows.
    fn ramp(&self) -> u32 {
        let periods = (RAMP * self.round_trip()).as_secs_f64() / PERIOD.as_secs_f64();
        (periods.ceil() as u32).clamp(1, RAMP_MOST)
    }
}

/// Tunes the stages until the future is dropped; calls `report` for each change, and `look`
/// each period.
pub(crate) async fn follow(
    path: Connections,
    stages: Vec<TunedStage<'_>>,
    monitor: &Monitor,
    report: impl Fn(Tuned),
    mut look: impl FnMut(),
) {
    let began = now();
    let mut unsent = UnsentLimits::new(&path);
    let mut tuners: Vec<_> = stages.into_iter().map(|stage| StageTuner::new(stage, began)).collect();
    let report = |tuner: &StageTuner<'_>, change: CountChange| {
        let (from, to) = (change.from as u16, change.to as u16);
        report(Tuned { stage: tuner.stage(), from, to, why: change.why });
    };
    let mut next = began + PERIOD;
    loop {
        let ramps = tuners.iter().any(|tuner| tuner.ramps(now()));
        sleep_until(if ramps { next.min(now() + RAMP_PERIOD) } else { next }).await;
        let at = now();
        for tuner in &mut tuners {
            if let Some(change) = tuner.look(at) {
                report(tuner, change);
            }
        }
        if at < next {
            continue;
        }
        next = at + PERIOD;
        look();
        unsent.adjust(&path, at);
        if let Some(carried) = path.carried() {
            monitor.carried(at, carried);
        }
        for tuner in &mut tuners {
            if let Some(change) = tuner.sample(&path, at) {
                report(tuner, change);
            }
        }
    }
}
