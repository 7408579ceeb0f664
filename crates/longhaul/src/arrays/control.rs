//! The control socket of an array: requests to the process that runs it.
//!
//! One request a connection, a line of JSON; the reply is a line of JSON:
//! `{"ok":…}` or `{"error":{"exit":…,"message":…}}`. The socket belongs to the
//! user whose registry has the array: its directory lets no other user in.

use super::record::ArrayRecord;
use super::registry::Registry;
use crate::exit::{Exit, Failure};
use crate::names::Opener;
use crate::verbs::array::show;
use futures_util::FutureExt;
use longhaul_array::ArrayDevice;
use longhaul_device::runtime;
use longhaul_engine::{Config, Engine};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Longest request in bytes: a device name and some flags.
const REQUEST_MAX: u64 = 64 << 10;

/// A request to the process that runs an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Status,
    Stop,
    Scrub {
        rate: Option<u64>,
    },
    Replace {
        index: usize,
        device: String,
        force: bool,
    },
    AddSpare {
        device: String,
        force: bool,
    },
    Rate {
        rate: Option<u64>,
    },
    /// Waits until the rebuild or resync of a member is complete.
    Rebuilt {
        index: usize,
    },
}

/// The result of a request, as JSON.
pub(crate) type Reply = Result<Value, Failure>;

impl Request {
    fn to_json(&self) -> Value {
        match self {
            Request::Status => json!({ "do": "status" }),
            Request::Stop => json!({ "do": "stop" }),
            Request::Scrub { rate } => json!({ "do": "scrub", "rate": rate }),
            Request::Rebuilt { index } => json!({ "do": "filled", "index": index }),
            Request::Rate { rate } => json!({ "do": "rate", "rate": rate }),
            Request::AddSpare { device, force } => {
                json!({ "do": "add-spare", "device": device, "force": force })
            }
            Request::Replace { index, device, force } => {
                json!({ "do": "replace", "index": index, "device": device, "force": force })
            }
        }
    }

    fn parse(text: &str) -> Option<Request> {
        let value: Value = serde_json::from_str(text).ok()?;
        let device = || value["device"].as_str().map(str::to_owned);
        let index = || usize::try_from(value["index"].as_u64()?).ok();
        let force = value["force"].as_bool().unwrap_or(false);
        Some(match value["do"].as_str()? {
            "status" => Request::Status,
            "stop" => Request::Stop,
            "scrub" => Request::Scrub { rate: value["rate"].as_u64() },
            "filled" => Request::Rebuilt { index: index()? },
            "rate" => Request::Rate { rate: value["rate"].as_u64() },
            "add-spare" => Request::AddSpare { device: device()?, force },
            "replace" => Request::Replace { index: index()?, device: device()?, force },
            _ => return None,
        })
    }

    /// Carries out the request.
    pub(crate) async fn run(self, array: &ArrayDevice, opener: &Opener) -> Reply {
        match self {
            Request::Status => Ok(show::status(&array.status().await?)),
            Request::Stop => {
                array.stop().await?;
                Ok(json!({}))
            }
            Request::Scrub { rate } => {
                if rate.is_some() {
                    array.set_scrub_rate(rate).await?;
                }
                Ok(show::scrub(&array.scrub().await?))
            }
            Request::Rebuilt { index } => {
                array.wait_filled(index).await?;
                Ok(show::status(&array.status().await?))
            }
            Request::Rate { rate } => {
                array.set_rebuild_rate(rate).await?;
                Ok(json!({}))
            }
            Request::AddSpare { device, force } => {
                array.add_spare(opener.open_in_background(&device).await?, force).await?;
                Ok(json!({}))
            }
            Request::Replace { index, device, force } => {
                array.replace(index, opener.open_in_background(&device).await?, force).await?;
                Ok(json!({}))
            }
        }
    }
}

/// The control socket of one array; removed on drop.
pub(crate) struct ArrayServer {
    path: PathBuf,
    registry: Registry,
}

