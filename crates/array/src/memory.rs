//! What a host remembers of an array.
//!
//! The members say what they were last told; a host that has told them remembers as
//! well, so that it does not begin with members that it has gone on without itself.
//! Where that is kept is no matter of this crate.

use crate::core::Core;
use crate::history::Era;
use crate::superblock::{Condition, Superblock};
use std::future::Future;
use std::pin::Pin;
use uuid::Uuid;

/// What a host has last known of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The generation of the superblock.
    pub generation: u64,
    /// The session that wrote it.
    pub session: Uuid,
    /// The first generation that this session wrote.
    pub from: u64,
    /// The members that had everything, by identity.
    pub active: Vec<Uuid>,
}

/// Keeps what a host knows of one array.
pub trait Memory: Send + Sync {
    /// What was kept last, if anything.
    fn recall(&self) -> Option<Known>;

    /// Keeps this instead; it is durable when the future resolves. What keeps it
    /// from being kept is told by whoever implements this: members and witness
    /// decide, and this is a second line.
    fn keep(&self, known: Known) -> Pin<Box<dyn Future<Output = ()>>>;
}

impl Known {
    /// Why this is newer than a superblock, or of another history, if so.
    pub(crate) fn is_newer_than(&self, found: &Superblock) -> Option<String> {
        let era = Era { session: self.session, from: self.from };
        let older = self.generation > found.generation;
        if !older && found.history.holds(found.generation, self.generation, Some(era)) != Some(false) {
            return None;
        }
        let place = |uuid: &Uuid| found.entries.iter().position(|entry| entry.uuid == *uuid);
        let members: Vec<String> = self
            .active
            .iter()
            .map(|uuid| place(uuid).map_or_else(|| uuid.to_string(), |index| index.to_string()))
            .collect();
        let what = if older { "older" } else { "of another history" };
        Some(format!(
            "this host has last recorded generation {} with members {}, and the newest superblock that is there \
             is {what} ({})",
            self.generation,
            members.join(", "),
            found.age()
        ))
    }
}

impl Core {
    /// What this host is to remember now.
    fn known(&self) -> Option<Known> {
        let era = self.history.borrow().last()?;
        let active = self.members.iter().filter(|member| member.condition.get() == Condition::Active);
        Some(Known {
            generation: self.generation.get(),
            session: era.session,
            from: era.from,
            active: active.map(|member| member.uuid.get()).collect(),
        })
    }

    /// Records on this host which members have everything, if that has changed or
    /// must be recorded anyway.
    pub(crate) async fn remember(&self, anyway: bool) {
        let Some(memory) = &self.memory else { return };
        let Some(known) = self.known() else { return };
        let same = |last: &Known| last.active == known.active && last.session == known.session;
        if !anyway && self.remembered.borrow().as_ref().is_some_and(same) {
            return;
        }
        memory.keep(known.clone()).await;
        *self.remembered.borrow_mut() = Some(known);
    }
}
