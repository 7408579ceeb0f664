//! Counts the I/O that one thread has in flight.

use super::traffic::Counters;
use super::{IoDirection, WaySample};
use longhaul_engine::sync::Notify;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

/// Counters of a direction since the last look.
#[derive(Default)]
struct DirectionCounters {
    in_flight: Cell<u64>,
    completed: Cell<u64>,
    /// Bytes in flight, added up over completions, and how many these were.
    sum: Cell<u128>,
    count: Cell<u64>,
    /// Something was begun when nothing was in flight.
    begun: Cell<bool>,
    /// Whether an operation begun in this round, or the last, has data that the target requests.
    asked: Cell<bool>,
    fresh: Cell<bool>,
}

/// Counters of one thread's I/O on a path.
#[derive(Default)]
pub(super) struct Meter {
    ways: [DirectionCounters; 2],
    latency_min: Cell<Option<Duration>>,
    commands: Cell<u64>,
    ended: Cell<bool>,
    /// A command has begun after idle time, or the meter is closed.
    work: Notify,
    /// The same since the thread opened the device.
    counters: Arc<Counters>,
}

/// The counts of a round.
pub(super) struct Round {
    pub(super) ways: [WaySample; 2],
    pub(super) latency_min: Option<Duration>,
}

impl Meter {
    /// A command begins, whose data the far side asks for, or not.
    pub(super) fn begin(&self, way: IoDirection, bytes: u64, asked: bool) {
        self.counters.begin(way);
        let direction = &self.ways[way as usize];
        let before = direction.in_flight.get();
        direction.in_flight.set(before + bytes);
        if before == 0 {
            direction.begun.set(true);
        }
        let earlier = direction.fresh.replace(true) && direction.asked.get();
        direction.asked.set(asked || earlier);
        self.commands.set(self.commands.get() + 1);
        if self.commands.get() == 1 {
            self.work.notify();
        }
    }

    /// A command has ended after this time, or failed.
    pub(super) fn end(&self, way: IoDirection, bytes: u64, latency: Option<Duration>) {
        self.counters.end(way, bytes, latency);
        let direction = &self.ways[way as usize];
        let before = direction.in_flight.get();
        direction.in_flight.set(before - bytes);
        self.commands.set(self.commands.get() - 1);
        let Some(latency) = latency else { return };
        direction.completed.set(direction.completed.get() + bytes);
        direction.sum.set(direction.sum.get() + u128::from(before));
        direction.count.set(direction.count.get() + 1);
        if self.latency_min.get().is_none_or(|least| latency < least) {
            self.latency_min.set(Some(latency));
        }
    }

    /// What is counted for programs that watch the path.
    pub(super) fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Bytes in flight.
    pub(super) fn in_flight(&self, way: IoDirection) -> u64 {
        self.ways[way as usize].in_flight.get()
    }

    /// Whether commands are under way.
    pub(super) fn is_busy(&self) -> bool {
        self.commands.get() > 0
    }

    /// Ends the wait for work: no command will begin any more.
    pub(super) fn close(&self) {
        self.ended.set(true);
        self.work.notify();
    }

    /// Waits for a command to begin, or for the end.
    pub(super) async fn wait_for_work(&self) {
        while !self.is_busy() && !self.ended.get() {
            self.work.notified().await;
        }
    }

    /// Takes the counts since the last call.
    pub(super) fn take(&self) -> Round {
        let ways = [0, 1].map(|way| {
            let direction = &self.ways[way];
            let (sum, count) = (direction.sum.take(), direction.count.take());
            let in_flight = match count {
                // Nothing came: TCP repairs a loss, say.
                0 => direction.in_flight.get(),
                _ => (sum / u128::from(count)) as u64,
            };
            let (completed, begun) = (direction.completed.take(), direction.begun.take());
            direction.fresh.set(false);
            let asked = direction.asked.get();
            WaySample { completed, in_flight, begun, asked, ..WaySample::default() }
        });
        Round { ways, latency_min: self.latency_min.take() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_counts_what_ended_in_it() {
        let meter = Meter::default();
        for _ in 0..4 {
            meter.begin(IoDirection::Read, 1000, false);
        }
        meter.begin(IoDirection::Write, 500, true);
        let ms = Duration::from_millis;
        meter.end(IoDirection::Read, 1000, Some(ms(5)));
        meter.end(IoDirection::Read, 1000, Some(ms(3)));
        meter.end(IoDirection::Write, 500, None);
        let round = meter.take();
        assert_eq!(
            round.ways[0],
            WaySample { completed: 2000, in_flight: 3500, begun: true, ..WaySample::default() }
        );
        assert_eq!(round.ways[1], WaySample { begun: true, asked: true, ..WaySample::default() });
        let stalled = WaySample { in_flight: 2000, ..WaySample::default() };
        assert_eq!(round.latency_min, Some(ms(3)));
        assert!(meter.is_busy());
        assert_eq!(meter.take().ways[0], stalled);
        meter.end(IoDirection::Read, 1000, None);
        meter.end(IoDirection::Read, 1000, None);
        assert!(!meter.is_busy());
    }
}
