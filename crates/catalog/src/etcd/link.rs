//! Connections to one member of etcd: HTTP/2, which carries many requests at a time.

use super::client::Fault;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Request, Response, Uri, body::Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::error::Error as _;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};

/// Longest time to a connection: above one retransmission of the first packet, twice.
const CONNECT: Duration = Duration::from_secs(4);
/// Connections to a member: on a long link several have more of what a new or a lossy connection may send, and
/// the packets that one of them waits for hold up the requests of that one alone.
pub(super) const CONNECTIONS: usize = 4;
/// Time without a request after which a connection is made anew: what is between the hosts may have forgotten it.
/// Pings cannot tell: etcd refuses clients that ping without a request under way.
const IDLE: Duration = Duration::from_secs(15);
/// Silence under a request after which a member is pinged: above the 5 s below which etcd ends the connection of a
/// client that pings more often (`--grpc-keepalive-min-time`).
const PING: Duration = Duration::from_secs(6);
/// Longest time to the answer to a ping.
const PONG: Duration = Duration::from_secs(3);
/// Bytes of one reply or watch that a member may send before they are taken: above what is under way on a link of
/// 1 Gb/s and 100 ms.
pub(super) const WINDOW: u32 = 16 << 20;
/// The same of all that share a connection: the most that there is, so that a watch that is not read holds up no other.
const WINDOW_OF_ALL: u32 = (1 << 31) - 1;
/// Longest wait for the reason of a connection that has failed: its task has only to run.
const REASON: Duration = Duration::from_secs(1);
/// Longest reply in bytes: above a page of the largest values.
const MAX_REPLY: usize = 256 << 20;

/// A member of etcd, and the connections to it.
pub(super) struct Member {
    /// `HOST:PORT`.
    pub(super) address: String,
    pub(super) origin: Uri,
    slots: [Arc<Slot>; CONNECTIONS],
}

/// A place for a connection.
#[derive(Default)]
struct Slot {
    /// Calls that wait for the connection or use it.
    calls: AtomicUsize,
    state: Mutex<SlotState>,
}

#[derive(Default)]
struct SlotState {
    link: Option<MemberLink>,
    /// When a call last took the connection.
    used: Option<Instant>,
    /// When the last attempt to connect has failed, and why.
    failed: Option<(Instant, String)>,
}

/// A call on a connection, which counts while this exists.
pub(super) struct Call {
    link: MemberLink,
    origin: Uri,
    _place: CountedCall,
}

/// A call that counts at a slot.
struct CountedCall(Arc<Slot>);

impl Drop for CountedCall {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Member {
    pub(super) fn new(address: String, origin: Uri) -> Member {
        Member { address, origin, slots: Default::default() }
    }

    /// A connection for a call: of those with the fewest calls the first, so that few calls take few connections.
    pub(super) async fn call(&self) -> Result<Call, Fault> {
        let asked = Instant::now();
        let slot = self.slots.iter().min_by_key(|slot| slot.calls.load(Ordering::Relaxed));
        let slot = slot.unwrap_or(&self.slots[0]);
        slot.calls.fetch_add(1, Ordering::Relaxed);
        let place = CountedCall(Arc::clone(slot));
        let mut state = slot.state.lock().await;
        let is_fresh = state.used.is_some_and(|used| used.elapsed() < IDLE);
        let link = match state.link.take().filter(|link| link.is_open() && (is_fresh || link.is_pinged())) {
            Some(link) => link,
            None => match &state.failed {
                // The attempt that this call waited for.
                Some((when, why)) if *when >= asked => return Err(self.unsent(why)),
                _ => match connect(&self.address).await {
                    Ok(link) => link,
                    Err(why) => {
                        state.failed = Some((Instant::now(), why.clone()));
                        return Err(self.unsent(&why));
                    }
                },
            },
        };
        state.link = Some(link.clone());
        state.used = Some(Instant::now());
        drop(state);
        Ok(Call { link, origin: self.origin.clone(), _place: place })
    }

    fn unsent(&self, why: &str) -> Fault {
        Fault::Unsent(format!("{}: {why}", self.address))
    }
}

impl Call {
    /// `HOST:PORT` of the member.
    pub(super) fn address(&self) -> &str {
        self.origin.authority().map_or("", |authority| authority.as_str())
    }

    pub(super) fn grpc(&self) -> Grpc<MemberLink> {
        Grpc::with_origin(self.link.clone(), self.origin.clone()).max_decoding_message_size(MAX_REPLY)
    }

    /// The member did not answer: no further call uses the connection.
    pub(super) fn doubt(&self) {
        self.link.doubted.store(true, Ordering::Relaxed);
    }
}

/// A connection.
#[derive(Clone)]
pub(super) struct MemberLink {
    sender: SendRequest<Body>,
    doubted: Arc<AtomicBool>,
    /// Why it has failed, once it has.
    failed: watch::Receiver<Option<String>>,
}

impl MemberLink {
    fn is_open(&self) -> bool {
        !self.sender.is_closed() && !self.doubted.load(Ordering::Relaxed)
    }

    /// A call is under way, besides the slot that has this.
    fn is_pinged(&self) -> bool {
        Arc::strong_count(&self.doubted) > 1
    }
}

async fn connect(address: &str) -> Result<MemberLink, String> {
    let connected = timeout(CONNECT, TcpStream::connect(address)).await;
    let stream = match connected {
        Ok(stream) => stream.map_err(|e| e.to_string())?,
        Err(_) => return Err(format!("no connection within {} s", CONNECT.as_secs())),
    };
    stream.set_nodelay(true).map_err(|e| e.to_string())?;
    let handshake = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW_OF_ALL)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PONG)
        .handshake(TokioIo::new(stream));
    let (sender, connection) = handshake.await.map_err(|e| chain(&e))?;
    let (tell, failed) = watch::channel(None);
    let address = address.to_owned();
    tokio::spawn(async move {
        if let Err(e) = connection.await {
            let why = chain(&e);
            tracing::debug!("connection to etcd at {address}: {why}");
            tell.send_replace(Some(why));
        }
    });
    Ok(MemberLink { sender, doubted: Arc::default(), failed })
}

/// Why a request has no reply.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub(super) struct NoReply {
    why: String,
    /// Nothing of it was written to the connection.
    unsent: bool,
}

impl GrpcService<Body> for MemberLink {
    type ResponseBody = Incoming;
    type Error = NoReply;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, NoReply>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), NoReply>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let reply = self.sender.try_send_request(request);
        let mut failed = self.failed.clone();
        Box::pin(async move {
            let mut e = match reply.await {
                Ok(response) => return Ok(response),
                Err(e) => e,
            };
            // hyper gives back what it has not begun to write.
            let unsent = e.take_message().is_some();
            // It cancels the calls of a connection that fails before the connection itself has the reason.
            if e.error().is_canceled() {
                let _ = timeout(REASON, failed.wait_for(Option::is_some)).await;
            }
            let why = failed.borrow().clone().unwrap_or_else(|| chain(e.error()));
            Err(NoReply { why, unsent })
        })
    }
}

/// Whether a request that has failed was certainly not sent.
pub(super) fn is_unsent(status: &Status) -> bool {
    status.source().and_then(|e| e.downcast_ref::<NoReply>()).is_some_and(|e| e.unsent)
}

/// An error, and what it comes from.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        // What the other end has sent is not HTTP/2.
        if error.downcast_ref::<h2::Error>().is_some_and(h2::Error::is_library) {
            text.push_str("; is this etcd 3.4 or later, without TLS?");
        }
        source = error.source();
    }
    text
}
