//! Reads units of a stripe, verifies them, and reconstructs missing ones.
//!
//! Invariants:
//! - bytes that do not match their checksum are neither used nor returned;
//! - bytes and checksums are of one device, which holds the stripe: another one, with a former member's
//!   content and checksums, may have taken its place since the caller chose it, or between the two;
//! - a reconstruction of a unit whose member is present is used only if it matches that unit's
//!   checksum, or equals what the member has (so that the checksum is wrong): otherwise the stripe
//!   is inconsistent, and the right content is unknown;
//! - an unreadable unit counts as missing for this operation, and is repaired if the caller holds
//!   the exclusive lock;
//! - without checksums nothing is read from a member whose loss has halted the array: it may have
//!   returned with older content.

use crate::core::Core;
use crate::format::geometry::{BLOCK, Role};
use crate::member::MemberError;
use crate::without::Mechanism;
use futures_util::future::{join, join_all};
use longhaul_block::{IoError, IoResult};
use longhaul_engine::{Buf, BufMut};
use longhaul_parity::{Unit, recover};
use std::rc::Rc;

/// Why a member's bytes cannot be used.
#[derive(Clone, Debug)]
pub(crate) enum ReadFault {
    /// The read failed.
    Error(MemberError),
    /// Number of blocks that do not match their checksums.
    Mismatch(usize),
}

/// A range of the units of a stripe, as far as they could be read.
pub(crate) struct StripeUnits {
    pub(crate) data: Vec<Option<Buf>>,
    pub(crate) p: Option<Buf>,
    pub(crate) q: Option<Buf>,
    /// Members that hold the stripe, but whose bytes cannot be used.
    pub(crate) bad: Vec<usize>,
}

impl Core {
    /// Reads a range of a member's unit and verifies it.
    pub(crate) async fn read_unit(
        &self,
        member: usize,
        row: u64,
        at: u64,
        dst: BufMut,
    ) -> Result<BufMut, ReadFault> {
        let len = dst.len() as u64;
        let place = &self.members[member];
        let incarnation = place.incarnation();
        if !self.members.holds(member, row) {
            return Err(ReadFault::Error(place.replaced()));
        }
        let read = place.read_into(self.geometry().unit_at(row) + at, dst);
        let (data, sums) = join(read, self.sums.load(place, row, at, len)).await;
        let data = data.map_err(ReadFault::Error)?;
        sums.map_err(ReadFault::Error)?;
        if !self.geometry().has_sums() && place.is_in_doubt() && self.check_running().is_err() {
            let error = IoError::Offline(format!("member {member} may have lost unflushed writes"));
            return Err(ReadFault::Error(MemberError { error, incarnation: place.incarnation() }));
        }
        let mut wrong = self.sums.wrong(member, row, at, &data).len();
        if wrong > 0 {
            // The page may have been evicted in between.
            self.sums.load(place, row, at, len).await.map_err(ReadFault::Error)?;
            wrong = self.sums.wrong(member, row, at, &data).len();
        }
        if place.incarnation() != incarnation {
            return Err(ReadFault::Error(place.replaced()));
        }
        if wrong == 0 { Ok(data) } else { Err(ReadFault::Mismatch(wrong)) }
    }

    /// Records a fault found under the stripe lock. An unreachable member is lost.
    pub(crate) async fn note(&self, member: usize, row: u64, fault: &ReadFault) -> IoResult<()> {
        match fault {
            ReadFault::Error(e) if e.is_unreachable() => self.lose(member, e).await,
            ReadFault::Error(e) => {
                tracing::warn!("array {}: member {member} cannot read stripe {row}: {}", self.name, e.error);
                Ok(())
            }
            ReadFault::Mismatch(blocks) => {
                self.members[member].count(|counts| counts.mismatches += *blocks as u64);
                tracing::warn!(
                    "array {}: member {member} has wrong content in {blocks} blocks of stripe {row}",
                    self.name
                );
                Ok(())
            }
        }
    }

