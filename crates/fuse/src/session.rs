//! Threads that read requests of the kernel and have them answered.

use crate::abi::{self, init};
use crate::reply::Reply;
use crate::request::{Malformed, Message, Request, parse};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use zerocopy::IntoBytes;

/// Bytes of a request besides the data of a write: the kernel asks for room for them (`FUSE_MIN_READ_BUFFER`).
const HEADERS: usize = 8192;
/// Interrupts that are remembered of requests which no thread has taken up, or which cannot be interrupted.
const EARLY: usize = 1024;
/// Bytes of a page, for the number of pages of a request.
const PAGE: u32 = 4096;

/// What answers requests. It is called by several threads at the same time.
pub trait Server: Send + Sync + 'static {
    /// Answers a request, now or later, on any thread.
    fn request(&self, request: Request<'_>, reply: Reply);

    /// The kernel forgets as many lookups of an object.
    fn forget(&self, node: u64, lookups: u64) {
        let _ = (node, lookups);
    }
}

/// How a session runs.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Threads that read requests.
    pub threads: usize,
    /// Bytes of one read or write.
    pub request: u32,
    /// Requests that the kernel may have under way in the background (`max_background`).
    pub background: u16,
    /// What is used of [`init`](abi::init), if the kernel has it.
    pub wishes: u64,
}

/// What the threads of a session and its replies have in common.
pub(crate) struct Shared {
    device: File,
    pub(crate) interrupts: Interrupts,
}

