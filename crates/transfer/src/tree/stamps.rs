//! Timestamp granularity and range of file systems.
//!
//! File systems store times with a granularity of 1 ns to 2 s, within a range. The kernel
//! truncates and clamps a time that is set (`utimensat(2)`; `s_time_gran`, `s_time_min`
//! and `s_time_max` of the superblock), so a probe sets times on a file and reads them
//! back.
//!
//! Invariants:
//! - a file system is probed once in a copy;
//! - if probing fails, it is assumed to store every time, unless its type is known not to:
//!   at worst, up-to-date files are resent, and changed ones are never missed.

use super::{Directory, Status};
use crate::guard::lock;
use crate::link::noise::fill_random;
use crate::wire::{RESERVED, Time};
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Mutex;

/// Granularities in nanoseconds: exact, NTFS, microseconds, milliseconds, exFAT, ext3 and
/// HFS+, FAT.
const STEPS: [i128; 7] = [1, 100, 1_000, 1_000_000, 10_000_000, 1_000_000_000, 2_000_000_000];
/// A time that each granularity truncates differently: an odd second, and no two equal
/// digits in a row.
const ODD: Time = Time { secs: 1_000_000_001, nanos: 123_456_789 };
/// A time in seconds that no file system can store.
const FAR: i64 = 1 << 60;

/// Seconds that all file systems in use can store: FAT begins in 1980, and signed 32 bits
/// end in 2038. A day less on either side, for the time zone of FAT.
pub(crate) const USUAL: Range<i64> = 315_532_800 + 86_400..(1 << 31) - 86_400;

/// Timestamp granularity and range of one file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamps {
    /// Granularity in nanoseconds.
    step: i128,
    /// Range in seconds since 1970.
    first: i64,
    last: i64,
}

impl Default for Stamps {
    fn default() -> Stamps {
        Stamps { step: 1, first: i64::MIN, last: i64::MAX }
    }
}

impl Stamps {
    /// The stored time after `time` was set.
    pub(crate) fn kept(self, time: Time) -> Time {
        let Time { secs, nanos } = time;
        // As the kernel's `timestamp_truncate`: the ends of the range have no nanoseconds.
        let (secs, nanos) = if secs <= self.first {
            (self.first, 0)
        } else if secs >= self.last {
            (self.last, 0)
        } else {
            (secs, nanos)
        };
        let whole = i128::from(secs) * 1_000_000_000 + i128::from(nanos);
        let cut = whole - whole.rem_euclid(self.step);
        let secs = i64::try_from(cut.div_euclid(1_000_000_000)).unwrap_or(secs);
        Time { secs, nanos: cut.rem_euclid(1_000_000_000) as u32 }
    }

    /// Whether `there` is the stored time after `ours` was set.
    pub(crate) fn keeps(self, ours: Time, there: Time) -> bool {
        ours == there || self.kept(ours) == there
    }

    /// Determines granularity and range by setting times and reading them back.
    fn found(mut made_of: impl FnMut(Time) -> io::Result<Time>) -> io::Result<Stamps> {
        let odd = made_of(ODD)?;
        let cuts = |step: &&i128| Stamps { step: **step, ..Stamps::default() }.kept(ODD) == odd;
        let step = STEPS.iter().find(cuts).copied().unwrap_or(1);
        let first = made_of(Time { secs: -FAR, nanos: 0 })?.secs;
        let last = made_of(Time { secs: FAR, nanos: 0 })?.secs;
        let mut stamps = Stamps { step, ..Stamps::default() };
        // Kernels before 5.4 do not clamp, so implausible ranges are ignored.
        if first > -FAR && last < FAR && first <= USUAL.start && last >= USUAL.end {
            (stamps.first, stamps.last) = (first, last);
        }
        Ok(stamps)
    }

    /// Probes the file system of a directory with a temporary file in it.
    fn probe(directory: BorrowedFd<'_>, may_name: bool) -> io::Result<Stamps> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        // An unnamed file leaves the directory unchanged.
        let unnamed = rustix::fs::openat(directory, c".", flags | OFlags::TMPFILE, mode);
        match unnamed {
            Ok(file) => Stamps::of_file(&file),
            Err(e) if !may_name => Err(e.into()),
            Err(_) => {
                let mut random = [0; 8];
                fill_random(&mut random)?;
                let name = format!("probe-{:016x}", u64::from_le_bytes(random));
                let name = [RESERVED, name.as_bytes()].concat();
                let name = OsStr::from_bytes(&name);
                let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
                let file = rustix::fs::openat(directory, name, flags, mode)?;
                let found = Stamps::of_file(&file);
                rustix::fs::unlinkat(directory, name, AtFlags::empty())?;
                found
            }
        }
    }

    fn of_file(file: &OwnedFd) -> io::Result<Stamps> {
        Stamps::found(|time| {
            rustix::fs::futimens(file, &timestamps(time))?;
            Ok(Status::from(rustix::fs::fstat(file)?).modified)
        })
    }

    /// The granularity by the type of a directory's file system (`statfs(2)`, `f_type`).
    fn of_kind(directory: BorrowedFd<'_>) -> Stamps {
        let kind = rustix::fs::fstatfs(directory).map_or(0, |stat| stat.f_type as u64);
        let step = match kind {
            // FAT.
            0x4d44 => 2_000_000_000,
            // HFS, HFS+ and HFSX.
            0x4244 | 0x482b | 0x4858 => 1_000_000_000,
            // exFAT.
            0x2011_bab0 => 10_000_000,
            // NTFS, by either of its drivers.
            0x5346_544e | 0x7366_746e => 100,
            _ => 1,
        };
        Stamps { step, ..Stamps::default() }
    }
}

