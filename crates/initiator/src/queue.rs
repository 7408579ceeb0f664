//! A queue of a controller, on one connection.
//!
//! Invariants:
//! - a call is in exactly one place: waiting for room, in its slot, parked, or
//!   done;
//! - calls that wait are started in the order they came;
//! - once the connection has ended, calls that fail with it have failed, every
//!   later one fails at once with the reason, and calls that are kept are given
//!   back once, in the order of their submission, when no receive can touch
//!   their memory any more.

use crate::call::{Call, CommandFate, Data, Done, Pending, Waiting};
use crate::io_queue::OtherPathCell;
use longhaul_block::IoError;
use longhaul_conn::{Channel, Driver, Ended, Shared, receive, transmit};
use longhaul_engine::net::Life;
use longhaul_engine::sync::Notify;
use longhaul_engine::{Memory, Segment, spawn};
use longhaul_proto::host::{HostData, HostEvent, HostQueue};
use longhaul_proto::transport::Endpoint;
use longhaul_wire::command::Sqe;
use longhaul_wire::completion::Status;
use longhaul_wire::digest::crc32c;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Staging area of an I/O queue: a full queue of small responses.
const STAGING: usize = 64 << 10;

#[derive(Default)]
struct Slot {
    memory: Option<Memory>,
    call: Option<Rc<Call>>,
}

/// Signs of life that queues share with the thread that looks for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Signs {
    /// Something came from the controller since the keep-alive timer looked.
    pub(crate) traffic: Arc<AtomicBool>,
    /// A command that is kept has been completed on this association.
    pub(crate) work: Arc<AtomicBool>,
}

/// The state that the tasks of a queue share.
struct QueueInner {
    shared: Shared<HostQueue>,
    slots: RefCell<Vec<Slot>>,
    waiting: RefCell<VecDeque<Waiting>>,
    /// The controller has given them back unexecuted, since it stops.
    parked: RefCell<Vec<Waiting>>,
    /// Why the connection has ended.
    ended: RefCell<Option<IoError>>,
    /// Commands to resend, once no receive can touch their memory any more.
    survivors: RefCell<Option<Vec<Waiting>>>,
    over: Notify,
    /// End when the last command is done.
    closing: Cell<bool>,
    signs: Signs,
    /// Bytes of kept commands that are done, over all connections of an I/O queue.
    done_bytes: Rc<Cell<u64>>,
    /// Number of commands that have completed.
    completed: Cell<u64>,
    /// Whether [`Signs::work`] was given.
    worked: Cell<bool>,
    /// Nothing is under way, as far as the watch knows.
    idle: Cell<bool>,
    busy: Notify,
    /// Takes the commands that the controller refuses since it does not serve the namespace.
    other_path: RefCell<OtherPathCell>,
    /// Dropped when the connection ends; see [`Queue::keep`].
    kept: RefCell<Option<Box<dyn Any>>>,
}

/// A queue. Dropping it ends the connection once all commands are done.
pub(crate) struct Queue {
    inner: Rc<QueueInner>,
}

impl Queue {
    /// Serves a connection whose parameters are agreed on (see
    /// [`crate::handshake`]) from the calling engine thread.
    pub(crate) fn serve(
        queue: HostQueue,
        channel: Channel,
        signs: Signs,
        done_bytes: Rc<Cell<u64>>,
    ) -> Queue {
        let inner = Rc::new(QueueInner {
            shared: Shared::new(queue, channel),
            slots: RefCell::default(),
            waiting: RefCell::default(),
            parked: RefCell::default(),
            ended: RefCell::default(),
            survivors: RefCell::default(),
            over: Notify::new(),
            closing: Cell::new(false),
            signs,
            done_bytes,
            completed: Cell::new(0),
            worked: Cell::new(false),
            idle: Cell::new(true),
            busy: Notify::new(),
            other_path: RefCell::default(),
            kept: RefCell::default(),
        });
        let (rx, tx) = (Rc::clone(&inner), Rc::clone(&inner));
        spawn(async move {
            let ended = receive(&rx.shared, &*rx, STAGING).await;
            rx.end(IoError::Unreachable(ended.to_string()), matches!(ended, Ended::Eof | Ended::Io(_)));
            rx.give_back();
        })
        .detach();
        spawn(async move {
            if let Err(e) = transmit(&tx.shared, &*tx).await {
                tx.end(IoError::Unreachable(e.to_string()), true);
            }
        })
        .detach();
        Queue { inner }
    }

