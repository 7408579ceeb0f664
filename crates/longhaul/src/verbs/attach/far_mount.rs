//! `longhaul mount HOST:PATH DIR`: a directory of another machine, through an agent there.

use super::mount::MountArgs;
use super::tree_mount::TreeSource;
use crate::arguments::{parse_bytes, parse_time};
use crate::exit::Failure;
use crate::verbs::cp::far::RemoteArgs;
use crate::verbs::cp::key;
use longhaul_attach::fuse::Others;
use longhaul_device::Opener;
use longhaul_fs::{Cached, CachedOptions, FileSystem};
use longhaul_transfer::{Endpoint, FarDirectory, Key, Settings};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The `via` of such a mount in its record.
pub(super) const VIA: &str = "agent";

/// What `close` of a new file in a pool waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum CloseMode {
    /// Nothing where this host has the lease of the directory
    Lease,
    /// Until the file is durable
    Wait,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Directories of other machines, and file systems in pools")]
pub(crate) struct FarMountArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    /// Encrypt, with the key of the agent in FILE
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// How long the other side may leave sent data unacknowledged
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_time)]
    timeout: Duration,
    /// Let other users access it: a directory of another machine with your rights
    /// there, a file system in a pool each with its own
    #[arg(long)]
    pub(super) allow_other: bool,
    /// In a pool: whether new files are durable when they are closed (wait), or
    /// within a second and at fsync (lease)
    #[arg(long, value_name = "WHEN", default_value = "wait")]
    pub(super) close: CloseMode,
    /// In a pool: how long a member is missing before it is made again on another
    /// target, if this host may do that; 0s: not by itself
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_time)]
    pub(super) replace_after: Duration,
    /// In a pool: most bytes per second read from each other member for that
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(super) replace_limit: Option<u64>,
}

/// The directory of another machine that is named; `None` for a device.
///
/// # Errors
/// It is malformed.
pub(super) fn endpoint(args: &MountArgs) -> Result<Option<Endpoint>, Failure> {
    let [name] = &args.devices[..] else { return Ok(None) };
    if args.device.using.initiator.opener().is_device(name) {
        return Ok(None);
    }
    match Endpoint::parse(OsStr::new(name)) {
        Ok(Endpoint::Local(_)) => Ok(None),
        Ok(endpoint) => Ok(Some(endpoint)),
        // Of another scheme, which the opener of devices names in its error.
        Err(_) if name.contains("://") && !name.starts_with("lh://") => Ok(None),
        Err(e) => Err(Failure::usage(e)),
    }
}

/// Connects to the agent.
pub(super) fn open(args: &MountArgs, endpoint: &Endpoint, opener: &Opener) -> Result<TreeSource, Failure> {
    let settings = Settings {
        ssh: args.far.remote.ssh()?,
        key: key(args.far.key_file.as_deref(), Key::load)?,
        silence: args.far.timeout.max(Duration::from_secs(1)),
        engine: opener.config(),
        ..Settings::default()
    };
    let far = Arc::new(FarDirectory::open(endpoint, &settings)?);
    // Half of the memory for each: a file is seldom read and written at the same time.
    let half = usize::try_from(args.device.using.memory / 2).unwrap_or(usize::MAX / 2);
    let options = CachedOptions { read_ahead: half, write_behind: half, flushes: false };
    Ok(TreeSource {
        name: endpoint.to_string(),
        via: VIA,
        files: Arc::new(Cached::new(Arc::clone(&far) as Arc<dyn FileSystem>, options)),
        others: Others::InItsName,
        is_read_only: false,
        trouble: Arc::new(move || far.trouble().map(|why| format!("disconnected: {why}"))),
        replacer: None,
    })
}
