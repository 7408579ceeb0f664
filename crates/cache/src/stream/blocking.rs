//! Streams for code that blocks: the asynchronous one lives on an engine
//! thread, and gets requests through a channel.
//!
//! Invariants:
//! - bytes to write that wait here are next to each other and end at the
//!   position; bytes that were read begin there; there are never both;
//! - the far side answers requests in order, one at a time.

use super::AsyncStream;
use futures_channel::mpsc::{UnboundedSender, unbounded};
use futures_util::StreamExt;
use longhaul_block::{BlockDevice, IoError, IoResult};
use longhaul_engine::{Buf, Config, Handle, Thread};
use std::io::{self, BufRead, Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

/// Bytes of small writes that are gathered before they cross to the other
/// thread, so that the crossing costs little.
const GATHER: usize = 256 << 10;
/// Bytes that small reads ask for.
const ASK: usize = 4096;

enum Request {
    Read(u64, usize, Sender<IoResult<Buf>>),
    Write(u64, Vec<u8>, Sender<IoResult<Vec<u8>>>),
    Flush(Sender<IoResult<()>>),
    Close(Sender<IoResult<()>>),
}

/// A device as a file, for reading and writing. The [module](super) says what is durable when, and
/// how errors are returned.
///
/// Dropping it hands over pending writes and waits until the device has them.
pub struct Stream {
    device: Arc<dyn BlockDevice>,
    requests: UnboundedSender<Request>,
    /// The stream's own thread; `None` if it runs on another engine's.
    _thread: Option<Thread>,
    position: u64,
    here: Option<Buf>,
    gathered: Vec<u8>,
}

fn gone() -> IoError {
    IoError::Offline("the thread that serves the stream has ended".into())
}

fn to_io(e: IoError) -> io::Error {
    let kind = match &e {
        IoError::OutOfRange { .. } | IoError::Unaligned { .. } => io::ErrorKind::InvalidInput,
        IoError::ReadOnly => io::ErrorKind::ReadOnlyFilesystem,
        IoError::NoSpace => io::ErrorKind::StorageFull,
        IoError::Unsupported(_) => io::ErrorKind::Unsupported,
        IoError::Refused(_) | IoError::Reserved => io::ErrorKind::PermissionDenied,
        IoError::Unreachable(_) | IoError::Offline(_) => io::ErrorKind::NotConnected,
        IoError::Medium(_) | IoError::Integrity(_) | IoError::Aborted => io::ErrorKind::Other,
    };
    io::Error::new(kind, e)
}

async fn serve(mut stream: AsyncStream, mut inbox: futures_channel::mpsc::UnboundedReceiver<Request>) {
    // A reply fails only if its caller was dropped, and then nothing needs it.
    while let Some(request) = inbox.next().await {
        match request {
            Request::Read(offset, len, reply) => {
                stream.seek(offset);
                let result = stream.fill(len).await;
                if let Ok(bytes) = &result {
                    stream.consume(bytes.len());
                }
                let _ = reply.send(result);
            }
            Request::Write(offset, bytes, reply) => {
                stream.seek(offset);
                let result = stream.write_all(&bytes).await;
                let _ = reply.send(result.map(|()| bytes));
            }
            Request::Flush(reply) => drop(reply.send(stream.flush().await)),
            Request::Close(reply) => {
                stream.close().await;
                let _ = reply.send(Ok(()));
                return;
            }
        }
    }
}

impl Stream {
    /// Starts an engine thread and opens `device` on it.
    ///
    /// # Errors
    /// There is no thread or engine to be had, or the device cannot be opened.
    pub fn open(device: Arc<dyn BlockDevice>) -> IoResult<Stream> {
        let thread = Thread::start("longhaul-stream", Config::default())?;
        let mut stream = Stream::open_on(device, &thread.handle())?;
        stream._thread = Some(thread);
        Ok(stream)
    }

    /// Opens `device` on an engine thread that is there, and not the caller's.
    ///
    /// # Errors
    /// The device cannot be opened.
    pub fn open_on(device: Arc<dyn BlockDevice>, handle: &Handle) -> IoResult<Stream> {
        let (requests, inbox) = unbounded();
        let (opened, result) = channel();
        let shared = Arc::clone(&device);
        // `opened` reports the result, while the task continues.
        drop(handle.spawn(move || async move {
            match AsyncStream::open(&*shared).await {
                Ok(stream) => {
                    let _ = opened.send(Ok(()));
                    serve(stream, inbox).await;
                }
                Err(e) => drop(opened.send(Err(e))),
            }
        }));
        result.recv().unwrap_or_else(|_| Err(gone()))?;
        Ok(Stream { device, requests, _thread: None, position: 0, here: None, gathered: Vec::new() })
    }

    /// The device below.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    fn ask<T>(&self, make: impl FnOnce(Sender<IoResult<T>>) -> Request) -> IoResult<T> {
        let (reply, answer) = channel();
        self.requests.unbounded_send(make(reply)).map_err(|_| gone())?;
        answer.recv().unwrap_or_else(|_| Err(gone()))
    }

    /// Hands gathered bytes over.
    fn hand_over(&mut self) -> IoResult<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.gathered);
        let offset = self.position - bytes.len() as u64;
        self.gathered = self.ask(|reply| Request::Write(offset, bytes, reply))?;
        self.gathered.clear();
        Ok(())
    }

    fn fill(&mut self, len: usize) -> IoResult<&[u8]> {
        if self.here.is_none() {
            self.hand_over()?;
            let (position, len) = (self.position, len.max(ASK));
            let bytes = self.ask(|reply| Request::Read(position, len, reply))?;
            self.here = Some(bytes).filter(|bytes| !bytes.is_empty());
        }
        Ok(self.here.as_deref().unwrap_or_default())
    }

    fn go_on(&mut self, len: usize) {
        self.position += len as u64;
        self.here = self.here.take().filter(|here| here.len() > len).map(|here| here.slice(len..here.len()));
    }

    fn go_to(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (from, by) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::Current(by) => (self.position, by),
            SeekFrom::End(by) => (self.device.info().size, by),
        };
        let at = from.checked_add_signed(by);
        let at =
            at.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a seek before the beginning"))?;
        if at != self.position {
            self.hand_over().map_err(to_io)?;
            let ahead = at.checked_sub(self.position).and_then(|by| usize::try_from(by).ok());
            match ahead.filter(|&by| self.here.as_ref().is_some_and(|here| here.len() > by)) {
                Some(by) => self.go_on(by),
                None => (self.here, self.position) = (None, at),
            }
        }
        Ok(at)
    }

    fn take(&mut self, bytes: &[u8]) -> IoResult<usize> {
        let size = self.device.info().size;
        let left = size.saturating_sub(self.position);
        if left == 0 && !bytes.is_empty() {
            let (offset, len) = (self.position, bytes.len() as u64);
            return Err(IoError::OutOfRange { offset, len, size });
        }
        self.here = None;
        let room = (GATHER - self.gathered.len()).min(usize::try_from(left).unwrap_or(usize::MAX));
        let n = bytes.len().min(room);
        self.gathered.extend_from_slice(&bytes[..n]);
        self.position += n as u64;
        if self.gathered.len() >= GATHER
            && let Err(e) = self.hand_over()
        {
            // A write that fails has taken nothing.
            self.position -= n as u64;
            return Err(e);
        }
        Ok(n)
    }

    fn flush_all(&mut self) -> IoResult<()> {
        self.hand_over()?;
        self.ask(Request::Flush)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Err(e) = self.hand_over() {
            tracing::error!("{}: writes of a stream are lost: {e}", self.device.info().name);
        }
        // The task logs other errors.
        let _ = self.ask(Request::Close);
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({} at {})", self.device.info().name, self.position)
    }
}

