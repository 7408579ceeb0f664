//! Commits: what was written becomes durable, and visible to other hosts.

use crate::content::write::Share;
use crate::content::{
    COMMITS, FRAGMENTED, GROUP_CHUNKS, GROUP_EXTENTS, MOVED, PREPARE, PUT_BYTES, SPLIT, by_chunk,
    without_privileges,
};
use crate::extent::{Extent, ExtentList};
use crate::lease::Waits;
use crate::node::{OpenNode, WrittenStripe, key_of};
use crate::relocate::{COPIED, FileExtent, MapOf, in_parts};
use crate::runs::Runs;
use crate::schema::{Content, INLINE, InodeRecord, decode_extents, encode_extents, unreadable};
use crate::segment::Filler;
use crate::session::FsSession;
use crate::store::{Draft, lock};
use longhaul_catalog::Revision;
use longhaul_fs::{Errno, Time};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Transactions of a commit: extents by chunk.
type Groups = Vec<Vec<(u64, Vec<Extent>)>>;

fn groups(extents: &[Extent]) -> Groups {
    let mut groups: Groups = vec![Vec::new()];
    let mut count = 0;
    for (chunk, extents) in by_chunk(extents) {
        let last = groups.last().map_or(0, Vec::len);
        if last > 0 && (last >= GROUP_CHUNKS || count + extents.len() > GROUP_EXTENTS) {
            groups.push(Vec::new());
            count = 0;
        }
        count += extents.len();
        if let Some(group) = groups.last_mut() {
            group.push((chunk, extents));
        }
    }
    groups
}

/// Chunks by number.
type Lists = Vec<(u64, ExtentList)>;

/// What a transaction has put.
struct Installed {
    /// The stamp of the inode that it has replaced.
    before: (u64, u64),
    inode: InodeRecord,
    chunks: Lists,
    /// Chunks that are in many pieces.
    large: Vec<ExtentList>,
}

impl FsSession {
    /// Makes what was written to a file durable, and visible to other hosts.
    pub(crate) fn commit(&self, node: &Arc<OpenNode>) -> Result<(), Errno> {
        // What is small is written with the name.
        if self.close_leased(node, Waits)? {
            self.write_out()?;
        }
        if !node.lock().is_clean() {
            self.settle(node.inode)?;
        }
        let _one = lock(&node.commits);
        self.commit_alone(node)
    }

    /// The caller holds `commits`.
    pub(crate) fn commit_alone(&self, node: &OpenNode) -> Result<(), Errno> {
        for _ in 0..COMMITS {
            let mut state = node.lock();
            if state.is_clean() {
                return Ok(());
            }
            state.holds_appends = true;
            drop(state);
            let committed = self.write_all(node).and_then(|()| self.commit_pending(node));
            let mut state = node.lock();
            state.holds_appends = false;
            state.committing.clear();
            if committed == Ok(true) {
                state.append_base = None;
            }
            state.is_over_quota = committed == Err(Errno::DQUOT);
            drop(state);
            node.changed.notify_all();
            match committed {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(e) => return Err(e),
            }
        }
        tracing::error!(
            "inode {}: it was changed by others, or lost by members, {COMMITS} times",
            node.inode
        );
        Err(Errno::IO)
    }

    /// Writes all that is in memory now to the members.
    fn write_all(&self, node: &OpenNode) -> Result<(), Errno> {
        let next = self.write_batch(node, Share::All)?;
        let mut state = node.lock();
        while state.batches.front().is_some_and(|first| first.number < next) {
            state = node.wait(state);
        }
        Ok(())
    }

