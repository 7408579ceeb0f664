//! Frames over a connection, or within the process.
//!
//! Invariants: bytes are taken in the order in which they came; nothing is
//! received beyond a frame whose header is not within the limits.

use crate::queue::Queue;
use crate::seal::{Handshake, Key, Opener, Sealer};
use crate::silence::Pulse;
use crate::wire::{Frame, HEADER_LEN, Header, Malformed, Refusal};
use longhaul_engine::net::{Life, TcpStream};
use longhaul_engine::{Buf, BufMut, BufPool, Memory, RecvMsg, SendMsg, timeout};
use std::cell::Cell;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Staging area of a connection: room for a few small frames.
const STAGING: usize = 64 << 10;
/// Staging behind a body, so that the next header comes with it and hardly any
/// data has to be copied.
const STAGING_BEHIND_BODY: usize = 256;
/// How long what was sent may go unanswered before the connection is lost.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);
/// How often in that time the kernel asks an idle other side whether it is there,
/// and this program asks the kernel what it has heard.
const LOOKS: u32 = 6;
/// What is under way between two ends within the process, in bytes.
const MEMORY_LINK: usize = 8 << 20;

/// Why a connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The socket failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// What came is no frame.
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
    Tcp { stream: Rc<Watched>, msg: Option<SendMsg>, sealer: Option<Sealer> },
    Memory(Closing),
}

/// The end that receives.
pub(crate) enum Rx {
    Tcp(Box<TcpRx>),
    Memory(Closing),
}

