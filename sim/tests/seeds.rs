//! A bounded number of seeds, and the proof that the simulator would notice.

mod planted;

use longhaul_array::Layout;
use longhaul_sim::subject::{Striped, Subject, of};
use longhaul_sim::{Failure, Plan, run};
use planted::{Planted, Wrong};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// Seeds that every change is tried with, of each layout. CI tries others with each run.
const SEEDS: u64 = 60;
/// A slow machine tries fewer: after so long no further seed is begun.
const LONG: Duration = Duration::from_secs(40);
/// But so many at least.
const LEAST: u64 = 20;

fn first_failure(subject: impl Fn(&Plan) -> Box<dyn Subject + Sync>) -> Option<Failure> {
    let plans = (1..=SEEDS).map(|seed| Plan::new(seed, &[Layout::Stripe]));
    plans.filter_map(|plan| run(&plan, &*subject(&plan), false).err()).next()
}

/// Tries seeds of a layout, in time that is bounded.
fn survives(layout: Layout) {
    let began = Instant::now();
    for seed in 1..=SEEDS {
        if seed > LEAST && began.elapsed() > LONG {
            break;
        }
        let plan = Plan::new(seed, &[layout]);
        if let Err(failure) = run(&plan, &*of(&plan), false) {
            panic!("seed {seed}: {failure}");
        }
    }
}

#[test]
fn stripes_survive() {
    survives(Layout::Stripe);
}

#[test]
fn mirrors_survive() {
    survives(Layout::Mirror);
}

#[test]
fn stripes_of_mirrors_survive() {
    survives(Layout::StripeMirror);
}

#[test]
fn parity_survives() {
    survives(Layout::Parity);
}

#[test]
fn double_parity_survives() {
    survives(Layout::DoubleParity);
}

#[test]
fn a_seed_does_the_same_again() {
    let digests = || {
        let plans = (1..=20).map(|seed| Plan::new(seed, &Layout::ALL));
        plans.map(|plan| run(&plan, &*of(&plan), false).map_err(|f| f.to_string()))
    };
    let first: Vec<_> = digests().collect();
    assert_eq!(first, digests().collect::<Vec<_>>());
    assert!(first.windows(2).all(|pair| pair[0] != pair[1]), "seeds differ");
}

/// Every planted fault is found, with its seed, and by what a reader sees.
#[test]
fn planted_faults_are_found() {
    for wrong in Wrong::ALL {
        let failure = first_failure(|plan| {
            Box::new(Planted { below: Striped { unit: plan.unit }, wrong, opened: AtomicU64::new(0) })
        });
        let failure = failure.unwrap_or_else(|| panic!("{wrong:?} was not noticed")).to_string();
        assert!(failure.contains("may be of"), "{wrong:?}: {failure}");
        assert!(failure.contains("again: cargo run --release -p longhaul-sim -- --seed "), "{failure}");
    }
}
