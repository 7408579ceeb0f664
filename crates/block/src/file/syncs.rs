//! Syncs of one descriptor at the same time: all of them hear of a failure.
//!
//! The kernel reports data that it could not write once to each open file description: to one of
//! the calls for it. Another call at the same time may return success before the first one has
//! returned the error, and what it answers for is lost.
//!
//! Invariants:
//! - a sync that begins before another one has returned an error, and ends after the kernel may
//!   have given that error away, fails too;
//! - a sync waits only for calls of the kernel, never for one that waits itself.

use crate::{IoError, IoResult};
use futures_channel::oneshot;
use std::future::Future;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The syncs of a descriptor, among them writes that are durable when they end.
#[derive(Default)]
pub(super) struct Syncs(Mutex<SyncsState>);

#[derive(Default)]
struct SyncsState {
    /// Syncs that have failed, and the last error.
    failures: u64,
    last: Option<IoError>,
    /// The number of the next sync.
    next: u64,
    /// Those that the kernel is busy with; they are few.
    under_way: Vec<u64>,
    /// Each waits until none with a number below this one is under way.
    waiting: Vec<(u64, oneshot::Sender<()>)>,
}

impl Syncs {
    fn lock(&self) -> MutexGuard<'_, SyncsState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does a sync, which fails also if another one fails meanwhile.
    pub(super) async fn sync(&self, call: impl Future<Output = io::Result<()>>) -> IoResult<()> {
        let sync = Sync::begin(self);
        let since = sync.since;
        call.await.map_err(|e| sync.fail(e.into()))?;
        if let Some(others) = sync.end() {
            // The sender is dropped when they have ended.
            let _ = others.await;
        }
        let state = self.lock();
        match &state.last {
            Some(e) if state.failures > since => Err(e.clone()),
            _ => Ok(()),
        }
    }

    /// Does a write that is durable when it ends, and whose own errors the kernel returns to it
    /// alone. So it waits for no other sync; but it may be told of what others have lost.
    pub(super) async fn write(&self, call: impl Future<Output = io::Result<()>>) -> IoResult<()> {
        let sync = Sync::begin(self);
        call.await.map_err(|e| sync.fail(e.into()))
    }
}

/// A sync that the kernel is busy with; dropped, it is so no more.
struct Sync<'a> {
    all: &'a Syncs,
    number: u64,
    /// The failures before it.
    since: u64,
}

impl Sync<'_> {
    fn begin(all: &Syncs) -> Sync<'_> {
        let mut state = all.lock();
        let number = state.next;
        state.next += 1;
        state.under_way.push(number);
        Sync { all, number, since: state.failures }
    }

    /// It has failed: so do all others that are under way, or wait.
    fn fail(&self, e: IoError) -> IoError {
        let mut state = self.all.lock();
        state.failures += 1;
        state.last = Some(e.clone());
        e
    }

    /// It has succeeded; what resolves once those under way have ended, if there are any.
    fn end(self) -> Option<oneshot::Receiver<()>> {
        let mut state = self.all.lock();
        if state.under_way.iter().all(|number| *number == self.number) {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        let until = state.next;
        state.waiting.push((until, sender));
        Some(receiver)
    }
}

impl Drop for Sync<'_> {
    fn drop(&mut self) {
        let mut state = self.all.lock();
        state.under_way.retain(|number| *number != self.number);
        let first = state.under_way.iter().min().copied().unwrap_or(u64::MAX);
        let done: Vec<_> = state.waiting.extract_if(.., |(until, _)| *until <= first).collect();
        // Wakes those that wait, which look at the state.
        drop(state);
        drop(done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    type Call = oneshot::Sender<io::Result<()>>;
    type Going<'a> = Pin<Box<dyn Future<Output = IoResult<()>> + 'a>>;

    fn poll(sync: &mut Going<'_>) -> Poll<IoResult<()>> {
        sync.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    fn call() -> (Call, impl Future<Output = io::Result<()>>) {
        let (sender, receiver) = oneshot::channel();
        (sender, async move { receiver.await.expect("it ends") })
    }

    /// A sync that the kernel is busy with, until its call gets a result.
    fn begin(syncs: &Syncs) -> (Call, Going<'_>) {
        let (sender, call) = call();
        let mut sync: Going<'_> = Box::pin(syncs.sync(call));
        assert!(poll(&mut sync).is_pending());
        (sender, sync)
    }

    fn begin_write(syncs: &Syncs) -> (Call, Going<'_>) {
        let (sender, call) = call();
        let mut write: Going<'_> = Box::pin(syncs.write(call));
        assert!(poll(&mut write).is_pending());
        (sender, write)
    }

    /// Ends the call of a sync with this result.
    fn end(call: Call, sync: &mut Going<'_>, result: io::Result<()>) -> Poll<IoResult<()>> {
        call.send(result).expect("it waits for the call");
        poll(sync)
    }

    fn full() -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }

    const LOST: Poll<IoResult<()>> = Poll::Ready(Err(IoError::NoSpace));
    const DONE: Poll<IoResult<()>> = Poll::Ready(Ok(()));

    #[test]
    fn a_sync_that_succeeds_first_hears_of_the_failure_of_another() {
        let syncs = Syncs::default();
        let (first, mut lost) = begin(&syncs);
        let (second, mut sync) = begin(&syncs);
        assert!(end(second, &mut sync, Ok(())).is_pending(), "the first may have got the error");
        // It began after the second had returned: this one does not wait for it.
        let (third, mut later) = begin(&syncs);
        assert_eq!(end(first, &mut lost, full()), LOST);
        assert_eq!(poll(&mut sync), LOST);
        assert_eq!(end(third, &mut later, Ok(())), LOST, "it began before the error was returned");
        let (call, mut sync) = begin(&syncs);
        assert_eq!(end(call, &mut sync, Ok(())), DONE, "that failure was before it");
    }

    #[test]
    fn a_durable_write_is_a_sync_to_others() {
        let syncs = Syncs::default();
        let (write, mut lost) = begin_write(&syncs);
        let (other, mut written) = begin_write(&syncs);
        let (call, mut sync) = begin(&syncs);
        assert_eq!(end(other, &mut written, Ok(())), DONE, "it waits for none");
        assert!(end(call, &mut sync, Ok(())).is_pending());
        assert_eq!(end(write, &mut lost, full()), LOST);
        assert_eq!(poll(&mut sync), LOST);
    }

    #[test]
    fn syncs_that_succeed_wait_for_those_before_their_end_alone() {
        let syncs = Syncs::default();
        let (call, mut alone) = begin(&syncs);
        assert_eq!(end(call, &mut alone, Ok(())), DONE);
        let (first, mut one) = begin(&syncs);
        let (second, mut two) = begin(&syncs);
        assert!(end(second, &mut two, Ok(())).is_pending());
        let (_third, _later) = begin(&syncs);
        drop((first, one));
        assert_eq!(poll(&mut two), DONE, "one that is given up keeps no other one waiting");
        let (first, waits) = begin(&syncs);
        one = waits;
        assert!(end(first, &mut one, Ok(())).is_pending());
    }
}
