//! The record that a host keeps of an array.
//!
//! The superblocks hold the state that was last written to these members. A host that has continued
//! on other members remembers that as well, so that it does not start with members that it left
//! behind itself. Where the record is stored is up to the embedding program.

use crate::core::Core;
use crate::format::history::Era;
use crate::format::superblock::{Condition, Superblock};
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
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

/// The record of a running array on its host.
pub(crate) struct HostRecord {
    memory: Option<Arc<dyn Memory>>,
    /// The record that was stored last in this session.
    stored: RefCell<Option<Known>>,
}

impl HostRecord {
    /// Keeps the record in `memory`; without it the host has none.
    pub(crate) fn new(memory: Option<Arc<dyn Memory>>) -> HostRecord {
        HostRecord { memory, stored: RefCell::default() }
    }
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
        let era = self.publication.last_era()?;
        let active = self.members.iter().filter(|member| member.condition() == Condition::Active);
        Some(Known {
            generation: self.publication.generation(),
            session: era.session,
            from: era.from,
            active: active.map(|member| member.uuid()).collect(),
        })
    }

    /// Stores a record if its members have changed, or if `anyway` is set.
    pub(crate) async fn remember(&self, anyway: bool) {
        let record = &self.session.record;
        let Some(memory) = &record.memory else { return };
        let Some(known) = self.known() else { return };
        let same = |last: &Known| last.active == known.active && last.session == known.session;
        if !anyway && record.stored.borrow().as_ref().is_some_and(same) {
            return;
        }
        memory.keep(known.clone()).await;
        *record.stored.borrow_mut() = Some(known);
    }
}
