//! Injected faults, end to end: each makes a copy slow, and `diagnose` has to name the
//! cause. Slow storage is a FUSE file system of this project, slow networks are emulated
//! links (root). Faults that this machine cannot have are skipped with a reason.
//!
//! All faults together take most of an hour: `cargo xtask faults [NAME…]` runs them and
//! prints the table in `docs/diagnose.md`.

mod common;

use common::{Ran, Running, Target, command, finish_within, text};
use longhaul_engine::procfs::Process;
use longhaul_lab::slowfs::{Slow, SlowFs};
use longhaul_wan::{Change, Conditions, Error, LinkDirection, Queue, Wan, WanPlan};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MS: Duration = Duration::from_millis(1);
/// Rate of emulated links in bits per second.
const RATE: u64 = 100_000_000;
/// Least share of the faults whose cause is named: 18 of 20.
const NAMED: f64 = 0.9;
/// Least number of faults where all are possible (root, FUSE, emulated links).
const MADE: u32 = 20;
/// Largest relative error of a predicted gain.
const NEAR: f64 = 0.25;
/// Least share of the predictions within that error. Both sides of a comparison are ratios of
/// medians of three copies, which an idle machine measures to 10 % each. If all predictions are
/// right, nine of ten are within 25 % then, and of a dozen fewer than three of four in one of 100
/// runs.
const CAME_TRUE: f64 = 0.75;
/// Timeout of a run of `diagnose`, which bounds each of its copies itself.
const DIAGNOSE: Duration = Duration::from_secs(20 * 60);
/// Timeout of the first of several copies; of the others, a lower bound and a multiple of the
/// time of the first.
const COPY: (Duration, Duration, u32) = (Duration::from_secs(600), Duration::from_secs(60), 20);

/// Result of a fault.
struct Outcome {
    summary: Value,
    /// Ratio of the times with and without the fault, where `diagnose` itself tried no remedy.
    speedup: Option<f64>,
}

