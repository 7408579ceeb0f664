//! Metrics of the process itself.

use crate::families::{BUILD, CPU_TIME, DESCRIPTORS, DESCRIPTORS_MAX, RESIDENT, START_TIME, THREADS};
use crate::page::Page;
use longhaul_engine::procfs::{Process, seconds};
use rustix::process::{Resource, getrlimit};
use std::time::{Duration, SystemTime};

/// When the process began to serve metrics, since 1970-01-01: within moments of its start, and unlike a
/// time computed from the machine's start it does not move when the wall clock is set.
pub(crate) fn start_time() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Adds what is known of this process, which began at `started`; what `/proc` does not show is left out.
pub(crate) fn collect(page: &mut Page, started: Duration) {
    page.count(BUILD, &[env!("CARGO_PKG_VERSION")], 1);
    page.number(START_TIME, &[], started.as_secs_f64());
    let process = Process::own();
    if let Some(ticks) = process.ticks() {
        page.number(CPU_TIME, &[], seconds(ticks.own));
    }
    if let Some(bytes) = process.resident() {
        page.count(RESIDENT, &[], bytes);
    }
    // The directory that is being read is one of them.
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        page.count(DESCRIPTORS, &[], (open.count() as u64).saturating_sub(1));
    }
    if let Some(limit) = getrlimit(Resource::Nofile).current {
        page.count(DESCRIPTORS_MAX, &[], limit);
    }
    if let Some(threads) = process.status("Threads").and_then(|n| n.parse().ok()) {
        page.count(THREADS, &[], threads);
    }
}
