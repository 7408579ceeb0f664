//! What a controller says: admin, Fabrics and I/O commands as pure code.
//!
//! One [`Controller`] is one association of a host with a subsystem. It keeps
//! no socket, no clock and no data of namespaces. The driver calls, in order:
//!
//! 1. [`ConnectRequest::parse`] with the first command of a connection; for
//!    queue 0 [`Controller::connect`], else [`Controller::connect_io`] of the
//!    controller that the request names;
//! 2. [`Controller::handle_admin`] with each command of the admin queue, and
//!    [`Controller::handle_io_fabrics`] with those of I/O queues whose opcode
//!    is that of Fabrics; every other I/O command goes through [`io::parse`],
//!    which needs no controller;
//! 3. [`Controller::poll_event`] until it gives `None`, after every call that
//!    changes something (`handle_*`, `*_changed`);
//! 4. [`Controller::handle_timeout`] when [`Controller::next_timeout`] says,
//!    and [`Traffic::mark`] from the I/O path.
//!
//! Invariants:
//! - nothing but Fabrics commands is answered before the controller is ready,
//!   and an I/O queue exists only on a controller that is ready or being
//!   reset or shut down;
//! - at most [`AER_LIMIT`] event requests are held open, and each is completed
//!   once or forgotten in a reset;
//! - of each kind of event at most one is reported until the host reads the
//!   log page that belongs to it;
//! - what a controller keeps is bounded by its own limits ([`ERROR_ENTRIES`],
//!   queues, namespaces, [`CHANGED_NAMESPACES_MAX`]), never by what a host sends.

mod action;
mod connect;
mod discovery;
mod event;
mod feature;
mod identify;
mod instance;
pub mod io;
mod keep_alive;
mod log;
mod property;
mod space;
mod subsystem;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use action::{Action, Change, QueueParams, Reply};
pub use connect::{ConnectRequest, wrong_field};
pub use discovery::{DiscoveryTarget, REGISTRATION_ENTRIES_MAX, discovery_entry, parse_registration};
pub use event::AER_LIMIT;
pub use instance::{Instance, OtherReset, RESET_LIMIT};
pub use keep_alive::{Expired, Traffic};
pub use log::{ERROR_ENTRIES, ErrorRecord};
pub use space::{
    AllocatedView, NewNamespace, SpaceCommand, SpaceView, parse_controllers, parse_create, parse_label,
};
pub use subsystem::{
    Content, DiscoveryContent, DiscoveryRecord, HealthCounters, HostAccess, NamespaceView, NvmContent, PAGE,
    QUEUES_MAX, SubsystemView,
};

use event::{EventKind, Events};
use feature::FeatureValues;
use keep_alive::KeepAlive;
use log::ErrorLog;
use longhaul_wire::command::{Abort, Sqe, admin, fctype};
use longhaul_wire::completion::Status;
use longhaul_wire::fabrics::{CNTLID_MAX, Cc, Csts, RECFMT, disconnect_recfmt};
pub use longhaul_wire::log::CHANGED_NAMESPACES_MAX;
use longhaul_wire::log::ReservationNoticeKind;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Abort commands under way at a time; ACL says one less.
pub const ABORT_LIMIT: u8 = 4;

/// What a controller looks at while it handles a command.
#[derive(Clone, Copy, Debug)]
pub struct Env<'a> {
    /// Time at which the command is handled.
    pub now: Instant,
    /// The subsystem as it is now.
    pub subsystem: &'a SubsystemView,
    /// Counts for the SMART / health log page.
    pub health: &'a HealthCounters,
}

