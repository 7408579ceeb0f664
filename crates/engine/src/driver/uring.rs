//! The io_uring driver.
//!
//! Invariants:
//! - a slot lives from submission to completion; its index is the entry's
//!   user data, so no completion can reach a later operation;
//! - an operation whose future is dropped leaves its memory, and its
//!   descriptor, in its slot until the kernel reports its end: an entry that
//!   is queued and not submitted yet names the descriptor by its number, which
//!   must not be given to another file meanwhile;
//! - the submission queue never overflows: a full queue is submitted first.

use super::Signal;
use crate::exec::{try_with_core, with_core};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use slab::Slab;
use std::any::Any;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Submission queue entries: more than one round of a busy engine queues.
const ENTRIES: u32 = 512;
/// Completion queue entries: four times as many, so that bursts fit.
const CQ_ENTRIES: u32 = 2048;
/// Disk operations that are submitted together at most. A drive that gets
/// a whole queue at once finishes it at once, and idles while the next is
/// made: at 4 KiB × depth 32 groups of 4 instead of 32 gave a third more.
const DISK_BATCH: usize = 4;
/// User data of the read on the wake-up signal.
const SIGNAL: u64 = u64::MAX;
/// User data of cancellations, whose results are not needed.
const CANCEL: u64 = u64::MAX - 1;
/// How long the end of the engine waits for the kernel to release buffers.
const DRAIN: Duration = Duration::from_secs(2);

pub(crate) struct Uring {
    ring: IoUring,
    slots: Slab<Slot>,
    signal: Arc<Signal>,
    /// Disk operations queued since the last submission.
    disk: usize,
}

enum Slot {
    Waiting(Option<Waker>),
    Done(i32),
    /// The future was dropped; its memory is kept here until the kernel is done with it.
    Orphan(#[allow(dead_code, reason = "held for its destructor")] Box<dyn Any>),
}

impl Uring {
    pub(crate) fn new(signal: &Arc<Signal>) -> io::Result<Uring> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_clamp()
            .setup_cqsize(CQ_ENTRIES)
            .build(ENTRIES)?;
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel is too old"));
        }
        let mut uring = Uring { ring, slots: Slab::with_capacity(256), signal: Arc::clone(signal), disk: 0 };
        uring.watch_signal();
        // The probe: a ring may be granted and its entry forbidden.
        uring.enter(0, None)?;
        Ok(uring)
    }

    fn watch_signal(&mut self) {
        let poll = opcode::PollAdd::new(types::Fd(self.signal.raw()), libc::POLLIN as u32).build();
        // SAFETY: no memory involved.
        unsafe { self.push(&poll.user_data(SIGNAL)) };
    }

    /// # Safety
    /// Memory that the entry points to lives until its completion.
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: by the contract of this function.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            if let Err(e) = self.ring.submit()
                && !matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
            {
                panic!("io_uring submission failed: {e}");
            }
        }
    }

    /// # Safety
    /// As [`push`](Self::push).
    unsafe fn start(&mut self, entry: squeue::Entry) -> usize {
        let key = self.slots.insert(Slot::Waiting(None));
        // SAFETY: by the contract of this function.
        unsafe { self.push(&entry.user_data(key as u64)) };
        key
    }

    /// Keeps drives busy: submits the queue once it has enough requests for them.
    fn queued_for_disk(&mut self) {
        self.disk += 1;
        // An error shows again in the next round, which handles it.
        if self.disk >= DISK_BATCH && self.ring.submit().is_ok() {
            self.disk = 0;
        }
    }

    fn enter(&mut self, want: usize, wait: Option<Duration>) -> io::Result<()> {
        self.disk = 0;
        let result = match wait {
            Some(wait) if want > 0 => {
                let ts = types::Timespec::from(wait);
                self.ring.submitter().submit_with_args(want, &types::SubmitArgs::new().timespec(&ts))
            }
            _ if want > 0 => self.ring.submit_and_wait(want),
            // Runs deferred completions too, which a plain submit does not.
            _ => {
                let queued = self.ring.submission().len();
                // SAFETY: no signal mask is passed.
                unsafe {
                    self.ring.submitter().enter::<libc::sigset_t>(
                        queued as u32,
                        0,
                        1, // IORING_ENTER_GETEVENTS
                        None,
                    )
                }
            }
        };
        match result {
            Ok(_) => Ok(()),
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ETIME)
                ) =>
            {
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    pub(crate) fn poll(&mut self) -> bool {
        let (queued, deferred) = {
            let sq = self.ring.submission();
            (!sq.is_empty(), sq.taskrun() || sq.cq_overflow())
        };
        if (queued || deferred)
            && let Err(e) = self.enter(0, None)
        {
            panic!("io_uring_enter failed: {e}");
        }
        self.reap()
    }

    pub(crate) fn peek(&mut self) -> bool {
        self.ring.submission().taskrun() || !self.ring.completion().is_empty()
    }

    pub(crate) fn sleep(&mut self, wait: Option<Duration>) {
        if let Err(e) = self.enter(1, wait) {
            panic!("io_uring_enter failed: {e}");
        }
        self.reap();
    }

    /// Takes completions and wakes their tasks.
    fn reap(&mut self) -> bool {
        let mut any = false;
        let mut signalled = false;
        for cqe in self.ring.completion() {
            any = true;
            match cqe.user_data() {
                SIGNAL => signalled = true,
                CANCEL => {}
                key => complete(&mut self.slots, key as usize, &cqe),
            }
        }
        if signalled {
            self.signal.clear();
            self.watch_signal();
        }
        any
    }

    pub(crate) fn shut_down(&mut self) {
        let end = Instant::now() + DRAIN;
        self.slots.retain(|_, slot| !matches!(slot, Slot::Done(_)));
        while !self.slots.is_empty() && Instant::now() < end {
            if self.enter(1, Some(Duration::from_millis(50))).is_err() {
                break;
            }
            self.reap();
            self.slots.retain(|_, slot| !matches!(slot, Slot::Done(_)));
        }
        // What the kernel still holds is leaked rather than reused.
        std::mem::forget(std::mem::take(&mut self.slots));
    }
}

