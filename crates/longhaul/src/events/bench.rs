//! `bench`, `netbench`
//!
//! `bench --json` and `netbench --json` print one document in fio's layout, a
//! [result](../measuring.md#results), in place of events.

use serde::Serialize;

/// `netbench --listen`: the server can be connected to.
#[derive(Serialize)]
#[serde(tag = "event", rename = "ready")]
pub(crate) struct NetbenchReady {
    /// Address that the server listens on.
    pub(crate) listen: String,
}

/// `bench --compare`: the comparison of result B with result A.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct CompareSummary {
    /// Of all numbers: `better`, `worse`, `same` or `unknown`.
    pub(crate) verdict: &'static str,
    /// Numbers that both results have.
    pub(crate) numbers: Vec<ComparedNumber>,
    /// Names of numbers that only A has.
    pub(crate) only_a: Vec<String>,
    /// Names of numbers that only B has.
    pub(crate) only_b: Vec<String>,
    /// What the results do not have in common, a sentence each.
    pub(crate) differences: Vec<String>,
}

/// A number of both results.
#[derive(Serialize)]
pub(crate) struct ComparedNumber {
    /// Name of the number.
    pub(crate) name: String,
    /// Unit of the number.
    pub(crate) unit: String,
    /// B divided by A.
    pub(crate) ratio: Option<f64>,
    /// Lower end of the interval of the ratio.
    pub(crate) low: Option<f64>,
    /// Upper end of the interval of the ratio.
    pub(crate) high: Option<f64>,
    /// Confidence of the interval: 0.95.
    pub(crate) confidence: f64,
    /// `better`, `worse`, `same`, `unknown`, or `void` if one does not count.
    pub(crate) verdict: &'static str,
    /// Why it is void.
    pub(crate) reason: Option<String>,
    /// Which is better: `higher` or `lower`.
    pub(crate) better: &'static str,
    /// The number in A.
    pub(crate) a: ComparedSample,
    /// The number in B.
    pub(crate) b: ComparedSample,
}

/// Runs of one number in one result.
#[derive(Serialize)]
pub(crate) struct ComparedSample {
    /// Mean of the runs.
    pub(crate) mean: f64,
    /// Their standard deviation.
    pub(crate) deviation: f64,
    /// Number of runs.
    pub(crate) runs: usize,
}
