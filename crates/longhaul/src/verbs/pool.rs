//! `longhaul pool`.

mod jobs;
mod manage;
pub(crate) mod moves;
mod show;

use crate::arguments::{parse_bytes, parse_time};
use crate::exit::{NothingToDo, Outcome};
use crate::output::Output;
use crate::pools::PoolArgs;
use crate::verbs::pool::moves::MoveArgs;
use crate::verbs::volume::ShapeArgs;
use std::time::Duration;

#[derive(Debug, clap::Args)]
pub(crate) struct PoolVerbArgs {
    #[command(subcommand)]
    verb: PoolVerb,
}

#[derive(Debug, clap::Subcommand)]
enum PoolVerb {
    /// Make a pool of the spaces of targets
    Create(CreatePool),
    /// List the pools that this host knows
    #[command(alias = "list")]
    Ls(ListPools),
    /// Show the targets of a pool and what is free there
    Status(PoolNamed),
    /// Add targets to a pool
    AddTarget(AddTarget),
    /// Move members of volumes away from targets, and remove these from a pool
    RemoveTarget(RemoveTarget),
    /// Move members of volumes until the targets are used alike
    Rebalance(Rebalance),
    /// Make the records of a pool again from its targets
    Import(Import),
    /// Give a pool up to another catalog; its volumes stay at the targets
    Export(PoolNamed),
    /// Remove a pool without volumes
    Destroy(PoolNamed),
    /// Finish what lost hosts have begun, and remove what they left
    Recover(PoolNamed),
    /// Make volumes for a job
    Allocate(Allocate),
    /// Remove the volumes of a job
    Release(Release),
    /// List jobs and what they have
    Jobs(Jobs),
}

/// `HOST[:PORT][/SPACE][,domain=NAME]` or `HOST[:PORT]/NQN?nsid=N[,domain=NAME]`: a target, as given on the command
/// line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TargetSpec {
    name: String,
    domain: Option<String>,
}

impl std::str::FromStr for TargetSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<TargetSpec, String> {
        let (name, domain) = match text.split_once(',') {
            None => (text, None),
            Some((name, option)) => match option.strip_prefix("domain=") {
                Some(domain) if !domain.is_empty() => (name, Some(domain.to_owned())),
                _ => return Err(format!("'{option}' is no option of a target: there is domain=NAME")),
            },
        };
        Ok(TargetSpec { name: name.to_owned(), domain })
    }
}

/// What fails together, where a target does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Domain {
    /// The targets of one host
    Host,
    /// Each target for itself
    Target,
}

