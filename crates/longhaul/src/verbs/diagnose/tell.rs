//! Output of the findings, as text and as events.

use super::ladder::Rung;
use super::{LadderResults, RemedyTrial};
use crate::events::{CopyFit, DiagnoseSummary, FoundCause, StageShares, TriedRemedy};
use crate::output::Output;
use longhaul_lab::cause::Finding;
use longhaul_lab::model::{Bounds, Fit, Split, Stage};
use longhaul_report::figure::Scale;
use longhaul_results::record::{Code, Validity};

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
    format!("{}; overlap {overlap:.1} %; longest ≤ whole ≤ sum: {}", shares.join(", "), bounds(split))
}

fn bounds(split: &Split) -> &'static str {
    match split.bounds {
        Bounds::Held => "held",
        Bounds::BelowLongest => "below-longest",
        Bounds::AboveSum => "above-sum",
    }
}

pub(super) fn tell(
    results: &LadderResults,
    findings: &[Finding],
    tried: Option<&RemedyTrial>,
    validity: &Validity,
    output: Output,
) {
    let fit = |(rung, fit): &(Rung, Fit)| CopyFit {
        copy: rung.name().to_owned(),
        seconds_per_file: fit.t0.value,
        low: fit.t0.low,
        high: fit.t0.high,
        bytes_per_second: fit.rate.value,
        rate_low: fit.rate.low,
        rate_high: fit.rate.high,
    };
    let finding = |f: &Finding| FoundCause {
        code: f.cause.code().to_owned(),
        cause: f.cause.to_string(),
        remedy: f.remedy(),
        gain: f.gain,
        at_least: f.is_bound(),
        evidence: f.evidence.clone(),
    };
    let shares = |split: &Split| StageShares {
        shares: Stage::ALL.iter().zip(split.shares).map(|(s, share)| (s.name().to_owned(), share)).collect(),
        overlap: split.overlap,
        bounds: bounds(split),
    };
    let attempt = |t: &RemedyTrial| TriedRemedy {
        predicted: t.predicted,
        achieved: t.achieved,
        command: t.command.clone(),
    };
    output.event(&DiagnoseSummary {
        fits: results.fits.iter().map(fit).collect(),
        split: results.split.as_ref().map(shares),
        seen: results.seen.as_ref().map(|seen| format!("{seen:?}")),
        findings: findings.iter().map(finding).collect(),
        tried: tried.map(attempt),
        notes: results.notes.clone(),
        validity: validity.clone(),
    });
    if !output.is_json() {
        people(results, findings, tried, output);
        let mut noted: Vec<Code> = Vec::new();
        for reason in &validity.reasons {
            if !noted.contains(&reason.code) {
                noted.push(reason.code);
                output.note(format_args!("some copies do not count as numbers: {}", reason.detail));
            }
        }
    }
}

fn people(results: &LadderResults, findings: &[Finding], tried: Option<&RemedyTrial>, output: Output) {
    for (rung, fit) in &results.fits {
        let each = Scale::of("s", fit.t0.value.abs());
        let rate = if fit.rate.value.is_finite() {
            Scale::of("B/s", fit.rate.value).with_unit(fit.rate.value)
        } else {
            "no bound".into()
        };
        output.line(format_args!(
            "{:<8} {} a file (95 % between {} and {}), {rate}",
            rung.name(),
            each.with_unit(fit.t0.value),
            each.number(fit.t0.low),
            each.number(fit.t0.high),
        ));
    }
    if let Some(split) = &results.split {
        output.line(match split.bounds {
            Bounds::Held => format!(
                "a file of the whole takes between its longest stage ({}) and their sum: {:.0} % of what could overlap does",
                split.longest.name(),
                split.overlap * 100.0
            ),
            Bounds::BelowLongest => format!(
                "a file of the whole takes less than {} alone: that was measured under other conditions",
                split.longest.name()
            ),
            Bounds::AboveSum => "a file of the whole takes more than all stages one after the other: they disturb each other".into(),
        });
    }
    for note in &results.notes {
        output.note(note);
    }
    if let Some(first) = findings.first() {
        output.line(first);
    }
    let Some(RemedyTrial { predicted, achieved, command }) = tried else { return };
    let times =
        |gain: &Option<f64>| gain.map_or("not known".into(), |gain| format!("{gain:.2} times as fast"));
    output.line(match (achieved, command) {
        (Some(_), _) => format!("tried: expected {}, achieved {}", times(predicted), times(achieved)),
        (None, Some(command)) => {
            format!("not tried, since it is a setting of a machine or an agent; {command}")
        }
        (None, None) => "not tried: that remedy is no setting".into(),
    });
}
