//! `longhaul mount fs:POOL/NAME DIR`: a file system in a pool.

use super::far_mount::CloseMode;
use super::mount::MountArgs;
use super::tree_mount::TreeSource;
use crate::exit::Failure;
use longhaul_attach::fuse::Others;
use longhaul_device::Opener;
use longhaul_fs::{Cached, CachedOptions, FileSystem};
use longhaul_pool::KnownPool;
use longhaul_poolfs::{FsOptions, FsRef, Replacement, Replacer, SCHEME};
use std::sync::Arc;

/// The `via` of such a mount in its record.
pub(super) const VIA: &str = "pool";

/// The file system or snapshot that is named; `None` for anything else.
///
/// # Errors
/// It is malformed.
pub(super) fn name(args: &MountArgs) -> Result<Option<FsRef>, Failure> {
    match &args.devices[..] {
        [name] if name.starts_with(SCHEME) => Ok(Some(name.parse().map_err(Failure::usage)?)),
        _ => Ok(None),
    }
}

/// Opens it on this host.
pub(super) fn open(args: &MountArgs, name: &FsRef, opener: &Opener) -> Result<TreeSource, Failure> {
    let pool = KnownPool::find(&name.fs.pool)?.open(opener.options())?;
    let memory = usize::try_from(args.device.using.memory).unwrap_or(usize::MAX);
    // Half for what is read ahead. Writes are kept before they are cut into stripes, and while they are
    // on their way.
    let leases = args.far.close == CloseMode::Lease;
    let snapshot = name.snapshot.clone();
    let is_read_only = snapshot.is_some();
    let options = FsOptions { memory: memory / 4, leases, snapshot, ..FsOptions::default() };
    let files = Arc::new(longhaul_poolfs::open(&pool, &name.fs.name, opener, options)?);
    let how = Replacement { after: args.far.replace_after, limit: args.far.replace_limit };
    let replacer = match is_read_only || how.after.is_zero() {
        true => None,
        false => Some(Replacer::start(&files, &pool, &name.fs.name, opener, how)?),
    };
    let options = CachedOptions { read_ahead: memory / 2, write_behind: memory / 4, flushes: true };
    Ok(TreeSource {
        name: format!("{SCHEME}{name}"),
        via: VIA,
        files: Arc::new(Cached::new(Arc::clone(&files) as Arc<dyn FileSystem>, options)),
        others: Others::ByThemselves,
        is_read_only,
        trouble: Arc::new(move || files.trouble()),
        replacer,
    })
}
