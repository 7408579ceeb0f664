//! The connection of an [`Administrator`](super::Administrator), on the service thread.

use super::{AllocatedNamespace, CLONE, ManagementError, ManagementResult, NamespaceLabel};
use crate::call::Data;
use crate::discover::find_subsystem;
use crate::error::Error;
use crate::options::Options;
use crate::queue::Signs;
use crate::setup::{Admin, Endpoint, bytes_of, concatenate};
use crate::uri::Uri;
use futures_channel::mpsc;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::StreamExt;
use longhaul_engine::{BufMut, Memory, sleep, spawn};
use longhaul_wire::command::{NSID_ALL, Sqe};
use longhaul_wire::completion::Status;
use longhaul_wire::identify::{IDENTIFY_LEN, IdentifyNamespace, NSID_LIST_MAX, cns, decode_nsid_list, nmic};
use longhaul_wire::management::{CONTROLLERS_MAX, LABEL_AT, decode_controller_list};
use std::rc::{Rc, Weak};
use std::time::Duration;
use uuid::Uuid;

/// A task of the service thread, given the connection or the reason that there is none.
pub(super) type Job = Box<dyn FnOnce(Result<Rc<Connection>, Error>) -> LocalBoxFuture<'static, ()> + Send>;

/// A connection, on the service thread.
pub(super) struct Connection {
    pub(super) admin: Admin,
    pub(super) cntlid: u16,
    hostnqn: String,
    /// For commands that wait for a medium.
    pub(super) timeout: Duration,
}

/// How to make one.
pub(super) struct Target {
    pub(super) uri: Uri,
    pub(super) options: Options,
}

/// Runs jobs, connecting when there is one, until the `Administrator` is dropped.
pub(super) async fn serve(target: Target, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let mut connected: Option<Rc<Connection>> = None;
    while let Some(job) = jobs.next().await {
        let connection = match connected.take().filter(|connection| !connection.admin.queue.has_ended()) {
            Some(connection) => Ok(connection),
            None => target.connect().await.map(Rc::new).inspect(|connection| {
                spawn(keep_alive(Rc::downgrade(connection), target.options.kato)).detach();
            }),
        };
        connected = connection.as_ref().ok().cloned();
        spawn(job(connection)).detach();
    }
    if let Some(connection) = connected {
        connection.admin.shut_down().await;
    }
}

/// Shows the target that this host lives, and ends the connection if the target does not answer.
async fn keep_alive(connection: Weak<Connection>, kato: Duration) {
    if kato.is_zero() {
        return;
    }
    loop {
        // A half, so that one lost beat is not the end.
        sleep(kato / 2).await;
        let Some(connection) = connection.upgrade() else { return };
        if connection.admin.queue.has_ended() {
            return;
        }
        let beat = connection.admin.submit("Keep Alive", Sqe::keep_alive(), Data::None, kato).await;
        if let Err(e) = beat {
            tracing::debug!("{}: {e}", connection.admin.endpoint.name);
            connection.admin.queue.close();
            return;
        }
    }
}

impl Target {
    async fn connect(&self) -> Result<Connection, Error> {
        let Target { uri, options } = self;
        let endpoint = Endpoint::find(&uri.transport, &uri.host, uri.port, options).await?;
        let subnqn = if uri.subnqn.starts_with("nqn.") {
            uri.subnqn.clone()
        } else {
            find_subsystem(&endpoint, &uri.subnqn, options).await?.0
        };
        let (endpoint, _) = concatenate(endpoint, options, &subnqn).await?;
        let (admin, cntlid) = Admin::open(endpoint, options, &subnqn, &Signs::default()).await?;
        admin.enable_and(async || Ok(())).await?;
        let timeout = if options.io_timeout.is_zero() { Duration::MAX } else { options.io_timeout };
        Ok(Connection { admin, cntlid, hostnqn: options.hostnqn.clone(), timeout })
    }
}

