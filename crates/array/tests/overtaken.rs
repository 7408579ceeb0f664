//! A host that was paused, overtaken by another one, and continues: it answers no read any more, also of
//! what it has in memory, and one that was not overtaken answers as before.

mod common;

use common::{disks, options, seen_by, shared, simulate, start, uuid};
use fastrand::Rng;
use futures_util::future::join_all;
use longhaul_array::{
    ArrayDevice, ArrayError, BLOCK, HaltReason, Health, Layout, Shape, WITNESS_SIZE, assemble_as, create_as,
    create_witnessed,
};
use longhaul_block::filter::{Around, Filtered, Op, OpKind};
use longhaul_block::testing::FaultDisk;
use longhaul_block::{BlockDevice, BlockIo, IoFuture, IoResult, WriteFlags};
use longhaul_engine::{Buf, BufMut, Engine, sleep, timeout};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use uuid::Uuid;

const UNIT: u64 = 16 << 10;
const SIZE: u64 = 4 << 20;
/// Bytes that the tests use, from the start of the array.
const USED: u64 = 12 * UNIT;
/// How long a host is paused: longer than a takeover takes.
const PAUSE: Duration = Duration::from_secs(60);
/// Where a member has its heartbeat.
const HEARTBEAT: u64 = 128 << 10;
/// How long a heartbeat is not read: a member is not given up within that time.
const CLOSED: Duration = Duration::from_secs(20);
/// How long a read may wait.
const LIMIT: Duration = Duration::from_secs(900);

async fn run(disks: &[FaultDisk], host: u64, reserved: bool) -> (Arc<ArrayDevice>, Rc<dyn BlockIo>) {
    let session = Uuid::from_u64_pair(7, host);
    let array: Result<_, ArrayError> =
        assemble_as(&seen_by(disks, reserved.then_some(host)), options(), session).await;
    let array = array.expect("assembled");
    let io = array.open().await.expect("opened");
    (array, io)
}

async fn make(disks: &[FaultDisk], layout: Layout) {
    let shape = Shape { name: "test".into(), layout, unit: UNIT, force: false };
    let mut random = Rng::with_seed(99);
    create_as(&seen_by(disks, None), &[], &shape, || uuid(&mut random)).await.expect("made");
}

async fn fill(io: &dyn BlockIo, byte: u8) {
    io.write(0, Buf::copy_of(&[byte; USED as usize]), WriteFlags::default()).await.expect("written");
    io.flush().await.expect("flushed");
}

async fn read(io: &dyn BlockIo, block: u64) -> IoResult<u8> {
    let bytes =
        timeout(LIMIT, io.read(block * BLOCK, BufMut::zeroed(BLOCK as usize))).await.expect("it ends")?;
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mixture");
    Ok(bytes[0])
}

/// Another host takes the array over, writes it anew, and stops it or is lost.
fn take_over(disks: &[FaultDisk], reserved: bool, stops: bool) {
    take_over_and_fill(disks, reserved, stops, 2);
}

fn take_over_and_fill(disks: &[FaultDisk], reserved: bool, stops: bool, byte: u8) {
    let disks = disks.to_vec();
    let other = std::thread::spawn(move || {
        simulate(3, async move {
            let (array, io) = run(&disks, 2, reserved).await;
            fill(&*io, byte).await;
            if stops {
                array.stop().await.expect("stopped");
            }
        });
    });
    other.join().expect("the other host");
}

/// The machine stands still: suspended, or paused by its hypervisor.
fn stand_still(engine: &Engine, suspended: bool) {
    if suspended { engine.suspend(PAUSE) } else { engine.pause(PAUSE) }
}

async fn is_overtaken(array: &ArrayDevice, io: &dyn BlockIo) {
    for block in 0..USED / BLOCK {
        let error = read(io, block).await.expect_err("another host has written it anew").to_string();
        assert!(error.contains("has taken it over"), "{error}");
    }
    let status = array.status().await.expect("status");
    assert_eq!((status.health, status.halt), (Health::Halted, Some(HaltReason::TakenOver)));
}

/// All ways in which a host stands still, has reservations, and is followed by another one.
fn cases() -> impl Iterator<Item = (bool, bool, bool)> {
    (0..8).map(|n| (n & 1 > 0, n & 2 > 0, n & 4 > 0))
}

