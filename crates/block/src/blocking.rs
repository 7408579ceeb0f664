//! A device for code that blocks.
//!
//! Invariants:
//! - the device is open on the engine thread for exactly as long as the
//!   [`Blocking`] lives, and no operation is under way on behalf of a call
//!   that has returned without an error;
//! - a call has at most [`WINDOW`] pieces under way, so its copies stay
//!   bounded however long the caller's buffer is; only [`Blocking::read_many`]
//!   has all that it is asked for.

use crate::{BlockDevice, BlockIo, DeviceInfo, IoError, IoFuture, IoResult, WriteFlags, ZeroFlags};
use futures_channel::mpsc;
use futures_util::StreamExt;
use longhaul_engine::{Buf, BufMut, Config, Thread, spawn};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

/// Bytes copied and handed over at a time: large enough for full speed.
const PIECE: usize = 1 << 20;
/// Pieces of one call under way at a time. 16 MiB cover 10 Gb/s at 13 ms of
/// round trip; for more, call from several threads, or asynchronously.
const WINDOW: usize = 16;

/// How often a call that waits asks whether it is to go on: what a person at a keyboard does not notice.
const ASKED: Duration = Duration::from_millis(100);

/// Whether a call that waits is to end: see [`Blocking::with_interrupt`].
pub type Interrupt = dyn Fn() -> bool + Send + Sync;

/// Starts an operation on the engine thread.
type BlockingCall = Box<dyn FnOnce(&dyn BlockIo) + Send>;

/// A device for code that blocks, with an engine thread of its own.
///
/// Every call waits until it is done, and copies its data once; several
/// threads may call at the same time, and their calls overlap. The fast path,
/// without copies and with any depth, is [`BlockDevice::open`] on an engine
/// thread.
///
/// Offsets and lengths are in bytes and whole blocks of
/// [`DeviceInfo::block_size`]; they may be larger than
/// [`DeviceInfo::max_io`]. A call that fails may have done a part.
///
/// ```
/// # use std::sync::Arc;
/// use longhaul_block::{Blocking, MemDevice};
///
/// let disk = Blocking::open(Arc::new(MemDevice::new(1 << 20, 4096)?))?;
/// disk.write_at(&[7; 8192], 4096)?;
/// disk.flush()?;
/// let mut content = [0; 4096];
/// disk.read_at(&mut content, 8192)?;
/// assert_eq!(content, [7; 4096]);
/// # Ok::<(), longhaul_block::IoError>(())
/// ```
pub struct Blocking {
    device: Arc<dyn BlockDevice>,
    /// Ends the thread's work when dropped, so it is declared before the thread.
    jobs: mpsc::UnboundedSender<BlockingCall>,
    interrupt: Option<Arc<Interrupt>>,
    _thread: Thread,
}

/// The result of a piece, when it has completed.
struct Pending<T>(std_mpsc::Receiver<IoResult<T>>);

fn gone() -> IoError {
    IoError::Offline("the thread that serves the device has ended".into())
}

impl<T> Pending<T> {
    fn wait(self) -> IoResult<T> {
        self.0.recv().unwrap_or_else(|_| Err(gone()))
    }
}

impl Blocking {
    /// Starts a thread with an engine and opens `device` on it.
    ///
    /// # Errors
    /// No thread or engine can be started, or the device cannot be opened.
    pub fn open(device: Arc<dyn BlockDevice>) -> IoResult<Blocking> {
        Blocking::open_on(device, Config::default())
    }

