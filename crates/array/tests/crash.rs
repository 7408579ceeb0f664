//! Power cuts at every step, losses of members, and a model of what must be readable afterwards. A
//! failing seed is printed; `ARRAY_SEED` runs one alone.

mod common;

use common::{Disk, Model, Power, degraded, disks, make, options, simulate, start};
use fastrand::Rng;
use futures_util::future::{Either, join_all, select};
use longhaul_array::{Layout, Options};
use longhaul_block::{BlockDevice, BlockIo};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

const UNIT: u64 = 16 << 10;
const SIZE: u64 = 3 << 20;

/// Clients that write and read concurrently.
async fn load(io: &Rc<dyn BlockIo>, model: &Model, seed: u64, stripe: u64, ops: u64) {
    let client = async |n: u64| {
        let mut random = Rng::with_seed(seed ^ (n << 32));
        // Few stripes, so that writes collide.
        let room = model.blocks().min(8 * stripe);
        for _ in 0..ops {
            let count = match random.u64(..4) {
                0 => stripe,
                1 => 1 + random.u64(..stripe),
                _ => 1 + random.u64(..3),
            };
            let mut first = random.u64(..room - count + 1);
            if random.u64(..3) == 0 {
                first = first / stripe * stripe;
            }
            let done = match random.u64(..12) {
                0..=6 => model.write(&**io, first, count).await,
                7 => model.zero(&**io, first, count).await,
                8 => io.flush().await.map(|()| true),
                _ => model.read(&**io, first, count).await,
            };
            done.expect("I/O");
        }
    };
    join_all((0..4).map(client)).await;
}

struct Plan {
    layout: Layout,
    width: usize,
    /// Members lost with each crash, at most.
    lose: usize,
    options: Options,
}

/// Creates an array and crashes it repeatedly.
fn run(seed: u64, plan: &Plan) {
    let mut random = Rng::with_seed(seed);
    let (disks, power) = disks(plan.width, SIZE);
    let size = simulate(seed, async {
        make(&disks, plan.layout, UNIT).await;
        start(&disks, plan.options.clone()).await.expect("assembled").info().size
    });
    let model = Model::new(size);
    for round in 0..4 {
        round_of(&mut random, &disks, &power, &model, plan, round);
    }
}

