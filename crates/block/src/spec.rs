//! Back ends as the command line names them: `file:/srv/disk,size=10GiB,ro,delay=10ms`.
//!
//! `KIND:ARGUMENT[,option[=value]]…`. A comma within a path is written twice. Filters are put
//! around the back end in the order in which they are written, so that the last one sees an
//! operation first.

use crate::filter::{Bound, Delay, ErrorKind, Errors, Filtered, OpKind, OpSet, ReadOnly, Stats};
use crate::units::{parse_duration, parse_rate, parse_share, parse_size};
use crate::{BlockDevice, FileDevice, FileOptions, MemDevice, NullDevice, OpenError};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Logical block size in bytes of memory and null devices: what file systems
/// and kernels handle best.
const DEFAULT_BLOCK: u32 = 4096;

const KINDS: &str = "file:PATH, block:PATH, mem:SIZE or null:SIZE";
const OPTIONS: &str = "size=SIZE (file), block=512|4096, ro, buffered (file, block), \
                       delay=TIME[:ops=…], rate=RATE, error=SHARE[:ops=…][:seed=N][:range=FROM-TO][:kind=…], \
                       stats";

/// Why a specification was refused, before anything was opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Not a back end.
    #[error("'{0}' is not a back end: use {KINDS}")]
    Kind(String),
    /// The argument after the colon is missing or wrong.
    #[error("{kind}: {reason}")]
    Argument {
        /// The back end.
        kind: &'static str,
        /// Why it is wrong.
        reason: String,
    },
    /// Not an option, or not one of this back end.
    #[error("'{option}' is not an option of {kind}: use {OPTIONS}")]
    Option {
        /// The back end.
        kind: &'static str,
        /// The option, as it was written.
        option: String,
    },
    /// The value of an option is wrong.
    #[error("option {option}: {reason}")]
    Value {
        /// The option, as written.
        option: String,
        /// Why it is wrong.
        reason: String,
    },
}

/// The kind of back end, and its argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// A regular file.
    File {
        /// Path of the file or device.
        path: PathBuf,
        /// Created or grown to this many bytes.
        size: Option<u64>,
    },
    /// A block device of this machine.
    Block {
        /// Path of the file or device.
        path: PathBuf,
    },
    /// This many bytes of memory.
    Mem {
        /// Size in bytes.
        size: u64,
    },
    /// Reads return zeroes, writes are discarded.
    Null {
        /// Size in bytes.
        size: u64,
    },
}

impl Backend {
    fn kind(&self) -> &'static str {
        match self {
            Backend::File { .. } => "file",
            Backend::Block { .. } => "block",
            Backend::Mem { .. } => "mem",
            Backend::Null { .. } => "null",
        }
    }
}

/// A filter around the back end.
#[derive(Clone, Debug, PartialEq)]
pub enum FilterSpec {
    /// Delays operations: [`Delay`].
    Delay {
        /// Added to each operation.
        time: Duration,
        /// The kinds of operations that it applies to.
        ops: OpSet,
    },
    /// Limits the throughput: [`Bound`].
    Rate {
        /// Bits a second of reads and writes together.
        bits_per_second: u64,
    },
    /// Fails a share of the operations: [`Errors`].
    Error {
        /// Share of the operations that fail, 0 to 1.
        share: f64,
        /// The kinds of operations that it applies to.
        ops: OpSet,
        /// Determines which ones fail.
        seed: u64,
        /// First byte and the byte after the last, or all.
        range: Option<(u64, u64)>,
        /// The error that they return.
        kind: ErrorKind,
    },
    /// Counts operations, bytes and latencies: [`Stats`].
    Stats,
}

/// A back end, its options, and its filters.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendSpec {
    /// The kind of back end, and its argument.
    pub backend: Backend,
    /// Logical block size in bytes; `None`: chosen by the back end.
    pub block_size: Option<u32>,
    /// Refuse every change.
    pub read_only: bool,
    /// Use the page cache even where direct I/O is possible.
    pub buffered: bool,
    /// From the inside out.
    pub filters: Vec<FilterSpec>,
}

