//! What a queue remembers of one command.

use longhaul_wire::completion::Cqe;

/// The data of a command, as it was submitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SlotData {
    #[default]
    None,
    /// Sent with the command.
    InCapsule,
    /// Sent when asked for.
    Write {
        len: u32,
    },
    Read {
        len: u32,
    },
}

/// The state of one outstanding command.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HostSlot {
    /// Identifier of this use, or of the last.
    pub(super) cid: u16,
    /// From submission to the event that reports its completion.
    pub(super) live: bool,
    /// The controller has completed it.
    pub(super) answered: bool,
    /// C2HData with LAST_PDU has come.
    pub(super) last_seen: bool,
    /// Payload was queued that the driver has not reported as sent.
    pub(super) sending: bool,
    /// The piece with `last` was queued.
    pub(super) last_queued: bool,
    /// Data did not match its digest.
    pub(super) digest_error: bool,
    pub(super) data: SlotData,
    /// Bytes received (read), or asked for by R2Ts (write).
    pub(super) done: u32,
    /// R2Ts since batch number `r2t_batch`, which has not been taken yet.
    pub(super) r2ts: u32,
    pub(super) r2t_batch: u64,
    /// The completion, while it waits for `payload_sent`.
    pub(super) cqe: Option<Cqe>,
}

impl HostSlot {
    /// Bytes of a write that no R2T has asked for.
    pub(super) fn write_left(&self) -> u32 {
        match self.data {
            SlotData::Write { len } => len - self.done,
            _ => 0,
        }
    }

    /// Bytes of a read that have come.
    pub(super) fn received(&self) -> u32 {
        match self.data {
            SlotData::Read { .. } => self.done,
            _ => 0,
        }
    }
}
