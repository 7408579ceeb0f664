//! Plans the writes that give a part of a stripe new content.
//!
//! All reads take one round trip, and parity is computed in the way that moves the fewest bytes:
//! from the new data alone (full-stripe write), from old data and old parity (read-modify-write),
//! or from the rest of the data (reconstruct-write). If a missing member rules these out,
//! everything that is left is read.

use crate::core::Core;
use crate::format::geometry::{BLOCK, Role};
use crate::format::record::Piece;
use crate::heal::lost::Unavailable;
use crate::io::refused::TriedWrite;
use crate::io::sums::UNKNOWN;
use crate::io::units::StripeUnits;
use longhaul_block::{IoError, IoResult};
use longhaul_engine::{Buf, BufMut};
use std::rc::Rc;

/// A range of a stripe's units: each data unit has new content in all of it, or in none of it.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    /// Offset in the units, in bytes.
    pub(crate) at: u64,
    pub(crate) len: u64,
    /// New content by data unit.
    pub(crate) new: Vec<Option<Buf>>,
}

/// A piece, and the member that it is written to.
#[derive(Clone, Debug)]
pub(crate) struct MemberWrite {
    pub(crate) member: usize,
    pub(crate) piece: Piece,
}

/// The writes of a segment.
#[derive(Default)]
pub(crate) struct WritePlan {
    pub(crate) writes: Vec<MemberWrite>,
    /// New parity, for the journal.
    pub(crate) parity: Vec<Piece>,
}

/// Runs of parity beside lost blocks in one plan: all of them must fit into one journal record.
const RUNS_MAX: usize = 64;

/// How new parity is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParityMethod {
    /// The layout has no parity, or no member holds it.
    None,
    /// Full-stripe write: from new data alone.
    FullStripe,
    /// Read-modify-write: from old data and old parity.
    ReadModifyWrite,
    /// Reconstruct-write: from the units that are not written.
    ReconstructWrite,
    /// Degraded write: from all units that are left.
    Degraded,
}

impl Core {
    /// Plans a segment. The caller holds the stripe lock.
    pub(crate) async fn plan(self: &Rc<Self>, row: u64, segment: &Segment) -> IoResult<WritePlan> {
        let mut plan = WritePlan::default();
        let method = self.parity_method(row, segment);
        self.io.count(|counts| match method {
            ParityMethod::None | ParityMethod::FullStripe => counts.full_writes += 1,
            ParityMethod::ReadModifyWrite => counts.modify_writes += 1,
            ParityMethod::ReconstructWrite => counts.reconstruct_writes += 1,
            ParityMethod::Degraded => counts.degraded_writes += 1,
        });
        let done = match method {
            ParityMethod::None => Some((None, None)),
            ParityMethod::FullStripe => Some(self.new_parity(segment, None)),
            ParityMethod::ReadModifyWrite => self.read_modify_write(row, segment).await?,
            ParityMethod::ReconstructWrite => self.reconstruct_write(row, segment).await?,
            ParityMethod::Degraded => None,
        };
        let (p, q) = match done {
            Some(parity) => parity,
            None => self.degraded_write(row, segment, &mut plan).await?,
        };
        for (i, new) in segment.new.iter().enumerate() {
            let Some(bytes) = new else { continue };
            self.add_write(row, &mut plan, Role::Data(i), segment.at, bytes);
        }
        for (role, bytes) in [(Role::P, p), (Role::Q, q)] {
            let Some(bytes) = bytes else { continue };
            self.add_write(row, &mut plan, role, segment.at, &bytes);
            plan.parity.push(Piece { role, at: segment.at, bytes });
        }
        Ok(plan)
    }

    fn add_write(&self, row: u64, plan: &mut WritePlan, role: Role, at: u64, bytes: &Buf) {
        for member in self.members.holders(row, role) {
            plan.writes.push(MemberWrite { member, piece: Piece { role, at, bytes: bytes.clone() } });
        }
    }

    fn has(&self, row: u64, role: Role) -> bool {
        self.members.holders(row, role).next().is_some()
    }

