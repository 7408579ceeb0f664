//! `longhaul key`.

use crate::events::{KeyListed, KeyMade, KeyRetired, KeysListed};
use crate::exit::{Failure, Outcome};
use crate::output::Output;
use longhaul_auth::HashFunction;
use longhaul_device::keys::{self, HostKeys, KeysOfHost, Made};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    verb: KeyVerb,
}

#[derive(Debug, clap::Subcommand)]
enum KeyVerb {
    /// Make the secrets of a host, or its key for TLS
    Make(MakeKey),
    /// Make new secrets of a host, while it goes on with those that it has
    Rotate(RotateKey),
    /// End a rotation: targets accept the old secrets no more
    Retire(RetireKey),
    /// List the hosts that have secrets or keys
    Show(ShowKeys),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
DIR/hosts/HOSTNQN/ has the secrets then: dhchap_key, by which the host proves
who it is, and dhchap_ctrl_key, by which targets prove it to the host. Copy that
directory to the host; targets that use DIR let no other hosts in. With --tls
there is tls_key beside them, which 'nvme check-tls-key' reads too.

Example:
  longhaul key make nqn.2014-08.org.nvmexpress:uuid:... --keys /etc/longhaul/keys
  longhaul target --listen :4420 --export a=... --keys /etc/longhaul/keys
  longhaul info nvme+tcp://dtn1/a --keys /etc/longhaul/keys        # on the host")]
struct MakeKey {
    /// NQN of the host ('longhaul show-hostnqn' prints that of this one)
    #[arg(value_name = "HOSTNQN")]
    host: String,
    /// Directory of the secrets
    #[arg(long, value_name = "DIR")]
    keys: PathBuf,
    /// For this export alone, in place of what the host has for all: its name (what
    /// follows the last colon of its NQN) or NQN
    #[arg(long, value_name = "NAME")]
    export: Option<String>,
    /// Hash function of the secrets: sha256, sha384 or sha512 (not with --tls)
    #[arg(long, value_name = "NAME", default_value = "sha256", value_parser = hash)]
    hash: HashFunction,
    /// Only the host proves its identity
    #[arg(long)]
    one_way: bool,
    /// Make a key for TLS in place of secrets: what there is of these stays
    #[arg(long, conflicts_with = "one_way")]
    tls: bool,
    /// Replace those that there are; targets accept these no more
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
    /// For this export alone, in place of what the host has for all: its name (what
    /// follows the last colon of its NQN) or NQN
    #[arg(long, value_name = "NAME")]
    export: Option<String>,
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
    /// For this export alone, in place of what the host has for all: its name (what
    /// follows the last colon of its NQN) or NQN
    #[arg(long, value_name = "NAME")]
    export: Option<String>,
}

#[derive(Debug, clap::Args)]
struct ShowKeys {
    /// Directory of the secrets
    #[arg(long, value_name = "DIR")]
    keys: PathBuf,
    /// Those for this export alone
    #[arg(long, value_name = "NAME")]
    export: Option<String>,
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
        KeyVerb::Make(MakeKey { host, keys, export, hash, one_way, tls, force }) => {
            let what = match tls {
                true if hash == HashFunction::Sha512 => {
                    return Err(Failure::usage("--hash sha512: a key for TLS has sha256 or sha384"));
                }
                true => Made::Tls { hash },
                false => Made::Secrets { hash, is_mutual: !one_way },
            };
            let keys = keys::dir_of(&keys, export.as_deref())?;
            let (place, made) = keys::make(&keys, &host, what, force, random)?;
            tell_made(host, &place, &made, output);
        }
        KeyVerb::Rotate(RotateKey { host, keys, export, hash, force }) => {
            let keys = keys::dir_of(&keys, export.as_deref())?;
            let (place, made) = keys::rotate(&keys, &host, hash, force, random)?;
            tell_made(host, &place, &made, output);
        }
        KeyVerb::Retire(RetireKey { host, keys, export }) => {
            let keys = keys::dir_of(&keys, export.as_deref())?;
            let generation = keys::retire(&keys, &host)?;
            output.line(format_args!("generation {generation} is retired"));
            output.event(&KeyRetired { host, generation });
        }
        KeyVerb::Show(args) => return show(&args, output),
    }
    Ok(())
}

fn tell_made(host: String, place: &Path, keys: &KeysOfHost, output: Output) {
    let (hash, mutual, tls) = described(keys);
    output.line(format_args!("{}", place.display()));
    output.event(&KeyMade {
        host,
        directory: place.display().to_string(),
        generation: keys.number,
        previous: keys.has_previous(),
        hash,
        mutual,
        tls,
    });
}

/// Hash function of the secrets, whether targets have some too, and the hash function of the key for TLS.
fn described(keys: &KeysOfHost) -> (&'static str, bool, &'static str) {
    const NONE: &str = "none";
    let secrets = keys.secrets().map(|keys| keys.current);
    (
        secrets.as_ref().and_then(|key| key.secret.hash()).map_or(NONE, HashFunction::name),
        secrets.is_some_and(|key| key.controller.is_some()),
        keys.tls().map_or(NONE, |keys| keys.current.hash().name()),
    )
}

/// The keys of a directory, each with the export that they are for; none: for all.
fn listed(dir: &Path, export: Option<&str>) -> Result<Vec<(Option<String>, HostKeys)>, Failure> {
    if let Some(name) = export {
        return Ok(vec![(Some(name.to_owned()), keys::read(&keys::dir_of(dir, export)?)?)]);
    }
    let exports = keys::exports_in(dir)?;
    let mut all = Vec::new();
    if exports.is_empty() || dir.join("hosts").exists() {
        all.push((None, keys::read(dir)?));
    }
    for name in exports {
        let keys = keys::read(&keys::dir_of(dir, Some(&name))?)?;
        all.push((Some(name), keys));
    }
    Ok(all)
}

fn show(args: &ShowKeys, output: Output) -> Outcome {
    let this = longhaul_initiator::host_identity().hostnqn;
    let mut hosts = 0;
    for (export, keys) in listed(&args.keys, args.export.as_deref())? {
        for (host, keys) in keys {
            hosts += 1;
            show_host((host, &keys), export.as_deref(), &this, output);
        }
    }
    output.event(&KeysListed { hosts, this });
    Ok(())
}

fn show_host((host, keys): (String, &KeysOfHost), export: Option<&str>, this: &str, output: Output) {
    let (hash, mutual, tls) = described(keys);
    let (generation, previous) = (keys.number, keys.has_previous());
    let own = if host == this { "  (this host)" } else { "" };
    let of = export.map(|name| format!("  export {name}")).unwrap_or_default();
    let also = if previous { " (and the one before)" } else { "" };
    let ways = if mutual { "host and target" } else { "host" };
    let proves = keys.secrets().map(|_| format!("  {hash}  proves: {ways}")).unwrap_or_default();
    let encrypts = keys.tls().map(|_| format!("  TLS: {tls}")).unwrap_or_default();
    output.line(format_args!("{host}{of}  generation {generation}{also}{proves}{encrypts}{own}"));
    let export = export.unwrap_or_default().to_owned();
    output.event(&KeyListed { host, export, generation, previous, hash, mutual, tls });
}
