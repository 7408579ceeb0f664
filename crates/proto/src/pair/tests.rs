//! Every data path, end to end.

use super::*;
use crate::host::SubmitError;
use crate::transport::Endpoint;
use longhaul_wire::command::Sqe;
use longhaul_wire::completion::Status;
use longhaul_wire::pdu::{CommonHeader, PduType, flags};
use zerocopy::FromBytes;

const MIB: usize = 1 << 20;

/// The common headers in a stream of PDUs that is complete.
fn pdus(mut stream: &[u8]) -> Vec<(PduType, CommonHeader)> {
    let mut out = Vec::new();
    while !stream.is_empty() {
        let (common, _) = CommonHeader::read_from_prefix(stream).expect("a header");
        out.push((PduType::from_code(common.pdu_type).expect("a type"), common));
        stream = &stream[common.plen.get() as usize..];
    }
    out
}

fn count(stream: &[u8], pdu_type: PduType) -> usize {
    pdus(stream).iter().filter(|p| p.0 == pdu_type).count()
}

fn write(pair: &mut Pair, lba: u32, data: &[u8]) -> u32 {
    pair.host.write(lba, data.to_vec()).expect("room");
    let trips = pair.run();
    let done = pair.host.done.pop().expect("completed");
    assert_eq!(done.cqe.status(), Status::SUCCESS);
    assert_eq!(&pair.target.device[lba as usize * BLOCK..][..data.len()], data);
    trips
}

fn read(pair: &mut Pair, lba: u32, len: usize) -> u32 {
    pair.host.read(lba, len).expect("room");
    let trips = pair.run();
    let done = pair.host.done.pop().expect("completed");
    assert_eq!((done.cqe.status(), done.received as usize), (Status::SUCCESS, len));
    assert_eq!(done.memory, &pair.target.device[lba as usize * BLOCK..][..len]);
    trips
}

#[test]
fn set_up_takes_one_round_trip() {
    let mut pair = Pair::new(PairConfig::default());
    assert_eq!(pair.run(), 1);
    assert!(pair.host.ready);
    assert_eq!(pair.host.queue.params(), pair.target.queue.params());
}

#[test]
fn an_in_capsule_write_of_a_mebibyte_is_one_round_trip_without_r2t() {
    let mut pair = Pair::connected(PairConfig::default());
    let data = Rng::new(7).bytes(MIB);
    assert_eq!(write(&mut pair, 0, &data), 1);
    assert_eq!(count(pair.sent_by_target(), PduType::R2T), 0);
    assert_eq!(count(pair.sent_by_host(), PduType::H2CData), 0);
}

#[test]
fn a_write_that_is_asked_for_is_two_round_trips() {
    let mut config = PairConfig::default();
    config.host.in_capsule = 0;
    let mut pair = Pair::connected(config);
    let data = Rng::new(7).bytes(MIB);
    assert_eq!(write(&mut pair, 0, &data), 2);
    assert_eq!(count(pair.sent_by_target(), PduType::R2T), 1);
}

#[test]
fn several_r2ts_overlap_their_round_trips() {
    let mut config = PairConfig::default();
    config.host.in_capsule = 0;
    config.target.r2t_bytes = 64 << 10;
    let data = Rng::new(7).bytes(8 * (64 << 10));
    for (maxr2t, trips) in [(1, 9), (2, 5), (4, 3), (100, 3)] {
        config.host.maxr2t = maxr2t;
        let mut pair = Pair::connected(config);
        assert_eq!(write(&mut pair, 8, &data), trips, "MAXR2T {maxr2t}");
        assert_eq!(count(pair.sent_by_target(), PduType::R2T), 8);
    }
}

#[test]
fn h2c_data_is_split_at_maxh2cdata() {
    let mut config = PairConfig::default();
    config.host.in_capsule = 0;
    config.target.maxh2cdata = 4096;
    let mut pair = Pair::connected(config);
    write(&mut pair, 0, &Rng::new(3).bytes(40960));
    let data: Vec<_> = pdus(pair.sent_by_host()).into_iter().filter(|p| p.0 == PduType::H2CData).collect();
    let last: Vec<_> = data.iter().map(|p| p.1.flags & flags::LAST_PDU != 0).collect();
    assert_eq!(last, [vec![false; 9], vec![true]].concat());
}

//= test: NVMe-TCP 1.1, C2HData PDU
#[test]
fn reads_end_with_success_or_with_a_response() {
    for (success_flag, flow_control, responses) in
        [(true, false, 0), (true, true, 1), (false, false, 1), (false, true, 1)]
    {
        let mut config = PairConfig::default();
        config.target.success_flag = success_flag;
        config.limits.flow_control = flow_control;
        config.target.c2h_bytes = 100_000;
        let mut pair = Pair::connected(config);
        pair.target.device = Rng::new(9).bytes(MIB);
        assert_eq!(read(&mut pair, 0, MIB), 1);
        assert_eq!(count(pair.sent_by_target(), PduType::CapsuleResp), responses);
        assert_eq!(count(pair.sent_by_target(), PduType::C2HData), MIB.div_ceil(100_000));
    }
}

