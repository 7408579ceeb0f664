//! Timers.

use crate::exec::{clock, try_with_core, with_core};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

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
