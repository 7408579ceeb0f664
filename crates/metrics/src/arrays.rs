//! The arrays that this process runs: what their control sockets say.
//!
//! Invariants:
//! - a scrape waits for an array no longer than for a thread of the data path, and shows what it said last
//!   after that; it is asked again only when it has answered;
//! - arrays of other processes are asked once in a while, whether they are of this one now.

use crate::families::{
    ARRAY, ARRAY_HEALTH, ARRAY_LOST, ARRAY_MEMBERS, ARRAY_MISMATCHES, ARRAY_READ_ERRORS, ARRAY_REBUILD,
    ARRAY_REPAIRED, ARRAY_SCRUB, ARRAY_SIZE,
};
use crate::page::Page;
use crate::paths::{PathTotals, Paths};
use crate::server::{STALL, lock};
use longhaul_device::arrays::{ArrayClient, ArrayRequest, PathsReply, running};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long an array of another process is not asked again.
const OF_OTHERS: Duration = Duration::from_secs(60);

/// What the arrays have said last.
#[derive(Clone, Debug, Default)]
struct Said {
    /// A status for each array.
    arrays: Vec<Value>,
    /// Paths to their members.
    paths: Vec<PathsReply>,
}

#[derive(Debug, Default)]
struct ArraysState {
    is_asking: bool,
    said: Said,
    /// When arrays of other processes were asked, by their UUID.
    of_others: BTreeMap<String, Instant>,
}

/// The arrays of this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrays(Arc<(Mutex<ArraysState>, Condvar)>);

/// Asks all arrays.
fn ask(of_others: &mut BTreeMap<String, Instant>) -> Said {
    let mut said = Said::default();
    of_others.retain(|_, asked| asked.elapsed() < OF_OTHERS);
    for array in running() {
        if of_others.contains_key(&array.uuid.to_string()) {
            continue;
        }
        let paths = ArrayClient::ask(&array, &ArrayRequest::Paths);
        let paths = paths.and_then(|reply| serde_json::from_value::<PathsReply>(reply.ok()?).ok());
        let Some(paths) = paths.filter(|paths| paths.pid == std::process::id()) else {
            of_others.insert(array.uuid.to_string(), Instant::now());
            continue;
        };
        said.paths.push(paths);
        said.arrays.extend(ArrayClient::ask(&array, &ArrayRequest::Status).and_then(Result::ok));
    }
    said
}

impl Arrays {
    fn look(&self) -> Said {
        let (state, answered) = &*self.0;
        let mut now = lock(state);
        if !now.is_asking {
            let (this, mut of_others) = (self.clone(), std::mem::take(&mut now.of_others));
            let asking = std::thread::Builder::new().name("metrics-arrays".into()).spawn(move || {
                let said = ask(&mut of_others);
                let (state, answered) = &*this.0;
                *lock(state) = ArraysState { is_asking: false, said, of_others };
                answered.notify_all();
            });
            now.is_asking = asking.is_ok();
        }
        let (now, _) = answered
            .wait_timeout_while(now, STALL, |now| now.is_asking)
            .unwrap_or_else(PoisonError::into_inner);
        now.said.clone()
    }

    /// Adds the arrays to the page, and the paths to their members to `paths`.
    pub(crate) fn collect(&self, page: &mut Page, paths: &mut Paths) {
        let said = self.look();
        // An array whose process has said it twice would be on the page twice.
        let mut seen = BTreeSet::new();
        for status in &said.arrays {
            if seen.insert(text(status, "uuid")) {
                collect(page, status);
            }
        }
        for path in said.paths.iter().flat_map(|reply| &reply.paths) {
            paths.add(&path.device, &path.address, PathTotals::of_reply(path));
        }
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_default()
}

/// The share that is done; nothing if there is nothing to do.
fn share(done: u64, total: u64) -> Option<f64> {
    (total > 0).then(|| done as f64 / total as f64)
}

const HEALTH: [&str; 4] = ["healthy", "degraded", "halted", "unreachable"];

/// Conditions of members: as the status has them, and by the glossary.
const CONDITIONS: [(&str, &str); 5] = [
    ("active", "active"),
    ("absent", "offline"),
    ("failed", "failed"),
    ("rebuilding", "rebuild"),
    ("catching-up", "resync"),
];

fn collect(page: &mut Page, status: &Value) {
    let labels = [text(status, "name"), text(status, "uuid")];
    let [name, uuid] = labels;
    page.count(ARRAY, &[name, uuid, text(status, "layout")], 1);
    page.count(ARRAY_SIZE, &labels, number(status, "size"));
    for health in HEALTH {
        page.count(ARRAY_HEALTH, &[name, uuid, health], (text(status, "health") == health).into());
    }
    page.count(ARRAY_LOST, &labels, number(status, "lost_bytes"));
    let no_members = Vec::new();
    let members = status["members"].as_array().unwrap_or(&no_members);
    for (condition, label) in CONDITIONS {
        let count = members.iter().filter(|member| text(member, "condition") == condition).count();
        page.count(ARRAY_MEMBERS, &[name, uuid, label], count as u64);
    }
    let sum = |field: &str| members.iter().map(|member| number(member, field)).sum();
    page.count(ARRAY_MISMATCHES, &labels, sum("mismatches"));
    page.count(ARRAY_REPAIRED, &labels, sum("mended"));
    page.count(ARRAY_READ_ERRORS, &labels, sum("read_errors"));
    let filling = &status["filling"];
    if let Some(share) = share(number(filling, "done_bytes"), number(filling, "total_bytes")) {
        page.number(ARRAY_REBUILD, &labels, share);
    }
    let scrub = &status["scrub"];
    if let Some(share) = share(number(scrub, "stripes_done"), number(scrub, "stripes")) {
        page.number(ARRAY_SCRUB, &labels, share);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Format;
    use serde_json::json;

    #[test]
    fn a_status_becomes_samples() {
        let member = |condition: &str, mismatches: u64| json!({ "condition": condition, "mismatches": mismatches, "mended": 1, "read_errors": 2 });
        let status = json!({
            "name": "a", "uuid": "u", "layout": "parity", "size": 4096, "health": "degraded", "lost_bytes": 0,
            "members": [member("active", 3), member("rebuilding", 4), member("absent", 0)],
            "filling": { "member": 1, "done_bytes": 25, "total_bytes": 100 }, "scrub": null,
        });
        let mut page = Page::default();
        collect(&mut page, &status);
        let text = page.write(Format::Text);
        for line in [
            "longhaul_array_info{array=\"a\",uuid=\"u\",layout=\"parity\"} 1",
            "longhaul_array_health{array=\"a\",uuid=\"u\",state=\"degraded\"} 1",
            "longhaul_array_health{array=\"a\",uuid=\"u\",state=\"healthy\"} 0",
            "longhaul_array_members{array=\"a\",uuid=\"u\",condition=\"rebuild\"} 1",
            "longhaul_array_members{array=\"a\",uuid=\"u\",condition=\"offline\"} 1",
            "longhaul_array_mismatched_blocks_total{array=\"a\",uuid=\"u\"} 7",
            "longhaul_array_rebuild_progress_ratio{array=\"a\",uuid=\"u\"} 0.25",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("scrub"), "none has been made");
    }
}
