//! See `longhaul_fuzz::target_queue`.
#![cfg_attr(fuzzing, no_main)]

longhaul_fuzz::fuzz_main!(longhaul_fuzz::target_queue::run);
