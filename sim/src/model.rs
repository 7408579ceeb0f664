//! The content that a reader of a block device may see: the judge of all simulations.
//!
//! It knows nothing of arrays. Writes are numbered; each block has the writers that a read may
//! return now, and those that may have been the last when power is lost: the last one that a flush
//! covers, and all later ones.
//!
//! Order of calls: `begin_*`, then the operation, then the `end_*` of the token; `crash` forgets
//! all tokens.
//!
//! Invariants:
//! - at most one change to a block is under way: users of block devices ensure that, and so does
//!   the load;
//! - `now` of a block is part of `later`, except for writes under way.

use crate::content::{self, NO_WRITER, SECTOR, Writer};
use longhaul_block::DeviceInfo;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

/// The possible writers of a device's blocks.
#[derive(Debug)]
pub struct Model {
    blocks: Vec<Block>,
    /// Bytes of a block.
    block: usize,
    /// A block is on disks as a whole or not at all.
    whole: bool,
    /// Blocks that a crash may change.
    dirty: BTreeSet<usize>,
    reads: BTreeMap<u64, Reading>,
    /// Counts tokens and writers.
    next: u64,
    /// Time of the last loss of power while other hosts continued: a flush
    /// that began earlier may have completed earlier.
    power_lost: u64,
}

#[derive(Clone, Debug)]
struct Block {
    /// Writers that a read may give.
    now: Vec<Writer>,
    /// Writers that may be left after a crash, with when they began.
    later: Vec<(u64, Writer)>,
    /// The change that is under way.
    flying: Option<Writer>,
    /// There was a lapse since that began: parts of it may be lost already.
    lapsed: bool,
    /// It was being changed when a crash and a fault came together: it may
    /// be anything, or an error, until it is written again.
    fragile: bool,
}

#[derive(Debug)]
struct Reading {
    first: usize,
    allowed: Vec<Allowed>,
}

/// What a read may see of a block.
#[derive(Debug)]
struct Allowed {
    writers: Vec<Writer>,
    /// No change was under way since the read began.
    steady: bool,
    /// It may be anything.
    anything: bool,
}

/// A read under way.
#[derive(Debug)]
#[must_use]
pub struct Read(u64);

/// A change under way.
#[derive(Debug)]
#[must_use]
pub struct Write {
    blocks: Range<usize>,
    /// The load that writes them.
    pub writer: Writer,
    kind: Kind,
}

/// How content changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A write; with FUA if true.
    Write(bool),
    /// To zeroes; with FUA if true.
    Zero(bool),
    /// To zeroes, or not.
    Discard,
}

/// Blocks that may hold anything after a crash, or an error, until they are written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragile {
    /// No block: all contents are known.
    Nothing,
    /// Stripes of so many blocks that were written as a whole, and not
    /// flushed.
    Whole(usize),
    /// All that was not flushed.
    Dirty,
    /// Everything there is.
    Everything,
}

/// A flush under way.
#[derive(Debug)]
#[must_use]
pub struct Flush {
    at: u64,
    now: Vec<(usize, Vec<Writer>)>,
}

fn insert(list: &mut Vec<Writer>, writer: Writer) {
    if !list.contains(&writer) {
        list.push(writer);
    }
}

impl Block {
    /// Data that is not durable may be lost.
    fn lapse(&mut self) {
        for (_, writer) in &self.later {
            insert(&mut self.now, *writer);
        }
    }
}

impl Model {
    /// A device of zeroes. `whole` if its blocks are never torn.
    #[must_use]
    pub fn new(size: u64, block: u32, whole: bool) -> Model {
        let fresh = Block {
            now: vec![NO_WRITER],
            later: vec![(0, NO_WRITER)],
            flying: None,
            lapsed: false,
            fragile: false,
        };
        Model {
            blocks: vec![fresh; (size / u64::from(block)) as usize],
            block: block as usize,
            whole,
            dirty: BTreeSet::new(),
            reads: BTreeMap::new(),
            next: 0,
            power_lost: 0,
        }
    }

