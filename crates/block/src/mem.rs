//! Memory as a device.
//!
//! Invariants:
//! - the mapping is exactly as long as the device and lives until the last handle, opened device
//!   and lent [`Segment`] are dropped;
//! - no Rust reference to mapped memory is ever made, here or through a segment: threads and
//!   sockets may touch overlapping ranges at the same time, and then the content of the overlap is
//!   unspecified, as on a disk;
//! - every range is checked against the device before memory is touched.

mod pages;

use crate::{BlockDevice, BlockIo, DeviceInfo, IoFuture, IoResult, Open, WriteFlags, ZeroFlags};
use longhaul_engine::{BUF_MAX, Buf, BufMut, Segment};
use pages::Pages;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

/// An anonymous mapping.
pub(crate) struct Mapping {
    /// What the kernel gave, and its length.
    whole: (NonNull<u8>, usize),
    ptr: NonNull<u8>,
    len: usize,
    /// Of a device's memory.
    pages: Pages,
}

// SAFETY: plain memory that is only reached through raw pointers.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` zero bytes that cost nothing until they are touched.
    pub(crate) fn new(len: usize, writable: bool) -> std::io::Result<Mapping> {
        Mapping::aligned(len, 1, writable)
    }

    /// `len` zero bytes that begin at a huge page, and have small ones until they are dense.
    fn for_device(len: usize) -> std::io::Result<Mapping> {
        let memory = Mapping::aligned(len, pages::HUGE, true)?;
        memory.advise(0..len, libc::MADV_NOHUGEPAGE);
        Ok(memory)
    }

    fn aligned(len: usize, align: usize, writable: bool) -> std::io::Result<Mapping> {
        let mapped = len.checked_add(align - 1).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address that the kernel chooses.
        let ptr = unsafe { libc::mmap(std::ptr::null_mut(), mapped, protection, flags, -1, 0) };
        if ptr == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let first = NonNull::new(ptr.cast::<u8>()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let skipped = first.as_ptr().addr().next_multiple_of(align) - first.as_ptr().addr();
        // SAFETY: at most `align - 1` bytes further on, of which the mapping has as many more.
        let ptr = unsafe { first.add(skipped) };
        Ok(Mapping { whole: (first, mapped), ptr, len, pages: Pages::new(len) })
    }

    fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Gives the kernel advice that changes no content.
    fn advise(&self, range: Range<usize>, advice: libc::c_int) {
        debug_assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range is within the mapping; of the kinds of advice that are given here
        // (huge pages or not) none changes content. Where the kernel has no huge pages the call
        // fails and nothing is lost.
        unsafe { libc::madvise(self.at(range.start).as_ptr().cast(), range.len(), advice) };
    }

    /// The address of byte `at`.
    fn at(&self, at: usize) -> NonNull<u8> {
        debug_assert!(at <= self.len);
        // SAFETY: callers pass checked offsets within the mapping.
        unsafe { self.ptr.add(at) }
    }

    /// Lends `len` bytes from `at`, which the caller has checked.
    pub(crate) fn segment(self: &Arc<Mapping>, at: usize, len: usize) -> Segment {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "segment within the mapping");
        // SAFETY: within the mapping, which the clone of the `Arc` keeps, and
        // to which no Rust reference is ever made.
        unsafe { Segment::new(self.at(at), len, Arc::clone(self) as _) }
    }

    /// Gives whole pages within the range back; returns the range they cover.
    fn release(&self, start: usize, end: usize) -> (usize, usize) {
        // SAFETY: asking for a constant of the system.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as usize;
        let (first, last) = (start.next_multiple_of(page), end / page * page);
        if first >= last {
            return (start, start);
        }
        // SAFETY: whole pages of our own private anonymous mapping, which
        // read as zeroes afterwards; no reference to them exists.
        let done =
            unsafe { libc::madvise(self.at(first).as_ptr().cast(), last - first, libc::MADV_DONTNEED) };
        if done != 0 {
            return (start, start);
        }
        self.pages.release(self, first..last);
        (first, last)
    }

    fn fill(&self, start: usize, end: usize, byte: u8) {
        debug_assert!(start <= end && end <= self.len);
        // SAFETY: within the mapping; no reference to it exists.
        unsafe { std::ptr::write_bytes(self.at(start).as_ptr(), byte, end - start) }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.len
    }

    #[cfg(test)]
    fn byte(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: within the mapping.
        unsafe { self.at(at).as_ptr().read() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and this was the last handle on it.
        unsafe { libc::munmap(self.whole.0.as_ptr().cast(), self.whole.1) };
    }
}

