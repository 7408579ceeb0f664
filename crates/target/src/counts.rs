//! Counts the commands of I/O queues, for programs that watch a target.
//!
//! Invariants:
//! - nothing is counted, and the time is not asked for, unless [`Config::statistics`] is set;
//! - a counter has one writer, the thread of its queue, so that counting takes no locked instruction; it
//!   is added up with the others when a program looks;
//! - counts never fall: those of queues that have ended are kept with their namespace and host;
//! - commands that arrive and end within one batch of events share two readings of the clock: the time of
//!   a command is that until its answer can be sent, which is after the batch.
//!
//! [`Config::statistics`]: crate::Config::statistics

use crate::subsystem::lock;
use longhaul_engine::histogram::{BOUNDS, TimeCounts};
use longhaul_engine::now;
use longhaul_wire::completion::Status;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Kinds of commands that are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes of one namespace.
    Flush,
    /// Any other command: Compare, Deallocate, Write Zeroes, Verify, reservations.
    Other,
}

impl Operation {
    /// Each of them, in the order of [`CommandCounts::operations`].
    pub const ALL: [Operation; 4] = [Operation::Read, Operation::Write, Operation::Flush, Operation::Other];
}

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The medium has lost data, or cannot take it.
    Medium,
    /// A reservation of another host.
    Reservation,
    /// Data did not arrive as it was sent, by its digest.
    Digest,
    /// Any other status.
    Other,
}

impl Failure {
    /// Each of them, in the order of [`CommandCounts::failures`].
    pub const ALL: [Failure; 4] = [Failure::Medium, Failure::Reservation, Failure::Digest, Failure::Other];

    fn of(status: Status) -> Failure {
        if crate::io::is_media_error(status) {
            Failure::Medium
        } else if status.is(Status::RESERVATION_CONFLICT) {
            Failure::Reservation
        } else if status.is(Status::TRANSIENT_TRANSPORT) {
            Failure::Digest
        } else {
            Failure::Other
        }
    }
}

/// Commands of several queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandCounts {
    /// Those that have been answered, also with an error, by their [`Operation`]; the time is that from arrival
    /// to answer.
    pub operations: [TimeCounts; Operation::ALL.len()],
    /// Bytes of reads that succeeded.
    pub bytes_read: u64,
    /// Bytes of writes that succeeded.
    pub bytes_written: u64,
    /// Commands that failed, by their [`Failure`].
    pub failures: [u64; Failure::ALL.len()],
    /// Commands that have arrived and have no answer yet.
    pub in_flight: u64,
}

impl CommandCounts {
    /// Adds those of others.
    pub fn add(&mut self, other: &CommandCounts) {
        self.operations.iter_mut().zip(&other.operations).for_each(|(sum, more)| sum.add(more));
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.failures.iter_mut().zip(other.failures).for_each(|(sum, more)| *sum += more);
        self.in_flight += other.in_flight;
    }
}

#[derive(Debug, Default)]
struct OperationCounters {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanoseconds: AtomicU64,
}

/// What one queue counts of one namespace.
#[derive(Debug, Default)]
struct Counters {
    operations: [OperationCounters; Operation::ALL.len()],
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    failures: [AtomicU64; Failure::ALL.len()],
    begun: AtomicU64,
    ended: AtomicU64,
    /// The queue counts no more.
    is_over: AtomicBool,
}

/// Adds to a counter that no other thread writes.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Counters {
    fn read(&self, is_over: bool) -> CommandCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // They are read one after the other while the thread counts on: the end first.
        let ended = get(&self.ended);
        CommandCounts {
            operations: std::array::from_fn(|i| TimeCounts {
                buckets: std::array::from_fn(|at| get(&self.operations[i].buckets[at])),
                time: Duration::from_nanos(get(&self.operations[i].nanoseconds)),
            }),
            bytes_read: get(&self.bytes_read),
            bytes_written: get(&self.bytes_written),
            failures: std::array::from_fn(|i| get(&self.failures[i])),
            in_flight: if is_over { 0 } else { get(&self.begun).saturating_sub(ended) },
        }
    }
}

#[derive(Debug, Default)]
struct Queues {
    /// What queues have counted that are over.
    past: CommandCounts,
    counters: Vec<Arc<Counters>>,
}

impl Queues {
    fn fold(&mut self) {
        let past = &mut self.past;
        self.counters.retain(|counters| {
            let is_over = counters.is_over.load(Ordering::Acquire);
            if is_over {
                past.add(&counters.read(true));
            }
            !is_over
        });
    }
}

/// The counters of all queues that use a namespace, or belong to a host.
#[derive(Debug, Default)]
pub(crate) struct AllCounters(Mutex<Queues>);

