//! The controller's side of one connection.
//!
//! Invariants:
//! - at most [`QueueLimits::entries`] commands are open (announced and not
//!   answered) and at most twice as many slots are in use (open, or with data
//!   that is still being sent); when slots run out the queue takes no input;
//! - slots are made when they are needed: a queue of many entries that is not
//!   used costs no memory for them;
//! - once the replies that commands ask for, from the command to the sending
//!   of the last byte, come to [`set_reply_limit`](TargetQueue::set_reply_limit),
//!   no further command is taken;
//! - a command's identifier is in the map exactly while it is open;
//! - data is taken only into a command that asked for it, never beyond its
//!   length, and in the order of offsets within each R2T;
//! - after a fault the C2HTermReq is the last thing queued, and no input is
//!   taken and no output queued any more.

mod cids;
mod data;
mod setup;
mod sgl;
mod slot;
#[cfg(test)]
mod tests;
mod types;

pub use types::{
    CommandData, ENTRIES_BEFORE_CONNECT, IN_CAPSULE_ADMIN, IN_CAPSULE_MAX, QueueLimits, TargetConfig,
    TargetEvent,
};

use longhaul_wire::command::{Direction, Sqe, fctype, is_fabrics};
use longhaul_wire::completion::{Cqe, Status};
use longhaul_wire::pdu::{self, ALIGN_MAX, CapsuleCmd, CapsuleResp, CommonHeader, PduType, field};

#[cfg(doc)]
use crate::transport::{Batch, Endpoint, Want};
use crate::transport::{Connection, ENTRIES_MAX, EndpointSide, Fault, RESPONSES_MAX, Role, StreamStep};
use cids::CidMap;
use sgl::DataKind;
use slot::TargetSlot;

/// Whether a command gets or sets a property.
fn is_property(sqe: &Sqe) -> bool {
    is_fabrics(sqe.opcode) && matches!(sqe.fctype(), fctype::PROPERTY_GET | fctype::PROPERTY_SET)
}

/// Whose data is being received.
#[derive(Clone, Copy, Debug)]
enum Incoming {
    InCapsule(u16),
    /// For this R2T of the slot.
    Granted(u16, usize, u32),
    NoCommand,
}

/// The controller's side of one connection: bytes in, events out; calls in,
/// batches out.
///
/// Calling order, per turn of the driver's loop:
/// 1. [`want`](Endpoint::want) says what to receive. For [`Want::Payload`] the
///    driver receives into the command's memory (with a staging buffer
///    behind it) and reports with [`handle_payload`](Endpoint::handle_payload);
///    everything else goes through [`handle`](Endpoint::handle), which stops
///    where payload begins: then `want` is asked again, and what is left of
///    the input is copied or passed on accordingly.
/// 2. [`poll_event`](Self::poll_event) until `None`. Commands are executed
///    and answered, now or later, in any order:
///    [`accept_payload`](Self::accept_payload) for in-capsule data,
///    [`request_data`](Self::request_data) for writes,
///    [`send_data`](Self::send_data) for reads, and exactly once
///    [`complete`](Self::complete) or
///    [`send_data_and_complete`](Self::send_data_and_complete).
/// 3. [`poll_transmit`](Endpoint::poll_transmit) when the previous batch has been
///    sent; [`Batch::fill_digests`]; one vectored send; then
///    [`payload_sent`](Endpoint::payload_sent) for each piece with `last`.
///
/// A slot is free again once its command is answered and, if any of its data
/// was queued, the driver has reported the piece with `last` by
/// `payload_sent`. The memory of a write may be released after `complete`
/// (an asynchronous receive into it must be over), that of a read with
/// `payload_sent`.
///
/// # Panics
/// Calls for a slot that is not open, or with lengths outside of the
/// command's data, are errors of the driver, and panic. Nothing that a peer
/// sends does.
#[derive(Debug)]
pub struct TargetQueue {
    config: TargetConfig,
    limits: QueueLimits,
    conn: Connection<TargetEvent>,
    slots: Vec<TargetSlot>,
    free: Vec<u16>,
    cids: CidMap,
    open: u16,
    sqhd: u16,
    incoming: Incoming,
    /// Bytes of data that commands in use ask the controller to send.
    replies: u64,
    /// From how many of them on no further command is taken.
    reply_limit: u64,
    /// Number of PDU headers received.
    headers: u64,
    /// Commands that were refused before they became an event.
    refused: u64,
}

