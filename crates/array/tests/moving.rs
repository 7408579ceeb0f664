//! Members that move to other devices while users write: what survives crashes and failures of either
//! device, and that no redundancy is lost meanwhile.

mod common;

use common::rig::{Rig, SIZE, UNIT, rig};
use common::{Disk, LAYOUTS, Model, disks, make, options, simulate, start};
use fastrand::Rng;
use futures_util::future::{Either, join, select};
use longhaul_array::{ArrayDevice, ArrayError, Condition, Health, Label, Layout, Options, survey};
use longhaul_block::{BlockDevice, BlockIo};
use longhaul_engine::{now, sleep, spawn, timeout};
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

fn new_disk(rig: &Rig) -> Arc<Disk> {
    Arc::new(Disk::new("new", SIZE, &rig.power))
}

/// Waits until a move has begun to copy, at a rate at which it takes some seconds.
async fn copying(array: &ArrayDevice) {
    array.set_rebuild_rate(Some(1 << 20)).await.expect("set");
    while array.status().await.expect("status").rebuild.is_none() {
        sleep(Duration::from_millis(1)).await;
    }
}

/// The members of the array among the disks: what the device layer hands over.
async fn members(disks: &[Arc<Disk>]) -> Vec<Arc<Disk>> {
    let labels = survey(&common::devices(disks)).await;
    let is_member = |(disk, label): (&Arc<Disk>, Result<Option<Label>, ArrayError>)| {
        label.expect("read").is_some_and(|label| label.current).then(|| Arc::clone(disk))
    };
    disks.iter().zip(labels).filter_map(is_member).collect()
}

#[test]
fn a_member_moves_while_users_write() {
    for (layout, width) in LAYOUTS {
        for seed in 0..8 {
            simulate(seed, async {
                let rig = rig(layout, width, options()).await;
                rig.fill().await;
                let new = new_disk(&rig);
                let array = Arc::clone(&rig.array);
                let moved = array.move_member(1, Arc::clone(&new) as _, false);
                let (moved, ()) = join(moved, rig.write_some(seed, 300)).await;
                moved.unwrap_or_else(|e| panic!("{layout}: {e}"));
                // Nothing depends on the device that it was on.
                rig.disks[1].unreachable.store(true, SeqCst);
                let status = rig.array.status().await.expect("status");
                assert_eq!(
                    (status.health, status.members[1].device.as_deref()),
                    (Health::Healthy, Some("new"))
                );
                assert_eq!(status.rebuild, None);
                rig.write_some(seed + 1, 50).await;
                rig.model.check(&*rig.io).await.unwrap_or_else(|e| panic!("{layout}: {e}"));
                if layout != Layout::Stripe {
                    // What it has is right: another member is not asked.
                    rig.disks[0].unreachable.store(true, SeqCst);
                    rig.model.check(&*rig.io).await.unwrap_or_else(|e| panic!("{layout}: {e}"));
                    rig.disks[0].unreachable.store(false, SeqCst);
                    rig.array.wait_healthy().await.expect("back");
                    let report = rig.array.scrub().await.expect("scrubbed");
                    assert_eq!((report.wrong.iter().sum::<u64>(), report.lost), (0, 0), "{layout}");
                }
                rig.array.stop().await.expect("stopped");
                // It is found again without the old device, and with it.
                let mut disks = rig.disks.clone();
                disks[1].unreachable.store(false, SeqCst);
                disks.push(new);
                for with_old in [true, false] {
                    if !with_old {
                        disks.remove(1);
                    }
                    let array = start(&members(&disks).await, options()).await.expect("assembled");
                    let status = array.status().await.expect("status");
                    assert_eq!(status.health, Health::Healthy);
                    assert!(status.members.iter().any(|m| m.device.as_deref() == Some("new")));
                    rig.model.check(&*array.open().await.expect("opened")).await.expect("read");
                    array.stop().await.expect("stopped");
                }
            });
        }
    }
}

