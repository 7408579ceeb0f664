//! The promises to front ends: order, honest flushes, bounds, read-ahead.

use fastrand::Rng;
use longhaul_attach::{Request, Requests, Served};
use longhaul_block::filter::{Delay, Errors, Filtered, OpKind, OpSet, Stats};
use longhaul_block::testing::{Fault, FaultDisk, FaultRule};
use longhaul_block::{Advice, IoError, IoResult, MemDevice, ZeroFlags};
use longhaul_engine::{Buf, Config};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A disk that starts operations in any order, so that only its user can keep an order.
fn late(size: u64) -> (Served, FaultDisk) {
    let disk = FaultDisk::with(size, |info| (info.block_size, info.max_io) = (4096, 64 << 10));
    let mut random = Rng::with_seed(0x9e37_79b9_7f4a_7c15);
    disk.delay(move || Duration::from_micros(random.u64(0..1000)));
    (Served::open(Arc::new(disk.clone()), Config::default(), 256 * MIB).expect("opened"), disk)
}

fn flush(served: &Served) -> IoResult<()> {
    served.wait(Request::Flush(served.handle())).map(drop)
}

#[test]
fn changes_of_the_same_bytes_happen_in_the_order_in_which_they_came() {
    const SIZE: u64 = MIB;
    let (served, _) = late(SIZE);
    let mut model = vec![0; SIZE as usize];
    let mut random = Rng::with_seed(7);
    for round in 0..8u8 {
        let (tell, told) = channel();
        for n in 0..64u8 {
            // Any bytes, often the same ones, sometimes across several I/Os.
            let offset = random.u64(0..SIZE / 4);
            let len = 1 + random.u64(0..if n % 8 == 0 { 200_000 } else { 9000 });
            let range = offset as usize..(offset + len) as usize;
            let tell = tell.clone();
            let request = if n % 5 == 0 {
                model[range].fill(0);
                let flags = ZeroFlags { may_deallocate: n % 2 == 0, fua: n % 3 == 0 };
                Request::Zero { offset, len, flags }
            } else {
                model[range].fill(round.wrapping_mul(64).wrapping_add(n) | 1);
                let data = Buf::copy_of(&vec![round.wrapping_mul(64).wrapping_add(n) | 1; len as usize]);
                Request::Write { offset, data, fua: n % 7 == 0 }
            };
            served.start(request, Box::new(move |result| tell.send(result.map(drop)).expect("a listener")));
        }
        // Later reads see all of them, acknowledged or not.
        for at in (0..SIZE / 2).step_by(100_000) {
            let read = served.wait(Request::Read { offset: at, len: 100_000 }).expect("read");
            assert!(*read == model[at as usize..at as usize + 100_000], "round {round}, at {at}");
        }
        drop(tell);
        assert_eq!(told.iter().filter(Result::is_ok).count(), 64);
    }
    flush(&served).expect("durable");
}

#[test]
fn writes_are_taken_before_the_device_has_them_and_no_more_than_it_advises() {
    let (served, disk) = late(64 * MIB);
    for n in 0..64 {
        let data = Buf::copy_of(&vec![n as u8; MIB as usize]);
        served.wait(Request::Write { offset: n * MIB, data, fua: false }).expect("taken");
    }
    let most = disk.counts().most_in_flight;
    assert!(most > MIB, "one after the other: {most} bytes under way at most");
    assert!(most <= Advice::LOCAL.write, "{most} bytes under way");
    assert_eq!(disk.counts().flushes, 0);
    flush(&served).expect("durable");
    assert_eq!((disk.counts().flushes, disk.counts().in_flight), (1, 0));
}

#[test]
fn a_lost_write_fails_the_next_flush_of_each_handle_once() {
    let inner = Arc::new(MemDevice::new(16 * MIB, 4096).expect("mapped"));
    let mut errors = Errors::new(1.0, 0);
    errors.ops = OpSet::NONE.with(OpKind::Write);
    errors.range = Some(0..4096);
    let device = Arc::new(Filtered::new(inner, errors));
    let served = Served::open(device, Config::default(), MIB).expect("opened");
    let (one, two) = (served.handle(), served.handle());
    let write = |offset| {
        let data = Buf::copy_of(&[1; 4096]);
        served.wait(Request::Write { offset, data, fua: false })
    };
    write(0).expect("taken");
    write(4096).expect("taken");
    let flush = |handle: &Arc<_>| served.wait(Request::Flush(Arc::clone(handle))).map(drop);
    assert!(matches!(flush(&one), Err(IoError::Medium(_))));
    assert_eq!(flush(&one), Ok(()));
    // A drain is a close, which may be that of a copied descriptor.
    for _ in 0..2 {
        assert!(matches!(served.wait(Request::Drain(Arc::clone(&two))), Err(IoError::Medium(_))));
    }
    assert!(matches!(flush(&two), Err(IoError::Medium(_))));
    assert_eq!(flush(&two), Ok(()));
    assert_eq!(served.wait(Request::Drain(Arc::clone(&two))).map(drop), Ok(()));
    assert_eq!(flush(&served.handle()), Ok(()));
    let data = Buf::copy_of(&[1; 4096]);
    let durable = served.wait(Request::Write { offset: 0, data, fua: true });
    assert!(matches!(durable, Err(IoError::Medium(_))));
}

