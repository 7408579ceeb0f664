//! What was made in memory is written to the catalog: many objects in a transaction, in the order in which they
//! were made.
//!
//! Content of small files is packed: parts of several files are in one stripe.

use super::LeaseState;
use crate::content::by_chunk;
use crate::extent::{Extent, ExtentList};
use crate::node::{Batch, OpenNode, WrittenStripe};
use crate::runs::Runs;
use crate::schema::{EntryRecord, InodeRecord, encode_lease};
use crate::segment::Filler;
use crate::session::FsSession;
use crate::store::{Draft, InodesPut, lock};
use longhaul_fs::{Errno, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How long what was made waits for more, at most.
const DELAY: Duration = Duration::from_millis(500);
/// Objects that are written without waiting for more.
pub(super) const MANY: usize = 256;
/// Objects of one transaction, and about how many bytes they have there: below the limits of a catalog, as a
/// directory is up to four keys, with its lease and its parent.
const OBJECTS: usize = 400;
const BYTES: usize = 512 << 10;
/// Bytes of an object in a transaction besides its name: about two keys, an inode and one extent.
const OBJECT: usize = 500;
/// Content that is written with one transaction, in bytes.
const CONTENT: usize = 16 << 20;
/// Records of one transaction that others may change, and which it therefore expects: directories that they know,
/// and files whose content they move. With its session and its settings below half of what etcd takes, since
/// changes are in transactions within the transaction, and etcd adds up what is at each depth.
const SHARED: usize = 56;
/// Records of a known file that gets content: its inode, and the parts of its map that the content is in.
const SHARED_MAP: usize = 3;
/// The same where snapshots keep what those parts had.
const SHARED_KEPT: usize = 6;
/// Unit of a stripe of small files: all of it is read to read one of them.
const PACKED_UNIT: u64 = 64 << 10;

/// Content of a file that is written.
struct Written {
    node: Arc<OpenNode>,
    batch: Arc<Batch>,
    modified: Option<Time>,
    /// Where its runs begin in what is written together.
    at: Vec<u64>,
    failed: Option<Errno>,
}

/// An object that is written.
struct Item {
    number: u64,
    directory: u64,
    name: Vec<u8>,
    record: InodeRecord,
    is_first: bool,
    /// The name that it had.
    gone: Option<(u64, Vec<u8>)>,
    content: Option<Written>,
}

/// What a transaction writes.
#[derive(Default)]
struct Taken {
    items: Vec<Item>,
    /// Entries and links that directories get.
    counts: BTreeMap<u64, (i64, i64)>,
    /// Of the new ones, their records with what they count afterwards; of others, when they were changed.
    new: BTreeMap<u64, InodeRecord>,
    shared: BTreeMap<u64, Time>,
    /// Records of files that are in the catalog already.
    known: usize,
    upto: u64,
    bytes: usize,
    content: usize,
}

impl Taken {
    fn is_full(&self) -> bool {
        self.items.len() >= OBJECTS
            || self.bytes > BYTES
            || self.content > CONTENT
            || self.shared.len() + self.known >= SHARED
    }

    fn count(&mut self, directory: u64, entries: i64, links: i64) {
        let of = self.counts.entry(directory).or_default();
        *of = (of.0 + entries, of.1 + links);
    }
}

fn plus(number: u64, change: i64) -> u64 {
    number.saturating_add_signed(change)
}

fn counted(record: &mut InodeRecord, counted: (u64, u32), (entries, links): (i64, i64)) {
    record.entries = plus(counted.0, entries);
    record.links = plus(counted.1.into(), links) as u32;
}

/// Content that is written together, as if it were parts of one file.
#[derive(Default)]
struct Packed {
    /// Small runs of files behind each other, and large ones.
    runs: [Runs; 2],
    end: u64,
    /// Bytes that the last run of small ones has room for.
    room: u64,
}

impl Packed {
    /// Adds a run; where it begins.
    fn add(&mut self, bytes: &[u8], pack: u64) -> u64 {
        let len = bytes.len() as u64;
        let is_large = len > pack;
        if len > self.room {
            // Runs do not touch: each is in stripes of its own.
            self.end += 1;
            self.room = if is_large { len } else { pack };
        }
        let at = self.end;
        self.runs[usize::from(is_large)].write(at, bytes);
        self.end += len;
        self.room -= len;
        at
    }
}

fn sorted(mut written: Vec<(Extent, WrittenStripe)>) -> Vec<(Extent, WrittenStripe)> {
    written.sort_by_key(|(extent, _)| extent.offset);
    written
}

impl FsSession {
    /// Writes what was made in memory until the leases end.
    pub(crate) fn write_always(self: &Arc<FsSession>) -> std::io::Result<()> {
        let session = Arc::clone(self);
        std::thread::Builder::new().name("longhaul-write".into()).spawn(move || {
            while !session.leases.lock().ends && !session.store.has_ended() {
                session.write_some();
            }
            session.lose_all();
        })?;
        Ok(())
    }

    /// Waits until something is due, and writes it; or gives leases back.
    fn write_some(&self) {
        let mut state = self.leases.lock();
        if state.queue.is_empty() {
            (state.oldest, state.is_urgent) = (None, false);
            state.done = state.last;
        }
        let back = self.to_give_back(&state);
        if !back.is_empty() {
            state.busy.extend(&back);
            drop(state);
            return self.give_back(&back);
        }
        let is_asked = state.held.values().any(|held| !held.wanted.is_empty());
        let is_due = !state.queue.is_empty()
            && (state.is_urgent
                || is_asked
                || state.queue.len() >= MANY
                || self.dirty.load(Relaxed) > self.memory / 2
                || state.oldest.is_some_and(|oldest| oldest.elapsed() >= DELAY));
        if is_due {
            let taken = self.take(&mut state);
            drop(state);
            return self.write_taken(taken);
        }
        if !state.ends {
            drop(self.leases.wait(state));
        }
    }

    /// Takes what is written next.
    fn take(&self, state: &mut LeaseState) -> Taken {
        let mut taken = Taken { upto: state.taken, ..Taken::default() };
        while !taken.is_full()
            && let Some((order, number)) = state.queue.pop_front()
        {
            taken.upto = order;
            let Some(object) = state.new.get_mut(&number).filter(|object| object.order == order) else {
                continue;
            };
            let content = object.is_closed.then(|| self.take_content(number)).flatten();
            (object.is_closed, object.is_under_way) = (false, content.is_some());
            let name = (object.directory, object.name.clone());
            let before = object.written.replace(name.clone());
            let is_first = before.is_none();
            let gone = before.filter(|before| *before != name);
            let record = match state.held.get(&number) {
                Some(held) => held.record.clone(),
                None => object.record.clone(),
            };
            if !is_first && !record.is_directory() {
                taken.known += match content {
                    Some(_) if self.has_snapshots() => SHARED_KEPT,
                    Some(_) => SHARED_MAP,
                    None => 1,
                };
            }
            let link = i64::from(record.is_directory());
            taken.bytes +=
                OBJECT + 2 * name.1.len() + content.as_ref().map_or(0, |c| 100 * c.batch.runs.iter().count());
            taken.content += content.as_ref().map_or(0, |content| content.batch.runs.bytes());
            if let Some((directory, _)) = &gone {
                taken.count(*directory, -1, 0);
            }
            taken.count(name.0, i64::from(is_first || gone.is_some()), if is_first { link } else { 0 });
            let (directory, name) = name;
            taken.items.push(Item { number, directory, name, record, is_first, gone, content });
            for directory in taken.counts.keys().copied().collect::<Vec<_>>() {
                if !state.new.contains_key(&directory)
                    && let Some(held) = state.held.get(&directory)
                {
                    taken.shared.insert(directory, held.record.modified);
                }
            }
        }
        let listed = taken.items.iter().filter(|item| item.record.is_directory()).map(|item| item.number);
        let new: BTreeSet<u64> = listed.chain(taken.counts.keys().copied()).collect();
        for number in new.into_iter().filter(|number| state.new.contains_key(number)) {
            if let Some(held) = state.held.get(&number) {
                let mut record = held.record.clone();
                counted(&mut record, held.counted, taken.counts.get(&number).copied().unwrap_or_default());
                taken.new.insert(number, record);
            }
        }
        state.taken = taken.upto;
        state.oldest = (!state.queue.is_empty()).then(longhaul_engine::now);
        taken
    }

    /// The content of a closed file that is in memory. It can be read there until it is written.
    fn take_content(&self, number: u64) -> Option<Written> {
        let node = self.open_node(number)?;
        let mut state = node.lock();
        if !state.pending.is_empty() || !state.batches.is_empty() || state.dirty.is_empty() {
            return None;
        }
        let batch = Batch::new(state.next_batch, state.dirty.take());
        state.next_batch += 1;
        state.batches.push_back(Arc::clone(&batch));
        let modified = state.modified;
        drop(state);
        Some(Written { node, batch, modified, at: Vec::new(), failed: None })
    }

    fn write_taken(&self, mut taken: Taken) {
        let stripes = self.write_content(&mut taken);
        let list: ExtentList = stripes.iter().map(|(extent, _)| extent.clone()).collect();
        // What becomes of it is known only when the catalog has answered, or the session has ended.
        let made = loop {
            match self.store.change_surely(|draft| self.put(draft, &taken, &list)) {
                Err(e) if !self.store.has_ended() => {
                    tracing::error!("new names and files are in memory yet: {e}");
                    std::thread::sleep(DELAY);
                }
                made => break made,
            }
        };
        for (_, written) in stripes {
            self.segments.committed(written.segment);
        }
        match made {
            Ok(((), put)) => self.written(&taken, &put),
            Err(_) => self.lose_taken(&taken),
        }
    }

    /// Writes the content to the members, and makes it durable there.
    fn write_content(&self, taken: &mut Taken) -> Vec<(Extent, WrittenStripe)> {
        let mut packed = Packed::default();
        let pack = self.settings.stripe().min(PACKED_UNIT * self.settings.data as u64);
        for content in taken.items.iter_mut().filter_map(|item| item.content.as_mut()) {
            content.at = content.batch.runs.iter().map(|(_, bytes)| packed.add(bytes, pack)).collect();
        }
        match self.write_patiently(&packed.runs) {
            Ok(written) => sorted(written),
            // One of them may be too large for what is free.
            Err(_) => {
                let mut all = Vec::new();
                for content in taken.items.iter_mut().filter_map(|item| item.content.as_mut()) {
                    let mut alone = [Runs::default(), Runs::default()];
                    for (at, (_, bytes)) in content.at.iter().zip(content.batch.runs.iter()) {
                        alone[usize::from(bytes.len() as u64 > pack)].write(*at, bytes);
                    }
                    match self.write_patiently(&alone) {
                        Ok(written) => all.extend(written),
                        Err(e) => content.failed = Some(e),
                    }
                }
                sorted(all)
            }
        }
    }

    /// Writes runs as stripes that are durable. Room for them is taken in the catalog, which is waited for while
    /// it is away.
    fn write_patiently(&self, runs: &[Runs; 2]) -> Result<Vec<(Extent, WrittenStripe)>, Errno> {
        loop {
            match self.write_durably(runs, Filler::Writes) {
                Err(_) if self.store.check_session().is_err() && !self.store.has_ended() => {
                    std::thread::sleep(DELAY);
                }
                result => return result,
            }
        }
    }

    /// The transaction.
    fn put(&self, draft: &mut Draft<'_>, taken: &Taken, list: &ExtentList) -> Result<(), Errno> {
        // If it is sent twice, it is made once.
        match taken.items.iter().max_by_key(|item| item.number) {
            Some(item) if item.is_first => draft.expect_no_inode(item.number),
            Some(item) => drop(draft.inode(item.number)?),
            None => return Ok(()),
        }
        for item in &taken.items {
            draft.carries(item.number);
            let mut record = item.record.clone();
            if !item.is_first && !record.is_directory() {
                // Where its content is may have changed: segments are emptied by any host.
                let known = draft.inode(item.number)?.ok_or(Errno::STALE)?;
                (record.content, record.size, record.stored) = (known.content, known.size, known.stored);
            }
            if item.is_first {
                draft.put_new_inode(item.number, record.clone());
            }
            if let Some(content) = item.content.as_ref().filter(|content| content.failed.is_none()) {
                let mut extents = Vec::new();
                for (at, (offset, bytes)) in content.at.iter().zip(content.batch.runs.iter()) {
                    let found = list.lookup(*at..at + bytes.len() as u64);
                    extents.extend(
                        found
                            .into_iter()
                            .map(|extent| Extent { offset: extent.offset - at + offset, ..extent }),
                    );
                }
                let group: Vec<_> = by_chunk(&extents).into_iter().collect();
                self.overwrite(draft, item.number, &mut record, &group)?;
                record.size = record.size.max(content.batch.runs.end());
                if let Some(modified) = content.modified {
                    record.touch(modified);
                }
            }
            if let Some((directory, name)) = &item.gone {
                draft.delete(&draft.keys().entry(*directory, name));
            }
            if item.is_first || item.gone.is_some() {
                let entry = EntryRecord::new(item.number, record.mode).encode();
                // The lease says that there is no such name.
                draft.put_new(&draft.keys().entry(item.directory, &item.name), entry);
            }
            if item.is_first && record.is_directory() {
                let lease = encode_lease(draft.session());
                draft.put_leased(&draft.keys().lease(item.number), lease);
            }
            draft.put_inode(item.number, record);
        }
        for (number, record) in &taken.new {
            draft.put_inode(*number, record.clone());
        }
        for (number, modified) in &taken.shared {
            let mut record = draft.inode(*number)?.ok_or(Errno::STALE)?;
            let before = (record.entries, record.links);
            counted(&mut record, before, taken.counts.get(number).copied().unwrap_or_default());
            record.touch((*modified).max(record.modified));
            draft.put_inode(*number, record);
        }
        Ok(())
    }

    /// It is in the catalog.
    fn written(&self, taken: &Taken, put: &InodesPut) {
        // Another thread may have read a newer one.
        let newest = |number: &u64| self.store.remembered(*number).or_else(|| put.get(number).cloned());
        let mut guard = self.leases.lock();
        let state = &mut *guard;
        for item in &taken.items {
            let Some(put) = newest(&item.number) else { continue };
            if let Some(object) = state.new.get_mut(&item.number) {
                object.is_under_way = false;
                let now = &mut object.record;
                (now.content, now.size, now.stored) = (put.content.clone(), put.size, put.stored);
                now.stamp = put.stamp;
                if now.modified == item.record.modified {
                    (now.modified, now.changed) = (put.modified, put.changed.max(now.changed));
                }
            }
            if let Some(content) = &item.content {
                self.content_is_written(content, Some(put));
                if let Some(e) = content.failed {
                    // It may have moved meanwhile.
                    let now = state.new.get(&item.number).map_or(item.directory, |object| object.directory);
                    BTreeSet::from([item.directory, now]).into_iter().for_each(|at| state.lose(at, e));
                }
            }
        }
        for number in taken.new.keys().chain(taken.shared.keys()) {
            if let (Some(held), Some(put)) = (state.held.get_mut(number), newest(number)) {
                held.counted = (put.entries, put.links);
                // Others may have changed attributes of one that they know.
                let InodeRecord { entries, links, modified, changed, .. } = held.record;
                if !taken.new.contains_key(number) {
                    held.record = InodeRecord { entries, links, modified, changed, ..put };
                }
            }
        }
        state.done = state.done.max(taken.upto);
        drop(guard);
        self.leases.changed.notify_all();
    }

    /// The content of a file is written, or lost. The caller has the state of the leases.
    fn content_is_written(&self, content: &Written, put: Option<InodeRecord>) {
        let node = &content.node;
        let mut nodes = lock(&self.nodes);
        let mut state = node.lock();
        if let Some(e) = content.failed {
            tracing::error!("inode {}: what was written to it is lost: {e}", node.inode);
            state.lose(e);
        }
        state.batches.retain(|batch| batch.number != content.batch.number);
        self.dirty.fetch_sub(content.batch.runs.bytes(), Relaxed);
        if let Some(put) = put {
            state.inode = put;
            state.chunks.clear();
        }
        if state.modified == content.modified && state.dirty.is_empty() {
            state.modified = None;
        }
        if state.append_base.is_some() {
            state.append_base = if state.dirty.is_empty() { None } else { Some(state.inode.size) };
        }
        let is_forgotten = state.handles == 0 && state.is_clean();
        drop(state);
        if is_forgotten {
            nodes.remove(&node.inode);
        }
        drop(nodes);
        node.changed.notify_all();
    }

    /// The session has ended: what was under way is lost.
    fn lose_taken(&self, taken: &Taken) {
        let mut state = self.leases.lock();
        for item in &taken.items {
            if let Some(content) = &item.content {
                let lost = Written {
                    node: Arc::clone(&content.node),
                    batch: Arc::clone(&content.batch),
                    modified: content.modified,
                    at: Vec::new(),
                    failed: Some(Errno::IO),
                };
                self.content_is_written(&lost, None);
            }
        }
        state.done = state.done.max(taken.upto);
    }

    /// Nothing is written any more.
    fn lose_all(&self) {
        let mut state = self.leases.lock();
        let waiting = state.new.values().filter(|object| object.order > state.done).count();
        if waiting > 0 {
            tracing::error!("{waiting} new files and names are lost, as the session of this mount has ended");
        }
        state.queue.clear();
        state.done = state.last;
        state.ends = true;
        drop(state);
        self.leases.changed.notify_all();
    }

    /// Whether all changes of a directory are durable, and of the whole tree for the top directory: waits for them,
    /// and reports that content was lost.
    pub(crate) fn sync_directory(&self, number: u64) -> Result<(), Errno> {
        self.write_out()?;
        self.leases.lock().hear(number).map_or(Ok(()), Err)
    }
}
