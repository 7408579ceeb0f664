//! What is attached, however it is.

use longhaul_attach::AttachError;
use longhaul_attach::fuse::FuseFile;
use longhaul_attach::kernel::KernelDevice;

/// A device that has become a local one.
pub(crate) trait Attached {
    /// Takes it away, with all that was written durable; refused while
    /// somebody uses it. [`Self::has_ended`] tells whether an error left it
    /// there.
    fn detach(&mut self) -> Result<(), AttachError>;

    /// Takes it out of sight; its users keep it.
    fn hide(&mut self) -> Result<(), AttachError>;

    /// Makes what was written durable; told of every loss since the beginning.
    fn flush(&self) -> Result<(), AttachError>;

    /// Makes what was written durable when nobody can reach it any more.
    fn finish(&mut self) -> Result<(), AttachError>;

    /// Whether nobody can reach it any more.
    fn has_ended(&self) -> bool;

    /// Whether it tells when its last user has gone.
    fn ends_by_itself(&self) -> bool;
}

impl Attached for FuseFile {
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

impl Attached for KernelDevice {
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
