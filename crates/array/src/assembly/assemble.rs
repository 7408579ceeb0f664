//! Assembles arrays from their members.
//!
//! Invariants:
//! - no device is written before all of them have been examined and accepted;
//! - an array never starts with fewer members than it needs, nor with members of diverged
//!   histories.

use crate::assembly::candidate::Candidate;
use crate::assembly::current::{self, Ancestry};
use crate::core::Core;
use crate::error::ArrayError;
use crate::format::geometry::{BLOCK, INTENT_AT, JOURNAL_AT};
use crate::format::superblock::{Condition, Superblock};
use crate::heal::replace::Spare;
use crate::options::Options;
use crate::session::Session;
use crate::session::memory::{HostRecord, Memory};
use crate::session::witness::Witness;
use crate::without::Mechanism;
use futures_util::future::join_all;
use longhaul_block::IoResult;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// The devices of an array by their function.
pub(crate) struct Assembly {
    /// The newest superblock.
    pub(crate) superblock: Superblock,
    /// Members by index.
    pub(crate) members: BTreeMap<usize, Candidate>,
    pub(crate) spares: Vec<Candidate>,
    /// Stale members; the reason, if nothing on the member can be used.
    pub(crate) stale: Vec<(usize, Candidate, Option<String>)>,
    /// The witness, if reachable.
    pub(crate) witness: Option<Candidate>,
    /// The newest generation that a heartbeat calls confirmed.
    pub(crate) confirmed: u64,
}

/// Sorts devices into members, spares and witness by their superblocks. Devices that could not be
/// opened are not among the candidates and count as missing.
pub(crate) fn arrange(candidates: Vec<Candidate>, options: &Options) -> Result<Assembly, ArrayError> {
    for candidate in &candidates {
        let found = candidate.member()?;
        if let Some(first) = &candidates[0].superblock
            && first.array != found.array
        {
            let (name, array) = (found.name.clone(), found.array);
            return Err(ArrayError::Foreign { device: candidate.name(), name, array });
        }
    }
    let Some(superblock) = current::newest(&candidates) else {
        return Err(ArrayError::TooFew("no device was given".into()));
    };
    let confirmed = current::confirmed(&candidates, superblock.array);
    let present: Vec<Superblock> = candidates.iter().filter_map(|found| found.superblock.clone()).collect();
    let mut assembly = Assembly {
        members: BTreeMap::new(),
        spares: Vec::new(),
        stale: Vec::new(),
        witness: None,
        confirmed,
        superblock,
    };
    let mut seen: BTreeMap<Uuid, String> = BTreeMap::new();
    for candidate in candidates {
        let Some(found) = candidate.superblock.clone() else { continue };
        if let Some(other) = seen.insert(found.member, candidate.name()) {
            return Err(ArrayError::Double { device: candidate.name(), other });
        }
        let newest = &assembly.superblock;
        let is_witness = newest.witness == Some(found.member);
        let (size, needs) = (candidate.device.info().size, newest.geometry.end());
        if size < needs && !is_witness {
            return Err(ArrayError::TooSmall { device: candidate.name(), size, needs });
        }
        let place = newest.entries.iter().position(|entry| entry.uuid == found.member);
        let is_missing = |index: &usize| {
            matches!(newest.entries[*index].condition, Condition::Offline | Condition::Failed)
        };
        let since = place.filter(is_missing).map(|index| newest.entries[index].since);
        let counts = (place.is_some() || is_witness) && !options.lacks(Mechanism::Apart);
        let ancestry = if counts { newest.ancestry(&found, since, &present) } else { Ancestry::Ancestor };
        if ancestry == Ancestry::Diverged {
            let other = seen.get(&newest.member).cloned().unwrap_or_else(|| "the others".into());
            let (own, others) = (found.age(), newest.age());
            return Err(ArrayError::Diverged { device: candidate.name(), other, own, others });
        }
        match place {
            Some(index) => {
                let unused = "the write of its superblock was interrupted, and the others have continued: it \
                              is rebuilt";
                let unused = (ancestry == Ancestry::Unused).then(|| unused.to_owned());
                let why = current::rolled_back(&candidate, newest, confirmed).or(unused);
                if why.is_some() || is_missing(&index) {
                    assembly.stale.push((index, candidate, why));
                } else {
                    assembly.members.insert(index, candidate);
                }
            }
            None if is_witness => assembly.witness = Some(candidate),
            None if newest.spares.contains(&found.member) => assembly.spares.push(candidate),
            // The member was replaced or removed while it was offline.
            None => return Err(ArrayError::NoMember(format!("{} (it was replaced)", candidate.name()))),
        }
    }
    Ok(assembly)
}

/// Refuses to start an array with too few current members.
pub(crate) fn check_enough(assembly: &Assembly) -> Result<(), ArrayError> {
    let superblock = &assembly.superblock;
    let geometry = superblock.geometry;
    if assembly.is_enough() {
        return Ok(());
    }
    let has = |index: &usize| {
        assembly.members.contains_key(index) && superblock.entries[*index].condition == Condition::Active
    };
    let lost: BTreeSet<usize> = (0..geometry.width).filter(|index| !has(index)).collect();
    let stale = |index: usize| {
        assembly.stale.iter().find(|(of, ..)| *of == index).and_then(|(_, _, why)| why.as_deref())
    };
    let words: Vec<String> = lost
        .iter()
        .map(|index| match superblock.entries[*index].condition {
            Condition::Active => {
                format!("{index} ({})", stale(*index).unwrap_or("not given, or unreachable"))
            }
            Condition::Offline => format!("{index} (was offline, and misses what was written since)"),
            Condition::Failed => format!("{index} (has failed)"),
            Condition::Rebuilding { .. } => format!("{index} (its rebuild is not complete)"),
        })
        .collect();
    Err(ArrayError::TooFew(format!(
        "array {} cannot begin without members {}: {} can be missing, not {}",
        superblock.name,
        words.join(", "),
        geometry.redundancy(),
        lost.len()
    )))
}

