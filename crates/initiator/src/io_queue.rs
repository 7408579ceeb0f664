//! The I/O queue of one thread to a namespace. It outlives connections: `reconnect` resends the
//! commands that a lost one left unanswered.
//!
//! Invariants:
//! - a call is with the queue of the current session, held here, or done;
//! - held calls are sent in the order of their submission, except for reads, which overtake changes
//!   that wait for fencing;
//! - while a held call could be sent, no later one is sent before it;
//! - an acknowledged call is never resent; any other is resent until it is acknowledged, or the
//!   controller is lost for good.

mod reconnect;

use crate::call::{Call, CommandFate, Data, Pending, Waiting};
use crate::controller::Controller;
use crate::error::Result;
use crate::queue::{Queue, take_where};
use longhaul_block::IoError;
use longhaul_engine::net::TcpInfo;
use longhaul_engine::spawn;
use longhaul_engine::sync::Notify;
use longhaul_wire::command::Sqe;
use longhaul_wire::completion::Status;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// The calls that may be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    /// Nothing: there is no connection.
    Shut,
    /// Reads: an earlier connection may still have effects.
    Reads,
    Open,
}

/// Another path to the same namespace, on the same thread.
pub(crate) trait OtherPath {
    /// Takes over calls that nothing of this path can have an effect of any more, and reads; gives back
    /// those that no other path can take now.
    fn take_over(&self, calls: Vec<Waiting>) -> Vec<Waiting>;

    /// Whether any other path may ever take calls.
    fn may_return(&self) -> bool;

    /// Takes over a call that this path has refused with a path status, without an effect.
    fn refused(&self, call: Waiting, status: Status);
}

/// Another path, once there is one.
pub(crate) type OtherPathCell = Rc<RefCell<Option<Rc<dyn OtherPath>>>>;

/// See [`IoQueue::relieve`].
type Relief = Box<dyn Fn(Vec<Waiting>) -> Vec<Waiting>>;

/// See the module. Dropping it ends it once everything is done.
pub(crate) struct IoQueue(Rc<IoQueueInner>);

pub(crate) struct IoQueueInner {
    pub(crate) controller: Arc<Controller>,
    /// Block size as a power of two.
    pub(crate) shift: u32,
    /// Largest transfer of one command now, in bytes.
    max_transfer: Cell<u32>,
    gate: Cell<Gate>,
    queue: RefCell<Option<Rc<Queue>>>,
    /// Epoch and identifier of the queue.
    place: Cell<(u64, u16)>,
    held: RefCell<VecDeque<Waiting>>,
    /// The controller is lost for good.
    failed: RefCell<Option<IoError>>,
    next_seq: Rc<Cell<u64>>,
    /// Takes the held calls if the controller grants it no queue, and
    /// gives back those that no other I/O queue can take.
    relief: RefCell<Option<Relief>>,
    /// Takes the held calls while the controller is away.
    other_path: OtherPathCell,
    submitted_bytes: Cell<u64>,
    done_bytes: Rc<Cell<u64>>,
    closing: Cell<bool>,
    wake: Notify,
}

impl IoQueue {
    /// Connects: it, and the round trips that took. `next_seq` numbers
    /// commands; I/O queues may share it.
    ///
    /// # Errors
    /// The first connection cannot be had; later ones are tried for.
    pub(crate) async fn open(
        controller: &Arc<Controller>,
        shift: u32,
        next_seq: Rc<Cell<u64>>,
    ) -> Result<(IoQueue, u32)> {
        let inner = Rc::new(IoQueueInner {
            controller: Arc::clone(controller),
            shift,
            max_transfer: Cell::new(0),
            gate: Cell::new(Gate::Shut),
            queue: RefCell::default(),
            place: Cell::default(),
            held: RefCell::default(),
            failed: RefCell::default(),
            next_seq,
            relief: RefCell::default(),
            other_path: Rc::default(),
            submitted_bytes: Cell::new(0),
            done_bytes: Rc::default(),
            closing: Cell::new(false),
            wake: Notify::new(),
        });
        let (session, (queue, qid, round_trips)) = inner.first().await?;
        controller.enter();
        inner.adopt(&session, queue, qid);
        spawn(Rc::clone(&inner).run(session)).detach();
        Ok((IoQueue(inner), round_trips))
    }

    /// Submits a command, now or as soon as that is possible.
    pub(crate) fn submit(&self, sqe: Sqe, data: Data) -> Pending {
        let io_queue = &*self.0;
        let (seq, ahead) = (io_queue.next_seq.get(), io_queue.submitted_bytes.get());
        io_queue.next_seq.set(seq + 1);
        io_queue.submitted_bytes.set(ahead + data.len() as u64);
        let call = Call::new(sqe, CommandFate::IsKept, seq, ahead);
        let waiting = Waiting { call: Rc::clone(&call), data };
        if io_queue.gate.get() == Gate::Open
            && let Some(queue) = &*io_queue.queue.borrow()
        {
            if let Err((waiting, _)) = queue.push(waiting) {
                io_queue.held.borrow_mut().push_back(waiting);
            }
        } else {
            io_queue.submit_slowly(waiting);
        }
        Pending(call)
    }

