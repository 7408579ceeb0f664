//! Reads.
//!
//! A read goes directly to the members that hold its bytes, concurrently, and is verified against
//! their checksums. The other members are read only if a member is missing or late, or a checksum
//! does not match.
//!
//! Invariants:
//! - a read returns the content after every write that was acknowledged before the read began, also by
//!   another host that has taken the array over (see [`crate::session::lease`]);
//! - a mismatch counts only under the stripe lock: a reader does not hold it, and may see data and
//!   checksum of different times;
//! - nothing is reconstructed from a torn stripe (see [`crate::io::rows`]).

use crate::core::Core;
use crate::format::geometry::{BLOCK, Role};
use crate::format::record::Piece;
use crate::io::hedge::HedgeOutcome;
use crate::io::plan::MemberWrite;
use crate::io::rows::PendingContent;
use crate::io::units::StripeUnits;
use crate::io::window::ReadOrigin;
use futures_util::future::join_all;
use longhaul_block::IoResult;
use longhaul_engine::{Buf, BufMut, spawn};
use std::rc::Rc;

/// A range of a data unit, and the window of the caller's buffer for it.
struct ReadPart {
    unit: usize,
    at: u64,
    dst: BufMut,
}

impl Core {
    /// Fills `dst` from `offset`. Returns another buffer if a member still reads into a part of
    /// `dst`.
    ///
    /// # Errors
    /// More is lost than the redundancy covers; or another host has the array, or may have it.
    pub(crate) async fn read(self: &Rc<Self>, offset: u64, dst: BufMut) -> IoResult<BufMut> {
        let read = self.read_rows(offset, dst).await;
        // An error as well: what another host has written does not match the checksums of this one.
        self.until_owned().await?;
        read
    }

    async fn read_rows(self: &Rc<Self>, offset: u64, dst: BufMut) -> IoResult<BufMut> {
        self.io.begin_request();
        let total = dst.len();
        let is_sequential = self.io.read_cache.is_sequential(offset, total as u64);
        let (mut rest, mut at) = (dst, offset);
        let mut rows: Vec<(u64, Vec<ReadPart>)> = Vec::new();
        while !rest.is_empty() {
            let (row, unit, within) = self.geometry().locate(at);
            let len = (rest.len() as u64).min(self.geometry().unit - within);
            let tail = rest.split_off(len as usize);
            let part = ReadPart { unit, at: within, dst: std::mem::replace(&mut rest, tail) };
            match rows.last_mut() {
                Some((last, parts)) if *last == row => parts.push(part),
                _ => rows.push((row, vec![part])),
            }
            at += len;
        }
        let rows =
            join_all(rows.into_iter().map(|(row, parts)| self.read_row(row, parts, is_sequential))).await;
        let mut parts = Vec::new();
        for row in rows {
            parts.extend(row?);
        }
        Ok(join_parts(parts, total))
    }

    /// Reads parts of one stripe; `is_sequential` if the read continues a sequential one.
    async fn read_row(
        self: &Rc<Self>,
        row: u64,
        mut parts: Vec<ReadPart>,
        is_sequential: bool,
    ) -> IoResult<Vec<BufMut>> {
        let missing = |part: &ReadPart| self.members.holders(row, Role::Data(part.unit)).next().is_none();
        if is_sequential && self.is_cached_read(row) {
            parts = match self.read_cached(row, parts).await {
                Ok(filled) => return Ok(filled),
                Err(parts) => parts,
            };
        }
        if parts.len() > 1 && parts.iter().any(missing) && self.geometry().has_parity() {
            return self.read_together(row, parts).await;
        }
        join_all(parts.into_iter().map(|part| self.read_part(row, part))).await.into_iter().collect()
    }

