//! Data in both directions, and the answers to commands.

use longhaul_wire::completion::{Cqe, Status};
use longhaul_wire::pdu::{CommonHeader, DataPdu, PduType, field, flags};

use super::slot::{Grant, R2T_BITS, R2T_WINDOW, TargetSlot};
use super::{Incoming, TargetEvent, TargetQueue};
use crate::transport::{ConnectionState, Deframer, Fault};

impl TargetQueue {
    fn open_mut(&mut self, slot: u16) -> &mut TargetSlot {
        let s = &mut self.slots[usize::from(slot)];
        assert!(s.open && !s.draining, "slot {slot} has no open command");
        s
    }

    /// The memory for the in-capsule data of the command is there: its data
    /// is received next.
    pub fn accept_payload(&mut self, slot: u16) {
        self.open_mut(slot);
        if self.conn.is_closed() {
            return;
        }
        let held = matches!(self.incoming, Incoming::InCapsule(s) if s == slot) && self.conn.rx.is_held();
        assert!(held, "slot {slot} has no in-capsule data that waits");
        self.conn.rx.place(slot, 0);
    }

    /// The memory for the data of a write is there: the host is asked for it.
    pub fn request_data(&mut self, slot: u16) {
        let s = self.open_mut(slot);
        assert!(s.asked == 0 && s.received == 0, "data of slot {slot} was asked for already");
        self.ask(slot);
    }

    /// Sends R2Ts as far as the host allows.
    fn ask(&mut self, slot: u16) {
        let window = R2T_WINDOW.min(self.conn.params.maxr2t as usize);
        let s = &mut self.slots[usize::from(slot)];
        //= NVMe-TCP 1.1, ICReq PDU: at most MAXR2T R2Ts are outstanding for a command
        while s.asked < s.len && self.conn.state == ConnectionState::Ready {
            let Some(k) = s.grants[..window].iter().position(|g| g.left == 0) else { break };
            let (offset, len) = (s.asked, self.config.r2t_bytes.min(s.len - s.asked));
            s.grants[k] = Grant { next: offset, left: len };
            s.asked += len;
            let (common, _) = CommonHeader::build(PduType::R2T, 0, 0, self.conn.params.to_host());
            let ttag = slot << R2T_BITS | k as u16;
            let r2t = DataPdu::new(common, s.cid, ttag, offset, len);
            self.conn.tx.header(&r2t, self.conn.params.header_digest, 0);
        }
    }

    /// Queues `len` bytes at `offset` of a read's data; `last` with the last
    /// of them. The memory stays until the piece with `last` was sent.
    pub fn send_data(&mut self, slot: u16, offset: u32, len: u32, last: bool) {
        self.c2h_data(slot, offset, len, last, 0);
    }

    /// Queues the last (or all) data of a read and its successful completion
    /// with `result` in dwords 0 and 1: without a response capsule where
    /// that is allowed.
    pub fn send_data_and_complete(&mut self, slot: u16, offset: u32, len: u32, result: u64) {
        //= NVMe-TCP 1.1, C2HData PDU: SUCCESS replaces a response that has nothing to tell: no SQHD and no result
        let success = self.config.success_flag && !self.limits.flow_control && result == 0 && len > 0;
        self.c2h_data(slot, offset, len, true, if success { flags::SUCCESS } else { 0 });
        self.answer(slot, Status::SUCCESS, result, !success);
    }

    fn c2h_data(&mut self, slot: u16, offset: u32, len: u32, last: bool, success: u8) {
        let s = self.open_mut(slot);
        assert!(!s.last_queued, "data of slot {slot} behind its last");
        let end = offset.checked_add(len).filter(|&end| end <= s.len);
        let Some(end) = end else {
            panic!("{len} bytes at {offset} are not in the {} of slot {slot}", s.len)
        };
        s.sending |= len > 0;
        s.last_queued = last;
        let (cid, sending) = (s.cid, s.sending);
        if self.conn.is_closed() {
            return;
        }
        let format = self.conn.params.to_host();
        let mut at = offset;
        while at < end {
            let n = self.config.c2h_bytes.min(end - at);
            let is_last = last && at + n == end;
            let bits = if is_last { flags::LAST_PDU | success } else { 0 };
            let (common, pad) = CommonHeader::build(PduType::C2HData, bits, n, format);
            self.conn.tx.header(&DataPdu::new(common, cid, 0, at, n), format.header_digest, pad);
            self.conn.tx.payload(slot, at, n, is_last, format.data_digest);
            at += n;
        }
        if len == 0 && last && sending {
            self.conn.tx.payload(slot, offset, 0, true, false);
        }
    }

