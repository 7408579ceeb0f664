//! The keys of hosts, in a directory. Of each host `hosts/HOSTNQN/` has
//!
//! | file | |
//! |---|---|
//! | `dhchap_key` | the secret of the host |
//! | `dhchap_ctrl_key` | that of the subsystem, if targets prove to the host what they are |
//! | `generation` | the number of this key; 1 without the file |
//! | `previous/` | the same files of the generation before, while targets accept it |
//! | `retired/` | the same files of the last generation that targets do not accept any more |
//!
//! The names of the first two are those that the Linux kernel's target has in its configuration. A directory
//! of a host is replaced as a whole, so that no reader finds halves of two generations.
//!
//! Files that others can read are refused, as ssh refuses them.

use crate::error::{Error, ErrorKind, Result};
use longhaul_auth::{Generations, HashFunction, HostKey, KeySource, Secret};
use longhaul_wire::nqn::Nqn;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

const HOSTS: &str = "hosts";
const HOST_SECRET: &str = "dhchap_key";
const CONTROLLER_SECRET: &str = "dhchap_ctrl_key";
const GENERATION: &str = "generation";
const PREVIOUS: &str = "previous";
const RETIRED: &str = "retired";
/// Longer than any secret.
const FILE_MAX: u64 = 4096;

/// The keys of each host, by its NQN.
pub type HostKeys = BTreeMap<String, Generations>;

/// A directory of keys that is read when a key is needed: what changes in it counts for the next connection.
#[derive(Clone, Debug)]
pub struct KeyDirectory(PathBuf);

impl KeyDirectory {
    /// Reads all of it, so that what is wrong is found before it is needed.
    ///
    /// # Errors
    /// Those of [`read`].
    pub fn open(dir: &Path) -> Result<KeyDirectory> {
        // Of a later working directory, too.
        let whole = std::path::absolute(dir)
            .map_err(|e| Error::failed(format!("cannot read keys: {}: {e}", dir.display())))?;
        read(dir)?;
        Ok(KeyDirectory(whole))
    }
}

impl KeySource for KeyDirectory {
    fn key_of(&self, hostnqn: &str) -> std::result::Result<Option<Generations>, String> {
        // The name comes from a peer. One that is no name of a file has no keys.
        let Ok(place) = place_of(&self.0, hostnqn) else { return Ok(None) };
        keys_in(&place).map_err(|e| e.to_string())
    }
}

/// Reads the keys of a directory.
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
        // It may have been removed meanwhile.
        if let Some(found) = keys_in(&path)? {
            keys.insert(nqn.to_string(), found);
        }
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

/// Makes the key of a host, with a secret of the subsystem unless it is not wanted; returns its directory and
/// its generation. One that is replaced is retired at once.
///
/// # Errors
/// There is one already and it is not to be replaced; or it cannot be written.
pub fn make(
    dir: &Path,
    host: &str,
    hash: HashFunction,
    is_mutual: bool,
    replaces: bool,
    random: &mut dyn FnMut(&mut [u8]),
) -> Result<(PathBuf, Generations)> {
    let place = place_of(dir, host)?;
    let before = keys_in(&place)?;
    if before.is_some() && !replaces {
        return Err(Error::new(
            ErrorKind::Refused,
            format!(
                "{} has keys already, which hosts and targets use: 'longhaul key rotate' replaces them while \
                 they are used, --force at once",
                place.display()
            ),
        ));
    }
    let current = generate(hash, is_mutual, random);
    let keys = match before {
        None => Generations::from(current),
        Some(before) => Generations {
            number: before.number.saturating_add(1),
            current,
            previous: None,
            retired: Some(before.current),
        },
    };
    write(dir, host, &place, &keys)?;
    Ok((place, keys))
}

