//! An array as a block device.
//!
//! Invariants:
//! - an operation runs on the array's thread; other threads hand it over with its buffer and
//!   receive the result;
//! - an operation begins when it is called, and continues if its future is dropped.

use crate::array::{ArrayFuture, here, stop};
use crate::core::Core;
use crate::format::geometry::BLOCK;
use crate::member::Member;
use futures_channel::{mpsc, oneshot};
use longhaul_block::{
    Advice, BlockDevice, BlockIo, DeviceInfo, IoError, IoFuture, IoResult, Open, WriteFlags, ZeroFlags,
};
use longhaul_engine::{Buf, BufMut, Task, sleep, spawn};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use uuid::Uuid;

/// Largest operation, in bytes.
const MAX_IO: u32 = 64 << 20;

/// Interval at which an array without checksums looks for reconnections of its members. A write
/// within this time of a reconnection counts as one from before it.
const RECONNECT_CHECK: Duration = Duration::from_secs(1);

/// A closure that runs on the array's thread.
pub(crate) type ArrayTask = Box<dyn FnOnce(&Rc<Core>) + Send>;

/// A running array.
pub struct ArrayDevice {
    info: LiveInfo,
    granularity: u32,
    has_sums: bool,
    session: Uuid,
    jobs: mpsc::UnboundedSender<ArrayTask>,
    seen: Arc<SharedState>,
}

/// Properties of an array, whose size changes when it grows.
#[derive(Clone)]
struct LiveInfo {
    /// Everything but the size.
    info: DeviceInfo,
    /// Bytes of the array.
    size: Arc<AtomicU64>,
}

impl LiveInfo {
    fn now(&self) -> DeviceInfo {
        DeviceInfo { size: self.size.load(Ordering::Acquire), ..self.info.clone() }
    }

    /// Checks that a range is aligned and within the array.
    fn check(&self, offset: u64, len: u64) -> IoResult<()> {
        match self.info.check(offset, len) {
            // The array may have grown; the clone of a name is spared otherwise.
            Err(IoError::OutOfRange { .. }) => self.now().check(offset, len),
            result => result,
        }
    }
}

/// Values that the array's thread publishes to other threads.
#[derive(Default)]
struct SharedState {
    /// See [`BlockIo::advice`].
    advice: Mutex<Option<Advice>>,
    /// See [`BlockIo::generation`].
    generation: AtomicU64,
}

impl std::fmt::Debug for ArrayDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ArrayDevice({})", self.info.info.name)
    }
}

impl ArrayDevice {
    pub(crate) fn new(core: &Rc<Core>, jobs: mpsc::UnboundedSender<ArrayTask>) -> ArrayDevice {
        let geometry = core.geometry();
        let any = |what: fn(&DeviceInfo) -> bool| {
            core.members.iter().any(|member| member.info().is_some_and(|info| what(&info)))
        };
        let info = DeviceInfo {
            name: format!("array:{}", core.name),
            size: geometry.size(),
            block_size: BLOCK as u32,
            max_io: MAX_IO,
            optimal_io: geometry.stripe().try_into().unwrap_or(0),
            read_only: false,
            volatile_cache: any(|info| info.volatile_cache),
            discard: any(|info| info.discard),
            uuid: Some(core.array),
        };
        // In a mirror the stripe unit has no meaning.
        let granularity = if geometry.data_units() > 1 { geometry.unit.try_into().unwrap_or(0) } else { 0 };
        let (has_sums, seen) = (geometry.has_sums(), Arc::default());
        if !has_sums {
            spawn(watch_reconnections(Rc::downgrade(core), Arc::downgrade(&seen))).detach();
        }
        let info = LiveInfo { info, size: Arc::clone(&core.size) };
        ArrayDevice { info, granularity, has_sums, session: core.session.uuid, jobs, seen }
    }

