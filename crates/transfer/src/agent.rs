//! The standing agent: it serves a directory to whoever copies to or from it.
//!
//! Invariants:
//! - nothing outside the root is reached, whatever a peer asks for;
//! - a connection that does not say in time what it wants is closed, and so are
//!   connections for a session that never begins;
//! - connections that say nothing keep nobody else out (see [`Lobby`]);
//! - sessions share one pool of memory, whose size is the bound.

use crate::asked::Asked;
use crate::copy::Settings;
use crate::filter::Filter;
use crate::job::Job;
use crate::journal::Journal;
use crate::link::{First, Link, LinkError};
use crate::lobby::{Lobby, Place};
use crate::made::{self, Nowhere};
use crate::manifest::Manifest;
use crate::monitor::Monitor;
use crate::onward;
use crate::output::Output;
use crate::place::{Root, last_name};
use crate::scan::Start;
use crate::seal::Key;
use crate::silence::{CROWDED, Patience};
use crate::sink;
use crate::source::{self, Plan, SessionError};
use crate::tree::{Tree, say};
use crate::tune::Concurrency;
use crate::wire::{
    self, Compare, Counts, Direction, Frame, Hash, Hello, Onward, Refusal, RefusalKind, RelPath, Request,
    Welcome,
};
use crate::write::{Grant, Withheld, Writer};
use futures_util::future::{Either, select};
use longhaul_engine::net::{SocketOptions, TcpListener, TcpStream};
use longhaul_engine::sync::Notify;
use longhaul_engine::{BufPool, Config, Thread, blocking, spawn, timeout};
use rustix::process::{Resource, getrlimit};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How long a new connection may take to say what it wants, and all connections
/// of a session to arrive: a few round trips on any path.
const GREETING: Duration = Duration::from_secs(15);
/// The most sessions at the same time: each has threads and files of its own.
const SESSIONS: usize = 64;
/// How long a connection that has to leave may take to hear so; see [`Lobby::farewells`].
const FAREWELL: Duration = Duration::from_secs(1);
/// Bytes that are thrown away at once of what such a connection has sent.
const UNHEARD: u32 = 64 << 10;
/// How long no connection is accepted after one could not be: at first, and at most
/// where that goes on.
const AGAIN: Duration = Duration::from_millis(20);
const AGAIN_MOST: Duration = Duration::from_secs(1);
/// How often that is said.
const SAY: Duration = Duration::from_secs(10);
/// Memory for what connections say they want, in bytes: 8 lists of files of the
/// longest kind. Whoever says it slowly has others wait for 15 s at most.
const GREETING_MEMORY: usize = 16 << 20;
/// The most connections of a session.
pub(crate) const STREAMS: u16 = 64;

/// How an agent is set up.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Where to listen: the first address that is free. One alone is waited for
    /// if a predecessor has just left it.
    pub listen: Vec<SocketAddr>,
    /// What to serve; or everything that this user may reach, with paths from
    /// the working directory on.
    pub root: Option<PathBuf>,
    /// Serve only who has this key, and encrypt; or anybody, in the clear.
    pub key: Option<Key>,
    /// Refuse to write.
    pub read_only: bool,
    /// Let the senders decide owners, set-user-ID and set-group-ID bits and access
    /// control lists, where they ask for these. Without it everything belongs to the
    /// user that this runs as, and no program that is sent runs with that user's rights.
    pub allow_owner: bool,
    /// Send to other agents for those who ask for it.
    pub onward: bool,
    /// Threads that read, for each session.
    pub readers: Concurrency,
    /// Threads that write, for each session.
    pub writers: Concurrency,
    /// Memory for data that was received, in bytes.
    pub memory: usize,
    /// How long the other side of a copy may be silent; a minute at most while others
    /// are turned away because there are too many [default: [`crate::PATIENCE`]].
    pub patience: Duration,
    /// Congestion control, by the kernel's name.
    pub congestion: Option<String>,
    /// Settings of the engine.
    pub engine: Config,
}

