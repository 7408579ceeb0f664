//! Rebuild and resync of members: of one that replaces another, and of one that was offline.
//!
//! Invariants:
//! - a stripe counts as rebuilt from the moment from which every write to it reaches the member as
//!   well: it is marked in `rows` of the member while the stripe lock is held;
//! - `done` of the member is advanced and published only when everything below it is durable and no journal record that was
//!   written without the member can be replayed: a replay would restore old content of the member
//!   that nothing follows;
//! - content that cannot be reconstructed is never invented: such a block gets a checksum that is
//!   wrong on purpose and reads as an error until it is written.

use crate::core::Core;
use crate::format::geometry::{BLOCK, Role};
use crate::format::superblock::Condition;
use crate::heal::lost::Unavailable;
use crate::heal::upkeep::is_over;
use crate::io::sums::UNKNOWN;
use crate::io::units::StripeUnits;
use crate::io::window::ReadOrigin;
use crate::member::Member;
use crate::report::Progress;
use crate::without::Mechanism;
use futures_util::StreamExt;
use futures_util::stream;
use longhaul_block::{Advice, IoError, IoResult, WriteFlags};
use longhaul_engine::{Buf, BufMut, now};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Stripes that are rebuilt concurrently, at most.
const CONCURRENT_ROWS_MAX: u64 = 64;
/// Stripes of the first batch. A batch ends when all of its stripes are done.
const ROWS_FIRST: u64 = 64;
/// Interval at which progress is published.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(2);

impl Core {
    /// The member to rebuild next, if any: first those that only resync, which restores redundancy
    /// soonest, then the one with the fewest rows left.
    pub(crate) fn next_to_rebuild(&self) -> Option<usize> {
        let order = |member: &Member| {
            let Condition::Rebuilding { partial, .. } = member.condition() else { return None };
            let catches_up = partial && member.state.have() >= self.geometry().rows;
            let left: u64 = self.rows_left(member.index).iter().map(|rows| rows.end - rows.start).sum();
            member.is_usable().then_some((!catches_up, left, member.index))
        };
        self.members.iter().filter_map(order).min().map(|(.., index)| index)
    }

    /// The rows that a member still lacks, in order.
    fn rows_left(&self, index: usize) -> Vec<Range<u64>> {
        let (member, rows) = (&self.members[index], self.geometry().rows);
        let Condition::Rebuilding { done, partial } = member.condition() else { return Vec::new() };
        let mut ranges = Vec::new();
        let mut from = 0;
        if partial {
            from = member.state.have().min(rows);
            let missed =
                member.rows.missed_regions().into_iter().map(|region| self.geometry().rows_of(region));
            ranges.extend(missed.map(|missed| missed.start..missed.end.min(from)));
        }
        ranges.push(from..rows);
        ranges.iter_mut().for_each(|range| range.start = range.start.max(done));
        ranges.retain(|range| range.start < range.end);
        ranges
    }

    /// Rebuilds or resyncs a member until it is complete, another member takes precedence, or the
    /// array stops.
    pub(crate) async fn rebuild_member(self: &Rc<Self>, index: usize) -> IoResult<RebuildEnd> {
        let member = &self.members[index];
        let rows: Vec<u64> = self.rows_left(index).into_iter().flatten().collect();
        let (began, incarnation) = (now(), member.incarnation());
        // The member may have gone offline, and may have returned with fewer rows than it had.
        let is_it = || member.is_rebuilding() && member.incarnation() == incarnation;
        let (mut rest, mut published, mut rebuilt) = (&rows[..], began, 0);
        let mut pace = self.pace(self.geometry().unit, ROWS_FIRST, true);
        while !rest.is_empty() {
            let size = usize::try_from(pace.begin(self.upkeep.rebuild_rate.get())).unwrap_or(usize::MAX);
            let batch;
            (batch, rest) = rest.split_at(size.min(rest.len()));
            if is_over(self) || !is_it() {
                return Ok(RebuildEnd::Ended);
            }
            if self.next_to_rebuild().is_some_and(|next| next != index) {
                return Ok(RebuildEnd::Preempted);
            }
            loop {
                let rebuilds = stream::iter(batch).map(|row| self.rebuild_row(index, *row));
                let results: Vec<_> = rebuilds.buffer_unordered(self.concurrent_rows(index)).collect().await;
                results.into_iter().collect::<IoResult<()>>()?;
                if let Err(e) = self.flush_member(member).await {
                    return self.lose(index, &e).await.map(|()| RebuildEnd::Ended);
                }
                if !member.is_in_doubt() {
                    break;
                }
                // The member may have lost rows that were just written.
                member.rows.unmark_from(batch[0]);
                self.verify(index).await?;
                if member.incarnation() != incarnation {
                    return Ok(RebuildEnd::Ended);
                }
            }
            self.journal.pass(self).await?;
            if member.incarnation() != incarnation {
                return Ok(RebuildEnd::Ended);
            }
            let ahead = u64::from(self.lacks(Mechanism::Progress));
            let done = batch.last().map_or(0, |row| row + 1 + ahead);
            if member.is_rebuilding() {
                member.state.advance(done);
                member.rows.unmark_below(done);
            }
            rebuilt += batch.len() as u64;
            self.report_progress(index, rebuilt, rows.len() as u64, began);
            if now() - published >= PUBLISH_INTERVAL {
                published = now();
                self.publish().await?;
            }
            let bytes = batch.len() as u64 * self.geometry().unit;
            pace.end(self, bytes, self.upkeep.rebuild_rate.get()).await;
        }
        if is_over(self) || !is_it() {
            return Ok(RebuildEnd::Ended);
        }
        self.journal.pass(self).await?;
        tracing::info!("array {}: member {index} is rebuilt", self.name);
        self.publish_with(|| {
            if is_it() {
                self.enter(index, Condition::Active, "");
            }
        })
        .await
        .map(|()| RebuildEnd::Ended)
    }

