//! A device, read and written at any offset.
//!
//! Invariants:
//! - a write that covers a part of a block reads that block, and no other write of this object is under way
//!   meanwhile: writes of several threads to one block are never lost;
//! - closing waits for the calls under way.

use crate::connect::Connect;
use crate::{error, wait};
use longhaul_block::{Blocking, IoError, IoResult, TellsLosses};
use longhaul_device::{Device as OpenDevice, Error, Opener};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::sync::{Arc, PoisonError, RwLock};
use wait::OfProcess;

/// The parts of an open device, in the order in which they end.
struct OpenParts {
    disk: Blocking,
    /// Writes of whole blocks share it; one that covers a part of a block has it alone.
    edges: RwLock<()>,
    device: OpenDevice,
}

/// Bytes of whole blocks that have the bytes which were asked for.
struct WholeBlocks {
    buf: Vec<u8>,
    /// Bytes before those.
    skip: usize,
    len: usize,
}

impl OpenParts {
    fn open(opener: &Opener, name: &str) -> Result<OpenParts, Error> {
        let device = opener.open_blocking(name)?;
        // A flush fails if the target has lost writes before it.
        let disk = Blocking::open_on(Arc::new(TellsLosses::new(device.block())), opener.config())?;
        let disk = disk.with_interrupt(Arc::new(wait::interrupted));
        Ok(OpenParts { disk, edges: RwLock::default(), device })
    }

    /// The whole blocks of a range, which is cut at the end of the device.
    fn whole(&self, offset: u64, len: usize) -> (u64, WholeBlocks) {
        let info = self.disk.info();
        let (block, end) = (u64::from(info.block_size), offset.saturating_add(len as u64).min(info.size));
        let len = end.saturating_sub(offset) as usize;
        if len == 0 {
            return (0, WholeBlocks { buf: Vec::new(), skip: 0, len: 0 });
        }
        let first = offset - offset % block;
        let buf = vec![0; (end.next_multiple_of(block) - first) as usize];
        (first, WholeBlocks { buf, skip: (offset - first) as usize, len })
    }

    fn read_one(&self, offset: u64, len: usize) -> IoResult<WholeBlocks> {
        let (first, mut blocks) = self.whole(offset, len);
        self.disk.read_at(&mut blocks.buf, first)?;
        Ok(blocks)
    }

    fn read_many(&self, ranges: &[(u64, usize)]) -> IoResult<Vec<WholeBlocks>> {
        let (firsts, mut all): (Vec<u64>, Vec<WholeBlocks>) =
            ranges.iter().map(|(offset, len)| self.whole(*offset, *len)).unzip();
        let buffers = all.iter_mut().map(|blocks| &mut blocks.buf[..]);
        let mut parts: Vec<(u64, &mut [u8])> = firsts.into_iter().zip(buffers).collect();
        self.disk.read_many(&mut parts)?;
        Ok(all)
    }

    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        let (info, len) = (self.disk.info(), data.len() as u64);
        if info.read_only {
            return Err(IoError::ReadOnly);
        }
        if offset.checked_add(len).is_none_or(|end| end > info.size) {
            return Err(IoError::OutOfRange { offset, len, size: info.size });
        }
        let (block, end) = (u64::from(info.block_size), offset + len);
        if offset.is_multiple_of(block) && end.is_multiple_of(block) {
            let _shared = self.edges.read().unwrap_or_else(PoisonError::into_inner);
            return self.disk.write_at(data, offset);
        }
        let _alone = self.edges.write().unwrap_or_else(PoisonError::into_inner);
        let (first, mut blocks) = self.whole(offset, data.len());
        let one = block as usize;
        let last = blocks.buf.len() - one;
        // Only the blocks at the ends keep anything: both are read at once.
        let (before, tail) = blocks.buf.split_at_mut(last);
        let mut parts = vec![(first + last as u64, tail)];
        if last > 0 {
            parts.push((first, &mut before[..one]));
        }
        self.disk.read_many(&mut parts)?;
        blocks.buf[blocks.skip..][..data.len()].copy_from_slice(data);
        self.disk.write_at(&blocks.buf, first)
    }

    fn close(self) -> Result<(), Error> {
        let OpenParts { disk, device, .. } = self;
        drop(disk);
        match device {
            OpenDevice::Array(array) => array.stop(),
            _ => Ok(()),
        }
    }
}

