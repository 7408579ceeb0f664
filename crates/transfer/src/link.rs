//! Frames over a TCP connection, or over a queue within the process.
//!
//! Invariants: bytes are consumed in the order of arrival; reading stops at a header
//! whose lengths exceed the limits.

pub(crate) mod noise;
pub(crate) mod peer_timeout;

use crate::queue::Queue;
use crate::wire::{Frame, HEADER_LEN, Header, Malformed, Refusal};
use longhaul_engine::net::{Life, TcpStream};
use longhaul_engine::{Buf, BufMut, BufPool, Memory, RecvMsg, SendMsg, timeout};
use noise::{Handshake, Key, Opener, Sealer};
use peer_timeout::LastReceived;
use std::cell::Cell;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Size of the receive buffer of a connection, in bytes: a few small frames.
const STAGING: usize = 64 << 10;
/// Receive buffer behind a body, in bytes: the next header arrives with the body, and
/// hardly any data is copied.
const STAGING_BEHIND_BODY: usize = 256;
/// How long sent data may stay unacknowledged before the connection is given up.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);
/// Keep-alive probes, and queries of the socket's state, within that time.
const PROBES: u32 = 6;
/// Bytes in flight between two ends within the process.
const MEMORY_LINK: usize = 8 << 20;

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The socket failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A malformed frame was received.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// One end of a connection.
pub(crate) struct Link {
    pub(crate) tx: Tx,
    pub(crate) rx: Rx,
}

/// The end that sends.
pub(crate) enum Tx {
    Tcp { stream: Rc<MonitoredStream>, msg: Option<SendMsg>, sealer: Option<Sealer> },
    Memory(MemoryEnd),
}

/// The end that receives.
pub(crate) enum Rx {
    Tcp(Box<TcpRx>),
    Memory(MemoryEnd),
}

/// An end of an in-process queue; dropping it closes the queue.
pub(crate) struct MemoryEnd(Arc<Queue<Frame>>);

impl Drop for MemoryEnd {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A TCP connection that is given up when the peer stops acknowledging.
///
/// TCP itself gives up after about 15 minutes (tcp(7), `tcp_retries2`), and its
/// keep-alive does not run while data is unacknowledged. `TCP_USER_TIMEOUT` would also
/// end a connection whose peer acknowledges but keeps its window closed, because its
/// disk is busy. So the time of the last acknowledgement, zero-window ones included, is
/// read from the kernel.
pub(crate) struct MonitoredStream {
    stream: Rc<TcpStream>,
    silence: Duration,
    /// The connection timed out; later operations report that.
    given_up: Cell<bool>,
}

impl MonitoredStream {
    /// Runs an operation on the connection, and gives the connection up if the peer stays
    /// silent for `silence` meanwhile.
    async fn watch<T>(&self, work: impl Future<Output = (io::Result<usize>, T)>) -> (io::Result<usize>, T) {
        let mut work = pin!(work);
        let mut before = false;
        loop {
            match timeout(self.silence / PROBES, work.as_mut()).await {
                Ok((_, rest)) if self.given_up.get() => {
                    let silence = self.silence.as_secs();
                    let message = format!("nothing has come from the other side for {silence} s");
                    return (Err(io::Error::new(io::ErrorKind::TimedOut, message)), rest);
                }
                Ok(done) => return done,
                Err(_) => {}
            }
            let silent = self.is_silent();
            // Two silent periods in a row: an acknowledgement may be on its way.
            if silent && before {
                self.given_up.set(true);
                // This ends the operation.
                self.stream.abandon();
            }
            before = silent;
        }
    }

    /// Whether data or a probe has been unacknowledged for too long.
    fn is_silent(&self) -> bool {
        let waits = |life: &Life| life.unacked > 0 || life.probes > 0;
        self.stream.life().is_ok_and(|life| waits(&life) && life.last_ack >= self.silence)
    }
}

pub(crate) struct TcpRx {
    stream: Rc<MonitoredStream>,
    /// Memory for bodies of more than `unpooled` bytes.
    pool: BufPool,
    unpooled: usize,
    msg: Option<RecvMsg>,
    /// Consumed bytes of the receive buffer.
    taken: usize,
    opener: Option<Opener>,
    last_received: LastReceived,
}

impl Link {
    /// Wraps a connection; bodies are received into memory of `pool`.
    pub(crate) fn tcp(stream: TcpStream, pool: BufPool) -> Link {
        Link::tcp_with(stream, pool, SILENCE)
    }

