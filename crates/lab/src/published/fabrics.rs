//! NVMe over InfiniBand, RoCE and TCP, one to six drives. Its results are figures
//! without numbers.

use longhaul_results::published::{Publication, Statement};

/// The publication that the statements below are from.
pub static DOCUMENT: Publication = Publication {
    short: "NVMe-oF poster",
    full: "Performance Analysis of Non-Volatile Memory Express Over Fabrics (NVMeoF) Using Infiniband and Ethernet \
           (poster)",
};

const TEST: &str = "Testing Overview, Step 1";

const fn number(at: &'static str, value: f64, unit: &'static str, what: &'static str) -> Statement {
    Statement::number(&DOCUMENT, at, value, unit, what)
}

/// Rate of the networks.
pub const RATE: Statement =
    number("Testing Overview", 100e9, "bit/s", "rate of InfiniBand (EDR) and of Ethernet");
/// Drives of the target.
pub const DRIVES: Statement =
    number("Testing Overview", 6.0, "drives", "of one target, reached by one client");
/// Bytes of a file.
pub const FILE: Statement = number(TEST, 16.0 * 1_073_741_824.0, "B", "of a file (\"16G\", as fio has it)");
/// Blocks in random order.
pub const RANDOM: Statement = number(TEST, 4096.0, "B", "of a block in random order");
/// Blocks in order.
pub const SEQUENTIAL: Statement = number(TEST, 131_072.0, "B", "of a block in order");
/// Length of a test.
pub const TIME: Statement = number(TEST, 100.0, "s", "length of a test");
/// Under way at once.
pub const DEPTH: Statement = number(TEST, 32.0, "requests", "under way at once");
/// Throughput of local drives by their number.
pub const LINEAR: Statement =
    Statement::words(&DOCUMENT, "Conclusion and Figs. 3–6", "linear to six drives of this machine");
/// TCP against InfiniBand.
pub const TCP: Statement =
    number("Conclusion", 0.1782, "(share)", "by which TCP was slower than InfiniBand on average");
/// The same in words.
pub const TCP_WORDS: Statement = Statement::words(
    &DOCUMENT,
    "Conclusion",
    "TCP was 17.82 % slower than InfiniBand on average over all tests",
);
/// Throughput over InfiniBand.
pub const INFINIBAND: Statement =
    Statement::words(&DOCUMENT, "Conclusion", "InfiniBand was in general the fastest and the most reliable");
/// `RoCE` with many drives.
pub const ROCE_WRITES: Statement = Statement::words(
    &DOCUMENT,
    "Conclusion and Fig. 8",
    "writes over RoCE to more than four drives were abnormally slow",
);
/// `RoCE` with ext4.
pub const ROCE_EXT4: Statement = Statement::words(
    &DOCUMENT,
    "Conclusion",
    "writes to ext4 over RoCE failed because of a known bug of the kernel",
);

/// All of them.
pub const ALL: &[&[Statement]] = &[
    &[RATE, DRIVES, FILE, RANDOM, SEQUENTIAL, TIME, DEPTH],
    &[LINEAR, TCP, TCP_WORDS, INFINIBAND, ROCE_WRITES, ROCE_EXT4],
];
