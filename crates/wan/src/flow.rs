//! Packets in flight in one direction, as the model decides.
//!
//! Invariants:
//! - `queue` is in the order of both departure and arrival;
//! - packets that are held back, and duplicates, are in `held`, sorted by arrival, so
//!   that no other packet waits for them;
//! - each packet in either of them owns its memory in the arena.

#[cfg(test)]
mod tests;

use crate::arena::{Arena, StoredPacket};
use crate::conditions::DirectionConditions;
use crate::model::{LinkModel, PacketRun};
use crate::packet::{self, Shape};
use crate::statistics::{DirectionStatistics, LateMeter};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// A packet in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedPacket {
    /// Its bytes in the arena.
    pub(crate) stored: StoredPacket,
    departs: u64,
    /// Time of its arrival, in ns.
    pub(crate) due: u64,
    /// IP bytes on the wire.
    wire: u64,
    /// Packets on the wire.
    count: u32,
}

/// A packet outside the queue, ordered by arrival, then by admission.
struct HeldPacket(Reverse<(u64, u64)>, QueuedPacket);

impl PartialEq for HeldPacket {
    fn eq(&self, other: &HeldPacket) -> bool {
        self.0 == other.0
    }
}

impl Eq for HeldPacket {}

impl PartialOrd for HeldPacket {
    fn partial_cmp(&self, other: &HeldPacket) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for HeldPacket {
    fn cmp(&self, other: &HeldPacket) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

pub(crate) struct Flow {
    model: LinkModel,
    queue: VecDeque<QueuedPacket>,
    held: BinaryHeap<HeldPacket>,
    held_so_far: u64,
    runs: Vec<PacketRun>,
    /// A packet that is being segmented.
    whole: Vec<u8>,
    late: LateMeter,
}

impl Flow {
    pub(crate) fn new(way: DirectionConditions, seed: u64) -> Flow {
        Flow {
            model: LinkModel::new(way, seed),
            queue: VecDeque::new(),
            held: BinaryHeap::new(),
            held_so_far: 0,
            runs: Vec::new(),
            whole: Vec::with_capacity(packet::MAX),
            late: LateMeter::new(),
        }
    }

    /// Admits a packet: the first `len` bytes of the arena's space.
    pub(crate) fn arrive(&mut self, arena: &mut Arena, now: u64, len: usize) {
        let Some(space) = arena.space() else { return };
        let packet = &space[..len];
        let shape = Shape::of(packet);
        let mut runs = std::mem::take(&mut self.runs);
        self.model.offer(now, &shape, &mut runs);
        match runs.as_slice() {
            [] => {}
            [run] if (run.from, run.to) == (0, shape.count) => {
                if let Some(stored) = arena.keep(len) {
                    self.push(run, stored);
                }
            }
            several => {
                self.whole.clear();
                self.whole.extend_from_slice(packet);
                for run in several {
                    self.push_part(arena, &shape, run);
                }
            }
        }
        self.runs = runs;
    }

    fn push_part(&mut self, arena: &mut Arena, shape: &Shape, run: &PacketRun) {
        let stored = arena.space().map(|space| shape.cut(&self.whole, run.from, run.to, space));
        let stored = stored.and_then(|()| arena.keep(shape.cut_len(run.from, run.to)));
        match stored {
            Some(stored) => self.push(run, stored),
            None => self.model.counts.dropped_memory += u64::from(run.to - run.from),
        }
    }

    fn push(&mut self, run: &PacketRun, stored: StoredPacket) {
        let &PacketRun { from, to, wire, departs, due, held } = run;
        let packet = QueuedPacket { stored, departs, due, wire, count: to - from };
        if held {
            self.held.push(HeldPacket(Reverse((due, self.held_so_far)), packet));
            self.held_so_far += 1;
        } else {
            self.queue.push_back(packet);
        }
    }

    /// Counts a packet for which there was no memory.
    pub(crate) fn refuse(&mut self, packet: &[u8]) {
        let count = u64::from(Shape::of(packet).count);
        self.model.counts.packets_in += count;
        self.model.counts.dropped_memory += count;
    }

    /// Time at which the next packet arrives, in ns.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let queued = self.queue.front().map(|p| p.due);
        let held = self.held.peek().map(|h| h.1.due);
        [queued, held].into_iter().flatten().min()
    }

    /// Takes a packet that has arrived; the caller frees its memory.
    pub(crate) fn take(&mut self, now: u64) -> Option<QueuedPacket> {
        let queued = self.queue.front().map_or(u64::MAX, |p| p.due);
        if self.held.peek().is_some_and(|h| h.1.due < queued && h.1.due <= now) {
            return self.held.pop().map(|h| h.1);
        }
        if queued <= now { self.queue.pop_front() } else { None }
    }

    /// Counts a packet that was delivered.
    pub(crate) fn delivered(&mut self, packet: &QueuedPacket, now: u64) {
        self.model.counts.packets_out += u64::from(packet.count);
        self.model.counts.bytes_out += packet.wire;
        self.late.record(now.saturating_sub(packet.due));
    }

    /// A packet that was taken could not be handed over.
    pub(crate) fn failed(&mut self, packet: &QueuedPacket) {
        self.model.counts.errors += u64::from(packet.count);
    }

    /// Other conditions from `now` on.
    pub(crate) fn change(&mut self, arena: &mut Arena, now: u64, way: DirectionConditions) {
        let rescale = self.model.change(now, way);
        if self.model.is_cut() {
            let held = std::mem::take(&mut self.held).into_iter().map(|h| h.1);
            for packet in self.queue.drain(..).chain(held) {
                self.model.counts.dropped_cut += u64::from(packet.count);
                arena.free(packet.stored);
            }
        }
        let mut last = 0;
        for packet in &mut self.queue {
            let departs = rescale.time(packet.departs);
            last = (packet.due - packet.departs + departs).max(last);
            (packet.departs, packet.due) = (departs, last);
        }
        self.model.follow(last);
    }

    /// Counters so far, without those of the device.
    pub(crate) fn statistics(&self) -> DirectionStatistics {
        DirectionStatistics { lateness: self.late.lateness(), ..self.model.counts }
    }

    /// Counts from nothing again.
    pub(crate) fn reset(&mut self) {
        self.model.counts = DirectionStatistics::default();
        self.late.clear();
    }
}
