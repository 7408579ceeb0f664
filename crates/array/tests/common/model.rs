//! Possible contents of each sector of an array: an independent account of acknowledged writes and
//! of those under way. (A write that a power cut interrupts is torn by sectors, like the disks' own
//! writes.)

use longhaul_array::BLOCK;
use longhaul_block::{BlockIo, IoResult, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut};
use std::cell::{Cell, RefCell};

/// Bytes that are written atomically.
const SECTOR: u64 = 512;
const PER_BLOCK: u64 = BLOCK / SECTOR;

/// The stamp of a sector of zeroes.
const ZERO: u64 = 0;

pub struct Model {
    /// The stamps that each sector may hold: that of the last acknowledged write, then those begun
    /// since.
    allowed: RefCell<Vec<Vec<u64>>>,
    busy: RefCell<Vec<bool>>,
    stamp: Cell<u64>,
}

fn fill(stamp: u64, sector: u64, out: &mut [u8]) {
    if stamp == ZERO {
        return out.fill(0);
    }
    for (i, word) in out.chunks_exact_mut(8).enumerate() {
        let value = stamp.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (sector << 20) ^ i as u64;
        word.copy_from_slice(&value.to_le_bytes());
    }
}

fn sectors(first: u64, count: u64) -> std::ops::Range<usize> {
    (first * PER_BLOCK) as usize..((first + count) * PER_BLOCK) as usize
}

impl Model {
    pub fn new(size: u64) -> Model {
        let blocks = (size / BLOCK) as usize;
        Model {
            allowed: RefCell::new(vec![vec![ZERO]; blocks * PER_BLOCK as usize]),
            busy: RefCell::new(vec![false; blocks]),
            stamp: Cell::new(ZERO),
        }
    }

    /// The array has grown, by zeroes.
    pub fn grow(&self, size: u64) {
        let blocks = (size / BLOCK) as usize;
        self.allowed.borrow_mut().resize(blocks * PER_BLOCK as usize, vec![ZERO]);
        self.busy.borrow_mut().resize(blocks, false);
    }

    pub fn blocks(&self) -> u64 {
        self.busy.borrow().len() as u64
    }

    /// Claims blocks; false if another operation uses some of them.
    fn claim(&self, first: u64, count: u64) -> bool {
        let mut busy = self.busy.borrow_mut();
        let range = &mut busy[first as usize..(first + count) as usize];
        if range.iter().any(|busy| *busy) {
            return false;
        }
        range.fill(true);
        true
    }

    fn release(&self, first: u64, count: u64) {
        self.busy.borrow_mut()[first as usize..(first + count) as usize].fill(false);
    }

    fn begin(&self, first: u64, count: u64, stamp: u64) {
        for allowed in &mut self.allowed.borrow_mut()[sectors(first, count)] {
            allowed.push(stamp);
        }
    }

    fn acknowledged(&self, first: u64, count: u64, stamp: u64) {
        for allowed in &mut self.allowed.borrow_mut()[sectors(first, count)] {
            *allowed = vec![stamp];
        }
    }

    /// Writes a new stamp; false if the blocks are in use.
    pub async fn write(&self, io: &dyn BlockIo, first: u64, count: u64) -> IoResult<bool> {
        if !self.claim(first, count) {
            return Ok(false);
        }
        self.stamp.set(self.stamp.get() + 1);
        let stamp = self.stamp.get();
        let mut src = BufMut::zeroed((count * BLOCK) as usize);
        for (i, sector) in src.chunks_exact_mut(SECTOR as usize).enumerate() {
            fill(stamp, first * PER_BLOCK + i as u64, sector);
        }
        self.begin(first, count, stamp);
        let src: Buf = src.freeze();
        io.write(first * BLOCK, src, WriteFlags::default()).await?;
        self.acknowledged(first, count, stamp);
        self.release(first, count);
        Ok(true)
    }

    /// A write has failed, with an array that runs: the blocks have their old content or the new one.
    pub fn failed(&self, first: u64, count: u64) {
        self.release(first, count);
    }

    pub async fn zero(&self, io: &dyn BlockIo, first: u64, count: u64) -> IoResult<bool> {
        if !self.claim(first, count) {
            return Ok(false);
        }
        self.begin(first, count, ZERO);
        io.write_zeroes(first * BLOCK, count * BLOCK, ZeroFlags::default()).await?;
        self.acknowledged(first, count, ZERO);
        self.release(first, count);
        Ok(true)
    }

    /// Reads blocks that are not in use, and compares them.
    pub async fn read(&self, io: &dyn BlockIo, first: u64, count: u64) -> IoResult<bool> {
        if !self.claim(first, count) {
            return Ok(false);
        }
        let bytes = io.read(first * BLOCK, BufMut::zeroed((count * BLOCK) as usize)).await?;
        let mut expected = vec![0; SECTOR as usize];
        for (i, sector) in bytes.chunks_exact(SECTOR as usize).enumerate() {
            let number = sectors(first, count).start + i;
            let allowed = self.allowed.borrow()[number].clone();
            let found = allowed.iter().find(|stamp| {
                fill(**stamp, number as u64, &mut expected);
                expected == sector
            });
            let Some(found) = found.copied() else {
                let held = self.known(number as u64, sector);
                panic!("sector {i} of read at block {first}: none of {allowed:?} but {held}");
            };
            // A stamp that was read once stays.
            self.allowed.borrow_mut()[number] = vec![found];
        }
        self.release(first, count);
        Ok(true)
    }

    /// Describes the content of a sector.
    fn known(&self, number: u64, sector: &[u8]) -> String {
        let mut expected = vec![0; SECTOR as usize];
        let found = (0..=self.stamp.get()).find(|stamp| {
            fill(*stamp, number, &mut expected);
            expected == sector
        });
        found.map_or_else(|| "garbage".into(), |stamp| format!("stamp {stamp}"))
    }

    /// Reads and compares all blocks.
    pub async fn check(&self, io: &dyn BlockIo) -> IoResult<()> {
        let blocks = self.blocks();
        let mut at = 0;
        while at < blocks {
            let count = (blocks - at).min(16);
            assert!(self.read(io, at, count).await?, "nothing else runs");
            at += count;
        }
        Ok(())
    }

    /// The model of a copy that is made now, of which no operation is under way.
    pub fn copied(&self) -> Model {
        let allowed = RefCell::new(self.allowed.borrow().clone());
        let busy = RefCell::new(vec![false; self.busy.borrow().len()]);
        Model { allowed, busy, stamp: self.stamp.clone() }
    }

    /// Ends all operations, after a crash.
    pub fn crashed(&self) {
        self.busy.borrow_mut().fill(false);
    }
}
