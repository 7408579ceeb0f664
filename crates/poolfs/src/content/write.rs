//! Writing to memory, and from there to the members as stripes.

use crate::content::{BATCHES, GATHERED, PENDING_MAX};
use crate::extent::Extent;
use crate::node::{Batch, NodeState, OpenNode, WrittenStripe};
use crate::quota::Owner;
use crate::runs::Runs;
use crate::schema::InodeRecord;
use crate::segment::{Filler, StripePlaces};
use crate::session::FsSession;
use crate::stripe::{StripePlan, stripe};
use longhaul_block::IoError;
use longhaul_fs::Errno;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard};

/// Bytes of a write that the thread copies which asks, in well below a millisecond.
const AT_ONCE: usize = 128 << 10;

impl FsSession {
    /// Writes to memory, at the end of the file if `appends`; stripes go to the members when there are some.
    pub(crate) fn write(
        &self,
        node: &Arc<OpenNode>,
        offset: u64,
        data: &[u8],
        appends: bool,
    ) -> Result<(), Errno> {
        let (mut state, mut offset) = FsSession::lock_to_write(node, offset, appends);
        if state.is_over_quota {
            drop(state);
            self.commit(node)?;
            (state, offset) = FsSession::lock_to_write(node, offset, appends);
        }
        if !self.has_quota(&state, offset, data.len(), node.inode) {
            drop(state);
            // Others may have removed something.
            self.store.refresh_quotas()?;
            (state, offset) = FsSession::lock_to_write(node, offset, appends);
            if !self.has_quota(&state, offset, data.len(), node.inode) {
                return Err(Errno::DQUOT);
            }
        }
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Errno::FBIG);
        }
        if appends && state.append_base.is_none() {
            state.append_base = Some(state.inode.size);
        }
        let dirty = self.put_in_memory(&mut state, offset, data);
        let (is_much, pending) = (dirty >= self.gathered(), state.pending.len());
        // What is appended is not written before it is known where the file ends.
        let may_flush = state.append_base.is_none();
        drop(state);
        if pending > PENDING_MAX {
            return self.commit(node);
        }
        if self.dirty.load(Relaxed) > self.memory {
            // Much of it may be of small files that are closed.
            self.write_out()?;
        }
        if self.dirty.load(Relaxed) > self.memory || is_much && !may_flush {
            return if may_flush { self.write_batch(node, true).map(drop) } else { self.commit(node) };
        }
        if is_much { self.write_batch(node, false).map(drop) } else { Ok(()) }
    }

    /// The state of a file that is written to, and where: what is appended waits for a commit.
    fn lock_to_write(node: &OpenNode, offset: u64, appends: bool) -> (MutexGuard<'_, NodeState>, u64) {
        let mut state = node.lock();
        while appends && state.holds_appends {
            state = node.wait(state);
        }
        let offset = if appends { state.size() } else { offset };
        (state, offset)
    }

    /// Whether the owners of a file may have what a write adds to it, as far as that is known before the content is
    /// committed.
    fn has_quota(&self, state: &NodeState, offset: u64, len: usize, inode: u64) -> bool {
        let InodeRecord { uid, gid, size, .. } = state.inode;
        let Some(left) = self.store.quotas().left(Owner::both(uid, gid), inode) else { return true };
        let range = offset..offset.saturating_add(len as u64);
        range.end.max(state.size()).saturating_sub(size) <= left
            || state.unsaved_with(&range, !self.leases.takes()) <= left
    }

    /// Bytes of a file in memory from which on whole stripes are written.
    fn gathered(&self) -> usize {
        GATHERED.min(self.memory / 4)
    }

    /// Keeps what is written in memory; bytes of the file that are there.
    fn put_in_memory(&self, state: &mut NodeState, offset: u64, data: &[u8]) -> usize {
        let before = state.dirty.bytes();
        state.dirty.write(offset, data);
        let dirty = state.dirty.bytes();
        state.modified = Some(self.now());
        // What is written over is not counted twice.
        self.dirty.fetch_add(dirty - before, Relaxed);
        dirty
    }

    /// Writes to memory, not at the end, if it is little and nothing has to be written to the members for it;
    /// whether that was done.
    pub(crate) fn write_at_once(&self, node: &OpenNode, offset: u64, data: &[u8]) -> bool {
        let mut state = node.lock();
        let fits = data.len() <= AT_ONCE
            && !state.is_over_quota
            && self.has_quota(&state, offset, data.len(), node.inode)
            && state.dirty.bytes() + data.len() < self.gathered()
            && state.pending.len() <= PENDING_MAX
            && self.dirty.load(Relaxed) + data.len() <= self.memory
            && offset.checked_add(data.len() as u64).is_some_and(|end| end <= i64::MAX as u64);
        if fits {
            self.put_in_memory(&mut state, offset, data);
        }
        fits
    }

    /// Writes what is in memory to the members: all of it, or whole stripes. The number of the next batch.
    pub(crate) fn write_batch(&self, node: &OpenNode, all: bool) -> Result<u64, Errno> {
        let mut state = node.lock();
        while state.batches.len() >= BATCHES.max(self.memory / 2 / GATHERED) {
            state = node.wait(state);
        }
        let stripe = self.settings.stripe() as usize;
        let runs = match all {
            true => state.dirty.take(),
            false if state.dirty.bytes() >= self.gathered() => {
                state.dirty.take_aligned(stripe, self.gathered())
            }
            // Of those that have waited, the first one has taken it.
            false => Runs::default(),
        };
        if runs.is_empty() {
            return Ok(state.next_batch);
        }
        let batch = Arc::new(Batch { number: state.next_batch, runs });
        state.next_batch += 1;
        state.batches.push_back(Arc::clone(&batch));
        drop(state);
        let written = self.write_runs(&batch.runs, Filler::Writes, false);
        let mut state = node.lock();
        // Later ones take the place of earlier ones.
        while state.batches.front().is_some_and(|first| first.number < batch.number) {
            state = node.wait(state);
        }
        state.batches.pop_front();
        self.dirty.fetch_sub(batch.runs.bytes(), Relaxed);
        let result = written.map(|extents| {
            for segment in state.add_pending(extents) {
                self.segments.committed(segment);
            }
            state.next_batch
        });
        drop(state);
        node.changed.notify_all();
        result
    }

    /// Writes runs as stripes; what is packed takes not much more room than it has bytes.
    pub(crate) fn write_runs(
        &self,
        runs: &Runs,
        filler: Filler,
        is_packed: bool,
    ) -> Result<Vec<(Extent, WrittenStripe)>, Errno> {
        let mut todo: Vec<(u64, &[u8])> = runs.iter().collect();
        let mut done = Vec::new();
        let give_up = |done: Vec<(Extent, WrittenStripe)>, e: Errno| {
            done.iter().for_each(|(_, written)| self.segments.committed(written.segment));
            Err(e)
        };
        let mut last = Errno::IO;
        // Each time that writes fail, a member is down.
        for _ in 0..=self.members.count() {
            let (failed, error) = self.write_stripes(&todo, (filler, is_packed), &mut done);
            todo = failed;
            match error {
                Some(e @ (Errno::NOSPC | Errno::IO)) if todo.is_empty() => return give_up(done, e),
                Some(e) => last = e,
                None => return Ok(done),
            }
        }
        give_up(done, last)
    }

    /// Writes content as stripes, all at the same time. What was written is added to `done`; what could not
    /// be is returned with the error, and nothing if trying again does not help.
    fn write_stripes<'c>(
        &self,
        content: &[(u64, &'c [u8])],
        (filler, is_packed): (Filler, bool),
        done: &mut Vec<(Extent, WrittenStripe)>,
    ) -> (Vec<(u64, &'c [u8])>, Option<Errno>) {
        let live = self.members.live();
        let count = live.iter().filter(|is_live| **is_live).count();
        let (mut under_way, mut error, mut for_good) = (Vec::new(), None, false);
        'all: for (offset, bytes) in content {
            let (mut offset, mut bytes) = (*offset, *bytes);
            while !bytes.is_empty() {
                let plan = match is_packed {
                    true => StripePlan::packed(&self.settings, count, bytes.len() as u64),
                    false => StripePlan::new(&self.settings, count, bytes.len() as u64),
                };
                let Some(plan) = plan else {
                    tracing::error!("too many members are missing: {} of {}", live.len() - count, live.len());
                    (error, for_good) = (Some(Errno::IO), true);
                    break 'all;
                };
                let plan = plan.within(self.segments.left(filler, &live, plan.units()));
                let (now, rest) = bytes.split_at(bytes.len().min(plan.room() as usize));
                let places = match self.allocate(&live, &plan, filler) {
                    Ok(places) => places,
                    Err(e) => {
                        (error, for_good) = (Some(e), true);
                        break 'all;
                    }
                };
                let units = plan.encode(now, &self.units);
                let stripe = Arc::new(stripe(&plan, &places, &units));
                let writes: Vec<_> = places
                    .iter()
                    .zip(units)
                    .map(|((member, at), unit)| (*member, self.members.write(*member, *at, unit)))
                    .collect();
                under_way.push((offset, now, stripe, writes));
                offset += now.len() as u64;
                bytes = rest;
            }
        }
        let mut failed = Vec::new();
        for (offset, content, stripe, writes) in under_way {
            let segment = stripe.segment(self.settings.segment);
            let mut generations = Vec::new();
            let mut error_here = None;
            for (member, pending) in writes {
                match self.members.wait(pending) {
                    Ok(generation) => generations.push((member, generation)),
                    Err(IoError::NoSpace) => error_here = Some(Errno::NOSPC),
                    Err(_) => error_here = error_here.or(Some(Errno::IO)),
                }
            }
            match error_here {
                None => {
                    let extent = Extent { offset, len: content.len() as u64, skip: 0, stripe };
                    done.push((extent, WrittenStripe { segment, generations }));
                }
                Some(e) => {
                    self.segments.committed(segment);
                    failed.push((offset, content));
                    error = error.or(Some(e));
                }
            }
        }
        if for_good { (Vec::new(), error) } else { (failed, error) }
    }

    fn allocate(&self, live: &[bool], plan: &StripePlan, filler: Filler) -> Result<StripePlaces, Errno> {
        let place = || self.segments.allocate(&self.store, live, plan.units(), plan.unit, filler);
        match place() {
            Err(Errno::NOSPC) => {}
            result => return result,
        }
        // What was removed may be free already, but for the books.
        self.clean()?;
        let begun = longhaul_engine::now();
        loop {
            match place() {
                Err(Errno::NOSPC) if filler == Filler::Writes => {}
                result => return result,
            }
            if !self.make_room(begun)? {
                return place();
            }
        }
    }
}
