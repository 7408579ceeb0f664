//! Listings of directories, page by page.

use super::{Directory, lock, os};
use crate::call::{DirectoryEntry, Node, Reply, Stream};
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

/// Most bytes of a page, as messages have it.
const PAGE: usize = 512 << 10;
/// About as many bytes has an entry in a message, without its name.
const ENTRY: usize = 120;
/// Listings that one client may have open.
const OPEN_MAX: usize = 4096;

/// A listing that is being read.
struct Listing {
    directory: Dir,
    /// Entries that were returned.
    position: u64,
    /// A name that was read, and did not fit into the last page.
    left: Option<Vec<u8>>,
}

/// Listings by the client's number.
#[derive(Default)]
pub(super) struct Listings(Mutex<HashMap<Stream, Arc<Mutex<Listing>>>>);

impl Listings {
    pub(super) fn close(&self, stream: Stream) {
        // Closed without the lock.
        let listing = lock(&self.0).remove(&stream);
        drop(listing);
    }
}

impl Listing {
    /// The next name but `.` and `..`.
    fn next(&mut self) -> Result<Option<Vec<u8>>, Errno> {
        if let Some(name) = self.left.take() {
            self.position += 1;
            return Ok(Some(name));
        }
        for entry in self.directory.by_ref() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                self.position += 1;
                return Ok(Some(name.to_vec()));
            }
        }
        Ok(None)
    }

    fn give_back(&mut self, name: Vec<u8>) {
        self.position -= 1;
        self.left = Some(name);
    }
}

impl Directory {
    /// The entries of a directory behind the first `after` ones.
    pub(super) fn list(&self, node: Node, stream: Stream, after: u64) -> Result<Reply, Errno> {
        let at = self.directory(node)?;
        let known = lock(&self.listings.0).get(&stream).cloned();
        let listing = match known {
            Some(listing) => listing,
            None => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let directory = Dir::new(rustix::fs::openat(&at, c".", flags, Mode::empty())?)?;
                let listing = Arc::new(Mutex::new(Listing { directory, position: 0, left: None }));
                let mut all = lock(&self.listings.0);
                if all.len() >= OPEN_MAX {
                    return Err(Errno::MFILE);
                }
                Arc::clone(all.entry(stream).or_insert(listing))
            }
        };
        let mut listing = lock(&listing);
        if after < listing.position {
            listing.directory.rewind();
            (listing.position, listing.left) = (0, None);
        }
        while listing.position < after {
            if listing.next()?.is_none() {
                return Ok(Reply::Listing(Vec::new(), true));
            }
        }
        let (mut page, mut bytes) = (Vec::new(), 0);
        while let Some(name) = listing.next()? {
            if bytes + ENTRY + name.len() > PAGE {
                listing.give_back(name);
                return Ok(Reply::Listing(page, false));
            }
            match self.look(node, at.as_fd(), &name) {
                Ok(attributes) => {
                    bytes += ENTRY + name.len();
                    page.push(DirectoryEntry { name, position: listing.position, attributes });
                }
                // It was removed since.
                Err(Errno::NOENT | Errno::STALE) => {}
                Err(e) => tracing::debug!("{} is not listed: {e}", os(&name).display()),
            }
        }
        Ok(Reply::Listing(page, true))
    }
}
