//! `longhaul key`.

use crate::events::{KeyListed, KeyMade, KeysListed};
use crate::exit::Outcome;
use crate::output::Output;
use longhaul_auth::HashFunction;
use longhaul_device::keys;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    verb: KeyVerb,
}

#[derive(Debug, clap::Subcommand)]
enum KeyVerb {
    /// Make the secrets of a host
    Make(MakeKey),
    /// List the hosts that have secrets
    Show(ShowKeys),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
DIR/hosts/HOSTNQN/ has the secrets then: dhchap_key, by which the host proves
who it is, and dhchap_ctrl_key, by which targets prove it to the host. Copy that
directory to the host; targets that use DIR let no other hosts in.

Example:
  longhaul key make nqn.2014-08.org.nvmexpress:uuid:... --keys /etc/longhaul/keys
  longhaul target --listen :4420 --export a=... --keys /etc/longhaul/keys
  longhaul info nvme+tcp://dtn1/a --keys /etc/longhaul/keys        # on the host")]
struct MakeKey {
    /// NQN of the host ('longhaul key show' prints that of this one)
    #[arg(value_name = "HOSTNQN")]
    host: String,
    /// Directory of the secrets
    #[arg(long, value_name = "DIR")]
    keys: PathBuf,
    /// Hash function of the secrets: sha256, sha384 or sha512
    #[arg(long, value_name = "NAME", default_value = "sha256", value_parser = hash)]
    hash: HashFunction,
    /// Only the host proves who it is
    #[arg(long)]
    one_way: bool,
    /// Replace secrets that there are
    #[arg(long)]
    force: bool,
}

#[derive(Debug, clap::Args)]
struct ShowKeys {
    /// Directory of the secrets
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,
}

fn hash(text: &str) -> Result<HashFunction, String> {
    match text.to_ascii_lowercase().replace('-', "").as_str() {
        "sha256" => Ok(HashFunction::Sha256),
        "sha384" => Ok(HashFunction::Sha384),
        "sha512" => Ok(HashFunction::Sha512),
        _ => Err("sha256, sha384 or sha512".into()),
    }
}

pub(crate) fn run(args: KeyArgs, output: Output) -> Outcome {
    match args.verb {
        KeyVerb::Make(args) => make(&args, output),
        KeyVerb::Show(args) => show(&args, output),
    }
}

fn make(args: &MakeKey, output: Output) -> Outcome {
    let place = keys::make(
        &args.keys,
        &args.host,
        args.hash,
        !args.one_way,
        args.force,
        &mut longhaul_engine::random,
    )?;
    output.line(format_args!("{}", place.display()));
    output.event(&KeyMade {
        host: args.host.clone(),
        directory: place.display().to_string(),
        hash: args.hash.name(),
        mutual: !args.one_way,
    });
    Ok(())
}

fn show(args: &ShowKeys, output: Output) -> Outcome {
    let this = longhaul_initiator::Options::default().hostnqn;
    let mut hosts = 0;
    for (host, key) in args.keys.as_ref().map(|dir| keys::read(dir)).transpose()?.unwrap_or_default() {
        hosts += 1;
        let (hash, mutual) = (key.secret.hash().map_or("none", HashFunction::name), key.controller.is_some());
        let ways = if mutual { "host and target" } else { "host" };
        let own = if host == this { "  (this host)" } else { "" };
        output.line(format_args!("{host}  {hash}  proves: {ways}{own}"));
        output.event(&KeyListed { host, hash, mutual });
    }
    if args.keys.is_none() {
        output.line(format_args!("{this}"));
    }
    output.event(&KeysListed { hosts, this });
    Ok(())
}
