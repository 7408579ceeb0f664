//! Where stripes are written: segments, which belong to one session at a time.
//!
//! A segment is the same range of every member. A session takes a free one by a transaction, fills it with
//! stripes, each unit behind the last one on its member, and releases it when all of its stripes are in a
//! file or were given up. From then on bytes of it are only freed; once all are, it is free again.
//!
//! What is moved out of other segments goes to segments of its own, and the last free ones are kept for that:
//! so room can be made while none is left for what is new.
//!
//! Taking a segment takes round trips to the catalog, in which no stripe would be written: so the next one is
//! taken while the one that is written to fills up, if many are free.
//!
//! Invariants:
//! - no place in a segment is given out twice while the session has it;
//! - a segment is released when no stripe of it is still to be committed.

use crate::extent::BLOCK;
use crate::schema::{Account, SegmentRecord};
use crate::settings::FsSettings;
use crate::store::{Store, lock, wait};
use longhaul_fs::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard};

/// Where the units of a stripe are: member, and byte on it.
pub(crate) type StripePlaces = Vec<(u8, u64)>;

/// Free segments that only moves may take.
pub(crate) const RESERVED: usize = 2;

/// The next segment is taken when a member has used this part of the one that is written to.
const AHEAD: u64 = 4;
/// Segments that are left to others before one is taken ahead: as many, and this part of all.
const PLENTY: usize = 4;
const PLENTY_PART: usize = 8;

/// What fills a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filler {
    /// What programs write.
    Writes,
    /// Content that moves out of other segments.
    Moves,
}

/// A stripe for which places are sought.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedStripe {
    pub(crate) units: usize,
    /// Bytes of a unit.
    pub(crate) unit: u64,
    /// Which stripe of its file it is, if it is a full one: the first unit goes round the members by that, in
    /// whatever order stripes are written. Parity is not read: were that of successive stripes on one member,
    /// a reader would have no use of its link.
    pub(crate) number: Option<u64>,
    pub(crate) filler: Filler,
}

/// Bytes of a segment that is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentUse {
    /// The session that has it; 0 without one.
    pub(crate) session: u64,
    /// Bytes of files.
    pub(crate) live: u64,
}

/// A segment that the session writes to.
struct FillingSegment {
    number: u32,
    /// It was written to since the books were made up last.
    is_used: bool,
    /// The thread was told to take the next one.
    has_asked: bool,
    /// Bytes that are used on each member.
    used: Vec<u64>,
}

/// What the thread does that takes segments ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ahead {
    /// The thread has not begun, or has ended.
    #[default]
    Absent,
    /// The thread waits.
    Waits,
    /// The thread is to take a segment.
    Wanted,
    /// The thread takes a segment.
    Takes,
}

#[derive(Default)]
struct SegmentsState {
    filling: [Option<FillingSegment>; 2],
    /// The one for writes that follows.
    next: Option<u32>,
    ahead: Ahead,
    /// Stripes that are not committed yet, by segment, of all that this session has.
    uncommitted: BTreeMap<u32, u64>,
    /// Rises with each stripe: the first unit of those without a number goes round the members.
    turn: usize,
}

/// The segments of a session.
pub(crate) struct Segments {
    settings: FsSettings,
    /// Number of segments, which grows.
    count: AtomicU32,
    state: Mutex<SegmentsState>,
    changed: Condvar,
}

impl Segments {
    pub(crate) fn new(settings: &FsSettings) -> Segments {
        Segments {
            settings: settings.clone(),
            count: AtomicU32::new(settings.segments),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn wait<'s>(&self, state: MutexGuard<'s, SegmentsState>) -> MutexGuard<'s, SegmentsState> {
        wait(&self.changed, state)
    }

    /// Places for a stripe on as many of the `live` members as it has units. The stripe has to be
    /// [committed](Self::committed) or given up.
    ///
    /// # Errors
    /// `ENOSPC` if no segment is free; `EIO` if too few members are live.
    pub(crate) fn allocate(
        &self,
        store: &Store,
        live: &[bool],
        wanted: &WantedStripe,
    ) -> Result<StripePlaces, Errno> {
        let mut state = lock(&self.state);
        loop {
            if let Some(places) = self.place(&mut state, live, wanted) {
                return Ok(places);
            }
            if live.iter().filter(|is_live| **is_live).count() < wanted.units {
                return Err(Errno::IO);
            }
            let filler = wanted.filler;
            let is_for_writes = filler == Filler::Writes;
            if is_for_writes && matches!(state.ahead, Ahead::Wanted | Ahead::Takes) {
                // Others wait too, and the first of them puts it to use.
                state = self.wait(state);
                continue;
            }
            let next = if is_for_writes { state.next.take() } else { None };
            let number = match next {
                Some(next) => next,
                None => self.take(store, filler)?,
            };
            state.uncommitted.entry(number).or_default();
            let used = vec![0; self.settings.members];
            state.filling[filler as usize] =
                Some(FillingSegment { number, is_used: true, has_asked: false, used });
        }
    }

