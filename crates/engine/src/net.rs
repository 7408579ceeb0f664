//! Stream sockets.

mod info;
mod life;
mod local;
mod unix;

pub use info::TcpInfo;
pub use life::Life;
pub use local::{bind_unix, connections};
pub use unix::{Credentials, FreeUnixStream, UnixListener, UnixStream};

use crate::driver::{Driver, Interest, op};
use crate::exec::{try_with_core, turn, with_core};
use crate::msg::{RecvMsg, SendMsg};
use crate::simulated::{self, Listening, Wire};
use io_uring::{opcode, types};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections waiting to be accepted: a thousand hosts may come at once.
const BACKLOG: i32 = 4096;
/// How long an address may be still in use at first: the kernel closes the sockets of a killed
/// program a moment after its process has ended.
const PREDECESSOR: Duration = Duration::from_secs(2);
const LISTEN_AGAIN: Duration = Duration::from_millis(20);

/// Settings of a TCP socket. Buffer sizes are not among them: an explicit
/// size would freeze the kernel's autotuning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// Congestion control by the kernel's name, or its default.
    pub congestion: Option<String>,
}

impl SocketOptions {
    fn apply(&self, socket: &Socket) -> io::Result<()> {
        socket.set_tcp_nodelay(true)?;
        self.congestion.as_ref().map_or(Ok(()), |name| set_congestion(&SockRef::from(socket), name))
    }
}

fn set_congestion(socket: &SockRef<'_>, name: &str) -> io::Result<()> {
    socket.set_tcp_congestion(name.as_bytes()).map_err(|e| {
        let why = match e.raw_os_error() {
            Some(libc::ENOENT) => {
                "the kernel has none of that name (net.ipv4.tcp_available_congestion_control)".into()
            }
            Some(libc::EPERM) => "it takes root (net.ipv4.tcp_allowed_congestion_control)".into(),
            _ => e.to_string(),
        };
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("congestion control '{name}' cannot be used: {why}"),
        )
    })
}

/// A descriptor known to the engine's driver.
///
/// On io_uring each operation shares the descriptor, so that its number stays
/// taken until the kernel is done with it: see [`op`].
struct Registered {
    fd: Rc<OwnedFd>,
    /// Its place in the epoll driver; none on io_uring.
    key: Option<usize>,
}

impl Registered {
    /// Makes the descriptor (blocking or not, as the driver wants it) known.
    fn new(socket: Socket) -> io::Result<Registered> {
        let fd = Rc::new(OwnedFd::from(socket));
        let key = with_core(|core| match &mut *core.driver.borrow_mut() {
            Driver::Uring(_) => Ok(None),
            Driver::Epoll(epoll) => epoll.register(fd.as_raw_fd()).map(Some),
            Driver::Simulated => Err(io::ErrorKind::Unsupported.into()),
        })?;
        Ok(Registered { fd, key })
    }

    fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Waits until the descriptor may be ready.
    async fn ready(&self, interest: Interest) -> io::Result<()> {
        let Some(key) = self.key else {
            let events = match interest {
                Interest::Readable => libc::POLLIN,
                Interest::Writable => libc::POLLOUT,
            };
            let entry = opcode::PollAdd::new(types::Fd(self.raw()), events as u32).build();
            // SAFETY: no memory involved; the operation keeps the descriptor open.
            return unsafe { op(entry, Rc::clone(&self.fd)) }.await.0.map(drop);
        };
        poll_fn(|cx| {
            with_core(|core| match &mut *core.driver.borrow_mut() {
                Driver::Epoll(epoll) => epoll.poll_ready(key, interest, cx),
                _ => unreachable!("a source stays with its engine"),
            })
        })
        .await;
        Ok(())
    }

    /// Repeats a system call that does not block until it has an answer.
    async fn retry<T>(&self, interest: Interest, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        turn().await;
        loop {
            match call() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if let Some(key) = self.key {
                        with_core(|core| {
                            if let Driver::Epoll(epoll) = &mut *core.driver.borrow_mut() {
                                epoll.clear_ready(key, interest);
                            }
                        });
                    }
                    self.ready(interest).await?;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            try_with_core(|core| {
                if let Driver::Epoll(epoll) = &mut *core.driver.borrow_mut() {
                    epoll.deregister(key, self.fd.as_raw_fd());
                }
            });
        }
    }
}

