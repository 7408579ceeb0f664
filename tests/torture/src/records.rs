//! Records that are made durable one by one, for tests that cut the power.
//!
//! Three ways in which programs keep important data:
//! - a log that grows (append, `fsync`);
//! - files that are replaced (write beside, `fsync`, `rename`, `fsync` of the directory);
//! - two copies in place, written in turns (overwrite, `fdatasync`).
//!
//! Invariant: once a number has been reported, all records up to it are found again, whole, by
//! [`check`].

use crate::random::Random;
use anyhow::{Context, Result, ensure};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Files that are replaced, and places for two copies.
const SLOTS: u64 = 8;
/// Longest record, without its head.
const BODY_MAX: u64 = 40_000;
/// Room for one copy.
const ROOM: u64 = 48 << 10;
/// Number and length, before each record.
const HEAD: u64 = 16;
const _: () = assert!(HEAD + BODY_MAX <= ROOM);
/// Files of a load that is never made durable, and bytes of each.
const NOISE: u64 = 12;
const NOISE_MAX: u64 = 300_000;

/// A record, as it is on the disk: number, length, bytes that both determine.
fn record(seed: u64, number: u64) -> Vec<u8> {
    let mut random = Random::new(seed ^ number.wrapping_mul(0xD134_2543_DE82_EF95));
    let len = random.within(1..=BODY_MAX);
    let mut bytes = [number.to_le_bytes(), len.to_le_bytes()].concat();
    bytes.extend(random.bytes(len as usize));
    bytes
}

/// The number of the record that `bytes` begin with, if it is whole.
fn whole(seed: u64, bytes: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    // A head of zeroes is no record: they begin with 1.
    (number > 0 && bytes.starts_with(&record(seed, number))).then_some(number)
}

/// Writes records below `dir`, which is made, until `report` returns false; `report` gets the number of
/// each one that is durable. Meanwhile other files change that are never made durable.
///
/// # Errors
/// A file cannot be written.
pub fn write(dir: &Path, seed: u64, mut report: impl FnMut(u64) -> bool) -> Result<()> {
    fs::create_dir(dir)?;
    fs::create_dir(dir.join("noise"))?;
    let log = File::create(dir.join("log"))?;
    let table = File::create(dir.join("table"))?;
    let folder = File::open(dir)?;
    for made in [&log, &table, &folder, &File::open(dir.parent().context("a directory in none")?)?] {
        made.sync_all()?;
    }
    let mut random = Random::new(seed);
    let mut end = 0;
    for number in 1.. {
        let bytes = record(seed, number);
        match number % 3 {
            0 => {
                log.write_all_at(&bytes, end)?;
                log.sync_all()?;
                end += bytes.len() as u64;
            }
            1 => {
                let name = dir.join(format!("slot-{}", number / 3 % SLOTS));
                let beside = name.with_extension("new");
                let file = File::create(&beside)?;
                file.write_all_at(&bytes, 0)?;
                file.sync_all()?;
                fs::rename(&beside, &name)?;
                folder.sync_all()?;
            }
            _ => {
                table.write_all_at(&bytes, place(number))?;
                table.sync_data()?;
            }
        }
        if !report(number) {
            return Ok(());
        }
        noise(&dir.join("noise"), &mut random)?;
    }
    Ok(())
}

/// Where a record is in the table: its slot's one copy or the other.
fn place(number: u64) -> u64 {
    let turn = number / 3;
    (turn % SLOTS * 2 + turn / SLOTS % 2) * ROOM
}

fn noise(dir: &Path, random: &mut Random) -> Result<()> {
    let path = dir.join(random.within(0..=NOISE - 1).to_string());
    if random.within(0..=3) == 0 {
        let _ = fs::remove_file(path);
        return Ok(());
    }
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    let len = random.within(1..=NOISE_MAX) as usize;
    Ok(file.write_all_at(&random.bytes(len), random.within(0..=NOISE_MAX))?)
}

/// Looks for all records up to `last` below `dir`.
///
/// # Errors
/// One that was durable is not there, or not whole.
pub fn check(dir: &Path, seed: u64, last: u64) -> Result<()> {
    if last == 0 {
        return Ok(());
    }
    let log = fs::read(dir.join("log")).context("the log")?;
    let mut at = 0;
    for number in (3..=last).step_by(3) {
        let found = whole(seed, &log[at.min(log.len())..]);
        ensure!(found == Some(number), "the log has no record {number} of {last} at byte {at}");
        at += record(seed, number).len();
    }
    let table = fs::read(dir.join("table")).context("the table")?;
    for slot in 0..SLOTS {
        let newest = |rest| (1..=last).rev().find(|n| n % 3 == rest && n / 3 % SLOTS == slot);
        if let Some(newest) = newest(1) {
            let name = format!("slot-{slot}");
            let bytes = fs::read(dir.join(&name)).with_context(|| format!("{name} of record {newest}"))?;
            let found = whole(seed, &bytes).filter(|&n| bytes.len() == record(seed, n).len());
            ensure!(found >= Some(newest), "{name} has {found:?}, not record {newest} of {last}");
        }
        if let Some(newest) = newest(2) {
            let copies = [0, 1].map(|copy| ((slot * 2 + copy) * ROOM) as usize);
            let found = copies.iter().filter_map(|&at| whole(seed, table.get(at..)?)).max();
            ensure!(found >= Some(newest), "the table has {found:?}, not record {newest} of {last}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 3;

    fn written(last: u64) -> (tempfile::TempDir, std::path::PathBuf) {
        let parent = tempfile::tempdir().expect("a directory");
        let dir = parent.path().join("records");
        write(&dir, SEED, |number| number < last).expect("written");
        (parent, dir)
    }

    #[test]
    fn what_is_there_is_found_and_what_is_not_is_missed() {
        let (_parent, dir) = written(100);
        for last in [0, 1, 2, 3, 50, 100] {
            check(&dir, SEED, last).unwrap_or_else(|e| panic!("{last}: {e:?}"));
        }
        for last in [101, 102, 103] {
            assert!(check(&dir, SEED, last).is_err(), "{last} was never written");
        }
        assert!(check(&dir, SEED + 1, 100).is_err(), "other content");
    }

    #[test]
    fn a_torn_record_is_no_record() {
        let damage = |name: &str, at: u64| {
            let (_parent, dir) = written(60);
            let file = OpenOptions::new().write(true).open(dir.join(name)).expect("opened");
            file.write_all_at(&[0; 512], at).expect("written");
            check(&dir, SEED, 60).expect_err(name).to_string()
        };
        assert!(damage("log", 30_000).contains("the log"));
        assert!(damage("slot-2", 0).contains("slot-2"));
        // The newest of both copies, of 59 and of the one before.
        assert!(damage("table", place(59) + 16).contains("the table"));
    }

    #[test]
    fn a_copy_that_is_written_leaves_the_other_one() {
        for number in (2..200).step_by(3) {
            let before = number - 3 * SLOTS.min(number / 3);
            assert!(number < 3 * SLOTS + 2 || place(number) != place(before), "{number}");
            assert!(place(number) + ROOM <= SLOTS * 2 * ROOM);
        }
    }
}
