//! `longhaul fs serve`: pools and file systems in pools that hosts share through a catalog server. What mounts needs
//! FUSE, and is skipped with a message elsewhere.

mod common;
#[path = "catalog_server/kills.rs"]
mod kills;

use common::site::{ADMIN, Site};
use common::{PATIENCE, Ran, Target, command, finish, longhaul, mounts_below, signal, text, until};
use longhaul_catalog::{Access, Catalog, CatalogSpec, Error, Expect, Txn};
use longhaul_wan::relay::{Link, Relay};
use serde_json::{Value, json};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A port that no connection of this machine is given meanwhile: see [`common::LISTEN`].
fn port() -> u16 {
    let held = TcpListener::bind(common::LISTEN).expect("a port");
    held.local_addr().expect("bound").port()
}

/// A catalog server that can be killed and started again.
struct Server {
    file: PathBuf,
    port: u16,
    more: Vec<String>,
    running: Option<Target>,
}

impl Server {
    fn start(directory: &Path, more: &[&str]) -> Server {
        let more = more.iter().map(|&arg| arg.to_owned()).collect();
        let mut server = Server { file: directory.join("served/catalog"), port: port(), more, running: None };
        server.run();
        server
    }

    fn run(&mut self) {
        let listen = format!("127.0.0.2:{}", self.port);
        let catalog = format!("file:{}", text(&self.file));
        let args = ["fs", "serve", "--json", "--listen", &listen, "--catalog", &catalog];
        let more: Vec<&str> = self.more.iter().map(String::as_str).collect();
        self.running = Some(Target::spawn(command(&[&args[..], &more].concat())));
    }

    fn kill(&mut self) {
        let mut running = self.running.take().expect("it runs");
        signal(&running.child, "KILL");
        running.child.end(PATIENCE).expect("killed");
    }

    /// As `--catalog` takes it.
    fn catalog(&self) -> String {
        format!("server:127.0.0.2:{}", self.port)
    }

    fn open(&self) -> Arc<dyn Catalog> {
        let spec: CatalogSpec = self.catalog().parse().expect("a name");
        spec.open(Access::default()).expect("opened")
    }
}

/// A file system in a pool whose catalog is at a server, and two hosts that know it.
struct Shared {
    site: Site,
    server: Server,
}

impl Shared {
    /// `None`, with the reason on standard error, where FUSE is missing.
    fn new(via: Option<&dyn Fn(&Server) -> String>) -> Option<Shared> {
        Shared::of_size("64MiB", via)
    }

    fn of_size(size: &str, via: Option<&dyn Fn(&Server) -> String>) -> Option<Shared> {
        if !longhaul_skip::can_open(&["/dev/fuse"]) {
            return None;
        }
        let site = Site::new(3);
        let server = Server::start(site.directory.path(), &[]);
        let specs = site.specs(0..3);
        let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
        let catalog = server.catalog();
        site.done(&[&["pool", "create", "p", "--catalog", &catalog, "--target"], &specs[..]].concat());
        site.done(&["fs", "create", "p/f", "--size", size, "--layout", "parity"]);
        let there = via.map_or(catalog, |via| via(&server));
        let shared = Shared { site, server };
        shared.knows_at("other", &there);
        Some(shared)
    }

    /// Another host learns of the pool by its catalog alone.
    fn knows(&self, host: &str) {
        self.knows_at(host, &self.server.catalog());
    }

    fn knows_at(&self, host: &str, catalog: &str) {
        let known = self.run(host, &["pool", "status", "p", "--catalog", catalog, "--hostnqn", ADMIN]);
        assert_eq!(known.code, Some(0), "{known:?}");
    }

    fn at(&self, name: &str) -> PathBuf {
        let at = self.site.path(name);
        fs::create_dir_all(&at).expect("made");
        at
    }

    /// Runs the program as a host.
    fn run(&self, host: &str, args: &[&str]) -> Ran {
        let mut command = command(args);
        let state = self.at(host);
        command.env("XDG_STATE_HOME", &state).env("XDG_RUNTIME_DIR", &state);
        finish(command.spawn().expect("started"))
    }

