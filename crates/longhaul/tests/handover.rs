//! Volumes that go from one host to another: the host that serves one is killed, or is paused and
//! overtaken. The members are at targets that are 15 ms away.

mod common;

use common::etcd::Etcd;
use common::writers::Writers;
use common::{PATIENCE, Target, command, connect, finish, text, until};
use longhaul_block::Blocking;
use longhaul_initiator::{MultipathDevice, Options, PathState, PathStatus};
use longhaul_wan::relay::{Link, Relay};
use serde_json::Value;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ADMIN: &str = "nqn.2014-08.org.example:admin";
/// Any port of loopback.
const ANY: &str = "127.0.0.1:0";
const RTT: Duration = Duration::from_millis(15);
/// Targets, each with one member.
const MEMBERS: usize = 4;
/// Time to service in which a volume is to be there again. No test depends on it: machines may be busy.
const FLOOR: Duration = Duration::from_secs(10);

/// How long a lease lasts that a host takes in a catalog, and a little more.
const LEASE: Duration = Duration::from_secs(33);

/// What keeps two hosts from writing to the members.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Guard {
    /// Members of a pool, at targets with reservations.
    Reservations,
    /// Members in memory, whose reservations would not last: the array does not use them.
    Heartbeats,
}

/// Targets that are far away, and a volume that either of two hosts can serve.
struct Site {
    directory: tempfile::TempDir,
    guard: Guard,
    catalog: String,
    _targets: Vec<(Target, Relay)>,
}

/// A directory in memory, where this machine has such a file system: these tests do not depend on a disk.
fn directory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let root = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    tempfile::tempdir_in(root).expect("a directory")
}

impl Site {
    fn new(guard: Guard) -> Site {
        let directory = directory();
        let catalog = format!("file:{}", text(&directory.path().join("catalog")));
        Site::with(guard, directory, catalog)
    }

    fn with(guard: Guard, directory: tempfile::TempDir, catalog: String) -> Site {
        let mut site = Site { directory, guard, catalog, _targets: Vec::new() };
        let mut addresses = Vec::new();
        for number in 0..MEMBERS {
            let target = site.serve(number);
            let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let address = target.addr().parse().expect("an address");
            let relay = Relay::start(loopback, address, Link::round_trip(RTT)).expect("a relay");
            addresses.push(relay.local_addr().to_string());
            site._targets.push((target, relay));
        }
        match guard {
            Guard::Reservations => site.make_volume(&addresses),
            Guard::Heartbeats => site.make_array(&addresses),
        }
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn serve(&self, number: usize) -> Target {
        let mut target = self.command(&format!("target{number}"), &["target", "--json"]);
        target.args(["--discovery", "none", "--threads", "1", "--listen", common::LISTEN]);
        let space = format!("s=dir:{},size=64MiB", text(&self.path(&format!("space{number}"))));
        match self.guard {
            Guard::Reservations => target.args(["--space", &space, "--admin", ADMIN]),
            Guard::Heartbeats => target.args(["--export", "s=mem:32MiB"]),
        };
        Target::spawn(target)
    }

    /// The program as the host `host`, which has its own state.
    fn command(&self, host: &str, args: &[&str]) -> Command {
        let mut command = command(args);
        std::fs::create_dir_all(self.path(host)).expect("made");
        command.env("XDG_STATE_HOME", self.path(host)).env("XDG_RUNTIME_DIR", self.path(host));
        command
    }

    fn run(&self, host: &str, args: &[&str]) {
        let ran = finish(self.command(host, args).spawn().expect("started"));
        assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
    }

    fn make_volume(&self, targets: &[String]) {
        let specs: Vec<String> =
            targets.iter().enumerate().map(|(n, at)| format!("{at},domain=rack{n}")).collect();
        let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
        let known = ["--catalog", &self.catalog, "--hostnqn", ADMIN];
        self.run("admin", &[&["pool", "create", "p", "--target"], &specs[..], &known].concat());
        let create = ["volume", "create", "p/v", "--size", "32MiB", "--layout", "parity"];
        let hosts = ["--for", &nqn("one"), "--for", &nqn("two"), "--hostnqn", ADMIN];
        self.run("admin", &[&create[..], &hosts].concat());
        for host in ["one", "two"] {
            self.run(host, &[&["pool", "status", "p"][..], &known].concat());
        }
    }

    fn make_array(&self, targets: &[String]) {
        let devices: Vec<String> = targets.iter().map(|at| format!("nvme+tcp://{at}/s")).collect();
        let devices: Vec<&str> = devices.iter().flat_map(|uri| ["--device", uri]).collect();
        self.run("one", &[&["array", "create", "v", "--layout", "parity"], &devices[..]].concat());
        self.run("two", &[&["array", "assemble"], &devices[..]].concat());
    }

    /// Starts the head of a host: it serves the volume once the array is its own.
    fn head(&self, host: &str) -> Head {
        self.head_at(ANY, host, "")
    }

    /// Starts the head of a host that may stand by, as the other one does.
    fn standby(&self, host: &str) -> Head {
        self.head_at(ANY, host, ",standby")
    }

    /// Starts both: the first one serves the volume.
    fn both(&self) -> (Head, Head) {
        let first = self.standby("one");
        first.access("optimized");
        let second = self.standby("two");
        assert_eq!(second.identity(), first.identity(), "hosts take it for another disk");
        (first, second)
    }

    fn head_at(&self, address: &str, host: &str, option: &str) -> Head {
        let (mut command, said) = (self.command(host, &["target", "--json"]), self.path(host).join("said"));
        command.args(["--discovery", "none", "--threads", "1", "--listen", address]);
        let device = match self.guard {
            Guard::Reservations => "x=volume:p/v",
            Guard::Heartbeats => "x=array:v,nqn=nqn.2014-08.org.example:v",
        };
        command.args(["--export", &format!("{device}{option}"), "--hostnqn", &nqn(host)]);
        let target = Target::spawn_saying(command, File::create(&said).expect("a file"));
        Head { host: host.to_owned(), target, said }
    }
}

fn nqn(host: &str) -> String {
    format!("nqn.2014-08.org.example:{host}")
}

/// A host that serves the volume.
struct Head {
    host: String,
    target: Target,
    said: PathBuf,
}

impl Head {
    /// What hosts know the volume by.
    fn identity(&self) -> [Value; 3] {
        ["nqn", "nsid", "uuid"].map(|field| self.target.ready["exports"][0][field].clone())
    }