/// A fault: its name, the codes of right causes, and the function that injects and diagnoses
/// it, which fails with the reason where the fault is not possible.
type Fault = (&'static str, &'static [&'static str], fn() -> Result<Outcome, String>);

const FAULTS: &[Fault] = &[
    ("slow source open", &["slow-open"], || {
        storage([Slow { open: 80 * MS, ..Slow::default() }, Slow::default()], healthy(), &[])
    }),
    // The source is slow as well, so that it limits once the fault is removed.
    ("slow destination create", &["slow-create"], || {
        let open = Slow { open: 30 * MS, ..Slow::default() };
        let create = Slow { create: 30 * MS, ..Slow::default() };
        storage([open, create], [open, Slow::default()], &[])
    }),
    ("slow metadata server of the source", &["slow-metadata-source"], || {
        let create = Slow { create: 6 * MS, ..Slow::default() };
        let far = Slow { lookup: 20 * MS, open: 20 * MS, ..Slow::default() };
        storage([far, create], [Slow::default(), create], &[])
    }),
    ("slow metadata server of the destination", &["slow-metadata-destination"], || {
        let open = Slow { open: 60 * MS, ..Slow::default() };
        let far = Slow { lookup: 20 * MS, create: 20 * MS, ..Slow::default() };
        storage([open, far], [open, Slow::default()], &["--files", "32"])
    }),
    ("saturated source disk", &["slow-read"], || {
        let write = Slow { write: Some(12 << 20), ..Slow::default() };
        let read = Slow { read: Some(3 << 20), ..Slow::default() };
        storage([read, write], [Slow::default(), write], &[])
    }),
    ("saturated destination disk", &["slow-write"], || {
        let read = Slow { read: Some(12 << 20), ..Slow::default() };
        let write = Slow { write: Some(3 << 20), ..Slow::default() };
        storage([read, write], [read, Slow::default()], &[])
    }),
    ("too few readers", &["too-few-readers"], || {
        let slow = Slow { open: 4 * MS, ..Slow::default() };
        storage([slow, Slow::default()], healthy(), &["--threads", "1", "--files", "256"])
    }),
    ("too few writers", &["too-few-writers"], || {
        let slow = Slow { settle: 4 * MS, ..Slow::default() };
        storage([Slow::default(), slow], healthy(), &["--threads", "1", "--files", "256"])
    }),
    ("too few files at once", &["too-few-files"], || {
        let open = Slow { open: 4 * MS, ..Slow::default() };
        let settle = Slow { settle: 4 * MS, ..Slow::default() };
        storage([open, settle], healthy(), &["--threads", "1", "--files", "256"])
    }),
    ("too many files at once", &["too-many-files"], || {
        let crowd = Slow { crowd: MS, ..Slow::default() };
        storage([crowd, Slow::default()], healthy(), &["--threads", "32", "--files", "64"])
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
        // A queue that slow start does not fill, and rare random loss.
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
    ("processor hog at the destination", &["others-destination"], hog_at_destination),
    ("interrupts on one processor", &["interrupts-source", "interrupts-destination"], || {
        Err("emulated links have no interrupts".into())
    }),
    ("power saving", &["power-saving-source"], || {
        Err("processors of this machine have no governor that may be changed".into())
    }),
];

const CUBIC: &[&str] = &["--congestion", "cubic"];
/// Default options of `diagnose`.
const USUAL: [&str; 8] = ["--json", "--try", "--runs", "1", "--bytes", "8MiB", "--files", "64"];

/// The default options, with those in `more` replaced or added.
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

/// Delays of storage without a fault.
fn healthy() -> [Slow; 2] {
    [Slow::default(); 2]
}

/// The summary of `diagnose`, or an object with its error.
fn summary(ran: &Ran) -> Value {
    match ran.code {
        Some(0) => ran.events().pop().unwrap_or_default(),
        _ => json!({ "failed": ran.stderr }),
    }
}

/// Runs a command to its end, or fails after `limit`.
fn run(mut command: Command, args: &[&str], limit: Duration) -> Ran {
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.env("XDG_CONFIG_HOME", "/nonexistent").spawn().expect("started");
    finish_within(child, limit).unwrap_or_else(|| {
        let why = format!("longhaul {} took longer than {} s", args.join(" "), limit.as_secs());
        Ran { code: None, stdout: String::new(), stderr: why }
    })
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_longhaul"))
}

/// Directories of the files that are read and written.
struct Directories {
    dir: TempDir,
}

impl Directories {
    fn new() -> Directories {
        let dirs = Directories { dir: tempfile::tempdir().expect("directory") };
        for name in ["source", "destination", "slow-source", "slow-destination"] {
            fs::create_dir(dirs.at(name)).expect("made");
        }
        dirs
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Mounts source and destination through slow file systems.
    fn mount(&self, [source, destination]: [Slow; 2]) -> Result<[SlowFs; 2], String> {
        let mount = |name: &str, slow| {
            SlowFs::mount(&self.at(name), &self.at(&format!("slow-{name}")), slow)
                .map_err(|e| format!("FUSE: {e}"))
        };
        Ok([mount("source", source)?, mount("destination", destination)?])
    }

    /// Generates the files of a copy with these options of `diagnose`, and returns their
    /// directory below the source.
    fn make(&self, options: &[&str]) -> &'static str {
        let dir = self.at("source").join("data");
        let (files, bytes) = (value(options, "--files"), value(options, "--bytes"));
        let args = ["dataset", "make", "equal", text(&dir), "--files", files, "--scale", bytes];
        let ran = run(program(), &args, COPY.0);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        "data"
    }
}

/// The value of an option.
fn value<'a>(options: &[&'a str], name: &str) -> &'a str {
    let at = options.iter().position(|one| *one == name);
    at.and_then(|at| options.get(at + 1)).copied().unwrap_or("4")
}

/// Copies from one slow file system to another. `repaired` are their delays without the
/// fault, for a remedy that is not an option of the copy.
fn storage(slow: [Slow; 2], repaired: [Slow; 2], more: &[&str]) -> Result<Outcome, String> {
    let (dirs, options) = (Directories::new(), options(more));
    let mounted = dirs.mount(slow)?;
    let (from, to) = (dirs.at("slow-source"), dirs.at("slow-destination"));
    let args = [&["diagnose", text(&from), text(&to)][..], &options].concat();
    let summary = summary(&run(program(), &args, DIAGNOSE));
    drop(mounted);
    if summary["tried"]["achieved"].is_number() {
        return Ok(Outcome { summary, speedup: None });
    }
    // The same copy with and without the fault.
    let from = from.join(dirs.make(&options));
    let time = |slow, name: &str| {
        let mounted = dirs.mount(slow)?;
        let seconds = seconds(program, &options, text(&from), text(&to.join(name)), &[]);
        drop(mounted);
        Ok::<_, String>(seconds)
    };
    let (before, after) = (time(slow, "before")?, time(repaired, "after")?);
    Ok(Outcome { summary, speedup: times(before, after) })
}

/// The speed-up: the time before, divided by the time after.
fn times(before: Option<f64>, after: Option<f64>) -> Option<f64> {
    Some(before? / after?)
}

/// An agent, and its URI.
fn agent(mut command: Command, args: &[&str]) -> (Target, String) {
    command
        .args(["agent", "--json", "--user", &common::own_user()])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command.env("XDG_CONFIG_HOME", "/nonexistent");
    let agent = Target::spawn(command);
    let uri = agent.ready["uri"].as_str().expect("a URI").to_owned();
    (agent, uri)
}

fn set(wan: &Wan, change: Change) {
    wan.set(1, &change.only(LinkDirection::There)).expect("conditions");
}

fn sysctl(at: &longhaul_wan::Namespace, name: &str, value: &str) {
    let write = || fs::write(format!("/proc/sys/net/ipv4/{name}"), value);
    at.run(write).expect("within").expect("a setting of the namespace");
}

/// Copies over an emulated link that `spoil` makes slow; `repair` removes the fault,
/// where the remedy is not an option of the copy.
fn link(
    rtt: Duration,
    rate: Option<u64>,
    spoil: impl FnOnce(&Wan),
    repair: Option<fn(&Wan)>,
    more: &[&str],
) -> Result<Outcome, String> {
    let plan = WanPlan {
        star: Some(1),
        seed: Some(7),
        mtu: 1500,
        ..WanPlan::new(WanPlan::unique_name("f"), Conditions::new(rtt, rate))
    };
    let wan = match Wan::start(plan) {
        Ok(wan) => wan,
        Err(Error::Unavailable(why)) => return Err(why),
        Err(e) => panic!("{e}"),
    };
    for namespace in [wan.client(), wan.server(1)] {
        // Otherwise Linux caches the reordering metric and the slow-start threshold of a
        // path, and one copy would affect the next one.
        sysctl(namespace, "tcp_no_metrics_save", "1");
    }
    spoil(&wan);
    let dirs = Directories::new();
    let (from, to) = (dirs.at("source"), dirs.at("destination"));
    let listen = format!("{}:7400", wan.server_address(1));
    let there = wan.server(1).command(env!("CARGO_BIN_EXE_longhaul"));
    let (_agent, uri) = agent(there, &["--listen", &listen, "--root", text(&to), "--insecure"]);
    let here = || wan.client().command(env!("CARGO_BIN_EXE_longhaul"));
    let options = options(more);
    let args = [&["diagnose", text(&from), &uri][..], &options].concat();
    let summary = summary(&run(here(), &args, DIAGNOSE));
    let Some(repair) = repair else { return Ok(Outcome { summary, speedup: None }) };
    let from = from.join(dirs.make(&options));
    let copy = |name: &str| seconds(here, &options, text(&from), &format!("{uri}{name}"), &[]);
    let before = copy("before");
    repair(&wan);
    Ok(Outcome { summary, speedup: times(before, copy("after")) })
}

/// Median seconds of three copies with these options of `diagnose`; `None` if one fails.
fn seconds(
    command: impl Fn() -> Command,
    options: &[&str],
    from: &str,
    to: &str,
    more: &[&str],
) -> Option<f64> {
    let threads = value(options, "--threads");
    let numbers = ["--streams", value(options, "--streams"), "--readers", threads, "--writers", threads];
    let (mut limit, mut all) = (COPY.0, Vec::new());
    for round in 0..3 {
        forget(Path::new(from));
        let to = if to.ends_with("null:") { to.to_owned() } else { format!("{to}{round}") };
        let args = [&["cp", "-r", "--json"][..], &numbers, more, &[from, &to]].concat();
        let began = Instant::now();
        let ran = run(command(), &args, limit);
        if round == 0 {
            limit = (began.elapsed() * COPY.2).max(COPY.1);
        }
        match ran.code {
            Some(0) => all.extend(ran.events().last().and_then(|last| last["seconds"].as_f64())),
            _ => eprintln!("{}", ran.stderr),
        }
    }
    all.sort_by(f64::total_cmp);
    (all.len() == 3).then(|| all[1])
}

/// Evicts files from the page cache, as `diagnose` does.
fn forget(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            forget(&path);
        } else if let Ok(file) = fs::File::open(&path) {
            // A failure is ignored: the file stays cached.
            let _ = file.sync_data();
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
    }
}

