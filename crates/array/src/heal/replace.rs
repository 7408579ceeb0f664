//! Replacement of members by spares and other devices.
//!
//! Invariants:
//! - one device at a time replaces a member: the lock of its index in `replacing` is held;
//! - a device is reserved, and then written, before the member that it replaces is taken out of use,
//!   so that one that cannot be written changes nothing;
//! - a spare stays in `list` until the superblocks record it as a member.

use crate::assembly::create::{allocate, zero};
use crate::core::Core;
use crate::format::geometry::{BLOCK, HEARTBEAT_AT, SUPER_AT};
use crate::format::superblock::{Condition, MAX_SPARES};
use crate::io::locks::RowLocks;
use crate::session::clock::Stamp;
use longhaul_block::{BlockDevice, BlockIo, IoError, IoResult};
use longhaul_engine::{now, timeout};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// A device that waits to replace a member.
#[derive(Clone)]
pub(crate) struct Spare {
    pub(crate) uuid: Uuid,
    /// `None` while unreachable: the device stays a spare.
    pub(crate) device: Option<Arc<dyn BlockDevice>>,
}

/// The spares of an array.
#[derive(Default)]
pub(crate) struct Spares {
    list: RefCell<Vec<Spare>>,
    /// Spares whose failure has been logged.
    reported: RefCell<BTreeSet<Uuid>>,
    /// Exclusive per member index.
    pub(crate) replacing: Rc<RowLocks>,
}

impl Spares {
    /// The spares, oldest first.
    pub(crate) fn list(&self) -> Vec<Spare> {
        self.list.borrow().clone()
    }

    pub(crate) fn uuids(&self) -> Vec<Uuid> {
        self.list.borrow().iter().map(|spare| spare.uuid).collect()
    }

    /// Names of the spares that are attached.
    pub(crate) fn names(&self) -> Vec<String> {
        let list = self.list.borrow();
        list.iter().filter_map(|spare| Some(spare.device.as_ref()?.info().name)).collect()
    }

    /// Whether there is a spare with this UUID.
    pub(crate) fn has(&self, uuid: Uuid) -> bool {
        self.list.borrow().iter().any(|spare| spare.uuid == uuid)
    }

    /// Whether there is a spare with this UUID whose device is unreachable.
    pub(crate) fn is_unattached(&self, uuid: Uuid) -> bool {
        self.list.borrow().iter().any(|spare| spare.uuid == uuid && spare.device.is_none())
    }

    /// Whether another spare can be added: there are fewer than [`MAX_SPARES`], or one is
    /// unreachable.
    pub(crate) fn has_room(&self) -> bool {
        let list = self.list.borrow();
        list.len() < MAX_SPARES || list.iter().any(|spare| spare.device.is_none())
    }

    /// Adds a spare, which replaces an unreachable one if there are [`MAX_SPARES`].
    pub(crate) fn add(&self, spare: Spare) {
        let mut list = self.list.borrow_mut();
        if list.len() >= MAX_SPARES
            && let Some(missing) = list.iter().position(|spare| spare.device.is_none())
        {
            list.remove(missing);
        }
        list.push(spare);
    }

    /// Attaches the device of a spare. `None` if there is no such spare, false if it has a device.
    pub(crate) fn attach(&self, uuid: Uuid, device: &Arc<dyn BlockDevice>) -> Option<bool> {
        let mut list = self.list.borrow_mut();
        let spare = list.iter_mut().find(|spare| spare.uuid == uuid)?;
        let is_new = spare.device.is_none();
        spare.device.get_or_insert_with(|| Arc::clone(device));
        Some(is_new)
    }

    /// A spare has become a member, or leaves the array.
    pub(crate) fn remove(&self, uuid: Uuid) {
        self.list.borrow_mut().retain(|spare| spare.uuid != uuid);
    }

    /// Whether the failure of a spare is to be logged: true once.
    fn is_first_failure_of(&self, uuid: Uuid) -> bool {
        self.reported.borrow_mut().insert(uuid)
    }
}

impl Core {
    /// The I/O of a device while it is prepared.
    pub(crate) fn joining_io(&self, device: &str, io: &Rc<dyn BlockIo>) -> Rc<dyn BlockIo> {
        self.joining.io(device, io, self.options.member_timeout)
    }

