//! The command line: the verbs, and the arguments that all of them share.

use crate::{screen, verbs};
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Storage on remote machines: serve it, pool it, share it, copy it, measure it.
#[derive(Debug, Parser)]
#[command(name = "longhaul", version, max_term_width = 80, propagate_version = true)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 usage, 3 partly done, 4 content mismatch, \
    5 unreachable, 6 refused, 7 timed out, 8 nothing to do (with --exit-code).")]
pub(crate) struct Cli {
    /// Print NDJSON events on stdout, and messages on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Log more on stderr (-v info, -vv debug, -vvv trace)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,

    /// Print the settings of the verb and the source of each, then exit
    #[arg(long, global = true)]
    pub(crate) show_config: bool,

    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Serve files, block devices and memory over NVMe/TCP
    Target(verbs::target::TargetArgs),
    /// Show and control the targets that run on this host
    Ctl(verbs::ctl::CtlArgs),
    /// List the exports of a target
    Discover(verbs::discover::DiscoverArgs),
    /// Show a remote namespace and the path to it
    Info(verbs::info::InfoArgs),
    /// Print the NQN by which targets know this host
    ShowHostnqn,
    /// Make and list the secrets by which hosts and targets know each other
    Key(verbs::key::KeyArgs),
    /// Make, attach and remove namespaces of a target's space
    Ns(Box<verbs::ns::NsArgs>),
    /// Measure a device under load, with fio's options
    Bench(verbs::bench::BenchArgs),
    /// Create and manage arrays of devices
    Array(Box<verbs::array::ArrayVerbArgs>),
    /// Make and manage pools of targets' spaces, and what jobs have of them
    Pool(Box<verbs::pool::PoolVerbArgs>),
    /// Make and manage volumes of pools
    Volume(Box<verbs::volume::VolumeVerbArgs>),
    /// Make and manage file systems in pools, which hosts share
    Fs(Box<verbs::fs::FsVerbArgs>),
    /// Watch pools, volumes, targets and paths
    Top(Box<verbs::top::TopArgs>),
    /// Copy files and directories between machines
    Cp(verbs::cp::CpArgs),
    /// Synchronize a directory with another one
    Sync(verbs::cp::SyncArgs),
    /// Serve a directory to cp and sync on other machines
    Agent(verbs::agent::AgentArgs),
    /// Attach a device as a local file or block device
    Attach(Box<verbs::attach::AttachArgs>),
    /// Detach a device
    Detach(verbs::attach::Detach),
    /// List attached devices and mounts, and connections.conf entries not connected
    List(verbs::connections::ConnectionsArgs),
    /// Attach and mount all entries of connections.conf, as at boot
    ConnectAll(verbs::connections::ConnectionsArgs),
    /// Detach and unmount all entries of connections.conf
    DisconnectAll(verbs::connections::ConnectionsArgs),
    /// Serve devices to NBD clients
    Nbd(Box<verbs::attach::nbd::NbdArgs>),
    /// Make a file system on a device
    Mkfs(Box<verbs::attach::mkfs::MkfsArgs>),
    /// Mount a file system: on a device, in a pool, or of another machine
    Mount(Box<verbs::attach::mount::MountArgs>),
    /// Unmount a file system, and detach its device
    Umount(verbs::attach::mount::Umount),
    /// Run a demonstration on this machine
    Demo(verbs::demo::DemoArgs),
    /// Create data sets for tests
    Dataset(verbs::dataset::DatasetArgs),
    /// Measure the throughput of a network path
    Netbench(Box<verbs::netbench::NetbenchArgs>),
    /// Create a page with figures from results
    Report(verbs::report::ReportArgs),
    /// Find the bottleneck of a copy
    Diagnose(Box<verbs::diagnose::DiagnoseArgs>),
    /// Reproduce a published experiment
    Study(verbs::study::StudyArgs),
    /// Tune the network settings of this machine for long paths
    Tune(verbs::tune::TuneArgs),
    /// Emulate long links between network namespaces
    Wan(Box<verbs::wan::WanArgs>),
    /// Print a completion script for a shell, or write it to a directory
    Completions {
        /// The shell that the completions are for
        shell: clap_complete::Shell,
        /// Directory to write the script to, under the name that the shell looks up
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Print the manual page, or write one for each verb to a directory
    Man {
        /// Directory to write the pages to
        #[arg(long)]
        dir: Option<PathBuf>,
    },
}

impl Cli {
    /// Whether stdout carries JSON: events, or a result in fio's layout.
    pub(crate) fn is_json(&self) -> bool {
        self.json || matches!(&self.verb, Verb::Bench(args) if args.is_json())
    }

    /// Sets up the log on stderr: warnings, or the level of -v or `LONGHAUL_LOG`. Terminals
    /// get colours and times; the log of a background process gets times, since no service
    /// manager adds them.
    pub(crate) fn log(&self) {
        let level = ["warn", "info", "debug", "trace"][usize::from(self.verbose.min(3))];
        let wanted = std::env::var("LONGHAUL_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
        let filter = wanted.or_else(|| level.parse().ok()).unwrap_or_default();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(screen::Stderr)
            .with_target(false)
            .with_ansi(screen::has_colours());
        let registry = tracing_subscriber::registry().with(filter);
        match screen::is_seen() || verbs::attach::is_background() {
            true => registry.with(layer).init(),
            false => registry.with(layer.without_time()).init(),
        }
    }
}
