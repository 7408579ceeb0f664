use super::*;
use crate::testing::run;
use longhaul_block::filter::{Delay, Errors, Filtered, OpKind, Stats};
use longhaul_block::{BackendSpec, IoError, MemDevice};
use proptest::prelude::*;
use std::time::Duration;

const UNIT: u64 = 4096;

fn memory(size: u64) -> Arc<dyn BlockDevice> {
    Arc::new(MemDevice::new(size, 512).expect("mapped"))
}

fn striped(members: usize, rows: u64) -> Stripe {
    Stripe::new((0..members).map(|_| memory(rows * UNIT)).collect(), UNIT).expect("striped")
}

fn pattern(offset: u64, len: u64) -> Vec<u8> {
    (offset..offset + len).map(|at| (at / 512 * 37 + at % 512 * 3) as u8).collect()
}

#[test]
fn impossible_stripes_are_refused() {
    let refuse = |members: Vec<Arc<dyn BlockDevice>>, unit| {
        Stripe::new(members, unit).map(drop).expect_err("refused").to_string()
    };
    assert_eq!(refuse(vec![memory(1 << 20)], UNIT), "1 devices do not make an array: it has 2 to 64");
    assert!(refuse(vec![memory(1 << 20), memory(1 << 20)], 5000).contains("not a power of two"));
    let small = refuse(vec![memory(1 << 20), memory(512)], UNIT);
    assert_eq!(small, "mem:512 has 512 bytes, less than one stripe unit of 4096");
}

#[test]
fn properties_are_those_of_the_members() {
    let device = Stripe::new(vec![memory(40_960), memory(50_176), memory(60_928)], UNIT).expect("striped");
    let info = device.info();
    assert_eq!((info.size, info.optimal_io, info.block_size), (3 * 40_960, 3 * 4096, 512));
    assert!(info.discard && !info.read_only && !info.volatile_cache);
    let files = ["mem:1MiB,ro", "mem:1MiB,block=4096"].map(|spec| BackendSpec::parse(spec).expect("known"));
    let mixed =
        Stripe::new(files.iter().map(|f| f.open().expect("opened")).collect(), UNIT).expect("striped");
    assert!(mixed.info().read_only && mixed.info().block_size == 4096);
    let refused = run(async {
        mixed.open().await.expect("opened").write(0, Buf::copy_of(&[0; 4096]), WriteFlags::default()).await
    });
    assert_eq!(refused, Err(IoError::ReadOnly));
}

#[test]
fn units_rotate_over_members() {
    let members: Vec<_> = (0..3).map(|_| memory(4 * UNIT)).collect();
    let device = Stripe::new(members.clone(), UNIT).expect("striped");
    run(async {
        let io = device.open().await.expect("opened");
        io.write(0, Buf::copy_of(&pattern(0, 12 * UNIT)), WriteFlags::default()).await.expect("written");
        for (number, member) in members.iter().enumerate() {
            let member = member.open().await.expect("opened");
            for row in 0..4 {
                let unit = member.read(row * UNIT, BufMut::zeroed(UNIT as usize)).await.expect("read");
                assert!(unit[..] == pattern((row * 3 + number as u64) * UNIT, UNIT)[..], "{row} of {number}");
            }
        }
    });
}

#[test]
fn a_large_io_goes_to_all_members_at_once() {
    let time = Duration::from_millis(20);
    let slow = || Arc::new(Filtered::new(memory(1 << 20), Delay::new(time))) as Arc<dyn BlockDevice>;
    let stats: Vec<_> = (0..4).map(|_| Arc::new(Filtered::new(slow(), Stats::default()))).collect();
    let members = stats.iter().map(|device| Arc::clone(device) as Arc<dyn BlockDevice>).collect();
    let device = Stripe::new(members, UNIT).expect("striped");
    run(async {
        let io = device.open().await.expect("opened");
        let read = io.read(0, BufMut::zeroed(8 * UNIT as usize));
        // All parts have begun before one has ended, and before the result is awaited.
        for device in &stats {
            let snapshot = device.filter().snapshot();
            assert_eq!((snapshot.of(OpKind::Read).begun, snapshot.of(OpKind::Read).done), (2, 0));
        }
        assert_eq!(read.await.expect("read").len(), 8 * UNIT as usize);
    });
}

