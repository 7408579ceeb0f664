//! The host's side of one connection.
//!
//! Invariants:
//! - at most `entries - 1` commands are outstanding, and with flow control on
//!   at most that many entries lie between head and tail of the submission
//!   queue;
//! - a command identifier names a slot and one use of it; FFFFh is never used;
//! - data of a read is taken in order, and never beyond what was asked for;
//!   data of a write is sent only where an R2T asked for it, once;
//! - a completion is reported once, when nothing refers to the command's
//!   memory any more;
//! - after a fault the H2CTermReq is the last thing queued, and no input is
//!   taken and no output queued any more.

mod data;
mod setup;
mod slot;
#[cfg(test)]
mod tests;
mod types;

pub use types::{HostConfig, HostData, HostEvent, IN_CAPSULE_ADMIN, SubmitError};

use longhaul_wire::command::{Sgl, Sqe, is_fabrics};
use longhaul_wire::completion::Cqe;
use longhaul_wire::pdu::{ALIGN_MAX, CapsuleCmd, CapsuleResp, CommonHeader, DATA_MAX, IcReq, PduType, field};

use crate::transport::{
    BACKLOG_MAX, Connection, ConnectionState, ENTRIES_MAX, EndpointSide, Fault, Params, Role, StreamStep,
};
#[cfg(doc)]
use crate::transport::{Batch, Endpoint, Want};
use slot::{HostSlot, SlotData};

/// The host's side of one connection: commands in, completions out; bytes
/// in, batches out.
///
/// Calling order, per turn of the driver's loop:
/// 1. [`submit`](Self::submit) after [`HostEvent::Ready`], while there is room.
///    The slot names the command and its memory from then on.
/// 2. [`want`](Endpoint::want) says what to receive. For [`Want::Payload`] the
///    driver receives into the command's memory (with a staging buffer
///    behind it) and reports with [`handle_payload`](Endpoint::handle_payload);
///    everything else goes through [`handle`](Endpoint::handle), which stops
///    where payload begins: then `want` is asked again, and what is left of
///    the input is copied or passed on accordingly.
/// 3. [`poll_event`](Self::poll_event) until `None`.
/// 4. [`poll_transmit`](Endpoint::poll_transmit) when the previous batch has been
///    sent; [`Batch::fill_digests`]; one vectored send; then
///    [`payload_sent`](Endpoint::payload_sent) for each piece with `last`.
///
/// Memory of a command belongs to the queue from `submit` until its
/// [`HostEvent::Completion`]. After [`HostEvent::Closed`] no completions come: all
/// commands still outstanding have failed.
///
/// # Panics
/// Wrong calls of the driver (`payload_sent` for nothing) panic. Nothing that
/// a peer sends does.
#[derive(Debug)]
pub struct HostQueue {
    config: HostConfig,
    fabrics_in_capsule: u32,
    conn: Connection<HostEvent>,
    slots: Vec<HostSlot>,
    free: Vec<u16>,
    /// Bits of a command identifier that are the slot.
    slot_bits: u32,
    flow_control: bool,
    head: u16,
    tail: u16,
    /// The read whose data is being received.
    incoming: u16,
    /// FLAGS of the C2HData that is being received.
    incoming_flags: u8,
}

impl HostQueue {
    /// A queue that begins with ICReq.
    ///
    /// # Panics
    /// If `config` is outside of what its fields document.
    pub fn new(config: HostConfig) -> HostQueue {
        assert!((2..=ENTRIES_MAX).contains(&config.entries), "{} entries", config.entries);
        assert!(config.hpda <= ALIGN_MAX && config.maxr2t >= 1, "HPDA or MAXR2T out of range");
        let depth = config.entries - 1;
        let mut queue = HostQueue {
            config,
            fabrics_in_capsule: IN_CAPSULE_ADMIN,
            conn: Connection::new(Role::Host),
            slots: vec![HostSlot::default(); usize::from(depth)],
            free: (0..depth).rev().collect(),
            slot_bits: u32::from(depth).next_power_of_two().ilog2(),
            flow_control: true,
            head: 0,
            tail: 0,
            incoming: 0,
            incoming_flags: 0,
        };
        queue.conn.events.reserve(usize::from(depth) + 2);
        queue.set_in_capsule(config.in_capsule);
        let dgst = Params {
            header_digest: config.header_digest,
            data_digest: config.data_digest,
            ..Params::default()
        };
        queue.conn.tx.header(&IcReq::new(config.hpda, dgst.dgst(), config.maxr2t - 1), false, 0);
        queue
    }