impl TargetQueue {
    /// A queue that waits for the host's ICReq.
    ///
    /// # Panics
    /// If `config` is outside of what its fields document.
    pub fn new(config: TargetConfig) -> TargetQueue {
        assert!(config.cpda <= ALIGN_MAX, "CPDA of {}", config.cpda);
        let h2c = config.maxh2cdata;
        assert!(h2c >= pdu::MAXH2CDATA_MIN && h2c.is_multiple_of(4), "MAXH2CDATA of {h2c}");
        assert!(config.r2t_bytes > 0, "R2Ts of no bytes");
        assert!((1..=pdu::DATA_MAX).contains(&config.c2h_bytes), "C2HData of {} bytes", config.c2h_bytes);
        let limits =
            QueueLimits { entries: ENTRIES_BEFORE_CONNECT, in_capsule: IN_CAPSULE_ADMIN, flow_control: true };
        let mut queue = TargetQueue {
            config,
            limits,
            conn: Connection::new(Role::Controller),
            slots: Vec::new(),
            free: Vec::new(),
            cids: CidMap::new(0),
            open: 0,
            sqhd: 0,
            incoming: Incoming::NoCommand,
            replies: 0,
            reply_limit: u64::MAX,
            headers: 0,
            refused: 0,
        };
        queue.set_limits(limits);
        queue
    }

    /// What Connect has settled; to be called before Connect is answered.
    ///
    /// # Panics
    /// If a limit is outside of what its field documents.
    pub fn set_limits(&mut self, limits: QueueLimits) {
        assert!((1..=ENTRIES_MAX).contains(&limits.entries), "{} entries", limits.entries);
        assert!(limits.in_capsule <= IN_CAPSULE_MAX, "{} bytes in capsule", limits.in_capsule);
        self.limits = limits;
        // Twice the entries: a host may reuse an entry as soon as it has the
        // response, while this end still holds memory that was sent.
        let limit = self.slot_limit();
        let idle = |slot: &u16| !self.slots[usize::from(*slot)].in_use();
        self.free = (0..self.slots.len().min(limit) as u16).rev().filter(idle).collect();
        let mut cids = CidMap::new(limit.max(self.slots.len()));
        for (slot, s) in self.slots.iter().enumerate().filter(|(_, s)| s.open) {
            cids.insert(s.cid, slot as u16);
        }
        self.cids = cids;
        self.sqhd %= limits.entries;
    }

    fn slot_limit(&self) -> usize {
        2 * usize::from(self.limits.entries)
    }

    /// Takes no further command while commands in use ask for `bytes` of data
    /// or more: a peer that asks and never reads holds little more than that.
    /// A single command may ask for any length. There is no limit at first.
    pub fn set_reply_limit(&mut self, bytes: u64) {
        self.reply_limit = bytes;
    }

