//! Connect, and the admin queue of a controller.

use crate::audit::RefusalReason;
use crate::auth::Proof;
use crate::connection::{Connection, Role, Work};
use crate::durable::{Flushed, Written};
use crate::io::IoQueue;
use crate::ledger::Charge;
use crate::memory::REPLY_MAX;
use crate::observer::count;
use crate::pace::Pace;
use crate::space::SpaceChange;
use crate::subsystem::{Link, Message, Namespace, NotAdmitted, Subsystem, lock};
use crate::target::Shared;
use futures_channel::oneshot;
use longhaul_auth::ControllerOptions;
use longhaul_engine::{BUF_MAX, BufMut, Memory, Task, now, sleep, sleep_until, spawn};
use longhaul_proto::controller::{
    Action, Change, ConnectRequest, Controller, Env, ErrorRecord, HealthCounters, Instance, Reply,
    SpaceCommand, parse_registration,
};
use longhaul_proto::target::{CommandData, QueueLimits};
use longhaul_wire::command::{CrossControllerReset, Direction, Sqe, admin as opcode};
use longhaul_wire::completion::Status;
use longhaul_wire::nqn::DISCOVERY_NQN;
use longhaul_wire::registration::RegistrationTask;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often the keep-alive timer is looked at when it has no deadline yet,
/// and at most: a deadline only moves away.
const KEEP_ALIVE_LOOK: Duration = Duration::from_secs(1);

/// Replies of admin commands that one connection may wait to have sent, in
/// bytes, before its next command is taken: a few Identify. A host that never
/// reads holds no more.
const REPLIES_PENDING: u64 = 16 << 10;

/// Refuses a Connect whose host has not proved what it would have to, and logs `message`.
fn refuse_host(
    connection: &Connection,
    slot: u16,
    request: &ConnectRequest,
    why: RefusalReason,
    message: fmt::Arguments<'_>,
) {
    let target = &connection.target;
    count(&target.incidents.authentication);
    target.quiet.refuse.say(message, |line| tracing::warn!("{line}"));
    connection.refuse(slot, request.refused_host(), why);
}

