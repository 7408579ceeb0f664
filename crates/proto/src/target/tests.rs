//! Violations of the protocol by a host, and the target's response to each.

use super::*;
use crate::pair::{Answers, TargetEnd};
use crate::transport::{CloseReason, Endpoint, Want};
use longhaul_wire::command::Sgl;
use longhaul_wire::digest::{append_header_digest, crc32c};
use longhaul_wire::pdu::{DataPdu, Fes, Format, IcReq, IcResp, TERM_REQ_LEN, TermReq};
use zerocopy::{FromBytes, IntoBytes};

mod flow;

const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const FLUSH: u8 = 0x00;

const LIMITS: QueueLimits = QueueLimits { entries: 4, in_capsule: 4096, flow_control: true };

struct TargetBench {
    end: TargetEnd,
    format: Format,
}

impl TargetBench {
    fn unconnected(config: TargetConfig) -> TargetBench {
        let end = TargetEnd::new(TargetQueue::new(config), LIMITS, Answers::ByHand, 1 << 20, 1);
        TargetBench { end, format: Format::default() }
    }

    fn with(config: TargetConfig, dgst: u8) -> TargetBench {
        let mut bench = TargetBench::unconnected(config);
        bench.end.receive(IcReq::new(0, dgst, 0).as_bytes());
        let resp = bench.end.transmit();
        assert_eq!(IcResp::ref_from_bytes(&resp).expect("ICResp").dgst, dgst);
        bench.format = bench.end.queue.params().to_controller();
        bench
    }

    fn new() -> TargetBench {
        TargetBench::with(TargetConfig { maxh2cdata: 4096, ..TargetConfig::default() }, 0)
    }

    /// A PDU that is right, whose common header then is changed.
    fn pdu(
        &self,
        pdu_type: PduType,
        flags: u8,
        rest: &[u8],
        data: &[u8],
        change: impl Fn(&mut CommonHeader),
    ) -> Vec<u8> {
        let (mut common, pad) = CommonHeader::build(pdu_type, flags, data.len() as u32, self.format);
        change(&mut common);
        let mut out = common.as_bytes().to_vec();
        out.extend(rest);
        if self.format.header_digest {
            append_header_digest(&mut out, 0);
        }
        out.extend(vec![0; pad]);
        out.extend(data);
        if self.format.data_digest && !data.is_empty() {
            out.extend(crc32c(data).to_le_bytes());
        }
        out
    }

    fn capsule(&self, sqe: Sqe, data: &[u8]) -> Vec<u8> {
        self.pdu(PduType::CapsuleCmd, 0, &sqe.to_bytes(), data, |_| {})
    }

    fn h2c(&self, cid: u16, ttag: u16, offset: u32, data: &[u8], last: bool) -> Vec<u8> {
        self.h2c_len(cid, ttag, offset, data.len() as u32, data, last)
    }

    fn h2c_len(&self, cid: u16, ttag: u16, offset: u32, len: u32, data: &[u8], last: bool) -> Vec<u8> {
        let (common, _) = CommonHeader::build(PduType::H2CData, 0, 0, self.format);
        let header = DataPdu::new(common, cid, ttag, offset, len);
        let bits = if last { pdu::flags::LAST_PDU } else { 0 };
        self.pdu(PduType::H2CData, bits, &header.as_bytes()[8..], data, |_| {})
    }

    /// A write of 8192 bytes that has been asked for: its slot and TTAG.
    fn granted(&mut self, cid: u16) -> (u16, u16) {
        let sqe = Sqe::new(WRITE).with_cid(cid).with_sgl(Sgl::transport(8192));
        self.end.receive(&self.capsule(sqe, &[]));
        let command = self.end.pending.pop().expect("the write");
        assert_eq!(command.data, CommandData::HostBuffer { len: 8192 });
        self.end.execute(command);
        let out = self.end.transmit();
        let r2t = DataPdu::ref_from_bytes(&out[..24]).expect("R2T");
        assert_eq!((r2t.common.pdu_type, r2t.cccid.get()), (PduType::R2T as u8, cid));
        assert_eq!((r2t.offset.get(), r2t.length.get()), (0, 8192));
        (command.slot, r2t.ttag.get())
    }

    /// The one response that is to be sent.
    fn response(&mut self) -> Cqe {
        let out = self.end.transmit();
        let header = if self.format.header_digest { 28 } else { 24 };
        assert_eq!((out.len(), out[0]), (header, PduType::CapsuleResp as u8), "a response: {out:02x?}");
        Cqe::read(&out[8..]).expect("an entry")
    }

