//! A disk in memory that takes time, fails on request, and loses writes under way when the power
//! fails.

use fastrand::Rng;
use longhaul_block::{
    BlockDevice, BlockIo, DeviceInfo, IoError, IoFuture, IoResult, Open, WriteFlags, ZeroFlags,
};
use longhaul_engine::{Buf, BufMut, now, sleep, spawn};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SECTOR: usize = 512;

/// The power supply of all disks.
pub struct Power {
    /// Writes left until the power fails; see `light`.
    pub fuse: AtomicU64,
    /// The power has failed: operations never end.
    pub off: AtomicBool,
    pub random: Mutex<Rng>,
    /// Bytes of reads under way on all disks, and their maximum.
    pub reading: AtomicU64,
    pub reading_most: AtomicU64,
    pub changed: Mutex<Vec<std::task::Waker>>,
}

impl Default for Power {
    fn default() -> Power {
        Power {
            fuse: AtomicU64::new(u64::MAX),
            off: AtomicBool::new(false),
            random: Mutex::new(Rng::with_seed(1)),
            reading: AtomicU64::new(0),
            reading_most: AtomicU64::new(0),
            changed: Mutex::default(),
        }
    }
}

impl Power {
    /// Lets the power fail after this many more writes.
    pub fn light(&self, writes: u64, seed: u64) {
        self.fuse.store(writes, SeqCst);
        *self.random.lock().unwrap() = Rng::with_seed(seed);
    }

    pub fn restore(&self) {
        self.fuse.store(u64::MAX, SeqCst);
        self.off.store(false, SeqCst);
    }

    pub fn is_off(&self) -> bool {
        self.off.load(SeqCst)
    }

    fn burn(&self) {
        let left = self.fuse.load(SeqCst);
        if left == u64::MAX {
            return;
        }
        if left == 0 {
            self.off.store(true, SeqCst);
            self.changed.lock().unwrap().drain(..).for_each(std::task::Waker::wake);
        } else {
            self.fuse.store(left - 1, SeqCst);
        }
    }

    fn roll(&self, n: u64) -> u64 {
        self.random.lock().unwrap().u64(..n)
    }

    /// Resolves when the power fails.
    pub async fn lost(&self) {
        std::future::poll_fn(|cx| {
            if self.is_off() {
                return std::task::Poll::Ready(());
            }
            self.changed.lock().unwrap().push(cx.waker().clone());
            std::task::Poll::Pending
        })
        .await;
    }
}

pub struct Disk {
    inner: Arc<Inner>,
}

pub struct Inner {
    /// Everything but the size, which may grow.
    info: DeviceInfo,
    size: AtomicU64,
    content: Mutex<Vec<u8>>,
    kept: Mutex<Option<(u64, Vec<u8>)>>,
    power: Arc<Power>,
    /// Every operation fails as unreachable.
    pub unreachable: AtomicBool,
    /// Operations wait as long as this is set.
    pub silent: AtomicBool,
    /// Since when the disk reports itself as unreachable.
    pub disconnected: Mutex<Option<Instant>>,
    /// Every write fails.
    pub worn: AtomicBool,
    /// Added to each operation, in microseconds.
    pub slow: AtomicU64,
    /// Old content of unflushed writes.
    cache: Mutex<Vec<Cached>>,
    cached: AtomicU64,
    /// Advice that the disk gives.
    pub advice: Mutex<Option<longhaul_block::Advice>>,
    /// See [`BlockIo::generation`].
    pub generation: AtomicU64,
    /// Writes that begin in this range are silently lost.
    pub forgets: Mutex<std::ops::Range<u64>>,
    /// Sectors that fail each read until they are written, by number.
    pub bad: Mutex<BTreeSet<u64>>,
    pub reads: AtomicU64,
    pub read_bytes: AtomicU64,
    pub writes: AtomicU64,
    /// Bytes of write zeroes.
    pub zeroed: AtomicU64,
}

/// An unflushed write.
struct Cached {
    number: u64,
    at: usize,
    /// Content before the write.
    before: Vec<u8>,
}

impl std::ops::Deref for Disk {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl Disk {
    pub fn new(name: &str, size: u64, power: &Arc<Power>) -> Disk {
        Disk::with_cache(name, size, power, false)
    }

    /// A disk with a volatile cache, if `volatile_cache`.
    pub fn with_cache(name: &str, size: u64, power: &Arc<Power>, volatile_cache: bool) -> Disk {
        let info = DeviceInfo {
            name: name.into(),
            size,
            block_size: 512,
            max_io: 256 << 10,
            optimal_io: 0,
            read_only: false,
            volatile_cache,
            discard: true,
            uuid: None,
        };
        Disk {
            inner: Arc::new(Inner {
                info,
                size: AtomicU64::new(size),
                content: Mutex::new(vec![0xA5; size as usize]),
                kept: Mutex::default(),
                power: Arc::clone(power),
                unreachable: AtomicBool::new(false),
                silent: AtomicBool::new(false),
                disconnected: Mutex::default(),
                worn: AtomicBool::new(false),
                slow: AtomicU64::new(0),
                cache: Mutex::default(),
                cached: AtomicU64::new(0),
                advice: Mutex::default(),
                generation: AtomicU64::new(0),
                forgets: Mutex::new(0..0),
                bad: Mutex::default(),
                reads: AtomicU64::new(0),
                read_bytes: AtomicU64::new(0),
                writes: AtomicU64::new(0),
                zeroed: AtomicU64::new(0),
            }),
        }
    }

