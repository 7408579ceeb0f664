//! What a queue can run on besides TCP: the interface of a transport, for both ends.
//!
//! A [`Transport`] connects and listens, and gives [`Stream`]s: pairs of byte streams, one in each direction, as TCP
//! has them. NVMe/TCP, with its digests, and TLS work over any of them. There are three here: [`Tcp`], [`Unix`]
//! sockets, and [`InProcess`], pairs of rings in memory. A program brings its own to a target (`Config::transports`
//! of `longhaul-target`) and to an initiator (`Options::transports` of `longhaul-initiator`); the example `scrambled`
//! of `longhaul-initiator` does. [`conformance`](crate::conformance) checks one.
//!
//! # Contract
//!
//! **Order.** Bytes arrive in the order in which they were sent, each once and unchanged, in messages of any other
//! size: a stream has no message boundaries. What is lost on the way is repeated by the transport, or ends the stream.
//!
//! **Sending.** [`Stream::send`] takes at least one byte of a message that has some, and may stop anywhere (a partial
//! send): the message says what is left. Bytes that were taken are on their way, without a further call. One send is
//! under way at a time.
//!
//! **Receiving.** [`Stream::recv`] brings at least one byte as soon as there is one, and as many as are there and have
//! room. 0 means that the peer sends nothing more. One receive is under way at a time, beside a send.
//!
//! **Readiness.** The future of a send or a receive is polled when its waker is called and need not be polled at any
//! other time: it has to arrange that the last waker that it was given is called once it can go on, from whatever
//! thread. A peer that does not receive, and one that does not send, block nothing but that future.
//!
//! **Back-pressure.** A stream holds a bounded number of bytes that the peer has not received: beyond it, sends wait.
//!
//! **The end.** [`Stream::shutdown`] of the sending side lets the peer receive what was sent, then 0; the other
//! direction goes on. Dropping a stream, and its end by a lost link, has receives of the peer give what has arrived or
//! not, and then 0 or an error, and its sends an error. [`Stream::abandon`] is the same at once, and ends the calls
//! that are under way at this end. Each of them ends waiting calls at *both* ends; none of them waits.
//!
//! **Errors** are those of `std::io`. After an error of either direction nothing more is sent or received: the
//! caller that wants the connection connects again.
//!
//! **Memory.** A message owns the memory of its bytes. It belongs to the operation until its future has ended, also if
//! that is dropped: memory that hardware may still read or write is kept until it does not. A receive whose future was
//! dropped may have lost bytes; the stream is given up then. No Rust reference to the memory of a message is made, but
//! for its staging area: it may be that of a device.
//!
//! **Registration.** A transport that needs to know memory before it uses it, as RDMA does, gets the blocks of a
//! target's pools by [`Transport::register`] before they carry data, and keeps them registered until the
//! [`Registration`] is dropped. Memory that was not registered (a caller's buffers, headers, staging areas) comes
//! in messages all the same: the transport registers it for the operation, or copies.
//!
//! **Threads.** A transport is shared by threads. A stream belongs to the engine thread that made or adopted it, and
//! moves as a [`FreeStream`] while no operation is under way; what has arrived by then moves along.

mod in_process;
mod tcp;
mod unix;

pub use in_process::InProcess;
pub use longhaul_engine::Registration;
pub use tcp::Tcp;
pub use unix::Unix;

use longhaul_engine::{RecvMsg, SendMsg};
use std::fmt;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// An operation under way on an engine thread.
pub type Operation<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Connects and listens; see the [contract](self).
pub trait Transport: fmt::Debug + Send + Sync {
    /// Connects to a listener, on the calling engine thread. There is no deadline: the caller drops the future.
    ///
    /// # Errors
    /// Nothing listens at that address, or the address is not one of this transport.
    fn connect<'a>(&'a self, address: &'a str) -> Operation<'a, io::Result<Box<dyn Stream>>>;

    /// Listens, on the calling engine thread, until the listener is dropped. Then the address is free again, also if
    /// there are connections.
    ///
    /// # Errors
    /// The address is in use, or is not one of this transport.
    fn listen(&self, address: &str) -> io::Result<Box<dyn Listener>>;

