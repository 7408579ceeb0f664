//! Relays one connection to an agent's port through the standard streams of ssh.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};

/// Two ends of a loopback connection.
pub(super) fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let ours = TcpStream::connect(listener.local_addr()?)?;
    loop {
        let (theirs, peer) = listener.accept()?;
        // Another process of this machine may have connected first.
        if peer == ours.local_addr()? {
            return Ok((ours, theirs));
        }
    }
}

/// Buffer size in bytes; packets of an ssh channel are smaller.
const PIECE: usize = 64 << 10;

/// Copies bytes until either end is closed.
pub(super) fn relay(mut from: impl Read, mut to: impl Write) {
    let mut piece = vec![0; PIECE];
    loop {
        let read = match from.read(&mut piece) {
            Ok(0) => return,
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        if to.write_all(&piece[..read]).and_then(|()| to.flush()).is_err() {
            return;
        }
    }
}

/// Runs for the lifetime of an agent that was started over ssh: waits for the end of
/// `input`, or, if data arrives on it, relays one connection to the agent's own `address`.
///
/// # Errors
/// The address cannot be reached.
pub fn carry(
    mut input: impl Read,
    output: impl Write + Send + 'static,
    address: SocketAddr,
) -> io::Result<()> {
    let mut first = [0];
    if input.read(&mut first)? == 0 {
        return Ok(());
    }
    let mut address = address;
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.write_all(&first)?;
    let back = stream.try_clone()?;
    std::thread::Builder::new().name("transfer-ssh".into()).spawn(move || relay(back, output))?;
    relay(input, stream);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_without_a_client_ends_with_its_input() {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
        carry(io::empty(), io::sink(), nowhere).expect("nothing to carry");
    }

    #[test]
    fn a_connection_is_relayed_both_ways() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
        let address = SocketAddr::from(([0, 0, 0, 0], listener.local_addr().expect("bound").port()));
        let agent = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accepted");
            let mut question = [0; 8];
            stream.read_exact(&mut question).expect("read");
            stream.write_all(b"answered").expect("written");
            question
        });
        let (mut here, input) = pair().expect("joined");
        let output = input.try_clone().expect("cloned");
        let carrying = std::thread::spawn(move || carry(input, output, address));
        here.write_all(b"question").expect("written");
        let mut answer = [0; 8];
        here.read_exact(&mut answer).expect("read");
        drop(here);
        assert_eq!((&agent.join().expect("joined"), &answer), (b"question", b"answered"));
        carrying.join().expect("joined").expect("carried");
    }
}
