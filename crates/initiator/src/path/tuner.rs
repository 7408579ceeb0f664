//! What to keep in flight on a path, decided from what was measured on it.
//!
//! The bytes in flight that fill a path are its bandwidth-delay product: the
//! rate at which it delivers times its round trip. Neither is known before
//! they have been exceeded, so the tuner first doubles what is in flight while
//! the rate still grows, and then *holds* a multiple of the product: more
//! while segments are lost, so that the sender always has something to send
//! while TCP repairs (nothing is completed in that time), and little more than
//! the product itself where nothing is lost and the bytes would only stand in
//! queues, for as long as that costs no rate.
//!
//! To the multiple an extra is added that grows as the square root of the
//! product: of several that share a path, whoever has less gets relatively
//! more of it, and so they come to the same share.
//!
//! Order of calls: [`Tuner::new`] with what is known from connecting, then
//! [`Tuner::handle_sample`] at the end of every [`Tuner::round`]; [`Tuner::plan`]
//! at any time.
//!
//! Invariants:
//! - a rate counts as what the path can carry only if what was in flight
//!   could have filled it, or if it is more than was thought;
//! - the plan is within its [`Limits`] at all times;
//! - one experiment at a time: while connections are being judged, or the
//!   round trip is, nothing else is tried.

use super::sockets::{Limit, Sockets};
use std::time::Duration;

/// The least bytes in flight, and the least extra: some I/Os of any size, so
/// that storage and processors on both sides are kept busy on short paths.
pub const FLOOR: u64 = 2 << 20;
/// The extra is √(this × product): 4 MiB make it 40 % of 25 MB (2 Gb/s at
/// 100 ms) and 18 % of 125 MB (10 Gb/s at 100 ms).
const EXTRA: f64 = (4u64 << 20) as f64;
/// Multiples of the bandwidth-delay product: to begin with, and the least.
const GAIN: f64 = 2.0;
const GAIN_MIN: f64 = 1.25;
/// The multiple where segments are lost: the path and its queue hold up to
/// two, and for two more round trips of a full queue nothing is completed
/// while TCP repairs. With less TCP runs dry, and what is completed all at
/// once is asked for all at once and overflows the queue again.
const GAIN_LOST: f64 = 4.0;
/// A rate that is this much above the best one is growth.
const GROWTH: f64 = 1.125;
/// Rounds without growth after which the path is taken for full: what is
/// changed shows after a round trip and the queue.
const STALLED: u32 = 4;
/// Rounds over which the rate is taken: longer than TCP takes to repair a
/// loss. Nothing is completed meanwhile, and all of it at once afterwards, so
/// the rate of a single round says little.
const MEMORY: usize = 8;
/// Rounds of the long average.
const AVERAGE: f64 = 16.0;
/// Rounds of the longer average.
const USUAL: f64 = 64.0;
/// The rate has fallen if it is below this share of what is usual.
const FALLEN: f64 = 0.8;
/// Rounds without a loss before less is tried, at first; after each time that
/// it was wrong, four times as many, up to the last.
const LET_GO_AFTER: u32 = 8;
const LET_GO_AFTER_LOSS: u32 = 32;
const LET_GO_MAX: u32 = 2048;
/// Rounds after which it is judged.
const LET_GO_JUDGE: u32 = 16;
/// Rounds for which a loss is remembered when connections are added.
const LOSS_REMEMBERED: u32 = 64;
/// Bytes in flight that are more than this multiple of the product stand
/// somewhere.
const STANDING: f64 = 2.5;
/// Rate that letting go may cost: what noise does.
const COST: f64 = 0.97;
/// Rounds in which more connections have to show their use: they begin slowly.
const JUDGE_AFTER: u32 = 20;
/// Rounds for which connections that were of no use are not tried again.
const NO_USE: u32 = 2048;
/// Growth of the rate that makes connections worth having.
const USE: f64 = 1.1;
/// Rounds in which the network must not have queued before a connection is
/// taken for what limits: after a loss, TCP drains what it has filled.
const HELD_UP_AFTER: u32 = 16;
/// A rate is steady if its average is this share of its best: only then is
/// something a limit, and not on its way.
const STEADY: f64 = 0.9;
/// The network has been reached if the round trip is above this multiple of
/// the least one and this time; it is remembered for so many rounds.
const TOUCHED: f64 = 1.05;
const TOUCHED_MIN: f64 = 0.001;
const CEILING_REMEMBERED: u32 = 1024;
/// A path is full at this share of where it was seen to queue.
const NEAR_CEILING: f64 = 0.85;
/// Products below this are within what every kernel's socket buffers hold.
const SOCKET_MIN: f64 = (256u64 << 10) as f64;
/// The network queues if the round trip is above this multiple of the least
/// one and this time.
const QUEUED: f64 = 1.25;
const QUEUED_MIN: f64 = 0.002;
/// A round trip this much above the level that was last looked into makes
/// the least one doubtful.
const DOUBT: f64 = 1.3;
/// The least round trip was too low if draining the path leaves this share of
/// what was seen before: the rest of the queues would be others'.
const UNMOVED: f64 = 0.93;
/// A round trip below this share of the least one is another path.
const SHORTER: f64 = 0.9;
/// Bytes in flight at least while the path is drained.
const DRAINED: u64 = 64 << 10;
/// Rounds for which the doubt has to last, and for which the path is drained
/// to find out.
const DOUBT_ROUNDS: u32 = 6;
const DRAIN_ROUNDS: u32 = 3;
const REFILL_ROUNDS: u32 = 4;
/// A round is one round trip within these bounds: long enough to count bytes
/// in, short enough to follow.
const ROUND_MIN: Duration = Duration::from_millis(50);
const ROUND_MAX: Duration = Duration::from_secs(1);

