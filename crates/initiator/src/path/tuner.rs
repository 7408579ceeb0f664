//! Decides how much to keep in flight on a path, from measurements of it.
//!
//! The bytes in flight that fill a path are its bandwidth-delay product: the rate at which it
//! delivers times its round trip. Neither is known before they have been exceeded, so the tuner
//! first doubles the bytes in flight while the rate still grows, and then *holds* a multiple of the
//! product: more while segments are lost, so that the sender always has something to send while TCP
//! retransmits (nothing completes in that time); and little more than the product itself where
//! nothing is lost and more bytes would only wait in queues, for as long as that costs no rate.
//!
//! To the multiple an extra is added that grows as the square root of the product: of several users
//! of a path, the one with the smaller share gets relatively more of it, and so the shares
//! converge.
//!
//! Order of calls: [`Tuner::new`] with the measurements of connecting, then
//! [`Tuner::handle_sample`] at the end of every [`Tuner::round`]; [`Tuner::plan`] at any time.
//!
//! Invariants:
//! - a rate counts as the capacity of the path only if the bytes in flight could have filled it, or
//!   if it is higher than the capacity assumed so far;
//! - the plan is within its [`Limits`] at all times;
//! - one experiment at a time: while connections or the round trip are being tested, nothing else
//!   is tried.

use super::direction::{DirectionState, FLOOR, GAIN, TuningPhase};
use super::sockets::Limit;
use super::types::{IoDirection, Limits, PathPlan, Sample};
use std::time::Duration;

/// Rounds in which more connections have to show their use: they begin slowly.
const JUDGE_AFTER: u32 = 20;
/// After so many rounds already they have, with so many times the rate.
const CONVINCING_AFTER: u32 = 8;
const CONVINCING: f64 = 1.5;
/// Rounds for which connections that were of no use are not tried again: at
/// first, for they may have been compared with what TCP had in the beginning,
/// before its first loss; then four times as many each time, up to the last.
const NO_USE: u32 = 64;
const NO_USE_MAX: u32 = 2048;
/// Growth of the rate that makes connections worth having; and where loss is
/// taken for what limits, for it may be that of a queue too short to be seen,
/// whose senders only take from each other.
const USE: f64 = 1.05;
const USE_LOST: f64 = 1.15;
/// Growth that names loss as what limits one connection, though it is not worth more of them: a
/// queue of a tenth of the product costs one connection 6 %.
const NAMED: f64 = 1.08;
/// Connections that are tried against loss first. The gain of one depends so much on the time of
/// its last loss that two may not show their use.
const FIRST_LOST: u16 = 4;
/// Rounds in which the network must not have queued before a connection counts as the limit: after
/// a loss, TCP drains the queue that it has filled.
const HELD_UP_AFTER: u32 = 16;
/// A rate is steady if it and its average are within this share of each other:
/// only then is something a limit, and not on its way.
const STEADY: f64 = 0.9;
/// The network has been reached if the round trip is above this multiple of
/// the least one and this time for so many rounds (one may be an accident); it
/// is remembered for so many.
const TOUCHED: f64 = 1.05;
const TOUCHED_MIN: f64 = 0.0005;
const TOUCHED_ROUNDS: u32 = 5;
/// If segments are lost in that round, the queue overflows: a short one is full within
/// a fraction of a round trip.
const OVERFLOWS: u32 = 1;
/// On a path shorter than this, a round has many round trips and losses come every few rounds,
/// while the delay of one processor that was busy exceeds any queue: there the round trip has to
/// have been raised in so many of the last rounds with a loss.
const SHORT: f64 = 0.003;
const OVERFLOWS_SHORT: u32 = 2;
const LOSSES_SHORT: u32 = 4;
const CEILING_REMEMBERED: u32 = 1024;
/// A path is full at this share of where it was seen to queue, and of that on average: after
/// the loss that its own queue brings, TCP begins again at 0.7 of it.
const NEAR_CEILING: f64 = 0.85;
const NEAR_CEILING_MEAN: f64 = 0.9;
/// Products below this are within what every kernel's socket buffers hold.
const SOCKET_MIN: f64 = (256u64 << 10) as f64;
/// Round trip in seconds from which on losses can limit a smaller product: after a loss, CUBIC
/// regains about a segment in a round trip.
const LOSSY_MIN: f64 = 0.0003;
/// The network queues if the round trip is above this multiple of the least
/// one and this time.
const QUEUED: f64 = 1.25;
const QUEUED_MIN: f64 = 0.002;
/// A round trip this much above the level that was last looked into makes
/// the least one doubtful.
const DOUBT: f64 = 1.3;
/// The least round trip was too low if draining the path leaves this share of the earlier value:
/// the rest of the queues would belong to other flows.
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
/// Rounds after an outage in which TCP begins slowly: 14 doublings are from one
/// packet to 16,000 of them, and each may take two rounds.
const RESUMING: u32 = 28;
/// A round is one round trip within these bounds: long enough to count bytes
/// in, short enough to follow.
const ROUND_MIN: Duration = Duration::from_millis(50);
const ROUND_MAX: Duration = Duration::from_secs(1);

