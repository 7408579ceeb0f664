//! Errors of starting an agent over ssh, with the output of ssh and of the other machine.
//!
//! ssh exits with the status of the remote command, or with 255 for an error of its own.

use super::Ssh;
use crate::copy::CopyError;
use crate::wire::{Refusal, RefusalKind, printable};
use std::io::{self, Read, Write};
use std::process::{ChildStderr, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The exit status of ssh for its own errors (ssh(1), EXIT STATUS).
const OWN: i32 = 255;
/// Exit statuses of a shell that cannot execute a program, and that does not find it
/// (POSIX, Shell Command Language, 2.8.2).
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;
/// Bytes kept of the end of standard error.
const KEPT: usize = 4096;
/// How long to wait for the end of standard error after ssh has exited: a persistent
/// master connection (`ControlPersist`) holds it open.
const REST: Duration = Duration::from_millis(300);

/// The standard error of ssh: it is forwarded to this program's, for messages and the
/// login dialogue, and its last bytes are kept.
#[derive(Debug)]
pub(super) struct StderrTail {
    kept: Arc<Mutex<Vec<u8>>>,
    end: Receiver<()>,
}

impl StderrTail {
    /// Follows `stderr` on a thread of its own.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn follow(mut stderr: ChildStderr) -> io::Result<StderrTail> {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let (open, end) = channel();
        let keep = Arc::clone(&kept);
        std::thread::Builder::new().name("transfer-ssh".into()).spawn(move || {
            let _open = open;
            let mut piece = [0; 1024];
            loop {
                match stderr.read(&mut piece) {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Ok(0) | Err(_) => return,
                    Ok(read) => {
                        // Reading continues even if this program's standard error is closed.
                        let _ = io::stderr().write_all(&piece[..read]);
                        let mut kept = keep.lock().unwrap_or_else(PoisonError::into_inner);
                        kept.extend(&piece[..read]);
                        let over = kept.len().saturating_sub(KEPT);
                        kept.drain(..over);
                    }
                }
            }
        })?;
        Ok(StderrTail { kept, end })
    }

    /// Waits for the rest of the output of an ssh that has exited.
    pub(super) fn finish(&self) {
        let _: Result<(), RecvTimeoutError> = self.end.recv_timeout(REST);
    }

    /// The last bytes so far.
    fn text(&self) -> String {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept).into_owned()
    }
}

/// The exit of ssh before the agent printed its address.
pub(super) struct SshExit<'a> {
    pub(super) host: &'a str,
    pub(super) ssh: &'a Ssh,
    /// Exit status; `None` if ssh had to be killed.
    pub(super) status: Option<ExitStatus>,
    /// The first line on its standard output, if there was any.
    pub(super) printed: &'a [u8],
    pub(super) stderr: &'a StderrTail,
}

impl SshExit<'_> {
    /// The error with its cause and advice.
    pub(super) fn error(&self) -> CopyError {
        let output = self.stderr.text();
        let last = output.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
        let code = self.status.and_then(|status| status.code());
        // Output on standard output means that the login succeeded.
        if code == Some(OWN) && self.printed.is_empty() {
            return self.own(&output, last);
        }
        let (host, program) = (self.host, &self.ssh.remote_program);
        let words =
            if last.is_empty() { String::new() } else { format!(" ({})", printable(last.as_bytes())) };
        let why = match (code, self.status) {
            (Some(NOT_FOUND), _) => self.missing(&words),
            (Some(_), _) if last.to_lowercase().contains("command not found") => self.missing(&words),
            (Some(NOT_EXECUTABLE), _) => format!(
                "the program cannot be executed there{words}; is it built for that machine? (--remote-program \
                 names another)"
            ),
            (Some(code), _) => format!(
                "it ended with exit status {code}{words}; '{program} --version' there has to say {}",
                env!("CARGO_PKG_VERSION")
            ),
            (None, Some(status)) => format!("ssh was ended ({status})"),
            (None, None) => "the remote command printed no agent's address and did not end".into(),
        };
        let printed = match self.printed {
            [] => String::new(),
            printed => format!("; instead of its address it printed '{}'", printable(printed)),
        };
        let message = format!("cannot start '{program} agent' on {host}: {why}{printed}");
        CopyError::Refused(Refusal::new(RefusalKind::Unreachable, message))
    }

    fn missing(&self, words: &str) -> String {
        format!(
            "its shell finds no such program{words}; install Longhaul there (docs/install.md), name the \
             program with --remote-program, or let this command place one in your cache there: --remote-install"
        )
    }

    /// An error of ssh itself.
    fn own(&self, output: &str, last: &str) -> CopyError {
        let (host, ssh) = (self.host, self.ssh.program.join(" "));
        // Other lines may follow: those of a ProxyCommand, say.
        let line = |words: &str| output.lines().map(str::trim).rfind(|line| line.contains(words));
        let found = |words: &[&str]| words.iter().find_map(|words| line(words));
        let (kind, what, reason, hint) =
            if let Some(reason) = found(&["Permission denied", "Too many authentication failures"]) {
                (
                    RefusalKind::NotAllowed,
                    "log in at",
                    reason,
                    format!("; '{ssh} {host}' has to let you in first"),
                )
            } else if let Some(reason) = found(&["Host key verification failed"]) {
                let hint = format!("; log in once with '{ssh} {host}', and compare the key of the host");
                (RefusalKind::NotAllowed, "trust", reason, hint)
            } else if let Some(reason) = found(&["Could not resolve hostname"]) {
                (RefusalKind::Unreachable, "reach", reason, "; check the name".into())
            } else if let Some(reason) = found(&["Connection refused"]) {
                let hint = "; does sshd run there, on that port? (another port: --ssh 'ssh -p PORT')";
                (RefusalKind::Unreachable, "reach", reason, hint.into())
            } else if let Some(reason) = found(&["timed out"]) {
                let hint = "; does a firewall drop what goes to that port?";
                (RefusalKind::TimedOut, "reach", reason, hint.into())
            } else {
                (RefusalKind::Unreachable, "reach", last, format!("; '{ssh} {host} true' has to work first"))
            };
        let reason = printable(reason.strip_prefix("ssh: ").unwrap_or(reason).as_bytes()).into_owned();
        let reason = if reason.is_empty() { format!("it ended with exit status {OWN}") } else { reason };
        CopyError::Refused(Refusal::new(kind, format!("ssh cannot {what} {host}: {reason}{hint}")))
    }
}
