//! Writes.
//!
//! A write is split by stripes, and each part joins the queue of its stripe, which one writer task
//! empties:
//!
//! - without redundancy nothing can become inconsistent: a write goes directly to its members, in
//!   any order with others, and there is no queue;
//! - full-stripe writes, and all writes of mirrors, go directly to their members, with the intent
//!   bit of their region set, and are acknowledged when they have completed;
//! - partial writes of stripes with parity are acknowledged once they are durable in the journal,
//!   which costs one round trip, and are written in place afterwards. While a member is missing,
//!   full-stripe writes take this way too, since some of their data exists only as parity.

use crate::core::{Core, HaltReason};
use crate::format::geometry::Role;
use crate::format::record::{COVERS_MAX, Piece};
use crate::io::journal::DurableRecord;
use crate::io::locks::Permit;
use crate::io::overlay::Overlay;
use crate::io::plan::{MemberWrite, Segment};
use crate::io::rows::{LogState, QueuedWrite, WriteQueue};
use crate::without::Mechanism;
use futures_util::future::{join, join_all, try_join_all};
use longhaul_block::{IoError, IoResult, WriteFlags};
use longhaul_engine::{Buf, now, spawn, timeout};
use std::rc::Rc;

/// Full-stripe writes of zeroes under way at a time.
const ZERO_ROWS: usize = 32;
/// A writer counts as sequential if its next write comes within this share of a round trip (or
/// within [`Options::gather`](crate::Options::gather)). A stripe waits for the rest of its data for
/// at most `GAPS` of these times, or one round trip.
const GAP_SHARE: u32 = 4;
const GAPS: u32 = 10;
/// Bytes of the zero buffer that all writes of zeroes share.
const ZERO_BUF: u64 = 1 << 20;

impl Core {
    /// Writes; `room` is the write's share of the memory budget until it is in place.
    pub(crate) async fn write(self: &Rc<Self>, offset: u64, src: Buf) -> IoResult<()> {
        self.check_running()?;
        self.io.begin_request();
        self.io.shortage.check()?;
        let room = Rc::new(self.io.budget.take(src.len()).await);
        // The array may have halted meanwhile, and writer tasks end with it.
        self.check_running()?;
        if self.geometry().redundancy() == 0 {
            return self.write_through(offset, &src).await;
        }
        let continues = self.io.rows.continues(offset, src.len() as u64);
        let parts = self.split(offset, &src);
        let writes = parts
            .into_iter()
            .map(|(row, pieces)| self.write_row(row, pieces, continues, Some(Rc::clone(&room))));
        let acks: Vec<_> = writes.collect();
        for result in join_all(acks).await {
            result?;
        }
        Ok(())
    }

    /// Writes without redundancy: each range has one member.
    async fn write_through(self: &Rc<Self>, offset: u64, src: &Buf) -> IoResult<()> {
        let mut writes = Vec::new();
        for (row, pieces) in self.split(offset, src) {
            for Piece { role, at, bytes } in pieces {
                let at = self.geometry().unit_at(row) + at;
                writes.extend(self.geometry().homes(row, role).map(|home| (home, at, bytes.clone())));
            }
        }
        let writes = writes.into_iter().map(async |(home, at, bytes)| {
            (home, self.members[home].write(at, bytes, WriteFlags::default()).await)
        });
        let (mut results, mut full) = (join_all(writes).await, Ok(()));
        for (_, result) in &mut results {
            if result.as_ref().is_err_and(|e| e.error == IoError::NoSpace) {
                full = std::mem::replace(result, Ok(())).map_err(IoError::from);
            }
        }
        self.settle(results).await?;
        full
    }

    /// The pieces of a range, by stripe.
    fn split(&self, offset: u64, src: &Buf) -> Vec<(u64, Vec<Piece>)> {
        let mut parts: Vec<(u64, Vec<Piece>)> = Vec::new();
        let mut done = 0;
        while done < src.len() as u64 {
            let (row, unit, at) = self.geometry().locate(offset + done);
            let len = (src.len() as u64 - done).min(self.geometry().unit - at);
            let bytes = src.slice(done as usize..(done + len) as usize);
            let piece = Piece { role: Role::Data(unit), at, bytes };
            match parts.last_mut() {
                Some((last, pieces)) if *last == row => pieces.push(piece),
                _ => parts.push((row, vec![piece])),
            }
            done += len;
        }
        parts
    }

