//! Data that is not right, and commands whose descriptor is not.

use crate::client::{BLOCK, Host, encode, pattern, read, write};
use crate::rig::{BLOCKS, FILE, MEM, Rig};
use longhaul_engine::EngineKind;
use longhaul_wire::command::{DsmRange, ReadWrite, Sgl, Sqe, io};
use longhaul_wire::completion::Status;
use longhaul_wire::pdu::{CommonHeader, DataPdu, Fes, Format, PduType, field, flags};
use zerocopy::IntoBytes;

/// MAXH2CDATA that the target has.
const MAXH2CDATA: u32 = 4 << 20;
/// In-capsule data of an I/O queue.
const IN_CAPSULE: u32 = 1 << 20;

/// An H2CData header with any values for its data.
fn h2c(bits: u8, cid: u16, ttag: u16, offset: u32, declared: u32, data: u32) -> Vec<u8> {
    let (common, _) = CommonHeader::build(PduType::H2CData, bits, data, Format::default());
    DataPdu::new(common, cid, ttag, offset, declared).as_bytes().to_vec()
}

//= test: NVMe-TCP 1.1, H2CData PDU
//= test: NVMe-TCP 1.1, ICResp PDU
pub fn h2cdata_without_an_r2t(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    type Make = fn(cid: u16, ttag: u16) -> Vec<u8>;
    const LEN: u32 = 2 * BLOCK as u32;
    const LAST: u8 = flags::LAST_PDU;
    let field = |at| (Fes::InvalidHeaderField, at);
    let cases: [(&str, Make, (Fes, u32)); 10] = [
        ("unknown TTAG", |cid, ttag| h2c(LAST, cid, ttag ^ 0x100, 0, LEN, LEN), field(field::TTAG)),
        ("TTAG out of range", |cid, _| h2c(LAST, cid, 0xFFFF, 0, LEN, LEN), field(field::TTAG)),
        ("another CCCID", |cid, ttag| h2c(LAST, cid ^ 1, ttag, 0, LEN, LEN), field(field::CCCID)),
        ("wrong offset", |cid, ttag| h2c(LAST, cid, ttag, 4096, LEN, LEN), (Fes::DataOutOfRange, 0)),
        ("too much", |cid, ttag| h2c(LAST, cid, ttag, 0, LEN + 4, LEN + 4), (Fes::DataOutOfRange, 0)),
        ("DATAL that is not PLEN's", |cid, ttag| h2c(LAST, cid, ttag, 0, LEN, 512), field(field::LENGTH)),
        ("no data", |cid, ttag| h2c(LAST, cid, ttag, 0, 0, 0), field(field::LENGTH)),
        ("no LAST_PDU", |cid, ttag| h2c(0, cid, ttag, 0, LEN, LEN), field(field::FLAGS)),
        ("LAST_PDU too early", |cid, ttag| h2c(LAST, cid, ttag, 0, 512, 512), field(field::FLAGS)),
        (
            "more than MAXH2CDATA",
            |cid, ttag| h2c(LAST, cid, ttag, 0, MAXH2CDATA + 4, MAXH2CDATA + 4),
            (Fes::LimitExceeded, 0),
        ),
    ];
    for nsid in [MEM, FILE] {
        for (what, make, (fes, fei)) in cases {
            let Host { admin: _admin, mut io, .. } = rig.host();
            let sqe = write(nsid, 0, LEN as usize).with_sgl(Sgl::transport(LEN)).with_cid(77);
            let capsule = io.capsule(&sqe, &[]);
            io.send(&capsule);
            let r2t = io.r2t();
            assert_eq!((r2t.cccid.get(), r2t.offset.get(), r2t.length.get()), (77, 0, LEN));
            io.send(&make(77, r2t.ttag.get()));
            io.expect_term(what, fes, fei);
            rig.check();
        }
    }
    // Data for an R2T that was answered is unsolicited, too.
    let Host { admin, mut io, .. } = rig.host();
    let data = pattern(BLOCK, 1);
    let sqe = write(MEM, 0, BLOCK).with_sgl(Sgl::transport(BLOCK as u32)).with_cid(78);
    let capsule = io.capsule(&sqe, &[]);
    io.send(&capsule);
    let ttag = io.r2t().ttag.get();
    let pdu = io.h2c(LAST, 78, ttag, 0, &data);
    io.send(&[pdu.clone(), pdu].concat());
    io.expect_term("data that came twice", Fes::InvalidHeaderField, field::TTAG);
    drop((admin, io));
    rig.finish();
}

