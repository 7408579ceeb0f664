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
//! - a controller has heard of a failure once a flush of its host was answered with it, and the
//!   host does not repeat that flush: a result that is not told leaves everything as it was;
//! - what a controller leaves behind that no flush has covered, its host's next flush covers, on
//!   whichever controller: a host that was not answered comes back with another one;
//! - the queues of a controller are one: a flush on any of them covers the
//!   writes of all, and flushes at the same time all hear of a failure;
//! - a write costs a few loads where another one came before it.

use crate::subsystem::lock;
use longhaul_block::{BlockIo, IoError, IoResult};
use longhaul_proto::reservation::HostId;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Identifier and NQN of a host.
pub(crate) type HostKey = Arc<(HostId, String)>;

/// Hosts whose controllers have left something to a next one, per namespace. Of more, that which
/// has been away for longest is forgotten.
const HOSTS_MAX: usize = 1024;

/// The failed flushes of a namespace, counted.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    count: AtomicU64,
    last: Mutex<Option<IoError>>,
    left: Mutex<AllLeft>,
}

/// What controllers that have ended have left behind.
#[derive(Debug, Default)]
struct AllLeft {
    hosts: BTreeMap<HostKey, Left>,
    /// Numbers changes of it.
    changes: u64,
}

/// The writes of a host's controllers that have ended which no flush has covered.
#[derive(Clone, Copy, Debug)]
struct Left {
    /// As [`Written::since`].
    since: u64,
    /// The last change.
    change: u64,
}

impl AllLeft {
    fn add(&mut self, host: &HostKey, since: u64) {
        self.changes += 1;
        let change = self.changes;
        let is_known = self.hosts.contains_key(host);
        if !is_known && self.hosts.len() >= HOSTS_MAX {
            let oldest =
                self.hosts.iter().min_by_key(|(_, left)| left.change).map(|(host, _)| Arc::clone(host));
            self.hosts.retain(|host, _| Some(host) != oldest.as_ref());
        }
        let left = self.hosts.entry(Arc::clone(host)).or_insert(Left { since, change });
        *left = Left { since: left.since.min(since), change };
    }

    /// A flush has covered what was left until then.
    fn remove(&mut self, host: &HostKey, covered: Left) {
        if self.hosts.get(host).is_some_and(|left| left.change == covered.change) {
            self.hosts.remove(host);
        }
    }
}

