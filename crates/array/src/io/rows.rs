//! Queues of writes to a stripe.
//!
//! Invariants:
//! - the writes of a stripe take effect in the order in which they came;
//! - while a stripe is in `queues` a writer task works on it, and an acknowledged write stays in
//!   `writes` until it is in place: readers look into the queue first;
//! - when the array has halted, logged writes stay in `writes`, and the stripe is in `torn`: parts
//!   of what was being written may be in place;
//! - `whole` counts the full-stripe writes under way.

use crate::event::Event;
use crate::format::geometry::Role;
use crate::format::record::Piece;
use crate::io::journal::DurableRecord;
use crate::io::locks::Permit;
use futures_channel::oneshot;
use longhaul_block::{IoError, IoResult};
use longhaul_cache::SequentialDetector;
use longhaul_engine::{Buf, now};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// State of the data record of a write.
pub(crate) enum LogState {
    /// The write has no data record.
    None,
    /// The data record is being written; the write is not acknowledged.
    UnderWay,
    /// The data record is durable, and the write is acknowledged.
    Durable(DurableRecord),
    /// Failed: the write continues without a record, unacknowledged.
    Failed,
    /// Covered by a commit.
    Taken,
}

/// A write to one stripe.
pub(crate) struct QueuedWrite {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) log: RefCell<LogState>,
    /// Held back for the rest of the stripe.
    pub(crate) held: Cell<bool>,
    /// The write begins where another one ended.
    pub(crate) continues: bool,
    pub(crate) applied: Cell<bool>,
    ack: RefCell<Option<oneshot::Sender<IoResult<()>>>>,
    room: Cell<Option<Rc<Permit>>>,
}

/// The writes of a stripe.
#[derive(Default)]
pub(crate) struct WriteQueue {
    /// In order; those that are being applied first.
    writes: RefCell<VecDeque<Rc<QueuedWrite>>>,
    pub(crate) changed: Event,
}

#[derive(Default)]
pub(crate) struct StripeQueues {
    queues: RefCell<BTreeMap<u64, Rc<WriteQueue>>>,
    /// Stripes that were being written when the array halted.
    torn: RefCell<BTreeSet<u64>>,
    ends: RefCell<SequentialDetector>,
    /// Consecutive waits that did not complete a stripe; too many of them stop the waiting.
    vain: Cell<u32>,
    /// Full-stripe writes under way, and an upper estimate of their duration.
    whole: Cell<u32>,
    pace: Cell<Duration>,
}

/// Weight of a full-stripe write in the mean duration, as a power of two.
const PACE_SHIFT: u32 = 3;
/// Assumed duration before the first one has ended.
const PACE_UNKNOWN: Duration = Duration::from_millis(500);

/// A sample that exceeds four means by more than this waited for a lost member.
const OUTAGE: Duration = Duration::from_secs(2);

/// Unsuccessful waits after which waiting stops, and writes after which it is tried again.
const VAIN_MAX: u32 = 8;
const VAIN_RETRY: u32 = 64;

impl QueuedWrite {
    pub(crate) fn new(
        pieces: Vec<Piece>,
        continues: bool,
        room: Option<Rc<Permit>>,
    ) -> (Rc<QueuedWrite>, oneshot::Receiver<IoResult<()>>) {
        let (ack, acked) = oneshot::channel();
        let queued = QueuedWrite {
            pieces,
            log: RefCell::new(LogState::None),
            held: Cell::new(false),
            continues,
            applied: Cell::new(false),
            ack: RefCell::new(Some(ack)),
            room: Cell::new(room),
        };
        (Rc::new(queued), acked)
    }

    pub(crate) fn len(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes.len() as u64).sum()
    }

    /// Sends the result to the caller, once.
    pub(crate) fn acknowledge(&self, result: IoResult<()>) {
        if let Some(ack) = self.ack.borrow_mut().take() {
            drop(ack.send(result));
        }
    }

    /// Whether it has, or had, a data record.
    pub(crate) fn is_logged(&self) -> bool {
        !matches!(*self.log.borrow(), LogState::None | LogState::Failed)
    }

    pub(crate) fn is_settled(&self) -> bool {
        !matches!(*self.log.borrow(), LogState::UnderWay)
    }
}

