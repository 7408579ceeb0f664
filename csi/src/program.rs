//! Calls of the program `longhaul`, and what it answers: events of `--json`.

use crate::names::{Id, Kind};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::process::{Command, Stdio};
use tonic::{Code, Status};

/// Exit codes of the program.
const USAGE: i32 = 2;
const PARTLY: i32 = 3;
const UNREACHABLE: i32 = 5;
const REFUSED: i32 = 6;
const TIMED_OUT: i32 = 7;

/// How the program is called.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// The program, and what stands before it.
    pub(crate) words: Vec<String>,
    /// The catalog of the pools; `None` for those that the host knows its pools by.
    pub(crate) catalog: Option<String>,
}

/// Why a call of the program failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) exit: i32,
    /// What programs tell it apart by: the field of the same name of the event `error`.
    pub(crate) reason: Option<String>,
    pub(crate) message: String,
}

impl Failed {
    pub(crate) fn is(&self, reason: &str) -> bool {
        self.reason.as_deref() == Some(reason)
    }
}

impl From<Failed> for Status {
    fn from(failed: Failed) -> Status {
        let code = match (failed.reason.as_deref(), failed.exit) {
            (Some("exists"), _) => Code::AlreadyExists,
            (Some("not-found"), _) => Code::NotFound,
            (Some("no-space"), _) => Code::ResourceExhausted,
            (_, UNREACHABLE | TIMED_OUT) => Code::Unavailable,
            (_, REFUSED) => Code::FailedPrecondition,
            (_, USAGE) => Code::InvalidArgument,
            _ => Code::Internal,
        };
        Status::new(code, failed.message)
    }
}

/// A volume or file system, as `volume info` says.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct VolumeInfo {
    pub(crate) uuid: String,
    pub(crate) size: u64,
    pub(crate) layout: String,
    pub(crate) width: usize,
    pub(crate) hosts: Vec<String>,
    pub(crate) made_at: u64,
    pub(crate) creating: bool,
    pub(crate) snapshot_of: Option<Source>,
}

/// What a volume is a snapshot of.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Source {
    pub(crate) uuid: String,
    pub(crate) name: String,
}

/// What names of layouts of file systems begin with.
const FILES: &str = "files+";

/// The kind of a volume with this layout.
pub(crate) fn kind_of(layout: &str) -> Kind {
    if layout.starts_with(FILES) { Kind::FileSystem } else { Kind::Volume }
}

impl VolumeInfo {
    pub(crate) fn kind(&self) -> Kind {
        kind_of(&self.layout)
    }

    /// The layout as the user names it.
    pub(crate) fn layout(&self) -> &str {
        self.layout.strip_prefix(FILES).unwrap_or(&self.layout)
    }
}

/// A volume or file system of a list.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Listed {
    pub(crate) pool: String,
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) layout: String,
    pub(crate) creating: bool,
    pub(crate) snapshot_of: Option<String>,
}

/// A target of a pool.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PoolTarget {
    pub(crate) domain: String,
    pub(crate) capacity: u64,
    pub(crate) used: u64,
    /// None of one that cannot be asked.
    pub(crate) free: Option<u64>,
}

/// A pool.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PoolStatus {
    pub(crate) used: u64,
    pub(crate) quota: Option<u64>,
    #[serde(skip)]
    pub(crate) targets: Vec<PoolTarget>,
}

/// What is attached or mounted on this host.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Attached {
    pub(crate) path: String,
    pub(crate) devices: Vec<String>,
    pub(crate) read_only: bool,
    /// The process that serves it lives.
    pub(crate) served: bool,
    pub(crate) health: String,
    pub(crate) trouble: Option<String>,
}

/// The file system that was mounted.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Mounted {
    /// Its kind; none of a file system in a pool.
    pub(crate) fs: Option<String>,
}

impl Program {
    /// Calls the program, and returns its events. Done in part counts as done if `partly` says so.
    fn call(&self, args: &[&str], partly: bool) -> Result<Vec<Value>, Failed> {
        let failed = |message: String| Failed { exit: 1, reason: None, message };
        let (program, before) =
            self.words.split_first().ok_or_else(|| failed("no program is named".into()))?;
        let mut command = Command::new(program);
        command.args(before).arg("--json").args(args).stdin(Stdio::null());
        let done = command.output().map_err(|e| failed(format!("cannot run {program}: {e}")))?;
        let lines = String::from_utf8_lossy(&done.stdout);
        let events: Vec<Value> = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let exit = done.status.code().unwrap_or(-1);
        if exit == 0 || (exit == PARTLY && partly) {
            return Ok(events);
        }
        let error = events.iter().rev().find(|event| event["event"] == "error");
        let said = String::from_utf8_lossy(&done.stderr);
        let last =
            || said.lines().last().unwrap_or("it says nothing").trim_start_matches("longhaul: ").to_owned();
        let message = error.and_then(|event| event["message"].as_str()).map_or_else(last, str::to_owned);
        let reason = error.and_then(|event| event["reason"].as_str()).map(str::to_owned);
        Err(Failed { exit, reason, message: format!("longhaul {}: {message}", args.first().unwrap_or(&"")) })
    }

