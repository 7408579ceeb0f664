//! What a diagnosis says in its record, and as a command.

use super::{LadderResults, RemedyTrial};
use crate::cause::Finding;
use crate::model::{Fit, Split, Stage};

/// Assumed rate of a path in bits per second, where the copies show less: the default of `tune`.
const RATE: f64 = 10e9;

/// The command that applies the settings for this path, given its shortest round trip in seconds
/// and its highest throughput in bits per second.
pub(super) fn tune_command((round_trip, bits): (Option<f64>, f64)) -> String {
    let gigabits = (2.0 * bits).max(RATE) / 1e9;
    let ms = round_trip.map_or(100.0, |seconds| (seconds * 1e3).ceil().max(1.0));
    format!("sudo longhaul tune apply --rate {:.0}Gbit --rtt {ms:.0}ms", gigabits.ceil())
}

/// The conditions of the record.
pub(super) fn conditions(
    results: &LadderResults,
    findings: &[Finding],
    tried: Option<&RemedyTrial>,
) -> Vec<(String, String)> {
    let factor = |gain: Option<f64>| gain.map(|gain| format!("{gain:.3}"));
    let mut all: Vec<(&str, Option<String>)> = Vec::new();
    if let Some(first) = findings.first() {
        all.push(("cause", Some(first.cause.code().into())));
        all.push(("finding", Some(first.to_string())));
        let name = if first.is_bound() { "predicted gain, at least" } else { "predicted gain" };
        all.push((name, factor(first.gain)));
    }
    all.push(("achieved gain", tried.and_then(|tried| factor(tried.achieved))));
    let all = all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let all =
        all.chain(results.fits.iter().map(|(rung, fit)| (format!("{}, all copies", rung.name()), line(fit))));
    let all = all.chain(results.split.iter().map(|split| ("stages of a file".to_owned(), stages(split))));
    let notes = results.notes.iter().enumerate();
    all.chain(notes.map(|(at, note)| (format!("note {}", at + 1), note.clone()))).collect()
}

/// The parameters of a fit with their confidence intervals.
fn line(fit: &Fit) -> String {
    let Fit { t0, rate, .. } = fit;
    format!(
        "t0 {:.6} s (95 % between {:.6} and {:.6}), R {:.0} B/s (95 % between {:.0} and {:.0})",
        t0.value, t0.low, t0.high, rate.value, rate.low, rate.high
    )
}

/// Shares of the stages in the cost of a file, and whether the whole is within their bounds.
fn stages(split: &Split) -> String {
    let share = |(stage, share): (&Stage, f64)| format!("{} {:.1} %", stage.name(), share * 100.0);
    let shares: Vec<String> = Stage::ALL.iter().zip(split.shares).map(share).collect();
    let overlap = split.overlap * 100.0;
    format!("{}; overlap {overlap:.1} %; longest ≤ whole ≤ sum: {}", shares.join(", "), split.bounds.name())
}
