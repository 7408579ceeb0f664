//! An I/O queue: NVM commands executed on block devices.
//!
//! Invariants:
//! - a command sees the namespaces of the subsystem's generation at its time,
//!   or of a later one;
//! - commands that wait for a device to be opened keep their order;
//! - a change of a namespace begins only while the queue lives, and while a
//!   device is busy with it the controller counts as present.

use crate::attendance::Presence;
use crate::audit::ReservationAction;
use crate::connection::{Connection, Work};
use crate::counts::{Counting, Operation};
use crate::durable::{Flushed, Written};
use crate::ledger::Charge;
use crate::long::Long;
use crate::pieces::in_pieces;
use crate::reserved::Reserved;
use crate::subsystem::{Link, Namespace, Subsystem, lock};
use longhaul_block::filter::around;
use longhaul_block::{BlockIo, IoError, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut, Memory};
use longhaul_proto::controller::io::{IoCommand, Limits, deallocate_ranges, parse};
use longhaul_proto::controller::{Action, ErrorRecord, NamespaceView, Reply, SubsystemView};
use longhaul_proto::reservation::{Access, HostId};
use longhaul_proto::target::CommandData;
use longhaul_proto::transport::Endpoint;
use longhaul_wire::command::{Sqe, is_fabrics};
use longhaul_wire::completion::Status;
use longhaul_wire::reservation::{PersistChange, RegisterFields, decode_keys};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A command whose data is on its way.
pub(crate) struct WithData {
    sqe: Sqe,
    command: IoCommand,
    ns: NamespaceView,
    at: Rc<Opened>,
}

/// A namespace's device as one queue has opened it.
struct Opened {
    nsid: u32,
    io: Rc<dyn BlockIo>,
    /// What the controller has written to it, on any queue.
    written: Arc<Written>,
    reserved: Arc<Reserved>,
    /// Commands to it, if they are counted.
    counting: Option<Rc<Counting>>,
    /// Until it is closed, and no command of it is under way.
    _presence: Presence,
}

impl Opened {
    /// Makes what the controller has written durable.
    async fn flush(&self) -> Flushed {
        self.written.flush(&*self.io).await
    }
}

/// An I/O queue.
pub(crate) struct IoQueue {
    pub(crate) qid: u16,
    pub(crate) link: Arc<Link>,
    /// None once the queue has ended.
    presence: RefCell<Option<Rc<Presence>>>,
    subsystem: Arc<Subsystem>,
    host: HostId,
    limits: Limits,
    generation: Cell<u64>,
    view: RefCell<Arc<SubsystemView>>,
    devices: RefCell<Vec<Rc<Opened>>>,
    /// Commands that wait for a device, while one is being opened.
    waiting: RefCell<Vec<(u16, u32, Sqe, CommandData)>>,
    opening: Cell<bool>,
    counts: Counts,
}

/// Commands and blocks since the last [`IoQueue::count`].
#[derive(Default)]
struct Counts {
    reads: Cell<u64>,
    bytes_read: Cell<u64>,
    writes: Cell<u64>,
    bytes_written: Cell<u64>,
}

fn add(counter: &Cell<u64>, n: u64) {
    counter.set(counter.get() + n);
}

/// The status of a failed operation.
fn status_of(e: &IoError, reading: bool) -> Status {
    match e {
        IoError::OutOfRange { .. } => Status::LBA_OUT_OF_RANGE.dnr(),
        IoError::Unaligned { .. } => Status::INVALID_FIELD.dnr(),
        IoError::ReadOnly => Status::WRITE_PROTECTED.dnr(),
        IoError::NoSpace => Status::CAPACITY_EXCEEDED.dnr(),
        IoError::Unsupported(_) => Status::INVALID_OPCODE.dnr(),
        IoError::Aborted => Status::ABORT_REQUESTED,
        IoError::Unreachable(_) | IoError::Offline(_) => Status::INTERNAL_PATH_ERROR,
        IoError::Reserved => Status::RESERVATION_CONFLICT.dnr(),
        IoError::Refused(_) => Status::INTERNAL_ERROR,
        IoError::Medium(_) | IoError::Integrity(_) if reading => Status::UNRECOVERED_READ,
        IoError::Medium(_) | IoError::Integrity(_) => Status::WRITE_FAULT,
    }
}

