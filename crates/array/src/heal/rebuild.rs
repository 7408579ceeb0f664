//! Rebuild and resync of members: of one that replaces another, and of one that was offline.
//!
//! Invariants:
//! - a stripe counts as rebuilt from the moment from which every write to it reaches the member as
//!   well: it is marked while the stripe lock is held;
//! - progress is published only when everything below it is durable and no journal record that was
//!   written without the member can be replayed: a replay would restore old content of the member
//!   that nothing follows;
//! - content that cannot be reconstructed is never invented: such a block gets a checksum that is
//!   wrong on purpose and reads as an error until it is written.

use crate::assembly::current::{Ancestry, has_lost_heartbeat};
use crate::core::Core;
use crate::format::geometry::{BLOCK, HEARTBEAT_AT, Role, SUPER_AT};
use crate::format::superblock::{Condition, Superblock, SuperblockCopies};
use crate::heal::lost::Unavailable;
use crate::heal::upkeep::{is_over, pause};
use crate::io::sums::UNKNOWN;
use crate::io::units::StripeUnits;
use crate::member::window::ReadOrigin;
use crate::member::{Member, MemberResult};
use crate::report::Progress;
use crate::session::clock::Stamp;
use crate::session::fence::Heartbeat;
use crate::without::Mechanism;
use futures_util::StreamExt;
use futures_util::stream;
use longhaul_block::{Advice, BlockDevice, BlockIo, IoError, IoResult, WriteFlags};
use longhaul_engine::{Buf, BufMut, now};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Stripes that are rebuilt concurrently, at most.
const CONCURRENT_ROWS_MAX: u64 = 64;
/// Stripes of the first batch. A batch ends when all of its stripes are done; later batches are
/// sized to take between `BATCH` and twice that.
const ROWS_FIRST: usize = 64;
const BATCH: Duration = Duration::from_secs(1);
/// Interval at which progress is published.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(2);

impl Core {
    /// Looks for offline members that answer again, and starts their resync.
    pub(crate) async fn resync_returned_members(self: &Rc<Self>) {
        for member in &self.members {
            // Operations begun before it went offline must end first: they could write over the resync.
            let offline = member.condition.get() == Condition::Offline;
            if !offline || member.device().is_none() || member.under_way() > 0 {
                continue;
            }
            let (a, b) =
                futures_util::join!(member.read(SUPER_AT[0], BLOCK), member.read(SUPER_AT[1], BLOCK));
            // An unreadable copy counts as torn.
            let SuperblockCopies { newest: found, slot, torn } = match (a, b) {
                (Err(_), Err(_)) => continue,
                (a, b) => {
                    let copy = |read: MemberResult<BufMut>| read.map(|buf| buf.to_vec()).unwrap_or_default();
                    SuperblockCopies::of([&copy(a), &copy(b)])
                }
            };
            member.slot.set(slot);
            let ours = |found: &Superblock| found.array == self.array && found.member == member.uuid.get();
            let Some(found) = found.filter(ours) else {
                let why = "the device that returned is not this member";
                // A failure to publish halts the array and is logged there.
                let _ = self.publish_with(|| self.enter(member.index, Condition::Failed, why)).await;
                continue;
            };
            let anew = match self.ancestry(&found, Some(member.since.get())) {
                Ancestry::Ancestor => self.was_rolled_back(member, &found, torn).await,
                Ancestry::Unused => true,
                Ancestry::Diverged => return self.halt_for_newer(member, &found),
            };
            match self.take_ownership_of_member(member).await {
                Ok(true) => {}
                Ok(false) => {
                    *member.reason.borrow_mut() = "another host uses it".into();
                    continue;
                }
                Err(_) => continue,
            }
            self.sums.forget(member.index);
            // The resync covers everything that the member has not flushed, so earlier doubts are
            // settled.
            member.trust(member.doubts());
            member.clear_unreachable();
            let back = self.publish_with(|| {
                if member.condition.get() != Condition::Offline {
                    return;
                }
                if anew {
                    member.have.set(0);
                }
                self.enter(member.index, Condition::Rebuilding { done: 0, partial: true }, "it has returned");
                self.upkeep.begin_resync(member.index, self.intent.marked());
            });
            if back.await.is_ok() {
                let _ = self.intent.write_all(self).await;
            }
        }
    }

