//! Content that carries its address and generation, and its verification.
//!
//! A block is written as sectors of 512 bytes. Each begins with a stamp of 32
//! bytes, little-endian, followed by bytes that depend on the stamp:
//!
//! | bytes | |
//! |---|---|
//! | 0–3 | magic |
//! | 4–7 | CRC32C of bytes 8–511 |
//! | 8–15 | byte address of the sector on the device |
//! | 16–23 | run: a random number for all that one run writes |
//! | 24–27 | generation: number of the write of this block in this run, from 1 |
//! | 28–31 | length of the block in bytes |
//!
//! Invariants of [`GenerationTable`]:
//! - a block never has two writes in flight, so its generations are ordered;
//! - what a read may find lies between the generation acknowledged before the
//!   read began and the newest one issued before it ended: no false alarm,
//!   and nothing older passes;
//! - one `u32` a block, at most [`MAX_BLOCKS`] of them.

use crate::pattern::mix;
use crc_fast::{CrcAlgorithm, checksum};
use std::fmt;

/// The smallest unit that devices write whole.
pub(crate) const SECTOR: usize = 512;

/// The most blocks whose generations are kept: 1 GiB of memory, and 1 TiB of
/// device in blocks of 4 KiB.
pub const MAX_BLOCKS: u64 = 1 << 28;

/// The most faults kept in full; further ones are only counted.
pub const MAX_FAULTS: usize = 16;

const MAGIC: u32 = u32::from_le_bytes(*b"LHv1");
const STAMP: usize = 32;
const IN_FLIGHT: u32 = 1 << 31;
/// The newest generation: further writes of the block are not made.
const MAX_GENERATION: u32 = IN_FLIGHT - 1;

/// The stamp of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    address: u64,
    run: u64,
    generation: u32,
    block: u32,
}

/// Fills `buf`, the block at `address`, for its write number `generation`.
pub(crate) fn stamp(buf: &mut [u8], address: u64, run: u64, generation: u32) {
    let block = buf.len() as u32;
    for (i, sector) in buf.chunks_exact_mut(SECTOR).enumerate() {
        let address = address + (i * SECTOR) as u64;
        let key = mix(mix(address ^ run) ^ u64::from(generation));
        for (n, word) in sector[STAMP..].chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&mix(key.wrapping_add(n as u64)).to_le_bytes());
        }
        sector[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        sector[8..16].copy_from_slice(&address.to_le_bytes());
        sector[16..24].copy_from_slice(&run.to_le_bytes());
        sector[24..28].copy_from_slice(&generation.to_le_bytes());
        sector[28..32].copy_from_slice(&block.to_le_bytes());
        let crc = crc32c(&sector[8..]);
        sector[4..8].copy_from_slice(&crc.to_le_bytes());
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    // The algorithm's result has 32 bits.
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

enum Sector {
    Zero,
    Corrupt,
    Stamped(Stamp),
}

fn look(sector: &[u8]) -> Sector {
    let u32_at = |at: usize| u32::from_le_bytes([sector[at], sector[at + 1], sector[at + 2], sector[at + 3]]);
    let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
    if u32_at(0) == MAGIC && u32_at(4) == crc32c(&sector[8..]) {
        return Sector::Stamped(Stamp {
            address: u64_at(8),
            run: u64_at(16),
            generation: u32_at(24),
            block: u32_at(28),
        });
    }
    if sector.iter().all(|byte| *byte == 0) { Sector::Zero } else { Sector::Corrupt }
}

/// Content that a read of a block may return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedContent {
    /// Generations of this run, both ends included. Generation 0 are the zeroes before the first write.
    Run { run: u64, oldest: u32, newest: u32 },
    /// Any run's, whole and in its place.
    AnyRun,
}

/// The kinds of wrong content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// Bytes that were never written: the checksum does not match.
    Corrupted,
    /// Sound content of another address.
    Misplaced,
    /// Valid content of this address, older than the write acknowledged last.
    Stale,
    /// Parts of several writes.
    Torn,
    /// Zeroes, as if nothing had been written.
    NeverWritten,
}

impl FaultKind {
    /// All kinds, in the order in which results list them.
    pub const ALL: [FaultKind; 5] = [
        FaultKind::Corrupted,
        FaultKind::Misplaced,
        FaultKind::Stale,
        FaultKind::Torn,
        FaultKind::NeverWritten,
    ];

    /// Name of the kind, in one word.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Corrupted => "corrupted",
            FaultKind::Misplaced => "misplaced",
            FaultKind::Stale => "stale",
            FaultKind::Torn => "torn",
            FaultKind::NeverWritten => "never written",
        }
    }
}

/// Wrong content in one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Kind of the fault.
    pub kind: FaultKind,
    /// Byte address of the block.
    pub address: u64,
    /// Length of the block in bytes.
    pub len: u64,
    /// The content found, and the content expected.
    pub detail: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: block of {} bytes at {}: {}", self.kind.name(), self.len, self.address, self.detail)
    }
}

