//! Segments that nothing refers to any more become free, and what lost hosts leave is removed.
//!
//! What a transaction adds to segments and frees there is in a record of its own, so that transactions of
//! different hosts never wait for each other. These records are added up here, later.
//!
//! Invariant: a segment has no session only if all that was added to it is in its record. So bytes that are
//! added and not freed are those of extents, and a segment without a session in which both are equal has no
//! extent and gets none.

use crate::quota::{Owner, Usage, add_usage};
use crate::schema::{Account, SegmentRecord, decode_orphan, unreadable};
use crate::session::FsSession;
use crate::store::{Draft, lock};
use longhaul_catalog::Entry;
use longhaul_fs::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Records that one transaction adds up, and segments, users and groups that it changes: half of what a transaction
/// may have each.
pub(crate) const FOLDED: usize = 48;
/// Segments that it releases as well.
const RELEASED: usize = 24;

fn read_record(bytes: &[u8]) -> Result<SegmentRecord, Errno> {
    SegmentRecord::decode(bytes).ok_or_else(|| unreadable("the record of a segment", bytes))
}

/// Puts the record of a segment, which is free if nothing is left of it.
fn put_record(draft: &mut Draft<'_>, segment: u32, record: &SegmentRecord) {
    let key = draft.keys().segment(segment);
    match record.session == 0 && record.added == record.freed {
        true => draft.delete(&key),
        false => draft.put(&key, record.encode()),
    }
}

impl FsSession {
    /// Makes up the books of segments, frees those without content, and removes what lost hosts leave. At the end of a
    /// session, only what is its own. A snapshot follows its members.
    pub(crate) fn clean(&self) -> Result<(), Errno> {
        let _one = lock(&self.cleans);
        if self.is_snapshot {
            return self.follow();
        }
        let is_ending = self.is_ending.load(Relaxed);
        if !is_ending {
            self.follow()?;
            // Others wait for what is not used: for room, or to fill a member.
            if self.members.is_any_filling() || self.is_short_of_room()? {
                self.segments.give_up_idle();
            }
        }
        let full = self.segments.full();
        // What is in the full ones was committed before this.
        self.fold_and_release(self.store.session(), &full)?;
        full.into_iter().for_each(|segment| self.segments.released(segment));
        if is_ending {
            return Ok(());
        }
        self.clean_up()?;
        self.store.refresh_quotas()
    }

    /// Adds up the records of a session.
    pub(crate) fn fold(&self, session: u64) -> Result<(), Errno> {
        self.fold_and_release(session, &[])
    }

    /// As [`fold`](Self::fold); the session writes to the segments `full` no more, and has committed all that it wrote
    /// there.
    fn fold_and_release(&self, session: u64, full: &[u32]) -> Result<(), Errno> {
        let keys = self.store.keys();
        let prefix = keys.account(session, 0);
        let prefix = &prefix[..prefix.len() - 8];
        let is_released = loop {
            let page = self.store.page(prefix, prefix, FOLDED)?;
            let is_last = page.len() < FOLDED;
            let release = if is_last && full.len() <= RELEASED { full } else { &[] };
            if page.is_empty() && release.is_empty() {
                break false;
            }
            let is_done = self.store.change(|draft| self.put_folded(draft, &page, session, release))?;
            if is_last && is_done {
                break !release.is_empty();
            }
        };
        if is_released {
            return Ok(());
        }
        full.iter().try_for_each(|segment| self.release(*segment, session))
    }

    /// Adds up a page of records, and releases segments if that is all of it; whether it is. A record of very many
    /// segments is added up in parts.
    fn put_folded(
        &self,
        draft: &mut Draft<'_>,
        page: &[Entry],
        session: u64,
        release: &[u32],
    ) -> Result<bool, Errno> {
        // Another session may have done it, if this one counts as lost.
        let accounts = draft.as_read(page)?;
        let mut sum: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        let mut usage: BTreeMap<Owner, Usage> = BTreeMap::new();
        let counted = draft.snapshots().quotas;
        let mut is_done = true;
        for entry in accounts {
            let Account { segments: mut account, usage: mut changes } =
                Account::decode(&entry.value).ok_or_else(|| unreadable("an account", &entry.value))?;
            let mut left = Account::default();
            while let Some((segment, (added, freed))) = account.pop_first() {
                if sum.len() + usage.len() >= FOLDED && !sum.contains_key(&segment) {
                    left.segments.insert(segment, (added, freed));
                    continue;
                }
                let of = sum.entry(segment).or_default();
                *of = (of.0 + added, of.1 + freed);
            }
            left.usage.generation = changes.generation;
            while counted.counts()
                && changes.generation == counted.generation
                && let Some((owner, change)) = changes.of.pop_first()
            {
                match sum.len() + usage.len() >= FOLDED && !usage.contains_key(&owner) {
                    true => drop(left.usage.of.insert(owner, change)),
                    false => *usage.entry(owner).or_default() += change,
                }
            }
            is_done &= left.is_empty();
            match left.is_empty() {
                true => draft.delete(&entry.key),
                false => draft.put(&entry.key, left.encode()),
            }
        }
        add_usage(draft, counted, usage)?;
        let release = if is_done { release } else { &[] };
        let touched: BTreeSet<u32> = sum.keys().chain(release).copied().collect();
        let touched: Vec<Vec<u8>> = touched.iter().map(|segment| draft.keys().segment(*segment)).collect();
        let records = draft.get_all(&touched)?;
        let known = |segment: u32| records.iter().find(|entry| entry.key == draft.keys().segment(segment));
        let mut booked: BTreeMap<u32, SegmentRecord> = BTreeMap::new();
        for (segment, (added, freed)) in sum {
            let Some(entry) = known(segment) else {
                tracing::error!("segment {segment} has content, and counts as free: run 'longhaul fs check'");
                continue;
            };
            let mut record = read_record(&entry.value)?;
            record.added += added;
            record.freed += freed;
            booked.insert(segment, record);
        }
        for segment in release {
            let record = match (booked.remove(segment), known(*segment)) {
                (Some(record), _) => record,
                (None, Some(entry)) => read_record(&entry.value)?,
                (None, None) => continue,
            };
            let holder = if record.session == session { 0 } else { record.session };
            booked.insert(*segment, SegmentRecord { session: holder, ..record });
        }
        for (segment, record) in booked {
            put_record(draft, segment, &record);
        }
        Ok(is_done)
    }

