//! What the tests of emulated links share.

use longhaul_wan::{Conditions, Error, Namespace, Wan, WanPlan};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

pub(crate) const MS: Duration = Duration::from_millis(1);

/// Nothing here takes longer: a hang becomes a failure.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn plan(rtt: Duration, rate: u64) -> WanPlan {
    WanPlan::new(WanPlan::unique_name("t"), Conditions::new(rtt, (rate > 0).then_some(rate)))
}

/// The link; if it cannot be made, the reason is printed on standard error.
pub(crate) fn start(plan: WanPlan) -> Option<Wan> {
    match Wan::start(plan) {
        Ok(wan) => Some(wan),
        Err(Error::Unavailable(why)) => {
            longhaul_skip::skip!("{why}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// Content that no part of resembles another one.
pub(crate) fn content(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    bytes
}

/// A listener in the namespace of the server.
pub(crate) fn listen(wan: &Wan, link: usize, address: IpAddr) -> TcpListener {
    wan.server(link).run(|| TcpListener::bind((address, 0))).expect("entered").expect("bound")
}

pub(crate) fn connect(wan: &Wan, listener: &TcpListener) -> TcpStream {
    let address = listener.local_addr().expect("address");
    let stream = wan.client().run(|| TcpStream::connect_timeout(&address, LIMIT)).expect("entered");
    bounded(stream.expect("connected"))
}

pub(crate) fn bounded(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(LIMIT)).expect("time limit");
    stream.set_write_timeout(Some(LIMIT)).expect("time limit");
    stream
}

/// Sends `data` to the server behind `link`, which returns all of it as it
/// came; returns how long that took.
pub(crate) fn there_and_back(wan: &Wan, link: usize, data: &[u8]) -> Duration {
    exchange(wan, &listen(wan, link, wan.server_address(link).into()), data)
}

/// The same by a listener of the server.
pub(crate) fn exchange(wan: &Wan, listener: &TcpListener, data: &[u8]) -> Duration {
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = bounded(listener.accept().expect("accepted").0);
            let mut all = vec![0; data.len()];
            stream.read_exact(&mut all).expect("received");
            stream.write_all(&all).expect("returned");
        });
        let mut stream = connect(wan, listener);
        stream.write_all(data).expect("sent");
        let mut back = vec![0; data.len()];
        stream.read_exact(&mut back).expect("came back");
        assert!(back == data, "the content changed on its way");
    });
    begin.elapsed()
}

/// Datagram sockets of client and server, connected to each other.
pub(crate) fn datagrams(wan: &Wan, link: usize) -> (UdpSocket, UdpSocket) {
    let make = |namespace: &Namespace, address: Ipv4Addr| {
        let socket = namespace.run(|| UdpSocket::bind((address, 7000))).expect("entered").expect("bound");
        socket.set_read_timeout(Some(LIMIT)).expect("time limit");
        socket
    };
    let (near, far) = (wan.client_address(link), wan.server_address(link));
    let (client, server) = (make(wan.client(), near), make(wan.server(link), far));
    client.connect((far, 7000)).expect("connected");
    server.connect((near, 7000)).expect("connected");
    (client, server)
}
