//! A disk with delays, and with every known kind of fault.
//!
//! Invariants:
//! - an operation has its effect at one moment between its begin and its end, also when its future
//!   was dropped;
//! - an operation that was under way when the disk left never has its effect later: the part that
//!   took effect is decided at that moment;
//! - a disk that has lost its power while it was open fails the first operation after it, or has
//!   another generation: only so can the array know that the cache is lost;
//! - a disk that hangs, as one does whose initiator reconnects, fails nothing: unanswered
//!   operations are executed, perhaps a second time, when it is back;
//! - data that was flushed, or written with FUA, outlives a power loss, unless a fault was planted;
//! - whether the host of a change may make it is looked at when it takes effect, also in part: what a
//!   preempted host has under way changes nothing. Reservations outlive everything.

mod reservations;

use crate::medium::{Fate, Medium};
use crate::random::Random;
use crate::world::{Deed, Event, World};
use futures_channel::oneshot;
use longhaul_block::testing::ReservationTable;
use longhaul_block::{
    Advice, BlockDevice, BlockIo, DeviceInfo, IoError, IoFuture, IoResult, Open, Reservations, WriteFlags,
    ZeroFlags,
};
use longhaul_engine::{Buf, BufMut, now, sleep, spawn};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// The largest transfer of a disk in bytes: small, so that splitting is tried.
const MAX_IO: u32 = 128 << 10;
/// In how many of a hundred operations a disk takes a long break.
const HICCUPS: u32 = 1;
/// How much longer half an operation of a straggler takes at most, in
/// milliseconds: far more than disks do, and less than arrays give up after.
const STRAGGLING: u64 = 700;

/// What a disk is made like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Make {
    /// Size of the disk in bytes.
    pub size: u64,
    /// Bytes of a logical block, which is written as a whole or not at all.
    pub block: u32,
    /// Whether there is a cache that a power loss empties.
    pub volatile: bool,
    /// About how long an operation takes.
    pub latency: Duration,
    /// Bytes to keep in flight that it advises, if any.
    pub window: Option<u64>,
    /// Whether it reports that it hangs.
    pub knows: bool,
}

/// A fault that is not noticed when it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A bit on the medium is another.
    Flip,
    /// A block cannot be read.
    Unreadable,
    /// The next write is acknowledged and forgotten.
    LostWrite,
    /// The next write is stored at another place.
    MisdirectedWrite,
}

/// A simulated disk. Clones are the same disk, for the same host.
#[derive(Clone, Debug)]
pub struct Disk {
    /// The host that uses it, where there are several.
    host: Option<u64>,
    name: Arc<str>,
    number: u64,
    make: Make,
    world: World,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    medium: Medium,
    random: Random,
    /// Changes under way that have had no effect yet.
    pending: BTreeMap<u64, Change>,
    next: u64,
    /// Counts departures: an operation of an earlier presence fails.
    presence: u64,
    gone: bool,
    /// Since when nothing is answered.
    hung: Option<Instant>,
    /// Tasks that wait for that to end.
    waiting: Vec<Waker>,
    /// Writes that have had their effect and are not answered.
    unanswered: BTreeMap<u64, Written>,
    /// Counts losses of power that are no errors.
    generation: u64,
    /// It has lost its cache, and has not reported that yet.
    restarted: bool,
    /// Operations of a hundred that straggle.
    straggling: u32,
    armed: Option<Fault>,
    /// `None`: the disk has no reservations.
    reservations: Option<ReservationTable>,
}

#[derive(Clone, Debug)]
struct Written {
    host: Option<u64>,
    offset: u64,
    data: Buf,
    through: bool,
}

#[derive(Debug)]
enum Change {
    Write(Written),
    Flush { version: u64 },
}

impl Disk {
    /// An empty disk; `number` distinguishes the disks of a world.
    #[must_use]
    pub fn new(number: u64, make: Make, world: &World, random: Random) -> Disk {
        let state = State {
            medium: Medium::new(make.size, make.block, make.volatile),
            random,
            pending: BTreeMap::new(),
            next: 0,
            presence: 0,
            gone: false,
            hung: None,
            waiting: Vec::new(),
            unanswered: BTreeMap::new(),
            generation: 0,
            restarted: false,
            straggling: 0,
            armed: None,
            reservations: None,
        };
        let state = Arc::new(Mutex::new(state));
        Disk { host: None, name: format!("disk{number}").into(), number, make, world: world.clone(), state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same disk, as this host sees it.
    #[must_use]
    pub(crate) fn for_host(&self, host: u64) -> Disk {
        Disk { host: Some(host), ..self.clone() }
    }

    /// Hosts can reserve it from now on.
    pub(crate) fn offer_reservations(&self) {
        self.state().reservations.get_or_insert_default();
    }

    /// Name of the disk, as in the plan.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether no change is under way.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state();
        state.pending.is_empty() && state.unanswered.is_empty()
    }

    /// A host that used it has ended, and the remaining hosts had no change under way: operations
    /// under way may have had their effect, or parts of it.
    pub(crate) fn settle(&self) {
        let mut state = self.state();
        state.settle(None);
        state.unanswered.clear();
    }

    /// Whether it is out of reach.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let state = self.state();
        state.gone || state.hung.is_some()
    }

