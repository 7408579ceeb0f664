//! Calls of [`FileSystem`](longhaul_fs::FileSystem).

use crate::lease::{AtOnce, AtOnceError, Waits};
use crate::node::OpenNode;
use crate::schema::{Content, InodeRecord, XATTRS_MAX, Xattrs, decode_xattrs, encode_xattrs, unreadable};
use crate::segment::Segments;
use crate::session::{FsSession, OpenHandle};
use crate::store::{Draft, lock};
use longhaul_fs::{
    Attributes, Call, Caller, Changes, Errno, Handle, Node, Reply, Statistics, Time, TimeChange,
};
use rustix::fs::{FallocateFlags, OFlags, XattrFlags};
use std::sync::Arc;

/// Longest name of an extended attribute.
const XATTR_NAME: usize = 255;
/// Unit of statistics.
const STATISTICS_BLOCK: u64 = 4096;

/// Whether an extended attribute is refused that says what nothing here would check: access control lists, and labels of
/// SELinux, which it checks on a FUSE file system for all objects alike.
pub(crate) fn refuses_xattr(name: &[u8]) -> bool {
    name.starts_with(b"system.") || name == b"security.selinux"
}

/// The mode of a file with these permissions.
fn regular(mode: u32) -> u32 {
    rustix::fs::FileType::RegularFile.as_raw_mode() | mode & 0o7777
}

/// Changes attributes other than the size, at the time `now`.
fn apply(changes: &Changes, now: Time, inode: &mut InodeRecord) {
    let at = |change: TimeChange| match change {
        TimeChange::Now => now,
        TimeChange::At(time) => time,
    };
    if (changes.uid.is_some() || changes.gid.is_some()) && changes.mode.is_none() && !inode.is_directory() {
        inode.mode &= !0o6000;
    }
    if let Some(mode) = changes.mode {
        inode.mode = inode.mode & !0o7777 | mode & 0o7777;
    }
    if let Some(uid) = changes.uid {
        inode.uid = uid;
    }
    if let Some(gid) = changes.gid {
        inode.gid = gid;
    }
    if let Some(time) = changes.accessed {
        inode.accessed = at(time);
    }
    if let Some(time) = changes.modified {
        inode.modified = at(time);
    }
    inode.changed = now;
}

impl FsSession {
    /// The user and the group that what a caller makes belongs to.
    fn owner_for(&self, caller: Option<Caller>) -> (u32, u32) {
        caller.map_or(self.owner, |Caller { uid, gid }| (uid, gid))
    }