    async fn read_part(self: &Rc<Self>, row: u64, part: ReadPart) -> IoResult<BufMut> {
        let ReadPart { unit, at, mut dst } = part;
        let len = dst.len() as u64;
        loop {
            match self.io.rows.pending(row, unit, at, len) {
                PendingContent::Nothing => break,
                PendingContent::Content(bytes) => {
                    dst.copy_from_slice(&bytes);
                    return Ok(dst);
                }
                PendingContent::Wait(queue, write) => {
                    let is_short = || self.io.shortage.is_any() && len > BLOCK;
                    let is_over = || self.check_running().is_err() || is_short();
                    queue.changed.until(|| write.applied.get() || is_over()).await;
                    if !write.applied.get() {
                        self.check_running()?;
                        if is_short() {
                            return self.read_blocks(row, ReadPart { unit, at, dst }).await;
                        }
                    }
                }
            }
        }
        let is_held = self.members.holders(row, Role::Data(unit)).next().is_some();
        let reads = if is_held { 1 } else { self.geometry().data_units() as u64 };
        let room = self.room(len * reads, ReadOrigin::User).await;
        let mut homes: Vec<usize> = self.members.holders(row, Role::Data(unit)).collect();
        if self.io.rows.is_torn(row) {
            // Copies may differ: always read the same one.
            homes.truncate(1);
        }
        // The nearest copy; of copies at equal distance each in turn.
        let turn = (row as usize).wrapping_add(unit);
        let key = |home: &usize| {
            let member = &self.members[*home];
            let is_disconnected = homes.len() > 1 && member.disconnected().is_some();
            (is_disconnected, member.mean_read().as_millis() / 2, (home + turn) % homes.len())
        };
        let Some(home) = homes.iter().min_by_key(|home| key(home)).copied() else {
            return self.reconstruct(row, unit, at, len).await;
        };
        if self.geometry().has_parity()
            && self.members[home].disconnected().is_some()
            && let Some(bytes) = self.around(row, unit, at, len).await
        {
            return Ok(bytes);
        }
        match self.hedged_read(home, row, unit, at, dst).await {
            HedgeOutcome::Read(bytes) => Ok(bytes),
            HedgeOutcome::Reconstructed(bytes) => Ok(bytes),
            HedgeOutcome::Failed => {
                drop(room);
                self.read_and_repair(row, unit, at, len, Some(home)).await
            }
        }
    }

    /// Reads a part block by block: some of it may wait for space in the queue of its stripe.
    async fn read_blocks(self: &Rc<Self>, row: u64, part: ReadPart) -> IoResult<BufMut> {
        let ReadPart { unit, mut at, dst: mut rest } = part;
        let (total, mut blocks) = (rest.len(), Vec::new());
        while !rest.is_empty() {
            let tail = rest.split_off(BLOCK as usize);
            blocks.push(ReadPart { unit, at, dst: std::mem::replace(&mut rest, tail) });
            at += BLOCK;
        }
        let reads = blocks.into_iter().map(|block| Box::pin(self.read_part(row, block)));
        let parts: IoResult<Vec<BufMut>> = join_all(reads).await.into_iter().collect();
        Ok(join_parts(parts?, total))
    }

    /// Reconstructs a part that no member holds.
    pub(crate) async fn reconstruct(
        self: &Rc<Self>,
        row: u64,
        unit: usize,
        at: u64,
        len: u64,
    ) -> IoResult<BufMut> {
        let units = {
            let _together = self.io.locks.shared(row).await;
            self.check_untorn(row)?;
            let mut units = self.read_units(row, at, len, self.enough(row, &[]), &[]).await?;
            if units.bad.is_empty() && units.complete(len).is_ok() { Some(units) } else { None }
        };
        let Some(units) = units else { return self.read_and_repair(row, unit, at, len, None).await };
        self.io.count(|counts| counts.reconstructed += 1);
        self.unit_of(units, row, unit)
    }

    fn unit_of(&self, units: StripeUnits, row: u64, unit: usize) -> IoResult<BufMut> {
        let bytes = units.data.into_iter().nth(unit).flatten().ok_or_else(|| self.unreadable(row))?;
        Ok(bytes.into_mut())
    }

