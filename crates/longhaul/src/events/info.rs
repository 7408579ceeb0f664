//! `info`, `discover`, `show-hostnqn`

use super::{Bytes, Micros, Seconds};
use serde::Serialize;

/// `info`: a namespace, its controller and the path to it.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct InfoSummary {
    /// URI of the namespace.
    pub(crate) uri: String,
    /// The controller that serves the namespace.
    pub(crate) controller: ControllerFields,
    /// The namespace of the URI.
    pub(crate) namespace: NamespaceFields,
    /// The network path to the target.
    pub(crate) path: PathFields,
    /// How long the set-up took.
    pub(crate) setup: SetUpFields,
    /// Each path of a URI with several addresses; `controller`, `path` and `setup` are then those
    /// of the first that is connected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) paths: Vec<OneOfPaths>,
}

/// One of several paths.
#[derive(Serialize)]
pub(crate) struct OneOfPaths {
    /// Host and port, as in the URI.
    pub(crate) address: String,
    /// `optimized`, `non-optimized`, `inaccessible` or `lost`.
    pub(crate) state: String,
    /// Least round trip; null before the first connection.
    pub(crate) round_trip_us: Option<Micros>,
    /// Rate that `--path` measured; null without it.
    pub(crate) bits_per_second: Option<u64>,
    /// Number of times that its connection was lost.
    pub(crate) disconnects: u64,
    /// Why there is no connection; null while there is one.
    pub(crate) why: Option<String>,
    /// What `--path` measured, in a sentence; null without it.
    pub(crate) sentence: Option<String>,
}

/// A controller, as Identify Controller reports it.
#[derive(Serialize)]
pub(crate) struct ControllerFields {
    /// IP address and port.
    pub(crate) address: String,
    /// NQN of its subsystem.
    pub(crate) subnqn: String,
    /// Controller ID (CNTLID).
    pub(crate) cntlid: u16,
    /// Model number (MN).
    pub(crate) model: String,
    /// Serial number (SN).
    pub(crate) serial: String,
    /// Firmware revision (FR).
    pub(crate) firmware: String,
    /// NVMe version, such as `2.1.0`.
    pub(crate) version: String,
    /// Largest transfer of a command; null without a limit.
    pub(crate) max_transfer: Option<Bytes>,
    /// In-capsule data of an I/O queue.
    pub(crate) in_capsule: Bytes,
    /// Most entries of a queue.
    pub(crate) queue_entries: u32,
    /// I/O queues granted.
    pub(crate) queues: u16,
    /// Keep-alive timeout in ms.
    pub(crate) kato_ms: u64,
    /// It counts any traffic as a keep-alive.
    pub(crate) traffic_keep_alive: bool,
    /// Header digests are in use.
    pub(crate) hdr_digest: bool,
    /// Data digests are in use.
    pub(crate) data_digest: bool,
    /// Its connections are encrypted with TLS.
    pub(crate) tls: bool,
    /// It has a volatile write cache.
    pub(crate) write_cache: bool,
    /// It supports Cross-Controller Reset.
    pub(crate) resets_others: bool,
}

/// A namespace, as Identify Namespace reports it.
#[derive(Serialize)]
pub(crate) struct NamespaceFields {
    /// Namespace ID, from 1.
    pub(crate) nsid: u32,
    /// Capacity of the namespace.
    pub(crate) size: Bytes,
    /// Bytes of a logical block.
    pub(crate) block_size: u32,
    /// Optimal size of a write in bytes; 0 if not reported.
    pub(crate) optimal_io: u32,
    /// Writes are refused.
    pub(crate) read_only: bool,
    /// UUID; null if the namespace has none.
    pub(crate) uuid: Option<String>,
}

/// A network path, as TCP and `--path` measure it.
#[derive(Serialize)]
pub(crate) struct PathFields {
    /// Round trip of TCP at the set-up.
    pub(crate) round_trip_us: Micros,
    /// Mean deviation of that round trip.
    pub(crate) variation_us: Micros,
    /// Congestion control of this end.
    pub(crate) congestion: String,
    /// What `--path` measured; null without it.
    pub(crate) measured: Option<MeasuredPath>,
}

