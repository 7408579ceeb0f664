//! The background process that serves a device after the verb has returned.
//!
//! It is a self-exec with the same arguments and an environment variable. The starting process
//! reads its events until `ready` or `error`, reports them, and exits.

use crate::exit::{Exit, Failure};
use crate::output::Output;
use longhaul_device::Reason;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Set for the background process, so that it does not start another one. After `ready` it writes
/// to its log only.
const VARIABLE: &str = "LONGHAUL_IN_BACKGROUND";

/// Whether this is the background process.
pub(crate) fn is_this() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Detaches the background process from its terminal and its working directory.
pub(super) fn leave() {
    if is_this() {
        // `setsid` fails for the leader of a process group, which has no terminal to leave. The
        // working directory would keep its file system busy.
        let _ = rustix::process::setsid();
        let _ = std::env::set_current_dir("/");
    }
}

/// Removes the log when the background process ends without an error.
pub(super) fn finish(log: &Path, is_clean: bool) {
    if is_this() && is_clean {
        let _ = std::fs::remove_file(log);
    }
}

/// Starts the background process and waits for its `ready` event, which is returned.
///
/// # Errors
/// The failure of the background process, or that it could not be started.
pub(super) fn start<T: DeserializeOwned>(log: &Path, output: Output) -> Result<T, Failure> {
    longhaul_device::runtime::make()?;
    let failed = |e: std::io::Error| Failure::failed(format!("cannot start the background process: {e}"));
    let mut options = OpenOptions::new();
    let stderr = options.create(true).write(true).truncate(true).mode(0o600).open(log).map_err(failed)?;
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    // Also if this process was started as `mount.longhaul`.
    command.arg0(crate::helper::SELF);
    // Before the verb: after a `--` in the arguments it would be taken for a device.
    if !output.is_json() {
        command.arg("--json");
    }
    command.args(std::env::args_os().skip(1));
    command.env(VARIABLE, "1").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
    let mut child = command.spawn().map_err(failed)?;
    for line in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        let Ok(event) = serde_json::from_str::<Value>(&line.map_err(failed)?) else { continue };
        match event["event"].as_str() {
            Some("ready") => {
                return serde_json::from_value(event).map_err(Failure::failed);
            }
            Some("error") => {
                let message = event["message"].as_str().unwrap_or("it failed");
                // The caller reports the error, so the log is not needed.
                let _ = std::fs::remove_file(log);
                let reason = event["reason"].as_str().and_then(Reason::of);
                return Err(Failure::new(Exit::of(event["exit"].as_u64()), message).because(reason));
            }
            _ => {}
        }
    }
    let status = child.wait().map_err(failed)?;
    Err(Failure::failed(format!("the process in the background ended with {status}")))
}