    /// The controller takes this many bytes in capsule: `IOCCSZ * 16 - 64`
    /// from Identify Controller, for I/O queues.
    pub fn set_in_capsule(&mut self, bytes: u32) {
        self.config.in_capsule = bytes.min(DATA_MAX);
    }

    /// The controller takes only queues of this many entries: fewer than were
    /// configured, before any command was submitted.
    ///
    /// # Panics
    /// If commands are outstanding, or fewer than two entries are left.
    pub fn limit_entries(&mut self, entries: u16) {
        if entries >= self.config.entries {
            return;
        }
        assert!(entries >= 2 && self.outstanding() == 0 && self.tail == 0, "a queue in use");
        self.config.entries = entries;
        self.slots.truncate(usize::from(entries - 1));
        self.free = (0..entries - 1).rev().collect();
    }

    /// Fabrics commands carry at most this many bytes in capsule, instead of [`IN_CAPSULE_ADMIN`]:
    /// for controllers that accept less than the specification requires.
    pub fn set_fabrics_in_capsule(&mut self, bytes: u32) {
        self.fabrics_in_capsule = bytes.min(DATA_MAX);
    }

    /// Commands that can be submitted now.
    pub fn room(&self) -> usize {
        if self.conn.state != ConnectionState::Ready {
            return 0;
        }
        let entries = self.config.entries;
        let used = (self.tail + entries - self.head) % entries;
        //= NVMe Base 2.1, Submission Queue Flow Control: the tail never catches up with the head that SQHD tells
        let ahead = if self.flow_control { usize::from(entries - 1 - used) } else { usize::MAX };
        self.free.len().min(ahead)
    }

    /// Commands submitted and not reported as complete.
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The command identifier of the command in `slot` (for Abort).
    pub fn cid(&self, slot: u16) -> u16 {
        self.slots[usize::from(slot)].cid
    }

    /// Queues a command; gives the slot that names it. Its identifier and SGL are filled in here.
    /// Data of a write goes into the capsule if it fits, otherwise it is sent when the controller
    /// requests it.
    #[inline]
    pub fn submit(&mut self, sqe: Sqe, data: HostData) -> Result<u16, SubmitError> {
        match self.conn.state {
            ConnectionState::Connecting => return Err(SubmitError::NotReady),
            ConnectionState::Closed => return Err(SubmitError::Closed),
            ConnectionState::Ready => {}
        }
        if self.room() == 0 {
            return Err(SubmitError::Full);
        }
        let Some(slot) = self.free.pop() else { return Err(SubmitError::Full) };
        self.tail = if self.tail + 1 == self.config.entries { 0 } else { self.tail + 1 };
        let cid = self.next_cid(slot);
        let (sgl, in_capsule, data) = match data {
            HostData::None | HostData::Write { len: 0 } | HostData::Read { len: 0 } => {
                (Sgl::none(), 0, SlotData::None)
            }
            HostData::Read { len } => (Sgl::transport(len), 0, SlotData::Read { len }),
            HostData::Write { len } if len <= self.in_capsule_of(&sqe) => {
                (Sgl::in_capsule(0, len), len, SlotData::InCapsule)
            }
            HostData::Write { len } => (Sgl::transport(len), 0, SlotData::Write { len }),
        };
        let s = &mut self.slots[usize::from(slot)];
        *s = HostSlot {
            cid,
            live: true,
            data,
            sending: in_capsule > 0,
            last_queued: in_capsule > 0,
            ..HostSlot::default()
        };
        let format = self.conn.params.to_controller();
        let (common, pad) = CommonHeader::build(PduType::CapsuleCmd, 0, in_capsule, format);
        let capsule = CapsuleCmd { common, sqe: sqe.with_cid(cid).with_sgl(sgl).to_bytes() };
        self.conn.tx.header(&capsule, format.header_digest, pad);
        if in_capsule > 0 {
            self.conn.tx.payload(slot, 0, in_capsule, true, format.data_digest);
        }
        Ok(slot)
    }

