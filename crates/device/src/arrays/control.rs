//! The control socket of an array: requests to the process that runs it.
//!
//! One request a connection, a line of JSON; the reply is a line of JSON:
//! `{"ok":…}` or `{"error":{"exit":…,"message":…}}`. The socket belongs to the
//! user whose registry has the array: its directory lets no other user in.

use super::record::{ArrayRecord, ArraySettings};
use super::registry::Registry;
use super::report::{paths_json, scrub_json, status_json};
use crate::error::{Error, ErrorKind, Result};
use crate::opener::Opener;
use crate::runtime;
use futures_util::FutureExt;
use longhaul_array::ArrayDevice;
use longhaul_engine::net::connections;
use longhaul_engine::{Config, Engine};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Longest request in bytes: a device name and some flags.
const REQUEST_MAX: u64 = 64 << 10;

/// A request to the process that runs an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArrayRequest {
    /// The status, as [`status_json`] has it.
    Status,
    /// The paths to the members and what went over them: a [`PathsReply`](super::PathsReply).
    Paths,
    /// Stops the array.
    Stop,
    /// Reads and verifies everything, and repairs what is wrong; the reply is that of
    /// [`scrub_json`].
    Scrub {
        /// Most bytes per second read from each member, from now on.
        rate: Option<u64>,
    },
    /// Replaces a member, whose rebuild begins.
    Replace {
        /// Number of the member in the status.
        index: usize,
        /// Name of the device that replaces it.
        device: String,
        /// Overwrite a device that holds data.
        force: bool,
    },
    /// Moves a member to another device, and waits until it is there: it stays in use meanwhile. A second
    /// request for the same device waits for the first one.
    Move {
        /// Number of the member in the status.
        index: usize,
        /// Name of the device that it moves to.
        device: String,
        /// Overwrite a device that holds data.
        force: bool,
    },
    /// Gives up a move to a device, if one is under way; the reply says whether the device is a `member`:
    /// it has moved there before.
    CancelMove {
        /// Name of the device.
        device: String,
    },
    /// Lets a spare leave the array.
    RemoveSpare {
        /// Name of its device.
        device: String,
    },
    /// Adds a spare.
    AddSpare {
        /// Name of the device.
        device: String,
        /// Overwrite a device that holds data.
        force: bool,
    },
    /// Makes the array as large as its members have become; the reply has its size `before` and `after`
    /// in bytes.
    Grow {
        /// Bytes that it is to have at least: members may not have heard of their new size yet.
        least: Option<u64>,
    },
    /// Pauses writes, so that copies of the members that are made meanwhile are of one moment; the reply
    /// has the number of the `pause`.
    Pause {
        /// It ends by itself after this time.
        limit: Duration,
    },
    /// Ends a pause; the reply says whether writes were `held` until now.
    Resume {
        /// Its number.
        pause: u64,
    },
    /// Limits the rate of rebuilds.
    Rate {
        /// Most bytes per second read from each member; `None`: no limit.
        rate: Option<u64>,
    },
    /// Waits until the rebuild or resync of a member is complete; the reply is the status.
    Rebuilt {
        /// Number of the member in the status.
        index: usize,
    },
}

/// The result of a request, as JSON.
pub type ArrayReply = Result<Value>;

impl ArrayRequest {
    fn to_json(&self) -> Value {
        match self {
            ArrayRequest::Status => json!({ "do": "status" }),
            ArrayRequest::Paths => json!({ "do": "paths" }),
            ArrayRequest::Stop => json!({ "do": "stop" }),
            ArrayRequest::Scrub { rate } => json!({ "do": "scrub", "rate": rate }),
            ArrayRequest::Rebuilt { index } => json!({ "do": "filled", "index": index }),
            ArrayRequest::Rate { rate } => json!({ "do": "rate", "rate": rate }),
            ArrayRequest::Grow { least } => json!({ "do": "grow", "least": least }),
            ArrayRequest::Pause { limit } => {
                json!({ "do": "pause", "limit_ms": limit.as_millis() as u64 })
            }
            ArrayRequest::Resume { pause } => json!({ "do": "resume", "pause": pause }),
            ArrayRequest::Move { index, device, force } => {
                json!({ "do": "move", "index": index, "device": device, "force": force })
            }
            ArrayRequest::CancelMove { device } => json!({ "do": "cancel-move", "device": device }),
            ArrayRequest::RemoveSpare { device } => json!({ "do": "remove-spare", "device": device }),
            ArrayRequest::AddSpare { device, force } => {
                json!({ "do": "add-spare", "device": device, "force": force })
            }
            ArrayRequest::Replace { index, device, force } => {
                json!({ "do": "replace", "index": index, "device": device, "force": force })
            }
        }
    }

