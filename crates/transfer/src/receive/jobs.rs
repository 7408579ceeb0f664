//! The queues between the tasks of the connections and the writer threads.
//!
//! Invariant: the weight of the queued jobs is at most [`WRITE_BEHIND`], apart from forced
//! ones, so the memory of received data is bounded; results of jobs never wait.

use crate::guard::Panicked;
use crate::queue::{Gauge, Queue};
use crate::session::error::SessionError;
use crate::session::{JobResult, OPEN_FILES, WriteJob};
use crate::tune::gate::Gate;
use crate::tune::service::ServiceTimes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Bytes of received data that may wait to be written.
const WRITE_BEHIND: usize = 32 << 20;
/// Weight of a job without content in the queue, in bytes, so that many of them fill it.
const JOB: usize = 1 << 10;
/// The greatest extra weight of a batch of small files, which cost time by their number
/// rather than their bytes. Not above that of a block: blocks would overtake batches in a
/// nearly full queue.
const BATCH: usize = 1 << 20;
/// Weight of a byte in such a batch.
const FOR_EACH_BYTE: usize = 64;
/// Weight of an existence query: at most 64 are open, and each may need the checksums of
/// much data.
const QUERY_WEIGHT: usize = 1 << 20;
/// Additional weight of the end of a file: files of holes alone have no other job, and
/// stay open until it is done.
const END: usize = 3 << 10;
const _: () = assert!(
    WRITE_BEHIND / (JOB + END) <= OPEN_FILES / 2,
    "a full queue of file ends stays within OPEN_FILES"
);
/// The queues between the connections' tasks and the writer threads.
pub(super) struct ReceiveQueues {
    pub(super) jobs: Queue<WriteJob>,
    pub(super) done: Queue<JobResult>,
    /// The concurrency gate of the writer threads.
    pub(super) gate: Arc<Gate>,
    /// How long files take the writer threads.
    pub(super) service: ServiceTimes,
    /// All data was received.
    pub(super) arrived: AtomicBool,
    pub(super) panicked: Panicked,
}

impl ReceiveQueues {
    /// Empty queues, with `writers` threads at work.
    pub(super) fn new(writers: usize) -> ReceiveQueues {
        ReceiveQueues {
            jobs: Queue::new(WRITE_BEHIND),
            done: Queue::new(usize::MAX),
            gate: Arc::new(Gate::new(writers)),
            service: ServiceTimes::default(),
            arrived: AtomicBool::new(false),
            panicked: Panicked::default(),
        }
    }

    pub(super) fn panic(&self) {
        self.panicked.set();
        self.abort();
    }

    pub(super) fn abort(&self) {
        self.jobs.abort();
        self.done.abort();
        self.gate.open();
    }

    /// The reason why the queues were aborted.
    pub(super) fn ended(&self) -> SessionError {
        self.panicked.check().err().unwrap_or(SessionError::Lost)
    }

    /// Fill of the job queue. Once all data was received it counts as full: writing is
    /// then all that the sender waits for.
    pub(super) fn gauge(&self) -> Gauge {
        let gauge = self.jobs.gauge();
        if self.arrived.load(Relaxed) { Gauge { fill: 1.0, empty: false, ..gauge } } else { gauge }
    }
}

/// Weight of a job in the queue, in bytes.
pub(super) fn weight(job: &WriteJob) -> usize {
    JOB + match job {
        WriteJob::Batch(body) => (FOR_EACH_BYTE * body.len()).min(BATCH).max(body.len()),
        WriteJob::Query { .. } => QUERY_WEIGHT,
        WriteJob::Block { data, .. } => data.len(),
        WriteJob::Complete(_) | WriteJob::Abandon(_) => END,
        WriteJob::Settle { .. } => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::OnPanic;
    use crate::monitor::Monitor;
    use crate::wire::{Batch, Content, Entry, EntryKind, Limit, Stage};

    #[test]
    fn queued_empty_files_fill_the_queue() {
        let queues = ReceiveQueues::new(1);
        let batch = || {
            let mut batch = Batch::default();
            while !batch.is_full() {
                let entry = Entry::plain("some/directory/file", EntryKind::File, 0);
                batch.push(&entry, &Content::None, &[]);
            }
            WriteJob::Batch(batch.into_body())
        };
        // 1,024 files in each batch.
        for _ in 0..16 {
            let job = batch();
            let weight = weight(&job);
            queues.jobs.force(job, weight);
        }
        assert!(queues.gauge().fill >= 0.5, "{:?}", queues.gauge());
    }

    #[test]
    fn after_all_data_was_received_writing_is_the_limit() {
        let queues = ReceiveQueues::new(1);
        assert_eq!(queues.gauge().fill, 0.0);
        queues.arrived.store(true, Relaxed);
        assert_eq!(queues.gauge().fill, 1.0);
        let monitor = Monitor::new();
        monitor.watch(Stage::Read, || Gauge { empty: true, ..Gauge::default() });
        monitor.scan.set(crate::wire::Scanned { done: true, ..Default::default() });
        assert_eq!(monitor.limit_here(), Some(Limit::Stage(Stage::Send)));
        monitor.watch(Stage::Write, move || queues.gauge());
        assert_eq!(monitor.limit_here(), Some(Limit::Stage(Stage::Write)));
    }

    #[test]
    fn a_panic_of_a_writer_thread_ends_the_session() {
        let queues = Arc::new(ReceiveQueues::new(1));
        let thread = Arc::clone(&queues);
        let run = move || {
            let _guard = OnPanic(|| thread.panic());
            panic!("as the test wants it");
        };
        std::thread::spawn(run).join().expect_err("it panicked");
        assert!(queues.done.pop().is_none(), "the aborted queue is empty");
        assert!(matches!(queues.ended(), SessionError::Local(why) if why.contains("panic")));
    }
}
