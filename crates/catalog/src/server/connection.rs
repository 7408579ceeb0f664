//! One connection: its bytes in both directions, and what is under way for it.

use super::work::Cursor;
use crate::secure::{Peer, Secure};
use crate::types::{Event, Revision};
use crate::wire::{PIECE, Reply, event_size};
use rustix::event::epoll::EventFlags;
use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Bytes that wait to be sent, beyond which nothing more is made for a client.
const HIGH: usize = 4 << 20;
/// Requests under way.
const REQUESTS: usize = 256;
/// Bytes of requests under way.
const HELD: usize = 4 << 20;
/// Bytes that are received at a time.
const RECEIVE: usize = 64 << 10;
/// Bytes that are received of a connection before others have their turn.
const TURN: usize = 4 * RECEIVE;
/// Bytes of a handshake that wait while a step of it is done.
const HANDSHAKE: usize = 32 << 10;
/// Revisions after which the server sends the revision to a watch without changes, so that the client can resume the
/// watch from there.
const TELL: u64 = 1000;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing was received.
    New,
    /// A handshake is under way.
    Handshake,
    /// The first frame is awaited.
    Hello,
    /// The client was let in.
    Open,
    /// What is to be sent is sent, and then it ends.
    Closing,
}

/// A watch of a client.
#[derive(Debug)]
pub(super) struct WatchState {
    pub(super) prefix: Vec<u8>,
    /// The first revision that was not passed on.
    pub(super) next: Revision,
    /// The client was told of the revisions before this one.
    told: Revision,
    /// It gets what happens; otherwise it is behind, and reads what has happened.
    pub(super) is_live: bool,
    /// A reader is at it.
    pub(super) is_read: bool,
}

impl WatchState {
    pub(super) fn new(prefix: Vec<u8>, from: Revision) -> WatchState {
        WatchState { prefix, next: from, told: from, is_live: false, is_read: false }
    }
}

/// A connection has ended.
#[derive(Debug)]
pub(super) struct ConnectionEnded(pub(super) String);

