//! Scrub: everything is read and compared, and what is wrong is mended.
//!
//! Invariants:
//! - who is wrong is decided by checksums: a block that does not match its own
//!   is replaced by what the others give, and never the other way round;
//! - a scrub gives way to users, and to the rate that is set.

use crate::core::Core;
use crate::fill::Seen;
use crate::geometry::{BLOCK, JOURNAL_AT, Role};
use crate::journal::record::Piece;
use crate::member::MemberResult;
use crate::plan::Placed;
use crate::units::Fault;
use crate::upkeep::is_over;
use crate::window::Reader;
use futures_util::future::join_all;
use longhaul_block::{IoError, IoResult};
use longhaul_engine::{Buf, now};
use std::rc::Rc;
use std::time::Duration;

/// Bytes of a member that are scrubbed at a time.
const AT_A_TIME: u64 = 4 << 20;

/// What a scrub has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// It has come to its end.
    pub finished: bool,
    /// Stripes looked at, and stripes there are.
    pub stripes: (u64, u64),
    /// Blocks that were wrong, by member.
    pub wrong: Vec<u64>,
    /// Blocks that could not be read, by member.
    pub unreadable: Vec<u64>,
    /// Blocks that were mended.
    pub mended: u64,
    /// Blocks of parity or copies that did not fit, though every checksum
    /// was right.
    pub inconsistent: u64,
    /// Blocks of superblocks, bitmaps, journals and checksums that were
    /// written again.
    pub own: u64,
    /// Blocks that nobody has any more.
    pub lost: u64,
    /// How long it took so far.
    pub elapsed: Duration,
}

/// A block of a member.
enum Block {
    Right(Buf),
    Wrong,
    Unreadable,
}

impl Core {
    /// Scrubs the whole array.
    pub(crate) async fn scrub(self: &Rc<Self>) -> IoResult<ScrubReport> {
        if !self.geometry.has_sums() {
            return Err(IoError::Unsupported("scrub without redundancy"));
        }
        let width = self.geometry.width;
        let mut report = ScrubReport {
            stripes: (0, self.geometry.rows),
            wrong: vec![0; width],
            unreadable: vec![0; width],
            ..ScrubReport::default()
        };
        // One at a time.
        let _alone = self.scrubbing.exclusive(0).await;
        let began = now();
        report.own = self.scrub_own().await?;
        let mut seen = Seen { begun: self.begun.get(), published: began, done: 0 };
        let at_a_time = (AT_A_TIME / self.geometry.unit).max(1);
        let mut row = 0;
        while row < self.geometry.rows && !is_over(self) {
            let (start, end) = (now(), (row + at_a_time).min(self.geometry.rows));
            for result in join_all((row..end).map(|row| self.scrub_row(row))).await {
                report.add(&result?);
            }
            report.stripes.0 = end;
            report.elapsed = now() - began;
            let rate = self.upkeep.scrub_rate.get().or(self.upkeep.rebuild_rate.get());
            self.upkeep.tasks.borrow_mut().scrub = Some(report.clone());
            self.give_way(&mut seen, (end - row) * self.geometry.unit, start, rate).await;
            row = end;
        }
        report.finished = row == self.geometry.rows;
        report.elapsed = now() - began;
        self.upkeep.tasks.borrow_mut().scrub = Some(report.clone());
        Ok(report)
    }

    /// Looks at what members have beside data, and writes again from memory
    /// what cannot be read, or is not what was written.
    async fn scrub_own(self: &Rc<Self>) -> IoResult<u64> {
        let mut mended = self.scrub_superblocks().await?;
        for member in &self.members {
            if member.is_usable() {
                mended += self.intent.scrub(self, member).await?;
            }
            if member.is_usable() && self.geometry.journal > 0 {
                match member.read_around(JOURNAL_AT, self.geometry.journal).await {
                    Ok(ring) if ring.unreadable.is_empty() => {}
                    Ok(ring) => {
                        self.journal.pass(self).await?;
                        mended += self.journal.clear(self, member.index, &ring.unreadable).await?;
                    }
                    Err(e) => self.lose(member.index, &e).await?,
                }
            }
            if member.is_usable() {
                match self.sums.scrub(member).await {
                    Ok(pages) => mended += pages,
                    Err(e) => self.lose(member.index, &e).await?,
                }
            }
        }
        Ok(mended)
    }

    /// Scrubs one stripe.
    pub(crate) async fn scrub_row(self: &Rc<Self>, row: u64) -> IoResult<ScrubReport> {
        let width = self.geometry.width;
        let mut report =
            ScrubReport { wrong: vec![0; width], unreadable: vec![0; width], ..ScrubReport::default() };
        let _room = self.room(width as u64 * self.geometry.unit, Reader::Background).await;
        let _alone = self.locks.exclusive(row).await;
        let members: Vec<usize> = (0..width).filter(|member| self.holds(*member, row)).collect();
        let mut units = Vec::new();
        for (member, blocks) in
            members.iter().zip(join_all(members.iter().map(|m| self.blocks(*m, row))).await)
        {
            match blocks {
                Ok(blocks) => units.push((*member, blocks)),
                Err(e) => self.lose(*member, &e).await?,
            }
        }
        let mut writes = Vec::new();
        for block in 0..(self.geometry.unit / BLOCK) as usize {
            self.scrub_block(row, block, &units, &mut writes, &mut report);
        }
        self.drop_doubtful(row, &mut writes, &mut report).await?;
        if !writes.is_empty() {
            let _marked = self.intent.mark(self, self.geometry.region_of(row)).await?;
            self.put(row, writes).await?;
        }
        Ok(report)
    }