    /// Relation of a superblock to the members in use.
    pub(crate) fn ancestry(&self, found: &Superblock, since: Option<u64>) -> Ancestry {
        if self.lacks(Mechanism::Apart) {
            return Ancestry::Ancestor;
        }
        let own = self.superblock();
        let usable = self.members.iter().filter(|member| member.is_usable());
        let present: Vec<Superblock> =
            usable.map(|member| Superblock { member: member.uuid.get(), ..own.clone() }).collect();
        own.ancestry(found, since, &present)
    }

    /// Whether a returning member has less than it has confirmed: it was rolled back while it was
    /// offline.
    async fn was_rolled_back(&self, member: &Member, found: &Superblock, torn: bool) -> bool {
        let beat = match member.read(HEARTBEAT_AT, BLOCK).await {
            Ok(block) => Heartbeat::decode(&block),
            Err(_) => None,
        };
        let behind = found.generation + u64::from(torn) < member.known.get()
            || has_lost_heartbeat(beat.as_ref(), self.session, member.beat.get());
        if behind {
            tracing::warn!(
                "array {}: member {} has returned with less than it had confirmed (generation {} of {}): it \
                 was rolled back, and is rebuilt",
                self.name.borrow(),
                member.index,
                found.generation,
                member.known.get()
            );
        }
        behind
    }

    /// Halts the array, since a member has returned that has continued without this set.
    fn halt_for_newer(&self, member: &Member, found: &Superblock) {
        let name = member.name().unwrap_or_default();
        let own = self.superblock();
        let which = if found.generation > own.generation { "newer" } else { "of another history" };
        self.halt(&format!(
            "member {} ({name}) is back and is {which}: its superblock ({}) is not one that this set ({}) \
             descends from, and may have acknowledged writes that this set lacks. Stop the array; then \
             assemble it either with that member, or, to discard what only that member has, without it",
            member.index,
            found.age(),
            own.age()
        ));
    }

    /// Lets spares replace members that have failed, or are offline for longer than `spare_grace`.
    pub(crate) async fn replace_with_spares(self: &Rc<Self>) {
        for member in &self.members {
            let gone = match member.condition.get() {
                Condition::Failed => true,
                Condition::Offline => self
                    .upkeep
                    .missing_since(member.index)
                    .is_some_and(|since| now() - since >= self.options.spare_grace),
                _ => false,
            };
            if !gone {
                continue;
            }
            self.replace_with_spare(member.index).await;
        }
    }

    /// Lets the first usable spare replace a member; the other spares stay.
    async fn replace_with_spare(self: &Rc<Self>, index: usize) {
        let spares = self.spares.borrow().clone();
        for spare in spares.iter().rev() {
            let Some(device) = &spare.device else { continue };
            let name = device.info().name;
            let result = match device.open().await {
                Ok(io) => self.replace_member(index, spare.uuid, Arc::clone(device), io, true).await,
                Err(e) => Err(e),
            };
            match result {
                Ok(()) => {
                    tracing::warn!("array {}: spare {name} takes place {index}", self.name.borrow());
                    return;
                }
                // The spare is tried again at each pass; the error is logged once.
                Err(e) if self.upkeep.is_first_failure_of(spare.uuid) => {
                    tracing::warn!("array {}: spare {name} cannot be used: {e}", self.name.borrow());
                }
                Err(_) => {}
            }
        }
    }

    /// Lets a device replace a member, and starts its rebuild. The previous device leaves the
    /// array.
    pub(crate) async fn replace_member(
        self: &Rc<Self>,
        index: usize,
        uuid: uuid::Uuid,
        device: Arc<dyn BlockDevice>,
        io: Rc<dyn BlockIo>,
        is_spare: bool,
    ) -> IoResult<()> {
        let info = device.info();
        if info.size < self.geometry.end() {
            return Err(IoError::OutOfRange { offset: 0, len: self.geometry.end(), size: info.size });
        }
        // Clear heartbeat, bitmap and journal of an earlier use, and a superblock of another array,
        // which might have a higher generation. A spare of this array keeps its superblock until it
        // is a member. A device that cannot be written fails here, while the previous device is
        // still in use.
        let from = if is_spare { HEARTBEAT_AT } else { SUPER_AT[0] };
        wipe(&io, from, self.geometry.sums_at()).await?;
        io.flush().await?;
        let _alone = self.placing.exclusive(index as u64).await;
        let member = &self.members[index];
        if is_spare && member.is_usable() {
            return Err(IoError::Aborted);
        }
        if member.is_active() || matches!(member.condition.get(), Condition::Rebuilding { .. }) {
            // Other members may have been lost meanwhile.
            let still = || !self.cannot_lose(index);
            self.lose_if(index, Condition::Failed, "it is replaced", still).await?;
            if member.is_active() {
                return Err(IoError::Offline(self.why_needed(index)));
            }
        }
        if member.name().as_deref() != Some(&*info.name) {
            member.detach_operations();
        }
        member.take();
        self.sums.forget(index);
        self.publish_with(|| {
            member.put(device, io);
            // The heartbeat was cleared, so no other session uses the device.
            member.reach.looked(Stamp::now());
            member.uuid.set(uuid);
            member.known.set(0);
            member.beat.set(0);
            self.spares.borrow_mut().retain(|spare| spare.uuid != uuid);
            member.counts.set(crate::MemberCounts::default());
            self.enter(
                index,
                Condition::Rebuilding { done: 0, partial: false },
                "it is new, and under rebuild",
            );
        })
        .await?;
        self.intent.write_all(self).await
    }

