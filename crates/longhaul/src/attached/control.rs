//! Asking the process that serves an attachment to end it.
//!
//! One request a connection: the line `detach`, or `detach lazily`, which removes the path at
//! once and ends the process when no I/O is under way. The reply is a line of JSON,
//! `{"ok":…}` or `{"error":{"exit":…,"message":…}}`, when the request is done.

use super::socket_of;
use crate::exit::{Exit, Failure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest request in bytes.
const REQUEST_MAX: u64 = 64;

/// A request to detach, and the connection for its reply.
#[derive(Debug)]
pub(crate) struct DetachRequest {
    stream: UnixStream,
    /// Remove the path at once, and end later.
    pub(crate) lazily: bool,
}

const DETACH: &str = "detach";
const LAZILY: &str = "detach lazily";

impl DetachRequest {
    /// Sends the reply, and closes the connection.
    pub(crate) fn answer(mut self, result: &Result<(), Failure>) {
        let reply = match result {
            Ok(()) => json!({ "ok": {} }),
            Err(failure) => json!({ "error": { "exit": failure.exit as u8, "message": failure.message } }),
        };
        // The client may have disconnected meanwhile, and needs no answer then.
        let _ = writeln!(self.stream, "{reply}");
    }
}

/// The control socket of an attachment; removed on drop.
#[derive(Debug)]
pub(crate) struct DetachServer(PathBuf);

impl DetachServer {
    /// Listens on the socket of the attachment at `path`, and calls `on_request` on a thread of its
    /// own. The caller holds the record, so a socket that exists is left over.
    pub(crate) fn start(
        path: &Path,
        on_request: impl Fn(DetachRequest) + Send + 'static,
    ) -> Result<DetachServer, Failure> {
        let socket = socket_of(path);
        let _ = std::fs::remove_file(&socket);
        let failed = |e: std::io::Error| Failure::failed(format!("{}: {e}", socket.display()));
        let listener = UnixListener::bind(&socket).map_err(failed)?;
        std::thread::Builder::new()
            .name("longhaul-ctl".into())
            .spawn(move || {
                for stream in listener.incoming().flatten() {
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
/// Without a reply within `limit` it fails as [`Exit::TimedOut`].
pub(crate) fn request_detach(
    path: &Path,
    lazily: bool,
    limit: Option<Duration>,
) -> Option<Result<(), Failure>> {
    let socket = socket_of(path);
    let mut stream = match UnixStream::connect(&socket) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => return None,
        Err(e) => return Some(Err(Failure::failed(format!("{}: {e}", socket.display())))),
        Ok(stream) => stream,
    };
    let mut line = String::new();
    let request = if lazily { LAZILY } else { DETACH };
    let exchanged = stream
        .set_read_timeout(limit)
        .and_then(|()| writeln!(stream, "{request}"))
        .and_then(|()| BufReader::new(&stream).read_line(&mut line));
    match exchanged {
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            return Some(Err(Failure::new(Exit::TimedOut, "the process that serves it does not answer")));
        }
        Err(e) => return Some(Err(Failure::failed(e))),
        Ok(_) => {}
    }
    let ended = || Failure::failed("the process that serves it ended without an answer; see its log");
    let Ok(reply) = serde_json::from_str::<Value>(&line) else { return Some(Err(ended())) };
    if reply.get("ok").is_some() {
        return Some(Ok(()));
    }
    let message = reply["error"]["message"].as_str().map(str::to_owned);
    let exit = Exit::of(reply["error"]["exit"].as_u64());
    Some(Err(message.map_or_else(ended, |message| Failure::new(exit, message))))
}
