//! Background tasks of an array, on its own thread.
//!
//! Invariants:
//! - members are rebuilt one at a time: first those in resync, then the one with the fewest rows
//!   left; one that is overtaken keeps what it has, and continues later;
//! - members return, and spares replace members, while another member is rebuilt;
//! - a member in resync has, of the regions that were marked when it returned, only the rows below
//!   its progress.

use crate::core::Core;
use crate::event::Event;
use crate::format::superblock::Condition;
use crate::heal::rebuild::RebuildEnd;
use crate::io::hedge;
use crate::options::Options;
use crate::report::BackgroundWork;
use longhaul_engine::{now, spawn, timeout};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Interval at which idle intent bits are cleared.
pub(crate) const SWEEP: Duration = Duration::from_secs(1);
/// Interval at which returning members, and members to replace, are looked for.
const HEAL_INTERVAL: Duration = Duration::from_millis(500);

pub(crate) struct Upkeep {
    pub(crate) changed: Event,
    pub(crate) hedges: hedge::HedgeBudget,
    /// Regions that a member in resync has missed.
    missed: RefCell<BTreeMap<usize, BTreeSet<u64>>>,
    /// Rows that were rebuilt ahead of the member's progress.
    rebuilt: RefCell<BTreeSet<(usize, u64)>>,
    /// Since when members are not active.
    since: RefCell<BTreeMap<usize, Instant>>,
    pub(crate) stopping: Cell<bool>,
    pub(crate) rebuild_rate: Cell<Option<u64>>,
    pub(crate) scrub_rate: Cell<Option<u64>>,
    pub(crate) tasks: RefCell<BackgroundWork>,
    /// Spares whose failure has been logged.
    reported_spares: RefCell<BTreeSet<uuid::Uuid>>,
    /// Tasks that have not ended yet.
    running: Cell<usize>,
}

impl Upkeep {
    pub(crate) fn new(options: &Options) -> Upkeep {
        Upkeep {
            changed: Event::default(),
            hedges: hedge::HedgeBudget::new(options.hedge_percent),
            missed: RefCell::default(),
            rebuilt: RefCell::default(),
            since: RefCell::default(),
            stopping: Cell::new(false),
            rebuild_rate: Cell::new(options.rebuild_rate),
            scrub_rate: Cell::new(options.scrub_rate),
            tasks: RefCell::default(),
            reported_spares: RefCell::default(),
            running: Cell::new(0),
        }
    }

    pub(crate) fn missed(&self, member: usize, region: u64) -> bool {
        self.missed.borrow().get(&member).is_none_or(|missed| missed.contains(&region))
    }

    /// Starts the resync of a member with these regions.
    pub(crate) fn begin_resync(&self, member: usize, regions: impl IntoIterator<Item = u64>) {
        self.missed.borrow_mut().insert(member, regions.into_iter().collect());
    }

    pub(crate) fn regions(&self, member: usize) -> Vec<u64> {
        self.missed.borrow().get(&member).map(|missed| missed.iter().copied().collect()).unwrap_or_default()
    }

    pub(crate) fn forget(&self, member: usize) {
        self.missed.borrow_mut().remove(&member);
        self.rebuilt.borrow_mut().retain(|(of, _)| *of != member);
    }

    /// Marks a row as rebuilt; the caller holds the stripe lock.
    pub(crate) fn mark_rebuilt(&self, member: usize, row: u64) {
        self.rebuilt.borrow_mut().insert((member, row));
    }

    pub(crate) fn is_rebuilt(&self, member: usize, row: u64) -> bool {
        self.rebuilt.borrow().contains(&(member, row))
    }

    /// Whether the failure of a spare is to be logged: true once.
    pub(crate) fn is_first_failure_of(&self, spare: uuid::Uuid) -> bool {
        self.reported_spares.borrow_mut().insert(spare)
    }

    /// Removes the marks of rows from `row` on.
    pub(crate) fn unmark_rebuilt(&self, member: usize, row: u64) {
        self.rebuilt.borrow_mut().retain(|(of, rebuilt)| *of != member || *rebuilt < row);
    }

    /// Removes the marks of rows below the progress `done`.
    pub(crate) fn rebuilt_to(&self, member: usize, done: u64) {
        self.rebuilt.borrow_mut().retain(|(of, row)| *of != member || *row >= done);
    }

