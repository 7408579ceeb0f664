//! What keeps an array right is left out, one thing at a time: each is missed
//! within a bounded number of seeds.

use longhaul_array::{Layout, Mechanism};
use longhaul_sim::subject::Arrayed;
use longhaul_sim::{Plan, Theme, run};

/// Asserts that seeds of a layout notice that something is missing.
fn is_missed(layout: Layout, without: Mechanism, seeds: u64) {
    let plan = |seed| Plan { without: Some(without), ..Plan::new(seed, &[layout]) };
    let noticed = (1..=seeds).find_map(|seed| run(&plan(seed), &Arrayed::new(&plan(seed)), false).err());
    let failure =
        noticed.unwrap_or_else(|| panic!("{layout} without {without:?}: not noticed in {seeds} seeds"));
    // The command that shows it again leaves out the same.
    let (text, seed) = (failure.to_string(), failure.plan.seed);
    let again = format!("--seed {seed} --layout {layout} --without {without:?}").to_lowercase();
    assert!(text.ends_with(&again), "{text}");
}

/// Asserts that seeds with a theme, of all layouts, notice that something is
/// missing.
fn is_missed_in(theme: Theme, without: Mechanism, seeds: std::ops::RangeInclusive<u64>) {
    let plan = |seed| Plan { without: Some(without), ..Plan::themed(seed, &Layout::ALL, theme) };
    let noticed = seeds.clone().find_map(|seed| run(&plan(seed), &Arrayed::new(&plan(seed)), false).err());
    assert!(noticed.is_some(), "{theme:?} without {without:?}: not noticed by seeds {seeds:?}");
}

#[test]
fn a_whole_stripe_that_is_zeroed_without_its_intent_mark_is_noticed() {
    is_missed_in(Theme::Quiet, Mechanism::ZeroIntent, 60..=400);
}

#[test]
fn a_repair_that_is_left_in_a_cache_is_noticed() {
    is_missed_in(Theme::Repair, Mechanism::RepairFlush, 1..=300);
}

#[test]
fn superblocks_that_are_all_written_to_one_place_are_noticed() {
    is_missed_in(Theme::Wide, Mechanism::Slots, 1..=20);
}

#[test]
fn rebuild_progress_that_is_ahead_of_the_rebuild_is_noticed() {
    is_missed_in(Theme::Long, Mechanism::Progress, 50..=300);
}

#[test]
fn what_keeps_an_array_right_is_missed() {
    // Much has to come together for one that needs it.
    is_missed(Layout::Parity, Mechanism::Journal, 1000);
    is_missed(Layout::Parity, Mechanism::Intent, 100);
    is_missed(Layout::Mirror, Mechanism::Intent, 100);
    is_missed(Layout::Parity, Mechanism::Checksums, 100);
    is_missed(Layout::Mirror, Mechanism::Checksums, 100);
    is_missed(Layout::Parity, Mechanism::Fence, 100);
    is_missed(Layout::Parity, Mechanism::Publish, 100);
}