    /// Executes a call on the calling thread, which waits.
    pub(crate) fn execute(&self, caller: Option<Caller>, call: Call) -> Result<Reply, Errno> {
        let owner = self.owner_for(caller);
        match call {
            Call::Lookup { parent, name } => {
                longhaul_fs::check_name(&name)?;
                let (number, record) = self.lookup(parent.0, &name)?;
                Ok(Reply::Entry(self.shown(number, &record)))
            }
            Call::Forget { .. } | Call::CloseDirectory { .. } => Ok(Reply::Done),
            Call::SyncDirectory { node } => self.sync_directory(node.0).map(|()| Reply::Done),
            Call::Attributes { node, handle } => self.attributes(node.0, handle).map(Reply::Attributes),
            Call::Change { node, handle, changes } => {
                self.change_attributes(node.0, handle, &changes).map(Reply::Attributes)
            }
            Call::ReadLink { node } => {
                let record = match self.seen(node.0) {
                    Some(record) => record,
                    None => self.store.inode(node.0)?.ok_or(Errno::STALE)?,
                };
                match record.content {
                    Content::Link(target) => Ok(Reply::Bytes(target)),
                    _ => Err(Errno::INVAL),
                }
            }
            Call::Create { parent, name, mode, flags } => self.create(owner, (parent.0, &name), mode, flags),
            Call::MakeDirectory { parent, name, mode } => {
                self.made(self.make_directory(owner, (parent.0, &name), mode)?)
            }
            Call::MakeNode { parent, name, mode, rdev } => {
                self.made(self.make(owner, (parent.0, &name), mode, rdev, None)?)
            }
            Call::MakeSymlink { parent, name, target } => {
                self.made(self.make_link(owner, (parent.0, &name), &target)?)
            }
            Call::Link { node, parent, name } => {
                let record = self.link(node.0, parent.0, &name)?;
                self.made((node.0, record))
            }
            Call::Remove { parent, name, directory } => {
                longhaul_fs::check_name(&name)?;
                self.remove(parent.0, &name, directory).map(|()| Reply::Done)
            }
            Call::Rename { parent, name, new_parent, new_name, flags } => {
                self.rename((parent.0, &name), (new_parent.0, &new_name), flags).map(|()| Reply::Done)
            }
            Call::Open { node, flags } => self.open_file(node, flags),
            Call::Close { handle } => self.close(handle),
            Call::Read { handle, offset, len } => {
                let (node, _) = self.handle(handle)?;
                self.check_locks(node.inode)?;
                self.read(&node, offset, len as usize).map(Reply::Data)
            }
            Call::Write { handle, offset, data } => {
                let (node, appends) = self.handle(handle)?;
                self.check_locks(node.inode)?;
                self.report(handle.0, self.write(&node, offset, &data, appends))?;
                Ok(Reply::Written(data.len() as u32))
            }
            Call::Flush { handle } => {
                let (node, _) = self.handle(handle)?;
                let flushed = self.close_leased(&node, Waits).and_then(|is_later| match is_later {
                    true => Ok(()),
                    false => self.commit(&node),
                });
                self.report_at_close(handle.0, flushed).map(|()| Reply::Done)
            }
            Call::Sync { handle, .. } => {
                let (node, _) = self.handle(handle)?;
                self.report(handle.0, self.commit(&node)).map(|()| Reply::Done)
            }
            Call::ReadDirectory { node, after, .. } => self.list(node.0, after),
            Call::Statistics => self.statistics(),
            Call::GetXattr { name, .. } if refuses_xattr(&name) => Err(Errno::OPNOTSUPP),
            Call::GetXattr { node, name } => {
                let all = self.xattrs(node.0)?;
                all.get(&name).map(|value| Reply::Bytes(value.clone())).ok_or(Errno::NODATA)
            }
            Call::ListXattrs { node } => {
                let names = self.xattrs(node.0)?.into_keys();
                Ok(Reply::Bytes(names.flat_map(|name| [name, vec![0]].concat()).collect()))
            }
            Call::SetXattr { node, name, value, flags } => self.set_xattr(node.0, &name, Some(value), flags),
            Call::RemoveXattr { node, name } => self.set_xattr(node.0, &name, None, 0),
            Call::Allocate { handle, offset, len, mode } => self.allocate_range(handle, offset, len, mode),
            Call::Seek { handle, offset, hole } => {
                let (node, _) = self.handle(handle)?;
                self.seek(&node, offset, hole).map(Reply::Offset)
            }
        }
    }

    fn made(&self, (number, record): (u64, InodeRecord)) -> Result<Reply, Errno> {
        Ok(Reply::Entry(self.shown(number, &record)))
    }

    fn created(&self, (number, record): (u64, InodeRecord), appends: bool) -> Reply {
        let (handle, _) = self.open_handle(number, record.clone(), appends, false);
        Reply::Created(self.shown(number, &record), Handle(handle))
    }

    /// The reply to a call that needs neither the catalog nor a member, and nothing that has to be waited for;
    /// `None` for others. The calls of which a tree of small files is made are of these, in directories of which
    /// this session has the lease.
    pub(crate) fn at_once(&self, caller: Option<Caller>, call: &Call) -> Option<Result<Reply, Errno>> {
        match self.reply_at_once(caller, call) {
            Ok(reply) => reply.map(Ok),
            Err(AtOnceError::WouldWait) => None,
            Err(AtOnceError::Failed(e)) => Some(Err(e)),
        }
    }

