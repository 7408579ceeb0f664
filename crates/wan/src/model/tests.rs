use super::*;
use crate::conditions::Queue;
use std::time::Duration;

const MS: u64 = 1_000_000;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// 8 Mb/s: a byte a microsecond.
fn slow() -> DirectionConditions {
    DirectionConditions {
        delay: ms(10),
        rate: Some(8_000_000),
        queue: Queue::Bytes(10_000),
        ..DirectionConditions::default()
    }
}

/// What becomes of `count` single packets of `len` bytes each, one every `gap`.
fn row(model: &mut LinkModel, count: u64, len: usize, gap: u64) -> Vec<PacketRun> {
    let (mut all, mut out) = (Vec::new(), Vec::new());
    for i in 0..count {
        model.offer(i * gap, &Shape::single(len), &mut out);
        all.append(&mut out);
    }
    all
}

/// `count` packets of 1000 bytes in one.
fn large(count: u32) -> Shape {
    let mut packet = vec![0; packet_len(count)];
    packet[0] = 1;
    packet[1] = 1;
    packet[4..6].copy_from_slice(&960u16.to_ne_bytes());
    packet[6..8].copy_from_slice(&20u16.to_ne_bytes());
    packet[10] = 0x45;
    packet[10 + 20 + 12] = 0x50;
    let shape = Shape::of(&packet);
    assert_eq!((shape.count, shape.unit(), shape.wire(0, count)), (count, 1000, u64::from(count) * 1000));
    shape
}

fn packet_len(count: u32) -> usize {
    10 + 40 + 960 * count as usize
}

#[test]
fn the_wire_carries_one_packet_after_the_other() {
    let mut model = LinkModel::new(slow(), 1);
    let times: Vec<_> = row(&mut model, 3, 1000, 0).iter().map(|p| (p.departs, p.due)).collect();
    assert_eq!(times, [(MS, 11 * MS), (2 * MS, 12 * MS), (3 * MS, 13 * MS)]);
    let mut out = Vec::new();
    model.offer(50 * MS, &Shape::single(500), &mut out);
    assert_eq!(out[0].due, 50 * MS + MS / 2 + 10 * MS, "the wire was idle by then");
}

#[test]
fn no_fraction_of_a_byte_is_lost_at_odd_rates() {
    let rate = 999_999_937;
    let way = DirectionConditions {
        rate: Some(rate),
        queue: Queue::Bytes(u64::MAX),
        ..DirectionConditions::default()
    };
    let mut model = LinkModel::new(way, 1);
    let last = *row(&mut model, 100_000, 1500, 0).last().unwrap();
    let exact = 100_000u128 * 1500 * 8 * 1_000_000_000 / u128::from(rate);
    assert_eq!(u128::from(last.departs), exact);
}

#[test]
fn the_queue_drops_at_its_tail() {
    let mut model = LinkModel::new(slow(), 1);
    assert_eq!(row(&mut model, 15, 1000, 0).len(), 10);
    assert_eq!((model.counts.dropped_queue, model.counts.queue_max), (5, 10_000));
    // Of a large packet as many of its own as have room, the first ones.
    let mut out = Vec::new();
    model.offer(4 * MS, &large(7), &mut out);
    assert_eq!((out[0].from, out.last().unwrap().to), (0, 4));
    assert_eq!(out.last().unwrap().departs, 14 * MS);
    assert_eq!(model.counts.dropped_queue, 8);
    // However small it is, an idle wire takes a packet.
    let mut model = LinkModel::new(DirectionConditions { queue: Queue::Bytes(0), ..slow() }, 1);
    assert_eq!(row(&mut model, 10, 1000, MS / 2).len(), 5);
}

#[test]
fn large_packets_leave_in_bursts_of_bounded_length() {
    let mut model = LinkModel::new(DirectionConditions { rate: Some(80_000_000), ..slow() }, 1);
    let mut out = Vec::new();
    model.offer(0, &large(10), &mut out);
    // 100 µs each: six of them fit in 600.
    let runs: Vec<_> = out.iter().map(|p| (p.from, p.to, p.departs)).collect();
    assert_eq!(runs, [(0, 6, 600_000), (6, 10, MS)]);
    let mut model = LinkModel::new(DirectionConditions { rate: Some(1_000_000_000), ..slow() }, 1);
    model.offer(0, &large(10), &mut out);
    assert_eq!(out.len(), 1, "no need to cut");
}

#[test]
fn loss_has_its_share_in_small_and_large_packets() {
    for share in [0.001, 0.01, 0.3, 1.0] {
        let mut model =
            LinkModel::new(DirectionConditions { loss: share, ..DirectionConditions::default() }, 7);
        let mut out = Vec::new();
        let mut survived = 0;
        for i in 0..20_000 {
            let shape = if i % 2 == 0 { large(9) } else { Shape::single(100) };
            model.offer(i, &shape, &mut out);
            survived += out.iter().map(|p| u64::from(p.to - p.from)).sum::<u64>();
            assert!(out.windows(2).all(|w| w[0].to < w[1].from), "{out:?}");
        }
        let (all, lost) = (100_000.0, model.counts.dropped_loss as f64);
        assert_eq!(survived + model.counts.dropped_loss, 100_000);
        // Six standard deviations: never by chance, given the seed.
        let bound = 6.0 * (all * share * (1.0 - share)).sqrt();
        assert!((lost - all * share).abs() <= bound, "{lost} lost at {share}");
    }
}

