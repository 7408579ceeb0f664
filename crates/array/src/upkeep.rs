//! What the array does of its own accord, on its own thread.
//!
//! Invariants:
//! - members are filled one at a time: first who only catches up, then who has
//!   the least left; who is overtaken keeps what it has, and goes on later;
//! - members come back, and spares take places, while another is filled;
//! - a member that is catching up has, of the regions that were marked when
//!   it came back, only the stripes below its progress.

use crate::core::Core;
use crate::event::Event;
use crate::fill::Fill;
use crate::hedge;
use crate::options::Options;
use crate::report::Tasks;
use crate::superblock::Condition;
use longhaul_engine::{now, spawn, timeout};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How often intent bits are looked through.
pub(crate) const SWEEP: Duration = Duration::from_secs(1);
/// How often it is looked whether a member has come back, or has to be
/// replaced.
const LOOK: Duration = Duration::from_millis(500);

pub(crate) struct Upkeep {
    pub(crate) changed: Event,
    pub(crate) hedges: hedge::Budget,
    /// Regions that a member which catches up has missed.
    missed: RefCell<BTreeMap<usize, BTreeSet<u64>>>,
    /// Stripes that a member was given ahead of its progress.
    filled: RefCell<BTreeSet<(usize, u64)>>,
    /// Since when members are not active.
    since: RefCell<BTreeMap<usize, Instant>>,
    pub(crate) stopping: Cell<bool>,
    pub(crate) rebuild_rate: Cell<Option<u64>>,
    pub(crate) scrub_rate: Cell<Option<u64>>,
    pub(crate) tasks: RefCell<Tasks>,
    /// Spares that could not be used.
    told: RefCell<BTreeSet<uuid::Uuid>>,
    /// Tasks that have not seen that the array stops.
    running: Cell<usize>,
}

impl Upkeep {
    pub(crate) fn new(options: &Options) -> Upkeep {
        Upkeep {
            changed: Event::default(),
            hedges: hedge::Budget::new(options.hedge_percent),
            missed: RefCell::default(),
            filled: RefCell::default(),
            since: RefCell::default(),
            stopping: Cell::new(false),
            rebuild_rate: Cell::new(options.rebuild_rate),
            scrub_rate: Cell::new(options.scrub_rate),
            tasks: RefCell::default(),
            told: RefCell::default(),
            running: Cell::new(0),
        }
    }

    pub(crate) fn missed(&self, member: usize, region: u64) -> bool {
        self.missed.borrow().get(&member).is_none_or(|missed| missed.contains(&region))
    }

    /// A member begins to catch up on these regions.
    pub(crate) fn catch_up(&self, member: usize, regions: impl IntoIterator<Item = u64>) {
        self.missed.borrow_mut().insert(member, regions.into_iter().collect());
    }

    pub(crate) fn regions(&self, member: usize) -> Vec<u64> {
        self.missed.borrow().get(&member).map(|missed| missed.iter().copied().collect()).unwrap_or_default()
    }

    pub(crate) fn forget(&self, member: usize) {
        self.missed.borrow_mut().remove(&member);
        self.filled.borrow_mut().retain(|(of, _)| *of != member);
    }

    /// A member has a stripe now; called while the stripe is held.
    pub(crate) fn fill(&self, member: usize, row: u64) {
        self.filled.borrow_mut().insert((member, row));
    }

    pub(crate) fn is_filled(&self, member: usize, row: u64) -> bool {
        self.filled.borrow().contains(&(member, row))
    }

    /// Whether a spare that cannot be used has not been told of.
    pub(crate) fn tells_of(&self, spare: uuid::Uuid) -> bool {
        self.told.borrow_mut().insert(spare)
    }

    /// A member does not have the stripes from `row` on that it was given.
    pub(crate) fn unfill(&self, member: usize, row: u64) {
        self.filled.borrow_mut().retain(|(of, filled)| *of != member || *filled < row);
    }

