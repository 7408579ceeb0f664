//! Trees to copy, an agent to copy to, and the results of copies.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

pub mod peer;

use longhaul_engine::Config;
use longhaul_transfer::wire::{Options, Placement};
use longhaul_transfer::{
    Agent, AgentConfig, Concurrency, CopyError, CopySpec, Endpoint, Monitor, PATIENCE, Settings, Summary,
    copy,
};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes that differ from file to file and do not compress.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// A tree with what trees have: small, large and empty files, odd names, links,
/// a sparse file, an empty directory, old times and narrow modes.
pub fn make_tree(dir: &Path) {
    let write =
        |name: &[u8], data: &[u8]| fs::write(dir.join(OsStr::from_bytes(name)), data).expect("written");
    fs::create_dir_all(dir.join("a/b/c")).expect("made");
    fs::create_dir(dir.join("empty")).expect("made");
    for i in 0..200 {
        write(format!("a/f{i}").as_bytes(), &noise(i, (i * 97) as usize));
    }
    write(b"a/b/large", &noise(1000, 5_000_001));
    write(b"a/b/c/exact", &noise(1001, 2 << 20));
    write(b"a/edge", &noise(1002, 256 << 10));
    write(b"a/above", &noise(1003, (256 << 10) + 1));
    write(b"zero", b"");
    write(b"new\nline", b"odd");
    write(b"\xff\xfe not UTF-8", b"odd too");
    write(&[b'n'; 255], b"as long as a name can be");
    symlink("../zero", dir.join("a/link")).expect("linked");
    symlink("/nowhere/at all", dir.join("dangling")).expect("linked");
    fs::hard_link(dir.join("zero"), dir.join("a/hard")).expect("linked");
    let sparse = fs::File::create(dir.join("sparse")).expect("made");
    sparse.set_len(20 << 20).expect("sized");
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"island", 10 << 20).expect("written");
    fs::set_permissions(dir.join("a/b/large"), std::os::unix::fs::PermissionsExt::from_mode(0o440))
        .expect("set");
    fs::set_permissions(dir.join("a/b"), std::os::unix::fs::PermissionsExt::from_mode(0o750)).expect("set");
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    for name in ["empty", "a/edge"] {
        fs::File::open(dir.join(name)).expect("open").set_modified(old).expect("set");
    }
}

/// The properties of an object that are compared: mode, time, and content or target.
#[derive(Debug, PartialEq, Eq)]
pub struct Lookup {
    mode: u32,
    mtime: (i64, i64),
    content: Vec<u8>,
}

/// All of a tree. The time of its root is not part of it where `root` is false.
pub fn look(dir: &Path) -> BTreeMap<PathBuf, Lookup> {
    let mut seen = BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(path) = open.pop() {
        let meta = fs::symlink_metadata(&path).expect("there");
        let content = if meta.is_symlink() {
            fs::read_link(&path).expect("a target").as_os_str().as_bytes().to_vec()
        } else if meta.is_dir() {
            open.extend(fs::read_dir(&path).expect("read").map(|entry| entry.expect("an entry").path()));
            Vec::new()
        } else {
            fs::read(&path).expect("read")
        };
        let mode = if meta.is_symlink() { 0 } else { meta.mode() };
        let name = path.strip_prefix(dir).expect("below").to_owned();
        seen.insert(name, Lookup { mode, mtime: (meta.mtime(), meta.mtime_nsec()), content });
    }
    seen
}

/// Fails with the names of what differs.
pub fn assert_same(one: &Path, other: &Path) {
    let (one, other) = (look(one), look(other));
    let differs: Vec<_> =
        one.keys().chain(other.keys()).filter(|name| one.get(*name) != other.get(*name)).collect();
    assert!(differs.is_empty(), "{differs:?} differ");
}

pub fn agent(root: &Path) -> Agent {
    agent_with(root, |_| {})
}

pub fn agent_with(root: &Path, change: impl FnOnce(&mut AgentConfig)) -> Agent {
    let mut config = AgentConfig {
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        root: Some(root.to_owned()),
        key: None,
        read_only: false,
        allow_owner: false,
        onward: false,
        readers: Concurrency::Fixed(3),
        writers: Concurrency::Fixed(3),
        memory: 64 << 20,
        patience: PATIENCE,
        congestion: None,
        engine: Config::default(),
    };
    change(&mut config);
    Agent::start(config).expect("started")
}

pub fn at(agent: &Agent, path: &str) -> Endpoint {
    endpoint(&format!("lh://{}/{path}", agent.address()))
}

pub fn endpoint(text: &str) -> Endpoint {
    Endpoint::parse(OsStr::new(text)).expect("an endpoint")
}

pub fn local(path: &Path) -> Endpoint {
    Endpoint::Local(path.as_os_str().as_bytes().to_vec())
}

pub fn spec(from: Endpoint, to: Endpoint) -> CopySpec {
    CopySpec {
        sources: vec![from],
        destination: to,
        place: Placement::Guess,
        recursive: true,
        filters: Vec::new(),
        files: Vec::new(),
        rate: 0,
        manifest: Vec::new(),
        options: Options::default(),
    }
}

pub fn sync(from: Endpoint, to: Endpoint, options: Options) -> CopySpec {
    CopySpec { place: Placement::Contents, options, ..spec(from, to) }
}

pub fn run(spec: &CopySpec) -> Result<Summary, CopyError> {
    run_watched(spec).0
}

/// Runs a copy; returns its result, and the files that could not be copied.
pub fn run_watched(spec: &CopySpec) -> (Result<Summary, CopyError>, Vec<(String, &'static str)>) {
    let monitor = Arc::new(Monitor::new());
    let result = copy(spec, &Settings { streams: Concurrency::Fixed(3), ..Settings::default() }, &monitor);
    let mut troubles: Vec<_> =
        monitor.take_troubles().into_iter().map(|t| (t.path.to_string(), t.op.name())).collect();
    troubles.sort();
    (result, troubles)
}
