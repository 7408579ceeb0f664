//! The epoll driver: readiness of descriptors. The sockets make the system calls themselves; file
//! I/O is done by helper threads.
//!
//! Invariants:
//! - descriptors are registered once, edge-triggered, for both directions;
//! - a readiness edge is remembered until the socket has seen `EAGAIN`.

use super::Signal;
use slab::Slab;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Events taken by one call.
const EVENTS: usize = 256;
const SIGNAL: u64 = u64::MAX;

/// What a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    Readable,
    Writable,
}

pub(crate) struct Epoll {
    fd: OwnedFd,
    sources: Slab<Readiness>,
    events: Vec<libc::epoll_event>,
    signal: Arc<Signal>,
}

#[derive(Default)]
struct Readiness {
    ready: [bool; 2],
    waker: [Option<Waker>; 2],
}

impl Epoll {
    pub(crate) fn new(signal: &Arc<Signal>) -> io::Result<Epoll> {
        // SAFETY: plain system call; the result is checked.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor without another owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let events = vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        let epoll = Epoll { fd, sources: Slab::new(), events, signal: Arc::clone(signal) };
        epoll.add(signal.raw(), libc::EPOLLIN, SIGNAL)?;
        Ok(epoll)
    }

    fn add(&self, fd: RawFd, events: i32, data: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: data };
        // SAFETY: `event` is a valid structure; the result is checked.
        let rc = unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    pub(crate) fn register(&mut self, fd: RawFd) -> io::Result<usize> {
        let key = self.sources.insert(Readiness { ready: [true; 2], waker: [None, None] });
        let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        self.add(fd, events, key as u64).inspect_err(|_| {
            self.sources.remove(key);
        })?;
        Ok(key)
    }

    pub(crate) fn deregister(&mut self, key: usize, fd: RawFd) {
        self.sources.remove(key);
        // SAFETY: plain system call. It fails only if the descriptor is
        // closed already, and then it is not registered any more.
        unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    /// Ready if there was an edge since the last `clear_ready`.
    pub(crate) fn poll_ready(&mut self, key: usize, interest: Interest, cx: &mut Context<'_>) -> Poll<()> {
        let source = &mut self.sources[key];
        let way = interest as usize;
        if source.ready[way] {
            return Poll::Ready(());
        }
        match &mut source.waker[way] {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// The socket said `EAGAIN`.
    pub(crate) fn clear_ready(&mut self, key: usize, interest: Interest) {
        self.sources[key].ready[interest as usize] = false;
    }

    /// One `epoll_pwait2`, whose time-out has the resolution of the timers.
    fn wait(&mut self, wait: Option<Duration>) -> i64 {
        let timeout = wait
            .map(|wait| libc::timespec { tv_sec: wait.as_secs() as _, tv_nsec: wait.subsec_nanos().into() });
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the array is writable and as long as said; no signal mask.
        unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                EVENTS,
                timeout,
                std::ptr::null::<libc::sigset_t>(),
                0,
            )
        }
    }

    pub(crate) fn poll(&mut self, wait: Option<Duration>) -> bool {
        let n = self.wait(wait);
        let n = usize::try_from(n).unwrap_or(0);
        for event in &self.events[..n] {
            let (flags, data) = (event.events as i32, event.u64);
            if data == SIGNAL {
                self.signal.clear();
                continue;
            }
            let Some(source) = self.sources.get_mut(data as usize) else { continue };
            let gone = libc::EPOLLHUP | libc::EPOLLERR;
            let ways = [libc::EPOLLIN | libc::EPOLLRDHUP | gone, libc::EPOLLOUT | gone];
            for (way, mask) in ways.into_iter().enumerate() {
                if flags & mask != 0 {
                    source.ready[way] = true;
                    if let Some(waker) = source.waker[way].take() {
                        waker.wake();
                    }
                }
            }
        }
        n > 0
    }
}
