//! Benchmarks of the program that users get, against references that are
//! measured in the same run.
//!
//! `cargo run --release -p longhaul-benches -- all` measures everything;
//! `docs/performance.md` says what and how; its pages take the results with
//! `--write docs/performance`.

mod groups;
mod keep;
mod link;
mod machine;
mod mount;
mod pages;
mod process;
mod program;
mod reference;
mod report;
mod setup;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use longhaul_block::units::{parse_duration, parse_rate, parse_size};
use pages::Pages;
use setup::Setup;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Measure Longhaul against references in the same run.
#[derive(Debug, Parser)]
#[command(name = "longhaul-benches", max_term_width = 80)]
pub(crate) struct Args {
    /// What to measure
    #[arg(value_name = "GROUP", required = true)]
    groups: Vec<Group>,
    /// How often to measure each case
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of one measurement
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    runtime: Duration,
    /// Load before each measurement
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = time)]
    ramp: Duration,
    /// Engines to measure with, as longhaul's --engine has them
    #[arg(long, value_name = "KIND,…", default_value = "auto", value_delimiter = ',')]
    engines: Vec<String>,
    /// Congestion control of all sockets
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    congestion: String,
    /// Processors of the target's side and of the initiator's side
    #[arg(long, value_name = "CPU,CPU", default_value = "0,1", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Size of the device, in memory and on disk
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    size: u64,
    /// Rates of emulated links [default: 1Gbit,2Gbit; 100Mbit,1Gbit for star]
    #[arg(long, value_name = "RATE,…", value_delimiter = ',', value_parser = rate)]
    rates: Vec<u64>,
    /// Round trips of emulated links [default: 0.15ms to 200ms; 0.15ms,15ms for
    /// arrays and the grid]
    #[arg(long, value_name = "TIME,…", value_delimiter = ',', value_parser = time)]
    round_trips: Vec<Duration>,
    /// Servers of star [default: 1,2,3,4,6]
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    servers: Vec<usize>,
    /// Data sets of transfer, as a share of their full size
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    scale: f64,
    /// Data sets of sets: big, real, mix, small [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    sets: Vec<String>,
    /// Loads of distance beside iperf3: 1MiB, 128KiB, file [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    loads: Vec<String>,
    /// Directory on the disk to measure
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    /// The program, if not to be built from this workspace
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Keep every sample in this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep what was measured in this file, and do not measure again what it has: a long run
    /// continues where it was interrupted (distance, paths, all of arrays and of attached)
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    /// Put the tables between the markers of the pages in this directory, and the floors that
    /// they meet into the page of its name beside it
    #[arg(long, value_name = "DIRECTORY")]
    write: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Group {
    /// Large sequential I/O against a plain TCP stream
    Stream,
    /// Small random reads against a bare request and response
    Random,
    /// Files on the local disk against fio
    File,
    /// An idle target
    Idle,
    /// A target's memory under load
    Memory,
    /// XOR and P+Q against ISA-L
    Parity,
    /// Ten and ten thousand volumes of a pool, listed
    Volumes,
    /// From nothing to a mounted volume on six targets; needs emulated links, and so root
    FirstVolume,
    /// Volumes of jobs of eight nodes, made and given back; needs the same
    Jobs,
    /// One of two paths, cut under load; needs the same
    CutPath,
    /// Trees of small files on a file system in a pool; needs the same
    Trees,
    /// One large file, striped over targets behind a link each; needs etcd and iperf3
    LargeFile,
    /// Large files of eight clients at the same time; needs the same
    Clients,
    /// A million files on a file system in a pool, on this machine; needs root, FUSE and etcd
    ManyFiles,
    /// Heads of a volume that are killed under load, fifty times each way; needs the same
    Heads,
    /// All of pools
    Pools,
    /// Sequential streams over emulated long links; takes over an hour, and root, as all below
    Distance,
    /// Small reads over emulated long links, one at a time
    Latency,
    /// Writes over emulated long links, with and without in-capsule data
    Capsule,
    /// Lossy links, small queues and reordering
    Loss,
    /// Links that are cut under load
    Cut,
    /// A thousand files at once, on one device and on six
    Files,
    /// How long many queues take to be ready
    Queues,
    /// What is said of links chosen at random
    Paths,
    /// Two loads on one link
    Share,
    /// All over emulated long links
    Far,
    /// A stripe over servers behind a link each
    Star,
    /// Six remote devices, striped, against one
    Six,
    /// Parity against stripes, and reads without one member
    Redundancy,
    /// A target that is killed under load, and the spare in its place
    Heal,
    /// All of arrays of remote devices
    Arrays,
    /// What a file costs in a copy
    PerFile,
    /// Copies of data sets over long links
    Sets,
    /// Connections of a copy, found and fixed, and a plain stream beside it
    Streams,
    /// Copies within the machine, and processor time by concurrency
    Near,
    /// A tree of which a few files have changed
    Update,
    /// A million empty files
    Empty,
    /// One large file in a mounted directory of another machine; needs FUSE
    FarDirectory,
    /// All of copies of trees
    Transfer,
    /// 1 to 1,000 files at once on local devices and file systems at a distance; half an hour
    Grid,
    /// One large file on XFS, read and written in order
    Large,
    /// In-capsule data of several sizes under XFS
    Inline,
    /// XFS log buffers of two sizes
    Logs,
    /// From nothing to a mounted remote XFS
    First,
    /// The program's own load against fio's on an attached device
    Agree,
    /// All of devices at a distance as local ones
    Attached,
    /// TLS beside plain connections; needs emulated links, and a program with TLS (--program)
    Encryption,
    /// Small reads with and without metrics
    Watched,
    /// A host's rate while another address floods the target; needs emulated links
    Floods,
    /// All of what security and watching cost
    Security,
    /// Connections, reloads, cuts, rebuilds and upgrades under a verified load; needs emulated links
    Soak,
    /// stream and random
    Loopback,
    /// All that need one machine and no root
    All,
}