fn check(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// A listening socket that no engine has.
#[derive(Debug)]
pub struct FreeListener(Free<std::net::TcpListener, dyn Listening>);

/// A connected socket that no engine has.
#[derive(Debug)]
pub struct FreeStream(Free<std::net::TcpStream, dyn Wire>);

/// A socket of the kernel, or of a simulated network.
enum Free<K, S: ?Sized> {
    Kernel(K),
    Simulated(Arc<S>),
}

impl<K: fmt::Debug, S: ?Sized> fmt::Debug for Free<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Free::Kernel(socket) => socket.fmt(f),
            Free::Simulated(_) => f.write_str("a simulated socket"),
        }
    }
}

impl From<std::net::TcpListener> for FreeListener {
    fn from(listener: std::net::TcpListener) -> FreeListener {
        FreeListener(Free::Kernel(listener))
    }
}

impl From<std::net::TcpStream> for FreeStream {
    fn from(stream: std::net::TcpStream) -> FreeStream {
        FreeStream(Free::Kernel(stream))
    }
}

impl FreeListener {
    /// The address that it listens on.
    ///
    /// # Errors
    /// Of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.0 {
            Free::Kernel(listener) => listener.local_addr(),
            Free::Simulated(listener) => Ok(listener.local_addr()),
        }
    }
}

/// A listening socket.
pub struct TcpListener {
    end: Free<Registered, dyn Listening>,
}

impl TcpListener {
    /// Listens on `addr` (port 0: any free one).
    ///
    /// # Errors
    /// The address is in use or not of this machine.
    pub fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
        TcpListener::from_std(TcpListener::bind_std(addr)?)
    }

    /// Listens without an engine, to be handed to one with [`from_std`](Self::from_std).
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_std(addr: SocketAddr) -> io::Result<std::net::TcpListener> {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.bind(&addr.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    }

    /// Listens as [`bind_std`](Self::bind_std) does, once a predecessor that was
    /// killed has left the address: for a service that is started again.
    ///
    /// # Errors
    /// As [`bind`](Self::bind); the address is in use for two seconds.
    pub fn bind_after(addr: SocketAddr) -> io::Result<std::net::TcpListener> {
        let until = Instant::now() + PREDECESSOR;
        loop {
            match TcpListener::bind_std(addr) {
                Err(e) if e.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                    std::thread::sleep(LISTEN_AGAIN);
                }
                bound => return bound,
            }
        }
    }

    /// Listens as [`bind_after`](Self::bind_after) does, or on the network of a
    /// simulation.
    ///
    /// # Errors
    /// As there.
    pub fn bind_free(addr: SocketAddr) -> io::Result<FreeListener> {
        match simulated::listen(addr) {
            Some(listener) => Ok(FreeListener(Free::Simulated(listener?))),
            None => TcpListener::bind_after(addr).map(FreeListener::from),
        }
    }

    /// Brings a listener to the calling thread's engine.
    ///
    /// # Errors
    /// The driver cannot take it.
    pub fn from_std(listener: impl Into<FreeListener>) -> io::Result<TcpListener> {
        let end = match listener.into().0 {
            Free::Kernel(listener) => {
                listener.set_nonblocking(true)?;
                Free::Kernel(Registered::new(listener.into())?)
            }
            Free::Simulated(listener) => Free::Simulated(listener),
        };
        Ok(TcpListener { end })
    }

    /// The next connection, not yet bound to an engine: [`TcpStream::from_std`]
    /// does that on the thread that is to serve it.
    ///
    /// # Errors
    /// Of accept(2); those that concern one connection only are skipped.
    pub async fn accept(&self) -> io::Result<(FreeStream, SocketAddr)> {
        let source = match &self.end {
            Free::Kernel(source) => source,
            Free::Simulated(listener) => {
                let (wire, peer) = poll_fn(|cx| listener.poll_accept(cx)).await?;
                return Ok((FreeStream(Free::Simulated(wire)), peer));
            }
        };
        loop {
            let socket = SockRef::from(&*source.fd);
            match source.retry(Interest::Readable, || socket.accept()).await {
                Ok((socket, addr)) => {
                    let addr = addr.as_socket().ok_or_else(|| io::Error::other("not an IP peer"))?;
                    return Ok((std::net::TcpStream::from(socket).into(), addr));
                }
                // The peer closed the connection before it was accepted.
                Err(e) if matches!(e.raw_os_error(), Some(libc::ECONNABORTED | libc::EPROTO)) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// Of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.end {
            Free::Kernel(source) => local_addr(&source.fd),
            Free::Simulated(listener) => Ok(listener.local_addr()),
        }
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpListener({:?})", self.local_addr().ok())
    }
}