    fn connect(&self) -> Arc<Blocking> {
        Arc::new(connect(&self.target.uri(0)).expect("connected"))
    }

    fn signal(&self, name: &str) {
        common::signal(&self.target.child, name);
    }

    /// Kills it; when that was.
    fn kill(&mut self) -> Instant {
        self.signal("KILL");
        let killed = Instant::now();
        self.target.child.end(PATIENCE).expect("killed");
        killed
    }

    /// Waits until the access to the volume has changed: the reason, if it is not served here.
    fn access(&self, access: &str) -> Value {
        let event = self.target.event("access");
        assert_eq!(event["access"], access, "{event}");
        event["why"].clone()
    }

    /// The error of a write to a head that does not serve the volume.
    fn refusal(&self) -> String {
        let stale = connect(&self.target.uri(0))
            .and_then(|stale| stale.write_at(&[0xEE; 4096], 0).map_err(|e| e.to_string()));
        stale.expect_err("it serves no writes")
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.said).expect("UTF-8")
    }
}

/// How often a head is killed: `LONGHAUL_HANDOVERS` (2).
fn handovers() -> usize {
    std::env::var("LONGHAUL_HANDOVERS").map_or(2, |text| text.parse().expect("a number"))
}

fn killed_heads_lose_nothing(guard: Guard) {
    let (site, writers) = (Site::new(guard), Writers::new());
    let mut head = site.head("one");
    let identity = head.identity();
    let mut device = head.connect();
    let mut took = Vec::new();
    for (_, next) in (0..handovers()).zip(["two", "one"].into_iter().cycle()) {
        let load = loaded(&writers, &device);
        let killed = head.kill();
        head = site.head(next);
        device = head.connect();
        writers.write_one(&device);
        took.push(killed.elapsed());
        end(load);
        assert_eq!(head.identity(), identity, "hosts take it for another disk");
        writers.verify(&device);
    }
    writers.verify(&device);
    took.sort();
    eprintln!(
        "{} heads killed, guarded by {guard:?}: {} writes acknowledged, none lost; service again after {:.1} s \
         (median; at most {:.1} s, floor {} s)",
        took.len(),
        writers.acknowledged(),
        took[took.len() / 2].as_secs_f64(),
        took[took.len() - 1].as_secs_f64(),
        FLOOR.as_secs()
    );
}

#[test]
fn a_killed_head_loses_nothing_that_was_acknowledged() {
    killed_heads_lose_nothing(Guard::Reservations);
}

