//! The executor: tasks of one thread, and the inbox for other threads.
//!
//! Invariants:
//! - a task is polled on the thread of its engine only;
//! - a wake from another thread is never lost: the sleeper announces itself before its last look at
//!   the inbox, the waker fills the inbox before it looks for a sleeper;
//! - every task gets its turn: a turn runs the tasks that were ready when it began, and after a few
//!   turns the executor polls for I/O.

use crate::config::{Config, EngineKind};
use crate::driver::{Driver, Spin};
use crate::simulated::{Groups, Member, Network, OUTSIDE, Simulated, inside};
use crate::time::Timers;
use async_task::Runnable;
use futures_channel::oneshot;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

thread_local! {
    static CURRENT: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

/// What the tasks of one thread share.
pub(crate) struct Core {
    shared: Arc<Shared>,
    ready: RefCell<VecDeque<Runnable>>,
    /// Every task that has not ended: what ends them with their engine.
    tasks: RefCell<Slab<Waker>>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) driver: RefCell<Driver>,
    spin: RefCell<Spin>,
    /// System calls that the running task may still make one after the other: see [`turn`].
    calls: Cell<u32>,
    /// Virtual time, on an engine that is simulated.
    simulated: Option<Simulated>,
}

type Job = Box<dyn FnOnce() + Send>;

/// Turns of ready tasks before I/O is looked at: what a completion sets off
/// (the caller's next operation, the transmit loop) is submitted together
/// with it, in one system call.
const TURNS: usize = 4;

/// System calls without a wait before a task lets others run. A peer that sends faster than a
/// task handles its bytes would otherwise keep the thread from all other tasks and timers.
const CALLS: u32 = 32;

/// The side of an engine that other threads see.
struct Shared {
    inbox: Mutex<Inbox>,
    /// A task was woken while the engine ends.
    late: Condvar,
    /// The inbox may have something.
    pending: AtomicBool,
    /// The engine sleeps (or is about to) and wants a signal.
    sleeping: AtomicBool,
    signal: Arc<crate::driver::Signal>,
}

#[derive(Default)]
struct Inbox {
    woken: Vec<Runnable>,
    jobs: Vec<Job>,
    /// The engine ends: no jobs are taken any more, and tasks that are woken
    /// only come home to end.
    closed: bool,
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self) {
        self.pending.store(true, Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) {
            self.signal.raise();
        }
    }
}

fn schedule(shared: &Arc<Shared>, runnable: Runnable) {
    let mut runnable = Some(runnable);
    let _ = CURRENT.try_with(|current| {
        if let Some(core) = current.borrow().as_ref()
            && Arc::ptr_eq(&core.shared, shared)
        {
            core.ready.borrow_mut().extend(runnable.take());
        }
    });
    if let Some(runnable) = runnable {
        let mut inbox = shared.lock();
        inbox.woken.push(runnable);
        if inbox.closed {
            shared.late.notify_one();
        }
        drop(inbox);
        shared.announce();
    }
}

pub(crate) fn with_core<R>(f: impl FnOnce(&Core) -> R) -> R {
    CURRENT.with(|current| {
        let current = current.borrow();
        f(current.as_ref().expect("called outside an engine thread"))
    })
}

/// The core, if this thread still has one (false in destructors at its end).
pub(crate) fn try_with_core(f: impl FnOnce(&Core)) {
    let _ = CURRENT.try_with(|current| {
        if let Ok(current) = current.try_borrow()
            && let Some(core) = current.as_ref()
        {
            f(core);
        }
    });
}

/// The time of the calling thread's engine, or the system's.
pub(crate) fn clock() -> Instant {
    let mut time = None;
    try_with_core(|core| time = core.simulated.as_ref().map(Simulated::now));
    time.unwrap_or_else(Instant::now)
}

/// The time since boot of the calling thread's engine, or the system's.
pub(crate) fn boot_clock() -> Duration {
    let mut time = None;
    try_with_core(|core| time = core.simulated.as_ref().map(Simulated::boot_time));
    time.unwrap_or_else(crate::time::system_boot_time)
}

/// The wall clock of the calling thread's engine, or the system's.
pub(crate) fn wall_clock() -> Duration {
    let mut time = None;
    try_with_core(|core| time = core.simulated.as_ref().map(Simulated::wall_time));
    time.unwrap_or_else(crate::time::system_wall_time)
}

/// Starts a task on the calling engine thread.
///
/// A task that panics ends alone: the panic resumes in the task that awaits the
/// [`Task`](crate::Task), and the other tasks of the thread continue.
///
/// # Panics
/// Outside an engine thread.
pub fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> crate::Task<T> {
    let (shared, entry) = enlist();
    let (id, group) = (entry.id, entry.group);
    let future = async move {
        let _entry = entry;
        future.await
    };
    match group {
        None => start(id, shared, future),
        Some(group) => start(id, shared, Member::new(group, future)),
    }
}

