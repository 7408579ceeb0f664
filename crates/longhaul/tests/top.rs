//! `top`: over a real pool under load, with targets that are killed and stopped, and on a terminal.

mod common;

use common::site::{ADMIN, Site};
use common::{PATIENCE, Running, command, follow, signal, text, until};
use serde_json::{Value, json};
use std::io::Write;
use std::process::{Command, Stdio};

const VOLUME: [&str; 9] =
    ["volume", "create", "p/v", "--size", "64MiB", "--layout", "parity", "--width", "3"];

/// A load on the volume `p/v`, which runs until it is dropped.
fn load(site: &Site) -> Running {
    let args =
        ["bench", "volume:p/v", "--rw", "randrw", "--bs", "64k", "--iodepth", "4", "--runtime", "600s"];
    let mut load = command(&[&args[..], &["--hostnqn", ADMIN]].concat());
    load.env("XDG_STATE_HOME", site.path("host")).env("XDG_RUNTIME_DIR", site.path("host"));
    Running(load.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started"))
}

/// The samples of `top`, and its summary.
fn samples(site: &Site, args: &[&str]) -> Vec<Value> {
    site.done(&[&["top", "--interval", "300ms"], args].concat())
}

fn array(sample: &Value) -> &Value {
    &sample["arrays"][0]
}

#[test]
fn a_load_is_seen_on_each_path_and_a_lost_target_too() {
    let mut site = Site::new(3);
    site.create();
    site.done(&VOLUME);
    // Without a load the pool is seen, and no path.
    let seen = samples(&site, &["--count", "2"]);
    assert_eq!((seen.len(), &seen[2]), (3, &json!({ "event": "summary", "samples": 2 })));
    assert_eq!((&seen[1]["arrays"], &seen[1]["pools"][0]["volumes"]), (&json!([]), &json!(1)));
    assert_eq!(seen[1]["pools"][0]["targets"].as_array().map(Vec::len), Some(3));

    let bench = load(&site);
    until("the load to run", || {
        let seen = samples(&site, &["--count", "2"]);
        seen[1]["arrays"].as_array().is_some_and(|all| !all.is_empty())
    });
    // A rate needs two looks, and the load reads and writes at random.
    until("both directions to be busy", || {
        let seen = samples(&site, &["p", "--count", "3"]);
        let now = array(&seen[2]);
        ["read", "write"]
            .iter()
            .all(|way| now[way]["bits_per_second"].as_f64().is_some_and(|rate| rate > 0.0))
    });
    let seen = samples(&site, &["p", "--count", "3"]);
    let now = array(&seen[2]);
    assert_eq!(
        (&now["device"], &now["health"], &now["layout"]),
        (&json!("volume:p/v"), &json!("healthy"), &json!("parity"))
    );
    let paths = now["paths"].as_array().expect("paths");
    let mut members: Vec<_> = paths.iter().filter_map(|path| path["member"].as_u64()).collect();
    members.sort_unstable();
    assert_eq!(members, [0, 1, 2]);
    let sum = |way: &str, field: &str| paths.iter().filter_map(|path| path[way][field].as_f64()).sum::<f64>();
    for way in ["read", "write"] {
        let (total, parts) =
            (now[way]["bits_per_second"].as_f64().expect("known"), sum(way, "bits_per_second"));
        assert!((total - parts).abs() < 1.0, "{way}: {total} and {parts}");
        assert!(now[way]["latency_us"].as_u64().is_some_and(|time| time > 0), "{now}");
    }
    for path in paths {
        assert_eq!((&path["state"], &path["why"]), (&json!("optimized"), &Value::Null));
        assert!(path["round_trip_us"].is_u64(), "{path}");
    }
    // A process that hangs holds nothing up: the pool is shown, and the array when it answers.
    signal(&bench, "STOP");
    let seen = samples(&site, &["--count", "2"]);
    assert_eq!((&seen[1]["arrays"], &seen[1]["pools"][0]["volumes"]), (&json!([]), &json!(1)));
    signal(&bench, "CONT");
    // Of a pool that is not meant, nothing is seen.
    assert!(site.refused(2, &["top", "q", "--count", "1"]).contains("no pool q is known"));

    let lost = site.kill(1);
    until("the path to be lost", || {
        let seen = samples(&site, &["--count", "2"]);
        let paths = array(&seen[1])["paths"].as_array().cloned().unwrap_or_default();
        paths.iter().any(|path| {
            path["address"] == lost.as_str() && path["state"] == "lost" && path["why"].is_string()
        })
    });
    until("the array to be degraded", || {
        array(&samples(&site, &["--count", "2"])[1])["health"] == "degraded"
    });
    let seen = samples(&site, &["--count", "3"]);
    let targets = seen[2]["pools"][0]["targets"].as_array().expect("targets");
    let away: Vec<_> = targets.iter().filter(|target| target["error"].is_string()).collect();
    assert_eq!((targets.len(), away.len()), (3, 1));
    assert!(away[0]["address"].as_str().is_some_and(|address| address.starts_with(&lost)), "{away:?}");
    assert_eq!(away[0]["free"], Value::Null);
    // As lines, without a colour.
    let mut top = command(&["top", "--interval", "300ms", "--count", "2", "--hostnqn", ADMIN]);
    top.env("XDG_STATE_HOME", site.path("host")).env("XDG_RUNTIME_DIR", site.path("host"));
    let ran = common::finish(top.spawn().expect("started"));
    assert!(ran.code == Some(0) && !ran.stdout.contains('\x1b'), "{ran:?}");
    for begin in ["pool    p ", "target  127.0.0.2", "volume  p/v ", "path    127.0.0.2"] {
        assert!(ran.stdout.lines().any(|line| line.starts_with(begin)), "no '{begin}' in {}", ran.stdout);
    }
    assert!(ran.stdout.contains("2 of 3") && ran.stdout.contains("degraded"), "{}", ran.stdout);
}

#[test]
fn the_path_to_a_volume_of_one_namespace_is_seen() {
    let mut site = Site::new(1);
    site.create();
    site.done(&["volume", "create", "p/v", "--size", "64MiB", "--layout", "single"]);
    let bench = load(&site);
    let arrays = |site: &Site| samples(site, &["p", "--count", "3"])[2]["arrays"].clone();
    until("both directions to be busy", || {
        let now = arrays(&site);
        let is_busy = |way: &str| now[0][way]["bits_per_second"].as_f64().is_some_and(|rate| rate > 0.0);
        is_busy("read") && is_busy("write")
    });
    let seen = arrays(&site);
    let name = |field: &str| seen[0][field].as_str().unwrap_or_default().to_owned();
    assert_eq!(["device", "layout", "health"].map(name), ["volume:p/v", "single", "healthy"]);
    let path = &seen[0]["paths"][0];
    assert_eq!((&path["member"], &path["state"]), (&json!(0), &json!("optimized")), "{seen}");
    // A second process that uses it is seen beside the first one.
    let second = load(&site);
    until("two to be seen", || arrays(&site).as_array().is_some_and(|all| all.len() == 2));
    drop(second);
    let lost = site.kill(0);
    until("the path to be lost", || {
        let now = arrays(&site);
        let path = &now[0]["paths"][0];
        now[0]["health"] == "unreachable" && path["state"] == "lost" && path["address"] == lost.as_str()
    });
    drop(bench);
    until("it to be gone", || arrays(&site).as_array().is_some_and(Vec::is_empty));
}

#[test]
fn a_target_that_hangs_does_not_hold_up_the_refresh() {
    let site = Site::new(3);
    site.create();
    let hung = site.targets[0].as_ref().expect("a target");
    signal(&hung.child, "STOP");
    // Connecting to it takes 500 ms at least, which is five intervals: refreshes go on meanwhile.
    let mut top = command(&["top", "--json", "--interval", "100ms", "--hostnqn", ADMIN]);
    top.env("XDG_STATE_HOME", site.path("host")).env("XDG_RUNTIME_DIR", site.path("host"));
    let mut top = Running(top.spawn().expect("started"));
    let events = follow(top.stdout.take().expect("a pipe"));
    let mut before_it_was_known = 0;
    loop {
        let sample = events.recv_timeout(PATIENCE).expect("a sample");
        let targets = sample["pools"][0]["targets"].as_array().expect("targets");
        if targets.iter().any(|target| target["error"].is_string()) {
            break;
        }
        before_it_was_known += 1;
    }
    assert!(before_it_was_known >= 2, "{before_it_was_known}");
    // It is there again as soon as it answers.
    signal(&hung.child, "CONT");
    loop {
        let sample = events.recv_timeout(PATIENCE).expect("a sample");
        let targets = sample["pools"][0]["targets"].as_array().expect("targets");
        if targets.len() == 3 && targets.iter().all(|target| target["error"].is_null()) {
            break;
        }
    }
    signal(&top, "TERM");
    assert_eq!(top.end(PATIENCE), Some(Some(0)));
    assert_eq!(events.iter().last().expect("a summary")["event"], "summary");
}

#[test]
fn nothing_to_show_is_a_sentence() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut top = command(&["top"]);
    top.env("XDG_STATE_HOME", dir.path()).env("XDG_RUNTIME_DIR", dir.path());
    let ran = common::finish(top.spawn().expect("started"));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""));
    assert!(ran.stderr.starts_with("nothing to show: no pool is known"), "{ran:?}");
    assert!(ran.stderr.contains("longhaul pool status POOL --catalog"), "{ran:?}");
    let ran = common::longhaul(&["top", "--interval", "1ms"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("--interval is 100 ms or more"), "{ran:?}");
}

