//! A connection to a catalog server: requests of many threads, each answered to its own.
//!
//! Invariants:
//! - frames are sent in the order in which they were encrypted;
//! - the thread that receives waits for no thread that sends: a server that does not receive may wait for it;
//! - when the connection ends, every call that waits for an answer returns an error.

use super::{Access, lock};
use crate::secure::{Denial, Secure};
use crate::wire::{Hello, LENGTH, MAX_FRAME, Reply, Request, VERSION, split};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

/// Longest time to a connection: above one retransmission of the first packet, twice.
const CONNECT: Duration = Duration::from_secs(4);
/// Longest wait for a message of a handshake, and for a server to receive anything.
const STEP: Duration = Duration::from_secs(10);
/// Interval of pings where the server is silent.
const PING: Duration = Duration::from_secs(3);
/// Silence that ends a connection.
const SILENCE: Duration = Duration::from_secs(10);
/// Longest wait for an answer, of a server that is there: above its wait for another process that has its file.
const ANSWER: Duration = Duration::from_secs(45);
/// Bytes that are received at a time.
const RECEIVE: usize = 64 << 10;
/// Events that wait for the reader of a watch: beyond these the watch begins anew where its reader is.
const EVENTS: usize = 1 << 16;

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum LinkFault {
    /// The request has certainly had no effect.
    Unsent(String),
    /// It may have had one.
    Lost(String),
    /// The server does not let this host in.
    Refused(String),
}

/// What waits for answers.
struct Waiting {
    sender: Sender<Reply>,
    /// Events of a watch that were not taken.
    events: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Calls {
    waiting: HashMap<u64, Waiting>,
    /// Why the connection has ended.
    ended: Option<String>,
}

struct Session {
    secure: Option<Box<dyn Secure>>,
    /// Encrypted and not sent.
    out: Vec<u8>,
}

/// See the module.
pub(super) struct Link {
    stream: TcpStream,
    /// Held while a frame is sent.
    sends: Mutex<()>,
    session: Mutex<Session>,
    calls: Mutex<Calls>,
    next: AtomicU64,
    identity: u64,
}

/// The answer to a request.
pub(super) struct LinkAnswer {
    link: Arc<Link>,
    id: u64,
    replies: Receiver<Reply>,
    events: Arc<AtomicUsize>,
}

impl LinkAnswer {
    /// The next frame of it.
    pub(super) fn next(&self) -> Result<Reply, LinkFault> {
        self.replies.recv_timeout(ANSWER).map_err(|e| match e {
            RecvTimeoutError::Disconnected => LinkFault::Lost(self.link.why()),
            RecvTimeoutError::Timeout => {
                let why = format!("the server has not answered for {} s", ANSWER.as_secs());
                self.link.end(&why);
                LinkFault::Lost(why)
            }
        })
    }

    /// The next frame of a watch; `None` if no frame arrives within that time.
    pub(super) fn wait(&self, wait: Duration) -> Result<Option<Reply>, LinkFault> {
        match self.replies.recv_timeout(wait) {
            Ok(reply) => {
                if let Reply::Events { events, .. } = &reply {
                    self.events.fetch_sub(events.len(), Ordering::Relaxed);
                }
                Ok(Some(reply))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(LinkFault::Lost(self.link.why())),
        }
    }

    /// Ends a watch.
    pub(super) fn cancel(&self) {
        self.link.forget(self.id);
        let _ = self.link.send(self.id, &Request::Cancel);
    }
}

impl Drop for LinkAnswer {
    fn drop(&mut self) {
        self.link.forget(self.id);
    }
}

impl Link {
    /// Connects, and starts the thread that receives.
    pub(super) fn connect(address: &str, access: &Access) -> Result<Arc<Link>, LinkFault> {
        let unsent = |why: &dyn std::fmt::Display| LinkFault::Unsent(format!("{address}: {why}"));
        let mut last = unsent(&"the name has no address");
        let found = address.to_socket_addrs().map_err(|e| unsent(&e))?;
        let mut connected = None;
        for found in found {
            match TcpStream::connect_timeout(&found, CONNECT) {
                Ok(stream) => {
                    connected = Some(stream);
                    break;
                }
                Err(e) => last = unsent(&e),
            }
        }
        let Some(stream) = connected else { return Err(last) };
        let set = stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(STEP)));
        set.and_then(|()| stream.set_write_timeout(Some(STEP))).map_err(|e| unsent(&e))?;
        let mut greeting = Greeting { address, stream: &stream, input: Vec::new() };
        let (secure, identity) = greeting.run(access)?;
        let input = greeting.input;
        let reading = stream.try_clone().map_err(|e| unsent(&e))?;
        reading.set_read_timeout(Some(PING)).map_err(|e| unsent(&e))?;
        let link = Arc::new(Link {
            stream,
            sends: Mutex::default(),
            session: Mutex::new(Session { secure, out: Vec::new() }),
            calls: Mutex::default(),
            next: AtomicU64::new(1),
            identity,
        });
        let (receives, place) = (Arc::clone(&link), address.to_owned());
        let run = move || receives.receive(&reading, input, &place);
        let thread = std::thread::Builder::new().name("longhaul-catalog".into());
        thread.spawn(run).map_err(|e| unsent(&format_args!("no thread can be started: {e}")))?;
        Ok(link)
    }

