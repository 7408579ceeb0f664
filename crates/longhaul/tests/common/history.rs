//! A load that knows what it was promised: which writes of each block were acknowledged, and which
//! were only begun.

use super::until;
use longhaul_block::{Blocking, IoResult};
use longhaul_initiator::{Options, RemoteDevice};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Bytes of a block that is written at once: a part of a stripe unit.
pub const BLOCK: usize = 16 << 10;
/// Blocks of each writer.
const EACH: usize = 16;
const WRITERS: usize = 4;
/// What a crash leaves old or new as a whole.
const SECTOR: usize = 512;

/// The writes of one block. Numbers of writes only grow.
#[derive(Clone, Copy, Default)]
struct Writes {
    /// The last one that was acknowledged.
    acked: u64,
    /// The last one that was begun.
    begun: u64,
}

/// The blocks of a device, as their writers know them.
pub struct History {
    blocks: Vec<Mutex<Writes>>,
    /// Writes that were acknowledged.
    pub acked: AtomicU64,
}

/// A device behind `uri`, of a host that takes no lost connection up again.
pub fn connect(uri: &str) -> Result<Blocking, String> {
    let kato = Duration::from_secs(2);
    let options = Options { ctrl_loss: Some(Duration::ZERO), kato, ..Options::default() };
    let uri = uri.parse().map_err(|e| format!("{uri}: {e}"))?;
    let device = RemoteDevice::connect_blocking(&uri, options).map_err(|e| e.to_string())?;
    Blocking::open(device).map_err(|e| e.to_string())
}

fn content(block: usize, number: u64) -> Vec<u8> {
    let mut sector = Vec::with_capacity(SECTOR);
    while sector.len() < SECTOR {
        sector.extend((block as u64).to_le_bytes());
        sector.extend(number.to_le_bytes());
    }
    sector.repeat(BLOCK / SECTOR)
}

impl History {
    pub fn new() -> Arc<History> {
        let blocks = (0..EACH * WRITERS).map(|_| Mutex::default()).collect();
        Arc::new(History { blocks, acked: AtomicU64::new(0) })
    }

    fn write(&self, device: &Blocking, block: usize) -> IoResult<()> {
        let mut writes = self.blocks[block].lock().expect("no panic");
        writes.begun += 1;
        device.write_at(&content(block, writes.begun), (block * BLOCK) as u64)?;
        writes.acked = writes.begun;
        self.acked.fetch_add(1, SeqCst);
        Ok(())
    }

    /// Writes blocks at random until the device fails, with each writer's last error.
    pub fn load(self: &Arc<Self>, device: &Arc<Blocking>) -> Vec<std::thread::JoinHandle<String>> {
        let writer = |number: usize| {
            let (history, device) = (Arc::clone(self), Arc::clone(device));
            std::thread::spawn(move || {
                loop {
                    let block = number * EACH + fastrand::usize(..EACH);
                    if let Err(e) = history.write(&device, block) {
                        return e.to_string();
                    }
                }
            })
        };
        (0..WRITERS).map(writer).collect()
    }

    /// Waits until the load has gone on for so many writes.
    pub fn go_on(&self, writes: u64) {
        let before = self.acked.load(SeqCst);
        until("acknowledged writes", || self.acked.load(SeqCst) >= before + writes);
    }

    /// Writes one block.
    pub fn write_one(&self, device: &Blocking) {
        self.write(device, 0).expect("written");
    }

    /// Writes every block once.
    pub fn write_all(&self, device: &Blocking) {
        (0..self.blocks.len()).for_each(|block| self.write(device, block).expect("written"));
    }

    /// Reads every block: each sector has the last acknowledged write, or one that was begun after it.
    /// What is read then has to stay: a write that comes later is a stale one.
    pub fn verify(&self, device: &Blocking) {
        for (block, writes) in self.blocks.iter().enumerate() {
            let mut read = vec![0; BLOCK];
            device.read_at(&mut read, (block * BLOCK) as u64).expect("read");
            let numbers: Vec<u64> = read.chunks(SECTOR).map(|sector| number_in(sector, block)).collect();
            let (least, most) = (numbers.iter().min().copied(), numbers.iter().max().copied());
            let (least, most) = (least.expect("sectors"), most.expect("sectors"));
            let mut writes = writes.lock().expect("no panic");
            let Writes { acked, begun } = *writes;
            assert!(acked <= least, "block {block} has write {least}, and {acked} was acknowledged");
            assert!(most <= begun, "block {block} has write {most}, and {begun} is the last one");
            if least == begun {
                writes.acked = begun;
                continue;
            }
            drop(writes);
            // In doubt no longer: if the write that was begun comes after this one, it is a stale one.
            self.write(device, block).expect("written");
        }
    }
}

/// The write that a sector is of; 0 for one that was never written.
fn number_in(sector: &[u8], block: usize) -> u64 {
    if sector.iter().all(|byte| *byte == 0) {
        return 0;
    }
    let word = |at: usize| u64::from_le_bytes(sector[at..at + 8].try_into().expect("8 bytes"));
    let number = word(8);
    assert_eq!(sector, &content(block, number)[..SECTOR], "a sector of block {block}");
    number
}