/// The two directions of a path, as an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the far side to here.
    Read,
    /// From here to the far side.
    Write,
}

/// What a plan must keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in flight at most, a direction.
    pub in_flight: u64,
    /// Connections at most.
    pub connections: u16,
}

/// What was measured in a round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// When the round ended, from any fixed moment.
    pub now: Duration,
    /// Each direction, by [`Way`].
    pub ways: [WaySample; 2],
    /// Smoothed round trip of the connections, the least one of them.
    pub rtt: Option<Duration>,
    /// The least time that a command took, from submission to completion.
    pub latency_min: Option<Duration>,
    /// What the sockets say.
    pub sockets: Sockets,
    /// Connections in use.
    pub connections: u16,
}

/// One direction in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaySample {
    /// Bytes of commands that were completed.
    pub completed: u64,
    /// Bytes in flight, on average over completions.
    pub in_flight: u64,
    /// Segments were lost (or came in another order).
    pub lost: bool,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Bytes to keep in flight, by [`Way`].
    pub in_flight: [u64; 2],
    /// Connections to spread them over.
    pub connections: u16,
    /// Bytes per second that each direction was seen to carry, by [`Way`]; 0
    /// if it was not used.
    pub rate: [f64; 2],
    /// The least round trip.
    pub rtt: Duration,
    /// Whether each direction is at its end: more in flight brings no more.
    pub full: [bool; 2],
    /// What kept one connection from filling the path.
    pub limit: Option<Limit>,
    /// Nothing is being tried at the moment: longer measuring changes it only
    /// if the path changes.
    pub settled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Doubling while the rate grows.
    Grow {
        stalled: u32,
    },
    Hold,
}

/// State of a direction.
#[derive(Clone, Debug)]
struct Direction {
    phase: Phase,
    in_flight: f64,
    gain: f64,
    /// Rates of the last rounds that count.
    rates: [f64; MEMORY],
    at: usize,
    /// How many there ever were.
    known: usize,
    /// The best of a single round since growing began.
    peak: f64,
    /// What was completed, on a long average: the path carries that at least,
    /// whatever single rounds say.
    average: f64,
    /// The average on a longer average: what it was before it fell.
    usual: f64,
    /// Rounds since the last experiment with the gain.
    since: u32,
    wait: u32,
    /// Average rate before the last step down, if it is to be judged.
    before: Option<f64>,
    /// Rounds for which a loss is remembered.
    lost: u32,
}

impl Direction {
    fn new() -> Direction {
        Direction {
            phase: Phase::Grow { stalled: 0 },
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
        }
    }

    /// What the path carries: the average of the last rounds.
    fn rate(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.known.clamp(1, MEMORY) as f64
    }

    /// Looks for the end of the path again.
    fn grow_again(&mut self) {
        self.phase = Phase::Grow { stalled: 0 };
        self.peak = self.rate();
    }

    /// What fills a path of this product.
    fn hold(&self, product: f64) -> f64 {
        self.gain * product + (EXTRA * product).sqrt().max(FLOOR as f64)
    }

