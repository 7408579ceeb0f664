//! Checksums of the blocks of members.
//!
//! Each member has a CRC-32C for each [`BLOCK`] of its units, so that the wrong copy is known when
//! members disagree. They are stored in pages in a region of the same member, and the pages in use
//! are cached in memory.
//!
//! Invariants:
//! - a page in memory is at least as new as the one on the member: `stored` never exceeds `made`;
//! - a page is written by one operation at a time, which `busy` marks, and an update is done when
//!   `stored` has reached it;
//! - an unreadable page makes its blocks count as wrong, and no more than that: they are repaired
//!   from redundancy like any others, and the page is rewritten with them;
//! - an entry changes only under the exclusive lock of its stripe, and together with data that the
//!   journal or the write-intent bitmap covers: a crash between the two leaves a difference that
//!   the resync repairs.

use crate::event::Event;
use crate::format::geometry::{BLOCK, Geometry, SUM};
use crate::format::section::Section;
use crate::format::sums_page::{self, entry_of};
use crate::member::{Member, MemberResult};
use crate::options::Options;
use crate::without::Mechanism;
use longhaul_block::{IoError, WriteFlags};
use longhaul_engine::BufMut;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::rc::Rc;

/// Pages read at once if pages are used in sequence: 64 MiB of a member's data pass without a wait
/// for checksums.
const AHEAD: u64 = 16;
/// Checksums of a page.
const PER_PAGE: u64 = BLOCK / SUM;
/// Stands for an unknown checksum: its block counts as wrong, since no content is expected to have
/// this value.
pub(crate) const UNKNOWN: u32 = 0x5EED_0BAD;
/// Pages that a scrub reads at a time.
const SCRUB_PAGES: u64 = 256;

pub(crate) struct Sums {
    geometry: Cell<Geometry>,
    pages: RefCell<HashMap<(usize, u64), Rc<SumsPage>>>,
    /// Pages that may be in a member's volatile cache only. They stay in memory, since they hold
    /// the checksums that the member must have if it loses its cache.
    unflushed: RefCell<BTreeMap<(usize, u64), Rc<SumsPage>>>,
    /// Maximum pages in memory.
    limit: usize,
    /// Accept any content; set where checksums are switched off.
    blind: bool,
}

#[derive(Default)]
struct SumsPage {
    entries: RefCell<Vec<u32>>,
    loaded: Cell<bool>,
    busy: Cell<bool>,
    /// Updates made, and updates that a completed write covers.
    made: Cell<u64>,
    stored: Cell<u64>,
    /// The member was replaced or went offline: the page does not describe it any more.
    detached: Cell<bool>,
    /// Used since the last eviction.
    recent: Cell<bool>,
    changed: Event,
}

/// Marks a page as being read or written until dropped, also if that task is cancelled, as the
/// loser of a race.
struct PageGuard(Rc<SumsPage>);

impl PageGuard {
    fn new(page: &Rc<SumsPage>) -> PageGuard {
        assert!(!page.busy.replace(true), "a page of checksums is read or written twice at a time");
        PageGuard(Rc::clone(page))
    }
}

impl Drop for PageGuard {
    fn drop(&mut self) {
        self.0.busy.set(false);
        self.0.changed.notify();
    }
}

impl Sums {
    pub(crate) fn new(geometry: Geometry, options: &Options) -> Sums {
        let (memory, blind) = (options.sums_memory, options.lacks(Mechanism::Checksums));
        let limit = (memory as u64 / BLOCK).max(2 * geometry.width as u64) as usize;
        let geometry = Cell::new(geometry);
        Sums { geometry, pages: RefCell::default(), unflushed: RefCell::default(), limit, blind }
    }

    /// The entries for the blocks of `bytes`.
    pub(crate) fn of(&self, bytes: &[u8]) -> Vec<u32> {
        bytes.chunks(BLOCK as usize).map(entry_of).collect()
    }

    /// The array has grown: what was on the members stays where it is.
    pub(crate) fn grow(&self, geometry: Geometry) {
        self.geometry.set(geometry);
    }

    fn has_sums(&self) -> bool {
        self.geometry.get().has_sums()
    }

