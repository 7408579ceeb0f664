//! What a connection runs on: a socket, plain or with TLS.
//!
//! Invariants:
//! - a channel that was made with TLS sends and receives nothing in the clear;
//! - a session is never borrowed across an await.

use longhaul_engine::net::{FreeStream, SocketOptions, TcpStream};
use longhaul_engine::{Memory, RecvMsg, SendMsg};
use std::io;

#[cfg(feature = "tls")]
use crate::secure::{Detached, Secure};
#[cfg(feature = "tls")]
use longhaul_tls::{Destination, TlsError};
#[cfg(feature = "tls")]
use std::cell::RefCell;

/// Why a build without the feature `tls` refuses what asks for TLS.
pub const TLS_MISSING: &str =
    "this program was built without TLS: 'cargo build --release --features tls' makes one with it";

/// A socket, plain or with TLS.
#[derive(Debug)]
pub struct Channel {
    socket: TcpStream,
    #[cfg(feature = "tls")]
    secure: Option<Box<RefCell<Secure>>>,
}

impl From<TcpStream> for Channel {
    fn from(socket: TcpStream) -> Channel {
        Channel {
            socket,
            #[cfg(feature = "tls")]
            secure: None,
        }
    }
}

impl Channel {
    /// With a session whose handshake is done, on this or another thread.
    #[cfg(feature = "tls")]
    pub fn with_session(socket: TcpStream, session: Detached) -> Channel {
        Channel { socket, secure: Some(Box::new(RefCell::new(session.into()))) }
    }

    /// The socket, for what is not about its bytes.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// The socket alone, of a channel without TLS.
    pub fn into_socket(self) -> TcpStream {
        self.socket
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
            socket: self.socket.into_free()?,
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
    socket: FreeStream,
    #[cfg(feature = "tls")]
    session: Option<Detached>,
}

impl FreeChannel {
    /// Brings it to the calling thread's engine.
    ///
    /// # Errors
    /// The driver cannot take it.
    pub fn adopt(self) -> io::Result<Channel> {
        let socket = TcpStream::from_std(self.socket, &SocketOptions::default())?;
        #[cfg(feature = "tls")]
        if let Some(session) = self.session {
            return Ok(Channel::with_session(socket, session));
        }
        Ok(socket.into())
    }
}

impl Channel {
    /// The session, if there is one.
    #[cfg(feature = "tls")]
    pub(crate) fn session(&self) -> Option<&RefCell<Secure>> {
        self.secure.as_deref()
    }

    /// Receives and forgets what comes; 0 at the end of what the peer sends.
    pub(crate) async fn discard(&self, msg: RecvMsg) -> (io::Result<usize>, RecvMsg) {
        self.socket.recv(msg).await
    }

    /// Sends a message that is ready for the wire.
    pub(crate) async fn send(&self, msg: SendMsg) -> (io::Result<()>, SendMsg) {
        self.socket.send(msg).await
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
        let (result, msg) = channel.socket.recv(msg).await;
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
            let (result, msg) = channel.socket.recv(msg).await;
            secure.borrow_mut().end_receive(msg);
            // RFC 8446 §6.1: without close_notify, what was received may not be all that the peer has sent
            if result? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, TlsError::Cut));
            }
        }
    }
}
