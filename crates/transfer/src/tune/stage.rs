//! The tuners of one stage: the ramp, which goes by single files, and the one that goes by rates.

use super::connections::{ConnectionTuner, StreamSample};
use super::limiter::{LimiterDetector, TcpCounters};
use super::ramp::{Ramp, RampSample, RampStep};
use super::service::ServiceTimes;
use super::threads::{CountChange, StageSample, ThreadTuner};
use super::{Concurrency, Connections, FILE_WORK, MOST, RAMP_TIME};
use crate::wire::Stage;
use std::time::Instant;

/// Totals of a stage at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageProgress {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Whether the other stages wait for this one.
    pub(crate) limits: bool,
}

impl StageProgress {
    fn work(self) -> f64 {
        self.bytes as f64 + self.files as f64 * FILE_WORK as f64
    }
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
    /// Changes the number while the stage runs; returns the number in use, which is less if no
    /// more threads can be started.
    pub(crate) set: Box<dyn Fn(usize) -> usize + 'a>,
    /// Told of the number that is kept, with each sample; `None` for threads.
    pub(crate) kept: Option<Box<dyn Fn(usize) + 'a>>,
    /// What a ramp of threads goes by; `None` for connections.
    pub(crate) files: Option<WaitingFiles<'a>>,
}

/// The files of a stage of threads.
pub(crate) struct WaitingFiles<'a> {
    pub(crate) service: &'a ServiceTimes,
    /// Counts files that wait for a thread, and that the next stage can take.
    pub(crate) waiting: Box<dyn Fn() -> usize + 'a>,
}

/// The algorithm that chooses the number of a stage by rates.
enum Chooser {
    Threads(ThreadTuner),
    Streams(Box<(ConnectionTuner, LimiterDetector)>),
}

impl Chooser {
    fn new(stage: &TunedStage<'_>, path: &Connections, start: usize) -> Chooser {
        match stage.stage {
            Stage::Send => {
                let streams = ConnectionTuner::new(stage.start, stage.most, path.ramp());
                Chooser::Streams(Box::new((streams, LimiterDetector::new(&path.congestion()))))
            }
            _ => Chooser::Threads(ThreadTuner::new(start, stage.most.min(MOST).max(start), 1)),
        }
    }
}

/// A stage and its tuners.
pub(super) struct StageTuner<'a> {
    stage: TunedStage<'a>,
    ramp: Option<Ramp>,
    chooser: Option<Chooser>,
    /// When the copy began, the present round of the ramp, and the present sample of the rate.
    began: Instant,
    round: Instant,
    sampled: Instant,
    /// Work until then.
    before: f64,
}

impl StageTuner<'_> {
    pub(super) fn new(stage: TunedStage<'_>, at: Instant) -> StageTuner<'_> {
        let measured = stage.files.is_some() && stage.concurrency.is_measured();
        StageTuner {
            ramp: measured.then(|| Ramp::new(stage.start, stage.most)),
            chooser: None,
            began: at,
            round: at,
            sampled: at,
            before: (stage.look)().work(),
            stage,
        }
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage.stage
    }

    /// Whether the ramp is to be looked at in short periods.
    pub(super) fn ramps(&self, at: Instant) -> bool {
        let begins = at.saturating_duration_since(self.began) < RAMP_TIME;
        self.ramp.as_ref().is_some_and(|ramp| ramp.is_trying() || ramp.is_active() && begins)
    }

    /// Lets the ramp decide; returns the change that was made.
    pub(super) fn look(&mut self, at: Instant) -> Option<CountChange> {
        let (ramp, files) = (self.ramp.as_mut()?, self.stage.files.as_ref()?);
        if !ramp.is_active() {
            return None;
        }
        let step = ramp.look(RampSample {
            served: files.service.served(),
            elapsed: at.saturating_duration_since(self.round),
            waiting: (files.waiting)(),
        })?;
        files.service.restart();
        self.round = at;
        let RampStep::Change(mut change) = step else { return None };
        let in_use = (self.stage.set)(change.to);
        if in_use < change.to {
            ramp.bound(in_use);
            change.to = in_use;
        }
        if let Some(Chooser::Threads(tuner)) = &mut self.chooser {
            tuner.go_on(change.to, ramp.has_exceeded());
        }
        (change.to != change.from).then_some(change)
    }

    /// Samples the rate at the end of a period; returns the change that was made.
    pub(super) fn sample(&mut self, path: &Connections, at: Instant) -> Option<CountChange> {
        if self.stage.concurrency != Concurrency::Measured {
            return None;
        }
        // Created here, since round trips are known only after the first period.
        let start = self.ramp.as_ref().map_or(self.stage.start, Ramp::now);
        let chooser = self.chooser.get_or_insert_with(|| Chooser::new(&self.stage, path, start));
        let progress = (self.stage.look)();
        let counted = match chooser {
            Chooser::Threads(_) => TcpCounters::default(),
            Chooser::Streams(_) => path.counted(at.saturating_duration_since(self.began)),
        };
        let done = match chooser {
            Chooser::Threads(_) => progress.work(),
            Chooser::Streams(_) => counted.acknowledged as f64,
        };
        let elapsed = at.saturating_duration_since(self.sampled).as_secs_f64().max(1e-3);
        let rate = (done - self.before) / elapsed;
        (self.before, self.sampled) = (done, at);
        let change = match chooser {
            // The ramp judges what it tries.
            Chooser::Threads(_) if self.ramp.as_ref().is_some_and(Ramp::is_trying) => None,
            Chooser::Threads(tuner) => tuner.sample(StageSample { rate, limits: progress.limits }),
            Chooser::Streams(pair) => {
                let (streams, detector) = &mut **pair;
                let (limiter, retransmitted) = detector.sample(counted);
                tracing::trace!("{counted:?}: {limiter:?}, {rate:.0} B/s, {retransmitted:.3} retransmitted");
                let change =
                    streams.sample(StreamSample { rate, waits: progress.limits, limiter, retransmitted });
                if let Some(kept) = &self.stage.kept {
                    kept(streams.kept());
                }
                change
            }
        }?;
        (self.stage.set)(change.to);
        if let (Some(ramp), Some(files)) = (&mut self.ramp, &self.stage.files) {
            ramp.set(change.to);
            files.service.restart();
            self.round = at;
        }
        Some(change)
    }
}