/// See the module.
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) address: SocketAddr,
    pub(super) phase: Phase,
    /// None without encryption, and while a step of a handshake is done.
    pub(super) secure: Option<Box<dyn Secure>>,
    pub(super) peer: Peer,
    /// Received while a step of a handshake is done.
    pub(super) raw: Vec<u8>,
    /// Received frames, decrypted.
    pub(super) input: Vec<u8>,
    /// Encrypted if need be, and not sent.
    out: Vec<u8>,
    sent: usize,
    pub(super) requests: usize,
    /// Bytes of requests under way.
    pub(super) held: usize,
    /// Pieces that are read.
    pub(super) reading: usize,
    /// Answers that go on once there is room.
    pub(super) waiting: VecDeque<(u64, usize, Box<Cursor>)>,
    pub(super) watches: HashMap<u64, WatchState>,
    pub(super) began: Instant,
    /// When it was let in.
    pub(super) opened: Instant,
    pub(super) heard: Instant,
    /// A frame has begun then, and is not complete.
    pub(super) partial: Option<Instant>,
    /// Something waits to be sent, and nothing could be since then.
    pub(super) stuck: Option<Instant>,
    /// Bytes sent and received.
    pub(super) bytes: (u64, u64),
    pub(super) interest: EventFlags,
    /// Bytes that are counted of it.
    pub(super) counted: usize,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, address: SocketAddr, now: Instant) -> Connection {
        Connection {
            stream,
            address,
            phase: Phase::New,
            secure: None,
            peer: Peer::default(),
            raw: Vec::new(),
            input: Vec::new(),
            out: Vec::new(),
            sent: 0,
            requests: 0,
            held: 0,
            reading: 0,
            waiting: VecDeque::new(),
            watches: HashMap::new(),
            began: now,
            opened: now,
            heard: now,
            partial: None,
            stuck: None,
            bytes: (0, 0),
            interest: EventFlags::empty(),
            counted: 0,
        }
    }

    /// Bytes that wait to be sent.
    pub(super) fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Bytes that it holds in memory.
    pub(super) fn footprint(&self) -> usize {
        self.raw.len() + self.input.len() + self.out.len() + self.held
    }

    /// Whether a further request may begin.
    pub(super) fn has_room(&self) -> bool {
        self.requests < REQUESTS && self.held < HELD && self.unsent() < HIGH
    }

    /// Whether a further piece of an answer may be read.
    pub(super) fn may_read(&self) -> bool {
        self.unsent() + self.reading * PIECE < HIGH
    }

    /// Whether it is to be received from.
    pub(super) fn wants_input(&self) -> bool {
        match self.phase {
            Phase::New | Phase::Hello => true,
            Phase::Handshake => self.raw.len() < HANDSHAKE,
            Phase::Open => self.has_room(),
            Phase::Closing => false,
        }
    }

    /// Receives what is there, until others have their turn.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn receive(&mut self, mut take: impl FnMut(&mut Self, &[u8])) -> Result<(), ConnectionEnded> {
        let mut buffer = [0; RECEIVE];
        let mut left = TURN;
        while left > 0 && self.wants_input() {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(ConnectionEnded("the client has closed it".into())),
                Ok(n) => {
                    self.bytes.1 += n as u64;
                    left = left.saturating_sub(n);
                    take(self, &buffer[..n]);
                    if n < RECEIVE {
                        return Ok(());
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(ConnectionEnded(e.to_string())),
            }
        }
        Ok(())
    }

    /// Decrypts what was received.
    ///
    /// # Errors
    /// It was changed, or ends the connection.
    pub(super) fn decrypt(&mut self, bytes: &[u8]) -> Result<(), ConnectionEnded> {
        match &mut self.secure {
            None => self.input.extend_from_slice(bytes),
            Some(secure) => {
                let opened = secure.open(bytes, &mut self.input, &mut self.out).map_err(ConnectionEnded)?;
                if !opened {
                    return Err(ConnectionEnded("the client has closed it".into()));
                }
            }
        }
        Ok(())
    }

    /// Puts bytes that are encrypted already behind what waits to be sent.
    pub(super) fn put_raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Puts a frame behind what waits to be sent.
    ///
    /// # Errors
    /// It cannot be encrypted.
    pub(super) fn put(&mut self, id: u64, reply: &Reply) -> Result<(), ConnectionEnded> {
        match &mut self.secure {
            None => reply.encode(id, &mut self.out),
            Some(secure) => {
                let mut frame = Vec::new();
                reply.encode(id, &mut frame);
                secure.seal(&frame, &mut self.out).map_err(ConnectionEnded)?;
            }
        }
        Ok(())
    }

    /// Sends what the socket takes.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn send(&mut self, now: Instant) -> Result<(), ConnectionEnded> {
        while self.unsent() > 0 {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(n) => {
                    self.sent += n;
                    self.bytes.0 += n as u64;
                    self.stuck = None;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.stuck.get_or_insert(now);
                    break;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(ConnectionEnded(e.to_string())),
            }
        }
        if self.unsent() == 0 {
            (self.sent, self.stuck) = (0, None);
            self.out.clear();
            self.out.shrink_to(RECEIVE);
        } else if self.sent > HIGH / 2 {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// Passes events on to a watch, those of its prefix; it has all changes up to `through` then.
    ///
    /// # Errors
    /// They cannot be encrypted.
    pub(super) fn pass_on(
        &mut self,
        id: u64,
        events: &[Event],
        through: Revision,
    ) -> Result<(), ConnectionEnded> {
        let Some(watch) = self.watches.get_mut(&id) else { return Ok(()) };
        let next = watch.next;
        let prefix = std::mem::take(&mut watch.prefix);
        let mut mine =
            events.iter().filter(|event| event.revision >= next && event.key.starts_with(&prefix)).peekable();
        watch.next = next.max(through + 1);
        let is_told = mine.peek().is_some() || watch.next - watch.told >= TELL;
        if is_told {
            watch.told = watch.next;
        }
        let mut frames = Vec::new();
        while mine.peek().is_some() {
            let (mut some, mut size) = (Vec::new(), 0);
            while size < PIECE
                && let Some(event) = mine.next()
            {
                size += event_size(event);
                some.push(event.clone());
            }
            frames.push((some, mine.peek().is_some()));
        }
        if is_told && frames.is_empty() {
            frames.push((Vec::new(), false));
        }
        watch.prefix = prefix;
        for (events, more) in frames {
            self.put(id, &Reply::Events { through, events, more })?;
        }
        Ok(())
    }

    /// Nothing of it goes on for too long.
    ///
    /// # Errors
    /// Why it has to end.
    pub(super) fn check(
        &self,
        now: Instant,
        progress: Duration,
        silence: Duration,
    ) -> Result<(), ConnectionEnded> {
        let over = |since: Option<Instant>| since.is_some_and(|since| now - since > progress);
        if over(self.stuck) {
            return Err(ConnectionEnded("the client does not receive".into()));
        }
        if over(self.partial) {
            return Err(ConnectionEnded("the client has sent half a frame".into()));
        }
        if self.phase == Phase::Open && self.requests == 0 && now - self.heard > silence {
            return Err(ConnectionEnded("the client is silent".into()));
        }
        Ok(())
    }
}
