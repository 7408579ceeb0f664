//! Which times a file system keeps.
//!
//! File systems store times in steps of 1 ns to 2 s, and from a first to a last one. The
//! kernel cuts a time that is set to that (`utimensat(2)`, and `s_time_gran`,
//! `s_time_min` and `s_time_max` of its superblocks), so a file is given times, and what
//! it has then is read back.
//!
//! Invariants:
//! - a file system is probed once for a copy;
//! - where it cannot be, it is taken to keep every time, unless it is of a kind that is
//!   known not to: a file too many is sent rather than none too few.

use crate::noise::fill_random;
use crate::wire::{RESERVED, Time};
use rustix::fs::{AtFlags, Mode, OFlags, Stat, Timespec, Timestamps};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

/// Steps in nanoseconds: all, NTFS, microseconds, milliseconds, exFAT, ext3 and HFS+,
/// FAT.
const STEPS: [i128; 7] = [1, 100, 1_000, 1_000_000, 10_000_000, 1_000_000_000, 2_000_000_000];
/// Each of the steps cuts another time from this one: an odd second, and no digit like
/// the one before it.
const ODD: Time = Time { secs: 1_000_000_001, nanos: 123_456_789 };
/// No file system stores a time as far from 1970 in all of its bits, in seconds.
const FAR: i64 = 1 << 60;

/// Seconds that all file systems in use keep: those of FAT begin in 1980, and signed 32
/// bits end in 2038. A day less on either side, for the time zone of FAT.
pub(crate) const USUAL: Range<i64> = 315_532_800 + 86_400..(1 << 31) - 86_400;

/// The times that one file system keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamps {
    /// In nanoseconds.
    step: i128,
    /// In seconds since 1970.
    first: i64,
    last: i64,
}

impl Default for Stamps {
    fn default() -> Stamps {
        Stamps { step: 1, first: i64::MIN, last: i64::MAX }
    }
}

impl Stamps {
    /// What a file has for its time once `time` was set.
    pub(crate) fn kept(self, time: Time) -> Time {
        let Time { secs, nanos } = time;
        // The kernel's `timestamp_truncate`: the first and the last second are whole.
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

    /// Whether a file that was given the time `ours` has the time `there`.
    pub(crate) fn keeps(self, ours: Time, there: Time) -> bool {
        ours == there || self.kept(ours) == there
    }

    /// What a file system keeps of times, by what it makes of some.
    fn found(mut made_of: impl FnMut(Time) -> io::Result<Time>) -> io::Result<Stamps> {
        let odd = made_of(ODD)?;
        let cuts = |step: &&i128| Stamps { step: **step, ..Stamps::default() }.kept(ODD) == odd;
        let step = STEPS.iter().find(cuts).copied().unwrap_or(1);
        let first = made_of(Time { secs: -FAR, nanos: 0 })?.secs;
        let last = made_of(Time { secs: FAR, nanos: 0 })?.secs;
        let mut stamps = Stamps { step, ..Stamps::default() };
        // Kernels before 5.4 do not clamp: what they make of these means nothing.
        if first > -FAR && last < FAR && first <= USUAL.start && last >= USUAL.end {
            (stamps.first, stamps.last) = (first, last);
        }
        Ok(stamps)
    }

    /// Of the file system of a directory, by a file in it.
    fn probe(directory: BorrowedFd<'_>, may_name: bool) -> io::Result<Stamps> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        // Without a name, nothing in the directory changes.
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
            Ok(mtime(&rustix::fs::fstat(file)?))
        })
    }

    /// Of the kind of file system that a directory is on, as far as that says something
    /// (`statfs(2)`, `f_type`).
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

/// A time of change alone, to be set.
pub(crate) fn timestamps(mtime: Time) -> Timestamps {
    let last_modification = Timespec { tv_sec: mtime.secs, tv_nsec: i64::from(mtime.nanos) };
    let last_access = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    Timestamps { last_access, last_modification }
}

/// The time of change of a file.
pub(crate) fn mtime(stat: &Stat) -> Time {
    Time { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 }
}

/// Says so if a time that was just set is not what the file has, by more than the steps
/// of file systems. `stat` is called for unusual times alone.
///
/// # Errors
/// It is another one.
pub(crate) fn check_set(ours: Time, stat: impl FnOnce() -> io::Result<Stat>) -> io::Result<()> {
    if USUAL.contains(&ours.secs) {
        return Ok(());
    }
    let there = mtime(&stat()?);
    if ours.secs.abs_diff(there.secs) <= 2 {
        return Ok(());
    }
    Err(unkept(ours, there))
}

/// The trouble with a time that a file system cannot keep.
pub(crate) fn unkept(ours: Time, there: Time) -> io::Error {
    io::Error::other(format!(
        "the file system cannot keep the time (@{} s since 1970): it is now @{}",
        ours.secs, there.secs
    ))
}

/// What is known of the file systems that a copy goes to.
#[derive(Debug, Default)]
pub(crate) struct FileSystems(Mutex<HashMap<u64, Stamps>>);

impl FileSystems {
    /// Of the file system with this device number, which `directory` is on: probed in
    /// the destination itself (`base`) if that is on it too, since there this user can
    /// make files. One with a name is made only if `may_name` and there is no other way.
    pub(crate) fn stamps(
        &self,
        device: u64,
        directory: impl AsFd,
        base: BorrowedFd<'_>,
        may_name: bool,
    ) -> Stamps {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(device).or_insert_with(|| {
            let in_base = rustix::fs::fstat(base).is_ok_and(|stat| stat.st_dev == device);
            let directory = if in_base { base } else { directory.as_fd() };
            let probed = Stamps::probe(directory, may_name);
            probed.unwrap_or_else(|e| {
                tracing::debug!("the times of the destination's file system are not known: {e}");
                Stamps::of_kind(directory)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn what_a_file_system_makes_of_times_is_found_out() {
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
    fn a_time_is_cut_to_what_is_kept_and_no_more() {
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