    /// The member to rebuild next, if any: first those that only resync, which restores redundancy
    /// soonest, then the one with the fewest rows left.
    pub(crate) fn next_to_rebuild(&self) -> Option<usize> {
        let order = |member: &Member| {
            let Condition::Rebuilding { partial, .. } = member.condition.get() else { return None };
            let catches_up = partial && member.have.get() >= self.geometry.rows;
            let left: u64 = self.rows_left(member.index).iter().map(|rows| rows.end - rows.start).sum();
            member.is_usable().then_some((!catches_up, left, member.index))
        };
        self.members.iter().filter_map(order).min().map(|(.., index)| index)
    }

    /// The rows that a member still lacks, in order.
    fn rows_left(&self, index: usize) -> Vec<Range<u64>> {
        let (member, rows) = (&self.members[index], self.geometry.rows);
        let Condition::Rebuilding { done, partial } = member.condition.get() else { return Vec::new() };
        let mut ranges = Vec::new();
        let mut from = 0;
        if partial {
            from = member.have.get().min(rows);
            let missed = self.upkeep.regions(index).into_iter().map(|region| self.geometry.rows_of(region));
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
        // The member may have gone, and may have returned with less than it had.
        let is_it = || {
            matches!(member.condition.get(), Condition::Rebuilding { .. })
                && member.incarnation() == incarnation
        };
        let mut seen = BatchState { begun: self.begun.get(), published: began, done: 0 };
        let (mut rest, mut size) = (&rows[..], ROWS_FIRST);
        while !rest.is_empty() {
            let batch;
            (batch, rest) = rest.split_at(self.batch(size).min(rest.len()));
            if is_over(self) || !is_it() {
                return Ok(RebuildEnd::Ended);
            }
            if self.next_to_rebuild().is_some_and(|next| next != index) {
                return Ok(RebuildEnd::Preempted);
            }
            let start = now();
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
                self.upkeep.unmark_rebuilt(index, batch[0]);
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
            if let Condition::Rebuilding { partial, .. } = member.condition.get() {
                member.condition.set(Condition::Rebuilding { done, partial });
                self.upkeep.rebuilt_to(index, done);
            }
            seen.done += batch.len() as u64;
            self.report_progress(index, &seen, rows.len() as u64, began);
            if now() - seen.published >= PUBLISH_INTERVAL {
                seen.published = now();
                self.publish().await?;
            }
            size = match now() - start {
                took if took < BATCH => size.saturating_mul(2),
                took if took > 2 * BATCH => (size / 2).max(1),
                _ => size,
            };
            let rate = self.upkeep.rebuild_rate.get();
            self.yield_to_users(&mut seen, batch.len() as u64 * self.geometry.unit, start, rate).await;
        }
        if is_over(self) || !is_it() {
            return Ok(RebuildEnd::Ended);
        }
        self.journal.pass(self).await?;
        tracing::info!("array {}: member {index} is rebuilt", self.name.borrow());
        self.publish_with(|| {
            if is_it() {
                self.enter(index, Condition::Active, "");
            }
        })
        .await
        .map(|()| RebuildEnd::Ended)
    }

    /// Rows of a batch: `size`, limited to what the rebuild rate allows in `BATCH`.
    fn batch(&self, size: usize) -> usize {
        let allowed = |rate: u64| (rate as f64 * BATCH.as_secs_f64() / self.geometry.unit as f64) as usize;
        self.upkeep.rebuild_rate.get().map_or(size, |rate| size.min(allowed(rate))).max(1)
    }

    /// Rows rebuilt concurrently: enough to fill the paths to all other members, and the path to
    /// this one. More would only wait in queues, in front of user I/O.
    fn concurrent_rows(&self, index: usize) -> usize {
        let advice = |member: &crate::member::Member| member.advice().unwrap_or(Advice::LOCAL);
        let others = self.members.iter().filter(|member| member.is_active());
        let read = others.map(|member| advice(member).read).max().unwrap_or(0);
        let bytes = read.max(advice(&self.members[index]).write);
        (bytes / self.geometry.unit + 2).min(CONCURRENT_ROWS_MAX) as usize
    }

    fn report_progress(&self, member: usize, seen: &BatchState, total: u64, began: Instant) {
        let unit = self.geometry.unit;
        let progress =
            Progress { member, done: seen.done * unit, total: total * unit, elapsed: now() - began };
        self.upkeep.tasks.borrow_mut().rebuild = Some(progress);
    }

    /// Pauses in favour of user I/O: as long as the configured rate requires, or as long as the
    /// work took if user I/O is active. If the next loss would lose data, only the rate counts.
    pub(crate) async fn yield_to_users(
        self: &Rc<Self>,
        seen: &mut BatchState,
        bytes: u64,
        start: Instant,
        rate: Option<u64>,
    ) {
        let took = now() - start;
        let by_rate = rate.map_or(Duration::ZERO, |rate| {
            Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64).saturating_sub(took)
        });
        let busy = self.begun.get() != seen.begun;
        seen.begun = self.begun.get();
        let missing = self.members.iter().filter(|member| !member.is_active()).count();
        let urgent = missing >= self.geometry.redundancy();
        let by_users = if busy && !urgent { took } else { Duration::ZERO };
        pause(self, by_rate.max(by_users)).await;
    }

