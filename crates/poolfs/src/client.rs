//! Files of a mounted file system by their paths, for programs that do not go through FUSE.

mod open_file;

pub use open_file::OpenFile;

use longhaul_fs::{Attributes, Call, DirectoryEntry, Errno, FileKind, FileSystem, Node, Reply, Stream};
use rustix::fs::OFlags;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Permissions of what is made.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// A file system by paths: names with `/` between them, from the top directory. Symbolic links are not
/// followed, but seen.
///
/// All calls block. A client can be used by many threads at the same time.
pub struct Client {
    files: Arc<dyn FileSystem>,
    streams: AtomicU64,
}

/// The reply is not one to this call: never from a file system of this crate.
fn unexpected<T>(_: Reply) -> Result<T, Errno> {
    Err(Errno::IO)
}

fn names(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."))
}

impl Client {
    /// A client of `files`, such as a [`PoolFs`](crate::PoolFs).
    pub fn new(files: Arc<dyn FileSystem>) -> Client {
        Client { files, streams: AtomicU64::new(1) }
    }

    fn lookup(&self, parent: Node, name: &[u8]) -> Result<Attributes, Errno> {
        match self.files.wait(Call::Lookup { parent, name: name.to_vec() })? {
            Reply::Entry(attributes) => Ok(attributes),
            other => unexpected(other),
        }
    }

    /// Attributes of the object at `path`; of a symbolic link, its own.
    ///
    /// # Errors
    /// `ENOENT` if there is none, `ENOTDIR` if a name before the last one is of no directory, and others of
    /// the file system.
    pub fn metadata(&self, path: &[u8]) -> Result<Attributes, Errno> {
        let mut at = match self.files.wait(Call::Attributes { node: Node::ROOT, handle: None })? {
            Reply::Attributes(attributes) => attributes,
            other => return unexpected(other),
        };
        for name in names(path) {
            if at.kind() != FileKind::Directory {
                return Err(Errno::NOTDIR);
            }
            at = self.lookup(at.node, name)?;
        }
        Ok(at)
    }