    pub(crate) fn left(&self, member: usize, condition: Condition) {
        let mut since = self.since.borrow_mut();
        match condition {
            Condition::Active | Condition::Rebuilding { .. } => drop(since.remove(&member)),
            Condition::Offline | Condition::Failed => drop(since.entry(member).or_insert_with(now)),
        }
    }

    /// Returns when all background tasks have ended.
    pub(crate) async fn ended(&self) {
        self.changed.until(|| self.running.get() == 0).await;
    }

    /// Since when a member is missing.
    pub(crate) fn missing_since(&self, member: usize) -> Option<Instant> {
        self.since.borrow().get(&member).copied()
    }
}

/// A background task; it ends when this is dropped.
pub(crate) struct TaskGuard(Rc<Core>);

impl TaskGuard {
    pub(crate) fn new(core: &Rc<Core>) -> TaskGuard {
        core.upkeep.running.set(core.upkeep.running.get() + 1);
        TaskGuard(Rc::clone(core))
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        let upkeep = &self.0.upkeep;
        upkeep.running.set(upkeep.running.get() - 1);
        upkeep.changed.notify();
    }
}

/// Whether background tasks are to end.
pub(crate) fn is_over(core: &Core) -> bool {
    core.upkeep.stopping.get() || core.halted.borrow().is_some()
}

/// Waits, or returns early when the array stops.
pub(crate) async fn pause(core: &Rc<Core>, time: Duration) {
    let _ = timeout(time, core.upkeep.changed.until(|| is_over(core))).await;
}

/// Clears idle intent bits, and flushes if the journal needs it.
async fn sweep(core: Rc<Core>) {
    let _running = TaskGuard::new(&core);
    while !is_over(&core) {
        pause(&core, SWEEP).await;
        if core.journal.wants_flush() && core.flush_members().await.is_err() {
            continue;
        }
        if let Some(before) = now().checked_sub(core.options.intent_idle) {
            // A failure halts the array and is logged there.
            let _ = core.intent.sweep(&core, before).await;
        }
    }
}

/// Starts the resync of returning members, and lets spares replace lost ones.
async fn heal(core: Rc<Core>) {
    let _running = TaskGuard::new(&core);
    while !is_over(&core) {
        pause(&core, HEAL_INTERVAL).await;
        if is_over(&core) {
            return;
        }
        core.resync_returned_members().await;
        core.replace_with_spares().await;
    }
}

/// Rebuilds members, each until it is complete or another one takes precedence.
async fn rebuild(core: Rc<Core>) {
    let _running = TaskGuard::new(&core);
    while !is_over(&core) {
        pause(&core, HEAL_INTERVAL).await;
        while let Some(member) = core.next_to_rebuild().filter(|_| !is_over(&core)) {
            let ended = core.rebuild_member(member).await;
            core.upkeep.tasks.borrow_mut().rebuild = None;
            match ended {
                Ok(RebuildEnd::Preempted) => {}
                Ok(RebuildEnd::Ended) => break,
                Err(e) => {
                    tracing::warn!(
                        "array {}: the rebuild of member {member} has failed: {e}",
                        core.name.borrow()
                    );
                    break;
                }
            }
        }
    }
}

/// Scrubs at the configured interval, while all members are active.
async fn scrub_periodically(core: Rc<Core>, every: Duration) {
    let _running = TaskGuard::new(&core);
    while !is_over(&core) {
        pause(&core, every).await;
        let healthy = || core.members.iter().all(|member| member.is_active());
        core.upkeep.changed.until(|| healthy() || is_over(&core)).await;
        if is_over(&core) {
            return;
        }
        match core.scrub().await {
            Ok(report) => tracing::info!("array {}: scrubbed: {report:?}", core.name.borrow()),
            Err(e) => tracing::warn!("array {}: not scrubbed: {e}", core.name.borrow()),
        }
    }
}

/// Starts the background tasks, other than the heartbeat.
pub(crate) fn start(core: &Rc<Core>) {
    spawn(sweep(Rc::clone(core))).detach();
    spawn(heal(Rc::clone(core))).detach();
    spawn(rebuild(Rc::clone(core))).detach();
    spawn(crate::member::disconnect::watch(Rc::clone(core))).detach();
    if let Some(every) = core.options.scrub_every.filter(|_| core.geometry.has_sums()) {
        spawn(scrub_periodically(Rc::clone(core), every)).detach();
    }
}
