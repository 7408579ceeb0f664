//! `key`, and `--keys` of targets and hosts.

mod common;

use common::{Ran, Target, longhaul, text};
use longhaul_block::Blocking;
use longhaul_device::keys;
use longhaul_initiator::{Options, RemoteDevice};
use serde_json::json;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const HOST: &str = "nqn.2014-08.org.example:host";

fn make(dir: &Path, more: &[&str]) -> Ran {
    longhaul(&[&["key", "make", HOST, "--json", "--keys", text(dir)], more].concat())
}

fn info(target: &Target, more: &[&str]) -> Ran {
    let uri = target.ready["exports"][0]["uri"].as_str().expect("a URI");
    longhaul(&[&["info", uri, "--json", "--hostnqn", HOST], more].concat())
}

#[test]
fn a_host_with_keys_gets_in_and_one_without_is_told_what_to_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let made = make(dir.path(), &[]);
    assert_eq!(made.code, Some(0), "{made:?}");
    assert_eq!(made.events()[0]["mutual"], true);
    let target = Target::start(&["a=mem:16MiB"], &["--keys", text(dir.path())]);
    let known = info(&target, &["--keys", text(dir.path())]);
    assert_eq!(known.code, Some(0), "{known:?}");
    // By its short name, too: the discovery controller, which is asked for the NQN, proves nothing.
    let short = format!("nvme+tcp://{}/a", target.addr());
    let known = longhaul(&["info", &short, "--hostnqn", HOST, "--keys", text(dir.path())]);
    assert_eq!(known.code, Some(0), "{known:?}");
    let unknown = info(&target, &[]);
    assert_eq!(unknown.code, Some(6), "{unknown:?}");
    assert!(unknown.stderr.contains("longhaul key make") && unknown.stderr.contains("--keys"), "{unknown:?}");
    let uri = target.ready["exports"][0]["uri"].as_str().expect("a URI");
    let stranger = longhaul(&["info", uri, "--hostnqn", "nqn.2014-08.org.example:x"]);
    assert_eq!(stranger.code, Some(6), "{stranger:?}");
    // This host does not believe a target without keys.
    let open = Target::start(&["a=mem:16MiB"], &[]);
    let refused = info(&open, &["--keys", text(dir.path())]);
    assert!(refused.code == Some(6) && refused.stderr.contains("does not prove"), "{refused:?}");
    let short = format!("nvme+tcp://{}/a", open.addr());
    let refused = longhaul(&["info", &short, "--hostnqn", HOST, "--keys", text(dir.path())]);
    assert!(refused.code == Some(6) && refused.stderr.contains("does not prove"), "{refused:?}");
}

#[test]
fn secrets_are_listed_but_not_shown_nor_replaced_by_mistake() {
    let dir = tempfile::tempdir().expect("a directory");
    assert_eq!(make(dir.path(), &["--one-way", "--hash", "sha512"]).code, Some(0));
    let secret =
        std::fs::read_to_string(dir.path().join("hosts").join(HOST).join("dhchap_key")).expect("a secret");
    let again = make(dir.path(), &[]);
    assert!(again.code == Some(6) && again.stderr.contains("--force"), "{again:?}");
    let shown = longhaul(&["key", "show", "--json", "--keys", text(dir.path())]);
    assert_eq!(
        shown.events()[0],
        json!({
            "event": "key", "export": "", "host": HOST, "generation": 1, "previous": false, "hash": "SHA-512",
            "mutual": false, "tls": "none"
        })
    );
    for ran in [&again, &shown] {
        assert!(!format!("{ran:?}").contains(&secret[15..40]));
    }
    assert_eq!(make(dir.path(), &["--force"]).code, Some(0));
    assert!(
        keys::read(dir.path()).expect("read")[HOST].secrets().expect("secrets").current.controller.is_some()
    );
}

