//! A [`Served`](crate::served::Served) device as a `BlockDevice`, for front ends that take one.

use crate::served::{Request, Requests};
use futures_channel::oneshot;
use longhaul_block::{
    BlockDevice, BlockIo, DeviceInfo, IoError, IoFuture, IoResult, Open, WriteFlags, ZeroFlags,
};
use longhaul_cache::ErrorCursor;
use longhaul_engine::{Buf, BufMut};
use std::rc::Rc;
use std::sync::Arc;

/// A device whose I/O is done on another thread, with its read-ahead and write-behind.
pub(crate) struct Local(Arc<dyn Requests>);

impl Local {
    pub(crate) fn new(requests: Arc<dyn Requests>) -> Local {
        Local(requests)
    }
}

impl BlockDevice for Local {
    fn info(&self) -> DeviceInfo {
        // Writes that are not flushed are lost with this process.
        DeviceInfo { volatile_cache: true, ..self.0.info() }
    }

    fn open(&self) -> Open<'_> {
        let (requests, told) = (Arc::clone(&self.0), self.0.handle());
        Box::pin(async move { Ok(Rc::new(LocalIo { requests, told }) as Rc<dyn BlockIo>) })
    }
}

struct LocalIo {
    requests: Arc<dyn Requests>,
    told: Arc<ErrorCursor>,
}

impl LocalIo {
    /// Starts a request at once: requests are ordered by the time of this call.
    fn start(&self, request: Request) -> oneshot::Receiver<IoResult<Buf>> {
        let (tell, told) = oneshot::channel();
        // The caller may have dropped its future.
        self.requests.start(request, Box::new(move |result| drop(tell.send(result))));
        told
    }

    fn done(&self, request: Request) -> IoFuture<()> {
        let answer = self.start(request);
        IoFuture::new(async move { ended(answer.await).map(drop) })
    }
}

/// The error of a flush that is not to be repeated: it may be that of a lost write, which is reported once, and
/// the next flush would succeed.
fn final_error(e: IoError) -> IoError {
    match e {
        e if e.is_out_of_reach() || e == IoError::Aborted => IoError::Medium(e.to_string()),
        e => e,
    }
}

fn ended(answer: Result<IoResult<Buf>, oneshot::Canceled>) -> IoResult<Buf> {
    answer.unwrap_or(Err(IoError::Aborted))
}

impl BlockIo for LocalIo {
    fn read(&self, offset: u64, mut dst: BufMut) -> IoFuture<BufMut> {
        let answer = self.start(Request::Read { offset, len: dst.len() as u64 });
        IoFuture::new(async move {
            let bytes = ended(answer.await)?;
            dst.copy_from_slice(&bytes);
            Ok(dst)
        })
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        // A copy, since it may be kept until the next flush, and `src` belongs to a target that
        // needs it for the next receive.
        self.done(Request::Write { offset, data: Buf::copy_of(&src), fua: flags.fua })
    }

    fn flush(&self) -> IoFuture<()> {
        let flushed = self.done(Request::Flush(Arc::clone(&self.told)));
        IoFuture::new(async move { flushed.await.map_err(final_error) })
    }

    fn may_forget(&self) -> bool {
        // The thread that does the I/O keeps unflushed writes, in case the device loses them.
        false
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.done(Request::Discard { offset, len })
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.done(Request::Zero { offset, len, flags })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Served;
    use longhaul_block::MemDevice;
    use longhaul_block::filter::OpKind;
    use longhaul_block::testing::{Fault, FaultDisk, FaultRule};
    use longhaul_engine::{Config, Engine};

    const SIZE: u64 = 1 << 20;

    #[test]
    fn it_does_what_is_asked_in_its_order_and_promises_no_more() {
        let memory = Arc::new(MemDevice::new(SIZE, 4096).expect("memory"));
        let served = Served::open(memory, Config::default(), SIZE).expect("served");
        let local = Local::new(Arc::new(served));
        assert!(local.info().volatile_cache, "it is written behind");
        let engine = Engine::new(&Config::default()).expect("an engine");
        engine.block_on(async {
            let io = local.open().await.expect("opened");
            let write = |byte: u8| io.write(4096, Buf::copy_of(&[byte; 8192]), WriteFlags::default());
            // Started together: the result of the last one counts.
            let (one, two) = (write(1), write(2));
            let read = io.read(4096, BufMut::zeroed(8192));
            one.await.expect("written");
            two.await.expect("written");
            assert!(read.await.expect("read").iter().all(|&byte| byte == 2));
            io.flush().await.expect("durable");
            let flags = ZeroFlags { fua: false, may_deallocate: true };
            io.write_zeroes(4096, 4096, flags).await.expect("zeroed");
            let back = io.read(4096, BufMut::zeroed(8192)).await.expect("read");
            assert!(back[..4096].iter().all(|&byte| byte == 0) && back[4096..].iter().all(|&byte| byte == 2));
            io.discard(0, SIZE).await.expect("discarded");
            let past = io.read(SIZE, BufMut::zeroed(4096)).await;
            assert!(matches!(past, Err(IoError::OutOfRange { .. })), "{past:?}");
        });
    }

    #[test]
    fn a_loss_is_heard_on_a_queue_that_begins_after_it_and_is_final() {
        let disk = FaultDisk::new(SIZE);
        let away = Fault::Error(IoError::Unreachable("no route".into()));
        disk.inject(FaultRule::new(OpKind::Write, away));
        let served = Served::open(Arc::new(disk), Config::default(), SIZE).expect("served");
        let local = Local::new(Arc::new(served));
        let engine = Engine::new(&Config::default()).expect("an engine");
        engine.block_on(async {
            let io = local.open().await.expect("opened");
            io.write(0, Buf::copy_of(&[1; 4096]), WriteFlags::default()).await.expect("taken");
            // It waits for the write, which is lost then.
            let read = io.read(0, BufMut::zeroed(4096)).await.expect("read");
            assert!(read.iter().all(|&byte| byte == 0));
            let later = local.open().await.expect("opened");
            let flushed = later.flush().await;
            assert!(matches!(flushed, Err(IoError::Medium(_))), "{flushed:?}");
            assert_eq!(later.flush().await, Ok(()));
        });
    }
}