    /// Submits a command that fails with the connection, now or as soon as
    /// there is room.
    pub(crate) fn submit(&self, sqe: Sqe, data: Data) -> Pending {
        let call = Call::new(sqe, CommandFate::Fails, 0, 0);
        if let Err((waiting, reason)) = self.push(Waiting { call: Rc::clone(&call), data }) {
            waiting.call.finish(Err(reason));
        }
        Pending(call)
    }

    /// Submits a call, or gives it back if the connection has ended or the
    /// controller takes no more.
    #[inline]
    pub(crate) fn push(&self, waiting: Waiting) -> Result<(), (Waiting, IoError)> {
        let inner = &self.inner;
        if let Some(reason) = &*inner.ended.borrow() {
            return Err((waiting, reason.clone()));
        }
        if inner.is_leaving() {
            return Err((waiting, IoError::Unreachable("the controller stops".into())));
        }
        if inner.waiting.borrow().is_empty() && inner.shared.queue.borrow().room() > 0 {
            inner.begin(waiting);
            inner.shared.output.notify();
        } else {
            inner.waiting.borrow_mut().push_back(waiting);
        }
        if inner.idle.replace(false) {
            inner.busy.notify();
        }
        Ok(())
    }

    /// Waits until the connection has ended; returns the reason, and its unfinished commands.
    pub(crate) async fn over(&self) -> (IoError, Vec<Waiting>) {
        let inner = &self.inner;
        loop {
            if let Some(survivors) = inner.survivors.take() {
                let reason = inner.ended.borrow().clone();
                return (reason.unwrap_or(IoError::Aborted), survivors);
            }
            inner.over.notified().await;
        }
    }

    /// Waits until commands are under way.
    pub(crate) async fn busy(&self) {
        while self.inner.shared.queue.borrow().outstanding() == 0 {
            self.inner.idle.set(true);
            self.inner.busy.notified().await;
        }
    }

    /// Whether the connection has ended, and nothing is submitted to it any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.inner.ended.borrow().is_some() || self.inner.is_leaving()
    }

    /// Commands under way.
    pub(crate) fn outstanding(&self) -> usize {
        self.inner.shared.queue.borrow().outstanding()
    }

    /// Changes whenever bytes go or come, or a command is completed.
    pub(crate) fn progress(&self) -> u64 {
        self.inner.shared.progress.get() + self.inner.completed.get()
    }

    /// What TCP knows of the other end.
    pub(crate) fn life(&self) -> Option<Life> {
        self.inner.shared.stream.life().ok()
    }

    /// Calls `f` with each kept command under way, and its identifier.
    pub(crate) fn each(&self, mut f: impl FnMut(&Rc<Call>, u16)) {
        let queue = self.inner.shared.queue.borrow();
        for (slot, s) in (0u16..).zip(&*self.inner.slots.borrow()) {
            if let Some(call) = s.call.as_ref().filter(|call| call.fate == CommandFate::IsKept) {
                f(call, queue.cid(slot));
            }
        }
    }

    /// Takes what waits for room and satisfies `which`.
    pub(crate) fn take_waiting(&self, which: impl Fn(&Call) -> bool) -> Vec<Waiting> {
        take_where(&mut self.inner.waiting.borrow_mut(), which)
    }

    /// Keeps `what` for as long as the connection lives: longer than this
    /// handle, if commands are under way.
    pub(crate) fn keep(&self, what: impl Any) {
        if self.inner.ended.borrow().is_none() {
            *self.inner.kept.borrow_mut() = Some(Box::new(what));
        }
    }

    /// Has another path, once there is one, take the commands that the controller refuses.
    pub(crate) fn set_other_path(&self, other: OtherPathCell) {
        *self.inner.other_path.borrow_mut() = other;
    }

    /// Entries that the controller takes, before the first command.
    pub(crate) fn limit_entries(&self, entries: u16) {
        self.inner.shared.queue.borrow_mut().limit_entries(entries);
    }

    /// In-capsule data that the controller takes, in bytes.
    pub(crate) fn set_in_capsule(&self, bytes: u32) {
        self.inner.shared.queue.borrow_mut().set_in_capsule(bytes);
    }

    /// The same for Fabrics commands.
    pub(crate) fn set_fabrics_in_capsule(&self, bytes: u32) {
        self.inner.shared.queue.borrow_mut().set_fabrics_in_capsule(bytes);
    }

    /// Digests in use, for headers and for data.
    pub(crate) fn digests(&self) -> (bool, bool) {
        let params = self.inner.shared.queue.borrow().params();
        (params.header_digest, params.data_digest)
    }

    /// Whether the connection is encrypted.
    pub(crate) fn is_secure(&self) -> bool {
        self.inner.shared.stream.is_secure()
    }

    /// Ends the connection after queued PDUs; commands under way fail.
    pub(crate) fn close(&self) {
        self.inner.end(IoError::Unreachable("the queue was closed".into()), false);
    }

    /// Ends the connection at once: queued PDUs are dropped.
    pub(crate) fn abandon(&self, reason: IoError) {
        self.inner.end(reason, true);
    }

    /// Ends the connection once all commands are done.
    pub(crate) fn close_when_done(&self) {
        self.inner.closing.set(true);
        self.inner.close_if_done();
    }

    /// The queue's connection.
    pub(crate) fn channel(&self) -> &Channel {
        &self.inner.shared.stream
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.close_when_done();
    }
}

