//! One direction of one connection: a task that receives, a task that sends,
//! and a queue of dated chunks between them.

use longhaul_engine::net::TcpStream;
use longhaul_engine::sync::Notify;
use longhaul_engine::{Buf, BufMut, BufPool, Memory, RecvMsg, SendMsg, sleep_until, spawn};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::Shutdown;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The smallest buffer that is received into, in bytes; what each direction
/// may have beside the shared memory.
pub const MIN_CHUNK: usize = 16 << 10;

/// The largest one: as much as a call moves without its own cost showing, and
/// little enough that a thousand idle connections fit into memory.
pub const MAX_CHUNK: usize = 256 << 10;

/// The most that one call sends, in bytes.
const SEND_MAX: usize = 4 * MAX_CHUNK;

/// The most chunks that one call sends.
const SEND_CHUNKS: usize = 64;

/// With a limit of rate, chunks are as long as this time on the wire, so that
/// they leave evenly.
const PACE: Duration = Duration::from_millis(1);

/// With a limit of rate, how far the queue before the link may grow: like the
/// buffer of a router, beyond which the sender is held back.
const ROUTER: Duration = Duration::from_millis(50);

/// One direction of the link, which all connections share.
pub(super) struct SharedWire {
    delay: Duration,
    rate: Option<u64>,
    /// When the wire is free again.
    free: Cell<Instant>,
}

impl SharedWire {
    pub(super) fn new(delay: Duration, rate: Option<u64>) -> SharedWire {
        SharedWire { delay, rate, free: Cell::new(Instant::now()) }
    }

    /// When `len` bytes that came at `now` have left for the wire, and when
    /// they arrive.
    fn times(&self, len: usize, now: Instant) -> (Instant, Instant) {
        let Some(rate) = self.rate else { return (now, now + self.delay) };
        let bits = len as u128 * 8;
        let nanoseconds = bits * 1_000_000_000 / u128::from(rate.max(1));
        let time = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        let left = self.free.get().max(now) + time;
        self.free.set(left);
        (left, left + self.delay)
    }

    /// The largest chunk to receive in one piece.
    fn chunk(&self) -> usize {
        let paced = |rate: u64| (u128::from(rate) * PACE.as_micros() / 8_000_000) as usize;
        self.rate.map_or(MAX_CHUNK, |rate| paced(rate).clamp(1024, MAX_CHUNK))
    }
}

/// How a direction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PipeEnd {
    /// The sender closed its side, and the receiver got the end of the stream.
    Closed,
    /// A connection failed.
    Broken,
}

enum Chunk {
    Data(Buf),
    End(PipeEnd),
}

#[derive(Default)]
struct PipeQueue {
    chunks: RefCell<VecDeque<(Instant, Chunk)>>,
    /// Bytes queued or being sent.
    bytes: Cell<usize>,
    filled: Notify,
    drained: Notify,
    /// The sending task has ended.
    closed: Cell<bool>,
}

impl PipeQueue {
    fn push(&self, due: Instant, chunk: Chunk) {
        if let Chunk::Data(data) = &chunk {
            self.bytes.set(self.bytes.get() + data.len());
        }
        self.chunks.borrow_mut().push_back((due, chunk));
        self.filled.notify();
    }

    /// Waits for the first chunk's time.
    async fn ready(&self) {
        loop {
            let due = self.chunks.borrow().front().map(|(due, _)| *due);
            match due {
                Some(due) => return sleep_until(due).await,
                None => self.filled.notified().await,
            }
        }
    }

    /// Takes the chunks that are due: into `msg`, or the end.
    fn take(&self, msg: &mut SendMsg) -> Option<PipeEnd> {
        let now = Instant::now();
        let mut chunks = self.chunks.borrow_mut();
        let (mut count, mut len) = (0, 0);
        msg.begin(Vec::new());
        while let Some((due, chunk)) = chunks.front()
            && (*due <= now || count == 0)
            && count < SEND_CHUNKS
            && len < SEND_MAX
        {
            match chunk {
                Chunk::End(end) => return (count == 0).then_some(*end),
                Chunk::Data(data) => {
                    msg.push(data.segment());
                    len += data.len();
                    count += 1;
                    chunks.pop_front();
                }
            }
        }
        None
    }
}

/// One direction of one connection.
pub(super) struct Pipe {
    from: Rc<TcpStream>,
    to: Rc<TcpStream>,
    pool: BufPool,
    wire: Rc<SharedWire>,
    queue: Rc<PipeQueue>,
}

impl Pipe {
    pub(super) fn new(from: Rc<TcpStream>, to: Rc<TcpStream>, pool: BufPool, wire: Rc<SharedWire>) -> Pipe {
        Pipe { from, to, pool, wire, queue: Rc::default() }
    }

    /// Carries everything, from `begin` on; counts the bytes delivered.
    pub(super) async fn run(self, begin: Instant, count: &AtomicU64) -> PipeEnd {
        let Pipe { from, to, pool, wire, queue } = self;
        let receiver = Receiver { from, pool, wire, queue: Rc::clone(&queue), want: MIN_CHUNK, spare: None };
        let receiver = spawn(async move {
            sleep_until(begin).await;
            receiver.run().await;
        });
        let end = send(&to, &queue, count).await;
        queue.closed.set(true);
        queue.drained.notify();
        if end == PipeEnd::Closed {
            receiver.await;
        }
        // A receiver that is still waiting ends with its task.
        end
    }
}

