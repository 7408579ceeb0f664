//! Rates of paths: differences of two replies of the process that counts.

use longhaul_device::arrays::{PathReply, PathsReply, WayReply};
use std::time::Duration;

/// One direction of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WayNow {
    /// Bytes a second; `None` until two looks can be compared.
    pub bytes_per_second: Option<f64>,
    /// Commands a second.
    pub commands_per_second: Option<f64>,
    /// Mean time of the commands that completed between the looks; `None` if there were none.
    pub latency: Option<Duration>,
    /// Commands in flight.
    pub in_flight: u64,
}

impl WayNow {
    /// Several of them together. The latency is the mean by commands.
    pub(super) fn sum(ways: impl Iterator<Item = WayNow>) -> WayNow {
        let mut sum = WayNow::default();
        let (mut weight, mut time) = (0.0, 0.0);
        let add = |sum: &mut Option<f64>, more: Option<f64>| {
            if let Some(more) = more {
                *sum = Some(sum.unwrap_or(0.0) + more);
            }
        };
        for way in ways {
            add(&mut sum.bytes_per_second, way.bytes_per_second);
            add(&mut sum.commands_per_second, way.commands_per_second);
            sum.in_flight += way.in_flight;
            if let Some((latency, rate)) = way.latency.zip(way.commands_per_second) {
                (weight, time) = (weight + rate, time + rate * latency.as_secs_f64());
            }
        }
        if weight > 0.0 {
            sum.latency = Some(Duration::from_secs_f64(time / weight));
        }
        sum
    }
}

/// A path to a member.
#[derive(Clone, Debug, PartialEq)]
pub struct PathNow {
    /// Index of the member, if its device is attached.
    pub member: Option<u64>,
    /// Host and port.
    pub address: String,
    /// `optimized`, `non-optimized`, `inaccessible` or `lost`.
    pub state: String,
    /// Why there is no connection.
    pub why: Option<String>,
    /// The least round trip that was measured.
    pub round_trip: Option<Duration>,
    /// How often the connection was lost since the device was opened.
    pub disconnects: u64,
    /// Reads.
    pub read: WayNow,
    /// Writes.
    pub write: WayNow,
}

/// The paths of a reply, with their rates since an earlier one. `member_of` gives the index of the member
/// by the name of its device.
pub(super) fn between(
    before: Option<&PathsReply>,
    after: &PathsReply,
    member_of: impl Fn(&str) -> Option<u64>,
) -> Vec<PathNow> {
    // Another process has begun to count from zero.
    let before = before.filter(|before| before.pid == after.pid && before.clock_ns < after.clock_ns);
    let seconds = before.map_or(0.0, |before| (after.clock_ns - before.clock_ns) as f64 / 1e9);
    let path = |now: &PathReply| {
        let earlier = before.and_then(|before| {
            before.paths.iter().find(|path| path.device == now.device && path.address == now.address)
        });
        PathNow {
            member: member_of(&now.device),
            address: now.address.clone(),
            state: now.state.clone(),
            why: now.why.clone(),
            round_trip: now.round_trip_us.map(Duration::from_micros),
            disconnects: now.disconnects,
            read: way(earlier.map(|path| path.read), now.read, seconds),
            write: way(earlier.map(|path| path.write), now.write, seconds),
        }
    };
    after.paths.iter().map(path).collect()
}

fn way(before: Option<WayReply>, now: WayReply, seconds: f64) -> WayNow {
    // A member's device that was opened again counts from zero.
    let before = before.filter(|before| before.bytes <= now.bytes && before.commands <= now.commands);
    let Some(before) = before else { return WayNow { in_flight: now.in_flight, ..WayNow::default() } };
    let commands = now.commands - before.commands;
    let time = now.time_ns.saturating_sub(before.time_ns);
    WayNow {
        bytes_per_second: Some((now.bytes - before.bytes) as f64 / seconds),
        commands_per_second: Some(commands as f64 / seconds),
        latency: time.checked_div(commands).map(Duration::from_nanos),
        in_flight: now.in_flight,
    }
}
