//! A file system in a pool, by paths.

use crate::connect::Connect;
use crate::{error, wait};
use longhaul_catalog::CatalogSpec;
use longhaul_device::{Error, Opener};
use longhaul_fs::{Attributes, Cached, CachedOptions, Errno, FileKind, FileSystem};
use longhaul_pool::KnownPool;
use longhaul_poolfs::{Client, FsName, FsOptions, OpenFile};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::sync::{Arc, PoisonError, RwLock};
use wait::OfProcess;

/// How a file system is mounted.
#[derive(Clone, Copy, Debug)]
struct MountOptions {
    /// Bytes for read-ahead and write-behind.
    memory: usize,
    leases: bool,
}

fn open(
    name: &FsName,
    catalog: Option<&CatalogSpec>,
    opener: &Opener,
    options: MountOptions,
) -> Result<Client, Error> {
    let known = match catalog {
        Some(catalog) => KnownPool::new(&name.pool, catalog)?,
        None => KnownPool::find(&name.pool)?,
    };
    let pool = known.open(opener.options())?;
    let MountOptions { memory, leases } = options;
    // The shares of a mount: half for what is read ahead; writes are kept before they are cut into stripes, and
    // while they are on their way.
    let settings = FsOptions { memory: memory / 4, leases, ..FsOptions::default() };
    let files = Arc::new(longhaul_poolfs::open(&pool, &name.name, opener, settings)?);
    let cached = CachedOptions { read_ahead: memory / 2, write_behind: memory / 4, flushes: true };
    Ok(Client::new(Arc::new(Cached::new(files as Arc<dyn FileSystem>, cached))))
}

/// Why a call did not do it.
enum Ended {
    Closed,
    Forked(Error),
    File(Errno),
}

impl Ended {
    fn exception(self, py: Python<'_>, path: &str) -> PyErr {
        match self {
            Ended::Closed => error::closed(),
            Ended::Forked(e) => error::of_device(py, &e),
            Ended::File(e) => error::of_file(py, e, path),
        }
    }
}

/// A mounted file system. Paths are from its top directory.
#[pyclass(frozen, weakref, module = "longhaul._native")]
pub(crate) struct Mount {
    client: RwLock<Option<OfProcess<Client>>>,
}

fn entry<'py>(py: Python<'py>, attributes: &Attributes) -> PyResult<Bound<'py, PyDict>> {
    let kind = match attributes.kind() {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "link",
        _ => "other",
    };
    let time = |time: longhaul_fs::Time| time.seconds as f64 + f64::from(time.nanoseconds) / 1e9;
    let entry = PyDict::new(py);
    entry.set_item("size", if kind == "directory" { 0 } else { attributes.size })?;
    entry.set_item("type", kind)?;
    entry.set_item("mtime", time(attributes.modified))?;
    entry.set_item("created", time(attributes.changed))?;
    entry.set_item("mode", attributes.mode)?;
    entry.set_item("uid", attributes.uid)?;
    entry.set_item("gid", attributes.gid)?;
    entry.set_item("nlink", attributes.links)?;
    entry.set_item("ino", attributes.node.0)?;
    entry.set_item("islink", kind == "link")?;
    Ok(entry)
}

/// Offsets of a range in a file of `size` bytes; negative ones count from its end.
fn range(size: u64, start: Option<i64>, end: Option<i64>) -> (u64, usize) {
    let place = |at: i64| match at {
        0.. => (at as u64).min(size),
        _ => size.saturating_sub(at.unsigned_abs()),
    };
    let (start, end) = (start.map_or(0, place), end.map_or(size, place));
    // A range in memory: what does not fit is refused when it is allocated.
    (start, end.saturating_sub(start) as usize)
}

impl Mount {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        path: &str,
        work: impl FnOnce(&Client) -> Result<T, Errno> + Send,
    ) -> PyResult<T> {
        let result = py.detach(|| {
            let client = self.client.read().unwrap_or_else(PoisonError::into_inner);
            let client = client.as_ref().ok_or(Ended::Closed)?.get().map_err(Ended::Forked)?;
            work(client).map_err(Ended::File)
        });
        result.map_err(|ended| ended.exception(py, path))
    }
}

#[pymethods]
impl Mount {
    #[new]
    fn new(
        py: Python<'_>,
        name: &str,
        catalog: Option<&str>,
        memory: usize,
        leases: bool,
        connect: Connect,
    ) -> PyResult<Mount> {
        let parsed: FsName = name.parse().map_err(|e: String| error::invalid(py, e))?;
        let catalog: Option<CatalogSpec> =
            catalog.map(str::parse).transpose().map_err(|e| error::invalid(py, e))?;
        let opener = connect.opener(py)?;
        let options = MountOptions { memory, leases };
        let opened = wait::patiently(py, move || open(&parsed, catalog.as_ref(), &opener, options), || {})?;
        let client = opened.map_err(|e| error::of_device(py, &e))?;
        Ok(Mount { client: RwLock::new(Some(OfProcess::new(client))) })
    }

