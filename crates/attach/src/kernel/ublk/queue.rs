//! Takes the requests of a ublk device, and returns the answers.
//!
//! Invariants:
//! - each tag belongs either to the driver (a fetch is under way) or to this process (a request
//!   is), never to both; so does its buffer;
//! - the buffers and the descriptors stay mapped until the driver has returned all tags.

#![allow(unsafe_code)]

use super::wire::{self, Descriptor, SECTOR_SHIFT, io_command, op};
use crate::served::{Request, Requests};
use io_uring::{IoUring, opcode, squeue, types};
use longhaul_block::{IoError, IoResult, ZeroFlags};
use longhaul_cache::ErrorCursor;
use longhaul_engine::Buf;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

/// User data of the completion that signals answers, instead of a tag.
const ANSWER: u64 = u64::MAX;

/// Mapped memory, until it is dropped.
struct Mapped {
    at: *mut c_void,
    len: usize,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the address and length of a mapping that is not used any more.
        let _ = unsafe { munmap(self.at, self.len) };
    }
}

/// Answers, from the engine's thread to this one.
struct Answers {
    ready: Mutex<Vec<(u16, IoResult<Buf>)>>,
    event: OwnedFd,
}

impl Answers {
    fn new() -> io::Result<Answers> {
        // SAFETY: a system call without memory.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor without another owner.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Answers { ready: Mutex::default(), event })
    }

    fn give(&self, tag: u16, result: IoResult<Buf>) {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).push((tag, result));
        // A write that overflows the counter wakes the reader as well.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

struct Queue<'a> {
    ring: IoUring,
    device: types::Fd,
    requests: &'a Arc<dyn Requests>,
    cursor: Arc<ErrorCursor>,
    answers: Arc<Answers>,
    descriptors: Mapped,
    buffers: Mapped,
    io_max: usize,
    /// Tags of the driver, and tags of this process.
    alive: usize,
}

/// Takes requests until the driver has no more.
///
/// # Errors
/// There is no memory or no ring for it.
pub(super) fn serve(device: &File, requests: &Arc<dyn Requests>, depth: u16, io_max: u32) -> io::Result<()> {
    let mut queue = Queue::new(device, requests, depth, io_max as usize)?;
    for tag in 0..depth {
        queue.fetch(wire::FETCH, tag, 0)?;
    }
    queue.listen()?;
    while queue.alive > 0 {
        match queue.ring.submit_and_wait(1) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => drop(other?),
        }
        let done: Vec<(u64, i32)> =
            queue.ring.completion().map(|done| (done.user_data(), done.result())).collect();
        for (what, result) in done {
            if what == ANSWER {
                queue.answer()?;
                queue.listen()?;
            } else if result == 0 {
                queue.start(what as u16);
            } else {
                // The device ends, and the driver returns the tag for good.
                queue.alive -= 1;
            }
        }
    }
    Ok(())
}

