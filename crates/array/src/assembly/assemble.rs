//! Creates arrays, and assembles them from their members.
//!
//! Invariants:
//! - no device is written before all of them have been examined and accepted;
//! - an array never starts with fewer members than it needs, nor with members of diverged
//!   histories.

use crate::assembly::current::{self, Ancestry};
use crate::core::Core;
use crate::error::ArrayError;
use crate::format::geometry::{BLOCK, Geometry, HEARTBEAT_AT, INTENT_AT, JOURNAL_AT, SUPER_AT};
use crate::format::history::History;
use crate::format::layout::Layout;
use crate::format::superblock::{
    Condition, MAX_SPARES, MemberEntry, Superblock, SuperblockCopies, Unknown, is_name,
};
use crate::heal::replace::Spare;
use crate::options::Options;
use crate::session::Session;
use crate::session::fence::Heartbeat;
use crate::session::memory::{HostRecord, Memory};
use crate::session::witness::{WITNESS_SIZE, Witness};
use crate::without::Mechanism;
use futures_util::future::{join_all, try_join_all};
use longhaul_block::{BlockDevice, BlockIo, IoError, IoResult, WriteFlags, ZeroFlags, signature};
use longhaul_engine::{Buf, BufMut};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// Parameters of a new array.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Array name; see [`MAX_NAME`](crate::MAX_NAME).
    pub name: String,
    /// Distribution of data and redundancy over the members.
    pub layout: Layout,
    /// Stripe unit in bytes.
    pub unit: u64,
    /// Use devices that belong to another array, unless that array is in use.
    pub force: bool,
}

/// A device, opened, with what its array regions hold.
pub(crate) struct Candidate {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) io: Rc<dyn BlockIo>,
    pub(crate) superblock: Option<Superblock>,
    /// The slot, 0 or 1, of that superblock.
    pub(crate) slot: usize,
    /// What the slots hold, if that is a superblock that this version cannot read.
    pub(crate) unknown: Option<Unknown>,
    /// One of the two copies of the superblock is not intact.
    pub(crate) torn: bool,
    /// The last heartbeat on the device.
    pub(crate) beat: Option<Heartbeat>,
}

impl Candidate {
    pub(crate) fn name(&self) -> String {
        self.device.info().name
    }

    /// The superblock of a device that must be a member.
    pub(crate) fn member(&self) -> Result<&Superblock, ArrayError> {
        let device = self.name();
        match (&self.superblock, self.unknown) {
            (Some(found), _) => Ok(found),
            (None, Some(superblock)) => Err(ArrayError::NotUnderstood { device, superblock }),
            (None, None) => Err(ArrayError::NoMember(device)),
        }
    }

    /// Refuses a member of any array other than `but`.
    pub(crate) fn check_free(&self, but: Option<Uuid>) -> Result<(), ArrayError> {
        let device = self.name();
        match (&self.superblock, self.unknown) {
            (Some(found), _) if Some(found.array) != but => {
                Err(ArrayError::Taken { device, name: found.name.clone(), array: found.array })
            }
            (None, Some(superblock)) => Err(ArrayError::TakenUnknown { device, superblock }),
            _ => Ok(()),
        }
    }

    /// Refuses a device with a known signature of other content; superblocks of arrays are left to
    /// [`check_free`](Self::check_free).
    pub(crate) async fn check_content(&self) -> Result<(), ArrayError> {
        if self.superblock.is_some() {
            return Ok(());
        }
        let device = self.name();
        match signature::look(&*self.io, &self.device.info()).await {
            Ok(content) if content.is_known() => Err(ArrayError::Content { device, content }),
            Ok(_) => Ok(()),
            Err(source) => Err(ArrayError::Device { device, source }),
        }
    }
}

/// Opens a device and reads its superblock and heartbeat.
pub(crate) async fn examine(device: &Arc<dyn BlockDevice>) -> Result<Candidate, ArrayError> {
    let failed = |source| ArrayError::Device { device: device.info().name, source };
    let io = device.open().await.map_err(failed)?;
    let (a, b, beat) = futures_util::join!(
        io.read(SUPER_AT[0], BufMut::zeroed(BLOCK as usize)),
        io.read(SUPER_AT[1], BufMut::zeroed(BLOCK as usize)),
        io.read(HEARTBEAT_AT, BufMut::zeroed(BLOCK as usize)),
    );
    // An unreadable copy counts as torn.
    let copy = |read: IoResult<BufMut>| read.map(|buf| buf.to_vec());
    let (a, b) = match (copy(a), copy(b)) {
        (Err(e), Err(_)) => return Err(failed(e)),
        (a, b) => (a.unwrap_or_default(), b.unwrap_or_default()),
    };
    let SuperblockCopies { newest: superblock, slot, torn } = SuperblockCopies::of([&a, &b]);
    let unknown = Superblock::unknown(&a).or(Superblock::unknown(&b)).filter(|_| superblock.is_none());
    let beat = beat.ok().and_then(|block| Heartbeat::decode(&block));
    Ok(Candidate { device: Arc::clone(device), io, superblock, slot, unknown, torn, beat })
}

