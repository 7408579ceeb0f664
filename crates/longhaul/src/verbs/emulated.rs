//! The emulated link that this process is behind, if it is behind one: what is
//! measured over it depends on whether it was on time.

use longhaul_bench::watch::{Emulated, Expect};
use longhaul_block::units::format_rate;
use longhaul_wan::Statistics;
use longhaul_wan::control::{self, Request, Status};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// Where namespaces have their names.
const NAMES: &str = "/run/netns";
/// How much more than the link loses may be sent again: what was lost in a
/// burst is repaired more than once.
const LOSS: f64 = 3.0;

/// A link at the beginning of a run.
pub(crate) struct Link {
    name: String,
    before: Statistics,
}

impl Link {
    /// The one whose client's end this process is in.
    pub(crate) fn here() -> Option<Link> {
        let status = find()?;
        Some(Link { before: status.statistics, name: status.name })
    }

    /// What a run over it should have been like.
    pub(crate) fn expect(&self) -> Expect {
        let Ok(status) = control::ask(&self.name, &Request::Status { reset: false }) else {
            return Expect::default();
        };
        let rtt = status.conditions.iter().map(longhaul_wan::Conditions::rtt).max();
        let ways = || status.conditions.iter().flat_map(|link| [&link.there, &link.back]);
        let loss = ways().map(|way| way.loss).fold(0.0, f64::max);
        let usual = Expect::default();
        Expect {
            round_trip: rtt,
            retransmitted: usual.retransmitted.max(LOSS * loss),
            link: rtt.map(|round_trip| between(round_trip, &self.before, &status.statistics)),
            ..usual
        }
    }
}

/// What a link of this round trip was like between two looks at its counters.
pub(crate) fn between(round_trip: Duration, before: &Statistics, after: &Statistics) -> Emulated {
    Emulated {
        round_trip,
        late: after.late_p99_since(before),
        lost: after.lost_here().saturating_sub(before.lost_here()),
    }
}

/// The link in words, for the conditions of a result.
pub(crate) fn words() -> Option<(String, String)> {
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
    let here = fs::metadata("/proc/self/ns/net").ok()?;
    let same = |status: &Status| {
        let there = fs::metadata(format!("{NAMES}/{}", status.client));
        there.is_ok_and(|there| (there.ino(), there.dev()) == (here.ino(), here.dev()))
    };
    let asked = control::names()
        .into_iter()
        .filter_map(|name| control::ask(&name, &Request::Status { reset: false }).ok());
    asked.into_iter().find(same)
}
