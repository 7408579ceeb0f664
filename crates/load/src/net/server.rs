//! The server: takes part in the measurements of one client at a time.

use super::control::{Answer, LINE_MAX, Opening, Say, hear, say};
use super::stream::Stream;
use super::{Half, NetPlan, SET_UP, VERSION};
use crate::watch::Watch;
use futures_channel::oneshot;
use longhaul_engine::net::TcpListener;
use longhaul_engine::{Config, Remote, Thread};
use longhaul_results::host::Host;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The most connections without an opening line.
const STRANGERS: usize = 2 * super::STREAMS_MAX as usize + 64;
/// Timeout for the client after its window: it may have many streams to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// The engines of its streams.
    pub engine: Config,
}

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    shared: Arc<ServerState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct ServerState {
    config: ServerConfig,
    /// The running measurement: the token of its client, and the receiver of its streams.
    now: Mutex<Option<(u64, Sender<JoinedStream>)>>,
    strangers: AtomicUsize,
    ended: AtomicBool,
}

/// A stream whose opening line was received.
struct JoinedStream {
    index: u16,
    client_sends: bool,
    socket: TcpStream,
}

impl Server {
    /// Starts a server.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub fn start(config: ServerConfig) -> io::Result<Server> {
        let listener = TcpListener::bind_after(config.listen)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(ServerState {
            config,
            now: Mutex::default(),
            strangers: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("netbench".into())
            .spawn(move || accept(&accepting, &listener))?;
        Ok(Server { address, shared, thread: Some(thread) })
    }

    /// Address to listen on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let woken = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        if woken.is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn accept(shared: &Arc<ServerState>, listener: &std::net::TcpListener) {
    for socket in listener.incoming() {
        if shared.ended.load(Ordering::SeqCst) {
            return;
        }
        let Ok(socket) = socket else {
            // Out of descriptors, for example: open connections have to end first.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        if shared.strangers.fetch_add(1, Ordering::SeqCst) >= STRANGERS {
            shared.strangers.fetch_sub(1, Ordering::SeqCst);
            continue;
        }
        let shared = Arc::clone(shared);
        std::thread::spawn(move || {
            let opening = hear::<Opening>(&socket, LINE_MAX, SET_UP);
            shared.strangers.fetch_sub(1, Ordering::SeqCst);
            match opening {
                Ok(Some(Opening::Control { version, token, plan })) => {
                    let result = shared.control(&socket, version, token, &plan);
                    if let Err(reason) = result {
                        // The client may have disconnected.
                        let _ = say(&socket, &Answer::Refused { reason });
                    }
                }
                Ok(Some(Opening::Stream { token, index, client_sends })) => {
                    shared.join(token, JoinedStream { index, client_sends, socket });
                }
                Ok(None) | Err(_) => {}
            }
        });
    }
}

/// Ends the running measurement when it is dropped.
struct MeasurementGuard<'a>(&'a ServerState);

impl Drop for MeasurementGuard<'_> {
    fn drop(&mut self) {
        *self.0.now() = None;
    }
}

impl ServerState {
    fn now(&self) -> std::sync::MutexGuard<'_, Option<(u64, Sender<JoinedStream>)>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a stream to the measurement with its token.
    fn join(&self, token: u64, joined: JoinedStream) {
        if let Some((of, sender)) = &*self.now()
            && *of == token
        {
            // The measurement may have ended: then the stream is dropped.
            let _ = sender.send(joined);
        }
    }

