//! Open files of a file system that is reached by calls.

use super::{MountedFs, MountedNode, attributes_of, bytes_into, change, set_xattr, unexpected};
use crate::tree::object::{Inode, NewMetadata, Status};
use longhaul_engine::Buf;
use longhaul_fs::{Attributes, Call, Changes, DATA_MAX, Handle, Reply};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::io;
use std::sync::Arc;

/// An open file.
#[derive(Debug)]
pub(crate) struct MountedFile {
    fs: MountedFs,
    node: Arc<MountedNode>,
    handle: Handle,
    /// What it was when it was opened.
    opened: Box<Attributes>,
}

impl MountedFile {
    /// The file behind `handle`, with its attributes when it was opened.
    pub(super) fn of(
        fs: MountedFs,
        node: Arc<MountedNode>,
        handle: Handle,
        opened: Attributes,
    ) -> MountedFile {
        MountedFile { fs, node, handle, opened: Box::new(opened) }
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

    pub(crate) fn write_buffer_at(&self, data: &Buf, offset: u64) -> Result<(), Errno> {
        let mut done = 0;
        while done < data.len() {
            let part = data.slice(done..data.len().min(done + DATA_MAX));
            let call = Call::Write { handle: self.handle, offset: offset + done as u64, data: part };
            match self.fs.wait(call)? {
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
        self.fs.wait(Call::Sync { handle: self.handle, data_only: true }).map(drop)
    }

    /// See [`File::end`](crate::tree::object::File::end). Content that is written behind would clear set-user-ID and
    /// set-group-ID bits that are set before, as a write does.
    pub(crate) fn end(&self, mode: u32) -> Result<(), Errno> {
        if mode & 0o6000 != 0 || self.fs.is_short() {
            return self.sync();
        }
        self.fs.wait(Call::Flush { handle: self.handle }).map(drop)
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
