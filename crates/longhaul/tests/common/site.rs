//! Targets that run as programs, with a space each, and the state of the host that manages them as a pool.

use super::{PATIENCE, Ran, Target, command, finish, signal, text};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// NQN of the host that manages the pool.
pub const ADMIN: &str = "nqn.2014-08.org.example:admin";

/// Targets with a space each, and the state of the host that manages them.
pub struct Site {
    pub directory: tempfile::TempDir,
    pub targets: Vec<Option<Target>>,
}

impl Site {
    pub fn new(count: usize) -> Site {
        // In memory where this machine has such a file system: these tests do not depend on a disk.
        let memory = Path::new("/dev/shm");
        let root = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        Site::below(&root, count)
    }

    /// As [`new`](Self::new), with all files below a directory.
    pub fn below(root: &Path, count: usize) -> Site {
        let directory = tempfile::tempdir_in(root).expect("a directory");
        let mut site = Site { directory, targets: Vec::new() };
        for number in 0..count {
            let target = site.serve(number, super::LISTEN);
            site.targets.push(Some(target));
        }
        site
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A target with an installation of its own.
    pub fn serve(&self, number: usize, listen: &str) -> Target {
        let space = format!("fast=dir:{},size=256MiB", text(&self.path(&format!("space{number}"))));
        let args =
            ["target", "--json", "--insecure", "--discovery", "none", "--threads", "1", "--listen", listen];
        let mut command = command(&[&args[..], &["--space", &space, "--admin", ADMIN]].concat());
        command.env("XDG_STATE_HOME", self.path(&format!("state{number}")));
        Target::spawn(command)
    }

    pub fn addr(&self, number: usize) -> String {
        self.targets[number].as_ref().expect("a target").addr()
    }

    /// Targets as `pool create` takes them, each in a rack of its own.
    pub fn specs(&self, numbers: std::ops::Range<usize>) -> Vec<String> {
        numbers.map(|n| format!("{},domain=rack{n}", self.addr(n))).collect()
    }

    pub fn kill(&mut self, number: usize) -> String {
        let mut target = self.targets[number].take().expect("a target");
        signal(&target.child, "KILL");
        target.child.end(PATIENCE).expect("killed");
        target.addr()
    }

    pub fn restart(&mut self, number: usize, listen: &str) {
        self.targets[number] = Some(self.serve(number, listen));
    }

    /// Runs the program with the state of the host `state`.
    pub fn run_as(&self, state: &str, args: &[&str]) -> Ran {
        let mut command = command(args);
        command.env("XDG_STATE_HOME", self.path(state)).env("XDG_RUNTIME_DIR", self.path(state));
        std::fs::create_dir_all(self.path(state)).expect("made");
        finish(command.spawn().expect("started"))
    }

    /// Runs a verb of pools as the administrator.
    pub fn run(&self, args: &[&str]) -> Ran {
        self.run_as("host", &[&["--json"], args, &["--hostnqn", ADMIN]].concat())
    }

    /// Its events; it has succeeded.
    pub fn done(&self, args: &[&str]) -> Vec<Value> {
        let ran = self.run(args);
        assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
        ran.events()
    }

    pub fn last(&self, args: &[&str]) -> Value {
        self.done(args).pop().expect("a summary")
    }

    /// Its message; it has ended with this status.
    pub fn refused(&self, code: i32, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, Some(code), "{args:?}: {ran:?}");
        ran.stderr
    }

    /// The pool `p` of all targets.
    pub fn create(&self) -> Value {
        let specs = self.specs(0..self.targets.len());
        let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
        self.last(&[&["pool", "create", "p", "--target"], &specs[..]].concat())
    }

    /// Files of namespaces of all spaces.
    pub fn files(&self) -> usize {
        let count = |n| std::fs::read_dir(self.path(&format!("space{n}"))).expect("readable").count() - 1;
        (0..self.targets.len()).map(count).sum()
    }
}
