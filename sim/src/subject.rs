//! What is simulated: an array, as something that is made of disks, opened
//! again after every crash, and asked to heal.

use crate::disk::Disk;
use futures_util::future::{FutureExt, LocalBoxFuture};
use longhaul_array::Stripe;
use longhaul_block::{BlockDevice, BlockIo, DeviceInfo};
use std::rc::Rc;
use std::sync::Arc;

/// The result of something that is asked of a subject; in words why not.
pub type Asked<'a, T> = LocalBoxFuture<'a, Result<T, String>>;

/// A kind of array.
pub trait Subject {
    /// Members that may be lost, or wrong, at a time.
    fn redundancy(&self) -> usize;

    /// Bytes that a member needs for `rows` stripes.
    fn member_size(&self, rows: u64) -> u64;

    /// Makes an array of empty disks.
    fn create<'a>(&'a self, disks: &'a [Disk]) -> Asked<'a, ()>;

    /// Brings it into use, after a crash or for the first time.
    fn open<'a>(&'a self, disks: &'a [Disk]) -> Asked<'a, Box<dyn Running>>;
}

/// An array in use.
pub trait Running {
    /// What it is.
    fn info(&self) -> DeviceInfo;

    /// The way in.
    fn io(&self) -> Rc<dyn BlockIo>;
}

/// Members in turn, without redundancy and without superblocks.
#[derive(Debug)]
pub struct Striped {
    /// Bytes of a stripe unit.
    pub unit: u64,
}

struct Opened {
    info: DeviceInfo,
    io: Rc<dyn BlockIo>,
}

impl Running for Opened {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn io(&self) -> Rc<dyn BlockIo> {
        Rc::clone(&self.io)
    }
}

/// Opens a device for what it is.
pub async fn open(device: &dyn BlockDevice) -> Result<Box<dyn Running>, String> {
    let io = device.open().await.map_err(|e| e.to_string())?;
    Ok(Box::new(Opened { info: device.info(), io }))
}

impl Subject for Striped {
    fn redundancy(&self) -> usize {
        0
    }

    fn member_size(&self, rows: u64) -> u64 {
        rows * self.unit
    }

    fn create<'a>(&'a self, _disks: &'a [Disk]) -> Asked<'a, ()> {
        async { Ok(()) }.boxed_local()
    }

    fn open<'a>(&'a self, disks: &'a [Disk]) -> Asked<'a, Box<dyn Running>> {
        async {
            let members = disks.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn BlockDevice>).collect();
            let stripe = Stripe::new(members, self.unit).map_err(|e| e.to_string())?;
            open(&stripe).await
        }
        .boxed_local()
    }
}
