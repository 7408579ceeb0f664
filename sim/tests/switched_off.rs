//! What keeps an array right is left out, one thing at a time: each is missed
//! within a bounded number of seeds.

use longhaul_array::{Layout, Mechanism};
use longhaul_sim::subject::Arrayed;
use longhaul_sim::{Plan, run};

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
