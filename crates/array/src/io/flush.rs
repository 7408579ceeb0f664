//! Durable writes to, and flushes of, all members in use.
//!
//! Invariants:
//! - a flush counts only if no member is in doubt after it: writes that a member has lost before the
//!   flush are repaired first;
//! - what was repaired is durable before the lock of its stripe is released. Until then the member has
//!   something wrong, which a loss of its cache brings back; if others have left meanwhile, with what
//!   the repair was derived from, nothing can repair it again.

use crate::core::Core;
use crate::format::superblock::Condition;
use crate::io::plan::MemberWrite;
use crate::member::{Member, MemberError, MemberResult};
use crate::without::Mechanism;
use futures_util::future::join_all;
use longhaul_block::IoResult;
use longhaul_engine::Buf;
use std::collections::BTreeSet;
use std::rc::Rc;

impl Core {
    /// Writes the same block durably to all members in use; members that fail are lost.
    pub(crate) async fn write_to_all(&self, offset: u64, bytes: &Buf) -> IoResult<()> {
        self.check_running()?;
        let writes = self
            .members
            .usable()
            .map(async |member| (member.index, member.write_durably(offset, bytes.clone()).await));
        self.settle(join_all(writes).await).await
    }

    /// Writes what was wrong on members, and makes it durable. The caller holds the stripe lock.
    ///
    /// A member that may have lost its cache meanwhile is in doubt, and the stripe is marked: the next
    /// flush of the array verifies it.
    pub(crate) async fn repair(self: &Rc<Self>, row: u64, writes: Vec<MemberWrite>) -> IoResult<()> {
        let _marked = self.intent.mark(self, self.geometry().region_of(row)).await?;
        let members: BTreeSet<usize> = writes.iter().map(|write| write.member).collect();
        self.put(row, writes).await?;
        if self.lacks(Mechanism::RepairFlush) {
            return Ok(());
        }
        let written = members.iter().map(|member| &self.members[*member]).filter(|member| member.is_usable());
        let flushes = written.map(async |member| (member.index, self.flush_member(member).await));
        self.settle(join_all(flushes).await).await
    }

    /// Flushes all members in use; members that fail are lost. Writes that a member has lost before
    /// the flush are repaired first.
    pub(crate) async fn flush_members(self: &Rc<Self>) -> IoResult<()> {
        loop {
            self.check_running()?;
            let applied = self.journal.flush_begins();
            let usable = self.members.usable();
            let results =
                join_all(usable.map(async |member| (member.index, self.flush_member(member).await))).await;
            self.settle(results).await?;
            let doubtful: Vec<usize> = self.members.doubtful().map(|member| member.index).collect();
            if doubtful.is_empty() {
                self.journal.applied(&applied, true);
                return Ok(());
            }
            for member in doubtful {
                self.verify(member).await?;
            }
        }
    }

    /// Flushes a member. The flush counts only if the member is not in doubt afterwards.
    pub(crate) async fn flush_member(&self, member: &Member) -> MemberResult<()> {
        let stored = self.sums.flush_begins(member.index);
        member.flush().await?;
        if member.was_unreachable() {
            return Err(MemberError { error: member.offline_error(), incarnation: member.incarnation() });
        }
        if !member.is_in_doubt() {
            self.sums.flushed(member.index, &stored);
        }
        Ok(())
    }

    /// Whether marks of the write-intent bitmap may be cleared: no member still needs them for its
    /// resync.
    pub(crate) fn may_clear_intents(&self) -> bool {
        let depends = |member: &Member| {
            matches!(member.condition(), Condition::Offline | Condition::Rebuilding { partial: true, .. })
        };
        !self.is_halted() && !self.members.iter().any(depends)
    }
}
