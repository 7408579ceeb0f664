//! Large files, written by many threads at a time.

mod common;

use common::{Calls, ROOT, WRITE, assert_right, memory, pattern};
use longhaul_fs::Handle;
use longhaul_poolfs::testing::{SEGMENT, TestFs, UNIT};
use longhaul_poolfs::{FsOptions, PoolFs};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Writes `content` to the handle in pieces of `piece` bytes, by so many threads at a time.
fn write_together(mounted: &PoolFs, handle: Handle, content: &[u8], piece: usize, threads: usize) {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Relaxed) * piece;
                    let Some(bytes) = content.get(at..content.len().min(at + piece)) else { return };
                    if bytes.is_empty() {
                        return;
                    }
                    if let Err(e) = mounted.write(handle, at as u64, bytes) {
                        *failed.lock().expect("locked") = Some(e);
                    }
                }
            });
        }
    });
    assert_eq!(failed.into_inner().expect("joined"), None);
}

#[test]
fn a_file_takes_whole_stripes_in_whatever_order_it_is_written() {
    const LEN: usize = 24 << 20;
    // The small ones are no multiple of a stripe; more threads than batches.
    for (piece, memory_of_it) in [(100 << 10, 64 << 20), (1 << 20, 64 << 20), (700 << 10, 4 << 20)] {
        let fs = TestFs::new(memory(), 4, (3, 1), 64).expect("made");
        let options = FsOptions { memory: memory_of_it, ..TestFs::options() };
        let mounted = fs.open_by(Arc::clone(&fs.catalog), &options).expect("mounted");
        let content = pattern(LEN, 1);
        let (_, handle) = mounted.create(ROOT, b"large", WRITE).expect("made");
        write_together(&mounted, handle, &content, piece, 12);
        mounted.close(handle).expect("closed");
        assert!(mounted.content(ROOT, b"large").expect("read") == content);
        drop(mounted);
        let report = assert_right(&fs);
        // A segment of each of four members has room for three of content.
        let needed = LEN.div_ceil(3 * SEGMENT as usize) as u32;
        let most = needed + if memory_of_it < LEN { needed / 8 } else { 1 };
        assert!((needed..=most).contains(&report.segments.0), "{piece}: {report:?}, {needed} needed");
    }
}

/// Parity is not read. Were that of successive stripes on one member, a reader would have no use of its link.
#[test]
fn all_members_have_a_share_of_each_part_of_a_file() {
    const STRIPE: usize = 3 * UNIT as usize;
    const STRIPES: usize = 32;
    let fs = TestFs::new(memory(), 4, (3, 1), 128).expect("made");
    // Each stripe is written when it is there, so that stripes of files take turns.
    let options = FsOptions { memory: 4 * STRIPE, ..TestFs::options() };
    let mounted = fs.open_by(Arc::clone(&fs.catalog), &options).expect("mounted");
    let content = pattern(STRIPES * STRIPE, 4);
    let make = |name: u8| mounted.create(ROOT, &[name], WRITE).expect("made").1;
    let handles: Vec<Handle> = (b'a'..b'e').map(make).collect();
    for (number, stripe) in content.chunks(STRIPE).enumerate() {
        for handle in &handles {
            mounted.write(*handle, (number * STRIPE) as u64, stripe).expect("written");
        }
    }
    let read = || fs.disks.iter().map(|disk| disk.disk.counts().read).collect::<Vec<_>>();
    for handle in handles {
        mounted.sync(handle).expect("durable");
        for (part, expected) in content.chunks(8 * STRIPE).enumerate() {
            let (before, at) = (read(), part * 8 * STRIPE);
            for (piece, expected) in expected.chunks(STRIPE).enumerate() {
                let found = mounted.read(handle, (at + piece * STRIPE) as u64, STRIPE as u32);
                assert!(found.expect("read") == expected);
            }
            let shares: Vec<u64> = read().iter().zip(before).map(|(now, before)| now - before).collect();
            assert_eq!(shares, [6 * UNIT; 4], "part {part}");
        }
        mounted.close(handle).expect("closed");
    }
}

#[test]
fn large_and_small_writes_over_each_other_are_read_back() {
    const LEN: usize = 6 << 20;
    let mut rng = fastrand::Rng::with_seed(6);
    for memory_of_it in [2 << 20, 32 << 20] {
        let fs = TestFs::new(memory(), 4, (2, 2), 200).expect("made");
        let options = FsOptions { memory: memory_of_it, ..TestFs::options() };
        let mounted = fs.open_by(Arc::clone(&fs.catalog), &options).expect("mounted");
        let (attributes, handle) = mounted.create(ROOT, b"mixed", WRITE).expect("made");
        let mut model: Vec<u8> = Vec::new();
        for step in 0..300 {
            let at = rng.usize(..LEN);
            let most = [100, 70 << 10, 1 << 20][rng.usize(..3)];
            let len = rng.usize(1..=most.min(LEN - at));
            match rng.u8(..20) {
                0 => mounted.sync(handle).expect("durable"),
                1 => {
                    let size = rng.usize(..=LEN);
                    mounted.resize(attributes.node, size as u64).expect("resized");
                    model.resize(size, 0);
                }
                2..6 => {
                    let found = mounted.read(handle, at as u64, len as u32).expect("read");
                    let end = model.len().min(at + len);
                    assert!(found == model.get(at..end).unwrap_or_default(), "step {step}");
                }
                _ => {
                    let data = pattern(len, step);
                    mounted.write(handle, at as u64, &data).expect("written");
                    model.resize(model.len().max(at + len), 0);
                    model[at..at + len].copy_from_slice(&data);
                }
            }
        }
        mounted.close(handle).expect("closed");
        assert!(mounted.content(ROOT, b"mixed").expect("read") == model);
        assert_eq!(mounted.unwritten(), 0, "all of it is counted");
        drop(mounted);
        assert_right(&fs);
    }
}

#[test]
fn segments_that_are_taken_ahead_leave_room_to_others() {
    let fs = TestFs::new(memory(), 3, (2, 1), 16).expect("made");
    let (one, other) = (fs.open().expect("mounted"), fs.open().expect("mounted"));
    let room = pattern(2 * SEGMENT as usize, 2);
    for round in 0..6_u8 {
        one.put(ROOT, &[b'a', b'0' + round], &room).expect("written");
        other.put(ROOT, &[b'b', b'0' + round], &room).expect("there is room for both");
    }
    drop((one, other));
    let report = assert_right(&fs);
    assert_eq!(report.segments, (12, 16), "{report:?}");
}
