//! The members of a file system: one device each, all of them opened on one engine thread.
//!
//! A member that has moved, or was replaced, has units that are not at its new place yet: these are read at the
//! former one, if there is one. What is new is written to the new place alone.
//!
//! Invariants:
//! - an operation of a member that is down fails at once, so that no read waits for it and no stripe is
//!   placed on it;
//! - a write is waited for until its device has ended it: what was given up here cannot change the device
//!   later. Reads are given up when their device is away.

use crate::fence::{Fence, Guard};
use crate::settings::MemberPlace;
use crate::store::lock;
use crate::stripe::buffer;
use futures_channel::mpsc;
use futures_util::StreamExt;
use longhaul_block::{BlockDevice, BlockIo, DeviceInfo, IoError, IoFuture, IoResult, WriteFlags};
use longhaul_engine::buf::BufPool;
use longhaul_engine::{Buf, BufMut, Config, Thread, since, spawn, timeout};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc as std_mpsc;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// How long a member that failed is left alone before it is opened again.
const AGAIN: Duration = Duration::from_secs(2);
/// How long a read waits for a device that is away: a connection that is made again at once.
const AWAY: Duration = Duration::from_secs(1);
/// How often it looks whether the device is away.
const LOOK: Duration = Duration::from_millis(250);

/// Bytes that a member is asked for, to see that it answers.
const PROBED: usize = 4096;

/// Opens the device of a member, again each time that it was lost: the namespace with this UUID, or that which the
/// member was made on.
pub type OpenMember = Box<dyn Fn(Option<Uuid>) -> IoResult<Arc<dyn BlockDevice>> + Send + Sync>;

/// What is done with the devices, on their thread.
type MemberJob = Box<dyn FnOnce(&OpenDevices) + Send>;
/// The devices that are open, by member.
type OpenDevices = Rc<RefCell<Vec<Option<MemberDevice>>>>;

/// A device of a member.
#[derive(Clone)]
struct MemberDevice {
    io: Rc<dyn BlockIo>,
    /// By it programs see its paths.
    _device: Arc<dyn BlockDevice>,
    /// The number of the place that it is at.
    place: u64,
    /// The number of the opening, which no other one has.
    opening: u64,
    /// Flushes that have failed: each may have lost anything that was written before, also what the next one then
    /// takes for durable.
    failed_flushes: Rc<Cell<u64>>,
}

impl MemberDevice {
    /// What tells one life of the device from others: what was written in another one may be lost. Both numbers only
    /// rise, so the sum of two lives differs.
    fn generation(&self) -> u64 {
        self.opening << 40 | (self.io.generation() + self.failed_flushes.get())
    }
}

/// What becomes of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its device, or what it was called when it could not be opened.
    pub name: String,
    /// Why it is not used; `None` while it is.
    pub down: Option<String>,
}

struct MemberState {
    name: String,
    info: Option<DeviceInfo>,
    down: Option<(String, Instant)>,
    /// The namespace; none if there is no such place.
    namespace: Option<Option<Uuid>>,
    /// Rises with each place.
    place: u64,
    /// The number of the opening of its device.
    opening: u64,
    /// Whether it has reservations, once the session has registered with it.
    is_reservable: Option<bool>,
}

/// A place of a member: where it is, or was.
struct Member {
    open: Arc<OpenMember>,
    state: Mutex<MemberState>,
    /// Bytes from here on are to be read at the former place; the largest number if all are here.
    filled: AtomicU64,
    /// When it was opened again last because it had forgotten this session. One thread does that at a time.
    registered: Mutex<Option<Instant>>,
}

/// See the module.
pub(crate) struct Members {
    shared: Arc<Shared>,
    watcher: Option<std::thread::JoinHandle<()>>,
    _thread: Thread,
}

struct Shared {
    /// The members, and then the former places of each.
    all: Vec<Member>,
    jobs: mpsc::UnboundedSender<MemberJob>,
    /// Of units that are read: memory that is new each time would be zeroed by the kernel first.
    buffers: BufPool,
    /// Openings of devices so far.
    openings: AtomicU64,
    /// What the session registers with the members that it writes to.
    guard: Arc<OnceLock<Arc<Guard>>>,
    /// The members are closed, and the thread that watches them ends.
    ends: Mutex<bool>,
    changed: Condvar,
}