    /// Rows rebuilt concurrently: enough to fill the paths to all other members, and the path to
    /// this one. More would only wait in queues, in front of user I/O.
    fn concurrent_rows(&self, index: usize) -> usize {
        let advice = |member: &crate::member::Member| member.advice().unwrap_or(Advice::LOCAL);
        let others = self.members.iter().filter(|member| member.is_active());
        let read = others.map(|member| advice(member).read).max().unwrap_or(0);
        let bytes = read.max(advice(&self.members[index]).write);
        (bytes / self.geometry().unit + 2).min(CONCURRENT_ROWS_MAX) as usize
    }

    fn report_progress(&self, member: usize, done: u64, total: u64, began: Instant) {
        let unit = self.geometry().unit;
        let progress = Progress { member, done: done * unit, total: total * unit, elapsed: now() - began };
        self.upkeep.work.borrow_mut().rebuild = Some(progress);
    }

    /// Writes a member's unit of a row.
    async fn rebuild_row(self: &Rc<Self>, index: usize, row: u64) -> IoResult<()> {
        let reads = if self.geometry().has_parity() { self.geometry().data_units() as u64 } else { 1 };
        let room = self.room(reads * self.geometry().unit, ReadOrigin::Background).await;
        let _alone = self.io.locks.exclusive(row).await;
        if self.members.holds(index, row) {
            return Ok(());
        }
        let role = self.geometry().role(row, index);
        let (unit, at) = (self.geometry().unit, self.geometry().unit_at(row));
        let (bytes, lost) = self.unit_for(row, role, index).await?;
        drop(room);
        let member = &self.members[index];
        let incarnation = member.incarnation();
        let mut sums = self.sums.of(&bytes);
        for (block, sum) in sums.iter_mut().enumerate() {
            match lost.get(&block) {
                None => self.regain(row, role, block as u64 * BLOCK, BLOCK),
                // UNKNOWN accepts any content, so that members that return may supply it.
                Some(Unavailable::Offline) => *sum = UNKNOWN,
                Some(Unavailable::Lost(_)) => *sum = !*sum,
            }
        }
        // Zeroes are deallocated again, so that discarded ranges take no space.
        let write = async {
            if bytes.iter().all(|byte| *byte == 0) {
                member.zero(at, unit).await
            } else {
                member.write(at, bytes.clone(), WriteFlags::default()).await
            }
        };
        let (write, update) = futures_util::join!(write, self.sums.update(member, row, 0, &sums));
        if let Err(e) = write.and(update) {
            // A member without space keeps what it has: see `upkeep`.
            if e.error != IoError::NoSpace {
                self.lose(index, &e).await?;
            }
            return Err(e.into());
        }
        // Another device, which is empty, may have replaced this one meanwhile.
        if member.incarnation() == incarnation {
            member.rows.mark(row);
        }
        Ok(())
    }

    /// A unit, reconstructed from the other members, and its blocks that cannot be reconstructed.
    /// What is lost with those is recorded.
    async fn unit_for(
        self: &Rc<Self>,
        row: u64,
        role: Role,
        index: usize,
    ) -> IoResult<(Buf, BTreeMap<usize, Unavailable>)> {
        let unit = self.geometry().unit;
        let has_parity = self.geometry().has_parity();
        let wanted = |other: Role| has_parity || other == role;
        let units = self.read_units(row, 0, unit, wanted, &[index]).await?;
        if let Some(bytes) = self.derive(units, role, unit) {
            return Ok((bytes, BTreeMap::new()));
        }
        let (mut whole, mut lost) = (BufMut::zeroed(unit as usize), BTreeMap::new());
        for block in 0..unit / BLOCK {
            let units = self.read_units(row, block * BLOCK, BLOCK, wanted, &[index]).await?;
            let unavailable = self.unavailable(row, &units, wanted);
            if let Some(bytes) = self.derive(units, role, BLOCK) {
                let start = (block * BLOCK) as usize;
                whole[start..start + BLOCK as usize].copy_from_slice(&bytes);
                continue;
            }
            match &unavailable {
                Unavailable::Lost(units) => {
                    units.iter().for_each(|unit| self.lose_block(row, *unit, block * BLOCK));
                }
                Unavailable::Offline => tracing::warn!(
                    "array {}: a block of stripe {row} cannot be reconstructed for member {index} before \
                     offline members have returned",
                    self.name
                ),
            }
            lost.insert(block as usize, unavailable);
        }
        Ok((whole.freeze(), lost))
    }

    /// Content of one role, derived from the other units.
    pub(crate) fn derive(&self, mut units: StripeUnits, role: Role, len: u64) -> Option<Buf> {
        if let Role::Data(i) = role
            && let Some(bytes) = units.data[i].take()
        {
            return Some(bytes);
        }
        units.complete(len).ok()?;
        match role {
            Role::Data(i) => units.data[i].take(),
            Role::P => Some(units.parity(len, false).0),
            Role::Q => units.parity(len, true).1,
        }
    }
}

/// Why the rebuild of a member ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RebuildEnd {
    /// The member is complete, or is not to be rebuilt any more.
    Ended,
    /// Another member takes precedence; this one continues later where it stopped.
    Preempted,
}
