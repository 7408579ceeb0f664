//! Strangers that never stop sending: connections, admin commands, commands that are refused. The
//! rate of one address is limited, and other hosts are not slowed down.

use crate::client::{BLOCK, CC_ENABLE, Client, Host, Name, PATIENCE, STRANGER, read};
use crate::rig::{FILE, MEM, Rig};
use longhaul_engine::EngineKind;
use longhaul_target::Config;
use longhaul_wire::command::{ReadWrite, Sgl, Sqe, io};
use longhaul_wire::completion::{Cqe, Status};
use longhaul_wire::fabrics::offset;
use longhaul_wire::pdu::{CapsuleResp, IcReq, PduType};
use std::io::{ErrorKind, Read};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;
use zerocopy::IntoBytes;

/// Rounds of others beside a flood.
const ROUNDS: usize = 20;
/// Commands of a stranger that are under way on one queue.
const DEPTH: u16 = 28;
/// Admin commands that an address has at once, and in each second from then on (docs/target-limits.md).
const BURST: usize = 2000;
const RATE: usize = 2000;
/// Connections that an address may open at once.
const CONNECTIONS: usize = 2048;

/// Ends a flood when dropped, so that a test that fails does not wait for it without end.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Others go on while `flood` does, and hosts that come are let in. The flood returns when it is
/// to end.
fn beside(rig: &Rig, flood: impl Fn(&AtomicBool) + Sync) {
    let (over, begun) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        let strangers = scope.spawn(|| flood(&over));
        let ending = Ending(&over);
        for n in 0..ROUNDS {
            rig.check();
            if n % 5 == 0 {
                let mut host = Host::named(rig.addr, 32, 0, Name::other(100 + n as u16));
                host.verify(FILE, 16 * n as u64, n as u64);
                host.verify(MEM, 16 * n as u64, n as u64);
            }
            assert!(begun.elapsed() < PATIENCE);
        }
        drop(ending);
        strangers.join().expect("the flood goes on to its end");
    });
    rig.wait_for_connections(0);
}

/// A stranger's admin queue, enabled, with room for all of [`DEPTH`].
fn admin(rig: &Rig, n: u16) -> Client {
    let (mut admin, _) = Host::admin_named(rig.addr, 63, &Name::other(n));
    admin.result(&Sqe::property_set(offset::CC, false, CC_ENABLE));
    admin
}

/// Sends `sqe` [`DEPTH`] times, again and again, and gives the status of each answer to `judge`;
/// how many there were.
fn again(client: &mut Client, sqe: &Sqe, over: &AtomicBool, judge: impl Fn(Status)) -> usize {
    let all: Vec<u8> = (0..DEPTH).flat_map(|cid| client.capsule(&sqe.with_cid(1000 + cid), &[])).collect();
    let mut answers = 0;
    while !over.load(Ordering::Relaxed) {
        client.send(&all);
        for _ in 0..DEPTH {
            let status = loop {
                let pdu = client.recv().expect("an answer");
                match pdu.kind {
                    PduType::C2HData if pdu.flags & 8 != 0 => break Status::SUCCESS,
                    PduType::C2HData => {}
                    _ => {
                        let resp: CapsuleResp = pdu.view();
                        break Cqe::read(&resp.cqe).expect("16 bytes").status();
                    }
                }
            };
            judge(status);
            answers += 1;
        }
    }
    answers
}

/// Four strangers send an admin command without end. No more is answered than an address may ask
/// for, however fast this machine is.
fn admin_flood(kind: EngineKind, sqe: &Sqe, judge: impl Fn(Status) + Send + Sync + Copy) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let (answers, begun) = (AtomicUsize::new(0), Instant::now());
    beside(&rig, |over| {
        std::thread::scope(|scope| {
            for n in 0..4 {
                let mut admin = admin(&rig, n);
                let answers = &answers;
                scope
                    .spawn(move || answers.fetch_add(again(&mut admin, sqe, over, judge), Ordering::Relaxed));
            }
        });
    });
    let (answers, seconds) = (answers.into_inner(), begun.elapsed().as_secs_f64());
    let most = BURST + (RATE as f64 * (seconds + 1.0)) as usize;
    assert!(answers <= most, "{answers} admin commands in {seconds:.1} s");
    rig.finish();
}

