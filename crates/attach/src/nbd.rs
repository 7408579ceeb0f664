//! An NBD server: any client of that protocol reaches a device.
//!
//! Invariants:
//! - connections are bounded, and so are the requests of each; a client that is silent before it
//!   has chosen an export is disconnected;
//! - after [`Nbd::stop`] no connection is left, not even that of a client that does not receive its
//!   replies, and acknowledged writes are durable.

mod handshake;
mod transmission;
mod wire;

use crate::error::AttachError;
use crate::served::{Request, Requests};
use longhaul_block::{DeviceInfo, IoResult};
use longhaul_cache::ErrorCursor;
use rustix::net::Shutdown;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Longest read or write in bytes, which clients take for granted.
pub(crate) const REQUEST_MAX: u32 = 32 << 20;
/// Connections at a time; clients take four to sixteen.
const CONNECTIONS: usize = 128;
/// The time that a client may take for each step of the negotiation.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The time that clients may take to receive the last replies.
const LAST_REPLIES: Duration = Duration::from_secs(5);

/// A device under a name.
pub struct Export {
    /// The name by which clients request it.
    pub name: String,
    /// The device that executes its clients' requests.
    pub requests: Arc<dyn Requests>,
}

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP address and port.
    Tcp(SocketAddr),
    /// A Unix socket, which is created.
    Unix(PathBuf),
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// A running server.
pub struct Nbd {
    shared: Arc<ServerState>,
    listeners: Vec<(OwnedFd, Option<PathBuf>)>,
    addresses: Vec<Address>,
}

struct ServerState {
    exports: Vec<Arc<Export>>,
    /// A cursor for each export that has seen every error since the beginning, also while no
    /// connection existed.
    told: Vec<Arc<ErrorCursor>>,
    stopping: AtomicBool,
    /// Sockets of the connections, by number.
    connections: Mutex<(u64, HashMap<u64, File>)>,
    fewer: Condvar,
}

impl Nbd {
    /// Listens, and serves every client that connects.
    ///
    /// # Errors
    /// It cannot listen on an address.
    pub fn start(exports: Vec<Export>, addresses: &[Address]) -> Result<Nbd, AttachError> {
        let exports: Vec<_> = exports.into_iter().map(Arc::new).collect();
        let told = exports.iter().map(|export| export.requests.handle()).collect();
        let (connections, fewer, stopping) = (Mutex::default(), Condvar::new(), AtomicBool::new(false));
        let shared = Arc::new(ServerState { exports, told, stopping, connections, fewer });
        let mut nbd = Nbd { shared, listeners: Vec::new(), addresses: Vec::new() };
        for address in addresses {
            let listener = listen(address)?;
            let fail = AttachError::system("listening");
            let (fd, path, address) = match &listener {
                Listener::Tcp(tcp) => {
                    (tcp.try_clone().map(OwnedFd::from), None, tcp.local_addr().map(Address::Tcp))
                }
                Listener::Unix(unix, path) => {
                    (unix.try_clone().map(OwnedFd::from), Some(path.clone()), Ok(Address::Unix(path.clone())))
                }
            };
            let (fd, address) = fd.and_then(|fd| Ok((fd, address?))).map_err(fail)?;
            nbd.listeners.push((fd, path));
            nbd.addresses.push(address);
            let shared = Arc::clone(&nbd.shared);
            std::thread::Builder::new()
                .name("longhaul-nbd".into())
                .spawn(move || accept(&shared, &listener))
                .map_err(AttachError::system("a thread"))?;
        }
        Ok(nbd)
    }

    /// The addresses that it listens on, with ports that the system has chosen.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Accepts no more connections, ends existing ones once their outstanding requests have been
    /// answered, and makes everything durable. A client that has not received the answers after 5
    /// s, or when [`cut`](Self::cut) is called, is disconnected.
    ///
    /// # Errors
    /// A write could not be made durable, or was lost earlier and not reported.
    pub fn stop(self) -> IoResult<()> {
        self.hang_up();
        let some = |(_, open): &mut (u64, HashMap<u64, File>)| !open.is_empty();
        let connections = self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.shared.fewer.wait_timeout_while(connections, LAST_REPLIES, some);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.shared.cut();
        // The device may still execute their requests.
        let connections = self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.shared.fewer.wait_while(connections, some).unwrap_or_else(PoisonError::into_inner));
        let flush = |(export, told): (&Arc<Export>, &Arc<ErrorCursor>)| {
            export.requests.wait(Request::Flush(Arc::clone(told))).map(drop)
        };
        // All exports are flushed, even when one fails.
        let results: Vec<_> = self.shared.exports.iter().zip(&self.shared.told).map(flush).collect();
        results.into_iter().collect()
    }

    /// A function that disconnects all clients at once, for another thread to call during the stop.
    pub fn cut(&self) -> impl Fn() + Send + use<> {
        let shared = Arc::clone(&self.shared);
        move || shared.cut()
    }

    fn hang_up(&self) {
        self.shared.stopping.store(true, SeqCst);
        for (fd, path) in &self.listeners {
            // This ends the wait for connections.
            let _ = rustix::net::shutdown(fd, Shutdown::Both);
            if let Some(path) = path {
                let _ = std::fs::remove_file(path);
            }
        }
        let connections = self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        for socket in connections.1.values() {
            // No more requests arrive; replies are still sent.
            let _ = rustix::net::shutdown(socket, Shutdown::Read);
        }
    }
}