    /// Mounts it on a host; where.
    fn mount(&self, host: &str, more: &[&str]) -> PathBuf {
        let at = self.at(&format!("mount-{host}"));
        let args = ["mount", "fs:p/f", text(&at), "--hostnqn", ADMIN];
        let ran = self.run(host, &[&args[..], more].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        at
    }

    fn umount(&self, host: &str) {
        let ran = self.run(host, &["umount", text(&self.at(&format!("mount-{host}")))]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for mounted in mounts_below(self.site.directory.path()) {
            self.run("host", &["umount", "--lazy", &mounted]);
        }
    }
}

#[test]
fn two_hosts_see_each_others_files_and_go_on_after_a_kill_of_the_server() {
    let Some(mut shared) = Shared::new(None) else { return };
    let (here, there) = (shared.mount("host", &[]), shared.mount("other", &[]));
    fs::create_dir(here.join("d")).expect("made");
    fs::write(here.join("d/one"), b"of the first host").expect("written");
    assert_eq!(fs::read(there.join("d/one")).expect("read"), b"of the first host");
    fs::write(there.join("d/two"), vec![7; 300_000]).expect("written");
    assert_eq!(fs::read(here.join("d/two")).expect("read"), vec![7; 300_000]);
    let names = |at: &Path| {
        let mut names: Vec<_> =
            fs::read_dir(at).expect("listed").map(|e| e.expect("an entry").file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&here.join("d")), names(&there.join("d")));
    // A server that is killed and started again: the mounts go on by themselves.
    shared.server.kill();
    let waits = std::thread::spawn({
        let at = there.join("d/three");
        move || fs::write(at, b"made meanwhile")
    });
    shared.server.run();
    waits.join().expect("joined").expect("written once the server is back");
    assert_eq!(fs::read(here.join("d/three")).expect("read"), b"made meanwhile");
    shared.umount("host");
    shared.umount("other");
    let checked = shared.run("other", &["fs", "check", "p/f", "--json", "--hostnqn", ADMIN]);
    assert_eq!(checked.events().pop().expect("a summary")["problems"], 0, "{checked:?}");
}

/// `flock` and `fcntl` of programs on two hosts, which `data/locks.py` checks.
#[test]
fn locks_hold_between_two_hosts() {
    let has = |module: &str| {
        Command::new("python3").args(["-c", module]).output().is_ok_and(|said| said.status.success())
    };
    if !has("import fcntl") {
        longhaul_skip::skip!("python3 is not installed");
        return;
    }
    let Some(shared) = Shared::new(None) else { return };
    let (here, there) = (shared.at("mount-host"), shared.mount("other", &[]));
    let ran = shared.run("host", &["mount", "fs:p/f", text(&here), "--hostnqn", ADMIN, "--json"]);
    let pid =
        ran.events().iter().find_map(|event| event["pid"].as_u64()).expect("the process that serves it");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/locks.py");
    // What hangs ends.
    let mut python = Command::new("timeout");
    python
        .args(["-s", "KILL", "240", "python3", "-u"])
        .args([&script, &here, &there])
        .args(has("import sqlite3").then_some("sqlite"));
    let said = python.output().expect("started");
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success(), "{out}{err}");
    // A host that is lost: its locks end with its lease.
    let lost = fs::File::open(here.join("flock")).expect("opened");
    lost.lock().expect("had");
    let waits = fs::File::open(there.join("flock")).expect("opened");
    assert!(waits.try_lock().is_err(), "it is locked");
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().expect("kill").success());
    waits.lock().expect("had once the lease has run out");
    drop(waits);
    drop(lost);
    shared.run("host", &["umount", "--lazy", text(&here)]);
    shared.umount("other");
    let checked = shared.run("other", &["fs", "check", "p/f", "--json", "--hostnqn", ADMIN]);
    assert_eq!(checked.events().pop().expect("a summary")["problems"], 0, "{checked:?}");
}

