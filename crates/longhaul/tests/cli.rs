//! The program as a user runs it: exit statuses, one clear sentence on stderr, events
//! on stdout, signals.

mod common;

use common::{Ran, Target, command, finish, longhaul, signal, text, until};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::SystemTime;

/// Runs the program, and expects an exit status and one sentence with all `needles`.
fn fails(args: &[&str], code: i32, needles: &[&str]) -> Ran {
    let ran = longhaul(args);
    let said = format!("{args:?}: {ran:?}");
    assert_eq!(ran.code, Some(code), "{said}");
    for needle in needles {
        assert!(ran.stderr.contains(needle), "no '{needle}' in {said}");
    }
    if let Some(sentence) = ran.stderr.strip_prefix("longhaul: ") {
        assert_eq!(sentence.lines().count(), 1, "{said}");
    } else {
        // Errors of the argument parser.
        assert!(ran.stderr.starts_with("error: ") && ran.stderr.contains("--help"), "{said}");
    }
    ran
}

#[test]
fn arguments_that_make_no_sense() {
    let export = |export| ["target", "--listen", "127.0.0.1:0", "--export", export];
    fails(&["info", "http://h/nqn"], 2, &["http://h/nqn", "does not begin with nvme+tcp://"]);
    fails(&["info", "nvme+tcp://h"], 2, &["no /SUBNQN", "the form is"]);
    fails(&["info", "nvme+tcp://h/nqn?nsid=0"], 2, &["nsid=0 is not a namespace"]);
    fails(&["info", "nvme+tcp://h:99999/nqn"], 2, &["'99999' is not a port"]);
    fails(&["bench", "ftp://h/file"], 2, &["'ftp://' is not a device", "nvme+tcp://HOST/SUBNQN"]);
    fails(&["bench", "mem:lots"], 2, &["'lots' does not begin with a number"]);
    fails(&["bench", "mem:1MiB", "--bs", "1000"], 2, &["bs=1000", "4096"]);
    fails(&["bench", "mem:1MiB", "--rw", "trimwrite"], 2, &["'trimwrite'", "randwrite"]);
    fails(&["bench", "mem:1MiB", "--runtime", "soon"], 2, &["--runtime", "'soon'"]);
    fails(&["bench", "mem:1MiB", "--size", "2MiB"], 2, &["past the end"]);
    fails(&["bench", "mem:1MiB,ro", "--rw", "write"], 2, &["read-only"]);
    fails(&["bench", "mem:1MiB", "--layout", "stripe"], 2, &["1 devices", "2 to 64"]);
    fails(&["bench", "mem:1MiB", "mem:1MiB", "--layout", "raid0"], 2, &["'raid0'", "stripe, mirror"]);
    fails(&["bench", "mem:1MiB", "mem:1MiB", "--layout", "parity"], 2, &["--layout parity", "use stripe"]);
    fails(&["bench", "mem:1MiB", "--stripe-unit", "64k"], 2, &["--layout <LAYOUT>"]);
    fails(&["frobnicate"], 2, &["'frobnicate'"]);
    fails(&["target"], 2, &["--export <NAME=BACKEND>"]);
    fails(&export("x"), 2, &["the form is NAME=BACKEND"]);
    fails(&export("a/b=mem:1MiB"), 2, &["'a/b' is not a name"]);
    fails(&export("x=tape:/dev/st0"), 2, &["'tape:/dev/st0' is not a back end", "file:PATH"]);
    fails(&export("x=mem:0"), 2, &["the size is zero"]);
    fails(&export("x=mem:1MiB,colour=red"), 2, &["'colour' is not an option"]);
    fails(&export("x=mem:1MiB,uuid=1"), 2, &["uuid=1 is not a UUID"]);
    fails(&[&export("x=mem:1MiB")[..], &["--in-capsule", "5MiB"]].concat(), 2, &["in-capsule", "4 MiB"]);
    fails(&[&export("x=mem:1MiB")[..], &["--in-capsule", "lots"]].concat(), 2, &["--in-capsule", "'lots'"]);
    fails(&[&export("x=mem:1MiB")[..], &["--memory", "1MiB"]].concat(), 2, &["memory", "16 MiB"]);
    fails(
        &[&export("x=mem:1MiB")[..], &["--discovery", "here:x"]].concat(),
        2,
        &["--discovery", "'x' is not a port"],
    );
    fails(&["target", "--listen", "127.0.0.1:65536", "--export", "x=mem:1MiB"], 2, &["--listen", "'65536'"]);
    fails(&["dataset", "make", "fancy", "/tmp/x"], 2, &["'fancy' is not a data set", "l380"]);
}

