//! The thread that serves the sockets.

use super::connection::{Connection, ConnectionEnded, Phase, WatchState};
use super::work::{Answer, Cursor, Job, To, Work};
use super::{Limits, Observer, ServerCounts, ServerOptions};
use crate::error::Error;
use crate::secure::{Acceptor, Denial};
use crate::types::Revision;
use crate::wire::{Hello, LENGTH, MAX_FRAME, Reply, Request, VERSION, split};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Tokens of what is no connection.
const WAKE: u64 = u64::MAX;
const LISTENERS: u64 = 1 << 62;
/// How often times are looked at.
const TICK: Duration = Duration::from_millis(500);
/// Time for what is under way when the server ends.
const END: Duration = Duration::from_secs(5);
/// Bytes of the first frame of a client.
const HELLO: usize = 1024;
/// Watches of a connection, and bytes of their prefixes.
const WATCHES: usize = 256;
const PREFIX: usize = 4096;
/// Keys of a question.
const KEYS: usize = 16_384;
/// How a TLS connection begins.
const TLS: u8 = 22;

/// See the module.
pub(super) struct Reactor {
    epoll: OwnedFd,
    listeners: Vec<TcpListener>,
    /// Listeners are not listened to until then: there are no descriptors, for example.
    deaf: Option<Instant>,
    acceptor: Option<Arc<dyn Acceptor>>,
    observer: Arc<dyn Observer>,
    limits: Limits,
    work: Work,
    identity: u64,
    counts: Arc<ServerCounts>,
    stop: Arc<AtomicBool>,
    connections: HashMap<u64, Connection>,
    /// Connections that have not been let in, the oldest first; with some that have.
    strangers: VecDeque<u64>,
    next: u64,
    /// Bytes that connections hold.
    held: usize,
    is_full: bool,
    /// The revision up to which events were passed on.
    seen: Revision,
}

