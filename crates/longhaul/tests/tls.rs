//! `--tls` of targets and hosts, in a program with it (feature `tls`) and in one without.

mod common;

use common::{Target, command, longhaul, text};
use std::path::Path;

const HOST: &str = "nqn.2014-08.org.example:host";

fn make_key(dir: &Path) {
    let made = longhaul(&["key", "make", HOST, "--keys", text(dir), "--tls"]);
    assert_eq!(made.code, Some(0), "{made:?}");
}

/// What a target on all addresses says to people.
fn said_of_all_addresses(more: &[&str]) -> String {
    let said = tempfile::NamedTempFile::new().expect("a file");
    let args = ["target", "--listen", "0.0.0.0:0", "--discovery", "none", "--json", "--export", "a=mem:1MiB"];
    let target = Target::spawn_saying(command(&[&args, more].concat()), said.reopen().expect("opened"));
    // A target warns after it is ready, and before it reads a signal.
    target.stop();
    std::fs::read_to_string(said.path()).expect("UTF-8")
}

#[test]
fn a_target_without_tls_says_that_nothing_is_encrypted() {
    let said = said_of_all_addresses(&["--insecure"]);
    assert!(said.contains("0.0.0.0") && said.contains("nothing is encrypted"), "{said}");
}

/// Keys are made by every program; what would use them says what is missing, before anything is done.
#[cfg(not(feature = "tls"))]
#[test]
fn a_program_without_tls_says_how_to_build_one_with_it() {
    let dir = tempfile::tempdir().expect("a directory");
    make_key(dir.path());
    let keys = text(dir.path());
    let file = dir.path().join("disk");
    let export = format!("a=file:{},size=16MiB", text(&file));
    for args in [
        &["target", "--export", &export, "--keys", keys, "--tls", "required"][..],
        &["target", "--export", &export, "--keys", keys, "--tls", "allowed"],
        &["target", "--export", &export, "--keys", keys, "--tls", "concatenated"],
        &["info", "nvme+tcp://127.0.0.1:1/a", "--keys", keys, "--concat"],
        &["info", "nvme+tcp://127.0.0.1:1/a?concat=true", "--keys", keys],
        &["info", "nvme+tcp://127.0.0.1:1/a", "--keys", keys, "--tls"],
        &["info", "nvme+tcp://127.0.0.1:1/a?tls=true", "--keys", keys],
        &["bench", "nvme+tcp://127.0.0.1:1/a?tls=true", "--rw", "read", "--keys", keys],
        &["discover", "127.0.0.1:1", "--keys", keys, "--tls"],
    ] {
        let ran = longhaul(args);
        assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
        assert!(ran.stderr.contains("cargo build --release --features tls"), "{args:?}: {ran:?}");
    }
    assert!(!file.exists(), "the target has made it");
    let plain = longhaul(&["info", "nvme+tcp://127.0.0.1:1/a?tls=false", "--keys", keys]);
    assert_eq!(plain.code, Some(5), "nothing listens there: {plain:?}");
}

#[cfg(feature = "tls")]
mod with {
    use super::*;
    use common::Ran;
    use serde_json::Value;
    use std::process::Command;

    fn host(args: &[&str], keys: &Path) -> Ran {
        longhaul(&[args, &["--json", "--hostnqn", HOST, "--keys", text(keys)]].concat())
    }

    fn lines(path: &Path, event: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(path).expect("a log");
        let all = text.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
        all.filter(|line| line["event"] == event).collect()
    }

    #[test]
    fn a_target_warns_of_connections_without_tls_where_there_may_be_some() {
        let dir = tempfile::tempdir().expect("a directory");
        make_key(dir.path());
        let with = |policy| said_of_all_addresses(&["--keys", text(dir.path()), "--tls", policy]);
        let allowed = with("allowed");
        assert!(allowed.contains("0.0.0.0") && allowed.contains("--tls required"), "{allowed}");
        let required = with("required");
        assert!(!required.contains("encrypted"), "{required}");
    }

