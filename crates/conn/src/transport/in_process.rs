//! Pairs of rings in memory: both ends in one process, without sockets.
//!
//! Invariants:
//! - of each direction one end writes and the other reads, and a waker of each is kept at most;
//! - whatever lets an end go on calls its waker, after the state has changed and outside the lock;
//! - a direction holds no more bytes than it was made for.

use super::{Address, FreeStream, Listener, Operation, Stream, Transport};
use longhaul_engine::{RecvMsg, SendMsg};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Bytes that a direction holds: a send that a queue makes at once fills it a few times.
const BUFFER: usize = 256 << 10;
/// Connections that wait to be accepted, as many as of a socket.
const BACKLOG: usize = 4096;

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connections within a process: clones have the same names. An address is any text.
#[derive(Clone)]
pub struct InProcess {
    listeners: Arc<Mutex<Listeners>>,
    buffer: usize,
}

type Listeners = HashMap<String, Arc<Mutex<Backlog>>>;

/// Connections that are not accepted yet.
#[derive(Default)]
struct Backlog {
    waiting: VecDeque<End>,
    listener: Option<Waker>,
}

impl InProcess {
    /// A transport on which nothing listens.
    pub fn new() -> InProcess {
        InProcess::with_buffer(BUFFER)
    }

    /// The same, with so many bytes for each direction of a connection; 256 KiB are usual.
    pub fn with_buffer(bytes: usize) -> InProcess {
        InProcess { listeners: Arc::default(), buffer: bytes.max(1) }
    }

    /// A connection without a listener: its two ends.
    pub fn pair() -> (FreeStream, FreeStream) {
        let (a, b) = End::pair(BUFFER);
        (a.free(), b.free())
    }
}

impl Default for InProcess {
    fn default() -> InProcess {
        InProcess::new()
    }
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InProcess({:?})", lock(&self.listeners).keys().collect::<Vec<_>>())
    }
}

impl Transport for InProcess {
    fn connect<'a>(&'a self, address: &'a str) -> Operation<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let refused = |why: &str| {
                io::Error::new(
                    io::ErrorKind::ConnectionRefused,
                    format!("{why} at '{address}' in this process"),
                )
            };
            let backlog =
                lock(&self.listeners).get(address).cloned().ok_or_else(|| refused("nothing listens"))?;
            let (near, far) = End::pair(self.buffer);
            let waker = {
                let mut backlog = lock(&backlog);
                if backlog.waiting.len() >= BACKLOG {
                    return Err(refused("too many connections wait"));
                }
                backlog.waiting.push_back(far);
                backlog.listener.take()
            };
            waker.into_iter().for_each(Waker::wake);
            Ok(Box::new(near) as Box<dyn Stream>)
        })
    }

    fn listen(&self, address: &str) -> io::Result<Box<dyn Listener>> {
        let mut listeners = lock(&self.listeners);
        if listeners.contains_key(address) {
            let why = format!("something listens at '{address}' in this process");
            return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
        }
        let backlog = Arc::<Mutex<Backlog>>::default();
        listeners.insert(address.to_owned(), Arc::clone(&backlog));
        Ok(Box::new(InProcessListening { all: self.clone(), address: address.to_owned(), backlog }))
    }
}

struct InProcessListening {
    all: InProcess,
    address: String,
    backlog: Arc<Mutex<Backlog>>,
}

impl Listener for InProcessListening {
    fn accept(&self) -> Operation<'_, io::Result<(FreeStream, Address)>> {
        Box::pin(poll_fn(|cx| {
            let mut backlog = lock(&self.backlog);
            match backlog.waiting.pop_front() {
                Some(end) => Poll::Ready(Ok((end.free(), Address::named("in-process")))),
                None => {
                    backlog.listener = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        }))
    }

    fn address(&self) -> Address {
        Address::named(self.address.as_str())
    }
}

impl Drop for InProcessListening {
    fn drop(&mut self) {
        lock(&self.all.listeners).remove(&self.address);
        let waiting = std::mem::take(&mut lock(&self.backlog).waiting);
        drop(waiting);
    }
}

impl fmt::Debug for InProcessListening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InProcessListening({})", self.address)
    }
}

