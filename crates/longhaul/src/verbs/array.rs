//! `longhaul array`.

mod make;
mod manage;
pub(crate) mod show;

use crate::arrays::Care;
use crate::exit::{NothingToDo, Outcome};
use crate::names::{InitiatorArgs, parse_bytes};
use crate::output::Output;
use crate::words::layouts;
use longhaul_array::Layout;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: ArrayVerb,
}

#[derive(Debug, clap::Subcommand)]
enum ArrayVerb {
    /// Make an array of devices; what was on them is gone
    Create(Create),
    /// Find out what devices make, recover from a crash, and make it known here
    Assemble(Assemble),
    /// List the arrays that are known here
    #[command(alias = "ls")]
    List,
    /// Show how an array is
    Status(Named),
    /// Put a device in the place of a member, and fill it
    Replace(Replace),
    /// Add a device that takes the place of a member when one is lost
    AddSpare(AddSpare),
    /// Read and compare everything, and mend what is wrong
    Scrub(Scrub),
    /// Stop an array that runs on this host
    Stop(Stop),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  longhaul array create scratch --layout parity --device nvme+tcp://dtn1/a \\
    --device nvme+tcp://dtn2/a --device nvme+tcp://dtn3/a \\
        --spare nvme+tcp://dtn4/a
  longhaul bench array:scratch --rw write --bs 1m --runtime 10s")]
struct Create {
    /// What to call it
    name: String,
    /// A member, by URI, path or back end; once for each
    #[arg(long = "device", value_name = "DEVICE", required = true)]
    devices: Vec<String>,
    /// A device that waits for a place
    #[arg(long = "spare", value_name = "DEVICE")]
    spares: Vec<String>,
    /// A small device (132KiB or more) that records which members have everything:
    /// of two halves of the array, only the one that has it goes on by itself
    #[arg(long, value_name = "DEVICE")]
    witness: Option<String>,
    /// stripe, mirror, stripe+mirror, parity or double-parity
    #[arg(long, value_name = "KIND", value_parser = layouts(), hide_possible_values = true)]
    layout: Layout,
    /// Bytes on one member before the next [default: what the devices prefer
    /// and their paths suit, 256KiB at least]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    stripe_unit: Option<u64>,
    #[command(flatten)]
    care: Care,
    /// Overwrite what is on the devices (a file system, a partition table, a
    /// volume), also if they are members of an array that does not run. That array
    /// loses them, and all that it needs them for: only you can know that it is
    /// not needed
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    initiator: InitiatorArgs,
}

#[derive(Debug, clap::Args)]
struct Assemble {
    /// A member or spare, in any order; once for each
    #[arg(long = "device", value_name = "DEVICE", required = true)]
    devices: Vec<String>,
    /// The witness, if the array has one
    #[arg(long, value_name = "DEVICE")]
    witness: Option<String>,
    /// Begin though members that are not given may have gone on without the others;
    /// what was written to them alone is lost then. A witness that is not given is
    /// given up
    #[arg(long)]
    degraded: bool,
    #[command(flatten)]
    care: Care,
    #[command(flatten)]
    initiator: InitiatorArgs,
}

#[derive(Debug, clap::Args)]
struct Named {
    /// The array: its name or UUID
    array: String,
    #[command(flatten)]
    initiator: InitiatorArgs,
}

#[derive(Debug, clap::Args)]
struct Stop {
    #[command(flatten)]
    nothing: NothingToDo,
    #[command(flatten)]
    named: Named,
}

#[derive(Debug, clap::Args)]
struct Scrub {
    /// Bytes per second that are read of each member at most
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    rate: Option<u64>,
    #[command(flatten)]
    named: Named,
}

#[derive(Debug, clap::Args)]
struct Replace {
    /// The array: its name or UUID
    array: String,
    /// The member to replace, by its number in the status
    #[arg(long, value_name = "N")]
    member: usize,
    /// What takes its place
    #[arg(long, value_name = "DEVICE")]
    device: String,
    /// Bytes per second that are read of each member at most
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    rebuild_rate: Option<u64>,
    /// Overwrite what is on the device, also if it is a member of another array
    /// that does not run, which loses it
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    initiator: InitiatorArgs,
}

#[derive(Debug, clap::Args)]
struct AddSpare {
    /// The array: its name or UUID
    array: String,
    /// The spare
    #[arg(long, value_name = "DEVICE")]
    device: String,
    /// Overwrite what is on the device, also if it is a member of another array
    /// that does not run, which loses it
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    initiator: InitiatorArgs,
}

pub(crate) fn run(args: Args, output: Output) -> Outcome {
    match args.verb {
        ArrayVerb::Create(args) => make::create(args, output),
        ArrayVerb::Assemble(args) => make::assemble(args, output),
        ArrayVerb::List => manage::list(output),
        ArrayVerb::Status(args) => manage::status(&args, output),
        ArrayVerb::Replace(args) => manage::replace(args, output),
        ArrayVerb::AddSpare(args) => manage::add_spare(args, output),
        ArrayVerb::Scrub(args) => manage::scrub(&args, output),
        ArrayVerb::Stop(args) => manage::stop(&args, output),
    }
}
