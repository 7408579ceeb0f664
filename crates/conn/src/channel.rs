//! What a connection runs on: a socket of TCP or a stream of another transport, plain or with TLS.
//!
//! Invariants:
//! - a channel that was made with TLS sends and receives nothing in the clear;
//! - a session is never borrowed across an await;
//! - operations of TCP, which has most connections, go through no interface and allocate nothing.

use crate::transport::{FreeStream, Stream};
use longhaul_engine::net::{self, Life, SocketOptions, TcpInfo, TcpStream};
use longhaul_engine::{Memory, RecvMsg, SendMsg};
use std::io;
use std::net::Shutdown;
use std::time::Duration;

#[cfg(feature = "tls")]
use crate::secure::{Detached, Secure};
#[cfg(feature = "tls")]
use longhaul_tls::{Destination, TlsError};
#[cfg(feature = "tls")]
use std::cell::RefCell;

/// Why a build without the feature `tls` refuses what asks for TLS.
pub const TLS_MISSING: &str =
    "this program was built without TLS: 'cargo build --release --features tls' makes one with it";

/// Both directions of a connection, plain or with TLS.
#[derive(Debug)]
pub struct Channel {
    socket: Socket,
    #[cfg(feature = "tls")]
    secure: Option<Box<RefCell<Secure>>>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Own(Box<dyn Stream>),
}

impl From<Socket> for Channel {
    fn from(socket: Socket) -> Channel {
        Channel {
            socket,
            #[cfg(feature = "tls")]
            secure: None,
        }
    }
}

impl From<TcpStream> for Channel {
    fn from(socket: TcpStream) -> Channel {
        Socket::Tcp(socket).into()
    }
}

impl From<Box<dyn Stream>> for Channel {
    fn from(stream: Box<dyn Stream>) -> Channel {
        Socket::Own(stream).into()
    }
}

fn not_tcp() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the connection is not one of TCP")
}

impl Channel {
    /// With a session whose handshake was done on it, by [`connect`](crate::connect) or [`accept`](crate::accept).
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_session(self, session: Detached) -> Channel {
        Channel { socket: self.socket, secure: Some(Box::new(RefCell::new(session.into()))) }
    }

    /// The socket, if it is one of TCP, for what is about that alone.
    ///
    /// # Errors
    /// It is a stream of another transport.
    pub fn tcp(&self) -> io::Result<&TcpStream> {
        match &self.socket {
            Socket::Tcp(socket) => Ok(socket),
            Socket::Own(_) => Err(not_tcp()),
        }
    }

    /// What the kernel knows of a connection of TCP.
    ///
    /// # Errors
    /// Of getsockopt(2), or it is not one of TCP.
    pub fn info(&self) -> io::Result<TcpInfo> {
        self.tcp()?.info()
    }

    /// What TCP knows of the other end.
    ///
    /// # Errors
    /// As for [`info`](Self::info).
    pub fn life(&self) -> io::Result<Life> {
        self.tcp()?.life()
    }

    /// Smoothed round trip and its variation, as far as the transport knows them.
    pub fn round_trip(&self) -> Option<(Duration, Duration)> {
        match &self.socket {
            Socket::Tcp(socket) => socket.round_trip().ok(),
            Socket::Own(stream) => stream.round_trip().map(|smoothed| (smoothed, Duration::ZERO)),
        }
    }

    /// Ends one direction or both; a task that waits in it returns.
    ///
    /// # Errors
    /// The peer has disconnected already.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match &self.socket {
            Socket::Tcp(socket) => socket.shutdown(how),
            Socket::Own(stream) => stream.shutdown(how),
        }
    }

    /// Ends both directions at once; tasks that wait in it return. What was not sent yet may be discarded.
    pub fn abandon(&self) {
        match &self.socket {
            Socket::Tcp(socket) => socket.abandon(),
            Socket::Own(stream) => stream.abandon(),
        }
    }

    /// Whether what is sent is encrypted.
    pub fn is_secure(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.secure.is_some();
        #[cfg(not(feature = "tls"))]
        false
    }
}