    /// The model in `slot`, which is made for the device at the first call, on disks that write
    /// blocks of `whole` bytes as a whole.
    pub(crate) fn shared(
        slot: &mut Option<Rc<RefCell<Model>>>,
        info: &DeviceInfo,
        whole: u32,
    ) -> Rc<RefCell<Model>> {
        let make = || Rc::new(RefCell::new(Model::new(info.size, info.block_size, info.block_size <= whole)));
        Rc::clone(slot.get_or_insert_with(make))
    }

    /// Blocks of the device.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block(&self) -> usize {
        self.block
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A change of `blocks` begins, unless another is under way there.
    pub fn begin_write(&mut self, blocks: Range<usize>, kind: Kind) -> Option<Write> {
        if self.blocks[blocks.clone()].iter().any(|block| block.flying.is_some()) {
            return None;
        }
        let at = self.number();
        let writer = if matches!(kind, Kind::Write(_)) { at as Writer } else { NO_WRITER };
        for (number, block) in blocks.clone().zip(&mut self.blocks[blocks.clone()]) {
            block.flying = Some(writer);
            block.later.push((at, writer));
            self.dirty.insert(number);
        }
        for read in self.reads.values_mut() {
            for (number, allowed) in (read.first..).zip(&mut read.allowed) {
                if blocks.contains(&number) {
                    insert(&mut allowed.writers, writer);
                    allowed.steady = false;
                }
            }
        }
        Some(Write { blocks, writer, kind })
    }

    /// A change has ended: done, or failed and so perhaps done.
    pub fn end_write(&mut self, write: &Write, done: bool) {
        for block in &mut self.blocks[write.blocks.clone()] {
            block.flying = None;
            block.lapsed &= done && write.kind != Kind::Discard;
            if !done || write.kind == Kind::Discard {
                insert(&mut block.now, write.writer);
                continue;
            }
            block.fragile = false;
            if matches!(write.kind, Kind::Write(true) | Kind::Zero(true)) {
                let last = block.later.last().copied();
                block.later = last.into_iter().collect();
            }
            block.now = vec![write.writer];
            if std::mem::take(&mut block.lapsed) {
                block.lapse();
            }
        }
    }

    /// A flush begins: it covers every change that has ended.
    pub fn begin_flush(&mut self) -> Flush {
        let at = self.number();
        let settled = |number: &usize| self.blocks[*number].flying.is_none();
        let now = self.dirty.iter().copied().filter(settled).map(|n| (n, self.blocks[n].now.clone()));
        Flush { at, now: now.collect() }
    }

    /// A flush is done.
    pub fn end_flush(&mut self, flush: Flush) {
        if flush.at < self.power_lost {
            return;
        }
        for (number, now) in flush.now {
            let block = &mut self.blocks[number];
            // What a later FUA write has settled is not to be unsettled.
            if block.later.iter().any(|(at, _)| *at <= flush.at) {
                let later = block.later.iter().copied().filter(|(at, _)| *at > flush.at);
                block.later = now.iter().map(|writer| (flush.at, *writer)).chain(later).collect();
            }
            if block.flying.is_none() && block.later.len() == 1 && block.now == [block.later[0].1] {
                self.dirty.remove(&number);
            }
        }
    }

    /// A read begins.
    pub fn begin_read(&mut self, blocks: Range<usize>) -> Read {
        let allowed = self.blocks[blocks.clone()].iter().map(|block| {
            let mut writers = block.now.clone();
            block.flying.into_iter().for_each(|writer| insert(&mut writers, writer));
            Allowed { writers, steady: block.flying.is_none(), anything: block.fragile }
        });
        let reading = Reading { first: blocks.start, allowed: allowed.collect() };
        let number = self.number();
        self.reads.insert(number, reading);
        Read(number)
    }

    /// A read has failed.
    pub fn drop_read(&mut self, read: &Read) {
        self.reads.remove(&read.0);
    }