    /// Takes the rate of a round; whether what was in flight could have filled
    /// the path.
    fn take(&mut self, rate: f64, in_flight: f64) -> bool {
        let filled = in_flight >= 0.6 * self.in_flight;
        if filled {
            self.average += (rate - self.average) / AVERAGE;
            self.usual += (self.average - self.usual) / USUAL;
        }
        if filled || rate > self.rate() {
            self.rates[self.at] = rate;
            self.at = (self.at + 1) % MEMORY;
            self.known += 1;
        }
        filled
    }

    /// Whether it brings clearly less than it did.
    fn has_fallen(&self) -> bool {
        self.average < FALLEN * self.usual
    }

    fn handle(&mut self, took: f64, sample: &WaySample, rtt: f64, queued: bool) {
        // Nothing has come yet: TCP begins slowly.
        if sample.completed == 0 && self.known == 0 {
            return;
        }
        let rate = sample.completed as f64 / took;
        let filled = self.take(rate, sample.in_flight as f64);
        let product = self.rate() * rtt;
        self.lost = if sample.lost { LOSS_REMEMBERED } else { self.lost.saturating_sub(1) };
        match self.phase {
            Phase::Grow { .. } if filled && rate > GROWTH * self.peak => {
                self.phase = Phase::Grow { stalled: 0 };
                self.peak = rate;
                let most = 4.0 * rate * rtt + 2.0 * FLOOR as f64;
                self.in_flight = (2.0 * self.in_flight).min(most).max(self.in_flight);
            }
            Phase::Grow { stalled } if filled || sample.in_flight as f64 >= self.hold(product) => {
                self.phase = Phase::Grow { stalled: stalled + 1 };
                if stalled + 1 >= STALLED {
                    self.phase = Phase::Hold;
                    self.gain = if self.lost > 0 { GAIN_LOST } else { GAIN };
                    (self.since, self.wait, self.before) = (0, LET_GO_AFTER, None);
                }
            }
            Phase::Grow { .. } => {}
            Phase::Hold if filled => self.choose_gain(queued || self.in_flight > STANDING * product),
            Phase::Hold => {}
        }
        let hold = self.hold(product);
        match self.phase {
            Phase::Grow { .. } => self.in_flight = self.in_flight.max(hold),
            Phase::Hold => self.in_flight = hold,
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
                self.wait = (4 * self.wait).min(LET_GO_MAX);
            }
            (self.gain, self.since, self.wait) = (GAIN_LOST, 0, self.wait.max(LET_GO_AFTER_LOSS));
            return;
        }
        match self.before {
            Some(_) if self.since < LET_GO_JUDGE => {}
            Some(before) => {
                self.before = None;
                if self.rate() < COST * before {
                    self.gain = if self.lost > 0 { GAIN_LOST } else { GAIN };
                    (self.since, self.wait) = (0, (4 * self.wait).min(LET_GO_MAX));
                }
            }
            // Others have come: who holds less than they would be left with less.
            None if was_lean && self.has_fallen() => {
                (self.gain, self.since, self.wait) = (GAIN, 0, (4 * self.wait).min(LET_GO_MAX));
            }
            None if queued && !was_lean && self.since >= self.wait => {
                (self.before, self.gain, self.since) = (Some(self.rate()), GAIN_MIN, 0);
            }
            None => {}
        }
    }
}

/// What connections are being tried for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trial {
    /// Nothing; not before this many rounds.
    None { wait: u32 },
    /// From this many connections, at this rate, for so many rounds yet,
    /// against this.
    More { from: u16, rate: f64, left: u32, against: Limit },
}

/// Whether the least round trip still is what it was.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Doubt {
    None,
    /// The round trip was too long for so many rounds.
    Growing(u32),
    /// Draining for so many rounds yet; the least seen meanwhile.
    Drain {
        left: u32,
        least: f64,
    },
    /// Filling up again for so many rounds yet: all at once would overflow.
    Refill(u32),
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Tuner {
    limits: Limits,
    ways: [Direction; 2],
    /// The least round trip in seconds.
    rtt: f64,
    /// The round trip that was last found to be queues.
    explained: f64,
    doubt: Doubt,
    connections: u16,
    trial: Trial,
    limit: Option<Limit>,
    /// Bytes per second at which the network was seen to queue, all in all,
    /// and for how many rounds that is remembered.
    ceiling: (f64, u32),
    /// Rounds since the network last queued.
    unqueued: u32,
    last: Duration,
}

