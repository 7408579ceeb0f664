//! `longhaul ns`.

use crate::arguments::{InitiatorArgs, parse_bytes, parse_time};
use crate::events::{
    NamespaceAttached, NamespaceGrown, NamespaceListed, NamespaceMade, NamespacesRemoved, SpaceSummary,
};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use longhaul_block::units::format_size;
use longhaul_engine::Engine;
use longhaul_initiator::namespaces::{
    Administrator, AllocatedNamespace, ManagementError, NamespaceLabel, NewNamespace,
};
use longhaul_initiator::{Error, Uri};
use longhaul_pool::end_of;
use std::time::Duration;

#[derive(Debug, clap::Args)]
pub(crate) struct NsArgs {
    #[command(subcommand)]
    verb: NsVerb,
}

#[derive(Debug, clap::Subcommand)]
enum NsVerb {
    /// Make a namespace
    Create(CreateNamespace),
    /// Remove namespaces and their content
    #[command(alias = "delete")]
    Rm(Rm),
    /// List the namespaces of a space
    #[command(alias = "list")]
    Ls(Ls),
    /// Attach a namespace to hosts, which see it from then on
    Attach(Hosts),
    /// Detach a namespace from hosts
    Detach(Hosts),
    /// Make a namespace larger, while it is used
    Grow(GrowNamespace),
}

#[derive(Debug, clap::Args)]
struct Space {
    /// The space: nvme+tcp://HOST[:PORT]/SPACE
    uri: Uri,
    #[command(flatten)]
    initiator: InitiatorArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
This host has to be an administrator of the space (longhaul target --space
--admin HOSTNQN); 'nvme create-ns' of a Linux host does the same.

Example:
  longhaul ns create nvme+tcp://dtn1/fast --size 100GiB \\
      --host nqn.2014-08.org.nvmexpress:uuid:6a6f…")]
struct CreateNamespace {
    #[command(flatten)]
    space: Space,
    /// Size of the namespace
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    size: u64,
    /// Bytes of a logical block: 512 or 4096
    #[arg(long, value_name = "SIZE", default_value = "4096", value_parser = parse_bytes)]
    block_size: u64,
    /// Take capacity as it is written to, instead of all of it now
    #[arg(long)]
    thin: bool,
    /// Host to attach it to; may be repeated
    #[arg(long = "host", value_name = "HOSTNQN")]
    hosts: Vec<String>,
    /// Job that it is made for
    #[arg(long, value_name = "JOB", default_value = "")]
    job: String,
    /// Time after which it may be removed
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    lifetime: Option<Duration>,
}

#[derive(Debug, clap::Args)]
struct Rm {
    #[command(flatten)]
    space: Space,
    /// The namespace; may be repeated [default: nsid= of the URI]
    #[arg(short = 'n', long = "namespace-id", value_name = "NSID", value_parser = nsids())]
    nsids: Vec<u32>,
}

#[derive(Debug, clap::Args)]
struct Ls {
    #[command(flatten)]
    space: Space,
}

#[derive(Debug, clap::Args)]
struct Hosts {
    #[command(flatten)]
    space: Space,
    /// The namespace [default: nsid= of the URI]
    #[arg(short = 'n', long = "namespace-id", value_name = "NSID", value_parser = nsids())]
    nsid: Option<u32>,
    /// NQN of a host, connected or not; may be repeated
    #[arg(long = "host", value_name = "HOSTNQN", required_unless_present = "controllers")]
    hosts: Vec<String>,
    /// Identifiers of controllers, whose hosts are meant
    #[arg(short, long, value_name = "CNTLID", value_delimiter = ',', conflicts_with = "hosts")]
    controllers: Vec<u16>,
}

#[derive(Debug, clap::Args)]
struct GrowNamespace {
    #[command(flatten)]
    space: Space,
    /// The namespace [default: nsid= of the URI]
    #[arg(short = 'n', long = "namespace-id", value_name = "NSID", value_parser = nsids())]
    nsid: Option<u32>,
    /// Its new size
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    size: u64,
}

fn nsids() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..i64::from(u32::MAX))
}

impl From<ManagementError> for Failure {
    fn from(e: ManagementError) -> Failure {
        let exit = match e {
            ManagementError::Connection(e) => return e.into(),
            ManagementError::NotPermitted { .. }
            | ManagementError::NoClones { .. }
            | ManagementError::Refused { .. } => Exit::Refused,
            ManagementError::Label(_) | ManagementError::Size { .. } => Exit::Usage,
            ManagementError::Full { .. }
            | ManagementError::TooMany { .. }
            | ManagementError::NotFound { .. }
            | ManagementError::AlreadyAttached { .. }
            | ManagementError::NotAttached { .. } => Exit::Failed,
        };
        Failure::new(exit, e)
    }
}

impl Space {
    /// The URI of one of its namespaces.
    fn uri_of(&self, nsid: u32) -> String {
        Uri { nsid: Some(nsid), ..self.uri.clone() }.to_string()
    }

    /// The namespace that is meant.
    fn nsid(&self, given: Option<u32>) -> Result<u32, Failure> {
        given
            .or(self.uri.nsid)
            .ok_or_else(|| Failure::usage("which namespace? Give it with -n, or ?nsid=N in the URI"))
    }

    /// Connects, and has `work` do its part.
    fn with<T>(&self, work: impl AsyncFnOnce(&Administrator) -> Result<T, Failure>) -> Result<T, Failure> {
        let options = self.initiator.options();
        let engine = Engine::new(&options.engine).map_err(|e| Error::Local(e.to_string()))?;
        engine.block_on(async {
            let administrator = Administrator::connect(&self.uri, options).await?;
            let result = work(&administrator).await;
            administrator.close().await;
            result
        })
    }
}