    /// Stops the array: new operations other than reads are refused, those under way end, all data
    /// becomes durable, and the members are marked clean. From then on another host may have the array,
    /// and reads fail too.
    ///
    /// # Errors
    /// A member that the array needs has failed; the array can be assembled again.
    pub fn stop(&self) -> ArrayFuture<'_, IoResult<()>> {
        Box::pin(async {
            self.ask(|core, answer| {
                let core = Rc::clone(core);
                spawn(async move { drop(answer.send(stop(&core).await)) }).detach();
            })
            .await?
        })
    }

    /// Runs a closure on the array's thread and waits for its answer.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Rc<Core>, oneshot::Sender<T>) + Send + 'static,
    ) -> IoResult<T> {
        let (answer, answered) = oneshot::channel();
        let ended = || IoError::Offline("the array's thread has ended".into());
        self.jobs.unbounded_send(Box::new(move |core| job(core, answer))).map_err(|_| ended())?;
        answered.await.map_err(|_| ended())
    }
}

impl BlockDevice for ArrayDevice {
    fn granularity(&self) -> u32 {
        self.granularity
    }

    fn info(&self) -> DeviceInfo {
        self.info.now()
    }

    fn open(&self) -> Open<'_> {
        let info = self.info.clone();
        let io: Rc<dyn BlockIo> = match here(self.session) {
            Some(core) => Rc::new(LocalIo { core, info }),
            None => {
                let (jobs, seen) = (self.jobs.clone(), Arc::clone(&self.seen));
                Rc::new(RemoteIo { info, has_sums: self.has_sums, jobs, seen })
            }
        };
        Box::pin(std::future::ready(Ok(io)))
    }
}

/// Notices reconnections of members also while the array is idle: writes after that lose nothing by
/// them.
async fn watch_reconnections(core: Weak<Core>, seen: std::sync::Weak<SharedState>) {
    loop {
        sleep(RECONNECT_CHECK).await;
        let (Some(core), Some(seen)) = (core.upgrade(), seen.upgrade()) else { return };
        core.members.iter().for_each(Member::look_at_generation);
        seen.generation.store(core.undetected_losses(), Ordering::Release);
    }
}

/// A task that continues when its future is dropped.
struct DetachedOnDrop<T>(Option<Task<IoResult<T>>>);

impl<T: 'static> Future for DetachedOnDrop<T> {
    type Output = IoResult<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult<T>> {
        let Some(task) = &mut self.0 else { unreachable!("polled after it was done") };
        let poll = Pin::new(task).poll(cx);
        if poll.is_ready() {
            self.0 = None;
        }
        poll
    }
}

impl<T> Drop for DetachedOnDrop<T> {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.detach();
        }
    }
}

/// Operations other than reads and writes, with offset and length; for `Zeroes` also FUA.
#[derive(Clone, Copy, Debug)]
enum Op {
    Flush,
    Discard(u64, u64),
    Zeroes(u64, u64, bool),
}

/// Admitted when called, not when polled: an operation submitted before the array stops completes.
fn write(core: Rc<Core>, offset: u64, src: Buf, fua: bool) -> impl Future<Output = IoResult<()>> {
    let admitted = core.admit();
    async move {
        let admitted = admitted?;
        admitted.begin().await?;
        core.write(offset, src).await?;
        if fua && core.members.has_volatile_cache() {
            core.flush_members().await?;
        }
        core.losses_published().await
    }
}

/// Admitted when called, like [`write()`].
fn run_op(core: Rc<Core>, op: Op) -> impl Future<Output = IoResult<()>> {
    let admitted = core.admit();
    async move {
        let admitted = admitted?;
        admitted.begin().await?;
        match op {
            Op::Flush => core.flush_members().await?,
            Op::Discard(offset, len) => core.zero(offset, len, false).await?,
            Op::Zeroes(offset, len, fua) => {
                core.zero(offset, len, true).await?;
                if fua {
                    core.flush_members().await?;
                }
            }
        }
        core.losses_published().await
    }
}

/// Bytes in flight that keep the members busy at this moment.
fn advice(core: &Core) -> Option<Advice> {
    let members: Vec<Option<Advice>> =
        core.members.iter().filter(|member| member.is_active()).map(|member| member.advice()).collect();
    let advice = crate::stripe::combine(&members, core.geometry().stripe())?;
    // A part of what is written to members is parity, or copies.
    let (data, width) = (core.geometry().data_units() as u64, core.geometry().width as u64);
    // A write ends once a page of checksums that was begun after it is stored: half as long again
    // as its data takes, on average.
    let write = advice.write / width * data / 2 * 3;
    Some(Advice { write, ..advice })
}

