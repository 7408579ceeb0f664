//! Completion in shells: the script asks this program, which knows what exists on this host.

use crate::cli::Cli;
use crate::exit::Failure;
use clap::CommandFactory;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::{CompleteEnv, Shell};
use longhaul_device::arrays::ArrayRecord;
use longhaul_device::attached::Attachment;
use std::ffi::OsStr;

/// Names the shell in the environment of a request for completions.
const VARIABLE: &str = "LONGHAUL_COMPLETE";
const NAME: &str = "longhaul";

/// Answers a request of a completion script, and ends the process, if this is one.
pub(crate) fn answer() {
    CompleteEnv::with_factory(Cli::command).var(VARIABLE).bin(NAME).complete();
}

/// The script that makes `shell` ask this program, as it is found in `PATH`.
pub(crate) fn script(shell: Shell) -> Result<String, Failure> {
    let shells = clap_complete::env::Shells::builtins();
    let completer = shells
        .completer(&shell.to_string())
        .ok_or_else(|| Failure::usage(format!("no completion script is known for {shell}")))?;
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, NAME, NAME, NAME, &mut script).map_err(Failure::failed)?;
    String::from_utf8(script).map_err(Failure::failed)
}

/// Names of arrays.
pub(crate) fn array() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| starting_with(current, array_names()))
}

/// Devices: `array:NAME`, and files.
pub(crate) fn device() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let arrays = array_names().map(|name| format!("array:{name}"));
        let mut all = starting_with(current, arrays);
        all.extend(PathCompleter::any().complete(current));
        all
    })
}

/// Paths of attached devices.
pub(crate) fn attached() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let paths = Attachment::all().into_iter().map(|(attachment, _)| attachment.path);
        starting_with(current, paths.map(|path| path.to_string_lossy().into_owned()))
    })
}

/// A registry that cannot be read completes nothing: the verb says why when it runs.
fn array_names() -> impl Iterator<Item = String> {
    ArrayRecord::all().unwrap_or_default().into_iter().map(|record| record.name)
}

fn starting_with(current: &OsStr, names: impl Iterator<Item = String>) -> Vec<CompletionCandidate> {
    let start = current.to_string_lossy();
    names.filter(|name| name.starts_with(&*start)).map(CompletionCandidate::new).collect()
}
