//! Measurement of a load's rate, used for both sides of a comparison.
//!
//! A load starts before the window and runs until it is stopped. Only bytes that it moves in the
//! window are counted: connecting and the start of TCP do not count, nor do bytes that are still in
//! flight at the end.

use longhaul_load::watch::Watch;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Interval of samples of the counter.
const TICK: Duration = Duration::from_millis(50);
/// Shortest ramp and shortest window, each as a time and a number of round trips: enough for the
/// bytes in flight to settle.
const START: (Duration, u32) = (Duration::from_millis(1000), 60);
const STEADY: (Duration, u32) = (Duration::from_millis(2000), 100);

/// State that a load shares with its measurement.
#[derive(Debug, Default)]
pub(super) struct Flow {
    moved: AtomicU64,
    stop: AtomicBool,
}

impl Flow {
    pub(super) fn add(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Relaxed);
    }

    pub(super) fn has_to_stop(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Ends the load.
    pub(super) fn stop(&self) {
        self.stop.store(true, Relaxed);
    }
}

/// Durations of the ramp and of the window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The ramp, which does not count.
    pub start: Duration,
    /// The time that counts.
    pub steady: Duration,
}

/// Rate and processor use in the window.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredRate {
    /// Bytes per second.
    pub rate: f64,
    /// Share of this machine's processors that this process used.
    pub own_cpu: f64,
    /// The share of all other processes; zero where the kernel does not report it.
    pub others_cpu: f64,
}

impl Window {
    pub(super) fn of(round_trip: Duration) -> Window {
        let long = |(least, trips): (Duration, u32)| least.max(round_trip * trips);
        Window { start: long(START), steady: long(STEADY) }
    }

    /// Measures a load, and stops it. The window begins after the ramp, and not before the load has
    /// moved `whole` bytes, so that all of its memory is allocated. A message on `ended` means that
    /// the load ended early: the result is `None`. `tell` is called with the bytes so far.
    pub(super) fn count(
        self,
        flow: &Arc<Flow>,
        whole: u64,
        ended: &Receiver<()>,
        tell: &mut dyn FnMut(u64),
    ) -> Option<MeasuredRate> {
        let began = Instant::now();
        let mut first = None;
        loop {
            let early = ended.recv_timeout(TICK) != Err(RecvTimeoutError::Timeout);
            let (now, moved) = (Instant::now(), flow.moved.load(Relaxed));
            tell(moved);
            if early {
                flow.stop();
                return None;
            }
            if first.is_none() && (now - began < self.start || moved < whole) {
                continue;
            }
            let (from, before, watch) = first.get_or_insert_with(|| (now, moved, Watch::start()));
            if now - *from < self.steady {
                continue;
            }
            flow.stop();
            let (watched, seconds) = (watch.end(), (now - *from).as_secs_f64());
            let all = std::thread::available_parallelism().map_or(1, usize::from) as f64 * seconds;
            return Some(MeasuredRate {
                rate: (moved - *before) as f64 / seconds,
                own_cpu: (watched.cpu.user_s + watched.cpu.system_s) / all,
                others_cpu: watched.cpu.others_s.unwrap_or(0.0) / all,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_slow_start_does_not_count_and_the_load_is_stopped() {
        let window = Window { start: Duration::from_millis(200), steady: Duration::from_millis(400) };
        let flow = Arc::new(Flow::default());
        let (load, (open, ended)) = (Arc::clone(&flow), channel());
        let began = Instant::now();
        let thread = std::thread::spawn(move || {
            let _open = open;
            // Nothing at first, then a megabyte each hundredth of a second.
            while !load.has_to_stop() {
                std::thread::sleep(Duration::from_millis(10));
                if began.elapsed() > Duration::from_millis(150) {
                    load.add(1_000_000);
                }
            }
            load.moved.load(Relaxed)
        });
        let mut reported = Vec::new();
        let counted = window.count(&flow, 0, &ended, &mut |moved| reported.push(moved)).expect("counted");
        let moved = thread.join().expect("ended") as f64;
        assert!(reported.len() > 5 && reported.is_sorted(), "{reported:?}");
        // Over the whole time it would be less than over the window.
        assert!(counted.rate > moved / began.elapsed().as_secs_f64(), "{counted:?}");
        // Bytes moved before all memory was touched once are not counted either.
        let (flow, (open, ended)) = (Arc::new(Flow::default()), channel());
        let load = Arc::clone(&flow);
        let thread = std::thread::spawn(move || {
            let _open = open;
            load.add(50_000_000);
            while !load.has_to_stop() {
                std::thread::sleep(Duration::from_millis(10));
                load.add(1_000_000);
            }
        });
        let counted = window.count(&flow, 70_000_000, &ended, &mut |_| {}).expect("counted");
        thread.join().expect("ended");
        assert!(counted.rate < 105e6, "{counted:?}");
        let (early, (open, ended)) = (Arc::new(Flow::default()), channel());
        drop(open);
        assert!(window.count(&early, 0, &ended, &mut |_| {}).is_none() && early.has_to_stop());
    }

    #[test]
    fn a_longer_path_is_measured_for_longer() {
        let short = Window::of(Duration::ZERO);
        assert_eq!((short.start, short.steady), (START.0, STEADY.0));
        assert_eq!(Window::of(Duration::from_millis(200)).steady, Duration::from_secs(20));
    }
}
