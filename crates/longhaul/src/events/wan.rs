//! `wan`

use super::{Bytes, Micros, Millis, Seconds, Share};
use serde::Serialize;

/// `wan`: the path is there.
#[derive(Serialize)]
#[serde(tag = "event", rename = "ready")]
pub(crate) struct WanReady {
    /// Its conditions and statistics.
    #[serde(flatten)]
    pub(crate) path: WanPath,
}

/// `wan`: the path has ended; `wan set`: it was changed.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct WanSummary {
    /// Its conditions and statistics.
    #[serde(flatten)]
    pub(crate) path: WanPath,
    /// Exit status of COMMAND, of `wan`; null without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) command_exit: Option<Option<i32>>,
}

/// `wan status`: paths of this machine.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct WanPaths {
    /// Each of them.
    pub(crate) paths: Vec<WanPath>,
}

/// An emulated path.
#[derive(Serialize)]
pub(crate) struct WanPath {
    /// Name of the path.
    pub(crate) name: String,
    /// The process that emulates it.
    pub(crate) pid: u32,
    /// `tun` or `netem`.
    pub(crate) via: String,
    /// Network namespace of the client.
    pub(crate) client: String,
    /// A link for each server.
    pub(crate) links: Vec<WanLink>,
    /// Time since it was made or its statistics were reset.
    pub(crate) elapsed_s: Seconds,
    /// Processor time of the emulator.
    pub(crate) cpu_s: Seconds,
    /// Memory of queued packets.
    pub(crate) memory: Bytes,
    /// The emulator runs at real-time priority.
    pub(crate) real_time: bool,
}

/// A link between the client and a server.
#[derive(Serialize)]
pub(crate) struct WanLink {
    /// Its number, from 1.
    pub(crate) link: usize,
    /// Network namespace of the server.
    pub(crate) server: String,
    /// Address of the client.
    pub(crate) client_address: String,
    /// Address of the server.
    pub(crate) server_address: String,
    /// Round trip without queues.
    pub(crate) round_trip_us: Micros,
    /// From the client to the server.
    pub(crate) there: WanWay,
    /// From the server to the client.
    pub(crate) back: WanWay,
}

/// A direction of a link: conditions and statistics.
#[derive(Serialize)]
pub(crate) struct WanWay {
    /// One-way delay without jitter and queue.
    pub(crate) delay_ms: Millis,
    /// Most that the delay varies.
    pub(crate) jitter_ms: Millis,
    /// Bits per second; null for no limit.
    pub(crate) rate: Option<u64>,
    /// Size of the queue; null for no limit.
    pub(crate) queue_bytes: Option<Bytes>,
    /// Share of packets that are lost.
    pub(crate) loss: Share,
    /// Share of packets that are held back.
    pub(crate) reorder: Share,
    /// By how much.
    pub(crate) reorder_by_ms: Millis,
    /// Share of packets that arrive twice.
    pub(crate) duplicate: Share,
    /// After how much.
    pub(crate) duplicate_after_ms: Millis,
    /// Size above which packets are dropped.
    pub(crate) black_hole: Option<u32>,
    /// The link is cut: nothing passes.
    pub(crate) cut: bool,
    /// Packets that came in.
    pub(crate) packets_in: u64,
    /// Bytes of those packets.
    pub(crate) bytes_in: Bytes,
    /// Packets that went out.
    pub(crate) packets_out: u64,
    /// Bytes of those packets.
    pub(crate) bytes_out: Bytes,
    /// Packets dropped, by cause.
    pub(crate) dropped: WanDropped,
    /// Packets held back.
    pub(crate) reordered: u64,
    /// Number of packets duplicated.
    pub(crate) duplicated: u64,
    /// Packets that could not be delivered.
    pub(crate) errors: u64,
    /// Most that the queue held.
    pub(crate) queue_max: Bytes,
    /// How late packets were delivered, since the machine was busy.
    pub(crate) late_us: WanLateness,
}

/// Numbers of packets dropped, by cause.
#[derive(Serialize)]
pub(crate) struct WanDropped {
    /// The queue was full.
    pub(crate) queue: u64,
    /// Lost at random, by `--loss`.
    pub(crate) loss: u64,
    /// The link was cut.
    pub(crate) cut: u64,
    /// Larger than `--black-hole` lets pass.
    pub(crate) black_hole: u64,
    /// `--memory` was used up.
    pub(crate) memory: u64,
    /// The kernel had no more room for packets that the emulator had not fetched.
    pub(crate) device: u64,
}

/// Lateness in µs.
#[derive(Serialize)]
pub(crate) struct WanLateness {
    /// Mean of the lateness.
    pub(crate) mean: f64,
    /// Median of the lateness.
    pub(crate) p50: f64,
    /// 99th percentile of the lateness.
    pub(crate) p99: f64,
    /// 99.9th percentile of the lateness.
    pub(crate) p999: f64,
    /// Greatest lateness of a packet.
    pub(crate) max: f64,
}
