//! `longhaul array`.

mod make;
mod manage;
mod show;

use crate::arguments::{InitiatorArgs, parse_bytes, parse_time};
use crate::complete;
use crate::exit::{NothingToDo, Outcome};
use crate::output::Output;
use crate::words::layouts;
use longhaul_array::Layout;
use longhaul_device::arrays::ArraySettings;
use std::time::Duration;

#[derive(Debug, clap::Args)]
pub(crate) struct ArrayVerbArgs {
    #[command(subcommand)]
    verb: ArrayVerb,
}

#[derive(Debug, clap::Subcommand)]
enum ArrayVerb {
    /// Create an array; the data on its devices is lost
    Create(CreateArray),
    /// Assemble an existing array from its devices, and register it on this host
    Assemble(Assemble),
    /// List the arrays that are registered on this host
    #[command(alias = "ls")]
    List,
    /// Show the state of an array
    Status(ArrayArgs),
    /// Replace a member by another device, and rebuild it
    Replace(Replace),
    /// Add a spare, which replaces a member that fails
    AddSpare(AddSpare),
    /// Make an array as large as its devices have become, while it is used
    Grow(GrowArray),
    /// Read and verify all data, and repair what is wrong
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
struct CreateArray {
    /// Name of the array
    name: String,
    /// A member: a URI, path or back end; repeated for each
    #[arg(long = "device", value_name = "DEVICE", required = true, add = complete::device())]
    devices: Vec<String>,
    /// A spare; repeated for each
    #[arg(long = "spare", value_name = "DEVICE")]
    spares: Vec<String>,
    /// A small device (132KiB or more) that records which members are current: of
    /// two halves of the array, only the one with the witness runs without the other
    #[arg(long, value_name = "DEVICE")]
    witness: Option<String>,
    /// stripe, mirror, stripe+mirror, parity or double-parity
    #[arg(long, value_name = "KIND", value_parser = layouts(), hide_possible_values = true)]
    layout: Layout,
    /// Bytes of a stripe on one member [default: suited to the devices and
    /// their paths, at least 256KiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    stripe_unit: Option<u64>,
    #[command(flatten)]
    settings: SettingsArgs,
    /// Overwrite devices that hold data (a file system, a partition table, a
    /// volume), or that are members of an array that is not running, which loses
    /// them
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    initiator: InitiatorArgs,
}

/// Settings of rebuild, scrub, spares and hedged reads.
#[derive(Debug, clap::Args)]
struct SettingsArgs {
    /// Most bytes per second that rebuild and scrub read from each member
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    rebuild_rate: Option<u64>,
    /// Most bytes per second that scrub reads from each member
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    scrub_rate: Option<u64>,
    /// Scrub automatically, this long after the last scrub
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    scrub_every: Option<Duration>,
    /// How long a member may be offline before a spare replaces it [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    spare_grace: Option<Duration>,
    /// Most reads that are hedged (reconstructed from the other members when one
    /// is slow), in percent [default: 5]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(..=100))]
    hedge: Option<u32>,
    /// Journal full-stripe writes too: a crash together with the loss of a member
    /// then leaves no data undefined, at twice the bytes written
    #[arg(long)]
    journal_all: bool,
}

impl SettingsArgs {
    fn settings(&self) -> ArraySettings {
        ArraySettings {
            rebuild_rate: self.rebuild_rate,
            scrub_rate: self.scrub_rate,
            scrub_every: self.scrub_every,
            spare_grace: self.spare_grace,
            hedge: self.hedge,
            journal_all: self.journal_all,
        }
    }
}

#[derive(Debug, clap::Args)]
struct Assemble {
    /// A member or spare, in any order; repeated for each
    #[arg(long = "device", value_name = "DEVICE", required = true, add = complete::device())]
    devices: Vec<String>,
    /// The witness, if the array has one
    #[arg(long, value_name = "DEVICE")]
    witness: Option<String>,
    /// Assemble although members that are not given may hold newer data, which is
    /// lost then. A witness that is not given is removed from the array
    #[arg(long)]
    degraded: bool,
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    initiator: InitiatorArgs,
}

#[derive(Debug, clap::Args)]
struct ArrayArgs {
    /// The array: its name or UUID
    #[arg(add = complete::array())]
    array: String,
    #[command(flatten)]
    initiator: InitiatorArgs,
}

#[derive(Debug, clap::Args)]
struct Stop {
    #[command(flatten)]
    nothing: NothingToDo,
    #[command(flatten)]
    array: ArrayArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Grow its devices first: longhaul ns grow, or a larger file or volume. File
systems are grown by their own tools then.

Example:
  longhaul array grow scratch
  xfs_growfs /mnt/scratch")]
struct GrowArray {
    #[command(flatten)]
    nothing: NothingToDo,
    #[command(flatten)]
    array: ArrayArgs,
}

#[derive(Debug, clap::Args)]
struct Scrub {
    /// Most bytes per second read from each member
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    rate: Option<u64>,
    #[command(flatten)]
    array: ArrayArgs,
}

#[derive(Debug, clap::Args)]
struct Replace {
    /// The array: its name or UUID
    #[arg(add = complete::array())]
    array: String,
    /// Member to replace, by its number in the status
    #[arg(long, value_name = "N")]
    member: usize,
    /// Device that replaces it
    #[arg(long, value_name = "DEVICE", add = complete::device())]
    device: String,
    /// Most bytes per second read from each member
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    rebuild_rate: Option<u64>,
    /// Overwrite a device that holds data, or that is a member of another array
    /// that is not running, which loses it
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    initiator: InitiatorArgs,
}

#[derive(Debug, clap::Args)]
struct AddSpare {
    /// The array: its name or UUID
    #[arg(add = complete::array())]
    array: String,
    /// The device to add as a spare
    #[arg(long, value_name = "DEVICE", add = complete::device())]
    device: String,
    /// Overwrite a device that holds data, or that is a member of another array
    /// that is not running, which loses it
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    initiator: InitiatorArgs,
}

pub(crate) fn run(args: ArrayVerbArgs, output: Output) -> Outcome {
    match args.verb {
        ArrayVerb::Create(args) => make::create(args, output),
        ArrayVerb::Assemble(args) => make::assemble(args, output),
        ArrayVerb::List => manage::list(output),
        ArrayVerb::Status(args) => manage::status(&args, output),
        ArrayVerb::Replace(args) => manage::replace(args, output),
        ArrayVerb::AddSpare(args) => manage::add_spare(args, output),
        ArrayVerb::Grow(args) => manage::grow(&args, output),
        ArrayVerb::Scrub(args) => manage::scrub(&args, output),
        ArrayVerb::Stop(args) => manage::stop(&args, output),
    }
}
