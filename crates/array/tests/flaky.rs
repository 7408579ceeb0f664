//! Members that come and go under load, with power cuts in between. The content afterwards is
//! compared with the acknowledged writes, with all members and without each. A failing seed is
//! printed; `ARRAY_SEED` runs one alone.

mod common;

use common::{Disk, Model, Power, disks, make, options, simulate, start};
use fastrand::Rng;
use futures_util::future::{join, join_all, select};
use longhaul_array::{BLOCK, Condition, Layout, Options};
use longhaul_block::{BlockDevice, BlockIo};
use longhaul_engine::sleep;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const UNIT: u64 = 16 << 10;
const SIZE: u64 = 3 << 20;

struct Plan {
    name: &'static str,
    layout: Layout,
    width: usize,
    /// Members offline at a time, at most.
    losses: usize,
    options: Options,
}

async fn load(io: &Rc<dyn BlockIo>, model: &Model, seed: u64, ops: u64) {
    let client = async |n: u64| {
        let mut random = Rng::with_seed(seed ^ (n << 32));
        for _ in 0..ops {
            let count = if random.u64(..4) == 0 { 12 } else { 1 + random.u64(..5) };
            let mut first = random.u64(..model.blocks() - count + 1);
            if random.u64(..2) == 0 {
                // Few stripes, so that writes collide.
                first = random.u64(..84);
            }
            let done = match random.u64(..10) {
                0..=5 => model.write(&**io, first, count).await,
                6 => model.zero(&**io, first, count).await,
                7 => io.flush().await.map(|()| true),
                _ => model.read(&**io, first, count).await,
            };
            done.expect("I/O");
            if random.u64(..8) == 0 {
                sleep(Duration::from_millis(random.u64(..400))).await;
            }
        }
    };
    join_all((0..3).map(client)).await;
}

/// Takes members offline in all possible ways, and brings most of them back.
async fn fail_members(disks: &[Arc<Disk>], random: &mut Rng, losses: usize) {
    for _ in 0..3 {
        sleep(Duration::from_millis(random.u64(..800))).await;
        let victims: Vec<usize> = (0..losses).map(|_| random.u64(..disks.len() as u64) as usize).collect();
        for victim in &victims {
            let how = if random.u64(..3) == 0 { &disks[*victim].silent } else { &disks[*victim].unreachable };
            how.store(true, SeqCst);
        }
        sleep(Duration::from_millis(500 + random.u64(..12_000))).await;
        disks.iter().for_each(|disk| {
            disk.silent.store(false, SeqCst);
            disk.unreachable.store(false, SeqCst);
        });
        // Another member may go offline only after this one is active again.
        sleep(Duration::from_secs(30)).await;
    }
}

fn round(random: &mut Rng, disks: &[Arc<Disk>], power: &Arc<Power>, model: &Model, plan: &Plan) {
    let (seed, load_seed) = (random.u64(..), random.u64(..));
    let engine = longhaul_engine::Engine::simulated(seed).expect("engine");
    let cut = random.u64(..2) == 0;
    let fuse = random.u64(..2500);
    engine.block_on(async {
        let array = start(disks, plan.options.clone()).await.expect("assembled");
        let io = array.open().await.expect("opened");
        array.wait_healthy().await.expect("healthy");
        if cut {
            power.light(fuse, seed);
        }
        let work = pin!(async {
            join(load(&io, model, load_seed, 50), fail_members(disks, random, plan.losses)).await;
        });
        select(work, pin!(power.lost())).await;
        if !cut {
            array.stop().await.expect("stopped");
        }
        power.off.store(true, SeqCst);
    });
    drop(engine);
    power.restore();
    disks.iter().for_each(|disk| {
        disk.silent.store(false, SeqCst);
        disk.unreachable.store(false, SeqCst);
    });
    model.crashed();
    verify(random, disks, model, plan);
}

/// All content is readable, with all members, and without any that may be lost.
fn verify(random: &mut Rng, disks: &[Arc<Disk>], model: &Model, plan: &Plan) {
    simulate(random.u64(..), async {
        let array = start(disks, plan.options.clone()).await.expect("assembled after a crash");
        let io = array.open().await.expect("opened");
        model.check(&*io).await.expect("read");
        array.wait_healthy().await.expect("healthy");
        let scrub = array.scrub().await.expect("scrubbed");
        let faults = scrub.wrong.iter().sum::<u64>() + scrub.inconsistent + scrub.lost;
        assert_eq!((scrub.finished, faults), (true, 0), "{scrub:?}");
        let victim = random.u64(..disks.len() as u64) as usize;
        disks[victim].unreachable.store(true, SeqCst);
        model.check(&*io).await.expect("read without one");
        disks[victim].unreachable.store(false, SeqCst);
        for _ in 0..200 {
            if array.status().await.expect("status").members.iter().all(|m| m.condition == Condition::Active)
            {
                break;
            }
            sleep(Duration::from_millis(500)).await;
        }
        array.wait_healthy().await.expect("healthy again");
        array.stop().await.expect("stopped");
    });
}

fn run(seed: u64, plan: &Plan) {
    let mut random = Rng::with_seed(seed);
    let (disks, power) = disks(plan.width, SIZE);
    let size = simulate(seed, async {
        make(&disks, plan.layout, UNIT).await;
        let array = start(&disks, plan.options.clone()).await.expect("assembled");
        array.stop().await.expect("stopped");
        array.info().size
    });
    assert_eq!(size % BLOCK, 0);
    let model = Model::new(size);
    for _ in 0..3 {
        round(&mut random, &disks, &power, &model, plan);
    }
}

fn many(plan: &Plan) {
    let alone = std::env::var("ARRAY_SEED").ok().and_then(|seed| seed.parse().ok());
    let count: u64 = std::env::var("ARRAY_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(10);
    let seeds = alone.map_or(0..count, |seed: u64| seed..seed + 1);
    for seed in seeds {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, plan)));
        if let Err(panic) = result {
            eprintln!("ARRAY_SEED={seed} cargo test -p longhaul-array --test flaky {}", plan.name);
            std::panic::resume_unwind(panic);
        }
    }
}

fn plan(name: &'static str, layout: Layout, width: usize, losses: usize) -> Plan {
    // A crash while a member is offline counts as its loss at that moment.
    let options = Options {
        journal_all: true,
        member_timeout: Duration::from_secs(2),
        intent_idle: Duration::from_millis(500),
        spare_grace: Duration::from_secs(3600),
        ..options()
    };
    Plan { name, layout, width, losses, options }
}

#[test]
fn a_mirror_with_flaky_members() {
    many(&plan("mirror", Layout::Mirror, 3, 2));
}

#[test]
fn stripe_mirror_with_flaky_members() {
    many(&plan("pairs", Layout::StripeMirror, 4, 1));
}

#[test]
fn parity_with_flaky_members() {
    many(&plan("single", Layout::Parity, 4, 1));
}

#[test]
fn double_parity_with_flaky_members() {
    many(&plan("double", Layout::DoubleParity, 5, 2));
}
