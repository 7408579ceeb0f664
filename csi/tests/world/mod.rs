//! Targets that run as programs, a pool of them, and drivers, which are called as Kubernetes calls them.

/// The messages and services of `proto/csi.proto`.
#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub, dead_code, reason = "generated")]
pub mod v1 {
    tonic::include_proto!("csi.v1");
}

mod client;

pub use client::{BLOCK, Client, EXT4, Outcome, Param, SHARED, XFS, with_mode};

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tonic::Code;

/// The host that manages the pool, and two nodes.
pub const MANAGER: &str = "nqn.2014-08.org.example:manager";
pub const NODE: &str = "nqn.2014-08.org.example:node";
pub const OTHER: &str = "nqn.2014-08.org.example:other";

/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a Container Orchestrator of these tests waits before it tries again.
const AGAIN: Duration = Duration::from_millis(200);

/// A process that is killed in the end.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Targets, the pool `pool` of them, and directories of its own.
pub struct World {
    program: String,
    directory: tempfile::TempDir,
    _targets: Vec<Ended>,
}

impl World {
    /// # Errors
    /// Why these tests cannot run here.
    pub fn new(targets: usize) -> Result<World, String> {
        let program =
            std::env::var("LONGHAUL").map_err(|_| "LONGHAUL names no program: tests/csi/run does")?;
        if !rustix::process::geteuid().is_root() {
            return Err("mounts take root".to_owned());
        }
        if File::open("/dev/fuse").is_err() {
            return Err("this machine has no FUSE".to_owned());
        }
        let directory = tempfile::tempdir().expect("a directory");
        // Users of volumes are others than root.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("set");
        let mut world = World { program, directory, _targets: Vec::new() };
        let mut members = Vec::new();
        for number in 0..targets {
            let space = format!("fast=dir:{},size=2GiB", world.path(&format!("space{number}")).display());
            let mut command = world.command(&format!("target{number}"), &["target", "--json", "--insecure"]);
            command.args(["--discovery", "none", "--threads", "1", "--listen", "127.0.0.1:0"]);
            command
                .args(["--admin", MANAGER, "--space", &space])
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            let mut child = Ended(command.spawn().expect("started"));
            let mut line = String::new();
            let mut out = BufReader::new(child.0.stdout.take().expect("its output"));
            out.read_line(&mut line).expect("a line");
            let ready: Value = serde_json::from_str(&line).expect("an event");
            members.push(format!("{},domain=rack{number}", ready["listen"][0].as_str().expect("an address")));
            // Its output is read to the end: it would wait otherwise.
            std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
            world._targets.push(child);
        }
        let members: Vec<&str> = members.iter().map(String::as_str).collect();
        world.done(&[&["pool", "create", "pool", "--target"], &members[..]].concat());
        for fifo in ["stopped", "go"] {
            let made = Command::new("mkfifo").arg(world.path(fifo)).status().expect("run");
            assert!(made.success());
        }
        Ok(world)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A directory, which is made.
    pub fn made(&self, name: &str) -> String {
        let path = self.path(name);
        fs::create_dir_all(&path).expect("made");
        path.display().to_string()
    }

    fn catalog(&self) -> String {
        format!("file:{}", self.path("catalog").display())
    }

    /// The program, with the state of a host.
    fn command(&self, host: &str, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        self.on_host(&mut command, host);
        command.args(args).stdin(Stdio::null());
        command
    }

    /// Short paths: those of Unix sockets have 107 bytes at most.
    fn on_host(&self, command: &mut Command, host: &str) {
        for (variable, directory) in [("XDG_STATE_HOME", "state"), ("XDG_RUNTIME_DIR", "run")] {
            command.env(variable, self.made(&format!("h/{host}/{directory}")));
        }
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut all = args.to_vec();
        let catalog = self.catalog();
        all.extend(["--json", "--catalog", &catalog, "--hostnqn", MANAGER]);
        self.command("manager", &all).output().expect("run")
    }

    /// Events of a verb of pools that succeeds.
    fn done(&self, args: &[&str]) -> Vec<Value> {
        let done = self.run(args);
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        let lines = String::from_utf8(done.stdout).expect("text");
        lines.lines().map(|line| serde_json::from_str(line).expect("an event")).collect()
    }

    /// What the program says when it fails, on the second node.
    pub fn longhaul_fails(&self, args: &[&str]) -> String {
        let done = self.command(name_of(OTHER), args).output().expect("run");
        assert!(!done.status.success(), "{args:?}");
        String::from_utf8(done.stderr).expect("text")
    }

    /// Whether a host can connect to the namespaces of the volume `v`: to all, or to none.
    pub fn sees_namespaces(&self, host: &str) -> bool {
        let info = self.done(&["volume", "info", "pool/v"]).pop().expect("a summary");
        let members = info["members"].as_array().expect("members");
        let sees = |member: &Value| {
            let uri = member["uri"].as_str().expect("a URI");
            let connect = ["info", uri, "--hostnqn", host, "--connect-timeout", "2s"];
            self.command(name_of(host), &connect).output().expect("run").status.success()
        };
        let seen: BTreeSet<bool> = members.iter().map(sees).collect();
        assert_eq!(seen.len(), 1, "some of the targets differ");
        seen.contains(&true)
    }

    /// Waits until the pool has these volumes, and nothing that is half made.
    pub fn until_only(&self, names: &[&str]) {
        let end = Instant::now() + PATIENCE;
        loop {
            let listed = self.done(&["volume", "ls", "pool"]);
            let found: Vec<&str> = listed.iter().filter_map(|event| event["name"].as_str()).collect();
            if found == names {
                return;
            }
            assert!(Instant::now() < end, "{found:?} and not {names:?}");
            std::thread::sleep(AGAIN);
        }
    }

    /// A driver that is controller and node.
    pub fn driver(&self, node: &str) -> Driver {
        self.driver_with(node, &self.program)
    }

    /// A driver whose program stops before or after a verb, such as `before volume create`, and says so.
    pub fn driver_that_stops(&self, step: &str) -> Driver {
        let (when, verb) = step.split_once(' ').expect("when, and what");
        let (program, stopped, go) = (&self.program, self.path("stopped"), self.path("go"));
        let stop = format!("echo $$ > '{}'; read -r _ < '{}'", stopped.display(), go.display());
        let call = format!("'{program}' \"$@\"");
        let matched = match when {
            "before" => format!("{stop}; exec {call}"),
            _ => format!("{call}; status=$?; {stop}; exit $status"),
        };
        let script = format!("#!/bin/sh\ncase \" $* \" in *\" {verb} \"*) {matched} ;; esac\nexec {call}\n");
        let path = self.path("program");
        fs::write(&path, script).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("set");
        self.driver_with(NODE, &path.display().to_string())
    }

    fn driver_with(&self, node: &str, program: &str) -> Driver {
        let name = name_of(node);
        let socket = self.path(&format!("{name}.sock"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul-csi"));
        self.on_host(&mut command, name);
        command.args([
            "--endpoint",
            &format!("unix://{}", socket.display()),
            "--pool",
            "pool",
            "--controller",
        ]);
        command.args([
            "--hostnqn",
            MANAGER,
            "--node-id",
            node,
            "--program",
            program,
            "--catalog",
            &self.catalog(),
        ]);
        let mut child = Ended(command.stdout(Stdio::piped()).spawn().expect("started"));
        let mut line = String::new();
        BufReader::new(child.0.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        assert!(line.starts_with("ready unix://"), "{line}");
        Driver { client: Client::new(&socket), socket, child }
    }

    /// Waits until the program of [`driver_that_stops`](Self::driver_that_stops) has stopped.
    pub fn wait_for_stop(&self) -> u32 {
        let mut line = String::new();
        File::open(self.path("stopped")).expect("opened").read_to_string(&mut line).expect("read");
        line.trim().parse().expect("a process")
    }

    /// Lets it go on, and waits until it has ended.
    pub fn let_go(&self, process: u32) {
        let mut go = File::options().write(true).open(self.path("go")).expect("opened");
        go.write_all(b"\n").expect("written");
        drop(go);
        until("the program has ended", || is_gone(process));
    }

    /// Whether a user has done something.
    pub fn as_user(&self, user: u32, script: &str) -> bool {
        let user = user.to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "sh", "-ec", script]);
        command.status().expect("run").success()
    }

    /// Makes durable what was written below a mount.
    pub fn sync(&self, mount: &Path) {
        let synced = Command::new("sync").arg("--file-system").arg(mount).status().expect("run");
        assert!(synced.success());
    }

    /// Kills the process that serves a mount of the first node.
    pub fn kill_server_of(&self, mount: &Path) {
        let listed =
            self.command(name_of(NODE), &["attach", "--list", "--json"]).output().expect("run").stdout;
        let listed = String::from_utf8(listed).expect("text");
        let events = listed.lines().map(|line| serde_json::from_str::<Value>(line).expect("an event"));
        let mut found = events.filter(|event| event["path"] == mount.display().to_string());
        let process = found.next().expect("it is mounted")["pid"].as_i64().expect("a process");
        let pid =
            rustix::process::Pid::from_raw(i32::try_from(process).expect("a number")).expect("a process");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
        until("the process is gone", || is_gone(pid.as_raw_nonzero().get().unsigned_abs()));
    }

    /// Mounts below the directories of this world.
    pub fn mounts(&self) -> usize {
        self.mounted().len()
    }

    fn mounted(&self) -> Vec<String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("read");
        let paths = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        paths.filter(|path| Path::new(path).starts_with(self.directory.path())).map(str::to_owned).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // What a test that failed has left: the processes that serve mounts end with these.
        for mount in self.mounted().iter().rev() {
            let _ = Command::new("umount").args(["--lazy", mount]).status();
        }
    }
}

/// A driver that runs.
pub struct Driver {
    client: Client,
    socket: PathBuf,
    child: Ended,
}

impl Driver {
    /// Kills it.
    pub fn kill(&mut self) {
        self.child.0.kill().expect("killed");
        self.child.0.wait().expect("ended");
    }