impl Drop for Nbd {
    fn drop(&mut self) {
        self.hang_up();
    }
}

impl std::fmt::Debug for Nbd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nbd({:?})", self.addresses)
    }
}

fn listen(address: &Address) -> Result<Listener, AttachError> {
    let failed = |address: String| move |source| AttachError::Listen { address, source };
    match address {
        Address::Tcp(addr) => TcpListener::bind(addr).map(Listener::Tcp).map_err(failed(addr.to_string())),
        Address::Unix(path) => {
            let bound = longhaul_engine::net::bind_unix(path);
            bound.map(|unix| Listener::Unix(unix, path.clone())).map_err(failed(path.display().to_string()))
        }
    }
}

fn accept(shared: &Arc<ServerState>, listener: &Listener) {
    loop {
        let socket = match listener {
            Listener::Tcp(tcp) => tcp.accept().map(|(stream, _)| {
                // This only reduces latency.
                let _ = stream.set_nodelay(true);
                OwnedFd::from(stream)
            }),
            Listener::Unix(unix, _) => unix.accept().map(|(stream, _)| OwnedFd::from(stream)),
        };
        if shared.stopping.load(SeqCst) {
            return;
        }
        match socket {
            Ok(socket) => admit(shared, File::from(socket)),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => {
                tracing::warn!("NBD: {e}");
                // Most likely the process has no descriptor left; connections that end free some.
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// Serves a connection on a thread of its own, once there are few enough.
fn admit(shared: &Arc<ServerState>, socket: File) {
    let Ok(kept) = socket.try_clone() else { return };
    let number = {
        let connections = shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |(_, open): &mut (u64, HashMap<u64, File>)| open.len() >= CONNECTIONS;
        let connections = shared.fewer.wait_while(connections, full);
        let mut connections = connections.unwrap_or_else(PoisonError::into_inner);
        connections.0 += 1;
        let number = connections.0;
        connections.1.insert(number, kept);
        number
    };
    let own = Arc::clone(shared);
    let started = std::thread::Builder::new().name("longhaul-nbd-rx".into()).spawn(move || {
        if let Err(e) = converse(&own, socket) {
            tracing::info!("NBD: connection {number}: {e}");
        }
        own.leave(number);
    });
    if started.is_err() {
        shared.leave(number);
    }
}

impl ServerState {
    /// Shuts down all connections in both directions.
    fn cut(&self) {
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        for socket in connections.1.values() {
            let _ = rustix::net::shutdown(socket, Shutdown::Both);
        }
    }

    fn leave(&self, number: u64) {
        let gone = self.connections.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&number);
        if let Some(socket) = gone {
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
        }
        self.fewer.notify_all();
    }
}

/// The transmission flags of a device.
pub(crate) fn flags_of(device: &DeviceInfo) -> u16 {
    handshake::flags_of(device)
}

/// Serves a client without a negotiation, on a thread of its own, until it disconnects.
pub(crate) fn serve_connected(socket: File, requests: Arc<dyn Requests>) -> io::Result<()> {
    let export = Arc::new(Export { name: String::new(), requests });
    let agreed = handshake::Agreed { export, structured: false, allocation: false };
    let serve = move || {
        if let Err(e) = transmission::serve(socket, &agreed) {
            tracing::info!("NBD: {e}");
        }
    };
    std::thread::Builder::new().name("longhaul-nbd-rx".into()).spawn(serve).map(drop)
}

fn converse(shared: &ServerState, mut socket: File) -> io::Result<()> {
    set_socket_timeout(&socket, Timeout::Recv, Some(HANDSHAKE))?;
    let Some(agreed) = handshake::negotiate(&mut socket, &shared.exports)? else { return Ok(()) };
    set_socket_timeout(&socket, Timeout::Recv, None)?;
    transmission::serve(socket, &agreed)
}
