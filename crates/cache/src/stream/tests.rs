//! Streams over devices that are slow, that fail, and that lose their power.

use super::*;
use fastrand::Rng;
use longhaul_block::filter::{ErrorKind, Errors, Filtered, OpKind, OpSet, Stats};
use longhaul_block::testing::FaultDisk;
use longhaul_block::{Advice, IoError, MemDevice, WriteFlags};
use longhaul_engine::{Config, Engine};
use std::future::Future;
use std::io::{BufRead, Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::time::Duration;

const K: u64 = 1024;

fn on_engine<T>(future: impl Future<Output = T>) -> T {
    Engine::new(&Config::default()).expect("engine").block_on(future)
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i / 512 * 31 + i + seed) % 251) as u8).collect()
}

fn memory(size: u64, block: u32) -> Arc<MemDevice> {
    Arc::new(MemDevice::new(size, block).expect("mapped"))
}

fn advice(bytes: u64) -> Advice {
    Advice { read: bytes, write: bytes, io_size: 128 << 10, read_ahead: bytes, commands: 1000 }
}

/// Operations take this time twice, so that several are under way.
const TIME: Duration = Duration::from_micros(100);

#[test]
fn a_sequential_reader_has_the_advised_bytes_on_their_way() {
    on_engine(async {
        let disk = FaultDisk::new(32 << 20);
        let content = pattern(32 << 20, 1);
        let io = disk.open().await.expect("opened");
        for at in (0..content.len()).step_by(1 << 20) {
            let part = Buf::copy_of(&content[at..at + (1 << 20)]);
            io.write(at as u64, part, WriteFlags::default()).await.expect("written");
        }
        disk.delay(|| TIME);
        disk.advise(advice(4 << 20));
        let mut stream = AsyncStream::open(&disk).await.expect("opened");
        let (mut all, mut part) = (Vec::new(), vec![0; 128 << 10]);
        while all.len() < 16 << 20 {
            let n = stream.read(&mut part).await.expect("read");
            all.extend_from_slice(&part[..n]);
        }
        let most = disk.counts().most_in_flight;
        assert!((3 << 20..=(4 << 20) + (128 << 10)).contains(&most), "{most} bytes");
        // A path that has become shorter needs less.
        disk.advise(advice(1 << 20));
        loop {
            let n = stream.read(&mut part).await.expect("read");
            if n == 0 {
                break;
            }
            all.extend_from_slice(&part[..n]);
        }
        assert!(all == content);
        assert_eq!((disk.counts().in_flight, disk.counts().read), (0, 32 << 20), "nothing twice");
    });
}

#[test]
fn a_random_reader_wastes_nothing() {
    on_engine(async {
        let disk = FaultDisk::new(8 << 20);
        disk.delay(|| TIME);
        let mut stream = AsyncStream::open(&disk).await.expect("opened");
        let mut part = [0; 4096];
        for n in [77u64, 3, 1500, 900, 41, 1999, 700] {
            stream.seek(n * 4096);
            let mut got = 0;
            while got < part.len() {
                got += stream.read(&mut part[got..]).await.expect("read");
            }
        }
        assert_eq!(disk.counts().read, 7 * 4096);
    });
}

#[test]
fn a_writer_has_the_advised_bytes_on_their_way_and_coalesces() {
    on_engine(async {
        let disk = FaultDisk::new(32 << 20);
        disk.delay(|| TIME);
        disk.advise(advice(2 << 20));
        let device = Filtered::new(Arc::new(disk.clone()), Stats::default());
        let content = pattern(16 << 20, 2);
        let mut stream = AsyncStream::open(&device).await.expect("opened");
        for part in content.chunks(10_000) {
            stream.write_all(part).await.expect("written");
        }
        stream.flush().await.expect("flushed");
        let most = disk.counts().most_in_flight;
        assert!((1 << 20..=(2 << 20) + (128 << 10)).contains(&most), "{most} bytes");
        let stats = device.filter().snapshot();
        assert_eq!(stats.of(OpKind::Write).done, 128, "of 128 KiB each");
        assert_eq!((stats.of(OpKind::Read).done, stats.of(OpKind::Flush).done), (0, 1));
        stream.flush().await.expect("flushed");
        assert_eq!(disk.counts().flushes, 1, "nothing new");
        stream.seek(0);
        let mut all = vec![0; content.len()];
        let mut got = 0;
        while got < all.len() {
            got += stream.read(&mut all[got..]).await.expect("read");
        }
        assert!(all == content);
    });
}

