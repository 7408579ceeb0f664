//! The reservation of a namespace, as the queues of all threads see it.
//!
//! Invariants:
//! - `held` is what the state says, except while the state is being changed;
//! - a command of a host without access is refused when it comes, and again when its data has
//!   come;
//! - when Preempt and Abort completes, nothing of the preempted hosts can change the namespace
//!   any more: their I/O queues are closed, and devices are done with what these have brought.

use crate::subsystem::{Subsystem, lock};
use longhaul_proto::reservation::{Access, Effects, HostId, Reservations};
use longhaul_wire::completion::Status;
use longhaul_wire::reservation::{Registrant, ReservationReport};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Reserved {
    /// The namespace is reserved.
    held: AtomicBool,
    state: Mutex<Reservations>,
}

impl Reserved {
    /// Whether a command of the host may have this access. One load where nothing is reserved.
    #[inline]
    pub(crate) fn allows(&self, host: &HostId, access: Access) -> bool {
        !self.held.load(Ordering::SeqCst) || lock(&self.state).allows(host, access)
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
        let effects = command(&mut state);
        self.held.store(state.kind().is_some(), Ordering::SeqCst);
        effects
    }

    /// The report, with an entry for each controller of each registered host.
    pub(crate) fn report(&self, subsystem: &Subsystem) -> ReservationReport {
        let controllers: Vec<(HostId, u16)> = subsystem
            .links()
            .iter()
            .map(|link| (lock(&link.controller).hostid().into_bytes(), link.cntlid))
            .collect();
        let state = lock(&self.state);
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
