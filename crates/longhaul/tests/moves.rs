//! Members of volumes that move between targets which run as programs, while a load writes.

mod common;

use common::site::{ADMIN, Site as Targets};
use common::{PATIENCE, Running, command, signal, until};
use serde_json::{Value, json};
use std::ops::{Deref, DerefMut};

const NODE: &str = "nqn.2014-08.org.example:node";

/// A load that runs until it is stopped.
struct Load(Running);

impl Load {
    /// Stops it. It has seen no error, and read nothing but what it had written: else its status is 1.
    fn stop(mut self) {
        signal(&self.0, "INT");
        assert_eq!(self.0.end(PATIENCE), Some(Some(3)));
    }
}

/// Targets of the pool `p`, with the volume `p/v`.
struct Site(Targets);

impl Deref for Site {
    type Target = Targets;
    fn deref(&self) -> &Targets {
        &self.0
    }
}

impl DerefMut for Site {
    fn deref_mut(&mut self) -> &mut Targets {
        &mut self.0
    }
}

impl Site {
    fn new(count: usize) -> Site {
        let targets = Targets::new(count);
        targets.create();
        Site(targets)
    }

    /// The program with the state of the host that manages the pool.
    fn start(&self, args: &[&str]) -> Running {
        let mut command = command(&[&["--json"], args, &["--hostnqn", ADMIN]].concat());
        command.env("XDG_STATE_HOME", self.path("host")).env("XDG_RUNTIME_DIR", self.path("host"));
        Running(command.spawn().expect("started"))
    }

    /// Makes the volume `p/v` of three members, filled with what a later read verifies.
    fn volume(&self) {
        self.done(&["volume", "create", "p/v", "--size", "64MiB", "--layout", "parity", "--width", "3"]);
        self.bench("write");
    }

    /// Writes the volume, or verifies it.
    fn bench(&self, rw: &str) {
        let args = ["bench", "volume:p/v", "--rw", rw, "--bs", "64k", "--size", "32m", "--verify", "crc32c"];
        let ran = self.run(&args);
        assert_eq!(ran.code, Some(0), "{rw}: {ran:?}");
    }

    /// A load that writes to the volume until it is stopped, and runs its array.
    fn load(&self) -> Load {
        let load = self.start(&[
            "bench",
            "volume:p/v",
            "--rw",
            "randwrite",
            "--bs",
            "64k",
            "--size",
            "32m",
            "--verify",
            "crc32c",
            "--iodepth",
            "4",
            "--runtime",
            "10m",
        ]);
        until("the load to run", || self.health() == json!("healthy"));
        Load(load)
    }

    fn health(&self) -> Value {
        self.last(&["volume", "info", "p/v"])["health"].clone()
    }

    /// The numbers of the targets that have members of the volume.
    fn places(&self) -> Vec<usize> {
        let info = self.last(&["volume", "info", "p/v"]);
        let uris = info["members"].as_array().expect("a list");
        let at = |uri: &Value| {
            let uri = uri["uri"].as_str().expect("there").to_owned();
            (0..self.targets.len()).find(|n| {
                self.targets[*n].as_ref().is_some_and(|target| uri.contains(&format!("//{}/", target.addr())))
            })
        };
        uris.iter().filter_map(at).collect()
    }

    /// Files of namespaces at a target.
    fn files_at(&self, number: usize) -> usize {
        std::fs::read_dir(self.path(&format!("space{number}"))).expect("readable").count() - 1
    }

    /// There are the namespaces of the volume and no others.
    fn check(&self, members: usize) {
        assert_eq!(self.files(), 2 * members, "files of namespaces");
        let status = self.last(&["pool", "status", "p"]);
        assert_eq!(status["pending"], json!([]), "{status}");
    }
}

/// Both cases of a test at the same time: they wait more than they compute.
fn side_by_side(case: impl Fn(bool) + Sync) {
    std::thread::scope(|scope| {
        scope.spawn(|| case(false));
        case(true);
    });
}

