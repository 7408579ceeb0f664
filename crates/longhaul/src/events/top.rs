//! `top`

use super::pool::PoolTarget;
use super::{BitsPerSecond, Bytes, BytesPerSecond, Micros, Seconds, Share};
use serde::Serialize;

/// `top`: a refresh.
#[derive(Serialize)]
#[serde(tag = "event", rename = "sample")]
pub(crate) struct TopSample {
    /// Time since the start.
    pub(crate) elapsed_seconds: Seconds,
    /// The pools.
    pub(crate) pools: Vec<TopPool>,
    /// Volumes and file systems that processes of this host have open, and other arrays that they run.
    pub(crate) arrays: Vec<TopArray>,
}

/// A pool.
#[derive(Serialize)]
pub(crate) struct TopPool {
    /// Its name.
    pub(crate) name: String,
    /// Why it cannot be asked; null if it answers, or has not answered yet.
    pub(crate) error: Option<String>,
    /// How long ago it was asked for this; null until it has answered once.
    pub(crate) age_seconds: Option<Seconds>,
    /// Number of its volumes.
    pub(crate) volumes: usize,
    /// Capacity of all spaces.
    pub(crate) capacity: Bytes,
    /// Bytes of namespaces that are promised.
    pub(crate) used: Bytes,
    /// Volumes that are being made, removed or resized.
    pub(crate) pending: usize,
    /// Its targets.
    pub(crate) targets: Vec<PoolTarget>,
}

/// A volume, another array, or a file system that a process of this host runs.
#[derive(Serialize)]
pub(crate) struct TopArray {
    /// UUID of the array; of a volume of layout `single` and of a file system, of the process's use of it.
    pub(crate) uuid: String,
    /// Its name: `volume:POOL/NAME`, `array:NAME`, or `fs:POOL/NAME[@SNAPSHOT]`.
    pub(crate) device: String,
    /// Why its process cannot be asked; null if it answers.
    pub(crate) error: Option<String>,
    /// How long ago it was asked for this.
    pub(crate) age_seconds: Seconds,
    /// `healthy`, `degraded` or `halted`, `unreachable` of one namespace, `failed` of a file system; null if its
    /// process does not answer.
    pub(crate) health: Option<String>,
    /// What is at risk, or why it is halted; empty for a healthy array.
    pub(crate) detail: String,
    /// Distribution over the members.
    pub(crate) layout: String,
    /// Size of the array.
    pub(crate) size: Bytes,
    /// Reads over all paths together.
    pub(crate) read: TopWay,
    /// Writes over all paths together, with parity and copies.
    pub(crate) write: TopWay,
    /// Rebuild or resync; null without one.
    pub(crate) rebuild: Option<TopRebuild>,
    /// The paths to its members.
    pub(crate) paths: Vec<TopPath>,
}

/// A rebuild or resync.
#[derive(Serialize)]
pub(crate) struct TopRebuild {
    /// Index of the member.
    pub(crate) member: usize,
    /// What is done of it.
    pub(crate) done: Share,
    /// Rate in the last half minute; null while that is not known.
    pub(crate) bytes_per_second: Option<BytesPerSecond>,
    /// Time left at that rate; null while nothing is done.
    pub(crate) remaining_seconds: Option<Seconds>,
}

/// A path to a member.
#[derive(Serialize)]
pub(crate) struct TopPath {
    /// Index of the member; null if its device is not attached.
    pub(crate) member: Option<u64>,
    /// Host and port.
    pub(crate) address: String,
    /// `optimized`, `non-optimized`, `inaccessible` or `lost`.
    pub(crate) state: String,
    /// Why there is no connection; null while there is one.
    pub(crate) why: Option<String>,
    /// The least round trip that was measured; null before the first connection.
    pub(crate) round_trip_us: Option<Micros>,
    /// How often the connection was lost since the device was opened.
    pub(crate) disconnects: u64,
    /// Reads.
    pub(crate) read: TopWay,
    /// Writes.
    pub(crate) write: TopWay,
}

/// One direction, since the refresh before: null until there is one.
#[derive(Serialize)]
pub(crate) struct TopWay {
    /// Rate of the data.
    pub(crate) bits_per_second: Option<BitsPerSecond>,
    /// Commands completed a second.
    pub(crate) commands_per_second: Option<f64>,
    /// Mean time of the commands that completed; null if none did.
    pub(crate) latency_us: Option<Micros>,
    /// Commands in flight.
    pub(crate) in_flight: u64,
}

/// `top`: the end.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct TopSummary {
    /// Number of refreshes.
    pub(crate) samples: u64,
}
