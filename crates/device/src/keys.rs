//! The keys of hosts, in a directory. Of each host `hosts/HOSTNQN/` has
//!
//! | file | |
//! |---|---|
//! | `dhchap_key` | the secret of the host |
//! | `dhchap_ctrl_key` | that of the subsystem, if targets prove to the host what they are |
//! | `tls_key` | the key by which both encrypt their connections (a configured PSK of TLS) |
//! | `generation` | the number of this key; 1 without the file |
//! | `previous/` | the same files of the generation before, while targets accept it |
//! | `retired/` | the same files of the last generation that targets do not accept any more |
//!
//! A host has secrets, a key for TLS, or both; all of a host are of one generation. The names of the first two
//! are those that the Linux kernel's target has in its configuration. A directory of a host is replaced as a
//! whole, so that no reader finds halves of two generations.
//!
//! `exports/NAME/hosts/HOSTNQN/` has the same for one export alone: of a host that is there, nothing in
//! `hosts/HOSTNQN/` counts for that export. NAME is the NQN of the export, or what follows the last colon of it.
//!
//! Files that others can read are refused, as ssh refuses them. A directory may also come as one archive, from the
//! service manager or the kernel ([`KeyDirectory::of_credential`], [`KeyDirectory::of_keyring`]).

mod change;
mod packed;
mod place;

pub use change::{Made, make, retire, rotate};

use crate::error::{Error, Result};
use longhaul_auth::{Generations, HostKey, KeySource, TlsKey};
use longhaul_wire::nqn::Nqn;
use packed::{PACKED_MAX, Packed};
use place::{KeyPlace, check, keys_in, keys_of};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zeroize::Zeroizing;

const HOSTS: &str = "hosts";
const EXPORTS: &str = "exports";
const HOST_SECRET: &str = "dhchap_key";
const CONTROLLER_SECRET: &str = "dhchap_ctrl_key";
const TLS_KEY: &str = "tls_key";
const GENERATION: &str = "generation";
const PREVIOUS: &str = "previous";
const RETIRED: &str = "retired";
/// Most bytes of a key of the kernel of the type `user` (keyrings(7)).
const KEYRING_MAX: usize = 32767;
/// Longer than any secret.
const FILE_MAX: u64 = 4096;

/// The keys of each host, by its NQN.
pub type HostKeys = BTreeMap<String, KeysOfHost>;

/// What the directory of a host has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeysOfHost {
    /// Number of the current generation, from 1.
    pub number: u32,
    current: Stored,
    previous: Stored,
    retired: Stored,
}

/// What there is of one generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Stored {
    secrets: Option<HostKey>,
    tls: Option<TlsKey>,
}

impl Stored {
    fn is_empty(&self) -> bool {
        self.secrets.is_none() && self.tls.is_none()
    }

    /// What this has, and otherwise what `other` has.
    fn or(self, other: Stored) -> Stored {
        Stored { secrets: self.secrets.or(other.secrets), tls: self.tls.or(other.tls) }
    }
}

impl KeysOfHost {
    /// The secrets for authentication.
    pub fn secrets(&self) -> Option<Generations> {
        Some(Generations {
            number: self.number,
            current: self.current.secrets.clone()?,
            previous: self.previous.secrets.clone(),
            retired: self.retired.secrets.clone(),
        })
    }

    /// The keys for TLS.
    pub fn tls(&self) -> Option<Generations<TlsKey>> {
        Some(Generations {
            number: self.number,
            current: self.current.tls.clone()?,
            previous: self.previous.tls.clone(),
            retired: self.retired.tls.clone(),
        })
    }

    /// Whether targets accept the generation before, too.
    pub fn has_previous(&self) -> bool {
        !self.previous.is_empty()
    }
}

/// A directory of keys. One of a file system is read when a key is needed: what changes in it counts for the next
/// connection.
#[derive(Clone, Debug)]
pub struct KeyDirectory(KeyStore);

#[derive(Clone, Debug)]
enum KeyStore {
    FileSystem(PathBuf),
    Packed(Arc<Packed>),
}

