//! Ranges of a device as a device: what a space cuts of a disk.
//!
//! Invariants:
//! - an operation touches the extents that the device had when it began, and nothing else of the disk;
//! - once [`ExtentDevice::remove`] has returned no operation begins, and the extents may be used for
//!   something else when [`ExtentDevice::is_idle`] says so.

use crate::file::begin;
use crate::{
    Advice, BlockDevice, BlockIo, DeviceInfo, IoError, IoFuture, IoResult, Open, WriteFlags, ZeroFlags,
};
use futures_util::future::try_join_all;
use longhaul_engine::{Buf, BufMut, spawn};
use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, PoisonError, RwLock};

/// A range of a device, in bytes: whole blocks of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceExtent {
    /// Offset of the first byte.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Extents of a device, one behind the other. A clone is the same device.
#[derive(Clone)]
pub struct ExtentDevice(Arc<ExtentDeviceInner>);

struct ExtentDeviceInner {
    disk: Arc<dyn BlockDevice>,
    shape: RwLock<ExtentShape>,
    gone: AtomicBool,
    /// Operations that have begun and not ended.
    under_way: AtomicUsize,
}

#[derive(Clone)]
struct ExtentShape {
    info: DeviceInfo,
    extents: Arc<[DeviceExtent]>,
}

/// An operation; it ends when this is dropped.
struct UnderWay(Arc<ExtentDeviceInner>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, SeqCst);
    }
}

impl ExtentDevice {
    /// The extents of `disk` as a device with these properties, whose size is theirs together at most.
    pub fn new(disk: Arc<dyn BlockDevice>, info: DeviceInfo, extents: &[DeviceExtent]) -> ExtentDevice {
        let shape = RwLock::new(ExtentShape { info, extents: extents.into() });
        let (gone, under_way) = (AtomicBool::new(false), AtomicUsize::new(0));
        ExtentDevice(Arc::new(ExtentDeviceInner { disk, shape, gone, under_way }))
    }

    /// It has `size` bytes from now on, in these extents: those that it had, and more behind them.
    pub fn grow(&self, size: u64, extents: &[DeviceExtent]) {
        let mut shape = self.0.shape.write().unwrap_or_else(PoisonError::into_inner);
        shape.info.size = size;
        shape.extents = extents.into();
    }

    /// Refuses all further operations.
    pub fn remove(&self) {
        self.0.gone.store(true, SeqCst);
    }

    /// It was not removed after all.
    pub fn restore(&self) {
        self.0.gone.store(false, SeqCst);
    }

    /// Whether all operations have ended.
    pub fn is_idle(&self) -> bool {
        self.0.under_way.load(SeqCst) == 0
    }
}

impl ExtentDeviceInner {
    fn shape(&self) -> ExtentShape {
        self.shape.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins an operation on a range: its pieces on the disk, in order.
    fn begin(self: &Arc<Self>, offset: u64, len: u64) -> IoResult<(UnderWay, Vec<DeviceExtent>)> {
        // Counted first: a removal that this does not notice waits for it.
        self.under_way.fetch_add(1, SeqCst);
        let operation = UnderWay(Arc::clone(self));
        let shape = self.shape();
        if self.gone.load(SeqCst) {
            return Err(IoError::Offline(format!("{} was removed", shape.info.name)));
        }
        shape.info.check(offset, len)?;
        Ok((operation, pieces(&shape.extents, offset, len)))
    }
}

/// The parts of a range that are in one extent each.
fn pieces(extents: &[DeviceExtent], offset: u64, len: u64) -> Vec<DeviceExtent> {
    let (mut skip, mut left, mut found) = (offset, len, Vec::new());
    for extent in extents {
        if skip >= extent.len {
            skip -= extent.len;
            continue;
        }
        let n = left.min(extent.len - skip);
        if n > 0 {
            found.push(DeviceExtent { at: extent.at + skip, len: n });
        }
        (skip, left) = (0, left - n);
        if left == 0 {
            break;
        }
    }
    found
}

impl std::fmt::Debug for ExtentDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ExtentDevice({})", self.0.shape().info.name)
    }
}

impl BlockDevice for ExtentDevice {
    fn info(&self) -> DeviceInfo {
        self.0.shape().info
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move {
            let io: Rc<dyn BlockIo> =
                Rc::new(ExtentIo { inner: Arc::clone(&self.0), disk: self.0.disk.open().await? });
            Ok(io)
        })
    }
}

struct ExtentIo {
    inner: Arc<ExtentDeviceInner>,
    disk: Rc<dyn BlockIo>,
}

impl ExtentIo {
    /// Starts an operation that runs to its end, also if its future is dropped.
    fn start<T, F>(
        &self,
        offset: u64,
        len: u64,
        run: impl FnOnce(Rc<dyn BlockIo>, Vec<DeviceExtent>) -> F,
    ) -> IoFuture<T>
    where
        T: Unpin + 'static,
        F: Future<Output = IoResult<T>> + 'static,
    {
        match self.inner.begin(offset, len) {
            Ok((operation, pieces)) => {
                let running = run(Rc::clone(&self.disk), pieces);
                let counted = async move {
                    let _operation = operation;
                    running.await
                };
                begin(counted, |rest| spawn(rest).detach())
            }
            Err(e) => IoFuture::ready(Err(e)),
        }
    }