    /// Queues a write to one stripe before it returns; the future resolves when it is acknowledged.
    fn write_row(
        self: &Rc<Self>,
        row: u64,
        pieces: Vec<Piece>,
        continues: bool,
        room: Option<Rc<Permit>>,
    ) -> impl Future<Output = IoResult<()>> + use<> {
        let len: u64 = pieces.iter().map(|piece| piece.bytes.len() as u64).sum();
        let whole = len == self.geometry().stripe();
        let has_parity = self.geometry().has_parity() && !self.lacks(Mechanism::Journal);
        let small = len <= self.journal.piece_max();
        let (write, acked) = QueuedWrite::new(pieces, continues, room);
        let worker = self.io.rows.push(row, Rc::clone(&write));
        // The first of several concurrent writes cannot be recognised as sequential yet; the writer
        // task decides.
        let begins = small && worker.is_some();
        let hold = has_parity && (continues || begins) && !whole && !self.options.gather.is_zero();
        write.held.set(hold);
        let may_log = self.io.rows.queue(row).is_some_and(|queue| queue.may_log(&write));
        if has_parity && !whole && !hold && small && may_log {
            self.log(row, &write);
        }
        if let Some(queue) = worker {
            let core = Rc::clone(self);
            spawn(async move { core.work(row, &queue).await }).detach();
        }
        async move { acked.await.unwrap_or(Err(IoError::Aborted)) }
    }

    /// Starts the data record of a write.
    fn log(self: &Rc<Self>, row: u64, write: &Rc<QueuedWrite>) {
        *write.log.borrow_mut() = LogState::UnderWay;
        // Parity changes by at most the bytes of the write, for each parity unit.
        let parity = write.len() * self.geometry().redundancy() as u64;
        let (core, write, turn) = (Rc::clone(self), Rc::clone(write), self.journal.turn());
        spawn(async move {
            let logged = core.journal.log(&core, turn, row, write.pieces.clone(), parity).await;
            match logged {
                Ok(logged) => {
                    *write.log.borrow_mut() = LogState::Durable(logged);
                    write.acknowledge(Ok(()));
                }
                Err(_) => *write.log.borrow_mut() = LogState::Failed,
            }
            if let Some(queue) = core.io.rows.queue(row) {
                queue.changed.notify();
            }
        })
        .detach();
    }

    /// The writer task of a stripe: empties its queue.
    async fn work(self: &Rc<Self>, row: u64, queue: &Rc<WriteQueue>) {
        loop {
            self.gather(row, queue).await;
            // The first write may wait for journal space, and the queue behind it; the stripe lock
            // is not held meanwhile.
            queue.changed.until(|| queue.first().is_none_or(|write| write.is_settled())).await;
            let alone = self.io.locks.exclusive(row).await;
            let batch = queue.batch(COVERS_MAX);
            if batch.is_empty() {
                if self.io.rows.retire(row) {
                    queue.changed.notify();
                    return;
                }
                continue;
            }
            let result = self.apply(row, &batch).await;
            if result.is_ok() {
                self.regain_written(row, &batch);
            }
            if let Err(e) = &result
                && batch
                    .iter()
                    .any(|write| matches!(*write.log.borrow(), LogState::Durable(_) | LogState::Taken))
            {
                // Acknowledged data stays in the journal for the next assembly; no later write may
                // replace it.
                self.halt(
                    HaltReason::Lost,
                    &format!("a stripe with acknowledged data cannot be written: {e}"),
                );
            }
            if let (Err(e), Err(_)) = (&result, self.check_running()) {
                self.io.rows.tear(row);
                drop(alone);
                queue.changed.until(|| queue.is_settled()).await;
                return queue.give_up(e);
            }
            batch.iter().for_each(|write| write.acknowledge(result.clone()));
            queue.remove(batch.len());
            drop(alone);
        }
    }