    /// A read has returned `bytes`.
    ///
    /// # Errors
    /// The content that must not be seen, in words.
    pub fn end_read(&mut self, read: &Read, bytes: &[u8]) -> Result<(), String> {
        let Some(reading) = self.reads.remove(&read.0) else { return Ok(()) };
        for ((number, allowed), bytes) in
            (reading.first..).zip(&reading.allowed).zip(bytes.chunks_exact(self.block))
        {
            if allowed.anything {
                continue;
            }
            let writers = self.writers(number, bytes);
            let known = writers.iter().all(|writer| writer.is_some_and(|w| allowed.writers.contains(&w)));
            let first = writers[0];
            let torn = writers.iter().any(|writer| *writer != first);
            if !known || (torn && (self.whole || allowed.writers.len() == 1)) {
                return Err(format!(
                    "block {number} (byte {}) is of {}, and may be of {:?}",
                    number * self.block,
                    describe(&writers),
                    allowed.writers
                ));
            }
            // No change has occurred or is under way, so the content stays as it was seen.
            let block = &mut self.blocks[number];
            if let (true, false, Some(writer)) = (allowed.steady, torn, first) {
                block.now = vec![writer];
            }
        }
        Ok(())
    }

    fn writers(&self, number: usize, bytes: &[u8]) -> Vec<Option<Writer>> {
        let sector = (number * self.block / SECTOR) as u64;
        (sector..).zip(bytes.chunks_exact(SECTOR)).map(|(at, bytes)| content::writer(bytes, at)).collect()
    }

    /// Unflushed data may be lost without a crash: a member has lost its cache, and no other member
    /// has the same data.
    pub fn lapse(&mut self) {
        for number in &self.dirty {
            let block = &mut self.blocks[*number];
            block.lapsed = block.flying.is_some();
            block.lapse();
        }
        // A read under way may have its content from before that, or after it.
        for read in self.reads.values_mut() {
            for (block, allowed) in self.blocks[read.first..].iter().zip(&mut read.allowed) {
                block.now.iter().for_each(|writer| insert(&mut allowed.writers, *writer));
                allowed.steady = false;
            }
        }
    }

    /// The device has lost its power, and remains in use: unflushed data may be lost, also by a
    /// flush that is under way and repeated.
    pub fn lose_power(&mut self) {
        self.lapse();
        self.power_lost = self.number();
    }

    /// The host that used it has ended: operations under way may be done, or not.
    pub fn depart(&mut self) {
        self.reads.clear();
        for block in &mut self.blocks {
            if let Some(writer) = block.flying.take() {
                insert(&mut block.now, writer);
            }
            if std::mem::take(&mut block.lapsed) {
                block.lapse();
            }
        }
    }

    /// Whether some block may be lost.
    #[must_use]
    pub fn is_fragile(&self) -> bool {
        self.blocks.iter().any(|block| block.fragile)
    }

    /// All that was under way is cut off, and everything not flushed may be
    /// lost; some of it may be anything.
    pub fn crash(&mut self, fragile: Fragile) {
        self.reads.clear();
        for number in &self.dirty {
            let is_fragile = match fragile {
                Fragile::Nothing | Fragile::Everything => false,
                Fragile::Dirty => true,
                Fragile::Whole(of) => {
                    (number / of * of..(number / of + 1) * of).all(|beside| self.dirty.contains(&beside))
                }
            };
            let block = &mut self.blocks[*number];
            (block.flying, block.lapsed) = (None, false);
            block.fragile |= is_fragile;
            block.now.clear();
            block.lapse();
        }
        if fragile == Fragile::Everything {
            self.blocks.iter_mut().for_each(|block| block.fragile = true);
        }
    }
}

