//! The per-core reactor: sockets, files, timers and the aligned buffer pool.
//!
//! An [`Engine`] is one thread's executor and driver. Tasks stay on their
//! thread, so they need no lock; [`Handle`] reaches an engine from others.
//! The driver is io_uring, or epoll where io_uring is forbidden: chosen by a
//! probe at start, or forced by [`Config::kind`] or `LONGHAUL_ENGINE`.
//!
//! This crate is the only one on the data path that makes system calls.
//!
//! Ownership of memory under I/O: every operation owns its buffers until the
//! kernel is done with them, also when its future is dropped.

pub mod address;
pub mod buf;
mod calendar;
mod config;
mod driver;
mod exec;
mod file_lock;
pub mod fs;
pub mod histogram;
mod msg;
pub mod net;
pub mod procfs;
pub mod simulated;
pub mod state_file;
pub mod sync;
mod thread;
mod time;

pub use buf::{BUF_ALIGN, BUF_MAX, Buf, BufMut, BufPool, Registrar, Registration, Segment};
pub use calendar::UtcTime;
pub use config::{Config, EngineKind};
pub use exec::{Engine, EngineGone, Handle, Remote, handle, kind, spawn, yield_now};
pub use file_lock::LockedFile;
pub use msg::{Memory, RecvMsg, SendMsg};
pub use thread::Thread;
pub use time::{Elapsed, Sleep, boot_time, now, since, sleep, sleep_until, timeout, wall_time};

/// A task under way on this thread: a future of its result. Dropping it
/// cancels the task; [`detach`](Task::detach) lets it run.
pub type Task<T> = async_task::Task<T>;

/// Fills bytes with unpredictable ones of the system, or of the simulation on a simulated engine.
///
/// # Panics
/// The system has none (`getrandom(2)` fails).
pub fn random(bytes: &mut [u8]) {
    for part in bytes.chunks_mut(size_of::<u64>()) {
        match simulated::random() {
            Some(bits) => part.copy_from_slice(&bits.to_le_bytes()[..part.len()]),
            None => getrandom::fill(part).expect("randomness of the system"),
        }
    }
}

/// Runs blocking code on a helper thread.
pub async fn blocking<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    blocking::unblock(f).await
}