    /// Reads a range of the `wanted` units, each from one of its homes except those in `without`.
    /// The caller holds the stripe lock.
    pub(crate) async fn read_units(
        self: &Rc<Self>,
        row: u64,
        at: u64,
        len: u64,
        wanted: impl Fn(Role) -> bool,
        without: &[usize],
    ) -> IoResult<StripeUnits> {
        let count = self.geometry().data_units();
        let roles: Vec<Role> =
            (0..count).map(Role::Data).chain([Role::P, Role::Q]).filter(|role| wanted(*role)).collect();
        let reads = roles.iter().map(async |role| {
            let mut bad = Vec::new();
            loop {
                let mut homes = self.members.holders(row, *role);
                let next = homes.find(|home| !without.contains(home) && !bad.contains(home));
                let Some(member) = next else { return Ok((None, bad)) };
                let dst = BufMut::zeroed(len as usize);
                match self.read_unit(member, row, at, dst).await {
                    Ok(bytes) => return Ok((Some(bytes.freeze()), bad)),
                    Err(fault) => {
                        self.note(member, row, &fault).await?;
                        bad.push(member);
                    }
                }
            }
        });
        let results: Vec<IoResult<(Option<Buf>, Vec<usize>)>> = join_all(reads).await;
        let mut units = StripeUnits { data: vec![None; count], p: None, q: None, bad: without.to_vec() };
        for (role, result) in roles.iter().zip(results) {
            let (bytes, bad) = result?;
            units.bad.extend(bad);
            match role {
                Role::Data(i) => units.data[*i] = bytes,
                Role::P => units.p = bytes,
                Role::Q => units.q = bytes,
            }
        }
        Ok(units)
    }

    /// Whether `bytes`, which were reconstructed, may be the content of a member's data unit at
    /// this range. The caller holds the stripe lock.
    pub(crate) async fn confirm_reconstruction(
        &self,
        member: usize,
        row: u64,
        at: u64,
        bytes: &[u8],
    ) -> IoResult<bool> {
        if self.lacks(Mechanism::Vouch) {
            return Ok(true);
        }
        let place = &self.members[member];
        let incarnation = place.incarnation();
        // The checksum of a member that is lost is lost, too, and what replaces it has another one.
        let is_lost = || place.incarnation() != incarnation || !self.members.holds(member, row);
        if let Err(e) = self.sums.load(place, row, at, bytes.len() as u64).await {
            return self.lose(member, &e).await.map(|()| true);
        }
        if is_lost() {
            return Ok(true);
        }
        for block in self.sums.contradicted(member, row, at, bytes) {
            let (start, len) = (block * BLOCK as usize, BLOCK as usize);
            let own = place.read(self.geometry().unit_at(row) + at + start as u64, BLOCK).await;
            if is_lost() || own.is_ok_and(|own| own[..] == bytes[start..start + len]) {
                continue;
            }
            tracing::error!(
                "array {}: the reconstruction of member {member} in stripe {row} does not match its checksum",
                self.name
            );
            return Ok(false);
        }
        Ok(true)
    }

    /// The error for a stripe that has lost more than its redundancy.
    pub(crate) fn unreadable(&self, row: u64) -> IoError {
        let offset = row * self.geometry().stripe();
        IoError::Medium(format!(
            "array {}: more of the stripe at {offset} is unreadable than redundancy can reconstruct",
            self.name
        ))
    }
}

impl StripeUnits {
    /// Reconstructs the missing data units.
    pub(crate) fn complete(&mut self, len: u64) -> Result<(), longhaul_parity::Unrecoverable> {
        let missing: Vec<usize> = (0..self.data.len()).filter(|i| self.data[*i].is_none()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let mut found: Vec<BufMut> = missing.iter().map(|_| BufMut::zeroed(len as usize)).collect();
        {
            let data: Vec<Option<&[u8]>> = self.data.iter().map(|unit| unit.as_deref()).collect();
            let mut wanted: Vec<(Unit, &mut [u8])> =
                missing.iter().zip(&mut found).map(|(i, buf)| (Unit::Data(*i), &mut buf[..])).collect();
            recover(&data, self.p.as_deref(), self.q.as_deref(), &mut wanted)?;
        }
        for (i, buf) in missing.into_iter().zip(found) {
            self.data[i] = Some(buf.freeze());
        }
        Ok(())
    }

    /// P and Q of the data, all of which must be present.
    pub(crate) fn parity(&self, len: u64, wants_q: bool) -> (Buf, Option<Buf>) {
        let data: Vec<&[u8]> = self.data.iter().flatten().map(|unit| &unit[..]).collect();
        let mut p = BufMut::zeroed(len as usize);
        if !wants_q {
            longhaul_parity::xor(&mut p, &data);
            return (p.freeze(), None);
        }
        let mut q = BufMut::zeroed(len as usize);
        longhaul_parity::pq(&data, &mut p, &mut q);
        (p.freeze(), Some(q.freeze()))
    }
}
