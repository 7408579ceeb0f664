//! `longhaul key`.

use crate::events::{KeyListed, KeyMade, KeyRetired, KeysListed};
use crate::exit::Outcome;
use crate::output::Output;
use longhaul_auth::{Generations, HashFunction};
use longhaul_device::keys;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    verb: KeyVerb,
}

#[derive(Debug, clap::Subcommand)]
enum KeyVerb {
    /// Make the secrets of a host
    Make(MakeKey),
    /// Make new secrets of a host, while it goes on with those that it has
    Rotate(RotateKey),
    /// End a rotation: targets accept the old secrets no more
    Retire(RetireKey),
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
    /// Only the host proves its identity
    #[arg(long)]
    one_way: bool,
    /// Replace secrets that there are; targets accept these no more
    #[arg(long)]
    force: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Targets read DIR when a host connects, and accept the new secrets and those
before. Copy DIR/hosts/HOSTNQN/ to the host, which uses the new ones at its next
connection; connections that are open stay. Then 'longhaul key retire'.

Example:
  longhaul key rotate nqn.2014-08.org.nvmexpress:uuid:... --keys /etc/longhaul/keys
  longhaul key retire nqn.2014-08.org.nvmexpress:uuid:... --keys /etc/longhaul/keys")]
struct RotateKey {
    /// NQN of the host
    #[arg(value_name = "HOSTNQN")]
    host: String,
    /// Directory of the secrets
    #[arg(long, value_name = "DIR")]
    keys: PathBuf,
    /// Hash function of the new secrets: sha256, sha384 or sha512 [default: as
    /// before]
    #[arg(long, value_name = "NAME", value_parser = hash)]
    hash: Option<HashFunction>,
    /// Retire the secrets of an earlier rotation that was not ended
    #[arg(long)]
    force: bool,
}

#[derive(Debug, clap::Args)]
struct RetireKey {
    /// NQN of the host
    #[arg(value_name = "HOSTNQN")]
    host: String,
    /// Directory of the secrets
    #[arg(long, value_name = "DIR")]
    keys: PathBuf,
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
    let random = &mut longhaul_engine::random;
    match args.verb {
        KeyVerb::Make(MakeKey { host, keys, hash, one_way, force }) => {
            let (place, made) = keys::make(&keys, &host, hash, !one_way, force, random)?;
            tell_made(host, &place, &made, output);
        }
        KeyVerb::Rotate(RotateKey { host, keys, hash, force }) => {
            let (place, made) = keys::rotate(&keys, &host, hash, force, random)?;
            tell_made(host, &place, &made, output);
        }
        KeyVerb::Retire(RetireKey { host, keys }) => {
            let generation = keys::retire(&keys, &host)?;
            output.line(format_args!("generation {generation} is retired"));
            output.event(&KeyRetired { host, generation });
        }
        KeyVerb::Show(args) => return show(&args, output),
    }
    Ok(())
}

fn tell_made(host: String, place: &Path, keys: &Generations, output: Output) {
    output.line(format_args!("{}", place.display()));
    output.event(&KeyMade {
        host,
        directory: place.display().to_string(),
        generation: keys.number,
        previous: keys.previous.is_some(),
        hash: hash_of(keys),
        mutual: keys.current.controller.is_some(),
    });
}

fn hash_of(keys: &Generations) -> &'static str {
    keys.current.secret.hash().map_or("none", HashFunction::name)
}

fn show(args: &ShowKeys, output: Output) -> Outcome {
    let this = longhaul_initiator::Options::default().hostnqn;
    let mut hosts = 0;
    for (host, key) in args.keys.as_ref().map(|dir| keys::read(dir)).transpose()?.unwrap_or_default() {
        hosts += 1;
        let (hash, mutual) = (hash_of(&key), key.current.controller.is_some());
        let (generation, previous) = (key.number, key.previous.is_some());
        let ways = if mutual { "host and target" } else { "host" };
        let own = if host == this { "  (this host)" } else { "" };
        let also = if previous { " (and the one before)" } else { "" };
        output.line(format_args!("{host}  generation {generation}{also}  {hash}  proves: {ways}{own}"));
        output.event(&KeyListed { host, generation, previous, hash, mutual });
    }
    if args.keys.is_none() {
        output.line(format_args!("{this}"));
    }
    output.event(&KeysListed { hosts, this });
    Ok(())
}