fn local_addr(fd: &OwnedFd) -> io::Result<SocketAddr> {
    SockRef::from(fd).local_addr()?.as_socket().ok_or_else(|| io::Error::other("not an IP socket"))
}

/// A connected socket. One task receives and one sends, at the same time.
pub struct TcpStream {
    end: Free<Registered, dyn Wire>,
}

impl TcpStream {
    /// Connects to `addr`. Nothing else on the thread waits for it.
    ///
    /// # Errors
    /// The peer refuses or cannot be reached. There is no deadline but the
    /// kernel's: see [`crate::timeout`].
    pub async fn connect(addr: SocketAddr, options: &SocketOptions) -> io::Result<TcpStream> {
        if let Some(wire) = simulated::connect(addr).await {
            return Ok(TcpStream { end: Free::Simulated(wire?) });
        }
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
        options.apply(&socket)?;
        socket.set_nonblocking(true)?;
        match socket.connect(&addr.into()) {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => {
                let source = Registered::new(socket.try_clone()?)?;
                loop {
                    source.ready(Interest::Writable).await?;
                    if let Some(e) = socket.take_error()? {
                        return Err(e);
                    }
                    if socket.peer_addr().is_ok() {
                        break;
                    }
                    if let Some(key) = source.key {
                        with_core(|core| {
                            if let Driver::Epoll(epoll) = &mut *core.driver.borrow_mut() {
                                epoll.clear_ready(key, Interest::Writable);
                            }
                        });
                    }
                }
            }
            Err(e) => return Err(e),
        }
        TcpStream::adopt(socket)
    }

    /// Brings a connected socket to the calling thread's engine.
    ///
    /// # Errors
    /// The options cannot be set, or the driver cannot take it.
    pub fn from_std(stream: impl Into<FreeStream>, options: &SocketOptions) -> io::Result<TcpStream> {
        let socket = match stream.into().0 {
            Free::Kernel(stream) => Socket::from(stream),
            Free::Simulated(wire) => return Ok(TcpStream { end: Free::Simulated(wire) }),
        };
        options.apply(&socket)?;
        TcpStream::adopt(socket)
    }

    fn adopt(socket: Socket) -> io::Result<TcpStream> {
        // io_uring takes O_NONBLOCK as a wish not to wait for data.
        socket.set_nonblocking(crate::exec::kind() == crate::EngineKind::Epoll)?;
        Ok(TcpStream { end: Free::Kernel(Registered::new(socket)?) })
    }

