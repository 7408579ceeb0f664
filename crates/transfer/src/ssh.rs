//! An agent for one copy, started on another machine over the user's own ssh.
//!
//! Invariants:
//! - the key goes through ssh's encrypted channel, never through an argument, and
//!   is good for this agent only;
//! - the agent ends when this side does, since its standard input ends.
//!
//! Where the agent's port cannot be reached, one connection goes through ssh
//! itself: what comes on the agent's standard input goes to its own port, and
//! what that answers goes back.

mod carry;
mod failure;
mod install;
mod program;

use crate::copy::{CopyError, Settings};
use crate::monitor::Monitor;
use crate::noise::Key;
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
    /// The ssh program and arguments that come first.
    pub program: Vec<String>,
    /// What this program is called over there.
    pub remote_program: String,
    /// Ports that data connections may use; any, if there is nothing here.
    pub ports: Option<(u16, u16)>,
    /// Which way the data goes.
    pub via: Via,
    /// Place one of these there, in the user's cache, and run that.
    pub install: Option<Offer>,
}

/// Which way the data of a copy over ssh goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Via {
    /// Over connections of its own; through ssh where those are impossible.
    #[default]
    Any,
    /// Over connections of its own, or not at all.
    Direct,
    /// Through ssh.
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

/// The first word that an agent says when it listens; its address follows.
const READY: &str = "ready lh://";
/// The most lines that the shells of the other machine may say before that, and bytes
/// of each.
const GREETINGS: usize = 100;
const GREETING: u64 = 4096;
/// Of what came in place of that, people see so many bytes.
const SHOWN: usize = 200;
/// How often ssh asks whether the other machine is still there, in the time after
/// which it is given up.
const ALIVE: u32 = 3;
/// The longest time in seconds that ssh is given for anything.
const LONGEST: u64 = 86_400;

/// A running agent on another machine.
#[derive(Debug)]
pub(crate) struct Remote {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
    said: StderrTail,
    /// Where it is reached.
    pub(crate) server: (String, u16),
    /// What it wants to be shown.
    pub(crate) key: Key,
}

impl Remote {
    /// Starts an agent on `host` (as ssh takes it). Blocks for as long as ssh
    /// takes, which may ask for a password.
    ///
    /// # Errors
    /// ssh fails, or there is no such program over there.
    pub(crate) fn start(host: &str, settings: &Settings, monitor: &Monitor) -> Result<Remote, CopyError> {
        let ssh = &settings.ssh;
        let server = host.to_owned();
        let unreachable = |reason: String| CopyError::Unreachable { server: server.clone(), reason };
        let key = Key::random().map_err(|e| unreachable(e.to_string()))?;
        let ports = ssh.ports.map(|(from, to)| format!(" --port-range {from}-{to}")).unwrap_or_default();
        let fixed = |option: &str, number| match number {
            Concurrency::Fixed(number) => format!(" --{option} {number}"),
            Concurrency::Measured => String::new(),
        };
        let threads = fixed("readers", settings.readers) + &fixed("writers", settings.writers);
        let agent = format!("agent --one-time{ports}{threads}");
        let remote = match &ssh.install {
            Some(_) => install::command(&agent),
            None => format!("{} {agent}", ssh.remote_program),
        };
        // What goes through ssh ends with it: on a dead path TCP would keep it for long.
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
        let said = stderr.and_then(StderrTail::follow).map_err(named)?;
        let mut remote = Remote { child, stdin, stdout, said, server: (name_of(host, ssh), 0), key };
        let greeted = remote.greet(ssh.install.as_ref()).map_err(|e| unreachable(e.to_string()))?;
        let address = match greeted {
            AgentStart::Listens { address, placed } => {
                if let Some(words) = placed {
                    monitor.note(format!("{host}: {words}"));
                }
                address
            }
            AgentStart::NotPlaced(why) => {
                let message = format!("cannot place the program on {host}: {why}");
                return Err(CopyError::Refused(Refusal::new(RefusalKind::Unreachable, message)));
            }
            AgentStart::Not(printed) => {
                let status = remote.end();
                return Err(SshExit { host, ssh, status, printed: &printed, said: &remote.said }.error());
            }
        };
        remote.server.1 = address.port();
        Ok(remote)
    }