#[test]
fn without_its_server_what_is_leased_is_read_and_the_rest_fails_in_time() {
    let Some(mut shared) = Shared::new(None) else { return };
    let here = shared.mount("host", &["--close", "lease"]);
    fs::create_dir(here.join("d")).expect("made");
    fs::write(here.join("d/kept"), vec![3; 5000]).expect("written");
    fs::File::open(here.join("d")).expect("opened").sync_all().expect("synced");
    shared.server.kill();
    assert_eq!(fs::read(here.join("d/kept")).expect("it is leased"), vec![3; 5000]);
    let began = Instant::now();
    let refused = fs::create_dir(here.join("other")).and_then(|()| fs::read_dir(here.join("none")).map(drop));
    assert!(refused.is_err());
    let synced =
        fs::write(here.join("d/late"), b"x").and_then(|()| fs::File::open(here.join("d"))?.sync_all());
    assert_eq!(synced.expect_err("it cannot be durable").raw_os_error(), Some(5));
    // A minute for what waits, and the patience of calls before it.
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    shared.server.run();
}

/// Adds an entry, and one to the counter, as often as it can; how often that was confirmed.
fn count(catalog: &dyn Catalog, client: usize, stop: &AtomicBool) -> u64 {
    let key = format!("count/{client}").into_bytes();
    let mut confirmed = 0;
    while !stop.load(Ordering::SeqCst) {
        let modified = catalog.get(&key).expect("read").map(|entry| entry.modified);
        let expect = modified.map_or(Expect::Absent, Expect::Modified);
        let entry = format!("entry/{client}/{confirmed:06}");
        let txn = Txn::new().expect(&key, expect).put(&key, confirmed.to_string().as_bytes());
        let txn = txn.expect(entry.as_bytes(), Expect::Absent).put(entry.as_bytes(), b"");
        match catalog.commit(&txn) {
            Ok(commit) => {
                // Sent again after a kill, it is answered, and not refused as if another one had made it.
                assert!(commit.is_done(), "client {client}: {confirmed}");
                confirmed += 1;
            }
            Err(Error::Unknown { .. }) => panic!("a transaction that was sent again has an answer"),
            Err(e) => panic!("{e}"),
        }
    }
    confirmed
}

#[test]
fn what_was_confirmed_is_there_after_kills_and_clients_go_on() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = Server::start(directory.path(), &[]);
    let stop = AtomicBool::new(false);
    let clients: Vec<Arc<dyn Catalog>> = (0..4).map(|_| server.open()).collect();
    let lease = clients[0].grant(Duration::from_secs(600)).expect("granted");
    assert!(clients[0].commit(&Txn::new().put_leased(b"held", b"", lease)).expect("committed").is_done());
    let confirmed: Vec<u64> = std::thread::scope(|scope| {
        let stop = &stop;
        let counting: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(client, catalog)| scope.spawn(move || count(&**catalog, client, stop)))
            .collect();
        let mut watch = clients[0].watch(b"entry/", 1).expect("watched");
        let mut seen = 0;
        for round in 1..=5 {
            // In the midst of some transaction of each.
            while seen < round * 40 {
                let events = watch.next(PATIENCE).expect("watched");
                assert!(!events.is_empty(), "the clients make progress");
                seen += events.len();
            }
            server.kill();
            server.run();
        }
        stop.store(true, Ordering::SeqCst);
        counting.into_iter().map(|thread| thread.join().expect("counted")).collect()
    });
    let catalog = server.open();
    for (client, confirmed) in confirmed.into_iter().enumerate() {
        let found = catalog.range(format!("entry/{client}/").as_bytes(), None).expect("read").entries;
        let keys: Vec<_> = found.into_iter().map(|entry| entry.key).collect();
        let expected: Vec<_> =
            (0..confirmed).map(|n| format!("entry/{client}/{n:06}").into_bytes()).collect();
        assert_eq!(keys, expected, "client {client}");
    }
    assert!(catalog.get(b"held").expect("read").is_some());
    server.running.take().expect("it runs").stop();
}

