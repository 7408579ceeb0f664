//! The copies of the ladder: runs of this same program, so that each is what a
//! person would have run.

use super::Args;
use crate::again::{program, reason};
use crate::exit::{Exit, Failure};
use longhaul_bench::Stop;
use longhaul_bench::watch::Watch;
use longhaul_transfer::Endpoint;
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A copy of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rung {
    /// Files to nothing.
    Read,
    /// Nothing to nothing, over the path.
    Network,
    /// Nothing to files.
    Write,
    /// Files to files.
    Whole,
}

impl Rung {
    pub(super) const ALL: [Rung; 4] = [Rung::Read, Rung::Network, Rung::Write, Rung::Whole];

    pub(super) fn name(self) -> &'static str {
        match self {
            Rung::Read => "read",
            Rung::Network => "network",
            Rung::Write => "write",
            Rung::Whole => "whole",
        }
    }

    /// What it does, for who waits.
    pub(super) fn says(self) -> &'static str {
        match self {
            Rung::Read => "reading files, and nothing else",
            Rung::Network => "sending nothing that was read, to be thrown away",
            Rung::Write => "writing files that nobody read",
            Rung::Whole => "copying files",
        }
    }
}

/// How many at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tune {
    pub(super) threads: u16,
    pub(super) streams: u16,
}

/// What a copy took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Took {
    pub(super) seconds: f64,
    /// Share of this machine's segments that were sent again.
    pub(super) retransmitted: f64,
    /// Share of this machine's processors that others took.
    pub(super) others: f64,
}

/// Both ends of the copies. What was made is removed when it is dropped.
pub(super) struct Ladder {
    program: PathBuf,
    /// Below the source.
    near: PathBuf,
    /// Below the destination, as `cp` takes it.
    far: OsString,
    /// Nothing, where the destination is.
    nowhere: OsString,
    local: bool,
    bytes: u64,
    key_file: Option<PathBuf>,
    stop: Stop,
    made: Vec<u32>,
    copies: u32,
}

impl Ladder {
    pub(super) fn new(args: &Args, stop: Stop) -> Result<Ladder, Failure> {
        if !args.source.is_dir() {
            let source = args.source.display();
            return Err(Failure::usage(format!(
                "{source} is not a directory of this machine: run it where the source is"
            )));
        }
        let endpoint = Endpoint::parse(&args.destination).map_err(Failure::usage)?;
        let name = format!("longhaul-diagnose-{}", std::process::id());
        let near = args.source.join(&name);
        fs::create_dir(&near).map_err(|e| Failure::failed(format!("cannot make {}: {e}", near.display())))?;
        let text = args.destination.to_string_lossy().into_owned();
        let nowhere = match &endpoint {
            Endpoint::Agent { host, port, .. } if host.contains(':') => format!("lh://[{host}]:{port}/null:"),
            Endpoint::Agent { host, port, .. } => format!("lh://{host}:{port}/null:"),
            Endpoint::Ssh { host, .. } => format!("{host}:null:"),
            _ => "null:".into(),
        };
        let local = matches!(endpoint, Endpoint::Local(_));
        let ladder = Ladder {
            program: program()?,
            near,
            far: format!("{}/{name}", text.trim_end_matches('/')).into(),
            nowhere: nowhere.into(),
            local,
            bytes: args.bytes,
            key_file: args.key_file.clone(),
            stop,
            made: Vec::new(),
            copies: 0,
        };
        // It becomes the directory that all others go into.
        let empty = ladder.near.join("empty");
        fs::create_dir(&empty).map_err(Failure::failed)?;
        let far = ladder.far.clone();
        ladder.cp(empty.as_os_str(), &far, Tune { threads: 1, streams: 1 })?;
        Ok(ladder)
    }

    /// Whether there is no network in between.
    pub(super) fn is_local(&self) -> bool {
        self.local
    }

    /// Bytes of a copy of so many files: a whole number each.
    pub(super) fn bytes(&self, files: u32) -> u64 {
        (self.bytes / u64::from(files)).max(1) * u64::from(files)
    }

