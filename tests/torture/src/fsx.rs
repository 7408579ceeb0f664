//! Everything that can be done to one file, compared with memory.
//!
//! Invariants:
//! - `good` is what the file must read as, to its last byte, after each step;
//! - what a step does is determined by the seed and by the steps before it.

use crate::map::Map;
use crate::random::Random;
use anyhow::{Context, Result, ensure};
use rustix::fs::{Advice, FallocateFlags, copy_file_range, fadvise, fallocate};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Longest file, in bytes.
const FILE_MAX: u64 = 2 << 20;
/// Most bytes of one step.
const STEP_MAX: u64 = 256 << 10;
/// What direct I/O and changes of a file's structure are aligned to: pages,
/// which are blocks of the file systems here.
const BLOCK: u64 = 4096;
/// Number of last steps that a failure report lists.
const TOLD: usize = 12;

/// A change of the file.
#[derive(Clone, Copy, Debug)]
enum Step {
    Read {
        at: u64,
        len: u64,
    },
    ReadMapped {
        at: u64,
        len: u64,
    },
    /// Past the page cache: what the device has.
    ReadDirect {
        at: u64,
        len: u64,
    },
    Write {
        at: u64,
        len: u64,
    },
    WriteMapped {
        at: u64,
        len: u64,
    },
    WriteDirect {
        at: u64,
        len: u64,
    },
    Truncate {
        len: u64,
    },
    Punch {
        at: u64,
        len: u64,
    },
    Zero {
        at: u64,
        len: u64,
    },
    Allocate {
        at: u64,
        len: u64,
    },
    /// Removes blocks; the data behind them moves.
    Collapse {
        at: u64,
        len: u64,
    },
    /// Puts blocks of zeroes in.
    Insert {
        at: u64,
        len: u64,
    },
    Copy {
        from: u64,
        to: u64,
        len: u64,
    },
    Sync,
    /// Closes it, forgets what memory has of it, opens it again.
    Reopen,
}

/// A file under test.
#[derive(Debug)]
pub struct Fsx {
    path: PathBuf,
    file: File,
    direct: File,
    good: Vec<u8>,
    random: Random,
    seed: u64,
    done: u64,
    last: VecDeque<Step>,
    /// What this file system does not do, by the name of the step.
    refused: Vec<&'static str>,
}

