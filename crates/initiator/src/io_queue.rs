//! A way for the I/O of one thread to a namespace that outlives connections.
//!
//! Invariants:
//! - a call is with the queue of the current session, held here, or done;
//! - held calls go in the order of their submission, but for reads, which pass
//!   changes that wait for fencing;
//! - while anything is held that could go, nothing later goes directly;
//! - a call that was acknowledged is never sent again, one that was not is sent
//!   again until it is, or the controller is lost for good.

use crate::call::{Call, Data, Fate, Pending, Waiting};
use crate::controller::Controller;
use crate::error::{self, Error, Result};
use crate::queue::{Queue, take_where};
use crate::session::Session;
use crate::split::split;
use crate::watch::watch;
use futures_util::FutureExt;
use longhaul_block::IoError;
use longhaul_engine::net::TcpInfo;
use longhaul_engine::sync::Notify;
use longhaul_engine::{now, sleep, spawn, timeout};
use longhaul_wire::command::Sqe;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Time for the last words of a queue (why it ends the connection) to go.
const FAREWELL: Duration = Duration::from_secs(1);
/// Wait before a queue is asked for again that the controller does not grant,
/// or whose connection it does not take.
const NO_QUEUE: Duration = Duration::from_millis(500);
/// How often a first connection is tried that is not taken although the
/// controller is there.
const TRIES: u32 = 3;