    //= NVMe-TCP 1.1, Capsules: Fabrics commands carry up to 8192 bytes on every queue, whatever IOCCSZ says
    #[inline]
    fn in_capsule_of(&self, sqe: &Sqe) -> u32 {
        if is_fabrics(sqe.opcode) { self.fabrics_in_capsule } else { self.config.in_capsule }
    }

    /// A new identifier for the slot: the slot, and above it a number that
    /// changes with every use, so that a late answer to an earlier use is
    /// not taken for one to this.
    #[inline]
    fn next_cid(&self, slot: u16) -> u16 {
        let next = |cid: u16| (cid.wrapping_add(1 << self.slot_bits) & !self.slot_mask()) | slot;
        let cid = next(self.slots[usize::from(slot)].cid);
        //= NVMe Base 2.1, Command Identifier: FFFFh is not used, since the Error Information log has it for "none"
        if cid == 0xFFFF { next(cid) } else { cid }
    }

    fn slot_mask(&self) -> u16 {
        (1 << self.slot_bits) - 1
    }

    /// The slot of the outstanding command with this identifier.
    #[inline]
    fn find(&self, cid: u16) -> Option<u16> {
        let slot = cid & self.slot_mask();
        let s = self.slots.get(usize::from(slot))?;
        (s.live && s.cid == cid).then_some(slot)
    }

    /// The next event. The slot of a command is free once its completion was
    /// taken here, and no earlier: what the driver keeps by slot is that of the
    /// command until then, however long it takes to ask.
    pub fn poll_event(&mut self) -> Option<HostEvent> {
        let event = self.conn.events.pop_front();
        if let Some(HostEvent::Completion { slot, .. }) = event {
            self.free.push(slot);
        }
        event
    }

    fn response(&mut self) -> Result<(), Fault> {
        let resp: CapsuleResp = self.conn.rx.header()?;
        let cqe: Cqe = zerocopy::transmute!(resp.cqe);
        //= NVMe-TCP 1.1, CapsuleResp PDU: it answers a command that is outstanding
        let slot = self.find(cqe.cid()).filter(|&slot| !self.slots[usize::from(slot)].answered);
        let Some(slot) = slot else {
            return Err(Fault::field(field::RESP_CID, "response to no outstanding command"));
        };
        let s = &self.slots[usize::from(slot)];
        if cqe.status().is_success() && s.write_left() > 0 {
            return Err(Fault::sequence("success for a write whose data was not asked for"));
        }
        self.advance_head(cqe.sqhd())?;
        self.finish(slot, cqe);
        Ok(())
    }

    fn advance_head(&mut self, sqhd: u16) -> Result<(), Fault> {
        if !self.flow_control {
            return Ok(());
        }
        //= NVMe Base 2.1, Connect Response: FFFFh for SQHD grants to do without flow control
        if sqhd == 0xFFFF && self.config.no_flow_control {
            self.flow_control = false;
            return Ok(());
        }
        //= NVMe Base 2.1, Completion Queue Entry: SQHD is an index of the submission queue
        if sqhd >= self.config.entries {
            const SQHD: u32 = 16;
            return Err(Fault::field(SQHD, "SQHD is not within the queue"));
        }
        self.head = sqhd;
        Ok(())
    }
}

impl EndpointSide for HostQueue {
    type Event = HostEvent;

    #[inline]
    fn connection(&self) -> &Connection<HostEvent> {
        &self.conn
    }

    #[inline]
    fn connection_mut(&mut self) -> &mut Connection<HostEvent> {
        &mut self.conn
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.conn.tx.backlogged(BACKLOG_MAX)
    }

    fn step(&mut self, step: StreamStep) -> Result<(), Fault> {
        match step {
            StreamStep::Header(PduType::CapsuleResp) => self.response(),
            StreamStep::Header(PduType::C2HData) => self.c2h_data(),
            StreamStep::Header(PduType::R2T) => self.r2t(),
            StreamStep::Header(PduType::IcResp) => self.ic_resp(),
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
        if let Some(cqe) = s.cqe.take()
            && !self.conn.is_closed()
        {
            self.report(slot, cqe);
        }
    }
}
