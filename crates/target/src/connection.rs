//! One connection: its commands, their memory, and what they wait for.
//!
//! Invariants:
//! - a slot's memory belongs to the command that its `use_` counts; a task
//!   that ends for an earlier use changes nothing;
//! - memory of a read stays in its slot until it has been sent;
//! - the first command is Connect, and decides what the connection is.

use crate::admin::{self, AdminQueue, WithSpaceData};
use crate::attendance::Presence;
use crate::audit::{AuditHost, RefusalReason};
use crate::auth::{Proof, QueueAuth};
use crate::connections::ConnectionPlace;
use crate::counts::{Batch, Counted, Counting, Operation};
use crate::io::{self, IoQueue};
use crate::ledger::{Charge, Origin, Peer};
use crate::memory::Shares;
use crate::observer::{Host, Wire, count};
use crate::patience::Fetches;
use crate::refusals::Refusals;
use crate::subsystem::Message;
use crate::target::Shared as Target;
use crate::tls::{self, Begun, Secured};
use futures_channel::mpsc;
use futures_util::{FutureExt, StreamExt};
use longhaul_auth::{Concatenation, SecureChannel};
use longhaul_conn::transport::Address;
use longhaul_conn::{Channel, Driver, Shared, linger, receive, transmit};
use longhaul_engine::sync::Notify;
use longhaul_engine::{Buf, BufMut, Memory, Segment, spawn};
use longhaul_proto::controller::{ConnectRequest, Reply, wrong_field};
use longhaul_proto::target::{CommandData, QueueLimits, TargetConfig, TargetEvent, TargetQueue};
use longhaul_proto::transport::{CloseReason, Endpoint};
use longhaul_wire::command::{Direction, Sqe};
use longhaul_wire::completion::Status;
use longhaul_wire::digest::crc32c;
use longhaul_wire::fabrics::auth::authreq;
use longhaul_wire::fabrics::{ConnectData, ConnectResponse};
use longhaul_wire::pdu::Fes;
use longhaul_wire::registration::RegistrationTask;
use std::cell::{Cell, OnceCell, RefCell};
use std::net::Shutdown;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Staging area: a full queue of small commands, and small writes.
const STAGING: usize = 64 << 10;
/// Time for a peer to close its side after the last thing was sent to it.
const LINGER: Duration = Duration::from_secs(1);
/// Time for commands under way to end when the target stops.
const DRAIN: Duration = Duration::from_secs(10);

/// What a connection is.
#[derive(Clone)]
pub(crate) enum Role {
    /// Waits for Connect.
    New,
    Admin(Rc<AdminQueue>),
    Io(Rc<IoQueue>),
    /// Was one of these.
    Ended,
}

/// What to do with data that is on its way.
pub(crate) enum Work {
    None,
    Connect(Sqe),
    Io(io::WithData),
    Manage(Box<WithSpaceData>),
    /// A registration.
    Register(Box<(Sqe, RegistrationTask)>),
    /// A message of the host, for [`QueueAuth`].
    Authenticate,
}

pub(crate) struct Slot {
    /// Counts the commands that had this slot.
    pub(crate) use_: u32,
    pub(crate) work: Work,
    /// Memory that the data is received into or sent from.
    pub(crate) destination: Option<Memory>,
    /// Where data comes from.
    source: Option<Segment>,
    /// The same for a digest.
    bytes: Option<Buf>,
    /// Leave to hold that memory.
    charge: Option<Charge>,
    /// Bytes that the peer owes, and when they are due.
    pub(crate) fetch: Option<Fetch>,
    /// A device is busy with a change that it cannot be kept from.
    committed: bool,
    /// A command that is counted when it ends.
    counted: Option<Counted>,
}

/// Data of a command that the peer is to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetch {
    pub(crate) len: u64,
    /// The round of the watch with which the time is over.
    pub(crate) due: u64,
}