    /// Puts it out of reach. With `power` its cache is lost as well.
    pub fn leave(&self, power: bool) {
        let mut state = self.state();
        state.gone = true;
        state.presence += 1;
        state.settle(None);
        if power {
            state.lose_power(None);
            state.restarted = true;
        }
        self.world.tell(format_args!("{} leaves{}", self.name, if power { ", without power" } else { "" }));
    }

    /// Nothing is answered any more, and nothing fails, until it is back. With `power` its cache is
    /// lost, and its generation changes.
    pub fn hang(&self, power: bool) {
        let mut state = self.state();
        state.hung = Some(now());
        if power {
            let under_way = state.pending.values().filter_map(|change| match change {
                Change::Write(written) => Some(written.clone()),
                Change::Flush { .. } => None,
            });
            for written in under_way.collect::<Vec<_>>() {
                state.tear(&written, None);
            }
            state.lose_power(None);
            state.generation += 1;
        }
        self.world.tell(format_args!("{} hangs{}", self.name, if power { ", without power" } else { "" }));
    }

    /// Since when it hangs, if it does.
    #[must_use]
    pub fn hangs_since(&self) -> Option<Instant> {
        self.state().hung
    }

    /// The initiator gives up reconnecting: all unanswered operations fail, and
    /// all later ones.
    pub fn give_up(&self) {
        self.leave(false);
        let mut state = self.state();
        state.hung = None;
        state.unanswered.clear();
        state.waiting.drain(..).for_each(Waker::wake);
    }

    /// Makes it reachable again, with its content.
    pub fn come_back(&self) {
        let mut state = self.state();
        state.gone = false;
        if state.hung.take().is_some() {
            // The initiator resends unanswered writes.
            for written in state.unanswered.values().cloned().collect::<Vec<_>>() {
                if state.allows(written.host) {
                    state.medium.write(written.offset, &written.data, written.through, |_| true);
                }
            }
            state.waiting.drain(..).for_each(Waker::wake);
        }
        drop(state);
        self.world.tell(format_args!("{} comes back", self.name));
    }

