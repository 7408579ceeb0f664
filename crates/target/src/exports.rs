//! Devices that a target exports: namespaces of subsystems that are made for them.

use crate::reserved::Reserved;
use crate::store::ReservationStore;
use crate::subsystem::{NSID_MAX, Namespace, Subsystem};
use crate::target::{Error, Shared, Target};
use longhaul_block::{BlockDevice, TellsLosses};
use longhaul_wire::nqn::Nqn;
use std::sync::{Arc, PoisonError};
use uuid::Uuid;

/// A namespace that is ready to be added to a subsystem: all that can fail has been done.
#[derive(Debug)]
pub struct PreparedExport {
    /// NQN of the subsystem.
    pub(crate) nqn: String,
    /// What people call the subsystem.
    pub(crate) name: String,
    pub(crate) namespace: Namespace,
    is_shared: bool,
}

impl PreparedExport {
    pub(crate) fn new(nqn: &str, name: &str, namespace: Namespace) -> PreparedExport {
        PreparedExport { nqn: nqn.to_owned(), name: name.to_owned(), namespace, is_shared: false }
    }

    /// The same, of which other targets serve the subsystem too, at this time or at another one: its
    /// controllers get other identifiers than theirs.
    pub fn shared(self) -> PreparedExport {
        PreparedExport { is_shared: true, ..self }
    }
}

/// Whether exports may be in the subsystem of this NQN, if there is one.
pub(crate) fn check_exports(shared: &Shared, nqn: &str) -> Result<(), Error> {
    match shared.subsystem(nqn) {
        Some(found) if found.managed.is_some() => {
            Err(Error::Export(format!("{nqn} is a space: its namespaces are made by commands")))
        }
        _ => Ok(()),
    }
}

pub(crate) fn full(nqn: &str) -> Error {
    Error::Export(format!("{nqn} has {NSID_MAX} namespaces already"))
}

impl Target {
    /// Exports a device as the next namespace of the subsystem `nqn`, which is created if it does
    /// not exist; `name` is shown to people. Connected hosts are notified. Reservations of the
    /// namespace end with the target. Returns the namespace identifier.
    ///
    /// # Errors
    /// The NQN is invalid, or there is no room.
    pub fn export(
        &self,
        nqn: &str,
        name: &str,
        device: Arc<dyn BlockDevice>,
        uuid: Uuid,
    ) -> Result<u32, Error> {
        self.add(self.prepare(nqn, name, device, uuid, None)?)
    }

    /// As [`export`](Self::export); reservations that hosts make persistent (PTPL) are in
    /// `store`, and are in force again from the beginning.
    ///
    /// # Errors
    /// As `export`; or the store cannot be read, or has a record that contradicts itself or that a
    /// newer version has written. Without its reservations a namespace is not served, since a host
    /// that another one has preempted could write to it.
    pub fn export_persistent(
        &self,
        nqn: &str,
        name: &str,
        device: Arc<dyn BlockDevice>,
        uuid: Uuid,
        store: Arc<dyn ReservationStore>,
    ) -> Result<u32, Error> {
        self.add(self.prepare(nqn, name, device, uuid, Some(store))?)
    }

    /// What [`export`](Self::export) or [`export_persistent`](Self::export_persistent) adds, ready to be
    /// added by [`change`](Self::change). Hosts see nothing of it.
    ///
    /// # Errors
    /// As there.
    pub fn prepare(
        &self,
        nqn: &str,
        name: &str,
        device: Arc<dyn BlockDevice>,
        uuid: Uuid,
        store: Option<Arc<dyn ReservationStore>>,
    ) -> Result<PreparedExport, Error> {
        self.check_nqn(nqn)?;
        let reserved = match store {
            None => Reserved::default(),
            Some(store) => Reserved::restore(store, &self.writer).map_err(|e| {
                Error::Export(format!(
                    "reservations of {name}: {e}; the namespace is not served without them, since a host that \
                     was preempted could write to it"
                ))
            })?,
        };
        // A host sends nothing again: it has to see an error where something may be lost.
        let device: Arc<dyn BlockDevice> = Arc::new(TellsLosses::new(device));
        Ok(PreparedExport::new(nqn, name, Namespace::new(device, uuid, Arc::new(reserved), None)))
    }

    /// Whether exports may be in the subsystem of this NQN.
    pub(crate) fn check_nqn(&self, nqn: &str) -> Result<(), Error> {
        Nqn::new(nqn).map_err(|e| Error::Export(format!("NQN '{nqn}': {e}")))?;
        check_exports(&self.shared, nqn)
    }

    /// Adds the next namespace of a subsystem of exports.
    pub(crate) fn add(&self, export: PreparedExport) -> Result<u32, Error> {
        let _one = self.shared.access.order();
        check_exports(&self.shared, &export.nqn)?;
        let (subsystem, created) = self.subsystem_of_exports(&export);
        let nsid = subsystem.add_next(export.namespace).ok_or_else(|| full(&export.nqn))?;
        if created {
            self.shared.discovery_changed();
        }
        Ok(nsid)
    }

    /// The subsystem that an export is to be in, and whether it was created.
    pub(crate) fn subsystem_of_exports(&self, export: &PreparedExport) -> (Arc<Subsystem>, bool) {
        let PreparedExport { nqn, name, is_shared, .. } = export;
        let mut created = false;
        let mut all = self.shared.subsystems.write().unwrap_or_else(PoisonError::into_inner);
        let subsystem = all.entry(nqn.clone()).or_insert_with(|| {
            created = true;
            let hosts = self.shared.access.of(nqn);
            Arc::new(Subsystem::new(nqn.clone(), name.clone(), &self.shared.config, hosts))
        });
        if *is_shared {
            subsystem.share();
        }
        (Arc::clone(subsystem), created)
    }

    /// Removes a namespace: its commands complete, and connected hosts are notified. Returns
    /// whether it existed.
    pub fn remove_namespace(&self, nqn: &str, nsid: u32) -> bool {
        let _one = self.shared.access.order();
        let found = self.shared.subsystem(nqn).filter(|subsystem| subsystem.managed.is_none());
        found.is_some_and(|subsystem| !subsystem.withdraw(&[nsid]).is_empty())
    }
}