#[test]
fn a_target_is_emptied_under_a_load_that_is_verified() {
    let site = Site::new(5);
    site.volume();
    let (from, target) = (site.places()[0], site.addr(site.places()[0]));
    let planned = site.done(&["pool", "remove-target", "p", &target, "-n"]);
    assert_eq!((&planned[0]["event"], &planned[0]["volume"]), (&json!("move"), &json!("p/v")));
    assert_eq!((&planned[1]["moved"], &planned[1]["dry_run"]), (&json!(0), &json!(true)));
    let load = site.load();
    let events = site.done(&["pool", "remove-target", "p", &target, "--limit", "12MiB"]);
    let progress: Vec<&Value> = events.iter().filter(|event| event["event"] == "progress").collect();
    assert!(progress.len() > 1, "{events:?}");
    let last = progress.last().expect("some");
    assert!(last["done_bytes"].as_u64() > progress[0]["done_bytes"].as_u64(), "{progress:?}");
    assert!(last["remaining_seconds"].is_number() && last["volume"] == "p/v", "{last}");
    assert_eq!(events.last().expect("a summary")["targets"].as_array().map(Vec::len), Some(1));
    // The load goes on, and no member was missing.
    assert_eq!(site.health(), json!("healthy"));
    assert_eq!(site.files_at(from), 0);
    load.stop();
    site.bench("read");
    site.check(3);
    let status = site.last(&["pool", "status", "p"]);
    assert_eq!(status["targets"], 4);
    // It takes part again, and gets its share of what is there.
    site.done(&["pool", "add-target", "p", &target]);
    for n in 0..3 {
        let name = format!("p/w{n}");
        site.done(&["volume", "create", &name, "--size", "32MiB", "--layout", "mirror"]);
    }
    assert_eq!(site.last(&["pool", "rebalance", "p"])["failed"], json!([]));
    assert_eq!(site.last(&["pool", "rebalance", "p"])["moved"], 0, "they are even");
    site.bench("read");
    site.check(9);
    for name in ["p/v", "p/w0", "p/w1", "p/w2"] {
        site.done(&["volume", "rm", name]);
    }
    site.check(0);
}

/// The command is killed; the process that runs the array goes on, and a later command ends the move.
#[test]
fn a_move_that_is_interrupted_is_continued() {
    side_by_side(|by_load| {
        let site = Site::new(4);
        site.volume();
        let target = site.addr(site.places()[1]);
        let load = by_load.then(|| site.load());
        let mover = site.start(&["pool", "remove-target", "p", &target, "--limit", "6MiB"]);
        until("the new namespace to be there", || (0..4).all(|n| site.files_at(n) == 2));
        until("the array to move its member", || {
            site.last(&["pool", "status", "p"])["pending"][0]["doing"] == "move"
        });
        drop(mover);
        // Its lease runs out; then the command does the rest.
        until("the lease to run out", || {
            let ran = site.run(&["pool", "remove-target", "p", &target]);
            assert!(matches!(ran.code, Some(0 | 3 | 6)), "{ran:?}");
            ran.code == Some(0)
        });
        if let Some(load) = load {
            load.stop();
        }
        site.bench("read");
        site.check(3);
        assert_eq!(site.last(&["pool", "status", "p"])["targets"], 3);
    });
}

/// The target that a member moves to, or that it comes from, is killed in the midst.
#[test]
fn a_target_that_is_killed_in_the_midst_costs_no_data() {
    side_by_side(|kill_old| {
        let mut site = Site::new(5);
        site.volume();
        let places = site.places();
        let target = site.addr(places[2]);
        let load = site.load();
        let mover = site.start(&["pool", "remove-target", "p", &target, "--limit", "4MiB"]);
        let new = || (0..5).find(|n| !places.contains(n) && site.files_at(*n) == 2);
        until("the new namespace to be there", || new().is_some());
        until("the array to move its member", || {
            site.last(&["pool", "status", "p"])["pending"][0]["doing"] == "move"
        });
        let victim = if kill_old { places[2] } else { new().expect("there") };
        let at = site.kill(victim);
        let mut mover = mover;
        let code = mover.end(PATIENCE).expect("it ends");
        if kill_old {
            // It is rebuilt from the others; what is left at the target is forgotten.
            assert_eq!(code, Some(6), "namespaces wait there");
            assert_eq!(site.health(), json!("healthy"));
            site.done(&["pool", "remove-target", "p", &target, "--force"]);
        } else {
            assert_eq!(code, Some(3), "it has not moved");
            assert_eq!(site.health(), json!("healthy"));
            site.restart(victim, &at);
            until("the target to be removed", || {
                site.run(&["pool", "remove-target", "p", &target]).code == Some(0)
            });
        }
        load.stop();
        site.bench("read");
        assert!(!site.places().contains(&places[2]));
        if !kill_old {
            site.check(3);
        }
    });
}

