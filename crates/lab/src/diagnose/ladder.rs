//! The copies of the ladder: processes of this program, with the options that a user would
//! pass.

use super::DiagnoseOptions;
use super::cached::forget;
use super::child::{self, ChildOutcome};
use super::hosts::{self, HostCounters, Segments, children, device_busy};
use super::rung::{CopyResult, CopySettings, Rung};
use crate::Error;
use crate::removal::remove_tree;
use crate::self_exec::{self, at, program, reason, seconds, summary};
use longhaul_load::Stop;
use longhaul_load::watch::{Expect, Watch, Watched};
use longhaul_results::record::Validity;
use longhaul_transfer::Endpoint;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Timeout of a copy, as a multiple of the time per file of the longest copy so far.
const LIMIT: u32 = 20;
/// Shortest timeout of a copy.
const LIMIT_MIN: Duration = Duration::from_secs(60);
/// Timeout of the first copy.
const LIMIT_FIRST: Duration = Duration::from_secs(600);
/// Largest size of a copy that `enlarge` chooses.
const BYTES_MAX: u64 = 16 << 30;
/// A copy takes at most this fraction of the free space of a file system, since several exist at
/// the same time.
const ROOM: u64 = 8;

/// Timeout of the copy that detects a PMTU black hole: several retransmission timeouts of TCP on
/// the longest path.
const GETS_THROUGH: Duration = Duration::from_secs(10);
/// Its source: several hundred packets of full size.
const FULL_PACKETS: &str = "zero:1MiB";
/// Interval of checks whether it has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Both ends of the copies. Dropping it removes their directories.
pub(super) struct Ladder {
    program: PathBuf,
    /// Directory below the source.
    near: PathBuf,
    /// Directory below the destination, as `cp` takes it.
    far: OsString,
    /// `null:` at the destination.
    nowhere: OsString,
    local: bool,
    /// Copies over ssh are encrypted without an option.
    ssh: bool,
    /// DiagnoseOptions of the copies that say how ssh reaches the destination.
    far_options: Vec<OsString>,
    bytes: u64,
    /// Time of the longest copy, and its number of files.
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
    pub(super) fn new(options: &DiagnoseOptions, stop: Stop) -> Result<Ladder, Error> {
        if !options.source.is_dir() {
            let source = options.source.display();
            return Err(Error::usage(format!(
                "{source} is not a directory of this machine: run it where the source is"
            )));
        }
        let endpoint = Endpoint::parse(&options.destination).map_err(Error::usage)?;
        if endpoint.file_system().is_some() {
            return Err(Error::usage(format!(
                "{endpoint} is in a pool: the bottlenecks of a copy to it are not known. Mount it, and name a \
                 directory there"
            )));
        }
        let name = format!("longhaul-diagnose-{}", std::process::id());
        let near = options.source.join(&name);
        fs::create_dir(&near).map_err(|e| Error::failed(format!("cannot make {}: {e}", near.display())))?;
        let text = options.destination.to_string_lossy().into_owned();
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
            far_options: options.far_options.clone(),
            bytes: options.bytes.unwrap_or(super::BYTES),
            longest: None,
            key_file: options.key_file.clone(),
            stop,
            made: Vec::new(),
            copies: 0,
        };
        // The copy of the empty directory becomes the parent of all others.
        let empty = ladder.near.join("empty");
        fs::create_dir(&empty).map_err(Error::failed)?;
        let mut command = ladder.command("cp", &[]);
        command.args(["--recursive", "--"]).arg(&empty).arg(&ladder.far);
        ladder.finish(&mut command, 0)?;
        Ok(ladder)
    }

    /// Whether the run was interrupted.
    pub(super) fn stopped(&self) -> bool {
        self.stop.is_set()
    }

    /// The key file of the copies. For copies over ssh, which generate a key each time, the name
    /// of a file that a local agent can create one in.
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
            // A failure is ignored here: `drop` tries again.
            let _ = remove_tree(&self.near.join(files.to_string()));
        }
        (self.bytes, self.longest) = (bytes, None);
        Some(bytes)
    }

    /// Whether the destination is on this machine.
    pub(super) fn is_local(&self) -> bool {
        self.local
    }

    /// Bytes of a copy of `files` files of equal size.
    pub(super) fn bytes(&self, files: u32) -> u64 {
        (self.bytes / u64::from(files)).max(1) * u64::from(files)
    }

    /// The directory of the generated files.
    pub(super) fn near(&self, files: u32) -> PathBuf {
        self.near.join(files.to_string())
    }

    /// Runs a copy, and removes the files that it wrote, to free their space.
    pub(super) fn copy(&mut self, rung: Rung, files: u32, how: &CopySettings) -> Result<CopyResult, Error> {
        let took = self.copy_and_keep(rung, files, how)?;
        if matches!(rung, Rung::Write | Rung::Whole) {
            self.remove_copies();
        }
        Ok(took)
    }

    /// Removes the files of copies. A failure is ignored: `drop` tries again.
    fn remove_copies(&self) {
        if self.local {
            let _ = remove_tree(&Path::new(&self.far).join(self.copies.to_string()));
            return;
        }
        let mut command = self.command("sync", &["--delete", "--"]);
        command.arg(self.near.join("empty")).arg(&self.far);
        let _ = self.finish(&mut command, 0);
    }

    /// Runs a copy, and leaves its files there.
    pub(super) fn copy_and_keep(
        &mut self,
        rung: Rung,
        files: u32,
        how: &CopySettings,
    ) -> Result<CopyResult, Error> {
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
    ) -> Result<CopyResult, Error> {
        let files = super::climb::FEW;
        let key = std::mem::replace(&mut self.key_file, key.map(Path::to_owned));
        let zeroes = self.zeroes(files);
        let took = self.cp(&zeroes, OsStr::new(uri), files, how);
        self.key_file = key;
        took
    }

    /// Seconds of a `stat` at the destination, from a comparison of the last copy with its source.
    pub(super) fn far_lookup(&mut self, files: u32) -> Result<f64, Error> {
        let (source, mut last) = (self.source(files)?, self.far.clone());
        last.push(format!("/{}", self.copies));
        let mut asked = self.command("sync", &["--dry-run", "--level", "size", "--json", "--"]);
        asked.arg(source).arg(last);
        let summary = summary(&self.finish(&mut asked, files)?)?;
        Ok(summary["seconds"].as_f64().unwrap_or_default() / f64::from(files.max(1)))
    }

    /// Whether packets of full size arrive; the connection setup showed that small ones do.
    pub(super) fn full_packets_pass(&self) -> Result<bool, Error> {
        let mut command = self.command("cp", &["--streams", "1", "--json", "--"]);
        command.arg(FULL_PACKETS).arg(&self.nowhere);
        let before = Segments::look();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(Error::failed)?;
        let end = Instant::now() + GETS_THROUGH;
        while Instant::now() < end && !self.stop.is_set() {
            if child.try_wait().map_err(Error::failed)?.is_some() {
                // Any other failure shows, with its reason, in the copies of the ladder.
                return Ok(true);
            }
            std::thread::sleep(LOOK);
        }
        // The copy is stuck, or the run was stopped: killing it is no error.
        let _ = child.kill();
        let _ = child.wait();
        // A slow path does not drop most packets. Without counters of retransmissions, the
        // copies of the ladder show the loss.
        let lost = Segments::look().zip(before).map(|(now, before)| now.since(&before));
        Ok(self.stop.is_set() || !lost.is_some_and(|lost| lost.vanish()))
    }

    /// The directory of `files` files to read: generated on first use, evicted from the page cache.
    fn source(&mut self, files: u32) -> Result<PathBuf, Error> {
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

    /// A command of this program with the key file of the agent.
    fn command(&self, verb: &str, more: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg(verb)
            .args(&self.far_options)
            .args(self.key_file.iter().flat_map(|key| [OsStr::new("--key-file"), key.as_os_str()]));
        command.args(more);
        command
    }

    fn cp(&mut self, from: &OsStr, to: &OsStr, files: u32, how: &CopySettings) -> Result<CopyResult, Error> {
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
        let round_trip = summary["sockets"]["round_trip_least_us"].as_f64().map(|us| us / 1e6);
        Ok(CopyResult {
            seconds,
            bytes: self.bytes(files),
            // Without counters losses are not seen: [`super::unread_counters`] says so.
            sockets: segments.unwrap_or_default().sockets(&summary["sockets"]),
            round_trip,
            congestion: summary["congestion"].as_str().map(str::to_owned),
            hosts,
            run: self_exec::run(&result, &judge(watched, seconds, round_trip))?,
        })
    }

    /// Busy times of the devices of both ends in milliseconds, as far as they are on this machine.
    fn devices(&self) -> [Option<f64>; 2] {
        [device_busy(&self.near), self.local.then(|| device_busy(Path::new(&self.far))).flatten()]
    }

    /// Timeout of a command that copies `files` files.
    fn limit(&self, files: u32) -> Duration {
        let Some((longest, of)) = self.longest else { return LIMIT_FIRST };
        (longest * LIMIT * (files / of.max(1)).max(1)).max(LIMIT_MIN)
    }

    /// Reads the counters of the machine of the destination.
    fn ask(&self, machine: &OsStr) -> Result<HostCounters, Error> {
        let into = self.near.join("there");
        let mut command = self.command("cp", &["--recursive", "--streams", "1", "--"]);
        command.arg(machine).arg(&into);
        self.finish(&mut command, 0)?;
        let text = fs::read_to_string(into.join("machine")).map_err(Error::failed)?;
        // A copy does not replace the file of the one before.
        remove_tree(&into).map_err(Error::failed)?;
        Ok(HostCounters::parse(&text))
    }

    /// Runs a command that copies `files` files, and returns its standard output.
    fn finish(&self, command: &mut Command, files: u32) -> Result<Vec<u8>, Error> {
        let limit = self.limit(files);
        let (status, out, said) = match child::run(command, limit, &self.stop).map_err(Error::failed)? {
            // A terminal sends its signal to the copy as well.
            _ if self.stop.is_set() => return Err(Error::failed("interrupted")),
            ChildOutcome::Ended(status, out, said) => (status, out, said),
            ChildOutcome::Stopped => return Err(Error::failed("interrupted")),
            ChildOutcome::Late => {
                let (seconds, what) = (limit.as_secs(), child::words(command));
                let why = format!("a copy took longer than {seconds} s and was ended: {what}");
                return Err(Error::TimedOut(why));
            }
        };
        if status.success() {
            return Ok(out);
        }
        let message = format!("a copy failed: {}", reason(&said));
        Err(Error::Run { exit: status.code(), message })
    }
}