    /// As [`tcp`](Self::tcp), with another timeout for acknowledgements.
    pub(crate) fn tcp_with(stream: TcpStream, pool: BufPool, silence: Duration) -> Link {
        // Without keep-alive, a receiver would wait forever for a machine that has crashed.
        let often = (silence / PROBES).max(Duration::from_secs(1));
        if let Err(e) = stream.keep_alive(often, PROBES - 1) {
            tracing::debug!("cannot enable TCP keep-alive: {e}");
        }
        let stream =
            Rc::new(MonitoredStream { stream: Rc::new(stream), silence, given_up: Cell::new(false) });
        let rx = TcpRx {
            stream: Rc::clone(&stream),
            pool,
            unpooled: 0,
            msg: Some(RecvMsg::new(STAGING)),
            taken: 0,
            opener: None,
            last_received: LastReceived::new(),
        };
        Link { tx: Tx::Tcp { stream, msg: Some(SendMsg::new()), sealer: None }, rx: Rx::Tcp(Box::new(rx)) }
    }

    /// Wraps an accepted connection. Until [`Rx::use_pool`] replaces it, `greeting` holds
    /// long bodies only, so that a slow client delays no clients with short requests.
    pub(crate) fn incoming(stream: TcpStream, greeting: BufPool) -> Link {
        let mut link = Link::tcp(stream, greeting);
        if let Rx::Tcp(rx) = &mut link.rx {
            rx.unpooled = STAGING;
        }
        link
    }

    /// Two connected ends within the process.
    pub(crate) fn pair() -> (Link, Link) {
        let one = || Arc::new(Queue::new(MEMORY_LINK));
        let (there, back) = (one(), one());
        let link = |tx: &Arc<Queue<Frame>>, rx: &Arc<Queue<Frame>>| Link {
            tx: Tx::Memory(MemoryEnd(Arc::clone(tx))),
            rx: Rx::Memory(MemoryEnd(Arc::clone(rx))),
        };
        (link(&there, &back), link(&back, &there))
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the other side closed the connection")
}

impl Link {
    /// Runs the handshake as the connecting side, and encrypts from then on.
    ///
    /// # Errors
    /// The other side has another key or none, or is not an agent.
    pub(crate) async fn secure(&mut self, key: &Key) -> Result<Result<(), Refusal>, LinkError> {
        let mut handshake = Handshake::new(key, true)?;
        self.tx.send(vec![Frame::Secure(handshake.write()?.into())]).await?;
        match self.rx.frame().await? {
            Some(Frame::Secure(message)) => {
                handshake.read(&message)?;
                self.seal(handshake)?;
                Ok(Ok(()))
            }
            Some(Frame::Refuse(refusal)) => Ok(Err(refusal)),
            _ => Err(closed().into()),
        }
    }

    /// Answers the handshake `message` as the accepting side, and encrypts from then on.
    ///
    /// # Errors
    /// The other side has another key.
    pub(crate) async fn secure_answer(&mut self, key: &Key, message: &[u8]) -> Result<(), LinkError> {
        let mut handshake = Handshake::new(key, false)?;
        handshake.read(message)?;
        self.tx.send(vec![Frame::Secure(handshake.write()?.into())]).await?;
        Ok(self.seal(handshake)?)
    }

    fn seal(&mut self, handshake: Handshake) -> io::Result<()> {
        let (mine, theirs) = handshake.finish()?;
        if let (Tx::Tcp { sealer, .. }, Rx::Tcp(rx)) = (&mut self.tx, &mut self.rx) {
            *sealer = Some(mine);
            rx.secure(theirs)?;
        }
        Ok(())
    }
}

impl Tx {
    /// The socket, if there is one.
    pub(crate) fn stream(&self) -> Option<Rc<TcpStream>> {
        match self {
            Tx::Tcp { stream, .. } => Some(Rc::clone(&stream.stream)),
            Tx::Memory(_) => None,
        }
    }

    /// Turns on TCP pacing if the round trip is long: a whole window sent at once would
    /// overflow a router queue that is shorter than the window.
    pub(crate) fn pace(&self) {
        const FAR: Duration = Duration::from_millis(1);
        let Tx::Tcp { stream, .. } = self else { return };
        let far = stream.stream.round_trip().is_ok_and(|(rtt, _)| rtt >= FAR);
        if far && let Err(e) = stream.stream.pace() {
            tracing::debug!("cannot enable TCP pacing: {e}");
        }
    }