    /// Puts the extents that wait into the map; false if that has to be tried again.
    fn commit_pending(&self, node: &OpenNode) -> Result<bool, Errno> {
        let mut state = node.lock();
        let extents: Vec<Extent> = state.pending.iter().cloned().collect();
        let (base, modified) = (state.append_base, state.modified);
        let at = self.store.settings_at();
        let stripes: HashSet<usize> = extents.iter().map(|extent| key_of(&extent.stripe)).collect();
        let (keys, written): (Vec<usize>, Vec<WrittenStripe>) =
            stripes.iter().filter_map(|key| Some((*key, state.written.get(key)?.clone()))).unzip();
        state.committing.clone_from(&stripes);
        drop(state);
        let durable: HashMap<usize, bool> = keys.into_iter().zip(self.flush_written(&written)).collect();
        let is_lost = |extent: &&Extent| durable.get(&key_of(&extent.stripe)) == Some(&false);
        let lost: Vec<Extent> = extents.iter().filter(is_lost).cloned().collect();
        if !lost.is_empty() {
            self.rescue(node, &lost)?;
            return Ok(false);
        }
        let end = extents.last().map_or(0, Extent::end);
        let mut groups: VecDeque<_> = groups(&extents).into();
        let (mut base, mut fragmented) = (base, Vec::new());
        while let Some(mut group) = groups.pop_front() {
            let end = group.last().map_or(end, |(_, extents)| extents.last().map_or(0, Extent::end));
            match self.install(node.inode, &group, end, (base, modified), at) {
                Ok(Installed { before, inode, chunks, large }) => {
                    // What is appended between two commits is of one transaction.
                    base = None;
                    fragmented.extend(large);
                    let mut state = node.lock();
                    match state.inode.stamp == before {
                        true => (state.inode, state.changes) = (inode, state.changes + 1),
                        // Another host has changed the file, or content of it was moved.
                        false => state.replace(inode),
                    }
                    for (chunk, list) in chunks {
                        state.chunks.insert(chunk, Arc::new(list));
                    }
                }
                // A member has moved: what was written is written there if it is not.
                Err(MOVED) => return Ok(false),
                Err(SPLIT) if group.len() > 1 => {
                    let rest = group.split_off(group.len() / 2);
                    groups.push_front(rest);
                    groups.push_front(group);
                }
                Err(PREPARE) => {
                    self.prepare(node, base)?;
                    return Ok(false);
                }
                Err(e) => return Err(e),
            }
        }
        let mut state = node.lock();
        state.pending.retain(|extent| !stripes.contains(&key_of(&extent.stripe)));
        for written in stripes.iter().filter_map(|key| state.written.remove(key)).collect::<Vec<_>>() {
            self.segments.committed(written.segment);
        }
        if state.modified == modified {
            state.modified = None;
        }
        drop(state);
        for list in fragmented {
            self.gather(node.inode, &list);
        }
        self.gather_kept();
        Ok(true)
    }

