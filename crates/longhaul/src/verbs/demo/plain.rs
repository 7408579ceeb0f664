//! The same bytes over plain TCP, through the same kind of relay: one stream
//! for each target, all at the same time.

use longhaul_engine::Config;
use longhaul_wan::{Link, Relay};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

/// Bytes of one call.
const CALL: usize = 1 << 20;
/// What a stream begins with: who sends.
const THERE: u8 = b'w';
const BACK: u8 = b'r';

/// Seconds for all bytes in each direction.
pub(super) struct Plain {
    pub(super) there: f64,
    pub(super) back: f64,
}

/// Moves `bytes` over `streams` streams, there and then back.
pub(super) fn measure(
    link: &dyn Fn() -> Link,
    streams: usize,
    bytes: u64,
    engine: &Config,
) -> io::Result<Plain> {
    let mut relays = Vec::new();
    for _ in 0..streams {
        let listener = TcpListener::bind((super::LOOPBACK.ip(), 0))?;
        let addr = listener.local_addr()?;
        std::thread::spawn(move || serve(&listener));
        relays.push(Relay::start_with(engine, super::LOOPBACK, addr, link())?);
    }
    let ends: Vec<_> = relays.iter().map(Relay::local_addr).collect();
    let share = bytes / streams as u64;
    Ok(Plain { there: run(&ends, THERE, share)?, back: run(&ends, BACK, share)? })
}

fn run(ends: &[SocketAddr], way: u8, share: u64) -> io::Result<f64> {
    let began = Instant::now();
    std::thread::scope(|scope| {
        let streams: Vec<_> = ends.iter().map(|&end| scope.spawn(move || stream(end, way, share))).collect();
        streams
            .into_iter()
            .try_for_each(|s| s.join().unwrap_or_else(|_| Err(io::Error::other("a stream died"))))
    })?;
    Ok(began.elapsed().as_secs_f64())
}

fn stream(end: SocketAddr, way: u8, bytes: u64) -> io::Result<()> {
    let mut stream = TcpStream::connect(end)?;
    stream.set_nodelay(true)?;
    stream.write_all(&[way])?;
    stream.write_all(&bytes.to_le_bytes())?;
    if way == THERE {
        send(&mut stream, bytes)?;
        // The other end says that everything has come.
        stream.read_exact(&mut [0])
    } else {
        receive(&mut stream, bytes)
    }
}

/// Serves streams, until the last relay is gone and nobody comes any more.
fn serve(listener: &TcpListener) {
    // One stream each way.
    for stream in listener.incoming().take(2) {
        let Ok(mut stream) = stream else { return };
        let mut head = [0; 9];
        let served = stream.read_exact(&mut head).and_then(|()| {
            let [way, bytes @ ..] = head;
            let bytes = u64::from_le_bytes(bytes);
            if way == THERE {
                receive(&mut stream, bytes)?;
                stream.write_all(&[1])
            } else {
                send(&mut stream, bytes)
            }
        });
        if let Err(e) = served {
            tracing::warn!("plain TCP: {e}");
        }
    }
}

fn send(stream: &mut TcpStream, mut bytes: u64) -> io::Result<()> {
    let buf = vec![0x5A; CALL];
    while bytes > 0 {
        let n = bytes.min(CALL as u64) as usize;
        stream.write_all(&buf[..n])?;
        bytes -= n as u64;
    }
    Ok(())
}

fn receive(stream: &mut TcpStream, mut bytes: u64) -> io::Result<()> {
    let mut buf = vec![0; CALL];
    while bytes > 0 {
        match stream.read(&mut buf)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => bytes -= (n as u64).min(bytes),
        }
    }
    Ok(())
}
