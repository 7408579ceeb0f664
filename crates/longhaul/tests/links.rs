//! Messages and results of the program at both ends of faulty links. The tests need root
//! and `/dev/net/tun`, and are skipped with a message elsewhere.

mod common;

use common::{
    LEAVE_MOUNTS, PATIENCE, PROGRAM, Ran, Running, Target, command, emulated, finish, follow, signal, text,
    until, within,
};
use longhaul_engine::procfs::Process;
use longhaul_wan::{Change, Conditions, Namespace, Wan, WanPlan};
use serde_json::Value;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);
/// The UUID of the namespace, the same after each restart of a target.
const UUID: &str = "uuid=7d2a1f60-0000-4000-8000-000000000007";

/// An emulated network with `servers` servers, each behind a link of its own;
/// `None`, with the reason on standard error, where it cannot be set up.
fn wan(servers: usize) -> Option<Wan> {
    let conditions = Conditions::new(10 * MS, Some(200_000_000));
    let plan = WanPlan { star: Some(servers), ..WanPlan::new(WanPlan::unique_name("p"), conditions) };
    emulated(plan)
}

/// A target behind a link, once it is ready.
fn serve(wan: &Wan, link: usize, export: &str, more: &[&str]) -> Target {
    let listen = format!("{}:4420", wan.server_address(link));
    let args =
        ["target", "--insecure", "--listen", &listen, "--discovery", "none", "--json", "--export", export];
    let all = [&args[..], more].concat();
    Target::spawn(within(wan.server(link), PROGRAM, &all))
}

/// A `bench` process whose standard error is read by a thread as it is written.
struct Bench {
    child: Running,
    said: std::sync::Arc<std::sync::Mutex<String>>,
    reader: std::thread::JoinHandle<()>,
}

impl Bench {
    fn start(mut command: Command) -> Bench {
        let mut child = command.spawn().expect("started");
        let said = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
        let (to, pipe) = (said.clone(), child.stderr.take().expect("a pipe"));
        let reader = std::thread::spawn(move || {
            for line in std::io::BufRead::lines(std::io::BufReader::new(pipe)) {
                to.lock().expect("no panic").push_str(&(line.expect("UTF-8") + "\n"));
            }
        });
        Bench { child: Running(child), said, reader }
    }

    fn said(&self) -> String {
        self.said.lock().expect("no panic").clone()
    }

    /// Waits until standard error has this text.
    fn says(&self, words: &str) {
        until(words, || self.said().contains(words));
    }

    /// Waits for its end.
    fn finish(mut self) -> Ran {
        let stdout = self.child.stdout.take().map(OwnedFd::from);
        let code = self.child.end(PATIENCE).expect("the load does not end");
        self.reader.join().expect("read");
        let stdout = stdout.map(|fd| std::io::read_to_string(std::fs::File::from(fd)).expect("UTF-8"));
        let stderr = self.said.lock().expect("no panic").clone();
        Ran { code, stdout: stdout.unwrap_or_default(), stderr }
    }
}

/// Starts a load, and waits until it has moved data over the link.
fn running(wan: &Wan, link: usize, start: impl FnOnce() -> Bench) -> Bench {
    const MUCH: u64 = 8 << 20;
    let sent = || wan.statistics().expect("statistics").links[link - 1].there.bytes_out;
    let before = sent();
    let bench = start();
    until("the load", || sent() > before + MUCH);
    bench
}

/// A verified load of some seconds.
fn load<'a>(uri: &'a str, runtime: &'a str) -> Vec<&'a str> {
    let load = ["bench", uri, "--rw", "randrw", "--bs", "64k", "--iodepth", "16", "--verify", "crc32c"];
    [&load[..], &["--runtime", runtime, "--size", "32MiB", "--json"]].concat()
}

