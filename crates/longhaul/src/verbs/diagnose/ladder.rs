//! The copies of the ladder: runs of this same program, so that each is what a
//! person would have run.

use super::Args;
use super::child::{self, ChildOutcome};
use super::hosts::{self, HostCounters, HostUse, Segments, children, device_busy};
use crate::again::{self, at, program, reason, seconds, summary};
use crate::exit::{Exit, Failure};
use longhaul_bench::Stop;
use longhaul_bench::record::{Run, Validity};
use longhaul_bench::watch::{Expect, Watch, Watched};
use longhaul_report::cause::Sockets;
use longhaul_transfer::Endpoint;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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
    /// Nothing to nothing, within this machine.
    Local,
}

impl Rung {
    /// Those that are fitted.
    pub(super) const FITTED: [Rung; 4] = [Rung::Read, Rung::Network, Rung::Write, Rung::Whole];

    pub(super) fn name(self) -> &'static str {
        match self {
            Rung::Read => "read",
            Rung::Network => "network",
            Rung::Write => "write",
            Rung::Whole => "whole",
            Rung::Local => "local",
        }
    }

    /// The progress message.
    pub(super) fn says(self) -> &'static str {
        match self {
            Rung::Read => "reading files, and nothing else",
            Rung::Network => "sending a synthetic source, which the destination discards",
            Rung::Write => "writing files from a synthetic source",
            Rung::Whole => "copying files",
            Rung::Local => "generating data and discarding it",
        }
    }
}

/// How a copy is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CopySettings {
    pub(super) readers: u16,
    pub(super) writers: u16,
    pub(super) streams: u16,
    /// By `cp`'s name for it.
    pub(super) checksum: &'static str,
    /// By the kernel's name; as the machine has it without one.
    pub(super) congestion: Option<String>,
    /// The most bits a second.
    pub(super) rate: Option<u64>,
}

impl CopySettings {
    /// With so many threads that read, and as many that write.
    pub(super) fn threads(&self, threads: u16) -> CopySettings {
        CopySettings { readers: threads, writers: threads, ..self.clone() }
    }
}

/// What a copy took.
#[derive(Clone, Debug)]
pub(super) struct CopyResult {
    pub(super) seconds: f64,
    /// Bytes that it was of.
    pub(super) bytes: u64,
    /// What the sockets said.
    pub(super) sockets: Sockets,
    /// Least round trip in seconds.
    pub(super) round_trip: Option<f64>,
    /// The congestion control that it had.
    pub(super) congestion: Option<String>,
    /// What the machines did meanwhile: this one, and that of the destination.
    pub(super) hosts: [HostUse; 2],
    /// What it says of itself, and whether it counts as a number.
    pub(super) run: Run,
}

impl CopyResult {
    /// As the model has it.
    pub(super) fn as_copy(&self, files: u32) -> longhaul_report::model::Copy {
        let (files, bytes) = (files.into(), self.bytes as f64);
        longhaul_report::model::Copy { files, bytes, seconds: self.seconds }
    }
}

/// How much longer than the longest copy so far, for each of its files, another one
/// may take before it is ended.
const LIMIT: u32 = 20;
/// The least that any may take.
const LIMIT_MIN: Duration = Duration::from_secs(60);
/// What the first one may take.
const LIMIT_FIRST: Duration = Duration::from_secs(600);
/// The most that a copy is enlarged to by itself.
const BYTES_MAX: u64 = 16 << 30;
/// The part of the room on a file system that a copy may take: there are several at
/// the same time.
const ROOM: u64 = 8;