#[test]
fn a_server_listens_beyond_loopback_with_keys_or_where_it_may() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("catalog");
    let catalog = format!("file:{}", text(&file));
    let refused = longhaul(&["fs", "serve", "--listen", "0.0.0.0:0", "--catalog", &catalog]);
    assert!(refused.code == Some(2) && refused.stderr.contains("--keys DIR"), "{refused:?}");
    assert!(!file.exists(), "it was made");
    let other = longhaul(&["fs", "serve", "--catalog", "etcd:127.0.0.1:1"]);
    assert!(other.code == Some(2) && other.stderr.contains("file:PATH"), "{other:?}");
    let args = ["fs", "serve", "--json", "--insecure", "--listen", "0.0.0.0:0", "--catalog", &catalog];
    let open = Target::spawn(command(&args));
    assert_eq!((&open.ready["tls"], &open.ready["file"]), (&json!(false), &json!(text(&file))));
    open.stop();
    // A server that is not there.
    let gone = longhaul(&["pool", "ls", "--catalog", &format!("server:127.0.0.2:{}", port())]);
    assert_eq!(gone.code, Some(5), "{gone:?}");
}

#[test]
fn the_audit_log_and_metrics_show_clients() {
    let directory = tempfile::tempdir().expect("a directory");
    let audit = directory.path().join("audit");
    let more = ["--audit", text(&audit), "--metrics", "127.0.0.1:0"];
    let server = Server::start(directory.path(), &more);
    let ran = longhaul(&["pool", "ls", "--catalog", &server.catalog(), "--hostnqn", ADMIN]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let lines = || -> Vec<Value> {
        let text = fs::read_to_string(&audit).expect("read");
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    };
    let of = |event: &str| lines().into_iter().find(|line| line["event"] == event);
    until("the end of the client in the audit log", || of("disconnected").is_some());
    let connected = of("connected").expect("a line");
    assert_eq!((&connected["host"], &connected["tls"]), (&json!(ADMIN), &json!(false)));
    assert_eq!(connected["subsystem"], "nqn.2026-11.io.longhaul:catalog");
    let metrics =
        server.running.as_ref().expect("it runs").ready["metrics"].as_str().expect("an address").to_owned();
    let page = get(&metrics, "/metrics");
    assert!(
        page.contains("longhaul_catalog_clients 0") && page.contains("longhaul_catalog_reads_total"),
        "{page}"
    );
}

/// A page of a server of metrics.
fn get(address: &str, path: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).expect("connected");
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").expect("sent");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("received");
    page
}

/// Keys are made by every program; a server says what is missing before anything is done.
#[cfg(not(feature = "tls"))]
#[test]
fn a_program_without_tls_says_how_to_build_one_with_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let keys = directory.path().join("keys");
    make_key(&keys, ADMIN);
    let refused = longhaul(&["fs", "serve", "--keys", text(&keys)]);
    assert!(refused.code == Some(2) && refused.stderr.contains("--features tls"), "{refused:?}");
    // Nor does a host that has a key go on in the clear.
    let server = Server::start(directory.path(), &[]);
    let args = ["pool", "ls", "--catalog", &server.catalog(), "--hostnqn", ADMIN, "--keys", text(&keys)];
    let refused = longhaul(&args);
    assert!(refused.code == Some(6) && refused.stderr.contains("--features tls"), "{refused:?}");
}

fn make_key(keys: &Path, host: &str) {
    let made = longhaul(&["key", "make", host, "--keys", text(keys), "--tls"]);
    assert_eq!(made.code, Some(0), "{made:?}");
}