    /// Makes stripes durable, and says of each whether it is.
    pub(crate) fn flush_written<'w>(
        &self,
        stripes: impl IntoIterator<Item = &'w WrittenStripe>,
    ) -> Vec<bool> {
        let stripes: Vec<&WrittenStripe> = stripes.into_iter().collect();
        let used: BTreeSet<u8> =
            stripes.iter().flat_map(|one| one.generations.iter().map(|(member, _)| *member)).collect();
        let durable = self.members.flush_all(used);
        let is_durable = |(member, at): &(u8, u64)| durable.get(member) == Some(&Some(*at));
        stripes.into_iter().map(|one| one.generations.iter().all(is_durable)).collect()
    }

    /// Writes a part of a file anew that is in many pieces: its record would become too large. If that fails
    /// now, it is tried with the next commit.
    fn gather(&self, inode: u64, list: &ExtentList) {
        let all: Vec<FileExtent> = list.iter().map(|extent| (MapOf::file(inode), extent.clone())).collect();
        let mut moved = Ok(());
        for part in in_parts(&all, COPIED) {
            moved = moved.and(self.relocate(part, Filler::Writes).map(drop));
        }
        if let Err(e) = moved {
            tracing::debug!("inode {inode} stays in many pieces: {e}");
        }
    }

    /// One transaction of a commit.
    fn install(
        &self,
        number: u64,
        group: &[(u64, Vec<Extent>)],
        end: u64,
        (base, modified): (Option<u64>, Option<Time>),
        at: Revision,
    ) -> Result<Installed, Errno> {
        // What is kept for a snapshot takes as many records again.
        if group.len() > GROUP_CHUNKS / 2 && self.has_snapshots() {
            return Err(SPLIT);
        }
        self.store.change(|draft| {
            self.expect_members(draft, at)?;
            let mut inode = draft.needed(number)?;
            if inode.trims || base.is_some_and(|base| base != inode.size) {
                return Err(PREPARE);
            }
            let before = inode.stamp;
            let (chunks, large) = self.overwrite(draft, number, &mut inode, group)?;
            inode.size = inode.size.max(end);
            inode.mode = without_privileges(inode.mode);
            inode.touch(modified.unwrap_or_else(|| self.now()));
            draft.put_inode(number, inode.clone());
            Ok(Installed { before, inode, chunks, large })
        })
    }

    pub(crate) fn overwrite(
        &self,
        draft: &mut Draft<'_>,
        number: u64,
        inode: &mut InodeRecord,
        group: &[(u64, Vec<Extent>)],
    ) -> Result<(Lists, Vec<ExtentList>), Errno> {
        let added = group.iter().flat_map(|(_, extents)| extents);
        for extent in added.clone() {
            draft.account().add(extent.stripe.segment(self.settings.segment), extent.len);
            inode.stored += extent.len;
        }
        let mut removed = Vec::new();
        let mut lists: BTreeMap<u64, ExtentList> = BTreeMap::new();
        match &mut inode.content {
            Content::Inline(list) if list.len() + added.clone().count() <= INLINE => {
                removed.extend(added.clone().flat_map(|extent| list.overwrite(extent.clone())));
                let added: Vec<Extent> = added.cloned().collect();
                self.replace(draft, number, inode, &added, &removed)?;
                return Ok(Default::default());
            }
            Content::Inline(list) => {
                let all: Vec<Extent> = list.iter().cloned().collect();
                for (chunk, extents) in by_chunk(&all) {
                    lists.insert(chunk, extents.into_iter().collect());
                }
                inode.content = Content::Chunks;
            }
            Content::Chunks => {
                let keys: Vec<Vec<u8>> =
                    group.iter().map(|(chunk, _)| draft.keys().chunk(number, *chunk)).collect();
                for entry in draft.get_all(&keys)? {
                    let list = decode_extents(&entry.value)
                        .ok_or_else(|| unreadable(&format!("a chunk of inode {number}"), &entry.value))?;
                    if let Some(at) = keys.iter().position(|key| *key == entry.key) {
                        lists.insert(group[at].0, list);
                    }
                }
            }
            Content::None | Content::Link(_) => return Err(Errno::INVAL),
        }
        for (chunk, extents) in group {
            let list = lists.entry(*chunk).or_default();
            removed.extend(extents.iter().flat_map(|extent| list.overwrite(extent.clone())));
        }
        let (mut put, mut large) = (0, Vec::new());
        for (chunk, list) in &lists {
            let value = encode_extents(list);
            put += value.len();
            if value.len() >= FRAGMENTED {
                large.push(list.clone());
            }
            draft.put(&draft.keys().chunk(number, *chunk), value);
        }
        let added: Vec<Extent> = group.iter().flat_map(|(_, extents)| extents.iter().cloned()).collect();
        put += self.replace(draft, number, inode, &added, &removed)?;
        if put > PUT_BYTES && group.len() > 1 {
            return Err(SPLIT);
        }
        Ok((lists.into_iter().collect(), large))
    }

    /// What a transaction of a commit needs first: chunks behind the end are removed, and what was appended
    /// follows what another host has appended.
    fn prepare(&self, node: &OpenNode, base: Option<u64>) -> Result<(), Errno> {
        self.trim(node.inode)?;
        let now = self.store.inode(node.inode)?.ok_or(Errno::STALE)?;
        let mut state = node.lock();
        if let Some(base) = base {
            let shift = now.size.wrapping_sub(base).cast_signed();
            state.pending.shift(base, shift);
            state.dirty.shift(base, shift);
            state.append_base = Some(now.size);
        }
        state.replace(now);
        Ok(())
    }

    /// Writes stripes again that members have lost: what they had is read, and made from parity.
    fn rescue(&self, node: &OpenNode, lost: &[Extent]) -> Result<(), Errno> {
        tracing::warn!(
            "inode {}: members have lost {} extents that were written: writing them again",
            node.inode,
            lost.len()
        );
        for extent in lost {
            let mut bytes = vec![0; extent.len as usize];
            let one: ExtentList = [extent.clone()].into_iter().collect();
            self.read_extents(&one, extent.offset, &mut bytes).map_err(|_| Errno::IO)?;
            let mut runs = Runs::default();
            runs.write(extent.offset, &bytes);
            let again = self.write_runs(&runs, Filler::Writes, false)?;
            let key = key_of(&extent.stripe);
            let mut state = node.lock();
            state.committing.remove(&key);
            // Where something newer was written since, that stays.
            let left: Vec<Extent> = state
                .pending
                .lookup(extent.offset..extent.end())
                .into_iter()
                .filter(|left| key_of(&left.stripe) == key)
                .collect();
            let mut removed = Vec::new();
            for (new, written) in again {
                state.written.insert(key_of(&new.stripe), written);
                let all: ExtentList = [new.clone()].into_iter().collect();
                let parts: Vec<Extent> =
                    left.iter().flat_map(|left| all.lookup(left.offset..left.end())).collect();
                if parts.is_empty() {
                    removed.push(new);
                }
                for part in parts {
                    removed.extend(state.pending.overwrite(part));
                }
            }
            for segment in state.given_up(&removed) {
                self.segments.committed(segment);
            }
        }
        Ok(())
    }

    /// Forgets what was written to a file and could not be committed, when it is closed.
    pub(crate) fn abandon(&self, node: &OpenNode) {
        let mut state = node.lock();
        while !state.batches.is_empty() {
            state = node.wait(state);
        }
        self.dirty.fetch_sub(state.dirty.take().bytes(), Relaxed);
        state.pending = ExtentList::default();
        state.committing.clear();
        for (_, written) in std::mem::take(&mut state.written) {
            self.segments.committed(written.segment);
        }
        (state.modified, state.append_base, state.is_over_quota) = (None, None, false);
    }
}
