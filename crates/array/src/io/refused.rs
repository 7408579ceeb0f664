//! Writes that a member refuses since its space is full: the member stays in use, and the stripe stays
//! consistent.
//!
//! A write that is not acknowledged is taken back: blocks that had no space before become zeroes again,
//! and where only some members have taken their part, the others' old content decides, with parity for
//! that. It fails with [`IoError::NoSpace`]. A write that the journal has acknowledged cannot fail. It is
//! tried again until there is space, and meanwhile the array takes no other writes: the journal would
//! fill with them.
//!
//! Invariants:
//! - a member is lost to a refusal only if the write cannot be taken back (which takes a member that
//!   refuses to overwrite what it has, or data whose parity is all zeroes), or if it is one of a recovery, or
//!   of the array's records;
//! - while `waiting` is not zero every acknowledged write that is not in place has a record in the
//!   journal, and is read from its queue.

use crate::core::Core;
use crate::format::geometry::{BLOCK, Role};
use crate::format::record::Piece;
use crate::format::sums_page::entry_of;
use crate::io::journal::RowUpdate;
use crate::io::plan::MemberWrite;
use crate::member::{MemberError, MemberResult};
use futures_util::future::join_all;
use longhaul_block::{IoError, IoResult, WriteFlags};
use longhaul_engine::{Buf, BufMut, timeout};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Interval at which acknowledged writes are tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Acknowledged writes that wait for space.
#[derive(Default)]
pub(crate) struct Shortage {
    waiting: Cell<usize>,
    /// The array has started.
    serves: Cell<bool>,
}

impl Shortage {
    /// The array has started: from now on acknowledged writes wait.
    pub(crate) fn serve(&self) {
        self.serves.set(true);
    }

    /// Whether any waits.
    pub(crate) fn is_any(&self) -> bool {
        self.waiting.get() > 0
    }

    /// Refuses a write while there are any.
    pub(crate) fn check(&self) -> IoResult<()> {
        if self.is_any() { Err(IoError::NoSpace) } else { Ok(()) }
    }

    fn wait(self: &Rc<Self>) -> Waiting {
        self.waiting.set(self.waiting.get() + 1);
        Waiting(Rc::clone(self))
    }
}

/// An acknowledged write that waits for space, until this is dropped.
struct Waiting(Rc<Shortage>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

/// A write of a member that was tried.
pub(crate) struct TriedWrite {
    pub(crate) write: MemberWrite,
    /// The checksums that its blocks had, if they were replaced.
    pub(crate) before: Vec<u32>,
    /// The member has no space for it: none of it is written, or a part.
    pub(crate) refused: Option<MemberError>,
}

impl TriedWrite {
    /// The refusal as the failure of the member.
    pub(crate) fn failure(&self) -> Option<(usize, MemberResult<()>)> {
        self.refused.clone().map(|e| (self.write.member, Err(e)))
    }
}

/// A tried write while it is taken back.
struct Undone<'a> {
    tried: &'a TriedWrite,
    /// What the member has.
    found: Buf,
    /// What it is to have.
    target: BufMut,
}

impl Undone<'_> {
    fn role(&self) -> Role {
        self.tried.write.piece.role
    }

    /// Whether the member has not taken the block that begins at `at` in the piece.
    fn lacks(&self, at: usize) -> bool {
        let block = at..at + BLOCK as usize;
        self.found[block.clone()] != self.tried.write.piece.bytes[block]
    }

    /// Whether the block was zeroes, as one without space is.
    fn was_zero(&self, at: usize) -> bool {
        self.tried.before.get(at / BLOCK as usize) == Some(&entry_of(&[0; BLOCK as usize]))
    }

    /// The old content of a block that was not taken; `None` if it was not right before.
    fn old(&self, at: usize) -> Option<&[u8]> {
        let block = &self.found[at..at + BLOCK as usize];
        (self.tried.before.get(at / BLOCK as usize) == Some(&entry_of(block))).then_some(block)
    }
}

