//! A member, as the array's thread uses it.
//!
//! Invariants:
//! - an operation that is given up on (it took too long) still counts as
//!   under way until it ends below: what is written late must never land on
//!   a member that is being filled again;
//! - no operation is larger than the device takes;
//! - an error counts against the device that it comes from, and only as long
//!   as that has its place: another one may have it by the time it is told.

use crate::asked::Asked;
use crate::geometry::{BLOCK, HEARTBEAT_AT, SUPER_AT};
use crate::join;
use crate::reach::Reach;
use crate::superblock::Condition;
use futures_channel::oneshot;
use futures_util::StreamExt;
use futures_util::future::{Either, FutureExt, Shared, select};
use longhaul_block::{
    Advice, BlockDevice, BlockIo, DeviceInfo, IoError, IoFuture, IoResult, WriteFlags, ZeroFlags,
};
use longhaul_engine::{Buf, BufMut, now, spawn};
use std::cell::{Cell, Ref, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Bytes that are read at a time, and reads at a time, of a region that may be
/// large: what a slow path carries well within a time-out.
const REGION_PIECE: u64 = 1 << 20;
const REGION_READS: usize = 4;

/// What takes so much longer than usual tells of an outage, and nothing of how
/// far away a member is.
const OUTAGE: Duration = Duration::from_secs(2);
/// A latency sample's weight in the mean, as a power of two.
const MEAN_SHIFT: u32 = 3;
/// Bytes of zeroes written at a time where the device has no better way.
const ZERO_PIECE: u64 = 1 << 20;

/// Counts of one member since the array was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberCounts {
    /// Blocks whose content did not match their checksum.
    pub mismatches: u64,
    /// Blocks that were written again from redundancy.
    pub mended: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Reads that reconstruction was raced against.
    pub hedged: u64,
}

/// Why an operation of a member has failed, and of which: a place may have
/// had several devices, and a device may have been away in between.
#[derive(Clone, Debug)]
pub(crate) struct MemberError {
    pub(crate) error: IoError,
    pub(crate) incarnation: u64,
}

impl From<MemberError> for IoError {
    fn from(e: MemberError) -> IoError {
        e.error
    }
}

impl MemberError {
    /// The member has not answered, and may do so again.
    pub(crate) fn is_absence(&self) -> bool {
        is_absence(&self.error)
    }
}

/// Whether an error says nothing of what the member holds.
pub(crate) fn is_absence(error: &IoError) -> bool {
    matches!(error, IoError::Unreachable(_) | IoError::Aborted)
}

/// Result of an operation of a member.
pub(crate) type MemberResult<T> = Result<T, MemberError>;

/// What the device behind a place is, and what it is opened as.
struct Opened {
    device: Arc<dyn BlockDevice>,
    info: DeviceInfo,
    io: Rc<dyn BlockIo>,
    generation: Cell<u64>,
}

/// A region of a member, as far as it can be read.
pub(crate) struct Region {
    /// Zeroes, where it cannot.
    pub(crate) bytes: Vec<u8>,
    /// Where blocks begin that cannot be read, counted from the start.
    pub(crate) unreadable: Vec<u64>,
}

/// One place of the array.
pub(crate) struct Member {
    pub(crate) index: usize,
    pub(crate) uuid: Cell<Uuid>,
    pub(crate) condition: Cell<Condition>,
    /// Generation in which it entered its condition.
    pub(crate) since: Cell<u64>,
    pub(crate) counts: Cell<MemberCounts>,
    /// Why it is not active, for people.
    pub(crate) reason: RefCell<String>,
    /// How much of a filling was done when it went away; all, if it was not
    /// being filled.
    pub(crate) have: Cell<u64>,
    /// The newest generation whose superblock it has confirmed.
    pub(crate) known: Cell<u64>,
    /// The place of its newest superblock that is whole.
    pub(crate) slot: Cell<usize>,
    /// The last heartbeat of this session that it has confirmed; zero if none.
    pub(crate) beat: Cell<u64>,
    /// How long that heartbeat says that the session had gone on.
    pub(crate) elapsed: Cell<Duration>,
    /// Times at which it may have lost what it had not flushed, and those after
    /// which that was looked at.
    doubts: Cell<u64>,
    settled: Cell<u64>,
    /// Counts the devices that had the place, and their absences.
    incarnation: Cell<u64>,
    /// Ends with the incarnation.
    tenure: RefCell<Tenure>,
    opened: RefCell<Option<Opened>>,
    /// Of the device that it has, or had last.
    asked: RefCell<Rc<Asked>>,
    /// Mean time of a read.
    mean: Cell<Duration>,
    /// Mean deviation of it.
    deviation: Cell<Duration>,
    pub(crate) reach: Reach,
}

