//! Decides that a member has failed or is offline, and takes it out of use.
//!
//! Invariants:
//! - a member whose loss the redundancy does not cover keeps its condition: the array halts instead,
//!   and everything acknowledged stays where it is;
//! - a loss is decided and published under the lock of [`crate::session::publish`], so that the
//!   decision holds for the superblocks that record it.

use crate::core::{Core, HaltReason};
use crate::format::superblock::Condition;
use crate::member::{MemberError, MemberResult};
use crate::without::Mechanism;
use longhaul_block::{IoError, IoResult};

impl MemberError {
    /// The condition of the member that the error comes from.
    pub(crate) fn condition(&self) -> Condition {
        if self.is_unreachable() { Condition::Offline } else { Condition::Failed }
    }
}

impl Core {
    /// Takes a member out of use after an error, as offline or failed. Returns once the other
    /// members have recorded it durably.
    pub(crate) async fn lose(&self, index: usize, error: &MemberError) -> IoResult<()> {
        let is_own = || self.members[index].is_own(error);
        self.lose_if(index, error.condition(), &error.error.to_string(), is_own).await
    }

    pub(crate) async fn lose_as(&self, index: usize, condition: Condition, reason: &str) -> IoResult<()> {
        self.lose_if(index, condition, reason, || true).await
    }

    /// Takes a member out of use if `still` holds once the publication lock is held.
    pub(crate) async fn lose_if(
        &self,
        index: usize,
        condition: Condition,
        reason: &str,
        still: impl FnOnce() -> bool,
    ) -> IoResult<()> {
        let alone = self.publication.exclusive().await;
        self.check_running()?;
        let member = &self.members[index];
        if !still() || member.is_missing() {
            return Ok(());
        }
        if self.members.cannot_lose(index) {
            let name = member.name().unwrap_or_default();
            member.state.explain(reason);
            // The member may return without what it had not flushed.
            member.doubt();
            self.halt(
                HaltReason::Lost,
                &format!("member {index} ({name}) is lost as well, more than the redundancy: {reason}"),
            );
            return self.check_running();
        }
        tracing::warn!("array {}: member {index} is {condition:?}: {reason}", self.name);
        self.enter(index, condition, reason);
        if self.lacks(Mechanism::Publish) {
            self.publication.drop_losses();
            return self.check_running();
        }
        self.publish_alone(&alone).await
    }

    /// Changes a member's condition; the caller publishes it.
    pub(crate) fn enter(&self, index: usize, condition: Condition, reason: &str) {
        let member = &self.members[index];
        let continues = member.is_rebuilding() && matches!(condition, Condition::Rebuilding { .. });
        member.state.enter(condition, self.publication.generation() + 1, reason);
        if !continues {
            member.rows.clear();
        }
        if member.is_missing() {
            member.reincarnate();
            self.publication.note_loss();
        }
        self.renew_lease();
        self.upkeep.changed.notify();
    }

    /// Takes members out of use whose part of an operation has failed.
    pub(crate) async fn settle(&self, results: Vec<(usize, MemberResult<()>)>) -> IoResult<()> {
        for (index, result) in results {
            if let Err(e) = result {
                self.lose(index, &e).await?;
            }
        }
        self.check_running()
    }

    /// The error of a request that takes more members than there are.
    pub(crate) fn lost_too_many(&self) -> IoError {
        let inactive = self.members.iter().filter(|member| !member.is_active());
        let lost: Vec<String> =
            inactive.map(|member| format!("member {} ({})", member.index, member.state.reason())).collect();
        IoError::Offline(format!(
            "array {}: more is missing than its redundancy of {}: {}",
            self.name,
            self.geometry().redundancy(),
            lost.join(", ")
        ))
    }

    /// The refusal to remove a member that the array
    /// [cannot lose](crate::member::set::MemberSet::cannot_lose).
    pub(crate) fn why_needed(&self, index: usize) -> String {
        let missing: Vec<String> =
            self.members.iter().filter(|m| !m.is_active()).map(|m| m.index.to_string()).collect();
        let why = match &missing[..] {
            [] => "nothing is redundant: copy the data to another array instead".to_owned(),
            _ => format!("others are missing ({}): reconnect or replace those first", missing.join(", ")),
        };
        format!("array {}: data would be lost without member {index}, and {why}", self.name)
    }
}