pub(crate) fn run(args: NsArgs, output: Output) -> Outcome {
    match args.verb {
        NsVerb::Create(args) => create(&args, output),
        NsVerb::Rm(args) => remove(&args, output),
        NsVerb::Ls(args) => list(&args, output),
        NsVerb::Attach(args) => change_hosts(&args, true, output),
        NsVerb::Detach(args) => change_hosts(&args, false, output),
        NsVerb::Grow(args) => grow(&args, output),
    }
}

fn create(args: &CreateNamespace, output: Output) -> Outcome {
    let too_long = || Failure::usage("--lifetime is too long");
    let expiry = args.lifetime.map(|lifetime| end_of(lifetime).ok_or_else(too_long)).transpose()?;
    let label = NamespaceLabel {
        hosts: args.hosts.clone(),
        job: args.job.clone(),
        expiry,
        thin: args.thin,
        ..NamespaceLabel::default()
    };
    let block_size = u32::try_from(args.block_size).unwrap_or(u32::MAX);
    let new = NewNamespace { size: args.size, block_size, label };
    let made = args.space.with(async |space| {
        let nsid = space.create_namespace(&new).await?;
        Ok(space.namespace(nsid).await?)
    })?;
    let uri = args.space.uri_of(made.nsid);
    output.event(&NamespaceMade {
        nsid: made.nsid,
        uuid: made.uuid.to_string(),
        uri: uri.clone(),
        size: made.size,
    });
    if !output.is_json() {
        output.line(format_args!("{uri}"));
    }
    Ok(())
}

fn remove(args: &Rm, output: Output) -> Outcome {
    let nsids = match &args.nsids[..] {
        [] => vec![args.space.nsid(None)?],
        nsids => nsids.to_vec(),
    };
    args.space.with(async |space| {
        for nsid in &nsids {
            space.delete_namespace(*nsid).await?;
        }
        Ok(())
    })?;
    output.event(&NamespacesRemoved { nsids: nsids.clone() });
    if !output.is_json() {
        for nsid in nsids {
            output.line(format_args!("removed {}", args.space.uri_of(nsid)));
        }
    }
    Ok(())
}

fn list(args: &Ls, output: Output) -> Outcome {
    let (namespaces, capacity) =
        args.space.with(async |space| Ok((space.list().await?, space.capacity().await?)))?;
    let bytes = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
    let (total, unallocated) = (bytes(capacity.total), bytes(capacity.unallocated));
    for namespace in &namespaces {
        output.event(&listed(&args.space, namespace));
    }
    output.event(&SpaceSummary { namespaces: namespaces.len(), total, unallocated });
    if output.is_json() {
        return Ok(());
    }
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING).set_header(["NSID", "SIZE", "FOR", "HOSTS"]);
    for namespace in &namespaces {
        let NamespaceLabel { hosts, pool, volume, job, .. } = &namespace.label;
        let purpose = match (volume.as_str(), job.as_str()) {
            ("", "") => String::new(),
            ("", job) => format!("job {job}"),
            (volume, _) => format!("{pool}/{volume}"),
        };
        let size = format_size(namespace.size);
        table.add_row([namespace.nsid.to_string(), size, purpose, hosts.join("\n")]);
    }
    output.line(format_args!(
        "{}\n{} namespaces, {} of {} free",
        table.trim_fmt(),
        namespaces.len(),
        format_size(unallocated),
        format_size(total)
    ));
    Ok(())
}

fn listed(space: &Space, namespace: &AllocatedNamespace) -> NamespaceListed {
    let AllocatedNamespace { nsid, size, block_size, uuid, label, .. } = namespace.clone();
    let NamespaceLabel { hosts, pool, volume, layout, job, expiry, thin, .. } = label;
    let (uuid, uri) = (uuid.to_string(), space.uri_of(nsid));
    NamespaceListed { nsid, uuid, uri, size, block_size, thin, hosts, pool, volume, layout, job, expiry }
}

fn change_hosts(args: &Hosts, attach: bool, output: Output) -> Outcome {
    let nsid = args.space.nsid(args.nsid)?;
    let after = args.space.with(async |space| {
        match (&args.controllers[..], attach) {
            ([], _) => {
                let mut label = space.namespace(nsid).await?.label;
                // A retry of a change that was made already is no error.
                label.hosts.retain(|host| !args.hosts.contains(host));
                if attach {
                    label.hosts.extend(args.hosts.iter().cloned());
                }
                space.set_label(nsid, &label).await?;
            }
            (controllers, true) => space.attach(nsid, controllers).await?,
            (controllers, false) => space.detach(nsid, controllers).await?,
        }
        Ok(space.namespace(nsid).await?)
    })?;
    let hosts = after.label.hosts;
    output.event(&NamespaceAttached { nsid, hosts: hosts.clone() });
    if !output.is_json() {
        let uri = args.space.uri_of(nsid);
        match &hosts[..] {
            [] => output.line(format_args!("{uri} is attached to no host")),
            hosts => output.line(format_args!("{uri} is attached to {}", hosts.join(", "))),
        }
    }
    Ok(())
}

fn grow(args: &GrowNamespace, output: Output) -> Outcome {
    let nsid = args.space.nsid(args.nsid)?;
    args.space.with(async |space| Ok(space.grow_namespace(nsid, args.size).await?))?;
    output.event(&NamespaceGrown { nsid, size: args.size });
    if !output.is_json() {
        output.line(format_args!("{} has {} now", args.space.uri_of(nsid), format_size(args.size)));
    }
    Ok(())
}
