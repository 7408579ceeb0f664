//! Arbitrates between blocks that match their checksums but contradict each other: a member has
//! lost writes that it had acknowledged, together with their checksums.
//!
//! Reads do not notice, and after a crash the resync has made the marked regions consistent, so
//! this is not a trace of a crash. Redundancy can identify the wrong block: P and Q together locate
//! one unit, and among three or more copies the majority wins. With one parity or two copies either
//! side may be the newer one, and only an operator can know.
//!
//! Invariants:
//! - nothing is overwritten on a guess: an ambiguous stripe is left as it is and reported;
//! - a stripe is not arbitrated while it may be changing: its lock is held, no write waits for it,
//!   its region is not marked, and no member is in doubt.

use crate::core::Core;
use crate::format::geometry::{BLOCK, Role};
use crate::format::record::Piece;
use crate::heal::lost::LostRanges;
use crate::heal::scrub::{ScrubReport, VerifiedBlock};
use crate::heal::upkeep::{SWEEP, is_over, pause};
use crate::io::plan::MemberWrite;
use crate::io::units::StripeUnits;
use crate::io::window::ReadOrigin;
use crate::report::Extent;
use longhaul_block::IoResult;
use longhaul_engine::{Buf, now};
use longhaul_parity::{Unit, Verdict};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Interval at which the mark of a region is checked again.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Result for a block of a stripe, or of the copies of a unit.
enum Arbitration {
    Consistent,
    /// The blocks contradict each other, and none is identified as wrong.
    Ambiguous,
    /// The content that these members must have.
    Repair(Vec<(usize, Buf)>),
}

/// The blocks of a stripe by member.
type StripeBlocks = [(usize, Vec<VerifiedBlock>)];

impl Core {
    /// Arbitrates stripes that a scrub found inconsistent, and repairs those where the wrong block
    /// is identified. False if the array stops before the end.
    pub(crate) async fn arbitrate_stripes(
        self: &Rc<Self>,
        rows: &[u64],
        report: &mut ScrubReport,
    ) -> IoResult<bool> {
        if rows.is_empty() {
            return Ok(true);
        }
        // A flush reveals members that have lost unflushed writes. If it fails, they stay in doubt.
        let _ = self.flush_members().await;
        let patience = now() + self.options.intent_idle + 3 * SWEEP;
        let (mut known, mut apart) = (Vec::new(), LostRanges::default());
        for row in rows {
            if is_over(self) {
                return Ok(false);
            }
            self.until_unmarked(self.geometry().region_of(*row), patience).await;
            let (found, extents) = self.arbitrate_row(*row, false).await?;
            report.add(&found);
            for Extent { offset, len } in extents {
                apart.add(offset, len);
            }
            known.extend(found.misfits.then_some(*row));
        }
        // `repair` marks the regions of its writes.
        for row in known {
            if is_over(self) {
                return Ok(false);
            }
            report.add(&self.arbitrate_row(row, true).await?.0);
        }
        report.disagreements = apart.listed();
        Ok(true)
    }

    /// Waits until a region is unmarked, unless its mark cannot be cleared now.
    async fn until_unmarked(self: &Rc<Self>, region: u64, patience: Instant) {
        while self.intent.is_marked(region) && self.may_clear_intents() && now() < patience && !is_over(self)
        {
            pause(self, CHECK_INTERVAL).await;
        }
    }

    /// Whether no write or resync of a stripe is pending, so that its content is final.
    fn is_settled(&self, row: u64) -> bool {
        let in_doubt = self.members.doubtful().next().is_some();
        let busy =
            self.io.rows.is_torn(row) || self.io.rows.queue(row).is_some() || self.journal.has_row(row);
        !busy && !in_doubt && !self.intent.is_marked(self.geometry().region_of(row))
    }