impl Fsx {
    /// Makes an empty file at `path`, on a file system that has direct I/O.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(path: &Path, seed: u64) -> Result<Fsx> {
        File::create(path).with_context(|| format!("making {}", path.display()))?;
        let (file, direct) = open(path)?;
        let random = Random::new(seed);
        let (good, last, refused) = (Vec::new(), VecDeque::new(), Vec::new());
        Ok(Fsx { path: path.to_owned(), file, direct, good, random, seed, done: 0, last, refused })
    }

    /// Executes so many steps, and compares the whole file at the end.
    ///
    /// # Errors
    /// The content is wrong: where, and the steps that led to it.
    pub fn run(&mut self, steps: u64) -> Result<()> {
        for _ in 0..steps {
            let step = self.choose();
            self.note(step);
            self.perform(step).with_context(|| self.story())?;
        }
        self.perform(Step::Reopen).and_then(|()| self.check()).with_context(|| self.story())
    }

    /// Steps that this file system has refused, such as `Collapse`.
    pub fn refused(&self) -> &[&'static str] {
        &self.refused
    }

    /// The expected content of the file.
    pub fn content(&self) -> &[u8] {
        &self.good
    }

    /// Compares the whole file with its expected content.
    ///
    /// # Errors
    /// The first difference.
    pub fn check(&self) -> Result<()> {
        let size = self.file.metadata()?.len();
        ensure!(size == self.good.len() as u64, "{size} bytes, not {}", self.good.len());
        self.read(0, size)
    }

    fn note(&mut self, step: Step) {
        if self.last.len() == TOLD {
            self.last.pop_front();
        }
        self.last.push_back(step);
        self.done += 1;
    }

    fn story(&self) -> String {
        let last: Vec<String> = self.last.iter().map(|step| format!("  {step:?}")).collect();
        let (path, seed, done) = (self.path.display(), self.seed, self.done);
        format!("{path}: seed {seed}, step {done}; the last steps:\n{}", last.join("\n"))
    }

    /// The next step; one that needs data beyond the end becomes a write.
    fn choose(&mut self) -> Step {
        let size = self.good.len() as u64;
        let kind = self.random.within(0..=19);
        let at = self.random.within(0..=FILE_MAX - 1);
        let len = self.random.within(1..=STEP_MAX);
        let other = self.random.within(0..=FILE_MAX - 1);
        let write = Step::Write { at, len: len.min(FILE_MAX - at) };
        // A part of the file as it is, and whole blocks of it.
        let part = (size > 0).then(|| {
            let at = at % size;
            (at, len.min(size - at))
        });
        let whole = (size > BLOCK).then(|| {
            let at = at % (size / BLOCK) * BLOCK;
            (at, (len / BLOCK * BLOCK).max(BLOCK).min(size / BLOCK * BLOCK - at))
        });
        let some =
            |step: fn(u64, u64) -> Step, of: Option<(u64, u64)>| of.map_or(write, |(at, len)| step(at, len));
        match kind {
            0 | 1 => some(|at, len| Step::Read { at, len }, part),
            2 => some(|at, len| Step::ReadMapped { at, len }, part),
            3 | 4 => some(|at, len| Step::ReadDirect { at, len }, whole),
            5..=7 => write,
            8 => some(|at, len| Step::WriteMapped { at, len }, part),
            9 | 10 => some(|at, len| Step::WriteDirect { at, len }, whole),
            11 => Step::Truncate { len: at },
            12 => some(|at, len| Step::Punch { at, len }, part),
            13 => some(|at, len| Step::Zero { at, len }, part),
            14 => Step::Allocate { at, len: len.min(FILE_MAX - at) },
            // It has to end before the end of the file.
            15 => some(|at, len| Step::Collapse { at, len }, whole.filter(|(at, len)| at + len < size)),
            16 => match whole.filter(|(_, len)| size + len <= FILE_MAX) {
                Some((at, len)) => Step::Insert { at, len },
                None => write,
            },
            17 => match part {
                // Onto itself only where both do not meet.
                Some((from, len)) if from.abs_diff(other) >= len => {
                    Step::Copy { from, to: other, len: len.min(FILE_MAX - other) }
                }
                _ => write,
            },
            18 => Step::Sync,
            _ => Step::Reopen,
        }
    }

    fn perform(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Read { at, len } => self.read(at, len),
            Step::ReadMapped { at, len } => {
                let skip = at % BLOCK;
                let map = Map::of(&self.file, at - skip, (skip + len) as usize)?;
                self.compare(at, &map[skip as usize..])
            }
            Step::ReadDirect { at, len } => {
                let mut memory = Map::zeroed(len as usize)?;
                self.direct.read_exact_at(&mut memory, at)?;
                self.compare(at, &memory)
            }
            Step::Write { at, len } => {
                let bytes = self.random.bytes(len as usize);
                self.file.write_all_at(&bytes, at)?;
                self.put(at, &bytes);
                Ok(())
            }
            Step::WriteMapped { at, len } => {
                let bytes = self.random.bytes(len as usize);
                let skip = at % BLOCK;
                let mut map = Map::of(&self.file, at - skip, (skip + len) as usize)?;
                map[skip as usize..].copy_from_slice(&bytes);
                if len % 2 == 0 {
                    map.sync()?;
                }
                self.put(at, &bytes);
                Ok(())
            }
            Step::WriteDirect { at, len } => {
                let mut memory = Map::zeroed(len as usize)?;
                memory.copy_from_slice(&self.random.bytes(len as usize));
                self.direct.write_all_at(&memory, at)?;
                self.put(at, &memory);
                Ok(())
            }
            Step::Truncate { len } => {
                self.file.set_len(len)?;
                self.good.resize(len as usize, 0);
                Ok(())
            }
            Step::Sync => Ok(self.file.sync_all()?),
            Step::Reopen => {
                self.file.sync_all()?;
                fadvise(&self.file, 0, None, Advice::DontNeed)?;
                (self.file, self.direct) = open(&self.path)?;
                self.check()
            }
            Step::Copy { from, to, len } => self.copy(from, to, len),
            change => self.change(change),
        }
    }

    fn read(&self, at: u64, len: u64) -> Result<()> {
        let mut bytes = vec![0; len as usize];
        self.file.read_exact_at(&mut bytes, at)?;
        self.compare(at, &bytes)
    }

    fn compare(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let good = &self.good[at as usize..at as usize + bytes.len()];
        if let Some(n) = bytes.iter().zip(good).position(|(is, must)| is != must) {
            let wrong = bytes.iter().zip(good).filter(|(is, must)| is != must).count();
            let (is, must) = (bytes[n], good[n]);
            anyhow::bail!("byte {} is {is:#04x}, not {must:#04x}; {wrong} bytes are wrong", at + n as u64);
        }
        Ok(())
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let end = at as usize + bytes.len();
        if end > self.good.len() {
            self.good.resize(end, 0);
        }
        self.good[at as usize..end].copy_from_slice(bytes);
    }

    fn copy(&mut self, from: u64, to: u64, len: u64) -> Result<()> {
        let bytes = self.good[from as usize..(from + len) as usize].to_vec();
        let (mut source, mut target) = (from, to);
        while source < from + len {
            let left = (from + len - source) as usize;
            let n = copy_file_range(&self.file, Some(&mut source), &self.file, Some(&mut target), left)?;
            ensure!(n > 0, "nothing was copied at {source}");
        }
        self.put(to, &bytes);
        Ok(())
    }

    /// Changes of the file's structure, where the file system has them.
    fn change(&mut self, step: Step) -> Result<()> {
        let (name, flags, at, len) = match step {
            Step::Punch { at, len } => {
                ("Punch", FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len)
            }
            Step::Zero { at, len } => ("Zero", FallocateFlags::ZERO_RANGE, at, len),
            Step::Collapse { at, len } => ("Collapse", FallocateFlags::COLLAPSE_RANGE, at, len),
            Step::Insert { at, len } => ("Insert", FallocateFlags::INSERT_RANGE, at, len),
            Step::Allocate { at, len } => ("Allocate", FallocateFlags::empty(), at, len),
            other => anyhow::bail!("{other:?} changes no structure"),
        };
        match fallocate(&self.file, flags, at, len) {
            Err(Errno::OPNOTSUPP) => {
                if !self.refused.contains(&name) {
                    self.refused.push(name);
                }
                return Ok(());
            }
            other => other?,
        }
        let (at, len) = (at as usize, len as usize);
        match step {
            Step::Collapse { .. } => drop(self.good.drain(at..at + len)),
            Step::Insert { .. } => drop(self.good.splice(at..at, vec![0; len])),
            Step::Allocate { .. } => {
                let size = self.good.len().max(at + len);
                self.good.resize(size, 0);
            }
            _ => self.good[at..at + len].fill(0),
        }
        Ok(())
    }
}

