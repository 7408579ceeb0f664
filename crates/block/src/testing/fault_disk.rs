//! A disk in memory with a volatile write cache, and with the faults that a test asks for.
//!
//! Invariants:
//! - `unflushed` has, in the order of the writes, the content before each write that no flush and no
//!   FUA has made durable: undone in reverse, they give what a power cut leaves;
//! - an operation that was begun runs to its end, also if its future is dropped;
//! - whether the host of an operation may change the disk is looked at when that takes effect: what a
//!   preempted host has under way changes nothing.

use crate::filter::OpKind;
use crate::testing::ReservationTable;
use crate::{
    Advice, BlockDevice, BlockIo, DeviceInfo, IoError, IoFuture, IoResult, Open, ReservationState,
    Reservations, WriteFlags, ZeroFlags,
};
use futures_channel::oneshot;
use longhaul_engine::{Buf, BufMut, sleep, spawn};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that are given space together.
const SPACE: u64 = 4096;

/// What a [`FaultDisk`] can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Opening the disk: [`BlockDevice::open`].
    Open,
    /// An operation of [`BlockIo`].
    Io(OpKind),
}

impl From<OpKind> for Operation {
    fn from(kind: OpKind) -> Operation {
        Operation::Io(kind)
    }
}

/// The fault of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It has no effect and fails.
    Error(IoError),
    /// A write is acknowledged and has no effect.
    Lose,
    /// Of a write, only this many bytes are stored, or all if it has fewer.
    Tear(usize),
    /// Of a read, a bit of this byte, counted from the first one that is read, is wrong.
    Flip(usize),
    /// A write also ends at this offset in bytes.
    Misplace(u64),
}

/// Which operations have a [`Fault`].
#[derive(Clone, Debug)]
pub struct FaultRule {
    kind: OpKind,
    range: Range<u64>,
    skip: u64,
    times: u64,
    fault: Fault,
}

impl FaultRule {
    /// All operations of `kind`.
    pub fn new(kind: OpKind, fault: Fault) -> FaultRule {
        FaultRule { kind, range: 0..u64::MAX, skip: 0, times: u64::MAX, fault }
    }

    /// Only operations that touch these bytes of the disk.
    pub fn within(self, range: Range<u64>) -> FaultRule {
        FaultRule { range, ..self }
    }

    /// Not the first `skip` of them.
    pub fn after(self, skip: u64) -> FaultRule {
        FaultRule { skip, ..self }
    }

    /// Only `times` of them.
    pub fn times(self, times: u64) -> FaultRule {
        FaultRule { times, ..self }
    }

    /// Whether the rule is about this operation, which is counted.
    fn takes(&mut self, kind: OpKind, offset: u64, len: u64) -> bool {
        // A flush is of the whole disk.
        let touches = kind == OpKind::Flush || (offset < self.range.end && self.range.start < offset + len);
        if kind != self.kind || !touches {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        let takes = self.times > 0;
        self.times = self.times.saturating_sub(1);
        takes
    }
}

/// Counts since the disk was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Number of flushes.
    pub flushes: u64,
    /// Number of writes and zeroes with FUA.
    pub fua: u64,
    /// Bytes of reads that are done.
    pub read: u64,
    /// Bytes of reads and writes under way.
    pub in_flight: u64,
    /// The most that these were.
    pub most_in_flight: u64,
    /// Ranges that were discarded: offset and length in bytes.
    pub discards: Vec<(u64, u64)>,
}

/// A write that is not durable.
struct CachedWrite {
    number: u64,
    at: usize,
    before: Vec<u8>,
}

type Delays = Box<dyn FnMut() -> Duration + Send>;
type PowerCuts = Box<dyn FnMut() -> bool + Send>;

