//! Makes, replaces and retires the keys of hosts in a directory.

use super::place::{check, keys_in};
use super::{
    CONTROLLER_SECRET, GENERATION, HOST_SECRET, HOSTS, KeysOfHost, PREVIOUS, RETIRED, Stored, TLS_KEY,
    place_of,
};
use crate::error::{Error, ErrorKind, Result};
use longhaul_auth::{HashFunction, HostKey, Secret, TlsKey, number_before};
use rustix::fs::{CWD, RenameFlags};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What [`make`] makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// Secrets for authentication: one of the host, and one of the subsystem if both prove what they are.
    Secrets {
        /// Their hash function.
        hash: HashFunction,
        /// With a secret of the subsystem.
        is_mutual: bool,
    },
    /// A key for TLS.
    Tls {
        /// Its hash function, SHA-256 or SHA-384.
        hash: HashFunction,
    },
}

/// Makes secrets or a key for TLS of a host, beside what it has of the other kind; returns its directory and
/// what is there. What is replaced is retired at once.
///
/// # Errors
/// There are some of the kind already and they are not to be replaced; or it cannot be written.
pub fn make(
    dir: &Path,
    host: &str,
    what: Made,
    replaces: bool,
    random: &mut dyn FnMut(&mut [u8]),
) -> Result<(PathBuf, KeysOfHost)> {
    let place = place_of(dir, host)?;
    let mut keys = keys_in(&place)?.unwrap_or(KeysOfHost { number: 1, ..KeysOfHost::default() });
    let (kind, has_some) = match what {
        Made::Secrets { .. } => ("secrets", keys.current.secrets.is_some()),
        Made::Tls { .. } => ("a key for TLS", keys.current.tls.is_some()),
    };
    if has_some && !replaces {
        return Err(Error::new(
            ErrorKind::Refused,
            format!(
                "{} has {kind} already, which hosts and targets use: 'longhaul key rotate' replaces them while \
                 they are used, --force at once",
                place.display()
            ),
        ));
    }
    keys.number = keys.number.saturating_add(has_some.into());
    match what {
        Made::Secrets { hash, is_mutual } => {
            let before = keys.current.secrets.replace(generate(hash, is_mutual, random));
            keys.retired.secrets = before.or(keys.retired.secrets);
            keys.previous.secrets = None;
        }
        Made::Tls { hash } => {
            let before = keys.current.tls.replace(TlsKey::generate(hash, random));
            keys.retired.tls = before.or(keys.retired.tls);
            keys.previous.tls = None;
        }
    }
    write(dir, host, &place, &keys)?;
    Ok((place, keys))
}

/// Makes the next generation of what a host has, like the one before unless another hash function is named (a
/// key for TLS takes SHA-384 in place of SHA-512). Targets accept both until [`retire`].
///
/// # Errors
/// The host has no key; or it has been rotated before, that has not been finished, and is not to be now; or
/// the key cannot be written.
pub fn rotate(
    dir: &Path,
    host: &str,
    hash: Option<HashFunction>,
    finishes: bool,
    random: &mut dyn FnMut(&mut [u8]),
) -> Result<(PathBuf, KeysOfHost)> {
    let (place, before) = existing(dir, host)?;
    if before.has_previous() && !finishes {
        return Err(Error::new(
            ErrorKind::Refused,
            format!(
                "{}: targets still accept generation {} beside {}: 'longhaul key retire' ends that, or --force \
                 with the new one",
                place.display(),
                number_before(before.number),
                before.number
            ),
        ));
    }
    let secrets = before.current.secrets.as_ref().map(|key| {
        let hash = hash.or(key.secret.hash()).unwrap_or(HashFunction::Sha256);
        generate(hash, key.controller.is_some(), random)
    });
    let tls = before.current.tls.as_ref().map(|key| TlsKey::generate(hash.unwrap_or(key.hash()), random));
    let keys = KeysOfHost {
        number: before.number.saturating_add(1),
        current: Stored { secrets, tls },
        retired: before.previous.or(before.retired),
        previous: before.current,
    };
    write(dir, host, &place, &keys)?;
    Ok((place, keys))
}

/// Ends a rotation: targets do not accept the previous generation any more. Returns its number.
///
/// # Errors
/// Targets accept one generation only, or the change cannot be written.
pub fn retire(dir: &Path, host: &str) -> Result<u32> {
    let (place, mut keys) = existing(dir, host)?;
    if !keys.has_previous() {
        return Err(Error::new(
            ErrorKind::Refused,
            format!("{} has generation {} alone: nothing is to be retired", place.display(), keys.number),
        ));
    }
    keys.retired = std::mem::take(&mut keys.previous).or(keys.retired);
    write(dir, host, &place, &keys)?;
    Ok(number_before(keys.number))
}

fn existing(dir: &Path, host: &str) -> Result<(PathBuf, KeysOfHost)> {
    let place = place_of(dir, host)?;
    match keys_in(&place)? {
        Some(keys) => Ok((place, keys)),
        None => Err(Error::invalid(format!(
            "{} has no keys of {host}: 'longhaul key make' makes some",
            dir.display()
        ))),
    }
}

fn generate(hash: HashFunction, is_mutual: bool, random: &mut dyn FnMut(&mut [u8])) -> HostKey {
    let controller = is_mutual.then(|| Secret::generate(hash, random));
    HostKey { secret: Secret::generate(hash, random), controller }
}

/// Writes the directory of a host, and puts it in the place of the one that there is.
fn write(dir: &Path, host: &str, place: &Path, keys: &KeysOfHost) -> Result<()> {
    let failed =
        |e: io::Error| Error::failed(format!("cannot write the keys of {host} to {}: {e}", place.display()));
    let all = dir.join(HOSTS);
    DirBuilder::new().recursive(true).mode(0o700).create(&all).map_err(failed)?;
    check(&all, &fs::metadata(&all).map_err(failed)?)?;
    // Beside the hosts, where no reader looks.
    let mut new = tempfile::Builder::new();
    new.prefix(".new-").permissions(fs::Permissions::from_mode(0o700));
    let new = new.tempdir_in(dir).map_err(failed)?;
    write_key(new.path(), &keys.current).map_err(failed)?;
    write_file(&new.path().join(GENERATION), keys.number.to_string().as_bytes()).map_err(failed)?;
    for (name, key) in [(PREVIOUS, &keys.previous), (RETIRED, &keys.retired)] {
        if key.is_empty() {
            continue;
        }
        let path = new.path().join(name);
        DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
        write_key(&path, key).map_err(failed)?;
    }
    let swap = |flags| rustix::fs::renameat_with(CWD, new.path(), CWD, place, flags).map_err(io::Error::from);
    match swap(RenameFlags::NOREPLACE) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            // What was there is removed with the temporary directory.
            swap(RenameFlags::EXCHANGE).map_err(failed)?;
        }
        result => {
            result.map_err(failed)?;
            let _ = new.keep();
        }
    }
    File::open(&all).and_then(|all| all.sync_all()).map_err(failed)
}

fn write_key(dir: &Path, key: &Stored) -> io::Result<()> {
    if let Some(HostKey { secret, controller }) = &key.secrets {
        write_file(&dir.join(HOST_SECRET), secret.reveal().as_bytes())?;
        if let Some(controller) = controller {
            write_file(&dir.join(CONTROLLER_SECRET), controller.reveal().as_bytes())?;
        }
    }
    key.tls.as_ref().map_or(Ok(()), |key| write_file(&dir.join(TLS_KEY), key.reveal().as_bytes()))
}

fn write_file(path: &Path, line: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(line)?;
    file.write_all(b"\n")?;
    file.sync_all()
}
