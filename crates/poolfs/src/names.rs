//! Names: directories and what is in them.
//!
//! Each change is one transaction that puts the directory too, with its number of entries: so a directory
//! that is removed is empty, and two hosts cannot give the same name at a time.

use crate::lease::{AtOnce, AtOnceError, Exclusive, Waits};
use crate::schema::{Content, EntryRecord, InodeRecord, encode_lease, encode_orphan, unreadable};
use crate::session::{FsSession, ROOT};
use crate::store::Draft;
use longhaul_fs::{Attributes, Errno, FileKind, check_name};

/// Most names of an object.
const LINKS_MAX: u32 = 65_000;
/// Depth of directories above which a move is refused.
const DEPTH_MAX: usize = 4096;
/// Longest target of a symbolic link.
const LINK_MAX: usize = 4095;

/// Flags of renameat2(2).
const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;

/// Set-group-ID: what is made in such a directory has its group.
const SET_GROUP: u32 = 0o2000;
const PERMISSIONS: u32 = 0o7777;

/// What a rename has done.
struct Renamed {
    moved: EntryRecord,
    replaced: Option<EntryRecord>,
    /// An inode without a name that is still to be removed.
    left: Option<u64>,
}

/// A name and a target that an object may be made with.
fn check_new(name: &[u8], target: Option<&[u8]>) -> Result<(), Errno> {
    check_name(name)?;
    if target.is_some_and(|target| target.len() > LINK_MAX) { Err(Errno::NAMETOOLONG) } else { Ok(()) }
}

impl FsSession {
    /// The entry of a name.
    fn entry(draft: &mut Draft<'_>, directory: u64, name: &[u8]) -> Result<Option<EntryRecord>, Errno> {
        let bytes = draft.get(&draft.keys().entry(directory, name))?;
        bytes
            .map(|bytes| EntryRecord::decode(&bytes).ok_or_else(|| unreadable("an entry", &bytes)))
            .transpose()
    }

    /// A directory that has a name, or is the top.
    ///
    /// # Errors
    /// `EAGAIN` if another session has its lease.
    fn directory(&self, draft: &mut Draft<'_>, number: u64) -> Result<InodeRecord, Errno> {
        if !self.leases.holds(number) {
            draft.unleased(number)?;
        }
        let inode = draft.inode(number)?.ok_or(Errno::NOENT)?;
        if !inode.is_directory() {
            return Err(Errno::NOTDIR);
        }
        if inode.links == 0 { Err(Errno::NOENT) } else { Ok(inode) }
    }

    /// Attributes of an object as programs of this host see it.
    pub(crate) fn shown(&self, number: u64, record: &InodeRecord) -> Attributes {
        let mut attributes = record.attributes(number);
        if let Some(node) = self.open_node(number) {
            let state = node.lock();
            if !state.is_clean() {
                attributes.size = state.size().max(attributes.size);
                if let Some(modified) = state.modified {
                    (attributes.modified, attributes.changed) = (modified, modified);
                }
            }
        }
        attributes
    }

    pub(crate) fn lookup(&self, directory: u64, name: &[u8]) -> Result<(u64, InodeRecord), Errno> {
        let (keys, mut tries) = (self.store.keys(), 0);
        let (key, lease) = (keys.entry(directory, name), keys.lease(directory));
        loop {
            let number = match self.lookup_leased(directory, name, Waits)? {
                Some((number, Some(record))) => return Ok((number, record)),
                Some((number, None)) => number,
                None => {
                    let found = self.store.get_all(&[key.clone(), lease.clone()])?;
                    if self.is_away(&lease, &found) {
                        self.recall(directory)?;
                        continue;
                    }
                    let entry = found.iter().find(|entry| entry.key == key).ok_or(Errno::NOENT)?;
                    let entry = EntryRecord::decode(&entry.value);
                    entry.ok_or_else(|| unreadable("an entry", b""))?.inode
                }
            };
            match self.store.inode(number)? {
                Some(record) => return Ok((number, record)),
                // It was replaced or removed in between.
                None if tries < 10 => tries += 1,
                None => return Err(Errno::NOENT),
            }
        }
    }

    /// Whether another session has a lease, by the entries that were read.
    pub(crate) fn is_away(&self, lease: &[u8], found: &[longhaul_catalog::Entry]) -> bool {
        found.iter().any(|entry| entry.key == lease && self.store.is_of_another(entry))
    }

