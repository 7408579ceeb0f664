//! Violations of the protocol by a controller, and the host's response to each.

use super::*;
use crate::pair::HostEnd;
use crate::transport::{Batch, CloseReason, Endpoint, Want};
use longhaul_wire::completion::Status;
use longhaul_wire::digest::{append_header_digest, crc32c};
use longhaul_wire::pdu::{DataPdu, Fes, Format, IcResp, TERM_REQ_LEN, TermReq, flags};
use zerocopy::{FromBytes, IntoBytes};

const FIELD: Fes = Fes::InvalidHeaderField;

struct HostBench {
    end: HostEnd,
    format: Format,
}

impl HostBench {
    fn unconnected(config: HostConfig) -> HostBench {
        let mut end = HostEnd::new(HostQueue::new(config), 1);
        assert_eq!(IcReq::ref_from_bytes(&end.transmit()).expect("ICReq").hpda, config.hpda);
        HostBench { end, format: Format::default() }
    }

    fn with(config: HostConfig) -> HostBench {
        let mut bench = HostBench::unconnected(config);
        let dgst = Params {
            header_digest: config.header_digest,
            data_digest: config.data_digest,
            ..Params::default()
        };
        bench.end.receive(IcResp::new(0, dgst.dgst(), 4096).as_bytes());
        assert!(bench.end.ready);
        bench.format = bench.end.queue.params().to_host();
        bench
    }

    fn new() -> HostBench {
        HostBench::with(HostConfig { entries: 4, ..HostConfig::default() })
    }

