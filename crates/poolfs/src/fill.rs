//! Members that have moved, or were replaced: their units are written to the new place, segment by segment.
//!
//! | step | then the catalog has | a crash after it leaves |
//! |---|---|---|
//! | the settings name the new place | the place, and the former one if the member moves | a member that fills |
//! | units are written, in the order of segments | how far that is | the same |
//! | the settings name the new place alone | the place | nothing |
//!
//! Each session follows the settings. A transaction that adds extents expects that they are as they were when
//! these were written, so that no extent is added whose unit is at the former place alone.
//!
//! Invariants:
//! - a unit is written where it was made of others only while this session has its segment, which so is not used
//!   again meanwhile; and with the content that its checksum says;
//! - segments below the mark of a member have their units at its place.

use crate::content::MOVED;
use crate::extent::{BLOCK, Stripe};
use crate::schema::{decode_filled, encode_filled, unreadable};
use crate::session::FsSession;
use crate::settings::{FormerPlace, FsSettings, MemberPlace};
use crate::store::{Draft, lock};
use crate::stripe::unit;
use longhaul_catalog::Revision;
use longhaul_engine::since;
use longhaul_fs::Errno;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use uuid::Uuid;

/// Segments that are filled at a time: as many as this part of all, with one pass over the maps.
const BATCHES: u32 = 16;
const BATCH_LEAST: usize = 16;
/// Units that are made before they are written.
const UNITS: usize = 8;
/// How often it is looked whether a segment that another session has is released.
const LOOK: Duration = Duration::from_millis(500);
/// How often units are written that a member loses before they are durable.
const TRIES: usize = 5;

/// How far the filling of a member has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FillProgress {
    /// Segments done, and all.
    pub segments: (u32, u32),
    /// Bytes of units that were read or made and written.
    pub bytes: u64,
    /// Units that cannot be made from what is left.
    pub lost: u64,
}

impl FsSession {
    /// Uses the members where the settings say that they are.
    pub(crate) fn follow(&self) -> Result<(), Errno> {
        let key = self.store.keys().settings();
        let entry = self.store.get(&key)?.ok_or(Errno::IO)?;
        let _one = lock(&self.follows);
        let has_changed = entry.modified != self.store.settings_at();
        if !has_changed && !self.members.is_any_filling() {
            return Ok(());
        }
        let now = FsSettings::decode("", &entry.value).map_err(|e| {
            tracing::error!("{e}");
            Errno::IO
        })?;
        for member in 0..self.settings.members {
            let place = now.place(member);
            let filled = if place.fills { self.filled(member)? } else { 0 };
            self.members.follow(member, &place, u64::from(filled) * self.settings.segment);
        }
        self.segments.set_count(now.segments);
        self.follow_fencing(&now);
        if has_changed {
            // What is in them may be at the former place: they are released, so that they are filled.
            self.segments.end();
            self.store.set_settings_at(entry.modified);
        }
        Ok(())
    }

    /// Follows the members; whether they are used at other places now than at revision `before`. Another thread may
    /// have found that out meanwhile.
    ///
    /// What failed since then is tried again if so.
    pub(crate) fn have_moved_since(&self, before: Revision) -> bool {
        // Without the catalog, what is known here counts.
        let _ = self.follow();
        self.store.settings_at() != before
    }

    /// Part of a transaction that adds extents which were written as the members were at this revision.
    pub(crate) fn expect_members(&self, draft: &mut Draft<'_>, at: Revision) -> Result<(), Errno> {
        if draft.is_again() {
            self.follow()?;
        }
        if self.store.settings_at() != at {
            return Err(MOVED);
        }
        draft.expect_settings(at);
        Ok(())
    }

    fn filled(&self, member: usize) -> Result<u32, Errno> {
        let found = self.store.get(&self.store.keys().filled(member as u64))?;
        found.map_or(Ok(0), |entry| {
            decode_filled(&entry.value).ok_or_else(|| unreadable("the progress of a member", &entry.value))
        })
    }