/// The status of a failed flush.
fn status_of_flush(e: &IoError, reading: bool) -> Status {
    let status = status_of(e, reading);
    // Its repetition may succeed, since a device tells of a loss once; the writes are lost all the same.
    if e.is_loss() { status.dnr() } else { status }
}

/// What a command counts as, and the bytes of a read or write.
fn operation_of(command: &IoCommand) -> (Operation, u32) {
    match command {
        IoCommand::Read { len, .. } => (Operation::Read, *len),
        IoCommand::Write { len, .. } => (Operation::Write, *len),
        IoCommand::Flush | IoCommand::FlushAll => (Operation::Flush, 0),
        _ => (Operation::Other, 0),
    }
}

/// Whether a status says that the medium has lost data.
pub(crate) fn is_media_error(status: Status) -> bool {
    //= NVMe Base 2.1, SMART / Health Information log page: media errors are unrecovered data integrity errors
    // Other statuses of that type are about the command: data that differs (as a Compare is to find
    // out), or access that is denied.
    let lost = [
        Status::WRITE_FAULT,
        Status::UNRECOVERED_READ,
        Status::GUARD_CHECK,
        Status::APPLICATION_TAG_CHECK,
        Status::REFERENCE_TAG_CHECK,
    ];
    lost.into_iter().any(|lost| status.is(lost))
}

impl IoQueue {
    pub(crate) fn new(
        qid: u16,
        link: Arc<Link>,
        presence: Rc<Presence>,
        subsystem: Arc<Subsystem>,
        view: &Arc<SubsystemView>,
    ) -> IoQueue {
        let host = lock(&link.controller).hostid().into_bytes();
        IoQueue {
            qid,
            link,
            host,
            presence: RefCell::new(Some(presence)),
            limits: Limits::of(view),
            // Set with the first command.
            generation: Cell::new(0),
            view: RefCell::new(Arc::clone(view)),
            subsystem,
            devices: RefCell::default(),
            waiting: RefCell::default(),
            opening: Cell::new(false),
            counts: Counts::default(),
        }
    }

    /// The queue has ended: no change begins from now on.
    pub(crate) fn depart(&self) {
        drop(self.presence.take());
    }

    /// Passes counts on, once for many commands.
    pub(crate) fn count(&self) {
        let (health, counts) = (&self.link.health, &self.counts);
        let pass = |from: &Cell<u64>, to: &std::sync::atomic::AtomicU64| {
            let n = from.take();
            if n > 0 {
                to.fetch_add(n, Ordering::Relaxed);
            }
        };
        pass(&counts.reads, &health.reads);
        pass(&counts.bytes_read, &health.bytes_read);
        pass(&counts.writes, &health.writes);
        pass(&counts.bytes_written, &health.bytes_written);
        self.link.traffic.mark();
    }

    /// Looks at the namespaces anew, if they have changed.
    pub(crate) fn refresh(&self) {
        let generation = self.subsystem.generation();
        if generation != self.generation.get() {
            self.generation.set(generation);
            *self.view.borrow_mut() = self.subsystem.view_for(&self.link);
            // A device may have been replaced by another under its number.
            let closed = self.devices.take();
            drop(closed);
        }
    }

    fn device(&self, nsid: u32) -> Option<Rc<Opened>> {
        self.devices.borrow().iter().find(|at| at.nsid == nsid).cloned()
    }

