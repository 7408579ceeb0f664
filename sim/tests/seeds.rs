//! A bounded number of seeds, and the proof that the simulator would notice.

mod planted;

use longhaul_array::Layout;
use longhaul_sim::subject::{Striped, Subject};
use longhaul_sim::{Failure, Plan, run};
use planted::{Planted, Wrong};
use std::sync::atomic::AtomicU64;

/// Seeds that every change is tried with.
const SEEDS: u64 = 150;

fn first_failure(subject: impl Fn(&Plan) -> Box<dyn Subject + Sync>) -> Option<Failure> {
    let plans = (1..=SEEDS).map(|seed| Plan::new(seed, &[Layout::Stripe]));
    plans.filter_map(|plan| run(&plan, &*subject(&plan), false).err()).next()
}

#[test]
fn stripes_survive() {
    let failure = first_failure(|plan| Box::new(Striped { unit: plan.unit }));
    assert!(failure.is_none(), "{}", failure.map_or_else(String::new, |f| f.to_string()));
}

#[test]
fn a_seed_does_the_same_again() {
    let digests = || {
        let plans = (1..=20).map(|seed| Plan::new(seed, &[Layout::Stripe]));
        plans.map(|plan| run(&plan, &Striped { unit: plan.unit }, false).map_err(|f| f.to_string()))
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
