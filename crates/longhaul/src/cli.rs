//! Arguments that all verbs share, and the list of verbs.

use crate::{screen, verbs};
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Storage that is far away: serve it, reach it, measure it.
#[derive(Debug, Parser)]
#[command(name = "longhaul", version, max_term_width = 100, propagate_version = true)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 usage, 3 partly done, 4 content mismatch, \
    5 could not reach, 6 refused, 7 timed out, 8 nothing to do (with --exit-code).")]
pub(crate) struct Cli {
    /// Print NDJSON events on stdout, and what people read on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Say more on stderr (-v info, -vv debug, -vvv everything)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,

    /// Print the settings of the verb and where each comes from, and do nothing
    #[arg(long, global = true)]
    pub(crate) show_config: bool,

    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Serve files, block devices and memory over NVMe/TCP
    Target(verbs::target::Args),
    /// List what a target offers
    Discover(verbs::discover::Args),
    /// Show a remote namespace and the path to it
    Info(verbs::info::Args),
    /// Put load on a device, in fio's words
    Bench(verbs::bench::Args),
    /// Make arrays of devices, and look after them
    Array(Box<verbs::array::Args>),
    /// Copy files and directories, at the speed of the link
    Cp(verbs::cp::CpArgs),
    /// Make a directory what another one is
    Sync(verbs::cp::SyncArgs),
    /// Serve a directory to cp and sync
    Agent(verbs::agent::Args),
    /// Make a device a local file that can be mounted
    Attach(Box<verbs::attach::Args>),
    /// Take an attached device away
    Detach(verbs::attach::Detach),
    /// List what is attached and mounted, and what connections.conf lists besides
    List(verbs::connections::Args),
    /// Attach and mount what connections.conf lists, as at boot
    ConnectAll(verbs::connections::Args),
    /// Detach and unmount what connections.conf lists
    DisconnectAll(verbs::connections::Args),
    /// Serve devices to NBD clients
    Nbd(Box<verbs::attach::nbd::Args>),
    /// Make a file system on a device
    Mkfs(Box<verbs::attach::mkfs::Args>),
    /// Mount the file system on a device
    Mount(Box<verbs::attach::mount::Args>),
    /// Unmount what was mounted, and take the device away
    Umount(verbs::attach::mount::Umount),
    /// Show the whole thing at work on this machine
    Demo(verbs::demo::Args),
    /// Make data sets to test with
    Dataset(verbs::dataset::Args),
    /// Measure what a network path carries
    Netbench(Box<verbs::netbench::Args>),
    /// Make a page with figures of results
    Report(verbs::report::Args),
    /// Name what keeps a copy from being faster
    Diagnose(Box<verbs::diagnose::Args>),
    /// Run a published experiment again
    Study(verbs::study::Args),
    /// Settings of this machine for long paths
    Tune(verbs::tune::Args),
    /// Emulate a long link, between namespaces
    Wan(Box<verbs::wan::Args>),
    /// Print a completion script for a shell, or write it to a directory
    Completions {
        /// The shell
        shell: clap_complete::Shell,
        /// Where to write the script, under the name that the shell looks for
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Print the manual page, or write all of them to a directory
    Man {
        /// Where to write a page for each verb
        #[arg(long)]
        dir: Option<PathBuf>,
    },
}

impl Cli {
    /// Whether events are wanted, or a result as JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json || matches!(&self.verb, Verb::Bench(args) if args.is_json())
    }

    /// Sets up the log on stderr: warnings, or what -v or `LONGHAUL_LOG` say. Time and
    /// colours are for terminals, and the time for the log of a process in the
    /// background, which nobody else adds it to.
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