#[test]
fn an_error_of_a_member_is_returned() {
    let mut errors = Errors::new(1.0, 0);
    errors.range = Some(0..UNIT);
    let bad = Arc::new(Filtered::new(memory(4 * UNIT), errors));
    let device = Stripe::new(vec![memory(4 * UNIT), bad], UNIT).expect("striped");
    run(async {
        let io = device.open().await.expect("opened");
        let read = async |at, len| io.read(at, BufMut::zeroed(len)).await.map(|buf| buf.len());
        assert!(matches!(read(0, 8192).await, Err(IoError::Medium(_))));
        assert_eq!(read(0, 4096).await, Ok(4096));
        assert_eq!(read(8192, 8192).await, Ok(8192));
        assert!(matches!(read(8 * UNIT, 512).await, Err(IoError::OutOfRange { .. })));
        assert!(matches!(read(1, 512).await, Err(IoError::Unaligned { .. })));
        assert_eq!(read(0, 0).await, Ok(0));
    });
}

#[test]
fn memory_is_lent_within_a_unit() {
    let device = striped(2, 4);
    run(async {
        let io = device.open().await.expect("opened");
        assert!(io.map_read(UNIT, UNIT as usize).is_some());
        assert!(io.map_write(512, 1024).is_some());
        assert!(io.map_read(UNIT - 512, 1024).is_none());
    });
}

#[test]
fn advice_adds_up_to_whole_stripes() {
    assert_eq!(combine(&[None, None], 1 << 20), None);
    let far =
        Advice { read: 10 << 20, write: 5 << 20, io_size: 1 << 20, read_ahead: 12 << 20, commands: 100 };
    let sum = combine(&[Some(far), Some(far), None], 768 << 10).expect("advice");
    assert_eq!((sum.read, sum.write, sum.read_ahead), (24 << 20, 14 << 20, 28 << 20));
    assert_eq!((sum.io_size, sum.commands), (3 * (768 << 10), 264));
    assert_eq!(combine(&[Some(far); 64], 1 << 20).map(|sum| sum.io_size), Some(4 << 20));
    assert_eq!(combine(&[Some(far); 64], 64 << 20).map(|sum| sum.io_size), Some(4 << 20));
}

proptest! {
    /// Pieces tile a range, and the ranges of members have the same bytes.
    #[test]
    fn a_range_is_split_without_gap_or_overlap(
        members in 2u64..9, blocks in 1u64..200, from in 0u64..400, piece in 1u64..9,
    ) {
        let map = StripeMap { members, unit: UNIT, rows: 1 << 20, piece: piece * 512 };
        let (offset, len) = (from * 512, blocks * 512);
        let mut at = offset;
        let mut bytes = vec![0; members as usize];
        for piece in map.pieces(offset, len) {
            let row = piece.offset / UNIT;
            let back = (row * members + piece.member as u64) * UNIT + piece.offset % UNIT;
            prop_assert_eq!(back, at);
            prop_assert!(piece.len > 0 && piece.len <= map.piece && piece.offset % UNIT + piece.len <= UNIT);
            at += piece.len;
            bytes[piece.member] += piece.len;
        }
        prop_assert_eq!(at, offset + len);
        let mut ranges = vec![0; members as usize];
        map.ranges(offset, len).for_each(|(member, _, len)| ranges[member] = len);
        prop_assert_eq!(bytes, ranges);
    }

    /// The array behaves like one memory device.
    #[test]
    fn it_is_a_device(
        members in 2usize..6,
        ops in proptest::collection::vec((0u8..4, 0u64..64, 1u64..64, any::<u8>()), 1..20),
    ) {
        let (array, model) = (striped(members, 8), memory(members as u64 * 8 * UNIT));
        let size = model.info().size;
        run(async {
            let (array, model) = (array.open().await.expect("opened"), model.open().await.expect("opened"));
            for (op, from, blocks, byte) in ops {
                let offset = from * 512 % size;
                let len = (blocks * 512).min(size - offset);
                for io in [&array, &model] {
                    match op {
                        0 => io.write_zeroes(offset, len, ZeroFlags::default()).await.expect("zeroed"),
                        _ => {
                            let src = Buf::copy_of(&vec![byte; len as usize]);
                            io.write(offset, src, WriteFlags::default()).await.expect("written");
                        }
                    }
                }
                let read = async |io: &Rc<dyn BlockIo>| io.read(0, BufMut::zeroed(size as usize)).await;
                let (a, b) = (read(&array).await.expect("read"), read(&model).await.expect("read"));
                assert!(a[..] == b[..], "after op {op} at {offset}, {len} bytes");
            }
        });
    }
}
