//! Hosts of a simulation: groups of tasks on one engine that live and die
//! together, as the tasks of a machine, a process or an engine thread do.
//!
//! Invariants:
//! - a task belongs to the group of the task that has spawned it, or to that of
//!   the [`Handle`](crate::Handle) it was spawned by;
//! - once a group is dead no task of it runs any code but destructors;
//! - no task of a group that is paused runs, and none misses a wake-up by that;
//! - a group that is inside another one dies with it.

use crate::Task;
use crate::exec::{spawn, try_with_core, with_core};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The group of tasks that belong to no host.
pub(crate) const OUTSIDE: u64 = 0;

#[derive(Default)]
pub(crate) struct Groups {
    all: RefCell<BTreeMap<u64, Group>>,
    last: Cell<u64>,
    /// Of the task that runs.
    current: Cell<u64>,
}

struct Group {
    addr: IpAddr,
    /// The group that this one is a part of.
    parent: u64,
    paused: bool,
    tasks: BTreeSet<usize>,
}

/// What a task may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum May {
    Run,
    Wait,
    End,
}

impl Groups {
    pub(crate) fn current(&self) -> u64 {
        self.current.get()
    }

    /// Sets the current group; the one before.
    pub(crate) fn enter(&self, group: u64) -> u64 {
        self.current.replace(group)
    }

    /// A group within the current one.
    pub(crate) fn begin(&self, addr: Option<IpAddr>) -> u64 {
        let group = self.last.get() + 1;
        self.last.set(group);
        let parent = self.current.get();
        let addr = addr.unwrap_or_else(|| self.addr(parent));
        self.all.borrow_mut().insert(group, Group { addr, parent, paused: false, tasks: BTreeSet::new() });
        group
    }

    pub(crate) fn is_alive(&self, group: u64) -> bool {
        group == OUTSIDE || self.all.borrow().contains_key(&group)
    }

    /// What a task of a group may do now.
    fn may(&self, group: u64) -> May {
        let all = self.all.borrow();
        let mut may = May::Run;
        let mut at = group;
        while at != OUTSIDE {
            let Some(inside) = all.get(&at) else { return May::End };
            if inside.paused {
                may = May::Wait;
            }
            at = inside.parent;
        }
        may
    }

    /// Groups inside a group, and it.
    fn within(&self, group: u64) -> Vec<u64> {
        let all = self.all.borrow();
        let mut found = vec![group];
        let mut next = 0;
        while let Some(outer) = found.get(next).copied() {
            found.extend(all.iter().filter(|(_, inside)| inside.parent == outer).map(|(id, _)| *id));
            next += 1;
        }
        found
    }

    /// Pauses or resumes a group with the groups inside it; returns the tasks that
    /// must be woken.
    fn pause(&self, group: u64, paused: bool) -> Vec<usize> {
        let within = self.within(group);
        let mut all = self.all.borrow_mut();
        if let Some(group) = all.get_mut(&group) {
            group.paused = paused;
        }
        if paused {
            return Vec::new();
        }
        within.iter().filter_map(|id| all.get(id)).flat_map(|group| group.tasks.iter().copied()).collect()
    }

    /// The address of the host that a group is part of.
    pub(crate) fn addr(&self, group: u64) -> IpAddr {
        self.all.borrow().get(&group).map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |group| group.addr)
    }

    pub(crate) fn add(&self, group: u64, task: usize) {
        if let Some(group) = self.all.borrow_mut().get_mut(&group) {
            group.tasks.insert(task);
        }
    }

    pub(crate) fn remove(&self, group: u64, task: usize) {
        if let Some(group) = self.all.borrow_mut().get_mut(&group) {
            group.tasks.remove(&task);
        }
    }

    /// Ends a group and the groups inside it; returns the tasks to wake, so that they are dropped.
    pub(crate) fn end(&self, group: u64) -> Vec<usize> {
        let ending = self.within(group);
        let mut all = self.all.borrow_mut();
        ending.into_iter().filter_map(|group| all.remove(&group)).flat_map(|group| group.tasks).collect()
    }
}