    /// The catalog that the server has.
    pub(super) fn identity(&self) -> u64 {
        self.identity
    }

    pub(super) fn is_open(&self) -> bool {
        lock(&self.calls).ended.is_none()
    }

    fn why(&self) -> String {
        lock(&self.calls).ended.clone().unwrap_or_else(|| "the connection was lost".to_owned())
    }

    /// Ends the connection.
    pub(super) fn end(&self, why: &str) {
        let mut calls = lock(&self.calls);
        calls.ended.get_or_insert_with(|| why.to_owned());
        calls.waiting.clear();
        drop(calls);
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn forget(&self, id: u64) {
        lock(&self.calls).waiting.remove(&id);
    }

    /// Sends a request.
    pub(super) fn call(self: &Arc<Link>, request: &Request) -> Result<LinkAnswer, LinkFault> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, replies) = channel();
        let events = Arc::<AtomicUsize>::default();
        let mut calls = lock(&self.calls);
        if let Some(why) = &calls.ended {
            return Err(LinkFault::Unsent(why.clone()));
        }
        calls.waiting.insert(id, Waiting { sender, events: Arc::clone(&events) });
        drop(calls);
        let answer = LinkAnswer { link: Arc::clone(self), id, replies, events };
        self.send(id, request)?;
        Ok(answer)
    }

    fn send(&self, id: u64, request: &Request) -> Result<(), LinkFault> {
        let mut frame = Vec::new();
        request.encode(id, &mut frame);
        let _sends = lock(&self.sends);
        self.put(&frame)
    }

    /// Sends a frame; the caller has the lock.
    fn put(&self, frame: &[u8]) -> Result<(), LinkFault> {
        let mut session = lock(&self.session);
        let Session { secure, out } = &mut *session;
        match secure {
            None => out.extend_from_slice(frame),
            Some(secure) => {
                if let Err(why) = secure.seal(frame, out) {
                    drop(session);
                    self.end(&why);
                    return Err(LinkFault::Unsent(why));
                }
            }
        }
        let bytes = std::mem::take(out);
        drop(session);
        (&self.stream).write_all(&bytes).map_err(|e| {
            // Part of a frame may be sent: nothing can follow it.
            let why = format!("the server does not receive: {e}");
            self.end(&why);
            LinkFault::Lost(why)
        })
    }

    /// Receives until the connection ends.
    fn receive(&self, mut stream: &TcpStream, mut input: Vec<u8>, address: &str) {
        let mut heard = Instant::now();
        let mut buffer = vec![0; RECEIVE];
        let why = loop {
            if let Err(why) = self.dispatch(&mut input) {
                break why;
            }
            match stream.read(&mut buffer) {
                Ok(0) => break "the server has closed the connection".to_owned(),
                Ok(n) => {
                    heard = Instant::now();
                    let mut session = lock(&self.session);
                    let Session { secure, out } = &mut *session;
                    match secure {
                        None => input.extend_from_slice(&buffer[..n]),
                        Some(secure) => match secure.open(&buffer[..n], &mut input, out) {
                            Ok(true) => {}
                            Ok(false) => break "the server has closed the connection".to_owned(),
                            Err(why) => break why,
                        },
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if heard.elapsed() > SILENCE {
                        break format!("the server is silent for {} s", SILENCE.as_secs());
                    }
                    let mut ping = Vec::new();
                    Request::Ping.encode(0, &mut ping);
                    // A thread that sends is a sign of life, too.
                    match self.sends.try_lock() {
                        Ok(_) | Err(TryLockError::Poisoned(_)) => drop(self.put(&ping)),
                        Err(TryLockError::WouldBlock) => {}
                    }
                }
                Err(e) => break e.to_string(),
            }
        };
        tracing::debug!("{address}: {why}");
        self.end(&format!("{address}: {why}"));
    }

    /// Passes on the frames that were received.
    fn dispatch(&self, input: &mut Vec<u8>) -> Result<(), String> {
        let mut taken = 0;
        while let Some((frame, length)) = split(&input[taken..], MAX_FRAME).map_err(|e| e.to_string())? {
            let (id, reply) = Reply::decode(frame).map_err(|e| format!("the server's answer: {e}"))?;
            taken += length;
            let is_last = match &reply {
                Reply::Entries(piece) => !piece.more,
                Reply::Events { .. } => false,
                _ => true,
            };
            let mut calls = lock(&self.calls);
            // The caller may have given up.
            let Some(waiting) = calls.waiting.get(&id) else { continue };
            let mut is_over = is_last;
            if let Reply::Events { events, .. } = &reply {
                let before = waiting.events.fetch_add(events.len(), Ordering::Relaxed);
                is_over |= before + events.len() > EVENTS;
            }
            if !is_over || is_last {
                // A receiver that is gone has no use for it.
                let _ = waiting.sender.send(reply);
            }
            if is_over {
                calls.waiting.remove(&id);
            }
        }
        input.drain(..taken);
        Ok(())
    }
}

