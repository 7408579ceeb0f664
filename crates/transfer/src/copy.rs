//! Copies, from the side that starts them.

use crate::agent::{STREAMS, plan, writer};
use crate::link::Link;
use crate::made;
use crate::monitor::Monitor;
use crate::onward;
use crate::place::{Root, means_contents};
use crate::seal::{Key, fill_random};
use crate::source::{Plan, SessionError};
use crate::ssh::{Remote, Ssh, Via};
use crate::tune::Concurrency;
use crate::wire::{
    Compare, Counts, Direction, Frame, Hello, Onward, Options, Place, Refusal, RefusalKind, Request, VERSION,
    Welcome, show,
};
use crate::{sink, source};
use futures_util::future::{join, try_join_all};
use longhaul_engine::net::{SocketOptions, TcpStream};
use longhaul_engine::{BufPool, Config, Thread, timeout};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Port of a standing agent.
pub(crate) const PORT: u16 = 7400;
/// How a running agent is named.
const SCHEME: &[u8] = b"lh://";
/// How long direct connections may take where there is another way: five times
/// what the longest path takes.
const DIRECT: Duration = Duration::from_secs(5);
/// Memory for data that was received, in bytes.
const MEMORY: usize = 64 << 20;

/// One end of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A path on this machine. Here and with the others, `zero:SPEC` and
    /// `dataset:SPEC` in place of a path are data that is made while it is sent,
    /// and `null:` is where it is checked and thrown away.
    Local(Vec<u8>),
    /// A path on a machine that ssh reaches.
    Ssh {
        /// As ssh takes it: `[USER@]HOST`.
        host: String,
        /// Path, relative to the home directory.
        path: Vec<u8>,
    },
    /// A path below the root of a running agent.
    Agent {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
        /// Path, relative to the root.
        path: Vec<u8>,
    },
}

impl Endpoint {
    /// From what was typed: a path, `[USER@]HOST:PATH`, or `lh://HOST[:PORT]/PATH`;
    /// `zero:`, `dataset:` and `null:` name no hosts.
    ///
    /// # Errors
    /// It is neither; in words.
    pub fn parse(text: &OsStr) -> Result<Endpoint, String> {
        let bytes = text.as_bytes();
        if bytes.is_empty() {
            return Err("an empty path is none".into());
        }
        if made::is_special(bytes) {
            return Ok(Endpoint::Local(bytes.to_vec()));
        }
        let Some(rest) = bytes.strip_prefix(SCHEME) else {
            let colon = bytes.iter().position(|b| *b == b':');
            let slash = bytes.iter().position(|b| *b == b'/').unwrap_or(bytes.len());
            return match colon {
                Some(at) if at < slash => ssh(&bytes[..at], &bytes[at + 1..]),
                _ => Ok(Endpoint::Local(bytes.to_vec())),
            };
        };
        let wrong = || format!("'{}' is not of the form lh://HOST:PORT/PATH", show(bytes));
        let (authority, path) = match rest.iter().position(|b| *b == b'/') {
            Some(at) => (&rest[..at], &rest[at + 1..]),
            None => (rest, &b""[..]),
        };
        let authority = std::str::from_utf8(authority).map_err(|_| wrong())?;
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| wrong())?),
            _ => (authority, PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() { Err(wrong()) } else { Ok(Endpoint::Agent { host, port, path: path.to_vec() }) }
    }

    fn path(&self) -> &[u8] {
        match self {
            Endpoint::Local(path) | Endpoint::Ssh { path, .. } | Endpoint::Agent { path, .. } => path,
        }
    }

    fn server(&self) -> Option<Server> {
        match self {
            Endpoint::Local(_) => None,
            Endpoint::Ssh { host, .. } => Some(Server::Ssh(host.clone())),
            Endpoint::Agent { host, port, .. } => Some(Server::Agent(host.clone(), *port)),
        }
    }
}

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Server {
    Ssh(String),
    Agent(String, u16),
}

/// `host:path`. A leading `~/` is where such paths begin anyway.
fn ssh(host: &[u8], path: &[u8]) -> Result<Endpoint, String> {
    let wrong = || format!("'{}' is no host; write ./ before a file with a colon in its name", show(host));
    let host = std::str::from_utf8(host).map_err(|_| wrong())?.to_owned();
    // What begins with a dash would be an option of ssh.
    if host.is_empty() || host.starts_with('-') || host.contains(char::is_whitespace) {
        return Err(wrong());
    }
    let path = path.strip_prefix(b"~/").unwrap_or(if path == b"~" { b"" } else { path });
    Ok(Endpoint::Ssh { host, path: path.to_vec() })
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Local(path) => f.write_str(&show(path)),
            Endpoint::Ssh { host, path } => write!(f, "{host}:{}", show(path)),
            Endpoint::Agent { host, port, path } => write!(f, "lh://{host}:{port}/{}", show(path)),
        }
    }
}