/// Takes the calls out that satisfy `which`; the others keep their order.
pub(crate) fn take_where(calls: &mut VecDeque<Waiting>, which: impl Fn(&Call) -> bool) -> Vec<Waiting> {
    let (taken, left) = std::mem::take(calls).into_iter().partition::<Vec<_>, _>(|w| which(&w.call));
    calls.extend(left);
    taken
}

impl QueueInner {
    fn begin(&self, waiting: Waiting) {
        let Waiting { call, data } = waiting;
        let (kind, memory) = match data {
            Data::None => (HostData::None, None),
            Data::Write(memory) => (HostData::Write { len: memory.len() as u32 }, Some(memory)),
            Data::Read(memory) => (HostData::Read { len: memory.len() as u32 }, Some(memory)),
        };
        // The caller has seen that there is room; what else can be wrong is
        // that the connection has ended.
        let result = self.shared.queue.borrow_mut().submit(call.sqe, kind);
        match result {
            Ok(slot) => {
                let mut slots = self.slots.borrow_mut();
                if slots.len() <= usize::from(slot) {
                    slots.resize_with(usize::from(slot) + 1, Slot::default);
                }
                slots[usize::from(slot)] = Slot { memory, call: Some(call) };
            }
            Err(_) if call.fate == CommandFate::IsKept => self.parked.borrow_mut().push(kept(call, memory)),
            Err(e) => call.finish(Err(IoError::Unreachable(e.to_string()))),
        }
    }

    /// Starts what waits, as far as there is room.
    fn begin_waiting(&self) {
        while self.shared.queue.borrow().room() > 0 && !self.is_leaving() {
            let Some(waiting) = self.waiting.borrow_mut().pop_front() else { return };
            self.begin(waiting);
        }
    }

    /// The controller has begun to refuse commands because it stops.
    fn is_leaving(&self) -> bool {
        !self.parked.borrow().is_empty()
    }

    /// The connection is over: what fails with it does so now. If `at_once`,
    /// nothing more is sent.
    fn end(&self, reason: IoError, at_once: bool) {
        let reason = self.ended.borrow_mut().get_or_insert(reason).clone();
        let mut failed: Vec<_> =
            take_where(&mut self.waiting.borrow_mut(), |call| call.fate == CommandFate::Fails)
                .into_iter()
                .map(|waiting| waiting.call)
                .collect();
        for slot in &mut *self.slots.borrow_mut() {
            failed.extend(slot.call.take_if(|call| call.fate == CommandFate::Fails));
        }
        for call in failed {
            call.finish(Err(reason.clone()));
        }
        self.shared.end();
        if at_once {
            self.shared.stream.abandon();
        } else {
            let _ = self.shared.stream.shutdown(std::net::Shutdown::Read);
        }
        let kept = self.kept.borrow_mut().take();
        drop(kept);
    }

    /// The receive loop has ended: memory is with its commands again, and kept commands can be
    /// given back. Memory of writes stays here too, since it may be in the middle of being sent.
    fn give_back(&self) {
        let mut survivors = std::mem::take(&mut *self.parked.borrow_mut());
        survivors.extend(self.waiting.borrow_mut().drain(..));
        for slot in &mut *self.slots.borrow_mut() {
            let Some(call) = slot.call.take() else { continue };
            let memory = match &slot.memory {
                Some(Memory::Shared(buf)) => Some(Memory::Shared(buf.clone())),
                _ => slot.memory.take(),
            };
            survivors.push(kept(call, memory));
        }
        survivors.sort_by_key(|waiting| waiting.call.seq);
        *self.survivors.borrow_mut() = Some(survivors);
        self.over.notify();
    }