/// Starts `number` processes that use the processors in `list` without pause.
fn hogs(number: usize, on: &str) -> Result<Vec<Running>, String> {
    let spin =
        || Command::new("taskset").args(["-c", on, "sh", "-c", "while :; do :; done"]).spawn().map(Running);
    (0..number).map(|_| spin()).collect::<Result<_, _>>().map_err(|e| format!("taskset: {e}"))
}

/// Copies within this machine, while other processes use its processors.
fn hog() -> Result<Outcome, String> {
    let processors = Process::own().processors().expect("a list");
    let list = processors.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let hogs = hogs(4 * processors.len(), &list)?;
    let (dirs, options) = (Directories::new(), options(&["--bytes", "256MiB"]));
    let (from, to) = (dirs.at("source"), dirs.at("destination"));
    let args = [&["diagnose", text(&from), text(&to)][..], &options].concat();
    let summary = summary(&run(program(), &args, DIAGNOSE));
    let from = from.join(dirs.make(&options));
    let copy = |name: &str| seconds(program, &options, text(&from), text(&to.join(name)), &[]);
    let before = copy("before");
    drop(hogs);
    Ok(Outcome { summary, speedup: times(before, copy("after")) })
}

/// Copies to an agent on a processor of its own, which other processes use as well.
fn hog_at_destination() -> Result<Outcome, String> {
    let processors = Process::own().processors().expect("a list");
    let [near, .., far] = &*processors else {
        return Err("both ends are on one processor: what takes one's takes the other's".into());
    };
    let (near, far) = (near.to_string(), far.to_string());
    let on = |processor: &str| {
        let mut command = Command::new("taskset");
        command.args(["-c", processor, env!("CARGO_BIN_EXE_longhaul")]);
        command
    };
    let (dirs, options) = (Directories::new(), options(&["--bytes", "256MiB"]));
    let (from, to) = (dirs.at("source"), dirs.at("destination"));
    let (_agent, uri) = agent(on(&far), &["--listen", "127.0.0.1:0", "--root", text(&to), "--insecure"]);
    let hogs = hogs(4, &far)?;
    let args = [&["diagnose", text(&from), &uri][..], &options].concat();
    let summary = summary(&run(on(&near), &args, DIAGNOSE));
    let from = from.join(dirs.make(&options));
    let copy = |name: &str| seconds(|| on(&near), &options, text(&from), &format!("{uri}{name}"), &[]);
    let before = copy("before");
    drop(hogs);
    Ok(Outcome { summary, speedup: times(before, copy("after")) })
}