    /// Has the kernel pace this connection at `rate` bytes a second at most.
    pub(crate) fn limit(&self, rate: u64) {
        if let Tx::Tcp { stream, .. } = self
            && let Err(e) = stream.stream.limit_rate(rate)
        {
            tracing::debug!("cannot limit the rate in the kernel: {e}");
        }
    }

    /// Sends frames in order.
    pub(crate) async fn send(&mut self, frames: Vec<Frame>) -> io::Result<()> {
        match self {
            Tx::Memory(queue) => {
                for frame in frames {
                    let weight = frame.weight();
                    queue.0.push_async(frame, weight).await.map_err(|_| closed())?;
                }
                Ok(())
            }
            Tx::Tcp { stream, msg, sealer } => {
                let mut next = msg.take().unwrap_or_default();
                match sealer {
                    None => fill(&mut next, frames),
                    Some(sealer) => fill_sealed(&mut next, frames, sealer)?,
                }
                let sending = async {
                    let (result, back) = stream.stream.send(next).await;
                    (result.map(|()| 0), back)
                };
                let (result, back) = stream.watch(sending).await;
                *msg = Some(back);
                result.map(drop)
            }
        }
    }
}

/// Builds one message from frames: all heads in one buffer, and the bodies without a
/// copy.
fn fill(msg: &mut SendMsg, frames: Vec<Frame>) {
    let mut bytes = msg.take_bytes();
    bytes.clear();
    let mut parts = Vec::with_capacity(frames.len());
    for frame in frames {
        let (head, body) = frame.encode();
        parts.push((bytes.len(), head.len(), body));
        bytes.extend_from_slice(&head);
    }
    msg.begin(bytes);
    for (start, len, body) in parts {
        msg.push_bytes(start, len);
        if let Some(body) = body {
            msg.push(body.segment());
        }
    }
}

/// Builds one encrypted message from frames.
fn fill_sealed(msg: &mut SendMsg, frames: Vec<Frame>, sealer: &mut Sealer) -> io::Result<()> {
    let mut plain = Vec::new();
    for frame in frames {
        let (head, body) = frame.encode();
        plain.extend_from_slice(&head);
        body.iter().for_each(|body| plain.extend_from_slice(body));
    }
    let sealed = sealer.seal(&plain)?;
    let len = sealed.len();
    msg.begin(sealed);
    msg.push_bytes(0, len);
    Ok(())
}

impl Rx {
    /// The first frame of a connection; with `keyed` it has to be a handshake.
    pub(crate) async fn first(&mut self, keyed: bool) -> Result<FirstFrame, LinkError> {
        match self {
            Rx::Memory(queue) => Ok(queue.0.pop_async().await.map_or(FirstFrame::Closed, FirstFrame::Frame)),
            Rx::Tcp(rx) => rx.first(keyed).await,
        }
    }

    /// The time at which data was last received, unless the link is in-process.
    pub(crate) fn last_received(&self) -> Option<LastReceived> {
        match self {
            Rx::Tcp(rx) => Some(rx.last_received.clone()),
            Rx::Memory(_) => None,
        }
    }

    /// Receives further bodies into memory of another pool.
    pub(crate) fn use_pool(&mut self, pool: BufPool) {
        if let Rx::Tcp(rx) = self {
            (rx.pool, rx.unpooled) = (pool, 0);
        }
    }

    /// Receives further bodies into memory of their own: for a side that bounds what it asks for.
    pub(crate) fn use_heap(&mut self) {
        if let Rx::Tcp(rx) = self {
            rx.unpooled = usize::MAX;
        }
    }

    /// The next frame; `None` if the other side closed the connection between two frames.
    pub(crate) async fn frame(&mut self) -> Result<Option<Frame>, LinkError> {
        match self {
            Rx::Memory(queue) => Ok(queue.0.pop_async().await),
            Rx::Tcp(rx) => rx.frame().await,
        }
    }
}

/// The beginning of a connection.
#[derive(Debug)]
pub(crate) enum FirstFrame {
    /// A frame that may begin a connection.
    Frame(Frame),
    /// A greeting in the clear where a handshake is required; its content was discarded.
    Unkeyed,
    /// The connection was closed without a frame.
    Closed,
}

impl TcpRx {
    /// The first frame: only of a kind that may begin a connection, and with `keyed` only a
    /// handshake, so that a client without the key cannot make this side allocate memory.
    async fn first(&mut self, keyed: bool) -> Result<FirstFrame, LinkError> {
        let Some(header) = self.header().await? else { return Ok(FirstFrame::Closed) };
        if !header.begins() {
            return Err(Malformed::Value("first frame").into());
        }
        if keyed && !header.secures() {
            // Closing with unread input would reset the connection and lose the refusal.
            self.skip(header.head + header.body).await?;
            return Ok(FirstFrame::Unkeyed);
        }
        Ok(FirstFrame::Frame(self.rest(header).await?))
    }

