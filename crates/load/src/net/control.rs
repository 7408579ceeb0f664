//! The control connection: messages of both ends, a line of JSON each.

use super::{Half, NetPlan};
use longhaul_results::host::Host;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The longest line that a server reads: a plan is a few hundred bytes.
pub const LINE_MAX: usize = 16 << 10;
/// The longest line that a client reads: a server's samples of all streams in each
/// interval of an hour.
pub const REPORT_MAX: usize = 256 << 20;

/// The first message of a connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Opening {
    /// The connection controls a measurement.
    Control {
        /// The client's version of this protocol, [`super::VERSION`].
        version: u32,
        /// Token of its streams, a random number.
        token: u64,
        /// What the server is to measure.
        plan: NetPlan,
    },
    /// The connection is a stream of a measurement.
    Stream {
        /// Token of the measurement.
        token: u64,
        /// Number of the stream, from 0.
        index: u16,
        /// Whether the client sends on this stream.
        client_sends: bool,
    },
}

/// A later message of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Say {
    /// Start all streams.
    Go,
    /// The window has ended.
    Stop,
}

/// A message of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The server accepts the streams now.
    Accepted {
        /// Name of the server's machine.
        host: Box<Host>,
    },
    /// All streams are connected.
    Ready,
    /// The server's half of the result.
    Report {
        /// Counters and samples of its streams.
        half: Box<Half>,
    },
    /// The server refuses, or cannot continue.
    Refused {
        /// The reason, in words.
        reason: String,
    },
}

/// Sends a message.
pub(crate) fn say<T: Serialize>(mut to: &TcpStream, what: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Reads a line of at most `most` bytes, and no byte beyond it, within `patience`
/// from byte to byte. `None` if the peer has closed.
pub(crate) fn hear<T: for<'de> Deserialize<'de>>(
    from: &TcpStream,
    most: usize,
    patience: Duration,
) -> io::Result<Option<T>> {
    from.set_read_timeout(Some(patience))?;
    let line = read_line(from, most).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => {
            io::Error::new(io::ErrorKind::TimedOut, "the other side does not answer")
        }
        _ => e,
    })?;
    let Some(line) = line else { return Ok(None) };
    let wrong = |e: serde_json::Error| {
        io::Error::new(io::ErrorKind::InvalidData, format!("the other side speaks something else: {e}"))
    };
    serde_json::from_slice(&line).map(Some).map_err(wrong)
}

/// Later bytes stay in the socket: on a stream, data follows the line.
fn read_line(mut from: &TcpStream, most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let seen = match from.peek(&mut chunk) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            seen => seen?,
        };
        if seen == 0 {
            return Ok(None);
        }
        let end = chunk[..seen].iter().position(|b| *b == b'\n');
        let take = end.map_or(seen, |end| end + 1);
        if line.len() + take > most {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the other side's line has no end"));
        }
        from.read_exact(&mut chunk[..take])?;
        line.extend_from_slice(&chunk[..take]);
        if end.is_some() {
            return Ok(Some(line));
        }
    }
}