/// Opens and examines all devices concurrently.
pub(crate) async fn examine_all(devices: &[Arc<dyn BlockDevice>]) -> Vec<Result<Candidate, ArrayError>> {
    join_all(devices.iter().map(examine)).await
}

pub(crate) fn check_device(device: &dyn BlockDevice) -> Result<(), ArrayError> {
    let info = device.info();
    let wrong = |source| ArrayError::Device { device: info.name.clone(), source };
    if info.read_only {
        return Err(wrong(IoError::ReadOnly));
    }
    if u64::from(info.block_size) > BLOCK {
        return Err(wrong(IoError::Unsupported("logical blocks of 4096 bytes or less")));
    }
    Ok(())
}

/// Creates an array of `devices`, with `spares`. All of it reads as zeroes.
pub(crate) async fn create(
    devices: &[Arc<dyn BlockDevice>],
    spares: &[Arc<dyn BlockDevice>],
    witness: Option<&Arc<dyn BlockDevice>>,
    shape: &Shape,
    mut new_uuid: impl FnMut() -> Uuid,
) -> Result<Uuid, ArrayError> {
    if !is_name(&shape.name) {
        return Err(ArrayError::Name(shape.name.clone()));
    }
    crate::format::layout::check_shape(devices.len(), shape.unit)?;
    if spares.len() > MAX_SPARES {
        return Err(ArrayError::TooFew(format!("{} spares are more than {MAX_SPARES}", spares.len())));
    }
    let all: Vec<Arc<dyn BlockDevice>> = devices.iter().chain(spares).chain(witness).cloned().collect();
    distinct(&all)?;
    all.iter().try_for_each(|device| check_device(&**device))?;
    let candidates = examine_all(&all).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    if !shape.force {
        candidates.iter().try_for_each(|candidate| candidate.check_free(None))?;
        try_join_all(candidates.iter().map(Candidate::check_content)).await?;
    }
    let size = devices.iter().map(|device| device.info().size).min().unwrap_or(0);
    let geometry = Geometry::fit(shape.layout, devices.len(), shape.unit, size)?;
    for device in spares {
        let (size, needs) = (device.info().size, geometry.end());
        if size < needs {
            return Err(ArrayError::TooSmall { device: device.info().name, size, needs });
        }
    }
    if let Some(device) = witness {
        let (size, needs) = (device.info().size, WITNESS_SIZE);
        if size < needs {
            return Err(ArrayError::TooSmall { device: device.info().name, size, needs });
        }
    }
    // `force` does not allow a device of a running array.
    crate::session::fence::check_idle(&candidates, None, Options::default().heartbeat).await?;
    let array = new_uuid();
    let entry = |_: &_| MemberEntry {
        uuid: new_uuid(),
        condition: Condition::Active,
        since: 1,
        have: u64::MAX,
        known: 0,
    };
    let entries: Vec<MemberEntry> = devices.iter().map(entry).collect();
    let superblock = Superblock {
        array,
        name: shape.name.clone(),
        geometry,
        generation: 1,
        epoch: 0,
        clean: true,
        member: Uuid::nil(),
        spares: spares.iter().map(|_| new_uuid()).collect(),
        entries,
        witness: witness.map(|_| new_uuid()),
        history: History::default(),
        written: longhaul_engine::wall_time().as_secs(),
    };
    let uuids = superblock.entries.iter().map(|entry| entry.uuid).chain(superblock.spares.iter().copied());
    let uuids: Vec<Uuid> = uuids.chain(superblock.witness).collect();
    let given = uuids.clone();
    // Superblocks come last, so that a device with a superblock is complete.
    try_join_all(candidates.iter().take(devices.len()).map(|candidate| prepare(candidate, &geometry, array)))
        .await?;
    if let Some(candidate) = candidates.last().filter(|_| witness.is_some()) {
        let failed = |source| ArrayError::Device { device: candidate.name(), source };
        zero(&candidate.io, SUPER_AT[0], WITNESS_SIZE).await.map_err(failed)?;
    }
    let members = candidates.iter().zip(uuids).map(async |(candidate, member)| {
        let block = Superblock { member, ..superblock.clone() };
        enlist(candidate, &block).await
    });
    try_join_all(members).await?;
    check_own(&candidates, &given).await?;
    Ok(array)
}

