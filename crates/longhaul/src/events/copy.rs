//! `cp`, `sync`, `agent`

use super::{BitsPerSecond, Bytes, Micros, Seconds, Share};
use serde::Serialize;

/// `cp`, `sync`: what is done, each second.
#[derive(Serialize)]
#[serde(tag = "event", rename = "progress")]
pub(crate) struct CopyProgress {
    /// Time since the copy began.
    pub(crate) seconds: Seconds,
    /// Number of files sent.
    pub(crate) files: u64,
    /// Bytes of content sent.
    pub(crate) bytes: Bytes,
    /// Number of files that need not be sent.
    pub(crate) same: u64,
    /// Number of objects that could not be copied.
    pub(crate) failed: u64,
    /// Number of files that were there and got other metadata.
    pub(crate) metadata: u64,
    /// Bytes of what need not be sent.
    pub(crate) bytes_skipped: Bytes,
    /// Time left, at the rate of the last 30 s, a file taken for as much work as 32 KiB; null
    /// before all files are found and while the rate is not steady.
    pub(crate) eta_seconds: Option<Seconds>,
    /// Rate of the last 3 s.
    pub(crate) bits_per_second: BitsPerSecond,
    /// Rate since the beginning.
    pub(crate) bits_per_second_mean: BitsPerSecond,
    /// Number of files found so far.
    pub(crate) files_found: u64,
    /// Bytes of the files found so far.
    pub(crate) bytes_found: Bytes,
    /// All files are found.
    pub(crate) scan_done: bool,
    /// What limits at the moment: a stage, `bwlimit` or `other side`; null if nothing is known.
    pub(crate) limit: Option<&'static str>,
    /// Time for which the other side has sent nothing.
    pub(crate) silent_seconds: Seconds,
}

/// `cp`, `sync`: an object could not be copied.
#[derive(Serialize)]
#[serde(tag = "event", rename = "trouble")]
pub(crate) struct CopyTrouble {
    /// Its path, with unprintable bytes escaped.
    pub(crate) path: String,
    /// The operation that failed.
    pub(crate) op: &'static str,
    /// Why it failed, as a sentence.
    pub(crate) message: String,
}

/// `cp`, `sync`: an object is left out.
#[derive(Serialize)]
#[serde(tag = "event", rename = "skipped")]
pub(crate) struct CopySkipped {
    /// Its path, with unprintable bytes escaped.
    pub(crate) path: String,
    /// Why it is left out.
    pub(crate) message: &'static str,
}

/// `cp`, `sync` with `--dry-run`: an object with which something would be done.
#[derive(Serialize)]
#[serde(tag = "event", rename = "planned")]
pub(crate) struct CopyPlanned {
    /// Its path, with unprintable bytes escaped.
    pub(crate) path: String,
    /// `send`, `make`, `metadata` or `delete`.
    pub(crate) action: &'static str,
}

/// `cp`, `sync`: a note.
#[derive(Serialize)]
#[serde(tag = "event", rename = "note")]
pub(crate) struct CopyNote {
    /// The note, as a sentence.
    pub(crate) message: String,
}

/// `cp`, `sync`: the tuner has changed a number.
#[derive(Serialize)]
#[serde(tag = "event", rename = "tuned")]
pub(crate) struct CopyTuned {
    /// Stage: `scan`, `read`, `network` or `write`.
    pub(crate) stage: &'static str,
    /// The end: `here` or `there`.
    pub(crate) side: &'static str,
    /// The number before.
    pub(crate) from: u16,
    /// The number now.
    pub(crate) to: u16,
    /// Reason of the choice, as a sentence.
    pub(crate) why: String,
}

/// `cp`, `sync`: the copy has ended.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct CopySummary {
    /// Number of files sent.
    pub(crate) files: u64,
    /// Number of directories and links made.
    pub(crate) others: u64,
    /// Bytes of content sent.
    pub(crate) bytes: Bytes,
    /// Number of files that need not be sent.
    pub(crate) same: u64,
    /// Number of files to be sent.
    pub(crate) wanted: u64,
    /// Number of objects removed.
    pub(crate) deleted: u64,
    /// Number of objects that could not be copied.
    pub(crate) failed: u64,
    /// Number of files that were there and got another mode, owner, time or attribute.
    pub(crate) metadata: u64,
    /// Bytes of what need not be sent.
    pub(crate) bytes_skipped: Bytes,
    /// The time that it took.
    pub(crate) seconds: Seconds,
    /// Rate of the bytes sent.
    pub(crate) bits_per_second: BitsPerSecond,
    /// An interrupted copy was resumed.
    pub(crate) resumed: bool,
    /// Number of data connections; null from one remote machine to another.
    pub(crate) streams: Option<u16>,
    /// Congestion control of the connections; null from one remote machine to another.
    pub(crate) congestion: Option<String>,
    /// The data went through SSH.
    pub(crate) through_ssh: bool,
    /// Nothing was changed.
    pub(crate) dry_run: bool,
    /// Rate of the best second on the network; null for a copy that took less or needed none.
    pub(crate) path_bits_per_second: Option<BitsPerSecond>,
    /// Share of that rate over the whole time.
    pub(crate) path_share: Option<Share>,
    /// Numbers that the tuner chose.
    pub(crate) chosen: Vec<ChosenNumber>,
    /// Bytes read from files of this machine.
    pub(crate) bytes_read: Bytes,
    /// The kernel's statistics of the connections.
    pub(crate) sockets: Option<SocketStatistics>,
    /// Processor time of the threads of this process.
    pub(crate) threads: ThreadStatistics,
}

/// A number that the tuner chose.
#[derive(Serialize)]
pub(crate) struct ChosenNumber {
    /// Stage: `scan`, `read`, `network` or `write`.
    pub(crate) stage: &'static str,
    /// The end: `here` or `there`.
    pub(crate) side: &'static str,
    /// Number of threads or connections.
    pub(crate) number: usize,
    /// Reason of the choice, as a sentence.
    pub(crate) why: String,
}

/// Statistics of TCP connections.
#[derive(Serialize)]
pub(crate) struct SocketStatistics {
    /// Smoothed round trip.
    pub(crate) round_trip_us: Micros,
    /// Least round trip.
    pub(crate) round_trip_least_us: Option<Micros>,
    /// Segments that were retransmitted.
    pub(crate) retransmissions: u32,
    /// Bytes of a segment.
    pub(crate) packet: u32,
    /// Time in which the connections had data to send.
    pub(crate) busy: Option<Seconds>,
    /// Time in which the receive window of the peer limited.
    pub(crate) peer_window_limited: Option<Seconds>,
    /// Time in which the send buffer limited.
    pub(crate) send_buffer_limited: Option<Seconds>,
}

/// Processor time of threads.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct ThreadStatistics {
    /// Share of the time in which the busiest thread ran.
    pub(crate) busiest: Share,
    /// Share of the time in which that thread waited for a processor.
    pub(crate) waited: Share,
    /// Time in which all threads together ran.
    pub(crate) ran_s: Seconds,
    /// Time in which they waited for a processor.
    pub(crate) waited_s: Seconds,
}

/// `agent`: it can be connected to.
#[derive(Serialize)]
#[serde(tag = "event", rename = "ready")]
pub(crate) struct AgentReady {
    /// Address that the agent listens on.
    pub(crate) listen: String,
    /// URI of its directory.
    pub(crate) uri: String,
    /// The directory that it serves; null with `--one-time`.
    pub(crate) root: Option<String>,
    /// The user that it runs as.
    pub(crate) user: String,
    /// Address at which metrics are served; null without `--metrics`.
    pub(crate) metrics: Option<String>,
}
