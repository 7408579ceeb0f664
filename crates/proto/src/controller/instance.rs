//! Which life of a controller this is, and Cross-Controller Reset, by which a
//! host ends one that it has lost the way to (NVMe Base 2.3).

use super::Controller;
use super::action::{Action, Reply};
use longhaul_wire::command::{CrossControllerReset, Sqe};
use longhaul_wire::completion::Status;

/// CCRL: Cross-Controller Resets that a controller has under way at a time:
/// one for each controller that a host may have lost in a row.
pub const RESET_LIMIT: u8 = 4;

/// Distinguishes a controller from all that had its identifier before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Controller Instance Uniquifier, never 0.
    pub ciu: u8,
    /// Controller Instance Random Number.
    pub cirn: u64,
}

impl Instance {
    /// From a random number.
    pub fn new(random: u64) -> Instance {
        Instance { ciu: ((random >> 56) as u8).max(1), cirn: random }
    }

    /// The instance after this one, as unpredictable as it is.
    fn next(self) -> Instance {
        // The finalizer of SplitMix64: every bit depends on every other.
        let mut x = self.cirn.wrapping_add(0x9E37_79B9_7F4A_7C15);
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        Instance { ciu: self.ciu.checked_add(1).unwrap_or(1), cirn: x ^ x >> 31 }
    }
}

/// How the driver's attempt to reset another controller went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherReset {
    /// No command of that instance will have any effect from now on: it has
    /// ended, or there is no such instance (any more).
    Done,
    /// It is under way, and takes its time.
    InProgress,
    /// It belongs to another host.
    NotYours,
    /// There is no such instance here, and there may be one at another target that serves the
    /// subsystem.
    Unknown,
}

impl Controller {
    /// Gives the controller an instance, and with it Cross-Controller Reset;
    /// nothing happens to a discovery controller.
    pub fn set_instance(&mut self, instance: Instance) {
        if !self.discovery {
            self.instance = Some(instance);
        }
    }

    /// The instance that the controller reports, if it reports one.
    pub fn instance(&self) -> Option<Instance> {
        self.instance
    }

    /// Another controller has reset this one: it is failed, and the driver
    /// ends the association, all of its connections.
    pub fn fail(&mut self) {
        self.csts = self.csts.with_cfs(1);
    }

    /// It becomes ready: another instance.
    //= NVMe Base 2.3, Identify Controller: CIU and CIRN change whenever the controller becomes ready
    pub(super) fn renew_instance(&mut self) {
        self.instance = self.instance.map(Instance::next);
    }

    pub(super) fn cross_controller_reset(&mut self, sqe: &Sqe) -> Action {
        let fields = CrossControllerReset::of(sqe);
        //= NVMe Base 2.3, Cross-Controller Reset command: a controller does not reset itself by it
        let named = Instance { ciu: fields.ciu, cirn: fields.cirn };
        if fields.icid == self.cntlid && self.instance == Some(named) {
            return Status::INVALID_FIELD.dnr().into();
        }
        //= NVMe Base 2.3, Cross-Controller Reset command: no more than CCRL are under way at a time
        if self.resets == RESET_LIMIT {
            return Status::RESET_LIMIT.into();
        }
        self.resets += 1;
        Action::ResetOther(fields)
    }

    /// The answer to a Cross-Controller Reset that was handed out as
    /// [`Action::ResetOther`].
    pub fn reset_other_done(&mut self, outcome: OtherReset) -> Reply {
        self.resets = self.resets.saturating_sub(1);
        match outcome {
            //= NVMe Base 2.3, Cross-Controller Reset command: bit 0 of dword 0 says that the reset is done
            OtherReset::Done => Reply::ok(CrossControllerReset::DONE.into()),
            OtherReset::InProgress => Status::RESET_IN_PROGRESS.into(),
            //= NVMe Base 2.3, Cross-Controller Reset command: both controllers belong to the same host
            OtherReset::NotYours => Status::INVALID_FIELD.dnr().into(),
            //= NVMe Base 2.1, Asymmetric Namespace Access: a controller that has no access to what a command needs says so
            OtherReset::Unknown => Status::ANA_INACCESSIBLE.into(),
        }
    }
}
