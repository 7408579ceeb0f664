use super::*;
use crate::space::NamespaceLabel;
use std::collections::BTreeSet;

/// How the machine ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// Before the step.
    Before,
    /// In the middle of the step, where it has one.
    Within,
    /// After the step; of names, none that was not made durable is kept.
    Unsynced,
}

/// The file system until a crash at a given step. From then on every step fails.
struct Crashing {
    state: Arc<Mutex<Crash>>,
}

struct Crash {
    /// Steps until then.
    left: usize,
    end: End,
    crashed: bool,
    /// Changes of names that are not durable yet.
    unsynced: Vec<Unsynced>,
    /// Copies of files, by number.
    grave: tempfile::TempDir,
    buried: usize,
}

/// A name that a file has now, and the file that had it before: a copy, and the name.
struct Unsynced {
    now: Option<PathBuf>,
    before: Option<(PathBuf, PathBuf)>,
}

impl Crash {
    fn unsynced(&mut self, now: Option<&Path>, before: Option<(PathBuf, PathBuf)>) {
        self.unsynced.push(Unsynced { now: now.map(Path::to_owned), before });
    }

    /// A copy of the file at a path, if there is one.
    fn bury(&mut self, path: &Path) -> Option<(PathBuf, PathBuf)> {
        self.buried += 1;
        let grave = self.grave.path().join(self.buried.to_string());
        std::fs::hard_link(path, &grave).ok().map(|()| (grave, path.to_owned()))
    }

    /// A loss of power: takes back changes that are not durable, the last first.
    fn lose(&mut self) {
        for Unsynced { now, before } in std::mem::take(&mut self.unsynced).into_iter().rev() {
            if let Some(now) = now {
                let _ = std::fs::remove_file(now);
            }
            if let Some((grave, path)) = before {
                std::fs::rename(grave, path).expect("taken back");
            }
        }
    }
}

impl Crashing {
    fn new(left: usize, end: End) -> (Box<Crashing>, Arc<Mutex<Crash>>) {
        let grave = tempfile::tempdir_in(root()).expect("a directory");
        let crash = Crash { left, end, crashed: false, unsynced: Vec::new(), grave, buried: 0 };
        let state = Arc::new(Mutex::new(crash));
        (Box::new(Crashing { state: Arc::clone(&state) }), state)
    }

    /// One step: whole or not, or `half` of it.
    fn step(&self, half: impl FnOnce(), whole: impl FnOnce(&mut Crash) -> io::Result<()>) -> io::Result<()> {
        let mut state = self.state.lock().expect("no panic");
        let dead = || io::Error::other("the machine has crashed");
        if state.crashed {
            return Err(dead());
        }
        if state.left > 0 {
            state.left -= 1;
            return whole(&mut state);
        }
        state.crashed = true;
        match state.end {
            End::Before => {}
            End::Within => half(),
            End::Unsynced => {
                whole(&mut state)?;
                state.lose();
            }
        }
        Err(dead())
    }
}

impl Files for Crashing {
    fn make(&self, path: &Path, len: u64, reserve: bool) -> io::Result<()> {
        let half = || drop(std::fs::write(path, b"half"));
        self.step(half, |crash| {
            FileSystem.make(path, len, reserve)?;
            crash.unsynced(Some(path), None);
            Ok(())
        })
    }

    fn extend(&self, path: &Path, len: u64, reserve: bool) -> io::Result<()> {
        let half = || drop(FileSystem.extend(path, len - 512, false));
        self.step(half, |_| FileSystem.extend(path, len, reserve))
    }

    /// A copy: it is the order of steps that is tested, also where no file system shares blocks.
    fn share(&self, from: &Path, to: &Path) -> io::Result<()> {
        let half = || drop(std::fs::write(to, b"half"));
        self.step(half, |crash| {
            std::fs::copy(from, to)?;
            crash.unsynced(Some(to), None);
            Ok(())
        })
    }