    /// Number of the first checksum, and of checksums, of a range of a unit. They are counted from
    /// the start of the member, so that a page has the number of its block there.
    fn blocks(&self, row: u64, at: u64, len: u64) -> (u64, u64) {
        let geometry = self.geometry.get();
        let section = geometry.section_of(row);
        let within = ((row - section.rows.start) * geometry.unit + at) / BLOCK;
        (section.sums_at / SUM + within, len / BLOCK)
    }

    /// The pages of the section that has this one.
    fn section_pages(&self, number: u64) -> Range<u64> {
        let pages = |section: Section| {
            let first = section.sums_at / BLOCK;
            first..first + section.sums_len / BLOCK
        };
        let mut all = self.geometry.get().sections().map(pages);
        all.find(|pages| pages.contains(&number)).unwrap_or(number..number + 1)
    }

    fn page(&self, member: usize, number: u64) -> Rc<SumsPage> {
        let mut pages = self.pages.borrow_mut();
        if pages.len() >= self.limit && !pages.contains_key(&(member, number)) {
            evict(&mut pages);
        }
        let page = Rc::clone(pages.entry((member, number)).or_default());
        page.recent.set(true);
        page
    }

    /// Reads the pages of a range that are not in memory.
    pub(crate) async fn load(&self, member: &Member, row: u64, at: u64, len: u64) -> MemberResult<()> {
        if !self.has_sums() {
            return Ok(());
        }
        let (first, count) = self.blocks(row, at, len);
        for number in first / PER_PAGE..=(first + count - 1) / PER_PAGE {
            self.loaded(member, number).await?;
        }
        Ok(())
    }

    /// A page, once it is in memory.
    async fn loaded(&self, member: &Member, number: u64) -> MemberResult<Rc<SumsPage>> {
        loop {
            let page = self.page(member.index, number);
            page.changed.until(|| page.loaded.get() || !page.busy.get()).await;
            if page.loaded.get() && !page.detached.get() {
                return Ok(page);
            }
            if !page.detached.get() {
                self.fetch(member, number).await?;
            }
        }
    }

    /// Reads a page, and some behind it if pages are used in sequence.
    async fn fetch(&self, member: &Member, number: u64) -> MemberResult<()> {
        let is_known = |number: u64| self.pages.borrow().contains_key(&(member.index, number));
        let of_section = self.section_pages(number);
        let most = if number == of_section.start || is_known(number - 1) { AHEAD } else { 1 };
        let end = (number + most).min(of_section.end);
        let behind = (number + 1..end).take_while(|number| !is_known(*number)).count() as u64;
        let pages: Vec<Rc<SumsPage>> = (0..=behind).map(|n| self.page(member.index, number + n)).collect();
        let busy: Vec<PageGuard> = pages.iter().map(PageGuard::new).collect();
        let at = number * BLOCK;
        let read = member.read_around(at, pages.len() as u64 * BLOCK).await?;
        for (n, page) in pages.iter().enumerate() {
            let start = n * BLOCK as usize;
            let mut entries = sums_page::decode(&read.bytes[start..start + BLOCK as usize]);
            if read.unreadable.contains(&(start as u64)) {
                tracing::warn!("member {}: checksums at {} are unreadable", member.index, at + start as u64);
                entries.fill(UNKNOWN);
                page.made.set(page.made.get() + 1);
            }
            *page.entries.borrow_mut() = entries;
            page.loaded.set(true);
        }
        drop(busy);
        Ok(())
    }

    /// The blocks of a range (counted from its start) that do not match their checksums. The pages
    /// must be loaded; a page that was evicted meanwhile makes its blocks wrong, so that the caller
    /// must load it and try again.
    pub(crate) fn wrong(&self, member: usize, row: u64, at: u64, bytes: &[u8]) -> Vec<usize> {
        if !self.has_sums() || self.blind {
            return Vec::new();
        }
        let (first, _) = self.blocks(row, at, bytes.len() as u64);
        let sums = self.of(bytes).into_iter().enumerate();
        let stored = |i: usize| self.stored(member, first + i as u64);
        sums.filter(|(i, sum)| stored(*i) != Some(*sum)).map(|(i, _)| i).collect()
    }