impl<'a> Queue<'a> {
    fn new(
        device: &File,
        requests: &'a Arc<dyn Requests>,
        depth: u16,
        io_max: usize,
    ) -> io::Result<Queue<'a>> {
        let len = (usize::from(depth) * size_of::<Descriptor>()).next_multiple_of(rustix::param::page_size());
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let at = unsafe { mmap(null_mut(), len, ProtFlags::READ, MapFlags::SHARED, device, 0) }?;
        let descriptors = Mapped { at, len };
        let len = usize::from(depth) * io_max;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above.
        let at = unsafe { mmap_anonymous(null_mut(), len, access, MapFlags::PRIVATE) }?;
        let buffers = Mapped { at, len };
        Ok(Queue {
            // One for each tag, and one for the event descriptor.
            ring: IoUring::new((u32::from(depth) + 1).next_power_of_two())?,
            device: types::Fd(device.as_raw_fd()),
            requests,
            cursor: requests.handle(),
            answers: Arc::new(Answers::new()?),
            descriptors,
            buffers,
            io_max,
            alive: usize::from(depth),
        })
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: the descriptors and buffers that the entries refer to live as long as the
            // ring.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
    }

    /// Gives a tag to the driver, with the answer to its last request.
    fn fetch(&mut self, command: u32, tag: u16, result: i32) -> io::Result<()> {
        let address = self.buffer(tag) as u64;
        let entry = opcode::UringCmd16::new(self.device, wire::queue(command))
            .cmd(io_command(tag, result, address))
            .build()
            .user_data(u64::from(tag));
        self.push(&entry)
    }

    /// Waits for answers of the engine's thread.
    fn listen(&mut self) -> io::Result<()> {
        let event = types::Fd(self.answers.event.as_raw_fd());
        let entry = opcode::PollAdd::new(event, libc::POLLIN as u32).build().user_data(ANSWER);
        self.push(&entry)
    }

    fn buffer(&self, tag: u16) -> *mut u8 {
        self.buffers.at.cast::<u8>().wrapping_add(usize::from(tag) * self.io_max)
    }

    /// Starts the requests that the driver has passed on.
    fn start(&self, tag: u16) {
        let descriptors = self.descriptors.at.cast::<Descriptor>().cast_const();
        // SAFETY: within the mapping, since the driver gave this tag; it does
        // not write there until it has the tag again.
        let wanted = unsafe { descriptors.add(usize::from(tag)).read_volatile() };
        let answers = Arc::clone(&self.answers);
        let done = move |result| answers.give(tag, result);
        match self.translate(tag, wanted) {
            Ok(request) => self.requests.start(request, Box::new(done)),
            Err(e) => done(Err(e)),
        }
    }

    fn translate(&self, tag: u16, wanted: Descriptor) -> IoResult<Request> {
        let offset = wanted.start << SECTOR_SHIFT;
        let len = u64::from(wanted.sectors) << SECTOR_SHIFT;
        let fua = wanted.op_flags & wire::FUA != 0;
        Ok(match wanted.op_flags as u8 {
            op::READ => Request::Read { offset, len },
            op::WRITE => {
                let len = (len as usize).min(self.io_max);
                // SAFETY: the tag's buffer, which the driver has filled.
                let bytes = unsafe { std::slice::from_raw_parts(self.buffer(tag), len) };
                Request::Write { offset, data: Buf::copy_of(bytes), fua }
            }
            op::FLUSH => Request::Flush(Arc::clone(&self.cursor)),
            op::DISCARD => Request::Discard { offset, len },
            op::WRITE_ZEROES => {
                let may_deallocate = wanted.op_flags & wire::NO_UNMAP == 0;
                Request::Zero { offset, len, flags: ZeroFlags { may_deallocate, fua } }
            }
            _ => return Err(IoError::Unsupported("this request of ublk")),
        })
    }

    /// Returns the answers that have arrived to the driver.
    fn answer(&mut self) -> io::Result<()> {
        // The event was signalled, so there is an answer.
        rustix::io::read(&self.answers.event, &mut [0u8; 8])?;
        let ready = std::mem::take(&mut *self.answers.ready.lock().unwrap_or_else(PoisonError::into_inner));
        for (tag, result) in ready {
            let descriptors = self.descriptors.at.cast::<Descriptor>().cast_const();
            // SAFETY: as where the request was started; the tag still belongs to this process.
            let wanted = unsafe { descriptors.add(usize::from(tag)).read_volatile() };
            // A request without data takes any result that is not negative; its length as bytes
            // could be 2 GiB, which reads as an error.
            let moves = matches!(wanted.op_flags as u8, op::READ | op::WRITE);
            let moved = if moves { (wanted.sectors << SECTOR_SHIFT) as i32 } else { 0 };
            let code = match result {
                Ok(bytes) if bytes.len() <= self.io_max => {
                    // SAFETY: the tag's buffer has room for that, and the driver does not touch it
                    // before it has the tag again.
                    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.buffer(tag), bytes.len()) };
                    moved
                }
                Ok(_) => -libc::EIO,
                Err(e) => {
                    tracing::warn!("ublk: {e}");
                    -errno(&e)
                }
            };
            self.fetch(wire::COMMIT_AND_FETCH, tag, code)?;
        }
        Ok(())
    }
}

fn errno(e: &IoError) -> i32 {
    match e {
        IoError::OutOfRange { .. } | IoError::NoSpace => libc::ENOSPC,
        IoError::ReadOnly => libc::EROFS,
        IoError::Unsupported(_) => libc::EOPNOTSUPP,
        _ => libc::EIO,
    }
}
