//! Jobs in any order that a sender may choose, and the destination afterwards.

use super::deferred::DEFERRED_BYTES;
use super::*;
use crate::tree::Tree;
use crate::wire::{BLOCK, Batch, HAVE_MAX, Time};
use longhaul_engine::Buf;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

fn path(name: &str) -> RelPath {
    RelPath::new(name.as_bytes()).expect("a good name")
}

fn entry(name: &str, kind: EntryKind, size: u64) -> Entry {
    Entry { mtime: Time { secs: 1_000_000_000, nanos: 5 }, ..Entry::plain(name, kind, size) }
}

fn directory(name: &str) -> Entry {
    Entry { mode: 0o755, ..entry(name, EntryKind::Directory, 0) }
}

/// A copy with this key into `base`.
fn spec(base: Tree, key: u64, options: Options) -> WriteSpec {
    let journal = Journal::open(&base, key).expect("a journal");
    WriteSpec {
        destination: DestinationRoot { base, rename: None },
        options,
        filter: Filter::default(),
        journal: Some(journal),
        manifest: None,
        allow_list: None,
        withheld: Withheld::default(),
    }
}

/// The writer of the copy with this key into `dir`.
fn writer(dir: &Path, key: u64, options: Options) -> Writer {
    Writer::new(spec(Tree::open(dir).expect("open"), key, options))
}

/// Writes a batch of entries with content; returns its counts, and path and operation of
/// each failure.
fn batch(writer: &Writer, entries: &[(Entry, &[u8])]) -> (Counts, Vec<String>) {
    let mut batch = Batch::default();
    for (entry, data) in entries {
        let content = match data.len() {
            0 => Content::None,
            len => Content::Inline { len: len as u32, digest: writer.options.hash.of(data) },
        };
        batch.push(entry, &content, data);
    }
    done(writer.run(WriteJob::Batch(batch.into_body()), &mut writer.walker()))
}

fn done(done: JobResult) -> (Counts, Vec<String>) {
    match done {
        JobResult::Batch(counts, troubles)
        | JobResult::File(_, counts, troubles)
        | JobResult::Settled(counts, troubles) => {
            (counts, troubles.into_iter().map(|t| format!("{} {}", t.path, t.op.name())).collect())
        }
        other => panic!("{other:?}"),
    }
}

fn settle(writer: &Writer, whole: bool) -> (Counts, Vec<String>) {
    done(writer.run(WriteJob::Settle { whole }, &mut writer.walker()))
}

/// A file of two blocks.
fn large(number: u64) -> Arc<Incoming> {
    Arc::new(Incoming { number, entry: entry("large", EntryKind::File, 2 * BLOCK as u64) })
}

/// Writes a block of ones.
fn block(writer: &Writer, file: &Arc<Incoming>, index: u64) -> Result<u64, Trouble> {
    let (data, offset) = (Buf::copy_of(&vec![1; BLOCK]), index * BLOCK as u64);
    let digest = writer.options.hash.of_block(&data, offset, file.entry.size);
    let job = WriteJob::Block { file: Arc::clone(file), offset, digest, data };
    match writer.run(job, &mut writer.walker()) {
        JobResult::Block(_, result) => result,
        other => panic!("{other:?}"),
    }
}

fn complete(writer: &Writer, file: &Arc<Incoming>) -> (Counts, Vec<String>) {
    done(writer.run(WriteJob::Complete(Arc::clone(file)), &mut writer.walker()))
}

/// Bitmap of the blocks that the writer offers to keep.
fn have(writer: &Writer, file: &Incoming) -> Vec<u8> {
    let mut batch = Batch::default();
    batch.push(&file.entry, &Content::Query(None), &[]);
    let job = WriteJob::Query { number: 0, batch: batch.into_body() };
    match writer.run(job, &mut writer.walker()) {
        JobResult::Query { wants, .. } => wants[0].have.to_vec(),
        other => panic!("{other:?}"),
    }
}