/// A place for a new task of this thread's engine.
fn enlist() -> (Arc<Shared>, Entry) {
    with_core(|core| {
        let id = core.tasks.borrow_mut().insert(Waker::noop().clone());
        let group = core.groups().map(|groups| {
            groups.add(groups.current(), id);
            groups.current()
        });
        (Arc::clone(&core.shared), Entry { id, group })
    })
}

fn start<T: 'static>(
    id: usize,
    shared: Arc<Shared>,
    future: impl Future<Output = T> + 'static,
) -> crate::Task<T> {
    let builder = async_task::Builder::new().propagate_panic(true);
    let (runnable, task) = builder.spawn_local(|()| future, move |runnable| schedule(&shared, runnable));
    let waker = runnable.waker();
    with_core(move |core| core.tasks.borrow_mut()[id] = waker);
    runnable.schedule();
    task
}

/// A task's place in its engine's list, given back when it ends or is dropped.
struct Entry {
    id: usize,
    /// Of a simulation.
    group: Option<u64>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        try_with_core(|core| {
            // Its waker may be the last reference to the task, which is ending: it is dropped when
            // the list is not borrowed.
            let waker = core.tasks.borrow_mut().try_remove(self.id);
            if let (Some(groups), Some(group)) = (core.groups(), self.group) {
                groups.remove(group, self.id);
            }
            drop(waker);
        });
    }
}

/// The calling thread's engine, for other threads.
///
/// # Panics
/// Outside an engine thread.
pub fn handle() -> Handle {
    with_core(|core| Handle {
        shared: Arc::clone(&core.shared),
        group: core.groups().map_or(OUTSIDE, Groups::current),
    })
}

/// Stands in for a new engine thread where the calling thread's engine is simulated: the same
/// engine, and a group of tasks in that of the caller.
pub(crate) fn simulated_thread() -> Option<(Handle, u64)> {
    let mut thread = None;
    try_with_core(|core| {
        if let Some(groups) = core.groups() {
            let group = groups.begin(None);
            thread = Some((Handle { shared: Arc::clone(&core.shared), group }, group));
        }
    });
    thread
}

/// Which driver the calling thread's engine runs on.
///
/// # Panics
/// Outside an engine thread.
pub fn kind() -> EngineKind {
    with_core(|core| core.driver.borrow().kind())
}

/// Lets every other ready task run once.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A system call of the running task that does not wait: after [`CALLS`] of them, every other
/// ready task runs first.
pub(crate) async fn turn() {
    let left = with_core(|core| {
        let left = core.calls.get();
        core.calls.set(left.saturating_sub(1));
        left
    });
    if left == 0 {
        yield_now().await;
    }
}

/// One thread's executor and driver. It is made and used on that thread.
pub struct Engine {
    core: Rc<Core>,
}

impl Engine {
    /// Sets up an engine on the calling thread.
    ///
    /// # Errors
    /// The driver that is asked for cannot be had here.
    ///
    /// # Panics
    /// If the thread has an engine already.
    pub fn new(config: &Config) -> io::Result<Engine> {
        let signal = Arc::new(crate::driver::Signal::new()?);
        let driver = Driver::new(config, &signal)?;
        Ok(Engine::with(signal, driver, config, None))
    }

    /// Sets up an engine in virtual time on the calling thread: for code that
    /// needs timers and other tasks, and stream sockets if it is given a network
    /// ([`crate::simulated::set_network`]), but no files (those panic). What
    /// begins engine threads of its own gets the same engine instead.
    ///
    /// Nothing here depends on the machine: the same program with the same
    /// `seed` does the same. Of the tasks that are ready the seed chooses the
    /// next; when none is, the time jumps to the next timer. Tasks take no time.
    ///
    /// # Errors
    /// The system has no descriptor left.
    ///
    /// # Panics
    /// If the thread has an engine already. [`block_on`](Engine::block_on)
    /// panics when no task can ever be woken again.
    pub fn simulated(seed: u64) -> io::Result<Engine> {
        let signal = Arc::new(crate::driver::Signal::new()?);
        let simulated = Simulated::new(seed);
        Ok(Engine::with(signal, Driver::Simulated, &Config::default(), Some(simulated)))
    }

    /// Suspends the simulated machine for `time`: [`boot_time`](crate::boot_time) and
    /// [`wall_time`](crate::wall_time) advance, [`now`](crate::now) and timers do not.
    /// Does nothing on an engine that is not simulated.
    pub fn suspend(&self, time: Duration) {
        self.core.simulated.iter().for_each(|simulated| simulated.suspend(time));
    }