    /// An inode as it is now, also if it is a directory whose lease another session has.
    pub(crate) fn visible(&self, number: u64) -> Result<Option<InodeRecord>, Errno> {
        let (key, lease) = (self.store.keys().inode(number), self.store.keys().lease(number));
        loop {
            let mut found = self.store.get_all(&[key.clone(), lease.clone()])?;
            if self.is_away(&lease, &found) {
                self.recall(number)?;
                continue;
            }
            let inode = found.iter().position(|entry| entry.key == key).map(|at| found.swap_remove(at));
            return self.store.remember(number, inode);
        }
    }

    /// The directory that a name stands for, if it stands for one.
    fn directory_named(&self, directory: u64, name: &[u8]) -> Result<Option<u64>, Errno> {
        let entry = match self.lookup_leased(directory, name, Waits) {
            Ok(Some((number, _))) => return Ok(Some(number)),
            Ok(None) => self.store.get(&self.store.keys().entry(directory, name))?,
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(e),
        };
        let entry = entry.and_then(|entry| EntryRecord::decode(&entry.value));
        Ok(entry.filter(EntryRecord::is_directory).map(|entry| entry.inode))
    }

    /// The record of an object that is made in a directory.
    fn new_inode(
        &self,
        owner: (u32, u32),
        (directory, parent): (u64, &InodeRecord),
        mode: u32,
        rdev: u64,
        target: Option<&[u8]>,
    ) -> InodeRecord {
        let mut inode = InodeRecord::new(mode, owner, self.now());
        (inode.rdev, inode.parent) = (rdev, directory);
        if let Some(target) = target {
            inode.content = Content::Link(target.to_vec());
        }
        if parent.mode & SET_GROUP != 0 {
            inode.gid = parent.gid;
            if inode.is_directory() {
                inode.mode |= SET_GROUP;
            }
        }
        inode
    }

    /// As [`make`](Self::make), of something that is no link, in memory alone; `None` without the lease.
    ///
    /// # Errors
    /// [`AtOnceError::WouldWait`] if it would have to wait.
    pub(crate) fn make_at_once(
        &self,
        owner: (u32, u32),
        (directory, name): (u64, &[u8]),
        mode: u32,
    ) -> Result<Option<(u64, InodeRecord)>, AtOnceError> {
        check_new(name, None)?;
        let inode = |parent: &InodeRecord| self.new_inode(owner, (directory, parent), mode, 0, None);
        self.make_leased(directory, name, inode, AtOnce)
    }

    /// Makes an object of this owner and mode, and `content` if it is a link.
    pub(crate) fn make(
        &self,
        owner: (u32, u32),
        (directory, name): (u64, &[u8]),
        mode: u32,
        rdev: u64,
        target: Option<&[u8]>,
    ) -> Result<(u64, InodeRecord), Errno> {
        check_new(name, target)?;
        let inode = |parent: &InodeRecord| self.new_inode(owner, (directory, parent), mode, rdev, target);
        self.consider_lease(directory)?;
        if let Some(made) = self.make_leased(directory, name, inode, Waits)? {
            return Ok(made);
        }
        let number = self.store.new_number()?;
        self.exclusively(
            &[],
            &[],
            || Ok(vec![directory]),
            |exclusive| {
                let record = self.store.change(|draft| {
                    let mut parent = self.directory(draft, directory)?;
                    let key = draft.keys().entry(directory, name);
                    if !draft.suppose_absent(&key)? {
                        return Err(Errno::EXIST);
                    }
                    let inode = inode(&parent);
                    parent.touch(inode.modified);
                    parent.entries += 1;
                    parent.links += u32::from(inode.is_directory());
                    draft.put(&key, EntryRecord::new(number, inode.mode).encode());
                    if inode.is_directory() && self.leases.takes() {
                        draft.put_leased(&draft.keys().lease(number), encode_lease(draft.session()));
                    }
                    draft.put_inode(directory, parent);
                    draft.put_new_inode(number, inode.clone());
                    Ok(inode)
                })?;
                exclusive.named(directory, name, Some(EntryRecord::new(number, record.mode)));
                if record.is_directory() && self.leases.takes() {
                    exclusive.made(number, &record);
                }
                Ok((number, record))
            },
        )
    }

