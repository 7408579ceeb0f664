//! How many connections a copy uses.
//!
//! One connection fills most paths, and each further one begins with a burst that may
//! overflow the path's queue, and takes a share from other flows. So a copy begins with
//! one, and tries more only while something other than the path limits them
//! ([`Limiter`], from the kernel's counters). They are kept if the rate of *content* rises
//! by more than the additional retransmissions. If the path is the limit, fewer are tried.
//!
//! Invariants:
//! - the number is between one and the most;
//! - one change at a time, judged by samples after its effect can show;
//! - after a try that does not help, the wait for the next one doubles, up to
//!   [`HOLD_MOST`].

use super::threads::CountChange;

/// Growth of the content rate that justifies a higher number, besides its additional
/// retransmissions; and the same with random losses, which make rates unsteady.
const GAIN: f64 = 0.05;
const GAIN_LOST: f64 = 0.10;
/// Growth that is accepted before the settling time is over.
const CONVINCING: f64 = 0.5;
/// Loss of rate, as a share of the best, up to which a lower number is kept.
const LOSS: f64 = 0.03;
/// Decay of the best rate for each sample.
const FORGET: f64 = 0.9998;
/// Factor of the next try.
const TIMES: usize = 2;
/// Random losses leave each connection a small fixed rate, so all connections are tried at once, and as
/// many are kept as carry the rate that they reach, with this reserve; all of them unless far fewer do, since
/// the rate of a few connections is unsteady.
const RESERVE: f64 = 1.25;
const FAR_FEWER: usize = 2;
/// Samples in which the connections have to be the limit before more are tried.
const SURE: u32 = 3;
/// Samples that a rate is averaged over.
const MEASURED: u32 = 4;
/// Samples between two tries: at first, and at most.
const HOLD: u32 = 8;
const HOLD_MOST: u32 = 256;

/// What limits the rate of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limiter {
    /// The path: its queue fills, or the congestion control has measured its rate.
    Path,
    /// Random losses: segments are lost without a queue.
    Loss,
    /// A socket buffer, here or at the peer.
    Buffer,
    /// Their congestion windows, which grow slowly on a long path.
    Window,
}

impl Limiter {
    fn why(self) -> &'static str {
        match self {
            Limiter::Path => "the path is full",
            Limiter::Loss => "segments are lost without a queue, which slows each connection down",
            Limiter::Buffer => "socket buffers limit each connection",
            Limiter::Window => "the path does not queue: each connection's window still limits it",
        }
    }
}

/// Measurements since the sample before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamSample {
    /// Bytes of content a second.
    pub(crate) rate: f64,
    /// Whether content waits to be sent.
    pub(crate) waits: bool,
    /// What limits the connections.
    pub(crate) limiter: Limiter,
    /// Share of retransmissions in the bytes sent.
    pub(crate) retransmitted: f64,
}

/// Running means of rate and retransmissions.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    rate: f64,
    retransmitted: f64,
    samples: u32,
}