impl Channel {
    /// Sends bytes, for what comes before there is a [`Shared`](crate::Shared).
    ///
    /// # Errors
    /// The socket fails.
    pub async fn send_bytes(&self, bytes: Vec<u8>) -> io::Result<()> {
        #[cfg(feature = "tls")]
        let bytes = match &self.secure {
            Some(secure) => {
                let mut secure = secure.borrow_mut();
                secure.seal(&bytes)?;
                secure.take_sealed()
            }
            None => bytes,
        };
        self.send(message(bytes)).await.0
    }

    /// Receives some bytes, at most `most`; none at the end of what the peer sends.
    ///
    /// # Errors
    /// The socket fails, a record was changed, or TLS was cut.
    pub async fn receive_bytes(&self, most: usize) -> io::Result<Vec<u8>> {
        let mut incoming = Incoming::new(most, self);
        incoming.set_staging_limit(most);
        incoming.receive(self).await?;
        Ok(incoming.staged().to_vec())
    }

    /// Takes it from its engine, to be given to another one. No operation may be under way on it.
    ///
    /// # Errors
    /// No descriptor is left for the copy.
    pub fn into_free(self) -> io::Result<FreeChannel> {
        Ok(FreeChannel {
            socket: match self.socket {
                Socket::Tcp(socket) => FreeSocket::Tcp(socket.into_free()?),
                Socket::Own(stream) => FreeSocket::Own(stream.into_free()?),
            },
            #[cfg(feature = "tls")]
            session: self.secure.map(|secure| secure.into_inner().into()),
        })
    }
}

/// A message of these bytes, ready for the wire.
pub(crate) fn message(bytes: Vec<u8>) -> SendMsg {
    let (mut msg, len) = (SendMsg::new(), bytes.len());
    msg.begin(bytes);
    msg.push_bytes(0, len);
    msg
}

/// A channel on its way between threads.
#[derive(Debug)]
pub struct FreeChannel {
    socket: FreeSocket,
    #[cfg(feature = "tls")]
    session: Option<Detached>,
}

#[derive(Debug)]
enum FreeSocket {
    Tcp(net::FreeStream),
    Own(FreeStream),
}

impl FreeChannel {
    /// Brings it to the calling thread's engine.
    ///
    /// # Errors
    /// The driver cannot take it.
    pub fn adopt(self) -> io::Result<Channel> {
        let socket = match self.socket {
            FreeSocket::Tcp(socket) => Socket::Tcp(TcpStream::from_std(socket, &SocketOptions::default())?),
            FreeSocket::Own(stream) => Socket::Own(stream.adopt()?),
        };
        let channel = Channel::from(socket);
        #[cfg(feature = "tls")]
        if let Some(session) = self.session {
            return Ok(channel.with_session(session));
        }
        Ok(channel)
    }
}

impl Channel {
    /// The session, if there is one.
    #[cfg(feature = "tls")]
    pub(crate) fn session(&self) -> Option<&RefCell<Secure>> {
        self.secure.as_deref()
    }

    /// Receives what there is, without TLS; 0 at the end of what the peer sends.
    pub(crate) async fn recv(&self, msg: RecvMsg) -> (io::Result<usize>, RecvMsg) {
        match &self.socket {
            Socket::Tcp(socket) => socket.recv(msg).await,
            Socket::Own(stream) => stream.recv(msg).await,
        }
    }

    /// Sends a whole message that is ready for the wire.
    pub(crate) async fn send(&self, mut msg: SendMsg) -> (io::Result<()>, SendMsg) {
        let stream = match &self.socket {
            Socket::Tcp(socket) => return socket.send(msg).await,
            Socket::Own(stream) => stream,
        };
        let mut left = msg.remaining();
        while left > 0 {
            let (result, back) = stream.send(msg).await;
            msg = back;
            if let Err(e) = result {
                return (Err(e), msg);
            }
            let before = std::mem::replace(&mut left, msg.remaining());
            // A transport that breaks its contract must not keep the thread busy for ever.
            if left >= before {
                return (Err(io::ErrorKind::WriteZero.into()), msg);
            }
        }
        (Ok(()), msg)
    }
}

/// What a receive brings: payload in its own memory, and the bytes behind it in a staging area. As a
/// [`RecvMsg`], and with TLS decrypted.
pub(crate) struct Incoming {
    msg: RecvMsg,
    #[cfg(feature = "tls")]
    opened: Opened,
}

