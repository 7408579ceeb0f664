//! Counters of packets: delivered, dropped and why, and how late.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Greatest lateness that is recorded, in ns.
const LONGEST: u64 = 60_000_000_000;

/// Classes of lateness that are counted, so that a part of the time can be judged: each
/// begins 19 % above the one before, the first where no timer is finer. The last is
/// over 50 ms, which is too late on any path.
const CLASSES: usize = 32;
const FIRST: f64 = 250_000.0;

/// Where a class begins, in ns.
fn begins(class: usize) -> f64 {
    FIRST * (class as f64 / 4.0).exp2()
}

/// Counters of one direction. Packets are those of the wire: one that stands
/// for many counts as many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionStatistics {
    /// Number of packets received from the sending side.
    pub packets_in: u64,
    /// IP bytes received.
    pub bytes_in: u64,
    /// Number of packets delivered to the receiving side.
    pub packets_out: u64,
    /// IP bytes delivered.
    pub bytes_out: u64,
    /// Packets dropped at a full queue.
    pub dropped_queue: u64,
    /// Packets lost at random.
    pub dropped_loss: u64,
    /// Packets dropped by the cut.
    pub dropped_cut: u64,
    /// Packets dropped by the black hole for their size.
    pub dropped_black_hole: u64,
    /// Packets for which the emulator had no memory: an error of the emulation, which
    /// voids a run.
    pub dropped_memory: u64,
    /// Packets that the kernel dropped because the emulator did not fetch them
    /// in time: an error of the emulation too.
    pub dropped_device: u64,
    /// Packets held back for later ones to overtake.
    pub reordered: u64,
    /// Packets that arrived a second time.
    pub duplicated: u64,
    /// Packets that the kernel did not take (the far device is down).
    pub errors: u64,
    /// Most bytes that waited for the wire at a time.
    pub queue_max: u64,
    /// How late packets arrived.
    pub lateness: Lateness,
}

impl DirectionStatistics {
    /// All packets that were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped_queue
            + self.dropped_loss
            + self.dropped_cut
            + self.dropped_black_hole
            + self.dropped_memory
            + self.dropped_device
    }

    /// The counts of other counters, plus those before they started.
    pub(crate) fn and(&self, before: &DirectionStatistics) -> DirectionStatistics {
        DirectionStatistics {
            packets_in: self.packets_in + before.packets_in,
            bytes_in: self.bytes_in + before.bytes_in,
            packets_out: self.packets_out + before.packets_out,
            bytes_out: self.bytes_out + before.bytes_out,
            dropped_queue: self.dropped_queue + before.dropped_queue,
            ..*self
        }
    }

    /// The counts of other counters, less those before they started.
    pub(crate) fn since(&self, before: &DirectionStatistics) -> DirectionStatistics {
        DirectionStatistics {
            packets_in: self.packets_in.saturating_sub(before.packets_in),
            bytes_in: self.bytes_in.saturating_sub(before.bytes_in),
            packets_out: self.packets_out.saturating_sub(before.packets_out),
            bytes_out: self.bytes_out.saturating_sub(before.bytes_out),
            dropped_queue: self.dropped_queue.saturating_sub(before.dropped_queue),
            dropped_device: self.dropped_device.saturating_sub(before.dropped_device),
            ..*self
        }
    }
}

/// How much later than due packets were handed over. The machine was busy where
/// this is not small against the round-trip time: throw such a run away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lateness {
    /// Mean delay beyond the time when packets were due.
    pub mean: Duration,
    /// Median, in steps of 19 %.
    pub p50: Duration,
    /// 99th percentile, in steps of 19 %.
    pub p99: Duration,
    /// 99.9th percentile, in steps of 19 %.
    pub p999: Duration,
    /// Largest delay of a packet.
    pub max: Duration,
    /// All that were handed over; packets that came as one count once.
    pub all: u64,
    /// Those that were later than 250 µs, and than each 19 % more.
    pub over: [u64; CLASSES],
}

impl Lateness {
    /// The delay beyond the schedule of 99 % of the packets since `before`, to 19 %: zero if it was
    /// no more than the resolution of timers. If the counters were reset in between, that of all
    /// packets since then.
    fn p99_since(&self, before: &Lateness) -> Duration {
        let none = Lateness::default();
        let before = if self.all < before.all { &none } else { before };
        let all = self.all - before.all;
        let is_over = |class: &usize| (self.over[*class].saturating_sub(before.over[*class])) * 100 > all;
        let class = (0..CLASSES).rev().find(is_over);
        class.map_or(Duration::ZERO, |class| Duration::from_nanos(begins(class + 1) as u64))
    }
}

