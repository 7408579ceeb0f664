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

use crate::copy::{CopyError, Settings};
use crate::seal::Key;
use crate::tune::Concurrency;
use crate::wire::printable;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

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
        Ssh { program: vec!["ssh".into()], remote_program: "longhaul".into(), ports: None, via: Via::Any }
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

/// A running agent on another machine.
#[derive(Debug)]
pub(crate) struct Remote {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
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
    pub(crate) fn start(host: &str, settings: &Settings) -> Result<Remote, CopyError> {
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
        let remote = format!("{} agent --one-time{ports}{threads}", ssh.remote_program);
        // What goes through ssh ends with it: on a dead path TCP would keep it for long.
        let alive = settings.silence.as_secs().div_ceil(ALIVE.into()).clamp(1, 86_400);
        let [alive, count] = [format!("ServerAliveInterval={alive}"), format!("ServerAliveCountMax={ALIVE}")];
        let mut command = command(ssh);
        command
            .args(["-T", "-e", "none", "-o", &alive, "-o", &count, host, &remote])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let named = |e: io::Error| unreachable(format!("{} cannot be run: {e}", ssh.program.join(" ")));
        let mut child = command.spawn().map_err(named)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().map(BufReader::new));
        let mut remote = Remote { child, stdin, stdout, server: (name_of(host, ssh), 0), key };
        let address = remote.greet().map_err(|e| unreachable(e.to_string()))?.map_err(|said| {
            let program = &ssh.remote_program;
            let said = match &said[..] {
                [] => String::new(),
                said => format!("; in place of its address came '{}'", printable(said)),
            };
            unreachable(format!(
                "ssh works, but '{program} agent' does not start there; is Longhaul installed? (see \
                 --remote-program){said}"
            ))
        })?;
        remote.server.1 = address.port();
        Ok(remote)
    }

    /// Hands the key over, and waits for where it listens; or else the first that came
    /// in its place. What a login shell says to everybody is passed over.
    fn greet(&mut self) -> io::Result<Result<SocketAddr, Vec<u8>>> {
        let mut first = Vec::new();
        let (Some(stdin), Some(stdout)) = (&mut self.stdin, &mut self.stdout) else { return Ok(Err(first)) };
        // Whoever has ended already is told of below, by saying nothing.
        let _ = writeln!(stdin, "{}", self.key.to_hex()).and_then(|()| stdin.flush());
        for _ in 0..GREETINGS {
            let mut line = Vec::new();
            if stdout.by_ref().take(GREETING).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            if let Some(address) = listens(&line) {
                return Ok(Ok(address));
            }
            if first.is_empty() {
                first = line.trim_ascii().iter().copied().take(SHOWN).collect();
            }
        }
        Ok(Err(first))
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

/// Where an agent says that it listens. Something without an end of line may be before
/// that.
fn listens(line: &[u8]) -> Option<SocketAddr> {
    let (_, rest) = std::str::from_utf8(line).ok()?.split_once(READY)?;
    rest.trim().trim_end_matches('/').parse().ok()
}

/// Two ends of a connection within this machine.
fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let ours = TcpStream::connect(listener.local_addr()?)?;
    loop {
        let (theirs, peer) = listener.accept()?;
        // Somebody else on this machine may have been faster.
        if peer == ours.local_addr()? {
            return Ok((ours, theirs));
        }
    }
}

/// Bytes that are relayed at once: an ssh channel's packets are smaller.
const PIECE: usize = 64 << 10;

/// Hands bytes on until either end has gone.
fn relay(mut from: impl Read, mut to: impl Write) {
    let mut piece = vec![0; PIECE];
    loop {
        let read = match from.read(&mut piece) {
            Ok(0) => return,
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        if to.write_all(&piece[..read]).and_then(|()| to.flush()).is_err() {
            return;
        }
    }
}

/// What an agent that was started over ssh does until it is to end: nothing, or,
/// if something comes from `input`, one connection to its own `address` with
/// that.
///
/// # Errors
/// Its own address cannot be reached.
pub fn carry(
    mut input: impl Read,
    output: impl Write + Send + 'static,
    address: SocketAddr,
) -> io::Result<()> {
    let mut first = [0];
    if input.read(&mut first)? == 0 {
        return Ok(());
    }
    let mut address = address;
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.write_all(&first)?;
    let back = stream.try_clone()?;
    std::thread::Builder::new().name("transfer-ssh".into()).spawn(move || relay(back, output))?;
    relay(input, stream);
    Ok(())
}

impl Drop for Remote {
    fn drop(&mut self) {
        // Its input ends, so it does; on a path that is dead it would wait for an
        // answer until TCP gives up.
        drop(self.stdin.take());
        if !ends_within(&self.child, PATIENCE) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
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
    fn an_agent_that_nobody_speaks_to_ends_with_its_input() {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
        carry(io::empty(), io::sink(), nowhere).expect("nothing to carry");
    }

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

    #[test]
    fn a_connection_is_carried_both_ways() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
        let address = SocketAddr::from(([0, 0, 0, 0], listener.local_addr().expect("bound").port()));
        let agent = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accepted");
            let mut question = [0; 8];
            stream.read_exact(&mut question).expect("read");
            stream.write_all(b"answered").expect("written");
            question
        });
        let (mut here, input) = pair().expect("joined");
        let output = input.try_clone().expect("cloned");
        let carrying = std::thread::spawn(move || carry(input, output, address));
        here.write_all(b"question").expect("written");
        let mut answer = [0; 8];
        here.read_exact(&mut answer).expect("read");
        drop(here);
        assert_eq!((&agent.join().expect("joined"), &answer), (b"question", b"answered"));
        carrying.join().expect("joined").expect("carried");
    }
}
