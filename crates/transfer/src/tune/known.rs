//! Numbers of connections that earlier copies have found, kept in a file.
//!
//! Where random losses leave each connection a small rate, a copy needs seconds to find out how many it takes. The
//! next copy to the same address begins with that number, and its tuner goes on from there.
//!
//! Invariants:
//! - a number is used only while it is young, and the round trip to the address is what it was;
//! - a file that cannot be read or written, or is of another version, is as none: no copy fails for it.

use super::STREAMS_MOST;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The first line of the file.
const HEADER: &str = "longhaul paths 1";
/// For how long a number is used: the path may be another one tomorrow.
const AGE_MOST: Duration = Duration::from_secs(24 * 3600);
/// By what share the round trip may differ.
const ROUND_TRIP: f64 = 0.25;
/// Addresses that are kept: the oldest give way.
const ADDRESSES: usize = 256;
/// Bytes that a file of that many has at most.
const FILE_MOST: u64 = 32 << 10;

/// What is known of the path to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KnownPath {
    streams: usize,
    round_trip: Duration,
    /// When the copy ended, since 1970.
    at: Duration,
}

/// The file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPaths(PathBuf);

impl KnownPaths {
    /// Numbers that are kept in the file at `path`; its directory need not exist.
    pub fn at(path: PathBuf) -> KnownPaths {
        KnownPaths(path)
    }

    /// How many connections to begin with, if that is known at `now`. Blocks.
    pub(crate) fn streams(&self, to: IpAddr, round_trip: Duration, now: Duration) -> Option<usize> {
        let known = *read(&self.0).get(&to)?;
        let age = now.checked_sub(known.at)?;
        let differs = round_trip.abs_diff(known.round_trip) > known.round_trip.mul_f64(ROUND_TRIP);
        (age <= AGE_MOST && !differs).then_some(known.streams)
    }

    /// Keeps the number that a copy has found; forgets the address where one connection is enough. Blocks.
    pub(crate) fn keep(&self, to: IpAddr, round_trip: Duration, streams: usize, now: Duration) {
        let mut all = read(&self.0);
        let before = all.clone();
        let is_known = all.get(&to).is_some_and(|known| known.streams == streams);
        // A copy that begins with it and is short does not make it younger.
        if is_known && self.streams(to, round_trip, now).is_some() {
            return;
        }
        if streams > 1 {
            all.insert(to, KnownPath { streams, round_trip, at: now });
        } else {
            all.remove(&to);
        }
        while all.len() > ADDRESSES {
            let Some(oldest) = all.iter().min_by_key(|(_, known)| known.at).map(|(to, _)| *to) else { break };
            all.remove(&oldest);
        }
        if all != before
            && let Err(e) = write(&self.0, &all)
        {
            tracing::debug!("{}: numbers of connections are not kept: {e}", self.0.display());
        }
    }
}

/// `ADDRESS CONNECTIONS MICROSECONDS SECONDS` for each address.
fn read(path: &Path) -> BTreeMap<IpAddr, KnownPath> {
    let is_short = fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() <= FILE_MOST);
    let text = if is_short { fs::read_to_string(path).unwrap_or_default() } else { String::new() };
    let mut lines = text.lines();
    if lines.next() != Some(HEADER) {
        return BTreeMap::new();
    }
    lines.filter_map(parse).collect()
}

fn parse(line: &str) -> Option<(IpAddr, KnownPath)> {
    let mut words = line.split(' ');
    let to = words.next()?.parse().ok()?;
    let streams = words.next()?.parse().ok().filter(|streams| (2..=STREAMS_MOST).contains(streams))?;
    let round_trip = Duration::from_micros(words.next()?.parse().ok()?);
    let at = Duration::from_secs(words.next()?.parse().ok()?);
    words.next().is_none().then_some((to, KnownPath { streams, round_trip, at }))
}

