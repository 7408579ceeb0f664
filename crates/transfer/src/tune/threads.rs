//! Tuner of the number of threads of a stage.
//!
//! More threads are tried while the stage limits the others, and kept if the rate rises;
//! fewer are tried when more do not help, and kept if the rate stays. So the number
//! converges to the least that reaches the rate. At the beginning of a copy, and where files take
//! long, [`Ramp`](super::ramp::Ramp) finds a number sooner, and this tuner goes on from there.
//!
//! Invariants:
//! - the number is between one and the most;
//! - one change at a time, judged by samples after its effect can show;
//! - after a try that does not help, the wait for the next one doubles, up to
//!   [`HOLD_MOST`], which bounds the cost of trying.

/// A higher number is kept if the rate rises by this share.
const GAIN: f64 = 0.05;
/// A lower number is kept if the rate is below the best by no more than this share:
/// the best of all, so that many small losses do not add up.
const LOSS: f64 = 0.03;
/// Decay of the best rate for each sample: 3 % in 1,500 samples, so that the old rate of a
/// device that became slower is forgotten within minutes.
const FORGET: f64 = 0.99998;
/// Samples between two tries: at first, and at most.
const HOLD: u32 = 2;
const HOLD_MOST: u32 = 64;
/// Samples that a rate is averaged over.
const MEASURED: u32 = 2;

/// Measurements since the sample before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageSample {
    /// Work done, in any unit a second.
    pub(crate) rate: f64,
    /// Whether the other stages wait for this one.
    pub(crate) limits: bool,
}

/// A change of the number, or its reversal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CountChange {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConcurrencyStep {
    Up,
    Down,
}

#[derive(Clone, Copy, Debug)]
enum TunerPhase {
    /// Keep the number for this many more samples.
    Hold(u32),
    /// Measure the rate before a change: the sum of `samples` rates.
    Before { sum: f64, samples: u32 },
    /// The number was changed; the effect shows after `left` more samples.
    Settle { from: usize, before: f64, left: u32 },
    /// Measure the rate after the change: the sum of `samples` rates.
    Try { from: usize, before: f64, sum: f64, samples: u32 },
}

/// Finds the best number of threads.
#[derive(Debug)]
pub(crate) struct ThreadTuner {
    most: usize,
    now: usize,
    /// Samples until a change shows.
    settle: u32,
    hold: u32,
    /// The best rate measured, decayed by [`FORGET`].
    best: f64,
    direction: ConcurrencyStep,
    state: TunerPhase,
}

impl ThreadTuner {
    /// Begins with `start` of at most `most`; a change shows after `settle`
    /// samples.
    pub(crate) fn new(start: usize, most: usize, settle: u32) -> ThreadTuner {
        let now = start.clamp(1, most.max(1));
        ThreadTuner {
            most: most.max(1),
            now,
            settle,
            hold: HOLD,
            best: 0.0,
            direction: ConcurrencyStep::Up,
            state: TunerPhase::Hold(1 + settle),
        }
    }

    /// Goes on with `number`, which was found otherwise, and may exceed the most from now on; then
    /// tries more, or fewer.
    pub(crate) fn go_on(&mut self, number: usize, more: bool) {
        self.most = self.most.max(number);
        self.now = number.max(1);
        self.hold = HOLD;
        self.best = 0.0;
        self.direction = if more { ConcurrencyStep::Up } else { ConcurrencyStep::Down };
        self.state = TunerPhase::Hold(1 + self.settle);
    }

    /// Number of threads in use.
    #[cfg(test)]
    pub(crate) fn now(&self) -> usize {
        self.now
    }

    /// Takes a sample; returns a change to make.
    pub(crate) fn sample(&mut self, sample: StageSample) -> Option<CountChange> {
        self.best *= FORGET;
        match self.state {
            TunerPhase::Hold(left) if left > 0 => {
                self.state = TunerPhase::Hold(left - 1);
                None
            }
            // A stage that waits for others cannot measure the effect of a change.
            TunerPhase::Hold(_) | TunerPhase::Before { .. } if !sample.limits => {
                self.state = TunerPhase::Hold(0);
                None
            }
            TunerPhase::Hold(_) => self.before(sample.rate, 1),
            TunerPhase::Before { sum, samples } => self.before(sum + sample.rate, samples + 1),
            TunerPhase::Settle { from, before, left } if left > 0 => {
                self.state = TunerPhase::Settle { from, before, left: left - 1 };
                None
            }
            TunerPhase::Settle { from, before, .. } => self.tried(from, before, sample, 0.0, 0),
            TunerPhase::Try { from, before, sum, samples } => self.tried(from, before, sample, sum, samples),
        }
    }

    fn before(&mut self, sum: f64, samples: u32) -> Option<CountChange> {
        if samples < MEASURED {
            self.state = TunerPhase::Before { sum, samples };
            return None;
        }
        let before = sum / f64::from(samples);
        self.best = self.best.max(before);
        let from = self.now;
        let to = match self.direction {
            // A step large enough to measure.
            ConcurrencyStep::Up => (from + from.div_ceil(2)).min(self.most),
            ConcurrencyStep::Down => (from - from.div_ceil(4)).max(1),
        };
        if to == from {
            self.turn();
            self.state = TunerPhase::Hold(self.hold);
            return None;
        }
        self.set(to);
        self.state = TunerPhase::Settle { from, before, left: self.settle };
        let why = match self.direction {
            ConcurrencyStep::Up => "this stage holds the others up: more are tried",
            ConcurrencyStep::Down => "more did not help: fewer are tried",
        };
        Some(CountChange { from, to, why: why.into() })
    }

