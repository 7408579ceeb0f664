//! A TCP connection over loopback.

use anyhow::{Context, Result};
use socket2::{Domain, SockRef, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

/// Connects two ends with this congestion control. The first one is the
/// side that accepted: the target's.
pub(super) fn pair(congestion: &str) -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let local = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    set(&SockRef::from(&listener), congestion)?;
    set(&local, congestion)?;
    let address: SocketAddr = listener.local_addr()?;
    local.connect(&address.into()).context("a connection over loopback")?;
    let (remote, _) = listener.accept()?;
    set(&SockRef::from(&remote), congestion)?;
    Ok((remote, local.into()))
}

fn set(socket: &Socket, congestion: &str) -> Result<()> {
    socket
        .set_tcp_congestion(congestion.as_bytes())
        .with_context(|| format!("the kernel does not let sockets use congestion control '{congestion}'"))?;
    socket.set_tcp_nodelay(true).context("TCP_NODELAY")
}
