//! Connect, and commands that come too early.

use crate::client::{CC_ENABLE, Client, HOSTID, HOSTNQN, Host, NQN, connect_data, read};
use crate::rig::{MEM, Rig};
use longhaul_engine::EngineKind;
use longhaul_target::HostAccess;
use longhaul_wire::command::{Sgl, Sqe};
use longhaul_wire::completion::Status;
use longhaul_wire::fabrics::{ConnectData, InvalidParameter, offset};
use longhaul_wire::pdu::flags;
use uuid::Uuid;
use zerocopy::IntoBytes;

const INVALID: Status = Status::CONNECT_INVALID_PARAMETERS;

/// Sends a Connect that is refused; then the target closes the connection.
fn refused(rig: &Rig, what: &str, sqe: &Sqe, data: &[u8], status: Status, result: u32) {
    let mut client = Client::open(rig.addr, 0);
    let done = client.call(sqe, data);
    assert!(done.status.is(status), "{what}: {} instead of {status}", done.status);
    assert_eq!(done.result, u64::from(result), "{what}: the completion names the wrong field");
    client.expect_end(what);
    rig.check();
}

fn in_capsule(sqe: &Sqe, data: &[u8]) -> Sqe {
    sqe.with_sgl(Sgl::in_capsule(0, data.len() as u32))
}

//= test: NVMe Base 2.1, Connect command
//= test: NVMe Base 2.1, Connect command data
//= test: NVMe Base 2.1, Dynamic controller model
pub fn admin_queue(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let good = Sqe::connect(0, 31, 0, 0);
    let data = |cntlid, nqn: &str| ConnectData::new(HOSTID, cntlid, nqn, HOSTNQN).as_bytes().to_vec();
    let right = data(0xFFFF, NQN);
    let changed = |at: usize, len: usize, value: u8| {
        let mut bytes = right.clone();
        bytes[at..at + len].fill(value);
        bytes
    };
    let data_at = |at| InvalidParameter::data(at).to_dw0();
    let cases = [
        ("unknown subsystem", good, data(0xFFFF, "nqn.2014-08.org.example:other"), INVALID, data_at(256)),
        ("no subsystem", good, changed(256, 256, 0), INVALID, data_at(256)),
        ("name without an end", good, changed(512, 256, b'x'), INVALID, data_at(512)),
        ("name that is not UTF-8", good, changed(512, 4, 0xFF), INVALID, data_at(512)),
        ("host without identifier", good, changed(0, 16, 0), INVALID, data_at(0)),
        ("a controller of its choice", good, data(1, NQN), INVALID, data_at(16)),
        (
            "SQSIZE of 0",
            Sqe::connect(0, 0, 0, 0),
            right.clone(),
            INVALID,
            InvalidParameter::command(44).to_dw0(),
        ),
        (
            "SQSIZE of 64 Ki",
            Sqe::connect(0, 0xFFFF, 0, 0),
            right.clone(),
            INVALID,
            InvalidParameter::command(44).to_dw0(),
        ),
        ("another format", good.with_cdw(10, 1), right.clone(), Status::INCOMPATIBLE_FORMAT, 0),
        ("half of its data", good, right[..512].to_vec(), Status::DATA_SGL_LENGTH, 0),
        ("too much data", good, [&right[..], &[0; 512]].concat(), Status::DATA_SGL_LENGTH, 0),
    ];
    for (what, sqe, data, status, result) in cases {
        refused(&rig, what, &in_capsule(&sqe, &data), &data, status, result);
    }
    // No data, and more than there is memory.
    for len in [0, 512, 5 << 20, u32::MAX] {
        refused(&rig, "data elsewhere", &good.with_sgl(Sgl::transport(len)), &[], Status::DATA_SGL_LENGTH, 0);
    }
    // Data by R2T is unusual, and right.
    let mut client = Client::open(rig.addr, 0);
    assert!(client.call_r2t(&good, &right).status.is_success());
    drop(client);

    // Two at once make one controller.
    let mut client = Client::open(rig.addr, 0);
    let both: Vec<u8> = [1, 2]
        .into_iter()
        .flat_map(|cid| client.capsule(&good.with_cid(cid).with_sgl(Sgl::transport(1024)), &[]))
        .collect();
    client.send(&both);
    let r2ts = [client.r2t(), client.r2t()];
    for (r2t, status) in r2ts.into_iter().zip([Status::SUCCESS, Status::SEQUENCE_ERROR]) {
        let cid = r2t.cccid.get();
        let pdu = client.h2c(flags::LAST_PDU, cid, r2t.ttag.get(), 0, &right);
        client.send(&pdu);
        assert!(client.finish(cid, &[]).status.is(status));
    }
    client.result(&Sqe::property_set(offset::CC, false, CC_ENABLE));
    drop(client);
    rig.finish();
}

