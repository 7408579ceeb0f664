//! The seed corpus: connections as they are, from set-up to end, for the
//! fuzzer to bend. `cargo run --example seeds` writes it to `corpus/`.

use crate::pdus::Pdu;
use crate::{controller, host_queue, target_queue};
use longhaul_wire::command::{ReadWrite, Sgl, Sqe, io};
use longhaul_wire::completion::{Cqe, Status};
use longhaul_wire::fabrics::ConnectData;
use longhaul_wire::identify::{
    Identifier, IdentifyController, IdentifyNamespace, encode_descriptors, encode_nsid_list,
};
use longhaul_wire::log::{AnaGroup, AnaLog, AnaState, DiscoveryEntry, ErrorEntry, SmartHealth, encode_ana};
use longhaul_wire::nqn::{self, DISCOVERY_NQN};
use longhaul_wire::pdu::{CommonHeader, DataPdu, Fes, Format, IcReq, PduType, TermReq, flags};
use uuid::Uuid;
use zerocopy::IntoBytes;

/// One input of the corpus.
#[derive(Clone, Debug)]
pub struct Seed {
    /// The target that it is for.
    pub target: &'static str,
    /// Its file name.
    pub name: String,
    /// Content of the input.
    pub bytes: Vec<u8>,
}

/// All inputs that the corpus begins with.
pub fn all() -> Vec<Seed> {
    let mut all = Vec::new();
    for digests in 0..4u8 {
        let name = ["plain", "hdgst", "ddgst", "both"][usize::from(digests)];
        add(&mut all, "codec_from_host", name, &from_host(digests));
        add(&mut all, "codec_from_controller", name, &from_controller(digests));
        add(&mut all, "target_queue", &format!("writes-{name}"), &target_writes(digests));
        add(&mut all, "target_queue", &format!("reads-{name}"), &target_reads(digests));
        add(&mut all, "host_queue", &format!("all-{name}"), &host_all(digests));
    }
    add(&mut all, "target_queue", "early-ends", &target_early_ends());
    add(&mut all, "host_queue", "early-ends", &host_early_ends());
    for settings in 0..4 {
        add(&mut all, "controller", &format!("life-{settings}"), &controller_life(settings));
    }
    structures(&mut all);
    transfers(&mut all);
    catalogs(&mut all);
    all
}

fn add(all: &mut Vec<Seed>, target: &'static str, name: &str, bytes: &[u8]) {
    all.push(Seed { target, name: name.to_owned(), bytes: bytes.to_vec() });
}

fn format(digests: u8) -> Format {
    Format { header_digest: digests & 1 != 0, data_digest: digests & 2 != 0, align: 0 }
}

fn data_pdu(kind: PduType, bits: u8, (cid, tag): (u16, u16), offset: u32, data: &[u8], f: Format) -> Vec<u8> {
    let len = data.len() as u32;
    let (common, _) = CommonHeader::build(kind, bits, len, f);
    Pdu::encode(kind, bits, &DataPdu::new(common, cid, tag, offset, len).as_bytes()[8..], data, f)
}

fn capsule(sqe: &Sqe, data: &[u8], f: Format) -> Vec<u8> {
    Pdu::encode(PduType::CapsuleCmd, 0, &sqe.to_bytes(), data, f)
}

fn from_host(digests: u8) -> Vec<u8> {
    let f = format(digests);
    let connect = ConnectData::new(Uuid::from_u128(7), 0xFFFF, DISCOVERY_NQN, "nqn.2014-08.org.example:host");
    let commands = [
        capsule(&Sqe::connect(0, 31, 0, 5000).with_sgl(Sgl::in_capsule(0, 1024)), connect.as_bytes(), f),
        capsule(&Sqe::property_get(0, true).with_cid(1), &[], f),
        capsule(&Sqe::property_set(0x14, false, 0x46_0001).with_cid(2), &[], f),
        capsule(&Sqe::identify(1, 0, 0).with_cid(3), &[], f),
        capsule(&Sqe::get_log_page(0x70, 0, 0, 1024, false).with_cid(4), &[], f),
        capsule(&Sqe::set_features(7, 0, 0x0003_0003, false).with_cid(5), &[], f),
        capsule(&Sqe::async_event_request().with_cid(6), &[], f),
        capsule(&Sqe::abort(0, 6).with_cid(7), &[], f),
        capsule(&ReadWrite::new(0, 1).to_sqe(io::READ, 1).with_cid(8).with_sgl(Sgl::transport(4096)), &[], f),
        capsule(
            &ReadWrite::new(8, 1).to_sqe(io::WRITE, 1).with_cid(9).with_sgl(Sgl::in_capsule(0, 512)),
            &[0x11; 512],
            f,
        ),
        data_pdu(PduType::H2CData, flags::LAST_PDU, (9, 4), 0, &[0x22; 64], f),
        TermReq::new(PduType::H2CTermReq, Fes::DataOutOfRange, 0, 0).as_bytes().to_vec(),
    ];
    let icreq = IcReq::new(0, digests, 0);
    [&[digests, 7], icreq.as_bytes(), &commands.concat()].concat()
}

