//! The write-intent bitmap: marks the regions in which members may differ.
//!
//! A bit stands for a region of all members. It is set on every member in use before a write to the
//! region, and cleared some time after the last write. After a crash only regions with a set bit
//! need a resync. While a member is offline no bit is cleared, so that the bits show what the
//! member has missed.
//!
//! Invariants:
//! - a write to a region is under way, and counted in `users`, only while its bit in `durable` is
//!   set: it is set on every member in use;
//! - a bit of `set` is cleared only when `users` counts no write to its region, all earlier ones are
//!   durable, and no member is offline or in resync;
//! - a page that is `busy` is written by one task at a time;
//! - if a page is damaged on all active members, every region of it counts as marked.

use crate::core::Core;
use crate::event::Event;
use crate::format::bytes::{Reader, Writer, open, seal};
use crate::format::geometry::{BLOCK, INTENT_AT, INTENT_LEN};
use crate::member::Member;
use crate::without::Mechanism;
use futures_util::future::join_all;
use longhaul_block::IoResult;
use longhaul_engine::{Buf, now, spawn};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;
use uuid::Uuid;

/// Bytes of a page before its bits: checksum, array, number, reserved.
const HEAD: usize = 32;
/// Most regions that are marked ahead of a writer: a crash makes each a needless resync.
const AHEAD_MAX: u64 = 32;
/// Bits of a page.
const PER_PAGE: u64 = (BLOCK - HEAD as u64) * 8;
/// Bits of the bitmap.
pub(crate) const BITS_MAX: u64 = PER_PAGE * (INTENT_LEN / BLOCK);

pub(crate) struct Intent {
    array: Uuid,
    regions: Cell<u64>,
    /// Bits that are set, or about to be.
    set: RefCell<Vec<u64>>,
    /// Bits that are set on all members in use.
    durable: RefCell<Vec<u64>>,
    /// Pages that are being written.
    busy: RefCell<Vec<bool>>,
    /// Writes under way by region, and the end of the last one.
    users: RefCell<HashMap<u64, (usize, Instant)>>,
    changed: Event,
    /// Bitmap writes done, for tests and statistics.
    pub(crate) writes: Cell<u64>,
}

/// A write to a marked region; it ends when this is dropped.
pub(crate) struct MarkGuard {
    intent: Rc<Intent>,
    region: u64,
}

impl Core {
    /// Begins a write to a stripe; without a mark if that mechanism is switched off.
    pub(crate) async fn mark_row(self: &Rc<Self>, row: u64, of: Mechanism) -> IoResult<Option<MarkGuard>> {
        if self.lacks(of) {
            return Ok(None);
        }
        self.intent.mark(self, self.geometry().region_of(row)).await.map(Some)
    }
}

impl Drop for MarkGuard {
    fn drop(&mut self) {
        if let Some((count, last)) = self.intent.users.borrow_mut().get_mut(&self.region) {
            assert!(*count > 0, "more writes to region {} have ended than were begun", self.region);
            *count -= 1;
            *last = now();
        }
    }
}

fn get(bits: &[u64], bit: u64) -> bool {
    bits[(bit / 64) as usize] & 1 << (bit % 64) != 0
}

impl Intent {
    pub(crate) fn new(array: Uuid, regions: u64) -> Intent {
        let words = vec![0; regions.div_ceil(64) as usize];
        Intent {
            array,
            regions: Cell::new(regions),
            set: RefCell::new(words.clone()),
            durable: RefCell::new(words),
            busy: RefCell::new(vec![false; regions.div_ceil(PER_PAGE) as usize]),
            users: RefCell::default(),
            changed: Event::default(),
            writes: Cell::new(0),
        }
    }

    /// The array has grown, and the further regions have no marks. The caller has written their
    /// pages to the members.
    pub(crate) fn grow(&self, regions: u64) {
        assert!(self.regions.get() <= regions, "an array does not shrink");
        for words in [&self.set, &self.durable] {
            words.borrow_mut().resize(regions.div_ceil(64) as usize, 0);
        }
        self.busy.borrow_mut().resize(regions.div_ceil(PER_PAGE) as usize, false);
        self.regions.set(regions);
    }

    /// Number of pages.
    pub(crate) fn page_count(&self) -> usize {
        self.busy.borrow().len()
    }

    /// Adds the marks of a member's page; false if the page is damaged.
    pub(crate) fn merge(&self, number: usize, page: &[u8]) -> bool {
        let Some(bits) = self.page_bits(number, page) else { return false };
        self.add(number, |within| bits[within / 8] & 1 << (within % 8) != 0);
        true
    }

    /// Marks all regions of a page whose marks are lost.
    pub(crate) fn mark_all(&self, number: usize) {
        self.add(number, |_| true);
    }

