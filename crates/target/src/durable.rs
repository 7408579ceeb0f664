//! Failed flushes: a device reports an error once, and every controller that
//! has written since its last flush hears of it.
//!
//! Controllers share a device, and a device (a file, say) reports writes that
//! it could not make durable only in the next flush, of whichever controller
//! that is. So the failures of a namespace are a sequence, as in the kernel's
//! `errseq_t`, and a controller remembers where the sequence stood when its
//! first write began that no flush of its own has covered.
//!
//! Invariants:
//! - a failure is added to the sequence before the flush that met it ends;
//! - a flush succeeds only if the sequence has not grown since the first write
//!   that it covers began;
//! - the queues of a controller are one: a flush on any of them covers the
//!   writes of all, and flushes at the same time all hear of a failure;
//! - a write costs a few loads where another one came before it.

use crate::subsystem::lock;
use longhaul_block::{BlockIo, IoError, IoResult};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The failed flushes of a namespace, counted.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    count: AtomicU64,
    last: Mutex<Option<IoError>>,
}

impl Failures {
    fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Records the error of a flush, or of a write with FUA, which reports earlier failures too.
    pub(crate) fn add(&self, e: &IoError) {
        match e {
            // Nothing was lost by these: the next flush covers the same writes.
            IoError::Aborted
            | IoError::Unreachable(_)
            | IoError::Offline(_)
            | IoError::Unsupported(_)
            | IoError::ReadOnly
            | IoError::OutOfRange { .. }
            | IoError::Unaligned { .. } => {}
            IoError::NoSpace
            | IoError::Medium(_)
            | IoError::Integrity(_)
            | IoError::Refused(_)
            | IoError::Reserved => {
                *lock(&self.last) = Some(e.clone());
                self.count.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    fn last(&self) -> IoError {
        let unknown = || IoError::Medium("an earlier flush failed".into());
        lock(&self.last).clone().unwrap_or_else(unknown)
    }
}

/// No write since the last flush.
const NOTHING: u64 = 0;

/// The writes of one controller to one namespace since its last flush.
#[derive(Debug)]
pub(crate) struct Written {
    failures: Arc<Failures>,
    /// [`NOTHING`], or the count of failures when the first write began, plus 1.
    since: AtomicU64,
    /// The same of the writes that flushes under way cover.
    covered: Mutex<Vec<u64>>,
}

impl Written {
    pub(crate) fn new(failures: &Arc<Failures>) -> Written {
        Written { failures: Arc::clone(failures), since: AtomicU64::new(NOTHING), covered: Mutex::default() }
    }

    /// Whether it counts the failures of this namespace.
    pub(crate) fn is_of(&self, failures: &Arc<Failures>) -> bool {
        Arc::ptr_eq(&self.failures, failures)
    }

    /// Begins a write that a flush has to cover. The value returned is passed to
    /// [`end`](Self::end): a flush that ends before the write does not cover it.
    #[inline]
    pub(crate) fn begin(&self) -> u64 {
        let since = self.failures.count() + 1;
        self.end(since);
        since
    }

    /// A write that began at `since` has ended.
    #[inline]
    pub(crate) fn end(&self, since: u64) {
        let held = self.since.load(Ordering::SeqCst);
        if held == NOTHING || held > since {
            self.mark(since);
        }
    }

    /// The earliest mark counts.
    #[cold]
    fn mark(&self, since: u64) {
        let earliest = |held| Some(if held == NOTHING { since } else { since.min(held) });
        let _ = self.since.fetch_update(Ordering::SeqCst, Ordering::SeqCst, earliest);
    }

    /// A write has ended in `e`. One with FUA looks for failures of earlier
    /// writes too, as a flush does, and is then the only command that fails.
    pub(crate) fn failed_write(&self, e: &IoError, fua: bool) {
        if fua {
            self.failures.add(e);
        }
    }

    /// Makes the completed writes durable. An error that another controller's flush has returned
    /// since the last one is returned here too.
    pub(crate) async fn flush(&self, io: &dyn BlockIo) -> IoResult<()> {
        let cover = Cover::new(self);
        let result = io.flush().await;
        if let Err(e) = &result {
            self.failures.add(e);
        }
        cover.end(result)
    }
}

/// A flush under way. If it is given up, its writes count as not covered.
struct Cover<'a> {
    written: &'a Written,
    since: u64,
}

impl Cover<'_> {
    fn new(written: &Written) -> Cover<'_> {
        let mut covered = lock(&written.covered);
        let own = written.since.swap(NOTHING, Ordering::SeqCst);
        let since = covered.iter().copied().chain([own]).filter(|since| *since != NOTHING).min();
        let since = since.unwrap_or(NOTHING);
        covered.push(since);
        drop(covered);
        Cover { written, since }
    }

    fn end(self, result: IoResult<()>) -> IoResult<()> {
        let (written, since) = (self.written, self.since);
        let missed = since != NOTHING && written.failures.count() >= since;
        self.forget();
        match result {
            Ok(()) if missed => Err(written.failures.last()),
            Ok(()) => Ok(()),
            Err(e) => {
                // Its writes are as they were, but for the failures heard of.
                if since != NOTHING {
                    written.mark(written.failures.count() + 1);
                }
                Err(e)
            }
        }
    }

    fn remove(&self) {
        let mut covered = lock(&self.written.covered);
        if let Some(at) = covered.iter().position(|since| *since == self.since) {
            covered.swap_remove(at);
        }
    }

    fn forget(self) {
        self.remove();
        std::mem::forget(self);
    }
}