/// Round trips of a command whose data the far side asks for.
const ASKED_TRIPS: f64 = 2.0;

/// What connections are being tried for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trial {
    /// Nothing; not before this many rounds.
    None { wait: u32 },
    /// From this many connections, at this rate, for so many rounds yet,
    /// against this.
    More { from: u16, rate: f64, left: u32, against: Limit },
    /// Against loss, tests whether fewer connections do as well: the number before, its rate, the
    /// rounds left, and whether that rate was higher than before they were added.
    Less { than: u16, rate: f64, left: u32, more: bool },
}

/// Tests whether the least round trip is still valid.
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
    ways: [DirectionState; 2],
    /// The least round trip in seconds.
    rtt: f64,
    /// The round trip that was last found to be queues.
    explained: f64,
    doubt: Doubt,
    connections: u16,
    trial: Trial,
    /// How long the next trial waits if this one is of no use.
    no_use: u32,
    limit: Option<Limit>,
    /// Bytes per second at which the network was seen to queue, all in all,
    /// and for how many rounds that is remembered.
    ceiling: (f64, u32),
    /// Rounds for which the network has queued a little.
    touched: u32,
    /// Whether it had in the last rounds with a loss, a bit for each, the last one lowest.
    overflowed: u32,
    /// Rounds since the network last queued.
    unqueued: u32,
    /// Rounds in a row in which it did, and whether it has ever shown that it is what limits: by
    /// a queue for two of them, or by a loss.
    queued: u32,
    shown: bool,
    /// Rounds for which new connections may still be beginning.
    resuming: u32,
    /// Round trips that a command takes.
    trips: f64,
    last: Duration,
}

impl Tuner {
    /// A tuner for a path of this round trip, at this moment.
    pub fn new(limits: Limits, rtt: Duration, now: Duration) -> Tuner {
        let rtt = rtt.as_secs_f64().max(1e-6);
        Tuner {
            limits,
            ways: [DirectionState::new(), DirectionState::new()],
            rtt,
            explained: rtt,
            doubt: Doubt::None,
            connections: 1,
            trial: Trial::None { wait: 0 },
            no_use: NO_USE,
            limit: None,
            ceiling: (0.0, 0),
            touched: 0,
            overflowed: 0,
            unqueued: 0,
            queued: 0,
            shown: false,
            resuming: 0,
            trips: 1.0,
            last: now,
        }
    }

    /// How long the next round is: as long as it takes until more in flight can
    /// show.
    pub fn round(&self) -> Duration {
        Duration::from_secs_f64(self.trips * self.rtt).clamp(ROUND_MIN, ROUND_MAX)
    }

    /// There was no I/O until now: the round begins here.
    pub fn handle_idle(&mut self, now: Duration) {
        self.last = now;
    }