impl Core {
    /// Writes planned pieces that are not acknowledged. What a member has no space for is taken back, on
    /// all members; `part` if it is in the journal.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] if it was; or those of [`put`](Self::put).
    pub(crate) async fn put_or_undo(
        self: &Rc<Self>,
        row: u64,
        writes: Vec<MemberWrite>,
        part: Option<&RowUpdate<'_>>,
    ) -> IoResult<()> {
        let tried = self.try_put(row, writes).await?;
        let refused: Vec<_> = tried.iter().filter_map(TriedWrite::failure).collect();
        if refused.is_empty() {
            return Ok(());
        }
        if self.undo(row, &tried, part).await? {
            return Err(IoError::NoSpace);
        }
        self.settle(refused).await
    }

    /// Writes planned pieces that are acknowledged, as soon as all members have space for them.
    pub(crate) async fn put_acknowledged(
        self: &Rc<Self>,
        row: u64,
        writes: Vec<MemberWrite>,
    ) -> IoResult<()> {
        if !self.io.shortage.serves.get() {
            // A start of the array does not wait.
            return self.put(row, writes).await;
        }
        let mut waiting = None;
        let mut writes = writes;
        loop {
            let tried = self.try_put(row, writes).await?;
            let refused = tried.into_iter().filter(|tried| tried.refused.is_some());
            writes = refused.map(|tried| tried.write).collect();
            let Some(first) = writes.first() else { return Ok(()) };
            if waiting.is_none() {
                waiting = Some(self.io.shortage.wait());
                tracing::error!(
                    "array {}: member {} has no space for an acknowledged write: until it has, writes are \
                     refused",
                    self.name,
                    first.member
                );
                self.journal.wake();
                self.io.admission.wake();
            }
            if let Some(queue) = self.io.rows.queue(row) {
                queue.refuse(&IoError::NoSpace);
            }
            let _ = timeout(RETRY, self.upkeep.changed.until(|| self.is_halted())).await;
        }
    }

    /// Takes back writes some of which were refused; false if that cannot be done. The caller holds the
    /// stripe lock.
    async fn undo(
        self: &Rc<Self>,
        row: u64,
        tried: &[TriedWrite],
        part: Option<&RowUpdate<'_>>,
    ) -> IoResult<bool> {
        let reads = tried.iter().map(async |tried| {
            let MemberWrite { member, piece } = &tried.write;
            let found = match &tried.refused {
                Some(error) => {
                    let (place, at) = (&self.members[*member], self.geometry().unit_at(row) + piece.at);
                    let read = place.read(at, piece.bytes.len() as u64).await.ok()?;
                    // What another device has in its place since then says nothing of the write.
                    place.is_own(error).then(|| read.freeze())?
                }
                None => piece.bytes.clone(),
            };
            Some(Undone { tried, found, target: BufMut::copy_of(&piece.bytes) })
        });
        let Some(mut all) = join_all(reads).await.into_iter().collect::<Option<Vec<_>>>() else {
            return Ok(false);
        };
        // Pieces of the same range belong together: of all units if there is parity, else copies.
        let mut segments: BTreeMap<(u64, usize, Option<usize>), Vec<Undone<'_>>> = BTreeMap::new();
        for undone in all.drain(..) {
            let piece = &undone.tried.write.piece;
            let unit = match piece.role {
                Role::Data(unit) if !self.geometry().has_parity() => Some(unit),
                _ => None,
            };
            segments.entry((piece.at, piece.bytes.len(), unit)).or_default().push(undone);
        }
        for ((_, len, _), segment) in &mut segments {
            if !(0..*len).step_by(BLOCK as usize).all(|at| self.decide(segment, at)) {
                return Ok(false);
            }
        }
        let all: Vec<(&TriedWrite, Buf, Buf)> = segments
            .into_values()
            .flatten()
            .map(|undone| (undone.tried, undone.found, undone.target.freeze()))
            .collect();
        let seqs = match part {
            // A replay of the first record is followed by one of this.
            Some(part) => {
                let mut pieces: Vec<Piece> = Vec::new();
                for (tried, _, target) in &all {
                    let Piece { role, at, .. } = tried.write.piece;
                    if !pieces.iter().any(|piece| (piece.role, piece.at) == (role, at)) {
                        pieces.push(Piece { role, at, bytes: target.clone() });
                    }
                }
                self.journal.commit(self, part, Vec::new(), pieces).await?
            }
            None => Vec::new(),
        };
        let writes = all.iter().map(async |(tried, found, target)| {
            (tried.write.member, self.restore(row, tried, found, target).await)
        });
        let results = join_all(writes).await;
        self.io.read_cache.forget(row);
        self.settle(results).await?;
        self.journal.applied(&seqs, !self.members.has_volatile_cache());
        Ok(true)
    }

