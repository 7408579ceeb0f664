//! `pool` and `volume`, over targets that run as programs.

mod common;

use common::site::{ADMIN, Site};
use common::{Target, command, connect, finish, text};
use serde_json::{Value, json};
use std::path::Path;

const NODE: &str = "nqn.2014-08.org.example:node";

/// Writes data with checksums to a device, or verifies it.
fn bench(device: &str, rw: &str) -> Vec<String> {
    let args = ["bench", device, "--rw", rw, "--bs", "64k", "--size", "4m", "--verify", "crc32c"];
    args.map(str::to_owned).to_vec()
}

#[test]
fn from_nothing_to_a_verified_volume_that_survives_a_target() {
    let mut site = Site::new(6);
    let made = site.create();
    assert_eq!((&made["targets"], &made["capacity"]), (&json!(6), &json!(6 << 28)));
    let volume = site.last(&["volume", "create", "p/run7", "--size", "64MiB", "--layout", "parity"]);
    assert_eq!((&volume["device"], &volume["hosts"]), (&json!("volume:p/run7"), &json!([ADMIN])));
    assert_eq!(volume["targets"].as_array().expect("a list").len(), 6);
    let device = "volume:p/run7";
    for rw in ["write", "read"] {
        let args = bench(device, rw);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let ran = site.run(&args);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    // One target is lost: everything is still there.
    let at = site.kill(2);
    let ran = site.run(&bench(device, "read").iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let status = site.run(&["pool", "status", "p"]);
    assert_eq!(status.code, Some(3), "{status:?}");
    let down: Vec<Value> = status.events().into_iter().filter(|event| event["error"].is_string()).collect();
    assert_eq!((down.len(), &down[0]["domain"]), (1, &json!("rack2")));

    // What cannot be reached is removed later; the name is free at once.
    let ran = site.run(&["volume", "rm", "p/run7"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains("a later command finishes it"), "{ran:?}");
    assert_eq!(site.files(), 2, "the record and the data at the lost target");
    site.restart(2, &at);
    let status = site.last(&["pool", "status", "p"]);
    assert_eq!((&status["volumes"], &status["used"], &status["pending"]), (&json!(0), &json!(0), &json!([])));
    assert_eq!(site.files(), 0);
    assert_eq!(site.last(&["pool", "destroy", "p"])["name"], "p");
    assert_eq!(site.last(&["pool", "ls"])["pools"], 0);
}

#[test]
fn a_volume_is_used_wherever_a_device_is_named() {
    let site = Site::new(3);
    site.create();
    site.done(&["volume", "create", "p/v", "--size", "32MiB", "--layout", "double-parity", "--for", ADMIN]);
    // A target exports it; its array runs there, and nowhere else meanwhile.
    let mut head = command(&["target", "--json", "--discovery", "none", "--listen", "127.0.0.1:0"]);
    head.args(["--export", "x=volume:p/v"]);
    head.env("XDG_STATE_HOME", site.path("host")).env("XDG_RUNTIME_DIR", site.path("host"));
    if !Path::new("/etc/machine-id").exists() {
        return longhaul_skip::skip!(
            "this machine has no identity, so that a target has another host NQN each time"
        );
    }
    // The head is a host like others: the volume is for it too.
    let own = longhaul_initiator::Options::default().hostnqn;
    assert_eq!(site.last(&["volume", "open", "p/v", "--for", &own])["hosts"], json!([ADMIN, own]));
    let head = Target::spawn(head);
    let uri = head.uri(0);
    let ran =
        site.run(&["bench", &uri, "--rw", "write", "--bs", "64k", "--size", "1m", "--verify", "crc32c"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let info = site.last(&["info", "volume:p/v"]);
    assert_eq!((&info["layout"], &info["health"]), (&json!("double-parity"), &json!("healthy")));
    assert!(
        site.refused(6, &["bench", "volume:p/v", "--rw", "read", "--size", "1m"])
            .contains("runs on this host")
    );
    let why = site.refused(6, &["volume", "rm", "p/v"]);
    assert!(why.contains("a process of this host uses it"), "{why}");
    let uuid = head.ready["exports"][0]["uuid"].clone();
    head.stop();
    // It has the same identity wherever it is served.
    assert_eq!(uuid, site.last(&["volume", "info", "p/v"])["array"]);
    let stranger = ["bench", "volume:p/v", "--rw", "read", "--size", "1m", "--hostnqn", NODE];
    let ran = site.run_as("host", &stranger);
    assert!(ran.code == Some(6) && ran.stderr.contains("is not for this host"), "{ran:?}");
    site.last(&["volume", "open", "p/v", "--for", NODE, "--only"]);
    let why = site.refused(6, &["bench", "volume:p/v", "--rw", "read", "--size", "1m"]);
    assert!(why.contains("longhaul volume open p/v --for"), "{why}");
    assert_eq!(site.last(&["volume", "rename", "p/v", "w"])["device"], "volume:p/w");
    let listed = site.done(&["volume", "ls"]);
    assert_eq!((&listed[0]["name"], &listed[1]["volumes"]), (&json!("w"), &json!(1)));
    site.done(&["volume", "rm", "p/w"]);
    assert_eq!(site.files(), 0);
}

/// What programs such as the driver for Kubernetes go by: hosts that are taken away, and reasons of refusals.
#[test]
fn programs_give_and_take_volumes_and_tell_refusals_apart() {
    let site = Site::new(2);
    site.create();
    let first = ["volume", "create", "p/v", "--size", "16MiB", "--layout", "mirror", "--no-host"];
    let large = ["volume", "create", "p/w", "--size", "1TiB", "--layout", "mirror", "--no-host"];
    let reason = |args: &[&str]| {
        let ran = site.run(args);
        assert_ne!(ran.code, Some(0), "{args:?}: {ran:?}");
        ran.events().pop().expect("an error")["reason"].clone()
    };
    assert_eq!(site.last(&first)["hosts"], json!([]));
    assert_eq!((reason(&first), reason(&large)), (json!("exists"), json!("no-space")));
    assert_eq!(reason(&["volume", "resize", "p/v", "--size", "1TiB"]), json!("no-space"));
    for args in [
        &["volume", "info", "p/w"][..],
        &["volume", "rm", "p/w"],
        &["volume", "open", "p/w"],
        &["fs", "rm", "p/w"],
    ] {
        assert_eq!(reason(args), json!("not-found"), "{args:?}");
    }
    // A pool that is not known says nothing of its volumes.
    assert_eq!(reason(&["volume", "info", "q/w"]), Value::Null);
    let bench = ["bench", "volume:p/v", "--rw", "write", "--bs", "64k", "--size", "1m", "--verify", "crc32c"];
    let stranger = site.run(&bench);
    assert!(stranger.code == Some(6) && stranger.stderr.contains("is not for this host"), "{stranger:?}");
    let opened = site.last(&["volume", "open", "p/v", "--for", ADMIN, "--for", NODE]);
    assert_eq!(opened["hosts"], json!([ADMIN, NODE]));
    let member = site.last(&["volume", "info", "p/v"])["members"][0]["uri"].clone();
    let member = member.as_str().expect("a URI");
    let connects = |host| site.run_as("host", &["info", member, "--hostnqn", host]).code == Some(0);
    assert!(connects(NODE));
    assert_eq!(site.last(&["volume", "close", "p/v", "--for", NODE])["hosts"], json!([ADMIN]));
    // Its target does not show the namespace to that host any more, and to the other one it does.
    assert!(!connects(NODE) && connects(ADMIN));
    assert_eq!(site.run(&bench).code, Some(0));
    assert_eq!(site.last(&["volume", "close", "p/v", "--for", ADMIN, "--for", NODE])["hosts"], json!([]));
    assert_eq!(site.run(&bench).code, Some(6));
    let made = site.last(&["fs", "create", "p/f", "--size", "16MiB", "--layout", "mirror", "--no-host"]);
    assert_eq!(made["hosts"], json!([]));
    site.done(&["volume", "rm", "p/v"]);
    site.done(&["fs", "rm", "p/f"]);
    assert_eq!(site.files(), 0);
}

#[test]
fn a_job_gets_volumes_and_gives_them_back() {
    let mut site = Site::new(4);
    site.create();
    let allocate = [
        "pool",
        "allocate",
        "p",
        "--size",
        "16MiB",
        "--layout",
        "parity",
        "--width",
        "3",
        "--for-job",
        "4711",
        "--lifetime",
        "8h",
        "--nodes",
        "n[1-3]",
        "--node-nqn",
        "nqn.2014-08.org.example:{}",
    ];
    let made = site.done(&allocate);
    assert_eq!(made.len(), 4, "{made:?}");
    assert_eq!(
        (&made[0]["node"], &made[0]["device"], &made[0]["hosts"]),
        (&json!("n1"), &json!("volume:p/job-4711-n1"), &json!(["nqn.2014-08.org.example:n1"]))
    );
    assert_eq!(made[3]["volumes"], 3);
    let ran = site.run_as(
        "host",
        &[
            "bench",
            "volume:p/job-4711-n2",
            "--rw",
            "write",
            "--size",
            "1m",
            "--hostnqn",
            "nqn.2014-08.org.example:n2",
        ],
    );
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(site.refused(1, &allocate).contains("already"));
    let jobs = site.done(&["pool", "jobs"]);
    assert_eq!((&jobs[0]["job"], jobs[0]["volumes"].as_array().map(Vec::len)), (&json!("4711"), Some(3)));
    // The lifetime of another one ends at once, and any command collects it.
    let past =
        ["pool", "allocate", "p", "--size", "1MiB", "--layout", "single", "--for-job", "1", "--lifetime"];
    let why = site.refused(2, &[&past[..], &["0"]].concat());
    assert!(why.contains("its lifetime is 0"), "{why}");
    site.done(&[&past[..], &["1s"]].concat());
    common::until("the lifetime to end", || site.last(&["pool", "jobs", "p"])["jobs"] == 1);

    // A target is gone when the job ends.
    let at = site.kill(1);
    let ran = site.run(&["pool", "release", "--for-job", "4711"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert_eq!(site.last(&["volume", "ls", "p"])["volumes"], 0);
    assert!(site.files() > 0);
    site.restart(1, &at);
    let released = site.last(&["pool", "release", "--for-job", "4711"]);
    assert_eq!((&released["volumes"], &released["waiting"]), (&json!([]), &json!([])));
    site.done(&["pool", "release", "--for-job", "4711"]);
    assert_eq!(site.last(&["pool", "jobs"])["jobs"], 0);
    assert_eq!(site.files(), 0);
}

#[test]
fn a_volume_that_another_user_of_this_host_has_open_says_so() {
    let site = Site::new(3);
    site.create();
    site.done(&["volume", "create", "p/v", "--size", "16MiB", "--layout", "parity"]);
    let state = site.path("host");
    let begin = |user: &str, args: &[&str]| {
        let mut command = command(args);
        command.env("XDG_STATE_HOME", &state).env("XDG_RUNTIME_DIR", site.path(user));
        command.spawn().expect("started")
    };
    let load = ["bench", "volume:p/v", "--rw", "read", "--runtime", "600s", "--hostnqn", ADMIN];
    let _bench = common::Running(begin("one", &load));
    let info = ["volume", "info", "p/v", "--json"];
    common::until("the volume to be open", || {
        finish(begin("one", &info)).events().iter().any(|event| event["health"].is_string())
    });
    let repair = ["volume", "repair", "p/v", "--hostnqn", ADMIN];
    let ran = finish(begin("other", &repair));
    assert_eq!(ran.code, Some(6), "{ran:?}");
    assert!(
        ran.stderr
            .contains("and is this host: give the command as the user who opened the volume, with sudo"),
        "{ran:?}"
    );
    assert_eq!(finish(begin("one", &repair)).code, Some(0));
}

#[test]
fn a_killed_allocation_leaves_nothing() {
    let site = Site::new(3);
    site.create();
    let args = ["volume", "create", "p/v", "--size", "16MiB", "--layout", "parity", "--hostnqn", ADMIN];
    let mut command = command(&args);
    command.env("XDG_STATE_HOME", site.path("host")).env("XDG_RUNTIME_DIR", site.path("host"));
    let child = common::Running(command.spawn().expect("started"));
    common::until("a namespace to be made", || site.files() > 0);
    drop(child);
    // Its lease runs out; then any command undoes what was not finished.
    common::until("the lease to run out", || site.last(&["pool", "recover", "p"])["held"] == 0);
    if site.last(&["volume", "ls", "p"])["volumes"] == 1 {
        site.done(&["volume", "rm", "p/v"]);
    }
    assert_eq!(site.files(), 0);
    let status = site.last(&["pool", "status", "p"]);
    assert_eq!((&status["used"], &status["pending"]), (&json!(0), &json!([])), "{status}");
}

#[test]
fn a_lost_catalog_is_made_again() {
    let mut site = Site::new(3);
    let pool = site.create();
    site.done(&["volume", "create", "p/Größe", "--size", "16MiB", "--layout", "parity"]);
    let ran = site.run(&bench("volume:p/Größe", "write").iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let before = site.last(&["volume", "info", "p/Größe"]);
    // Another pool cannot have these targets, and the message says which pool does.
    let taken = ["pool", "create", "q", "--target", &site.addr(0)];
    let why = site.refused(6, &taken);
    assert!(why.contains("pool p (") && why.contains("made volume Größe there on"), "{why}");
    std::fs::remove_dir_all(site.path("host")).expect("removed");
    let (a, b, c) = (site.addr(0), site.addr(1), site.addr(2));
    let unknown = site.refused(2, &["volume", "ls", "p"]);
    assert!(unknown.contains("no pool p is known"), "{unknown}");
    let imported = site.last(&["pool", "import", &a, &b, &c]);
    assert_eq!((&imported["name"], &imported["uuid"]), (&json!("p"), &pool["uuid"]));
    assert_eq!(imported["whole"], json!(["Größe"]));
    assert_eq!(site.last(&["volume", "info", "p/Größe"]), before);
    let ran = site.run(&bench("volume:p/Größe", "read").iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(ran.code, Some(0), "{ran:?}");

    // With a target missing it says so, and the volume serves.
    assert_eq!(site.last(&["pool", "export", "p"])["name"], "p");
    site.kill(0);
    let ran = site.run(&["pool", "import", &b, &c, "--name", "again"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains("it serves, degraded"), "{ran:?}");
    let ran = site.run(&bench("volume:again/Größe", "read").iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

/// Two hosts, each with a catalog of its own.
#[test]
fn a_pool_of_another_catalog_is_refused_exported_and_taken_over() {
    let site = Site::new(3);
    site.create();
    site.done(&["volume", "create", "p/v", "--size", "16MiB", "--layout", "parity"]);
    let addresses: Vec<String> = (0..3).map(|n| site.addr(n)).collect();
    let targets: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let as_two = |code: i32, args: &[&str]| {
        let ran = site.run_as("two", &[&["--json"], args, &["--hostnqn", ADMIN]].concat());
        assert_eq!(ran.code, Some(code), "{args:?}: {ran:?}");
        ran
    };
    let import = [&["pool", "import"], &targets[..]].concat();
    let forced = [&import[..], &["--force"]].concat();
    let by = format!("({ADMIN}) manages it in catalog {}", text(&site.path("host")));
    let why = as_two(6, &import).stderr;
    assert!(why.contains("pool p is not imported: host ") && why.contains(&by), "{why}");
    assert!(why.contains(", since 20") && why.contains("longhaul pool export"), "{why}");
    let why = as_two(6, &["pool", "create", "q", "--target", targets[0]]).stderr;
    assert!(
        why.contains("is not used: pool p (") && why.contains(&by) && why.contains(", since 20"),
        "{why}"
    );
    assert_eq!(site.last(&["pool", "status", "p"])["manager"]["hostnqn"], ADMIN);

    // A host uses the volume while its pool is exported: the other one does not get it by mistake.
    let mut head = command(&["target", "--json", "--discovery", "none", "--listen", "127.0.0.1:0"]);
    head.args(["--export", "x=volume:p/v", "--hostnqn", ADMIN]);
    head.env("XDG_STATE_HOME", site.path("host")).env("XDG_RUNTIME_DIR", site.path("host"));
    let head = Target::spawn(head);
    let device = head.uri(0);
    let load = bench(&device, "write");
    let ran = site.run(&load.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(site.last(&["pool", "export", "p"])["name"], "p");
    let why = as_two(6, &import).stderr;
    assert!(
        why.contains("volume v is in use: session ") && why.contains("--force takes the volumes"),
        "{why}"
    );
    assert_eq!(as_two(0, &["pool", "ls"]).events()[0]["pools"], 0);

    // It may be taken: what was acknowledged is there, and the host that had it writes nothing any more.
    let imported = as_two(0, &forced).events();
    assert_eq!(imported.last().expect("a summary")["whole"], json!(["v"]));
    let event = head.event("access");
    assert_eq!(event["access"], "inaccessible", "{event}");
    assert!(event["why"].as_str().expect("a reason").contains("has taken it over"), "{event}");
    let stale =
        connect(&device).and_then(|stale| stale.write_at(&[0xEE; 4096], 0).map_err(|e| e.to_string()));
    stale.expect_err("it serves no writes");
    let read = bench("volume:p/v", "read");
    as_two(0, &read.iter().map(String::as_str).collect::<Vec<_>>());
    head.stop();

    // Taken over in turn, with the catalog of the other host as it was.
    site.refused(6, &import);
    site.done(&forced);
    for args in [
        &["volume", "open", "p/v", "--for", NODE][..],
        &["volume", "rm", "p/v"],
        &["volume", "create", "p/w", "--size", "1MiB", "--layout", "parity"],
        &["pool", "add-target", "p", targets[0]],
        &["pool", "recover", "p"],
    ] {
        let why = as_two(6, args).stderr;
        assert!(why.contains("pool p is not used by this catalog any more: host "), "{args:?}: {why}");
        assert!(why.contains(&by) && why.contains("longhaul pool export p"), "{args:?}: {why}");
    }
    as_two(0, &["pool", "export", "p"]);
    assert_eq!(site.last(&["volume", "ls", "p"])["volumes"], 1);
    site.done(&["volume", "rm", "p/v"]);
    assert_eq!(site.files(), 0);
}

/// Targets of two pools, members that are missing, and copies: an import and the verbs say which.
#[test]
fn targets_that_do_not_belong_together_are_named() {
    let site = Site::new(4);
    let spec = |n: usize| format!("{},domain=rack{n}", site.addr(n));
    site.done(&["pool", "create", "p", "--target", &spec(0), &spec(1)]);
    site.done(&["pool", "create", "q", "--target", &spec(2), &spec(3)]);
    for volume in ["p/v", "q/w"] {
        site.done(&["volume", "create", volume, "--size", "16MiB", "--layout", "mirror"]);
    }
    let mixed = ["pool", "add-target", "p", &site.addr(2)];
    let why = site.refused(6, &mixed);
    assert!(why.contains("is not used: pool q (") && why.contains("made volume w there on 20"), "{why}");
    std::fs::remove_dir_all(site.path("host")).expect("removed");
    let all: Vec<String> = (0..4).map(|n| site.addr(n)).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let why = site.refused(2, &[&["pool", "import"], &all[..]].concat());
    assert!(
        why.contains("there are several pools: name one of ") && why.contains("p (") && why.contains("q ("),
        "{why}"
    );
    // Of the other pool one target is not given: the volume serves, and it is said which member is missing.
    let ran = site.run(&["pool", "import", all[0], all[1], all[2], "--pool", "q"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains("volume q/w lacks members ") && ran.stderr.contains("degraded"), "{ran:?}");
    let missing = ran.events().pop().expect("a summary")["missing"][0].clone();
    assert_eq!((&missing["volume"], &missing["usable"]), (&json!("w"), &json!(true)));
    let member = missing["members"][0].as_u64().expect("a member");
    assert!(ran.stderr.contains(&format!("lacks members {member}")), "{ran:?}");
    let twice = site.refused(6, &["pool", "import", all[0], all[0]]);
    assert!(twice.contains("it has the identity of target"), "{twice}");
}

#[test]
fn bad_input_is_refused_with_a_sentence() {
    let site = Site::new(3);
    site.create();
    fn create<'a>(more: &[&'a str]) -> Vec<&'a str> {
        [&["volume", "create"], more].concat()
    }
    let shape = ["--size", "1MiB", "--layout", "parity"];
    for (code, args, why) in [
        (2, create(&[&["p/a/b"], &shape[..]].concat()), "it has '/'"),
        (2, create(&[&["p"], &shape[..]].concat()), "the form is POOL/NAME"),
        (2, create(&[&["p/x\u{202e}"], &shape[..]].concat()), "letters, digits"),
        (2, vec!["pool", "create", "a/b", "--target", &site.addr(0)], "it has '/'"),
        (2, vec!["pool", "create", "a\u{202e}b", "--target", &site.addr(0)], "letters, digits"),
        (2, vec!["pool", "create", &"y".repeat(255), "--target", &site.addr(0)], "it has 255 bytes"),
        (2, vec!["volume", "open", "p/a/b"], "it has '/'"),
        (2, create(&["p/v", "--size", "1MiB", "--layout", "raid5"]), "double-parity, single"),
        (2, create(&["q/v", "--size", "1MiB", "--layout", "parity"]), "no pool q is known"),
        (1, create(&["p/v", "--size", "4GiB", "--layout", "parity"]), "or ask for fewer"),
        (1, create(&["p/v", "--size", "1MiB", "--layout", "parity", "--width", "4"]), "and 3 can be placed"),
        (1, vec!["volume", "rm", "p/none"], "there is no volume called none in pool p"),
        (
            2,
            vec!["pool", "status", "p", "--catalog", "redis:x"],
            "the form is file:PATH, server:HOST[:PORT] or etcd:",
        ),
        (5, vec!["pool", "create", "q", "--target", "127.0.0.1:1"], "nothing listens there"),
        (6, vec!["pool", "create", "q", "--target", &site.addr(0), &site.addr(0)], "the identity of target"),
    ] {
        let message = site.refused(code, &args);
        assert!(message.contains(why), "{args:?}: {message}");
    }
    let long = format!("p/{}", "x".repeat(255));
    let why = site.refused(2, &create(&[&[long.as_str()], &shape[..]].concat()));
    assert!(why.contains("it has 255 bytes, and at most 64"), "{why}");
    let ran = site.run_as("host", &["pool", "add-target", "p", &site.addr(0), "--hostnqn", NODE]);
    assert!(ran.code == Some(6) && ran.stderr.contains(&format!("--admin {NODE}")), "{ran:?}");
    assert_eq!(site.files(), 0);
}