fn complete(slots: &mut Slab<Slot>, key: usize, cqe: &cqueue::Entry) {
    match std::mem::replace(&mut slots[key], Slot::Done(cqe.result())) {
        Slot::Waiting(Some(waker)) => waker.wake(),
        Slot::Waiting(None) => {}
        Slot::Orphan(memory) => {
            slots.remove(key);
            drop(memory);
        }
        Slot::Done(_) => unreachable!("one completion per entry"),
    }
}

/// An operation under way, with the memory and the descriptor that it uses.
pub(crate) struct Op<T: 'static> {
    key: usize,
    memory: Option<T>,
}

/// Starts an operation; it runs also if the result is dropped.
///
/// # Safety
/// `entry` points only to memory that `memory` owns at a stable address, or
/// that is static, and names a descriptor that `memory` keeps open.
pub(crate) unsafe fn op<T: 'static>(entry: squeue::Entry, memory: T) -> Op<T> {
    let key = with_core(|core| match &mut *core.driver.borrow_mut() {
        // SAFETY: by the contract of this function and of `Op`'s destructor.
        super::Driver::Uring(uring) => unsafe { uring.start(entry) },
        _ => unreachable!("io_uring operations are made on that driver only"),
    });
    Op { key, memory: Some(memory) }
}

/// As [`op`], for an operation on a drive.
///
/// # Safety
/// As there.
pub(crate) unsafe fn disk_op<T: 'static>(entry: squeue::Entry, memory: T) -> Op<T> {
    // SAFETY: by the contract of this function.
    let op = unsafe { op(entry, memory) };
    with_core(|core| {
        if let super::Driver::Uring(uring) = &mut *core.driver.borrow_mut() {
            uring.queued_for_disk();
        }
    });
    op
}

impl<T: Unpin> Future for Op<T> {
    type Output = (io::Result<u32>, T);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let done = with_core(|core| {
            let mut driver = core.driver.borrow_mut();
            let super::Driver::Uring(uring) = &mut *driver else { unreachable!() };
            match &mut uring.slots[self.key] {
                Slot::Done(result) => {
                    let result = *result;
                    uring.slots.remove(self.key);
                    Some(result)
                }
                Slot::Waiting(waker) => {
                    match waker {
                        Some(waker) => waker.clone_from(cx.waker()),
                        None => *waker = Some(cx.waker().clone()),
                    }
                    None
                }
                Slot::Orphan(_) => unreachable!("an orphan has no future"),
            }
        });
        let Some(result) = done else { return Poll::Pending };
        let memory = self.memory.take().expect("polled after it was done");
        let result = u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
        Poll::Ready((result, memory))
    }
}

impl<T: 'static> Drop for Op<T> {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let mut memory = Some(memory);
        // Destructors run when the driver is not borrowed.
        let mut free = None;
        try_with_core(|core| {
            let mut driver = core.driver.borrow_mut();
            let super::Driver::Uring(uring) = &mut *driver else { return };
            if matches!(uring.slots[self.key], Slot::Done(_)) {
                uring.slots.remove(self.key);
                free = memory.take();
                return;
            }
            if let Some(memory) = memory.take() {
                uring.slots[self.key] = Slot::Orphan(Box::new(memory));
            }
            let cancel = opcode::AsyncCancel::new(self.key as u64).build().user_data(CANCEL);
            // SAFETY: no memory involved.
            unsafe { uring.push(&cancel) };
        });
        drop(free);
        // Without an engine the kernel may still use the memory: leak it.
        if let Some(memory) = memory {
            std::mem::forget(memory);
        }
    }
}
