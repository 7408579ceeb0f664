//! Compaction: content moves out of segments that are mostly dead, which so become free.
//!
//! | step | a crash after it leaves |
//! |---|---|
//! | some segments are claimed: their records name this session | segments of a lost session |
//! | the maps are read for what is in them | the same |
//! | content is copied, and swapped in the maps | copies that no file refers to, in a segment of a lost session |
//! | segments are released, and are free if nothing is left in them | nothing |
//!
//! What a lost session has is released by others, as any segment that it wrote to.
//!
//! Invariants:
//! - one session at a time moves content out of a segment;
//! - a segment that is claimed gets nothing new, and becomes free once it is released.

use crate::cleaner::FOLDED;
use crate::relocate::{COPIED, FileExtent, in_parts};
use crate::schema::{SegmentRecord, decode_knows, unreadable};
use crate::segment::{Filler, RESERVED, SegmentUse, Segments};
use crate::session::FsSession;
use crate::store::lock;
use crate::stripe::StripePlan;
use longhaul_engine::since;
use longhaul_fs::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A segment is worth a copy if this part of it at least would be free.
const WORTH: u64 = 32;
/// Most bytes that are copied while a program waits for room, and in the background.
const COPIED_NOW: u64 = 256 << 20;
const COPIED_AHEAD: u64 = 4 << 30;
/// The part of all segments that is to be free.
const AHEAD: u32 = 16;
/// In the background, segments of which half is dead are moved once there are as many as this part of all.
const TIDIED: u32 = 64;
/// How long room is waited for that other hosts may make.
const OTHERS: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(50);
/// A part of a copy is small beside a segment, so that one is emptied before another one is needed.
const PARTS: u64 = 4;
/// In the background, the time between copies is this many times that of a copy.
const PAUSES: u32 = 3;

/// Why content moves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Aim {
    /// A program waits for room.
    Now,
    /// Free segments are few.
    Ahead,
    /// Much is dead.
    Tidiness,
}

impl FsSession {
    fn free_segments(&self, used: usize) -> usize {
        (self.segments.count() as usize).saturating_sub(used)
    }

    /// Whether the free segments are so few that moves begin.
    pub(crate) fn is_short_of_room(&self) -> Result<bool, Errno> {
        Ok(self.free_segments(self.segments.all(&self.store)?.len()) <= self.few())
    }

    fn few(&self) -> usize {
        RESERVED + (self.segments.count() / AHEAD) as usize
    }

    /// Makes room for a write that has waited since `begun`; false if that cannot be done.
    pub(crate) fn make_room(&self, begun: Instant) -> Result<bool, Errno> {
        let compacts = lock(&self.compacts);
        // Another thread may have made room meanwhile.
        let used = self.segments.in_use(&self.store)?;
        if self.free_segments(used.len()) > RESERVED || self.compact(Aim::Now)? > 0 {
            return Ok(true);
        }
        drop(compacts);
        // Other hosts give up what they fill, or move content themselves.
        let may_become_free = |one: &SegmentUse| {
            !matches!(one.session, 0)
                && one.session != self.store.session()
                && one.live < self.worth_copying()
        };
        if since(begun) > OTHERS || !used.values().any(may_become_free) {
            return Ok(false);
        }
        std::thread::sleep(LOOK);
        self.clean()?;
        Ok(true)
    }

    /// Moves content out of segments; how many became free.
    pub(crate) fn compact_now(&self) -> Result<usize, Errno> {
        let _one = lock(&self.compacts);
        self.compact(Aim::Now)
    }

    /// Moves content while there is time for it: where free segments are few, or much is dead.
    pub(crate) fn compact_ahead(&self) -> Result<(), Errno> {
        let _one = lock(&self.compacts);
        while self.is_short_of_room()? {
            if self.compact(Aim::Ahead)? == 0 {
                break;
            }
        }
        // One host does the rest.
        let keys = self.store.keys();
        let known = self.store.range(&keys.all_known())?;
        // One that has a snapshot mounted changes nothing.
        let changes = known.iter().find(|entry| decode_knows(&entry.value).is_some_and(|(_, one)| one == 0));
        let first = changes.and_then(|entry| Some(keys.parse(&entry.key, 1)?.0[0]));
        if first == Some(self.store.session()) {
            self.empty_removed()?;
            self.compact(Aim::Tidiness)?;
        }
        Ok(())
    }

    /// Bytes that a segment has at most which is worth a copy, with the members that there are.
    fn worth_copying(&self) -> u64 {
        let live = self.members.live().into_iter().filter(|is_live| *is_live).count();
        let Some(plan) = StripePlan::new(&self.settings, live, u64::MAX) else { return 0 };
        let room = self.settings.segment * live as u64 * plan.data as u64 / plan.units() as u64;
        room - room / WORTH
    }

