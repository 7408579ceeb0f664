//! Stream sockets of this machine (`AF_UNIX`), on the driver of an engine.
//!
//! Invariant: a socket is used through the same operations as one of TCP; what is about TCP alone is out of reach.

use super::{BACKLOG, Free, Interest, Registered, TcpStream, check};
use crate::exec::kind;
use crate::msg::{RecvMsg, SendMsg};
use crate::time::sleep;
use crate::{EngineKind, simulated};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// Pause before a listener is asked again that has too many connections to accept: it has no event for that.
const FULL: Duration = Duration::from_millis(5);

/// The process at the other end, as of the moment at which it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its user.
    pub uid: u32,
    /// Its number.
    pub pid: u32,
}

/// A listening socket.
pub struct UnixListener {
    source: Registered,
}

impl UnixListener {
    /// Brings a listener to the calling thread's engine; [`bind_unix`](super::bind_unix) makes one.
    ///
    /// # Errors
    /// The driver cannot take it.
    pub fn from_std(listener: std::os::unix::net::UnixListener) -> io::Result<UnixListener> {
        listener.set_nonblocking(true)?;
        let socket = Socket::from(OwnedFd::from(listener));
        // The standard library listens with a backlog of its own.
        socket.listen(BACKLOG)?;
        Ok(UnixListener { source: Registered::new(socket)? })
    }

    /// The next connection, not yet bound to an engine.
    ///
    /// # Errors
    /// Of accept(2); those that concern one connection only are skipped.
    pub async fn accept(&self) -> io::Result<FreeUnixStream> {
        loop {
            let socket = SockRef::from(&*self.source.fd);
            match self.source.retry(Interest::Readable, || socket.accept()).await {
                Ok((socket, _)) => return Ok(FreeUnixStream(socket)),
                // The peer closed the connection before it was accepted.
                Err(e) if e.raw_os_error() == Some(libc::ECONNABORTED) => {}
                Err(e) => return Err(e),
            }
        }
    }
}

impl fmt::Debug for UnixListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnixListener({})", self.source.raw())
    }
}

/// A connected socket that no engine has.
#[derive(Debug)]
pub struct FreeUnixStream(Socket);

impl From<std::os::unix::net::UnixStream> for FreeUnixStream {
    fn from(stream: std::os::unix::net::UnixStream) -> FreeUnixStream {
        FreeUnixStream(OwnedFd::from(stream).into())
    }
}

impl FreeUnixStream {
    /// The process at the other end.
    ///
    /// # Errors
    /// Of getsockopt(2).
    pub fn credentials(&self) -> io::Result<Credentials> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: `found` is writable and `len` its length.
        let rc = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut len,
            )
        };
        check(rc as isize)?;
        Ok(Credentials { uid: found.uid, pid: found.pid.unsigned_abs() })
    }

    /// Brings it to the calling thread's engine.
    ///
    /// # Errors
    /// The driver cannot take it.
    pub fn adopt(self) -> io::Result<UnixStream> {
        TcpStream::adopt(self.0).map(UnixStream)
    }
}

/// A connected socket. One task receives and one sends, at the same time.
pub struct UnixStream(TcpStream);

impl UnixStream {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// There is no socket, or nothing listens on it. While its listener has too many connections to accept, this
    /// waits without a deadline: see [`crate::timeout`].
    pub async fn connect(path: &Path) -> io::Result<UnixStream> {
        if kind() == EngineKind::Simulated || simulated::is_simulated() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        let address = SockAddr::unix(path)?;
        loop {
            match socket.connect(&address) {
                Ok(()) => return TcpStream::adopt(socket).map(UnixStream),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => sleep(FULL).await,
                Err(e) => return Err(e),
            }
        }
    }

    /// As [`TcpStream::recv`].
    pub async fn recv(&self, msg: RecvMsg) -> (io::Result<usize>, RecvMsg) {
        self.0.recv(msg).await
    }

    /// As [`TcpStream::send`].
    pub async fn send(&self, msg: SendMsg) -> (io::Result<()>, SendMsg) {
        self.0.send(msg).await
    }

    /// Ends one direction or both; a task that waits in it returns.
    ///
    /// # Errors
    /// The peer has disconnected already.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.0.shutdown(how)
    }

    /// Takes the socket from its engine, to be given to another one. No operation may be under way on it.
    ///
    /// # Errors
    /// No descriptor is left for the copy.
    pub fn into_free(self) -> io::Result<FreeUnixStream> {
        match self.0.end {
            Free::Kernel(source) => Ok(FreeUnixStream(source.fd.try_clone()?.into())),
            Free::Simulated(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl fmt::Debug for UnixStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnixStream({:?})", self.0.socket().map(|socket| socket.as_raw_fd()).ok())
    }
}
