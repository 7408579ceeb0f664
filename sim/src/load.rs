//! Random operations on a device, judged by the model.
//!
//! Invariants:
//! - the model learns of each request before the device does;
//! - the first violation stops the world, and is reported.

use crate::content::{self, SECTOR};
use crate::model::{Kind, Model};
use crate::random::Random;
use crate::subject::Running;
use crate::world::World;
use longhaul_block::{BlockIo, DeviceInfo, IoError, WriteFlags, ZeroFlags};
use longhaul_engine::{BufMut, Task, sleep, spawn, timeout};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// An operation that takes longer hangs: disks take minutes at most, and
/// arrays give them up.
const HANGS: Duration = Duration::from_secs(3600);
/// How often it is looked whether the host is cut off.
const LOOK: Duration = Duration::from_millis(100);
/// The longest pause of a quiet load in milliseconds: regions are not marked
/// any more a second or two after the last write, where that is at once.
const PAUSE: u64 = 4000;
/// The largest operation in bytes.
const LARGEST: usize = 512 << 10;

/// What all tasks of a life share.
pub(crate) struct Load {
    pub(crate) world: World,
    pub(crate) io: Rc<dyn BlockIo>,
    pub(crate) info: DeviceInfo,
    pub(crate) model: Rc<RefCell<Model>>,
    /// The first violation.
    pub(crate) failure: Rc<RefCell<Option<String>>>,
    /// More is broken than redundancy covers: errors are allowed.
    pub(crate) beyond: Rc<Cell<bool>>,
    /// The array is being stopped: it refuses new requests.
    pub(crate) stopping: Cell<bool>,
    /// The host is cut off: the end of a stop does not wait as long for members
    /// as I/O does, so a person stops nothing meanwhile.
    pub(crate) cut_off: Cell<bool>,
    /// Long pauses, and whole stripes of zeroes.
    pub(crate) quiet: bool,
    /// This life may end with a crash at any time.
    pub(crate) may_crash: bool,
    /// Bytes of a stripe's data.
    pub(crate) stripe: u64,
}

impl Load {
    /// A load that allows no error and is not quiet, on stripes of `stripe` bytes of data.
    pub(crate) fn new(
        world: &World,
        io: Rc<dyn BlockIo>,
        info: DeviceInfo,
        model: Rc<RefCell<Model>>,
        failure: &Rc<RefCell<Option<String>>>,
        stripe: u64,
    ) -> Load {
        Load {
            world: world.clone(),
            io,
            info,
            model,
            failure: Rc::clone(failure),
            beyond: Rc::default(),
            stopping: Cell::default(),
            cut_off: Cell::default(),
            quiet: false,
            may_crash: false,
            stripe,
        }
    }

    pub(crate) fn fail(&self, why: String) {
        self.failure.borrow_mut().get_or_insert(why);
        self.world.stop();
    }

    /// Whether errors are allowed at this moment.
    pub(crate) fn may_fail(&self) -> bool {
        self.stopping.get() || self.is_beyond()
    }

    /// Whether more is broken, or was, than redundancy covers.
    fn is_beyond(&self) -> bool {
        self.beyond.get() || self.model.borrow().is_fragile()
    }

    /// Stops the array in order while the load runs.
    pub(crate) async fn stop(&self, array: &dyn Running) {
        while self.cut_off.get() {
            sleep(LOOK).await;
        }
        self.world.tell(format_args!("begin stop"));
        self.stopping.set(true);
        match timeout(HANGS, array.stop()).await {
            // All that was acknowledged by now is durable.
            Ok(Ok(())) => {
                let token = self.model.borrow_mut().begin_flush();
                self.model.borrow_mut().end_flush(token);
            }
            Ok(Err(why)) if self.is_beyond() => self.world.tell(format_args!("stop: {why}, as may be")),
            Ok(Err(why)) => self.fail(format!("stop under load: {why}")),
            Err(_) => self.fail(format!("not stopped after {} s", HANGS.as_secs())),
        }
        self.world.tell(format_args!("end   stop"));
    }

    /// Waits for an operation, but not for ever. `None` if it failed.
    async fn within<T>(&self, what: &str, work: impl Future<Output = Result<T, IoError>>) -> Option<T> {
        match timeout(HANGS, work).await {
            Ok(Ok(value)) => Some(value),
            Ok(Err(error)) if self.may_fail() => {
                self.world.tell(format_args!("{what}: {error}, as may be"));
                None
            }
            Ok(Err(error)) => {
                self.fail(format!("{what}: {error}"));
                None
            }
            Err(_) => {
                self.fail(format!("{what}: not done after {} s", HANGS.as_secs()));
                None
            }
        }
    }

    fn bytes(&self, blocks: &Range<usize>) -> (u64, usize) {
        let block = self.info.block_size as usize;
        ((blocks.start * block) as u64, blocks.len() * block)
    }

    pub(crate) async fn read(&self, blocks: Range<usize>) {
        let (offset, len) = self.bytes(&blocks);
        let what = format!("read of {offset}+{len}");
        self.world.tell(format_args!("begin {what}"));
        let token = self.model.borrow_mut().begin_read(blocks);
        match self.within(&what, self.io.read(offset, BufMut::zeroed(len))).await {
            Some(bytes) => {
                let verdict = self.model.borrow_mut().end_read(&token, &bytes);
                verdict.unwrap_or_else(|why| self.fail(format!("{what}: {why}")));
            }
            None => self.model.borrow_mut().drop_read(&token),
        }
        self.world.tell(format_args!("end   {what}"));
    }

