//! The front ends, for the code that serves an attachment.

use crate::error::AttachError;
use crate::fuse::FuseFile;
use crate::kernel::KernelDevice;

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

    fn has_ended(&self) -> bool {
        KernelDevice::has_ended(self)
    }

    fn ends_by_itself(&self) -> bool {
        false
    }
}