#[test]
fn stripes_that_were_read_ahead_are_not_read_on_a_host_that_was_overtaken() {
    for (suspended, reserved, stops) in cases() {
        let disks = shared(3, SIZE);
        let first = Engine::simulated(2).expect("engine");
        let (array, io) = first.block_on(async {
            make(&disks, Layout::Parity).await;
            // A member is missing: its units are reconstructed, and stripes stay in memory.
            let (array, io) = run(&disks[..2], 1, reserved).await;
            fill(&*io, 1).await;
            sleep(Duration::from_secs(10)).await;
            for block in 0..USED / BLOCK {
                assert_eq!(read(&*io, block).await, Ok(1));
            }
            let reads = |disks: &[FaultDisk]| disks.iter().map(|disk| disk.counts().read).sum::<u64>();
            let before = reads(&disks);
            let mut from_memory = 0;
            for block in 0..USED / BLOCK {
                let before = reads(&disks);
                assert_eq!(read(&*io, block).await, Ok(1));
                from_memory += u64::from(reads(&disks) == before);
            }
            assert!(from_memory > 0, "all of it is read from disks: {} bytes", reads(&disks) - before);
            (array, io)
        });
        stand_still(&first, suspended);
        first.block_on(async {
            // No other host has it: the first check of the heartbeats shows that.
            assert_eq!(read(&*io, 1).await, Ok(1));
        });
        take_over(&disks[..2], reserved, stops);
        stand_still(&first, suspended);
        first.block_on(is_overtaken(&array, &*io));
    }
}

#[test]
fn a_write_that_is_in_the_journal_only_is_not_read_on_a_host_that_was_overtaken() {
    for (suspended, reserved, stops) in cases() {
        let disks = shared(3, SIZE);
        let first = Engine::simulated(4).expect("engine");
        let (array, io) = first.block_on(async {
            make(&disks, Layout::Parity).await;
            let (array, io) = run(&disks, 1, reserved).await;
            fill(&*io, 1).await;
            sleep(Duration::from_secs(10)).await;
            io.write(0, Buf::copy_of(&[3; BLOCK as usize]), WriteFlags::default()).await.expect("written");
            disks.iter().for_each(|disk| disk.hold(OpKind::Write, 1000));
            assert_eq!(read(&*io, 0).await, Ok(3));
            (array, io)
        });
        // What the first host has on its way stays there.
        disks.iter().for_each(|disk| disk.hold(OpKind::Write, 0));
        take_over(&disks, reserved, stops);
        stand_still(&first, suspended);
        first.block_on(async {
            let error = read(&*io, 0).await.expect_err("another host has written it anew").to_string();
            assert!(error.contains("has taken it over"), "{error}");
            assert_eq!(array.status().await.expect("status").halt, Some(HaltReason::TakenOver));
        });
    }
}

/// The first host reaches one half of a mirror, and the other host the other half and the witness.
#[test]
fn a_half_that_another_host_can_do_without_is_not_read() {
    let (members, power) = disks(2, SIZE);
    let witness = Arc::new(common::Disk::new("witness", WITNESS_SIZE, &power));
    let all = [&members[..], &[Arc::clone(&witness)]].concat();
    let reach = |own: usize| {
        all.iter().enumerate().for_each(|(n, disk)| disk.unreachable.store((n == 0) != (own == 0), SeqCst));
    };
    let first = Engine::simulated(5).expect("engine");
    let (_array, io) = first.block_on(async {
        let shape = Shape { name: "test".into(), layout: Layout::Mirror, unit: UNIT, force: false };
        let mut random = Rng::with_seed(5);
        let devices = common::devices(&members);
        let device = Arc::clone(&witness) as Arc<dyn BlockDevice>;
        let made = create_witnessed(&devices, &[], Some(&device), &shape, || uuid(&mut random));
        made.await.expect("made");
        let array = start(&all, options()).await.expect("assembled");
        let io = array.open().await.expect("opened");
        fill(&*io, 1).await;
        (array, io)
    });
    reach(1);
    let others = all[1..].to_vec();
    let other = std::thread::spawn(move || {
        simulate(6, async move {
            let array = start(&others, options()).await.expect("with the witness");
            fill(&*array.open().await.expect("opened"), 2).await;
        });
    });
    other.join().expect("the other host");
    reach(0);
    first.suspend(PAUSE);
    first.block_on(async {
        for _ in 0..2 {
            read(&*io, 0).await.expect_err("another host has written it anew");
        }
    });
}

