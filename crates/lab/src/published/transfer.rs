//! What a file costs to transfer, and what hides it. The publication is at hand as
//! its slides: places are their headings and the figures on them.

use longhaul_results::published::{Publication, Statement};

/// The publication that the statements below are from.
pub static DOCUMENT: Publication = Publication {
    short: "Transfer study",
    full: "Y. Liu, Z. Liu, R. Kettimuthu, N. S. V. Rao, Z. Chen, I. Foster: Data Transfer Between Scientific \
           Facilities – Bottleneck Analysis, Insights, and Optimizations, CCGRID 2019 (slides)",
};
/// The project whose data set it uses.
pub static PETASCALE: Publication = Publication {
    short: "Petascale DTN project",
    full: "The Petascale DTN Project: High Performance Data Transfer for HPC Facilities; its benchmark data set",
};

const MODEL: &str = "Further insights, Fig. 5";
const STAGES: &str = "Further insights, O_R, O_W and O_N";
const SETS: &str = "Bottleneck analysis, Dataset";

const fn number(at: &'static str, value: f64, unit: &'static str, what: &'static str) -> Statement {
    Statement::number(&DOCUMENT, at, value, unit, what)
}

const fn words(at: &'static str, what: &'static str) -> Statement {
    Statement::words(&DOCUMENT, at, what)
}

/// Rate of the path.
pub const RATE: Statement = number(
    "Bottleneck analysis, Testbed",
    100e9,
    "bit/s",
    "rate of the path from one site (80 Gb/s from the other)",
);
/// Round trip of the path.
pub const RTT: Statement = number("Bottleneck analysis, Testbed", 45e-3, "s", "round trip");
/// Bytes of each transfer of the line.
pub const BYTES: Statement = number(MODEL, 5e9, "B", "of a transfer, in N files");
/// Slope of the line.
pub const T0: Statement = number(MODEL, 0.0665, "s/file", "t0: slope of T = 0.0665 N + 16.5 s");
/// The rest of the line.
pub const OF_BYTES: Statement = number(MODEL, 16.5, "s", "for the bytes: T = 0.0665 N + 16.5 s");
/// Rate of the bytes.
pub const R: Statement = number(MODEL, 5e9 / 16.5, "B/s", "R: 5 GB in 16.5 s");
/// Storage at the source.
pub const O_R: Statement =
    number(STAGES, 0.0340, "s/file", "O_R: closing a file and opening the next at the source");
/// Storage at the destination.
pub const O_W: Statement =
    number(STAGES, 0.0101, "s/file", "O_W: closing a file and opening the next at the destination");
/// Cost of a file on the network.
pub const O_N: Statement =
    number(STAGES, 0.0253, "s/file", "O_N: dynamics of TCP, because of the pauses of O_R and O_W");
/// The longest stage.
pub const LEAST: Statement = number(STAGES, 0.0340, "s/file", "max(O_R, O_N, O_W)");
/// Sum of the costs of a file in all stages.
pub const SUM: Statement = number(STAGES, 0.0694, "s/file", "O_R + O_N + O_W");
/// The whole, as stated beside the stages.
pub const OVERALL: Statement =
    number(STAGES, 0.0655, "s/file", "O_overall (Fig. 5 of the same slides has 66.5 ms)");
/// Between which the whole is.
pub const BOUNDS: Statement = words("Further insights", "max(O_R, O_N, O_W) ≤ O ≤ O_R + O_N + O_W");

/// Bytes in transfers of more than one, 1,000 and 10,000 files.
pub const SHARES: [Statement; 3] = [
    number("Introduction, Fig. 1", 0.90, "(share)", "of the bytes move in transfers of more than one file"),
    number("Introduction, Fig. 1", 0.63, "(share)", "in transfers of more than 1,000 files"),
    number("Introduction, Fig. 1", 0.42, "(share)", "in transfers of more than 10,000 files"),
];
/// Files of the real data set.
pub const REAL_FILES: Statement = number(SETS, 59_589.0, "files", "of DS_real");
/// Size of the data sets of production and of large files.
pub const REAL_BYTES: Statement = number(SETS, 1e12, "B", "of DS_real and of DS_big");
/// Files of the big data set.
pub const BIG_FILES: Statement = number(SETS, 128.0, "files", "of DS_big, for 64 processes");
/// How they compare.
pub const SETS_APART: Statement = words(
    "Bottleneck analysis, Figs. 3 and 4",
    "each stage is slower with DS_real than with DS_big, and the network limits both",
);
/// More files at once.
pub const CONCURRENCY: Statement =
    words("Concurrent transfers, Figs. 6–9", "more files at once hide what a file costs, at each stage");
/// Effect of more concurrent files than help.
pub const TOO_MANY: Statement =
    words("Concurrent transfers", "beyond some number of files at once more of them harm");
/// The last figure but three.
pub const END_TO_END: Statement =
    words("Concurrent transfers, Fig. 9", "end to end is as the network alone, which limits both");
/// Processor time by concurrency.
pub const CPU: Statement =
    words("Prefetching – motivation, Fig. 10", "more files at once take more of the processors");
/// Read-ahead over the number of files.
pub const PREFETCH: Statement =
    words("Prefetching – results, Fig. 12", "with prefetching time grows much less with the number of files");
/// Bytes of those transfers.
pub const PREFETCH_BYTES: Statement =
    number("Prefetching – results, Fig. 12", 80e9, "B", "of each transfer with and without prefetching");
/// Read-ahead over concurrency.
pub const PREFETCH_LESS: Statement =
    words("Prefetching, Fig. 13", "prefetching gives more throughput with fewer files at once");
/// What the sites wanted, and got at most.
pub const GOAL: Statement = number("Background", 15e9, "bit/s", "wanted between the sites");
/// The best of them.
pub const REACHED: Statement =
    number("Background, Table 1 (c)", 56.7e9, "bit/s", "reached at most, in November 2017");

/// All of them.
pub const ALL: &[&[Statement]] = &[
    &SHARES,
    &[GOAL, REACHED, RATE, RTT, REAL_FILES, REAL_BYTES, BIG_FILES, SETS_APART],
    &[BYTES, T0, OF_BYTES, R, O_R, O_W, O_N, LEAST, SUM, OVERALL, BOUNDS],
    &[CONCURRENCY, TOO_MANY, END_TO_END, CPU, PREFETCH_BYTES, PREFETCH, PREFETCH_LESS],
];

/// The data set L380.
pub const L380: [Statement; 4] = [
    Statement::number(&PETASCALE, "data set L380", 19_260.0, "files", "in L380"),
    Statement::number(&PETASCALE, "data set L380", 211.0, "directories", "that they are in"),
    Statement::number(&PETASCALE, "data set L380", 11e9, "B", "of its largest file (its smallest is empty)"),
    Statement::number(&PETASCALE, "data set L380", 4.4e12, "B", "of L380 in all"),
];
/// All of that project.
pub const ALL_PETASCALE: &[&[Statement]] = &[&L380];
