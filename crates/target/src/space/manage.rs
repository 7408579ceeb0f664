//! A space behind a subsystem: the commands that change it, and the view that each host has of it.
//!
//! Invariants:
//! - one change is made at a time, off the engine threads, and is durable before its command completes;
//! - a namespace identifier is not given out again before all others;
//! - a host that is not an administrator sees the namespaces that are attached to it, and neither
//!   others nor the commands that manage them.

use super::{
    NamespaceLabel, NewNamespace, ReservationStores, Space, SpaceCapacity, SpaceError, SpaceNamespace,
};
use crate::audit::{Pending, SpaceTeller};
use crate::reserved::Reserved;
use crate::store::Writer;
use crate::subsystem::{ManagedNamespace, Namespace, Subsystem, lock};
use longhaul_block::TellsLosses;
use longhaul_proto::controller::{
    AllocatedView, SpaceCommand, SpaceView, parse_controllers, parse_create, parse_label,
};
use longhaul_wire::completion::Status;
use longhaul_wire::management::{CONTROLLERS_MAX, LabelError, encode_controller_list};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// The largest namespace identifier of a space: as many members as ten thousand volumes have at each
/// of six targets. The ANA log page, whose length hosts derive from it, stays below the least MDTS.
pub(super) const SPACE_NSID_MAX: u32 = 16_384;

/// The management of a space. See the module.
pub(crate) struct Managed {
    name: String,
    space: Arc<dyn Space>,
    admins: BTreeSet<String>,
    stores: ReservationStores,
    writer: Writer,
    /// Held while the space is changed: the identifier that was given out last.
    order: Mutex<u32>,
    /// As of the last change.
    capacity: Mutex<SpaceCapacity>,
}

/// A command with its parsed data.
#[derive(Debug)]
pub(crate) enum SpaceChange {
    Create(NewNamespace),
    Delete(Option<u32>),
    Attach(u32, Vec<u16>),
    Detach(u32, Vec<u16>),
    Label(u32, NamespaceLabel),
    Grow(u32, u64),
    Clone(u32, NamespaceLabel),
    CheckClones(u32),
}

impl SpaceChange {
    pub(crate) fn parse(command: SpaceCommand, data: &[u8]) -> Result<SpaceChange, Status> {
        Ok(match command {
            SpaceCommand::Create => SpaceChange::Create(parse_create(data)?),
            SpaceCommand::Delete { nsid } => SpaceChange::Delete(nsid),
            SpaceCommand::Attach { nsid } => SpaceChange::Attach(nsid, parse_controllers(data)?),
            SpaceCommand::Detach { nsid } => SpaceChange::Detach(nsid, parse_controllers(data)?),
            SpaceCommand::Label { nsid } => SpaceChange::Label(nsid, parse_label(data)?),
            SpaceCommand::Grow { nsid, blocks } => SpaceChange::Grow(nsid, blocks),
            SpaceCommand::Clone { nsid, only_try: true } => SpaceChange::CheckClones(nsid),
            SpaceCommand::Clone { nsid, only_try: false } => SpaceChange::Clone(nsid, parse_label(data)?),
        })
    }
}

fn hosts_of(label: &NamespaceLabel) -> BTreeSet<String> {
    label.hosts.iter().cloned().collect()
}