#[test]
fn files_that_cannot_be_used() {
    let dir = tempfile::tempdir().expect("directory");
    let missing = dir.path().join("missing");
    let export = |spec: String| longhaul(&["target", "--listen", "127.0.0.1:0", "--export", &spec]);
    let refused = |spec: String, needle: &str| {
        let ran = export(spec);
        let named = ran.stderr.contains(text(dir.path()));
        assert!(ran.code == Some(1) && ran.stderr.contains(needle) && named, "{needle}: {ran:?}");
    };
    refused(format!("x=file:{}", missing.display()), "does not exist: give size= to create it");
    refused(format!("x=file:{}/disk,size=1MiB", missing.display()), "its directory does not exist");
    refused(format!("x=file:{}", dir.path().display()), "is not a regular file");
    refused(format!("x=block:{}", dir.path().display()), "is not a block device");
    refused(format!("x=block:{}", missing.display()), "does not exist");
    fails(&["bench", text(&missing)], 1, &[text(&missing), "nvme+tcp://HOST/SUBNQN"]);

    let spec = format!("x=file:{}/disk,size=1MiB", dir.path().display());
    let target = Target::start(&[&spec], &[]);
    refused(spec.clone(), "in use by another program");
    refused(format!("x=file:{}/disk,size=4096", dir.path().display()), "in use by another program");
    target.stop();
    refused(format!("x=file:{}/disk,size=4096", dir.path().display()), "is not made shorter");
}

#[test]
fn addresses_that_cannot_be_listened_on() {
    let target = Target::start(&["x=mem:1MiB"], &[]);
    let addr = target.addr();
    fails(
        &["target", "--listen", &addr, "--export", "y=mem:1MiB"],
        1,
        &["cannot listen on", &addr, "another program listens there", "choose another port with --listen"],
    );
    fails(
        &["target", "--insecure", "--listen", "192.0.2.1:0", "--export", "y=mem:1MiB"],
        1,
        &["192.0.2.1:0", "not an address of this machine"],
    );
    fails(
        &["target", "--listen", "nowhere.invalid", "--export", "y=mem:1MiB"],
        1,
        &["cannot listen on nowhere.invalid", "check the name, or use an address"],
    );
}

#[test]
fn addresses_are_named_as_people_name_them() {
    let ready = |listen: &str| {
        let args = ["target", "--json", "--insecure", "--discovery", "none", "--export", "x=mem:1MiB"];
        let target = Target::spawn(command(&[&args[..], &["--listen", listen]].concat()));
        let fields = ["uri", "short"]
            .map(|field| target.ready["exports"][0][field].as_str().expect("a URI").to_owned());
        target.stop();
        fields
    };
    for listen in [":0", "0.0.0.0:0"] {
        for uri in ready(listen) {
            assert!(!uri.contains("0.0.0.0"), "no other machine can use {uri}");
        }
    }
    assert!(ready("localhost:0")[1].starts_with("nvme+tcp://127.0.0.1:"));
    fails(
        &["target", "--listen", "localhost:x", "--export", "y=mem:1MiB"],
        2,
        &["'x' is not a port", "such as 0.0.0.0:4420"],
    );
}

#[test]
fn a_congestion_control_that_is_not_there_is_refused_at_the_start() {
    let copy = ["cp", "x", "fs:p/f/x"];
    for args in [&["target", "--export", "y=mem:1MiB"][..], &["agent", "--root", "/"], &copy] {
        fails(
            &[args, &["--congestion", "foo"]].concat(),
            2,
            &["foo", "the kernel has none of that name; it has "],
        );
    }
}

