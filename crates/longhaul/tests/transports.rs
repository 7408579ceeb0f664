//! A target that listens on a Unix socket, as a user has it.

mod common;

use common::{Target, command, longhaul, text};
use serde_json::Value;

fn serve(listen: &[&str]) -> Target {
    let listen = listen.iter().flat_map(|listen| ["--listen", listen]);
    let export = ["--export", "scratch=mem:64MiB", "--json"];
    let args: Vec<_> = ["target"].into_iter().chain(listen).chain(export).collect();
    Target::spawn(command(&args))
}

/// The last line of a verb with `--json`, which has to succeed.
fn last(args: &[&str]) -> Value {
    let ran = longhaul(&[args, &["--json"]].concat());
    assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
    ran.events().pop().expect("a summary")
}

#[test]
fn a_socket_alone_is_found_measured_and_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a socket");
    let listen = format!("unix:{}", text(&path));
    let target = serve(&[&listen]);
    let ready = target.ready.clone();
    assert_eq!(ready["listen"], serde_json::json!([listen]));
    assert!(ready["discovery"].is_null(), "{ready}");
    let uri = ready["exports"][0]["uri"].as_str().expect("a URI").to_owned();
    assert!(
        uri.starts_with("nvme+unix:///nqn.") && uri.contains(&format!("?socket={}", text(&path))),
        "{uri}"
    );
    let short = format!("nvme+unix:///scratch?socket={}", text(&path));

    let log = longhaul(&["discover", &listen, "--json"]);
    let found = log.events();
    let of = |kind: &str| found.iter().find(|event| event["subtype"] == kind).expect(kind).clone();
    assert_eq!(of("nvme subsystem")["trtype"], "loop");
    let named = of("nvme subsystem")["uri"].as_str().expect("a URI").to_owned();
    assert!(uri.starts_with(&named), "{named} is not the beginning of {uri}");
    assert_eq!(longhaul(&["discover", &short]).code, Some(0));

    assert_eq!(last(&["info", &short])["namespace"]["size"], 64 << 20);
    let args = ["bench", &short, "--rw", "randwrite", "--bs", "64k", "--size", "16MiB", "--verify", "crc32c"];
    let verified = longhaul(&args);
    assert_eq!(verified.code, Some(0), "{verified:?}");
    // The second one finds the address taken, and leaves the first one alone.
    let second = longhaul(&["target", "--listen", &listen, "--export", "x=mem:1MiB"]);
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.stderr.contains("cannot listen on") && second.stderr.contains("a socket"), "{second:?}");
    last(&["info", &uri]);
    target.stop();
    assert!(!path.exists());
    let gone = longhaul(&["info", &short, "--connect-timeout", "2s"]);
    assert_eq!(gone.code, Some(5), "{gone:?}");
    assert!(gone.stderr.contains("cannot reach unix:"), "{gone:?}");
}

#[test]
fn a_socket_beside_a_port_and_one_that_a_killed_target_left() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("socket");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
    assert!(path.exists(), "nothing listens on it any more");
    let listen = format!("unix:{}", text(&path));
    let target = serve(&["127.0.0.1:0", &listen]);
    let addresses = target.ready["listen"].as_array().expect("a list");
    assert_eq!(addresses.len(), 2);
    assert_eq!(addresses[1], listen.as_str());
    for uri in [target.uri(0), format!("nvme+unix:///scratch?socket={}", text(&path))] {
        assert_eq!(last(&["info", &uri])["namespace"]["size"], 64 << 20);
    }
    target.stop();
}

#[test]
fn what_makes_no_sense_is_refused() {
    let target = |listen: &str| longhaul(&["target", "--listen", listen, "--export", "x=mem:1MiB"]);
    let relative = target("unix:x");
    assert_eq!(relative.code, Some(2), "{relative:?}");
    assert!(relative.stderr.contains("'x' is not an absolute path"), "{relative:?}");
    let missing = target("unix:/nonexistent/x");
    assert_eq!(missing.code, Some(1), "{missing:?}");
    assert!(missing.stderr.contains("cannot listen on /nonexistent/x"), "{missing:?}");
    assert!(missing.stderr.contains("its directory is not there"), "{missing:?}");
    let unknown = longhaul(&["info", "nvme+rdma://x/y"]);
    assert!(unknown.stderr.contains("no transport 'rdma'"), "{unknown:?}");
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
}