    /// Makes a copy.
    pub(super) fn copy(&mut self, rung: Rung, files: u32, tune: Tune) -> Result<Took, Failure> {
        if self.stop.is_set() {
            return Err(Failure::failed("interrupted"));
        }
        let from = match rung {
            Rung::Read | Rung::Whole => self.source(files)?.into_os_string(),
            Rung::Network | Rung::Write => {
                format!("zero:{files}x{}", self.bytes(files) / u64::from(files)).into()
            }
        };
        self.copies += 1;
        let mut to = self.far.clone();
        to.push(format!("/{}", self.copies));
        let to = match rung {
            Rung::Read => "null:".into(),
            Rung::Network => self.nowhere.clone(),
            Rung::Write | Rung::Whole => to,
        };
        self.cp(&from, &to, tune)
    }

    /// Files to read, made when they are first wanted.
    fn source(&mut self, files: u32) -> Result<PathBuf, Failure> {
        let dir = self.near.join(files.to_string());
        if !self.made.contains(&files) {
            let (count, bytes) = (files.to_string(), self.bytes(files).to_string());
            let mut command = Command::new(&self.program);
            command.args(["dataset", "make", "equal"]).arg(&dir).args(["--files", &count, "--scale", &bytes]);
            self.finish(&mut command)?;
            self.made.push(files);
        }
        Ok(dir)
    }

    fn cp(&self, from: &OsStr, to: &OsStr, tune: Tune) -> Result<Took, Failure> {
        let (threads, streams) = (tune.threads.to_string(), tune.streams.to_string());
        let mut command = Command::new(&self.program);
        command.args(["cp", "--recursive", "--json", "--readers", &threads, "--writers", &threads]);
        command
            .args(["--streams", &streams])
            .args(self.key_file.iter().flat_map(|key| [OsStr::new("--key-file"), key.as_os_str()]));
        command.arg("--").arg(from).arg(to);
        let (watch, before) = (Watch::start(), children());
        let out = self.finish(&mut command)?;
        let watched = watch.end();
        let own = children() - before;
        let lines = String::from_utf8_lossy(&out);
        let mut events = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let summary = events.rfind(|event| event["event"] == "summary").unwrap_or_default();
        let Some(seconds) = summary["seconds"].as_f64() else {
            return Err(Failure::failed("a copy said nothing of what it took"));
        };
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let others = watched.cpu.others_s.map_or(0.0, |others| (others - own).max(0.0));
        Ok(Took {
            seconds,
            retransmitted: watched.retransmitted.unwrap_or_default(),
            others: others / (watched.time.as_secs_f64() * processors).max(1e-9),
        })
    }

    /// Runs a program to its end; its standard output.
    fn finish(&self, command: &mut Command) -> Result<Vec<u8>, Failure> {
        let ran = command.stdin(Stdio::null()).output().map_err(Failure::failed)?;
        if ran.status.success() {
            return Ok(ran.stdout);
        }
        let code = ran.status.code().and_then(|code| u64::try_from(code).ok());
        Err(Failure::new(Exit::of(code), format_args!("a copy failed: {}", reason(&ran.stderr))))
    }
}

impl Drop for Ladder {
    fn drop(&mut self) {
        // Where it cannot be removed, its name says whose it is.
        if self.local {
            let _ = fs::remove_dir_all(Path::new(&self.far));
        } else {
            let empty = self.near.join("empty");
            let mut command = Command::new(&self.program);
            command.args(["sync", "--delete"]).arg(empty).arg(&self.far);
            command.args(self.key_file.iter().flat_map(|key| [OsStr::new("--key-file"), key.as_os_str()]));
            let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
        let _ = fs::remove_dir_all(&self.near);
    }
}

/// Processor seconds of programs that were run and have ended (`cutime` and
/// `cstime` of proc(5), in hundredths of a second).
fn children() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program may have spaces: what follows it has none.
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = |at: usize| rest.split_whitespace().nth(at).and_then(|word| word.parse::<f64>().ok());
    (field(13).unwrap_or_default() + field(14).unwrap_or_default()) / 100.0
}

/// Whether this machine's processors save power.
pub(super) fn saves_power() -> bool {
    longhaul_bench::host::Host::here().governor.is_some_and(|governor| governor == "powersave")
}