/// Handles Connect, with its data.
pub(crate) fn connect(connection: &Rc<Connection>, slot: u16, sqe: &Sqe, data: &[u8]) {
    let request = match ConnectRequest::parse(sqe, data) {
        Ok(request) => request,
        Err(reply) => return connection.refuse(slot, reply, RefusalReason::Connect),
    };
    connection.identify(&request);
    let target = &connection.target;
    let discovery = request.subnqn == DISCOVERY_NQN;
    match connection.secured() {
        Some(secured) if !secured.is_for(&request) => {
            let message = format_args!(
                "{}: host {} connects to {} with TLS by the key of host {} for {}",
                connection.peer(),
                request.hostnqn,
                request.subnqn,
                secured.hostnqn,
                secured.subnqn
            );
            return refuse_host(connection, slot, &request, RefusalReason::OtherKey, message);
        }
        // By the address that takes connections without TLS, for discovery, or an I/O queue where one of administration
        // may authenticate for a PSK.
        None if !discovery && target.config.tls.refuses_without(request.qid) => {
            let message = format_args!(
                "{}: host {} connects to {} without TLS",
                connection.peer(),
                request.hostnqn,
                request.subnqn
            );
            return refuse_host(connection, slot, &request, RefusalReason::NoTls, message);
        }
        secured => connection.is_proved.set(secured.is_some()),
    }
    let Some(subsystem) = target.subsystem(&request.subnqn) else {
        return connection.refuse(slot, request.unknown_subsystem(), RefusalReason::UnknownSubsystem);
    };
    if !connection.belongs_to(&request) {
        return connection.refuse(slot, request.busy(), RefusalReason::Connections);
    }
    // The discovery log is read without authentication; hosts that may change it authenticate.
    let generation = connection.secured().filter(|secured| secured.generated.is_some());
    let generation = generation.map(|secured| secured.generation);
    let auth = match &target.config.keys {
        Some(keys) if !discovery || target.config.may_register(&request.hostnqn) => {
            match keys.of(&request.hostnqn, &request.subnqn) {
                // The PSK of an I/O queue was made by the host on the admin queue.
                Ok(_) if generation.is_some() && request.qid != 0 => None,
                Ok(Some(options)) => {
                    let concatenation = target.concatenation(&request, connection.secured());
                    Some(Proof {
                        options: ControllerOptions { concatenation, ..options },
                        before: generation,
                    })
                }
                // Its key for TLS is a proof.
                Ok(None) if connection.secured().is_some() => None,
                Ok(None) => {
                    count(&target.incidents.authentication);
                    return connection.refuse(slot, request.refused_host(), RefusalReason::NoKey);
                }
                Err(why) => {
                    let message = format_args!("{}: host {}: {why}", connection.peer(), request.hostnqn);
                    target.quiet.refuse.say(message, |line| tracing::error!("{line}"));
                    // It may connect once this is repaired.
                    return connection.refuse(slot, request.busy(), RefusalReason::KeyUnreadable);
                }
            }
        }
        _ => None,
    };
    let view = if discovery { target.discovery_view(&connection.local) } else { subsystem.view() };
    if request.qid == 0 {
        return connect_admin(connection, slot, request, subsystem, &view, auth);
    }
    let link = lock(&subsystem.controllers).get(&request.cntlid).cloned();
    let Some(link) = link else {
        // Hosts take an unknown controller for one whose commands have ended.
        let busy = subsystem.is_departing(request.cntlid);
        let reply = if busy { request.busy() } else { request.unknown_controller() };
        return connection.refuse(slot, reply, RefusalReason::Connect);
    };
    //= NVMe-TCP 1.1, Transport Layer Security: the queues of a controller are as secure as its admin queue
    if link.is_secure && connection.secured().is_none() {
        let message = format_args!(
            "{}: host {} connects an I/O queue without TLS to controller {}, whose admin queue has it",
            connection.peer(),
            request.hostnqn,
            link.cntlid
        );
        return refuse_host(connection, slot, &request, RefusalReason::NoTls, message);
    }
    let connected = {
        // Added before the lock is free, so that a reset finds it.
        let mut controller = lock(&link.controller);
        controller.connect_io(&request, &view).map(|params| {
            link.add_queue(params.qid, connection.sender.clone());
            (params, Rc::new(link.enter()))
        })
    };
    let (params, presence) = match connected {
        Ok(connected) => connected,
        Err(reply) => {
            let is_other = request.hostnqn != link.hostnqn;
            let why = if is_other { RefusalReason::OtherHost } else { RefusalReason::of_connect(&reply) };
            return connection.refuse(slot, reply, why);
        }
    };
    connection.arrive(&presence);
    let limits = QueueLimits {
        entries: params.entries,
        in_capsule: target.config.in_capsule,
        flow_control: params.flow_control,
    };
    tracing::debug!("{}: I/O queue {} of controller {}", connection.peer(), params.qid, link.cntlid);
    connection.counts_for(&link.hostnqn);
    let io = IoQueue::new(params.qid, link, presence, subsystem, &view);
    let reply = connection.become_authenticated(auth, params.reply());
    connection.become_role(slot, Role::Io(Rc::new(io)), limits, reply);
}

