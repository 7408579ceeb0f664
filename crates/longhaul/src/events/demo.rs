//! `demo`

use super::{Micros, Seconds, Share};
use serde::Serialize;

/// `demo`: the result.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct DemoSummary {
    /// Number of files on the devices.
    pub(crate) files: usize,
    /// Size of all files.
    pub(crate) bytes: super::Bytes,
    /// Round trip of the emulated links.
    pub(crate) round_trip_us: Micros,
    /// Rate of each link in bits per second; 0 for no limit.
    pub(crate) rate: u64,
    /// Rounds of each measurement.
    pub(crate) rounds: u16,
    /// Time of a round.
    pub(crate) seconds: Seconds,
    /// All content was read back and verified.
    pub(crate) verified: bool,
    /// Result of the writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) write: Option<DemoPhase>,
    /// Result of the reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) read: Option<DemoPhase>,
    /// Of copies of a tree of small files.
    pub(crate) trees: DemoTrees,
}

/// A direction, beside plain TCP.
#[derive(Serialize)]
pub(crate) struct DemoPhase {
    /// Rate of Longhaul in B/s.
    pub(crate) bytes_per_second: DemoSpread,
    /// Rate of plain TCP in B/s.
    pub(crate) plain_tcp_bytes_per_second: DemoSpread,
    /// The former divided by the latter.
    pub(crate) ratio: DemoSpread,
    /// Share of the processors that Longhaul used.
    pub(crate) own_cpu: Share,
    /// Share of the processors that plain TCP used.
    pub(crate) plain_tcp_cpu: Share,
    /// Share of the processors that other programs used.
    pub(crate) others_cpu: Share,
    /// What limits the rate.
    pub(crate) why: String,
}

/// Copies of a tree of small files.
#[derive(Serialize)]
pub(crate) struct DemoTrees {
    /// Number of files.
    pub(crate) files: usize,
    /// Size of all files.
    pub(crate) bytes: super::Bytes,
    /// Time of `longhaul cp` in seconds.
    pub(crate) seconds: DemoSpread,
    /// Time of scp in seconds.
    pub(crate) scp_seconds: Option<DemoSpread>,
    /// Why there is no scp to compare with.
    pub(crate) scp_missing: Option<String>,
}

/// Values of the rounds.
#[derive(Serialize)]
pub(crate) struct DemoSpread {
    /// Median of the rounds.
    pub(crate) median: f64,
    /// Least value of a round.
    pub(crate) least: f64,
    /// Greatest value of a round.
    pub(crate) most: f64,
}