    fn add(&self, number: usize, is_set: impl Fn(usize) -> bool) {
        let mut set = self.set.borrow_mut();
        let first = number as u64 * PER_PAGE;
        for bit in first..(first + PER_PAGE).min(self.regions.get()) {
            if is_set((bit - first) as usize) {
                set[(bit / 64) as usize] |= 1 << (bit % 64);
            }
        }
    }

    /// Verifies the pages on a member, and rewrites those that are damaged or lack marks. Returns
    /// their number.
    pub(crate) async fn scrub(&self, core: &Rc<Core>, member: &Member) -> IoResult<u64> {
        let before = self.durable.borrow().clone();
        let read = match member.read_around(INTENT_AT, self.page_count() as u64 * BLOCK).await {
            Ok(read) => read,
            Err(e) => return core.lose(member.index, &e).await.map(|()| 0),
        };
        let mut damaged = Vec::new();
        for (number, page) in read.bytes.chunks(BLOCK as usize).enumerate() {
            let first = number as u64 * PER_PAGE;
            let has = |bits: &[u8], bit: u64| {
                let within = (bit - first) as usize;
                bits[within / 8] & 1 << (within % 8) != 0
            };
            let after = self.durable.borrow();
            let mut must = (first..(first + PER_PAGE).min(self.regions.get()))
                .filter(|bit| get(&before, *bit) && get(&after, *bit));
            let right = self.page_bits(number, page).is_some_and(|bits| must.all(|bit| has(bits, bit)));
            if !right {
                damaged.push(number);
            }
        }
        for number in &damaged {
            self.changed.until(|| !self.busy.borrow()[*number]).await;
            self.write(core, *number).await?;
        }
        Ok(damaged.len() as u64)
    }

