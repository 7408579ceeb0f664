//! Counts the calls to a file system, for programs that watch it.

use crate::{Call, Caller, Done, FileSystem, Reply};
use longhaul_engine::histogram::{TimeCounts, Times};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Kinds of calls that are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// Reads of content.
    Read,
    /// Writes of content.
    Write,
    /// What makes content durable or hands it over: flush, fsync.
    Sync,
    /// Looks: names, attributes, listings, open, capacity.
    Look,
    /// Changes of anything but content.
    Change,
}

impl CallKind {
    /// Each of them, in the order of [`CallCounts::calls`].
    pub const ALL: [CallKind; 5] =
        [CallKind::Read, CallKind::Write, CallKind::Sync, CallKind::Look, CallKind::Change];

    /// The kind of a call; `None` for one that only ends something, and has nothing to wait for.
    fn of(call: &Call) -> Option<CallKind> {
        match call {
            Call::Read { .. } => Some(CallKind::Read),
            Call::Write { .. } => Some(CallKind::Write),
            Call::Flush { .. } | Call::Sync { .. } | Call::SyncDirectory { .. } => Some(CallKind::Sync),
            Call::Forget { .. } | Call::Close { .. } | Call::CloseDirectory { .. } => None,
            Call::Open { .. } => Some(CallKind::Look),
            call if call.is_change() => Some(CallKind::Change),
            _ => Some(CallKind::Look),
        }
    }
}

/// The calls to a file system until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    /// Those that have been answered, also with an error, by their [`CallKind`].
    pub calls: [TimeCounts; CallKind::ALL.len()],
    /// Those that failed, likewise. That an object does not exist is an answer.
    pub failed: [u64; CallKind::ALL.len()],
    /// Bytes that were read.
    pub bytes_read: u64,
    /// Bytes that were written, in memory at least.
    pub bytes_written: u64,
    /// Calls that have no answer yet.
    pub in_flight: u64,
}

#[derive(Debug, Default)]
struct Counters {
    times: [Times; CallKind::ALL.len()],
    failed: [AtomicU64; CallKind::ALL.len()],
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    in_flight: AtomicU64,
}

/// A file system whose calls are counted.
pub struct Counted {
    files: Arc<dyn FileSystem>,
    counters: Arc<Counters>,
}

impl Counted {
    /// Counts the calls to `files` that go through this.
    pub fn new(files: Arc<dyn FileSystem>) -> Counted {
        Counted { files, counters: Arc::default() }
    }

    /// What was counted, to be read at any time, also when the file system is not there any more.
    pub fn counts(&self) -> impl Fn() -> CallCounts + Send + Sync + 'static {
        let counters = Arc::clone(&self.counters);
        move || CallCounts {
            calls: std::array::from_fn(|kind| counters.times[kind].read()),
            failed: std::array::from_fn(|kind| counters.failed[kind].load(Relaxed)),
            bytes_read: counters.bytes_read.load(Relaxed),
            bytes_written: counters.bytes_written.load(Relaxed),
            in_flight: counters.in_flight.load(Relaxed),
        }
    }
}

impl Counted {
    /// Counts a call that begins now, and ends with `done`.
    fn count(&self, call: &Call, done: Done) -> Done {
        let Some(kind) = CallKind::of(call) else { return done };
        let counters = Arc::clone(&self.counters);
        counters.in_flight.fetch_add(1, Relaxed);
        let began = Instant::now();
        let counted = move |result: Result<Reply, crate::Errno>| {
            let at = kind as usize;
            counters.times[at].record(began.elapsed());
            match &result {
                Ok(Reply::Data(data)) => {
                    counters.bytes_read.fetch_add(data.len() as u64, Relaxed);
                }
                Ok(Reply::Written(bytes)) => {
                    counters.bytes_written.fetch_add(u64::from(*bytes), Relaxed);
                }
                Ok(_) | Err(crate::Errno::NOENT | crate::Errno::NODATA) => {}
                Err(_) => {
                    counters.failed[at].fetch_add(1, Relaxed);
                }
            }
            counters.in_flight.fetch_sub(1, Relaxed);
            done(result);
        };
        Box::new(counted)
    }
}

impl FileSystem for Counted {
    fn start(&self, call: Call, done: Done) {
        let done = self.count(&call, done);
        self.files.start(call, done);
    }

    fn start_for(&self, caller: Caller, call: Call, done: Done) {
        let done = self.count(&call, done);
        self.files.start_for(caller, call, done);
    }

    fn refuses_xattr(&self, name: &[u8]) -> bool {
        self.files.refuses_xattr(name)
    }

    fn locks(&self) -> Option<Arc<dyn crate::Locks>> {
        self.files.locks()
    }
}

impl std::fmt::Debug for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counted").field("counters", &self.counters).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Directory, Errno, Node};

    #[test]
    fn calls_are_counted_by_kind_with_their_bytes_and_failures() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("a"), b"twelve bytes").expect("written");
        let root = std::fs::File::open(dir.path()).expect("opened").into();
        let files = Counted::new(Arc::new(Directory::new(root, false).expect("opened")));
        let counts = files.counts();
        assert_eq!(counts(), CallCounts::default());
        let look =
            |name: &str| files.wait(Call::Lookup { parent: Node::ROOT, name: name.as_bytes().to_vec() });
        let Ok(Reply::Entry(found)) = look("a") else { panic!("it is there") };
        assert_eq!(look("b").expect_err("it is not there"), Errno::NOENT);
        let Ok(Reply::Opened(_, handle)) = files.wait(Call::Open { node: found.node, flags: 0 }) else {
            panic!("it opens")
        };
        files.wait(Call::Read { handle, offset: 0, len: 4096 }).expect("read");
        let directory = Call::MakeDirectory { parent: Node::ROOT, name: b"a".to_vec(), mode: 0o755 };
        assert_eq!(files.wait(directory).expect_err("the name is taken"), Errno::EXIST);
        files.wait(Call::Close { handle }).expect("closed");
        let counts = counts();
        assert_eq!(counts.calls.map(|calls| calls.total()), [1, 0, 0, 3, 1]);
        assert_eq!(counts.failed, [0, 0, 0, 0, 1]);
        assert_eq!((counts.bytes_read, counts.bytes_written, counts.in_flight), (12, 0, 0));
    }
}
