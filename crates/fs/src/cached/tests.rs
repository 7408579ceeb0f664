use super::*;
use crate::call::{DirectoryEntry, Stream};
use crate::{Attributes, Changes, Directory};
use longhaul_engine::Buf;
use std::sync::mpsc::channel;
use std::time::Duration;

/// A file system whose calls are answered when the test says so, in any order.
#[derive(Default)]
struct Held {
    content: Mutex<Vec<u8>>,
    waiting: Mutex<Vec<(Call, Done)>>,
    /// The next write fails with this error.
    error: Mutex<Option<Errno>>,
    calls: Mutex<Vec<String>>,
    /// How many listings were asked for.
    listed: Mutex<u64>,
    /// What executes the calls instead.
    directory: Option<Arc<Directory>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const NODE: Node = Node(5);
const FILE: Handle = Handle(9);

impl FileSystem for Held {
    fn start(&self, call: Call, done: Done) {
        if let Call::ReadDirectory { .. } = call {
            *lock(&self.listed) += 1;
        }
        if let Call::Open { .. } = call {
            return done(Ok(Reply::Opened(Held::attributes(0), FILE)));
        }
        lock(&self.waiting).push((call, done));
    }
}

impl Held {
    fn attributes(size: u64) -> Attributes {
        let time = crate::Time::default();
        Attributes {
            node: NODE,
            generation: 0,
            size,
            blocks: 0,
            accessed: time,
            modified: time,
            changed: time,
            mode: 0o100_600,
            links: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            block_size: 4096,
            is_plain: false,
        }
    }

    fn execute(&self, call: Call) -> Result<Reply, Errno> {
        if let Some(directory) = &self.directory {
            return directory.execute(call);
        }
        let mut content = lock(&self.content);
        match call {
            Call::Read { offset, len, .. } => {
                lock(&self.calls).push(format!("read {offset} {len}"));
                let from = (offset as usize).min(content.len());
                let to = (from + len as usize).min(content.len());
                Ok(Reply::Data(Buf::copy_of(&content[from..to])))
            }
            Call::Write { offset, data, .. } => {
                lock(&self.calls).push(format!("write {offset} {}", data.len()));
                if let Some(error) = lock(&self.error).take() {
                    return Err(error);
                }
                let end = offset as usize + data.len();
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[offset as usize..end].copy_from_slice(&data);
                Ok(Reply::Written(data.len() as u32))
            }
            Call::Attributes { .. } | Call::Lookup { .. } => {
                Ok(Reply::Attributes(Held::attributes(content.len() as u64)))
            }
            Call::Change { changes: Changes { size: Some(size), .. }, .. } => {
                content.resize(size as usize, 0);
                Ok(Reply::Attributes(Held::attributes(size)))
            }
            Call::Flush { .. } => {
                lock(&self.calls).push("flush".to_owned());
                Ok(Reply::Done)
            }
            _ => Ok(Reply::Done),
        }
    }

    /// Answers the call at `index` of those that wait; false if fewer calls wait.
    fn answer(&self, index: usize) -> bool {
        let mut waiting = lock(&self.waiting);
        if waiting.is_empty() {
            return false;
        }
        let index = index % waiting.len();
        let (call, done) = waiting.remove(index);
        drop(waiting);
        done(self.execute(call));
        true
    }