/// Verifies that each device holds the superblock that was written to it: a device that holds
/// another's is the same device under another name.
async fn check_own(candidates: &[Candidate], given: &[Uuid]) -> Result<(), ArrayError> {
    let devices: Vec<Arc<dyn BlockDevice>> = candidates.iter().map(|c| Arc::clone(&c.device)).collect();
    for (found, (candidate, own)) in examine_all(&devices).await.into_iter().zip(candidates.iter().zip(given))
    {
        let Some(found) = found?.superblock.filter(|found| found.member != *own) else { continue };
        let other = given.iter().position(|uuid| *uuid == found.member);
        let other = other.map_or_else(String::new, |other| candidates[other].name());
        // Clear the superblocks, so that the devices do not look like an array.
        let blank = BufMut::zeroed(BLOCK as usize).freeze();
        for candidate in candidates {
            let failed = |source| ArrayError::Device { device: candidate.name(), source };
            for at in SUPER_AT {
                candidate.io.write(at, blank.clone(), WriteFlags::default()).await.map_err(failed)?;
            }
        }
        return Err(ArrayError::Double { device: candidate.name(), other });
    }
    Ok(())
}

/// Writes both copies of a superblock durably.
pub(crate) async fn enlist(candidate: &Candidate, superblock: &Superblock) -> Result<(), ArrayError> {
    let failed = |source| ArrayError::Device { device: candidate.name(), source };
    let buf = Buf::copy_of(&superblock.encode());
    let fua = WriteFlags { fua: candidate.device.info().volatile_cache };
    for at in SUPER_AT {
        candidate.io.write(at, buf.clone(), fua).await.map_err(failed)?;
    }
    candidate.io.flush().await.map_err(failed)
}

/// Clears the regions of a new member.
pub(crate) async fn prepare(
    candidate: &Candidate,
    geometry: &Geometry,
    array: Uuid,
) -> Result<(), ArrayError> {
    let failed = |source| ArrayError::Device { device: candidate.name(), source };
    let io = &candidate.io;
    // Clears the heartbeat as well: it may be that of another array.
    zero(io, SUPER_AT[0], geometry.end()).await.map_err(failed)?;
    for (at, page) in crate::io::intent::Intent::new(array, geometry.regions()).pages() {
        io.write(at, page, WriteFlags::default()).await.map_err(failed)?;
    }
    io.flush().await.map_err(failed)
}

/// Bytes per write of zeroes, and bytes per `write_zeroes`: short enough to end within a member's
/// timeout.
const ZERO_PIECE: u64 = 1 << 20;
const ZERO_RANGE: u64 = 1 << 30;

pub(crate) async fn zero(io: &Rc<dyn BlockIo>, from: u64, to: u64) -> IoResult<()> {
    let mut at = from;
    while at < to {
        let len = ZERO_RANGE.min(to - at);
        let flags = ZeroFlags { fua: false, may_deallocate: true };
        match io.write_zeroes(at, len, flags).await {
            Err(IoError::Unsupported(_)) => {
                let zeroes = BufMut::zeroed(ZERO_PIECE as usize).freeze();
                let writes = (at..at + len).step_by(ZERO_PIECE as usize).map(|piece| {
                    let n = ZERO_PIECE.min(at + len - piece) as usize;
                    io.write(piece, zeroes.slice(0..n), WriteFlags::default())
                });
                for write in writes {
                    write.await?;
                }
            }
            result => result?,
        }
        at += len;
    }
    Ok(())
}

/// Refuses a device that was given twice, where UUIDs or pointers show it.
fn distinct(devices: &[Arc<dyn BlockDevice>]) -> Result<(), ArrayError> {
    let mut seen: Vec<(&Arc<dyn BlockDevice>, Option<Uuid>)> = Vec::new();
    for device in devices {
        let uuid = device.info().uuid;
        for (other, known) in &seen {
            if Arc::ptr_eq(other, device) || (uuid.is_some() && uuid == *known) {
                return Err(ArrayError::Double { device: device.info().name, other: other.info().name });
            }
        }
        seen.push((device, uuid));
    }
    Ok(())
}

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
        let gone = |index: &usize| {
            matches!(newest.entries[*index].condition, Condition::Offline | Condition::Failed)
        };
        let since = place.filter(gone).map(|index| newest.entries[index].since);
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
                if why.is_some() || gone(&index) {
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
    let journal = if was_clean { 0 } else { core.geometry.journal };
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
