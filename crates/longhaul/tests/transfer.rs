//! `longhaul cp`, `sync` and `agent`, as a stranger runs them: killed at any
//! moment, refused, and with files that cannot be copied.

mod common;

use common::{Ran, Target, command, finish, longhaul, text};
use longhaul_engine::Config;
use longhaul_wan::{Link, Relay};
use std::collections::HashSet;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Bytes of a block, as large files travel.
const BLOCK: u64 = 1 << 20;

/// A running agent; it is killed when dropped.
struct Agent(Target);

impl Agent {
    fn start(listen: &str, root: &Path) -> Agent {
        Agent(Target::spawn(command(&["agent", "--listen", listen, "--root", text(root), "--json"])))
    }

    fn addr(&self) -> SocketAddr {
        self.0.ready["listen"].as_str().expect("an address").parse().expect("an address")
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    std::iter::repeat_with(&mut next).take(len).collect()
}

/// A few large files and many small ones; their bytes.
fn make_tree(dir: &Path) -> u64 {
    let mut total = 0;
    for i in 0..300u64 {
        let len = if i % 60 == 0 { 7_000_000 + i as usize } else { (i * 131) as usize };
        let parent = dir.join(format!("d{}", i % 7));
        fs::create_dir_all(&parent).expect("made");
        fs::write(parent.join(format!("f{i}")), noise(i, len)).expect("written");
        total += len as u64;
    }
    total
}

fn assert_same(one: &Path, other: &Path) {
    let ran = Command::new("diff").arg("-r").args([one, other]).output().expect("diff");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
}

/// Bytes that need not be sent again: files that have appeared, and blocks in
/// the journal of those that have not.
fn present(dir: &Path) -> u64 {
    let (mut bytes, mut open) = (0, vec![dir.to_owned()]);
    let mut unfinished = HashSet::new();
    let mut records = HashSet::new();
    while let Some(path) = open.pop() {
        let Ok(entries) = fs::read_dir(&path) else { continue };
        for entry in entries.map(|entry| entry.expect("an entry")) {
            let name = entry.file_name().into_string().expect("UTF-8");
            let meta = entry.metadata().expect("there");
            if meta.is_dir() {
                open.push(entry.path());
            } else if name.starts_with(".longhaul-journal-") {
                let journal = fs::read(entry.path()).expect("read");
                records.extend(journal.chunks_exact(64).skip(1).map(|record| record[..24].to_vec()));
            } else if let Some(key) = name.strip_prefix(".longhaul-") {
                unfinished.insert(u128::from_str_radix(key, 16).expect("a key").to_le_bytes().to_vec());
            } else {
                bytes += meta.len();
            }
        }
    }
    // The last block of a file is shorter: it counts as nothing, to be safe.
    let whole = records.iter().filter(|record| unfinished.contains(&record[..16])).count() as u64;
    bytes + whole.saturating_sub(unfinished.len() as u64) * BLOCK
}

/// Kills one side of a copy after a while; whether it was still at it.
fn kill_after(child: &mut Child, time: Duration) -> bool {
    let end = Instant::now() + time;
    while Instant::now() < end {
        if child.try_wait().expect("waited").is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let _ = child.kill();
    let _ = child.wait();
    true
}

/// Copies through a slow line, while one side and then the other is killed.
fn killed_and_resumed(pull: bool) {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    let total = make_tree(&source);
    let mut agent = Agent::start("127.0.0.1:0", dir.path());
    let addr = agent.addr();
    let link = Link { delay: Duration::from_millis(2), rate: Some(30_000_000), memory: 16 << 20 };
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let relay = Relay::start_with(&Config::default(), any, addr, link).expect("started");
    let remote = |name: &str| format!("lh://{}/{name}", relay.local_addr());
    let (from, to) = match pull {
        true => (remote("source"), text(&copy).to_owned()),
        false => (text(&source).to_owned(), remote("copy")),
    };
    let args = ["cp", "-r", "--fsync", "none", "--json", &from, &to];
    let mut kills = 0;
    for round in 0..10u64 {
        let mut client = command(&args).spawn().expect("started");
        // Times that seeds cannot choose: what matters is that they differ.
        let time = Duration::from_millis(40 + 53 * (round * 7 % 10));
        if round % 2 == 0 {
            kills += u64::from(kill_after(&mut client, time));
        } else {
            let _ = kill_after(&mut agent.0.child, time);
            let ran = finish(client);
            assert!(matches!(ran.code, Some(0 | 5)), "{ran:?}");
            kills += u64::from(ran.code == Some(5));
            agent = Agent::start(&addr.to_string(), dir.path());
        }
    }
    assert!(kills >= 3, "only {kills} of the runs were cut off");
    // The last run sends what is missing, and hardly more. The other side may
    // still be about to notice that the run before is dead.
    let mut ran = Ran { code: None, stdout: String::new(), stderr: String::new() };
    let mut there = 0;
    for _ in 0..100 {
        there = present(&copy);
        ran = longhaul(&args);
        if ran.code != Some(6) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_same(&source, &copy);
    let summary = ran.events().pop().expect("a summary");
    let sent = summary["bytes"].as_u64().expect("bytes");
    assert!(
        sent <= total - there.min(total) + total / 100 + BLOCK,
        "{sent} of {total} sent, {there} was there"
    );
    let left = Command::new("find").arg(&copy).args(["-name", ".longhaul-*"]).output().expect("find");
    assert!(left.stdout.is_empty(), "{}", String::from_utf8_lossy(&left.stdout));
}

#[test]
fn a_copy_to_an_agent_outlives_both_sides() {
    killed_and_resumed(false);
}

#[test]
fn a_copy_from_an_agent_outlives_both_sides() {
    killed_and_resumed(true);
}

#[test]
fn a_copy_over_ssh_starts_its_own_agent() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, home) = (dir.path().join("source"), dir.path().join("home"));
    make_tree(&source);
    fs::create_dir(&home).expect("made");
    // What stands for ssh: it runs the command here, in the home directory of
    // "the other machine", as ssh would there. It has no configuration to tell.
    let ssh = dir.path().join("ssh");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = -G ] && exit 1\necho \"$@\" >> {0}/calls\n\
         while [ \"$1\" != 127.0.0.1 ]; do shift; done\ncd {0}/home && exec sh -c \"$2\"\n",
        text(dir.path())
    );
    fs::write(&ssh, script).expect("written");
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).expect("set");
    let how = ["--ssh", text(&ssh), "--remote-program", env!("CARGO_BIN_EXE_longhaul")];
    let run = |args: &[&str]| longhaul(&[args, &how].concat());
    let there = run(&["cp", "-r", text(&source), "127.0.0.1:copy"]);
    assert_eq!(there.code, Some(0), "{there:?}");
    assert_same(&source, &home.join("copy"));
    let back = dir.path().join("back");
    let pulled = run(&["sync", "127.0.0.1:copy", text(&back), "--port-range", "40000-60000"]);
    assert_eq!(pulled.code, Some(0), "{pulled:?}");
    assert_same(&source, &back);
    let between = run(&["cp", "-r", "127.0.0.1:copy", "127.0.0.1:third"]);
    assert_eq!(between.code, Some(0), "{between:?}");
    assert_same(&source, &home.join("third"));
    let calls = fs::read_to_string(dir.path().join("calls")).expect("called");
    assert!(calls.contains("agent --one-time") && calls.contains("--port-range 40000-60000"), "{calls}");
    // Through ssh where it is asked for, and where no port can be reached: here
    // the name of the "other machine" is one that leads nowhere.
    let script = fs::read_to_string(&ssh).expect("read").replace("127.0.0.1", "host.invalid");
    fs::write(&ssh, script).expect("written");
    for (way, to) in [("ssh", "through"), ("auto", "fallback")] {
        let to = dir.path().join(to);
        let ran = run(&["cp", "-r", "--json", "--via", way, "host.invalid:copy", text(&to)]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_same(&source, &to);
        let events = ran.events();
        assert_eq!(events.last().expect("a summary")["through_ssh"], true);
        assert_eq!(events.iter().any(|event| event["event"] == "note"), way == "auto", "{events:?}");
        let back = format!("host.invalid:back-{way}");
        assert_eq!(run(&["cp", "-r", "--via", way, text(&source), &back]).code, Some(0));
        assert_same(&source, &home.join(format!("back-{way}")));
    }
    let direct = run(&["cp", "-r", "--via", "direct", "host.invalid:copy", text(&dir.path().join("x"))]);
    assert_eq!(direct.code, Some(5), "{direct:?}");
    let script = fs::read_to_string(&ssh).expect("read").replace("host.invalid", "127.0.0.1");
    fs::write(&ssh, script).expect("written");
    // The key is in no argument: there is no long word of hexadecimal digits.
    let hex = |word: &str| word.len() >= 32 && word.chars().all(|c| c.is_ascii_hexdigit());
    assert!(!calls.split_whitespace().any(hex), "{calls}");
    let absent = longhaul(&[
        "cp",
        "-r",
        "127.0.0.1:copy",
        text(&back),
        "--ssh",
        text(&ssh),
        "--remote-program",
        "/no/such",
    ]);
    assert_eq!(absent.code, Some(5), "{absent:?}");
}