    fn control(&self, socket: &TcpStream, version: u32, token: u64, plan: &NetPlan) -> Result<(), String> {
        if version != VERSION {
            return Err(format!("this server speaks version {VERSION}, not {version}"));
        }
        plan.check()?;
        let (sender, streams) = channel();
        {
            let mut now = self.now();
            if now.is_some() {
                return Err("it measures for another client at the moment: try again later".into());
            }
            *now = Some((token, sender));
        }
        let place = MeasurementGuard(self);
        let words = |e: io::Error| e.to_string();
        say(socket, &Answer::Accepted { host: Box::new(Host::here()) }).map_err(words)?;
        let mut joined = Vec::new();
        let until = Instant::now() + SET_UP;
        while joined.len() < plan.connections() {
            match streams.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(one) => joined.push(one),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let (some, all) = (joined.len(), plan.connections());
                    return Err(format!("{some} of {all} streams came within {} s", SET_UP.as_secs()));
                }
            }
        }
        let mut ends = StreamEnds::new(&self.config.engine, plan.connections()).map_err(words)?;
        for JoinedStream { index, client_sends, socket } in joined {
            ends.add(socket, index, !client_sends, plan);
        }
        say(socket, &Answer::Ready).map_err(words)?;
        if hear::<Say>(socket, LINE_MAX, SET_UP).map_err(words)? != Some(Say::Go) {
            return Err("the client did not begin".into());
        }
        ends.begin();
        // Until the client's window ends; its last line, or its disconnect, ends the wait.
        let said = hear::<Say>(socket, LINE_MAX, plan.length() + PATIENCE).map_err(words)?;
        if said != Some(Say::Stop) {
            return Err("the client went away".into());
        }
        let half = ends.finish()?;
        // Before the reply: the client may request the next run at once.
        drop(place);
        say(socket, &Answer::Report { half: Box::new(half) }).map_err(words)
    }
}

/// The ends of all streams on this machine, of a client or a server.
pub(super) struct StreamEnds {
    threads: Vec<Thread>,
    next: usize,
    starts: Vec<oneshot::Sender<Instant>>,
    receiving: Vec<Remote<Result<super::Received, String>>>,
    sending: Vec<Remote<Result<super::Sent, String>>>,
    watch: Watch,
    /// Bytes received and sent until now.
    pub(super) counts: [Arc<std::sync::atomic::AtomicU64>; 2],
}

impl StreamEnds {
    pub(super) fn new(config: &Config, streams: usize) -> io::Result<StreamEnds> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let start = |n| Thread::start(&format!("net-{n}"), config.clone());
        Ok(StreamEnds {
            threads: (0..streams.clamp(1, processors)).map(start).collect::<Result<_, _>>()?,
            next: 0,
            starts: Vec::new(),
            receiving: Vec::new(),
            sending: Vec::new(),
            watch: Watch::start(),
            counts: Default::default(),
        })
    }

    /// Hands a stream to the next thread.
    pub(super) fn add(&mut self, socket: TcpStream, index: u16, sends: bool, plan: &NetPlan) {
        let handle = self.threads[self.next % self.threads.len()].handle();
        self.next += 1;
        let (start, started) = oneshot::channel();
        self.starts.push(start);
        let count = Arc::clone(&self.counts[usize::from(sends)]);
        let stream = Stream { socket, index, plan: plan.clone(), start: started, count };
        if sends {
            self.sending.push(handle.spawn(move || stream.send()));
        } else {
            self.receiving.push(handle.spawn(move || stream.receive()));
        }
    }

    /// Starts all streams at the same moment.
    pub(super) fn begin(&mut self) -> Instant {
        self.watch = Watch::start();
        let now = Instant::now();
        for start in self.starts.drain(..) {
            // A stream that has failed already reports it at its end.
            let _ = start.send(now);
        }
        now
    }

    /// Waits for the ends of all streams.
    pub(super) fn finish(self) -> Result<Half, String> {
        let lost = |_| "a thread ended early".to_owned();
        let mut half = Half { host: Host::here(), ..Half::default() };
        for stream in self.receiving {
            half.received.push(stream.wait().map_err(lost)??);
        }
        let watched = self.watch.end();
        for stream in self.sending {
            half.sent.push(stream.wait().map_err(lost)??);
        }
        half.seconds = watched.time.as_secs_f64();
        half.cpu = watched.cpu;
        half.retransmitted = watched.retransmitted;
        Ok(half)
    }
}
