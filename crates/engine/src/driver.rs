//! Where system calls happen: io_uring or epoll behind one face.

mod epoll;
mod spin;
mod uring;

use crate::config::{Config, EngineKind};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use epoll::{Epoll, Interest};
pub(crate) use spin::Spin;
pub(crate) use uring::{Uring, disk_op, op};

/// The driver of one engine.
pub(crate) enum Driver {
    Uring(Box<Uring>),
    Epoll(Box<Epoll>),
    /// No system calls at all.
    Simulated,
}

impl Driver {
    pub(crate) fn new(config: &Config, signal: &Arc<Signal>) -> io::Result<Driver> {
        let epoll = || Epoll::new(signal).map(|epoll| Driver::Epoll(Box::new(epoll)));
        match config.wanted().map_err(io::Error::other)? {
            EngineKind::Epoll => epoll(),
            EngineKind::Uring => Uring::new(signal)
                .map(|uring| Driver::Uring(Box::new(uring)))
                .map_err(|e| io::Error::new(e.kind(), format!("io_uring cannot be used here: {e}"))),
            EngineKind::Simulated => Err(io::Error::other("a simulated engine is made by Engine::simulated")),
            EngineKind::Auto => match Uring::new(signal) {
                Ok(uring) => Ok(Driver::Uring(Box::new(uring))),
                Err(e) => {
                    tracing::info!("io_uring cannot be used here ({e}); using epoll");
                    epoll()
                }
            },
        }
    }

    pub(crate) fn kind(&self) -> EngineKind {
        match self {
            Driver::Uring(_) => EngineKind::Uring,
            Driver::Epoll(_) => EngineKind::Epoll,
            Driver::Simulated => EngineKind::Simulated,
        }
    }

    /// Submits queued operations and handles completions, without waiting. Returns whether there
    /// were any.
    pub(crate) fn poll(&mut self) -> bool {
        match self {
            Driver::Uring(uring) => uring.poll(),
            Driver::Epoll(epoll) => epoll.poll(Some(Duration::ZERO)),
            Driver::Simulated => false,
        }
    }

    /// A cheap look for events, for a spinning caller: true if
    /// [`poll`](Self::poll) would find something.
    fn peek(&mut self) -> bool {
        match self {
            Driver::Uring(uring) => uring.peek(),
            Driver::Epoll(epoll) => epoll.poll(Some(Duration::ZERO)),
            Driver::Simulated => false,
        }
    }

    /// Waits for an event, the signal or the deadline.
    pub(crate) fn sleep(&mut self, deadline: Option<Instant>) {
        let wait = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        match self {
            Driver::Uring(uring) => uring.sleep(wait),
            Driver::Epoll(epoll) => {
                epoll.poll(wait);
            }
            Driver::Simulated => {}
        }
    }

    /// Waits until the kernel has released all memory.
    pub(crate) fn shut_down(&mut self) {
        if let Driver::Uring(uring) = self {
            uring.shut_down();
        }
    }
}

/// Wakes an engine out of its sleep: an eventfd.
pub(crate) struct Signal {
    fd: OwnedFd,
}

impl Signal {
    pub(crate) fn new() -> io::Result<Signal> {
        // SAFETY: plain system call; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor without another owner.
        Ok(Signal { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    pub(crate) fn raise(&self) {
        let one = 1u64;
        // SAFETY: eight readable bytes. It can only fail when the counter is
        // full, and then the sleeper wakes anyway.
        unsafe { libc::write(self.fd.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: eight writable bytes; the descriptor does not block.
        unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