/// Asserts that every block was verified, and no I/O failed.
fn verified(ran: &Ran) {
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let result: serde_json::Value = serde_json::from_str(&ran.stdout).expect("fio's JSON");
    let job = &result["jobs"][0];
    assert_eq!(job["error"], 0, "{job}");
    assert!(job["write"]["total_ios"].as_u64().expect("a number") > 50, "{job}");
}

/// Processor time of a process so far, in ticks of 10 ms.
fn ticks(child: &Child) -> u64 {
    Process::of(child.id()).ticks().expect("it lives").own
}

#[test]
fn a_target_that_is_stopped_is_waited_for_at_no_cost() {
    for engine in ["auto", "epoll"] {
        let Some(wan) = wan(1) else { return };
        let target = serve(&wan, 1, &format!("d=mem:64MiB,{UUID}"), &[]);
        let uri = format!("nvme+tcp://{}/d", wan.server_address(1));
        let args = [&load(&uri, "4s")[..], &["--keep-alive", "1s", "--engine", engine]].concat();
        let bench = running(&wan, 1, || Bench::start(within(wan.client(), PROGRAM, &args)));
        signal(&target.child, "STOP");
        let before = ticks(&bench.child);
        bench.says("connection lost, attempt 1 to reconnect: no answer to Keep Alive for 1000 ms");
        bench.says("did not answer the connection set-up within");
        std::thread::sleep(Duration::from_secs(1));
        let spent = ticks(&bench.child) - before;
        assert!(spent <= 20, "it spins: {spent}0 ms of processor time");
        signal(&target.child, "CONT");
        bench.says(": reconnected after");
        verified(&bench.finish());
    }
}

/// A hosts file for one process, as the resolver sees it.
fn with_hosts(namespace: &Namespace, hosts: &Path, args: &[&str]) -> Command {
    let plain = within(namespace, PROGRAM, args);
    let mut command = namespace.command("unshare");
    let script = format!("{LEAVE_MOUNTS}\nmount --bind \"$0\" /etc/hosts && exec \"$@\"");
    command
        .args(["--mount", "sh", "-c", &script, text(hosts)])
        .arg(plain.get_program())
        .args(plain.get_args());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("XDG_CONFIG_HOME", "/nonexistent").env_remove("LONGHAUL_LOG");
    command
}

#[test]
fn a_name_that_leads_elsewhere_is_followed() {
    let Some(wan) = wan(2) else { return };
    let dir = tempfile::tempdir().expect("directory");
    let (hosts, disk) = (dir.path().join("hosts"), dir.path().join("disk"));
    let lead_to = |link| {
        // Written in place, since the file is bind-mounted.
        let line = format!("{} storage.test\n", wan.server_address(link));
        std::fs::write(&hosts, line).expect("written");
    };
    lead_to(1);
    let export =
        format!("d=file:{},size=64MiB,{UUID},nqn=nqn.2026-11.io.longhaul:test:moves", disk.display());
    let first = serve(&wan, 1, &export, &[]);
    let uri = "nvme+tcp://storage.test/nqn.2026-11.io.longhaul:test:moves?nsid=1";
    let bench = running(&wan, 1, || Bench::start(with_hosts(wan.client(), &hosts, &load(uri, "10s"))));
    drop(first);
    bench.says("storage.test:4420: connection lost, attempt 2 to reconnect");
    let _second = serve(&wan, 2, &export, &[]);
    lead_to(2);
    bench.says("storage.test:4420: reconnected after");
    verified(&bench.finish());
    let moved = wan.statistics().expect("statistics").links[1].there.bytes_out;
    assert!(moved > 1 << 20, "the rest went to the other place: {moved} bytes");
}

