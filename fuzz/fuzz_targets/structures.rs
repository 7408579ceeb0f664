//! See `longhaul_fuzz::structures`.
#![cfg_attr(fuzzing, no_main)]

longhaul_fuzz::fuzz_main!(longhaul_fuzz::structures::run);