/// The same of decrypted bytes.
#[cfg(feature = "tls")]
#[derive(Default)]
struct Opened {
    is_used: bool,
    direct: Option<(Memory, usize, usize)>,
    placed: usize,
    staging: Vec<u8>,
    staged: usize,
    limit: usize,
}

impl Incoming {
    /// With a staging area of `len` bytes.
    pub(crate) fn new(len: usize, channel: &Channel) -> Incoming {
        #[cfg(feature = "tls")]
        if channel.is_secure() {
            let opened = Opened { is_used: true, staging: vec![0; len], limit: len, ..Opened::default() };
            return Incoming { msg: RecvMsg::new(0), opened };
        }
        let _ = channel;
        Incoming {
            msg: RecvMsg::new(len),
            #[cfg(feature = "tls")]
            opened: Opened::default(),
        }
    }

    pub(crate) fn staged(&self) -> &[u8] {
        #[cfg(feature = "tls")]
        if self.opened.is_used {
            return &self.opened.staging[..self.opened.staged];
        }
        self.msg.staged()
    }

    pub(crate) fn staging_len(&self) -> usize {
        #[cfg(feature = "tls")]
        if self.opened.is_used {
            return self.opened.staging.len();
        }
        self.msg.staging_len()
    }

    /// Makes the staging area `len` bytes long. Staged bytes are lost.
    pub(crate) fn resize_staging(&mut self, len: usize) {
        #[cfg(feature = "tls")]
        if self.opened.is_used {
            self.opened.staging = vec![0; len];
            (self.opened.staged, self.opened.limit) = (0, len);
            return;
        }
        self.msg.resize_staging(len);
    }

    pub(crate) fn set_staging_limit(&mut self, limit: usize) {
        #[cfg(feature = "tls")]
        if self.opened.is_used {
            self.opened.limit = limit.min(self.opened.staging.len());
            return;
        }
        self.msg.set_staging_limit(limit);
    }

    pub(crate) fn set_direct(&mut self, memory: Memory, offset: usize, len: usize) {
        #[cfg(feature = "tls")]
        if self.opened.is_used {
            self.opened.direct = Some((memory, offset, len));
            return;
        }
        self.msg.set_direct(memory, offset, len);
    }

    pub(crate) fn take_direct(&mut self) -> Option<(Memory, usize)> {
        #[cfg(feature = "tls")]
        if self.opened.is_used {
            let placed = self.opened.placed;
            return self.opened.direct.take().map(|(memory, _, _)| (memory, placed));
        }
        self.msg.take_direct()
    }

    /// Receives: how many bytes, and 0 at the end of what the peer sends. With TLS the peer has to say that it is
    /// the end.
    pub(crate) async fn receive(&mut self, channel: &Channel) -> io::Result<usize> {
        #[cfg(feature = "tls")]
        if let Some(secure) = channel.session() {
            // In memory of its own: each plain connection would keep room for it.
            return Box::pin(self.receive_secure(channel, secure)).await;
        }
        let msg = std::mem::replace(&mut self.msg, RecvMsg::new(0));
        let (result, msg) = channel.recv(msg).await;
        self.msg = msg;
        result
    }

    #[cfg(feature = "tls")]
    async fn receive_secure(&mut self, channel: &Channel, secure: &RefCell<Secure>) -> io::Result<usize> {
        let Opened { direct, placed, staging, staged, limit, .. } = &mut self.opened;
        (*placed, *staged) = (0, 0);
        loop {
            let mut ended = false;
            {
                let mut secure = secure.borrow_mut();
                let mut is_full = true;
                if let Some((memory, offset, len)) = direct {
                    match secure.open(Destination::Memory(memory, *offset, *len))? {
                        Some(n) => *placed = n,
                        None => ended = true,
                    }
                    is_full = *placed == *len;
                }
                if is_full && *limit > 0 && !ended {
                    match secure.open(Destination::Bytes(&mut staging[..*limit]))? {
                        Some(n) => *staged = n,
                        None => ended = true,
                    }
                }
            }
            if ended || *placed + *staged > 0 {
                return Ok(*placed + *staged);
            }
            let msg = secure.borrow_mut().begin_receive();
            let (result, msg) = channel.recv(msg).await;
            secure.borrow_mut().end_receive(msg);
            // RFC 8446 §6.1: without close_notify, what was received may not be all that the peer has sent
            if result? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, TlsError::Cut));
            }
        }
    }
}