    /// Pauses the simulated machine from outside, as a hypervisor does, for `time`:
    /// only [`wall_time`](crate::wall_time) advances. Does nothing on an engine that
    /// is not simulated.
    pub fn pause(&self, time: Duration) {
        self.core.simulated.iter().for_each(|simulated| simulated.pause(time));
    }

    fn with(
        signal: Arc<crate::driver::Signal>,
        driver: Driver,
        config: &Config,
        simulated: Option<Simulated>,
    ) -> Engine {
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            late: Condvar::new(),
            pending: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            signal,
        });
        let core = Rc::new(Core {
            shared,
            ready: RefCell::default(),
            tasks: RefCell::default(),
            timers: RefCell::default(),
            driver: RefCell::new(driver),
            spin: RefCell::new(Spin::new(config.spin)),
            calls: Cell::new(CALLS),
            simulated,
        });
        CURRENT.with(|current| {
            let old = current.borrow_mut().replace(Rc::clone(&core));
            assert!(old.is_none(), "this thread has an engine already");
        });
        Engine { core }
    }

    /// This engine, for other threads.
    pub fn handle(&self) -> Handle {
        Handle { shared: Arc::clone(&self.core.shared), group: OUTSIDE }
    }

    /// Runs `future`, and every task, until `future` is done.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let root = Arc::new(Root { woken: AtomicBool::new(true), shared: Arc::clone(&self.core.shared) });
        let waker = Waker::from(Arc::clone(&root));
        let mut cx = Context::from_waker(&waker);
        loop {
            if root.woken.swap(false, Ordering::SeqCst) {
                self.core.calls.set(CALLS);
                if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                    return output;
                }
            }
            self.core.round(&root.woken);
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Tasks end while the core is still reachable, since their destructors cancel operations;
        // then the kernel releases the memory.
        let jobs = {
            let mut inbox = self.core.shared.lock();
            inbox.closed = true;
            std::mem::take(&mut inbox.jobs)
        };
        drop(jobs);
        loop {
            // A woken task is ready, and a ready one that is dropped ends. One
            // that another thread is waking at this moment cannot be woken
            // again, and comes by the inbox.
            let tasks: Vec<Waker> = self.core.tasks.borrow().iter().map(|(_, task)| task.clone()).collect();
            if tasks.is_empty() {
                break;
            }
            tasks.into_iter().for_each(Waker::wake);
            let ready = std::mem::take(&mut *self.core.ready.borrow_mut());
            let woken = {
                let mut inbox = self.core.shared.lock();
                while ready.is_empty() && inbox.woken.is_empty() {
                    inbox = self.core.shared.late.wait(inbox).unwrap_or_else(PoisonError::into_inner);
                }
                std::mem::take(&mut inbox.woken)
            };
            drop((ready, woken));
        }
        drop(std::mem::take(&mut *self.core.timers.borrow_mut()));
        self.core.driver.borrow_mut().shut_down();
        CURRENT.with(|current| current.borrow_mut().take());
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({})", self.core.driver.borrow().kind())
    }
}

/// The waker of `block_on`'s own future.
struct Root {
    woken: AtomicBool,
    shared: Arc<Shared>,
}

impl Wake for Root {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        if self.shared.sleeping.load(Ordering::SeqCst) {
            self.shared.signal.raise();
        }
    }
}

impl Core {
    pub(crate) fn simulated(&self) -> Option<&Simulated> {
        self.simulated.as_ref()
    }

    pub(crate) fn groups(&self) -> Option<&Groups> {
        self.simulated.as_ref().map(|simulated| &simulated.groups)
    }

    /// The network of a simulation, if it has one, and the address of the host
    /// whose task runs.
    pub(crate) fn network(&self) -> Option<(Option<Rc<dyn Network>>, IpAddr)> {
        let simulated = self.simulated.as_ref()?;
        let groups = &simulated.groups;
        Some((simulated.network.borrow().clone(), groups.addr(groups.current())))
    }

    pub(crate) fn set_network(&self, network: Rc<dyn Network>) {
        let simulated = self.simulated.as_ref().expect("a network needs a simulated engine");
        *simulated.network.borrow_mut() = Some(network);
    }