    /// Arbitrates a stripe: reports ambiguous blocks, and with `repair` writes the ones that are
    /// identified; without it `misfits` says whether there are any.
    async fn arbitrate_row(self: &Rc<Self>, row: u64, repair: bool) -> IoResult<(ScrubReport, Vec<Extent>)> {
        let geometry = self.geometry();
        let (mut report, mut extents) = (ScrubReport::of(geometry.width), Vec::new());
        let _step = self.begin_step().await?;
        let _room = self.room(geometry.width as u64 * geometry.unit, ReadOrigin::Background).await;
        let _alone = self.io.locks.exclusive(row).await;
        let units = self.read_verified(row).await?;
        let settled = repair || self.is_settled(row);
        let mut writes = Vec::new();
        for block in 0..(geometry.unit / BLOCK) as usize {
            let at = block as u64 * BLOCK;
            let parts = if geometry.has_parity() { 1 } else { geometry.data_units() };
            for part in 0..parts {
                let found = if geometry.has_parity() {
                    self.arbitrate_parity(row, block, &units)
                } else {
                    self.arbitrate_copies(row, block, part, &units)
                };
                match found {
                    Arbitration::Consistent => {}
                    _ if !settled => report.unsettled += 1,
                    Arbitration::Ambiguous if repair => {}
                    Arbitration::Ambiguous => {
                        report.disagreeing += 1;
                        extents.push(match geometry.has_parity() {
                            true => Extent { offset: row * geometry.stripe(), len: geometry.stripe() },
                            false => Extent {
                                offset: row * geometry.stripe() + part as u64 * geometry.unit + at,
                                len: BLOCK,
                            },
                        });
                    }
                    Arbitration::Repair(_) if !repair => report.misfits = true,
                    Arbitration::Repair(blocks) => {
                        for (member, bytes) in blocks {
                            let role = geometry.role(row, member);
                            self.note_outvoted(member, row, &units, block, &mut report);
                            writes.push(MemberWrite { member, piece: Piece { role, at, bytes } });
                        }
                    }
                }
            }
        }
        if report.disagreeing > 0 {
            tracing::error!(
                "array {}: {} blocks of stripe {row} match their checksums but not each other: a member has \
                 lost writes, and which one cannot be determined",
                self.name,
                report.disagreeing
            );
        }
        if !writes.is_empty() {
            self.repair(row, writes).await?;
        }
        Ok((report, extents))
    }

    /// Counts a block that is repaired.
    fn note_outvoted(
        &self,
        member: usize,
        row: u64,
        units: &StripeBlocks,
        block: usize,
        report: &mut ScrubReport,
    ) {
        let own = units.iter().find(|(of, _)| *of == member).map(|(_, blocks)| &blocks[block]);
        report.repaired += 1;
        // A block that does not match its checksum was counted when it was read.
        let outvoted = matches!(own, Some(VerifiedBlock::Right(_)));
        if outvoted {
            report.inconsistent += 1;
            report.wrong[member] += 1;
            tracing::warn!(
                "array {}: member {member} has lost writes to stripe {row}, according to the other members",
                self.name
            );
        }
        self.members[member].count(|counts| {
            counts.mismatches += u64::from(outvoted || matches!(own, Some(VerifiedBlock::Wrong)));
            counts.repaired += 1;
        });
    }

    /// A block of the copies of a data unit: the content of more than half of the copies that match
    /// their checksums is right.
    fn arbitrate_copies(&self, row: u64, block: usize, unit: usize, units: &StripeBlocks) -> Arbitration {
        let of_unit =
            units.iter().filter(|(member, _)| self.geometry().role(row, *member) == Role::Data(unit));
        let copies: Vec<(usize, &VerifiedBlock)> =
            of_unit.map(|(member, blocks)| (*member, &blocks[block])).collect();
        let right: Vec<&Buf> = copies
            .iter()
            .filter_map(|(_, block)| match block {
                VerifiedBlock::Right(bytes) => Some(bytes),
                _ => None,
            })
            .collect();
        let votes = |bytes: &Buf| right.iter().filter(|other| other[..] == bytes[..]).count();
        if right.first().is_none_or(|first| votes(first) == right.len()) {
            return Arbitration::Consistent;
        }
        let Some(winner) = right.iter().find(|bytes| 2 * votes(bytes) > right.len()) else {
            return Arbitration::Ambiguous;
        };
        let differs =
            |block: &VerifiedBlock| !matches!(block, VerifiedBlock::Right(bytes) if bytes[..] == winner[..]);
        let losers = copies.iter().filter(|(_, block)| differs(block));
        Arbitration::Repair(losers.map(|(member, _)| (*member, Buf::clone(winner))).collect())
    }