/// The result of an operation under way.
pub(crate) struct Pending<T> {
    at: usize,
    /// The opening of its device; 0 if it had none.
    opening: u64,
    result: std_mpsc::Receiver<IoResult<T>>,
}

impl<T> Pending<T> {
    fn ready(at: usize, result: IoResult<T>) -> Pending<T> {
        let (sender, receiver) = std_mpsc::channel();
        let _ = sender.send(result);
        Pending { at, opening: 0, result: receiver }
    }

    /// Where it is under way, for [`Members::read_other`].
    pub(crate) fn place(&self) -> usize {
        self.at
    }
}

fn gone() -> IoError {
    IoError::Offline("the thread that serves the members has ended".into())
}

/// A read that is given up when its device is away.
async fn patient<T: Unpin>(io: Rc<dyn BlockIo>, mut operation: IoFuture<T>) -> IoResult<T> {
    loop {
        if let Ok(result) = timeout(LOOK, &mut operation).await {
            return result;
        }
        if io.away_since().is_some_and(|then| since(then) > AWAY) {
            return Err(IoError::Unreachable("the connection is lost".into()));
        }
    }
}

impl Members {
    /// Opens all members that can be opened.
    pub(crate) fn open(
        all: Vec<(String, OpenMember)>,
        places: &[MemberPlace],
        config: Config,
        buffers: BufPool,
    ) -> IoResult<Members> {
        let thread = Thread::start("longhaul-fs", config)?;
        let (jobs, mut inbox) = mpsc::unbounded::<MemberJob>();
        let count = all.len();
        let slots = 2 * count;
        drop(thread.handle().spawn(move || async move {
            let devices: OpenDevices = Rc::new(RefCell::new(vec![None; slots]));
            while let Some(job) = inbox.next().await {
                job(&devices);
            }
        }));
        let member = |(name, open): &(String, Arc<OpenMember>), namespace| {
            let state = MemberState {
                name: name.clone(),
                info: None,
                down: Some(("it was not opened yet".into(), longhaul_engine::now())),
                namespace,
                place: 0,
                opening: 0,
                is_reservable: None,
            };
            let (filled, registered) = (AtomicU64::new(u64::MAX), Mutex::new(None));
            Member { open: Arc::clone(open), state: Mutex::new(state), filled, registered }
        };
        let opens: Vec<(String, Arc<OpenMember>)> =
            all.into_iter().map(|(name, open)| (name, Arc::new(open))).collect();
        let now = opens.iter().zip(places).map(|(open, place)| member(open, Some(place.namespace)));
        let former = opens.iter().map(|open| member(open, None));
        let all: Vec<Member> = now.chain(former).collect();
        let (guard, ends, changed) = (Arc::default(), Mutex::new(false), Condvar::new());
        let openings = AtomicU64::new(0);
        let shared = Arc::new(Shared { all, jobs, buffers, openings, guard, ends, changed });
        std::thread::scope(|scope| {
            for index in 0..count {
                let shared = &shared;
                scope.spawn(move || shared.open(index));
            }
        });
        let watched = Arc::clone(&shared);
        let watcher =
            std::thread::Builder::new().name("longhaul-member".into()).spawn(move || watched.watch())?;
        let members = Members { shared, watcher: Some(watcher), _thread: thread };
        for (index, place) in places.iter().enumerate() {
            members.follow(index, place, 0);
        }
        Ok(members)
    }

    pub(crate) fn count(&self) -> usize {
        self.shared.all.len() / 2
    }

    pub(crate) fn status(&self) -> Vec<MemberStatus> {
        let status = |member: &Member| {
            let state = lock(&member.state);
            MemberStatus { name: state.name.clone(), down: state.down.as_ref().map(|(why, _)| why.clone()) }
        };
        self.now().iter().map(status).collect()
    }

    /// The name of the device of each, or what it was called when it could not be opened.
    pub(crate) fn devices(&self) -> Vec<String> {
        let device = |member: &Member| {
            let state = lock(&member.state);
            state.info.as_ref().map_or_else(|| state.name.clone(), |info| info.name.clone())
        };
        self.now().iter().map(device).collect()
    }

    /// Which members are used.
    pub(crate) fn live(&self) -> Vec<bool> {
        self.now().iter().map(|member| lock(&member.state).down.is_none()).collect()
    }

