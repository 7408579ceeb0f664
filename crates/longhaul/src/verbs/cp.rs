//! `longhaul cp` and `longhaul sync`.

pub(crate) mod far;
mod pools;
mod show;

use crate::arguments::{EngineArgs, parse_bytes, parse_rate, parse_time};
use crate::exit::{Exit, Failure, NothingToDo, Outcome};
use crate::output::{Output, save};
use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;
use far::FarArgs;
use longhaul_device::state;
use longhaul_lab::copy_record::CopyRecording;
use longhaul_transfer::wire::{Compare, Counts, Durability, Hash, Options, Placement};
use longhaul_transfer::{
    Concurrency, CopyError, CopySpec, Endpoint, Filter, Key, KnownPaths, Monitor, Settings, Summary, copy,
};
use pools::{FileSystems, PoolFsArgs};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Upper bound of --readers and --writers.
const THREADS: u64 = 256;

/// Parses a number of threads.
pub(crate) fn threads() -> RangedU64ValueParser<u16> {
    RangedU64ValueParser::new().range(1..=THREADS)
}

/// A fixed number, or one that the tuner finds.
pub(crate) fn concurrency(number: Option<u16>) -> Concurrency {
    number.map_or(Concurrency::Measured, |number| Concurrency::Fixed(number.into()))
}

/// Raises the limit of open files to its maximum, since many files are copied at a time.
pub(crate) fn raise_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // With the old limit a copy still works, with fewer files at a time.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
SRC and DST are paths, HOST:PATH (over ssh, which starts an agent there; data
uses separate connections, encrypted with a key for this copy),
lh://HOST:PORT/PATH (at a running `longhaul agent`), or fs:POOL/NAME/PATH (in a
file system of a pool, which this host reads and writes without a mount). If
both are remote, data goes directly between them (a third-party copy). In place
of a source path, `zero:SIZE`, `zero:FILESxSIZE` and
`dataset:NAME[,scale=SIZE][,files=N][,seed=N]` are synthetic sources, and
`machine:` is a file with load statistics of the machine. `null:` as DST
verifies the data and discards it. After HOST: and lh://HOST/ these names work
too. If DST is an existing directory, the sources are copied into it; otherwise
DST becomes the copy. Modes and times are kept; symbolic links are copied, not
followed. An interrupted copy is resumed when the same command is run again.

Examples:
  longhaul cp -r results me@dtn2:incoming
  longhaul cp -r results lh://dtn2:7400/incoming
  longhaul cp -r lh://dtn2:7400/incoming/results .
  longhaul cp -r results fs:scratch/home/me")]
pub(crate) struct CpArgs {
    /// Files and directories to copy
    #[arg(required = true, value_name = "SRC")]
    sources: Vec<OsString>,
    /// Directory to copy into, or name of the copy
    #[arg(required = true, value_name = "DST")]
    destination: OsString,
    /// Copy directories recursively
    #[arg(short, long)]
    recursive: bool,
    #[command(flatten)]
    common: Common,
}

