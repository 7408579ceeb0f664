//! `--audit`: the audit log of a verb that serves.
//!
//! Invariants:
//! - a thread of its own writes; telling it something waits for no file, and the memory for what it has not
//!   written is bounded;
//! - lines are in the order of their times; what was not written is counted in the next line that is;
//! - an event that a command waits for is durable, or was given up, when that command is let go.

mod file;
mod lines;
mod meter;

use crate::exit::Failure;
use crate::output::Output;
use file::AuditPlace;
use lines::AuditEntry;
pub(crate) use lines::AuditRecord;
use longhaul_engine::{now, wall_time};
use longhaul_metrics::AuditCounts;
use longhaul_target::{Audit, AuditEvent, Recorded};
use meter::Meter;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Lines that wait to be written.
const QUEUE: usize = 4096;
/// The same, of those that a command waits for: a space has 16,384 namespaces at most, which one command removes.
const QUEUE_WAITED: usize = 32_768;
/// How long the end of the program waits for what is not written: a file system may hang, or a reader not read.
const END_MAX: Duration = Duration::from_secs(5);
/// How often it is looked whether sums are due.
const LOOK: Duration = Duration::from_secs(1);

/// Where events that matter to security are recorded.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AuditArgs {
    /// Append a line of JSON to this file for each event that matters to security: connects, refusals,
    /// management
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
}

impl AuditArgs {
    /// Opens the audit log, if one is asked for.
    ///
    /// # Errors
    /// The file cannot be written, is no regular file, or is standard output where events are printed.
    pub(crate) fn start(&self, output: Output) -> Result<Option<AuditLog>, Failure> {
        let Some(path) = &self.audit else { return Ok(None) };
        if path == Path::new("-") && output.is_json() {
            return Err(Failure::usage("--audit -: standard output has the events of --json; give a file"));
        }
        AuditLog::start(path).map(Some)
    }
}

#[derive(Debug, Default)]
struct AuditState {
    queue: VecDeque<AuditEntry>,
    meter: Meter,
    /// Events that found no room since the last one that did.
    dropped: u64,
    /// The same, as far as the log has not said so.
    unsaid: u64,
    reopen: bool,
    end: bool,
    has_ended: bool,
}

impl AuditState {
    /// Under the lock, so that times do not go back.
    fn put(&mut self, record: AuditRecord, recorded: Option<Recorded>) {
        let dropped = std::mem::take(&mut self.dropped);
        self.queue.push_back(AuditEntry { time: wall_time(), record, dropped, recorded });
    }
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    state: Mutex<AuditState>,
    changed: Condvar,
    ended: Condvar,
    counts: Arc<AuditCounts>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, AuditState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An audit log that is written.
#[derive(Clone, Debug)]
pub(crate) struct AuditLog {
    shared: Arc<Shared>,
}

impl AuditLog {
    fn start(path: &Path) -> Result<AuditLog, Failure> {
        let failed = |why: String| {
            Failure::failed(format_args!("cannot write the audit log {}: {why}", path.display()))
        };
        let place = AuditPlace::open(path).map_err(failed)?;
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            state: Mutex::default(),
            changed: Condvar::new(),
            ended: Condvar::new(),
            counts: Arc::default(),
        });
        let writer = Writer { shared: Arc::clone(&shared), place, lost: 0, fails: false };
        let thread = std::thread::Builder::new().name("audit".to_owned()).spawn(move || writer.run());
        thread.map_err(|e| failed(format!("no thread for it can be started: {e}")))?;
        Ok(AuditLog { shared })
    }

    /// What is counted of it.
    pub(crate) fn counts(&self) -> Arc<AuditCounts> {
        Arc::clone(&self.shared.counts)
    }

    /// Records an event of this program.
    pub(crate) fn record(&self, record: AuditRecord) {
        // Few, and never left out.
        self.shared.state().put(record, None);
        self.shared.changed.notify_one();
    }

    /// Opens the file anew, after it was renamed.
    pub(crate) fn reopen(&self) {
        self.shared.state().reopen = true;
        self.shared.changed.notify_one();
    }

    /// Writes what was told, with `last` as the last line, and ends; gives up what takes too long.
    pub(crate) fn end(&self, last: AuditRecord) {
        let mut state = self.shared.state();
        state.put(last, None);
        state.end = true;
        self.shared.changed.notify_one();
        let waited = self.shared.ended.wait_timeout_while(state, END_MAX, |state| !state.has_ended);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if !state.has_ended {
            let path = self.shared.path.display();
            tracing::error!(
                "the audit log {path} took nothing for {} s: its last lines are missing",
                END_MAX.as_secs()
            );
        }
    }
}