/// A member that is lost for good, of a volume without spares, is made again elsewhere.
#[test]
fn a_volume_without_spares_is_repaired() {
    let mut site = Site::new(5);
    site.volume();
    assert_eq!(site.last(&["volume", "repair", "p/v"])["moved"], 0);
    let places = site.places();
    let at = site.kill(places[0]);
    let planned = site.done(&["volume", "repair", "p/v", "--dry-run"]);
    assert_eq!((&planned[0]["member"], &planned[0]["volume"]), (&json!(0), &json!("p/v")));
    let ran = site.run(&["volume", "repair", "p/v"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    let summary = ran.events().pop().expect("a summary");
    assert_eq!(
        (&summary["moved"], summary["waiting"].as_array().map(Vec::len)),
        (&json!(1), Some(1)),
        "{summary}"
    );
    // Another member can be lost now.
    site.kill(places[1]);
    site.bench("read");
    let status = site.run(&["pool", "status", "p"]);
    assert_eq!(status.code, Some(3), "{status:?}");
    // The first one comes back: what is there is removed.
    site.restart(places[0], &at);
    site.run(&["pool", "recover", "p"]);
    assert_eq!(site.files_at(places[0]), 0);
}

/// The host that moves a member is not one of those that use the volume: the array has its member for good.
#[test]
fn a_volume_of_other_hosts_is_whole_after_a_move() {
    let site = Site::new(4);
    let shape = ["--size", "16MiB", "--layout", "parity", "--width", "3", "--for", NODE];
    site.done(&[&["volume", "create", "p/o"], &shape[..]].concat());
    let target = (0..4).find(|n| site.files_at(*n) == 2).expect("one has it");
    site.done(&["pool", "remove-target", "p", &site.addr(target)]);
    let args = ["target", "--json", "--discovery", "none", "--threads", "1", "--listen", "127.0.0.1:0"];
    let mut head = command(&[&args[..], &["--export", "x=volume:p/o", "--hostnqn", NODE]].concat());
    head.env("XDG_STATE_HOME", site.path("host")).env("XDG_RUNTIME_DIR", site.path("host"));
    let head = common::Target::spawn(head);
    assert_eq!(site.last(&["volume", "info", "p/o"])["health"], json!("healthy"));
    head.stop();
    assert_eq!(site.files_at(target), 0);
    site.check(3);
}

#[test]
fn moves_that_cannot_be_are_refused_with_a_sentence() {
    let site = Site::new(3);
    site.volume();
    site.done(&["volume", "create", "p/s", "--size", "4MiB", "--layout", "single", "--for", NODE]);
    let target = (0..3).find(|n| site.files_at(*n) == 4).expect("one has it");
    let ran = site.run(&["pool", "remove-target", "p", &site.addr(target)]);
    assert_eq!(ran.code, Some(6), "{ran:?}");
    for why in ["is not removed: volume p/", "volume p/s is one namespace there", "copy it to another volume"]
    {
        assert!(ran.stderr.contains(why), "{ran:?}");
    }
    assert!(ran.stderr.contains("in a failure domain each, and 0 can be placed"), "{ran:?}");
    let ran = site.run(&["volume", "repair", "p/s"]);
    assert!(ran.code == Some(6) && ran.stderr.contains("without an array that could copy it"), "{ran:?}");
    let ran = site.run(&["pool", "rebalance", "p", "--exit-code"]);
    assert_eq!(ran.code, Some(8), "{ran:?}");
    site.check(4);
}