impl Managed {
    pub(crate) fn new(
        name: &str,
        space: Arc<dyn Space>,
        admins: BTreeSet<String>,
        stores: ReservationStores,
        writer: Writer,
    ) -> Managed {
        let (order, capacity) = (Mutex::default(), Mutex::default());
        Managed { name: name.to_owned(), space, admins, stores, writer, order, capacity }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn is_admin(&self, hostnqn: &str) -> bool {
        self.admins.contains(hostnqn)
    }

    pub(crate) fn max_nsid(&self) -> u32 {
        SPACE_NSID_MAX
    }

    /// The space as the host may see it: not at all, if it is no administrator.
    pub(crate) fn view_for(
        &self,
        hostnqn: &str,
        namespaces: &BTreeMap<u32, Namespace>,
    ) -> Option<Arc<SpaceView>> {
        if !self.is_admin(hostnqn) {
            return None;
        }
        let allocated = |(&nsid, ns): (&u32, &Namespace)| AllocatedView {
            namespace: ns.view(nsid),
            label: ns.made.as_ref().map(|made| Arc::clone(&made.encoded)).unwrap_or_default(),
        };
        let SpaceCapacity { total, unallocated } = *lock(&self.capacity);
        Some(Arc::new(SpaceView {
            allocated: namespaces.iter().map(allocated).collect(),
            total: total.into(),
            unallocated: unallocated.into(),
        }))
    }

    fn measure(&self) {
        match self.space.capacity() {
            Ok(capacity) => *lock(&self.capacity) = capacity,
            Err(e) => tracing::warn!("space {}: {e}", self.name),
        }
    }

    /// A namespace as the target serves it.
    fn serve(&self, stored: SpaceNamespace) -> Result<Namespace, String> {
        let SpaceNamespace { uuid, shared, label, device, .. } = stored;
        let reserved = Reserved::restore((self.stores)(uuid), &self.writer);
        let reserved = reserved.map_err(|e| format!("reservations of {uuid}: {e}"))?;
        let device = Arc::new(TellsLosses::new(device));
        let made = ManagedNamespace::new(shared, label, Arc::default())
            .map_err(|e| format!("label of {uuid}: {e}"))?;
        Ok(Namespace::new(device, uuid, Arc::new(reserved), Some(Arc::new(made))))
    }

    /// The status of a command that failed with `e`.
    fn status_of(&self, e: &SpaceError) -> Status {
        tracing::warn!("space {}: {e}", self.name);
        match e {
            SpaceError::Full(_) => Status::INSUFFICIENT_CAPACITY.dnr(),
            SpaceError::NotFound(_) => Status::INVALID_NAMESPACE.dnr(),
            SpaceError::Invalid(_) => Status::INVALID_FIELD.dnr(),
            SpaceError::NoClones(_) => Status::CLONES_NOT_SUPPORTED.dnr(),
            SpaceError::Medium(_) => Status::INTERNAL_ERROR,
        }
    }
}

impl Subsystem {
    /// Takes up the namespaces that the space has.
    pub(crate) fn restore(&self) -> Result<(), String> {
        let Some(managed) = &self.managed else { return Ok(()) };
        let mut last = lock(&managed.order);
        let mut namespaces = self.namespaces();
        for stored in managed.space.namespaces() {
            let nsid = stored.nsid;
            if nsid > SPACE_NSID_MAX {
                return Err(format!("it has a namespace {nsid}; the largest identifier is {SPACE_NSID_MAX}"));
            }
            namespaces.insert(nsid, managed.serve(stored)?);
            *last = (*last).max(nsid);
        }
        managed.measure();
        Ok(())
    }

    /// Carries out a command: dword 0 of its completion, and what that waits for.
    pub(crate) async fn manage(
        self: &Arc<Self>,
        change: SpaceChange,
        teller: Option<SpaceTeller>,
    ) -> (Result<u32, Status>, Pending) {
        let this = Arc::clone(self);
        longhaul_engine::blocking(move || match &this.managed {
            Some(managed) => this.carry_out(managed, change, teller.as_ref()),
            None => (Err(Status::INVALID_OPCODE.dnr()), Pending::default()),
        })
        .await
    }

    /// Blocks.
    fn carry_out(
        &self,
        managed: &Managed,
        change: SpaceChange,
        teller: Option<&SpaceTeller>,
    ) -> (Result<u32, Status>, Pending) {
        let mut last = lock(&managed.order);
        match teller {
            Some(teller) => {
                teller.watch(self, managed, change, |change| self.change(managed, change, &mut last))
            }
            None => (self.change(managed, change, &mut last), Pending::default()),
        }
    }