#[derive(Default)]
struct FaultDiskState {
    content: Vec<u8>,
    unflushed: Vec<CachedWrite>,
    /// Number of the next write.
    next: u64,
    generation: u64,
    rules: Vec<FaultRule>,
    hold: Option<(Operation, usize)>,
    held: Vec<oneshot::Sender<()>>,
    delays: Option<Delays>,
    power_cuts: Option<PowerCuts>,
    disconnected: bool,
    /// Space that is taken, by number of the block of [`SPACE`] bytes.
    taken: BTreeSet<u64>,
    /// No more space is taken.
    full: bool,
    advice: Option<Advice>,
    counts: DiskCounts,
    reservations: ReservationTable,
    /// How long a reservation command is on its way.
    reservations_take: Duration,
}

impl FaultDiskState {
    /// Stores bytes: a power cut leaves them if they are `durable`.
    fn store(&mut self, offset: u64, bytes: &[u8], durable: bool) {
        let at = offset as usize;
        let place = &mut self.content[at..at + bytes.len()];
        if durable {
            self.counts.fua += 1;
            // A power cut undoes earlier writes, but not this one.
            for CachedWrite { at: from, before, .. } in &mut self.unflushed {
                let (begin, end) = ((*from).max(at), (*from + before.len()).min(at + bytes.len()));
                if begin < end {
                    before[begin - *from..end - *from].copy_from_slice(&bytes[begin - at..end - at]);
                }
            }
        } else {
            self.unflushed.push(CachedWrite { number: self.next, at, before: place.to_vec() });
            self.next += 1;
        }
        place.copy_from_slice(bytes);
    }

    /// Gives space to what is written.
    fn take_space(&mut self, offset: u64, len: u64) -> IoResult<()> {
        let blocks = offset / SPACE..(offset + len).div_ceil(SPACE);
        if self.full && blocks.clone().any(|block| !self.taken.contains(&block)) {
            return Err(IoError::NoSpace);
        }
        self.taken.extend(blocks);
        Ok(())
    }

    /// Takes the space back of what is zeroed.
    fn free_space(&mut self, offset: u64, len: u64) {
        let blocks = offset.div_ceil(SPACE)..(offset + len) / SPACE;
        self.taken.retain(|block| !blocks.contains(block));
    }

    fn forget(&mut self) {
        for CachedWrite { at, before, .. } in self.unflushed.drain(..).rev() {
            self.content[at..at + before.len()].copy_from_slice(&before);
        }
    }

    fn cut_power(&mut self) {
        self.forget();
        self.generation += 1;
    }

    fn gate(&mut self, operation: Operation) -> Option<oneshot::Receiver<()>> {
        let (_, left) = self.hold.as_mut().filter(|(held, left)| *held == operation && *left > 0)?;
        *left -= 1;
        let (sender, receiver) = oneshot::channel();
        self.held.push(sender);
        Some(receiver)
    }

    fn delay(&mut self) -> Option<Duration> {
        self.delays.as_mut().map(|delay| delay())
    }
}

struct Shared {
    info: DeviceInfo,
    state: Mutex<FaultDiskState>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, FaultDiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the power if it is time.
    fn maybe_cut_power(&self) {
        let mut state = self.state();
        if state.power_cuts.as_mut().is_some_and(|due| due()) {
            state.cut_power();
        }
    }
}

/// The disk; clones are the same one, for the same host.
#[derive(Clone)]
pub struct FaultDisk {
    shared: Arc<Shared>,
    /// See [`FaultDisk::for_host`].
    host: Option<u64>,
    /// See [`FaultDisk::as_remote`].
    is_remote: bool,
}

impl FaultDisk {
    /// A disk of `size` bytes, all zeroes, with blocks of 512 bytes and a volatile write cache.
    pub fn new(size: u64) -> FaultDisk {
        FaultDisk::with(size, |_| {})
    }

