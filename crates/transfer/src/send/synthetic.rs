//! Synthetic sources, which generate data as it is sent: without the stages that scan and
//! read files, the others can be measured alone.

use crate::dataset::{self, DatasetSpec, FileSpec, Scale};
use crate::wire::{Entry, EntryKind, Hash, RelPath, Time, show};
use std::collections::HashSet;
use std::io;

/// Prefixes of synthetic sources, in place of a path.
const ZERO: &[u8] = b"zero:";
const DATASET: &[u8] = b"dataset:";
/// One file with the machine's performance counters; see [`crate::host`].
const MACHINE: &[u8] = b"machine:";

/// The mtime of synthetic files: constant, so that they count as unchanged for `sync` and
/// for a resumed copy.
const MTIME: Time = Time { secs: 1_000_000_000, nanos: 0 };

/// Whether `typed` names a synthetic source.
pub(crate) fn is_synthetic(typed: &[u8]) -> bool {
    typed.starts_with(ZERO) || typed.starts_with(DATASET) || typed == MACHINE
}

/// The most files of a data set that a remote client may request: their list takes about
/// 100 MB.
pub(crate) const REMOTE_FILES_MAX: usize = 1_000_000;

/// A synthetic source: files generated as they are read.
#[derive(Debug)]
pub(crate) enum Synthetic {
    /// Files of zeroes.
    Zeroes { files: usize, size: u64 },
    /// A data set.
    Dataset(dataset::DatasetPlan),
    /// One file with this content, the machine's counters.
    MachineState(Vec<u8>),
    /// One large file whose reading panics.
    #[cfg(test)]
    Broken,
}

impl Synthetic {
    /// Parses `zero:SIZE`, `zero:FILESxSIZE`,
    /// `dataset:NAME[,scale=SIZE][,files=N][,seed=N]`, or `machine:`.
    ///
    /// # Errors
    /// The specification is malformed, or a data set of more than `most` files.
    pub(crate) fn parse(typed: &[u8], most: usize) -> Result<Synthetic, String> {
        let text = || show(typed);
        if typed == MACHINE {
            return Ok(Synthetic::MachineState(crate::host::look().into_bytes()));
        }
        let spec = |prefix| typed.strip_prefix(prefix).and_then(|rest| std::str::from_utf8(rest).ok());
        if let Some(spec) = spec(ZERO) {
            zeroes(spec)
                .ok_or_else(|| format!("'{}' is not of the form zero:SIZE or zero:FILESxSIZE", text()))
        } else if let Some(spec) = spec(DATASET) {
            data_set(spec, most).map_err(|e| format!("'{}': {e}", text()))
        } else {
            Err(format!("'{}' is not a synthetic source: use zero:, dataset: or machine:", text()))
        }
    }

    /// Number of files.
    pub(crate) fn len(&self) -> usize {
        match self {
            Synthetic::Zeroes { files, .. } => *files,
            Synthetic::Dataset(plan) => plan.files.len(),
            Synthetic::MachineState(_) => 1,
            #[cfg(test)]
            Synthetic::Broken => 1,
        }
    }

    fn set(&self) -> &[FileSpec] {
        match self {
            Synthetic::Dataset(plan) => &plan.files,
            _ => &[],
        }
    }

    /// The directories of the files, parents first.
    pub(crate) fn directories(&self) -> Vec<Entry> {
        let mut seen = HashSet::new();
        let mut all = Vec::new();
        for file in self.set() {
            let slashes = file.path.match_indices('/').map(|(at, _)| &file.path[..at]);
            let new: Vec<&str> = slashes.filter(|parent| seen.insert(*parent)).collect();
            all.extend(new.into_iter().filter_map(|parent| entry(parent, EntryKind::Directory, 0o755, 0)));
        }
        all
    }

