//! Targets that are reached over other transports than TCP: what works over TCP works over them.

mod common;

#[path = "../examples/scrambled.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example, with a program of its own")]
mod scrambled;

use common::events::{drain, reconnected};
use common::load::Load;
use common::{NQN, backend, engines, in_time, pattern, read, until};
use longhaul_block::{BlockDevice, Blocking, IoError};
use longhaul_engine::{Config as EngineConfig, RecvMsg, SendMsg};
use longhaul_initiator::transport::{
    Address, FreeStream, InProcess, Listener, Operation, Registration, Stream, Tcp, Transport, Unix, send_all,
};
use longhaul_initiator::{ControllerEvent, Error, Options, PathOptions, RemoteDevice, discover};
use longhaul_target::{Config, Target, TransportListener};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use uuid::Uuid;

/// A transport, and an address of it.
struct Way {
    transport: Arc<dyn Transport>,
    address: String,
    _dir: Option<TempDir>,
}

impl Way {
    fn unix(wrap: impl FnOnce(Unix) -> Arc<dyn Transport>) -> Way {
        let dir = tempfile::tempdir().expect("a directory");
        let address = dir.path().join("socket").to_str().expect("a path").to_owned();
        Way { transport: wrap(Unix), address, _dir: Some(dir) }
    }

    fn in_process(wrap: impl FnOnce(InProcess) -> Arc<dyn Transport>) -> Way {
        Way { transport: wrap(InProcess::new()), address: "a target".into(), _dir: None }
    }

    /// Sockets of this machine, and pairs within the process.
    fn all() -> [Way; 2] {
        [Way::unix(|unix| Arc::new(unix)), Way::in_process(|pairs| Arc::new(pairs))]
    }

    /// A target that listens there and nowhere else.
    fn target(&self, engine: &EngineConfig) -> Target {
        let listener =
            TransportListener { transport: Arc::clone(&self.transport), address: self.address.clone() };
        let config =
            Config { transports: vec![listener], threads: 2, engine: engine.clone(), ..Config::default() };
        // The listener of a predecessor ends with its thread.
        let started = std::cell::OnceCell::new();
        until("the address to be free", || match Target::start(config.clone()) {
            Ok(target) => started.set(target).is_ok(),
            Err(e) => !e.to_string().contains("cannot listen"),
        });
        started.into_inner().expect("started")
    }

    /// The same with a namespace that has one identity over all lives of the target.
    fn serve(&self, engine: &EngineConfig, device: &Arc<dyn BlockDevice>) -> Target {
        let target = self.target(engine);
        target.export(NQN, "disk", Arc::clone(device), Uuid::from_u128(7)).expect("exported");
        target
    }

    fn uri(&self, subnqn: &str) -> String {
        format!("nvme+own://{}/{subnqn}", self.address.replace('/', "%2F"))
    }

    fn options(&self, engine: &EngineConfig) -> Options {
        let transports = BTreeMap::from([("own".to_owned(), Arc::clone(&self.transport))]);
        Options { transports, engine: engine.clone(), ..Options::default() }
    }

    fn connect(&self, options: Options) -> Result<Arc<RemoteDevice>, Error> {
        RemoteDevice::connect_blocking(&self.uri(NQN).parse()?, options)
    }
}

#[test]
fn io_of_all_sizes_goes_both_ways() {
    for engine in engines() {
        for way in Way::all() {
            for digests in [false, true] {
                let device = backend("mem:64MiB");
                let target = way.serve(&engine, &device);
                let path = PathOptions { connections: Some(3), ..PathOptions::default() };
                let options =
                    Options { hdr_digest: digests, data_digest: digests, path, ..way.options(&engine) };
                let remote = way.connect(options).expect("connected");
                let controller = remote.controller();
                assert_eq!((controller.hdr_digest, controller.data_digest), (digests, digests));
                assert_eq!((remote.info().size, remote.info().uuid), (64 << 20, Some(Uuid::from_u128(7))));
                let disk = Blocking::open_on(remote, engine.clone()).expect("opened");
                for (n, len) in [(8 << 20) - 4096, 4096, 8192, 1 << 20, 65_536].into_iter().enumerate() {
                    let (content, at) = (pattern(len, n as u64), (n as u64) << 23);
                    disk.write_at(&content, at).expect("written");
                    assert!(read(&disk, at, len).expect("read") == content, "{len} bytes");
                }
                disk.flush().expect("flushed");
                drop(disk);
                assert!(target.stop(), "everything is durable");
            }
        }
    }
}

