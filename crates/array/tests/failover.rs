//! How long operations wait for an unreachable member.

mod common;

use common::rig::{Rig, UNIT, rig};
use common::{disks, make, options, simulate, start};
use fastrand::Rng;
use futures_util::future::join_all;
use longhaul_array::{Condition, Health, Layout, Options};
use longhaul_block::BlockDevice;
use longhaul_engine::{now, sleep};
use std::cell::Cell;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Duration of a disk operation, in microseconds.
const SLOW: u64 = 15_000;
/// Extra time for an operation that is under way when a member is lost: some dozen disk operations.
const REST: Duration = Duration::from_secs(1);

const REDUNDANT: [Layout; 4] = [Layout::Parity, Layout::DoubleParity, Layout::Mirror, Layout::StripeMirror];

async fn slow_rig(layout: Layout, options: Options) -> Rig {
    let rig = rig(layout, 4, options).await;
    rig.disks.iter().for_each(|disk| disk.slow.store(SLOW, SeqCst));
    rig
}

/// Sequential and random writers, and a reader, for the given time; returns the longest write and
/// the longest read.
async fn load(rig: &Rig, seed: u64, time: Duration) -> (Duration, Duration) {
    let end = now() + time;
    let (longest, late) = (Cell::new(Duration::ZERO), Cell::new(Duration::ZERO));
    let blocks = rig.model.blocks();
    let client = async |n: u64| {
        let mut random = Rng::with_seed(seed ^ n << 32);
        let mut next = n * blocks / 8;
        while now() < end {
            let began = now();
            let count = if n < 4 { 12 } else { 1 + random.u64(..3) };
            let first = if n < 4 { next } else { random.u64(..blocks - count) };
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
fn operations_wait_no_longer_than_the_offline_timeout() {
    for (seed, layout) in (0..8).zip(REDUNDANT.into_iter().flat_map(|layout| [layout; 2])) {
        simulate(seed, async {
            let options = options();
            let limit = if seed % 2 == 0 { options.member_timeout } else { options.offline_timeout };
            let rig = slow_rig(layout, options).await;
            let (write, read) = load(&rig, seed, Duration::from_secs(20)).await;
            assert!(write < limit + REST, "{layout}: a write took {write:?}, and {limit:?} are allowed");
            assert!(write > limit / 2, "{layout}: {write:?} for writes that the member was asked for");
            assert!(read < limit + REST, "{layout}: a read took {read:?}");
            assert_eq!(rig.condition(1).await, Condition::Offline);
            rig.model.check(&*rig.io).await.expect("read");
        });
    }
}

/// Reads and journal writes do not wait for a member that is known to be unreachable.
#[test]
fn reads_and_small_writes_avoid_an_unreachable_member() {
    for layout in REDUNDANT {
        simulate(9, async {
            let rig = slow_rig(layout, Options { hedge_percent: 0, ..options() }).await;
            rig.fill().await;
            sleep(Duration::from_secs(10)).await;
            rig.disks[1].disconnect();
            let began = now();
            for first in 0..20 {
                // Elsewhere, since a reader of a stripe that is being written waits for the write.
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
            // The member was not marked offline so soon, and needs no resync when it returns.
            assert_eq!(rig.condition(1).await, Condition::Active, "{layout}");
            rig.disks[1].reconnect();
            sleep(Duration::from_secs(5)).await;
            assert_eq!(rig.array.status().await.expect("status").health, Health::Healthy, "{layout}");
            rig.model.check(&*rig.io).await.expect("read");
        });
    }
}

/// The array's own connection was cut for about as long as a member may be silent, and the members return one
/// after another: at the time-out of a request to one of them the others have just answered. None is lost.
#[test]
fn members_that_were_silent_together_are_not_lost_as_they_return() {
    let limit = options().member_timeout;
    for (n, layout) in REDUNDANT.into_iter().cycle().take(120).enumerate() {
        simulate(n as u64, async {
            let rig = rig(layout, 4, options()).await;
            rig.write_some(1, 10).await;
            sleep(Duration::from_secs(5)).await;
            rig.disks.iter().for_each(|disk| disk.silent.store(true, SeqCst));
            let reconnect = async {
                sleep(limit - Duration::from_millis(300) + Duration::from_millis(20) * n as u32).await;
                for disk in &rig.disks {
                    disk.silent.store(false, SeqCst);
                    sleep(Duration::from_millis(30)).await;
                }
            };
            futures_util::join!(rig.write_some(2, 5), rig.model.read(&*rig.io, 0, 12), reconnect)
                .1
                .expect("read");
            for member in 0..4 {
                let condition = rig.condition(member).await;
                assert_eq!(condition, Condition::Active, "{layout} {n}: member {member}");
            }
            rig.model.check(&*rig.io).await.expect("read");
        });
    }
}

/// If more members are unreachable than the redundancy allows, the array's own connection is at
/// fault: operations wait as for any device, whether the devices report it or not.
#[test]
fn operations_wait_for_members_that_the_array_needs() {
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

/// A member that is slower to return than the others is not marked offline when the first one is
/// back.
#[test]
fn a_slower_member_is_not_lost_when_others_return_first() {
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
fn a_needed_member_that_stays_offline_halts_the_array() {
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
fn no_member_is_lost_while_all_are_unreachable() {
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
fn a_member_marked_offline_is_resynced_when_it_returns() {
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
        assert_eq!(lost.condition, Condition::Offline);
        assert!(lost.reason.contains("it has lost its connection 2."), "{}", lost.reason);
        disks[2].reconnect();
        array.wait_healthy().await.expect("healthy");
        disks[0].unreachable.store(true, SeqCst);
        model.check(&*io).await.expect("read");
    });
}
