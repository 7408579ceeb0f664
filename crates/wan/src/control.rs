//! Changing and watching a running path from another process.
//!
//! The socket has the name of the path, in a directory that only its user can
//! enter. A connection carries one request and its answer, a line of JSON each.
//!
//! Invariants:
//! - one request at a time, each bounded in size and time: a silent client does
//!   not hold up others for long;
//! - a change holds when its answer is sent.

use crate::{Change, Conditions, Error, Statistics, Wan};
use longhaul_engine::net::connections;
use rustix::net::Shutdown;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest request in bytes: all there is to change, several times over.
const MAX_REQUEST: u64 = 16 << 10;

/// Timeout of either side for the other.
const PATIENCE: Duration = Duration::from_secs(5);

/// A request to a running path.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Change a link, or all of them.
    Set {
        /// Number of the link, from 1.
        link: Option<usize>,
        /// Conditions to change; the others stay.
        change: Box<Change>,
    },
    /// Read the status.
    Status {
        /// Set the counters to zero.
        reset: bool,
    },
}

/// Status of a running path.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Name of the path.
    pub name: String,
    /// Process id of the emulator.
    pub pid: u32,
    /// How packets are carried: `tun` or `netem`.
    pub via: String,
    /// Namespace of the client.
    pub client: String,
    /// Namespaces of the servers.
    pub servers: Vec<String>,
    /// Conditions of each link, in order.
    pub conditions: Vec<Conditions>,
    /// Counters since the start or the last reset.
    pub statistics: Statistics,
}

/// Directory of the sockets: in `/run` for root, else the runtime directory of the
/// session.
pub fn directory() -> PathBuf {
    let session = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    match session {
        Some(dir) if !rustix::process::geteuid().is_root() => PathBuf::from(dir).join("longhaul/wan"),
        _ => PathBuf::from("/run/longhaul/wan"),
    }
}

/// The socket of a path.
pub fn socket(name: &str) -> PathBuf {
    directory().join(format!("{name}.sock"))
}

/// Names of all sockets, with a running path or not.
pub fn names() -> Vec<String> {
    let entries = std::fs::read_dir(directory()).into_iter().flatten().flatten();
    let name = |entry: std::fs::DirEntry| Some(entry.file_name().to_str()?.strip_suffix(".sock")?.to_owned());
    let mut names: Vec<_> = entries.filter_map(name).collect();
    names.sort();
    names
}

/// Sends a request to the path of this name.
///
/// # Errors
/// No path of this name runs, it does not answer, or it refuses.
pub fn ask(name: &str, request: &Request) -> Result<Status, Error> {
    let exchange = || -> io::Result<String> {
        let mut stream = UnixStream::connect(socket(name))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(serde_json::to_string(request)?.as_bytes())?;
        stream.write_all(b"\n")?;
        let mut answer = String::new();
        match BufReader::new(stream).read_line(&mut answer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(answer),
        }
    };
    let answer = exchange().map_err(|e| match e.kind() {
        // It may have ended just now, without an answer.
        io::ErrorKind::NotFound
        | io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => Error::NotRunning(name.to_owned()),
        _ => Error::system(format!("'{name}' does not answer"))(e),
    })?;
    let answer: Result<Status, String> = serde_json::from_str(&answer)
        .map_err(|e| Error::system(format!("'{name}' does not answer"))(e.into()))?;
    answer.map_err(Error::Invalid)
}

/// The control socket of a running path; dropping it closes the socket.
#[derive(Debug)]
pub struct Control {
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

impl Control {
    /// Listens for requests to `wan`.
    ///
    /// # Errors
    /// The socket cannot be created, or another path of that name runs.
    pub fn start(wan: &Arc<Wan>) -> Result<Control, Error> {
        let path = socket(wan.name());
        let what = || format!("cannot listen on {}", path.display());
        if UnixStream::connect(&path).is_ok() {
            return Err(Error::Exists { what: "socket", name: path.display().to_string() });
        }
        // A socket without a listener was left behind.
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(Error::system(what())(e)),
            _ => {}
        }
        let mut make = std::fs::DirBuilder::new();
        make.recursive(true).mode(0o700).create(directory()).map_err(Error::system(what()))?;
        wan.remove_at_end(&path)?;
        let listener = Arc::new(UnixListener::bind(&path).map_err(Error::system(what()))?);
        let (socket, wan) = (Arc::clone(&listener), Arc::clone(wan));
        let serve = move || {
            for stream in connections(&socket) {
                if let Err(e) = answer(&wan, stream) {
                    tracing::debug!("wan: a request went wrong: {e}");
                }
            }
        };
        let thread = std::thread::Builder::new().name("wan-control".into()).spawn(serve);
        let thread = Some(thread.map_err(Error::system("cannot start a thread"))?);
        Ok(Control { listener, thread, path })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Wakes the thread up from accept; other connections fail at their next use.
        let _ = rustix::net::shutdown(&*self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn answer(wan: &Wan, mut stream: UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&stream).take(MAX_REQUEST)).read_line(&mut line)?;
    let status = serde_json::from_str(&line)
        .map_err(|e| format!("this is no request: {e}"))
        .and_then(|request| handle(wan, &request).map_err(|e| e.to_string()));
    let mut text = serde_json::to_string(&status)?;
    text.push('\n');
    stream.write_all(text.as_bytes())
}

fn handle(wan: &Wan, request: &Request) -> Result<Status, Error> {
    let reset = match request {
        Request::Set { link, change } => {
            match link {
                Some(link) => wan.set(*link, change)?,
                None => wan.set_all(change)?,
            }
            false
        }
        Request::Status { reset } => *reset,
    };
    status(wan, reset)
}

/// Status of a path; with `reset`, its counters are set to zero.
///
/// # Errors
/// It has stopped.
pub fn status(wan: &Wan, reset: bool) -> Result<Status, Error> {
    let statistics = if reset { wan.take_statistics()? } else { wan.statistics()? };
    let links = 1..=wan.links();
    Ok(Status {
        name: wan.name().to_owned(),
        pid: std::process::id(),
        via: wan.via().to_string(),
        client: wan.client().name().to_owned(),
        servers: links.clone().map(|link| wan.server(link).name().to_owned()).collect(),
        conditions: links.map(|link| wan.conditions(link)).collect::<Result<_, _>>()?,
        statistics,
    })
}