#[test]
fn sequential_readers_are_read_ahead_of_and_random_ones_are_not() {
    let (served, disk) = late(1024 * MIB);
    // Two readers, turn by turn.
    for n in 0..128 {
        for base in [0, 32 * MIB] {
            let offset = base + n * (128 << 10);
            served.wait(Request::Read { offset, len: 128 << 10 }).expect("read");
        }
    }
    let most = disk.counts().most_in_flight;
    assert!(most > MIB, "nothing is read ahead: {most} bytes under way at most");
    let read = disk.counts().read;
    let most = 32 * MIB + 4 * Advice::LOCAL.read_ahead;
    assert!((32 * MIB..=most).contains(&read), "{read} bytes read");

    // Read-ahead arrives first.
    while disk.counts().in_flight > 0 {
        std::thread::yield_now();
    }
    let before = disk.counts().read;
    let mut random = Rng::with_seed(99);
    for _ in 0..200 {
        let offset = 40 * MIB + random.u64(0..200_000) * 4096;
        served.wait(Request::Read { offset, len: 4096 }).expect("read");
    }
    let read = disk.counts().read - before;
    assert!(read <= 220 * 4096, "{read} bytes for 200 reads of 4096");
}

#[test]
fn readers_that_fill_the_path_by_themselves_are_not_read_ahead_of() {
    const LEN: u64 = 128 << 10;
    let inner = Arc::new(MemDevice::new(1024 * MIB, 4096).expect("mapped"));
    let stats = Arc::new(Filtered::new(inner, Stats::default()));
    // Nothing is answered before all requests were made.
    let device = Arc::new(Filtered::new(stats.clone(), Delay::new(Duration::from_secs(1))));
    let served = Served::open(device, Config::default(), 256 * MIB).expect("opened");
    let readers = Advice::LOCAL.read / LEN;
    let (tell, told) = channel();
    // The first read of each reader, and the one that follows it.
    for n in 0..2 {
        for reader in 0..readers {
            let (offset, tell) = (reader * 16 * MIB + n * LEN, tell.clone());
            let done = Box::new(move |result| drop(tell.send(result)));
            served.start(Request::Read { offset, len: LEN }, done);
        }
    }
    for _ in 0..2 * readers {
        assert_eq!(told.recv().expect("answered").expect("read").len() as u64, LEN);
    }
    assert_eq!(stats.filter().snapshot().of(OpKind::Read).bytes, 2 * readers * LEN);
}

#[test]
fn what_was_read_ahead_and_is_written_is_read_again() {
    let (served, _) = late(16 * MIB);
    let block = 64 << 10;
    for n in 0..16 {
        served.wait(Request::Read { offset: n * block, len: block }).expect("read");
    }
    let at = 17 * block + 100;
    served.wait(Request::Write { offset: at, data: Buf::copy_of(&[9; 5000]), fua: false }).expect("taken");
    let read = served.wait(Request::Read { offset: 17 * block, len: block }).expect("read");
    assert!(read[..100].iter().all(|&b| b == 0) && read[100..5100].iter().all(|&b| b == 9));
}

#[test]
fn what_does_not_fit_is_refused() {
    let (served, _) = late(MIB);
    let past =
        |offset, len| matches!(served.wait(Request::Read { offset, len }), Err(IoError::OutOfRange { .. }));
    assert!(past(MIB, 1) && past(0, MIB + 1) && past(u64::MAX, 2) && !past(MIB, 0));
    let data = Buf::copy_of(&[0; 2]);
    let write = served.wait(Request::Write { offset: MIB - 1, data, fua: false });
    assert!(matches!(write, Err(IoError::OutOfRange { .. })), "{write:?}");
}

/// A disk with delays of any length, whose power may fail.
fn forgetful(size: u64, memory: u64) -> (Served, FaultDisk) {
    let disk = FaultDisk::with(size, |info| info.max_io = 64 << 10);
    let mut random = Rng::with_seed(0x2545_f491_4f6c_dd1d);
    disk.delay(move || Duration::from_micros(random.u64(0..500)));
    (Served::open(Arc::new(disk.clone()), Config::default(), memory).expect("opened"), disk)
}