impl KeyDirectory {
    /// Reads all of it, so that what is wrong is found before it is needed.
    ///
    /// # Errors
    /// Those of [`read`].
    pub fn open(dir: &Path) -> Result<KeyDirectory> {
        // Of a later working directory, too.
        let whole = std::path::absolute(dir)
            .map_err(|e| Error::failed(format!("cannot read keys: {}: {e}", dir.display())))?;
        let exports = exports_in(dir)?;
        for export in &exports {
            read(&dir_of(dir, Some(export))?)?;
        }
        // Keys for exports alone are enough.
        if exports.is_empty() || dir.join(HOSTS).exists() {
            read(dir)?;
        }
        Ok(KeyDirectory(KeyStore::FileSystem(whole)))
    }

    /// The archive (tar) that systemd has for this service, by the name of the credential (systemd.exec(5),
    /// `LoadCredential=`): as it was when the service was started.
    ///
    /// # Errors
    /// There is no credential of that name, or its content is no directory of keys.
    pub fn of_credential(name: &str) -> Result<KeyDirectory> {
        let what = format!("the credential {name}");
        let wrong = |why: &dyn std::fmt::Display| Error::invalid(format!("cannot read keys: {what}: {why}"));
        if name.is_empty() || name.contains('/') || name.starts_with('.') {
            return Err(wrong(&"this is not the name of a credential"));
        }
        let dir = std::env::var_os("CREDENTIALS_DIRECTORY").ok_or_else(|| {
            wrong(&"CREDENTIALS_DIRECTORY is not set: services of systemd have it, with LoadCredential=NAME:FILE")
        })?;
        let path = Path::new(&dir).join(name);
        let mut archive = Zeroizing::new(Vec::with_capacity(PACKED_MAX as usize));
        let read = File::open(&path).and_then(|file| file.take(PACKED_MAX).read_to_end(&mut archive));
        read.map_err(|e| wrong(&format_args!("{}: {e}", path.display())))?;
        KeyDirectory::unpacked(what, &archive)
    }

    /// The archive (tar) that a key of the kernel has, of the type `user` (keyrings(7)), in one of the keyrings that
    /// this process searches.
    ///
    /// # Errors
    /// There is no such key, this process may not read it, or its content is no directory of keys.
    pub fn of_keyring(name: &str) -> Result<KeyDirectory> {
        use linux_keyutils::{KeyError, KeyRing, KeyRingIdentifier};
        let what = format!("the key {name} of the kernel");
        let wrong = |e: KeyError| Error::invalid(format!("cannot read keys: {what}: {e}"));
        // A service has a session keyring of its own; that of the user is searched as well.
        let rings = [KeyRingIdentifier::Session, KeyRingIdentifier::UserSession, KeyRingIdentifier::User];
        let found =
            rings.map(|ring| KeyRing::from_special_id(ring, false).and_then(|ring| ring.search(name)));
        let [first, others @ ..] = found;
        let key = others.into_iter().fold(first, |found, other| found.or(other)).map_err(wrong)?;
        let mut archive = Zeroizing::new(vec![0; KEYRING_MAX]);
        let len = key.read(&mut *archive).map_err(wrong)?;
        KeyDirectory::unpacked(what, &archive[..len.min(KEYRING_MAX)])
    }

    fn unpacked(name: String, archive: &[u8]) -> Result<KeyDirectory> {
        let packed = Packed::read(name, archive)?;
        let hosts = packed.hosts();
        if hosts.is_empty() {
            return Err(Error::invalid(format!("cannot read keys: {} has no hosts", packed.name)));
        }
        for place in hosts {
            let nqn = place.file_name().and_then(|name| name.to_str()).and_then(|name| Nqn::new(name).ok());
            if nqn.is_none() {
                return Err(Error::invalid(format!(
                    "cannot read keys: {}: {} is not called by the NQN of a host",
                    packed.name,
                    place.display()
                )));
            }
            keys_of(&KeyPlace::Packed { packed: &packed, path: place })?;
        }
        Ok(KeyDirectory(KeyStore::Packed(Arc::new(packed))))
    }