    fn parity_method(&self, row: u64, segment: &Segment) -> ParityMethod {
        let live = [Role::P, Role::Q].into_iter().filter(|role| self.has(row, *role)).count();
        let is_held = |i: usize| self.has(row, Role::Data(i));
        let all = 0..segment.new.len();
        if live == 0 {
            return ParityMethod::None;
        }
        if segment.new.iter().all(Option::is_some) {
            return ParityMethod::FullStripe;
        }
        let (touched, rest): (Vec<usize>, Vec<usize>) = all.partition(|i| segment.new[*i].is_some());
        let modify = touched.iter().all(|i| is_held(*i)).then_some(touched.len() + live);
        let rebuild = rest.iter().all(|i| is_held(*i)).then_some(rest.len());
        match (modify, rebuild) {
            (Some(modify), Some(rebuild)) if modify < rebuild => ParityMethod::ReadModifyWrite,
            (_, Some(_)) => ParityMethod::ReconstructWrite,
            (Some(_), None) => ParityMethod::ReadModifyWrite,
            (None, None) => ParityMethod::Degraded,
        }
    }

    /// Parity of the new data, and of `old` where there is no new data.
    fn new_parity(&self, segment: &Segment, old: Option<StripeUnits>) -> (Option<Buf>, Option<Buf>) {
        let old = old.map_or_else(|| vec![None; segment.new.len()], |units| units.data);
        let data = segment.new.iter().zip(old).map(|(new, old)| new.clone().or(old)).collect();
        let units = StripeUnits { data, p: None, q: None, bad: Vec::new() };
        let (p, q) = units.parity(segment.len, self.geometry().redundancy() == 2);
        (Some(p), q)
    }

    /// Reconstruct-write: parity from the rest of the data; `None` if that cannot be read.
    async fn reconstruct_write(
        self: &Rc<Self>,
        row: u64,
        segment: &Segment,
    ) -> IoResult<Option<(Option<Buf>, Option<Buf>)>> {
        let wanted = |role| matches!(role, Role::Data(i) if segment.new[i].is_none());
        let old = self.read_units(row, segment.at, segment.len, wanted, &[]).await?;
        let complete = old.data.iter().zip(&segment.new).all(|(old, new)| old.is_some() || new.is_some());
        Ok((complete && old.bad.is_empty()).then(|| self.new_parity(segment, Some(old))))
    }

    /// Read-modify-write: parity from old data and old parity; `None` if those cannot be read.
    async fn read_modify_write(
        self: &Rc<Self>,
        row: u64,
        segment: &Segment,
    ) -> IoResult<Option<(Option<Buf>, Option<Buf>)>> {
        let wanted = |role: Role| match role {
            Role::Data(i) => segment.new[i].is_some(),
            role => self.has(row, role),
        };
        let (wants_p, wants_q) = (wanted(Role::P), wanted(Role::Q));
        let old = self.read_units(row, segment.at, segment.len, wanted, &[]).await?;
        let complete = old.data.iter().zip(&segment.new).all(|(old, new)| old.is_some() || new.is_none());
        if !complete || !old.bad.is_empty() || wants_p != old.p.is_some() || wants_q != old.q.is_some() {
            return Ok(None);
        }
        let (mut p, mut q) = (old.p.map(Buf::into_mut), old.q.map(Buf::into_mut));
        for (i, (new, old)) in segment.new.iter().zip(&old.data).enumerate() {
            if let (Some(new), Some(old)) = (new, old) {
                longhaul_parity::update(i, old, new, p.as_deref_mut(), q.as_deref_mut());
            }
        }
        Ok(Some((p.map(BufMut::freeze), q.map(BufMut::freeze))))
    }

