//! `longhaul bench --compare A.json B.json`.

use crate::events::{CompareSummary, ComparedNumber, ComparedSample};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use comfy_table::Table;
use longhaul_report::compare::{Compared, Comparison, Verdict, compare};
use longhaul_report::figure::Scale;
use longhaul_results::record::Better;
use longhaul_results::stats::{CONFIDENCE, Summary};
use longhaul_results::{Document, ReadError};
use std::path::Path;

impl From<ReadError> for Failure {
    fn from(e: ReadError) -> Failure {
        match e {
            ReadError::Io { .. } => Failure::failed(e),
            e => Failure::usage(e),
        }
    }
}

pub(super) fn run(a: &Path, b: &Path, output: Output) -> Outcome {
    let comparison = compare(&Document::load(a)?, &Document::load(b)?);
    if comparison.cells.is_empty() {
        let message = format!("{} and {} have no number of the same name and unit", a.display(), b.display());
        return Err(Failure::failed(message));
    }
    output.event(&event(&comparison));
    if !output.is_json() {
        print(&comparison, output);
    }
    judge(&comparison).map_err(|failure| Failure { in_result: true, ..failure })
}

/// The exit status: failure if a value is worse, partial success if a value has no verdict.
fn judge(comparison: &Comparison) -> Outcome {
    let all = comparison.cells.len();
    let names = |is: fn(&Verdict) -> bool| -> Vec<&str> {
        let found = comparison.cells.iter().filter(|cell| is(&cell.verdict));
        found.map(|cell| cell.name.as_str()).collect()
    };
    let worse = names(|verdict| *verdict == Verdict::Worse);
    if !worse.is_empty() {
        let message = format!("{} of {all} numbers are worse: {}", worse.len(), worse.join(", "));
        return Err(Failure::failed(message));
    }
    let void = names(|verdict| matches!(verdict, Verdict::Void(_) | Verdict::NoRatio));
    if !void.is_empty() {
        let void = void.len();
        let message = format!("{void} of {all} numbers cannot be compared: they do not count, as said above");
        return Err(Failure::new(Exit::Partly, message));
    }
    let unknown = names(|verdict| *verdict == Verdict::Unknown).len();
    if unknown > 0 {
        let message = format!(
            "{unknown} of {all} numbers cannot be judged: each result needs two runs at least (--runs 3 or more)"
        );
        return Err(Failure::new(Exit::Partly, message));
    }
    Ok(())
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Same => "same",
        Verdict::Unknown | Verdict::NoRatio => "unknown",
        Verdict::Void(_) => "void",
    }
}

fn event(comparison: &Comparison) -> CompareSummary {
    let sample = |side: &Summary| ComparedSample { mean: side.mean, deviation: side.deviation, runs: side.n };
    let number = |cell: &Compared| ComparedNumber {
        name: cell.name.clone(),
        unit: cell.unit.clone(),
        ratio: cell.ratio,
        low: cell.interval.map(|i| i.low),
        high: cell.interval.map(|i| i.high),
        confidence: CONFIDENCE,
        verdict: word(&cell.verdict),
        reason: if let Verdict::Void(why) = &cell.verdict { Some(why.clone()) } else { None },
        better: if cell.better == Better::Higher { "higher" } else { "lower" },
        a: sample(&cell.a),
        b: sample(&cell.b),
    };
    let verdict = match judge(comparison) {
        Err(failure) if failure.exit == Exit::Failed => "worse",
        Err(_) => "unknown",
        Ok(()) if comparison.cells.iter().any(|cell| cell.verdict == Verdict::Better) => "better",
        Ok(()) => "same",
    };
    CompareSummary {
        verdict,
        numbers: comparison.cells.iter().map(number).collect(),
        only_a: comparison.only_a.clone(),
        only_b: comparison.only_b.clone(),
        differences: comparison.differences.clone(),
    }
}

fn print(comparison: &Comparison, output: Output) {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(["", "A", "B", "B/A", "95 % between", ""]);
    for cell in &comparison.cells {
        let scale = Scale::of(&cell.unit, cell.a.mean.max(cell.b.mean));
        let ratio = cell.ratio.map_or("–".into(), |ratio| format!("{ratio:.3}"));
        let ends = cell.interval.map_or("–".into(), |i| format!("{:.3} and {:.3}", i.low, i.high));
        let said = match &cell.verdict {
            Verdict::Better => "better".into(),
            Verdict::Worse => "worse".into(),
            Verdict::Same => "no significant difference".into(),
            Verdict::Unknown => "too few runs for an interval: use --runs 3 or more".into(),
            Verdict::NoRatio => "a sample is not above zero: no ratio".into(),
            Verdict::Void(why) => format!("does not count: {why}"),
        };
        let [a, b] = [&cell.a, &cell.b].map(|side| scale.with_unit(side.mean));
        table.add_row([cell.name.clone(), a, b, ratio, ends, said]);
    }
    output.line(table);
    for (which, only) in [("A", &comparison.only_a), ("B", &comparison.only_b)] {
        if !only.is_empty() {
            output.line(format_args!("only in {which}: {}", only.join(", ")));
        }
    }
    for difference in &comparison.differences {
        output.line(format_args!("differs in {difference}"));
    }
}
