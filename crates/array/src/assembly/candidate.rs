//! Candidates: devices, opened, with what their array regions hold.

use crate::error::ArrayError;
use crate::format::geometry::{BLOCK, HEARTBEAT_AT, SUPER_AT};
use crate::format::heartbeat::Heartbeat;
use crate::format::superblock::{Superblock, SuperblockCopies, Unknown};
use futures_util::future::join_all;
use longhaul_block::{BlockDevice, BlockIo, IoError, IoResult, signature};
use longhaul_engine::BufMut;
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

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

/// A superblock as it was examined, to see whether it has changed since.
pub(crate) struct Examined {
    io: Rc<dyn BlockIo>,
    superblock: Superblock,
}

impl Examined {
    /// Whether the device has another superblock now; one that cannot be read has not changed.
    pub(crate) async fn has_changed(&self) -> bool {
        let read = |at| self.io.read(at, BufMut::zeroed(BLOCK as usize));
        let (a, b) = futures_util::join!(read(SUPER_AT[0]), read(SUPER_AT[1]));
        let copy = |read: IoResult<BufMut>| read.map(|buf| buf.to_vec()).unwrap_or_default();
        let mark = |of: &Superblock| (of.array, of.member, of.generation, of.history.last());
        let now = SuperblockCopies::of([&copy(a), &copy(b)]).newest;
        now.is_some_and(|now| mark(&now) != mark(&self.superblock))
    }
}

impl Candidate {
    /// What was examined of it.
    pub(crate) fn examined(&self) -> Option<Examined> {
        Some(Examined { io: Rc::clone(&self.io), superblock: self.superblock.clone()? })
    }

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

/// Refuses a device that no array can use: read-only, or with blocks larger than [`BLOCK`].
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