fn from_controller(digests: u8) -> Vec<u8> {
    // Identifiers as a host with 16 entries gives them.
    let f = format(digests);
    let cid = |slot: u16| 16 | slot;
    let response = |slot: u16, status| {
        let cqe = Cqe::new(cid(slot), status).with_sqhd(1);
        Pdu::encode(PduType::CapsuleResp, 0, &cqe.to_bytes(), &[], f)
    };
    let r2t = |slot: u16, ttag: u16, offset: u32, len: u32| {
        let (common, _) = CommonHeader::build(PduType::R2T, 0, 0, f);
        let rest = DataPdu::new(common, cid(slot), ttag, offset, len);
        Pdu::encode(PduType::R2T, 0, &rest.as_bytes()[8..], &[], f)
    };
    let stream = [
        data_pdu(PduType::C2HData, 0, (cid(0), 0), 0, &[0x33; 700], f),
        r2t(1, 5, 0, 6000),
        data_pdu(PduType::C2HData, flags::LAST_PDU, (cid(0), 0), 700, &[0x33; 300], f),
        response(0, Status::SUCCESS),
        r2t(1, 6, 6000, 4000),
        response(2, Status::SUCCESS),
        data_pdu(PduType::C2HData, flags::LAST_PDU | flags::SUCCESS, (cid(3), 0), 0, &[0x44; 100], f),
        response(4, Status::INVALID_FIELD.dnr()),
        TermReq::new(PduType::C2HTermReq, Fes::SequenceError, 0, 0).as_bytes().to_vec(),
    ];
    // The set-up is done by the target (20h), and flow control is on.
    [&[digests | 0x20, 9][..], &stream.concat()].concat()
}

/// Settings and ICReq.
fn target_setup(digests: u8, flow_control: bool) -> Vec<u8> {
    use target_queue::op::IC_REQ;
    let settings = digests | 4 | if flow_control { 8 } else { 0 };
    vec![settings, 0, 0, 3, 1, 0, 0, IC_REQ, digests, 2, target_queue::op::FEED, 0, 0]
}

fn target_writes(digests: u8) -> Vec<u8> {
    use target_queue::op::{COMMAND, COMPLETE, FEED, FETCH, H2C_DATA, TRANSMIT};
    let mut out = target_setup(digests, true);
    // Opcode, cid, length code (4096: 7Fh + ...), carried, descriptor, nsid, flags.
    out.extend([COMMAND, 0, 1, 0x8F, 1, 1, 1, 0, FEED, 100, 0, FETCH, 0, FEED, 0, 0, COMPLETE, 0, 0]);
    out.extend([COMMAND, 0, 2, 0xBF, 0, 0, 1, 0, FEED, 0, 0, FETCH, 0, TRANSMIT]);
    for _ in 0..12 {
        out.extend([H2C_DATA, 0, 0, 0, FEED, 9, 0, TRANSMIT]);
    }
    out.extend([COMPLETE, 0, 0, TRANSMIT]);
    out
}