#[cfg(feature = "tls")]
#[test]
fn hosts_without_the_right_key_are_refused() {
    const STRANGER: &str = "nqn.2014-08.org.example:stranger";
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let (keys, other, audit) = (path("keys"), path("other"), path("audit"));
    make_key(&keys, ADMIN);
    make_key(&other, ADMIN);
    make_key(&other, STRANGER);
    let mut server = Server::start(directory.path(), &["--keys", text(&keys), "--audit", text(&audit)]);
    assert_eq!(server.running.as_ref().expect("it runs").ready["tls"], true);
    let list = |server: &Server, host: &str, more: &[&str]| {
        longhaul(&[&["pool", "ls", "--catalog", &server.catalog(), "--hostnqn", host], more].concat())
    };
    let with = |keys: &Path| vec!["--keys".to_owned(), text(keys).to_owned()];
    let list_with = |server: &Server, host: &str, keys: &Path| {
        let more = with(keys);
        list(server, host, &more.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let allowed = list_with(&server, ADMIN, &keys);
    assert_eq!(allowed.code, Some(0), "{allowed:?}");
    for (refused, why) in [
        (list(&server, ADMIN, &[]), "give --keys"),
        (list_with(&server, ADMIN, &other), "another key"),
        (list_with(&server, STRANGER, &other), "longhaul key make"),
    ] {
        assert!(refused.code == Some(6) && refused.stderr.contains(why), "{why}: {refused:?}");
    }
    let lines = || fs::read_to_string(&audit).expect("read");
    for why in ["no_tls", "wrong_secret", "no_key"] {
        until(why, || lines().contains(&format!("\"why\":\"{why}\"")));
    }
    // A rotation: both are accepted, and the old one is not after it was retired.
    let old = path("old");
    assert!(Command::new("cp").arg("-a").args([&keys, &old]).status().expect("cp").success());
    for verb in ["rotate", "retire"] {
        let ran = longhaul(&["key", verb, ADMIN, "--keys", text(&keys)]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let expected = if verb == "rotate" { 0 } else { 6 };
        assert_eq!(list_with(&server, ADMIN, &old).code, Some(expected), "{verb}");
    }
    // A host that has a key says nothing to a server that uses none.
    server.kill();
    server.more.clear();
    server.run();
    let refused = list_with(&server, ADMIN, &keys);
    assert!(refused.code == Some(6) && refused.stderr.contains("TLS"), "{refused:?}");
}

/// Long enough for a listing whose round trips are few, and too short for one with a round trip for each page of a
/// thousand.
#[test]
fn a_large_directory_is_listed_in_few_round_trips() {
    let rtt = Duration::from_millis(45);
    let relays = std::cell::RefCell::new(Vec::new());
    let via = |server: &Server| {
        let to = server.running.as_ref().expect("it runs").addr().parse().expect("an address");
        let relay = Relay::start("127.0.0.1:0".parse().expect("an address"), to, Link::round_trip(rtt));
        let relay = relay.expect("started");
        let catalog = format!("server:{}", relay.local_addr());
        relays.borrow_mut().push(relay);
        catalog
    };
    let Some(shared) = Shared::new(Some(&via)) else { return };
    let count = std::env::var("LONGHAUL_TEST_ENTRIES").ok().and_then(|n| n.parse().ok()).unwrap_or(5000);
    let here = shared.mount("host", &["--close", "lease"]);
    for directory in 0..5 {
        let at = here.join(format!("d{directory}"));
        fs::create_dir(&at).expect("made");
        for file in 0..count / 5 {
            fs::write(at.join(format!("file-{file:06}")), b"").expect("made");
        }
        fs::File::open(&at).expect("opened").sync_all().expect("synced");
    }
    shared.umount("host");
    let there = shared.mount("other", &[]);
    let before = relays.borrow()[0].stats();
    let began = Instant::now();
    let found = Command::new("find").arg(&there).args(["-size", "-1"]).output().expect("find");
    let took = began.elapsed();
    let lines = found.stdout.iter().filter(|byte| **byte == b'\n').count();
    println!("find of {count} files at {rtt:?}: {took:?} ({:?} before)", before);
    assert!(lines >= count, "{lines}");
    shared.umount("other");
}
