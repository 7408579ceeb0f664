//! Runs the program as a user does, and helpers for its output and end.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

pub mod etcd;
pub mod far;
pub mod site;
pub mod ssh;
pub mod testbed;
pub mod writers;

use longhaul_block::Blocking;
use longhaul_engine::procfs::mounts;
use longhaul_initiator::{Options, RemoteDevice};
use longhaul_wan::{Error, Namespace, Wan, WanPlan};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Timeout of waits: longer than any step of a passing test, so that a hang becomes a failure.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Path of the program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_longhaul");

/// Directory of the program's state, unless a test sets another one.
const STATE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/state");

/// The program, away from the configuration and the state of this machine.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("XDG_CONFIG_HOME", "/nonexistent").env_remove("LONGHAUL_LOG");
    command.env("XDG_STATE_HOME", STATE);
    command
}

/// A device behind `uri`, of a host that takes no lost connection up again.
pub fn connect(uri: &str) -> Result<Blocking, String> {
    let kato = Duration::from_secs(2);
    let options = Options { ctrl_loss: Some(Duration::ZERO), kato, ..Options::default() };
    let uri = uri.parse().map_err(|e| format!("{uri}: {e}"))?;
    let device = RemoteDevice::connect_blocking(&uri, options).map_err(|e| e.to_string())?;
    Blocking::open(device).map_err(|e| e.to_string())
}

/// Exit status and output of a run.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// Its events: every line of stdout is one.
    pub fn events(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }
}

/// Runs the program to its end.
pub fn longhaul(args: &[&str]) -> Ran {
    finish(command(args).spawn().expect("started"))
}

/// Waits for the end of a run.
pub fn finish(child: Child) -> Ran {
    finish_within(child, PATIENCE).expect("the program does not end")
}

/// Waits for the end of a run; kills it, and returns nothing, if it takes longer than `limit`.
pub fn finish_within(child: Child, limit: Duration) -> Option<Ran> {
    let read = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                pipe.read_to_end(&mut bytes).expect("read");
            }
            String::from_utf8(bytes).expect("UTF-8")
        })
    };
    let mut child = Running(child);
    let stdout = read(child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let stderr = read(child.stderr.take().map(|pipe| Box::new(pipe) as _));
    let code = child.end(limit)?;
    Some(Ran { code, stdout: stdout.join().expect("read"), stderr: stderr.join().expect("read") })
}

/// A child process that is killed when dropped.
pub struct Running(pub Child);