fn target_reads(digests: u8) -> Vec<u8> {
    use target_queue::op::{COMMAND, COMPLETE, FEED, PAYLOAD_SENT, SEND_DATA, TRANSMIT};
    let mut out = target_setup(digests, false);
    for cid in 0..4 {
        out.extend([COMMAND, 1, cid, 0x9F, 0, 0, 1, 0]);
    }
    out.extend([FEED, 0, 0]);
    out.extend([SEND_DATA, 0, 0, 0x5F, TRANSMIT, SEND_DATA, 0, 3, 0, TRANSMIT, PAYLOAD_SENT, 0]);
    out.extend([SEND_DATA, 1, 2 | 8 | 1, 0, TRANSMIT, SEND_DATA, 0, 5, 0, COMPLETE, 0, 0, TRANSMIT]);
    out.extend([PAYLOAD_SENT, 0, PAYLOAD_SENT, 0, COMPLETE, 0, 1, TRANSMIT]);
    out
}

fn target_early_ends() -> Vec<u8> {
    use target_queue::op::{COMMAND, COMPLETE, DAMAGE, FEED, FETCH, H2C_DATA, REPEAT, TRANSMIT};
    let mut out = target_setup(0, true);
    // In-capsule data that is refused; a write that is given up with R2Ts out.
    out.extend([COMMAND, 0, 1, 0x8F, 1, 1, 1, 0, FEED, 0, 0, COMPLETE, 0, 1]);
    out.extend([COMMAND, 0, 2, 0xBF, 0, 0, 1, 0, FEED, 0, 0, FETCH, 0, TRANSMIT, COMPLETE, 0, 2]);
    out.extend([H2C_DATA, 0, 0, 0, FEED, 0, 0, H2C_DATA, 0, 0, 0, FEED, 0, 0, TRANSMIT]);
    out.extend([COMMAND, 2, 3, 0, 0, 0, 1, 0, REPEAT, 3, FEED, 0, 0, TRANSMIT, DAMAGE, 2, 0x40]);
    out.extend([COMMAND, 2, 4, 0, 0, 0, 1, 0, FEED, 0, 0, TRANSMIT]);
    out
}

fn host_setup(digests: u8) -> Vec<u8> {
    use host_queue::op::{FEED, IC_RESP};
    vec![digests | 4, 0, 2, 0, 0, IC_RESP, digests, 0, FEED, 0, 0]
}

fn host_all(digests: u8) -> Vec<u8> {
    use host_queue::op::{C2H_DATA, FEED, PAYLOAD_SENT, R2T, RESPONSE, SUBMIT, TRANSMIT};
    let mut out = host_setup(digests);
    // A read, a write in the capsule and one that is asked for.
    out.extend([SUBMIT, 0, 0x9F, SUBMIT, 1, 0x5F, SUBMIT, 1, 0xAF, TRANSMIT, PAYLOAD_SENT, 0]);
    out.extend([C2H_DATA, 0, 9, 0, R2T, 0, 30, 0, 7, FEED, 50, 0, TRANSMIT]);
    out.extend([C2H_DATA, 0, 0, 0, R2T, 0, 0, 0, 8, FEED, 0, 0, TRANSMIT, PAYLOAD_SENT, 0]);
    out.extend([RESPONSE, 0, 0, 0, RESPONSE, 0, 0, 0, RESPONSE, 0, 0, 0, FEED, 0, 0]);
    out.extend([SUBMIT, 0, 0x4F, TRANSMIT, C2H_DATA, 0, 0, 8, FEED, 0, 0]);
    out
}

fn host_early_ends() -> Vec<u8> {
    use host_queue::op::{C2H_DATA, FEED, PAYLOAD_SENT, R2T, RESPONSE, SUBMIT, TRANSMIT};
    let mut out = host_setup(0);
    // Answered before all of its data; then data without an R2T.
    out.extend([SUBMIT, 1, 0xAF, TRANSMIT, R2T, 0, 9, 0, 1, FEED, 0, 0, RESPONSE, 0, 1, 0, FEED, 0, 0]);
    out.extend([TRANSMIT, PAYLOAD_SENT, 0, SUBMIT, 0, 0x9F, TRANSMIT, C2H_DATA, 0, 4, 0xFE, FEED, 0, 0]);
    out.extend([C2H_DATA, 0, 0, 0xFE, FEED, 0, 0, TRANSMIT]);
    out
}