/// Both directions of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStatistics {
    /// From the client to the server.
    pub there: DirectionStatistics,
    /// From the server to the client.
    pub back: DirectionStatistics,
}

/// Counters of all links, and resources of the emulator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// Counters of each link, in order.
    pub links: Vec<LinkStatistics>,
    /// Time since the start, or the last reset.
    pub elapsed: Duration,
    /// Processor time of the emulator.
    pub cpu: Duration,
    /// Bytes of memory that packets have taken so far.
    pub memory: u64,
    /// Whether the emulator was granted real-time priority.
    pub real_time: bool,
}

impl Statistics {
    /// The worst 99 % lateness of all directions.
    pub fn late_p99(&self) -> Duration {
        self.links.iter().flat_map(|l| [l.there, l.back]).map(|w| w.lateness.p99).max().unwrap_or_default()
    }

    /// The same for packets since `before`, to 19 %; zero if it was no more than the resolution of
    /// timers.
    pub fn late_p99_since(&self, before: &Statistics) -> Duration {
        let ways = |all: &Statistics| -> Vec<DirectionStatistics> {
            all.links.iter().flat_map(|link| [link.there, link.back]).collect()
        };
        let late =
            |(now, then): (DirectionStatistics, DirectionStatistics)| now.lateness.p99_since(&then.lateness);
        ways(self).into_iter().zip(ways(before)).map(late).max().unwrap_or_default()
    }

    /// Packets that the emulator itself lost: with one of these a run is void.
    pub fn lost_here(&self) -> u64 {
        let ways = self.links.iter().flat_map(|l| [l.there, l.back]);
        ways.map(|w| w.dropped_memory + w.dropped_device + w.errors).sum()
    }
}

/// Recorder of the lateness of one direction.
pub(crate) struct LateMeter(Histogram<u64>);

impl LateMeter {
    pub(crate) fn new() -> LateMeter {
        // The bounds are constants that the constructor accepts.
        LateMeter(Histogram::new_with_bounds(1, LONGEST, 2).unwrap_or_else(|_| unreachable!()))
    }

    pub(crate) fn record(&mut self, late: u64) {
        self.0.saturating_record(late);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn lateness(&self) -> Lateness {
        if self.0.is_empty() {
            return Lateness::default();
        }
        let at = |q| Duration::from_nanos(self.0.value_at_quantile(q));
        let all = self.0.len();
        let over = std::array::from_fn(|class| all - self.0.count_between(0, begins(class) as u64));
        Lateness {
            all,
            over,
            mean: Duration::from_nanos(self.0.mean() as u64),
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: Duration::from_nanos(self.0.max()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statistics(meter: &LateMeter) -> Statistics {
        let there = DirectionStatistics { lateness: meter.lateness(), ..DirectionStatistics::default() };
        Statistics {
            links: vec![LinkStatistics { there, ..LinkStatistics::default() }],
            ..Statistics::default()
        }
    }

    #[test]
    fn a_part_of_the_time_is_judged_by_itself() {
        let mut meter = LateMeter::new();
        let record =
            |meter: &mut LateMeter, number: u64, late: u64| (0..number).for_each(|_| meter.record(late));
        // An hour on time hides a bad second.
        record(&mut meter, 100_000, 100_000);
        let before = statistics(&meter);
        record(&mut meter, 980, 100_000);
        record(&mut meter, 20, 3_000_000);
        let after = statistics(&meter);
        assert!(after.late_p99() < Duration::from_micros(200));
        let late = after.late_p99_since(&before).as_secs_f64() * 1e3;
        assert!((3.0..3.0 * 1.21).contains(&late), "{late} ms");
        // And a bad second is not held against the next.
        record(&mut meter, 1000, 200_000);
        assert_eq!(statistics(&meter).late_p99_since(&after), Duration::ZERO);
        // A reset clears the counts: only later packets are in them.
        meter.clear();
        record(&mut meter, 10, 1_000_000);
        let late = statistics(&meter).late_p99_since(&after);
        assert!(late >= Duration::from_millis(1), "{late:?}");
    }
}