    /// Degraded write: parity from all units that are left; unreadable blocks are repaired.
    async fn degraded_write(
        self: &Rc<Self>,
        row: u64,
        segment: &Segment,
        plan: &mut WritePlan,
    ) -> IoResult<(Option<Buf>, Option<Buf>)> {
        let mut old = self.read_units(row, segment.at, segment.len, |_| true, &[]).await?;
        // Units with new content need not be reconstructed.
        let unknown = old.data.iter().zip(&segment.new).any(|(old, new)| old.is_none() && new.is_none());
        if unknown && old.complete(segment.len).is_err() {
            return self.write_beside_lost(row, segment, plan).await.map(|()| (None, None));
        }
        for member in &old.bad {
            if let Role::Data(i) = self.geometry().role(row, *member)
                && segment.new[i].is_none()
                && let Some(bytes) = old.data[i].clone()
            {
                if !self.confirm_reconstruction(*member, row, segment.at, &bytes).await? {
                    plan.writes.clear();
                    return self.write_beside_lost(row, segment, plan).await.map(|()| (None, None));
                }
                self.members[*member]
                    .count(|counts| counts.repaired += segment.len / crate::format::geometry::BLOCK);
                let piece = Piece { role: Role::Data(i), at: segment.at, bytes };
                plan.writes.push(MemberWrite { member: *member, piece });
            }
        }
        Ok(self.new_parity(segment, Some(old)))
    }

    /// Plans new content beside lost blocks, block by block: the lost blocks stay as they are.
    /// Parity that can no longer be computed is marked as wrong, since a reconstruction from it
    /// would not yield the written data.
    async fn write_beside_lost(
        self: &Rc<Self>,
        row: u64,
        segment: &Segment,
        plan: &mut WritePlan,
    ) -> IoResult<()> {
        let mut touched = (0..segment.new.len()).filter(|i| segment.new[*i].is_some());
        if touched.any(|i| !self.has(row, Role::Data(i))) {
            // The new data would exist as parity only.
            return Err(self.unreadable(row));
        }
        let roles = [Role::P, Role::Q].into_iter().filter(|role| self.has(row, *role));
        let roles: Vec<Role> = roles.collect();
        let mut pieces: Vec<(Role, u64, Vec<u8>)> = Vec::new();
        for start in (0..segment.len).step_by(BLOCK as usize) {
            let at = segment.at + start;
            let cut = |bytes: &Buf| bytes.slice(start as usize..(start + BLOCK) as usize);
            let new: Vec<Option<Buf>> = segment.new.iter().map(|new| new.as_ref().map(cut)).collect();
            let block = Segment { at, len: BLOCK, new };
            for (role, parity) in roles.iter().zip(self.parity_beside_lost(row, &block, &roles).await?) {
                let Some(parity) = parity else {
                    self.invalidate_parity(row, *role, at).await?;
                    continue;
                };
                match pieces
                    .iter_mut()
                    .find(|(of, from, bytes)| of == role && from + bytes.len() as u64 == at)
                {
                    Some((.., bytes)) => bytes.extend_from_slice(&parity),
                    None => pieces.push((*role, at, parity.to_vec())),
                }
            }
        }
        if pieces.len() > RUNS_MAX {
            return Err(self.unreadable(row));
        }
        for (role, at, bytes) in pieces {
            let bytes = Buf::copy_of(&bytes);
            self.add_write(row, plan, role, at, &bytes);
            plan.parity.push(Piece { role, at, bytes });
        }
        Ok(())
    }

    /// Parity of one block by role; `None` where it cannot be computed.
    async fn parity_beside_lost(
        self: &Rc<Self>,
        row: u64,
        block: &Segment,
        roles: &[Role],
    ) -> IoResult<Vec<Option<Buf>>> {
        let mut old = self.read_units(row, block.at, BLOCK, |_| true, &[]).await?;
        let mut all =
            StripeUnits { data: old.data.clone(), p: old.p.clone(), q: old.q.clone(), bad: Vec::new() };
        if all.complete(BLOCK).is_ok() && self.confirm_all(row, block, &old.bad, &all).await? {
            old = StripeUnits { bad: old.bad, ..all };
        }
        let is_known = |i: usize| old.data[i].is_some() || block.new[i].is_some();
        if (0..block.new.len()).all(is_known) {
            let (p, q) = self.new_parity(block, Some(old));
            return Ok(roles
                .iter()
                .map(|role| if *role == Role::P { p.clone() } else { q.clone() })
                .collect());
        }
        // Updating keeps the contribution of unknown units to parity, if the old content of the
        // changed ones is known.
        let changed = |i: &usize| block.new[*i].is_some();
        let can_change = (0..block.new.len()).filter(changed).all(|i| old.data[i].is_some());
        if !can_change && self.unavailable(row, &old, |_| true) == Unavailable::Offline {
            // An offline member may hold what only this parity can reconstruct together with it.
            return Err(self.unreadable(row));
        }
        let change = |role: &Role| {
            let is_p = *role == Role::P;
            let before = if is_p { old.p.clone() } else { old.q.clone() };
            let mut parity = before.filter(|_| can_change)?.into_mut();
            for (i, (new, old)) in block.new.iter().zip(&old.data).enumerate() {
                if let (Some(new), Some(old)) = (new, old) {
                    let (p, q) =
                        if is_p { (Some(&mut parity[..]), None) } else { (None, Some(&mut parity[..])) };
                    longhaul_parity::update(i, old, new, p, q);
                }
            }
            Some(parity.freeze())
        };
        Ok(roles.iter().map(change).collect())
    }