/// Copies to an agent on this machine, over loopback.
fn local_agent(key: Option<&Path>, more: &[&str]) -> Result<Outcome, String> {
    let (dirs, options) = (Directories::new(), options(more));
    let (from, to) = (dirs.at("source"), dirs.at("destination"));
    let start = |secret: &[&str]| {
        agent(program(), &[&["--listen", "127.0.0.1:0", "--root", text(&to)][..], secret].concat())
    };
    let secret = key.map_or(vec!["--insecure"], |key| vec!["--key-file", text(key)]);
    let (_agent, uri) = start(&secret);
    let args = [&["diagnose", text(&from), &uri][..], &options].concat();
    let summary = summary(&run(program(), &args, DIAGNOSE));
    let Some(key) = key else { return Ok(Outcome { summary, speedup: None }) };
    let (_open, open) = start(&["--insecure"]);
    let from = from.join(dirs.make(&options));
    let copy = |to: &str, more: &[&str]| seconds(program, &options, text(&from), to, more);
    let before = copy(&format!("{uri}before"), &["--key-file", text(key)]);
    Ok(Outcome { summary, speedup: times(before, copy(&format!("{open}after"), &[])) })
}

/// Copies with a slow checksum, where a faster one exists.
fn checksum() -> Result<Outcome, String> {
    let [strong, quick] = ["blake3", "xxh3"].map(|name| {
        seconds(program, &[], "zero:8x64MiB", "null:", &["--checksum", name]).unwrap_or(f64::NAN)
    });
    // `diagnose` ignores smaller differences.
    if strong < 1.3 * quick {
        return Err(format!(
            "the strong checksum costs this machine next to nothing ({strong:.2} s and {quick:.2} s)"
        ));
    }
    local_agent(None, &["--checksum", "blake3", "--bytes", "96MiB", "--files", "16"])
}

/// Whether a fault is selected by `LONGHAUL_FAULTS`; without it, all are.
fn wanted(name: &str) -> bool {
    let names = std::env::var("LONGHAUL_FAULTS").unwrap_or_default();
    names.is_empty() || names.split(',').any(|one| name.contains(one.trim()))
}