/// The writers of a block's sectors, in short.
fn describe(writers: &[Option<Writer>]) -> String {
    let mut parts: Vec<(Option<Writer>, usize)> = Vec::new();
    for writer in writers {
        match parts.last_mut() {
            Some((last, count)) if last == writer => *count += 1,
            _ => parts.push((*writer, 1)),
        }
    }
    let name = |writer: Option<Writer>| writer.map_or_else(|| "garbage".into(), |w| w.to_string());
    let parts: Vec<String> = parts.into_iter().map(|(w, n)| format!("{}×{n}", name(w))).collect();
    format!("[{}]", parts.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u32 = 1024;

    fn model(whole: bool) -> Model {
        Model::new(8 * u64::from(BLOCK), BLOCK, whole)
    }

    fn bytes(blocks: Range<usize>, writer: Writer) -> Vec<u8> {
        let mut bytes = vec![0; blocks.len() * BLOCK as usize];
        content::fill(&mut bytes, (blocks.start * 2) as u64, writer);
        bytes
    }

    /// Whether a read of block 1 may give `writer`.
    fn may(model: &mut Model, writer: Writer) -> bool {
        let read = model.begin_read(1..2);
        model.end_read(&read, &bytes(1..2, writer)).is_ok()
    }

    fn write(model: &mut Model, kind: Kind) -> Writer {
        let write = model.begin_write(0..4, kind).expect("nothing is under way");
        model.end_write(&write, true);
        write.writer
    }

    #[test]
    fn what_is_acknowledged_is_read() {
        let mut model = model(true);
        let first = write(&mut model, Kind::Write(false));
        let second = write(&mut model, Kind::Write(false));
        assert!(!may(&mut model, NO_WRITER) && !may(&mut model, first) && may(&mut model, second));
    }

    #[test]
    fn a_read_beside_a_write_gives_either() {
        let mut model = model(true);
        let (before, during) = (model.begin_read(1..2), model.begin_write(0..4, Kind::Write(false)).unwrap());
        let after = model.begin_read(1..2);
        assert!(model.begin_write(3..5, Kind::Write(false)).is_none());
        model.end_write(&during, true);
        assert_eq!(model.end_read(&before, &bytes(1..2, NO_WRITER)), Ok(()));
        assert_eq!(model.end_read(&after, &bytes(1..2, during.writer)), Ok(()));
        assert!(!may(&mut model, NO_WRITER));
    }

    #[test]
    fn a_crash_leaves_something_since_the_last_flush_and_then_one_of_it() {
        for seen in 0..4 {
            let mut model = model(true);
            let first = write(&mut model, Kind::Write(false));
            let second = write(&mut model, Kind::Write(false));
            let flush = model.begin_flush();
            let third = write(&mut model, Kind::Write(false));
            model.end_flush(flush);
            let fourth = model.begin_write(1..2, Kind::Write(false)).unwrap().writer;
            model.crash(Fragile::Nothing);
            let writer = [first, second, third, fourth][seen];
            assert_eq!(may(&mut model, writer), seen > 0);
            if seen > 0 {
                // A reader has seen this writer, so it is fixed.
                assert!(may(&mut model, writer) && !may(&mut model, if seen == 1 { third } else { second }));
                // But only a flush makes it stay.
                model.crash(Fragile::Nothing);
                assert!(may(&mut model, second));
            }
        }
    }

    #[test]
    fn fua_settles_without_a_flush_and_is_not_unsettled_by_one() {
        let mut model = model(true);
        let first = write(&mut model, Kind::Write(false));
        let flush = model.begin_flush();
        let second = write(&mut model, Kind::Write(true));
        model.end_flush(flush);
        model.crash(Fragile::Nothing);
        assert!(!may(&mut model, first) && may(&mut model, second));
    }

    #[test]
    fn a_failed_write_and_a_discard_may_be_either() {
        let mut model = model(true);
        let first = write(&mut model, Kind::Write(true));
        let failed = model.begin_write(0..4, Kind::Write(false)).unwrap();
        model.end_write(&failed, false);
        assert!(may(&mut model, first), "old");
        assert!(!may(&mut model, failed.writer), "it was old a moment ago");
        write(&mut model, Kind::Discard);
        assert!(may(&mut model, NO_WRITER), "discarded");
        assert!(!may(&mut model, first), "it was zero a moment ago");
    }

    #[test]
    fn a_lapse_may_take_what_is_acknowledged_later() {
        let mut model = model(true);
        let first = write(&mut model, Kind::Write(true));
        for fua in [false, true] {
            let during = model.begin_write(0..4, Kind::Write(fua)).unwrap();
            model.lapse();
            model.end_write(&during, true);
            assert_eq!(may(&mut model, first), !fua);
        }
    }

    #[test]
    fn a_read_that_spans_a_lapse_says_nothing_of_what_is_left() {
        let mut model = model(true);
        let old = write(&mut model, Kind::Write(true));
        let new = write(&mut model, Kind::Write(false));
        for seen in [old, new] {
            let reading = model.begin_read(1..2);
            model.lapse();
            model.end_read(&reading, &bytes(1..2, seen)).expect("from before it, or after it");
        }
        assert!(may(&mut model, old), "what was read from the cache is lost with it");
        assert!(!may(&mut model, new), "it was the old content a moment ago");
    }

    #[test]
    fn a_loss_of_power_takes_what_is_not_flushed_also_by_a_flush_that_is_under_way() {
        for before in [false, true] {
            let mut model = model(true);
            let old = write(&mut model, Kind::Write(true));
            let new = write(&mut model, Kind::Write(false));
            let reading = model.begin_read(1..2);
            if before {
                let flush = model.begin_flush();
                model.end_flush(flush);
            }
            let flush = model.begin_flush();
            model.lose_power();
            model.end_flush(flush);
            assert_eq!(model.end_read(&reading, &bytes(1..2, old)).is_ok(), !before, "a read under way");
            assert_eq!(may(&mut model, old), !before);
            assert_eq!(may(&mut model, new), before, "content that was seen stays");
        }
    }

    #[test]
    fn what_a_host_leaves_behind_may_be_done_and_what_was_acknowledged_is() {
        for seen in [false, true] {
            let mut model = model(true);
            let old = write(&mut model, Kind::Write(false));
            let new = write(&mut model, Kind::Write(false));
            let flying = model.begin_write(1..2, Kind::Write(false)).unwrap().writer;
            model.depart();
            assert!(!may(&mut model, old));
            assert!(may(&mut model, if seen { flying } else { new }));
            assert!(!may(&mut model, if seen { new } else { flying }), "it is the other one");
            assert!(model.begin_write(1..2, Kind::Write(false)).is_some(), "nothing is under way");
        }
    }

    #[test]
    fn what_is_fragile_may_be_anything_until_it_is_written() {
        let whole = |model: &mut Model| {
            let _flying = model.begin_write(0..4, Kind::Write(false));
            let _flying = model.begin_write(5..6, Kind::Write(false));
        };
        let anything = |model: &mut Model, block: usize| {
            let read = model.begin_read(block..block + 1);
            model.end_read(&read, &[7; BLOCK as usize]).is_ok()
        };
        for (fragile, expected) in [
            (Fragile::Nothing, [false, false, false]),
            (Fragile::Whole(4), [true, false, false]),
            (Fragile::Dirty, [true, true, false]),
            (Fragile::Everything, [true, true, true]),
        ] {
            let mut model = model(true);
            whole(&mut model);
            model.crash(fragile);
            assert_eq!([1, 5, 7].map(|block| anything(&mut model, block)), expected, "{fragile:?}");
            write(&mut model, Kind::Write(false));
            assert!(!anything(&mut model, 1), "{fragile:?}");
        }
    }

    #[test]
    fn torn_and_foreign_content_is_noticed() {
        for whole in [false, true] {
            let mut model = model(whole);
            let old = write(&mut model, Kind::Write(true));
            let new = model.begin_write(0..4, Kind::Write(false)).unwrap().writer;
            model.crash(Fragile::Nothing);
            let mut torn = bytes(1..2, old);
            torn[512..].copy_from_slice(&bytes(1..2, new)[512..]);
            let read = model.begin_read(1..2);
            assert_eq!(model.end_read(&read, &torn).is_ok(), !whole);
            torn[700] ^= 1;
            let read = model.begin_read(1..2);
            assert!(model.end_read(&read, &torn).unwrap_err().contains("garbage"));
        }
    }
}
