//! Recovery after a crash: replays the journal, and resyncs the marked regions.
//!
//! Invariants:
//! - the records of a stripe are replayed in order, and all records before anything else is written;
//! - content that matches its checksum is never replaced by content that does not.

use crate::core::Core;
use crate::format::geometry::{BLOCK, Role};
use crate::format::record::{JournalRecord, Piece, RecordKind};
use crate::io::journal::DurableRecord;
use crate::io::journal::scan::{ScannedRecords, span};
use crate::io::plan::MemberWrite;
use crate::io::rows::{LogState, QueuedWrite};
use crate::io::units::StripeUnits;
use crate::member::MemberResult;
use futures_util::StreamExt;
use futures_util::future::{join, join_all};
use futures_util::stream;
use longhaul_block::{IoError, IoResult};
use longhaul_engine::{Buf, BufMut};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// Stripes that are recovered concurrently, at most: each takes several round trips.
const ROWS: usize = 64;
/// Bytes of the stripes that are read for that at a time.
const RESYNC_BYTES: u64 = 32 << 20;

/// A commit, as it is replayed.
struct FoundCommit {
    /// Those of the data records that it covers, and behind them its own.
    pieces: Vec<Piece>,
    /// The records that have been replayed with it.
    seqs: Vec<u64>,
}

/// Journal records by stripe, those of each in their order.
#[derive(Default)]
struct FoundByRow {
    commits: BTreeMap<u64, Vec<FoundCommit>>,
    /// Data records that no commit covers.
    open: BTreeMap<u64, Vec<(Vec<Piece>, DurableRecord)>>,
}

impl FoundByRow {
    /// `open` are the data records that no commit covers.
    fn new(records: &[JournalRecord], open: Vec<DurableRecord>) -> FoundByRow {
        let mut found = FoundByRow::default();
        let mut open: HashMap<u64, DurableRecord> =
            open.into_iter().map(|logged| (logged.seq, logged)).collect();
        let mut data: HashMap<u64, &[Piece]> = HashMap::new();
        for record in records {
            match record.kind {
                RecordKind::Mark => {}
                RecordKind::Data => {
                    data.insert(record.seq, &record.pieces);
                    if let Some(logged) = open.remove(&record.seq) {
                        found.open.entry(record.row).or_default().push((record.pieces.clone(), logged));
                    }
                }
                RecordKind::Commit => {
                    let covered = record.covers.iter().filter_map(|seq| data.get(seq)).copied();
                    let pieces = covered.chain([&record.pieces[..]]).flatten().cloned().collect();
                    let seqs = record.covers.iter().copied().chain([record.seq]).collect();
                    found.commits.entry(record.row).or_default().push(FoundCommit { pieces, seqs });
                }
            }
        }
        found
    }
}

/// Recovers each of these stripes, `at_a_time` of them. After an error no more are begun, and what is under
/// way ends: none of it may reach a member later.
async fn each_row<T>(
    at_a_time: usize,
    rows: impl IntoIterator<Item = T>,
    recover: impl AsyncFn(T) -> IoResult<()>,
) -> IoResult<()> {
    let failed = RefCell::new(None);
    let one = async |row| {
        if failed.borrow().is_none()
            && let Err(e) = recover(row).await
        {
            failed.borrow_mut().get_or_insert(e);
        }
    };
    stream::iter(rows).for_each_concurrent(at_a_time, one).await;
    failed.into_inner().map_or(Ok(()), Err)
}

/// A member's unit as read, whether right or wrong.
struct RawUnit {
    member: usize,
    role: Role,
    bytes: BufMut,
    /// Blocks that do not match their checksums.
    wrong: Vec<usize>,
    /// Unreadable blocks: zeroes in `bytes`, and not in `wrong`.
    unreadable: Vec<usize>,
}