impl Audit for AuditLog {
    fn tell(&self, event: AuditEvent, recorded: Option<Recorded>) {
        let mut state = self.shared.state();
        if !state.meter.passes(now(), &event) {
            return;
        }
        let most = if recorded.is_some() { QUEUE_WAITED } else { QUEUE };
        if state.queue.len() < most {
            state.put(AuditRecord::Event(event), recorded);
            self.shared.changed.notify_one();
        } else {
            state.dropped += 1;
            state.unsaid += 1;
            AuditCounts::add(&self.shared.counts.dropped, 1);
        }
    }
}

/// The thread that writes.
struct Writer {
    shared: Arc<Shared>,
    place: AuditPlace,
    /// Events that were not written, since a line said so.
    lost: u64,
    /// The last attempt failed.
    fails: bool,
}

impl Writer {
    fn run(mut self) {
        loop {
            let (batch, reopen, end) = self.next();
            // What was told before the signal is in the old file.
            self.write(batch);
            if end {
                self.shared.state().has_ended = true;
                self.shared.ended.notify_all();
                return;
            }
            if reopen {
                self.reopen();
            }
        }
    }

    /// What is to be written next; waits for it.
    fn next(&mut self) -> (VecDeque<AuditEntry>, bool, bool) {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        loop {
            let end = state.end;
            let sums = state.meter.due(now(), end);
            if !sums.is_empty() {
                let time = wall_time();
                // The end of the program is the last line.
                let at = state.queue.len() - usize::from(end && !state.queue.is_empty());
                for (i, sum) in sums.into_iter().enumerate() {
                    let entry =
                        AuditEntry { time, record: AuditRecord::Sum(sum), dropped: 0, recorded: None };
                    state.queue.insert(at + i, entry);
                }
            }
            if end || state.reopen || !state.queue.is_empty() {
                let reopen = std::mem::take(&mut state.reopen);
                let taken = (std::mem::take(&mut state.queue), reopen, end);
                let unsaid = std::mem::take(&mut state.unsaid);
                drop(state);
                self.overflowed(unsaid);
                return taken;
            }
            let lock = |e: PoisonError<_>| e.into_inner();
            state = match state.meter.is_empty() {
                true => shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                false => shared.changed.wait_timeout(state, LOOK).unwrap_or_else(lock).0,
            };
        }
    }

    fn write(&mut self, batch: VecDeque<AuditEntry>) {
        let mut waited = Vec::new();
        for AuditEntry { time, record, dropped, recorded } in batch {
            self.lost += dropped;
            let line = lines::encode(time, &record, self.lost);
            match self.place.append(&line) {
                Ok(()) => {
                    AuditCounts::add(&self.shared.counts.lines, 1);
                    self.recovered();
                }
                Err(e) => {
                    self.lost += 1;
                    AuditCounts::add(&self.shared.counts.dropped, 1);
                    self.failed(&format!("{e}"));
                }
            }
            waited.extend(recorded);
        }
        if !waited.is_empty()
            && let Err(e) = self.place.sync()
        {
            self.failed(&format!("it may not be durable: {e}"));
        }
    }

    /// Says that events found no room: at most once a queue that was written.
    fn overflowed(&self, events: u64) {
        if events > 0 {
            let path = self.shared.path.display();
            tracing::error!(
                "the audit log {path} is written too slowly: {events} events are missing; give it a faster disk"
            );
        }
    }

    fn recovered(&mut self) {
        let lost = std::mem::take(&mut self.lost);
        if std::mem::take(&mut self.fails) {
            let path = self.shared.path.display();
            tracing::warn!("the audit log {path} is written again; {lost} lines are missing");
        }
    }

    /// Says once that it is not written.
    fn failed(&mut self, why: &str) {
        AuditCounts::add(&self.shared.counts.failures, 1);
        if !std::mem::replace(&mut self.fails, true) {
            let path = self.shared.path.display();
            tracing::error!("the audit log {path} is not written, and I/O goes on: {why}");
        }
    }

    fn reopen(&mut self) {
        if matches!(self.place, AuditPlace::Stdout) {
            return;
        }
        // The lock of the one that is open would be in the way, if it was not renamed.
        let open = std::mem::replace(&mut self.place, AuditPlace::Stdout);
        match AuditPlace::reopen(&self.shared.path, open) {
            Ok(place) => {
                self.place = place;
                self.write(VecDeque::from([AuditEntry {
                    time: wall_time(),
                    record: AuditRecord::Reopened,
                    dropped: 0,
                    recorded: None,
                }]));
            }
            Err((why, open)) => {
                self.place = open;
                AuditCounts::add(&self.shared.counts.failures, 1);
                let path = self.shared.path.display();
                tracing::error!(
                    "the audit log {path} cannot be opened again, and the old file is kept: {why}"
                );
            }
        }
    }
}