    fn cut(&self, path: &Path, len: u64) -> io::Result<()> {
        self.step(|| {}, |_| FileSystem.cut(path, len))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let half = || drop(std::fs::write(path, &bytes[..bytes.len() / 2]));
        self.step(half, |crash| {
            FileSystem.write(path, bytes)?;
            crash.unsynced(Some(path), None);
            Ok(())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step(
            || {},
            |crash| {
                let before = crash.bury(to);
                let moved = crash.bury(from);
                FileSystem.rename(from, to)?;
                crash.unsynced(None, moved);
                crash.unsynced(Some(to), before);
                Ok(())
            },
        )
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step(
            || {},
            |crash| {
                let before = crash.bury(path);
                FileSystem.remove(path)?;
                crash.unsynced(None, before);
                Ok(())
            },
        )
    }

    fn sync(&self, directory: &Path) -> io::Result<()> {
        self.step(
            || {},
            |crash| {
                FileSystem.sync(directory)?;
                crash.unsynced.clear();
                Ok(())
            },
        )
    }
}

/// Where tests have their files, and copies of them on the same file system: in memory where this
/// machine has such a one, since it is the order of steps that is tested.
fn root() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

const HOST: &str = "nqn.2014-08.org.example:a";

fn label(job: &str) -> NamespaceLabel {
    NamespaceLabel { hosts: vec![HOST.into()], job: job.into(), ..NamespaceLabel::default() }
}

fn new(blocks: u64, thin: bool) -> NewNamespace {
    let label = NamespaceLabel { thin, ..label("one") };
    NewNamespace { blocks, block_shift: 12, shared: true, label }
}

/// What there is: by NSID the identity, the size, and the job of the label.
fn content(space: &DirSpace) -> Vec<(u32, Uuid, u64, String)> {
    let of = |ns: SpaceNamespace| (ns.nsid, ns.uuid, ns.device.info().size, ns.label.job);
    space.namespaces().into_iter().map(of).collect()
}

/// The directory has the files of its namespaces, of their sizes, and no others.
fn check_files(directory: &Path, space: &DirSpace) {
    let mut expected: BTreeSet<String> = [MARK.to_owned()].into();
    for ns in space.namespaces() {
        expected.extend([DATA, RECORD].map(|extension| format!("{}.{extension}", ns.uuid)));
        let data = directory.join(format!("{}.{DATA}", ns.uuid));
        let len = std::fs::metadata(data).expect("its content").len();
        assert_eq!(len, ns.device.info().size, "namespace {}", ns.nsid);
    }
    let names = std::fs::read_dir(directory).expect("readable");
    let names = names.map(|entry| entry.expect("readable").file_name().into_string().expect("text"));
    assert_eq!(names.collect::<BTreeSet<_>>(), expected);
}

type Change = fn(&DirSpace) -> Result<(), SpaceError>;

/// The changes that a crash ends at each step; each begins with the content of [`before`].
fn changes() -> Vec<(&'static str, Change)> {
    vec![
        ("create", |space| space.create(3, &new(2, false)).map(drop)),
        ("create thin", |space| space.create(3, &new(2, true)).map(drop)),
        ("delete", |space| space.delete(2)),
        ("label", |space| space.set_label(2, &label("another"))),
        ("grow", |space| space.grow(2, 5 << 12)),
        ("clone", |space| space.clone_of(2, 3, &label("clone")).map(drop)),
        ("try a clone", |space| space.check_clones()),
    ]
}

/// A directory with namespaces 1 and 2, and its content.
fn before() -> (tempfile::TempDir, Vec<(u32, Uuid, u64, String)>) {
    let directory = tempfile::tempdir_in(root()).expect("a directory");
    let space = DirSpace::open(directory.path(), None).expect("opened");
    space.create(1, &new(1, true)).expect("made");
    space.create(2, &new(3, true)).expect("made");
    let content = content(&space);
    (directory, content)
}

#[test]
fn a_change_that_a_crash_ends_at_any_step_is_made_wholly_or_not_at_all() {
    for (name, change) in changes() {
        let (directory, _) = before();
        let (whole, _) = Crashing::new(usize::MAX, End::Before);
        let space = DirSpace::open_with(directory.path(), None, whole).expect("opened");
        change(&space).expect("done");
        let shape = |content: Vec<(u32, Uuid, u64, String)>| -> Vec<(u32, u64, String)> {
            content.into_iter().map(|(nsid, _, size, job)| (nsid, size, job)).collect()
        };
        let done = shape(content(&space));
        for end in [End::Before, End::Within, End::Unsynced] {
            let mut steps = 0;
            loop {
                let at = format!("{name}, {end:?} step {steps}");
                let (directory, was) = before();
                let (files, state) = Crashing::new(steps, end);
                let space = DirSpace::open_with(directory.path(), None, files).expect("opened");
                let result = change(&space);
                let crashed = state.lock().expect("no panic").crashed;
                drop(space);
                if end == End::Unsynced {
                    // Without a crash before the acknowledgement there is one after it.
                    state.lock().expect("no panic").lose();
                }
                let space = DirSpace::open(directory.path(), None).expect("opened after the crash");
                let is = content(&space);
                check_files(directory.path(), &space);
                assert_eq!(is[0], was[0], "{at}: the other one");
                let is = shape(is);
                if result.is_ok() {
                    assert_eq!(is, done, "{at}: it was acknowledged");
                } else {
                    assert!(crashed, "{at}: {result:?}");
                    assert!(is == shape(was) || is == done, "{at}: {is:?}");
                }
                if !crashed {
                    assert!(steps > 2, "{at}: it has steps");
                    break;
                }
                steps += 1;
            }
        }
    }
}

/// A second crash ends the next start, and the start after that completes the change.
#[test]
fn a_crash_while_another_one_is_cleared_up_is_no_worse() {
    for (name, change) in changes() {
        for first in 0..12 {
            for second in 0..4 {
                let (directory, was) = before();
                let (files, _) = Crashing::new(first, End::Before);
                let space = DirSpace::open_with(directory.path(), None, files).expect("opened");
                let _ = change(&space);
                drop(space);
                let (files, _) = Crashing::new(second, End::Within);
                drop(DirSpace::open_with(directory.path(), None, files));
                let space = DirSpace::open(directory.path(), None).expect("opened");
                check_files(directory.path(), &space);
                assert_eq!(content(&space)[0], was[0], "{name}, {first} and {second}");
            }
        }
    }
}

#[test]
fn a_thousand_namespaces_leave_nothing() {
    let directory = tempfile::tempdir_in(root()).expect("a directory");
    let space = DirSpace::open(directory.path(), Some(1 << 30)).expect("opened");
    let free = space.capacity().expect("known").unallocated;
    let identities: BTreeSet<Uuid> =
        (1..=1000).map(|nsid| space.create(nsid, &new(1, true)).expect("made").uuid).collect();
    assert_eq!((identities.len(), space.namespaces().len()), (1000, 1000));
    (1..=1000).for_each(|nsid| space.delete(nsid).expect("removed"));
    check_files(directory.path(), &space);
    assert_eq!(space.capacity().expect("known").unallocated.min(1 << 30), free.min(1 << 30));
    assert!(matches!(space.delete(1), Err(SpaceError::NotFound(1))));
}

#[test]
fn a_quota_is_not_exceeded_and_what_is_there_stays() {
    let directory = tempfile::tempdir_in(root()).expect("a directory");
    let space = DirSpace::open(directory.path(), Some(10 << 12)).expect("opened");
    assert_eq!(space.capacity().expect("known"), SpaceCapacity { total: 10 << 12, unallocated: 10 << 12 });
    space.create(1, &new(6, false)).expect("made");
    assert_eq!(space.capacity().expect("known").unallocated, 4 << 12);
    assert!(matches!(space.create(2, &new(5, false)), Err(SpaceError::Full(_))));
    space.create(2, &new(50, true)).expect("a thin one takes what is written to it");
    assert!(matches!(space.grow(1, 11 << 12), Err(SpaceError::Full(_))));
    space.grow(1, 10 << 12).expect("as much as there is");
    assert!(matches!(space.grow(1, 9 << 12), Err(SpaceError::Invalid(_))));
    check_files(directory.path(), &space);
    drop(space);
    let space = DirSpace::open(directory.path(), Some(10 << 12)).expect("opened");
    assert_eq!(content(&space).iter().map(|one| one.2 >> 12).collect::<Vec<_>>(), [10, 50]);
}

#[test]
fn a_directory_with_other_files_and_one_that_is_served_are_refused() {
    let directory = tempfile::tempdir_in(root()).expect("a directory");
    let space = DirSpace::open(&directory.path().join("made"), None).expect("made");
    let twice = DirSpace::open(&directory.path().join("made"), None).expect_err("in use");
    assert!(twice.to_string().contains("served by another target"), "{twice}");
    drop(space);
    let foreign = DirSpace::open(directory.path(), None).expect_err("not empty");
    assert!(foreign.to_string().contains("empty directory"), "{foreign}");
}

#[test]
fn a_damaged_record_costs_its_namespace_and_no_other() {
    let (directory, was) = before();
    let record = directory.path().join(format!("{}.{RECORD}", was[1].1));
    let mut bytes = std::fs::read(&record).expect("a record");
    bytes[40] ^= 1;
    std::fs::write(&record, bytes).expect("written");
    let space = DirSpace::open(directory.path(), None).expect("opened");
    assert_eq!(content(&space), was[..1]);
    let data = directory.path().join(format!("{}.{DATA}", was[1].1));
    assert!(data.exists(), "its content is not touched");
    drop(space);
    std::fs::remove_file(&record).expect("removed");
    drop(DirSpace::open(directory.path(), None).expect("opened"));
    assert!(data.exists(), "nor without a record, which no crash leaves");
}

/// Read and write through the device of a namespace, as hosts do.
fn with_device<T: 'static>(
    space: &DirSpace,
    nsid: u32,
    run: impl AsyncFnOnce(std::rc::Rc<dyn longhaul_block::BlockIo>) -> T + 'static,
) -> T {
    let found = space.namespaces().into_iter().find(|namespace| namespace.nsid == nsid).expect("there");
    let engine = longhaul_engine::Engine::new(&longhaul_engine::Config::default()).expect("an engine");
    engine.block_on(async move { run(found.device.open().await.expect("opened")).await })
}

fn write(space: &DirSpace, nsid: u32, byte: u8) {
    let written = with_device(space, nsid, async move |io| {
        let block = longhaul_engine::Buf::copy_of(&[byte; 4096]);
        io.write(4096, block, longhaul_block::WriteFlags::default()).await
    });
    written.expect("written");
}

fn read(space: &DirSpace, nsid: u32) -> [u8; 2] {
    with_device(space, nsid, async |io| {
        let read = io.read(0, longhaul_engine::BufMut::zeroed(8192)).await.expect("read");
        [read[4095], read[4096]]
    })
}

/// A clone where files share blocks; a copy shows the rest of it elsewhere.
fn check_a_clone(space: &DirSpace) {
    space.create(1, &new(16, false)).expect("made");
    write(space, 1, 7);
    space.check_clones().expect("tried");
    let clone = space.clone_of(1, 2, &label("clone")).expect("cloned");
    assert_eq!((clone.label.job.as_str(), clone.label.thin, clone.shared), ("clone", true, true));
    assert_eq!(clone.device.info().size, 16 << 12);
    assert_eq!(read(space, 2), [0, 7]);
    write(space, 1, 8);
    write(space, 2, 9);
    assert_eq!((read(space, 1), read(space, 2)), ([0, 8], [0, 9]));
    space.delete(1).expect("removed");
    assert_eq!(read(space, 2), [0, 9]);
    assert!(matches!(space.clone_of(1, 3, &label("none")), Err(SpaceError::NotFound(1))));
    assert!(matches!(space.clone_of(2, 2, &label("twice")), Err(SpaceError::Invalid(_))));
}

#[test]
fn a_clone_has_what_was_written_before_it_and_a_life_of_its_own() {
    let directory = tempfile::tempdir_in(root()).expect("a directory");
    let (files, _) = Crashing::new(usize::MAX, End::Before);
    let space = DirSpace::open_with(directory.path(), None, files).expect("opened");
    check_a_clone(&space);
    check_files(directory.path(), &space);
}

#[test]
fn a_clone_shares_blocks_on_xfs() {
    let Some(xfs) = longhaul_skip::Xfs::mounted(512 << 20) else { return };
    let space = DirSpace::open(xfs.path(), None).expect("opened");
    check_a_clone(&space);
    space.create(3, &new(25_600, false)).expect("made");
    let free = || space.capacity().expect("known").unallocated;
    let before = free();
    // Of what is only reserved nothing is shared: it is written first.
    std::fs::write(space.path(space.entry(3).expect("there").record.uuid, DATA), vec![1; 100 << 20])
        .expect("ok");
    space.clone_of(3, 4, &label("clone")).expect("cloned");
    assert!(before - free() < 10 << 20, "it has taken {} bytes", before - free());
    assert!(space.namespaces().len() == 3);
    check_files(xfs.path(), &space);
}

#[test]
fn a_file_system_that_shares_no_blocks_is_named_before_anything_is_made() {
    let directory = tempfile::tempdir_in(root()).expect("a directory");
    let space = DirSpace::open(directory.path(), None).expect("opened");
    space.create(1, &new(16, true)).expect("made");
    match space.check_clones() {
        Ok(()) => longhaul_skip::skip!("files share blocks in {}", root().display()),
        Err(e) => assert!(matches!(&e, SpaceError::NoClones(why) if why.contains("share no blocks")), "{e}"),
    }
    assert!(matches!(space.clone_of(1, 2, &label("clone")), Err(SpaceError::NoClones(_))));
    check_files(directory.path(), &space);
}