impl Running {
    /// Waits for its end, and returns its exit code; nothing if it takes longer than `limit`.
    pub fn end(&mut self, limit: Duration) -> Option<Option<i32>> {
        let limit = Instant::now() + limit;
        loop {
            if let Some(status) = self.0.try_wait().expect("waited") {
                return Some(status.code());
            }
            if Instant::now() > limit {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program within a network namespace, away from the configuration of this machine.
pub fn within(namespace: &Namespace, program: &str, args: &[&str]) -> Command {
    let mut command = namespace.command(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("XDG_CONFIG_HOME", "/nonexistent").env_remove("LONGHAUL_LOG");
    command
}

/// Emulated links; `None`, with the reason on standard error, where they cannot be set up.
pub fn emulated(plan: WanPlan) -> Option<Wan> {
    match Wan::start(plan) {
        Ok(wan) => Some(wan),
        Err(Error::Unavailable(why)) => {
            longhaul_skip::skip!("{why}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// A number that the environment may give.
pub fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().expect(name))
}

/// Sends a signal (`TERM`, `HUP`, …).
pub fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status();
    assert!(sent.expect("kill").success());
}

/// Waits until a condition holds; fails with the name `what` at the timeout.
pub fn until(what: &str, holds: impl Fn() -> bool) {
    let (least, most) = (Duration::from_millis(5), Duration::from_millis(160));
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {} s", PATIENCE.as_secs());
        // Many conditions run a program: checked without pause, they would take the processor from
        // what they wait for.
        std::thread::sleep((began.elapsed() / 8).clamp(least, most));
    }
}

/// Unmounts what is mounted at a path by another program than this one. A process that a test running beside this one
/// has just begun has the files of all tests open for a moment, until it executes its program.
pub fn unmount_by_others(at: &Path) {
    until("it is unmounted", || {
        Command::new("umount").arg(at).stderr(Stdio::null()).status().expect("umount").success()
    });
}

/// A running program that prints JSON events: `longhaul target`, or another one that serves. It is
/// killed when dropped.
pub struct Target {
    pub child: Running,
    events: mpsc::Receiver<Value>,
    pub ready: Value,
}

/// Where servers listen, some of which are started again at the same port. Connections of this machine begin
/// at 127.0.0.1, so that none is given that port meanwhile.
pub const LISTEN: &str = "127.0.0.2:0";

impl Target {
    /// Starts it with these exports and further arguments.
    pub fn start(exports: &[&str], more: &[&str]) -> Target {
        let mut args = vec!["target", "--listen", LISTEN, "--discovery", "none", "--json"];
        args.extend(exports.iter().flat_map(|export| ["--export", export]));
        args.extend(more);
        Target::spawn(command(&args))
    }

    /// Starts a program that prints JSON events as a target does, and waits for its `ready` event.
    pub fn spawn(command: Command) -> Target {
        Target::spawn_saying(command, Stdio::inherit())
    }

    /// The same; what it says to people goes to `stderr`.
    pub fn spawn_saying(mut command: Command, stderr: impl Into<Stdio>) -> Target {
        let mut child = Running(command.stderr(stderr).spawn().expect("started"));
        let events = follow(child.stdout.take().expect("a pipe"));
        let mut target = Target { child, events, ready: Value::Null };
        target.ready = target.event("ready");
        target
    }

    /// The next event.
    pub fn next(&self) -> Value {
        self.events.recv_timeout(PATIENCE).expect("an event")
    }

    /// The next event, which must be `name`.
    pub fn event(&self, name: &str) -> Value {
        let event = self.events.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no event '{name}'"));
        assert_eq!(event["event"], name, "{event}");
        event
    }

    /// The URI of an export.
    pub fn uri(&self, export: usize) -> String {
        self.ready["exports"][export]["uri"].as_str().expect("a URI").to_owned()
    }

    /// Address of the target, `HOST:PORT`.
    pub fn addr(&self) -> String {
        self.ready["listen"][0].as_str().expect("an address").to_owned()
    }

    /// Sends SIGTERM, and expects a clean exit.
    pub fn stop(mut self) {
        signal(&self.child, "TERM");
        self.event("stopping");
        assert_eq!(self.event("summary")["clean"], true);
        assert_eq!(self.child.end(PATIENCE), Some(Some(0)));
    }
}

/// The user that the tests run as. Agents keep running as it, also if it is root.
pub fn own_user() -> String {
    rustix::process::geteuid().as_raw().to_string()
}

/// An agent that serves a directory on loopback, and its URI, which ends with a slash.
pub fn agent(root: &Path, more: &[&str]) -> (Target, String) {
    let user = own_user();
    let args = ["agent", "--listen", LISTEN, "--json", "--insecure", "--user", &user, "--root"];
    let agent = Target::spawn(command(&[&args[..], &[text(root)], more].concat()));
    let uri = agent.ready["uri"].as_str().expect("a URI").to_owned();
    (agent, uri)
}

/// A channel of the JSON events on a pipe.
pub fn follow(stdout: ChildStdout) -> mpsc::Receiver<Value> {
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines() {
            let line = line.expect("UTF-8");
            if tx.send(serde_json::from_str(&line).expect(&line)).is_err() {
                return;
            }
        }
    });
    rx
}

/// Ends a process at once, and waits until it has ended.
pub fn kill_and_wait(pid: &str) {
    // Not by `kill(1)`: starting a program closes descriptors, which may block on I/O in flight.
    let id = pid.parse().ok().and_then(rustix::process::Pid::from_raw).expect("a process");
    // The process may have ended before.
    let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
    until("the end of the killed process", || has_ended(pid));
}

/// Whether a process has ended.
pub fn has_ended(pid: &str) -> bool {
    !Path::new("/proc").join(pid).join("exe").exists()
}

/// For a shell in a new mount namespace: unmounts there what other tests have mounted. The copy of
/// such a mount would keep its device in use after they unmount it.
pub const LEAVE_MOUNTS: &str = "awk '$5 ~ \"/[.]tmp\" { print $5 }' /proc/self/mountinfo | sort -r | \
    xargs -r umount -l -- 2> /dev/null || true";

/// Where something is mounted at or below `dir`.
pub fn mounts_below(dir: &Path) -> Vec<String> {
    let at = mounts().into_iter().map(|mount| mount.at).filter(|at| at.starts_with(dir));
    at.map(|at| text(&at).to_owned()).collect()
}

/// A path as text.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}