/// Checks the block at `address`.
pub(crate) fn check(buf: &[u8], address: u64, expect: ExpectedContent) -> Result<(), Fault> {
    let fault = |kind, detail| Err(Fault { kind, address, len: buf.len() as u64, detail });
    let (mut good, mut old, mut zero) = (0, 0, 0);
    let mut first: Option<Stamp> = None;
    let mut mixed = false;
    for (i, sector) in buf.chunks_exact(SECTOR).enumerate() {
        let here = address + (i * SECTOR) as u64;
        match look(sector) {
            Sector::Corrupt => {
                return fault(
                    FaultKind::Corrupted,
                    format!("the checksum of the sector at {here} does not match"),
                );
            }
            Sector::Stamped(stamp) if stamp.address != here => {
                let detail = format!("the sector at {here} holds the content of {}", stamp.address);
                return fault(FaultKind::Misplaced, detail);
            }
            Sector::Zero if matches!(expect, ExpectedContent::Run { oldest: 0, .. }) => good += 1,
            Sector::Zero => zero += 1,
            Sector::Stamped(stamp) => {
                let same =
                    |a: Stamp| (a.run, a.generation, a.block) == (stamp.run, stamp.generation, stamp.block);
                mixed |= !same(*first.get_or_insert(stamp));
                match fresh(stamp, buf.len(), expect) {
                    Ok(true) => good += 1,
                    Ok(false) => old += 1,
                    Err(detail) => return fault(FaultKind::Corrupted, detail),
                }
            }
        }
    }
    // Only where writes were under way may a read see parts of two of them.
    let may_mix = matches!(expect, ExpectedContent::Run { oldest, newest, .. } if oldest < newest);
    match (good, old, zero) {
        (_, 0, 0) if !mixed || may_mix => Ok(()),
        (0, 0, _) => fault(FaultKind::NeverWritten, format!("all zeroes, {} expected", name(expect))),
        (0, _, 0) if !mixed => {
            let found = first.map(|stamp| describe(stamp, expect)).unwrap_or_default();
            fault(FaultKind::Stale, format!("holds {found}, {} expected", name(expect)))
        }
        _ => {
            let detail = format!(
                "{good} sectors of {}, {old} older ones and {zero} of zeroes",
                if matches!(expect, ExpectedContent::AnyRun) {
                    "some write, but not all of the same".into()
                } else {
                    name(expect)
                }
            );
            fault(FaultKind::Torn, detail)
        }
    }
}

/// Whether the content is as new as expected; an error if it cannot exist.
fn fresh(stamp: Stamp, len: usize, expect: ExpectedContent) -> Result<bool, String> {
    let ExpectedContent::Run { run, oldest, newest } = expect else { return Ok(stamp.block == len as u32) };
    if stamp.run == run && stamp.generation > newest {
        return Err(format!("generation {} of {newest} written so far", stamp.generation));
    }
    Ok(stamp.run == run && stamp.generation >= oldest)
}

fn name(expect: ExpectedContent) -> String {
    match expect {
        ExpectedContent::Run { newest: 0, .. } => "zeroes".into(),
        ExpectedContent::Run { oldest: 0, newest, .. } => format!("zeroes, or generation 1 to {newest}"),
        ExpectedContent::Run { oldest, newest, .. } if oldest == newest => format!("generation {newest}"),
        ExpectedContent::Run { oldest, newest, .. } => format!("generation {oldest} to {newest}"),
        ExpectedContent::AnyRun => "content of an earlier run".into(),
    }
}

fn describe(stamp: Stamp, expect: ExpectedContent) -> String {
    match expect {
        ExpectedContent::Run { run, .. } if run == stamp.run => format!("generation {}", stamp.generation),
        ExpectedContent::Run { .. } => "content of an earlier run".into(),
        ExpectedContent::AnyRun => format!("blocks of {} bytes", stamp.block),
    }
}

/// The generations of the blocks of one job.
#[derive(Debug)]
pub(crate) struct GenerationTable {
    run: u64,
    /// Newest generation issued, and whether it is under way.
    blocks: Vec<u32>,
}

impl GenerationTable {
    pub(crate) fn new(run: u64, blocks: u64) -> GenerationTable {
        assert!(blocks <= MAX_BLOCKS, "checked when the job was planned");
        GenerationTable { run, blocks: vec![0; blocks as usize] }
    }

    /// Begins a write of `block`, or of the next block after it that is free
    /// (without a write under way, and with a generation left); its number and
    /// its generation. `None` if no block is free.
    pub(crate) fn begin_write(&mut self, block: u64) -> Option<(u64, u32)> {
        let count = self.blocks.len();
        let free = |at: &usize| self.blocks[*at] < MAX_GENERATION;
        let at = (0..count).map(|i| (block as usize + i) % count).find(free)?;
        let generation = self.blocks[at] + 1;
        self.blocks[at] = generation | IN_FLIGHT;
        Some((at as u64, generation))
    }