impl Core {
    /// Replays the journal; returns the number of records.
    pub(crate) async fn replay(self: &Rc<Self>, found: ScannedRecords) -> IoResult<usize> {
        let records = found.window();
        records.iter().try_for_each(|record| self.check_record(record))?;
        let (span, size) = (span(&records), self.geometry().journal);
        if span > size {
            return Err(IoError::Integrity(format!(
                "journal records span {span} bytes of a journal of {size}"
            )));
        }
        let open = self.journal.resume(self.publication.epoch(), &records);
        let FoundByRow { commits, open } = FoundByRow::new(&records, open);
        let commit = async |(row, commits): (u64, Vec<FoundCommit>)| {
            for FoundCommit { pieces, seqs } in commits {
                self.put_pieces(row, pieces).await?;
                self.journal.applied(&seqs, false);
            }
            Ok(())
        };
        each_row(ROWS, commits, commit).await?;
        // After all commits: each of these gets one, which may wait for space in the journal.
        let data = async |(row, records): (u64, Vec<(Vec<Piece>, DurableRecord)>)| {
            for (pieces, logged) in records {
                // The data is written by way of old data and parity, which may be torn, by a
                // full-stripe write for instance.
                self.resync_row(row).await?;
                let (write, _) = QueuedWrite::new(pieces, false, None);
                *write.log.borrow_mut() = LogState::Durable(logged);
                self.apply(row, &[write]).await?;
            }
            Ok(())
        };
        each_row(self.rows_at_a_time(), open, data).await?;
        self.flush_members().await?;
        Ok(records.len())
    }

    /// Refuses a record with a row, role or offset outside this array, before any byte of it is
    /// written.
    fn check_record(&self, record: &JournalRecord) -> IoResult<()> {
        let has = |piece: &Piece| {
            self.geometry().has_range(record.row, piece.role, piece.at, piece.bytes.len() as u64)
        };
        let is_data = |piece: &Piece| matches!(piece.role, Role::Data(_));
        let right = match record.kind {
            RecordKind::Mark => true,
            RecordKind::Data => {
                record.row < self.geometry().rows && record.pieces.iter().all(|p| is_data(p) && has(p))
            }
            RecordKind::Commit => record.row < self.geometry().rows && record.pieces.iter().all(has),
        };
        if right {
            return Ok(());
        }
        let (seq, row) = (record.seq, record.row);
        Err(IoError::Integrity(format!(
            "journal record {seq} of stripe {row} names a range that the array does not have"
        )))
    }

    /// Writes pieces to the members that hold their roles, one after another.
    async fn put_pieces(self: &Rc<Self>, row: u64, pieces: Vec<Piece>) -> IoResult<()> {
        for piece in pieces {
            let place = |member| MemberWrite { member, piece: piece.clone() };
            self.put(row, self.members.holders(row, piece.role).map(place).collect()).await?;
        }
        Ok(())
    }

    /// Makes the marked regions consistent; returns the number of rows.
    pub(crate) async fn resync(self: &Rc<Self>) -> IoResult<u64> {
        let regions = self.intent.marked();
        let rows: Vec<u64> = regions.iter().flat_map(|region| self.geometry().rows_of(*region)).collect();
        each_row(self.rows_at_a_time(), &rows, async |row: &u64| self.resync_row(*row).await).await?;
        self.flush_members().await?;
        Ok(rows.len() as u64)
    }

    /// Stripes that are read as a whole at a time.
    fn rows_at_a_time(&self) -> usize {
        let bytes = self.geometry().unit * self.geometry().width as u64;
        (RESYNC_BYTES / bytes).clamp(1, ROWS as u64) as usize
    }

    async fn read_raw(&self, member: usize, row: u64) -> MemberResult<RawUnit> {
        let place = &self.members[member];
        let (unit, at, incarnation) =
            (self.geometry().unit, self.geometry().unit_at(row), place.incarnation());
        let (bytes, sums) = join(place.read(at, unit), self.sums.load(place, row, 0, unit)).await;
        sums?;
        let mut unreadable = Vec::new();
        let bytes = match bytes {
            Err(e) if matches!(e.error, IoError::Medium(_)) => {
                self.salvage(member, row, &mut unreadable).await?
            }
            bytes => bytes?,
        };
        let mut wrong = self.sums.wrong(member, row, 0, &bytes);
        if !wrong.is_empty() {
            self.sums.load(place, row, 0, unit).await?;
            wrong = self.sums.wrong(member, row, 0, &bytes);
        }
        if place.incarnation() != incarnation {
            return Err(place.replaced());
        }
        wrong.retain(|block| !unreadable.contains(block));
        Ok(RawUnit { member, role: self.geometry().role(row, member), bytes, wrong, unreadable })
    }