impl Read for Stream {
    fn read(&mut self, dst: &mut [u8]) -> io::Result<usize> {
        if dst.is_empty() {
            return Ok(0);
        }
        let bytes = self.fill(dst.len()).map_err(to_io)?;
        let n = bytes.len().min(dst.len());
        dst[..n].copy_from_slice(&bytes[..n]);
        self.go_on(n);
        Ok(n)
    }
}

impl BufRead for Stream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.fill(ASK).map_err(to_io)
    }

    fn consume(&mut self, len: usize) {
        self.go_on(len);
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.take(bytes).map_err(to_io)
    }

    /// Makes completed writes durable.
    fn flush(&mut self) -> io::Result<()> {
        self.flush_all().map_err(to_io)
    }
}

impl Seek for Stream {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.go_to(to)
    }
}

macro_rules! half {
    ($name:ident) => {
        impl $name {
            /// Starts an engine thread and opens `device` on it.
            ///
            /// # Errors
            /// There is no thread or engine to be had, or the device cannot
            /// be opened.
            pub fn open(device: Arc<dyn BlockDevice>) -> IoResult<$name> {
                Stream::open(device).map($name)
            }

            /// Opens `device` on an engine thread that is there, and not the
            /// caller's.
            ///
            /// # Errors
            /// The device cannot be opened.
            pub fn open_on(device: Arc<dyn BlockDevice>, handle: &Handle) -> IoResult<$name> {
                Stream::open_on(device, handle).map($name)
            }

            /// The device below.
            pub fn device(&self) -> &Arc<dyn BlockDevice> {
                self.0.device()
            }
        }

        impl Seek for $name {
            fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
                self.0.seek(to)
            }
        }
    };
}

/// A [`Stream`] that only reads.
#[derive(Debug)]
pub struct StreamReader(Stream);

/// A [`Stream`] that only writes.
#[derive(Debug)]
pub struct StreamWriter(Stream);

half!(StreamReader);
half!(StreamWriter);

impl Read for StreamReader {
    fn read(&mut self, dst: &mut [u8]) -> io::Result<usize> {
        self.0.read(dst)
    }
}

impl BufRead for StreamReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.0.fill_buf()
    }

    fn consume(&mut self, len: usize) {
        self.0.consume(len);
    }
}

impl Write for StreamWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    /// Makes completed writes durable.
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