fn controller_life(settings: u8) -> Vec<u8> {
    use controller::op::{
        ABORT_DONE, CHANGE_DONE, COMMAND, CONNECT, CONNECT_IO, IO_FABRICS, NAMESPACE_CHANGED, QUEUE_CLOSED,
        TIME,
    };
    // Value, small, len, nsid, kind, cid, nothing odd.
    let command = |kind: u8, value: u32, small: u8, len: u8, cid: u8| {
        let mut out = vec![COMMAND];
        out.extend(value.to_le_bytes());
        out.extend([small, len, 1, kind, cid, 0]);
        out
    };
    let mut out = vec![settings, CONNECT, 0, 0, 31, 0, 0, 0, 0];
    out.extend(command(0, 1, 0, 0, 1));
    out.extend(command(10, 0x46_0001, 0, 0, 2));
    out.extend(command(0, 0, 0x1C, 0, 3));
    for cns in [0, 1, 2, 3, 5, 6, 8] {
        out.extend(command(2, 0, cns, 0, 4));
    }
    for lid in [0, 1, 2, 3, 4, 5, 0x0C, 0x12, 0x70] {
        out.extend(command(3, 0, lid, 128, 5));
    }
    for fid in [1, 2, 4, 5, 6, 7, 0x0B, 0x0F, 0x81] {
        out.extend(command(4, 0, fid, 0, 6));
        out.extend(command(5, 0x0003_0003, fid, 0, 7));
    }
    out.extend(command(6, 0, 0, 0, 8));
    out.extend(command(6, 0, 0, 0, 9));
    out.extend([NAMESPACE_CHANGED, 1, 0, 0, 0, 2, 0]);
    out.extend(command(7, 9, 0, 0, 10));
    out.extend(command(7, 30, 0, 0, 11));
    out.extend([ABORT_DONE, 1]);
    out.extend([CONNECT_IO, 1, 31, 0, 0, 0, 0, CONNECT_IO, 2, 31, 0, 0, 0, 0]);
    out.push(IO_FABRICS);
    out.extend(&command(9, 0, 0, 0, 0)[1..]);
    out.extend([0, 1, QUEUE_CLOSED, 2]);
    out.extend(command(10, 0x46_0000, 0, 0, 12));
    out.extend([CHANGE_DONE]);
    out.extend(command(10, 0x46_4001, 0, 0, 13));
    out.extend([CHANGE_DONE, TIME, 0xFF, 0xFF, 0xFF, 0]);
    out
}

fn structures(all: &mut Vec<Seed>) {
    let mut one = |name: &str, which: u8, bytes: &[u8]| {
        // Trailing zeroes say nothing.
        let len = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1);
        add(all, "structures", name, &[&[which], &bytes[..len]].concat());
    };
    one(
        "controller",
        0,
        &IdentifyController { vid: 0x1234, mdts: 8, nn: 1024, ..Default::default() }.encode(),
    );
    one("namespace", 1, &IdentifyNamespace { nsze: 1 << 20, ncap: 1 << 20, ..Default::default() }.encode());
    one("error", 2, &ErrorEntry { error_count: 9, sqid: 1, cid: 7, ..Default::default() }.encode());
    one("health", 2, &SmartHealth { temperature: 298, host_reads: 1 << 70, ..Default::default() }.encode());
    let entry =
        DiscoveryEntry { subnqn: nqn::to_field("nqn.2014-08.org.example:disk"), ..Default::default() };
    one("discovery", 2, &entry.encode());
    one("nsids", 3, &encode_nsid_list([1, 2, 700]));
    let group = AnaGroup { id: 1, change_count: 2, state: AnaState::Optimized, nsids: vec![1, 2, 3] };
    one("ana", 3, &encode_ana(&AnaLog { change_count: 3, groups: vec![group.clone(), group] }));
    let identifiers = [Identifier::Uuid(Uuid::from_u128(9)), Identifier::Nguid([3; 16]), Identifier::Csi(0)];
    one("descriptors", 3, &encode_descriptors(&identifiers));
    one("effects", 4, &[0x55; 64]);
    let connect = ConnectData::new(Uuid::from_u128(7), 1, "nqn.2014-08.org.example:disk", DISCOVERY_NQN);
    one("connect", 5, connect.as_bytes());
    one("nqn", 5, b"nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6");
    one("registers", 6, &0x0046_0001u64.to_le_bytes());
    let write = ReadWrite::new(8, 8).to_sqe(io::WRITE, 1).with_sgl(Sgl::in_capsule(0, 4096));
    one("write", 7, &write.to_bytes());
    one("deallocate", 7, &[&Sqe::deallocate(1, 1).to_bytes()[..], &[0, 0, 0, 0, 4, 0, 0, 0, 1]].concat());
}

