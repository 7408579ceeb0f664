//! Arrays that do something wrong on purpose.

use longhaul_block::{BlockIo, DeviceInfo, IoFuture, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut};
use longhaul_sim::Disk;
use longhaul_sim::subject::{Asked, Running, Striped, Subject};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// A flush succeeds at once without flushing.
    NoFlush,
    /// FUA is left out.
    NoFua,
    /// Writes are acknowledged when they begin.
    EarlyEnd,
    /// Zeroes are taken for a discard.
    LazyZeroes,
    /// The last block of some writes is left out.
    ShortWrite,
    /// Two members are in each other's place after a crash.
    Swapped,
}

impl Wrong {
    pub(crate) const ALL: [Wrong; 6] =
        [Wrong::NoFlush, Wrong::NoFua, Wrong::EarlyEnd, Wrong::LazyZeroes, Wrong::ShortWrite, Wrong::Swapped];
}

pub(crate) struct Planted {
    pub(crate) below: Striped,
    pub(crate) wrong: Wrong,
    /// How often it was opened.
    pub(crate) opened: AtomicU64,
}

impl Subject for Planted {
    fn redundancy(&self) -> usize {
        self.below.redundancy()
    }

    fn member_size(&self, rows: u64) -> u64 {
        self.below.member_size(rows)
    }

    fn create<'a>(&'a self, disks: &'a [Disk]) -> Asked<'a, ()> {
        self.below.create(disks)
    }

    fn open<'a>(&'a self, disks: &'a [Disk]) -> Asked<'a, Box<dyn Running>> {
        Box::pin(async move {
            let mut disks = disks.to_vec();
            if self.wrong == Wrong::Swapped && self.opened.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
                disks.swap(0, 1);
            }
            let below = self.below.open(&disks).await?;
            let running: Box<dyn Running> = Box::new(Opened { below, wrong: self.wrong });
            Ok(running)
        })
    }
}

struct Opened {
    below: Box<dyn Running>,
    wrong: Wrong,
}

impl Running for Opened {
    fn info(&self) -> DeviceInfo {
        self.below.info()
    }

    fn io(&self) -> Rc<dyn BlockIo> {
        let block = self.below.info().block_size as usize;
        Rc::new(Io { below: self.below.io(), wrong: self.wrong, block })
    }
}

struct Io {
    below: Rc<dyn BlockIo>,
    wrong: Wrong,
    block: usize,
}

impl BlockIo for Io {
    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        self.below.read(offset, dst)
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        match self.wrong {
            Wrong::NoFua => self.below.write(offset, src, WriteFlags { fua: false }),
            Wrong::EarlyEnd => {
                drop(self.below.write(offset, src, flags));
                IoFuture::ready(Ok(()))
            }
            Wrong::ShortWrite if src.len() > 8 * self.block => {
                self.below.write(offset, src.slice(0..src.len() - self.block), flags)
            }
            _ => self.below.write(offset, src, flags),
        }
    }

    fn flush(&self) -> IoFuture<()> {
        if self.wrong == Wrong::NoFlush { IoFuture::ready(Ok(())) } else { self.below.flush() }
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.below.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        match self.wrong {
            Wrong::LazyZeroes => self.below.discard(offset, len),
            Wrong::NoFua => self.below.write_zeroes(offset, len, ZeroFlags { fua: false, ..flags }),
            _ => self.below.write_zeroes(offset, len, flags),
        }
    }
}