pub fn io_queue(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let host = rig.host();
    let good = Sqe::connect(2, 31, 0, 0);
    let data = |hostid, cntlid, hostnqn| ConnectData::new(hostid, cntlid, NQN, hostnqn).as_bytes().to_vec();
    let right = data(HOSTID, host.cntlid, HOSTNQN);
    let unused = 0xFF00;
    let data_at = |at| InvalidParameter::data(at).to_dw0();
    let qid = InvalidParameter::command(42).to_dw0();
    let cases = [
        ("unknown controller", good, data(HOSTID, unused, HOSTNQN), INVALID, data_at(16)),
        ("any controller", good, data(HOSTID, 0xFFFF, HOSTNQN), INVALID, data_at(16)),
        (
            "another host's name",
            good,
            data(HOSTID, host.cntlid, "nqn.2014-08.org.example:b"),
            INVALID,
            data_at(512),
        ),
        (
            "another host's identifier",
            good,
            data(Uuid::from_u128(9), host.cntlid, HOSTNQN),
            INVALID,
            data_at(0),
        ),
        ("QID beyond those granted", Sqe::connect(0xFFFF, 31, 0, 0), right.clone(), INVALID, qid),
        ("QID in use", Sqe::connect(1, 31, 0, 0), right.clone(), Status::INVALID_QID, 0),
        (
            "SQSIZE of 0",
            Sqe::connect(2, 0, 0, 0),
            right.clone(),
            INVALID,
            InvalidParameter::command(44).to_dw0(),
        ),
    ];
    for (what, sqe, data, status, result) in cases {
        refused(&rig, what, &in_capsule(&sqe, &data), &data, status, result);
    }
    let mut second = Client::open(rig.addr, 0);
    assert!(second.connect(&good, &connect_data(host.cntlid)).status.is_success());
    assert!(second.call(&read(MEM, 0, 4096), &[]).status.is_success());
    drop((host, second));
    rig.finish();
}

//= test: NVMe Base 2.1, Connect command
pub fn hosts_that_are_not_allowed(kind: EngineKind) {
    let allowed = HostAccess::Only([HOSTNQN.to_owned()].into());
    let Some(rig) = Rig::new(kind, |config| config.hosts.all = allowed.into()) else { return };
    let data = ConnectData::new(HOSTID, 0xFFFF, NQN, "nqn.2014-08.org.example:stranger");
    let sqe = in_capsule(&Sqe::connect(0, 31, 0, 0), data.as_bytes());
    let named = InvalidParameter::data(512).to_dw0();
    refused(&rig, "a stranger", &sqe, data.as_bytes(), Status::CONNECT_INVALID_HOST, named);
    rig.finish();
}

//= test: NVMe Base 2.1, Connect command
pub fn first_command_that_is_no_connect(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let block = vec![1; 4096];
    let cases = [
        ("a read", read(MEM, 0, 4096), &[][..]),
        ("a write", crate::client::write(MEM, 0, 4096), &block),
        ("a write of 4 GiB", crate::client::write(MEM, 0, 4096).with_sgl(Sgl::transport(u32::MAX)), &[]),
        ("a property", Sqe::property_get(0, true), &[]),
        ("Disconnect", Sqe::disconnect(), &[]),
        ("Identify", Sqe::identify(1, 0, 0), &[]),
    ];
    for (what, sqe, data) in cases {
        refused(&rig, what, &sqe, data, Status::SEQUENCE_ERROR, 0);
    }
    rig.finish();
}

