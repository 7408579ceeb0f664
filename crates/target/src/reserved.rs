//! The reservation of a namespace, as the queues of all threads see it.
//!
//! Invariants:
//! - `held` is what the state says, except while the state is being changed;
//! - a command of a host without access is refused when it comes, and again when its data has
//!   come;
//! - when Preempt and Abort completes, nothing of the preempted hosts can change the namespace
//!   any more: their I/O queues are closed, and devices are done with what these have brought;
//! - a command that changes reservations that persist completes successfully when a record with
//!   its change is durable. One that fails may have changed the state; the next one saves it.

use crate::store::{ReservationStore, Writer};
use crate::subsystem::{Subsystem, lock};
use longhaul_proto::reservation::{Access, Effects, HostId, Reservations};
use longhaul_wire::completion::Status;
use longhaul_wire::reservation::{Registrant, ReservationReport};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// See the module.
#[derive(Default)]
pub(crate) struct Reserved {
    /// The namespace is reserved.
    held: AtomicBool,
    state: Mutex<ReservedState>,
    kept: Option<ReservationBackup>,
}

#[derive(Default)]
struct ReservedState {
    reservations: Reservations,
    /// Number of changes so far, and of those that the store has.
    changes: u64,
    saved: u64,
    /// The store has a record.
    recorded: bool,
}

impl ReservedState {
    /// Whether the state has changed since it was last saved.
    fn is_unsaved(&self) -> bool {
        self.saved != self.changes && (self.recorded || self.reservations.persists())
    }
}

/// How reservations outlive the target.
struct ReservationBackup {
    store: Arc<dyn ReservationStore>,
    writer: Writer,
    /// Held while the store is being written, so that records get there in the order of their states.
    order: Mutex<()>,
    /// The namespace was removed: nothing is written any more.
    discarded: AtomicBool,
}

impl Reserved {
    /// With what the store has.
    ///
    /// # Errors
    /// The store cannot be read, or its record is not one that this version understands.
    pub(crate) fn restore(store: Arc<dyn ReservationStore>, writer: &Writer) -> io::Result<Reserved> {
        let record = store.load()?;
        let recorded = record.is_some();
        let reservations = match record {
            None => Reservations::default(),
            Some(record) => {
                let version = record.version;
                Reservations::from_record(record).ok_or_else(|| {
                    io::Error::new(
                        io::ErrorKind::InvalidData,
                        format!(
                            "the record (version {version}) contradicts itself, or is of a newer program"
                        ),
                    )
                })?
            }
        };
        Ok(Reserved {
            held: AtomicBool::new(reservations.kind().is_some()),
            state: Mutex::new(ReservedState { reservations, recorded, ..ReservedState::default() }),
            kept: Some(ReservationBackup {
                store,
                writer: writer.clone(),
                order: Mutex::default(),
                discarded: AtomicBool::new(false),
            }),
        })
    }

    /// Whether reservations can persist through a restart.
    pub(crate) fn can_persist(&self) -> bool {
        self.kept.is_some()
    }

    /// Whether they do.
    pub(crate) fn persists(&self) -> bool {
        lock(&self.state).reservations.persists()
    }

    /// Makes them persist, or not any more; [`save`](Self::save) makes that durable.
    pub(crate) fn set_persists(&self, persist: bool) {
        let mut state = lock(&self.state);
        if state.reservations.set_persists(persist) {
            state.changes += 1;
        }
    }

    /// Whether a command of the host may have this access. One load where nothing is reserved.
    #[inline]
    pub(crate) fn allows(&self, host: &HostId, access: Access) -> bool {
        !self.held.load(Ordering::SeqCst) || lock(&self.state).reservations.allows(host, access)
    }

    /// Carries out a command of reservations.
    ///
    /// # Errors
    /// Those of the command.
    pub(crate) fn change(
        &self,
        command: impl FnOnce(&mut Reservations) -> Result<Effects, Status>,
    ) -> Result<Effects, Status> {
        let mut state = lock(&self.state);
        let effects = command(&mut state.reservations)?;
        state.changes += u64::from(effects.changed);
        self.held.store(state.reservations.kind().is_some(), Ordering::SeqCst);
        Ok(effects)
    }

    /// Whether [`save`](Self::save) has something to do.
    pub(crate) fn is_unsaved(&self) -> bool {
        self.kept.is_some() && lock(&self.state).is_unsaved()
    }

    /// Ends when the state, as it is now or later, is durable, if it persists.
    ///
    /// # Errors
    /// Internal Error: it is not, and the log says why.
    pub(crate) async fn save(self: &Arc<Self>) -> Result<(), Status> {
        match &self.kept {
            Some(kept) if self.is_unsaved() && !kept.writer.save(self).await => Err(Status::INTERNAL_ERROR),
            _ => Ok(()),
        }
    }

    /// Writes the state to the store. Blocks.
    pub(crate) fn write(&self) -> io::Result<()> {
        let Some(kept) = &self.kept else { return Ok(()) };
        let _order = lock(&kept.order);
        if kept.discarded.load(Ordering::SeqCst) {
            return Ok(());
        }
        let (record, changes) = {
            let state = lock(&self.state);
            if !state.is_unsaved() {
                return Ok(());
            }
            (state.reservations.record(), state.changes)
        };
        kept.store.save(record.as_ref())?;
        let mut state = lock(&self.state);
        (state.saved, state.recorded) = (changes, record.is_some());
        Ok(())
    }

    /// The namespace is removed: forgets the reservations, and the record of them. Blocks.
    pub(crate) fn discard(&self) -> io::Result<()> {
        let Some(kept) = &self.kept else { return Ok(()) };
        let _order = lock(&kept.order);
        // A command that is under way saves nothing after this.
        kept.discarded.store(true, Ordering::SeqCst);
        kept.store.save(None)
    }

    /// The report, with an entry for each controller of each registered host.
    pub(crate) fn report(&self, subsystem: &Subsystem) -> ReservationReport {
        let controllers: Vec<(HostId, u16)> = subsystem
            .links()
            .iter()
            .map(|link| (lock(&link.controller).hostid().into_bytes(), link.cntlid))
            .collect();
        let state = &lock(&self.state).reservations;
        let mut registrants = Vec::new();
        for one in state.registrations() {
            let entry =
                |cntlid| Registrant { cntlid, holds: state.holds(&one.host), hostid: one.host, key: one.key };
            let before = registrants.len();
            registrants
                .extend(controllers.iter().filter(|(host, _)| *host == one.host).map(|(_, id)| entry(*id)));
            if registrants.len() == before {
                registrants.push(entry(Registrant::NO_CONTROLLER));
            }
        }
        ReservationReport {
            generation: state.generation(),
            kind: state.kind(),
            persists: state.persists(),
            registrants,
        }
    }
}