    /// The first `size` bytes as another disk.
    pub fn cut(&self, name: &str, size: u64) -> Disk {
        let disk = Disk::new(name, size, &self.power);
        disk.content.lock().unwrap().copy_from_slice(&self.peek(0, size as usize));
        disk
    }

    /// Loses unflushed writes as in a power failure, and returns at once.
    pub fn lose_cache(&self) {
        let mut content = self.content.lock().unwrap();
        for Cached { at, before, .. } in self.cache.lock().unwrap().drain(..).rev() {
            content[at..at + before.len()].copy_from_slice(&before);
        }
        self.generation.fetch_add(1, SeqCst);
    }

    /// Loses its connection, and reports it; operations wait.
    pub fn disconnect(&self) {
        *self.disconnected.lock().unwrap() = Some(now());
        self.silent.store(true, SeqCst);
    }

    /// Reconnects, and completes waiting operations.
    pub fn reconnect(&self) {
        *self.disconnected.lock().unwrap() = None;
        self.silent.store(false, SeqCst);
    }

    /// Becomes larger; what is added has other content than zeroes.
    pub fn grow(&self, size: u64) {
        self.content.lock().unwrap().resize(size as usize, 0xA5);
        self.size.store(size, SeqCst);
    }

    /// Changes a byte without a write.
    pub fn flip(&self, at: u64) {
        self.content.lock().unwrap()[at as usize] ^= 0x40;
    }

    /// Saves the content of a range, for [`give_back`](Self::give_back).
    pub fn keep(&self, at: u64, len: u64) {
        *self.kept.lock().unwrap() = Some((at, self.peek(at, len as usize)));
    }

    /// Restores the saved content without a write.
    pub fn give_back(&self) {
        let (at, bytes) = self.kept.lock().unwrap().take().expect("kept");
        self.content.lock().unwrap()[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
    }

    pub fn peek(&self, at: u64, len: usize) -> Vec<u8> {
        self.content.lock().unwrap()[at as usize..at as usize + len].to_vec()
    }

    /// First offset from `from` on whose sector begins with `bytes`.
    pub fn find(&self, from: u64, bytes: &[u8]) -> Option<u64> {
        let content = self.content.lock().unwrap();
        (from as usize..content.len() - bytes.len())
            .step_by(SECTOR)
            .find(|at| content[*at..].starts_with(bytes))
            .map(|at| at as u64)
    }
}

impl Inner {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { size: self.size.load(SeqCst), ..self.info.clone() }
    }

    /// Saves the content that a cached write changes; with `fua` the write is durable.
    fn keep(&self, at: usize, bytes: &[u8], fua: bool) {
        let mut cache = self.cache.lock().unwrap();
        if !fua {
            let before = self.content.lock().unwrap()[at..at + bytes.len()].to_vec();
            cache.push(Cached { number: self.cached.fetch_add(1, SeqCst), at, before });
            return;
        }
        for old in cache.iter_mut() {
            let (from, to) = (at.max(old.at), (at + bytes.len()).min(old.at + old.before.len()));
            if from < to {
                old.before[from - old.at..to - old.at].copy_from_slice(&bytes[from - at..to - at]);
            }
        }
    }

    async fn delay(&self) -> IoResult<()> {
        let time = 50 + self.power.roll(150) + self.slow.load(SeqCst);
        sleep(Duration::from_micros(time)).await;
        // Operations on a silent disk are completed later, when it answers again.
        while self.silent.load(SeqCst) && !self.power.is_off() {
            sleep(Duration::from_millis(100)).await;
        }
        if self.power.is_off() {
            std::future::pending::<()>().await;
        }
        if self.unreachable.load(SeqCst) { Err(IoError::Unreachable("pulled out".into())) } else { Ok(()) }
    }

    /// Stores bytes; if the power fails in the middle, some of their sectors.
    async fn store(&self, offset: u64, bytes: &[u8], fua: bool) -> IoResult<()> {
        self.writes.fetch_add(1, SeqCst);
        if !self.power.is_off() {
            self.power.burn();
        }
        self.delay_or_tear(offset, bytes, fua).await
    }