/// A controller. See the [module](self) for the calling order.
#[derive(Debug)]
pub struct Controller {
    cntlid: u16,
    host: ConnectRequest,
    discovery: bool,
    cc: Cc,
    csts: Csts,
    /// A controller reset is under way.
    resetting: bool,
    max_queues: u16,
    queues: BTreeSet<u16>,
    features: FeatureValues,
    events: Events,
    errors: ErrorLog,
    keep_alive: KeepAlive,
    /// Abort commands that the driver is busy with.
    aborts: u8,
    /// Which instance of the controller this is, if the target reports it.
    instance: Option<Instance>,
    /// Cross-Controller Resets that the driver is busy with.
    resets: u8,
}

impl Controller {
    /// Makes a controller for an admin queue's Connect. `cntlid` is an
    /// identifier that no other controller of the subsystem has (1 to
    /// [`CNTLID_MAX`]).
    pub fn connect(
        request: ConnectRequest,
        cntlid: u16,
        subsystem: &SubsystemView,
        now: Instant,
    ) -> Result<(Controller, QueueParams), Reply> {
        debug_assert!(cntlid <= CNTLID_MAX);
        request.check_admin(subsystem)?;
        let params = request.params(cntlid);
        let discovery = subsystem.is_discovery();
        let keep_alive = KeepAlive::new(request.kato_ms, discovery, now);
        let controller = Controller {
            cntlid,
            host: request,
            discovery,
            cc: Cc::default(),
            csts: Csts::default(),
            resetting: false,
            max_queues: subsystem.max_queues.max(1),
            queues: BTreeSet::new(),
            features: FeatureValues::new(subsystem.max_queues.max(1)),
            events: Events::default(),
            errors: ErrorLog::default(),
            keep_alive,
            aborts: 0,
            instance: None,
            resets: 0,
        };
        Ok((controller, params))
    }

    /// Adds an I/O queue for its Connect.
    pub fn connect_io(
        &mut self,
        request: &ConnectRequest,
        subsystem: &SubsystemView,
    ) -> Result<QueueParams, Reply> {
        request.check_same_host(&self.host)?;
        request.check_host_and_size(subsystem)?;
        //= NVMe Base 2.1, Discovery controllers: they have no I/O queues
        //= NVMe Base 2.1, Number of Queues feature: no queue beyond the number that was granted
        if self.discovery || request.qid == 0 || request.qid > self.features.granted_queues() {
            return Err(request.invalid_qid());
        }
        //= NVMe Base 2.1, Connect command: I/O queues are made only while the controller is ready
        //= NVMe Base 2.1, CC: I/O queue entries have the sizes that the host has set, 64 and 16 bytes
        let sizes = (self.cc.iosqes(), self.cc.iocqes()) == (6, 4);
        if !self.is_ready() || !sizes || self.cc.css() == Cc::CSS_ADMIN {
            return Err(Status::SEQUENCE_ERROR.dnr().into());
        }
        //= NVMe Base 2.1, Connect command: a queue identifier is used once at a time
        if !self.queues.insert(request.qid) {
            return Err(Status::INVALID_QID.dnr().into());
        }
        Ok(request.params(self.cntlid))
    }

    /// Forgets an I/O queue whose connection ended.
    pub fn queue_closed(&mut self, qid: u16) {
        self.queues.remove(&qid);
    }

    /// Handles a command of the admin queue.
    pub fn handle_admin(&mut self, sqe: &Sqe, env: Env<'_>) -> Action {
        self.keep_alive.note_traffic();
        let action = self.dispatch_admin(sqe, env);
        self.log_failure(0, sqe, action)
    }

    /// Handles a Fabrics command of the connected I/O queue `qid`.
    pub fn handle_io_fabrics(&mut self, qid: u16, sqe: &Sqe) -> Action {
        self.keep_alive.note_traffic();
        let action = match sqe.fctype() {
            //= NVMe Base 2.1, Connect command: a second Connect on a queue is out of sequence
            fctype::CONNECT => Status::SEQUENCE_ERROR.dnr().into(),
            //= NVMe Base 2.1, Disconnect command: an unknown record format is refused with Incompatible Format
            fctype::DISCONNECT if disconnect_recfmt(sqe) != RECFMT => {
                Status::INCOMPATIBLE_FORMAT.dnr().into()
            }
            fctype::DISCONNECT => {
                self.queues.remove(&qid);
                Action::Disconnect
            }
            //= NVMe Base 2.1, Fabrics commands: properties belong to the admin queue; there is no authentication
            _ => Status::INVALID_OPCODE.dnr().into(),
        };
        self.log_failure(qid, sqe, action)
    }