/// What to copy.
#[derive(Clone, Debug)]
pub struct CopySpec {
    /// From where: all on this machine, or all at one agent.
    pub sources: Vec<Endpoint>,
    /// To where.
    pub destination: Endpoint,
    /// How it is placed there.
    pub place: Place,
    /// Whether directories are copied.
    pub recursive: bool,
    /// What to leave out; see [`crate::Filter`].
    pub filters: Vec<String>,
    /// Send these alone, paths below each source; all, if there are none.
    pub files: Vec<Vec<u8>>,
    /// The most bytes a second; 0 for no bound.
    pub rate: u64,
    /// Name of a file in the destination that is to list all files with their
    /// BLAKE3 checksums; empty for none.
    pub manifest: Vec<u8>,
    /// The rest.
    pub options: Options,
}

/// How to copy.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Connections.
    pub streams: Concurrency,
    /// Threads that read here.
    pub readers: Concurrency,
    /// Threads that write here.
    pub writers: Concurrency,
    /// Encrypt, with the key of the agent.
    pub key: Option<Key>,
    /// How agents are started where none runs.
    pub ssh: Ssh,
    /// How long connecting may take.
    pub connect: Duration,
    /// Congestion control, by the kernel's name.
    pub congestion: Option<String>,
    /// Settings of the engine.
    pub engine: Config,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            streams: Concurrency::Measured,
            readers: Concurrency::Measured,
            writers: Concurrency::Measured,
            key: None,
            ssh: Ssh::default(),
            connect: Duration::from_secs(30),
            congestion: None,
            engine: Config::default(),
        }
    }
}

/// What was copied.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// What was done.
    pub counts: Counts,
    /// How long it took.
    pub elapsed: Duration,
    /// A run before this one was taken up.
    pub resumed: bool,
    /// Connections that were used; none within a machine.
    pub streams: u16,
    /// Congestion control that was used.
    pub congestion: Option<String>,
    /// The data went through ssh.
    pub through_ssh: bool,
}

/// Why nothing was copied, or not all that could have been.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The ends do not go together.
    #[error("{0}")]
    Usage(String),
    /// The agent cannot be reached.
    #[error("cannot reach {server}: {reason}")]
    Unreachable {
        /// Host and port.
        server: String,
        /// Why.
        reason: String,
    },
    /// Connecting took too long.
    #[error("cannot reach {server} within {} s", .after.as_secs())]
    TimedOut {
        /// Host and port.
        server: String,
        /// How long was waited.
        after: Duration,
    },
    /// One of the sides will not do it.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// It ended early.
    #[error("{0}")]
    Session(#[from] SessionError),
}

impl From<crate::LinkError> for CopyError {
    fn from(e: crate::LinkError) -> CopyError {
        CopyError::Session(e.into())
    }
}

impl From<Refusal> for CopyError {
    fn from(refusal: Refusal) -> CopyError {
        CopyError::Refused(refusal)
    }
}