    fn answer_all(&self) {
        while self.answer(0) {}
    }
}

fn cached(options: CachedOptions) -> (Arc<Held>, Cached) {
    let held = Arc::new(Held::default());
    let cached = Cached::new(Arc::clone(&held) as Arc<dyn FileSystem>, options);
    let flags = OFlags::RDWR.bits();
    assert!(matches!(cached.wait(Call::Open { node: NODE, flags }), Ok(Reply::Opened(_, FILE))));
    (held, cached)
}

/// Starts a call, whose result can be received.
fn start(cached: &Cached, call: Call) -> std::sync::mpsc::Receiver<Result<Reply, Errno>> {
    let (tell, told) = channel();
    cached.start(call, Box::new(move |result| drop(tell.send(result))));
    told
}

fn write(offset: u64, data: &[u8]) -> Call {
    Call::Write { handle: FILE, offset, data: Buf::copy_of(data) }
}

fn read(offset: u64, len: u32) -> Call {
    Call::Read { handle: FILE, offset, len }
}

fn content(result: Result<Reply, Errno>) -> Vec<u8> {
    match result {
        Ok(Reply::Data(data)) => data.to_vec(),
        other => panic!("no content: {other:?}"),
    }
}

#[test]
fn small_writes_are_acknowledged_at_once_and_sent_together() {
    let (held, cached) = cached(CachedOptions::default());
    for at in 0..1000 {
        let written = start(&cached, write(at * 100, &[at as u8; 100]));
        assert!(matches!(written.try_recv(), Ok(Ok(Reply::Written(100)))), "write {at}");
    }
    let flushed = start(&cached, Call::Flush { handle: FILE });
    assert!(flushed.try_recv().is_err(), "flushed before it was written");
    held.answer_all();
    assert!(matches!(flushed.try_recv(), Ok(Ok(Reply::Done))));
    assert_eq!(*lock(&held.calls), ["write 0 100", "write 100 99900"]);
    let expected: Vec<u8> = (0..1000u64).flat_map(|at| [at as u8; 100]).collect();
    assert!(*lock(&held.content) == expected);
}

#[test]
fn a_file_system_that_keeps_writes_hears_of_a_flush_behind_them() {
    let (held, cached) = cached(CachedOptions { flushes: true, ..CachedOptions::default() });
    assert!(start(&cached, write(0, b"kept")).try_recv().is_ok());
    let flushed = start(&cached, Call::Flush { handle: FILE });
    held.answer(0);
    assert!(flushed.try_recv().is_err(), "flushed before it was flushed below");
    held.answer_all();
    assert!(matches!(flushed.try_recv(), Ok(Ok(Reply::Done))));
    assert_eq!(*lock(&held.calls), ["write 0 4", "flush"]);
}

#[test]
fn each_handle_gets_the_error_of_a_lost_write_until_a_sync_has_reported_it() {
    let (held, cached) = cached(CachedOptions::default());
    *lock(&held.error) = Some(Errno::NOSPC);
    assert!(start(&cached, write(0, b"lost")).try_recv().is_ok());
    held.answer_all();
    let flush = || start(&cached, Call::Flush { handle: FILE }).try_recv().expect("at once");
    let sync = || start(&cached, Call::Sync { handle: FILE, data_only: false });
    // Of two copies of the descriptor.
    assert_eq!(flush().expect_err("lost"), Errno::NOSPC);
    assert_eq!(flush().expect_err("lost"), Errno::NOSPC);
    assert_eq!(sync().try_recv().expect("at once").expect_err("lost"), Errno::NOSPC);
    assert!(flush().is_ok(), "it was reported");
    let sync = sync();
    held.answer_all();
    assert!(matches!(sync.try_recv(), Ok(Ok(Reply::Done))));
}

#[test]
fn a_reader_that_waits_reads_further_ahead() {
    let cells = 40u64;
    let options = CachedOptions { read_ahead: 8 << 20, ..CachedOptions::default() };
    let (held, cached) = cached(options);
    let all: Vec<u8> = (0..cells * CELL).map(|at| (at >> 12) as u8 ^ at as u8).collect();
    lock(&held.content).clone_from(&all);
    let (mut most, mut got, step) = (0, Vec::new(), 256 << 10);
    for at in (0..all.len() as u64).step_by(step) {
        let result = start(&cached, read(at, step as u32));
        let mut answer = result.try_recv();
        while answer.is_err() {
            // All that is under way on a long path comes a round trip later.
            most = most.max(lock(&held.waiting).len());
            held.answer_all();
            answer = result.try_recv();
        }
        got.extend(content(answer.expect("answered")));
    }
    assert!(got == all, "other content");
    assert!((6..=9).contains(&most), "{most} cells at a time, of 8 that are allowed");
    let mut reads = lock(&held.calls).clone();
    reads.sort_unstable();
    let before = reads.len();
    reads.dedup();
    assert_eq!(reads.len(), before, "a cell was read twice");
}

/// The kernel reads ahead with several calls, of which a later one may come first: what an earlier one wants stays,
/// also when all memory is taken, or that one would wait behind all that is read ahead.
#[test]
fn a_read_that_was_overtaken_finds_what_was_read_ahead() {
    let (held, cached) = cached(CachedOptions { read_ahead: 4 << 20, ..CachedOptions::default() });
    let cells = 64u64;
    lock(&held.content).resize((cells * CELL) as usize, 7);
    for pair in 0..cells / 2 {
        for cell in [2 * pair + 1, 2 * pair] {
            let result = start(&cached, read(cell * CELL, CELL as u32));
            held.answer_all();
            assert_eq!(content(result.try_recv().expect("answered")).len() as u64, CELL);
        }
    }
    let mut reads = lock(&held.calls).clone();
    reads.sort_unstable();
    let before = reads.len();
    reads.dedup();
    assert_eq!(before - reads.len(), 0, "a cell was read twice");
}

#[test]
fn reads_at_random_places_are_not_read_ahead() {
    let (held, cached) = cached(CachedOptions::default());
    lock(&held.content).resize(64 << 20, 7);
    for at in [50 << 20, 10 << 20, 40 << 20, 20 << 20] {
        let result = start(&cached, read(at, 4096));
        held.answer_all();
        assert_eq!(content(result.try_recv().expect("answered")), [7; 4096]);
    }
    assert!(lock(&held.calls).iter().all(|call| call.ends_with(" 4096")), "{:?}", lock(&held.calls));
}

#[test]
fn the_memory_of_writes_is_bounded() {
    let options = CachedOptions { write_behind: 1 << 20, ..CachedOptions::default() };
    let (held, cached) = cached(options);
    let piece = vec![1; 256 << 10];
    let writes: Vec<_> = (0..16).map(|at| start(&cached, write(at * (256 << 10), &piece))).collect();
    let acknowledged = || writes.iter().filter(|write| write.try_recv().is_ok()).count();
    assert_eq!(acknowledged(), 4, "1 MiB of 4 is taken");
    while held.answer(0) {}
    assert_eq!(acknowledged(), 12, "the rest, once there is room");
}

#[test]
fn a_file_grows_at_once_for_its_writer() {
    let (held, cached) = cached(CachedOptions::default());
    drop(start(&cached, write(0, &[1; 5000])));
    // A name is looked up while the write is under way, and answered first.
    let found = start(&cached, Call::Lookup { parent: Node::ROOT, name: b"f".to_vec() });
    assert!(held.answer(1));
    match found.try_recv() {
        Ok(Ok(Reply::Attributes(attributes))) => assert_eq!(attributes.size, 5000),
        other => panic!("{other:?}"),
    }
    held.answer_all();
}

/// Reads, writes, truncations and syncs in random order, answered in random order: each read has the
/// content of all writes before it, acknowledged or not.
#[test]
fn calls_appear_in_their_order() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let options = CachedOptions { read_ahead: 4 << 20, write_behind: 64 << 10, flushes: false };
        let (held, cached) = cached(options);
        let mut model: Vec<u8> = Vec::new();
        let mut expected = Vec::new();
        for step in 0..60u8 {
            let offset = random.u64(0..20_000);
            let len = random.u32(1..9000);
            match random.u32(0..10) {
                0..=3 => {
                    // A read that is under way at the same time may have either content.
                    held.answer_all();
                    let data = vec![step + 1; len as usize];
                    let end = offset as usize + data.len();
                    if model.len() < end {
                        model.resize(end, 0);
                    }
                    model[offset as usize..end].copy_from_slice(&data);
                    drop(start(&cached, write(offset, &data)));
                }
                4..=7 => {
                    let from = (offset as usize).min(model.len());
                    let to = (from + len as usize).min(model.len());
                    let result = start(&cached, read(offset, len));
                    expected.push((step, result, model[from..to].to_vec()));
                }
                8 => {
                    held.answer_all();
                    model.resize(offset as usize, 0);
                    let changes = Changes { size: Some(offset), ..Changes::default() };
                    let change = Call::Change { node: NODE, handle: None, changes };
                    let result = start(&cached, change);
                    // The kernel truncates with the file locked: nothing else is under way.
                    held.answer_all();
                    assert!(matches!(result.try_recv(), Ok(Ok(_))), "seed {seed} step {step}");
                }
                _ => drop(start(&cached, Call::Sync { handle: FILE, data_only: true })),
            }
            for _ in 0..random.u32(0..4) {
                held.answer(random.usize(0..16));
            }
            if random.bool() {
                held.answer_all();
            }
            while let Some((_, result, _)) = expected.first() {
                let Ok(answer) = result.recv_timeout(Duration::ZERO) else { break };
                let (at, _, content) = expected.remove(0);
                let got = self::content(answer);
                let differ = got.iter().zip(&content).position(|(a, b)| a != b);
                let lens = (got.len(), content.len());
                assert!(
                    got == content,
                    "seed {seed}: read of step {at}, seen at {step}: {differ:?} of {lens:?}, {:?}",
                    lock(&held.calls)
                );
            }
        }
        held.answer_all();
        for (at, result, content) in expected {
            let answer = result.try_recv().expect("answered at the end");
            assert!(self::content(answer) == content, "seed {seed}: read of step {at}");
        }
        assert!(*lock(&held.content) == model, "seed {seed}: content at the end");
    }
}

