//! Services without free descriptors: idle connections hold them, or the limit was lowered.

mod common;

use common::{Target, command, longhaul, own_user, text, until};
use longhaul_engine::procfs::Process;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Limit of a service's descriptors: enough for one user.
const DESCRIPTORS: u64 = 96;
/// Number of idle connections: several times that.
const STRANGERS: usize = 400;
/// How long a service without descriptors is watched, since waiting has no event.
const WATCH: Duration = Duration::from_secs(1);
/// Ticks of CPU time per second (`proc(5)`, _SC_CLK_TCK), and the most that a waiting service
/// takes: a busy loop would take all of them.
const TICKS: u64 = 100;
const TICKS_MAX: u64 = TICKS / 4;
/// Most log lines of one cause in that time.
const LINES_MAX: usize = 30;

/// A service, its log, and a client command.
struct Service {
    process: Target,
    log: tempfile::NamedTempFile,
    addr: String,
    /// Arguments of a run of the program that uses the service.
    user: Vec<String>,
}

/// Starts the program with at most [`DESCRIPTORS`].
fn start(args: &[&str]) -> (Target, tempfile::NamedTempFile) {
    let log = tempfile::NamedTempFile::new().expect("a file");
    let mut shell = std::process::Command::new("sh");
    let limited = format!("ulimit -n {DESCRIPTORS}; exec \"$0\" \"$@\" 2>'{}'", text(log.path()));
    let program = command(args);
    shell.args(["-c", &limited]).arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
    (Target::spawn(shell), log)
}

fn target() -> Service {
    let args =
        ["target", "--listen", "127.0.0.1:0", "--discovery", "none", "--json", "--export", "x=mem:16MiB"];
    let (process, log) = start(&[&args[..], &["--threads", "2"]].concat());
    let (addr, uri) = (process.addr(), process.uri(0));
    let bench = ["bench", &uri, "--rw", "randrw", "--size", "1MiB", "--verify", "crc32c"];
    Service { process, log, addr, user: bench.map(str::to_owned).into() }
}

fn agent(dir: &Path) -> Service {
    fs::create_dir_all(dir.join("root")).expect("made");
    fs::write(dir.join("file"), [7; 100_000]).expect("written");
    let (root, user) = (dir.join("root"), own_user());
    let args = ["agent", "--listen", "127.0.0.1:0", "--json", "--insecure", "--user", &user, "--root"];
    let (process, log) = start(&[&args[..], &[text(&root)]].concat());
    let uri = process.ready["uri"].as_str().expect("a URI").to_owned();
    let addr = process.ready["listen"].as_str().expect("an address").to_owned();
    let file = dir.join("file");
    let copy = ["cp", text(&file), &uri];
    Service { process, log, addr, user: copy.map(str::to_owned).into() }
}

impl Service {
    fn pid(&self) -> u32 {
        self.process.child.id()
    }

    fn limit(&self, current: u64) {
        let pid = Pid::from_raw(self.pid().cast_signed()).expect("a process");
        let limit = Rlimit { current: Some(current), maximum: Some(DESCRIPTORS) };
        prlimit(Some(pid), Resource::Nofile, limit).expect("set");
    }

    /// Lowers the limit to the descriptors in use.
    fn take_descriptors(&self) {
        let fds = Path::new("/proc").join(self.pid().to_string()).join("fd");
        let free = (0..).find(|fd| !fds.join(fd.to_string()).is_symlink());
        self.limit(free.unwrap_or(0));
    }

    /// CPU time so far, in ticks.
    fn cpu(&self) -> u64 {
        Process::of(self.pid()).ticks().expect("readable").own
    }

    fn lines(&self) -> Vec<String> {
        let log = fs::read_to_string(self.log.path()).expect("readable");
        log.lines().map(str::to_owned).collect()
    }

    fn serves(&self) {
        let ran = longhaul(&self.user.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(ran.code, Some(0), "{ran:?}\n{}", self.lines().join("\n"));
    }

    fn strangers(&self) -> Vec<TcpStream> {
        (0..STRANGERS).map(|_| TcpStream::connect(&self.addr).expect("the kernel takes it")).collect()
    }

    /// Silent connections replace each other: a new one makes the target close the oldest.
    fn serves_beside_strangers(&self) {
        let mut strangers = self.strangers();
        self.serves();
        // The target has closed the oldest one.
        let _ = strangers[0].read_to_end(&mut Vec::new());
        self.serves();
        assert!(self.lines().len() <= LINES_MAX, "{}", self.lines().join("\n"));
    }

    /// The service waits without free descriptors, and serves again once one is free.
    fn waits_for_descriptors(&self) {
        self.take_descriptors();
        let strangers = self.strangers();
        let said = || self.lines().iter().any(|line| line.contains("accept"));
        until("a log line about accept", said);
        let (before, began) = (self.cpu(), Instant::now());
        std::thread::sleep(WATCH);
        let used = (self.cpu() - before) * 1000 / u64::try_from(began.elapsed().as_millis()).expect("short");
        assert!(used <= TICKS_MAX, "{used} of {TICKS} ticks a second for nothing");
        let lines = self.lines();
        assert!(lines.len() <= LINES_MAX, "{}", lines.join("\n"));
        self.limit(DESCRIPTORS);
        drop(strangers);
        self.serves();
    }
}

#[test]
fn a_target_serves_while_strangers_hold_its_descriptors() {
    target().serves_beside_strangers();
}

#[test]
fn a_target_without_descriptors_waits_for_them() {
    target().waits_for_descriptors();
}

#[test]
fn an_agent_serves_while_strangers_hold_its_descriptors() {
    agent(tempfile::tempdir().expect("a directory").path()).serves_beside_strangers();
}

#[test]
fn an_agent_without_descriptors_waits_for_them() {
    agent(tempfile::tempdir().expect("a directory").path()).waits_for_descriptors();
}
