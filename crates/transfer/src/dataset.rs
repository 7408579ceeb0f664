//! The data sets of the published experiments, generated from a seed.
//!
//! A [`DatasetSpec`] is a name, a scale and a seed; [`DatasetSpec::plan`] generates the
//! list of files from them, and [`DatasetPlan::fill`] any range of any file, so that content can
//! be written, streamed or verified without a copy on disk. The same specification gives
//! the same bytes on every machine.
//!
//! Where the numbers come from (`docs/published.md` has the documents):
//! - `real`: 59,589 files, 1 TB (Transfer study, Bottleneck analysis, Dataset),
//!   so a mean of 16.8 MB. Fig. 2 there shows the distribution of sizes without
//!   numbers: *a log-normal one with a median of 1 MB and sigma 2.38, capped at
//!   16 GB, is our assumption*, which meets the mean.
//! - `big`: the same bytes in 128 files (ibid.).
//! - `l380`: 19,260 files in 211 directories, 0 B to 11 GB, 4.4 TB (Petascale DTN
//!   project, data set L380). *That the sizes are log-normal with sigma 2 is our
//!   assumption*; the median of 34.5 MB follows from the total.
//! - `big`, `small`, `equal` have files of one size.
//!
//! Scaling takes fewer files and never shrinks one: file *i* of *n* has the
//! size at quantile (i + ½)/n of the distribution, so a small sample keeps
//! its shape as far as its number of files allows.

mod content;
mod make;
mod sizes;

pub use make::{MakeError, Progress, make};

use content::ContentKey;
use sizes::LogNormal;

/// Files of `real` at full scale.
const REAL_FILES: u64 = 59_589;
/// `real`: median 1 MB, sigma 2.38 (our assumption), capped at 16 GB.
const REAL_SIZES: LogNormal = LogNormal { median: 1e6, sigma: 2.38, cap: 16_000_000_000 };
/// Bytes of `big` at full scale: those of `real`.
const BIG_BYTES: u64 = 1_000_000_000_000;
const BIG_FILES: u64 = 128;
/// Files and directories of `l380` at full scale.
const L380_FILES: u64 = 19_260;
const L380_DIRS: u64 = 211;
/// `l380`: sigma 2 (our assumption), capped at 11 GB; the median makes 4.4 TB.
const L380_SIZES: LogNormal = LogNormal { median: 34.5e6, sigma: 2.0, cap: 11_000_000_000 };
const SMALL_FILES: u64 = 10_000;
const SMALL_SIZE: u64 = 4096;
/// `equal` by default: the study's 5 GB, in as many files as the
/// middle of its range.
const EQUAL_BYTES: u64 = 5_000_000_000;
const EQUAL_FILES: u64 = 1_000;

/// The most files in a plan: about 100 bytes of memory each.
pub const MAX_FILES: u64 = 10_000_000;

/// Files in one directory of `real`, on average.
const REAL_PER_DIR: u64 = 48;
/// Files in one directory of `small`: large enough to hurt slow directories.
const SMALL_PER_DIR: u64 = 1_000;

/// The data sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatasetKind {
    /// A production mix: many small files, few very large ones, nested.
    Real,
    /// The bytes of `real` in 128 equal files.
    Big,
    /// The Petascale DTN set.
    L380,
    /// Files of 4 KiB.
    Small,
    /// N equal files of B bytes in all.
    Equal,
}

impl DatasetKind {
    /// All of them.
    pub const ALL: [DatasetKind; 5] =
        [DatasetKind::Real, DatasetKind::Big, DatasetKind::L380, DatasetKind::Small, DatasetKind::Equal];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            DatasetKind::Real => "real",
            DatasetKind::Big => "big",
            DatasetKind::L380 => "l380",
            DatasetKind::Small => "small",
            DatasetKind::Equal => "equal",
        }
    }
}

/// Scale of a data set; with neither field, full scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scale {
    /// This many files.
    pub files: Option<u64>,
    /// At most this many bytes in all.
    pub bytes: Option<u64>,
}

impl Scale {
    /// The data set as it was published, not scaled.
    pub const FULL: Scale = Scale { files: None, bytes: None };

    /// At most this many files.
    pub fn files(files: u64) -> Scale {
        Scale { files: Some(files), bytes: None }
    }

    /// At most `bytes` bytes.
    pub fn bytes(bytes: u64) -> Scale {
        Scale { files: None, bytes: Some(bytes) }
    }
}

/// Why a specification was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// There is no data set of this name.
    #[error("'{0}' is not a data set: use real, big, l380, small or equal")]
    Name(String),
    /// Both files and bytes were given, and each follows from the other.
    #[error("{0}: give a number of files or of bytes, not both (only equal takes both)")]
    Both(&'static str),
    /// The scale leaves no file.
    #[error("{0}: the scale leaves no file")]
    Empty(&'static str),
    /// More than [`MAX_FILES`].
    #[error("{0}: {1} files are more than {MAX_FILES}")]
    TooMany(&'static str, u64),
}

/// A data set, its scale and its seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetSpec {
    /// The data set.
    pub kind: DatasetKind,
    /// By how much it is smaller than the published one.
    pub scale: Scale,
    /// Seed of the order of files and of their content.
    pub seed: u64,
}

/// One file of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSpec {
    /// Relative to the data set's directory, with `/` between names.
    pub path: String,
    /// Length in bytes.
    pub size: u64,
}