/// An end of a queue; the queue is of no use without it.
pub(crate) struct Closing(Arc<Queue<Frame>>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A connection that is given up when the other side does not answer any more.
///
/// TCP's own patience is about 15 minutes (tcp(7), `tcp_retries2`), and its
/// keep-alive does not run while something waits for an acknowledgement. Its
/// `TCP_USER_TIMEOUT` would also end a connection whose other side answers, but
/// takes nothing for as long, since its disk is busy. So the kernel is asked what it
/// has heard: acknowledgements count, those of a closed window too.
pub(crate) struct Watched {
    stream: Rc<TcpStream>,
    silence: Duration,
    /// Whoever still uses it hears why it has ended.
    given_up: Cell<bool>,
}

impl Watched {
    /// Does something with the connection, and gives it up if that takes too long and
    /// nothing is heard meanwhile.
    async fn watch<T>(&self, work: impl Future<Output = (io::Result<usize>, T)>) -> (io::Result<usize>, T) {
        let mut work = pin!(work);
        let mut before = false;
        loop {
            match timeout(self.silence / LOOKS, work.as_mut()).await {
                Ok((_, rest)) if self.given_up.get() => {
                    let silence = self.silence.as_secs();
                    let message = format!("nothing has come from the other side for {silence} s");
                    return (Err(io::Error::new(io::ErrorKind::TimedOut, message)), rest);
                }
                Ok(done) => return done,
                Err(_) => {}
            }
            let silent = self.is_silent();
            // Twice, since an answer to what was just sent may be on its way.
            if silent && before {
                self.given_up.set(true);
                // What is under way ends by that.
                self.stream.abandon();
            }
            before = silent;
        }
    }

    /// Whether something waits for an answer, and none has come for too long.
    fn is_silent(&self) -> bool {
        let waits = |life: &Life| life.unacked > 0 || life.probes > 0;
        self.stream.life().is_ok_and(|life| waits(&life) && life.last_ack >= self.silence)
    }
}

pub(crate) struct TcpRx {
    stream: Rc<Watched>,
    /// Memory for bodies of more than `unpooled` bytes.
    pool: BufPool,
    unpooled: usize,
    msg: Option<RecvMsg>,
    /// Staged bytes that were taken.
    taken: usize,
    opener: Option<Opener>,
    pulse: Pulse,
}

impl Link {
    /// Over a connection; bodies are received into memory of `pool`.
    pub(crate) fn tcp(stream: TcpStream, pool: BufPool) -> Link {
        Link::tcp_with(stream, pool, SILENCE)
    }

    /// As [`tcp`](Self::tcp), with another time without an answer.
    pub(crate) fn tcp_with(stream: TcpStream, pool: BufPool, silence: Duration) -> Link {
        // Without it, whoever waits for a machine that is gone waits for ever.
        let often = (silence / LOOKS).max(Duration::from_secs(1));
        if let Err(e) = stream.keep_alive(often, LOOKS - 1) {
            tracing::debug!("no keep-alive: {e}");
        }
        let stream = Rc::new(Watched { stream: Rc::new(stream), silence, given_up: Cell::new(false) });
        let rx = TcpRx {
            stream: Rc::clone(&stream),
            pool,
            unpooled: 0,
            msg: Some(RecvMsg::new(STAGING)),
            taken: 0,
            opener: None,
            pulse: Pulse::new(),
        };
        Link { tx: Tx::Tcp { stream, msg: Some(SendMsg::new()), sealer: None }, rx: Rx::Tcp(Box::new(rx)) }
    }

    /// From whoever connects: until its end gets [another](Rx::use_pool), `lobby` is
    /// for what is long alone, so that who is slow with that keeps only such waiting.
    pub(crate) fn incoming(stream: TcpStream, lobby: BufPool) -> Link {
        let mut link = Link::tcp(stream, lobby);
        if let Rx::Tcp(rx) = &mut link.rx {
            rx.unpooled = STAGING;
        }
        link
    }

    /// Two ends within the process.
    pub(crate) fn pair() -> (Link, Link) {
        let one = || Arc::new(Queue::new(MEMORY_LINK));
        let (there, back) = (one(), one());
        let link = |tx: &Arc<Queue<Frame>>, rx: &Arc<Queue<Frame>>| Link {
            tx: Tx::Memory(Closing(Arc::clone(tx))),
            rx: Rx::Memory(Closing(Arc::clone(rx))),
        };
        (link(&there, &back), link(&back, &there))
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the other side has gone")
}

impl Link {
    /// Encrypts from here on, for who connects.
    ///
    /// # Errors
    /// The other side has another key, none, or is no agent.
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

    /// Encrypts from here on, for who is connected to and got `message`.
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

    /// Lets the kernel spread what is sent over the round trip, where that is long: a
    /// window at once overflows the queue of a router that is smaller than the window.
    pub(crate) fn pace(&self) {
        const FAR: Duration = Duration::from_millis(1);
        let Tx::Tcp { stream, .. } = self else { return };
        let far = stream.stream.round_trip().is_ok_and(|(rtt, _)| rtt >= FAR);
        if far && let Err(e) = stream.stream.pace() {
            tracing::debug!("the kernel does not pace: {e}");
        }
    }

    /// Lets the kernel spread what is sent, so that no more than this many bytes
    /// a second leave on this connection.
    pub(crate) fn limit(&self, rate: u64) {
        if let Tx::Tcp { stream, .. } = self
            && let Err(e) = stream.stream.limit_rate(rate)
        {
            tracing::debug!("the kernel does not limit the rate: {e}");
        }
    }

    /// Sends frames, in order.
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

/// Makes one message of frames: all heads in one vector of bytes, and the bodies
/// where they are.
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

/// Makes one message of frames, encrypted.
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
    /// The first frame from whoever connects; with `keyed` it has to be a handshake.
    pub(crate) async fn first(&mut self, keyed: bool) -> Result<First, LinkError> {
        match self {
            Rx::Memory(queue) => Ok(queue.0.pop_async().await.map_or(First::Nothing, First::Frame)),
            Rx::Tcp(rx) => rx.first(keyed).await,
        }
    }

    /// When something last came, if this is a connection.
    pub(crate) fn pulse(&self) -> Option<Pulse> {
        match self {
            Rx::Tcp(rx) => Some(rx.pulse.clone()),
            Rx::Memory(_) => None,
        }
    }

    /// Receives bodies into memory of another pool from here on.
    pub(crate) fn use_pool(&mut self, pool: BufPool) {
        if let Rx::Tcp(rx) = self {
            (rx.pool, rx.unpooled) = (pool, 0);
        }
    }

    /// The next frame; none when the other side has ended between two.
    pub(crate) async fn frame(&mut self) -> Result<Option<Frame>, LinkError> {
        match self {
            Rx::Memory(queue) => Ok(queue.0.pop_async().await),
            Rx::Tcp(rx) => rx.frame().await,
        }
    }
}

/// How a connection begins.
#[derive(Debug)]
pub(crate) enum First {
    /// With this frame.
    Frame(Frame),
    /// With one that says what is wanted where a handshake was to come. It was not
    /// looked into.
    Unkeyed,
    /// It ended.
    Nothing,
}

impl TcpRx {
    /// The first frame: none but those that a connection may begin with, and with
    /// `keyed` no more than a handshake, whatever whoever connects claims to send.
    async fn first(&mut self, keyed: bool) -> Result<First, LinkError> {
        let Some(header) = self.header().await? else { return Ok(First::Nothing) };
        if !header.begins() {
            return Err(Malformed::Value("first frame").into());
        }
        if keyed && !header.secures() {
            // What was not received when this end closes would take the refusal with it.
            self.skip(header.head + header.body).await?;
            return Ok(First::Unkeyed);
        }
        Ok(First::Frame(self.rest(header).await?))
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

    /// Receives bytes and forgets them.
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

    /// Everything that was not taken yet is encrypted.
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

    /// Fills `to` from what is staged; how many bytes that was.
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

    /// Reads small parts; false if the connection ended before the first byte
    /// and `may_end`.
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

    /// Reads a body: what is staged is copied, the rest is received in place.
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
        self.pulse.beat();
        result.map(|received| (back, received))
    }
}
