//! Scrub: reads and verifies everything, and repairs what is wrong.
//!
//! Invariants:
//! - checksums decide which block is wrong: a block that does not match its checksum is replaced by
//!   its reconstruction, never the other way round;
//! - if all checksums match and the blocks contradict each other nothing is written here: see
//!   [`crate::heal::arbitrate`];
//! - what a scrub has found right, or repaired, is durable when it ends;
//! - a scrub yields to user I/O, and to the configured rate.

use crate::core::Core;
use crate::format::geometry::{BLOCK, JOURNAL_AT, Role};
use crate::format::record::Piece;
use crate::heal::lost::Unavailable;
use crate::heal::upkeep::is_over;
use crate::io::plan::MemberWrite;
use crate::io::units::{ReadFault, StripeUnits};
use crate::io::window::ReadOrigin;
use crate::member::MemberResult;
use crate::report::Extent;
use crate::without::Mechanism;
use futures_util::future::join_all;
use longhaul_block::{IoError, IoResult};
use longhaul_engine::{Buf, now};
use std::rc::Rc;
use std::time::Duration;

/// Bytes of a member that are scrubbed at a time.
const AT_A_TIME: u64 = 4 << 20;

/// Result of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// The scrub has reached the end.
    pub finished: bool,
    /// Stripes read, and stripes in total.
    pub stripes: (u64, u64),
    /// Wrong blocks by member: according to their checksums, or to the other members (see
    /// `inconsistent`).
    pub wrong: Vec<u64>,
    /// Unreadable blocks by member.
    pub unreadable: Vec<u64>,
    /// Blocks that were repaired.
    pub repaired: u64,
    /// Blocks that matched their checksums, but were found wrong and repaired: P and Q together
    /// locate them, or the majority of the copies differs.
    pub inconsistent: u64,
    /// Blocks that match their checksums but contradict each other, where the wrong one cannot be
    /// determined: a member has lost writes. Nothing was changed.
    pub disagreeing: u64,
    /// Ranges of the array that these concern; with parity whole stripes. At most 10000 are listed.
    pub disagreements: Vec<Extent>,
    /// Blocks that contradicted each other in regions with writes under way: nothing was changed,
    /// and nothing follows from it.
    pub unsettled: u64,
    /// Wrong blocks that can be repaired only after an offline member has returned.
    pub waiting: u64,
    /// Blocks of superblocks, bitmaps, journals and checksums that were rewritten.
    pub own: u64,
    /// Blocks of the array that are lost.
    pub lost: u64,
    /// Some blocks of a stripe contradict each other.
    pub(crate) misfits: bool,
    /// Time since the scrub began; its duration once it has finished.
    pub elapsed: Duration,
}

/// A block of a member, verified.
pub(crate) enum VerifiedBlock {
    Right(Buf),
    Wrong,
    Unreadable,
}

impl Core {
    /// Scrubs the whole array.
    pub(crate) async fn scrub(self: &Rc<Self>) -> IoResult<ScrubReport> {
        if !self.geometry().has_sums() {
            return Err(IoError::Unsupported("scrub without redundancy"));
        }
        let mut report =
            ScrubReport { stripes: (0, self.geometry().rows), ..ScrubReport::of(self.geometry().width) };
        // One scrub at a time.
        let _alone = self.upkeep.scrubbing.exclusive(0).await;
        let began = now();
        report.own = self.scrub_metadata().await?;
        self.upkeep.work.borrow_mut().lost.look_again();
        let rate = || self.upkeep.scrub_rate.get().or(self.upkeep.rebuild_rate.get());
        let mut pace = self.pace(self.geometry().unit, 1, true);
        let at_a_time = (AT_A_TIME / self.geometry().unit).max(1);
        let (mut row, mut misfits) = (0, Vec::new());
        while row < self.geometry().rows && !is_over(self) {
            pace.begin(rate());
            let end = (row + at_a_time).min(self.geometry().rows);
            for (row, result) in (row..end).zip(join_all((row..end).map(|row| self.scrub_row(row))).await) {
                let found = result?;
                report.add(&found);
                misfits.extend(found.misfits.then_some(row));
            }
            report.stripes.0 = end;
            report.elapsed = now() - began;
            self.upkeep.work.borrow_mut().scrub = Some(report.clone());
            pace.end(self, (end - row) * self.geometry().unit, rate()).await;
            row = end;
        }
        report.finished =
            row == self.geometry().rows && self.arbitrate_stripes(&misfits, &mut report).await?;
        if report.finished && !self.lacks(Mechanism::RepairFlush) {
            // Pages of checksums that were written again, and what was read from caches.
            self.flush_members().await?;
        }
        report.elapsed = now() - began;
        self.upkeep.work.borrow_mut().scrub = Some(report.clone());
        Ok(report)
    }