/// How a refresh of a terminal begins: in the upper left corner.
const FRAME: &str = "\x1b[?2026h\x1b[H";

/// Runs `top` on a terminal of 80 columns, types `keys` once it was drawn twice, and returns what was written, with
/// the settings of the terminal before and after. `None` if there is no `script`.
fn on_terminal(site: &Site, args: &[&str], keys: &str, env: &[(&str, &str)]) -> Option<String> {
    let plain = command(args);
    let words: Vec<&str> = std::iter::once(plain.get_program())
        .chain(plain.get_args())
        .map(|word| word.to_str().expect("UTF-8"))
        .collect();
    // The shell gets Ctrl-C as well, and goes on.
    let line =
        format!("trap : INT; stty cols 80 rows 24; stty -g; {}; echo status $?; stty -g", words.join(" "));
    let mut script = Command::new("script");
    script.args(["-qfec", &line, text(&site.path("typescript"))]);
    script.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    script.env("TERM", "xterm").env("XDG_CONFIG_HOME", "/nonexistent").env_remove("NO_COLOR");
    script.env("XDG_STATE_HOME", site.path("host")).env("XDG_RUNTIME_DIR", site.path("host"));
    script.envs(env.iter().copied());
    // That of an earlier run is not taken for this one's.
    let _ = std::fs::remove_file(site.path("typescript"));
    let mut script = Running(script.spawn().ok()?);
    let written = || std::fs::read(site.path("typescript")).unwrap_or_default();
    let has = |what: &str| String::from_utf8_lossy(&written()).contains(what);
    let mut keyboard = script.stdin.take().expect("a pipe");
    let frames = || String::from_utf8_lossy(&written()).matches(FRAME).count();
    until("it to be drawn twice", || has("3 of 3") && frames() >= 2);
    keyboard.write_all(keys.as_bytes()).expect("typed");
    assert_eq!(script.end(PATIENCE), Some(Some(0)));
    Some(String::from_utf8_lossy(&written()).into_owned())
}