    /// The progress of a member has come to `done`.
    pub(crate) fn filled_to(&self, member: usize, done: u64) {
        self.filled.borrow_mut().retain(|(of, row)| *of != member || *row >= done);
    }

    pub(crate) fn left(&self, member: usize, condition: Condition) {
        let mut since = self.since.borrow_mut();
        match condition {
            Condition::Active | Condition::Rebuilding { .. } => drop(since.remove(&member)),
            Condition::Absent | Condition::Failed => drop(since.entry(member).or_insert_with(now)),
        }
    }

    /// Returns when nothing of it runs any more.
    pub(crate) async fn ended(&self) {
        self.changed.until(|| self.running.get() == 0).await;
    }

    /// Since when a member is missing.
    pub(crate) fn missing_since(&self, member: usize) -> Option<Instant> {
        self.since.borrow().get(&member).copied()
    }
}

/// A task of the array, until it ends.
pub(crate) struct Running(Rc<Core>);

impl Running {
    pub(crate) fn new(core: &Rc<Core>) -> Running {
        core.upkeep.running.set(core.upkeep.running.get() + 1);
        Running(Rc::clone(core))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let upkeep = &self.0.upkeep;
        upkeep.running.set(upkeep.running.get() - 1);
        upkeep.changed.notify();
    }
}

/// Whether a task has nothing more to do.
pub(crate) fn is_over(core: &Core) -> bool {
    core.upkeep.stopping.get() || core.halted.borrow().is_some()
}

/// Waits, but not longer than until the array stops.
pub(crate) async fn pause(core: &Rc<Core>, time: Duration) {
    let _ = timeout(time, core.upkeep.changed.until(|| is_over(core))).await;
}

/// Clears intent bits that have not been used for a while, and flushes where
/// the journal waits for it.
async fn sweep(core: Rc<Core>) {
    let _running = Running::new(&core);
    while !is_over(&core) {
        pause(&core, SWEEP).await;
        if core.journal.wants_flush() && core.flush_members().await.is_err() {
            continue;
        }
        if let Some(before) = now().checked_sub(core.options.intent_idle) {
            // What keeps it from being done halts the array, and is told there.
            let _ = core.intent.sweep(&core, before).await;
        }
    }
}

/// Brings members back, and puts spares in their places.
async fn heal(core: Rc<Core>) {
    let _running = Running::new(&core);
    while !is_over(&core) {
        pause(&core, LOOK).await;
        if is_over(&core) {
            return;
        }
        core.welcome_back().await;
        core.take_spares().await;
    }
}

/// Fills members, each until it is full or another comes first.
async fn fill(core: Rc<Core>) {
    let _running = Running::new(&core);
    while !is_over(&core) {
        pause(&core, LOOK).await;
        while let Some(member) = core.next_to_fill().filter(|_| !is_over(&core)) {
            let filled = core.fill_member(member).await;
            core.upkeep.tasks.borrow_mut().filling = None;
            match filled {
                Ok(Fill::GaveWay) => {}
                Ok(Fill::Ended) => break,
                Err(e) => {
                    tracing::warn!("array {}: member {member} is not filled: {e}", core.name.borrow());
                    break;
                }
            }
        }
    }
}

/// Scrubs when it is time, and nothing is missing.
async fn scrub_now_and_then(core: Rc<Core>, every: Duration) {
    let _running = Running::new(&core);
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

/// Starts what runs until the array is stopped, beside its heartbeat.
pub(crate) fn start(core: &Rc<Core>) {
    spawn(sweep(Rc::clone(core))).detach();
    spawn(heal(Rc::clone(core))).detach();
    spawn(fill(Rc::clone(core))).detach();
    spawn(crate::away::watch(Rc::clone(core))).detach();
    if let Some(every) = core.options.scrub_every.filter(|_| core.geometry.has_sums()) {
        spawn(scrub_now_and_then(Rc::clone(core), every)).detach();
    }
}
