//! Reads and writes a remote namespace from plain code.
//!
//! ```text
//! cargo run -p longhaul-initiator --example remote_disk -- nvme+tcp://HOST[:PORT]/SUBNQN[?nsid=N]
//! ```
//!
//! It changes the first block for a moment and then puts it back. Without an
//! argument it starts a target with 64 MiB of memory in this process.

use longhaul_block::{BlockDevice, Blocking, MemDevice};
use longhaul_target::{Config, Target};
use std::error::Error;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let (uri, _target) = match std::env::args().nth(1) {
        Some(uri) => (uri, None),
        None => serve_memory().map(|(uri, target)| (uri, Some(target)))?,
    };

    let remote = longhaul_initiator::open(&uri)?;
    println!("{uri}: {:.3} ms away", remote.controller().round_trip.0.as_secs_f64() * 1e3);
    let disk = Blocking::open(remote)?;
    let info = disk.info();
    println!("{} bytes in blocks of {}", info.size, info.block_size);

    let mut before = vec![0; info.block_size as usize];
    disk.read_at(&mut before, 0)?;

    let mut block = vec![0; before.len()];
    block[..13].copy_from_slice(b"Hello, remote");
    disk.write_at(&block, 0)?;
    disk.flush()?;

    let mut after = vec![0; block.len()];
    disk.read_at(&mut after, 0)?;
    assert_eq!(after, block, "what was acknowledged is there");
    println!("read back: {}", String::from_utf8_lossy(&after[..13]));

    disk.write_at(&before, 0)?;
    disk.flush()?;
    Ok(())
}

/// A target on a port of loopback that is free; it ends when it is dropped.
fn serve_memory() -> Result<(String, Target), Box<dyn Error>> {
    let target = Target::start(Config { listen: vec!["127.0.0.1:0".parse()?], ..Config::default() })?;
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20, 4096)?);
    let nqn = "nqn.2026-11.io.longhaul:example:memory";
    target.export(nqn, "memory", device, uuid::Uuid::new_v4())?;
    Ok((format!("nvme+tcp://{}/{nqn}", target.addresses()[0]), target))
}
