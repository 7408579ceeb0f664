//! What is known of the free bytes of a file system that is reached by calls. While there are many, nothing waits for
//! what is written behind.

use super::MountedFs;
use crate::guard::lock;
use longhaul_fs::{Call, Reply, Statistics};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Room is short below this many free bytes, or a sixteenth of the file system: more than what a session
/// has written and not made durable.
const RESERVE: u64 = 256 << 20;
const RESERVED_SHARE: u64 = 16;
/// How long, and for how many bytes of new content, a number of free bytes is used.
const ROOM_AGE: Duration = Duration::from_secs(1);
const ROOM_BYTES: u64 = 64 << 20;

#[derive(Clone, Copy)]
pub(super) struct Room {
    seen: Instant,
    free: u64,
    reserve: u64,
    /// Bytes that were written since.
    written: u64,
}

impl Room {
    fn of(found: Result<Reply, Errno>) -> Option<Room> {
        let Ok(Reply::Statistics(Statistics { block_size, blocks, available, .. })) = found else {
            return None;
        };
        let bytes = |blocks: u64| blocks.saturating_mul(block_size.into());
        let reserve = RESERVE.max(bytes(blocks) / RESERVED_SHARE);
        Some(Room { seen: Instant::now(), free: bytes(available), reserve, written: 0 })
    }

    /// Whether less than one `part` of the time and of the bytes is over for which the number is used.
    fn is_within(&self, part: u32) -> bool {
        self.seen.elapsed() < ROOM_AGE / part && self.written < ROOM_BYTES / u64::from(part)
    }
}

impl MountedFs {
    /// Bytes of new content were written.
    pub(super) fn wrote(&self, bytes: u64) {
        if let Some(room) = &mut *lock(&self.0.room) {
            room.written += bytes;
        }
        self.look_for_room();
    }

    /// Asks for the free bytes if they are not known, or soon will not be any more: they are known when a file ends.
    pub(super) fn look_for_room(&self) {
        let known = *lock(&self.0.room);
        if known.is_some_and(|room| room.is_within(2)) || self.0.asks_for_room.swap(true, Relaxed) {
            return;
        }
        let mounted = Arc::downgrade(&self.0);
        let note = move |found| {
            let Some(mounted) = mounted.upgrade() else { return };
            if let Some(room) = Room::of(found) {
                *lock(&mounted.room) = Some(room);
            }
            mounted.asks_for_room.store(false, Relaxed);
        };
        self.0.files.start(Call::Statistics, Box::new(note));
    }

    /// Whether there may be no room for what is written behind.
    pub(super) fn is_short(&self) -> bool {
        let known = *lock(&self.0.room);
        let room = match known.filter(|room| room.is_within(1)) {
            Some(room) => room,
            None => match Room::of(self.wait(Call::Statistics)) {
                Some(room) => {
                    *lock(&self.0.room) = Some(room);
                    room
                }
                // It is not known.
                None => return true,
            },
        };
        room.free.saturating_sub(room.written) < room.reserve
    }
}