impl BackendSpec {
    /// Parses `text`; opens nothing.
    ///
    /// # Errors
    /// A [`SpecError`] that names the part at fault and what is allowed.
    pub fn parse(text: &str) -> Result<BackendSpec, SpecError> {
        let mut parts = split(text).into_iter();
        let first = parts.next().unwrap_or_default();
        let mut spec = BackendSpec {
            backend: parse_backend(&first)?,
            block_size: None,
            read_only: false,
            buffered: false,
            filters: Vec::new(),
        };
        for option in parts {
            spec.option(&option)?;
        }
        Ok(spec)
    }

    fn option(&mut self, option: &str) -> Result<(), SpecError> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let wrong = |reason: String| SpecError::Value { option: option.into(), reason };
        match (name, value, &mut self.backend) {
            ("size", Some(value), Backend::File { size, .. }) => {
                *size = Some(parse_size(value).map_err(|e| wrong(e.to_string()))?);
            }
            ("block", Some(value), _) => {
                let block = parse_size(value).map_err(|e| wrong(e.to_string()))?;
                if block != 512 && block != 4096 {
                    return Err(wrong("a logical block has 512 or 4096 bytes".into()));
                }
                self.block_size = Some(block as u32);
            }
            ("ro", None, _) => self.read_only = true,
            ("buffered", None, Backend::File { .. } | Backend::Block { .. }) => self.buffered = true,
            ("delay", Some(value), _) => self.filters.push(parse_delay(value).map_err(wrong)?),
            ("rate", Some(value), _) => match parse_rate(value).map_err(|e| wrong(e.to_string()))? {
                0 => return Err(wrong("nothing moves at this rate".into())),
                bits_per_second => self.filters.push(FilterSpec::Rate { bits_per_second }),
            },
            ("error", Some(value), _) => self.filters.push(parse_error(value).map_err(wrong)?),
            ("stats", None, _) => self.filters.push(FilterSpec::Stats),
            ("size" | "block" | "delay" | "rate" | "error", None, _) => {
                return Err(wrong("a value is missing".into()));
            }
            ("ro" | "buffered" | "stats", Some(_), _) => return Err(wrong("it takes no value".into())),
            _ => return Err(SpecError::Option { kind: self.backend.kind(), option: name.into() }),
        }
        Ok(())
    }

    /// Opens the back end, creating its file if necessary, and puts the filters around it.
    ///
    /// # Errors
    /// A sentence that names the file and what to do.
    pub fn open(&self) -> Result<Arc<dyn BlockDevice>, OpenError> {
        let block_size = self.block_size.unwrap_or(DEFAULT_BLOCK);
        let mut options = FileOptions {
            size: None,
            read_only: self.read_only,
            buffered: self.buffered,
            block_size: self.block_size,
        };
        let mut device: Arc<dyn BlockDevice> = match &self.backend {
            Backend::Mem { size } => Arc::new(MemDevice::new(*size, block_size)?),
            Backend::Null { size } => Arc::new(NullDevice::new(*size, block_size)?),
            Backend::File { path, size } => {
                options.size = *size;
                Arc::new(FileDevice::open_file(path, &options)?)
            }
            Backend::Block { path } => Arc::new(FileDevice::open_block(path, &options)?),
        };
        if self.read_only && !device.info().read_only {
            device = Arc::new(Filtered::new(device, ReadOnly));
        }
        for filter in &self.filters {
            device = filter.wrap(device);
        }
        Ok(device)
    }
}

impl FromStr for BackendSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<BackendSpec, SpecError> {
        BackendSpec::parse(text)
    }
}

impl FilterSpec {
    /// Puts the filter around `device`.
    pub fn wrap(&self, device: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        match self {
            FilterSpec::Delay { time, ops } => {
                Arc::new(Filtered::new(device, Delay { time: *time, ops: *ops }))
            }
            FilterSpec::Rate { bits_per_second } => {
                Arc::new(Filtered::new(device, Bound::new(*bits_per_second)))
            }
            FilterSpec::Error { share, ops, seed, range, kind } => {
                let mut errors = Errors::new(*share, *seed);
                errors.ops = *ops;
                errors.range = range.map(|(from, to)| from..to);
                errors.kind = *kind;
                Arc::new(Filtered::new(device, errors))
            }
            FilterSpec::Stats => Arc::new(Filtered::new(device, Stats::default())),
        }
    }
}

