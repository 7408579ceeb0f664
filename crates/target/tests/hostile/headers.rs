//! Headers that are not right.

use crate::client::{Client, encode};
use crate::rig::{Rig, attack};
use longhaul_engine::EngineKind;
use longhaul_wire::command::{Sgl, Sqe};
use longhaul_wire::pdu::{CommonHeader, Fes, Format, IcReq, IcResp, PduType, TermReq, field};
use zerocopy::IntoBytes;

/// A PDU with one byte changed.
fn with(mut pdu: Vec<u8>, at: u32, value: u8) -> Vec<u8> {
    pdu[at as usize] = value;
    pdu
}

fn plen(mut pdu: Vec<u8>, len: u32) -> Vec<u8> {
    pdu[4..8].copy_from_slice(&len.to_le_bytes());
    pdu
}

fn icreq() -> Vec<u8> {
    IcReq::new(0, 0, 0).as_bytes().to_vec()
}

fn command(data: &[u8]) -> Vec<u8> {
    let sqe = Sqe::property_get(0, true).with_sgl(Sgl::in_capsule(0, data.len() as u32));
    encode(PduType::CapsuleCmd, 0, &sqe.to_bytes(), data, Format::default())
}

fn bare(code: u8, hlen: u8) -> Vec<u8> {
    let mut common = CommonHeader::bare(PduType::CapsuleResp, hlen.into());
    (common.pdu_type, common.hlen) = (code, hlen);
    let mut pdu = common.as_bytes().to_vec();
    pdu.resize(hlen.into(), 0);
    pdu
}

//= test: NVMe-TCP 1.1, PDU Common Header
//= test: NVMe-TCP 1.1, Connection Establishment
//= test: NVMe-TCP 1.1, ICReq PDU
pub fn before_icreq(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let field = |at| (Fes::InvalidHeaderField, at);
    let cases = [
        ("garbage", vec![0xFF; 4096], field(field::TYPE)),
        ("another protocol", b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n".to_vec(), field(field::TYPE)),
        ("an ICResp", IcResp::new(0, 0, 4096).as_bytes().to_vec(), field(field::TYPE)),
        ("a command", command(&[]), (Fes::SequenceError, 0)),
        ("H2CData", bare(PduType::H2CData as u8, 24), (Fes::SequenceError, 0)),
        ("another version", with(icreq(), field::PFV, 1), (Fes::UnsupportedParameter, field::PFV)),
        ("HPDA of 32", with(icreq(), field::PDA, 32), field(field::PDA)),
        ("HLEN of 127", with(icreq(), field::HLEN, 127), field(field::HLEN)),
        ("PLEN of 129", plen(icreq(), 129), field(field::PLEN)),
        ("PLEN of 0", plen(icreq(), 0), field(field::PLEN)),
        ("PLEN of 4 GiB", plen(icreq(), u32::MAX), field(field::PLEN)),
    ];
    for (what, bytes, (fes, fei)) in cases {
        attack(&rig, Client::tcp(rig.addr), &bytes, |client| client.expect_term(what, fes, fei));
    }
    rig.finish();
}

//= test: NVMe-TCP 1.1, PDU Common Header
//= test: NVMe-TCP 1.1, PDU Data Offset
//= test: NVMe-TCP 1.1, PDU Header Digest
//= test: NVMe-TCP 1.1, PDU Data Digest
pub fn after_icreq(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let field = |at| (Fes::InvalidHeaderField, at);
    let mut cases = vec![
        ("a second ICReq", icreq(), (Fes::SequenceError, 0)),
        ("HLEN of 71", with(command(&[]), field::HLEN, 71), field(field::HLEN)),
        ("HLEN of 255", with(command(&[]), field::HLEN, 255), field(field::HLEN)),
        ("PLEN within the header", plen(command(&[]), 71), field(field::PLEN)),
        ("PLEN of 0", plen(command(&[]), 0), field(field::PLEN)),
        ("PDO within the header", with(command(&[1; 8]), field::PDO, 71), field(field::PDO)),
        ("PDO that is not aligned", with(command(&[1; 8]), field::PDO, 73), field(field::PDO)),
        ("PDO behind PLEN", with(command(&[1; 8]), field::PDO, 252), field(field::PLEN)),
        ("PLEN of 4 GiB", plen(command(&[1; 8]), u32::MAX), field(field::PLEN)),
        ("header digest unasked", with(command(&[]), field::FLAGS, 1), field(field::FLAGS)),
        ("data digest unasked", with(command(&[1; 8]), field::FLAGS, 2), field(field::FLAGS)),
        ("data behind H2CTermReq", plen(bare(2, 24), 153), field(field::PLEN)),
    ];
    // Those of the other direction, and those that do not exist.
    for code in [1, 3, 5, 7, 8, 9, 10, 0x80, 0xFF] {
        cases.push(("a type that hosts do not send", bare(code, 24), field(field::TYPE)));
    }
    for (what, bytes, (fes, fei)) in cases {
        attack(&rig, Client::open(rig.addr, 0), &bytes, |client| client.expect_term(what, fes, fei));
    }
    rig.finish();
}

//= test: NVMe-TCP 1.1, PDU Header Digest
pub fn bad_header_digest(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let mut client = Client::open(rig.addr, 1);
    let good = client.capsule(&Sqe::property_get(0, true), &[]);
    let received = u32::from_le_bytes(good[72..76].try_into().expect("4 bytes"));
    attack(&rig, client, &with(good.clone(), 40, 0xAA), |client| {
        client.expect_term("a damaged header", Fes::HeaderDigestError, received);
    });
    let bad = with(good.clone(), 75, !good[75]);
    let received = u32::from_le_bytes(bad[72..76].try_into().expect("4 bytes"));
    attack(&rig, Client::open(rig.addr, 1), &bad, |client| {
        client.expect_term("a damaged digest", Fes::HeaderDigestError, received);
    });
    client = Client::open(rig.addr, 1);
    attack(&rig, client, &with(good, field::FLAGS, 0), |client| {
        client.expect_term("no digest", Fes::InvalidHeaderField, field::FLAGS);
    });
    rig.finish();
}

pub fn termreq_from_the_host(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    for quoted in [0, 24, 128] {
        let term = TermReq::new(PduType::H2CTermReq, Fes::DataOutOfRange, 7, quoted);
        let bytes = [term.as_bytes(), &vec![0; quoted]].concat();
        attack(&rig, Client::open(rig.addr, 0), &bytes, |client| client.expect_end("a TermReq"));
    }
    // On a queue with commands under way, too.
    let mut host = rig.host();
    let aer = host.admin.capsule(&Sqe::async_event_request(), &[]);
    host.admin.send(&aer);
    let term = TermReq::new(PduType::H2CTermReq, Fes::SequenceError, 0, 0);
    host.admin.send(term.as_bytes());
    host.admin.expect_end("a TermReq on the admin queue");
    // The association ends with it.
    host.io.expect_end("the I/O queue of an association that ended");
    rig.finish();
}