    /// `bad` ends the connection, and the host gets this C2HTermReq.
    #[track_caller]
    fn refused(&mut self, bad: &[u8], fes: Fes, fei: u32) {
        self.end.receive(bad);
        let Some(CloseReason::Fault(fault)) = self.end.closed else {
            panic!("not refused: {:?}", self.end.closed)
        };
        assert_eq!((fault.fes, fault.fei), (fes, fei), "{fault}");
        let out = self.end.transmit();
        let (term, quoted) = TermReq::ref_from_prefix(&out).expect("C2HTermReq");
        assert_eq!((term.common.pdu_type, term.common.hlen), (3, TERM_REQ_LEN as u8));
        assert_eq!(term.common.plen.get() as usize, out.len());
        assert_eq!((term.fes.get(), term.fei.get()), (fes as u16, fei));
        assert!(quoted.len() >= 8 && quoted.len() <= 128 && bad.starts_with(quoted), "{quoted:02x?}");
        // It was the last thing that happened.
        assert_eq!(self.end.queue.handle(bad), 0);
        assert_eq!(self.end.queue.want(), Want::Nothing);
        assert!(self.end.transmit().is_empty());
    }
}

//= test: NVMe-TCP 1.1, Connection Establishment
#[test]
fn pdus_out_of_turn() {
    let cmd = TargetBench::new().capsule(Sqe::new(FLUSH), &[]);
    TargetBench::unconnected(TargetConfig::default()).refused(&cmd, Fes::SequenceError, 0);
    TargetBench::new().refused(IcReq::new(0, 0, 0).as_bytes(), Fes::SequenceError, 0);
}

//= test: NVMe-TCP 1.1, PDU Common Header
#[test]
fn types_that_are_unknown_or_of_the_wrong_direction() {
    for code in [0x01, 0x03, 0x05, 0x07, 0x08, 0x09, 0x0a, 0x80, 0xff] {
        let mut bad = TargetBench::new().capsule(Sqe::new(FLUSH), &[]);
        bad[0] = code;
        TargetBench::new().refused(&bad, Fes::InvalidHeaderField, 0);
    }
}

//= test: NVMe-TCP 1.1, ICReq PDU
#[test]
fn icreqs_that_are_not_valid() {
    let cases: [(usize, u8, Fes, u32); 6] = [
        (8, 1, Fes::UnsupportedParameter, 8),
        (9, 1, Fes::UnsupportedParameter, 8),
        (10, 32, Fes::InvalidHeaderField, 10),
        (2, 127, Fes::InvalidHeaderField, 2),
        (4, 127, Fes::InvalidHeaderField, 4),
        (7, 1, Fes::InvalidHeaderField, 4),
    ];
    for (at, value, fes, fei) in cases {
        let mut bad = IcReq::new(0, 0, 0).as_bytes().to_vec();
        bad[at] = value;
        TargetBench::unconnected(TargetConfig::default()).refused(&bad, fes, fei);
    }
}

//= test: NVMe-TCP 1.1, ICResp PDU
#[test]
fn digests_are_granted_only_where_both_want_them() {
    for (offer, ask) in (0..4u8).flat_map(|o| (0..4u8).map(move |a| (o, a))) {
        let config = TargetConfig {
            header_digest: offer & 1 != 0,
            data_digest: offer & 2 != 0,
            cpda: 3,
            ..TargetConfig::default()
        };
        let mut bench = TargetBench::unconnected(config);
        bench.end.receive(IcReq::new(5, ask, 6).as_bytes());
        let out = bench.end.transmit();
        let resp = IcResp::ref_from_bytes(&out).expect("ICResp");
        assert_eq!((resp.dgst, resp.cpda, resp.maxh2cdata.get()), (offer & ask, 3, config.maxh2cdata));
        let params = bench.end.queue.params();
        assert_eq!((params.hpda, params.maxr2t), (5, 7));
    }
}

//= test: NVMe-TCP 1.1, PDU Header Digest
#[test]
fn header_digests() {
    let good = TargetBench::with(TargetConfig::default(), 3).capsule(Sqe::new(FLUSH), &[]);
    for bit in [8 * 8, 8 * 40 + 3, 8 * 71 + 7, 8 * 72] {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let received = u32::from_le_bytes(bad[72..76].try_into().expect("four bytes"));
        TargetBench::with(TargetConfig::default(), 3).refused(&bad, Fes::HeaderDigestError, received);
    }
    let mut bad = good;
    bad[1] = 0;
    TargetBench::with(TargetConfig::default(), 3).refused(&bad, Fes::InvalidHeaderField, 1);
    let mut bad = TargetBench::new().capsule(Sqe::new(FLUSH), &[]);
    bad[1] = 1;
    TargetBench::new().refused(&bad, Fes::InvalidHeaderField, 1);
}

