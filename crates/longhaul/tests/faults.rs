//! Real faults, end to end: a copy is made slow on purpose, and `diagnose` is to
//! say why. Slow storage is a file system of ours (FUSE), slow networks are
//! emulated links with settings of their own (root). What this machine cannot
//! have is skipped with a reason.
//!
//! All of them take a quarter of an hour: `cargo xtask faults [NAME…]` runs them
//! and prints the table that `docs/measuring.md` has.

mod common;
#[path = "common/slowfs.rs"]
mod slowfs;

use common::{Ran, command, follow, text};
use longhaul_wan::{Change, Conditions, Direction, Error, Plan, Queue, Wan};
use serde_json::Value;
use slowfs::{Slow, SlowFs};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const MS: Duration = Duration::from_millis(1);
/// Bits a second of emulated links.
const RATE: u64 = 100_000_000;
/// Share of the faults that are to be named: 18 of 20.
const NAMED: f64 = 0.9;

/// What a fault came to.
struct Outcome {
    summary: Value,
    /// What mending it brought, where `diagnose` itself cannot.
    mended: Option<f64>,
}

/// A fault: its name, the causes that are right, and how it is made; or why it
/// cannot be made here.
type Fault = (&'static str, &'static [&'static str], fn() -> Result<Outcome, String>);

const FAULTS: &[Fault] = &[
    ("slow source open", &["slow-open"], || {
        storage(Slow { open: 80 * MS, ..Slow::default() }, Slow::default(), &[])
    }),
    ("slow destination create", &["slow-create"], || {
        storage(Slow::default(), Slow { create: 30 * MS, ..Slow::default() }, &[])
    }),
    ("slow metadata server of the source", &["slow-metadata-source"], || {
        storage(Slow { lookup: 20 * MS, open: 20 * MS, ..Slow::default() }, Slow::default(), &[])
    }),
    ("slow metadata server of the destination", &["slow-metadata-destination"], || {
        storage(Slow::default(), Slow { lookup: 20 * MS, create: 20 * MS, ..Slow::default() }, &[])
    }),
    ("saturated source disk", &["slow-read"], || {
        storage(Slow { read: Some(3 << 20), ..Slow::default() }, Slow::default(), &["--bytes", "8MiB"])
    }),
    ("saturated destination disk", &["slow-write"], || {
        storage(Slow::default(), Slow { write: Some(3 << 20), ..Slow::default() }, &["--bytes", "8MiB"])
    }),
    ("too few readers", &["too-few-readers"], || {
        let slow = Slow { open: 4 * MS, ..Slow::default() };
        storage(slow, Slow::default(), &["--threads", "1", "--files", "256"])
    }),
    ("too few writers", &["too-few-writers"], || {
        let slow = Slow { settle: 4 * MS, ..Slow::default() };
        storage(Slow::default(), slow, &["--threads", "1", "--files", "256"])
    }),
    ("too many files at once", &["too-many-files"], || {
        storage(Slow { crowd: MS, ..Slow::default() }, Slow::default(), &["--threads", "32", "--files", "64"])
    }),
    ("rate cap", &["link-full"], || link(20 * MS, Some(20_000_000), |_| {}, None, &["--bytes", "2MiB"])),
    ("loss", &["loss"], || {
        link(
            20 * MS,
            Some(RATE),
            |wan| set(wan, Change { loss: Some(0.01), ..Change::default() }),
            None,
            CUBIC,
        )
    }),
    ("tiny queue", &["small-queue"], || {
        let queue = |wan: &Wan| set(wan, Change { queue: Some(Queue::Bytes(48 << 10)), ..Change::default() });
        link(40 * MS, Some(RATE), queue, None, CUBIC)
    }),
    ("reordering", &["reordering"], || {
        let reorder = Change { reorder: Some(0.05), reorder_by: Some(30 * MS), ..Change::default() };
        link(20 * MS, Some(RATE), |wan| set(wan, reorder), None, CUBIC)
    }),
    ("long path with the wrong congestion control", &["congestion-control"], || {
        // A queue that no slow start fills, and a loss now and then.
        let queue = Some(Queue::Products(12.0));
        let some = |wan: &Wan| set(wan, Change { loss: Some(0.0004), queue, ..Change::default() });
        let reno = ["--congestion", "reno", "--bytes", "16MiB", "--streams", "2"];
        link(150 * MS, Some(RATE), some, None, &reno)
    }),
    ("small receive buffer", &["receive-buffer"], || {
        let small = |wan: &Wan| sysctl(wan.server(1), "tcp_rmem", "4096 65536 65536");
        let large: fn(&Wan) = |wan| sysctl(wan.server(1), "tcp_rmem", "4096 131072 67108864");
        link(60 * MS, Some(RATE), small, Some(large), &[])
    }),
    ("small send buffer", &["send-buffer"], || {
        let small = |wan: &Wan| sysctl(wan.client(), "tcp_wmem", "4096 65536 65536");
        let large: fn(&Wan) = |wan| sysctl(wan.client(), "tcp_wmem", "4096 65536 67108864");
        link(60 * MS, Some(RATE), small, Some(large), &[])
    }),
    ("MTU black hole", &["black-hole"], || {
        let hole = |wan: &Wan| {
            sysctl(wan.client(), "tcp_mtu_probing", "0");
            set(wan, Change { black_hole: Some(1400), ..Change::default() });
        };
        link(20 * MS, Some(RATE), hole, None, &[])
    }),
    ("processor hog at the source", &["others-source"], hog),
    ("checksum-bound", &["checksum"], checksum),
    ("encryption-bound", &["encryption"], || {
        let dir = tempfile::tempdir().expect("directory");
        let key = dir.path().join("key");
        local_agent(Some(&key), &["--key-file", text(&key), "--bytes", "48MiB", "--files", "16"])
    }),
    ("processor hog at the destination", &["others-destination"], || {
        Err("both ends are on this machine: what takes one's processors takes the other's".into())
    }),
    ("interrupts on one processor", &["interrupts-source", "interrupts-destination"], || {
        Err("emulated links have no interrupts".into())
    }),
    ("power saving", &["power-saving-source"], || {
        Err("processors of this machine have no governor that may be changed".into())
    }),
];

const CUBIC: &[&str] = &["--congestion", "cubic"];
/// What all have unless it is said otherwise, since the last of an option counts.
const USUAL: [&str; 8] = ["--json", "--try", "--runs", "1", "--bytes", "8MiB", "--files", "64"];

/// The options, of which later ones take the place of earlier ones.
fn options<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut all: Vec<&str> = USUAL[..2].to_vec();
    for pair in USUAL[2..].chunks(2).chain(more.chunks(2)) {
        match all.iter().position(|one| *one == pair[0]) {
            Some(at) => all[at + 1] = pair[1],
            None => all.extend(pair),
        }
    }
    all
}

fn summary(ran: &Ran) -> Value {
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    ran.events().pop().expect("a summary")
}

/// Runs it to its end, however long that is: there are many copies in it.
fn run(mut command: Command, args: &[&str]) -> Ran {
    let out = command.args(args).stdin(Stdio::null()).env("XDG_CONFIG_HOME", "/nonexistent").output();
    let out = out.expect("started");
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran { code: out.status.code(), stdout: words(&out.stdout), stderr: words(&out.stderr) }
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_longhaul"))
}

/// Where files are read and written.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { dir: tempfile::tempdir().expect("directory") };
        for name in ["source", "destination", "slow-source", "slow-destination"] {
            fs::create_dir(place.at(name)).expect("made");
        }
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// Copies from one slow file system to another.
fn storage(source: Slow, destination: Slow, more: &[&str]) -> Result<Outcome, String> {
    let place = Place::new();
    let mount = |name: &str, slow| {
        SlowFs::mount(&place.at(name), &place.at(&format!("slow-{name}")), slow)
            .map_err(|e| format!("FUSE: {e}"))
    };
    let _mounted = (mount("source", source)?, mount("destination", destination)?);
    let (from, to) = (place.at("slow-source"), place.at("slow-destination"));
    let args = [&["diagnose", text(&from), text(&to)][..], &options(more)].concat();
    Ok(Outcome { summary: summary(&run(program(), &args)), mended: None })
}

/// A child that is killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An agent, and its URI.
fn agent(mut command: Command, args: &[&str]) -> (Running, String) {
    command.args(["agent", "--json"]).args(args).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.env("XDG_CONFIG_HOME", "/nonexistent").spawn().expect("started");
    let events = follow(child.stdout.take().expect("a pipe"));
    let running = Running(child);
    let ready = events.recv_timeout(common::PATIENCE).expect("an event");
    (running, ready["uri"].as_str().expect("a URI").to_owned())
}

fn set(wan: &Wan, change: Change) {
    wan.set(1, &change.only(Direction::There)).expect("conditions");
}

fn sysctl(at: &longhaul_wan::Namespace, name: &str, value: &str) {
    let write = || fs::write(format!("/proc/sys/net/ipv4/{name}"), value);
    at.run(write).expect("within").expect("a setting of the namespace");
}

/// Copies over an emulated link that `spoil` makes slow; `mend` does what the
/// remedy says, where that is not the copy's to do.
fn link(
    rtt: Duration,
    rate: Option<u64>,
    spoil: impl FnOnce(&Wan),
    mend: Option<fn(&Wan)>,
    more: &[&str],
) -> Result<Outcome, String> {
    let plan = Plan {
        star: Some(1),
        seed: Some(7),
        mtu: 1500,
        ..Plan::new(Plan::unique_name("f"), Conditions::new(rtt, rate))
    };
    let wan = match Wan::start(plan) {
        Ok(wan) => wan,
        Err(Error::Unavailable(why)) => return Err(why),
        Err(e) => panic!("{e}"),
    };
    spoil(&wan);
    let place = Place::new();
    let (from, to) = (place.at("source"), place.at("destination"));
    let listen = format!("{}:7400", wan.server_address(1));
    let there = wan.server(1).command(env!("CARGO_BIN_EXE_longhaul"));
    let (_agent, uri) = agent(there, &["--listen", &listen, "--root", text(&to), "--insecure"]);
    let here = || wan.client().command(env!("CARGO_BIN_EXE_longhaul"));
    let args = [&["diagnose", text(&from), &uri][..], &options(more)].concat();
    let summary = summary(&run(here(), &args));
    let Some(mend) = mend else { return Ok(Outcome { summary, mended: None }) };
    let copy = |name: &str| seconds(here, &["zero:64x128KiB", &format!("{uri}{name}")]);
    let before = copy("a");
    mend(&wan);
    Ok(Outcome { summary, mended: Some(before / copy("b")) })
}

/// Seconds of a copy, the better of two.
fn seconds(command: impl Fn() -> Command, args: &[&str]) -> f64 {
    let once = || {
        let args =
            [&["cp", "-r", "--json", "--streams", "4", "--readers", "4", "--writers", "4"], args].concat();
        let ran = run(command(), &args);
        let seconds = ran.events().last().and_then(|last| last["seconds"].as_f64());
        seconds.unwrap_or_else(|| panic!("{ran:?}"))
    };
    once().min(once())
}

/// Copies within this machine, while others take its processors.
fn hog() -> Result<Outcome, String> {
    let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().map(Running);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let hogs: Result<Vec<Running>, _> = (0..4 * processors).map(|_| spin()).collect();
    let hogs = hogs.map_err(|e| e.to_string())?;
    let place = Place::new();
    let (from, to) = (place.at("source"), place.at("destination"));
    let args = [&["diagnose", text(&from), text(&to)][..], &options(&["--bytes", "64MiB"])].concat();
    let summary = summary(&run(program(), &args));
    let zeroes = ["zero:64x1MiB", "null:"];
    let before = seconds(program, &zeroes);
    drop(hogs);
    Ok(Outcome { summary, mended: Some(before / seconds(program, &zeroes)) })
}

/// Copies to an agent on this machine, over a network that is none.
fn local_agent(key: Option<&std::path::Path>, more: &[&str]) -> Result<Outcome, String> {
    let place = Place::new();
    let (from, to) = (place.at("source"), place.at("destination"));
    let start = |secret: &[&str]| {
        agent(program(), &[&["--listen", "127.0.0.1:0", "--root", text(&to)][..], secret].concat())
    };
    let secret = key.map_or(vec!["--insecure"], |key| vec!["--key-file", text(key)]);
    let (_agent, uri) = start(&secret);
    let args = [&["diagnose", text(&from), &uri][..], &options(more)].concat();
    let summary = summary(&run(program(), &args));
    let Some(key) = key else { return Ok(Outcome { summary, mended: None }) };
    let (_open, open) = start(&["--insecure"]);
    let before = seconds(program, &["--key-file", text(key), "zero:16x3MiB", &format!("{uri}a")]);
    let after = seconds(program, &["zero:16x3MiB", &format!("{open}b")]);
    Ok(Outcome { summary, mended: Some(before / after) })
}

/// Copies with a checksum that takes long, where there is a quicker one.
fn checksum() -> Result<Outcome, String> {
    let took =
        ["blake3", "xxh3"].map(|name| seconds(program, &["--checksum", name, "zero:8x64MiB", "null:"]));
    if took[0] < 1.3 * took[1] {
        return Err(format!(
            "the strong checksum costs this machine next to nothing ({:.2} s and {:.2} s)",
            took[0], took[1]
        ));
    }
    local_agent(None, &["--checksum", "blake3", "--bytes", "96MiB", "--files", "16"])
}

/// Which faults were asked for: all, without names.
fn wanted(name: &str) -> bool {
    let names = std::env::var("LONGHAUL_FAULTS").unwrap_or_default();
    names.is_empty() || names.split(',').any(|one| name.contains(one.trim()))
}

#[test]
#[ignore = "takes a quarter of an hour: cargo xtask faults"]
fn faults_are_named() {
    let (mut made, mut named) = (0, 0);
    println!("| fault | named | predicted | achieved |\n|---|---|---|---|");
    for (name, causes, make) in FAULTS.iter().filter(|(name, ..)| wanted(name)) {
        let outcome = match make() {
            Ok(outcome) => outcome,
            Err(why) => {
                println!("| {name} | not made here: {why} | | |");
                continue;
            }
        };
        made += 1;
        let (first, tried) = (&outcome.summary["findings"][0], &outcome.summary["tried"]);
        let code = first["code"].as_str().unwrap_or("nothing");
        let right = causes.contains(&code);
        named += u32::from(right);
        let times = |gain: Option<f64>| gain.map_or("–".into(), |gain| format!("{gain:.2}"));
        let achieved = times(tried["achieved"].as_f64().or(outcome.mended));
        let found = if right { code.to_owned() } else { format!("**{code}**") };
        println!("| {name} | {found} | {} | {achieved} |", times(first["gain"].as_f64()));
        if !right || std::env::var_os("LONGHAUL_FAULTS_SEEN").is_some() {
            // By lines of its own: the table stays one.
            eprintln!("{name}: {}\n{}", outcome.summary["findings"], outcome.summary["seen"]);
        }
    }
    assert!(f64::from(named) >= NAMED * f64::from(made), "{named} of {made} faults were named");
}

#[test]
fn slow_opens_are_named_and_hidden_by_more_readers() {
    let slow = Slow { open: 30 * MS, ..Slow::default() };
    match storage(slow, Slow::default(), &["--files", "32", "--bytes", "1MiB"]) {
        Ok(outcome) => {
            let first = &outcome.summary["findings"][0];
            assert_eq!(first["code"], "slow-open", "{}", outcome.summary);
            assert!(first["remedy"].as_str().is_some_and(|remedy| remedy.contains("--readers")), "{first}");
            assert!(outcome.summary["tried"]["achieved"].is_number(), "{}", outcome.summary);
        }
        Err(why) => eprintln!("skip: {why}"),
    }
}

#[test]
fn a_machine_tells_another_what_it_does() {
    let place = Place::new();
    let (_agent, uri) =
        agent(command(&[]), &["--listen", "127.0.0.1:0", "--root", text(&place.at("source")), "--insecure"]);
    let into = place.at("told");
    let ran = common::longhaul(&["cp", "-r", &format!("{uri}machine:"), text(&into)]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let told = fs::read_to_string(into.join("machine")).expect("told");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("readable");
    assert!(told.starts_with(&format!("machine {}", boot.trim())), "{told}");
    assert!(told.contains("\nown_s ") && told.contains(".busy_s "), "{told}");
}
