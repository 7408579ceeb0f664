//! Data in both directions, and the end of commands.

use longhaul_wire::completion::{Cqe, Status};
use longhaul_wire::pdu::{CommonHeader, DATA_MAX, DataPdu, PduType, field, flags};

use super::slot::SlotData;
use super::{HostEvent, HostQueue};
use crate::transport::{ConnectionState, Fault};

impl HostQueue {
    /// The controller has completed the command.
    #[inline]
    pub(super) fn finish(&mut self, slot: u16, cqe: Cqe) {
        let s = &mut self.slots[usize::from(slot)];
        s.answered = true;
        if !s.sending {
            return self.report(slot, cqe);
        }
        s.cqe = Some(cqe);
        if !s.last_queued {
            // The controller has aborted the rest; the driver gets the event once queued data has
            // been sent.
            s.last_queued = true;
            self.conn.tx.payload(slot, 0, 0, true, false);
        }
    }

    #[inline]
    pub(super) fn report(&mut self, slot: u16, cqe: Cqe) {
        let s = &mut self.slots[usize::from(slot)];
        s.live = false;
        let received = s.received();
        //= NVMe-TCP 1.1, PDU Data Digest: a mismatch fails the command with Transient Transport Error
        let cqe = if s.digest_error && cqe.status().is_success() {
            Cqe::new(s.cid, Status::TRANSIENT_TRANSPORT)
        } else {
            cqe
        };
        self.conn.events.push_back(HostEvent::Completion { slot, cqe, received });
    }

    pub(super) fn c2h_data(&mut self) -> Result<(), Fault> {
        let data: DataPdu = self.conn.rx.header()?;
        let (offset, len) = (data.offset.get(), data.length.get());
        let bits = self.conn.rx.flags();
        //= NVMe-TCP 1.1, C2HData PDU: CCCID is that of an outstanding command
        let Some(slot) = self.find(data.cccid.get()).filter(|&s| !self.slots[usize::from(s)].answered) else {
            return Err(Fault::field(field::CCCID, "data for no outstanding command"));
        };
        let s = &mut self.slots[usize::from(slot)];
        let SlotData::Read { len: asked } = s.data else {
            return Err(Fault::field(field::CCCID, "data for a command that does not read"));
        };
        if s.last_seen {
            return Err(Fault::sequence("data behind LAST_PDU"));
        }
        //= NVMe-TCP 1.1, C2HData PDU: DATAL is the length of the data that the PDU carries
        if len == 0 || self.conn.rx.layout().data != len {
            return Err(Fault::field(field::LENGTH, "DATAL is 0 or does not fit PLEN"));
        }
        //= NVMe-TCP 1.1, C2HData PDU: data of a command comes in order
        if offset != s.done {
            return Err(Fault::field(field::OFFSET, "data is out of order"));
        }
        //= NVMe-TCP 1.1, C2HData PDU: data lies within what the command asked for
        if len > asked - s.done {
            return Err(Fault::range("more data than the command asked for"));
        }
        //= NVMe-TCP 1.1, C2HData PDU: SUCCESS comes only with LAST_PDU
        if bits & flags::SUCCESS != 0 && bits & flags::LAST_PDU == 0 {
            return Err(Fault::field(field::FLAGS, "SUCCESS without LAST_PDU"));
        }
        s.last_seen = bits & flags::LAST_PDU != 0;
        (self.incoming, self.incoming_flags) = (slot, bits);
        self.conn.rx.place(slot, offset);
        Ok(())
    }

    pub(super) fn data_end(&mut self, digest_ok: bool) {
        let slot = self.incoming;
        let s = &mut self.slots[usize::from(slot)];
        s.done += self.conn.rx.layout().data;
        s.digest_error |= !digest_ok;
        if self.incoming_flags & flags::SUCCESS != 0 {
            let cqe = Cqe::new(s.cid, Status::SUCCESS);
            if self.flow_control {
                // Without a response there is no SQHD, but an answered command shows that its entry
                // was taken.
                self.head = (self.head + 1) % self.config.entries;
            }
            self.finish(slot, cqe);
        }
    }

    pub(super) fn r2t(&mut self) -> Result<(), Fault> {
        let r2t: DataPdu = self.conn.rx.header()?;
        let (ttag, offset, len) = (r2t.ttag.get(), r2t.offset.get(), r2t.length.get());
        //= NVMe-TCP 1.1, R2T PDU: CCCID is that of an outstanding command
        let Some(slot) = self.find(r2t.cccid.get()).filter(|&s| !self.slots[usize::from(s)].answered) else {
            return Err(Fault::field(field::CCCID, "R2T for no outstanding command"));
        };
        let taken = self.conn.tx.taken();
        let s = &mut self.slots[usize::from(slot)];
        let SlotData::Write { .. } = s.data else {
            return Err(Fault::field(field::CCCID, "R2T for a command whose data is not asked for"));
        };
        if len == 0 {
            return Err(Fault::field(field::LENGTH, "R2T for no data"));
        }
        //= NVMe-TCP 1.1, R2T PDU: data of a command is asked for in order, and once
        if offset != s.done {
            return Err(Fault::field(field::OFFSET, "R2T is out of order or overlaps an earlier one"));
        }
        //= NVMe-TCP 1.1, R2T PDU: it lies within the data of the command
        if len > s.write_left() {
            return Err(Fault::range("R2T beyond the data of the command"));
        }
        if s.r2t_batch != taken {
            (s.r2t_batch, s.r2ts) = (taken, 0);
        }
        s.r2ts += 1;
        //= NVMe-TCP 1.1, ICReq PDU: no more R2Ts for a command than MAXR2T before their data was sent
        if s.r2ts > self.conn.params.maxr2t {
            return Err(Fault::limit("more R2Ts for a command than MAXR2T"));
        }
        self.h2c_data(slot, ttag, offset, len);
        Ok(())
    }

    /// Queues the data that an R2T asked for.
    fn h2c_data(&mut self, slot: u16, ttag: u16, offset: u32, len: u32) {
        debug_assert_eq!(self.conn.state, ConnectionState::Ready);
        let format = self.conn.params.to_controller();
        let s = &mut self.slots[usize::from(slot)];
        s.done += len;
        s.sending = true;
        s.last_queued = s.write_left() == 0;
        let (cid, last) = (s.cid, s.last_queued);
        let (mut at, end) = (offset, offset + len);
        while at < end {
            //= NVMe-TCP 1.1, ICResp PDU: one H2CData PDU carries at most MAXH2CDATA bytes
            let n = self.conn.params.maxh2cdata.min(DATA_MAX).min(end - at);
            let is_last = at + n == end;
            let bits = if is_last { flags::LAST_PDU } else { 0 };
            let (common, pad) = CommonHeader::build(PduType::H2CData, bits, n, format);
            self.conn.tx.header(&DataPdu::new(common, cid, ttag, at, n), format.header_digest, pad);
            self.conn.tx.payload(slot, at, n, is_last && last, format.data_digest);
            at += n;
        }
    }
}