/// How long a copy may take that is to say whether anything gets through: several
/// times what TCP waits before it sends again on the longest path.
const GETS_THROUGH: Duration = Duration::from_secs(10);
/// What it sends: many full packets.
const FULL_PACKETS: &str = "zero:1MiB";
/// Threads that make the system forget what files hold: where opening one takes
/// long, that is not to be measured here.
const FORGETTING: usize = 16;
/// How often is looked whether it has ended.
const LOOK: Duration = Duration::from_millis(20);

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
    /// Copies over ssh are encrypted without an option.
    ssh: bool,
    bytes: u64,
    /// The copy that took longest, and its files.
    longest: Option<(Duration, u32)>,
    key_file: Option<PathBuf>,
    /// The file in which the agent of the destination describes its machine (`machine:`).
    machine: Option<OsString>,
    /// Whether that file is read before and after a copy.
    pub(super) asks: bool,
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
        let local = matches!(endpoint, Endpoint::Local(_));
        let ladder = Ladder {
            program: program()?,
            near,
            far: below(&text, &endpoint, &name).into(),
            machine: (!local).then(|| at(&endpoint, "machine:").into()),
            asks: false,
            nowhere: at(&endpoint, "null:").into(),
            local,
            ssh: matches!(endpoint, Endpoint::Ssh { .. }),
            bytes: args.bytes.unwrap_or(super::BYTES),
            longest: None,
            key_file: args.key_file.clone(),
            stop,
            made: Vec::new(),
            copies: 0,
        };
        // It becomes the directory that all others go into.
        let empty = ladder.near.join("empty");
        fs::create_dir(&empty).map_err(Failure::failed)?;
        let mut command = ladder.command("cp", &[]);
        command.args(["--recursive", "--"]).arg(&empty).arg(&ladder.far);
        ladder.finish(&mut command, 0)?;
        Ok(ladder)
    }

    /// Whether all is to end.
    pub(super) fn stopped(&self) -> bool {
        self.stop.is_set()
    }

    /// The key that copies are encrypted with, or one like it: copies over ssh have one
    /// of their own each time.
    pub(super) fn key(&self) -> Option<PathBuf> {
        self.key_file.clone().or_else(|| self.ssh.then(|| self.near.join("key")))
    }

    /// Multiplies the bytes of later copies by `times`, bounded by the free space of the
    /// file systems. Returns the new number of bytes, or `None` if it would not rise.
    pub(super) fn enlarge(&mut self, times: f64) -> Option<u64> {
        let room = |dir: &Path| {
            let found = rustix::fs::statvfs(dir).ok()?;
            Some(found.f_bavail.saturating_mul(found.f_frsize) / ROOM)
        };
        let far = self.local.then(|| room(Path::new(&self.far))).flatten();
        let most = room(&self.near).into_iter().chain(far).fold(BYTES_MAX, u64::min);
        let bytes = ((self.bytes as f64 * times) as u64).min(most);
        if bytes <= self.bytes {
            return None;
        }
        for files in self.made.drain(..) {
            // What cannot be removed now is at the end.
            let _ = fs::remove_dir_all(self.near.join(files.to_string()));
        }
        (self.bytes, self.longest) = (bytes, None);
        Some(bytes)
    }

    /// Whether there is no network in between.
    pub(super) fn is_local(&self) -> bool {
        self.local
    }

    /// Bytes of a copy of so many files: a whole number each.
    pub(super) fn bytes(&self, files: u32) -> u64 {
        (self.bytes / u64::from(files)).max(1) * u64::from(files)
    }

    /// Below the source, where files are made.
    pub(super) fn near(&self, files: u32) -> PathBuf {
        self.near.join(files.to_string())
    }

    /// Makes a copy, and removes what it wrote: it is not to be in the way of the next
    /// one.
    pub(super) fn copy(&mut self, rung: Rung, files: u32, how: &CopySettings) -> Result<CopyResult, Failure> {
        let took = self.copy_and_keep(rung, files, how)?;
        if matches!(rung, Rung::Write | Rung::Whole) {
            self.remove_copies();
        }
        Ok(took)
    }

    /// Removes what copies wrote; what cannot be removed stays until the end.
    fn remove_copies(&self) {
        if self.local {
            let _ = fs::remove_dir_all(Path::new(&self.far).join(self.copies.to_string()));
            return;
        }
        let mut command = self.command("sync", &["--delete", "--"]);
        command.arg(self.near.join("empty")).arg(&self.far);
        let _ = self.finish(&mut command, 0);
    }

    /// Makes a copy.
    pub(super) fn copy_and_keep(
        &mut self,
        rung: Rung,
        files: u32,
        how: &CopySettings,
    ) -> Result<CopyResult, Failure> {
        let from = match rung {
            Rung::Read | Rung::Whole => self.source(files)?.into_os_string(),
            Rung::Network | Rung::Write | Rung::Local => self.zeroes(files),
        };
        self.copies += 1;
        let mut to = self.far.clone();
        to.push(format!("/{}", self.copies));
        let to = match rung {
            Rung::Read | Rung::Local => "null:".into(),
            Rung::Network => self.nowhere.clone(),
            Rung::Write | Rung::Whole => to,
        };
        self.cp(&from, &to, files, how)
    }

    fn zeroes(&self, files: u32) -> OsString {
        format!("zero:{files}x{}", self.bytes(files) / u64::from(files)).into()
    }

    /// Sends zeroes to an agent on this machine.
    pub(super) fn sent_to(
        &mut self,
        uri: &str,
        key: Option<&Path>,
        how: &CopySettings,
    ) -> Result<CopyResult, Failure> {
        let files = super::FEW;
        let key = std::mem::replace(&mut self.key_file, key.map(Path::to_owned));
        let zeroes = self.zeroes(files);
        let took = self.cp(&zeroes, OsStr::new(uri), files, how);
        self.key_file = key;
        took
    }

    /// Seconds that it takes the destination to say what one of its files is: the
    /// last copy of so many is compared with its source.
    pub(super) fn far_lookup(&mut self, files: u32) -> Result<f64, Failure> {
        let (source, mut last) = (self.source(files)?, self.far.clone());
        last.push(format!("/{}", self.copies));
        let mut asked = self.command("sync", &["--dry-run", "--level", "size", "--json", "--"]);
        asked.arg(source).arg(last);
        let summary = summary(&self.finish(&mut asked, files)?)?;
        Ok(summary["seconds"].as_f64().unwrap_or_default() / f64::from(files.max(1)))
    }

    /// Whether packets of full size get through; those of a few bytes did before.
    pub(super) fn full_packets_pass(&self) -> Result<bool, Failure> {
        let mut command = self.command("cp", &["--streams", "1", "--json", "--"]);
        command.arg(FULL_PACKETS).arg(&self.nowhere);
        let before = Segments::look();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(Failure::failed)?;
        let end = Instant::now() + GETS_THROUGH;
        while Instant::now() < end && !self.stop.is_set() {
            if child.try_wait().map_err(Failure::failed)?.is_some() {
                // What else can go wrong, the copies say better.
                return Ok(true);
            }
            std::thread::sleep(LOOK);
        }
        // It has not ended, or was not to: that it is killed is no error.
        let _ = child.kill();
        let _ = child.wait();
        // A path that is merely slow does not lose most of it.
        // Where nothing counts what is lost, the copies have to show it.
        let lost = Segments::look().zip(before).map(|(now, before)| now.since(&before));
        Ok(self.stop.is_set() || !lost.is_some_and(|lost| lost.vanish()))
    }

    /// Files to read, made when they are first wanted, and no longer in memory.
    fn source(&mut self, files: u32) -> Result<PathBuf, Failure> {
        let dir = self.near(files);
        if !self.made.contains(&files) {
            let (count, bytes) = (files.to_string(), self.bytes(files).to_string());
            let mut command = Command::new(&self.program);
            command.args(["dataset", "make", "equal"]).arg(&dir).args(["--files", &count, "--scale", &bytes]);
            self.finish(&mut command, files)?;
            self.made.push(files);
        }
        forget(&dir);
        Ok(dir)
    }

    /// A run of this program with the key of the agent.
    fn command(&self, verb: &str, more: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg(verb)
            .args(self.key_file.iter().flat_map(|key| [OsStr::new("--key-file"), key.as_os_str()]));
        command.args(more);
        command
    }

    fn cp(
        &mut self,
        from: &OsStr,
        to: &OsStr,
        files: u32,
        how: &CopySettings,
    ) -> Result<CopyResult, Failure> {
        let [readers, writers, streams] = [how.readers, how.writers, how.streams].map(|n| n.to_string());
        let mut command = self.command("cp", &["--recursive", "--json", "--checksum", how.checksum]);
        command.args(["--readers", &readers, "--writers", &writers, "--streams", &streams]);
        command.args(how.congestion.iter().flat_map(|name| ["--congestion", name]));
        if let Some(rate) = how.rate {
            command.args(["--bwlimit", &format!("{rate}bit")]);
        }
        let result = self.near.join("copy.json");
        command.arg("--output").arg(&result).arg("--").arg(from).arg(to);
        let machine = self.machine.as_deref().filter(|_| self.asks);
        let there = machine.map(|machine| self.ask(machine)).transpose()?;
        let watch = Watch::start();
        let devices = self.devices();
        let (here, own, segments) = (HostCounters::here(), children(), Segments::look());
        let out = self.finish(&mut command, files)?;
        let own = children() - own;
        let segments = Segments::look().zip(segments).map(|(now, before)| now.since(&before));
        let (busy, watched) = (self.devices(), watch.end());
        let here = HostCounters::here().since(&here);
        let there = match (machine, there) {
            (Some(machine), Some(before)) => Some(self.ask(machine)?.since(&before)),
            _ => None,
        };
        let summary = summary(&out)?;
        let seconds = seconds(&summary)?;
        if self.longest.is_none_or(|(longest, _)| watched.time > longest) {
            self.longest = Some((watched.time, files));
        }
        let mut hosts = hosts::both(&here, own, &summary["threads"], there.as_ref(), seconds);
        for (host, (before, after)) in hosts.iter_mut().zip(devices.into_iter().zip(busy)) {
            let ms = before.zip(after).map(|(before, after)| after - before);
            host.device = ms.map(|ms| (ms / 1e3 / seconds.max(1e-9)).min(1.0));
        }
        let round_trip = summary["sockets"]["round_trip_least"].as_f64();
        Ok(CopyResult {
            seconds,
            bytes: self.bytes(files),
            // Without counters no loss is seen, as was said at the start.
            sockets: segments.unwrap_or_default().sockets(&summary["sockets"]),
            round_trip,
            congestion: summary["congestion"].as_str().map(str::to_owned),
            hosts,
            run: again::run(&result, &judge(watched, seconds, round_trip))?,
        })
    }

    /// For how long the devices of both ends were busy so far, where they are here.
    fn devices(&self) -> [Option<f64>; 2] {
        [device_busy(&self.near), self.local.then(|| device_busy(Path::new(&self.far))).flatten()]
    }

    /// How long something that moves so many files may take.
    fn limit(&self, files: u32) -> Duration {
        let Some((longest, of)) = self.longest else { return LIMIT_FIRST };
        (longest * LIMIT * (files / of.max(1)).max(1)).max(LIMIT_MIN)
    }

    /// Reads the counters of the machine of the destination.
    fn ask(&self, machine: &OsStr) -> Result<HostCounters, Failure> {
        let into = self.near.join("there");
        let mut command = self.command("cp", &["--recursive", "--streams", "1", "--"]);
        command.arg(machine).arg(&into);
        self.finish(&mut command, 0)?;
        let text = fs::read_to_string(into.join("machine")).map_err(Failure::failed)?;
        // A copy does not replace the file of the one before.
        fs::remove_dir_all(&into).map_err(Failure::failed)?;
        Ok(HostCounters::parse(&text))
    }

    /// Runs a program that moves so many files to its end; its standard output.
    fn finish(&self, command: &mut Command, files: u32) -> Result<Vec<u8>, Failure> {
        let limit = self.limit(files);
        let (status, out, said) = match child::run(command, limit, &self.stop).map_err(Failure::failed)? {
            // A signal from a terminal is for the copy, too.
            _ if self.stop.is_set() => return Err(Failure::failed("interrupted")),
            ChildOutcome::Ended(status, out, said) => (status, out, said),
            ChildOutcome::Stopped => return Err(Failure::failed("interrupted")),
            ChildOutcome::Late => {
                let (seconds, what) = (limit.as_secs(), child::words(command));
                let why = format!("a copy took longer than {seconds} s and was ended: {what}");
                return Err(Failure::new(Exit::TimedOut, why));
            }
        };
        if status.success() {
            return Ok(out);
        }
        let code = status.code().and_then(|code| u64::try_from(code).ok());
        Err(Failure::new(Exit::of(code), format_args!("a copy failed: {}", reason(&said))))
    }
}

