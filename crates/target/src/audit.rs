//! What a target tells of events that matter to security, for a record of them.
//!
//! Invariants:
//! - no event reports reads, writes or secrets;
//! - a change of a space is reported before another one is made, so that the record keeps their order;
//! - a command that changes a space, or preempts reservations, is answered once the record has its event
//!   durably, or cannot; a record that does not answer delays it by [`RECORDED_MAX`] and no longer.

use crate::connection::{Connection, Role};
use crate::space::{Managed, SpaceChange};
use crate::subsystem::{Link, Namespace, Subsystem};
use crate::tls::TlsPolicy;
use futures_channel::oneshot;
use longhaul_auth::Refused;
use longhaul_conn::transport::Address;
use longhaul_engine::{now, timeout};
use longhaul_proto::controller::io::IoCommand;
use longhaul_proto::controller::{ConnectRequest, Reply};
use longhaul_proto::reservation::{Effects, Notice};
use longhaul_wire::completion::Status;
use longhaul_wire::reservation::{AcquireAction, RegisterAction, ReleaseAction};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// How long a command waits for the record.
const RECORDED_MAX: Duration = Duration::from_secs(5);

/// Takes what happens at a target.
pub trait Audit: fmt::Debug + Send + Sync {
    /// Takes an event; called by threads that serve I/O, so that it returns at once. If `recorded` is there, a
    /// command waits until that is dropped: when the event is durable, or is known not to become so.
    fn tell(&self, event: AuditEvent, recorded: Option<Recorded>);
}

/// Its end lets a command complete.
#[derive(Debug)]
pub struct Recorded(#[expect(dead_code, reason = "its end is the message")] oneshot::Sender<()>);

/// A host as a record names it. Its names are what it said itself, unless it was authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditHost {
    /// Where it comes from.
    pub address: Address,
    /// Its NQN; empty before it was said.
    pub hostnqn: String,
    /// Its host identifier; none before it was said.
    pub hostid: Option<Uuid>,
    /// NQN of the subsystem that it wants or has; empty before it was said.
    pub subsystem: String,
    /// It has proved that it is this host.
    pub is_authenticated: bool,
}

impl AuditHost {
    /// A host that has said nothing.
    pub(crate) fn unknown(address: Address) -> AuditHost {
        AuditHost::named(address, Default::default())
    }

    /// A host that has said its NQN and that of the subsystem that it wants.
    pub(crate) fn named(address: Address, (hostnqn, subsystem): (String, String)) -> AuditHost {
        AuditHost { address, hostnqn, hostid: None, subsystem, is_authenticated: false }
    }
}

/// Why a host was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalReason {
    /// Its address connects too often.
    Rate,
    /// There are too many connections, of all hosts or of this one.
    Connections,
    /// There is no subsystem of that name.
    UnknownSubsystem,
    /// It is not on the list of hosts that may connect.
    NotAllowed,
    /// There is no key of it.
    NoKey,
    /// Its key cannot be read.
    KeyUnreadable,
    /// It does not know its secret, or its key for TLS.
    WrongSecret,
    /// It used the secret, or key for TLS, of this generation, which was retired.
    RetiredSecret(u32),
    /// The host did not authenticate in time.
    NotProvedInTime,
    /// Its side of the authentication was not as it has to be.
    Authentication,
    /// It does not believe the target.
    TargetNotBelieved,
    /// It asks for a queue of a controller of another host.
    OtherHost,
    /// Its Connect names another host or subsystem than its key for TLS.
    OtherKey,
    /// It uses no TLS, which it has to.
    NoTls,
    /// Its side of the TLS handshake was not as it has to be.
    Tls,
    /// Its Connect was malformed, or asked for what there is not.
    Connect,
    /// It may not manage namespaces.
    NotAdministrator,
    /// It may not register with the discovery controller.
    NotRegistrar,
}

impl RefusalReason {
    fn of(why: Refused) -> RefusalReason {
        match why {
            Refused::Failed => RefusalReason::WrongSecret,
            Refused::Retired(generation) => RefusalReason::RetiredSecret(generation),
            _ => RefusalReason::Authentication,
        }
    }

    /// Of a Connect that the controller has refused with this reply.
    pub(crate) fn of_connect(reply: &Reply) -> RefusalReason {
        if reply.status.is(Status::CONNECT_INVALID_HOST) {
            RefusalReason::NotAllowed
        } else {
            RefusalReason::Connect
        }
    }
}

