//! TCP as a transport. A queue uses a socket of TCP without this interface (see [`Channel`](crate::Channel)): this is
//! for transports that are made of it, and for their comparison.

use super::{Address, FreeStream, Listener, Operation, Stream, Transport};
use longhaul_engine::net::{SocketOptions, TcpListener, TcpStream};
use longhaul_engine::{RecvMsg, SendMsg};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

/// TCP; addresses are `ADDR:PORT`. Names are not resolved.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

fn parse(address: &str) -> io::Result<SocketAddr> {
    let bad = |_| {
        let why =
            format!("'{address}' is not an address of TCP: the form is ADDR:PORT, such as 127.0.0.1:4420");
        io::Error::new(io::ErrorKind::InvalidInput, why)
    };
    address.parse().map_err(bad)
}

impl Transport for Tcp {
    fn connect<'a>(&'a self, address: &'a str) -> Operation<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let stream = TcpStream::connect(parse(address)?, &SocketOptions::default()).await?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }

    fn listen(&self, address: &str) -> io::Result<Box<dyn Listener>> {
        let listener = TcpListener::from_std(TcpListener::bind_free(parse(address)?)?)?;
        let at = listener.local_addr()?.into();
        Ok(Box::new(TcpListening { listener, at }))
    }
}

#[derive(Debug)]
struct TcpListening {
    listener: TcpListener,
    at: Address,
}

impl Listener for TcpListening {
    fn accept(&self) -> Operation<'_, io::Result<(FreeStream, Address)>> {
        Box::pin(async move {
            let (stream, peer) = self.listener.accept().await?;
            let adopt = move || {
                let stream = TcpStream::from_std(stream, &SocketOptions::default())?;
                Ok(Box::new(stream) as Box<dyn Stream>)
            };
            Ok((FreeStream::new(adopt), peer.into()))
        })
    }

    fn address(&self) -> Address {
        self.at.clone()
    }
}

impl Stream for TcpStream {
    fn recv(&self, msg: RecvMsg) -> Operation<'_, (io::Result<usize>, RecvMsg)> {
        Box::pin(TcpStream::recv(self, msg))
    }

    fn send(&self, msg: SendMsg) -> Operation<'_, (io::Result<()>, SendMsg)> {
        Box::pin(TcpStream::send(self, msg))
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        TcpStream::shutdown(self, how)
    }

    fn abandon(&self) {
        TcpStream::abandon(self);
    }

    fn into_free(self: Box<Self>) -> io::Result<FreeStream> {
        let stream = TcpStream::into_free(*self)?;
        Ok(FreeStream::new(move || Ok(Box::new(TcpStream::from_std(stream, &SocketOptions::default())?))))
    }

    fn round_trip(&self) -> Option<Duration> {
        TcpStream::round_trip(self).ok().map(|(smoothed, _)| smoothed)
    }
}