    /// The write of `block` was acknowledged. After a write that failed this
    /// is not called: the block may hold either generation from then on.
    pub(crate) fn end_write(&mut self, block: u64) {
        self.blocks[block as usize] &= !IN_FLIGHT;
    }

    /// The newest generation acknowledged; 0 before the first write.
    pub(crate) fn acknowledged(&self, block: u64) -> u32 {
        let word = self.blocks[block as usize];
        (word & !IN_FLIGHT) - u32::from(word & IN_FLIGHT != 0)
    }

    /// What a read that began when `oldest` was the newest acknowledged, and
    /// ends now, may find. `None`: anything, since the block was not written.
    pub(crate) fn expect(&self, block: u64, oldest: u32) -> Option<ExpectedContent> {
        let newest = self.blocks[block as usize] & !IN_FLIGHT;
        (oldest > 0).then_some(ExpectedContent::Run { run: self.run, oldest, newest })
    }

    pub(crate) fn run(&self) -> u64 {
        self.run
    }

    pub(crate) fn len(&self) -> u64 {
        self.blocks.len() as u64
    }
}

/// Result of verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Blocks checked, those found wrong among them.
    pub checked_blocks: u64,
    counts: [u64; FaultKind::ALL.len()],
    /// The first faults, at most [`MAX_FAULTS`].
    pub first: Vec<Fault>,
}

impl VerifyReport {
    pub(crate) fn add(&mut self, result: Result<(), Fault>) {
        self.checked_blocks += 1;
        if let Err(fault) = result {
            self.counts[fault.kind as usize] += 1;
            if self.first.len() < MAX_FAULTS {
                self.first.push(fault);
            }
        }
    }

    pub(crate) fn merge(&mut self, other: &VerifyReport) {
        self.checked_blocks += other.checked_blocks;
        self.counts.iter_mut().zip(other.counts).for_each(|(a, b)| *a += b);
        let room = MAX_FAULTS - self.first.len();
        self.first.extend(other.first.iter().take(room).cloned());
    }

    /// Number of faults of one kind.
    pub fn count(&self, kind: FaultKind) -> u64 {
        self.counts[kind as usize]
    }

