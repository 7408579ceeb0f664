//! `longhaul cp` and `longhaul sync`.

mod record;
mod show;

use crate::exit::{Exit, Failure, NothingToDo, Outcome};
use crate::names::{EngineArgs, parse_bytes, parse_rate, parse_time};
use crate::output::{Output, save};
use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;
use longhaul_transfer::wire::{Compare, Counts, Durability, Hash, Options, Placement, RefusalKind};
use longhaul_transfer::{
    Concurrency, CopyError, CopySpec, Endpoint, Filter, Key, Monitor, Offer, SessionError, Settings, Ssh,
    Summary, Via, copy,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The most threads of a stage.
const THREADS: u64 = 256;

/// Parses a number of threads.
pub(crate) fn threads() -> RangedU64ValueParser<u16> {
    RangedU64ValueParser::new().range(1..=THREADS)
}

/// A number that is fixed, or found by measuring.
pub(crate) fn concurrency(number: Option<u16>) -> Concurrency {
    number.map_or(Concurrency::Measured, |number| Concurrency::Fixed(number.into()))
}

/// Lets this process have as many files open as it may: many large files may
/// be under way at the same time.
pub(crate) fn raise_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Where it stays as it was, fewer files are possible.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
SRC and DST are paths, HOST:PATH over ssh (which starts an agent there; data
goes over connections of its own, encrypted with a key for this copy), or
lh://HOST:PORT/PATH at a running `longhaul agent`. With both ends elsewhere,
the data goes from one to the other and not through this machine. In place of a
path, `zero:SIZE`, `zero:FILESxSIZE` and
`dataset:NAME[,scale=SIZE][,files=N][,seed=N]` are data that is made while it
is sent, and `null:` is where it is checked and thrown away: HOST:null: and
lh://HOST/null: too, and `machine:` is a file with what a machine is doing. A
directory DST gets the sources in it; one that does not exist becomes the copy.
Modes and times are kept; symbolic links are copied, not followed. A copy that
was cut off is taken up again where it was when the same command is run again.

Examples:
  longhaul cp -r results me@dtn2:incoming
  longhaul cp -r results lh://dtn2:7400/incoming
  longhaul cp -r lh://dtn2:7400/incoming/results .")]
pub(crate) struct CpArgs {
    /// What to copy
    #[arg(required = true, value_name = "SRC")]
    sources: Vec<OsString>,
    /// Where to
    #[arg(required = true, value_name = "DST")]
    destination: OsString,
    /// Copy directories, with all that is in them
    #[arg(short, long)]
    recursive: bool,
    #[command(flatten)]
    common: Common,
}

/// Flags that users of `rsync` and `cp` type without a thought.
#[derive(Debug, clap::Args)]
struct Habits {
    /// Change nothing, and say what would be done with which file
    #[arg(short = 'n', long, conflicts_with = "output")]
    dry_run: bool,
    /// As with rsync: --recursive, and --owner where root runs this
    #[arg(short, long)]
    archive: bool,
    /// As with rsync and cp: modes and times are kept anyway
    #[arg(short, long, alias = "perms")]
    preserve: bool,
    /// As with rsync: there is a live line on a terminal anyway
    #[arg(long)]
    progress: bool,
    /// As with rsync: a copy that was cut off is taken up again anyway
    #[arg(long)]
    partial: bool,
    /// As with rsync: --partial --progress
    #[arg(short = 'P')]
    partial_progress: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Makes DST what SRC is: copies what DST does not have, or has otherwise. What
counts as otherwise:
  exists    nothing, if there is a file of that name
  size      another size
  mtime     another size or another time of change
  checksum  other content (both sides read all files of the same size)
What need not be sent gets the mode of SRC (with --owner and -X owners and
attributes too; with checksum its time as well). SRC and DST are directories,
HOST:PATH over ssh, or lh://HOST:PORT/PATH at a running `longhaul agent`; with
both elsewhere, data goes between them. Where nothing is to be done, the exit
status is 0, or 8 with --exit-code.

Example:
  longhaul sync /data/run7 lh://dtn2:7400/run7 --delete")]
pub(crate) struct SyncArgs {
    /// The directory to read
    #[arg(value_name = "SRC")]
    source: OsString,
    /// The directory to change
    #[arg(value_name = "DST")]
    destination: OsString,
    /// What makes a file another one
    #[arg(long, value_enum, default_value_t = Level::Mtime)]
    level: Level,
    /// Remove what SRC does not have; not if anything of SRC could not be read
    #[arg(long)]
    delete: bool,
    /// As with rsync: directories are copied with all that is in them anyway
    #[arg(short, long)]
    recursive: bool,
    #[command(flatten)]
    nothing: NothingToDo,
    #[command(flatten)]
    common: Common,
}

/// What makes a file another one.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Level {
    Exists,
    Size,
    Mtime,
    Checksum,
}

/// Checksums.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Checksum {
    /// XXH3-128: finds accidents
    Xxh3,
    /// BLAKE3: finds intent as well
    Blake3,
}

