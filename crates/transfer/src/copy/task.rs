//! One copy, on the thread of an engine: it connects, and runs this side.

use super::endpoint::bracketed;
use super::ssh::Via;
use super::{CopyError, Settings, Summary};
use crate::agent::third_party;
use crate::link::Link;
use crate::link::noise::fill_random;
use crate::link::peer_timeout::PeerTimeout;
use crate::monitor::Monitor;
use crate::receive::destination::Destination;
use crate::receive::write::Grant;
use crate::send::spec::SendSpec;
use crate::session::error::SessionError;
use crate::tree::root::Root;
use crate::tune::Concurrency;
use crate::wire::{Compare, CopyDirection, Frame, Hello, Refusal, RefusalKind, Request, VERSION, Welcome};
use crate::{receive, send};
use futures_util::future::{join, try_join_all};
use longhaul_engine::net::{SocketOptions, TcpStream};
use longhaul_engine::{BufPool, timeout};
use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Timeout of direct connections if ssh can carry the data instead: five times what the
/// longest path takes.
const DIRECT: Duration = Duration::from_secs(5);
/// Memory for received data, in bytes.
const MEMORY: usize = 64 << 20;

/// One copy, run on an engine's thread.
pub(crate) struct CopyTask {
    pub(crate) request: Request,
    /// What the paths of sources and destination are resolved in, as far as they are here.
    pub(crate) roots: (Root, Root),
    pub(crate) settings: Settings,
    pub(crate) monitor: Arc<Monitor>,
    /// The channel through ssh, if there is one.
    pub(crate) channel: RefCell<Option<std::net::TcpStream>>,
}

/// A session that the agent granted.
pub(crate) struct GrantedSession {
    pub(crate) links: Vec<Link>,
    welcome: Welcome,
    /// What the summary says of the connections.
    summary: Summary,
}

impl CopyTask {
    /// Copies within this machine.
    pub(crate) async fn local(&self) -> Result<Summary, CopyError> {
        let request = self.request.clone();
        let readers = self.settings.readers;
        let (from, to) = self.roots.clone();
        let prepare = move || {
            let spec = SendSpec::new(&from, &request, readers)?;
            Ok::<_, Refusal>((spec, Destination::open(&to, &request, false, Grant::FileIdentity)?))
        };
        let (mut spec, destination) = longhaul_engine::blocking(prepare).await?;
        let resumed = destination.resumes();
        spec.resume(resumed, destination.by_content());
        spec.read_ahead = self.settings.read_ahead;
        spec.into = destination.base();
        let (here, there) = Link::pair();
        let received = receive::receive(
            destination,
            self.settings.writers,
            vec![there],
            Arc::clone(&self.monitor),
            true,
            PeerTimeout::default(),
        );
        let (sent, received) = join(
            send::send(
                spec,
                vec![here],
                Concurrency::Fixed(1),
                Arc::clone(&self.monitor),
                PeerTimeout::default(),
            ),
            received,
        )
        .await;
        let counts = received.and(sent)?;
        Ok(Summary { counts, resumed, ..Summary::default() })
    }

    /// Copies from this machine to an agent.
    pub(crate) async fn push(&self, server: (String, u16)) -> Result<Summary, CopyError> {
        let (request, readers, from) = (self.request.clone(), self.settings.readers, self.roots.0.clone());
        // Local errors are found before the agent is contacted.
        let spec = longhaul_engine::blocking(move || SendSpec::new(&from, &request, readers)).await?;
        self.send(spec, server).await
    }

    /// Sends to an agent.
    pub(crate) async fn send(&self, mut spec: SendSpec, server: (String, u16)) -> Result<Summary, CopyError> {
        let remote = Request { sources: Vec::new(), files: Vec::new(), ..self.request.clone() };
        let granted = self.connect(&server, CopyDirection::Push, remote).await?;
        spec.resume(granted.welcome.resume, granted.welcome.by_content);
        spec.read_ahead = self.settings.read_ahead;
        spec.known_paths = self.settings.known_paths.clone();
        let counts = send::send(
            spec,
            granted.links,
            self.settings.streams,
            Arc::clone(&self.monitor),
            PeerTimeout::default(),
        )
        .await?;
        Ok(Summary { counts, resumed: granted.welcome.resume, ..granted.summary })
    }

    /// Has an agent copy to another agent.
    pub(crate) async fn third_party(&self, server: (String, u16)) -> Result<Summary, CopyError> {
        let granted = self.connect(&server, CopyDirection::Onward, self.request.clone()).await?;
        let link = granted.links.into_iter().next().ok_or(SessionError::Lost)?;
        let counts = third_party::follow(link, &self.monitor).await?;
        // The agents' connections are not known here.
        Ok(Summary { counts, streams: 0, congestion: None, ..granted.summary })
    }