impl ArrayServer {
    pub(crate) fn start(
        record: ArrayRecord,
        array: Arc<ArrayDevice>,
        opener: Opener,
    ) -> Result<ArrayServer, Failure> {
        let registry = record.registry;
        let path = registry.socket(record.uuid);
        let wrong = |e: std::io::Error| Failure::failed(format!("{}: {e}", path.display()));
        let listen = || {
            runtime::make_at(registry.runtime())?;
            // A socket left over from a crash: the fence of the array ensures that no other
            // process runs it.
            let _ = std::fs::remove_file(&path);
            UnixListener::bind(&path).map_err(wrong)
        };
        let listener = registry.with_rights(listen).map_err(wrong)??;
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // A thread for each request: a scrub takes hours, and must not delay a status.
                let Ok(stream) = stream else { return };
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
    let reply = match Request::parse(&line) {
        None => Err(Failure::usage("not a request")),
        Some(request) => match Engine::new(&Config::default()) {
            Ok(engine) => engine.block_on(request.run(array, opener).boxed_local()),
            Err(e) => Err(Failure::failed(e)),
        },
    };
    let reply = match reply {
        Ok(value) => json!({ "ok": value }),
        Err(failure) => json!({ "error": { "exit": failure.exit as u8, "message": failure.message } }),
    };
    // The client may have disconnected meanwhile, and needs no answer then.
    let _ = writeln!(&stream, "{reply}");
}

/// Sends requests to the process that runs an array on this host.
pub(crate) struct ArrayClient;

/// Timeout for connecting to the process that runs an array, and for its reply to a status
/// request, which it makes from memory. During longer requests the status is requested at this
/// interval, to detect a stopped process.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

impl ArrayClient {
    /// The reply; `None` if no process runs the array here. A process that does not reply within
    /// [`REPLY_TIMEOUT`] gives [`Exit::TimedOut`].
    pub(crate) fn ask(array: &ArrayRecord, request: &Request) -> Option<Reply> {
        let path = array.registry.socket(array.uuid);
        let stream = match connect(&path, &array.registry) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => return None,
            Err(e) if e.kind() == ErrorKind::TimedOut => return Some(Err(silent(&path))),
            Err(e) => return Some(Err(Failure::failed(format!("{}: {e}", path.display())))),
            Ok(stream) => stream,
        };
        Some(ArrayClient::exchange(array, &path, &stream, request))
    }

    fn exchange(array: &ArrayRecord, path: &Path, mut stream: &UnixStream, request: &Request) -> Reply {
        stream.set_read_timeout(Some(REPLY_TIMEOUT)).map_err(Failure::failed)?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT)).map_err(Failure::failed)?;
        writeln!(stream, "{}", request.to_json()).map_err(Failure::failed)?;
        let mut line = Vec::new();
        let mut from = BufReader::new(stream);
        while let Err(e) = from.read_until(b'\n', &mut line) {
            match e.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut if *request == Request::Status => {
                    return Err(silent(path));
                }
                // A scrub takes hours: a status request shows whether the process still responds.
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    match ArrayClient::ask(array, &Request::Status) {
                        Some(Err(failure)) if failure.exit == Exit::TimedOut => return Err(failure),
                        _ => {}
                    }
                }
                ErrorKind::Interrupted => {}
                _ => return Err(Failure::failed(e)),
            }
        }
        let ended = || Failure::failed("the process that ran the array has ended before it answered");
        let reply: Value = serde_json::from_slice(&line).map_err(|_| ended())?;
        if let Some(ok) = reply.get("ok") {
            return Ok(ok.clone());
        }
        let message = reply["error"]["message"].as_str().ok_or_else(ended)?;
        Err(Failure::new(Exit::of(reply["error"]["exit"].as_u64()), message))
    }
}

/// Connects within [`REPLY_TIMEOUT`]: `connect` blocks once the listen queue of a stopped process
/// is full, and has no timeout of its own.
fn connect(path: &Path, registry: &Registry) -> std::io::Result<UnixStream> {
    let (done, connected) = channel();
    let (path, registry) = (path.to_owned(), registry.clone());
    std::thread::spawn(move || {
        let stream = registry.with_rights(|| UnixStream::connect(path)).and_then(|stream| stream);
        drop(done.send(stream));
    });
    connected.recv_timeout(REPLY_TIMEOUT).unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

fn silent(path: &Path) -> Failure {
    Failure::new(
        Exit::TimedOut,
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
            Request::Status,
            Request::Stop,
            Request::Scrub { rate: None },
            Request::Scrub { rate: Some(1 << 20) },
            Request::Rebuilt { index: 2 },
            Request::Rate { rate: None },
            Request::Rate { rate: Some(1 << 20) },
            Request::AddSpare { device: device.clone(), force: true },
            Request::Replace { index: 3, device, force: false },
        ];
        for request in all {
            assert_eq!(Request::parse(&request.to_json().to_string()), Some(request));
        }
        for text in ["", "{}", r#"{"do":"dance"}"#, r#"{"do":"replace","device":"x"}"#] {
            assert_eq!(Request::parse(text), None, "{text}");
        }
    }
}