impl Checksum {
    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Checksum::Xxh3 => "xxh3",
            Checksum::Blake3 => "blake3",
        }
    }
}

/// When data is made durable.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Fsync {
    /// When the system likes to
    None,
    /// Everything, before the copy is called done
    End,
    /// Every file, before it appears under its name
    File,
}

/// Which way data goes where ssh starts the agent.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Way {
    /// Over connections of its own, or through ssh if ports are closed
    Auto,
    /// Over connections of its own
    Direct,
    /// Through ssh: one stream, encrypted twice
    Ssh,
}

#[derive(Debug, clap::Args)]
struct Common {
    #[command(flatten)]
    habits: Habits,
    /// Leave out what matches: the last name of a path, or as many as GLOB has; with a slash before
    /// it the whole path in the copy (`/SRC/a` for `cp -r SRC`, `/a` for sync and `SRC/.`)
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// Take what matches, whatever --exclude says
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,
    /// Send what is listed in FILE alone, a path below SRC in each line; `-` for standard input
    #[arg(long, value_name = "FILE")]
    files_from: Option<PathBuf>,
    /// In the list, zero bytes end the paths
    #[arg(long, requires = "files_from")]
    from0: bool,
    /// Keep owner and group (as root)
    #[arg(long)]
    owner: bool,
    /// Carry extended attributes and access control lists
    #[arg(short = 'X', long)]
    xattrs: bool,
    /// Checksum of everything that is sent
    #[arg(long, value_enum, default_value_t = Checksum::Xxh3)]
    checksum: Checksum,
    /// Read everything again once it is written
    #[arg(long)]
    verify_after: bool,
    /// List all files of the copy in the file NAME in DST (in the directory that the copy makes),
    /// for `b3sum --check NAME` there;
    /// checksums are BLAKE3 then
    #[arg(long, value_name = "NAME")]
    manifest: Option<OsString>,
    /// When data is made durable
    #[arg(long, value_enum, default_value_t = Fsync::End)]
    fsync: Fsync,
    /// Send no faster than this: `200Mbit`, in decimal bits a second
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    bwlimit: Option<u64>,
    /// Connections that carry data [default: as many as help]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    streams: Option<u16>,
    /// Threads that read, here or where ssh starts the agent [default: as many as help]
    #[arg(long, value_name = "N", value_parser = threads())]
    readers: Option<u16>,
    /// Threads that write, here or where ssh starts the agent [default: as many as help]
    #[arg(long, value_name = "N", value_parser = threads())]
    writers: Option<u16>,
    /// How much of what was read on this machine may wait to be sent; 0 reads no block before
    /// the one before it is being sent [default: 32 blocks]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    read_ahead: Option<u64>,
    /// Encrypt, with the key of the agent
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// The ssh program for HOST:PATH, and arguments for it
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    ssh: String,
    /// What this program is called on HOST
    #[arg(long, value_name = "COMMAND", default_value = "longhaul")]
    remote_program: String,
    /// Place this program, of the same version, in your cache on HOST
    /// (~/.cache/longhaul/VERSION-HASH) and run that; needs nothing there
    #[arg(long, conflicts_with = "remote_program")]
    remote_install: bool,
    /// The program to place [default: this one, if it is static or the C library of HOST fits, or
    /// longhaul-ARCH-unknown-linux-musl beside it]
    #[arg(long, value_name = "FILE", requires = "remote_install")]
    remote_install_from: Option<PathBuf>,
    /// Ports for data connections to HOST [default: any]
    #[arg(long, value_name = "FROM-TO", value_parser = port_range)]
    port_range: Option<(u16, u16)>,
    /// Which way the data goes to and from HOST
    #[arg(long, value_enum, default_value_t = Way::Auto)]
    via: Way,
    /// How long connecting may take
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    connect_timeout: Duration,
    /// How long the other side may leave what was sent to it unanswered
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_time)]
    timeout: Duration,
    /// Congestion control of the side that sends, by its kernel's name (bbr, cubic, …)
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Write the result to a file, for `bench --compare` and `report`
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
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
            owner: self.owner || self.habits.archive && rustix::process::geteuid().is_root(),
            dry_run: self.habits.dry_run,
            verify: self.verify_after,
            xattrs: self.xattrs,
            ..Options::default()
        }
    }

    /// What to copy: of the rest of the command line, and of these options.
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
            // A limit below 8 bits a second is none.
            rate: self.bwlimit.map_or(0, |bits| (bits / 8).max(1)),
            manifest: self.manifest.as_ref().map(|name| name.as_bytes().to_vec()).unwrap_or_default(),
            options: self.options(),
        })
    }

    /// The paths in the list, if there is one.
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

    /// Programs that may be placed on other machines: this one, and static ones beside it.
    fn offer(&self) -> Result<Offer, Failure> {
        let programs = match &self.remote_install_from {
            Some(path) => vec![path.clone()],
            None => {
                let own = std::env::current_exe().map_err(|e| {
                    Failure::failed(format_args!("cannot find this program, to place it: {e}"))
                })?;
                let beside = ["x86_64", "aarch64"]
                    .map(|arch| own.with_file_name(format!("longhaul-{arch}-unknown-linux-musl")));
                std::iter::once(own).chain(beside.into_iter().filter(|path| path.exists())).collect()
            }
        };
        Ok(Offer { version: env!("CARGO_PKG_VERSION").into(), programs })
    }

    fn settings(&self) -> Result<Settings, Failure> {
        Ok(Settings {
            ssh: Ssh {
                program: self.ssh.split_whitespace().map(str::to_owned).collect(),
                remote_program: self.remote_program.clone(),
                ports: self.port_range,
                install: self.remote_install.then(|| self.offer()).transpose()?,
                via: match self.via {
                    Way::Auto => Via::Any,
                    Way::Direct => Via::Direct,
                    Way::Ssh => Via::Ssh,
                },
            },
            key: key(self.key_file.as_deref(), Key::load)?,
            streams: concurrency(self.streams),
            readers: concurrency(self.readers),
            writers: concurrency(self.writers),
            // More than there can be is no bound.
            read_ahead: self.read_ahead.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX / 2)),
            connect: self.connect_timeout,
            silence: self.timeout.max(Duration::from_secs(1)),
            congestion: self.congestion.clone(),
            engine: self.engine.config(),
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

/// Parses `FROM-TO`.
pub(crate) fn port_range(text: &str) -> Result<(u16, u16), String> {
    let parsed = text.split_once('-').and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    parsed
        .filter(|(from, to)| 0 < *from && from <= to)
        .ok_or_else(|| "the form is FROM-TO, such as 50000-50100".into())
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
    spec.recursive = args.recursive || args.common.habits.archive;
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

fn run(spec: &CopySpec, (verb, args): (&str, &Common), output: Output) -> Result<Summary, Failure> {
    let settings = args.settings()?;
    raise_descriptors();
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Failure::failed)?;
    let handle = signals.handle();
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            // Whatever is under way can end here: it is made to be cut off.
            let message = "interrupted; the same command takes it up again";
            output.abort(&Failure::new(Exit::Partly, message));
        }
    });
    let monitor = Arc::new(Monitor::new());
    let progress = show::Progress::start(Arc::clone(&monitor), output);
    let recording = args.output.as_deref().map(|path| (path, record::Recording::start()));
    if recording.is_some() {
        super::diagnose::tell_unread_counters(output);
    }
    let result = copy(spec, &settings, &monitor);
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
        let of_refusal = |kind: RefusalKind| match kind {
            RefusalKind::NotAllowed | RefusalKind::Version | RefusalKind::Busy => Exit::Refused,
            RefusalKind::Unreachable => Exit::Unreachable,
            RefusalKind::TimedOut => Exit::TimedOut,
            _ => Exit::Failed,
        };
        let exit = match &e {
            CopyError::Usage(_) => Exit::Usage,
            CopyError::Unreachable { .. } => Exit::Unreachable,
            CopyError::TimedOut { .. } | CopyError::Session(SessionError::Silent(_)) => Exit::TimedOut,
            CopyError::Refused(refusal) | CopyError::Session(SessionError::Refused(refusal)) => {
                of_refusal(refusal.kind)
            }
            CopyError::Session(SessionError::Link(_) | SessionError::Lost) => Exit::Unreachable,
            CopyError::Session(_) => Exit::Failed,
        };
        Failure::new(exit, format_args!("{e}{}", e.hint()))
    }
}
