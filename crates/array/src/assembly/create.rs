//! Creates arrays.
//!
//! Invariants:
//! - no device is written before all of them have been examined and accepted;
//! - superblocks are written last: a device with a superblock is complete;
//! - devices that have reservations are reserved while they are written.

use crate::array::ArrayFuture;
use crate::assembly::candidate::{Candidate, check_device, examine_all};
use crate::error::ArrayError;
use crate::format::geometry::{BLOCK, Geometry, SUPER_AT};
use crate::format::history::History;
use crate::format::layout::Layout;
use crate::format::superblock::{Condition, MAX_SPARES, MemberEntry, Superblock, is_name};
use crate::options::Options;
use crate::session::guard::{key_of, reserve_new};
use crate::session::witness::WITNESS_SIZE;
use futures_util::future::{join_all, try_join_all};
use longhaul_block::{BlockDevice, BlockIo, IoError, IoResult, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut};
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

/// Creates an array of `devices`, with `spares`. All of it reads as zeroes.
pub(crate) fn create<'a>(
    devices: &'a [Arc<dyn BlockDevice>],
    spares: &'a [Arc<dyn BlockDevice>],
    witness: Option<&'a Arc<dyn BlockDevice>>,
    shape: &'a Shape,
    new_uuid: Box<dyn FnMut() -> Uuid + 'a>,
) -> ArrayFuture<'a, Result<Uuid, ArrayError>> {
    Box::pin(write_array(devices, spares, witness, shape, new_uuid))
}

async fn write_array(
    devices: &[Arc<dyn BlockDevice>],
    spares: &[Arc<dyn BlockDevice>],
    witness: Option<&Arc<dyn BlockDevice>>,
    shape: &Shape,
    mut new_uuid: Box<dyn FnMut() -> Uuid + '_>,
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
    let key = key_of(array);
    let reserved =
        join_all(candidates.iter().map(|found| reserve_new(found, key, shape.force, |_| false))).await;
    let made = match reserved.iter().find_map(|reserved| reserved.as_ref().err()) {
        Some(refused) => Err(refused.clone()),
        None => {
            let parts = Parts { candidates: &candidates, members: devices.len(), witness: witness.is_some() };
            write(&parts, geometry, shape, array, new_uuid).await
        }
    };
    join_all(reserved.iter().flatten().flatten().map(async |reservations| {
        if let Err(e) = reservations.unregister(key).await {
            tracing::warn!("array {}: a reservation of its creation has not ended: {e}", shape.name);
        }
    }))
    .await;
    made.map(|()| array)
}

/// The devices of a new array: its members, then the spares, and the witness last.
struct Parts<'a> {
    candidates: &'a [Candidate],
    /// Number of members.
    members: usize,
    witness: bool,
}

/// Writes a new array to its devices.
async fn write(
    parts: &Parts<'_>,
    geometry: Geometry,
    shape: &Shape,
    array: Uuid,
    mut new_uuid: impl FnMut() -> Uuid,
) -> Result<(), ArrayError> {
    let Parts { candidates, members, witness } = *parts;
    let entry = |_: &_| MemberEntry {
        uuid: new_uuid(),
        condition: Condition::Active,
        since: 1,
        have: u64::MAX,
        known: 0,
    };
    let entries: Vec<MemberEntry> = candidates[..members].iter().map(entry).collect();
    let spares = &candidates[members..candidates.len() - usize::from(witness)];
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
        witness: witness.then(&mut new_uuid),
        history: History::default(),
        written: longhaul_engine::wall_time().as_secs(),
    };
    let uuids = superblock.entries.iter().map(|entry| entry.uuid).chain(superblock.spares.iter().copied());
    let uuids: Vec<Uuid> = uuids.chain(superblock.witness).collect();
    let given = uuids.clone();
    // Superblocks come last, so that a device with a superblock is complete.
    try_join_all(candidates[..members].iter().map(|candidate| prepare(candidate, &geometry, array))).await?;
    if let Some(candidate) = candidates.last().filter(|_| witness) {
        let failed = |source| ArrayError::Device { device: candidate.name(), source };
        zero(&candidate.io, SUPER_AT[0], WITNESS_SIZE).await.map_err(failed)?;
    }
    let members = candidates.iter().zip(uuids).map(async |(candidate, member)| {
        let block = Superblock { member, ..superblock.clone() };
        enlist(candidate, &block).await
    });
    try_join_all(members).await?;
    check_own(candidates, &given).await
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
    allocate(io, SUPER_AT[0], geometry.sums_at()).await.map_err(failed)?;
    zero(io, geometry.sums_at(), geometry.end()).await.map_err(failed)?;
    for (at, page) in crate::io::intent::Intent::new(array, geometry.regions()).pages() {
        io.write(at, page, WriteFlags::default()).await.map_err(failed)?;
    }
    io.flush().await.map_err(failed)
}

/// Bytes per write of zeroes, and bytes per `write_zeroes`: short enough to end within a member's
/// timeout.
const ZERO_PIECE: u64 = 1 << 20;
const ZERO_RANGE: u64 = 1 << 30;

/// Makes the range of a device from `from` to `to`, in bytes, read as zeroes.
pub(crate) async fn zero(io: &Rc<dyn BlockIo>, from: u64, to: u64) -> IoResult<()> {
    zero_as(io, from, to, true).await
}

/// The same, so that the range has space of its own: what the array records finds it there when the
/// rest of the device is full.
pub(crate) async fn allocate(io: &Rc<dyn BlockIo>, from: u64, to: u64) -> IoResult<()> {
    zero_as(io, from, to, false).await
}

async fn zero_as(io: &Rc<dyn BlockIo>, from: u64, to: u64, may_deallocate: bool) -> IoResult<()> {
    let mut at = from;
    while at < to {
        let len = ZERO_RANGE.min(to - at);
        let flags = ZeroFlags { fua: false, may_deallocate };
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
pub(crate) fn distinct(devices: &[Arc<dyn BlockDevice>]) -> Result<(), ArrayError> {
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
