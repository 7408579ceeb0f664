//! Admission control: which operations may change the array until it stops, and while it is paused.
//!
//! Invariants:
//! - an operation that changes members on behalf of a user (a write, zeroes, a flush, the repair
//!   after a read) is admitted before it begins, and counts in `under_way` until it has ended;
//! - once `closed` is set nothing more is admitted; the array is marked clean only when no
//!   admitted operation is under way, no stripe has a queue, and no background task runs;
//! - while the array is paused, what is admitted waits before it begins, and counts in `held` for so
//!   long, and no step of a background task that changes data begins; what was under way before has
//!   ended when the pause begins for its caller.

use crate::core::Core;
use crate::error::ArrayError;
use crate::event::Event;
use longhaul_block::{IoError, IoResult};
use longhaul_engine::{sleep, spawn, timeout};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Admitted operations under way.
#[derive(Default)]
pub(crate) struct Admission {
    closed: Cell<bool>,
    under_way: Cell<usize>,
    /// The number of the pause that is on.
    paused: Cell<Option<u64>>,
    /// Pauses since the array was started.
    pauses: Cell<u64>,
    /// Admitted operations that wait for the end of a pause.
    held: Cell<usize>,
    /// Steps of background tasks under way.
    steps: Cell<usize>,
    changed: Event,
}

impl Admission {
    /// Wakes [`Core::close`] after a halt or in a shortage: the operations that it waits for may not end.
    pub(crate) fn wake(&self) {
        self.changed.notify();
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.get().is_some()
    }

    /// Ends a pause; false if it has ended before.
    fn end_pause(&self, pause: u64) -> bool {
        let is_on = self.paused.get() == Some(pause);
        if is_on {
            self.paused.set(None);
            self.changed.notify();
        }
        is_on
    }
}

/// An admitted operation; it ends when this is dropped.
pub(crate) struct Admitted(Rc<Core>);

impl Admitted {
    /// Waits for the end of a pause, in the order in which operations were admitted.
    pub(crate) async fn begin(&self) -> IoResult<()> {
        let admission = &self.0.io.admission;
        if !admission.is_paused() {
            return Ok(());
        }
        let _held = HeldOperation::new(&self.0);
        admission.changed.until(|| !admission.is_paused() || self.0.is_halted()).await;
        self.0.check_running()
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let admission = &self.0.io.admission;
        assert!(admission.under_way.get() > 0, "more operations have ended than were admitted");
        admission.under_way.set(admission.under_way.get() - 1);
        admission.changed.notify();
    }
}

/// A step of a background task; it ends when this is dropped.
pub(crate) struct BackgroundStep(Rc<Core>);

impl Drop for BackgroundStep {
    fn drop(&mut self) {
        let admission = &self.0.io.admission;
        admission.steps.set(admission.steps.get() - 1);
        admission.changed.notify();
    }
}

/// An operation that waits for the end of a pause.
struct HeldOperation<'a>(&'a Admission);

impl HeldOperation<'_> {
    fn new(core: &Core) -> HeldOperation<'_> {
        let admission = &core.io.admission;
        admission.held.set(admission.held.get() + 1);
        admission.changed.notify();
        HeldOperation(admission)
    }
}

impl Drop for HeldOperation<'_> {
    fn drop(&mut self) {
        self.0.held.set(self.0.held.get() - 1);
    }
}

impl Core {
    /// Admits an operation that may change members.
    ///
    /// # Errors
    /// The array has halted, or is stopping.
    pub(crate) fn admit(self: &Rc<Self>) -> IoResult<Admitted> {
        self.check_running()?;
        let admission = &self.io.admission;
        if admission.closed.get() {
            let name = &self.name;
            return Err(IoError::Offline(format!("array {name}: it is being stopped")));
        }
        admission.under_way.set(admission.under_way.get() + 1);
        Ok(Admitted(Rc::clone(self)))
    }

    /// Begins a step of a background task that may change data, when no pause is on. The array waits for
    /// the task itself when it stops.
    pub(crate) async fn begin_step(self: &Rc<Self>) -> IoResult<BackgroundStep> {
        let admission = &self.io.admission;
        admission.changed.until(|| !admission.is_paused() || self.is_halted()).await;
        self.check_running()?;
        admission.steps.set(admission.steps.get() + 1);
        Ok(BackgroundStep(Rc::clone(self)))
    }

    /// Returns when `ended` says that what was admitted has ended, and its writes are in place, or the
    /// array has halted, or its members have no space for them.
    async fn drained(&self, ended: impl Fn(&Admission) -> bool) {
        // Acknowledged writes that wait for space end no sooner than there is some.
        let halted = || self.is_halted() || self.io.shortage.is_any();
        let admission = &self.io.admission;
        admission.changed.until(|| ended(admission) || halted()).await;
        // Acknowledged data may be in the journal only.
        for row in self.io.rows.all() {
            let Some(queue) = self.io.rows.queue(row) else { continue };
            queue.changed.until(|| self.io.rows.queue(row).is_none() || halted()).await;
        }
    }

    /// Admits nothing more, and returns when all admitted operations have ended and their writes
    /// are in place, or the array has halted, or its members have no space for them.
    pub(crate) async fn close(&self) {
        self.io.admission.closed.set(true);
        self.drained(|admission| admission.under_way.get() == 0).await;
    }

    /// Pauses the array: see [`ArrayDevice::pause`](crate::ArrayDevice::pause).
    pub(crate) async fn pause(self: &Rc<Self>, limit: Duration) -> Result<u64, ArrayError> {
        let refused = |why: &str| ArrayError::Refused(format!("array {} is not paused: {why}", self.name));
        drop(self.admit_change()?);
        let admission = &self.io.admission;
        if admission.is_paused() {
            return Err(refused("it is paused already; try again"));
        }
        let pause = admission.pauses.get() + 1;
        admission.pauses.set(pause);
        admission.paused.set(Some(pause));
        let core = Rc::downgrade(self);
        spawn(async move {
            sleep(limit).await;
            let Some(core) = core.upgrade() else { return };
            if core.io.admission.end_pause(pause) {
                tracing::warn!("array {}: its pause has ended by itself, after {limit:?}", core.name);
            }
        })
        .detach();
        let settled = async {
            let is_still = |admission: &Admission| {
                admission.under_way.get() == admission.held.get() && admission.steps.get() == 0
            };
            self.drained(is_still).await;
            self.flush_members().await
        };
        let settled = match timeout(limit, settled).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(e)) => Err(e.into()),
            Err(_) => Err(refused("what is under way does not end")),
        };
        // A member that was lost meanwhile may lack what the others have.
        let whole = match settled {
            Ok(()) if self.io.shortage.is_any() => Err(refused("the space of a member is full")),
            Ok(()) if self.members.all_active() && !self.publication.has_loss() => Ok(pause),
            Ok(()) => Err(refused(
                "a member is missing or being rebuilt: wait for it, or replace it ('longhaul volume repair')",
            )),
            Err(e) => Err(e),
        };
        if whole.is_err() {
            admission.end_pause(pause);
        }
        whole
    }

    /// Ends a pause; false if it had ended by itself.
    pub(crate) fn resume(&self, pause: u64) -> bool {
        self.io.admission.end_pause(pause)
    }
}