    /// The entry of a file.
    pub(crate) fn entry(&self, index: usize) -> Option<Entry> {
        match self {
            Synthetic::Zeroes { files, size } if index < *files => {
                entry(&format!("zero{index:07}"), EntryKind::File, 0o644, *size)
            }
            Synthetic::MachineState(content) if index == 0 => {
                entry("machine", EntryKind::File, 0o644, content.len() as u64)
            }
            #[cfg(test)]
            Synthetic::Broken if index == 0 => entry("broken", EntryKind::File, 0o644, 4 << 20),
            Synthetic::Dataset(plan) => {
                let file = plan.files.get(index)?;
                entry(&file.path, EntryKind::File, 0o644, file.size)
            }
            _ => None,
        }
    }

    /// Generates content of a file from `offset` on; returns its length.
    pub(crate) fn read(&self, index: usize, buf: &mut [u8], offset: u64) -> usize {
        let size = match self {
            Synthetic::Zeroes { size, .. } => *size,
            Synthetic::Dataset(plan) => plan.files.get(index).map_or(0, |file| file.size),
            Synthetic::MachineState(content) => content.len() as u64,
            #[cfg(test)]
            Synthetic::Broken => panic!("a read error of the test"),
        };
        let len = size.saturating_sub(offset).min(buf.len() as u64) as usize;
        match self {
            Synthetic::Zeroes { .. } => buf[..len].fill(0),
            Synthetic::Dataset(plan) => plan.fill(index, offset, &mut buf[..len]),
            Synthetic::MachineState(content) => {
                let content = content.get(offset as usize..).unwrap_or_default();
                buf[..len].copy_from_slice(&content[..len]);
            }
            #[cfg(test)]
            Synthetic::Broken => {}
        }
        len
    }
}

fn entry(path: &str, kind: EntryKind, mode: u32, size: u64) -> Option<Entry> {
    let path = RelPath::new(path.as_bytes()).ok()?;
    Some(Entry {
        path,
        kind,
        mode,
        uid: 0,
        gid: 0,
        mtime: MTIME,
        ctime: Time::default(),
        size,
        sparse: false,
        xattrs: Vec::new(),
    })
}

fn zeroes(spec: &str) -> Option<Synthetic> {
    let (files, size) = match spec.split_once('x') {
        Some((files, size)) => (files.parse().ok()?, size),
        None => (1, spec),
    };
    let size = bytes(size)?;
    (1..=dataset::MAX_FILES as usize).contains(&files).then_some(Synthetic::Zeroes { files, size })
}

fn data_set(spec: &str, most: usize) -> Result<Synthetic, String> {
    let mut parts = spec.split(',');
    let name = parts.next().unwrap_or_default();
    let (mut scale, mut seed) = (Scale::FULL, None);
    for part in parts {
        let wrong = || format!("'{part}' is not one of scale=SIZE, files=N and seed=N");
        let (key, value) = part.split_once('=').ok_or_else(wrong)?;
        match key {
            "scale" => scale.bytes = Some(bytes(value).ok_or_else(wrong)?),
            "files" => scale.files = Some(value.parse().map_err(|_| wrong())?),
            "seed" => seed = Some(value.parse().map_err(|_| wrong())?),
            _ => return Err(wrong()),
        }
    }
    let mut spec = DatasetSpec::parse(name, scale).map_err(|e| e.to_string())?;
    spec.seed = seed.unwrap_or(spec.seed);
    match usize::try_from(spec.count()) {
        Ok(count) if count <= most => Ok(Synthetic::Dataset(spec.plan())),
        _ => Err(format!("more than {most} files")),
    }
}

/// A size as everywhere on the command line: `4096`, `4KiB`, `4k`, `4KB`.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.to_ascii_lowercase();
    let powers = ["", "k", "m", "g", "t"];
    let power = |unit: &str| powers.iter().position(|known| *known == unit);
    let factor = match unit.strip_suffix("ib").map_or_else(|| power(&unit), power) {
        Some(power) => 1u64 << (10 * power),
        None => 1000u64.pow(power(unit.strip_suffix('b')?)? as u32),
    };
    let size = number.parse::<u64>().ok()?.checked_mul(factor)?;
    i64::try_from(size).is_ok().then_some(size)
}