/// Predicted and achieved speed-up of a remedy.
struct Promise {
    predicted: Option<f64>,
    achieved: Option<f64>,
    /// Whether the prediction is a lower bound.
    at_least: bool,
}

impl Promise {
    fn of(outcome: &Outcome) -> Promise {
        let (first, tried) = (&outcome.summary["findings"][0], &outcome.summary["tried"]);
        Promise {
            predicted: first["gain"].as_f64(),
            achieved: tried["achieved"].as_f64().or(outcome.speedup),
            at_least: first["at_least"] == true,
        }
    }

    /// Whether the prediction was right; `None` without both values.
    fn came_true(&self) -> Option<bool> {
        let ratio = self.predicted? / self.achieved?;
        Some(ratio <= 1.0 + NEAR && (self.at_least || ratio >= 1.0 - NEAR))
    }
}

#[test]
#[ignore = "takes the better part of an hour: cargo xtask faults"]
fn faults_are_named() {
    let (mut made, mut named, mut compared, mut came_true) = (0_u32, 0_u32, 0_u32, 0_u32);
    println!("| fault | named | predicted | achieved | within 25 % |\n|---|---|---|---|---|");
    for (name, causes, make) in FAULTS.iter().filter(|(name, ..)| wanted(name)) {
        let outcome = match make() {
            Ok(outcome) => outcome,
            Err(why) => {
                println!("| {name} | not made here: {why} | | | |");
                continue;
            }
        };
        made += 1;
        let code = outcome.summary["findings"][0]["code"].as_str().unwrap_or("nothing");
        let right = causes.contains(&code);
        named += u32::from(right);
        let promise = Promise::of(&outcome);
        // The gain predicted for a wrong cause says nothing about this fault.
        let near = promise.came_true().filter(|_| right);
        compared += u32::from(near.is_some());
        came_true += u32::from(near == Some(true));
        let times = |gain: Option<f64>| gain.map_or("–".into(), |gain| format!("{gain:.2}"));
        let found = if right { code.to_owned() } else { format!("**{code}**") };
        let least = if promise.at_least && promise.predicted.is_some() { "≥ " } else { "" };
        let (predicted, achieved) = (times(promise.predicted), times(promise.achieved));
        let near = near.map_or("", |near| if near { "yes" } else { "**no**" });
        println!("| {name} | {found} | {least}{predicted} | {achieved} | {near} |");
        if !right || std::env::var_os("LONGHAUL_FAULTS_SEEN").is_some() {
            // On standard error, so that the table is not interrupted.
            let summary = &outcome.summary;
            eprintln!("{name}: {}\n{}", summary["findings"], summary["seen"]);
            eprintln!("{} {}", summary["notes"], summary["failed"].as_str().unwrap_or_default());
        }
    }
    println!("\n{named} of {made} named, {came_true} of {compared} predictions within 25 %");
    let all = std::env::var("LONGHAUL_FAULTS").unwrap_or_default().is_empty();
    if all && rustix::process::geteuid().is_root() {
        assert!(made >= MADE, "{made} faults were made, not {MADE}: the skipped ones print the reason");
    }
    assert!(f64::from(named) >= NAMED * f64::from(made), "{named} of {made} faults were named");
    if all {
        let share = f64::from(came_true) / f64::from(compared.max(1));
        assert!(share >= CAME_TRUE, "{came_true} of {compared} predictions were within 25 %");
    }
}

#[test]
fn there_are_twenty_faults_and_a_promise_is_kept_or_not() {
    assert!(FAULTS.len() >= MADE as usize);
    let kept = |predicted, achieved, at_least| {
        Promise { predicted: Some(predicted), achieved: Some(achieved), at_least }.came_true()
    };
    assert_eq!((kept(2.4, 2.0, false), kept(1.6, 2.0, false)), (Some(true), Some(true)));
    assert_eq!((kept(2.6, 2.0, false), kept(1.4, 2.0, false)), (Some(false), Some(false)));
    // More than a lower bound is right.
    assert_eq!((kept(1.4, 9.0, true), kept(2.6, 2.0, true)), (Some(true), Some(false)));
    let nothing = Promise { predicted: None, achieved: Some(2.0), at_least: false };
    assert_eq!(nothing.came_true(), None);
}