//= test: NVMe Base 2.1, CC.EN
//= test: NVMe Base 2.1, Connect command
pub fn before_enable_and_after_reset(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let (mut admin, cntlid) = Host::admin(rig.addr);
    for sqe in [Sqe::identify(1, 0, 0), Sqe::keep_alive(), Sqe::async_event_request()] {
        assert!(admin.call(&sqe, &[]).status.is(Status::SEQUENCE_ERROR), "{sqe:?}");
    }
    let io = in_capsule(&Sqe::connect(1, 31, 0, 0), connect_data(cntlid).as_bytes());
    let data = connect_data(cntlid);
    refused(&rig, "a queue of a disabled controller", &io, data.as_bytes(), Status::SEQUENCE_ERROR, 0);

    // Many associations on one admin queue: state and queues of one do not obstruct the next.
    for life in 0..40u16 {
        admin.result(&Sqe::property_set(offset::CC, false, CC_ENABLE));
        let events: Vec<u8> = (0..4)
            .flat_map(|i| admin.capsule(&Sqe::async_event_request().with_cid(0xF000 | i), &[]))
            .collect();
        admin.send(&events);
        let mut queue = Client::open(rig.addr, 0);
        assert!(queue.call(&io, data.as_bytes()).status.is_success(), "life {life}");
        assert!(queue.call(&read(MEM, 0, 4096), &[]).status.is_success());
        let reset = Sqe::property_set(offset::CC, false, CC_ENABLE & !1).with_cid(life);
        let capsule = admin.capsule(&reset, &[]);
        admin.send(&capsule);
        // The event requests end too, or are forgotten.
        let mut done = false;
        while !done {
            let resp = admin.recv().expect("an answer");
            let resp: longhaul_wire::pdu::CapsuleResp = resp.view();
            let cqe = longhaul_wire::completion::Cqe::read(&resp.cqe).expect("16 bytes");
            assert!(cqe.cid() == life || cqe.status().is(Status::ABORT_REQUESTED), "{cqe:?}");
            done = cqe.cid() == life;
        }
        queue.expect_end("a queue of a controller that was reset");
        while admin.result(&Sqe::property_get(offset::CSTS, false)) & 1 != 0 {}
    }
    drop(admin);
    rig.finish();
}

/// As SPDK's tools come and go: without a name, and with event requests that
/// they forget on their own side before they shut down.
pub fn a_host_without_a_name_that_reuses_identifiers(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let mut admin = Client::open(rig.addr, 0);
    let nameless = |cntlid| ConnectData::new(HOSTID, cntlid, NQN, "");
    let done = admin.connect(&Sqe::connect(0, 31, 0, 0), &nameless(0xFFFF));
    assert_eq!(done.status, Status::SUCCESS);
    let cntlid = done.result as u16;
    admin.result(&Sqe::property_set(offset::CC, false, CC_ENABLE));
    let mut queue = Client::open(rig.addr, 0);
    assert!(queue.connect(&Sqe::connect(1, 31, 0, 0), &nameless(cntlid)).status.is_success());
    assert!(queue.call(&read(MEM, 0, 4096), &[]).status.is_success());

    let send = |admin: &mut Client, sqe: &Sqe| {
        let capsule = admin.capsule(sqe, &[]);
        admin.send(&capsule);
    };
    (0..4u16).for_each(|cid| send(&mut admin, &Sqe::async_event_request().with_cid(0xF000 | cid)));
    // Another command has to keep away from them still.
    let conflict = Sqe::keep_alive().with_cid(0xF000);
    send(&mut admin, &conflict);
    assert!(admin.finish(0xF000, &[]).status.is(Status::COMMAND_ID_CONFLICT));
    const NORMAL_SHUTDOWN: u64 = 1 << 14;
    let shutdown = Sqe::property_set(offset::CC, false, CC_ENABLE | NORMAL_SHUTDOWN);
    send(&mut admin, &shutdown.with_cid(0xF000));
    assert_eq!(admin.finish(0xF000, &[]).status, Status::SUCCESS);
    let mut cids = (0..4u16).cycle();
    let complete = |csts: u64| csts >> 2 & 3 == 2;
    loop {
        let cid = 0xF000 | cids.next().expect("for ever");
        send(&mut admin, &Sqe::property_get(offset::CSTS, false).with_cid(cid));
        let done = admin.finish(cid, &[]);
        assert_eq!(done.status, Status::SUCCESS);
        if complete(done.result) {
            break;
        }
    }
    // A change that these requests would have reported completes none of the forgotten ones.
    let added = rig
        .export(longhaul_block::BackendSpec::parse("mem:1MiB").expect("understood").open().expect("opened"));
    assert!(complete(admin.result(&Sqe::property_get(offset::CSTS, false))));
    rig.remove(added);
    drop((admin, queue));
    rig.finish();
}