    fn parse(text: &str) -> Option<ArrayRequest> {
        let value: Value = serde_json::from_str(text).ok()?;
        let device = || value["device"].as_str().map(str::to_owned);
        let index = || usize::try_from(value["index"].as_u64()?).ok();
        let force = value["force"].as_bool().unwrap_or(false);
        Some(match value["do"].as_str()? {
            "status" => ArrayRequest::Status,
            "paths" => ArrayRequest::Paths,
            "stop" => ArrayRequest::Stop,
            "scrub" => ArrayRequest::Scrub { rate: value["rate"].as_u64() },
            "filled" => ArrayRequest::Rebuilt { index: index()? },
            "grow" => ArrayRequest::Grow { least: value["least"].as_u64() },
            "pause" => ArrayRequest::Pause { limit: Duration::from_millis(value["limit_ms"].as_u64()?) },
            "resume" => ArrayRequest::Resume { pause: value["pause"].as_u64()? },
            "rate" => ArrayRequest::Rate { rate: value["rate"].as_u64() },
            "move" => ArrayRequest::Move { index: index()?, device: device()?, force },
            "cancel-move" => ArrayRequest::CancelMove { device: device()? },
            "remove-spare" => ArrayRequest::RemoveSpare { device: device()? },
            "add-spare" => ArrayRequest::AddSpare { device: device()?, force },
            "replace" => ArrayRequest::Replace { index: index()?, device: device()?, force },
            _ => return None,
        })
    }

    /// Carries out the request; `opener` opens the devices that it names.
    ///
    /// # Errors
    /// Those of the array, and of opening a device.
    pub async fn run(self, array: &ArrayDevice, opener: &Opener) -> ArrayReply {
        match self {
            ArrayRequest::Status => Ok(status_json(&array.status().await?)),
            ArrayRequest::Paths => Ok(paths_json(&opener.paths())),
            ArrayRequest::Stop => {
                array.stop().await?;
                Ok(json!({}))
            }
            ArrayRequest::Scrub { rate } => {
                if rate.is_some() {
                    array.set_scrub_rate(rate).await?;
                }
                Ok(scrub_json(&array.scrub().await?))
            }
            ArrayRequest::Rebuilt { index } => {
                array.wait_rebuilt(index).await?;
                Ok(status_json(&array.status().await?))
            }
            ArrayRequest::Grow { least } => {
                let (before, after) = grow(array, least).await?;
                Ok(json!({ "before": before, "after": after }))
            }
            ArrayRequest::Pause { limit } => Ok(json!({ "pause": array.pause(limit).await? })),
            ArrayRequest::Resume { pause } => Ok(json!({ "held": array.resume(pause).await? })),
            ArrayRequest::Rate { rate } => {
                array.set_rebuild_rate(rate).await?;
                Ok(json!({}))
            }
            ArrayRequest::Move { index, device, force } => {
                array.move_member(index, opener.open_in_background(&device).await?, force).await?;
                Ok(json!({}))
            }
            ArrayRequest::CancelMove { device } => Ok(json!({ "member": array.cancel_move(&device).await? })),
            ArrayRequest::RemoveSpare { device } => {
                array.remove_spare(&device).await?;
                Ok(json!({}))
            }
            ArrayRequest::AddSpare { device, force } => {
                array.add_spare(opener.open_in_background(&device).await?, force).await?;
                Ok(json!({}))
            }
            ArrayRequest::Replace { index, device, force } => {
                array.replace(index, opener.open_in_background(&device).await?, force).await?;
                Ok(json!({}))
            }
        }
    }
}

/// How long members may take to hear of their new size, from their targets, and how often to look.
const SIZES_KNOWN: Duration = Duration::from_secs(10);
const SIZES_LOOK: Duration = Duration::from_millis(100);
/// The same where no size is asked for.
const SIZES_SEEN: Duration = Duration::from_secs(2);