    fn dispatch_admin(&mut self, sqe: &Sqe, env: Env<'_>) -> Action {
        //= NVMe Base 2.1, Fused operations: there are none among admin commands
        if sqe.fuse() != 0 {
            return Status::INVALID_FIELD.dnr().into();
        }
        if sqe.opcode == admin::FABRICS {
            return self.fabrics(sqe, env);
        }
        //= NVMe Base 2.1, CC.EN: other than Fabrics commands nothing is taken before the controller is ready
        if !self.is_ready() {
            return Status::SEQUENCE_ERROR.dnr().into();
        }
        match sqe.opcode {
            admin::IDENTIFY => self.identify(sqe, env.subsystem),
            admin::GET_LOG_PAGE => self.get_log_page(sqe, env),
            admin::GET_FEATURES => self.get_features(sqe, env.subsystem),
            admin::SET_FEATURES => self.set_features(sqe, env),
            admin::ASYNC_EVENT_REQUEST => self.event_request(sqe),
            admin::ABORT => self.abort(sqe),
            admin::CROSS_CONTROLLER_RESET if self.instance.is_some() => self.cross_controller_reset(sqe),
            admin::NAMESPACE_MANAGEMENT | admin::NAMESPACE_ATTACHMENT | admin::NAMESPACE_CHANGE => {
                space::manage(sqe, env.subsystem)
            }
            admin::DISCOVERY_INFORMATION_MANAGEMENT => {
                discovery::register(sqe, &self.host.hostnqn, env.subsystem)
            }
            admin::KEEP_ALIVE => {
                self.keep_alive.restart(env.now);
                Action::ok()
            }
            _ => Status::INVALID_OPCODE.dnr().into(),
        }
    }

    fn fabrics(&mut self, sqe: &Sqe, env: Env<'_>) -> Action {
        match sqe.fctype() {
            fctype::PROPERTY_GET => self.property_get(sqe, env.subsystem),
            fctype::PROPERTY_SET => self.property_set(sqe, env.now),
            //= NVMe Base 2.1, Connect command: a second Connect on a queue is out of sequence
            fctype::CONNECT => Status::SEQUENCE_ERROR.dnr().into(),
            //= NVMe Base 2.1, Disconnect command: the admin queue is not deleted with Disconnect
            fctype::DISCONNECT => Status::INVALID_QUEUE_TYPE.dnr().into(),
            //= NVMe Base 2.1, Authentication commands: refused where no authentication is supported
            _ => Status::INVALID_OPCODE.dnr().into(),
        }
    }

    fn event_request(&mut self, sqe: &Sqe) -> Action {
        //= NVMe Base 2.1, Asynchronous Event Request command: more than AERL + 1 at a time are refused
        if self.events.hold(sqe.cid()) { Action::Hold } else { Status::AER_LIMIT.dnr().into() }
    }

    fn abort(&mut self, sqe: &Sqe) -> Action {
        let Abort { sqid, cid } = Abort::of(sqe);
        //= NVMe Base 2.1, Abort command: a submission queue that does not exist is an invalid field
        if sqid != 0 && !self.queues.contains(&sqid) {
            return Status::INVALID_FIELD.dnr().into();
        }
        if sqid == 0 && self.events.abort(cid) {
            return Action::ok();
        }
        //= NVMe Base 2.1, Abort command: more than ACL + 1 at a time are refused
        if self.aborts == ABORT_LIMIT {
            return Status::ABORT_LIMIT.into();
        }
        self.aborts += 1;
        Action::Abort { sqid, cid }
    }

