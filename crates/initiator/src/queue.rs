//! A queue of a controller, on one connection.
//!
//! Invariants:
//! - a call is in exactly one place: waiting for room, in its slot, or done;
//! - calls that wait are started in the order they came;
//! - once the connection has ended every call is done, and every later one
//!   fails at once with the reason.

use longhaul_block::IoError;
use longhaul_conn::{Driver, Ended, Shared, receive, transmit};
use longhaul_engine::net::TcpStream;
use longhaul_engine::{Memory, RecvMsg, Segment, SendMsg, spawn};
use longhaul_proto::host::{Event, HostConfig, HostData, HostQueue};
use longhaul_proto::transport::Batch;
use longhaul_wire::command::Sqe;
use longhaul_wire::completion::Cqe;
use longhaul_wire::digest::crc32c;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

/// Staging area of an I/O queue: a full queue of small responses.
const STAGING: usize = 64 << 10;
/// Length of an ICResp in bytes (NVMe-TCP 1.1, ICResp PDU).
const IC_LEN: usize = 128;

/// What a command leaves behind.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) cqe: Cqe,
    /// Bytes of a read that have come.
    pub(crate) received: u32,
    /// The memory that the command was given.
    pub(crate) memory: Option<Memory>,
}

type CallResult = Result<Done, IoError>;

/// One command from submission to completion.
#[derive(Default)]
struct Call {
    result: Cell<Option<CallResult>>,
    waker: Cell<Option<Waker>>,
}