    /// Calls a verb of pools, as the host with this NQN.
    fn pool_call(&self, host: Option<&str>, args: &[&str], partly: bool) -> Result<Vec<Value>, Failed> {
        let mut all = args.to_vec();
        if let Some(catalog) = &self.catalog {
            all.extend(["--catalog", catalog]);
        }
        if let Some(host) = host {
            all.extend(["--hostnqn", host]);
        }
        self.call(&all, partly)
    }

    fn parse<T: DeserializeOwned>(event: Option<&Value>) -> Result<T, Failed> {
        let message = |e: &dyn std::fmt::Display| format!("the answer of longhaul cannot be read: {e}");
        let failed = |message| Failed { exit: 1, reason: None, message };
        let event = event.ok_or_else(|| failed(message(&"it has no such event")))?;
        T::deserialize(event).map_err(|e| failed(message(&e)))
    }

    fn last<T: DeserializeOwned>(events: &[Value]) -> Result<T, Failed> {
        Program::parse(events.last())
    }

    fn all<T: DeserializeOwned>(events: &[Value], name: &str) -> Result<Vec<T>, Failed> {
        events
            .iter()
            .filter(|event| event["event"] == name)
            .map(|event| Program::parse(Some(event)))
            .collect()
    }

    /// A volume or file system of a pool; `None` if there is none of this name.
    pub(crate) fn info(&self, host: Option<&str>, path: &str) -> Result<Option<VolumeInfo>, Failed> {
        match self.pool_call(host, &["volume", "info", path], false) {
            Ok(events) => Program::last(&events).map(Some),
            Err(failed) if failed.is("not-found") => Ok(None),
            Err(failed) => Err(failed),
        }
    }

    /// All volumes and file systems of these pools.
    pub(crate) fn list(&self, host: Option<&str>, pools: &[String]) -> Result<Vec<Listed>, Failed> {
        let pools = pools.iter().map(String::as_str);
        let args: Vec<&str> = ["volume", "ls"].into_iter().chain(pools).collect();
        Program::all(&self.pool_call(host, &args, false)?, "volume")
    }

    /// What a pool has.
    pub(crate) fn status(&self, host: Option<&str>, pool: &str) -> Result<PoolStatus, Failed> {
        let events = self.pool_call(host, &["pool", "status", pool], true)?;
        let targets = Program::all(&events, "target")?;
        Ok(PoolStatus { targets, ..Program::last(&events)? })
    }

    /// Names of the pools that this host knows, and why one cannot be used.
    pub(crate) fn pools(&self, host: Option<&str>) -> Result<Vec<(String, Option<String>)>, Failed> {
        #[derive(Deserialize)]
        struct Pool {
            name: String,
            error: Option<String>,
        }
        let pools: Vec<Pool> = Program::all(&self.pool_call(host, &["pool", "ls"], false)?, "pool")?;
        Ok(pools.into_iter().map(|pool| (pool.name, pool.error)).collect())
    }

    /// Makes a volume or file system, for no host, or with a further argument.
    pub(crate) fn create(&self, host: Option<&str>, id: &Id, args: &[String]) -> Result<(), Failed> {
        let path = id.path();
        let verb = if id.kind == Kind::FileSystem { "fs" } else { "volume" };
        let mut all = vec![verb, "create", &path, "--no-host"];
        // Pods run as any user, and each owns what it makes.
        if id.kind == Kind::FileSystem {
            all.extend(["--mode", "777"]);
        }
        all.extend(args.iter().map(String::as_str));
        self.pool_call(host, &all, false).map(drop)
    }

    /// Gives a volume another name.
    pub(crate) fn rename(&self, host: Option<&str>, path: &str, to: &str) -> Result<(), Failed> {
        self.pool_call(host, &["volume", "rename", path, to], false).map(drop)
    }