/// Reserved names in a directory.
fn own(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).expect("read").map(|e| e.expect("an entry").file_name());
    names.filter_map(|name| name.into_string().ok()).filter(|name| name.starts_with(".longhaul-")).collect()
}

#[test]
fn two_copies_of_the_same_files_write_separate_unfinished_files() {
    let dir = tempfile::tempdir().expect("a directory");
    let (one, other) = (writer(dir.path(), 1, Options::default()), writer(dir.path(), 2, Options::default()));
    let file = large(1);
    for index in 0..2 {
        block(&one, &file, index).expect("written");
    }
    // The other copy has written half of it when the first is complete.
    block(&other, &file, 0).expect("written");
    assert_eq!(complete(&one, &file).1, [""; 0]);
    assert!(fs::read(dir.path().join("large")).expect("there") == vec![1; 2 * BLOCK], "it is whole");
    block(&other, &file, 1).expect("written");
    assert_eq!(complete(&other, &file).1, [""; 0]);
    assert!(fs::read(dir.path().join("large")).expect("there") == vec![1; 2 * BLOCK], "it is whole");
}

#[test]
fn a_file_whose_declared_blocks_are_gone_is_not_completed() {
    type Spoil = fn(&Path);
    let remove: Spoil = |unfinished| fs::remove_file(unfinished).expect("removed");
    let replace: Spoil = |unfinished| {
        fs::remove_file(unfinished).expect("removed");
        fs::write(unfinished, vec![0; 2 * BLOCK]).expect("written");
    };
    let link: Spoil = |unfinished| {
        fs::hard_link(unfinished, unfinished.with_file_name("another name")).expect("linked");
    };
    for (what, spoil) in [("removed", remove), ("replaced", replace), ("linked", link)] {
        let dir = tempfile::tempdir().expect("a directory");
        let file = large(1);
        block(&writer(dir.path(), 1, Options::default()), &file, 0).expect("written");
        let again = writer(dir.path(), 1, Options::default());
        assert_eq!(have(&again, &file), [1], "the first block need not come");
        let unfinished = own(dir.path()).into_iter().find(|name| !name.contains("journal")).expect("there");
        spoil(&dir.path().join(unfinished));
        assert!(block(&again, &file, 1).is_err(), "{what}");
        assert_eq!(complete(&again, &file).1, ["large write"], "{what}");
        assert!(!dir.path().join("large").exists(), "{what}");
        let job = WriteJob::Abandon(Arc::clone(&file));
        again.run(job, &mut again.walker());
        let (counts, troubles) = settle(&again, true);
        assert_eq!((counts.files, troubles), (0, Vec::new()), "{what}");
    }
}

#[test]
fn an_unfinished_file_with_another_hard_link_is_not_continued() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = large(1);
    block(&writer(dir.path(), 1, Options::default()), &file, 0).expect("written");
    let unfinished = own(dir.path()).into_iter().find(|name| !name.contains("journal")).expect("there");
    fs::hard_link(dir.path().join(unfinished), dir.path().join("mine too")).expect("linked");
    assert_eq!(have(&writer(dir.path(), 1, Options::default()), &file), [0; 0], "it has two names");
}

#[test]
fn blocks_of_an_earlier_run_are_verified_from_the_device_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let (options, file) = (Options { verify: true, ..Options::default() }, large(1));
    block(&writer(dir.path(), 1, options), &file, 0).expect("written");
    let again = writer(dir.path(), 1, options);
    assert_eq!(have(&again, &file), [1]);
    let unfinished = own(dir.path()).into_iter().find(|name| !name.contains("journal")).expect("there");
    let torn = File::options().write(true).open(dir.path().join(unfinished)).expect("opened");
    torn.write_all_at(b"torn", 7).expect("written");
    // The file is not the one that was verified.
    assert!(block(&again, &file, 1).is_err() || complete(&again, &file).1 == ["large verify"]);
    assert!(!dir.path().join("large").exists());
}

