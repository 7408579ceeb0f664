//! How much the relay itself can move, and how exact its delay is.
//!
//! `cargo run --release -p longhaul-wan --example relay_speed`

use longhaul_wan::{Link, Relay};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Bytes moved through the relay.
const TOTAL: u64 = 8 << 30;

fn main() -> std::io::Result<()> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = TcpListener::bind(any)?;
    let relay = Relay::start(any, listener.local_addr()?, Link::round_trip(Duration::from_millis(15)))?;
    let sink = std::thread::spawn(move || -> std::io::Result<u64> {
        let (mut stream, _) = listener.accept()?;
        let (mut buf, mut total) = (vec![0; 1 << 20], 0);
        // The first bytes are echoed one by one, to time the round trip.
        for _ in 0..20 {
            stream.read_exact(&mut buf[..1])?;
            stream.write_all(&buf[..1])?;
        }
        loop {
            match stream.read(&mut buf)? {
                0 => return Ok(total),
                n => total += n as u64,
            }
        }
    });
    let mut stream = TcpStream::connect(relay.local_addr())?;
    let mut times = Vec::new();
    for _ in 0..20 {
        let begin = Instant::now();
        stream.write_all(&[1])?;
        stream.read_exact(&mut [0])?;
        times.push(begin.elapsed());
    }
    times.sort();
    println!("round trip: median {:?} (asked for 15 ms)", times[10]);
    let piece = vec![0; 1 << 20];
    let begin = Instant::now();
    for _ in 0..TOTAL / piece.len() as u64 {
        stream.write_all(&piece)?;
    }
    drop(stream);
    let total = sink.join().map_err(|_| std::io::Error::other("the sink failed"))??;
    let rate = total as f64 / begin.elapsed().as_secs_f64() / 1e9;
    println!("one connection: {rate:.2} GB/s over {total} bytes");
    Ok(())
}