#[test]
fn targets_that_cannot_be_reached() {
    fails(
        &["info", "nvme+tcp://host.invalid/x"],
        5,
        &["cannot resolve host 'host.invalid'", "check the name"],
    );
    fails(&["discover", "host.invalid"], 5, &["cannot resolve host 'host.invalid'"]);

    // A port without a listener.
    let addr = TcpListener::bind("127.0.0.1:0").expect("bound").local_addr().expect("address");
    let uri = format!("nvme+tcp://{addr}/x");
    for args in [&["info", &uri][..], &["bench", &uri], &["discover", &addr.to_string()]] {
        fails(args, 5, &[&addr.to_string(), "refused", "nothing listens there"]);
    }
    let ran = longhaul(&["info", &uri, "--json"]);
    let event = ran.events().pop().expect("an event");
    assert_eq!((&event["event"], &event["exit"]), (&"error".into(), &5.into()), "{ran:?}");

    // A server that accepts connections and sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").expect("bound");
    let addr = silent.local_addr().expect("address").to_string();
    let uri = format!("nvme+tcp://{addr}/x");
    fails(&["info", &uri, "--connect-timeout", "300ms"], 7, &[&addr, "did not answer", "--connect-timeout"]);
    fails(&["discover", &addr, "--connect-timeout", "300ms"], 7, &[&addr, "did not answer"]);

    // A server of another protocol.
    let other = TcpListener::bind("127.0.0.1:0").expect("bound");
    let addr = other.local_addr().expect("address").to_string();
    let server = std::thread::spawn(move || {
        // A run makes two connections.
        for stream in other.incoming().take(2) {
            let _ = stream.expect("accepted").write_all(&[b'H'; 256]);
        }
    });
    fails(
        &["info", &format!("nvme+tcp://{addr}/nqn.2014-08.org.example:x")],
        5,
        &[&addr, "no NVMe/TCP there"],
    );
    drop(server);
}

#[test]
fn what_a_target_refuses() {
    let target = Target::start(
        &["x=mem:8MiB", "full=mem:8MiB,error=1:ops=write:kind=nospace", "bad=mem:8MiB,error=1:ops=read"],
        &["--allow-host", "nqn.2014-08.org.example:friend"],
    );
    let (addr, uri) = (target.addr(), target.uri(0));
    let friend = ["--hostnqn", "nqn.2014-08.org.example:friend"];
    let with = |args: &[&'static str], uri: &str, code, needles: &[&str]| {
        let args: Vec<String> =
            args.iter().map(|arg| if *arg == "URI" { uri.into() } else { (*arg).into() }).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).chain(friend).collect();
        fails(&args, code, needles)
    };
    fails(&["info", &uri], 6, &[&addr, "not allowed"]);
    fails(&["bench", &uri], 6, &[&addr, "not allowed"]);
    with(
        &["info", "URI"],
        &format!("nvme+tcp://{addr}/nqn.2014-08.org.example:no"),
        1,
        &["no subsystem", "longhaul discover"],
    );
    with(&["info", "URI"], &format!("nvme+tcp://{addr}/no"), 1, &["no subsystem 'no'", "longhaul discover"]);
    with(&["info", "URI"], &uri.replace("nsid=1", "nsid=7"), 1, &["no namespace 7"]);
    with(&["bench", "URI", "--rw", "write", "--size", "1MiB"], &target.uri(1), 1, &["no space left"]);
    with(&["bench", "URI", "--size", "1MiB"], &target.uri(2), 1, &["I/O error"]);
    let ran = longhaul(&["bench", &uri, "--size", "1MiB", friend[0], friend[1]]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    target.stop();
}

