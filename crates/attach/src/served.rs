//! A device that front ends serve: their threads make requests, and an engine thread executes them
//! concurrently.
//!
//! Invariants:
//! - every request is answered exactly once, also when the engine has ended;
//! - requests of one thread are ordered as it made them.

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_util::StreamExt;
use longhaul_block::{BlockDevice, DeviceInfo, IoError, IoResult, ZeroFlags};
use longhaul_cache::{Cache, ErrorCursor, Losses};
use longhaul_engine::{Buf, Config, Thread, spawn};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::channel;

/// A request to a device; offsets and lengths are in bytes, without alignment.
#[derive(Debug)]
pub enum Request {
    /// Bytes of the device.
    Read {
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Writes bytes: durable after a flush, or at once.
    Write {
        /// Offset of the first byte.
        offset: u64,
        /// The bytes to write.
        data: Buf,
        /// Force unit access: answered when durable.
        fua: bool,
    },
    /// Makes a range read as zeroes.
    Zero {
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Whether it must be durable, and may be deallocated.
        flags: ZeroFlags,
    },
    /// A range is not needed any more.
    Discard {
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Answered when all that was acknowledged before is durable.
    Flush(Arc<ErrorCursor>),
    /// Answered when all that was acknowledged before is with the device.
    Drain(Arc<ErrorCursor>),
}

/// Receives an answer: the bytes of a read, otherwise an empty buffer. It is called on the engine's
/// thread, so it must not wait.
pub type RequestDone = Box<dyn FnOnce(IoResult<Buf>) + Send>;

/// The interface between front ends (FUSE, NBD) and the I/O below them.
pub trait Requests: Send + Sync {
    /// The device's properties at this moment.
    fn info(&self) -> DeviceInfo;

    /// Starts a request.
    fn start(&self, request: Request, done: RequestDone);

    /// A handle whose flushes report writes that are lost from now on, and those that no flush has reported yet.
    fn handle(&self) -> Arc<ErrorCursor>;

    /// Waits for the answer to a request; not for use on an engine's thread.
    ///
    /// # Errors
    /// Those of the device.
    fn wait(&self, request: Request) -> IoResult<Buf> {
        let (tell, told) = channel();
        self.start(request, Box::new(move |result| drop(tell.send(result))));
        told.recv().unwrap_or_else(|_| Err(gone()))
    }
}

fn gone() -> IoError {
    IoError::Offline("the thread that serves the device has ended".into())
}

/// A device with an engine thread of its own.
///
/// Dropping it cancels requests under way: send [`Request::Flush`] first to have all writes
/// durable.
pub struct Served {
    device: Arc<dyn BlockDevice>,
    lost: Losses,
    /// Ends the thread's work when dropped, so it is declared before the thread.
    inbox: UnboundedSender<(Request, Answer)>,
    _thread: Thread,
}

/// Answers with an error when dropped, unless it has answered before.
struct Answer(Option<RequestDone>);

impl Answer {
    fn give(mut self, result: IoResult<Buf>) {
        if let Some(done) = self.0.take() {
            done(result);
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(Err(gone()));
        }
    }
}

impl Served {
    /// Opens `device` on a thread with an engine as `config` says. Read-ahead and write-behind take
    /// at most `memory` bytes.
    ///
    /// # Errors
    /// No thread or engine can be started, or the device cannot be opened.
    pub fn open(device: Arc<dyn BlockDevice>, config: Config, memory: u64) -> IoResult<Served> {
        let thread = Thread::start("longhaul-attach", config)?;
        let (inbox, requests) = unbounded();
        let (opened, result) = channel();
        let (shared, lost) = (Arc::clone(&device), Losses::default());
        let counts = lost.clone();
        // `opened` reports the result, while the task continues.
        drop(thread.handle().spawn(move || async move {
            match Cache::open(shared, memory, counts).await {
                Ok(cache) => {
                    let _ = opened.send(Ok(()));
                    serve(Rc::new(cache), requests).await;
                }
                Err(e) => drop(opened.send(Err(e))),
            }
        }));
        result.recv().unwrap_or_else(|_| Err(gone()))?;
        Ok(Served { device, lost, inbox, _thread: thread })
    }
}

impl Requests for Served {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn start(&self, request: Request, done: RequestDone) {
        // If the thread has ended, dropping the answer reports it.
        let _ = self.inbox.unbounded_send((request, Answer(Some(done))));
    }

    fn handle(&self) -> Arc<ErrorCursor> {
        Arc::new(self.lost.handle())
    }
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Served({})", self.info().name)
    }
}

async fn serve(cache: Rc<Cache>, mut requests: UnboundedReceiver<(Request, Answer)>) {
    let nothing = || Buf::copy_of(&[]);
    while let Some((request, answer)) = requests.next().await {
        let cache = Rc::clone(&cache);
        match request {
            Request::Read { offset, len } => {
                spawn(async move { answer.give(cache.read(offset, len).await) }).detach();
            }
            Request::Flush(cursor) => {
                spawn(async move { answer.give(cache.flush(&cursor).await.map(|()| nothing())) }).detach();
            }
            Request::Drain(cursor) => {
                spawn(async move { answer.give(cache.drain(&cursor).await.map(|()| nothing())) }).detach();
            }
            // A change gets its place in the order here, before any later request.
            Request::Write { offset, data, fua } => {
                let change = cache.write(offset, data, fua);
                spawn(async move { answer.give(change.await.map(|()| nothing())) }).detach();
            }
            Request::Zero { offset, len, flags } => {
                let change = cache.write_zeroes(offset, len, flags);
                spawn(async move { answer.give(change.await.map(|()| nothing())) }).detach();
            }
            Request::Discard { offset, len } => {
                let change = cache.discard(offset, len);
                spawn(async move { answer.give(change.await.map(|()| nothing())) }).detach();
            }
        }
    }
}