    fn tried(
        &mut self,
        from: usize,
        before: f64,
        sample: StageSample,
        sum: f64,
        samples: u32,
    ) -> Option<CountChange> {
        let (sum, samples) = (sum + sample.rate, samples + 1);
        // If another stage limits now, the new number is judged by the samples so far.
        if samples < MEASURED && sample.limits {
            self.state = TunerPhase::Try { from, before, sum, samples };
            return None;
        }
        let rate = sum / f64::from(samples);
        let change = rate / before.max(f64::MIN_POSITIVE) - 1.0;
        let kept = match self.direction {
            ConcurrencyStep::Up => change >= GAIN || !sample.limits && change >= -LOSS,
            ConcurrencyStep::Down => rate >= (1.0 - LOSS) * self.best,
        };
        if kept {
            self.hold = HOLD;
            self.state = TunerPhase::Hold(0);
            return None;
        }
        let to = from;
        let (from, percent) = (self.now, change * 100.0);
        self.set(to);
        self.turn();
        self.hold = (2 * self.hold).min(HOLD_MOST);
        self.state = TunerPhase::Hold(self.hold + self.settle);
        Some(CountChange {
            from,
            to,
            why: format!("the rate changed by {percent:+.0} % with {from}: back to {to}"),
        })
    }

    fn set(&mut self, number: usize) {
        assert!((1..=self.most).contains(&number), "{number} threads, of at most {}", self.most);
        self.now = number;
    }

    fn turn(&mut self) {
        self.direction = match self.direction {
            ConcurrencyStep::Up => ConcurrencyStep::Down,
            ConcurrencyStep::Down => ConcurrencyStep::Up,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a system whose rate depends on the number for so many samples; the
    /// number at the end, the most that was tried, and the mean rate of the last
    /// half as a share of the best.
    fn settle(start: usize, most: usize, samples: u32, rate: impl Fn(usize) -> f64) -> (usize, usize, f64) {
        let mut tuner = ThreadTuner::new(start, most, 1);
        let (mut tried, mut late) = (start, 0.0);
        for i in 0..samples {
            // What changed acts a sample late, and rates are not steady.
            let noise = 1.0 + 0.01 * f64::from(i * 7 % 5) - 0.02;
            let sample = StageSample { rate: rate(tuner.now()) * noise, limits: true };
            if i >= samples / 2 {
                late += sample.rate / f64::from(samples - samples / 2);
            }
            tuner.sample(sample);
            tried = tried.max(tuner.now());
            assert!((1..=most).contains(&tuner.now()));
        }
        let best = (1..=most).map(&rate).fold(0.0, f64::max);
        (tuner.now(), tried, late / best)
    }

    #[test]
    fn more_are_used_as_long_as_they_help() {
        let (now, _, share) = settle(4, 64, 400, |n| n as f64);
        assert!(now >= 55 && share > 0.9, "{now}, {share}");
    }

    #[test]
    fn a_sufficient_number_is_found_from_below_and_from_above() {
        for start in [1, 4, 30] {
            let (now, _, share) = settle(start, 32, 600, |n| n.min(12) as f64);
            assert!((11..=18).contains(&now) && share > 0.95, "from {start}: {now}, {share}");
        }
    }

    #[test]
    fn a_number_that_lowers_the_rate_is_given_up() {
        // A disk that seeks: best with three.
        let (now, tried, share) = settle(4, 16, 400, |n| 100.0 / (1.0 + (n as f64 - 3.0).abs() / 3.0));
        assert!(now <= 4 && tried <= 8 && share > 0.85, "{now}, {tried}, {share}");
    }

    #[test]
    fn small_losses_do_not_add_up() {
        // Each one less costs 0.8 %, which no single try shows.
        let (now, _, share) = settle(12, 12, 2000, |n| 1.0 - 0.008 * (12 - n) as f64);
        assert!(now >= 6 && share > 0.94, "{now}, {share}");
    }

    #[test]
    fn a_stage_that_is_not_the_limit_keeps_its_number() {
        let mut tuner = ThreadTuner::new(4, 16, 1);
        for _ in 0..100 {
            assert_eq!(tuner.sample(StageSample { rate: 1.0, limits: false }), None);
        }
        assert_eq!(tuner.now(), 4);
    }

    #[test]
    fn changes_carry_their_reason() {
        let mut tuner = ThreadTuner::new(4, 16, 0);
        let moves: Vec<CountChange> =
            (0..20).filter_map(|_| tuner.sample(StageSample { rate: 1.0, limits: true })).collect();
        assert_eq!((moves[0].from, moves[0].to), (4, 6));
        assert_eq!((moves[1].from, moves[1].to), (6, 4));
        assert!(moves[1].why.contains("+0 % with 6"), "{}", moves[1].why);
        // And then fewer.
        assert_eq!((moves[2].from, moves[2].to), (4, 3));
    }
}