    /// Verifies superblocks, bitmaps, journals and checksum pages of the members, and rewrites
    /// damaged blocks from memory. Returns their number.
    async fn scrub_metadata(self: &Rc<Self>) -> IoResult<u64> {
        let mut repaired = self.scrub_superblocks().await?;
        for member in &self.members {
            if member.is_usable() {
                repaired += self.intent.scrub(self, member).await?;
            }
            if member.is_usable() && self.geometry().journal > 0 {
                match member.read_around(JOURNAL_AT, self.geometry().journal).await {
                    Ok(ring) if ring.unreadable.is_empty() => {}
                    Ok(ring) => {
                        self.journal.pass(self).await?;
                        repaired += self.journal.clear(self, member.index, &ring.unreadable).await?;
                    }
                    Err(e) => self.lose(member.index, &e).await?,
                }
            }
            if member.is_usable() {
                match self.sums.scrub(member).await {
                    Ok(pages) => repaired += pages,
                    Err(e) => self.lose(member.index, &e).await?,
                }
            }
        }
        Ok(repaired)
    }

    /// Scrubs one stripe: blocks that do not match their checksums are repaired from those that do.
    /// Contradictions among matching blocks are left for [`arbitrate_stripes`](Self::arbitrate_stripes).
    pub(crate) async fn scrub_row(self: &Rc<Self>, row: u64) -> IoResult<ScrubReport> {
        let mut report = ScrubReport::of(self.geometry().width);
        // Before the lock, which what a pause waits for may need.
        let _step = self.begin_step().await?;
        let _room =
            self.room(self.geometry().width as u64 * self.geometry().unit, ReadOrigin::Background).await;
        let _alone = self.io.locks.exclusive(row).await;
        let units = self.read_verified(row).await?;
        let mut writes = Vec::new();
        for block in 0..(self.geometry().unit / BLOCK) as usize {
            report.misfits |= self.scrub_block(row, block, &units, &mut writes, &mut report);
        }
        self.drop_unconfirmed(row, &mut writes, &mut report).await?;
        if !writes.is_empty() {
            self.repair(row, writes).await?;
        }
        Ok(report)
    }

    /// The verified units of a stripe by member. The caller holds the stripe lock.
    pub(crate) async fn read_verified(
        self: &Rc<Self>,
        row: u64,
    ) -> IoResult<Vec<(usize, Vec<VerifiedBlock>)>> {
        let members: Vec<usize> =
            (0..self.geometry().width).filter(|member| self.members.holds(*member, row)).collect();
        let mut units = Vec::new();
        for (member, blocks) in
            members.iter().zip(join_all(members.iter().map(|m| self.blocks(*m, row))).await)
        {
            match blocks {
                Ok(blocks) => units.push((*member, blocks)),
                Err(e) => self.lose(*member, &e).await?,
            }
        }
        Ok(units)
    }

    /// Drops reconstructions that contradict the checksum of their block, and everything derived
    /// from them.
    async fn drop_unconfirmed(
        &self,
        row: u64,
        writes: &mut Vec<MemberWrite>,
        report: &mut ScrubReport,
    ) -> IoResult<()> {
        let mut doubtful = Vec::new();
        for MemberWrite { member, piece } in writes.iter() {
            let made = self.geometry().has_parity() && matches!(piece.role, Role::Data(_));
            if made && !self.confirm_reconstruction(*member, row, piece.at, &piece.bytes).await? {
                report.lost += 1;
                if let Role::Data(unit) = piece.role {
                    self.lose_block(row, unit, piece.at);
                }
                doubtful.push(piece.at);
            }
        }
        let before = writes.len();
        writes.retain(|placed| !doubtful.contains(&placed.piece.at));
        report.repaired -= (before - writes.len()) as u64;
        Ok(())
    }

    /// The verified blocks of a member's unit.
    async fn blocks(&self, member: usize, row: u64) -> MemberResult<Vec<VerifiedBlock>> {
        let unit = self.geometry().unit;
        let dst = longhaul_engine::BufMut::zeroed(unit as usize);
        match self.read_unit(member, row, 0, dst).await {
            Ok(bytes) => {
                let bytes = bytes.freeze();
                let block = |at: usize| VerifiedBlock::Right(bytes.slice(at..at + BLOCK as usize));
                return Ok((0..unit as usize).step_by(BLOCK as usize).map(block).collect());
            }
            Err(ReadFault::Error(e)) if e.is_unreachable() => return Err(e),
            Err(_) => {}
        }
        let mut blocks = Vec::new();
        for at in (0..unit).step_by(BLOCK as usize) {
            let dst = longhaul_engine::BufMut::zeroed(BLOCK as usize);
            blocks.push(match self.read_unit(member, row, at, dst).await {
                Ok(bytes) => VerifiedBlock::Right(bytes.freeze()),
                Err(ReadFault::Mismatch(_)) => VerifiedBlock::Wrong,
                Err(ReadFault::Error(e)) if e.is_unreachable() => return Err(e),
                Err(ReadFault::Error(_)) => VerifiedBlock::Unreadable,
            });
        }
        Ok(blocks)
    }

