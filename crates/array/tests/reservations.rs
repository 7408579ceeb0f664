//! Arrays whose members have reservations: a host that has lost the array writes nothing to them,
//! also what it had under way, and a host that runs it keeps it.

mod common;

use common::{Model, options, seen_by, shared, simulate, uuid};
use fastrand::Rng;
use futures_util::future::{Either, join_all, select};
use longhaul_array::{
    ArrayDevice, ArrayError, Condition, Guard, HaltReason, Health, Layout, Options, Shape, assemble_as,
    create_as,
};
use longhaul_block::filter::OpKind;
use longhaul_block::testing::FaultDisk;
use longhaul_block::{BlockDevice, BlockIo, IoError, WriteFlags};
use longhaul_engine::{Buf, Engine, sleep, spawn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;
use uuid::Uuid;

const SIZE: u64 = 4 << 20;
/// How long one host waits for another, in real time.
const LIMIT: Duration = Duration::from_secs(60);
const LAYOUTS: [Layout; 3] = [Layout::Mirror, Layout::Parity, Layout::Stripe];

async fn make(disks: &[FaultDisk], layout: Layout) {
    let shape = Shape { name: "test".into(), layout, unit: 16 << 10, force: false };
    let mut random = Rng::with_seed(99);
    create_as(&seen_by(disks, Some(1000)), &[], &shape, || uuid(&mut random)).await.expect("made");
}

async fn start(disks: &[FaultDisk], host: u64, options: Options) -> Result<Arc<ArrayDevice>, ArrayError> {
    assemble_as(&seen_by(disks, Some(host)), options, Uuid::from_u64_pair(7, host)).await
}

async fn opened(array: &ArrayDevice) -> (Rc<dyn BlockIo>, Model) {
    (array.open().await.expect("opened"), Model::new(array.info().size))
}

fn holders(disks: &[FaultDisk]) -> Vec<Option<u64>> {
    disks.iter().map(|disk| disk.reservation().holder).collect()
}

/// The key of the session that `start` gives a host.
fn key(host: u64) -> u64 {
    0x4C48 << 48 | host
}

async fn raw_write(disk: &FaultDisk, host: u64) -> Result<(), IoError> {
    let io = disk.for_host(host).open().await.expect("opened");
    io.write(SIZE - 4096, Buf::copy_of(&[9; 4096]), WriteFlags::default()).await
}

#[test]
fn members_are_reserved_while_the_array_runs() {
    for layout in LAYOUTS {
        simulate(1, async {
            let disks = shared(3, SIZE);
            make(&disks, layout).await;
            assert_eq!(holders(&disks), [None; 3], "{layout}: after it was created");
            let array = start(&disks, 1, options()).await.expect("assembled");
            assert_eq!(holders(&disks), [Some(key(1)); 3], "{layout}");
            for disk in &disks {
                assert_eq!(raw_write(disk, 2).await, Err(IoError::Reserved), "{layout}");
            }
            let status = array.status().await.expect("status");
            let is_guarded = |member: &longhaul_array::MemberStatus| member.guard == Some(Guard::Reservation);
            assert!(status.members.iter().all(is_guarded) && status.halt.is_none(), "{status:?}");
            let (io, model) = opened(&array).await;
            model.write(&*io, 0, 12).await.expect("written");
            array.stop().await.expect("stopped");
            for disk in &disks {
                assert!(disk.reservation().registered.is_empty(), "{layout}: after it was stopped");
            }
            let array = start(&disks, 2, options()).await.expect("by another host");
            let io = array.open().await.expect("opened");
            model.check(&*io).await.expect("read");
        });
    }
}

/// A process that is stopped (SIGSTOP) with writes under way, overtaken, and continued. The next
/// host may have ended by then.
fn overtaken(layout: Layout, ends: bool) {
    let disks = shared(3, SIZE);
    let first = Engine::simulated(2).expect("engine");
    let (array, io, late) = first.block_on(async {
        make(&disks, layout).await;
        let array = start(&disks, 1, options()).await.expect("assembled");
        let (io, model) = opened(&array).await;
        model.write(&*io, 0, 12).await.expect("written");
        io.flush().await.expect("flushed");
        // On its way to each disk when the process is stopped.
        disks.iter().for_each(|disk| disk.hold(OpKind::Write, 1));
        let late = io.write(0, Buf::copy_of(&[7; 128 << 10]), WriteFlags::default());
        sleep(Duration::from_millis(100)).await;
        assert!(disks.iter().any(|disk| disk.held() > 0), "{layout}: nothing is under way");
        (array, io, late)
    });
    let others = disks.clone();
    let other = std::thread::spawn(move || {
        simulate(3, async move {
            // Of the first host only what is held counts.
            others.iter().for_each(|disk| disk.hold(OpKind::Write, 0));
            let array = start(&others, 2, options()).await.expect("taken over");
            let (io, model) = opened(&array).await;
            model.write(&*io, 0, 12).await.expect("written");
            if ends {
                array.stop().await.expect("stopped");
            }
        });
    });
    other.join().expect("the other host");
    let content = || disks.iter().map(|disk| disk.content(0..SIZE)).collect::<Vec<_>>();
    let before = content();
    first.block_on(async {
        disks.iter().for_each(FaultDisk::release);
        late.await.expect_err("overtaken");
        let failed = io.write(0, Buf::copy_of(&[8; 4096]), WriteFlags::default()).await.expect_err("halted");
        assert!(failed.to_string().contains("has taken it over"), "{layout}: {failed}");
        let status = array.status().await.expect("status");
        assert_eq!((status.health, status.halt), (Health::Halted, Some(HaltReason::TakenOver)), "{layout}");
        sleep(Duration::from_secs(60)).await;
        array.stop().await.expect_err("it is not its own any more");
    });
    assert!(content() == before, "{layout}: a write of the overtaken host has landed (ended: {ends})");
}

#[test]
fn a_host_that_is_overtaken_writes_nothing_that_it_had_under_way() {
    for layout in LAYOUTS {
        for ends in [false, true] {
            overtaken(layout, ends);
        }
    }
}

/// A host that is stopped as a process while a member is away, and overtaken; the host that has the array
/// now runs without that member as well, so that nothing of it but its reservation is there.
#[test]
fn a_host_that_is_overtaken_takes_no_member_that_returns() {
    for phase in 0..10 {
        let disks = shared(2, SIZE);
        let first = Engine::simulated(9).expect("engine");
        let (array, io) = first.block_on(async {
            make(&disks, Layout::Mirror).await;
            let array = start(&disks, 1, options()).await.expect("assembled");
            let (io, model) = opened(&array).await;
            disks[1].disconnect(true);
            model.write(&*io, 0, 12).await.expect("without a member");
            io.flush().await.expect("flushed");
            assert_eq!(array.status().await.expect("status").members[1].condition, Condition::Offline);
            // Its background tasks are due at different times.
            sleep(Duration::from_millis(phase * 200)).await;
            (array, io)
        });
        disks[1].disconnect(false);
        let (has_it, taken) = channel();
        let (ends, ended) = channel::<()>();
        let others = disks.clone();
        let other = std::thread::spawn(move || {
            simulate(10, async move {
                let array = start(&others, 2, options()).await.expect("taken over");
                has_it.send(()).expect("it is waited for");
                // In virtual time nothing passes meanwhile.
                ended.recv_timeout(LIMIT).expect("the first host has ended");
                let (io, model) = opened(&array).await;
                model.write(&*io, 0, 12).await.expect("written");
                array.wait_healthy().await.expect("the member is resynced");
            });
        });
        taken.recv_timeout(LIMIT).expect("the other host has it");
        assert_eq!(holders(&disks), [Some(key(2)); 2]);
        first.block_on(async {
            sleep(Duration::from_secs(60)).await;
            assert_eq!(array.status().await.expect("status").halt, Some(HaltReason::TakenOver));
            io.write(0, Buf::copy_of(&[8; 4096]), WriteFlags::default()).await.expect_err("halted");
        });
        assert_eq!(holders(&disks), [Some(key(2)); 2], "{phase}: the first host has taken a member back");
        ends.send(()).expect("the other host waits");
        other.join().expect("the other host");
    }
}

#[test]
fn a_host_that_runs_the_array_keeps_it() {
    simulate(4, async {
        let disks = shared(3, SIZE);
        make(&disks, Layout::Parity).await;
        let array = start(&disks, 1, options()).await.expect("assembled");
        let refused = start(&disks, 2, options()).await.expect_err("in use");
        assert!(matches!(refused, ArrayError::InUse(_)), "{refused}");
        let (io, model) = opened(&array).await;
        model.write(&*io, 0, 12).await.expect("written");
        assert_eq!(holders(&disks), [Some(key(1)); 3]);
        assert_eq!(disks[0].reservation().registered, [key(1)], "the other host has registered");
    });
}

/// On an operator's command a host takes the array from one that lives and writes.
#[test]
fn a_host_that_lives_is_preempted_on_command() {
    for layout in LAYOUTS {
        simulate(7, async {
            let disks = shared(3, SIZE);
            make(&disks, layout).await;
            let array = start(&disks, 1, options()).await.expect("assembled");
            let (io, model) = opened(&array).await;
            model.write(&*io, 0, 12).await.expect("written");
            let preempt = Options { preempt: true, ..options() };
            let taken = start(&disks, 2, preempt.clone()).await.expect("taken");
            let failed = io.write(0, Buf::copy_of(&[8; 4096]), WriteFlags::default()).await;
            let failed = failed.expect_err("it has lost the array").to_string();
            assert!(failed.contains("has taken it over"), "{layout}: {failed}");
            assert_eq!(array.status().await.expect("status").halt, Some(HaltReason::TakenOver), "{layout}");
            let io = taken.open().await.expect("opened");
            model.check(&*io).await.expect("what was acknowledged is there");
            taken.stop().await.expect("stopped");
            let again = start(&disks, 3, options()).await.expect("no host has it");
            model.check(&*again.open().await.expect("opened")).await.expect("read");

            // Members that do not refuse the writes of another host are not taken from it.
            again.stop().await.expect("stopped");
            let mixed = async |host: u64, options: Options| {
                let mut devices = seen_by(&disks, Some(host));
                devices[1] = Arc::new(disks[1].clone());
                assemble_as(&devices, options, Uuid::from_u64_pair(7, host)).await
            };
            let array = mixed(4, options()).await.expect("assembled");
            let refused = mixed(5, preempt).await.expect_err("in use");
            assert!(matches!(refused, ArrayError::InUse(_)), "{layout}: {refused}");
            let io = array.open().await.expect("opened");
            model.write(&*io, 0, 12).await.expect("it goes on");
        });
    }
}

/// Several hosts take over at the same moment from one that has ended.
#[test]
fn one_of_several_hosts_takes_over() {
    for seed in 0..20 {
        let disks = shared(3, SIZE);
        Engine::simulated(seed).expect("engine").block_on(async {
            make(&disks, Layout::Mirror).await;
            drop(start(&disks, 1, options()).await.expect("assembled"));
        });
        // Of another engine: the first host does not run any more.
        simulate(seed, async {
            disks.iter().enumerate().for_each(|(n, disk)| {
                let mut random = Rng::with_seed(seed * 8 + n as u64);
                disk.delay(move || Duration::from_micros(random.u64(..400)));
            });
            let rivals = [2, 3, 4].map(|host| start(&disks, host, options()));
            let mut owners: Vec<_> = join_all(rivals).await.into_iter().filter_map(Result::ok).collect();
            if owners.is_empty() {
                owners.push(start(&disks, 5, options()).await.expect("no other host has it"));
            }
            assert_eq!(owners.len(), 1, "seed {seed}");
            let holders = holders(&disks);
            assert!(holders.iter().all(|holder| holder.is_some() && *holder == holders[0]), "{holders:?}");
            let (io, model) = opened(&owners[0]).await;
            model.write(&*io, 0, 4).await.expect("written");
        });
    }
}

/// A member without reservations keeps the heartbeat, and the status tells which.
#[test]
fn a_mixed_array_says_which_members_have_no_reservation() {
    simulate(5, async {
        let disks = shared(3, SIZE);
        make(&disks, Layout::Parity).await;
        let mut devices = seen_by(&disks, Some(1));
        devices[1] = Arc::new(disks[1].clone());
        let array = assemble_as(&devices, options(), Uuid::from_u64_pair(7, 1)).await.expect("assembled");
        let guards: Vec<_> =
            array.status().await.expect("status").members.iter().map(|member| member.guard).collect();
        assert_eq!(guards, [Guard::Reservation, Guard::Heartbeat, Guard::Reservation].map(Some));
        assert_eq!(holders(&disks), [Some(key(1)), None, Some(key(1))]);
        array.stop().await.expect("stopped");
        assert_eq!(holders(&disks), [None; 3]);
    });
}

#[test]
fn a_new_member_is_reserved_before_it_is_written() {
    simulate(6, async {
        let disks = shared(6, SIZE);
        make(&disks[..3], Layout::Parity).await;
        let array = start(&disks[..3], 1, options()).await.expect("assembled");
        let (io, model) = opened(&array).await;
        model.write(&*io, 0, 48).await.expect("written");
        let device = |n: usize| Arc::new(disks[n].for_host(1)) as Arc<dyn BlockDevice>;
        // Another host has reserved it, for a purpose of its own.
        let other = disks[3].for_host(9).open().await.expect("opened").reservations().expect("some");
        other.register(5).await.expect("registered");
        other.acquire(5).await.expect("reserved");
        for force in [false, true] {
            let replaced = array.replace(1, device(3), force).await.expect_err("reserved");
            assert!(matches!(replaced, ArrayError::ReservedByOther { key: 5, .. }), "{replaced}");
            let added = array.add_spare(device(3), force).await.expect_err("reserved");
            assert!(matches!(added, ArrayError::ReservedByOther { key: 5, .. }), "{added}");
        }
        assert_eq!(disks[3].content(0..SIZE), vec![0; SIZE as usize], "it was written to");
        assert_eq!(disks[3].reservation().registered, [5]);
        // A member that is replaced is given back.
        array.replace(1, device(4), false).await.expect("replaced");
        array.wait_rebuilt(1).await.expect("rebuilt");
        assert_eq!(holders(&disks)[..5], [Some(key(1)), None, Some(key(1)), Some(5), Some(key(1))]);
        assert!(disks[1].reservation().registered.is_empty());
        array.add_spare(device(5), false).await.expect("added");
        assert_eq!(disks[5].reservation().holder, Some(key(1)), "a spare");
        disks[0].disconnect(true);
        io.write(0, Buf::copy_of(&[1; 4096]), WriteFlags::default()).await.expect("without a member");
        while array.status().await.expect("status").members[0].device.as_deref() != Some("disk5") {
            sleep(Duration::from_secs(1)).await;
        }
        array.wait_healthy().await.expect("healthy");
        assert_eq!(disks[5].reservation().holder, Some(key(1)), "it is a member");
        array.stop().await.expect("stopped");
        let left: Vec<_> = [2, 4, 5].map(|n: usize| disks[n].reservation().holder).into();
        assert_eq!(left, [None; 3]);
    });
}

/// A host takes the array over while the last one records that it has lost a member, and ends: the
/// next one must not use what it had read before.
#[test]
fn what_the_last_host_recorded_during_the_takeover_counts() {
    let disks = shared(4, SIZE);
    let first = Engine::simulated(7).expect("engine");
    let slow = Options { heartbeat: Duration::from_secs(3600), ..options() };
    let (array, io, model) = first.block_on(async {
        make(&disks, Layout::Parity).await;
        let array = start(&disks, 1, slow).await.expect("assembled");
        let (io, model) = opened(&array).await;
        model.write(&*io, 0, 48).await.expect("written");
        io.flush().await.expect("flushed");
        (array, io, model)
    });
    let (waits, watching) = channel();
    let (ends, ended) = channel::<Model>();
    let shared = disks.clone();
    let other = std::thread::spawn(move || {
        simulate(8, async move {
            let mut takeover = pin!(start(&shared, 2, options()));
            match select(&mut takeover, pin!(sleep(Duration::from_secs(2)))).await {
                Either::Left(_) => panic!("the heartbeat of the last host was not waited for"),
                Either::Right(_) => waits.send(()).expect("it waits"),
            }
            // In virtual time nothing passes meanwhile.
            let model = ended.recv_timeout(LIMIT).expect("the last host has ended");
            let array = takeover.await.expect("taken over");
            let (io, _) = opened(&array).await;
            model.check(&*io).await.expect("read");
            array.wait_healthy().await.expect("the member is resynced");
            shared[0].disconnect(true);
            model.check(&*io).await.expect("read without another member");
        });
    });
    watching.recv_timeout(LIMIT).expect("the next host waits");
    first.block_on(async {
        disks[2].disconnect(true);
        model.write(&*io, 0, 48).await.expect("without a member");
        io.flush().await.expect("flushed");
        assert_eq!(array.status().await.expect("status").members[2].condition, Condition::Offline);
        disks[2].disconnect(false);
    });
    ends.send(model).expect("the next host waits");
    other.join().expect("the next host");
}

/// A device that a crashed host has reserved for its array can be used for another one.
#[test]
fn a_device_of_a_crashed_array_is_reserved_again_with_force() {
    let disks = shared(2, SIZE);
    Engine::simulated(9).expect("engine").block_on(async {
        make(&disks, Layout::Mirror).await;
        drop(start(&disks, 1, options()).await.expect("assembled"));
    });
    simulate(10, async {
        let shape = Shape { name: "new".into(), layout: Layout::Mirror, unit: 16 << 10, force: true };
        let mut random = Rng::with_seed(3);
        let devices = seen_by(&disks, Some(2));
        create_as(&devices, &[], &shape, || uuid(&mut random)).await.expect("made");
        assert_eq!(holders(&disks), [None; 2]);
        let array = start(&disks, 3, options()).await.expect("assembled");
        let late = spawn(async move { raw_write(&disks[0], 1).await });
        assert_eq!(late.await, Err(IoError::Reserved), "of the crashed host");
        array.stop().await.expect("stopped");
    });
}