/// Copies; `monitor` shows how far it is. Blocks the calling thread.
///
/// # Errors
/// The copy could not begin, or ended early. What could not be copied of an
/// otherwise good copy is in the counts, and told by the monitor.
pub fn copy(spec: &CopySpec, settings: &Settings, monitor: &Arc<Monitor>) -> Result<Summary, CopyError> {
    let began = Instant::now();
    let mut request = request(spec)?;
    request.tune_streams = settings.streams == Concurrency::Measured;
    let from = spec.sources.first().and_then(Endpoint::server);
    let to = spec.destination.server();
    if spec.sources.iter().any(|source| source.server() != from) {
        return Err(CopyError::Usage(
            "all sources have to be in one place: on this machine, or at one agent".into(),
        ));
    }
    if settings.streams.most() > STREAMS.into() {
        return Err(CopyError::Usage(format!("between 1 and {STREAMS} streams can be used")));
    }
    let mut settings = settings.clone();
    let way = match (from.is_some(), to.is_some()) {
        (false, false) => None,
        (false, true) => Some(Direction::Push),
        (true, false) => Some(Direction::Pull),
        (true, true) => Some(Direction::Onward),
    };
    // Agents that are started here live as long as this does.
    let mut _third = None;
    if way == Some(Direction::Onward)
        && let Some(to) = to.clone()
    {
        let (server, key) = match to {
            Server::Agent(host, port) => ((host, port), settings.key.clone()),
            Server::Ssh(host) => {
                let remote: &Remote = _third.insert(Remote::start(&host, &settings.ssh)?);
                (remote.server.clone(), Some(remote.key.clone()))
            }
        };
        if key.is_some() && settings.key.is_none() && matches!(from, Some(Server::Agent(..))) {
            let message = format!("the key of {} would go to the other agent in the clear", server.0);
            return Err(CopyError::Usage(message));
        }
        let streams = settings.streams.most() as u16;
        request.onward = Some(Onward { host: server.0, port: server.1, streams, key });
        // They are for what the agents say, here.
        settings.streams = Concurrency::Fixed(1);
    }
    let mut _remote = None;
    let mut channel = None;
    let server = match from.or(to) {
        Some(Server::Ssh(host)) => {
            let mut remote = Remote::start(&host, &settings.ssh)?;
            settings.key = Some(remote.key.clone());
            if settings.ssh.via != Via::Direct {
                channel = Some(remote.channel().map_err(SessionError::from)?);
            }
            Some(_remote.insert(remote).server.clone())
        }
        Some(Server::Agent(host, port)) => Some((host, port)),
        None => None,
    };
    let thread = Thread::start("transfer", settings.engine.clone()).map_err(SessionError::from)?;
    let monitor = Arc::clone(monitor);
    let remote = thread.handle().spawn(move || async move {
        // What goes through ssh is open as long as this, and the agent with it.
        let job = Job { request, settings, monitor, channel: RefCell::new(channel) };
        match (server, way) {
            (Some(server), Some(Direction::Push)) => job.push(server).await,
            (Some(server), Some(Direction::Pull)) => job.pull(server).await,
            (Some(server), Some(Direction::Onward)) => job.order(server).await,
            _ => job.local().await,
        }
    });
    let lost = |_| CopyError::Session(SessionError::Lost);
    let summary = remote.wait().map_err(lost)??;
    Ok(Summary { elapsed: began.elapsed(), ..summary })
}

fn request(spec: &CopySpec) -> Result<Request, CopyError> {
    let sources: Vec<Vec<u8>> = spec.sources.iter().map(|source| source.path().to_vec()).collect();
    if sources.is_empty() {
        return Err(CopyError::Usage("there is nothing to copy".into()));
    }
    let several = sources.len() > 1 || sources.iter().any(|source| means_contents(source));
    let place = if spec.place == Place::Guess && several { Place::Into } else { spec.place };
    if made::makes(spec.destination.path()) {
        return Err(CopyError::Usage(format!("{} is a source only", spec.destination)));
    }
    if sources.iter().any(|source| made::is_nowhere(source)) {
        return Err(CopyError::Usage("null: is a destination only".into()));
    }
    for source in sources.iter().filter(|source| made::makes(source)) {
        made::Made::parse(source, usize::MAX).map_err(CopyError::Usage)?;
    }
    if !spec.files.is_empty() && spec.options.delete {
        return Err(CopyError::Usage(
            "what is not listed would be removed: list files or delete, not both".into(),
        ));
    }
    let mut name = format!("{place:?}\0{}", spec.destination);
    for source in &spec.sources {
        name.push('\0');
        name.push_str(&source.to_string());
    }
    let request = Request {
        destination: spec.destination.path().to_vec(),
        place,
        sources,
        key: xxhash_rust::xxh3::xxh3_64(name.as_bytes()),
        options: spec.options,
        filters: spec.filters.clone(),
        recursive: spec.recursive,
        files: spec.files.clone(),
        rate: spec.rate,
        manifest: spec.manifest.clone(),
        ..Request::default()
    };
    if !request.fits() && spec.sources.iter().any(|source| source.server().is_some()) {
        let message = "the list of files is too long to be sent to the other side: 2 MiB are the bound";
        return Err(CopyError::Usage(message.into()));
    }
    Ok(request)
}

/// One copy, on the thread of an engine.
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) settings: Settings,
    pub(crate) monitor: Arc<Monitor>,
    /// The way through ssh, if there is one.
    pub(crate) channel: RefCell<Option<std::net::TcpStream>>,
}

/// A session that was granted.
struct Granted {
    links: Vec<Link>,
    welcome: Welcome,
    /// What is known of the connections.
    summary: Summary,
}