    /// The same operation on each piece.
    fn on_each(
        &self,
        offset: u64,
        len: u64,
        run: impl Fn(&dyn BlockIo, DeviceExtent) -> IoFuture<()> + 'static,
    ) -> IoFuture<()> {
        self.start(offset, len, |disk, pieces| {
            let operations: Vec<_> = pieces.into_iter().map(|piece| run(&*disk, piece)).collect();
            async move { try_join_all(operations).await.map(drop) }
        })
    }
}

impl BlockIo for ExtentIo {
    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        let len = dst.len() as u64;
        self.start(offset, len, |disk, pieces| async move {
            if let [piece] = &pieces[..] {
                return disk.read(piece.at, dst).await;
            }
            // Seldom: extents are large.
            let reads = pieces.iter().map(|piece| disk.read(piece.at, BufMut::zeroed(piece.len as usize)));
            let (mut dst, mut done) = (dst, 0);
            for part in try_join_all(reads).await? {
                dst[done..done + part.len()].copy_from_slice(&part);
                done += part.len();
            }
            Ok(dst)
        })
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        let len = src.len() as u64;
        self.start(offset, len, |disk, pieces| {
            let mut done = 0;
            let write = |piece: DeviceExtent| {
                let part = src.slice(done..done + piece.len as usize);
                done += part.len();
                disk.write(piece.at, part, flags)
            };
            let writes: Vec<_> = pieces.into_iter().map(write).collect();
            async move { try_join_all(writes).await.map(drop) }
        })
    }

    fn flush(&self) -> IoFuture<()> {
        self.start(0, 0, |disk, _| async move { disk.flush().await })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.on_each(offset, len, |disk, piece| disk.discard(piece.at, piece.len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.on_each(offset, len, move |disk, piece| disk.write_zeroes(piece.at, piece.len, flags))
    }

    fn advice(&self) -> Option<Advice> {
        self.disk.advice()
    }

    fn generation(&self) -> u64 {
        self.disk.generation()
    }

    fn may_forget(&self) -> bool {
        self.disk.may_forget()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FaultDisk, done, open};

    const KIB: u64 = 1 << 10;

    fn device(disk: &FaultDisk) -> ExtentDevice {
        let extents =
            [DeviceExtent { at: 64 * KIB, len: 8 * KIB }, DeviceExtent { at: 16 * KIB, len: 4 * KIB }];
        let info = DeviceInfo { name: "part".into(), size: 12 * KIB, ..disk.info() };
        ExtentDevice::new(Arc::new(disk.clone()), info, &extents)
    }

    #[test]
    fn a_range_is_found_in_its_extents() {
        let extents = [(100, 10), (50, 5), (200, 20)].map(|(at, len)| DeviceExtent { at, len });
        let found = |offset, len| -> Vec<(u64, u64)> {
            pieces(&extents, offset, len).into_iter().map(|piece| (piece.at, piece.len)).collect()
        };
        assert_eq!(found(0, 10), [(100, 10)]);
        assert_eq!(found(8, 8), [(108, 2), (50, 5), (200, 1)]);
        assert_eq!(found(34, 1), [(219, 1)]);
        assert_eq!(found(0, 0), []);
    }

    #[test]
    fn content_goes_to_the_extents_and_nowhere_else() {
        let disk = FaultDisk::new(128 * KIB);
        let device = device(&disk);
        let io = open(&device);
        let bytes: Vec<u8> = (0..12 * KIB).map(|n| (n / 512) as u8 + 1).collect();
        done(io.write(0, Buf::copy_of(&bytes), WriteFlags::default())).expect("written");
        assert_eq!(disk.content(64 * KIB..72 * KIB), bytes[..8 << 10]);
        assert_eq!(disk.content(16 * KIB..20 * KIB), bytes[8 << 10..]);
        let part = done(io.read(7 * KIB, BufMut::zeroed(2 << 10))).expect("read");
        assert_eq!(part[..], bytes[7 << 10..9 << 10]);
        let past = done(io.read(12 * KIB, BufMut::zeroed(512))).expect_err("past the end");
        assert!(matches!(past, IoError::OutOfRange { .. }), "{past}");
        done(io.write_zeroes(4 * KIB, 8 * KIB, ZeroFlags::default())).expect("zeroed");
        assert!(
            disk.content(68 * KIB..72 * KIB).iter().chain(&disk.content(16 * KIB..20 * KIB)).all(|b| *b == 0)
        );
        assert!(disk.content(20 * KIB..64 * KIB).iter().all(|byte| *byte == 0), "between them");
        let larger = [64, 16, 96].map(|at| DeviceExtent { at: at * KIB, len: 4 * KIB });
        device.grow(12 * KIB, &larger);
        done(io.write(8 * KIB, Buf::copy_of(&[9; 512]), WriteFlags::default())).expect("written");
        assert_eq!(disk.content(96 * KIB..96 * KIB + 512), [9; 512]);
    }

    #[test]
    fn what_was_removed_refuses_and_says_when_its_operations_have_ended() {
        longhaul_engine::Engine::new(&longhaul_engine::Config::default()).expect("engine").block_on(async {
            let disk = FaultDisk::new(128 * KIB);
            let device = device(&disk);
            let io = device.open().await.expect("opened");
            disk.hold(crate::filter::OpKind::Write, 1);
            let held = io.write(0, Buf::copy_of(&[1; 512]), WriteFlags::default());
            assert!(!device.is_idle());
            device.remove();
            let refused = io.read(0, BufMut::zeroed(512)).await.expect_err("removed").to_string();
            assert!(refused.contains("was removed"), "{refused}");
            assert!(!device.is_idle(), "its write is under way");
            disk.release();
            held.await.expect("written");
            assert!(device.is_idle());
        });
    }
}