    /// A copy of its medium, to come back with one day.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.state().medium.clone())
    }

    /// Its content becomes that of an earlier time.
    pub fn restore(&self, snapshot: Snapshot) {
        self.state().medium = snapshot.0;
        self.world.tell(format_args!("{} has old content", self.name));
    }

    /// The host that used it has crashed: operations under way may have had their effect, or parts
    /// of it. With `power` the cache is lost as well. The part that remains is random, or given by
    /// `fate`.
    pub(crate) fn crash(&self, power: bool, fate: Option<Fate>) {
        let mut state = self.state();
        state.presence += 1;
        state.settle(fate);
        state.restarted = false;
        state.gone |= state.hung.take().is_some();
        state.waiting.clear();
        state.unanswered.clear();
        if power {
            state.lose_power(fate);
        }
    }

    /// Everything takes much longer from now on, or not any more.
    pub fn straggle(&self, straggling: bool) {
        self.straggle_some(if straggling { 100 } else { 0 });
    }

    /// So many halves of operations of a hundred take much longer from now on,
    /// while the others overtake them.
    pub fn straggle_some(&self, percent: u32) {
        self.state().straggling = percent;
    }

    /// Plants a fault; false if there is nothing yet that it could hit.
    pub fn plant(&self, fault: Fault) -> bool {
        self.plant_in(fault, &(0..self.make.size))
    }

    /// The same within these bytes, where it is one of content at rest.
    pub(crate) fn plant_in(&self, fault: Fault, within: &Range<u64>) -> bool {
        let mut state = self.state();
        let State { medium, random, armed, .. } = &mut *state;
        let hit = match fault {
            Fault::Flip => medium.flip(within, random),
            Fault::Unreadable => medium.spoil(within, random),
            Fault::LostWrite | Fault::MisdirectedWrite => {
                *armed = Some(fault);
                Some(0)
            }
        };
        if let Some(block) = hit {
            let at = block * u64::from(self.make.block);
            self.world.tell(format_args!("{}: {fault:?} at {at}", self.name));
        }
        hit.is_some()
    }

    /// Takes back a fault that was to hit the next write; whether it was
    /// still to come.
    pub fn disarm(&self) -> bool {
        self.state().armed.take().is_some()
    }

    /// Whether a fault has left something on it that was not written since.
    #[must_use]
    pub fn is_marred(&self) -> bool {
        self.state().medium.is_marred()
    }

    /// Whether a fault is still to come.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.state().armed.is_some()
    }

    /// A time for half an operation.
    fn half(&self) -> Duration {
        let mut state = self.state();
        let micros = self.make.latency.as_micros() as u64;
        let mut time = Duration::from_micros(state.random.between(micros / 8, micros));
        // No number is drawn where all or none do.
        let some = state.straggling;
        if some >= 100 || some > 0 && state.random.chance(some) {
            time += Duration::from_millis(state.random.below(STRAGGLING));
        } else if state.random.chance(HICCUPS) {
            time *= 20;
        }
        time
    }

    fn unreachable(&self) -> IoError {
        IoError::Unreachable(format!("{} is disconnected", self.name))
    }

    /// The presence in which an operation begins, and whether it is going to
    /// fail for it.
    fn begin(&self) -> (u64, bool) {
        let mut state = self.state();
        // The first operation after a power loss fails.
        let restarted = !state.gone && std::mem::take(&mut state.restarted);
        (state.presence, state.gone || restarted)
    }

    /// Resolves when it does not hang.
    async fn answers(&self) {
        std::future::poll_fn(|cx| {
            let mut state = self.state();
            if state.hung.is_none() {
                return Poll::Ready(());
            }
            state.waiting.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Runs `effect` in the middle of an operation, if the disk is there from
    /// its begin to its end. `id` is that of a change.
    fn operation<T: Unpin + 'static>(
        &self,
        (presence, gone): (u64, bool),
        id: u64,
        effect: impl FnOnce(&Disk, &mut State) -> IoResult<T> + 'static,
        what: String,
        event: Event,
    ) -> IoFuture<T> {
        let (disk, (tx, rx)) = (self.clone(), oneshot::channel());
        spawn(async move {
            sleep(disk.half()).await;
            disk.answers().await;
            let Some(result) = disk.take_effect(effect, (presence, gone), &what, event) else {
                return std::future::pending().await;
            };
            sleep(disk.half()).await;
            disk.answers().await;
            disk.state().unanswered.remove(&id);
            let there = disk.state().presence == presence && !gone;
            let _ = tx.send(if there { result } else { Err(disk.unreachable()) });
        })
        .detach();
        IoFuture::new(async move { rx.await.unwrap_or(Err(IoError::Aborted)) })
    }

    /// The moment at which an operation takes effect; it began in the given presence of the disk, or
    /// while the disk was gone. `None` if the world has stopped.
    fn take_effect<T>(
        &self,
        effect: impl FnOnce(&Disk, &mut State) -> IoResult<T>,
        (presence, gone): (u64, bool),
        what: &str,
        event: Event,
    ) -> Option<IoResult<T>> {
        let mut state = self.state();
        if state.presence != presence || gone {
            return Some(Err(self.unreachable()));
        }
        let goes_on = self.world.event(self.number, event, format_args!("{} {what}", self.name));
        goes_on.then(|| effect(self, &mut state))
    }

    /// An operation that changes something.
    fn change(&self, change: Change, what: String, event: Event) -> IoFuture<()> {
        let begun = self.begin();
        let id = {
            let mut state = self.state();
            state.next += 1;
            let id = state.next;
            if !begun.1 {
                state.pending.insert(id, change);
            }
            id
        };
        let effect = move |disk: &Disk, state: &mut State| {
            match state.pending.remove(&id) {
                Some(_) if !state.allows(disk.host) => return Err(IoError::Reserved),
                Some(Change::Flush { version }) => state.medium.flush(version),
                Some(Change::Write(written)) => {
                    state.write(disk, written.offset, &written.data, written.through);
                    state.unanswered.insert(id, written);
                }
                None => return Err(disk.unreachable()),
            }
            Ok(())
        };
        self.operation(begun, id, effect, what, event)
    }
}

/// The content of a disk at some time.
#[derive(Clone, Debug)]
pub struct Snapshot(Medium);

impl Snapshot {
    /// What a read had found; the block that it had not, if there was one.
    pub(crate) fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), u64> {
        self.0.read(offset, dst)
    }
}

impl State {
    fn lose_power(&mut self, fate: Option<Fate>) {
        let fate = fate.unwrap_or_else(|| Fate::random(&mut self.random));
        self.medium.lose_power(fate, &mut self.random);
    }

    /// Decides which changes under way take effect.
    fn settle(&mut self, fate: Option<Fate>) {
        for (_, change) in std::mem::take(&mut self.pending) {
            if let Change::Write(written) = change {
                self.tear(&written, fate);
            }
        }
    }

    /// Whether a host may change the disk now.
    fn allows(&self, host: Option<u64>) -> bool {
        self.reservations.as_ref().is_none_or(|table| table.allows(host))
    }