    /// Removes a volume or file system. What targets that cannot be reached have of it is removed later.
    pub(crate) fn remove(&self, host: Option<&str>, id: &Id) -> Result<(), Failed> {
        let verb = if id.kind == Kind::FileSystem { "fs" } else { "volume" };
        self.pool_call(host, &[verb, "rm", &id.path(), "--force"], true).map(drop)
    }

    /// Makes a volume or file system larger.
    pub(crate) fn resize(&self, host: Option<&str>, id: &Id, size: u64) -> Result<(), Failed> {
        let verb = if id.kind == Kind::FileSystem { "fs" } else { "volume" };
        self.pool_call(host, &[verb, "resize", &id.path(), "--size", &size.to_string()], false).map(drop)
    }

    /// Makes a volume with the content of another one of its pool, for no host.
    pub(crate) fn snapshot(&self, host: Option<&str>, of: &str, name: &str) -> Result<(), Failed> {
        self.pool_call(host, &["volume", "snapshot", of, name, "--no-host"], false).map(drop)
    }

    /// Lets a node use a volume.
    pub(crate) fn open(&self, host: Option<&str>, path: &str, node: &str) -> Result<(), Failed> {
        self.pool_call(host, &["volume", "open", path, "--for", node], true).map(drop)
    }

    /// Lets nodes use a volume no more.
    pub(crate) fn close(&self, host: Option<&str>, path: &str, nodes: &[String]) -> Result<(), Failed> {
        let mut args = vec!["volume", "close", path];
        for node in nodes {
            args.extend(["--for", node]);
        }
        self.pool_call(host, &args, true).map(drop)
    }

    /// What is attached and mounted on this host.
    pub(crate) fn attached(&self) -> Result<Vec<Attached>, Failed> {
        Program::all(&self.call(&["attach", "--list"], false)?, "attached")
    }

    /// Mounts a volume or file system at a directory.
    pub(crate) fn mount(&self, node: &str, args: &[&str]) -> Result<Mounted, Failed> {
        let args = [&["mount", "--hostnqn", node], args].concat();
        Program::last(&self.call(&args, false)?)
    }

    /// Makes a file system on a device that is empty.
    pub(crate) fn mkfs(&self, node: &str, fs: &str, device: &str) -> Result<(), Failed> {
        self.call(&["mkfs", "--hostnqn", node, "--fs", fs, device], false).map(drop)
    }

    /// Attaches a volume as a file, or a link to a block device.
    pub(crate) fn attach(&self, node: &str, device: &str, at: &str, read_only: bool) -> Result<(), Failed> {
        let mut args = vec!["attach", "--hostnqn", node, device, "--at", at];
        args.extend(read_only.then_some("--read-only"));
        self.call(&args, false).map(drop)
    }

    /// Ends an attachment, or a mount.
    pub(crate) fn release(&self, verb: &str, path: &str) -> Result<(), Failed> {
        self.call(&[verb, path], false).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that is the shell, and prints what the test says.
    fn says(script: &str) -> Program {
        let words = ["sh", "-c", script].map(str::to_owned).to_vec();
        Program { words, catalog: None }
    }

    #[test]
    fn failures_have_codes_by_their_reasons() {
        for (reason, exit, code) in [
            ("\"exists\"", 1, Code::AlreadyExists),
            ("\"not-found\"", 1, Code::NotFound),
            ("\"no-space\"", 1, Code::ResourceExhausted),
            ("null", 5, Code::Unavailable),
            ("null", 6, Code::FailedPrecondition),
            ("\"in-use\"", 6, Code::FailedPrecondition),
            ("null", 2, Code::InvalidArgument),
            ("null", 1, Code::Internal),
            ("\"of-a-later-version\"", 1, Code::Internal),
        ] {
            let script = format!(
                "echo '{{\"event\":\"error\",\"exit\":{exit},\"message\":\"no\",\"reason\":{reason}}}'; exit {exit}"
            );
            let status: Status = says(&script).pools(None).expect_err("it fails").into();
            assert_eq!((status.code(), status.message()), (code, "longhaul pool: no"), "{reason}");
        }
    }

    #[test]
    fn a_program_that_says_nothing_is_reported() {
        let failed = says("echo 'longhaul: it is broken' >&2; exit 9").attached().expect_err("it fails");
        assert_eq!((failed.exit, failed.message.as_str()), (9, "longhaul attach: it is broken"));
        let failed = says("true").info(None, "p/v").expect_err("no summary");
        assert!(failed.message.contains("cannot be read"), "{failed:?}");
        let missing = Program { words: vec!["/nonexistent".into()], catalog: None };
        assert!(missing.attached().expect_err("it is missing").message.contains("cannot run /nonexistent"));
    }
}
