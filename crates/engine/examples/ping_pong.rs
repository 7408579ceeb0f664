//! Round trips and stream throughput over loopback on one engine a side: what
//! the engine itself allows, to compare a protocol on it with.
//!
//! `cargo run --release -p longhaul-engine --example ping_pong -- [BYTES]`

use longhaul_engine::net::{SocketOptions, TcpListener, TcpStream};
use longhaul_engine::{Buf, BufMut, Config, RecvMsg, SendMsg, Thread};
use std::time::{Duration, Instant};

const ROUNDS: u32 = 50_000;
const STREAM: Duration = Duration::from_secs(2);

async fn recv_exact(stream: &TcpStream, mut msg: RecvMsg, want: usize) -> RecvMsg {
    let mut got = 0;
    while got < want {
        let (n, back) = stream.recv(msg).await;
        msg = back;
        match n.expect("receive") {
            0 => panic!("closed"),
            n => got += n,
        }
    }
    msg
}

async fn send(stream: &TcpStream, mut msg: SendMsg, buf: &Buf) -> SendMsg {
    msg.begin(Vec::new());
    msg.push(buf.segment());
    let (result, msg) = stream.send(msg).await;
    result.expect("send");
    msg
}

fn main() {
    let size: usize = std::env::args().nth(1).map_or(4096, |s| s.parse().expect("a number of bytes"));
    let server = Thread::start("server", Config { cpu: Some(0), ..Config::default() }).expect("thread");
    let client = Thread::start("client", Config { cpu: Some(1), ..Config::default() }).expect("thread");
    let listener = TcpListener::bind_std("127.0.0.1:0".parse().expect("address")).expect("bind");
    let addr = listener.local_addr().expect("address");
    let cubic = SocketOptions { congestion: Some("cubic".into()) };
    let options = cubic.clone();
    let serving = server.handle().spawn(move || async move {
        let listener = TcpListener::from_std(listener).expect("adopt");
        let (stream, _) = listener.accept().await.expect("accept");
        let stream = TcpStream::from_std(stream, &options).expect("adopt");
        let reply = BufMut::zeroed(size).freeze();
        let (mut recv, mut out) = (RecvMsg::new(64), SendMsg::new());
        for _ in 0..ROUNDS {
            recv = recv_exact(&stream, recv, 64).await;
            out = send(&stream, out, &reply).await;
        }
        let mut bulk = RecvMsg::new(1 << 20);
        loop {
            let (n, back) = stream.recv(bulk).await;
            bulk = back;
            if n.expect("receive") == 0 {
                break;
            }
        }
    });
    let (us, gbs) = client
        .handle()
        .spawn(move || async move {
            let stream = TcpStream::connect(addr, &cubic).await.expect("connect");
            let ask = BufMut::zeroed(64).freeze();
            let (mut recv, mut out) = (RecvMsg::new(size), SendMsg::new());
            let began = Instant::now();
            for _ in 0..ROUNDS {
                out = send(&stream, out, &ask).await;
                recv = recv_exact(&stream, recv, size).await;
            }
            let us = began.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS);
            let bulk = BufMut::zeroed(1 << 20).freeze();
            let began = Instant::now();
            let mut bytes = 0u64;
            while began.elapsed() < STREAM {
                out = send(&stream, out, &bulk).await;
                bytes += bulk.len() as u64;
            }
            (us, bytes as f64 / began.elapsed().as_secs_f64() / 1e9)
        })
        .wait()
        .expect("client");
    serving.wait().expect("server");
    println!("round trip of 64 B for {size} B: {us:.2} us; stream of 1 MiB sends: {gbs:.2} GB/s");
}