/// The names of a synthetic source, for the allow-list.
#[derive(Debug)]
pub(crate) struct SyntheticNames {
    source: Synthetic,
    /// Checksums of the names of a data set, and of its directories.
    set: HashSet<u128>,
}

impl SyntheticNames {
    pub(crate) fn new(source: Synthetic) -> SyntheticNames {
        let key = |path: &str| xxhash_rust::xxh3::xxh3_128(path.as_bytes());
        let mut set: HashSet<u128> = source.set().iter().map(|file| key(&file.path)).collect();
        for file in source.set() {
            set.extend(file.path.match_indices('/').map(|(at, _)| key(&file.path[..at])));
        }
        SyntheticNames { source, set }
    }

    /// Whether the source generates this name.
    pub(crate) fn has(&self, path: &RelPath) -> bool {
        let name = std::str::from_utf8(path.as_bytes()).unwrap_or_default();
        // The index in the name, for the sources that number their files.
        let index = name.strip_prefix("zero").and_then(|number| number.parse().ok()).unwrap_or(0);
        match &self.source {
            Synthetic::Dataset(_) => self.set.contains(&xxhash_rust::xxh3::xxh3_128(path.as_bytes())),
            source => source.entry(index).is_some_and(|entry| entry.path == *path),
        }
    }
}

/// The checksum of a synthetic file.
pub(crate) fn digest(source: &Synthetic, index: usize, hash: Hash) -> io::Result<crate::wire::Digest> {
    hash.of_pieces(|buf, offset| Ok(source.read(index, buf, offset)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Synthetic, String> {
        Synthetic::parse(text.as_bytes(), 1000)
    }

    #[test]
    fn synthetic_sources_are_parsed() {
        let zeroes = parse("zero:3x4KiB").expect("good");
        assert_eq!((zeroes.len(), zeroes.entry(2).expect("there").size), (3, 4096));
        assert_eq!(parse("zero:1GB").expect("good").entry(0).expect("there").size, 1_000_000_000);
        assert_eq!(parse("dataset:small,files=7").expect("good").len(), 7);
        let Ok(Synthetic::MachineState(sample)) = parse("machine:") else { panic!("not a sample") };
        assert!(sample.starts_with(b"machine "));
        assert!(parse("dataset:small,files=1001").is_err_and(|e| e.contains("1000 files")));
        for bad in
            ["zero:", "zero:0x1", "zero:1x", "zero:9999999999g", "dataset:none", "dataset:real,size=1", "x"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(
            [bytes("12"), bytes("4k"), bytes("4KB"), bytes("4x")],
            [Some(12), Some(4096), Some(4000), None]
        );
    }

    #[test]
    fn directories_come_with_their_parents_first() {
        let real = parse("dataset:real,files=200").expect("good");
        let names: Vec<_> = real.directories().into_iter().map(|entry| entry.path).collect();
        let before = |i: usize, parent: &[u8]| names[..i].iter().any(|name| name.as_bytes() == parent);
        for (i, name) in names.iter().enumerate() {
            let parent = name.split().0;
            assert!(parent.is_empty() || before(i, parent), "{name} at {i}");
        }
        assert!(names.len() > 3);
    }

    #[test]
    fn content_is_that_of_the_data_set() {
        let set = parse("dataset:equal,files=2,scale=1000,seed=5").expect("good");
        let mut spec =
            DatasetSpec::parse("equal", Scale { files: Some(2), bytes: Some(1000) }).expect("good");
        spec.seed = 5;
        let (mut ours, mut theirs) = ([1; 600], [2; 300]);
        assert_eq!(set.read(1, &mut ours, 200), 300);
        spec.plan().fill(1, 200, &mut theirs);
        assert_eq!(ours[..300], theirs);
    }
}
