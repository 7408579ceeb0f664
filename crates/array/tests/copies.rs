//! Copies of all members that are made while an array is paused are an array of their own, with the
//! content of one moment: all that was acknowledged before, and nothing torn.

mod common;

use common::rig::{Rig, rig};
use common::{Disk, LAYOUTS, Model, devices, options, simulate, start};
use fastrand::Rng;
use longhaul_array::{ArrayError, Condition, Layout, Options, adopt_copies};
use longhaul_block::BlockDevice;
use longhaul_engine::{sleep, spawn, timeout};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use uuid::Uuid;

const MS: Duration = Duration::from_millis(1);
/// Clients of each array.
const CLIENTS: u64 = 6;
/// Pauses are over long before.
const LIMIT: Duration = Duration::from_secs(10);

/// Writes, zeroes and reads until `end`, and counts what is done.
async fn client(rig: Rc<Rig>, seed: u64, end: Rc<Cell<bool>>, done: Rc<Cell<u64>>) {
    let mut random = Rng::with_seed(seed);
    while !end.get() {
        let count = 1 + random.u64(..14);
        let first = random.u64(..rig.model.blocks() - count);
        let (model, io) = (&rig.model, &*rig.io);
        let result = match random.u64(..8) {
            0 => model.zero(io, first, count).await,
            1 => io.flush().await.map(|()| true),
            2 => model.read(io, first, count).await,
            _ => model.write(io, first, count).await,
        };
        result.expect("a pause is no error");
        done.set(done.get() + 1);
    }
}

/// Copies of all disks, one after another.
async fn copies(rig: &Rig) -> Vec<Arc<Disk>> {
    let mut copies = Vec::new();
    for (index, disk) in rig.disks.iter().enumerate() {
        sleep(20 * MS).await;
        copies.push(Arc::new(disk.cut(&format!("copy{index}"), disk.info().size)));
    }
    copies
}

/// The array that the copies are from now on has the content of the model, and redundancy that is right.
async fn check(copies: &[Arc<Disk>], of: Uuid, model: &Model) {
    let array = adopt_copies(&devices(copies), of, "copy").await.expect("adopted");
    assert_ne!(array, of);
    let again = adopt_copies(&devices(copies), of, "copy").await.expect_err("not twice");
    assert!(matches!(again, ArrayError::Foreign { .. }), "{again}");
    let copy = start(copies, options()).await.expect("assembled");
    assert_eq!((copy.info().name.as_str(), copy.info().uuid), ("array:copy", Some(array)));
    let io = copy.open().await.expect("opened");
    model.check(&*io).await.expect("read");
    let status = copy.status().await.expect("status");
    assert!(status.members.iter().all(|member| member.condition == Condition::Active));
    if status.geometry.redundancy() > 0 {
        let report = copy.scrub().await.expect("scrubbed");
        assert!(report.finished && report.repaired == 0 && report.disagreeing == 0, "{report:?}");
    }
    let blocks = model.blocks();
    assert!(model.write(&*io, blocks - 3, 3).await.expect("written"));
    model.check(&*io).await.expect("read");
    copy.stop().await.expect("stopped");
}

/// Copies an array under load.
fn copied_under_load(seed: u64, layout: Layout, width: usize) {
    simulate(seed, async {
        let options = Options { gather: Duration::from_micros(seed % 3 * 100), ..options() };
        let rig = Rc::new(rig(layout, width, options.clone()).await);
        rig.fill().await;
        let (end, done) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let clients = (0..CLIENTS).map(|number| {
            spawn(client(Rc::clone(&rig), seed * 100 + number, Rc::clone(&end), Rc::clone(&done)))
        });
        let clients: Vec<_> = clients.collect();
        let scrubbing = {
            let array = Arc::clone(&rig.array);
            spawn(async move { array.scrub().await.map(drop) })
        };
        sleep(Duration::from_micros(2000 + seed * 137)).await;
        let of = rig.array.info().uuid.expect("known");
        let pause = rig.array.pause(LIMIT).await.expect("paused");
        // What is done from here on reads, or is held: the copy has all that was acknowledged.
        let model = rig.model.copied();
        let copies = copies(&rig).await;
        let held = done.get();
        sleep(50 * MS).await;
        assert_eq!(done.get(), held, "{layout} seed {seed}: all clients are held");
        assert_eq!(rig.array.resume(pause).await, Ok(true));
        assert_eq!(rig.array.resume(pause).await, Ok(false), "it has ended");
        sleep(2 * MS).await;
        assert!(done.get() > held, "{layout} seed {seed}: they go on");
        end.set(true);
        for client in clients {
            timeout(LIMIT, client).await.expect("ends");
        }
        check(&copies, of, &model).await;
        let _ = timeout(60 * LIMIT, scrubbing).await.expect("ends");
        rig.model.check(&*rig.io).await.expect("the array itself goes on");
        rig.array.stop().await.expect("stopped");
        let array = start(&rig.disks, options).await.expect("assembled");
        rig.model.check(&*array.open().await.expect("opened")).await.expect("read");
        array.stop().await.expect("stopped");
    });
}