//= test: NVMe-TCP 1.1, CapsuleCmd PDU
pub fn too_much_in_the_capsule(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let capsule = |sqe: &Sqe, len: u32| {
        let (common, _) = CommonHeader::build(PduType::CapsuleCmd, 0, len, Format::default());
        [common.as_bytes(), &sqe.with_sgl(Sgl::in_capsule(0, len)).to_bytes()].concat()
    };
    let Host { mut admin, mut io, .. } = rig.host();
    io.send(&capsule(&write(MEM, 0, BLOCK), IN_CAPSULE + 4));
    io.expect_term("an I/O queue", Fes::InvalidHeaderField, field::PLEN);
    admin.send(&capsule(&Sqe::set_features(0x81, 0, 0, false), 8192 + 4));
    admin.expect_term("an admin queue", Fes::InvalidHeaderField, field::PLEN);
    rig.check();
    let mut new = crate::client::Client::open(rig.addr, 0);
    new.send(&capsule(&Sqe::connect(0, 31, 0, 0), 8192 + 4));
    new.expect_term("a new connection", Fes::InvalidHeaderField, field::PLEN);
    rig.finish();
}

//= test: NVMe-TCP 1.1, PDU Data Digest
pub fn bad_data_digest_fails_the_command_alone(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    for digests in [2, 3] {
        let mut host = Host::new(rig.addr, 32, digests);
        for nsid in [MEM, FILE] {
            host.verify(nsid, 0, 5);
            let old = host.io.call(&read(nsid, 0, BLOCK), &[]).data;
            let new = pattern(BLOCK, 99);
            let sqe = write(nsid, 0, BLOCK).with_cid(70);
            let mut capsule = host.io.capsule(&sqe, &new);
            *capsule.last_mut().expect("a digest") ^= 0x10;
            host.io.send(&capsule);
            assert!(host.io.finish(70, &[]).status.is(Status::TRANSIENT_TRANSPORT));

            let capsule = host.io.capsule(&sqe.with_sgl(Sgl::transport(BLOCK as u32)), &[]);
            host.io.send(&capsule);
            let ttag = host.io.r2t().ttag.get();
            let mut pdu = host.io.h2c(flags::LAST_PDU, 70, ttag, 0, &new);
            let at = pdu.len() - 40;
            pdu[at] ^= 0x10;
            host.io.send(&pdu);
            assert!(host.io.finish(70, &[]).status.is(Status::TRANSIENT_TRANSPORT));

            let now = host.io.call(&read(nsid, 0, BLOCK), &[]).data;
            assert!(now == old, "damaged data is not written");
            host.verify(nsid, 0, 6);
            rig.check();
        }
    }
    rig.finish();
}

