//! Directories of a file system that is reached by calls, and their listings.

use super::file::MountedFile;
use super::{
    MountedFs, MountedNode, attributes_of, bytes_into, change, is_directory, link_target, set_xattr,
    unexpected,
};
use crate::guard::lock;
use crate::tree::object::{Inode, NewMetadata, Status};
use longhaul_fs::{Attributes, Call, FileKind, Node, Reply, Stream};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// An object of a listing.
#[derive(Debug)]
pub(crate) struct ListedStatus {
    pub(crate) status: Status,
    /// The target of a symbolic link.
    pub(crate) target: Option<Vec<u8>>,
}

/// A directory.
#[derive(Clone, Debug)]
pub(crate) struct MountedDirectory {
    fs: MountedFs,
    node: Arc<MountedNode>,
}

impl MountedDirectory {
    pub(super) fn of(fs: MountedFs, node: Arc<MountedNode>) -> MountedDirectory {
        MountedDirectory { fs, node }
    }

    pub(crate) fn fs(&self) -> &MountedFs {
        &self.fs
    }

    fn number(&self) -> Node {
        self.node.node
    }

    pub(crate) fn identity(&self) -> (u64, u64) {
        (self.fs.0.device, self.number().0)
    }

    /// Asks for a name.
    fn lookup(&self, name: &[u8]) -> Result<(Arc<MountedNode>, Attributes), Errno> {
        let key = (self.number(), name.to_vec());
        let made = match lock(&self.fs.0.absent) {
            absent if absent.holds(&key) => return Err(Errno::NOENT),
            absent => absent.made,
        };
        match self.fs.wait(Call::Lookup { parent: self.number(), name: name.to_vec() }) {
            Ok(Reply::Entry(attributes)) => Ok((self.fs.found(&attributes), attributes)),
            Ok(other) => unexpected(other),
            Err(e) => {
                if e == Errno::NOENT {
                    lock(&self.fs.0.absent).add(key, made);
                }
                Err(e)
            }
        }
    }

    pub(crate) fn look(&self, name: &[u8]) -> Result<Status, Errno> {
        if name.is_empty() {
            return attributes_of(&self.fs, self.number(), None);
        }
        let found = self.lookup(name);
        if found.is_err() {
            self.fs.forget(self.number(), name);
        }
        let (node, attributes) = found?;
        let status = self.fs.status(&attributes);
        self.fs.remember(self.number(), name, (node, attributes));
        Ok(status)
    }

    pub(crate) fn read_link(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let node = match self.fs.remembered(self.number(), name) {
            Some((node, _)) => node,
            None => self.lookup(name)?.0,
        };
        link_target(&self.fs, node.node)
    }

    pub(crate) fn open_directory(&self, name: &[u8]) -> Result<MountedDirectory, Errno> {
        let (node, attributes) = match self.fs.remembered(self.number(), name) {
            Some(known) if is_directory(&known.1).is_ok() => known,
            _ => {
                let found = self.lookup(name)?;
                self.fs.remember(self.number(), name, found.clone());
                found
            }
        };
        is_directory(&attributes)?;
        Ok(MountedDirectory { fs: self.fs.clone(), node })
    }

    /// Makes a directory. Many threads want the same ones at the same time, which the file system would let
    /// in one after the other, at some round trips each: those that come later find what the first one made.
    pub(crate) fn make_directory(&self, name: &[u8], mode: u32) -> Result<(), Errno> {
        let Some(_making) = self.fs.begin_to_make((self.number(), name.to_vec())) else {
            return Err(Errno::EXIST);
        };
        self.fs.may_be_present(self.number(), name);
        let call = Call::MakeDirectory { parent: self.number(), name: name.to_vec(), mode };
        match self.fs.wait(call)? {
            Reply::Entry(attributes) => {
                let found = (self.fs.found(&attributes), attributes);
                self.fs.remember(self.number(), name, found);
                Ok(())
            }
            other => unexpected(other),
        }
    }

    fn open(&self, node: Arc<MountedNode>, access: OFlags) -> Result<MountedFile, Errno> {
        match self.fs.wait(Call::Open { node: node.node, flags: access.bits() })? {
            Reply::Opened(attributes, handle) => {
                Ok(MountedFile::of(self.fs.clone(), node, handle, attributes))
            }
            other => unexpected(other),
        }
    }

    pub(crate) fn open_file(&self, name: &[u8], access: OFlags) -> Result<MountedFile, Errno> {
        if let Some((node, attributes)) = self.fs.remembered(self.number(), name)
            && attributes.kind() == FileKind::Regular
        {
            match self.open(node, access) {
                // Another object has the name by now.
                Err(Errno::STALE | Errno::NOENT) => self.fs.forget(self.number(), name),
                opened => return opened,
            }
        }
        let (node, attributes) = self.lookup(name)?;
        match attributes.kind() {
            FileKind::Regular => self.open(node, access),
            FileKind::Symlink => Err(Errno::LOOP),
            FileKind::Directory => Err(Errno::ISDIR),
            _ => Err(Errno::NXIO),
        }
    }

    pub(crate) fn create_file(&self, name: &[u8], mode: u32) -> Result<MountedFile, Errno> {
        let flags = (OFlags::RDWR | OFlags::CREATE | OFlags::EXCL).bits();
        self.fs.may_be_present(self.number(), name);
        let call = Call::Create { parent: self.number(), name: name.to_vec(), mode, flags };
        match self.fs.wait(call)? {
            Reply::Created(attributes, handle) => {
                self.touch();
                self.fs.look_for_room();
                let node = self.fs.found(&attributes);
                Ok(MountedFile::of(self.fs.clone(), node, handle, attributes))
            }
            other => unexpected(other),
        }
    }