    /// Places the program if that is wanted, hands the key over, and waits for where the agent
    /// listens. What a login shell says to everybody is passed over.
    fn greet(&mut self, install: Option<&Offer>) -> io::Result<AgentStart> {
        let (Some(stdin), Some(stdout)) = (&mut self.stdin, &mut self.stdout) else {
            return Ok(AgentStart::Not(Vec::new()));
        };
        let mut lines = Lines { from: stdout, left: GREETINGS, first: Vec::new() };
        let mut placed = None;
        if let Some(offer) = install {
            match install::install(stdin, &mut lines, offer)? {
                Installed::There(words) => placed = words,
                Installed::Failed(why) => return Ok(AgentStart::NotPlaced(why)),
                Installed::Nothing => return Ok(AgentStart::Not(lines.first)),
            }
        }
        // An agent that has ended already says nothing, and is reported by that.
        let _ = writeln!(stdin, "{}", self.key.to_hex()).and_then(|()| stdin.flush());
        Ok(match lines.find(listens)? {
            Some(address) => AgentStart::Listens { address, placed },
            None => AgentStart::Not(lines.first),
        })
    }

    /// A connection to the agent through ssh. The agent lives as long as that is
    /// open: there is one only.
    ///
    /// # Errors
    /// There is no socket, or it was taken already.
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
            // Who waits for an answer hears that there will be none.
            let _ = end.and_then(|end| end.shutdown(Shutdown::Both));
        }))?;
        Ok(ours)
    }
}

/// What came of starting an agent.
enum AgentStart {
    /// It listens here; in words, if its program was placed.
    Listens { address: SocketAddr, placed: Option<String> },
    /// Its program cannot be placed, for this reason.
    NotPlaced(String),
    /// It does not listen; the first line that came in place of its address.
    Not(Vec<u8>),
}

/// What comes from the other machine, line by line.
struct Lines<'a, R> {
    from: &'a mut R,
    /// The most lines that may still come.
    left: usize,
    /// The beginning of the first that was not looked for.
    first: Vec<u8>,
}

impl<R: BufRead> Lines<'_, R> {
    /// The next line that is one of those looked for, if it comes.
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

/// Where an agent says that it listens. Something without an end of line may be before
/// that.
fn listens(line: &[u8]) -> Option<SocketAddr> {
    let (_, rest) = std::str::from_utf8(line).ok()?.split_once(READY)?;
    rest.trim().trim_end_matches('/').parse().ok()
}

impl Remote {
    /// Ends ssh, and the agent with it. How ssh ended, unless it had to be killed.
    fn end(&mut self) -> Option<ExitStatus> {
        if let Ok(Some(status)) = self.child.try_wait() {
            self.said.finish();
            return Some(status);
        }
        // Its input ends, so it does; on a path that is dead it would wait for an
        // answer until TCP gives up.
        drop(self.stdin.take());
        let in_time = ends_within(&self.child, PATIENCE);
        if !in_time {
            let _ = self.child.kill();
        }
        let status = self.child.wait().ok();
        self.said.finish();
        status.filter(|_| in_time)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.end();
    }
}

/// How long ssh may take to end once it is to.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Whether it ends in time, as far as the kernel can tell (since 5.3).
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

/// The name or address that ssh's configuration has for `host`.
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
    fn who_does_not_end_is_not_waited_for() {
        let spawn = |words: &[&str]| Command::new(words[0]).args(&words[1..]).spawn().expect("started");
        let at_once = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let mut stays = spawn(&["sleep", "600"]);
        assert!(!ends_within(&stays, at_once));
        stays.kill().expect("killed");
        assert!(ends_within(&stays, Timespec { tv_sec: 600, tv_nsec: 0 }));
        stays.wait().expect("ended");
    }
}
