//! `longhaul cp`, `sync` and `agent` as a user runs them: killed at any moment, refused,
//! and with files that cannot be copied.

mod common;

use common::ssh::{fake_ssh, sshd};
use common::{Target, command, finish, longhaul, text};
use fastrand::Rng;
use longhaul_engine::Config;
use longhaul_engine::procfs::Process;
use longhaul_wan::{Link, Relay};
use std::collections::HashSet;
use std::fs;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Bytes of a block of a large file.
const BLOCK: u64 = 1 << 20;

/// A running agent; it is killed when dropped.
struct Agent(Target);

impl Agent {
    fn start(listen: &str, root: &Path) -> Agent {
        let args = ["agent", "--listen", listen, "--root", text(root), "--json", "--insecure", "--user"];
        Agent(Target::spawn(command(&[&args[..], &[&common::own_user()]].concat())))
    }

    fn addr(&self) -> SocketAddr {
        self.0.ready["listen"].as_str().expect("an address").parse().expect("an address")
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Creates a few large files and many small ones, and returns their bytes.
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

/// Creates files of many blocks and many small files without zeroes, and returns their bytes.
fn make_much(dir: &Path) -> u64 {
    // Large files are whole blocks, so that blocks in a journal can be counted.
    let sizes = (0..24).map(|_| 10 * BLOCK as usize).chain((0..2048).map(|_| 8 << 10));
    let mut total = 0;
    for (i, len) in sizes.enumerate() {
        let parent = dir.join(format!("d{}", i % 7));
        fs::create_dir_all(&parent).expect("made");
        let data = noise(i as u64, len);
        fs::write(parent.join(format!("f{i}")), &data).expect("written");
        total += data.len() as u64;
    }
    total
}

/// Bytes that need not be resent: complete files, and blocks in the journal of incomplete
/// ones. Waits until no process writes the journal.
fn present(dir: &Path) -> u64 {
    let (mut bytes, mut open) = (0, vec![dir.to_owned()]);
    let (mut unfinished, mut records) = (HashSet::new(), HashSet::new());
    // The journal is beside the destination.
    let beside = fs::read_dir(dir.parent().expect("a parent")).expect("read");
    let journals = beside.map(|entry| entry.expect("an entry").path());
    for journal in journals.filter(|path| path.to_string_lossy().contains(".longhaul-journal-")) {
        // The receiver holds the lock while it writes.
        let Ok(mut file) = fs::File::open(journal) else { continue };
        file.lock().expect("locked");
        let mut journal = Vec::new();
        file.read_to_end(&mut journal).expect("read");
        records.extend(journal.chunks_exact(64).skip(1).map(|record| record[..24].to_vec()));
    }
    while let Some(path) = open.pop() {
        let Ok(entries) = fs::read_dir(&path) else { continue };
        for entry in entries.map(|entry| entry.expect("an entry")) {
            let name = entry.file_name().into_string().expect("UTF-8");
            let meta = entry.metadata().expect("there");
            if meta.is_dir() {
                open.push(entry.path());
            } else if let Some(own) = name.strip_prefix(".longhaul-") {
                let key = own.rsplit('-').next().expect("a key");
                unfinished.extend(u128::from_str_radix(key, 16).map(|key| key.to_le_bytes().to_vec()));
            } else {
                bytes += meta.len();
            }
        }
    }
    bytes + records.iter().filter(|record| unfinished.contains(&record[..16])).count() as u64 * BLOCK
}

/// Kills a process after a while, and returns whether it still ran.
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

/// Moments at which one of the sides is killed, in each direction.
const KILLS: u64 = 10;

/// A relay to `target` in the place of another one, whose connections end.
fn replaced(relay: Relay, target: SocketAddr, link: Link) -> Relay {
    let at = relay.local_addr();
    drop(relay);
    let began = Instant::now();
    loop {
        match Relay::start_with(&Config::default(), at, target, link.clone()) {
            // The kernel gave the port to a connection of another test meanwhile.
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && began.elapsed() < common::PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            started => return started.expect("started in its place"),
        }
    }
}

/// Copies over a slow link, while one side or the other is killed at random moments. Each
/// kill may cost at most 1 % of the data.
fn killed_and_resumed(pull: bool) {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    let total = make_much(&source);
    let mut agent = Agent::start("127.0.0.1:0", dir.path());
    let addr = agent.addr();
    // Slow enough that all kills come before its end, with few bytes in flight.
    let link = Link { delay: Duration::from_millis(2), rate: Some(25_000_000), memory: 256 << 10 };
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let relay = Relay::start_with(&Config::default(), any, addr, link.clone()).expect("started");
    let carried_by = |relay: &Relay| {
        let stats = relay.stats();
        if pull { stats.back_bytes } else { stats.forward_bytes }
    };
    let carried = || carried_by(&relay);
    let remote = |name: &str| format!("lh://{}/{name}", relay.local_addr());
    let (from, to) = match pull {
        true => (remote("source"), text(&copy).to_owned()),
        false => (text(&source).to_owned(), remote("copy")),
    };
    let args = ["cp", "-r", "--fsync", "none", "--streams", "2", "--json", &from, &to];
    let mut rng = Rng::with_seed(6 + u64::from(pull));
    let (mut there, mut worst, mut sum) = (0, 0, 0);
    for kill in 0..KILLS {
        let sent = carried();
        let mut client = command(&args).spawn().expect("started");
        // One kill in five comes during the handshake, the others once data flows.
        if rng.u8(..5) != 0 {
            common::until("data flows", || carried() > sent + BLOCK);
        }
        let time = Duration::from_millis(rng.u64(..600));
        if rng.bool() {
            assert!(kill_after(&mut client, time), "kill {kill}: the copy had ended");
        } else {
            assert!(kill_after(&mut agent.0.child, time), "kill {kill}: the agent had ended");
            let ran = finish(client);
            assert_eq!(ran.code, Some(5), "kill {kill}: {ran:?}");
            agent = Agent::start(&addr.to_string(), dir.path());
        }
        let now = present(&copy);
        assert!(now >= there, "kill {kill}: {there} bytes were there, and {now} are");
        // Names and headers count as well.
        let again = (carried() - sent).saturating_sub(now - there);
        (there, worst, sum) = (now, worst.max(again), sum + again);
        // Of a single one, what waits for a processor or for the disk may be more.
        assert!(again <= total / 25, "kill {kill}: {again} bytes of {total} were sent for nothing");
    }
    let mean = sum / KILLS;
    assert!(mean <= total / 100, "{mean} bytes of {total} were sent for nothing by each kill");
    // The rest is copied over a faster link at the same address.
    let relay = replaced(relay, addr, Link { rate: None, ..link });
    let ran = longhaul(&args);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_same(&source, &copy);
    let again = carried_by(&relay).saturating_sub(total - there);
    assert!(again <= total / 100, "{again} bytes of {total} were sent though they were there");
    let share = |bytes: u64| 100.0 * bytes as f64 / total as f64;
    eprintln!(
        "{KILLS} kills of a {} of {total} bytes: {:.3} % resent at worst, {:.3} % in all, {:.3} % by the last run",
        if pull { "pull" } else { "push" },
        share(worst),
        share(sum + again),
        share(again)
    );
    let left = Command::new("find").arg(dir.path()).args(["-name", ".longhaul-*"]).output().expect("find");
    assert!(left.stdout.is_empty(), "{}", String::from_utf8_lossy(&left.stdout));
}

#[test]
fn the_flags_of_rsync_do_what_they_do_there() {
    let dir = tempfile::tempdir().expect("directory");
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    std::fs::create_dir_all(from.join("below")).expect("made");
    std::fs::write(from.join("below/file"), "content").expect("written");
    let (source, copy) = (from.to_str().expect("UTF-8"), to.to_str().expect("UTF-8"));
    for flag in ["-n", "--dry-run"] {
        let ran = longhaul(&["cp", "-a", flag, source, copy]);
        assert!(ran.code == Some(0) && ran.stdout.contains("below/file") && !to.exists(), "{ran:?}");
    }
    let ran = longhaul(&["cp", "-apvP", "--progress", "--partial", source, copy]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(std::fs::read(to.join("below/file")).expect("read"), b"content");
    std::fs::write(from.join("more"), "more").expect("written");
    let ran = longhaul(&["sync", "-avn", source, copy]);
    assert!(ran.code == Some(0) && ran.stdout.contains("more") && !to.join("more").exists(), "{ran:?}");
    assert_eq!(longhaul(&["sync", "-rpv", "--partial", "--progress", source, copy]).code, Some(0));
    assert_eq!(std::fs::read(to.join("more")).expect("read"), b"more");
}

#[test]
fn a_copy_to_an_agent_outlives_both_sides() {
    killed_and_resumed(false);
}

#[test]
fn a_copy_from_an_agent_outlives_both_sides() {
    killed_and_resumed(true);
}

/// A copy is not resumed if the source has other content of the same size and time.
#[test]
fn a_copy_that_is_taken_up_does_not_mix_two_contents() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    fs::create_dir(&source).expect("made");
    let path = source.join("f");
    fs::write(&path, vec![1; 64 * BLOCK as usize]).expect("written");
    let agent = Agent::start("127.0.0.1:0", dir.path());
    let link = Link { delay: Duration::from_millis(2), rate: Some(25_000_000), memory: 256 << 10 };
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let relay = Relay::start_with(&Config::default(), any, agent.addr(), link.clone()).expect("started");
    let (from, to) = (text(&source), format!("lh://{}/copy", relay.local_addr()));
    let args = ["cp", "-r", "--fsync", "none", "--json", from, &to];
    let mut client = command(&args).spawn().expect("started");
    let unfinished = || {
        let names = fs::read_dir(&copy).into_iter().flatten().flatten();
        names.filter_map(|entry| entry.metadata().ok()).map(|meta| 512 * meta.blocks()).sum::<u64>()
    };
    common::until("much has been written", || unfinished() > 16 * BLOCK);
    assert!(kill_after(&mut client, Duration::ZERO), "the copy had ended");
    assert!(present(&copy) > 8 * BLOCK, "nothing is there to be taken up");
    let mtime = fs::metadata(&path).and_then(|meta| meta.modified()).expect("a time");
    fs::write(&path, vec![2; 64 * BLOCK as usize]).expect("written");
    let file = fs::File::options().write(true).open(&path).expect("opened");
    file.set_times(fs::FileTimes::new().set_modified(mtime)).expect("set");
    let _relay = replaced(relay, agent.addr(), Link { rate: None, ..link });
    let ran = longhaul(&args);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_same(&source, &copy);
    let left = Command::new("find").arg(dir.path()).args(["-name", ".longhaul-*"]).output().expect("find");
    assert!(left.stdout.is_empty(), "{}", String::from_utf8_lossy(&left.stdout));
}

/// The option sets the congestion control of the sender, on either side of the copy.
#[test]
fn congestion_control_is_set_at_the_sender() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("f"), "1").expect("written");
    let agent = Agent::start("127.0.0.1:0", dir.path());
    let there = |name: &str| format!("lh://{}/{name}", agent.addr());
    let here = |name: &str| text(&dir.path().join(name)).to_owned();
    let used = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").expect("the system's own");
    // Every kernel has Reno, and lets every user set it.
    let other = "reno";
    let copy = |from: &str, to: &str, name: &str| longhaul(&["cp", "--json", "--congestion", name, from, to]);
    for (from, to) in [(there("f"), here("pulled")), (here("f"), there("pushed"))] {
        for name in [other, used.trim()] {
            let ran = copy(&from, &to, name);
            assert_eq!(ran.code, Some(0), "{ran:?}");
            let events = ran.events();
            let summary = events.iter().find(|event| event["event"] == "summary").expect("a summary");
            assert_eq!(summary["congestion"], name, "{from} {to}");
        }
        let ran = copy(&from, &to, "none-of-that-name");
        assert!(ran.code.is_some_and(|code| code != 0), "{ran:?}");
        let why = "congestion control 'none-of-that-name' cannot be used";
        assert!(ran.stdout.contains(why) || ran.stderr.contains(why), "{ran:?}");
    }
}