impl WriteQueue {
    pub(crate) fn bytes(&self) -> u64 {
        self.writes.borrow().iter().map(|write| write.len()).sum()
    }

    pub(crate) fn held(&self) -> Vec<Rc<QueuedWrite>> {
        self.writes.borrow().iter().filter(|write| write.held.get()).cloned().collect()
    }

    /// Writes that may be acknowledged already.
    pub(crate) fn logged(&self) -> Vec<Rc<QueuedWrite>> {
        self.writes.borrow().iter().filter(|write| write.is_logged()).cloned().collect()
    }

    /// Whether every write before `write` has, or had, a data record: only then may it have one.
    /// Otherwise the earlier write, which needs journal space, would wait for this one's record to
    /// leave the journal, and this one for its turn in the queue.
    pub(crate) fn may_log(&self, write: &Rc<QueuedWrite>) -> bool {
        let writes = self.writes.borrow();
        writes.iter().take_while(|before| !Rc::ptr_eq(before, write)).all(|before| before.is_logged())
    }

    pub(crate) fn first(&self) -> Option<Rc<QueuedWrite>> {
        self.writes.borrow().front().cloned()
    }

    /// The first writes that are either all logged or all not, at most `most` of them; they stay in
    /// the queue.
    pub(crate) fn batch(&self, most: usize) -> Vec<Rc<QueuedWrite>> {
        let writes = self.writes.borrow();
        let Some(first) = writes.front() else { return Vec::new() };
        let logged = first.is_logged();
        let alike =
            |write: &&Rc<QueuedWrite>| write.is_logged() == logged && write.is_settled() && !write.held.get();
        writes.iter().take_while(alike).take(most).cloned().collect()
    }

    /// Whether no data record of a write is being written.
    pub(crate) fn is_settled(&self) -> bool {
        self.writes.borrow().iter().all(|write| write.is_settled())
    }

    /// Gives up the queue of a halted array. Logged writes stay, for readers; the others fail.
    pub(crate) fn give_up(&self, error: &IoError) {
        self.writes.borrow_mut().retain(|write| {
            // Return the memory, so that writes that wait for it can fail.
            drop(write.room.take());
            write.acknowledge(Err(error.clone()));
            write.is_logged()
        });
        self.changed.notify();
    }

    /// Fails the writes that are not in the journal: the queue waits for space.
    pub(crate) fn refuse(&self, error: &IoError) {
        self.writes.borrow_mut().retain(|write| {
            if !write.is_logged() {
                drop(write.room.take());
                write.acknowledge(Err(error.clone()));
            }
            write.is_logged()
        });
        self.changed.notify();
    }

    /// Removes the first `count` writes, which are in place.
    pub(crate) fn remove(&self, count: usize) {
        for write in self.writes.borrow_mut().drain(..count) {
            write.applied.set(true);
        }
        self.changed.notify();
    }
}

impl StripeQueues {
    /// Adds a write; returns the queue if it is new and needs a writer task.
    pub(crate) fn push(&self, row: u64, write: Rc<QueuedWrite>) -> Option<Rc<WriteQueue>> {
        let mut queues = self.queues.borrow_mut();
        let is_new = !queues.contains_key(&row);
        let queue = queues.entry(row).or_default();
        queue.writes.borrow_mut().push_back(write);
        queue.changed.notify();
        is_new.then(|| Rc::clone(queue))
    }

    /// Removes the queue if it is empty; false otherwise.
    pub(crate) fn retire(&self, row: u64) -> bool {
        let mut queues = self.queues.borrow_mut();
        let empty = queues.get(&row).is_none_or(|queue| queue.writes.borrow().is_empty());
        if empty {
            queues.remove(&row);
        }
        empty
    }

