//! A member, as used by the array's thread.
//!
//! Invariants:
//! - an operation that has timed out stays in `in_flight` until the device completes it: a late
//!   write must never land on a member under rebuild;
//! - no operation is larger than the `max_io` of `attached`;
//! - an error counts only against the `incarnation` that it comes from: another device may have
//!   replaced that one by the time the error is handled.

pub(crate) mod confirmed;
pub(crate) mod disconnect;
pub(crate) mod doubt;
pub(crate) mod in_flight;
pub(crate) mod incarnation;
pub(crate) mod join;
pub(crate) mod joining;
pub(crate) mod latency;
pub(crate) mod loss;
pub(crate) mod reach;
pub(crate) mod returning;
pub(crate) mod rows;
pub(crate) mod set;
pub(crate) mod state;
pub(crate) mod twin;

use crate::format::geometry::{BLOCK, HEARTBEAT_AT, SUPER_AT};
use crate::format::superblock::{Condition, MemberEntry};
use crate::member::confirmed::ConfirmedBlocks;
use crate::member::doubt::CacheDoubt;
use crate::member::in_flight::InFlight;
use crate::member::incarnation::Incarnation;
use crate::member::latency::ReadLatency;
use crate::member::reach::Reach;
use crate::member::rows::HeldRows;
use crate::member::state::MemberState;
use crate::session::lease::BeatChain;
use futures_channel::oneshot;
use futures_util::StreamExt;
use futures_util::future::{Either, Shared, select};
use longhaul_block::{
    Advice, BlockDevice, BlockIo, DeviceInfo, IoError, IoFuture, IoResult, Reservations, WriteFlags,
    ZeroFlags,
};
use longhaul_engine::{Buf, BufMut, now, spawn};
use std::cell::{Cell, Ref, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Bytes of a read, and reads in flight, for a region that may be large: what a slow path carries
/// well within a timeout.
const REGION_PIECE: u64 = 1 << 20;
const REGION_READS: usize = 4;

/// Bytes per write of zeroes, if the device has no zeroing command.
const ZERO_PIECE: u64 = 1 << 20;

/// Counts of one member since the array was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberCounts {
    /// Blocks whose content did not match their checksum.
    pub mismatches: u64,
    /// Blocks that were repaired from redundancy.
    pub repaired: u64,
    /// Reads that returned an error, whatever its cause.
    pub read_errors: u64,
    /// Hedged reads of this member.
    pub hedged: u64,
}

/// Error of an operation of a member, with the incarnation that it belongs to: the device may have
/// been replaced, or have been offline in between.
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
    /// Whether the member has not answered, and may do so again.
    pub(crate) fn is_unreachable(&self) -> bool {
        is_unreachable(&self.error)
    }
}

/// Whether an error says nothing about the member's content.
pub(crate) fn is_unreachable(error: &IoError) -> bool {
    error.is_out_of_reach() || matches!(error, IoError::Aborted)
}

/// Result of an operation of a member.
pub(crate) type MemberResult<T> = Result<T, MemberError>;

/// The device behind a member, attached.
struct AttachedDevice {
    device: Arc<dyn BlockDevice>,
    info: DeviceInfo,
    io: Rc<dyn BlockIo>,
    generation: Cell<u64>,
}

/// A region of a member, as far as it can be read.
pub(crate) struct RegionContent {
    /// Content, with zeroes for unreadable blocks.
    pub(crate) bytes: Vec<u8>,
    /// Offsets of unreadable blocks, from the start of the region.
    pub(crate) unreadable: Vec<u64>,
}

/// One member of the array, with its device if that is reachable.
pub(crate) struct Member {
    pub(crate) index: usize,
    /// Its entry in the superblock.
    pub(crate) state: MemberState,
    /// Its rows beyond the progress of a rebuild.
    pub(crate) rows: HeldRows,
    /// Its superblock and heartbeat blocks.
    pub(crate) confirmed: ConfirmedBlocks,
    /// When it has confirmed heartbeats.
    pub(crate) beats: BeatChain,
    pub(crate) counts: Cell<MemberCounts>,
    /// Whether it may answer, and may be written.
    pub(crate) reach: Reach,
    doubt: CacheDoubt,
    incarnation: Incarnation,
    latency: ReadLatency,
    attached: RefCell<Option<AttachedDevice>>,
    /// Operations on the current or the last device.
    in_flight: RefCell<Rc<InFlight>>,
}