/// One connection, on its engine thread.
pub(crate) struct Connection {
    pub(crate) shared: Shared<TargetQueue>,
    pub(crate) target: Arc<Target>,
    pub(crate) slots: RefCell<Vec<Slot>>,
    pub(crate) role: RefCell<Role>,
    /// From Connect on, if hosts have to prove who they are.
    auth: OnceCell<Rc<QueueAuth>>,
    /// What its key is for, if it uses TLS.
    secured: Option<Secured>,
    /// Of the target's memory, from Connect on.
    shares: OnceCell<Shares>,
    /// Data that the peer owes.
    pub(crate) fetches: Fetches,
    /// Commands that were refused.
    pub(crate) refusals: Refusals,
    /// Commands of the events at hand, if commands are counted.
    batch: Option<Batch>,
    /// What is counted of the host, and of this connection, from Connect on.
    counts: OnceCell<(Arc<Host>, Arc<Wire>)>,
    /// As a record names its host, from Connect on, if there is a record.
    pub(crate) identity: OnceCell<AuditHost>,
    /// The host has authenticated, as the record says.
    pub(crate) is_proved: Cell<bool>,
    /// Since when its host has a controller, as the record says.
    pub(crate) connected: Cell<Option<Instant>>,
    place: ConnectionPlace,
    pub(crate) local: Address,
    peer: Address,
    /// Reaches this connection from other threads.
    pub(crate) sender: mpsc::UnboundedSender<Message>,
    draining: Cell<bool>,
    /// Data may still come into a device's own memory.
    presence: RefCell<Option<Rc<Presence>>>,
    /// A command has ended (for the drain).
    ended_one: Notify,
}

/// Serves a connection until it ends.
pub(crate) async fn serve(
    target: Arc<Target>,
    channel: Channel,
    (peer, local): (Address, Address),
    place: ConnectionPlace,
    (sender, mut inbox): (mpsc::UnboundedSender<Message>, mpsc::UnboundedReceiver<Message>),
) {
    let config = TargetConfig {
        header_digest: target.config.hdr_digest,
        data_digest: target.config.data_digest,
        ..TargetConfig::default()
    };
    if target.is_stopping() {
        return;
    }
    let begun = tls::begin(&target, channel, (&peer, &local), &mut inbox).await;
    let Some(Begun { channel, first, secured, left }) = begun else { return };
    let mut queue = TargetQueue::new(config);
    if !first.is_empty() {
        queue.handle(&first);
    }
    let connection = Rc::new(Connection {
        shared: Shared::new(queue, channel),
        target: Arc::clone(&target),
        slots: RefCell::default(),
        role: RefCell::new(Role::New),
        auth: OnceCell::new(),
        secured,
        shares: OnceCell::new(),
        fetches: Fetches::default(),
        refusals: Refusals::default(),
        batch: target.config.statistics.then(Batch::default),
        counts: OnceCell::new(),
        identity: OnceCell::new(),
        is_proved: Cell::new(false),
        connected: Cell::new(None),
        place,
        local,
        peer,
        sender,
        draining: Cell::new(false),
        presence: RefCell::default(),
        ended_one: Notify::new(),
    });
    let watch = spawn(crate::patience::watch(Rc::clone(&connection), left));
    let listen = spawn(listen(Rc::clone(&connection), inbox));
    let served = Served(Rc::clone(&connection));
    let sending = Served(Rc::clone(&connection));
    let transmit = spawn(async move { transmit(&sending.shared, &sending).await });
    let receiving = AssertUnwindSafe(receive(&connection.shared, &served, STAGING)).catch_unwind();
    match receiving.await {
        Ok(ended) => connection.leave(&ended.to_string()),
        // A fault of this program costs the connection that met it, and no other.
        Err(_) => {
            connection.leave("internal error (a panic, reported above)");
            connection.shared.end();
        }
    }
    drop(connection.presence.take());
    if let Some((_, wire)) = connection.counts.get() {
        wire.end(&connection.shared.stream);
    }
    // Queued PDUs (a TermReq, say) are still sent, if the peer receives them.
    let _ = longhaul_engine::timeout(DRAIN, transmit).await;
    let _ = longhaul_engine::timeout(LINGER, linger(&connection.shared)).await;
    connection.forget();
    drop((watch, listen));
}

