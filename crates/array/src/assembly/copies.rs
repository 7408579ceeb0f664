//! Makes an array of its own of copies of another one's members.
//!
//! Invariants:
//! - the devices are copies of all members of one array, each once, of a moment at which nothing was
//!   under way: the caller has [paused](crate::ArrayDevice::pause) that one, or has stopped it;
//! - nothing is written before all of them have been examined and accepted;
//! - superblocks are written last, both copies: a device with one of the new array is complete, and no
//!   device has one of the former array beside it.

use crate::array::ArrayFuture;
use crate::assembly::candidate::{Candidate, check_device, examine_all};
use crate::assembly::create::{distinct, enlist, zero};
use crate::error::ArrayError;
use crate::format::geometry::{BLOCK, Geometry, HEARTBEAT_AT};
use crate::format::history::History;
use crate::format::superblock::{Condition, MemberEntry, Superblock, is_name};
use crate::io::intent::Intent;
use futures_util::future::try_join_all;
use longhaul_block::{BlockDevice, WriteFlags};
use std::sync::Arc;
use uuid::Uuid;

/// Makes an array called `name` of `devices`, which are copies of the members of array `of`, member 0 first,
/// and returns its UUID. It has the content of that one, and identifiers of its own. No host may use the
/// devices meanwhile. Runs on any engine thread.
///
/// # Errors
/// The devices are not such copies, or a member was missing or being rebuilt: nothing was written then.
/// Or a device failed.
pub fn adopt_copies<'a>(
    devices: &'a [Arc<dyn BlockDevice>],
    of: Uuid,
    name: &'a str,
) -> ArrayFuture<'a, Result<Uuid, ArrayError>> {
    Box::pin(adopt(devices, of, name))
}

async fn adopt(devices: &[Arc<dyn BlockDevice>], of: Uuid, name: &str) -> Result<Uuid, ArrayError> {
    if !is_name(name) {
        return Err(ArrayError::Name(name.to_owned()));
    }
    distinct(devices)?;
    devices.iter().try_for_each(|device| check_device(&**device))?;
    let copies = examine_all(devices).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let geometry = check(&copies, of)?;
    let new = Superblock {
        array: Uuid::new_v4(),
        name: name.to_owned(),
        geometry,
        generation: 1,
        epoch: 0,
        clean: true,
        member: Uuid::nil(),
        entries: copies.iter().map(|_| entry()).collect(),
        spares: Vec::new(),
        witness: None,
        history: History::default(),
        written: longhaul_engine::wall_time().as_secs(),
    };
    try_join_all(copies.iter().map(|copy| prepare(copy, &geometry, new.array))).await?;
    let members = copies.iter().zip(&new.entries).map(async |(copy, entry)| {
        let block = Superblock { member: entry.uuid, ..new.clone() };
        enlist(copy, &block).await
    });
    try_join_all(members).await?;
    Ok(new.array)
}

/// A member that is up to date, and has not been in an array before.
fn entry() -> MemberEntry {
    MemberEntry { uuid: Uuid::new_v4(), condition: Condition::Active, since: 1, have: u64::MAX, known: 0 }
}

/// The shape of the array, if these are copies of all of its members, up to date, in their order.
fn check(copies: &[Candidate], of: Uuid) -> Result<Geometry, ArrayError> {
    let found = copies.iter().map(Candidate::member).collect::<Result<Vec<_>, _>>()?;
    for (copy, found) in copies.iter().zip(&found) {
        if found.array != of {
            let (device, name) = (copy.name(), found.name.clone());
            return Err(ArrayError::Foreign { device, name, array: found.array });
        }
    }
    let Some(newest) = found.iter().max_by_key(|found| found.generation) else {
        return Err(ArrayError::TooFew("no copy of a member was given".to_owned()));
    };
    let (given, needed) = (copies.len(), newest.geometry.width);
    if given != needed {
        return Err(ArrayError::TooFew(format!("{given} copies were given of {needed} members")));
    }
    let is_whole = |entry: &MemberEntry| entry.condition == Condition::Active;
    for (index, (copy, found)) in copies.iter().zip(&found).enumerate() {
        let entry = &newest.entries[index];
        if entry.uuid != found.member || !is_whole(entry) {
            let why = format!("{} is no copy of member {index}, up to date", copy.name());
            return Err(ArrayError::Refused(why));
        }
        let (size, needs) = (copy.device.info().size, newest.geometry.end());
        if size < needs {
            return Err(ArrayError::TooSmall { device: copy.name(), size, needs });
        }
    }
    Ok(newest.geometry)
}

/// Clears the heartbeat, which is of a session of the former array, and the marks. Records in the journal
/// are void: they name the former array.
async fn prepare(copy: &Candidate, geometry: &Geometry, array: Uuid) -> Result<(), ArrayError> {
    let failed = |source| ArrayError::Device { device: copy.name(), source };
    zero(&copy.io, HEARTBEAT_AT, HEARTBEAT_AT + BLOCK).await.map_err(failed)?;
    for (at, page) in Intent::new(array, geometry.regions()).pages() {
        copy.io.write(at, page, WriteFlags::default()).await.map_err(failed)?;
    }
    copy.io.flush().await.map_err(failed)
}