    /// The blocks of a range whose checksum is known and does not match `bytes`. The pages should
    /// be loaded; checksums on evicted pages count as unknown.
    pub(crate) fn contradicted(&self, member: usize, row: u64, at: u64, bytes: &[u8]) -> Vec<usize> {
        if !self.has_sums() || self.blind {
            return Vec::new();
        }
        let (first, _) = self.blocks(row, at, bytes.len() as u64);
        let sums = self.of(bytes).into_iter().enumerate();
        let known = |i: usize| self.stored(member, first + i as u64).filter(|known| *known != UNKNOWN);
        sums.filter(|(i, sum)| known(*i).is_some_and(|known| known != *sum)).map(|(i, _)| i).collect()
    }

    /// The entry of a block, if its page is in memory.
    fn stored(&self, member: usize, number: u64) -> Option<u32> {
        let pages = self.pages.borrow();
        let page = pages.get(&(member, number / PER_PAGE))?;
        page.entries.borrow().get((number % PER_PAGE) as usize).copied()
    }

    /// Changes the entries of a range to `sums`, in memory and on the member.
    pub(crate) async fn update(&self, member: &Member, row: u64, at: u64, sums: &[u32]) -> MemberResult<()> {
        self.replace(member, row, at, sums, &mut Vec::new()).await
    }

    /// The same; adds the entries that were there to `before`.
    pub(crate) async fn replace(
        &self,
        member: &Member,
        row: u64,
        at: u64,
        sums: &[u32],
        before: &mut Vec<u32>,
    ) -> MemberResult<()> {
        if !self.has_sums() || sums.is_empty() {
            return Ok(());
        }
        let (first, count) = self.blocks(row, at, sums.len() as u64 * BLOCK);
        let mut waits = Vec::new();
        for number in first / PER_PAGE..=(first + count - 1) / PER_PAGE {
            let page = self.loaded(member, number).await?;
            let mut entries = page.entries.borrow_mut();
            for entry in number * PER_PAGE..(number + 1) * PER_PAGE {
                if (first..first + count).contains(&entry)
                    && let Some(slot) = entries.get_mut((entry % PER_PAGE) as usize)
                {
                    before.push(std::mem::replace(slot, sums[(entry - first) as usize]));
                }
            }
            page.made.set(page.made.get() + 1);
            drop(entries);
            waits.push((number, page.made.get(), page));
        }
        let stores = waits.into_iter().map(|(number, made, page)| self.store(member, number, page, made));
        futures_util::future::try_join_all(stores).await.map(drop)
    }

    /// Returns when update number `made` of a page is on the member.
    async fn store(&self, member: &Member, number: u64, page: Rc<SumsPage>, made: u64) -> MemberResult<()> {
        loop {
            page.changed.until(|| page.stored.get() >= made || !page.busy.get()).await;
            if page.stored.get() >= made || page.detached.get() {
                return Ok(());
            }
            // The member may have been lost during the wait.
            member.check_usable()?;
            let busy = PageGuard::new(&page);
            let covers = page.made.get();
            let at = number * BLOCK;
            let bytes = page.bytes().freeze();
            let mut result = member.write(at, bytes.clone(), WriteFlags::default()).await;
            if result.as_ref().is_err_and(|e| e.error == IoError::NoSpace) && bytes.iter().all(|b| *b == 0) {
                // What takes no space reads as zeroes.
                result = member.zero(at, BLOCK).await;
            }
            if result.is_ok() {
                assert!(page.stored.get() <= covers, "a page of checksums is stored before it is made");
                page.stored.set(covers);
                if member.has_volatile_cache() && !page.detached.get() {
                    self.unflushed.borrow_mut().insert((member.index, number), Rc::clone(&page));
                }
            }
            drop(busy);
            result?;
        }
    }

    /// Drops all pages of a member.
    pub(crate) fn forget(&self, member: usize) {
        self.pages.borrow_mut().retain(|(of, _), page| {
            page.detached.set(*of == member);
            *of != member
        });
        self.unflushed.borrow_mut().retain(|(of, _), _| *of != member);
    }