    /// Wakes tasks by their place in the list.
    pub(crate) fn wake_tasks(&self, tasks: &[usize]) {
        let wakers: Vec<Waker> = {
            let all = self.tasks.borrow();
            tasks.iter().filter_map(|id| all.get(*id).cloned()).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// One round: ready tasks, the inbox, timers, then I/O, waiting for it
    /// only if nothing else is to be done.
    fn round(&self, root_woken: &AtomicBool) {
        if let Some(simulated) = &self.simulated {
            self.simulated_round(simulated, root_woken);
            return;
        }
        for _ in 0..TURNS {
            let turn = self.ready.borrow().len();
            if turn == 0 {
                break;
            }
            for _ in 0..turn {
                let Some(runnable) = self.ready.borrow_mut().pop_front() else { break };
                self.calls.set(CALLS);
                runnable.run();
            }
        }
        self.take_inbox();
        // One look at the clock a round: it is a good part of what a round
        // without work costs.
        let now = Instant::now();
        self.timers.borrow_mut().fire(now);

        let busy = || !self.ready.borrow().is_empty() || root_woken.load(Ordering::SeqCst);
        if busy() {
            self.driver.borrow_mut().poll();
            return;
        }
        let deadline = self.timers.borrow().next();
        let mut driver = self.driver.borrow_mut();
        let mut spin = self.spin.borrow_mut();
        let pending = || self.shared.pending.load(Ordering::SeqCst) || root_woken.load(Ordering::SeqCst);
        if driver.poll() || spin.wait(&mut driver, now, deadline, &pending) {
            return;
        }
        // Announce the sleep, then look a last time.
        self.shared.sleeping.store(true, Ordering::SeqCst);
        if !pending() {
            let began = Instant::now();
            driver.sleep(deadline);
            spin.slept(began.elapsed());
        }
        self.shared.sleeping.store(false, Ordering::SeqCst);
    }

    /// One round in virtual time: a task, or else the next timers.
    fn simulated_round(&self, simulated: &Simulated, root_woken: &AtomicBool) {
        self.take_inbox();
        let count = self.ready.borrow().len();
        if count > 0 {
            let chosen = self.ready.borrow_mut().swap_remove_back(simulated.below(count));
            if let Some(runnable) = chosen {
                runnable.run();
            }
        } else if !root_woken.load(Ordering::SeqCst) {
            let next = self.timers.borrow().next();
            simulated.jump(next.expect("every task waits, and there is no timer"));
            self.timers.borrow_mut().fire(simulated.now());
        }
    }

    fn take_inbox(&self) {
        if !self.shared.pending.swap(false, Ordering::SeqCst) {
            return;
        }
        let (woken, jobs) = {
            let mut inbox = self.shared.lock();
            (std::mem::take(&mut inbox.woken), std::mem::take(&mut inbox.jobs))
        };
        self.ready.borrow_mut().extend(woken);
        for job in jobs {
            job();
        }
    }
}

/// An engine as other threads see it.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    /// Tasks that are spawned by it belong to this group of a simulation.
    group: u64,
}

impl Handle {
    /// Runs what `f` makes as a task on the engine's thread. The task continues
    /// if the [`Remote`] is dropped.
    pub fn spawn<F, Fut>(&self, f: F) -> Remote<Fut::Output>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future + 'static,
        Fut::Output: Send + 'static,
    {
        let (tx, rx) = oneshot::channel();
        let group = self.group;
        let job = move || {
            let future = f();
            spawn(async move {
                let _ = tx.send(future.await);
            })
            .detach();
        };
        let job: Job = if group == OUTSIDE { Box::new(job) } else { Box::new(move || inside(group, job)) };
        let mut inbox = self.shared.lock();
        if !inbox.closed {
            inbox.jobs.push(job);
            drop(inbox);
            self.shared.announce();
        }
        Remote { rx }
    }

    #[cfg(test)]
    pub(crate) fn group(&self) -> u64 {
        self.group
    }

    /// Whether both are the same engine.
    pub fn is_same(&self, other: &Handle) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle")
    }
}

/// The result of a task on another thread's engine: a future, or
/// [`wait`](Remote::wait) for code that has no engine.
#[derive(Debug)]
pub struct Remote<T> {
    rx: oneshot::Receiver<T>,
}

impl<T> Remote<T> {
    /// Blocks the calling thread until the task is done.
    ///
    /// # Errors
    /// [`EngineGone`] if the engine ended first.
    pub fn wait(self) -> Result<T, EngineGone> {
        struct Unpark(std::thread::Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut cx = Context::from_waker(&waker);
        let mut this = pin!(self);
        loop {
            match this.as_mut().poll(&mut cx) {
                Poll::Ready(result) => return result,
                Poll::Pending => std::thread::park(),
            }
        }
    }
}

impl<T> Future for Remote<T> {
    type Output = Result<T, EngineGone>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.rx).poll(cx).map_err(|_| EngineGone)
    }
}

/// The engine ended before the task did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine ended before the task was done")]
pub struct EngineGone;
