//! The end that waits to be asked.

use super::control::{Answer, LINE_MAX, Opening, Say, hear, say};
use super::stream::Stream;
use super::{Half, Plan, SET_UP, VERSION};
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

/// Connections that have not said yet what they are, at most.
const STRANGERS: usize = 2 * super::STREAMS_MAX as usize + 64;
/// How long the client may be silent after its window: it may have many
/// streams to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The engines of its streams.
    pub engine: Config,
}

/// A server at work until it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    config: ServerConfig,
    /// What is measured at the moment: by whom, and where its streams go.
    now: Mutex<Option<(u64, Sender<Joined>)>>,
    strangers: AtomicUsize,
    ended: AtomicBool,
}

/// A stream that has said what it is.
struct Joined {
    index: u16,
    client_sends: bool,
    socket: TcpStream,
}

impl Server {
    /// Begins to listen.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub fn start(config: ServerConfig) -> io::Result<Server> {
        let listener = TcpListener::bind_after(config.listen)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
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

    /// Where it listens.
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

fn accept(shared: &Arc<Shared>, listener: &std::net::TcpListener) {
    for socket in listener.incoming() {
        if shared.ended.load(Ordering::SeqCst) {
            return;
        }
        let Ok(socket) = socket else {
            // Out of descriptors, say: what is open has to end first.
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
                        // The client may have gone.
                        let _ = say(&socket, &Answer::Refused { reason });
                    }
                }
                Ok(Some(Opening::Stream { token, index, client_sends })) => {
                    shared.join(token, Joined { index, client_sends, socket });
                }
                Ok(None) | Err(_) => {}
            }
        });
    }
}

/// A measurement's place, given back at its end.
struct Place<'a>(&'a Shared);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.0.now() = None;
    }
}

impl Shared {
    fn now(&self) -> std::sync::MutexGuard<'_, Option<(u64, Sender<Joined>)>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a stream to the measurement that it belongs to.
    fn join(&self, token: u64, joined: Joined) {
        if let Some((of, sender)) = &*self.now()
            && *of == token
        {
            // The measurement may have ended: then the stream is dropped.
            let _ = sender.send(joined);
        }
    }

    fn control(&self, socket: &TcpStream, version: u32, token: u64, plan: &Plan) -> Result<(), String> {
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
        let place = Place(self);
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
        let mut ends = Ends::new(&self.config.engine, plan.connections()).map_err(words)?;
        for Joined { index, client_sends, socket } in joined {
            ends.add(socket, index, !client_sends, plan);
        }
        say(socket, &Answer::Ready).map_err(words)?;
        if hear::<Say>(socket, LINE_MAX, SET_UP).map_err(words)? != Some(Say::Go) {
            return Err("the client did not begin".into());
        }
        ends.begin();
        // To the end of the client's window; its last word, or its end, ends it.
        let said = hear::<Say>(socket, LINE_MAX, plan.length() + PATIENCE).map_err(words)?;
        if said != Some(Say::Stop) {
            return Err("the client went away".into());
        }
        let half = ends.finish()?;
        // Before the client knows: it may ask for the next run at once.
        drop(place);
        say(socket, &Answer::Report { half: Box::new(half) }).map_err(words)
    }
}

/// The ends of all streams that are here, of whichever side.
pub(super) struct Ends {
    threads: Vec<Thread>,
    next: usize,
    starts: Vec<oneshot::Sender<Instant>>,
    receiving: Vec<Remote<Result<super::Received, String>>>,
    sending: Vec<Remote<Result<super::Sent, String>>>,
    watch: Watch,
    /// Bytes so far: received and sent.
    pub(super) counts: [Arc<std::sync::atomic::AtomicU64>; 2],
}

impl Ends {
    pub(super) fn new(config: &Config, streams: usize) -> io::Result<Ends> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let start = |n| Thread::start(&format!("net-{n}"), config.clone());
        Ok(Ends {
            threads: (0..streams.clamp(1, processors)).map(start).collect::<Result<_, _>>()?,
            next: 0,
            starts: Vec::new(),
            receiving: Vec::new(),
            sending: Vec::new(),
            watch: Watch::start(),
            counts: Default::default(),
        })
    }

    /// Gives a stream to the next thread.
    pub(super) fn add(&mut self, socket: TcpStream, index: u16, sends: bool, plan: &Plan) {
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

    /// Begins with all of them at the same moment.
    pub(super) fn begin(&mut self) -> Instant {
        self.watch = Watch::start();
        let now = Instant::now();
        for start in self.starts.drain(..) {
            // One that has failed already says so at its end.
            let _ = start.send(now);
        }
        now
    }

    /// Waits for the end of all.
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