#[test]
fn sync_says_that_there_was_nothing_to_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| text(&dir.path().join(name)).to_owned();
    fs::create_dir_all(path("d/sub")).expect("made");
    fs::write(path("d/f"), "1").expect("written");
    std::os::unix::fs::symlink("f", path("d/link")).expect("linked");
    fs::hard_link(path("d/f"), path("d/hard")).expect("linked");
    let plain = |more: &[&str]| longhaul(&[&["sync", "--delete", &path("d"), &path("e")], more].concat());
    let sync = |more: &[&str]| plain(&[&["--exit-code"], more].concat()).code;
    assert_eq!(sync(&[]), Some(0));
    assert_eq!((sync(&[]), sync(&["--dry-run"])), (Some(8), Some(8)));
    // Without `--exit-code`, a run without changes succeeds.
    let ran = plain(&[]);
    assert!(ran.code == Some(0) && ran.stderr.contains("nothing to do"), "{ran:?}");
    type Change = fn(&Path);
    let changes: [(&str, Change); 5] = [
        ("a file", |d| fs::write(d.join("g"), "1").expect("written")),
        ("a mode", |d| fs::set_permissions(d.join("f"), fs::Permissions::from_mode(0o600)).expect("set")),
        ("a link", |d| {
            fs::remove_file(d.join("link")).expect("removed");
            std::os::unix::fs::symlink("hard", d.join("link")).expect("linked");
        }),
        ("a directory", |d| fs::create_dir(d.join("new")).expect("made")),
        ("something that goes", |d| fs::remove_file(d.join("g")).expect("removed")),
    ];
    for (what, change) in changes {
        change(&dir.path().join("d"));
        assert_eq!((sync(&["--dry-run"]), sync(&[]), sync(&[])), (Some(0), Some(0), Some(8)), "{what}");
    }
    assert_same(&dir.path().join("d"), &dir.path().join("e"));
}