/// As a whole: copies may end at the same time.
fn write(path: &Path, all: &BTreeMap<IpAddr, KnownPath>) -> io::Result<()> {
    let mut text = format!("{HEADER}\n");
    for (to, KnownPath { streams, round_trip, at }) in all {
        let _ = writeln!(text, "{to} {streams} {} {}", round_trip.as_micros(), at.as_secs());
    }
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(directory)?;
    let beside = path.with_extension(format!("{}.new", std::process::id()));
    let written = fs::File::create(&beside).and_then(|mut file| file.write_all(text.as_bytes()));
    written.and_then(|()| fs::rename(&beside, path)).inspect_err(|_| _ = fs::remove_file(&beside))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const NOW: Duration = Duration::from_secs(1_795_000_000);

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 77, 1, last])
    }

    fn known() -> (tempfile::TempDir, KnownPaths) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("state/paths");
        (dir, KnownPaths::at(path))
    }

    #[test]
    fn a_number_is_used_while_it_is_young_and_the_path_is_the_same() {
        let (_dir, known) = known();
        assert_eq!(known.streams(address(2), 80 * MS, NOW), None);
        known.keep(address(2), 80 * MS, 32, NOW);
        for (to, round_trip, later, expected) in [
            (2, 80 * MS, Duration::ZERO, Some(32)),
            (2, 95 * MS, AGE_MOST, Some(32)),
            (2, 65 * MS, AGE_MOST, Some(32)),
            (2, 101 * MS, Duration::ZERO, None),
            (2, 59 * MS, Duration::ZERO, None),
            (2, 80 * MS, AGE_MOST + MS, None),
            (3, 80 * MS, Duration::ZERO, None),
        ] {
            assert_eq!(known.streams(address(to), round_trip, NOW + later), expected, "{to} {round_trip:?}");
        }
        // A clock that was set back says nothing of its age.
        assert_eq!(known.streams(address(2), 80 * MS, NOW - MS), None);
        known.keep(address(2), 80 * MS, 32, NOW + MS);
        assert_eq!(known.streams(address(2), 80 * MS, NOW + AGE_MOST + MS), None, "it is as old as before");
        known.keep(address(2), 80 * MS, 1, NOW);
        assert_eq!(known.streams(address(2), 80 * MS, NOW), None, "one is enough");
    }

    #[test]
    fn the_file_keeps_its_form_and_another_one_is_as_none() {
        let (_dir, known) = known();
        known.keep(address(2), 80 * MS, 32, NOW);
        known.keep("2001:db8::1".parse().expect("an address"), 15 * MS, 4, NOW);
        let expected = "longhaul paths 1\n10.77.1.2 32 80000 1795000000\n2001:db8::1 4 15000 1795000000\n";
        assert_eq!(fs::read_to_string(&known.0).expect("written"), expected);
        for other in [
            "longhaul paths 2\n10.77.1.2 32 80000 1795000000\n".to_owned(),
            "longhaul paths 1\n10.77.1.2 33 80000 1795000000\n10.77.1.2 8\n\0\n".to_owned(),
            format!("{expected}{}", " ".repeat(FILE_MOST as usize)),
        ] {
            fs::write(&known.0, &other).expect("written");
            assert_eq!(known.streams(address(2), 80 * MS, NOW), None, "{other}");
        }
        known.keep(address(3), 80 * MS, 8, NOW);
        assert_eq!(known.streams(address(3), 80 * MS, NOW), Some(8));
    }

    #[test]
    fn the_oldest_addresses_give_way() {
        let (_dir, known) = known();
        for n in 0..ADDRESSES as u32 + 10 {
            known.keep(IpAddr::from(n.to_be_bytes()), MS, 2, NOW + Duration::from_secs(n.into()));
        }
        let all = read(&known.0);
        assert_eq!((all.len(), all.contains_key(&IpAddr::from(9u32.to_be_bytes()))), (ADDRESSES, false));
        assert!(fs::metadata(&known.0).expect("written").len() <= FILE_MOST);
    }
}