    /// Pages that a flush of a member which begins now makes durable, with their update numbers.
    pub(crate) fn flush_begins(&self, member: usize) -> Vec<(u64, u64)> {
        let unflushed = self.unflushed.borrow();
        let pages = unflushed.range((member, 0)..=(member, u64::MAX));
        pages.map(|((_, number), page)| (*number, page.stored.get())).collect()
    }

    /// Removes these pages from the unflushed ones, after the flush.
    pub(crate) fn flushed(&self, member: usize, pages: &[(u64, u64)]) {
        let mut unflushed = self.unflushed.borrow_mut();
        for (number, stored) in pages {
            if unflushed.get(&(member, *number)).is_some_and(|page| page.stored.get() == *stored) {
                unflushed.remove(&(member, *number));
            }
        }
    }

    /// Rewrites all pages that a member may have lost with its cache.
    pub(crate) async fn restore(&self, member: &Member) -> MemberResult<()> {
        let pages: Vec<(u64, Rc<SumsPage>)> = {
            let unflushed = self.unflushed.borrow();
            let of_it = unflushed.range((member.index, 0)..=(member.index, u64::MAX));
            of_it.map(|((_, number), page)| (*number, Rc::clone(page))).collect()
        };
        let stores = pages.into_iter().map(|(number, page)| {
            page.made.set(page.made.get() + 1);
            let made = page.made.get();
            self.store(member, number, page, made)
        });
        futures_util::future::try_join_all(stores).await.map(drop)
    }

    /// Verifies the pages on a member against memory, and rewrites unreadable and differing ones.
    /// Returns their number.
    pub(crate) async fn scrub(&self, member: &Member) -> MemberResult<u64> {
        let mut repaired = 0;
        for section in self.geometry.get().sections() {
            let first = section.sums_at / BLOCK;
            repaired += self.scrub_pages(member, first..first + section.sums_len / BLOCK).await?;
        }
        Ok(repaired)
    }

    async fn scrub_pages(&self, member: &Member, pages: Range<u64>) -> MemberResult<u64> {
        let (mut first, end) = (pages.start, pages.end);
        let mut repaired = 0;
        while first < end {
            let count = SCRUB_PAGES.min(end - first);
            let idle = |number: u64| {
                let page = self.pages.borrow().get(&(member.index, number)).cloned()?;
                let idle = page.loaded.get() && !page.busy.get() && page.stored.get() == page.made.get();
                idle.then(|| (page.made.get(), page))
            };
            let before: Vec<_> = (first..first + count).map(idle).collect();
            let read = member.read_around(first * BLOCK, count * BLOCK).await?;
            for (n, before) in before.into_iter().enumerate() {
                let start = n * BLOCK as usize;
                let unreadable = read.unreadable.contains(&(start as u64));
                let number = first + n as u64;
                let page = match before {
                    Some((made, page)) => {
                        let same = page.bytes()[..] == read.bytes[start..start + BLOCK as usize];
                        if page.made.get() != made || (same && !unreadable) {
                            continue;
                        }
                        page.made.set(made + 1);
                        page
                    }
                    None if unreadable => self.loaded(member, number).await?,
                    None => continue,
                };
                repaired += 1;
                let made = page.made.get();
                self.store(member, number, page, made).await?;
            }
            first += count;
        }
        Ok(repaired)
    }
}

impl SumsPage {
    /// The page as stored.
    fn bytes(&self) -> BufMut {
        sums_page::encode(&self.entries.borrow())
    }
}

/// Evicts pages that were not used lately and have no update to store.
fn evict(pages: &mut HashMap<(usize, u64), Rc<SumsPage>>) {
    let idle = |page: &Rc<SumsPage>| {
        Rc::strong_count(page) == 1 && !page.busy.get() && page.stored.get() == page.made.get()
    };
    let before = pages.len();
    pages.retain(|_, page| !idle(page) || page.recent.replace(false));
    if pages.len() == before {
        pages.retain(|_, page| !idle(page));
    }
}