    fn close_if_done(&self) {
        let idle = self.shared.queue.borrow().outstanding() == 0;
        if idle && self.is_leaving() {
            self.end(IoError::Unreachable("the controller stops".into()), true);
        } else if idle && self.closing.get() && self.waiting.borrow().is_empty() {
            self.end(IoError::Unreachable("the queue was closed".into()), false);
        }
    }

    fn complete(&self, slot: u16, result: Done) {
        let Slot { call, memory } = std::mem::take(&mut self.slots.borrow_mut()[usize::from(slot)]);
        let Some(call) = call else { return };
        self.completed.set(self.completed.get() + 1);
        if call.fate == CommandFate::Fails {
            return call.finish(Ok(Done { memory, ..result }));
        }
        let status = result.cqe.status();
        if !status.is_success() && !call.unwanted.get() {
            // The target stops: another one, or its successor, will take it.
            if status.is(Status::ABORTED_SQ_DELETION) {
                return self.parked.borrow_mut().push(kept(call, memory));
            }
            // The abort was too late and had no effect: retry it once.
            if status.is(Status::ABORT_REQUESTED) && call.aborting.get() {
                return self.waiting.borrow_mut().push_front(kept(call, memory));
            }
        }
        if !self.worked.replace(true) {
            self.signs.work.store(true, Ordering::Relaxed);
        }
        let len = memory.as_ref().map_or(0, |memory| memory.len() as u64);
        self.done_bytes.set(self.done_bytes.get() + len);
        //= NVMe Base 2.1, Asymmetric Namespace Access: a command with a path status may be sent again over another path
        if status.sct() == Status::PATH && !call.unwanted.get() {
            let other = self.other_path.borrow().borrow().clone();
            if let Some(other) = other {
                return other.refused(kept(call, memory), status);
            }
        }
        call.finish(Ok(Done { memory, ..result }));
    }
}

/// A call as it was submitted: its time limit starts again with the next
/// connection.
fn kept(call: Rc<Call>, memory: Option<Memory>) -> Waiting {
    call.due.set(0);
    call.aborting.set(false);
    let data = match memory {
        None => Data::None,
        Some(memory @ Memory::Buf(_)) => Data::Read(memory),
        Some(memory) => Data::Write(memory),
    };
    Waiting { call, data }
}

impl Driver for QueueInner {
    type Queue = HostQueue;

    fn take_destination(&self, slot: u16) -> Option<Memory> {
        self.slots.borrow_mut()[usize::from(slot)].memory.take()
    }

    fn put_destination(&self, slot: u16, memory: Memory) {
        // A command that failed meanwhile has left its slot.
        let slot = &mut self.slots.borrow_mut()[usize::from(slot)];
        if slot.call.is_some() {
            slot.memory = Some(memory);
        }
    }

    fn source(&self, slot: u16, offset: usize, len: usize) -> Segment {
        match &self.slots.borrow()[usize::from(slot)].memory {
            Some(Memory::Shared(buf)) => buf.slice(offset..offset + len).segment(),
            Some(Memory::Device(segment)) => segment.slice(offset..offset + len),
            // Only a connection that has ended has lost the memory of a command; the target ignores
            // data sent now.
            _ => longhaul_engine::BufMut::zeroed(len).freeze().segment(),
        }
    }

    fn digest(&self, slot: u16, offset: usize, len: usize) -> u32 {
        let slots = self.slots.borrow();
        let memory = slots[usize::from(slot)].memory.as_ref();
        memory.and_then(Memory::bytes).map_or(0, |bytes| crc32c(&bytes[offset..offset + len]))
    }

    fn release(&self, _slot: u16) {}

    fn events(&self) {
        let mut any = false;
        loop {
            let event = self.shared.queue.borrow_mut().poll_event();
            let Some(event) = event else { break };
            any = true;
            match event {
                HostEvent::Ready(_) => {}
                HostEvent::Completion { slot, cqe, received } => {
                    self.complete(slot, Done { cqe, received, memory: None });
                }
                HostEvent::Closed(reason) => self.end(IoError::Unreachable(reason.to_string()), false),
            }
        }
        if any {
            self.signs.traffic.store(true, Ordering::Relaxed);
            self.begin_waiting();
            if self.closing.get() || self.is_leaving() {
                self.close_if_done();
            }
        }
    }
}
