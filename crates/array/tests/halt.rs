//! Arrays that have lost more than their redundancy: the rest can be read, and never with content
//! from before an acknowledged write.

mod common;

use common::{cached, disks, make, options, simulate, start};
use longhaul_array::{BLOCK, Health, Layout};
use longhaul_block::{BlockDevice, WriteFlags};
use longhaul_engine::{Buf, BufMut, sleep, timeout};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const UNIT: u64 = 16 << 10;
const SIZE: u64 = 3 << 20;

fn block(byte: u8) -> Buf {
    Buf::copy_of(&[byte; BLOCK as usize])
}

/// An acknowledged write that is in the journal only can be read from an array that cannot write it
/// in place any more.
#[test]
fn acknowledged_writes_are_read_from_a_halted_array() {
    let layouts = [Layout::Parity, Layout::DoubleParity];
    let cases = (1..=8).flat_map(|seed| layouts.map(|layout| (seed, layout)));
    let known: usize = cases.map(|(seed, layout)| usize::from(halted(seed, layout))).sum();
    assert!(known >= 4, "in {known} cases only it was in the journal alone");
}

/// Whether the write could be read from the halted array.
fn halted(seed: u64, layout: Layout) -> bool {
    simulate(seed, async {
        let (disks, _power) = disks(4, SIZE);
        make(&disks, layout, UNIT).await;
        let array = start(&disks, options()).await.expect("assembled");
        let io = array.open().await.expect("opened");
        for at in [0, BLOCK] {
            io.write(at, block(1), WriteFlags::default()).await.expect("written");
        }
        io.flush().await.expect("flushed");
        sleep(Duration::from_secs(1)).await;
        let other = io.write(2 * BLOCK, block(2), WriteFlags::default());
        io.write(0, block(2), WriteFlags::default()).await.expect("written");
        disks.iter().for_each(|disk| disk.worn.store(true, SeqCst));
        // In the same stripe, and later in the queue.
        let late = io.write(BLOCK, block(3), WriteFlags::default()).await;
        sleep(Duration::from_secs(5)).await;
        assert_eq!(array.status().await.expect("status").health, Health::Halted);
        let read = async |at, len: u64| io.read(at, BufMut::zeroed(len as usize)).await;
        let known = read(0, BLOCK).await;
        // The write may be in place, on a lost member, in a torn stripe.
        if let Ok(bytes) = &known {
            assert_eq!(bytes[..], block(2)[..], "{layout}");
        }
        // A range that is known in part does not yield old content.
        if let Ok(bytes) = timeout(Duration::from_secs(60), read(0, 2 * BLOCK)).await.expect("ends") {
            assert_eq!(bytes[..BLOCK as usize], block(2)[..], "{layout}");
        }
        if let (Ok(()), Ok(bytes)) = (&late, read(BLOCK, BLOCK).await) {
            assert_eq!(bytes[..], block(3)[..], "{layout}");
        }
        io.write(0, block(4), WriteFlags::default()).await.expect_err("halted");
        timeout(Duration::from_secs(60), array.stop()).await.expect("ends").expect_err("halted");
        let other = timeout(Duration::from_secs(60), other).await.expect("ends").is_ok();
        // The next assembly writes it in place.
        disks.iter().for_each(|disk| disk.worn.store(false, SeqCst));
        let array = start(&disks, options()).await.expect("assembled again");
        let io = array.open().await.expect("opened");
        let back = io.read(0, BufMut::zeroed(3 * BLOCK as usize)).await.expect("read");
        let at = |n: usize| &back[n * BLOCK as usize..(n + 1) * BLOCK as usize];
        assert_eq!(at(0), &block(2)[..], "{layout}");
        assert!(!other || at(2) == &block(2)[..], "{layout}");
        assert!(late.is_err() || at(1) == &block(3)[..], "{layout}");
        known.is_ok()
    })
}

/// A `stripe` whose member has lost power: it may return with less than was acknowledged, which
/// cannot be detected.
#[test]
fn a_member_that_has_halted_a_stripe_is_not_read() {
    simulate(1, async {
        let disks = cached(2);
        make(&disks, Layout::Stripe, UNIT).await;
        let array = start(&disks, options()).await.expect("assembled");
        let io = array.open().await.expect("opened");
        let write = async |at, byte| io.write(at, block(byte), WriteFlags::default()).await;
        let read = async |at| io.read(at, BufMut::zeroed(BLOCK as usize)).await;
        for at in [0, UNIT] {
            write(at, 1).await.expect("written");
        }
        io.flush().await.expect("flushed");
        for at in [0, UNIT] {
            write(at, 2).await.expect("written");
        }
        disks[0].unreachable.store(true, SeqCst);
        disks[0].lose_cache();
        write(0, 3).await.expect_err("no member is reachable");
        assert_eq!(array.status().await.expect("status").health, Health::Halted);
        disks[0].unreachable.store(false, SeqCst);
        let error = read(0).await.expect_err("it may be old");
        assert!(error.to_string().contains("member 0"), "{error}");
        assert_eq!(read(UNIT).await.expect("the other has lost nothing")[..], block(2)[..]);
        io.flush().await.expect_err("halted");
    });
}