/// What stands for ssh: it says where the "other machine" is, and runs the command
/// here, which hears that it was reached at `listens`.
fn fake_ssh(dir: &Path, name: &str, listens: &str) -> std::path::PathBuf {
    let ssh = dir.join("ssh");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = -G ] && echo hostname {name} && exit\n\
         while [ \"$1\" != far ]; do shift; done\n\
         export SSH_CONNECTION=\"{listens} 1 {listens} 22\"\ncd {} && exec sh -c \"$2\"\n",
        text(dir)
    );
    fs::write(&ssh, script).expect("written");
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).expect("set");
    ssh
}

#[test]
fn ports_that_are_taken_or_closed_are_found_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("source");
    make_tree(&source);
    let ssh = fake_ssh(dir.path(), "127.0.0.1", "127.0.0.1");
    let how = ["--json", "--ssh", text(&ssh), "--remote-program", env!("CARGO_BIN_EXE_longhaul")];
    let run = |to: &str, more: &[&str]| {
        longhaul(&[&["cp", "-r", text(&source), &format!("far:{to}")], more, &how].concat())
    };
    // A port that somebody has, with one behind it that nobody has: that is taken.
    let (taken, port) = loop {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = taken.local_addr().expect("bound").port();
        if port < u16::MAX && std::net::TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            break (taken, port);
        }
    };
    let ran = run("second", &["--port-range", &format!("{port}-{}", port + 1), "--via", "direct"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_same(&source, &dir.path().join("second"));
    // None is left.
    let ran = run("none", &["--port-range", &format!("{port}-{port}")]);
    assert_eq!(ran.code, Some(5), "{ran:?}");
    drop(taken);
    // The agent listens where it cannot be reached under the name that ssh has.
    fake_ssh(dir.path(), "127.0.0.1", "127.0.0.2");
    let ran = run("fallback", &[]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_same(&source, &dir.path().join("fallback"));
    let events = ran.events();
    assert_eq!(events.last().expect("a summary")["through_ssh"], true);
    assert!(events.iter().any(|event| event["event"] == "note"), "{events:?}");
    assert_eq!(run("direct", &["--via", "direct"]).code, Some(5));
}

#[test]
fn where_a_firewall_drops_what_comes_the_data_goes_through_ssh() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("source");
    make_tree(&source);
    // A network of its own, in which what goes to the other machine is lost.
    let lost = "ip link set lo up && ip link add gone type veth peer name end && ip link set end up \
                && ip address add 192.0.2.2/24 dev gone && ip link set gone arp off up";
    let tried = Command::new("unshare").args(["--net", "sh", "-c", lost]).output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        eprintln!("skip: a network of its own with an interface that leads nowhere takes root");
        return;
    }
    let ssh = fake_ssh(dir.path(), "192.0.2.1", "127.0.0.1");
    let run = |to: &str, via: &str| {
        let program = env!("CARGO_BIN_EXE_longhaul");
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", &format!("{lost} && exec \"$@\""), "sh", program]);
        command.args(["cp", "-r", "--json", "--via", via, text(&source), &format!("far:{to}")]);
        command.args(["--ssh", text(&ssh), "--remote-program", program]);
        command.env("XDG_CONFIG_HOME", "/nonexistent");
        let ran = command.output().expect("run");
        (ran.status.code(), String::from_utf8(ran.stdout).expect("UTF-8"))
    };
    let (code, said) = run("copy", "auto");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("\"through_ssh\":true") && said.contains("\"event\":\"note\""), "{said}");
    assert_same(&source, &dir.path().join("copy"));
}

