//! Counts the I/O over a path since its device was opened, for programs that watch it.
//!
//! Invariants:
//! - a counter has one writer, the thread of its connections, so that counting takes no locked
//!   instruction;
//! - a counter never falls, and what threads counted that have ended is kept.

use super::IoDirection;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Commands that move data in one direction, since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WayTraffic {
    /// Commands that have completed.
    pub commands: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The time from submission to completion of each, added up.
    pub time: Duration,
    /// Commands in flight now.
    pub in_flight: u64,
}

/// Commands in both directions, of all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Reads.
    pub read: WayTraffic,
    /// Writes.
    pub write: WayTraffic,
}

impl WayTraffic {
    fn add(&mut self, other: WayTraffic) {
        self.commands += other.commands;
        self.bytes += other.bytes;
        self.time += other.time;
        self.in_flight += other.in_flight;
    }
}

#[derive(Debug, Default)]
struct WayCounters {
    begun: AtomicU64,
    ended: AtomicU64,
    completed: AtomicU64,
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
}

impl WayCounters {
    fn read(&self) -> WayTraffic {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WayTraffic {
            commands: get(&self.completed),
            bytes: get(&self.bytes),
            time: Duration::from_nanos(get(&self.nanoseconds)),
            // They are read one after the other, while the thread counts on.
            in_flight: get(&self.begun).saturating_sub(get(&self.ended)),
        }
    }
}

/// Adds to a counter that no other thread writes.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// What one thread counts.
#[derive(Debug, Default)]
pub(super) struct Counters([WayCounters; 2]);

impl Counters {
    /// A command begins.
    pub(super) fn begin(&self, way: IoDirection) {
        add(&self.0[way as usize].begun, 1);
    }

    /// A command has ended after this time, or failed.
    pub(super) fn end(&self, way: IoDirection, bytes: u64, latency: Option<Duration>) {
        let way = &self.0[way as usize];
        add(&way.ended, 1);
        let Some(latency) = latency else { return };
        add(&way.completed, 1);
        add(&way.bytes, bytes);
        add(&way.nanoseconds, u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }
}

#[derive(Debug, Default)]
struct Threads {
    past: Traffic,
    counters: Vec<Arc<Counters>>,
}

impl Threads {
    /// Adds those up that nothing counts with any more.
    fn fold(&mut self) {
        let past = &mut self.past;
        self.counters.retain(|counters| {
            let is_used = Arc::strong_count(counters) > 1;
            if !is_used {
                past.read.add(counters.0[IoDirection::Read as usize].read());
                past.write.add(counters.0[IoDirection::Write as usize].read());
            }
            is_used
        });
        (past.read.in_flight, past.write.in_flight) = (0, 0);
    }
}

/// The counters of all threads that have opened a device.
#[derive(Debug, Default)]
pub(super) struct AllCounters(Mutex<Threads>);

impl AllCounters {
    /// Adds those of a thread.
    pub(super) fn watch(&self, counters: Arc<Counters>) {
        let mut threads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        threads.fold();
        threads.counters.push(counters);
    }

    /// All of them together.
    pub(super) fn sum(&self) -> Traffic {
        let mut threads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        threads.fold();
        let mut sum = threads.past;
        for counters in &threads.counters {
            sum.read.add(counters.0[IoDirection::Read as usize].read());
            sum.write.add(counters.0[IoDirection::Write as usize].read());
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_counted_stays_when_it_has_ended() {
        let all = AllCounters::default();
        let (one, other) = (Arc::<Counters>::default(), Arc::<Counters>::default());
        all.watch(Arc::clone(&one));
        all.watch(Arc::clone(&other));
        let ms = Duration::from_millis;
        for _ in 0..3 {
            one.begin(IoDirection::Read);
        }
        one.end(IoDirection::Read, 4096, Some(ms(2)));
        one.end(IoDirection::Read, 4096, None);
        other.begin(IoDirection::Write);
        other.end(IoDirection::Write, 512, Some(ms(5)));
        let read = WayTraffic { commands: 1, bytes: 4096, time: ms(2), in_flight: 1 };
        let write = WayTraffic { commands: 1, bytes: 512, time: ms(5), in_flight: 0 };
        assert_eq!(all.sum(), Traffic { read, write });
        drop((one, other));
        assert_eq!(all.sum(), Traffic { read: WayTraffic { in_flight: 0, ..read }, write });
        all.watch(Arc::default());
        assert_eq!(all.sum().read.commands, 1);
        assert!(all.0.lock().expect("no panic").counters.is_empty(), "nothing grows with threads that end");
    }
}