    fn place(&self, state: &mut SegmentsState, live: &[bool], wanted: &WantedStripe) -> Option<StripePlaces> {
        let WantedStripe { units, unit, number, filler } = *wanted;
        let filling = state.filling[filler as usize].as_mut()?;
        let members = self.settings.members;
        let has_room =
            |member: &usize| live[*member] && filling.used[*member] + unit <= self.settings.segment;
        let mut chosen: Vec<usize> =
            (0..members).map(|at| (at + state.turn) % members).filter(has_room).collect();
        // The emptiest first, so that all are full at about the same time.
        chosen.sort_by_key(|member| filling.used[*member]);
        chosen.truncate(units);
        if chosen.len() < units {
            return None;
        }
        if let Some(number) = number {
            chosen.sort_unstable();
            chosen.rotate_left((number % units as u64) as usize);
        }
        state.turn += 1;
        filling.is_used = true;
        *state.uncommitted.entry(filling.number).or_default() += 1;
        let from = u64::from(filling.number) * self.settings.segment;
        let place = |member: usize| {
            let at = from + filling.used[member];
            filling.used[member] += unit;
            (member as u8, at)
        };
        let places = chosen.into_iter().map(place).collect();
        let fills_up = filling.used.iter().any(|used| *used >= self.settings.segment / AHEAD);
        let asks = filler == Filler::Writes && fills_up && !filling.has_asked;
        if asks && state.next.is_none() && state.ahead == Ahead::Waits {
            filling.has_asked = true;
            state.ahead = Ahead::Wanted;
            self.changed.notify_all();
        }
        Some(places)
    }

    /// Takes segments ahead, until [`end_ahead`](Self::end_ahead).
    pub(crate) fn take_ahead(&self, store: &Store) {
        let mut state = lock(&self.state);
        loop {
            while state.ahead == Ahead::Waits {
                state = self.wait(state);
            }
            if state.ahead == Ahead::Absent {
                return;
            }
            state.ahead = Ahead::Takes;
            drop(state);
            let taken = self.take_of_many(store, PLENTY.max(self.count() as usize / PLENTY_PART));
            state = lock(&self.state);
            match taken {
                Ok(number) => {
                    state.uncommitted.entry(number).or_default();
                    state.next = Some(number);
                }
                // The writer that needs one takes it, and gets the error.
                Err(e) => tracing::debug!("no segment is taken ahead: {e}"),
            }
            state.ahead = Ahead::Waits;
            self.changed.notify_all();
        }
    }

    /// A thread is going to take segments ahead.
    pub(crate) fn begin_ahead(&self) {
        lock(&self.state).ahead = Ahead::Waits;
    }

    /// None is taken ahead any more.
    pub(crate) fn end_ahead(&self) {
        let mut state = lock(&self.state);
        while state.ahead == Ahead::Takes {
            state = self.wait(state);
        }
        state.ahead = Ahead::Absent;
        drop(state);
        self.changed.notify_all();
    }

    /// Bytes that `units` of the live members have left each in the segment that is being filled.
    pub(crate) fn left(&self, filler: Filler, live: &[bool], units: usize) -> u64 {
        let state = lock(&self.state);
        let Some(filling) = &state.filling[filler as usize] else { return 0 };
        let mut left: Vec<u64> = (0..self.settings.members)
            .filter(|member| live[*member])
            .map(|member| self.settings.segment - filling.used[member])
            .collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        units.checked_sub(1).and_then(|last| left.get(last).copied()).unwrap_or(0)
    }

    /// Takes a free segment.
    fn take(&self, store: &Store, filler: Filler) -> Result<u32, Errno> {
        self.take_of_many(store, if filler == Filler::Writes { RESERVED } else { 0 })
    }

    /// Takes a free segment, if more than this are free.
    fn take_of_many(&self, store: &Store, others: usize) -> Result<u32, Errno> {
        loop {
            let taken: BTreeSet<u32> = self.all(store)?.into_keys().collect();
            let free: Vec<u32> = (0..self.count()).filter(|number| !taken.contains(number)).collect();
            if free.len() <= others {
                return Err(Errno::NOSPC);
            }
            // Any of them, so that sessions seldom want the same one.
            let Some(number) = fastrand::choice(&free) else { return Err(Errno::NOSPC) };
            let record = SegmentRecord { session: store.session(), added: 0, freed: 0 };
            let key = store.keys().segment(*number);
            let is_taken = store.change(|draft| {
                if !draft.suppose_absent(&key)? {
                    return Ok(false);
                }
                draft.put(&key, record.encode());
                Ok(true)
            })?;
            if is_taken {
                return Ok(*number);
            }
        }
    }