impl Drop for Cover<'_> {
    fn drop(&mut self) {
        self.remove();
        if self.since != NOTHING {
            // A loss that this flush did not see is reported by a later one.
            self.written.mark(self.since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_block::{IoFuture, WriteFlags, ZeroFlags};
    use longhaul_engine::{Buf, BufMut};
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::task::{Context, Poll, Waker};

    /// Ends each flush with the next result in the queue; without one it stays under way.
    #[derive(Default)]
    struct Device(RefCell<VecDeque<IoResult<()>>>);

    impl Device {
        fn will(&self, result: IoResult<()>) {
            self.0.borrow_mut().push_back(result);
        }
    }

    impl BlockIo for Device {
        fn read(&self, _: u64, _: BufMut) -> IoFuture<BufMut> {
            IoFuture::ready(Err(IoError::Aborted))
        }

        fn write(&self, _: u64, _: Buf, _: WriteFlags) -> IoFuture<()> {
            IoFuture::ready(Ok(()))
        }

        fn flush(&self) -> IoFuture<()> {
            match self.0.borrow_mut().pop_front() {
                Some(result) => IoFuture::ready(result),
                None => IoFuture::new(std::future::pending()),
            }
        }

        fn discard(&self, _: u64, _: u64) -> IoFuture<()> {
            IoFuture::ready(Ok(()))
        }

        fn write_zeroes(&self, _: u64, _: u64, _: ZeroFlags) -> IoFuture<()> {
            IoFuture::ready(Ok(()))
        }
    }

    fn bad() -> IoError {
        IoError::Medium("the drive says so".into())
    }

    /// The result of a flush that ends at once.
    fn flush(written: &Written, device: &Device, result: IoResult<()>) -> IoResult<()> {
        device.will(result);
        let mut flush = std::pin::pin!(written.flush(device));
        match flush.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("it is not done at once"),
        }
    }

    #[test]
    fn a_failure_is_heard_once_by_each_controller_that_has_written() {
        let (device, failures) = (Device::default(), Arc::default());
        let [a, b, c] = [(); 3].map(|()| Written::new(&failures));
        a.begin();
        b.begin();
        assert_eq!(flush(&b, &device, Err(bad())), Err(bad()));
        assert_eq!(flush(&a, &device, Ok(())), Err(bad()), "its writes are gone too");
        assert_eq!(flush(&a, &device, Ok(())), Ok(()), "once");
        assert_eq!(flush(&c, &device, Ok(())), Ok(()), "it has written nothing");
        c.begin();
        assert_eq!(flush(&c, &device, Ok(())), Ok(()), "the failure was before its first write");
    }

    #[test]
    fn a_failure_concerns_no_write_that_was_made_durable_before() {
        let (device, failures) = (Device::default(), Arc::default());
        let [a, b] = [(); 2].map(|()| Written::new(&failures));
        a.begin();
        assert_eq!(flush(&a, &device, Ok(())), Ok(()));
        b.begin();
        assert_eq!(flush(&b, &device, Err(bad())), Err(bad()));
        assert_eq!(flush(&a, &device, Ok(())), Ok(()));
    }

    #[test]
    fn a_flush_does_not_cover_a_write_that_ends_after_it() {
        let (device, failures) = (Device::default(), Arc::default());
        let [a, b] = [(); 2].map(|()| Written::new(&failures));
        let since = a.begin();
        assert_eq!(flush(&a, &device, Ok(())), Ok(()));
        b.begin();
        assert_eq!(flush(&b, &device, Err(bad())), Err(bad()));
        a.end(since);
        assert_eq!(flush(&a, &device, Ok(())), Err(bad()));
    }

    #[test]
    fn a_write_with_fua_makes_others_hear_of_what_it_met() {
        let (device, failures) = (Device::default(), Arc::default());
        let [a, b] = [(); 2].map(|()| Written::new(&failures));
        a.begin();
        b.failed_write(&IoError::NoSpace, false);
        assert_eq!(flush(&a, &device, Ok(())), Ok(()), "the writer of it knows");
        a.begin();
        b.failed_write(&IoError::NoSpace, true);
        assert_eq!(flush(&a, &device, Ok(())), Err(IoError::NoSpace));
    }

    #[test]
    fn flushes_at_the_same_time_all_hear_of_a_failure() {
        let (device, failures) = (Device::default(), Arc::default());
        let a = Written::new(&failures);
        a.begin();
        let mut cx = Context::from_waker(Waker::noop());
        // Under way on one queue, while another queue's flush fails.
        let mut given_up = Box::pin(a.flush(&device));
        assert!(given_up.as_mut().poll(&mut cx).is_pending());
        assert_eq!(flush(&a, &device, Err(bad())), Err(bad()));
        drop(given_up);
        assert_eq!(flush(&a, &device, Ok(())), Err(bad()), "the error of a flush that was given up is kept");
        assert_eq!(flush(&a, &device, Ok(())), Ok(()));
    }

    #[test]
    fn a_lost_connection_to_the_device_loses_no_writes() {
        let (device, failures) = (Device::default(), Arc::default());
        let [a, b] = [(); 2].map(|()| Written::new(&failures));
        a.begin();
        b.begin();
        let away = IoError::Unreachable("no route".into());
        assert_eq!(flush(&b, &device, Err(away.clone())), Err(away));
        assert_eq!(flush(&a, &device, Ok(())), Ok(()));
        // Its writes still wait for a flush.
        a.begin();
        assert_eq!(flush(&a, &device, Err(bad())), Err(bad()));
        assert_eq!(flush(&b, &device, Ok(())), Err(bad()));
    }
}
