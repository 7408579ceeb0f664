//! Open files of a file system that is reached by calls.
//!
//! Invariant: a file of which content may be lost stays failed. The file system reports a loss once, maybe to a call
//! that only looks after the file, such as one that keeps what was written so far: each later write, sync and end of
//! the file fails as well.

use super::{MountedFs, MountedNode, attributes_of, bytes_into, change, set_xattr, unexpected};
use crate::tree::object::{Inode, NewMetadata, Status};
use longhaul_engine::Buf;
use longhaul_fs::{Attributes, Call, Changes, DATA_MAX, Handle, Reply};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::io;
use std::sync::{Arc, OnceLock};

/// An open file.
#[derive(Debug)]
pub(crate) struct MountedFile {
    fs: MountedFs,
    node: Arc<MountedNode>,
    handle: Handle,
    /// What it was when it was opened.
    opened: Box<Attributes>,
    /// Why content that was written may be lost.
    failed: OnceLock<Errno>,
}

impl MountedFile {
    /// The file behind `handle`, with its attributes when it was opened.
    pub(super) fn of(
        fs: MountedFs,
        node: Arc<MountedNode>,
        handle: Handle,
        opened: Attributes,
    ) -> MountedFile {
        MountedFile { fs, node, handle, opened: Box::new(opened), failed: OnceLock::new() }
    }

    pub(crate) fn opened_status(&self) -> Status {
        self.fs.status(&self.opened)
    }

    pub(crate) fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let len = buf.len().min(DATA_MAX);
        match self.fs.wait(Call::Read { handle: self.handle, offset, len: len as u32 })? {
            Reply::Data(data) => {
                let data = &data[..data.len().min(len)];
                buf[..data.len()].copy_from_slice(data);
                Ok(data.len())
            }
            other => unexpected(other),
        }
    }

    /// A call by which content is written, or made durable: see the invariant.
    fn wait_or_fail(&self, call: Call) -> Result<Reply, Errno> {
        match self.failed.get() {
            Some(e) => Err(*e),
            None => self.fs.wait(call).inspect_err(|e| {
                let _ = self.failed.set(*e);
            }),
        }
    }

    pub(crate) fn write_buffer_at(&self, data: &Buf, offset: u64) -> Result<(), Errno> {
        let mut done = 0;
        while done < data.len() {
            let part = data.slice(done..data.len().min(done + DATA_MAX));
            let call = Call::Write { handle: self.handle, offset: offset + done as u64, data: part };
            match self.wait_or_fail(call)? {
                Reply::Written(0) => return Err(Errno::IO),
                Reply::Written(bytes) => done += bytes as usize,
                other => return unexpected(other),
            }
        }
        self.fs.wrote(data.len() as u64);
        Ok(())
    }

    pub(crate) fn set_len(&self, size: u64) -> Result<(), Errno> {
        let changes = Changes { size: Some(size), ..Changes::default() };
        self.fs.wait(Call::Change { node: self.node.node, handle: Some(self.handle), changes }).map(drop)
    }

    pub(crate) fn sync(&self) -> Result<(), Errno> {
        self.wait_or_fail(Call::Sync { handle: self.handle, data_only: true }).map(drop)
    }

    /// See [`File::end`](crate::tree::object::File::end). Content that is written behind would clear set-user-ID and
    /// set-group-ID bits that are set before, as a write does.
    pub(crate) fn end(&self, mode: u32) -> Result<(), Errno> {
        if mode & 0o6000 != 0 || self.fs.is_short() {
            return self.sync();
        }
        self.wait_or_fail(Call::Flush { handle: self.handle }).map(drop)
    }

    pub(crate) fn allocate(&self, mode: FallocateFlags, offset: u64, len: u64) -> Result<(), Errno> {
        let (handle, mode) = (self.handle, mode.bits());
        self.fs.wait(Call::Allocate { handle, offset, len, mode }).map(drop)
    }

    pub(crate) fn next_data(&self, offset: u64) -> Result<u64, Errno> {
        match self.fs.wait(Call::Seek { handle: self.handle, offset, hole: false })? {
            Reply::Offset(data) => Ok(data),
            other => unexpected(other),
        }
    }
}

impl Inode for MountedFile {
    fn status(&self) -> io::Result<Status> {
        Ok(attributes_of(&self.fs, self.node.node, Some(self.handle))?)
    }

    fn set(&self, new: NewMetadata) -> Result<(), Errno> {
        change(&self.fs, self.node.node, Some(self.handle), new)
    }

    fn is_far(&self) -> bool {
        true
    }

    fn xattr_names(&self, names: &mut [u8]) -> Result<usize, Errno> {
        if self.opened.is_plain {
            return Ok(0);
        }
        bytes_into(self.fs.wait(Call::ListXattrs { node: self.node.node }), names)
    }

    fn xattr(&self, name: &[u8], value: &mut [u8]) -> Result<usize, Errno> {
        bytes_into(self.fs.wait(Call::GetXattr { node: self.node.node, name: name.to_vec() }), value)
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        set_xattr(&self.fs, self.node.node, name, value)
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<(), Errno> {
        self.fs.wait(Call::RemoveXattr { node: self.node.node, name: name.to_vec() }).map(drop)
    }
}

impl Drop for MountedFile {
    fn drop(&mut self) {
        // An error of a write was reported by `end` or `sync`: without them the file is not complete.
        self.fs.0.files.start(Call::Close { handle: self.handle }, Box::new(drop));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_fs::{Done, FileSystem, Node, Time};
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    /// A file system that reports a loss once, to the call that comes at that moment.
    struct Losing(AtomicU32);

    impl FileSystem for Losing {
        fn start(&self, call: Call, done: Done) {
            let is_of_content = matches!(call, Call::Write { .. } | Call::Sync { .. } | Call::Flush { .. });
            let is_due = is_of_content && self.0.fetch_sub(1, Relaxed) == 1;
            done(match call {
                _ if is_due => Err(Errno::NOSPC),
                Call::Write { data, .. } => Ok(Reply::Written(data.len() as u32)),
                _ => Ok(Reply::Done),
            });
        }
    }

    fn file(due: u32) -> MountedFile {
        let files: Arc<dyn FileSystem> = Arc::new(Losing(AtomicU32::new(due)));
        let fs = MountedFs::new("p/f", Arc::clone(&files), std::path::PathBuf::new(), Box::new(|| None));
        let (node, time) = (Node(2), Time { seconds: 0, nanoseconds: 0 });
        let opened = Attributes {
            node,
            generation: 0,
            size: 0,
            blocks: 0,
            accessed: time,
            modified: time,
            changed: time,
            mode: 0o100_644,
            links: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            block_size: 4096,
            is_plain: true,
        };
        MountedFile::of(fs, Arc::new(MountedNode { files, node }), Handle(1), opened)
    }

    #[test]
    fn a_loss_that_was_reported_once_fails_the_file_for_good() {
        let content = Buf::copy_of(b"content");
        // What reports it: a write, what keeps the file now and then, its end.
        for due in 1..=3 {
            let file = file(due);
            let results = [file.write_buffer_at(&content, 0), file.sync(), file.end(0o644), file.end(0o644)];
            for (number, result) in (1..).zip(results) {
                assert_eq!(result, if number < due { Ok(()) } else { Err(Errno::NOSPC) }, "{due}, {number}");
            }
            assert_eq!(file.write_buffer_at(&content, 0), Err(Errno::NOSPC));
        }
    }
}
