//! What a session measures of itself while it runs, and what follows from it.

use crate::limiter::{LimiterDetector, TcpCounters};
use crate::monitor::Monitor;
use crate::streams::{self, Streams};
use crate::tuner::{self, CountChange, Tuner};
use crate::wire::{Stage, Tuned};
use longhaul_engine::net::TcpStream;
use longhaul_engine::{now, sleep};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How often is measured: a few times for each file system's hiccup, and often
/// enough that a choice is made within seconds.
const PERIOD: Duration = Duration::from_millis(200);
/// Round trips until a further connection shows what it brings: it starts slowly,
/// doubling what it sends in each.
const RAMP: u32 = 12;
/// The longest time that is waited for that, in periods.
const RAMP_MOST: u32 = 25;
/// What a file costs besides its bytes, in bytes, so that rates can be compared
/// when small files follow large ones.
pub const FILE_WORK: u64 = 32 << 10;

/// With how many threads of a stage a session begins, and how many of anything it may
/// come to.
const START: usize = 4;
const MOST: usize = 16;
/// With how many connections it begins. Several begin with a burst each, which the
/// path's queue drops: with 4 to 16, 9 to 12 % of the segments were sent twice.
const STREAMS_START: usize = 1;

/// How many of something to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Concurrency {
    /// As many as measurably help.
    #[default]
    Measured,
    /// So many.
    Fixed(usize),
}

impl Concurrency {
    pub(crate) fn start(self) -> usize {
        match self {
            Concurrency::Measured => START,
            Concurrency::Fixed(number) => number.max(1),
        }
    }

    /// The most that there may be.
    pub fn most(self) -> usize {
        match self {
            Concurrency::Measured => MOST,
            Concurrency::Fixed(number) => number.max(1),
        }
    }

    /// With how many connections to begin.
    pub(crate) fn streams(self) -> usize {
        match self {
            Concurrency::Fixed(number) => number.max(1),
            Concurrency::Measured => STREAMS_START,
        }
    }
}

/// What has been done since the beginning, at some moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageProgress {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// The other stages wait for this one now.
    pub(crate) limits: bool,
}

/// A stage whose number follows what it does.
pub(crate) struct TunedStage<'a> {
    pub(crate) stage: Stage,
    pub(crate) concurrency: Concurrency,
    /// How many there are at first.
    pub(crate) start: usize,
    /// The most there may be.
    pub(crate) most: usize,
    /// What the stage has done.
    pub(crate) look: Box<dyn Fn() -> StageProgress + 'a>,
    /// Makes it so many.
    pub(crate) set: Box<dyn Fn(usize) + 'a>,
}

/// Connections, as far as their rate is measured.
pub(crate) struct Connections {
    pub(crate) streams: Vec<Rc<TcpStream>>,
    /// This side sends.
    pub(crate) sends: bool,
}

impl Connections {
    /// Bytes that have got across, on all connections.
    fn carried(&self) -> Option<u64> {
        let info = self.streams.iter().filter_map(|stream| stream.info().ok());
        let carried = info.map(|info| if self.sends { info.acknowledged } else { info.received });
        (!self.streams.is_empty()).then(|| carried.sum())
    }

    /// What the kernel has counted of all connections.
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

    /// Periods until a further connection shows what it brings.
    fn ramp(&self) -> u32 {
        let periods = (RAMP * self.round_trip()).as_secs_f64() / PERIOD.as_secs_f64();
        (periods.ceil() as u32).clamp(1, RAMP_MOST)
    }
}

/// What chooses the number of a stage.
enum Chooser {
    Threads(Tuner),
    Streams(Box<(Streams, LimiterDetector)>),
}

impl Chooser {
    fn new(stage: &TunedStage<'_>, path: &Connections) -> Chooser {
        match stage.stage {
            Stage::Send => {
                let streams = Streams::new(stage.start, stage.most, path.ramp());
                Chooser::Streams(Box::new((streams, LimiterDetector::new(&path.congestion()))))
            }
            _ => Chooser::Threads(Tuner::new(stage.start, stage.most, 1)),
        }
    }
}

/// Measures until it is dropped; `tell` hears of changes, and `look` is called each
/// time.
pub(crate) async fn follow(
    path: Connections,
    stages: Vec<TunedStage<'_>>,
    monitor: &Monitor,
    tell: impl Fn(Tuned),
    mut look: impl FnMut(),
) {
    let mut choosers: Option<Vec<Option<Chooser>>> = None;
    let began = now();
    let mut before: Vec<(f64, Instant)> = stages.iter().map(|stage| (work((stage.look)()), began)).collect();
    loop {
        sleep(PERIOD).await;
        let at = now();
        look();
        if let Some(carried) = path.carried() {
            monitor.carried(at, carried);
        }
        // Round trips are known by now.
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
                Chooser::Threads(tuner) => tuner.sample(tuner::StageSample { rate, limits: progress.limits }),
                Chooser::Streams(pair) => {
                    let (streams, signs) = &mut **pair;
                    let (limiter, resent) = signs.look(counted);
                    tracing::trace!("{counted:?}: {limiter:?}, {rate:.0} B/s, {resent:.3} sent again");
                    streams.sample(streams::StreamSample { rate, waits: progress.limits, limiter, resent })
                }
            };
            if let Some(CountChange { from, to, why }) = change {
                (stage.set)(to);
                tell(Tuned { stage: stage.stage, from: from as u16, to: to as u16, why });
            }
        }
    }
}

fn work(progress: StageProgress) -> f64 {
    progress.bytes as f64 + progress.files as f64 * FILE_WORK as f64
}
