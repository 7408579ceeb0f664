//! A host's view of a disk that it shares with others: all of it, or nothing while it is cut off or
//! down.
//!
//! Invariants:
//! - requests made before the host was cut off, or crashed, have their effect as on any disk; the
//!   answer waits until the host is connected again, or is lost;
//! - later requests reach the disk when the host is connected again, as those of an initiator do
//!   that reconnects;
//! - except changes of a disk without reservations requested within [`GRACE`], if another host has
//!   taken the disks over: they fail, and have no effect. An array may have looked at its heartbeat
//!   just before, and does not promise more.

use crate::disk::Disk;
use longhaul_block::{
    BlockDevice, BlockIo, DeviceInfo, IoError, IoFuture, IoResult, Open, ReservationState, Reservations,
    WriteFlags, ZeroFlags,
};
use longhaul_engine::{Buf, BufMut, now, sleep};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long after its last look at a heartbeat an array may write: two
/// heartbeats of two seconds, and what the look took.
const GRACE: Duration = Duration::from_secs(5);
/// How often it is looked whether a host is connected again.
const LOOK: Duration = Duration::from_millis(100);

/// The connection of a host to its disks. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Link(Arc<Mutex<State>>);

#[derive(Clone, Copy, Debug, Default)]
struct State {
    cut: Option<Instant>,
    /// Another host has what this one had.
    taken: bool,
    down: bool,
}

impl Link {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The host reaches no disk any more.
    pub(crate) fn cut(&self) {
        self.state().cut = Some(now());
    }

    /// The host reaches its disks again, which another one has taken over or not.
    pub(crate) fn connect(&self, taken: bool) {
        let mut state = self.state();
        (state.cut, state.taken) = (None, taken);
    }

    /// The host is down for good: nothing that it asks is ever answered.
    pub(crate) fn go_down(&self) {
        self.state().down = true;
    }

    /// Resolves while the host is connected.
    async fn connected(&self) {
        while self.state().cut.is_some() {
            sleep(LOOK).await;
        }
        if self.state().down {
            std::future::pending::<()>().await;
        }
    }
}

/// A disk as one host sees it.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    disk: Disk,
    link: Link,
}

impl Line {
    pub(crate) fn new(disk: &Disk, link: &Link) -> Line {
        Line { disk: disk.clone(), link: link.clone() }
    }
}

impl BlockDevice for Line {
    fn info(&self) -> DeviceInfo {
        self.disk.info()
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move {
            self.link.connected().await;
            let below = self.disk.open().await?;
            let io: Rc<dyn BlockIo> = Rc::new(LineIo { below, link: self.link.clone() });
            Ok(io)
        })
    }
}

struct LineIo {
    below: Rc<dyn BlockIo>,
    link: Link,
}

impl LineIo {
    /// Hands an operation to the disk when the host is connected, or drops it on the
    /// way.
    fn pass<T: Unpin + 'static>(
        &self,
        changes: bool,
        begin: impl FnOnce(&dyn BlockIo) -> IoFuture<T> + 'static,
    ) -> IoFuture<T> {
        let (state, link) = (*self.link.state(), self.link.clone());
        if state.down {
            return IoFuture::new(std::future::pending());
        }
        let answered = |link: Link, operation: IoFuture<T>| async move {
            let result: IoResult<T> = operation.await;
            link.connected().await;
            result
        };
        match state.cut {
            None => IoFuture::new(answered(link, begin(&*self.below))),
            Some(since) => {
                let below = Rc::clone(&self.below);
                let is_late = changes && now() - since < GRACE && below.reservations().is_none();
                IoFuture::new(async move {
                    link.connected().await;
                    if is_late && link.state().taken {
                        return Err(IoError::Unreachable("the host was cut off".into()));
                    }
                    answered(link, begin(&*below)).await
                })
            }
        }
    }
}

impl BlockIo for LineIo {
    fn reservations(&self) -> Option<Rc<dyn Reservations>> {
        let below = self.below.reservations()?;
        let line = LineIo { below: Rc::clone(&self.below), link: self.link.clone() };
        Some(Rc::new(LineReservations { line, below }))
    }

    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        self.pass(false, move |below| below.read(offset, dst))
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        self.pass(true, move |below| below.write(offset, src, flags))
    }

    fn flush(&self) -> IoFuture<()> {
        self.pass(false, |below| below.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.pass(true, move |below| below.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.pass(true, move |below| below.write_zeroes(offset, len, flags))
    }
}

/// The reservation commands of a disk, on the way of one host.
struct LineReservations {
    line: LineIo,
    below: Rc<dyn Reservations>,
}

impl LineReservations {
    fn pass<T: Unpin + 'static>(
        &self,
        begin: impl FnOnce(&dyn Reservations) -> IoFuture<T> + 'static,
    ) -> IoFuture<T> {
        let below = Rc::clone(&self.below);
        self.line.pass(false, move |_| begin(&*below))
    }
}

impl Reservations for LineReservations {
    fn register(&self, key: u64) -> IoFuture<()> {
        self.pass(move |below| below.register(key))
    }

    fn unregister(&self, key: u64) -> IoFuture<()> {
        self.pass(move |below| below.unregister(key))
    }

    fn acquire(&self, key: u64) -> IoFuture<()> {
        self.pass(move |below| below.acquire(key))
    }

    fn preempt(&self, key: u64, other: u64) -> IoFuture<()> {
        self.pass(move |below| below.preempt(key, other))
    }

    fn report(&self) -> IoFuture<ReservationState> {
        self.pass(|below| below.report())
    }
}
