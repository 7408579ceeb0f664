//! Limits the bytes that a device moves in a second.
//!
//! Invariant: in any interval, the completed operations moved no more bytes than the rate allows in
//! it, plus those of [`BURST`].

use super::{Around, Op, OpKind};
use crate::IoFuture;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time by which an idle device may be ahead of its rate: below the resolution of timers, so
/// that many small operations reach the rate.
const BURST: Duration = Duration::from_millis(1);

/// The filter: reads and writes of all handles share the rate, and end no
/// earlier than it allows. All else is free.
#[derive(Debug)]
pub struct Bound {
    state: Mutex<BoundState>,
}

#[derive(Debug)]
struct BoundState {
    bits_per_second: u64,
    /// When all that was begun so far will be done.
    done: Option<Instant>,
}

impl Bound {
    /// So many bits a second, as networks have them.
    pub fn new(bits_per_second: u64) -> Bound {
        Bound { state: Mutex::new(BoundState { bits_per_second, done: None }) }
    }

    /// Its rate in bits a second.
    pub fn rate(&self) -> u64 {
        self.state().bits_per_second
    }

    /// Changes the rate for what begins from now on.
    pub fn set(&self, bits_per_second: u64) {
        self.state().bits_per_second = bits_per_second;
    }

    fn state(&self) -> MutexGuard<'_, BoundState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When so many bytes more may be done, at `now`.
    fn take(&self, bytes: u64, now: Instant) -> Instant {
        let mut state = self.state();
        let time = Duration::from_secs_f64(8.0 * bytes as f64 / state.bits_per_second.max(1) as f64);
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        let end = state.done.map_or(earliest, |done| done.max(earliest)) + time;
        state.done = Some(end);
        end
    }
}

impl Around for Bound {
    fn around<T: Unpin + 'static>(
        self: &Arc<Self>,
        op: Op,
        start: impl FnOnce() -> IoFuture<T>,
    ) -> IoFuture<T> {
        let under_way = start();
        if !matches!(op.kind, OpKind::Read | OpKind::Write) {
            return under_way;
        }
        let end = self.take(op.len, longhaul_engine::now());
        IoFuture::new(async move {
            let result = under_way.await;
            longhaul_engine::sleep_until(end).await;
            result
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Filtered;
    use crate::{BlockDevice, MemDevice};
    use longhaul_engine::{BufMut, Config, Engine};

    #[test]
    fn bytes_take_their_time_one_after_another() {
        // A byte a millisecond.
        let bound = Bound::new(8000);
        let now = Instant::now() + Duration::from_secs(1);
        let ms = Duration::from_millis;
        assert_eq!(bound.take(100, now), now + ms(99), "an idle device is a little ahead");
        assert_eq!(bound.take(50, now), now + ms(149));
        assert_eq!(bound.take(50, now + ms(100)), now + ms(199));
        // Unused time is not credited.
        assert_eq!(bound.take(10, now + ms(1000)), now + ms(1009));
        bound.set(16_000);
        assert_eq!(bound.take(10, now + ms(1009)), now + ms(1014));
    }

    #[test]
    fn a_device_is_no_faster() {
        let device = MemDevice::new(1 << 20, 512).expect("mapped");
        // 64 KiB take 50 ms.
        let device = Filtered::new(Arc::new(device), Bound::new(65536 * 8 * 20));
        Engine::new(&Config::default()).expect("engine").block_on(async {
            let io = device.open().await.expect("opened");
            let begin = Instant::now();
            let all: Vec<_> = (0..4).map(|n| io.read(n * 65536, BufMut::zeroed(65536))).collect();
            for read in all {
                read.await.expect("read");
            }
            assert!(begin.elapsed() >= Duration::from_millis(199), "{:?}", begin.elapsed());
            assert!(io.map_read(0, 512).is_none(), "lent memory would pass by it");
            let begin = Instant::now();
            io.flush().await.expect("flushed");
            assert!(begin.elapsed() < Duration::from_millis(500), "{:?}", begin.elapsed());
        });
    }
}
