//! A block device as a space: namespaces are made of its extents.
//!
//! Invariants, at every step and so after a crash at any of them:
//! - one of the two copies of the map is whole, and each is written before the other one is touched;
//! - extents are zeroed, durably, before a map says that they are of a namespace;
//! - extents that were of a namespace are of no other before its last operation has ended.

mod map;
mod medium;

use super::record::NamespaceRecord;
use super::{Space, SpaceCapacity, SpaceError, SpaceNamespace};
use longhaul_block::medium::lasting_identity;
use longhaul_block::signature::{Content, EDGE};
use longhaul_block::{BlockDevice, DeviceExtent, DeviceInfo, ExtentDevice, FileDevice, FileOptions};
use longhaul_engine::BUF_MAX;
use longhaul_proto::controller::NewNamespace;
use longhaul_wire::digest::crc32c;
use longhaul_wire::management::NamespaceLabel;
use map::{EXTENT, Found, HEAD, HEADS, MapHead, Mapped, Places, SpaceMap};
use medium::MapMedium;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uuid::Uuid;

/// Most extents of a namespace: each I/O looks through them.
const EXTENTS_MAX: usize = 256;

/// How a device is made, or taken as, a space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockSpaceOptions {
    /// Bytes that namespaces may take, if not all of the device.
    pub quota: Option<u64>,
    /// Make it a space although it has other content, which is lost.
    pub overwrite: bool,
    /// Serve a space whose device is another one than the one that it was made on: it was moved there,
    /// and the other one is gone.
    pub adopt: bool,
}

/// See the module.
pub struct BlockSpace {
    name: String,
    /// Bytes of the device.
    size: u64,
    quota: Option<u64>,
    places: Places,
    identity: Uuid,
    disk: Arc<dyn BlockDevice>,
    medium: Box<dyn MapMedium>,
    state: Mutex<BlockSpaceState>,
}

struct BlockSpaceState {
    /// What has been acknowledged.
    map: SpaceMap,
    /// Of the copies; the last change may have failed and not have this one.
    generation: u64,
    devices: BTreeMap<u32, ExtentDevice>,
    /// Removed namespaces whose operations may not have ended.
    removed: Vec<(ExtentDevice, Vec<(u64, u64)>)>,
}

/// A copy of the map that is whole.
struct WholeCopy {
    head: MapHead,
    map: SpaceMap,
}

impl BlockSpace {
    /// Opens a block device as a space, and makes it one if it has no known content. A regular file is
    /// taken as well.
    ///
    /// # Errors
    /// It has other content, it is in use, its map is damaged, of a newer version, or was made on another
    /// device, or it cannot be read or written.
    pub fn open(path: &Path, options: &BlockSpaceOptions) -> Result<BlockSpace, SpaceError> {
        let name = path.display().to_string();
        let failed = |what: &str, e: io::Error| SpaceError::Medium(format!("{name}: cannot {what}: {e}"));
        let meta = std::fs::metadata(path).map_err(|e| failed("open it", e))?;
        let file_options = FileOptions::default();
        let disk = match meta.file_type().is_block_device() {
            true => FileDevice::open_block(path, &file_options),
            false => FileDevice::open_file(path, &file_options),
        };
        let disk = disk.map_err(|e| SpaceError::Invalid(e.to_string()))?;
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(|e| failed("open it", e))?;
        let device = lasting_identity(&file).map_err(|e| failed("ask for its identity", e))?;
        BlockSpace::open_on(Arc::new(disk), Box::<File>::new(file), device, options)
    }

    fn open_on(
        disk: Arc<dyn BlockDevice>,
        medium: Box<dyn MapMedium>,
        device: Option<String>,
        options: &BlockSpaceOptions,
    ) -> Result<BlockSpace, SpaceError> {
        let DeviceInfo { name, size, .. } = disk.info();
        let mut space = BlockSpace {
            places: Places::of_size(size),
            identity: Uuid::new_v4(),
            state: Mutex::new(BlockSpaceState {
                map: SpaceMap { device: device.clone(), namespaces: Vec::new() },
                generation: 0,
                devices: BTreeMap::new(),
                removed: Vec::new(),
            }),
            name,
            size,
            quota: options.quota,
            disk,
            medium,
        };
        match space.look()? {
            Some(copy) => space.take_up(copy, device, options)?,
            None => space.make(options)?,
        }
        Ok(space)
    }