    /// A unit read block by block; unreadable blocks are zeroes and listed in `unreadable`.
    async fn salvage(&self, member: usize, row: u64, unreadable: &mut Vec<usize>) -> MemberResult<BufMut> {
        let mut bytes = BufMut::zeroed(self.geometry().unit as usize);
        for (number, block) in bytes.chunks_exact_mut(BLOCK as usize).enumerate() {
            let at = self.geometry().unit_at(row) + number as u64 * BLOCK;
            match self.members[member].read(at, BLOCK).await {
                Ok(read) => block.copy_from_slice(&read),
                Err(e) if matches!(e.error, IoError::Medium(_)) => unreadable.push(number),
                Err(e) => return Err(e),
            }
        }
        Ok(bytes)
    }

    /// Makes one stripe consistent: from blocks that match their checksums where those decide, and
    /// otherwise by new parity for the data as it is, since the stripe was being written.
    pub(crate) async fn resync_row(self: &Rc<Self>, row: u64) -> IoResult<()> {
        if !self.geometry().has_sums() {
            return Ok(());
        }
        let _alone = self.io.locks.exclusive(row).await;
        let members: Vec<usize> =
            (0..self.geometry().width).filter(|m| self.members.holds(*m, row)).collect();
        let mut raws = Vec::new();
        for (member, raw) in
            members.iter().zip(join_all(members.iter().map(|member| self.read_raw(*member, row))).await)
        {
            match raw {
                Ok(raw) => raws.push(raw),
                // Without its checksums the unit proves nothing, and counts as missing; reads and
                // scrubs deal with it.
                Err(e) if matches!(e.error, IoError::Medium(_)) => {}
                Err(e) => self.lose(*member, &e).await?,
            }
        }
        let writes = if self.geometry().has_parity() { self.fit_parity(row, raws) } else { fit_copies(raws) };
        self.put(row, writes).await
    }

    /// Blocks to write so that parity and checksums are right.
    fn fit_parity(&self, row: u64, mut raws: Vec<RawUnit>) -> Vec<MemberWrite> {
        let mut writes = Vec::new();
        let blocks = (self.geometry().unit / BLOCK) as usize;
        for block in 0..blocks {
            let range = block * BLOCK as usize..(block + 1) * BLOCK as usize;
            let bad = |raw: &RawUnit| raw.wrong.contains(&block) || raw.unreadable.contains(&block);
            let wrong: Vec<usize> = (0..raws.len()).filter(|i| bad(&raws[*i])).collect();
            if !wrong.is_empty() {
                self.trust_checksums(row, block, &range, &wrong, &mut raws);
            }
            let there =
                |raw: &&RawUnit| matches!(raw.role, Role::Data(_)) && !raw.unreadable.contains(&block);
            let mut changed: Vec<usize> = wrong;
            if raws.iter().filter(there).count() == self.geometry().data_units() {
                changed.extend(self.fit_block(block, &range, &mut raws));
            }
            changed.sort_unstable();
            changed.dedup();
            for i in changed.into_iter().filter(|i| !raws[*i].unreadable.contains(&block)) {
                let raw = &raws[i];
                let bytes = Buf::copy_of(&raw.bytes[range.clone()]);
                let piece = Piece { role: raw.role, at: range.start as u64, bytes };
                writes.push(MemberWrite { member: raw.member, piece });
            }
        }
        writes
    }