/// A measurement of a path.
#[derive(Serialize)]
pub(crate) struct MeasuredPath {
    /// The whole in a sentence.
    pub(crate) sentence: String,
    /// Least round trip.
    pub(crate) round_trip_us: Micros,
    /// Smoothed round trip of TCP at the end, queues included.
    pub(crate) round_trip_now_us: Micros,
    /// Rate that the path carries.
    pub(crate) bits_per_second: u64,
    /// Rate times round trip.
    pub(crate) bandwidth_delay_product: Bytes,
    /// The path was full.
    pub(crate) full: bool,
    /// The tuner has settled.
    pub(crate) settled: bool,
    /// What limits a connection, or the path.
    pub(crate) limit: Option<PathLimit>,
    /// Number of connections chosen.
    pub(crate) connections: u16,
    /// Bytes in flight chosen.
    pub(crate) in_flight: Bytes,
    /// Size of a request advised.
    pub(crate) io_size: Bytes,
    /// Read-ahead advised for streams.
    pub(crate) read_ahead: Bytes,
    /// Bytes that the measurement read.
    pub(crate) bytes_read: Bytes,
    /// Time of the measurement.
    pub(crate) seconds: Seconds,
}

/// What limits a connection, or the whole path.
#[derive(Default, Serialize)]
pub(crate) struct PathLimit {
    /// The kernel's setting of a socket buffer.
    pub(crate) setting: Option<&'static str>,
    /// The end of that setting: `near` or `far`.
    pub(crate) side: Option<&'static str>,
    /// Bytes in flight that it allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_in_flight: Option<Bytes>,
    /// Loss limits: true, or left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) loss: Option<bool>,
    /// The device of the far side or a processor limits: true, or left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hosts: Option<bool>,
}

/// The set-up of a controller.
#[derive(Serialize)]
pub(crate) struct SetUpFields {
    /// Time until the controller and all I/O queues were ready.
    pub(crate) setup_us: Micros,
    /// The same without the queues.
    pub(crate) controller_us: Micros,
    /// Number of round trips one after another.
    pub(crate) round_trips: u32,
    /// Number of I/O queues; none without `--path`.
    pub(crate) queues: u16,
}

/// `show-hostnqn`: the names by which targets know this host.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct HostSummary {
    /// NQN of the host.
    pub(crate) hostnqn: String,
    /// Host identifier (HOSTID).
    pub(crate) hostid: String,
    /// The file that the NQN is from; null for one that each command makes anew.
    pub(crate) source: Option<String>,
}

/// `discover`: a record of the discovery log.
#[derive(Serialize)]
#[serde(tag = "event", rename = "record")]
pub(crate) struct DiscoveryRecord {
    /// Subsystem type: `nvme subsystem`, `referral` or `current discovery subsystem`.
    pub(crate) subtype: String,
    /// NQN of the subsystem.
    pub(crate) subnqn: String,
    /// Transport type: `tcp`, `rdma`, `fc` or `loop`.
    pub(crate) trtype: String,
    /// Address family: `ipv4` or `ipv6`.
    pub(crate) adrfam: String,
    /// Transport address (TRADDR).
    pub(crate) traddr: String,
    /// Service: the TCP port.
    pub(crate) trsvcid: String,
    /// Port ID within the subsystem.
    pub(crate) portid: u16,
    /// Controller ID; 65535 for any.
    pub(crate) cntlid: u16,
    /// Most entries of the admin queue.
    pub(crate) asqsz: u16,
    /// Transport requirements, as bits.
    pub(crate) treq: u8,
    /// Security type; 0 for none.
    pub(crate) sectype: u8,
    /// URI; null for transports without one.
    pub(crate) uri: Option<String>,
}

/// `discover`: the end of the log.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct DiscoverySummary {
    /// Generation counter of the log.
    pub(crate) generation: u64,
    /// Number of records.
    pub(crate) records: usize,
}