    pub(crate) fn make_directory(
        &self,
        owner: (u32, u32),
        at: (u64, &[u8]),
        mode: u32,
    ) -> Result<(u64, InodeRecord), Errno> {
        self.make(owner, at, rustix::fs::FileType::Directory.as_raw_mode() | mode & PERMISSIONS, 0, None)
    }

    pub(crate) fn make_link(
        &self,
        owner: (u32, u32),
        at: (u64, &[u8]),
        target: &[u8],
    ) -> Result<(u64, InodeRecord), Errno> {
        let mode = rustix::fs::FileType::Symlink.as_raw_mode() | 0o777;
        self.make(owner, at, mode, 0, Some(target))
    }

    /// Gives an object another name.
    pub(crate) fn link(&self, number: u64, directory: u64, name: &[u8]) -> Result<InodeRecord, Errno> {
        check_name(name)?;
        self.exclusively(
            &[],
            &[number],
            || Ok(vec![directory]),
            |exclusive| {
                let record = self.store.change(|draft| self.put_link(draft, number, directory, name))?;
                exclusive.named(directory, name, Some(EntryRecord::new(number, record.mode)));
                Ok(record)
            },
        )
    }

    fn put_link(
        &self,
        draft: &mut Draft<'_>,
        number: u64,
        directory: u64,
        name: &[u8],
    ) -> Result<InodeRecord, Errno> {
        let mut parent = self.directory(draft, directory)?;
        let key = draft.keys().entry(directory, name);
        if !draft.suppose_absent(&key)? {
            return Err(Errno::EXIST);
        }
        let mut inode = draft.needed(number)?;
        if inode.is_directory() {
            return Err(Errno::PERM);
        }
        match inode.links {
            0 => return Err(Errno::NOENT),
            LINKS_MAX.. => return Err(Errno::MLINK),
            _ => {}
        }
        let now = self.now();
        inode.links += 1;
        inode.changed = now;
        parent.touch(now);
        parent.entries += 1;
        draft.put(&key, EntryRecord::new(number, inode.mode).encode());
        draft.put_inode(directory, parent);
        draft.put_inode(number, inode.clone());
        Ok(inode)
    }

    /// An object loses a name; whether what it had is still to be removed.
    fn unlink(&self, draft: &mut Draft<'_>, number: u64, mut inode: InodeRecord) -> Result<bool, Errno> {
        inode.changed = self.now();
        inode.links -= inode.links.min(1);
        if inode.links > 0 {
            draft.put_inode(number, inode);
            return Ok(false);
        }
        // One that is open here is used without a name; one of chunks is removed in parts.
        let is_open = self.open_node(number).is_some();
        if is_open || inode.content == Content::Chunks {
            draft.put(&draft.keys().orphan(number), encode_orphan(draft.session()));
            draft.put_inode(number, inode);
            return Ok(!is_open);
        }
        self.drop_inode(draft, number, &mut inode)?;
        Ok(false)
    }

    /// Removes an inode without a name and without chunks.
    fn drop_inode(&self, draft: &mut Draft<'_>, number: u64, inode: &mut InodeRecord) -> Result<(), Errno> {
        if let Content::Inline(list) = &inode.content {
            let removed: Vec<_> = list.iter().cloned().collect();
            self.replace(draft, number, inode, &[], &removed)?;
        }
        if inode.has_xattrs {
            draft.delete(&draft.keys().xattrs(number));
        }
        draft.delete_inode(number);
        Ok(())
    }

    /// Removes an object without a name, and its content.
    pub(crate) fn reap(&self, number: u64) -> Result<(), Errno> {
        let is_left = self.store.change(|draft| {
            let key = draft.keys().orphan(number);
            let Some(mut inode) = draft.inode(number)? else {
                draft.delete(&key);
                return Ok(false);
            };
            if inode.links > 0 {
                return Ok(false);
            }
            if inode.content == Content::Chunks && !(inode.trims && inode.size == 0) {
                (inode.size, inode.trims) = (0, true);
                draft.put_inode(number, inode);
                return Ok(true);
            }
            if inode.trims {
                return Ok(true);
            }
            self.drop_inode(draft, number, &mut inode)?;
            draft.delete(&key);
            Ok(false)
        })?;
        if is_left {
            self.trim(number)?;
            return self.reap(number);
        }
        Ok(())
    }