#[test]
fn a_hard_link_to_a_file_that_changed_meanwhile_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let writer = writer(dir.path(), 1, Options::default());
    fs::write(dir.path().join("other"), "mine").expect("written");
    let mut newer = entry("first", EntryKind::File, 3);
    newer.mtime.secs += 1;
    let link = |name| (entry(name, EntryKind::HardLink(path("first")), 0), b"".as_slice());
    assert_eq!(batch(&writer, &[(newer, b"new"), link("other")]).1, [""; 0]);
    assert_eq!(settle(&writer, true).1, ["other write"]);
    assert_eq!(fs::read(dir.path().join("other")).expect("there"), b"mine");
}

#[test]
fn a_file_whose_metadata_cannot_be_set_is_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let xattrs = vec![(b"user.large".as_slice().into(), vec![7; 60 << 10].into_boxed_slice())];
    let (good, bad) =
        (entry("good", EntryKind::File, 1), Entry { xattrs, ..entry("bad", EntryKind::File, 1) });
    let writer = writer(dir.path(), 1, Options { xattrs: true, ..Options::default() });
    let set = rustix::fs::setxattr(dir.path(), "user.large", &[7; 60 << 10], rustix::fs::XattrFlags::empty());
    if set.is_ok() {
        longhaul_skip::skip!("the file system takes attributes of any size");
        return;
    }
    let (counts, troubles) = batch(&writer, &[(bad.clone(), b"1"), (good, b"2")]);
    assert_eq!((counts.files, troubles), (2, vec!["bad metadata".to_owned()]));
    assert!(!writer.is_full(), "there is room for everything else");
    assert_eq!(fs::read(dir.path().join("bad")).expect("there"), b"1");
    let times = fs::metadata(dir.path().join("bad")).expect("there");
    assert_eq!(std::os::unix::fs::MetadataExt::mtime(&times), 1_000_000_000, "the rest of it is set");
    let whole =
        Arc::new(Incoming { number: 3, entry: Entry { xattrs: bad.xattrs, ..large(3).entry.clone() } });
    for index in 0..2 {
        block(&writer, &whole, index).expect("written");
    }
    let (counts, troubles) = complete(&writer, &whole);
    assert_eq!((counts.files, troubles), (1, vec!["large metadata".to_owned()]));
    assert!(dir.path().join("large").exists());
}

#[test]
fn a_directory_replaces_a_file_also_if_its_entries_come_first() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir(dir.path().join("a")).expect("made");
    fs::write(dir.path().join("a/was-file"), "old").expect("written");
    fs::create_dir(dir.path().join("elsewhere")).expect("made");
    std::os::unix::fs::symlink("../elsewhere", dir.path().join("a/was-link")).expect("linked");
    let writer = writer(dir.path(), 1, Options::default());
    let file = |path| (entry(path, EntryKind::File, 3), b"new".as_slice());
    let (_, troubles) = batch(&writer, &[file("a/was-file/b/f"), file("a/was-link/b/f")]);
    assert_eq!(troubles, [""; 0]);
    for name in ["a/was-file", "a/was-file/b", "a/was-link", "a/was-link/b"] {
        assert_eq!(batch(&writer, &[(directory(name), b"")]).1, [""; 0]);
    }
    assert_eq!(settle(&writer, true).1, [""; 0]);
    for name in ["a/was-file/b/f", "a/was-link/b/f"] {
        assert_eq!(fs::read(dir.path().join(name)).expect("there"), b"new");
    }
    let elsewhere = fs::read_dir(dir.path().join("elsewhere")).expect("there");
    assert_eq!(elsewhere.count(), 0, "the target of a link is not written to");
}