    /// No connection existed until now. The path is assumed unchanged: with less in flight it would
    /// be idle after the outage, and with more its queue would overflow.
    pub fn handle_outage(&mut self, now: Duration) {
        self.last = now;
        self.resuming = RESUMING;
        self.doubt = Doubt::None;
        self.ways.iter_mut().for_each(DirectionState::handle_outage);
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
        // A path that has become shorter may be shorter still: the bytes in flight, right for the
        // longer one, queue on it.
        let holds = self.ways.iter().any(|way| way.phase == TuningPhase::Hold);
        if seen < SHORTER * self.rtt && holds && !matches!(self.doubt, Doubt::Drain { .. } | Doubt::Refill(_))
        {
            self.doubt = Doubt::Drain { left: DRAIN_ROUNDS, least: seen };
            self.explained = seen;
        }
        self.rtt = self.rtt.min(seen);
        let lost = sample.ways.iter().any(|way| way.lost);
        if self.resuming == 0 && self.look_at_round_trip(seen, lost) {
            return;
        }
        let network = sample.rtt.map_or(seen, |rtt| rtt.as_secs_f64());
        let queued = network > QUEUED * self.rtt + QUEUED_MIN;
        self.trips = if sample.ways.iter().any(|way| way.asked) { ASKED_TRIPS } else { 1.0 };
        for (direction, way) in self.ways.iter_mut().zip(&sample.ways) {
            let trips = if way.asked { ASKED_TRIPS } else { 1.0 };
            if way.completed > 0 || way.in_flight > 0 {
                direction.handle(took, way, trips * self.rtt, (queued, self.resuming > 0), self.connections);
            }
        }
        let touched = network > TOUCHED * self.rtt + TOUCHED_MIN;
        self.touched = if touched { self.touched.saturating_add(1) } else { 0 };
        if lost {
            self.overflowed = (self.overflowed << 1 | u32::from(touched)) & ((1 << LOSSES_SHORT) - 1);
        }
        let overflows = if self.rtt < SHORT {
            self.overflowed.count_ones() >= OVERFLOWS_SHORT
        } else {
            self.touched >= OVERFLOWS
        };
        self.look_for_ceiling(self.touched >= TOUCHED_ROUNDS || (lost && touched && overflows));
        self.unqueued = if queued { 0 } else { self.unqueued.saturating_add(1) };
        self.queued = if queued { self.queued.saturating_add(1) } else { 0 };
        self.shown |= lost || self.queued > 1 || self.touched >= TOUCHED_ROUNDS;
        match self.resuming {
            0 => self.look_at_connections(sample),
            left => self.resuming = left - 1,
        }
    }

