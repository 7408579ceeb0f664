//! NVMe/TCP under journaling file systems over metropolitan and wide areas. Its results are figures
//! without numbers: these statements are of its text.

use longhaul_results::published::{Publication, Statement};

/// What a workload is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// The block device.
    Raw,
    /// ext4 on one device.
    Ext4,
    /// XFS on one device.
    Xfs,
    /// XFS on six striped devices (RAID0).
    Striped,
}

/// The publication that the statements below are from.
pub static DOCUMENT: Publication = Publication {
    short: "NVMe/TCP file-system study",
    full: "S. Yu: Performance Evaluation of NVMe-over-TCP Using Journaling File Systems in International WAN, \
           Electronics 2021, 10(20), 2486",
};

/// Baseline near, 0.15 ms away.
const NEAR_AT: &str = "§4.1, Fig. 2";
/// Baseline far, 15 ms away.
const FAR_AT: &str = "§4.1, Fig. 3";

const fn number(at: &'static str, value: f64, unit: &'static str, what: &'static str) -> Statement {
    Statement::number(&DOCUMENT, at, value, unit, what)
}

const fn words(at: &'static str, what: &'static str) -> Statement {
    Statement::words(&DOCUMENT, at, what)
}

/// Rate of the network.
pub const RATE: Statement = number("§3.1", 100e9, "bit/s", "rate of the network");
/// Round trip near.
pub const NEAR_RTT: Statement = number("§3.1", 0.15e-3, "s", "round trip to the near host");
/// Round trip far.
pub const FAR_RTT: Statement = number("§3.1", 15e-3, "s", "round trip to the far host");
/// What TCP carried.
pub const CAPACITY: Statement =
    number("§3.1", 95e9, "bit/s", "carried at least by several TCP connections on both paths");
/// What iperf3 carried.
pub const IPERF: Statement =
    number("§3.1", 90e9, "bit/s", "carried at least by iperf3 with CUBIC on both paths");
/// What a drive moves.
pub const DRIVE: Statement = number("§3.1", 25.6e9, "bit/s", "read or written in order by each drive");
/// Drives of the stripe.
pub const STRIPED: Statement = number("§3.2", 6.0, "drives", "in the stripe (RAID0)");
/// Runs of each number.
pub const RUNS: Statement = number("§3.1", 5.0, "runs", "of each number, of which the mean is given");
/// Congestion control of both ends.
pub const CUBIC: Statement = words("§3.1", "congestion control is CUBIC");
/// The polled stack.
pub const POLLED: Statement = words(
    "§3.1",
    "a polled stack in user space (SPDK) had no meaningful throughput beyond 5 ms of round trip",
);

/// Files at once.
pub const WORKLOADS: Statement =
    words("§3.2", "workloads A, B, C and D read or write 1, 10, 100 and 1,000 files at the same time");
/// Near: the devices compared.
pub const NEAR_ALIKE: Statement = words(NEAR_AT, "no great difference between raw, ext4 and XFS");
/// Near: reads of several files from a stripe.
pub const NEAR_STRIPE_READS: Statement = words(NEAR_AT, "reads of several files are much faster from RAID0");
/// Near: too many reads at once from a stripe.
pub const NEAR_STRIPE_LOST: Statement =
    words(NEAR_AT, "RAID0 loses connections with too many files read at once: no result with 1,000");
/// Near: writes of few files.
pub const NEAR_FEW_WRITES: Statement =
    words(NEAR_AT, "writes of few files are much slower than reads, on RAID0 too");
/// Near: many files written.
pub const NEAR_MANY_WRITES: Statement =
    words(NEAR_AT, "1,000 files are written faster than 10 and 100, with a higher completion latency");
/// Near: completion latency of writes.
pub const NEAR_WRITE_LATENCY: Statement =
    words(NEAR_AT, "completion latency of writes is higher than of reads");
/// Far: one file.
pub const FAR_ONE: Statement = words(
    FAR_AT,
    "one file's throughput falls much as the round trip grows, above all read from ext4 and written to XFS",
);
/// Far: several files read.
pub const FAR_READS: Statement = words(FAR_AT, "several files at once help reads on all file systems");
/// Far: several files written.
pub const FAR_WRITES: Statement = words(FAR_AT, "several files at once do not help writes");
/// Far: many files on the raw device.
pub const FAR_RAW: Statement =
    words(FAR_AT, "1,000 files could not be completed on the raw device: connections were unstable");
/// Far: many files written.
pub const FAR_MANY_WRITES: Statement =
    words(FAR_AT, "1,000 files are written much slower than fewer on most file systems");
/// Far: XFS against ext4.
pub const FAR_XFS: Statement = words(FAR_AT, "few files are written much slower to XFS than to ext4");
/// Latencies at 15 ms.
pub const FAR_LATENCY: Statement =
    words("§4.1, Figs. 3–5", "completion latencies vary much as the load grows, on all file systems");

