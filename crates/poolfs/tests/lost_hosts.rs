//! A host that is lost at any transaction, or at any write to a member: what was confirmed is there, what was
//! under way is there or not, and nothing is lost of the space.

mod common;

use common::dying::{Dying, End};
use common::{Calls, ROOT, Result, WRITE, assert_right, parity, pattern};
use longhaul_block::IoError;
use longhaul_block::filter::OpKind;
use longhaul_block::testing::{Fault, FaultRule};
use longhaul_fs::{Call, FileKind, FileSystem, Node, Reply};
use longhaul_poolfs::testing::TestFs;
use longhaul_poolfs::{FsOptions, PoolFs};
use std::collections::BTreeMap;
use std::time::Duration;

/// Everything that is there, by path: the content of files and links, and the number of names.
type Tree = BTreeMap<String, (Option<Vec<u8>>, u32)>;

fn tree(fs: &PoolFs) -> Tree {
    let mut all = Tree::new();
    let mut left = vec![(String::new(), ROOT)];
    while let Some((path, node)) = left.pop() {
        for (name, attributes) in fs.list(node).expect("listed") {
            let path = format!("{path}/{}", String::from_utf8_lossy(&name));
            let content = match attributes.kind() {
                FileKind::Directory => {
                    left.push((path.clone(), attributes.node));
                    None
                }
                FileKind::Symlink => match fs.wait(Call::ReadLink { node: attributes.node }) {
                    Ok(Reply::Bytes(target)) => Some(target),
                    other => panic!("{other:?}"),
                },
                _ => Some(fs.content(node, &name).expect("read")),
            };
            all.insert(path, (content, attributes.links));
        }
    }
    all
}

/// Overwrites a part of a file and closes it.
fn write(fs: &PoolFs, parent: Node, name: &[u8], offset: u64, data: &[u8]) -> Result<()> {
    let (_, handle) = fs.open(fs.lookup(parent, name)?.node, WRITE)?;
    for (index, part) in data.chunks(1 << 20).enumerate() {
        fs.write(handle, offset + ((index as u64) << 20), part)?;
    }
    fs.close(handle)
}

fn create(fs: &PoolFs, parent: Node, name: &[u8]) -> Result<()> {
    let (_, handle) = fs.create(parent, name, WRITE)?;
    fs.close(handle)
}

type Step = fn(&PoolFs) -> Result<()>;

/// Steps that are each there or not.
const STEPS: [Step; 20] = [
    |fs| create(fs, ROOT, b"a"),
    |fs| write(fs, ROOT, b"a", 0, &pattern(100_000, 1)),
    |fs| fs.make_directory(ROOT, b"d").map(drop),
    |fs| create(fs, fs.lookup(ROOT, b"d")?.node, b"b"),
    |fs| write(fs, fs.lookup(ROOT, b"d")?.node, b"b", 10, &pattern(700_000, 2)),
    |fs| write(fs, ROOT, b"a", 50_000, &pattern(150_000, 3)),
    |fs| fs.rename((fs.lookup(ROOT, b"d")?.node, b"b"), (ROOT, b"c"), 0),
    |fs| fs.resize(fs.lookup(ROOT, b"c")?.node, 123_456).map(drop),
    |fs| fs.link(fs.lookup(ROOT, b"c")?.node, fs.lookup(ROOT, b"d")?.node, b"e").map(drop),
    |fs| fs.rename((ROOT, b"c"), (ROOT, b"a"), 0),
    |fs| fs.symlink(ROOT, b"l", b"where/to").map(drop),
    |fs| create(fs, ROOT, b"large"),
    |fs| write(fs, ROOT, b"large", (16 << 20) - 300_000, &pattern(900_000, 4)),
    |fs| write(fs, ROOT, b"large", 0, &pattern(5000, 5)),
    |fs| {
        let (_, handle) = fs.open(fs.lookup(ROOT, b"large")?.node, WRITE)?;
        let punched = fs.punch(handle, 16 << 20, 100_000, 3);
        fs.close(handle)?;
        punched
    },
    |fs| fs.remove(fs.lookup(ROOT, b"d")?.node, b"e", false),
    |fs| fs.remove(ROOT, b"d", true),
    |fs| fs.resize(fs.lookup(ROOT, b"large")?.node, 16 << 20).map(drop),
    |fs| fs.remove(ROOT, b"large", false),
    |fs| fs.remove(ROOT, b"a", false),
];

/// What is there before each step, and after the last one; and the number of transactions.
fn history() -> (Vec<Tree>, u64) {
    let fs = parity();
    let counting = Dying::new(&fs.catalog, 1 << 32, End::Before);
    let mounted = fs.open_by(counting.clone(), &TestFs::options()).expect("mounted");
    let mut all = vec![tree(&mounted)];
    for step in STEPS {
        step(&mounted).expect("done");
        all.push(tree(&mounted));
    }
    drop(mounted);
    assert_right(&fs);
    (all, (1 << 32) - counting.left())
}