/// Copies from beginning to end, as either side says them.
fn transfers(all: &mut Vec<Seed>) {
    use longhaul_engine::Buf;
    use longhaul_transfer::session::{Outgoing, Sender, SenderItem};
    use longhaul_transfer::wire::{
        Action, Batch, Content, CopyDirection, Counts, Digest, Entry, EntryKind, Frame, Hello, Limit, Op,
        Planned, Refusal, RefusalKind, RelPath, Request, Scanned, Stage, Time, Trouble, Tuned, VERSION, Want,
        Welcome,
    };
    use std::sync::Arc;
    let path = |name: &str| RelPath::new(name.as_bytes()).expect("a good name");
    let entry = |name: &str, kind: EntryKind, size: u64| {
        let (mtime, xattrs) = (Time { secs: 1, nanos: 2 }, vec![((*b"user.x").into(), (*b"value").into())]);
        Entry {
            path: path(name),
            kind,
            mode: 0o644,
            uid: 1,
            gid: 2,
            mtime,
            ctime: mtime,
            size,
            sparse: true,
            xattrs,
        }
    };
    let stream = |settings: u8, frames: Vec<Frame>| {
        let mut bytes = vec![settings];
        for frame in frames {
            let (head, body) = frame.encode();
            bytes.extend_from_slice(&head);
            body.iter().for_each(|body| bytes.extend_from_slice(body));
        }
        bytes
    };
    let request = Request {
        sources: vec![b"a".to_vec()],
        filters: vec!["-*.tmp".into()],
        files: vec![b"b/c".to_vec()],
        recursive: true,
        ..Request::default()
    };
    let hello = Hello {
        oldest: VERSION,
        newest: VERSION,
        session: [7; 16],
        streams: 2,
        direction: CopyDirection::Pull,
        request,
    };
    let begin = vec![Frame::Secure([1; 48].into()), Frame::Hello(Box::new(hello)), Frame::Join([7; 16])];
    add(all, "transfer_frames", "begin", &stream(0, begin));
    let mut sender = Sender::<()>::new(1);
    let mut batch = Batch::default();
    let digest = Digest([9; 32]);
    batch.push(&entry("d", EntryKind::Directory, 0), &Content::None, &[]);
    batch.push(&entry("d/f", EntryKind::File, 5), &Content::Inline { len: 5, digest }, b"bytes");
    batch.push(&entry("d/l", EntryKind::Symlink((*b"../x").into()), 0), &Content::None, &[]);
    batch.push(&entry("d/h", EntryKind::HardLink(path("d/f")), 0), &Content::None, &[]);
    let mut question = Batch::default();
    question.push(&entry("d/g", EntryKind::File, 5), &Content::Query(Some(digest)), &[]);
    let file = Arc::new(Outgoing { number: 3, entry: entry("large", EntryKind::File, 1 << 20) });
    let trouble = Trouble { path: path("bad"), op: Op::Read, message: "words".into() };
    let tuned = Tuned { stage: Stage::Read, from: 4, to: 6, why: "it brought more".into() };
    let planned = Planned { path: path("new"), action: Action::Send };
    let scanned = Scanned { files: 3, bytes: 1 << 20, done: true };
    let items = vec![
        SenderItem::Batch(batch.into_body()),
        SenderItem::Query { number: 1, batch: question.into_body() },
        SenderItem::Block { file: Arc::clone(&file), offset: 0, digest, data: Buf::copy_of(&[5; 64]) },
        SenderItem::Close { file, blocks: 1, good: true },
        SenderItem::Trouble(trouble.clone()),
        SenderItem::Tuned(tuned.clone()),
        SenderItem::Limit(Some(Limit::Stage(Stage::Write))),
        SenderItem::Limit(Some(Limit::Rate)),
        SenderItem::Scanned(scanned),
    ];
    let mut frames = Vec::new();
    items.into_iter().for_each(|item| sender.frames(0, item, &mut frames));
    frames.push(Frame::End { whole: true });
    add(all, "transfer_frames", "sends", &stream(0, frames.clone()));
    add(all, "transfer_frames", "sends-later", &stream(4, frames));
    let counts = Counts { files: 1, bytes: 5, ..Counts::default() };
    let answers = vec![
        Frame::Welcome(Welcome {
            version: VERSION,
            resume: true,
            by_content: true,
            congestion: "cubic".into(),
        }),
        Frame::Wanted { number: 0, wants: vec![Want { index: 1, have: [5].into() }] },
        Frame::Progress(counts),
        Frame::Trouble(trouble),
        Frame::Tuned(tuned),
        Frame::Limit(None),
        Frame::Limit(Some(Limit::Silence)),
        Frame::Scanned(scanned),
        Frame::Planned(planned),
        Frame::Finished(counts),
        Frame::Refuse(Refusal::new(RefusalKind::Busy, "words\u{1b}")),
    ];
    add(all, "transfer_frames", "answers", &stream(0x40, answers));
}