    /// What is made here is made durable by [`MountedFs::sync`].
    fn touch(&self) {
        let mut touched = lock(&self.fs.0.touched);
        touched.entry(self.number()).or_insert_with(|| Arc::clone(&self.node));
    }

    pub(crate) fn make_symlink(&self, target: &[u8], name: &[u8]) -> Result<(), Errno> {
        let (name, target) = (name.to_vec(), target.to_vec());
        self.fs.may_be_present(self.number(), &name);
        let call = Call::MakeSymlink { parent: self.number(), name: name.clone(), target };
        match self.fs.wait(call)? {
            Reply::Entry(attributes) => {
                let found = (self.fs.found(&attributes), attributes);
                self.fs.remember(self.number(), &name, found);
                Ok(())
            }
            other => unexpected(other),
        }
    }

    pub(crate) fn link(&self, from: &[u8], at: &MountedDirectory, to: &[u8]) -> Result<(), Errno> {
        let (node, _) = self.lookup(from)?;
        at.fs.may_be_present(at.number(), to);
        let call = Call::Link { node: node.node, parent: at.number(), name: to.to_vec() };
        match self.fs.wait(call)? {
            // The reply is a lookup of its own.
            Reply::Entry(attributes) => drop(self.fs.found(&attributes)),
            other => return unexpected(other),
        }
        at.fs.forget(at.number(), to);
        Ok(())
    }

    pub(crate) fn rename(&self, from: &[u8], at: &MountedDirectory, to: &[u8]) -> Result<(), Errno> {
        let (name, new_name) = (from.to_vec(), to.to_vec());
        let (parent, new_parent) = (self.number(), at.number());
        at.fs.may_be_present(new_parent, to);
        let renamed = self.fs.wait(Call::Rename { parent, name, new_parent, new_name, flags: 0 });
        self.fs.forget(self.number(), from);
        at.fs.forget(at.number(), to);
        renamed.map(drop)
    }

    pub(crate) fn remove(&self, name: &[u8], directory: bool) -> Result<(), Errno> {
        let removed =
            self.fs.wait(Call::Remove { parent: self.number(), name: name.to_vec(), directory }).map(drop);
        self.fs.forget(self.number(), name);
        removed
    }

    pub(crate) fn set_named(&self, name: &[u8], new: NewMetadata) -> Result<(), Errno> {
        let (node, _) = match self.fs.remembered(self.number(), name) {
            Some(known) => known,
            None => self.lookup(name)?,
        };
        change(&self.fs, node.node, None, new)
    }

    /// Begins a listing.
    pub(crate) fn list(&self) -> MountedListing {
        let stream = Stream(self.fs.0.streams.fetch_add(1, Relaxed));
        MountedListing { directory: self.clone(), stream, after: 0, ended: false }
    }
}

impl Inode for MountedDirectory {
    fn status(&self) -> io::Result<Status> {
        Ok(attributes_of(&self.fs, self.number(), None)?)
    }

    fn set(&self, new: NewMetadata) -> Result<(), Errno> {
        change(&self.fs, self.number(), None, new)
    }

    fn is_far(&self) -> bool {
        true
    }

    fn xattr_names(&self, names: &mut [u8]) -> Result<usize, Errno> {
        bytes_into(self.fs.wait(Call::ListXattrs { node: self.number() }), names)
    }

    fn xattr(&self, name: &[u8], value: &mut [u8]) -> Result<usize, Errno> {
        bytes_into(self.fs.wait(Call::GetXattr { node: self.number(), name: name.to_vec() }), value)
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        set_xattr(&self.fs, self.number(), name, value)
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<(), Errno> {
        self.fs.wait(Call::RemoveXattr { node: self.number(), name: name.to_vec() }).map(drop)
    }
}

/// A listing of a directory.
#[derive(Debug)]
pub(crate) struct MountedListing {
    directory: MountedDirectory,
    stream: Stream,
    after: u64,
    ended: bool,
}

impl MountedListing {
    /// Some more names with their objects; none at the end.
    pub(crate) fn next(&mut self) -> Result<Vec<(Vec<u8>, ListedStatus)>, Errno> {
        let (fs, node) = (&self.directory.fs, self.directory.number());
        let mut entries = Vec::new();
        while entries.is_empty() && !self.ended {
            match fs.wait(Call::ReadDirectory { node, stream: self.stream, after: self.after })? {
                Reply::Listing(listed, is_last) => {
                    self.ended = is_last;
                    self.after = listed.last().map_or(self.after, |entry| entry.position);
                    entries = listed;
                }
                other => return unexpected(other),
            }
        }
        // Targets are asked for together.
        let entries = fs.helpers().map(entries, |entry| {
            let target = match entry.attributes.kind() {
                FileKind::Symlink => link_target(fs, entry.attributes.node).ok(),
                _ => None,
            };
            (entry, target)
        });
        let remembered = |(entry, target): (longhaul_fs::DirectoryEntry, Option<Vec<u8>>)| {
            let found = (fs.found(&entry.attributes), entry.attributes);
            let status = fs.status(&entry.attributes);
            fs.remember(node, &entry.name, found);
            (entry.name, ListedStatus { status, target })
        };
        Ok(entries.into_iter().map(remembered).collect())
    }
}

impl Drop for MountedListing {
    fn drop(&mut self) {
        self.directory.fs.0.files.start(Call::CloseDirectory { stream: self.stream }, Box::new(drop));
    }
}