    async fn change(&self, blocks: Range<usize>, kind: Kind) {
        let (offset, len) = self.bytes(&blocks);
        let Some(token) = self.model.borrow_mut().begin_write(blocks, kind) else { return };
        let what = format!("{kind:?} of {offset}+{len} by {}", token.writer);
        self.world.tell(format_args!("begin {what}"));
        let operation = match kind {
            Kind::Write(fua) => {
                let mut data = BufMut::zeroed(len);
                content::fill(&mut data, offset / SECTOR as u64, token.writer);
                self.io.write(offset, data.freeze(), WriteFlags { fua })
            }
            Kind::Zero(fua) => {
                let flags = ZeroFlags { fua, may_deallocate: len.is_multiple_of(3) };
                self.io.write_zeroes(offset, len as u64, flags)
            }
            Kind::Discard => self.io.discard(offset, len as u64),
        };
        let done = self.within(&what, operation).await.is_some();
        self.model.borrow_mut().end_write(&token, done);
        self.world.tell(format_args!("end   {what}"));
    }

    pub(crate) async fn flush(&self) {
        let token = self.model.borrow_mut().begin_flush();
        self.world.tell(format_args!("begin flush"));
        if self.within("flush", self.io.flush()).await.is_some() {
            self.model.borrow_mut().end_flush(token);
        }
        self.world.tell(format_args!("end   flush"));
    }

    /// Blocks of the longest operation.
    fn longest(&self) -> usize {
        (LARGEST.min(self.info.max_io as usize) / self.info.block_size as usize).max(1)
    }

    /// Blocks to work on: often where others work too, and of all sizes.
    fn somewhere(&self, random: &mut Random) -> Range<usize> {
        let block = self.info.block_size as usize;
        let all = self.model.borrow().len();
        let stripe = (self.stripe as usize / block).max(1);
        let longest = all.min(self.longest());
        let len = match random.below(6) {
            0 | 1 => 1,
            2 => random.between(1, 4) as usize,
            3 => stripe,
            4 => random.between(1, stripe as u64) as usize,
            _ => random.between(1, 3 * stripe as u64) as usize,
        };
        let len = len.min(longest);
        let mut start = random.below((all - len) as u64 + 1) as usize;
        if random.chance(60) {
            start %= (2 * stripe).max(1);
        }
        if random.chance(30) {
            start -= start % stripe;
        }
        let start = start.min(all - len);
        start..start + len
    }

    /// Some stripes, as wholes.
    fn stripes(&self, random: &mut Random) -> Range<usize> {
        let stripe = (self.stripe as usize / self.info.block_size as usize).max(1);
        let all = self.model.borrow().len() / stripe;
        let count = random.between(1, 2.min(all as u64)) as usize;
        let first = random.below((all - count) as u64 + 1) as usize;
        first * stripe..(first + count) * stripe
    }

    /// `count` operations with long pauses, many of them on whole stripes.
    async fn quiet_client(&self, mut random: Random, count: u32) {
        for _ in 0..count {
            let (some, stripes) = (self.somewhere(&mut random), self.stripes(&mut random));
            match random.below(100) {
                0..25 => self.read(some).await,
                25..50 if stripes.len() <= self.longest() => self.change(stripes, Kind::Write(false)).await,
                25..60 => self.change(some, Kind::Write(false)).await,
                60..78 => self.change(stripes, Kind::Zero(random.chance(30))).await,
                78..92 => self.change(stripes, Kind::Discard).await,
                _ => self.flush().await,
            }
            if random.chance(60) {
                sleep(Duration::from_millis(random.below(PAUSE))).await;
            }
        }
    }

    /// Begins `count` clients of so many operations each.
    pub(crate) fn clients(
        self: &Rc<Load>,
        random: &mut Random,
        count: u32,
        operations: u32,
        pause: Duration,
    ) -> Vec<Task<()>> {
        (0..count).map(|_| spawn(Rc::clone(self).client(random.fork(), operations, pause))).collect()
    }

    /// `count` operations, one after the other.
    pub(crate) async fn client(self: Rc<Load>, mut random: Random, count: u32, pause: Duration) {
        if self.quiet {
            return self.quiet_client(random, count).await;
        }
        for _ in 0..count {
            let blocks = self.somewhere(&mut random);
            match random.below(100) {
                0..30 => self.read(blocks).await,
                30..72 => self.change(blocks, Kind::Write(false)).await,
                72..78 => self.change(blocks, Kind::Write(true)).await,
                78..83 => self.change(blocks, Kind::Zero(random.chance(30))).await,
                83..88 => self.change(blocks, Kind::Discard).await,
                _ => self.flush().await,
            }
            if random.chance(40) {
                sleep(pause * random.below(16) as u32).await;
            }
        }
    }

    /// Reads the whole device, and has the model judge it.
    pub(crate) async fn read_all(&self, mut random: Random) {
        let all = self.model.borrow().len();
        let most = self.longest();
        let mut at = 0;
        while at < all {
            let len = (random.between(1, most as u64) as usize).min(all - at);
            self.read(at..at + len).await;
            at += len;
        }
    }
}