impl Call {
    fn finish(&self, result: CallResult) {
        self.result.set(Some(result));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// A command under way. It goes on if this is dropped.
pub(crate) struct Pending(Rc<Call>);

impl Future for Pending {
    type Output = CallResult;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CallResult> {
        match self.0.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                self.0.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }
}

/// Memory and purpose of a command's data.
pub(crate) enum Data {
    None,
    Write(Memory),
    Read(Memory),
}

struct Waiting {
    sqe: Sqe,
    data: Data,
    call: Rc<Call>,
}

#[derive(Default)]
struct Slot {
    memory: Option<Memory>,
    call: Option<Rc<Call>>,
}

/// Sends ICReq and waits for ICResp: what [`Queue::serve`] takes, possibly on
/// another thread.
pub(crate) async fn handshake(stream: &TcpStream, config: HostConfig) -> Result<HostQueue, IoError> {
    let fail = |e: String| IoError::Unreachable(e);
    let mut queue = HostQueue::new(config);
    let mut batch = Batch::default();
    if queue.poll_transmit(&mut batch) {
        let mut msg = SendMsg::new();
        let len = batch.bytes.len();
        msg.begin(std::mem::take(&mut batch.bytes));
        msg.push_bytes(0, len);
        stream.send(msg).await.0.map_err(|e| fail(e.to_string()))?;
    }
    // Exactly an ICResp and not a byte more, so that none is left over.
    let mut msg = RecvMsg::new(IC_LEN);
    let mut missing = IC_LEN;
    loop {
        msg.set_staging_limit(missing);
        let (result, back) = stream.recv(msg).await;
        msg = back;
        match result {
            Ok(0) => return Err(fail("the peer closed the connection".into())),
            Ok(n) => missing -= n,
            Err(e) => return Err(fail(e.to_string())),
        }
        queue.handle(msg.staged());
        match queue.poll_event() {
            Some(Event::Ready(_)) => return Ok(queue),
            Some(Event::Closed(reason)) => return Err(fail(reason.to_string())),
            _ if missing == 0 => return Err(fail("its answer to ICReq is no ICResp".into())),
            _ => {}
        }
    }
}

/// The state that the tasks of a queue share.
struct Inner {
    shared: Shared<HostQueue>,
    slots: RefCell<Vec<Slot>>,
    waiting: RefCell<VecDeque<Waiting>>,
    /// Why the connection has ended.
    ended: RefCell<Option<IoError>>,
    /// End when the last command is done.
    closing: Cell<bool>,
    /// Something came from the controller since the keep-alive timer looked.
    traffic: Arc<AtomicBool>,
    /// Dropped when the connection ends; see [`Queue::keep`].
    kept: RefCell<Option<Box<dyn Any>>>,
}

/// A queue. Dropping it ends the connection once all commands are done.
pub(crate) struct Queue {
    inner: Rc<Inner>,
}

impl Queue {
    /// Serves a connection whose parameters are agreed on (see
    /// [`handshake`]) from the calling engine thread.
    pub(crate) fn serve(queue: HostQueue, stream: TcpStream, traffic: Arc<AtomicBool>) -> Queue {
        let inner = Rc::new(Inner {
            shared: Shared::new(queue, stream),
            slots: RefCell::default(),
            waiting: RefCell::default(),
            ended: RefCell::default(),
            closing: Cell::new(false),
            traffic,
            kept: RefCell::default(),
        });

        let (rx, tx) = (Rc::clone(&inner), Rc::clone(&inner));
        spawn(async move {
            let ended = receive(&rx.shared, &*rx, STAGING).await;
            rx.fail(&ended);
        })
        .detach();
        spawn(async move {
            if let Err(e) = transmit(&tx.shared, &*tx).await {
                tx.fail(&Ended::Io(e));
            }
        })
        .detach();
        Queue { inner }
    }

    /// Submits a command, now or as soon as there is room.
    pub(crate) fn submit(&self, sqe: Sqe, data: Data) -> Pending {
        let inner = &self.inner;
        let call = Rc::new(Call::default());
        if let Some(reason) = &*inner.ended.borrow() {
            call.finish(Err(reason.clone()));
            return Pending(call);
        }
        let waiting = Waiting { sqe, data, call: Rc::clone(&call) };
        if inner.waiting.borrow().is_empty() && inner.shared.queue.borrow().room() > 0 {
            inner.begin(waiting);
            inner.shared.output.notify();
        } else {
            inner.waiting.borrow_mut().push_back(waiting);
        }
        Pending(call)
    }

    /// Keeps `what` for as long as the connection lives: longer than this
    /// handle, if commands are under way.
    pub(crate) fn keep(&self, what: impl Any) {
        if self.inner.ended.borrow().is_none() {
            *self.inner.kept.borrow_mut() = Some(Box::new(what));
        }
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

    /// Ends the connection after what is queued; commands under way fail.
    pub(crate) fn close(&self) {
        self.inner.end(IoError::Unreachable("the queue was closed".into()));
    }

    /// The same queue, for a task that must not keep it open.
    pub(crate) fn downgrade(&self) -> WeakQueue {
        WeakQueue(Rc::downgrade(&self.inner))
    }

    /// The socket.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.inner.shared.stream
    }
}

/// See [`Queue::downgrade`].
pub(crate) struct WeakQueue(std::rc::Weak<Inner>);

impl WeakQueue {
    /// Ends the connection now; commands under way fail with `reason`.
    pub(crate) fn fail(&self, reason: IoError) {
        if let Some(inner) = self.0.upgrade() {
            inner.end(reason);
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.inner.closing.set(true);
        self.inner.close_if_done();
    }
}

impl Inner {
    fn begin(&self, waiting: Waiting) {
        let Waiting { sqe, data, call } = waiting;
        let (kind, memory) = match data {
            Data::None => (HostData::None, None),
            Data::Write(memory) => (HostData::Write { len: memory.len() as u32 }, Some(memory)),
            Data::Read(memory) => (HostData::Read { len: memory.len() as u32 }, Some(memory)),
        };
        // The caller has seen that there is room; what else can be wrong is
        // that the connection has ended.
        let result = self.shared.queue.borrow_mut().submit(sqe, kind);
        match result {
            Ok(slot) => {
                let mut slots = self.slots.borrow_mut();
                if slots.len() <= usize::from(slot) {
                    slots.resize_with(usize::from(slot) + 1, Slot::default);
                }
                slots[usize::from(slot)] = Slot { memory, call: Some(call) };
            }
            Err(e) => call.finish(Err(IoError::Unreachable(e.to_string()))),
        }
    }

    /// Starts what waits, as far as there is room.
    fn begin_waiting(&self) {
        while self.shared.queue.borrow().room() > 0 {
            let Some(waiting) = self.waiting.borrow_mut().pop_front() else { return };
            self.begin(waiting);
        }
    }

    fn fail(&self, ended: &Ended) {
        self.end(IoError::Unreachable(ended.to_string()));
    }

    /// The connection is over: everything under way fails.
    fn end(&self, reason: IoError) {
        let reason = self.ended.borrow_mut().get_or_insert(reason).clone();
        let calls: Vec<_> = self.slots.borrow_mut().iter_mut().filter_map(|slot| slot.call.take()).collect();
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        for call in calls.into_iter().chain(waiting.into_iter().map(|w| w.call)) {
            call.finish(Err(reason.clone()));
        }
        self.shared.end();
        let _ = self.shared.stream.shutdown(std::net::Shutdown::Read);
        let kept = self.kept.borrow_mut().take();
        drop(kept);
    }

    fn close_if_done(&self) {
        let idle = self.shared.queue.borrow().outstanding() == 0 && self.waiting.borrow().is_empty();
        if self.closing.get() && idle {
            self.end(IoError::Unreachable("the queue was closed".into()));
        }
    }
}

impl Driver for Inner {
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
            // Only a connection that has ended has lost the memory of a
            // command; nothing of what is sent now is looked at.
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
                Event::Ready(_) => {}
                Event::Completion { slot, cqe, received } => {
                    let slot = std::mem::take(&mut self.slots.borrow_mut()[usize::from(slot)]);
                    if let Some(call) = slot.call {
                        call.finish(Ok(Done { cqe, received, memory: slot.memory }));
                    }
                }
                Event::Closed(reason) => self.end(IoError::Unreachable(reason.to_string())),
            }
        }
        if any {
            self.traffic.store(true, Ordering::Relaxed);
            self.begin_waiting();
            if self.closing.get() {
                self.close_if_done();
            }
        }
    }
}