    pub(crate) fn command(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        slot: u16,
        sqe: &Sqe,
        data: CommandData,
    ) {
        if self.presence.borrow().is_none() {
            return connection.complete(slot, Reply::error(Status::ABORTED_SQ_DELETION));
        }
        if is_fabrics(sqe.opcode) {
            return self.fabrics(connection, slot, sqe);
        }
        self.refresh();
        let view = Arc::clone(&self.view.borrow());
        let nsid = sqe.nsid();
        let ns = view.nvm().and_then(|nvm| nvm.namespace(nsid));
        let command = match parse(sqe, ns, &self.limits) {
            Ok(command) => command,
            Err(status) => return self.refuse(connection, slot, sqe, status),
        };
        if command == IoCommand::FlushAll {
            let denied = |ns: &Namespace| !ns.reserved.allows(&self.host, Access::Write);
            let namespaces = self.subsystem.namespaces().clone();
            if namespaces.values().any(|ns| ns.is_for(&self.link.hostnqn) && denied(ns)) {
                return self.refuse(connection, slot, sqe, Status::RESERVATION_CONFLICT.dnr());
            }
            return self.flush_all(connection, slot);
        }
        let Some(ns) = ns else {
            return self.refuse(connection, slot, sqe, Status::INVALID_NAMESPACE.dnr());
        };
        if self.opening.get() || self.device(nsid).is_none() {
            let use_ = connection.use_of(slot);
            self.waiting.borrow_mut().push((slot, use_, *sqe, data));
            return self.open(connection, nsid);
        }
        let Some(at) = self.device(nsid) else { return };
        self.execute(connection, slot, sqe, data, command, ns, at);
    }

    /// Opens a namespace's device on this thread, then executes the commands that wait for it.
    fn open(self: &Rc<Self>, connection: &Rc<Connection>, nsid: u32) {
        if self.opening.replace(true) {
            return;
        }
        let this = Rc::clone(self);
        connection.spawn(async move |connection| {
            let found = this.subsystem.namespace(nsid).filter(|ns| ns.is_for(&this.link.hostnqn));
            let opened = match found {
                Some(namespace) => {
                    namespace.opened();
                    let presence = namespace.users.enter();
                    namespace.device.open().await.map(|io| {
                        let io = match connection.target.rates.of(&this.link.hostnqn) {
                            Some(bound) => around(io, bound),
                            None => io,
                        };
                        let io = in_pieces(io, &namespace.device.info(), this.limits.max_transfer);
                        let written = this.link.written(nsid, &namespace);
                        let reserved = Arc::clone(&namespace.reserved);
                        let host = connection.counted_host();
                        let counting =
                            host.map(|host| Counting::start([&*namespace.counters, &host.commands]));
                        let at = Opened { nsid, io, written, reserved, counting, _presence: presence };
                        (Rc::new(at), Arc::clone(&namespace.device))
                    })
                }
                None => Err(IoError::Refused("the namespace was removed".into())),
            };
            this.opening.set(false);
            let failed = opened.as_ref().err().map(|e| status_of(e, true));
            // It may have been removed or replaced meanwhile: what is not open need not be closed.
            if let Ok((at, device)) = opened
                && this.subsystem.namespace(nsid).is_some_and(|ns| Arc::ptr_eq(&ns.device, &device))
            {
                this.devices.borrow_mut().push(at);
            }
            // Taken before the loop: a command that needs another device is queued again.
            let waiting = this.waiting.take();
            for (slot, use_, sqe, data) in waiting {
                if !connection.is_current(slot, use_) {
                    continue;
                }
                match failed {
                    Some(status) if sqe.nsid() == nsid => this.fail(&connection, slot, &sqe, status),
                    _ => this.command(&connection, slot, &sqe, data),
                }
            }
            connection.flush();
        });
    }

    fn fabrics(self: &Rc<Self>, connection: &Rc<Connection>, slot: u16, sqe: &Sqe) {
        let action = lock(&self.link.controller).handle_io_fabrics(self.qid, sqe);
        match action {
            Action::Complete(reply) => {
                connection.refusals.count();
                connection.complete(slot, reply);
            }
            Action::Disconnect => {
                connection.complete(slot, Reply::ok(0));
                connection.shared.output.notify();
                connection.shared.end();
            }
            _ => {
                connection.refusals.count();
                connection.complete(slot, Reply::error(Status::INVALID_OPCODE.dnr()));
            }
        }
    }