    /// Writes a member's unit of a row.
    async fn rebuild_row(self: &Rc<Self>, index: usize, row: u64) -> IoResult<()> {
        let reads = if self.geometry.has_parity() { self.geometry.data_units() as u64 } else { 1 };
        let room = self.room(reads * self.geometry.unit, ReadOrigin::Background).await;
        let _alone = self.locks.exclusive(row).await;
        if self.holds(index, row) {
            return Ok(());
        }
        let role = self.geometry.role(row, index);
        let (unit, at) = (self.geometry.unit, self.geometry.unit_at(row));
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
            self.lose(index, &e).await?;
            return Err(e.into());
        }
        // Another device, which is empty, may have replaced this one meanwhile.
        if member.incarnation() == incarnation {
            self.upkeep.mark_rebuilt(index, row);
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
        let unit = self.geometry.unit;
        let has_parity = self.geometry.has_parity();
        let wanted = |other: Role| has_parity || other == role;
        let units = self.read_units(row, 0, unit, wanted, &[index]).await?;
        if let Some(bytes) = self.derive(units, role, unit) {
            return Ok((bytes, BTreeMap::new()));
        }
        let (mut whole, mut lost) = (BufMut::zeroed(unit as usize), BTreeMap::new());
        for block in 0..unit / BLOCK {
            let units = self.read_units(row, block * BLOCK, BLOCK, wanted, &[index]).await?;
            let gone = self.unavailable(row, &units, wanted);
            if let Some(bytes) = self.derive(units, role, BLOCK) {
                let start = (block * BLOCK) as usize;
                whole[start..start + BLOCK as usize].copy_from_slice(&bytes);
                continue;
            }
            match &gone {
                Unavailable::Lost(units) => {
                    units.iter().for_each(|unit| self.lose_block(row, *unit, block * BLOCK));
                }
                Unavailable::Offline => tracing::warn!(
                    "array {}: a block of stripe {row} cannot be reconstructed for member {index} before \
                     offline members have returned",
                    self.name.borrow()
                ),
            }
            lost.insert(block as usize, gone);
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

/// State of a background task between its batches.
pub(crate) struct BatchState {
    pub(crate) begun: u64,
    pub(crate) published: Instant,
    pub(crate) done: u64,
}

/// Makes a range of a device read as zeroes.
async fn wipe(io: &Rc<dyn BlockIo>, from: u64, to: u64) -> IoResult<()> {
    crate::assembly::assemble::zero(io, from, to).await
}
