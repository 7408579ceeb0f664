//! Self-exec of this program for measurements, so that the measured command is the one that a user
//! runs.

use crate::Error;
use longhaul_results::record::{Run, Validity};
use longhaul_results::schema;
use longhaul_transfer::Endpoint;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Prefix of the message of a failure on stderr.
const MESSAGE_PREFIX: &str = "longhaul: ";

/// The path of this program.
pub fn program() -> Result<PathBuf, Error> {
    std::env::current_exe().map_err(|e| Error::failed(format!("cannot find this program: {e}")))
}

/// The message of a failed run, from its stderr.
pub fn reason(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let last = text.lines().rfind(|line| line.starts_with(MESSAGE_PREFIX)).unwrap_or("it printed no message");
    last.trim_start_matches(MESSAGE_PREFIX).to_owned()
}

/// The `summary` event of a run, from its stdout.
pub fn summary(out: &[u8]) -> Result<Value, Error> {
    let lines = String::from_utf8_lossy(out);
    let mut events = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let summary = events.rfind(|event| event["event"] == "summary");
    summary.ok_or_else(no_result)
}

/// The duration of a copy in seconds, from its `summary` event.
pub fn seconds(summary: &Value) -> Result<f64, Error> {
    summary["seconds"].as_f64().ok_or_else(no_result)
}

/// The measured run from the result file of a copy (`--output`), with the `validity` that the
/// caller determined.
pub fn run(result: &Path, validity: &Validity) -> Result<Run, Error> {
    let text = std::fs::read(result).map_err(|e| Error::failed(format!("{}: {e}", result.display())))?;
    let output: schema::Output = serde_json::from_slice(&text).map_err(Error::failed)?;
    let run = output.longhaul.and_then(|record| record.runs.into_iter().next()).ok_or_else(no_result)?;
    Ok(Run { validity: validity.clone(), ..run })
}

fn no_result() -> Error {
    Error::failed("a copy printed no result")
}

/// The argument of `cp` for a path such as `null:` or `machine:` at the machine of `endpoint`.
pub fn at(endpoint: &Endpoint, path: &str) -> String {
    let mut replaced = endpoint.clone();
    match &mut replaced {
        Endpoint::Local(own) | Endpoint::Ssh { path: own, .. } | Endpoint::Agent { path: own, .. } => {
            *own = path.as_bytes().to_vec();
        }
        // This machine reads and writes there.
        Endpoint::Mounted { .. } => replaced = Endpoint::Local(path.as_bytes().to_vec()),
    }
    replaced.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_path_replaces_the_path_of_an_endpoint() {
        let null = |text: &str| at(&Endpoint::parse(text.as_ref()).expect(text), "null:");
        assert_eq!(null("lh://dtn1:7400/incoming/x"), "lh://dtn1:7400/null:");
        assert_eq!(null("lh://[::1]:7401"), "lh://[::1]:7401/null:");
        assert_eq!(null("me@dtn1:incoming"), "me@dtn1:null:");
        assert_eq!(null("incoming"), "null:");
    }

    #[test]
    fn the_duration_is_that_of_the_last_summary() {
        let out = b"{\"event\":\"progress\",\"seconds\":1}\nhello\n{\"event\":\"summary\",\"seconds\":2.5}\n";
        assert_eq!(seconds(&summary(out).expect("a summary")).ok(), Some(2.5));
        assert!(summary(b"{\"event\":\"progress\"}\n").is_err());
        assert!(seconds(&Value::Null).is_err());
    }
}
