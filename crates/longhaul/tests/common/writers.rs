//! Writers that load a device, and what it has to have of what they wrote.

use super::until;
use longhaul_block::Blocking;
use longhaul_load::AcknowledgedWrites;
use std::sync::Arc;
use std::thread::{JoinHandle, spawn};

/// Bytes of a block that is written at once: a part of a stripe unit.
const BLOCK: usize = 16 << 10;
/// Blocks of each writer.
const EACH: usize = 16;
const WRITERS: usize = 4;

/// The writes of a load on a new device.
#[derive(Clone)]
pub struct Writers(Arc<AcknowledgedWrites>);

impl Writers {
    pub fn new() -> Writers {
        Writers(Arc::new(AcknowledgedWrites::new(fastrand::u64(..), EACH * WRITERS, BLOCK)))
    }

    /// Writes that were acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.0.count()
    }

    /// Writes blocks at random until the device fails, with each writer's last error.
    pub fn load(&self, device: &Arc<Blocking>) -> Vec<JoinHandle<String>> {
        let writer = |number: usize| {
            let (writes, device) = (Arc::clone(&self.0), Arc::clone(device));
            spawn(move || {
                loop {
                    let block = number * EACH + fastrand::usize(..EACH);
                    if let Err(e) = writes.write(&device, block) {
                        return e.to_string();
                    }
                }
            })
        };
        (0..WRITERS).map(writer).collect()
    }

    /// Waits until the load has gone on for so many writes.
    pub fn go_on(&self, writes: u64) {
        let before = self.acknowledged();
        until("acknowledged writes", || self.acknowledged() >= before + writes);
    }

    /// Writes one block.
    pub fn write_one(&self, device: &Blocking) {
        self.0.write(device, 0).expect("written");
    }

    /// Writes every block once.
    pub fn write_all(&self, device: &Blocking) {
        (0..self.0.blocks()).for_each(|block| self.0.write(device, block).expect("written"));
    }

    /// Reads every block: none has lost what was acknowledged, and of a write that was not, none has it later than now.
    pub fn verify(&self, device: &Blocking) {
        for block in 0..self.0.blocks() {
            if let Err(fault) = self.0.check(device, block).expect("read") {
                panic!("{fault}");
            }
        }
    }
}