impl Failures {
    fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Records the error of a flush, or of a write with FUA, which reports earlier failures too.
    pub(crate) fn add(&self, e: &IoError) {
        if e.is_loss() {
            *lock(&self.last) = Some(e.clone());
            self.count.fetch_add(1, Ordering::SeqCst);
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
    /// None of a program's own flushes.
    host: Option<HostKey>,
    /// The controller has ended: marks are left to the host's next flush.
    has_left: AtomicBool,
    /// [`NOTHING`], or the count of failures when the first write began, plus 1.
    since: AtomicU64,
    /// The same of the writes that flushes under way cover.
    covered: Mutex<Vec<u64>>,
}

impl Written {
    pub(crate) fn new(failures: &Arc<Failures>, host: Option<&HostKey>) -> Written {
        Written {
            failures: Arc::clone(failures),
            host: host.cloned(),
            has_left: AtomicBool::new(false),
            since: AtomicU64::new(NOTHING),
            covered: Mutex::default(),
        }
    }

    /// The controller has ended. The result of a flush under way reaches no host; writes under way
    /// are left behind when they end.
    pub(crate) fn leave(&self) {
        self.has_left.store(true, Ordering::SeqCst);
        let covered = lock(&self.covered);
        covered.iter().for_each(|since| self.leave_mark(*since));
        self.leave_mark(self.since.swap(NOTHING, Ordering::SeqCst));
    }

    fn leave_mark(&self, since: u64) {
        if let Some(host) = &self.host
            && since != NOTHING
        {
            lock(&self.failures.left).add(host, since);
        }
    }

    /// What controllers of the host that have ended have left.
    fn left(&self) -> Option<Left> {
        let left = lock(&self.failures.left);
        left.hosts.get(self.host.as_ref()?).copied()
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
        // Looked at after the mark was made: either this or `leave` finds it.
        if self.has_left.load(Ordering::SeqCst) {
            self.leave_mark(self.since.swap(NOTHING, Ordering::SeqCst));
        }
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
    pub(crate) async fn flush(self: &Arc<Self>, io: &dyn BlockIo) -> Flushed {
        let mut cover = Cover::new(self);
        let mut result = io.flush().await;
        match &result {
            Ok(()) => cover.is_synced = true,
            Err(e) => self.failures.add(e),
        }
        if result.is_ok() && cover.has_missed() {
            result = Err(self.failures.last());
        }
        if result.is_ok() {
            cover.forget();
            return Flushed { result, cover: None };
        }
        Flushed { result, cover: Some(cover) }
    }
}

/// The end of a flush. Unless the host is [told](Self::tell) of a loss, its next flush meets it.
#[must_use]
pub(crate) struct Flushed {
    result: IoResult<()>,
    /// The writes that are not durable, if it failed.
    cover: Option<Cover>,
}

impl Flushed {
    /// The device could not be asked.
    pub(crate) fn failed(e: IoError) -> Flushed {
        Flushed { result: Err(e), cover: None }
    }

    /// The error, for other eyes than those of a host that waits for a flush.
    pub(crate) fn error(&self) -> Option<&IoError> {
        self.result.as_ref().err()
    }

    /// Whether it failed, and what was written may be lost.
    pub(crate) fn is_loss(&self) -> bool {
        self.error().is_some_and(IoError::is_loss)
    }

    /// The result, which is the answer to a flush of the host.
    pub(crate) fn tell(mut self) -> IoResult<()> {
        if let Err(e) = &self.result
            && e.is_loss()
            && let Some(cover) = self.cover.take()
        {
            cover.heard();
        }
        self.result
    }
}

/// A flush under way. If it is given up, its writes count as not covered.
struct Cover {
    written: Arc<Written>,
    since: u64,
    /// What it covers of the host's controllers that have ended. It stays there until the end, for
    /// flushes on other controllers.
    left: Option<Left>,
    /// The device has made the writes durable, but for those that were lost before.
    is_synced: bool,
    has_ended: bool,
}

impl Cover {
    fn new(written: &Arc<Written>) -> Cover {
        let mut covered = lock(&written.covered);
        let own = written.since.swap(NOTHING, Ordering::SeqCst);
        let left = written.left();
        let all = covered.iter().copied().chain([own]).chain(left.map(|left| left.since));
        let since = all.filter(|since| *since != NOTHING).min();
        let since = since.unwrap_or(NOTHING);
        covered.push(since);
        drop(covered);
        Cover { written: Arc::clone(written), since, left, is_synced: false, has_ended: false }
    }

    /// Whether a flush has failed since the first write.
    fn has_missed(&self) -> bool {
        self.since != NOTHING && self.written.failures.count() >= self.since
    }

    /// The host's next controllers do not have to hear of what was left to this one.
    fn settle(&self) {
        if let (Some(host), Some(left)) = (&self.written.host, self.left) {
            lock(&self.written.failures.left).remove(host, left);
        }
    }

    /// The writes are durable.
    fn forget(mut self) {
        self.settle();
        self.end(NOTHING);
    }

    /// The host has heard of the loss.
    fn heard(mut self) {
        self.settle();
        let is_open = self.since != NOTHING && !self.is_synced;
        // Its writes are as they were, but for the failures heard of.
        self.end(if is_open { self.written.failures.count() + 1 } else { NOTHING });
    }

    /// Writes since `left` are not covered.
    fn end(&mut self, left: u64) {
        // Until then flushes on other queues wait, or they would see these writes nowhere.
        let mut covered = lock(&self.written.covered);
        if let Some(at) = covered.iter().position(|since| *since == self.since) {
            covered.swap_remove(at);
        }
        if left != NOTHING {
            self.written.mark(left);
        }
        self.has_ended = true;
    }
}

impl Drop for Cover {
    fn drop(&mut self) {
        if !self.has_ended {
            // A loss that no host was told of is reported by a later flush.
            self.end(self.since);
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

    fn controller(failures: &Arc<Failures>) -> Arc<Written> {
        Arc::new(Written::new(failures, None))
    }

    fn of_host(failures: &Arc<Failures>, number: u8) -> Arc<Written> {
        let host = Arc::new(([number; 16], format!("nqn.2014-08.org.example:{number}")));
        Arc::new(Written::new(failures, Some(&host)))
    }

    /// The result of a flush that ends at once.
    fn end_flush(written: &Arc<Written>, device: &Device, result: IoResult<()>) -> Flushed {
        device.will(result);
        let mut flush = std::pin::pin!(written.flush(device));
        match flush.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(flushed) => flushed,
            Poll::Pending => panic!("it is not done at once"),
        }
    }

    /// The same, told to the host.
    fn flush(written: &Arc<Written>, device: &Device, result: IoResult<()>) -> IoResult<()> {
        end_flush(written, device, result).tell()
    }

    #[test]
    fn a_failure_is_heard_once_by_each_controller_that_has_written() {
        let (device, failures) = (Device::default(), Arc::default());
        let [a, b, c] = [(); 3].map(|()| controller(&failures));
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
        let [a, b] = [(); 2].map(|()| controller(&failures));
        a.begin();
        assert_eq!(flush(&a, &device, Ok(())), Ok(()));
        b.begin();
        assert_eq!(flush(&b, &device, Err(bad())), Err(bad()));
        assert_eq!(flush(&a, &device, Ok(())), Ok(()));
    }

    #[test]
    fn a_flush_does_not_cover_a_write_that_ends_after_it() {
        let (device, failures) = (Device::default(), Arc::default());
        let [a, b] = [(); 2].map(|()| controller(&failures));
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
        let [a, b] = [(); 2].map(|()| controller(&failures));
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
        let a = controller(&failures);
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
        let [a, b] = [(); 2].map(|()| controller(&failures));
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

    #[test]
    fn a_loss_that_no_host_was_told_of_is_met_by_the_next_flush() {
        let (device, failures) = (Device::default(), Arc::default());
        let [a, b] = [(); 2].map(|()| controller(&failures));
        a.begin();
        b.begin();
        assert_eq!(end_flush(&a, &device, Err(bad())).error(), Some(&bad()));
        assert_eq!(end_flush(&a, &device, Ok(())).error(), Some(&bad()), "no host was told");
        assert_eq!(flush(&a, &device, Ok(())), Err(bad()));
        assert_eq!(flush(&a, &device, Ok(())), Ok(()));
        // A host repeats a flush that met no loss: the answer to that one counts.
        let away = IoError::Unreachable("no route".into());
        assert_eq!(flush(&b, &device, Err(away.clone())), Err(away));
        assert_eq!(flush(&b, &device, Ok(())), Err(bad()));
    }

    #[test]
    fn a_host_hears_on_its_next_controller_of_what_the_last_one_has_left() {
        let (device, failures) = (Device::default(), Arc::default());
        let [a, b, c] = [0, 1, 2].map(|number| of_host(&failures, number));
        let other = of_host(&failures, 0);
        a.begin();
        let under_way = b.begin();
        b.leave();
        a.leave();
        assert_eq!(flush(&c, &device, Err(bad())), Err(bad()), "a third host");
        let [next, another] = [(); 2].map(|()| of_host(&failures, 0));
        assert_eq!(end_flush(&next, &device, Ok(())).error(), Some(&bad()), "no host was told");
        assert_eq!(flush(&other, &device, Ok(())), Err(bad()), "a controller that was there before");
        assert_eq!(flush(&another, &device, Ok(())), Ok(()), "once");
        // A write that ends when its controller is gone.
        let next = of_host(&failures, 1);
        assert_eq!(flush(&next, &device, Ok(())), Err(bad()));
        b.end(under_way);
        assert_eq!(flush(&next, &device, Ok(())), Err(bad()));
        assert_eq!(flush(&next, &device, Ok(())), Ok(()));
    }

    #[test]
    fn a_flush_that_outlives_its_controller_tells_the_next_one() {
        let (device, failures) = (Device::default(), Arc::default());
        let a = of_host(&failures, 0);
        a.begin();
        let mut cx = Context::from_waker(Waker::noop());
        let mut hangs = Box::pin(a.flush(&device));
        assert!(hangs.as_mut().poll(&mut cx).is_pending());
        a.leave();
        let next = of_host(&failures, 0);
        failures.add(&bad());
        assert_eq!(flush(&next, &device, Ok(())), Err(bad()), "while it goes on");
        drop(hangs);
        assert_eq!(flush(&of_host(&failures, 0), &device, Ok(())), Err(bad()), "it was given up");
        assert_eq!(flush(&next, &device, Ok(())), Ok(()));
    }

    #[test]
    fn hosts_that_do_not_come_back_take_a_bounded_amount_of_memory() {
        let (device, failures): (_, Arc<Failures>) = (Device::default(), Arc::default());
        let host = |number: usize| Arc::new(([0; 16], number.to_string()));
        for number in 0..=HOSTS_MAX {
            let written = Written::new(&failures, Some(&host(number)));
            written.begin();
            written.leave();
        }
        assert_eq!(lock(&failures.left).hosts.len(), HOSTS_MAX);
        failures.add(&bad());
        let back = |number| flush(&Arc::new(Written::new(&failures, Some(&host(number)))), &device, Ok(()));
        assert_eq!((back(0), back(1)), (Ok(()), Err(bad())), "the oldest one is forgotten");
    }
}