impl fmt::Display for Fsx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} steps of seed {}, {} bytes at the end", self.done, self.seed, self.good.len())
    }
}

fn open(path: &Path) -> Result<(File, File)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = options.open(path)?;
    let direct = options.custom_flags(libc::O_DIRECT).open(path);
    Ok((file, direct.with_context(|| format!("{}: direct I/O", path.display()))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On the disk of this machine: memory has no direct I/O everywhere.
    fn place() -> Option<tempfile::TempDir> {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let probe = dir.path().join("probe");
        File::create(&probe).expect("a file");
        if let Err(e) = open(&probe) {
            eprintln!("skip: {e:#}");
            return None;
        }
        Some(dir)
    }

    #[test]
    fn a_good_file_system_passes() {
        let Some(dir) = place() else { return };
        for seed in 0..4 {
            let mut fsx = Fsx::new(&dir.path().join("file"), seed).expect("a file");
            fsx.run(300).unwrap_or_else(|e| panic!("{e:?}"));
        }
    }

    #[test]
    fn one_byte_that_changes_is_found_and_told() {
        let Some(dir) = place() else { return };
        let path = dir.path().join("file");
        let mut fsx = Fsx::new(&path, 7).expect("a file");
        fsx.run(100).unwrap_or_else(|e| panic!("{e:?}"));
        fsx.perform(Step::Write { at: 0, len: 10_000 }).expect("written");
        let file = OpenOptions::new().write(true).open(&path).expect("opened");
        file.write_all_at(&[0], 5000).expect("written");
        let told = fsx.check().expect_err("the file has changed").to_string();
        assert!(told.starts_with("byte 5000 is 0x00"), "{told}");
        assert!(fsx.story().contains("seed 7, step 100"), "{}", fsx.story());
    }

    #[test]
    fn a_seed_determines_its_steps() {
        let Some(dir) = place() else { return };
        let run = |name: &str| {
            let mut fsx = Fsx::new(&dir.path().join(name), 11).expect("a file");
            fsx.run(100).unwrap_or_else(|e| panic!("{e:?}"));
            fsx.good
        };
        assert!(run("one") == run("two"));
    }
}
