//! One direction of a path: its rate, and the bytes to keep in flight.
//!
//! Invariants:
//! - bytes in flight are at least those that fill the path at the measured rate, plus the extra;
//! - one experiment with the gain at a time.

use super::types::WaySample;
use std::collections::VecDeque;

/// The least bytes in flight, and the least extra: some I/Os of any size, so
/// that storage and processors on both sides are kept busy on short paths.
pub const FLOOR: u64 = 2 << 20;
/// The extra is √(this × product): 4 MiB make it 40 % of 25 MB (2 Gb/s at
/// 100 ms) and 18 % of 125 MB (10 Gb/s at 100 ms).
const EXTRA: f64 = (4u64 << 20) as f64;
/// Multiples of the bandwidth-delay product: to begin with, and the least.
pub(super) const GAIN: f64 = 2.0;
const GAIN_MIN: f64 = 1.25;
/// The multiple where segments are lost: the path and its queue hold up to two, and for two more
/// round trips of a full queue nothing completes while TCP retransmits. With less, TCP runs out of
/// data, and the burst of completions that follows makes a burst of requests that overflows the
/// queue again.
const GAIN_LOST: f64 = 4.0;
/// The extra for each connection where segments are lost: one that waits for a
/// retransmission timer, for many round trips, holds this back from the others.
const REPAIRED: f64 = (1u64 << 20) as f64;
/// Rounds of a full path that are averaged for the rate it carries; the least time in seconds
/// (where segments are lost, the rate rises and falls); and the time that suffices in any case:
/// CUBIC's period between losses on a path that holds a thousand segments.
const CARRIED: usize = 256;
const CARRIED_MIN: f64 = 2.0;
const CARRIED_MIN_LOST: f64 = 6.0;
const CARRIED_MAX: f64 = 10.0;
/// Measuring continues while the two halves of that time differ by more; a round that differs
/// by more belongs to another path.
const EVEN: f64 = 0.04;
const ANOTHER: f64 = 0.5;
/// A rate that is this much above the best one is growth.
const GROWTH: f64 = 1.125;
/// Rounds without growth after which the path counts as full: a change shows after a round trip and
/// the queue.
const STALLED: u32 = 4;
/// Rounds over which the rate is taken: longer than TCP takes to repair a
/// loss. Nothing is completed meanwhile, and all of it at once afterwards, so
/// the rate of a single round says little.
const MEMORY: usize = 8;
/// Rounds of the long average.
const AVERAGE: f64 = 16.0;
/// Rounds of the longer average.
const USUAL: f64 = 64.0;
/// The rate has fallen if it is below this share of the usual rate.
const FALLEN: f64 = 0.8;
/// Rounds without a loss before less is tried, at first; after each time that
/// it was wrong, so many times as many, up to the last.
const LET_GO_AFTER: u32 = 8;
const LET_GO_BACK_OFF: u32 = 8;
const LET_GO_AFTER_LOSS: u32 = 32;
const LET_GO_MAX: u32 = 2048;
/// Rounds after which it is judged.
const LET_GO_JUDGE: u32 = 16;
/// Rounds for which a loss is remembered when connections are added.
const LOSS_REMEMBERED: u32 = 64;
/// Bytes in flight that are more than this multiple of the product stand
/// somewhere.
const STANDING: f64 = 2.5;
/// Rate that letting go may cost: what noise does. What costs more than the
/// second is over at once.
const COST: f64 = 0.97;
const COST_MAX: f64 = 0.9;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TuningPhase {
    /// Doubling while the rate grows.
    Grow {
        stalled: u32,
    },
    Hold,
}

/// State of a direction.
#[derive(Clone, Debug)]
pub(super) struct DirectionState {
    pub(super) phase: TuningPhase,
    pub(super) in_flight: f64,
    pub(super) gain: f64,
    /// Rates of the last rounds that count.
    rates: [f64; MEMORY],
    at: usize,
    /// How many there ever were.
    pub(super) known: usize,
    /// The best of a single round since growing began.
    peak: f64,
    /// The rate of completions, on a long average: a lower bound of what the path carries.
    pub(super) average: f64,
    /// The same on a longer average: the rate before it fell.
    usual: f64,
    /// Rounds since the last experiment with the gain.
    since: u32,
    wait: u32,
    /// Average rate before the last step down, if it is to be judged.
    pub(super) before: Option<f64>,
    /// Rounds for which a loss is remembered.
    pub(super) lost: u32,
    /// I/O had started again in the last round.
    begun: bool,
    /// Seconds in which nothing completed, and whether segments were lost in them: they are added
    /// to the next completions.
    waited: f64,
    lost_waiting: bool,
    /// Bytes and seconds of the rounds in which the path was full.
    full: VecDeque<(f64, f64)>,
}