    /// Replaces wrong blocks by their reconstruction, if all of those match the stored checksums.
    fn trust_checksums(
        &self,
        row: u64,
        block: usize,
        range: &std::ops::Range<usize>,
        wrong: &[usize],
        raws: &mut [RawUnit],
    ) {
        let mut units =
            StripeUnits { data: vec![None; self.geometry().data_units()], p: None, q: None, bad: Vec::new() };
        for (i, raw) in raws.iter().enumerate().filter(|(i, _)| !wrong.contains(i)) {
            let _ = i;
            let bytes = Some(Buf::copy_of(&raw.bytes[range.clone()]));
            match raw.role {
                Role::Data(unit) => units.data[unit] = bytes,
                Role::P => units.p = bytes,
                Role::Q => units.q = bytes,
            }
        }
        if units.complete(BLOCK).is_err() {
            return;
        }
        let (p, q) = units.parity(BLOCK, self.geometry().redundancy() == 2);
        let right = |raw: &RawUnit| match raw.role {
            Role::Data(unit) => units.data[unit].clone(),
            Role::P => Some(p.clone()),
            Role::Q => q.clone(),
        };
        let matches_stored = |raw: &RawUnit, bytes: &Buf| {
            self.sums.wrong(raw.member, row, block as u64 * BLOCK, bytes).is_empty()
        };
        let found: Vec<Option<Buf>> = wrong.iter().map(|i| right(&raws[*i])).collect();
        let all = wrong
            .iter()
            .zip(&found)
            .all(|(i, bytes)| bytes.as_ref().is_some_and(|b| matches_stored(&raws[*i], b)));
        if all {
            for (i, bytes) in wrong.iter().zip(found.into_iter().flatten()) {
                raws[*i].bytes[range.clone()].copy_from_slice(&bytes);
                raws[*i].unreadable.retain(|unreadable| *unreadable != block);
            }
        }
    }

    /// Recomputes the parity of one block from its data; returns the indices of units that changed.
    fn fit_block(&self, block: usize, range: &std::ops::Range<usize>, raws: &mut [RawUnit]) -> Vec<usize> {
        let mut units =
            StripeUnits { data: vec![None; self.geometry().data_units()], p: None, q: None, bad: Vec::new() };
        for raw in raws.iter() {
            if let Role::Data(unit) = raw.role {
                units.data[unit] = Some(Buf::copy_of(&raw.bytes[range.clone()]));
            }
        }
        let (p, q) = units.parity(BLOCK, self.geometry().redundancy() == 2);
        let mut changed = Vec::new();
        for (i, raw) in raws.iter_mut().enumerate() {
            let right = match raw.role {
                Role::Data(_) => None,
                Role::P => Some(&p),
                Role::Q => q.as_ref(),
            };
            if let Some(right) = right
                && (raw.unreadable.contains(&block) || raw.bytes[range.clone()] != right[..])
            {
                raw.bytes[range.clone()].copy_from_slice(right);
                raw.unreadable.retain(|unreadable| *unreadable != block);
                changed.push(i);
            }
        }
        changed
    }
}

