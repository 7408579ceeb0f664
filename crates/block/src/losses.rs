//! Reports writes that a device lost after it had acknowledged them as errors of a flush.
//!
//! A remote device, or a stripe over such devices, can lose a volatile cache without an error: only
//! its [`generation`](BlockIo::generation) changes. Front ends that keep unflushed writes resend
//! them; all other users get an error from this filter: a flush fails if any write since the last
//! successful flush went to a generation that has ended.
//!
//! Invariants:
//! - a flush succeeds only if all writes that ended before it began went to the generation that the
//!   device has when the flush has ended;
//! - all users of the device share its unflushed writes: a flush by one covers the writes of all,
//!   and concurrent flushes all report the same loss;
//! - a flush that failed, or was given up, covers nothing.

use crate::{
    Advice, BlockDevice, BlockIo, DeviceInfo, IoError, IoFuture, IoResult, Open, Reservations, WriteFlags,
    ZeroFlags,
};
use longhaul_engine::{Buf, BufMut, Segment};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A device whose flush fails after a loss.
pub struct TellsLosses {
    inner: Arc<dyn BlockDevice>,
    unflushed: Arc<Mutex<Generations>>,
}

/// Generations that hold writes which are not durable.
#[derive(Debug, Default)]
struct Generations {
    /// Of writes that no flush under way covers: that from before the first of them.
    open: Option<u64>,
    /// Those that flushes under way cover, by the number of the flush.
    covered: Vec<(u64, u64)>,
    flushes: u64,
}

impl Generations {
    /// Something went to `generation` that is not durable; the earliest one counts.
    fn note(&mut self, generation: u64) {
        self.open = Some(self.open.map_or(generation, |open| open.min(generation)));
    }
}

fn lock(generations: &Mutex<Generations>) -> MutexGuard<'_, Generations> {
    generations.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TellsLosses {
    /// Puts the filter around `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>) -> TellsLosses {
        TellsLosses { inner, unflushed: Arc::default() }
    }
}

impl BlockDevice for TellsLosses {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn granularity(&self) -> u32 {
        self.inner.granularity()
    }

    fn refresh(&self) -> IoResult<DeviceInfo> {
        self.inner.refresh()
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move {
            let inner = self.inner.open().await?;
            // Most devices lose nothing without an error, or have nothing to lose.
            if !inner.may_forget() || !self.inner.info().volatile_cache {
                return Ok(inner);
            }
            let io: Rc<dyn BlockIo> = Rc::new(TellingIo { inner, unflushed: Arc::clone(&self.unflushed) });
            Ok(io)
        })
    }
}

struct TellingIo {
    inner: Rc<dyn BlockIo>,
    unflushed: Arc<Mutex<Generations>>,
}

impl TellingIo {
    /// Begins a change that is not durable when it ends; returns the generation that it goes to.
    fn begin(&self) -> u64 {
        let generation = self.inner.generation();
        lock(&self.unflushed).note(generation);
        generation
    }

    /// Executes a change. A flush that ends before the change does not cover it: so it is counted
    /// again when it has ended.
    fn change(&self, change: impl FnOnce() -> IoFuture<()>) -> IoFuture<()> {
        let (generation, unflushed) = (self.begin(), Arc::clone(&self.unflushed));
        let changing = change();
        IoFuture::new(async move {
            let result = changing.await;
            lock(&unflushed).note(generation);
            result
        })
    }
}

/// What a flush under way covers; dropped, it covers nothing.
struct Cover {
    number: u64,
    unflushed: Arc<Mutex<Generations>>,
}

impl Cover {
    /// A flush begins: it, and the generations that it covers.
    fn begin(unflushed: &Arc<Mutex<Generations>>) -> (Cover, Vec<u64>) {
        let mut all = lock(unflushed);
        let number = all.flushes;
        all.flushes += 1;
        let own = all.open.take();
        all.covered.extend(own.map(|generation| (number, generation)));
        let covered = all.covered.iter().map(|(_, generation)| *generation).collect();
        (Cover { number, unflushed: Arc::clone(unflushed) }, covered)
    }

    /// The flush has succeeded, or has reported a loss.
    fn end(self) {
        lock(&self.unflushed).covered.retain(|(number, _)| *number != self.number);
    }
}

impl Drop for Cover {
    fn drop(&mut self) {
        let mut all = lock(&self.unflushed);
        if let Some(at) = all.covered.iter().position(|(number, _)| *number == self.number) {
            let (_, generation) = all.covered.swap_remove(at);
            all.note(generation);
        }
    }
}

