//! A TCP connection between the two places of a measurement.

use crate::setup::Setup;
use anyhow::{Context, Result};
use socket2::{Domain, SockRef, Socket, Type};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Connects both ends. The first one is the side that accepted: the target's.
pub(super) fn pair(setup: &Setup) -> Result<(TcpStream, TcpStream)> {
    let congestion = &setup.congestion;
    let host = setup.target.address;
    let listener = setup.target.run(|| TcpListener::bind((host, 0)))?.context("the target's side listens")?;
    let local = setup.load.run(|| Socket::new(Domain::IPV4, Type::STREAM, None))??;
    set(&SockRef::from(&listener), congestion)?;
    set(&local, congestion)?;
    let address: SocketAddr = listener.local_addr()?;
    local.connect(&address.into()).context("a connection to the target's side")?;
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
