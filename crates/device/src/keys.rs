//! The secrets of hosts, in a directory: `hosts/HOSTNQN/dhchap_key`, and `dhchap_ctrl_key` beside it for the
//! subsystem's. The names are those that the Linux kernel's target has in its configuration.
//!
//! A target reads all of them, and a host its own. Files that others can read are refused, as ssh refuses
//! them.

use crate::error::{Error, ErrorKind, Result};
use longhaul_auth::{HashFunction, HostKey, Secret};
use longhaul_wire::nqn::Nqn;
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

const HOSTS: &str = "hosts";
const HOST_SECRET: &str = "dhchap_key";
const CONTROLLER_SECRET: &str = "dhchap_ctrl_key";
/// Longer than any secret.
const FILE_MAX: u64 = 4096;

/// What each host knows, by its NQN.
pub type HostKeys = BTreeMap<String, HostKey>;

/// Reads the secrets of a directory.
///
/// # Errors
/// Others may read or change a file or directory of it, a file has no secret, or there is no host in it.
pub fn read(dir: &Path) -> Result<HostKeys> {
    let all = dir.join(HOSTS);
    let failed = |e: io::Error| Error::failed(format!("cannot read keys: {}: {e}", all.display()));
    check(&all, &fs::metadata(&all).map_err(failed)?)?;
    let mut keys = HostKeys::new();
    for entry in fs::read_dir(&all).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        let name = entry.file_name();
        let nqn = name.to_str().and_then(|name| Nqn::new(name).ok());
        let nqn = nqn.ok_or_else(|| {
            Error::invalid(format!("cannot read keys: {} is not called by the NQN of a host", path.display()))
        })?;
        check(&path, &fs::metadata(&path).map_err(failed)?)?;
        let Some(secret) = secret(&path.join(HOST_SECRET))? else {
            return Err(Error::invalid(format!("cannot read keys: {} has no {HOST_SECRET}", path.display())));
        };
        keys.insert(nqn.to_string(), HostKey { secret, controller: secret_of_controller(&path)? });
    }
    match keys.is_empty() {
        true => Err(Error::invalid(format!(
            "cannot read keys: {} has none: 'longhaul key make HOSTNQN --keys {}' makes one",
            all.display(),
            dir.display()
        ))),
        false => Ok(keys),
    }
}

/// Makes the secrets of a host, the subsystem's too unless it is not wanted; returns their directory.
///
/// # Errors
/// There are some already and they are not to be replaced; or they cannot be written.
pub fn make(
    dir: &Path,
    host: &str,
    hash: HashFunction,
    is_mutual: bool,
    replaces: bool,
    random: &mut dyn FnMut(&mut [u8]),
) -> Result<PathBuf> {
    let nqn = Nqn::new(host).map_err(|e| Error::invalid(format!("cannot make keys of '{host}': {e}")))?;
    if host.contains('/') {
        return Err(Error::invalid(format!("cannot make keys of '{host}': an NQN with '/' is no file name")));
    }
    let place = dir.join(HOSTS).join(nqn.to_string());
    let failed =
        |e: io::Error| Error::failed(format!("cannot write the keys of {host} to {}: {e}", place.display()));
    if place.join(HOST_SECRET).exists() && !replaces {
        return Err(Error::new(
            ErrorKind::Refused,
            format!(
                "{} has keys already, which hosts and targets use: --force replaces them",
                place.display()
            ),
        ));
    }
    DirBuilder::new().recursive(true).mode(0o700).create(&place).map_err(failed)?;
    for path in [dir.join(HOSTS), place.clone()] {
        check(&path, &fs::metadata(&path).map_err(failed)?)?;
    }
    let mut write = |name: &str| {
        let secret = Secret::generate(hash, random);
        // Never there in part: a target may read it at this moment.
        let (new, path) = (place.join(format!("{name}.new")), place.join(name));
        let _ = fs::remove_file(&new);
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(secret.reveal().as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::rename(&new, &path)
    };
    match is_mutual {
        true => write(CONTROLLER_SECRET).map_err(failed)?,
        false => match fs::remove_file(place.join(CONTROLLER_SECRET)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        },
    }
    write(HOST_SECRET).map_err(failed)?;
    Ok(place)
}

fn secret_of_controller(place: &Path) -> Result<Option<Secret>> {
    secret(&place.join(CONTROLLER_SECRET))
}

/// The secret in a file; none if there is no file.
fn secret(path: &Path) -> Result<Option<Secret>> {
    let failed = |e: &dyn std::fmt::Display| {
        Error::invalid(format!("cannot read the secret in {}: {e}", path.display()))
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(&e)),
    };
    check(path, &file.metadata().map_err(|e| failed(&e))?)?;
    let mut text = Zeroizing::new(String::with_capacity(FILE_MAX as usize));
    file.take(FILE_MAX).read_to_string(&mut text).map_err(|e| failed(&e))?;
    text.parse().map(Some).map_err(|e| failed(&e))
}

