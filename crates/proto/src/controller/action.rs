//! What a controller answers.

use super::space::SpaceCommand;
use longhaul_wire::command::CrossControllerReset;
use longhaul_wire::completion::{Cqe, Status};
use longhaul_wire::registration::RegistrationTask;

/// Status and result of a command: its completion but for the queue fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status of the completion.
    pub status: Status,
    /// Dwords 1 and 0.
    pub result: u64,
}

impl Reply {
    /// Success with a result.
    pub fn ok(result: u64) -> Reply {
        Reply { status: Status::SUCCESS, result }
    }

    /// A completion with an error status, and no result.
    pub fn error(status: Status) -> Reply {
        Reply { status, result: 0 }
    }

    /// The completion of command `cid`.
    pub fn cqe(&self, cid: u16) -> Cqe {
        Cqe::new(cid, self.status).with_result(self.result)
    }
}

impl From<Status> for Reply {
    fn from(status: Status) -> Reply {
        Reply::error(status)
    }
}

/// What the driver does with a command.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Action {
    /// Complete the command now.
    Complete(Reply),
    /// Send this data (exactly as long as the command's SGL says), then
    /// complete it with success and a result of 0.
    Data(Vec<u8>),
    /// Keep it open: [`Controller::poll_event`](super::Controller::poll_event)
    /// completes it some day.
    Hold,
    /// Try to abort command `cid` of queue `sqid`, then complete this one with
    /// what [`Controller::abort_done`](super::Controller::abort_done) says.
    Abort {
        /// Queue; 0 is the admin queue.
        sqid: u16,
        /// Identifier of the command to abort.
        cid: u16,
    },
    /// End this instance of another controller of the same host, so that
    /// none of its commands has any effect afterwards; then complete it with
    /// what [`Controller::reset_other_done`](super::Controller::reset_other_done)
    /// says.
    ResetOther(CrossControllerReset),
    /// Complete it with success, then make the change.
    Change(Change),
    /// The host turns the write cache on or off. If off: from now on write
    /// through (as if every write had FUA), flush every namespace, then
    /// complete the command with success; if a flush fails, with its status.
    WriteCache {
        /// Whether writes may be cached.
        enabled: bool,
    },
    /// Complete it with 1 if the reservations of the namespace `nsid` persist through a loss of
    /// power, else with 0.
    ReservationPersistence {
        /// NSID of an active namespace whose reservations can persist.
        nsid: u32,
    },
    /// From now on the reservations of these namespaces persist through a loss of power, or do
    /// not any more: complete the command when that itself is durable.
    PersistReservations {
        /// NSIDs of active namespaces whose reservations can persist.
        nsids: Vec<u32>,
        /// Whether they persist (PTPL).
        persist: bool,
    },
    /// Get its data, if it has some, and carry it out: the host may.
    Manage(SpaceCommand),
    /// Get its data, this many bytes, and carry out the task of the registration in it: the host may.
    Register {
        /// What to do with the registration.
        task: RegistrationTask,
        /// Bytes of data.
        len: usize,
    },
    /// Send a Controller List, as [`Data`](Self::Data): the identifiers from `from` on of the
    /// controllers of the subsystem, or of those whose hosts the namespace `nsid` is attached to.
    Controllers {
        /// NSID of an allocated namespace; none for every controller.
        nsid: Option<u32>,
        /// The first identifier to list.
        from: u16,
    },
    /// Complete it with success, then close the queue that it came on.
    Disconnect,
}

impl Action {
    pub(super) fn ok() -> Action {
        Action::Complete(Reply::ok(0))
    }
}

impl From<Status> for Action {
    fn from(status: Status) -> Action {
        Action::Complete(Reply::error(status))
    }
}

/// A change of the controller's state that the driver carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The controller is ready: nothing to do.
    Enabled,
    /// Controller reset: let I/O under way end, close the I/O queues, then call
    /// [`Controller::change_done`](super::Controller::change_done). The admin queue stays; its
    /// outstanding event requests are dropped without a completion.
    Disabling,
    /// Shutdown: let I/O under way end (or drop it, if abrupt), flush every
    /// namespace, then call `change_done`. The queues stay.
    ShuttingDown {
        /// An abrupt shutdown.
        abrupt: bool,
    },
}

/// The queue that a Connect made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueParams {
    /// The controller's identifier.
    pub cntlid: u16,
    /// The queue's identifier: 0 is the admin queue.
    pub qid: u16,
    /// Entries of the submission queue.
    pub entries: u16,
    /// Whether SQHD counts; else it is FFFFh in every completion.
    pub flow_control: bool,
}

impl QueueParams {
    /// What completes the Connect.
    pub fn reply(&self) -> Reply {
        Reply::ok(self.cntlid.into())
    }
}
