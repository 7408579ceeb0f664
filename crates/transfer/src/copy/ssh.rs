//! An agent for one copy, started on another machine over the user's own ssh.
//!
//! Invariants:
//! - the key is sent through ssh's encrypted channel, never as an argument, and is valid
//!   for this agent only;
//! - the agent ends when this side does, since its standard input is closed then.
//!
//! If the agent's port cannot be reached, one connection is relayed through ssh: the
//! agent forwards its standard input to its own port, and the answers to its standard
//! output.

mod carry;
mod failure;
mod install;
mod program;

use crate::copy::{CopyError, Settings};
use crate::link::noise::Key;
use crate::monitor::Monitor;
use crate::tune::Concurrency;
use crate::wire::{Refusal, RefusalKind};
pub use carry::carry;
use carry::{pair, relay};
use failure::{SshExit, StderrTail};
use install::Installed;
pub use install::Offer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

/// How agents on other machines are started and reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ssh {
    /// The ssh program, with its first arguments.
    pub program: Vec<String>,
    /// Path or name of this program on the other machine.
    pub remote_program: String,
    /// Range of ports for data connections; `None` for any.
    pub ports: Option<(u16, u16)>,
    /// Route of the data.
    pub via: Via,
    /// Programs to install in the user's cache on the other machine, and to run from there.
    pub install: Option<Offer>,
}

/// Route of the data of a copy over ssh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Via {
    /// Direct connections; through ssh if those fail.
    #[default]
    Any,
    /// Direct connections only.
    Direct,
    /// Through ssh only.
    Ssh,
}

impl Default for Ssh {
    fn default() -> Ssh {
        Ssh {
            program: vec!["ssh".into()],
            remote_program: "longhaul".into(),
            ports: None,
            via: Via::Any,
            install: None,
        }
    }
}

/// Prefix of the line that an agent prints when it listens; its address follows.
const READY: &str = "ready lh://";
/// The most lines that login shells of the other machine may print before that, and the
/// most bytes of each.
const GREETINGS: usize = 100;
const GREETING: u64 = 4096;
/// The most bytes of an unexpected first line that an error message shows.
const SHOWN: usize = 200;
/// Keep-alive messages of ssh within the time after which it gives the connection up.
const ALIVE: u32 = 3;
/// Upper bound of timeouts that are passed to ssh, in seconds.
const LONGEST: u64 = 86_400;

/// A running agent on another machine.
#[derive(Debug)]
pub(crate) struct Remote {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
    stderr: StderrTail,
    /// Host and port of the agent.
    pub(crate) server: (String, u16),
    /// The agent's pre-shared key.
    pub(crate) key: Key,
}

impl Remote {
    /// Starts an agent on `host` (in the syntax of ssh). Blocks while ssh runs, which may
    /// ask for a password.
    ///
    /// # Errors
    /// ssh fails, or the program is missing on the other machine.
    pub(crate) fn start(host: &str, settings: &Settings, monitor: &Monitor) -> Result<Remote, CopyError> {
        let ssh = &settings.ssh;
        let server = host.to_owned();
        let unreachable = |reason: String| CopyError::Unreachable { server: server.clone(), reason };
        let key = Key::random().map_err(|e| unreachable(e.to_string()))?;
        let ports = ssh.ports.map(|(from, to)| format!(" --port-range {from}-{to}")).unwrap_or_default();
        let fixed = |option: &str, number| match number {
            Concurrency::Fixed(number) => format!(" --{option} {number}"),
            Concurrency::Measured | Concurrency::MeasuredFrom(_) => String::new(),
        };
        let threads = fixed("readers", settings.readers) + &fixed("writers", settings.writers);
        let agent = format!("agent --one-time{ports}{threads}");
        let remote = match &ssh.install {
            Some(_) => install::command(&agent),
            None => format!("{} {agent}", ssh.remote_program),
        };
        // Data through ssh depends on ssh noticing a dead path, which TCP does late.
        let alive = settings.silence.as_secs().div_ceil(ALIVE.into()).clamp(1, LONGEST);
        let connect = settings.connect.as_secs().clamp(1, LONGEST);
        let mut command = command(ssh);
        for option in [
            format!("ServerAliveInterval={alive}"),
            format!("ServerAliveCountMax={ALIVE}"),
            format!("ConnectTimeout={connect}"),
        ] {
            command.args(["-o", &option]);
        }
        command.args(["-T", "-e", "none", host, &remote]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let named = |e: io::Error| unreachable(format!("{} cannot be run: {e}", ssh.program.join(" ")));
        let mut child = command.spawn().map_err(named)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().map(BufReader::new));
        let stderr = child.stderr.take().ok_or_else(|| io::Error::other("ssh has no standard error"));
        let stderr = stderr.and_then(StderrTail::follow).map_err(named)?;
        let mut remote = Remote { child, stdin, stdout, stderr, server: (name_of(host, ssh), 0), key };
        let greeted = remote.greet(ssh.install.as_ref()).map_err(|e| unreachable(e.to_string()))?;
        let address = match greeted {
            AgentStart::Listens { address, installed } => {
                if let Some(words) = installed {
                    monitor.note(format!("{host}: {words}"));
                }
                address
            }
            AgentStart::NotInstalled(why) => {
                let message = format!("cannot place the program on {host}: {why}");
                return Err(CopyError::Refused(Refusal::new(RefusalKind::Unreachable, message)));
            }
            AgentStart::NotListening(printed) => {
                let status = remote.end();
                return Err(SshExit { host, ssh, status, printed: &printed, stderr: &remote.stderr }.error());
            }
        };
        remote.server.1 = address.port();
        Ok(remote)
    }