/// Waits until `diagnose` reports the write rung, after it has measured reading.
fn measured_reading(child: &mut Child) {
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    assert!(lines.any(|line| line.expect("UTF-8").starts_with("writing files")), "it never wrote");
    // Drains the pipe, so that the program does not block on it.
    std::thread::spawn(move || lines.count());
}

/// The record in the result of a run that ended early.
fn kept(mut child: Child, path: &Path) -> Value {
    let limit = Instant::now() + common::PATIENCE;
    let code = loop {
        if let Some(status) = child.try_wait().expect("waited") {
            break status.code();
        }
        if Instant::now() > limit {
            let _ = child.kill();
            panic!("it does not end");
        }
        std::thread::sleep(5 * MS);
    };
    assert_eq!(code, Some(3));
    let text = fs::read_to_string(path).expect("a result");
    let record = serde_json::from_str::<Value>(&text).expect("JSON")["longhaul"].clone();
    let names: Vec<&str> =
        record["cells"].as_array().expect("cells").iter().filter_map(|cell| cell["name"].as_str()).collect();
    assert!(names.contains(&"read, 8 files") && names.contains(&"read, 16 files"), "{names:?}");
    record
}

#[test]
fn what_was_measured_is_kept_whatever_comes() {
    let dirs = Directories::new();
    let (from, to, result) = (dirs.at("source"), dirs.at("destination"), dirs.at("result.json"));
    let small = ["--json", "--runs", "1", "--bytes", "1MiB", "--files", "16", "--output", text(&result)];
    // A signal ends it.
    let mut child =
        command(&[&["diagnose", text(&from), text(&to)][..], &small].concat()).spawn().expect("started");
    measured_reading(&mut child);
    common::signal(&child, "TERM");
    let record = kept(child, &result);
    assert_eq!(record["conditions"]["ended early"], "interrupted", "{record}");
    for dir in [&from, &to] {
        assert_eq!(fs::read_dir(dir).expect("read").count(), 0, "something is left in {}", dir.display());
    }
    // The agent ends.
    let (agent, uri) = agent(command(&[]), &["--listen", "127.0.0.1:0", "--root", text(&to), "--insecure"]);
    let mut child =
        command(&[&["diagnose", text(&from), &uri][..], &small].concat()).spawn().expect("started");
    measured_reading(&mut child);
    drop(agent);
    let record = kept(child, &result);
    assert!(record["conditions"]["ended early"].as_str().is_some_and(|why| !why.is_empty()), "{record}");
    // Such short copies are not valid, nor is what is computed from them.
    let cells = record["cells"].as_array().expect("cells");
    let is_copy = |cell: &Value| cell["name"].as_str().is_some_and(|name| name.ends_with(" files"));
    let is_short = |cell: &Value| cell["left_out"][0]["reasons"][0]["code"] == "too-short";
    assert!(cells.iter().all(|cell| cell["validity"]["valid"] == false), "{record}");
    assert!(cells.iter().filter(|cell| is_copy(cell)).all(is_short), "{record}");
}

#[test]
fn slow_opens_are_named_and_hidden_by_more_readers() {
    let slow = Slow { open: 30 * MS, ..Slow::default() };
    match storage([slow, Slow::default()], healthy(), &["--files", "32", "--bytes", "1MiB"]) {
        Ok(outcome) => {
            let first = &outcome.summary["findings"][0];
            if first["code"].as_str().is_some_and(|code| code.starts_with("others-")) {
                return longhaul_skip::skip!(
                    "other programs take the processors, which is found first: {}",
                    first["evidence"]
                );
            }
            assert_eq!(first["code"], "slow-open", "{}", outcome.summary);
            assert!(first["remedy"].as_str().is_some_and(|remedy| remedy.contains("--readers")), "{first}");
            assert!(outcome.summary["tried"]["achieved"].is_number(), "{}", outcome.summary);
        }
        Err(why) => longhaul_skip::skip!("{why}"),
    }
}

#[test]
fn an_agent_reports_the_use_of_its_machine() {
    let dirs = Directories::new();
    let (_agent, uri) =
        agent(command(&[]), &["--listen", "127.0.0.1:0", "--root", text(&dirs.at("source")), "--insecure"]);
    let into = dirs.at("report");
    let ran = common::longhaul(&["cp", "-r", &format!("{uri}machine:"), text(&into)]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let report = fs::read_to_string(into.join("machine")).expect("readable");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("readable");
    assert!(report.starts_with(&format!("machine {}", boot.trim())), "{report}");
    assert!(report.contains("\nown_s ") && report.contains(".busy_s "), "{report}");
}
