//! File systems on namespaces of targets that know nothing of pools: each is a target of the pool as a whole.

use crate::Shared;
use crate::common::site::{ADMIN, Site};
use crate::common::{LISTEN, Target, command, kill_and_wait, text};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

/// Targets with one export of a file each, and a host that uses them as a pool.
struct Namespaces {
    shared: Shared,
    targets: Vec<Target>,
}

impl Namespaces {
    fn new(count: usize) -> Namespaces {
        let mut all = Namespaces { shared: Shared { site: Site::new(0) }, targets: Vec::new() };
        for number in 0..count {
            all.targets.push(all.serve(number, LISTEN));
        }
        all
    }

    fn file(&self, number: usize) -> PathBuf {
        self.shared.site.path(&format!("disk{number}"))
    }

    fn serve(&self, number: usize, listen: &str) -> Target {
        let file = self.file(number);
        if !file.exists() {
            fs::File::create(&file).and_then(|file| file.set_len(96 << 20)).expect("a file");
        }
        let export = format!("disk{number}=file:{}", text(&file));
        let args = ["target", "--json", "--insecure", "--discovery", "none", "--threads", "1"];
        let mut command = command(&[&args[..], &["--listen", listen, "--export", &export]].concat());
        command.env("XDG_STATE_HOME", self.shared.site.path(&format!("state{number}")));
        Target::spawn(command)
    }

    /// As `pool create` takes it.
    fn spec(&self, number: usize) -> String {
        let uri = self.targets[number].uri(0);
        let (uri, _) = uri.split_once('?').unwrap_or((&uri, ""));
        format!("{uri}?nsid=1,domain=rack{number}")
    }

    fn specs(&self) -> Vec<String> {
        (0..self.targets.len()).map(|number| self.spec(number)).collect()
    }

    fn create(&self) -> Value {
        let specs = self.specs();
        let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
        self.shared.site.last(&[&["pool", "create", "p", "--target"], &specs[..]].concat())
    }

    fn kill(&self, number: usize) {
        kill_and_wait(&self.targets[number].child.id().to_string());
    }
}

fn status(site: &Site) -> Value {
    site.run(&["fs", "status", "p/f"]).events().remove(0)
}

fn content(seed: u32) -> Vec<u8> {
    (0..3 << 20).map(|at: u32| (at.wrapping_mul(seed) >> 7) as u8).collect()
}

#[test]
fn namespaces_of_other_targets_are_in_a_pool_as_a_whole() {
    let all = Namespaces::new(3);
    let (shared, site) = (&all.shared, &all.shared.site);
    let made = all.create();
    assert_eq!((&made["targets"], &made["capacity"]), (&json!(3), &json!(3 * (95 << 20))));
    // Only file systems have members there.
    let refused = site.refused(1, &["volume", "create", "p/v", "--size", "8MiB", "--layout", "parity"]);
    assert!(refused.contains("members of file systems and of no volume"), "{refused}");
    site.last(&["fs", "create", "p/f", "--size", "64MiB", "--layout", "parity"]);
    assert_eq!(status(site)["health"], "healthy");
    // Each has one.
    let full = site.refused(1, &["fs", "create", "p/g", "--size", "1MiB", "--layout", "parity"]);
    assert!(full.contains("0 B"), "{full}");

    let (one, two) = (site.path("one"), site.path("two"));
    fs::write(&one, content(3)).expect("written");
    let copied = shared.run(&["cp", text(&one), "fs:p/f/one", "--hostnqn", ADMIN]);
    assert_eq!(copied.code, Some(0), "{}", copied.stderr);
    let grown = site.last(&["fs", "resize", "p/f", "--size", "96MiB"]);
    assert_eq!(grown["size"], 96 << 20);
    let beyond = site.refused(1, &["fs", "resize", "p/f", "--size", "1GiB"]);
    assert!(beyond.contains("are free"), "{beyond}");
    site.last(&["volume", "open", "p/f", "--for", "nqn.2014-08.org.example:other"]);

    // What is in front of the members is enough to make the records of the pool again.
    site.last(&["pool", "export", "p"]);
    let specs = all.specs();
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    let bare: Vec<&str> = specs.iter().filter_map(|spec| Some(spec.split_once(',')?.0)).collect();
    let imported = site.last(&[&["pool", "import"], &bare[..]].concat());
    assert_eq!(imported["pool"].as_str().or(imported["name"].as_str()), Some("p"), "{imported}");
    let info = site.last(&["volume", "info", "p/f"]);
    assert_eq!(info["hosts"], json!([ADMIN, "nqn.2014-08.org.example:other"]), "{info}");
    site.last(&["fs", "rm", "p/f"]);

    // A namespace that was given back can be had again, by another pool too.
    site.last(&["fs", "create", "p/f", "--size", "32MiB", "--layout", "mirror", "--width", "2"]);
    let copied = shared.run(&["cp", text(&one), "fs:p/f/one", "--hostnqn", ADMIN]);
    assert_eq!(copied.code, Some(0), "{}", copied.stderr);
    let copied = shared.run(&["cp", "fs:p/f/one", text(&two), "--hostnqn", ADMIN]);
    assert_eq!(copied.code, Some(0), "{}", copied.stderr);
    assert!(fs::read(&two).expect("read") == content(3));
    let taken = site.refused(6, &[&["pool", "create", "q", "--target"], &specs[..]].concat());
    assert!(taken.contains("pool p"), "{taken}");
    site.last(&["fs", "rm", "p/f"]);
    site.last(&["pool", "destroy", "p"]);
    site.last(&[&["pool", "create", "q", "--target"], &specs[..]].concat());
    site.last(&["pool", "destroy", "q"]);
}