/// Lets an array grow to what its members have, and to `least` bytes at least. Returns its sizes before
/// and after.
///
/// # Errors
/// Those of [`ArrayDevice::grow`].
pub async fn grow(array: &ArrayDevice, least: Option<u64>) -> Result<(u64, u64)> {
    let end = longhaul_engine::now() + if least.is_some() { SIZES_KNOWN } else { SIZES_SEEN };
    let (before, mut after) = array.grow().await?;
    let is_large = |after: u64| after >= least.unwrap_or(before + 1);
    while !is_large(after) && longhaul_engine::now() < end {
        longhaul_engine::sleep(SIZES_LOOK).await;
        after = array.grow().await?.1;
    }
    match least {
        Some(least) if after < least => Err(Error::failed(format!(
            "the array has {after} bytes and should have {least}: a member has not become as large as the others"
        ))),
        _ => Ok((before, after)),
    }
}

/// The control socket of one array; removed on drop.
pub(crate) struct ArrayServer {
    path: PathBuf,
    registry: Registry,
}

impl ArrayServer {
    pub(crate) fn start(record: ArrayRecord, array: Arc<ArrayDevice>, opener: Opener) -> Result<ArrayServer> {
        let registry = record.registry;
        let path = registry.socket(record.uuid);
        let wrong = |e: io::Error| Error::failed(format!("{}: {e}", path.display()));
        let listen = || {
            runtime::make_at(registry.runtime())?;
            // A socket left over from a crash: the fence of the array ensures that no other
            // process runs it.
            let _ = std::fs::remove_file(&path);
            UnixListener::bind(&path).map_err(wrong)
        };
        let listener = registry.with_rights(listen).map_err(wrong)??;
        std::thread::spawn(move || {
            for stream in connections(&listener) {
                // A thread for each request: a scrub takes hours, and must not delay a status.
                let (array, opener) = (Arc::downgrade(&array), opener.clone());
                std::thread::spawn(move || {
                    let Some(array) = array.upgrade() else { return };
                    answer(stream, &array, &opener);
                });
            }
        });
        Ok(ArrayServer { path, registry })
    }
}

impl Drop for ArrayServer {
    fn drop(&mut self) {
        let _ = self.registry.with_rights(|| std::fs::remove_file(&self.path));
    }
}

fn answer(stream: UnixStream, array: &ArrayDevice, opener: &Opener) {
    let mut line = String::new();
    if BufReader::new(Read::take(&stream, REQUEST_MAX)).read_line(&mut line).is_err() {
        return;
    }
    let reply = match ArrayRequest::parse(&line) {
        None => Err(Error::invalid("not a request")),
        Some(request) => match Engine::new(&Config::default()) {
            Ok(engine) => engine.block_on(request.run(array, opener).boxed_local()),
            Err(e) => Err(Error::failed(e)),
        },
    };
    let reply = match reply {
        Ok(value) => json!({ "ok": value }),
        Err(error) => json!({ "error": error.to_json() }),
    };
    // The client may have disconnected meanwhile, and needs no answer then.
    let _ = writeln!(&stream, "{reply}");
}

/// Arrays that processes of this host run, as this user sees them: those on this host's records and
/// volumes of pools. They are named by their UUID, and to be asked by [`ArrayClient`], which tells whether
/// a process still runs one.
pub fn running() -> Vec<ArrayRecord> {
    let mut all: Vec<ArrayRecord> = Vec::new();
    for registry in Registry::all() {
        for uuid in registry.sockets() {
            if all.iter().all(|known| known.uuid != uuid) {
                all.push(ArrayRecord {
                    uuid,
                    name: uuid.to_string(),
                    devices: Vec::new(),
                    members: BTreeMap::new(),
                    settings: ArraySettings::default(),
                    registry: registry.clone(),
                });
            }
        }
    }
    all
}

/// Sends requests to the process that runs an array on this host.
#[derive(Clone, Copy, Debug)]
pub struct ArrayClient;

/// Timeout for connecting to the process that runs an array, and for its reply to a status
/// request, which it makes from memory. During longer requests the status is requested at this
/// interval, to detect a stopped process.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