    /// The kernel's socket.
    fn socket(&self) -> io::Result<SockRef<'_>> {
        match &self.end {
            Free::Kernel(source) => Ok(SockRef::from(&*source.fd)),
            Free::Simulated(_) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "not on a simulated network"))
            }
        }
    }

    /// Takes the socket from its engine, to be given to another one. No
    /// operation may be under way on it.
    ///
    /// # Errors
    /// No descriptor is left for the copy.
    pub fn into_free(self) -> io::Result<FreeStream> {
        match self.end {
            Free::Kernel(source) => Ok(std::net::TcpStream::from(source.fd.try_clone()?).into()),
            Free::Simulated(wire) => Ok(FreeStream(Free::Simulated(wire))),
        }
    }

    /// Receives what there is, at least a byte: first into the payload's
    /// memory, then into the staging area. Zero bytes mean that the peer has
    /// closed its side.
    pub async fn recv(&self, mut msg: RecvMsg) -> (io::Result<usize>, RecvMsg) {
        let source = match &self.end {
            Free::Kernel(source) => source,
            Free::Simulated(wire) => return simulated::recv(&**wire, msg).await,
        };
        let fd = types::Fd(source.raw());
        let iov = msg.0.prepare();
        let result = if source.key.is_none() {
            let entry = match *iov {
                [one] => opcode::Recv::new(fd, one.iov_base.cast(), one.iov_len as u32).build(),
                _ => opcode::RecvMsg::new(fd, &raw mut msg.0.header).build(),
            };
            // SAFETY: the message owns its memory, and is boxed; the operation
            // keeps the descriptor open.
            let (result, (inner, _)) = unsafe { op(entry, (msg.0, Rc::clone(&source.fd))) }.await;
            msg = RecvMsg(inner);
            result.map(|n| n as usize)
        } else {
            let call = || {
                // SAFETY: the header describes memory that the message owns.
                check(unsafe { libc::recvmsg(source.raw(), &raw mut msg.0.header, libc::MSG_DONTWAIT) })
            };
            source.retry(Interest::Readable, call).await
        };
        msg.0.done(*result.as_ref().unwrap_or(&0));
        (result, msg)
    }

    /// Receives up to `most` bytes and lets the kernel drop them: nothing is
    /// copied to anywhere. Zero bytes mean that the peer has closed its side.
    ///
    /// # Errors
    /// Of recv(2).
    pub async fn discard(&self, most: u32) -> io::Result<usize> {
        let source = match &self.end {
            Free::Kernel(source) => source,
            Free::Simulated(wire) => {
                return poll_fn(|cx| wire.poll_recv(cx, most as usize)).await.map(|bytes| bytes.len());
            }
        };
        // With MSG_TRUNC, TCP does not look at the buffer (tcp(7)).
        if source.key.is_none() {
            let entry = opcode::Recv::new(types::Fd(source.raw()), std::ptr::null_mut(), most);
            let entry = entry.flags(libc::MSG_TRUNC).build();
            // SAFETY: no memory involved; the operation keeps the descriptor open.
            return unsafe { op(entry, Rc::clone(&source.fd)) }.await.0.map(|n| n as usize);
        }
        let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
        let call = || {
            // SAFETY: the kernel writes nowhere.
            check(unsafe { libc::recv(source.raw(), std::ptr::null_mut(), most as usize, flags) })
        };
        source.retry(Interest::Readable, call).await
    }

    /// Sends the whole message.
    pub async fn send(&self, mut msg: SendMsg) -> (io::Result<()>, SendMsg) {
        let source = match &self.end {
            Free::Kernel(source) => source,
            Free::Simulated(wire) => return simulated::send(&**wire, msg).await,
        };
        let fd = types::Fd(source.raw());
        while !msg.is_empty() {
            let iov = msg.0.prepare();
            let result = if source.key.is_none() {
                // With WAITALL the kernel itself continues after a short write.
                let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
                let entry = match *iov {
                    [one] => {
                        opcode::Send::new(fd, one.iov_base.cast(), one.iov_len as u32).flags(flags).build()
                    }
                    _ => opcode::SendMsg::new(fd, &raw const msg.0.header).flags(flags as u32).build(),
                };
                // SAFETY: the message owns its memory, and is boxed; the
                // operation keeps the descriptor open.
                let (result, (inner, _)) = unsafe { op(entry, (msg.0, Rc::clone(&source.fd))) }.await;
                msg = SendMsg(inner);
                result.map(|n| n as usize)
            } else {
                let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
                let call = || {
                    // SAFETY: the header describes memory that the message owns.
                    check(unsafe { libc::sendmsg(source.raw(), &raw const msg.0.header, flags) })
                };
                source.retry(Interest::Writable, call).await
            };
            match result {
                Ok(sent) => msg.0.advance(sent),
                Err(e) => return (Err(e), msg),
            }
        }
        (Ok(()), msg)
    }

    /// Ends one direction or both; a task that waits in it returns.
    ///
    /// # Errors
    /// The peer has disconnected already.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match &self.end {
            Free::Kernel(source) => SockRef::from(&*source.fd).shutdown(how),
            Free::Simulated(wire) => wire.shutdown(how),
        }
    }

    /// The peer's address.
    ///
    /// # Errors
    /// The peer has disconnected already.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        if let Free::Simulated(wire) = &self.end {
            return Ok(wire.peer_addr());
        }
        let addr = self.socket()?.peer_addr()?;
        addr.as_socket().ok_or_else(|| io::Error::other("not an IP socket"))
    }

    /// This end's address.
    ///
    /// # Errors
    /// Of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.end {
            Free::Kernel(source) => local_addr(&source.fd),
            Free::Simulated(wire) => Ok(wire.local_addr()),
        }
    }

    /// The congestion control in use, by the kernel's name.
    ///
    /// # Errors
    /// Of getsockopt(2).
    pub fn congestion(&self) -> io::Result<String> {
        let name = self.socket()?.tcp_congestion()?;
        Ok(String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned())
    }

    /// Uses another congestion control from here on, by the kernel's name.
    ///
    /// # Errors
    /// Of setsockopt(2): the kernel does not have it, or does not let everybody use it.
    pub fn set_congestion(&self, name: &str) -> io::Result<()> {
        set_congestion(&self.socket()?, name)
    }

    /// Smoothed round trip and its variation, as TCP sees them.
    ///
    /// # Errors
    /// Of getsockopt(2).
    pub fn round_trip(&self) -> io::Result<(Duration, Duration)> {
        self.info().map(|info| (info.rtt, info.rtt_var))
    }

    /// What the kernel knows of the connection.
    ///
    /// # Errors
    /// Of getsockopt(2).
    pub fn info(&self) -> io::Result<TcpInfo> {
        let source = match &self.end {
            Free::Kernel(source) => source,
            Free::Simulated(wire) => return Ok(wire.info()),
        };
        let mut bytes = [0u8; info::INFO_LEN];
        let mut len = bytes.len() as libc::socklen_t;
        // SAFETY: `bytes` is writable and `len` its length.
        let rc = unsafe {
            libc::getsockopt(
                source.raw(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                bytes.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        check(rc as isize)?;
        Ok(TcpInfo::decode(&bytes[..(len as usize).min(bytes.len())]))
    }

    /// Asks the kernel to spread packets over the round trip, at the rate that its congestion
    /// control allows, where it would otherwise send a window in bursts. It costs a timer for every
    /// few packets.
    ///
    /// # Errors
    /// Those of setsockopt(2); kernels before 4.20 cannot do it.
    pub fn pace(&self) -> io::Result<()> {
        // A bound that is never reached: it is its presence that makes TCP pace
        // without a queueing discipline that does (tcp(7), SO_MAX_PACING_RATE
        // in socket(7)).
        self.limit_rate(1 << 48)
    }

    /// Bounds what the kernel takes to send beyond the congestion window: sends wait while
    /// so many bytes are not sent yet.
    ///
    /// # Errors
    /// Of setsockopt(2).
    pub fn limit_unsent(&self, bytes: u32) -> io::Result<()> {
        set_option(&self.socket()?, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &bytes)
    }

    /// Asks the kernel to send at most `bound` bytes a second on this connection.
    ///
    /// # Errors
    /// Of setsockopt(2); kernels before 4.20 cannot do it.
    pub fn limit_rate(&self, bound: u64) -> io::Result<()> {
        set_option(&self.socket()?, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &bound)
    }

    /// Lets the peer send up to `bytes` before the kernel has seen how much
    /// comes in a round trip: without, a window of 64 KiB holds back the first
    /// round trips of a peer whose segments are large. The kernel still
    /// sizes the buffer by itself, and bounds it as ever (`tcp_rmem`).
    ///
    /// # Errors
    /// Of setsockopt(2).
    pub fn open_window(&self, bytes: u32) -> io::Result<()> {
        let socket = self.socket()?;
        // Asking for that much at a time makes room for it (tcp_set_rcvlowat in
        // Linux, since 4.18), and does not end the kernel's own sizing as
        // SO_RCVBUF does.
        for low in [bytes.min(i32::MAX as u32) as i32, 1] {
            set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &low)?;
        }
        Ok(())
    }
}

/// An integer option of setsockopt(2).
trait IntegerOption: Copy {}
impl IntegerOption for i32 {}
impl IntegerOption for u32 {}
impl IntegerOption for u64 {}

fn set_option<T: IntegerOption>(socket: &SockRef<'_>, level: i32, name: i32, value: &T) -> io::Result<()> {
    // SAFETY: `value` is an integer: readable, initialized, and of the size that is passed.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const *value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    check(rc as isize).map(|_| ())
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpStream(to {:?})", self.peer_addr().ok())
    }
}
