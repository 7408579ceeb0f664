//! The transports of this crate keep their contract, and transports that break it are found out.

use longhaul_conn::conformance::{check, check_within};
use longhaul_conn::transport::{
    Address, FreeStream, InProcess, Listener, Operation, Stream, Tcp, Transport, Unix, send_all,
};
use longhaul_engine::{Config, Engine, EngineKind, RecvMsg, SendMsg};
use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::io;
use std::net::Shutdown;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

/// Checks it on each engine that this machine has.
fn conforms(transport: &Arc<dyn Transport>, address: &str) {
    for kind in [EngineKind::Epoll, EngineKind::Uring] {
        let config = Config { kind, ..Config::default() };
        if Engine::new(&config).is_err() {
            longhaul_skip::skip_part!("{kind:?} is not to be had");
            continue;
        }
        let result = check(Arc::clone(transport), address, &config);
        assert_eq!(result.map_err(|fault| format!("{kind:?}: {fault}")), Ok(()));
    }
}

#[test]
fn tcp() {
    conforms(&(Arc::new(Tcp) as _), "127.0.0.1:0");
}

#[test]
fn unix_sockets() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("socket");
    conforms(&(Arc::new(Unix) as _), path.to_str().expect("a path"));
    assert!(!path.exists(), "the socket's file goes with its listener");
}

#[test]
fn pairs_within_a_process() {
    conforms(&(Arc::new(InProcess::new()) as _), "a name");
}

/// A way in which a transport breaks its contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Breakage {
    /// A byte in a megabyte is another one.
    WrongByte,
    /// A send in a megabyte is lost.
    LosesSend,
    /// The end of the peer is not reported.
    NoEnd,
    /// A long receive says less than came.
    WrongCount,
    /// Sends succeed without taking anything.
    TakesNothing,
    /// The first waker that a receive was given is called, not the last one.
    FirstWaker,
    /// A shutdown of the receiving side leaves receives waiting.
    DeafToShutdown,
    /// Sends to an end that is gone succeed.
    SendsIntoNothing,
    /// Bytes that have arrived are lost when a stream moves.
    LosesOnMove,
    /// The address stays taken when its listener is dropped.
    KeepsAddress,
}

/// [`InProcess`] with a fault.
#[derive(Clone, Debug)]
struct Broken {
    within: InProcess,
    how: Breakage,
    kept: Arc<Mutex<usize>>,
}

#[derive(Debug)]
struct BrokenListener(Box<dyn Listener>, Breakage);

#[derive(Debug)]
struct BrokenStream {
    within: Box<dyn Stream>,
    how: Breakage,
    taken: Cell<usize>,
    /// The receiving side, by this end.
    is_shut: Cell<bool>,
}

impl BrokenStream {
    fn begin(within: Box<dyn Stream>, how: Breakage) -> Box<dyn Stream> {
        Box::new(BrokenStream { within, how, taken: Cell::new(0), is_shut: Cell::new(false) })
    }
}

impl Transport for Broken {
    fn connect<'a>(&'a self, address: &'a str) -> Operation<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move { Ok(BrokenStream::begin(self.within.connect(address).await?, self.how)) })
    }

    fn listen(&self, address: &str) -> io::Result<Box<dyn Listener>> {
        if self.how == Breakage::KeepsAddress {
            let mut before = self.kept.lock().expect("no panic");
            *before += 1;
            if *before > 1 {
                return Err(io::ErrorKind::AddrInUse.into());
            }
        }
        Ok(Box::new(BrokenListener(self.within.listen(address)?, self.how)))
    }
}

impl Listener for BrokenListener {
    fn accept(&self) -> Operation<'_, io::Result<(FreeStream, Address)>> {
        let how = self.1;
        Box::pin(async move {
            let (free, peer) = self.0.accept().await?;
            Ok((FreeStream::new(move || Ok(BrokenStream::begin(free.adopt()?, how))), peer))
        })
    }

    fn address(&self) -> Address {
        self.0.address()
    }
}