/// Does what other threads ask for.
async fn listen(connection: Rc<Connection>, mut inbox: mpsc::UnboundedReceiver<Message>) {
    while let Some(message) = inbox.next().await {
        match message {
            Message::Abort { cid, reply } => {
                let _ = reply.send(connection.abort(cid));
            }
            Message::Events => {
                let role = connection.role.borrow().clone();
                if let Role::Admin(admin) = role {
                    admin.report_events(&connection);
                }
            }
            Message::Refresh => {
                let role = connection.role.borrow().clone();
                if let Role::Io(io) = role {
                    io.refresh();
                }
            }
            Message::Measure => {
                if let Some((_, wire)) = connection.counts.get() {
                    wire.measure(&connection.shared.stream);
                }
            }
            Message::Close => connection.close(),
            Message::Drain => {
                let connection = Rc::clone(&connection);
                spawn(async move { connection.drain().await }).detach();
            }
        }
        connection.flush();
    }
}

impl Connection {
    /// Runs a part of a command as a task. If it panics (in a back end, say)
    /// that ends this connection, and nothing else.
    pub(crate) fn spawn(self: &Rc<Self>, part: impl AsyncFnOnce(Rc<Self>) + 'static) {
        let connection = Rc::clone(self);
        spawn(async move {
            if AssertUnwindSafe(part(Rc::clone(&connection))).catch_unwind().await.is_err() {
                connection.close();
            }
        })
        .detach();
    }

    /// The connection belongs to this host from now on. Whether there is room
    /// for another one of it.
    pub(crate) fn belongs_to(&self, request: &ConnectRequest) -> bool {
        let origin = self.origin();
        let peer = Peer { origin, hostnqn: request.hostnqn.clone(), hostid: request.hostid };
        self.shares.get_or_init(|| self.target.memory.shares(&peer));
        self.place.claim(&peer)
    }

    /// What its key is for, if it uses TLS.
    pub(crate) fn secured(&self) -> Option<&Secured> {
        self.secured.as_ref()
    }

    /// What happens on it is counted for this host from now on.
    pub(crate) fn counts_for(&self, hostnqn: &str) {
        if self.batch.is_some() {
            self.counts.get_or_init(|| {
                let host = self.target.hosts.of(hostnqn);
                let wire = host.connect(self.sender.clone());
                (host, wire)
            });
        }
    }

    /// The host for which it counts, if it does.
    pub(crate) fn counted_host(&self) -> Option<&Host> {
        self.counts.get().map(|(host, _)| &**host)
    }

    /// Counts a command from now on, if commands are counted.
    #[inline]
    pub(crate) fn count(&self, slot: u16, counting: Option<&Rc<Counting>>, operation: Operation, bytes: u32) {
        if let Some((batch, counting)) = self.batch.as_ref().zip(counting) {
            let counted = batch.begin(counting, operation, bytes);
            self.slots.borrow_mut()[usize::from(slot)].counted = Some(counted);
        }
    }

    /// The connection's shares of the target's memory.
    pub(crate) fn shares(&self) -> &Shares {
        self.shares.get_or_init(|| {
            let origin = self.origin();
            self.target.memory.shares(&Peer { origin, hostnqn: String::new(), hostid: Uuid::nil() })
        })
    }

    /// Ends the connection once queued PDUs have been sent.
    pub(crate) fn close(&self) {
        // Before the peer sees the end: it may come back at once.
        self.leave("closed by this end");
        self.shared.end();
        let _ = self.shared.stream.shutdown(Shutdown::Read);
    }

    /// Takes no new commands, lets those under way end, then closes.
    async fn drain(&self) {
        self.draining.set(true);
        let end = longhaul_engine::now() + DRAIN;
        let left = || end.saturating_duration_since(longhaul_engine::now());
        let role = self.role.borrow().clone();
        let held = match &role {
            Role::Admin(admin) => {
                // The I/O queues end with it, and complete their commands before that.
                let _ = longhaul_engine::timeout(left(), admin.link.absence()).await;
                admin.held()
            }
            _ => 0,
        };
        let is_busy = || {
            let has_ended = matches!(*self.role.borrow(), Role::Ended);
            !has_ended && self.shared.queue.borrow().open_commands() > held
        };
        while is_busy() && !left().is_zero() {
            let _ = longhaul_engine::timeout(left(), self.ended_one.notified()).await;
        }
        self.close();
    }

