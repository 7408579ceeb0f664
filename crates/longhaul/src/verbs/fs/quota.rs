//! `longhaul fs quota`.

use crate::arguments::parse_bytes;
use crate::events::{FsQuotaList, FsQuotaListed, FsQuotaSet, FsQuotaShown};
use crate::exit::{Failure, Outcome};
use crate::output::Output;
use crate::pools::PoolArgs;
use longhaul_block::units::format_size;
use longhaul_device::Accounts;
use longhaul_poolfs::{FsName, FsQuota, LimitChange, Owner, SCHEME};

#[derive(Debug, clap::Args)]
pub(super) struct QuotaArgs {
    #[command(subcommand)]
    verb: QuotaVerb,
}

#[derive(Debug, clap::Subcommand)]
enum QuotaVerb {
    /// Limit what a user or a group may have in a file system, while it is used
    Set(SetQuota),
    /// Show what users and groups have, and may have
    Show(ShowQuotas),
}

#[derive(Debug, clap::Args)]
#[group(multiple = false)]
struct OwnerArgs {
    /// The user: a name, or a UID
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// The group: a name, or a GID
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A write or a new file above a limit fails with EDQUOT on every host. The first
limit of a file system has its files counted, which takes time; from then on all
users and groups are counted.

Example:
  longhaul fs quota set scratch/home --user alice --size 100GiB --files 1000000
  longhaul fs quota set scratch/home --user alice --files none
  longhaul fs quota show scratch/home")]
struct SetQuota {
    /// The file system: POOL/NAME
    name: FsName,
    #[command(flatten)]
    owner: OwnerArgs,
    /// Most bytes of content; 0 or none: no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_size_limit)]
    size: Option<Limit>,
    /// Most files, with directories and links; 0 or none: no limit
    #[arg(long, value_name = "N", value_parser = parse_files_limit)]
    files: Option<Limit>,
    #[command(flatten)]
    access: PoolArgs,
}

#[derive(Debug, clap::Args)]
struct ShowQuotas {
    /// The file system: POOL/NAME
    name: FsName,
    #[command(flatten)]
    owner: OwnerArgs,
    #[command(flatten)]
    access: PoolArgs,
}

/// A limit; `None` takes it away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit(Option<u64>);

impl Limit {
    fn new(limit: u64) -> Result<Limit, String> {
        match i64::try_from(limit) {
            Ok(0) => Ok(Limit(None)),
            Ok(_) => Ok(Limit(Some(limit))),
            Err(_) => Err(format!("{} is the most that can be counted", i64::MAX)),
        }
    }
}

fn parse_size_limit(text: &str) -> Result<Limit, String> {
    if text == "none" { Ok(Limit(None)) } else { Limit::new(parse_bytes(text)?) }
}

fn parse_files_limit(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit(None)),
        _ => Limit::new(text.parse().map_err(|_| "it is a number of files, or none".to_owned())?),
    }
}

impl OwnerArgs {
    fn owner(&self) -> Result<Option<Owner>, Failure> {
        let id = |accounts: Accounts, kind: &str, name: &str| -> Result<u32, Failure> {
            if let Ok(id) = name.parse() {
                return Ok(id);
            }
            match accounts.find(name) {
                Ok(Some((_, id))) => Ok(id),
                Ok(None) => {
                    let number = if accounts == Accounts::Users { "UID" } else { "GID" };
                    Err(Failure::usage(format!(
                        "this machine knows no {kind} called {name}: give its {number}"
                    )))
                }
                Err(e) => Err(Failure::failed(format!("cannot look up {kind} {name}: {e}"))),
            }
        };
        match (&self.user, &self.group) {
            (Some(name), _) => Ok(Some(Owner::User(id(Accounts::Users, "user", name)?))),
            (None, Some(name)) => Ok(Some(Owner::Group(id(Accounts::Groups, "group", name)?))),
            (None, None) => Ok(None),
        }
    }
}

pub(super) fn run(args: QuotaArgs, output: Output) -> Outcome {
    match args.verb {
        QuotaVerb::Set(args) => set(&args, output),
        QuotaVerb::Show(args) => show(&args, output),
    }
}

/// What an owner is called here, and its kind and number.
fn owner_of(quota: &FsQuota) -> (&'static str, u32, Option<String>) {
    let (kind, accounts, id) = match quota.owner {
        Owner::User(id) => ("user", Accounts::Users, id),
        Owner::Group(id) => ("group", Accounts::Groups, id),
    };
    let found = accounts.find(&id.to_string()).ok().flatten();
    (kind, id, found.map(|(name, _)| name))
}

fn shown(fs: &str, quota: &FsQuota) -> FsQuotaShown {
    let (kind, id, owner) = owner_of(quota);
    FsQuotaShown {
        name: fs.to_owned(),
        kind: kind.to_owned(),
        id,
        owner,
        used: quota.used.bytes.max(0).cast_unsigned(),
        limit: quota.limits.bytes,
        files: quota.used.files.max(0).cast_unsigned(),
        files_limit: quota.limits.files,
    }
}

fn line(quota: &FsQuotaShown) -> String {
    let FsQuotaShown { kind, id, owner, used, limit, files, files_limit, .. } = quota;
    let owner = owner.clone().unwrap_or_else(|| id.to_string());
    let limit = limit.map_or_else(|| "no limit".to_owned(), format_size);
    let files_limit = files_limit.map_or_else(|| "no limit".to_owned(), |limit| limit.to_string());
    let used = format_size(*used);
    format!("{kind:<5} {owner:<24} {used:>10} of {limit:<10} {files:>10} files of {files_limit}")
}

fn set(args: &SetQuota, output: Output) -> Outcome {
    let Some(owner) = args.owner.owner()? else {
        return Err(Failure::usage("the quota is of no user or group: give --user or --group"));
    };
    let change =
        LimitChange { bytes: args.size.map(|limit| limit.0), files: args.files.map(|limit| limit.0) };
    if change == LimitChange::default() {
        return Err(Failure::usage("no limit is given: give --size, --files, or both"));
    }
    let opened = args.access.open(&args.name.pool)?;
    let quota = longhaul_poolfs::set_quota(&opened.pool, &args.name.name, owner, change)?;
    let quota = shown(&format!("{SCHEME}{}", args.name), &quota);
    if !output.is_json() {
        output.line(line(&quota));
    }
    output.event(&FsQuotaSet { quota });
    Ok(())
}

fn show(args: &ShowQuotas, output: Output) -> Outcome {
    let wanted = args.owner.owner()?;
    let opened = args.access.open(&args.name.pool)?;
    let name = format!("{SCHEME}{}", args.name);
    let quotas = longhaul_poolfs::quotas(&opened.pool, &args.name.name)?;
    let counted = !quotas.is_empty();
    let (mut owners, mut limited) = (0, 0);
    for quota in quotas.iter().filter(|quota| wanted.is_none_or(|wanted| wanted == quota.owner)) {
        limited += usize::from(!quota.limits.are_none());
        owners += 1;
        let quota = shown(&name, quota);
        if !output.is_json() {
            output.line(line(&quota));
        }
        output.event(&FsQuotaListed { quota });
    }
    if !output.is_json() {
        match counted {
            true => output.line(format_args!("{owners} users and groups, {limited} with limits")),
            false => output.line(format_args!("{name} has no quotas: longhaul fs quota set gives it some")),
        }
    }
    output.event(&FsQuotaList { name, counted, owners, limited });
    Ok(())
}