    /// Registers the session with the members, all at the same time, and with those that are opened later. One that
    /// does not take the registration is down.
    pub(crate) fn guard(&self, guard: Guard) {
        let guard = Arc::new(guard);
        let _ = self.shared.guard.set(Arc::clone(&guard));
        let registered = self.each_now(move |io| {
            let (guard, io) = (Arc::clone(&guard), Rc::clone(io));
            IoFuture::new(async move { guard.register(&io).await })
        });
        for (member, result) in self.now().iter().zip(registered) {
            if let Ok(is_reservable) = self.wait(result) {
                lock(&member.state).is_reservable = Some(is_reservable);
            }
        }
    }

    /// The members are reserved from now on for the sessions that are registered.
    pub(crate) fn reserve(&self) {
        let Some(guard) = self.shared.guard.get() else { return };
        guard.begin_to_reserve();
        let guard = Arc::clone(guard);
        drop(self.each_now(move |io| {
            guard.reserve(io);
            IoFuture::ready(Ok(()))
        }));
    }

    /// Ends what another session may change at the members.
    pub(crate) fn fence(&self, session: u64) -> Vec<Fence> {
        let Some(guard) = self.shared.guard.get() else { return vec![Fence::Impossible] };
        let guard = Arc::clone(guard);
        let fencing = self.each_now(move |io| {
            let (guard, io) = (Arc::clone(&guard), Rc::clone(io));
            IoFuture::new(async move { guard.fence(&io, session).await })
        });
        let fence = |result| match self.wait(result) {
            Ok(true) => Fence::Fenced,
            Ok(false) => Fence::Impossible,
            Err(e) => Fence::Failed(e),
        };
        fencing.into_iter().map(fence).collect()
    }

    /// Sessions that are registered with members that can be asked.
    pub(crate) fn registered(&self) -> BTreeSet<u64> {
        let asked = self.each_now(|io| {
            let io = Rc::clone(io);
            IoFuture::new(async move { Guard::registered(&io).await })
        });
        asked.into_iter().filter_map(|result| self.wait(result).ok()).flatten().collect()
    }

    /// Begins to end what this session has registered.
    pub(crate) fn leave(&self) -> Leaving {
        let Some(guard) = self.shared.guard.get() else { return Leaving(Vec::new()) };
        guard.end();
        let guard = Arc::clone(guard);
        Leaving(self.each_now(move |io| {
            let (guard, io) = (Arc::clone(&guard), Rc::clone(io));
            IoFuture::new(async move { guard.leave(&io).await })
        }))
    }

    /// Names of members that have no reservations.
    pub(crate) fn without_reservations(&self) -> Vec<String> {
        let name = |member: &Member| {
            let state = lock(&member.state);
            (state.is_reservable == Some(false)).then(|| state.name.clone())
        };
        self.now().iter().filter_map(name).collect()
    }