    /// The connection has ended.
    fn leave(&self, ended: &str) {
        let role = std::mem::replace(&mut *self.role.borrow_mut(), Role::Ended);
        // A drain waits for nothing any more.
        self.ended_one.notify();
        match role {
            Role::Ended => {}
            Role::New => tracing::debug!("{}: {ended}", self.peer),
            Role::Io(io) => {
                tracing::debug!("{}: I/O queue {}: {ended}", self.peer, io.qid);
                io.depart();
                io.link.remove_queue(io.qid);
            }
            Role::Admin(admin) => {
                tracing::info!("{}: controller {} ended: {ended}", self.peer, admin.link.cntlid);
                self.tell_disconnected(&admin.link);
                admin.end(&self.target);
            }
        }
    }

    /// Gives the memory of every command back. Commands that wait for it,
    /// and keep the connection in memory by that, find that they are over.
    fn forget(&self) {
        let mut held = Vec::new();
        for s in &mut *self.slots.borrow_mut() {
            s.use_ = s.use_.wrapping_add(1);
            let work = std::mem::replace(&mut s.work, Work::None);
            let counted = s.counted.take();
            held.push((
                work,
                s.destination.take(),
                s.source.take(),
                s.bytes.take(),
                s.charge.take(),
                counted,
            ));
        }
        // What a destructor runs (of a back end's `BlockIo`, say) may come back here.
        drop(held);
    }

    /// Sends what the last calls have queued.
    pub(crate) fn flush(&self) {
        if self.shared.queue.borrow().has_transmit() {
            self.shared.output.notify();
        }
        self.shared.resume.notify();
    }

    /// Completes a command and gives its slot free.
    pub(crate) fn complete(&self, slot: u16, reply: Reply) {
        self.end_use(slot, reply.status);
        self.shared.queue.borrow_mut().complete(slot, reply.status, reply.result);
    }

    fn end_use(&self, slot: u16, status: Status) {
        let mut slots = self.slots.borrow_mut();
        let s = &mut slots[usize::from(slot)];
        s.use_ = s.use_.wrapping_add(1);
        s.committed = false;
        // What a write waits for is large: a read, which has none, does not pay for moving it.
        let work = match s.work {
            Work::None => None,
            _ => Some(std::mem::replace(&mut s.work, Work::None)),
        };
        if let Some((batch, counted)) = self.batch.as_ref().zip(s.counted.take()) {
            batch.end(counted, status);
        }
        let held = (work, s.destination.take(), s.charge.take());
        self.fetches.end(s.fetch.take());
        drop(slots);
        drop(held);
        if self.draining.get() {
            self.ended_one.notify();
        }
    }

    /// Completes a command if it is still the one of that use.
    pub(crate) fn finish(&self, slot: u16, use_: u32, status: Status) {
        if self.is_current(slot, use_) {
            self.complete(slot, Reply { status, result: 0 });
        }
        self.flush();
    }

    /// Whether the command of that use is still under way.
    pub(crate) fn is_current(&self, slot: u16, use_: u32) -> bool {
        self.slots.borrow()[usize::from(slot)].use_ == use_
    }

    /// The same, and whether the peer is there to get the answer.
    pub(crate) fn can_answer(&self, slot: u16, use_: u32) -> bool {
        let has_ended = self.shared.is_ending() || matches!(*self.role.borrow(), Role::Ended);
        !has_ended && self.is_current(slot, use_)
    }

    pub(crate) fn use_of(&self, slot: u16) -> u32 {
        self.slots.borrow()[usize::from(slot)].use_
    }

    /// Answers a read with its data, which is held while the peer takes it.
    pub(crate) fn send_read(&self, slot: u16, memory: Memory, charge: Option<Charge>) {
        let len = memory.len() as u32;
        let digests = self.shared.queue.borrow().params().data_digest;
        let (source, bytes) = match memory {
            Memory::Buf(buf) => {
                let buf = buf.freeze();
                (buf.segment(), digests.then_some(buf))
            }
            other => (other.into_source(), None),
        };
        self.end_use(slot, Status::SUCCESS);
        {
            let mut slots = self.slots.borrow_mut();
            let s = &mut slots[usize::from(slot)];
            (s.source, s.bytes, s.charge) = (Some(source), bytes, charge);
        }
        self.shared.queue.borrow_mut().send_data_and_complete(slot, 0, len, 0);
    }