    /// The roles needed to reconstruct all data of a stripe without some members: the data units
    /// that remain, and as many parity units as data units are missing.
    pub(crate) fn enough(&self, row: u64, without: &[usize]) -> impl Fn(Role) -> bool + use<> {
        let has = |role| self.members.holders(row, role).any(|member| !without.contains(&member));
        let missing = (0..self.geometry().data_units()).filter(|unit| !has(Role::Data(*unit))).count();
        let (p, q) = (missing > 0 && has(Role::P), missing > 1 || (missing == 1 && !has(Role::P)));
        move |role| match role {
            Role::Data(_) => true,
            Role::P => p,
            Role::Q => q,
        }
    }

    /// Whether a sequential read takes the stripe from the cache: some of its data must be
    /// reconstructed.
    fn is_cached_read(&self, row: u64) -> bool {
        let missing = |unit: usize| self.members.holders(row, Role::Data(unit)).next().is_none();
        self.io.read_cache.is_open()
            && self.geometry().has_parity()
            && self.io.rows.queue(row).is_none()
            && (0..self.geometry().data_units()).any(missing)
    }

    /// Fills parts from the cache, reading the stripe into it first if needed; returns the parts if
    /// that fails.
    async fn read_cached(
        self: &Rc<Self>,
        row: u64,
        parts: Vec<ReadPart>,
    ) -> Result<Vec<BufMut>, Vec<ReadPart>> {
        let (stripe, is_new) = self.io.read_cache.stripe(row);
        if is_new {
            let (core, stripe) = (Rc::clone(self), Rc::clone(&stripe));
            spawn(async move { stripe.end(core.read_stripe(row).await) }).detach();
        }
        let Some(data) = stripe.data().await else { return Err(parts) };
        let fill = |ReadPart { unit, at, mut dst }: ReadPart| {
            let start = at as usize;
            let len = dst.len();
            dst.copy_from_slice(&data[unit][start..start + len]);
            dst
        };
        Ok(parts.into_iter().map(fill).collect())
    }

    /// All data of a stripe, if the remaining units can be read and verified.
    async fn read_stripe(self: &Rc<Self>, row: u64) -> Option<Vec<Buf>> {
        let _room = self.room(self.geometry().stripe(), ReadOrigin::User).await;
        let _together = self.io.locks.shared(row).await;
        self.check_untorn(row).ok()?;
        let unit = self.geometry().unit;
        let mut units = self.read_units(row, 0, unit, self.enough(row, &[]), &[]).await.ok()?;
        if !units.bad.is_empty() || units.complete(unit).is_err() {
            return None;
        }
        self.io.count(|counts| counts.reconstructed += 1);
        units.data.into_iter().collect()
    }

    /// Reads parts of a stripe some of which must be reconstructed: each member is read once for
    /// all of them.
    async fn read_together(self: &Rc<Self>, row: u64, parts: Vec<ReadPart>) -> IoResult<Vec<BufMut>> {
        if let Some(queue) = self.io.rows.queue(row) {
            let logged = queue.logged();
            let applied = || logged.iter().all(|write| write.applied.get());
            queue.changed.until(|| applied() || self.check_running().is_err()).await;
            if !applied() {
                self.check_running()?;
            }
        }
        let from = parts.iter().map(|part| part.at).min().unwrap_or(0);
        let to = parts.iter().map(|part| part.at + part.dst.len() as u64).max().unwrap_or(0);
        let units = {
            let _room = self.room((to - from) * self.geometry().data_units() as u64, ReadOrigin::User).await;
            let _together = self.io.locks.shared(row).await;
            self.check_untorn(row)?;
            let mut units = self.read_units(row, from, to - from, self.enough(row, &[]), &[]).await?;
            if units.bad.is_empty() && units.complete(to - from).is_ok() { Some(units) } else { None }
        };
        let Some(units) = units else {
            let each = parts
                .into_iter()
                .map(|part| self.read_and_repair(row, part.unit, part.at, part.dst.len() as u64, None));
            return join_all(each).await.into_iter().collect();
        };
        self.io.count(|counts| counts.reconstructed += 1);
        let mut filled = Vec::new();
        for part in parts {
            let ReadPart { unit, at, mut dst } = part;
            let Some(bytes) = &units.data[unit] else { return Err(self.unreadable(row)) };
            let (start, len) = ((at - from) as usize, dst.len());
            dst.copy_from_slice(&bytes[start..start + len]);
            filled.push(dst);
        }
        Ok(filled)
    }