#[test]
fn a_dry_run_names_what_it_would_do_from_wherever_it_is_asked() {
    let dir = tempfile::tempdir().expect("a directory");
    let [source, copy] = ["source", "copy"].map(|name| dir.path().join(name));
    for place in [&source, &copy] {
        fs::create_dir(place).expect("made");
        for name in ["same", "mode"] {
            fs::write(place.join(name), "1").expect("written");
        }
    }
    fs::set_permissions(source.join("mode"), fs::Permissions::from_mode(0o600)).expect("set");
    fs::create_dir(source.join("sub")).expect("made");
    fs::write(source.join("sub/new\nline"), "1").expect("written");
    std::os::unix::fs::symlink("same", source.join("link")).expect("linked");
    fs::create_dir(copy.join("gone")).expect("made");
    fs::write(copy.join("gone/file"), "1").expect("written");
    let (near, far) = (common::agent(&source, &["--onward"]), common::agent(&copy, &["--onward"]));
    let (here, there) = (text(&source).to_owned(), text(&copy).to_owned());
    for (from, to) in [(&here, &there), (&here, &far.1), (&near.1, &there), (&near.1, &far.1)] {
        let ran = longhaul(&["sync", "--level", "size", "--delete", "--dry-run", "--json", from, to]);
        assert_eq!(ran.code, Some(0), "{from} {to}: {ran:?}");
        let events = ran.events();
        let mut planned: Vec<(&str, &str)> = events
            .iter()
            .filter(|event| event["event"] == "planned")
            .map(|event| {
                (event["action"].as_str().unwrap_or_default(), event["path"].as_str().unwrap_or_default())
            })
            // The directory itself: whether its time differs depends on chance.
            .filter(|(_, path)| *path != ".")
            .collect();
        planned.sort_unstable();
        let expected = [
            ("delete", "gone"),
            ("delete", "gone/file"),
            ("make", "link"),
            ("make", "sub"),
            ("metadata", "mode"),
            ("send", "sub/new\\nline"),
        ];
        assert_eq!(planned, expected, "{from} {to}");
    }
    let ran = longhaul(&["sync", "--level", "size", "--delete", "--dry-run", &here, &far.1]);
    assert!(ran.stdout.contains("would remove gone/file\n"), "{ran:?}");
    assert!(copy.join("gone/file").exists() && !copy.join("sub").exists());
    // A missing destination needs all files, and a dry run does not create it.
    for to in [format!("{there}/a/new"), format!("{}/a/new", far.1)] {
        let ran = longhaul(&["sync", "--delete", "--dry-run", "--json", &here, &to]);
        assert_eq!(ran.code, Some(0), "{to}: {ran:?}");
        let sent = ran.events().iter().filter(|event| event["action"] == "send").count();
        assert_eq!((sent, copy.join("a").exists()), (3, false), "{to}");
    }
}