    /// The answer to an Abort that was handed out as [`Action::Abort`]:
    /// `aborted` says whether the command was found and has been, or will at
    /// once be, completed with Command Abort Requested.
    pub fn abort_done(&mut self, aborted: bool) -> Reply {
        self.aborts = self.aborts.saturating_sub(1);
        //= NVMe Base 2.1, Abort command: bit 0 of dword 0 is cleared if the command was aborted
        Reply::ok((!aborted).into())
    }

    /// The next event to complete: the command identifier of the request,
    /// and its answer.
    pub fn poll_event(&mut self) -> Option<(u16, Reply)> {
        self.events.poll()
    }

    /// Says that the host has forgotten an event request: it uses `cid` for
    /// another command.
    pub fn forget_event_request(&mut self, cid: u16) {
        self.events.forget(cid);
    }

    /// Says that namespaces were added, removed, or changed their size or
    /// attributes.
    pub fn namespaces_changed(&mut self, nsids: impl IntoIterator<Item = u32>) {
        for nsid in nsids {
            self.events.namespace_changed(nsid);
        }
    }

    /// Says that the state of an ANA group changed.
    pub fn ana_changed(&mut self) {
        self.events.raise(EventKind::AnaChange);
    }

    /// Says that something has happened to a reservation of the namespace: see
    /// [`crate::reservation::Effects::notices`].
    pub fn reservation_notice(&mut self, nsid: u32, notice: ReservationNoticeKind) {
        self.events.reservation(nsid, notice);
    }

    /// Says that the discovery log changed, to a discovery controller.
    pub fn discovery_changed(&mut self) {
        self.events.raise(EventKind::DiscoveryLog);
    }

    /// When [`handle_timeout`](Self::handle_timeout) should be called, if ever.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.keep_alive.deadline()
    }

    /// Sees whether the host is still there. If it is not, the controller is
    /// failed and the driver ends the association: all of its connections.
    #[must_use]
    pub fn handle_timeout(&mut self, now: Instant) -> Option<Expired> {
        let expired = self.keep_alive.check(now)?;
        //= NVMe Base 2.1, Keep Alive: when the timer expires the controller stops and sets CSTS.CFS
        self.csts = self.csts.with_cfs(1);
        Some(expired)
    }

    /// A mark for the I/O path: commands on any queue keep the host alive.
    pub fn traffic(&self) -> Traffic {
        self.keep_alive.traffic()
    }

    /// Says that a command was taken on any queue.
    pub fn note_traffic(&self) {
        self.keep_alive.note_traffic();
    }

    /// Whether commands other than Fabrics commands are taken.
    pub fn is_ready(&self) -> bool {
        let csts = self.csts;
        csts.rdy() == 1 && csts.shst() == 0 && csts.cfs() == 0 && self.cc.en() == 1 && !self.resetting
    }

    /// Whether the host has enabled it (CC.EN). One that is not does nothing
    /// for its host, and is not worth a connection for long.
    pub fn is_enabled(&self) -> bool {
        self.cc.en() == 1
    }

    /// The controller's identifier in its subsystem.
    pub fn cntlid(&self) -> u16 {
        self.cntlid
    }

    /// NQN of the host; empty if it has none.
    pub fn hostnqn(&self) -> &str {
        &self.host.hostnqn
    }

    /// Identifier of the host.
    pub fn hostid(&self) -> Uuid {
        self.host.hostid
    }

    /// Keep Alive Timeout; zero if it is disabled.
    pub fn keep_alive_timeout(&self) -> Duration {
        self.keep_alive.timeout()
    }

    /// The I/O queues that are connected.
    pub fn queues(&self) -> impl Iterator<Item = u16> + '_ {
        self.queues.iter().copied()
    }

    /// Whether the host allows writes to stay in a volatile cache.
    pub fn write_cache(&self) -> bool {
        self.features.write_cache()
    }
}