    fn change(&self, managed: &Managed, change: SpaceChange, last: &mut u32) -> Result<u32, Status> {
        match change {
            SpaceChange::Create(new) => self.create(managed, &new, last),
            SpaceChange::Delete(nsid) => {
                let nsids =
                    nsid.map_or_else(|| self.namespaces().keys().copied().collect(), |nsid| vec![nsid]);
                nsids.into_iter().try_for_each(|nsid| self.delete(managed, nsid)).map(|()| 0)
            }
            SpaceChange::Attach(nsid, cntlids) => {
                let hosts = self.hosts_of_controllers(&cntlids)?;
                let (_, made) = self.made(nsid)?;
                //= NVMe Base 2.1, Namespace Attachment command: a controller that it is attached to gets Namespace Already Attached
                if made.label.hosts.iter().any(|host| hosts.contains(host)) {
                    return Err(Status::ALREADY_ATTACHED.dnr());
                }
                let mut label = made.label.clone();
                label.hosts.extend(hosts);
                self.relabel(managed, nsid, label)
            }
            SpaceChange::Detach(nsid, cntlids) => {
                let hosts = self.hosts_of_controllers(&cntlids)?;
                let (_, made) = self.made(nsid)?;
                //= NVMe Base 2.1, Namespace Attachment command: a controller that it is not attached to gets Namespace Not Attached
                if !hosts.iter().all(|host| made.label.hosts.contains(host)) {
                    return Err(Status::NOT_ATTACHED.dnr());
                }
                let mut label = made.label.clone();
                label.hosts.retain(|host| !hosts.contains(host));
                self.relabel(managed, nsid, label)
            }
            SpaceChange::Label(nsid, label) => self.relabel(managed, nsid, label),
            SpaceChange::Grow(nsid, blocks) => self.grow(managed, nsid, blocks),
            SpaceChange::Clone(nsid, label) => self.clone_of(managed, nsid, &label, last),
            SpaceChange::CheckClones(nsid) => {
                self.made(nsid)?;
                managed.space.check_clones().map(|()| 0).map_err(|e| managed.status_of(&e))
            }
        }
    }

    fn made(&self, nsid: u32) -> Result<(Namespace, Arc<ManagedNamespace>), Status> {
        let found = self.namespace(nsid).and_then(|ns| ns.made.clone().map(|made| (ns, made)));
        found.ok_or(Status::INVALID_NAMESPACE.dnr())
    }

    /// The hosts of these controllers.
    pub(crate) fn hosts_of_controllers(&self, cntlids: &[u16]) -> Result<BTreeSet<String>, Status> {
        let links = self.links();
        let host_of = |cntlid: &u16| {
            let link = links.iter().find(|link| link.cntlid == *cntlid);
            link.map(|link| link.hostnqn.clone()).filter(|host| !host.is_empty())
        };
        let hosts: Option<BTreeSet<String>> = cntlids.iter().map(host_of).collect();
        hosts.ok_or(Status::CONTROLLER_LIST_INVALID.dnr())
    }

    fn create(&self, managed: &Managed, new: &NewNamespace, last: &mut u32) -> Result<u32, Status> {
        self.add(managed, &new.label, last, |nsid| managed.space.create(nsid, new))
    }

    fn clone_of(
        &self,
        managed: &Managed,
        source: u32,
        label: &NamespaceLabel,
        last: &mut u32,
    ) -> Result<u32, Status> {
        let (_, made) = self.made(source)?;
        if !made.shared && label.hosts.len() > 1 {
            return Err(Status::NAMESPACE_PRIVATE.dnr());
        }
        self.add(managed, label, last, |nsid| managed.space.clone_of(source, nsid, label))
    }