#[test]
fn read_only_directories_are_updated_and_stay_read_only() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    fs::create_dir_all(source.join("fixed/deep")).expect("made");
    for name in ["fixed/f", "fixed/gone", "fixed/deep/f"] {
        fs::write(source.join(name), "1").expect("written");
    }
    fs::create_dir(&copy).expect("made");
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
    mode(dir.path(), 0o755);
    mode(&copy, 0o777);
    let fix = |to| ["fixed/deep", "fixed"].map(|name| mode(&source.join(name), to));
    fix(0o555);
    // Root may write everywhere: run as `nobody`, from a copy of the program which that user can execute.
    let program = dir.path().join("longhaul");
    fs::copy(env!("CARGO_BIN_EXE_longhaul"), &program).expect("copied");
    let sync = || {
        let mut run = match rustix::process::geteuid().is_root() {
            true => Command::new("setpriv"),
            false => Command::new(&program),
        };
        if rustix::process::geteuid().is_root() {
            run.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program);
        }
        run.args(["sync", "--delete", text(&source), text(&copy)]);
        run.env("XDG_CONFIG_HOME", "/nonexistent").env("HOME", "/").output()
    };
    let Ok(first) = sync() else {
        longhaul_skip::skip!("setpriv is not there");
        return;
    };
    // The directory above the copies may belong to another user: its mode is not changed.
    let stderr = |ran: &std::process::Output| String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(copy.join("fixed/deep/f").exists(), "{}", stderr(&first));
    fix(0o755);
    fs::write(source.join("fixed/f"), "new").expect("written");
    fs::write(source.join("fixed/deep/new"), "new").expect("written");
    fs::create_dir(source.join("fixed/deep/dir")).expect("made");
    fs::remove_file(source.join("fixed/gone")).expect("removed");
    fix(0o555);
    let ran = sync().expect("run");
    assert_eq!(fs::read(copy.join("fixed/f")).expect("there"), b"new", "{}", stderr(&ran));
    assert!(copy.join("fixed/deep/new").exists() && copy.join("fixed/deep/dir").is_dir(), "{}", stderr(&ran));
    assert!(!copy.join("fixed/gone").exists(), "{}", stderr(&ran));
    for name in ["fixed", "fixed/deep"] {
        assert_eq!(
            fs::metadata(copy.join(name)).expect("there").permissions().mode() & 0o7777,
            0o555,
            "{name}"
        );
    }
    fix(0o755);
    for name in ["fixed", "fixed/deep"] {
        mode(&copy.join(name), 0o755);
    }
}