    #[test]
    fn a_target_that_requires_it_serves_hosts_that_use_it_and_records_the_others() {
        let dir = tempfile::tempdir().expect("a directory");
        let [keys, wrong, old, log] =
            ["keys", "wrong", "old", "audit.json"].map(|name| dir.path().join(name));
        make_key(&keys);
        make_key(&wrong);
        let copied = Command::new("cp").arg("-a").arg(&keys).arg(&old).status().expect("cp");
        assert!(copied.success());
        let more = ["--keys", text(&keys), "--tls", "required", "--audit", text(&log)];
        let target = Target::start(&["a=mem:64MiB"], &more);
        let (uri, addr) = (target.uri(0), target.addr());
        let with = format!("{uri}&tls=true");

        let shown = host(&["discover", &addr, "--tls"], &keys);
        assert!(shown.code == Some(0) && shown.stdout.contains(&addr), "{shown:?}");
        // A short name is looked up by discovery, which uses TLS there too.
        for uri in [&uri, &format!("nvme+tcp://{addr}/a")] {
            let info = host(&["info", uri, "--tls"], &keys);
            assert_eq!(info.code, Some(0), "{info:?}");
            assert_eq!(info.events()[0]["controller"]["tls"], true, "{info:?}");
        }
        for rw in [&["--rw", "write"][..], &["--rw", "randread", "--numjobs", "2"]] {
            let load = ["--bs", "64KiB", "--iodepth", "8", "--size", "16MiB", "--verify", "crc32c"];
            let bench = host(&[&["bench", &with][..], rw, &load].concat(), &keys);
            assert_eq!(bench.code, Some(0), "{bench:?}");
        }

        // Another key; none; no TLS.
        let refused = host(&["info", &with], &wrong);
        assert!(refused.code == Some(6) && refused.stderr.contains("another key"), "{refused:?}");
        let stranger = ["info", &with, "--hostnqn", "nqn.2014-08.org.example:x", "--keys", text(&keys)];
        let stranger = longhaul(&stranger);
        assert!(stranger.code == Some(6) && stranger.stderr.contains("key make --tls"), "{stranger:?}");
        let plain = host(&["info", &uri], &keys);
        assert!(plain.code == Some(5) && plain.stderr.contains("--tls"), "{plain:?}");

        // Keys are read at each connection, by the target too.
        let key = |verb| assert_eq!(longhaul(&["key", verb, HOST, "--keys", text(&keys)]).code, Some(0));
        key("rotate");
        assert_eq!(host(&["info", &with], &keys).code, Some(0), "the new one");
        assert_eq!(host(&["info", &with], &old).code, Some(0), "the one before");
        key("retire");
        let retired = host(&["info", &with], &old);
        assert_eq!(retired.code, Some(6), "{retired:?}");
        target.stop();

        let started = lines(&log, "started");
        assert_eq!(started[0]["tls"], "required");
        let connected = lines(&log, "connected");
        assert!(connected.iter().all(|line| line["tls"] == true && line["host"] == HOST), "{connected:?}");
        let generations: Vec<_> = connected.iter().filter_map(|line| line["generation"].as_u64()).collect();
        assert_eq!(generations.len(), connected.len());
        assert_eq!(&generations[generations.len() - 2..], [2, 1]);
        let refused = lines(&log, "refused");
        let why: Vec<_> = refused.iter().map(|line| line["why"].as_str().expect("a reason")).collect();
        for reason in ["wrong_secret", "no_tls", "retired_secret"] {
            assert!(why.contains(&reason), "{reason}: {why:?}");
        }
        let of = |reason| refused.iter().find(|line| line["why"] == reason).expect("there");
        assert_eq!(
            (&of("wrong_secret")["host"], &of("retired_secret")["generation"]),
            (&HOST.into(), &1.into())
        );
        assert!(of("wrong_secret")["subsystem"].as_str().is_some_and(|nqn| uri.contains(nqn)), "{refused:?}");
        let secret = std::fs::read_to_string(old.join("hosts").join(HOST).join("tls_key")).expect("a key");
        assert!(!std::fs::read_to_string(&log).expect("read").contains(&secret[16..40]));
    }