    fn flush_all(&self, connection: &Rc<Connection>, slot: u16) {
        let use_ = connection.use_of(slot);
        let (subsystem, link) = (Arc::clone(&self.subsystem), Arc::clone(&self.link));
        connection.spawn(async move |connection| {
            let failed = crate::admin::flush_all(&subsystem, Some(&link)).await;
            let mut status = Status::SUCCESS;
            if !failed.is_empty() {
                let is_lost = failed.iter().any(Flushed::is_loss);
                status = if is_lost { Status::WRITE_FAULT.dnr() } else { Status::WRITE_FAULT };
            }
            if connection.can_answer(slot, use_) {
                failed.into_iter().for_each(|flushed| drop(flushed.tell()));
            }
            connection.finish(slot, use_, status);
        });
    }

    /// Makes what the controller has written durable.
    fn flush(self: &Rc<Self>, connection: &Rc<Connection>, slot: u16, sqe: &Sqe, at: Rc<Opened>) {
        let (this, sqe, use_) = (Rc::clone(self), *sqe, connection.use_of(slot));
        connection.spawn(async move |connection| {
            let flushed = at.flush().await;
            // Otherwise the host's next flush tells it of a loss: this one was aborted, for example.
            if connection.can_answer(slot, use_) {
                match flushed.tell() {
                    Ok(()) => connection.complete(slot, Reply::ok(0)),
                    Err(e) => this.fail(&connection, slot, &sqe, status_of_flush(&e, false)),
                }
            }
            connection.flush();
        });
    }

    /// Completes a command that no device has seen.
    fn refuse(&self, connection: &Connection, slot: u16, sqe: &Sqe, status: Status) {
        connection.refusals.count();
        self.fail(connection, slot, sqe, status);
    }

    /// Completes a command that failed, and remembers that in the error log.
    fn fail(&self, connection: &Connection, slot: u16, sqe: &Sqe, status: Status) {
        if is_media_error(status) {
            self.link.health.media_errors.fetch_add(1, Ordering::Relaxed);
        }
        let record = ErrorRecord {
            sqid: self.qid,
            cid: sqe.cid(),
            opcode: sqe.opcode,
            status,
            nsid: sqe.nsid(),
            lba: u64::from(sqe.cdw11()) << 32 | u64::from(sqe.cdw10()),
        };
        let status = lock(&self.link.controller).record_error(record);
        connection.complete(slot, Reply::error(status));
    }