#[test]
fn a_key_for_tls_is_made_and_listed_but_not_shown() {
    let dir = tempfile::tempdir().expect("a directory");
    let made = make(dir.path(), &["--tls", "--hash", "sha384"]);
    assert_eq!((made.code, &made.events()[0]["tls"]), (Some(0), &"SHA-384".into()), "{made:?}");
    let path = dir.path().join("hosts").join(HOST).join("tls_key");
    let key = std::fs::read_to_string(path).expect("a key");
    assert!(key.starts_with("NVMeTLSkey-1:02:"));
    assert_eq!(make(dir.path(), &[]).code, Some(0), "secrets beside it");
    let shown = longhaul(&["key", "show", "--json", "--keys", text(dir.path())]);
    assert_eq!(
        shown.events()[0],
        json!({
            "event": "key", "export": "", "host": HOST, "generation": 1, "previous": false, "hash": "SHA-256",
            "mutual": true, "tls": "SHA-384"
        })
    );
    let words = longhaul(&["key", "show", "--keys", text(dir.path())]);
    assert!(words.stdout.contains("TLS: SHA-384"), "{words:?}");
    let again = make(dir.path(), &["--tls"]);
    assert!(again.code == Some(6) && again.stderr.contains("a key for TLS already"), "{again:?}");
    let long = make(dir.path(), &["--tls", "--force", "--hash", "sha512"]);
    assert!(long.code == Some(2) && long.stderr.contains("sha384"), "{long:?}");
    for ran in [&made, &shown, &words, &again] {
        assert!(!format!("{ran:?}").contains(&key[20..40]));
    }
}

fn nvme(args: &[&str]) -> String {
    let ran = std::process::Command::new("nvme").args(args).output().expect("nvme");
    assert!(ran.status.success(), "nvme {}: {}", args[0], String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).expect("text").trim_end().to_owned()
}

#[test]
fn keys_for_tls_are_those_of_nvme_cli() {
    if std::process::Command::new("nvme").arg("version").output().is_err() {
        return longhaul_skip::skip!("nvme (nvme-cli) is not installed");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("hosts").join(HOST).join("tls_key");
    for (hash, hmac, name) in [("sha256", "1", "SHA-256"), ("sha384", "2", "SHA-384")] {
        assert_eq!(make(dir.path(), &["--tls", "--force", "--hash", hash]).code, Some(0));
        let ours = std::fs::read_to_string(&path).expect("a key");
        let said = nvme(&["check-tls-key", &format!("--key={}", ours.trim_end())]);
        assert!(said.contains(&format!("HMAC {hmac}")), "{said}");
        std::fs::write(&path, nvme(&["gen-tls-key", &format!("--hmac={hmac}")])).expect("written");
        let shown = longhaul(&["key", "show", "--json", "--keys", text(dir.path())]);
        assert_eq!((shown.code, &shown.events()[0]["tls"]), (Some(0), &name.into()), "{shown:?}");
    }
}

#[test]
fn secrets_that_others_can_read_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    assert_eq!(make(dir.path(), &[]).code, Some(0));
    let path = dir.path().join("hosts").join(HOST).join("dhchap_key");
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("changed");
    let ran = longhaul(&[
        "target",
        "--export",
        "a=mem:1MiB",
        "--listen",
        "127.0.0.1:0",
        "--keys",
        text(dir.path()),
    ]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("644") && ran.stderr.contains("chmod 600"), "{ran:?}");
}