/// Lets no heartbeat of a member be read while it is closed.
#[derive(Default)]
struct Gate(AtomicBool);

impl Around for Gate {
    fn around<T: Unpin + 'static>(
        self: &Arc<Self>,
        op: Op,
        start: impl FnOnce() -> IoFuture<T>,
    ) -> IoFuture<T> {
        if op.kind != OpKind::Read || op.offset != HEARTBEAT {
            return start();
        }
        let (gate, read) = (Arc::clone(self), start());
        IoFuture::new(async move {
            while gate.0.load(SeqCst) {
                sleep(Duration::from_millis(10)).await;
            }
            read.await
        })
    }
}

/// Another host has continued with the half of a mirror whose superblock says that the other half is
/// lost. That other half returns to the first host before the first host has looked at the first half
/// again, which takes long: until then nothing may be read.
#[test]
fn a_member_that_returns_does_not_allow_reads_of_a_host_that_was_overtaken() {
    for (suspended, reserved, stops) in cases() {
        let disks = shared(3, SIZE);
        let first = Engine::simulated(8).expect("engine");
        let (array, io, gate) = first.block_on(async {
            make(&disks[..2], Layout::Mirror).await;
            let mut devices = seen_by(&disks[..2], reserved.then_some(1));
            let half = Arc::new(Filtered::new(devices.remove(1), Gate::default()));
            let gate = Arc::clone(half.filter());
            devices.push(half);
            let array = assemble_as(&devices, options(), Uuid::from_u64_pair(7, 1)).await.expect("assembled");
            let io = array.open().await.expect("opened");
            disks[0].disconnect(true);
            io.write(0, Buf::copy_of(&[1; BLOCK as usize]), WriteFlags::default()).await.expect("written");
            sleep(Duration::from_secs(10)).await;
            assert_eq!(array.status().await.expect("status").health, Health::Degraded);
            (array, io, gate)
        });
        // Equal content: checksums that the first host has in memory do not tell it.
        take_over_and_fill(&disks[1..2], reserved, stops, 1);
        gate.0.store(true, SeqCst);
        disks[0].disconnect(false);
        stand_still(&first, suspended);
        first.block_on(async {
            let reads = (0..USED / BLOCK).map(|block| io.read(block * BLOCK, BufMut::zeroed(BLOCK as usize)));
            let early: Vec<_> = reads.map(|read| timeout(CLOSED, read)).collect();
            let early = join_all(early).await.into_iter().filter(|read| matches!(read, Ok(Ok(_)))).count();
            assert_eq!(early, 0, "reads were answered before the half was looked at");
            gate.0.store(false, SeqCst);
            is_overtaken(&array, &*io).await;
        });
    }
}

/// Heartbeats that come late, and members that do not answer, delay reads and fail none.
#[test]
fn a_host_whose_members_do_not_answer_for_a_while_answers_reads_again() {
    for reserved in [false, true] {
        simulate(7, async {
            let disks = shared(3, SIZE);
            make(&disks, Layout::Parity).await;
            let (_array, io) = run(&disks[..2], 1, reserved).await;
            fill(&*io, 1).await;
            for block in 0..USED / BLOCK {
                assert_eq!(read(&*io, block).await, Ok(1));
            }
            disks.iter().for_each(|disk| disk.hold(OpKind::Write, 1000));
            sleep(Duration::from_secs(8)).await;
            let late = io.read(BLOCK, BufMut::zeroed(BLOCK as usize));
            disks.iter().for_each(|disk| disk.hold(OpKind::Write, 0));
            disks.iter().for_each(FaultDisk::release);
            assert_eq!(timeout(LIMIT, late).await.expect("it ends").expect("read")[0], 1);
            assert_eq!(read(&*io, 1).await, Ok(1));
        });
    }
}