/// Another member may fail at any time of the move: nothing is lost, as the member is in use.
#[test]
fn a_move_lowers_no_redundancy() {
    for (layout, width) in LAYOUTS.into_iter().skip(1) {
        for after in [0, 30, 100, 200] {
            simulate(after, async {
                let rig = rig(layout, width, options()).await;
                rig.fill().await;
                let new = new_disk(&rig);
                let array = Arc::clone(&rig.array);
                let fail = async {
                    while new.writes.load(SeqCst) < after {
                        sleep(Duration::from_micros(200)).await;
                    }
                    assert_eq!(rig.condition(1).await, Condition::Active);
                    rig.disks[0].unreachable.store(true, SeqCst);
                    rig.write_some(after, 100).await;
                    rig.model.check(&*rig.io).await.unwrap_or_else(|e| panic!("{layout}: {e}"));
                };
                let (moved, ()) = join(array.move_member(1, Arc::clone(&new) as _, false), fail).await;
                moved.expect("moved");
                rig.disks[1].unreachable.store(true, SeqCst);
                rig.model.check(&*rig.io).await.unwrap_or_else(|e| panic!("{layout}: {e}"));
            });
        }
    }
}

/// Writes and flushes, until `count` are done or `ended` is set.
async fn load(io: &Rc<dyn BlockIo>, model: &Model, seed: u64, count: u64, ended: &Cell<bool>) {
    let mut random = Rng::with_seed(seed);
    for _ in 0..count {
        if ended.get() {
            return;
        }
        let blocks = 1 + random.u64(..14);
        let first = random.u64(..model.blocks() - blocks);
        model.write(&**io, first, blocks).await.expect("written");
        if random.u64(..4) == 0 {
            io.flush().await.expect("flushed");
        }
    }
}

/// The power fails after some number of writes of a move under load. What was acknowledged is there
/// then, on the old device or the new one, and the move can be made again.
fn cut(layout: Layout, width: usize, fuse: u64, seed: u64) -> &'static str {
    let (mut disks, power) = disks(width, SIZE);
    let size = simulate(seed, async {
        make(&disks, layout, UNIT).await;
        start(&disks, options()).await.expect("assembled").info().size
    });
    let (model, new) = (Model::new(size), Arc::new(Disk::new("new", SIZE, &power)));
    let engine = longhaul_engine::Engine::simulated(seed).expect("engine");
    let is_done = engine.block_on(async {
        let array = start(&disks, options()).await.expect("assembled");
        let io = array.open().await.expect("opened");
        load(&io, &model, seed, 60, &Cell::default()).await;
        power.light(fuse, seed);
        let ended = Cell::new(false);
        let moving = async {
            let moved = array.move_member(1, Arc::clone(&new) as _, false).await;
            ended.set(true);
            moved
        };
        let work = pin!(join(moving, load(&io, &model, !seed, u64::MAX, &ended)));
        match select(work, pin!(power.lost())).await {
            Either::Left(((moved, ()), _)) => {
                moved.expect("moved");
                true
            }
            Either::Right(_) => {
                power.off.store(true, SeqCst);
                false
            }
        }
    });
    drop(engine);
    power.restore();
    if is_done {
        return "done";
    }
    model.crashed();
    disks.push(Arc::clone(&new));
    simulate(!seed, async {
        let array = start(&members(&disks).await, options()).await.expect("assembled after the crash");
        let io = array.open().await.expect("opened");
        let status = array.status().await.expect("status");
        assert_eq!(status.health, Health::Healthy, "{layout} {fuse}: {}", status.detail);
        model.check(&*io).await.unwrap_or_else(|e| panic!("{layout}, after {fuse} writes: {e}"));
        let has_moved = status.members[1].device.as_deref() == Some("new");
        if !has_moved {
            let (moved, ()) = join(
                array.move_member(1, Arc::clone(&new) as _, false),
                load(&io, &model, seed, 20, &Cell::default()),
            )
            .await;
            moved.unwrap_or_else(|e| panic!("{layout}, after {fuse} writes, again: {e}"));
        }
        disks[1].unreachable.store(true, SeqCst);
        model.check(&*io).await.unwrap_or_else(|e| panic!("{layout}, after {fuse} writes, moved: {e}"));
        array.stop().await.expect("stopped");
        if has_moved { "moved" } else { "again" }
    })
}

/// Every second step, or with `ARRAY_SEEDS` all of them, so many times.
#[test]
fn a_power_cut_at_any_step_loses_nothing() {
    let seeds: Option<u64> = std::env::var("ARRAY_SEEDS").ok().and_then(|n| n.parse().ok());
    let (seeds, stride) = seeds.map_or((1, 2), |seeds| (seeds, 1));
    let mut all_moved = 0;
    for (layout, width) in LAYOUTS {
        let (mut again, mut moved) = (0, 0);
        for seed in 0..seeds {
            for fuse in (0..).step_by(stride) {
                match cut(layout, width, fuse, seed * 1000 + fuse) {
                    "done" => break,
                    "moved" => moved += 1,
                    _ => again += 1,
                }
            }
        }
        assert!(again > 20, "{layout}: {again} began again, {moved} had moved");
        all_moved += moved;
    }
    // The last steps are few, and of one layout the power may fail beside them.
    assert!(all_moved > 0, "no cut came when the member had moved");
}