/// Without keys any machine that reaches the target is any host, and what is served is served to all.
#[test]
fn a_target_beyond_loopback_takes_keys() {
    let dir = tempfile::tempdir().expect("a directory");
    let keys = dir.path().join("keys");
    assert_eq!(make(&keys, &[]).code, Some(0));
    let at = ["disk", "named", "space"].map(|name| dir.path().join(name));
    let [disk, named] = [&at[0], &at[1]].map(|path| format!("a=file:{},size=16MiB", text(path)));
    let space = format!("fast=dir:{},size=64MiB", text(&at[2]));
    let serving: [&[&str]; 3] = [
        &["--export", &disk],
        &["--export", &named, "--allow-host", HOST],
        &["--space", &space, "--admin", HOST],
    ];
    for (serves, path) in serving.iter().zip(&at) {
        let with =
            |more: &[&'static str]| [&["target", "--json", "--discovery", "none"], *serves, more].concat();
        for listen in ["0.0.0.0:0", "[::]:0"] {
            let args = with(&["--listen", listen]);
            let refused = longhaul(&args);
            assert_eq!(refused.code, Some(2), "{args:?}: {refused:?}");
            for named in ["--keys DIR", "longhaul key make", "--insecure"] {
                assert!(refused.stderr.contains(named), "{args:?}: {refused:?}");
            }
            assert!(!path.exists(), "{args:?}: it was made");
        }
        let args = [&with(&["--listen", "0.0.0.0:0", "--keys"])[..], &[text(&keys)]].concat();
        assert_eq!(Target::spawn(common::command(&args)).ready["event"], "ready");
    }
    // Discovery alone, beyond loopback, tells others nothing that they could use.
    let target = Target::spawn(common::command(&[
        "target",
        "--json",
        "--listen",
        "127.0.0.1:0",
        "--discovery",
        "0.0.0.0:0",
        "--export",
        "a=mem:1MiB",
    ]));
    assert_eq!(target.ready["event"], "ready");
}

/// Copies the keys to a host, as an administrator does.
fn copy_keys(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-a").arg(from.join("hosts")).arg(to).status();
    assert!(copied.expect("cp").success());
}

/// The target is never restarted, and a host that is connected stays so.
#[test]
fn keys_are_rotated_and_retired_while_they_are_used() {
    let [at_target, old, new] = [(); 3].map(|()| tempfile::tempdir().expect("a directory"));
    assert_eq!(make(at_target.path(), &[]).code, Some(0));
    copy_keys(at_target.path(), old.path());
    let log = tempfile::NamedTempFile::new().expect("a file");
    let serving =
        ["target", "--listen", "127.0.0.1:0", "--discovery", "none", "--json", "--export", "a=mem:16MiB"];
    let target = Target::spawn_saying(
        common::command(&[&serving[..], &["--keys", text(at_target.path())]].concat()),
        log.reopen().expect("opened"),
    );
    let uri = target.uri(0);
    // A host that takes no lost connection up again.
    let keys = Arc::new(keys::KeyDirectory::open(old.path()).expect("keys"));
    let options = Options {
        hostnqn: HOST.into(),
        keys: Some(keys),
        ctrl_loss: Some(Duration::ZERO),
        ..Options::default()
    };
    let device = RemoteDevice::connect_blocking(&uri.parse().expect("a URI"), options).expect("connected");
    let connected = Blocking::open(device).expect("opened");
    let works = || connected.read_at(&mut [0; 4096], 0).expect("the connection stays");
    works();

    let verb = |verb: &str, more: &[&str]| {
        longhaul(&[&["key", verb, HOST, "--json", "--keys", text(at_target.path())], more].concat())
    };
    let rotated = verb("rotate", &[]);
    assert_eq!(rotated.code, Some(0), "{rotated:?}");
    assert_eq!(
        (&rotated.events()[0]["generation"], &rotated.events()[0]["previous"]),
        (&2.into(), &true.into())
    );
    copy_keys(at_target.path(), new.path());
    for known in [&old, &new] {
        let ran = info(&target, &["--keys", text(known.path())]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let again = verb("rotate", &[]);
    assert!(again.code == Some(6) && again.stderr.contains("key retire"), "{again:?}");

    let retired = verb("retire", &[]);
    assert_eq!((retired.code, &retired.events()[0]["generation"]), (Some(0), &1.into()), "{retired:?}");
    let refused = info(&target, &["--keys", text(old.path())]);
    assert_eq!(refused.code, Some(6), "{refused:?}");
    assert!(!refused.stderr.contains("generation"), "only the target knows that the secret was right once");
    let ran = info(&target, &["--keys", text(new.path())]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    works();
    drop(connected);
    target.stop();
    let log = std::fs::read_to_string(log.path()).expect("read");
    assert!(log.contains("generation 1") && log.contains("retired"), "{log}");
}

/// The secrets of one export are of no use at another, and the log and the record say which host it was.
#[test]
fn secrets_of_one_export_count_for_it_alone_and_are_read_at_each_connection() {
    let dir = tempfile::tempdir().expect("a directory");
    let [keys, own, log, said] = ["keys", "own", "audit.json", "said"].map(|name| dir.path().join(name));
    let key = |args: &[&str], keys: &Path| {
        let ran = longhaul(&[&["key"], args, &["--json", "--keys", text(keys)]].concat());
        assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
        ran
    };
    key(&["make", HOST, "--export", "a"], &keys);
    let args = ["target", "--listen", "127.0.0.1:0", "--discovery", "none", "--json", "--keys", text(&keys)];
    let exports = ["--export", "a=mem:16MiB", "--export", "b=mem:16MiB", "--audit", text(&log)];
    let output = std::fs::File::create(&said).expect("a file");
    let target = Target::spawn_saying(common::command(&[&args[..], &exports].concat()), output);
    let at = |export: usize, keys: &Path| {
        let uri = target.ready["exports"][export]["uri"].as_str().expect("a URI");
        longhaul(&["info", uri, "--json", "--hostnqn", HOST, "--keys", text(keys)])
    };
    assert_eq!(at(0, &keys).code, Some(0));
    // The host has no secret for the other, and one that it takes from the first is of no use there.
    let none = at(1, &keys);
    assert_eq!(none.code, Some(6), "{none:?}");
    std::fs::create_dir(&own).expect("made");
    let copy = |to: &Path| {
        let from = keys.join("exports/a/hosts");
        let copied = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status();
        assert!(copied.expect("cp").success());
    };
    copy(&own);
    assert_eq!(at(0, &own).code, Some(0));
    assert_eq!(at(1, &own).code, Some(6));
    // Secrets for all, which come later: the first export has its own still, and the host proves each where it is.
    key(&["make", HOST], &keys);
    assert_eq!((at(0, &keys).code, at(1, &keys).code), (Some(0), Some(0)));
    let wrong = at(1, &own);
    assert_eq!(wrong.code, Some(6), "{wrong:?}");
    // A rotation of the one leaves the other alone.
    key(&["rotate", HOST, "--export", "a"], &keys);
    assert_eq!((at(0, &keys).code, at(0, &own).code, at(1, &keys).code), (Some(0), Some(0), Some(0)));
    key(&["retire", HOST, "--export", "a"], &keys);
    assert_eq!((at(0, &keys).code, at(0, &own).code, at(1, &keys).code), (Some(0), Some(6), Some(0)));
    let shown = key(&["show"], &keys).events();
    let of: Vec<_> = shown.iter().filter(|event| event["event"] == "key").collect();
    assert_eq!(of.iter().map(|key| &key["export"]).collect::<Vec<_>>(), ["", "a"]);
    assert_eq!(of.iter().map(|key| &key["generation"]).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(key(&["show", "--export", "a"], &keys).events().len(), 2);
    // A directory that belongs to no export is of no use, and the next target says so.
    key(&["make", HOST, "--export", "c"], &keys);
    target.stop();
    let lines = std::fs::read_to_string(&log).expect("a log");
    let refused: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let why = |export: &str| {
        let of = |line: &&serde_json::Value| {
            line["event"] == "refused" && line["subsystem"].as_str().is_some_and(|nqn| nqn.ends_with(export))
        };
        refused.iter().filter(of).map(|line| line["why"].as_str().expect("a reason")).collect::<Vec<_>>()
    };
    assert!(why(":a").contains(&"retired_secret"), "{refused:?}");
    assert!(why(":b").contains(&"no_key") && why(":b").contains(&"wrong_secret"), "{refused:?}");
    let log_of_target = std::fs::read_to_string(&said).expect("UTF-8");
    assert!(
        log_of_target.contains("the secret is another one") && log_of_target.contains(HOST),
        "{log_of_target}"
    );
    let output = std::fs::File::create(&said).expect("a file");
    Target::spawn_saying(common::command(&[&args[..], &exports].concat()), output).stop();
    let warned = std::fs::read_to_string(&said).expect("UTF-8");
    assert!(warned.contains("'c' alone"), "{warned}");
    // Names that lead elsewhere.
    let refused = longhaul(&["key", "make", HOST, "--keys", text(&keys), "--export", "../x"]);
    assert!(refused.code != Some(0) && refused.stderr.contains("not the name of an export"), "{refused:?}");
}
