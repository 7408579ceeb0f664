//! What a catalog keeps when a process, a host or a member of it is lost.

mod common;

use common::Etcd;
use longhaul_catalog::{Catalog, Error, Expect, FileCatalog, FileOptions, ManualClock, Txn};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Set for the process that is killed: the path of its catalog.
const CATALOG: &str = "LONGHAUL_TEST_CATALOG";

/// The same for one of several that count at the same time.
const ALOUD: &str = "LONGHAUL_TEST_CATALOG_ALOUD";

const LONG: Duration = Duration::from_secs(120);

/// The counter, and the revision that put it.
fn number(catalog: &dyn Catalog) -> longhaul_catalog::Result<Option<(u64, u64)>> {
    let number = |text: &[u8]| String::from_utf8_lossy(text).parse().expect("a number");
    Ok(catalog.get(b"n")?.map(|entry| (number(&entry.value), entry.modified)))
}

/// The counter, and a transaction that adds one to it and puts an entry of that number.
fn counting(catalog: &dyn Catalog, value: &[u8]) -> longhaul_catalog::Result<(u64, Txn)> {
    let (n, expect) = match number(catalog)? {
        None => (0, Expect::Absent),
        Some((n, modified)) => (n, Expect::Modified(modified)),
    };
    let entry = format!("entry/{n:06}");
    let txn = Txn::new().expect(b"n", expect).put(b"n", (n + 1).to_string().as_bytes());
    Ok((n, txn.put(entry.as_bytes(), value)))
}

/// Adds one to the counter, and an entry of that number.
fn count(catalog: &dyn Catalog) -> longhaul_catalog::Result<bool> {
    let (_, txn) = counting(catalog, b"")?;
    Ok(catalog.commit(&txn)?.is_done())
}

/// As [`count`]; `None` if the answer was lost.
fn count_or_lose(catalog: &dyn Catalog) -> longhaul_catalog::Result<Option<bool>> {
    match count(catalog) {
        Err(Error::Unknown { .. }) => Ok(None),
        result => result.map(Some),
    }
}

/// Repeats what an election holds up, for longer than the catalog does: the machine may be busy.
fn patient<T>(mut call: impl FnMut() -> longhaul_catalog::Result<T>) -> T {
    let start = Instant::now();
    loop {
        match call() {
            Err(Error::Unreachable { .. }) if start.elapsed() < LONG => {}
            result => return result.expect("done"),
        }
    }
}

/// The count, which the entries confirm.
fn check(catalog: &dyn Catalog) -> u64 {
    let entries = patient(|| catalog.range(b"entry/", None)).entries;
    let n = patient(|| number(catalog)).map_or(0, |(n, _)| n);
    let keys: Vec<_> = entries.into_iter().map(|entry| entry.key).collect();
    let expected: Vec<_> = (0..n).map(|i| format!("entry/{i:06}").into_bytes()).collect();
    assert_eq!(keys, expected);
    n
}

/// The process that is killed; does nothing when it is run as a test.
#[test]
fn a_process_that_counts() {
    if let Some(path) = std::env::var_os(CATALOG) {
        let catalog = FileCatalog::open(Path::new(&path)).expect("opened");
        loop {
            count(&catalog).expect("counted");
        }
    }
}

#[test]
fn a_file_is_whole_after_its_processes_were_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("catalog");
    let catalog = FileCatalog::open(&path).expect("opened");
    let mut watch = catalog.watch(b"n", 1).expect("watched");
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..6 {
        let start = || {
            Command::new(std::env::current_exe().expect("a path"))
                .args(["--exact", "a_process_that_counts", "--nocapture"])
                .env(CATALOG, &path)
                .stdout(Stdio::null())
                .spawn()
                .expect("started")
        };
        let mut processes = [start(), start()];
        // In the midst of some transaction of either.
        let mut seen = 0;
        while seen < rng.usize(3..20) {
            let events = watch.next(LONG).expect("watched");
            assert!(!events.is_empty(), "the processes make progress");
            seen += events.len();
        }
        for process in &mut processes {
            process.kill().expect("killed");
            process.wait().expect("waited");
        }
        check(&catalog);
        // What was open before, and what is opened now, go on. The next transaction may find that
        // the last one of a killed process was made after all, once.
        let goes_on = |catalog: &FileCatalog| (0..2).any(|_| count(catalog).expect("counted"));
        assert!(goes_on(&catalog));
        let anew = FileCatalog::open(&path).expect("opened");
        assert!(goes_on(&anew));
        assert_eq!(check(&anew), check(&catalog));
    }
}