    /// Whether the reconstructed blocks match what these members must hold, except where they are
    /// overwritten.
    async fn confirm_all(
        self: &Rc<Self>,
        row: u64,
        block: &Segment,
        bad: &[usize],
        all: &StripeUnits,
    ) -> IoResult<bool> {
        for member in bad {
            if let Role::Data(i) = self.geometry().role(row, *member)
                && block.new[i].is_none()
                && let Some(bytes) = &all.data[i]
                && !self.confirm_reconstruction(*member, row, block.at, bytes).await?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Marks a block of parity as wrong.
    async fn invalidate_parity(&self, row: u64, role: Role, at: u64) -> IoResult<()> {
        for member in self.members.holders(row, role) {
            if let Err(e) = self.sums.update(&self.members[member], row, at, &[UNKNOWN]).await {
                self.lose(member, &e).await?;
            }
        }
        Ok(())
    }

    /// Writes the planned pieces with their checksums. Members that fail are lost, durably, before
    /// this returns without an error; also those whose space is full.
    pub(crate) async fn put(self: &Rc<Self>, row: u64, writes: Vec<MemberWrite>) -> IoResult<()> {
        let tried = self.try_put(row, writes).await?;
        let refused = tried.iter().filter(|tried| tried.refused.is_some());
        self.settle(refused.filter_map(TriedWrite::failure).collect()).await
    }

    /// The same, but members whose space is full are not lost: which they are is in the result.
    pub(crate) async fn try_put(
        self: &Rc<Self>,
        row: u64,
        writes: Vec<MemberWrite>,
    ) -> IoResult<Vec<TriedWrite>> {
        self.check_running()?;
        let pieces =
            writes.iter().map(|MemberWrite { piece, .. }| (piece.role, piece.at, piece.bytes.len() as u64));
        let pieces: Vec<(Role, u64, u64)> = pieces.collect();
        let writes = writes.into_iter().map(async |write| {
            let (mut before, MemberWrite { member, piece }) = (Vec::new(), write.clone());
            let place = &self.members[member];
            let at = self.geometry().unit_at(row) + piece.at;
            let sums = if self.geometry().has_sums() { self.sums.of(&piece.bytes) } else { Vec::new() };
            // The member may have been lost since the plan was made.
            if let Err(e) = place.check_usable() {
                return (TriedWrite { write, before, refused: None }, (member, Err(e)));
            }
            let data = place.write(at, piece.bytes, longhaul_block::WriteFlags::default());
            let update = self.sums.replace(place, row, piece.at, &sums, &mut before);
            let (data, update) = futures_util::join!(data, update);
            match data.and(update) {
                Err(e) if e.error == IoError::NoSpace => {
                    (TriedWrite { write, before, refused: Some(e) }, (member, Ok(())))
                }
                result => (TriedWrite { write, before, refused: None }, (member, result)),
            }
        });
        let (tried, results): (Vec<_>, _) = futures_util::future::join_all(writes).await.into_iter().unzip();
        self.io.read_cache.forget(row);
        self.settle(results).await?;
        if tried.iter().all(|tried| tried.refused.is_none()) {
            pieces.into_iter().for_each(|(role, at, len)| self.regain(row, role, at, len));
        }
        Ok(tried)
    }
}