/// Splits at single commas; a doubled comma is one that belongs to the text.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == ',' && chars.next_if_eq(&',').is_none() {
            parts.push(String::new());
        } else if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    parts
}

fn parse_backend(text: &str) -> Result<Backend, SpecError> {
    let (kind, argument) = text.split_once(':').ok_or_else(|| SpecError::Kind(text.into()))?;
    let size = |kind| {
        let wrong = |reason| SpecError::Argument { kind, reason };
        let size = parse_size(argument).map_err(|e| wrong(e.to_string()))?;
        if size == 0 { Err(wrong("the size is zero".into())) } else { Ok(size) }
    };
    let path = |kind| {
        if argument.is_empty() {
            return Err(SpecError::Argument { kind, reason: "a path is missing".into() });
        }
        Ok(PathBuf::from(argument))
    };
    match kind {
        "file" => Ok(Backend::File { path: path("file")?, size: None }),
        "block" => Ok(Backend::Block { path: path("block")? }),
        "mem" => Ok(Backend::Mem { size: size("mem")? }),
        "null" => Ok(Backend::Null { size: size("null")? }),
        _ => Err(SpecError::Kind(text.into())),
    }
}

fn parse_delay(value: &str) -> Result<FilterSpec, String> {
    let mut parts = value.split(':');
    let time = parse_duration(parts.next().unwrap_or_default()).map_err(|e| e.to_string())?;
    let mut ops = OpSet::ALL;
    for part in parts {
        match part.split_once('=') {
            Some(("ops", names)) => ops = parse_ops(names)?,
            _ => return Err(format!("'{part}' is not a part of it: use ops=…")),
        }
    }
    Ok(FilterSpec::Delay { time, ops })
}

fn parse_error(value: &str) -> Result<FilterSpec, String> {
    let mut parts = value.split(':');
    let first = parts.next().unwrap_or_default();
    let share = parse_share(first)
        .ok_or_else(|| format!("'{first}' is not a share between 0 and 1 or 0% and 100%"))?;
    let (mut ops, mut seed, mut range, mut kind) = (OpSet::ALL, 0, None, ErrorKind::Medium);
    for part in parts {
        match part.split_once('=') {
            Some(("ops", names)) => ops = parse_ops(names)?,
            Some(("seed", number)) => {
                seed = number.parse().map_err(|_| format!("seed '{number}' is not a whole number"))?;
            }
            Some(("range", text)) => range = Some(parse_range(text)?),
            Some(("kind", name)) => kind = parse_kind(name)?,
            _ => return Err(format!("'{part}' is not a part of it: use ops=…, seed=…, range=… or kind=…")),
        }
    }
    Ok(FilterSpec::Error { share, ops, seed, range, kind })
}

fn parse_ops(names: &str) -> Result<OpSet, String> {
    names.split('+').try_fold(OpSet::NONE, |set, name| {
        let kind = OpKind::ALL.into_iter().find(|kind| kind.name() == name);
        let unknown = || {
            let names = OpKind::ALL.map(OpKind::name).join("+");
            format!("'{name}' is not an operation: use some of {names}")
        };
        kind.map(|kind| set.with(kind)).ok_or_else(unknown)
    })
}

fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let (from, to) = text.split_once('-').ok_or_else(|| format!("range '{text}' is not FROM-TO"))?;
    let from = parse_size(from).map_err(|e| e.to_string())?;
    let to = parse_size(to).map_err(|e| e.to_string())?;
    if from < to { Ok((from, to)) } else { Err(format!("range '{text}' is empty")) }
}