impl Job {
    /// Both ends on this machine.
    async fn local(&self) -> Result<Summary, CopyError> {
        let request = self.request.clone();
        let readers = self.settings.readers;
        let prepare = move || {
            let plan = plan(&Root::Here, &request, readers)?;
            Ok::<_, Refusal>((plan, writer(&Root::Here, &request)?))
        };
        let (mut plan, writer) = longhaul_engine::blocking(prepare).await?;
        let resumed = writer.resumes();
        plan.ask |= resumed;
        let (here, there) = Link::pair();
        let received =
            sink::receive(writer, self.settings.writers, vec![there], Arc::clone(&self.monitor), false);
        let (sent, received) =
            join(source::send(plan, vec![here], Concurrency::Fixed(1), Arc::clone(&self.monitor)), received)
                .await;
        let counts = received.and(sent)?;
        Ok(Summary { counts, resumed, ..Summary::default() })
    }

    /// From here to an agent.
    async fn push(&self, server: (String, u16)) -> Result<Summary, CopyError> {
        let (request, readers) = (self.request.clone(), self.settings.readers);
        // What is wrong here is found before anybody is bothered.
        let plan = longhaul_engine::blocking(move || plan(&Root::Here, &request, readers)).await?;
        self.send(plan, server).await
    }

    /// What is planned already, to an agent.
    pub(crate) async fn send(&self, mut plan: Plan, server: (String, u16)) -> Result<Summary, CopyError> {
        let remote = Request { sources: Vec::new(), files: Vec::new(), ..self.request.clone() };
        let granted = self.connect(&server, Direction::Push, remote).await?;
        plan.ask |= granted.welcome.resume;
        let counts =
            source::send(plan, granted.links, self.settings.streams, Arc::clone(&self.monitor)).await?;
        Ok(Summary { counts, resumed: granted.welcome.resume, ..granted.summary })
    }

    /// From an agent to another, which it is told of.
    async fn order(&self, server: (String, u16)) -> Result<Summary, CopyError> {
        let granted = self.connect(&server, Direction::Onward, self.request.clone()).await?;
        let link = granted.links.into_iter().next().ok_or(SessionError::Lost)?;
        let counts = onward::hear(link, &self.monitor).await?;
        Ok(Summary { counts, ..granted.summary })
    }

    /// From an agent to here.
    async fn pull(&self, server: (String, u16)) -> Result<Summary, CopyError> {
        let request = self.request.clone();
        let writer = longhaul_engine::blocking(move || writer(&Root::Here, &request)).await?;
        let resumed = writer.resumes();
        let mut remote = Request { destination: Vec::new(), ..self.request.clone() };
        if resumed && remote.options.compare == Compare::Nothing {
            remote.options.compare = Compare::Mtime;
        }
        let granted = self.connect(&server, Direction::Pull, remote).await?;
        let monitor = Arc::clone(&self.monitor);
        let counts = sink::receive(writer, self.settings.writers, granted.links, monitor, true).await?;
        Ok(Summary { counts, resumed, ..granted.summary })
    }

    /// Opens connections and waits for the session to be granted.
    async fn connect(
        &self,
        server: &(String, u16),
        direction: Direction,
        request: Request,
    ) -> Result<Granted, CopyError> {
        let after = self.settings.connect;
        let channel = self.channel.borrow().as_ref().map(std::net::TcpStream::try_clone);
        let channel = channel.transpose().map_err(SessionError::from)?;
        let limit = if channel.is_some() { after.min(DIRECT) } else { after };
        let only_ssh = self.settings.ssh.via == Via::Ssh;
        let direct = match (only_ssh, &channel) {
            (true, Some(_)) => None,
            _ => Some(within(limit, server, self.direct(server)).await),
        };
        let (streams, through_ssh) = match (direct, channel) {
            (Some(Ok(streams)), _) => (streams, false),
            (Some(Err(e)), None) => return Err(e),
            (None, None) => return Err(SessionError::Lost.into()),
            (failed, Some(channel)) => {
                if let Some(Err(e)) = failed {
                    self.monitor.note(format!("{e}; the data goes through ssh"));
                }
                (
                    vec![
                        TcpStream::from_std(channel, &SocketOptions::default())
                            .map_err(SessionError::from)?,
                    ],
                    true,
                )
            }
        };
        let mut granted = within(after, server, self.begin(streams, server, direction, request)).await?;
        granted.summary.through_ssh = through_ssh;
        Ok(granted)
    }

    /// Opens all connections at the same time.
    async fn direct(&self, server: &(String, u16)) -> Result<Vec<TcpStream>, CopyError> {
        let unreachable = |reason: String| CopyError::Unreachable { server: name(server), reason };
        let addr = resolve(server.clone()).await.map_err(unreachable)?;
        let options = SocketOptions { congestion: self.settings.congestion.clone() };
        let open =
            async |_: u16| TcpStream::connect(addr, &options).await.map_err(|e| unreachable(reason(&e)));
        try_join_all((0..self.settings.streams.most() as u16).map(open)).await
    }