#[test]
fn a_load_continues_with_the_next_target_at_the_address() {
    for engine in engines() {
        for way in Way::all() {
            let device = backend("mem:32MiB");
            let target = way.serve(&engine, &device);
            let remote = way.connect(way.options(&engine)).expect("connected");
            let mut events = remote.events();
            let load = Load::start(Arc::clone(&remote), engine.clone());
            load.more(200);
            // At once, with commands under way.
            drop(target);
            let target = way.serve(&engine, &device);
            reconnected(&mut events);
            load.more(200);
            // In order.
            assert!(target.stop());
            let _target = way.serve(&engine, &device);
            reconnected(&mut events);
            load.more(200);
            load.finish();
            assert!(!drain(&mut events).iter().any(|e| matches!(e, ControllerEvent::Lost(_))));
        }
    }
}

/// A transport whose first connections break, each after more bytes than the one before, in the middle of a message.
#[derive(Debug)]
struct Frail<T> {
    within: T,
    connections: AtomicUsize,
}

/// Connections that break, and how many more bytes each of them sends.
const FRAIL: (usize, usize) = (24, 20_000);

#[derive(Debug)]
struct FrailStream {
    within: Box<dyn Stream>,
    left: Cell<usize>,
}

impl<T: Transport> Transport for Frail<T> {
    fn connect<'a>(&'a self, address: &'a str) -> Operation<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let within = self.within.connect(address).await?;
            let number = self.connections.fetch_add(1, Ordering::Relaxed);
            let left = if number < FRAIL.0 { number * FRAIL.1 } else { usize::MAX };
            Ok(Box::new(FrailStream { within, left: Cell::new(left) }) as Box<dyn Stream>)
        })
    }

    fn listen(&self, address: &str) -> io::Result<Box<dyn Listener>> {
        self.within.listen(address)
    }
}

impl Stream for FrailStream {
    fn recv(&self, msg: RecvMsg) -> Operation<'_, (io::Result<usize>, RecvMsg)> {
        self.within.recv(msg)
    }

    fn send(&self, mut msg: SendMsg) -> Operation<'_, (io::Result<()>, SendMsg)> {
        Box::pin(async move {
            let mut bytes = vec![0; msg.remaining().min(self.left.get())];
            msg.take_into(&mut bytes);
            self.left.set(self.left.get() - bytes.len());
            if let Err(e) = send_all(&*self.within, bytes).await {
                return (Err(e), msg);
            }
            if self.left.get() == 0 {
                self.within.abandon();
                return (Err(io::ErrorKind::ConnectionReset.into()), msg);
            }
            (Ok(()), msg)
        })
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.within.shutdown(how)
    }

    fn abandon(&self) {
        self.within.abandon();
    }

    fn into_free(self: Box<Self>) -> io::Result<FreeStream> {
        let FrailStream { within, left } = *self;
        let within = within.into_free()?;
        Ok(FreeStream::new(move || Ok(Box::new(FrailStream { within: within.adopt()?, left }))))
    }
}

fn frail<T: Transport + 'static>(within: T) -> Arc<dyn Transport> {
    // The first ones would not come to the first command.
    Arc::new(Frail { within, connections: AtomicUsize::new(1) })
}

