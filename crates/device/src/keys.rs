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

mod packed;

use crate::error::{Error, ErrorKind, Result};
use longhaul_auth::{Generations, HashFunction, HostKey, KeySource, Secret, TlsKey, number_before};
use longhaul_wire::nqn::Nqn;
use packed::{PACKED_MAX, Packed};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
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
        let (mut hosts, hosts_dirs) = (0, packed.hosts());
        for place in hosts_dirs {
            let nqn = place.file_name().and_then(|name| name.to_str()).and_then(|name| Nqn::new(name).ok());
            if nqn.is_none() {
                return Err(Error::invalid(format!(
                    "cannot read keys: {}: {} is not called by the NQN of a host",
                    packed.name,
                    place.display()
                )));
            }
            keys_of(&KeyPlace::Packed { packed: &packed, path: place })?;
            hosts += 1;
        }
        if hosts == 0 {
            return Err(Error::invalid(format!("cannot read keys: {} has no hosts", packed.name)));
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

/// The directory of a host, or of one of its generations.
enum KeyPlace<'a> {
    /// One that stays the same while it is read, also if another one takes its place.
    FileSystem { dir: File, path: PathBuf },
    /// One within an archive.
    Packed { packed: &'a Packed, path: PathBuf },
}

/// The keys in the directory of a host; none if there is no such directory.
fn keys_in(path: &Path) -> Result<Option<KeysOfHost>> {
    let Some(place) = KeyPlace::open(CWD, path, path)? else { return Ok(None) };
    keys_of(&place).map(Some)
}

fn keys_of(place: &KeyPlace<'_>) -> Result<KeysOfHost> {
    let current = place.stored()?;
    if current.is_empty() {
        return Err(Error::invalid(format!(
            "cannot read keys: {} has no {HOST_SECRET} and no {TLS_KEY}",
            place.describe()
        )));
    }
    let of = |name| place.child(name)?.map_or(Ok(Stored::default()), |place| place.stored());
    Ok(KeysOfHost { number: place.generation()?, current, previous: of(PREVIOUS)?, retired: of(RETIRED)? })
}

impl KeyPlace<'_> {
    fn open(from: impl std::os::fd::AsFd, name: &Path, path: &Path) -> Result<Option<KeyPlace<'static>>> {
        let failed = |e: io::Error| Error::failed(format!("cannot read keys: {}: {e}", path.display()));
        let dir = match open_at(from, name, OFlags::DIRECTORY) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            result => result.map_err(failed)?,
        };
        check(path, &dir.metadata().map_err(failed)?)?;
        Ok(Some(KeyPlace::FileSystem { dir, path: path.to_owned() }))
    }

    fn child(&self, name: &str) -> Result<Option<KeyPlace<'_>>> {
        match self {
            KeyPlace::FileSystem { dir, path } => KeyPlace::open(dir, Path::new(name), &path.join(name)),
            KeyPlace::Packed { packed, path } => {
                let path = path.join(name);
                Ok(packed.has(&path).then_some(KeyPlace::Packed { packed, path }))
            }
        }
    }

    /// Its path, or what it is a part of, for messages.
    fn describe(&self) -> String {
        match self {
            KeyPlace::FileSystem { path, .. } => path.display().to_string(),
            KeyPlace::Packed { packed, path } => format!("{} in {}", path.display(), packed.name),
        }
    }

    fn stored(&self) -> Result<Stored> {
        let secrets = match self.parsed(HOST_SECRET)? {
            Some(secret) => Some(HostKey { secret, controller: self.parsed(CONTROLLER_SECRET)? }),
            None => None,
        };
        Ok(Stored { secrets, tls: self.parsed(TLS_KEY)? })
    }

    fn generation(&self) -> Result<u32> {
        let Some(text) = self.text(GENERATION)? else { return Ok(1) };
        text.trim().parse().map_err(|_| {
            Error::invalid(format!("{GENERATION} of {} has no number of a generation", self.describe()))
        })
    }

    /// The secret or key in a file; none if there is no file.
    fn parsed<T: FromStr<Err: std::fmt::Display>>(&self, name: &str) -> Result<Option<T>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        text.parse().map(Some).map_err(|e| self.failed(name, &e))
    }

    fn text(&self, name: &str) -> Result<Option<Zeroizing<String>>> {
        let (dir, path) = match self {
            KeyPlace::FileSystem { dir, path } => (dir, path),
            KeyPlace::Packed { packed, path } => return Ok(packed.text(&path.join(name)).cloned()),
        };
        let file = match open_at(dir, Path::new(name), OFlags::empty()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            result => result.map_err(|e| self.failed(name, &e))?,
        };
        check(&path.join(name), &file.metadata().map_err(|e| self.failed(name, &e))?)?;
        let mut text = Zeroizing::new(String::with_capacity(FILE_MAX as usize));
        file.take(FILE_MAX).read_to_string(&mut text).map_err(|e| self.failed(name, &e))?;
        Ok(Some(text))
    }

    fn failed(&self, name: &str, why: &dyn std::fmt::Display) -> Error {
        Error::invalid(format!("cannot read the secret in {name} of {}: {why}", self.describe()))
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

    const SUBSYSTEM: &str = "nqn.2026-11.io.longhaul:test:scratch";

    const TLS: Made = Made::Tls { hash: HashFunction::Sha256 };

    fn secrets(is_mutual: bool) -> Made {
        Made::Secrets { hash: HashFunction::Sha256, is_mutual }
    }

    fn made(dir: &Path, is_mutual: bool) -> PathBuf {
        make(dir, HOST, secrets(is_mutual), true, &mut longhaul_engine::random).unwrap().0
    }

    #[test]
    fn what_is_made_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let place = made(dir.path(), true);
        let keys = read(dir.path()).unwrap();
        let first = keys[HOST].secrets().unwrap();
        let key = &first.current;
        assert!(keys.len() == 1 && key.controller.is_some());
        assert_ne!(Some(&key.secret), key.controller.as_ref(), "two secrets");
        let again = make(dir.path(), HOST, secrets(true), false, &mut longhaul_engine::random);
        assert_eq!(again.unwrap_err().kind(), ErrorKind::Refused);
        assert_eq!(read(dir.path()).unwrap(), keys, "nothing was changed");
        made(dir.path(), false);
        let replaced = read(dir.path()).unwrap()[HOST].secrets().unwrap();
        assert_eq!(replaced.current.controller, None);
        assert_eq!((replaced.number, &replaced.retired), (2, &Some(first.current)));
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
        let first = source.key_of(HOST, SUBSYSTEM).unwrap().unwrap();
        assert_eq!(retire(dir.path(), HOST).unwrap_err().kind(), ErrorKind::Refused, "nothing to retire");
        let second = rotate(dir.path(), HOST, None, false, random).unwrap().1.secrets().unwrap();
        assert_eq!(
            source.key_of(HOST, SUBSYSTEM).unwrap().as_ref(),
            Some(&second),
            "seen without opening it again"
        );
        assert_eq!((second.number, &second.previous), (2, &Some(first.current.clone())));
        assert!(second.current.controller.is_some() && second.current != first.current);
        let twice = rotate(dir.path(), HOST, None, false, random).unwrap_err();
        assert!(twice.kind() == ErrorKind::Refused && twice.to_string().contains("key retire"), "{twice}");
        assert_eq!(retire(dir.path(), HOST).unwrap(), 1);
        let alone = source.key_of(HOST, SUBSYSTEM).unwrap().unwrap();
        assert_eq!((alone.number, alone.previous, alone.retired), (2, None, Some(first.current)));
        rotate(dir.path(), HOST, Some(HashFunction::Sha512), false, random).unwrap();
        let fourth = rotate(dir.path(), HOST, None, true, random).unwrap().1.secrets().unwrap();
        assert_eq!((fourth.number, fourth.retired), (4, Some(second.current)));
        assert_eq!(fourth.current.secret.hash(), Some(HashFunction::Sha512), "as the one before");
    }

    /// Both kinds are of one host, and are replaced one by one or, by a rotation, together.
    #[test]
    fn a_key_for_tls_is_kept_beside_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let random = &mut longhaul_engine::random;
        let (place, alone) = make(dir.path(), HOST, TLS, false, random).unwrap();
        let source = KeyDirectory::open(dir.path()).unwrap();
        let tls = source.tls_key_of(HOST, SUBSYSTEM).unwrap().expect("a key for TLS");
        assert!(alone.secrets().is_none() && source.key_of(HOST, SUBSYSTEM).unwrap().is_none());
        let text = fs::read_to_string(place.join(TLS_KEY)).unwrap();
        assert_eq!(text.parse::<TlsKey>(), Ok(tls.current.clone()));
        assert_eq!(fs::metadata(place.join(TLS_KEY)).unwrap().mode() & 0o777, 0o600);
        let again = make(dir.path(), HOST, TLS, false, random).unwrap_err();
        assert!(again.kind() == ErrorKind::Refused && again.to_string().contains("a key for TLS"), "{again}");
        make(dir.path(), HOST, secrets(true), false, random).unwrap();
        assert_eq!(source.tls_key_of(HOST, SUBSYSTEM).unwrap(), Some(tls.clone()), "secrets came beside it");
        let chap = source.key_of(HOST, SUBSYSTEM).unwrap().expect("secrets");
        make(dir.path(), HOST, TLS, true, random).unwrap();
        let second = source.tls_key_of(HOST, SUBSYSTEM).unwrap().unwrap();
        assert_eq!((second.number, &second.previous, &second.retired), (2, &None, &Some(tls.current)));
        assert_eq!(source.key_of(HOST, SUBSYSTEM).unwrap().unwrap().current, chap.current, "they stay");
        rotate(dir.path(), HOST, Some(HashFunction::Sha512), false, random).unwrap();
        let third = source.tls_key_of(HOST, SUBSYSTEM).unwrap().unwrap();
        assert_eq!((third.number, &third.previous), (3, &Some(second.current.clone())));
        assert_eq!(third.current.hash(), HashFunction::Sha384, "TLS has no suite of SHA-512");
        assert_eq!(source.key_of(HOST, SUBSYSTEM).unwrap().unwrap().previous, Some(chap.current));
        retire(dir.path(), HOST).unwrap();
        assert_eq!(source.tls_key_of(HOST, SUBSYSTEM).unwrap().unwrap().retired, Some(second.current));
    }

    #[test]
    fn keys_for_one_export_count_for_it_alone_and_in_place_of_those_for_all() {
        const OTHER: &str = "nqn.2026-11.io.longhaul:test:archive";
        const ELSEWHERE: &str = "nqn.2026-11.io.longhaul:test:host2";
        let dir = tempfile::tempdir().unwrap();
        let random = &mut longhaul_engine::random;
        let scratch = dir_of(dir.path(), Some("scratch")).unwrap();
        make(&scratch, HOST, secrets(true), false, random).unwrap();
        make(&scratch, HOST, TLS, false, random).unwrap();
        // They are enough, and are no keys for anything else.
        let source = KeyDirectory::open(dir.path()).unwrap();
        let own = source.key_of(HOST, SUBSYSTEM).unwrap().expect("a key");
        assert!(source.tls_key_of(HOST, SUBSYSTEM).unwrap().is_some());
        for subnqn in [OTHER, "scratch:nqn", "nqn.2014-08.org.nvmexpress.discovery", "scratch2", ""] {
            assert_eq!(source.key_of(HOST, subnqn).unwrap(), None, "{subnqn}");
            assert_eq!(source.tls_key_of(HOST, subnqn).unwrap(), None, "{subnqn}");
        }
        assert_eq!(source.key_of(ELSEWHERE, SUBSYSTEM).unwrap(), None);
        // Those for all do not count there, whatever kind they are.
        made(dir.path(), true);
        make(dir.path(), ELSEWHERE, TLS, false, random).unwrap();
        let all = source.key_of(HOST, OTHER).unwrap().expect("a key");
        assert_ne!(all.current, own.current);
        assert_eq!(source.key_of(HOST, SUBSYSTEM).unwrap().as_ref(), Some(&own));
        assert!(source.tls_key_of(ELSEWHERE, SUBSYSTEM).unwrap().is_some(), "a host that is not there");
        make(&scratch, ELSEWHERE, secrets(true), false, random).unwrap();
        assert_eq!(
            source.tls_key_of(ELSEWHERE, SUBSYSTEM).unwrap(),
            None,
            "it has secrets there, and no key"
        );
        // The whole NQN comes before the name.
        let whole = dir_of(dir.path(), Some(SUBSYSTEM)).unwrap();
        make(&whole, HOST, secrets(true), false, random).unwrap();
        let third = source.key_of(HOST, SUBSYSTEM).unwrap().expect("a key");
        assert!(third.current != own.current && third.current != all.current);
        // Each is rotated alone.
        rotate(&whole, HOST, None, false, random).unwrap();
        assert_eq!(source.key_of(HOST, SUBSYSTEM).unwrap().unwrap().previous, Some(third.current));
        assert_eq!(source.key_of(HOST, OTHER).unwrap(), Some(all));
        assert_eq!(exports_in(dir.path()).unwrap(), [SUBSYSTEM, "scratch"]);
        assert_eq!(source.without_export(&[OTHER.into()]).unwrap(), [SUBSYSTEM, "scratch"]);
        assert!(source.without_export(&[SUBSYSTEM.into()]).unwrap().is_empty());
        fs::set_permissions(dir.path().join(EXPORTS), fs::Permissions::from_mode(0o770)).unwrap();
        assert_eq!(KeyDirectory::open(dir.path()).unwrap_err().kind(), ErrorKind::Refused);
    }

    #[test]
    fn a_subsystem_from_the_network_leads_to_no_other_file() {
        let dir = tempfile::tempdir().unwrap();
        made(dir.path(), true);
        let scratch = dir_of(dir.path(), Some("scratch")).unwrap();
        make(&scratch, HOST, secrets(true), false, &mut longhaul_engine::random).unwrap();
        let source = KeyDirectory::open(dir.path()).unwrap();
        let all = source.key_of(HOST, "nqn.2026-11.io.longhaul:none").unwrap();
        for subnqn in
            ["..", "nqn.x:..", "nqn.x:../exports/scratch", "nqn.x:./scratch", "nqn.x:", "nqn.x:a/../scratch"]
        {
            assert_eq!(source.key_of(HOST, subnqn).unwrap(), all, "{subnqn}");
        }
        for name in ["", ".", "..", "a/b", "\0"] {
            assert_eq!(dir_of(dir.path(), Some(name)).unwrap_err().kind(), ErrorKind::Invalid, "{name}");
        }
    }

    #[test]
    fn a_wrong_key_for_tls_is_named_and_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let (place, _) = make(dir.path(), HOST, TLS, false, &mut longhaul_engine::random).unwrap();
        let path = place.join(TLS_KEY);
        let text = fs::read_to_string(&path).unwrap();
        for (wrong, says) in [
            (text.replace(":01:", ":03:"), "second field"),
            (text[..40].to_owned(), "colon"),
            (text.replace("NVMeTLSkey-1", "DHHC-1"), "DH-HMAC-CHAP"),
            (text.replacen(&text[20..22], "/+", 1), "check sum"),
        ] {
            fs::write(&path, &wrong).unwrap();
            let said = read(dir.path()).unwrap_err().to_string();
            assert!(said.contains(TLS_KEY) && said.contains(says) && !said.contains(&text[22..40]), "{said}");
        }
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read(dir.path()).unwrap_err().kind(), ErrorKind::Refused);
    }

    #[test]
    fn a_name_from_the_network_leads_to_no_other_file() {
        let dir = tempfile::tempdir().unwrap();
        made(dir.path(), true);
        let source = KeyDirectory::open(dir.path()).unwrap();
        for name in
            ["", ".", "..", "/etc", &format!("{HOST}/../{HOST}"), &format!("{HOST}/previous"), "nqn.\0"]
        {
            assert_eq!(source.key_of(name, SUBSYSTEM).unwrap(), None, "{name}");
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
            let result = make(dir.path(), name, TLS, true, &mut longhaul_engine::random);
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Invalid, "{name}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(read(dir.path()).is_err());
        DirBuilder::new().mode(0o700).create(dir.path().join(HOSTS)).unwrap();
        assert!(read(dir.path()).unwrap_err().to_string().contains("longhaul key make"));
    }

    /// The directory as an archive of tar.
    fn packed(dir: &Path) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        archive.append_dir_all(".", dir).unwrap();
        archive.into_inner().unwrap()
    }

    #[test]
    fn an_archive_has_the_keys_of_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let random = &mut longhaul_engine::random;
        let (export, of_all) = ("scratch", "nqn.2026-11.io.longhaul:test:other");
        make(dir.path(), HOST, secrets(true), false, random).unwrap();
        rotate(dir.path(), HOST, None, false, random).unwrap();
        make(&dir_of(dir.path(), Some(export)).unwrap(), HOST, TLS, false, random).unwrap();
        let directory = KeyDirectory::open(dir.path()).unwrap();
        let archive = KeyDirectory::unpacked("x".into(), &packed(dir.path())).unwrap();
        for subsystem in [SUBSYSTEM, of_all] {
            for host in [HOST, "nqn.2026-11.io.longhaul:test:stranger", "no NQN", ".."] {
                assert_eq!(archive.key_of(host, subsystem), directory.key_of(host, subsystem), "{host}");
                assert_eq!(archive.tls_key_of(host, subsystem), directory.tls_key_of(host, subsystem));
            }
        }
        assert!(archive.tls_key_of(HOST, SUBSYSTEM).unwrap().is_some(), "of the export");
        assert!(archive.key_of(HOST, of_all).unwrap().unwrap().previous.is_some(), "a rotation is in it");
        assert_eq!(archive.without_export(&[of_all.into()]).unwrap(), [export]);
    }

    #[test]
    fn an_archive_that_is_no_directory_of_keys_is_refused_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        made(dir.path(), true);
        let refused =
            |archive: &[u8]| KeyDirectory::unpacked("the credential k".into(), archive).unwrap_err();
        let whole = packed(dir.path());
        assert!(refused(b"").to_string().contains("the credential k: it has no files"));
        assert!(refused(b"secret").to_string().contains("tar -C DIR -c ."));
        for cut in [700, 1500, 2100] {
            let _ = refused(&whole[..cut]);
        }
        fs::write(dir.path().join(HOSTS).join(HOST).join(TLS_KEY), "NVMeTLSkey-1:01:AAAA:").unwrap();
        let wrong = refused(&packed(dir.path()));
        assert!(
            wrong.to_string().contains(&format!("tls_key of hosts/{HOST} in the credential k")),
            "{wrong}"
        );
        fs::remove_dir_all(dir.path().join(HOSTS).join(HOST)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join(HOSTS).join(HOST)).unwrap();
        let mut archive = tar::Builder::new(Vec::new());
        archive.follow_symlinks(false);
        archive.append_dir_all(".", dir.path()).unwrap();
        assert!(refused(&archive.into_inner().unwrap()).to_string().contains("is no file of keys"));
    }

    #[test]
    fn keys_of_the_kernel_are_read() {
        use linux_keyutils::{KeyRing, KeyRingIdentifier};
        let dir = tempfile::tempdir().unwrap();
        made(dir.path(), true);
        // One of this thread's process, which ends with it; some sandboxes have no keys.
        let Ok(ring) = KeyRing::from_special_id(KeyRingIdentifier::Session, true) else {
            longhaul_skip::skip!("the kernel has no keyrings here");
            return;
        };
        let name = format!("longhaul-test-{}", std::process::id());
        let Ok(key) = ring.add_key(&name, &packed(dir.path())) else {
            longhaul_skip::skip!("no key can be added to the kernel's");
            return;
        };
        let found = KeyDirectory::of_keyring(&name);
        key.invalidate().unwrap();
        assert!(found.unwrap().key_of(HOST, SUBSYSTEM).unwrap().is_some());
        let gone = KeyDirectory::of_keyring(&name).unwrap_err().to_string();
        assert!(gone.contains(&format!("cannot read keys: the key {name} of the kernel")), "{gone}");
    }
}