/// Mounts after the loss of the host, and compares; then removes everything. `confirmed` steps are there, and
/// of those behind them as many as there are up to the one after `done`.
fn check_after(fs: &TestFs, history: &[Tree], (confirmed, done): (usize, usize), what: &str) {
    let mounted = fs.open().expect("mounted");
    let found = tree(&mounted);
    let expected = &history[confirmed..(done + 2).min(history.len())];
    if !expected.contains(&found) {
        let names = |tree: &Tree| -> Vec<String> {
            let shown = |(path, (content, links)): (&String, &(Option<Vec<u8>>, u32))| {
                format!("{path} {links} {:?}", content.as_ref().map(Vec::len))
            };
            tree.iter().map(shown).collect()
        };
        panic!(
            "{what}: after {confirmed} to {done} steps {:?}; not {:?}",
            names(&found),
            expected.iter().map(names).collect::<Vec<_>>()
        );
    }
    // Its first look says that the session is over, and the second one takes over.
    mounted.tidy().expect("cleaned");
    mounted.tidy().expect("cleaned");
    let report = assert_right(fs);
    assert!(report.left.is_empty(), "{what}: {report:?}");
    for path in ["d/e", "d/b"] {
        let (directory, name) = path.split_once('/').expect("a path");
        if let Ok(directory) = mounted.lookup(ROOT, directory.as_bytes()) {
            let _ = mounted.remove(directory.node, name.as_bytes(), false);
        }
    }
    for (name, attributes) in mounted.list(ROOT).expect("listed") {
        mounted.remove(ROOT, &name, attributes.kind() == FileKind::Directory).expect("removed");
    }
    drop(mounted);
    let report = assert_right(fs);
    assert_eq!((report.files, report.bytes, report.segments.0), (0, 0, 0), "{what}: space is lost");
}

#[test]
fn a_host_that_is_lost_at_any_transaction_leaves_what_it_confirmed() {
    let (history, transactions) = history();
    assert!(transactions > 20, "only {transactions} transactions");
    for end in [End::Before, End::After, End::AnswerLost] {
        for at in 1..transactions {
            let fs = parity();
            let dying = Dying::new(&fs.catalog, at, end);
            let Ok(mounted) = fs.open_by(dying.clone(), &TestFs::options()) else { continue };
            let done = STEPS.iter().take_while(|step| step(&mounted).is_ok()).count();
            if end == End::AnswerLost {
                assert_eq!(done, STEPS.len(), "transaction {at}");
            }
            let lease = mounted.lease();
            mounted.lose();
            fs.catalog.revoke(lease).expect("ended");
            for disk in &fs.disks {
                disk.disk.cut_power();
            }
            check_after(&fs, &history, (done, done), &format!("{end:?} {at}"));
        }
    }
}

#[test]
fn a_host_that_is_lost_at_any_write_leaves_what_it_confirmed() {
    let (history, _) = history();
    for at in 0.. {
        let fs = parity();
        let mounted = fs.open().expect("mounted");
        for disk in &fs.disks {
            let error = IoError::Unreachable("the host is lost".into());
            disk.disk.inject(FaultRule::new(OpKind::Write, Fault::Error(error.clone())).after(at));
            disk.disk.inject(FaultRule::new(OpKind::Flush, Fault::Error(error)).after(at));
        }
        let done = STEPS.iter().take_while(|step| step(&mounted).is_ok()).count();
        let lease = mounted.lease();
        mounted.lose();
        fs.catalog.revoke(lease).expect("ended");
        for disk in &fs.disks {
            disk.disk.heal();
            disk.disk.cut_power();
        }
        check_after(&fs, &history, (done, done), &format!("write {at}"));
        if done == STEPS.len() {
            assert!(at > 10, "only {at} writes");
            return;
        }
    }
}

/// Steps of a host that writes behind, with `fsync` of a directory after some of them: how many are confirmed,
/// and how many are done.
fn steps_behind(fs: &PoolFs) -> (usize, usize) {
    let mut confirmed = 0;
    for (index, step) in STEPS.iter().enumerate() {
        if step(fs).is_err() {
            return (confirmed, index);
        }
        if index % 4 == 3 {
            if fs.wait(Call::SyncDirectory { node: ROOT }).is_err() {
                return (confirmed, index + 1);
            }
            confirmed = index + 1;
        }
    }
    (confirmed, STEPS.len())
}

#[test]
fn a_host_that_writes_behind_and_is_lost_leaves_what_it_did_first() {
    let (history, _) = history();
    let options = FsOptions { patience: Duration::from_millis(50), ..TestFs::leased() };
    for end in [End::Before, End::After, End::AnswerLost] {
        for at in 1.. {
            let fs = parity();
            let dying = Dying::new(&fs.catalog, at, end);
            let Ok(mounted) = fs.open_by(dying.clone(), &options) else { continue };
            let (confirmed, done) = steps_behind(&mounted);
            let is_whole = dying.left() != u64::MAX;
            let lease = mounted.lease();
            mounted.lose();
            fs.catalog.revoke(lease).expect("ended");
            fs.disks.iter().for_each(|disk| disk.disk.cut_power());
            check_after(&fs, &history, (confirmed, done), &format!("{end:?} {at}"));
            if is_whole {
                assert!(at > 15, "only {at} transactions");
                break;
            }
            if end == End::AnswerLost {
                assert_eq!((confirmed, done), (STEPS.len(), STEPS.len()), "transaction {at}");
            }
        }
    }
}