fn round_of(
    random: &mut Rng,
    disks: &[Arc<Disk>],
    power: &Arc<Power>,
    model: &Model,
    plan: &Plan,
    round: u64,
) {
    let mut present: Vec<Arc<Disk>> = disks.to_vec();
    random.shuffle(&mut present);
    let lost = random.u64(..plan.lose as u64 + 1) as usize;
    if round == 3 {
        present.truncate(plan.width - lost);
    }
    let (seed, fuse) = (random.u64(..), random.u64(..300));
    let engine = longhaul_engine::Engine::simulated(seed).expect("engine");
    engine.block_on(async {
        // The power may fail during the assembly.
        if random.u64(..4) == 0 {
            power.light(random.u64(..60), random.u64(..));
        }
        let work = pin!(async {
            let array =
                start(&present, Options { degraded: true, ..plan.options.clone() }).await.expect("assembled");
            let io = array.open().await.expect("opened");
            model.check(&*io).await.expect("checked");
            if !power.is_off() {
                power.light(fuse, seed);
            }
            load(&io, model, seed, stripe_blocks(plan.layout, plan.width), 40).await;
        });
        match select(work, pin!(power.lost())).await {
            Either::Left(_) | Either::Right(_) => {}
        }
        // Writes under way are torn when the engine ends.
        power.off.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    drop(engine);
    power.restore();
    model.crashed();
    let seed = random.u64(..);
    simulate(seed, async {
        let array = start(&present, Options { degraded: true, ..plan.options.clone() })
            .await
            .expect("assembled after a crash");
        let io = array.open().await.expect("opened");
        model.check(&*io).await.expect("checked after a crash");
        array.stop().await.expect("stopped");
    });
}

fn stripe_blocks(layout: Layout, width: usize) -> u64 {
    let units = match layout {
        Layout::Stripe => width,
        Layout::Mirror => 1,
        Layout::StripeMirror => width / 2,
        Layout::Parity => width - 1,
        Layout::DoubleParity => width - 2,
    };
    units as u64 * UNIT / longhaul_array::BLOCK
}

fn many(name: &str, plan: &Plan) {
    let alone = std::env::var("ARRAY_SEED").ok().and_then(|seed| seed.parse().ok());
    let count: u64 = std::env::var("ARRAY_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(8);
    let seeds = alone.map_or(0..count, |seed: u64| seed..seed + 1);
    for seed in seeds {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, plan)));
        if let Err(panic) = result {
            eprintln!("ARRAY_SEED={seed} cargo test -p longhaul-array --test crash {name}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn mirror_outlives_crashes_and_losses() {
    many("mirror", &Plan { layout: Layout::Mirror, width: 3, lose: 2, options: options() });
}

#[test]
fn stripe_mirror_outlives_crashes() {
    many("stripe_mirror", &Plan { layout: Layout::StripeMirror, width: 4, lose: 1, options: options() });
}

#[test]
fn parity_outlives_crashes() {
    many("parity_outlives_crashes", &Plan { layout: Layout::Parity, width: 4, lose: 0, options: options() });
}

#[test]
fn parity_outlives_crashes_with_losses() {
    let options = Options { journal_all: true, ..options() };
    many("with_losses", &Plan { layout: Layout::Parity, width: 4, lose: 1, options });
}

#[test]
fn double_parity_outlives_crashes_with_losses() {
    let options = Options { journal_all: true, ..options() };
    many("double_parity", &Plan { layout: Layout::DoubleParity, width: 5, lose: 2, options });
}

/// A parity layout, and the members lost in it.
struct Case {
    layout: Layout,
    width: usize,
    /// Members missing from the start.
    missing: usize,
    /// Members lost at the moment of the crash.
    lost: usize,
    /// Full-stripe writes as well.
    whole: bool,
}

/// Cuts the power at write number `step`, and checks the array. Returns whether there were so many
/// writes.
fn crash_at(case: &Case, step: u64, seed: u64) -> bool {
    let (disks, power) = disks(case.width, SIZE);
    let stripe = stripe_blocks(case.layout, case.width);
    let model = simulate(seed, async {
        make(&disks, case.layout, UNIT).await;
        let array = start(&disks, options()).await.expect("assembled");
        let io = array.open().await.expect("opened");
        let model = Model::new(array.info().size);
        model.write(&*io, 0, 3 * stripe).await.expect("written");
        array.stop().await.expect("stopped");
        model
    });
    let present = &disks[case.missing..];
    let engine = longhaul_engine::Engine::simulated(seed).expect("engine");
    engine.block_on(async {
        let array = start(present, degraded()).await.expect("assembled");
        let io = array.open().await.expect("opened");
        power.light(step, seed);
        let work = pin!(async {
            // One block, one that crosses into the next unit, and one that crosses into the next
            // stripe.
            model.write(&*io, 1, 1).await.expect("written");
            model.write(&*io, 3, 2).await.expect("written");
            model.write(&*io, stripe - 1, 2).await.expect("written");
            io.flush().await.expect("flushed");
            let (first, count) = if case.whole { (stripe, 2 * stripe) } else { (stripe, stripe - 1) };
            model.write(&*io, first, count).await.expect("written");
            model.write(&*io, 2, 1).await.expect("written");
            io.flush().await.expect("flushed");
        });
        select(work, pin!(power.lost())).await;
    });
    let crashed = power.is_off();
    power.off.store(true, std::sync::atomic::Ordering::SeqCst);
    drop(engine);
    power.restore();
    model.crashed();
    simulate(seed + 1, async {
        let array = start(&present[case.lost..], degraded()).await.expect("assembled after a crash");
        let io = array.open().await.expect("opened");
        model.check(&*io).await.expect("checked after a crash");
        array.stop().await.expect("stopped");
    });
    crashed
}

/// The write hole: a power cut at any moment of a partial or full-stripe write leaves only content
/// that was written, also with missing members, and with the loss of a member at that moment.
#[test]
fn no_power_cut_leaves_a_write_hole() {
    let case = |layout, width, missing, lost, whole| Case { layout, width, missing, lost, whole };
    let cases = [
        case(Layout::Parity, 4, 0, 0, true),
        case(Layout::Parity, 4, 1, 0, true),
        case(Layout::Parity, 4, 0, 1, false),
        case(Layout::DoubleParity, 5, 0, 0, true),
        case(Layout::DoubleParity, 5, 2, 0, true),
        case(Layout::DoubleParity, 5, 1, 1, true),
        case(Layout::DoubleParity, 5, 0, 2, false),
    ];
    for case in &cases {
        for seed in 0..3 {
            let steps = (0..).take_while(|step| crash_at(case, *step, seed)).count();
            assert!(steps > 20, "{} without {}: only {steps} steps", case.layout, case.missing);
        }
    }
}