/// Blocks to write so that all copies are equal: to the first that matches its checksum, or else to
/// the first that is readable.
fn fit_copies(raws: Vec<RawUnit>) -> Vec<MemberWrite> {
    let mut writes = Vec::new();
    let Some(len) = raws.first().map(|raw| raw.bytes.len()) else { return writes };
    let mut roles: Vec<Role> = raws.iter().map(|raw| raw.role).collect();
    roles.dedup();
    for role in roles {
        let copies: Vec<&RawUnit> = raws.iter().filter(|raw| raw.role == role).collect();
        for block in 0..len / BLOCK as usize {
            let range = block * BLOCK as usize..(block + 1) * BLOCK as usize;
            let mut there = copies.iter().filter(|raw| !raw.unreadable.contains(&block));
            let first = there.clone().next();
            let Some(right) = there.find(|raw| !raw.wrong.contains(&block)).or(first) else { continue };
            for raw in &copies {
                let bad = raw.wrong.contains(&block) || raw.unreadable.contains(&block);
                if bad || raw.bytes[range.clone()] != right.bytes[range.clone()] {
                    let bytes = Buf::copy_of(&right.bytes[range.clone()]);
                    let piece = Piece { role, at: range.start as u64, bytes };
                    writes.push(MemberWrite { member: raw.member, piece });
                }
            }
        }
    }
    writes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::JOURNAL_AT;
    use crate::format::record::HEAD;
    use crate::{ArrayError, Layout, Options, Shape, assemble_as, create_as};
    use longhaul_block::{BlockDevice, MemDevice, WriteFlags};
    use longhaul_engine::Engine;
    use std::sync::Arc;
    use uuid::Uuid;

    /// Bytes of the journal of these arrays, and offset of the first byte after it.
    const JOURNAL: u64 = 1 << 20;
    const BEHIND: u64 = JOURNAL_AT + JOURNAL;

    /// Result of an assembly with one such record in the journal, and whether data was changed by
    /// it.
    fn assembled(layout: Layout, change: impl FnOnce(&mut JournalRecord)) -> (Result<(), ArrayError>, bool) {
        let devices: Vec<Arc<dyn BlockDevice>> = (0..4)
            .map(|_| Arc::new(MemDevice::new(4 << 20, 512).expect("mapped")) as Arc<dyn BlockDevice>)
            .collect();
        let array = Engine::simulated(1).expect("engine").block_on(async {
            let shape = Shape { name: "test".into(), layout, unit: 16 << 10, force: false };
            let mut next = 0;
            let new_uuid = || {
                next += 1;
                Uuid::from_u128(next)
            };
            let array = create_as(&devices, &[], &shape, new_uuid).await.expect("made");
            // The array is not stopped, so that the next assembly replays the journal.
            assemble_as(&devices, Options::default(), Uuid::from_u128(100)).await.expect("assembled");
            array
        });
        let piece = Piece { role: Role::Data(0), at: 0, bytes: Buf::copy_of(&[0xEE; BLOCK as usize]) };
        let mut record = JournalRecord {
            kind: RecordKind::Data,
            epoch: 1 << 20,
            epoch_start: 0,
            pos: 0,
            seq: 1 << 20,
            tail: 0,
            row: 0,
            covers: Vec::new(),
            pieces: vec![piece],
        };
        change(&mut record);
        Engine::simulated(2).expect("engine").block_on(async {
            let mut ios = Vec::new();
            for device in &devices {
                let io = device.open().await.expect("opened");
                let bytes = record.encode(array);
                io.write(JOURNAL_AT + record.pos % JOURNAL, bytes, WriteFlags::default())
                    .await
                    .expect("written");
                ios.push(io);
            }
            let result = assemble_as(&devices, Options::default(), Uuid::from_u128(101)).await.map(drop);
            let mut changed = false;
            for io in ios {
                let data = io.read(BEHIND, BufMut::zeroed(2 << 20)).await.expect("read");
                changed |= data.chunks(BLOCK as usize).any(|block| block.iter().all(|byte| *byte == 0xEE));
            }
            (result, changed)
        })
    }

    #[test]
    fn records_outside_the_array_are_not_replayed() {
        for layout in [Layout::Parity, Layout::DoubleParity] {
            assert_eq!(assembled(layout, |_| {}), (Ok(()), true), "{layout}: the record is a good one");
            type Change = fn(&mut JournalRecord);
            let wrong: [Change; 8] = [
                |record| record.row = 1 << 40,
                |record| record.pieces[0].role = Role::Data(200),
                |record| record.pieces[0].role = Role::P,
                |record| record.pieces[0].at = 16 << 10,
                |record| record.pieces[0].at = 512,
                |record| (record.kind, record.row) = (RecordKind::Commit, 1 << 40),
                |record| (record.kind, record.pieces[0].at) = (RecordKind::Commit, 16 << 10),
                |record| (record.kind, record.pieces[0].role) = (RecordKind::Commit, Role::Data(200)),
            ];
            for (number, change) in wrong.into_iter().enumerate() {
                let (result, changed) = assembled(layout, change);
                let text = result.expect_err("refused").to_string();
                assert!(
                    text.contains("names a range that the array does not have"),
                    "{layout} {number}: {text}"
                );
                assert!(!changed, "{layout} {number}");
            }
        }
    }

    #[test]
    fn records_that_span_more_than_the_journal_are_not_replayed() {
        // The first record of the array is at position 0.
        let (result, changed) = assembled(Layout::Parity, |record| {
            record.pos = 8 * JOURNAL + 16 * HEAD;
            record.epoch_start = record.pos;
        });
        let text = result.expect_err("refused").to_string();
        assert!(text.contains("journal records span") && !changed, "{text}");
    }
}