impl Reactor {
    pub(super) fn new(
        options: ServerOptions,
        work: Work,
        identity: u64,
        counts: Arc<ServerCounts>,
        stop: Arc<AtomicBool>,
    ) -> io::Result<Reactor> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, work.wake.fd(), EventData::new_u64(WAKE), EventFlags::IN)?;
        for listener in &options.listeners {
            listener.set_nonblocking(true)?;
        }
        let seen = work.revision;
        let ServerOptions { listeners, acceptor, observer, limits, .. } = options;
        let reactor = Reactor {
            epoll,
            listeners,
            deaf: None,
            acceptor,
            observer,
            limits,
            work,
            identity,
            counts,
            stop,
            connections: HashMap::new(),
            strangers: VecDeque::new(),
            next: 0,
            held: 0,
            is_full: false,
            seen,
        };
        reactor.listen()?;
        Ok(reactor)
    }

    fn listen(&self) -> io::Result<()> {
        for (at, listener) in (LISTENERS..).zip(&self.listeners) {
            epoll::add(&self.epoll, listener, EventData::new_u64(at), EventFlags::IN)?;
        }
        Ok(())
    }

    fn ignore(&self) {
        for listener in &self.listeners {
            let _ = epoll::delete(&self.epoll, listener);
        }
    }

    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(256);
        let (mut looked, mut ending) = (Instant::now(), None::<Instant>);
        let tick = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
        loop {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&tick)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => {
                    tracing::error!("the catalog server ends: {e}");
                    break;
                }
            }
            for event in &events {
                match event.data.u64() {
                    WAKE => self.work.wake.clear(),
                    at if at >= LISTENERS => self.accept((at - LISTENERS) as usize),
                    at => self.ready(at, event.flags),
                }
            }
            while let Ok(answer) = self.work.done.try_recv() {
                self.answer(answer);
            }
            let now = Instant::now();
            if now - looked >= TICK {
                looked = now;
                self.look(now);
            }
            if ending.is_none() && self.stop.load(Ordering::SeqCst) {
                ending = Some(now);
                self.ignore();
            }
            let is_done = |c: &Connection| c.requests == 0 && c.unsent() == 0;
            if ending.is_some_and(|since| now - since > END || self.connections.values().all(is_done)) {
                break;
            }
        }
        for at in self.connections.keys().copied().collect::<Vec<_>>() {
            self.end(at, "the server ends");
        }
        self.work.answers.end();
    }

    fn is_ending(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn accept(&mut self, at: usize) {
        while let Some(listener) = self.listeners.get(at) {
            let (stream, address) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {
                    continue;
                }
                Err(e) => {
                    tracing::warn!("no connection can be taken for now: {e}");
                    self.ignore();
                    self.deaf = Some(Instant::now());
                    return;
                }
            };
            if self.connections.len() >= self.limits.connections {
                ServerCounts::add(&self.counts.refused, 1);
                self.observer.refused(address, "", Denial::Connections, "there are too many connections");
                continue;
            }
            let made = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
            let (at, flags) = (self.next, EventFlags::IN);
            let made = made.and_then(|()| {
                epoll::add(&self.epoll, &stream, EventData::new_u64(at), flags).map_err(io::Error::from)
            });
            if let Err(e) = made {
                tracing::debug!("{address}: {e}");
                continue;
            }
            self.next += 1;
            let mut connection = Connection::new(stream, address, Instant::now());
            connection.interest = flags;
            self.connections.insert(at, connection);
            self.strangers.push_back(at);
            self.make_room();
        }
    }

    /// The oldest connections that were not let in make room for others.
    fn make_room(&mut self) {
        let is_stranger = |this: &Self, at: &u64| {
            this.connections.get(at).is_some_and(|c| !matches!(c.phase, Phase::Open | Phase::Closing))
        };
        while let Some(first) = self.strangers.front().copied() {
            if !is_stranger(self, &first) {
                self.strangers.pop_front();
            } else if self.strangers.len() > self.limits.strangers {
                // Some behind it may have been let in.
                let mut strangers = std::mem::take(&mut self.strangers);
                strangers.retain(|at| is_stranger(self, at));
                self.strangers = strangers;
                if self.strangers.len() > self.limits.strangers {
                    self.deny(first, Denial::Late, "others came after it");
                    self.end(first, "others came after it");
                }
            } else {
                return;
            }
        }
    }

    fn ready(&mut self, at: u64, flags: EventFlags) {
        let Some(connection) = self.connections.get_mut(&at) else { return };
        let mut result = Ok(());
        let has_ended = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        if has_ended && !connection.wants_input() {
            // It is reported until the connection ends.
            return self.end(at, "the client has closed it");
        }
        if flags.contains(EventFlags::OUT) {
            result = connection.send(Instant::now());
        }
        if result.is_ok() && (has_ended || flags.contains(EventFlags::IN)) {
            let mut received = Vec::new();
            result = connection.receive(|_, bytes| received.extend_from_slice(bytes));
            // What came before the end counts.
            if !received.is_empty()
                && let Err(e) = self.take(at, &received)
            {
                result = Err(e);
            }
        }
        match result {
            Ok(()) => self.advance(at),
            Err(ConnectionEnded(why)) => {
                self.advance(at);
                self.end(at, &why);
            }
        }
    }

    /// Takes what was received.
    fn take(&mut self, at: u64, bytes: &[u8]) -> Result<(), ConnectionEnded> {
        let Some(connection) = self.connections.get_mut(&at) else { return Ok(()) };
        if connection.phase == Phase::New {
            let is_tls = bytes.first() == Some(&TLS);
            match (&self.acceptor, is_tls) {
                (None, false) => connection.phase = Phase::Hello,
                (Some(acceptor), true) => {
                    connection.phase = Phase::Handshake;
                    connection.secure = Some(acceptor.begin());
                }
                (Some(_), false) => {
                    let why = "this server lets in hosts with a key for TLS alone: give --keys";
                    self.deny(at, Denial::NoTls, why);
                    return Ok(());
                }
                (None, true) => {
                    self.deny(at, Denial::NoTls, "this server has no keys, and the client uses TLS");
                    return Ok(());
                }
            }
        }
        match connection.phase {
            Phase::Handshake => {
                connection.raw.extend_from_slice(bytes);
                if let Some(secure) = connection.secure.take() {
                    let input = std::mem::take(&mut connection.raw);
                    let _ = self.work.jobs.send(Job::Handshake(at, secure, input));
                }
                Ok(())
            }
            _ => connection.decrypt(bytes),
        }
    }

    /// Begins the requests that were received, as far as there is room, and sends what there is.
    fn advance(&mut self, at: u64) {
        let result = self.begin(at).and_then(|()| match self.connections.get_mut(&at) {
            Some(connection) => connection.send(Instant::now()),
            None => Ok(()),
        });
        match result {
            Ok(()) => self.settle(at),
            Err(ConnectionEnded(why)) => self.end(at, &why),
        }
    }

    fn begin(&mut self, at: u64) -> Result<(), ConnectionEnded> {
        let mut taken = 0;
        while let Some(connection) = self.connections.get_mut(&at) {
            let most = if connection.phase == Phase::Hello { HELLO } else { MAX_FRAME };
            let is_open = matches!(connection.phase, Phase::Hello | Phase::Open);
            if !is_open || !connection.has_room() || self.stop.load(Ordering::SeqCst) {
                connection.partial = None;
                break;
            }
            let input = std::mem::take(&mut connection.input);
            let found = split(&input[taken..], most).map(|found| found.map(|(frame, n)| (frame.to_vec(), n)));
            connection.input = input;
            match found {
                Ok(None) => {
                    let is_partial = connection.input.len() > taken;
                    connection.partial = is_partial.then(|| connection.partial.unwrap_or_else(Instant::now));
                    break;
                }
                Ok(Some((frame, length))) => {
                    taken += length;
                    connection.partial = None;
                    connection.heard = Instant::now();
                    match connection.phase {
                        Phase::Hello => self.greet(at, &frame)?,
                        _ => self.request(at, &frame)?,
                    }
                }
                Err(e) if connection.phase == Phase::Hello => {
                    self.deny(at, Denial::Protocol, &e.to_string());
                    break;
                }
                Err(e) => return Err(ConnectionEnded(e.to_string())),
            }
        }
        if let Some(connection) = self.connections.get_mut(&at) {
            connection.input.drain(..taken);
            if connection.input.is_empty() {
                connection.input.shrink_to(0);
            }
            while connection.may_read()
                && let Some((id, size, cursor)) = connection.waiting.pop_front()
            {
                connection.reading += 1;
                let _ = self.work.jobs.send(Job::Read(To { connection: at, id, size }, cursor));
            }
            if connection.unsent() == 0 {
                for (id, watch) in &mut connection.watches {
                    if !watch.is_live && !watch.is_read {
                        watch.is_read = true;
                        let to = To { connection: at, id: *id, size: 0 };
                        let _ = self.work.jobs.send(Job::CatchUp(to, watch.prefix.clone(), watch.next));
                    }
                }
            }
        }
        Ok(())
    }

    fn greet(&mut self, at: u64, frame: &[u8]) -> Result<(), ConnectionEnded> {
        let hello = match Hello::decode(frame) {
            Ok(hello) => hello,
            Err(e) => {
                self.deny(at, Denial::Protocol, &e.to_string());
                return Ok(());
            }
        };
        let identity = self.identity;
        let Some(connection) = self.connections.get_mut(&at) else { return Ok(()) };
        if connection.peer.generation.is_none() {
            connection.peer.host.clone_from(&hello.host);
        }
        if hello.version != VERSION {
            let why = format!(
                "it speaks version {} of the protocol of catalog servers, and this server version {VERSION}: use \
                 programs of the same version",
                hello.version
            );
            self.deny(at, Denial::Protocol, &why);
            return Ok(());
        }
        connection.phase = Phase::Open;
        connection.opened = Instant::now();
        ServerCounts::add(&self.counts.clients, 1);
        self.observer.connected(connection.address, &connection.peer);
        connection.put(0, &Reply::Welcome { identity })
    }

    /// Tells a client that it is not let in, and ends the connection then.
    fn deny(&mut self, at: u64, why: Denial, text: &str) {
        let Some(connection) = self.connections.get_mut(&at) else { return };
        ServerCounts::add(&self.counts.refused, 1);
        self.observer.refused(connection.address, &connection.peer.host, why, text);
        // In the midst of a handshake nothing can be said.
        if std::mem::replace(&mut connection.phase, Phase::Closing) == Phase::Handshake {
            return;
        }
        // What cannot be said is not needed: the connection ends too.
        let _ = connection.put(0, &Reply::Refused { version: VERSION, why: text.to_owned() });
    }

    fn request(&mut self, at: u64, frame: &[u8]) -> Result<(), ConnectionEnded> {
        let (id, request) = Request::decode(frame).map_err(|e| ConnectionEnded(e.to_string()))?;
        let Some(connection) = self.connections.get_mut(&at) else { return Ok(()) };
        let size = frame.len() + LENGTH;
        let to = To { connection: at, id, size };
        let refuse = |connection: &mut Connection, why: &str| {
            connection.put(id, &Reply::Failed(Error::Invalid(why.to_owned())))
        };
        match request {
            Request::Change(change) => {
                connection.requests += 1;
                connection.held += size;
                let _ = self.work.changes.send((to, change));
            }
            Request::Read(question) => {
                if question.keys.len() > KEYS {
                    return refuse(connection, "a question has too many keys");
                }
                connection.requests += 1;
                connection.held += size;
                connection.waiting.push_back((id, size, Box::new(Cursor::new(question))));
            }
            Request::Watch { prefix, from } => {
                if connection.watches.len() >= WATCHES || prefix.len() > PREFIX {
                    return refuse(connection, "a connection has too many watches, or too long ones");
                }
                if connection.watches.contains_key(&id) {
                    return refuse(connection, "a watch has that id already");
                }
                ServerCounts::add(&self.counts.watches, 1);
                connection.watches.insert(id, WatchState::new(prefix, from));
            }
            Request::Cancel => {
                if connection.watches.remove(&id).is_some() {
                    ServerCounts::take(&self.counts.watches, 1);
                }
            }
            Request::Ping => connection.put(id, &Reply::Pong)?,
        }
        Ok(())
    }

    fn answer(&mut self, answer: Answer) {
        let (at, result) = match answer {
            Answer::Changed(to, reply) => (to.connection, self.answered(to, &reply, false)),
            Answer::Piece(to, reply, cursor) => {
                let has_more = cursor.is_some();
                if let Some(connection) = self.connections.get_mut(&to.connection) {
                    connection.reading = connection.reading.saturating_sub(1);
                    connection.waiting.extend(cursor.map(|cursor| (to.id, to.size, cursor)));
                }
                (to.connection, self.answered(to, &reply, has_more))
            }
            Answer::CaughtUp(to, result) => (to.connection, self.caught_up(to, result)),
            Answer::Handshake(at, secure, output, result) => {
                let known = self.connections.get_mut(&at).filter(|c| c.phase == Phase::Handshake);
                let Some(connection) = known else { return };
                connection.put_raw(&output);
                match result {
                    Ok(None) => {
                        let input = std::mem::take(&mut connection.raw);
                        if input.is_empty() {
                            connection.secure = Some(secure);
                        } else {
                            let _ = self.work.jobs.send(Job::Handshake(at, secure, input));
                        }
                        (at, Ok(()))
                    }
                    Ok(Some(peer)) => {
                        connection.secure = Some(secure);
                        connection.peer = peer;
                        connection.phase = Phase::Hello;
                        let raw = std::mem::take(&mut connection.raw);
                        (at, connection.decrypt(&raw))
                    }
                    Err(denied) => {
                        ServerCounts::add(&self.counts.refused, 1);
                        connection.phase = Phase::Closing;
                        self.observer.refused(connection.address, &denied.host, denied.why, &denied.text);
                        (at, Ok(()))
                    }
                }
            }
            Answer::Events(events, through) => {
                self.seen = through;
                let all: Vec<u64> = self.connections.keys().copied().collect();
                for at in all {
                    let Some(connection) = self.connections.get_mut(&at) else { continue };
                    let watches = connection.watches.iter().filter(|(_, watch)| watch.is_live);
                    let watches: Vec<u64> = watches.map(|(id, _)| *id).collect();
                    if watches.is_empty() {
                        continue;
                    }
                    let mut result = Ok(());
                    for id in watches {
                        if !connection.may_read() {
                            // It reads what has happened once it has received what there is.
                            connection.watches.entry(id).and_modify(|watch| watch.is_live = false);
                        } else if result.is_ok() {
                            result = connection.pass_on(id, &events, through);
                        }
                    }
                    self.go_on(at, result);
                }
                return;
            }
            Answer::Gap(newest) => {
                self.seen = newest;
                let all: Vec<u64> = self.connections.keys().copied().collect();
                for at in all {
                    if let Some(connection) = self.connections.get_mut(&at) {
                        connection.watches.values_mut().for_each(|watch| watch.is_live = false);
                    }
                    self.advance(at);
                }
                return;
            }
        };
        self.go_on(at, result);
    }

    fn go_on(&mut self, at: u64, result: Result<(), ConnectionEnded>) {
        match result {
            Ok(()) => self.advance(at),
            Err(ConnectionEnded(why)) => self.end(at, &why),
        }
    }

    fn answered(&mut self, to: To, reply: &Reply, has_more: bool) -> Result<(), ConnectionEnded> {
        let Some(connection) = self.connections.get_mut(&to.connection) else { return Ok(()) };
        if !has_more {
            connection.requests = connection.requests.saturating_sub(1);
            connection.held = connection.held.saturating_sub(to.size);
        }
        connection.put(to.id, reply)
    }

    fn caught_up(
        &mut self,
        to: To,
        result: crate::Result<(Revision, Vec<crate::types::Event>)>,
    ) -> Result<(), ConnectionEnded> {
        let seen = self.seen;
        let Some(connection) = self.connections.get_mut(&to.connection) else { return Ok(()) };
        let Some(watch) = connection.watches.get_mut(&to.id) else { return Ok(()) };
        watch.is_read = false;
        match result {
            Ok((through, events)) => {
                // What has happened since then was not passed on to it: it reads that, too.
                watch.is_live = through >= seen;
                connection.pass_on(to.id, &events, through)
            }
            Err(e) => {
                connection.watches.remove(&to.id);
                ServerCounts::take(&self.counts.watches, 1);
                connection.put(to.id, &Reply::Failed(e))
            }
        }
    }

    /// What is waited for of a connection, and how much it holds.
    fn settle(&mut self, at: u64) {
        let Some(connection) = self.connections.get_mut(&at) else { return };
        if connection.phase == Phase::Closing && connection.unsent() == 0 {
            return self.end(at, "it was refused");
        }
        let now = connection.footprint();
        self.held = self.held + now - connection.counted;
        connection.counted = now;
        let is_full = self.held > self.limits.memory;
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, connection.wants_input() && !is_full);
        interest.set(EventFlags::OUT, connection.unsent() > 0);
        if interest != connection.interest {
            connection.interest = interest;
            let fd = connection.stream.as_fd();
            if let Err(e) = epoll::modify(&self.epoll, fd, EventData::new_u64(at), interest) {
                tracing::debug!("{}: {e}", connection.address);
            }
        }
        if is_full != self.is_full {
            self.is_full = is_full;
            let all: Vec<u64> = self.connections.keys().copied().collect();
            all.into_iter().for_each(|at| self.settle(at));
        }
    }

    /// Ends a connection.
    fn end(&mut self, at: u64, why: &str) {
        let Some(mut connection) = self.connections.remove(&at) else { return };
        tracing::debug!("{}: the connection ends: {why}", connection.address);
        self.held -= connection.counted;
        let _ = epoll::delete(&self.epoll, &connection.stream);
        ServerCounts::take(&self.counts.watches, connection.watches.len() as u64);
        if let Some(secure) = &mut connection.secure {
            let mut output = Vec::new();
            secure.end(&mut output);
            connection.put_raw(&output);
            let _ = connection.send(Instant::now());
        }
        match connection.phase {
            Phase::Open => {
                ServerCounts::take(&self.counts.clients, 1);
                let time = connection.opened.elapsed();
                self.observer.disconnected(connection.address, &connection.peer, time, connection.bytes);
            }
            // A scan of ports, or a look whether the server is there.
            Phase::New | Phase::Handshake | Phase::Hello | Phase::Closing => {}
        }
        if self.is_full && self.held <= self.limits.memory {
            self.is_full = false;
            let all: Vec<u64> = self.connections.keys().copied().collect();
            all.into_iter().for_each(|at| self.settle(at));
        }
    }

    /// Looks at the times of all connections.
    fn look(&mut self, now: Instant) {
        if self.deaf.is_some() && !self.is_ending() {
            self.deaf = None;
            if let Err(e) = self.listen() {
                tracing::error!("the catalog server does not listen: {e}");
            }
        }
        let Limits { greeting, progress, silence, .. } = self.limits;
        let mut over = Vec::new();
        for (at, connection) in &self.connections {
            let is_stranger = !matches!(connection.phase, Phase::Open);
            if is_stranger && now - connection.began > greeting {
                over.push((*at, connection.phase != Phase::Closing, "it was not let in in time".to_owned()));
            } else if let Err(ConnectionEnded(why)) = connection.check(now, progress, silence) {
                over.push((*at, false, why));
            }
        }
        for (at, is_late, why) in over {
            if is_late {
                self.deny(at, Denial::Late, &why);
            }
            self.end(at, &why);
        }
    }
}