    /// A block of a stripe with parity.
    fn arbitrate_parity(&self, row: u64, block: usize, units: &StripeBlocks) -> Arbitration {
        let right = self.right_units(row, block, units);
        let (Some(p), Some(q)) = (right.p.clone(), right.q.clone()) else {
            return self.arbitrate_one_parity(right);
        };
        let data: Vec<&[u8]> = right.data.iter().flatten().map(|unit| &unit[..]).collect();
        if data.len() < right.data.len() {
            return self.arbitrate_by_checksum(row, block, right, [p, q]);
        }
        let role = match longhaul_parity::check(&data, &p, Some(&q)) {
            Verdict::Consistent => return Arbitration::Consistent,
            Verdict::Inconsistent => return Arbitration::Ambiguous,
            Verdict::Wrong(Unit::P) => Role::P,
            Verdict::Wrong(Unit::Q) => Role::Q,
            Verdict::Wrong(Unit::Data(unit)) => Role::Data(unit),
        };
        let mut others = right;
        match role {
            Role::Data(unit) => others.data[unit] = None,
            Role::P => others.p = None,
            Role::Q => others.q = None,
        }
        let known = self.geometry().homes(row, role).next().zip(self.derive(others, role, BLOCK));
        known.map_or(Arbitration::Ambiguous, |known| Arbitration::Repair(vec![known]))
    }

    /// With one parity, or no redundancy beyond what reconstruction needs, a contradiction is
    /// ambiguous.
    fn arbitrate_one_parity(&self, mut right: StripeUnits) -> Arbitration {
        if right.complete(BLOCK).is_err() {
            return Arbitration::Consistent;
        }
        let (p, q) = right.parity(BLOCK, right.q.is_some());
        let differs = |is: &Option<Buf>, should: Option<&Buf>| {
            is.as_ref().zip(should).is_some_and(|(is, should)| is[..] != should[..])
        };
        let fits = !differs(&right.p, Some(&p)) && !differs(&right.q, q.as_ref());
        if fits { Arbitration::Consistent } else { Arbitration::Ambiguous }
    }

    /// A data block does not match its checksum or cannot be read, and P and Q yield different
    /// content for it: the checksum tells which one is right.
    fn arbitrate_by_checksum(
        &self,
        row: u64,
        block: usize,
        right: StripeUnits,
        [p, q]: [Buf; 2],
    ) -> Arbitration {
        let mut missing = (0..right.data.len()).filter(|i| right.data[*i].is_none());
        let (Some(unit), None) = (missing.next(), missing.next()) else { return Arbitration::Consistent };
        let give = |p: Option<Buf>, q: Option<Buf>| {
            let units = StripeUnits { data: right.data.clone(), p, q, bad: Vec::new() };
            self.derive(units, Role::Data(unit), BLOCK)
        };
        let (Some(by_p), Some(by_q)) = (give(Some(p), None), give(None, Some(q))) else {
            return Arbitration::Ambiguous;
        };
        if by_p[..] == by_q[..] {
            return Arbitration::Consistent;
        }
        // The checksum of an offline member may be out of date.
        let Some(home) = self.members.holders(row, Role::Data(unit)).next() else {
            return Arbitration::Ambiguous;
        };
        let at = block as u64 * BLOCK;
        let is_it = |bytes: &Buf| self.sums.wrong(home, row, at, bytes).is_empty();
        let (bytes, role) = match (is_it(&by_p), is_it(&by_q)) {
            (true, false) => (by_p, Role::Q),
            (false, true) => (by_q, Role::P),
            _ => return Arbitration::Ambiguous,
        };
        let mut data = right.data;
        data[unit] = Some(bytes.clone());
        let whole = StripeUnits { data, p: None, q: None, bad: Vec::new() };
        let parity = self.geometry().homes(row, role).next().zip(self.derive(whole, role, BLOCK));
        Arbitration::Repair([(home, bytes)].into_iter().chain(parity).collect())
    }
}
