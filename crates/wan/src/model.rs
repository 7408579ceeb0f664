//! Model of one direction of a link, in virtual time: which packets are delivered, and
//! when.
//!
//! ```text
//! black hole -> loss -> queue -> wire (rate) -> delay, jitter -> reordering, duplicates
//! ```
//!
//! Times are nanoseconds since some beginning, passed in. Everything counts
//! packets as they are on the wire, also where one call offers many of them.
//!
//! Invariants:
//! - the wire carries one packet at a time: [`LinkModel::free`] never goes back,
//!   but when the rate changes;
//! - packets that are not held back arrive in the order of their admission, at any delay
//!   and jitter;
//! - every packet offered is in a run, or is counted as dropped, once.

#[cfg(test)]
mod tests;

use crate::conditions::DirectionConditions;
use crate::packet::Shape;
use crate::statistics::DirectionStatistics;

/// The longest burst at a limited rate, in ns on the wire: what a host hands
/// over as one packet is delivered in runs of this length. As long as the
/// largest such packet takes at 1 Gb/s, so that only slower links cost copies.
const BURST: u64 = 600_000;

/// Time between two of the points that jitter moves between, in ns.
const JITTER_STEP: u64 = 10_000_000;

/// Consecutive packets that are delivered together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketRun {
    /// Index of the first, within the packet that was offered.
    pub(crate) from: u32,
    /// Index behind the last.
    pub(crate) to: u32,
    /// IP bytes on the wire.
    pub(crate) wire: u64,
    /// Time at which the last byte is on the wire, in ns.
    pub(crate) departs: u64,
    /// Time of arrival, in ns.
    pub(crate) due: u64,
    /// Whether later packets may overtake it.
    pub(crate) held: bool,
}

pub(crate) struct LinkModel {
    way: DirectionConditions,
    queue_bytes: Option<u64>,
    /// Time at which the wire is free, in ns.
    free: u64,
    /// Remainder of the division by the rate, in bits times 10^9.
    rest: u64,
    last_due: u64,
    loss: Sampler,
    reorder: Sampler,
    duplicate: Sampler,
    random: Random,
    jitter_seed: u64,
    pub(crate) counts: DirectionStatistics,
}

impl LinkModel {
    /// `seed` decides loss, reordering, duplicates and jitter.
    pub(crate) fn new(way: DirectionConditions, seed: u64) -> LinkModel {
        let mut random = Random(seed);
        let jitter_seed = random.next();
        let mut model = LinkModel {
            queue_bytes: None,
            free: 0,
            rest: 0,
            last_due: 0,
            loss: Sampler::default(),
            reorder: Sampler::default(),
            duplicate: Sampler::default(),
            random,
            jitter_seed,
            counts: DirectionStatistics::default(),
            way: DirectionConditions::default(),
        };
        model.set(way);
        model
    }

    fn set(&mut self, way: DirectionConditions) {
        self.loss.set(way.loss, &mut self.random);
        self.reorder.set(way.reorder, &mut self.random);
        self.duplicate.set(way.duplicate, &mut self.random);
        self.queue_bytes = way.queue_bytes();
        self.way = way;
    }

    /// Changes the conditions from `now` on. Packets that wait for the wire leave at the
    /// new rate: a departure at `t` becomes one at `rescale(t)`.
    pub(crate) fn change(&mut self, now: u64, way: DirectionConditions) -> Rescale {
        let factor = match (self.way.rate, way.rate) {
            (Some(old), Some(new)) => old as f64 / new as f64,
            (Some(_), None) => 0.0,
            (None, _) => 1.0,
        };
        let rescale = Rescale { now, factor };
        self.free = if way.cut { now } else { rescale.time(self.free) };
        self.rest = 0;
        self.set(way);
        rescale
    }

    /// The last packet on its way arrives at `due`; later ones arrive later.
    pub(crate) fn follow(&mut self, due: u64) {
        self.last_due = due;
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.way.cut
    }

    /// Offers packets at `now`; those that get through are put into `out`.
    pub(crate) fn offer(&mut self, now: u64, shape: &Shape, out: &mut Vec<PacketRun>) {
        out.clear();
        self.counts.packets_in += u64::from(shape.count);
        self.counts.bytes_in += shape.wire(0, shape.count);
        if self.way.cut {
            self.counts.dropped_cut += u64::from(shape.count);
            return;
        }
        let mut from = self.black_hole(shape);
        while let Some(left) = shape.count.checked_sub(from).filter(|left| *left > 0) {
            let run = self.loss.next(left, &mut self.random);
            self.admit(now, shape, from, from + run.unwrap_or(left), out);
            self.counts.dropped_loss += u64::from(run.is_some());
            from += run.map_or(left, |run| run + 1);
        }
    }

    /// The first packet that is not swallowed: all but the last are equally
    /// long, and the last is no longer.
    fn black_hole(&mut self, shape: &Shape) -> u32 {
        let Some(limit) = self.way.black_hole.map(u64::from) else { return 0 };
        let last = shape.count - 1;
        let first = match (shape.wire(last, shape.count) > limit, last > 0 && shape.unit() > limit) {
            (true, _) => shape.count,
            (false, true) => last,
            (false, false) => 0,
        };
        self.counts.dropped_black_hole += u64::from(first);
        first
    }

    /// Puts into the queue what fits of `from..to`, in bursts of bounded length.
    fn admit(&mut self, now: u64, shape: &Shape, mut from: u32, to: u32, out: &mut Vec<PacketRun>) {
        let Some(rate) = self.way.rate else {
            return self.send(now, shape, from, to, out);
        };
        let fits = self.fits(now, rate, shape, from, to);
        self.counts.dropped_queue += u64::from(to - from - fits);
        let to = from + fits;
        let burst = u128::from(rate) * u128::from(BURST) / 8_000_000_000 / u128::from(shape.unit());
        let burst = u32::try_from(burst).unwrap_or(u32::MAX).max(1);
        while from < to {
            let end = to.min(from.saturating_add(burst));
            self.send(now, shape, from, end, out);
            from = end;
        }
    }

