//! Hosts that use up what others need.

use crate::client::{BLOCK, Client, Host, connect_data, read, write};
use crate::rig::{FILE, MEM, Rig, SHORT};
use longhaul_engine::EngineKind;
use longhaul_target::Config;
use longhaul_wire::command::{ReadWrite, Sgl, Sqe, io};
use longhaul_wire::completion::Cqe;
use longhaul_wire::pdu::{CapsuleResp, CommonHeader, Format, IcReq, PduType};
use std::net::Shutdown;
use zerocopy::IntoBytes;

/// Memory of the target: little, but more than the greedy hosts together have
/// connections for.
const MEMORY: usize = 64 << 20;
const LARGE: usize = 1 << 20;

/// Descriptors of both ends, and some for everything else.
fn need_descriptors(n: u64) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let enough = limit.current.is_none_or(|current| current >= n);
    if !enough {
        let limit = rustix::process::Rlimit { current: limit.maximum, ..limit };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)
            .expect("the hard limit is allowed");
    }
}

pub fn a_thousand_idle_connections(kind: EngineKind) {
    need_descriptors(8192);
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let mut idle = Vec::new();
    for i in 0..1000 {
        let mut client = Client::tcp(rig.addr);
        // Silent, within ICReq, and behind it.
        match i % 3 {
            0 => {}
            1 => client.send(&IcReq::new(0, 0, 0).as_bytes()[..60]),
            _ => client = Client::open(rig.addr, 0),
        }
        idle.push(client);
    }
    rig.check();
    let mut host = rig.host();
    host.verify(MEM, 0, 1);
    assert!(rig.memory_used() < LARGE, "connections that do nothing hold no buffers");
    drop((idle, host));
    rig.wait_for_connections(0);
    rig.finish();
}

pub fn a_thousand_ends_within_a_pdu(kind: EngineKind) {
    need_descriptors(8192);
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let stream = {
        let client = Client::open(rig.addr, 0);
        let connect = Sqe::connect(0, 31, 0, 0).with_sgl(Sgl::in_capsule(0, 1024));
        let capsule = client.capsule(&connect, connect_data(0xFFFF).as_bytes());
        [IcReq::new(0, 0, 0).as_bytes(), &capsule].concat()
    };
    for i in 0..1000 {
        let mut client = Client::tcp(rig.addr);
        // Every part of ICReq, header and data; a step that is no divisor.
        client.send(&stream[..1 + i * 7 % (stream.len() - 1)]);
        if i % 2 == 0 {
            let _ = client.stream.shutdown(Shutdown::Write);
        }
    }
    rig.check();
    // The same with a write under way, in the capsule and by R2T.
    for i in 0..50 {
        let mut host = rig.host();
        let nsid = if i % 2 == 0 { MEM } else { FILE };
        let sqe = write(nsid, 0, 8 * BLOCK).with_cid(9);
        if i % 4 < 2 {
            let capsule = host.io.capsule(&sqe, &vec![7; 8 * BLOCK]);
            host.io.send(&capsule[..capsule.len() / 2]);
        } else {
            let capsule = host.io.capsule(&sqe.with_sgl(Sgl::transport(8 * BLOCK as u32)), &[]);
            host.io.send(&capsule);
            let ttag = host.io.r2t().ttag.get();
            let pdu = host.io.h2c(4, 9, ttag, 0, &vec![7; 8 * BLOCK]);
            host.io.send(&pdu[..pdu.len() / 3]);
        }
    }
    rig.wait_for_connections(0);
    rig.finish();
}

pub fn half_a_header_for_ever(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |config| config.patience = SHORT) else { return };
    let mut silent = Client::tcp(rig.addr);
    let mut half = Client::tcp(rig.addr);
    half.send(&IcReq::new(0, 0, 0).as_bytes()[..5]);
    let mut open = Client::open(rig.addr, 0);
    rig.check();
    // The target ends them of its own accord.
    silent.expect_end("a connection without a word");
    half.expect_end("half a header");
    open.expect_end("no Connect");
    rig.finish();
}