impl Stream for BrokenStream {
    fn recv(&self, msg: RecvMsg) -> Operation<'_, (io::Result<usize>, RecvMsg)> {
        if self.how == Breakage::FirstWaker {
            let (mut receive, mut first) = (self.within.recv(msg), None::<Waker>);
            return Box::pin(poll_fn(move |cx| {
                let first = first.get_or_insert_with(|| cx.waker().clone());
                receive.as_mut().poll(&mut Context::from_waker(first))
            }));
        }
        Box::pin(async move {
            let (result, msg) = self.within.recv(msg).await;
            match (self.how, result) {
                (Breakage::NoEnd, Ok(0)) => pending().await,
                (Breakage::DeafToShutdown, Ok(0)) if self.is_shut.get() => pending().await,
                (Breakage::WrongCount, Ok(n)) if n > 5000 => (Ok(n - 1), msg),
                (_, result) => (result, msg),
            }
        })
    }

    fn send(&self, mut msg: SendMsg) -> Operation<'_, (io::Result<()>, SendMsg)> {
        Box::pin(async move {
            let before = self.taken.get();
            if self.how == Breakage::TakesNothing && before > 1000 {
                return (Ok(()), msg);
            }
            let mut bytes = vec![0; msg.remaining()];
            self.taken.set(before + msg.take_into(&mut bytes));
            let is_time = before >> 20 != self.taken.get() >> 20;
            match self.how {
                Breakage::LosesSend if is_time => return (Ok(()), msg),
                Breakage::WrongByte if is_time => bytes[0] ^= 1,
                _ => {}
            }
            let result = send_all(&*self.within, bytes).await;
            (if self.how == Breakage::SendsIntoNothing { Ok(()) } else { result }, msg)
        })
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.is_shut.set(self.is_shut.get() || how != Shutdown::Write);
        self.within.shutdown(how)
    }

    fn abandon(&self) {
        self.within.abandon();
    }

    fn into_free(self: Box<Self>) -> io::Result<FreeStream> {
        let BrokenStream { within, how, .. } = *self;
        if how == Breakage::LosesOnMove {
            // What is there is taken, and not passed on.
            let mut receive = within.recv(RecvMsg::new(1 << 20));
            let _ = receive.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        let free = within.into_free()?;
        Ok(FreeStream::new(move || Ok(BrokenStream::begin(free.adopt()?, how))))
    }
}

/// A check that finds nothing would show nothing: each fault is found, by the check that is for it.
#[test]
fn what_breaks_the_contract_is_found() {
    let of = |transport: Arc<dyn Transport>| {
        let limit = Duration::from_secs(10);
        check_within(limit, transport, "x", &Config::default()).expect_err("a fault").check
    };
    let found = |how: Breakage| {
        let (within, kept) = (InProcess::new(), Arc::default());
        (how, of(Arc::new(Broken { within, how, kept })))
    };
    assert_eq!(found(Breakage::WrongByte), (Breakage::WrongByte, "vectors"));
    assert_eq!(found(Breakage::LosesSend), (Breakage::LosesSend, "vectors"));
    assert_eq!(found(Breakage::WrongCount), (Breakage::WrongCount, "vectors"));
    assert_eq!(found(Breakage::TakesNothing), (Breakage::TakesNothing, "one byte at a time"));
    assert_eq!(found(Breakage::FirstWaker), (Breakage::FirstWaker, "wake-ups"));
    assert_eq!(found(Breakage::NoEnd), (Breakage::NoEnd, "half-close"));
    assert_eq!(found(Breakage::SendsIntoNothing), (Breakage::SendsIntoNothing, "half-close"));
    assert_eq!(found(Breakage::DeafToShutdown), (Breakage::DeafToShutdown, "shutdown of waiting calls"));
    assert_eq!(found(Breakage::LosesOnMove), (Breakage::LosesOnMove, "a stream that moves"));
    assert_eq!(found(Breakage::KeepsAddress), (Breakage::KeepsAddress, "connecting"));
    assert_eq!(of(Arc::new(InProcess::with_buffer(512 << 20))), "back-pressure");
}