fn connect_admin(
    connection: &Rc<Connection>,
    slot: u16,
    request: ConnectRequest,
    subsystem: Arc<Subsystem>,
    view: &longhaul_proto::controller::SubsystemView,
    auth: Option<Proof>,
) {
    let target = &connection.target;
    let Some(cntlid) = subsystem.free_cntlid() else {
        return connection.refuse(slot, request.busy(), RefusalReason::Connections);
    };
    let hostnqn = request.hostnqn.clone();
    let asked = request.clone();
    let (controller, params) = match Controller::connect(request, cntlid, view, now()) {
        Ok((mut controller, params)) => {
            controller.set_instance(Instance::new(random()));
            (controller, params)
        }
        Err(reply) => {
            let why = RefusalReason::of_connect(&reply);
            return connection.refuse(slot, reply, why);
        }
    };
    let link = Arc::new(Link::new(cntlid, controller, connection.secured().is_some()));
    link.add_queue(0, connection.sender.clone());
    if let Err(why) = subsystem.admit(&link) {
        let (reply, why) = match why {
            NotAdmitted::Host => (asked.refused_host(), RefusalReason::NotAllowed),
            NotAdmitted::Busy => (asked.busy(), RefusalReason::Connections),
            NotAdmitted::Removed => (asked.unknown_subsystem(), RefusalReason::UnknownSubsystem),
        };
        return connection.refuse(slot, reply, why);
    }
    let rights = if link.is_reader() { ", which may only read" } else { "" };
    tracing::info!("{}: controller {cntlid} of {} for {hostnqn}{rights}", connection.peer(), subsystem.nqn);
    connection.counts_for(&hostnqn);
    let timer = spawn(keep_alive(Rc::clone(connection), Arc::clone(&link)));
    let limits = QueueLimits {
        entries: params.entries,
        in_capsule: longhaul_proto::target::IN_CAPSULE_ADMIN,
        flow_control: params.flow_control,
    };
    connection.shared.queue.borrow_mut().set_reply_limit(REPLIES_PENDING);
    let pace = target.admin.of(connection.origin(), now());
    let (held, waiting) = (RefCell::default(), RefCell::default());
    if auth.as_ref().is_none_or(|proof| proof.before.is_some()) {
        connection.tell_connected(&link, connection.secured().map(|secured| secured.generation));
    }
    let admin = AdminQueue { link, subsystem, held, pace, waiting, _timer: timer };
    let reply = connection.become_authenticated(auth, params.reply());
    connection.become_role(slot, Role::Admin(Rc::new(admin)), limits, reply);
}

/// 64 unpredictable bits.
pub(crate) fn random() -> u64 {
    let mut bits = [0; size_of::<u64>()];
    longhaul_engine::random(&mut bits);
    u64::from_le_bytes(bits)
}

/// Ends a controller whose host does not show any sign of life.
async fn keep_alive(connection: Rc<Connection>, link: Arc<Link>) {
    let most = connection.target.config.patience.enable;
    let mut enabled = now();
    loop {
        let (next, is_enabled) = {
            let controller = lock(&link.controller);
            (controller.next_timeout(), controller.is_enabled())
        };
        if is_enabled {
            enabled = now();
        } else if now().saturating_duration_since(enabled) >= most {
            let message = format_args!(
                "{}: controller {}: not enabled within {} s, disconnected",
                connection.peer(),
                link.cntlid,
                most.as_secs()
            );
            count(&connection.target.incidents.late);
            connection.target.quiet.late.say(message, |line| tracing::info!("{line}"));
            connection.close();
            return;
        }
        let look = now() + KEEP_ALIVE_LOOK.min(most);
        sleep_until(next.map_or(look, |next| next.min(look))).await;
        let expired = lock(&link.controller).handle_timeout(now());
        if expired.is_some() {
            count(&connection.target.incidents.late);
            tracing::warn!("{}: controller {}: keep-alive timer expired", connection.peer(), link.cntlid);
            drop(link.close_io());
            connection.close();
            return;
        }
    }
}

/// The admin queue of a controller.
pub(crate) struct AdminQueue {
    pub(crate) link: Arc<Link>,
    subsystem: Arc<Subsystem>,
    /// Slots of Asynchronous Event Requests that wait.
    held: RefCell<Vec<u16>>,
    /// The turns of its address.
    pace: Arc<Pace>,
    /// Commands that wait for one, in order. The first has asked for it: a connection has one
    /// place in the line, however many commands it sends.
    waiting: RefCell<VecDeque<Waiting>>,
    _timer: Task<()>,
}

/// A command that changes a space, whose data is on its way.
pub(crate) struct WithSpaceData {
    sqe: Sqe,
    command: SpaceCommand,
}

/// A command that waits for its turn.
struct Waiting {
    slot: u16,
    use_: u32,
    sqe: Sqe,
    data: CommandData,
}

