//! A server of a catalog in a file, for clients on other hosts ([`RemoteCatalog`](crate::RemoteCatalog)).
//!
//! ```text
//! sockets <-> [`reactor`]: one thread, epoll; frames in, frames out
//!                |  ^
//!      questions |  | answers         changes            answers
//!                v  |                    v                  ^
//!             workers, which read      one thread, which makes all changes that wait in one transaction
//! ```
//!
//! Invariants:
//! - a change is answered when it is on the medium, and all that wait meanwhile are made together by the next one;
//! - no thread waits for a client: what a client does not receive is not read for it, up to [`Limits`];
//! - a client that sends half a frame, or receives nothing, for [`Limits::progress`] is disconnected, and so is one
//!   that is silent for [`Limits::silence`];
//! - what a connection holds in memory is bounded, and so is what all of them hold.

mod connection;
mod reactor;
mod watching;
mod work;

use crate::error::{Error, Result};
use crate::file::{FileCatalog, Options};
use crate::secure::{Acceptor, Denial, Peer};
use reactor::Reactor;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use work::Wake;

/// Bounds of a server.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections.
    pub connections: usize,
    /// Connections that have not been let in. Beyond it the oldest of them makes room.
    pub strangers: usize,
    /// Time until a connection has to be let in.
    pub greeting: Duration,
    /// Time in which a frame that has begun has to be complete, and in which a client has to receive something of
    /// what is sent to it.
    pub progress: Duration,
    /// Longest time without a frame of a client; it sends a ping more often.
    pub silence: Duration,
    /// Bytes of frames that all connections hold; beyond it nothing is received.
    pub memory: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 4096,
            strangers: 512,
            greeting: Duration::from_secs(15),
            progress: Duration::from_secs(30),
            silence: Duration::from_secs(60),
            memory: 256 << 20,
        }
    }
}

/// What a server tells the program that runs it. Calls come from the thread that serves the sockets.
pub trait Observer: Send + Sync {
    /// A client was let in.
    fn connected(&self, address: SocketAddr, peer: &Peer);
    /// A client was not.
    fn refused(&self, address: SocketAddr, host: &str, why: Denial, text: &str);
    /// A client that was let in has gone, after that time; bytes that it has received and sent.
    fn disconnected(&self, address: SocketAddr, peer: &Peer, time: Duration, bytes: (u64, u64));
}

/// What a server counts.
#[derive(Debug, Default)]
pub struct ServerCounts {
    /// Clients that are connected.
    pub clients: AtomicU64,
    /// Connections that were refused.
    pub refused: AtomicU64,
    /// Watches.
    pub watches: AtomicU64,
    /// Questions that were answered.
    pub reads: AtomicU64,
    /// Changes that were made or refused.
    pub changes: AtomicU64,
    /// Transactions of the file that they were made in.
    pub batches: AtomicU64,
    /// Changes that failed, as the file could not be written.
    pub failed: AtomicU64,
}

impl ServerCounts {
    fn add(counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
    }

    fn take(counter: &AtomicU64, less: u64) {
        counter.fetch_sub(less, Ordering::Relaxed);
    }
}

/// How a catalog is served.
pub struct ServerOptions {
    /// Listening sockets.
    pub listeners: Vec<TcpListener>,
    /// Encrypts connections, which without it are as they are.
    pub acceptor: Option<Arc<dyn Acceptor>>,
    /// The observer of connections.
    pub observer: Arc<dyn Observer>,
    /// Bounds.
    pub limits: Limits,
    /// How the file is opened; leases are always [renewed](Options::renew).
    pub file: Options,
}

/// The catalog, which is opened again after an error of its disk: redb takes no transaction after one.
struct Served {
    path: PathBuf,
    options: Options,
    catalog: Mutex<Arc<FileCatalog>>,
}

impl Served {
    fn open(path: &Path, options: &Options) -> Result<Served> {
        let catalog = FileCatalog::open_with(path, Options { renew: true, ..options.clone() })?;
        let options = Options { renew: false, ..options.clone() };
        Ok(Served { path: path.to_owned(), options, catalog: Mutex::new(Arc::new(catalog)) })
    }

    fn now(&self) -> Arc<FileCatalog> {
        Arc::clone(&self.catalog.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// After an error of `failed`.
    fn open_again(&self, failed: &Arc<FileCatalog>) {
        let mut catalog = self.catalog.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&catalog, failed) {
            return;
        }
        match FileCatalog::open_with(&self.path, self.options.clone()) {
            Ok(opened) => *catalog = Arc::new(opened),
            Err(e) => tracing::error!("the catalog stays as it is: {e}"),
        }
    }
}

/// A catalog that is served, until it is dropped: then what is under way is completed and answered.
pub struct CatalogServer {
    addresses: Vec<SocketAddr>,
    counts: Arc<ServerCounts>,
    stop: Arc<AtomicBool>,
    wake: Wake,
    threads: Vec<JoinHandle<()>>,
}

impl CatalogServer {
    /// Serves the catalog in the file `path`, which is made if it does not exist.
    ///
    /// # Errors
    /// The file cannot be opened, or no thread can be started.
    pub fn start(path: &Path, options: ServerOptions) -> Result<CatalogServer> {
        let failed = |e: std::io::Error| Error::Failed {
            catalog: path.display().to_string(),
            attempted: "serve",
            why: e.to_string(),
        };
        let served = Arc::new(Served::open(path, &options.file)?);
        let addresses = options.listeners.iter().map(TcpListener::local_addr).collect::<std::io::Result<_>>();
        let (counts, stop) = (Arc::<ServerCounts>::default(), Arc::<AtomicBool>::default());
        let (mut work, mut threads, wake) = work::start(&served, &counts).map_err(failed)?;
        let pump = watching::start(&served, work.answers.clone(), &mut work.revision).map_err(failed)?;
        threads.push(pump);
        let identity = served.now().identity()?;
        let reactor = Reactor::new(options, work, identity, Arc::clone(&counts), Arc::clone(&stop));
        let reactor = reactor.map_err(failed)?;
        let run = move || reactor.run();
        let thread = std::thread::Builder::new().name("catalog".into()).spawn(run).map_err(failed)?;
        threads.insert(0, thread);
        Ok(CatalogServer { addresses: addresses.map_err(failed)?, counts, stop, wake, threads })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What it counts.
    pub fn counts(&self) -> Arc<ServerCounts> {
        Arc::clone(&self.counts)
    }
}

impl Drop for CatalogServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake.wake();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the catalog server has panicked");
            }
        }
    }
}
