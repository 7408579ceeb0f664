//! How long an array is away when its host is lost and another one, which has watched it, takes it over.

mod common;

use common::{options, seen_by, shared, simulate, uuid};
use fastrand::Rng;
use futures_util::future::{join, join_all};
use longhaul_array::{
    ArrayDevice, ArrayError, BLOCK, Layout, Options, Shape, assemble_as, create_as, wait_for_end,
};
use longhaul_block::filter::OpKind;
use longhaul_block::testing::FaultDisk;
use longhaul_block::{BlockDevice, BlockIo, WriteFlags};
use longhaul_engine::{Buf, BufMut, now, sleep, timeout};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const UNIT: u64 = 16 << 10;
const SIZE: u64 = 8 << 20;
/// A disk answers after twice this time.
const HALF: Duration = Duration::from_millis(7);
/// Stripes that are being written when the host is lost.
const STRIPES: u64 = 96;

fn disks() -> (Vec<FaultDisk>, Vec<Arc<dyn BlockDevice>>) {
    let disks = shared(4, SIZE);
    let devices = seen_by(&disks, None);
    (disks, devices)
}

/// An array of these devices; its UUID.
async fn make(devices: &[Arc<dyn BlockDevice>]) -> Uuid {
    let shape = Shape { name: "test".into(), layout: Layout::Parity, unit: UNIT, force: false };
    let mut random = Rng::with_seed(3);
    create_as(devices, &[], &shape, || uuid(&mut random)).await.expect("made")
}

/// Watches until no session runs the array.
async fn watched(devices: &[Arc<dyn BlockDevice>], array: Uuid) -> Options {
    let stood_still = wait_for_end(devices, array, &options(), || false).await;
    Options { stood_still, ..options() }
}

async fn assemble(
    devices: &[Arc<dyn BlockDevice>],
    options: Options,
    session: u64,
) -> Result<Arc<ArrayDevice>, ArrayError> {
    assemble_as(devices, options, Uuid::from_u64_pair(7, session)).await
}

#[test]
fn the_journal_of_many_stripes_is_replayed_in_some_round_trips() {
    let (disks, devices) = disks();
    let stripe = 3 * UNIT;
    let array = simulate(1, async {
        let array = make(&devices).await;
        disks.iter().for_each(|disk| disk.delay(|| HALF));
        let device = assemble(&devices, options(), 1).await.expect("assembled");
        let io: Rc<dyn BlockIo> = device.open().await.expect("opened");
        let writes = (0..STRIPES).map(|n| {
            let block = Buf::copy_of(&[n as u8; BLOCK as usize]);
            io.write(n * stripe, block, WriteFlags::default())
        });
        let results = join_all(writes.collect::<Vec<_>>()).await;
        results.into_iter().for_each(|result| result.expect("written"));
        // The host is lost here.
        array
    });
    simulate(2, async {
        let options = watched(&devices, array).await;
        let began = now();
        let device = assemble(&devices, options, 2).await.expect("assembled");
        let round_trips = (now() - began).as_micros() / (2 * HALF).as_micros();
        // One stripe after another takes several for each.
        assert!(round_trips < u128::from(STRIPES) * 2 / 3, "{round_trips} round trips");
        let io = device.open().await.expect("opened");
        for n in 0..STRIPES {
            let bytes = io.read(n * stripe, BufMut::zeroed(BLOCK as usize)).await.expect("read");
            assert!(bytes.iter().all(|byte| *byte == n as u8), "stripe {n}");
        }
    });
}

/// Of two hosts that watched and began at the same moment, the one that does not get the array watches
/// again at once: it does not wait for the time of a takeover first.
#[test]
fn a_host_that_was_slower_watches_again_at_once() {
    // Without reservations neither may get it, if they are as fast.
    let cases = [0, 20, 40, 100, 1000].map(|delay| (true, delay)).into_iter().chain([(false, 1000)]);
    for (reserved, delay) in cases {
        simulate(4 + delay, async {
            let (disks, devices) = disks();
            let array = make(&devices).await;
            disks.iter().for_each(|disk| disk.delay(|| HALF));
            let [one, two] = [1, 2].map(|host| seen_by(&disks, reserved.then_some(host)));
            let (first, second) = join(watched(&one, array), watched(&two, array)).await;
            let slower = async {
                sleep(Duration::from_millis(delay)).await;
                let began = now();
                (assemble(&two, second, 2).await, now() - began)
            };
            let (first, (second, took)) = join(assemble(&one, first, 1), slower).await;
            let winner = match (first, second) {
                (Ok(winner), Err(ArrayError::InUse(_) | ArrayError::Reserved { .. })) => winner,
                (first, second) => panic!("after {delay} ms: {:?} and {:?}", first.err(), second.err()),
            };
            assert!(took < options().heartbeat, "reserved {reserved}, after {delay} ms: it took {took:?}");
            winner.stop().await.expect("stopped");
            let again = watched(&two, array).await;
            assemble(&two, again, 3).await.expect("the slower host has it now");
        });
    }
}

/// A host was lost between its reservations and its first heartbeat. The next one waits for that heartbeat,
/// and takes the reservations over.
#[test]
fn reservations_without_a_heartbeat_do_not_keep_others_out() {
    let (disks, devices) = disks();
    let array = simulate(5, make(&devices));
    simulate(6, async {
        disks.iter().for_each(|disk| disk.hold(OpKind::Write, 1));
        let one = seen_by(&disks, Some(1));
        let lost = timeout(Duration::from_secs(60), assemble(&one, options(), 1)).await;
        assert!(lost.is_err(), "it has begun, without its heartbeat");
        assert!(disks.iter().all(|disk| disk.reservation().holder.is_some()), "it has no reservations");
        disks.iter().for_each(|disk| disk.hold(OpKind::Write, 0));
    });
    simulate(7, async {
        let two = seen_by(&disks, Some(2));
        let watched = watched(&two, array).await;
        assemble(&two, watched, 2).await.expect("taken over");
    });
}