#[test]
fn exit_codes_say_what_happened() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| text(&dir.path().join(name)).to_owned();
    fs::create_dir(path("d")).expect("made");
    fs::write(path("d/f"), "1").expect("written");
    assert_eq!(longhaul(&["cp", "-r", &path("d"), &path("e")]).code, Some(0));
    assert_eq!(longhaul(&["cp", &path("d"), &path("x")]).code, Some(3), "a directory without -r");
    assert_eq!(longhaul(&["cp", "-r", &path("none"), &path("x")]).code, Some(1));
    assert_eq!(longhaul(&["cp", &path("d/f")]).code, Some(2));
    assert_eq!(longhaul(&["cp", "-o:x", &path("y")]).code, Some(2));
    assert_eq!(longhaul(&["cp", &path("d/f"), "lh://127.0.0.1:1/x"]).code, Some(5));
    let made = Command::new("mkfifo").arg(path("d/pipe")).status();
    assert!(made.is_ok_and(|status| status.success()));
    let ran = longhaul(&["sync", "--json", &path("d"), &path("e")]);
    assert_eq!(ran.code, Some(3));
    let events = ran.events();
    assert_eq!((&events[0]["event"], &events[0]["path"]), (&"trouble".into(), &"pipe".into()));
    let summary = events.last().expect("a summary");
    assert_eq!(
        (&summary["event"], &summary["failed"], &summary["same"]),
        (&"summary".into(), &1.into(), &1.into())
    );
    let open = longhaul(&["agent", "--listen", "0.0.0.0:0", "--root", &path("d")]);
    assert_eq!(open.code, Some(2), "{open:?}");
    let key = path("key");
    let keyed = Target::spawn(command(&[
        "agent",
        "--listen",
        "127.0.0.1:0",
        "--root",
        &path("d"),
        "--key-file",
        &key,
        "--json",
    ]));
    let uri = keyed.ready["uri"].as_str().expect("a URI");
    assert_eq!(longhaul(&["cp", &format!("{uri}f"), &path("x"), "--key-file", &key]).code, Some(0));
    assert_eq!(longhaul(&["cp", &format!("{uri}f"), &path("x")]).code, Some(6));
    let only = Target::spawn(command(&[
        "agent",
        "--listen",
        "127.0.0.1:0",
        "--root",
        &path("d"),
        "--read-only",
        "--json",
    ]));
    let uri = only.ready["uri"].as_str().expect("a URI");
    assert_eq!(longhaul(&["cp", &path("e/f"), uri]).code, Some(6));
    assert_eq!(longhaul(&["cp", &format!("{uri}nothing"), &path("x")]).code, Some(1));
}