    fn change_settings(&self, change: impl Fn(&mut FsSettings)) -> Result<(), Errno> {
        let key = self.store.keys().settings();
        self.store.change(|draft| {
            let bytes = draft.get(&key)?.ok_or(Errno::IO)?;
            let mut settings = FsSettings::decode("", &bytes).map_err(|_| Errno::IO)?;
            let before = settings.clone();
            change(&mut settings);
            if settings != before {
                draft.put(&key, settings.encode());
            }
            Ok(())
        })?;
        self.follow()
    }

    /// The file system has as many segments from now on, if it has fewer.
    pub(crate) fn grow(&self, segments: u32) -> Result<(), Errno> {
        self.change_settings(|settings| settings.segments = segments.max(settings.segments))
    }

    /// A member is at this namespace from now on, which is to be filled. It is read at its former place if it
    /// moves; otherwise that counts as lost.
    pub(crate) fn place_member(&self, member: usize, to: Uuid, moves: bool) -> Result<(), Errno> {
        let mark = self.store.keys().filled(member as u64);
        if self.place(member)?.namespace != Some(to) {
            // Of an earlier move there is nothing left: it has ended, or its new place is lost.
            self.store.change(|draft| {
                draft.put(&mark, encode_filled(0));
                Ok(())
            })?;
        }
        self.change_settings(|settings| {
            let before = settings.place(member);
            if before.namespace != Some(to) {
                let former = match before.fills {
                    // What was not filled yet is where it was before.
                    true => before.former,
                    false => moves.then_some(FormerPlace { namespace: before.namespace }),
                };
                settings.set_place(member, MemberPlace { namespace: Some(to), fills: true, former });
            }
        })
    }

    /// Where a member is.
    pub(crate) fn place(&self, member: usize) -> Result<MemberPlace, Errno> {
        let entry = self.store.get(&self.store.keys().settings())?.ok_or(Errno::IO)?;
        Ok(FsSettings::decode("", &entry.value).map_err(|_| Errno::IO)?.place(member))
    }

    /// Writes what a member is to have to its new place, with `limit` bytes a second at most.
    pub(crate) fn fill(
        &self,
        member: usize,
        limit: Option<u64>,
        show: &mut dyn FnMut(&FillProgress),
    ) -> Result<FillProgress, Errno> {
        let all = self.segments.count();
        let mut done = FillProgress { segments: (self.filled(member)?, all), ..FillProgress::default() };
        let begun = longhaul_engine::now();
        while self.place(member)?.fills {
            self.clean()?;
            show(&done);
            let next = done.segments.0;
            let used: BTreeSet<u32> =
                self.segments.all(&self.store)?.into_keys().filter(|n| *n >= next).collect();
            let count = BATCH_LEAST.max((all / BATCHES) as usize);
            let batch: Vec<u32> = used.iter().copied().take(count).collect();
            // Those that are free get what is new, and that is at the new place.
            let until = used.iter().copied().nth(count).unwrap_or(all);
            let mut left: BTreeSet<u32> = batch.iter().copied().collect();
            while !left.is_empty() {
                if self.is_ending.load(Relaxed) {
                    return Err(Errno::INTR);
                }
                let wanted: Vec<u32> = left.iter().copied().collect();
                let claimed = self.claim(&wanted)?;
                let filled = self.fill_segments(member, &claimed, &mut done, &mut |bytes| {
                    let due = limit.map_or(0.0, |limit| bytes as f64 / limit.max(1) as f64);
                    std::thread::sleep(Duration::from_secs_f64(due).saturating_sub(since(begun)));
                });
                self.free_claimed(&claimed.iter().copied().collect())?;
                filled?;
                if done.lost > 0 && self.place(member)?.former.is_some() {
                    // Its former place may have them yet, when it can be reached again.
                    return Err(Errno::IO);
                }
                let used = self.segments.all(&self.store)?;
                left.retain(|segment| !claimed.contains(segment) && used.contains_key(segment));
                if !left.is_empty() {
                    // Another session writes to it, or moves content out of it, or was lost.
                    std::thread::sleep(LOOK);
                    self.clean()?;
                }
            }
            done.segments.0 = until;
            self.store.change(|draft| {
                draft.put(&draft.keys().filled(member as u64), encode_filled(until));
                Ok(())
            })?;
            show(&done);
            if until >= all {
                break;
            }
        }
        self.change_settings(|settings| {
            let place = MemberPlace { fills: false, former: None, ..settings.place(member) };
            settings.set_place(member, place);
        })?;
        let mark = self.store.keys().filled(member as u64);
        self.store.change(|draft| {
            draft.delete(&mark);
            Ok(())
        })?;
        Ok(done)
    }