#[test]
fn a_copy_over_ssh_starts_its_own_agent() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, home) = (dir.path().join("source"), dir.path().join("home"));
    make_tree(&source);
    fs::create_dir(&home).expect("made");
    // A fake ssh: it runs the command on this machine, in the home directory of the "other
    // machine", and has no `-G`.
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
    // Data goes through ssh if that is requested, and if no port can be reached: the name of
    // the "other machine" does not resolve here.
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
    // The key is not in the arguments: none is a long hexadecimal number.
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
    // The first port of the range is in use, the second one is free: the agent takes the second.
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
    // No port of the range is free.
    let ran = run("none", &["--port-range", &format!("{port}-{port}")]);
    assert_eq!(ran.code, Some(5), "{ran:?}");
    drop(taken);
    // The agent listens on an address that the name used by ssh does not have.
    fake_ssh(dir.path(), "127.0.0.1", "127.0.0.2");
    let ran = run("fallback", &[]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_same(&source, &dir.path().join("fallback"));
    let events = ran.events();
    assert_eq!(events.last().expect("a summary")["through_ssh"], true);
    assert!(events.iter().any(|event| event["event"] == "note"), "{events:?}");
    assert_eq!(run("direct", &["--via", "direct"]).code, Some(5));
    // Another process takes the connections to that port, and closes them.
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = other.local_addr().expect("bound").port();
    std::thread::spawn(move || other.incoming().for_each(drop));
    let ran = run("dropped", &["--port-range", &format!("{port}-{port}")]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.events().last().expect("a summary")["through_ssh"], true);
}

