//! The server: a listener, and a thread for each of a bounded number of connections.
//!
//! Invariants:
//! - there are no more than [`CONNECTIONS_MAX`] connections; the oldest one gives way to the next, one whose
//!   request is not there before others, so that peers that say or take nothing keep no other out;
//! - there are no more than [`THREADS_MAX`] threads, also while connections that gave way end;
//! - a connection ends within [`REQUEST`] and [`RESPONSE`];
//! - one page is collected at a time, so that scrapes take no more than one processor;
//! - no thread of the data path is waited for, but for [`STALL`].

use crate::http::{Refusal, Request, Response, receive};
use crate::page::{Format, Page};
use crate::process;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections at a time: a few servers of Prometheus, and probes of health.
pub(crate) const CONNECTIONS_MAX: usize = 32;
/// Threads at a time.
const THREADS_MAX: usize = 2 * CONNECTIONS_MAX;
/// Time for a request to arrive.
const REQUEST: Duration = Duration::from_secs(5);
/// Time for a response to be taken: a megabyte, by a slow link.
const RESPONSE: Duration = Duration::from_secs(20);
/// Time for threads of the data path to answer, after which they count as stalled: a probe of health waits
/// for a second by default.
pub(crate) const STALL: Duration = Duration::from_millis(500);
/// Stack of the thread of a connection, in bytes: it formats text.
const STACK: usize = 256 << 10;
/// Pause after accept() has failed for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// What metrics come from.
pub trait Source: Send + Sync {
    /// Adds its samples.
    fn collect(&self, page: &mut Page);

    /// Whether what does the work is alive.
    ///
    /// # Errors
    /// What is wrong, in words.
    fn check_health(&self) -> Result<(), String> {
        Ok(())
    }

    /// Whether it serves.
    ///
    /// # Errors
    /// Why not, in words.
    fn check_ready(&self) -> Result<(), String> {
        Ok(())
    }
}

/// An address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve metrics on {address}: {source}{}", hint(.source))]
pub struct BindError {
    address: SocketAddr,
    source: io::Error,
}

fn hint(e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::AddrInUse => ": another program listens there; choose another port with --metrics",
        io::ErrorKind::PermissionDenied => ": ports below 1024 need privileges; choose a higher one",
        io::ErrorKind::AddrNotAvailable => ": it is not an address of this machine",
        _ => "",
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the server says.
struct Content {
    sources: Mutex<Vec<Arc<dyn Source>>>,
    /// Why the program is not ready; `None` once it is, as far as it knows.
    not_ready: Mutex<Option<String>>,
    started: Duration,
    /// Held while a page is collected.
    collecting: Mutex<()>,
}

impl Content {
    fn sources(&self) -> Vec<Arc<dyn Source>> {
        lock(&self.sources).clone()
    }

    fn answer(&self, request: &Request) -> Response {
        let is_known = ["/metrics", "/healthz", "/readyz", "/"].contains(&request.path.as_str());
        if !is_known {
            return Response::text(404, "not found: there are /metrics, /healthz and /readyz");
        }
        if !["GET", "HEAD"].contains(&request.method.as_str()) {
            let allow = Some("GET, HEAD");
            return Response { allow, ..Response::text(405, "only GET and HEAD are answered") };
        }
        match request.path.as_str() {
            "/metrics" => self.page(Format::accepted(&request.accept)),
            "/healthz" => verdict(self.sources().iter().try_for_each(|source| source.check_health())),
            "/readyz" => verdict(self.check_ready()),
            _ => Response::text(200, "longhaul: /metrics, /healthz, /readyz"),
        }
    }

    fn check_ready(&self) -> Result<(), String> {
        if let Some(why) = &*lock(&self.not_ready) {
            return Err(why.clone());
        }
        self.sources().iter().try_for_each(|source| source.check_ready())
    }

    fn page(&self, format: Format) -> Response {
        let _one_at_a_time = lock(&self.collecting);
        let mut page = Page::default();
        process::collect(&mut page, self.started);
        self.sources().iter().for_each(|source| source.collect(&mut page));
        let body = page.write(format);
        Response { status: 200, content_type: format.content_type(), body, allow: None }
    }
}

fn verdict(result: Result<(), String>) -> Response {
    match result {
        Ok(()) => Response::text(200, "ok"),
        Err(why) => Response::text(503, &why),
    }
}

/// The connections that there are, the oldest first.
#[derive(Default)]
struct Connections {
    next: u64,
    threads: usize,
    all: BTreeMap<u64, Connection>,
}

struct Connection {
    stream: Arc<TcpStream>,
    /// Its request has come.
    is_asked: bool,
}

impl Connections {
    /// A number for a connection, if it may have a thread; another one may give way.
    fn enter(&mut self, stream: &Arc<TcpStream>) -> Option<u64> {
        if self.threads >= THREADS_MAX {
            return None;
        }
        if self.all.len() >= CONNECTIONS_MAX {
            let silent = self.all.iter().find(|(_, other)| !other.is_asked);
            let oldest = silent.or_else(|| self.all.iter().next()).map(|(id, _)| *id);
            if let Some(other) = oldest.and_then(|id| self.all.remove(&id)) {
                // Its thread ends by that.
                let _ = other.stream.shutdown(Shutdown::Both);
            }
        }
        self.threads += 1;
        let id = self.next;
        self.next += 1;
        self.all.insert(id, Connection { stream: Arc::clone(stream), is_asked: false });
        Some(id)
    }

    /// The thread of a connection has ended.
    fn leave(&mut self, id: u64) {
        self.all.remove(&id);
        self.threads -= 1;
    }
}

/// An address that is listened on, and not answered yet.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    address: SocketAddr,
}