    fn lock(&self) -> MutexGuard<'_, BlockSpaceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, what: &str, e: &io::Error) -> SpaceError {
        SpaceError::Medium(format!("{}: cannot {what}: {e}", self.name))
    }

    fn no_clones(&self) -> SpaceError {
        SpaceError::NoClones(format!("{}: the namespaces of a block device share no extents", self.name))
    }

    fn invalid(&self, why: &str) -> SpaceError {
        SpaceError::Invalid(format!("{} {why}", self.name))
    }

    fn read(&self, at: u64, len: u64) -> Result<Vec<u8>, SpaceError> {
        let mut bytes = vec![0; len as usize];
        self.medium.read(at, &mut bytes).map_err(|e| self.failed("read it", &e))?;
        Ok(bytes)
    }

    /// The newest copy of the map that is whole; `None` on a device that is no space.
    fn look(&self) -> Result<Option<WholeCopy>, SpaceError> {
        let least = self.places.first_extent() + EXTENT;
        if self.size < least {
            return Err(self.invalid(&format!("has {} bytes, and a space needs {least}", self.size)));
        }
        let (mut newest, mut damaged): (Option<WholeCopy>, Option<String>) = (None, None);
        for at in HEADS {
            // An unreadable copy is a damaged one.
            let head = match self.read(at, HEAD as u64).map(|head| MapHead::find(&head)) {
                Ok(Found::Head(head)) => head,
                Ok(Found::Version(version)) => {
                    return Err(self.invalid(&format!("is a space of version {version}, of a newer program")));
                }
                Ok(Found::Nothing) => continue,
                Ok(Found::Damaged) => {
                    damaged = Some("its checksum does not match".to_owned());
                    continue;
                }
                Err(e) => {
                    damaged = Some(e.to_string());
                    continue;
                }
            };
            let text = self.read(head.text_at, head.len).map_err(|e| e.to_string());
            let map = text.and_then(|text| match crc32c(&text) == head.sum {
                true => SpaceMap::decode(&text),
                false => Err("its checksum does not match".to_owned()),
            });
            match map {
                Ok(map) if newest.as_ref().is_none_or(|newest| newest.head.generation < head.generation) => {
                    newest = Some(WholeCopy { head, map });
                }
                Ok(_) => {}
                Err(why) => damaged = Some(why),
            }
        }
        match (newest, damaged) {
            (None, Some(why)) => Err(self.invalid(&format!(
                "is a space, and neither copy of its map can be used: {why}. Nothing was changed; to begin anew, \
                 which loses its namespaces, add overwrite"
            ))),
            (newest, damaged) => {
                if let Some(why) = damaged {
                    tracing::warn!("{}: a copy of its map is written anew: {why}", self.name);
                }
                Ok(newest)
            }
        }
    }

    /// Takes up a space that was made before.
    fn take_up(
        &mut self,
        copy: WholeCopy,
        device: Option<String>,
        options: &BlockSpaceOptions,
    ) -> Result<(), SpaceError> {
        let WholeCopy { head, mut map } = copy;
        if let (Some(made_on), Some(is)) = (&map.device, &device)
            && made_on != is
            && !options.adopt
        {
            return Err(self.invalid(&format!(
                "is a copy of the space {}, or was moved: it was made on the device '{made_on}', and this is \
                 '{is}'. Two with the same namespaces must not be served; if the other one is gone, add adopt",
                head.space
            )));
        }
        (self.places, self.identity) = (Places { room: head.room }, head.space);
        map.check(self.places.first_extent(), self.size)
            .map_err(|why| self.invalid(&format!("has a map that cannot be used: {why}")))?;
        map.device = device.or(map.device);
        let devices = map.namespaces.iter().map(|mapped| (mapped.record.nsid, self.device(mapped))).collect();
        {
            let mut state = self.lock();
            (state.generation, state.devices, state.map) = (head.generation, devices, map);
        }
        // Both copies are the same again, whatever ended the last change.
        self.publish(&mut self.lock(), None)
    }

    /// Makes the device a space.
    fn make(&self, options: &BlockSpaceOptions) -> Result<(), SpaceError> {
        let edge = EDGE.min(self.size);
        let (head, tail) = (self.read(0, edge)?, self.read(self.size - edge, edge)?);
        let content = Content::of(self.size, &head, &tail);
        if content.is_known() && !options.overwrite {
            return Err(
                self.invalid(&format!("has {content} on it, which would be lost: add overwrite to lose it"))
            );
        }
        // Else what was there would be found beside the map.
        let wiped = self.medium.zero(0, edge).and_then(|()| self.medium.zero(self.size - edge, edge));
        wiped.and_then(|()| self.medium.sync()).map_err(|e| self.failed("write to it", &e))?;
        self.publish(&mut self.lock(), None)
    }

    /// Writes both copies of the map: `changed`, or the present one. On an error the present one stays, and
    /// the next change replaces what may have been written.
    fn publish(&self, state: &mut BlockSpaceState, changed: Option<SpaceMap>) -> Result<(), SpaceError> {
        let map = changed.as_ref().unwrap_or(&state.map);
        let text = map.encode().map_err(SpaceError::Invalid)?;
        if text.len() as u64 > self.places.room {
            let (has, room) = (text.len(), self.places.room);
            return Err(SpaceError::Full(format!(
                "{}: its map has room for {room} bytes, and {has} are needed: remove namespaces",
                self.name
            )));
        }
        state.generation += 1;
        for (copy, at) in HEADS.into_iter().enumerate() {
            let head = MapHead {
                generation: state.generation,
                space: self.identity,
                text_at: self.places.text(copy),
                room: self.places.room,
                len: text.len() as u64,
                sum: crc32c(&text),
            };
            let write = || {
                self.medium.write(head.text_at, &text)?;
                self.medium.sync()?;
                self.medium.write(at, &head.encode())?;
                self.medium.sync()
            };
            write().map_err(|e| self.failed("write its map", &e))?;
        }
        if let Some(changed) = changed {
            state.map = changed;
        }
        Ok(())
    }

    /// A namespace as a device.
    fn device(&self, mapped: &Mapped) -> ExtentDevice {
        let Mapped { record, extents } = mapped;
        let disk = self.disk.info();
        let info = DeviceInfo {
            name: format!("{}#{}", self.name, record.uuid),
            size: record.size,
            block_size: record.block_size,
            max_io: disk.max_io.min(BUF_MAX as u32),
            optimal_io: 0,
            uuid: Some(record.uuid),
            ..disk
        };
        ExtentDevice::new(Arc::clone(&self.disk), info, &device_extents(extents))
    }

    fn shown(mapped: &Mapped, device: &ExtentDevice) -> SpaceNamespace {
        let NamespaceRecord { nsid, uuid, shared, .. } = mapped.record;
        let device = Arc::new(device.clone());
        SpaceNamespace { nsid, uuid, shared, label: mapped.record.label(), device }
    }

    /// Ranges that no namespace has, in order.
    fn free(&self, state: &mut BlockSpaceState) -> Vec<(u64, u64)> {
        state.removed.retain(|(device, _)| !device.is_idle());
        let mapped = state.map.namespaces.iter().flat_map(|mapped| &mapped.extents);
        let mut taken: Vec<(u64, u64)> =
            mapped.chain(state.removed.iter().flat_map(|(_, extents)| extents)).copied().collect();
        taken.sort_unstable();
        let end = self.size / EXTENT * EXTENT;
        let (mut at, mut free) = (self.places.first_extent(), Vec::new());
        for (start, len) in taken.into_iter().chain([(end, 0)]) {
            if start > at {
                free.push((at, start - at));
            }
            at = at.max(start + len);
        }
        free
    }

    fn capacity_of(&self, state: &mut BlockSpaceState) -> SpaceCapacity {
        let total = (self.size / EXTENT * EXTENT).saturating_sub(self.places.first_extent());
        let unallocated = self.free(state).iter().map(|(_, len)| len).sum();
        let Some(quota) = self.quota else { return SpaceCapacity { total, unallocated } };
        let taken: u64 = state.map.namespaces.iter().map(|mapped| bytes_of(&mapped.extents)).sum();
        SpaceCapacity { total: quota.min(total), unallocated: quota.saturating_sub(taken).min(unallocated) }
    }

    /// Extents of `size` bytes in all, zeroed: the smallest free range that is enough, or else several,
    /// the largest first. At most `most` of them.
    fn allocate(
        &self,
        state: &mut BlockSpaceState,
        size: u64,
        most: usize,
    ) -> Result<Vec<(u64, u64)>, SpaceError> {
        let needed = size.next_multiple_of(EXTENT);
        let SpaceCapacity { unallocated, .. } = self.capacity_of(state);
        if needed > unallocated {
            return Err(SpaceError::Full(format!(
                "{}: {needed} bytes are asked for, and {unallocated} are free",
                self.name
            )));
        }
        let mut free = self.free(state);
        free.sort_unstable_by_key(|(at, len)| (*len, *at));
        let found = match free.iter().find(|(_, len)| *len >= needed) {
            Some((at, _)) => vec![(*at, needed)],
            None => {
                let (mut left, mut found) = (needed, Vec::new());
                while let Some((at, len)) = free.pop().filter(|_| left > 0) {
                    found.push((at, len.min(left)));
                    left -= len.min(left);
                }
                found
            }
        };
        if found.len() > most {
            return Err(SpaceError::Full(format!(
                "{}: the {needed} bytes that are free are in {} pieces, and a namespace has {EXTENTS_MAX} at most",
                self.name,
                found.len()
            )));
        }
        for (at, len) in &found {
            self.medium.zero(*at, *len).map_err(|e| self.failed("write zeroes", &e))?;
        }
        if !found.is_empty() {
            self.medium.sync().map_err(|e| self.failed("write zeroes", &e))?;
        }
        Ok(found)
    }
}

