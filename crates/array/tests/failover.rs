//! How long anybody waits for a member that is gone.

mod common;

use common::rig::{Rig, UNIT, rig};
use common::{Dice, disks, make, options, simulate, start};
use futures_util::future::join_all;
use longhaul_array::{Condition, Health, Layout, Options};
use longhaul_block::BlockDevice;
use longhaul_engine::{now, sleep};
use std::cell::Cell;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// How long an operation of a disk takes here, in microseconds.
const SLOW: u64 = 15_000;
/// What an operation that is begun when a member is lost, or goes on then, may
/// take besides: some dozen operations of disks.
const REST: Duration = Duration::from_secs(1);

const REDUNDANT: [Layout; 4] = [Layout::Parity, Layout::DoubleParity, Layout::Mirror, Layout::StripeMirror];

async fn slow_rig(layout: Layout, options: Options) -> Rig {
    let rig = rig(layout, 4, options).await;
    rig.disks.iter().for_each(|disk| disk.slow.store(SLOW, SeqCst));
    rig
}

/// Writers, in order and at random, and a reader, for so long; the longest
/// write and the longest read.
async fn load(rig: &Rig, seed: u64, time: Duration) -> (Duration, Duration) {
    let end = now() + time;
    let (longest, late) = (Cell::new(Duration::ZERO), Cell::new(Duration::ZERO));
    let blocks = rig.model.blocks();
    let client = async |n: u64| {
        let mut dice = Dice(seed ^ n << 32);
        let mut next = n * blocks / 8;
        while now() < end {
            let began = now();
            let count = if n < 4 { 12 } else { 1 + dice.below(3) };
            let first = if n < 4 { next } else { dice.below(blocks - count) };
            next = if next + 2 * count > blocks { 0 } else { next + count };
            let (done, worst) = if n == 7 {
                (rig.model.read(&*rig.io, first, count).await, &late)
            } else {
                (rig.model.write(&*rig.io, first, count).await, &longest)
            };
            if done.expect("no error") {
                worst.set(worst.get().max(now() - began));
            } else {
                sleep(Duration::from_millis(1)).await;
            }
        }
    };
    let cut = async {
        sleep(Duration::from_secs(2)).await;
        match seed % 2 {
            0 => rig.disks[1].silent.store(true, SeqCst),
            _ => rig.disks[1].disconnect(),
        }
    };
    futures_util::join!(join_all((0..8).map(client)), cut);
    (longest.get(), late.get())
}

#[test]
fn nobody_waits_longer_than_it_takes_to_give_a_member_up() {
    for (seed, layout) in (0..8).zip(REDUNDANT.into_iter().flat_map(|layout| [layout; 2])) {
        simulate(seed, async {
            let options = options();
            let limit = if seed % 2 == 0 { options.member_timeout } else { options.away_timeout };
            let rig = slow_rig(layout, options).await;
            let (write, read) = load(&rig, seed, Duration::from_secs(20)).await;
            assert!(write < limit + REST, "{layout}: a write took {write:?}, and {limit:?} are allowed");
            assert!(write > limit / 2, "{layout}: {write:?} for writes that the member was asked for");
            assert!(read < limit + REST, "{layout}: a read took {read:?}");
            assert_eq!(rig.condition(1).await, Condition::Absent);
            rig.model.check(&*rig.io).await.expect("read");
        });
    }
}

/// What is read, and what goes to the journal, waits for nobody who is known to
/// be out of reach.
#[test]
fn reads_and_small_writes_go_around_a_member_that_is_out_of_reach() {
    for layout in REDUNDANT {
        simulate(9, async {
            let rig = slow_rig(layout, Options { hedge_percent: 0, ..options() }).await;
            rig.fill().await;
            sleep(Duration::from_secs(10)).await;
            rig.disks[1].disconnect();
            let began = now();
            for first in 0..20 {
                // Elsewhere: who reads a stripe that is being written waits for that.
                rig.model.read(&*rig.io, rig.model.blocks() / 2 + first * 7, 3).await.expect("read");
                if layout == Layout::Parity || layout == Layout::DoubleParity {
                    rig.model.write(&*rig.io, first * 11, 1).await.expect("written");
                }
                let took = now() - began;
                if took > Duration::from_secs(1) {
                    assert!(first > 8, "{layout}: {first} took {took:?}");
                    break;
                }
            }
            // It was not given up so soon, and is not missed when it is back.
            assert_eq!(rig.condition(1).await, Condition::Active, "{layout}");
            rig.disks[1].reconnect();
            sleep(Duration::from_secs(5)).await;
            assert_eq!(rig.array.status().await.expect("status").health, Health::Healthy, "{layout}");
            rig.model.check(&*rig.io).await.expect("read");
        });
    }
}