#[test]
fn appended_writes_keep_their_order() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("log"), b"0\n").expect("written");
    let root = rustix::fs::open(dir.path(), OFlags::PATH, rustix::fs::Mode::empty()).expect("opened");
    let below = Arc::new(Directory::new(root, false).expect("a directory"));
    let cached = Cached::new(below, CachedOptions::default());
    let Ok(Reply::Entry(entry)) = cached.wait(Call::Lookup { parent: Node::ROOT, name: b"log".to_vec() })
    else {
        panic!("not found");
    };
    let flags = (OFlags::WRONLY | OFlags::APPEND).bits();
    let Ok(Reply::Opened(_, handle)) = cached.wait(Call::Open { node: entry.node, flags }) else {
        panic!("not opened");
    };
    for line in 1..100 {
        // The offset of an appended write is the kernel's guess of the size.
        let data = Buf::copy_of(format!("{line}\n").as_bytes());
        cached.wait(Call::Write { handle, offset: 2, data }).expect("written");
    }
    cached.wait(Call::Flush { handle }).expect("flushed");
    let lines = std::fs::read_to_string(dir.path().join("log")).expect("read");
    assert_eq!(lines, (0..100).map(|line| format!("{line}\n")).collect::<String>());
}

/// A tree on a file system that is far away.
struct FarTree {
    _dir: tempfile::TempDir,
    directory: Arc<Directory>,
    far: Arc<Held>,
    cached: Cached,
    round_trips: u32,
    streams: u64,
    /// Answers of a round trip come in any order; otherwise in that of the calls.
    shuffled: Option<fastrand::Rng>,
}