    /// The same, with a description changed by `change`.
    pub fn with(size: u64, change: impl FnOnce(&mut DeviceInfo)) -> FaultDisk {
        let mut info = DeviceInfo {
            name: "fault-disk".into(),
            size,
            block_size: 512,
            max_io: 1 << 20,
            optimal_io: 0,
            read_only: false,
            volatile_cache: true,
            discard: true,
            uuid: None,
        };
        change(&mut info);
        let state = FaultDiskState { content: vec![0; info.size as usize], ..FaultDiskState::default() };
        FaultDisk {
            shared: Arc::new(Shared { info, state: Mutex::new(state) }),
            host: None,
            is_remote: false,
        }
    }

    /// The same disk as a host with this number sees it: it has reservations.
    #[must_use]
    pub fn for_host(&self, host: u64) -> FaultDisk {
        FaultDisk { host: Some(host), ..self.clone() }
    }

    /// The same disk, whose [generations](BlockIo::generation) count from its opening, as those of a remote device
    /// do.
    #[must_use]
    pub fn as_remote(&self) -> FaultDisk {
        FaultDisk { is_remote: true, ..self.clone() }
    }

    /// Reservation commands have an effect after this time from now on.
    pub fn delay_reservations(&self, time: Duration) {
        self.state().reservations_take = time;
    }

    /// As after a restart of a device that keeps no registrations.
    pub fn forget_registrations(&self) {
        self.state().reservations.forget();
    }

    /// Its reservation.
    pub fn reservation(&self) -> ReservationState {
        self.state().reservations.state()
    }

    fn state(&self) -> MutexGuard<'_, FaultDiskState> {
        self.shared.state()
    }

    /// Bytes as a read returns them.
    pub fn content(&self, range: Range<u64>) -> Vec<u8> {
        self.state().content[range.start as usize..range.end as usize].to_vec()
    }

    /// The counts so far.
    pub fn counts(&self) -> DiskCounts {
        self.state().counts.clone()
    }

    /// How often the power was cut.
    pub fn power_cuts(&self) -> u64 {
        self.state().generation
    }

    /// Loses everything that is not durable, with an unchanged generation.
    pub fn forget(&self) {
        self.state().forget();
    }

    /// Loses everything that is not durable; the disk works again at once, with another generation.
    pub fn cut_power(&self) {
        self.state().cut_power();
    }

    /// Cuts the power before or after each operation for which `due` says so, until it is replaced.
    pub fn cut_power_when(&self, due: impl FnMut() -> bool + Send + 'static) {
        self.state().power_cuts = Some(Box::new(due));
    }

    /// Each operation waits for a time that `delay` gives before it begins, and for another one
    /// before it is acknowledged.
    pub fn delay(&self, delay: impl FnMut() -> Duration + Send + 'static) {
        self.state().delays = Some(Box::new(delay));
    }

    /// The next `times` operations of this kind hang before they begin, until
    /// [`release`](Self::release); other ones are not held any more.
    pub fn hold(&self, operation: impl Into<Operation>, times: usize) {
        self.state().hold = Some((operation.into(), times));
    }

    /// Number of operations that hang.
    pub fn held(&self) -> usize {
        self.state().held.len()
    }

    /// Continues all operations that hang. Those that [`hold`](Self::hold) counts are still held.
    pub fn release(&self) {
        self.state().held.clear();
    }

    /// Operations have this fault from now on. The first rule that takes an operation counts.
    pub fn inject(&self, rule: FaultRule) {
        self.state().rules.push(rule);
    }

    /// Takes back all faults of [`inject`](Self::inject).
    pub fn heal(&self) {
        self.state().rules.clear();
    }

    /// From now on it has space only for what has some already, or any again: of what was written and not
    /// zeroed since, by blocks of 4 KiB. Other writes fail with [`IoError::NoSpace`], and change nothing.
    pub fn fill(&self, full: bool) {
        self.state().full = full;
    }

    /// Whether operations fail from now on, since the disk is unreachable.
    pub fn disconnect(&self, disconnected: bool) {
        self.state().disconnected = disconnected;
    }

    /// The advice that it gives from now on.
    pub fn advise(&self, advice: Advice) {
        self.state().advice = Some(advice);
    }
}