/// What may go to the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    /// Nothing: there is no connection.
    Shut,
    /// Reads: an earlier connection may still have effects.
    Reads,
    Open,
}

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
        let call = Call::new(sqe, Fate::IsKept, seq, ahead);
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
        self.0.queue.borrow().as_ref()?.stream().info().ok()
    }

    /// Has `relief` take over what is held whenever the controller grants this
    /// one no queue, where it would wait although others could do it.
    pub(crate) fn relieve(&self, relief: Relief) {
        *self.0.relief.borrow_mut() = Some(relief);
    }

    /// Takes over a command of another I/O queue that was not acknowledged.
    pub(crate) fn take_over(&self, waiting: Waiting) {
        let Waiting { call, data } = waiting;
        let io_queue = &self.0;
        let ahead = io_queue.submitted_bytes.get();
        io_queue.submitted_bytes.set(ahead + data.len() as u64);
        let ours = Call::new(call.sqe, Fate::IsKept, call.seq, ahead);
        let pending = Pending(Rc::clone(&ours));
        spawn(async move { call.finish(pending.await) }).detach();
        io_queue.held.borrow_mut().push_back(Waiting { call: ours, data });
        io_queue.open_gate();
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
    /// The first queue, as [`Session::open_queue`] gives it.
    async fn first(&self) -> Result<(Arc<Session>, (Queue, u16, u32))> {
        let mut tries = 1;
        loop {
            let session = self.controller.session().await.map_err(|e| {
                let addr = self.controller.info().address.clone();
                Error::Unreachable { addr, reason: error::reason(&e), connect: None }
            })?;
            match session.open_queue(&self.done_bytes).await {
                Ok(opened) => return Ok((session, opened)),
                Err(e @ (Error::Refused { .. } | Error::NotFound(_) | Error::Local(_))) => return Err(e),
                // It takes no more connections than it has.
                Err(e) if self.is_there(&session).await => {
                    if tries == TRIES {
                        let why = format!("{}; the others go on", e);
                        return Err(session.endpoint.refused("another connection", why));
                    }
                    tries += 1;
                    sleep(NO_QUEUE).await;
                }
                Err(e) => {
                    if !session.has_ended() {
                        self.controller.lost(session.epoch, e.to_string());
                    }
                    if self.controller.settings.options.ctrl_loss.is_some_and(|limit| limit.is_zero()) {
                        return Err(e);
                    }
                    self.controller.ended(session.epoch).await;
                }
            }
        }
    }

    /// Whether the controller answers, so that the connection to it that failed
    /// was one by itself.
    async fn is_there(&self, session: &Session) -> bool {
        let limit = self.controller.settings.options.connect_timeout.min(session.endpoint.patience);
        !session.has_ended()
            && timeout(limit, self.controller.namespaces()).await.is_ok_and(|answer| answer.is_ok())
            && !session.has_ended()
    }

    fn adopt(&self, session: &Session, queue: Queue, qid: u16) {
        let limit = session.info.max_transfer.unwrap_or(u64::MAX);
        let limit = limit.min(self.controller.settings.options.max_transfer.into()) as u32;
        let block = 1u32 << self.shift;
        self.max_transfer.set((limit / block * block).max(block));
        self.place.set((session.epoch, qid));
        *self.queue.borrow_mut() = Some(Rc::new(queue));
        self.open_gate();
    }

    /// Lets go what may go now.
    fn open_gate(&self) {
        let Some(queue) = self.queue.borrow().clone() else { return };
        let open = self.controller.is_open_for(self.place.get().0);
        let mut going = match open {
            true => std::mem::take(&mut *self.held.borrow_mut()),
            false => take_where(&mut self.held.borrow_mut(), |call| !call.changes()).into(),
        };
        let max = self.max_transfer();
        while let Some(waiting) = going.pop_front() {
            if waiting.data.len() > max {
                for part in split(waiting, max, self.shift).into_iter().rev() {
                    going.push_front(part);
                }
                continue;
            }
            if let Err((waiting, _)) = queue.push(waiting) {
                // It has ended already: all of it waits for the next one.
                let mut held = self.held.borrow_mut();
                held.push_back(waiting);
                held.extend(going);
                held.make_contiguous().sort_by_key(|waiting| waiting.call.seq);
                return;
            }
        }
        self.gate.set(if open { Gate::Open } else { Gate::Reads });
        if open && self.closing.get() {
            queue.close_when_done();
        }
    }

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

    /// Keeps the I/O queue connected until its last user drops it, or the controller
    /// is lost for good.
    async fn run(self: Rc<Self>, mut session: Arc<Session>) {
        loop {
            let reason = self.serve(&session).await;
            if self.closing.get() && self.held.borrow().is_empty() {
                break;
            }
            self.controller.lost(session.epoch, reason);
            match self.next(session.epoch).await {
                Some(Ok(next)) => session = next,
                Some(Err(e)) => {
                    self.fail(&e);
                    break;
                }
                None => break,
            }
        }
        self.controller.leave();
    }

    /// Serves the queue until it is over: why it is. What it leaves undone is
    /// held.
    async fn serve(&self, session: &Session) -> String {
        let Some(queue) = self.queue.borrow().clone() else { return String::new() };
        let epoch = session.epoch;
        let (reason, survivors) = {
            let mut over = Box::pin(queue.over().fuse());
            let mut ended = Box::pin(self.controller.ended(epoch).fuse());
            let mut dead = Box::pin(watch(self, &queue, session).fuse());
            let mut open = Box::pin(self.controller.open_for(epoch).fuse());
            loop {
                futures_util::select_biased! {
                    result = over => break result,
                    () = ended => queue.abandon(IoError::Unreachable("the session has ended".into())),
                    reason = dead => queue.abandon(IoError::Unreachable(reason)),
                    () = open => self.open_gate(),
                }
            }
        };
        self.gate.set(Gate::Shut);
        *self.queue.borrow_mut() = None;
        let mut held = self.held.borrow_mut();
        for waiting in survivors {
            if waiting.call.unwanted.get() {
                waiting.call.finish(Err(IoError::Aborted));
            } else {
                held.push_back(waiting);
            }
        }
        held.make_contiguous().sort_by_key(|waiting| waiting.call.seq);
        spawn(async move {
            sleep(FAREWELL).await;
            queue.abandon(IoError::Aborted);
        })
        .detach();
        error::reason(&reason)
    }

    /// Connects to the next session; nothing if the I/O queue is closing and holds no
    /// call.
    async fn next(&self, mut epoch: u64) -> Option<std::result::Result<Arc<Session>, IoError>> {
        let since = now();
        let mut warned = 0;
        loop {
            let connect = async move {
                self.controller.ended(epoch).await;
                let session = self.controller.session().await?;
                Ok((session.open_queue(&self.done_bytes).await, session))
            };
            let mut connect = Box::pin(connect.fuse());
            let result = loop {
                futures_util::select_biased! {
                    result = connect => break result,
                    () = self.wake.notified().fuse() => {
                        if self.closing.get() && self.held.borrow().is_empty() {
                            return None;
                        }
                    }
                }
            };
            let (result, session) = match result {
                Ok(found) => found,
                Err(e) => return Some(Err(e)),
            };
            match result {
                Ok((queue, qid, _)) => {
                    self.adopt(&session, queue, qid);
                    return Some(Ok(session));
                }
                Err(e) if matches!(e, Error::Refused { .. }) || self.is_there(&session).await => {
                    if let Some(relief) = &*self.relief.borrow() {
                        // Not borrowed while the relief works: it may come back here.
                        let held = self.held.take();
                        let left = relief(held.into());
                        self.held.borrow_mut().extend(left);
                    }
                    let limit = self.controller.settings.options.ctrl_loss;
                    if limit.is_some_and(|limit| longhaul_engine::since(since) >= limit) {
                        return Some(Err(IoError::Unreachable(e.to_string())));
                    }
                    if std::mem::replace(&mut warned, session.epoch) != session.epoch {
                        tracing::warn!("{e}; the I/O of a thread waits for it");
                    }
                    sleep(NO_QUEUE).await;
                    // The same session may do later.
                    epoch = session.epoch.wrapping_sub(1);
                }
                Err(e) => {
                    self.controller.lost(session.epoch, e.to_string());
                    epoch = session.epoch;
                }
            }
        }
    }

    /// Everything fails, now and later.
    fn fail(&self, reason: &IoError) {
        *self.failed.borrow_mut() = Some(reason.clone());
        let held = std::mem::take(&mut *self.held.borrow_mut());
        for waiting in held {
            waiting.call.finish(Err(reason.clone()));
        }
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

    /// Aborts commands by their numbers: what is not sent yet never is; for
    /// what was, the target is asked. Ends when it has answered.
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
