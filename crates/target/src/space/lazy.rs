//! The file of a namespace, opened when the first host uses it: of ten thousand namespaces few are
//! in use at a time, and each that is takes two descriptors.

use longhaul_block::{BlockDevice, DeviceInfo, FileDevice, FileOptions, IoError, IoResult, Open};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the module. A clone is of the same file.
#[derive(Clone)]
pub(super) struct LazyFile(Arc<LazyFileInner>);

struct LazyFileInner {
    path: PathBuf,
    state: Mutex<LazyFileState>,
}

struct LazyFileState {
    info: DeviceInfo,
    file: Option<Arc<FileDevice>>,
    /// The namespace was removed.
    gone: bool,
}

impl LazyFile {
    /// The file at `path`, of the size and block size in `info`.
    pub(super) fn new(path: PathBuf, info: DeviceInfo) -> LazyFile {
        LazyFile(Arc::new(LazyFileInner {
            path,
            state: Mutex::new(LazyFileState { info, file: None, gone: false }),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, LazyFileState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is removed: opened no more, and closed when I/O under way has ended.
    pub(super) fn remove(&self) {
        let file = {
            let mut state = self.lock();
            state.gone = true;
            state.file.take()
        };
        drop(file);
    }

    /// It could not be removed after all.
    pub(super) fn restore(&self) {
        self.lock().gone = false;
    }

    /// It has as many bytes now.
    pub(super) fn grown(&self, size: u64) -> IoResult<()> {
        let file = {
            let mut state = self.lock();
            state.info.size = size;
            state.file.clone()
        };
        file.map_or(Ok(()), |file| file.refresh().map(drop))
    }

    /// Opens the file, if it is not open yet. Blocks.
    fn file(&self) -> IoResult<Arc<FileDevice>> {
        let mut state = self.lock();
        if state.gone {
            return Err(IoError::Offline(format!("{} was removed", state.info.name)));
        }
        if let Some(file) = &state.file {
            return Ok(Arc::clone(file));
        }
        let options = FileOptions { block_size: Some(state.info.block_size), ..FileOptions::default() };
        let file =
            FileDevice::open_file(&self.0.path, &options).map_err(|e| IoError::Medium(e.to_string()))?;
        let len = file.info().size;
        // It may have more: see `DirSpace::grow`.
        if len < state.info.size {
            let (name, size) = (&state.info.name, state.info.size);
            return Err(IoError::Medium(format!("{name} has {len} bytes, and its record says {size}")));
        }
        let file = Arc::new(file);
        state.file = Some(Arc::clone(&file));
        Ok(file)
    }
}

impl BlockDevice for LazyFile {
    fn info(&self) -> DeviceInfo {
        self.lock().info.clone()
    }

    fn open(&self) -> Open<'_> {
        let this = self.clone();
        Box::pin(async move {
            let file = longhaul_engine::blocking(move || this.file()).await?;
            file.open().await
        })
    }
}