impl Member {
    pub(crate) fn new(index: usize, entry: &MemberEntry) -> Member {
        let confirmed = ConfirmedBlocks::default();
        confirmed.found(entry.known);
        Member {
            index,
            state: MemberState::new(entry),
            rows: HeldRows::default(),
            confirmed,
            beats: BeatChain::default(),
            counts: Cell::default(),
            reach: Reach::default(),
            doubt: CacheDoubt::default(),
            incarnation: Incarnation::new(),
            latency: ReadLatency::default(),
            attached: RefCell::default(),
            in_flight: RefCell::default(),
        }
    }

    /// Its entry in the next superblock.
    pub(crate) fn entry(&self) -> MemberEntry {
        MemberEntry {
            uuid: self.uuid(),
            condition: self.condition(),
            since: self.state.since(),
            have: self.state.have(),
            known: self.confirmed.generation(),
        }
    }

    pub(crate) fn uuid(&self) -> Uuid {
        self.state.uuid()
    }

    pub(crate) fn condition(&self) -> Condition {
        self.state.condition()
    }

    /// Whether it is offline or failed.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self.condition(), Condition::Offline | Condition::Failed)
    }

    /// Whether it is under rebuild or resync.
    pub(crate) fn is_rebuilding(&self) -> bool {
        matches!(self.condition(), Condition::Rebuilding { .. })
    }

    /// Whether it has current content for a row, which is in this region.
    pub(crate) fn holds(&self, row: u64, region: u64) -> bool {
        match self.condition() {
            Condition::Active => true,
            Condition::Offline | Condition::Failed => false,
            Condition::Rebuilding { done, partial } => {
                row < done
                    || self.rows.is_marked(row)
                    || (partial && row < self.state.have() && !self.rows.missed(region))
            }
        }
    }

    /// Attaches a device.
    pub(crate) fn put(&self, device: Arc<dyn BlockDevice>, io: Rc<dyn BlockIo>) {
        let info = device.info();
        self.reincarnate();
        self.trust(self.doubts());
        self.reach.renew();
        let generation = Cell::new(io.generation());
        *self.attached.borrow_mut() = Some(AttachedDevice { device, info, io, generation });
    }

    /// What its operations are handed to.
    pub(crate) fn io(&self) -> Option<Rc<dyn BlockIo>> {
        self.attached.borrow().as_ref().map(|attached| Rc::clone(&attached.io))
    }

    /// Hands operations to `io` from now on, which stands for the same device.
    pub(crate) fn use_io(&self, io: Rc<dyn BlockIo>) {
        if let Some(attached) = &mut *self.attached.borrow_mut() {
            attached.io = io;
        }
    }

    /// Its content is on another device from now on, to which what it hands operations to passes them
    /// on: those under way end there.
    pub(crate) fn rehome(&self, device: Arc<dyn BlockDevice>, io: &Rc<dyn BlockIo>) {
        let info = device.info();
        if let Some(attached) = &mut *self.attached.borrow_mut() {
            attached.generation.set(io.generation());
            (attached.device, attached.info) = (device, info);
        }
    }

    /// Detaches the device; operations under way continue.
    pub(crate) fn take(&self) -> Option<Arc<dyn BlockDevice>> {
        self.reincarnate();
        self.attached.borrow_mut().take().map(|attached| attached.device)
    }

    /// Starts a new list of operations for another device, which those on the last one do not
    /// concern, however long they hang.
    pub(crate) fn detach_operations(&self) {
        self.in_flight.take();
    }

    /// Whether it may have lost unflushed writes.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubt.is_open()
    }

    /// Records that it may have lost unflushed writes.
    pub(crate) fn doubt(&self) {
        if self.has_volatile_cache() {
            self.doubt.raise();
        }
    }

    /// Puts the member in doubt if its device has reconnected since the last call.
    pub(crate) fn look_at_generation(&self) {
        let changed = self.attached.borrow().as_ref().is_some_and(|attached| {
            let generation = attached.io.generation();
            generation != attached.generation.replace(generation)
        });
        if changed {
            self.doubt();
        }
    }

    /// Number of times that it may have lost unflushed writes.
    pub(crate) fn doubts(&self) -> u64 {
        self.doubt.raised()
    }

    /// Settles the doubts up to this number: lost writes have been repaired.
    pub(crate) fn trust(&self, doubts: u64) {
        self.doubt.settle(doubts);
    }

    /// Starts a new incarnation: operations begun before are not waited for, and their errors do
    /// not count.
    pub(crate) fn reincarnate(&self) {
        self.incarnation.renew();
    }

    /// The error of what was meant for a former device: it does not count against the present one.
    pub(crate) fn replaced(&self) -> MemberError {
        MemberError { error: IoError::Aborted, incarnation: Incarnation::NONE }
    }

    /// Resolves when the incarnation ends.
    pub(crate) fn over(&self) -> Shared<oneshot::Receiver<()>> {
        self.incarnation.over()
    }

    /// Refuses operations while the member is not usable.
    pub(crate) fn check_usable(&self) -> MemberResult<()> {
        let incarnation = self.incarnation.number();
        if self.is_usable() { Ok(()) } else { Err(MemberError { error: self.offline_error(), incarnation }) }
    }

    /// Number of the incarnation: it changes when the device is replaced or goes offline.
    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation.number()
    }

    /// Whether an error belongs to the current incarnation.
    pub(crate) fn is_own(&self, error: &MemberError) -> bool {
        error.incarnation == self.incarnation.number()
    }

    /// Name of the device.
    pub(crate) fn name(&self) -> Option<String> {
        self.attached.borrow().as_ref().map(|attached| attached.info.name.clone())
    }

    pub(crate) fn device(&self) -> Option<Arc<dyn BlockDevice>> {
        self.attached.borrow().as_ref().map(|attached| Arc::clone(&attached.device))
    }

    pub(crate) fn info(&self) -> Option<Ref<'_, DeviceInfo>> {
        Ref::filter_map(self.attached.borrow(), |attached| attached.as_ref().map(|attached| &attached.info))
            .ok()
    }

    pub(crate) fn is_active(&self) -> bool {
        self.condition() == Condition::Active
    }

    /// Whether superblocks, bitmaps and the journal are written to it.
    pub(crate) fn is_usable(&self) -> bool {
        !self.is_missing() && self.attached.borrow().is_some()
    }

    pub(crate) fn has_volatile_cache(&self) -> bool {
        self.info().is_some_and(|info| info.volatile_cache)
    }

    /// Operations that have not completed, including those that have timed out.
    pub(crate) fn under_way(&self) -> usize {
        self.in_flight.borrow().len()
    }

    /// Whether an operation has found the member unreachable, and the member is not yet marked offline.
    pub(crate) fn was_unreachable(&self) -> bool {
        self.in_flight.borrow().was_unreachable(self.incarnation.number())
    }

    /// Clears that record once it has been handled.
    pub(crate) fn clear_unreachable(&self) {
        self.in_flight.borrow().clear_unreachable();
    }

    /// Resolves when all operations begun before have completed, or the incarnation ends.
    pub(crate) async fn until_completed(&self) {
        let in_flight = Rc::clone(&self.in_flight.borrow());
        select(pin!(in_flight.until_completed()), self.over()).await;
    }

    pub(crate) fn advice(&self) -> Option<Advice> {
        self.attached.borrow().as_ref()?.io.advice()
    }

    /// The reservation commands of the device, if it has them.
    pub(crate) fn reservations(&self) -> Option<Rc<dyn Reservations>> {
        self.attached.borrow().as_ref()?.io.reservations()
    }

    /// How long the member has been unreachable, if its device knows.
    pub(crate) fn disconnected(&self) -> Option<Duration> {
        self.attached.borrow().as_ref()?.io.away_since().map(|since| now().saturating_duration_since(since))
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut MemberCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// Time after which a read is late; `None` before the first sample.
    pub(crate) fn late_after(&self) -> Option<Duration> {
        self.latency.late_after()
    }

    /// Mean time of a read; zero before the first sample.
    pub(crate) fn mean_read(&self) -> Duration {
        self.latency.mean()
    }

    pub(crate) fn offline_error(&self) -> IoError {
        IoError::Offline(format!("member {} is offline", self.index))
    }

    async fn within<T: Unpin + 'static>(
        &self,
        begin: impl FnOnce(&dyn BlockIo, &DeviceInfo) -> IoFuture<T>,
    ) -> MemberResult<T> {
        let incarnation = self.incarnation.number();
        let result = self.run(begin).await;
        self.look_at_generation();
        if result.as_ref().is_err_and(|e| *e == IoError::Reserved) && self.incarnation.number() == incarnation
        {
            self.reach.refused(self);
        }
        let result = result.map_err(|error| MemberError { error, incarnation });
        if result.as_ref().is_err_and(MemberError::is_unreachable) {
            self.in_flight.borrow().record_unreachable(incarnation);
        }
        result
    }

    async fn run<T: Unpin + 'static>(
        &self,
        begin: impl FnOnce(&dyn BlockIo, &DeviceInfo) -> IoFuture<T>,
    ) -> IoResult<T> {
        let started = match &*self.attached.borrow() {
            Some(attached) => begin(&*attached.io, &attached.info).try_ready(),
            None => return Err(self.offline_error()),
        };
        let operation = match started {
            Ok(result) => return self.reach.note(result),
            Err(operation) => operation,
        };
        let (operation_guard, incarnation) = (self.in_flight.borrow().begin(), self.incarnation());
        let mut task = spawn(async move {
            let result = operation.await;
            if result.as_ref().is_err_and(is_unreachable) {
                operation_guard.record_unreachable(incarnation);
            }
            result
        });
        let over = self.over();
        let ended = match select(pin!(self.with_timeout(&mut task)), over).await {
            Either::Left((Ok(result), _)) => return self.reach.note(result),
            Either::Left((Err(time), _)) => {
                let name = self.name().unwrap_or_default();
                format!("{name} did not answer in {:.0} s", time.as_secs_f64())
            }
            Either::Right(_) => format!("member {} is offline", self.index),
        };
        task.detach();
        Err(IoError::Unreachable(ended))
    }

    /// Reads `len` bytes into a new buffer.
    pub(crate) async fn read(&self, offset: u64, len: u64) -> MemberResult<BufMut> {
        self.read_into(offset, BufMut::zeroed(len as usize)).await
    }

    /// Reads a region; unreadable blocks are skipped.
    pub(crate) async fn read_around(&self, offset: u64, len: u64) -> MemberResult<RegionContent> {
        let mut region = RegionContent { bytes: Vec::with_capacity(len as usize), unreadable: Vec::new() };
        let pieces = (0..len).step_by(REGION_PIECE as usize);
        let mut reads = futures_util::stream::iter(pieces.map(async |at| {
            let n = REGION_PIECE.min(len - at);
            (at, n, self.read(offset + at, n).await)
        }))
        .buffered(REGION_READS);
        while let Some((at, n, read)) = reads.next().await {
            match read {
                Ok(bytes) => region.bytes.extend_from_slice(&bytes),
                Err(e) if e.is_unreachable() || n % BLOCK != 0 => return Err(e),
                Err(_) => {
                    for block in (at..at + n).step_by(BLOCK as usize) {
                        match self.read(offset + block, BLOCK).await {
                            Ok(bytes) => region.bytes.extend_from_slice(&bytes),
                            Err(e) if e.is_unreachable() => return Err(e),
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
            Ok(_) => self.latency.sample(now() - began),
            Err(_) => self.count(|counts| counts.read_errors += 1),
        }
        result
    }

    /// Writes, after a check that no other session has taken the member over.
    pub(crate) async fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> MemberResult<()> {
        self.until_writable().await?;
        self.write_anyhow(offset, src, flags).await
    }

    /// Writes the heartbeat block durably, without that check.
    pub(crate) async fn write_heartbeat(&self, src: Buf) -> MemberResult<()> {
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

    /// Writes durably: with FUA if the device has a volatile cache.
    pub(crate) async fn write_durably(&self, offset: u64, src: Buf) -> MemberResult<()> {
        self.write(offset, src, WriteFlags { fua: self.has_volatile_cache() }).await
    }

    /// Writes a superblock to the slot that does not hold the newest intact copy. An earlier write
    /// of a superblock that timed out must have completed.
    pub(crate) async fn write_superblock(&self, block: Buf) -> MemberResult<()> {
        let (slot, incarnation) = (self.confirmed.free_slot(), self.incarnation());
        let result = self.write_durably(SUPER_AT[slot], block).await;
        if result.is_ok() && self.incarnation() == incarnation {
            self.confirmed.set_slot(slot);
        }
        result
    }

    pub(crate) async fn flush(&self) -> MemberResult<()> {
        if self.has_volatile_cache() { self.within(|io, _| io.flush()).await } else { Ok(()) }
    }

    /// Makes a range read as zeroes, and deallocates it if the device can.
    pub(crate) async fn zero(&self, offset: u64, len: u64) -> MemberResult<()> {
        self.until_writable().await?;
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