/// What a client of a catalog server sends, and what the server answers.
fn catalogs(all: &mut Vec<Seed>) {
    use longhaul_catalog::wire::{Change, Hello, KeyRange, Piece, Question, Reply, Request, Token, VERSION};
    use longhaul_catalog::{Commit, Entry, Error, Event, Expect, LeaseId, Txn};
    use std::time::Duration;

    let key = b"fs/x/i1".to_vec();
    let txn = Txn::new().expect(&key, Expect::Modified(300)).expect(b"l", Expect::Absent);
    let txn = txn.expect(b"c", Expect::Present).put_leased(&key, b"value", LeaseId(5)).delete(b"gone");
    let part = KeyRange { prefix: b"fs/".to_vec(), after: Some(key.clone()), most: Some(1000), at: Some(12) };
    let mut client = vec![0];
    Hello { version: VERSION, host: "nqn.2014-08.org.example:host".into() }.encode(&mut client);
    let requests = [
        Request::Change(Change::Commit(txn, Some(Token { client: 1 << 40, number: 7, answered: 3 }))),
        Request::Read(Question { keys: vec![key.clone()], part: Some(part), bare: false }),
        Request::Watch { prefix: b"fs/".to_vec(), from: 9 },
        Request::Change(Change::Grant(Duration::from_secs(30))),
        Request::Change(Change::Keep(LeaseId(5))),
        Request::Change(Change::Revoke(LeaseId(5))),
        Request::Cancel,
        Request::Ping,
    ];
    (1..).zip(requests).for_each(|(id, request)| request.encode(id, &mut client));
    add(all, "catalog_frames", "client", &client);
    // Names that are not UTF-8, or longer than an NQN, are refused as they are.
    let name = |name: &str| {
        let mut hello = vec![0];
        Hello { version: VERSION, host: name.into() }.encode(&mut hello);
        hello
    };
    let mut not_text = name("host");
    *not_text.last_mut().expect("a name") = 0xff;
    add(all, "catalog_frames", "name_not_text", &not_text);
    add(all, "catalog_frames", "name_too_long", &name(&"n".repeat(224)));

    let entry = |number: u8| Entry {
        key: [&key[..], &[number]].concat(),
        value: vec![number; 40],
        created: 3,
        modified: 900,
        lease: (number == 2).then_some(LeaseId(5)),
    };
    let piece =
        Piece { revision: 900, entries: (0..4).map(entry).collect(), keys: 1, bare: false, more: true };
    let event = |value| Event { revision: 901, key: key.clone(), value };
    let mut server = vec![1];
    let replies = [
        Reply::Welcome { identity: 77 },
        Reply::Refused { version: 2, why: "no".into() },
        Reply::Committed(Commit::Done(900)),
        Reply::Entries(Piece { bare: true, keys: 0, more: false, ..piece.clone() }),
        Reply::Entries(piece),
        Reply::Events { through: 901, events: vec![event(Some(vec![1])), event(None)], more: false },
        Reply::Granted(LeaseId(5)),
        Reply::Kept(Duration::from_secs(30)),
        Reply::Revoked,
        Reply::Failed(Error::Compacted { at: 3 }),
        Reply::Pong,
    ];
    (0..).zip(replies).for_each(|(id, reply)| reply.encode(id, &mut server));
    add(all, "catalog_frames", "server", &server);
}
