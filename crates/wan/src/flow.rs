//! Packets under way in one direction: the model's verdicts carried out.
//!
//! Invariants:
//! - `queue` is in the order of both departure and arrival;
//! - what is held back, and duplicates, are in `held`, sorted by arrival, so
//!   that nothing else waits for them;
//! - each packet in either of them owns its place in the arena.

#[cfg(test)]
mod tests;

use crate::arena::{Arena, Place};
use crate::conditions::Way;
use crate::model::{Lane, Piece};
use crate::packet::{self, Shape};
use crate::statistics::{LateMeter, WayStatistics};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// A packet under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parcel {
    /// Where its bytes are.
    pub(crate) place: Place,
    departs: u64,
    /// When it arrives.
    pub(crate) due: u64,
    /// IP bytes on the wire.
    wire: u64,
    /// Packets on the wire.
    count: u32,
}

/// A parcel outside the queue; earlier ones first, then those that came first.
struct Held(Reverse<(u64, u64)>, Parcel);

impl PartialEq for Held {
    fn eq(&self, other: &Held) -> bool {
        self.0 == other.0
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Held) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Held) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

pub(crate) struct Flow {
    lane: Lane,
    queue: VecDeque<Parcel>,
    held: BinaryHeap<Held>,
    held_so_far: u64,
    pieces: Vec<Piece>,
    /// A packet that is being cut.
    whole: Vec<u8>,
    late: LateMeter,
}

impl Flow {
    pub(crate) fn new(way: Way, seed: u64) -> Flow {
        Flow {
            lane: Lane::new(way, seed),
            queue: VecDeque::new(),
            held: BinaryHeap::new(),
            held_so_far: 0,
            pieces: Vec::new(),
            whole: Vec::with_capacity(packet::MAX),
            late: LateMeter::new(),
        }
    }

    /// A packet came: the first `len` bytes of the arena's space.
    pub(crate) fn arrive(&mut self, arena: &mut Arena, now: u64, len: usize) {
        let Some(space) = arena.space() else { return };
        let packet = &space[..len];
        let shape = Shape::of(packet);
        let mut pieces = std::mem::take(&mut self.pieces);
        self.lane.offer(now, &shape, &mut pieces);
        match pieces.as_slice() {
            [] => {}
            [piece] if (piece.from, piece.to) == (0, shape.count) => {
                if let Some(place) = arena.keep(len) {
                    self.push(piece, place);
                }
            }
            several => {
                self.whole.clear();
                self.whole.extend_from_slice(packet);
                for piece in several {
                    self.push_part(arena, &shape, piece);
                }
            }
        }
        self.pieces = pieces;
    }

    fn push_part(&mut self, arena: &mut Arena, shape: &Shape, piece: &Piece) {
        let place = arena.space().map(|space| shape.cut(&self.whole, piece.from, piece.to, space));
        let place = place.and_then(|()| arena.keep(shape.cut_len(piece.from, piece.to)));
        match place {
            Some(place) => self.push(piece, place),
            None => self.lane.counts.dropped_memory += u64::from(piece.to - piece.from),
        }
    }

    fn push(&mut self, piece: &Piece, place: Place) {
        let &Piece { from, to, wire, departs, due, held } = piece;
        let parcel = Parcel { place, departs, due, wire, count: to - from };
        if held {
            self.held.push(Held(Reverse((due, self.held_so_far)), parcel));
            self.held_so_far += 1;
        } else {
            self.queue.push_back(parcel);
        }
    }

    /// A packet came for which there was no memory.
    pub(crate) fn refuse(&mut self, packet: &[u8]) {
        let count = u64::from(Shape::of(packet).count);
        self.lane.counts.packets_in += count;
        self.lane.counts.dropped_memory += count;
    }

    /// When the next packet arrives.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let queued = self.queue.front().map(|p| p.due);
        let held = self.held.peek().map(|h| h.1.due);
        [queued, held].into_iter().flatten().min()
    }

    /// Takes a packet that has arrived; its place is the caller's to free.
    pub(crate) fn take(&mut self, now: u64) -> Option<Parcel> {
        let queued = self.queue.front().map_or(u64::MAX, |p| p.due);
        if self.held.peek().is_some_and(|h| h.1.due < queued && h.1.due <= now) {
            return self.held.pop().map(|h| h.1);
        }
        if queued <= now { self.queue.pop_front() } else { None }
    }

    /// A packet that was taken is handed over.
    pub(crate) fn delivered(&mut self, parcel: &Parcel, now: u64) {
        self.lane.counts.packets_out += u64::from(parcel.count);
        self.lane.counts.bytes_out += parcel.wire;
        self.late.record(now.saturating_sub(parcel.due));
    }

    /// A packet that was taken could not be handed over.
    pub(crate) fn failed(&mut self, parcel: &Parcel) {
        self.lane.counts.errors += u64::from(parcel.count);
    }

    /// Other conditions from `now` on.
    pub(crate) fn change(&mut self, arena: &mut Arena, now: u64, way: Way) {
        let rescale = self.lane.change(now, way);
        if self.lane.is_cut() {
            let held = std::mem::take(&mut self.held).into_iter().map(|h| h.1);
            for parcel in self.queue.drain(..).chain(held) {
                self.lane.counts.dropped_cut += u64::from(parcel.count);
                arena.free(parcel.place);
            }
        }
        let mut last = 0;
        for parcel in &mut self.queue {
            let departs = rescale.time(parcel.departs);
            last = (parcel.due - parcel.departs + departs).max(last);
            (parcel.departs, parcel.due) = (departs, last);
        }
        self.lane.follow(last);
    }

    /// Counters so far, without those of the device.
    pub(crate) fn statistics(&self) -> WayStatistics {
        WayStatistics { lateness: self.late.lateness(), ..self.lane.counts }
    }

    /// Counts from nothing again.
    pub(crate) fn reset(&mut self) {
        self.lane.counts = WayStatistics::default();
        self.late.clear();
    }
}
