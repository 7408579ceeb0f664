//! What a member has confirmed to hold in its superblock and heartbeat blocks.
//!
//! Invariants:
//! - `generation` rises with each superblock that the member confirms: superblocks are written one
//!   generation at a time;
//! - `slot` is the slot of the newest intact superblock, which no write replaces;
//! - `beat` and `elapsed` rise within a session.

use std::cell::Cell;
use std::time::Duration;

#[derive(Default)]
pub(crate) struct ConfirmedBlocks {
    /// The newest generation whose superblock it has confirmed; zero if unknown.
    generation: Cell<u64>,
    slot: Cell<usize>,
    /// The last heartbeat of this session that it has confirmed; zero if none.
    beat: Cell<u64>,
    /// Session time of that heartbeat.
    elapsed: Cell<Duration>,
}

impl ConfirmedBlocks {
    /// The newest generation whose superblock it has confirmed; zero if unknown.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// The slot, 0 or 1, of its newest intact superblock.
    pub(crate) fn slot(&self) -> usize {
        self.slot.get()
    }

    /// The slot for the next superblock.
    pub(crate) fn free_slot(&self) -> usize {
        1 - self.slot.get()
    }

    /// Counter of the last heartbeat of this session that it has confirmed; zero if none.
    pub(crate) fn beat(&self) -> u64 {
        self.beat.get()
    }

    /// Session time of that heartbeat.
    pub(crate) fn elapsed(&self) -> Duration {
        self.elapsed.get()
    }

    /// Sets the generation found on its device, or in the superblock of another member.
    pub(crate) fn found(&self, generation: u64) {
        self.generation.set(generation);
    }

    /// The member has confirmed the superblock of a generation of this session.
    pub(crate) fn confirm(&self, generation: u64) {
        let before = self.generation.replace(generation);
        assert!(before < generation, "generation {generation} is written after generation {before}");
    }

    /// Sets the slot of its newest intact superblock.
    pub(crate) fn set_slot(&self, slot: usize) {
        assert!(slot < 2, "a member has two slots for superblocks, and no slot {slot}");
        self.slot.set(slot);
    }

    /// The member has confirmed a heartbeat with this counter and session time.
    pub(crate) fn confirm_beat(&self, counter: u64, elapsed: Duration) {
        self.beat.set(counter.max(self.beat.get()));
        self.elapsed.set(elapsed.max(self.elapsed.get()));
    }

    /// The member has joined or returned: this session's first heartbeat on it has this session
    /// time.
    pub(crate) fn restart_beats(&self, elapsed: Duration) {
        self.beat.set(0);
        self.elapsed.set(elapsed);
    }

    /// Another device has become the member: it has confirmed nothing but this session's first
    /// heartbeat on it, which has this session time.
    pub(crate) fn forget(&self, elapsed: Duration) {
        self.generation.set(0);
        self.restart_beats(elapsed);
    }
}