/// The first messages of a connection.
struct Greeting<'a> {
    address: &'a str,
    stream: &'a TcpStream,
    /// Received behind the first frame of the server.
    input: Vec<u8>,
}

impl Greeting<'_> {
    fn fault(&self, e: impl std::fmt::Display) -> LinkFault {
        LinkFault::Unsent(format!("{}: {e}", self.address))
    }

    fn refused(&self, e: impl std::fmt::Display) -> LinkFault {
        LinkFault::Refused(format!("{}: {e}", self.address))
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, LinkFault> {
        match self.stream.read(buffer) {
            Ok(0) => Err(self.fault("the server has closed the connection")),
            Ok(n) => Ok(n),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(self.fault(format_args!("the server has not answered for {} s", STEP.as_secs())))
            }
            Err(e) => Err(self.fault(e)),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), LinkFault> {
        self.stream.write_all(bytes).map_err(|e| self.fault(e))
    }

    fn run(&mut self, access: &Access) -> Result<(Option<Box<dyn Secure>>, u64), LinkFault> {
        let mut secure = match &access.connector {
            None => None,
            Some(connector) => Some(connector.begin().map_err(|why| self.refused(why))?),
        };
        let (mut buffer, mut out) = (vec![0; RECEIVE], Vec::new());
        if let Some(secure) = &mut secure {
            let mut received = 0;
            loop {
                let result = secure.handshake(&buffer[..received], &mut out);
                self.write(&std::mem::take(&mut out))?;
                match result {
                    Ok(Some(_)) => break,
                    Ok(None) => {}
                    // Only a peer that breaks the protocol of TLS may be another one the next time.
                    Err(denied) if denied.why == Denial::Handshake => return Err(self.fault(denied.text)),
                    Err(denied) => return Err(self.refused(denied.text)),
                }
                received = self.read(&mut buffer)?;
            }
        }
        let mut hello = Vec::new();
        Hello { version: VERSION, host: access.host.clone() }.encode(&mut hello);
        match &mut secure {
            None => out.extend_from_slice(&hello),
            Some(secure) => secure.seal(&hello, &mut out).map_err(|e| self.fault(e))?,
        }
        self.write(&std::mem::take(&mut out))?;
        let mut received = 0;
        loop {
            match &mut secure {
                None => self.input.extend_from_slice(&buffer[..received]),
                Some(secure) => {
                    let opened = secure.open(&buffer[..received], &mut self.input, &mut out);
                    if !opened.map_err(|e| self.fault(e))? {
                        return Err(self.fault("the server has closed the connection"));
                    }
                }
            }
            let frame = split(&self.input, MAX_FRAME).and_then(|found| {
                found.map(|(frame, length)| Ok((Reply::decode(frame)?.1, length))).transpose()
            });
            let other = |e| self.refused(format_args!("it is no catalog server of this version: {e}"));
            match frame.map_err(other)? {
                Some((Reply::Welcome { identity }, length)) => {
                    self.input.drain(..length);
                    return Ok((secure, identity));
                }
                Some((Reply::Refused { version, why }, _)) => {
                    let why = match version {
                        VERSION => why,
                        other => format!(
                            "the server speaks version {other} of the protocol of catalog servers, and this program \
                             version {VERSION}: use programs of the same version"
                        ),
                    };
                    return Err(self.refused(why));
                }
                Some(_) => return Err(self.refused("it is no catalog server")),
                None if self.input.len() > MAX_FRAME + LENGTH => {
                    return Err(self.refused("it is no catalog server"));
                }
                None => received = self.read(&mut buffer)?,
            }
        }
    }
}
