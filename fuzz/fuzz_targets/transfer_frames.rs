//! See `longhaul_fuzz::transfer_frames`.
#![cfg_attr(fuzzing, no_main)]

longhaul_fuzz::fuzz_main!(longhaul_fuzz::transfer_frames::run);