async fn send(to: &TcpStream, queue: &PipeQueue, count: &AtomicU64) -> PipeEnd {
    let mut msg = SendMsg::new();
    loop {
        queue.ready().await;
        if let Some(end) = queue.take(&mut msg) {
            if end == PipeEnd::Closed && to.shutdown(Shutdown::Write).is_err() {
                return PipeEnd::Broken;
            }
            return end;
        }
        let len = msg.remaining();
        count.fetch_add(len as u64, Relaxed);
        let (result, back) = to.send(msg).await;
        msg = back;
        if result.is_err() {
            return PipeEnd::Broken;
        }
        // Gives the memory back.
        msg.take_bytes();
        queue.bytes.set(queue.bytes.get() - len);
        queue.drained.notify();
    }
}

struct Receiver {
    from: Rc<TcpStream>,
    pool: BufPool,
    wire: Rc<SharedWire>,
    queue: Rc<PipeQueue>,
    /// Length of the next buffer: grows while buffers come back full.
    want: usize,
    /// What the last receive left of its buffer.
    spare: Option<BufMut>,
}

impl Receiver {
    async fn run(mut self) {
        let mut msg = RecvMsg::new(0);
        while !self.queue.closed.get() {
            let Some(buf) = self.buffer().await else { return };
            let len = buf.len().min(self.wire.chunk());
            msg.set_direct(Memory::Buf(buf), 0, len);
            let (result, back) = self.from.recv(msg).await;
            msg = back;
            let now = Instant::now();
            let n = match result {
                Ok(n) if n > 0 => n,
                ended => {
                    let end = if ended.is_ok() { PipeEnd::Closed } else { PipeEnd::Broken };
                    let (_, due) = self.wire.times(0, now);
                    return self.queue.push(due, Chunk::End(end));
                }
            };
            let (left, due) = self.wire.times(n, now);
            if let Some((Memory::Buf(mut buf), n)) = msg.take_direct() {
                self.want = if n == len { self.want * 2 } else { self.want.min(n.next_power_of_two()) };
                self.want = self.want.clamp(MIN_CHUNK, MAX_CHUNK);
                let rest = buf.split_off(n);
                self.spare = (rest.len() >= MIN_CHUNK / 4).then_some(rest);
                self.queue.push(due, Chunk::Data(buf.freeze()));
            }
            if left.saturating_duration_since(now) > ROUTER {
                sleep_until(left - ROUTER).await;
            }
        }
    }

    /// Memory to receive into, once this direction may have some.
    async fn buffer(&mut self) -> Option<BufMut> {
        if let Some(spare) = self.spare.take() {
            return Some(spare);
        }
        loop {
            let queued = self.queue.bytes.get();
            let left = self.pool.limit().saturating_sub(self.pool.used());
            if queued <= left
                && let Some(buf) = self.pool.try_alloc(self.want)
            {
                return Some(buf);
            }
            if queued == 0 {
                return Some(BufMut::zeroed(MIN_CHUNK));
            }
            self.queue.drained.notified().await;
            if self.queue.closed.get() {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_at_the_rate_of_the_link() {
        let ms = Duration::from_millis;
        let wire = SharedWire::new(ms(10), Some(8_000_000));
        let now = Instant::now() + ms(1);
        // 1000 bytes at a megabyte a second take a millisecond.
        assert_eq!(wire.times(1000, now), (now + ms(1), now + ms(11)));
        assert_eq!(wire.times(2000, now), (now + ms(3), now + ms(13)));
        let later = now + ms(100);
        assert_eq!(wire.times(1000, later), (later + ms(1), later + ms(11)));
        assert_eq!(wire.chunk(), 1024, "no less");
        assert_eq!(SharedWire::new(ms(1), Some(1_000_000_000)).chunk(), 125_000);
        assert_eq!(SharedWire::new(ms(1), None).chunk(), MAX_CHUNK);
    }

    #[test]
    fn only_what_is_due_is_taken_and_the_end_comes_last() {
        let queue = PipeQueue::default();
        let now = Instant::now();
        let later = now + Duration::from_secs(3600);
        let data = |n| Chunk::Data(Buf::copy_of(&vec![0; n]));
        let mut msg = SendMsg::new();
        queue.push(now, data(10));
        queue.push(now, data(20));
        queue.push(later, data(40));
        assert_eq!((queue.take(&mut msg), msg.remaining(), queue.bytes.get()), (None, 30, 70));
        queue.chunks.borrow_mut().clear();
        queue.push(now, data(5));
        queue.push(now, Chunk::End(PipeEnd::Closed));
        assert_eq!((queue.take(&mut msg), msg.remaining()), (None, 5));
        assert_eq!((queue.take(&mut msg), msg.remaining()), (Some(PipeEnd::Closed), 0));
    }
}