    async fn frame(&mut self) -> Result<Option<Frame>, LinkError> {
        match self.header().await? {
            Some(header) => Ok(Some(self.rest(header).await?)),
            None => Ok(None),
        }
    }

    async fn header(&mut self) -> Result<Option<Header>, LinkError> {
        let mut header = [0; HEADER_LEN];
        if !self.read(&mut header, true).await? {
            return Ok(None);
        }
        Ok(Some(Header::decode(header)?))
    }

    /// Receives and discards bytes.
    async fn skip(&mut self, len: usize) -> io::Result<()> {
        let mut piece = [0; 4096];
        let mut left = len;
        while left > 0 {
            let some = left.min(piece.len());
            self.read(&mut piece[..some], false).await?;
            left -= some;
        }
        Ok(())
    }

    async fn rest(&mut self, header: Header) -> Result<Frame, LinkError> {
        let mut head = vec![0; header.head];
        self.read(&mut head, false).await?;
        let body = if header.body == 0 { Buf::copy_of(&[]) } else { self.body(header.body).await? };
        Ok(Frame::decode(header, &head, body)?)
    }

    /// Decrypts from here on, including what the buffer holds already.
    fn secure(&mut self, mut opener: Opener) -> io::Result<()> {
        opener.feed(self.staged())?;
        self.opener = Some(opener);
        Ok(())
    }

    fn staged(&self) -> &[u8] {
        if let Some(opener) = &self.opener {
            return opener.plain();
        }
        self.msg.as_ref().and_then(|msg| msg.staged().get(self.taken..)).unwrap_or_default()
    }

    /// Copies buffered bytes to `to`; returns how many.
    fn copy(&mut self, to: &mut [u8]) -> usize {
        let staged = self.staged();
        let len = staged.len().min(to.len());
        to[..len].copy_from_slice(&staged[..len]);
        match &mut self.opener {
            Some(opener) => opener.take(len),
            None => self.taken += len,
        }
        len
    }

    /// Fills `to`; returns false if the connection was closed before the first byte and
    /// `may_end` is set.
    async fn read(&mut self, to: &mut [u8], may_end: bool) -> io::Result<bool> {
        let mut done = self.copy(to);
        while done < to.len() {
            if self.receive(None, STAGING).await?.1 == 0 {
                let ended = may_end && done == 0;
                return if ended { Ok(false) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
            done += self.copy(&mut to[done..]);
        }
        Ok(true)
    }

    /// Receives a body: buffered bytes are copied, the rest arrives in place.
    async fn body(&mut self, len: usize) -> io::Result<Buf> {
        let mut buf = if len <= self.unpooled { BufMut::zeroed(len) } else { self.pool.alloc(len).await };
        let mut done = self.copy(&mut buf);
        if self.opener.is_some() {
            self.read(&mut buf[done..], false).await?;
            return Ok(buf.freeze());
        }
        while done < len {
            let direct = Some((buf, done));
            let (back, received) = self.receive(direct, STAGING_BEHIND_BODY).await?;
            buf = back.ok_or_else(closed)?;
            if received == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            done += received.min(len - done);
        }
        Ok(buf.freeze())
    }

    async fn receive(
        &mut self,
        direct: Option<(BufMut, usize)>,
        staging: usize,
    ) -> io::Result<(Option<BufMut>, usize)> {
        let mut msg = self.msg.take().ok_or_else(closed)?;
        msg.set_staging_limit(staging);
        if let Some((buf, at)) = direct {
            let len = buf.len() - at;
            msg.set_direct(Memory::Buf(buf), at, len);
        }
        let (result, mut msg) = self.stream.watch(self.stream.stream.recv(msg)).await;
        self.taken = 0;
        let back = match msg.take_direct() {
            Some((Memory::Buf(buf), _)) => Some(buf),
            _ => None,
        };
        if let (Some(opener), Ok(1..)) = (&mut self.opener, &result) {
            opener.feed(msg.staged())?;
        }
        self.msg = Some(msg);
        self.last_received.update();
        result.map(|received| (back, received))
    }
}
