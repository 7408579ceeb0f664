//! What a network path carries: parallel TCP streams from here to there and
//! back, with what TCP knows of them as time goes on.
//!
//! Every stream is a connection and a task on an engine. One more connection
//! carries what both ends agree on, in lines of JSON ([`control`]): the client
//! says what to do, both ends measure, and the server sends its half at the
//! end. Bytes are counted where they arrive.
//!
//! Invariants:
//! - a server measures one thing at a time, and for no longer than
//!   [`TIME_MAX`];
//! - what a peer sends decides no size but within the limits below;
//! - only whole windows count: a stream that ends early is an error, and no
//!   smaller number.

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
/// Version of what is said on the control connection.
pub const VERSION: u32 = 1;
/// Streams in each direction: as many as iperf3 has.
pub const STREAMS_MAX: u16 = 128;
/// The longest measurement that a server takes part in.
pub const TIME_MAX: Duration = Duration::from_secs(3600);
/// The least time between looks at a stream: less would be measured instead.
pub const INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Bytes given to the kernel at once: least and most.
pub const BLOCK: (u32, u32) = (64, 4 << 20);
/// How long setting up may take at each step.
pub(crate) const SET_UP: Duration = Duration::from_secs(10);

/// Which way data goes, as the client sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// To the server.
    #[default]
    Send,
    /// From the server.
    Receive,
    /// Both at the same time.
    Both,
}

impl Way {
    /// Whether the client sends.
    pub fn sends(self) -> bool {
        self != Way::Receive
    }

    /// Whether the client receives.
    pub fn receives(self) -> bool {
        self != Way::Send
    }
}

impl std::str::FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Way, String> {
        match text {
            "send" => Ok(Way::Send),
            "receive" => Ok(Way::Receive),
            "both" => Ok(Way::Both),
            _ => Err(format!("'{text}' is neither send nor receive nor both")),
        }
    }
}

/// What to measure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Which way.
    pub way: Way,
    /// Streams in each direction.
    pub streams: u16,
    /// Milliseconds before the window.
    pub ramp_ms: u64,
    /// Milliseconds of the window.
    pub time_ms: u64,
    /// Milliseconds between looks at the streams.
    pub interval_ms: u64,
    /// Bytes given to the kernel at once.
    pub block: u32,
    /// The receiver's kernel drops what has come, and copies nothing.
    pub discard: bool,
    /// Congestion control of both ends, by the kernel's name.
    pub congestion: Option<String>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            way: Way::Send,
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

impl Plan {
    /// Whether it is within the limits.
    ///
    /// # Errors
    /// It is not, in words.
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

    /// Connections in all.
    pub(crate) fn connections(&self) -> usize {
        usize::from(self.streams) * if self.way == Way::Both { 2 } else { 1 }
    }

    /// From the beginning to the end of the window.
    pub(crate) fn length(&self) -> Duration {
        Duration::from_millis(self.ramp_ms + self.time_ms)
    }
}

/// What one end has seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Half {
    /// The machine.
    pub host: Host,
    /// Processor time of the run.
    pub cpu: Cpu,
    /// Seconds of the run.
    pub seconds: f64,
    /// Share of this machine's segments that were sent again.
    pub retransmitted: Option<f64>,
    /// Streams that it received.
    pub received: Vec<Received>,
    /// Streams that it sent.
    pub sent: Vec<Sent>,
}

/// A stream, where it arrives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Received {
    /// Bytes in the window.
    pub bytes: u64,
    /// Bytes in each interval, from the beginning of the run.
    pub intervals: Vec<u64>,
}

/// A stream, where it is sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sent {
    /// Congestion control in use.
    pub congestion: String,
    /// What TCP knew at the end of each interval.
    pub looks: Vec<TcpSample>,
}

#[cfg(test)]
mod tests;
