//! `study`

use serde::Serialize;

/// `study`: a measurement begins.
#[derive(Serialize)]
#[serde(tag = "event", rename = "progress")]
pub(crate) struct StudyMeasurement<'a> {
    /// Name of the study.
    pub(crate) study: &'a str,
    /// Number of the measurement, from 1.
    pub(crate) number: usize,
    /// Number of measurements in all.
    pub(crate) of: usize,
    /// Name of its first value.
    pub(crate) name: &'a str,
    /// Estimated time left; null before the first one has ended.
    pub(crate) seconds_left: Option<super::Seconds>,
}

/// `study`: the end.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct StudySummary {
    /// Of a single study.
    #[serde(flatten)]
    pub(crate) one: Option<StudyNumbers>,
    /// Of `study all`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) results: Option<Vec<StudyNumbers>>,
    /// The page, with `--report`.
    pub(crate) page: Option<String>,
}

/// What a study measured.
#[derive(Serialize)]
pub(crate) struct StudyNumbers {
    /// The result file.
    pub(crate) result: String,
    /// Number of values measured.
    pub(crate) numbers: usize,
    /// Number of values planned.
    pub(crate) wanted: usize,
    /// Number of values that do not count.
    pub(crate) do_not_count: usize,
    /// Number of values whose measurement failed.
    pub(crate) failed: usize,
    /// Number of values that cannot be measured on this machine.
    pub(crate) unavailable: usize,
}