    /// Answers a command, with `result` in dwords 0 and 1. At any time: if
    /// its data has not come yet, that is received into nothing, and the
    /// answer waits for data that R2Ts have asked for. No
    /// [`TargetEvent::DataComplete`] of this command is given any more.
    pub fn complete(&mut self, slot: u16, status: Status, result: u64) {
        let live = self.conn.state == ConnectionState::Ready;
        let s = self.open_mut(slot);
        let (outstanding, written) = (s.outstanding(), s.received > 0);
        if s.sending && !s.last_queued && live {
            s.last_queued = true;
            // The driver gets the event once the data before it has been sent.
            self.conn.tx.payload(slot, 0, 0, true, false);
        }
        if written && !self.conn.events.is_empty() {
            self.conn
                .events
                .retain(|e| !matches!(e, TargetEvent::DataComplete { slot: s, .. } if *s == slot));
        }
        match self.incoming {
            Incoming::InCapsule(current) if current == slot => {
                self.incoming = Incoming::NoCommand;
                self.conn.rx.discard();
            }
            Incoming::Granted(current, ..) if current == slot => self.conn.rx.discard(),
            _ => {}
        }
        if outstanding && live {
            //= NVMe-TCP 1.1, R2T PDU: a tag stays valid until all data that it asked for has come
            let s = &mut self.slots[usize::from(slot)];
            s.draining = true;
            s.answer = (status.to_wire(), result);
            return;
        }
        self.answer(slot, status, result, true);
    }

    #[inline]
    fn answer(&mut self, slot: u16, status: Status, result: u64, capsule: bool) {
        let s = &mut self.slots[usize::from(slot)];
        (s.open, s.draining) = (false, false);
        let (cid, sending) = (s.cid, s.sending);
        self.open -= 1;
        self.cids.remove(cid);
        if capsule {
            self.respond(Cqe::new(cid, status).with_result(result));
        }
        if !sending {
            self.release(slot);
        }
    }

    pub(super) fn h2c_data(&mut self) -> Result<(), Fault> {
        let (slot, k, len) = check_h2c(&self.conn.rx, &self.slots, self.conn.params.maxh2cdata)?;
        let s = &self.slots[usize::from(slot)];
        self.incoming = Incoming::Granted(slot, k, len);
        if s.draining {
            self.conn.rx.discard();
        } else {
            self.conn.rx.place(slot, s.grants[k].next);
        }
        Ok(())
    }

    pub(super) fn data_end(&mut self, digest_ok: bool) {
        let slot = match std::mem::replace(&mut self.incoming, Incoming::NoCommand) {
            Incoming::NoCommand => return,
            Incoming::InCapsule(slot) => {
                let s = &mut self.slots[usize::from(slot)];
                s.received = s.len;
                slot
            }
            Incoming::Granted(slot, k, len) => {
                let s = &mut self.slots[usize::from(slot)];
                s.grants[k].next += len;
                s.grants[k].left -= len;
                s.received += len;
                slot
            }
        };
        let s = &mut self.slots[usize::from(slot)];
        s.digest_error |= !digest_ok;
        if s.draining {
            if !s.outstanding() {
                let (status, result) = s.answer;
                self.answer(slot, Status::from_wire(status), result, true);
            }
        } else if s.received == s.len {
            //= NVMe-TCP 1.1, PDU Data Digest: a mismatch fails the command with Transient Transport Error
            let result = if s.digest_error { Err(Status::TRANSIENT_TRANSPORT) } else { Ok(()) };
            self.conn.events.push_back(TargetEvent::DataComplete { slot, result });
        } else {
            self.ask(slot);
        }
    }
}

/// Checks an H2CData header against the R2T that it answers; gives the slot,
/// which of its R2Ts it is, and the length of the data.
fn check_h2c(rx: &Deframer, slots: &[TargetSlot], maxh2cdata: u32) -> Result<(u16, usize, u32), Fault> {
    let data: DataPdu = rx.header()?;
    let (ttag, offset, len) = (data.ttag.get(), data.offset.get(), data.length.get());
    let (slot, k) = (ttag >> R2T_BITS, usize::from(ttag) % R2T_WINDOW);
    //= NVMe-TCP 1.1, H2CData PDU: TTAG is that of an outstanding R2T
    let granted = slots.get(usize::from(slot)).filter(|s| s.open && s.grants[k].left > 0);
    let Some(s) = granted else {
        return Err(Fault::field(field::TTAG, "TTAG is not that of an outstanding R2T"));
    };
    //= NVMe-TCP 1.1, H2CData PDU: CCCID is that of the command of the R2T
    if data.cccid.get() != s.cid {
        return Err(Fault::field(field::CCCID, "CCCID does not fit the R2T"));
    }
    if len == 0 {
        return Err(Fault::field(field::LENGTH, "H2CData without data"));
    }
    //= NVMe-TCP 1.1, H2CData PDU: DATAL is the length of the data that the PDU carries
    if rx.layout().data != len {
        return Err(Fault::field(field::LENGTH, "DATAL does not fit PLEN"));
    }
    //= NVMe-TCP 1.1, ICResp PDU: one H2CData PDU carries at most MAXH2CDATA bytes
    if len > maxh2cdata {
        return Err(Fault::limit("more data in a PDU than MAXH2CDATA"));
    }
    let grant = s.grants[k];
    //= NVMe-TCP 1.1, H2CData PDU: data comes in order, within what the R2T asked for
    if offset != grant.next || len > grant.left {
        return Err(Fault::range("data is out of order or outside of the R2T"));
    }
    //= NVMe-TCP 1.1, H2CData PDU: LAST_PDU marks the last data of an R2T and nothing else
    if (rx.flags() & flags::LAST_PDU != 0) != (len == grant.left) {
        return Err(Fault::field(field::FLAGS, "LAST_PDU is not on the last data of the R2T"));
    }
    Ok((slot, k, len))
}
