//! What a queue remembers of one command.

/// R2Ts outstanding for one command at most, whatever the host allows: two
/// hide the round trip, four leave room for jitter. A power of two.
pub(super) const R2T_WINDOW: usize = 4;

/// Bits of a transfer tag that distinguish the R2Ts of a command.
pub(super) const R2T_BITS: u32 = R2T_WINDOW.ilog2();

/// An R2T that is outstanding (`left > 0`) or was.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Grant {
    /// Where the next H2CData must begin.
    pub(super) next: u32,
    /// How much of the R2T is still to come.
    pub(super) left: u32,
}

/// The state of one outstanding command.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TargetSlot {
    pub(super) cid: u16,
    /// Between the event that announced it and the response.
    pub(super) open: bool,
    /// Waits for an event, so a property command may take its identifier.
    pub(super) held: bool,
    /// Payload was queued that the driver has not reported as sent.
    pub(super) sending: bool,
    /// The piece with `last` was queued.
    pub(super) last_queued: bool,
    /// Data did not match its digest.
    pub(super) digest_error: bool,
    /// Completed by the driver while R2Ts are outstanding: answered once their data has been
    /// received and discarded.
    pub(super) draining: bool,
    /// Status and result to answer a draining command with.
    pub(super) answer: (u16, u64),
    /// Length of the data that the host is to be sent, in bytes, until the
    /// command is answered and its data sent.
    pub(super) reply: u32,
    /// Length of the data that the command describes, in bytes.
    pub(super) len: u32,
    /// How much of it R2Ts have asked for.
    pub(super) asked: u32,
    /// How much of it has arrived.
    pub(super) received: u32,
    pub(super) grants: [Grant; R2T_WINDOW],
}

impl TargetSlot {
    /// Whether anything still refers to the command.
    pub(super) fn in_use(&self) -> bool {
        self.open || self.sending
    }

    /// Whether data is still to come for an R2T.
    pub(super) fn outstanding(&self) -> bool {
        self.grants.iter().any(|g| g.left > 0)
    }
}