impl BlockDevice for FaultDisk {
    fn info(&self) -> DeviceInfo {
        self.shared.info.clone()
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move {
            let gate = self.state().gate(Operation::Open);
            if let Some(gate) = gate {
                let _ = gate.await;
            }
            let before = if self.is_remote { self.state().generation } else { 0 };
            Ok(Rc::new(FaultDiskIo(self.clone(), before)) as Rc<dyn BlockIo>)
        })
    }
}

/// The disk, and generations that do not count.
struct FaultDiskIo(FaultDisk, u64);

impl FaultDiskIo {
    /// Executes an operation of `bytes` with its fault, if it has one; `does` is the operation
    /// without a fault.
    fn begin<T: Unpin + Send + 'static>(
        &self,
        (kind, offset, len): (OpKind, u64, u64),
        does: impl FnOnce(&mut FaultDiskState, Option<Fault>) -> IoResult<T> + 'static,
    ) -> IoFuture<T> {
        let info = &self.0.shared.info;
        let moves = matches!(kind, OpKind::Read | OpKind::Write);
        if moves && len > u64::from(info.max_io) {
            return IoFuture::ready(Err(IoError::Unsupported("a transfer of more than max_io")));
        }
        if let Err(e) = info.check(offset, len) {
            return IoFuture::ready(Err(e));
        }
        let (shared, host) = (Arc::clone(&self.0.shared), self.0.host);
        let mut state = shared.state();
        let in_flight = if moves { len } else { 0 };
        if kind == OpKind::Flush {
            state.counts.flushes += 1;
        }
        if state.disconnected {
            return IoFuture::ready(Err(IoError::Unreachable("the fault disk is disconnected".into())));
        }
        let fault = state.rules.iter_mut().find_map(|rule| {
            let takes = rule.takes(kind, offset, len);
            takes.then(|| rule.fault.clone())
        });
        let gate = state.gate(kind.into());
        let delays = [state.delay(), state.delay()];
        state.counts.in_flight += in_flight;
        state.counts.most_in_flight = state.counts.most_in_flight.max(state.counts.in_flight);
        drop(state);
        let run = move |shared: &Shared| {
            shared.maybe_cut_power();
            let refused = kind != OpKind::Read && !shared.state().reservations.allows(host);
            let result = match fault {
                _ if refused => Err(IoError::Reserved),
                Some(Fault::Error(e)) => Err(e),
                fault => does(&mut shared.state(), fault),
            };
            shared.maybe_cut_power();
            result
        };
        if gate.is_none() && delays == [None; 2] {
            let result = run(&shared);
            shared.state().counts.in_flight -= in_flight;
            return IoFuture::ready(result);
        }
        let (sender, receiver) = oneshot::channel();
        spawn(async move {
            if let Some(gate) = gate {
                let _ = gate.await;
            }
            let [before, after] = delays;
            if let Some(time) = before {
                sleep(time).await;
            }
            let result = run(&shared);
            if let Some(time) = after {
                sleep(time).await;
            }
            shared.state().counts.in_flight -= in_flight;
            // The caller may have dropped the operation.
            let _ = sender.send(result);
        })
        .detach();
        IoFuture::new(async move { receiver.await.unwrap_or(Err(IoError::Aborted)) })
    }

    fn store(&self, kind: OpKind, offset: u64, src: Buf, fua: bool, frees: bool) -> IoFuture<()> {
        self.begin((kind, offset, src.len() as u64), move |state, fault| {
            match frees {
                true => state.free_space(offset, src.len() as u64),
                false => state.take_space(offset, src.len() as u64)?,
            }
            match fault {
                Some(Fault::Lose) => {}
                Some(Fault::Tear(bytes)) => state.store(offset, &src[..bytes.min(src.len())], fua),
                Some(Fault::Misplace(other)) => {
                    state.store(other, &src, fua);
                    state.store(offset, &src, fua);
                }
                _ => state.store(offset, &src, fua),
            }
            Ok(())
        })
    }
}