    fn info<'py>(&self, py: Python<'py>, path: &str) -> PyResult<Bound<'py, PyDict>> {
        entry(py, &self.with(py, path, |client| client.metadata(path.as_bytes()))?)
    }

    fn ls<'py>(&self, py: Python<'py>, path: &str) -> PyResult<Vec<(String, Bound<'py, PyDict>)>> {
        let listed = self.with(py, path, |client| client.read_dir(path.as_bytes()))?;
        // Names that are not UTF-8 cannot be opened by a path of fsspec, which is text.
        let names = listed.iter().map(|one| (String::from_utf8_lossy(&one.name).into_owned(), one));
        names.map(|(name, one)| Ok((name, entry(py, &one.attributes)?))).collect()
    }

    fn read<'py>(
        &self,
        py: Python<'py>,
        path: &str,
        start: Option<i64>,
        end: Option<i64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let content = self.with(py, path, |client| {
            let file = client.open(path.as_bytes())?;
            let (offset, len) = range(file.size(), start, end);
            let mut content = vec![0; len];
            let read = file.read_at(offset, &mut content);
            let closed = file.close();
            content.truncate(read?);
            closed.map(|()| content)
        })?;
        Ok(PyBytes::new(py, &content))
    }

    fn write(&self, py: Python<'_>, path: &str, data: &[u8], is_new: bool) -> PyResult<()> {
        self.with(py, path, |client| {
            if !is_new {
                return client.write(path.as_bytes(), data);
            }
            let file = client.create_new(path.as_bytes())?;
            let written = file.write_at(0, data);
            let closed = file.close();
            written.and(closed)
        })
    }

    /// Opens a file: mode `r`, `w`, `x` or `a`.
    fn open(&self, py: Python<'_>, path: &str, mode: &str) -> PyResult<MountFile> {
        let file = self.with(py, path, |client| match mode {
            "r" => client.open(path.as_bytes()),
            "x" => client.create_new(path.as_bytes()),
            mode => client.create(path.as_bytes(), mode == "a"),
        })?;
        Ok(MountFile {
            size: file.size(),
            path: path.to_owned(),
            file: RwLock::new(Some(OfProcess::new(file))),
        })
    }

    fn mkdir(&self, py: Python<'_>, path: &str) -> PyResult<()> {
        self.with(py, path, |client| client.create_dir(path.as_bytes()))
    }

    fn makedirs(&self, py: Python<'_>, path: &str) -> PyResult<()> {
        self.with(py, path, |client| client.create_dir_all(path.as_bytes()))
    }

    fn remove(&self, py: Python<'_>, path: &str) -> PyResult<()> {
        self.with(py, path, |client| client.remove(path.as_bytes()))
    }

    fn rename(&self, py: Python<'_>, from: &str, to: &str) -> PyResult<()> {
        self.with(py, from, |client| client.rename(from.as_bytes(), to.as_bytes()))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, "/", Client::sync)
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.client.write().unwrap_or_else(PoisonError::into_inner).take()));
    }
}

impl Drop for Mount {
    /// Ends the session without the interpreter's lock: it waits for what was written.
    fn drop(&mut self) {
        let client = self.client.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        wait::drop_detached(client);
    }
}

/// An open file of a mounted file system.
#[pyclass(frozen, module = "longhaul._native")]
pub(crate) struct MountFile {
    file: RwLock<Option<OfProcess<OpenFile>>>,
    path: String,
    /// Bytes when it was opened.
    #[pyo3(get)]
    size: u64,
}

impl MountFile {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&OpenFile) -> Result<T, Errno> + Send,
    ) -> PyResult<T> {
        let result = py.detach(|| {
            let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
            work(file.as_ref().ok_or(Ended::Closed)?.get().map_err(Ended::Forked)?).map_err(Ended::File)
        });
        result.map_err(|ended| ended.exception(py, &self.path))
    }
}

#[pymethods]
impl MountFile {
    fn read_at<'py>(&self, py: Python<'py>, offset: u64, length: usize) -> PyResult<Bound<'py, PyBytes>> {
        let mut content = vec![0; length];
        let read = self.with(py, |file| file.read_at(offset, &mut content))?;
        Ok(PyBytes::new(py, &content[..read]))
    }

    fn write_at(&self, py: Python<'_>, offset: u64, data: &[u8]) -> PyResult<()> {
        self.with(py, |file| file.write_at(offset, data))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, OpenFile::sync)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = py.detach(|| {
            let file = self.file.write().unwrap_or_else(PoisonError::into_inner).take();
            file.and_then(OfProcess::take).map_or(Ok(()), OpenFile::close)
        });
        closed.map_err(|e| error::of_file(py, e, &self.path))
    }
}

impl Drop for MountFile {
    fn drop(&mut self) {
        let file = self.file.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        wait::drop_detached(file);
    }
}
