//! Stripes and arrays, as a user creates and operates them.

mod common;

use common::{Ran, Target, command, finish, longhaul, signal, until};
use longhaul_block::BlockDevice;
use longhaul_engine::procfs::Process;
use serde_json::Value;
use std::process::Command;

#[test]
fn a_stripe_over_two_targets_keeps_what_it_is_given() {
    let targets = [0, 1].map(|_| Target::start(&["scratch=mem:8MiB"], &[]));
    let [a, b] = targets.each_ref().map(|target| target.uri(0));
    let ran = longhaul(&[
        "bench",
        &a,
        &b,
        "--layout",
        "stripe",
        "--stripe-unit",
        "64k",
        "--rw",
        "write",
        "--bs",
        "512k",
        "--verify",
        "crc32c",
        "--json",
    ]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let result: Value = serde_json::from_str(&ran.stdout).expect("one document");
    let jobs = result["jobs"].as_array().expect("jobs");
    assert_eq!(jobs.len(), 1, "one device, one job: {jobs:?}");
    assert_eq!(jobs[0]["write"]["io_bytes"], 16 << 20);
    // The content is found with the members in the same order, and not with them swapped.
    let read = |devices: [&str; 2]| {
        let load = ["--layout", "stripe", "--stripe-unit", "64k", "--bs", "512k", "--verify", "crc32c"];
        longhaul(&[&["bench"], &devices[..], &load[..]].concat()).code
    };
    assert_eq!(read([&a, &b]), Some(0));
    assert_eq!(read([&b, &a]), Some(4));
}

/// The program, with its state in a directory of the test's own.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Home {
        Home(tempfile::tempdir().expect("directory"))
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    /// Files, as devices.
    fn files(&self, names: &[&str]) -> Vec<String> {
        names.iter().map(|name| format!("file:{},size=16MiB", self.path(name))).collect()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        command.env("XDG_STATE_HOME", self.path("state")).env("XDG_RUNTIME_DIR", self.path("run"));
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        finish(self.command(args).spawn().expect("started"))
    }

    /// Runs with `--json` and gives the last event.
    fn summary(&self, args: &[&str], code: i32) -> Value {
        let ran = self.run(&[args, &["--json"]].concat());
        assert_eq!(ran.code, Some(code), "{args:?}: {ran:?}");
        ran.events().pop().unwrap_or_default()
    }

    fn create(&self, name: &str, layout: &str, members: &[String]) {
        let mut args = vec!["array", "create", name, "--layout", layout, "--stripe-unit", "64k"];
        args.extend(members.iter().flat_map(|member| ["--device", member]));
        self.summary(&args, 0);
    }
}

/// Overwrites the data of a member file directly.
fn damage(path: &str, from: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("a file");
    file.write_all_at(&[0xEE; 1 << 20], from).expect("written");
}

