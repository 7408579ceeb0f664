//! The configuration, commands and events of a [`HostQueue`](super::HostQueue).

use longhaul_wire::completion::Cqe;

use crate::transport::{CloseReason, Params};

/// In-capsule data that every admin queue takes, in bytes (NVMe-TCP 1.1,
/// "Capsules": the admin capsule size).
pub const IN_CAPSULE_ADMIN: u32 = 8192;

/// What a host asks for on a connection.
#[derive(Clone, Copy, Debug)]
pub struct HostConfig {
    /// Ask for header digests.
    pub header_digest: bool,
    /// Ask for data digests.
    pub data_digest: bool,
    /// HPDA: 0's based, in four bytes; at most 31.
    pub hpda: u8,
    /// R2Ts that may be outstanding for a command, 1 at least. The Linux
    /// target knows only 1.
    pub maxr2t: u32,
    /// Entries of the submission queue: 2 to [`ENTRIES_MAX`](crate::transport::ENTRIES_MAX). One fewer
    /// commands can be outstanding.
    pub entries: u16,
    /// In-capsule data that the controller takes, in bytes (Fabrics commands
    /// may always carry [`IN_CAPSULE_ADMIN`]); see
    /// [`set_in_capsule`](super::HostQueue::set_in_capsule).
    pub in_capsule: u32,
    /// The Connect command asks to do without flow control: if its response
    /// has FFFFh for SQHD, that is granted.
    pub no_flow_control: bool,
}

impl Default for HostConfig {
    fn default() -> HostConfig {
        HostConfig {
            header_digest: false,
            data_digest: false,
            hpda: 0,
            maxr2t: 1,
            entries: 128,
            in_capsule: IN_CAPSULE_ADMIN,
            no_flow_control: true,
        }
    }
}

/// The data of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostData {
    /// The command transfers no data.
    None,
    /// The controller gets `len` bytes.
    Write {
        /// Length in bytes.
        len: u32,
    },
    /// The controller gives `len` bytes at most.
    Read {
        /// Length in bytes.
        len: u32,
    },
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue is full: wait for a completion.
    #[error("the queue is full")]
    Full,
    /// ICResp has not come yet: wait for [`HostEvent::Ready`].
    #[error("the connection is not set up yet")]
    NotReady,
    /// The connection has ended.
    #[error("the connection has ended")]
    Closed,
}

/// What the received bytes have brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// The connection is set up; commands may be submitted.
    Ready(Params),
    /// A command is complete, its slot free, and its memory not referred to
    /// any more.
    Completion {
        /// Names the command, as [`submit`](super::HostQueue::submit) did.
        slot: u16,
        /// Its completion queue entry; made up, with success, where the
        /// SUCCESS flag replaced it. Transient Transport Error if data did
        /// not match its digest.
        cqe: Cqe,
        /// Bytes of a read that have come: 0 to that many bytes of its memory
        /// are valid. If there are fewer than requested, the caller decides whether that is an error.
        received: u32,
    },
    /// The last event: send what [`poll_transmit`](crate::transport::Endpoint::poll_transmit) still gives,
    /// then close the connection.
    Closed(CloseReason),
}

impl From<CloseReason> for HostEvent {
    fn from(reason: CloseReason) -> HostEvent {
        HostEvent::Closed(reason)
    }
}