/// A device in memory: every operation completes at once, and its memory is lent for I/O without a
/// copy. It has no cache to flush, and its content is lost with the process.
pub struct MemDevice {
    info: DeviceInfo,
    memory: Arc<Mapping>,
}

impl MemDevice {
    /// `size` bytes in blocks of `block_size`; memory is taken as it is written.
    ///
    /// # Errors
    /// [`IoError::Unaligned`](crate::IoError::Unaligned) if `size` is not a
    /// whole number of blocks, `Medium` if the system refuses the mapping.
    pub fn new(size: u64, block_size: u32) -> IoResult<MemDevice> {
        let info = memory_info(format!("mem:{size}"), size, block_size, BUF_MAX as u32)?;
        let len = usize::try_from(size).map_err(|_| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
        Ok(MemDevice { info, memory: Arc::new(Mapping::for_device(len)?) })
    }
}

/// What memory-like devices have in common.
pub(crate) fn memory_info(name: String, size: u64, block_size: u32, max_io: u32) -> IoResult<DeviceInfo> {
    let info = DeviceInfo {
        name,
        size,
        block_size,
        max_io,
        optimal_io: 0,
        read_only: false,
        volatile_cache: false,
        discard: true,
        uuid: None,
    };
    info.check(0, size)?;
    if size == 0 {
        return Err(crate::IoError::OutOfRange { offset: 0, len: u64::from(block_size), size });
    }
    Ok(info)
}

impl BlockDevice for MemDevice {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn open(&self) -> Open<'_> {
        let io: Rc<dyn BlockIo> =
            Rc::new(MemIo { info: self.info.clone(), memory: Arc::clone(&self.memory) });
        Box::pin(std::future::ready(Ok(io)))
    }
}

struct MemIo {
    info: DeviceInfo,
    memory: Arc<Mapping>,
}

impl MemIo {
    /// The checked range in memory. The mapping is as long as the device, so
    /// the offsets fit `usize`.
    fn range(&self, offset: u64, len: u64) -> IoResult<(usize, usize)> {
        self.info.check(offset, len)?;
        Ok((offset as usize, (offset + len) as usize))
    }
}

impl BlockIo for MemIo {
    fn may_forget(&self) -> bool {
        // The content is lost with this process, and with no other event.
        false
    }

    fn read(&self, offset: u64, mut dst: BufMut) -> IoFuture<BufMut> {
        IoFuture::ready(self.range(offset, dst.len() as u64).map(|(start, _)| {
            // SAFETY: the range is within the mapping and `dst` is a unique
            // handle on other memory. A write to the same bytes at the same
            // time makes them unspecified, which nothing here depends on.
            unsafe {
                libc::memcpy(dst.as_mut_ptr().cast(), self.memory.at(start).as_ptr().cast(), dst.len())
            };
            dst
        }))
    }

    fn write(&self, offset: u64, src: Buf, _flags: WriteFlags) -> IoFuture<()> {
        IoFuture::ready(self.range(offset, src.len() as u64).map(|(start, end)| {
            self.memory.pages.write(&self.memory, start..end);
            // SAFETY: as in `read`.
            unsafe { libc::memcpy(self.memory.at(start).as_ptr().cast(), src.as_ptr().cast(), src.len()) };
        }))
    }