#[test]
fn a_killed_head_loses_nothing_without_reservations() {
    killed_heads_lose_nothing(Guard::Heartbeats);
}

/// A head that is paused under load and overtaken writes nothing any more once it goes on, and says so.
fn paused_heads_write_nothing(guard: Guard) {
    let (site, writers) = (Site::new(guard), Writers::new());
    let first = site.head("one");
    let device = first.connect();
    let load = loaded(&writers, &device);
    first.signal("STOP");
    let second = site.head("two");
    assert_eq!(second.identity(), first.identity());
    let device = second.connect();
    // Writers whose head does not answer give up after the keep-alive timeout.
    end(load);
    writers.verify(&device);
    writers.write_all(&device);
    first.signal("CONT");
    // The error names the head that serves the volume now, and says what to do.
    let why = first.access("inaccessible").to_string();
    assert!(why.contains("has taken it over") && why.contains("stop this target"), "{why}");
    assert!(why.contains(",standby"), "{why}");
    if guard == Guard::Reservations {
        assert!(why.contains(&format!("({}) opened it on 20", nqn("two"))), "{why}");
    }
    assert!(first.said().contains("is not served here any more"), "{}", first.said());
    writers.verify(&device);
    eprintln!("{guard:?}: the first head refuses a write: {}", first.refusal());
    writers.verify(&device);
    let load = loaded(&writers, &device);
    second.target.stop();
    end(load);
}

#[test]
fn a_paused_head_that_was_overtaken_writes_nothing() {
    paused_heads_write_nothing(Guard::Reservations);
}

#[test]
fn a_paused_head_that_was_overtaken_writes_nothing_without_reservations() {
    paused_heads_write_nothing(Guard::Heartbeats);
}

/// A load, once it has written something.
fn loaded(writers: &Writers, device: &Arc<Blocking>) -> Vec<std::thread::JoinHandle<String>> {
    let load = writers.load(device);
    writers.go_on(100);
    load
}

/// Ends a load whose head is gone.
fn end(load: Vec<std::thread::JoinHandle<String>>) {
    load.into_iter().for_each(|writer| drop(writer.join().expect("no panic")));
}

/// Two heads at a time: one serves the volume, and the other one takes it over by itself.
fn heads_stand_by(guard: Guard) {
    let (site, writers) = (Site::new(guard), Writers::new());
    let (mut first, second) = site.both();
    assert_eq!(second.target.ready["exports"][0]["access"], "inaccessible");
    assert!(second.refusal().contains("stands by"), "{}", second.refusal());

    let load = loaded(&writers, &first.connect());
    let killed = first.kill();
    second.access("optimized");
    let device = second.connect();
    writers.write_one(&device);
    let took = killed.elapsed().as_secs_f64();
    eprintln!(
        "{guard:?}: a head that stands by serves again after {took:.1} s (floor {} s)",
        FLOOR.as_secs()
    );
    end(load);
    writers.verify(&device);

    // The one that is paused and overtaken stands by, as soon as it goes on.
    let first = site.standby("one");
    let load = loaded(&writers, &device);
    second.signal("STOP");
    first.access("optimized");
    end(load);
    let device = first.connect();
    writers.verify(&device);
    writers.write_all(&device);
    second.signal("CONT");
    let why = second.access("inaccessible").to_string();
    assert!(why.contains("has taken it over"), "{why}");
    until("the overtaken head to stand by", || second.refusal().contains("stands by"));
    writers.verify(&device);

    // A head that ends in order gives it up at once.
    first.target.stop();
    second.access("optimized");
    writers.verify(&second.connect());
    second.target.stop();
}

#[test]
fn a_head_that_stands_by_takes_over() {
    heads_stand_by(Guard::Reservations);
}

#[test]
fn a_head_that_stands_by_takes_over_without_reservations() {
    heads_stand_by(Guard::Heartbeats);
}