/// A task of a group: it runs while the group lives.
///
/// Its type depends on no future, so that the code of tasks is not compiled once more for each of them.
pub(crate) struct Member<T> {
    group: u64,
    /// Dropped when the group is dead.
    future: Option<Pin<Box<dyn Future<Output = T>>>>,
}

impl<T> Member<T> {
    pub(crate) fn new(group: u64, future: impl Future<Output = T> + 'static) -> Member<T> {
        Member { group, future: Some(Box::pin(future)) }
    }
}

/// Restores the current group, also after a panic.
struct Inside(u64);

impl Inside {
    fn enter(group: u64) -> Inside {
        let mut before = OUTSIDE;
        try_with_core(|core| before = core.groups().map_or(OUTSIDE, |groups| groups.enter(group)));
        Inside(before)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        try_with_core(|core| {
            core.groups().map(|groups| groups.enter(self.0));
        });
    }
}

/// Runs `f` as a task of `group` would.
pub(crate) fn inside<T>(group: u64, f: impl FnOnce() -> T) -> T {
    let _inside = Inside::enter(group);
    f()
}

impl<T> Future for Member<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let group = self.group;
        let may = with_core(|core| core.groups().map_or(May::End, |groups| groups.may(group)));
        let _inside = Inside::enter(group);
        match may {
            May::Run => {}
            // It is woken when the group is resumed.
            May::Wait => return Poll::Pending,
            May::End => drop(self.future.take()),
        }
        match &mut self.future {
            Some(future) => future.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

/// Ends a group when it is dropped, as an engine thread that is joined does.
#[derive(Debug)]
pub(crate) struct Ends(pub(crate) u64);

impl Drop for Ends {
    fn drop(&mut self) {
        end(self.0);
    }
}

fn end(group: u64) {
    try_with_core(|core| {
        let tasks = core.groups().map(|groups| groups.end(group)).unwrap_or_default();
        core.wake_tasks(&tasks);
    });
}

/// A machine, or a process, of a simulation. Tasks spawned on it stay there, engine threads
/// included, until it is [killed](Host::kill).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    group: u64,
    addr: IpAddr,
}

impl Host {
    /// A host at `addr`, on the calling thread's simulated engine. One that is
    /// restarted is another `Host` at the same address.
    ///
    /// # Panics
    /// Outside a simulated engine.
    pub fn new(addr: IpAddr) -> Host {
        let group = with_core(|core| {
            let groups = core.groups().expect("a host needs a simulated engine");
            let before = groups.enter(OUTSIDE);
            let group = groups.begin(Some(addr));
            groups.enter(before);
            group
        });
        Host { group, addr }
    }

    /// Address of the host in the simulated network.
    pub fn addr(&self) -> IpAddr {
        self.addr
    }