fn parse_kind(name: &str) -> Result<ErrorKind, String> {
    ErrorKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
        let names = ErrorKind::ALL.map(ErrorKind::name).join(", ");
        format!("'{name}' is not a kind of error: use one of {names}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IoError;

    fn parse(text: &str) -> BackendSpec {
        BackendSpec::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn back_ends_and_options_are_understood() {
        let spec = parse("file:/x,size=10GiB,ro,delay=10ms");
        assert_eq!(spec.backend, Backend::File { path: "/x".into(), size: Some(10 << 30) });
        assert!(spec.read_only && !spec.buffered);
        assert_eq!(spec.filters, [FilterSpec::Delay { time: Duration::from_millis(10), ops: OpSet::ALL }]);
        assert_eq!(parse("mem:64MiB").backend, Backend::Mem { size: 64 << 20 });
        assert_eq!(parse("null:1T,block=512").block_size, Some(512));
        assert_eq!(parse("block:/dev/sdz,buffered").backend, Backend::Block { path: "/dev/sdz".into() });
        assert_eq!(parse("file:a,,b:c").backend, Backend::File { path: "a,b:c".into(), size: None });
    }

    #[test]
    fn filters_keep_their_order_and_their_parts() {
        let spec =
            parse("mem:1M,error=1%:ops=read+flush:seed=7:range=4k-8k:kind=nospace,stats,delay=1ms:ops=write");
        assert_eq!(parse("mem:1M,rate=8Mbit").filters, [FilterSpec::Rate { bits_per_second: 8_000_000 }]);
        let ops = OpSet::NONE.with(OpKind::Read).with(OpKind::Flush);
        let range = Some((4096, 8192));
        assert_eq!(
            spec.filters,
            [
                FilterSpec::Error { share: 0.01, ops, seed: 7, range, kind: ErrorKind::NoSpace },
                FilterSpec::Stats,
                FilterSpec::Delay { time: Duration::from_millis(1), ops: OpSet::NONE.with(OpKind::Write) },
            ]
        );
    }

    #[test]
    fn the_part_at_fault_is_named() {
        let cases = [
            ("", "'' is not a back end: use file:PATH"),
            ("/srv/x", "'/srv/x' is not a back end"),
            ("tape:0", "'tape:0' is not a back end"),
            ("file:", "file: a path is missing"),
            ("mem:0", "mem: the size is zero"),
            ("mem:lots", "mem: 'lots' does not begin with a number"),
            ("mem:1M,size=4k", "'size' is not an option of mem"),
            ("mem:1M,colour=red", "'colour' is not an option of mem: use size="),
            ("file:x,size", "option size: a value is missing"),
            ("file:x,size=4q", "option size=4q: 'q' in '4q' is not a unit"),
            ("file:x,ro=1", "option ro=1: it takes no value"),
            ("mem:1M,block=1000", "option block=1000: a logical block has 512 or 4096 bytes"),
            ("mem:1M,delay=soon", "option delay=soon: 'soon' does not begin"),
            ("mem:1M,delay=1ms:when=now", "'when=now' is not a part of it"),
            ("mem:1M,rate=fast", "option rate=fast: "),
            ("mem:1M,rate=0", "nothing moves at this rate"),
            ("mem:1M,error=2", "'2' is not a share"),
            (
                "mem:1M,error=1:ops=eat",
                "'eat' is not an operation: use some of read+write+flush+discard+zero",
            ),
            ("mem:1M,error=1:range=8k-4k", "range '8k-4k' is empty"),
            ("mem:1M,error=1:kind=odd", "'odd' is not a kind of error: use one of medium"),
        ];
        for (text, part) in cases {
            let error = BackendSpec::parse(text).map(drop).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn filters_and_read_only_take_effect() {
        let device = parse("mem:1M,ro,error=1:kind=integrity").open().expect("opened");
        assert!(device.info().read_only);
        let io = crate::testing::open(&*device);
        let read = crate::testing::done(io.read(0, longhaul_engine::BufMut::zeroed(4096)));
        assert!(matches!(read, Err(IoError::Integrity(_))));
        let odd = parse("mem:1000").open().err().map(|e| e.to_string());
        assert_eq!(odd.as_deref(), Some("1000 bytes at 0 are not whole blocks of 4096 bytes"));
    }
}