#[test]
fn what_a_device_forgot_is_sent_again_before_a_flush_ends_and_before_it_is_read() {
    let (served, device) = forgetful(MIB, 64 * MIB);
    let told = served.handle();
    let put = |offset, byte, len, fua| {
        served.wait(Request::Write { offset, data: Buf::copy_of(&vec![byte; len]), fua }).expect("taken");
    };
    put(0, 1, 100_000, false);
    served.wait(Request::Drain(Arc::clone(&told))).expect("with the device");
    assert_eq!(device.content(0..100_000), [1; 100_000]);
    device.cut_power();
    assert_eq!(device.content(0..100_000), [0; 100_000]);
    let read = served.wait(Request::Read { offset: 0, len: 100_000 }).expect("read");
    assert!(read.iter().all(|&byte| byte == 1), "an acknowledged write that the disk lost was read");

    // Later changes to a part of a block, and a durable one: neither is undone.
    device.cut_power();
    put(700, 2, 100, false);
    put(1024, 3, 512, true);
    device.cut_power();
    served.wait(Request::Flush(Arc::clone(&told))).expect("durable");
    device.cut_power();
    let mut wanted = vec![1; 100_000];
    wanted[700..800].fill(2);
    wanted[1024..1536].fill(3);
    assert!(device.content(0..100_000) == wanted, "lost by a flush that said nothing");
    // Durable writes are not resent.
    let flushes = device.counts().flushes;
    served.wait(Request::Flush(told)).expect("durable");
    assert_eq!(device.counts().flushes, flushes + 1);
}

#[test]
fn nothing_is_lost_when_the_power_goes_at_any_moment() {
    const SIZE: u64 = MIB;
    // With little memory, room has to be freed again and again.
    for (seed, memory) in [(1, 64 * MIB), (2, MIB), (3, 128 << 10), (4, 16 << 10)] {
        let (served, device) = forgetful(SIZE, memory);
        let mut random = Rng::with_seed(seed);
        let mut model = vec![0u8; SIZE as usize];
        for round in 0..12u64 {
            let (often, mut cuts) = (random.u64(20..80), random.fork());
            device.cut_power_when(move || cuts.u64(0..often) == 0);
            let (tell, told) = channel();
            for n in 0..60u64 {
                let (offset, tell) = (random.u64(0..SIZE / 4), tell.clone());
                let len = 1 + random.u64(0..if n % 8 == 0 { 150_000 } else { 6000 });
                let range = offset as usize..(offset + len) as usize;
                let byte = (round * 60 + n) as u8 | 1;
                let request = if n % 6 == 0 {
                    model[range].fill(0);
                    let flags = ZeroFlags { may_deallocate: n % 4 == 0, fua: n % 9 == 0 };
                    Request::Zero { offset, len, flags }
                } else {
                    model[range].fill(byte);
                    Request::Write { offset, data: Buf::copy_of(&vec![byte; len as usize]), fua: n % 7 == 0 }
                };
                served.start(request, Box::new(move |result| drop(tell.send(result.map(drop)))));
                if n % 13 == 0 {
                    let read = served.wait(Request::Read { offset: 0, len: SIZE / 2 }).expect("read");
                    let wrong = (0..read.len()).find(|&at| read[at] != model[at]);
                    assert_eq!(wrong, None, "memory {memory}, round {round}, {n}");
                }
            }
            drop(tell);
            assert_eq!(told.iter().filter(Result::is_ok).count(), 60);
            flush(&served).expect("durable");
            device.cut_power_when(|| false);
            device.cut_power();
            let content = device.content(0..SIZE);
            let wrong = (0..content.len()).find(|&at| content[at] != model[at]);
            assert_eq!(wrong, None, "memory {memory}, round {round}");
        }
        let (generations, flushes) = (device.power_cuts(), device.counts().flushes);
        assert!(generations > 40, "the power went {generations} times");
        assert!(memory >= MIB || flushes > 60, "{flushes} flushes: more was kept than there is memory");
    }
}

#[test]
fn what_cannot_be_flushed_to_make_room_is_told_as_lost() {
    let (served, device) = forgetful(MIB, 64 << 10);
    let told = served.handle();
    let worn = Fault::Error(IoError::Medium("worn".into()));
    device.inject(FaultRule::new(OpKind::Flush, worn));
    for n in 0..16 {
        let data = Buf::copy_of(&[9; 8192]);
        served.wait(Request::Write { offset: n * 8192, data, fua: false }).expect("taken");
    }
    let drained = served.wait(Request::Drain(Arc::clone(&told)));
    assert!(matches!(drained, Err(IoError::Medium(_))), "{drained:?}");
    device.heal();
    // Failures of flushes that began before are reported too, and then no more.
    let fails = |_: &i32| served.wait(Request::Flush(Arc::clone(&told))).is_err();
    let failed = (0..16).take_while(fails).count();
    assert!(failed < 16, "a flush fails on a device that is healed");
}
