//! `longhaul ctl`.

use super::target::control;
use crate::arguments::parse_time;
use crate::events::{HostEnded, TargetEnded};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::rpc::{self, CallError};
use clap::Subcommand;
use longhaul_block::units::format_size;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reaches the targets that this user runs on this host, each by a socket of its own
in the runtime directory ($XDG_RUNTIME_DIR/longhaul; /run/longhaul of root).
Other programs may use these: the protocol is JSON-RPC 2.0.

Examples:
  longhaul ctl status
  longhaul ctl reload
  longhaul ctl disconnect nqn.2014-08.org.example:host     # after 'key retire'
  longhaul ctl --pid 4711 stop")]
pub(crate) struct CtlArgs {
    /// Process ID of the target [default: the only one; of status, all]
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Longest time to wait for an answer
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "5m")]
    timeout: Duration,
    #[command(subcommand)]
    command: CtlCommand,
}

#[derive(Debug, Subcommand)]
enum CtlCommand {
    /// Show what a target serves, and which hosts are connected
    Status,
    /// Read the configuration again and apply it, as SIGHUP does
    Reload {
        /// Apply it also if hosts lose what they use, as SIGUSR1 does
        #[arg(long)]
        force: bool,
    },
    /// End the connections of a host in order; it may connect again if it is allowed to
    Disconnect {
        /// NQN of the host
        #[arg(value_name = "HOSTNQN")]
        host: String,
    },
    /// Complete the I/O under way, flush, and end, as SIGTERM does
    Stop,
}

/// A target that runs on this host.
struct RunningTarget {
    pid: u32,
    socket: PathBuf,
    limit: Duration,
}

impl RunningTarget {
    fn call(&self, method: &str, params: Value) -> Result<Value, CallError> {
        rpc::call(&self.socket, method, params, self.limit)
    }

    fn failure(&self, what: &str, e: CallError) -> Failure {
        let exit = match &e {
            CallError::Gone => Exit::Unreachable,
            CallError::TimedOut(_) => Exit::TimedOut,
            CallError::Failed(_) => Exit::Failed,
            CallError::Refused(refused) => Exit::of(u64::try_from(refused.code).ok()),
        };
        Failure::new(exit, format_args!("target {}: {what}: {e}", self.pid))
    }
}

pub(crate) fn run(args: &CtlArgs, output: Output) -> Outcome {
    let running = |(pid, socket)| RunningTarget { pid, socket, limit: args.timeout };
    let all: Vec<RunningTarget> = control::sockets().into_iter().map(running).collect();
    if let CtlCommand::Status = args.command {
        return status(args.pid, all, output);
    }
    // A process that was killed has left its socket.
    let lives = |target: &RunningTarget| !matches!(target.call("status", Value::Null), Err(CallError::Gone));
    let mut chosen: Vec<RunningTarget> = match args.pid {
        Some(pid) => all.into_iter().filter(|target| target.pid == pid).collect(),
        None => all.into_iter().filter(lives).collect(),
    };
    let Some(target) = chosen.pop() else { return Err(no_target(args.pid)) };
    if let Some(other) = chosen.last() {
        return Err(Failure::usage(format_args!(
            "several targets run here, {} and {} among them: name one with --pid ('longhaul ctl status' shows them)",
            other.pid, target.pid
        )));
    }
    match &args.command {
        CtlCommand::Status => Ok(()),
        CtlCommand::Reload { force } => reload(&target, *force, output),
        CtlCommand::Disconnect { host } => disconnect(&target, host, output),
        CtlCommand::Stop => stop(&target, output),
    }
}

fn no_target(pid: Option<u32>) -> Failure {
    let which = pid.map_or(String::new(), |pid| format!(" with the process ID {pid}"));
    Failure::new(
        Exit::Unreachable,
        format_args!("this user runs no target{which} on this host (one of root is reached with sudo)"),
    )
}

fn status(pid: Option<u32>, all: Vec<RunningTarget>, output: Output) -> Outcome {
    let mut shown = 0;
    for target in all.iter().filter(|target| pid.is_none_or(|pid| target.pid == pid)) {
        let status = match target.call("status", Value::Null) {
            Err(CallError::Gone) => continue,
            status => status.map_err(|e| target.failure("its status", e))?,
        };
        shown += 1;
        output.event(&status);
        if !output.is_json() {
            show(&status, output);
        }
    }
    if shown == 0 { Err(no_target(pid)) } else { Ok(()) }
}

