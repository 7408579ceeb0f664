//! `diagnose`

use super::{BytesPerSecond, Seconds, Share};
use longhaul_results::record::Validity;
use serde::Serialize;
use std::collections::BTreeMap;

/// `diagnose`: the findings.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct DiagnoseSummary {
    /// Cost of a file, for each kind of copy.
    pub(crate) fits: Vec<CopyFit>,
    /// Stages of a file.
    pub(crate) split: Option<StageShares>,
    /// Counters of this machine, for a report of a fault.
    pub(crate) seen: Option<String>,
    /// Causes, the first one limits most.
    pub(crate) findings: Vec<FoundCause>,
    /// The remedy that was tried.
    pub(crate) tried: Option<TriedRemedy>,
    /// What is to be known beside the numbers, a sentence each.
    pub(crate) notes: Vec<String>,
    /// Whether the numbers count, and why not: as in [results](../measuring.md#results).
    pub(crate) validity: Validity,
}

/// T = N·t0 + B/R, fitted to copies of one kind, with 95 % intervals.
#[derive(Serialize)]
pub(crate) struct CopyFit {
    /// Kind of the copies.
    pub(crate) copy: String,
    /// Time that a file adds (t0).
    pub(crate) seconds_per_file: Seconds,
    /// Lower end of its interval.
    pub(crate) low: Seconds,
    /// Upper end of the interval.
    pub(crate) high: Seconds,
    /// Rate of the bytes (R); null if nothing bounds it.
    pub(crate) bytes_per_second: BytesPerSecond,
    /// Lower end of its interval.
    pub(crate) rate_low: BytesPerSecond,
    /// Upper end of the interval.
    pub(crate) rate_high: BytesPerSecond,
}

/// How stages make up the cost of a file.
#[derive(Serialize)]
pub(crate) struct StageShares {
    /// Share of each stage, by its name.
    pub(crate) shares: BTreeMap<String, Share>,
    /// Share of what could overlap that does.
    pub(crate) overlap: Share,
    /// Whether the whole lies between the longest stage and their sum: `held`, `below-longest` or
    /// `above-sum`.
    pub(crate) bounds: &'static str,
}

/// A cause that was found, with its remedy.
#[derive(Serialize)]
pub(crate) struct FoundCause {
    /// Name of the cause, such as `slow-open`.
    pub(crate) code: String,
    /// The cause in a sentence.
    pub(crate) cause: String,
    /// What to do.
    pub(crate) remedy: String,
    /// How many times as fast it would be without.
    pub(crate) gain: Option<f64>,
    /// The gain is a lower bound.
    pub(crate) at_least: bool,
    /// What shows it.
    pub(crate) evidence: String,
}

/// A remedy that was tried.
#[derive(Serialize)]
pub(crate) struct TriedRemedy {
    /// Gain that was expected.
    pub(crate) predicted: Option<f64>,
    /// Gain that was measured.
    pub(crate) achieved: Option<f64>,
    /// The command, where the remedy is a setting of a machine or an agent.
    pub(crate) command: Option<String>,
}