    /// Commands that were refused without an event, since the last call.
    #[inline]
    pub fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }

    /// Headers received so far: together with
    /// [`is_within_pdu`](Self::is_within_pdu) this shows a peer that does not
    /// come to the end of one.
    pub fn headers(&self) -> u64 {
        self.headers
    }

    /// Whether a part of a PDU was received and the rest was not.
    pub fn is_within_pdu(&self) -> bool {
        !self.conn.rx.at_start()
    }

    /// Commands that are not answered yet.
    pub fn open_commands(&self) -> usize {
        usize::from(self.open)
    }

    /// The open command with this identifier (for Abort).
    pub fn find(&self, cid: u16) -> Option<u16> {
        self.cids.get(cid)
    }

    /// Says that a command without data waits for an event, perhaps for ever:
    /// see [`TargetEvent::Displaced`].
    pub fn hold(&mut self, slot: u16) {
        let s = &mut self.slots[usize::from(slot)];
        debug_assert!(s.open && s.len == 0, "slot {slot} waits for an event");
        s.held = true;
    }

    #[inline]
    fn has_slot(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < self.slot_limit()
    }

    /// A slot that is free, which stays in the list of free ones.
    #[inline]
    fn free_slot(&mut self) -> Option<u16> {
        if self.free.is_empty() && self.slots.len() < self.slot_limit() {
            // Below twice ENTRIES_MAX, so it fits.
            self.free.push(self.slots.len() as u16);
            self.slots.push(TargetSlot::default());
        }
        self.free.last().copied()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<TargetEvent> {
        self.conn.events.pop_front()
    }

    fn command(&mut self) -> Result<(), Fault> {
        let capsule: CapsuleCmd = self.conn.rx.header()?;
        let sqe: Sqe = zerocopy::transmute!(capsule.sqe);
        let in_capsule = self.conn.rx.layout().data;
        //= NVMe Base 2.1, Submission Queue Flow Control: a host never submits more than the queue has entries
        if self.open >= self.limits.entries {
            return Err(Fault::sequence("more commands than the queue has entries"));
        }
        //= NVMe-TCP 1.1, CapsuleCmd PDU: in-capsule data is at most what IOCCSZ (or the admin capsule size) allows
        //= NVMe-TCP 1.1, Capsules: Fabrics commands carry up to 8192 bytes on every queue, whatever IOCCSZ says
        let least = if is_fabrics(sqe.opcode) { IN_CAPSULE_ADMIN } else { 0 };
        if in_capsule > self.limits.in_capsule.max(least) {
            return Err(Fault::field(field::PLEN, "more in-capsule data than the queue takes"));
        }
        if is_property(&sqe) {
            self.displace(sqe.cid());
        }
        self.sqhd = if self.sqhd + 1 == self.limits.entries { 0 } else { self.sqhd + 1 };
        // `is_full` has made sure that there is one.
        let Some(slot) = self.free_slot() else {
            return Err(Fault::sequence("more commands than the queue has slots"));
        };
        //= NVMe Base 2.1, Command Identifier: one that is in use fails with Command ID Conflict
        if !self.cids.insert(sqe.cid(), slot) {
            self.refuse(&sqe, Status::COMMAND_ID_CONFLICT);
            return Ok(());
        }
        match sgl::data_of(&sqe, in_capsule) {
            Err(status) => {
                self.cids.remove(sqe.cid());
                self.refuse(&sqe, status);
            }
            Ok(data) => self.open_slot(slot, sqe, data),
        }
        Ok(())
    }

    /// Answers a command that does not become an event.
    fn refuse(&mut self, sqe: &Sqe, status: Status) {
        self.conn.rx.discard();
        self.incoming = Incoming::NoCommand;
        self.refused += 1;
        self.respond(Cqe::new(sqe.cid(), status.dnr()));
    }

    /// Forgets the command that holds `cid` while it waits for an event.
    ///
    /// The specification lets no identifier be used twice at a time. Hosts that
    /// shut down (SPDK's) end their event requests on their own side alone, and
    /// then use their identifiers for Property Get and Property Set. An answer
    /// to the event request would be taken for that of the property command.
    fn displace(&mut self, cid: u16) {
        let held = self.cids.get(cid).filter(|slot| self.slots[usize::from(*slot)].held);
        let Some(slot) = held else { return };
        let s = &mut self.slots[usize::from(slot)];
        (s.open, s.held) = (false, false);
        self.open -= 1;
        self.cids.remove(cid);
        self.release(slot);
        self.conn.events.push_back(TargetEvent::Displaced { slot, cid });
    }

    /// A slot whose command is answered and whose payload was sent is free,
    /// unless the limits have shrunk below it.
    #[inline]
    fn release(&mut self, slot: u16) {
        self.replies -= u64::from(std::mem::take(&mut self.slots[usize::from(slot)].reply));
        if usize::from(slot) < self.slot_limit() {
            self.free.push(slot);
        }
    }

    #[inline]
    fn open_slot(&mut self, slot: u16, sqe: Sqe, data: DataKind) {
        self.free.pop();
        self.open += 1;
        let (len, data) = match data {
            DataKind::None => (0, CommandData::None),
            DataKind::InCapsule(len) => {
                self.incoming = Incoming::InCapsule(slot);
                (len, CommandData::InCapsule { len })
            }
            DataKind::Host(len) => (len, CommandData::HostBuffer { len }),
        };
        let sends = matches!(data, CommandData::HostBuffer { .. }) && sqe.direction() == Direction::ToHost;
        let reply = if sends { len } else { 0 };
        self.replies += u64::from(reply);
        self.slots[usize::from(slot)] =
            TargetSlot { cid: sqe.cid(), open: true, len, reply, ..TargetSlot::default() };
        self.conn.events.push_back(TargetEvent::Command { slot, sqe, data });
    }

    /// Queues a response capsule.
    #[inline]
    fn respond(&mut self, cqe: Cqe) {
        if self.conn.is_closed() {
            return;
        }
        //= NVMe Base 2.1, Completion Queue Entry: SQHD is reserved without flow control, and FFFFh in Connect's response
        let sqhd = if self.limits.flow_control { self.sqhd } else { 0xFFFF };
        let (common, _) = CommonHeader::build(PduType::CapsuleResp, 0, 0, self.conn.params.to_host());
        let resp = CapsuleResp { common, cqe: cqe.with_sqhd(sqhd).to_bytes() };
        self.conn.tx.header(&resp, self.conn.params.header_digest, 0);
    }
}

impl EndpointSide for TargetQueue {
    type Event = TargetEvent;

    #[inline]
    fn connection(&self) -> &Connection<TargetEvent> {
        &self.conn
    }

    #[inline]
    fn connection_mut(&mut self) -> &mut Connection<TargetEvent> {
        &mut self.conn
    }

    #[inline]
    fn is_full(&self) -> bool {
        let full = self.replies >= self.reply_limit || !self.has_slot();
        (full && self.conn.rx.at_start()) || self.conn.tx.backlogged(RESPONSES_MAX)
    }

    fn step(&mut self, step: StreamStep) -> Result<(), Fault> {
        self.headers += u64::from(matches!(step, StreamStep::Header(_)));
        match step {
            StreamStep::Header(PduType::CapsuleCmd) => self.command(),
            StreamStep::Header(PduType::H2CData) => self.h2c_data(),
            StreamStep::Header(PduType::IcReq) => self.ic_req(),
            StreamStep::Header(_) => self.conn.terminated(),
            StreamStep::DataEnd { digest_ok } => {
                self.data_end(digest_ok);
                Ok(())
            }
        }
    }

    fn payload_sent(&mut self, slot: u16) {
        let s = &mut self.slots[usize::from(slot)];
        assert!(s.sending, "slot {slot} has no payload under way");
        s.sending = false;
        if !s.open {
            self.release(slot);
        }
    }
}
