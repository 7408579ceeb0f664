//! How a test reports that it cannot run on this machine, for want of root, a device or a program.
//!
//! The harness of Rust has no outcome for that: a test that returns early counts as passed, and its
//! output is discarded. So a test that skips writes to standard error itself, past the harness, one
//! line for people and for `.ci/run`, which counts it:
//!
//! ```text
//! skip: TEST: REASON          the whole test
//! skip in part: TEST: REASON  some of it; the rest has run
//! ```

#![forbid(unsafe_code)]

mod xfs;

pub use xfs::Xfs;

use std::fmt::{Arguments, Display};
use std::fs::File;
use std::io::Write;

/// Says that the running test skips, and why: `return skip!("mkfs.xfs is not installed")`.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => { $crate::tell("skip", ::std::format_args!($($reason)+)) };
}

/// Says which part of the running test skips, and why; the test continues.
#[macro_export]
macro_rules! skip_part {
    ($($reason:tt)+) => { $crate::tell("skip in part", ::std::format_args!($($reason)+)) };
}

/// Whether these devices of the machine can be opened. If not, the test skips, and must return.
pub fn can_open(devices: &[&str]) -> bool {
    devices.iter().all(|device| {
        let opened = File::options().read(true).write(true).open(device);
        if let Err(e) = &opened {
            skip!("needs {device}: {e}");
        }
        opened.is_ok()
    })
}

/// Prints the line of [`skip!`] or [`skip_part!`].
pub fn tell(what: &str, reason: Arguments<'_>) {
    let line = line(what, std::thread::current().name(), &reason);
    // The harness captures what the printing macros print, but not this. A closed
    // standard error is no failure of the test.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// The line: one, whatever the reason has in it. A test's thread has the test's name.
fn line(what: &str, test: Option<&str>, reason: &dyn Display) -> String {
    let reason = reason.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{what}: {}: {reason}\n", test.unwrap_or("a test"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_skip_is_one_line_with_the_name_of_the_test() {
        assert_eq!(line("skip", Some("a::b"), &"no root:\n  try sudo\n"), "skip: a::b: no root: try sudo\n");
    }

    /// What the next test does when it is run by itself.
    const INNER: &str = "LONGHAUL_SKIP_INNER";

    #[test]
    fn a_skip_is_seen_although_the_test_counts_as_passed() {
        if std::env::var_os(INNER).is_some() {
            eprintln!("captured");
            skip_part!("one of {}", 2);
            return skip!("for the test's sake");
        }
        let name = "tests::a_skip_is_seen_although_the_test_counts_as_passed";
        // Two threads, so that the test has one with its name.
        let ran = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", name, "--test-threads=2"])
            .env(INNER, "1")
            .output()
            .expect("ran");
        let told = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{told}");
        assert_eq!(told, format!("skip in part: {name}: one of 2\nskip: {name}: for the test's sake\n"));
    }
}