impl AdminQueue {
    /// Commands that wait for events, and would wait for ever.
    pub(crate) fn held(&self) -> usize {
        self.held.borrow().len()
    }

    pub(crate) fn command(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        slot: u16,
        sqe: &Sqe,
        data: CommandData,
    ) {
        let is_first = self.waiting.borrow().is_empty();
        if is_first && self.pace.take(now(), Duration::ZERO).is_some() {
            return self.begin(connection, slot, sqe, data);
        }
        let use_ = connection.use_of(slot);
        self.waiting.borrow_mut().push_back(Waiting { slot, use_, sqe: *sqe, data });
        if is_first {
            let this = Rc::clone(self);
            connection.spawn(async move |connection| this.take_turns(connection).await);
        }
    }

    /// Begins the commands that wait, each when its turn has come.
    async fn take_turns(self: Rc<Self>, connection: Rc<Connection>) {
        loop {
            let wait = self.pace.take(now(), Duration::MAX).unwrap_or_default();
            sleep(wait).await;
            let first =
                self.waiting.borrow().front().map(|first| (first.slot, first.use_, first.sqe, first.data));
            if connection.shared.is_ending() {
                return;
            }
            if let Some((slot, use_, sqe, data)) = first
                && connection.is_current(slot, use_)
            {
                self.begin(&connection, slot, &sqe, data);
                connection.flush();
            }
            let mut waiting = self.waiting.borrow_mut();
            waiting.pop_front();
            if waiting.is_empty() {
                return;
            }
        }
    }

    fn begin(self: &Rc<Self>, connection: &Rc<Connection>, slot: u16, sqe: &Sqe, data: CommandData) {
        match data {
            CommandData::HostBuffer { len }
                if len as usize <= BUF_MAX && sqe.direction() != Direction::ToController =>
            {
                self.with_memory(connection, slot, sqe, data, len as usize);
            }
            _ => self.execute(connection, slot, sqe, data, None),
        }
    }

    /// Executes a command that has data for the host once there is memory for
    /// it: a peer that never takes its log pages is no reason to have more.
    fn with_memory(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        slot: u16,
        sqe: &Sqe,
        data: CommandData,
        len: usize,
    ) {
        let shares = connection.shares();
        let share = if len <= REPLY_MAX { &shares.replies } else { &shares.host };
        if let Some(got) = share.try_alloc(len) {
            return self.execute(connection, slot, sqe, data, Some(got));
        }
        let (this, use_, sqe, share) = (Rc::clone(self), connection.use_of(slot), *sqe, Rc::clone(share));
        connection.spawn(async move |connection| {
            let got = share.alloc(len).await;
            if connection.is_current(slot, use_) {
                this.execute(&connection, slot, &sqe, data, Some(got));
                connection.flush();
            }
        });
    }

    fn execute(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        slot: u16,
        sqe: &Sqe,
        data: CommandData,
        memory: Option<(BufMut, Charge)>,
    ) {
        let (view, health) = if self.subsystem.nqn == DISCOVERY_NQN {
            (connection.target.discovery_view(&connection.local), HealthCounters::default())
        } else {
            (self.subsystem.view_for(&self.link), self.subsystem.health())
        };
        let env = Env { now: now(), subsystem: &view, health: &health };
        let action = lock(&self.link.controller).handle_admin(sqe, env);
        let registers = sqe.opcode == opcode::DISCOVERY_INFORMATION_MANAGEMENT;
        if registers
            && self.subsystem.nqn == DISCOVERY_NQN
            && connection.target.config.refuses_to_register(&self.link.hostnqn)
        {
            connection.tell_refused(RefusalReason::NotRegistrar);
        }
        if self.is_forbidden(sqe) {
            connection.tell_refused(RefusalReason::NotAdministrator);
        }
        self.act(connection, slot, sqe, data, action, memory);
        self.report_events(connection);
    }

