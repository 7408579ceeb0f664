//! What a host sees of catalog and targets: each call is a turn, and may end in every way.

use super::arrays::SimArray;
use super::site::{CallEnd, Late, Site, SiteState};
use longhaul_catalog::{
    Catalog, Commit, Entry, Error as CatalogError, LeaseId, Result as CatalogResult, Revision, Snapshot, Txn,
    Watch,
};
use longhaul_pool::{Label, Namespace, NamespaceId, Space, SpaceError, Spaces, Taken, VolumeRecord};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// The catalog and the targets, as one host reaches them.
pub(super) struct HostView {
    pub(super) site: Arc<Site>,
    pub(super) host: usize,
}

fn unreachable_catalog() -> CatalogError {
    CatalogError::Unreachable { catalog: "x".to_owned(), why: "cut off".to_owned() }
}

fn unknown() -> CatalogError {
    CatalogError::Unknown { catalog: "x".to_owned(), why: "no answer".to_owned() }
}

fn no_answer() -> SpaceError {
    SpaceError::Unreachable("no answer".to_owned())
}

impl HostView {
    fn is_dead(&self) -> bool {
        self.site.lock().hosts[self.host].is_dead
    }

    fn read<T>(
        &self,
        name: std::fmt::Arguments<'_>,
        call: impl FnOnce() -> CatalogResult<T>,
    ) -> CatalogResult<T> {
        match self.site.step(self.host, true, name) {
            CallEnd::Done => call(),
            _ => Err(unreachable_catalog()),
        }
    }

    /// A call to a target that changes nothing, or whose delay makes no difference.
    fn ask<T>(
        &self,
        name: std::fmt::Arguments<'_>,
        call: impl FnOnce(&mut SiteState) -> Result<T, SpaceError>,
    ) -> Result<T, SpaceError> {
        self.change(name, call, None)
    }

    /// A call to a target that may take effect `late`.
    fn change<T>(
        &self,
        name: std::fmt::Arguments<'_>,
        call: impl FnOnce(&mut SiteState) -> Result<T, SpaceError>,
        late: Option<Late>,
    ) -> Result<T, SpaceError> {
        let end = self.site.step(self.host, false, name);
        let mut state = self.site.lock();
        match end {
            CallEnd::Done => return call(&mut state),
            CallEnd::AnswerLost => drop(call(&mut state)),
            CallEnd::Late => state.late.extend(late),
            CallEnd::Unreachable | CallEnd::Dead => {}
        }
        Err(no_answer())
    }
}

impl Catalog for HostView {
    fn name(&self) -> String {
        "simulated".to_owned()
    }

    fn commit(&self, txn: &Txn) -> CatalogResult<Commit> {
        match self.site.step(self.host, true, format_args!("commit")) {
            CallEnd::Done => self.site.catalog.commit(txn),
            CallEnd::AnswerLost => {
                self.site.catalog.commit(txn)?;
                Err(unknown())
            }
            CallEnd::Late => {
                self.site.lock().late.push(Late::Commit(txn.clone()));
                Err(unknown())
            }
            CallEnd::Unreachable | CallEnd::Dead => Err(unreachable_catalog()),
        }
    }

    fn range(&self, prefix: &[u8], at: Option<Revision>) -> CatalogResult<Snapshot> {
        self.read(format_args!("range"), || self.site.catalog.range(prefix, at))
    }

    fn get(&self, key: &[u8]) -> CatalogResult<Option<Entry>> {
        self.read(format_args!("get {}", String::from_utf8_lossy(key)), || self.site.catalog.get(key))
    }

    fn watch(&self, prefix: &[u8], from: Revision) -> CatalogResult<Box<dyn Watch>> {
        self.site.catalog.watch(prefix, from)
    }

    fn grant(&self, ttl: Duration) -> CatalogResult<LeaseId> {
        let lease = self.read(format_args!("grant"), || self.site.catalog.grant(ttl))?;
        self.site.lock().hosts[self.host].leases.insert(lease);
        Ok(lease)
    }

    // A thread of the host does this as the time of the simulation passes: see `Site::advance`.
    fn keep(&self, lease: LeaseId) -> CatalogResult<Duration> {
        if self.is_dead() { Err(unreachable_catalog()) } else { Err(CatalogError::LeaseExpired(lease)) }
    }

    fn revoke(&self, lease: LeaseId) -> CatalogResult<()> {
        self.site.lock().hosts[self.host].leases.remove(&lease);
        self.read(format_args!("revoke"), || self.site.catalog.revoke(lease))
    }
}

impl Spaces for HostView {
    fn space(&self, address: &str) -> Result<Space, SpaceError> {
        self.ask(format_args!("space of {address}"), |state| Ok(state.target(address)?.space()))
    }

    fn list(&self, address: &str) -> Result<Vec<Namespace>, SpaceError> {
        self.ask(format_args!("list {address}"), |state| Ok(state.target(address)?.list()))
    }

    fn make(&self, address: &str, size: u64, label: &Label) -> Result<NamespaceId, SpaceError> {
        let late = Late::Make { address: address.to_owned(), size, label: Box::new(label.clone()) };
        let name = format_args!("make member {} of {} at {address}", label.index, label.name);
        let make = |state: &mut SiteState| {
            let made = state.make(address, size, label)?;
            if self.site.plan.is_target_forgetful && state.random.chance(2) {
                state.target(address)?.namespaces.remove(&made.uuid);
            }
            Ok(made)
        };
        self.change(name, make, Some(late))
    }

    fn remove(&self, address: &str, namespace: NamespaceId) -> Result<(), SpaceError> {
        let late = Late::Remove { address: address.to_owned(), namespace };
        let name = format_args!("remove {} at {address}", namespace.uuid);
        self.change(name, |state| self.site.remove(state, address, namespace), Some(late))
    }

    fn relabel(&self, address: &str, namespace: NamespaceId, label: &Label) -> Result<(), SpaceError> {
        let late = Late::Relabel { address: address.to_owned(), namespace, label: Box::new(label.clone()) };
        let name = format_args!("label {} at {address} as {}", namespace.uuid, label.name);
        self.change(name, |state| state.relabel(address, namespace, label), Some(late))
    }

    fn format(&self, volume: &VolumeRecord, members: &[(String, NamespaceId)]) -> Result<Uuid, SpaceError> {
        self.ask(format_args!("make the array of {}", volume.name), |state| {
            let array = state.new_uuid();
            let namespaces: Vec<Uuid> = members.iter().map(|(_, namespace)| namespace.uuid).collect();
            let made = SimArray::new(volume.shape.redundancy(), volume.shape.width, &namespaces);
            state.arrays.insert(array, made);
            for (address, namespace) in members {
                state.namespace(address, *namespace)?.array = Some(array);
            }
            Ok(array)
        })
    }

    fn array_on(&self, address: &str, namespace: NamespaceId) -> Result<Option<Uuid>, SpaceError> {
        self.ask(format_args!("array at {address}"), |state| Ok(state.namespace(address, namespace)?.array))
    }

    fn taken(
        &self,
        members: &[(String, NamespaceId)],
        place: &(String, NamespaceId),
    ) -> Result<Taken, SpaceError> {
        let is_denied = self.site.plan.is_move_denied;
        self.ask(format_args!("array with a place at {}", place.0), |state| {
            match state.taken(members, place) {
                Ok(_) if is_denied => Ok(Taken::No),
                taken => taken,
            }
        })
    }

    fn new_uuid(&self) -> Uuid {
        self.site.lock().new_uuid()
    }
}