    async fn delay_or_tear(&self, offset: u64, bytes: &[u8], fua: bool) -> IoResult<()> {
        let torn = Torn { disk: self, offset, bytes, armed: true };
        let answer = self.delay().await;
        let mut torn = torn;
        torn.armed = false;
        answer?;
        if self.worn.load(SeqCst) {
            return Err(IoError::Medium("worn out".into()));
        }
        if self.forgets.lock().unwrap().contains(&offset) {
            return Ok(());
        }
        let at = offset as usize;
        if self.info.volatile_cache {
            self.keep(at, bytes, fua);
        }
        self.content.lock().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
        let sectors = offset / SECTOR as u64..(offset + bytes.len() as u64) / SECTOR as u64;
        self.bad.lock().unwrap().retain(|sector| !sectors.contains(sector));
        Ok(())
    }
}

/// A write under way: if the power fails before it ends, none, all or some of its sectors are on
/// the medium.
struct Torn<'a> {
    disk: &'a Inner,
    offset: u64,
    bytes: &'a [u8],
    armed: bool,
}

impl Drop for Torn<'_> {
    fn drop(&mut self) {
        if !self.armed || !self.disk.power.is_off() {
            return;
        }
        let choice = self.disk.power.roll(3);
        let mut content = self.disk.content.lock().unwrap();
        for (number, sector) in self.bytes.chunks(SECTOR).enumerate() {
            let lands = match choice {
                0 => false,
                1 => true,
                _ => self.disk.power.roll(2) == 0,
            };
            if lands {
                let at = self.offset as usize + number * SECTOR;
                content[at..at + sector.len()].copy_from_slice(sector);
            }
        }
    }
}

impl BlockDevice for Disk {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move {
            self.inner.delay().await?;
            let io: Rc<dyn BlockIo> = Rc::new(Io(Arc::clone(&self.inner)));
            Ok(io)
        })
    }
}

struct Io(Arc<Inner>);

/// Runs to the end also if its future is dropped.
pub fn go<T: Unpin + 'static>(future: impl Future<Output = IoResult<T>> + 'static) -> IoFuture<T> {
    let (done, result) = futures_channel::oneshot::channel();
    spawn(async move { drop(done.send(future.await)) }).detach();
    IoFuture::new(async move { result.await.unwrap_or(Err(IoError::Aborted)) })
}

impl BlockIo for Io {
    fn read(&self, offset: u64, mut dst: BufMut) -> IoFuture<BufMut> {
        let disk = Arc::clone(&self.0);
        if let Err(e) = disk.info().check(offset, dst.len() as u64) {
            return IoFuture::ready(Err(e));
        }
        assert!(dst.len() <= disk.info.max_io as usize);
        go(async move {
            disk.reads.fetch_add(1, SeqCst);
            let bytes = dst.len() as u64;
            disk.read_bytes.fetch_add(bytes, SeqCst);
            let reading = disk.power.reading.fetch_add(bytes, SeqCst) + bytes;
            disk.power.reading_most.fetch_max(reading, SeqCst);
            let answer = disk.delay().await;
            disk.power.reading.fetch_sub(bytes, SeqCst);
            answer?;
            let sectors = offset / SECTOR as u64..(offset + dst.len() as u64) / SECTOR as u64;
            if disk.bad.lock().unwrap().range(sectors).next().is_some() {
                return Err(IoError::Medium("unreadable sector".into()));
            }
            let at = offset as usize;
            let len = dst.len();
            dst.copy_from_slice(&disk.content.lock().unwrap()[at..at + len]);
            Ok(dst)
        })
    }

    fn advice(&self) -> Option<longhaul_block::Advice> {
        *self.0.advice.lock().unwrap()
    }

    fn generation(&self) -> u64 {
        self.0.generation.load(SeqCst)
    }

    fn away_since(&self) -> Option<Instant> {
        *self.0.disconnected.lock().unwrap()
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        let disk = Arc::clone(&self.0);
        if let Err(e) = disk.info().check(offset, src.len() as u64) {
            return IoFuture::ready(Err(e));
        }
        assert!(src.len() <= disk.info.max_io as usize);
        go(async move { disk.store(offset, &src, flags.fua).await })
    }

    fn flush(&self) -> IoFuture<()> {
        let disk = Arc::clone(&self.0);
        go(async move {
            let end = disk.cached.load(SeqCst);
            let generation = disk.generation.load(SeqCst);
            disk.delay().await?;
            if disk.generation.load(SeqCst) == generation {
                disk.cache.lock().unwrap().retain(|cached| cached.number >= end);
            }
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        IoFuture::ready(self.0.info().check(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _flags: ZeroFlags) -> IoFuture<()> {
        let disk = Arc::clone(&self.0);
        if let Err(e) = disk.info().check(offset, len) {
            return IoFuture::ready(Err(e));
        }
        go(async move {
            disk.zeroed.fetch_add(len, SeqCst);
            let zeroes = vec![0; len as usize];
            disk.store(offset, &zeroes, false).await
        })
    }
}
