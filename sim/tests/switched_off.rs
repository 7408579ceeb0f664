//! What keeps an array right is left out, one thing at a time: each is missed
//! within a bounded number of seeds.

use longhaul_array::{Layout, Mechanism};
use longhaul_sim::subject::Arrayed;
use longhaul_sim::{Plan, run};

/// Asserts that seeds of a layout notice that something is missing.
fn is_missed(layout: Layout, without: Mechanism, seeds: u64) {
    let noticed = (1..=seeds).any(|seed| {
        let plan = Plan::new(seed, &[layout]);
        run(&plan, &Arrayed::new(&plan, Some(without)), false).is_err()
    });
    assert!(noticed, "{layout} without {without:?}: not noticed in {seeds} seeds");
}

#[test]
fn what_keeps_an_array_right_is_missed() {
    is_missed(Layout::Parity, Mechanism::Journal, 100);
    is_missed(Layout::Parity, Mechanism::Intent, 100);
    is_missed(Layout::Mirror, Mechanism::Intent, 100);
    is_missed(Layout::Parity, Mechanism::Checksums, 100);
    is_missed(Layout::Mirror, Mechanism::Checksums, 100);
    is_missed(Layout::Parity, Mechanism::Fence, 100);
    is_missed(Layout::Mirror, Mechanism::Publish, 100);
}
