//! Plain TCP through the same kind of relay: one stream for each target, all at the same time.

use super::window::{Flow, MeasuredRate, Window};
use longhaul_engine::Config;
use longhaul_wan::{Link, Relay};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

/// Bytes of a read or write call.
const CALL: usize = 1 << 20;

/// Direction of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamDirection {
    There,
    Back,
}

/// Sends data over `streams` streams, and measures the rate at which it arrives.
pub(super) fn measure(
    link: &dyn Fn() -> Link,
    streams: usize,
    way: StreamDirection,
    window: Window,
    engine: &Config,
    tell: &mut dyn FnMut(u64),
) -> io::Result<MeasuredRate> {
    let flow = Arc::new(Flow::default());
    let (open, ended) = channel();
    let (mut relays, mut threads) = (Vec::new(), Vec::new());
    for _ in 0..streams {
        let listener = TcpListener::bind((super::LOOPBACK.ip(), 0))?;
        let relay = Relay::start_with(engine, super::LOOPBACK, listener.local_addr()?, link())?;
        let near = TcpStream::connect(relay.local_addr())?;
        relays.push(relay);
        near.set_nodelay(true)?;
        let (far, _) = listener.accept()?;
        let (from, to) = if way == StreamDirection::There { (near, far) } else { (far, near) };
        threads.push(start(from, &flow, &open, send)?);
        threads.push(start(to, &flow, &open, receive)?);
    }
    drop(open);
    let counted = window.count(&flow, 0, &ended, tell);
    let ran: Vec<io::Result<()>> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("a stream died"))))
        .collect();
    let failed = ran.into_iter().find_map(Result::err);
    counted.ok_or_else(|| failed.unwrap_or_else(|| io::Error::other("a stream ended early")))
}

/// Starts the thread of one end of a stream, which reports an early end through `open`.
fn start(
    stream: TcpStream,
    flow: &Arc<Flow>,
    open: &Sender<()>,
    run: fn(&mut TcpStream, &Flow) -> io::Result<()>,
) -> io::Result<std::thread::JoinHandle<io::Result<()>>> {
    let (flow, open, mut stream) = (Arc::clone(flow), open.clone(), stream);
    std::thread::Builder::new().name("plain-tcp".into()).spawn(move || {
        let ran = run(&mut stream, &flow);
        let wanted = flow.has_to_stop();
        // Data in flight may be dropped, since the window is over.
        let _ = stream.shutdown(Shutdown::Both);
        if !wanted {
            let _ = open.send(());
        }
        if wanted { Ok(()) } else { ran }
    })
}

fn send(stream: &mut TcpStream, flow: &Flow) -> io::Result<()> {
    let buf = vec![0x5A; CALL];
    while !flow.has_to_stop() {
        stream.write_all(&buf)?;
    }
    Ok(())
}

fn receive(stream: &mut TcpStream, flow: &Flow) -> io::Result<()> {
    let mut buf = vec![0; CALL];
    while !flow.has_to_stop() {
        match stream.read(&mut buf)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => flow.add(n as u64),
        }
    }
    Ok(())
}
