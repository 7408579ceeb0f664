//! `longhaul dataset`.

use crate::arguments::parse_bytes;
use crate::events::DatasetSummary;
use crate::exit::{Failure, Outcome};
use crate::live::Bar;
use crate::output::Output;
use crate::words::data_sets;
use longhaul_block::units::format_size;
use longhaul_transfer::dataset::{DatasetSpec, Scale, make};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

#[derive(Debug, clap::Args)]
pub(crate) struct DatasetArgs {
    #[command(subcommand)]
    verb: DatasetVerb,
}

#[derive(Debug, clap::Subcommand)]
enum DatasetVerb {
    /// Create a data set in a directory
    Make(Make),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Data sets:
  real    59,589 files, 1 TB: log-normal sizes, as in production transfers
          (a median of 1 MB and a sigma of 2.38 are assumptions: the source
          gives no numbers)
  big     the same bytes in 128 equal files
  l380    19,260 files in 211 directories, 4.4 TB (its sigma of 2 is an
          assumption)
  small   files of 4 KiB
  equal   equal files, of --scale bytes in all
The content is incompressible, and depends on the seed alone. A smaller scale
has fewer files, not smaller ones.")]
pub(crate) struct Make {
    /// real, big, l380, small or equal
    #[arg(value_parser = data_sets(), hide_possible_values = true)]
    name: String,
    /// Directory to create it in, which must be empty or not exist
    dir: PathBuf,
    /// Total size of the files
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    scale: Option<u64>,
    /// Number of files
    #[arg(long, value_name = "N")]
    files: Option<u64>,
    /// Seed of sizes, names and content
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(args: DatasetArgs, output: Output) -> Outcome {
    let DatasetVerb::Make(args) = args.verb;
    let scale = Scale { files: args.files, bytes: args.scale };
    let mut spec = DatasetSpec::parse(&args.name, scale).map_err(Failure::usage)?;
    spec.seed = args.seed;
    let plan = spec.plan();
    let per_second = |rate: f64| format!("{}/s", format_size(rate as u64));
    let bar = Mutex::new(Bar::new(output, "", plan.bytes(), per_second)?);
    let began = Instant::now();
    let made = make(&args.dir, &plan, &|now| {
        let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
        bar.set(now.bytes, || format!(" {}/{} files", now.files, now.files_total));
    });
    bar.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
    made.map_err(Failure::failed)?;
    let seconds = began.elapsed().as_secs_f64();
    let (files, bytes) = (plan.files.len(), plan.bytes());
    output.event(&DatasetSummary { name: args.name.clone(), files, bytes, seconds });
    let dir = args.dir.display();
    output.line(format_args!("{files} files, {} in {dir} ({seconds:.1} s)", format_size(bytes)));
    Ok(())
}