/// Little memory for queues of the host that the witnesses are as well: what those hold it may have
/// to wait for, until their time is over.
fn own_greed(config: &mut Config) {
    config.memory = MEMORY;
    config.patience = SHORT;
}

/// Queues of a host that has `n` I/O queues beside the first.
fn more_queues(rig: &Rig, host: &Host, n: u16) -> Vec<Client> {
    host.more_queues(rig.addr, n, 128)
}

pub fn reads_that_are_never_taken(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, own_greed) else { return };
    for nsid in [MEM, FILE] {
        let host = rig.host();
        let mut greedy = more_queues(&rig, &host, 3);
        for client in &mut greedy {
            let all: Vec<u8> =
                (0..100).flat_map(|cid| client.capsule(&read(nsid, 0, LARGE).with_cid(cid), &[])).collect();
            client.send(&all);
        }
        // Many rounds: whatever can be held by the greedy is.
        (0..20).for_each(|_| rig.check());
        drop((greedy, host));
        rig.wait_for_connections(0);
    }
    rig.finish();
}

pub fn writes_that_never_send_their_data(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, own_greed) else { return };
    for nsid in [MEM, FILE] {
        let host = rig.host();
        let mut greedy = more_queues(&rig, &host, 3);
        for client in &mut greedy {
            let sqe = write(nsid, 0, LARGE).with_sgl(Sgl::transport(LARGE as u32));
            let all: Vec<u8> = (0..100).flat_map(|cid| client.capsule(&sqe.with_cid(cid), &[])).collect();
            client.send(&all);
        }
        (0..20).for_each(|_| rig.check());
        drop((greedy, host));
        rig.wait_for_connections(0);

        // Data in the capsule that is announced and does not come.
        let host = rig.host();
        let mut greedy = more_queues(&rig, &host, 3);
        for client in &mut greedy {
            let (common, _) = CommonHeader::build(PduType::CapsuleCmd, 0, LARGE as u32, Format::default());
            client.send(&[common.as_bytes(), &write(nsid, 0, LARGE).to_bytes()].concat());
        }
        (0..20).for_each(|_| rig.check());
        drop((greedy, host));
        rig.wait_for_connections(0);
    }
    rig.finish();
}

/// Compare needs memory for the data it receives and for the data it reads: the second must not
/// wait for memory that only the end of other Compares releases.
pub fn compares_that_fill_the_memory(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |config| config.memory = MEMORY) else { return };
    let mut host = rig.host();
    let zeroes = vec![0; LARGE];
    assert!(host.io.call(&write(FILE, 0, LARGE), &zeroes).status.is_success());
    let mut queues = more_queues(&rig, &host, 3);
    let compare = |sgl| ReadWrite::new(0, (LARGE / BLOCK) as u32).to_sqe(io::COMPARE, FILE).with_sgl(sgl);
    for client in &mut queues {
        let sqe = compare(Sgl::in_capsule(0, LARGE as u32));
        let mut writer = client.again();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for cid in 0..40 {
                    let capsule = writer.capsule(&sqe.with_cid(cid), &zeroes);
                    writer.send(&capsule);
                }
            });
            for _ in 0..40 {
                let resp: CapsuleResp = client.recv().expect("an answer").view();
                assert!(Cqe::read(&resp.cqe).is_some_and(|cqe| cqe.status().is_success()));
            }
        });
        rig.check();
    }
    drop((queues, host));
    rig.wait_for_connections(0);
    rig.finish();
}

pub fn log_pages_that_are_never_taken(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |config| config.memory = MEMORY) else { return };
    let mut host = rig.host();
    let page = Sqe::get_log_page(1, 0, 0, LARGE as u32, true);
    let all: Vec<u8> = (0..30).flat_map(|cid| host.admin.capsule(&page.with_cid(cid), &[])).collect();
    host.admin.send(&all);
    (0..20).for_each(|_| rig.check());
    drop(host);
    rig.wait_for_connections(0);
    rig.finish();
}