/// A process that counts, and prints each number that it has counted; it reads what the others have made in
/// between. Does nothing when it is run as a test.
#[test]
fn a_process_that_counts_aloud() {
    let Some(path) = std::env::var_os(ALOUD) else { return };
    let catalog = FileCatalog::open(Path::new(&path)).expect("opened");
    let id = std::process::id().to_string();
    for round in 0.. {
        let (n, mut txn) = counting(&catalog, id.as_bytes()).expect("read");
        // What is removed is room for what comes.
        for i in 0..round % 20 {
            let key = format!("scrap/{id}/{i}");
            txn =
                if round % 2 == 0 { txn.put(key.as_bytes(), &[7; 500]) } else { txn.delete(key.as_bytes()) };
        }
        if catalog.commit(&txn).expect("committed").is_done() {
            println!("{n}");
        }
        if round % 8 == 0 {
            let snapshot = catalog.range(b"", None).expect("read");
            let entries = snapshot.entries.iter().filter(|entry| entry.key.starts_with(b"entry/")).count();
            let counted = snapshot.entries.iter().find(|entry| entry.key == b"n").expect("counted");
            assert_eq!(entries.to_string().as_bytes(), counted.value);
        }
    }
}

#[test]
fn what_is_acknowledged_stays_though_processes_are_stopped_and_go_on() {
    const PROCESSES: usize = 4;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("catalog");
    let catalog = FileCatalog::open(&path).expect("opened");
    let said: Arc<Mutex<Vec<(u64, u32)>>> = Arc::default();
    let mut processes: Vec<Child> = (0..PROCESSES)
        .map(|_| {
            let mut process = Command::new(std::env::current_exe().expect("a path"))
                .args(["--exact", "a_process_that_counts_aloud", "--nocapture"])
                .env(ALOUD, &path)
                .stdout(Stdio::piped())
                .spawn()
                .expect("started");
            let (out, id) = (process.stdout.take().expect("piped"), process.id());
            let said = Arc::clone(&said);
            std::thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    // The harness prints other lines.
                    if let Ok(n) = line.parse() {
                        said.lock().expect("not poisoned").push((n, id));
                    }
                }
            });
            process
        })
        .collect();
    let mut rng = fastrand::Rng::new();
    let rounds = std::env::var("CATALOG_STOPS").map_or(60, |text| text.parse().expect("a number"));
    let mut last = 0;
    for _ in 0..rounds {
        let stopped: Vec<Pid> = (0..rng.usize(1..PROCESSES))
            .map(|_| Pid::from_child(&processes[rng.usize(..PROCESSES)]))
            .collect();
        for pid in &stopped {
            kill_process(*pid, Signal::STOP).expect("stopped");
        }
        std::thread::sleep(Duration::from_millis(rng.u64(1..60)));
        for pid in &stopped {
            kill_process(*pid, Signal::CONT).expect("goes on");
        }
        std::thread::sleep(Duration::from_millis(rng.u64(0..10)));
        let acknowledged = said.lock().expect("not poisoned").iter().map(|(n, _)| n + 1).max().unwrap_or(0);
        let n = number(&catalog).expect("read").map_or(0, |(n, _)| n);
        assert!(n >= acknowledged.max(last), "{n}, and {acknowledged} and {last} were there");
        last = n;
    }
    for process in &mut processes {
        assert_eq!(process.try_wait().expect("looked"), None, "it goes on");
        process.kill().expect("killed");
        process.wait().expect("waited");
    }
    let anew = FileCatalog::open(&path).expect("opened");
    assert_eq!(check(&anew), check(&catalog));
    let said = said.lock().expect("not poisoned");
    assert!(said.len() > 100, "{} are few", said.len());
    for (n, id) in said.iter() {
        let entry = anew.get(format!("entry/{n:06}").as_bytes()).expect("read").expect("there");
        assert_eq!(entry.value, id.to_string().as_bytes(), "{n}");
    }
    println!("{} counted", said.len());
}