    /// Largest transfer of one command, in bytes.
    pub(crate) fn max_transfer(&self) -> usize {
        self.0.max_transfer.get() as usize
    }

    /// Whether commands go to the controller as they are submitted.
    pub(crate) fn is_connected(&self) -> bool {
        self.0.gate.get() == Gate::Open
    }

    /// What TCP knows of the connection, if there is one.
    pub(crate) fn tcp_info(&self) -> Option<TcpInfo> {
        self.0.queue.borrow().as_ref()?.channel().info().ok()
    }

    /// Has `relief` take over held calls whenever the controller grants this thread no queue, where
    /// they would wait although other threads could send them.
    pub(crate) fn relieve(&self, relief: Relief) {
        *self.0.relief.borrow_mut() = Some(relief);
    }

    /// Takes over a command of another I/O queue that was not acknowledged.
    pub(crate) fn take_over(&self, waiting: Waiting) {
        let seq = waiting.call.seq;
        self.take_over_as(waiting, seq);
    }

    fn take_over_as(&self, waiting: Waiting, seq: u64) {
        let Waiting { call, data } = waiting;
        let io_queue = &self.0;
        let ahead = io_queue.submitted_bytes.get();
        io_queue.submitted_bytes.set(ahead + data.len() as u64);
        let ours = Call::new(call.sqe, CommandFate::IsKept, seq, ahead);
        ours.refused.set(call.refused.get());
        let pending = Pending(Rc::clone(&ours));
        spawn(async move { call.finish(pending.await) }).detach();
        io_queue.held.borrow_mut().push_back(Waiting { call: ours, data });
        io_queue.open_gate();
    }

    /// Has another path take over held calls while the controller is away.
    pub(crate) fn set_other_path(&self, other: Rc<dyn OtherPath>) {
        *self.0.other_path.borrow_mut() = Some(other);
    }

    /// Takes over a command of another path, under a number of its own.
    pub(crate) fn take_from_other_path(&self, waiting: Waiting) {
        let seq = self.0.next_seq.get();
        self.0.next_seq.set(seq + 1);
        self.take_over_as(waiting, seq);
    }

    /// A handle that does not keep the I/O queue open.
    pub(crate) fn downgrade(&self) -> std::rc::Weak<IoQueueInner> {
        Rc::downgrade(&self.0)
    }
}

impl Drop for IoQueue {
    fn drop(&mut self) {
        let io_queue = &self.0;
        io_queue.closing.set(true);
        if io_queue.held.borrow().is_empty()
            && let Some(queue) = &*io_queue.queue.borrow()
        {
            queue.close_when_done();
        }
        io_queue.wake.notify();
    }
}

impl IoQueueInner {
    fn max_transfer(&self) -> usize {
        self.max_transfer.get() as usize
    }

    #[cold]
    fn submit_slowly(&self, waiting: Waiting) {
        if let Some(e) = &*self.failed.borrow() {
            return waiting.call.finish(Err(e.clone()));
        }
        let waiting = match &*self.queue.borrow() {
            Some(queue) if self.gate.get() == Gate::Reads && !waiting.call.changes() => {
                match queue.push(waiting) {
                    Ok(()) => return,
                    Err((waiting, _)) => waiting,
                }
            }
            _ => waiting,
        };
        self.held.borrow_mut().push_back(waiting);
    }

    /// Bytes of commands that are done.
    pub(crate) fn done_bytes(&self) -> u64 {
        self.done_bytes.get()
    }

    /// Has a command under way aborted. Whether it was.
    pub(crate) fn abort_on_wire(&self, cid: u16) -> impl Future<Output = bool> + use<> {
        let (controller, (epoch, qid)) = (Arc::clone(&self.controller), self.place.get());
        async move { controller.abort(epoch, qid, cid).await }
    }

    /// Aborts commands by their numbers: those not sent yet are dropped; for the others the target
    /// is asked. Returns when it has answered.
    pub(crate) async fn abort(self: Rc<Self>, which: Range<u64>) {
        let queue = self.queue.borrow().clone();
        let mut unsent = take_where(&mut self.held.borrow_mut(), |call| which.contains(&call.seq));
        let mut sent = Vec::new();
        if let Some(queue) = &queue {
            unsent.extend(queue.take_waiting(|call| which.contains(&call.seq)));
            queue.each(|call, cid| {
                if which.contains(&call.seq) {
                    call.unwanted.set(true);
                    sent.push(self.abort_on_wire(cid));
                }
            });
        }
        for waiting in unsent {
            waiting.call.finish(Err(IoError::Aborted));
        }
        futures_util::future::join_all(sent).await;
    }
}