    fn act(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        slot: u16,
        sqe: &Sqe,
        data: CommandData,
        action: Action,
        memory: Option<(BufMut, Charge)>,
    ) {
        match action {
            Action::Complete(reply) => connection.complete(slot, reply),
            Action::Data(bytes) => match data {
                CommandData::HostBuffer { len } if len as usize == bytes.len() => match memory {
                    Some((mut buf, charge)) => {
                        buf.copy_from_slice(&bytes);
                        connection.send_read(slot, Memory::Buf(buf), Some(charge));
                    }
                    // More than any buffer holds.
                    None => connection.complete(slot, Reply::error(Status::INVALID_FIELD.dnr())),
                },
                //= NVMe Base 2.1, Data SGL Length Invalid: the descriptor describes more or less than the command transfers
                _ => connection.complete(slot, Reply::error(Status::DATA_SGL_LENGTH.dnr())),
            },
            Action::Hold => {
                self.held.borrow_mut().push(slot);
                connection.shared.queue.borrow_mut().hold(slot);
            }
            Action::Abort { sqid, cid } => self.abort(connection, slot, sqid, cid),
            Action::ResetOther(fields) => self.reset_other(connection, slot, fields),
            Action::Manage(command) => self.manage(connection, slot, sqe, data, command),
            Action::Register { task, len } => self.register(connection, slot, sqe, data, task, len),
            Action::Controllers { nsid, from } => {
                let list = self.subsystem.controller_list(nsid, from);
                self.act(connection, slot, sqe, data, Action::Data(list), memory);
            }
            Action::Change(change) => self.change(connection, slot, change),
            Action::WriteCache { enabled } => self.write_cache(connection, slot, enabled),
            Action::ReservationPersistence { nsid } => {
                let persists = self.subsystem.namespace(nsid).is_some_and(|ns| ns.reserved.persists());
                connection.complete(slot, Reply::ok(persists.into()));
            }
            Action::PersistReservations { nsids, persist } => {
                self.persist_reservations(connection, slot, &nsids, persist);
            }
            Action::Disconnect => connection.complete(slot, Reply::error(Status::INVALID_QUEUE_TYPE.dnr())),
        }
    }

    /// Whether the command changes a space of which the host is no administrator.
    fn is_forbidden(&self, sqe: &Sqe) -> bool {
        let manages = [opcode::NAMESPACE_MANAGEMENT, opcode::NAMESPACE_ATTACHMENT, opcode::NAMESPACE_CHANGE]
            .contains(&sqe.opcode);
        let managed = self.subsystem.managed.as_ref().filter(|_| manages);
        managed.is_some_and(|managed| !managed.is_admin(&self.link.hostnqn))
    }

    /// The host has forgotten an event request, and uses its identifier for
    /// another command: it is not completed any more.
    pub(crate) fn displaced(&self, slot: u16, cid: u16) {
        self.held.borrow_mut().retain(|&held| held != slot);
        lock(&self.link.controller).forget_event_request(cid);
    }

    /// Completes the event requests for which there is an event.
    pub(crate) fn report_events(&self, connection: &Connection) {
        loop {
            let event = lock(&self.link.controller).poll_event();
            let Some((cid, reply)) = event else { return };
            let slot = connection.shared.queue.borrow().find(cid);
            if let Some(slot) = slot {
                self.held.borrow_mut().retain(|&held| held != slot);
                connection.complete(slot, reply);
            }
        }
    }

    fn abort(&self, connection: &Rc<Connection>, slot: u16, sqid: u16, cid: u16) {
        let (reply, answer) = oneshot::channel();
        self.link.send(sqid, Message::Abort { cid, reply });
        let (link, use_) = (Arc::clone(&self.link), connection.use_of(slot));
        connection.spawn(async move |connection| {
            // The queue has ended and dropped the message: not aborted.
            let aborted = answer.await.unwrap_or(false);
            let reply = lock(&link.controller).abort_done(aborted);
            if connection.is_current(slot, use_) {
                connection.complete(slot, reply);
            }
            connection.flush();
        });
    }