    fn page_bits<'a>(&self, number: usize, page: &'a [u8]) -> Option<&'a [u8]> {
        let mut from = Reader::new(open(page)?);
        let ours = from.uuid()? == self.array && from.u32()? as usize == number;
        from.bytes(HEAD - 24)?;
        if ours { from.bytes(BLOCK as usize - HEAD) } else { None }
    }

    fn page(&self, number: usize) -> Buf {
        let mut page = vec![0; BLOCK as usize];
        Writer::new(&mut page[4..]).uuid(self.array).u32(number as u32);
        let first = number as u64 * PER_PAGE;
        let set = self.set.borrow();
        for bit in (first..(first + PER_PAGE).min(self.regions.get())).filter(|bit| get(&set, *bit)) {
            let within = (bit - first) as usize;
            page[HEAD + within / 8] |= 1 << (within % 8);
        }
        seal(&mut page);
        Buf::copy_of(&page)
    }

    /// All pages, for a new member.
    pub(crate) fn pages(&self) -> Vec<(u64, Buf)> {
        let pages = 0..self.busy.borrow().len();
        pages.map(|number| (INTENT_AT + number as u64 * BLOCK, self.page(number))).collect()
    }

    /// Whether a region is marked, or about to be.
    pub(crate) fn is_marked(&self, region: u64) -> bool {
        get(&self.set.borrow(), region)
    }

    /// The regions that are marked.
    pub(crate) fn marked(&self) -> Vec<u64> {
        let set = self.set.borrow();
        (0..self.regions.get()).filter(|region| get(&set, *region)).collect()
    }

    /// Begins a write to a region: returns once its bit is set on the members.
    pub(crate) async fn mark(self: &Rc<Self>, core: &Rc<Core>, region: u64) -> IoResult<MarkGuard> {
        let is_new = {
            let mut users = self.users.borrow_mut();
            let user = users.entry(region).or_insert((0, now()));
            user.0 += 1;
            user.0 == 1
        };
        let marked = MarkGuard { intent: Rc::clone(self), region };
        if core.lacks(Mechanism::Intent) {
            return Ok(marked);
        }
        if is_new && region > 0 && get(&self.set.borrow(), region - 1) {
            self.mark_ahead(core, region + 1);
        }
        let page = (region / PER_PAGE) as usize;
        self.set.borrow_mut()[(region / 64) as usize] |= 1 << (region % 64);
        loop {
            let durable = || get(&self.durable.borrow(), region);
            self.changed.until(|| durable() || !self.busy.borrow()[page]).await;
            if durable() {
                return Ok(marked);
            }
            self.write(core, page).await?;
        }
    }

    /// Marks the next regions before a sequential writer reaches them, so that it does not wait: as
    /// many again as are being written, since the page write queues behind those writes. If no
    /// write follows, the bits are cleared like any other.
    fn mark_ahead(self: &Rc<Self>, core: &Rc<Core>, region: u64) {
        let under_way = self.users.borrow().values().filter(|(count, _)| *count > 0).count() as u64;
        let ahead = (2 * under_way).clamp(1, AHEAD_MAX);
        let end = (region + ahead).min(self.regions.get()).min((region / PER_PAGE + 1) * PER_PAGE);
        // Half of them suffice until the next call.
        let near = (region + ahead.div_ceil(2)).min(end);
        if (region..near).all(|region| get(&self.set.borrow(), region)) {
            return;
        }
        for region in region..end {
            self.set.borrow_mut()[(region / 64) as usize] |= 1 << (region % 64);
            self.users.borrow_mut().entry(region).or_insert((0, now()));
        }
        let (intent, core) = (Rc::clone(self), Rc::clone(core));
        spawn(async move {
            let page = (region / PER_PAGE) as usize;
            let durable = || get(&intent.durable.borrow(), end - 1);
            intent.changed.until(|| durable() || !intent.busy.borrow()[page]).await;
            if !durable() && core.check_running().is_ok() {
                // A failure halts the array or marks a member lost; the next `mark` sees that.
                let _ = intent.write(&core, page).await;
            }
        })
        .detach();
    }

    /// Writes a page to all members in use.
    async fn write(&self, core: &Rc<Core>, number: usize) -> IoResult<()> {
        let was_busy = std::mem::replace(&mut self.busy.borrow_mut()[number], true);
        assert!(!was_busy, "page {number} of the write-intent bitmap is written twice at a time");
        let words = self.set.borrow().clone();
        let page = self.page(number);
        let first = number * (PER_PAGE / 64) as usize;
        let end = (first + (PER_PAGE / 64) as usize).min(words.len());
        // Bits that this write clears do not count as set any more.
        for (durable, word) in self.durable.borrow_mut()[first..end].iter_mut().zip(&words[first..end]) {
            *durable &= word;
        }
        let result = core.write_to_all(INTENT_AT + number as u64 * BLOCK, &page).await;
        self.writes.set(self.writes.get() + 1);
        if result.is_ok() {
            self.durable.borrow_mut()[first..end].copy_from_slice(&words[first..end]);
        }
        self.busy.borrow_mut()[number] = false;
        self.changed.notify();
        result
    }

    /// Writes all pages to all members in use, for new members.
    pub(crate) async fn write_all(&self, core: &Rc<Core>) -> IoResult<()> {
        let pages = self.busy.borrow().len();
        for number in 0..pages {
            self.changed.until(|| !self.busy.borrow()[number]).await;
            self.write(core, number).await?;
        }
        Ok(())
    }

    /// Clears the bits of regions without writes since `before`.
    pub(crate) async fn sweep(&self, core: &Rc<Core>, before: Instant) -> IoResult<()> {
        let idle: Vec<u64> = {
            let users = self.users.borrow();
            let idle = |region: &u64| users.get(region).is_none_or(|(n, last)| *n == 0 && *last <= before);
            self.marked().into_iter().filter(idle).collect()
        };
        if idle.is_empty() || !core.may_clear_intents() {
            return Ok(());
        }
        core.flush_members().await?;
        // Operations still under way may reveal that a member was offline and has lost writes
        // before the flush.
        let usable = core.members.usable();
        join_all(usable.map(Member::until_completed)).await;
        if core.members.iter().any(Member::was_unreachable) || !core.may_clear_intents() {
            return Ok(());
        }
        let mut pages: Vec<usize> = idle.iter().map(|region| (region / PER_PAGE) as usize).collect();
        pages.dedup();
        for region in idle {
            let mut users = self.users.borrow_mut();
            if users.get(&region).is_some_and(|(n, last)| *n > 0 || *last > before) {
                continue;
            }
            users.remove(&region);
            let clear = |words: &RefCell<Vec<u64>>| {
                words.borrow_mut()[(region / 64) as usize] &= !(1 << (region % 64))
            };
            clear(&self.set);
            clear(&self.durable);
        }
        for page in pages {
            self.changed.until(|| !self.busy.borrow()[page]).await;
            self.write(core, page).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members that exist have these bytes.
    #[test]
    fn the_bytes_of_a_page_are_fixed() {
        let intent = Intent::new(Uuid::from_u128(1), 20);
        intent.add(0, |bit| [0, 9].contains(&bit));
        let page = intent.page(0);
        let head = [0xdf, 0x9c, 0x29, 0x26];
        assert_eq!(page[..4], head, "the checksum");
        assert_eq!(page[4..20], *Uuid::from_u128(1).as_bytes());
        assert_eq!(page[20..34], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0b1, 0b10]);
        assert!(page[34..].iter().all(|byte| *byte == 0));
        let other = Intent::new(Uuid::from_u128(1), 20);
        assert!(other.merge(0, &page));
        assert_eq!(other.marked(), [0, 9]);
        assert!(!Intent::new(Uuid::from_u128(2), 20).merge(0, &page), "of another array");
    }
}