pub fn identify_without_end(kind: EngineKind) {
    let identify = Sqe::identify(1, 0, 0).with_sgl(Sgl::transport(4096));
    admin_flood(kind, &identify, |status| assert_eq!(status, Status::SUCCESS));
}

pub fn aborts_without_end(kind: EngineKind) {
    // Of commands that there are not, of each other, and more than ACL.
    admin_flood(kind, &Sqe::abort(0, 1003), |_| {});
}

pub fn event_requests_without_end(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    beside(&rig, |over| {
        let mut admin = admin(&rig, 1);
        for cid in 500..504 {
            let held = admin.capsule(&Sqe::async_event_request().with_cid(cid), &[]);
            admin.send(&held);
        }
        let code = |status: Status| (status.sct(), status.sc());
        let refused = |status| assert_eq!(code(status), code(Status::AER_LIMIT));
        again(&mut admin, &Sqe::async_event_request(), over, refused);
        // The controller is as good as before.
        admin.result(&Sqe::keep_alive());
    });
    rig.finish();
}

/// Lengths that no command may have: 4 GiB, in the capsule's place or the host's.
pub fn descriptors_of_4_gib(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    beside(&rig, |over| {
        let mut host = Host::named(rig.addr, 32, 0, Name::other(1));
        let sqe = ReadWrite::new(0, 1 << 16).to_sqe(io::WRITE, MEM).with_sgl(Sgl::transport(u32::MAX - 3));
        again(&mut host.io, &sqe, over, |status| assert!(!status.is_success()));
        assert!(rig.memory_used() < 1 << 20, "refused commands take no memory");
        host.verify(MEM, 0, 1);
    });
    rig.finish();
}

/// Four strangers send an I/O command that is refused, without end, each on a queue of its own. No
/// more are refused than the limit of an address, plus those received before the limit was reached.
fn refused_flood(kind: EngineKind, sqe: &Sqe, refused: Status) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let (answers, begun) = (AtomicUsize::new(0), Instant::now());
    let code = |status: Status| (status.sct(), status.sc());
    beside(&rig, |over| {
        std::thread::scope(|scope| {
            for n in 0..4 {
                let mut host = Host::named(rig.addr, 32, 0, Name::other(n));
                let answers = &answers;
                scope.spawn(move || {
                    let judge = |status| assert_eq!(code(status), code(refused));
                    answers.fetch_add(again(&mut host.io, sqe, over, judge), Ordering::Relaxed);
                    // The queue is as good as before.
                    host.verify(MEM, 16 * u64::from(n), n.into());
                });
            }
        });
    });
    let (answers, seconds) = (answers.into_inner(), begun.elapsed().as_secs_f64());
    let most = BURST + (RATE as f64 * (seconds + 1.0)) as usize + 4 * usize::from(DEPTH);
    assert!(answers <= most, "{answers} commands refused in {seconds:.1} s");
    rig.finish();
}

pub fn reads_beyond_the_end_without_end(kind: EngineKind) {
    refused_flood(kind, &read(MEM, 1 << 40, BLOCK), Status::LBA_OUT_OF_RANGE);
}

/// The protocol refuses these, before they are commands of a queue.
pub fn descriptors_of_an_unknown_kind_without_end(kind: EngineKind) {
    let sqe = read(MEM, 0, BLOCK).with_sgl(Sgl::make(0, BLOCK as u32, 0xF));
    refused_flood(kind, &sqe, Status::SGL_TYPE);
}

pub fn fabrics_commands_without_end(kind: EngineKind) {
    refused_flood(kind, &Sqe::property_set(offset::CC, false, CC_ENABLE), Status::INVALID_OPCODE);
}