    /// Calls it from a thread of its own.
    pub fn spawn<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Client) -> Outcome<T> + Send + 'static,
    ) -> JoinHandle<Outcome<T>> {
        let socket = self.socket.clone();
        std::thread::spawn(move || call(&mut Client::new(&socket)))
    }

    /// Calls it as a Container Orchestrator does: until it does not say any more that something else has to end first.
    pub fn again<T>(&mut self, mut call: impl FnMut(&mut Client) -> Outcome<T>) -> Outcome<T> {
        let end = Instant::now() + PATIENCE;
        loop {
            match call(&mut self.client) {
                Err(status)
                    if Instant::now() < end
                        && [Code::Aborted, Code::FailedPrecondition].contains(&status.code()) =>
                {
                    std::thread::sleep(AGAIN);
                }
                done => return done,
            }
        }
    }
}

impl Deref for Driver {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Driver {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

/// The name of the host with this NQN.
fn name_of(nqn: &str) -> &str {
    nqn.rsplit(':').next().unwrap_or(nqn)
}

/// Whether the kernel lets this process grow an ext4 that is mounted (`CAP_SYS_RESOURCE`).
pub fn may_grow_ext4() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").expect("read");
    let effective =
        status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("capabilities").trim();
    u64::from_str_radix(effective, 16).expect("a number") >> CAP_SYS_RESOURCE & 1 == 1
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "not yet: {what}");
        std::thread::sleep(AGAIN);
    }
}

/// Whether a process has ended; another one may have to take note of that.
fn is_gone(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_none_or(|state| state.is_empty() || state.starts_with('Z'))
}

/// The user that a file belongs to.
pub fn owner(path: &Path) -> u32 {
    fs::metadata(path).expect("there").uid()
}

pub fn is_block_device(path: &Path) -> bool {
    fs::metadata(path).expect("there").file_type().is_block_device()
}

/// Size of a block device in bytes.
pub fn device_size(device: &File) -> u64 {
    use std::io::{Seek, SeekFrom};
    let mut device = device;
    device.seek(SeekFrom::End(0)).expect("its end")
}
