//! An agent for one copy, started on another machine over the user's own ssh.
//!
//! Invariants:
//! - the key goes through ssh's encrypted channel, never through an argument, and
//!   is good for this agent only;
//! - the agent ends when this side does, since its standard input ends.

use crate::copy::CopyError;
use crate::seal::Key;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
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
}

impl Default for Ssh {
    fn default() -> Ssh {
        Ssh { program: vec!["ssh".into()], remote_program: "longhaul".into(), ports: None }
    }
}

/// The first word that an agent says when it listens; its address follows.
const READY: &str = "ready lh://";

/// A running agent on another machine.
#[derive(Debug)]
pub(crate) struct Remote {
    child: Child,
    stdin: Option<ChildStdin>,
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
    pub(crate) fn start(host: &str, ssh: &Ssh) -> Result<Remote, CopyError> {
        let server = host.to_owned();
        let unreachable = |reason: String| CopyError::Unreachable { server: server.clone(), reason };
        let key = Key::random().map_err(|e| unreachable(e.to_string()))?;
        let ports = ssh.ports.map(|(from, to)| format!(" --port-range {from}-{to}")).unwrap_or_default();
        let remote = format!("{} agent --one-time{ports}", ssh.remote_program);
        let mut command = command(ssh);
        command.args(["-T", "-e", "none", host, &remote]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let named = |e: io::Error| unreachable(format!("{} cannot be run: {e}", ssh.program.join(" ")));
        let mut child = command.spawn().map_err(named)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let mut remote = Remote { child, stdin, server: (name_of(host, ssh), 0), key };
        let said = remote.greet(stdout).map_err(|e| unreachable(e.to_string()))?;
        let address =
            said.strip_prefix(READY).and_then(|rest| rest.trim().trim_end_matches('/').parse().ok());
        let Some(address): Option<SocketAddr> = address else {
            let program = &ssh.remote_program;
            return Err(unreachable(format!(
                "ssh works, but '{program} agent' does not start there; is Longhaul installed? (see --remote-program)"
            )));
        };
        remote.server.1 = address.port();
        Ok(remote)
    }

    /// Hands the key over, and waits for the first line.
    fn greet(&mut self, stdout: Option<ChildStdout>) -> io::Result<String> {
        let mut line = String::new();
        if let (Some(stdin), Some(stdout)) = (&mut self.stdin, stdout) {
            // Whoever has ended already is told of below, by saying nothing.
            let _ = writeln!(stdin, "{}", self.key.to_hex()).and_then(|()| stdin.flush());
            BufReader::new(stdout).read_line(&mut line)?;
        }
        Ok(line)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // Its input ends, so it does.
        drop(self.stdin.take());
        let _ = self.child.wait();
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