#[test]
fn leases_end_with_their_time_and_with_their_host() {
    let clock = Arc::new(ManualClock::new());
    let options = || FileOptions { clock: clock.clone(), ..FileOptions::default() };
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("catalog");
    let catalog = FileCatalog::open_with(&path, options()).expect("opened");
    let ttl = Duration::from_secs(30);
    let put = |key: &[u8]| {
        let lease = catalog.grant(ttl).expect("granted");
        assert!(catalog.commit(&Txn::new().put_leased(key, b"", lease)).expect("committed").is_done());
        lease
    };
    let (kept, left) = (put(b"kept"), put(b"left"));
    clock.advance(Duration::from_secs(20));
    assert_eq!(catalog.keep(kept), Ok(ttl));
    clock.advance(Duration::from_millis(9_999));
    assert_eq!(catalog.range(b"", None).expect("read").entries.len(), 2);
    clock.advance(Duration::from_millis(1));
    // Also what is read as of now by another process, which has changed nothing.
    let other = FileCatalog::open_with(&path, options()).expect("opened");
    assert_eq!(other.get(b"left"), Ok(None));
    assert_eq!(catalog.keep(left), Err(Error::LeaseExpired(left)));
    assert_eq!(catalog.leases(), Ok(1));
    assert_eq!(catalog.range(b"", None).expect("read").entries[0].key, b"kept");
    clock.reboot();
    assert_eq!(catalog.range(b"", None).expect("read").entries, []);
    assert_eq!((catalog.leases(), other.leases()), (Ok(0), Ok(0)));
}

#[test]
fn a_file_that_is_not_a_catalog_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("text");
    std::fs::write(&path, vec![b'x'; 100_000]).expect("written");
    let error = FileCatalog::open(&path).err().expect("refused");
    assert!(error.to_string().starts_with(&format!("cannot open catalog {}: ", path.display())), "{error}");
    assert_eq!(std::fs::read(&path).expect("read"), vec![b'x'; 100_000]);
    let missing = dir.path().join("none").join("catalog");
    assert!(matches!(FileCatalog::open(&missing).err(), Some(Error::Failed { attempted: "open", .. })));
}

#[test]
fn etcd_goes_on_without_its_leader() {
    let Some(mut etcd) = Etcd::start(3) else { return longhaul_skip::skip!("etcd is not installed") };
    let catalog = etcd.catalog("longhaul/");
    let mut watch = catalog.watch(b"n", 1).expect("watched");
    let lease = catalog.grant(LONG * 30).expect("granted");
    catalog.commit(&Txn::new().put_leased(b"held", b"", lease)).expect("committed");
    // The counts that were answered, and those whose answers were lost.
    let (mut counted, mut unknown) = (0, 0);
    let mut attempt = |counted: &mut u64| match patient(|| count_or_lose(&catalog)) {
        Some(done) => *counted += u64::from(done),
        None => unknown += 1,
    };
    while counted < 20 {
        attempt(&mut counted);
    }
    let (killed, counts) = std::thread::scope(|scope| {
        let kill = scope.spawn(|| etcd.kill_leader());
        while !kill.is_finished() || counted < 60 {
            attempt(&mut counted);
        }
        (kill.join().expect("killed"), counted)
    });
    let n = check(&catalog);
    assert!((counts..=counts + unknown).contains(&n), "{counts} to {}: {n}", counts + unknown);
    // The watch has seen each count once, in order, although its member may be gone.
    let mut seen = Vec::new();
    while (seen.len() as u64) < n {
        let events = watch.next(LONG).expect("watched");
        assert!(!events.is_empty(), "{} of {n}", seen.len());
        seen.extend(events.into_iter().map(|event| event.value.expect("a value")));
    }
    let expected: Vec<_> = (1..=n).map(|i| i.to_string().into_bytes()).collect();
    assert_eq!(seen, expected);
    patient(|| catalog.keep(lease));
    assert!(patient(|| catalog.get(b"held")).is_some());
    // Without a majority nothing is changed, and nothing is said that may be wrong.
    assert!(etcd.ask(killed, "kv/range", &serde_json::json!({ "key": "AA==" })).is_none());
    etcd.kill_leader();
    assert!(matches!(catalog.get(b"n"), Err(Error::Unreachable { .. })));
    let refused = catalog.commit(&Txn::new().put(b"late", b""));
    assert!(matches!(refused, Err(Error::Unreachable { .. } | Error::Unknown { .. })), "{refused:?}");
}
