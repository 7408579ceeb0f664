//! The command that runs at the client.

use crate::exit::Failure;
use crate::output::Output;
use longhaul_wan::Wan;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;

/// Runs it until it ends, and returns its exit status as a shell would: 128 and
/// the signal's number for one that a signal ended. `signals` includes SIGCHLD.
pub(super) fn run(
    wan: &Wan,
    program: &OsString,
    arguments: &[OsString],
    signals: &mut Signals,
    output: Output,
) -> Result<i32, Failure> {
    let mut command = wan.client().bound_command(program);
    command.args(arguments);
    if output.is_json() {
        // Standard output is for events.
        command.stdout(std::io::stderr());
    }
    let mut child = command
        .spawn()
        .map_err(|e| Failure::failed(format!("cannot run '{}': {e}", program.to_string_lossy())))?;
    for signal in signals.forever() {
        if signal != SIGCHLD {
            pass_on(&child, signal);
        } else if let Some(status) = child.try_wait().map_err(Failure::failed)? {
            return Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
        }
    }
    Err(Failure::failed("signals have ended"))
}

/// Forwards a signal to the command. A terminal sends SIGINT to the command itself.
fn pass_on(child: &Child, signal: i32) {
    let signal = match signal {
        SIGINT if std::io::stdin().is_terminal() => return,
        SIGINT => Signal::INT,
        SIGHUP => Signal::HUP,
        _ => Signal::TERM,
    };
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // The command is not reaped yet, so that its process ID is still valid.
        let _ = kill_process(pid, signal);
    }
}
