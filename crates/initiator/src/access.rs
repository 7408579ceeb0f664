//! Whether a controller gives access to its namespace: Asymmetric Namespace Access (ANA). Several
//! controllers may lead to a namespace, of which some serve it well, and others not now.

use crate::error::{Error, Result};
use crate::setup::Admin;
use longhaul_wire::identify::{IdentifyController, cmic};
use longhaul_wire::log::{AnaState, decode_ana, lid};

/// Bytes of the log page that are read first: room for a hundred groups of one namespace.
const FIRST: usize = 4096;
/// The longest log page that is read, in bytes: bounds what a target can have this host allocate.
const LONGEST: u64 = 1 << 20;

/// What is known of the log page of a controller that reports ANA states.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessLog {
    /// Its length at most, in bytes.
    len: usize,
}

impl AccessLog {
    /// That of a controller, if it reports ANA states.
    pub(crate) fn of(id: &IdentifyController) -> Option<AccessLog> {
        const HEADER: u64 = 16;
        const GROUP: u64 = 32;
        if id.cmic & cmic::ANA == 0 {
            return None;
        }
        //= NVMe Base 2.1, Asymmetric Namespace Access: the log page has a group descriptor for each group, with the NSIDs of its namespaces
        let namespaces = if id.mnan == 0 { id.nn } else { id.mnan };
        let len = HEADER + GROUP * u64::from(id.nanagrpid) + 4 * u64::from(namespaces);
        Some(AccessLog { len: len.min(LONGEST) as usize })
    }

    /// Reads the state of a namespace. One that is in no group is taken for optimized. Reading the
    /// page lets the controller report the next change.
    ///
    /// # Errors
    /// The connection is lost, or the controller refuses the page, or sends a malformed one.
    pub(crate) async fn read(self, admin: &Admin, nsid: u32) -> Result<AnaState> {
        const WHAT: &str = "the ANA log page";
        let mut len = self.len.min(FIRST);
        loop {
            let page = admin.log_page(WHAT, lid::ANA, u32::MAX, 0, len & !3).await?;
            match decode_ana(&page) {
                Some(log) => {
                    let of = log.groups.iter().find(|group| group.nsids.contains(&nsid));
                    return Ok(of.map_or(AnaState::Optimized, |group| group.state));
                }
                None if len < self.len => len = self.len,
                None => return Err(admin.endpoint.incompatible("its ANA log page is cut")),
            }
        }
    }

    /// The same when a session begins: what a controller refuses counts as optimized.
    pub(crate) async fn read_first(self, admin: &Admin, nsid: u32) -> Result<AnaState> {
        admin.round_trip();
        match self.read(admin, nsid).await {
            Err(e @ (Error::Refused { .. } | Error::Incompatible { .. })) => {
                tracing::warn!("{e}; its namespace is taken for accessible");
                Ok(AnaState::Optimized)
            }
            state => state,
        }
    }
}

/// Whether I/O can be sent to a controller in this state.
pub(crate) fn is_usable(state: AnaState) -> bool {
    matches!(state, AnaState::Optimized | AnaState::NonOptimized)
}