impl Shared {
    /// One write, which the kernel takes as a whole or not at all.
    pub(crate) fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        (&self.device).write_vectored(parts).map(drop)
    }

    /// One request; `None` once the file system is unmounted.
    fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.device, &mut *buffer) {
                Ok(len) => return Ok(Some(len)),
                // A request was interrupted before it was read, or the call was.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Requests that can be interrupted.
///
/// Threads read a request and its interrupt at the same time: an interrupt that comes before its request is
/// remembered.
#[derive(Default)]
pub(crate) struct Interrupts(Mutex<InterruptState>);

#[derive(Default)]
struct InterruptState {
    waiting: HashMap<u64, Box<dyn FnOnce() + Send>>,
    early: VecDeque<u64>,
}

impl Interrupts {
    fn with<T>(&self, body: impl FnOnce(&mut InterruptState) -> T) -> T {
        body(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn register(&self, unique: u64, interrupted: Box<dyn FnOnce() + Send>) {
        let at_once = self.with(|state| match state.early.iter().position(|early| *early == unique) {
            Some(at) => {
                state.early.remove(at);
                Some(interrupted)
            }
            None => {
                state.waiting.insert(unique, interrupted);
                None
            }
        });
        if let Some(interrupted) = at_once {
            interrupted();
        }
    }

    pub(crate) fn remove(&self, unique: u64) {
        drop(self.with(|state| state.waiting.remove(&unique)));
    }

    fn interrupt(&self, unique: u64) {
        let interrupted = self.with(|state| {
            let found = state.waiting.remove(&unique);
            if found.is_none() {
                state.early.truncate(EARLY - 1);
                state.early.push_front(unique);
            }
            found
        });
        if let Some(interrupted) = interrupted {
            interrupted();
        }
    }
}

/// A mount that is answered.
pub struct Session {
    shared: Arc<Shared>,
    server: Arc<dyn Server>,
    options: SessionOptions,
    granted: u64,
}

impl Session {
    /// Agrees with the kernel, on the device of a [`mount`](crate::mount()).
    ///
    /// # Errors
    /// The kernel's version of the protocol is too old, or the device fails.
    pub fn new(device: OwnedFd, server: Arc<dyn Server>, options: SessionOptions) -> io::Result<Session> {
        let shared = Arc::new(Shared { device: File::from(device), interrupts: Interrupts::default() });
        let granted = agree(&shared, &options)?;
        Ok(Session { shared, server, options, granted })
    }

    /// What of [`SessionOptions::wishes`] the kernel has.
    pub fn granted(&self) -> u64 {
        self.granted & self.options.wishes
    }

    /// What tells the kernel of changes.
    pub fn notifier(&self) -> Notifier {
        Notifier(Arc::clone(&self.shared))
    }

    /// Answers the kernel until the file system is unmounted.
    ///
    /// # Errors
    /// The device fails, or a thread cannot be started or has panicked.
    pub fn run(self) -> io::Result<()> {
        let mut threads = Vec::new();
        for number in 0..self.options.threads.max(1) {
            let (shared, server) = (Arc::clone(&self.shared), Arc::clone(&self.server));
            let room = self.options.request as usize + HEADERS;
            let thread = std::thread::Builder::new().name(format!("longhaul-fuse-{number}"));
            threads.push(thread.spawn(move || serve(&shared, &*server, room))?);
        }
        let mut result = Ok(());
        for thread in threads {
            let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread has panicked")));
            result = result.and(ended);
        }
        result
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("options", &self.options).finish_non_exhaustive()
    }
}

fn serve(shared: &Arc<Shared>, server: &dyn Server, room: usize) -> io::Result<()> {
    let mut buffer = vec![0; room];
    let reply = |unique| Reply::new(Arc::clone(shared), unique);
    while let Some(len) = shared.read(&mut buffer)? {
        match parse(&buffer[..len]) {
            Ok(Message::Request(request)) => server.request(request, reply(request.header.unique)),
            Ok(Message::Forget { node, lookups }) => server.forget(node, lookups),
            Ok(Message::BatchForget(all)) => all.iter().for_each(|one| server.forget(one.node, one.lookups)),
            // No reply means that the request ends in its own way.
            Ok(Message::Interrupt { of }) => shared.interrupts.interrupt(of),
            Ok(Message::Destroy { unique }) => reply(unique).ok(),
            Ok(Message::Unknown { unique } | Message::Init { unique, .. }) => {
                reply(unique).error(libc::ENOSYS);
            }
            Err(e) => {
                tracing::error!("FUSE: {e}");
                if e.unique != 0 {
                    reply(e.unique).error(libc::EIO);
                }
            }
        }
    }
    Ok(())
}

/// Answers the kernel's first request; returns what both have.
fn agree(shared: &Arc<Shared>, options: &SessionOptions) -> io::Result<u64> {
    let mut buffer = vec![0; HEADERS];
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    loop {
        let Some(len) = shared.read(&mut buffer)? else {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "it was unmounted at once"));
        };
        let (unique, init, flags2) = match parse(&buffer[..len]) {
            Ok(Message::Init { unique, init, flags2 }) => (unique, init, flags2),
            Ok(other) => return Err(invalid(format!("the kernel begins with {other:?}"))),
            Err(e @ Malformed { .. }) => return Err(invalid(e.to_string())),
        };
        let answer = |init: &abi::InitOut| Reply::new(Arc::clone(shared), unique).data(init.as_bytes());
        if init.major > abi::MAJOR {
            // The kernel asks again, in this version.
            answer(&abi::InitOut { major: abi::MAJOR, minor: abi::MINOR, ..abi::InitOut::default() });
            continue;
        }
        if (init.major, init.minor) < (abi::MAJOR, abi::MINOR_LEAST) {
            Reply::new(Arc::clone(shared), unique).error(libc::EPROTO);
            let why = format!(
                "the kernel has version {}.{} of FUSE, and {}.{} (Linux 5.4) is needed",
                init.major,
                init.minor,
                abi::MAJOR,
                abi::MINOR_LEAST
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let (out, granted) = agreed(&init, flags2, options);
        answer(&out);
        return Ok(granted);
    }
}

fn agreed(init: &abi::InitIn, flags2: u32, options: &SessionOptions) -> (abi::InitOut, u64) {
    let has_more = u64::from(init.flags) & init::INIT_EXT != 0;
    let offered = u64::from(init.flags) | if has_more { u64::from(flags2) << 32 } else { 0 };
    let always = init::ASYNC_READ | init::BIG_WRITES | init::MAX_PAGES | init::INIT_EXT;
    let granted = offered & (always | options.wishes);
    let out = abi::InitOut {
        major: abi::MAJOR,
        minor: abi::MINOR,
        max_readahead: init.max_readahead.min(options.request),
        flags: granted as u32,
        max_background: options.background,
        congestion_threshold: (u32::from(options.background) * 3 / 4) as u16,
        max_write: options.request,
        // Times are exact to the nanosecond.
        time_gran: 1,
        max_pages: options.request.div_ceil(PAGE) as u16,
        flags2: (granted >> 32) as u32,
        ..abi::InitOut::default()
    };
    (out, granted)
}

/// Tells the kernel of changes. It must not be used by a thread that answers requests: the kernel may wait for
/// one of them first.
#[derive(Clone)]
pub struct Notifier(Arc<Shared>);

impl Notifier {
    /// The kernel drops the attributes and all pages of an object (`FUSE_NOTIFY_INVAL_INODE`). One that it does
    /// not know is no error.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn invalidate(&self, node: u64) -> io::Result<()> {
        let body = abi::NotifyInvalInode { node, offset: 0, len: 0 };
        let len = (size_of::<abi::OutHeader>() + size_of::<abi::NotifyInvalInode>()) as u32;
        let header = abi::OutHeader { len, error: abi::NOTIFY_INVAL_INODE, unique: 0 };
        match self.0.write(&[IoSlice::new(header.as_bytes()), IoSlice::new(body.as_bytes())]) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

impl std::fmt::Debug for Notifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Notifier")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    #[test]
    fn an_interrupt_meets_its_request_in_either_order() {
        let interrupts = Interrupts::default();
        let count = Arc::new(AtomicUsize::new(0));
        let counts = || {
            let count = Arc::clone(&count);
            Box::new(move || {
                count.fetch_add(1, Relaxed);
            })
        };
        interrupts.register(1, counts());
        interrupts.interrupt(1);
        assert_eq!(count.load(Relaxed), 1);
        interrupts.interrupt(2);
        interrupts.register(2, counts());
        assert_eq!(count.load(Relaxed), 2);
        interrupts.register(3, counts());
        interrupts.remove(3);
        interrupts.interrupt(3);
        assert_eq!(count.load(Relaxed), 2, "it was answered before");
        for unique in 10..10 + 2 * EARLY as u64 {
            interrupts.interrupt(unique);
        }
        assert_eq!(interrupts.with(|state| state.early.len()), EARLY);
        interrupts.register(9 + 2 * EARLY as u64, counts());
        assert_eq!(count.load(Relaxed), 3, "the newest are remembered");
    }

    #[test]
    fn only_what_the_kernel_has_is_agreed_on() {
        let wishes = init::FLOCK_LOCKS | init::DIRECT_IO_ALLOW_MMAP | init::POSIX_LOCKS;
        let options = SessionOptions { threads: 1, request: 1 << 20, background: 128, wishes };
        let flags = (init::ASYNC_READ | init::FLOCK_LOCKS | init::INIT_EXT) as u32;
        let offer = abi::InitIn { major: 7, minor: 45, max_readahead: 131_072, flags };
        let (out, granted) = agreed(&offer, u32::MAX, &options);
        assert_eq!(u64::from(out.flags), init::ASYNC_READ | init::FLOCK_LOCKS | init::INIT_EXT);
        assert_eq!(u64::from(out.flags2) << 32, init::DIRECT_IO_ALLOW_MMAP);
        assert_eq!(granted & init::POSIX_LOCKS, 0);
        assert_eq!((out.max_readahead, out.max_write, out.max_pages), (131_072, 1 << 20, 256));
        // Without the extension the second word means nothing.
        let offer = abi::InitIn { flags: init::ASYNC_READ as u32, ..offer };
        assert_eq!(agreed(&offer, u32::MAX, &options).0.flags2, 0);
    }
}
