//! Runs of this same program: what is measured so is what a person would have
//! run.

use crate::exit::Failure;
use longhaul_bench::record::{Run, Validity};
use longhaul_bench::schema;
use longhaul_transfer::Endpoint;
use serde_json::Value;
use std::path::{Path, PathBuf};

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

/// The last event of a run.
pub(crate) fn summary(out: &[u8]) -> Result<Value, Failure> {
    let lines = String::from_utf8_lossy(out);
    let mut events = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let summary = events.rfind(|event| event["event"] == "summary");
    summary.ok_or_else(said_nothing)
}

/// Seconds that a copy took, by its summary.
pub(crate) fn seconds(summary: &Value) -> Result<f64, Failure> {
    summary["seconds"].as_f64().ok_or_else(said_nothing)
}

/// What a copy took, by the result that it has written (`--output`), and whether
/// it counts, by who watched it.
pub(crate) fn run(result: &Path, validity: &Validity) -> Result<Run, Failure> {
    let told = std::fs::read(result).map_err(|e| Failure::failed(format!("{}: {e}", result.display())))?;
    let told: schema::Output = serde_json::from_slice(&told).map_err(Failure::failed)?;
    let run = told.longhaul.and_then(|record| record.runs.into_iter().next()).ok_or_else(said_nothing)?;
    Ok(Run { validity: validity.clone(), ..run })
}

fn said_nothing() -> Failure {
    Failure::failed("a copy said nothing of what it took")
}

/// A path that is no file, such as `null:` or `machine:`, at the machine of an
/// endpoint; as `cp` takes it.
pub(crate) fn at(endpoint: &Endpoint, path: &str) -> String {
    let mut there = endpoint.clone();
    let (Endpoint::Local(own) | Endpoint::Ssh { path: own, .. } | Endpoint::Agent { path: own, .. }) =
        &mut there;
    *own = path.as_bytes().to_vec();
    there.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_at_the_machine_of_an_endpoint() {
        let null = |text: &str| at(&Endpoint::parse(text.as_ref()).expect(text), "null:");
        assert_eq!(null("lh://dtn1:7400/incoming/x"), "lh://dtn1:7400/null:");
        assert_eq!(null("lh://[::1]:7401"), "lh://[::1]:7401/null:");
        assert_eq!(null("me@dtn1:incoming"), "me@dtn1:null:");
        assert_eq!(null("incoming"), "null:");
    }

    #[test]
    fn the_last_summary_of_a_run_says_what_it_took() {
        let out = b"{\"event\":\"progress\",\"seconds\":1}\nhello\n{\"event\":\"summary\",\"seconds\":2.5}\n";
        assert_eq!(seconds(&summary(out).expect("a summary")).ok(), Some(2.5));
        assert!(summary(b"{\"event\":\"progress\"}\n").is_err());
        assert!(seconds(&Value::Null).is_err());
    }
}
