//! The listening task, and the descriptors of the process.
//!
//! Invariants:
//! - a descriptor is kept in reserve: when the process has no other left, a new connection is
//!   accepted and closed at once, instead of waiting for ever;
//! - an error is logged at most a few times in a period, however often it occurs;
//! - a connection that waits for its address's turn holds a place, and no memory.

use crate::audit::{AuditEvent, AuditHost, RefusalReason};
use crate::connection;
use crate::ledger::Origin;
use crate::observer::count;
use crate::target::Shared;
use futures_channel::{mpsc, oneshot};
use futures_util::future::{Either, pending, select};
use longhaul_conn::Channel;
use longhaul_conn::transport::{self, Address, Listener};
use longhaul_engine::net::{FreeStream, SocketOptions, TcpListener, TcpStream};
use longhaul_engine::{Handle, now, sleep, yield_now};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Wait after accept() has failed for lack of descriptors or memory: those
/// come back only when connections end.
const PAUSE: Duration = Duration::from_millis(50);

/// The longest that a connection waits for its address's turn; where the line is longer it is
/// closed, and its host may try again.
const LINE: Duration = Duration::from_secs(1);

/// Descriptors that are not for connections: devices, engines, logs.
const DESCRIPTORS_KEPT: u64 = 128;

/// Interval and number of TCP keep-alive probes to a silent host: a dead machine is noticed within
/// three minutes, even without a Keep Alive Timeout.
const PROBE: Duration = Duration::from_secs(30);
const PROBES: u32 = 5;

/// Raises the limit of descriptors as far as it may be. How many connections
/// that leaves room for.
pub(crate) fn raise_descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // The hard limit may be lower than requested, so the limit is read again.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
    let current = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // Half at least for connections, where there are very few.
    usize::try_from(current.saturating_sub(DESCRIPTORS_KEPT).max(current / 2)).unwrap_or(usize::MAX)
}

fn reserve() -> Option<File> {
    File::open("/dev/null").ok()
}

/// Tells of a connection that is refused before Connect.
pub(crate) fn tell_refused(shared: &Shared, host: AuditHost, why: RefusalReason) {
    if let Some(audit) = &shared.config.audit {
        audit.tell(AuditEvent::Refused { host, why }, None);
    }
}

/// What connections come from.
#[derive(Debug)]
pub(crate) enum Incoming {
    Tcp(TcpListener),
    Own(Box<dyn Listener>),
}

/// A connection that no thread serves yet.
enum Accepted {
    Tcp(FreeStream),
    Own(transport::FreeStream, Address),
}

impl Incoming {
    async fn accept(&self) -> io::Result<(Accepted, Address)> {
        match self {
            Incoming::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((Accepted::Tcp(stream), peer.into()))
            }
            Incoming::Own(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((Accepted::Own(stream, listener.address()), peer))
            }
        }
    }
}

impl Accepted {
    /// Brings it to the calling thread, with its address at this end.
    fn adopt(self, options: &SocketOptions) -> io::Result<(Channel, Address)> {
        match self {
            Accepted::Tcp(stream) => {
                let stream = TcpStream::from_std(stream, options)?;
                // An error only means that a dead machine is noticed later.
                let _ = stream.keep_alive(PROBE, PROBES);
                let local = stream.local_addr()?.into();
                Ok((stream.into(), local))
            }
            Accepted::Own(stream, local) => Ok((stream.adopt()?.into(), local)),
        }
    }
}

/// Accepts connections and deals them to the threads in turn, until `stopped`, if there is that.
pub(crate) async fn accept(
    shared: Arc<Shared>,
    (listener, stopped): (Incoming, Option<oneshot::Receiver<()>>),
    threads: Vec<Handle>,
    turn: Arc<AtomicUsize>,
) {
    let mut kept = reserve();
    shared.accepting.fetch_add(1, Ordering::Release);
    let mut stopped = pin!(async move {
        match stopped {
            Some(stopped) => _ = stopped.await,
            None => pending().await,
        }
    });
    loop {
        let accepted = match select(stopped.as_mut(), pin!(listener.accept())).await {
            // The next program that has the socket accepts what comes from here on.
            Either::Left(_) => return,
            Either::Right((accepted, _)) => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(e) => {
                shared.quiet.accept.say(
                    format_args!("a connection cannot be accepted: {e}; raise the limit (ulimit -n)"),
                    |line| tracing::warn!("{line}"),
                );
                // At least one peer notices, by the end of its connection.
                drop(kept.take());
                let told = longhaul_engine::timeout(PAUSE, listener.accept()).await;
                drop(told);
                kept = reserve();
                sleep(PAUSE).await;
                continue;
            }
        };
        if shared.is_stopping() {
            continue;
        }
        // Connections may come without end; others on this thread have their turn all the same.
        yield_now().await;
        let origin = Origin::at(&peer);
        let Some(wait) = shared.arrivals.of(origin, now()).take(now(), LINE) else {
            count(&shared.incidents.too_often);
            tell_refused(&shared, AuditHost::unknown(peer.clone()), RefusalReason::Rate);
            shared
                .quiet
                .accept
                .say(format_args!("{peer}: refused: its address connects too often"), |line| {
                    tracing::warn!("{line}")
                });
            continue;
        };
        let (sender, mut inbox) = mpsc::unbounded();
        let Some(place) = shared.connections.enter(origin, sender.clone()) else {
            count(&shared.incidents.too_many);
            tell_refused(&shared, AuditHost::unknown(peer.clone()), RefusalReason::Connections);
            shared.quiet.accept.say(
                format_args!("{peer}: refused: there are too many connections (--max-connections)"),
                |line| tracing::warn!("{line}"),
            );
            continue;
        };
        count(&shared.incidents.accepted);
        let shared = Arc::clone(&shared);
        let thread = &threads[turn.fetch_add(1, Ordering::Relaxed) % threads.len()];
        thread.spawn(move || async move {
            if !wait.is_zero() {
                sleep(wait).await;
                // It may have had to give way, or the target stops.
                if inbox.try_recv().is_ok() {
                    return;
                }
            }
            let options = SocketOptions { congestion: shared.config.congestion.clone() };
            match stream.adopt(&options) {
                Ok((channel, local)) => {
                    connection::serve(shared, channel, (peer, local), place, (sender, inbox)).await;
                }
                Err(e) => {
                    shared.quiet.accept.say(format_args!("{peer}: {e}"), |line| tracing::warn!("{line}"))
                }
            }
        });
    }
}