    /// How many of `from..to` the queue takes. The one in transmission is
    /// part of it; a wire that is free always takes one.
    fn fits(&mut self, now: u64, rate: u64, shape: &Shape, from: u32, to: u32) -> u32 {
        let wait = self.free.saturating_sub(now);
        let backlog = (u128::from(wait) * u128::from(rate) / 8_000_000_000) as u64;
        let room = self.queue_bytes.unwrap_or(u64::MAX).saturating_sub(backlog);
        let fits = if shape.wire(from, to) <= room {
            to - from
        } else {
            let whole = u32::try_from(room / shape.unit()).unwrap_or(u32::MAX);
            whole.max(u32::from(wait == 0)).min(to - from)
        };
        let full = backlog + shape.wire(from, from + fits);
        self.counts.queue_max = self.counts.queue_max.max(full);
        fits
    }

    /// Sends a burst, but for those in it that are held back.
    fn send(&mut self, now: u64, shape: &Shape, mut from: u32, to: u32, out: &mut Vec<PacketRun>) {
        while from < to {
            let run = self.reorder.next(to - from, &mut self.random);
            let end = run.map_or(to, |run| from + run);
            self.transmit(now, shape, (from, end), false, out);
            from = end;
            if run.is_some() {
                self.counts.reordered += 1;
                self.transmit(now, shape, (from, from + 1), true, out);
                from += 1;
            }
        }
    }

    fn transmit(
        &mut self,
        now: u64,
        shape: &Shape,
        (from, to): (u32, u32),
        held: bool,
        out: &mut Vec<PacketRun>,
    ) {
        if from == to {
            return;
        }
        let wire = shape.wire(from, to);
        let departs = self.serialise(now, wire);
        let in_order = (departs + self.delay(departs)).max(self.last_due);
        let due = if held { in_order + nanos(self.way.reorder_by) } else { in_order };
        if !held {
            self.last_due = due;
        }
        out.push(PacketRun { from, to, wire, departs, due, held });
        let mut at = from;
        while let Some(run) = self.duplicate.next(to - at, &mut self.random) {
            at += run;
            let wire = shape.wire(at, at + 1);
            let due = due + nanos(self.way.duplicate_after);
            out.push(PacketRun { from: at, to: at + 1, wire, departs, due, held: true });
            self.counts.duplicated += 1;
            at += 1;
        }
    }

    /// When the last of `wire` bytes leaves.
    fn serialise(&mut self, now: u64, wire: u64) -> u64 {
        let Some(rate) = self.way.rate else { return now };
        if self.free < now {
            (self.free, self.rest) = (now, 0);
        }
        // At most 64 KiB at a time: 64 bits are enough.
        let work = wire * 8 * 1_000_000_000 + self.rest;
        self.free += work / rate;
        self.rest = work % rate;
        self.free
    }

    /// Delay of what departs at `at`.
    fn delay(&self, at: u64) -> u64 {
        let delay = nanos(self.way.delay);
        if self.way.jitter.is_zero() {
            return delay;
        }
        let by = nanos(self.way.jitter) as f64 * self.wander(at);
        (delay as f64 + by).max(0.0) as u64
    }

    /// A smooth random line between -1 and 1 over time.
    fn wander(&self, at: u64) -> f64 {
        let step = at / JITTER_STEP;
        let point = |step: u64| {
            2.0 * Random(self.jitter_seed ^ step.wrapping_mul(0xd6e8_feb8_6659_fd93)).share() - 1.0
        };
        let x = (at % JITTER_STEP) as f64 / JITTER_STEP as f64;
        let (a, b) = (point(step), point(step + 1));
        a + (b - a) * x * x * (3.0 - 2.0 * x)
    }
}

/// How departures move when the rate changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rescale {
    now: u64,
    factor: f64,
}

impl Rescale {
    /// The new time of a departure.
    pub(crate) fn time(self, departs: u64) -> u64 {
        match departs.checked_sub(self.now) {
            Some(left) => self.now + (left as f64 * self.factor) as u64,
            None => departs,
        }
    }
}

fn nanos(time: std::time::Duration) -> u64 {
    time.as_nanos() as u64
}

/// Picks each of a row of packets with the same chance, at a cost only for
/// those picked.
#[derive(Default)]
struct Sampler {
    chance: f64,
    skip: u64,
}

impl Sampler {
    fn set(&mut self, chance: f64, random: &mut Random) {
        if chance != self.chance {
            self.chance = chance;
            self.draw(random);
        }
    }

    /// Packets until the next one that is picked: geometrically distributed.
    fn draw(&mut self, random: &mut Random) {
        let skip = (random.share().ln() / (-self.chance).ln_1p()).floor();
        // At a chance of one the divisor is minus infinity, and this is zero.
        self.skip = if skip < 1e18 { skip as u64 } else { u64::MAX };
    }

    /// The first that is picked of the next `count`, counting those before it
    /// as passed; nothing if all of them pass.
    fn next(&mut self, count: u32, random: &mut Random) -> Option<u32> {
        if self.chance <= 0.0 {
            return None;
        }
        let count = u64::from(count);
        if self.skip >= count {
            self.skip -= count;
            return None;
        }
        let at = self.skip as u32;
        self.draw(random);
        Some(at)
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, fast and good enough for loss.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Evenly between 0 and 1, neither included.
    fn share(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }
}