    fn reply_at_once(&self, caller: Option<Caller>, call: &Call) -> Result<Option<Reply>, AtOnceError> {
        let (now, owner) = (AtOnce, self.owner_for(caller));
        Ok(match call {
            Call::Forget { .. } | Call::CloseDirectory { .. } => Some(Reply::Done),
            Call::Lookup { parent, name } => {
                longhaul_fs::check_name(name)?;
                match self.lookup_leased(parent.0, name, now)? {
                    Some((number, Some(record))) => Some(Reply::Entry(self.shown(number, &record))),
                    _ => None,
                }
            }
            Call::Attributes { node, .. } => {
                self.seen(node.0).map(|record| Reply::Attributes(self.shown(node.0, &record)))
            }
            Call::Change { node, changes, .. } if changes.size.is_none() => {
                let (time, sets_modified) = (self.now(), changes.modified.is_some());
                let change = |inode: &mut InodeRecord| apply(changes, time, inode);
                let changed = self.change_leased(node.0, change, sets_modified, now)?;
                changed.map(|record| Reply::Attributes(self.shown(node.0, &record)))
            }
            Call::Create { parent, name, mode, flags } => {
                let flags = OFlags::from_bits_retain(*flags);
                match self.make_at_once(owner, (parent.0, name), regular(*mode)) {
                    // It is opened.
                    Err(AtOnceError::Failed(Errno::EXIST)) if !flags.contains(OFlags::EXCL) => None,
                    made => made?.map(|made| self.created(made, flags.contains(OFlags::APPEND))),
                }
            }
            Call::MakeDirectory { parent, name, mode } => {
                let mode = rustix::fs::FileType::Directory.as_raw_mode() | mode & 0o7777;
                self.make_at_once(owner, (parent.0, name), mode)?.map(|made| self.made(made)).transpose()?
            }
            Call::Write { handle, offset, data } => {
                let (node, appends) = self.handle(*handle)?;
                self.check_locks(node.inode)?;
                if appends || !self.write_at_once(&node, *offset, data) {
                    return Ok(None);
                }
                self.report(handle.0, Ok(()))?;
                Some(Reply::Written(data.len() as u32))
            }
            Call::Flush { handle } => {
                let (node, _) = self.handle(*handle)?;
                match self.close_leased(&node, now)? {
                    true => {
                        self.report_at_close(handle.0, Ok(()))?;
                        Some(Reply::Done)
                    }
                    false => None,
                }
            }
            Call::Close { handle } => {
                let (node, _) = self.handle(*handle)?;
                let is_closed = self.close_leased(&node, now)? && self.release_leased(&node, handle.0);
                is_closed.then_some(Reply::Done)
            }
            _ => None,
        })
    }

    fn handle(&self, handle: Handle) -> Result<(Arc<OpenNode>, bool), Errno> {
        let handles = lock(&self.handles);
        let OpenHandle { node, appends, .. } = handles.get(&handle.0).ok_or(Errno::BADF)?;
        Ok((Arc::clone(node), *appends))
    }

    fn attributes(&self, number: u64, handle: Option<Handle>) -> Result<Attributes, Errno> {
        if let Some(record) = self.seen(number) {
            return Ok(self.shown(number, &record));
        }
        if let Some(node) = self.open_node(number)
            && !node.lock().is_clean()
        {
            // It is newer than what the catalog has; what others change meanwhile is seen after that.
            let record = node.lock().inode.clone();
            let remembered = self.store.change(|draft| draft.inode(number));
            return Ok(self.shown(number, &remembered?.unwrap_or(record)));
        }
        match self.visible(number)? {
            Some(record) => Ok(self.shown(number, &record)),
            None => match handle {
                // Another host has removed it.
                Some(handle) => Ok(self.handle(handle)?.0.lock().inode.attributes(number)),
                None => Err(Errno::STALE),
            },
        }
    }

