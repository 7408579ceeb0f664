//! Files and block devices.

use crate::EngineKind;
use crate::buf::{Buf, BufMut};
use crate::driver::disk_op;
use crate::exec::kind;
use io_uring::{opcode, types};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// An open file. Clones share the descriptor; it may be used on any engine
/// thread.
#[derive(Clone)]
pub struct File {
    fd: Arc<OwnedFd>,
}

fn check(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Repeats a call that a signal interrupted.
fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match check(call()) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

impl From<std::fs::File> for File {
    fn from(file: std::fs::File) -> File {
        File { fd: Arc::new(file.into()) }
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl File {
    /// Reads at `offset` until `buf` is full or the file ends; how many bytes.
    pub async fn read_at(&self, mut buf: BufMut, offset: u64) -> (io::Result<usize>, BufMut) {
        if kind() == EngineKind::Epoll {
            let file = self.clone();
            return crate::blocking(move || {
                let result = fill(&mut buf, |rest, done| {
                    let at = (offset + done as u64) as libc::off_t;
                    // SAFETY: `rest` is writable.
                    retry(|| unsafe {
                        libc::pread(file.as_raw_fd(), rest.as_mut_ptr().cast(), rest.len(), at)
                    })
                });
                (result, buf)
            })
            .await;
        }
        let mut done = 0;
        while done < buf.len() {
            let rest = &mut buf[done..];
            let entry = opcode::Read::new(types::Fd(self.as_raw_fd()), rest.as_mut_ptr(), rest.len() as u32)
                .offset(offset + done as u64)
                .build();
            // SAFETY: the operation owns the buffer and the descriptor.
            let (result, (back, _)) = unsafe { disk_op(entry, (buf, self.clone())) }.await;
            buf = back;
            match result {
                Ok(0) => break,
                Ok(n) => done += n as usize,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return (Err(e), buf),
            }
        }
        (Ok(done), buf)
    }

    /// Writes all of `buf` at `offset`; with `durable`, returns once the data
    /// is on the medium (`RWF_DSYNC`).
    ///
    /// # Errors
    /// Of pwritev2(2), among them a full disk.
    pub async fn write_at(&self, buf: Buf, offset: u64, durable: bool) -> io::Result<()> {
        let flags = if durable { libc::RWF_DSYNC } else { 0 };
        let full = || io::Error::from_raw_os_error(libc::ENOSPC);
        let mut done = 0;
        if kind() == EngineKind::Epoll {
            let file = self.clone();
            return crate::blocking(move || {
                while done < buf.len() {
                    let rest = &buf[done..];
                    let iov = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
                    let at = (offset + done as u64) as libc::off_t;
                    // SAFETY: one vector of readable memory.
                    match retry(|| unsafe { libc::pwritev2(file.as_raw_fd(), &iov, 1, at, flags) })? {
                        0 => return Err(full()),
                        n => done += n,
                    }
                }
                Ok(())
            })
            .await;
        }
        while done < buf.len() {
            let rest = &buf[done..];
            let entry = opcode::Write::new(types::Fd(self.as_raw_fd()), rest.as_ptr(), rest.len() as u32)
                .offset(offset + done as u64)
                .rw_flags(flags)
                .build();
            // SAFETY: the operation shares the buffer and the descriptor.
            match unsafe { disk_op(entry, (buf.clone(), self.clone())) }.await.0 {
                Ok(0) => return Err(full()),
                Ok(n) => done += n as usize,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Makes the data that was written durable (fdatasync(2)).
    ///
    /// # Errors
    /// Of fdatasync(2).
    pub async fn sync_data(&self) -> io::Result<()> {
        if kind() == EngineKind::Epoll {
            let file = self.clone();
            // SAFETY: plain system call on a descriptor that is kept open.
            return crate::blocking(move || retry(|| unsafe { libc::fdatasync(file.as_raw_fd()) } as isize))
                .await
                .map(drop);
        }
        let entry =
            opcode::Fsync::new(types::Fd(self.as_raw_fd())).flags(types::FsyncFlags::DATASYNC).build();
        // SAFETY: the operation keeps the descriptor open.
        unsafe { disk_op(entry, self.clone()) }.await.0.map(drop)
    }

    /// Changes the allocation of a range (fallocate(2), `mode` as there).
    ///
    /// # Errors
    /// Of fallocate(2), among them that the file system cannot do it.
    pub async fn fallocate(&self, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        let file = self.clone();
        crate::blocking(move || {
            let (offset, len) = (offset as libc::off_t, len as libc::off_t);
            // SAFETY: plain system call on a descriptor that is kept open.
            retry(|| unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) } as isize).map(drop)
        })
        .await
    }
}

/// Calls `read` until `buf` is full or it returns zero.
fn fill(buf: &mut [u8], mut read: impl FnMut(&mut [u8], usize) -> io::Result<usize>) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match read(&mut buf[done..], done)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({})", self.as_raw_fd())
    }
}