impl Tuner {
    /// A tuner for a path of this round trip, at this moment.
    pub fn new(limits: Limits, rtt: Duration, now: Duration) -> Tuner {
        let rtt = rtt.as_secs_f64().max(1e-6);
        Tuner {
            limits,
            ways: [Direction::new(), Direction::new()],
            rtt,
            explained: rtt,
            doubt: Doubt::None,
            connections: 1,
            trial: Trial::None { wait: 0 },
            limit: None,
            ceiling: (0.0, 0),
            unqueued: 0,
            last: now,
        }
    }

    /// How long the next round is.
    pub fn round(&self) -> Duration {
        Duration::from_secs_f64(self.rtt).clamp(ROUND_MIN, ROUND_MAX)
    }

    /// There was no I/O until now: the round begins here.
    pub fn handle_idle(&mut self, now: Duration) {
        self.last = now;
    }

    /// Takes what a round has shown.
    pub fn handle_sample(&mut self, sample: &Sample) {
        let took = sample.now.saturating_sub(self.last).as_secs_f64();
        self.last = sample.now;
        // Nothing can be said of a time without I/O, or of no time.
        if took <= 0.0 || sample.ways.iter().all(|way| way.completed == 0 && way.in_flight == 0) {
            return;
        }
        let seen = [sample.rtt, sample.latency_min].into_iter().flatten().min();
        let seen = seen.map_or(self.rtt, |seen| seen.as_secs_f64()).max(1e-6);
        // A path that has become shorter may be shorter still: what is in
        // flight, right for the longer one, queues on it.
        let holds = self.ways.iter().any(|way| way.phase == Phase::Hold);
        if seen < SHORTER * self.rtt && holds && !matches!(self.doubt, Doubt::Drain { .. } | Doubt::Refill(_))
        {
            self.doubt = Doubt::Drain { left: DRAIN_ROUNDS, least: seen };
            self.explained = seen;
        }
        self.rtt = self.rtt.min(seen);
        let lost = sample.ways.iter().any(|way| way.lost);
        if self.look_at_round_trip(seen, lost) {
            return;
        }
        let network = sample.rtt.map_or(seen, |rtt| rtt.as_secs_f64());
        let queued = network > QUEUED * self.rtt + QUEUED_MIN;
        for (direction, way) in self.ways.iter_mut().zip(&sample.ways) {
            if way.completed > 0 || way.in_flight > 0 {
                direction.handle(took, way, self.rtt, queued);
            }
        }
        self.look_for_ceiling(network > TOUCHED * self.rtt + TOUCHED_MIN);
        self.unqueued = if queued { 0 } else { self.unqueued.saturating_add(1) };
        self.look_at_connections(sample);
    }

    /// Whether the path is being drained, so that nothing else can be judged.
    fn look_at_round_trip(&mut self, seen: f64, lost: bool) -> bool {
        // As long as the rate is what it was, what is in flight is enough.
        let fallen = self.ways.iter().any(Direction::has_fallen);
        let too_long = fallen && seen > DOUBT * self.explained + QUEUED_MIN;
        match self.doubt {
            Doubt::Drain { left: 0, least } => {
                self.doubt = Doubt::Refill(REFILL_ROUNDS);
                self.drained(least.min(seen));
                return true;
            }
            Doubt::Refill(left) => {
                self.doubt = if left > 0 { Doubt::Refill(left - 1) } else { Doubt::None };
                return true;
            }
            Doubt::Drain { left, least } => {
                self.doubt = Doubt::Drain { left: left - 1, least: least.min(seen) };
                return true;
            }
            // What overflows is a queue.
            Doubt::Growing(_) if lost => self.doubt = Doubt::None,
            Doubt::Growing(rounds) if too_long && rounds >= DOUBT_ROUNDS => {
                self.doubt = Doubt::Drain { left: DRAIN_ROUNDS, least: seen };
                self.explained = seen;
            }
            Doubt::Growing(rounds) if too_long => self.doubt = Doubt::Growing(rounds + 1),
            Doubt::None if too_long => self.doubt = Doubt::Growing(1),
            _ => {
                self.doubt = Doubt::None;
                let level = self.explained.min(seen.max(self.rtt));
                self.explained += (level - self.explained) / 8.0;
            }
        }
        false
    }

    /// The path was drained, and this was the least round trip meanwhile. If
    /// it is what it was before, then no queue made it so long.
    fn drained(&mut self, least: f64) {
        if least < UNMOVED * self.explained || least <= self.rtt {
            return;
        }
        (self.rtt, self.explained) = (least, least);
        for way in &mut self.ways {
            way.grow_again();
            way.gain = GAIN;
        }
    }

