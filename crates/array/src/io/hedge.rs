//! Hedged reads: reconstruction races a member that is late.
//!
//! A read that takes longer than its member's reads rarely do is raced by a reconstruction from the
//! other members: from another copy, or from parity. A budget bounds the number of hedged reads, so
//! that an array that is slow as a whole does not multiply its own load.
//!
//! Invariants:
//! - `100 / percent` reads add one hedged read to `saved`, which never grows beyond
//!   [`BUDGET_MAX`];
//! - the loser of a race runs to its end, detached: it may be in the middle of publishing the loss
//!   of a member, or may find one, and each error is reported once.

use crate::core::Core;
use crate::format::geometry::Role;
use crate::io::units::ReadFault;
use futures_util::future::{Either, select};
use longhaul_block::IoResult;
use longhaul_engine::{Buf, BufMut, sleep, spawn};
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;

/// Hedged reads that can be saved up, for a burst of late reads.
const BUDGET_MAX: u32 = 16;

/// How many hedged reads are allowed.
pub(crate) struct HedgeBudget {
    percent: u32,
    /// In hundredths of a read.
    saved: Cell<u32>,
}

impl HedgeBudget {
    pub(crate) fn new(percent: u32) -> HedgeBudget {
        HedgeBudget { percent, saved: Cell::new(100 * BUDGET_MAX * u32::from(percent > 0)) }
    }

    fn earn(&self) {
        self.saved.set((self.saved.get() + self.percent).min(100 * BUDGET_MAX));
    }

    fn spend(&self) -> bool {
        let enough = self.saved.get() >= 100;
        assert!(self.saved.get() <= 100 * BUDGET_MAX, "more hedged reads are saved than the budget allows");
        if enough {
            self.saved.set(self.saved.get() - 100);
        }
        enough
    }
}

/// Result of a read that may have been hedged.
pub(crate) enum HedgeOutcome {
    /// The member answered first.
    Read(BufMut),
    /// The reconstruction was faster.
    Reconstructed(BufMut),
    /// Neither result can be used without further checks.
    Failed,
}

impl Core {
    /// Reads a range of a data unit from `home`, or from the other members if `home` is late.
    pub(crate) async fn hedged_read(
        self: &Rc<Self>,
        home: usize,
        row: u64,
        unit: usize,
        at: u64,
        dst: BufMut,
    ) -> HedgeOutcome {
        let len = dst.len() as u64;
        let budget = &self.io.hedges;
        budget.earn();
        let core = Rc::clone(self);
        let read = Box::pin(async move { core.read_unit(home, row, at, dst).await });
        let Some(late) = self.members[home].late_after().filter(|_| self.can_hedge(home, row)) else {
            return self.finish_read(home, row, read.await).await;
        };
        let read = match select(read, pin!(sleep(late))).await {
            Either::Left((result, _)) => return self.finish_read(home, row, result).await,
            Either::Right(((), read)) => read,
        };
        if !budget.spend() {
            return self.finish_read(home, row, read.await).await;
        }
        self.members[home].count(|counts| counts.hedged += 1);
        let core = Rc::clone(self);
        let others = spawn(async move { core.reconstruct_without(home, row, unit, at, len).await });
        match select(read, others).await {
            Either::Left((Ok(bytes), others)) => {
                others.detach();
                HedgeOutcome::Read(bytes)
            }
            Either::Left((Err(fault), others)) => match others.await {
                Ok(Some(bytes)) => {
                    self.finish_read(home, row, Err(fault)).await;
                    HedgeOutcome::Reconstructed(bytes)
                }
                _ => self.finish_read(home, row, Err(fault)).await,
            },
            Either::Right((Ok(Some(bytes)), read)) => {
                self.io.count(|counts| counts.hedges_won += 1);
                let core = Rc::clone(self);
                spawn(async move { drop(core.finish_read(home, row, read.await).await) }).detach();
                HedgeOutcome::Reconstructed(bytes)
            }
            Either::Right((_, read)) => self.finish_read(home, row, read.await).await,
        }
    }

    async fn finish_read(
        self: &Rc<Self>,
        home: usize,
        row: u64,
        result: Result<BufMut, ReadFault>,
    ) -> HedgeOutcome {
        match result {
            Ok(bytes) => HedgeOutcome::Read(bytes),
            Err(fault) => {
                if let ReadFault::Error(_) = &fault {
                    // A loss of the member shows in the operations that follow.
                    let _ = self.note(home, row, &fault).await;
                }
                HedgeOutcome::Failed
            }
        }
    }

    fn can_hedge(&self, home: usize, row: u64) -> bool {
        let role = self.geometry().role(row, home);
        let copies = self.members.holders(row, role).any(|other| other != home);
        !self.io.rows.is_torn(row)
            && (copies || (self.geometry().has_parity() && self.members.is_healthy(row)))
    }

    /// The same range reconstructed without `home`; `None` if the others do not suffice.
    async fn reconstruct_without(
        self: &Rc<Self>,
        home: usize,
        row: u64,
        unit: usize,
        at: u64,
        len: u64,
    ) -> IoResult<Option<BufMut>> {
        let _together = self.io.locks.shared(row).await;
        let wanted = |role| self.geometry().has_parity() || role == Role::Data(unit);
        let mut units = self.read_units(row, at, len, wanted, &[home]).await?;
        if units.bad.len() > 1 || (self.geometry().has_parity() && units.complete(len).is_err()) {
            return Ok(None);
        }
        let bytes = units.data.into_iter().nth(unit).flatten();
        let bytes = bytes.filter(|bytes| self.sums.contradicted(home, row, at, bytes).is_empty());
        Ok(bytes.map(Buf::into_mut))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hedged_reads_are_a_share_of_reads() {
        let budget = HedgeBudget::new(5);
        let raced = |reads: u32| {
            (0..reads)
                .filter(|_| {
                    budget.earn();
                    budget.spend()
                })
                .count()
        };
        // The first read adds nothing to a full budget.
        assert_eq!(raced(100), 16 + 4);
        assert_eq!(raced(1000), 50);
        let none = HedgeBudget::new(0);
        none.earn();
        assert!(!none.spend());
    }
}
