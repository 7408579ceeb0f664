//! Devices joined to one, as a stranger joins them.

mod common;

use common::{Target, longhaul};
use serde_json::Value;

#[test]
fn a_stripe_over_two_targets_keeps_what_it_is_given() {
    let targets = [0, 1].map(|_| Target::start(&["scratch=mem:8MiB"], &[]));
    let [a, b] = targets.each_ref().map(|target| target.uri(0));
    let ran = longhaul(&[
        "bench",
        &a,
        &b,
        "--layout",
        "stripe",
        "--stripe-unit",
        "64k",
        "--rw",
        "write",
        "--bs",
        "512k",
        "--verify",
        "crc32c",
        "--json",
    ]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let result: Value = serde_json::from_str(&ran.stdout).expect("one document");
    let jobs = result["jobs"].as_array().expect("jobs");
    assert_eq!(jobs.len(), 1, "one device, one job: {jobs:?}");
    assert_eq!(jobs[0]["write"]["io_bytes"], 16 << 20);
    // It is there for who joins them again, and not for who swaps them.
    let read = |devices: [&str; 2]| {
        let load = ["--layout", "stripe", "--stripe-unit", "64k", "--bs", "512k", "--verify", "crc32c"];
        longhaul(&[&["bench"], &devices[..], &load[..]].concat()).code
    };
    assert_eq!(read([&a, &b]), Some(0));
    assert_eq!(read([&b, &a]), Some(4));
}