/// What fits in the capsule by default.
pub const IN_CAPSULE_DEFAULT: Statement =
    number("§3.2 and §4.2", 8192.0, "B", "of data in the capsule by default");
/// And at most in the study.
pub const IN_CAPSULE_LARGER: Statement =
    number("§3.2 and §4.2", 16384.0, "B", "of data in the capsule, larger");
/// Effect of in-capsule data on reads.
pub const IN_CAPSULE_READS: Statement =
    words("§4.2, Figs. 4 and 5", "16 KiB in the capsule changes nothing for reads");
/// In-capsule near: writes.
pub const IN_CAPSULE_NEAR: Statement = words(
    "§4.2, Fig. 4",
    "16 KiB in the capsule gives writes more throughput and less completion latency on file systems and RAID0",
);
/// In-capsule near: several files written to the raw device.
pub const IN_CAPSULE_NEAR_RAW: Statement = words(
    "§4.2, Fig. 4",
    "16 KiB in the capsule makes writes of several files slower on the raw device, above all of 1,000",
);
/// In-capsule far: writes.
pub const IN_CAPSULE_FAR: Statement = words(
    "§4.2, Fig. 5",
    "16 KiB in the capsule makes throughput and completion latency of writes vary more",
);
/// Smaller log buffers.
pub const LOG_DEFAULT: Statement = number("§4.3", 32768.0, "B", "in a log buffer of XFS by default");
/// The larger size of XFS log buffers.
pub const LOG_LARGER: Statement = number("§4.3", 262_144.0, "B", "in a log buffer of XFS, larger");
/// Log buffers far.
pub const LOG_FAR: Statement = words(
    "§4.3, Fig. 6",
    "log buffers of 256 KiB give XFS much better throughput and completion latency, above all with few files",
);

/// Findings about the throughput of so many files at once, far or near. A finding that leaves open
/// its workloads or devices is listed with those that it names.
pub fn throughput(far: bool, files: u64, write: bool, on: On) -> Vec<&'static Statement> {
    match (far, files) {
        (false, 1000) if on == On::Striped && !write => vec![&NEAR_STRIPE_LOST],
        (false, 1) if write => vec![&NEAR_FEW_WRITES],
        (false, 1000) if write && on != On::Striped => vec![&NEAR_MANY_WRITES],
        (false, 10 | 100) if on == On::Striped && !write => vec![&NEAR_STRIPE_READS],
        (false, _) if on != On::Striped && !write => vec![&NEAR_ALIKE],
        (true, 1) if on == On::Xfs && write => vec![&FAR_ONE, &FAR_XFS],
        (true, 1) => vec![&FAR_ONE],
        (true, 1000) if on == On::Raw => vec![&FAR_RAW],
        (true, 1000) if write => vec![&FAR_MANY_WRITES],
        (true, _) if !write => vec![&FAR_READS],
        (true, _) => vec![&FAR_WRITES],
        _ => Vec::new(),
    }
}

/// The finding about its completion latency.
pub fn completion(far: bool, write: bool) -> Option<&'static Statement> {
    match (far, write) {
        (true, _) => Some(&FAR_LATENCY),
        (false, true) => Some(&NEAR_WRITE_LATENCY),
        (false, false) => None,
    }
}

/// The finding about 16 KiB in the capsule, against 8 KiB.
pub fn in_capsule(far: bool, files: u64, write: bool, on: On) -> &'static Statement {
    match (far, write) {
        (_, false) => &IN_CAPSULE_READS,
        (true, true) => &IN_CAPSULE_FAR,
        (false, true) if on == On::Raw && files > 1 => &IN_CAPSULE_NEAR_RAW,
        (false, true) => &IN_CAPSULE_NEAR,
    }
}

/// All of them.
pub const ALL: &[&[Statement]] = &[
    &[RATE, NEAR_RTT, FAR_RTT, CAPACITY, IPERF, DRIVE, STRIPED, RUNS, CUBIC, POLLED, WORKLOADS],
    &[NEAR_ALIKE, NEAR_STRIPE_READS, NEAR_STRIPE_LOST, NEAR_FEW_WRITES, NEAR_MANY_WRITES, NEAR_WRITE_LATENCY],
    &[FAR_ONE, FAR_READS, FAR_WRITES, FAR_RAW, FAR_MANY_WRITES, FAR_XFS, FAR_LATENCY],
    &[
        IN_CAPSULE_DEFAULT,
        IN_CAPSULE_LARGER,
        IN_CAPSULE_READS,
        IN_CAPSULE_NEAR,
        IN_CAPSULE_NEAR_RAW,
        IN_CAPSULE_FAR,
    ],
    &[LOG_DEFAULT, LOG_LARGER, LOG_FAR],
];