fn bytes_of(extents: &[(u64, u64)]) -> u64 {
    extents.iter().map(|(_, len)| len).sum()
}

fn device_extents(extents: &[(u64, u64)]) -> Vec<DeviceExtent> {
    extents.iter().map(|(at, len)| DeviceExtent { at: *at, len: *len }).collect()
}

/// The namespace of this number, and its place in the map.
fn place_of(map: &SpaceMap, nsid: u32) -> Result<usize, SpaceError> {
    let place = map.namespaces.iter().position(|mapped| mapped.record.nsid == nsid);
    place.ok_or(SpaceError::NotFound(nsid))
}

impl Space for BlockSpace {
    fn namespaces(&self) -> Vec<SpaceNamespace> {
        let state = self.lock();
        let of = |mapped: &Mapped| Some(BlockSpace::shown(mapped, state.devices.get(&mapped.record.nsid)?));
        state.map.namespaces.iter().filter_map(of).collect()
    }

    fn capacity(&self) -> Result<SpaceCapacity, SpaceError> {
        Ok(self.capacity_of(&mut self.lock()))
    }

    fn create(&self, nsid: u32, new: &NewNamespace) -> Result<SpaceNamespace, SpaceError> {
        let mut state = self.lock();
        if place_of(&state.map, nsid).is_ok() {
            return Err(SpaceError::Invalid(format!("there is a namespace {nsid} already")));
        }
        let record = NamespaceRecord::new(nsid, Uuid::new_v4(), new);
        let block = self.disk.info().block_size;
        if record.block_size < block {
            return Err(self.invalid(&format!("has blocks of {block} bytes: ask for namespaces with these")));
        }
        let extents = self.allocate(&mut state, record.size, EXTENTS_MAX)?;
        let mapped = Mapped { record, extents };
        let mut changed = state.map.clone();
        changed.namespaces.push(mapped.clone());
        self.publish(&mut state, Some(changed))?;
        let device = self.device(&mapped);
        state.devices.insert(nsid, device.clone());
        Ok(BlockSpace::shown(&mapped, &device))
    }