impl DirectionState {
    pub(super) fn new() -> DirectionState {
        DirectionState {
            phase: TuningPhase::Grow { stalled: 0 },
            in_flight: (2 * FLOOR) as f64,
            gain: GAIN,
            rates: [0.0; MEMORY],
            at: 0,
            known: 0,
            peak: 0.0,
            average: 0.0,
            usual: 0.0,
            since: 0,
            wait: LET_GO_AFTER,
            before: None,
            lost: 0,
            begun: false,
            waited: 0.0,
            lost_waiting: false,
            full: VecDeque::new(),
        }
    }

    /// Bytes a second over all the time for which the path has been full, as far as that is
    /// remembered; at first, those of the last rounds.
    pub(super) fn carried(&self) -> f64 {
        let (bytes, seconds) = sum(self.full.iter());
        if self.full.len() < MEMORY || seconds < CARRIED_MIN / 4.0 { self.rate() } else { bytes / seconds }
    }

    /// Whether that says what the path carries: it is the same in both halves of the time, or
    /// there will be no more of it.
    pub(super) fn is_even(&self) -> bool {
        let half = self.full.len() / 2;
        let (first, second) = (sum(self.full.iter().take(half)), sum(self.full.iter().skip(half)));
        let (a, b) = (first.0 / first.1.max(1e-9), second.0 / second.1.max(1e-9));
        let least = if self.lost > 0 { CARRIED_MIN_LOST } else { CARRIED_MIN };
        let enough = first.1 + second.1 >= least && self.full.len() >= 2 * MEMORY;
        let all = self.full.len() >= CARRIED || first.1 + second.1 >= CARRIED_MAX;
        all || (enough && (a - b).abs() <= EVEN * a.max(b))
    }

    /// Notes a round in which the path was full.
    fn note(&mut self, bytes: f64, seconds: f64) {
        // Several rounds distinguish a change of the path from a single bad round.
        let (carried, rate) = (self.carried(), self.rate());
        if self.full.len() >= MEMORY && (rate - carried).abs() > ANOTHER * carried {
            self.full.clear();
        }
        if self.full.len() == CARRIED {
            self.full.pop_front();
        }
        self.full.push_back((bytes, seconds));
    }

    /// What the path carries: the average of the last rounds.
    pub(super) fn rate(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.known.clamp(1, MEMORY) as f64
    }

    /// What the path carried at its best lately. Of single rounds the second
    /// best: one may have brought what others were late with.
    pub(super) fn best(&self) -> f64 {
        let mut rates = self.rates;
        rates.sort_by(f64::total_cmp);
        rates[if self.known < 2 { MEMORY - 1 } else { MEMORY - 2 }]
    }

    /// Looks for the end of the path again.
    pub(super) fn grow_again(&mut self) {
        self.phase = TuningPhase::Grow { stalled: 0 };
        self.peak = self.rate();
        self.full.clear();
    }

    /// What fills a path of this product with so many connections.
    fn hold(&self, product: f64, connections: u16) -> f64 {
        let repairing = if self.lost > 0 { f64::from(connections) * REPAIRED } else { 0.0 };
        self.gain * product + (EXTRA * product).sqrt().max(FLOOR as f64).max(repairing)
    }

    /// Records the rate of a round; returns whether the bytes in flight filled the path.
    fn take(&mut self, rate: f64, filled: bool) {
        if filled {
            self.average += (rate - self.average) / AVERAGE;
            self.usual += (self.average - self.usual) / USUAL;
        }
        if filled || rate > self.rate() {
            self.rates[self.at] = rate;
            self.at = (self.at + 1) % MEMORY;
            self.known += 1;
        }
    }

    /// Whether it brings clearly less than it did.
    pub(super) fn has_fallen(&self) -> bool {
        self.average < FALLEN * self.usual
    }

    /// There was no connection. What nothing came in was no time of the path.
    pub(super) fn handle_outage(&mut self) {
        (self.waited, self.lost_waiting) = (0.0, false);
    }