impl FarTree {
    /// With so many directories in each directory, level by level, and one file in each of the lowest level.
    fn new(levels: &[u32]) -> FarTree {
        fn make(at: &std::path::Path, levels: &[u32]) {
            let Some((count, below)) = levels.split_first() else {
                return std::fs::write(at.join("file"), b"").expect("written");
            };
            for number in 0..*count {
                let at = at.join(number.to_string());
                std::fs::create_dir(&at).expect("made");
                make(&at, below);
            }
        }
        let dir = tempfile::tempdir().expect("a directory");
        make(dir.path(), levels);
        let root = rustix::fs::open(dir.path(), OFlags::PATH, rustix::fs::Mode::empty()).expect("opened");
        let directory = Arc::new(Directory::new(root, false).expect("a directory"));
        let far = Arc::new(Held { directory: Some(Arc::clone(&directory)), ..Held::default() });
        let cached = Cached::new(Arc::clone(&far) as Arc<dyn FileSystem>, CachedOptions::default());
        FarTree { _dir: dir, directory, far, cached, round_trips: 0, streams: 0, shuffled: None }
    }

    /// All that waits is answered a round trip later; what is asked for by an answer, another one later.
    fn list(&mut self, node: Node) -> Vec<DirectoryEntry> {
        self.streams += 1;
        let call = Call::ReadDirectory { node, stream: Stream(self.streams), after: 0 };
        let result = start(&self.cached, call);
        loop {
            match result.try_recv() {
                Ok(Ok(Reply::Listing(entries, true))) => return entries,
                Ok(other) => panic!("{other:?}"),
                Err(_) => {
                    self.round_trips += 1;
                    if let Some(random) = &mut self.shuffled {
                        random.shuffle(&mut lock(&self.far.waiting));
                    }
                    let waiting = lock(&self.far.waiting).len();
                    for _ in 0..waiting {
                        self.far.answer(0);
                    }
                }
            }
        }
    }