/// Half an ICReq, and the next connection: a few hundred are open at a time.
pub fn half_open_connections_without_end(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |config| config.max_connections = 256) else { return };
    let opened = AtomicUsize::new(0);
    beside(&rig, |over| {
        let mut open = std::collections::VecDeque::new();
        while !over.load(Ordering::Relaxed) || opened.load(Ordering::Relaxed) < 400 {
            let Ok(mut client) = Client::tcp_from(STRANGER, rig.addr) else { continue };
            client.send(&IcReq::new(0, 0, 0).as_bytes()[..60]);
            open.push_back(client);
            opened.fetch_add(1, Ordering::Relaxed);
            if open.len() > 200 {
                open.pop_front();
            }
            assert!(rig.connections() <= 256, "{} connections", rig.connections());
        }
    });
    rig.finish();
}

/// Complete Connects that are refused, each on a connection of its own, to a subsystem that there is not.
pub fn refused_connects_without_end(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let name = Name { nqn: "nqn.2014-08.org.example:none".into(), ..Name::other(1) };
    let refused = AtomicUsize::new(0);
    beside(&rig, |over| {
        while !over.load(Ordering::Relaxed) || refused.load(Ordering::Relaxed) < 200 {
            let mut client = Client::tcp_from(STRANGER, rig.addr).expect("the kernel takes it");
            client.send(IcReq::new(0, 0, 0).as_bytes());
            // Beyond what an address may open it is closed instead.
            if client.recv().is_some() {
                let done = client.connect(&Sqe::connect(0, 31, 0, 0), &name.connect_data(0xFFFF));
                assert!(!done.status.is_success());
                refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    rig.finish();
}

/// Connections that come and go at once. Beyond what an address may open, those of the stranger
/// are closed, and hosts elsewhere are let in.
pub fn connections_that_come_and_go(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let refused = AtomicBool::new(false);
    beside(&rig, |over| {
        let mut opened = 0;
        while !over.load(Ordering::Relaxed) || opened < 2 * CONNECTIONS {
            drop(Client::tcp_from(STRANGER, rig.addr).expect("the kernel takes it"));
            opened += 1;
        }
        // A peer that stays hears its end at once: it has no place to wait for its turn in.
        let mut closed = |_| {
            let mut stream = Client::tcp_from(STRANGER, rig.addr).expect("the kernel takes it").stream;
            stream.set_read_timeout(Some(std::time::Duration::from_millis(100))).expect("time limit");
            match stream.read(&mut [0]) {
                Ok(0) => true,
                Err(e) => e.kind() == ErrorKind::ConnectionReset,
                Ok(_) => false,
            }
        };
        let was = (0..20).any(&mut closed);
        refused.store(was, Ordering::Relaxed);
    });
    // Where the machine is so slow that the stranger never was too fast, nothing is refused.
    if !refused.into_inner() {
        longhaul_skip::skip_part!("connections were never opened faster than an address may");
    }
    rig.finish();
}

/// Queues full of reads, of which a few bytes are taken now and then.
pub fn reads_that_are_taken_byte_by_byte(kind: EngineKind) {
    let few = |config: &mut Config| config.memory = 64 << 20;
    let Some(rig) = Rig::new(kind, few) else { return };
    beside(&rig, |over| {
        let host = Host::named(rig.addr, 32, 0, Name::other(1));
        let mut queues = host.more_queues(rig.addr, 60, 64);
        for client in &mut queues {
            let sqe = read(FILE, 0, 256 * BLOCK);
            let all: Vec<u8> = (0..60).flat_map(|cid| client.capsule(&sqe.with_cid(cid), &[])).collect();
            client.send(&all);
        }
        while !over.load(Ordering::Relaxed) {
            for client in &mut queues {
                client.stream.read_exact(&mut [0; 16]).expect("there is more");
            }
        }
    });
    rig.finish();
}
