//! Memory as the kernel counts it, not as a pool does: hosts that ask for more than they take must
//! not make the process grow beyond its bound. By itself in a process, which has the peak alone.

#![allow(dead_code, unreachable_pub, reason = "the client is shared with `hostile`")]

#[path = "hostile/client.rs"]
mod client;

use client::{CC_ENABLE, Client, Host, NQN};
use longhaul_block::MemDevice;
use longhaul_engine::procfs::Process;
use longhaul_target::{Config, Target};
use longhaul_wire::command::{Sgl, Sqe};
use longhaul_wire::fabrics::offset;
use longhaul_wire::identify::cns;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// What the target may use, in bytes.
const MEMORY: usize = 16 << 20;
/// Greedy connections, and Identify commands that each sends: 640 MiB of answers of 4 KiB.
const CONNECTIONS: usize = 32;
const COMMANDS: u32 = 5000;
const ANSWER: u32 = 4096;
/// What the process may grow by: the bound, and as much again for its allocator, threads and the
/// queues of connections.
const GROWTH_KIB: u64 = 2 * (MEMORY as u64 >> 10);
/// A target that takes no more commands does not read on: the host gives up after this.
const BLOCKED: Duration = Duration::from_secs(1);

/// Peak of the resident set in KiB.
fn peak() -> u64 {
    Process::own().peak_resident().expect("a peak") >> 10
}

/// Sends Identify commands and reads none of the answers. The connection, still open, and how
/// many commands it could send.
fn flood(addr: SocketAddr) -> (Client, u32) {
    let (mut admin, _) = Host::admin(addr);
    admin.result(&Sqe::property_set(offset::CC, false, CC_ENABLE));
    admin.stream.set_write_timeout(Some(BLOCKED)).expect("time limit");
    let identify = Sqe::identify(cns::CONTROLLER, 0, 0).with_sgl(Sgl::transport(ANSWER));
    for sent in 0..COMMANDS {
        let sqe = identify.with_cid(admin.next_cid());
        let capsule = admin.capsule(&sqe, &[]);
        if admin.stream.write_all(&capsule).is_err() {
            return (admin, sent);
        }
    }
    (admin, COMMANDS)
}

#[test]
fn hosts_that_ask_and_never_read_do_not_make_the_process_grow() {
    let listen = vec!["127.0.0.1:0".parse().expect("address")];
    let config = Config { listen, threads: 2, memory: MEMORY, ..Config::default() };
    let target = Target::start(config).expect("started");
    let device = Arc::new(MemDevice::new(1 << 20, client::BLOCK as u32).expect("mapped"));
    target.export(NQN, "disk", device, Uuid::new_v4()).expect("exported");
    let addr = target.addresses()[0];
    Host::new(addr, 32, 0).verify(1, 0, 1);
    let before = peak();
    let threads: Vec<_> = (0..CONNECTIONS).map(|_| std::thread::spawn(move || flood(addr))).collect();
    let floods: Vec<(Client, u32)> = threads.into_iter().map(|t| t.join().expect("no panic")).collect();
    // Other hosts are served while those hold all the memory they can get.
    Host::new(addr, 32, 0).verify(1, 16, 2);
    let sent: u64 = floods.iter().map(|(_, sent)| u64::from(*sent)).sum();
    let growth = peak() - before;
    eprintln!("{sent} commands sent, {growth} KiB more than {before} KiB");
    assert!(sent * u64::from(ANSWER) > 4 * MEMORY as u64, "{sent} commands are no load");
    assert!(growth < GROWTH_KIB, "the process grew by {growth} KiB for {sent} commands");
}