    #[test]
    fn a_target_that_allows_it_takes_both_and_one_without_takes_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let [keys, log] = ["keys", "audit.json"].map(|name| dir.path().join(name));
        make_key(&keys);
        let secrets = longhaul(&["key", "make", HOST, "--keys", text(&keys)]);
        assert_eq!(secrets.code, Some(0), "{secrets:?}");
        let more = ["--keys", text(&keys), "--tls", "allowed", "--audit", text(&log)];
        let target = Target::start(&["a=mem:16MiB"], &more);
        for tls in ["false", "true"] {
            let info = host(&["info", &format!("{}&tls={tls}", target.uri(0))], &keys);
            assert_eq!(info.code, Some(0), "{info:?}");
        }
        target.stop();
        let connected = lines(&log, "connected");
        let tls: Vec<_> = connected.iter().map(|line| line["tls"].as_bool().expect("known")).collect();
        assert_eq!(tls, [false, true]);
        let without = Target::start(&["a=mem:16MiB"], &[]);
        let refused = host(&["info", &without.uri(0), "--tls"], &keys);
        assert!(refused.code == Some(6) && refused.stderr.contains("no TLS"), "{refused:?}");
        let needs = longhaul(&["target", "--export", "a=mem:1MiB", "--tls", "required"]);
        assert!(needs.code == Some(2) && needs.stderr.contains("--keys"), "{needs:?}");
    }

    #[test]
    fn a_secret_is_enough_for_tls_by_concatenation() {
        let dir = tempfile::tempdir().expect("a directory");
        let [keys, wrong, log] = ["keys", "wrong", "audit.json"].map(|name| dir.path().join(name));
        for keys in [&keys, &wrong] {
            assert_eq!(longhaul(&["key", "make", HOST, "--keys", text(keys)]).code, Some(0));
        }
        let more = ["--keys", text(&keys), "--tls", "concatenated", "--audit", text(&log)];
        let target = Target::start(&["a=mem:64MiB"], &more);
        let (uri, addr) = (target.uri(0), target.addr());
        for (uri, more) in [
            (format!("{uri}&concat=true"), &[][..]),
            (uri.clone(), &["--concat"]),
            (format!("nvme+tcp://{addr}/a"), &["--concat"]),
        ] {
            let info = host(&[&["info", &uri], more].concat(), &keys);
            assert_eq!(info.code, Some(0), "{info:?}");
            assert_eq!(info.events()[0]["controller"]["tls"], true, "{info:?}");
        }
        let load =
            ["--rw", "write", "--bs", "64KiB", "--iodepth", "8", "--size", "16MiB", "--verify", "crc32c"];
        let bench = host(&[&["bench", &uri, "--concat", "--numjobs", "2"][..], &load].concat(), &keys);
        assert_eq!(bench.code, Some(0), "{bench:?}");
        // Another secret; no TLS; and a target that makes no key for TLS.
        let refused = host(&["info", &uri, "--concat"], &wrong);
        assert_eq!(refused.code, Some(6), "{refused:?}");
        let plain = host(&["info", &uri], &keys);
        assert!(plain.code == Some(6) && plain.stderr.contains("--concat"), "{plain:?}");
        target.stop();
        let without = Target::start(&["a=mem:16MiB"], &["--keys", text(&keys)]);
        let refused = host(&["info", &without.uri(0), "--concat"], &keys);
        assert!(refused.code == Some(6) && refused.stderr.contains("--tls concatenated"), "{refused:?}");
        let both = host(&["info", &uri, "--concat", "--tls"], &keys);
        assert_eq!(both.code, Some(2), "{both:?}");
        let both = host(&["info", &format!("{uri}&concat=true&tls=true")], &keys);
        assert!(both.code == Some(2) && both.stderr.contains("tls=true and concat=true"), "{both:?}");

        assert_eq!(lines(&log, "started")[0]["tls"], "concatenated");
        let connected = lines(&log, "connected");
        let is_good = |line: &Value| line["tls"] == true && line["host"] == HOST && line["generation"] == 1;
        // Discovery is without TLS.
        let (asked, used): (Vec<&Value>, Vec<&Value>) =
            connected.iter().partition(|line| line["subsystem"] == "nqn.2014-08.org.nvmexpress.discovery");
        assert!(asked.iter().all(|line| line["tls"] == false), "{asked:?}");
        assert!(used.len() >= 4 && used.iter().all(|line| is_good(line)), "{used:?}");
        let refused = lines(&log, "refused");
        let why: Vec<_> = refused.iter().map(|line| line["why"].as_str().expect("a reason")).collect();
        assert!(why.contains(&"wrong_secret"), "{why:?}");
    }

    /// Each export has a key for TLS of its own.
    #[test]
    fn a_key_for_tls_of_one_export_is_of_no_use_at_another() {
        let dir = tempfile::tempdir().expect("a directory");
        let [keys, log] = ["keys", "audit.json"].map(|name| dir.path().join(name));
        let made = longhaul(&["key", "make", HOST, "--keys", text(&keys), "--tls", "--export", "a"]);
        assert_eq!(made.code, Some(0), "{made:?}");
        let more = ["--keys", text(&keys), "--tls", "required", "--audit", text(&log)];
        let target = Target::start(&["a=mem:16MiB", "b=mem:16MiB"], &more);
        let at = |export: usize| format!("{}&tls=true", target.uri(export));
        assert_eq!(host(&["info", &at(0)], &keys).code, Some(0));
        // A host that says that the key is one for all.
        let elsewhere = dir.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).expect("made");
        let copied = Command::new("cp").arg("-a").arg(keys.join("exports/a/hosts")).arg(&elsewhere).status();
        assert!(copied.expect("cp").success());
        assert_eq!(host(&["info", &at(0)], &elsewhere).code, Some(0));
        let refused = host(&["info", &at(1)], &elsewhere);
        assert_eq!(refused.code, Some(6), "{refused:?}");
        target.stop();
        let refused = lines(&log, "refused");
        let of = refused.iter().find(|line| line["why"] == "no_key").expect("a refusal");
        assert!(of["subsystem"].as_str().is_some_and(|nqn| nqn.ends_with(":b")), "{refused:?}");
    }
}