    /// Begins something at each member, where it is now.
    fn each_now<T: Send + Unpin + 'static>(
        &self,
        begin: impl Fn(&Rc<dyn BlockIo>) -> IoFuture<T> + Clone + Send + 'static,
    ) -> Vec<Pending<T>> {
        let one = |member| {
            let begin = begin.clone();
            self.shared.start(member, move |device| begin(&device.io))
        };
        (0..self.count()).map(one).collect()
    }

    fn now(&self) -> &[Member] {
        &self.shared.all[..self.count()]
    }

    /// Tries again at once to open the members that are down.
    pub(crate) fn open_again(&self) {
        for index in 0..self.shared.all.len() {
            if self.shared.is_due(index, Duration::ZERO) {
                self.shared.open(index);
            }
        }
    }

    /// Uses a member where it is now, and its former place for what is not there yet: bytes from `filled` on.
    pub(crate) fn follow(&self, member: usize, place: &MemberPlace, filled: u64) {
        let former = self.count() + member;
        for (at, namespace) in
            [(former, place.former.map(|former| former.namespace)), (member, Some(place.namespace))]
        {
            let Some(one) = self.shared.all.get(at) else { return };
            let mut state = lock(&one.state);
            if state.namespace == namespace {
                continue;
            }
            state.namespace = namespace;
            state.place += 1;
            (state.info, state.down) = (None, Some(("it has moved".into(), longhaul_engine::now())));
            drop(state);
            match namespace {
                Some(_) => self.shared.open(at),
                None => self.shared.close(at),
            }
        }
        if let Some(one) = self.shared.all.get(member) {
            one.filled.store(if place.fills { filled } else { u64::MAX }, Relaxed);
        }
    }

    /// Whether a byte of a member may not be at its place yet.
    pub(crate) fn is_filling(&self, member: u8, offset: u64) -> bool {
        self.shared.all.get(usize::from(member)).is_some_and(|one| one.filled.load(Relaxed) <= offset)
    }

    /// Whether units of a member are still to be written to where it is now.
    pub(crate) fn is_any_filling(&self) -> bool {
        (0..self.count()).any(|member| self.is_filling(member as u8, u64::MAX - 1))
    }

    /// A member that is filled, and has no former place.
    pub(crate) fn filling(&self) -> Option<String> {
        let is_it = |member: &usize| {
            self.is_filling(*member as u8, u64::MAX - 1) && self.former(*member as u8).is_none()
        };
        let found = (0..self.count()).find(is_it)?;
        Some(format!("member {found}, {},", lock(&self.shared.all[found].state).name))
    }

    /// The first member that is filled, and the bytes of it that are.
    pub(crate) fn filled_to(&self) -> Option<(usize, u64)> {
        let filled = self.now().iter().map(|member| member.filled.load(Relaxed));
        filled.enumerate().find(|(_, filled)| *filled != u64::MAX)
    }

    fn former(&self, member: u8) -> Option<usize> {
        let at = self.count() + usize::from(member);
        lock(&self.shared.all.get(at)?.state).namespace.map(|_| at)
    }

    /// Begins to read where it probably is.
    pub(crate) fn read(&self, member: u8, offset: u64, len: usize) -> Pending<BufMut> {
        let former = self.former(member).filter(|_| self.is_filling(member, offset));
        self.read_at(former.unwrap_or(usize::from(member)), offset, len)
    }

    /// Begins to read at the other place of a member than where that was read, if it has one.
    pub(crate) fn read_other(
        &self,
        member: u8,
        (offset, len): (u64, usize),
        than: usize,
    ) -> Option<Pending<BufMut>> {
        let former = self.former(member)?;
        let other = if than == former { usize::from(member) } else { former };
        Some(self.read_at(other, offset, len))
    }

    /// Asks all members that are used for a block, so that one which is lost is known to be though nothing is read or
    /// written.
    pub(crate) fn probe(&self) {
        let reads: Vec<_> = (0..self.count()).map(|member| self.read_now(member as u8, 0, PROBED)).collect();
        for read in reads {
            // Waiting notes a member that has failed.
            let _ = self.wait(read);
        }
    }

    /// Begins to read at the place where a member is now.
    pub(crate) fn read_now(&self, member: u8, offset: u64, len: usize) -> Pending<BufMut> {
        self.read_at(member.into(), offset, len)
    }

    /// A buffer of a unit, whose content is unspecified.
    pub(crate) fn buffer(&self, len: usize) -> BufMut {
        buffer(&self.shared.buffers, len)
    }

    fn read_at(&self, at: usize, offset: u64, len: usize) -> Pending<BufMut> {
        let to = self.buffer(len);
        self.shared.start(at, move |device| {
            let operation = device.io.read(offset, to);
            let io = Rc::clone(&device.io);
            match operation.try_ready() {
                Ok(result) => IoFuture::ready(result),
                Err(operation) => IoFuture::new(patient(io, operation)),
            }
        })
    }

    /// Writes; gives the [generation](BlockIo::generation) that the device had before.
    pub(crate) fn write(&self, member: u8, offset: u64, data: Buf) -> Pending<u64> {
        self.shared.start(member.into(), move |device| {
            let generation = device.generation();
            match device.io.write(offset, data, WriteFlags::default()).try_ready() {
                Ok(result) => IoFuture::ready(result.map(|()| generation)),
                Err(operation) => IoFuture::new(async move { operation.await.map(|()| generation) }),
            }
        })
    }

    /// Makes what was written to a member durable; gives the generation that it has afterwards.
    fn flush(&self, member: u8) -> Pending<u64> {
        self.shared.start(member.into(), |device| {
            let (operation, device) = (device.io.flush(), device.clone());
            IoFuture::new(async move {
                let flushed = operation.await;
                if flushed.is_err() {
                    device.failed_flushes.set(device.failed_flushes.get() + 1);
                }
                flushed.map(|()| device.generation())
            })
        })
    }

    /// Makes what was written to these members durable. What was written to one in the generation that
    /// is returned for it is durable; nothing is of one without a generation.
    pub(crate) fn flush_all(&self, members: impl IntoIterator<Item = u8>) -> BTreeMap<u8, Option<u64>> {
        let under_way: Vec<(u8, Pending<u64>)> =
            members.into_iter().map(|member| (member, self.flush(member))).collect();
        under_way.into_iter().map(|(member, pending)| (member, self.wait(pending).ok())).collect()
    }

    /// Waits for an operation. A member that has failed is down from then on.
    pub(crate) fn wait<T>(&self, pending: Pending<T>) -> IoResult<T> {
        let result = pending.result.recv().unwrap_or_else(|_| Err(gone()));
        if let Err(e) = &result {
            self.shared.failed((pending.at, pending.opening), e);
        }
        result
    }
}