    /// Gets the data of a write (or of any command that brings some) on its
    /// way: into `memory`, or into a buffer as soon as there is one.
    pub(crate) fn fetch(self: &Rc<Self>, slot: u16, data: CommandData, work: Work, memory: Option<Memory>) {
        self.slots.borrow_mut()[usize::from(slot)].work = work;
        let (len, in_capsule) = match data {
            CommandData::InCapsule { len } => (len as usize, true),
            CommandData::HostBuffer { len } => (len as usize, false),
            CommandData::None => {
                self.refusals.count();
                return self.complete(slot, Reply::error(Status::DATA_SGL_LENGTH.dnr()));
            }
        };
        if let Some(memory) = memory {
            return self.begin_fetch(slot, data, memory, None);
        }
        let shares = self.shares();
        let share = if in_capsule { &shares.in_capsule } else { &shares.host };
        if let Some((buf, charge)) = share.try_alloc(len) {
            return self.begin_fetch(slot, data, Memory::Buf(buf), Some(charge));
        }
        let (share, use_) = (Rc::clone(share), self.use_of(slot));
        self.spawn(async move |connection| {
            let (buf, charge) = share.alloc(len).await;
            if connection.is_current(slot, use_) && !connection.shared.is_ending() {
                connection.begin_fetch(slot, data, Memory::Buf(buf), Some(charge));
                connection.flush();
            }
        });
    }

    fn begin_fetch(&self, slot: u16, data: CommandData, memory: Memory, charge: Option<Charge>) {
        {
            let s = &mut self.slots.borrow_mut()[usize::from(slot)];
            let fetch = self.fetches.begin(memory.len() as u64, &self.target.config.patience);
            (s.destination, s.charge, s.fetch) = (Some(memory), charge, Some(fetch));
        }
        let mut queue = self.shared.queue.borrow_mut();
        match data {
            CommandData::InCapsule { .. } => queue.accept_payload(slot),
            CommandData::HostBuffer { .. } => queue.request_data(slot),
            CommandData::None => {}
        }
    }

    /// A device is busy with a change from now on.
    pub(crate) fn commit(&self, slot: u16) {
        self.slots.borrow_mut()[usize::from(slot)].committed = true;
    }

    /// This connection brings data for a controller's namespaces.
    pub(crate) fn arrive(&self, presence: &Rc<Presence>) {
        *self.presence.borrow_mut() = Some(Rc::clone(presence));
    }

    /// Aborts a command that is under way. Whether there was one.
    fn abort(&self, cid: u16) -> bool {
        let slot = self.shared.queue.borrow().find(cid);
        let Some(slot) = slot else { return false };
        //= NVMe Base 2.1, Abort command: a command that was aborted has no effect after its completion
        let changing = {
            let s = &self.slots.borrow()[usize::from(slot)];
            s.committed || !matches!(s.work, Work::None)
        };
        if changing {
            return false;
        }
        self.complete(slot, Reply::error(Status::ABORT_REQUESTED));
        true
    }

    fn command(self: &Rc<Self>, slot: u16, sqe: &Sqe, data: CommandData) {
        if let Some(auth) = self.auth.get()
            && auth.takes(sqe)
        {
            return auth.command(self, slot, sqe, data);
        }
        let role = self.role.borrow().clone();
        match role {
            Role::New => self.connect(slot, sqe, data),
            Role::Admin(admin) => admin.command(self, slot, sqe, data),
            Role::Io(io) => io.command(self, slot, sqe, data),
            Role::Ended => self.complete(slot, Reply::error(Status::ABORTED_SQ_DELETION)),
        }
    }

    /// The first command, which must be Connect.
    fn connect(self: &Rc<Self>, slot: u16, sqe: &Sqe, data: CommandData) {
        let len = data.bytes();
        // Any other length is refused, and gets no buffer.
        if sqe.direction() == Direction::ToController && len == ConnectData::LEN {
            // Outside the parts of the memory: nothing keeps a host from
            // connecting, and a connection does it once.
            let memory = Memory::Buf(BufMut::zeroed(ConnectData::LEN));
            self.fetch(slot, data, Work::Connect(*sqe), Some(memory));
        } else {
            admin::connect(self, slot, sqe, &[]);
        }
    }

