//! Configuration files.

mod common;

use common::{Ran, command, finish, text};
use std::path::PathBuf;

/// Runs the program with `config` as the user's configuration file, and returns that file, too.
fn with(config: &str, args: &[&str]) -> (Ran, PathBuf, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("longhaul/config.toml");
    std::fs::create_dir(dir.path().join("longhaul")).expect("made");
    std::fs::write(&path, config).expect("written");
    let ran = finish(command(args).env("XDG_CONFIG_HOME", dir.path()).spawn().expect("started"));
    (ran, path, dir)
}

#[test]
fn a_file_gives_defaults_and_flags_win() {
    let config = "[target]\nmemory = \"128MiB\"\nexport = [\"a=mem:1MiB\", \"b=mem:2MiB\"]\n\
                  no-hdr-digest = true\nno-data-digest = false\nmax-queues = 5\nverbose = 1\n\
                  [bench]\niodepth = 7\nbs = \"8k\"\n[dataset.make]\nseed = 3\n";
    let (ran, path, _dir) =
        with(config, &["target", "--show-config", "--memory", "64MiB", "--in-capsule=2MiB"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let from = format!("# {}", path.display());
    for line in [
        "[target]",
        "memory = \"64MiB\"  # command line",
        "in-capsule = \"2MiB\"  # command line",
        &format!("export = [\"a=mem:1MiB\", \"b=mem:2MiB\"]  {from}"),
        &format!("no-hdr-digest = true  {from}"),
        &format!("no-data-digest = false  {from}"),
        &format!("max-queues = \"5\"  {from}"),
        &format!("verbose = 1  {from}"),
        "max-queue-size = \"1024\"  # default",
        "# congestion is not set",
    ] {
        assert!(ran.stdout.lines().any(|l| l == line), "no '{line}' in {}", ran.stdout);
    }
    // The output of `--show-config` is a valid file.
    ran.stdout.parse::<toml::Table>().expect("TOML");

    // A list on the command line replaces the list of the file.
    let (ran, ..) = with(config, &["target", "--show-config", "--export", "c=mem:1MiB"]);
    assert!(ran.stdout.contains("export = [\"c=mem:1MiB\"]  # command line"), "{ran:?}");

    let (ran, ..) = with(config, &["bench", "mem:1MiB", "--json", "--bs", "4k"]);
    let result: longhaul_results::schema::Output = serde_json::from_str(&ran.stdout).expect("fio's layout");
    let options = &result.jobs[0].job_options;
    assert_eq!(options.get("iodepth").map(String::as_str), Some("7"), "{ran:?}");
    assert_eq!(options.get("bs").map(String::as_str), Some("4096"));

    let (ran, ..) = with(config, &["--json", "dataset", "make", "--show-config", "small", "/tmp/x"]);
    let events = ran.events();
    assert_eq!(events[0]["verb"], "dataset.make");
    assert_eq!(events[0]["settings"]["seed"]["value"], "3");
    assert_eq!(events[0]["settings"]["scale"]["value"], serde_json::Value::Null);
}

#[test]
fn each_fault_names_file_and_key() {
    let faults = [
        ("[target]\nmemry = \"1GiB\"\n", "unknown key 'target.memry'"),
        ("[tagret]\nmemory = \"1GiB\"\n", "'tagret' is not a table of a verb"),
        ("memory = \"1GiB\"\n", "'memory' is not a table of a verb"),
        ("[bench]\nshow-config = true\n", "unknown key 'bench.show-config'"),
        ("[bench]\ndevices = [\"mem:1MiB\"]\n", "unknown key 'bench.devices'"),
        ("[dataset]\nseed = 1\n", "unknown key 'dataset.seed'"),
        ("[target]\nexport = { a = 1 }\n", "'target.export' is a string or a list of strings"),
        ("[target]\nno-hdr-digest = \"yes\"\n", "'target.no-hdr-digest' is either true or false"),
        ("[bench]\nname = \"x\"\niodepth =\n", "line 3"),
        ("[discover]\nqueue-size = 1\n", "key 'queue-size': invalid value '1'"),
        // Also in sections of other verbs.
        ("[bench]\niodepth = \"many\"\n", "key 'iodepth': invalid value 'many'"),
        ("[bench]\nrw = \"sideways\"\n", "key 'rw': invalid value 'sideways'"),
        ("[target]\nlisten = \"dtn1:many\"\n", "key 'listen': invalid value 'dtn1:many'"),
        ("[dataset.make]\nseed = \"x\"\n", "key 'seed': invalid value 'x'"),
        ("[discover]\nconnect-timeout = \"soon\"\n", "key 'connect-timeout': invalid value 'soon'"),
    ];
    for (config, needle) in faults {
        let (ran, path, _dir) = with(config, &["discover", "127.0.0.1:1"]);
        assert_eq!(ran.code, Some(2), "{config}: {ran:?}");
        assert!(ran.stderr.contains(needle) && ran.stderr.contains(text(&path)), "{config}: {ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    }
    // `--help` works all the same.
    let (ran, ..) = with("[tagret]\n", &["target", "--help"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn a_fault_is_an_event_too() {
    let (ran, ..) = with("[tagret]\n", &["discover", "127.0.0.1:1", "--json"]);
    let event = ran.events().pop().expect("an event");
    assert_eq!((&event["event"], &event["exit"]), (&"error".into(), &2.into()), "{ran:?}");
}

#[test]
fn settings_of_hosts_that_contradict_each_other_make_no_file() {
    let dir = tempfile::tempdir().expect("directory");
    let medium = dir.path().join("medium");
    let export = |options: &str| format!("a=file:{},size=1MiB{options}", medium.display());
    let host = "nqn.2014-08.org.example:host";
    let space = format!("s=dir:{},size=1MiB", dir.path().join("space").display());
    let of_one = export(&format!(",allow-host={host},read-only-host={host}"));
    let rate = format!("{host}=1Gbit");
    for (said, args) in [
        ("leave one out", vec![&*of_one]),
        ("leave one out", vec![&export(""), "--allow-host", host, "--read-only-host", host]),
        ("administrator", vec![&export(""), "--space", &space, "--admin", host, "--read-only-host", host]),
        ("twice", vec![&export(""), "--host-rate", &rate, "--host-rate", &rate]),
    ] {
        let args = [&["target", "--listen", "127.0.0.1:0", "--export"][..], &args].concat();
        let ran = finish(command(&args).spawn().expect("started"));
        assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(said), "{args:?}: {ran:?}");
        assert!(!medium.exists(), "{args:?} made the file");
    }
}

/// Keys are readable by root alone, and the file of the machine by all its users.
#[test]
fn keys_that_a_user_cannot_read_are_an_error_of_the_verb_that_uses_them_alone() {
    for keys in ["/nonexistent", "credential:hosts", "keyring:longhaul-none"] {
        let config = format!("[target]\nkeys = \"{keys}\"\n");
        let (ran, ..) = with(&config, &["attach", "--list"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let (ran, path, _dir) =
            with(&config, &["target", "--listen", "127.0.0.1:0", "--export", "a=mem:1MiB"]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains("cannot read keys") && ran.stderr.contains(text(&path)), "{ran:?}");
    }
}