    /// Writes any part of it, if its host may.
    fn tear(&mut self, written: &Written, fate: Option<Fate>) {
        if !self.allows(written.host) {
            return;
        }
        let fate = fate.unwrap_or_else(|| Fate::random(&mut self.random));
        let dice = self.random.bits();
        let lands = |place: usize| match fate {
            Fate::Nothing => false,
            Fate::Everything => true,
            Fate::Any => dice >> (place % 64) & 1 == 1,
            Fate::Prefix => (place as u64) < dice % 16,
            Fate::Head => place == 0,
        };
        self.medium.write(written.offset, &written.data, written.through, lands);
    }

    fn write(&mut self, disk: &Disk, offset: u64, data: &[u8], through: bool) {
        match self.armed.take() {
            Some(Fault::LostWrite) => {
                disk.world.tell(format_args!("{} loses the write at {offset}", disk.name));
                self.medium.mar(offset, data.len());
            }
            Some(Fault::MisdirectedWrite) => {
                let place = self.medium.elsewhere(offset, data.len(), &mut self.random);
                disk.world.tell(format_args!("{} writes to {place} the data for {offset}", disk.name));
                self.medium.write(place, data, through, |_| true);
                self.medium.mar(place, data.len());
                self.medium.mar(offset, data.len());
            }
            _ => self.medium.write(offset, data, through, |_| true),
        }
    }
}

impl BlockDevice for Disk {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.name.to_string(),
            size: self.make.size,
            block_size: self.make.block,
            max_io: MAX_IO,
            optimal_io: 0,
            read_only: false,
            volatile_cache: self.make.volatile,
            discard: true,
            uuid: None,
        }
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move {
            sleep(self.half()).await;
            if self.is_gone() {
                return Err(self.unreachable());
            }
            let io: Rc<dyn BlockIo> = Rc::new(DiskIo(self.clone()));
            Ok(io)
        })
    }
}

struct DiskIo(Disk);

impl DiskIo {
    fn check(&self, offset: u64, len: u64, most: u64) -> IoResult<()> {
        assert!(len <= most, "{}: {len} bytes at once, and it takes {most}", self.0.name);
        self.0.info().check(offset, len)
    }
}

impl BlockIo for DiskIo {
    fn advice(&self) -> Option<Advice> {
        let window = self.0.make.window?;
        Some(Advice { read: window, write: window, ..Advice::LOCAL })
    }

    fn generation(&self) -> u64 {
        self.0.state().generation
    }

    fn away_since(&self) -> Option<Instant> {
        self.0.state().hung.filter(|_| self.0.make.knows)
    }

    fn reservations(&self) -> Option<Rc<dyn Reservations>> {
        let host = self.0.host?;
        self.0.state().reservations.as_ref()?;
        Some(Rc::new(reservations::DiskReservations { disk: self.0.clone(), host }))
    }

    fn read(&self, offset: u64, mut dst: BufMut) -> IoFuture<BufMut> {
        let len = dst.len() as u64;
        if let Err(e) = self.check(offset, len, u64::from(MAX_IO)) {
            return IoFuture::ready(Err(e));
        }
        let effect = move |disk: &Disk, state: &mut State| match state.medium.read(offset, &mut dst) {
            Ok(()) => Ok(dst),
            Err(block) => Err(IoError::Medium(format!("{}: block {block} is unreadable", disk.name))),
        };
        let event = Event { deed: Deed::Read, offset, len };
        self.0.operation(self.0.begin(), 0, effect, format!("reads {offset}+{len}"), event)
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        let len = src.len() as u64;
        if let Err(e) = self.check(offset, len, u64::from(MAX_IO)) {
            return IoFuture::ready(Err(e));
        }
        let what = format!("writes {offset}+{len}{}", if flags.fua { " fua" } else { "" });
        let change = Change::Write(Written { host: self.0.host, offset, data: src, through: flags.fua });
        self.0.change(change, what, Event { deed: Deed::Write, offset, len })
    }

    fn flush(&self) -> IoFuture<()> {
        let version = self.0.state().medium.version();
        let event = Event { deed: Deed::Flush, offset: 0, len: 0 };
        self.0.change(Change::Flush { version }, "flushes".into(), event)
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        if self.0.state().random.chance(50) {
            self.write_zeroes(offset, len, ZeroFlags::default())
        } else {
            // As good: it says nothing about the content.
            IoFuture::ready(self.check(offset, len, u64::MAX))
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        if let Err(e) = self.check(offset, len, u64::MAX) {
            return IoFuture::ready(Err(e));
        }
        let data = BufMut::zeroed(len as usize).freeze();
        let change = Change::Write(Written { host: self.0.host, offset, data, through: flags.fua });
        self.0.change(change, format!("zeroes {offset}+{len}"), Event { deed: Deed::Zero, offset, len })
    }
}