/// A host with a path to each head: one is killed, and the requests that it has not answered, and all
/// later ones, go to the other one.
fn hosts_with_both_heads_go_on(guard: Guard) {
    let (site, writers) = (Site::new(guard), Writers::new());
    let (mut serving, mut other) = site.both();
    let uri = serving.target.uri(0);
    let both = format!("{},{}", serving.target.addr(), other.target.addr());
    let uri = uri.replace(&serving.target.addr(), &both).parse().expect("a URI");
    let paths = MultipathDevice::connect_blocking(&uri, Options::default()).expect("connected");
    let state = |address: &str| {
        let of = |path: PathStatus| (path.address == address).then_some(path.state);
        paths.paths().into_iter().find_map(of).expect("a path")
    };
    let device = Arc::new(Blocking::open(Arc::<MultipathDevice>::clone(&paths)).expect("opened"));
    let load = loaded(&writers, &device);
    let mut took = Vec::new();
    for _ in 0..handovers() {
        let killed = serving.kill();
        writers.write_one(&device);
        took.push(killed.elapsed());
        other.access("optimized");
        writers.go_on(100);
        // The host that was killed is there again, and stands by.
        let address = serving.target.addr();
        let again = site.head_at(&address, &serving.host, ",standby");
        (serving, other) = (other, again);
        until("the path to the other head", || state(&address) == PathState::Inaccessible);
        writers.go_on(100);
    }
    // One that is paused is overtaken, and given up by the host before its keep-alive timeout.
    serving.signal("STOP");
    other.access("optimized");
    writers.go_on(100);
    serving.signal("CONT");
    serving.access("inaccessible");
    until("the path to return", || state(&serving.target.addr()) == PathState::Inaccessible);
    writers.go_on(100);
    // One that ends in order gives it up at once.
    other.target.stop();
    serving.access("optimized");
    writers.go_on(100);
    assert!(load.iter().all(|writer| !writer.is_finished()), "a request has failed");
    took.sort();
    eprintln!(
        "{guard:?}: {} heads killed, {} writes acknowledged, no request failed; slowest request {:.1} s \
         (median; at most {:.1} s)",
        took.len(),
        writers.acknowledged(),
        took[took.len() / 2].as_secs_f64(),
        took[took.len() - 1].as_secs_f64(),
    );
    longhaul_engine::Engine::new(&longhaul_engine::Config::default())
        .expect("an engine")
        .block_on(async { paths.close().await });
    end(load);
    writers.verify(&serving.connect());
    serving.target.stop();
}

#[test]
fn a_host_with_both_heads_goes_on() {
    hosts_with_both_heads_go_on(Guard::Reservations);
}

#[test]
fn a_host_with_both_heads_goes_on_without_reservations() {
    hosts_with_both_heads_go_on(Guard::Heartbeats);
}

/// Without its catalog a volume is served, and taken over by a host that stands by; no other host
/// begins.
#[test]
fn a_volume_outlives_its_catalog() {
    let (directory, writers) = (directory(), Writers::new());
    let Some(mut etcd) = Etcd::start(directory.path()) else { return };
    let site = Site::with(Guard::Reservations, directory, etcd.catalog());
    let (first, second) = site.both();
    let open = |code: i32| {
        let load = ["bench", "volume:p/v", "--rw", "read", "--bs", "64k", "--size", "1m", "--hostnqn"];
        let ran =
            finish(site.command("two", &[&load[..], &[&nqn("two")]].concat()).spawn().expect("started"));
        assert_eq!(ran.code, Some(code), "{ran:?}");
        ran.stderr
    };
    // It says by whom the volume is used, and since when.
    let why = open(6);
    assert!(why.contains("in use by another host") && why.contains(&nqn("one")), "{why}");
    assert!(why.contains("opened it on 20"), "{why}");

    etcd.kill();
    let begun = Instant::now();
    let load = loaded(&writers, &first.connect());
    // Each of them waits for etcd as long as it may.
    let commands = [["volume", "ls", "p"], ["pool", "status", "p"], ["volume", "info", "p/v"]].map(|args| {
        let args = [&args[..], &["--hostnqn", ADMIN]].concat();
        site.command("one", &args).spawn().expect("started")
    });
    let why = open(5);
    assert!(why.contains("etcd"), "{why}");
    // What keeps two hosts from writing is at the members, and it is said.
    for command in commands {
        let ran = finish(command);
        assert_eq!(ran.code, Some(5), "{ran:?}");
        let on =
            "volume p/v is in use on this host and goes on: reservations at its members keep other hosts";
        assert!(ran.stderr.contains("cannot be reached") && ran.stderr.contains(on), "{ran:?}");
    }
    // Longer than a lease of the catalog lasts, if there were one: see `KnownPool::host`.
    while begun.elapsed() < LEASE {
        writers.go_on(100);
    }
    assert!(load.iter().all(|writer| !writer.is_finished()), "a write has failed");
    first.signal("KILL");
    second.access("optimized");
    end(load);
    let device = second.connect();
    writers.verify(&device);
    etcd.run();
    second.target.stop();
    open(0);
}