    pub(crate) fn queue(&self, row: u64) -> Option<Rc<WriteQueue>> {
        self.queues.borrow().get(&row).cloned()
    }

    /// Marks a stripe as torn: it was being written when the array halted.
    pub(crate) fn tear(&self, row: u64) {
        self.torn.borrow_mut().insert(row);
    }

    /// Whether a stripe may be a mixture of old and new content, so that nothing can be
    /// reconstructed from it.
    pub(crate) fn is_torn(&self, row: u64) -> bool {
        self.torn.borrow().contains(&row)
    }

    /// The stripes that have a queue.
    pub(crate) fn all(&self) -> Vec<u64> {
        self.queues.borrow().keys().copied().collect()
    }

    /// Content that logged writes (which may be acknowledged) give a range of a data unit: none,
    /// all of it, or a write that must be in place before the range can be read.
    pub(crate) fn pending(&self, row: u64, unit: usize, at: u64, len: u64) -> PendingContent {
        let Some(queue) = self.queue(row) else { return PendingContent::Nothing };
        let writes = queue.writes.borrow();
        for write in writes.iter().rev().filter(|write| write.is_logged()) {
            for piece in write.pieces.iter().filter(|piece| piece.role == Role::Data(unit)) {
                let end = piece.at + piece.bytes.len() as u64;
                if piece.at <= at && at + len <= end {
                    let start = (at - piece.at) as usize;
                    return PendingContent::Content(piece.bytes.slice(start..start + len as usize));
                }
                if piece.at < at + len && at < end {
                    return PendingContent::Wait(Rc::clone(&queue), Rc::clone(write));
                }
            }
        }
        PendingContent::Nothing
    }

    /// Whether a write begins where another one ended, and waiting for the rest of a stripe has
    /// paid lately.
    pub(crate) fn continues(&self, offset: u64, len: u64) -> bool {
        let known = self.ends.borrow_mut().record(&(offset..offset + len)).is_some();
        let vain = self.vain.get();
        if known && vain >= VAIN_MAX {
            self.vain.set(if vain >= VAIN_MAX + VAIN_RETRY { VAIN_MAX - 1 } else { vain + 1 });
        }
        known && vain < VAIN_MAX
    }

    /// Counts a full-stripe write until the returned guard is dropped.
    pub(crate) fn whole(&self) -> FullStripeGuard<'_> {
        self.whole.set(self.whole.get() + 1);
        FullStripeGuard { rows: self, began: now() }
    }

    /// Upper estimate of the duration of a full-stripe write, while one is under way: its writer
    /// may continue when it ends.
    pub(crate) fn pace(&self) -> Option<Duration> {
        let pace = Some(self.pace.get()).filter(|pace| !pace.is_zero());
        (self.whole.get() > 0).then(|| pace.unwrap_or(PACE_UNKNOWN))
    }

    /// Records the end of a wait for the rest of a stripe.
    pub(crate) fn waited(&self, in_vain: bool) {
        self.vain.set(if in_vain { self.vain.get() + 1 } else { 0 });
    }
}

/// See [`StripeQueues::whole`].
pub(crate) struct FullStripeGuard<'a> {
    rows: &'a StripeQueues,
    began: Instant,
}

impl Drop for FullStripeGuard<'_> {
    fn drop(&mut self) {
        let (rows, time, mean) = (self.rows, now() - self.began, self.rows.pace.get());
        assert!(rows.whole.get() > 0, "more full-stripe writes have ended than were begun");
        rows.whole.set(rows.whole.get() - 1);
        if time > mean * 4 + OUTAGE {
            return;
        }
        // Rises at once and falls slowly: when a load begins, each write takes longer than the
        // last, and a wait that ends too early writes the stripe in parts.
        rows.pace.set(time.max(mean - mean / (1 << PACE_SHIFT) + time / (1 << PACE_SHIFT)));
    }
}

/// See [`StripeQueues::pending`].
pub(crate) enum PendingContent {
    Nothing,
    Content(Buf),
    Wait(Rc<WriteQueue>, Rc<QueuedWrite>),
}
