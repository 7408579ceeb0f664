//! Trees of files that change all the time, several at once.
//!
//! Invariants:
//! - each worker has a tree of its own, and changes it as its seed says: the expected content is
//!   known by doing the same in memory alone;
//! - in a tree that all of them share they get in each other's way on purpose: the only expectation
//!   there is that the file system survives.

mod model;

use crate::random::Random;
use anyhow::{Context, Result, ensure};
use model::{Change, Model, Node};
use rustix::fs::XattrFlags;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

/// Extended attribute that files get.
const ATTRIBUTE: &str = "user.torture";
/// Names that workers fight for.
const SHARED: u64 = 24;
/// One of so many changes of a worker is to the shared tree.
const SHARED_PART: u64 = 8;
/// A worker makes one of this many changes durable.
const SYNC_PART: u64 = 16;

/// How a tree is worked on.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Workers at the same time.
    pub workers: u64,
    /// Changes that each of them makes.
    pub changes: u64,
    /// What determines them.
    pub seed: u64,
}

impl Plan {
    fn place(&self, dir: &Path, worker: u64) -> PathBuf {
        dir.join(format!("worker-{worker}"))
    }

    fn model(&self, worker: u64) -> Model {
        Model::new(self.seed.wrapping_mul(0x1_0001).wrapping_add(worker))
    }

    /// Works below `dir`, which is there.
    ///
    /// # Errors
    /// Something failed that must not.
    pub fn run(&self, dir: &Path) -> Result<()> {
        let shared = dir.join("shared");
        fs::create_dir_all(&shared)?;
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.workers)
                .map(|worker| {
                    scope.spawn({
                        let shared = &shared;
                        move || self.work(dir, shared, worker)
                    })
                })
                .collect();
            workers.into_iter().try_for_each(|worker| match worker.join() {
                Ok(result) => result,
                Err(_) => anyhow::bail!("a worker panicked"),
            })
        })
    }

    fn work(&self, dir: &Path, shared: &Path, worker: u64) -> Result<()> {
        let place = self.place(dir, worker);
        fs::create_dir(&place)?;
        let mut model = self.model(worker);
        let mut random = Random::new(self.seed ^ worker << 32);
        for number in 1..=self.changes {
            let change = model.choose();
            let told = || format!("worker {worker}, seed {}, change {number}: {change:?}", self.seed);
            make(&place, &change).with_context(told)?;
            model.apply(&change);
            if number % SHARED_PART == 0 {
                fight(shared, &mut random).with_context(told)?;
            }
            if number % SYNC_PART == 0 {
                File::open(&place)?.sync_all().with_context(told)?;
            }
        }
        Ok(())
    }

    /// Compares the files below `dir` with the expected ones after [`Plan::run`]; returns the
    /// number of files.
    ///
    /// # Errors
    /// The first difference.
    pub fn check(&self, dir: &Path) -> Result<usize> {
        let mut files = 0;
        for worker in 0..self.workers {
            let mut model = self.model(worker);
            for _ in 0..self.changes {
                let change = model.choose();
                model.apply(&change);
            }
            files += compare(&self.place(dir, worker), &model)
                .with_context(|| format!("worker {worker}, seed {}", self.seed))?;
        }
        // Whatever is there can be read.
        for entry in fs::read_dir(dir.join("shared"))? {
            match fs::read(entry?.path()) {
                Err(e) if !matches!(e.kind(), ErrorKind::NotFound | ErrorKind::IsADirectory) => Err(e)?,
                _ => {}
            }
        }
        Ok(files)
    }
}

/// Does a change to the file system.
fn make(place: &Path, change: &Change) -> Result<()> {
    let at = |path: &str| place.join(path);
    let writer = |path: &str| OpenOptions::new().write(true).open(at(path));
    match change {
        Change::Directory(path) => fs::create_dir(at(path))?,
        Change::Create(path, bytes) => {
            let file = File::create_new(at(path))?;
            file.write_all_at(bytes, 0)?;
        }
        Change::Write(path, offset, bytes) => writer(path)?.write_all_at(bytes, *offset)?,
        Change::Truncate(path, len) => writer(path)?.set_len(*len)?,
        Change::Link(old, new) => fs::hard_link(at(old), at(new))?,
        Change::Symlink(to, path) => symlink(to, at(path))?,
        Change::Rename(old, new) => fs::rename(at(old), at(new))?,
        Change::Remove(path) => fs::remove_file(at(path))?,
        Change::RemoveDirectory(path) => fs::remove_dir(at(path))?,
        Change::Attribute(path, value) => {
            rustix::fs::setxattr(at(path), ATTRIBUTE, value, XattrFlags::empty())?;
        }
        Change::Sync(path) => writer(path)?.sync_all()?,
        Change::Read(path, bytes) => ensure!(fs::read(at(path))? == *bytes, "{path}: other content"),
    }
    Ok(())
}

