//! The standing agent: a daemon that serves a directory to senders and receivers.
//!
//! Invariants:
//! - no request of a peer reaches a file outside of the root;
//! - a connection without a first frame within [`GREETING`] is closed, and so are
//!   connections that join a session that never begins;
//! - silent connections cannot exhaust the slots for new ones (see [`PendingConnections`]);
//! - all sessions allocate from one pool of bounded size.

mod joining;
pub(crate) mod pending;
mod statistics;
pub(crate) mod third_party;

use crate::copy::Settings;
use crate::copy::task::CopyTask;
use crate::far::{self, Exported};
use crate::link::noise::Key;
use crate::link::peer_timeout::{CROWDED, PeerTimeout};
use crate::link::{FirstFrame, Link, LinkError};
use crate::monitor::Monitor;
use crate::receive;
use crate::receive::destination::Destination;
use crate::receive::null_sink::is_null_sink;
use crate::receive::write::Grant;
use crate::send;
use crate::send::spec::SendSpec;
use crate::session::error::SessionError;
use crate::tree::root::Root;
use crate::tree::{Tree, say};
use crate::tune::Concurrency;
use crate::wire::{CopyDirection, Counts, Frame, Hello, Onward, Refusal, RefusalKind, Request, Welcome};
use futures_util::future::{Either, select};
use joining::JoiningConnections;
use longhaul_engine::net::{SocketOptions, TcpListener, TcpStream};
use longhaul_engine::{BufPool, Config, Thread, blocking, spawn, timeout};
use pending::{PendingConnections, PendingSlot};
use rustix::process::{Resource, getrlimit};
pub use statistics::{AgentObserver, SessionCounts};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Timeout for the first frame of a connection, and for all connections of a session to
/// arrive: a few round trips on any path.
const GREETING: Duration = Duration::from_secs(15);
/// The most concurrent sessions: each has its own threads and open files.
const SESSIONS: usize = 64;
/// Timeout for sending a refusal to an evicted connection; see
/// [`PendingConnections::refusals`].
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of its unread input that are discarded at a time.
const DISCARD: u32 = 64 << 10;
/// Pause after a failed accept(2); it doubles up to the maximum while failures continue.
const RETRY: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// The least time between two log messages about it.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Memory for the requests of new connections, in bytes: 8 file lists of the greatest
/// length. A slow connection holds its share for [`GREETING`] at most.
const GREETING_MEMORY: usize = 16 << 20;
/// The most data connections of a session.
pub(crate) const STREAMS: u16 = 64;

/// Configuration of an agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Addresses to listen on: the first free one is used. A single address is retried
    /// while connections of a stopped agent still hold it.
    pub listen: Vec<SocketAddr>,
    /// The directory to serve; without it, every file that this user may access, with
    /// paths relative to the working directory.
    pub root: Option<PathBuf>,
    /// Require this key of clients, and encrypt; without it, serve any client in the clear.
    pub key: Option<Key>,
    /// Refuse to receive files.
    pub read_only: bool,
    /// Let senders set owners, set-user-ID and set-group-ID bits and access control
    /// lists. Without it, files belong to the user that the agent runs as, and no program
    /// among them gains that user's privileges.
    pub allow_owner: bool,
    /// Send to other agents on request (third-party copies).
    pub onward: bool,
    /// Reader threads of each session.
    pub readers: Concurrency,
    /// Writer threads of each session.
    pub writers: Concurrency,
    /// Memory for received data, in bytes.
    pub memory: usize,
    /// How long the other side of a copy may be silent; a minute at most while clients
    /// are refused because all sessions are in use [default: [`crate::PATIENCE`]].
    pub patience: Duration,
    /// TCP congestion control of sent data, by the kernel's name.
    pub congestion: Option<String>,
    /// Settings of the engine.
    pub engine: Config,
}

/// An agent that has opened its root and listens, but does not accept connections yet.
/// It has no threads so far, so the process can still change its user.
#[derive(Debug)]
pub struct Bound {
    config: AgentConfig,
    root: Root,
    listener: std::net::TcpListener,
    address: SocketAddr,
}

