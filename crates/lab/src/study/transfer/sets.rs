//! The data sets: how their sizes are distributed, each stage alone with `cp` and without
//! any tool, and the whole.

use super::plain::CopySource;
use super::testbed::scale_of;
use super::{SETS, TransferTestbed, place};
use crate::published::transfer as said;
use crate::study::{PlanEntry, Settings};
use longhaul_results::record::{Better, Cell, Question, Validity};
use longhaul_transfer::dataset::{DatasetSpec, Scale};

/// Data sets whose stages are measured with `--quick`: the published ones.
const QUICK: [&str; 2] = ["real", "big"];
/// Data sets with files of different sizes.
const VARIED: [&str; 2] = ["real", "l380"];
/// Sizes in bytes at which the distribution is sampled.
const SIZES: [u64; 8] =
    [1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 16_000_000_000];

/// A stage of a copy of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum DatasetStage {
    Read,
    Network,
    Write,
}

impl DatasetStage {
    fn name(self) -> &'static str {
        match self {
            DatasetStage::Read => "storage read",
            DatasetStage::Network => "network",
            DatasetStage::Write => "storage write",
        }
    }
}

/// A measurement of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Sets {
    /// Share of the files up to a size.
    Sizes(&'static str, u64),
    /// A stage alone, with `cp` (`true`) or without a tool.
    Stage(&'static str, DatasetStage, bool),
    /// The whole copy.
    Whole(&'static str),
}

fn stage_name(set: &str, stage: DatasetStage, tool: bool) -> String {
    format!("data set {set}: {}, {}", stage.name(), with(tool))
}

fn with(tool: bool) -> &'static str {
    if tool { "with cp" } else { "without a tool" }
}

fn whole_name(set: &str) -> String {
    format!("data set {set}")
}

fn of_stages(settings: &Settings) -> &'static [&'static str] {
    if settings.quick { &QUICK } else { &SETS }
}

pub(super) fn plan<Measurement>(
    settings: &Settings,
    case: impl Fn(Sets) -> Measurement,
) -> Vec<PlanEntry<Measurement>> {
    let mut all = Vec::new();
    for set in VARIED {
        for size in SIZES {
            let mut cell =
                Cell::new(format!("sizes of {set}: up to {size} B"), "share of the files", Better::Higher);
            let figure = "Sizes of the files of the data sets";
            cell.place =
                Some(place(figure, set, &size.to_string(), Some(size as f64), "Files up to so many bytes"));
            all.push(PlanEntry { cells: vec![cell], how: Ok(case(Sets::Sizes(set, size))) });
        }
    }
    for set in SETS {
        if of_stages(settings).contains(&set) {
            for (stage, tool) in [
                (DatasetStage::Read, false),
                (DatasetStage::Read, true),
                (DatasetStage::Network, true),
                (DatasetStage::Write, false),
                (DatasetStage::Write, true),
            ] {
                let mut cell = Cell::new(stage_name(set, stage, tool), "B/s", Better::Higher);
                let figure = format!("Each stage alone: data set {set}");
                cell.place = Some(place(&figure, with(tool), stage.name(), None, "Stage"));
                // The storage of a `--target` can only be measured through a copy.
                let how = match (settings.targets.is_empty(), stage) {
                    (false, DatasetStage::Write) => {
                        Err("the storage of the place that is named is another machine's".into())
                    }
                    _ => small_enough(set, settings).map(|()| case(Sets::Stage(set, stage, tool))),
                };
                all.push(PlanEntry { cells: vec![cell], how });
            }
        }
        let mut cell = Cell::new(whole_name(set), "B/s", Better::Higher);
        cell.place = Some(place("Data sets", "as many at once as help", set, None, "Data set"));
        let how = small_enough(set, settings).map(|()| case(Sets::Whole(set)));
        all.push(PlanEntry { cells: vec![cell], how });
    }
    all
}

/// Whether a data set has a file that is small enough for these settings; otherwise why not.
fn small_enough(set: &str, settings: &Settings) -> Result<(), String> {
    DatasetSpec::parse(set, scale_of(set, settings)).map(drop).map_err(|e| e.to_string())
}

pub(super) fn questions(settings: &Settings) -> Vec<Question> {
    let mut apart = Question::new(
        "Files as in production (real), against as many bytes in 128 files (big)",
        [&said::SETS_APART],
    )
    .pair("end to end", whole_name("real"), whole_name("big"));
    let mut network = Question::new("End to end, against the network alone", [&said::END_TO_END]);
    for stage in [DatasetStage::Read, DatasetStage::Network, DatasetStage::Write] {
        let name = |set| stage_name(set, stage, true);
        apart = apart.pair(stage.name(), name("real"), name("big"));
    }
    for set in of_stages(settings) {
        network = network.pair(*set, whole_name(set), stage_name(set, DatasetStage::Network, true));
    }
    vec![apart, network]
}

/// Share of the files of a data set, at its full scale, that have at most `size` bytes.
pub(super) fn up_to(set: &str, size: u64) -> Result<f64, crate::Error> {
    let spec = DatasetSpec::parse(set, Scale::FULL).map_err(crate::Error::failed)?;
    let files = spec.plan().files;
    let fit = files.iter().filter(|file| file.size <= size).count();
    Ok(fit as f64 / files.len().max(1) as f64)
}

/// Measures a stage without a copy tool, in bytes per second.
pub(super) fn without_tool(
    testbed: &TransferTestbed,
    stage: DatasetStage,
    set: &str,
    cell: &mut Cell,
) -> crate::Outcome {
    use crate::Error;
    let (dir, (files, bytes)) = testbed.set_of(set)?;
    let took = match stage {
        DatasetStage::Write => {
            let zeroes = CopySource::Zeroes { files, bytes: bytes / u64::from(files.max(1)) };
            super::plain::write(&zeroes, &testbed.there())
        }
        _ => CopySource::tree(&dir).and_then(|from| super::plain::read(&from)),
    };
    let took = took.map_err(Error::failed)?;
    cell.push(bytes as f64 / took.as_secs_f64(), &Validity::default());
    testbed.clear()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_the_real_set_are_as_assumed() {
        let median = up_to("real", 1_000_000).expect("a data set");
        assert!((median - 0.5).abs() < 0.01, "its median is 1 MB: {median}");
        assert!(up_to("l380", 16_000_000_000).is_ok_and(|all| (all - 1.0).abs() < 1e-12));
        assert!(up_to("nothing", 1).is_err());
    }
}
