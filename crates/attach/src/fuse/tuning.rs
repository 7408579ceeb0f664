//! What sessions agree on with the kernel, whether they serve a file or a directory.

use fuser::{InitFlags, KernelConfig, SessionACL};

/// Bytes of one request: what a kernel with its usual limits (256 pages) sends.
pub(super) const REQUEST: u32 = 1 << 20;
/// Requests that the kernel may have under way in the background, without a
/// thread that waits in each (FUSE `max_background`): with 1 MiB each they fill
/// 10 Gb/s at 100 ms. The kernel lowers it for unprivileged users.
const BACKGROUND: u16 = 128;
/// Threads that take requests; they never wait for I/O, so a few suffice.
const THREADS: usize = 4;

/// Threads and access of a session.
pub(super) fn session(allow_other: bool) -> (SessionACL, fuser::Config) {
    let acl = if allow_other { SessionACL::All } else { SessionACL::Owner };
    let mut config = fuser::Config::default();
    config.n_threads = Some(std::thread::available_parallelism().map_or(1, usize::from).min(THREADS));
    config.acl = acl;
    (acl, config)
}

/// Agrees on large requests, many of them, and the `wishes` that this kernel can grant.
pub(super) fn negotiate(config: &mut KernelConfig, wishes: &[InitFlags]) {
    // Each of these sets the nearest value that the kernel accepts, or is optional.
    if let Err(nearest) = config.set_max_write(REQUEST) {
        let _ = config.set_max_write(nearest);
    }
    if let Err(nearest) = config.set_max_readahead(REQUEST) {
        let _ = config.set_max_readahead(nearest);
    }
    let _ = config.set_max_background(BACKGROUND);
    for wish in wishes {
        let _ = config.add_capabilities(*wish);
    }
}