/// A running agent; dropping it stops it. Running copies are interrupted and can be
/// resumed.
#[derive(Debug)]
pub struct Agent {
    address: SocketAddr,
    thread: Thread,
    statistics: statistics::Statistics,
}

fn named(what: impl fmt::Display, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{what}: {}", say(e)))
}

fn listen(addresses: &[SocketAddr]) -> io::Result<std::net::TcpListener> {
    let bind = match addresses {
        [_] => TcpListener::bind_after,
        _ => TcpListener::bind_std,
    };
    let mut failed = io::Error::new(io::ErrorKind::InvalidInput, "no address to listen on");
    for &address in addresses {
        match bind(address) {
            Ok(listener) => return Ok(listener),
            Err(e) => failed = named(format!("cannot listen on {address}"), &e),
        }
    }
    Err(failed)
}

impl Agent {
    /// Opens the root and begins to listen, both with the rights that the process has now.
    ///
    /// # Errors
    /// The address cannot be listened on, or the root cannot be opened.
    pub fn bind(config: AgentConfig) -> io::Result<Bound> {
        let root = match &config.root {
            None => Root::Here,
            Some(path) => Root::Beneath(Tree::open(path).map_err(|e| named(path.display(), &e))?),
        };
        let listener = listen(&config.listen)?;
        let address = listener.local_addr()?;
        Ok(Bound { config, root, listener, address })
    }

    /// Starts an agent.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind) and of [`Bound::start`].
    pub fn start(config: AgentConfig) -> io::Result<Agent> {
        Agent::bind(config)?.start()
    }

    /// The address that the agent listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle that watches the agent.
    pub fn observer(&self) -> AgentObserver {
        AgentObserver { statistics: self.statistics.clone(), thread: self.thread.handle() }
    }
}

impl Bound {
    /// Starts to serve, with the rights that the process has now.
    ///
    /// # Errors
    /// This user has no search permission for the root, or the engine cannot start.
    pub fn start(self) -> io::Result<Agent> {
        let Bound { config, root, listener, address } = self;
        if let (Root::Beneath(tree), Some(path)) = (&root, &config.root) {
            tree.enter().map_err(|e| named(format!("{} cannot be entered", path.display()), &e))?;
        }
        let thread = Thread::start("transfer", config.engine.clone())?;
        let counted = statistics::Statistics::default();
        let statistics = counted.clone();
        drop(thread.handle().spawn(move || async move {
            let agent = Rc::new(AgentState {
                pool: BufPool::new(config.memory),
                greeting: BufPool::new(GREETING_MEMORY),
                pending: PendingConnections::new(descriptors()),
                refusals: Rc::default(),
                patience: PeerTimeout::new(config.patience),
                config,
                root,
                joining: JoiningConnections::default(),
                sessions: Rc::default(),
                statistics: counted,
            });
            if let Err(e) = agent.accept(listener).await {
                tracing::error!("the agent stopped accepting connections: {e}");
            }
        }));
        Ok(Agent { address, thread, statistics })
    }
}

struct AgentState {
    config: AgentConfig,
    root: Root,
    /// Memory of the sessions; connections get none of it before their request is accepted.
    pool: BufPool,
    /// Memory for the requests of new connections.
    greeting: BufPool,
    pending: PendingConnections,
    refusals: Rc<Cell<usize>>,
    joining: JoiningConnections,
    sessions: Rc<Cell<usize>>,
    statistics: statistics::Statistics,
    /// Timeout for silent peers, shared by all sessions.
    patience: PeerTimeout,
}

/// Holds one unit of a counter with a limit; dropping it gives the unit back.
struct CountGuard(Rc<Cell<usize>>);

