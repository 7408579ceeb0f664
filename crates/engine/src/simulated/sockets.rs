//! The seam between stream sockets and a simulated network: what a network has
//! to do so that the code above uses [`TcpStream`](crate::net::TcpStream) and
//! [`TcpListener`](crate::net::TcpListener) on it as on the kernel's.

use crate::exec::{try_with_core, with_core};
use crate::msg::{RecvMsg, SendMsg};
use crate::net::TcpInfo;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A network of simulated hosts: it lives on the thread of its engine.
pub trait Network {
    /// Listens on `addr`, which must be the address of the host `at`.
    ///
    /// # Errors
    /// As bind(2) and listen(2).
    fn listen(&self, at: IpAddr, addr: SocketAddr) -> io::Result<Arc<dyn Listening>>;

    /// Begins to connect the host `from` to `to`.
    ///
    /// # Errors
    /// As a connect(2) that fails at once.
    fn connect(&self, from: IpAddr, to: SocketAddr) -> io::Result<Arc<dyn Wire>>;
}

/// A listening socket of a simulated network. Dropping it closes it.
pub trait Listening: Send + Sync {
    /// The next connection, and the peer's address.
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Arc<dyn Wire>, SocketAddr)>>;
    /// The address that it listens on.
    fn local_addr(&self) -> SocketAddr;
}

/// A stream socket of a simulated network. Dropping it closes it, as close(2)
/// does.
pub trait Wire: Send + Sync {
    /// Ends when the connection is established, or has failed.
    fn poll_connected(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Up to `most` bytes, at least one; none if the peer has closed its side.
    fn poll_recv(&self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<Vec<u8>>>;
    /// Takes bytes into the send buffer, at least one: how many.
    fn poll_send(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;
    /// As shutdown(2).
    ///
    /// # Errors
    /// The connection is closed already.
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;
    /// As [`TcpStream::abandon`](crate::net::TcpStream::abandon).
    fn abandon(&self);
    /// As [`TcpStream::keep_alive`](crate::net::TcpStream::keep_alive).
    fn keep_alive(&self, interval: Duration, count: u32);
    /// This end's address.
    fn local_addr(&self) -> SocketAddr;
    /// The peer's address.
    fn peer_addr(&self) -> SocketAddr;
    /// What TCP knows of the connection.
    fn info(&self) -> TcpInfo;
}

/// The network of the calling thread's engine and the address of the host whose
/// task runs; nothing on an engine that is not simulated.
fn network() -> Option<(Option<Rc<dyn Network>>, IpAddr)> {
    let mut found = None;
    try_with_core(|core| found = core.network());
    found
}

fn none() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the simulation has no network")
}

/// Connects if the calling thread's engine is simulated.
pub(crate) async fn connect(to: SocketAddr) -> Option<io::Result<Arc<dyn Wire>>> {
    let (network, from) = network()?;
    let connect = async {
        let wire = network.ok_or_else(none)?.connect(from, to)?;
        poll_fn(|cx| wire.poll_connected(cx)).await?;
        Ok(wire)
    };
    Some(connect.await)
}

/// Listens if the calling thread's engine is simulated.
pub(crate) fn listen(addr: SocketAddr) -> Option<io::Result<Arc<dyn Listening>>> {
    let (network, at) = network()?;
    Some(network.ok_or_else(none).and_then(|network| network.listen(at, addr)))
}

/// As [`TcpStream::recv`](crate::net::TcpStream::recv).
pub(crate) async fn recv(wire: &dyn Wire, mut msg: RecvMsg) -> (io::Result<usize>, RecvMsg) {
    msg.begin();
    let most = msg.room();
    let received = poll_fn(|cx| wire.poll_recv(cx, most)).await;
    let result = received.map(|bytes| msg.put(&bytes));
    (result, msg)
}

/// As [`TcpStream::send`](crate::net::TcpStream::send).
pub(crate) async fn send(wire: &dyn Wire, mut msg: SendMsg) -> (io::Result<()>, SendMsg) {
    while !msg.is_empty() {
        let bytes = msg.0.rest();
        match poll_fn(|cx| wire.poll_send(cx, &bytes)).await {
            Ok(sent) => msg.0.advance(sent),
            Err(e) => return (Err(e), msg),
        }
    }
    (Ok(()), msg)
}

/// Gives the calling thread's simulated engine a network.
///
/// # Panics
/// Outside a simulated engine.
pub fn set_network(network: Rc<dyn Network>) {
    with_core(|core| core.set_network(network));
}
