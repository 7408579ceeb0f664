//! Writing to memory, and from there to the members as stripes.

use crate::content::{BATCHES, GATHERED, PENDING_MAX};
use crate::extent::Extent;
use crate::node::{Batch, NodeState, OpenNode, WrittenStripe};
use crate::quota::Owner;
use crate::runs::{Runs, Span};
use crate::schema::InodeRecord;
use crate::segment::{Filler, StripePlaces, WantedStripe};
use crate::session::FsSession;
use crate::stripe::{StripePlan, buffer, stripe};
use longhaul_block::IoError;
use longhaul_engine::Buf;
use longhaul_engine::buf::BUF_MAX;
use longhaul_fs::Errno;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard};

/// Bytes of a write that the thread copies which asks, in well below a millisecond.
const AT_ONCE: usize = 128 << 10;

/// Bytes of a write from which on it is kept in one buffer.
const LARGE_WRITE: usize = 512 << 10;

/// What of the content of a file that is in memory is to be written to the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// Whole stripes, if there is much.
    Gathered,
    /// Whole stripes, until memory is free; what is in none if nothing else frees any.
    Room,
    /// All of it.
    All,
}

/// What was written, on its way to memory.
enum NewContent<'d> {
    Small(&'d [u8]),
    Large(Buf),
}

