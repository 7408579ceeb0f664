//! The data set of the demo, and its division into pieces.

use super::temporary::TemporaryDir;
use crate::Error;
use longhaul_transfer::dataset::{DatasetSpec, Scale, make};
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of a piece, which one command carries.
pub(super) const PIECE: u64 = 1 << 20;
/// Alignment of pieces on a device in bytes: the block size of the namespaces.
const ALIGN: u64 = 4096;

/// A file and its size when it was found.
#[derive(Clone, Debug)]
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) size: u64,
}

/// Files of a directory, which is removed on drop if it is a temporary one.
pub(super) struct DataSet {
    pub(super) dir: PathBuf,
    pub(super) files: Vec<File>,
    _temporary: Option<TemporaryDir>,
}

/// A piece of a file, and its location on a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Index of the file.
    pub(super) file: usize,
    /// Offset and length in the file, in bytes.
    pub(super) at: u64,
    pub(super) len: usize,
    /// Index of the device, and offset there in bytes.
    pub(super) device: usize,
    pub(super) offset: u64,
}

impl Piece {
    /// Length on the device: whole blocks.
    pub(super) fn stored(&self) -> usize {
        self.len.next_multiple_of(ALIGN as usize)
    }
}

impl DataSet {
    /// The regular files below a directory.
    pub(super) fn of(dir: &Path) -> Result<DataSet, Error> {
        let mut source = DataSet { dir: dir.to_owned(), files: Vec::new(), _temporary: None };
        source.scan(dir)?;
        source.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(source)
    }

    fn scan(&mut self, dir: &Path) -> Result<(), Error> {
        let fail =
            |path: &Path, e: std::io::Error| Error::failed(format!("cannot read {}: {e}", path.display()));
        for entry in fs::read_dir(dir).map_err(|e| fail(dir, e))? {
            let entry = entry.map_err(|e| fail(dir, e))?;
            let path = entry.path();
            let meta = fs::symlink_metadata(&path).map_err(|e| fail(&path, e))?;
            if meta.is_dir() {
                self.scan(&path)?;
            } else if meta.is_file() {
                self.files.push(File { path, size: meta.len() });
            }
        }
        Ok(())
    }

    /// The data set called `set`, at this scale, in a new temporary directory with this name.
    pub(super) fn make(name: &str, set: &str, scale: Scale) -> Result<DataSet, Error> {
        let temporary = TemporaryDir::make(name)?;
        let dir = temporary.path().to_owned();
        let mut source = DataSet { dir: dir.clone(), files: Vec::new(), _temporary: Some(temporary) };
        let spec = DatasetSpec::parse(set, scale).map_err(Error::usage)?;
        make(&dir, &spec.plan(), &|_| {}).map_err(Error::failed)?;
        source.scan(&dir)?;
        source.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(source)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// The pieces of all files, distributed over the devices round-robin.
    pub(super) fn pieces(&self, devices: usize) -> Vec<Piece> {
        let mut ends = vec![0; devices];
        let mut pieces = Vec::new();
        for (file, f) in self.files.iter().enumerate() {
            let mut at = 0;
            while at < f.size {
                let len = (f.size - at).min(PIECE) as usize;
                let device = pieces.len() % devices;
                let piece = Piece { file, at, len, device, offset: ends[device] };
                ends[device] += piece.stored() as u64;
                pieces.push(piece);
                at += len as u64;
            }
        }
        pieces
    }

    /// Bytes that each of `devices` devices needs.
    pub(super) fn space_for_each(&self, devices: usize) -> u64 {
        let pieces = self.pieces(devices);
        let end = pieces.iter().map(|piece| piece.offset + piece.stored() as u64).max();
        end.unwrap_or(0).max(ALIGN)
    }
}