    fn data_complete(self: &Rc<Self>, slot: u16, result: Result<(), Status>) {
        let (work, memory, charge) = {
            let mut slots = self.slots.borrow_mut();
            let s = &mut slots[usize::from(slot)];
            self.fetches.end(s.fetch.take());
            (std::mem::replace(&mut s.work, Work::None), s.destination.take(), s.charge.take())
        };
        if let Err(status) = result {
            count(&self.target.incidents.data_digest);
            if let (Work::Authenticate, Some(auth)) = (&work, self.auth.get()) {
                auth.received(self, slot, None);
            }
            return self.complete(slot, Reply::error(status));
        }
        match work {
            Work::None => {}
            //= NVMe Base 2.1, Connect command: a second Connect on a queue is out of sequence
            Work::Connect(_) if !matches!(*self.role.borrow(), Role::New) => {
                self.complete(slot, Reply::error(Status::SEQUENCE_ERROR.dnr()));
            }
            Work::Connect(sqe) => {
                let bytes = memory.as_ref().and_then(Memory::bytes).unwrap_or_default();
                admin::connect(self, slot, &sqe, bytes);
            }
            Work::Authenticate => {
                if let Some(auth) = self.auth.get() {
                    let message = memory.as_ref().and_then(Memory::bytes).unwrap_or_default();
                    auth.received(self, slot, Some(message.to_vec()));
                }
            }
            Work::Manage(work) => {
                let role = self.role.borrow().clone();
                if let Role::Admin(admin) = role {
                    let bytes = memory.as_ref().and_then(Memory::bytes).unwrap_or_default();
                    admin.carry_out(self, slot, &work, bytes);
                }
            }
            Work::Register(work) => {
                let role = self.role.borrow().clone();
                if let Role::Admin(admin) = role {
                    let bytes = memory.as_ref().and_then(Memory::bytes).unwrap_or_default();
                    let (sqe, task) = *work;
                    admin.registered(self, slot, &sqe, task, bytes);
                }
            }
            Work::Io(work) => {
                let role = self.role.borrow().clone();
                if let (Role::Io(io), Some(memory)) = (role, memory) {
                    io.data(self, slot, work, memory, charge);
                }
            }
        }
    }

    /// Becomes what Connect has asked for, and says so.
    pub(crate) fn become_role(&self, slot: u16, role: Role, limits: QueueLimits, reply: Reply) {
        self.shared.queue.borrow_mut().set_limits(limits);
        *self.role.borrow_mut() = role;
        self.complete(slot, reply);
    }

    /// Becomes what Connect has asked for, once the host has proved who it is: says that it has to.
    pub(crate) fn become_authenticated(self: &Rc<Self>, proof: Option<Proof>, mut reply: Reply) -> Reply {
        if let Some(proof) = proof {
            let authreq = match (proof.before, proof.options.concatenation) {
                (Some(_), _) => 0,
                //= NVMe Base 2.1, Connect response: ASCR says that the host has to authenticate and to make a secure channel
                (None, Concatenation::Required(SecureChannel::New)) => authreq::SECURE_CHANNEL,
                (None, _) => authreq::TRANSACTION,
            };
            reply.result |= u64::from(ConnectResponse { cntlid: 0, authreq }.to_dw0());
            self.auth.get_or_init(|| QueueAuth::new(self, proof));
        }
        reply
    }

    /// Refuses Connect: the answer is the last thing sent.
    pub(crate) fn refuse(&self, slot: u16, reply: Reply, why: RefusalReason) {
        let field = wrong_field(&reply).map(|field| format!(": {field} is wrong")).unwrap_or_default();
        let message = format_args!("{}: Connect refused: {}{field}", self.peer, reply.status);
        self.target.quiet.refuse.say(message, |line| tracing::info!("{line}"));
        count(&self.target.incidents.connect_refused);
        self.tell_refused(why);
        self.complete(slot, reply);
        self.shared.output.notify();
        self.shared.end();
    }