impl FsSession {
    /// Writes to memory, at the end of the file if `appends`; stripes go to the members when there are some.
    pub(crate) fn write(
        &self,
        node: &Arc<OpenNode>,
        offset: u64,
        data: &[u8],
        appends: bool,
    ) -> Result<(), Errno> {
        let content = self.kept(data);
        let (mut state, mut offset) = FsSession::lock_to_write(node, offset, appends);
        if state.is_over_quota {
            drop(state);
            self.commit(node)?;
            (state, offset) = FsSession::lock_to_write(node, offset, appends);
        }
        let mut read_at = None;
        while !self.has_quota(&state, offset, data.len(), node.inode) {
            drop(state);
            if read_at.is_some_and(|done| !self.store.reaper.wait_after(done)) {
                return Err(Errno::DQUOT);
            }
            // Others may have removed something.
            read_at = Some(self.store.reaper.done());
            self.store.refresh_quotas()?;
            (state, offset) = FsSession::lock_to_write(node, offset, appends);
        }
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Errno::FBIG);
        }
        if appends && state.append_base.is_none() {
            state.append_base = Some(state.inode.size);
        }
        let dirty = self.put_in_memory(&mut state, offset, content);
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
            return if may_flush { self.write_batch(node, Share::Room).map(drop) } else { self.commit(node) };
        }
        if is_much { self.write_batch(node, Share::Gathered).map(drop) } else { Ok(()) }
    }

    /// A copy of a large write, which is made before its file is locked: other writers of the file do not wait for it.
    fn kept<'d>(&self, data: &'d [u8]) -> NewContent<'d> {
        if !(LARGE_WRITE..=BUF_MAX).contains(&data.len()) {
            return NewContent::Small(data);
        }
        let mut copy = buffer(&self.units, data.len());
        copy.copy_from_slice(data);
        NewContent::Large(copy.freeze())
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
    fn put_in_memory(&self, state: &mut NodeState, offset: u64, content: NewContent<'_>) -> usize {
        let before = state.dirty.bytes();
        match content {
            NewContent::Small(data) => state.dirty.write(offset, data),
            NewContent::Large(data) => state.dirty.keep(offset, data),
        }
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
            self.put_in_memory(&mut state, offset, NewContent::Small(data));
        }
        fits
    }

    /// Writes content that is in memory to the members. The number of the next batch.
    pub(crate) fn write_batch(&self, node: &OpenNode, share: Share) -> Result<u64, Errno> {
        let mut state = node.lock();
        let under_way =
            |state: &NodeState| state.batches.iter().filter(|batch| !batch.is_written.load(Relaxed)).count();
        while under_way(&state) >= BATCHES.max(self.memory / 2 / GATHERED) {
            state = node.wait(state);
        }
        let stripe = self.settings.stripe() as usize;
        let runs = match share {
            Share::All => state.dirty.take(),
            Share::Gathered if state.dirty.bytes() >= self.gathered() => {
                state.dirty.take_aligned(stripe, self.gathered())
            }
            // Of those that have waited, the first one has taken it.
            Share::Gathered => Runs::default(),
            Share::Room => loop {
                let whole = state.dirty.take_aligned(stripe, self.gathered());
                if !whole.is_empty() || self.dirty.load(Relaxed) <= self.memory {
                    break whole;
                }
                if state.batches.is_empty() {
                    break state.dirty.take();
                }
                state = node.wait(state);
            },
        };
        if runs.is_empty() {
            return Ok(state.next_batch);
        }
        let batch = Batch::new(state.next_batch, runs);
        state.next_batch += 1;
        state.batches.push_back(Arc::clone(&batch));
        drop(state);
        let written = self.write_runs(&batch.runs, Filler::Writes, false);
        let mut state = node.lock();
        batch.is_written.store(true, Relaxed);
        node.changed.notify_all();
        // Later ones take the place of earlier ones.
        while state.batches.front().is_some_and(|first| first.number < batch.number) {
            state = node.wait(state);
        }
        state.batches.pop_front();
        self.dirty.fetch_sub(batch.runs.bytes(), Relaxed);
        let result = written.inspect_err(|e| state.lose(*e)).map(|extents| {
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
        let mut todo = runs.spans();
        let mut done = Vec::new();
        let give_up = |done: Vec<(Extent, WrittenStripe)>, e: Errno| {
            done.iter().for_each(|(_, written)| self.segments.committed(written.segment));
            Err(e)
        };
        let mut last = Errno::IO;
        // Each time that writes fail, a member is down.
        for _ in 0..=self.members.count() {
            let (failed, error) = self.write_stripes(todo, (filler, is_packed), &mut done);
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
        content: Vec<Span<'c>>,
        (filler, is_packed): (Filler, bool),
        done: &mut Vec<(Extent, WrittenStripe)>,
    ) -> (Vec<Span<'c>>, Option<Errno>) {
        let count = |live: &[bool]| live.iter().filter(|is_live| **is_live).count();
        let before = self.store.settings_at();
        let mut live = self.members.live();
        // They may not be missing at another place, of which this host has not heard.
        if StripePlan::new(&self.settings, count(&live), 1).is_none() && self.have_moved_since(before) {
            live = self.members.live();
        }
        let count = count(&live);
        let (mut under_way, mut error, mut for_good) = (Vec::new(), None, false);
        'all: for mut span in content {
            while span.len() > 0 {
                let plan = match is_packed {
                    true => StripePlan::packed(&self.settings, count, span.len() as u64),
                    false => StripePlan::new(&self.settings, count, span.len() as u64),
                };
                let Some(plan) = plan else {
                    tracing::error!("too many members are missing: {} of {}", live.len() - count, live.len());
                    (error, for_good) = (Some(Errno::IO), true);
                    break 'all;
                };
                let plan = plan.within(self.segments.left(filler, &live, plan.units()));
                let now = span.take(plan.room() as usize);
                let number = (now.len() as u64 == plan.room()).then(|| now.offset / plan.room());
                let wanted = WantedStripe { units: plan.units(), unit: plan.unit, number, filler };
                let places = match self.allocate(&live, &wanted) {
                    Ok(places) => places,
                    Err(e) => {
                        (error, for_good) = (Some(e), true);
                        break 'all;
                    }
                };
                let units = plan.encode(now.clone(), &self.units);
                let stripe = Arc::new(stripe(&plan, &places, &units));
                let writes: Vec<_> = places
                    .iter()
                    .zip(units)
                    .map(|((member, at), unit)| (*member, self.members.write(*member, *at, unit)))
                    .collect();
                under_way.push((now, stripe, writes));
            }
        }
        let mut failed = Vec::new();
        for (content, stripe, writes) in under_way {
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
                    let extent =
                        Extent { offset: content.offset, len: content.len() as u64, skip: 0, stripe };
                    done.push((extent, WrittenStripe { segment, generations }));
                }
                Some(e) => {
                    self.segments.committed(segment);
                    failed.push(content);
                    error = error.or(Some(e));
                }
            }
        }
        if for_good { (Vec::new(), error) } else { (failed, error) }
    }

    fn allocate(&self, live: &[bool], wanted: &WantedStripe) -> Result<StripePlaces, Errno> {
        let place = || self.segments.allocate(&self.store, live, wanted);
        let begun = longhaul_engine::now();
        let mut cleaned_at = None;
        loop {
            match place() {
                Err(Errno::NOSPC) => {}
                result => return result,
            }
            if cleaned_at.is_some_and(|done| !self.store.reaper.wait_after(done)) {
                break;
            }
            // What was removed may be free already, but for the books.
            cleaned_at = Some(self.store.reaper.done());
            self.clean()?;
        }
        if wanted.filler != Filler::Writes {
            return Err(Errno::NOSPC);
        }
        loop {
            let is_last = !self.make_room(begun)?;
            match place() {
                Err(Errno::NOSPC) if !is_last => {}
                result => return result,
            }
        }
    }
}