    /// Lets spares replace members that have failed, or are offline for longer than `spare_grace`.
    pub(crate) async fn replace_with_spares(self: &Rc<Self>) {
        for member in &self.members {
            let is_due = match member.condition() {
                Condition::Failed => true,
                Condition::Offline => {
                    let since = member.state.missing_since();
                    since.is_some_and(|since| now() - since >= self.options.spare_grace)
                }
                _ => false,
            };
            if is_due {
                self.replace_with_spare(member.index).await;
            }
        }
    }

    /// Lets the first usable spare replace a member; the other spares stay.
    async fn replace_with_spare(self: &Rc<Self>, index: usize) {
        for spare in self.spares.list().iter().rev() {
            let Some(device) = &spare.device else { continue };
            let name = device.info().name;
            if self.joining.is_left(&name) {
                continue;
            }
            let opened = timeout(self.options.member_timeout, device.open()).await;
            let result = match opened.unwrap_or_else(|_| Err(IoError::Unreachable("it does not open".into())))
            {
                Ok(io) => self.replace_member(index, spare.uuid, Arc::clone(device), io, true).await,
                Err(e) => Err(e),
            };
            match result {
                Ok(()) => {
                    tracing::warn!("array {}: spare {name} takes place {index}", self.name);
                    return;
                }
                // The spare is tried again at each pass; the error is logged once.
                Err(e) if self.spares.is_first_failure_of(spare.uuid) => {
                    tracing::warn!("array {}: spare {name} cannot be used: {e}", self.name);
                }
                Err(_) => {}
            }
        }
    }

    /// Lets a device replace a member, and starts its rebuild. The previous device leaves the
    /// array.
    pub(crate) async fn replace_member(
        self: &Rc<Self>,
        index: usize,
        uuid: Uuid,
        device: Arc<dyn BlockDevice>,
        io: Rc<dyn BlockIo>,
        is_spare: bool,
    ) -> IoResult<()> {
        let info = device.info();
        if info.size < self.geometry().end() {
            return Err(IoError::OutOfRange { offset: 0, len: self.geometry().end(), size: info.size });
        }
        // Clear bitmap and journal of an earlier use, and a superblock of another array, which might
        // have a higher generation. A spare of this array keeps its superblock until it is a member.
        // A device that cannot be written fails here, while the previous device is still in use. The
        // heartbeat block is empty at no time: a host that has lost the array, and has this device,
        // would write its own.
        let joining = self.joining_io(&info.name, &io);
        if let Some(reservations) = io.reservations().filter(|_| is_spare)
            && !self.reserve_joining(uuid, &reservations).await?
        {
            return Err(IoError::Reserved);
        }
        if !is_spare {
            zero(&joining, SUPER_AT[0], HEARTBEAT_AT).await?;
        }
        self.write_first_heartbeat(&joining).await?;
        allocate(&joining, HEARTBEAT_AT + BLOCK, self.geometry().sums_at()).await?;
        // Checksums of rows that a section has only room for are zeroes, for the array to grow there.
        for section in self.geometry().sections().skip(1) {
            zero(&joining, section.sums_at, section.sums_at + section.sums_len).await?;
        }
        joining.flush().await?;
        let _alone = self.spares.replacing.exclusive(index as u64).await;
        let member = &self.members[index];
        if is_spare && member.is_usable() {
            return Err(IoError::Aborted);
        }
        // Again, since all of that may have taken long: a member whose heartbeat is older than the
        // superblocks that record it cannot be told from one that was rolled back.
        let first = self.write_first_heartbeat(&joining).await?;
        if !member.is_missing() {
            // Other members may have been lost meanwhile.
            let still = || !self.members.cannot_lose(index);
            self.lose_if(index, Condition::Failed, "it is replaced", still).await?;
            if member.is_active() {
                return Err(IoError::Offline(self.why_needed(index)));
            }
        }
        if member.name().as_deref() != Some(&*info.name) {
            member.detach_operations();
        }
        let is_same = member
            .info()
            .is_some_and(|old| old.name == info.name || (old.uuid.is_some() && old.uuid == info.uuid));
        let (_, left) = (member.take(), member.uuid());
        self.sums.forget(index);
        self.publish_with(|| {
            member.put(device, io);
            // The heartbeat is of this session, so no other one uses the device.
            member.reach.looked(Stamp::now());
            member.beats.restart();
            member.state.replace(uuid);
            member.confirmed.forget(first);
            self.spares.remove(uuid);
            member.counts.set(crate::MemberCounts::default());
            self.enter(
                index,
                Condition::Rebuilding { done: 0, partial: false },
                "it is new, and under rebuild",
            );
        })
        .await?;
        self.give_back(left, is_same);
        self.intent.write_all(self).await
    }
}
