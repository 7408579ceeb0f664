//! `--metrics`: what a target says of the load on it, by a strict reader and by Prometheus itself.

mod common;
#[path = "../../metrics/tests/reader/mod.rs"]
mod reader;

use common::{PATIENCE, Running, Target, longhaul};
use longhaul_metrics::{FAMILIES, FamilyKind};
use longhaul_skip::skip;
use reader::{Exposition, read};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The files for users.
const CONTRIB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/prometheus");

fn get(address: &str, path: &str, accept: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("connected");
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    (head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"), body.to_owned())
}

fn metrics_of(target: &Target) -> String {
    target.ready["metrics"].as_str().expect("an address").to_owned()
}

fn scrape(target: &Target) -> Exposition {
    let at = metrics_of(target);
    let (status, text) = get(&at, "/metrics", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
    assert_eq!(status, 200);
    read(&text, true).unwrap_or_else(|why| panic!("{why}\n{text}"))
}

fn start() -> Target {
    Target::start(&["a=mem:16MiB", "b=mem:16MiB"], &["--metrics", "127.0.0.1:0", "--threads", "2"])
}

/// Loads the first export with reads or writes of 4 KiB: how many were done.
fn load(target: &Target, rw: &str, host: &str) -> u64 {
    let uri = target.uri(0);
    let how =
        ["--rw", rw, "--bs", "4KiB", "--iodepth", "8", "--runtime", "300ms", "--hostnqn", host, "--json"];
    let ran = longhaul(&[&["bench", uri.as_str()], &how[..]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let result: serde_json::Value = serde_json::from_str(&ran.stdout).expect(&ran.stdout);
    let way = rw.trim_start_matches("rand");
    result["jobs"][0][way]["total_ios"].as_u64().expect("a number")
}

#[test]
fn the_page_says_what_a_load_did() {
    let target = start();
    let host = "nqn.2014-08.org.example:loader";
    assert_eq!(get(&metrics_of(&target), "/readyz", "*/*"), (200, "ok\n".into()));
    let before = scrape(&target);
    let nqn = target.ready["exports"][0]["nqn"].as_str().expect("an NQN").to_owned();
    let here = [("subsystem", nqn.as_str()), ("nsid", "1")];
    assert_eq!(before.one("longhaul_target_read_bytes_total", &here), 0.0);
    let reads = load(&target, "randread", host);
    let of_reads = scrape(&target);
    let writes = load(&target, "randwrite", host);
    let page = scrape(&target);
    // What the load has submitted and not counted when its time was over has been answered as well.
    let at_least = |page: &Exposition, name: &str, least: u64| {
        let value = page.one(name, &here);
        assert!(
            value >= least as f64 && value <= least as f64 + 64.0 * 4096.0,
            "{name}: {value}, not {least}"
        );
        value
    };
    let count = "longhaul_target_command_duration_seconds_count";
    let with = |operation| [here[0], here[1], ("operation", operation)];
    let read = at_least(&of_reads, "longhaul_target_read_bytes_total", reads * 4096);
    let written = at_least(&page, "longhaul_target_written_bytes_total", writes * 4096);
    assert_eq!(of_reads.one(count, &with("read")) * 4096.0, read);
    // Before it writes, a load looks for what the device holds.
    let read = page.one("longhaul_target_read_bytes_total", &here);
    assert_eq!(page.one(count, &with("write")) * 4096.0, written);
    assert!(page.one("longhaul_target_command_duration_seconds_sum", &with("read")) > 0.0);
    assert_eq!(page.one("longhaul_target_commands_in_flight", &here), 0.0);
    assert_eq!(page.one("longhaul_target_host_read_bytes_total", &[("host", host)]), read);
    assert_eq!(page.one("longhaul_target_host_written_bytes_total", &[("host", host)]), written);
    assert_eq!(page.all("longhaul_target_command_errors_total", &here).iter().sum::<f64>(), 0.0);
    let other = [("subsystem", target.ready["exports"][1]["nqn"].as_str().expect("an NQN"))];
    assert_eq!(page.one("longhaul_target_read_bytes_total", &other), 0.0);
    assert!(page.one("longhaul_target_connections_accepted_total", &[]) >= 2.0);
    let uuid = target.ready["exports"][0]["uuid"].as_str().expect("a UUID");
    assert_eq!(page.one("longhaul_target_namespace_info", &[("uuid", uuid), ("name", "a")]), 1.0);
    target.stop();
}

#[test]
fn errors_are_counted_by_their_reasons() {
    let target = Target::start(&["bad=mem:16MiB,error=100%:ops=read"], &["--metrics", "127.0.0.1:0"]);
    let ran =
        longhaul(&["bench", &target.uri(0), "--rw", "read", "--bs", "4KiB", "--runtime", "100ms", "--json"]);
    assert_ne!(ran.code, Some(0), "{ran:?}");
    let page = scrape(&target);
    assert!(page.one("longhaul_target_command_errors_total", &[("reason", "medium")]) >= 1.0);
    assert_eq!(page.one("longhaul_target_read_bytes_total", &[]), 0.0);
    target.stop();
}

#[test]
fn strangers_are_counted_by_what_they_do() {
    let keys = tempfile::tempdir().expect("a directory");
    let dir = keys.path().display().to_string();
    let ran = longhaul(&["key", "make", "nqn.2014-08.org.example:known", "--keys", &dir]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let target = Target::start(&["a=mem:16MiB"], &["--metrics", "127.0.0.1:0", "--keys", &dir]);
    let page = scrape(&target);
    let failures = |page: &Exposition| {
        ["longhaul_target_authentication_failures_total", "longhaul_target_connects_refused_total"]
            .map(|name| page.one(name, &[]))
    };
    assert_eq!(failures(&page), [0.0, 0.0]);
    assert_eq!(page.one("longhaul_target_protocol_errors_total", &[]), 0.0);
    let ran = longhaul(&["info", &target.uri(0), "--hostnqn", "nqn.2014-08.org.example:stranger"]);
    assert_eq!(ran.code, Some(6), "{ran:?}");
    assert!(failures(&scrape(&target)).iter().all(|n| *n >= 1.0));
    // What is no PDU: the target says so and ends the connection.
    let mut stream = TcpStream::connect(target.addr()).expect("connected");
    stream.write_all(&[0xEE; 128]).expect("sent");
    let _ = stream.read_to_end(&mut Vec::new());
    let page = scrape(&target);
    assert_eq!(page.one("longhaul_target_protocol_errors_total", &[]), 1.0);
    assert!(
        page.all("longhaul_target_host_connections", &[("host", "nqn.2014-08.org.example:stranger")])
            .is_empty()
    );
    target.stop();
}

#[test]
fn an_address_that_is_taken_changes_nothing() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = taken.local_addr().expect("an address").to_string();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("disk");
    let export = format!("a=file:{},size=1MiB", file.display());
    let run = |metrics: &str| {
        longhaul(&[
            "target",
            "--listen",
            "127.0.0.1:0",
            "--discovery",
            "none",
            "--export",
            &export,
            "--metrics",
            metrics,
        ])
    };
    let ran = run(&at);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains(&at) && ran.stderr.contains("choose another port with --metrics"), "{ran:?}");
    let ran = run("127.0.0.1:70000");
    assert!(ran.code == Some(2) && ran.stderr.contains("'70000' is not a port"), "{ran:?}");
    assert!(!file.exists(), "the export was made although the program cannot start");
}

/// Whether a program of Prometheus is installed; the test skips without.
fn is_installed(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        skip!("{program} is not installed (Debian: prometheus)");
    }
    found.is_ok()
}

fn promtool(args: &[&str], input: Option<&str>) {
    let mut command = Command::new("promtool");
    command.args(args).current_dir(CONTRIB).stdout(Stdio::piped()).stderr(Stdio::piped());
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    let mut child = command.stdin(stdin).spawn().expect("started");
    if let (Some(mut pipe), Some(input)) = (child.stdin.take(), input) {
        pipe.write_all(input.as_bytes()).expect("taken");
    }
    let out = child.wait_with_output().expect("it ends");
    // `check metrics` also prints what it would name otherwise.
    let said = [out.stdout, out.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(out.status.success(), "promtool {args:?}: {said}");
}

#[test]
fn promtool_accepts_the_page_the_rules_and_their_tests() {
    if !is_installed("promtool") {
        return;
    }
    let target = start();
    load(&target, "randread", "nqn.2014-08.org.example:loader");
    let (_, text) = get(&metrics_of(&target), "/metrics", "text/plain");
    read(&text, false).unwrap_or_else(|why| panic!("{why}\n{text}"));
    promtool(&["check", "metrics"], Some(&text));
    promtool(&["check", "config", "prometheus.yml"], None);
    promtool(&["check", "rules", "alerts.yml"], None);
    promtool(&["test", "rules", "alerts_test.yml"], None);
    target.stop();
}

/// Prometheus on a port of its own, with the files for users.
struct Prometheus {
    _child: Running,
    _dir: tempfile::TempDir,
    address: String,
}

impl Prometheus {
    fn start(metrics: &str) -> Prometheus {
        let dir = tempfile::tempdir().expect("a directory");
        let config = std::fs::read_to_string(Path::new(CONTRIB).join("prometheus.yml")).expect("the example");
        assert!(config.contains("127.0.0.1:9464") && config.contains("scrape_interval: 15s"), "{config}");
        let config = config.replace("127.0.0.1:9464", metrics).replace("interval: 15s", "interval: 1s");
        std::fs::write(dir.path().join("prometheus.yml"), config).expect("written");
        std::fs::copy(Path::new(CONTRIB).join("alerts.yml"), dir.path().join("alerts.yml")).expect("copied");
        // A port that is free now; Prometheus has no option for any.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|any| any.local_addr()).expect("a port").port();
        let address = format!("127.0.0.1:{port}");
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", dir.path().join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()));
        command.arg(format!("--web.listen-address={address}")).arg("--log.level=error");
        let child = Running(command.stdin(Stdio::null()).spawn().expect("started"));
        Prometheus { _child: child, _dir: dir, address }
    }

    /// The reply of its interface, once it answers.
    fn ask(&self, path: &str) -> Option<serde_json::Value> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        let request = format!("GET /api/v1/{path} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// Waits until the reply is as wanted.
    fn wait(&self, path: &str, is_right: impl Fn(&serde_json::Value) -> bool) {
        let end = Instant::now() + PATIENCE;
        let mut last = None;
        while Instant::now() < end {
            last = self.ask(path);
            if last.as_ref().is_some_and(&is_right) {
                return;
            }
            // It scrapes once a second, and has no way to say when it has.
            std::thread::sleep(Duration::from_millis(200));
        }
        panic!("{path}: {last:?}");
    }
}

#[test]
fn prometheus_scrapes_a_target_and_evaluates_the_alerts() {
    if !is_installed("prometheus") {
        return;
    }
    let target = start();
    let reads = load(&target, "randread", "nqn.2014-08.org.example:loader");
    let prometheus = Prometheus::start(&metrics_of(&target));
    prometheus.wait("targets", |reply| {
        let targets = reply["data"]["activeTargets"].as_array();
        targets.is_some_and(|targets| {
            targets.len() == 1 && targets[0]["health"] == "up" && targets[0]["lastError"] == ""
        })
    });
    let query = "query?query=sum(longhaul_target_read_bytes_total)";
    prometheus.wait(query, |reply| {
        let value =
            reply["data"]["result"][0]["value"][1].as_str().and_then(|value| value.parse::<f64>().ok());
        value.is_some_and(|value| value >= (reads * 4096) as f64)
    });
    prometheus.wait("rules", |reply| {
        let rules = reply["data"]["groups"][0]["rules"].as_array();
        rules.is_some_and(|rules| {
            rules.len() >= 10
                && rules.iter().all(|rule| rule["health"] == "ok" && rule["state"] == "inactive")
        })
    });
    // The alert of a program that is gone is pending at once.
    target.stop();
    prometheus.wait("alerts", |reply| {
        let alerts = reply["data"]["alerts"].as_array();
        alerts.is_some_and(|alerts| {
            alerts.len() == 1
                && alerts[0]["labels"]["alertname"] == "LonghaulDown"
                && alerts[0]["state"] == "pending"
        })
    });
}

/// Names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_metric = |word: &&str| ["longhaul_", "process_"].iter().any(|start| word.starts_with(start));
    words.filter(is_metric).map(str::to_owned).collect()
}

#[test]
fn alerts_and_the_dashboard_use_metrics_that_exist() {
    let known: BTreeSet<String> = FAMILIES
        .iter()
        .flat_map(|family| match family.kind {
            FamilyKind::Histogram => {
                ["_bucket", "_sum", "_count"].map(|end| format!("{}{end}", family.name)).to_vec()
            }
            _ => vec![family.sample()],
        })
        .collect();
    for file in ["alerts.yml", "alerts_test.yml", "dashboard.json"] {
        let text = std::fs::read_to_string(Path::new(CONTRIB).join(file)).expect(file);
        let used = names(&text);
        assert!(used.len() >= 5, "{file}: {used:?}");
        let unknown: Vec<_> = used.difference(&known).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
    let dashboard = std::fs::read_to_string(Path::new(CONTRIB).join("dashboard.json")).expect("a dashboard");
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    assert!(
        panels.iter().all(|panel| panel["targets"][0]["expr"].is_string() && panel["gridPos"].is_object())
    );
}

#[test]
fn an_agent_says_what_it_has_sent_and_received() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    std::fs::create_dir(path("root")).expect("made");
    std::fs::write(path("file"), vec![7; 100_000]).expect("written");
    let (agent, uri) = common::agent(&path("root"), &["--metrics", "127.0.0.1:0"]);
    assert_eq!(get(&metrics_of(&agent), "/readyz", "*/*").0, 200);
    for (from, to) in [
        (path("file").display().to_string(), format!("{uri}there")),
        (format!("{uri}there"), path("back").display().to_string()),
    ] {
        let ran = longhaul(&["cp", &from, &to]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let at = metrics_of(&agent);
    let page = || read(&get(&at, "/metrics", "text/plain").1, false).expect("a page");
    let ended = |page: &Exposition, direction| {
        page.one("longhaul_agent_sessions_ended_total", &[("direction", direction), ("result", "done")])
    };
    // The client may end before the agent has counted its session.
    let end = Instant::now() + PATIENCE;
    while ["receive", "send"].iter().any(|way| ended(&page(), way) < 1.0) && Instant::now() < end {
        std::thread::yield_now();
    }
    let page = page();
    for way in ["receive", "send"] {
        let direction = [("direction", way)];
        assert_eq!(ended(&page, way), 1.0);
        assert_eq!(page.one("longhaul_agent_content_bytes_total", &direction), 100_000.0);
        assert_eq!(page.one("longhaul_agent_files_total", &direction), 1.0);
        assert_eq!(page.one("longhaul_agent_sessions", &direction), 0.0);
    }
    assert_eq!(page.one("longhaul_stalled_threads", &[]), 0.0);
}

#[test]
fn a_target_shows_the_paths_to_what_it_passes_on() {
    let far = Target::start(&["a=mem:16MiB"], &[]);
    let export = format!("b={}", far.uri(0));
    let target = Target::start(&[&export], &["--metrics", "127.0.0.1:0"]);
    let reads = load(&target, "randread", "nqn.2014-08.org.example:loader");
    let page = scrape(&target);
    let address = far.addr();
    let path = [("address", address.as_str())];
    assert_eq!(page.one("longhaul_path_usable", &path), 1.0);
    assert!(
        page.one("longhaul_path_transferred_bytes_total", &[path[0], ("direction", "read")])
            >= (reads * 4096) as f64
    );
    assert!(page.one("longhaul_path_round_trip_seconds", &path) > 0.0);
    far.stop();
    let end = Instant::now() + PATIENCE;
    while scrape(&target).one("longhaul_path_usable", &path) > 0.0 {
        assert!(Instant::now() < end, "the path is not lost");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_target_shows_the_arrays_that_it_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let of_home = |args: &[&str]| {
        let mut command = common::command(args);
        command.env("XDG_STATE_HOME", path("state")).env("XDG_RUNTIME_DIR", path("run"));
        command
    };
    let members = ["one", "other"].map(|name| format!("file:{},size=16MiB", path(name)));
    let create =
        ["array", "create", "pair", "--layout", "mirror", "--device", &members[0], "--device", &members[1]];
    let ran = common::finish(of_home(&create).spawn().expect("started"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let target = Target::spawn(of_home(&[
        "target",
        "--listen",
        "127.0.0.1:0",
        "--discovery",
        "none",
        "--json",
        "--export",
        "x=array:pair",
        "--metrics",
        "127.0.0.1:0",
    ]));
    // A scrape waits for an array for half a second, and shows it at the next one then.
    let end = Instant::now() + PATIENCE;
    let page = loop {
        let page = scrape(&target);
        if !page.all("longhaul_array_info", &[]).is_empty() {
            break page;
        }
        assert!(Instant::now() < end, "the array is not there");
    };
    let here = ("array", "pair");
    assert_eq!(page.one("longhaul_array_info", &[here, ("layout", "mirror")]), 1.0);
    assert_eq!(page.one("longhaul_array_health", &[here, ("state", "healthy")]), 1.0);
    assert_eq!(page.one("longhaul_array_health", &[here, ("state", "degraded")]), 0.0);
    assert_eq!(page.one("longhaul_array_members", &[here, ("condition", "active")]), 2.0);
    assert_eq!(page.one("longhaul_array_lost_bytes", &[here]), 0.0);
    target.stop();
}

#[test]
fn a_mount_says_what_programs_read_and_write_and_that_it_is_in_trouble() {
    if !longhaul_skip::can_open(&["/dev/fuse"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let [there, here] = ["there", "here"].map(|name| dir.path().join(name));
    for made in [&there, &here] {
        std::fs::create_dir(made).expect("made");
    }
    std::fs::write(there.join("file"), vec![7; 100_000]).expect("written");
    let (agent, uri) = common::agent(&there, &[]);
    let run = |args: &[&str]| {
        let mut command = common::command(args);
        command.env("XDG_RUNTIME_DIR", dir.path());
        common::finish(command.spawn().expect("started"))
    };
    let at = here.to_str().expect("UTF-8");
    let ran = run(&["mount", &uri, at, "--metrics", "127.0.0.1:0", "--timeout", "1s", "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let metrics = ran.events()[0]["metrics"].as_str().expect("an address").to_owned();
    let page = || read(&get(&metrics, "/metrics", "text/plain").1, false).expect("a page");
    assert_eq!(get(&metrics, "/readyz", "*/*"), (200, "ok\n".into()));
    assert_eq!(page().one("longhaul_filesystem_read_bytes_total", &[]), 0.0);
    assert_eq!(std::fs::read(here.join("file")).expect("read").len(), 100_000);
    std::fs::write(here.join("new"), vec![8; 5000]).expect("written");
    let now = page();
    // The kernel reads whole pages ahead.
    assert!(now.one("longhaul_filesystem_read_bytes_total", &[]) >= 100_000.0);
    assert_eq!(now.one("longhaul_filesystem_written_bytes_total", &[]), 5000.0);
    let calls = "longhaul_filesystem_call_duration_seconds_count";
    for kind in ["read", "write", "sync", "look", "change"] {
        assert!(now.one(calls, &[("kind", kind)]) >= 1.0, "{kind}");
        assert_eq!(now.one("longhaul_filesystem_call_errors_total", &[("kind", kind)]), 0.0);
    }
    assert_eq!(now.one("longhaul_filesystem_trouble", &[]), 0.0);
    drop(agent);
    let end = Instant::now() + PATIENCE;
    while page().one("longhaul_filesystem_trouble", &[]) < 1.0 {
        assert!(Instant::now() < end, "the agent is gone, and the mount does not say so");
        std::thread::sleep(Duration::from_millis(20));
    }
    let ran = run(&["umount", "--lazy", at]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn an_nbd_server_shows_the_paths_of_its_devices() {
    let target = Target::start(&["a=mem:16MiB"], &[]);
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("socket").display().to_string();
    let export = format!("a={}", target.uri(0));
    let nbd = Target::spawn(common::command(&[
        "nbd",
        "--json",
        "--export",
        &export,
        "--unix",
        &socket,
        "--metrics",
        "127.0.0.1:0",
    ]));
    let address = target.addr();
    assert_eq!(scrape(&nbd).one("longhaul_path_usable", &[("address", address.as_str())]), 1.0);
}
