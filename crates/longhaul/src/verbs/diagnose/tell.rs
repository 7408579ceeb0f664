//! Output of the findings, as text and as events.

use crate::events::{CopyFit, DiagnoseSummary, FoundCause, StageShares, TriedRemedy};
use crate::output::Output;
use longhaul_lab::cause::Finding;
use longhaul_lab::diagnose::{Diagnosis, RemedyTrial, Rung};
use longhaul_lab::model::{Bounds, Fit, Split, Stage};
use longhaul_report::figure::Scale;
use longhaul_results::record::Code;

pub(super) fn tell(diagnosis: &Diagnosis, output: Output) {
    let Diagnosis { ladder, findings, tried, validity, .. } = diagnosis;
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
        bounds: split.bounds.name(),
    };
    let attempt = |t: &RemedyTrial| TriedRemedy {
        predicted: t.predicted,
        achieved: t.achieved,
        command: t.command.clone(),
    };
    output.event(&DiagnoseSummary {
        fits: ladder.fits.iter().map(fit).collect(),
        split: ladder.split.as_ref().map(shares),
        seen: ladder.seen.as_ref().map(|seen| format!("{seen:?}")),
        findings: findings.iter().map(finding).collect(),
        tried: tried.as_ref().map(attempt),
        notes: ladder.notes.clone(),
        validity: validity.clone(),
    });
    if !output.is_json() {
        people(diagnosis, output);
        let mut noted: Vec<Code> = Vec::new();
        for reason in &validity.reasons {
            if !noted.contains(&reason.code) {
                noted.push(reason.code);
                output.note(format_args!("some copies do not count as numbers: {}", reason.detail));
            }
        }
    }
}

fn people(diagnosis: &Diagnosis, output: Output) {
    let Diagnosis { ladder, findings, tried, .. } = diagnosis;
    for (rung, fit) in &ladder.fits {
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
    if let Some(split) = &ladder.split {
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
    for note in &ladder.notes {
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
        (None, None) => "not tried: that remedy is not a setting".into(),
    });
}