/// Without colours and other escape sequences.
fn plain(written: &str) -> String {
    let (mut plain, mut chars) = (String::new(), written.chars());
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => drop(chars.by_ref().skip(1).find(char::is_ascii_alphabetic)),
            '\r' => {}
            c => plain.push(c),
        }
    }
    plain
}

#[test]
fn a_terminal_is_drawn_in_place_and_given_back() {
    let site = Site::new(3);
    site.create();
    let top = ["top", "--interval", "200ms", "--hostnqn", ADMIN];
    for keys in ["q", "xQ", "\x03"] {
        let Some(written) = on_terminal(&site, &top, keys, &[]) else {
            return longhaul_skip::skip!("script is not installed");
        };
        let (entered, rest) = written.split_once("\x1b[?1049h\x1b[?25l").expect("the other screen");
        let (drawn, left) = rest.split_once("\x1b[?25h\x1b[?1049l").expect("left");
        // Each refresh begins in the upper left corner, and erases nothing before it is drawn over.
        let frames: Vec<&str> = drawn.split(FRAME).skip(1).collect();
        assert!(frames.len() >= 2, "{written:?}");
        assert!(frames.iter().all(|frame| frame.ends_with("\x1b[J\x1b[?2026l")), "{frames:?}");
        assert!(!drawn.contains("\x1b[2J"), "it would flicker");
        for line in
            frames.iter().flat_map(|frame| plain(frame).lines().map(str::to_owned).collect::<Vec<_>>())
        {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(drawn.contains("\x1b[32m"), "a colour");
        // What was seen last stays, and the terminal is set as before.
        assert!(left.contains("3 of 3") && left.contains("status 0"), "{left:?}");
        let settings = |text: &str| {
            plain(text).lines().rfind(|line| line.contains(':') && !line.contains(' ')).map(str::to_owned)
        };
        let before = settings(entered);
        assert!(before.is_some() && before == settings(left), "{written:?}");
    }
    // https://no-color.org
    let Some(written) = on_terminal(&site, &[&top[..], &["--count", "3"]].concat(), "", &[("NO_COLOR", "1")])
    else {
        return;
    };
    assert!(!written.contains("\x1b[3") && !written.contains("\x1b[0m"), "{written:?}");
}