    pub(crate) fn remove(&self, directory: u64, name: &[u8], is_directory: bool) -> Result<(), Errno> {
        if !is_directory && self.remove_leased(directory, name)? {
            return Ok(());
        }
        let concerned = || {
            let inner = if is_directory { self.directory_named(directory, name)? } else { None };
            Ok([Some(directory), inner].into_iter().flatten().collect())
        };
        let left = self.exclusively(&[(directory, name)], &[], concerned, |exclusive| {
            let (entry, left) = self.store.change(|draft| {
                let mut parent = self.directory(draft, directory)?;
                let entry = FsSession::entry(draft, directory, name)?.ok_or(Errno::NOENT)?;
                match (is_directory, entry.is_directory()) {
                    (true, false) => return Err(Errno::NOTDIR),
                    (false, true) => return Err(Errno::ISDIR),
                    _ => {}
                }
                let inode = draft.inode(entry.inode)?.ok_or(Errno::NOENT)?;
                parent.touch(self.now());
                parent.entries = parent.entries.saturating_sub(1);
                draft.delete(&draft.keys().entry(directory, name));
                let left = if is_directory {
                    parent.links = parent.links.saturating_sub(1);
                    self.drop_directory(draft, exclusive, entry.inode, inode)?;
                    false
                } else {
                    self.unlink(draft, entry.inode, inode)?
                };
                draft.put_inode(directory, parent);
                Ok((entry, left))
            })?;
            exclusive.named(directory, name, None);
            if is_directory {
                exclusive.removed(entry.inode);
            }
            Ok(left.then_some(entry.inode))
        })?;
        left.map_or(Ok(()), |number| self.reap_behind(number))
    }

    /// Removes an empty directory, which no other session has a lease of.
    fn drop_directory(
        &self,
        draft: &mut Draft<'_>,
        exclusive: &Exclusive<'_>,
        number: u64,
        mut inode: InodeRecord,
    ) -> Result<(), Errno> {
        match self.leases.holds(number) {
            // What is made there meanwhile would be lost.
            true if !exclusive.has(number) => return Err(Errno::AGAIN),
            true => draft.delete(&draft.keys().lease(number)),
            false => draft.unleased(number)?,
        }
        if inode.entries > 0 {
            return Err(Errno::NOTEMPTY);
        }
        self.drop_inode(draft, number, &mut inode)
    }

    /// Refuses to move a directory below itself. Moves of directories are made one after the other.
    fn check_move(draft: &mut Draft<'_>, moved: u64, to: u64) -> Result<(), Errno> {
        let key = draft.keys().moves();
        let before =
            draft.get(&key)?.map_or(0, |bytes| bytes.iter().fold(0u64, |n, byte| n << 8 | u64::from(*byte)));
        draft.put(&key, (before + 1).to_be_bytes().to_vec());
        let mut at = to;
        for _ in 0..DEPTH_MAX {
            if at == moved {
                return Err(Errno::INVAL);
            }
            if at == ROOT {
                return Ok(());
            }
            // It is as it was unless directories are moved, and those moves are in order.
            at = draft.look(at)?.ok_or(Errno::NOENT)?.parent;
        }
        Err(Errno::LOOP)
    }

    pub(crate) fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Result<(), Errno> {
        check_name(from.1)?;
        check_name(to.1)?;
        if flags & !(NOREPLACE | EXCHANGE) != 0 || flags == NOREPLACE | EXCHANGE {
            return Err(Errno::INVAL);
        }
        if flags & EXCHANGE == 0 && self.rename_leased(from, to)? {
            return Ok(());
        }
        let concerned = || {
            let replaced = self.directory_named(to.0, to.1)?;
            Ok([Some(from.0), Some(to.0), replaced].into_iter().flatten().collect())
        };
        let left = self.exclusively(&[from, to], &[], concerned, |exclusive| {
            let renamed = self.store.change(|draft| self.put_rename(draft, exclusive, from, to, flags))?;
            let Some(Renamed { moved, replaced, left }) = renamed else { return Ok(None) };
            let is_exchange = flags & EXCHANGE != 0;
            exclusive.named(from.0, from.1, replaced.filter(|_| is_exchange));
            exclusive.named(to.0, to.1, Some(moved));
            if let Some(gone) = replaced.filter(|gone| gone.is_directory() && !is_exchange) {
                exclusive.removed(gone.inode);
            }
            Ok(left)
        })?;
        left.map_or(Ok(()), |number| self.reap_behind(number))
    }