#[test]
fn what_is_no_empty_namespace_is_refused() {
    let all = Namespaces::new(1);
    let site = &all.shared.site;
    let spec = all.spec(0);
    for (spec, why) in [
        (spec.replace("nsid=1", "nsid=7"), "namespace"),
        (spec.replace("nsid=1", "nsid=x"), "has no number of a namespace"),
        (spec.replace("nqn.", "n."), "the form is HOST[:PORT]/NQN?nsid=N"),
    ] {
        let ran = site.run(&["pool", "create", "p", "--target", &spec]);
        assert!(ran.code != Some(0) && ran.stderr.contains(why), "{spec}: {ran:?}");
    }
    let disk = fs::OpenOptions::new().write(true).open(all.file(0)).expect("opened");
    std::os::unix::fs::FileExt::write_all_at(&disk, b"XFSB", 0).expect("written");
    let refused = site.refused(6, &["pool", "create", "p", "--target", &spec]);
    assert!(refused.contains("it has an XFS file system (at byte 0)"), "{refused}");
}

/// They have the reservations of their target: so a lost host is fenced, and a lost member is made again.
#[test]
fn a_file_system_on_namespaces_survives_the_loss_of_a_host_and_of_a_target() {
    if !longhaul_skip::can_open(&["/dev/fuse"]) {
        return;
    }
    let all = Namespaces::new(4);
    let (shared, site) = (&all.shared, &all.shared.site);
    all.create();
    site.last(&["fs", "create", "p/f", "--size", "48MiB", "--layout", "parity", "--width", "3"]);
    let first = shared.mount("here");
    let (here, there) = (shared.at("here"), shared.at("there"));
    fs::write(here.join("before"), content(5)).expect("written");
    let file = fs::File::open(here.join("before")).expect("opened");
    file.sync_all().expect("synced");
    assert_eq!(status(site)["not_fenced"], Value::Null);
    kill_and_wait(&first["pid"].to_string());
    drop(file);
    shared.run(&["umount", "--lazy", text(&here)]);
    shared.mount("there");
    assert!(fs::read(there.join("before")).expect("read") == content(5));
    // A label is written while the members are reserved for their sessions.
    site.last(&["volume", "open", "p/f", "--for", "nqn.2014-08.org.example:other"]);

    let before = shared.members();
    let lost = (0..4).find(|n| before[1].contains(&all.targets[*n].addr())).expect("the target of member 1");
    all.kill(lost);
    fs::write(there.join("meanwhile"), content(7)).expect("written");
    let repaired = site.run(&["volume", "repair", "p/f"]);
    assert!(matches!(repaired.code, Some(0 | 3)), "{repaired:?}");
    assert_ne!(shared.members()[1], before[1]);
    assert_eq!(status(site)["health"], "healthy");
    let second =
        (0..4).find(|n| *n != lost && before[0].contains(&all.targets[*n].addr())).expect("member 0");
    all.kill(second);
    for (name, seed) in [("before", 5), ("meanwhile", 7)] {
        assert!(fs::read(there.join(name)).expect("read") == content(seed), "{name}");
    }
    shared.umount("there");
    assert_eq!(site.last(&["fs", "check", "p/f"])["problems"], 0);
}