    /// Makes memory known that sends and receives will use from now on, often and on any stream. It stays where it is,
    /// and is freed only after what is returned was dropped. `None`: this transport needs no registration, or has no
    /// room for more.
    fn register(&self, memory: NonNull<[u8]>) -> Option<Registration> {
        let _ = memory;
        None
    }
}

/// Accepts connections. It belongs to one engine thread.
pub trait Listener: fmt::Debug {
    /// The next connection, and where it comes from. A future that is dropped loses no connection.
    ///
    /// # Errors
    /// None can be accepted now. The caller waits a moment before it tries again.
    fn accept(&self) -> Operation<'_, io::Result<(FreeStream, Address)>>;

    /// Where it listens: what [`Transport::connect`] takes to come here.
    fn address(&self) -> Address;
}

/// Both directions of a connection; see the [contract](self).
pub trait Stream: fmt::Debug {
    /// Receives some bytes of those that have room in the message: how many, 0 at the end of what the peer sends.
    fn recv(&self, msg: RecvMsg) -> Operation<'_, (io::Result<usize>, RecvMsg)>;

    /// Sends some bytes of a message, or all. What was sent is taken off the message ([`SendMsg::advance`]).
    fn send(&self, msg: SendMsg) -> Operation<'_, (io::Result<()>, SendMsg)>;

    /// Ends one direction or both. A receive that waits returns 0 or an error, and a send an error.
    ///
    /// # Errors
    /// The connection has ended already.
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;

    /// Ends both directions at once. What was sent may not arrive.
    fn abandon(&self);

    /// Takes it from its thread, to be given to another one. No operation is under way on it.
    ///
    /// # Errors
    /// It cannot be moved.
    fn into_free(self: Box<Self>) -> io::Result<FreeStream>;

    /// The round trip to the peer, as far as the transport knows it.
    fn round_trip(&self) -> Option<Duration> {
        None
    }
}

/// Sends bytes to the last: for transports that change, count or delay the bytes of another one.
///
/// # Errors
/// Those of [`Stream::send`]; a part may have been sent.
pub async fn send_all(stream: &dyn Stream, bytes: Vec<u8>) -> io::Result<()> {
    let (mut msg, len) = (SendMsg::new(), bytes.len());
    msg.begin(bytes);
    msg.push_bytes(0, len);
    while msg.remaining() > 0 {
        let (result, back) = stream.send(msg).await;
        result?;
        msg = back;
    }
    Ok(())
}

/// A stream on its way between threads. Dropping it ends the stream.
pub struct FreeStream(Box<dyn FnOnce() -> io::Result<Box<dyn Stream>> + Send>);

impl FreeStream {
    /// `adopt` makes it a stream of the engine thread on which it is called.
    pub fn new(adopt: impl FnOnce() -> io::Result<Box<dyn Stream>> + Send + 'static) -> FreeStream {
        FreeStream(Box::new(adopt))
    }

    /// Brings it to the calling thread's engine.
    ///
    /// # Errors
    /// The engine cannot take it.
    pub fn adopt(self) -> io::Result<Box<dyn Stream>> {
        (self.0)()
    }
}

impl fmt::Debug for FreeStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FreeStream")
    }
}

/// Where an end of a connection is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// Of IP.
    Ip(SocketAddr),
    /// Of another transport, in its own words. Peers with the same one share what a target limits by address.
    Named(Arc<str>),
}

impl Address {
    /// One in the words of a transport.
    pub fn named(name: impl Into<Arc<str>>) -> Address {
        Address::Named(name.into())
    }

    /// The IP address, if it has one.
    pub fn ip(&self) -> Option<IpAddr> {
        self.socket().map(|address| address.ip())
    }

    /// The IP address and port, if it has them.
    pub fn socket(&self) -> Option<SocketAddr> {
        match self {
            Address::Ip(address) => Some(*address),
            Address::Named(_) => None,
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Ip(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Ip(address) => address.fmt(f),
            Address::Named(name) => f.write_str(name),
        }
    }
}