#[test]
fn the_events_of_a_session() {
    let target = Target::start(&["a=mem:8MiB", "b=null:1GiB,block=512", "a=mem:4MiB"], &[]);
    let exports = target.ready["exports"].as_array().expect("exports").clone();
    let shown: Vec<_> =
        exports.iter().map(|e| (e["name"].as_str(), e["nsid"].as_u64(), e["size"].as_u64())).collect();
    assert_eq!(
        shown,
        [
            (Some("a"), Some(1), Some(8 << 20)),
            (Some("b"), Some(1), Some(1 << 30)),
            (Some("a"), Some(2), Some(4 << 20))
        ]
    );
    assert_eq!(exports[0]["nqn"], exports[2]["nqn"]);
    assert!(target.uri(0).starts_with(&format!("nvme+tcp://{}/nqn.", target.addr())));

    let ran = longhaul(&["discover", &target.addr(), "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let events = ran.events();
    let (last, records) = events.split_last().expect("events");
    assert_eq!((&last["event"], last["records"].as_u64()), (&"summary".into(), Some(records.len() as u64)));
    assert!(records.iter().any(|r| r["event"] == "record" && r["subnqn"] == exports[0]["nqn"]), "{ran:?}");

    let ran = longhaul(&["info", &target.uri(2), "--json"]);
    let summary = ran.events().pop().expect("an event");
    assert_eq!(summary["event"], "summary");
    assert_eq!(summary["namespace"]["size"], 4 << 20);
    assert_eq!(summary["namespace"]["uuid"], exports[2]["uuid"]);
    let people = longhaul(&["info", &target.uri(1)]);
    assert!(people.code == Some(0) && people.stdout.contains("1 GiB in blocks of 512"), "{people:?}");
    // The printed URIs are valid arguments, also of `discover`.
    let uri = exports[1]["uri"].as_str().and_then(|uri| uri.split('?').next()).expect("a URI");
    let people = longhaul(&["discover", uri]);
    let printed = people.stdout.split_whitespace().find(|word| word.starts_with(uri)).expect(&people.stdout);
    assert_eq!(longhaul(&["info", printed]).code, Some(0));
    assert!(people.stdout.contains("nvme subsystem"), "{people:?}");
    target.stop();
}

#[test]
fn the_ready_line_is_for_people() {
    use std::io::{BufRead, BufReader};
    let mut child =
        command(&["target", "--listen", "127.0.0.1:0", "--discovery", "none", "--export", "x=mem:1MiB"])
            .spawn()
            .expect("started");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("read");
    let uri = line.trim_end().strip_prefix("ready ").expect(&line).to_owned();
    assert!(uri.ends_with("/x") && uri.len() < 40, "the short form first: {uri}");
    assert_eq!(longhaul(&["info", &uri]).code, Some(0));
    signal(&child, "TERM");
    assert_eq!(finish(child).code, Some(0));
}

/// SIGTERM while I/O is in flight: the target exits cleanly, and the load fails soon, with
/// the reason.
#[test]
fn sigterm_drains_under_load() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("disk");
    let target = Target::start(&[&format!("x=file:{},size=64MiB", path.display())], &[]);
    let uri = target.uri(0);
    let args = ["bench", &uri, "--rw", "write", "--bs", "64k", "--iodepth", "16", "--runtime", "60s"];
    let load = command(&[&args[..], &["--ctrl-loss-timeout", "0"]].concat()).spawn().expect("started");
    let written =
        || std::fs::read(&path).expect("read").chunks(65_536).filter(|b| b.iter().any(|b| *b != 0)).count();
    until("some writes", || written() > 16);
    target.stop();
    let ran = finish(load);
    assert_eq!(ran.code, Some(5), "{ran:?}");
    assert!(ran.stderr.contains("connection lost") || ran.stderr.contains("cannot reach"), "{ran:?}");
}

/// Whether a file was written to after `since`.
fn written(path: &Path, since: SystemTime) -> bool {
    path.metadata().and_then(|m| m.modified()).is_ok_and(|modified| modified > since)
}

#[test]
fn a_load_survives_a_target_that_is_restarted() {
    let dir = tempfile::tempdir().expect("directory");
    let disk = dir.path().join("disk");
    let export = format!("x=file:{},size=64MiB", disk.display());
    let mut target = Target::start(&[&export], &[]);
    let (uri, addr) = (target.uri(0), target.addr());
    let args = ["bench", &uri, "--rw", "randrw", "--bs", "16k", "--iodepth", "16", "--verify", "crc32c"];
    let load = command(&[&args[..], &["--runtime", "8s"]].concat()).spawn().expect("started");
    for _ in 0..2 {
        let since = SystemTime::now();
        until("the load", || written(&disk, since));
        drop(target);
        // The kernel may not have released the port of the killed target yet.
        until("the port to be free", || std::net::TcpListener::bind(&addr).is_ok());
        target = Target::start(&[&export], &["--listen", &addr]);
    }
    let ran = finish(load);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.stderr.matches("reconnected after").count(), 2, "{ran:?}");
    assert!(ran.stdout.contains("checked, 0 faults"), "{ran:?}");
    target.stop();
}

