//! The record that a host keeps of an array.
//!
//! The superblocks hold the state that was last written to these members. A host that has continued
//! on other members remembers that as well, so that it does not start with members that it left
//! behind itself. Where the record is stored is up to the embedding program.

use crate::core::Core;
use crate::format::history::Era;
use crate::format::superblock::{Condition, Superblock};
use std::future::Future;
use std::pin::Pin;
use uuid::Uuid;

/// The last state of an array that a host knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The generation of the superblock.
    pub generation: u64,
    /// The session that wrote it.
    pub session: Uuid,
    /// The first generation that this session wrote.
    pub from: u64,
    /// UUIDs of the members that were up to date.
    pub active: Vec<Uuid>,
}

/// Stores the record of one array.
pub trait Memory: Send + Sync {
    /// The stored record, if any.
    fn recall(&self) -> Option<Known>;

    /// Stores this record instead; it is durable when the future resolves. The implementation
    /// reports its own failures: members and witness decide, and the record is a second line of
    /// defence.
    fn keep(&self, known: Known) -> Pin<Box<dyn Future<Output = ()>>>;
}

impl Known {
    /// The reason if this record is newer than a superblock, or of a diverged history.
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
            "this host has last recorded generation {} with members {}, and the newest superblock that was found \
             is {what} ({})",
            self.generation,
            members.join(", "),
            found.age()
        ))
    }
}

impl Core {
    /// The record to store now.
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

    /// Stores a record if its members have changed, or if `anyway` is set.
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