impl AllCounters {
    fn watch(&self, counters: Arc<Counters>) {
        let mut queues = lock(&self.0);
        queues.fold();
        queues.counters.push(counters);
    }

    /// All of them together.
    pub(crate) fn sum(&self) -> CommandCounts {
        let mut queues = lock(&self.0);
        queues.fold();
        let mut sum = queues.past;
        for counters in &queues.counters {
            sum.add(&counters.read(false));
        }
        sum
    }
}

/// One queue's counting of one namespace, until the last command of it has ended.
#[derive(Debug, Default)]
pub(crate) struct Counting(Arc<Counters>);

impl Counting {
    /// Counts for all of these.
    pub(crate) fn start<'a>(into: impl IntoIterator<Item = &'a AllCounters>) -> Rc<Counting> {
        let counting = Counting::default();
        into.into_iter().for_each(|all| all.watch(Arc::clone(&counting.0)));
        Rc::new(counting)
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
    }
}

/// A command that is counted when it ends.
#[derive(Debug)]
pub(crate) struct Counted {
    counting: Rc<Counting>,
    operation: Operation,
    /// Bytes of a read or write.
    bytes: u32,
    arrived: Instant,
}

impl Counted {
    fn end(self, now: Instant, status: Status) {
        if status == Status::SUCCESS {
            return Alike::from(self).end(now);
        }
        add(&self.counting.0.failures[Failure::of(status) as usize], 1);
        Alike { bytes: 0, ..Alike::from(self) }.end(now);
    }
}

/// Commands of one kind to one namespace that arrived at the same time, and end at the same time.
#[derive(Debug)]
struct Alike {
    counting: Rc<Counting>,
    operation: Operation,
    commands: u64,
    bytes: u64,
    arrived: Instant,
}

impl From<Counted> for Alike {
    fn from(Counted { counting, operation, bytes, arrived }: Counted) -> Alike {
        Alike { counting, operation, commands: 1, bytes: bytes.into(), arrived }
    }
}

impl Alike {
    fn end(&self, now: Instant) {
        let Counters { operations, bytes_read, bytes_written, ended, .. } = &*self.counting.0;
        let operation = &operations[self.operation as usize];
        let time = now.saturating_duration_since(self.arrived);
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        add(&operation.buckets[BOUNDS.partition_point(|bound| *bound < time)], self.commands);
        add(&operation.nanoseconds, nanoseconds.wrapping_mul(self.commands));
        match self.operation {
            Operation::Read => add(bytes_read, self.bytes),
            Operation::Write => add(bytes_written, self.bytes),
            Operation::Flush | Operation::Other => {}
        }
        add(ended, self.commands);
    }
}

/// The batch of events that a connection handles, and what ends in it.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    is_open: Cell<bool>,
    /// When its first command arrived.
    arrived: Cell<Option<Instant>>,
    /// What arrived and succeeded in it, by operation: counted at once, since it is nearly all of the load.
    alike: [RefCell<Option<Alike>>; Operation::ALL.len()],
    /// Everything else that ended in it.
    ended: RefCell<Vec<(Counted, Status)>>,
}

impl Batch {
    /// Events are handled from now on.
    pub(crate) fn open(&self) {
        self.arrived.set(None);
        self.is_open.set(true);
    }

    /// A command has arrived.
    pub(crate) fn begin(&self, counting: &Rc<Counting>, operation: Operation, bytes: u32) -> Counted {
        add(&counting.0.begun, 1);
        let arrived = self.arrived.get().filter(|_| self.is_open.get()).unwrap_or_else(|| {
            let arrived = now();
            self.arrived.set(Some(arrived));
            arrived
        });
        Counted { counting: Rc::clone(counting), operation, bytes, arrived }
    }

    /// A command has been answered.
    pub(crate) fn end(&self, counted: Counted, status: Status) {
        if !self.is_open.get() {
            return counted.end(now(), status);
        }
        if status == Status::SUCCESS && self.arrived.get() == Some(counted.arrived) {
            let alike = &mut *self.alike[counted.operation as usize].borrow_mut();
            match alike {
                None => return *alike = Some(counted.into()),
                Some(alike) if Rc::ptr_eq(&alike.counting, &counted.counting) => {
                    alike.commands += 1;
                    alike.bytes += u64::from(counted.bytes);
                    return;
                }
                Some(_) => {}
            }
        }
        self.ended.borrow_mut().push((counted, status));
    }

