//! What a file costs: the same bytes in more and more files, and the line through
//! the times, T = N·t0 + B/R.

use super::{Place, ROUND_TRIP, commands, copiers, measure, notes, over, scaled};
use crate::link;
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::Result;

const BYTES: u64 = 256 << 20;
const FILES: [u64; 4] = [1, 64, 1024, 4096];
/// The most that a file may cost, in seconds.
const CEILING: f64 = 1e-4;

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "per-file",
        &["link", "program", "1 file, s", "64, s", "1,024, s", "4,096, s", "a file, ms", "≤ 0.1"],
    );
    let place = Place::make(setup)?;
    let bytes = scaled(setup, BYTES);
    let trees: Vec<_> = FILES
        .iter()
        .map(|n| {
            let more = ["--scale".into(), bytes.to_string(), "--files".into(), n.to_string()];
            place.data_set(setup, "equal", &format!("equal{n}"), &more)
        })
        .collect::<Result<_>>()?;
    for &rtt in setup.round_trips(&[ROUND_TRIP]) {
        let (link, setup) = over(setup, rtt)?;
        let (copiers, absent) = copiers(&setup, &place.there())?;
        let mut taken = Vec::new();
        for tree in &trees {
            taken.push(measure(&setup, Some(&link), &copiers, tree)?);
        }
        for (index, copier) in copiers.iter().enumerate() {
            let times: Vec<Samples> = taken.iter().map(|by| by[index].seconds()).collect();
            let cost = slopes(&times);
            let name = copier.who.name();
            eprintln!("  {}, {name}: {} ms a file", link::round_trip(rtt), cost.show(1e-3, 3));
            section.keep(&link::round_trip(rtt), name, "s a file", &cost);
            let mut row = vec![link::round_trip(rtt), name.into()];
            row.extend(times.iter().map(|time| time.show(1.0, 2)));
            row.extend([cost.show(1e-3, 3), cost.at_most(CEILING).into()]);
            section.row(row);
        }
        if section.notes.is_empty() {
            notes(&mut section, &setup, &absent);
        }
    }
    section.notes.push(format!("{bytes} bytes in all; a file: the slope of the line of least squares"));
    section.commands = commands(ROUND_TRIP);
    Ok(section)
}

/// The slope over the number of files, of each round.
fn slopes(times: &[Samples]) -> Samples {
    let rounds = times.first().map_or(0, |samples| samples.0.len());
    let slope = |round: usize| {
        let points: Vec<(f64, f64)> =
            FILES.iter().zip(times).map(|(n, samples)| (*n as f64, samples.0[round])).collect();
        let count = points.len() as f64;
        let (x, y) = points.iter().fold((0.0, 0.0), |sum, p| (sum.0 + p.0 / count, sum.1 + p.1 / count));
        let above: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
        let below: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
        above / below
    };
    Samples((0..rounds).map(slope).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_found() {
        let times: Vec<Samples> =
            FILES.iter().map(|n| Samples(vec![2.0 + 0.003 * *n as f64, 1.0 + 0.0665 * *n as f64])).collect();
        let found = slopes(&times);
        assert!((found.0[0] - 0.003).abs() < 1e-9 && (found.0[1] - 0.0665).abs() < 1e-9, "{found:?}");
    }
}