/// One direction.
#[derive(Default)]
struct Ring {
    /// Of all the bytes that it may hold, from the first send on.
    bytes: Box<[u8]>,
    most: usize,
    start: usize,
    len: usize,
    /// The writing end sends nothing more.
    is_written: bool,
    /// The reading end receives nothing more.
    is_read: bool,
    /// What is left was given up.
    is_reset: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Ring {
    fn poll_recv(&mut self, cx: &mut Context<'_>, msg: &mut RecvMsg) -> Poll<io::Result<usize>> {
        if self.is_reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let mut received = 0;
        while self.len > 0 {
            let end = (self.start + self.len).min(self.bytes.len());
            let n = msg.put(&self.bytes[self.start..end]);
            if n == 0 {
                break;
            }
            (self.start, self.len) = ((self.start + n) % self.bytes.len(), self.len - n);
            received += n;
        }
        if received > 0 || self.is_written || self.is_read {
            return Poll::Ready(Ok(received));
        }
        self.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, msg: &mut SendMsg) -> Poll<io::Result<()>> {
        if self.is_reset || self.is_read || self.is_written {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if self.bytes.is_empty() {
            self.bytes = vec![0; self.most].into();
        }
        let before = self.len;
        while self.len < self.most && !msg.is_empty() {
            let at = (self.start + self.len) % self.most;
            let end = if at < self.start { self.start } else { self.most };
            self.len += msg.take_into(&mut self.bytes[at..end]);
        }
        if self.len > before || msg.is_empty() {
            return Poll::Ready(Ok(()));
        }
        self.writer = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Changes a direction, and wakes the operations that can go on after that.
fn change<T>(ring: &Mutex<Ring>, change: impl FnOnce(&mut Ring) -> T) -> T {
    let (result, wakers) = {
        let mut ring = lock(ring);
        let result = change(&mut ring);
        let ended = ring.is_written || ring.is_read || ring.is_reset;
        let reader = if ring.len > 0 || ended { ring.reader.take() } else { None };
        let writer = if ring.len < ring.most || ended { ring.writer.take() } else { None };
        (result, [reader, writer])
    };
    wakers.into_iter().flatten().for_each(Waker::wake);
    result
}

/// One end of a connection. Dropping it ends both directions.
struct End {
    incoming: Arc<Mutex<Ring>>,
    outgoing: Arc<Mutex<Ring>>,
}

impl End {
    fn pair(most: usize) -> (End, End) {
        let ring = || Arc::new(Mutex::new(Ring { most, ..Ring::default() }));
        let (there, back) = (ring(), ring());
        let near = End { incoming: Arc::clone(&back), outgoing: Arc::clone(&there) };
        (near, End { incoming: there, outgoing: back })
    }

    fn free(self) -> FreeStream {
        FreeStream::new(move || Ok(Box::new(self)))
    }

    fn end(&self, how: Shutdown) {
        if how != Shutdown::Read {
            change(&self.outgoing, |ring| ring.is_written = true);
        }
        if how != Shutdown::Write {
            change(&self.incoming, |ring| ring.is_read = true);
        }
    }
}

impl Stream for End {
    fn recv(&self, mut msg: RecvMsg) -> Operation<'_, (io::Result<usize>, RecvMsg)> {
        Box::pin(async move {
            msg.begin();
            let result = poll_fn(|cx| change(&self.incoming, |ring| ring.poll_recv(cx, &mut msg))).await;
            (result, msg)
        })
    }

    fn send(&self, mut msg: SendMsg) -> Operation<'_, (io::Result<()>, SendMsg)> {
        Box::pin(async move {
            let result = poll_fn(|cx| change(&self.outgoing, |ring| ring.poll_send(cx, &mut msg))).await;
            (result, msg)
        })
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.end(how);
        Ok(())
    }

    fn abandon(&self) {
        for ring in [&self.incoming, &self.outgoing] {
            change(ring, |ring| (ring.is_reset, ring.bytes, ring.len) = (true, Box::default(), 0));
        }
    }

    fn into_free(self: Box<Self>) -> io::Result<FreeStream> {
        Ok(self.free())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.end(Shutdown::Both);
    }
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InProcess stream")
    }
}