/// What those who wait for a member wait for as well: dropped, it ends.
struct Tenure {
    _until: oneshot::Sender<()>,
    over: Shared<oneshot::Receiver<()>>,
}

impl Tenure {
    fn new() -> Tenure {
        let (until, over) = oneshot::channel();
        Tenure { _until: until, over: over.shared() }
    }
}

impl Member {
    pub(crate) fn new(index: usize, uuid: Uuid, condition: Condition, since: u64, have: u64) -> Member {
        Member {
            index,
            uuid: Cell::new(uuid),
            condition: Cell::new(condition),
            since: Cell::new(since),
            counts: Cell::default(),
            reason: RefCell::default(),
            have: Cell::new(have),
            known: Cell::new(0),
            slot: Cell::new(0),
            beat: Cell::new(0),
            elapsed: Cell::default(),
            doubts: Cell::new(0),
            settled: Cell::new(0),
            tenure: RefCell::new(Tenure::new()),
            incarnation: Cell::new(0),
            opened: RefCell::default(),
            asked: RefCell::default(),
            mean: Cell::default(),
            deviation: Cell::default(),
            reach: Reach::default(),
        }
    }

    /// Puts a device behind it.
    pub(crate) fn put(&self, device: Arc<dyn BlockDevice>, io: Rc<dyn BlockIo>) {
        let info = device.info();
        self.reincarnate();
        self.trust(self.doubts.get());
        self.reach.renew();
        let generation = Cell::new(io.generation());
        *self.opened.borrow_mut() = Some(Opened { device, info, io, generation });
    }

    /// Takes the device away; operations under way go on.
    pub(crate) fn take(&self) -> Option<Arc<dyn BlockDevice>> {
        self.reincarnate();
        self.opened.borrow_mut().take().map(|opened| opened.device)
    }

    /// Another device comes: what is under way on the last one, for as long as
    /// that may hang, does not concern it.
    pub(crate) fn leave_behind(&self) {
        self.asked.take();
    }