#[test]
fn a_file_replaces_a_directory_that_delete_empties() {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["small", "large", "link"] {
        fs::create_dir_all(dir.path().join(name).join("deep")).expect("made");
        fs::write(dir.path().join(name).join("deep/old"), "old").expect("written");
    }
    fs::write(dir.path().join("gone"), "old").expect("written");
    let writer = writer(dir.path(), 1, Options { delete: true, ..Options::default() });
    let link = entry("link", EntryKind::Symlink(b"small".as_slice().into()), 0);
    let (counts, troubles) = batch(&writer, &[(entry("small", EntryKind::File, 3), b"new"), (link, b"")]);
    assert_eq!((counts.files, counts.others, troubles), (0, 0, Vec::new()), "not yet");
    for index in 0..2 {
        block(&writer, &large(1), index).expect("written");
    }
    assert_eq!(complete(&writer, &large(1)).1, [""; 0]);
    assert!(dir.path().join("small/deep/old").exists());
    let (counts, troubles) = settle(&writer, true);
    assert_eq!((counts.files, counts.others, counts.deleted, troubles), (2, 1, 7, Vec::new()));
    assert_eq!(fs::read(dir.path().join("small")).expect("there"), b"new");
    assert_eq!(fs::metadata(dir.path().join("large")).expect("there").len(), 2 * BLOCK as u64);
    assert!(dir.path().join("link").is_symlink());
    assert_eq!(own(dir.path()), [""; 0]);
}

#[test]
fn unfinished_files_of_changed_sources_are_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    let before = writer(dir.path(), 1, Options::default());
    block(&before, &large(1), 0).expect("written");
    drop(before);
    let other = writer(dir.path(), 2, Options::default());
    block(&other, &large(1), 0).expect("written");
    let again = writer(dir.path(), 1, Options::default());
    let mut newer = large(1).entry.clone();
    newer.mtime.secs += 1;
    let newer = Arc::new(Incoming { number: 1, entry: newer });
    for index in 0..2 {
        block(&again, &newer, index).expect("written");
    }
    complete(&again, &newer);
    assert_eq!(own(dir.path()).len(), 4, "two of each copy");
    settle(&again, true);
    assert_eq!(own(dir.path()).len(), 2, "the unfinished files of the other copy stay");
}

#[test]
fn blocks_recorded_with_another_checksum_are_sent_again() {
    let dir = tempfile::tempdir().expect("a directory");
    block(&writer(dir.path(), 1, Options::default()), &large(1), 0).expect("written");
    let tree = Tree::open(dir.path()).expect("open");
    let manifest = Some(Manifest::begin(&tree, None, b"list", 1).expect("a list"));
    let options = Options { hash: Hash::Strong, verify: true, ..Options::default() };
    let again = Writer::new(WriteSpec { manifest, ..spec(tree, 1, options) });
    assert_eq!(have(&again, &large(1)), [0; 0]);
    for index in 0..2 {
        block(&again, &large(1), index).expect("written");
    }
    assert_eq!(complete(&again, &large(1)).1, [""; 0]);
    assert_eq!(settle(&again, true).1, [""; 0]);
    let list = fs::read_to_string(dir.path().join("list")).expect("a list");
    assert_eq!(list, format!("{}  large\n", blake3::hash(&vec![1; 2 * BLOCK]).to_hex()));
}