    #[allow(clippy::too_many_arguments, reason = "a command has this many fields")]
    fn execute(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        slot: u16,
        sqe: &Sqe,
        data: CommandData,
        command: IoCommand,
        ns: &NamespaceView,
        at: Rc<Opened>,
    ) {
        let (operation, bytes) = operation_of(&command);
        connection.count(slot, at.counting.as_ref(), operation, bytes);
        if self.is_denied(&command, &at) {
            return self.refuse(connection, slot, sqe, Status::RESERVATION_CONFLICT.dnr());
        }
        match command {
            IoCommand::Read { offset, len, fua } => {
                add(&self.counts.reads, 1);
                add(&self.counts.bytes_read, len.into());
                self.read(connection, slot, sqe, offset, len as usize, fua && ns.volatile_cache, at);
            }
            IoCommand::Write { offset, len, .. } => {
                let plain = !connection.shared.queue.borrow().params().data_digest;
                let mapped =
                    plain.then(|| at.io.map_write(offset, len as usize)).flatten().map(Memory::Device);
                let work = Work::Io(WithData { sqe: *sqe, command, ns: ns.clone(), at });
                connection.fetch(slot, data, work, mapped);
            }
            IoCommand::Compare { .. }
            | IoCommand::Deallocate { .. }
            | IoCommand::Hint { .. }
            | IoCommand::Register(_)
            | IoCommand::Acquire(_)
            | IoCommand::Release(_) => {
                let work = Work::Io(WithData { sqe: *sqe, command, ns: ns.clone(), at });
                connection.fetch(slot, data, work, None);
            }
            IoCommand::Flush => self.flush(connection, slot, sqe, at),
            IoCommand::WriteZeroes { offset, len, fua, deallocate } => {
                let fua = fua || self.link.write_through.load(Ordering::Relaxed);
                let flags = ZeroFlags { fua, may_deallocate: deallocate };
                let long = self.long(connection, sqe.nsid(), ns, &at.io);
                self.change(connection, slot, sqe, async move {
                    let since = at.written.begin();
                    let result = long.write_zeroes(offset, len, flags).await;
                    at.written.end(since);
                    result.inspect_err(|e| at.written.failed_write(e, flags.fua))
                });
            }
            IoCommand::Verify { offset, len } => {
                let long = self.long(connection, sqe.nsid(), ns, &at.io);
                self.run(connection, slot, sqe, async move {
                    let _open = at;
                    long.verify(offset, len).await
                });
            }
            IoCommand::Report { len } => {
                let mut report = at.reserved.report(&self.subsystem).encode();
                report.resize(len as usize, 0);
                connection.send_read(slot, Memory::Shared(Buf::copy_of(&report)), None);
            }
            // Handled before a namespace is looked for.
            IoCommand::FlushAll => connection.complete(slot, Reply::error(Status::INTERNAL_ERROR)),
        }
    }

    fn long(&self, connection: &Rc<Connection>, nsid: u32, ns: &NamespaceView, io: &Rc<dyn BlockIo>) -> Long {
        Long {
            connection: Rc::clone(connection),
            device: self.subsystem.namespace(nsid).map(|namespace| namespace.device),
            block_size: ns.block_size(),
            optimal_io: ns.optimal_io,
            io: Rc::clone(io),
        }
    }

    #[allow(clippy::too_many_arguments, reason = "a command has this many fields")]
    fn read(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        slot: u16,
        sqe: &Sqe,
        offset: u64,
        len: usize,
        flush: bool,
        at: Rc<Opened>,
    ) {
        let plain = !connection.shared.queue.borrow().params().data_digest;
        if plain
            && !flush
            && let Some(segment) = at.io.map_read(offset, len)
        {
            return connection.send_read(slot, Memory::Device(segment), None);
        }
        if !flush && let Some((buf, charge)) = connection.shares().host.try_alloc(len) {
            match at.io.read(offset, buf).try_ready() {
                Ok(Ok(buf)) => connection.send_read(slot, Memory::Buf(buf), Some(charge)),
                Ok(Err(e)) => self.fail(connection, slot, sqe, status_of(&e, true)),
                Err(read) => self.answer_read(connection, slot, sqe, async move {
                    let _open = at;
                    Ok((read.await.map_err(|e| status_of(&e, true))?, charge))
                }),
            }
            return;
        }
        let share = Rc::clone(&connection.shares().host);
        self.answer_read(connection, slot, sqe, async move {
            if flush {
                //= NVM Command Set 1.1, Read command: with FUA, data that is in a volatile cache is made durable first
                // The program that reads may not be the one that has written: the host's next flush reports a loss too.
                if let Some(e) = at.flush().await.error() {
                    return Err(status_of_flush(e, true));
                }
            }
            let (buf, charge) = share.alloc(len).await;
            let buf = at.io.read(offset, buf).await.map_err(|e| status_of(&e, true))?;
            Ok((buf, charge))
        });
    }

    fn answer_read(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        slot: u16,
        sqe: &Sqe,
        read: impl Future<Output = Result<(BufMut, Charge), Status>> + 'static,
    ) {
        let (this, sqe, use_) = (Rc::clone(self), *sqe, connection.use_of(slot));
        connection.spawn(async move |connection| {
            let result = read.await;
            if connection.is_current(slot, use_) {
                match result {
                    Ok((buf, charge)) => connection.send_read(slot, Memory::Buf(buf), Some(charge)),
                    Err(status) => this.fail(&connection, slot, &sqe, status),
                }
            }
            connection.flush();
        });
    }