    /// Copies from an agent to this machine.
    pub(crate) async fn pull(&self, server: (String, u16)) -> Result<Summary, CopyError> {
        // The destination is created only after the agent has granted the session.
        let (request, to) = (self.request.clone(), self.roots.1.clone());
        let left = longhaul_engine::blocking(move || to.interrupted(&request)).await?;
        let mut remote = Request { destination: Vec::new(), ..self.request.clone() };
        remote.options.compare = match (left, remote.options.compare) {
            (Some(true), _) => Compare::Checksum,
            (Some(false), Compare::Nothing) => Compare::Mtime,
            (_, compare) => compare,
        };
        let mut granted = self.connect(&server, CopyDirection::Pull, remote).await?;
        let (request, to) = (self.request.clone(), self.roots.1.clone());
        let destination = match longhaul_engine::blocking(move || {
            Destination::open(&to, &request, true, Grant::FileIdentity)
        })
        .await
        {
            Ok(destination) => destination,
            Err(refusal) => {
                for link in granted.links.iter_mut().take(1) {
                    send::refuse(link, refusal.clone()).await;
                }
                return Err(refusal.into());
            }
        };
        let resumed = destination.resumes();
        let monitor = Arc::clone(&self.monitor);
        let counts = receive::receive(
            destination,
            self.settings.writers,
            granted.links,
            monitor,
            false,
            PeerTimeout::default(),
        )
        .await?;
        Ok(Summary { counts, resumed, ..granted.summary })
    }

    /// Opens connections and requests the session.
    pub(crate) async fn connect(
        &self,
        server: &(String, u16),
        direction: CopyDirection,
        request: Request,
    ) -> Result<GrantedSession, CopyError> {
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
                // A middlebox may accept connections to any address, so a failure after connecting counts too.
                Err(e) if channel.is_some() && e.is_connection_error() => failed = Some(e),
                begun => return begun,
            }
        }
        let Some(channel) = channel else { return Err(SessionError::Lost.into()) };
        if let Some(e) = failed {
            self.monitor.note(format!("{e}; the data goes through ssh"));
        }
        let stream = TcpStream::from_std(channel, &SocketOptions::default()).map_err(SessionError::from)?;
        // ssh chooses the congestion control of its own connection.
        let request = Request { congestion: String::new(), ..request };
        let begun = self.begin(vec![stream], server, direction, request);
        let mut granted = within(after, server, begun).await?;
        (granted.summary.through_ssh, granted.summary.congestion) = (true, None);
        Ok(granted)
    }

    /// Opens all connections at once, within `limit`.
    async fn direct(
        &self,
        server: &(String, u16),
        direction: CopyDirection,
        limit: Duration,
    ) -> Result<Vec<TcpStream>, CopyError> {
        let unreachable = |reason: String| CopyError::Unreachable { server: name(server), reason };
        let addresses = resolve(server.clone()).await.map_err(unreachable)?;
        // Congestion control matters at the sender; an agent gets it in the request.
        let own = self.settings.congestion.clone().filter(|_| direction == CopyDirection::Push);
        let options = SocketOptions { congestion: own };
        let streams = self.settings.streams.most_streams();
        connect_any(&addresses, streams, &options, limit).await.map_err(unreachable)
    }

    /// Sends the greetings on all connections, and waits for the answer.
    async fn begin(
        &self,
        streams: Vec<TcpStream>,
        server: &(String, u16),
        direction: CopyDirection,
        request: Request,
    ) -> Result<GrantedSession, CopyError> {
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
            Some(Frame::Welcome(welcome)) if welcome.version == VERSION => Ok(GrantedSession {
                links,
                summary: Summary {
                    streams: count,
                    congestion: match direction {
                        CopyDirection::Pull => {
                            Some(welcome.congestion.clone()).filter(|name| !name.is_empty())
                        }
                        _ => congestion,
                    },
                    ..Summary::default()
                },
                welcome,
            }),
            Some(Frame::Refuse(refusal)) => Err(refusal.into()),
            Some(_) => {
                let message = "the other side answered the request with an unexpected frame: is it a Longhaul agent of this version?";
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

/// Resolves a name to at least one address, in the system's order of preference.
async fn resolve(server: (String, u16)) -> Result<Vec<SocketAddr>, String> {
    let name = server.0.clone();
    let found = longhaul_engine::blocking(move || server.to_socket_addrs().map(Iterator::collect)).await;
    let found: Vec<SocketAddr> = found.map_err(|e| format!("the name {name} cannot be resolved: {e}"))?;
    match found.is_empty() {
        true => Err(format!("the name {name} has no address")),
        false => Ok(found),
    }
}

/// Opens `streams` connections to the first address that accepts them. Each address gets
/// an equal share of the remaining time.
///
/// # Errors
/// The failure of each address.
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
        // The last address may use the caller's whole timeout.
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

/// A random session id, which no other client can guess.
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
    fn addresses_that_refuse_or_stay_silent_are_skipped() {
        let served = TcpListener::bind("127.0.0.1:0").expect("listens");
        let served = served.local_addr().map(|address| (served, address)).expect("an address");
        // A port without a listener.
        let closed = TcpListener::bind("127.0.0.1:0").and_then(|gone| gone.local_addr()).expect("an address");
        // A documentation address (RFC 5737), which does not answer, or is refused.
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