/// Whether the answer to an existence query wants a file of content `data`.
fn wanted(writer: &Writer, entry: &Entry, data: &[u8]) -> bool {
    let mut batch = Batch::default();
    batch.push(entry, &Content::Query(Some(writer.options.hash.of(data))), &[]);
    let job = WriteJob::Query { number: 0, batch: batch.into_body() };
    match writer.run(job, &mut writer.walker()) {
        JobResult::Query { wants, .. } => !wants.is_empty(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn after_a_reboot_files_are_compared_by_content() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = entry("f", EntryKind::File, 3);
    assert!(!writer(dir.path(), 1, Options::default()).resumes());
    let there = |content: &str| {
        let path = dir.path().join("f");
        fs::write(&path, content).expect("written");
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 5);
        fs::File::options().write(true).open(path).expect("open").set_modified(time).expect("set");
    };
    // After a power failure: the size was flushed, the content was not.
    there("\0\0\0");
    let again = writer(dir.path(), 1, Options::default());
    assert!(again.resumes() && !again.by_content() && !wanted(&again, &file, b"new"), "the same boot");
    drop(again);
    let journal = own(dir.path()).pop().expect("a journal");
    let journal = fs::File::options().write(true).open(dir.path().join(journal)).expect("open");
    journal.write_all_at(b"another boot", 16).expect("written");
    let again = writer(dir.path(), 1, Options::default());
    assert!(again.by_content() && wanted(&again, &file, b"new"), "another boot");
    there("new");
    assert!(!wanted(&again, &file, b"new"), "it is whole");
}

/// Bytes that the kernel has read from devices for this thread, if it counts them.
fn fetched() -> u64 {
    let counters = fs::read_to_string("/proc/thread-self/io").unwrap_or_default();
    let read = counters.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    read.and_then(|bytes| bytes.parse().ok()).unwrap_or_default()
}

#[test]
fn small_files_are_verified_from_the_device() {
    const LEN: usize = 200 << 10;
    let dir = tempfile::tempdir().expect("a directory");
    // Skipped where the kernel does not count reads.
    let mut file =
        File::options().read(true).write(true).create_new(true).open(dir.path().join("x")).expect("x");
    file.write_all(&vec![1; LEN]).expect("written");
    let file = tree::File::from(file);
    flush_and_drop_cache(&file).expect("synchronised");
    let before = fetched();
    read_full(&file, &mut vec![0; LEN], 0).expect("read");
    if fetched() < before + LEN as u64 {
        longhaul_skip::skip!("reads of the device are not counted, or the file system is in memory");
        return;
    }
    let writer = writer(dir.path(), 1, Options { verify: true, ..Options::default() });
    let before = fetched();
    let (counts, troubles) = batch(&writer, &[(entry("small", EntryKind::File, LEN as u64), &vec![7; LEN])]);
    assert_eq!((counts.files, troubles), (1, Vec::new()));
    assert!(fetched() >= before + LEN as u64, "it was read from the page cache");
}

#[test]
fn deferred_entries_are_stored_once_and_within_a_limit() {
    let mut last = Deferred::default();
    let xattrs = || vec![((*b"user.x").into(), vec![1; 60_000].into_boxed_slice())];
    for kind in [EntryKind::Directory, EntryKind::HardLink(RelPath::root())] {
        for _ in 0..1000 {
            let entry = Entry { xattrs: xattrs(), ..entry("d", kind.clone(), 0) };
            last.add(entry.path.clone(), entry).expect("room");
        }
    }
    assert_eq!((last.directories.len(), last.links.len()), (1, 1));
    assert!((120_000..130_000).contains(&last.bytes), "{}", last.bytes);
    last.bytes = DEFERRED_BYTES - 1000;
    let long = Entry { xattrs: xattrs(), ..entry("e", EntryKind::Directory, 0) };
    assert!(last.add(long.path.clone(), long).is_err());
    let short = entry("f", EntryKind::Directory, 0);
    last.add(short.path.clone(), short).expect("room for that");
    let late = || {
        let (sent, temporary) = (path("g"), vec![b't'; 100]);
        DeferredFile { path: path("g"), sent, temporary, digest: None, is_file: true, flaw: None }
    };
    let waiting = (0..1000).take_while(|_| last.add_blocked(late()).is_ok()).count();
    assert!((1..10).contains(&waiting), "{waiting}");
}

#[test]
fn the_bitmap_of_present_blocks_is_bounded_for_any_size() {
    const HUGE: u64 = 4 << 40;
    let dir = tempfile::tempdir().expect("a directory");
    let tree = Tree::open(dir.path()).expect("open");
    let probe = File::create(dir.path().join("probe")).expect("made");
    if probe.set_len(HUGE).is_err() {
        longhaul_skip::skip!("the file system has no files of 4 TiB");
        return;
    }
    let writer = || Writer::new(spec(tree.clone(), 1, Options::default()));
    let file = Arc::new(Incoming { number: 1, entry: entry("huge", EntryKind::File, HUGE) });
    let (data, first) = (longhaul_engine::Buf::copy_of(&vec![1; BLOCK]), writer());
    for block in [0, 3, (HUGE / BLOCK as u64) - 1] {
        let (offset, file) = (block * BLOCK as u64, Arc::clone(&file));
        let digest = Hash::Quick.of_block(&data, offset, HUGE);
        let job = WriteJob::Block { file, offset, digest, data: data.clone() };
        let done = first.run(job, &mut first.walker());
        assert!(matches!(done, JobResult::Block(1, Ok(_))), "{done:?}");
    }
    drop(first);
    let (mut batch, again) = (Batch::default(), writer());
    batch.push(&file.entry, &Content::Query(None), &[]);
    let JobResult::Query { wants, .. } =
        again.run(WriteJob::Query { number: 0, batch: batch.into_body() }, &mut again.walker())
    else {
        panic!("a query is answered");
    };
    // An answer covers the first 512 GiB.
    assert_eq!(wants[0].have.len(), HAVE_MAX);
    assert_eq!((wants[0].have[0], wants[0].have[1]), (0b1001, 0));
}

#[test]
fn nothing_is_deleted_after_an_entry_that_is_not_on_the_allow_list() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir(dir.path().join("tree")).expect("made");
    fs::write(dir.path().join("tree/kept"), "1").expect("written");
    let request =
        crate::wire::Request { sources: vec![b"tree".to_vec()], recursive: true, ..Default::default() };
    for query in [false, true] {
        let tree = Tree::open(dir.path()).expect("open");
        let options = Options { delete: true, ..Options::default() };
        let allow_list = Some(AllowList::new(&request, Filter::default()));
        let writer = Writer::new(WriteSpec { allow_list, ..spec(tree, 1, options) });
        let mut body = Batch::default();
        for name in ["tree/new", ".bashrc", "tree/kept"] {
            let content = if query { Content::Query(None) } else { Content::None };
            body.push(&entry(name, EntryKind::File, 0), &content, &[]);
        }
        let body = body.into_body();
        let job = if query { WriteJob::Query { number: 0, batch: body } } else { WriteJob::Batch(body) };
        writer.run(job, &mut writer.walker());
        assert!(writer.violation().is_some());
        settle(&writer, true);
        assert!(dir.path().join("tree/kept").exists() && !dir.path().join(".bashrc").exists(), "{query}");
    }
}

