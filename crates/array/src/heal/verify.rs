//! Verifies members that may have lost their volatile cache.
//!
//! A remote device that was reconnected may have lost power in between. It then holds old content
//! with old checksums, which match. The checksums that it should have are in memory, for all that
//! it has not flushed (see [`crate::io::sums`]); the write-intent bitmap tells where that is.
//!
//! Invariants:
//! - no flush succeeds while a member is in doubt;
//! - a member that has lost writes goes offline, and is resynced from the write-intent bitmap like
//!   any other; if the array needs it, what the others still have is repaired, and the flush fails.

use crate::core::Core;
use crate::format::superblock::Condition;
use crate::heal::upkeep::{TaskGuard, is_over};
use crate::io::units::ReadFault;
use crate::without::Mechanism;
use futures_util::future::{Either, join_all, select};
use longhaul_block::{IoError, IoResult};
use longhaul_engine::{BufMut, spawn};
use std::pin::pin;
use std::rc::Rc;

/// Bytes of a member that are verified at a time.
const AT_A_TIME: u64 = 4 << 20;

impl Core {
    /// Verifies that a member still has all unflushed writes.
    pub(crate) async fn verify(self: &Rc<Self>, index: usize) -> IoResult<()> {
        let _alone = self.upkeep.verifying.exclusive(index as u64).await;
        let member = &self.members[index];
        let (doubts, incarnation) = (member.doubts(), member.incarnation());
        if !member.is_in_doubt() || !member.is_usable() {
            return Ok(());
        }
        if !self.geometry().has_sums() || self.lacks(Mechanism::Doubt) {
            // Without checksums a loss cannot be detected: the member is trusted like a single
            // device.
            member.trust(doubts);
            return Ok(());
        }
        if let Err(e) = self.sums.restore(member).await {
            return self.lose(index, &e).await;
        }
        let regions = self.intent.marked();
        let rows = regions.iter().flat_map(|region| self.geometry().rows_of(*region));
        let rows: Vec<u64> = rows.filter(|row| self.members.holds(index, *row)).collect();
        let mut lost = Vec::new();
        for rows in rows.chunks((AT_A_TIME / self.geometry().unit).max(1) as usize) {
            let looks = rows.iter().map(async |row| (*row, self.matches_checksums(index, *row).await));
            for (row, result) in join_all(looks).await {
                if !result? {
                    lost.push(row);
                }
            }
            if member.incarnation() != incarnation {
                return Ok(());
            }
        }
        tracing::info!(
            "array {}: member {index} has reconnected: {} stripes verified, {} have lost writes",
            self.name,
            rows.len(),
            lost.len()
        );
        member.trust(doubts);
        if lost.is_empty() { Ok(()) } else { self.handle_lost_cache(index, lost).await }
    }

    /// Whether a member's unit of a row matches its checksums.
    async fn matches_checksums(self: &Rc<Self>, index: usize, row: u64) -> IoResult<bool> {
        let read = async || {
            let unit = BufMut::zeroed(self.geometry().unit as usize);
            match self.read_unit(index, row, 0, unit).await {
                Err(ReadFault::Mismatch(_)) => Ok(false),
                Err(ReadFault::Error(e)) if e.is_unreachable() => self.lose(index, &e).await.map(|()| true),
                // Unreadable blocks are left to reads and scrubs.
                Ok(_) | Err(ReadFault::Error(_)) => Ok(true),
            }
        };
        if read().await? {
            return Ok(true);
        }
        // A mismatch may be a write in progress, so read again under the lock. A holder of the lock
        // that waits for journal space writes nothing, and may itself wait for this check.
        loop {
            let lock = pin!(self.io.locks.shared(row));
            let waits = pin!(self.journal.until_waiting(row));
            let held = select(lock, waits).await;
            if !self.members.holds(index, row) || read().await? {
                return Ok(true);
            }
            if matches!(held, Either::Left(_)) || self.journal.is_waiting(row) {
                return Ok(false);
            }
        }
    }

    /// Handles a member that has lost unflushed writes of these rows.
    async fn handle_lost_cache(self: &Rc<Self>, index: usize, rows: Vec<u64>) -> IoResult<()> {
        let why = "it has lost writes that it had not flushed";
        if !self.members.cannot_lose(index) {
            return self.lose_as(index, Condition::Offline, why).await;
        }
        let core = Rc::clone(self);
        spawn(async move {
            let _running = TaskGuard::new(&core);
            for row in rows {
                if is_over(&core) || core.scrub_row(row).await.is_err() {
                    return;
                }
            }
        })
        .detach();
        Err(IoError::Medium(format!("array {}: member {index}: {why}, and others are missing", self.name)))
    }
}
