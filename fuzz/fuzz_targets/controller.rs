//! See `longhaul_fuzz::controller`.
#![cfg_attr(fuzzing, no_main)]

longhaul_fuzz::fuzz_main!(longhaul_fuzz::controller::run);