#[test]
fn an_existence_query_sets_no_attributes_without_the_option() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("f"), "1").expect("written");
    if rustix::fs::setxattr(dir.path(), "user.a", b"1", rustix::fs::XattrFlags::empty()).is_err() {
        longhaul_skip::skip!("the file system has no extended attributes");
        return;
    }
    let xattrs = vec![(b"user.a".as_slice().into(), b"1".as_slice().into())];
    let asked = Entry { mode: 0o600, xattrs, ..entry("f", EntryKind::File, 1) };
    for (xattrs, has) in [(false, false), (true, true)] {
        let options = Options { compare: Compare::Size, xattrs, ..Options::default() };
        assert!(!wanted(&writer(dir.path(), 1, options), &asked, b"1"));
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(dir.path().join("f")).expect("there"));
        assert_eq!(mode & 0o7777, 0o600);
        let there = rustix::fs::getxattr(dir.path().join("f"), "user.a", &mut [0; 8]);
        assert_eq!(there.is_ok(), has);
    }
}

#[test]
fn the_first_of_two_names_that_fold_to_one_is_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = spec(Tree::open(dir.path()).expect("open"), 1, Options::default());
    let writer = Writer::folding(spec, Some(FoldedNames::default()));
    let file = |name| entry(name, EntryKind::File, 1);
    let written = batch(&writer, &[(file("File"), b"1"), (file("file"), b"2"), (file("other"), b"3")]);
    assert_eq!((written.0.files, written.1), (2, vec!["file write".to_owned()]));
    assert_eq!(fs::read(dir.path().join("File")).expect("there"), b"1");
    assert!(!dir.path().join("file").exists());
}
