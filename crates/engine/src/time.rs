//! Timers.

use crate::exec::{boot_clock, clock, try_with_core, wall_clock, with_core};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

/// The timers of one engine, by deadline.
#[derive(Default)]
pub(crate) struct Timers {
    by_deadline: BTreeMap<(Instant, u64), Waker>,
    next_id: u64,
}

impl Timers {
    pub(crate) fn next(&self) -> Option<Instant> {
        self.by_deadline.keys().next().map(|key| key.0)
    }

    /// Wakes every timer that is due now.
    pub(crate) fn fire(&mut self, now: Instant) {
        while let Some(entry) = self.by_deadline.first_entry() {
            if entry.key().0 > now {
                break;
            }
            entry.remove().wake();
        }
    }
}

/// The time: that of the calling thread's engine, which may be a simulated
/// one, else the system's. Code that is to be simulated takes it from here.
pub fn now() -> Instant {
    clock()
}

/// The time since `then`, by the same clock; zero if that is yet to come.
pub fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

/// The time since the machine was started, including the time for which it was
/// suspended (`CLOCK_BOOTTIME`, clock_gettime(2)), at a resolution of nanoseconds.
/// [`now`] stands still while the machine is suspended, this does not: what others
/// may have done since some moment is judged by this clock. On a simulated engine
/// it is virtual.
pub fn boot_time() -> Duration {
    boot_clock()
}

/// The wall clock: the time since 1970-01-01 (`CLOCK_REALTIME`). It may be set in either direction;
/// it is the only clock of a virtual machine that shows that the machine was paused from outside.
/// On a simulated engine it is virtual.
pub fn wall_time() -> Duration {
    wall_clock()
}

/// The time since the boot, suspend included (`CLOCK_BOOTTIME`).
pub(crate) fn system_boot_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one `timespec`, which this function owns.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    // Linux has this clock since 2.6.39: a failure would be one of the arguments.
    debug_assert_eq!(result, 0, "CLOCK_BOOTTIME");
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Reads the system's wall clock; zero before 1970.
pub(crate) fn system_wall_time() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Resolves after `duration`.
pub fn sleep(duration: Duration) -> Sleep {
    sleep_until(now() + duration)
}

/// Resolves at `deadline`.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline, id: None }
}

/// What [`sleep`] returns.
#[derive(Debug)]
pub struct Sleep {
    deadline: Instant,
    id: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if now() >= self.deadline {
            return Poll::Ready(());
        }
        with_core(|core| {
            let mut timers = core.timers.borrow_mut();
            let id = *self.id.get_or_insert_with(|| {
                timers.next_id += 1;
                timers.next_id
            });
            timers.by_deadline.insert((self.deadline, id), cx.waker().clone());
        });
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            try_with_core(|core| {
                core.timers.borrow_mut().by_deadline.remove(&(self.deadline, id));
            });
        }
    }
}

/// The time was over first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("timed out")]
pub struct Elapsed;

/// `future`'s output, unless `duration` is over first.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut sleep = sleep(duration);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(&mut sleep).poll(cx).map(|()| Err(Elapsed))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_clock_of_the_system_advances_with_the_monotonic_one() {
        let (boot, mono) = (system_boot_time(), Instant::now());
        // In this order: the boot clock is read last, and includes the monotonic one.
        let passed = mono.elapsed();
        assert!(system_boot_time() - boot >= passed);
        assert!(system_wall_time() > Duration::from_secs(1_500_000_000));
    }
}