    /// Whether the path is being drained, so that nothing else can be judged.
    fn look_at_round_trip(&mut self, seen: f64, lost: bool) -> bool {
        // While the rate is unchanged, the bytes in flight suffice.
        let fallen = self.ways.iter().any(DirectionState::has_fallen);
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

    /// The path was drained, and `least` was the least round trip meanwhile. If it is unchanged, no
    /// queue made it so long.
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
    /// short the queue is the next moment. TCP may just have begun: the average
    /// says nothing then.
    fn look_for_ceiling(&mut self, touched: bool) {
        let rate: f64 = self.ways.iter().map(DirectionState::best).sum();
        let (seen, left) = self.ceiling;
        self.ceiling = match (touched, left) {
            // Before the first bytes it says nothing of the path.
            (true, _) if rate <= 0.0 => (seen, left),
            (true, 0) => (rate, CEILING_REMEMBERED),
            (true, _) => (rate.max(seen), CEILING_REMEMBERED),
            (false, 0) => (0.0, 0),
            (false, left) => (seen, left - 1),
        };
    }

    /// More connections, where a connection and not the path is the limit.
    fn look_at_connections(&mut self, sample: &Sample) {
        let total = self.total();
        match self.trial {
            Trial::More { from, rate, left, against } if is_clear(left, rate, total) => {
                let worth = if against == Limit::Loss { USE_LOST } else { USE };
                if total >= worth * rate {
                    self.was_of_use(against);
                } else {
                    let than = std::mem::replace(&mut self.connections, from);
                    // TCP that has met no loss yet is faster than it will be,
                    // and was what the others were compared with.
                    match against {
                        Limit::Loss => {
                            let more = total >= NAMED * rate;
                            self.trial = Trial::Less { than, rate: total, left: JUDGE_AFTER, more };
                        }
                        _ => self.was_of_no_use(),
                    }
                }
            }
            Trial::Less { than, rate, left, more } if is_clear(left, total, rate) => {
                if USE_LOST * total <= rate {
                    self.connections = than;
                    self.was_of_use(Limit::Loss);
                } else {
                    // Not worth connections, and yet not all that the path carries.
                    if more && NAMED * total <= rate {
                        self.limit.get_or_insert(Limit::Loss);
                    }
                    self.was_of_no_use();
                }
            }
            Trial::Less { than, rate, left, more } => {
                self.trial = Trial::Less { than, rate, left: left - 1, more };
            }
            Trial::More { from, rate, left, against } => {
                // Counted only once the connections exist.
                let left = if sample.connections < self.connections { left } else { left - 1 };
                self.trial = Trial::More { from, rate, left, against };
            }
            Trial::None { wait } if wait > 0 => self.trial = Trial::None { wait: wait - 1 },
            Trial::None { .. } => {
                let held = self.held_up().filter(|way| !sample.sockets.path_limits(*way));
                let Some(way) = held else { return };
                let lost = self.ways[way as usize].lost > 0;
                let times = if lost && self.connections == 1 { FIRST_LOST } else { 2 };
                let more = (times * self.connections).min(self.limits.connections);
                if more <= self.connections {
                    return;
                }
                let product = self.ways[way as usize].rate() * self.rtt;
                let each = product / f64::from(self.connections.max(1));
                let against = sample.sockets.name(way, each as u64, lost);
                let from = self.connections;
                // A moment in which it was slow makes nothing else good.
                let rate = total.max(self.carried());
                self.trial = Trial::More { from, rate, left: JUDGE_AFTER, against };
                self.connections = more;
                for direction in &mut self.ways {
                    direction.grow_again();
                }
            }
        }
    }

    fn was_of_use(&mut self, against: Limit) {
        self.limit.get_or_insert(against);
        self.no_use = NO_USE;
        self.trial = Trial::None { wait: 0 };
    }

    fn was_of_no_use(&mut self) {
        self.trial = Trial::None { wait: self.no_use };
        self.no_use = (4 * self.no_use).min(NO_USE_MAX);
    }

    /// A direction that is at its end although the network does not queue: the
    /// bytes in flight wait in the hosts.
    fn held_up(&self) -> Option<IoDirection> {
        if self.is_full() {
            return None;
        }
        let held = |way: &DirectionState| {
            let product = way.rate() * self.rtt;
            let (rate, average) = (way.rate(), way.average);
            let steady = way.phase == TuningPhase::Hold && average > STEADY * rate && rate > STEADY * average;
            // A lossy path is never full, however small its product becomes; but on a short one TCP
            // recovers faster than the tuner can measure.
            let held_back = if way.lost > 0 { self.rtt > LOSSY_MIN } else { product > SOCKET_MIN };
            steady && held_back && self.unqueued >= HELD_UP_AFTER
        };
        [IoDirection::Read, IoDirection::Write].into_iter().find(|&way| held(&self.ways[way as usize]))
    }

    /// What to do now.
    pub fn plan(&self) -> PathPlan {
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

    /// The plan without temporary experiments.
    pub fn settled(&self) -> PathPlan {
        let most = self.limits.in_flight.max(FLOOR);
        let in_flight = [0, 1].map(|way| (self.ways[way].in_flight as u64).clamp(FLOOR, most));
        PathPlan {
            in_flight,
            connections: self.connections.clamp(1, self.limits.connections.max(1)),
            rate: [0, 1].map(|way| self.ways[way].rate()),
            carried: [0, 1].map(|way| self.ways[way].carried()),
            rtt: Duration::from_secs_f64(self.rtt),
            full: [0, 1].map(|way| self.ways[way].phase == TuningPhase::Hold),
            limit: self.limit.or(self.hosts_limit().then_some(Limit::Hosts)),
            settled: self.is_settled(),
        }
    }

    /// Whether neither the path nor a connection has shown that it limits, though it was tried.
    fn hosts_limit(&self) -> bool {
        let used = || self.ways.iter().filter(|way| way.known > 0);
        let small = used().all(|way| way.rate() * self.rtt <= SOCKET_MIN);
        let tried = matches!(self.trial, Trial::None { wait } if wait > 0 || small);
        let held = used().count() > 0 && used().all(|way| way.phase == TuningPhase::Hold);
        held && !self.shown && self.connections == 1 && tried
    }

    fn is_settled(&self) -> bool {
        let used = || self.ways.iter().filter(|way| way.known > 0);
        let quiet =
            |way: &DirectionState| way.phase == TuningPhase::Hold && way.before.is_none() && way.is_even();
        let judged = used().count() > 0 && used().all(quiet);
        let tried = match self.trial {
            Trial::More { .. } | Trial::Less { .. } => false,
            Trial::None { wait } => wait > 0 || self.is_full() || self.connections >= self.limits.connections,
        };
        judged && tried && self.doubt == Doubt::None
    }

    /// The rate of both directions, in bytes per second.
    fn total(&self) -> f64 {
        self.ways.iter().map(DirectionState::rate).sum()
    }

    /// The same over a longer time.
    fn carried(&self) -> f64 {
        self.ways.iter().map(DirectionState::carried).sum()
    }

    /// Whether the network was seen to queue at about this rate.
    fn is_full(&self) -> bool {
        let (ceiling, left) = self.ceiling;
        let near = self.total() > NEAR_CEILING * ceiling || self.carried() > NEAR_CEILING_MEAN * ceiling;
        left > 0 && near
    }
}

/// Whether a trial is over, with so many rounds left: in the end, and before
/// that if what there is with more connections leaves no doubt.
fn is_clear(left: u32, less: f64, more: f64) -> bool {
    left == 0 || (left <= JUDGE_AFTER - CONVINCING_AFTER && more >= CONVINCING * less)
}