    /// Writes the units of a member that are in claimed segments.
    fn fill_segments(
        &self,
        member: usize,
        segments: &[u32],
        done: &mut FillProgress,
        pause: &mut dyn FnMut(u64),
    ) -> Result<(), Errno> {
        if segments.is_empty() {
            return Ok(());
        }
        let is_here = |stripe: &Stripe| stripe.units.iter().any(|unit| usize::from(unit.member) == member);
        let found = self.extents_in(&|segment| segments.contains(&segment))?;
        let stripes: HashSet<Arc<Stripe>> =
            found.into_iter().map(|(_, extent)| extent.stripe).filter(|stripe| is_here(stripe)).collect();
        let stripes: Vec<Arc<Stripe>> = stripes.into_iter().collect();
        for _ in 0..TRIES {
            let mut lost = 0;
            let mut generations = HashSet::new();
            for part in stripes.chunks(UNITS) {
                let (made, gone) = self.fill_stripes(member, part)?;
                lost += gone;
                done.bytes += part.iter().map(|stripe| u64::from(stripe.unit)).sum::<u64>();
                generations.extend(made);
                pause(done.bytes);
            }
            let durable = self.members.flush_all([member as u8]).remove(&(member as u8)).flatten();
            // All of it in one life of the device.
            if durable.is_some() && generations.iter().all(|made| Some(*made) == durable) {
                done.lost += lost;
                return Ok(());
            }
        }
        tracing::error!("member {member} loses what is written to it, or cannot be reached");
        Err(Errno::IO)
    }

    /// The generations in which units were written, and how many units are lost.
    fn fill_stripes(&self, member: usize, stripes: &[Arc<Stripe>]) -> Result<(Vec<u64>, u64), Errno> {
        let index = |stripe: &Stripe| stripe.units.iter().position(|unit| usize::from(unit.member) == member);
        let all: Vec<(&Arc<Stripe>, usize)> =
            stripes.iter().filter_map(|stripe| Some((stripe, index(stripe)?))).collect();
        let reads: Vec<_> = all
            .iter()
            .map(|(stripe, index)| {
                let unit = &stripe.units[*index];
                self.members.read_now(unit.member, unit.block * BLOCK, stripe.unit as usize)
            })
            .collect();
        let (mut writes, mut lost) = (Vec::new(), 0);
        for ((stripe, index), read) in all.into_iter().zip(reads) {
            let place = &stripe.units[index];
            let is_there =
                self.members.wait(read).is_ok_and(|bytes| crc_fast::crc32_iscsi(&bytes) == place.sum);
            if is_there {
                continue;
            }
            match unit(&self.members, stripe, index) {
                Ok(bytes) => {
                    writes.push(self.members.write(place.member, place.block * BLOCK, bytes.freeze()));
                }
                Err(e) => {
                    tracing::error!("a unit of member {member} is lost: {e}");
                    lost += 1;
                }
            }
        }
        let written: Result<Vec<u64>, _> = writes.into_iter().map(|write| self.members.wait(write)).collect();
        Ok((written.map_err(|_| Errno::IO)?, lost))
    }
}