    /// Reads a part under the exclusive lock, so that a mismatch is a fault, and repairs what is
    /// wrong. The suspected member is read first.
    pub(crate) async fn read_and_repair(
        self: &Rc<Self>,
        row: u64,
        unit: usize,
        at: u64,
        len: u64,
        suspect: Option<usize>,
    ) -> IoResult<BufMut> {
        let _alone = self.io.locks.exclusive(row).await;
        let mut known = Vec::new();
        if let Some(member) = suspect.filter(|member| self.members.holds(*member, row)) {
            match self.read_unit(member, row, at, BufMut::zeroed(len as usize)).await {
                Ok(bytes) => return Ok(bytes),
                Err(fault) => self.note(member, row, &fault).await?,
            }
            known.push(member);
        }
        self.check_untorn(row)?;
        let wanted = |role| role == Role::Data(unit);
        let units = self.read_units(row, at, len, wanted, &known).await?;
        if units.bad.is_empty() && units.data[unit].is_some() {
            return self.unit_of(units, row, unit);
        }
        let bad = units.bad.clone();
        let bytes = match units.data[unit].clone() {
            Some(bytes) => bytes,
            None => {
                let mut others = self.read_units(row, at, len, |_| true, &bad).await?;
                match others.complete(len).ok().and_then(|()| others.data[unit].take()) {
                    Some(bytes) => bytes,
                    None => self.recover_blocks(row, unit, at, len).await?,
                }
            }
        };
        for member in
            bad.iter().filter(|member| self.geometry().has_parity() && self.members.holds(**member, row))
        {
            if !self.confirm_reconstruction(*member, row, at, &bytes).await? {
                return Err(self.unreadable(row));
            }
        }
        self.io.count(|counts| counts.reconstructed += 1);
        let writes = bad.into_iter().filter(|member| self.members.holds(*member, row)).map(|member| {
            self.members[member].count(|counts| counts.repaired += len / BLOCK);
            let piece = Piece { role: Role::Data(unit), at, bytes: bytes.clone() };
            MemberWrite { member, piece }
        });
        let writes: Vec<MemberWrite> = writes.collect();
        // A halted or stopping array is not changed any more, and a paused one not now.
        if !writes.is_empty()
            && !self.io.admission.is_paused()
            && let Ok(_admitted) = self.admit()
        {
            self.repair(row, writes).await?;
        }
        Ok(bytes.into_mut())
    }

    /// Reconstructs block by block: members that are wrong in different blocks can repair each
    /// other.
    async fn recover_blocks(self: &Rc<Self>, row: u64, unit: usize, at: u64, len: u64) -> IoResult<Buf> {
        let mut whole = BufMut::zeroed(len as usize);
        for block in 0..len / BLOCK {
            let at = at + block * BLOCK;
            let mut units = self.read_units(row, at, BLOCK, |_| true, &[]).await?;
            let Some(bytes) = units.complete(BLOCK).ok().and_then(|()| units.data[unit].take()) else {
                return Err(self.unreadable(row));
            };
            let start = (block * BLOCK) as usize;
            whole[start..start + BLOCK as usize].copy_from_slice(&bytes);
        }
        Ok(whole.freeze())
    }

    /// Fails for a torn stripe, whose units do not belong together.
    fn check_untorn(&self, row: u64) -> IoResult<()> {
        if self.io.rows.is_torn(row) { self.check_running() } else { Ok(()) }
    }
}

/// Joins the parts: in the caller's buffer, if they are windows of it, and else in a copy.
fn join_parts(parts: Vec<BufMut>, total: usize) -> BufMut {
    let mut parts = parts.into_iter();
    let Some(mut whole) = parts.next() else { return BufMut::zeroed(0) };
    while let Some(part) = parts.next() {
        if let Err(part) = whole.unsplit(part) {
            let mut copy = BufMut::zeroed(total);
            let mut at = 0;
            for piece in [whole, part].into_iter().chain(parts) {
                copy[at..at + piece.len()].copy_from_slice(&piece);
                at += piece.len();
            }
            return copy;
        }
    }
    whole
}