//= test: NVMe-TCP 1.1, PDU Data Offset
//= test: NVMe-TCP 1.1, CapsuleCmd PDU
#[test]
fn capsules_whose_lengths_are_wrong() {
    let sqe = Sqe::new(WRITE).with_sgl(Sgl::in_capsule(0, 64)).to_bytes();
    let bench = || TargetBench::with(TargetConfig { cpda: 1, ..TargetConfig::default() }, 0);
    let bad =
        |change: &dyn Fn(&mut CommonHeader)| bench().pdu(PduType::CapsuleCmd, 0, &sqe, &[0; 64], change);
    bench().refused(&bad(&|h| h.hlen = 24), Fes::InvalidHeaderField, 2);
    bench().refused(&bad(&|h| h.pdo = 71), Fes::InvalidHeaderField, 3);
    bench().refused(&bad(&|h| h.pdo = 76), Fes::InvalidHeaderField, 3);
    bench().refused(&bad(&|h| h.plen = 71.into()), Fes::InvalidHeaderField, 4);
    bench().refused(&bad(&|h| h.plen = 0.into()), Fes::InvalidHeaderField, 4);
    let too_much = 72 + LIMITS.in_capsule + 1;
    bench().refused(&bad(&|h| h.plen = too_much.into()), Fes::InvalidHeaderField, 4);
    bench().refused(&bad(&|h| h.plen = u32::MAX.into()), Fes::InvalidHeaderField, 4);
}

//= test: NVMe-TCP 1.1, H2CData PDU
//= test: NVMe-TCP 1.1, ICResp PDU
#[test]
fn data_that_was_not_asked_for() {
    let field = Fes::InvalidHeaderField;
    type Make<'a> = &'a dyn Fn(&TargetBench, u16) -> Vec<u8>;
    let cases: [(Make<'_>, Fes, u32); 12] = [
        (&|b, t| b.h2c(7, t + 1, 0, &[0; 4096], false), field, 10),
        (&|b, _| b.h2c(7, 0xffff, 0, &[0; 4096], false), field, 10),
        (&|b, t| b.h2c(8, t, 0, &[0; 4096], false), field, 8),
        (&|b, t| b.h2c(7, t, 4, &[0; 4096], false), Fes::DataOutOfRange, 0),
        (&|b, t| b.h2c(7, t, 4096, &[0; 4096], true), Fes::DataOutOfRange, 0),
        (&|b, t| b.h2c(7, t, u32::MAX, &[0; 4096], true), Fes::DataOutOfRange, 0),
        (&|b, t| b.h2c(7, t, 0, &[0; 4100], false), Fes::LimitExceeded, 0),
        (&|b, t| b.h2c(7, t, 0, &[0; 4096], true), field, 1),
        (&|b, t| b.h2c_len(7, t, 0, 4092, &[0; 4096], false), field, 16),
        (&|b, t| b.h2c_len(7, t, 0, 4096, &[], false), field, 16),
        (&|b, t| b.h2c_len(7, t, 0, 0, &[0; 4], false), field, 16),
        (&|b, t| b.h2c_len(7, t, 0, u32::MAX, &[0; 4], false), field, 16),
    ];
    for (make, fes, fei) in cases {
        let mut bench = TargetBench::new();
        let (_, ttag) = bench.granted(7);
        let bad = make(&bench, ttag);
        bench.refused(&bad, fes, fei);
    }
}

#[test]
fn data_behind_the_end_and_with_last_missing() {
    let mut bench = TargetBench::new();
    let (_, ttag) = bench.granted(7);
    bench.end.receive(&bench.h2c(7, ttag, 0, &[0; 4096], false));
    let bad = bench.h2c(7, ttag, 4096, &[0; 4096], false);
    bench.refused(&bad, Fes::InvalidHeaderField, 1);

    let mut bench = TargetBench::new();
    let (slot, ttag) = bench.granted(7);
    bench.end.receive(&bench.h2c(7, ttag, 0, &[1; 4096], false));
    bench.end.receive(&bench.h2c(7, ttag, 4096, &[2; 4096], true));
    assert_eq!(bench.end.complete, [(slot, Ok(()))]);
    let bad = bench.h2c(7, ttag, 4096, &[2; 4096], true);
    bench.refused(&bad, Fes::InvalidHeaderField, 10);
}

//= test: NVMe Base 2.1, Submission Queue Flow Control
#[test]
fn more_commands_than_entries() {
    let mut bench = TargetBench::new();
    for cid in 0..LIMITS.entries {
        bench.end.receive(&bench.capsule(Sqe::new(FLUSH).with_cid(cid), &[]));
    }
    assert_eq!((bench.end.pending.len(), bench.end.closed), (4, None));
    let bad = bench.capsule(Sqe::new(FLUSH).with_cid(99), &[]);
    bench.refused(&bad, Fes::SequenceError, 0);
}