impl BlockIo for FaultDiskIo {
    fn read(&self, offset: u64, mut dst: BufMut) -> IoFuture<BufMut> {
        self.begin((OpKind::Read, offset, dst.len() as u64), move |state, fault| {
            let (at, len) = (offset as usize, dst.len());
            state.counts.read += len as u64;
            dst.copy_from_slice(&state.content[at..at + len]);
            if let Some(Fault::Flip(byte)) = fault {
                dst[byte] ^= 4;
            }
            Ok(dst)
        })
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        self.store(OpKind::Write, offset, src, flags.fua, false)
    }

    fn flush(&self) -> IoFuture<()> {
        // It covers writes that completed before it began.
        let mark = self.0.state().next;
        self.begin((OpKind::Flush, 0, 0), move |state, _| {
            state.unflushed.retain(|write| write.number >= mark);
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.begin((OpKind::Discard, offset, len), move |state, _| {
            state.counts.discards.push((offset, len));
            Ok(())
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        let zeroes = BufMut::zeroed(len as usize).freeze();
        self.store(OpKind::WriteZeroes, offset, zeroes, flags.fua, flags.may_deallocate)
    }

    fn advice(&self) -> Option<Advice> {
        self.0.state().advice
    }

    fn generation(&self) -> u64 {
        self.0.state().generation - self.1
    }

    fn reservations(&self) -> Option<Rc<dyn Reservations>> {
        let host = self.0.host?;
        Some(Rc::new(DiskReservations { disk: self.0.clone(), host, is_shared: false }))
    }

    fn shared_reservations(&self) -> Option<Rc<dyn Reservations>> {
        let host = self.0.host?;
        Some(Rc::new(DiskReservations { disk: self.0.clone(), host, is_shared: true }))
    }
}

/// The reservation commands.
struct DiskReservations {
    disk: FaultDisk,
    host: u64,
    is_shared: bool,
}

impl DiskReservations {
    fn run<T: 'static>(
        &self,
        change: impl FnOnce(&mut ReservationTable, u64) -> IoResult<T> + 'static,
    ) -> IoFuture<T> {
        let state = self.disk.state();
        if state.disconnected {
            return IoFuture::ready(Err(IoError::Unreachable("the fault disk is disconnected".into())));
        }
        let (disk, host, time) = (self.disk.clone(), self.host, state.reservations_take);
        drop(state);
        if time.is_zero() {
            return IoFuture::ready(change(&mut disk.state().reservations, host));
        }
        let (sender, receiver) = oneshot::channel();
        spawn(async move {
            sleep(time).await;
            let _ = sender.send(change(&mut disk.state().reservations, host));
        })
        .detach();
        IoFuture::new(async move { receiver.await.unwrap_or(Err(IoError::Aborted)) })
    }
}

impl Reservations for DiskReservations {
    fn register(&self, key: u64) -> IoFuture<()> {
        self.run(move |table, host| {
            table.register(host, key);
            Ok(())
        })
    }

    fn unregister(&self, key: u64) -> IoFuture<()> {
        self.run(move |table, host| table.unregister(host, key))
    }

    fn acquire(&self, key: u64) -> IoFuture<()> {
        let is_shared = self.is_shared;
        self.run(move |table, host| table.acquire(host, key, is_shared))
    }

    fn preempt(&self, key: u64, other: u64) -> IoFuture<()> {
        self.run(move |table, host| table.preempt(host, key, other))
    }

    fn report(&self) -> IoFuture<ReservationState> {
        self.run(|table, _| Ok(table.state()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{done, open};

    const FLAGS: WriteFlags = WriteFlags { fua: false };

    fn block(byte: u8) -> Buf {
        Buf::copy_of(&[byte; 512])
    }

    #[test]
    fn a_power_cut_leaves_what_was_flushed_or_written_with_fua() {
        let disk = FaultDisk::new(4096);
        let io = open(&disk);
        done(io.write(0, block(1), FLAGS)).expect("written");
        done(io.flush()).expect("durable");
        done(io.write(0, block(2), FLAGS)).expect("written");
        done(io.write(512, block(3), FLAGS)).expect("written");
        done(io.write(512, block(4), WriteFlags { fua: true })).expect("durable");
        done(io.write(512, block(5), FLAGS)).expect("written");
        let generation = io.generation();
        disk.cut_power();
        assert_eq!((disk.content(0..512), disk.content(512..1024)), (vec![1; 512], vec![4; 512]));
        assert_ne!(io.generation(), generation);
        assert_eq!((disk.counts().flushes, disk.counts().fua), (1, 1));
    }

    #[test]
    fn each_fault_does_what_its_name_says() {
        let disk = FaultDisk::new(4096);
        let io = open(&disk);
        let read = |io: &Rc<dyn BlockIo>| done(io.read(0, BufMut::zeroed(512))).map(|buf| buf.to_vec());
        disk.inject(FaultRule::new(OpKind::Write, Fault::Lose).after(1).times(1));
        for byte in [1, 2] {
            done(io.write(0, block(byte), FLAGS)).expect("acknowledged");
        }
        assert_eq!(read(&io), Ok(vec![1; 512]), "the second one is lost");
        disk.inject(FaultRule::new(OpKind::Write, Fault::Tear(100)).within(0..512));
        done(io.write(0, block(3), FLAGS)).expect("acknowledged");
        done(io.write(512, block(3), FLAGS)).expect("written");
        assert_eq!(disk.content(0..512), [vec![3; 100], vec![1; 412]].concat());
        assert_eq!(disk.content(512..1024), [3; 512], "another range");
        disk.heal();
        disk.inject(FaultRule::new(OpKind::Write, Fault::Misplace(1024)));
        done(io.write(0, block(6), FLAGS)).expect("written");
        assert_eq!((disk.content(0..512), disk.content(1024..1536)), (vec![6; 512], vec![6; 512]));
        disk.inject(FaultRule::new(OpKind::Read, Fault::Flip(7)).times(1));
        assert_eq!(read(&io).map(|buf| buf[7]), Ok(6 ^ 4));
        let bad = IoError::Medium("worn".into());
        disk.inject(FaultRule::new(OpKind::Read, Fault::Error(bad.clone())).times(1));
        assert_eq!(read(&io), Err(bad));
        assert_eq!(read(&io), Ok(vec![6; 512]), "once");
        disk.disconnect(true);
        assert!(read(&io).is_err_and(|e| e.is_out_of_reach()));
        disk.disconnect(false);
        assert_eq!(read(&io), Ok(vec![6; 512]));
    }

    #[test]
    fn what_a_preempted_host_has_under_way_changes_nothing() {
        let disk = FaultDisk::new(4096);
        let [old, new] = [1, 2].map(|host| open(&disk.for_host(host)));
        let [first, second] = [&old, &new].map(|io| io.reservations().expect("it is a host's"));
        assert!(open(&disk).reservations().is_none());
        done(first.register(10)).expect("registered");
        done(first.acquire(10)).expect("reserved");
        done(old.write(0, block(1), FLAGS)).expect("the holder");
        done(second.register(20)).expect("registered");
        assert_eq!(done(new.write(0, block(2), FLAGS)), Err(IoError::Reserved), "a registration is no right");
        assert_eq!(done(open(&disk).flush()), Err(IoError::Reserved));
        longhaul_engine::Engine::simulated(1).expect("engine").block_on(async {
            disk.hold(OpKind::Write, 1);
            let late = old.write(0, block(3), FLAGS);
            second.preempt(20, 10).await.expect("taken over");
            new.write(0, block(4), FLAGS).await.expect("the new holder");
            disk.release();
            assert_eq!(late.await, Err(IoError::Reserved));
        });
        assert_eq!(disk.content(0..512), [4; 512]);
        assert_eq!(disk.reservation().holder, Some(20));
    }
}
