//! What sessions agree on with the kernel, whether they serve a file or a directory.

use longhaul_fuse::SessionOptions;

/// Bytes of one request: what a kernel with its usual limits (256 pages) sends.
pub(super) const REQUEST: u32 = 1 << 20;
/// Requests that the kernel may have under way in the background, without a
/// thread that waits in each (FUSE `max_background`): with 1 MiB each they fill
/// 10 Gb/s at 100 ms. The kernel lowers it for unprivileged users.
const BACKGROUND: u16 = 128;
/// Threads that take requests; they never wait for I/O, so a few suffice.
const THREADS: usize = 4;

/// Large requests, many of them, and the `wishes` that this kernel can grant.
pub(super) fn options(wishes: u64) -> SessionOptions {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
    SessionOptions { threads, request: REQUEST, background: BACKGROUND, wishes }
}
