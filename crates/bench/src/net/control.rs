//! What both ends say to each other: a line of JSON each.

use super::{Half, Plan};
use longhaul_results::host::Host;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The longest line that a server reads: a plan is a few hundred bytes.
pub const LINE_MAX: usize = 16 << 10;
/// The longest that a client reads: what a server has seen of all streams in
/// each interval of an hour.
pub const REPORT_MAX: usize = 256 << 20;

/// What a connection begins with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Opening {
    /// It is to control a measurement.
    Control {
        /// [`super::VERSION`].
        version: u32,
        /// What its streams are known by.
        token: u64,
        /// What to do.
        plan: Plan,
    },
    /// It is a stream of one.
    Stream {
        /// Of which.
        token: u64,
        /// Its number, from 0.
        index: u16,
        /// The client sends on it.
        client_sends: bool,
    },
}

/// What the client says afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Say {
    /// Begin.
    Go,
    /// The window is over.
    Stop,
}

/// What the server says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The streams may come.
    Accepted {
        /// Who says so.
        host: Box<Host>,
    },
    /// All streams are there.
    Ready,
    /// Its half of the result.
    Report {
        /// What it has seen.
        half: Box<Half>,
    },
    /// It will not, or cannot go on.
    Refused {
        /// Why.
        reason: String,
    },
}

/// Sends a line.
pub(crate) fn say<T: Serialize>(mut to: &TcpStream, what: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Reads a line of at most `most` bytes, and no byte beyond it, within `patience`
/// from byte to byte. Nothing if the peer has closed.
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

/// What is not read stays in the socket: on a stream, data follows the line.
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