    /// The events have been handled.
    pub(crate) fn close(&self) {
        self.is_open.set(false);
        let mut time = None;
        for alike in &self.alike {
            if let Some(alike) = alike.take() {
                alike.end(*time.get_or_insert_with(now));
            }
        }
        let mut ended = self.ended.borrow_mut();
        ended.drain(..).for_each(|(counted, status)| counted.end(*time.get_or_insert_with(now), status));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_queue_counted_stays_when_it_has_ended() {
        let (namespace, host) = (AllCounters::default(), AllCounters::default());
        let batch = Batch::default();
        let one = Counting::start([&namespace, &host]);
        let other = Counting::start([&namespace]);
        batch.open();
        let (read, write) =
            (batch.begin(&one, Operation::Read, 4096), batch.begin(&other, Operation::Write, 512));
        assert_eq!((namespace.sum().in_flight, host.sum().in_flight), (2, 1));
        batch.end(read, Status::SUCCESS);
        assert_eq!(host.sum().in_flight, 1, "its answer is sent after the batch");
        batch.close();
        batch.end(write, Status::RESERVATION_CONFLICT.dnr());
        // What arrives later, in no batch, is not taken for what the next batch brings.
        let late = batch.begin(&other, Operation::Other, 0);
        batch.open();
        assert_eq!(batch.arrived.get(), None);
        let next = batch.begin(&other, Operation::Other, 0);
        batch.end(next, Status::SUCCESS);
        batch.end(late, Status::SUCCESS);
        batch.close();
        // The connection ends before this one does.
        let lost = batch.begin(&one, Operation::Flush, 0);
        assert_eq!(namespace.sum().in_flight, 1);
        drop((lost, one));
        let sum = namespace.sum();
        assert_eq!((sum.bytes_read, sum.bytes_written, sum.in_flight), (4096, 0, 0));
        assert_eq!(sum.operations.map(|operation| operation.total()), [1, 1, 0, 2]);
        assert_eq!(sum.failures, [0, 1, 0, 0]);
        assert_eq!(host.sum().operations.map(|operation| operation.total()), [1, 0, 0, 0]);
        drop(other);
        assert_eq!(namespace.sum(), sum);
        assert!(lock(&namespace.0).counters.is_empty(), "nothing grows with queues that end");
    }

    #[test]
    fn commands_of_a_batch_that_are_alike_are_all_counted() {
        let (first, second) = (AllCounters::default(), AllCounters::default());
        let (one, other) = (Counting::start([&first]), Counting::start([&second]));
        let batch = Batch::default();
        let before = batch.begin(&one, Operation::Write, 100);
        batch.open();
        for (counting, operation, bytes) in [
            (&one, Operation::Read, 1),
            (&other, Operation::Read, 10),
            (&one, Operation::Write, 2),
            (&one, Operation::Read, 4),
            (&other, Operation::Read, 20),
        ] {
            let counted = batch.begin(counting, operation, bytes);
            batch.end(counted, Status::SUCCESS);
        }
        batch.end(before, Status::SUCCESS);
        let failed = batch.begin(&one, Operation::Read, 1000);
        batch.end(failed, Status::UNRECOVERED_READ);
        batch.close();
        let of = |all: &AllCounters| {
            let sum = all.sum();
            let commands = sum.operations.map(|operation| operation.total());
            (commands, sum.bytes_read, sum.bytes_written, sum.failures, sum.in_flight)
        };
        assert_eq!(of(&first), ([3, 2, 0, 0], 5, 102, [1, 0, 0, 0], 0));
        assert_eq!(of(&second), ([2, 0, 0, 0], 30, 0, [0; 4], 0));
        // The next batch begins anew.
        batch.open();
        batch.close();
        assert_eq!(of(&first).0, [3, 2, 0, 0]);
    }

    #[test]
    fn times_are_in_the_bucket_of_their_bound() {
        let all = AllCounters::default();
        let counting = Counting::start([&all]);
        let arrived = now();
        let us = Duration::from_micros;
        for time in [us(0), us(10), us(11), us(5_000_000), us(5_000_001)] {
            let counted =
                Counted { counting: Rc::clone(&counting), operation: Operation::Read, bytes: 1, arrived };
            counted.end(arrived + time, Status::SUCCESS);
        }
        let read = all.sum().operations[Operation::Read as usize];
        let mut expected = [0; BOUNDS.len() + 1];
        (expected[0], expected[1], expected[17], expected[18]) = (2, 1, 1, 1);
        assert_eq!((read.buckets, read.time), (expected, us(10_000_022)));
        assert_eq!(read.total(), 5);
    }

    #[test]
    fn the_operations_are_in_the_order_of_their_counts() {
        for (i, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, i);
        }
        for (i, failure) in Failure::ALL.into_iter().enumerate() {
            assert_eq!(failure as usize, i);
        }
        assert_eq!(Failure::of(Status::UNRECOVERED_READ), Failure::Medium);
        assert_eq!(Failure::of(Status::TRANSIENT_TRANSPORT), Failure::Digest);
        assert_eq!(Failure::of(Status::INVALID_FIELD.dnr()), Failure::Other);
    }
}