    /// Starts a task on it. If the host is killed the task ends without a
    /// result, and an await of it never returns.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Task<T> {
        inside(self.group, || spawn(future))
    }

    /// Ends it at once: no task of it runs any more, all of them are dropped
    /// before time advances.
    pub fn kill(&self) {
        end(self.group);
    }

    /// Stops all of its tasks where they are, as SIGSTOP does; the network still
    /// delivers to it.
    pub fn pause(&self) {
        self.set_paused(true);
    }

    /// Resumes its tasks.
    pub fn resume(&self) {
        self.set_paused(false);
    }

    fn set_paused(&self, paused: bool) {
        try_with_core(|core| {
            let tasks = core.groups().map(|groups| groups.pause(self.group, paused)).unwrap_or_default();
            core.wake_tasks(&tasks);
        });
    }

    /// Whether it was not killed.
    pub fn is_alive(&self) -> bool {
        let mut alive = false;
        try_with_core(|core| alive = core.groups().is_some_and(|groups| groups.is_alive(self.group)));
        alive
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Engine, Thread, handle, now, sleep, yield_now};
    use std::rc::Rc;
    use std::time::Duration;

    const ADDR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const TICK: Duration = Duration::from_millis(1);

    /// Counts how often it runs, until it is dropped: then it says so.
    struct Counts(Rc<Cell<u32>>, Rc<Cell<bool>>);

    impl Counts {
        async fn count(self) {
            loop {
                self.0.set(self.0.get() + 1);
                sleep(TICK).await;
            }
        }
    }

    impl Drop for Counts {
        fn drop(&mut self) {
            self.1.set(true);
        }
    }

    #[test]
    fn a_host_that_is_killed_runs_nothing_more_and_neither_do_its_threads() {
        let engine = Engine::simulated(1).expect("engine");
        engine.block_on(async {
            let (host, other) = (Host::new(ADDR), Host::new(ADDR));
            let (count, dropped): (Rc<Cell<u32>>, Rc<Cell<bool>>) = Default::default();
            let (theirs, alive): (Rc<Cell<u32>>, Rc<Cell<bool>>) = Default::default();
            let counts = Counts(Rc::clone(&count), Rc::clone(&dropped));
            host.spawn(async move {
                let thread = Thread::start("inside", Config::default()).expect("a group");
                let begun = now();
                // What a job makes is part of the host as well, also by a task within a task.
                let remote = thread.handle().spawn(move || async move {
                    sleep(TICK).await;
                    now()
                });
                assert_eq!(remote.await.expect("alive") - begun, TICK);
                spawn(async move { spawn(counts.count()).await }).await;
                drop(thread);
            })
            .detach();
            other.spawn(Counts(Rc::clone(&theirs), Rc::clone(&alive)).count()).detach();
            sleep(TICK * 10).await;
            assert!(count.get() > 5 && !dropped.get());
            host.kill();
            let (at, begun) = (count.get(), now());
            while !dropped.get() {
                yield_now().await;
            }
            assert_eq!(now(), begun, "dropped before time advances");
            let before = theirs.get();
            sleep(TICK * 10).await;
            assert_eq!(count.get(), at);
            assert!(theirs.get() > before && !alive.get(), "the other host continues");
            assert!(!host.is_alive() && other.is_alive());
        });
    }

    #[test]
    fn a_host_that_is_paused_stands_still_and_goes_on() {
        let engine = Engine::simulated(1).expect("engine");
        engine.block_on(async {
            let host = Host::new(ADDR);
            let (count, dropped): (Rc<Cell<u32>>, Rc<Cell<bool>>) = Default::default();
            let counts = Counts(Rc::clone(&count), Rc::clone(&dropped));
            host.spawn(async move {
                let thread = Thread::start("inside", Config::default()).expect("a group");
                inside(thread.handle().group(), || spawn(counts.count())).await;
            })
            .detach();
            sleep(TICK * 10).await;
            host.pause();
            let at = count.get();
            sleep(TICK * 10).await;
            assert_eq!(count.get(), at);
            host.resume();
            sleep(TICK * 10).await;
            assert!(count.get() > at + 5 && !dropped.get());
            host.pause();
            host.kill();
            while !dropped.get() {
                yield_now().await;
            }
        });
    }

    #[test]
    fn a_thread_that_is_dropped_ends_its_tasks_and_refuses_jobs() {
        let engine = Engine::simulated(1).expect("engine");
        engine.block_on(async {
            let (count, dropped): (Rc<Cell<u32>>, Rc<Cell<bool>>) = Default::default();
            let thread = Thread::start("inside", Config::default()).expect("a group");
            let late = thread.handle();
            assert!(late.is_same(&handle()), "it is the same engine");
            inside(late.group(), || spawn(Counts(Rc::clone(&count), Rc::clone(&dropped)).count())).detach();
            sleep(TICK * 3).await;
            drop(thread);
            while !dropped.get() {
                yield_now().await;
            }
            assert!(late.spawn(|| async {}).await.is_err());
        });
    }
}