/// Flags for compatibility with `rsync` and `cp`.
#[derive(Debug, clap::Args)]
struct CompatFlags {
    /// Change nothing, and print what would be done with each file
    #[arg(short = 'n', long, conflicts_with = "output")]
    dry_run: bool,
    /// As in rsync: --recursive, and --owner for root
    #[arg(short, long)]
    archive: bool,
    /// No effect (as in rsync and cp): modes and times are always kept
    #[arg(short, long, alias = "perms")]
    preserve: bool,
    /// No effect (as in rsync): a terminal always shows progress
    #[arg(long)]
    progress: bool,
    /// No effect (as in rsync): interrupted copies are always resumed
    #[arg(long)]
    partial: bool,
    /// No effect (as in rsync): --partial --progress
    #[arg(short = 'P')]
    partial_progress: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Copies the files of SRC that DST does not have or that differ. --level says
which existing files differ:
  exists    none
  size      those of another size
  mtime     those of another size or modification time
  checksum  those of other content (both sides read all files of equal size)
Files that do not differ get the mode of SRC (with --owner and -X also owners
and attributes; with checksum also the modification time). SRC and DST are
directories, HOST:PATH over ssh, lh://HOST:PORT/PATH at a running `longhaul
agent`, or fs:POOL/NAME/PATH in a file system of a pool; if both are remote, data
goes directly between them. If there is nothing to do, the exit status is 0, or 8
with --exit-code.

Example:
  longhaul sync /data/run7 lh://dtn2:7400/run7 --delete")]
pub(crate) struct SyncArgs {
    /// Directory to copy from
    #[arg(value_name = "SRC")]
    source: OsString,
    /// Directory to make identical to it
    #[arg(value_name = "DST")]
    destination: OsString,
    /// How files are compared
    #[arg(long, value_enum, default_value_t = Level::Mtime)]
    level: Level,
    /// Delete files in DST that SRC does not have; not if anything in SRC could not be read
    #[arg(long)]
    delete: bool,
    /// No effect (as in rsync): sync is always recursive
    #[arg(short, long)]
    recursive: bool,
    #[command(flatten)]
    nothing: NothingToDo,
    #[command(flatten)]
    common: Common,
}

/// How files are compared.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Level {
    Exists,
    Size,
    Mtime,
    Checksum,
}

/// Values of `--checksum`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Checksum {
    /// XXH3-128: detects corruption
    Xxh3,
    /// BLAKE3: detects corruption and tampering
    Blake3,
}

impl Checksum {
    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Checksum::Xxh3 => "xxh3",
            Checksum::Blake3 => "blake3",
        }
    }
}

/// Values of `--fsync`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Fsync {
    /// No fsync: the kernel writes data back in its own time
    None,
    /// All files, before the copy is reported as done
    End,
    /// Each file, before it gets its final name
    File,
}

#[derive(Debug, clap::Args)]
struct Common {
    #[command(flatten)]
    compat: CompatFlags,
    /// Exclude files that match: GLOB is compared with as many trailing names of a path as it has;
    /// with a leading slash, with the whole path in the copy (`/SRC/a` for `cp -r SRC`, `/a` for
    /// sync and `SRC/.`)
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// Include files that match, even if --exclude matches too
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,
    /// Copy only the files listed in FILE, one path below SRC a line; `-` for standard input
    #[arg(long, value_name = "FILE")]
    files_from: Option<PathBuf>,
    /// Paths in the list end with a zero byte instead of a newline
    #[arg(long, requires = "files_from")]
    from0: bool,
    /// Keep owner and group (as root)
    #[arg(long)]
    owner: bool,
    /// Carry extended attributes and access control lists
    #[arg(short = 'X', long)]
    xattrs: bool,
    /// Checksum of all data sent
    #[arg(long, value_enum, default_value_t = Checksum::Xxh3)]
    checksum: Checksum,
    /// Read all files again after they are written, and compare
    #[arg(long)]
    verify_after: bool,
    /// Write a manifest of the copy to the file NAME in DST (in the directory that the copy
    /// creates), for `b3sum --check NAME` there; implies --checksum blake3
    #[arg(long, value_name = "NAME")]
    manifest: Option<OsString>,
    /// When data is flushed to stable storage
    #[arg(long, value_enum, default_value_t = Fsync::End)]
    fsync: Fsync,
    /// Rate limit, such as `200Mbit`, in decimal bits per second
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    bwlimit: Option<u64>,
    /// Data connections [default: measured]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    streams: Option<u16>,
    /// Threads that read, here or at the agent that ssh starts [default: measured]
    #[arg(long, value_name = "N", value_parser = threads())]
    readers: Option<u16>,
    /// Threads that write, here or at the agent that ssh starts [default: measured]
    #[arg(long, value_name = "N", value_parser = threads())]
    writers: Option<u16>,
    /// Most data read on this machine that waits to be sent; 0 reads a block only once the one
    /// before it is being sent [default: 32 blocks]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    read_ahead: Option<u64>,
    /// Encrypt, with the key of the agent in FILE
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    far: FarArgs,
    /// Timeout of connection setup
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    connect_timeout: Duration,
    /// How long the other side may leave sent data unacknowledged
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_time)]
    timeout: Duration,
    /// TCP congestion control of the sender, by its kernel's name (bbr, cubic, …)
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Write the result to a file, for `bench --compare` and `report`
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    pools: PoolFsArgs,
}

impl Common {
    fn filters(&self) -> Result<Vec<String>, Failure> {
        let taken = self.include.iter().map(|pattern| format!("+{pattern}"));
        let left = self.exclude.iter().map(|pattern| format!("-{pattern}"));
        let rules: Vec<String> = taken.chain(left).collect();
        Filter::new(&rules).map_err(Failure::usage)?;
        Ok(rules)
    }

    fn options(&self) -> Options {
        Options {
            hash: match (self.checksum, &self.manifest) {
                (Checksum::Xxh3, None) => Hash::Quick,
                _ => Hash::Strong,
            },
            durability: match self.fsync {
                Fsync::None => Durability::None,
                Fsync::End => Durability::End,
                Fsync::File => Durability::File,
            },
            owner: self.owner || self.compat.archive && rustix::process::geteuid().is_root(),
            dry_run: self.compat.dry_run,
            verify: self.verify_after,
            xattrs: self.xattrs,
            ..Options::default()
        }
    }

    /// The specification of the copy, from these options and the given ends.
    fn spec(
        &self,
        sources: Vec<Endpoint>,
        destination: Endpoint,
        place: Placement,
    ) -> Result<CopySpec, Failure> {
        Ok(CopySpec {
            sources,
            destination,
            place,
            recursive: true,
            filters: self.filters()?,
            files: self.files()?,
            // A rate of 0 means no limit, so that limits below 8 bits a second are rounded up.
            rate: self.bwlimit.map_or(0, |bits| (bits / 8).max(1)),
            manifest: self.manifest.as_ref().map(|name| name.as_bytes().to_vec()).unwrap_or_default(),
            options: self.options(),
        })
    }

    /// The paths in the file of `--files-from`; empty without it.
    fn files(&self) -> Result<Vec<Vec<u8>>, Failure> {
        let Some(path) = &self.files_from else { return Ok(Vec::new()) };
        let mut list = Vec::new();
        let read = match path.as_os_str() == "-" {
            true => std::io::stdin().read_to_end(&mut list),
            false => File::open(path).and_then(|mut file| file.read_to_end(&mut list)),
        };
        read.map_err(|e| Failure::failed(format_args!("{}: {e}", path.display())))?;
        let files = listed(&list, if self.from0 { 0 } else { b'\n' });
        match files.is_empty() {
            true => Err(Failure::usage(format_args!("{} lists nothing", path.display()))),
            false => Ok(files),
        }
    }

    fn settings(&self) -> Result<Settings, Failure> {
        Ok(Settings {
            ssh: self.far.ssh()?,
            key: key(self.key_file.as_deref(), Key::load)?,
            streams: concurrency(self.streams),
            known_paths: Some(KnownPaths::at(state::directory().join("paths"))),
            readers: concurrency(self.readers),
            writers: concurrency(self.writers),
            // Saturated: a limit above the address space is the same as no limit.
            read_ahead: self.read_ahead.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX / 2)),
            connect: self.connect_timeout,
            silence: self.timeout.max(Duration::from_secs(1)),
            congestion: self.congestion.clone(),
            engine: self.engine.config(),
            ..Settings::default()
        })
    }
}

/// The paths of a list; leading `./` and slashes at the end mean nothing.
fn listed(list: &[u8], end: u8) -> Vec<Vec<u8>> {
    let plain = |path: &[u8]| {
        let path = path.strip_prefix(b"./").unwrap_or(path);
        let len = path.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
        path[..len].to_vec()
    };
    list.split(|b| *b == end).map(plain).filter(|path| !path.is_empty()).collect()
}

/// The key in a file, if there is to be one.
pub(crate) fn key(
    path: Option<&Path>,
    load: fn(&Path) -> std::io::Result<Key>,
) -> Result<Option<Key>, Failure> {
    let named =
        |path: &Path| load(path).map_err(|e| Failure::failed(format_args!("{}: {e}", path.display())));
    path.map(named).transpose()
}

fn endpoint(text: &OsString) -> Result<Endpoint, Failure> {
    Endpoint::parse(text).map_err(Failure::usage)
}

pub(crate) fn cp(args: CpArgs, output: Output) -> Outcome {
    let sources = args.sources.iter().map(endpoint).collect::<Result<_, _>>()?;
    let mut spec = args.common.spec(sources, endpoint(&args.destination)?, Placement::Guess)?;
    spec.recursive = args.recursive || args.common.compat.archive;
    run(&spec, ("cp", &args.common), output).map(drop)
}

pub(crate) fn sync(args: SyncArgs, output: Output) -> Outcome {
    let compare = match args.level {
        Level::Exists => Compare::Exists,
        Level::Size => Compare::Size,
        Level::Mtime => Compare::Mtime,
        Level::Checksum => Compare::Checksum,
    };
    let delete = args.delete;
    let nothing = |counts: &Counts| {
        let Counts { files, others, wanted, deleted, metadata, failed, .. } = *counts;
        files + others + wanted + deleted + metadata + failed == 0
    };
    let source = vec![endpoint(&args.source)?];
    let mut spec = args.common.spec(source, endpoint(&args.destination)?, Placement::Contents)?;
    spec.options = Options { compare, delete, ..spec.options };
    let summary = run(&spec, ("sync", &args.common), output)?;
    match nothing(&summary.counts) {
        true => {
            let message = format!("nothing to do: {} is what {} is", spec.destination, spec.sources[0]);
            args.nothing.nothing(message, output)
        }
        false => Ok(()),
    }
}

/// Runs a copy.
fn run(spec: &CopySpec, (verb, args): (&str, &Common), output: Output) -> Result<Summary, Failure> {
    let mut settings = args.settings()?;
    raise_descriptors();
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Failure::failed)?;
    let handle = signals.handle();
    let monitor = Arc::new(Monitor::new());
    let (cancels, cancelled) = (Arc::new(AtomicBool::new(false)), Arc::clone(&monitor));
    let in_order = Arc::clone(&cancels);
    std::thread::spawn(move || {
        for _ in signals.forever() {
            // File systems end their sessions, so that other hosts need not wait for them. A second signal does
            // not wait for that.
            if in_order.swap(false, Ordering::Relaxed) {
                cancelled.cancel();
                continue;
            }
            // Exiting here is safe: an interrupted copy can be resumed.
            let message = "interrupted; the same command resumes the copy";
            output.abort(&Failure::new(Exit::Partly, message));
        }
    });
    let file_systems =
        FileSystems::open(spec, &args.pools, args.engine.config(), args.congestion.as_deref())?;
    settings.file_systems = file_systems.mounted();
    cancels.store(!file_systems.is_empty(), Ordering::Relaxed);
    let progress = show::Progress::start(Arc::clone(&monitor), output);
    let recording = args.output.as_deref().map(|path| (path, CopyRecording::start()));
    if recording.is_some() {
        super::diagnose::tell_unread_counters(output);
    }
    let result = copy(spec, &settings, &monitor);
    file_systems.troubles().into_iter().for_each(|trouble| monitor.note(trouble));
    drop(settings);
    file_systems.end();
    let document = recording
        .zip(result.as_ref().ok())
        .map(|((path, recording), summary)| (path, recording.document(verb, spec, summary, &monitor)));
    let troubles = progress.stop();
    handle.close();
    let summary = result?;
    show::summary(&summary, &monitor, troubles.threads, spec, output);
    if let Some((path, document)) = document {
        save(path, &document).map_err(|failure| Failure { in_result: true, ..failure })?;
    }
    match summary.counts.failed {
        0 => Ok(summary),
        failed => {
            let mismatch = troubles.mismatch > 0;
            let exit = if mismatch { Exit::Mismatch } else { Exit::Partly };
            let message = format!("{failed} of the files and directories could not be copied; see above");
            Err(Failure { in_result: true, ..Failure::new(exit, message) })
        }
    }
}

impl From<CopyError> for Failure {
    fn from(e: CopyError) -> Failure {
        let exit = Exit::of(Some(e.kind_number()));
        Failure::new(exit, format_args!("{e}{}", e.hint()))
    }
}