/// Whether a copy counts as a number: what `bench` and `study` leave out for the same
/// reasons.
fn judge(watched: Watched, seconds: f64, round_trip: Option<f64>) -> Validity {
    // Without a path, what this machine sends again is not of the copy.
    let retransmitted = watched.retransmitted.filter(|_| round_trip.is_some());
    let time = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let expect = Expect { window: time(seconds), round_trip: round_trip.map(time), ..Expect::default() };
    Watched { retransmitted, ..watched }.judge(&expect)
}

/// A name below a destination, as `cp` takes it. What comes behind the colon of
/// `HOST:` begins at the home directory, and with a slash at the root.
fn below(destination: &str, endpoint: &Endpoint, name: &str) -> String {
    match endpoint {
        Endpoint::Ssh { .. } if destination.ends_with(':') => format!("{destination}{name}"),
        _ => format!("{}/{name}", destination.trim_end_matches('/')),
    }
}

/// Writes files to the disk, and lets the system forget what they hold: a copy of
/// what is in memory says nothing of the storage. What cannot be forgotten stays.
fn forget(dir: &Path) {
    let files: Vec<PathBuf> = walk(dir).collect();
    std::thread::scope(|scope| {
        for share in files.chunks(files.len().div_ceil(FORGETTING).max(1)) {
            scope.spawn(move || {
                for file in share.iter().filter_map(|path| fs::File::open(path).ok()) {
                    let _ = file.sync_data();
                    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
                }
            });
        }
    });
}

