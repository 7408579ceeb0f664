//! An array with its disks, and the model of its content.

use super::{Disk, Model, Power, disks, make, start};
use fastrand::Rng;
use longhaul_array::{ArrayDevice, Condition, Layout, Options};
use longhaul_block::{BlockDevice, BlockIo};
use longhaul_engine::sleep;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

pub const UNIT: u64 = 16 << 10;
pub const SIZE: u64 = 4 << 20;

pub struct Rig {
    pub disks: Vec<Arc<Disk>>,
    pub power: Arc<Power>,
    pub array: Arc<ArrayDevice>,
    pub io: Rc<dyn BlockIo>,
    pub model: Model,
}

pub async fn rig(layout: Layout, width: usize, options: Options) -> Rig {
    let (disks, power) = disks(width, SIZE);
    make(&disks, layout, UNIT).await;
    let array = start(&disks, options).await.expect("assembled");
    let io = array.open().await.expect("opened");
    let model = Model::new(array.info().size);
    Rig { disks, power, array, io, model }
}

impl Rig {
    pub async fn write_some(&self, seed: u64, writes: u64) {
        let mut random = Rng::with_seed(seed);
        for _ in 0..writes {
            let count = 1 + random.u64(..14);
            let first = random.u64(..self.model.blocks() - count);
            self.model.write(&*self.io, first, count).await.expect("written");
        }
    }

    pub async fn fill(&self) {
        for first in (0..self.model.blocks()).step_by(12) {
            let count = 12.min(self.model.blocks() - first);
            self.model.write(&*self.io, first, count).await.expect("written");
        }
    }

    pub async fn condition(&self, member: usize) -> Condition {
        self.array.status().await.expect("status").members[member].condition
    }

    pub async fn until(&self, member: usize, condition: Condition) {
        for _ in 0..10_000 {
            if self.condition(member).await == condition {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
        panic!("member {member} is {:?} and not {condition:?}", self.condition(member).await);
    }
}
