//! What a file costs: the same bytes in more and more files, and the line through
//! the times, T = N·t0 + B/R.

use super::{Course, Place, ROUND_TRIP, Taken, commands, copiers, notes, over, scaled};
use crate::link;
use crate::reference::Who;
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
        let (copiers, absent) = copiers(&setup, &place.there(), &Who::OTHERS)?;
        let course = Course { setup: &setup, link: Some(&link), copiers: &copiers, plain: None };
        let mut taken: Vec<Vec<Taken>> = Vec::new();
        for (files, tree) in FILES.iter().zip(&trees) {
            let case = format!("per-file: {}, {files} files", link::round_trip(rtt));
            taken.push(course.measure(&case, tree)?.0);
        }
        for (index, copier) in copiers.iter().enumerate() {
            let times: Vec<&Samples> = taken.iter().map(|by| &by[index].seconds).collect();
            let (cost, name) = (slopes(&times), copier.who.name());
            let mut row = vec![link::round_trip(rtt), name.into()];
            row.extend(taken.iter().map(|by| by[index].show_seconds(2)));
            row.extend(if cost.0.is_empty() {
                ["–"; 2].map(String::from)
            } else {
                section.keep(&link::round_trip(rtt), name, "s a file", &cost);
                let met = if copier.who == Who::Longhaul { cost.at_most(CEILING) } else { "–" };
                [cost.show(1e-3, 3), met.into()]
            });
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

/// The slope over the number of files, of each round that has all of them.
fn slopes(times: &[&Samples]) -> Samples {
    let rounds = times.iter().map(|samples| samples.0.len()).min().unwrap_or(0);
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
        let found = slopes(&times.iter().collect::<Vec<_>>());
        assert!((found.0[0] - 0.003).abs() < 1e-9 && (found.0[1] - 0.0665).abs() < 1e-9, "{found:?}");
    }
}