impl Connection {
    /// What a status of a management command means.
    pub(super) fn check(&self, what: &'static str, nsid: u32, status: Status) -> ManagementResult<()> {
        if status.is_success() {
            return Ok(());
        }
        let addr = self.admin.endpoint.name.clone();
        let is = |other| status.is(other);
        Err(if is(Status::INSUFFICIENT_CAPACITY) {
            ManagementError::Full { addr, what }
        } else if is(Status::NSID_UNAVAILABLE) {
            ManagementError::TooMany { addr }
        } else if is(Status::INVALID_NAMESPACE) && nsid != NSID_ALL {
            ManagementError::NotFound { addr, nsid }
        } else if is(Status::ALREADY_ATTACHED) {
            ManagementError::AlreadyAttached { addr, nsid }
        } else if is(Status::NOT_ATTACHED) {
            ManagementError::NotAttached { addr, nsid }
        } else if is(Status::CLONES_NOT_SUPPORTED) {
            ManagementError::NoClones { addr, why: "its files share no blocks" }
        } else if what == CLONE && is(Status::INVALID_FIELD) {
            ManagementError::NoClones { addr, why: "it is a target of an older version" }
        } else if is(Status::INVALID_OPCODE) {
            ManagementError::NotPermitted { addr, hostnqn: self.hostnqn.clone() }
        } else {
            ManagementError::Refused { addr, what, status }
        })
    }

    async fn identify(&self, what: &'static str, sqe: Sqe) -> ManagementResult<Vec<u8>> {
        let data = Data::Read(Memory::Buf(BufMut::zeroed(IDENTIFY_LEN)));
        let done = self.admin.submit(what, sqe, data, self.admin.timeout).await?;
        self.check(what, sqe.nsid(), done.cqe.status())?;
        let bytes = bytes_of(&done);
        if bytes.len() < IDENTIFY_LEN || (done.received as usize) < IDENTIFY_LEN {
            return Err(self.admin.endpoint.incompatible(format!("{what} is cut")).into());
        }
        Ok(bytes)
    }

    /// Identifiers of all namespaces.
    pub(super) async fn allocated(&self) -> ManagementResult<Vec<u32>> {
        let mut all: Vec<u32> = Vec::new();
        loop {
            let after = all.last().copied().unwrap_or(0);
            let sqe = Sqe::identify(cns::ALLOCATED_NAMESPACES, after, 0);
            let page = self.identify("the list of allocated namespaces", sqe).await?;
            let found: Vec<u32> = decode_nsid_list(&page).collect();
            let full = found.len() == NSID_LIST_MAX;
            // A list that does not grow would be asked for without end.
            let grows = found.first().is_some_and(|&first| first > after);
            all.extend(found);
            if !full || !grows {
                return Ok(all);
            }
        }
    }

    /// A namespace; `None` if the space has none with this identifier.
    pub(super) async fn namespace(&self, nsid: u32) -> ManagementResult<Option<AllocatedNamespace>> {
        let sqe = Sqe::identify(cns::ALLOCATED_NAMESPACE, nsid, 0);
        let bytes = self.identify("Identify Namespace (allocated)", sqe).await?;
        let cut = |what: &str| self.admin.endpoint.incompatible(what);
        let ns = IdentifyNamespace::decode(&bytes).ok_or_else(|| cut("Identify Namespace is cut"))?;
        if ns.nsze == 0 {
            return Ok(None);
        }
        let format = ns.format().filter(|format| (9..=16).contains(&format.lbads));
        let format = format.ok_or_else(|| cut("a namespace has an LBA format that does not exist"))?;
        let (label, unreadable) = match NamespaceLabel::decode(&bytes[LABEL_AT..]) {
            Ok(label) => (label, None),
            Err(e) => (NamespaceLabel::default(), Some(e)),
        };
        Ok(Some(AllocatedNamespace {
            nsid,
            size: ns.nsze.saturating_mul(1 << format.lbads),
            block_size: 1 << format.lbads,
            uuid: Uuid::from_bytes(ns.nguid),
            shared: ns.nmic & nmic::SHARED != 0,
            label,
            unreadable,
        }))
    }

    pub(super) async fn controllers(&self, nsid: Option<u32>) -> ManagementResult<Vec<u16>> {
        let cns = if nsid.is_some() { cns::NAMESPACE_CONTROLLERS } else { cns::CONTROLLERS };
        let mut all: Vec<u16> = Vec::new();
        loop {
            let from = all.last().map_or(0, |last| last.saturating_add(1));
            let sqe = Sqe::identify(cns, nsid.unwrap_or(0), 0);
            let sqe = sqe.with_cdw(10, u32::from(cns) | u32::from(from) << 16);
            let page = self.identify("the list of controllers", sqe).await?;
            let found = decode_controller_list(&page);
            let found = found.ok_or_else(|| self.admin.endpoint.incompatible("a controller list is cut"))?;
            let full = found.len() == CONTROLLERS_MAX;
            let grows = found.first().is_some_and(|&first| first >= from);
            all.extend(found);
            if !full || !grows {
                return Ok(all);
            }
        }
    }
}