impl CountGuard {
    fn new(cell: &Rc<Cell<usize>>, limit: usize) -> Option<CountGuard> {
        let now = cell.get();
        (now < limit).then(|| {
            cell.set(now + 1);
            CountGuard(Rc::clone(cell))
        })
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Sets the congestion control of a connection, if one is named.
fn use_congestion(link: &Link, name: &str) -> Result<(), Refusal> {
    let Some(stream) = link.tx.stream().filter(|_| !name.is_empty()) else { return Ok(()) };
    // Checked first: for a privileged process the kernel would load a module of that name.
    let there = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    let is_there = there.map_or(true, |there| there.split_whitespace().any(|one| one == name));
    let none =
        || io::Error::other(format!("congestion control '{name}' cannot be used: it is not loaded there"));
    let used = if is_there { stream.set_congestion(name) } else { Err(none()) };
    used.map_err(|e| Refusal::new(RefusalKind::NotAllowed, format_args!("on the side that sends, {e}")))
}

/// The limit of file descriptors of this process.
fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

impl AgentState {
    async fn accept(self: &Rc<Self>, listener: std::net::TcpListener) -> io::Result<()> {
        let listener = TcpListener::from_std(listener)?;
        let options = SocketOptions { congestion: self.config.congestion.clone() };
        let (mut again, mut logged) = (RETRY, None);
        loop {
            self.pending.pace().await;
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(e) => {
                    // Probably out of descriptors: evicting the oldest silent connection frees one.
                    self.pending.evict();
                    let at = longhaul_engine::now();
                    if logged.is_none_or(|logged| at.saturating_duration_since(logged) >= LOG_INTERVAL) {
                        logged = Some(at);
                        tracing::warn!("cannot accept connections: {e}; retrying");
                    }
                    longhaul_engine::sleep(again).await;
                    again = (2 * again).min(RETRY_MAX);
                    continue;
                }
            };
            again = RETRY;
            match TcpStream::from_std(stream, &options) {
                Ok(stream) => {
                    let (agent, slot) = (Rc::clone(self), self.pending.enter(peer.ip()));
                    let link = Link::incoming(stream, self.greeting.clone());
                    spawn(async move {
                        match slot {
                            Some(slot) => agent.greet(link, peer, Rc::new(slot)).await,
                            None => agent.refuse_busy(link).await,
                        }
                    })
                    .detach();
                    // An evicted connection closes its descriptor only when its task runs.
                    longhaul_engine::yield_now().await;
                }
                Err(e) => tracing::warn!("{peer}: {e}"),
            }
        }
    }

    /// Refuses a connection because too many are pending.
    async fn refuse_busy(&self, mut link: Link) {
        let waiting = self.pending.len();
        let message = format!(
            "the agent is busy: {waiting} connections wait for a greeting, and this one had to leave for \
             others; try again"
        );
        let delivers = CountGuard::new(&self.refusals, self.pending.refusals());
        let refuse = async {
            send::refuse(&mut link, Refusal::new(RefusalKind::Busy, message)).await;
            let Some(stream) = link.tx.stream().filter(|_| delivers.is_some()) else { return };
            // Closing with unread input would reset the connection and lose the refusal.
            let _ = stream.shutdown(Shutdown::Write);
            while matches!(stream.discard(DISCARD).await, Ok(1..)) {}
        };
        // Best effort: a peer that does not read the refusal in time loses it.
        let _ = timeout(REFUSAL_TIMEOUT, refuse).await;
    }

    /// Receives the first frame of a connection and serves it.
    async fn greet(self: Rc<Self>, mut link: Link, peer: SocketAddr, slot: Rc<PendingSlot>) {
        let first = {
            let first = pin!(timeout(GREETING, self.first(&mut link, &slot)));
            match select(first, pin!(slot.evicted())).await {
                Either::Left((first, _)) => Some(first),
                Either::Right(_) => None,
            }
        };
        let Some(first) = first else { return self.refuse_busy(link).await };
        link.rx.use_pool(self.pool.clone());
        match first {
            Ok(Ok(Some(Frame::Hello(hello)))) => {
                drop(slot);
                match self.serve(*hello, link, peer).await {
                    Ok(counts) => tracing::info!("{peer}: done: {counts:?}"),
                    Err(e) => tracing::warn!("{peer}: {e}"),
                }
            }
            Ok(Ok(Some(Frame::Join(session)))) => {
                if let Some(evicted) = self.joining.join(session, link, slot).await {
                    self.refuse_busy(evicted).await;
                }
            }
            Ok(Ok(Some(Frame::Refuse(refusal)))) => {
                tracing::warn!("{peer}: {}", refusal.message);
                send::refuse(&mut link, refusal).await;
            }
            Ok(Ok(Some(_))) => tracing::warn!("{peer}: the first frame is not a greeting; closed"),
            Ok(Ok(None)) => {}
            Ok(Err(e)) => {
                tracing::warn!("{peer}: {e}");
                send::refuse(&mut link, Refusal::new(RefusalKind::Protocol, e)).await;
            }
            Err(_) => tracing::debug!("{peer}: no greeting within {} s; closed", GREETING.as_secs()),
        }
    }

    /// The first frame of a client with the right key, after the handshake; for any other
    /// client, the refusal to send.
    async fn first(&self, link: &mut Link, slot: &PendingSlot) -> Result<Option<Frame>, LinkError> {
        let refuse = |message: &str| Ok(Some(Frame::Refuse(Refusal::new(RefusalKind::NotAllowed, message))));
        let first = link.rx.first(self.config.key.is_some()).await?;
        match (&self.config.key, first) {
            (_, FirstFrame::Closed) => Ok(None),
            (_, FirstFrame::Unkeyed) => refuse("the agent wants a key: use --key-file"),
            (Some(key), FirstFrame::Frame(Frame::Secure(message))) => {
                match link.secure_answer(key, &message).await {
                    Ok(()) => {
                        slot.protect();
                        link.rx.frame().await
                    }
                    Err(LinkError::Io(e)) if e.kind() == io::ErrorKind::PermissionDenied => {
                        refuse("the agent has another key")
                    }
                    Err(e) => Err(e),
                }
            }
            (None, FirstFrame::Frame(Frame::Secure(_))) => {
                refuse("the agent has no key: it serves in the clear")
            }
            (_, FirstFrame::Frame(frame)) => Ok(Some(frame)),
        }
    }

    async fn serve(&self, hello: Hello, mut link: Link, peer: SocketAddr) -> Result<Counts, SessionError> {
        let slot = CountGuard::new(&self.sessions, SESSIONS);
        let expected = slot.is_some().then(|| self.joining.expect(hello.session));
        // With all sessions in use, a short timeout ends those whose peer hangs.
        let patience = self.config.patience;
        self.patience.set(if slot.is_some() { patience } else { patience.min(CROWDED) });
        let prepared = match (slot.as_ref(), hello.negotiate()) {
            (None, _) => Err(Refusal::new(RefusalKind::Busy, "the agent serves as many copies as it can")),
            (_, Err(refusal)) => Err(refusal),
            (Some(_), Ok(version)) => self.prepare(&hello).await.and_then(|prepared| {
                if matches!(prepared, PreparedSession::Send(_) | PreparedSession::Mount(_)) {
                    use_congestion(&link, &hello.request.congestion)?;
                }
                Ok((version, prepared))
            }),
        };
        let (version, prepared) = match prepared {
            Ok(prepared) => prepared,
            Err(refusal) => {
                send::refuse(&mut link, refusal.clone()).await;
                return Err(SessionError::Refused(refusal));
            }
        };
        tracing::info!("{peer}: {:?} over {} streams", hello.direction, hello.streams);
        let resume = matches!(&prepared, PreparedSession::Receive(destination) if destination.resumes());
        let by_content =
            matches!(&prepared, PreparedSession::Receive(destination) if destination.by_content());
        let congestion = link.tx.stream().and_then(|stream| stream.congestion().ok()).unwrap_or_default();
        link.tx.send(vec![Frame::Welcome(Welcome { version, resume, by_content, congestion })]).await?;
        let mut links = self.joining.gather(&hello, link).await?;
        drop(expected);
        let monitor = Arc::new(Monitor::new());
        let counted = self.statistics.begin(hello.direction, &monitor);
        let result = match prepared {
            PreparedSession::Mount(exported) => {
                let link = links.into_iter().next().ok_or(SessionError::Lost)?;
                far::serve(link, exported, self.pool.clone()).await?;
                Ok(Counts::default())
            }
            PreparedSession::Onward(spec, onward) => {
                let settings = Settings {
                    streams: match hello.request.tune_streams {
                        true => Concurrency::Measured,
                        false => Concurrency::Fixed(onward.streams.into()),
                    },
                    readers: self.config.readers,
                    key: onward.key,
                    congestion: match &hello.request.congestion {
                        name if name.is_empty() => self.config.congestion.clone(),
                        name => Some(name.clone()),
                    },
                    ..Settings::default()
                };
                let request = Request { onward: None, ..hello.request };
                let roots = (Root::Here, Root::Here);
                let job = CopyTask { request, roots, settings, monitor, channel: RefCell::new(None) };
                let [link] = &mut links[..] else { return Err(SessionError::Lost) };
                third_party::carry_out(link, &job, spec, (onward.host, onward.port)).await
            }
            PreparedSession::Receive(destination) => {
                receive::receive(
                    destination,
                    self.config.writers,
                    links,
                    monitor,
                    false,
                    self.patience.clone(),
                )
                .await
            }
            PreparedSession::Send(spec) => {
                let streams = match hello.request.tune_streams {
                    true => Concurrency::Measured,
                    false => Concurrency::Fixed(links.len()),
                };
                // The first connection has it already.
                for link in &links[1..] {
                    use_congestion(link, &hello.request.congestion).map_err(SessionError::Refused)?;
                }
                send::send(spec, links, streams, monitor, self.patience.clone()).await
            }
        };
        if result.is_ok() {
            counted.done();
        }
        result
    }

    /// Opens the files that a session is about, before it is granted.
    async fn prepare(&self, hello: &Hello) -> Result<PreparedSession, Refusal> {
        if !(1..=STREAMS).contains(&hello.streams) {
            return Err(Refusal::new(
                RefusalKind::Protocol,
                format_args!("between 1 and {STREAMS} streams are served"),
            ));
        }
        let (root, request, direction) = (self.root.clone(), hello.request.clone(), hello.direction);
        let (read_only, readers) = (self.config.read_only, self.config.readers);
        let may_onward = self.config.onward;
        let grant = if self.config.allow_owner { Grant::FileIdentity } else { Grant::Content };
        blocking(move || match direction {
            CopyDirection::Push if read_only && !is_null_sink(&request.destination) => {
                Err(Refusal::new(RefusalKind::NotAllowed, "the agent is read-only"))
            }
            CopyDirection::Push => {
                Destination::open(&root, &request, false, grant).map(PreparedSession::Receive)
            }
            CopyDirection::Pull => SendSpec::new(&root, &request, readers).map(PreparedSession::Send),
            CopyDirection::Mount => {
                Exported::open(&root, &request.destination, read_only).map(PreparedSession::Mount)
            }
            CopyDirection::Onward if !may_onward => Err(Refusal::new(
                RefusalKind::NotAllowed,
                "the agent sends to no others (it was started without --onward)",
            )),
            CopyDirection::Onward => match request.onward.clone() {
                None => Err(Refusal::new(
                    RefusalKind::Protocol,
                    "malformed request: it names no agent to send to",
                )),
                Some(onward) if !(1..=STREAMS).contains(&onward.streams) => Err(Refusal::new(
                    RefusalKind::Protocol,
                    "malformed request: between 1 and 64 streams can be used",
                )),
                Some(onward) => {
                    SendSpec::new(&root, &request, readers).map(|spec| PreparedSession::Onward(spec, onward))
                }
            },
        })
        .await
    }
}

enum PreparedSession {
    Mount(Exported),
    Receive(Arc<Destination>),
    Send(SendSpec),
    Onward(SendSpec, Onward),
}