#[test]
fn connections_that_break_anywhere_cost_nothing() {
    for engine in engines() {
        for way in [Way::unix(frail), Way::in_process(frail)] {
            let _target = way.serve(&engine, &backend("mem:32MiB"));
            let remote = std::cell::OnceCell::new();
            until("a connection that holds until it is set up", || {
                way.connect(way.options(&engine)).is_ok_and(|device| remote.set(device).is_ok())
            });
            let remote = remote.into_inner().expect("connected");
            let load = Load::start(Arc::clone(&remote), engine.clone());
            load.more(500);
            until("the last of the connections that break", || {
                load.more(100);
                remote.disconnects() >= 5
            });
            load.finish();
        }
    }
}

#[test]
fn short_names_are_found_and_what_is_found_can_be_opened() {
    let engine = &EngineConfig::default();
    for way in Way::all() {
        let target = way.serve(engine, &backend("mem:32MiB"));
        assert_eq!(target.transport_addresses(), [Address::named(way.address.as_str())]);
        let uri = way.uri("disk").parse().expect("a URI");
        let remote = RemoteDevice::connect_blocking(&uri, way.options(engine)).expect("found");
        assert_eq!(remote.controller().subnqn, NQN);
        let status = remote.path_status();
        assert_eq!(status.address, format!("own:{}", way.address));
    }
    // A Unix socket needs no transport of the program.
    let way = Way::unix(|unix| Arc::new(unix));
    let _target = way.serve(engine, &backend("mem:32MiB"));
    let log = discover(&format!("unix:{}", way.address), 0, Options::default()).expect("a log");
    let uris: Vec<_> = log.records.iter().filter_map(longhaul_initiator::DiscoveryRecord::uri).collect();
    assert_eq!(uris, [format!("nvme+unix:///{NQN}?socket={}", way.address)]);
    let disk = Blocking::open(longhaul_initiator::open(&uris[0]).expect("connected")).expect("opened");
    assert_eq!(read(&disk, 0, 4096).expect("read"), [0; 4096]);
}

#[test]
fn errors_name_the_transport_and_the_address() {
    let engine = &EngineConfig::default();
    let unknown =
        longhaul_initiator::open(&format!("nvme+rdma://x/{NQN}")).expect_err("no transport").to_string();
    assert!(unknown.contains("no transport 'rdma'") && unknown.contains("tcp, unix"), "{unknown}");
    for way in Way::all() {
        let refused = way.connect(way.options(engine)).expect_err("nothing listens");
        assert!(matches!(refused, Error::Unreachable { .. }), "{refused:?}");
        assert!(refused.to_string().contains(&format!("cannot reach own:{}", way.address)), "{refused}");
        let first = way.target(engine);
        let listener =
            TransportListener { transport: Arc::clone(&way.transport), address: way.address.clone() };
        let second = Target::start(Config { transports: vec![listener], ..Config::default() });
        let taken = second.expect_err("the address is taken").to_string();
        assert!(taken.contains(&format!("cannot listen on {}", way.address)), "{taken}");
        drop(first);
    }
}

#[test]
fn io_fails_once_the_target_is_gone_for_good() {
    let engine = &EngineConfig::default();
    for way in Way::all() {
        let target = way.serve(engine, &backend("mem:32MiB"));
        let options = Options { ctrl_loss: Some(Duration::ZERO), ..way.options(engine) };
        let disk = Blocking::open(way.connect(options).expect("connected")).expect("opened");
        read(&disk, 0, 4096).expect("read");
        drop(target);
        let gone = in_time("a read without a target", move || read(&disk, 0, 4096)).expect_err("gone");
        assert!(matches!(gone, IoError::Unreachable(_)), "{gone:?}");
    }
}

/// A transport that wants to know the memory that it is given, as RDMA does.
#[derive(Clone, Debug)]
struct Registers {
    within: InProcess,
    now: Arc<AtomicUsize>,
    ever: Arc<AtomicUsize>,
}

struct Known(Arc<AtomicUsize>, usize);

