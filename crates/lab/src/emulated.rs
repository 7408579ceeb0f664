//! The emulated link of the network namespace that this process runs in. A measurement over it is
//! valid only if the emulator forwarded packets on time.

use longhaul_block::units::format_rate;
use longhaul_load::watch::{Emulated, Expect};
use longhaul_wan::Statistics;
use longhaul_wan::control::{self, Request, Status};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// Directory of named network namespaces (`ip-netns(8)`).
const NAMESPACES: &str = "/run/netns";
/// Retransmissions that are expected, as a multiple of the loss of the link: after a burst of
/// losses TCP retransmits some segments more than once.
const RETRANSMIT_FACTOR: f64 = 3.0;

/// An emulated link, with its counters at the beginning of a run.
pub struct Link {
    name: String,
    before: Statistics,
}

impl Link {
    /// The link of this process's namespace, the client end; `None` if there is no such link.
    pub fn here() -> Option<Link> {
        let status = find()?;
        Some(Link { before: status.statistics, name: status.name })
    }

    /// The limits that a valid run over the link keeps, with the link's counters since its beginning.
    pub fn expect(&self) -> Expect {
        let Ok(status) = control::ask(&self.name, &Request::Status { reset: false }) else {
            return Expect::default();
        };
        let rtt = status.conditions.iter().map(longhaul_wan::Conditions::rtt).max();
        let directions = status.conditions.iter().flat_map(|link| [&link.there, &link.back]);
        let loss = directions.map(|direction| direction.loss).fold(0.0, f64::max);
        let default = Expect::default();
        Expect {
            round_trip: rtt,
            retransmitted: default.retransmitted.max(RETRANSMIT_FACTOR * loss),
            link: rtt.map(|round_trip| between(round_trip, &self.before, &status.statistics)),
            ..default
        }
    }
}

/// Delays and losses of an emulated link between two readings of its counters.
pub fn between(round_trip: Duration, before: &Statistics, after: &Statistics) -> Emulated {
    Emulated {
        round_trip,
        late: after.late_p99_since(before),
        lost: after.lost_here().saturating_sub(before.lost_here()),
    }
}

/// The link as a condition of a result: its name and its text.
pub fn words() -> Option<(String, String)> {
    let status = find()?;
    let link = |conditions: &longhaul_wan::Conditions| {
        let ms = conditions.rtt().as_secs_f64() * 1e3;
        let rate = conditions.there.rate.map_or("no limit".into(), |rate| format_rate(rate as f64));
        let loss = conditions.there.loss.max(conditions.back.loss);
        let loss = if loss > 0.0 { format!(", {} % lost", loss * 100.0) } else { String::new() };
        format!("{ms} ms, {rate}{loss}")
    };
    let mut links: Vec<String> = status.conditions.iter().map(link).collect();
    links.dedup();
    Some(("emulated link".into(), format!("{} ({})", links.join("; "), status.via)))
}

fn find() -> Option<Status> {
    let own = fs::metadata("/proc/self/ns/net").ok()?;
    let same = |status: &Status| {
        let client = fs::metadata(format!("{NAMESPACES}/{}", status.client));
        client.is_ok_and(|client| (client.ino(), client.dev()) == (own.ino(), own.dev()))
    };
    let all = control::names()
        .into_iter()
        .filter_map(|name| control::ask(&name, &Request::Status { reset: false }).ok());
    all.into_iter().find(same)
}