impl BlockIo for TellingIo {
    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        self.inner.read(offset, dst)
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        if flags.fua {
            return self.inner.write(offset, src, flags);
        }
        self.change(|| self.inner.write(offset, src, flags))
    }

    fn flush(&self) -> IoFuture<()> {
        let (cover, covered) = Cover::begin(&self.unflushed);
        let inner = Rc::clone(&self.inner);
        let flushed = inner.flush();
        IoFuture::new(async move {
            flushed.await?;
            let now = inner.generation();
            cover.end();
            if covered.iter().any(|generation| *generation != now) {
                return Err(IoError::Medium(
                    "the connection to a part of the device was lost, and with it perhaps writes that \
                     were acknowledged and not durable yet"
                        .into(),
                ));
            }
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        // A discarded range may change its content again: no data is lost.
        self.inner.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        if flags.fua {
            return self.inner.write_zeroes(offset, len, flags);
        }
        self.change(|| self.inner.write_zeroes(offset, len, flags))
    }

    fn advice(&self) -> Option<Advice> {
        self.inner.advice()
    }

    fn generation(&self) -> u64 {
        self.inner.generation()
    }

    fn away_since(&self) -> Option<Instant> {
        self.inner.away_since()
    }

    fn reservations(&self) -> Option<Rc<dyn Reservations>> {
        self.inner.reservations()
    }

    fn shared_reservations(&self) -> Option<Rc<dyn Reservations>> {
        self.inner.shared_reservations()
    }

    fn map_read(&self, offset: u64, len: usize) -> Option<Segment> {
        self.inner.map_read(offset, len)
    }

    fn map_write(&self, _offset: u64, _len: usize) -> Option<Segment> {
        // The end of such a write would not be seen.
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;
    use crate::testing::{done, open};
    use std::pin::Pin;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use std::task::{Context, Poll, Waker};

    /// Memory that says it is far away, and whose flushes end when they are let.
    struct Far {
        memory: MemDevice,
        generation: Arc<AtomicU64>,
        held: Arc<AtomicU64>,
    }

    impl BlockDevice for Far {
        fn info(&self) -> DeviceInfo {
            DeviceInfo { volatile_cache: true, ..self.memory.info() }
        }

        fn open(&self) -> Open<'_> {
            let io = FarIo {
                memory: open(&self.memory),
                generation: Arc::clone(&self.generation),
                held: Arc::clone(&self.held),
            };
            Box::pin(std::future::ready(Ok(Rc::new(io) as Rc<dyn BlockIo>)))
        }
    }

    struct FarIo {
        memory: Rc<dyn BlockIo>,
        generation: Arc<AtomicU64>,
        held: Arc<AtomicU64>,
    }

    impl BlockIo for FarIo {
        fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
            self.memory.read(offset, dst)
        }

        fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
            self.memory.write(offset, src, flags)
        }

        fn flush(&self) -> IoFuture<()> {
            let held = Arc::clone(&self.held);
            IoFuture::new(std::future::poll_fn(move |_| {
                if held.load(SeqCst) > 0 { Poll::Pending } else { Poll::Ready(Ok(())) }
            }))
        }

        fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
            self.memory.discard(offset, len)
        }

        fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
            self.memory.write_zeroes(offset, len, flags)
        }

        fn generation(&self) -> u64 {
            self.generation.load(SeqCst)
        }
    }

    struct Rig {
        ios: [Rc<dyn BlockIo>; 2],
        generation: Arc<AtomicU64>,
        held: Arc<AtomicU64>,
    }

    /// A device as two threads have it open.
    fn rig() -> Rig {
        let (generation, held) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
        let memory = MemDevice::new(1 << 20, 4096).expect("mapped");
        let far = Far { memory, generation: Arc::clone(&generation), held: Arc::clone(&held) };
        let device = TellsLosses::new(Arc::new(far));
        Rig { ios: [open(&device), open(&device)], generation, held }
    }

    impl Rig {
        fn write(&self, by: usize, fua: bool) {
            let flags = WriteFlags { fua };
            done(self.ios[by].write(0, Buf::copy_of(&[1; 4096]), flags)).expect("written");
        }

        fn flush(&self, by: usize) -> bool {
            done(self.ios[by].flush()).is_ok()
        }

        fn lose(&self) {
            self.generation.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn a_flush_fails_if_what_it_covers_may_be_lost() {
        let rig = rig();
        rig.write(0, false);
        rig.lose();
        assert!(!rig.flush(1), "a flush of another thread covers it");
        assert!(rig.flush(0), "reported once");
        rig.write(0, false);
        assert!(rig.flush(0));
        rig.lose();
        assert!(rig.flush(0), "the lost write was durable");
        rig.write(0, true);
        rig.lose();
        assert!(rig.flush(0), "it was durable when it ended");
        let flags = ZeroFlags::default();
        done(rig.ios[1].write_zeroes(0, 4096, flags)).expect("zeroed");
        rig.lose();
        assert!(!rig.flush(0));
    }

    #[test]
    fn flushes_at_the_same_time_tell_of_the_same_loss() {
        let rig = rig();
        let mut cx = Context::from_waker(Waker::noop());
        rig.write(0, false);
        rig.held.store(1, SeqCst);
        let mut first = rig.ios[0].flush();
        let mut second = rig.ios[1].flush();
        assert!(Pin::new(&mut first).poll(&mut cx).is_pending());
        assert!(Pin::new(&mut second).poll(&mut cx).is_pending());
        rig.lose();
        rig.write(0, false);
        rig.held.store(0, SeqCst);
        assert!(done(first).is_err() && done(second).is_err());
        assert!(rig.flush(0), "the later write went to the new generation");
    }

    #[test]
    fn a_flush_does_not_cover_a_write_that_ends_after_it() {
        let rig = rig();
        let write = rig.ios[0].write(0, Buf::copy_of(&[1; 4096]), WriteFlags::default());
        assert!(rig.flush(1));
        done(write).expect("written");
        rig.lose();
        assert!(!rig.flush(1));
    }

    #[test]
    fn a_flush_that_is_given_up_covers_nothing() {
        let rig = rig();
        rig.write(0, false);
        drop(rig.ios[0].flush());
        rig.lose();
        assert!(!rig.flush(0));
    }
}
