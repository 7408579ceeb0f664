//! The front ends, for the code that serves an attachment.

use crate::error::AttachError;
use crate::fuse::{FuseFile, FuseTree};
use crate::kernel::KernelDevice;
use crate::loopdev;
use std::path::PathBuf;

/// A device that is attached to this host, as a file or as a block device.
pub trait FrontEnd {
    /// Flushes and removes the device.
    ///
    /// # Errors
    /// [`AttachError::Busy`] while a process uses it, or that of the device or the kernel.
    /// [`Self::has_ended`] shows whether it is still attached.
    fn detach(&mut self) -> Result<(), AttachError>;

    /// Removes the path; processes that have the device open keep it.
    ///
    /// # Errors
    /// Of the kernel.
    fn hide(&mut self) -> Result<(), AttachError>;

    /// Makes all writes durable.
    ///
    /// # Errors
    /// A write since the attach was lost.
    fn flush(&self) -> Result<(), AttachError>;

    /// Makes all writes durable once the device has no path and no users.
    ///
    /// # Errors
    /// A write since the attach was lost.
    fn finish(&mut self) -> Result<(), AttachError>;

    /// The device has `size` bytes now: users of the front end are to see it.
    ///
    /// # Errors
    /// The kernel does not take the new size; it keeps the former one.
    fn resize(&mut self, size: u64) -> Result<(), AttachError>;

    /// Whether the device has neither a path nor users any more.
    fn has_ended(&self) -> bool;

    /// Whether [`ServiceEvent::Ended`](crate::service::ServiceEvent::Ended) is sent when the last user has closed the device.
    fn ends_by_itself(&self) -> bool;
}

impl FrontEnd for FuseFile {
    fn flush(&self) -> Result<(), AttachError> {
        FuseFile::flush(self)
    }

    fn detach(&mut self) -> Result<(), AttachError> {
        FuseFile::detach(self)
    }

    fn hide(&mut self) -> Result<(), AttachError> {
        FuseFile::hide(self)
    }

    fn finish(&mut self) -> Result<(), AttachError> {
        FuseFile::finish(self)
    }

    /// The kernel asks for the attributes of the file, which have it, once a second at least.
    fn resize(&mut self, _size: u64) -> Result<(), AttachError> {
        Ok(())
    }

    fn has_ended(&self) -> bool {
        FuseFile::has_ended(self)
    }

    fn ends_by_itself(&self) -> bool {
        true
    }
}

impl FrontEnd for KernelDevice {
    fn flush(&self) -> Result<(), AttachError> {
        KernelDevice::flush(self)
    }

    fn detach(&mut self) -> Result<(), AttachError> {
        KernelDevice::detach(self)
    }

    fn hide(&mut self) -> Result<(), AttachError> {
        KernelDevice::hide(self);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), AttachError> {
        KernelDevice::detach(self)
    }

    fn resize(&mut self, size: u64) -> Result<(), AttachError> {
        KernelDevice::resize(self, size)
    }

    fn has_ended(&self) -> bool {
        KernelDevice::has_ended(self)
    }

    fn ends_by_itself(&self) -> bool {
        false
    }
}

impl FrontEnd for FuseTree {
    /// The kernel has flushed each file that was closed. Programs that still use one flush it themselves.
    fn flush(&self) -> Result<(), AttachError> {
        Ok(())
    }

    fn detach(&mut self) -> Result<(), AttachError> {
        self.unmount()
    }

    fn hide(&mut self) -> Result<(), AttachError> {
        FuseTree::hide(self)
    }

    fn finish(&mut self) -> Result<(), AttachError> {
        FuseTree::finish(self)
    }

    /// A directory has no size.
    fn resize(&mut self, _size: u64) -> Result<(), AttachError> {
        Ok(())
    }

    fn has_ended(&self) -> bool {
        FuseTree::has_ended(self)
    }

    fn ends_by_itself(&self) -> bool {
        true
    }
}

/// A file that a loop device has, which a file system is mounted from.
#[derive(Debug)]
pub(crate) struct FileOnLoop {
    pub(crate) file: FuseFile,
    /// The loop device.
    pub(crate) device: PathBuf,
}

impl FrontEnd for FileOnLoop {
    fn flush(&self) -> Result<(), AttachError> {
        self.file.flush()
    }

    fn detach(&mut self) -> Result<(), AttachError> {
        self.file.detach()
    }

    fn hide(&mut self) -> Result<(), AttachError> {
        self.file.hide()
    }

    fn finish(&mut self) -> Result<(), AttachError> {
        self.file.finish()
    }

    fn resize(&mut self, size: u64) -> Result<(), AttachError> {
        loopdev::resize(&self.device, size)
    }

    fn has_ended(&self) -> bool {
        self.file.has_ended()
    }

    fn ends_by_itself(&self) -> bool {
        true
    }
}