    fn flush(&self) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        IoFuture::ready(self.range(offset, len).map(|(start, end)| {
            self.memory.release(start, end);
        }))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        IoFuture::ready(self.range(offset, len).map(|(start, end)| {
            let (first, last) =
                if flags.may_deallocate { self.memory.release(start, end) } else { (start, start) };
            for (start, end) in [(start, first), (last.max(start), end)] {
                self.memory.pages.write(&self.memory, start..end);
                self.memory.fill(start, end, 0);
            }
        }))
    }

    fn map_read(&self, offset: u64, len: usize) -> Option<Segment> {
        let (start, _) = self.range(offset, len as u64).ok()?;
        Some(self.memory.segment(start, len))
    }

    fn map_write(&self, offset: u64, len: usize) -> Option<Segment> {
        let (start, end) = self.range(offset, len as u64).ok()?;
        self.memory.pages.write(&self.memory, start..end);
        Some(self.memory.segment(start, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IoError;
    use crate::testing::{done, open};

    fn device(size: u64) -> Rc<dyn BlockIo> {
        open(&MemDevice::new(size, 512).expect("mapped"))
    }

    fn read(io: &Rc<dyn BlockIo>, offset: u64, len: usize) -> Vec<u8> {
        let mut dst = BufMut::zeroed(len);
        dst.fill(0xEE);
        done(io.read(offset, dst)).expect("read").to_vec()
    }

    #[test]
    fn what_is_written_is_read() {
        let io = device(1 << 20);
        assert_eq!(read(&io, 0, 512), [0; 512]);
        done(io.write(512, Buf::copy_of(&[7; 1024]), WriteFlags::default())).expect("written");
        assert_eq!(read(&io, 0, 512), [0; 512]);
        assert_eq!(read(&io, 512, 1024), [7; 1024]);
        assert_eq!(read(&io, 1536, 512), [0; 512]);
    }

    #[test]
    fn a_range_beyond_the_device_is_refused() {
        let io = device(4096);
        let past = done(io.read(4096, BufMut::zeroed(512))).map(drop);
        assert_eq!(past, Err(IoError::OutOfRange { offset: 4096, len: 512, size: 4096 }));
        let odd = done(io.write(1, Buf::copy_of(&[0; 512]), WriteFlags::default()));
        assert_eq!(odd, Err(IoError::Unaligned { offset: 1, len: 512, block_size: 512 }));
        assert!(io.map_read(u64::MAX - 511, 512).is_none());
        assert!(MemDevice::new(1000, 512).is_err());
        assert!(MemDevice::new(0, 512).is_err());
    }

    #[test]
    fn zeroes_cover_exactly_their_range() {
        for may_deallocate in [false, true] {
            for (start, end) in [(512, 1024), (512, 16384), (4096, 8192), (3584, 12800), (0, 32768)] {
                let io = device(32768);
                done(io.write(0, Buf::copy_of(&[9; 32768]), WriteFlags::default())).expect("written");
                let flags = ZeroFlags { fua: false, may_deallocate };
                done(io.write_zeroes(start, end - start, flags)).expect("zeroed");
                let all = read(&io, 0, 32768);
                for (at, byte) in all.iter().enumerate() {
                    let inside = (start..end).contains(&(at as u64));
                    assert_eq!(*byte, if inside { 0 } else { 9 }, "byte {at} of {start}..{end}");
                }
            }
        }
    }

    #[test]
    fn discarded_pages_read_as_zeroes_and_their_edges_stay() {
        let io = device(16384);
        done(io.write(0, Buf::copy_of(&[9; 16384]), WriteFlags::default())).expect("written");
        done(io.discard(512, 12288)).expect("discarded");
        assert_eq!(read(&io, 0, 4096), [9; 4096]);
        assert_eq!(read(&io, 4096, 8192), [0; 8192]);
        assert_eq!(read(&io, 12288, 4096), [9; 4096]);
    }

    #[test]
    fn lent_memory_is_the_device_and_outlives_it() {
        let device = MemDevice::new(8192, 512).expect("mapped");
        let io = open(&device);
        let segment = io.map_write(4096, 512).expect("lent");
        // SAFETY: the segment covers 512 bytes and no other thread touches them.
        unsafe { std::ptr::write_bytes(segment.as_ptr(), 5, segment.len()) };
        assert_eq!(read(&io, 4096, 512), [5; 512]);
        drop((device, io));
        // SAFETY: the segment keeps the mapping.
        assert_eq!(unsafe { segment.as_ptr().read() }, 5);
    }
}
