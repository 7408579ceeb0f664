//! Bad neighbours: one host's behaviour must not slow down or disconnect another host.

use crate::client::{BLOCK, Client, Host, Name, read, write};
use crate::rig::{FILE, MEM, Rig, SHORT};
use longhaul_block::BackendSpec;
use longhaul_engine::EngineKind;
use longhaul_target::{Config, Patience};
use longhaul_wire::command::{ReadWrite, Sgl, Sqe, io};
use longhaul_wire::pdu::{CommonHeader, Format, IcReq, PduType};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use zerocopy::IntoBytes;

/// Memory of the target: each of its parts for the data of commands has 20
/// MiB, less than the hosts below ask for.
const MEMORY: usize = 64 << 20;
const LARGE: usize = 1 << 20;
/// Queues of a stranger, with a megabyte on each: three times a part.
const QUEUES: u16 = 60;
/// Longer than any test.
const NEVER: Duration = Duration::from_secs(36_000);
/// Rounds of others in which all that can be held up is.
const ROUNDS: usize = 20;

fn little_memory(config: &mut Config) {
    config.memory = MEMORY;
}

/// A host with many queues, beside the witnesses.
fn stranger(rig: &Rig) -> (Host, Vec<Client>) {
    let host = Host::named(rig.addr, 32, 0, Name::other(1));
    let queues = host.more_queues(rig.addr, QUEUES, 128);
    (host, queues)
}

/// Others go on, and a host that comes now is let in and served.
fn others_go_on(rig: &Rig) {
    for n in 0..ROUNDS {
        rig.check();
        if n % 5 == 0 {
            let mut host = Host::named(rig.addr, 32, 0, Name::other(100 + n as u16));
            host.verify(FILE, 16 * n as u64, n as u64);
            host.verify(MEM, 16 * n as u64, n as u64);
        }
    }
}

/// The capsule of a write that has more data than comes with it.
fn announcement(nsid: u32) -> Vec<u8> {
    let (common, _) = CommonHeader::build(PduType::CapsuleCmd, 0, LARGE as u32, Format::default());
    [common.as_bytes(), &write(nsid, 0, LARGE).to_bytes()].concat()
}

pub fn data_in_the_capsule_that_does_not_come(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, little_memory) else { return };
    let (host, mut queues) = stranger(&rig);
    for client in &mut queues {
        client.send(&announcement(FILE));
        client.send(b"x");
    }
    others_go_on(&rig);
    drop((host, queues));
    rig.wait_for_connections(0);
    rig.finish();
}

pub fn r2ts_that_are_not_answered(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, little_memory) else { return };
    let (host, mut queues) = stranger(&rig);
    let sqe = write(FILE, 0, LARGE).with_sgl(Sgl::transport(LARGE as u32));
    for client in &mut queues {
        let capsule = client.capsule(&sqe, &[]);
        client.send(&capsule);
    }
    // Others read and write in the part that the R2Ts are for.
    others_go_on(&rig);
    drop((host, queues));
    rig.wait_for_connections(0);
    rig.finish();
}

/// Sends `bytes` again and again until the connection ends.
fn until_the_end(client: &mut Client, bytes: &[u8]) {
    let (ended, mut writer) = (AtomicBool::new(false), client.again());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) && writer.stream.write_all(bytes).is_ok() {
                // Slower than any data rate: this test is about the pace.
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        while client.recv().is_some() {}
        ended.store(true, Ordering::Relaxed);
    });
}

/// Two limits, each alone: the time for all data of a command, and the least
/// that comes while something is owed.
pub fn a_byte_now_and_then(kind: EngineKind) {
    let due = Patience {
        stall: Duration::from_secs(2),
        stall_bytes: 1,
        data: Duration::from_secs(1),
        data_rate: u64::MAX,
        ..SHORT
    };
    let slow = Patience { stall: Duration::from_secs(2), data: NEVER, ..SHORT };
    for patience in [due, slow] {
        let Some(rig) = Rig::new(kind, |config| config.patience = patience) else { return };
        let mut host = Host::named(rig.addr, 32, 0, Name::other(1));
        host.io.send(&announcement(FILE));
        until_the_end(&mut host.io, b"x");
        rig.check();
        drop(host);
        rig.wait_for_connections(0);
        rig.finish();
    }
}

/// An R2T has its time, whatever else the queue does meanwhile.
pub fn an_r2t_that_is_passed_over(kind: EngineKind) {
    let patience = Patience {
        stall: Duration::from_secs(2),
        stall_bytes: 1,
        data: Duration::from_secs(1),
        data_rate: u64::MAX,
        ..SHORT
    };
    let Some(rig) = Rig::new(kind, |config| config.patience = patience) else { return };
    let mut host = Host::named(rig.addr, 32, 0, Name::other(1));
    let sqe = write(FILE, 0, LARGE).with_sgl(Sgl::transport(LARGE as u32)).with_cid(77);
    let capsule = host.io.capsule(&sqe, &[]);
    host.io.send(&capsule);
    host.io.r2t();
    let flush = host.io.capsule(&Sqe::flush(FILE).with_cid(78), &[]);
    until_the_end(&mut host.io, &flush);
    rig.check();
    drop(host);
    rig.wait_for_connections(0);
    rig.finish();
}