impl Group {
    /// Whether asking for `self` asks for the single group `one`.
    fn has(self, one: Group) -> bool {
        match self {
            Group::All => !one.needs_links(),
            Group::Transfer => one.is_transfer(),
            Group::Far => one.is_far(),
            Group::Arrays => one.is_array(),
            Group::Attached => one.is_attached(),
            Group::Security => matches!(one, Group::Encryption | Group::Watched | Group::Floods),
            Group::Pools => one == Group::Volumes || one.is_pool(),
            Group::Loopback => matches!(one, Group::Stream | Group::Random),
            group => group == one,
        }
    }

    /// Whether it is measured over emulated links.
    fn is_far(self) -> bool {
        matches!(
            self,
            Group::Distance
                | Group::Latency
                | Group::Capsule
                | Group::Loss
                | Group::Cut
                | Group::Files
                | Group::Queues
                | Group::Share
                | Group::Paths
        )
    }

    /// Whether it is about copies of trees.
    fn is_transfer(self) -> bool {
        matches!(
            self,
            Group::PerFile
                | Group::Sets
                | Group::Streams
                | Group::Near
                | Group::Update
                | Group::Empty
                | Group::FarDirectory
        )
    }

    /// Whether it needs emulated links, and so root.
    fn needs_links(self) -> bool {
        let is_linked = matches!(self, Group::Encryption | Group::Floods | Group::Soak);
        is_linked
            || self.is_far()
            || self.is_array()
            || self.is_attached()
            || self.is_transfer()
            || self.is_pool()
    }

    /// Whether it is about pools over emulated links.
    fn is_pool(self) -> bool {
        matches!(
            self,
            Group::FirstVolume
                | Group::Jobs
                | Group::CutPath
                | Group::Trees
                | Group::LargeFile
                | Group::Clients
                | Group::ManyFiles
                | Group::Heads
        )
    }

    /// Whether it is about local devices that are remote ones.
    fn is_attached(self) -> bool {
        matches!(self, Group::Grid | Group::Large | Group::Inline | Group::Logs | Group::First | Group::Agree)
    }