/// A session that ends what it has registered.
pub(crate) struct Leaving(Vec<Pending<()>>);

impl Leaving {
    /// Waits until that is done; of a member that does not answer, others do it.
    pub(crate) fn wait(self) {
        for Pending { at, result, .. } in self.0 {
            if let Ok(Err(e)) = result.recv() {
                tracing::debug!("the registration with member {at} has not ended: {e}");
            }
        }
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        *lock(&self.shared.ends) = true;
        self.shared.changed.notify_all();
        self.shared.jobs.close_channel();
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

impl Shared {
    fn start<T: Send + Unpin + 'static>(
        &self,
        member: usize,
        begin: impl FnOnce(&MemberDevice) -> IoFuture<T> + Send + 'static,
    ) -> Pending<T> {
        let Some(state) = self.all.get(member).map(|member| lock(&member.state)) else {
            return Pending::ready(member, Err(IoError::Offline(format!("there is no member {member}"))));
        };
        if let Some((why, _)) = &state.down {
            return Pending::ready(member, Err(IoError::Offline(why.clone())));
        }
        let opening = state.opening;
        drop(state);
        let (done, result) = std_mpsc::channel();
        let job: MemberJob = Box::new(move |devices| {
            let Some(device) = devices.borrow().get(member).cloned().flatten() else {
                let _ = done.send(Err(gone()));
                return;
            };
            match begin(&device).try_ready() {
                Ok(result) => drop(done.send(result)),
                Err(under_way) => spawn(async move { drop(done.send(under_way.await)) }).detach(),
            }
        });
        // If the thread has ended the job is dropped, and `wait` says so.
        let _ = self.jobs.unbounded_send(job);
        Pending { at: member, opening, result }
    }

    fn failed(&self, (index, opening): (usize, u64), e: &IoError) {
        // The data is wrong, not the member; and a full medium can be read.
        if matches!(e, IoError::Integrity(_) | IoError::NoSpace) {
            return;
        }
        let Some(member) = self.all.get(index) else { return };
        if let (IoError::Reserved, Some(guard)) = (e, self.guard.get()) {
            return self.unregistered((index, opening), guard);
        }
        let mut state = lock(&member.state);
        // An operation of a device that was lost before may be waited for after the member was opened again, maybe at
        // another place.
        if state.down.is_none() && state.opening == opening {
            tracing::warn!("member {} is not used any more: {e}", state.name);
            state.down = Some((e.to_string(), longhaul_engine::now()));
            self.changed.notify_all();
        }
    }

    /// A member refuses this session: another one has ended its registration, as its record is gone, and it is over;
    /// or the target has forgotten it, and the session registers again.
    fn unregistered(&self, (index, opening): (usize, u64), guard: &Guard) {
        let member = &self.all[index];
        let mut registered = lock(&member.registered);
        let mut state = lock(&member.state);
        if state.opening != opening {
            return;
        }
        if state.down.is_none() {
            state.down = Some((IoError::Reserved.to_string(), longhaul_engine::now()));
        }
        let name = state.name.clone();
        drop(state);
        match guard.check() {
            Ok(()) if registered.is_some_and(|then| since(then) < AGAIN) => {
                tracing::warn!("member {name} is not used any more: {}", IoError::Reserved);
            }
            Ok(()) => {
                *registered = Some(longhaul_engine::now());
                tracing::info!("member {name} does not know this session any more: it registers again");
                self.open(index);
            }
            // It is tried again as for other members that are down.
            Err(e) => tracing::debug!("member {name} is not used any more: {e}"),
        }
    }

    /// Opens the device of a member, and uses it from then on.
    fn open(&self, index: usize) {
        let member = &self.all[index];
        let (namespace, place) = {
            let state = lock(&member.state);
            let Some(namespace) = state.namespace else { return };
            (namespace, state.place)
        };
        // The former place is read only.
        let is_written = index < self.all.len() / 2;
        let guard = Arc::clone(&self.guard);
        let opening = self.openings.fetch_add(1, Relaxed) + 1;
        let opened = (member.open)(namespace).and_then(|device| {
            let info = device.info();
            let (done, result) = std_mpsc::channel();
            let job: MemberJob = Box::new(move |devices| {
                let devices = Rc::clone(devices);
                // One that is opened at the next place meanwhile stays.
                let is_later = move |slot: &Option<MemberDevice>| {
                    slot.as_ref().is_some_and(|device| device.place > place)
                };
                if !is_later(&devices.borrow()[index]) {
                    devices.borrow_mut()[index] = None;
                }
                // Other members have work meanwhile.
                spawn(async move {
                    let opened = async {
                        let io = device.open().await?;
                        // One that comes later registers with all that are open then.
                        let is_reservable = match guard.get().filter(|_| is_written) {
                            Some(guard) => Some(guard.register(&io).await?),
                            None => None,
                        };
                        let slot = &mut devices.borrow_mut()[index];
                        if !is_later(slot) {
                            let failed_flushes = Rc::default();
                            *slot =
                                Some(MemberDevice { io, _device: device, place, opening, failed_flushes });
                        }
                        Ok(is_reservable)
                    };
                    let _ = done.send(opened.await);
                })
                .detach();
            });
            let _ = self.jobs.unbounded_send(job);
            let is_reservable = result.recv().unwrap_or_else(|_| Err(gone()))?;
            // Another session may have ended the registrations of this one before that.
            if let Some(guard) = self.guard.get().filter(|_| is_reservable == Some(true)) {
                guard.check().inspect_err(|_| self.withdraw(index, guard))?;
            }
            Ok((info, is_reservable))
        });
        let mut state = lock(&member.state);
        if state.place != place {
            // It has moved meanwhile, and is opened there.
            return;
        }
        match opened {
            Ok((info, is_reservable)) => {
                if state.info.is_some() {
                    tracing::info!("member {} is used again", state.name);
                }
                if place > 0 {
                    state.name.clone_from(&info.name);
                }
                state.is_reservable = is_reservable.or(state.is_reservable);
                (state.info, state.down, state.opening) = (Some(info), None, opening);
            }
            Err(e) => state.down = Some((e.to_string(), longhaul_engine::now())),
        }
    }

    /// Ends the registration of a session that is over.
    fn withdraw(&self, index: usize, guard: &Arc<Guard>) {
        if !guard.has_ended() {
            return;
        }
        let guard = Arc::clone(guard);
        let job: MemberJob = Box::new(move |devices| {
            let Some(MemberDevice { io, .. }) = devices.borrow_mut()[index].take() else { return };
            spawn(async move { drop(guard.leave(&io).await) }).detach();
        });
        let _ = self.jobs.unbounded_send(job);
    }

    /// Closes the device of a place that is not used any more.
    fn close(&self, index: usize) {
        let job: MemberJob = Box::new(move |devices| drop(devices.borrow_mut()[index].take()));
        let _ = self.jobs.unbounded_send(job);
    }

    /// Whether a place has been down for as long.
    fn is_due(&self, index: usize, long: Duration) -> bool {
        let state = lock(&self.all[index].state);
        state.namespace.is_some() && state.down.as_ref().is_some_and(|(_, then)| since(*then) >= long)
    }

    /// Opens members again that are down.
    fn watch(&self) {
        let mut ends = lock(&self.ends);
        while !*ends {
            ends = self.changed.wait_timeout(ends, AGAIN).unwrap_or_else(PoisonError::into_inner).0;
            if *ends {
                return;
            }
            let due: Vec<usize> = (0..self.all.len()).filter(|index| self.is_due(*index, AGAIN)).collect();
            if !due.is_empty() {
                drop(ends);
                due.into_iter().for_each(|index| self.open(index));
                ends = lock(&self.ends);
            }
        }
    }
}