#[test]
fn copies_of_a_paused_array_are_an_array_of_that_moment() {
    for (layout, width) in LAYOUTS {
        for seed in 0..4 {
            copied_under_load(seed, layout, width);
        }
    }
}

#[test]
fn a_pause_that_is_not_ended_ends_by_itself() {
    simulate(1, async {
        let rig = rig(Layout::Parity, 4, options()).await;
        rig.fill().await;
        let pause = rig.array.pause(300 * MS).await.expect("paused");
        let twice = rig.array.pause(300 * MS).await.expect_err("paused already");
        assert!(twice.to_string().contains("it is paused already"), "{twice}");
        rig.write_some(3, 20).await;
        assert_eq!(rig.array.resume(pause).await, Ok(false), "its copies are not of one moment");
        let next = rig.array.pause(LIMIT).await.expect("paused");
        assert_eq!(rig.array.resume(pause).await, Ok(false), "the number of another one");
        // A stop takes what waits along.
        let stopped = spawn({
            let array = Arc::clone(&rig.array);
            async move { array.stop().await }
        });
        sleep(50 * MS).await;
        assert_eq!(rig.array.resume(next).await, Ok(true));
        timeout(LIMIT, stopped).await.expect("ends").expect("stopped");
    });
}

#[test]
fn an_array_is_not_paused_while_a_member_is_missing_or_hangs() {
    simulate(1, async {
        let rig = rig(Layout::Parity, 4, options()).await;
        rig.fill().await;
        // A write that does not end.
        rig.disks[2].disconnect();
        let io = Rc::clone(&rig.io);
        let write = spawn(async move {
            let block = longhaul_engine::Buf::copy_of(&[1; 4096]);
            io.write(0, block, longhaul_block::WriteFlags::default()).await
        });
        sleep(5 * MS).await;
        let hangs = rig.array.pause(500 * MS).await.expect_err("a member does not answer");
        assert!(matches!(hangs, ArrayError::Refused(_)), "{hangs}");
        rig.until(2, Condition::Offline).await;
        let missing = rig.array.pause(LIMIT).await.expect_err("a member is missing");
        assert!(missing.to_string().contains("missing or being rebuilt"), "{missing}");
        timeout(LIMIT, write).await.expect("ends").expect("written without it");
        rig.disks[2].reconnect();
        rig.array.wait_healthy().await.expect("back");
        let pause = rig.array.pause(LIMIT).await.expect("paused");
        assert_eq!(rig.array.resume(pause).await, Ok(true));
        rig.array.stop().await.expect("stopped");
    });
}

#[test]
fn what_is_no_copy_of_all_members_in_their_order_is_not_touched() {
    simulate(1, async {
        let rig = rig(Layout::Parity, 3, options()).await;
        rig.fill().await;
        let of = rig.array.info().uuid.expect("known");
        let pause = rig.array.pause(LIMIT).await.expect("paused");
        let copies = copies(&rig).await;
        assert_eq!(rig.array.resume(pause).await, Ok(true));
        let before: Vec<u64> = copies.iter().map(|copy| copy.writes.load(SeqCst)).collect();
        let all = devices(&copies);
        let swapped = [Arc::clone(&all[1]), Arc::clone(&all[0]), Arc::clone(&all[2])];
        for (given, of, name, why) in [
            (&all[..2], of, "copy", "2 copies were given of 3 members"),
            (&swapped[..], of, "copy", "is no copy of member 0"),
            (&all[..], Uuid::from_u128(1), "copy", "is a member of another array"),
            (&all[..], of, "", "is not a valid array name"),
        ] {
            let refused = adopt_copies(given, of, name).await.expect_err(why).to_string();
            assert!(refused.contains(why), "{refused}");
        }
        assert_eq!(before, copies.iter().map(|copy| copy.writes.load(SeqCst)).collect::<Vec<_>>());
        check(&copies, of, &rig.model.copied()).await;
        rig.array.stop().await.expect("stopped");
    });
}
