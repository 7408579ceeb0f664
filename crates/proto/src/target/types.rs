//! The configuration and events of a [`TargetQueue`](super::TargetQueue).

use longhaul_wire::command::Sqe;
use longhaul_wire::completion::Status;

use crate::transport::{CloseReason, Params};

/// Entries that a queue has until Connect has said how many it wants: those
/// of the smallest admin queue that hosts use.
pub const ENTRIES_BEFORE_CONNECT: u16 = 32;

/// In-capsule data that is always allowed on an admin queue and before
/// Connect, in bytes (NVMe-TCP 1.1, "Capsules": the admin capsule size).
pub const IN_CAPSULE_ADMIN: u32 = 8192;

/// The most in-capsule data that can be configured, in bytes: four times the
/// largest I/O that hosts commonly send.
pub const IN_CAPSULE_MAX: u32 = 4 << 20;

/// What a controller offers on its connections.
#[derive(Clone, Copy, Debug)]
pub struct TargetConfig {
    /// Header digests are granted to hosts that ask for them.
    pub header_digest: bool,
    /// Data digests likewise.
    pub data_digest: bool,
    /// CPDA to ask for: 0's based, in four bytes; at most 31.
    pub cpda: u8,
    /// MAXH2CDATA in bytes: a multiple of 4, 4096 at least.
    pub maxh2cdata: u32,
    /// Data that one R2T asks for at most, in bytes. One R2T for the whole
    /// command costs the fewest round trips; smaller ones bound the memory
    /// that is promised at a time.
    pub r2t_bytes: u32,
    /// Data of one C2HData PDU at most, in bytes: 1 to 1 GiB.
    pub c2h_bytes: u32,
    /// Answer successful reads with the SUCCESS flag instead of a response
    /// capsule where that is allowed.
    pub success_flag: bool,
}

impl Default for TargetConfig {
    fn default() -> TargetConfig {
        TargetConfig {
            header_digest: true,
            data_digest: true,
            cpda: 0,
            maxh2cdata: 4 << 20,
            r2t_bytes: u32::MAX,
            c2h_bytes: 4 << 20,
            success_flag: true,
        }
    }
}

/// What becomes known with the Connect command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Entries of the submission queue (1's based: SQSIZE + 1), at most
    /// [`ENTRIES_MAX`](crate::transport::ENTRIES_MAX).
    pub entries: u16,
    /// In-capsule data that the queue takes, in bytes. Fabrics commands may
    /// always carry [`IN_CAPSULE_ADMIN`].
    pub in_capsule: u32,
    /// Submission queue flow control: responses carry SQHD. Off, if the host
    /// asked for that in Connect and the controller agrees.
    pub flow_control: bool,
}

/// Where the data of a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandData {
    /// The command transfers no data to the controller.
    None,
    /// `len` bytes follow in the capsule: nothing more is received until
    /// [`accept_payload`](super::TargetQueue::accept_payload) or [`complete`](super::TargetQueue::complete).
    InCapsule {
        /// Length in bytes.
        len: u32,
    },
    /// `len` bytes at the host. A write is fetched by
    /// [`request_data`](super::TargetQueue::request_data), a read answered by
    /// [`send_data`](super::TargetQueue::send_data).
    HostBuffer {
        /// Length in bytes.
        len: u32,
    },
}

impl CommandData {
    /// Bytes of data that the command transfers.
    pub fn bytes(self) -> usize {
        match self {
            CommandData::None => 0,
            CommandData::InCapsule { len } | CommandData::HostBuffer { len } => len as usize,
        }
    }
}

/// What the received bytes have brought.
#[derive(Clone, Debug, PartialEq)]
pub enum TargetEvent {
    /// The connection is set up; commands may come.
    Ready(Params),
    /// A command came, and `slot` is its name until it is answered.
    Command {
        /// Names the command in all calls.
        slot: u16,
        /// The submission queue entry.
        sqe: Sqe,
        /// Data that came with the command, or is to be requested.
        data: CommandData,
    },
    /// All data of a write (in-capsule, or asked for) was placed. On error
    /// the command is to be completed with the status given.
    DataComplete {
        /// Slot of the command.
        slot: u16,
        /// Whether the data can be used.
        result: Result<(), Status>,
    },
    /// The host has forgotten a command that was [held](super::TargetQueue::hold)
    /// and reuses its identifier: the slot is free, and the command is never
    /// answered.
    Displaced {
        /// The command that is forgotten.
        slot: u16,
        /// The identifier that both have.
        cid: u16,
    },
    /// The last event: send what [`poll_transmit`](crate::transport::Endpoint::poll_transmit) still gives,
    /// then close the connection.
    Closed(CloseReason),
}

impl From<CloseReason> for TargetEvent {
    fn from(reason: CloseReason) -> TargetEvent {
        TargetEvent::Closed(reason)
    }
}