/// What became of a namespace of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceAction {
    /// It was made, and attached to the hosts.
    Create,
    /// It was made with the content of another one, and attached to the hosts.
    Clone,
    /// It was removed; it was attached to the hosts.
    Delete,
    /// The hosts see it from now on.
    Attach,
    /// The hosts do not see it any more.
    Detach,
    /// It has another size.
    Grow,
    /// Its label was written, and its hosts did not change.
    Label,
}

/// A change of a namespace of a space, or an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceEvent {
    /// Name of the space.
    pub space: String,
    /// What was done, or tried.
    pub action: SpaceAction,
    /// Namespace identifier; none of one that was not made.
    pub nsid: Option<u32>,
    /// Its UUID, as far as there is one.
    pub uuid: Option<Uuid>,
    /// Pool and volume of its label, as `POOL/VOLUME`; empty without them.
    pub name: String,
    /// Bytes.
    pub size: Option<u64>,
    /// NQNs of the hosts that are concerned.
    pub hosts: Vec<String>,
    /// The status of the command.
    pub result: Result<(), Status>,
}

/// What a host did with a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReservationAction {
    /// It registered, or its key is another one.
    Register,
    /// It is not registered any more.
    Unregister,
    /// It holds the reservation.
    Acquire,
    /// It ended registrations of other hosts.
    Preempt,
    /// The reservation is released.
    Release,
    /// The reservation and all registrations have ended.
    Clear,
}

impl ReservationAction {
    /// What a reservation command does; other commands are not passed here.
    pub(crate) fn of(command: IoCommand) -> ReservationAction {
        match command {
            IoCommand::Acquire(fields) if fields.action == AcquireAction::Acquire => {
                ReservationAction::Acquire
            }
            IoCommand::Acquire(_) => ReservationAction::Preempt,
            IoCommand::Release(fields) if fields.action == ReleaseAction::Clear => ReservationAction::Clear,
            IoCommand::Release(_) => ReservationAction::Release,
            IoCommand::Register(fields) if fields.action == RegisterAction::Unregister => {
                ReservationAction::Unregister
            }
            _ => ReservationAction::Register,
        }
    }
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditEvent {
    /// A host has a controller.
    Connected {
        /// The host.
        host: AuditHost,
        /// Its controller.
        controller: u16,
        /// The generation of its secret, or of its key for TLS without one; none if it proved nothing.
        generation: Option<u32>,
        /// Its connection uses TLS.
        tls: bool,
        /// It may only read.
        reader: bool,
    },
    /// A host was refused.
    Refused {
        /// The host.
        host: AuditHost,
        /// Why.
        why: RefusalReason,
    },
    /// A controller of a host has ended.
    Disconnected {
        /// The host.
        host: AuditHost,
        /// Its controller.
        controller: u16,
        /// How long it was connected.
        time: Duration,
        /// Bytes that it has read.
        bytes_read: u64,
        /// Bytes that it has written.
        bytes_written: u64,
    },
    /// An administrator has changed a space, or tried to.
    Space {
        /// The administrator.
        by: AuditHost,
        /// What became of the namespace.
        event: SpaceEvent,
    },
    /// A host has changed reservations.
    Reservation {
        /// The host.
        by: AuditHost,
        /// What it did.
        action: ReservationAction,
        /// Namespace identifier.
        nsid: u32,
        /// UUID of the namespace.
        uuid: Option<Uuid>,
        /// Identifiers of the hosts whose registrations it ended.
        preempted: Vec<Uuid>,
    },
}

/// Events that a command waits for.
#[derive(Debug, Default)]
pub(crate) struct Pending(Vec<oneshot::Receiver<()>>);

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Tells of an event that the command waits for.
    fn tell(&mut self, audit: &dyn Audit, event: AuditEvent) {
        let (sender, receiver) = oneshot::channel();
        audit.tell(event, Some(Recorded(sender)));
        self.0.push(receiver);
    }

    /// Ends when the record has the events, or will not have them.
    pub(crate) async fn recorded(self) {
        if self.is_empty() {
            return;
        }
        let all = async {
            for one in self.0 {
                let _ = one.await;
            }
        };
        if timeout(RECORDED_MAX, all).await.is_err() {
            tracing::warn!(
                "the audit log takes longer than {} s; commands are answered without it",
                RECORDED_MAX.as_secs()
            );
        }
    }
}

/// Tells of changes of a space by one host.
#[derive(Debug)]
pub(crate) struct SpaceTeller {
    audit: Arc<dyn Audit>,
    by: AuditHost,
}

/// A namespace before or after a change.
struct NamespaceSeen {
    uuid: Uuid,
    size: u64,
    name: String,
    hosts: BTreeSet<String>,
}