    /// Number of all faults.
    pub fn faults(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 1 << 20;
    const RUN: u64 = 99;

    fn block(address: u64, run: u64, generation: u32) -> Vec<u8> {
        let mut buf = vec![0; 4096];
        stamp(&mut buf, address, run, generation);
        buf
    }

    fn exactly(generation: u32) -> ExpectedContent {
        ExpectedContent::Run { run: RUN, oldest: generation, newest: generation }
    }

    fn kind(buf: &[u8], expect: ExpectedContent) -> Option<FaultKind> {
        check(buf, AT, expect).err().map(|fault| {
            assert_eq!((fault.address, fault.len), (AT, 4096));
            fault.kind
        })
    }

    #[test]
    fn sound_content_passes() {
        assert_eq!(kind(&block(AT, RUN, 3), exactly(3)), None);
        assert_eq!(kind(&block(AT, RUN, 3), ExpectedContent::AnyRun), None);
    }

    #[test]
    fn each_kind_of_corruption_is_distinguished() {
        for flipped in [0, 4, 8, 16, 24, 31, 32, 511, 4095] {
            let mut buf = block(AT, RUN, 3);
            buf[flipped] ^= 1;
            assert_eq!(kind(&buf, exactly(3)), Some(FaultKind::Corrupted), "byte {flipped}");
        }
        assert_eq!(kind(&block(AT + 4096, RUN, 3), exactly(3)), Some(FaultKind::Misplaced));
        assert_eq!(kind(&block(AT, RUN, 2), exactly(3)), Some(FaultKind::Stale));
        assert_eq!(kind(&block(AT, RUN + 1, 3), exactly(3)), Some(FaultKind::Stale));
        assert_eq!(kind(&[0; 4096], exactly(3)), Some(FaultKind::NeverWritten));
        assert_eq!(kind(&[0; 4096], ExpectedContent::AnyRun), Some(FaultKind::NeverWritten));
        assert_eq!(kind(&[7; 4096], exactly(3)), Some(FaultKind::Corrupted));
        assert_eq!(kind(&block(AT, RUN, 4), exactly(3)), Some(FaultKind::Corrupted), "from the future");
        for old in [block(AT, RUN, 2), vec![0; 4096]] {
            for cut in [512, 2048, 3584] {
                let mut buf = block(AT, RUN, 3);
                buf[cut..].copy_from_slice(&old[cut..]);
                assert_eq!(kind(&buf, exactly(3)), Some(FaultKind::Torn), "cut at {cut}");
                if old[0] != 0 {
                    assert_eq!(
                        kind(&buf, ExpectedContent::AnyRun),
                        Some(FaultKind::Torn),
                        "cut at {cut}, any run"
                    );
                }
            }
        }
    }

    /// Of a block without an acknowledged write.
    #[test]
    fn zeroes_and_writes_that_were_begun_pass_before_the_first_acknowledged_write() {
        let up_to = |newest| ExpectedContent::Run { run: RUN, oldest: 0, newest };
        let mut mixture = block(AT, RUN, 2);
        mixture[..512].fill(0);
        mixture[1024..2048].copy_from_slice(&block(AT, RUN, 1)[1024..2048]);
        for content in [&[0; 4096][..], &block(AT, RUN, 1), &block(AT, RUN, 2), &mixture] {
            assert_eq!(kind(content, up_to(2)), None);
        }
        assert_eq!(kind(&[0; 4096], up_to(0)), None, "no write was begun");
        assert_eq!(kind(&mixture, up_to(1)), Some(FaultKind::Corrupted), "from the future");
        assert_eq!(kind(&block(AT, RUN, 1), up_to(0)), Some(FaultKind::Corrupted), "from the future");
        for newest in [0, 2] {
            assert_eq!(kind(&[7; 4096], up_to(newest)), Some(FaultKind::Corrupted));
            assert_eq!(kind(&block(AT + 4096, RUN, 1), up_to(newest)), Some(FaultKind::Misplaced));
            assert_eq!(kind(&block(AT, RUN + 1, 1), up_to(newest)), Some(FaultKind::Stale));
        }
        mixture[..512].copy_from_slice(&block(AT, RUN + 1, 1)[..512]);
        let fault = check(&mixture, AT, up_to(2)).expect_err("content of another run");
        assert_eq!(fault.kind, FaultKind::Torn);
        assert!(
            fault.detail.starts_with("7 sectors of zeroes, or generation 1 to 2, 1 older ones"),
            "{fault}"
        );
    }

    #[test]
    fn a_fault_reads_as_a_sentence() {
        let fault = check(&block(AT, RUN, 2), AT, exactly(5)).expect_err("stale");
        let text = "stale: block of 4096 bytes at 1048576: holds generation 2, generation 5 expected";
        assert_eq!(fault.to_string(), text);
        let fault = check(&block(8192, RUN, 5), AT, exactly(5)).expect_err("misplaced");
        assert!(fault.to_string().ends_with("the sector at 1048576 holds the content of 8192"));
    }

    #[test]
    fn writes_under_way_excuse_either_generation_and_their_mixture_only() {
        let between = ExpectedContent::Run { run: RUN, oldest: 3, newest: 4 };
        for generation in [3, 4] {
            assert_eq!(kind(&block(AT, RUN, generation), between), None);
        }
        let mut mixture = block(AT, RUN, 3);
        mixture[2048..].copy_from_slice(&block(AT, RUN, 4)[2048..]);
        assert_eq!(kind(&mixture, between), None);
        assert_eq!(kind(&block(AT, RUN, 2), between), Some(FaultKind::Stale));
        mixture[..512].copy_from_slice(&block(AT, RUN, 2)[..512]);
        assert_eq!(kind(&mixture, between), Some(FaultKind::Torn));
    }

    #[test]
    fn the_table_never_gives_a_block_to_two_writes() {
        let mut table = GenerationTable::new(RUN, 3);
        assert_eq!(table.expect(0, table.acknowledged(0)), None, "never written");
        let first = table.begin_write(1).expect("free");
        assert_eq!(first, (1, 1));
        assert_eq!(table.acknowledged(1), 0);
        assert_eq!(table.begin_write(1), Some((2, 1)), "the next free one");
        assert_eq!(table.begin_write(2), Some((0, 1)), "around the end");
        assert_eq!(table.begin_write(0), None);
        table.end_write(1);
        assert_eq!(table.acknowledged(1), 1);
        assert_eq!(table.begin_write(0), Some((1, 2)));
        let expect = table.expect(1, 1);
        assert_eq!(expect, Some(ExpectedContent::Run { run: RUN, oldest: 1, newest: 2 }));
    }

    #[test]
    fn reports_count_all_and_keep_few() {
        let mut report = VerifyReport::default();
        report.add(Ok(()));
        for _ in 0..100 {
            report.add(check(&[0; 512], 0, exactly(1)));
        }
        let mut all = VerifyReport::default();
        all.merge(&report);
        all.merge(&report);
        assert_eq!((all.checked_blocks, all.faults(), all.first.len()), (202, 200, MAX_FAULTS));
        assert_eq!(all.count(FaultKind::NeverWritten), 200);
    }
}
