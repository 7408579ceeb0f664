//! Runs of this same program: what is measured so is what a person would have
//! run.

use crate::exit::Failure;
use std::path::PathBuf;

/// What begins the sentence that a run ends with.
const SAYS: &str = "longhaul: ";

/// This program.
pub(crate) fn program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|e| Failure::failed(format!("cannot find this program: {e}")))
}

/// Why a run has failed, of all that it said on standard error.
pub(crate) fn reason(stderr: &[u8]) -> String {
    let said = String::from_utf8_lossy(stderr);
    let last = said.lines().rfind(|line| line.starts_with(SAYS)).unwrap_or("it said nothing");
    last.trim_start_matches(SAYS).to_owned()
}