/// Arguments of `utimensat(2)` that set the mtime only.
pub(crate) fn timestamps(mtime: Time) -> Timestamps {
    let last_modification = Timespec { tv_sec: mtime.secs, tv_nsec: i64::from(mtime.nanos) };
    let last_access = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    Timestamps { last_access, last_modification }
}

/// Checks that a time that was just set is stored, up to the coarsest granularity. `status`
/// is called only for times outside of [`USUAL`].
///
/// # Errors
/// The stored time differs.
pub(crate) fn check_set(ours: Time, status: impl FnOnce() -> io::Result<Status>) -> io::Result<()> {
    if USUAL.contains(&ours.secs) {
        return Ok(());
    }
    let there = status()?.modified;
    if ours.secs.abs_diff(there.secs) <= 2 {
        return Ok(());
    }
    Err(unkept(ours, there))
}

/// The error for a time that a file system cannot store.
pub(crate) fn unkept(ours: Time, there: Time) -> io::Error {
    io::Error::other(format!(
        "the file system cannot store the time (@{} s since 1970): it is now @{}",
        ours.secs, there.secs
    ))
}

/// Probed file systems of a destination, by device number.
#[derive(Debug, Default)]
pub(crate) struct FileSystems(Mutex<HashMap<u64, Stamps>>);

impl FileSystems {
    /// The properties of the file system with this device number, which holds `directory`.
    /// It is probed in the destination (`base`) if that is on it too, where this user can
    /// create files. A named file is created only if `may_name`, and if unnamed files are
    /// not supported.
    pub(crate) fn stamps(
        &self,
        device: u64,
        directory: &Directory,
        base: &Directory,
        may_name: bool,
    ) -> Stamps {
        // One that is mounted keeps the times that it is given.
        let (Some(directory), Some(base)) = (directory.fd(), base.fd()) else { return Stamps::default() };
        let mut known = lock(&self.0);
        *known.entry(device).or_insert_with(|| {
            let in_base = rustix::fs::fstat(base).is_ok_and(|stat| stat.st_dev == device);
            let directory = if in_base { base } else { directory };
            let probed = Stamps::probe(directory, may_name);
            probed.unwrap_or_else(|e| {
                tracing::debug!("cannot probe the timestamps of the destination's file system: {e}");
                Stamps::of_kind(directory)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    fn at(secs: i64, nanos: u32) -> Time {
        Time { secs, nanos }
    }

    /// A file system that cuts and clamps as the kernel does.
    fn keeping(step: i128, first: i64, last: i64) -> Stamps {
        let stamps = Stamps { step, first, last };
        let found = Stamps::found(|time| Ok(stamps.kept(time))).expect("probed");
        assert_eq!(found, stamps);
        found
    }

    #[test]
    fn granularity_and_range_are_detected() {
        for step in STEPS {
            keeping(step, i64::MIN, i64::MAX);
        }
        let fat = keeping(2_000_000_000, 315_532_800, 4_354_819_198);
        assert_eq!(fat.kept(at(0, 5)), at(315_532_800, 0), "before it begins");
        assert_eq!(fat.kept(at(1_000_000_001, 5)), at(1_000_000_000, 0));
        let ext3 = keeping(1_000_000_000, -(1 << 31), (1 << 31) - 1);
        assert_eq!(ext3.kept(at(1 << 40, 5)), at((1 << 31) - 1, 0), "behind its end");
        assert_eq!(ext3.kept(at(-4, 500_000_000)), at(-4, 0), "down, before 1970 too");
        // A kernel that wraps instead.
        let wraps = Stamps::found(|time| Ok(at(i64::from(time.secs as i32), 0))).expect("probed");
        assert_eq!(wraps, Stamps { step: 1_000_000_000, ..Stamps::default() });
    }

    #[test]
    fn times_are_compared_at_the_granularity_of_the_file_system() {
        let ours = at(1_000_000_001, 123_456_789);
        let all = Stamps::default();
        for other in [
            at(1_000_000_001, 123_456_788),
            at(1_000_000_001, 123_456_700),
            at(1_000_000_001, 123_456_000),
            at(1_000_000_001, 120_000_000),
            at(1_000_000_001, 0),
            at(1_000_000_000, 0),
        ] {
            assert!(!all.keeps(ours, other), "{other:?}: this file system would have kept it in full");
        }
        assert!(all.keeps(ours, ours));
        let seconds = Stamps { step: 1_000_000_000, ..all };
        assert!(seconds.keeps(ours, at(1_000_000_001, 0)) && !seconds.keeps(ours, at(1_000_000_000, 0)));
        assert!(!seconds.keeps(at(1_000_000_001, 0), ours), "what is finer than ours is another");
    }

    #[test]
    fn probing_leaves_nothing_behind() {
        let dir = tempfile::tempdir().expect("a directory");
        let before = std::fs::metadata(dir.path()).expect("there").mtime_nsec();
        let fd = std::fs::File::open(dir.path()).expect("opened");
        let unnamed = Stamps::probe(fd.as_fd(), false);
        let same = std::fs::metadata(dir.path()).expect("there").mtime_nsec() == before;
        assert!(same, "nothing in the directory changes");
        let named = Stamps::probe(fd.as_fd(), true).expect("probed");
        assert!(unnamed.is_err() || unnamed.is_ok_and(|it| it == named));
        assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 0);
    }
}