/// Where more are out of reach than may be lost it is the array's own
/// connection that is: it waits for them as for any device, whether they know or
/// not.
#[test]
fn who_is_needed_is_waited_for() {
    for (layout, knows) in REDUNDANT.into_iter().chain([Layout::Stripe]).flat_map(|l| [(l, false), (l, true)])
    {
        simulate(12, async {
            let rig = slow_rig(layout, options()).await;
            rig.write_some(1, 10).await;
            for disk in &rig.disks {
                if knows { disk.disconnect() } else { disk.silent.store(true, SeqCst) }
            }
            let (began, minute) = (now(), Duration::from_secs(60));
            let load = async {
                rig.write_some(2, 5).await;
                rig.model.read(&*rig.io, 0, 12).await.expect("read");
                now() - began
            };
            let back = async {
                sleep(minute / 2).await;
                let status = rig.array.status().await.expect("status");
                assert_eq!(status.health, Health::Degraded);
                assert!(status.detail.starts_with("waits for members 0, 1, 2, 3"), "{}", status.detail);
                sleep(minute / 2).await;
                rig.disks.iter().for_each(|disk| disk.reconnect());
            };
            let (took, ()) = futures_util::join!(load, back);
            assert!(took > minute && took < minute + 4 * REST, "{layout} {knows}: {took:?}");
            sleep(minute).await;
            let status = rig.array.status().await.expect("status");
            assert_eq!(status.health, Health::Healthy, "{layout} {knows}: {status:?}");
            rig.model.check(&*rig.io).await.expect("read");
        });
    }
}

/// Who is slower to come back is not given up at the moment when the first one
/// is there.
#[test]
fn nobody_is_given_up_because_others_came_back_sooner() {
    for (layout, knows) in REDUNDANT.into_iter().flat_map(|l| [(l, false), (l, true)]) {
        simulate(15, async {
            let rig = slow_rig(layout, options()).await;
            rig.write_some(1, 10).await;
            for disk in &rig.disks {
                if knows { disk.disconnect() } else { disk.silent.store(true, SeqCst) }
            }
            let load = async { rig.write_some(2, 5).await };
            let back = async {
                sleep(Duration::from_secs(60)).await;
                for disk in &rig.disks {
                    disk.reconnect();
                    sleep(options().member_timeout / 2).await;
                }
            };
            futures_util::join!(load, back);
            let status = rig.array.status().await.expect("status");
            assert_eq!(status.health, Health::Healthy, "{layout} {knows}: {status:?}");
            rig.model.check(&*rig.io).await.expect("read");
        });
    }
}

#[test]
fn who_does_not_come_back_ends_the_wait() {
    simulate(13, async {
        let needed_timeout = Duration::from_secs(30);
        let rig = slow_rig(Layout::Stripe, Options { needed_timeout, ..options() }).await;
        rig.disks[0].disconnect();
        let began = now();
        let failed = rig.model.write(&*rig.io, 0, 16).await.expect_err("in vain").to_string();
        assert!(failed.contains("did not answer in 30 s"), "{failed}");
        assert!(now() - began < needed_timeout + REST, "{:?}", now() - began);
        assert_eq!(rig.array.status().await.expect("status").health, Health::Halted);
    });
}

#[test]
fn nobody_is_given_up_where_all_are_out_of_reach() {
    for layout in REDUNDANT.into_iter().chain([Layout::Stripe]) {
        simulate(10, async {
            let rig = slow_rig(layout, options()).await;
            rig.write_some(1, 5).await;
            rig.disks.iter().for_each(|disk| disk.disconnect());
            let write = async {
                rig.write_some(2, 5).await;
                now()
            };
            let back = async {
                sleep(Duration::from_secs(4)).await;
                rig.disks.iter().for_each(|disk| disk.reconnect());
                now()
            };
            let (written, back) = futures_util::join!(write, back);
            assert!(written >= back && written - back < Duration::from_secs(2), "{layout}");
            let status = rig.array.status().await.expect("status");
            assert!(status.members.iter().all(|m| m.condition == Condition::Active), "{layout} {status:?}");
            rig.model.check(&*rig.io).await.expect("read");
        });
    }
}

#[test]
fn a_member_that_is_given_up_catches_up_when_it_is_back() {
    let (disks, _power) = disks(4, 4 << 20);
    simulate(11, async {
        make(&disks, Layout::Parity, UNIT).await;
        let array = start(&disks, options()).await.expect("assembled");
        let io = array.open().await.expect("opened");
        let model = common::Model::new(array.info().size);
        model.write(&*io, 0, 12).await.expect("written");
        disks[2].disconnect();
        model.write(&*io, 0, 24).await.expect("written");
        let lost = array.status().await.expect("status").members[2].clone();
        assert_eq!(lost.condition, Condition::Absent);
        assert!(lost.reason.contains("it has lost its connection 2."), "{}", lost.reason);
        disks[2].reconnect();
        array.wait_healthy().await.expect("healthy");
        disks[0].unreachable.store(true, SeqCst);
        model.check(&*io).await.expect("read");
    });
}
