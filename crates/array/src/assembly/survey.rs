//! Reads superblocks of devices without running an array.

use crate::array::ArrayFuture;
use crate::assembly::assemble::{arrange, check_enough};
use crate::assembly::candidate::{Candidate, examine_all};
use crate::error::ArrayError;
use crate::format::superblock::Superblock;
use crate::member::MemberCounts;
use crate::options::Options;
use crate::report::{Health, MemberStatus, Status, at_risk, may_be_replaced};
use crate::session::guard::Guard;
use crate::session::memory::Known;
use crate::{Condition, Counts, Geometry};
use longhaul_block::BlockDevice;
use std::sync::Arc;
use uuid::Uuid;

/// Summary of a device's superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// UUID of its array.
    pub array: Uuid,
    /// Name of the array.
    pub name: String,
    /// UUID of the member.
    pub member: Uuid,
    /// Index of the member; `None` for a spare.
    pub index: Option<usize>,
    /// Shape of the array.
    pub geometry: Geometry,
    /// Generation of the superblock.
    pub generation: u64,
    /// The array was stopped in order.
    pub clean: bool,
    /// Whether the newest superblock found for the array lists the device.
    pub current: bool,
    /// Conditions of all members according to the newest superblock.
    pub conditions: Vec<Condition>,
}

/// Opens devices concurrently and reads their superblocks. Nothing is written. A device without a
/// superblock has no label; one whose superblock cannot be read yields
/// [`ArrayError::NotUnderstood`].
pub fn survey(devices: &[Arc<dyn BlockDevice>]) -> ArrayFuture<'_, Vec<Result<Option<Label>, ArrayError>>> {
    Box::pin(read_labels(devices))
}

async fn read_labels(devices: &[Arc<dyn BlockDevice>]) -> Vec<Result<Option<Label>, ArrayError>> {
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
        let known =
            newest.entries.iter().any(|entry| entry.uuid == own.member) || newest.witness == Some(own.member);
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

/// The status that an array would start with, according to the superblocks of its members, if no
/// process of this host runs it. Nothing is written, and other hosts are not kept from running the
/// array. Devices that were replaced are skipped.
///
/// # Errors
/// The devices are not enough for the array, or do not belong together; the [`ArrayError`] names
/// the device and the reason.
pub fn look<'a>(
    devices: &'a [Arc<dyn BlockDevice>],
    array: Uuid,
    known: Option<&'a Known>,
) -> ArrayFuture<'a, Result<Status, ArrayError>> {
    Box::pin(initial_status(devices, array, known))
}

async fn initial_status(
    devices: &[Arc<dyn BlockDevice>],
    array: Uuid,
    known: Option<&Known>,
) -> Result<Status, ArrayError> {
    let mut candidates: Vec<Candidate> = examine_all(devices).await.into_iter().flatten().collect();
    candidates.retain(|found| found.superblock.as_ref().is_some_and(|found| found.array == array));
    let newest = candidates.iter().filter_map(|found| found.superblock.clone());
    if let Some(newest) = newest.max_by_key(|found| found.generation) {
        let knows = |member| {
            newest.entries.iter().any(|entry| entry.uuid == member)
                || newest.spares.contains(&member)
                || newest.witness == Some(member)
        };
        candidates.retain(|found| found.superblock.as_ref().is_some_and(|found| knows(found.member)));
    }
    let assembly = arrange(candidates, &Options::default())?;
    check_enough(&assembly)?;
    let superblock = &assembly.superblock;
    let members: Vec<MemberStatus> = superblock
        .entries
        .iter()
        .enumerate()
        .map(|(index, entry)| {
            let found = assembly.members.get(&index);
            let stale = assembly.stale.iter().find(|(of, ..)| *of == index);
            let why = stale.and_then(|(_, _, why)| why.as_deref());
            let stale = stale.map(|(_, candidate, _)| candidate);
            let (condition, reason) = match (found, entry.condition) {
                (Some(_), condition) => (condition, ""),
                (None, Condition::Failed) => (Condition::Failed, "it has failed"),
                (None, _) if stale.is_some() => {
                    (Condition::Offline, why.unwrap_or("it lacks writes that the others have"))
                }
                (None, _) => (Condition::Offline, "not given, or unreachable"),
            };
            MemberStatus {
                index,
                uuid: entry.uuid,
                device: found.or(stale).map(Candidate::name),
                condition,
                reason: reason.to_owned(),
                guard: found.or(stale).map(|candidate| match candidate.io.reservations() {
                    Some(_) => Guard::Reservation,
                    None => Guard::Heartbeat,
                }),
                counts: MemberCounts::default(),
            }
        })
        .collect();
    let missing = members.iter().filter(|member| member.condition != Condition::Active).count();
    let no_spare =
        assembly.spares.is_empty() && members.iter().any(|member| may_be_replaced(member.condition));
    let risk = (missing > 0).then(|| at_risk(&superblock.geometry, missing, no_spare));
    let refused = assembly
        .may_be_outdated(known)
        .map(|why| format!("it does not begin without array assemble --degraded: {why}"));
    let unstopped = "it was not stopped: another host runs it, or did so when it crashed";
    let is_refused = refused.is_some();
    let detail: Vec<String> =
        refused.into_iter().chain(risk).chain((!superblock.clean).then(|| unstopped.into())).collect();
    Ok(Status {
        uuid: superblock.array,
        name: superblock.name.clone(),
        geometry: superblock.geometry,
        health: if missing == 0 && !is_refused { Health::Healthy } else { Health::Degraded },
        detail: detail.join("; "),
        halt: None,
        generation: superblock.generation,
        members,
        spares: assembly.spares.iter().map(Candidate::name).collect(),
        rebuild: None,
        scrub: None,
        lost: Vec::new(),
        lost_bytes: 0,
        marked_regions: (0, superblock.geometry.regions()),
        journal_used: 0,
        counts: Counts::default(),
    })
}