#[test]
fn ssh_itself_takes_copies_in_every_direction() {
    let dir = tempfile::tempdir().expect("a directory");
    let ssh = match sshd(dir.path()) {
        Ok(ssh) => ssh,
        Err(why) => return longhaul_skip::skip!("ssh does not work here: {}", why.trim_end()),
    };
    let (source, copies) = (dir.path().join("source"), dir.path().join("copies"));
    make_tree(&source);
    fs::create_dir(&copies).expect("made");
    let far = |name: &str| format!("far:{}", text(&copies.join(name)));
    let from = text(&source).to_owned();
    let back = text(&copies.join("back")).to_owned();
    for (args, to) in [
        (["cp", "-r", &from, &far("pushed")], "pushed"),
        (["cp", "-r", &far("pushed"), &back], "back"),
        (["cp", "-r", &far("pushed"), &far("third")], "third"),
    ] {
        let how = ["--ssh", &ssh, "--remote-program", env!("CARGO_BIN_EXE_longhaul"), "--json"];
        let ran = longhaul(&[&args[..], &how].concat());
        assert_eq!(ran.code, Some(0), "{to}: {ran:?}");
        assert_same(&source, &copies.join(to));
        let again = longhaul(&[&["sync", args[2], args[3]], &how[..], &["--via", "ssh"]].concat());
        // Third-party copies send no data through this machine.
        let expected = if to == "third" { [Some(0), Some(2)] } else { [Some(0); 2] };
        assert!(expected.contains(&again.code), "{to}: {again:?}");
    }
}

#[test]
fn ssh_may_ask_and_its_shells_may_talk() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("source");
    make_tree(&source);
    let ssh = fake_ssh(dir.path(), "127.0.0.1", "127.0.0.1");
    let script = fs::read_to_string(&ssh).expect("read");
    let says = |words: &str| {
        let talks = script.replace("while", &format!("echo \"$@\" > {}/call\nwhile", text(dir.path())));
        fs::write(&ssh, talks.replace("cd ", &format!("{words}\ncd "))).expect("written");
    };
    let how = ["--ssh", text(&ssh), "--remote-program", env!("CARGO_BIN_EXE_longhaul")];
    let run =
        |more: &[&str]| longhaul(&[&["cp", "-r", "--json", text(&source), "far:copy"], more, &how].concat());
    // A password prompt takes 3 s; then the login shell of that machine prints a greeting.
    says("sleep 3; echo; echo 'Welcome to far'; printf 'no end of line: '");
    let began = Instant::now();
    let ran = run(&["--writers", "3", "--timeout", "10s"]);
    let took = began.elapsed().as_secs_f64();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_same(&source, &dir.path().join("copy"));
    let events = ran.events();
    let seconds = events.last().and_then(|summary| summary["seconds"].as_f64()).expect("seconds");
    assert!(took - seconds >= 2.9, "{seconds} of {took} s");
    let early = |event: &&serde_json::Value| event["event"] == "progress";
    assert!(events.iter().filter(early).count() as f64 <= seconds + 1.0, "{events:?}");
    let call = fs::read_to_string(dir.path().join("call")).expect("called");
    assert!(call.contains("--writers 3") && call.contains("ServerAliveInterval=4"), "{call}");
    // The output that comes in place of the agent's greeting is in the error.
    says("printf '\\033[2Jthis account is closed\\n'; exit 1");
    let ran = run(&[]);
    assert_eq!(ran.code, Some(5), "{ran:?}");
    assert!(ran.stderr.contains("printed '\\x1b[2Jthis account is closed'"), "{}", ran.stderr);
}