    /// As [`open`](Self::open), with an engine as `config` says.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_on(device: Arc<dyn BlockDevice>, config: Config) -> IoResult<Blocking> {
        let thread = Thread::start("longhaul-block", config)?;
        let (jobs, inbox) = mpsc::unbounded::<BlockingCall>();
        let (opened, result) = std_mpsc::channel();
        let shared = Arc::clone(&device);
        // The result comes by `opened`; the task itself continues.
        drop(thread.handle().spawn(move || async move {
            match shared.open().await {
                Ok(io) => {
                    let _ = opened.send(Ok(()));
                    serve(io, inbox).await;
                }
                Err(e) => drop(opened.send(Err(e))),
            }
        }));
        Pending(result).wait()?;
        Ok(Blocking { device, jobs, interrupt: None, _thread: thread })
    }

    /// The same device, whose calls ask `interrupt` ten times a second while they wait, each on the thread
    /// of its caller. Once it is true the call ends with [`IoError::Aborted`]; what it had under way may
    /// still be done.
    #[must_use]
    pub fn with_interrupt(self, interrupt: Arc<Interrupt>) -> Blocking {
        Blocking { interrupt: Some(interrupt), ..self }
    }

    /// The device's properties at this moment.
    pub fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    /// The device itself.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Fills `dst` from `offset`.
    ///
    /// # Errors
    /// Those of [`BlockIo::read`](crate::BlockIo::read).
    pub fn read_at(&self, dst: &mut [u8], offset: u64) -> IoResult<()> {
        self.read_parts(&mut [(offset, dst)], WINDOW)
    }

    /// Fills each buffer from its offset, with all of them in flight at once: many reads of a device that is
    /// far away take one round trip. It needs as much memory again as the buffers have.
    ///
    /// # Errors
    /// Those of [`BlockIo::read`](crate::BlockIo::read). Nothing is read if any of the ranges is not whole
    /// blocks within the device.
    pub fn read_many(&self, parts: &mut [(u64, &mut [u8])]) -> IoResult<()> {
        self.read_parts(parts, usize::MAX)
    }

    fn read_parts(&self, parts: &mut [(u64, &mut [u8])], window: usize) -> IoResult<()> {
        let info = self.info();
        parts.iter().try_for_each(|(offset, dst)| info.check(*offset, dst.len() as u64))?;
        let piece = self.piece();
        let mut pieces =
            parts.iter_mut().flat_map(|(offset, dst)| (*offset..).step_by(piece).zip(dst.chunks_mut(piece)));
        let mut under_way = VecDeque::new();
        loop {
            while under_way.len() < window {
                let Some((at, part)) = pieces.next() else { break };
                let len = part.len();
                under_way.push_back((part, self.start(move |io| io.read(at, BufMut::zeroed(len)))));
            }
            let Some((part, pending)) = under_way.pop_front() else { return Ok(()) };
            part.copy_from_slice(&self.wait(pending)?);
        }
    }

    /// Writes `src` at `offset`. It is durable after [`flush`](Self::flush).
    ///
    /// # Errors
    /// Those of [`BlockIo::write`](crate::BlockIo::write).
    pub fn write_at(&self, src: &[u8], offset: u64) -> IoResult<()> {
        self.info().check(offset, src.len() as u64)?;
        let mut under_way = VecDeque::with_capacity(WINDOW);
        let (piece, mut at) = (self.piece(), offset);
        let mut pieces = src.chunks(piece);
        loop {
            while under_way.len() < WINDOW {
                let Some(part) = pieces.next() else { break };
                let (here, buf) = (at, Buf::copy_of(part));
                at += part.len() as u64;
                under_way.push_back(self.start(move |io| io.write(here, buf, WriteFlags::default())));
            }
            let Some(pending) = under_way.pop_front() else { return Ok(()) };
            self.wait(pending)?;
        }
    }

    /// Makes every write that has returned durable.
    ///
    /// # Errors
    /// Those of [`BlockIo::flush`](crate::BlockIo::flush).
    pub fn flush(&self) -> IoResult<()> {
        self.wait(self.start(|io| io.flush()))
    }

    /// Discards a range: later reads return either the old content or zeroes.
    ///
    /// # Errors
    /// Those of [`BlockIo::discard`](crate::BlockIo::discard); [`IoError::Unsupported`] if the
    /// device has no discard.
    pub fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
        self.wait(self.start(move |io| io.discard(offset, len)))
    }

    /// Makes a range read as zeroes, and deallocates it where possible.
    ///
    /// # Errors
    /// Those of [`BlockIo::write_zeroes`](crate::BlockIo::write_zeroes).
    pub fn write_zeroes(&self, offset: u64, len: u64) -> IoResult<()> {
        let flags = ZeroFlags { may_deallocate: true, ..ZeroFlags::default() };
        self.wait(self.start(move |io| io.write_zeroes(offset, len, flags)))
    }

    /// Bytes of one piece: whole blocks, and no more than the device takes.
    fn piece(&self) -> usize {
        PIECE.min(self.info().max_io as usize)
    }

    fn wait<T>(&self, pending: Pending<T>) -> IoResult<T> {
        let Some(interrupt) = &self.interrupt else { return pending.wait() };
        loop {
            match pending.0.recv_timeout(ASKED) {
                Ok(result) => return result,
                Err(std_mpsc::RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(std_mpsc::RecvTimeoutError::Timeout) if interrupt() => return Err(IoError::Aborted),
                Err(std_mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn start<T: Send + Unpin + 'static>(
        &self,
        begin: impl FnOnce(&dyn BlockIo) -> IoFuture<T> + Send + 'static,
    ) -> Pending<T> {
        let (done, result) = std_mpsc::channel();
        let job: BlockingCall = Box::new(move |io| match begin(io).try_ready() {
            Ok(result) => drop(done.send(result)),
            Err(under_way) => spawn(async move { drop(done.send(under_way.await)) }).detach(),
        });
        // If the thread has ended the job is dropped, and `wait` says so.
        let _ = self.jobs.unbounded_send(job);
        Pending(result)
    }
}

impl std::fmt::Debug for Blocking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Blocking({})", self.info().name)
    }
}

async fn serve(io: Rc<dyn BlockIo>, mut inbox: mpsc::UnboundedReceiver<BlockingCall>) {
    while let Some(job) = inbox.next().await {
        job(&*io);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::{Delay, Errors, Filtered, OpKind, OpSet, Stats};
    use crate::testing::FaultDisk;
    use crate::{BackendSpec, MemDevice};

    fn pattern(len: usize, seed: usize) -> Vec<u8> {
        (0..len).map(|i| ((i / 512 * 31 + i + seed) % 251) as u8).collect()
    }

    fn memory(size: u64) -> Arc<MemDevice> {
        Arc::new(MemDevice::new(size, 512).expect("mapped"))
    }

    #[test]
    fn a_long_buffer_is_moved_in_pieces() {
        let stats = Arc::new(Filtered::new(memory(64 << 20), Stats::default()));
        let disk = Blocking::open(stats.clone()).expect("opened");
        // More pieces than the window has, and a tail.
        let written = pattern((WINDOW + 3) * PIECE + 1536, 1);
        disk.write_at(&written, 512).expect("written");
        let mut read = vec![0; written.len()];
        disk.read_at(&mut read, 512).expect("read");
        assert!(read == written);
        let counts = stats.filter().snapshot();
        assert_eq!(counts.of(OpKind::Write).done, WINDOW as u64 + 4);
        assert_eq!(counts.of(OpKind::Read).bytes, written.len() as u64);
    }

    #[test]
    fn zeroes_discard_flush_and_info() {
        let dir = tempfile::tempdir().expect("directory");
        let spec = format!("file:{},size=1MiB,block=512", dir.path().join("disk").display());
        let device = BackendSpec::parse(&spec).expect("understood").open().expect("opened");
        let disk = Blocking::open(device).expect("opened");
        assert_eq!((disk.info().size, disk.info().block_size), (1 << 20, 512));
        disk.write_at(&pattern(8192, 2), 0).expect("written");
        disk.write_zeroes(512, 1024).expect("zeroed");
        disk.discard(4096, 4096).expect("discarded");
        disk.flush().expect("flushed");
        let mut read = vec![0; 4096];
        disk.read_at(&mut read, 0).expect("read");
        assert_eq!(read[..512], pattern(8192, 2)[..512]);
        assert_eq!(read[512..1536], [0; 1024]);
        assert_eq!(read[1536..], pattern(8192, 2)[1536..4096]);
    }

    #[test]
    fn threads_overlap_and_errors_come_back() {
        let mut errors = Errors::new(1.0, 0);
        errors.range = Some(0..4096);
        let slow =
            Delay { time: Duration::from_millis(1), ops: OpSet::NONE.with(OpKind::Write).with(OpKind::Read) };
        let device = Filtered::new(Arc::new(Filtered::new(memory(1 << 20), slow)), errors);
        let disk = Blocking::open(Arc::new(device)).expect("opened");
        std::thread::scope(|scope| {
            for t in 1..8u64 {
                let disk = &disk;
                scope.spawn(move || {
                    let bytes = pattern(65_536, t as usize);
                    disk.write_at(&bytes, t * 65_536).expect("written");
                    let mut read = vec![0; 65_536];
                    disk.read_at(&mut read, t * 65_536).expect("read");
                    assert!(read == bytes);
                });
            }
        });
        assert!(matches!(disk.read_at(&mut [0; 512], 0), Err(IoError::Medium(_))));
        assert!(matches!(disk.write_at(&[0; 512], 1 << 20), Err(IoError::OutOfRange { .. })));
        assert!(matches!(disk.read_at(&mut [0; 100], 4096), Err(IoError::Unaligned { .. })));
        assert!(disk.read_at(&mut [], 0).is_ok());
    }

    #[test]
    fn many_reads_are_in_flight_at_once() {
        let many = WINDOW + 8;
        let device = Arc::new(FaultDisk::new(1 << 20));
        let block = device.info().block_size as usize;
        let disk = Blocking::open(device.clone()).expect("opened");
        let written = pattern(block * many, 3);
        disk.write_at(&written, 0).expect("written");
        device.hold(OpKind::Read, many);
        let mut read = vec![0; written.len()];
        std::thread::scope(|scope| {
            let reads = scope.spawn(|| {
                let mut parts: Vec<(u64, &mut [u8])> =
                    (0..).step_by(block).zip(read.chunks_mut(block)).collect();
                parts.reverse();
                disk.read_many(&mut parts)
            });
            while device.held() < many {
                std::thread::yield_now();
            }
            device.release();
            reads.join().expect("joined").expect("read");
        });
        assert!(read == written);
        let past = &mut [(0, &mut [0; 4096][..]), (1 << 20, &mut [0; 4096][..])];
        assert!(matches!(disk.read_many(past), Err(IoError::OutOfRange { .. })));
    }

    #[test]
    fn a_call_that_waits_is_interrupted() {
        let device = Arc::new(FaultDisk::new(1 << 20));
        device.hold(OpKind::Read, 1);
        let disk = Blocking::open(device.clone()).expect("opened").with_interrupt(Arc::new(|| true));
        assert_eq!(disk.read_at(&mut [0; 4096], 0), Err(IoError::Aborted));
        device.release();
        disk.read_at(&mut [0; 4096], 0).expect("the next call is answered");
    }
}