    /// Waits for the rest of a stripe if a sequential writer is at work, then releases the held
    /// writes.
    async fn gather(self: &Rc<Self>, row: u64, queue: &Rc<WriteQueue>) {
        let held = queue.held();
        if held.is_empty() {
            return;
        }
        if held.iter().any(|write| write.continues) {
            self.wait_for_the_rest(queue).await;
            self.io.rows.waited(queue.bytes() < self.geometry().stripe());
        }
        let whole = queue.bytes() >= self.geometry().stripe();
        for write in queue.held() {
            write.held.set(false);
            if !whole && write.len() <= self.journal.piece_max() && queue.may_log(&write) {
                self.log(row, &write);
            }
        }
    }

    /// Waits as long as more data of the stripe arrives, up to the limit at which a partial write
    /// is cheaper.
    async fn wait_for_the_rest(&self, queue: &WriteQueue) {
        let stripe = self.geometry().stripe();
        let far = self.members.iter().map(|member| member.mean_read()).max().unwrap_or_default();
        let gap = self.options.gather.max(far / GAP_SHARE);
        let began = now();
        let end = began + (self.options.gather * GAPS).max(far);
        loop {
            let before = queue.bytes();
            if before >= stripe {
                break;
            }
            let more = timeout(gap, queue.changed.until(|| queue.bytes() != before)).await.is_ok();
            // A writer with a limited queue depth submits more only when earlier writes are done:
            // until then the data would only wait elsewhere.
            let busy = self.io.rows.pace().is_some_and(|pace| now() - began < pace * 2);
            if !busy && (!more || now() >= end) {
                break;
            }
        }
    }

    /// Writes a batch of one stripe in place. The caller holds the stripe lock.
    pub(crate) async fn apply(self: &Rc<Self>, row: u64, batch: &[Rc<QueuedWrite>]) -> IoResult<()> {
        self.check_running()?;
        let mut overlay = Overlay::new(&self.geometry());
        batch.iter().flat_map(|write| &write.pieces).for_each(|piece| overlay.lay(piece));
        let mut covers: Vec<DurableRecord> = Vec::new();
        for write in batch {
            let mut log = write.log.borrow_mut();
            if let LogState::Durable(_) = *log
                && let LogState::Durable(logged) = std::mem::replace(&mut *log, LogState::Taken)
            {
                covers.push(logged);
            }
        }
        let region = self.geometry().region_of(row);
        if !covers.is_empty() {
            return self.apply_logged(row, region, covers, overlay.segments(u64::MAX / 2)).await;
        }
        let straight = !self.geometry().has_parity()
            || self.lacks(Mechanism::Journal)
            || (overlay.covers_all()
                && self.members.is_healthy(row)
                && !self.options.journal_all
                && !self.journal.has_row(row));
        if straight {
            let _marked = self.intent.mark(self, region).await?;
            let _whole = self.geometry().has_parity().then(|| self.io.rows.whole());
            let (writes, _) = self.plan_all(row, &overlay.segments(u64::MAX / 2)).await?;
            return self.put_or_undo(row, writes, None).await;
        }
        // Through the journal, in parts that fit into it.
        let most = self.journal.piece_max() / self.geometry().width as u64 / crate::BLOCK * crate::BLOCK;
        let parts = overlay.segments(most.max(crate::BLOCK)).into_iter();
        let done = join_all(parts.map(|segment| self.apply_whole(row, region, segment))).await;
        done.into_iter().collect()
    }

    /// Writes data that is in records already: the commit record holds parity only.
    async fn apply_logged(
        self: &Rc<Self>,
        row: u64,
        region: u64,
        covers: Vec<DurableRecord>,
        segments: Vec<Segment>,
    ) -> IoResult<()> {
        let part = self.journal.part(row);
        let (marked, planned) = join(self.intent.mark(self, region), self.plan_all(row, &segments)).await;
        let (_marked, (writes, parity)) = (marked?, planned?);
        let seqs = self.journal.commit(self, &part, covers, parity).await?;
        self.put_acknowledged(row, writes).await?;
        self.journal.applied(&seqs, !self.members.has_volatile_cache());
        Ok(())
    }