#[test]
fn a_connection_is_waited_for_as_long_as_was_said() {
    let dir = tempfile::tempdir().expect("directory");
    let disk = dir.path().join("disk");
    let target = Target::start(&[&format!("x=file:{},size=16MiB", disk.display())], &[]);
    let uri = target.uri(0);
    let since = SystemTime::now();
    let args = ["bench", &uri, "--rw", "randwrite", "--runtime", "60s", "--ctrl-loss-timeout", "200ms"];
    let load = command(&args).spawn().expect("started");
    until("the load", || written(&disk, since));
    drop(target);
    let ran = finish(load);
    assert_eq!(ran.code, Some(5), "{ran:?}");
    assert!(ran.stderr.contains("the limit that --ctrl-loss-timeout sets"), "{ran:?}");
    fails(&["info", &uri, "--ctrl-loss-timeout", "-2"], 2, &["-1 for ever"]);
    fails(&["info", &format!("{uri}&ctrl-loss-tmo=x"), "--connect-timeout", "1s"], 2, &["ctrl-loss-tmo"]);
}

#[test]
fn sighup_tells_of_a_file_that_has_grown() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("disk");
    let target = Target::start(&[&format!("x=file:{},size=8MiB", path.display()), "y=mem:1MiB"], &[]);
    std::fs::OpenOptions::new().write(true).open(&path).expect("opened").set_len(16 << 20).expect("grown");
    signal(&target.child, "HUP");
    target.event("reloaded");
    let event = target.event("resized");
    assert_eq!(
        (&event["name"], &event["nsid"], &event["size"]),
        (&"x".into(), &1.into(), &(16 << 20).into())
    );
    let ran = longhaul(&["info", &target.uri(0), "--json"]);
    assert_eq!(ran.events().pop().expect("an event")["namespace"]["size"], 16 << 20);
    target.stop();
}

#[test]
fn sigint_ends_a_load_with_what_was_measured() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("disk");
    std::fs::write(&path, vec![0; 8 << 20]).expect("made");
    let args = ["bench", text(&path), "--rw", "write", "--runtime", "50s", "--json"];
    let load = command(&args).spawn().expect("started");
    until("the first write", || std::fs::read(&path).expect("read").iter().any(|b| *b != 0));
    signal(&load, "INT");
    let ran = finish(load);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    let result: longhaul_results::schema::Output = serde_json::from_str(&ran.stdout).expect("fio's layout");
    assert!(result.jobs[0].write.total_ios > 0 && result.jobs[0].write.runtime < 50_000);
    let end = result.longhaul.and_then(|record| record.end).expect("how it ended");
    assert!(end.exit == 3 && end.message.contains("interrupted"), "{end:?}");
}