    /// Decides what one block of a segment is to be on each member; false if that is not known.
    fn decide(&self, segment: &mut [Undone<'_>], at: usize) -> bool {
        let block = at..at + BLOCK as usize;
        let lacking: Vec<usize> = (0..segment.len()).filter(|n| segment[*n].lacks(at)).collect();
        let Some(first) = lacking.first().copied() else { return true };
        if segment.iter().all(|undone| undone.was_zero(at)) {
            segment.iter_mut().for_each(|undone| undone.target[block.clone()].fill(0));
            return true;
        }
        if !self.geometry().has_parity() {
            let Some(old) = segment[first].old(at).map(<[u8]>::to_vec) else { return false };
            segment.iter_mut().for_each(|undone| undone.target[block.clone()].copy_from_slice(&old));
            return true;
        }
        for n in lacking {
            let Role::Data(unit) = segment[n].role() else { return false };
            let Some(old) = segment[n].old(at).map(<[u8]>::to_vec) else { return false };
            let new = segment[n].target[block.clone()].to_vec();
            for undone in segment.iter_mut() {
                let target = &mut undone.target[block.clone()];
                match undone.tried.write.piece.role {
                    Role::P => longhaul_parity::update(unit, &new, &old, Some(target), None),
                    Role::Q => longhaul_parity::update(unit, &new, &old, None, Some(target)),
                    Role::Data(_) => {}
                }
            }
            segment[n].target[block.clone()].copy_from_slice(&old);
        }
        true
    }

    /// Writes what differs between `found` and `target`, and the checksums of all of it.
    async fn restore(&self, row: u64, tried: &TriedWrite, found: &[u8], target: &Buf) -> MemberResult<()> {
        let MemberWrite { member, piece } = &tried.write;
        let place = &self.members[*member];
        place.check_usable()?;
        let base = self.geometry().unit_at(row) + piece.at;
        let writes = changes(found, target).into_iter().map(async |(is_zero, range)| {
            let at = base + range.start as u64;
            if is_zero {
                place.zero(at, range.len() as u64).await
            } else {
                place.write(at, target.slice(range), WriteFlags::default()).await
            }
        });
        let data = async { join_all(writes).await.into_iter().collect::<MemberResult<()>>() };
        let sums = self.sums.of(target);
        let (data, update) = futures_util::join!(data, self.sums.update(place, row, piece.at, &sums));
        match update {
            // The member has the page as it was, and these are the checksums of that time.
            Err(e) if e.error == IoError::NoSpace && tried.refused.is_some() => data,
            update => data.and(update),
        }
    }
}

/// The ranges of blocks in which two buffers of one size differ, and whether the second one has zeroes
/// there.
fn changes(found: &[u8], target: &[u8]) -> Vec<(bool, Range<usize>)> {
    let mut ranges: Vec<(bool, Range<usize>)> = Vec::new();
    for (number, (old, new)) in found.chunks(BLOCK as usize).zip(target.chunks(BLOCK as usize)).enumerate() {
        if old == new {
            continue;
        }
        let (is_zero, at) = (new.iter().all(|byte| *byte == 0), number * BLOCK as usize);
        match ranges.last_mut() {
            Some((last, range)) if *last == is_zero && range.end == at => range.end += new.len(),
            _ => ranges.push((is_zero, at..at + new.len())),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_written_in_runs() {
        let blocks =
            |bytes: &[u8]| -> Vec<u8> { bytes.iter().flat_map(|byte| [*byte; BLOCK as usize]).collect() };
        let run =
            |is_zero: bool, from: usize, to: usize| (is_zero, from * BLOCK as usize..to * BLOCK as usize);
        let found = changes(&blocks(&[1, 1, 1, 1, 1, 1, 0]), &blocks(&[1, 0, 0, 2, 3, 1, 4]));
        assert_eq!(found, [run(true, 1, 3), run(false, 3, 5), run(false, 6, 7)]);
        assert_eq!(changes(&blocks(&[1, 2]), &blocks(&[1, 2])), []);
    }
}
