//! Flushes that fail, and what each handle hears of them.

use super::*;
use longhaul_block::filter::OpKind;
use longhaul_block::testing::{Fault, FaultDisk, FaultRule};
use longhaul_block::{IoFuture, Open, WriteFlags};
use longhaul_engine::{Config, Engine};

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