    fn reset_other(self: &Rc<Self>, connection: &Rc<Connection>, slot: u16, fields: CrossControllerReset) {
        let (this, use_) = (Rc::clone(self), connection.use_of(slot));
        connection.spawn(async move |connection| {
            let host = {
                let controller = lock(&this.link.controller);
                (controller.hostnqn().to_owned(), controller.hostid())
            };
            let outcome = this.subsystem.reset_other(fields, host).await;
            let reply = lock(&this.link.controller).reset_other_done(outcome);
            if connection.is_current(slot, use_) {
                connection.complete(slot, reply);
            }
            connection.flush();
        });
    }

    fn change(self: &Rc<Self>, connection: &Rc<Connection>, slot: u16, change: Change) {
        if change == Change::Enabled {
            return connection.complete(slot, Reply::ok(0));
        }
        if change == Change::Disabling {
            // The controller has forgotten them; left open, they would be in
            // the way of the queue's next life.
            let held = self.held.take();
            held.into_iter().for_each(|slot| connection.complete(slot, Status::ABORT_REQUESTED.into()));
        }
        connection.complete(slot, Reply::ok(0));
        let (this, abrupt) = (Rc::clone(self), change == Change::ShuttingDown { abrupt: true });
        connection.spawn(async move |connection| {
            // Queues of the next life may have the same numbers.
            this.link.close_io().await;
            // A reset reports nothing about durability to the host: its next flush returns an error
            // of this one.
            let told = (change != Change::Disabling).then_some(&*this.link);
            let failed = if abrupt { Vec::new() } else { flush_all(&this.subsystem, told).await };
            if failed.is_empty() || change == Change::Disabling {
                return lock(&this.link.controller).change_done(change);
            }
            failed.into_iter().for_each(|flushed| drop(flushed.tell()));
            tracing::error!(
                "{}: controller {}: not everything is durable, so its shutdown fails (CSTS.CFS)",
                connection.peer(),
                this.link.cntlid
            );
            lock(&this.link.controller).shutdown_failed();
        });
    }

    fn write_cache(self: &Rc<Self>, connection: &Rc<Connection>, slot: u16, enabled: bool) {
        self.link.write_through.store(!enabled, Ordering::Relaxed);
        if enabled {
            return connection.complete(slot, Reply::ok(0));
        }
        let (this, use_) = (Rc::clone(self), connection.use_of(slot));
        connection.spawn(async move |connection| {
            let failed = flush_all(&this.subsystem, Some(&this.link)).await;
            // A file system hears of a loss by its flushes: the next one reports this loss, too.
            let status = match failed.iter().any(Flushed::is_loss) {
                true => Status::INTERNAL_ERROR.dnr(),
                false if failed.is_empty() => Status::SUCCESS,
                false => Status::INTERNAL_ERROR,
            };
            connection.finish(slot, use_, status);
        });
    }

    /// Gets the data of a command that changes a space, if it has some, and carries it out.
    fn manage(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        slot: u16,
        sqe: &Sqe,
        data: CommandData,
        command: SpaceCommand,
    ) {
        let len = data.bytes();
        //= NVMe Base 2.1, Data SGL Length Invalid: the descriptor describes more or less than the command transfers
        if len != command.data_len() {
            return self.fail(connection, slot, sqe, Status::DATA_SGL_LENGTH.dnr());
        }
        let work = WithSpaceData { sqe: *sqe, command };
        match len {
            0 => self.carry_out(connection, slot, &work, &[]),
            _ => connection.fetch(slot, data, Work::Manage(Box::new(work)), None),
        }
    }

    /// Gets the data of a registration, or of its end.
    fn register(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        slot: u16,
        sqe: &Sqe,
        data: CommandData,
        task: RegistrationTask,
        len: usize,
    ) {
        //= NVMe Base 2.1, Data SGL Length Invalid: the descriptor describes more or less than the command transfers
        if data.bytes() != len {
            return self.fail(connection, slot, sqe, Status::DATA_SGL_LENGTH.dnr());
        }
        connection.fetch(slot, data, Work::Register(Box::new((*sqe, task))), None);
    }