impl ArrayClient {
    /// The reply; `None` if no process runs the array here. A process that does not reply within
    /// 10 s gives [`ErrorKind::TimedOut`].
    pub fn ask(array: &ArrayRecord, request: &ArrayRequest) -> Option<ArrayReply> {
        let path = array.registry.socket(array.uuid);
        let stream = match connect(&path, &array.registry) {
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                return None;
            }
            Err(e) if e.kind() == io::ErrorKind::TimedOut => return Some(Err(silent(&path))),
            Err(e) => return Some(Err(Error::failed(format!("{}: {e}", path.display())))),
            Ok(stream) => stream,
        };
        Some(ArrayClient::exchange(array, &path, &stream, request))
    }

    fn exchange(
        array: &ArrayRecord,
        path: &Path,
        mut stream: &UnixStream,
        request: &ArrayRequest,
    ) -> ArrayReply {
        stream.set_read_timeout(Some(REPLY_TIMEOUT)).map_err(Error::failed)?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT)).map_err(Error::failed)?;
        writeln!(stream, "{}", request.to_json()).map_err(Error::failed)?;
        let mut line = Vec::new();
        let mut from = BufReader::new(stream);
        while let Err(e) = from.read_until(b'\n', &mut line) {
            match e.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    if matches!(request, ArrayRequest::Status | ArrayRequest::Paths) =>
                {
                    return Err(silent(path));
                }
                // A scrub takes hours: a status request shows whether the process still responds.
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    match ArrayClient::ask(array, &ArrayRequest::Status) {
                        Some(Err(error)) if error.kind() == ErrorKind::TimedOut => return Err(error),
                        _ => {}
                    }
                }
                io::ErrorKind::Interrupted => {}
                _ => return Err(Error::failed(e)),
            }
        }
        let ended = || Error::failed("the process that ran the array has ended before it answered");
        let reply: Value = serde_json::from_slice(&line).map_err(|_| ended())?;
        if let Some(ok) = reply.get("ok") {
            return Ok(ok.clone());
        }
        Err(Error::parse(&reply["error"]).unwrap_or_else(ended))
    }
}

/// Connects within [`REPLY_TIMEOUT`]: `connect` blocks once the listen queue of a stopped process
/// is full, and has no timeout of its own.
fn connect(path: &Path, registry: &Registry) -> io::Result<UnixStream> {
    let (done, connected) = channel();
    let (path, registry) = (path.to_owned(), registry.clone());
    std::thread::spawn(move || {
        let stream = registry.with_rights(|| UnixStream::connect(path)).and_then(|stream| stream);
        drop(done.send(stream));
    });
    connected.recv_timeout(REPLY_TIMEOUT).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn silent(path: &Path) -> Error {
    Error::new(
        ErrorKind::TimedOut,
        format!(
            "the process that runs the array on this host has not answered on {} in {} s: it may be stopped; let \
             it continue, or end it, and try again",
            path.display(),
            REPLY_TIMEOUT.as_secs()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_back() {
        let device = "nvme+tcp://h/x".to_owned();
        let all = [
            ArrayRequest::Status,
            ArrayRequest::Paths,
            ArrayRequest::Stop,
            ArrayRequest::Scrub { rate: None },
            ArrayRequest::Scrub { rate: Some(1 << 20) },
            ArrayRequest::Rebuilt { index: 2 },
            ArrayRequest::Rate { rate: None },
            ArrayRequest::Grow { least: None },
            ArrayRequest::Grow { least: Some(1 << 40) },
            ArrayRequest::Pause { limit: Duration::from_millis(1500) },
            ArrayRequest::Resume { pause: 7 },
            ArrayRequest::Rate { rate: Some(1 << 20) },
            ArrayRequest::Move { index: 1, device: device.clone(), force: true },
            ArrayRequest::CancelMove { device: device.clone() },
            ArrayRequest::RemoveSpare { device: device.clone() },
            ArrayRequest::AddSpare { device: device.clone(), force: true },
            ArrayRequest::Replace { index: 3, device, force: false },
        ];
        for request in all {
            assert_eq!(ArrayRequest::parse(&request.to_json().to_string()), Some(request));
        }
        for text in ["", "{}", r#"{"do":"dance"}"#, r#"{"do":"replace","device":"x"}"#] {
            assert_eq!(ArrayRequest::parse(text), None, "{text}");
        }
    }
}