    fn pdu(&self, pdu_type: PduType, flags: u8, rest: &[u8], data: &[u8]) -> Vec<u8> {
        let (common, pad) = CommonHeader::build(pdu_type, flags, data.len() as u32, self.format);
        let mut out = [common.as_bytes(), rest].concat();
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

    fn resp(&self, cqe: Cqe) -> Vec<u8> {
        self.pdu(PduType::CapsuleResp, 0, &cqe.to_bytes(), &[])
    }

    fn c2h(&self, cid: u16, offset: u32, data: &[u8], bits: u8) -> Vec<u8> {
        self.c2h_len(cid, offset, data.len() as u32, data, bits)
    }

    fn c2h_len(&self, cid: u16, offset: u32, len: u32, data: &[u8], bits: u8) -> Vec<u8> {
        let header = DataPdu::new(IcReq::new(0, 0, 0).common, cid, 0, offset, len);
        self.pdu(PduType::C2HData, bits, &header.as_bytes()[8..], data)
    }

    fn r2t(&self, cid: u16, ttag: u16, offset: u32, len: u32) -> Vec<u8> {
        let header = DataPdu::new(IcReq::new(0, 0, 0).common, cid, ttag, offset, len);
        self.pdu(PduType::R2T, 0, &header.as_bytes()[8..], &[])
    }

    /// A read of 8192 bytes: its CID.
    fn read(&mut self) -> u16 {
        let slot = self.end.read(0, 8192).expect("room");
        self.end.transmit();
        self.end.queue.cid(slot)
    }

    /// A write of 16384 bytes that is to be asked for: its CID.
    fn write(&mut self) -> u16 {
        let slot = self.end.write(0, vec![3; 16384]).expect("room");
        assert_eq!(self.end.transmit().len() as u32, 72 + 4 * u32::from(self.format.header_digest));
        self.end.queue.cid(slot)
    }

    /// `bad` ends the connection, and the controller gets this H2CTermReq.
    #[track_caller]
    fn refused(&mut self, bad: &[u8], fes: Fes, fei: u32) {
        self.end.receive(bad);
        let Some(CloseReason::Fault(fault)) = self.end.closed else {
            panic!("not refused: {:?}", self.end.closed)
        };
        assert_eq!((fault.fes, fault.fei), (fes, fei), "{fault}");
        let out = self.end.transmit();
        // Data for earlier, valid R2Ts may come before it.
        let at = out.len() - (TERM_REQ_LEN + quoted_len(&out));
        let (term, quoted) = TermReq::ref_from_prefix(&out[at..]).expect("H2CTermReq");
        assert_eq!((term.common.pdu_type, term.common.plen.get() as usize), (2, out.len() - at));
        assert_eq!((term.fes.get(), term.fei.get()), (fes as u16, fei));
        assert!(quoted.len() >= 8 && bad.windows(quoted.len()).any(|w| w == quoted), "{quoted:02x?}");
        assert_eq!(self.end.queue.handle(bad), 0);
        assert_eq!(self.end.queue.want(), Want::Nothing);
        assert_eq!(self.end.queue.submit(Sqe::new(0), HostData::None), Err(SubmitError::Closed));
        assert!(self.end.transmit().is_empty());
    }
}

/// How much the TermReq at the end of `out` quotes.
fn quoted_len(out: &[u8]) -> usize {
    let is_term = |n: &usize| {
        let at = out.len().checked_sub(TERM_REQ_LEN + n);
        at.is_some_and(|at| out[at..at + 8] == [2, 0, 24, 0, (TERM_REQ_LEN + n) as u8, 0, 0, 0])
    };
    (0..=128).find(is_term).expect("an H2CTermReq at the end")
}

//= test: NVMe-TCP 1.1, ICResp PDU
#[test]
fn icresps_that_are_not_valid() {
    let cases: [(usize, u8, Fes, u32); 8] = [
        (8, 1, Fes::UnsupportedParameter, 8),
        (10, 32, FIELD, 10),
        (11, 1, FIELD, 11),
        (11, 2, FIELD, 11),
        (12, 1, FIELD, 12),
        (13, 0, FIELD, 12),
        (2, 24, FIELD, 2),
        (4, 24, FIELD, 4),
    ];
    for (at, value, fes, fei) in cases {
        let mut bad = IcResp::new(0, 0, 4096).as_bytes().to_vec();
        bad[at] = value;
        HostBench::unconnected(HostConfig::default()).refused(&bad, fes, fei);
    }
}

//= test: NVMe-TCP 1.1, Connection Establishment
//= test: NVMe-TCP 1.1, PDU Common Header
#[test]
fn pdus_out_of_turn_and_of_the_wrong_direction() {
    let resp = HostBench::new().resp(Cqe::new(0, Status::SUCCESS));
    HostBench::unconnected(HostConfig::default()).refused(&resp, Fes::SequenceError, 0);
    HostBench::new().refused(IcResp::new(0, 0, 4096).as_bytes(), Fes::SequenceError, 0);
    for code in [0x00, 0x02, 0x04, 0x06, 0x08, 0xff] {
        let mut bad = resp.clone();
        bad[0] = code;
        HostBench::new().refused(&bad, FIELD, 0);
    }
}

//= test: NVMe-TCP 1.1, CapsuleResp PDU
#[test]
fn responses_to_nothing() {
    for cid in [0, 1, 0x1234, 0xffff] {
        let mut bench = HostBench::new();
        let live = bench.read();
        assert_ne!(live, cid);
        let bad = bench.resp(Cqe::new(cid, Status::SUCCESS));
        bench.refused(&bad, FIELD, 20);
    }
    let mut bench = HostBench::new();
    let cid = bench.read();
    let twice = bench.resp(Cqe::new(cid, Status::ABORT_REQUESTED).with_sqhd(1));
    bench.end.receive(&twice);
    assert_eq!(bench.end.done.len(), 1);
    let again = bench.read();
    assert_ne!(again, cid, "the slot is the same, the identifier is not");
    bench.refused(&twice, FIELD, 20);
}

//= test: NVMe-TCP 1.1, C2HData PDU
#[test]
fn data_that_was_not_asked_for() {
    let data = [0; 4096];
    type Make<'a> = &'a dyn Fn(&HostBench, u16) -> Vec<u8>;
    let cases: [(Make<'_>, Fes, u32); 11] = [
        (&|b, c| b.c2h(c ^ 1, 0, &data, 0), FIELD, 8),
        (&|b, _| b.c2h(0xffff, 0, &data, 0), FIELD, 8),
        (&|b, c| b.c2h(c, 4, &data, 0), FIELD, 12),
        (&|b, c| b.c2h(c, u32::MAX, &data, 0), FIELD, 12),
        (&|b, c| [b.c2h(c, 0, &data, 0), b.c2h(c, 0, &data, 0)].concat(), FIELD, 12),
        (&|b, c| b.c2h(c, 0, &[0; 8196], 0), Fes::DataOutOfRange, 0),
        (&|b, c| b.c2h_len(c, 0, 4092, &data, 0), FIELD, 16),
        (&|b, c| b.c2h_len(c, 0, 0, &data, 0), FIELD, 16),
        (&|b, c| b.c2h_len(c, 0, 4096, &[], 0), FIELD, 16),
        (&|b, c| b.c2h(c, 0, &data, flags::SUCCESS), FIELD, 1),
        (
            &|b, c| [b.c2h(c, 0, &data, flags::LAST_PDU), b.c2h(c, 4096, &data, 0)].concat(),
            Fes::SequenceError,
            0,
        ),
    ];
    for (make, fes, fei) in cases {
        let mut bench = HostBench::new();
        let cid = bench.read();
        let bad = make(&bench, cid);
        bench.refused(&bad, fes, fei);
    }
    let mut bench = HostBench::new();
    let cid = bench.write();
    let bad = bench.c2h(cid, 0, &data, 0);
    bench.refused(&bad, FIELD, 8);
}

//= test: NVMe-TCP 1.1, R2T PDU
//= test: NVMe-TCP 1.1, ICReq PDU
#[test]
fn r2ts_that_are_not_valid() {
    type Make<'a> = &'a dyn Fn(&HostBench, u16) -> Vec<u8>;
    let cases: [(Make<'_>, Fes, u32); 8] = [
        (&|b, c| b.r2t(c ^ 1, 0, 0, 16384), FIELD, 8),
        (&|b, c| b.r2t(c, 0, 0, 0), FIELD, 16),
        (&|b, c| b.r2t(c, 0, 4, 4096), FIELD, 12),
        (&|b, c| b.r2t(c, 0, 0, 16388), Fes::DataOutOfRange, 0),
        (&|b, c| b.r2t(c, 0, 0, u32::MAX), Fes::DataOutOfRange, 0),
        (&|b, c| [b.r2t(c, 0, 0, 4096), b.r2t(c, 1, 2048, 4096)].concat(), FIELD, 12),
        (&|b, c| [b.r2t(c, 0, 0, 4096), b.r2t(c, 1, 4096, 4096)].concat(), Fes::LimitExceeded, 0),
        (&|b, c| [b.r2t(c, 0, 0, 16384), b.r2t(c, 1, 16384, 1)].concat(), Fes::DataOutOfRange, 0),
    ];
    for (make, fes, fei) in cases {
        let mut bench = HostBench::new();
        let cid = bench.write();
        let bad = make(&bench, cid);
        bench.refused(&bad, fes, fei);
    }
    let mut bench = HostBench::new();
    let cid = bench.read();
    let bad = bench.r2t(cid, 0, 0, 4096);
    bench.refused(&bad, FIELD, 8);
    // In-capsule data is not asked for either.
    let slot = bench_in_capsule(&mut bench);
    let bad = bench.r2t(bench.end.queue.cid(slot), 0, 0, 512);
    bench.refused(&bad, FIELD, 8);
}

fn bench_in_capsule(bench: &mut HostBench) -> u16 {
    *bench = HostBench::new();
    let slot = bench.end.write(0, vec![1; 512]).expect("room");
    bench.end.transmit();
    slot
}

#[test]
fn r2ts_one_after_the_other_are_fine() {
    let mut bench = HostBench::new();
    let cid = bench.write();
    for n in 0..4 {
        bench.end.receive(&bench.r2t(cid, n, u32::from(n) * 4096, 4096));
        let out = bench.end.transmit();
        let (header, data) = DataPdu::ref_from_prefix(&out).expect("H2CData");
        assert_eq!((header.ttag.get(), header.offset.get()), (n, u32::from(n) * 4096));
        assert_eq!((header.common.flags, data), (flags::LAST_PDU, &[3; 4096][..]));
    }
    bench.end.receive(&bench.resp(Cqe::new(cid, Status::SUCCESS).with_sqhd(1)));
    assert_eq!((bench.end.done.len(), bench.end.closed), (1, None));
}

#[test]
fn success_without_the_data_is_a_lie() {
    let mut bench = HostBench::new();
    let cid = bench.write();
    let r2t = bench.r2t(cid, 0, 0, 4096);
    let bad = [r2t, bench.resp(Cqe::new(cid, Status::SUCCESS))].concat();
    bench.refused(&bad, Fes::SequenceError, 0);
    // An error is not: the rest is not wanted.
    let mut bench = HostBench::new();
    let cid = bench.write();
    bench.end.receive(&bench.r2t(cid, 0, 0, 4096));
    bench.end.receive(&bench.resp(Cqe::new(cid, Status::WRITE_FAULT).with_sqhd(1)));
    assert!(bench.end.done.is_empty(), "its memory is still to be sent from");
    bench.end.transmit();
    assert_eq!(bench.end.done[0].cqe.status(), Status::WRITE_FAULT);
}

#[test]
fn a_completion_waits_for_its_memory() {
    let mut bench = HostBench::new();
    let slot = bench.end.write(0, vec![1; 512]).expect("room");
    let early = bench.resp(Cqe::new(bench.end.queue.cid(slot), Status::WRITE_PROTECTED).with_sqhd(1));
    bench.end.receive(&early);
    assert!(bench.end.done.is_empty());
    assert_eq!(bench.end.queue.outstanding(), 1);
    bench.end.transmit();
    assert_eq!(bench.end.done[0].cqe.status(), Status::WRITE_PROTECTED);
    assert_eq!(bench.end.queue.outstanding(), 0);
    // A second response is wrong even while the first is held back.
    let mut bench = HostBench::new();
    bench.end.write(0, vec![1; 512]).expect("room");
    bench.refused(&[early.clone(), early].concat(), FIELD, 20);
}

//= test: NVMe Base 2.1, Command Identifier
#[test]
fn a_slot_is_not_used_again_before_its_completion_was_taken() {
    let mut bench = HostBench::new();
    let cid = bench.read();
    let queue = &mut bench.end.queue;
    let read = |queue: &mut HostQueue| queue.submit(Sqe::new(2), HostData::Read { len: 512 });
    let used: Vec<u16> = (0..2).map(|_| read(queue).expect("room")).collect();
    // The queue has seen the end of the first read; its driver has not.
    let done =
        bench.pdu(PduType::CapsuleResp, 0, &Cqe::new(cid, Status::SUCCESS).with_sqhd(3).to_bytes(), &[]);
    let queue = &mut bench.end.queue;
    assert_eq!(queue.handle(&done), done.len());
    assert_eq!((read(queue), queue.outstanding()), (Err(SubmitError::Full), 3));
    let Some(HostEvent::Completion { slot, .. }) = queue.poll_event() else { panic!("no completion") };
    assert!(!used.contains(&slot));
    assert_eq!((read(queue), queue.outstanding()), (Ok(slot), 3));
}

#[test]
fn the_controller_ends_the_connection() {
    let mut bench = HostBench::new();
    let term = TermReq::new(PduType::C2HTermReq, Fes::SequenceError, 0, 0);
    bench.end.receive(term.as_bytes());
    assert_eq!(bench.end.closed, Some(CloseReason::Terminated { fes: 2, fei: 0 }));
    assert!(bench.end.transmit().is_empty());
}

//= test: NVMe-TCP 1.1, PDU Header Digest
//= test: NVMe-TCP 1.1, PDU Data Digest
#[test]
fn digest_errors() {
    let config = HostConfig { header_digest: true, data_digest: true, entries: 4, ..HostConfig::default() };
    let mut bench = HostBench::with(config);
    let cid = bench.read();
    let mut bad = bench.c2h(cid, 0, &[1; 8192], flags::LAST_PDU | flags::SUCCESS);
    bad[1000] ^= 4;
    bench.end.receive(&bad);
    let done = bench.end.done.pop().expect("completed");
    assert_eq!((done.cqe.status(), bench.end.closed), (Status::TRANSIENT_TRANSPORT, None));

    let cid = bench.read();
    let mut bad = bench.resp(Cqe::new(cid, Status::SUCCESS));
    bad[15] ^= 4;
    let received = u32::from_le_bytes(bad[24..].try_into().expect("four bytes"));
    bench.refused(&bad, Fes::HeaderDigestError, received);
}

//= test: NVMe Base 2.1, Submission Queue Flow Control
//= test: NVMe Base 2.1, Completion Queue Entry
#[test]
fn sqhd_gives_room() {
    let mut bench = HostBench::new();
    let cids = [(); 3].map(|()| bench.read());
    assert_eq!(bench.end.read(0, 512), Err(SubmitError::Full));
    // Answered, but its entry (or those before it) may not have been taken.
    bench.end.receive(&bench.resp(Cqe::new(cids[2], Status::ABORT_REQUESTED).with_sqhd(0)));
    assert_eq!((bench.end.queue.outstanding(), bench.end.queue.room()), (2, 0));
    bench.end.receive(&bench.resp(Cqe::new(cids[1], Status::ABORT_REQUESTED).with_sqhd(3)));
    assert_eq!((bench.end.queue.outstanding(), bench.end.queue.room()), (1, 2));
    bench.read();
    bench.read();
    assert_eq!(bench.end.queue.room(), 0);
    let bad = bench.resp(Cqe::new(cids[0], Status::ABORT_REQUESTED).with_sqhd(4));
    bench.refused(&bad, FIELD, 16);
}

//= test: NVMe Base 2.1, Connect Response
#[test]
fn flow_control_ends_when_both_agree() {
    for (asked, closed) in [(true, false), (false, true)] {
        let mut bench =
            HostBench::with(HostConfig { entries: 4, no_flow_control: asked, ..HostConfig::default() });
        let cid = bench.read();
        bench.end.receive(&bench.resp(Cqe::new(cid, Status::ABORT_REQUESTED).with_sqhd(0xffff)));
        assert_eq!(bench.end.closed.is_some(), closed);
        if asked {
            for _ in 0..3 {
                bench.read();
            }
            assert_eq!(bench.end.read(0, 512), Err(SubmitError::Full));
        }
    }
}

//= test: NVMe Base 2.1, Command Identifier
#[test]
fn identifiers_differ_between_uses_and_are_never_ffff() {
    for entries in [2, 3, 4, 65, 4096] {
        let mut queue = HostQueue::new(HostConfig { entries, ..HostConfig::default() });
        queue.handle(IcResp::new(0, 0, 4096).as_bytes());
        let bench = HostBench::new();
        let (mut batch, mut before) = (Batch::default(), 0xffff);
        for _ in 0..70_000u32 {
            let slot = queue.submit(Sqe::new(0), HostData::None).expect("room");
            let cid = queue.cid(slot);
            assert!(cid != 0xffff && cid != before);
            before = cid;
            queue.poll_transmit(&mut batch);
            queue.handle(&bench.resp(Cqe::new(cid, Status::SUCCESS).with_sqhd(queue.tail)));
            while queue.poll_event().is_some() {}
        }
        assert_eq!((queue.outstanding(), queue.is_closed()), (0, false));
    }
}

#[test]
fn nothing_is_submitted_before_icresp() {
    let mut bench = HostBench::unconnected(HostConfig::default());
    assert_eq!(bench.end.read(0, 512), Err(SubmitError::NotReady));
    assert_eq!(bench.end.queue.room(), 0);
}

//= test: NVMe-TCP 1.1, Capsules
#[test]
fn fabrics_commands_carry_their_data_whatever_ioccsz_says() {
    let mut bench = HostBench::new();
    bench.end.queue.set_in_capsule(0);
    let data = HostData::Write { len: 1024 };
    bench.end.submit(Sqe::connect(1, 3, 0, 0), data, vec![0; 1024]).expect("room");
    assert_eq!(bench.end.transmit().len(), 72 + 1024);
    bench.end.submit(Sqe::new(1), data, vec![0; 1024]).expect("room");
    assert_eq!(bench.end.transmit().len(), 72);

    let mut bench = HostBench::new();
    bench.end.queue.set_fabrics_in_capsule(0);
    bench.end.submit(Sqe::connect(0, 3, 0, 0), data, vec![0; 1024]).expect("room");
    assert_eq!(bench.end.transmit().len(), 72, "but for a controller that takes none");
}