/// Completion in a real shell, which asks the program for what exists on this host.
#[test]
fn bash_completes_arrays_and_values() {
    if Command::new("bash").arg("--version").output().is_err() {
        longhaul_skip::skip!("bash is not installed");
        return;
    }
    let home = Home::new();
    home.create("scratch", "mirror", &home.files(&["a", "b"]));
    home.create("survey", "mirror", &home.files(&["c", "d"]));
    let complete = |words: &[&str]| {
        let line = words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
        let (current, before) = (words[words.len() - 1], words[words.len() - 2]);
        // As readline does it after TAB.
        let script = format!(
            "source <(longhaul completions bash); COMP_WORDS=({line}); COMP_CWORD={}; \
             function=$(complete -p longhaul | grep -o '_[a-z_]*longhaul'); \
             $function longhaul '{current}' '{before}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            words.len() - 1
        );
        let path = std::env::var("PATH").unwrap_or_default();
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_longhaul")).parent().expect("a directory");
        let mut shell = Command::new("bash");
        shell.args(["-c", &script]).env("PATH", format!("{}:{path}", program.display()));
        shell.env("XDG_STATE_HOME", home.path("state")).env("XDG_RUNTIME_DIR", home.path("run"));
        let ran = shell.output().expect("bash");
        String::from_utf8(ran.stdout)
            .expect("UTF-8")
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(complete(&["longhaul", "array", "status", "s"]), ["scratch", "survey"]);
    assert_eq!(complete(&["longhaul", "array", "stop", "su"]), ["survey"]);
    assert_eq!(complete(&["longhaul", "bench", "array:sc"]), ["array:scratch"]);
    assert_eq!(complete(&["longhaul", "bench", "--rw", "randr"]), ["randread", "randrw"]);
    assert_eq!(
        complete(&["longhaul", "array", "create", "x", "--layout", "str"]),
        ["stripe", "stripe+mirror"]
    );
    assert_eq!(complete(&["longhaul", "dataset", "make", "l"]), ["l380"]);
}

#[test]
fn an_array_of_files_is_created_loaded_scrubbed_and_repaired() {
    let home = Home::new();
    let members = home.files(&["a", "b", "c", "d"]);
    home.create("scratch", "parity", &members);
    let status = home.summary(&["array", "status", "scratch"], 0);
    assert_eq!((&status["health"], &status["layout"]), (&"healthy".into(), &"parity".into()));
    assert_eq!(status["stripe"], 3 * (64 << 10));
    let load = ["bench", "array:scratch", "--rw", "write", "--bs", "192k", "--verify", "crc32c"];
    assert_eq!(home.run(&load).code, Some(0));
    damage(&home.path("b"), 8 << 20);
    let scrub = home.summary(&["array", "scrub", "scratch"], 0);
    assert_eq!((scrub["wrong_blocks"][1].as_u64(), scrub["lost"].as_u64()), (Some(256), Some(0)), "{scrub}");
    assert_eq!(scrub["wrong_blocks"][0], 0, "{scrub}");
    let again = home.summary(&["array", "scrub", "scratch", "--rate", "1GiB"], 0);
    assert_eq!(again["mended"], 0, "{again}");
    let read = ["bench", "array:scratch", "--bs", "192k", "--verify", "crc32c"];
    assert_eq!(home.run(&read).code, Some(0));
}

#[test]
fn a_member_that_is_gone_is_replaced() {
    let home = Home::new();
    let members = home.files(&["a", "b", "c"]);
    home.create("pool", "double-parity", &members);
    let load = ["bench", "array:pool", "--rw", "write", "--bs", "64k", "--verify", "crc32c"];
    assert_eq!(home.run(&load).code, Some(0));
    std::fs::write(home.path("c"), vec![0; 16 << 20]).expect("wiped");
    let status = home.summary(&["array", "status", "pool"], 3);
    assert_eq!(
        (&status["health"], &status["members"][2]["condition"]),
        (&"degraded".into(), &"absent".into())
    );
    let new = home.files(&["new"]).remove(0);
    // With one data unit per stripe, the missing member could have been written to alone.
    let replace = ["array", "replace", "pool", "--member", "2", "--device", &new];
    let refused = home.run(&replace);
    assert!(refused.code == Some(6) && refused.stderr.contains("--degraded"), "{refused:?}");
    let left = ["--degraded", "--device", &members[0], "--device", &members[1]];
    home.summary(&[&["array", "assemble"], &left[..]].concat(), 0);
    let status = home.summary(&["array", "replace", "pool", "--member", "2", "--device", &new], 0);
    assert_eq!((&status["health"], &status["lost_bytes"]), (&"healthy".into(), &0.into()));
    // The device of the member that was replaced is not looked for any more.
    let read = home.run(&["bench", "array:pool", "--bs", "64k", "--verify", "crc32c"]);
    assert!(read.code == Some(0) && !read.stderr.contains(&home.path("c")), "{read:?}");
    // Assembled on another host from its members, in another order.
    let other = Home::new();
    let devices = [&new, &members[1], &members[0]];
    let mut args =
        vec!["array", "assemble", "--spare-grace", "5m", "--scrub-every", "1h", "--scrub-rate", "9MiB"];
    args.extend(["--hedge", "0", "--journal-all"]);
    args.extend(devices.iter().flat_map(|device| ["--device", device.as_str()]));
    assert_eq!(other.summary(&args, 0)["health"], "healthy");
    let read = ["bench", "array:pool", "--bs", "64k", "--verify", "crc32c"];
    assert_eq!(other.run(&read).code, Some(0));
}

#[test]
fn a_member_that_was_out_of_reach_is_let_in() {
    let home = Home::new();
    // Without `size=`, so that a missing file is not created.
    let members = ["a", "b", "c"].map(|name| {
        let file = std::fs::File::create(home.path(name)).expect("made");
        file.set_len(16 << 20).expect("sized");
        format!("file:{}", home.path(name))
    });
    home.create("vol", "parity", &members);
    std::fs::rename(home.path("b"), home.path("away")).expect("moved");
    let args =
        ["target", "--listen", "127.0.0.1:0", "--discovery", "none", "--json", "--export", "v=array:vol"];
    let target = Target::spawn(home.command(&args));
    let load = ["bench", &target.uri(0), "--rw", "write", "--bs", "64k", "--verify", "crc32c"];
    assert_eq!(longhaul(&load).code, Some(0));
    assert_eq!(home.summary(&["array", "status", "vol"], 3)["members"][1]["condition"], "absent");
    std::fs::rename(home.path("away"), home.path("b")).expect("moved");
    // The array looks for it every ten seconds, and then resyncs it.
    until("it has come back", || home.run(&["array", "status", "vol"]).code == Some(0));
    target.stop();
    std::fs::remove_file(home.path("a")).expect("removed");
    let read = ["bench", "array:vol", "--bs", "64k", "--verify", "crc32c"];
    assert_eq!(home.run(&read).code, Some(0));
}

/// A member whose target refuses connections is given up sooner than one that
/// may answer any moment.
#[test]
fn a_target_that_is_killed_is_given_up_within_seconds() {
    let home = Home::new();
    let exports: Vec<String> =
        home.files(&["a", "b", "c"]).into_iter().map(|file| format!("m={file}")).collect();
    let mut targets: Vec<Target> = exports.iter().map(|export| Target::start(&[export], &[])).collect();
    let uris: Vec<String> = targets.iter().map(|target| target.uri(0)).collect();
    home.create("vol", "parity", &uris);
    let args =
        ["target", "--listen", "127.0.0.1:0", "--discovery", "none", "--json", "--export", "v=array:vol"];
    let gateway = Target::spawn(home.command(&args));
    let uri = gateway.uri(0);
    let load = ["bench", &uri, "--rw", "write", "--bs", "64k", "--verify", "crc32c", "--json"];
    assert_eq!(longhaul(&load).code, Some(0));
    let addr = targets[1].addr();
    drop(targets.remove(1));
    let ran = longhaul(&load);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let member = home.summary(&["array", "status", "vol"], 3)["members"][1].clone();
    assert_eq!(member["condition"], "absent", "{member}");
    // Two seconds, plus the interval of checks, with a margin for a busy machine. A member
    // that may still answer is given up after ten.
    let reason = member["reason"].as_str().expect("a reason");
    let time = reason.strip_prefix("it has lost its connection ").and_then(|rest| rest.split(' ').next());
    let time: f64 = time.and_then(|time| time.parse().ok()).unwrap_or_else(|| panic!("{reason}"));
    assert!((2.0..9.0).contains(&time), "{reason}");
    let args = ["target", "--listen", &addr, "--discovery", "none", "--json", "--export", &exports[1]];
    let _back = Target::spawn(command(&args));
    until("it has caught up", || home.run(&["array", "status", "vol"]).code == Some(0));
    drop(targets.remove(0));
    assert_eq!(longhaul(&["bench", &uri, "--bs", "64k", "--verify", "crc32c"]).code, Some(0));
}

/// The array opens a member again after its initiator ended its retries.
#[test]
fn a_member_comes_back_after_its_initiator_has_given_it_up() {
    let home = Home::new();
    let exports: Vec<String> =
        home.files(&["a", "b", "c"]).into_iter().map(|file| format!("m={file}")).collect();
    let mut targets: Vec<Target> = exports.iter().map(|export| Target::start(&[export], &[])).collect();
    let uris: Vec<String> =
        targets.iter().map(|target| format!("{}&ctrl-loss-tmo=3", target.uri(0))).collect();
    home.create("vol", "parity", &uris);
    let args =
        ["target", "--listen", "127.0.0.1:0", "--discovery", "none", "--json", "--export", "v=array:vol"];
    let gateway = Target::spawn(home.command(&args));
    let uri = gateway.uri(0);
    let load = ["bench", &uri, "--rw", "write", "--bs", "64k", "--verify", "crc32c"];
    assert_eq!(longhaul(&load).code, Some(0));
    let addr = targets[1].addr();
    drop(targets.remove(1));
    assert_eq!(longhaul(&load).code, Some(0));
    let absent = || home.summary(&["array", "status", "vol"], 3)["members"][1]["condition"] == "absent";
    until("it is absent", absent);
    // After `ctrl-loss-tmo` (3 s) the initiator does not retry any more.
    std::thread::sleep(std::time::Duration::from_secs(6));
    assert!(absent());
    let args = ["target", "--listen", &addr, "--discovery", "none", "--json", "--export", &exports[1]];
    let _back = Target::spawn(command(&args));
    until("it has come back", || home.run(&["array", "status", "vol"]).code == Some(0));
    drop(targets.remove(0));
    assert_eq!(longhaul(&["bench", &uri, "--bs", "64k", "--verify", "crc32c"]).code, Some(0));
}

#[test]
fn a_spare_takes_the_place_of_a_killed_target_under_load() {
    let home = Home::new();
    let exports: Vec<String> =
        home.files(&["a", "b", "c", "spare"]).into_iter().map(|file| format!("m={file}")).collect();
    let mut targets: Vec<Target> = exports.iter().map(|export| Target::start(&[export], &[])).collect();
    let uris: Vec<String> = targets.iter().map(|target| target.uri(0)).collect();
    let mut args = vec!["array", "create", "vol", "--layout", "parity", "--stripe-unit", "64k"];
    args.extend(["--spare-grace", "3s", "--spare", &uris[3]]);
    args.extend(uris[..3].iter().flat_map(|uri| ["--device", uri.as_str()]));
    home.summary(&args, 0);
    let args =
        ["target", "--listen", "127.0.0.1:0", "--discovery", "none", "--json", "--export", "v=array:vol"];
    let gateway = Target::spawn(home.command(&args));
    let uri = gateway.uri(0);
    let status = || {
        let ran = home.run(&["array", "status", "vol", "--json"]);
        ran.events().pop().unwrap_or_default()
    };
    assert_eq!(status()["spares"].as_array().map(Vec::len), Some(1));
    let load = ["bench", &uri, "--rw", "write", "--bs", "64k", "--verify", "crc32c"];
    let running = command(&[&load[..], &["--runtime", "10m"]].concat()).spawn().expect("started");
    // Starting takes less processor time.
    until("the load", || Process::of(running.id()).ticks().expect("it lives").own > 30);
    drop(targets.remove(1));
    until("the spare has the place", || status()["spares"].as_array().is_some_and(Vec::is_empty));
    until("it is filled", || status()["health"] == "healthy");
    signal(&running, "INT");
    let ran = finish(running);
    assert_eq!(ran.code, Some(3), "interrupted, and without errors: {ran:?}");
    // The spare's data is right: it is needed to reconstruct that of a killed member.
    assert_eq!(longhaul(&load).code, Some(0));
    drop(targets.remove(0));
    assert_eq!(longhaul(&["bench", &uri, "--bs", "64k", "--verify", "crc32c"]).code, Some(0));
}

/// Two hosts that each see one half can both ask for the status: the halves do not diverge.
#[test]
fn array_status_writes_to_no_member() {
    let home = Home::new();
    let members = ["a", "b"].map(|name| {
        let file = std::fs::File::create(home.path(name)).expect("made");
        file.set_len(16 << 20).expect("sized");
        format!("file:{}", home.path(name))
    });
    home.create("vol", "mirror", &members);
    let content = |name: &str| std::fs::read(home.path(name)).expect("read");
    let before = [content("a"), content("b")];
    assert_eq!(home.summary(&["array", "status", "vol"], 0)["running"], false);
    for (gone, other) in [("a", "b"), ("b", "a")] {
        std::fs::rename(home.path(gone), home.path("away")).expect("moved");
        let status = home.summary(&["array", "status", "vol"], 3);
        let place = usize::from(gone == "b");
        assert_eq!(status["members"][place]["condition"], "absent", "{status}");
        assert_eq!(status["members"][1 - place]["condition"], "active", "{status}");
        assert!(status["detail"].as_str().is_some_and(|detail| detail.contains("one more")), "{status}");
        std::fs::rename(home.path("away"), home.path(gone)).expect("moved");
        assert!(content(other) == before[1 - place] && content(gone) == before[place], "{other} was written");
    }
    assert_eq!(home.run(&["bench", "array:vol", "--rw", "write", "--bs", "64k"]).code, Some(0));
    assert_eq!(home.summary(&["array", "status", "vol"], 0)["health"], "healthy");
}

#[test]
fn a_target_exports_an_array_and_answers_for_it() {
    let home = Home::new();
    let members = home.files(&["a", "b"]);
    home.create("vol", "mirror", &members);
    let args =
        ["target", "--listen", "127.0.0.1:0", "--discovery", "none", "--json", "--export", "v=array:vol"];
    let target = Target::spawn(home.command(&args));
    let load = ["bench", &target.uri(0), "--rw", "write", "--bs", "64k", "--verify", "crc32c"];
    assert_eq!(longhaul(&load).code, Some(0));
    let status = home.summary(&["array", "status", "array:vol"], 0);
    assert_eq!((&status["running"], &status["health"]), (&true.into(), &"healthy".into()));
    let refused = home.run(&["bench", "array:vol"]);
    assert_eq!(refused.code, Some(6), "{refused:?}");
    let spare = home.files(&["spare"]).remove(0);
    let status = home.summary(&["array", "add-spare", "vol", "--device", &spare], 0);
    assert_eq!(status["spares"].as_array().map(Vec::len), Some(1), "{status}");
    assert_eq!(home.summary(&["array", "scrub", "vol"], 0)["finished"], true);
    target.stop();
    let status = home.summary(&["array", "status", "vol"], 0);
    assert_eq!((&status["running"], status["spares"].as_array().map(Vec::len)), (&false.into(), Some(1)));
    assert_eq!(home.run(&["array", "stop", "vol"]).code, Some(0));
    assert_eq!(home.run(&["array", "stop", "vol", "--exit-code"]).code, Some(8));
}

#[test]
fn an_array_grows_under_its_hosts() {
    let home = Home::new();
    let lengthen = |bytes: u64| {
        for name in ["a", "b", "c"] {
            std::fs::File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(home.path(name))
                .and_then(|file| file.set_len(bytes))
                .expect("made longer");
        }
    };
    lengthen(16 << 20);
    let files = ["a", "b", "c"].map(|name| format!("file:{}", home.path(name)));
    home.create("grows", "parity", &files);
    // Nothing has become larger, and no process runs it.
    let same = home.run(&["array", "grow", "grows", "--exit-code"]);
    assert!(same.code == Some(8) && same.stderr.contains("no stripe more fits"), "{same:?}");
    let args =
        ["target", "--listen", "127.0.0.1:0", "--discovery", "none", "--json", "--export", "big=array:grows"];
    let target = Target::spawn(home.command(&args));
    let device = longhaul_initiator::open(&target.uri(0)).expect("connected");
    let disk = longhaul_block::Blocking::open(device.clone()).expect("opened");
    let before = device.info().size;
    disk.write_at(&[7; 4096], before - 4096).expect("written");
    lengthen(48 << 20);
    let grown = home.summary(&["array", "grow", "grows"], 0);
    assert_eq!(grown["before"], before);
    let size = grown["size"].as_u64().expect("a size");
    assert!(size > 2 * before, "{grown}");
    until("its host knows", || device.info().size == size);
    let mut edge = vec![1; 8192];
    disk.read_at(&mut edge, before - 4096).expect("read");
    assert!(edge[..4096] == [7; 4096] && edge[4096..] == [0; 4096]);
    disk.write_at(&[8; 4096], size - 4096).expect("written");
    drop(disk);
    target.stop();
    assert_eq!(home.summary(&["array", "status", "grows"], 0)["size"], size);
}

#[test]
fn what_makes_no_array_is_refused() {
    let home = Home::new();
    let [a, b] = ["a", "b"].map(|name| home.files(&[name]).remove(0));
    let fails = |args: &[&str], code: i32, needle: &str| {
        let ran = home.run(args);
        assert!(ran.code == Some(code) && ran.stderr.contains(needle), "{args:?}: {ran:?}");
    };
    let create = |layout: &'static str, devices: &[&str]| {
        let mut args = vec!["array", "create", "x", "--layout", layout];
        for device in devices {
            args.extend(["--device", *device]);
        }
        home.run(&args)
    };
    let one = create("mirror", &[&a]);
    assert!(one.code == Some(2) && one.stderr.contains("2 to 64"), "{one:?}");
    assert_eq!(create("raid7", &[&a, &b]).code, Some(2));
    let two = create("double-parity", &[&a, &b]);
    assert!(two.code == Some(2) && two.stderr.contains("double-parity needs 3"), "{two:?}");
    assert_eq!(create("mirror", &[&a, &b]).code, Some(0));
    let again = create("mirror", &[&a, &b]);
    assert!(again.code == Some(2) && again.stderr.contains("known here already"), "{again:?}");
    let taken = ["array", "create", "y", "--layout", "mirror", "--device", &a, "--device", &b];
    fails(&taken, 6, "is a member of array x");
    assert_eq!(home.run(&[&taken[..], &["--force"]].concat()).code, Some(0));
    fails(&["array", "status", "z"], 2, "no array z is known to this user on this host (known: x, y)");
    // A second array of a known name is refused, also with `--force`; the same one can be created again.
    let [c, d] = ["c", "d"].map(|name| home.files(&[name]).remove(0));
    let second = ["array", "create", "y", "--layout", "mirror", "--device", &c, "--device", &d, "--force"];
    fails(&second, 2, "an array called y is known here already");
    assert_eq!(home.run(&[&taken[..], &["--force"]].concat()).code, Some(0));
    assert_eq!(home.summary(&["array", "status", "y"], 0)["health"], "healthy");
    fails(&["bench", "array:x"], 5, "none of the 2 devices of array x can be used");
    let blank = home.files(&["blank"]).remove(0);
    fails(&["array", "assemble", "--device", &blank], 1, "is no member of an array");
    fails(
        &["target", "--export", "v=array:y,ro"],
        2,
        "an array, a volume or a remote namespace takes no options",
    );
}

