//! See `longhaul_fuzz::catalog_frames`.
#![cfg_attr(fuzzing, no_main)]

longhaul_fuzz::fuzz_main!(longhaul_fuzz::catalog_frames::run);
