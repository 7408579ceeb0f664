//! Large files, written by many threads at a time.

mod common;

use common::{Calls, ROOT, WRITE, assert_right, memory, pattern};
use longhaul_poolfs::FsOptions;
use longhaul_poolfs::testing::{SEGMENT, TestFs};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

#[test]
fn a_file_takes_whole_stripes_in_whatever_order_it_is_written() {
    const LEN: usize = 24 << 20;
    // No multiple of a stripe, and more threads than batches.
    const PIECE: usize = 100 << 10;
    const THREADS: usize = 12;
    let fs = TestFs::new(memory(), 4, (3, 1), 64).expect("made");
    // More than what is written while batches are under way.
    let options = FsOptions { memory: 64 << 20, ..TestFs::options() };
    let mounted = fs.open_by(Arc::clone(&fs.catalog), &options).expect("mounted");
    let content = pattern(LEN, 1);
    let (_, handle) = mounted.create(ROOT, b"large", WRITE).expect("made");
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Relaxed) * PIECE;
                    let Some(piece) = content.get(at..LEN.min(at + PIECE)).filter(|piece| !piece.is_empty())
                    else {
                        return;
                    };
                    if let Err(e) = mounted.write(handle, at as u64, piece) {
                        *failed.lock().expect("locked") = Some(e);
                    }
                }
            });
        }
    });
    assert_eq!(failed.into_inner().expect("joined"), None);
    mounted.close(handle).expect("closed");
    assert!(mounted.content(ROOT, b"large").expect("read") == content);
    drop(mounted);
    let report = assert_right(&fs);
    // A segment of each of four members has room for three of content.
    let needed = LEN.div_ceil(3 * SEGMENT as usize) as u32;
    assert!((needed..=needed + 1).contains(&report.segments.0), "{report:?}, {needed} needed");
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
