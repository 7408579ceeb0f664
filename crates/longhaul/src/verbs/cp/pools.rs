//! File systems in pools as ends of a copy: this host opens them, without a mount.

use crate::arguments::{HostArgs, check_congestion};
use crate::exit::Failure;
use longhaul_device::state;
use longhaul_fs::{Call, Done, FileSystem};
use longhaul_pool::KnownPool;
use longhaul_poolfs::{FsOptions, FsRef, PoolFs};
use longhaul_transfer::{CopySpec, Endpoint, MountedFs};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Bytes of writes in memory: about what a path of 10 Gb/s has under way at 100 ms.
const MEMORY: usize = 128 << 20;
/// How long the end of a session is waited for: as long as its lease lasts, which ends it otherwise.
const END: Duration = Duration::from_secs(30);

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "File systems in pools")]
pub(crate) struct PoolFsArgs {
    #[command(flatten)]
    host: HostArgs,
}

/// A file system that is open; tells when its session has ended.
struct Opened {
    files: PoolFs,
    /// Dropped after the session has ended.
    _ended: Sender<()>,
}

impl FileSystem for Opened {
    fn start(&self, call: Call, done: Done) {
        self.files.start(call, done);
    }
}

/// The file systems of a copy.
pub(super) struct FileSystems {
    open: Vec<(MountedFs, Arc<Opened>)>,
    ends: Vec<Receiver<()>>,
}

impl FileSystems {
    /// Opens those that the ends of a copy name, each once.
    pub(super) fn open(
        spec: &CopySpec,
        args: &PoolFsArgs,
        engine: longhaul_engine::Config,
        congestion: Option<&str>,
    ) -> Result<FileSystems, Failure> {
        let ends = spec.sources.iter().chain([&spec.destination]);
        let names: BTreeSet<&str> = ends.filter_map(Endpoint::file_system).collect();
        if !names.is_empty() {
            check_congestion(congestion)?;
        }
        let mut all = FileSystems { open: Vec::new(), ends: Vec::new() };
        for name in names {
            let FsRef { fs, snapshot } = name.parse().map_err(Failure::usage)?;
            if snapshot.is_some() && spec.destination.file_system() == Some(name) {
                return Err(Failure::usage(format!("fs:{name}: a snapshot is not written to")));
            }
            let opener = args.host.opener(engine.clone(), congestion.map(str::to_owned));
            let pool = KnownPool::find(&fs.pool)?.open(opener.options())?;
            // Names and small files are made many in a transaction; the end of the copy waits for all.
            let options = FsOptions { memory: MEMORY, leases: true, snapshot, ..FsOptions::default() };
            let (ended, end) = channel();
            let files = longhaul_poolfs::open(&pool, &fs.name, &opener, options)?;
            let files = Arc::new(Opened { files, _ended: ended });
            let state = Arc::downgrade(&files);
            let failed = move || {
                let trouble = state.upgrade().and_then(|files| files.files.trouble());
                trouble.filter(|trouble| trouble.starts_with("failed: "))
            };
            let locks = state::directory().join("copies");
            let shared = Arc::clone(&files) as Arc<dyn FileSystem>;
            all.open.push((MountedFs::new(name, shared, locks, Box::new(failed)), files));
            all.ends.push(end);
        }
        Ok(all)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// As a copy takes them.
    pub(super) fn mounted(&self) -> Vec<MountedFs> {
        self.open.iter().map(|(mounted, _)| mounted.clone()).collect()
    }

    /// What is wrong with them now.
    pub(super) fn troubles(&self) -> Vec<String> {
        let trouble = |(mounted, opened): &(MountedFs, Arc<Opened>)| {
            Some(format!("fs:{} is {}", mounted.name(), opened.files.trouble()?))
        };
        self.open.iter().filter_map(trouble).collect()
    }

    /// Ends their sessions, once threads of the copy have let them go, so that other hosts need not wait for
    /// leases to run out.
    pub(super) fn end(self) {
        drop(self.open);
        for end in self.ends {
            // Disconnected when the session has ended.
            let _ = end.recv_timeout(END);
        }
    }
}
