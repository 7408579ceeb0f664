//! Hosts that share a pool, as the simulator runs them.

use longhaul_sim::pools::{PoolCounts, PoolPlan, run_pools};

/// CI tries others with each run.
const SEEDS: u64 = 150;

#[test]
fn seeds_pass_and_meet_every_fault() {
    let mut counts = PoolCounts::default();
    for seed in 0..SEEDS {
        match run_pools(&PoolPlan::new(seed), false) {
            Ok(found) => counts.add(&found),
            Err(failure) => panic!("seed {seed}: {failure}"),
        }
    }
    let PoolCounts {
        volumes, crashes, lost, late, pauses, cuts, overtaken, recovered, moved, writes, ..
    } = counts;
    let all = [volumes, crashes, lost, late, pauses, cuts, overtaken, recovered, moved, writes];
    assert!(all.iter().all(|count| *count > 0), "{counts:?}");
}

#[test]
fn a_seed_repeats_its_run() {
    let run = |seed| run_pools(&PoolPlan::new(seed), false).expect("passes");
    for seed in 0..10 {
        assert_eq!(format!("{:?}", run(seed)), format!("{:?}", run(seed)), "seed {seed}");
    }
}

#[test]
fn a_namespace_that_was_not_kept_is_noticed() {
    let is_noticed = |seed| {
        let plan = PoolPlan { is_target_forgetful: true, ..PoolPlan::new(seed) };
        run_pools(&plan, false).is_err()
    };
    assert!((0..100).any(is_noticed), "no seed notices it");
}

/// A recovery that undoes a move which the array has made.
#[test]
fn a_move_that_is_denied_is_noticed() {
    let is_noticed = |seed| {
        let plan = PoolPlan { is_move_denied: true, ..PoolPlan::new(seed) };
        run_pools(&plan, false).is_err()
    };
    // One that did so is among the first of these.
    assert!((790..2000).chain(0..790).any(is_noticed), "no seed notices it");
}