    fn change_attributes(
        &self,
        number: u64,
        handle: Option<Handle>,
        changes: &Changes,
    ) -> Result<Attributes, Errno> {
        let now = self.now();
        let change = |inode: &mut InodeRecord| apply(changes, now, inode);
        let node = match handle {
            Some(handle) => Some(self.handle(handle)?.0),
            None => self.open_node(number),
        };
        if let Some(size) = changes.size {
            let record = self.resize(number, node.as_deref(), size, change)?;
            return Ok(self.shown(number, &record));
        }
        if let Some(record) = self.change_leased(number, change, changes.modified.is_some(), Waits)? {
            return Ok(self.shown(number, &record));
        }
        // What is changed here in a directory, and is not written, is older than this.
        self.settle(number)?;
        // A time that is set is not overtaken by that of a write before it.
        if changes.modified.is_some()
            && let Some(node) = &node
        {
            self.commit(node)?;
        }
        let record = self.store.change(|draft| {
            let mut inode = draft.needed(number)?;
            change(&mut inode);
            draft.put_inode(number, inode.clone());
            Ok(inode)
        })?;
        self.refresh_held(number);
        if let Some(node) = &node {
            let mut state = node.lock();
            if state.inode.content == record.content && state.inode.size == record.size {
                state.inode = record.clone();
            }
        }
        Ok(self.shown(number, &record))
    }

    fn create(
        &self,
        owner: (u32, u32),
        (directory, name): (u64, &[u8]),
        mode: u32,
        flags: u32,
    ) -> Result<Reply, Errno> {
        let flags = OFlags::from_bits_retain(flags);
        match self.make(owner, (directory, name), regular(mode), 0, None) {
            Ok(made) => Ok(self.created(made, flags.contains(OFlags::APPEND))),
            // Another host has made it since the kernel has looked.
            Err(Errno::EXIST) if !flags.contains(OFlags::EXCL) => {
                let (number, _) = self.lookup(directory, name)?;
                match self.open_file(Node(number), flags.bits())? {
                    Reply::Opened(attributes, handle) => Ok(Reply::Created(attributes, handle)),
                    other => Ok(other),
                }
            }
            Err(e) => Err(e),
        }
    }

    fn open_file(&self, node: Node, flags: u32) -> Result<Reply, Errno> {
        let flags = OFlags::from_bits_retain(flags);
        let (appends, truncates) = (flags.contains(OFlags::APPEND), flags.contains(OFlags::TRUNC));
        if !truncates && let Some((handle, record)) = self.open_leased(node.0, appends, Waits)? {
            return Ok(Reply::Opened(self.shown(node.0, &record), Handle(handle)));
        }
        if truncates {
            self.settle(node.0)?;
        }
        let mut record = self.regular(node.0)?;
        if truncates && (record.size > 0 || self.open_node(node.0).is_some()) {
            record = self.resize(node.0, self.open_node(node.0).as_deref(), 0, |_| {})?;
        }
        let (handle, _) = self.open_handle(node.0, record.clone(), appends, true);
        Ok(Reply::Opened(self.shown(node.0, &record), Handle(handle)))
    }

    fn close(&self, handle: Handle) -> Result<Reply, Errno> {
        let (node, _) = self.handle(handle)?;
        // What was written after the last flush, such as by mmap. The last user of a file without a name
        // needs nothing of it.
        let is_last = node.lock().handles == 1;
        if self.close_leased(&node, Waits)? && self.release_leased(&node, handle.0) {
            return Ok(Reply::Done);
        }
        let is_orphan = || {
            self.store
                .change(|draft| draft.inode(node.inode))
                .is_ok_and(|inode| inode.is_none_or(|inode| inode.links == 0))
        };
        let result = if is_last && is_orphan() { Ok(()) } else { self.commit(&node) };
        lock(&self.handles).remove(&handle.0);
        let mut nodes = lock(&self.nodes);
        let mut state = node.lock();
        state.handles -= 1;
        let is_last = state.handles == 0;
        drop(state);
        if is_last {
            nodes.remove(&node.inode);
        }
        drop(nodes);
        if is_last {
            self.abandon(&node);
            if is_orphan() {
                self.reap_behind(node.inode)?;
            }
        }
        result.map(|()| Reply::Done)
    }

