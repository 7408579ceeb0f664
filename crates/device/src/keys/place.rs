//! Reads the keys of one host: from its directory, or from that in an archive.

use super::packed::Packed;
use super::{
    CONTROLLER_SECRET, FILE_MAX, GENERATION, HOST_SECRET, KeysOfHost, PREVIOUS, RETIRED, Stored, TLS_KEY,
};
use crate::error::{Error, ErrorKind, Result};
use longhaul_auth::HostKey;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::geteuid;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use zeroize::Zeroizing;

/// The directory of a host, or of one of its generations.
pub(super) enum KeyPlace<'a> {
    /// One that stays the same while it is read, also if another one takes its place.
    FileSystem { dir: File, path: PathBuf },
    /// One within an archive.
    Packed { packed: &'a Packed, path: PathBuf },
}

/// The keys in the directory of a host; none if there is no such directory.
pub(super) fn keys_in(path: &Path) -> Result<Option<KeysOfHost>> {
    let Some(place) = KeyPlace::open(CWD, path, path)? else { return Ok(None) };
    keys_of(&place).map(Some)
}

pub(super) fn keys_of(place: &KeyPlace<'_>) -> Result<KeysOfHost> {
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
pub(super) fn check(path: &Path, meta: &fs::Metadata) -> Result<()> {
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