    /// Says on all connections what is wanted, and waits for the answer.
    async fn begin(
        &self,
        streams: Vec<TcpStream>,
        server: &(String, u16),
        direction: Direction,
        request: Request,
    ) -> Result<Granted, CopyError> {
        let session = session_id().map_err(|e| SessionError::Local(e.to_string()))?;
        let count = streams.len() as u16;
        let hello = Hello { oldest: VERSION, newest: VERSION, session, streams: count, direction, request };
        let pool = BufPool::new(MEMORY);
        let congestion = streams.first().and_then(|stream| stream.congestion().ok());
        let open = async |(index, stream): (usize, TcpStream)| -> Result<Link, CopyError> {
            let mut link = Link::tcp(stream, pool.clone());
            if let Some(key) = &self.settings.key {
                link.secure(key).await??;
            }
            let first = if index == 0 { Frame::Hello(Box::new(hello.clone())) } else { Frame::Join(session) };
            link.tx.send(vec![first]).await.map_err(SessionError::from)?;
            Ok(link)
        };
        let mut links = try_join_all(streams.into_iter().enumerate().map(open)).await?;
        match links[0].rx.frame().await.map_err(SessionError::from)? {
            Some(Frame::Welcome(welcome)) if welcome.version == VERSION => Ok(Granted {
                links,
                welcome,
                summary: Summary { streams: count, congestion, ..Summary::default() },
            }),
            Some(Frame::Refuse(refusal)) => Err(refusal.into()),
            Some(_) => {
                let message = "the other side answers with something that is no welcome";
                Err(Refusal::new(RefusalKind::Protocol, message).into())
            }
            None => {
                let reason = "it closed the connection; is it a transfer agent?".into();
                Err(CopyError::Unreachable { server: name(server), reason })
            }
        }
    }
}

fn name(server: &(String, u16)) -> String {
    format!("{}:{}", server.0, server.1)
}

async fn within<T>(
    after: Duration,
    server: &(String, u16),
    future: impl Future<Output = Result<T, CopyError>>,
) -> Result<T, CopyError> {
    let late = |_| Err(CopyError::TimedOut { server: name(server), after });
    timeout(after, future).await.unwrap_or_else(late)
}

fn reason(e: &io::Error) -> String {
    match e.kind() {
        io::ErrorKind::ConnectionRefused => {
            "connection refused: check host and port, and whether the agent runs".into()
        }
        _ => crate::tree::say(e),
    }
}

async fn resolve(server: (String, u16)) -> Result<SocketAddr, String> {
    let name = server.0.clone();
    let found = longhaul_engine::blocking(move || server.to_socket_addrs().map(|mut all| all.next())).await;
    match found {
        Ok(Some(addr)) => Ok(addr),
        Ok(None) => Err(format!("the name {name} has no address")),
        Err(e) => Err(format!("the name {name} cannot be resolved: {e}")),
    }
}

/// A name that nobody else has, or can guess.
fn session_id() -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    fill_random(&mut id)?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Endpoint, String> {
        Endpoint::parse(OsStr::new(text))
    }

    #[test]
    fn endpoints_are_paths_or_agents() {
        let agent = |host: &str, port, path: &str| {
            Ok(Endpoint::Agent { host: host.into(), port, path: path.as_bytes().to_vec() })
        };
        assert_eq!(parse("lh://dtn:7000/a/b"), agent("dtn", 7000, "a/b"));
        assert_eq!(parse("lh://dtn"), agent("dtn", PORT, ""));
        assert_eq!(parse("lh://[::1]:7000/x"), agent("::1", 7000, "x"));
        assert_eq!(parse("lh://[::1]/x"), agent("::1", PORT, "x"));
        assert_eq!(parse("a/b:c"), Ok(Endpoint::Local(b"a/b:c".to_vec())));
        let host =
            |host: &str, path: &str| Ok(Endpoint::Ssh { host: host.into(), path: path.as_bytes().to_vec() });
        assert_eq!(parse("me@dtn:a/b:c"), host("me@dtn", "a/b:c"));
        assert_eq!((parse("dtn:~/a"), parse("dtn:")), (host("dtn", "a"), host("dtn", "")));
        for bad in ["", "lh://", "lh://:1/x", "lh://h:port/x", "-oProxyCommand=x:y", ":x", "a b:c"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