    /// Installs the program if requested, sends the key, and waits for the address that the
    /// agent listens on. Other output of login shells is skipped.
    fn greet(&mut self, install: Option<&Offer>) -> io::Result<AgentStart> {
        let (Some(stdin), Some(stdout)) = (&mut self.stdin, &mut self.stdout) else {
            return Ok(AgentStart::NotListening(Vec::new()));
        };
        let mut lines = Lines { from: stdout, left: GREETINGS, first: Vec::new() };
        let mut installed = None;
        if let Some(offer) = install {
            match install::install(stdin, &mut lines, offer)? {
                Installed::Ready(words) => installed = words,
                Installed::Failed(why) => return Ok(AgentStart::NotInstalled(why)),
                Installed::NoScript => return Ok(AgentStart::NotListening(lines.first)),
            }
        }
        // A write error means that the agent ended, which the missing address reports.
        let _ = writeln!(stdin, "{}", self.key.to_hex()).and_then(|()| stdin.flush());
        Ok(match lines.find(listens)? {
            Some(address) => AgentStart::Listens { address, installed },
            None => AgentStart::NotListening(lines.first),
        })
    }

    /// The connection to the agent through ssh; there is only one. The agent ends when it
    /// is closed.
    ///
    /// # Errors
    /// It was taken before, or a socket or thread cannot be created.
    pub(crate) fn channel(&mut self) -> io::Result<TcpStream> {
        let (Some(stdin), Some(stdout)) = (self.stdin.take(), self.stdout.take()) else {
            return Err(io::Error::other("the connection through ssh is in use"));
        };
        let (ours, theirs) = pair()?;
        let other = theirs.try_clone()?;
        let start = |run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name("transfer-ssh".into()).spawn(run).map(drop)
        };
        start(Box::new(move || relay(theirs, stdin)))?;
        start(Box::new(move || {
            let end = other.try_clone();
            relay(stdout, other);
            // Wakes a task that waits for an answer.
            let _ = end.and_then(|end| end.shutdown(Shutdown::Both));
        }))?;
        Ok(ours)
    }
}

/// Result of starting an agent.
enum AgentStart {
    /// It listens on this address; with a note if the program was installed.
    Listens { address: SocketAddr, installed: Option<String> },
    /// The program cannot be installed.
    NotInstalled(String),
    /// It does not listen; the first line printed instead of its address.
    NotListening(Vec<u8>),
}

/// Output of the other machine, line by line.
struct Lines<'a, R> {
    from: &'a mut R,
    /// Lines that may still be read.
    left: usize,
    /// The beginning of the first line that did not match.
    first: Vec<u8>,
}

impl<R: BufRead> Lines<'_, R> {
    /// Reads up to the next matching line; `None` if none arrives.
    fn find<T>(&mut self, looked_for: impl Fn(&[u8]) -> Option<T>) -> io::Result<Option<T>> {
        while let Some(left) = self.left.checked_sub(1) {
            self.left = left;
            let mut line = Vec::new();
            if self.from.by_ref().take(GREETING).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            if let Some(found) = looked_for(&line) {
                return Ok(Some(found));
            }
            if self.first.is_empty() {
                self.first = line.trim_ascii().iter().copied().take(SHOWN).collect();
            }
        }
        Ok(None)
    }
}

/// Parses the address from the agent's line, which may follow other output without a
/// newline.
fn listens(line: &[u8]) -> Option<SocketAddr> {
    let (_, rest) = std::str::from_utf8(line).ok()?.split_once(READY)?;
    rest.trim().trim_end_matches('/').parse().ok()
}

impl Remote {
    /// Ends ssh, and the agent with it; returns ssh's exit status unless it had to be killed.
    fn end(&mut self) -> Option<ExitStatus> {
        if let Ok(Some(status)) = self.child.try_wait() {
            self.stderr.finish();
            return Some(status);
        }
        // Closing its input ends ssh, unless the path is dead: then it would wait until TCP
        // gives up, and is killed instead.
        drop(self.stdin.take());
        let in_time = ends_within(&self.child, EXIT_TIMEOUT);
        if !in_time {
            let _ = self.child.kill();
        }
        let status = self.child.wait().ok();
        self.stderr.finish();
        status.filter(|_| in_time)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.end();
    }
}

/// How long ssh may take to end after its input was closed.
const EXIT_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Whether a child ends within `time`; true if the kernel (before 5.3) cannot tell.
fn ends_within(child: &Child, time: Timespec) -> bool {
    let Ok(process) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) else { return true };
    loop {
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&time)) {
            Err(Errno::INTR) => {}
            Ok(0) => return false,
            _ => return true,
        }
    }
}

fn command(ssh: &Ssh) -> Command {
    let mut words = ssh.program.iter();
    let mut command = Command::new(words.next().map_or("ssh", |word| word));
    command.args(words);
    command
}

/// The host name or address that ssh's configuration has for `host`.
fn name_of(host: &str, ssh: &Ssh) -> String {
    let given = host.rsplit_once('@').map_or(host, |(_, name)| name).trim_matches(['[', ']']).to_owned();
    let configured = command(ssh).args(["-G", host]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let Ok(output) = configured else { return given };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let name = text.lines().find_map(|line| line.strip_prefix("hostname "));
    name.filter(|_| output.status.success()).map_or(given, str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_child_ends_in_time() {
        let spawn = |words: &[&str]| Command::new(words[0]).args(&words[1..]).spawn().expect("started");
        let at_once = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let mut stays = spawn(&["sleep", "600"]);
        assert!(!ends_within(&stays, at_once));
        stays.kill().expect("killed");
        assert!(ends_within(&stays, Timespec { tv_sec: 600, tv_nsec: 0 }));
        stays.wait().expect("ended");
    }
}