    /// The segments that content moves out of, those with the least first.
    fn victims(&self, aim: Aim) -> Result<Vec<u32>, Errno> {
        let used = self.segments.in_use(&self.store)?;
        let (room, worth) = (Segments::room(&self.settings), self.worth_copying());
        let most = if aim == Aim::Tidiness { (room / 2).min(worth) } else { worth };
        let stuck = lock(&self.stuck);
        let mut all: Vec<(u64, u32)> = used
            .into_iter()
            .filter(|(number, one)| one.session == 0 && one.live < most && !stuck.contains(number))
            .map(|(number, one)| (one.live, number))
            .collect();
        all.sort_unstable();
        let segments = u64::from(self.segments.count());
        let (wanted, copied) = match aim {
            Aim::Now => (2 + segments / u64::from(TIDIED), COPIED_NOW),
            Aim::Ahead => (self.few() as u64, COPIED_AHEAD),
            Aim::Tidiness if all.len() < 4 + (segments / u64::from(TIDIED)) as usize => return Ok(Vec::new()),
            Aim::Tidiness => (segments, COPIED_AHEAD),
        };
        let (mut gained, mut bytes) = (0, 0);
        let mut victims = Vec::new();
        for (live, number) in all {
            // A whole segment is won, whatever that takes.
            if gained >= room && (gained >= wanted * room || bytes > copied) {
                break;
            }
            gained += worth.saturating_sub(live);
            bytes += live;
            victims.push(number);
        }
        Ok(victims)
    }

    /// The caller holds `compacts`. How many segments became free.
    fn compact(&self, aim: Aim) -> Result<usize, Errno> {
        let victims = self.victims(aim)?;
        let claimed = self.claim(&victims)?;
        if claimed.is_empty() {
            return Ok(0);
        }
        let before = self.segments.all(&self.store)?.len();
        let mut left: BTreeSet<u32> = claimed.iter().copied().collect();
        let moved = self.move_out(&claimed, aim, &mut left);
        self.free_claimed(&left)?;
        let after = self.segments.all(&self.store)?.len();
        tracing::debug!(
            "{} segments were claimed to be emptied, {after} of {before} are in use",
            claimed.len()
        );
        match moved {
            // What was made free is made free; and other hosts may have taken what was left.
            Err(e) if after >= before && e != Errno::NOSPC => Err(e),
            _ => Ok(before.saturating_sub(after)),
        }
    }

    /// Makes this session the one that moves content out of segments; those that it has got.
    pub(crate) fn claim(&self, segments: &[u32]) -> Result<Vec<u32>, Errno> {
        let own = self.store.session();
        let mut claimed = Vec::new();
        for part in segments.chunks(FOLDED) {
            let keys: BTreeMap<Vec<u8>, u32> =
                part.iter().map(|segment| (self.store.keys().segment(*segment), *segment)).collect();
            let all: Vec<Vec<u8>> = keys.keys().cloned().collect();
            claimed.extend(self.store.change(|draft| {
                let mut got = Vec::new();
                for entry in draft.get_all(&all)? {
                    let record = SegmentRecord::decode(&entry.value)
                        .ok_or_else(|| unreadable("the record of a segment", &entry.value))?;
                    let Some(segment) = keys.get(&entry.key) else { continue };
                    // It is this session's already if the answer to an earlier try was lost.
                    if record.session == 0 || record.session == own && !self.segments.holds(*segment) {
                        draft.put(&entry.key, SegmentRecord { session: own, ..record }.encode());
                        got.push(*segment);
                    }
                }
                Ok(got)
            })?);
        }
        let order = |segment: &u32| segments.iter().position(|one| one == segment);
        claimed.sort_by_key(order);
        Ok(claimed)
    }

    /// Moves what is in claimed segments, and removes those that were freed from `left`.
    fn move_out(&self, claimed: &[u32], aim: Aim, left: &mut BTreeSet<u32>) -> Result<(), Errno> {
        let rank: BTreeMap<u32, usize> =
            claimed.iter().enumerate().map(|(rank, segment)| (*segment, rank)).collect();
        let mut items = self.extents_in(&|segment| rank.contains_key(&segment))?;
        let rank_of = |(_, extent): &FileExtent| rank.get(&extent.stripe.segment(self.settings.segment));
        items.sort_by_key(|item| (rank_of(item).copied(), item.0, item.1.offset));
        let mut done = 0;
        for part in in_parts(&items, COPIED.min(Segments::room(&self.settings) / PARTS)) {
            if self.is_ending.load(Relaxed) {
                return Ok(());
            }
            let begun = longhaul_engine::now();
            let moved = self.relocate(part, Filler::Moves)?;
            let unread = moved.unread.iter().map(|(_, extent)| extent.stripe.segment(self.settings.segment));
            lock(&self.stuck).extend(unread);
            // Those before the last one of this part are empty: they are free for what comes.
            done = part.last().and_then(rank_of).copied().unwrap_or(done);
            let empty: BTreeSet<u32> =
                claimed[..done].iter().copied().filter(|one| left.contains(one)).collect();
            if !empty.is_empty() {
                self.free_claimed(&empty)?;
                left.retain(|segment| !empty.contains(segment));
            }
            if aim == Aim::Tidiness {
                std::thread::sleep((since(begun) * PAUSES).min(Duration::from_secs(2)));
            }
        }
        Ok(())
    }

    /// Releases claimed segments.
    pub(crate) fn free_claimed(&self, segments: &BTreeSet<u32>) -> Result<(), Errno> {
        self.fold_all()?;
        segments.iter().try_for_each(|segment| self.release(*segment, self.store.session()))
    }
}