impl Bound {
    /// Listens on an address; connections wait until [`start`](Self::start).
    ///
    /// # Errors
    /// The address is in use, or is not one of this machine.
    pub fn bind(address: SocketAddr) -> Result<Bound, BindError> {
        let bound = TcpListener::bind(address).and_then(|listener| {
            let address = listener.local_addr()?;
            Ok(Bound { listener, address })
        });
        bound.map_err(|source| BindError { address, source })
    }

    /// The address, with the port that the kernel has chosen.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers from now on: it is not ready, for the reason `not_ready`.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(self, not_ready: &str) -> io::Result<Server> {
        let content = Arc::new(Content {
            sources: Mutex::default(),
            not_ready: Mutex::new(Some(not_ready.to_owned())),
            started: process::start_time(),
            collecting: Mutex::new(()),
        });
        let is_over = Arc::new(AtomicBool::new(false));
        let (of_thread, ended) = (Arc::clone(&content), Arc::clone(&is_over));
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || accept(&self.listener, &of_thread, &ended))?;
        Ok(Server { content, address: self.address, is_over, thread: Some(thread) })
    }
}

/// Accepts connections until the server is dropped.
fn accept(listener: &TcpListener, content: &Arc<Content>, is_over: &AtomicBool) {
    let connections = Arc::new(Mutex::new(Connections::default()));
    loop {
        let accepted = listener.accept();
        if is_over.load(Ordering::SeqCst) {
            return;
        }
        let stream = match accepted {
            Ok((stream, _)) => Arc::new(stream),
            Err(e) => {
                tracing::debug!("metrics: {e}");
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        let Some(id) = lock(&connections).enter(&stream) else { continue };
        let (content, all) = (Arc::clone(content), Arc::clone(&connections));
        let serving = std::thread::Builder::new().name("metrics-serve".into()).stack_size(STACK);
        let started = serving.spawn(move || {
            let on_request = || {
                if let Some(connection) = lock(&all).all.get_mut(&id) {
                    connection.is_asked = true;
                }
            };
            serve(&stream, &content, on_request);
            lock(&all).leave(id);
        });
        if let Err(e) = started {
            tracing::debug!("metrics: {e}");
            lock(&connections).leave(id);
        }
    }
}

/// Answers the one request of a connection.
fn serve(stream: &TcpStream, content: &Content, on_request: impl FnOnce()) {
    let (response, is_head) = match receive(stream, Instant::now() + REQUEST) {
        Ok(request) => {
            on_request();
            (content.answer(&request), request.method == "HEAD")
        }
        Err(Refusal::Status(status, why)) => (Response::text(status, why), false),
        Err(Refusal::Gone) => return,
    };
    let sent = response.send(stream, is_head, Instant::now() + RESPONSE);
    if let Err(e) = sent.and_then(|()| stream.shutdown(Shutdown::Write)) {
        return tracing::debug!("metrics: {e}");
    }
    // Unread input would reset the connection, and the response might not arrive: what the peer still
    // sends (a request that is too long) is taken for a moment.
    let _ = stream.set_read_timeout(Some(LINGER));
    let mut rest = [0; 4096];
    for _ in 0..LINGER_READS {
        if !matches!(io::Read::read(&mut &*stream, &mut rest), Ok(1..)) {
            return;
        }
    }
}

/// Time, for each of some reads, in which the peer closes its side.
const LINGER: Duration = Duration::from_millis(250);
const LINGER_READS: usize = 64;

/// Serves metrics until it is dropped.
pub struct Server {
    content: Arc<Content>,
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds what a source has.
    pub fn add(&self, source: Arc<dyn Source>) {
        lock(&self.content.sources).push(source);
    }

    /// The program is ready, if its sources are.
    pub fn set_ready(&self) {
        *lock(&self.content.not_ready) = None;
    }

    /// The program is not ready, for this reason.
    pub fn set_not_ready(&self, why: &str) {
        *lock(&self.content.not_ready) = Some(why.to_owned());
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts. An address that means all is reached at loopback.
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        let woken = TcpStream::connect_timeout(&address, Duration::from_secs(1));
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}