    /// The directory of a path's last name, and that name.
    fn parent<'p>(&self, path: &'p [u8]) -> Result<(Node, &'p [u8]), Errno> {
        let name = names(path).next_back().ok_or(Errno::INVAL)?;
        // unwrap: the name is a part of the path.
        let before = name.as_ptr().addr() - path.as_ptr().addr();
        let parent = self.metadata(&path[..before])?;
        if parent.kind() == FileKind::Directory { Ok((parent.node, name)) } else { Err(Errno::NOTDIR) }
    }

    /// Makes the directory `path`, and those above it that are missing.
    ///
    /// # Errors
    /// `ENOTDIR` if something else has a name of it, and others of the file system.
    pub fn create_dir_all(&self, path: &[u8]) -> Result<(), Errno> {
        let mut at = Node::ROOT;
        for name in names(path) {
            let call = Call::MakeDirectory { parent: at, name: name.to_vec(), mode: DIRECTORY_MODE };
            let made = match self.files.wait(call) {
                Ok(Reply::Entry(attributes)) => attributes,
                Ok(other) => return unexpected(other),
                Err(Errno::EXIST) => self.lookup(at, name)?,
                Err(e) => return Err(e),
            };
            if made.kind() != FileKind::Directory {
                return Err(Errno::NOTDIR);
            }
            at = made.node;
        }
        Ok(())
    }

    /// Makes the directory `path`, in one that exists.
    ///
    /// # Errors
    /// `EEXIST` if there is something of that name, and others of the file system.
    pub fn create_dir(&self, path: &[u8]) -> Result<(), Errno> {
        let (parent, name) = self.parent(path)?;
        let call = Call::MakeDirectory { parent, name: name.to_vec(), mode: DIRECTORY_MODE };
        self.files.wait(call).map(drop)
    }

    /// The entries of the directory `path`, sorted by name.
    ///
    /// # Errors
    /// `ENOTDIR` if it is none, and others of the file system.
    pub fn read_dir(&self, path: &[u8]) -> Result<Vec<DirectoryEntry>, Errno> {
        let node = self.metadata(path)?.node;
        let stream = Stream(self.streams.fetch_add(1, Relaxed));
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            match self.files.wait(Call::ReadDirectory { node, stream, after })? {
                Reply::Listing(entries, is_last) => {
                    after = entries.last().map_or(after, |entry| entry.position);
                    all.extend(entries);
                    if is_last {
                        break;
                    }
                }
                other => return unexpected(other),
            }
        }
        self.files.wait(Call::CloseDirectory { stream })?;
        Ok(all)
    }

    /// Opens the file `path` to read it.
    ///
    /// # Errors
    /// `EISDIR` and `ELOOP` for a directory and a symbolic link, and others of the file system.
    pub fn open(&self, path: &[u8]) -> Result<OpenFile, Errno> {
        let node = self.metadata(path)?.node;
        match self.files.wait(Call::Open { node, flags: 0 })? {
            Reply::Opened(attributes, handle) => {
                Ok(OpenFile::new(&self.files, handle, attributes.size, false))
            }
            other => unexpected(other),
        }
    }

    /// Opens the file `path` to write to it, and makes it if it is missing. Its content is dropped, unless
    /// `keeps`.
    ///
    /// # Errors
    /// `EISDIR` for a directory, and others of the file system.
    pub fn create(&self, path: &[u8], keeps: bool) -> Result<OpenFile, Errno> {
        let flags = if keeps { OFlags::WRONLY } else { OFlags::WRONLY | OFlags::TRUNC };
        self.open_to_write(path, flags)
    }

    /// Makes the file `path`, which must not exist, and opens it to write to it.
    ///
    /// # Errors
    /// `EEXIST` if there is something of that name, and others of the file system.
    pub fn create_new(&self, path: &[u8]) -> Result<OpenFile, Errno> {
        self.open_to_write(path, OFlags::WRONLY | OFlags::EXCL)
    }

    fn open_to_write(&self, path: &[u8], flags: OFlags) -> Result<OpenFile, Errno> {
        let (parent, name) = self.parent(path)?;
        let create = Call::Create { parent, name: name.to_vec(), mode: FILE_MODE, flags: flags.bits() };
        match self.files.wait(create)? {
            Reply::Created(attributes, handle) => {
                Ok(OpenFile::new(&self.files, handle, attributes.size, true))
            }
            other => unexpected(other),
        }
    }

    /// The content of the file `path`.
    ///
    /// # Errors
    /// `EISDIR` and `ELOOP` for a directory and a symbolic link, and others of the file system.
    pub fn read(&self, path: &[u8]) -> Result<Vec<u8>, Errno> {
        let file = self.open(path)?;
        let mut content = vec![0; usize::try_from(file.size()).map_err(|_| Errno::FBIG)?];
        let read = file.read_at(0, &mut content);
        // An error of the use comes before one of the close.
        let closed = file.close();
        content.truncate(read?);
        closed.map(|()| content)
    }

    /// Makes the file `path` with this content, or replaces what it had. Closed when it returns: see
    /// [`sync`](Self::sync).
    ///
    /// # Errors
    /// `EISDIR` for a directory, `ENOSPC` if there is no room, and others of the file system.
    pub fn write(&self, path: &[u8], content: &[u8]) -> Result<(), Errno> {
        let file = self.create(path, false)?;
        let written = file.write_at(0, content);
        let closed = file.close();
        written.and(closed)
    }

    /// Removes the file, link or empty directory `path`.
    ///
    /// # Errors
    /// `ENOTEMPTY` for a directory with entries, and others of the file system.
    pub fn remove(&self, path: &[u8]) -> Result<(), Errno> {
        let (parent, name) = self.parent(path)?;
        let directory = self.lookup(parent, name)?.kind() == FileKind::Directory;
        self.files.wait(Call::Remove { parent, name: name.to_vec(), directory }).map(drop)
    }

    /// Moves `from` to `to`, which is replaced.
    ///
    /// # Errors
    /// Those of rename(2).
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), Errno> {
        let ((parent, name), (new_parent, new_name)) = (self.parent(from)?, self.parent(to)?);
        let (name, new_name) = (name.to_vec(), new_name.to_vec());
        self.files.wait(Call::Rename { parent, name, new_parent, new_name, flags: 0 }).map(drop)
    }

    /// Waits until all that was made so far is durable.
    ///
    /// # Errors
    /// `EIO` if that is not known.
    pub fn sync(&self) -> Result<(), Errno> {
        self.files.wait(Call::SyncDirectory { node: Node::ROOT }).map(drop)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}