    /// The protocol has ended the connection.
    #[cold]
    fn count_close(&self, reason: &CloseReason) {
        let incidents = &self.target.incidents;
        match reason {
            CloseReason::Fault(fault) if fault.fes == Fes::HeaderDigestError => {
                count(&incidents.header_digest)
            }
            CloseReason::Fault(_) => count(&incidents.protocol),
            // The peer says that this end is wrong: that is in the log.
            CloseReason::Terminated { .. } => {}
        }
    }

    pub(crate) fn peer(&self) -> &Address {
        &self.peer
    }

    /// Where it comes from, as far as limits are concerned.
    pub(crate) fn origin(&self) -> Origin {
        Origin::at(&self.peer)
    }
}

/// The driver's side of [`longhaul_conn`]: it has the `Rc`, since commands
/// outlive the call that brings them.
struct Served(Rc<Connection>);

impl std::ops::Deref for Served {
    type Target = Rc<Connection>;

    fn deref(&self) -> &Rc<Connection> {
        &self.0
    }
}

impl Driver for Served {
    type Queue = TargetQueue;

    fn take_destination(&self, slot: u16) -> Option<Memory> {
        self.slots.borrow_mut()[usize::from(slot)].destination.take()
    }

    fn put_destination(&self, slot: u16, memory: Memory) {
        // A command that was aborted meanwhile has no work left.
        let s = &mut self.slots.borrow_mut()[usize::from(slot)];
        if !matches!(s.work, Work::None) {
            s.destination = Some(memory);
        }
    }

    fn source(&self, slot: u16, offset: usize, len: usize) -> Segment {
        match &self.slots.borrow()[usize::from(slot)].source {
            Some(source) => source.slice(offset..offset + len),
            None => unreachable!("the queue sends only what send_read has given it"),
        }
    }

    fn digest(&self, slot: u16, offset: usize, len: usize) -> u32 {
        let slots = self.slots.borrow();
        let bytes = slots[usize::from(slot)].bytes.as_ref();
        bytes.map_or(0, |bytes| crc32c(&bytes[offset..offset + len]))
    }

    fn release(&self, slot: u16) {
        let mut slots = self.slots.borrow_mut();
        let s = &mut slots[usize::from(slot)];
        (s.source, s.bytes) = (None, None);
        let charge = s.charge.take();
        drop(slots);
        // Wakes the next request that waits for memory.
        drop(charge);
    }

    fn events(&self) {
        if let Some(batch) = &self.batch {
            batch.open();
        }
        loop {
            let event = self.shared.queue.borrow_mut().poll_event();
            let Some(event) = event else { break };
            match event {
                TargetEvent::Command { slot, sqe, data } => {
                    let mut slots = self.slots.borrow_mut();
                    while slots.len() <= usize::from(slot) {
                        slots.push(Slot {
                            use_: 0,
                            work: Work::None,
                            destination: None,
                            source: None,
                            bytes: None,
                            charge: None,
                            fetch: None,
                            committed: false,
                            counted: None,
                        });
                    }
                    drop(slots);
                    if self.draining.get() {
                        // A retry meets the target's successor.
                        self.complete(slot, Reply::error(Status::ABORTED_SQ_DELETION));
                    } else {
                        self.command(slot, &sqe, data);
                    }
                }
                TargetEvent::DataComplete { slot, result } => self.data_complete(slot, result),
                TargetEvent::Displaced { slot, cid } => {
                    self.end_use(slot, Status::ABORT_REQUESTED);
                    let role = self.role.borrow().clone();
                    if let Role::Admin(admin) = role {
                        admin.displaced(slot, cid);
                    }
                }
                TargetEvent::Ready(_) => {}
                TargetEvent::Closed(reason) => {
                    self.count_close(&reason);
                    let message = format_args!("{}: {reason}", self.peer);
                    self.target.quiet.refuse.say(message, |line| tracing::info!("{line}"));
                }
            }
        }
        if let Role::Io(io) = &*self.role.borrow() {
            io.count();
        }
        if let Some(batch) = &self.batch {
            batch.close();
        }
        if self.draining.get() {
            // A command that was answered before its data had come is over when that has come.
            self.ended_one.notify();
        }
        self.hold_back_after_refusals();
    }
}
