//! The bodies of the fuzz targets.
//!
//! Each is a function of bytes that panics when something is wrong, so that
//! it serves three ends: `cargo fuzz run NAME` looks for such bytes,
//! `cargo test` replays the corpus with any toolchain, and
//! `cargo run --bin NAME -- FILE...` replays a finding.
//!
//! The targets that drive a state machine read their input as a list of
//! operations: what the peer sends, how the stream is cut up, and what the
//! driver does. Their oracles are in the models beside them, which look at
//! nothing but the public interface and the bytes that come out.

#![forbid(unsafe_code)]

pub mod catalog_frames;
pub mod codec_from_controller;
pub mod codec_from_host;
pub mod controller;
pub mod host_queue;
mod input;
mod pdus;
mod receiving;
pub mod seeds;
mod stream;
pub mod structures;
pub mod target_queue;
pub mod transfer_frames;

/// A target and what runs one input of it.
pub type Target = (&'static str, fn(&[u8]));

/// Every target by name.
pub const TARGETS: [Target; 8] = [
    ("codec_from_host", codec_from_host::run),
    ("codec_from_controller", codec_from_controller::run),
    ("structures", structures::run),
    ("target_queue", target_queue::run),
    ("host_queue", host_queue::run),
    ("controller", controller::run),
    ("transfer_frames", transfer_frames::run),
    ("catalog_frames", catalog_frames::run),
];

/// The entry of a fuzz target: libFuzzer's where it was built for fuzzing,
/// else one that runs the files which are named on the command line.
#[macro_export]
macro_rules! fuzz_main {
    ($run:path) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|data: &[u8]| $run(data));

        #[cfg(not(fuzzing))]
        fn main() {
            for path in std::env::args().skip(1) {
                let data = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
                $run(&data);
                println!("{path}: ok");
            }
        }
    };
}
