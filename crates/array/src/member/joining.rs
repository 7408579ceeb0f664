//! The I/O of a device that is prepared to become a member, or a spare: no operation takes longer than the
//! timeout of a member, since whatever prepares the device holds locks, or is the upkeep of the array.
//!
//! Invariant: `under_way` counts the operations that have not ended, also after their time-out. They may
//! land late, so the device is not prepared again before they have ended ([`Joining::is_left`]).

use longhaul_block::{Advice, BlockIo, IoError, IoFuture, IoResult, Reservations, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut, spawn, timeout};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Names of devices that were prepared, and how many operations of that have not ended.
#[derive(Default)]
pub(crate) struct Joining {
    devices: RefCell<Vec<(String, Rc<Cell<usize>>)>>,
}

impl Joining {
    /// The I/O of a device for its preparation, each operation within `limit`.
    pub(crate) fn io(&self, device: &str, io: &Rc<dyn BlockIo>, limit: Duration) -> Rc<dyn BlockIo> {
        let under_way = Rc::default();
        self.devices.borrow_mut().push((device.to_owned(), Rc::clone(&under_way)));
        Rc::new(JoiningIo { io: Rc::clone(io), limit, under_way })
    }

    /// Whether operations of an earlier preparation of this device have not ended.
    pub(crate) fn is_left(&self, device: &str) -> bool {
        let mut devices = self.devices.borrow_mut();
        // One that has a single owner is prepared no more.
        devices.retain(|(_, under_way)| under_way.get() > 0 || Rc::strong_count(under_way) > 1);
        devices.iter().any(|(name, under_way)| name == device && under_way.get() > 0)
    }
}

/// Counts an operation that is under way.
struct CountedOperation(Rc<Cell<usize>>);

impl CountedOperation {
    fn begin(under_way: &Rc<Cell<usize>>) -> CountedOperation {
        under_way.set(under_way.get() + 1);
        CountedOperation(Rc::clone(under_way))
    }
}

impl Drop for CountedOperation {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

struct JoiningIo {
    io: Rc<dyn BlockIo>,
    limit: Duration,
    under_way: Rc<Cell<usize>>,
}

impl JoiningIo {
    fn in_time<T: Unpin + 'static>(&self, operation: IoFuture<T>) -> IoFuture<T> {
        let (limit, counted) = (self.limit, CountedOperation::begin(&self.under_way));
        IoFuture::new(async move {
            let mut task = spawn(async move {
                let _counted = counted;
                operation.await
            });
            let ended: Result<IoResult<T>, _> = timeout(limit, &mut task).await;
            ended.unwrap_or_else(|_| {
                task.detach();
                let limit = limit.as_secs_f64();
                Err(IoError::Unreachable(format!("the device did not answer in {limit:.1} s")))
            })
        })
    }
}

impl BlockIo for JoiningIo {
    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        self.in_time(self.io.read(offset, dst))
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        self.in_time(self.io.write(offset, src, flags))
    }

    fn flush(&self) -> IoFuture<()> {
        self.in_time(self.io.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.in_time(self.io.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.in_time(self.io.write_zeroes(offset, len, flags))
    }

    fn advice(&self) -> Option<Advice> {
        self.io.advice()
    }

    fn generation(&self) -> u64 {
        self.io.generation()
    }

    fn may_forget(&self) -> bool {
        self.io.may_forget()
    }

    fn away_since(&self) -> Option<Instant> {
        self.io.away_since()
    }

    fn reservations(&self) -> Option<Rc<dyn Reservations>> {
        self.io.reservations()
    }
}