#[test]
fn what_a_copy_says_of_itself_is_there() {
    let dir = tempfile::tempdir().expect("a directory");
    let there = Agent::start("127.0.0.1:0", dir.path());
    let to = format!("lh://{}/copy", there.addr());
    let ran = longhaul(&["cp", "--json", "--bwlimit", "80Mbit", "zero:70M", &to]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let events = ran.events();
    let progress: Vec<_> = events.iter().filter(|event| event["event"] == "progress").collect();
    assert!(progress.len() >= 2, "{events:?}");
    let eta = |event: &&&serde_json::Value| {
        event["eta_seconds"].as_f64().is_some_and(|eta| (0.0..60.0).contains(&eta))
    };
    assert!(progress.iter().any(|event| eta(&event)), "{progress:?}");
    assert!(progress.iter().any(|event| event["limit"].is_string()), "{progress:?}");
    let summary = events.last().expect("a summary");
    assert!(summary["path_share"].as_f64().is_some_and(|share| share > 0.1), "{summary}");
    assert!(summary["streams"].as_u64() > Some(0), "{summary}");
    // The rate limit, plus one frame on each connection that is sent at once.
    let streams = summary["streams"].as_u64().expect("a number") as f64;
    let at_once = 1.0 + streams * f64::from(1 << 20) / 70e6;
    let rate = summary["bits_per_second"].as_f64().expect("a rate");
    assert!(rate <= 80e6 * at_once * 1.05, "{rate} bit/s in place of 80 Mbit/s");
    let chosen = summary["chosen"].as_array().expect("a list");
    for stage in ["read", "network"] {
        let number = chosen.iter().find(|one| one["stage"] == stage).expect(stage);
        assert!(number["number"].as_u64() > Some(0) && number["why"].is_string(), "{number}");
    }
    assert!(ran.stderr.contains(" readers (") && ran.stderr.contains(" streams ("), "{}", ran.stderr);
}

#[test]
fn a_third_party_copy_reports_that_its_receiver_was_lost() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_agent, from) = common::agent(dir.path(), &["--onward"]);
    let (lost, to) = common::agent(dir.path(), &[]);
    let uri = |uri: &String, path: &str| format!("{uri}{path}");
    let good = longhaul(&["cp", "--json", &uri(&from, "zero:1M"), &uri(&to, "good")]);
    assert_eq!(good.code, Some(0), "{good:?}");
    let events = good.events();
    let summary = events.last().expect("a summary");
    assert!(summary["streams"].is_null() && summary["congestion"].is_null(), "{summary}");
    let arguments = ["cp", "--json", "--bwlimit", "8Mbit", &uri(&from, "zero:1G"), &uri(&to, "cut")];
    let mut child = command(&arguments).spawn().expect("started");
    let events = common::follow(child.stdout.take().expect("piped"));
    let moves = |event: serde_json::Value| event["event"] == "progress" && event["bytes"].as_u64() > Some(0);
    while !moves(events.recv_timeout(common::PATIENCE).expect("progress")) {}
    drop(lost);
    let ran = finish(child);
    assert_eq!(ran.code, Some(5), "{ran:?}");
    assert!(ran.stderr.contains("the same command resumes the copy"), "{}", ran.stderr);
}

#[test]
fn where_a_firewall_drops_what_comes_the_data_goes_through_ssh() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("source");
    make_tree(&source);
    // A network namespace that drops packets to the other machine.
    let lost = "ip link set lo up && ip link add gone type veth peer name end && ip link set end up \
                && ip address add 192.0.2.2/24 dev gone && ip link set gone arp off up";
    let tried = Command::new("unshare").args(["--net", "sh", "-c", lost]).output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        longhaul_skip::skip!("a network of its own with an interface that leads nowhere takes root");
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
        "--user",
        &common::own_user(),
        "--json",
    ]));
    let uri = keyed.ready["uri"].as_str().expect("a URI");
    assert_eq!(longhaul(&["cp", &format!("{uri}f"), &path("x"), "--key-file", &key]).code, Some(0));
    assert_eq!(longhaul(&["cp", &format!("{uri}f"), &path("x")]).code, Some(6));
    let (_only, uri) = common::agent(&dir.path().join("d"), &["--read-only"]);
    assert_eq!(longhaul(&["cp", &path("e/f"), &uri]).code, Some(6));
    assert_eq!(longhaul(&["cp", &format!("{uri}nothing"), &path("x")]).code, Some(1));
}

#[test]
fn a_copy_continues_after_the_reader_of_its_output_has_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("source");
    make_tree(&source);
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").expect("opened");
    let run = |to: &str, more: &[&str], set: &dyn Fn(&mut Command)| {
        let to = dir.path().join(to);
        let mut command = command(&[&["sync", text(&source), text(&to)], more].concat());
        set(&mut command);
        let mut child = command.spawn().expect("started");
        // The reading end of both pipes is closed.
        drop((child.stdout.take(), child.stderr.take()));
        let ran = finish(child);
        (ran.code, to)
    };
    let (code, to) = run("gone", &[], &|_| {});
    assert_eq!(code, Some(0), "the copy was good");
    assert_same(&source, &to);
    let (code, to) = run("full", &[], &|command| {
        command.stdout(full());
    });
    assert_eq!(code, Some(1), "the copy was good, but nothing says so");
    assert_same(&source, &to);
    let made = Command::new("mkfifo").arg(source.join("pipe")).status();
    assert!(made.is_ok_and(|status| status.success()));
    // The message on the named pipe is written before all is copied, into a closed pipe.
    for (name, more) in [("words", &[][..]), ("events", &["--json"])] {
        let (code, to) = run(name, more, &|_| {});
        assert_eq!(code, Some(3), "{name}");
        fs::remove_file(source.join("pipe")).expect("removed");
        assert_same(&source, &to);
        let made = Command::new("mkfifo").arg(source.join("pipe")).status();
        assert!(made.is_ok_and(|status| status.success()));
        let name = format!("{name}-full");
        let both = |command: &mut Command| {
            command.stdout(full()).stderr(full());
        };
        assert_eq!(run(&name, more, &both).0, Some(3), "{name}");
    }
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
    // Root may read everything: run as `nobody`, from a copy of the program which that user can execute.
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
        longhaul_skip::skip!("setpriv is not there");
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