/// Any mix of reads, writes, seeks and flushes is as on a vector.
#[test]
fn a_stream_is_a_file() {
    for seed in 1..20u64 {
        let size = 256 * K as usize;
        let mut model = pattern(size, 9);
        let device = memory(size as u64, 4096);
        let mut stream = Stream::open(device.clone()).expect("opened");
        stream.write_all(&model).expect("written");
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as usize % below
        };
        let mut at = size;
        for step in 0..300 {
            match random(8) {
                0 | 1 => {
                    at = random(size);
                    assert_eq!(stream.seek(SeekFrom::Start(at as u64)).expect("sought"), at as u64);
                }
                2..5 => {
                    let bytes = pattern(random(20_000) + 1, step);
                    let n = bytes.len().min(size - at);
                    stream.write_all(&bytes[..n]).expect("written");
                    model[at..at + n].copy_from_slice(&bytes[..n]);
                    at += n;
                }
                5..7 => {
                    let mut bytes = vec![0; random(20_000) + 1];
                    let n = bytes.len().min(size - at);
                    stream.read_exact(&mut bytes[..n]).expect("read");
                    assert!(bytes[..n] == model[at..at + n], "seed {seed} step {step}: {n} bytes at {at}");
                    at += n;
                }
                _ => stream.flush().expect("flushed"),
            }
        }
        // Writes that were not flushed are still handed over by the drop.
        drop(stream);
        let mut all = Vec::new();
        StreamReader::open(device).expect("opened").read_to_end(&mut all).expect("read");
        assert!(all == model, "seed {seed}");
    }
}

#[test]
fn the_end_is_the_end() {
    let mut stream = Stream::open(memory(8192, 512)).expect("opened");
    assert_eq!(stream.seek(SeekFrom::End(-3)).expect("sought"), 8189);
    assert_eq!(stream.write(&[1, 2, 3, 4]).expect("written"), 3);
    let e = stream.write(&[4]).expect_err("no room");
    assert_eq!(e.kind(), std::io::ErrorKind::InvalidInput);
    assert_eq!(stream.read(&mut [0; 10]).expect("nothing"), 0);
    stream.seek(SeekFrom::Current(-2)).expect("sought");
    assert_eq!(stream.fill_buf().expect("read"), [2, 3]);
    stream.consume(1);
    assert_eq!(stream.stream_position().expect("position"), 8191);
    assert!(stream.seek(SeekFrom::Current(-9000)).is_err());
    stream.seek(SeekFrom::Start(1 << 40)).expect("sought");
    assert_eq!(stream.read(&mut [0; 10]).expect("nothing"), 0);
}

fn failing(range: std::ops::Range<u64>) -> Arc<Filtered<Errors>> {
    let mut errors = Errors::new(1.0, 0);
    errors.ops = OpSet::NONE.with(OpKind::Write);
    errors.kind = ErrorKind::NoSpace;
    errors.range = Some(range);
    Arc::new(Filtered::new(memory(4 << 20, 512), errors))
}

#[test]
fn the_error_of_an_earlier_write_is_reported_once() {
    on_engine(async {
        let device = failing(0..512);
        let mut stream = AsyncStream::open(&*device).await.expect("opened");
        // Coalesced, so taken.
        assert_eq!(stream.write(&[7; 1000]).await, Ok(1000));
        assert_eq!(stream.flush().await, Err(IoError::NoSpace));
        assert_eq!(stream.flush().await, Ok(()), "reported once");
        stream.seek(0);
        stream.write_all(&[7; 512]).await.expect("taken");
        stream.seek(8192);
        // Handed over by the next write, which is somewhere else.
        stream.write_all(&[8; 512]).await.expect("taken");
        stream.seek(16384);
        let mut reported = 0;
        for _ in 0..3 {
            reported += u32::from(stream.write(&[9; 512]).await.is_err());
            reported += u32::from(stream.flush().await.is_err());
        }
        assert_eq!(reported, 1);
        stream.seek(0);
        stream.write_all(&[7; 512]).await.expect("taken");
        assert_eq!(stream.read(&mut [0; 8]).await, Err(IoError::NoSpace), "reads report it too");
    });
}