    fn allocate_range(&self, handle: Handle, offset: u64, len: u64, mode: u32) -> Result<Reply, Errno> {
        let (node, _) = self.handle(handle)?;
        let mode = FallocateFlags::from_bits(mode).ok_or(Errno::OPNOTSUPP)?;
        let end = offset.checked_add(len).filter(|end| *end <= i64::MAX as u64).ok_or(Errno::FBIG)?;
        let keeps_size = mode.contains(FallocateFlags::KEEP_SIZE);
        match mode.difference(FallocateFlags::KEEP_SIZE) {
            FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE => self.punch(&node, offset..end)?,
            // Space is taken as it is written.
            none if none.is_empty() => {}
            _ => return Err(Errno::OPNOTSUPP),
        }
        if !keeps_size {
            self.commit(&node)?;
            if node.lock().size() < end {
                self.resize(node.inode, Some(&node), end, |_| {})?;
            }
        }
        Ok(Reply::Done)
    }

    fn statistics(&self) -> Result<Reply, Errno> {
        let total = Segments::size(&self.settings, self.segments.count()) / STATISTICS_BLOCK;
        let used = self.segments.in_use(&self.store)?;
        let free = Segments::available(&self.settings, self.segments.count(), &used) / STATISTICS_BLOCK;
        let files_free = u64::from(u32::MAX);
        Ok(Reply::Statistics(Statistics {
            block_size: STATISTICS_BLOCK as u32,
            blocks: total,
            free,
            available: free,
            // The catalog bounds them, and does not count them.
            files: files_free,
            files_free,
            name_max: 255,
        }))
    }

    fn read_xattrs(draft: &mut Draft<'_>, number: u64) -> Result<Xattrs, Errno> {
        match draft.get(&draft.keys().xattrs(number))? {
            Some(bytes) => decode_xattrs(&bytes).ok_or_else(|| unreadable("extended attributes", &bytes)),
            None => Ok(Xattrs::new()),
        }
    }

    fn xattrs(&self, number: u64) -> Result<Xattrs, Errno> {
        if self.seen(number).is_some_and(|record| !record.has_xattrs) {
            return Ok(Xattrs::new());
        }
        self.store.change(|draft| match draft.needed(number)?.has_xattrs {
            true => FsSession::read_xattrs(draft, number),
            false => Ok(Xattrs::new()),
        })
    }

    fn set_xattr(
        &self,
        number: u64,
        name: &[u8],
        value: Option<Vec<u8>>,
        flags: u32,
    ) -> Result<Reply, Errno> {
        let flags = XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        if name.len() > XATTR_NAME {
            return Err(Errno::RANGE);
        }
        if refuses_xattr(name) {
            return Err(Errno::OPNOTSUPP);
        }
        self.settle(number)?;
        self.store.change(|draft| {
            let mut inode = draft.needed(number)?;
            let mut all = FsSession::read_xattrs(draft, number)?;
            match (&value, all.contains_key(name)) {
                (None, false) => return Err(Errno::NODATA),
                (Some(_), true) if flags.contains(XattrFlags::CREATE) => return Err(Errno::EXIST),
                (Some(_), false) if flags.contains(XattrFlags::REPLACE) => return Err(Errno::NODATA),
                (None, true) => drop(all.remove(name)),
                (Some(value), _) => drop(all.insert(name.to_vec(), value.clone())),
            }
            if all.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > XATTRS_MAX {
                return Err(Errno::NOSPC);
            }
            let key = draft.keys().xattrs(number);
            inode.has_xattrs = !all.is_empty();
            inode.changed = self.now();
            match all.is_empty() {
                true => draft.delete(&key),
                false => draft.put(&key, encode_xattrs(&all)),
            }
            draft.put_inode(number, inode);
            Ok(Reply::Done)
        })
    }
}