#[test]
fn files_that_may_not_be_read_are_listed_and_the_rest_is_copied() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    fs::create_dir_all(source.join("closed")).expect("made");
    for name in ["good", "secret", "closed/f"] {
        fs::write(source.join(name), name).expect("written");
    }
    fs::create_dir(&copy).expect("made");
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
    mode(&source.join("secret"), 0o000);
    mode(&source.join("closed"), 0o000);
    // Who is root may read everything: be nobody, from a copy that nobody can run.
    mode(dir.path(), 0o755);
    mode(&copy, 0o777);
    let program = dir.path().join("longhaul");
    fs::copy(env!("CARGO_BIN_EXE_longhaul"), &program).expect("copied");
    let root = rustix::process::geteuid().is_root();
    let mut run = match root {
        true => Command::new("setpriv"),
        false => Command::new(&program),
    };
    if root {
        run.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program);
    }
    run.args(["cp", "-r", text(&source), text(&copy)])
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env("HOME", "/");
    let Ok(ran) = run.output() else {
        eprintln!("skip: setpriv is not there");
        return;
    };
    mode(&source.join("closed"), 0o700);
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(3), "{stderr}");
    assert!(
        stderr.contains("source/secret: Permission denied") && stderr.contains("source/closed"),
        "{stderr}"
    );
    assert_eq!(fs::read(copy.join("source/good")).expect("there"), b"good");
    assert!(!copy.join("source/secret").exists());
}

/// Peak resident set of a process, in bytes.
fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") * 1024
}

#[test]
fn memory_does_not_grow_with_the_number_of_files() {
    // Of many files a side may remember the directories, and nothing else.
    const FILES: u64 = 40_000;
    const DIRECTORIES: u64 = 4_000;
    const MEMORY: u64 = 64 << 20;
    let dir = tempfile::tempdir().expect("a directory");
    let (source, root) = (dir.path().join("source"), dir.path().join("root"));
    fs::create_dir(&root).expect("made");
    for i in 0..DIRECTORIES {
        let parent = source.join(format!("{:02}/{i:05}", i % 40));
        fs::create_dir_all(&parent).expect("made");
        for j in 0..FILES / DIRECTORIES {
            fs::File::create(parent.join(format!("f{j}"))).expect("made");
        }
    }
    let (reads, writes) = (Agent::start("127.0.0.1:0", dir.path()), Agent::start("127.0.0.1:0", &root));
    let (from, to) = (format!("lh://{}/source", reads.addr()), format!("lh://{}/copy", writes.addr()));
    let none = ["--fsync", "none", "--json"];
    let pushed = longhaul(&[&["cp", "-r", text(&source), &to][..], &none].concat());
    assert_eq!(pushed.code, Some(0), "{pushed:?}");
    let pulled = longhaul(&[&["cp", "-r", &from, text(&dir.path().join("back"))][..], &none].concat());
    assert_eq!(pulled.code, Some(0), "{pulled:?}");
    assert_eq!(pulled.events().last().expect("a summary")["files"], FILES);
    for agent in [&reads, &writes] {
        let peak = peak(agent.0.child.id());
        assert!(peak <= MEMORY, "{peak} bytes");
    }
}
