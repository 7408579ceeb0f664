//! Durable writes to, and flushes of, all members in use.
//!
//! Invariants:
//! - a flush counts only if no member is in doubt after it: writes that a member has lost before the
//!   flush are repaired first.

use crate::core::Core;
use crate::format::superblock::Condition;
use crate::member::{Member, MemberError, MemberResult};
use futures_util::future::join_all;
use longhaul_block::IoResult;
use longhaul_engine::Buf;
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
            let doubtful = self.members.iter().filter(|member| member.is_usable() && member.is_in_doubt());
            let doubtful: Vec<usize> = doubtful.map(|member| member.index).collect();
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