    /// `None` if there is nothing to do.
    fn put_rename(
        &self,
        draft: &mut Draft<'_>,
        exclusive: &Exclusive<'_>,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
    ) -> Result<Option<Renamed>, Errno> {
        self.directory(draft, from.0)?;
        self.directory(draft, to.0)?;
        let moved = FsSession::entry(draft, from.0, from.1)?.ok_or(Errno::NOENT)?;
        let replaced = FsSession::entry(draft, to.0, to.1)?;
        if flags & EXCHANGE != 0 {
            let other = replaced.ok_or(Errno::NOENT)?;
            self.exchange(draft, from, to, moved, other)?;
            return Ok(Some(Renamed { moved, replaced, left: None }));
        }
        if flags & NOREPLACE != 0 && replaced.is_some() {
            return Err(Errno::EXIST);
        }
        if replaced.is_some_and(|replaced| replaced.inode == moved.inode) {
            return Ok(None);
        }
        let now = self.now();
        let mut left = None;
        if let Some(replaced) = replaced {
            let inode = draft.inode(replaced.inode)?.ok_or(Errno::NOENT)?;
            match (moved.is_directory(), replaced.is_directory()) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) => {
                    let mut parent = self.directory(draft, to.0)?;
                    parent.links = parent.links.saturating_sub(1);
                    draft.put_inode(to.0, parent);
                    self.drop_directory(draft, exclusive, replaced.inode, inode)?;
                }
                (false, false) => {
                    left = self.unlink(draft, replaced.inode, inode)?.then_some(replaced.inode);
                }
            }
        }
        if moved.is_directory() && from.0 != to.0 {
            FsSession::check_move(draft, moved.inode, to.0)?;
        }
        let mut inode = draft.inode(moved.inode)?.ok_or(Errno::NOENT)?;
        inode.changed = now;
        inode.parent = to.0;
        let subdirectories = u32::from(inode.is_directory());
        draft.put_inode(moved.inode, inode);
        draft.delete(&draft.keys().entry(from.0, from.1));
        draft.put(&draft.keys().entry(to.0, to.1), moved.encode());
        let mut parent = self.directory(draft, from.0)?;
        parent.touch(now);
        parent.entries = parent.entries.saturating_sub(1);
        parent.links -= subdirectories.min(parent.links);
        draft.put_inode(from.0, parent);
        let mut parent = self.directory(draft, to.0)?;
        parent.touch(now);
        parent.entries += u64::from(replaced.is_none());
        parent.links += subdirectories;
        draft.put_inode(to.0, parent);
        Ok(Some(Renamed { moved, replaced, left }))
    }

    fn exchange(
        &self,
        draft: &mut Draft<'_>,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        moved: EntryRecord,
        other: EntryRecord,
    ) -> Result<(), Errno> {
        let now = self.now();
        for (entry, place) in [(moved, to), (other, from)] {
            if entry.is_directory() && from.0 != to.0 {
                FsSession::check_move(draft, entry.inode, place.0)?;
            }
            let mut inode = draft.inode(entry.inode)?.ok_or(Errno::NOENT)?;
            (inode.changed, inode.parent) = (now, place.0);
            draft.put_inode(entry.inode, inode);
            draft.put(&draft.keys().entry(place.0, place.1), entry.encode());
        }
        for (directory, gone, came) in [(from.0, moved, other), (to.0, other, moved)] {
            let mut parent = self.directory(draft, directory)?;
            parent.touch(now);
            if from.0 != to.0 {
                parent.links += u32::from(came.is_directory());
                parent.links -= u32::from(gone.is_directory()).min(parent.links);
            }
            draft.put_inode(directory, parent);
        }
        Ok(())
    }

    /// Checks that a file can be opened, and its inode as it is now.
    pub(crate) fn regular(&self, number: u64) -> Result<InodeRecord, Errno> {
        let inode = self.store.inode(number)?.ok_or(Errno::STALE)?;
        match inode.kind() {
            FileKind::Regular => Ok(inode),
            FileKind::Directory => Err(Errno::ISDIR),
            FileKind::Symlink => Err(Errno::LOOP),
            _ => Err(Errno::NXIO),
        }
    }
}
