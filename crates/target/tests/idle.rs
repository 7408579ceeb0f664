//! What a connection costs that does nothing, as the kernel counts memory. By itself in a process.

#![allow(dead_code, unreachable_pub, reason = "the client is shared with `hostile`")]

#[path = "hostile/client.rs"]
mod client;

use client::{Host, NQN, Name};
use longhaul_block::MemDevice;
use longhaul_engine::procfs::Process;
use longhaul_target::{Config, Target};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::Arc;
use uuid::Uuid;

/// Hosts with an admin queue and an I/O queue each.
const HOSTS: u16 = 400;
const CONNECTIONS: u64 = 2 * HOSTS as u64;
/// Descriptors of both ends, and of everything else.
const DESCRIPTORS: u64 = 2 * CONNECTIONS + 256;
/// KiB that one connection may cost, including this test's end of it (docs/target-limits.md).
const EACH_KIB: f64 = 34.0;

fn resident_kib() -> u64 {
    Process::own().resident().expect("a size") >> 10
}

#[test]
fn idle_connections_cost_little() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    if maximum.is_some_and(|maximum| maximum < DESCRIPTORS) {
        return longhaul_skip::skip!("this process may not have {DESCRIPTORS} descriptors");
    }
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("the hard limit is allowed");
    let listen = vec!["127.0.0.1:0".parse().expect("address")];
    let target = Target::start(Config { listen, threads: 2, ..Config::default() }).expect("started");
    let device = Arc::new(MemDevice::new(1 << 20, client::BLOCK as u32).expect("mapped"));
    target.export(NQN, "disk", device, Uuid::new_v4()).expect("exported");
    let addr = target.addresses()[0];
    Host::new(addr, 128, 0).verify(1, 0, 1);
    let before = resident_kib();
    let hosts: Vec<Host> = (0..HOSTS).map(|n| Host::named(addr, 128, 0, Name::other(n))).collect();
    let each = (resident_kib() - before) as f64 / CONNECTIONS as f64;
    eprintln!("{each:.1} KiB for each of {CONNECTIONS} connections");
    assert!(each <= EACH_KIB, "{each:.1} KiB for each of {CONNECTIONS} connections");
    drop(hosts);
}