    /// Where the network begins to queue is where the path is full, however
    /// short the queue is the next moment.
    fn look_for_ceiling(&mut self, touched: bool) {
        let rate: f64 = self.ways.iter().map(Direction::rate).sum();
        let (seen, left) = self.ceiling;
        self.ceiling = match (touched, left) {
            (true, 0) => (rate, CEILING_REMEMBERED),
            (true, _) => (rate.max(seen), CEILING_REMEMBERED),
            (false, 0) => (0.0, 0),
            (false, left) => (seen, left - 1),
        };
    }

    /// More connections, where a connection and not the path is the limit.
    fn look_at_connections(&mut self, sample: &Sample) {
        let total: f64 = self.ways.iter().map(Direction::rate).sum();
        match self.trial {
            Trial::More { from, rate, left: 0, against } => {
                let useful = total >= USE * rate;
                if useful {
                    self.limit.get_or_insert(against);
                } else {
                    self.connections = from;
                }
                self.trial = Trial::None { wait: if useful { 0 } else { NO_USE } };
            }
            Trial::More { from, rate, left, against } => {
                // Only once they are there.
                let left = if sample.connections < self.connections { left } else { left - 1 };
                self.trial = Trial::More { from, rate, left, against };
            }
            Trial::None { wait } if wait > 0 => self.trial = Trial::None { wait: wait - 1 },
            Trial::None { .. } => {
                let Some(way) = self.held_up() else { return };
                let more = (2 * self.connections).min(self.limits.connections);
                if more <= self.connections {
                    return;
                }
                let product = self.ways[way as usize].rate() * self.rtt;
                let each = product / f64::from(self.connections.max(1));
                let lost = self.ways[way as usize].lost > 0;
                let against = sample.sockets.name(way, each as u64, lost);
                let from = self.connections;
                self.trial = Trial::More { from, rate: total, left: JUDGE_AFTER, against };
                self.connections = more;
                for direction in &mut self.ways {
                    direction.grow_again();
                }
            }
        }
    }

    /// A direction that is at its end although the network does not queue: the
    /// bytes in flight wait in the hosts.
    fn held_up(&self) -> Option<Way> {
        if self.is_full() {
            return None;
        }
        let held = |way: &Direction| {
            let product = way.rate() * self.rtt;
            let steady = way.phase == Phase::Hold && way.average > STEADY * way.rate();
            steady && product > SOCKET_MIN && self.unqueued >= HELD_UP_AFTER
        };
        [Way::Read, Way::Write].into_iter().find(|&way| held(&self.ways[way as usize]))
    }

    /// What to do now.
    pub fn plan(&self) -> Plan {
        let mut plan = self.settled();
        let share = match self.doubt {
            Doubt::Drain { .. } => 0.0,
            Doubt::Refill(left) => 1.0 - f64::from(left) / f64::from(REFILL_ROUNDS + 1),
            Doubt::None | Doubt::Growing(_) => return plan,
        };
        for (bytes, rate) in plan.in_flight.iter_mut().zip(plan.rate) {
            let (full, drained) = (*bytes as f64, (rate * self.rtt / 4.0).max(DRAINED as f64));
            *bytes = (drained + share * (full - drained).max(0.0)) as u64;
        }
        plan
    }

    /// The plan, but for what is done for a moment to find out more.
    pub fn settled(&self) -> Plan {
        let most = self.limits.in_flight.max(FLOOR);
        let in_flight = [0, 1].map(|way| (self.ways[way].in_flight as u64).clamp(FLOOR, most));
        Plan {
            in_flight,
            connections: self.connections.clamp(1, self.limits.connections.max(1)),
            rate: [0, 1].map(|way| self.ways[way].rate()),
            rtt: Duration::from_secs_f64(self.rtt),
            full: [0, 1].map(|way| self.ways[way].phase == Phase::Hold),
            limit: self.limit,
            settled: self.is_settled(),
        }
    }

    fn is_settled(&self) -> bool {
        let used = || self.ways.iter().filter(|way| way.known > 0);
        let judged = used().count() > 0 && used().all(|way| way.phase == Phase::Hold && way.before.is_none());
        let tried = match self.trial {
            Trial::More { .. } => false,
            Trial::None { wait } => wait > 0 || self.is_full() || self.connections >= self.limits.connections,
        };
        judged && tried && self.doubt == Doubt::None
    }

    /// Whether the network was seen to queue at about this rate.
    fn is_full(&self) -> bool {
        let total: f64 = self.ways.iter().map(Direction::rate).sum();
        self.ceiling.1 > 0 && total > NEAR_CEILING * self.ceiling.0
    }
}