    fn delete(&self, nsid: u32) -> Result<(), SpaceError> {
        let mut state = self.lock();
        let place = place_of(&state.map, nsid)?;
        let mut changed = state.map.clone();
        let Mapped { extents, .. } = changed.namespaces.remove(place);
        let Some(device) = state.devices.get(&nsid).cloned() else { return Err(SpaceError::NotFound(nsid)) };
        device.remove();
        if let Err(e) = self.publish(&mut state, Some(changed)) {
            device.restore();
            return Err(e);
        }
        state.devices.remove(&nsid);
        state.removed.push((device, extents));
        Ok(())
    }

    fn set_label(&self, nsid: u32, label: &NamespaceLabel) -> Result<(), SpaceError> {
        let mut state = self.lock();
        let place = place_of(&state.map, nsid)?;
        let mut changed = state.map.clone();
        changed.namespaces[place].record = changed.namespaces[place].record.with_label(label);
        self.publish(&mut state, Some(changed))
    }

    fn grow(&self, nsid: u32, size: u64) -> Result<(), SpaceError> {
        let mut state = self.lock();
        let place = place_of(&state.map, nsid)?;
        let Mapped { record, extents } = state.map.namespaces[place].clone();
        let block = u64::from(record.block_size);
        if size < record.size || !size.is_multiple_of(block) {
            return Err(SpaceError::Invalid(format!(
                "namespace {nsid} has {} bytes in blocks of {block}: {size} is no larger size",
                record.size
            )));
        }
        let more = size.saturating_sub(bytes_of(&extents));
        let most = EXTENTS_MAX.saturating_sub(extents.len());
        let added = if more > 0 { self.allocate(&mut state, more, most)? } else { Vec::new() };
        let mut changed = state.map.clone();
        let mapped = &mut changed.namespaces[place];
        mapped.record = record.with_size(size);
        mapped.extents.extend(added);
        let all = device_extents(&mapped.extents);
        self.publish(&mut state, Some(changed))?;
        if let Some(device) = state.devices.get(&nsid) {
            device.grow(size, &all);
        }
        Ok(())
    }

    fn clone_of(&self, _: u32, _: u32, _: &NamespaceLabel) -> Result<SpaceNamespace, SpaceError> {
        Err(self.no_clones())
    }

    fn check_clones(&self) -> Result<(), SpaceError> {
        Err(self.no_clones())
    }
}

impl std::fmt::Debug for BlockSpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BlockSpace({})", self.name)
    }
}

#[cfg(test)]
mod tests;
