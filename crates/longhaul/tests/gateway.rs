//! Targets that export devices of other targets.

mod common;

use common::{Target, command, finish, kill_and_wait, text};
use longhaul_block::Blocking;
use std::path::PathBuf;
use tempfile::TempDir;

struct Testbed(TempDir);

impl Testbed {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A target on the address `listen`, which may have port 0.
    fn target(&self, export: &str, listen: &str) -> Target {
        let args = ["target", "--listen", listen, "--discovery", "none", "--json", "--export", export];
        let mut command = command(&args);
        command.env("XDG_STATE_HOME", self.path("state")).env("XDG_RUNTIME_DIR", self.0.path());
        Target::spawn(command)
    }
}

/// A stripe has members on two other targets, which report a volatile write cache. One of them
/// is killed, as by a power cut, and restarted between a write and the flush after it.
#[test]
fn a_flush_of_an_exported_stripe_fails_once_after_a_member_lost_its_cache() {
    let testbed = Testbed(tempfile::tempdir().expect("a directory"));
    let export = |name: &str| format!("{name}=file:{},size=32MiB", text(&testbed.path(name)));
    let far = ["a", "b"].map(|name| testbed.target(&export(name), "127.0.0.1:0"));
    let uris = [far[0].uri(0), far[1].uri(0)];
    let mut create =
        command(&["array", "create", "x", "--layout", "stripe", "--device", &uris[0], "--device", &uris[1]]);
    create.env("XDG_STATE_HOME", testbed.path("state")).env("XDG_RUNTIME_DIR", testbed.0.path());
    let made = finish(create.spawn().expect("started"));
    assert_eq!(made.code, Some(0), "{}", made.stderr);

    let gateway = testbed.target("v=array:x", "127.0.0.1:0");
    let hosts = [(); 2].map(|()| {
        let device = longhaul_initiator::open(&gateway.uri(0)).expect("connected");
        Blocking::open(device).expect("opened")
    });
    let [one, two] = &hosts;
    // Whole stripes, so that both members are written.
    one.write_at(&vec![1; 4 << 20], 0).expect("written");
    one.flush().expect("nothing has happened");

    one.write_at(&vec![2; 4 << 20], 0).expect("written");
    let [killed, kept] = far;
    let addr = killed.addr();
    kill_and_wait(&killed.child.id().to_string());
    drop(killed);
    let back = testbed.target(&export("a"), &addr);
    one.flush().expect_err("a member may have lost acknowledged writes");
    one.flush().expect("the lost cache was reported once");
    one.write_at(&vec![3; 4 << 20], 0).expect("written again");
    one.flush().expect("durable");
    two.flush().expect("it has written nothing");
    drop(hosts);
    gateway.stop();
    drop((back, kept));
}

/// A re-exported namespace has the content, flush and identity of the far one. A cache lost there
/// is an error of the next flush here.
#[test]
fn a_remote_namespace_is_passed_on() {
    let testbed = Testbed(tempfile::tempdir().expect("a directory"));
    let export = format!("far=file:{},size=16MiB", text(&testbed.path("far")));
    let far = testbed.target(&export, "127.0.0.1:0");
    let gateway = testbed.target(&format!("near={}", far.uri(0)), "127.0.0.1:0");
    assert_eq!(gateway.ready["exports"][0]["uuid"], far.ready["exports"][0]["uuid"]);
    let open = |target: &Target| {
        Blocking::open(longhaul_initiator::open(&target.uri(0)).expect("connected")).expect("opened")
    };
    let (near, direct) = (open(&gateway), open(&far));
    near.write_at(&vec![7; 1 << 20], 4096).expect("written");
    near.flush().expect("durable");
    let mut read = vec![0; 1 << 20];
    direct.read_at(&mut read, 4096).expect("read");
    assert!(read.iter().all(|byte| *byte == 7), "the written data is there");
    direct.write_at(&vec![8; 4096], 0).expect("written");
    near.read_at(&mut read[..4096], 0).expect("read");
    assert!(read[..4096].iter().all(|byte| *byte == 8), "nothing is kept on the way");

    near.write_at(&vec![9; 4096], 0).expect("written");
    let addr = far.addr();
    kill_and_wait(&far.child.id().to_string());
    drop((far, direct));
    let back = testbed.target(&export, &addr);
    near.flush().expect_err("the far target may have lost acknowledged writes");
    near.flush().expect("the lost cache was reported once");
    drop(near);
    gateway.stop();
    drop(back);
    let refused = finish(command(&["target", "--export", "x=nvme+tcp://h/n,ro"]).spawn().expect("started"));
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
}
