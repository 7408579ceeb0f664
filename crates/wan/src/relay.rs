//! A TCP relay in this process that lengthens the path to its target.
//!
//! The relay accepts connections, connects to the target, and forwards every byte
//! one delay after its arrival, in each direction. Both ends of its connections are
//! near, so TCP sees no distance: the relay emulates an ideal long link with room
//! for all data in flight, and an application loses time on it by its own waiting
//! only. (Congestion, loss and windows of real TCP over distance need emulated
//! links between network namespaces.)
//!
//! Connecting through a relay takes no time, so the first byte of a connection is
//! delayed by the time of a handshake: one round trip from the side that connects,
//! one and a half from the other.
//!
//! Invariants:
//! - bytes leave in the order of their arrival, and none before its time;
//! - memory is bounded: by [`Link::memory`] in all and [`MIN_CHUNK`] for each
//!   direction besides; beyond that the sender is held back by TCP;
//! - one direction never takes more than is left for all others, and each can
//!   always move [`MIN_CHUNK`], so that no connection stops another for good;
//! - the end of a stream is delayed like its bytes, separately for each direction.

mod pipe;

use longhaul_engine::net::{FreeStream, SocketOptions, TcpListener, TcpStream};
use longhaul_engine::{BufPool, Config, Task, Thread, sleep_until, spawn};
use pipe::{Pipe, PipeEnd};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

pub use pipe::{MAX_CHUNK, MIN_CHUNK};

/// Pause after a failed accept (no descriptors left, say), so that a lasting
/// failure does not burn a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Connections after which those that have ended are looked for, at least.
const SWEEP: usize = 64;

/// Delay, rate and memory of an ideal link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// One-way delay, in each direction.
    pub delay: Duration,
    /// Bits per second in each direction, all connections together; no limit
    /// if `None`.
    pub rate: Option<u64>,
    /// Bytes in flight at most, all connections together.
    pub memory: usize,
}

impl Link {
    /// Default room for bytes in flight: 20 Gb/s at 100 ms.
    pub const MEMORY: usize = 256 << 20;

    /// A link of this round-trip time, without a limit of rate.
    pub fn round_trip(time: Duration) -> Link {
        Link { delay: time / 2, rate: None, memory: Link::MEMORY }
    }
}

/// Counters of a relay since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayStats {
    /// Number of connections accepted.
    pub connections: u64,
    /// Bytes handed on to the target.
    pub forward_bytes: u64,
    /// Bytes handed back.
    pub back_bytes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    connections: AtomicU64,
    forward: AtomicU64,
    back: AtomicU64,
}

/// A running relay, on an engine thread of its own. Dropping it closes all of
/// its connections.
#[derive(Debug)]
pub struct Relay {
    local: SocketAddr,
    counters: Arc<Counters>,
    _thread: Thread,
}

impl Relay {
    /// Listens on `listen` (port 0: any free one) and forwards to `target`.
    ///
    /// # Errors
    /// The address cannot be listened on, or there is no thread or engine.
    pub fn start(listen: SocketAddr, target: SocketAddr, link: Link) -> io::Result<Relay> {
        Relay::start_with(&Config::default(), listen, target, link)
    }

    /// As [`start`](Self::start), with settings for its engine.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub fn start_with(
        config: &Config,
        listen: SocketAddr,
        target: SocketAddr,
        link: Link,
    ) -> io::Result<Relay> {
        let listener = TcpListener::bind_std(listen)?;
        let local = listener.local_addr()?;
        let counters = Arc::new(Counters::default());
        let thread = Thread::start("relay", config.clone())?;
        let count = Arc::clone(&counters);
        let (ready, started) = std::sync::mpsc::channel();
        // The task runs until its thread ends; it has no result.
        drop(thread.handle().spawn(move || async move {
            let listener = match TcpListener::from_std(listener) {
                Ok(listener) => listener,
                Err(e) => return drop(ready.send(Err(e))),
            };
            if ready.send(Ok(())).is_ok() {
                Rc::new(RelayState::new(target, link, count)).accept(listener).await;
            }
        }));
        started.recv().unwrap_or_else(|_| Err(io::Error::other("the relay's thread ended")))?;
        Ok(Relay { local, counters, _thread: thread })
    }

    /// The address that the relay listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Counters of a relay since its start.
    pub fn stats(&self) -> RelayStats {
        RelayStats {
            connections: self.counters.connections.load(Relaxed),
            forward_bytes: self.counters.forward.load(Relaxed),
            back_bytes: self.counters.back.load(Relaxed),
        }
    }
}

/// State that the connections of a relay share.
struct RelayState {
    target: SocketAddr,
    link: Link,
    pool: BufPool,
    forward: Rc<pipe::SharedWire>,
    back: Rc<pipe::SharedWire>,
    counters: Arc<Counters>,
}

impl RelayState {
    fn new(target: SocketAddr, link: Link, counters: Arc<Counters>) -> RelayState {
        let wire = || Rc::new(pipe::SharedWire::new(link.delay, link.rate));
        RelayState { target, pool: BufPool::new(link.memory), forward: wire(), back: wire(), counters, link }
    }

    async fn accept(self: Rc<RelayState>, listener: TcpListener) {
        // Held here, so that they end with the relay: a task that waits for
        // another one of its connection would be kept alive by its own queue.
        let mut served: Vec<Task<()>> = Vec::new();
        let mut sweep = SWEEP;
        loop {
            if served.len() >= sweep {
                served.retain(|task| !task.is_finished());
                sweep = SWEEP.max(2 * served.len());
            }
            match listener.accept().await {
                Ok((stream, _)) => {
                    self.counters.connections.fetch_add(1, Relaxed);
                    served.push(spawn(Rc::clone(&self).serve(stream, Instant::now())));
                }
                Err(e) => {
                    tracing::warn!("relay: cannot accept: {e}");
                    longhaul_engine::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// One connection, from beginning to end.
    async fn serve(self: Rc<RelayState>, near: FreeStream, accepted: Instant) {
        let options = SocketOptions::default();
        let near = match TcpStream::from_std(near, &options) {
            Ok(near) => Rc::new(near),
            Err(e) => return tracing::warn!("relay: cannot accept a connection: {e}"),
        };
        let far = TcpStream::connect(self.target, &options).await;
        let handshake = accepted + 2 * self.link.delay;
        let far = match far {
            Ok(far) => Rc::new(far),
            Err(e) => {
                tracing::warn!("relay: cannot connect to {}: {e}", self.target);
                return sleep_until(handshake).await;
            }
        };
        let pipe = |from: &Rc<TcpStream>, to: &Rc<TcpStream>, wire: &Rc<pipe::SharedWire>| {
            Pipe::new(Rc::clone(from), Rc::clone(to), self.pool.clone(), Rc::clone(wire))
        };
        let there = pipe(&near, &far, &self.forward);
        let back = pipe(&far, &near, &self.back);
        let (near_end, far_end) = (Rc::clone(&near), Rc::clone(&far));
        let this = Rc::clone(&self);
        let forward = spawn(async move {
            let end = there.run(handshake, &this.counters.forward).await;
            cut(end, &near_end, &far_end);
        });
        let end = back.run(handshake + self.link.delay, &self.counters.back).await;
        cut(end, &near, &far);
        forward.await;
    }
}

/// After a failure neither direction can be used.
fn cut(end: PipeEnd, near: &TcpStream, far: &TcpStream) {
    if end == PipeEnd::Broken {
        for stream in [near, far] {
            // It fails on a connection that is closed already, which is the aim.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
