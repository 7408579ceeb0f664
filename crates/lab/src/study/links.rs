//! The network of a study: this machine, or emulated links with a server behind each.
//! Servers and loads are processes of this program.
//!
//! Invariants:
//! - a [`Server`] does not receive the Ctrl-C that ends the study: dropping it ends the
//!   process, after its clients have ended;
//! - the emulator's counters cover one load only.

use super::Results;
use crate::Error;
use crate::emulated::between;
use crate::self_exec::{program, reason};
use longhaul_load::watch::{Emulated, Expect, Watch, Watched};
use longhaul_results::record::{Cpu, Run, Validity};
use longhaul_results::schema;
use longhaul_wan::control::Control;
use longhaul_wan::{Conditions, Queue, Wan, WanPlan};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Emulated links, or none on this machine's own network. Dropping it removes them.
pub(super) struct Links {
    // Dropped before the links that it reports.
    _control: Option<Control>,
    wan: Option<Arc<Wan>>,
    rtt: Duration,
    rate: Option<u64>,
}

/// Queue of a link: a number of bandwidth-delay products, for the burst of TCP's slow start,
/// and at least the buffer of a switch, since a smaller queue would drop most of that burst
/// on a short path.
const QUEUE_PRODUCTS: f64 = 3.0;
const QUEUE_LEAST: u64 = 1 << 20;

impl Links {
    /// Servers that share the switch port of the client, which has a buffer of `buffer` bytes
    /// and drops packets that do not fit.
    pub(super) fn behind_a_port(mut conditions: Conditions, buffer: u64) -> Result<Links, Error> {
        conditions.there.queue = Queue::Bytes(QUEUE_LEAST);
        conditions.back.queue = Queue::Bytes(buffer);
        Links::start(1, conditions)
    }

    /// `servers` servers, each behind a link with a queue large enough to drop nothing.
    pub(super) fn emulated(servers: usize, mut conditions: Conditions) -> Result<Links, Error> {
        for way in [&mut conditions.there, &mut conditions.back] {
            way.queue = Queue::Products(QUEUE_PRODUCTS);
            way.queue = Queue::Bytes(way.queue_bytes().unwrap_or(0).max(QUEUE_LEAST));
        }
        Links::start(servers, conditions)
    }

    fn start(servers: usize, conditions: Conditions) -> Result<Links, Error> {
        let (rtt, rate) = (conditions.rtt(), conditions.there.rate);
        let plan = WanPlan { star: Some(servers), ..WanPlan::new(WanPlan::unique_name("study"), conditions) };
        let wan = Arc::new(Wan::start(plan)?);
        // Loads read the lateness of their link there.
        let control = Control::start(&wan)?;
        Ok(Links { _control: Some(control), wan: Some(wan), rtt, rate })
    }

    /// This machine's own network, without emulated links.
    pub(super) fn here() -> Links {
        Links { _control: None, wan: None, rtt: Duration::ZERO, rate: None }
    }

    /// Round-trip time of the links; zero without links.
    pub(super) fn round_trip(&self) -> Duration {
        self.rtt
    }

