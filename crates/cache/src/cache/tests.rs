//! Flushes that fail, and what each handle hears of them.

use super::*;
use longhaul_block::filter::OpKind;
use longhaul_block::testing::{Fault, FaultDisk, FaultRule};
use longhaul_block::{IoFuture, Open, WriteFlags};
use longhaul_engine::{Config, Engine, Task, spawn, yield_now};

const MIB: u64 = 1 << 20;

fn on_engine<T>(future: impl Future<Output = T>) -> T {
    Engine::new(&Config::default()).expect("engine").block_on(future)
}

/// A disk that keeps what it has not made durable by itself, as a file does.
struct Keeping(FaultDisk);

impl BlockDevice for Keeping {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async { Ok(Rc::new(KeepingIo(self.0.open().await?)) as Rc<dyn BlockIo>) })
    }
}

struct KeepingIo(Rc<dyn BlockIo>);

impl BlockIo for KeepingIo {
    fn may_forget(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        self.0.read(offset, dst)
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        self.0.write(offset, src, flags)
    }

    fn flush(&self) -> IoFuture<()> {
        self.0.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.0.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.0.write_zeroes(offset, len, flags)
    }
}

fn fail_once(disk: &FaultDisk, kind: OpKind, error: IoError) {
    disk.inject(FaultRule::new(kind, Fault::Error(error)).times(1));
}

fn worn() -> IoError {
    IoError::Medium("worn".into())
}

fn bytes(byte: u8) -> Buf {
    Buf::copy_of(&[byte; 4096])
}

#[test]
fn each_handle_hears_of_a_failed_flush_where_nothing_is_kept() {
    on_engine(async {
        let (disk, losses) = (FaultDisk::new(MIB), Losses::default());
        let device = Arc::new(Keeping(disk.clone()));
        let cache = Cache::open(device, MIB, losses.clone()).await.expect("opened");
        let (one, two) = (losses.handle(), losses.handle());
        cache.write(0, bytes(1), false).await.expect("taken");
        fail_once(&disk, OpKind::Flush, worn());
        assert_eq!(cache.flush(&one).await, Err(worn()));
        assert_eq!(cache.flush(&one).await, Ok(()), "the error is returned once");
        assert_eq!(cache.flush(&two).await, Err(worn()), "its writes may be lost as well");
        assert_eq!(cache.flush(&two).await, Ok(()));

        // A durable change meets the failures of other changes, as a flush does.
        let flags = ZeroFlags { fua: true, may_deallocate: false };
        for zeroes in [false, true] {
            cache.write(0, bytes(1), false).await.expect("taken");
            let kind = if zeroes { OpKind::WriteZeroes } else { OpKind::Write };
            cache.drain(&one).await.expect("with the device");
            fail_once(&disk, kind, worn());
            let failed = match zeroes {
                true => cache.write_zeroes(8192, 4096, flags).await,
                false => cache.write(8192, bytes(2), true).await,
            };
            assert_eq!(failed, Err(worn()));
            assert_eq!(cache.flush(&two).await, Err(worn()), "zeroes: {zeroes}");
            assert_eq!(cache.flush(&one).await, Err(worn()), "zeroes: {zeroes}");
            assert_eq!(cache.flush(&two).await, Ok(()));
        }

        // The device still has everything.
        fail_once(&disk, OpKind::Flush, IoError::Offline("halted".into()));
        assert_eq!(cache.flush(&one).await, Err(IoError::Offline("halted".into())));
        assert_eq!(cache.flush(&two).await, Ok(()));
    });
}

/// A disk, its cache with a write in it, and a flush that fails once the disk is released, as the first of `held`
/// flushes that wait for that.
async fn failing_flush(held: usize) -> (FaultDisk, Rc<Cache>, Losses, Task<IoResult<()>>) {
    let (disk, losses) = (FaultDisk::new(MIB), Losses::default());
    let cache = Cache::open(Arc::new(disk.clone()), MIB, losses.clone()).await.expect("opened");
    let cache = Rc::new(cache);
    cache.write(0, bytes(1), false).await.expect("taken");
    fail_once(&disk, OpKind::Flush, worn());
    disk.hold(OpKind::Flush, held);
    let first = begin_flush(&disk, &cache, &losses).await;
    (disk, cache, losses, first)
}

async fn begin_flush(disk: &FaultDisk, cache: &Rc<Cache>, losses: &Losses) -> Task<IoResult<()>> {
    let (held, cache, cursor) = (disk.held(), Rc::clone(cache), losses.handle());
    let flush = spawn(async move { cache.flush(&cursor).await });
    while disk.held() == held {
        yield_now().await;
    }
    flush
}

#[test]
fn what_came_to_the_device_while_a_flush_failed_is_sent_again() {
    on_engine(async {
        let (disk, cache, losses, first) = failing_flush(1).await;
        cache.write(4096, bytes(2), false).await.expect("taken");
        cache.drain(&losses.handle()).await.expect("with the device");
        // As a file does, it loses what it cannot make durable.
        disk.forget();
        disk.release();
        assert_eq!(first.await, Err(worn()));
        cache.flush(&losses.handle()).await.expect("durable");
        disk.forget();
        assert_eq!((disk.content(0..1), disk.content(4096..4097)), (vec![1], vec![2]));
    });
}

#[test]
fn a_flush_does_not_succeed_without_what_another_one_has_lost() {
    on_engine(async {
        let (disk, cache, losses, first) = failing_flush(2).await;
        let second = begin_flush(&disk, &cache, &losses).await;
        disk.forget();
        disk.release();
        assert_eq!(first.await, Err(worn()));
        assert_eq!(second.await, Ok(()));
        disk.forget();
        assert_eq!(disk.content(0..4096), [1; 4096]);
    });
}