/// The entries of a list.
fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_default()
}

fn show(status: &Value, output: Output) {
    let listen: Vec<&str> = list(status, "listen").iter().filter_map(Value::as_str).collect();
    output.line(format_args!(
        "target {}: {}, version {}, {} of {} connections, {} of {} of memory",
        number(status, "pid"),
        listen.join(", "),
        text(status, "version"),
        number(status, "connections"),
        number(status, "connections_max"),
        format_size(number(status, "memory_used")),
        format_size(number(status, "memory_max")),
    ));
    for export in list(status, "exports") {
        let access = match text(export, "access") {
            "optimized" => String::new(),
            access => format!(", {access}"),
        };
        output.line(format_args!(
            "  {} namespace {}: {}, {}{access}",
            text(export, "name"),
            number(export, "nsid"),
            format_size(number(export, "size")),
            text(export, "nqn"),
        ));
    }
    for host in list(status, "hosts") {
        let name = match text(host, "host") {
            "" => "a host without a name",
            name => name,
        };
        let rights = if host["read_only"] == true { ", may only read" } else { "" };
        output.line(format_args!(
            "  controller {} of {} for {name}: {} read, {} written{rights}",
            number(host, "controller"),
            text(host, "subsystem"),
            format_size(number(host, "bytes_read")),
            format_size(number(host, "bytes_written")),
        ));
    }
}

fn reload(target: &RunningTarget, force: bool, output: Output) -> Outcome {
    let params = json!({ "force": force });
    let mut event = target.call("reload", params).map_err(|e| match e {
        // The sentence names the signal; here there is a flag.
        CallError::Refused(refused) if refused.code == Exit::Refused as i64 && !force => {
            let mut failure = target.failure("the configuration is not applied", CallError::Refused(refused));
            failure.message += "; or 'longhaul ctl reload --force'";
            failure
        }
        e => target.failure("the configuration is not applied", e),
    })?;
    let text = event.as_object_mut().and_then(|event| event.remove("text"));
    output.event(&event);
    if !output.is_json() {
        output.line(text.as_ref().and_then(Value::as_str).unwrap_or("applied"));
        for key in list(&event, "restart").iter().filter_map(Value::as_str) {
            output.line(format_args!("{key} has changed: restart the target to apply it"));
        }
    }
    Ok(())
}

fn disconnect(target: &RunningTarget, host: &str, output: Output) -> Outcome {
    let done = target.call("disconnect", json!({ "host": host }));
    let controllers =
        number(&done.map_err(|e| target.failure("cannot disconnect the host", e))?, "controllers");
    output.event(&HostEnded { host: host.to_owned(), pid: target.pid, controllers });
    if controllers == 0 {
        return Err(Failure {
            in_result: true,
            ..Failure::failed(format_args!("target {}: {host} is not connected", target.pid))
        });
    }
    if !output.is_json() {
        let plural = if controllers == 1 { "" } else { "s" };
        output.line(format_args!("{host}: {controllers} controller{plural} ended"));
    }
    Ok(())
}

fn stop(target: &RunningTarget, output: Output) -> Outcome {
    let failed = |e: rustix::io::Errno| Failure::failed(format_args!("target {}: {e}", target.pid));
    // Opened before it is asked: afterwards the number may be that of another process.
    let pid =
        i32::try_from(target.pid).ok().and_then(Pid::from_raw).ok_or_else(|| no_target(Some(target.pid)))?;
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(failed)?;
    target.call("stop", Value::Null).map_err(|e| target.failure("cannot stop it", e))?;
    let limit = Timespec::try_from(target.limit).map_err(|_| Failure::usage("--timeout is too long"))?;
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    if poll(&mut ended, Some(&limit)).map_err(failed)? == 0 {
        let message = format!(
            "target {}: it was told to stop, and has not ended within {} s",
            target.pid,
            target.limit.as_secs()
        );
        return Err(Failure::new(Exit::TimedOut, message));
    }
    output.event(&TargetEnded { pid: target.pid });
    if !output.is_json() {
        output.line(format_args!("target {} has ended", target.pid));
    }
    Ok(())
}