impl NamespaceSeen {
    fn of(namespace: &Namespace) -> NamespaceSeen {
        let label = namespace.made.as_ref().map(|made| &made.label);
        let name = label.map(|label| match (&label.pool[..], &label.volume[..]) {
            ("", volume) => volume.to_owned(),
            (pool, volume) => format!("{pool}/{volume}"),
        });
        NamespaceSeen {
            uuid: namespace.uuid,
            size: namespace.device.info().size,
            name: name.unwrap_or_default(),
            hosts: label.map(|label| label.hosts.iter().cloned().collect()).unwrap_or_default(),
        }
    }
}

impl SpaceTeller {
    /// Makes a change, and tells what has become of the namespaces. The order of the space is held.
    pub(crate) fn watch(
        &self,
        subsystem: &Subsystem,
        managed: &Managed,
        change: SpaceChange,
        make: impl FnOnce(SpaceChange) -> Result<u32, Status>,
    ) -> (Result<u32, Status>, Pending) {
        let (action, nsid) = match &change {
            SpaceChange::Create(_) => (SpaceAction::Create, None),
            SpaceChange::Clone(..) => (SpaceAction::Clone, None),
            SpaceChange::Delete(nsid) => (SpaceAction::Delete, *nsid),
            SpaceChange::Attach(nsid, _) => (SpaceAction::Attach, Some(*nsid)),
            SpaceChange::Detach(nsid, _) => (SpaceAction::Detach, Some(*nsid)),
            SpaceChange::Label(nsid, _) => (SpaceAction::Label, Some(*nsid)),
            SpaceChange::Grow(nsid, _) => (SpaceAction::Grow, Some(*nsid)),
            SpaceChange::CheckClones(_) => return (make(change), Pending::default()),
        };
        let asked = match &change {
            SpaceChange::Create(new) => {
                (new.blocks.checked_shl(new.block_shift.into()), new.label.hosts.clone())
            }
            SpaceChange::Clone(_, label) | SpaceChange::Label(_, label) => (None, label.hosts.clone()),
            SpaceChange::Attach(_, cntlids) | SpaceChange::Detach(_, cntlids) => {
                let hosts = subsystem.hosts_of_controllers(cntlids).unwrap_or_default();
                (None, hosts.into_iter().collect())
            }
            _ => (None, Vec::new()),
        };
        let see = |only: Option<u32>| -> BTreeMap<u32, NamespaceSeen> {
            let namespaces = subsystem.namespaces();
            let concerned = namespaces.iter().filter(|(nsid, _)| only.is_none_or(|only| only == **nsid));
            concerned.map(|(nsid, namespace)| (*nsid, NamespaceSeen::of(namespace))).collect()
        };
        let makes = matches!(action, SpaceAction::Create | SpaceAction::Clone);
        let before = if makes { BTreeMap::new() } else { see(nsid) };
        let result = make(change);
        let after = match result {
            Ok(made) if makes => see(Some(made)),
            _ if makes => BTreeMap::new(),
            _ => see(nsid),
        };
        let mut pending = Pending::default();
        let mut tell = |action, nsid, seen: Option<&NamespaceSeen>, size, hosts: Vec<String>, result| {
            let event = SpaceEvent {
                space: managed.name().to_owned(),
                action,
                nsid,
                uuid: seen.map(|seen| seen.uuid),
                name: seen.map(|seen| seen.name.clone()).unwrap_or_default(),
                size,
                hosts,
                result,
            };
            pending.tell(&*self.audit, AuditEvent::Space { by: self.by.clone(), event });
        };
        let all = |seen: &NamespaceSeen| seen.hosts.iter().cloned().collect::<Vec<_>>();
        for (nsid, was) in &before {
            let Some(is) = after.get(nsid) else {
                tell(SpaceAction::Delete, Some(*nsid), Some(was), Some(was.size), all(was), Ok(()));
                continue;
            };
            if result.is_err() {
                continue;
            }
            let added: Vec<_> = is.hosts.difference(&was.hosts).cloned().collect();
            let removed: Vec<_> = was.hosts.difference(&is.hosts).cloned().collect();
            let is_label = added.is_empty() && removed.is_empty() && is.size == was.size;
            for (action, concerned, hosts) in [
                (SpaceAction::Detach, !removed.is_empty(), removed),
                (SpaceAction::Attach, !added.is_empty(), added),
                (SpaceAction::Grow, is.size != was.size, all(is)),
                (SpaceAction::Label, is_label, all(is)),
            ] {
                if concerned {
                    tell(action, Some(*nsid), Some(is), Some(is.size), hosts, Ok(()));
                }
            }
        }
        for (nsid, is) in after.iter().filter(|(nsid, _)| !before.contains_key(nsid)) {
            tell(action, Some(*nsid), Some(is), Some(is.size), all(is), Ok(()));
        }
        if let Err(status) = result {
            let seen = nsid.and_then(|nsid| before.get(&nsid));
            tell(action, nsid, seen, asked.0.or(seen.map(|seen| seen.size)), asked.1, Err(status));
        }
        (result, pending)
    }
}