    /// Whether it is about arrays of remote devices.
    fn is_array(self) -> bool {
        matches!(self, Group::Star | Group::Six | Group::Redundancy | Group::Heal)
    }
}

fn time(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|e| e.to_string())
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|e| e.to_string())
}

fn rate(text: &str) -> Result<u64, String> {
    parse_rate(text).map_err(|e| e.to_string())
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("longhaul-benches: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    type Measure = fn(&Setup) -> Result<report::Section>;
    let all: &[(Group, Measure)] = &[
        (Group::Stream, groups::stream::run),
        (Group::Random, groups::random::run),
        (Group::File, groups::file::run),
        (Group::Idle, groups::idle::run),
        (Group::Memory, groups::memory::run),
        (Group::Parity, groups::parity::run),
        (Group::Volumes, groups::pools::volumes::run),
        (Group::FirstVolume, groups::pools::first_volume::run),
        (Group::Jobs, groups::pools::jobs::run),
        (Group::CutPath, groups::pools::cut_path::run),
        (Group::Trees, groups::pools::trees::run),
        (Group::LargeFile, groups::pools::large_file::run),
        (Group::Clients, groups::pools::clients::run),
        (Group::ManyFiles, groups::pools::many_files::run),
        (Group::Heads, groups::pools::heads::run),
        (Group::Distance, groups::far::distance::run),
        (Group::Latency, groups::far::latency::run),
        (Group::Capsule, groups::far::capsule::run),
        (Group::Loss, groups::far::loss::run),
        (Group::Cut, groups::far::cut::run),
        (Group::Files, groups::far::files::run),
        (Group::Queues, groups::far::queues::run),
        (Group::Paths, groups::far::paths::run),
        (Group::Share, groups::far::share::run),
        (Group::Star, groups::arrays::star::run),
        (Group::Six, groups::arrays::six::run),
        (Group::Redundancy, groups::arrays::redundancy::run),
        (Group::Heal, groups::arrays::heal::run),
        (Group::PerFile, groups::transfer::per_file::run),
        (Group::Sets, groups::transfer::sets::run),
        (Group::Streams, groups::transfer::streams::run),
        (Group::Near, groups::transfer::near::run),
        (Group::Update, groups::transfer::update::run),
        (Group::Empty, groups::transfer::empty::run),
        (Group::FarDirectory, groups::transfer::far_directory::run),
        (Group::Grid, groups::attached::grid::run),
        (Group::Large, groups::attached::large::run),
        (Group::Inline, groups::attached::inline::run),
        (Group::Logs, groups::attached::logs::run),
        (Group::First, groups::attached::first::run),
        (Group::Agree, groups::attached::agree::run),
        (Group::Encryption, groups::security::encryption::run),
        (Group::Watched, groups::security::watched::run),
        (Group::Floods, groups::security::floods::run),
        (Group::Soak, groups::soak::run),
    ];
    ensure!(args.scale > 0.0 && args.scale <= 1.0, "--scale takes a share, for example 0.1");
    ensure!(args.cpus.len() == 2, "--cpus takes two processors, for example 0,1");
    let pages = args.write.as_deref().map(Pages::read).transpose()?;
    let setup = Setup::new(args)?;
    let mut sections = Vec::new();
    for (group, measure) in all.iter().filter(|(one, _)| args.groups.iter().any(|g| g.has(*one))) {
        eprintln!("{group:?} …");
        // Before it: the load of the machine is not to be that of the measurement.
        let mut conditions = machine::conditions(&setup, !group.needs_links());
        let mut section = measure(&setup).with_context(|| format!("measuring {group:?}"))?;
        if let (Some(last), Some(each)) = (conditions.last_mut(), section.each.take()) {
            *last = each;
        }
        section.conditions = conditions;
        println!("{}", section.markdown());
        sections.push(section);
    }
    if let Some(path) = &args.json {
        report::save(path, &sections)?;
    }
    if let Some(pages) = pages {
        pages.write(&sections)?;
    }
    Ok(())
}
