//! A process of its own for what goes on when the verb is done.
//!
//! It is the same program with the same arguments, and a variable that says
//! what it is: what it tells until it is ready is passed on, and then it is
//! alone.

use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use serde_json::Value;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Set for the process in the background, which starts none itself: it tells
/// its log, and nobody else, what happens after it was ready.
const VARIABLE: &str = "LONGHAUL_IN_BACKGROUND";

/// Whether this is the process in the background.
pub(crate) fn is_this() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Leaves the terminal that it was started from.
pub(super) fn leave() {
    if is_this() {
        // It fails for the leader of a group, and then there is nothing to
        // leave; and no directory is to be in use because of it.
        let _ = rustix::process::setsid();
        let _ = std::env::set_current_dir("/");
    }
}

/// The process in the background ends: its log stays only if it has to say
/// something.
pub(super) fn finish(log: &Path, result: &Outcome) {
    if is_this() && result.is_ok() {
        let _ = std::fs::remove_file(log);
    }
}

/// Starts it, and waits until it is ready: what it said then.
pub(super) fn start(log: &Path, output: Output) -> Result<Value, Failure> {
    crate::runtime::make()?;
    let failed = |e: std::io::Error| Failure::failed(format!("cannot go to the background: {e}"));
    let mut options = OpenOptions::new();
    let stderr = options.create(true).write(true).truncate(true).mode(0o600).open(log).map_err(failed)?;
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    // By whatever name it was called.
    command.arg0(crate::helper::SELF);
    // Before the verb: behind it, a `--` may make a device of it.
    if !output.is_json() {
        command.arg("--json");
    }
    command.args(std::env::args_os().skip(1));
    command.env(VARIABLE, "1").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
    let mut child = command.spawn().map_err(failed)?;
    for line in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        let Ok(event) = serde_json::from_str::<Value>(&line.map_err(failed)?) else { continue };
        match event["event"].as_str() {
            Some("ready") => return Ok(event),
            Some("error") => {
                let message = event["message"].as_str().unwrap_or("it failed");
                // It is told here and now.
                let _ = std::fs::remove_file(log);
                return Err(Failure::new(Exit::of(event["exit"].as_u64()), message));
            }
            _ => {}
        }
    }
    let status = child.wait().map_err(failed)?;
    Err(Failure::failed(format!("the process in the background ended with {status}")))
}