impl Connection {
    /// The host has sent its Connect.
    pub(crate) fn identify(&self, request: &ConnectRequest) {
        if self.target.config.audit.is_some() {
            self.identity.get_or_init(|| AuditHost {
                address: self.peer().clone(),
                hostnqn: request.hostnqn.clone(),
                hostid: Some(request.hostid),
                subsystem: request.subnqn.clone(),
                is_authenticated: false,
            });
        }
    }

    fn audit_host(&self) -> AuditHost {
        let said = self.identity.get().cloned();
        let said = said.unwrap_or_else(|| AuditHost::unknown(self.peer().clone()));
        AuditHost { is_authenticated: self.is_proved.get(), ..said }
    }

    /// The host was refused.
    pub(crate) fn tell_refused(&self, why: RefusalReason) {
        if let Some(audit) = &self.target.config.audit {
            audit.tell(AuditEvent::Refused { host: self.audit_host(), why }, None);
        }
    }

    /// Its authentication has failed.
    pub(crate) fn tell_unauthenticated(&self, why: Refused, was_authenticated: bool) {
        self.is_proved.set(false);
        let wants_tls = self.target.config.tls == TlsPolicy::Concatenated && self.secured().is_none();
        self.tell_refused(match was_authenticated {
            // The host judges last, and does so in a message of its own.
            true => RefusalReason::TargetNotBelieved,
            false if why == Refused::Concatenation && wants_tls => RefusalReason::NoTls,
            false => RefusalReason::of(why),
        });
    }

    /// The host has the controller, with this generation of its secret or key.
    pub(crate) fn tell_connected(&self, link: &Link, generation: Option<u32>) {
        if let Some(audit) = &self.target.config.audit {
            self.connected.set(Some(now()));
            let (host, tls) = (self.audit_host(), self.secured().is_some());
            let (controller, reader) = (link.cntlid, link.is_reader());
            audit.tell(AuditEvent::Connected { host, controller, generation, tls, reader }, None);
        }
    }

    /// The host has authenticated itself, on any queue. One that does so for a PSK connects later.
    pub(crate) fn tell_authenticated(&self, generation: u32, is_for_psk: bool) {
        self.is_proved.set(true);
        if is_for_psk {
            return;
        }
        if let Role::Admin(admin) = &*self.role.borrow() {
            self.tell_connected(&admin.link, Some(generation));
        }
    }

    /// The controller of this admin queue has ended.
    pub(crate) fn tell_disconnected(&self, link: &Link) {
        let since: Option<Instant> = self.connected.take();
        if let Some((audit, since)) = self.target.config.audit.as_ref().zip(since) {
            let event = AuditEvent::Disconnected {
                host: self.audit_host(),
                controller: link.cntlid,
                time: now().saturating_duration_since(since),
                bytes_read: link.health.bytes_read.load(Ordering::Relaxed),
                bytes_written: link.health.bytes_written.load(Ordering::Relaxed),
            };
            audit.tell(event, None);
        }
    }

    /// Tells of changes of a space by the host, if there is a record.
    pub(crate) fn space_teller(&self) -> Option<SpaceTeller> {
        let audit = self.target.config.audit.as_ref()?;
        Some(SpaceTeller { audit: Arc::clone(audit), by: self.audit_host() })
    }

    /// The host has changed the reservations of a namespace. What its command waits for.
    pub(crate) fn tell_reservation(
        &self,
        action: ReservationAction,
        (nsid, uuid): (u32, Option<Uuid>),
        effects: &Effects,
    ) -> Pending {
        let mut pending = Pending::default();
        let Some(audit) = self.target.config.audit.as_ref().filter(|_| effects.changed) else {
            return pending;
        };
        let preempted = effects.notices.iter().filter(|(_, notice)| *notice == Notice::RegistrationPreempted);
        let preempted = preempted.map(|(host, _)| Uuid::from_bytes(*host)).collect();
        let event = AuditEvent::Reservation { by: self.audit_host(), action, nsid, uuid, preempted };
        match action {
            ReservationAction::Preempt | ReservationAction::Clear => pending.tell(&**audit, event),
            _ => audit.tell(event, None),
        }
        pending
    }
}