/// Refuses what others may read or change.
fn check(path: &Path, meta: &fs::Metadata) -> Result<()> {
    let refused = |why: String| Err(Error::new(ErrorKind::Refused, format!("{}: {why}", path.display())));
    let mode = meta.mode() & 0o777;
    if mode & 0o077 != 0 {
        let right = if meta.is_dir() { "700" } else { "600" };
        return refused(format!(
            "others may read or change it (mode {mode:03o}), and it has secrets: 'chmod {right}' it, and make \
             new ones if it was readable"
        ));
    }
    let (owner, own) = (meta.uid(), geteuid().as_raw());
    if owner != own && owner != 0 {
        return refused(format!("it belongs to the user {owner}, and has secrets of the user {own}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const HOST: &str = "nqn.2026-11.io.longhaul:test:host";

    fn made(dir: &Path, is_mutual: bool) -> PathBuf {
        make(dir, HOST, HashFunction::Sha256, is_mutual, true, &mut longhaul_engine::random).unwrap()
    }

    #[test]
    fn what_is_made_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let place = made(dir.path(), true);
        let keys = read(dir.path()).unwrap();
        assert!(keys.len() == 1 && keys[HOST].controller.is_some());
        assert_ne!(Some(&keys[HOST].secret), keys[HOST].controller.as_ref(), "two secrets");
        let again = make(dir.path(), HOST, HashFunction::Sha512, true, false, &mut longhaul_engine::random);
        assert_eq!(again.unwrap_err().kind(), ErrorKind::Refused);
        assert_eq!(read(dir.path()).unwrap(), keys, "nothing was changed");
        made(dir.path(), false);
        assert_eq!(read(dir.path()).unwrap()[HOST].controller, None);
        for name in fs::read_dir(place).unwrap() {
            assert_eq!(name.unwrap().metadata().unwrap().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn what_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let place = made(dir.path(), true);
        let all = dir.path().join(HOSTS);
        for (path, mode) in [
            (place.join(HOST_SECRET), 0o640),
            (place.join(HOST_SECRET), 0o604),
            (place.join(CONTROLLER_SECRET), 0o644),
            (place.clone(), 0o750),
            (all, 0o701),
        ] {
            let before = fs::metadata(&path).unwrap().permissions();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let e = read(dir.path()).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Refused);
            let text = e.to_string();
            assert!(
                text.contains(&path.display().to_string()) && text.contains(&format!("{mode:03o}")),
                "{text}"
            );
            fs::set_permissions(&path, before).unwrap();
        }
        read(dir.path()).unwrap();
    }

    #[test]
    fn what_is_no_secret_is_named_and_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let place = made(dir.path(), false);
        let path = place.join(HOST_SECRET);
        let text = fs::read_to_string(&path).unwrap();
        for wrong in ["", "DHHC-1:01:", &text[..40], &text.replace(":01:", ":07:"), "secret!"] {
            fs::write(&path, wrong).unwrap();
            let said = read(dir.path()).unwrap_err().to_string();
            assert!(
                said.contains(HOST_SECRET) && (wrong.len() < 20 || !said.contains(&wrong[10..])),
                "{said}"
            );
        }
        fs::write(&path, text).unwrap();
        let aside = dir.path().join("aside");
        fs::rename(&path, &aside).unwrap();
        assert!(read(dir.path()).unwrap_err().to_string().contains("has no dhchap_key"));
        fs::rename(&aside, &path).unwrap();
        DirBuilder::new().mode(0o700).create(dir.path().join(HOSTS).join("host1")).unwrap();
        assert!(read(dir.path()).unwrap_err().to_string().contains("host1"));
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "",
            "..",
            "host",
            "nqn.2026-11.io.longhaul:../../x",
            &format!("nqn.2026-11.io.x:{}", "y".repeat(300)),
        ] {
            let result =
                make(dir.path(), name, HashFunction::Sha256, true, true, &mut longhaul_engine::random);
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Invalid, "{name}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(read(dir.path()).is_err());
        DirBuilder::new().mode(0o700).create(dir.path().join(HOSTS)).unwrap();
        assert!(read(dir.path()).unwrap_err().to_string().contains("longhaul key make"));
    }
}