/// Limits that a restarted target has lowered.
#[test]
fn a_target_that_comes_back_with_smaller_limits_is_used_within_them() {
    let Some(wan) = wan(1) else { return };
    let dir = tempfile::tempdir().expect("directory");
    let export = format!("d=file:{},size=64MiB,{UUID}", dir.path().join("disk").display());
    let first = serve(&wan, 1, &export, &["--in-capsule", "4MiB"]);
    let uri = format!("nvme+tcp://{}/d", wan.server_address(1));
    let args = [&load(&uri, "4s")[..], &["--hdr-digest", "--data-digest"]].concat();
    let bench = running(&wan, 1, || Bench::start(within(wan.client(), PROGRAM, &args)));
    drop(first);
    let smaller = ["--in-capsule", "8KiB", "--max-queue-size", "8", "--max-queues", "1", "--memory", "32MiB"];
    let _second = serve(&wan, 1, &export, &[&smaller[..], &["--no-hdr-digest", "--no-data-digest"]].concat());
    bench.says(": reconnected after");
    verified(&bench.finish());
}

#[test]
fn a_namespace_that_has_become_another_is_named() {
    let Some(wan) = wan(1) else { return };
    let dir = tempfile::tempdir().expect("directory");
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    let uri = format!("nvme+tcp://{}/nqn.2026-11.io.longhaul:test:changes", wan.server_address(1));
    let export = |path: &Path, size: &str, uuid: &str| {
        format!("d=file:{},size={size},{uuid},nqn=nqn.2026-11.io.longhaul:test:changes", path.display())
    };
    let cases = [
        ("64MiB", UUID.replace("07", "08"), "namespace 1 is another one now: it was UUID 7d2a1f60-"),
        ("32MiB", UUID.into(), "namespace 1 has 33554432 bytes now, it had 67108864"),
    ];
    for (size, uuid, complaint) in cases {
        let first = serve(&wan, 1, &export(&old, "64MiB", UUID), &[]);
        let bench = running(&wan, 1, || Bench::start(within(wan.client(), PROGRAM, &load(&uri, "60s"))));
        drop(first);
        let second = serve(&wan, 1, &export(&new, size, &uuid), &[]);
        let ran = bench.finish();
        assert!(ran.code == Some(1) && ran.stderr.contains(complaint), "{ran:?}");
        drop(second);
        let bytes = std::fs::read(&new).expect("read");
        assert!(bytes.iter().all(|&b| b == 0), "no data was written there");
        std::fs::remove_file(&new).expect("removed");
    }
}

/// A target with another subsystem has taken the address. The initiator keeps
/// retrying, since the subsystem may come back.
#[test]
fn a_subsystem_that_is_not_there_any_more_is_named_and_waited_for() {
    let Some(wan) = wan(1) else { return };
    let dir = tempfile::tempdir().expect("directory");
    let export = |disk: &str, nqn: &str| {
        let path = dir.path().join(disk);
        format!("d=file:{},size=64MiB,{UUID},nqn=nqn.2026-11.io.longhaul:test:{nqn}", path.display())
    };
    let first = serve(&wan, 1, &export("mine", "mine"), &[]);
    let uri = format!("nvme+tcp://{}/nqn.2026-11.io.longhaul:test:mine", wan.server_address(1));
    let bench = running(&wan, 1, || Bench::start(within(wan.client(), PROGRAM, &load(&uri, "3s"))));
    drop(first);
    let other = serve(&wan, 1, &export("other", "other"), &[]);
    bench.says("10.77.1.2:4420 has no subsystem 'nqn.2026-11.io.longhaul:test:mine'");
    drop(other);
    let bytes = std::fs::read(dir.path().join("other")).expect("read");
    assert!(bytes.iter().all(|&b| b == 0), "no data was written there");
    let _back = serve(&wan, 1, &export("mine", "mine"), &[]);
    bench.says(": reconnected after");
    verified(&bench.finish());
}