    /// Carries out the task of a registration whose data has arrived.
    pub(crate) fn registered(
        &self,
        connection: &Rc<Connection>,
        slot: u16,
        sqe: &Sqe,
        task: RegistrationTask,
        data: &[u8],
    ) {
        let target = &connection.target;
        let changed = parse_registration(data, &self.link.hostnqn).and_then(|registration| {
            target.registry.carry_out(self.link.cntlid, connection.peer().ip(), task, registration)
        });
        match changed {
            Ok(changed) => {
                connection.complete(slot, Reply::ok(0));
                if changed {
                    target.discovery_changed();
                }
            }
            Err(status) => self.fail(connection, slot, sqe, status.dnr()),
        }
    }

    /// Changes the space, and completes the command when that is durable.
    pub(crate) fn carry_out(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        slot: u16,
        work: &WithSpaceData,
        data: &[u8],
    ) {
        let WithSpaceData { sqe, command } = *work;
        let change = match SpaceChange::parse(command, data) {
            Ok(change) => change,
            Err(status) => return self.fail(connection, slot, &sqe, status.dnr()),
        };
        // It cannot be aborted any more.
        connection.commit(slot);
        let (this, use_) = (Rc::clone(self), connection.use_of(slot));
        connection.spawn(async move |connection| {
            let (result, told) = this.subsystem.manage(change, connection.space_teller()).await;
            told.recorded().await;
            if connection.is_current(slot, use_) {
                match result {
                    Ok(dw0) => connection.complete(slot, Reply::ok(dw0.into())),
                    Err(status) => this.fail(&connection, slot, &sqe, status),
                }
            }
            connection.flush();
        });
    }

    /// Completes a command that failed, and adds it to the error log.
    fn fail(&self, connection: &Connection, slot: u16, sqe: &Sqe, status: Status) {
        let (cid, opcode, nsid) = (sqe.cid(), sqe.opcode, sqe.nsid());
        let record = ErrorRecord { sqid: 0, cid, opcode, status, nsid, lba: 0 };
        let status = lock(&self.link.controller).record_error(record);
        connection.complete(slot, Reply::error(status));
    }

    /// Makes reservations persist through a restart, or not any more; the command completes when
    /// that is durable.
    fn persist_reservations(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        slot: u16,
        nsids: &[u32],
        persist: bool,
    ) {
        let found: Vec<_> = nsids.iter().filter_map(|nsid| self.subsystem.namespace(*nsid)).collect();
        for namespace in &found {
            namespace.reserved.set_persists(persist);
        }
        let use_ = connection.use_of(slot);
        connection.spawn(async move |connection| {
            let mut status = Status::SUCCESS;
            for namespace in &found {
                if let Err(failed) = namespace.reserved.save().await {
                    status = failed;
                }
            }
            connection.finish(slot, use_, status);
        });
    }

    /// The association ends with its admin queue.
    pub(crate) fn end(&self, target: &Shared) {
        self.subsystem.depart(&self.link);
        if self.subsystem.nqn == DISCOVERY_NQN && target.registry.forget(self.link.cntlid) {
            target.discovery_changed();
        }
        drop(self.link.close_io());
    }
}

/// Makes everything written to a subsystem durable; returns what failed. Of what the controller
/// `link` has written, that is also what a flush since then has failed to make durable.
pub(crate) async fn flush_all(subsystem: &Subsystem, link: Option<&Link>) -> Vec<Flushed> {
    let namespaces = subsystem.namespaces().clone();
    let is_concerned = |ns: &Namespace| {
        ns.is_accessible() && ns.was_opened() && link.is_none_or(|link| ns.is_for(&link.hostnqn))
    };
    let mut failed = Vec::new();
    for (nsid, namespace) in namespaces.into_iter().filter(|(_, ns)| is_concerned(ns)) {
        let written = match link {
            Some(link) => link.written(nsid, &namespace),
            None => Arc::new(Written::new(&namespace.failures, None)),
        };
        let flushed = match namespace.device.open().await {
            Ok(io) => written.flush(&*io).await,
            Err(e) => Flushed::failed(e),
        };
        if let Some(e) = flushed.error() {
            tracing::error!("{}: flush failed: {e}", namespace.device.info().name);
            failed.push(flushed);
        }
    }
    failed
}