    /// Whether it may have lost what it had not flushed.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubts.get() != self.settled.get()
    }

    /// It may have lost what it had not flushed.
    pub(crate) fn doubt(&self) {
        if self.has_volatile_cache() {
            self.doubts.set(self.doubts.get() + 1);
        }
    }

    /// Doubts it if it was connected to anew since this was looked at last.
    pub(crate) fn look_at_generation(&self) {
        let changed = self.opened.borrow().as_ref().is_some_and(|opened| {
            let generation = opened.io.generation();
            generation != opened.generation.replace(generation)
        });
        if changed {
            self.doubt();
        }
    }

    pub(crate) fn doubts(&self) -> u64 {
        self.doubts.get()
    }

    /// What it may have lost up to the doubt of this number has been made good.
    pub(crate) fn trust(&self, doubts: u64) {
        self.settled.set(doubts);
    }

    /// Errors of operations that were begun before do not count any more.
    /// Nobody waits for them any more either.
    pub(crate) fn reincarnate(&self) {
        self.incarnation.set(self.incarnation.get() + 1);
        // Dropped while it is not borrowed: it wakes others.
        drop(self.tenure.replace(Tenure::new()));
    }

    /// Resolves when it is not waited for any more.
    pub(crate) fn over(&self) -> Shared<oneshot::Receiver<()>> {
        self.tenure.borrow().over.clone()
    }

    /// Whether something can be asked of it.
    pub(crate) fn check_usable(&self) -> MemberResult<()> {
        let incarnation = self.incarnation.get();
        if self.is_usable() { Ok(()) } else { Err(MemberError { error: self.gone(), incarnation }) }
    }

    /// Differs from what it was if the place has another device since, or that
    /// was away.
    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation.get()
    }

    /// Whether an error is one of the device that has the place now.
    pub(crate) fn is_own(&self, error: &MemberError) -> bool {
        error.incarnation == self.incarnation.get()
    }

    /// What the device is called.
    pub(crate) fn name(&self) -> Option<String> {
        self.opened.borrow().as_ref().map(|opened| opened.info.name.clone())
    }

    pub(crate) fn device(&self) -> Option<Arc<dyn BlockDevice>> {
        self.opened.borrow().as_ref().map(|opened| Arc::clone(&opened.device))
    }

    pub(crate) fn info(&self) -> Option<Ref<'_, DeviceInfo>> {
        Ref::filter_map(self.opened.borrow(), |opened| opened.as_ref().map(|opened| &opened.info)).ok()
    }

    pub(crate) fn is_active(&self) -> bool {
        self.condition.get() == Condition::Active
    }

    /// Whether superblocks, bitmaps and the journal are written to it.
    pub(crate) fn is_usable(&self) -> bool {
        matches!(self.condition.get(), Condition::Active | Condition::Rebuilding { .. })
            && self.opened.borrow().is_some()
    }

    pub(crate) fn has_volatile_cache(&self) -> bool {
        self.info().is_some_and(|info| info.volatile_cache)
    }

    /// Operations that have not ended, given up ones among them.
    pub(crate) fn under_way(&self) -> usize {
        self.asked.borrow().len()
    }

    /// Whether an operation has told that it is absent, and nobody has acted upon
    /// it yet.
    pub(crate) fn is_told_absent(&self) -> bool {
        self.asked.borrow().is_absent(self.incarnation.get())
    }

    /// What has told so was acted upon.
    pub(crate) fn forget_absence(&self) {
        self.asked.borrow().forget_absence();
    }

    /// Resolves when all is answered that it was asked before, or nobody waits for
    /// it any more.
    pub(crate) async fn until_answered(&self) {
        let asked = Rc::clone(&self.asked.borrow());
        select(pin!(asked.until_answered()), self.over()).await;
    }

    pub(crate) fn advice(&self) -> Option<Advice> {
        self.opened.borrow().as_ref()?.io.advice()
    }

    /// How long it has been out of reach, if it is, and its device knows.
    pub(crate) fn away(&self) -> Option<Duration> {
        self.opened.borrow().as_ref()?.io.away_since().map(|since| now().saturating_duration_since(since))
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut MemberCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// When a read is late: what is rarely exceeded, once some were seen.
    pub(crate) fn late_after(&self) -> Option<Duration> {
        let mean = self.mean.get();
        // A round trip may double without anything being wrong.
        (!mean.is_zero()).then(|| (mean * 2).max(mean + 4 * self.deviation.get()) + Duration::from_millis(1))
    }

    pub(crate) fn mean_read(&self) -> Duration {
        self.mean.get()
    }

    fn sample(&self, time: Duration) {
        let mean = self.mean.get();
        if mean.is_zero() {
            self.mean.set(time);
            return;
        }
        if time > mean * 4 + OUTAGE {
            return;
        }
        let away = time.abs_diff(mean);
        let blend = |old: Duration, new: Duration| old - old / (1 << MEAN_SHIFT) + new / (1 << MEAN_SHIFT);
        self.mean.set(blend(mean, time));
        self.deviation.set(blend(self.deviation.get(), away));
    }

    pub(crate) fn gone(&self) -> IoError {
        IoError::Unreachable(format!("member {} is gone", self.index))
    }

    async fn within<T: Unpin + 'static>(
        &self,
        begin: impl FnOnce(&dyn BlockIo, &DeviceInfo) -> IoFuture<T>,
    ) -> MemberResult<T> {
        let incarnation = self.incarnation.get();
        let result = self.run(begin).await;
        self.look_at_generation();
        let result = result.map_err(|error| MemberError { error, incarnation });
        if result.as_ref().is_err_and(MemberError::is_absence) {
            self.asked.borrow().tell_absence(incarnation);
        }
        result
    }

    async fn run<T: Unpin + 'static>(
        &self,
        begin: impl FnOnce(&dyn BlockIo, &DeviceInfo) -> IoFuture<T>,
    ) -> IoResult<T> {
        let started = match &*self.opened.borrow() {
            Some(opened) => begin(&*opened.io, &opened.info).try_ready(),
            None => return Err(self.gone()),
        };
        let operation = match started {
            Ok(result) => return self.reach.note(result),
            Err(operation) => operation,
        };
        let (question, incarnation) = (self.asked.borrow().begin(), self.incarnation());
        let mut task = spawn(async move {
            let result = operation.await;
            if result.as_ref().is_err_and(is_absence) {
                question.tell_absence(incarnation);
            }
            result
        });
        let over = self.over();
        let ended = match select(pin!(self.patiently(&mut task)), over).await {
            Either::Left((Ok(result), _)) => return self.reach.note(result),
            Either::Left((Err(time), _)) => {
                let name = self.name().unwrap_or_default();
                format!("{name} did not answer in {:.0} s", time.as_secs_f64())
            }
            Either::Right(_) => format!("member {} is gone", self.index),
        };
        task.detach();
        Err(IoError::Unreachable(ended))
    }

    /// Reads `len` bytes into memory of its own.
    pub(crate) async fn read(&self, offset: u64, len: u64) -> MemberResult<BufMut> {
        self.read_into(offset, BufMut::zeroed(len as usize)).await
    }

    /// Reads a region, around blocks that cannot be read.
    pub(crate) async fn read_around(&self, offset: u64, len: u64) -> MemberResult<Region> {
        let mut region = Region { bytes: Vec::with_capacity(len as usize), unreadable: Vec::new() };
        let pieces = (0..len).step_by(REGION_PIECE as usize);
        let mut reads = futures_util::stream::iter(pieces.map(async |at| {
            let n = REGION_PIECE.min(len - at);
            (at, n, self.read(offset + at, n).await)
        }))
        .buffered(REGION_READS);
        while let Some((at, n, read)) = reads.next().await {
            match read {
                Ok(bytes) => region.bytes.extend_from_slice(&bytes),
                Err(e) if e.is_absence() || n % BLOCK != 0 => return Err(e),
                Err(_) => {
                    for block in (at..at + n).step_by(BLOCK as usize) {
                        match self.read(offset + block, BLOCK).await {
                            Ok(bytes) => region.bytes.extend_from_slice(&bytes),
                            Err(e) if e.is_absence() => return Err(e),
                            Err(_) => {
                                region.bytes.resize(region.bytes.len() + BLOCK as usize, 0);
                                region.unreadable.push(block);
                            }
                        }
                    }
                }
            }
        }
        Ok(region)
    }

    pub(crate) async fn read_into(&self, offset: u64, dst: BufMut) -> MemberResult<BufMut> {
        let began = now();
        let result = self
            .within(|io, info| {
                let mut rest = dst;
                let mut parts = Vec::new();
                let mut at = offset;
                while rest.len() > info.max_io as usize {
                    let tail = rest.split_off(info.max_io as usize);
                    let part = std::mem::replace(&mut rest, tail);
                    let len = part.len() as u64;
                    parts.push(io.read(at, part));
                    at += len;
                }
                parts.push(io.read(at, rest));
                join::buffer(parts)
            })
            .await;
        match &result {
            Ok(_) => self.sample(now() - began),
            Err(_) => self.count(|counts| counts.read_errors += 1),
        }
        result
    }

    /// Writes, once it is known that nobody else has taken it over.
    pub(crate) async fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> MemberResult<()> {
        self.until_ours().await?;
        self.write_anyhow(offset, src, flags).await
    }

    /// Writes what says that it is in use, durably.
    pub(crate) async fn write_beat(&self, src: Buf) -> MemberResult<()> {
        self.write_anyhow(HEARTBEAT_AT, src, WriteFlags { fua: self.has_volatile_cache() }).await
    }

    async fn write_anyhow(&self, offset: u64, src: Buf, flags: WriteFlags) -> MemberResult<()> {
        self.within(|io, info| {
            let max = info.max_io as usize;
            let part = |start: usize| {
                let end = src.len().min(start + max);
                io.write(offset + start as u64, src.slice(start..end), flags)
            };
            join::all((0..src.len()).step_by(max).map(part).collect())
        })
        .await
    }

    /// A write that is on the medium when it ends.
    pub(crate) async fn write_durably(&self, offset: u64, src: Buf) -> MemberResult<()> {
        self.write(offset, src, WriteFlags { fua: self.has_volatile_cache() }).await
    }

    /// Writes a superblock in the place of the copy that is not the newest whole one.
    /// A write of one that was given up must have ended.
    pub(crate) async fn write_superblock(&self, block: Buf) -> MemberResult<()> {
        let (slot, incarnation) = (1 - self.slot.get(), self.incarnation());
        let result = self.write_durably(SUPER_AT[slot], block).await;
        if result.is_ok() && self.incarnation() == incarnation {
            self.slot.set(slot);
        }
        result
    }

    pub(crate) async fn flush(&self) -> MemberResult<()> {
        if self.has_volatile_cache() { self.within(|io, _| io.flush()).await } else { Ok(()) }
    }

    /// Makes a range read as zeroes, and gives its space back if it can.
    pub(crate) async fn zero(&self, offset: u64, len: u64) -> MemberResult<()> {
        self.until_ours().await?;
        let flags = ZeroFlags { fua: false, may_deallocate: true };
        match self.within(|io, _| io.write_zeroes(offset, len, flags)).await {
            Err(MemberError { error: IoError::Unsupported(_), .. }) => {}
            result => return result,
        }
        let zeroes = BufMut::zeroed(ZERO_PIECE.min(len) as usize).freeze();
        let mut done = 0;
        while done < len {
            let n = ZERO_PIECE.min(len - done);
            self.write(offset + done, zeroes.slice(0..n as usize), WriteFlags::default()).await?;
            done += n;
        }
        Ok(())
    }
}