#[test]
fn a_blocking_writer_hears_of_errors() {
    let mut writer = StreamWriter::open(failing(0..512)).expect("opened");
    writer.write_all(&[7; 100]).expect("taken");
    let e = writer.flush().expect_err("it failed");
    assert_eq!(e.kind(), std::io::ErrorKind::StorageFull);
    writer.flush().expect("reported once");
}

#[test]
fn what_a_device_forgot_is_written_again() {
    on_engine(async {
        let disk = FaultDisk::new(32 << 20);
        let io = disk.open().await.expect("opened");
        let mut stream = AsyncStream::keeping(io, disk.info(), 8 << 20);
        let content = pattern(1_000_000, 3);
        stream.write_all(&content).await.expect("taken");
        // Reading makes the device have it.
        stream.seek(0);
        assert_eq!(stream.fill(512).await.expect("read")[..512], content[..512]);
        disk.cut_power();
        stream.seek(1);
        assert_eq!(stream.fill(512).await.expect("read")[..511], content[1..512], "forgotten, and read");
        disk.cut_power();
        // Behind a part of a block, which is read first.
        stream.seek(1_000_000);
        stream.write_all(&[7; 100]).await.expect("taken");
        stream.flush().await.expect("durable");
        disk.cut_power();
        let back = disk.content(0..1_000_100);
        assert!(back[..1_000_000] == content[..], "lost by a flush that said nothing");
        assert_eq!(back[1_000_000..], [7; 100]);

        // A long one is flushed on the way, and so it is bounded.
        let before = disk.counts().flushes;
        let part = vec![1; 1 << 20];
        stream.seek(0);
        for _ in 0..24 {
            stream.write_all(&part).await.expect("taken");
        }
        let flushes = disk.counts().flushes - before;
        assert!((2..12).contains(&flushes), "{flushes} flushes");
    });
}

#[test]
fn nothing_is_lost_when_the_power_goes_at_any_moment() {
    const SIZE: usize = 256 << 10;
    // With little memory, kept changes are flushed again and again.
    for (seed, kept) in [(1, KEPT), (2, KEPT), (3, 64 * K), (4, 64 * K), (5, 8 * K), (6, 8 * K)] {
        let disk = FaultDisk::with(SIZE as u64, |info| info.max_io = 64 << 10);
        let mut random = Rng::with_seed(seed);
        let mut delays = random.fork();
        disk.delay(move || Duration::from_micros(delays.u64(0..100)));
        disk.advise(Advice { io_size: 16 << 10, ..advice(64 * K) });
        let mut model = vec![0; SIZE];
        on_engine(async {
            let io = disk.open().await.expect("opened");
            let mut stream = AsyncStream::keeping(io, disk.info(), kept);
            for round in 0..8 {
                let mut cuts = random.fork();
                disk.cut_power_when(move || cuts.u64(0..40) == 0);
                for step in 0..60 {
                    let at = stream.position() as usize;
                    let n = random.usize(1..20_000).min(SIZE - at);
                    match random.u8(0..8) {
                        0 | 1 => stream.seek(random.u64(0..SIZE as u64)),
                        2..5 => {
                            let bytes = pattern(n, round * 60 + step);
                            stream.write_all(&bytes).await.expect("taken");
                            model[at..at + n].copy_from_slice(&bytes);
                        }
                        _ => {
                            let (mut bytes, mut got) = (vec![0; n], 0);
                            while got < n {
                                got += stream.read(&mut bytes[got..]).await.expect("read");
                            }
                            assert!(bytes == model[at..at + n], "seed {seed}, round {round}, {n} at {at}");
                        }
                    }
                }
                stream.flush().await.expect("durable");
                disk.cut_power_when(|| false);
                disk.cut_power();
                let wrong = disk.content(0..SIZE as u64).iter().zip(&model).position(|(a, b)| a != b);
                assert_eq!(wrong, None, "seed {seed}, round {round}");
            }
        });
        let (cuts, flushes) = (disk.power_cuts(), disk.counts().flushes);
        assert!(cuts > 30, "the power went {cuts} times");
        assert!(kept >= 64 * K || flushes > 30, "{flushes} flushes: more was kept than there is memory");
    }
}