    /// Runs an operation and completes the command with its result.
    fn run(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        slot: u16,
        sqe: &Sqe,
        operation: impl Future<Output = Result<(), IoError>> + 'static,
    ) {
        let (this, sqe, use_) = (Rc::clone(self), *sqe, connection.use_of(slot));
        connection.spawn(async move |connection| {
            let result = operation.await;
            if connection.is_current(slot, use_) {
                match result {
                    Ok(()) => connection.complete(slot, Reply::ok(0)),
                    Err(e) => this.fail(&connection, slot, &sqe, status_of(&e, false)),
                }
            }
            connection.flush();
        });
    }

    /// As [`run`](Self::run), for an operation that changes the namespace: it
    /// cannot be aborted, and the controller is present until its end.
    fn change(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        slot: u16,
        sqe: &Sqe,
        operation: impl Future<Output = Result<(), IoError>> + 'static,
    ) {
        let presence = self.presence.borrow().clone();
        connection.commit(slot);
        self.run(connection, slot, sqe, async move {
            let _until_done = presence;
            operation.await
        });
    }

    /// Continues a command whose data has been received.
    pub(crate) fn data(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        slot: u16,
        work: WithData,
        memory: Memory,
        charge: Option<Charge>,
    ) {
        let WithData { sqe, command, ns, at } = work;
        // It may have been removed, or reserved, while the data was on its way.
        if self.subsystem.managed.is_some() && !self.is_there(at.nsid) {
            return self.refuse(connection, slot, &sqe, Status::INVALID_NAMESPACE.dnr());
        }
        if self.is_denied(&command, &at) {
            return self.refuse(connection, slot, &sqe, Status::RESERVATION_CONFLICT.dnr());
        }
        match command {
            IoCommand::Write { offset, len, fua } => {
                add(&self.counts.writes, 1);
                add(&self.counts.bytes_written, len.into());
                let flags = WriteFlags { fua: fua || self.link.write_through.load(Ordering::Relaxed) };
                let src = match memory {
                    // The data is in the device already.
                    Memory::Device(_) => return connection.complete(slot, Reply::ok(0)),
                    Memory::Buf(buf) => buf.freeze(),
                    Memory::Shared(buf) => buf,
                };
                let since = at.written.begin();
                match at.io.write(offset, src, flags).try_ready() {
                    Ok(Ok(())) => connection.complete(slot, Reply::ok(0)),
                    Ok(Err(e)) => {
                        at.written.failed_write(&e, flags.fua);
                        self.fail(connection, slot, &sqe, status_of(&e, false));
                    }
                    Err(write) => self.change(connection, slot, &sqe, async move {
                        let _held = charge;
                        let result = write.await;
                        at.written.end(since);
                        result.inspect_err(|e| at.written.failed_write(e, flags.fua))
                    }),
                }
            }
            IoCommand::Compare { offset, len } => {
                add(&self.counts.reads, 1);
                add(&self.counts.bytes_read, len.into());
                self.compare(connection, slot, &sqe, offset, (memory, charge), at);
            }
            IoCommand::Deallocate { ranges } => {
                let bytes = memory.bytes().unwrap_or_default();
                let ranges: Vec<_> = match deallocate_ranges(bytes, ranges, &ns) {
                    Ok(ranges) => ranges.collect(),
                    Err(status) => return self.refuse(connection, slot, &sqe, status),
                };
                let long = self.long(connection, sqe.nsid(), &ns, &at.io);
                self.change(connection, slot, &sqe, async move {
                    let since = at.written.begin();
                    let result = long.discard(ranges).await;
                    at.written.end(since);
                    result
                });
            }
            IoCommand::Register(_) | IoCommand::Acquire(_) | IoCommand::Release(_) => {
                self.reserve(connection, slot, &sqe, command, memory.bytes().unwrap_or_default(), &at);
            }
            _ => connection.complete(slot, Reply::ok(0)),
        }
    }