    /// Writes a part of a stripe whose data is in no record yet.
    async fn apply_whole(self: &Rc<Self>, row: u64, region: u64, segment: Segment) -> IoResult<()> {
        let part = self.journal.part(row);
        let segments = [segment];
        let (marked, planned) = join(self.intent.mark(self, region), self.plan_all(row, &segments)).await;
        let (_marked, (writes, parity)) = (marked?, planned?);
        let [segment] = segments;
        let new = segment.new.into_iter().enumerate();
        let data =
            new.filter_map(|(i, new)| Some(Piece { role: Role::Data(i), at: segment.at, bytes: new? }));
        let pieces = data.chain(parity).collect();
        let seqs = self.journal.commit(self, &part, Vec::new(), pieces).await?;
        let result = self.put_or_undo(row, writes, Some(&part)).await;
        if result.is_ok() || result == Err(IoError::NoSpace) {
            self.journal.applied(&seqs, !self.members.has_volatile_cache());
        }
        result
    }

    async fn plan_all(
        self: &Rc<Self>,
        row: u64,
        segments: &[Segment],
    ) -> IoResult<(Vec<MemberWrite>, Vec<Piece>)> {
        if !self.members.is_whole(row) {
            return Err(self.lost_too_many());
        }
        let plans = try_join_all(segments.iter().map(|segment| self.plan(row, segment))).await?;
        let (mut writes, mut parity) = (Vec::new(), Vec::new());
        for plan in plans {
            writes.extend(plan.writes);
            parity.extend(plan.parity);
        }
        Ok((writes, parity))
    }

    /// Makes a range read as zeroes: full stripes by deallocation, and the rest, if `all`, by
    /// writing.
    pub(crate) async fn zero(self: &Rc<Self>, offset: u64, len: u64, all: bool) -> IoResult<()> {
        self.check_running()?;
        let stripe = self.geometry().stripe();
        let end = offset + len;
        let (first, last) = (offset.next_multiple_of(stripe), end / stripe * stripe);
        let mut parts = Vec::new();
        if first < last {
            if all {
                parts.extend([(offset, first), (last, end)]);
            }
            let rows: Vec<u64> = (first / stripe..last / stripe).collect();
            for rows in rows.chunks(ZERO_ROWS) {
                // All are awaited even if one fails: an unfinished one would hold its lock and
                // block those that wait for a publication.
                let zeroes = join_all(rows.iter().map(|row| self.zero_row(*row))).await;
                zeroes.into_iter().collect::<IoResult<()>>()?;
            }
        } else if all {
            parts.push((offset, end));
        }
        for (from, to) in parts.into_iter().filter(|(from, to)| from < to) {
            self.write_zeroes(from, to - from).await?;
        }
        Ok(())
    }

    async fn write_zeroes(self: &Rc<Self>, offset: u64, len: u64) -> IoResult<()> {
        let zeroes = longhaul_engine::BufMut::zeroed(len.min(ZERO_BUF) as usize).freeze();
        let mut done = 0;
        while done < len {
            let n = (len - done).min(ZERO_BUF);
            self.write(offset + done, zeroes.slice(0..n as usize)).await?;
            done += n;
        }
        Ok(())
    }

    /// Zeroes one stripe: all-zero units have zero parity and zero checksums.
    async fn zero_row(self: &Rc<Self>, row: u64) -> IoResult<()> {
        if self.io.rows.queue(row).is_some() {
            // An acknowledged write of it may wait for space.
            self.io.shortage.check()?;
        }
        let alone = self.io.locks.exclusive(row).await;
        if self.io.rows.queue(row).is_some()
            || !self.members.is_healthy(row)
            || self.options.journal_all
            || self.journal.has_row(row)
        {
            drop(alone);
            let stripe = self.geometry().stripe();
            return self.write_zeroes(row * stripe, stripe).await;
        }
        let _marked = self.mark_row(row, Mechanism::ZeroIntent).await?;
        let unit = self.geometry().unit;
        let sums = vec![0; (unit / crate::BLOCK) as usize];
        let zeroes = self.members.iter().map(async |member| {
            let zero = member.zero(self.geometry().unit_at(row), unit);
            let (zero, update) = join(zero, self.sums.update(member, row, 0, &sums)).await;
            (member.index, zero.and(update))
        });
        let results = join_all(zeroes).await;
        self.io.read_cache.forget(row);
        let result = self.settle(results).await;
        match &result {
            Ok(()) => self.regain_row(row),
            Err(_) => self.io.rows.tear(row),
        }
        result
    }
}
