use super::*;
use crate::conditions::Queue;
use std::time::Duration;

const MS: u64 = 1_000_000;

struct TestPipe {
    flow: Flow,
    arena: Arena,
}

impl TestPipe {
    fn new(way: DirectionConditions) -> TestPipe {
        TestPipe { flow: Flow::new(way, 1), arena: Arena::new(1 << 24) }
    }

    /// A packet of 1000 bytes on the wire, with a number in it.
    fn put(&mut self, now: u64, number: u8) {
        let len = packet::VNET + 1000;
        let space = &mut self.arena.space().expect("space")[..len];
        space.fill(0);
        space[len - 1] = number;
        self.flow.arrive(&mut self.arena, now, len);
    }

    /// The bytes that have arrived by `now`.
    fn get(&mut self, now: u64) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(packet) = self.flow.take(now) {
            all.extend(self.arena.bytes(packet.stored).last());
            self.flow.delivered(&packet, now);
            self.arena.free(packet.stored);
        }
        all
    }
}

fn slow() -> DirectionConditions {
    let delay = Duration::from_millis(10);
    DirectionConditions {
        delay,
        rate: Some(8_000_000),
        queue: Queue::Bytes(100_000),
        ..DirectionConditions::default()
    }
}

#[test]
fn packets_arrive_when_they_are_due_and_not_before() {
    let mut pipe = TestPipe::new(slow());
    (0..5).for_each(|i| pipe.put(0, i));
    assert_eq!(pipe.flow.next_due(), Some(11 * MS));
    assert!(pipe.get(11 * MS - 1).is_empty());
    assert_eq!(pipe.get(12 * MS), [0, 1]);
    assert_eq!(pipe.get(20 * MS), [2, 3, 4]);
    assert_eq!(pipe.flow.next_due(), None);
    let counts = pipe.flow.statistics();
    assert_eq!((counts.packets_out, counts.bytes_out), (5, 5000));
    assert!(counts.lateness.max >= Duration::from_millis(6), "the third was due at 13 ms");
    pipe.flow.reset();
    assert_eq!(pipe.flow.statistics(), DirectionStatistics::default());
}

#[test]
fn a_cut_drops_the_packets_in_flight() {
    let mut pipe = TestPipe::new(slow());
    (0..5).for_each(|i| pipe.put(0, i));
    assert_eq!(pipe.get(12 * MS), [0, 1]);
    pipe.flow.change(&mut pipe.arena, 12 * MS, DirectionConditions { cut: true, ..slow() });
    assert_eq!(pipe.flow.next_due(), None);
    pipe.put(13 * MS, 5);
    pipe.flow.change(&mut pipe.arena, 14 * MS, slow());
    pipe.put(14 * MS, 6);
    assert_eq!(pipe.get(100 * MS), [6]);
    assert_eq!(pipe.flow.statistics().dropped_cut, 4);
}

#[test]
fn a_new_rate_applies_to_queued_packets_and_not_to_those_in_flight() {
    let mut pipe = TestPipe::new(slow());
    (0..9).for_each(|i| pipe.put(0, i));
    // Four are on their way at 4 ms; the others leave within half of the rest.
    pipe.flow.change(&mut pipe.arena, 4 * MS, DirectionConditions { rate: Some(16_000_000), ..slow() });
    assert_eq!(pipe.get(14 * MS), [0, 1, 2, 3]);
    assert_eq!(pipe.get(15 * MS), [4, 5]);
    pipe.put(15 * MS, 9);
    assert_eq!(pipe.get(100 * MS), [6, 7, 8, 9]);
}

#[test]
fn packets_keep_their_order_however_the_delay_changes() {
    let mut pipe = TestPipe::new(DirectionConditions { rate: None, ..slow() });
    let mut seen = Vec::new();
    for i in 0..100u8 {
        let delay = Duration::from_millis(u64::from(i) * 37 % 11);
        pipe.flow.change(
            &mut pipe.arena,
            u64::from(i) * MS,
            DirectionConditions { delay, rate: None, ..slow() },
        );
        pipe.put(u64::from(i) * MS, i);
        seen.extend(pipe.get(u64::from(i) * MS));
    }
    seen.extend(pipe.get(1000 * MS));
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
}

#[test]
fn held_packets_and_duplicates_arrive_behind_later_ones() {
    let by = Duration::from_millis(5);
    let mut pipe = TestPipe::new(DirectionConditions { reorder: 1.0, reorder_by: by, rate: None, ..slow() });
    pipe.put(0, 1);
    pipe.flow.change(
        &mut pipe.arena,
        0,
        DirectionConditions { duplicate: 1.0, duplicate_after: by, rate: None, ..slow() },
    );
    pipe.put(2 * MS, 2);
    assert_eq!(pipe.get(12 * MS), [2]);
    assert_eq!(pipe.get(15 * MS), [1]);
    assert_eq!(pipe.get(100 * MS), [2]);
}

#[test]
fn without_memory_packets_are_dropped_and_counted() {
    let mut pipe = TestPipe::new(DirectionConditions { rate: None, ..slow() });
    pipe.arena = Arena::new(0);
    let mut sent = 0u64;
    while pipe.arena.space().is_some() {
        pipe.put(0, 0);
        sent += 1;
    }
    pipe.flow.refuse(&vec![0; packet::VNET + 1000]);
    let counts = pipe.flow.statistics();
    assert_eq!((counts.packets_in, counts.dropped_memory), (sent + 1, 1));
    assert_eq!(pipe.get(100 * MS).len() as u64, sent);
    assert!(pipe.arena.space().is_some());
}