    /// Scrubs one block of each unit; returns whether those that match their checksums contradict
    /// each other, in which case nothing is written.
    fn scrub_block(
        &self,
        row: u64,
        block: usize,
        units: &[(usize, Vec<VerifiedBlock>)],
        writes: &mut Vec<MemberWrite>,
        report: &mut ScrubReport,
    ) -> bool {
        let at = block as u64 * BLOCK;
        for (member, blocks) in units {
            let role = self.geometry().role(row, *member);
            match &blocks[block] {
                VerifiedBlock::Right(_) => self.regain(row, role, at, BLOCK),
                VerifiedBlock::Wrong => report.wrong[*member] += 1,
                VerifiedBlock::Unreadable => report.unreadable[*member] += 1,
            }
        }
        let roles = |(member, _): &(usize, Vec<VerifiedBlock>)| self.geometry().role(row, *member);
        // Copies concern their own unit only; parity concerns the whole stripe.
        let mut parts: Vec<Option<Role>> = vec![None];
        if !self.geometry().has_parity() {
            parts = units.iter().map(|unit| Some(roles(unit))).collect();
            parts.dedup();
        }
        let mut misfits = false;
        for part in parts {
            let of_it: Vec<&(usize, Vec<VerifiedBlock>)> =
                units.iter().filter(|unit| part.is_none_or(|part| roles(unit) == part)).collect();
            let is_right = |(_, blocks): &&&(usize, Vec<VerifiedBlock>)| {
                matches!(blocks[block], VerifiedBlock::Right(_))
            };
            let wrong = of_it.len() - of_it.iter().filter(is_right).count();
            let mut right = self.right_units(row, block, units);
            let unavailable = self.unavailable(row, &right, |role| part.is_none_or(|part| role == part));
            let complete = match part {
                None => right.complete(BLOCK).is_ok(),
                Some(Role::Data(i)) => right.data[i].is_some(),
                Some(_) => false,
            };
            if !complete {
                match unavailable {
                    _ if wrong == 0 => {}
                    Unavailable::Offline => report.waiting += wrong as u64,
                    Unavailable::Lost(lost) => {
                        report.lost += lost.len() as u64;
                        lost.into_iter().for_each(|unit| self.lose_block(row, unit, at));
                    }
                }
                continue;
            }
            let (p, q) = match part {
                None => {
                    let (p, q) = right.parity(BLOCK, self.geometry().redundancy() == 2);
                    (Some(p), q)
                }
                Some(_) => (None, None),
            };
            let should = |role: Role| match role {
                Role::Data(i) => right.data[i].clone(),
                Role::P => p.clone(),
                Role::Q => q.clone(),
            };
            let fits = |(member, blocks): &&(usize, Vec<VerifiedBlock>)| match &blocks[block] {
                VerifiedBlock::Right(bytes) => {
                    should(self.geometry().role(row, *member)).is_none_or(|should| should[..] == bytes[..])
                }
                _ => true,
            };
            if !of_it.iter().all(fits) {
                misfits = true;
                continue;
            }
            for (member, blocks) in of_it {
                let role = self.geometry().role(row, *member);
                let is_wrong = !matches!(blocks[block], VerifiedBlock::Right(_));
                if let Some(bytes) = should(role).filter(|_| is_wrong) {
                    report.repaired += 1;
                    self.members[*member].count(|counts| {
                        counts.mismatches += u64::from(matches!(blocks[block], VerifiedBlock::Wrong));
                        counts.repaired += 1;
                    });
                    writes.push(MemberWrite { member: *member, piece: Piece { role, at, bytes } });
                }
            }
        }
        misfits
    }

    /// The content of one block of each unit that matches its checksum; the first of several
    /// copies.
    pub(crate) fn right_units(
        &self,
        row: u64,
        block: usize,
        units: &[(usize, Vec<VerifiedBlock>)],
    ) -> StripeUnits {
        let mut right =
            StripeUnits { data: vec![None; self.geometry().data_units()], p: None, q: None, bad: Vec::new() };
        for (member, blocks) in units {
            let VerifiedBlock::Right(bytes) = &blocks[block] else { continue };
            match self.geometry().role(row, *member) {
                Role::Data(i) => right.data[i] = right.data[i].take().or(Some(bytes.clone())),
                Role::P => right.p = Some(bytes.clone()),
                Role::Q => right.q = Some(bytes.clone()),
            }
        }
        right
    }
}

impl ScrubReport {
    /// An empty report.
    pub(crate) fn of(width: usize) -> ScrubReport {
        ScrubReport { wrong: vec![0; width], unreadable: vec![0; width], ..ScrubReport::default() }
    }

    pub(crate) fn add(&mut self, row: &ScrubReport) {
        let add = |all: &mut [u64], some: &[u64]| all.iter_mut().zip(some).for_each(|(a, b)| *a += b);
        add(&mut self.wrong, &row.wrong);
        add(&mut self.unreadable, &row.unreadable);
        self.repaired += row.repaired;
        self.inconsistent += row.inconsistent;
        self.disagreeing += row.disagreeing;
        self.unsettled += row.unsettled;
        self.waiting += row.waiting;
        self.lost += row.lost;
    }
}