    /// Handles a round. While TCP is `resuming`, a lower rate is ignored.
    pub(super) fn handle(
        &mut self,
        took: f64,
        sample: &WaySample,
        rtt: f64,
        (queued, resuming): (bool, bool),
        connections: u16,
    ) {
        let bytes = sample.moved.unwrap_or(sample.completed);
        if bytes == 0 {
            // Before the first bytes, TCP begins slowly.
            if self.known > 0 {
                self.waited += took;
                self.lost_waiting |= sample.lost;
            }
            return;
        }
        let took = took + std::mem::take(&mut self.waited);
        let lost = sample.lost | std::mem::take(&mut self.lost_waiting);
        let rate = bytes as f64 / took;
        let could_fill = sample.in_flight as f64 >= 0.6 * self.in_flight;
        // After a pause of the user, between two files say, the path is empty: in the first round
        // trip only a higher rate is evidence.
        let paused = sample.begun | std::mem::replace(&mut self.begun, sample.begun);
        let paused = paused | resuming;
        let filled = could_fill && !paused;
        self.take(rate, filled);
        let product = self.rate() * rtt;
        self.lost = if lost { LOSS_REMEMBERED } else { self.lost.saturating_sub(1) };
        match self.phase {
            TuningPhase::Grow { .. } if could_fill && rate > GROWTH * self.peak => {
                self.phase = TuningPhase::Grow { stalled: 0 };
                self.peak = rate;
                let most = 4.0 * rate * rtt + 2.0 * FLOOR as f64;
                self.in_flight = (2.0 * self.in_flight).min(most).max(self.in_flight);
            }
            TuningPhase::Grow { stalled }
                if !paused && (could_fill || sample.in_flight as f64 >= self.hold(product, connections)) =>
            {
                self.phase = TuningPhase::Grow { stalled: stalled + 1 };
                if stalled + 1 >= STALLED {
                    self.phase = TuningPhase::Hold;
                    self.gain = if self.lost > 0 { GAIN_LOST } else { GAIN };
                    (self.since, self.wait, self.before) = (0, LET_GO_AFTER, None);
                }
            }
            TuningPhase::Grow { .. } => {}
            TuningPhase::Hold if filled => {
                // Data that the target requests by R2T stands in no queue, and arrives in bursts:
                // with less of it the path is idle in between.
                let stands = queued || self.in_flight > STANDING * product;
                self.choose_gain(stands && !sample.asked);
                self.note(bytes as f64, took);
            }
            TuningPhase::Hold => {}
        }
        let hold = self.hold(product, connections);
        match self.phase {
            TuningPhase::Grow { .. } => self.in_flight = self.in_flight.max(hold),
            TuningPhase::Hold => self.in_flight = hold,
        }
    }

    /// Holds more while segments are lost, and less where that would do as
    /// well.
    fn choose_gain(&mut self, queued: bool) {
        self.since += 1;
        let was_lean = self.gain <= GAIN_MIN;
        if self.lost == LOSS_REMEMBERED {
            self.before = None;
            if was_lean {
                self.wait = (LET_GO_BACK_OFF * self.wait).min(LET_GO_MAX);
            }
            (self.gain, self.since, self.wait) = (GAIN_LOST, 0, self.wait.max(LET_GO_AFTER_LOSS));
            return;
        }
        match self.before {
            Some(before) if self.since < LET_GO_JUDGE && self.rate() >= COST_MAX * before => {}
            Some(before) => {
                self.before = None;
                if self.rate() < COST * before {
                    self.gain = if self.lost > 0 { GAIN_LOST } else { GAIN };
                    (self.since, self.wait) = (0, (LET_GO_BACK_OFF * self.wait).min(LET_GO_MAX));
                }
            }
            // Other flows have started: a flow with less in flight than theirs would get a smaller
            // share.
            None if was_lean && self.has_fallen() => {
                (self.gain, self.since, self.wait) = (GAIN, 0, (LET_GO_BACK_OFF * self.wait).min(LET_GO_MAX));
            }
            None if queued && !was_lean && self.since >= self.wait => {
                (self.before, self.gain, self.since) = (Some(self.rate()), GAIN_MIN, 0);
            }
            None => {}
        }
    }
}

/// Bytes and seconds of rounds.
fn sum<'a>(rounds: impl Iterator<Item = &'a (f64, f64)>) -> (f64, f64) {
    rounds.fold((0.0, 0.0), |(bytes, seconds), round| (bytes + round.0, seconds + round.1))
}