/// Digests, alignments and ways to cut up the streams, each with each.
#[test]
fn every_path_with_every_format() {
    let mut seed = 0;
    for digests in 0..4 {
        for (hpda, cpda) in [(0, 0), (1, 31), (31, 2), (17, 17)] {
            for segments in [Segments::Whole, Segments::Every(1), Segments::UpTo(100), Segments::UpTo(5000)] {
                seed += 1;
                let mut config = PairConfig { segments, seed, device: 64 << 10, ..PairConfig::default() };
                config.host.header_digest = digests & 1 != 0;
                config.host.data_digest = digests & 2 != 0;
                config.host.hpda = hpda;
                config.target.cpda = cpda;
                config.host.in_capsule = 4096;
                config.target.c2h_bytes = 5000;
                let mut pair = Pair::connected(config);
                let mut rng = Rng::new(seed);
                for len in [1, 512, 4096, 4097, 20_000] {
                    let data = rng.bytes(len);
                    assert_eq!(write(&mut pair, 2, &data), if len > 4096 { 2 } else { 1 });
                    read(&mut pair, 1, len);
                }
                pair.host.submit(Sqe::new(0), crate::host::HostData::None, Vec::new()).expect("room");
                assert_eq!(pair.run(), 1);
                assert_eq!((&pair.host.closed, &pair.target.closed), (&None, &None));
                assert_eq!((pair.host.queue.outstanding(), pair.target.queue.open_commands()), (0, 0));
            }
        }
    }
}

/// Many commands at a time, answered in any order, in pieces; the queue is
/// kept full, with flow control and without.
#[test]
fn a_full_queue_in_random_order() {
    for seed in 0..40 {
        let mut config =
            PairConfig { seed, answers: Answers::Shuffled, device: 256 << 10, ..PairConfig::default() };
        config.segments = Segments::UpTo(3000);
        config.host.entries = 8;
        config.limits.entries = 8;
        config.limits.flow_control = seed % 2 == 0;
        config.host.header_digest = seed % 3 == 0;
        config.host.data_digest = seed % 5 == 0;
        config.host.in_capsule = 2048;
        config.host.maxr2t = 3;
        config.target.r2t_bytes = 3000;
        let mut pair = Pair::connected(config);
        let mut rng = Rng::new(seed);
        let mut model = pair.target.device.clone();
        let mut want = std::collections::HashMap::new();
        let mut completed = 0;
        for round in 0..200u32 {
            // Each command has its own 8 KiB of the device while it is outstanding.
            let region = (round % 32) as usize * 8192;
            let len = 1 + rng.below(8192);
            let result = if rng.below(2) == 0 {
                let data = rng.bytes(len);
                let result = pair.host.write((region / BLOCK) as u32, data.clone());
                if result.is_ok() {
                    model[region..region + len].copy_from_slice(&data);
                }
                result.map(|slot| want.insert(slot, data))
            } else {
                let result = pair.host.read((region / BLOCK) as u32, len);
                result.map(|slot| want.insert(slot, model[region..region + len].to_vec()))
            };
            if result == Err(SubmitError::Full) || rng.below(4) == 0 {
                pair.run();
                for done in pair.host.done.drain(..) {
                    assert!(done.cqe.status().is_success());
                    assert_eq!(Some(done.memory), want.remove(&done.slot), "seed {seed}");
                    completed += 1;
                }
                assert!(want.is_empty(), "all complete when nothing is in flight");
            }
        }
        pair.run();
        assert!(completed > 100);
        assert_eq!(pair.target.device, model, "seed {seed}");
        assert_eq!((pair.host.stuck(), pair.target.stuck()), (0, 0));
    }
}

#[test]
fn bandwidth_takes_its_time() {
    let config = PairConfig { bandwidth: Some(100 << 20), ..PairConfig::default() };
    let mut pair = Pair::connected(config);
    let before = pair.now();
    write(&mut pair, 0, &vec![5; MIB]);
    let took = pair.now() - before;
    assert!(
        (29..32).contains(&took.as_millis()),
        "{took:?}: 20 ms of delay and 10 ms for 1 MiB at 100 MiB/s"
    );
}

#[test]
fn an_error_for_a_write_drops_its_data_and_keeps_the_connection() {
    for in_capsule in [0, 65536] {
        let mut config = PairConfig { segments: Segments::UpTo(999), ..PairConfig::default() };
        config.host.in_capsule = in_capsule;
        let mut pair = Pair::connected(config);
        pair.host.write(u32::MAX, vec![1; 50_000]).expect("room");
        pair.run();
        assert_eq!(pair.host.done.pop().expect("completed").cqe.status(), Status::LBA_OUT_OF_RANGE);
        write(&mut pair, 3, &[7; 50_000]);
    }
}