/// Makes, moves or removes one of the names that others make, move and remove.
fn fight(shared: &Path, random: &mut Random) -> Result<()> {
    let mut name = || shared.join(format!("name-{}", random.within(0..=SHARED - 1)));
    let (one, two) = (name(), name());
    let len = random.within(0..=70_000) as usize;
    let result = match random.within(0..=6) {
        0 | 1 => fs::write(&one, random.bytes(len)),
        2 => fs::rename(&one, &two),
        3 => fs::hard_link(&one, &two),
        4 => fs::create_dir(&one),
        5 => fs::remove_dir(&one),
        _ => fs::remove_file(&one),
    };
    match result.map_err(|e| (e.kind(), e)) {
        Ok(()) => Ok(()),
        // Errors that another worker's change meanwhile explains, and no others.
        Err((
            ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::IsADirectory
            | ErrorKind::NotADirectory
            | ErrorKind::DirectoryNotEmpty
            | ErrorKind::PermissionDenied,
            _,
        )) => Ok(()),
        Err((_, e)) => Err(e.into()),
    }
}

/// Compares a tree; says how many files are in it.
fn compare(place: &Path, model: &Model) -> Result<usize> {
    let mut found = Vec::new();
    walk(place, "", &mut found)?;
    found.sort();
    let must: Vec<&String> = model.paths().collect();
    for path in &found {
        ensure!(model.node(path).is_some(), "{path} is there, and must not be");
    }
    for path in &must {
        ensure!(found.binary_search(path).is_ok(), "{path} is not there");
    }
    for path in &found {
        let at = place.join(path);
        match model.node(path) {
            Some(Node::Symlink(to)) => {
                ensure!(fs::read_link(&at)? == Path::new(to), "{path} leads elsewhere");
            }
            Some(Node::File(number)) => {
                let file = model.file(*number);
                ensure!(fs::read(&at)? == file.bytes, "{path}: other content");
                let mut value = vec![0; 1024];
                let len = match rustix::fs::getxattr(&at, ATTRIBUTE, &mut value[..]) {
                    Err(rustix::io::Errno::NODATA) => None,
                    other => Some(other?),
                };
                let value = len.map(|len| &value[..len]);
                ensure!(value == file.attribute.as_deref(), "{path}: another attribute");
            }
            Some(Node::Directory) | None => {}
        }
    }
    Ok(found.len())
}

fn walk(place: &Path, below: &str, found: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(place.join(below))? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().context("a name that the load did not give")?;
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        if entry.file_type()?.is_dir() {
            walk(place, &path, found)?;
        }
        found.push(path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan = Plan { workers: 3, changes: 400, seed: 5 };

    fn worked() -> tempfile::TempDir {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
        PLAN.run(dir.path()).unwrap_or_else(|e| panic!("{e:?}"));
        dir
    }

    fn wrong(dir: &tempfile::TempDir) -> String {
        format!("{:#}", PLAN.check(dir.path()).expect_err("the tree has changed"))
    }

    #[test]
    fn what_was_done_is_there() {
        let dir = worked();
        assert!(PLAN.check(dir.path()).unwrap_or_else(|e| panic!("{e:?}")) > 100);
    }

    #[test]
    fn what_is_missing_added_or_changed_is_found() {
        let dir = worked();
        let place = PLAN.place(dir.path(), 1);
        let extra = place.join("extra");
        fs::write(&extra, "x").expect("written");
        assert!(wrong(&dir).contains("extra is there"), "{}", wrong(&dir));
        fs::remove_file(&extra).expect("removed");
        PLAN.check(dir.path()).unwrap_or_else(|e| panic!("{e:?}"));
        let mut found = Vec::new();
        walk(&place, "", &mut found).expect("a tree");
        let full =
            |path: &&String| fs::symlink_metadata(place.join(path)).is_ok_and(|m| m.is_file() && m.len() > 0);
        let file = place.join(found.iter().find(full).expect("a file with something in it"));
        let content = fs::read(&file).expect("read");
        fs::write(&file, [&content[1..], &[0]].concat()).expect("written");
        assert!(wrong(&dir).contains("other content"), "{}", wrong(&dir));
        fs::remove_file(&file).expect("removed");
        assert!(wrong(&dir).contains("is not there"), "{}", wrong(&dir));
    }
}
