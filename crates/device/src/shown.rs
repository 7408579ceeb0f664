//! Control sockets of what is no array, such as a volume of one namespace: by them programs see how it is, and the
//! paths to its members.
//!
//! Invariants:
//! - several processes of a host may have a volume open, each with a socket of its own;
//! - a socket that a killed process has left is removed by a later one.

use crate::arrays::{Registry, paths_json};
use crate::error::{Error, Result};
use crate::runtime;
use longhaul_engine::net::connections;
use longhaul_initiator::PathStatus;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;
use uuid::Uuid;

/// Longest request in bytes.
const REQUEST_MAX: u64 = 1 << 10;
/// A socket that nothing listens on is left over after this: a process that starts makes it first.
const LEFT: Duration = Duration::from_secs(60);

/// What a control socket tells of.
pub trait Shown: Send + Sync + 'static {
    /// How it is, in the form of the status of arrays: `volume`, its UUID; `kind` (`volume` or `fs`), `name`
    /// (`POOL/NAME`), `layout`, `size`, `health`, `detail`, and `members` with `index` and `device`.
    fn status(&self) -> Value;

    /// Each path, with the name of the device.
    fn paths(&self) -> Vec<(String, PathStatus)>;
}

/// A control socket, which is removed when this is dropped.
#[derive(Debug)]
pub struct ShownSocket {
    /// None if it could not be made: what is shown is used all the same.
    path: Option<PathBuf>,
}

impl ShownSocket {
    /// Makes one that tells of `shown`, which is called `name` in messages, as long as that is there.
    pub fn new<T: Shown>(shown: &Arc<T>, name: &str) -> ShownSocket {
        let registry = Registry::of_volumes();
        remove_left(&registry);
        let path = registry.socket(Uuid::new_v4());
        match listen(&path, Arc::downgrade(shown)) {
            Ok(()) => ShownSocket { path: Some(path) },
            Err(e) => {
                tracing::info!("{name}: 'longhaul top' does not show its paths: {e}");
                ShownSocket { path: None }
            }
        }
    }
}

impl Drop for ShownSocket {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn listen<T: Shown>(path: &Path, shown: Weak<T>) -> Result<()> {
    let failed = |e: io::Error| Error::failed(format!("{}: {e}", path.display()));
    runtime::make()?;
    let listener = UnixListener::bind(path).map_err(failed)?;
    let answers = move || {
        for stream in connections(&listener) {
            let Some(shown) = shown.upgrade() else { return };
            answer(&stream, &*shown);
        }
    };
    std::thread::Builder::new().name("longhaul-shown".into()).spawn(answers).map(drop).map_err(failed)
}

/// Replies to one request, in the form of those to arrays.
fn answer(stream: &UnixStream, shown: &impl Shown) {
    let limit = Some(Duration::from_secs(1));
    let mut line = String::new();
    let read = stream
        .set_read_timeout(limit)
        .and_then(|()| BufReader::new(Read::take(stream, REQUEST_MAX)).read_line(&mut line).map(drop));
    if read.is_err() {
        return;
    }
    let request: Value = serde_json::from_str(&line).unwrap_or_default();
    let reply = match request["do"].as_str() {
        Some("status") => json!({ "ok": shown.status() }),
        Some("paths") => json!({ "ok": paths_json(&shown.paths()) }),
        _ => json!({ "error": Error::invalid("it is no array").to_json() }),
    };
    // The client may have disconnected meanwhile, and needs no answer then.
    let _ = stream.set_write_timeout(limit).and_then(|()| writeln!(&*stream, "{reply}"));
}

/// Removes sockets that killed processes have left.
fn remove_left(registry: &Registry) {
    for uuid in registry.sockets() {
        let path = registry.socket(uuid);
        let age =
            std::fs::metadata(&path).and_then(|meta| meta.modified()).ok().and_then(|at| at.elapsed().ok());
        let refuses =
            || UnixStream::connect(&path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
        if age.is_some_and(|age| age > LEFT) && refuses() {
            let _ = std::fs::remove_file(&path);
        }
    }
}