pub fn half_a_capsule_for_ever(kind: EngineKind) {
    let patience = Patience { stall: Duration::from_secs(2), ..SHORT };
    let Some(rig) = Rig::new(kind, |config| config.patience = patience) else { return };
    let mut host = Host::named(rig.addr, 32, 0, Name::other(1));
    let capsule = host.io.capsule(&read(MEM, 0, BLOCK), &[]);
    host.io.send(&capsule[..capsule.len() / 2]);
    host.io.expect_end("half a capsule on an I/O queue");
    let capsule = host.admin.capsule(&Sqe::identify(1, 0, 0), &[]);
    host.admin.send(&capsule[..5]);
    host.admin.expect_end("half a capsule on an admin queue");
    drop(host);
    rig.wait_for_connections(0);
    rig.finish();
}

pub fn a_controller_that_is_never_enabled(kind: EngineKind) {
    let patience = Patience { enable: Duration::from_secs(1), ..SHORT };
    let Some(rig) = Rig::new(kind, |config| config.patience = patience) else { return };
    // A Keep Alive Timeout of none is for hosts that use their controller.
    let mut enabled = Host::named(rig.addr, 32, 0, Name::other(1));
    let (mut idle, _) = Host::admin_named(rig.addr, 31, &Name::other(2));
    idle.expect_end("a controller that is not enabled");
    enabled.verify(MEM, 0, 1);
    drop((enabled, idle));
    rig.wait_for_connections(0);
    rig.finish();
}

/// Every connection may have a few replies wait for it, and no more.
pub fn identify_that_is_never_read(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, little_memory) else { return };
    let mut silent = Vec::new();
    for n in 0..40 {
        let name = Name::other(n);
        let (mut admin, _) = Host::admin_named(rig.addr, 1022, &name);
        admin.result(&Sqe::property_set(longhaul_wire::fabrics::offset::CC, false, crate::client::CC_ENABLE));
        let page = Sqe::identify(1, 0, 0).with_sgl(Sgl::transport(4096));
        let all: Vec<u8> = (0..1000).flat_map(|cid| admin.capsule(&page.with_cid(cid), &[])).collect();
        // What the target does not take any more stays here.
        admin.stream.set_nonblocking(true).expect("set");
        let _ = admin.stream.write(&all);
        silent.push(admin);
    }
    others_go_on(&rig);
    drop(silent);
    rig.wait_for_connections(0);
    rig.finish();
}

/// Sends as many commands as fit in four queues; how many were answered when
/// the others have had their rounds.
fn answered_meanwhile(rig: &Rig, sqe: Sqe) -> usize {
    let host = Host::named(rig.addr, 32, 0, Name::other(1));
    let mut queues = host.more_queues(rig.addr, 4, 1000);
    let answered = Arc::new(AtomicUsize::new(0));
    for client in &mut queues {
        let all: Vec<u8> = (0..900).flat_map(|cid| client.capsule(&sqe.with_cid(cid), &[])).collect();
        client.send(&all);
    }
    let readers: Vec<_> = queues
        .iter()
        .map(|client| {
            let (mut client, answered) = (client.again(), Arc::clone(&answered));
            std::thread::spawn(move || {
                while client.recv().is_some() {
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    others_go_on(rig);
    let answered = answered.load(Ordering::Relaxed);
    for client in &queues {
        let _ = client.stream.shutdown(std::net::Shutdown::Both);
    }
    readers.into_iter().for_each(|reader| reader.join().expect("read"));
    drop((host, queues));
    rig.wait_for_connections(0);
    answered
}

/// 3,600 times 32 MiB take the memory of a machine tens of seconds; the rounds
/// of the others do not wait for that.
pub fn zeroes_for_ever(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let large = BackendSpec::parse("mem:64MiB,block=4096").expect("understood").open().expect("opened");
    let nsid = rig.export(large);
    let zeroes = ReadWrite::new(0, (32 << 20) / BLOCK as u32).to_sqe(io::WRITE_ZEROES, nsid);
    let answered = answered_meanwhile(&rig, zeroes);
    assert!(answered < 1800, "{answered} of 3600 done before {ROUNDS} rounds of the others");
    rig.remove(nsid);
    rig.finish();
}

pub fn verify_for_ever(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let verify = ReadWrite::new(0, (8 << 20) / BLOCK as u32).to_sqe(io::VERIFY, FILE);
    let answered = answered_meanwhile(&rig, verify);
    assert!(answered < 1800, "{answered} of 3600 done before {ROUNDS} rounds of the others");
    rig.finish();
}

pub fn more_connections_than_there_may_be(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |config| config.max_connections = 64) else { return };
    rig.check();
    let mut idle: Vec<_> = (0..200).map(|_| Client::tcp(rig.addr)).collect();
    for client in idle.iter_mut().skip(150) {
        client.send(&IcReq::new(0, 0, 0).as_bytes()[..60]);
    }
    for n in 0..3 {
        let mut host = Host::named(rig.addr, 32, 0, Name::other(n));
        host.verify(MEM, 0, 1);
        assert!(rig.connections() <= 64, "{} connections", rig.connections());
    }
    // The oldest gave way; the target has ended them of its own accord.
    idle[0].expect_end("the oldest idle connection");
    rig.check();
    drop(idle);
    rig.wait_for_connections(0);
    rig.finish();
}