/// Validity of a copy, by the same rules as in `bench` and `study`.
fn judge(watched: Watched, seconds: f64, round_trip: Option<f64>) -> Validity {
    // Without a path, retransmissions of this machine are of other connections.
    let retransmitted = watched.retransmitted.filter(|_| round_trip.is_some());
    let time = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let expect = Expect { window: time(seconds), round_trip: round_trip.map(time), ..Expect::default() };
    Watched { retransmitted, ..watched }.judge(&expect)
}

/// A name below a destination, as `cp` takes it. A path after the colon of `HOST:` is relative
/// to the home directory, unless it begins with a slash.
fn below(destination: &str, endpoint: &Endpoint, name: &str) -> String {
    match endpoint {
        Endpoint::Ssh { .. } if destination.ends_with(':') => format!("{destination}{name}"),
        _ => format!("{}/{name}", destination.trim_end_matches('/')),
    }
}

impl Drop for Ladder {
    fn drop(&mut self) {
        // A directory that cannot be removed is recognized by its name, which has the process ID.
        if self.local {
            let _ = remove_tree(Path::new(&self.far));
        } else {
            // An interrupted run removes its copies as well.
            self.stop = Stop::new();
            self.remove_copies();
        }
        let _ = remove_tree(&self.near);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_results::record::Code;

    #[test]
    fn what_is_made_is_below_the_destination() {
        let below = |text: &str| {
            let endpoint = Endpoint::parse(OsStr::new(text)).expect("a destination");
            below(text, &endpoint, "x")
        };
        // Relative to the home directory of HOST, not to its root.
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
