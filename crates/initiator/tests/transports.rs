//! Targets that are reached over other transports than TCP.

use longhaul_block::{BlockDevice, Blocking, MemDevice};
use longhaul_initiator::transport::{InProcess, Transport};
use longhaul_initiator::{Options, RemoteDevice};
use longhaul_target::{Config, Target, TransportListener};
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

const NQN: &str = "nqn.2026-11.io.longhaul:test:memory";

#[test]
fn skeleton() {
    let transport: Arc<dyn Transport> = Arc::new(InProcess::new());
    let listener = TransportListener { transport: Arc::clone(&transport), address: "demo".into() };
    let target = Target::start(Config { transports: vec![listener], ..Config::default() }).expect("a target");
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20, 4096).expect("memory"));
    target.export(NQN, "memory", device, Uuid::new_v4()).expect("exported");
    let transports = BTreeMap::from([("here".to_owned(), transport)]);
    let options = Options { transports, ..Options::default() };
    let remote =
        RemoteDevice::connect_blocking(&format!("nvme+here://demo/{NQN}").parse().expect("a URI"), options);
    let disk = Blocking::open(remote.expect("connected")).expect("opened");
    let data: Vec<u8> = (0..3 << 20).map(|i: u32| (i * 7 >> 3) as u8).collect();
    disk.write_at(&data, 4096).expect("written");
    let mut back = vec![0; data.len()];
    disk.read_at(&mut back, 4096).expect("read");
    assert!(back == data);
}