/// The list of files, in the order they are written in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetPlan {
    /// Path and size of each file, in the order in which they are made.
    pub files: Vec<FileSpec>,
    seed: u64,
}

impl DatasetSpec {
    /// The data set called `name` at `scale`, with seed 1.
    ///
    /// # Errors
    /// There is no such data set, or the scale is invalid for it.
    pub fn parse(name: &str, scale: Scale) -> Result<DatasetSpec, SpecError> {
        let kind = DatasetKind::ALL.into_iter().find(|kind| kind.name() == name);
        let kind = kind.ok_or_else(|| SpecError::Name(name.into()))?;
        let spec = DatasetSpec { kind, scale, seed: 1 };
        let name = kind.name();
        if scale.files.is_some() && scale.bytes.is_some() && kind != DatasetKind::Equal {
            return Err(SpecError::Both(name));
        }
        match spec.count() {
            0 => Err(SpecError::Empty(name)),
            n if n > MAX_FILES => Err(SpecError::TooMany(name, n)),
            _ => Ok(spec),
        }
    }

    /// Number of files.
    pub fn count(&self) -> u64 {
        let Scale { files, bytes } = self.scale;
        let sampled = |sizes: &LogNormal, full| match (files, bytes) {
            (Some(files), _) => files,
            (None, Some(bytes)) => sizes.count_within(bytes, MAX_FILES),
            (None, None) => full,
        };
        match self.kind {
            DatasetKind::Real => sampled(&REAL_SIZES, REAL_FILES),
            DatasetKind::L380 => sampled(&L380_SIZES, L380_FILES),
            DatasetKind::Big => files.unwrap_or(BIG_FILES),
            DatasetKind::Small => files.or(bytes.map(|b| b / SMALL_SIZE)).unwrap_or(SMALL_FILES),
            DatasetKind::Equal => files.unwrap_or(EQUAL_FILES),
        }
    }

    /// The size of file `index` of `count`, before they are shuffled.
    fn size(&self, index: u64, count: u64) -> u64 {
        // The first files get one byte each of the remainder.
        let share = |bytes: u64, of: u64| bytes / of + u64::from(index < bytes % of);
        match self.kind {
            DatasetKind::Real => REAL_SIZES.quantile(index, count),
            // The published set has a file of 0 B.
            DatasetKind::L380 if index == 0 && count > 1 => 0,
            DatasetKind::L380 => L380_SIZES.quantile(index, count),
            DatasetKind::Big => share(self.scale.bytes.unwrap_or(BIG_BYTES), BIG_FILES),
            DatasetKind::Small => SMALL_SIZE,
            DatasetKind::Equal => share(self.scale.bytes.unwrap_or(EQUAL_BYTES), count),
        }
    }

    /// The list of files.
    pub fn plan(&self) -> DatasetPlan {
        let count = self.count();
        let mut sizes: Vec<u64> = (0..count).map(|i| self.size(i, count)).collect();
        shuffle(&mut sizes, self.seed);
        let files = sizes
            .into_iter()
            .enumerate()
            .map(|(i, size)| FileSpec { path: self.path(i as u64, count), size });
        DatasetPlan { files: files.collect(), seed: self.seed }
    }

    /// The path of file `index`. Indices count through directories, so that
    /// the files of one directory are neighbours in the list.
    fn path(&self, index: u64, count: u64) -> String {
        match self.kind {
            DatasetKind::Real => format!("{}/f{index:06}.dat", nested(index / REAL_PER_DIR)),
            DatasetKind::L380 => {
                let dirs = (L380_DIRS * count).div_ceil(L380_FILES).clamp(1, L380_DIRS.max(1));
                format!("d{:03}/f{index:05}.dat", index * dirs / count)
            }
            DatasetKind::Small => format!("d{:04}/f{index:07}.dat", index / SMALL_PER_DIR),
            DatasetKind::Big | DatasetKind::Equal => format!("f{index:06}.dat"),
        }
    }
}

/// A directory one to four levels deep: `run02/set05/part3`.
fn nested(dir: u64) -> String {
    let (run, set, part) = (dir / 64, dir / 8 % 8, dir % 8);
    match part {
        0 => format!("run{run:02}"),
        1..=3 => format!("run{run:02}/set{set}/part{part}"),
        4..=5 => format!("run{run:02}/set{set}"),
        _ => format!("run{run:02}/set{set}/part{part}/raw"),
    }
}

/// Fisher and Yates' shuffle.
fn shuffle(items: &mut [u64], seed: u64) {
    for i in (1..items.len()).rev() {
        let draw = content::mix(content::mix(seed) ^ i as u64);
        // The high bits of a product are a fair draw below `i + 1`.
        let at = (u128::from(draw) * (i as u128 + 1)) >> 64;
        items.swap(i, at as usize);
    }
}

impl DatasetPlan {
    /// Total size in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// Fills `buf` with the content of file `index` from `offset` on. Content
    /// is incompressible, and differs between files.
    pub fn fill(&self, index: usize, offset: u64, buf: &mut [u8]) {
        ContentKey::new(self.seed, index as u64).fill(offset, buf);
    }
}

#[cfg(test)]
mod tests;