    /// Whether the host still has the namespace.
    fn is_there(&self, nsid: u32) -> bool {
        self.refresh();
        self.view.borrow().nvm().is_some_and(|nvm| nvm.namespace(nsid).is_some())
    }

    /// Whether a reservation keeps the host from the command.
    #[inline]
    fn is_denied(&self, command: &IoCommand, at: &Opened) -> bool {
        command.access().is_some_and(|access| !at.reserved.allows(&self.host, access))
    }

    /// Carries out a command of reservations with these keys.
    fn reserve(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        slot: u16,
        sqe: &Sqe,
        command: IoCommand,
        keys: &[u8],
        at: &Opened,
    ) {
        let mut both = [0; RegisterFields::DATA];
        both[..keys.len().min(RegisterFields::DATA)]
            .copy_from_slice(&keys[..keys.len().min(RegisterFields::DATA)]);
        let (current, other) = decode_keys(&both);
        let host = self.host;
        let persistent = at.reserved.can_persist();
        let done = at.reserved.change(|state| match command {
            //= NVMe Base 2.1, Reservation Register command: CPTPL set to 11b where RESCAP has no persistence is an invalid field
            IoCommand::Register(fields) if fields.persist == PersistChange::Set && !persistent => {
                Err(Status::INVALID_FIELD.dnr())
            }
            IoCommand::Register(fields) => state.register(host, fields, current, other),
            IoCommand::Acquire(fields) => state.acquire(host, fields, current, other),
            IoCommand::Release(fields) => state.release(host, fields, current),
            _ => Err(Status::INVALID_OPCODE.dnr()),
        });
        let effects = match done {
            Ok(effects) => effects,
            Err(status) => return self.refuse(connection, slot, sqe, status),
        };
        let told = {
            let uuid = self.subsystem.namespace(at.nsid).map(|namespace| namespace.uuid);
            connection.tell_reservation(ReservationAction::of(command), (at.nsid, uuid), &effects)
        };
        self.subsystem.notify_reservation(at.nsid, &effects.notices);
        if effects.abort.is_empty() && !at.reserved.is_unsaved() && told.is_empty() {
            return connection.complete(slot, Reply::ok(0));
        }
        let (subsystem, use_) = (Arc::clone(&self.subsystem), connection.use_of(slot));
        let reserved = Arc::clone(&at.reserved);
        connection.spawn(async move |connection| {
            let saved = reserved.save().await;
            subsystem.end_io_of(&effects.abort).await;
            told.recorded().await;
            connection.finish(slot, use_, saved.err().unwrap_or(Status::SUCCESS));
        });
    }

    fn compare(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        slot: u16,
        sqe: &Sqe,
        offset: u64,
        (expected, charge): (Memory, Option<Charge>),
        at: Rc<Opened>,
    ) {
        let share = Rc::clone(&connection.shares().check);
        let (this, sqe, use_) = (Rc::clone(self), *sqe, connection.use_of(slot));
        connection.spawn(async move |connection| {
            let expected: Buf = match expected {
                Memory::Buf(buf) => buf.freeze(),
                Memory::Shared(buf) => buf,
                Memory::Device(_) => unreachable!("data to compare is never received into the device"),
            };
            let _held = charge;
            let (buf, _found) = share.alloc(expected.len()).await;
            let result = at.io.read(offset, buf).await;
            if connection.is_current(slot, use_) {
                match result {
                    Ok(found) if found[..] == expected[..] => connection.complete(slot, Reply::ok(0)),
                    Ok(_) => this.fail(&connection, slot, &sqe, Status::COMPARE_FAILURE.dnr()),
                    Err(e) => this.fail(&connection, slot, &sqe, status_of(&e, true)),
                }
            }
            connection.flush();
        });
    }
}
