//! The paths of a device as one engine thread uses them.
//!
//! Invariants:
//! - requests of one direction are assigned in their order; one that waits for a path lets others
//!   pass that can be sent on another one;
//! - while a request waits, something will look at it again: a completion, or the timer;
//! - a request that a path has refused is in `refused`, or with another path.

use super::io::User;
use super::schedule::{Choice, PathLoad, PathState, choose, choose_again};
use super::{Shared, connect};
use crate::call::Waiting;
use crate::error::{Result, io_error};
use crate::io::RemoteIo;
use crate::io_queue::OtherPath;
use crate::path::IoDirection;
use futures_channel::oneshot;
use longhaul_block::IoError;
use longhaul_engine::{now, since, sleep, spawn};
use longhaul_wire::completion::Status;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Requests that are looked at in one go.
const SCAN_MAX: usize = 4096;
/// Interval at which waiting requests are looked at, although nothing completes.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Time before a path is opened again that could not be.
const OPEN_AGAIN: Duration = Duration::from_millis(500);

/// How long a request is sent again that targets refuse although they report that they serve the
/// namespace: what is behind them may be out of reach, or another target takes it over.
const REFUSED_MAX: Duration = Duration::from_secs(10);
/// The most that one refusal adds to that time.
const REFUSED_EACH: Duration = Duration::from_secs(1);

/// A request that waits for a path.
pub(super) struct WaitingRequest {
    pub(super) bytes: u64,
    /// Sends it over a path.
    pub(super) start: Box<dyn FnOnce(usize)>,
}

/// A request that a path has refused.
struct RefusedRequest {
    from: usize,
    call: Waiting,
    status: Status,
}

/// See the module.
pub(crate) struct ThreadPaths {
    pub(super) shared: Arc<Shared>,
    paths: Vec<ThreadPath>,
    /// By direction.
    waiting: [RefCell<VecDeque<WaitingRequest>>; 2],
    refused: RefCell<Vec<RefusedRequest>>,
    timer: Cell<bool>,
    /// Tasks that wait until a path has been opened, or cannot be.
    watchers: RefCell<Vec<oneshot::Sender<()>>>,
}

struct ThreadPath {
    io: RefCell<Option<Rc<RemoteIo>>>,
    opening: Cell<bool>,
    failed: RefCell<Option<crate::Error>>,
    /// When something last completed, or was sent while nothing was in flight.
    heard: Cell<Option<Instant>>,
}

thread_local! {
    static HERE: RefCell<Vec<Weak<ThreadPaths>>> = const { RefCell::new(Vec::new()) };
}

impl ThreadPaths {
    /// Those of the calling thread.
    pub(super) fn here(shared: &Arc<Shared>) -> Rc<ThreadPaths> {
        HERE.with_borrow_mut(|all| {
            all.retain(|one| one.strong_count() > 0);
            let known = all.iter().filter_map(Weak::upgrade).find(|one| Arc::ptr_eq(&one.shared, shared));
            known.unwrap_or_else(|| {
                let path = |_| ThreadPath {
                    io: RefCell::default(),
                    opening: Cell::default(),
                    failed: RefCell::default(),
                    heard: Cell::default(),
                };
                let made = Rc::new(ThreadPaths {
                    shared: Arc::clone(shared),
                    paths: (0..shared.paths.len()).map(path).collect(),
                    waiting: Default::default(),
                    refused: RefCell::default(),
                    timer: Cell::default(),
                    watchers: RefCell::default(),
                });
                all.push(Rc::downgrade(&made));
                made
            })
        })
    }

    /// Opens the paths that have been connected; ready when one is open.
    ///
    /// # Errors
    /// None can be opened.
    pub(super) async fn open(self: &Rc<Self>) -> Result<()> {
        loop {
            self.open_missing();
            if self.paths.iter().any(|path| path.io.borrow().is_some()) {
                return Ok(());
            }
            if !self.paths.iter().any(|path| path.opening.get()) {
                let mut failed = self.paths.iter().filter_map(|path| path.failed.borrow().clone());
                return Err(failed.next().unwrap_or_else(connect::gone));
            }
            let (changed, wait) = oneshot::channel();
            self.watchers.borrow_mut().push(changed);
            let _ = wait.await;
        }
    }

    /// Begins to open the paths that have been connected and are not open.
    fn open_missing(self: &Rc<Self>) {
        for (number, path) in self.paths.iter().enumerate() {
            let device = self.shared.paths[number].device.get();
            if path.io.borrow().is_some() || path.opening.get() {
                continue;
            }
            let Some(device) = device.cloned() else { continue };
            path.opening.set(true);
            let weak = Rc::downgrade(self);
            spawn(async move {
                let opened = device.open_io().await;
                let Some(this) = weak.upgrade() else { return };
                let failed = opened.is_err();
                this.opened(number, opened);
                drop(this);
                if failed {
                    sleep(OPEN_AGAIN).await;
                }
                if let Some(this) = weak.upgrade() {
                    this.paths[number].opening.set(false);
                }
            })
            .detach();
        }
    }