#[derive(Debug, clap::Args)]
struct DomainArgs {
    /// Failure domain of targets without domain=: host or target
    #[arg(long, value_name = "KIND", default_value = "host", hide_possible_values = true)]
    domain: Domain,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A target is HOST[:PORT][/SPACE][,domain=NAME]. This host has to administer its
space (longhaul target --space NAME=dir:PATH --admin HOSTNQN). 'HOST/NQN?nsid=N' is
a namespace of any target, which has one member of a file system.

Example:
  longhaul pool create scratch --target dtn1 dtn2 dtn3 dtn4 dtn5 dtn6
  longhaul volume create scratch/run7 --size 2TiB --layout parity --fs xfs
  sudo longhaul mount volume:scratch/run7 /mnt/run7")]
struct CreatePool {
    /// Name of the pool
    name: String,
    /// Its targets; may be repeated
    #[arg(long = "target", value_name = "TARGET", required = true, num_args = 1..)]
    targets: Vec<TargetSpec>,
    #[command(flatten)]
    domain: DomainArgs,
    /// Most bytes of the namespaces of all volumes
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    quota: Option<u64>,
    /// Most bytes of the namespaces of each job
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    job_quota: Option<u64>,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
struct ListPools {
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
struct PoolNamed {
    /// Name of the pool
    pool: String,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
struct AddTarget {
    /// Name of the pool
    pool: String,
    /// The targets
    #[arg(value_name = "TARGET", required = true)]
    targets: Vec<TargetSpec>,
    #[command(flatten)]
    domain: DomainArgs,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Volumes stay in use. A member that moves is in use until its copy is complete;
one whose target is gone is rebuilt from the others. A volume that another host
uses is skipped: give the command there.

Example:
  longhaul pool remove-target scratch dtn3 --limit 200MiB")]
struct RemoveTarget {
    /// Name of the pool
    pool: String,
    /// The targets, as pool status shows them
    #[arg(value_name = "TARGET", required = true)]
    targets: Vec<String>,
    /// Forget namespaces at a target that is gone for good
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    moves: MoveArgs,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Volumes stay in use, and lose no redundancy meanwhile. A volume that another host
uses is skipped: give the command there.

Example:
  longhaul pool rebalance scratch --dry-run")]
struct Rebalance {
    /// Name of the pool
    pool: String,
    #[command(flatten)]
    moves: MoveArgs,
    #[command(flatten)]
    nothing: NothingToDo,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A pool that another catalog manages is refused until 'longhaul pool export' has
given it up there, and so is one whose volumes hosts use.

Example:
  longhaul pool import dtn1 dtn2 dtn3")]
struct Import {
    /// Its targets
    #[arg(value_name = "TARGET", required = true)]
    targets: Vec<String>,
    /// The pool, if the targets have several: its name or UUID
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// Name that it gets [default: the one that it had]
    #[arg(long)]
    name: Option<String>,
    /// Take the pool over from another catalog, which is lost for instance, and its
    /// volumes from the hosts that use them
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
#[command(
    override_usage = "\
longhaul pool allocate [OPTIONS] --size <SIZE> --layout <KIND>
                              --for-job <JOB> --lifetime <TIME> <POOL>",
    after_help = "\
Without --nodes there is one volume, for this host or those of --for; with it
there is one of this size for each node.

Example:
  longhaul pool allocate scratch --size 2TiB --layout parity --for-job 4711 \\
      --lifetime 8h --nodes n[1-8] --fs xfs"
)]
struct Allocate {
    /// Name of the pool
    pool: String,
    /// The job
    #[arg(long, value_name = "JOB")]
    for_job: String,
    /// Time after which the volumes may be removed
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    lifetime: Duration,
    /// The nodes, as Slurm writes them: n[1-8]
    #[arg(long, value_name = "LIST", conflicts_with = "hosts")]
    nodes: Option<String>,
    /// NQN that a node calls itself; {} is its name
    #[arg(long, value_name = "NQN", default_value = "nqn.2026-11.io.longhaul:node:{}")]
    node_nqn: String,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
struct Release {
    /// Pools [default: all that this host knows]
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
    /// The job
    #[arg(long, value_name = "JOB")]
    for_job: String,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
struct Jobs {
    /// Pools [default: all that this host knows]
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
    #[command(flatten)]
    access: PoolArgs,
}

pub(crate) fn run(args: PoolVerbArgs, output: Output) -> Outcome {
    match args.verb {
        PoolVerb::Create(args) => manage::create(&args, output),
        PoolVerb::Ls(args) => show::list(&args, output),
        PoolVerb::Status(args) => show::status(&args, output),
        PoolVerb::AddTarget(args) => manage::add_targets(&args, output),
        PoolVerb::RemoveTarget(args) => moves::remove_targets(&args, output),
        PoolVerb::Rebalance(args) => moves::rebalance(&args, output),
        PoolVerb::Import(args) => manage::import(&args, output),
        PoolVerb::Export(args) => manage::export(&args, output),
        PoolVerb::Destroy(args) => manage::destroy(&args, output),
        PoolVerb::Recover(args) => manage::recover(&args, output),
        PoolVerb::Allocate(args) => jobs::allocate(&args, output),
        PoolVerb::Release(args) => jobs::release(&args, output),
        PoolVerb::Jobs(args) => jobs::list(&args, output),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_an_address_and_a_domain() {
        let spec = |text: &str| text.parse::<TargetSpec>();
        let named = |name: &str, domain: Option<&str>| TargetSpec {
            name: name.to_owned(),
            domain: domain.map(str::to_owned),
        };
        assert_eq!(spec("dtn1"), Ok(named("dtn1", None)));
        assert_eq!(spec("dtn1:4421/fast,domain=rack 7"), Ok(named("dtn1:4421/fast", Some("rack 7"))));
        for wrong in ["dtn1,domain=", "dtn1,rack=7", "dtn1,"] {
            spec(wrong).expect_err(wrong);
        }
    }
}