#[test]
fn memory_does_not_grow_with_the_number_of_files() {
    // Memory may grow with the number of directories, but not with that of files.
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
        let peak = Process::of(agent.0.child.id()).peak_resident().expect("a peak");
        assert!(peak <= MEMORY, "{peak} bytes");
    }
}

#[test]
fn a_copy_is_a_result() {
    let dir = tempfile::tempdir().expect("a directory");
    let [source, there, file, page] =
        ["source", "there", "copy.json", "copy.html"].map(|name| dir.path().join(name));
    let bytes = make_tree(&source);
    fs::create_dir(&there).expect("made");
    let agent = Agent::start("127.0.0.1:0", &there);
    let uri = format!("lh://{}/copy", agent.addr());
    let read = || -> serde_json::Value {
        serde_json::from_str(&fs::read_to_string(&file).expect("written")).expect("JSON")
    };
    let cell = |result: &serde_json::Value, name: &str| {
        let cells = result["longhaul"]["cells"].as_array().expect("cells").clone();
        let cell = cells.into_iter().find(|cell| cell["name"] == name).expect(name);
        // A sample that was too short to be valid is in `left_out`.
        let value = cell["samples"][0].as_f64().or(cell["left_out"][0]["value"].as_f64());
        (value.expect("a value"), cell["unit"].as_str().unwrap_or_default().to_owned())
    };
    let ran = longhaul(&["cp", "-r", "--json", text(&source), &uri, "--output", text(&file)]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let summary = ran.events().pop().expect("a summary");
    assert_eq!(summary["event"], "summary");
    let result = read();
    let record = &result["longhaul"];
    assert_eq!((&record["kind"], &record["schema"]), (&"transfer".into(), &1.into()), "{record}");
    assert_eq!(record["name"], format!("cp to {uri}"));
    assert_eq!(cell(&result, "files"), (300.0, "files".into()));
    assert_eq!(cell(&result, "time"), (summary["seconds"].as_f64().expect("seconds"), "s".into()));
    assert_eq!(
        cell(&result, "throughput"),
        (summary["bits_per_second"].as_f64().expect("a rate"), "bit/s".into())
    );
    assert!(cell(&result, "CPU").0 > 0.0);
    assert_eq!(result["jobs"][0]["write"]["io_bytes"], bytes);
    assert!(!record["hosts"][0]["kernel"].as_str().unwrap_or_default().is_empty(), "{record}");
    assert_eq!(record["conditions"]["to"], uri);
    assert!(record["runs"][0]["tcp"][0]["rtt_us"].as_f64().is_some_and(|rtt| rtt > 0.0), "{record}");
    let ran = longhaul(&["report", text(&file), "--output", text(&page)]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    // A copy with failures is not valid.
    let fifo = source.join("pipe");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    let ran = longhaul(&["sync", text(&source), &uri, "--output", text(&file)]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    let result = read();
    let reasons = result["longhaul"]["runs"][0]["validity"]["reasons"].as_array().expect("reasons").clone();
    assert!(reasons.iter().any(|reason| reason["code"] == "failed"), "{reasons:?}");
    assert_eq!(result["longhaul"]["conditions"]["files there already"], "300");
    // A dry run has no result, and the directory of the result may be missing.
    let ran = longhaul(&["sync", "--dry-run", text(&source), &uri, "--output", text(&file)]);
    assert!(ran.code == Some(2) && ran.stderr.contains("--output"), "{ran:?}");
    let ran = longhaul(&["cp", "zero:1MiB", "null:", "--output", "/nonexistent/a.json"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("cannot write /nonexistent/a.json"), "{ran:?}");
}
