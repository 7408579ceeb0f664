//! The paths over which this process reaches targets, as the initiator counts them.
//!
//! Invariants:
//! - a path is there once, however often its device is open;
//! - [`PATHS_MAX`] paths are shown apart, and the others together.

use crate::families::{
    PATH_BYTES, PATH_COMMANDS, PATH_DISCONNECTS, PATH_IN_FLIGHT, PATH_ROUND_TRIP, PATH_TIME, PATH_USABLE,
};
use crate::page::Page;
use crate::target::OTHERS;
use longhaul_device::arrays::{PathReply, WayReply};
use longhaul_initiator::path::WayTraffic;
use longhaul_initiator::{PathState, PathStatus};
use std::collections::BTreeMap;
use std::time::Duration;

/// Paths that are shown apart.
pub(crate) const PATHS_MAX: usize = 256;

/// Commands in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct WayTotals {
    commands: u64,
    bytes: u64,
    time: Duration,
    in_flight: u64,
}

impl WayTotals {
    fn add(&mut self, other: WayTotals) {
        self.commands += other.commands;
        self.bytes += other.bytes;
        self.time += other.time;
        self.in_flight += other.in_flight;
    }
}

impl From<WayTraffic> for WayTotals {
    fn from(way: WayTraffic) -> WayTotals {
        WayTotals { commands: way.commands, bytes: way.bytes, time: way.time, in_flight: way.in_flight }
    }
}

impl From<WayReply> for WayTotals {
    fn from(way: WayReply) -> WayTotals {
        let time = Duration::from_nanos(way.time_ns);
        WayTotals { commands: way.commands, bytes: way.bytes, time, in_flight: way.in_flight }
    }
}

/// A path, or several with the same labels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PathTotals {
    is_usable: bool,
    round_trip: Option<Duration>,
    disconnects: u64,
    read: WayTotals,
    write: WayTotals,
}

impl PathTotals {
    pub(crate) fn of_status(path: &PathStatus) -> PathTotals {
        PathTotals {
            is_usable: matches!(path.state, PathState::Optimized | PathState::NonOptimized),
            round_trip: path.round_trip,
            disconnects: path.disconnects,
            read: path.traffic.read.into(),
            write: path.traffic.write.into(),
        }
    }

    pub(crate) fn of_reply(path: &PathReply) -> PathTotals {
        PathTotals {
            is_usable: ["optimized", "non-optimized"].contains(&path.state.as_str()),
            round_trip: path.round_trip_us.map(Duration::from_micros),
            disconnects: path.disconnects,
            read: path.read.into(),
            write: path.write.into(),
        }
    }

    fn add(&mut self, other: PathTotals) {
        self.is_usable &= other.is_usable;
        self.round_trip = self.round_trip.into_iter().chain(other.round_trip).min();
        self.disconnects += other.disconnects;
        self.read.add(other.read);
        self.write.add(other.write);
    }
}

/// Paths by the name of their device and their address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paths(BTreeMap<(String, String), PathTotals>);

impl Paths {
    pub(crate) fn add(&mut self, device: &str, address: &str, path: PathTotals) {
        let mut key = (device.to_owned(), address.to_owned());
        if self.0.len() >= PATHS_MAX && !self.0.contains_key(&key) {
            key = (OTHERS.to_owned(), OTHERS.to_owned());
        }
        self.0.entry(key).and_modify(|known| known.add(path)).or_insert(path);
    }

    pub(crate) fn collect(&self, page: &mut Page) {
        for ((device, address), path) in &self.0 {
            let labels = [device.as_str(), address.as_str()];
            page.count(PATH_USABLE, &labels, path.is_usable.into());
            if let Some(round_trip) = path.round_trip {
                page.number(PATH_ROUND_TRIP, &labels, round_trip.as_secs_f64());
            }
            page.count(PATH_DISCONNECTS, &labels, path.disconnects);
            for (way, direction) in [(path.read, "read"), (path.write, "write")] {
                let labels = [device.as_str(), address.as_str(), direction];
                page.count(PATH_BYTES, &labels, way.bytes);
                page.count(PATH_COMMANDS, &labels, way.commands);
                page.number(PATH_TIME, &labels, way.time.as_secs_f64());
                page.count(PATH_IN_FLIGHT, &labels, way.in_flight);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Format;

    fn path(bytes: u64, is_usable: bool) -> PathTotals {
        let ms = Duration::from_millis;
        let way = WayTotals { commands: 1, bytes, time: ms(5), in_flight: 2 };
        PathTotals { is_usable, round_trip: Some(ms(bytes)), disconnects: 1, read: way, write: way }
    }

    #[test]
    fn a_path_is_there_once_and_those_beyond_the_limit_together() {
        let mut paths = Paths::default();
        paths.add("d", "h:1", path(7, true));
        paths.add("d", "h:1", path(5, false));
        for n in 0..PATHS_MAX + 9 {
            paths.add("e", &format!("h:{n}"), path(1, true));
        }
        assert_eq!(paths.0.len(), PATHS_MAX + 1);
        let mut page = Page::default();
        paths.collect(&mut page);
        let text = page.write(Format::Text);
        for line in [
            "longhaul_path_usable{device=\"d\",address=\"h:1\"} 0",
            "longhaul_path_round_trip_seconds{device=\"d\",address=\"h:1\"} 0.005",
            "longhaul_path_transferred_bytes_total{device=\"d\",address=\"h:1\",direction=\"read\"} 12",
            "longhaul_path_disconnects_total{device=\"other\",address=\"other\"} 10",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
