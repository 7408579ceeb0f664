//! See `longhaul_fuzz::codec_from_controller`.
#![cfg_attr(fuzzing, no_main)]

longhaul_fuzz::fuzz_main!(longhaul_fuzz::codec_from_controller::run);
