//! A bounded number of seeds of hosts and a network, and the proof that the simulator would notice
//! the bugs that it looks for.

use longhaul_sim::network::{NetworkPlan, Planted, run_network};
use std::time::{Duration, Instant};

/// Seeds that every change is tried with.
const SEEDS: u64 = 20;
/// A slow machine tries fewer: after so long no further seed is begun.
const LONG: Duration = Duration::from_secs(40);
/// But so many at least.
const LEAST: u64 = 5;
/// Seeds within which everything that is planted must be found.
const PLANTED_WITHIN: u64 = 400;

fn all_pass(plan: fn(u64) -> NetworkPlan) {
    let began = Instant::now();
    for seed in 1..=SEEDS {
        if seed > LEAST && began.elapsed() > LONG {
            break;
        }
        if let Err(failure) = run_network(&plan(seed), Planted::Nothing, false) {
            panic!("seed {seed}: {failure}");
        }
    }
}

#[test]
fn hosts_keep_their_data_whatever_the_network_does() {
    all_pass(NetworkPlan::new);
}

#[test]
fn hosts_with_two_paths_keep_their_data() {
    all_pass(NetworkPlan::with_two_paths);
}

#[test]
fn a_network_seed_does_the_same_again() {
    let digests = || {
        let run = |seed| run_network(&NetworkPlan::new(seed), Planted::Nothing, false);
        (3..=6).map(|seed| run(seed).map_err(|failure| failure.to_string())).collect::<Vec<_>>()
    };
    let first = digests();
    assert_eq!(first, digests());
    assert!(first.windows(2).all(|pair| pair[0] != pair[1]), "seeds differ");
}

/// The failure of the first seed that notices it.
fn noticed(planted: Planted) -> String {
    noticed_in(NetworkPlan::new, planted)
}

fn noticed_in(plan: fn(u64) -> NetworkPlan, planted: Planted) -> String {
    let run = |seed| run_network(&plan(seed), planted, false).err();
    let failure = (1..=PLANTED_WITHIN).find_map(run);
    eprintln!("{planted:?}: noticed by seed {:?}", failure.as_ref().map(|failure| failure.plan.seed));
    failure.unwrap_or_else(|| panic!("{planted:?} was not noticed")).to_string()
}

#[test]
fn a_target_that_acknowledges_before_its_device_does_is_noticed() {
    let failure = noticed(Planted::EarlyAcknowledgement);
    assert!(failure.contains("may be of"), "{failure}");
    assert!(failure.contains("--world network --seed "), "{failure}");
}

#[test]
fn a_flush_that_is_none_is_noticed_behind_a_network() {
    let failure = noticed(Planted::NoFlush);
    assert!(failure.contains("may be of"), "{failure}");
}

#[test]
fn a_loss_of_power_that_no_generation_tells_of_is_noticed() {
    let failure = noticed(Planted::NoGeneration);
    assert!(failure.contains("same generation"), "{failure}");
}

#[test]
fn changes_that_are_sent_again_without_fencing_are_noticed() {
    let failure = noticed(Planted::NoFencing);
    assert!(failure.contains("may be of"), "{failure}");
}

#[test]
fn a_write_that_is_forgotten_at_a_reconnect_is_noticed() {
    let failure = noticed(Planted::ForgetsAtReconnect);
    assert!(failure.contains("may be of"), "{failure}");
}

#[test]
fn changes_that_another_path_takes_without_fencing_are_noticed() {
    let failure = noticed_in(NetworkPlan::with_two_paths, Planted::NoFencing);
    assert!(failure.contains("may be of"), "{failure}");
    assert!(failure.contains("--world paths --seed "), "{failure}");
}

#[test]
fn a_loss_of_power_that_no_generation_tells_of_is_noticed_over_two_paths() {
    let failure = noticed_in(NetworkPlan::with_two_paths, Planted::NoGeneration);
    assert!(failure.contains("same generation"), "{failure}");
}