/// Makes a core and attaches its members; writes nothing.
pub(crate) fn attach_members(
    assembly: Assembly,
    options: Options,
    session: Uuid,
    memory: Option<Arc<dyn Memory>>,
) -> (Rc<Core>, Vec<(usize, Candidate)>) {
    let predecessor = assembly.ended();
    let mut witness = assembly.superblock.witness.map(|uuid| Witness::new(uuid, &assembly.superblock));
    if let (Some(witness), Some(candidate)) = (&witness, assembly.witness) {
        candidate.superblock.iter().for_each(|found| witness.may_have(found));
        witness.member.put(candidate.device, candidate.io);
        witness.member.confirmed.set_slot(candidate.slot);
        witness.set_reachable(true);
    } else if let Some(witness) = witness.take_if(|_| options.degraded) {
        let (name, uuid) = (&assembly.superblock.name, witness.member.uuid());
        tracing::warn!("array {name}: continues permanently without its witness ({uuid})");
    }
    let session = Session::new(session, predecessor, witness, HostRecord::new(memory));
    let core = Core::new(&assembly.superblock, options, session, assembly.confirmed);
    for (index, candidate) in assembly.members {
        core.members[index].confirmed.found(candidate.superblock.map_or(0, |found| found.generation));
        core.members[index].put(candidate.device, candidate.io);
        core.members[index].confirmed.set_slot(candidate.slot);
    }
    let mut stale = Vec::new();
    for (index, candidate, why) in assembly.stale {
        if let Some(why) = why {
            let member = &core.members[index];
            tracing::warn!("array {}: member {index} ({}): {why}", core.name, candidate.name());
            if member.condition() != Condition::Failed {
                core.enter(index, Condition::Offline, &why);
            }
            member.state.discard_rows();
        }
        stale.push((index, candidate));
    }
    let spare = |uuid: &Uuid| {
        let is_it = |candidate: &&Candidate| candidate.superblock.as_ref().is_some_and(|s| s.member == *uuid);
        let found = assembly.spares.iter().find(is_it);
        Spare { uuid: *uuid, device: found.map(|candidate| Arc::clone(&candidate.device)) }
    };
    assembly.superblock.spares.iter().map(spare).for_each(|spare| core.spares.add(spare));
    let core = Rc::new(core);
    core.members_and_witness().for_each(|member| member.reach.belong(&core));
    (core, stale)
}

/// What the bitmaps and journals of the members held at assembly.
#[derive(Default)]
pub(crate) struct RecoveryLogs {
    pub(crate) records: crate::io::journal::scan::ScannedRecords,
    /// Some bitmap pages are damaged.
    bitmaps: bool,
    /// Unreadable blocks of journals, by member.
    journals: Vec<(usize, Vec<u64>)>,
}

/// Reads the write-intent bitmaps of the members in use, and their journals unless the array was
/// stopped in order. A damaged page or block is taken from the other members.
pub(crate) async fn read_logs(core: &Rc<Core>, was_clean: bool) -> IoResult<RecoveryLogs> {
    let journal = if was_clean { 0 } else { core.geometry().journal };
    let pages = core.intent.page_count();
    let usable = core.members.usable();
    let reads = join_all(usable.map(async |member| {
        let bitmap = member.read_around(INTENT_AT, pages as u64 * BLOCK);
        (member, futures_util::try_join!(bitmap, member.read_around(JOURNAL_AT, journal)))
    }))
    .await;
    let mut logs = RecoveryLogs::default();
    let mut known = vec![false; pages];
    for (member, read) in reads {
        let (bitmap, ring) = match read {
            Ok(read) => read,
            Err(e) => {
                core.lose(member.index, &e).await?;
                continue;
            }
        };
        for (number, page) in bitmap.bytes.chunks(BLOCK as usize).enumerate() {
            let whole = core.intent.merge(number, page);
            // A member under rebuild may not have received this page yet.
            known[number] |= whole && member.is_active();
            logs.bitmaps |= !whole;
        }
        logs.records.add(&ring.bytes, core.array);
        if !ring.unreadable.is_empty() {
            logs.journals.push((member.index, ring.unreadable));
        }
    }
    known.iter().enumerate().filter(|(_, known)| !**known).for_each(|(page, _)| core.intent.mark_all(page));
    Ok(logs)
}

/// Rewrites damaged bitmap pages and journal blocks, once the old content is not needed any more.
pub(crate) async fn repair_logs(core: &Rc<Core>, logs: &RecoveryLogs) -> IoResult<()> {
    for (member, blocks) in &logs.journals {
        core.journal.clear(core, *member, blocks).await?;
    }
    if logs.bitmaps { core.intent.write_all(core).await } else { Ok(()) }
}
