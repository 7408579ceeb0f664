//! Asking the process that serves an attachment to end it.
//!
//! One request a connection: the line `detach`, or `detach lazily`, which removes the path at
//! once and ends the process when no I/O is under way. The reply is a line of JSON,
//! `{"ok":…}` or `{"error":{"exit":…,"message":…}}`, when the request is done.

use super::socket_of;
use crate::error::{Error, ErrorKind, Result};
use longhaul_engine::net::connections;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest request in bytes.
const REQUEST_MAX: u64 = 64;

/// A request to detach, and the connection for its reply.
#[derive(Debug)]
pub struct DetachRequest {
    stream: UnixStream,
    /// Remove the path at once, and end later.
    pub lazily: bool,
}

const DETACH: &str = "detach";
const LAZILY: &str = "detach lazily";

impl DetachRequest {
    /// Sends the reply, and closes the connection.
    pub fn answer(mut self, result: Result<()>) {
        let reply = match result {
            Ok(()) => json!({ "ok": {} }),
            Err(error) => json!({ "error": error.to_json() }),
        };
        // The client may have disconnected meanwhile, and needs no answer then.
        let _ = writeln!(self.stream, "{reply}");
    }
}

/// The control socket of an attachment; removed on drop.
#[derive(Debug)]
pub struct DetachServer(PathBuf);

impl DetachServer {
    /// Listens on the socket of the attachment at `path`, and calls `on_request` on a thread of its
    /// own. The caller holds the record, so a socket that exists is left over.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub fn start(path: &Path, on_request: impl Fn(DetachRequest) + Send + 'static) -> Result<DetachServer> {
        let socket = socket_of(path);
        let _ = std::fs::remove_file(&socket);
        let failed = |e: io::Error| Error::failed(format!("{}: {e}", socket.display()));
        let listener = UnixListener::bind(&socket).map_err(failed)?;
        std::thread::Builder::new()
            .name("longhaul-ctl".into())
            .spawn(move || {
                for stream in connections(&listener) {
                    let mut line = String::new();
                    let read = BufReader::new(Read::take(&stream, REQUEST_MAX)).read_line(&mut line);
                    let line = line.trim();
                    if read.is_ok() && [DETACH, LAZILY].contains(&line) {
                        let lazily = line == LAZILY;
                        on_request(DetachRequest { stream, lazily });
                    }
                }
            })
            .map_err(failed)?;
        Ok(DetachServer(socket))
    }
}

impl Drop for DetachServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Asks the process that serves the attachment at `path` to end it; `None` if no process listens.
/// Lazily, the path is removed at once.
///
/// # Errors
/// The error of that process, or that it ended before it replied; [`ErrorKind::TimedOut`] without
/// a reply within `limit`.
pub fn request_detach(path: &Path, lazily: bool, limit: Option<Duration>) -> Option<Result<()>> {
    let socket = socket_of(path);
    let mut stream = match UnixStream::connect(&socket) {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return None;
        }
        Err(e) => return Some(Err(Error::failed(format!("{}: {e}", socket.display())))),
        Ok(stream) => stream,
    };
    let mut line = String::new();
    let request = if lazily { LAZILY } else { DETACH };
    let exchanged = stream
        .set_read_timeout(limit)
        .and_then(|()| writeln!(stream, "{request}"))
        .and_then(|()| BufReader::new(&stream).read_line(&mut line));
    match exchanged {
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            return Some(Err(Error::new(ErrorKind::TimedOut, "the process that serves it does not answer")));
        }
        Err(e) => return Some(Err(Error::failed(e))),
        Ok(_) => {}
    }
    let ended = || Error::failed("the process that serves it ended without an answer; see its log");
    let Ok(reply) = serde_json::from_str::<Value>(&line) else { return Some(Err(ended())) };
    if reply.get("ok").is_some() {
        return Some(Ok(()));
    }
    Some(Err(Error::parse(&reply["error"]).unwrap_or_else(ended)))
}