    fn opened(self: &Rc<Self>, number: usize, opened: Result<Rc<RemoteIo>>) {
        let path = &self.paths[number];
        match opened {
            Ok(io) => {
                let this = Rc::downgrade(self);
                let other: Rc<dyn OtherPath> = Rc::new(Others { this, number });
                io.pool.set_other_path(&other);
                *path.io.borrow_mut() = Some(io);
            }
            Err(e) => {
                // The next one to open the device tries again.
                path.opening.set(false);
                *path.failed.borrow_mut() = Some(e);
            }
        }
        self.watchers.borrow_mut().clear();
        self.pump();
    }

    /// The connections of a path, if it is open on this thread.
    pub(super) fn io(&self, number: usize) -> Option<Rc<RemoteIo>> {
        self.paths[number].io.borrow().clone()
    }

    /// What a path can be used for now.
    fn state(&self, number: usize) -> PathState {
        let path = &self.paths[number];
        match path.io.borrow().as_ref() {
            Some(io) if io.pool.is_connected() => self.shared.state(number, io.pool.controller().access()),
            _ => PathState::Lost,
        }
    }

    fn states(&self) -> Vec<PathState> {
        (0..self.paths.len()).map(|number| self.state(number)).collect()
    }

    fn load(&self, number: usize, way: IoDirection) -> PathLoad {
        let path = &self.paths[number];
        let io = path.io.borrow();
        let Some(pool) = io.as_ref().map(|io| &io.pool) else {
            let round_trip = Duration::ZERO;
            let state = PathState::Lost;
            return PathLoad {
                state,
                in_flight: 0,
                ahead: 0,
                window: 0,
                rate: 0.0,
                full: false,
                round_trip,
                silent: Duration::ZERO,
            };
        };
        let plan = pool.plan();
        let in_flight = pool.in_flight(way);
        let silent =
            if in_flight > 0 { path.heard.get().map_or(Duration::ZERO, since) } else { Duration::ZERO };
        PathLoad {
            state: self.state(number),
            in_flight,
            ahead: 0,
            window: plan.in_flight[way as usize],
            rate: plan.rate[way as usize],
            full: plan.full[way as usize],
            round_trip: plan.rtt,
            silent,
        }
    }

    fn loads(&self, way: IoDirection) -> Vec<PathLoad> {
        (0..self.paths.len()).map(|number| self.load(number, way)).collect()
    }

    /// The path that takes a request at once, if none waits before it.
    pub(super) fn path_now(self: &Rc<Self>, way: IoDirection, bytes: u64) -> Option<usize> {
        if !self.waiting[way as usize].borrow().is_empty() {
            return None;
        }
        match choose(&self.loads(way), bytes) {
            Choice::Send(number) => Some(number),
            Choice::Wait(_) | Choice::None => None,
        }
    }

    /// A request is sent over a path.
    pub(super) fn begun(&self, number: usize) {
        let path = &self.paths[number];
        let idle = path.io.borrow().as_ref().is_none_or(|io| {
            io.pool.in_flight(IoDirection::Read) + io.pool.in_flight(IoDirection::Write) == 0
        });
        if idle {
            path.heard.set(Some(now()));
        }
    }

    /// A request has completed on a path.
    pub(super) fn ended(self: &Rc<Self>, number: usize) {
        self.paths[number].heard.set(Some(now()));
        self.pump();
    }

    /// A request waits for a path.
    pub(super) fn wait(self: &Rc<Self>, way: IoDirection, request: WaitingRequest) {
        self.waiting[way as usize].borrow_mut().push_back(request);
        self.pump();
    }

    /// Sends the requests for which there is room.
    fn pump(self: &Rc<Self>) {
        for way in [IoDirection::Read, IoDirection::Write] {
            if !self.waiting[way as usize].borrow().is_empty() {
                for (number, request) in self.assign(way) {
                    (request.start)(number);
                }
            }
        }
        let waits = self.waiting.iter().any(|waiting| !waiting.borrow().is_empty());
        let is_idle = !waits && self.refused.borrow().is_empty();
        if is_idle || self.timer.replace(true) {
            return;
        }
        let weak = Rc::downgrade(self);
        spawn(async move {
            sleep(LOOK_AGAIN).await;
            if let Some(this) = weak.upgrade() {
                this.timer.set(false);
                this.open_missing();
                this.resend_refused();
                this.pump();
            }
        })
        .detach();
    }

