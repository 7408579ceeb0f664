//! Background tasks of an array, on its own thread.
//!
//! Invariants:
//! - members are rebuilt one at a time: first those in resync, then the one with the fewest rows
//!   left; one that is overtaken keeps what it has, and continues later;
//! - members return, and spares replace members, while another member is rebuilt;
//! - `running` counts the tasks: the array has stopped only when it is zero.

use crate::core::Core;
use crate::event::Event;
use crate::heal::rebuild::RebuildEnd;
use crate::io::locks::RowLocks;
use crate::options::Options;
use crate::report::BackgroundWork;
use longhaul_block::IoError;
use longhaul_engine::{now, spawn, timeout};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Interval at which idle intent bits are cleared.
pub(crate) const SWEEP: Duration = Duration::from_secs(1);
/// Interval at which returning members, and members to replace, are looked for.
const HEAL_INTERVAL: Duration = Duration::from_millis(500);

/// Interval at which the rebuild of a member that has no space is tried again.
const SPACE_INTERVAL: Duration = Duration::from_secs(1);

/// What the background tasks of an array share.
pub(crate) struct Upkeep {
    /// Notified when a member changes its condition, a background task ends, or the array halts.
    pub(crate) changed: Event,
    pub(crate) stopping: Cell<bool>,
    /// Limits in bytes per second at which a rebuild and a scrub read each member.
    pub(crate) rebuild_rate: Cell<Option<u64>>,
    pub(crate) scrub_rate: Cell<Option<u64>>,
    pub(crate) work: RefCell<BackgroundWork>,
    /// Exclusive per member index, while the member is verified.
    pub(crate) verifying: Rc<RowLocks>,
    /// Exclusive during a scrub.
    pub(crate) scrubbing: Rc<RowLocks>,
    /// Exclusive while the array grows.
    pub(crate) growing: Rc<RowLocks>,
    /// Tasks that have not ended yet.
    running: Cell<usize>,
}

impl Upkeep {
    pub(crate) fn new(options: &Options) -> Upkeep {
        Upkeep {
            changed: Event::default(),
            stopping: Cell::new(false),
            rebuild_rate: Cell::new(options.rebuild_rate),
            scrub_rate: Cell::new(options.scrub_rate),
            work: RefCell::default(),
            verifying: Rc::default(),
            scrubbing: Rc::default(),
            growing: Rc::default(),
            running: Cell::new(0),
        }
    }

    /// Returns when all background tasks have ended.
    pub(crate) async fn ended(&self) {
        self.changed.until(|| self.running.get() == 0).await;
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
        assert!(upkeep.running.get() > 0, "more background tasks have ended than were begun");
        upkeep.running.set(upkeep.running.get() - 1);
        upkeep.changed.notify();
    }
}

/// Whether background tasks are to end.
pub(crate) fn is_over(core: &Core) -> bool {
    core.upkeep.stopping.get() || core.is_halted()
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
    let mut is_short = false;
    while !is_over(&core) {
        pause(&core, HEAL_INTERVAL).await;
        while let Some(member) = core.next_to_rebuild().filter(|_| !is_over(&core)) {
            let ended = core.rebuild_member(member).await;
            core.upkeep.work.borrow_mut().rebuild = None;
            match ended {
                Ok(RebuildEnd::Preempted) => {}
                Ok(RebuildEnd::Ended) => {
                    is_short = false;
                    break;
                }
                Err(IoError::NoSpace) => {
                    if !std::mem::replace(&mut is_short, true) {
                        tracing::error!(
                            "array {}: member {member} has no space for what it lacks: its rebuild goes on once \
                             there is",
                            core.name
                        );
                    }
                    pause(&core, SPACE_INTERVAL).await;
                    break;
                }
                Err(e) => {
                    tracing::warn!("array {}: the rebuild of member {member} has failed: {e}", core.name);
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
        core.upkeep.changed.until(|| core.members.all_active() || is_over(&core)).await;
        if is_over(&core) {
            return;
        }
        match core.scrub().await {
            Ok(report) => tracing::info!("array {}: scrubbed: {report:?}", core.name),
            Err(e) => tracing::warn!("array {}: not scrubbed: {e}", core.name),
        }
    }
}

/// Starts the background tasks, other than the heartbeat.
pub(crate) fn start(core: &Rc<Core>) {
    spawn(sweep(Rc::clone(core))).detach();
    spawn(heal(Rc::clone(core))).detach();
    spawn(rebuild(Rc::clone(core))).detach();
    spawn(crate::member::disconnect::watch(Rc::clone(core))).detach();
    if let Some(every) = core.options.scrub_every.filter(|_| core.geometry().has_sums()) {
        spawn(scrub_periodically(Rc::clone(core), every)).detach();
    }
}
