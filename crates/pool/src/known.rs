//! The pools that this host knows: which catalog each is in.
//!
//! A record of a few bytes for each pool, in the state directory of the user that made or used it;
//! root also sees those of the user that called `sudo`, and reads a catalog in a file with the rights
//! of that user. It says no more than a flag `--catalog` would: a lost one is written again.

use crate::access::catalog_access;
use crate::error::{Error, Result};
use crate::name::check_name;
use crate::pool::{Host, Pool};
use crate::remote::Targets;
use longhaul_catalog::{Access, Catalog, CatalogSpec};
use longhaul_device::{User, state};
use longhaul_initiator::Options;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Directory of the records, in the state directory.
const SUBDIRECTORY: &str = "pools";
/// The catalog that is used unless another one is named, in the state directory.
const CATALOG: &str = "catalog";
/// What the kernel calls this host.
const HOSTNAME: &str = "/proc/sys/kernel/hostname";
/// How long after the last sign of a host others take over what it was doing: a program that is
/// stopped for a short while goes on.
const TTL: Duration = Duration::from_secs(30);

/// A pool that this host knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPool {
    /// Its name.
    pub name: String,
    /// The catalog that it is in.
    pub catalog: CatalogSpec,
    /// The user whose state directory has the record, where root uses that of another user.
    user: Option<User>,
}

#[derive(Serialize, Deserialize)]
struct PlaceRecord {
    catalog: String,
}

/// The catalog of this user that is used unless another one is named.
pub fn default_catalog() -> CatalogSpec {
    CatalogSpec::File(state::directory().join(CATALOG))
}

fn own_directory() -> PathBuf {
    state::directory().join(SUBDIRECTORY)
}

/// State directories with records, and their users.
fn directories() -> Vec<(PathBuf, Option<User>)> {
    let own = own_directory();
    let of_caller = User::caller().and_then(|user| {
        let directory = state::directory_of(&user)?.join(SUBDIRECTORY);
        (directory != own).then_some((directory, Some(user)))
    });
    std::iter::once((own, None)).chain(of_caller).collect()
}

fn with_rights<T: Send>(user: Option<&User>, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    match user {
        None => Ok(work()),
        Some(user) => user.with_rights(work),
    }
}

fn failed(path: &Path, e: impl std::fmt::Display) -> Error {
    Error::Local(format!("{}: {e}", path.display()))
}

impl KnownPool {
    /// A pool of the catalog `catalog`; the path of a file is made absolute.
    ///
    /// # Errors
    /// There is no current directory.
    pub fn new(name: &str, catalog: &CatalogSpec) -> Result<KnownPool> {
        let catalog = match catalog {
            CatalogSpec::File(path) => {
                CatalogSpec::File(std::path::absolute(path).map_err(|e| failed(path, e))?)
            }
            shared => shared.clone(),
        };
        Ok(KnownPool { name: name.to_owned(), catalog, user: None })
    }

    /// All of them, by name. Of a name in two directories, the user's own.
    ///
    /// # Errors
    /// A directory cannot be read, or has a damaged record.
    pub fn all() -> Result<Vec<KnownPool>> {
        let mut all: Vec<KnownPool> = Vec::new();
        for (directory, user) in directories() {
            let read = || KnownPool::all_in(&directory, user.as_ref());
            let found = with_rights(user.as_ref(), read).map_err(|e| failed(&directory, e))??;
            all.extend(found);
        }
        // Stable: the user's own come first.
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all.dedup_by(|later, first| later.name == first.name);
        Ok(all)
    }

    fn all_in(directory: &Path, user: Option<&User>) -> Result<Vec<KnownPool>> {
        let entries = match std::fs::read_dir(directory) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|e| failed(directory, e))?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let path = entry.map_err(|e| failed(directory, e))?.path();
            let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let text = std::fs::read_to_string(&path).map_err(|e| failed(&path, e))?;
            let record: PlaceRecord = serde_json::from_str(&text).map_err(|e| failed(&path, e))?;
            let catalog = record.catalog.parse().map_err(|e| failed(&path, e))?;
            all.push(KnownPool { name, catalog, user: user.cloned() });
        }
        Ok(all)
    }

    /// The pool of that name.
    ///
    /// # Errors
    /// It is not known here: with what to do.
    pub fn find(name: &str) -> Result<KnownPool> {
        check_name("pool", name)?;
        let mut all = KnownPool::all()?;
        if let Some(at) = all.iter().position(|pool| pool.name == name) {
            return Ok(all.swap_remove(at));
        }
        let known: Vec<&str> = all.iter().map(|pool| pool.name.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Err(Error::Unknown(format!(
            "no pool {name} is known to this user on this host (known: {known}): 'longhaul pool status {name} \
             --catalog CATALOG' makes a pool known that is in a catalog, and 'longhaul pool import' makes its \
             records again from its targets"
        )))
    }

    /// Writes the record, if it is not there as it is.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub fn save(&self) -> Result<()> {
        if self.user.is_some() || KnownPool::all()?.contains(self) {
            return Ok(());
        }
        let directory = own_directory();
        let (path, new) = (self.path(&directory), directory.join(format!("{}.new", self.name)));
        let record = PlaceRecord { catalog: self.catalog.to_string() };
        let text = serde_json::to_string(&record).map_err(|e| failed(&path, e))?;
        std::fs::create_dir_all(&directory).map_err(|e| failed(&directory, e))?;
        std::fs::write(&new, text + "\n").map_err(|e| failed(&new, e))?;
        std::fs::rename(&new, &path).map_err(|e| failed(&path, e))
    }

    /// Removes the record of a pool that is not in its catalog any more.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub fn forget(&self) -> Result<()> {
        for (directory, user) in directories() {
            if user == self.user {
                let path = self.path(&directory);
                let removed = with_rights(user.as_ref(), || std::fs::remove_file(&path));
                return match removed.and_then(|removed| removed) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed(&path, e)),
                    _ => Ok(()),
                };
            }
        }
        Ok(())
    }

    fn path(&self, directory: &Path) -> PathBuf {
        directory.join(format!("{}.json", self.name))
    }

    /// This host, with the catalog of the pool and these connections to targets.
    ///
    /// # Errors
    /// The catalog cannot be opened.
    pub fn host(&self, targets: Arc<Targets>) -> Result<Host> {
        let name = std::fs::read_to_string(HOSTNAME).unwrap_or_default();
        let name = name.trim().to_owned();
        let access = catalog_access(targets.options());
        Ok(Host { catalog: self.open_catalog(access)?, spaces: targets, name, ttl: TTL })
    }

    fn open_catalog(&self, access: Access) -> Result<Arc<dyn Catalog>> {
        let CatalogSpec::File(path) = &self.catalog else { return Ok(self.catalog.open(access)?) };
        let open = || {
            if let Some(directory) = path.parent() {
                std::fs::create_dir_all(directory).map_err(|e| failed(directory, e))?;
            }
            Ok(self.catalog.open(access)?)
        };
        with_rights(self.user.as_ref(), open).map_err(|e| failed(path, e))?
    }

    /// The pool as it is in its catalog. Its targets are reached with these options.
    ///
    /// # Errors
    /// The catalog cannot be opened, or has no such pool.
    pub fn open(&self, options: &Options) -> Result<Pool> {
        Pool::open(&self.host(Arc::new(Targets::new(options.clone())?))?, &self.name)
    }
}