impl Drop for Known {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::SeqCst);
    }
}

impl Transport for Registers {
    fn connect<'a>(&'a self, address: &'a str) -> Operation<'a, io::Result<Box<dyn Stream>>> {
        self.within.connect(address)
    }

    fn listen(&self, address: &str) -> io::Result<Box<dyn Listener>> {
        self.within.listen(address)
    }

    fn register(&self, memory: NonNull<[u8]>) -> Option<Registration> {
        self.now.fetch_add(memory.len(), Ordering::SeqCst);
        self.ever.fetch_add(memory.len(), Ordering::SeqCst);
        Some(Box::new(Known(Arc::clone(&self.now), memory.len())))
    }
}

#[test]
fn memory_of_a_target_is_registered_as_long_as_it_has_it() {
    let (now, ever) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
    let registers = Registers { within: InProcess::new(), now: Arc::clone(&now), ever: Arc::clone(&ever) };
    let way = Way { transport: Arc::new(registers), address: "x".into(), _dir: None };
    let engine = &EngineConfig::default();
    // A file is read and written through the target's memory.
    let dir = tempfile::tempdir().expect("a directory");
    let target = way.serve(engine, &backend(&format!("file:{},size=16MiB", dir.path().join("f").display())));
    let disk = Blocking::open(way.connect(way.options(engine)).expect("connected")).expect("opened");
    let content = pattern(1 << 20, 5);
    disk.write_at(&content, 0).expect("written");
    assert!(read(&disk, 0, content.len()).expect("read") == content);
    assert!(now.load(Ordering::SeqCst) >= content.len(), "the block with the data is known");
    let before = ever.load(Ordering::SeqCst);
    for _ in 0..20 {
        disk.write_at(&content, 0).expect("written");
    }
    assert!(
        ever.load(Ordering::SeqCst) < before + 20 * content.len(),
        "blocks are registered once, and used again"
    );
    drop(disk);
    assert!(target.stop());
    until("nothing to be registered", || now.load(Ordering::SeqCst) == 0);
}

#[test]
fn a_hundred_hosts_at_once() {
    let engine = &EngineConfig::default();
    for way in Way::all() {
        let target = way.serve(engine, &backend("mem:32MiB"));
        let options = way.options(engine);
        std::thread::scope(|scope| {
            let connect = |number: u64| {
                let (way, options) = (&way, options.clone());
                scope.spawn(move || {
                    let disk = Blocking::open(way.connect(options).expect("connected")).expect("opened");
                    let content = pattern(16_384, number);
                    disk.write_at(&content, number * 65_536).expect("written");
                    assert!(read(&disk, number * 65_536, content.len()).expect("read") == content);
                })
            };
            (0..100).map(connect).collect::<Vec<_>>().into_iter().for_each(|t| t.join().expect("no panic"));
        });
        until("the connections to end", || target.connections() == 0);
    }
}

/// TCP is a transport as any other, also where its queues do not use it as one.
#[test]
fn tcp_through_the_interface_is_tcp() {
    let engine = &EngineConfig::default();
    let way = Way { transport: Arc::new(Tcp), address: "127.0.0.2:0".into(), _dir: None };
    let target = way.serve(engine, &backend("mem:32MiB"));
    let address = target.transport_addresses()[0].to_string();
    let near = Way { address: address.clone(), transport: Arc::new(Tcp), _dir: None };
    let disk = Blocking::open(near.connect(way.options(engine)).expect("connected")).expect("opened");
    let content = pattern(3 << 20, 9);
    disk.write_at(&content, 4096).expect("written");
    assert!(read(&disk, 4096, content.len()).expect("read") == content);
    drop(longhaul_initiator::open(&format!("nvme+tcp://{address}/{NQN}")).expect("by the usual way"));
}

#[test]
fn the_example_of_an_own_transport_runs() {
    in_time("the example", || scrambled::main().expect("all is well"));
}