    /// A path has refused a request: another one gets it at once, or a path that can be used later.
    fn is_refused(self: &Rc<Self>, from: usize, call: Waiting, status: Status) {
        if is_without_access(status)
            && let Some(controller) = self.shared.paths[from].controller()
        {
            controller.is_refused_access();
        }
        self.shared.paths[from].refused.fetch_add(1, Ordering::AcqRel);
        let before = call.call.refused.get();
        let first = before.is_none();
        // Time in which no path could be used does not count.
        let time = before.map_or(Duration::ZERO, |(at, time)| time + since(at).min(REFUSED_EACH));
        call.call.refused.set(Some((now(), time)));
        self.refused.borrow_mut().push(RefusedRequest { from, call, status });
        // One that goes round in circles waits for the timer.
        let other = first && choose_again(&self.states(), from).is_some_and(|number| number != from);
        let weak = Rc::downgrade(self);
        spawn(async move {
            let Some(this) = weak.upgrade() else { return };
            if other {
                this.resend_refused();
            }
            this.pump();
        })
        .detach();
    }

    /// Sends what was refused over paths that can be used, and ends what was refused for too long.
    fn resend_refused(&self) {
        let refused = std::mem::take(&mut *self.refused.borrow_mut());
        if refused.is_empty() {
            return;
        }
        let (states, over) = (self.states(), self.shared.why_over());
        for RefusedRequest { from, call, status } in refused {
            let for_long = call.call.refused.get().is_some_and(|(_, time)| time >= REFUSED_MAX);
            if call.call.unwanted.get() {
                call.call.finish(Err(IoError::Aborted));
                continue;
            }
            let ended = for_long && !is_without_access(status);
            if let Some(e) = over.clone().or_else(|| ended.then(|| io_error(status))) {
                call.call.finish(Err(e));
                continue;
            }
            let io = choose_again(&states, from).and_then(|number| self.io(number));
            let left = match io {
                Some(io) => io.pool.take_from_other_path(vec![call]),
                None => vec![call],
            };
            let left = left.into_iter().map(|call| RefusedRequest { from, call, status });
            self.refused.borrow_mut().extend(left);
        }
    }

    /// Takes the requests that can be sent now, with their paths.
    fn assign(&self, way: IoDirection) -> Vec<(usize, WaitingRequest)> {
        let mut loads = self.loads(way);
        let mut waiting = self.waiting[way as usize].borrow_mut();
        let mut sent = Vec::new();
        if self.shared.is_over() {
            // Each gets the error of a path.
            let open = self.paths.iter().position(|path| path.io.borrow().is_some());
            return waiting.drain(..).filter_map(|request| Some((open?, request))).collect();
        }
        let mut place = 0;
        while place < waiting.len().min(SCAN_MAX) {
            let bytes = waiting[place].bytes;
            if !loads.iter().any(|load| load.has_room()) {
                break;
            }
            match choose(&loads, bytes) {
                Choice::Send(number) => {
                    loads[number].in_flight += bytes;
                    sent.extend(waiting.remove(place).map(|request| (number, request)));
                }
                Choice::Wait(number) => {
                    loads[number].ahead += bytes;
                    place += 1;
                }
                Choice::None => break,
            }
        }
        sent
    }

    /// Whether a path was connected that is not open on this thread.
    pub(super) fn open_new(self: &Rc<Self>) {
        let open = self.paths.iter().filter(|path| path.io.borrow().is_some()).count() as u64;
        if open < self.shared.connected.load(Ordering::Acquire) {
            self.open_missing();
        }
    }

    /// A user of the device on this thread.
    pub(super) fn user(self: &Rc<Self>) -> Rc<User> {
        Rc::new(User::new(self, self.paths.len()))
    }
}

/// Whether a command was refused since the target does not serve the namespace: its state says when
/// it does.
fn is_without_access(status: Status) -> bool {
    let without = [Status::ANA_INACCESSIBLE, Status::ANA_TRANSITION, Status::ANA_PERSISTENT_LOSS];
    without.iter().any(|other| (other.sct(), other.sc()) == (status.sct(), status.sc()))
}

/// The other paths than one.
struct Others {
    this: Weak<ThreadPaths>,
    number: usize,
}

impl OtherPath for Others {
    fn take_over(&self, mut calls: Vec<Waiting>) -> Vec<Waiting> {
        let Some(this) = self.this.upgrade() else { return calls };
        let states = this.states();
        let mut others: Vec<_> = (0..states.len()).filter(|number| *number != self.number).collect();
        others.retain(|number| states[*number].is_usable());
        others.sort_by_key(|number| states[*number]);
        for number in others {
            if let Some(io) = this.io(number)
                && !calls.is_empty()
            {
                calls = io.pool.take_from_other_path(calls);
            }
        }
        calls
    }

    fn refused(&self, call: Waiting, status: Status) {
        match self.this.upgrade() {
            Some(this) => this.is_refused(self.number, call, status),
            None => call.call.finish(Err(io_error(status))),
        }
    }

    fn may_return(&self) -> bool {
        let Some(this) = self.this.upgrade() else { return false };
        this.shared.controllers().any(|(number, one)| number != self.number && one.check().is_ok())
    }
}