    /// Transmission time of `bytes` on a link; zero without links.
    pub(super) fn time_of(&self, bytes: u64) -> Duration {
        let seconds = |rate: u64| bytes as f64 * 8.0 / rate as f64;
        self.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(seconds(rate)))
    }

    /// A command of this program in the namespace of the client.
    pub(super) fn command(&self) -> Result<Command, Error> {
        Ok(match &self.wan {
            Some(wan) => wan.client().bound_command(program()?),
            None => Command::new(program()?),
        })
    }

    /// A command of this program in the namespace of server `link` (from 1), and that server's address.
    pub(super) fn behind(&self, link: usize) -> Result<(Command, String), Error> {
        let Some(wan) = &self.wan else { return Err(Error::failed("there are no links")) };
        Ok((wan.server(link).bound_command(program()?), wan.server_address(link).to_string()))
    }

    /// The emulated links, if there are any.
    pub(super) fn wan(&self) -> Option<&Wan> {
        self.wan.as_deref()
    }

    /// The client's address on a link.
    pub(super) fn client_address(&self, link: usize) -> Option<String> {
        self.wan.as_ref().map(|wan| wan.client_address(link).to_string())
    }

    /// Runs loads behind several links at the same time, `runs` times, and pushes the sum of
    /// their cells called `number` as a sample each time.
    pub(super) fn loads(
        &self,
        loads: &[(usize, Vec<String>)],
        number: &str,
        runs: u16,
        into: &mut Results,
    ) -> Result<(), Error> {
        if let Some(wan) = &self.wan {
            wan.take_statistics()?;
        }
        for _ in 0..runs {
            let start = |(link, args): &(usize, Vec<String>)| {
                let (mut command, _) = self.behind(*link)?;
                command.args(args).args(["--runs", "1", "--json"]).stdin(Stdio::null());
                command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(Error::failed)
            };
            let started: Vec<_> = loads.iter().map(start).collect();
            // All loads are waited for, also after one failed.
            let ended: Vec<_> =
                started.into_iter().map(|child| child?.wait_with_output().map_err(Error::failed)).collect();
            let (mut sum, mut validity) = (0.0, Validity::default());
            for ran in ended {
                let ran = ran?;
                let wrong = || Error::failed(format!("a load failed: {}", reason(&ran.stderr)));
                let result: schema::Output = serde_json::from_slice(&ran.stdout).map_err(|_| wrong())?;
                let record = result.longhaul.unwrap_or_default();
                let cell = record.cells.iter().find(|cell| cell.name == number).ok_or_else(wrong)?;
                let counted = cell.samples.iter().copied();
                sum += counted.chain(cell.left_out.iter().map(|run| run.value)).next().ok_or_else(wrong)?;
                for reason in cell.left_out.iter().flat_map(|run| &run.reasons) {
                    validity.mark(reason.code, reason.detail.clone());
                }
                into.runs.extend(record.runs.into_iter().map(|run| Run { seed: record.seed, ..run }));
            }
            into.cells[0].push(sum, &validity);
        }
        Ok(())
    }

    /// Runs a load, and copies the cells called `numbers` and the runs of its result to `into`.
    pub(super) fn load(&self, args: &[String], numbers: &[&str], into: &mut Results) -> Result<(), Error> {
        let ran = self.run(self.command()?.args(args).arg("--json"))?;
        let wrong = |what: &str| Error::failed(format!("{what}: {}", reason(&ran.stderr)));
        let result: schema::Output =
            serde_json::from_slice(&ran.stdout).map_err(|_| wrong("the load failed"))?;
        let record = result.longhaul.unwrap_or_default();
        let nothing = || {
            let reasons = record.runs.iter().flat_map(|run| &run.validity.reasons);
            let why = reasons.map(|reason| reason.detail.as_str()).next();
            Error::failed(why.unwrap_or("nothing that was begun ended within the window"))
        };
        for (number, into) in numbers.iter().zip(&mut into.cells) {
            let found = record.cells.iter().find(|cell| cell.name == *number);
            let found = found.ok_or_else(nothing)?.clone();
            into.samples = found.samples;
            into.left_out = found.left_out;
            into.validity = found.validity;
        }
        into.runs.extend(record.runs.into_iter().map(|run| Run { seed: record.seed, ..run }));
        Ok(())
    }

    /// Runs `work`, and records the counters of this machine and of the links meanwhile.
    pub(super) fn watch<T>(
        &self,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<(T, WatchedWork), Error> {
        let before = self.wan.as_deref().map(Wan::statistics).transpose()?;
        let watch = Watch::start();
        let done = work()?;
        let watched = watch.end();
        // The ends of emulated links are namespaces with counters of their own: this
        // machine's retransmissions are not theirs.
        let retransmitted = watched.retransmitted.filter(|_| self.wan.is_none());
        let link = match (&self.wan, before) {
            (Some(wan), Some(before)) => Some(between(self.rtt, &before, &wan.statistics()?)),
            _ => None,
        };
        Ok((done, WatchedWork { watched: Watched { retransmitted, ..watched }, link }))
    }

    /// Runs a command of [`command`](Self::command) to its end, with any exit status.
    pub(super) fn run(&self, command: &mut Command) -> Result<std::process::Output, Error> {
        if let Some(wan) = &self.wan {
            wan.take_statistics()?;
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.output().map_err(Error::failed)
    }

    /// Runs a command, and returns its standard output if it succeeds.
    pub(super) fn finish(&self, command: &mut Command) -> Result<Vec<u8>, Error> {
        let ran = self.run(command)?;
        match ran.status.success() {
            true => Ok(ran.stdout),
            false => Err(Error::failed(reason(&ran.stderr))),
        }
    }
}

/// Counters of this machine and of the links while some work ran.
pub(super) struct WatchedWork {
    watched: Watched,
    link: Option<Emulated>,
}

/// The route of the data of some work.
#[derive(Clone, Copy, Debug)]
pub(super) enum Route {
    /// Within this machine.
    Within,
    /// Over a path, with the round-trip time measured by its sockets.
    Over(Option<Duration>),
}

impl WatchedWork {
    /// Judges the measurement. With a `window`, the time it took, a window that is too short
    /// makes it invalid.
    pub(super) fn judge(&self, window: Option<Duration>, way: Route) -> Validity {
        let usual = Expect::default();
        let usual = Expect { window: window.unwrap_or(usual.window), ..usual };
        let Route::Over(measured) = way else {
            // Work within this machine is not affected by losses on a path.
            return Watched { retransmitted: None, ..self.watched }.judge(&usual);
        };
        let round_trip = self.link.map(|link| link.round_trip).or(measured);
        let round_trip = window.and(round_trip);
        self.watched.judge(&Expect { round_trip, link: self.link, ..usual })
    }

    /// Processor seconds of this machine: of this process, which emulates the links, and of
    /// all others, which are the ends.
    pub(super) fn processors(&self) -> Option<f64> {
        let Cpu { user_s, system_s, others_s, .. } = self.watched.cpu;
        others_s.map(|others| others + user_s + system_s)
    }
}

/// A server process of this program, killed on drop.
pub(super) struct Server {
    child: Child,
    /// Its `ready` event.
    pub(super) ready: Value,
    /// Its standard error so far.
    said: Arc<Mutex<Vec<u8>>>,
    /// Its state directory, so that its media are not recorded among those of this host.
    _state: Scratch,
}

impl Server {
    /// Starts the process, and waits for its `ready` event.
    pub(super) fn start(mut command: Command) -> Result<Server, Error> {
        let state = Scratch::make("state")?;
        command.arg("--json").process_group(0).env("XDG_STATE_HOME", state.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(Error::failed)?;
        let said = Arc::new(Mutex::new(Vec::new()));
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let mut server = Server { child, ready: Value::Null, said: Arc::clone(&said), _state: state };
        let listening = stderr.map(|stderr| std::thread::spawn(move || keep(stderr, &said)));
        let mut line = String::new();
        if let Some(stdout) = stdout {
            let mut stdout = BufReader::new(stdout);
            stdout.read_line(&mut line).map_err(Error::failed)?;
            // Later events are discarded, so that the pipe does not fill up.
            std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        }
        server.ready = serde_json::from_str(&line).unwrap_or_default();
        if server.ready["event"] == "ready" {
            return Ok(server);
        }
        // Its first event is the reason, or the last line on standard error.
        let _ = server.child.kill();
        if let Some(listening) = listening {
            let _ = listening.join();
        }
        let said = server.said.lock().unwrap_or_else(PoisonError::into_inner);
        let message = server.ready["message"].as_str().map_or_else(|| reason(&said), str::to_owned);
        Err(Error::failed(message))
    }
}

/// Makes the command that of a target on a testbed, which no other host reaches.
pub(super) fn serve_at(command: &mut Command, listen: &str) {
    command.args(["target", "--insecure", "--discovery", "none", "--listen", listen]);
}

impl Server {
    /// The URIs of a target's exports.
    pub(super) fn uris(&self) -> Vec<String> {
        let exports = self.ready["exports"].as_array().into_iter().flatten();
        exports.filter_map(|export| export["uri"].as_str().map(str::to_owned)).collect()
    }

    /// How often `words` are in its standard error.
    pub(super) fn has_said(&self, words: &str) -> usize {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&said).matches(words).count()
    }
}

/// Appends everything that is read to `into`.
fn keep(mut from: impl Read, into: &Mutex<Vec<u8>>) {
    let mut piece = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut piece) {
        into.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&piece[..n]);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGKILL loses nothing of use: the devices were created for the study.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory of this study, removed with its content on drop. File systems below it are
/// unmounted before.
pub(super) struct Scratch(std::path::PathBuf);

impl Scratch {
    pub(super) fn make(name: &str) -> Result<Scratch, Error> {
        Scratch::below(&std::env::temp_dir(), name)
    }

    pub(super) fn below(dir: &std::path::Path, name: &str) -> Result<Scratch, Error> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!("longhaul-study-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir(&path)
            .map_err(|e| Error::failed(format!("cannot make {}: {e}", path.display())))?;
        Ok(Scratch(path))
    }

    pub(super) fn path(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A directory that cannot be removed is recognized by its name, which has the process ID.
        let _ = crate::removal::remove_tree(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_results::record::Code;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    const MS: Duration = Duration::from_millis(1);

    fn seen(link: Option<Emulated>) -> WatchedWork {
        let cpu = Cpu { user_s: 1.0, system_s: 0.5, others_s: Some(3.0), stolen_s: None };
        WatchedWork { watched: Watched { retransmitted: Some(0.5), cpu, ..Watched::default() }, link }
    }

    fn codes(validity: &Validity) -> Vec<Code> {
        validity.reasons.iter().map(|reason| reason.code).collect()
    }

    #[test]
    fn a_copy_is_judged_by_its_length_and_by_its_path() {
        let over = Route::Over(Some(100 * MS));
        let judged = |window: Option<u32>, way| codes(&seen(None).judge(window.map(|ms| ms * MS), way));
        assert_eq!(judged(Some(900), Route::Within), [Code::TooShort], "it retransmitted nothing");
        assert_eq!(judged(Some(1000), Route::Within), []);
        assert_eq!(judged(Some(1000), over), [Code::TooShort, Code::Retransmitting], "ten round trips");
        assert_eq!(judged(Some(2000), over), [Code::Retransmitting]);
        // Without a window the length does not matter, but the path does.
        assert_eq!(judged(None, over), [Code::Retransmitting]);
        // The emulator's round-trip time takes precedence over the sockets'.
        let link = Some(Emulated { round_trip: 45 * MS, late: Duration::ZERO, lost: 1 });
        let judged = codes(&seen(link).judge(Some(1000 * MS), over));
        assert_eq!(judged, [Code::Retransmitting, Code::LateLink]);
        assert_eq!(
            codes(&seen(link).judge(Some(1000 * MS), Route::Within)),
            [],
            "the link had no part in it"
        );
    }

    #[test]
    fn all_processors_of_the_machine_are_counted() {
        assert_eq!(seen(None).processors(), Some(4.5), "the emulator is this process");
        let mut silent = seen(None);
        silent.watched.cpu.others_s = None;
        assert_eq!(silent.processors(), None);
    }

    #[test]
    fn what_a_real_host_sends_again_is_seen() {
        let (_, seen) = Links::here()
            .watch(|| {
                let listener = TcpListener::bind("127.0.0.1:0").map_err(Error::failed)?;
                let address = listener.local_addr().map_err(Error::failed)?;
                let mut stream = TcpStream::connect(address).map_err(Error::failed)?;
                stream.write_all(b"x").map_err(Error::failed)
            })
            .expect("watched");
        assert!(seen.watched.retransmitted.is_some());
    }
}