/// An agent that has its root and its address and serves nobody yet. No thread of it
/// runs, so the process can still become another user.
#[derive(Debug)]
pub struct Bound {
    config: AgentConfig,
    root: Root,
    listener: std::net::TcpListener,
    address: SocketAddr,
}

/// A running agent; it ends when dropped. Copies under way end with it, and can
/// be taken up again.
#[derive(Debug)]
pub struct Agent {
    address: SocketAddr,
    _thread: Thread,
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Bound {
    /// Serves from here on, with the rights that the process has now.
    ///
    /// # Errors
    /// This user may not enter the root, or there is no engine.
    pub fn start(self) -> io::Result<Agent> {
        let Bound { config, root, listener, address } = self;
        if let (Root::Beneath(tree), Some(path)) = (&root, &config.root) {
            tree.enter().map_err(|e| named(format!("{} cannot be entered", path.display()), &e))?;
        }
        let thread = Thread::start("transfer", config.engine.clone())?;
        drop(thread.handle().spawn(move || async move {
            let agent = Rc::new(Serving {
                pool: BufPool::new(config.memory),
                greeting: BufPool::new(GREETING_MEMORY),
                lobby: Lobby::new(descriptors()),
                farewells: Rc::default(),
                patience: Patience::new(config.patience),
                config,
                root,
                joining: RefCell::default(),
                joined: Notify::new(),
                expected: Rc::default(),
                sessions: Rc::default(),
            });
            if let Err(e) = agent.accept(listener).await {
                tracing::error!("the agent accepts no more connections: {e}");
            }
        }));
        Ok(Agent { address, _thread: thread })
    }
}

struct Serving {
    config: AgentConfig,
    root: Root,
    /// Memory of the sessions. Who has not been let in gets none of it.
    pool: BufPool,
    /// Memory for what connections want, until that is known.
    greeting: BufPool,
    lobby: Lobby,
    farewells: Rc<Cell<usize>>,
    /// Connections for sessions, until these take them.
    joining: RefCell<HashMap<[u8; 16], Vec<Joining>>>,
    joined: Notify,
    /// Sessions that wait for their connections.
    expected: Rc<RefCell<HashSet<[u8; 16]>>>,
    sessions: Rc<Cell<usize>>,
    /// Of all sessions.
    patience: Patience,
}

/// Counts one up, and down again when dropped.
struct Counted(Rc<Cell<usize>>);

impl Counted {
    fn new(cell: &Rc<Cell<usize>>, limit: usize) -> Option<Counted> {
        let now = cell.get();
        (now < limit).then(|| {
            cell.set(now + 1);
            Counted(Rc::clone(cell))
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Sends with this congestion control on a connection, if one is named.
fn use_congestion(link: &Link, name: &str) -> Result<(), Refusal> {
    let Some(stream) = link.tx.stream().filter(|_| !name.is_empty()) else { return Ok(()) };
    // Asked for by who has the right to, the kernel would load a module of that name.
    let there = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    let is_there = there.map_or(true, |there| there.split_whitespace().any(|one| one == name));
    let none =
        || io::Error::other(format!("congestion control '{name}' cannot be used: it is not loaded there"));
    let used = if is_there { stream.set_congestion(name) } else { Err(none()) };
    used.map_err(|e| Refusal::new(RefusalKind::NotAllowed, format_args!("on the side that sends, {e}")))
}

/// A connection that waits to be taken by its session, and has its place until then.
struct Joining {
    link: Link,
    place: Rc<Place>,
    taken: Rc<Notify>,
}

/// A session that waits for its connections; they keep their places meanwhile.
struct Expected<'a>(&'a Serving, [u8; 16]);

impl<'a> Expected<'a> {
    fn new(agent: &'a Serving, session: [u8; 16]) -> Expected<'a> {
        agent.expected.borrow_mut().insert(session);
        for joining in agent.joining.borrow().get(&session).into_iter().flatten() {
            joining.place.has_shown();
        }
        Expected(agent, session)
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.0.expected.borrow_mut().remove(&self.1);
    }
}

/// Descriptors that this process may have.
fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

impl Serving {
    async fn accept(self: &Rc<Self>, listener: std::net::TcpListener) -> io::Result<()> {
        let listener = TcpListener::from_std(listener)?;
        let options = SocketOptions { congestion: self.config.congestion.clone() };
        let (mut again, mut said) = (AGAIN, None);
        loop {
            self.lobby.pace().await;
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(e) => {
                    // Out of descriptors, say: that of the oldest that says nothing comes free.
                    self.lobby.shed();
                    let at = longhaul_engine::now();
                    if said.is_none_or(|said| at.saturating_duration_since(said) >= SAY) {
                        said = Some(at);
                        tracing::warn!("connections cannot be accepted: {e}");
                    }
                    longhaul_engine::sleep(again).await;
                    again = (2 * again).min(AGAIN_MOST);
                    continue;
                }
            };
            again = AGAIN;
            match TcpStream::from_std(stream, &options) {
                Ok(stream) => {
                    let (agent, place) = (Rc::clone(self), self.lobby.enter(peer.ip()));
                    let link = Link::incoming(stream, self.greeting.clone());
                    spawn(async move {
                        match place {
                            Some(place) => agent.greet(link, peer, Rc::new(place)).await,
                            None => agent.turn_away(link).await,
                        }
                    })
                    .detach();
                    // A connection that has to leave for this one gives its descriptor back
                    // only when its task runs.
                    longhaul_engine::yield_now().await;
                }
                Err(e) => tracing::warn!("{peer}: {e}"),
            }
        }
    }

    /// Tells a connection that there is no room for it.
    async fn turn_away(&self, mut link: Link) {
        let waiting = self.lobby.len();
        let message = format!(
            "the agent is busy: {waiting} connections wait for a greeting, and this one had to leave for \
             others; try again"
        );
        let heard = Counted::new(&self.farewells, self.lobby.farewells());
        let tell = async {
            source::refuse(&mut link, Refusal::new(RefusalKind::Busy, message)).await;
            let Some(stream) = link.tx.stream().filter(|_| heard.is_some()) else { return };
            // What was not received when this end closes would take the refusal with it.
            let _ = stream.shutdown(Shutdown::Write);
            while matches!(stream.discard(UNHEARD).await, Ok(1..)) {}
        };
        // Whoever does not hear it in time does not.
        let _ = timeout(FAREWELL, tell).await;
    }

    /// Hears what a connection wants.
    async fn greet(self: Rc<Self>, mut link: Link, peer: SocketAddr, place: Rc<Place>) {
        let heard = {
            let first = pin!(timeout(GREETING, self.first(&mut link, &place)));
            match select(first, pin!(place.left())).await {
                Either::Left((first, _)) => Some(first),
                Either::Right(_) => None,
            }
        };
        let Some(first) = heard else { return self.turn_away(link).await };
        link.rx.use_pool(self.pool.clone());
        match first {
            Ok(Ok(Some(Frame::Hello(hello)))) => {
                drop(place);
                match self.serve(*hello, link, peer).await {
                    Ok(counts) => tracing::info!("{peer}: done: {counts:?}"),
                    Err(e) => tracing::warn!("{peer}: {e}"),
                }
            }
            Ok(Ok(Some(Frame::Join(session)))) => self.join(session, link, place).await,
            Ok(Ok(Some(Frame::Refuse(refusal)))) => {
                tracing::warn!("{peer}: {}", refusal.message);
                source::refuse(&mut link, refusal).await;
            }
            Ok(Ok(Some(_))) => tracing::warn!("{peer}: began with a frame that begins nothing"),
            Ok(Ok(None)) => {}
            Ok(Err(e)) => {
                tracing::warn!("{peer}: {e}");
                source::refuse(&mut link, Refusal::new(RefusalKind::Protocol, e)).await;
            }
            Err(_) => tracing::debug!("{peer}: said nothing for {} s", GREETING.as_secs()),
        }
    }

    /// Keeps a connection until its session takes it.
    async fn join(&self, session: [u8; 16], link: Link, place: Rc<Place>) {
        if self.expected.borrow().contains(&session) {
            place.has_shown();
        }
        let taken = Rc::new(Notify::new());
        let joining = Joining { link, place: Rc::clone(&place), taken: Rc::clone(&taken) };
        self.joining.borrow_mut().entry(session).or_default().push(joining);
        self.joined.notify();
        let time = timeout(GREETING, taken.notified());
        let leaves = match select(pin!(time), pin!(place.left())).await {
            Either::Left((Ok(()), _)) => return,
            Either::Left((Err(_), _)) => false,
            Either::Right(_) => true,
        };
        let own = {
            let mut all = self.joining.borrow_mut();
            let waiting = all.get_mut(&session);
            let own = waiting.and_then(|waiting| {
                let at = waiting.iter().position(|joining| Rc::ptr_eq(&joining.taken, &taken))?;
                Some(waiting.swap_remove(at))
            });
            all.retain(|_, waiting| !waiting.is_empty());
            own
        };
        if let Some(Joining { link, .. }) = own.filter(|_| leaves) {
            self.turn_away(link).await;
        }
    }

    /// The first frame that says what is wanted, from somebody with the key, or
    /// the refusal that somebody without it gets.
    async fn first(&self, link: &mut Link, place: &Place) -> Result<Option<Frame>, LinkError> {
        let refuse = |message: &str| Ok(Some(Frame::Refuse(Refusal::new(RefusalKind::NotAllowed, message))));
        let first = link.rx.first(self.config.key.is_some()).await?;
        match (&self.config.key, first) {
            (_, First::Nothing) => Ok(None),
            (_, First::Unkeyed) => refuse("the agent wants a key: use --key-file"),
            (Some(key), First::Frame(Frame::Secure(message))) => {
                match link.secure_answer(key, &message).await {
                    Ok(()) => {
                        place.has_shown();
                        link.rx.frame().await
                    }
                    Err(LinkError::Io(e)) if e.kind() == io::ErrorKind::PermissionDenied => {
                        refuse("the agent has another key")
                    }
                    Err(e) => Err(e),
                }
            }
            (None, First::Frame(Frame::Secure(_))) => refuse("the agent has no key: it serves in the clear"),
            (_, First::Frame(frame)) => Ok(Some(frame)),
        }
    }

    async fn serve(&self, hello: Hello, mut link: Link, peer: SocketAddr) -> Result<Counts, SessionError> {
        let slot = Counted::new(&self.sessions, SESSIONS);
        let expected = slot.is_some().then(|| Expected::new(self, hello.session));
        // Whoever comes again will find room if somebody only holds a place.
        let patience = self.config.patience;
        self.patience.set(if slot.is_some() { patience } else { patience.min(CROWDED) });
        let prepared = match (slot.as_ref(), hello.negotiate()) {
            (None, _) => Err(Refusal::new(RefusalKind::Busy, "the agent serves as many copies as it can")),
            (_, Err(refusal)) => Err(refusal),
            (Some(_), Ok(version)) => self.prepare(&hello).await.and_then(|prepared| {
                if matches!(prepared, Prepared::Send(_)) {
                    use_congestion(&link, &hello.request.congestion)?;
                }
                Ok((version, prepared))
            }),
        };
        let (version, prepared) = match prepared {
            Ok(prepared) => prepared,
            Err(refusal) => {
                source::refuse(&mut link, refusal.clone()).await;
                return Err(SessionError::Refused(refusal));
            }
        };
        tracing::info!("{peer}: {:?} over {} streams", hello.direction, hello.streams);
        let resume = matches!(&prepared, Prepared::Receive(writer) if writer.resumes());
        let by_content = matches!(&prepared, Prepared::Receive(writer) if writer.by_content());
        let congestion = link.tx.stream().and_then(|stream| stream.congestion().ok()).unwrap_or_default();
        link.tx.send(vec![Frame::Welcome(Welcome { version, resume, by_content, congestion })]).await?;
        let mut links = self.gather(&hello, link).await?;
        drop(expected);
        let monitor = Arc::new(Monitor::new());
        match prepared {
            Prepared::Onward(plan, onward) => {
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
                let job = Job { request, settings, monitor, channel: RefCell::new(None) };
                let [link] = &mut links[..] else { return Err(SessionError::Lost) };
                onward::carry_out(link, &job, plan, (onward.host, onward.port)).await
            }
            Prepared::Receive(writer) => {
                sink::receive(writer, self.config.writers, links, monitor, true, self.patience.clone()).await
            }
            Prepared::Send(plan) => {
                let streams = match hello.request.tune_streams {
                    true => Concurrency::Measured,
                    false => Concurrency::Fixed(links.len()),
                };
                // The first has it.
                for link in &links[1..] {
                    use_congestion(link, &hello.request.congestion).map_err(SessionError::Refused)?;
                }
                source::send(plan, links, streams, monitor, self.patience.clone()).await
            }
        }
    }

    /// Waits for the other connections of a session.
    async fn gather(&self, hello: &Hello, link: Link) -> Result<Vec<Link>, SessionError> {
        let mut links = vec![link];
        let wanted = usize::from(hello.streams);
        let all = async {
            loop {
                for joining in self.joining.borrow_mut().remove(&hello.session).unwrap_or_default() {
                    joining.taken.notify();
                    links.push(joining.link);
                }
                if links.len() >= wanted {
                    break;
                }
                // Other sessions may wait too: the signal is passed on in time.
                let _ = timeout(Duration::from_millis(20), self.joined.notified()).await;
            }
        };
        let arrived = timeout(GREETING, all).await;
        if arrived.is_err() || links.len() != wanted {
            return Err(SessionError::Lost);
        }
        Ok(links)
    }

    /// Looks at the files that a session is about, before it is granted.
    async fn prepare(&self, hello: &Hello) -> Result<Prepared, Refusal> {
        if !(1..=STREAMS).contains(&hello.streams) {
            return Err(Refusal::new(
                RefusalKind::Protocol,
                format_args!("between 1 and {STREAMS} streams are served"),
            ));
        }
        let (root, request, direction) = (self.root.clone(), hello.request.clone(), hello.direction);
        let (read_only, readers) = (self.config.read_only, self.config.readers);
        let may_onward = self.config.onward;
        let grant = if self.config.allow_owner { Grant::Identity } else { Grant::Content };
        blocking(move || match direction {
            Direction::Push if read_only && !made::is_nowhere(&request.destination) => {
                Err(Refusal::new(RefusalKind::NotAllowed, "the agent does not let anybody write"))
            }
            Direction::Push => writer(&root, &request, false, grant).map(Prepared::Receive),
            Direction::Pull => plan(&root, &request, readers).map(Prepared::Send),
            Direction::Onward if !may_onward => Err(Refusal::new(
                RefusalKind::NotAllowed,
                "the agent sends to no others (it was started without --onward)",
            )),
            Direction::Onward => match request.onward.clone() {
                None => Err(Refusal::new(RefusalKind::Protocol, "there is nobody to send to")),
                Some(onward) if !(1..=STREAMS).contains(&onward.streams) => {
                    Err(Refusal::new(RefusalKind::Protocol, "that many streams are not used"))
                }
                Some(onward) => plan(&root, &request, readers).map(|plan| Prepared::Onward(plan, onward)),
            },
        })
        .await
    }
}

enum Prepared {
    Receive(Arc<Output>),
    Send(Plan),
    Onward(Plan, Onward),
}

fn failed(e: impl ToString) -> Refusal {
    Refusal::new(RefusalKind::Failed, e)
}

/// What writes the files of a request. With `asked` it takes only what the request
/// names: who sends has not been asked for more. `grant` is what the sender may decide
/// besides content.
///
/// # Errors
/// The destination cannot be used.
pub(crate) fn writer(
    root: &Root,
    request: &Request,
    asked: bool,
    grant: Grant,
) -> Result<Arc<Output>, Refusal> {
    if made::is_nowhere(&request.destination) {
        return Ok(Arc::new(Output::Nowhere(Nowhere { hash: request.options.hash })));
    }
    let listed = !request.manifest.is_empty();
    if listed && request.options.hash != Hash::Strong {
        return Err(Refusal::new(RefusalKind::Protocol, "a manifest takes BLAKE3 as checksum"));
    }
    let filter = Filter::new(&request.filters).map_err(failed)?;
    let mut options = request.options;
    let withheld = Withheld::new(grant, &mut options);
    let destination = root.destination(request)?;
    let journal = match options.dry_run {
        true => None,
        false => Some(Journal::open(&destination.base, request.key).map_err(|e| {
            let kind = match e.kind() {
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    RefusalKind::NotAllowed
                }
                io::ErrorKind::WouldBlock => RefusalKind::Busy,
                _ => RefusalKind::Failed,
            };
            Refusal::new(kind, format_args!("the destination cannot be written to: {}", say(&e)))
        })?),
    };
    let within = destination.rename.as_deref();
    let manifest = || Manifest::begin(&destination.base, within, &request.manifest, request.key);
    let manifest = (listed && !options.dry_run).then(manifest).transpose();
    let named =
        |e| Refusal::new(RefusalKind::Failed, format_args!("the manifest cannot be written: {}", say(&e)));
    let manifest = manifest.map_err(named)?;
    let asked = asked.then(|| Asked::new(request, filter.clone()));
    let mut writer = Writer::new(destination.base, destination.rename, options, filter, journal, manifest);
    (writer.asked, writer.withheld) = (asked, withheld);
    Ok(Arc::new(Output::Tree(Box::new(writer))))
}

/// What reads the files of a request. Of several sources those that do not exist
/// are troubles of the scan.
///
/// # Errors
/// None of them exists, or one may not be read.
pub(crate) fn plan(root: &Root, request: &Request, readers: Concurrency) -> Result<Plan, Refusal> {
    let contents = request.place == wire::Place::Contents;
    let mut missing = Vec::new();
    let mut starts: Vec<Start> = Vec::new();
    for typed in &request.sources {
        match root.start(typed, contents) {
            Ok(start) => starts.push(start),
            Err(refusal) if refusal.kind == RefusalKind::NoSuchPath => missing.push((typed, refusal)),
            Err(refusal) => return Err(refusal),
        }
    }
    if let Some((_, refusal)) = missing.first().filter(|_| starts.is_empty()) {
        return Err(refusal.clone());
    }
    if !request.files.is_empty() {
        starts = listed(&starts, &request.files)?;
    }
    starts.extend(missing.into_iter().map(|(typed, refusal)| {
        let path = RelPath::new(last_name(typed)).unwrap_or_else(|_| RelPath::root());
        Start::Missing { path, why: refusal.message }
    }));
    Ok(Plan {
        starts,
        rate: request.rate,
        filter: Filter::new(&request.filters).map_err(failed)?,
        recursive: request.recursive,
        into: None,
        options: request.options,
        ask: request.options.compare != Compare::Nothing,
        readers,
        ahead: None,
    })
}

/// What is listed below each of `starts`. The list is shared: as many copies of it as
/// there are sources could be more than any memory holds.
fn listed(starts: &[Start], files: &[Vec<u8>]) -> Result<Vec<Start>, Refusal> {
    let refused = |e| Refusal::new(RefusalKind::NotAllowed, e);
    let files: Arc<[RelPath]> =
        files.iter().map(|file| RelPath::new(file)).collect::<Result<_, _>>().map_err(refused)?;
    let below = |start: &Start| match start {
        Start::Tree { tree, path } => {
            Ok(Start::Listed { tree: tree.clone(), named: path.clone(), files: Arc::clone(&files) })
        }
        _ => Err(failed("files can be listed of a directory only")),
    };
    starts.iter().map(below).collect()
}