#[test]
fn a_black_hole_drops_packets_above_its_size_only() {
    let mut model =
        LinkModel::new(DirectionConditions { black_hole: Some(999), ..DirectionConditions::default() }, 1);
    assert_eq!(row(&mut model, 4, 999, 0).len(), 4);
    assert_eq!(row(&mut model, 4, 1000, 0).len(), 0);
    let mut out = Vec::new();
    model.offer(0, &large(9), &mut out);
    assert_eq!((out.len(), model.counts.dropped_black_hole), (0, 13));
    // Only the last one of a large packet is short enough.
    let mut bytes = vec![0; packet_len(8) + 100];
    bytes[0..2].fill(1);
    bytes[4..6].copy_from_slice(&960u16.to_ne_bytes());
    bytes[6..8].copy_from_slice(&20u16.to_ne_bytes());
    (bytes[10], bytes[42]) = (0x45, 0x50);
    model.offer(0, &Shape::of(&bytes), &mut out);
    assert_eq!((out.len(), out[0].from, out[0].to, out[0].wire), (1, 8, 9, 140));
    assert_eq!(model.counts.dropped_black_hole, 21);
}

#[test]
fn jitter_stays_in_bounds_and_keeps_the_order() {
    let mut model = LinkModel::new(
        DirectionConditions { jitter: ms(4), delay: ms(10), ..DirectionConditions::default() },
        3,
    );
    let runs = row(&mut model, 100_000, 100, MS / 50);
    assert!(runs.windows(2).all(|w| w[0].due <= w[1].due));
    let delays: Vec<_> = runs.iter().map(|p| p.due - p.departs).collect();
    let (low, high) = (*delays.iter().min().unwrap(), *delays.iter().max().unwrap());
    assert!((6 * MS..8 * MS).contains(&low) && (12 * MS..=14 * MS).contains(&high), "{low} to {high}");
    let mean = delays.iter().sum::<u64>() / delays.len() as u64;
    assert!((9 * MS..11 * MS).contains(&mean), "{mean}");
}

#[test]
fn held_packets_are_overtaken_without_delaying_others() {
    let way = DirectionConditions {
        reorder: 0.1,
        reorder_by: ms(5),
        delay: ms(10),
        ..DirectionConditions::default()
    };
    let mut model = LinkModel::new(way, 5);
    let runs = row(&mut model, 10_000, 100, MS);
    let held = runs.iter().filter(|p| p.held).count() as u64;
    assert_eq!(held, model.counts.reordered);
    assert!((800..1200).contains(&held), "{held}");
    assert!(runs.iter().all(|p| p.due - p.departs == if p.held { 15 * MS } else { 10 * MS }));
    // Within a large packet it is single ones that are held.
    let mut out = Vec::new();
    (0..1000).for_each(|_| {
        model.offer(0, &large(9), &mut out);
        assert_eq!(out.iter().map(|p| p.to - p.from).sum::<u32>(), 9);
        assert!(out.iter().filter(|p| p.held).all(|p| p.to - p.from == 1));
    });
}

#[test]
fn duplicates_come_again_later() {
    let way =
        DirectionConditions { duplicate: 0.5, duplicate_after: ms(300), ..DirectionConditions::default() };
    let mut model = LinkModel::new(way, 5);
    let runs = row(&mut model, 1000, 100, MS);
    let (again, first): (Vec<PacketRun>, Vec<PacketRun>) = runs.iter().copied().partition(|p| p.held);
    assert_eq!((first.len(), again.len() as u64), (1000, model.counts.duplicated));
    assert!((400..600).contains(&again.len()));
    assert!(again.iter().all(|p| p.due == p.departs + 300 * MS));
}

#[test]
fn a_new_rate_applies_to_queued_bytes() {
    let mut model = LinkModel::new(slow(), 1);
    row(&mut model, 10, 1000, 0);
    // At 4 ms six of them wait; ten times the rate takes a tenth of the time.
    let rescale = model.change(4 * MS, DirectionConditions { rate: Some(80_000_000), ..slow() });
    assert_eq!((rescale.time(3 * MS), rescale.time(5 * MS)), (3 * MS, 4 * MS + MS / 10));
    let mut out = Vec::new();
    model.offer(4 * MS, &Shape::single(1000), &mut out);
    assert_eq!(out[0].departs, 4 * MS + 7 * MS / 10);
    let rescale = model.change(4 * MS, DirectionConditions { rate: None, ..slow() });
    assert_eq!(rescale.time(1000 * MS), 4 * MS, "without a limit nothing waits");
}

#[test]
fn a_shorter_delay_does_not_reorder() {
    let mut model = LinkModel::new(slow(), 1);
    let before = row(&mut model, 1, 1000, 0);
    model.change(2 * MS, DirectionConditions { delay: ms(1), ..slow() });
    let mut out = Vec::new();
    model.follow(before[0].due);
    model.offer(2 * MS, &Shape::single(100), &mut out);
    assert_eq!(out[0].due, before[0].due);
}

#[test]
fn a_cut_link_drops_every_packet() {
    let mut model = LinkModel::new(slow(), 1);
    row(&mut model, 5, 1000, 0);
    model.change(0, DirectionConditions { cut: true, ..slow() });
    assert_eq!(row(&mut model, 5, 1000, 0).len(), 0);
    assert_eq!(model.counts.dropped_cut, 5);
    model.change(0, slow());
    assert_eq!(row(&mut model, 1, 1000, 0)[0].departs, MS, "the queue was lost with the rest");
}

#[test]
fn the_same_seed_gives_the_same_packets() {
    let way = DirectionConditions { loss: 0.2, reorder: 0.2, duplicate: 0.2, jitter: ms(3), ..slow() };
    let run = |seed| row(&mut LinkModel::new(way.clone(), seed), 500, 100, MS);
    assert_eq!(run(9), run(9));
    assert_ne!(run(9), run(10));
}
