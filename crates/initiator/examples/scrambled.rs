//! A transport of one's own, for both ends, without a change of the libraries: it scrambles the bytes of another
//! transport, and counts them.
//!
//! ```text
//! cargo run -p longhaul-initiator --example scrambled
//! ```
//!
//! It checks that the transport keeps its contract, serves 64 MiB of memory over it, and reads back what it has
//! written. (It shows how a transport is made; it protects nothing: use TLS, which works over any transport.)

use longhaul_block::{BlockDevice, Blocking, MemDevice};
use longhaul_conn::conformance;
use longhaul_conn::transport::{Address, FreeStream, Listener, Operation, Stream, Transport, Unix, send_all};
use longhaul_engine::{Config as EngineConfig, RecvMsg, SendMsg};
use longhaul_initiator::{Options, RemoteDevice, Uri};
use longhaul_target::{Config, Target, TransportListener};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are scrambled, and sent or received, at a time. So a stream needs no more memory, whatever it is given.
const PART: usize = 64 << 10;

/// Connections of the transport within, scrambled.
#[derive(Clone, Debug)]
pub struct Scrambled {
    within: Arc<dyn Transport>,
    bytes: Arc<AtomicU64>,
}

impl Scrambled {
    /// Over this transport.
    pub fn over(within: impl Transport + 'static) -> Scrambled {
        Scrambled { within: Arc::new(within), bytes: Arc::default() }
    }

    /// Bytes that were sent on all streams so far.
    pub fn sent(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Transport for Scrambled {
    fn connect<'a>(&'a self, address: &'a str) -> Operation<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let within = self.within.connect(address).await?;
            Ok(ScrambledStream::begin(within, &self.bytes))
        })
    }

    fn listen(&self, address: &str) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(ScrambledListener {
            within: self.within.listen(address)?,
            bytes: Arc::clone(&self.bytes),
        }))
    }
}

#[derive(Debug)]
struct ScrambledListener {
    within: Box<dyn Listener>,
    bytes: Arc<AtomicU64>,
}

impl Listener for ScrambledListener {
    fn accept(&self) -> Operation<'_, io::Result<(FreeStream, Address)>> {
        Box::pin(async move {
            let (within, peer) = self.within.accept().await?;
            let bytes = Arc::clone(&self.bytes);
            // It is not adopted here, but on the thread that is to serve it.
            Ok((FreeStream::new(move || Ok(ScrambledStream::begin(within.adopt()?, &bytes))), peer))
        })
    }

    fn address(&self) -> Address {
        self.within.address()
    }
}

/// A stream, and how far both directions are: a byte is scrambled according to its place.
#[derive(Debug)]
struct ScrambledStream {
    within: Box<dyn Stream>,
    sent: Cell<u64>,
    received: Cell<u64>,
    bytes: Arc<AtomicU64>,
}

impl ScrambledStream {
    fn begin(within: Box<dyn Stream>, bytes: &Arc<AtomicU64>) -> Box<dyn Stream> {
        let (sent, received, bytes) = (Cell::new(0), Cell::new(0), Arc::clone(bytes));
        Box::new(ScrambledStream { within, sent, received, bytes })
    }
}

/// Scrambles bytes at a place of a direction, or the reverse.
fn scramble(place: &Cell<u64>, bytes: &mut [u8]) {
    for byte in bytes {
        let at = place.get();
        *byte ^= (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
        place.set(at + 1);
    }
}

impl Stream for ScrambledStream {
    fn recv(&self, mut msg: RecvMsg) -> Operation<'_, (io::Result<usize>, RecvMsg)> {
        Box::pin(async move {
            msg.begin();
            // No more than has room, so that nothing is left over.
            let within = RecvMsg::new(msg.room().min(PART));
            let (result, within) = self.within.recv(within).await;
            if result.is_ok() {
                let mut bytes = within.staged().to_vec();
                scramble(&self.received, &mut bytes);
                msg.put(&bytes);
            }
            (result, msg)
        })
    }

    fn send(&self, mut msg: SendMsg) -> Operation<'_, (io::Result<()>, SendMsg)> {
        Box::pin(async move {
            let mut bytes = vec![0; msg.remaining().min(PART)];
            msg.take_into(&mut bytes);
            scramble(&self.sent, &mut bytes);
            self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            // What was taken has to go, also if the transport within stops on the way.
            (send_all(&*self.within, bytes).await, msg)
        })
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.within.shutdown(how)
    }

    fn abandon(&self) {
        self.within.abandon();
    }

    fn into_free(self: Box<Self>) -> io::Result<FreeStream> {
        let ScrambledStream { within, sent, received, bytes } = *self;
        let within = within.into_free()?;
        let adopt = move || {
            let within = within.adopt()?;
            Ok(Box::new(ScrambledStream { within, sent, received, bytes }) as Box<dyn Stream>)
        };
        Ok(FreeStream::new(adopt))
    }
}

/// Runs the example. A test of the library does, too.
///
/// # Errors
/// No target or no host can be had, or the transport breaks its contract.
pub fn main() -> Result<(), Box<dyn Error>> {
    let scrambled = Scrambled::over(Unix);
    let address = std::env::temp_dir().join(format!("longhaul-scrambled-{}", std::process::id()));
    let address = address.to_str().ok_or("the directory for temporary files has an odd name")?;

    conformance::check(Arc::new(scrambled.clone()), address, &EngineConfig::default())?;
    println!("the transport keeps its contract");

    let transport: Arc<dyn Transport> = Arc::new(scrambled.clone());
    let listener = TransportListener { transport: Arc::clone(&transport), address: address.to_owned() };
    let target = Target::start(Config { transports: vec![listener], ..Config::default() })?;
    let memory: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20, 4096)?);
    let nqn = "nqn.2026-11.io.longhaul:example:memory";
    target.export(nqn, "memory", memory, uuid::Uuid::new_v4())?;

    // In a URI the address is one part: its slashes are escaped.
    let uri: Uri = format!("nvme+scrambled://{}/{nqn}", address.replace('/', "%2F")).parse()?;
    let transports = BTreeMap::from([("scrambled".to_owned(), transport)]);
    let remote = RemoteDevice::connect_blocking(&uri, Options { transports, ..Options::default() })?;
    let disk = Blocking::open(remote)?;

    let before = scrambled.sent();
    let data: Vec<u8> = (0..8u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    disk.write_at(&data, 4096)?;
    disk.flush()?;
    let mut back = vec![0; data.len()];
    disk.read_at(&mut back, 4096)?;
    assert!(back == data, "what was acknowledged is there");
    let sent = scrambled.sent() - before;
    assert!(sent >= 2 * data.len() as u64, "it went over this transport");
    println!("{} bytes were written and read back; {sent} bytes were sent", data.len());
    Ok(())
}