    /// Leaves out what parity gives, but the checksum of the block denies, and
    /// all that was made of it.
    async fn drop_doubtful(
        &self,
        row: u64,
        writes: &mut Vec<Placed>,
        report: &mut ScrubReport,
    ) -> IoResult<()> {
        let mut doubtful = Vec::new();
        for Placed { member, piece } in writes.iter() {
            let made = self.geometry.has_parity() && matches!(piece.role, Role::Data(_));
            if made && !self.vouch(*member, row, piece.at, &piece.bytes).await? {
                report.lost += 1;
                self.lose_range(row, piece.role, piece.at);
                doubtful.push(piece.at);
            }
        }
        let before = writes.len();
        writes.retain(|placed| !doubtful.contains(&placed.piece.at));
        report.mended -= (before - writes.len()) as u64;
        Ok(())
    }

    /// The blocks of a member's unit.
    async fn blocks(&self, member: usize, row: u64) -> MemberResult<Vec<Block>> {
        let unit = self.geometry.unit;
        let dst = longhaul_engine::BufMut::zeroed(unit as usize);
        match self.read_unit(member, row, 0, dst).await {
            Ok(bytes) => {
                let bytes = bytes.freeze();
                let block = |at: usize| Block::Right(bytes.slice(at..at + BLOCK as usize));
                return Ok((0..unit as usize).step_by(BLOCK as usize).map(block).collect());
            }
            Err(Fault::Error(e)) if e.is_absence() => return Err(e),
            Err(_) => {}
        }
        let mut blocks = Vec::new();
        for at in (0..unit).step_by(BLOCK as usize) {
            let dst = longhaul_engine::BufMut::zeroed(BLOCK as usize);
            blocks.push(match self.read_unit(member, row, at, dst).await {
                Ok(bytes) => Block::Right(bytes.freeze()),
                Err(Fault::Mismatch(_)) => Block::Wrong,
                Err(Fault::Error(e)) if e.is_absence() => return Err(e),
                Err(Fault::Error(_)) => Block::Unreadable,
            });
        }
        Ok(blocks)
    }

    fn scrub_block(
        &self,
        row: u64,
        block: usize,
        units: &[(usize, Vec<Block>)],
        writes: &mut Vec<Placed>,
        report: &mut ScrubReport,
    ) {
        let at = block as u64 * BLOCK;
        let mut right = crate::units::Units {
            data: vec![None; self.geometry.data_units()],
            p: None,
            q: None,
            bad: Vec::new(),
        };
        for (member, blocks) in units {
            let Block::Right(bytes) = &blocks[block] else { continue };
            match self.geometry.role(row, *member) {
                Role::Data(i) => right.data[i] = right.data[i].take().or(Some(bytes.clone())),
                Role::P => right.p = Some(bytes.clone()),
                Role::Q => right.q = Some(bytes.clone()),
            }
        }
        let complete = right.complete(BLOCK).is_ok();
        let parity = (complete && self.geometry.has_parity())
            .then(|| right.parity(BLOCK, self.geometry.redundancy() == 2));
        for (member, blocks) in units {
            let role = self.geometry.role(row, *member);
            let should = match (role, &parity) {
                (Role::Data(i), _) => right.data[i].clone(),
                (Role::P, Some((p, _))) => Some(p.clone()),
                (Role::Q, Some((_, q))) => q.clone(),
                _ => None,
            };
            match &blocks[block] {
                Block::Right(bytes) if should.as_ref().is_none_or(|should| should[..] == bytes[..]) => {
                    continue;
                }
                Block::Right(_) => report.inconsistent += 1,
                Block::Wrong => report.wrong[*member] += 1,
                Block::Unreadable => report.unreadable[*member] += 1,
            }
            let Some(bytes) = should else {
                report.lost += 1;
                self.lose_range(row, role, at);
                continue;
            };
            report.mended += 1;
            self.members[*member].count(|counts| {
                counts.mismatches += u64::from(matches!(blocks[block], Block::Wrong));
                counts.mended += 1;
            });
            writes.push(Placed { member: *member, piece: Piece { role, at, bytes } });
        }
    }
}

impl ScrubReport {
    fn add(&mut self, row: &ScrubReport) {
        let add = |all: &mut [u64], some: &[u64]| all.iter_mut().zip(some).for_each(|(a, b)| *a += b);
        add(&mut self.wrong, &row.wrong);
        add(&mut self.unreadable, &row.unreadable);
        self.mended += row.mended;
        self.inconsistent += row.inconsistent;
        self.lost += row.lost;
    }
}
