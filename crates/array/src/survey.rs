//! What devices say of themselves, before any array runs.

use crate::assemble::{Candidate, examine_all};
use crate::error::ArrayError;
use crate::superblock::Superblock;
use crate::{Condition, Geometry};
use longhaul_block::BlockDevice;
use std::sync::Arc;
use uuid::Uuid;

/// What the superblock of a device says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The array that it is a member of.
    pub array: Uuid,
    /// The name of the array.
    pub name: String,
    /// Its own identity.
    pub member: Uuid,
    /// Its place; none for a spare.
    pub index: Option<usize>,
    /// The shape of the array.
    pub geometry: Geometry,
    /// How new its superblock is.
    pub generation: u64,
    /// The array was stopped in order.
    pub clean: bool,
    /// Whether the newest superblock that was found for the array knows it.
    pub current: bool,
    /// What the newest superblock says of each place.
    pub conditions: Vec<Condition>,
}

/// Opens devices, at the same time, and reads what they are. Nothing is
/// written. A device without a superblock has no label; one whose superblock is
/// not understood gives [`ArrayError::NotUnderstood`].
pub async fn survey(devices: &[Arc<dyn BlockDevice>]) -> Vec<Result<Option<Label>, ArrayError>> {
    let candidates = examine_all(devices).await;
    let newest = |array: Uuid| -> Option<Superblock> {
        let found = candidates.iter().flatten().filter_map(|candidate| candidate.superblock.clone());
        found.filter(|found| found.array == array).max_by_key(|found| found.generation)
    };
    let label = |candidate: &Candidate| {
        let own = match candidate.member() {
            Err(ArrayError::NoMember(_)) => return Ok(None),
            found => found?,
        };
        let Some(newest) = newest(own.array) else { return Ok(None) };
        let known = newest.entries.iter().any(|entry| entry.uuid == own.member);
        Ok(Some(Label {
            array: own.array,
            name: newest.name.clone(),
            member: own.member,
            index: newest.entries.iter().position(|entry| entry.uuid == own.member),
            geometry: newest.geometry,
            generation: own.generation,
            clean: newest.clean,
            current: known || newest.spares.contains(&own.member),
            conditions: newest.entries.iter().map(|entry| entry.condition).collect(),
        }))
    };
    candidates.iter().map(|candidate| candidate.as_ref().map_err(Clone::clone).and_then(label)).collect()
}
