//! Tuning of a running session: measures stages, and sets their numbers of threads and
//! connections.

pub(crate) mod connections;
pub(crate) mod gate;
pub(crate) mod limiter;
pub(crate) mod threads;

use crate::monitor::Monitor;
use crate::wire::{Stage, Tuned};
use connections::ConnectionTuner;
use limiter::{LimiterDetector, TcpCounters};
use longhaul_engine::net::TcpStream;
use longhaul_engine::{now, sleep};
use std::rc::Rc;
use std::time::{Duration, Instant};
use threads::{CountChange, ThreadTuner};

/// Sampling period: short enough to decide within seconds, and to see stalls of a file
/// system as such.
const PERIOD: Duration = Duration::from_millis(200);
/// Round trips until the effect of a further connection shows: TCP slow start doubles its
/// rate in each.
const RAMP: u32 = 12;
/// The longest wait for that effect, in periods.
const RAMP_MOST: u32 = 25;
/// Per-file cost in bytes, which makes rates of small and large files comparable.
pub const FILE_WORK: u64 = 32 << 10;

/// Initial threads of a stage, and the most.
const START: usize = 4;
const MOST: usize = 16;
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
    /// This number; 0 counts as 1.
    Fixed(usize),
}

impl Concurrency {
    pub(crate) fn start(self) -> usize {
        match self {
            Concurrency::Measured => START,
            Concurrency::Fixed(number) => number.max(1),
        }
    }

    /// The greatest number of threads.
    pub fn most(self) -> usize {
        match self {
            Concurrency::Measured => MOST,
            Concurrency::Fixed(number) => number.max(1),
        }
    }

    /// The greatest number of connections.
    pub(crate) fn most_streams(self) -> usize {
        match self {
            Concurrency::Measured => STREAMS_MOST,
            Concurrency::Fixed(number) => number.max(1),
        }
    }

    /// The initial number of connections.
    pub(crate) fn streams(self) -> usize {
        match self {
            Concurrency::Fixed(number) => number.max(1),
            Concurrency::Measured => STREAMS_START,
        }
    }
}

/// Totals of a stage at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageProgress {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Whether the other stages wait for this one.
    pub(crate) limits: bool,
}

/// A stage whose number of threads or connections is tuned.
pub(crate) struct TunedStage<'a> {
    pub(crate) stage: Stage,
    pub(crate) concurrency: Concurrency,
    /// Number to begin with.
    pub(crate) start: usize,
    /// Upper limit of the number.
    pub(crate) most: usize,
    /// Reads the totals of the stage.
    pub(crate) look: Box<dyn Fn() -> StageProgress + 'a>,
    /// Changes the number while the stage runs.
    pub(crate) set: Box<dyn Fn(usize) + 'a>,
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

/// The algorithm that chooses the number of a stage.
enum Chooser {
    Threads(ThreadTuner),
    Streams(Box<(ConnectionTuner, LimiterDetector)>),
}

impl Chooser {
    fn new(stage: &TunedStage<'_>, path: &Connections) -> Chooser {
        match stage.stage {
            Stage::Send => {
                let streams = ConnectionTuner::new(stage.start, stage.most, path.ramp());
                Chooser::Streams(Box::new((streams, LimiterDetector::new(&path.congestion()))))
            }
            _ => Chooser::Threads(ThreadTuner::new(stage.start, stage.most, 1)),
        }
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
    let mut choosers: Option<Vec<Option<Chooser>>> = None;
    let began = now();
    let mut unsent = UnsentLimits::new(&path);
    let mut before: Vec<(f64, Instant)> = stages.iter().map(|stage| (work((stage.look)()), began)).collect();
    loop {
        sleep(PERIOD).await;
        let at = now();
        look();
        unsent.adjust(&path, at);
        if let Some(carried) = path.carried() {
            monitor.carried(at, carried);
        }
        // Created here, since round trips are known only after the first period.
        let choosers = choosers.get_or_insert_with(|| {
            let measured = |stage: &&TunedStage<'_>| stage.concurrency == Concurrency::Measured;
            stages.iter().map(|stage| Some(stage).filter(measured).map(|s| Chooser::new(s, &path))).collect()
        });
        for ((stage, chooser), before) in stages.iter().zip(choosers).zip(&mut before) {
            let Some(chooser) = chooser else { continue };
            let progress = (stage.look)();
            let counted = match chooser {
                Chooser::Threads(_) => TcpCounters::default(),
                Chooser::Streams(_) => path.counted(at.saturating_duration_since(began)),
            };
            let done = match chooser {
                Chooser::Threads(_) => work(progress),
                Chooser::Streams(_) => counted.acknowledged as f64,
            };
            let elapsed = at.saturating_duration_since(before.1).as_secs_f64().max(1e-3);
            let rate = (done - before.0) / elapsed;
            *before = (done, at);
            let change = match chooser {
                Chooser::Threads(tuner) => {
                    tuner.sample(threads::StageSample { rate, limits: progress.limits })
                }
                Chooser::Streams(pair) => {
                    let (streams, detector) = &mut **pair;
                    let (limiter, retransmitted) = detector.sample(counted);
                    tracing::trace!(
                        "{counted:?}: {limiter:?}, {rate:.0} B/s, {retransmitted:.3} retransmitted"
                    );
                    streams.sample(connections::StreamSample {
                        rate,
                        waits: progress.limits,
                        limiter,
                        retransmitted,
                    })
                }
            };
            if let Some(CountChange { from, to, why }) = change {
                (stage.set)(to);
                report(Tuned { stage: stage.stage, from: from as u16, to: to as u16, why });
            }
        }
    }
}

fn work(progress: StageProgress) -> f64 {
    progress.bytes as f64 + progress.files as f64 * FILE_WORK as f64
}
