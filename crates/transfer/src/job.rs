//! One copy, on the thread of an engine: it connects, and runs this side.

use crate::agent::{plan, writer};
use crate::copy::{CopyError, Settings, Summary};
use crate::endpoint::bracketed;
use crate::link::Link;
use crate::monitor::Monitor;
use crate::onward;
use crate::place::Root;
use crate::seal::fill_random;
use crate::silence::Patience;
use crate::source::{Plan, SessionError};
use crate::ssh::Via;
use crate::tune::Concurrency;
use crate::wire::{Compare, Direction, Frame, Hello, Refusal, RefusalKind, Request, VERSION, Welcome};
use crate::write::Grant;
use crate::{sink, source};
use futures_util::future::{join, try_join_all};
use longhaul_engine::net::{SocketOptions, TcpStream};
use longhaul_engine::{BufPool, timeout};
use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long direct connections may take where there is another way: five times
/// what the longest path takes.
const DIRECT: Duration = Duration::from_secs(5);
/// Memory for data that was received, in bytes.
const MEMORY: usize = 64 << 20;

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
    pub(crate) async fn local(&self) -> Result<Summary, CopyError> {
        let request = self.request.clone();
        let readers = self.settings.readers;
        let prepare = move || {
            let plan = plan(&Root::Here, &request, readers)?;
            Ok::<_, Refusal>((plan, writer(&Root::Here, &request, false, Grant::Identity)?))
        };
        let (mut plan, writer) = longhaul_engine::blocking(prepare).await?;
        let resumed = writer.resumes();
        plan.resume(resumed, writer.by_content());
        plan.ahead = self.settings.read_ahead;
        plan.into = writer.base();
        let (here, there) = Link::pair();
        let received = sink::receive(
            writer,
            self.settings.writers,
            vec![there],
            Arc::clone(&self.monitor),
            false,
            Patience::default(),
        );
        let (sent, received) = join(
            source::send(
                plan,
                vec![here],
                Concurrency::Fixed(1),
                Arc::clone(&self.monitor),
                Patience::default(),
            ),
            received,
        )
        .await;
        let counts = received.and(sent)?;
        Ok(Summary { counts, resumed, ..Summary::default() })
    }

    /// From here to an agent.
    pub(crate) async fn push(&self, server: (String, u16)) -> Result<Summary, CopyError> {
        let (request, readers) = (self.request.clone(), self.settings.readers);
        // What is wrong here is found before anybody is bothered.
        let plan = longhaul_engine::blocking(move || plan(&Root::Here, &request, readers)).await?;
        self.send(plan, server).await
    }

    /// What is planned already, to an agent.
    pub(crate) async fn send(&self, mut plan: Plan, server: (String, u16)) -> Result<Summary, CopyError> {
        let remote = Request { sources: Vec::new(), files: Vec::new(), ..self.request.clone() };
        let granted = self.connect(&server, Direction::Push, remote).await?;
        plan.resume(granted.welcome.resume, granted.welcome.by_content);
        plan.ahead = self.settings.read_ahead;
        let counts = source::send(
            plan,
            granted.links,
            self.settings.streams,
            Arc::clone(&self.monitor),
            Patience::default(),
        )
        .await?;
        Ok(Summary { counts, resumed: granted.welcome.resume, ..granted.summary })
    }

    /// From an agent to another, which it is told of.
    pub(crate) async fn order(&self, server: (String, u16)) -> Result<Summary, CopyError> {
        let granted = self.connect(&server, Direction::Onward, self.request.clone()).await?;
        let link = granted.links.into_iter().next().ok_or(SessionError::Lost)?;
        let counts = onward::hear(link, &self.monitor).await?;
        // The data went over connections of which nothing is known here.
        Ok(Summary { counts, streams: 0, congestion: None, ..granted.summary })
    }

    /// From an agent to here.
    pub(crate) async fn pull(&self, server: (String, u16)) -> Result<Summary, CopyError> {
        // Nothing is made here before there is somebody to get it from.
        let request = self.request.clone();
        let left = longhaul_engine::blocking(move || Root::Here.left(&request)).await?;
        let mut remote = Request { destination: Vec::new(), ..self.request.clone() };
        remote.options.compare = match (left, remote.options.compare) {
            (Some(true), _) => Compare::Checksum,
            (Some(false), Compare::Nothing) => Compare::Mtime,
            (_, compare) => compare,
        };
        let mut granted = self.connect(&server, Direction::Pull, remote).await?;
        let request = self.request.clone();
        let writer =
            match longhaul_engine::blocking(move || writer(&Root::Here, &request, true, Grant::Identity))
                .await
            {
                Ok(writer) => writer,
                Err(refusal) => {
                    for link in granted.links.iter_mut().take(1) {
                        source::refuse(link, refusal.clone()).await;
                    }
                    return Err(refusal.into());
                }
            };
        let resumed = writer.resumes();
        let monitor = Arc::clone(&self.monitor);
        let counts =
            sink::receive(writer, self.settings.writers, granted.links, monitor, true, Patience::default())
                .await?;
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
        let mut failed = None;
        if self.settings.ssh.via != Via::Ssh || channel.is_none() {
            let opened = within(limit, server, self.direct(server, direction, limit)).await;
            let begun = match opened {
                Ok(streams) => {
                    within(after, server, self.begin(streams, server, direction, request.clone())).await
                }
                Err(e) => Err(e),
            };
            match begun {
                // Something between the machines may take connections for anybody.
                Err(e) if channel.is_some() && e.is_of_the_way() => failed = Some(e),
                begun => return begun,
            }
        }
        let Some(channel) = channel else { return Err(SessionError::Lost.into()) };
        if let Some(e) = failed {
            self.monitor.note(format!("{e}; the data goes through ssh"));
        }
        let stream = TcpStream::from_std(channel, &SocketOptions::default()).map_err(SessionError::from)?;
        // Between ssh and either end there is no path: its own connection has what it has.
        let request = Request { congestion: String::new(), ..request };
        let begun = self.begin(vec![stream], server, direction, request);
        let mut granted = within(after, server, begun).await?;
        (granted.summary.through_ssh, granted.summary.congestion) = (true, None);
        Ok(granted)
    }

    /// Opens all connections at the same time, within this time.
    async fn direct(
        &self,
        server: &(String, u16),
        direction: Direction,
        limit: Duration,
    ) -> Result<Vec<TcpStream>, CopyError> {
        let unreachable = |reason: String| CopyError::Unreachable { server: name(server), reason };
        let addresses = resolve(server.clone()).await.map_err(unreachable)?;
        // It is who sends that it matters to; others are told of it.
        let own = self.settings.congestion.clone().filter(|_| direction == Direction::Push);
        let options = SocketOptions { congestion: own };
        let streams = self.settings.streams.most();
        connect_any(&addresses, streams, &options, limit).await.map_err(unreachable)
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
            let mut link = Link::tcp_with(stream, pool.clone(), self.settings.silence);
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
                summary: Summary {
                    streams: count,
                    congestion: match direction {
                        Direction::Pull => Some(welcome.congestion.clone()).filter(|name| !name.is_empty()),
                        _ => congestion,
                    },
                    ..Summary::default()
                },
                welcome,
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
    format!("{}:{}", bracketed(&server.0), server.1)
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

/// All addresses of a name, in the order of the system's preference; one at least.
async fn resolve(server: (String, u16)) -> Result<Vec<SocketAddr>, String> {
    let name = server.0.clone();
    let found = longhaul_engine::blocking(move || server.to_socket_addrs().map(Iterator::collect)).await;
    let found: Vec<SocketAddr> = found.map_err(|e| format!("the name {name} cannot be resolved: {e}"))?;
    match found.is_empty() {
        true => Err(format!("the name {name} has no address")),
        false => Ok(found),
    }
}

/// Opens so many connections to the first of the addresses that takes them. Each may
/// take an equal share of the time that is left.
///
/// # Errors
/// What each address says, in words.
async fn connect_any(
    addresses: &[SocketAddr],
    streams: usize,
    options: &SocketOptions,
    limit: Duration,
) -> Result<Vec<TcpStream>, String> {
    let end = Instant::now() + limit;
    let mut failed = Vec::new();
    for (index, address) in addresses.iter().enumerate() {
        let open = (0..streams).map(async |_| TcpStream::connect(*address, options).await);
        let others = addresses.len() - index - 1;
        // The last may take as long as whoever waits for it.
        let share = match others {
            0 => limit,
            _ => end.saturating_duration_since(Instant::now()) / (others as u32 + 1),
        };
        let why = match timeout(share, try_join_all(open)).await {
            Ok(Ok(streams)) => return Ok(streams),
            Ok(Err(e)) => reason(&e),
            Err(_) => format!("no answer within {:.1} s", share.as_secs_f64()),
        };
        failed.push((address.ip(), why));
    }
    Err(match &failed[..] {
        [(_, why)] => why.clone(),
        _ => failed.iter().map(|(ip, why)| format!("{ip}: {why}")).collect::<Vec<_>>().join("; "),
    })
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
    use longhaul_engine::{Config, Thread};
    use std::net::TcpListener;

    #[test]
    fn an_address_that_nobody_serves_is_passed_over() {
        let served = TcpListener::bind("127.0.0.1:0").expect("listens");
        let served = served.local_addr().map(|address| (served, address)).expect("an address");
        // Nobody listens there any more.
        let closed = TcpListener::bind("127.0.0.1:0").and_then(|gone| gone.local_addr()).expect("an address");
        // One that nothing answers from (RFC 5737), where it is not refused at once.
        let silent = SocketAddr::from(([192, 0, 2, 1], 9));
        let thread = Thread::start("test", Config::default()).expect("an engine");
        let ran = thread.handle().spawn(move || async move {
            let options = SocketOptions::default();
            let limit = Duration::from_secs(2);
            let all = connect_any(&[closed, silent, served.1], 2, &options, limit).await;
            let none = connect_any(&[closed, closed], 1, &options, limit).await;
            (all.map(|streams| streams.len()), none.map(|streams| streams.len()))
        });
        let (all, none) = ran.wait().expect("ran");
        assert_eq!(all, Ok(2));
        assert!(none.is_err_and(|why| why.matches("connection refused").count() == 2));
    }
}