/// The array, opened on its own thread.
struct LocalIo {
    core: Rc<Core>,
    info: LiveInfo,
}

fn run_checked<T: Unpin + 'static>(
    checked: IoResult<()>,
    start: impl FnOnce() -> Task<IoResult<T>>,
) -> IoFuture<T> {
    match checked {
        Ok(()) => IoFuture::new(DetachedOnDrop(Some(start()))),
        Err(e) => IoFuture::ready(Err(e)),
    }
}

impl LocalIo {
    fn run_op(&self, checked: IoResult<()>, op: Op) -> IoFuture<()> {
        run_checked(checked, || spawn(run_op(Rc::clone(&self.core), op)))
    }
}

impl BlockIo for LocalIo {
    fn generation(&self) -> u64 {
        self.core.undetected_losses()
    }

    fn may_forget(&self) -> bool {
        // With checksums the array repairs such losses itself.
        !self.core.geometry().has_sums()
    }

    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        let core = Rc::clone(&self.core);
        let checked = self.info.check(offset, dst.len() as u64);
        run_checked(checked, || spawn(async move { core.read(offset, dst).await }))
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        let checked = self.info.check(offset, src.len() as u64);
        run_checked(checked, || spawn(write(Rc::clone(&self.core), offset, src, flags.fua)))
    }

    fn flush(&self) -> IoFuture<()> {
        self.run_op(Ok(()), Op::Flush)
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.run_op(self.info.check(offset, len), Op::Discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.run_op(self.info.check(offset, len), Op::Zeroes(offset, len, flags.fua))
    }

    fn advice(&self) -> Option<Advice> {
        advice(&self.core)
    }
}

/// The array, opened on another thread.
struct RemoteIo {
    info: LiveInfo,
    has_sums: bool,
    jobs: mpsc::UnboundedSender<ArrayTask>,
    seen: Arc<SharedState>,
}

impl RemoteIo {
    /// Hands an operation over to the array's thread.
    fn hand_over<T, F>(
        &self,
        checked: IoResult<()>,
        run: impl FnOnce(Rc<Core>) -> F + Send + 'static,
    ) -> IoFuture<T>
    where
        T: Send + Unpin + 'static,
        F: Future<Output = IoResult<T>> + 'static,
    {
        if let Err(e) = checked {
            return IoFuture::ready(Err(e));
        }
        let (answer, answered) = oneshot::channel();
        let seen = Arc::clone(&self.seen);
        let job: ArrayTask = Box::new(move |core| {
            *seen.advice.lock().unwrap_or_else(PoisonError::into_inner) = advice(core);
            let future = run(Rc::clone(core));
            let core = Rc::clone(core);
            spawn(async move {
                let result = future.await;
                // Stored before the answer, so that the caller sees what the operation noticed.
                seen.generation.store(core.undetected_losses(), Ordering::Release);
                drop(answer.send(result));
            })
            .detach();
        });
        let ended = || IoError::Offline("the array's thread has ended".into());
        if self.jobs.unbounded_send(job).is_err() {
            return IoFuture::ready(Err(ended()));
        }
        IoFuture::new(async move { answered.await.unwrap_or_else(|_| Err(ended())) })
    }
}

impl BlockIo for RemoteIo {
    fn generation(&self) -> u64 {
        self.seen.generation.load(Ordering::Acquire)
    }

    fn may_forget(&self) -> bool {
        !self.has_sums
    }

    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        let checked = self.info.check(offset, dst.len() as u64);
        self.hand_over(checked, move |core| async move { core.read(offset, dst).await })
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        let checked = self.info.check(offset, src.len() as u64);
        self.hand_over(checked, move |core| write(core, offset, src, flags.fua))
    }

    fn flush(&self) -> IoFuture<()> {
        self.hand_over(Ok(()), |core| run_op(core, Op::Flush))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.hand_over(self.info.check(offset, len), move |core| run_op(core, Op::Discard(offset, len)))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        let checked = self.info.check(offset, len);
        self.hand_over(checked, move |core| run_op(core, Op::Zeroes(offset, len, flags.fua)))
    }

    fn advice(&self) -> Option<Advice> {
        *self.seen.advice.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