//= test: NVMe Base 2.1, SGL Data Block (offset)
//= test: NVMe Base 2.1, Data Pointer
//= test: NVMe Base 2.1, MSDBD
//= test: NVMe Base 2.1, PSDT
//= test: NVMe Base 2.1, Data SGL Length Invalid
//= test: NVMe Base 2.1, MDTS
//= test: NVMe Base 2.1, Command Identifier
//= test: NVM Command Set 1.1, LBA Out of Range
pub fn statuses_that_cost_a_command(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let mut host = rig.host();
    let block = vec![0x77; BLOCK];
    let len = BLOCK as u32;
    let mut prp = read(MEM, 0, BLOCK);
    prp.flags = 0;
    let mut fused = read(MEM, 0, BLOCK);
    fused.flags |= 1;
    let dsm = |ranges: usize| Sqe::deallocate(MEM, ranges).with_sgl(Sgl::in_capsule(0, 16));
    let far = DsmRange::new(BLOCKS, 1);
    let big = 2 << 20;
    let cases: Vec<(&str, Sqe, &[u8], Status)> = vec![
        (
            "Transport with data",
            write(MEM, 0, BLOCK).with_sgl(Sgl::transport(len)),
            &block,
            Status::DATA_SGL_LENGTH,
        ),
        ("in capsule, without data", write(MEM, 0, BLOCK), &[], Status::DATA_SGL_LENGTH),
        ("offset", write(MEM, 0, BLOCK).with_sgl(Sgl::in_capsule(4, len)), &block, Status::SGL_OFFSET),
        (
            "shorter than NLB",
            write(MEM, 0, BLOCK).with_sgl(Sgl::in_capsule(0, 512)),
            &block[..512],
            Status::DATA_SGL_LENGTH,
        ),
        (
            "longer than NLB",
            read(MEM, 0, BLOCK).with_sgl(Sgl::transport(2 * len)),
            &[],
            Status::DATA_SGL_LENGTH,
        ),
        ("no SGL", read(MEM, 0, BLOCK).with_sgl(Sgl::none()), &[], Status::DATA_SGL_LENGTH),
        ("4 GiB", read(MEM, 0, BLOCK).with_sgl(Sgl::transport(u32::MAX)), &[], Status::DATA_SGL_LENGTH),
        (
            "in capsule for a read",
            read(MEM, 0, BLOCK).with_sgl(Sgl::in_capsule(0, len)),
            &[],
            Status::SGL_TYPE,
        ),
        ("segment", write(MEM, 0, BLOCK).with_sgl(Sgl::make(0, 16, 0x20)), &[], Status::INVALID_SGL_COUNT),
        (
            "last segment",
            write(MEM, 0, BLOCK).with_sgl(Sgl::make(0, 16, 0x30)),
            &block,
            Status::INVALID_SGL_COUNT,
        ),
        ("address", read(MEM, 0, BLOCK).with_sgl(Sgl::make(0x1000, len, 0)), &[], Status::SGL_TYPE),
        ("keyed", read(MEM, 0, BLOCK).with_sgl(Sgl::make(0x1000, len, 0x40)), &[], Status::SGL_TYPE),
        ("PRP", prp, &[], Status::INVALID_FIELD),
        ("fused", fused, &[], Status::INVALID_FIELD),
        ("flush with data", Sqe::flush(MEM), &block, Status::INVALID_FIELD),
        ("beyond the end", read(MEM, BLOCKS, BLOCK), &[], Status::LBA_OUT_OF_RANGE),
        (
            "over the end",
            write(FILE, BLOCKS - 1, 2 * BLOCK).with_sgl(Sgl::transport(2 * len)),
            &[],
            Status::LBA_OUT_OF_RANGE,
        ),
        ("LBA that wraps", read(FILE, u64::MAX, BLOCK), &[], Status::LBA_OUT_OF_RANGE),
        ("beyond MDTS", read(MEM, 0, big), &[], Status::INVALID_FIELD),
        (
            "write beyond MDTS",
            write(MEM, 0, big).with_sgl(Sgl::transport(big as u32)),
            &[],
            Status::INVALID_FIELD,
        ),
        ("namespace 0", read(0, 0, BLOCK), &[], Status::INVALID_NAMESPACE),
        ("namespace 9", write(9, 0, BLOCK), &block, Status::INVALID_NAMESPACE),
        ("every namespace", read(u32::MAX, 0, BLOCK), &[], Status::INVALID_NAMESPACE),
        (
            "unknown opcode",
            Sqe::new(0x91).with_nsid(MEM).with_sgl(Sgl::in_capsule(0, len)),
            &block,
            Status::INVALID_OPCODE,
        ),
        (
            "unknown opcode, data at the host",
            Sqe::new(0x91).with_nsid(MEM).with_sgl(Sgl::transport(u32::MAX)),
            &[],
            Status::INVALID_OPCODE,
        ),
        ("fewer ranges than declared", dsm(2), &block[..16], Status::DATA_SGL_LENGTH),
        ("range beyond the end", dsm(1), far.as_bytes(), Status::LBA_OUT_OF_RANGE),
        ("Connect on a queue that is one", Sqe::connect(1, 31, 0, 0), &[], Status::SEQUENCE_ERROR),
        ("property of an I/O queue", Sqe::property_get(0, true), &[], Status::INVALID_OPCODE),
    ];
    for (what, sqe, data, status) in cases {
        let done = host.io.call(&sqe, data);
        assert!(done.status.is(status), "{what}: {} instead of {status}", done.status);
        assert!(done.status.is_dnr(), "{what}: another try would fail again");
    }
    host.verify(MEM, 0, 1);

    // An identifier that is in use costs the second command, not the first.
    let sqe = write(MEM, 0, BLOCK).with_sgl(Sgl::transport(len)).with_cid(5);
    let capsule = host.io.capsule(&sqe, &[]);
    host.io.send(&capsule);
    let r2t = host.io.r2t();
    host.io.send(&capsule);
    assert!(host.io.finish(5, &[]).status.is(Status::COMMAND_ID_CONFLICT));
    let with_data = encode(
        PduType::CapsuleCmd,
        0,
        &write(MEM, 8, BLOCK).with_cid(5).to_bytes(),
        &block,
        Format::default(),
    );
    host.io.send(&with_data);
    assert!(host.io.finish(5, &[]).status.is(Status::COMMAND_ID_CONFLICT));
    let pdu = host.io.h2c(flags::LAST_PDU, 5, r2t.ttag.get(), 0, &block);
    host.io.send(&pdu);
    assert!(host.io.finish(5, &[]).status.is_success());
    let zeroes = ReadWrite { fua: true, ..ReadWrite::new(0, 1) }.to_sqe(io::WRITE_ZEROES, MEM);
    assert!(host.io.call(&zeroes, &[]).status.is_success());
    drop(host);
    rig.finish();
}

//= test: NVMe Base 2.1, Submission Queue Flow Control
pub fn more_commands_than_entries(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    for nsid in [MEM, FILE] {
        let mut host = Host::new(rig.addr, 4, 0);
        // Each waits for data that does not come.
        let all: Vec<u8> = (0..5)
            .flat_map(|cid| {
                let sqe = write(nsid, 0, BLOCK).with_sgl(Sgl::transport(BLOCK as u32)).with_cid(cid);
                host.io.capsule(&sqe, &[])
            })
            .collect();
        host.io.send(&all);
        host.io.expect_term("a fifth command on a queue of four", Fes::SequenceError, 0);
        rig.check();
    }
    rig.finish();
}