impl Mean {
    fn add(self, sample: StreamSample) -> Mean {
        let samples = self.samples + 1;
        let step = |mean: f64, value: f64| mean + (value - mean) / f64::from(samples);
        Mean {
            rate: step(self.rate, sample.rate),
            retransmitted: step(self.retransmitted, sample.retransmitted),
            samples,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum StreamsPhase {
    /// Keep the number for this many more samples.
    Hold(u32),
    /// Measure the rate before a change, while `limiter` holds.
    Before { mean: Mean, limiter: Limiter },
    /// The number was changed; the effect shows after `left` more samples.
    Settle { from: usize, before: Mean, limiter: Limiter, left: u32 },
    /// Measure the rate after the change.
    Try { from: usize, before: Mean, limiter: Limiter, mean: Mean },
}

/// Tuner of the number of connections.
#[derive(Debug)]
pub(crate) struct ConnectionTuner {
    most: usize,
    now: usize,
    /// Samples until a change shows.
    settle: u32,
    hold: u32,
    best: f64,
    /// The last try did not help: the next step is smaller.
    failed: bool,
    state: StreamsPhase,
}

impl ConnectionTuner {
    /// Begins with `start` of at most `most`; a change shows after `settle` samples.
    pub(crate) fn new(start: usize, most: usize, settle: u32) -> ConnectionTuner {
        let most = most.max(1);
        let state = StreamsPhase::Hold(1 + settle);
        ConnectionTuner {
            most,
            now: start.clamp(1, most),
            settle,
            hold: HOLD,
            best: 0.0,
            failed: false,
            state,
        }
    }

    /// Number of connections in use.
    #[cfg(test)]
    pub(crate) fn now(&self) -> usize {
        self.now
    }

    /// The number that was kept last: not one that is being tried.
    pub(crate) fn kept(&self) -> usize {
        match self.state {
            StreamsPhase::Settle { from, .. } | StreamsPhase::Try { from, .. } => from,
            StreamsPhase::Hold(_) | StreamsPhase::Before { .. } => self.now,
        }
    }

    /// Takes a sample; returns a change to make.
    pub(crate) fn sample(&mut self, sample: StreamSample) -> Option<CountChange> {
        self.best *= FORGET;
        match self.state {
            StreamsPhase::Hold(left) if left > 0 => self.state = StreamsPhase::Hold(left - 1),
            // The rate says nothing about connections if other stages limit it.
            StreamsPhase::Hold(_) | StreamsPhase::Before { .. } if !sample.waits => {
                self.state = StreamsPhase::Hold(0)
            }
            StreamsPhase::Hold(_) => return self.before(Mean::default(), sample),
            StreamsPhase::Before { mean, limiter } if limiter == sample.limiter => {
                return self.before(mean, sample);
            }
            StreamsPhase::Before { .. } => self.state = StreamsPhase::Hold(0),
            StreamsPhase::Settle { from, before, limiter, left } => {
                // How many are needed of all is known only when all carry what they can.
                let is_of_all = limiter == Limiter::Loss && self.now == self.most;
                let convinces =
                    self.now > from && !is_of_all && sample.rate > (1.0 + CONVINCING) * before.rate;
                self.state = match left {
                    0 => StreamsPhase::Try { from, before, limiter, mean: Mean::default() },
                    _ if convinces && left <= self.settle / 2 => {
                        self.keep();
                        return None;
                    }
                    left => StreamsPhase::Settle { from, before, limiter, left: left - 1 },
                };
            }
            StreamsPhase::Try { from, before, limiter, mean } => {
                return self.tried(from, before, limiter, mean.add(sample), sample.waits);
            }
        }
        None
    }

    fn before(&mut self, mean: Mean, sample: StreamSample) -> Option<CountChange> {
        let (mean, limiter) = (mean.add(sample), sample.limiter);
        if mean.samples < MEASURED.max(SURE) {
            self.state = StreamsPhase::Before { mean, limiter };
            return None;
        }
        self.best = self.best.max(mean.rate);
        let from = self.now;
        let to = match limiter {
            Limiter::Path => from - from.div_ceil(4).min(from - 1),
            // A slow start that overflows a short queue loses segments once, before these samples.
            Limiter::Loss if !self.failed && mean.retransmitted > 0.0 => self.most,
            _ => (TIMES * from).min(self.most),
        };
        if to == from {
            self.state = StreamsPhase::Hold(HOLD);
            return None;
        }
        self.set(to);
        self.state = StreamsPhase::Settle { from, before: mean, limiter, left: self.settle };
        Some(CountChange { from, to, why: format!("{}: {to} are tried", limiter.why()) })
    }

    fn tried(
        &mut self,
        from: usize,
        before: Mean,
        limiter: Limiter,
        mean: Mean,
        waits: bool,
    ) -> Option<CountChange> {
        if mean.samples < MEASURED && waits {
            self.state = StreamsPhase::Try { from, before, limiter, mean };
            return None;
        }
        let change = mean.rate / before.rate.max(f64::MIN_POSITIVE) - 1.0;
        let again = (mean.retransmitted - before.retransmitted).max(0.0);
        let kept = match limiter {
            Limiter::Path => mean.rate >= (1.0 - LOSS) * self.best,
            // All available content is sent, so the number is sufficient.
            _ if !waits && change >= -LOSS => true,
            Limiter::Loss => change >= GAIN_LOST + again,
            Limiter::Buffer | Limiter::Window => change >= GAIN + again,
        };
        if kept {
            self.keep();
            return match limiter {
                Limiter::Loss => self.reduce(from, before.rate, mean.rate),
                _ => None,
            };
        }
        let (to, tried) = (from, self.now);
        self.set(to);
        self.failed = true;
        self.hold = (2 * self.hold).min(HOLD_MOST);
        self.state = StreamsPhase::Hold(self.hold + self.settle);
        let percent = change * 100.0;
        let why = format!("the rate changed by {percent:+.0} % with {tried}: back to {to}");
        Some(CountChange { from: tried, to, why })
    }

    fn set(&mut self, number: usize) {
        assert!((1..=self.most).contains(&number), "{number} connections, of at most {}", self.most);
        self.now = number;
    }

    fn keep(&mut self) {
        self.hold = HOLD;
        self.failed = false;
        self.state = StreamsPhase::Hold(0);
    }

    /// Gives up those that `rate` does not need: `from` connections carried `before`.
    fn reduce(&mut self, from: usize, before: f64, rate: f64) -> Option<CountChange> {
        let each = (before / from as f64).max(f64::MIN_POSITIVE);
        let needed = (RESERVE * rate / each).ceil() as usize;
        let (tried, to) = (self.now, needed.max(from + 1));
        if FAR_FEWER * to > tried {
            return None;
        }
        self.set(to);
        self.state = StreamsPhase::Hold(self.settle);
        let why = format!("{tried} carry what {to} can");
        Some(CountChange { from: tried, to, why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A simulated path that connections share, in samples of 0.2 s.
    #[derive(Clone, Copy)]
    struct SimulatedPath {
        /// The rate of the path, and of one connection alone, in MB/s.
        carries: f64,
        each: f64,
        /// What limits connections as long as they do not fill it.
        limiter: Limiter,
        /// The share that is retransmitted, for each connection beyond those that fill it.
        overflow: f64,
        /// Samples until a new connection carries all that it can.
        ramp: u32,
    }

    impl SimulatedPath {
        fn needed(&self) -> f64 {
            self.carries / self.each
        }

        /// Runs so many samples: the numbers that were used, and the mean rate of the last half.
        fn run(&self, streams: &mut ConnectionTuner, samples: u32) -> (Vec<usize>, f64) {
            let (mut numbers, mut late) = (Vec::new(), 0.0);
            let (mut shown, mut step, mut before) = (0.0f64, 0.0, 0.0);
            for n in 0..samples {
                let now = streams.now() as f64;
                // New ones begin together.
                if now != before {
                    (step, before) = ((now - shown) / f64::from(self.ramp), now);
                }
                shown = (shown + step.max(0.0)).min(now);
                let noise = 1.0 + 0.01 * f64::from(n * 7 % 5) - 0.02;
                let rate = 1e6 * (self.each * shown).min(self.carries) * noise;
                let full = now >= self.needed();
                let limiter = if full { Limiter::Path } else { self.limiter };
                let random = if self.limiter == Limiter::Loss { 0.005 } else { 0.0 };
                let retransmitted = random + self.overflow * (now - self.needed().max(1.0)).max(0.0);
                streams.sample(StreamSample { rate, waits: true, limiter, retransmitted });
                numbers.push(streams.now());
                late += if n >= samples / 2 { rate / f64::from(samples - samples / 2) } else { 0.0 };
            }
            (numbers, late / (1e6 * self.carries))
        }
    }

    const PATH: SimulatedPath =
        SimulatedPath { carries: 100.0, each: 100.0, limiter: Limiter::Window, overflow: 0.03, ramp: 5 };

    #[test]
    fn a_path_that_one_connection_fills_keeps_one() {
        let (numbers, share) = PATH.run(&mut ConnectionTuner::new(1, 16, 5), 3000);
        assert!(numbers.iter().all(|&n| n == 1) && share > 0.99, "{share}");
    }

    #[test]
    fn limits_of_single_connections_are_overcome_by_more() {
        for limiter in [Limiter::Loss, Limiter::Buffer, Limiter::Window] {
            for needed in [2.0, 3.0, 5.0, 12.0] {
                let path = SimulatedPath { each: 100.0 / needed, limiter, ..PATH };
                let (numbers, share) = path.run(&mut ConnectionTuner::new(1, 16, 5), 1000);
                assert!(share > 0.95, "{limiter:?}, {needed} are needed: {share}");
                let last = numbers[numbers.len() - 1] as f64;
                assert!(last >= needed && last <= 4.0 * needed.max(2.0), "{limiter:?}, {needed}: {last}");
                let found = numbers.iter().position(|&n| n as f64 >= needed);
                assert!(found.is_some_and(|at| at < 80), "{limiter:?}, {needed}: after {found:?}");
            }
        }
    }

    /// Four seconds sooner than by doubling their number.
    #[test]
    fn random_losses_are_overcome_at_once_and_by_no_more_than_that_takes() {
        for needed in [2.0, 5.0, 12.0, 25.0] {
            let path = SimulatedPath { each: 100.0 / needed, limiter: Limiter::Loss, ..PATH };
            let (numbers, _) = path.run(&mut ConnectionTuner::new(1, 32, 5), 40);
            let all = numbers.iter().position(|&n| n == 32).expect("all are tried");
            assert!(all <= 10, "{needed}: after {all} samples");
            let last = numbers[39] as f64;
            assert!((needed..=1.5 * needed + 1.0).contains(&last), "{needed}: {last} of {numbers:?}");
        }
    }

    #[test]
    fn connections_that_only_add_retransmissions_are_given_up() {
        // A shallow queue: two take 4 % more between them, and send 4 % twice.
        let mut streams = ConnectionTuner::new(1, 16, 5);
        let mut used = [0; 17];
        for _ in 0..2000 {
            let more = streams.now() > 1;
            let (rate, retransmitted) = if more { (106e6, 0.04) } else { (100e6, 0.005) };
            streams.sample(StreamSample { rate, waits: true, limiter: Limiter::Window, retransmitted });
            used[streams.now()] += 1;
        }
        assert_eq!(streams.now(), 1);
        assert!(used[1] > 1800 && used[1] < 2000, "{used:?}");
    }

    #[test]
    fn connections_that_no_longer_help_are_given_up() {
        let mut streams = ConnectionTuner::new(1, 16, 5);
        let path = SimulatedPath { each: 10.0, limiter: Limiter::Loss, ..PATH };
        assert!(path.run(&mut streams, 400).1 > 0.95);
        assert!(streams.now() >= 10);
        // The line is clean now.
        let (_, share) = PATH.run(&mut streams, 3000);
        assert!(streams.now() <= 2 && share > 0.97, "{} {share}", streams.now());
    }

    #[test]
    fn without_waiting_content_nothing_is_tried() {
        let mut streams = ConnectionTuner::new(1, 16, 1);
        for _ in 0..100 {
            let sample =
                StreamSample { rate: 1.0, waits: false, limiter: Limiter::Buffer, retransmitted: 0.0 };
            assert_eq!(streams.sample(sample), None);
        }
    }

    #[test]
    fn changes_carry_their_reason() {
        let mut streams = ConnectionTuner::new(1, 16, 0);
        let sample = StreamSample { rate: 1.0, waits: true, limiter: Limiter::Buffer, retransmitted: 0.0 };
        let moves: Vec<CountChange> = (0..20).filter_map(|_| streams.sample(sample)).collect();
        assert_eq!((moves[0].from, moves[0].to), (1, 2));
        assert!(moves[0].why.starts_with("socket buffers limit each connection"), "{}", moves[0].why);
        assert_eq!((moves[1].from, moves[1].to), (2, 1));
        assert!(moves[1].why.contains("+0 % with 2"), "{}", moves[1].why);
    }
}