    /// The keys in the directory of a host; none if there is no such directory.
    fn keys_in(&self, place: &Path) -> Result<Option<KeysOfHost>> {
        match &self.0 {
            KeyStore::FileSystem(dir) => keys_in(&dir.join(place)),
            KeyStore::Packed(packed) if packed.has(place) => {
                keys_of(&KeyPlace::Packed { packed, path: place.to_owned() }).map(Some)
            }
            KeyStore::Packed(_) => Ok(None),
        }
    }

    /// What the host has for the subsystem: what is there for this alone, or else for all.
    fn keys_for(&self, hostnqn: &str, subnqn: &str) -> std::result::Result<Option<KeysOfHost>, String> {
        for export in names_of(subnqn) {
            let Ok(dir) = dir_of(Path::new(""), Some(export)) else { continue };
            let Ok(place) = place_of(&dir, hostnqn) else { return Ok(None) };
            if let Some(keys) = self.keys_in(&place).map_err(|e| e.to_string())? {
                return Ok(Some(keys));
            }
        }
        // The name comes from a peer. One that is no name of a file has no keys.
        let Ok(place) = place_of(Path::new(""), hostnqn) else { return Ok(None) };
        self.keys_in(&place).map_err(|e| e.to_string())
    }

    /// Names of directories for one export that belong to none of these subsystems.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn without_export(&self, subnqns: &[String]) -> Result<Vec<String>> {
        let exports = match &self.0 {
            KeyStore::FileSystem(dir) => exports_in(dir)?,
            KeyStore::Packed(packed) => packed.exports(),
        };
        let belongs = |name: &String| subnqns.iter().any(|nqn| names_of(nqn).any(|one| one == name));
        Ok(exports.into_iter().filter(|name| !belongs(name)).collect())
    }
}

/// The names that the directory of a subsystem may have, the whole one first.
fn names_of(subnqn: &str) -> impl Iterator<Item = &str> {
    [Some(subnqn), subnqn.rsplit_once(':').map(|(_, name)| name)].into_iter().flatten()
}

/// The directory of the keys for one export, or for all.
///
/// # Errors
/// The name is no name of a file.
pub fn dir_of(dir: &Path, export: Option<&str>) -> Result<PathBuf> {
    match export {
        None => Ok(dir.to_owned()),
        Some(name) if name.is_empty() || [".", ".."].contains(&name) || name.contains(['/', '\0']) => {
            Err(Error::invalid(format!("'{}' is not the name of an export", name.escape_debug())))
        }
        Some(name) => Ok(dir.join(EXPORTS).join(name)),
    }
}

/// Names of the exports that have keys of their own, in order.
///
/// # Errors
/// Others may change the directory of exports, or it cannot be read.
pub fn exports_in(dir: &Path) -> Result<Vec<String>> {
    let all = dir.join(EXPORTS);
    let failed = |e: io::Error| Error::failed(format!("cannot read keys: {}: {e}", all.display()));
    match fs::metadata(&all) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        result => check(&all, &result.map_err(failed)?)?,
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(&all).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let name = name.into_string().map_err(|name| {
            Error::invalid(format!(
                "cannot read keys: {} is not called by an export",
                all.join(name).display()
            ))
        })?;
        names.push(name);
    }
    names.sort();
    Ok(names)
}

impl KeySource for KeyDirectory {
    fn key_of(&self, hostnqn: &str, subnqn: &str) -> std::result::Result<Option<Generations>, String> {
        Ok(self.keys_for(hostnqn, subnqn)?.and_then(|keys| keys.secrets()))
    }

    fn tls_key_of(
        &self,
        hostnqn: &str,
        subnqn: &str,
    ) -> std::result::Result<Option<Generations<TlsKey>>, String> {
        Ok(self.keys_for(hostnqn, subnqn)?.and_then(|keys| keys.tls()))
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

#[cfg(test)]
mod tests;