/// A result has the fields of the sample, in fio's layout.
#[test]
fn results_keep_their_layout() {
    let load = ["--rw", "randrw", "--size", "1MiB", "--iodepth", "4", "--verify", "crc32c", "--json"];
    let ran = longhaul(&[&["bench", "mem:8MiB"][..], &load].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let result: longhaul_results::schema::Output = serde_json::from_str(&ran.stdout).expect("fio's layout");
    assert_eq!(result.jobs.len(), 1);
    let job = &result.jobs[0];
    assert_eq!((job.read.total_ios + job.write.total_ios, job.error), (256, 0));
    assert!(job.read.clat_ns.percentile.get("99.000000").is_some());
    let sample: serde_json::Value = serde_json::from_str(include_str!("data/bench.json")).expect("JSON");
    let found: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    // Fields beyond fio's are in `longhaul`, and depend on the machine.
    let mut found = names(&found, "");
    found.retain(|name| !name.starts_with("/longhaul"));
    assert_eq!(found, names(&sample, ""));
}

/// Each thread of a load needs an I/O queue, of which a target grants a limited number.
#[test]
fn threads_beyond_the_queues_of_a_target_share_them() {
    let target = Target::start(&["a=mem:64MiB"], &["--max-queues", "3"]);
    let uri = target.uri(0);
    let load = ["--rw", "randread", "--bs", "4k", "--numjobs", "8", "--size", "256KiB", "--json"];
    for threads in [&[][..], &["--threads", "8"], &["--threads", "4"]] {
        let ran = longhaul(&[&["bench", &uri][..], &load, threads].concat());
        assert_eq!(ran.code, Some(0), "{threads:?}: {ran:?}");
        let result: longhaul_results::schema::Output = serde_json::from_str(&ran.stdout).expect("layout");
        assert_eq!(result.jobs.len(), 8);
        assert!(result.jobs.iter().all(|job| (job.read.total_ios, job.error) == (64, 0)), "{threads:?}");
        assert!(ran.stderr.contains("grants 3 I/O queues") && ran.stderr.contains("8 jobs share 3 threads"));
    }
    let enough = longhaul(&[&["bench", &uri][..], &load, &["--threads", "3"]].concat());
    assert_eq!((enough.code, enough.stderr.contains("grants")), (Some(0), false), "{enough:?}");
    target.stop();
}

/// The file-like API under load: fio's ioengine=sync.
#[test]
fn fios_names_are_understood() {
    let ran = longhaul(&[
        "bench",
        "mem:8MiB",
        "--rw=randwrite",
        "--blocksize=8k",
        "--time_based",
        "--runtime=200ms",
        "--ramp_time=50ms",
        "--group_reporting",
        "--end_fsync=1",
        "--ioengine=libaio",
        "--iodepth=4",
        "--output-format=json",
    ]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let result: longhaul_results::schema::Output = serde_json::from_str(&ran.stdout).expect("fio's layout");
    let option = |name: &str| result.jobs[0].job_options.get(name).map(String::as_str);
    assert_eq!(
        (option("bs"), option("end_fsync"), option("time_based")),
        (Some("8192"), Some("1"), Some("1"))
    );
    assert_eq!(option("ramp_time"), Some("0.05"), "{:?}", result.jobs[0].job_options);
    // Without `--runtime`, a load ends after one pass.
    let ran = longhaul(&[
        "bench",
        "mem:8MiB",
        "--bs=1m",
        "--runtime=100",
        "--time_based=0",
        "--output-format=json",
    ]);
    let result: longhaul_results::schema::Output = serde_json::from_str(&ran.stdout).expect("fio's layout");
    assert_eq!(result.jobs[0].read.io_bytes, 8 << 20);
    // An error is JSON, too.
    let ran = longhaul(&["bench", "/nonexistent/disk", "--output-format=json"]);
    assert!(ran.code == Some(1) && ran.events()[0]["event"] == "error", "{ran:?}");
}

#[test]
fn a_load_of_discards_gives_space_back() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("disk");
    std::fs::write(&path, vec![7; 8 << 20]).expect("written");
    let target = Target::start(&[&format!("x=file:{}", path.display())], &[]);
    let ran = longhaul(&["bench", &target.uri(0), "--rw=trim", "--bs=64k", "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let result: longhaul_results::schema::Output = serde_json::from_str(&ran.stdout).expect("fio's layout");
    let job = &result.jobs[0];
    assert_eq!((job.trim.io_bytes, job.write.io_bytes, job.read.io_bytes), (8 << 20, 0, 0));
    let cells = &result.longhaul.as_ref().expect("a record").cells;
    assert!(cells.iter().any(|cell| cell.name == "trim IOPS"), "{cells:?}");
    let people = longhaul(&["bench", &target.uri(0), "--rw=randtrim", "--bs=64k"]);
    assert!(people.code == Some(0) && people.stdout.starts_with("trim: "), "{people:?}");
    target.stop();
    assert!(std::fs::read(&path).expect("read").iter().all(|b| *b == 0), "not discarded");
    fails(
        &["bench", "mem:1MiB", "--rw=trim", "--verify=crc32c"],
        2,
        &["rw=trim discards: verify needs content"],
    );
}

#[test]
fn calls_of_a_file_are_a_load() {
    let target = Target::start(&["a=mem:64MiB"], &[]);
    let uri = target.uri(0);
    for rw in ["write", "read", "randrw"] {
        let load = ["--ioengine", "sync", "--rw", rw, "--bs", "128k", "--end-fsync", "--json"];
        let ran = longhaul(&[&["bench", &uri][..], &load].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let result: longhaul_results::schema::Output = serde_json::from_str(&ran.stdout).expect("layout");
        let job = &result.jobs[0];
        assert_eq!((job.read.total_ios + job.write.total_ios, job.error), (512, 0), "{rw}");
        assert_eq!(job.job_options.get("ioengine").map(String::as_str), Some("sync"));
    }
    for rw in ["write", "read", "randrw"] {
        let load = ["--ioengine", "sync", "--rw", rw, "--bs", "64k", "--verify", "crc32c", "--json"];
        let ran = longhaul(&[&["bench", &uri][..], &load].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let result: longhaul_results::schema::Output = serde_json::from_str(&ran.stdout).expect("layout");
        let verify = result.jobs[0].verify.as_ref().expect("it was asked for");
        assert!(verify.checked_blocks >= 512, "{rw}: {verify:?}");
    }
    fails(&["bench", &uri, "--iodepth", "many"], 2, &["'many' is neither a number nor auto"]);
    target.stop();
}

/// `info --path` reports a path as a sentence and as fields.
#[test]
fn a_path_is_measured_by_reading() {
    let target = Target::start(&["a=mem:64MiB"], &[]);
    let ran = longhaul(&["info", &target.uri(0), "--path", "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let path = ran.events().pop().expect("an event")["path"]["measured"].clone();
    let number = |name: &str| path[name].as_f64().unwrap_or_else(|| panic!("{name} in {path}"));
    let sentence = path["sentence"].as_str().expect("a sentence");
    assert!(sentence.starts_with("at ") && sentence.contains(" this path c"), "{sentence}");
    assert!(number("bits_per_second") > 1e6 && number("round_trip_us") > 0.0);
    let share = number("bits_per_second") / 8.0 * number("round_trip_us") / 1e6;
    assert!((share / number("bandwidth_delay_product") - 1.0).abs() < 0.5, "{path}");
    assert!(number("connections") >= 1.0 && number("in_flight") >= 1e6 && number("bytes_read") > 1e6);
    target.stop();
}

/// The paths of all fields of a document.
fn names(value: &serde_json::Value, at: &str) -> std::collections::BTreeSet<String> {
    match value {
        serde_json::Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| {
                let at = format!("{at}/{name}");
                let mut below = names(value, &at);
                below.insert(at);
                below
            })
            .collect(),
        serde_json::Value::Array(all) => all.iter().flat_map(|value| names(value, at)).collect(),
        _ => Default::default(),
    }
}

/// Content that was changed in the backing file is reported with its offset.
#[test]
fn verify_finds_what_was_changed_behind_the_target() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("disk");
    let target = Target::start(&[&format!("x=file:{},size=8MiB", path.display())], &[]);
    let uri = target.uri(0);
    let common = ["--bs", "16k", "--size", "4MiB", "--iodepth", "8", "--verify", "crc32c"];
    let write = longhaul(&[&["bench", &uri, "--rw", "randwrite", "--end-fsync"][..], &common].concat());
    assert_eq!(write.code, Some(0), "{write:?}");
    assert!(write.stdout.contains("256 blocks checked, 0 faults"), "{write:?}");
    let read = [&["bench", &uri, "--rw", "read"][..], &common].concat();
    assert_eq!(longhaul(&read).code, Some(0));

    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("opened");
    let mut block = vec![0; 16_384];
    file.read_exact_at(&mut block, 16_384 * 7).expect("read");
    file.write_all_at(&block, 16_384 * 100).expect("misplaced");
    file.write_all_at(&[0xa5; 5], 16_384 * 64 + 777).expect("corrupted");
    file.sync_all().expect("synced");
    let ran = longhaul(&read);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    for needle in
        ["block of 16384 bytes at 1048576", "block of 16384 bytes at 1638400", "2 blocks have wrong content"]
    {
        assert!(ran.stderr.contains(needle), "no '{needle}' in {ran:?}");
    }
    let ran = longhaul(&[&read[..], &["--json"]].concat());
    assert_eq!(ran.code, Some(4));
    let result: longhaul_results::schema::Output = serde_json::from_str(&ran.stdout).expect("one document");
    let verify = result.jobs[0].verify.as_ref().expect("a verdict");
    assert_eq!(verify.faults.0.iter().map(|(_, n)| n).sum::<u64>(), 2);
    target.stop();
}

#[test]
fn completions_and_manual_pages_come_out() {
    for (shell, needle) in [
        ("bash", "-F _clap_complete_longhaul longhaul"),
        ("zsh", "#compdef longhaul"),
        ("fish", "--command longhaul"),
    ] {
        let ran = longhaul(&["completions", shell]);
        assert!(ran.code == Some(0) && ran.stdout.contains(needle), "{shell}: {}", ran.stderr);
    }
    let ran = longhaul(&["man"]);
    assert!(ran.code == Some(0) && ran.stdout.contains(".TH longhaul 1"), "{ran:?}");
    let dir = tempfile::tempdir().expect("directory");
    assert_eq!(longhaul(&["man", "--dir", text(dir.path())]).code, Some(0));
    for page in ["longhaul.1", "longhaul-target.1", "longhaul-bench.1", "longhaul-dataset-make.1"] {
        assert!(dir.path().join(page).exists(), "{page}");
    }
    // Missing directories are created.
    let below = dir.path().join("share/man/man1");
    assert_eq!(longhaul(&["man", "--dir", text(&below)]).code, Some(0));
    assert!(below.join("longhaul.1").exists());
    let below = dir.path().join("share/completions");
    for (shell, name) in [("bash", "longhaul.bash"), ("zsh", "_longhaul"), ("fish", "longhaul.fish")] {
        assert_eq!(longhaul(&["completions", shell, "--dir", text(&below)]).code, Some(0));
        assert!(below.join(name).exists(), "{name}");
    }
    // A file in place of a directory is an error.
    let file = dir.path().join("longhaul.1/below");
    for args in [&["man"][..], &["completions", "bash"]] {
        fails(&[args, &["--dir", text(&file)]].concat(), 1, &[text(&file)]);
    }
}

#[test]
fn a_host_says_by_which_nqn_targets_know_it() {
    let ran = longhaul(&["show-hostnqn", "--json"]);
    let told = &ran.events()[0];
    let nqn = told["hostnqn"].as_str().expect("an NQN");
    if told["source"].is_null() {
        assert!(ran.stderr.contains("keep this one"), "{ran:?}");
        return;
    }
    assert_eq!(longhaul(&["show-hostnqn"]).stdout.trim(), nqn);
    let target = Target::start(&["a=mem:1MiB"], &["--allow-host", nqn]);
    // It is the one that a target sees.
    assert_eq!(longhaul(&["info", &target.uri(0)]).code, Some(0));
}

/// A closed pipe (`| head -1`) is not an error.
#[test]
fn a_closed_pipe_is_no_fault() {
    let mut child = command(&["man"]).spawn().expect("started");
    drop(child.stdout.take());
    let ran = finish(child);
    assert!(!ran.stderr.contains("panicked"), "{ran:?}");
    for args in [&["bench", "mem:1MiB"][..], &["bench", "mem:1MiB", "--json"]] {
        let mut child = command(args).spawn().expect("started");
        drop(child.stdout.take());
        let ran = finish(child);
        assert!(!ran.stderr.contains("panicked"), "{ran:?}");
    }
}