/// A new device that fails, hangs or forgets ends the move, and nothing else.
#[test]
fn a_new_device_that_fails_costs_no_member() {
    type Failure = (&'static str, fn(&Disk));
    let failures: [Failure; 4] = [
        ("cut off", |disk| disk.unreachable.store(true, SeqCst)),
        ("worn", |disk| disk.worn.store(true, SeqCst)),
        ("silent", |disk| disk.silent.store(true, SeqCst)),
        ("reconnected", |disk| _ = disk.generation.fetch_add(1, SeqCst)),
    ];
    for (what, fail) in failures {
        simulate(3, async {
            let rig = rig(Layout::Parity, 3, options()).await;
            rig.fill().await;
            let new = new_disk(&rig);
            let array = Arc::clone(&rig.array);
            let failing = async {
                copying(&array).await;
                fail(&new);
                rig.write_some(5, 100).await;
            };
            let (moved, ()) = join(array.move_member(1, Arc::clone(&new) as _, false), failing).await;
            let error = moved.expect_err(what).to_string();
            assert!(error.contains("member 1 is not moved: the new device has failed"), "{what}: {error}");
            let status = array.status().await.expect("status");
            assert_eq!(status.health, Health::Healthy, "{what}: {}", status.detail);
            assert_eq!(status.members[1].device.as_deref(), Some("disk1"));
            rig.model.check(&*rig.io).await.expect(what);
            if what == "silent" {
                // What it was sent may still land: it is not used before that.
                let again = array.move_member(1, Arc::clone(&new) as _, false);
                let error = again.await.expect_err("writes are left").to_string();
                assert!(error.contains("have not ended"), "{error}");
                new.silent.store(false, SeqCst);
                sleep(Duration::from_secs(1)).await;
                array.move_member(1, Arc::clone(&new) as _, false).await.expect("moved");
            } else {
                let other = Arc::new(Disk::new("other", SIZE, &rig.power));
                array.move_member(1, other, false).await.expect("moved");
            }
            rig.disks[1].unreachable.store(true, SeqCst);
            rig.model.check(&*rig.io).await.expect(what);
            assert_eq!(array.status().await.expect("status").health, Health::Healthy);
        });
    }
}

#[test]
fn a_member_that_is_lost_while_it_moves_is_replaced_instead() {
    simulate(4, async {
        let rig = rig(Layout::Parity, 3, options()).await;
        rig.fill().await;
        let (new, array) = (new_disk(&rig), Arc::clone(&rig.array));
        let failing = async {
            copying(&array).await;
            rig.disks[1].unreachable.store(true, SeqCst);
            rig.write_some(5, 100).await;
        };
        let (moved, ()) = join(array.move_member(1, Arc::clone(&new) as _, false), failing).await;
        let error = moved.expect_err("lost").to_string();
        assert!(error.contains("member 1 is not moved"), "{error}");
        rig.model.check(&*rig.io).await.expect("read");
        let error =
            array.move_member(1, Arc::clone(&new) as _, false).await.expect_err("missing").to_string();
        assert!(error.contains("it is Offline: replace it instead"), "{error}");
        array.replace(1, Arc::clone(&new) as _, false).await.expect("replaced");
        array.wait_healthy().await.expect("rebuilt");
        rig.disks[0].unreachable.store(true, SeqCst);
        rig.model.check(&*rig.io).await.expect("read");
    });
}

#[test]
fn content_that_cannot_be_read_is_repaired_or_not_copied() {
    for (layout, width) in [(Layout::Parity, 3), (Layout::Mirror, 2), (Layout::Stripe, 3)] {
        simulate(5, async {
            let rig = rig(layout, width, options()).await;
            rig.fill().await;
            rig.disks[1].bad.lock().unwrap().insert((2 << 20) / 512);
            let new = new_disk(&rig);
            let moved = rig.array.move_member(1, Arc::clone(&new) as _, false).await;
            assert_eq!(rig.condition(1).await, Condition::Active);
            if layout == Layout::Stripe {
                let error = moved.expect_err("unreadable").to_string();
                assert!(error.contains("cannot be read, nor repaired"), "{error}");
                return;
            }
            moved.unwrap_or_else(|e| panic!("{layout}: {e}"));
            rig.disks[1].unreachable.store(true, SeqCst);
            rig.disks[0].unreachable.store(true, SeqCst);
            rig.model.check(&*rig.io).await.unwrap_or_else(|e| panic!("{layout}: {e}"));
        });
    }
}

#[test]
fn a_move_is_waited_for_given_up_and_limited() {
    simulate(6, async {
        let rig = Rc::new(rig(Layout::Parity, 3, options()).await);
        rig.fill().await;
        let (new, array) = (new_disk(&rig), Arc::clone(&rig.array));
        array.set_rebuild_rate(Some(1 << 20)).await.expect("set");
        let began = now();
        let begin = || {
            let (array, new) = (Arc::clone(&array), Arc::clone(&new));
            spawn(async move { array.move_member(1, new, false).await })
        };
        let (first, second) = (begin(), begin());
        sleep(Duration::from_secs(2)).await;
        let progress = array.status().await.expect("status").rebuild.expect("shown");
        assert!(progress.member == 1 && progress.done < progress.total, "{progress:?}");
        let other = Arc::new(Disk::new("other", SIZE, &rig.power));
        let error = array.move_member(1, other, false).await.expect_err("another").to_string();
        assert!(error.contains("it moves to new already"), "{error}");
        assert!(!array.cancel_move("new").await.expect("given up"));
        for ended in [first.await, second.await] {
            let error = ended.expect_err("given up").to_string();
            assert!(error.contains("the move was given up"), "{error}");
        }
        // Nearly 4 MiB at 1 MiB/s.
        let began_again = now();
        array.move_member(1, Arc::clone(&new) as _, false).await.expect("moved");
        assert!(now() - began_again >= Duration::from_secs(3) && now() - began < Duration::from_secs(60));
        assert!(array.cancel_move("new").await.expect("asked"), "it is a member");
        rig.disks[1].unreachable.store(true, SeqCst);
        rig.model.check(&*rig.io).await.expect("read");
        // An array that stops does not wait for the end of a move.
        let back = Arc::clone(&rig.disks[1]);
        back.unreachable.store(false, SeqCst);
        let moving = {
            let array = Arc::clone(&array);
            spawn(async move { array.move_member(1, back, true).await })
        };
        sleep(Duration::from_secs(2)).await;
        array.stop().await.expect("stopped");
        moving.await.expect_err("stopped");
    });
}

#[test]
fn an_array_grows_while_a_member_moves() {
    simulate(7, async {
        let rig = rig(Layout::Parity, 3, options()).await;
        rig.fill().await;
        let new = Arc::new(Disk::new("new", 2 * SIZE, &rig.power));
        let array = Arc::clone(&rig.array);
        let growing = async {
            copying(&array).await;
            rig.disks.iter().for_each(|disk| disk.grow(2 * SIZE));
            let (before, after) = array.grow().await.expect("grown");
            assert!(after > before);
            rig.model.grow(after);
            rig.write_some(9, 200).await;
        };
        let (moved, ()) = join(array.move_member(1, Arc::clone(&new) as _, false), growing).await;
        moved.expect("moved");
        rig.disks[1].unreachable.store(true, SeqCst);
        rig.disks[0].unreachable.store(true, SeqCst);
        rig.model.check(&*rig.io).await.expect("read");
    });
}

#[test]
fn a_spare_leaves_and_another_takes_its_place() {
    simulate(8, async {
        let rig = rig(Layout::Parity, 3, Options { spare_grace: Duration::from_secs(1), ..options() }).await;
        rig.fill().await;
        let spare = |name: &str| Arc::new(Disk::new(name, SIZE, &rig.power));
        let (first, second) = (spare("first"), spare("second"));
        rig.array.add_spare(Arc::clone(&first) as _, false).await.expect("added");
        rig.array.add_spare(Arc::clone(&second) as _, false).await.expect("added");
        rig.array.remove_spare("first").await.expect("removed");
        rig.array.remove_spare("first").await.expect_err("no spare any more");
        assert_eq!(rig.array.status().await.expect("status").spares, ["second"]);
        rig.disks[0].unreachable.store(true, SeqCst);
        rig.write_some(1, 10).await;
        sleep(Duration::from_secs(5)).await;
        rig.array.wait_healthy().await.expect("replaced");
        assert_eq!(rig.array.status().await.expect("status").members[0].device.as_deref(), Some("second"));
        rig.model.check(&*rig.io).await.expect("read");
    });
}

/// A device that answers nothing while it is prepared fails the change after the timeout of a member, and
/// not when its connection is given up; until its operations have ended it is not used.
#[test]
fn a_device_that_is_silent_while_it_is_prepared_holds_nothing_up() {
    simulate(9, async {
        let rig = rig(Layout::Parity, 3, options()).await;
        rig.fill().await;
        // From the first read on, and from the first write on.
        for from_writes in [false, true] {
            for change in ["move", "replace", "spare"] {
                let name = format!("{change} {from_writes}");
                let new = Arc::new(Disk::new(&name, SIZE, &rig.power));
                let hang = async {
                    if !from_writes {
                        new.silent.store(true, SeqCst);
                        return;
                    }
                    while new.writes.load(SeqCst) == 0 {
                        sleep(Duration::from_micros(10)).await;
                    }
                    new.silent.store(true, SeqCst);
                };
                let changing = async {
                    let new = Arc::clone(&new) as Arc<dyn BlockDevice>;
                    match change {
                        "move" => rig.array.move_member(1, new, false).await,
                        "replace" => rig.array.replace(1, new, false).await,
                        _ => rig.array.add_spare(new, false).await,
                    }
                };
                let began = now();
                let (result, ()) = join(changing, hang).await;
                let error = result.expect_err(change).to_string();
                assert!(error.contains("answer"), "{change}, {from_writes}: {error}");
                assert!(now() - began < 4 * options().member_timeout, "{change}: {:?}", now() - began);
                let status = rig.array.status().await.expect("status");
                assert_eq!(status.health, Health::Healthy, "{change}: {}", status.detail);
                rig.write_some(3, 30).await;
                if from_writes && change != "move" {
                    let again = rig.array.add_spare(Arc::clone(&new) as _, false).await;
                    let error = again.expect_err("operations are left").to_string();
                    assert!(error.contains("have not ended") || error.contains("answer"), "{error}");
                }
                new.silent.store(false, SeqCst);
            }
        }
        rig.model.check(&*rig.io).await.expect("read");
    });
}

/// A spare that does not answer is passed over, and the array goes on with its upkeep.
#[test]
fn a_silent_spare_keeps_no_other_from_its_place() {
    simulate(10, async {
        let rig = rig(Layout::Parity, 3, Options { spare_grace: Duration::from_secs(1), ..options() }).await;
        rig.fill().await;
        let spare = |name: &str| Arc::new(Disk::new(name, SIZE, &rig.power));
        let (good, silent) = (spare("good"), spare("silent"));
        rig.array.add_spare(Arc::clone(&good) as _, false).await.expect("added");
        // The last one is tried first.
        rig.array.add_spare(Arc::clone(&silent) as _, false).await.expect("added");
        silent.silent.store(true, SeqCst);
        rig.disks[0].unreachable.store(true, SeqCst);
        rig.write_some(1, 10).await;
        let replaced = async {
            while rig.array.status().await.expect("status").members[0].device.as_deref() != Some("good") {
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(Duration::from_secs(120), Box::pin(replaced)).await.expect("the other spare takes the place");
        rig.array.wait_healthy().await.expect("rebuilt");
        rig.model.check(&*rig.io).await.expect("read");
    });
}

/// Writes that the old device does not answer keep their turns; the move ends when the member is lost all
/// the same.
#[test]
fn a_silent_member_ends_its_move() {
    simulate(11, async {
        let rig = rig(Layout::Parity, 3, options()).await;
        rig.fill().await;
        let (new, array) = (new_disk(&rig), Arc::clone(&rig.array));
        let failing = async {
            copying(&array).await;
            rig.disks[1].silent.store(true, SeqCst);
            // All of it, so that what is copied next is under such a write.
            rig.fill().await;
        };
        let moving = join(array.move_member(1, Arc::clone(&new) as _, false), failing);
        let (moved, ()) =
            timeout(Duration::from_secs(120), Box::pin(moving)).await.expect("the move ends with its member");
        let error = moved.expect_err("lost").to_string();
        assert!(error.contains("member 1 is not moved"), "{error}");
        array.replace(1, Arc::clone(&new) as _, false).await.expect("replaced");
        array.wait_healthy().await.expect("rebuilt");
        rig.model.check(&*rig.io).await.expect("read");
    });
}
