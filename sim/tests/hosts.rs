//! Several hosts that share the disks of an array.

use longhaul_array::{Layout, Mechanism};
use longhaul_sim::{Failure, Plan, Theme, run_hosts};
use std::time::{Duration, Instant};

/// Seeds that every change is tried with.
const SEEDS: u64 = 100;
/// A slow machine tries fewer: after so long no further seed is begun.
const LONG: Duration = Duration::from_secs(40);
/// But so many at least.
const LEAST: u64 = 20;
/// Seeds in which a host that does without something must have been noticed.
const NOTICED: u64 = 60;

fn plan(seed: u64, without: Option<Mechanism>) -> Plan {
    Plan { without, ..Plan::themed(seed, &Layout::ALL, Theme::Hosts) }
}

fn first_failure(without: Mechanism) -> Failure {
    let mut failures = (1..=NOTICED).filter_map(|seed| run_hosts(&plan(seed, Some(without)), false).err());
    failures.next().unwrap_or_else(|| panic!("without {without:?}: not noticed"))
}

#[test]
fn one_host_at_a_time_has_an_array_and_none_changes_what_another_has_taken_over() {
    let began = Instant::now();
    for seed in 1..=SEEDS {
        if seed > LEAST && began.elapsed() > LONG {
            break;
        }
        if let Err(failure) = run_hosts(&plan(seed, None), false) {
            panic!("seed {seed}: {failure}");
        }
    }
}

#[test]
fn hosts_that_share_an_array_do_the_same_again() {
    for seed in 1..=3 {
        let digest = || run_hosts(&plan(seed, None), false).map_err(|e| e.to_string());
        assert_eq!(digest(), digest(), "seed {seed}");
    }
}

#[test]
fn a_host_that_takes_an_array_without_a_second_look_is_noticed() {
    let failure = first_failure(Mechanism::SecondLook).to_string();
    assert!(failure.contains("have it at the same time"), "{failure}");
    assert!(failure.contains("--theme hosts --without secondlook"), "{failure}");
}

#[test]
fn a_host_that_writes_without_a_recent_look_at_the_heartbeat_is_noticed() {
    first_failure(Mechanism::Gate);
}

#[test]
fn a_host_that_answers_reads_without_a_recent_heartbeat_is_noticed() {
    let failure = first_failure(Mechanism::Lease).to_string();
    assert!(failure.contains("of a host that has lost the array had no error"), "{failure}");
}

#[test]
fn a_host_that_takes_an_array_without_reserving_its_members_is_noticed() {
    first_failure(Mechanism::Reservations);
}

#[test]
fn members_that_were_used_apart_and_are_taken_for_one_array_are_noticed() {
    let failure = first_failure(Mechanism::Apart).to_string();
    assert!(failure.contains("were used apart"), "{failure}");
}
