//! A namespace that is a volume by itself: no array, and with a control socket all the same, by which programs
//! see the paths to it.
//!
//! Invariants:
//! - several processes of a host may have the volume open, each with a socket of its own;
//! - a socket that a killed process has left is removed by a later one.

use crate::arrays::{Registry, paths_json};
use crate::error::{Error, Result};
use crate::runtime;
use longhaul_block::BlockDevice;
use longhaul_engine::net::connections;
use longhaul_initiator::{Outage, RemoteDevice};
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
/// The layout that its status has.
const LAYOUT: &str = "single";

/// See the module.
pub struct SingleVolume {
    device: Arc<RemoteDevice>,
    /// Its socket, if it could be made; removed with it.
    socket: Option<PathBuf>,
}

impl SingleVolume {
    /// The namespace `device`, which is the volume `name` (`POOL/NAME`) with this identity. Without a
    /// control socket it is used all the same.
    pub fn new(device: Arc<RemoteDevice>, name: &str, volume: Uuid) -> SingleVolume {
        let registry = Registry::of_volumes();
        remove_left(&registry);
        let path = registry.socket(Uuid::new_v4());
        let seen = SeenVolume { device: Arc::downgrade(&device), name: name.to_owned(), volume };
        let socket = match listen(&path, seen) {
            Ok(()) => Some(path),
            Err(e) => {
                tracing::info!("volume {name}: 'longhaul top' does not show its path: {e}");
                None
            }
        };
        SingleVolume { device, socket }
    }

    /// The namespace.
    pub fn device(&self) -> &Arc<RemoteDevice> {
        &self.device
    }
}

impl Drop for SingleVolume {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            let _ = std::fs::remove_file(socket);
        }
    }
}

/// What requests are about.
struct SeenVolume {
    device: Weak<RemoteDevice>,
    name: String,
    volume: Uuid,
}

fn listen(path: &Path, seen: SeenVolume) -> Result<()> {
    let failed = |e: io::Error| Error::failed(format!("{}: {e}", path.display()));
    runtime::make()?;
    let listener = UnixListener::bind(path).map_err(failed)?;
    let answers = move || {
        for stream in connections(&listener) {
            let Some(device) = seen.device.upgrade() else { return };
            answer(&stream, &seen, &device);
        }
    };
    std::thread::Builder::new().name("longhaul-single".into()).spawn(answers).map(drop).map_err(failed)
}

/// Replies to one request, in the form of those to arrays.
fn answer(stream: &UnixStream, seen: &SeenVolume, device: &RemoteDevice) {
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
        Some("status") => json!({ "ok": status(seen, device) }),
        Some("paths") => json!({ "ok": paths_json(&[(device.info().name, device.path_status())]) }),
        _ => json!({ "error": Error::invalid("it is a volume of one namespace, and no array").to_json() }),
    };
    // The client may have disconnected meanwhile, and needs no answer then.
    let _ = stream.set_write_timeout(limit).and_then(|()| writeln!(&*stream, "{reply}"));
}

fn status(seen: &SeenVolume, device: &RemoteDevice) -> Value {
    let info = device.info();
    let (health, detail) = match device.outage() {
        None => ("healthy", String::new()),
        Some(Outage { why, .. }) => ("unreachable", why),
    };
    json!({
        "volume": seen.volume.to_string(), "name": seen.name, "layout": LAYOUT, "size": info.size, "health": health,
        "detail": detail, "members": [{ "index": 0, "device": info.name }],
    })
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
