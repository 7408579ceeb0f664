//! Throughput of a network path: parallel TCP streams in one or both directions, with
//! samples of TCP's state of each.
//!
//! Each stream is a connection and a task on an engine. A control connection carries
//! messages in lines of JSON ([`control`]): the client requests a measurement, both ends
//! measure, and the server sends its half of the result at the end. Bytes are counted
//! at the receiver.
//!
//! Invariants:
//! - a server takes part in one measurement at a time, for no longer than
//!   [`TIME_MAX`];
//! - sizes that a peer sends are checked against the limits below;
//! - only whole windows count: a stream that ends early is an error, not a lower rate.

mod client;
pub mod control;
mod document;
mod server;
mod stream;

pub use client::{Measured, NetError, measure};
pub use document::NetRuns;
pub use server::{Server, ServerConfig};

use longhaul_results::host::Host;
use longhaul_results::record::{Cpu, TcpSample};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Port of a server, next to that of an agent.
pub const PORT: u16 = 7411;
/// Version of the control connection's messages.
pub const VERSION: u32 = 1;
/// The most streams in each direction: as in iperf3.
pub const STREAMS_MAX: u16 = 128;
/// The longest measurement that a server takes part in.
pub const TIME_MAX: Duration = Duration::from_secs(3600);
/// The least interval of samples: shorter ones would disturb the measurement.
pub const INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Bounds of the bytes in one send.
pub const BLOCK: (u32, u32) = (64, 4 << 20);
/// Timeout of each step of the setup.
pub(crate) const SET_UP: Duration = Duration::from_secs(10);

/// Direction of the data, from the client's view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetDirection {
    /// To the server.
    #[default]
    Send,
    /// From the server.
    Receive,
    /// In both directions at the same time.
    Both,
}

impl NetDirection {
    /// Whether the client sends.
    pub fn sends(self) -> bool {
        self != NetDirection::Receive
    }

    /// Whether the client receives.
    pub fn receives(self) -> bool {
        self != NetDirection::Send
    }
}

impl std::str::FromStr for NetDirection {
    type Err = String;

    fn from_str(text: &str) -> Result<NetDirection, String> {
        match text {
            "send" => Ok(NetDirection::Send),
            "receive" => Ok(NetDirection::Receive),
            "both" => Ok(NetDirection::Both),
            _ => Err(format!("'{text}' is neither send nor receive nor both")),
        }
    }
}

/// A measurement to make.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetPlan {
    /// Direction of the data.
    pub way: NetDirection,
    /// Streams in each direction.
    pub streams: u16,
    /// Ramp before the window, in milliseconds.
    pub ramp_ms: u64,
    /// Length of the window, in milliseconds.
    pub time_ms: u64,
    /// Interval of samples of the streams, in milliseconds.
    pub interval_ms: u64,
    /// Bytes in one send.
    pub block: u32,
    /// The receiver's kernel discards the data without a copy.
    pub discard: bool,
    /// Congestion control of both ends, by the kernel's name.
    pub congestion: Option<String>,
}

impl Default for NetPlan {
    fn default() -> NetPlan {
        NetPlan {
            way: NetDirection::Send,
            streams: 1,
            ramp_ms: 2_000,
            time_ms: 10_000,
            interval_ms: 1_000,
            // As iperf3.
            block: 128 << 10,
            discard: false,
            congestion: None,
        }
    }
}

impl NetPlan {
    /// Checks the plan against the limits.
    ///
    /// # Errors
    /// The first option beyond its limits, in words.
    pub fn check(&self) -> Result<(), String> {
        let wrong = |text: String| Err(text);
        if !(1..=STREAMS_MAX).contains(&self.streams) {
            return wrong(format!("streams={} is not between 1 and {STREAMS_MAX}", self.streams));
        }
        if !(BLOCK.0..=BLOCK.1).contains(&self.block) {
            return wrong(format!("length={} is not between {} and {}", self.block, BLOCK.0, BLOCK.1));
        }
        let most = TIME_MAX.as_millis() as u64;
        if self.time_ms == 0 || self.time_ms > most || self.ramp_ms > most {
            return wrong(format!("a time is not between 1 ms and {} s", TIME_MAX.as_secs()));
        }
        let least = INTERVAL_MIN.as_millis() as u64;
        if self.interval_ms < least {
            return wrong(format!("interval={} ms is less than {least} ms", self.interval_ms));
        }
        let names =
            |name: &String| name.len() <= 16 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !self.congestion.as_ref().is_none_or(names) {
            return wrong("that is no name of a congestion control".into());
        }
        Ok(())
    }

    /// Number of streams in both directions.
    pub(crate) fn connections(&self) -> usize {
        usize::from(self.streams) * if self.way == NetDirection::Both { 2 } else { 1 }
    }

    /// From the beginning to the end of the window.
    pub(crate) fn length(&self) -> Duration {
        Duration::from_millis(self.ramp_ms + self.time_ms)
    }
}

/// Result of one end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Half {
    /// Name of the machine.
    pub host: Host,
    /// Processor time of the run.
    pub cpu: Cpu,
    /// Duration of the run, in seconds.
    pub seconds: f64,
    /// Share of this machine's TCP segments that were retransmissions.
    pub retransmitted: Option<f64>,
    /// Streams that this end received.
    pub received: Vec<Received>,
    /// Streams that this end sent.
    pub sent: Vec<Sent>,
}

/// A stream at its receiver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Received {
    /// Bytes in the window.
    pub bytes: u64,
    /// Bytes in each interval, from the beginning of the run.
    pub intervals: Vec<u64>,
}

/// A stream at its sender.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sent {
    /// Congestion control in use.
    pub congestion: String,
    /// TCP's state at the end of each interval.
    pub looks: Vec<TcpSample>,
}

#[cfg(test)]
mod tests;