    /// Makes a namespace, and serves it.
    fn add(
        &self,
        managed: &Managed,
        label: &NamespaceLabel,
        last: &mut u32,
        make: impl FnOnce(u32) -> Result<SpaceNamespace, SpaceError>,
    ) -> Result<u32, Status> {
        let nsid = {
            let namespaces = self.namespaces();
            let mut order = (*last + 1..=SPACE_NSID_MAX).chain(1..=*last);
            order.find(|nsid| !namespaces.contains_key(nsid))
        };
        //= NVMe Base 2.1, Namespace Management command: where no identifier is left it gets Namespace Identifier Unavailable
        let nsid = nsid.ok_or(Status::NSID_UNAVAILABLE.dnr())?;
        let stored = make(nsid).map_err(|e| managed.status_of(&e))?;
        let namespace = managed.serve(stored).map_err(|e| {
            tracing::error!("space {}: {e}", managed.name);
            Status::INTERNAL_ERROR
        });
        let namespace = match namespace {
            Ok(namespace) => namespace,
            Err(status) => {
                let _ = managed.space.delete(nsid);
                return Err(status);
            }
        };
        *last = nsid;
        self.namespaces().insert(nsid, namespace);
        managed.measure();
        self.space_changed(&[nsid], &hosts_of(label));
        Ok(nsid)
    }

    fn delete(&self, managed: &Managed, nsid: u32) -> Result<(), Status> {
        let (namespace, made) = self.made(nsid)?;
        managed.space.delete(nsid).map_err(|e| managed.status_of(&e))?;
        self.namespaces().remove(&nsid);
        if let Err(e) = namespace.reserved.discard() {
            tracing::warn!("space {}: reservations of {}: {e}", managed.name, namespace.uuid);
        }
        managed.measure();
        self.space_changed(&[nsid], &hosts_of(&made.label));
        for link in self.links() {
            link.forget(&[nsid]);
        }
        Ok(())
    }

    /// Replaces the label, and with it the hosts that see the namespace.
    fn relabel(&self, managed: &Managed, nsid: u32, label: NamespaceLabel) -> Result<u32, Status> {
        let (namespace, before) = self.made(nsid)?;
        //= NVMe Base 2.1, Namespace Attachment command: a private namespace that is attached already gets Namespace Is Private
        if !before.shared && label.hosts.len() > 1 {
            return Err(Status::NAMESPACE_PRIVATE.dnr());
        }
        let label = NamespaceLabel { thin: before.label.thin, ..label };
        let (was, is) = (hosts_of(&before.label), hosts_of(&label));
        let made =
            ManagedNamespace::new(before.shared, label, Arc::clone(&before.opened)).map_err(|e| match e {
                LabelError::TooLong(_) => Status::ATTACHMENT_LIMIT.dnr(),
                _ => Status::INVALID_FIELD.dnr(),
            })?;
        managed.space.set_label(nsid, &made.label).map_err(|e| managed.status_of(&e))?;
        let namespace = Namespace { made: Some(Arc::new(made)), ..namespace };
        self.namespaces().insert(nsid, namespace);
        self.space_changed(&[nsid], &was.symmetric_difference(&is).cloned().collect());
        Ok(0)
    }

    fn grow(&self, managed: &Managed, nsid: u32, blocks: u64) -> Result<u32, Status> {
        let (namespace, made) = self.made(nsid)?;
        let size = blocks.checked_mul(namespace.device.info().block_size.into());
        let size = size.filter(|&size| size <= i64::MAX as u64).ok_or(Status::INSUFFICIENT_CAPACITY.dnr())?;
        managed.space.grow(nsid, size).map_err(|e| managed.status_of(&e))?;
        managed.measure();
        self.space_changed(&[nsid], &hosts_of(&made.label));
        Ok(0)
    }

    /// A Controller List of the controllers, or of those that a namespace is attached to, from `from`
    /// on.
    pub(crate) fn controller_list(&self, nsid: Option<u32>, from: u16) -> Vec<u8> {
        let namespace = nsid.map(|nsid| self.namespace(nsid));
        let is_listed = |hostnqn: &str| match &namespace {
            None => true,
            Some(namespace) => namespace.as_ref().is_some_and(|ns| ns.is_for(hostnqn)),
        };
        let links = self.links();
        let listed = links.iter().filter(|link| link.cntlid >= from && is_listed(&link.hostnqn));
        let cntlids: Vec<u16> = listed.map(|link| link.cntlid).take(CONTROLLERS_MAX).collect();
        encode_controller_list(&cntlids)
    }
}