/// A device.
#[pyclass(frozen, module = "longhaul._native")]
pub(crate) struct Device {
    parts: RwLock<Option<OfProcess<OpenParts>>>,
    #[pyo3(get)]
    name: String,
}

impl Device {
    /// Calls `work` without the interpreter's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&OpenParts) -> Result<T, IoError> + Send,
    ) -> PyResult<T> {
        enum Ended {
            Closed,
            Forked(Error),
            Io(IoError),
        }
        let result = py.detach(|| {
            let parts = self.parts.read().unwrap_or_else(PoisonError::into_inner);
            let parts = parts.as_ref().ok_or(Ended::Closed)?.get().map_err(Ended::Forked)?;
            work(parts).map_err(Ended::Io)
        });
        result.map_err(|ended| match ended {
            Ended::Closed => error::closed(),
            Ended::Forked(e) => error::of_device(py, &e),
            Ended::Io(IoError::Aborted) => {
                wait::raised().unwrap_or_else(|| error::of_io(py, IoError::Aborted))
            }
            Ended::Io(e) => error::of_io(py, e),
        })
    }
}

fn bytes<'py>(py: Python<'py>, blocks: &WholeBlocks) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &blocks.buf[blocks.skip..][..blocks.len])
}

#[pymethods]
impl Device {
    #[new]
    fn new(py: Python<'_>, name: String, connect: Connect) -> PyResult<Device> {
        let (opener, opened) = (connect.opener(py)?, name.clone());
        let parts = wait::patiently(py, move || OpenParts::open(&opener, &opened), || {})?;
        let parts = parts.map_err(|e| error::of_device(py, &e))?;
        Ok(Device { parts: RwLock::new(Some(OfProcess::new(parts))), name })
    }

    /// Bytes of the device, as they are now.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |parts| Ok(parts.disk.info().size))
    }

    /// Bytes of a block.
    #[getter]
    fn block_size(&self, py: Python<'_>) -> PyResult<u32> {
        self.with(py, |parts| Ok(parts.disk.info().block_size))
    }

    #[getter]
    fn read_only(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |parts| Ok(parts.disk.info().read_only))
    }

    fn read_at<'py>(&self, py: Python<'py>, offset: u64, length: usize) -> PyResult<Bound<'py, PyBytes>> {
        let blocks = self.with(py, |parts| parts.read_one(offset, length))?;
        Ok(bytes(py, &blocks))
    }

    fn read_many<'py>(&self, py: Python<'py>, ranges: Vec<(u64, usize)>) -> PyResult<Bound<'py, PyList>> {
        let all = self.with(py, |parts| parts.read_many(&ranges))?;
        PyList::new(py, all.iter().map(|blocks| bytes(py, blocks)).collect::<Vec<_>>())
    }

    fn write_at(&self, py: Python<'_>, offset: u64, data: &[u8]) -> PyResult<()> {
        self.with(py, |parts| parts.write(offset, data))
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |parts| parts.disk.flush())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = py.detach(|| {
            let parts = self.parts.write().unwrap_or_else(PoisonError::into_inner).take();
            parts.and_then(OfProcess::take).map_or(Ok(()), OpenParts::close)
        });
        closed.map_err(|e| error::of_device(py, &e))
    }
}

impl Drop for Device {
    /// Ends the threads without the interpreter's lock, which a call under way may need to end.
    fn drop(&mut self) {
        let parts = self.parts.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        wait::drop_detached(parts);
    }
}