/// A mirror over two targets: B is killed, later A and the host; B alone has old data.
#[test]
fn a_mirror_does_not_begin_from_the_member_that_missed_flushed_writes() {
    let home = Home::new();
    let exports: Vec<String> = home.files(&["a", "b"]).into_iter().map(|file| format!("m={file}")).collect();
    let mut targets: Vec<Target> = exports.iter().map(|export| Target::start(&[export], &[])).collect();
    let (uris, addrs): (Vec<String>, Vec<String>) =
        targets.iter().map(|target| (target.uri(0), target.addr())).unzip();
    home.create("vol", "mirror", &uris);
    let args =
        ["target", "--listen", "127.0.0.1:0", "--discovery", "none", "--json", "--export", "v=array:vol"];
    let gateway = Target::spawn(home.command(&args));
    let uri = gateway.uri(0);
    drop(targets.pop());
    // Written, flushed, acknowledged.
    let load = ["--rw", "write", "--bs", "64k", "--verify", "crc32c"];
    let ran = longhaul(&[&["bench", uri.as_str()], &load[..]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    drop(gateway);
    drop(targets.pop());
    let back = |place: usize| {
        let (addr, export) = (addrs[place].as_str(), exports[place].as_str());
        Target::spawn(command(&[
            "target",
            "--listen",
            addr,
            "--discovery",
            "none",
            "--json",
            "--export",
            export,
        ]))
    };
    let b = back(1);
    let read = ["bench", "array:vol", "--bs", "64k", "--verify", "crc32c"];
    let refused = home.run(&read);
    assert_eq!(refused.code, Some(6), "{refused:?}");
    assert!(
        refused.stderr.contains("does not begin") && refused.stderr.contains("--degraded"),
        "{refused:?}"
    );
    // Also on another host, without records of the array.
    let other = Home::new();
    let refused = other.run(&["array", "assemble", "--device", &uris[1]]);
    assert!(refused.code == Some(6) && refused.stderr.contains("members 0 are not there"), "{refused:?}");
    let a = back(0);
    let ran = home.run(&read);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let gateway = Target::spawn(home.command(&args));
    until("B has caught up", || home.run(&["array", "status", "vol"]).code == Some(0));
    drop(a);
    let ran = longhaul(&["bench", &gateway.uri(0), "--bs", "64k", "--verify", "crc32c"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    drop((gateway, b));
}

#[test]
fn a_command_that_asks_a_stopped_process_times_out() {
    let home = Home::new();
    let targets = ["a", "b"].map(|name| Target::start(&[&format!("m={}", home.files(&[name])[0])], &[]));
    let uris = targets.each_ref().map(|target| target.uri(0));
    home.create("vol", "mirror", &uris);
    let args =
        ["target", "--listen", "127.0.0.1:0", "--discovery", "none", "--json", "--export", "v=array:vol"];
    let gateway = Target::spawn(home.command(&args));
    assert_eq!(home.summary(&["array", "status", "vol"], 0)["running"], true);
    signal(&gateway.child, "STOP");
    let assemble = ["array", "assemble", "--device", &uris[0], "--device", &uris[1]];
    for asked in [&assemble[..], &["array", "status", "vol"]] {
        let ran = home.run(asked);
        assert!(ran.code == Some(7) && ran.stderr.contains("has not answered"), "{asked:?}: {ran:?}");
    }
    signal(&gateway.child, "CONT");
    until("it answers again", || home.run(&["array", "status", "vol"]).code == Some(0));
}

/// The half that wrote with the witness starts by itself, also on a host without records of the array.
#[test]
fn a_witness_lets_the_half_that_was_written_start() {
    let home = Home::new();
    let member = |name: &str| {
        let file = std::fs::File::create(home.path(name)).expect("made");
        file.set_len(16 << 20).expect("sized");
        format!("file:{}", home.path(name))
    };
    let [a, b, w] = ["a", "b", "w"].map(member);
    let create = ["array", "create", "vol", "--layout", "mirror", "--stripe-unit", "64k", "--witness", &w];
    home.summary(&[&create[..], &["--device", &a, "--device", &b]].concat(), 0);
    std::fs::rename(home.path("b"), home.path("away")).expect("moved");
    let load = ["bench", "array:vol", "--rw", "write", "--bs", "64k", "--verify", "crc32c"];
    let ran = home.run(&load);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    std::fs::rename(home.path("away"), home.path("b")).expect("moved");
    let other = Home::new();
    let assemble = |device: &str| other.run(&["array", "assemble", "--witness", &w, "--device", device]);
    let refused = assemble(&b);
    assert!(refused.code == Some(1) && refused.stderr.contains("misses what was written"), "{refused:?}");
    assert_eq!(assemble(&a).code, Some(0));
}
