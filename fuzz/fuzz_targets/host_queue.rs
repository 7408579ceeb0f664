//! See `longhaul_fuzz::host_queue`.
#![cfg_attr(fuzzing, no_main)]

longhaul_fuzz::fuzz_main!(longhaul_fuzz::host_queue::run);