    /// Goes down before it goes on; how many objects there are. `seen` is called after each directory was listed.
    fn walk(&mut self, node: Node, seen: &mut dyn FnMut(&mut FarTree)) -> u64 {
        let entries = self.list(node);
        seen(self);
        let directories =
            entries.iter().filter(|entry| entry.attributes.kind() == crate::FileKind::Directory);
        entries.len() as u64 + directories.map(|entry| self.walk(entry.attributes.node, seen)).sum::<u64>()
    }
}

/// A walk through a tree of a few directories costs a few round trips, whatever the number of directories,
/// and leaves nothing looked up that its reader did not get.
#[test]
fn a_walk_lists_directories_ahead() {
    let mut tree = FarTree::new(&[100]);
    let top = tree.list(Node::ROOT);
    assert_eq!(top.len(), 100);
    let mut found = top.len() as u64;
    for entry in top.iter().take(50) {
        let entries = tree.list(entry.attributes.node);
        assert_eq!(entries[0].name, b"file");
        found += entries.len() as u64;
    }
    assert!(tree.round_trips <= 5, "{} round trips for 51 directories", tree.round_trips);
    // A change drops what was listed ahead, and that is forgotten.
    let make = Call::MakeDirectory { parent: Node::ROOT, name: b"new".to_vec(), mode: 0o700 };
    drop(start(&tree.cached, make));
    tree.far.answer_all();
    assert_eq!(tree.directory.known() as u64, found + 1);
}

/// Directories below those that were listed ahead are listed ahead as well.
#[test]
fn a_walk_through_a_deep_tree_costs_as_few_round_trips_as_through_a_wide_one() {
    for levels in [&[6, 6, 6][..], &[2; 7], &[250]] {
        let mut tree = FarTree::new(levels);
        let found = tree.walk(Node::ROOT, &mut |_| ());
        let directories = 1 + levels
            .iter()
            .scan(1, |all, count| {
                *all *= count;
                Some(*all)
            })
            .sum::<u32>();
        assert_eq!(found, u64::from(directories - 1 + levels.iter().product::<u32>()), "{levels:?}");
        let most = 6 + 2 * levels.len() as u32;
        assert!(tree.round_trips <= most, "{levels:?}: {} round trips for {directories}", tree.round_trips);
        assert_eq!(tree.directory.known() as u64, found, "{levels:?}");
    }
}

/// What comes first may be far from where the walk is: it is not listed ahead in place of what is near.
#[test]
fn a_walk_lists_ahead_what_is_next_in_whatever_order_answers_come() {
    for seed in 0..4 {
        let mut tree = FarTree::new(&[4, 100]);
        tree.shuffled = Some(fastrand::Rng::with_seed(seed));
        let found = tree.walk(Node::ROOT, &mut |_| ());
        assert_eq!(found, 4 + 2 * 4 * 100);
        assert!(tree.round_trips <= 25, "seed {seed}: {} round trips for 405 directories", tree.round_trips);
        let listed = *lock(&tree.far.listed);
        assert!(listed <= 405 + 2 * 128, "seed {seed}: {listed} listings for 405 directories");
        tree.far.answer_all();
        assert_eq!(tree.directory.known() as u64, found, "seed {seed}");
    }
}

/// `rm -r` changes something in each directory: what is listed ahead for it is dropped.
#[test]
fn a_walk_that_changes_the_tree_lists_little_in_vain() {
    let mut tree = FarTree::new(&[300]);
    let mut changes = 0;
    tree.walk(Node::ROOT, &mut |tree| {
        changes += 1;
        let make =
            Call::MakeDirectory { parent: Node::ROOT, name: format!("new {changes}").into(), mode: 0o700 };
        drop(start(&tree.cached, make));
        tree.far.answer_all();
    });
    let listed = *lock(&tree.far.listed);
    assert!(listed <= 301 * 2 + 150, "{listed} listings for 301 directories");
    // A walk after it is as fast as any.
    tree.round_trips = 0;
    tree.walk(Node::ROOT, &mut |_| ());
    assert!(tree.round_trips <= 16, "{} round trips", tree.round_trips);
}