/// The files below a directory.
fn walk(dir: &Path) -> Box<dyn Iterator<Item = PathBuf>> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    Box::new(entries.flat_map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => walk(&entry.path()),
        _ => Box::new(std::iter::once(entry.path())),
    }))
}

/// Seconds that it takes this machine to say what a file below `dir` is.
pub(super) fn lookup(dir: &Path) -> Option<f64> {
    let files: Vec<PathBuf> = walk(dir).collect();
    let began = Instant::now();
    let known = files.iter().filter(|path| path.symlink_metadata().is_ok()).count();
    (known > 0).then(|| began.elapsed().as_secs_f64() / known as f64)
}

impl Drop for Ladder {
    fn drop(&mut self) {
        // A directory that cannot be removed is recognized by its name, which has the process ID.
        if self.local {
            let _ = fs::remove_dir_all(Path::new(&self.far));
        } else {
            // An interrupted run removes its copies as well.
            self.stop = Stop::new();
            self.remove_copies();
        }
        let _ = fs::remove_dir_all(&self.near);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_bench::record::Code;

    #[test]
    fn what_is_made_is_below_the_destination() {
        let below = |text: &str| {
            let endpoint = Endpoint::parse(OsStr::new(text)).expect("a destination");
            below(text, &endpoint, "x")
        };
        // The home directory of HOST, and not its root.
        assert_eq!(
            (below("me@dtn1:"), below("dtn1:/"), below("dtn1:a/")),
            ("me@dtn1:x".into(), "dtn1:/x".into(), "dtn1:a/x".into())
        );
        assert_eq!(
            (below("lh://dtn1:7400"), below("lh://dtn1:7400/")),
            ("lh://dtn1:7400/x".into(), "lh://dtn1:7400/x".into())
        );
        assert_eq!(
            (below("/"), below("/data//"), below("./a:")),
            ("/x".into(), "/data/x".into(), "./a:/x".into())
        );
    }

    #[test]
    fn copies_that_say_little_do_not_count() {
        let codes = |watched: Watched, seconds, round_trip| {
            let reasons = judge(watched, seconds, round_trip).reasons;
            reasons.into_iter().map(|reason| reason.code).collect::<Vec<_>>()
        };
        let lossy = Watched { retransmitted: Some(0.01), ..Watched::default() };
        assert_eq!(codes(lossy, 2.0, Some(0.01)), [Code::Retransmitting]);
        // Without a path to the destination, the retransmissions are of other connections.
        assert_eq!(codes(lossy, 2.0, None), []);
        assert_eq!(codes(Watched::default(), 0.3, None), [Code::TooShort]);
        assert_eq!(codes(Watched::default(), 2.0, Some(0.2)), [Code::TooShort]);
        let taken = Watched { stolen: 0.2, jump_s: 5.0, ..Watched::default() };
        assert_eq!(codes(taken, 2.0, None), [Code::ClockJumped, Code::Stolen]);
    }
}
