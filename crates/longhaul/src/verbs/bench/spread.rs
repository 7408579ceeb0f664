//! Prints the spread of repeated runs.

use crate::output::Output;
use longhaul_report::figure::Scale;
use longhaul_results::record::{Code, Run};
use longhaul_results::schema;
use longhaul_results::stats::Summary;

/// Prints the spread of the runs, and which runs are not valid.
pub(in crate::verbs) fn print(document: &schema::Output, output: Output) {
    let Some(record) = &document.longhaul else { return };
    for cell in record.cells.iter().filter(|cell| matches!(cell.unit.as_str(), "B/s" | "bit/s")) {
        let spread = Summary::of(&cell.samples);
        let Some(interval) = spread.interval() else { continue };
        let scale = Scale::of(&cell.unit, spread.mean);
        let [low, high, least, most] =
            [interval.low, interval.high, spread.min, spread.max].map(|value| scale.number(value));
        let (mean, runs) = (scale.with_unit(spread.mean), spread.n);
        output.line(format_args!(
            "{}: {mean} over {runs} runs (95 % between {low} and {high}, least {least}, most {most})",
            cell.name
        ));
    }
    // The reason of a failed run is the error that the program ends with.
    let failed = |run: &&Run| run.validity.reasons.iter().any(|reason| reason.code == Code::Failed);
    for (number, run) in (1..).zip(&record.runs).filter(|(_, run)| !failed(run)) {
        for reason in &run.validity.reasons {
            output.note(format_args!("longhaul: run {number} does not count: {}", reason.detail));
        }
    }
    for cell in record.cells.iter().filter(|cell| !cell.validity.valid && !cell.samples.is_empty()) {
        for reason in &cell.validity.reasons {
            output.note(format_args!("longhaul: {} does not count: {}", cell.name, reason.detail));
        }
    }
}
