//! For tests of users of devices: a disk that fails on request, and that hosts share.

mod fault_disk;
mod reservations;

#[cfg(test)]
pub(crate) use at_once::{done, now, open};
pub use fault_disk::{DiskCounts, Fault, FaultDisk, FaultRule, Operation};
pub use reservations::ReservationTable;

#[cfg(test)]
mod at_once {
    use crate::{BlockDevice, BlockIo, IoFuture, IoResult};
    use std::pin::Pin;
    use std::rc::Rc;
    use std::task::{Context, Poll, Waker};

    /// Polls once: for futures that never wait.
    pub(crate) fn now<T>(mut future: Pin<Box<dyn Future<Output = T> + '_>>) -> T {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("the operation is under way"),
        }
    }

    /// Opens a device that opens at once.
    pub(crate) fn open(device: &dyn BlockDevice) -> Rc<dyn BlockIo> {
        now(device.open()).expect("opened")
    }

    /// The result of an operation that is done at once.
    pub(crate) fn done<T: Unpin + 'static>(future: IoFuture<T>) -> IoResult<T> {
        now(Box::pin(future))
    }
}