/// Makes the next generation of a host's key, like the one that it has unless another hash function is named.
/// Targets accept both until [`retire`].
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
) -> Result<(PathBuf, Generations)> {
    let (place, before) = existing(dir, host)?;
    if before.previous.is_some() && !finishes {
        return Err(Error::new(
            ErrorKind::Refused,
            format!(
                "{}: targets still accept generation {} beside {}: 'longhaul key retire' ends that, or --force \
                 with the new one",
                place.display(),
                before.number.saturating_sub(1),
                before.number
            ),
        ));
    }
    let hash = hash.or(before.current.secret.hash()).unwrap_or(HashFunction::Sha256);
    let keys = Generations {
        number: before.number.saturating_add(1),
        current: generate(hash, before.current.controller.is_some(), random),
        retired: before.previous.or(before.retired),
        previous: Some(before.current),
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
    let Some(previous) = keys.previous.take() else {
        return Err(Error::new(
            ErrorKind::Refused,
            format!("{} has generation {} alone: nothing is to be retired", place.display(), keys.number),
        ));
    };
    keys.retired = Some(previous);
    write(dir, host, &place, &keys)?;
    Ok(keys.number.saturating_sub(1))
}

/// The directory of a host's keys.
///
/// # Errors
/// The name is no NQN, or no name of a file.
fn place_of(dir: &Path, host: &str) -> Result<PathBuf> {
    let nqn = Nqn::new(host).map_err(|e| Error::invalid(format!("cannot make keys of '{host}': {e}")))?;
    if host.contains('/') {
        return Err(Error::invalid(format!("cannot make keys of '{host}': an NQN with '/' is no file name")));
    }
    Ok(dir.join(HOSTS).join(nqn.to_string()))
}

fn existing(dir: &Path, host: &str) -> Result<(PathBuf, Generations)> {
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
fn write(dir: &Path, host: &str, place: &Path, keys: &Generations) -> Result<()> {
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
        let Some(key) = key else { continue };
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

fn write_key(dir: &Path, key: &HostKey) -> io::Result<()> {
    for (name, secret) in [(HOST_SECRET, Some(&key.secret)), (CONTROLLER_SECRET, key.controller.as_ref())] {
        if let Some(secret) = secret {
            write_file(&dir.join(name), secret.reveal().as_bytes())?;
        }
    }
    Ok(())
}

fn write_file(path: &Path, line: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(line)?;
    file.write_all(b"\n")?;
    file.sync_all()
}

/// A directory that stays the same while it is read, also if another one takes its place.
struct KeyPlace {
    dir: File,
    path: PathBuf,
}

/// The keys in the directory of a host; none if there is no such directory.
fn keys_in(path: &Path) -> Result<Option<Generations>> {
    let Some(place) = KeyPlace::open(CWD, path, path)? else { return Ok(None) };
    let Some(current) = place.key()? else {
        return Err(Error::invalid(format!("cannot read keys: {} has no {HOST_SECRET}", path.display())));
    };
    let of = |name| match place.child(name)? {
        Some(place) => place.key(),
        None => Ok(None),
    };
    Ok(Some(Generations {
        number: place.generation()?,
        current,
        previous: of(PREVIOUS)?,
        retired: of(RETIRED)?,
    }))
}

impl KeyPlace {
    fn open(from: impl std::os::fd::AsFd, name: &Path, path: &Path) -> Result<Option<KeyPlace>> {
        let failed = |e: io::Error| Error::failed(format!("cannot read keys: {}: {e}", path.display()));
        let dir = match open_at(from, name, OFlags::DIRECTORY) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            result => result.map_err(failed)?,
        };
        check(path, &dir.metadata().map_err(failed)?)?;
        Ok(Some(KeyPlace { dir, path: path.to_owned() }))
    }

    fn child(&self, name: &str) -> Result<Option<KeyPlace>> {
        KeyPlace::open(&self.dir, Path::new(name), &self.path.join(name))
    }

    fn key(&self) -> Result<Option<HostKey>> {
        let Some(secret) = self.secret(HOST_SECRET)? else { return Ok(None) };
        Ok(Some(HostKey { secret, controller: self.secret(CONTROLLER_SECRET)? }))
    }

    fn generation(&self) -> Result<u32> {
        let Some(text) = self.text(GENERATION)? else { return Ok(1) };
        text.trim().parse().map_err(|_| {
            Error::invalid(format!("{} has no number of a generation", self.path.join(GENERATION).display()))
        })
    }

    /// The secret in a file; none if there is no file.
    fn secret(&self, name: &str) -> Result<Option<Secret>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        text.parse().map(Some).map_err(|e| self.failed(name, &e))
    }

    fn text(&self, name: &str) -> Result<Option<Zeroizing<String>>> {
        let file = match open_at(&self.dir, Path::new(name), OFlags::empty()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            result => result.map_err(|e| self.failed(name, &e))?,
        };
        check(&self.path.join(name), &file.metadata().map_err(|e| self.failed(name, &e))?)?;
        let mut text = Zeroizing::new(String::with_capacity(FILE_MAX as usize));
        file.take(FILE_MAX).read_to_string(&mut text).map_err(|e| self.failed(name, &e))?;
        Ok(Some(text))
    }

    fn failed(&self, name: &str, why: &dyn std::fmt::Display) -> Error {
        Error::invalid(format!("cannot read the secret in {}: {why}", self.path.join(name).display()))
    }
}

fn open_at(from: impl std::os::fd::AsFd, name: &Path, flags: OFlags) -> io::Result<File> {
    // A FIFO in the place of a file would wait for a writer.
    let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(rustix::fs::openat(from, name, flags, Mode::empty())?.into())
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

    const HOST: &str = "nqn.2026-11.io.longhaul:test:host";

    fn made(dir: &Path, is_mutual: bool) -> PathBuf {
        make(dir, HOST, HashFunction::Sha256, is_mutual, true, &mut longhaul_engine::random).unwrap().0
    }

    #[test]
    fn what_is_made_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let place = made(dir.path(), true);
        let keys = read(dir.path()).unwrap();
        let key = &keys[HOST].current;
        assert!(keys.len() == 1 && key.controller.is_some());
        assert_ne!(Some(&key.secret), key.controller.as_ref(), "two secrets");
        let again = make(dir.path(), HOST, HashFunction::Sha512, true, false, &mut longhaul_engine::random);
        assert_eq!(again.unwrap_err().kind(), ErrorKind::Refused);
        assert_eq!(read(dir.path()).unwrap(), keys, "nothing was changed");
        made(dir.path(), false);
        let replaced = &read(dir.path()).unwrap()[HOST];
        assert_eq!(replaced.current.controller, None);
        assert_eq!((replaced.number, &replaced.retired), (2, &Some(keys[HOST].current.clone())));
        for entry in fs::read_dir(place).unwrap() {
            let meta = entry.unwrap().metadata().unwrap();
            assert_eq!(meta.mode() & 0o777, if meta.is_dir() { 0o700 } else { 0o600 });
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside the hosts");
    }

    #[test]
    fn a_key_is_rotated_and_then_retired() {
        let dir = tempfile::tempdir().unwrap();
        let random = &mut longhaul_engine::random;
        assert_eq!(rotate(dir.path(), HOST, None, false, random).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(retire(dir.path(), HOST).unwrap_err().kind(), ErrorKind::Invalid);
        made(dir.path(), true);
        let source = KeyDirectory::open(dir.path()).unwrap();
        let first = source.key_of(HOST).unwrap().unwrap();
        assert_eq!(retire(dir.path(), HOST).unwrap_err().kind(), ErrorKind::Refused, "nothing to retire");
        let (_, second) = rotate(dir.path(), HOST, None, false, random).unwrap();
        assert_eq!(source.key_of(HOST).unwrap().as_ref(), Some(&second), "seen without opening it again");
        assert_eq!((second.number, &second.previous), (2, &Some(first.current.clone())));
        assert!(second.current.controller.is_some() && second.current != first.current);
        let twice = rotate(dir.path(), HOST, None, false, random).unwrap_err();
        assert!(twice.kind() == ErrorKind::Refused && twice.to_string().contains("key retire"), "{twice}");
        assert_eq!(retire(dir.path(), HOST).unwrap(), 1);
        let alone = source.key_of(HOST).unwrap().unwrap();
        assert_eq!((alone.number, alone.previous, alone.retired), (2, None, Some(first.current)));
        rotate(dir.path(), HOST, Some(HashFunction::Sha512), false, random).unwrap();
        let (_, fourth) = rotate(dir.path(), HOST, None, true, random).unwrap();
        assert_eq!((fourth.number, fourth.retired), (4, Some(second.current)));
        assert_eq!(fourth.current.secret.hash(), Some(HashFunction::Sha512), "as the one before");
    }

    #[test]
    fn a_name_from_the_network_leads_to_no_other_file() {
        let dir = tempfile::tempdir().unwrap();
        made(dir.path(), true);
        let source = KeyDirectory::open(dir.path()).unwrap();
        for name in
            ["", ".", "..", "/etc", &format!("{HOST}/../{HOST}"), &format!("{HOST}/previous"), "nqn.\0"]
        {
            assert_eq!(source.key_of(name).unwrap(), None, "{name}");
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