    /// All segments that are not free.
    pub(crate) fn all(&self, store: &Store) -> Result<BTreeMap<u32, SegmentRecord>, Errno> {
        let keys = store.keys();
        let mut all = BTreeMap::new();
        for entry in store.range(&keys.segments())? {
            let number = keys.parse(&entry.key, 1).and_then(|(numbers, _)| u32::try_from(numbers[0]).ok());
            let record = SegmentRecord::decode(&entry.value);
            let (Some(number), Some(record)) = (number, record) else {
                return Err(crate::schema::unreadable("the record of a segment", &entry.value));
            };
            all.insert(number, record);
        }
        Ok(all)
    }

    /// Number of all segments.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Relaxed)
    }

    pub(crate) fn set_count(&self, count: u32) {
        self.count.store(count, Relaxed);
    }

    /// All segments that are not free, with what is not added up yet.
    pub(crate) fn in_use(&self, store: &Store) -> Result<BTreeMap<u32, SegmentUse>, Errno> {
        let records = self.all(store)?;
        let accounts = store.range(&store.keys().accounts())?;
        SegmentUse::sum(records, accounts.iter().map(|entry| &entry.value[..]))
            .ok_or_else(|| crate::schema::unreadable("an account", &[]))
    }

    /// Whether this session writes to the segment, or has stripes there that are not committed.
    pub(crate) fn holds(&self, segment: u32) -> bool {
        lock(&self.state).uncommitted.contains_key(&segment)
    }

    /// Gives up the segments that were not written to since this was called last.
    pub(crate) fn give_up_idle(&self) {
        let mut state = lock(&self.state);
        state.next = None;
        for filling in &mut state.filling {
            match filling {
                Some(used) if used.is_used => used.is_used = false,
                idle => *idle = None,
            }
        }
    }

    /// A stripe of the segment was committed, or given up.
    pub(crate) fn committed(&self, segment: u32) {
        if let Some(count) = lock(&self.state).uncommitted.get_mut(&segment) {
            *count = count.saturating_sub(1);
        }
    }

    /// The segments that the session does not write to any more, all of whose stripes are committed.
    pub(crate) fn full(&self) -> Vec<u32> {
        let state = lock(&self.state);
        let is_filling = |number: u32| {
            state.next == Some(number) || state.filling.iter().flatten().any(|one| one.number == number)
        };
        let is_full =
            |(number, count): (&u32, &u64)| (*count == 0 && !is_filling(*number)).then_some(*number);
        state.uncommitted.iter().filter_map(is_full).collect()
    }

    /// The session has released the segment.
    pub(crate) fn released(&self, segment: u32) {
        lock(&self.state).uncommitted.remove(&segment);
    }

    /// What is written next goes to other segments.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.state);
        (state.filling, state.next) = ([None, None], None);
    }

    /// Bytes of content that a segment has room for.
    pub(crate) fn room(settings: &FsSettings) -> u64 {
        let FsSettings { members, data, parity, segment, .. } = settings;
        segment * *members as u64 * *data as u64 / (data + parity) as u64
    }

    /// Bytes of content that as many segments have room for, but for those that are kept for moves.
    pub(crate) fn size(settings: &FsSettings, segments: u32) -> u64 {
        u64::from(segments).saturating_sub(RESERVED as u64) * Segments::room(settings)
    }

    /// Bytes of content for which there is room, with that of what is dead and of what moves would free.
    pub(crate) fn available(settings: &FsSettings, segments: u32, used: &BTreeMap<u32, SegmentUse>) -> u64 {
        Segments::size(settings, segments).saturating_sub(used.values().map(|segment| segment.live).sum())
    }

    /// Whether a place is at the beginning of a block, and within the members.
    pub(crate) fn is_within(settings: &FsSettings, block: u64, unit: u64) -> bool {
        let (at, size) = (block * BLOCK, u64::from(settings.segments) * settings.segment);
        at + unit <= size && at / settings.segment == (at + unit - 1) / settings.segment
    }
}

impl SegmentUse {
    /// The records of segments with those of transactions that are not added to them yet; `None` if one cannot
    /// be read.
    pub(crate) fn sum<'a>(
        records: BTreeMap<u32, SegmentRecord>,
        accounts: impl Iterator<Item = &'a [u8]>,
    ) -> Option<BTreeMap<u32, SegmentUse>> {
        let mut records = records;
        for account in accounts {
            for (segment, (added, freed)) in Account::decode(account)?.segments {
                // One that is free by now was added up since the records were read.
                if let Some(record) = records.get_mut(&segment) {
                    record.added += added;
                    record.freed += freed;
                }
            }
        }
        let used = |record: SegmentRecord| SegmentUse {
            session: record.session,
            live: record.added.saturating_sub(record.freed),
        };
        Some(records.into_iter().map(|(number, record)| (number, used(record))).collect())
    }
}