    /// Adds up the records of all sessions: what others have freed may be all that is left of a segment.
    pub(crate) fn fold_all(&self) -> Result<(), Errno> {
        self.sessions_with_accounts(u64::MAX)?.into_iter().try_for_each(|session| self.fold(session))
    }

    /// A session writes to a segment no more.
    pub(crate) fn release(&self, segment: u32, session: u64) -> Result<(), Errno> {
        self.store.change(|draft| {
            let Some(bytes) = draft.get(&draft.keys().segment(segment))? else { return Ok(()) };
            let record = read_record(&bytes)?;
            if record.session == session {
                put_record(draft, segment, &SegmentRecord { session: 0, ..record });
            }
            Ok(())
        })
    }

    /// Takes over what sessions leave that are over.
    fn clean_up(&self) -> Result<(), Errno> {
        let keys = self.store.keys();
        let segments = self.segments.all(&self.store)?;
        let numbers = |entries: Vec<longhaul_catalog::Entry>| -> Vec<u64> {
            entries.iter().filter_map(|entry| Some(keys.parse(&entry.key, 1)?.0[0])).collect()
        };
        let mut orphans: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for entry in self.store.range(&keys.orphans())? {
            let session = decode_orphan(&entry.value).ok_or_else(|| unreadable("an orphan", &entry.value))?;
            orphans
                .entry(session)
                .or_default()
                .extend(keys.parse(&entry.key, 1).map(|(numbers, _)| numbers[0]));
        }
        let mut named: BTreeSet<u64> = segments.values().map(|record| record.session).collect();
        named.extend(orphans.keys());
        named.extend(numbers(self.store.page(&keys.accounts(), &keys.accounts(), 1)?));
        named.remove(&0);
        if named.iter().all(|session| *session == self.store.session()) {
            return Ok(());
        }
        // Read last: a session whose things were seen before was there before.
        let live: BTreeSet<u64> = numbers(self.store.range(&keys.sessions())?).into_iter().collect();
        let all_named = named.iter().chain(&live);
        let accounted = self.sessions_with_accounts(all_named.copied().max().unwrap_or(0))?;
        named.extend(accounted);
        lock(&self.over).retain(|session, _| named.contains(session) && !live.contains(session));
        for session in named.into_iter().filter(|session| !live.contains(session)) {
            if !self.is_settled(session) {
                continue;
            }
            tracing::info!("session {session} is over: what it leaves is taken over");
            self.locks.sweep_later();
            for inode in orphans.remove(&session).unwrap_or_default() {
                self.reap(inode)?;
            }
            self.fold(session)?;
            for (segment, _) in segments.iter().filter(|(_, record)| record.session == session) {
                self.release(*segment, session)?;
            }
        }
        // What was removed for others is in books of this session.
        self.fold(self.store.session())
    }

    /// Sessions that have records which are not added up.
    fn sessions_with_accounts(&self, last: u64) -> Result<BTreeSet<u64>, Errno> {
        let keys = self.store.keys();
        let (mut found, mut after) = (BTreeSet::new(), keys.accounts());
        loop {
            let page = self.store.page(&keys.accounts(), &after, 1)?;
            let Some((numbers, _)) = page.first().and_then(|entry| keys.parse(&entry.key, 2)) else {
                return Ok(found);
            };
            found.insert(numbers[0]);
            if numbers[0] > last {
                return Ok(found);
            }
            after = keys.account(numbers[0], u64::MAX);
        }
    }

    /// What is done now and then.
    fn tidy_up(&self) -> Result<(), Errno> {
        // A snapshot changes nothing: it follows its members alone.
        if self.is_snapshot {
            return self.clean();
        }
        self.store.reaper.retry();
        self.clean()?;
        if self.locks.sweeps() {
            self.sweep_locks()?;
        }
        self.begin_fencing()?;
        self.sweep_registrations()?;
        self.repair_noted().map(drop)?;
        self.compact_ahead()
    }

    /// Cleans at this interval until the sender is dropped.
    pub(crate) fn clean_always(self: &Arc<FsSession>, interval: Duration) -> std::io::Result<Sender<()>> {
        let (end, ended) = channel::<()>();
        let session = Arc::clone(self);
        std::thread::Builder::new().name("longhaul-clean".into()).spawn(move || {
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                if session.store.has_ended() {
                    return;
                }
                if let Err(e) = session.tidy_up() {
                    tracing::debug!("the books are made up later: {e}");
                }
            }
        })?;
        Ok(end)
    }
}