/// Requests that are outstanding at the end of the run are waited for, with a
/// message; Ctrl-C cancels the wait.
#[test]
fn a_load_whose_link_is_dead_says_what_it_waits_for_and_ends_by_ctrl_c() {
    let Some(wan) = wan(1) else { return };
    let _target = serve(&wan, 1, &format!("d=mem:64MiB,{UUID}"), &[]);
    let uri = format!("nvme+tcp://{}/d", wan.server_address(1));
    let begin = || {
        let bench = running(&wan, 1, || Bench::start(within(wan.client(), PROGRAM, &load(&uri, "4s"))));
        wan.set(1, &Change::cut()).expect("cut");
        bench
    };
    let waits = "I/O under way is waited for: for up to 600 s since it was lost if its connection is lost";
    let bench = begin();
    bench.says(waits);
    bench.says("connection lost, attempt 1 to reconnect: nothing was acknowledged for ");
    signal(&bench.child, "INT");
    let begun = Instant::now();
    let ran = bench.finish();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(ran.code == Some(1) && ran.stderr.contains("was given up"), "{ran:?}");

    // The same with a link that is restored.
    wan.set(1, &Change::restore()).expect("restored");
    let bench = begin();
    bench.says(waits);
    wan.set(1, &Change::restore()).expect("restored");
    verified(&bench.finish());
}

/// Ctrl-C ends a load without failures with its results.
#[test]
fn ctrl_c_ends_a_load_with_its_results() {
    let args = ["bench", "mem:8MiB", "--rw", "write", "--bs", "4k", "--runtime", "60s", "--json"];
    let child = command(&args).spawn().expect("started");
    // Starting takes less processor time.
    until("the load", || ticks(&child) > 30);
    signal(&child, "INT");
    let ran = finish(child);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    let result: serde_json::Value = serde_json::from_str(&ran.stdout).expect("fio's JSON");
    assert!(result["jobs"][0]["write"]["total_ios"].as_u64().expect("a number") > 0);
}

/// Starts an agent behind the link, and a copy of 1000 GiB to it; returns once data flows.
fn endless(wan: &Wan, root: &Path, timeout: &str) -> (Target, Running, mpsc::Receiver<Value>) {
    let listen = format!("{}:7400", wan.server_address(1));
    let user = common::own_user();
    let args = ["agent", "--listen", &listen, "--root", text(root), "--insecure", "--user", &user, "--json"];
    let agent = Target::spawn(within(wan.server(1), PROGRAM, &args));
    let to = format!("lh://{listen}/null:");
    let args = ["cp", "--json", "--streams", "3", "--timeout", timeout, "zero:1000x1GiB", &to];
    let mut child = within(wan.client(), PROGRAM, &args).spawn().expect("started");
    let events = follow(child.stdout.take().expect("a pipe"));
    // Progress with bytes means that data flows.
    let progress = || events.recv_timeout(PATIENCE).expect("an event")["bytes"].as_u64();
    while progress().unwrap_or_default() == 0 {}
    (agent, Running(child), events)
}

#[test]
fn a_copy_gives_a_path_up_that_is_dead_and_not_a_side_that_is_busy() {
    let Some(wan) = wan(1) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let (agent, mut copy, _events) = endless(&wan, dir.path(), "3s");
    // The agent reads nothing for longer than the timeout, but its kernel answers window probes.
    signal(&agent.child, "STOP");
    std::thread::sleep(Duration::from_secs(10));
    assert!(copy.try_wait().expect("waited").is_none(), "the other side was only busy");
    signal(&agent.child, "CONT");
    std::thread::sleep(Duration::from_secs(2));
    assert!(copy.try_wait().expect("waited").is_none(), "the copy continues");
    wan.set(1, &Change::cut()).expect("cut");
    let cut = Instant::now();
    let code = copy.end(PATIENCE).expect("the copy does not end");
    let stderr = std::io::read_to_string(copy.stderr.take().expect("a pipe")).expect("UTF-8");
    assert_eq!(code, Some(5), "{stderr}");
    assert!(stderr.contains("nothing has come from the other side for 3 s"), "{stderr}");
    assert!(cut.elapsed() < Duration::from_secs(30), "after {:?}", cut.elapsed());
}
