//! An array as a block device.
//!
//! Invariants:
//! - an operation runs on the array's thread; other threads hand it over,
//!   with its buffer, and get the result back;
//! - an operation begins when it is called, and goes on if it is not waited
//!   for.

use crate::array::{here, stop};
use crate::core::Core;
use crate::geometry::BLOCK;
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

/// The most that an array takes in one piece, in bytes.
const MAX_IO: u32 = 64 << 20;

/// How often an array without checksums looks whether its members were connected to anew. A write
/// within this time of a reconnection counts as one from before it.
const LOOK_FOR_LOSSES: Duration = Duration::from_secs(1);

/// What runs on the array's thread.
pub(crate) type Job = Box<dyn FnOnce(&Rc<Core>) + Send>;

/// A running array.
pub struct ArrayDevice {
    info: DeviceInfo,
    granularity: u32,
    has_sums: bool,
    session: Uuid,
    jobs: mpsc::UnboundedSender<Job>,
    seen: Arc<Seen>,
}

/// What the array's thread has seen last, for others.
#[derive(Default)]
struct Seen {
    /// What fills the members.
    advice: Mutex<Option<Advice>>,
    /// See [`BlockIo::generation`].
    generation: AtomicU64,
}

impl std::fmt::Debug for ArrayDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ArrayDevice({})", self.info.name)
    }
}

impl ArrayDevice {
    pub(crate) fn new(core: &Rc<Core>, jobs: mpsc::UnboundedSender<Job>) -> ArrayDevice {
        let geometry = &core.geometry;
        let any = |what: fn(&DeviceInfo) -> bool| {
            core.members.iter().any(|member| member.info().is_some_and(|info| what(&info)))
        };
        let info = DeviceInfo {
            name: format!("array:{}", core.name.borrow()),
            size: geometry.size(),
            block_size: BLOCK as u32,
            max_io: MAX_IO,
            optimal_io: geometry.stripe().try_into().unwrap_or(0),
            read_only: false,
            volatile_cache: any(|info| info.volatile_cache),
            discard: any(|info| info.discard),
            uuid: Some(core.array),
        };
        // Where copies are all that there is, a unit means nothing.
        let granularity = if geometry.data_units() > 1 { geometry.unit.try_into().unwrap_or(0) } else { 0 };
        let (has_sums, seen) = (geometry.has_sums(), Arc::default());
        if !has_sums {
            spawn(look_for_losses(Rc::downgrade(core), Arc::downgrade(&seen))).detach();
        }
        ArrayDevice { info, granularity, has_sums, session: core.session, jobs, seen }
    }

    /// Stops the array: what comes from now on is refused (but for reads), I/O
    /// under way ends, all of it becomes durable, and the members say that it
    /// was stopped.
    ///
    /// # Errors
    /// A member that is needed fails; the array can be assembled again.
    pub async fn stop(&self) -> IoResult<()> {
        self.ask(|core, answer| {
            let core = Rc::clone(core);
            spawn(async move { drop(answer.send(stop(&core).await)) }).detach();
        })
        .await?
    }

    /// Runs something on the array's thread and waits for its answer.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Rc<Core>, oneshot::Sender<T>) + Send + 'static,
    ) -> IoResult<T> {
        let (answer, answered) = oneshot::channel();
        let gone = || IoError::Unreachable("the array's thread has ended".into());
        self.jobs.unbounded_send(Box::new(move |core| job(core, answer))).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())
    }
}

impl BlockDevice for ArrayDevice {
    fn granularity(&self) -> u32 {
        self.granularity
    }

    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn open(&self) -> Open<'_> {
        let info = self.info.clone();
        let io: Rc<dyn BlockIo> = match here(self.session) {
            Some(core) => Rc::new(Local { core, info }),
            None => {
                let (jobs, seen) = (self.jobs.clone(), Arc::clone(&self.seen));
                Rc::new(Handed { info, has_sums: self.has_sums, jobs, seen })
            }
        };
        Box::pin(std::future::ready(Ok(io)))
    }
}

/// Notices, also while nothing is asked of the array, that a member was connected to anew: of
/// what is written later nothing is lost by that.
async fn look_for_losses(core: Weak<Core>, seen: std::sync::Weak<Seen>) {
    loop {
        sleep(LOOK_FOR_LOSSES).await;
        let (Some(core), Some(seen)) = (core.upgrade(), seen.upgrade()) else { return };
        core.members.iter().for_each(Member::look_at_generation);
        seen.generation.store(core.forgotten(), Ordering::Release);
    }
}

/// A task that goes on when nobody waits for it.
struct Going<T>(Option<Task<IoResult<T>>>);

impl<T: 'static> Future for Going<T> {
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

impl<T> Drop for Going<T> {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.detach();
        }
    }
}

/// Operations, on the array's thread.
#[derive(Clone, Copy, Debug)]
enum Op {
    Flush,
    Discard(u64, u64),
    Zeroes(u64, u64, bool),
}

/// Admitted when it is called: what comes before the array is stopped ends well.
fn write(core: Rc<Core>, offset: u64, src: Buf, fua: bool) -> impl Future<Output = IoResult<()>> {
    let admitted = core.admit();
    async move {
        let _admitted = admitted?;
        core.write(offset, src).await?;
        if fua && core.has_volatile_cache() {
            core.flush_members().await?;
        }
        core.losses_published().await
    }
}

/// The same.
fn other(core: Rc<Core>, op: Op) -> impl Future<Output = IoResult<()>> {
    let admitted = core.admit();
    async move {
        let _admitted = admitted?;
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

/// What fills the members at this moment.
fn advice(core: &Core) -> Option<Advice> {
    let members: Vec<Option<Advice>> =
        core.members.iter().filter(|member| member.is_active()).map(|member| member.advice()).collect();
    let advice = crate::stripe::combine(&members, core.geometry.stripe())?;
    // Of what is written to members a part is parity, or copies.
    let (data, width) = (core.geometry.data_units() as u64, core.geometry.width as u64);
    // A write ends when a page of checksums is stored that was begun after it:
    // half as long again as its data takes, in the mean.
    let write = advice.write / width * data / 2 * 3;
    Some(Advice { write, ..advice })
}

/// Opened on the array's thread.
struct Local {
    core: Rc<Core>,
    info: DeviceInfo,
}

fn going<T: Unpin + 'static>(
    checked: IoResult<()>,
    start: impl FnOnce() -> Task<IoResult<T>>,
) -> IoFuture<T> {
    match checked {
        Ok(()) => IoFuture::new(Going(Some(start()))),
        Err(e) => IoFuture::ready(Err(e)),
    }
}

impl Local {
    fn other(&self, checked: IoResult<()>, op: Op) -> IoFuture<()> {
        going(checked, || spawn(other(Rc::clone(&self.core), op)))
    }
}

impl BlockIo for Local {
    fn generation(&self) -> u64 {
        self.core.forgotten()
    }

    fn may_forget(&self) -> bool {
        // Where there are checksums the array looks after its members itself.
        !self.core.geometry.has_sums()
    }

    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        let core = Rc::clone(&self.core);
        let checked = self.info.check(offset, dst.len() as u64);
        going(checked, || spawn(async move { core.read(offset, dst).await }))
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        let checked = self.info.check(offset, src.len() as u64);
        going(checked, || spawn(write(Rc::clone(&self.core), offset, src, flags.fua)))
    }

    fn flush(&self) -> IoFuture<()> {
        self.other(Ok(()), Op::Flush)
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.other(self.info.check(offset, len), Op::Discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.other(self.info.check(offset, len), Op::Zeroes(offset, len, flags.fua))
    }

    fn advice(&self) -> Option<Advice> {
        advice(&self.core)
    }
}

/// Opened on another thread.
struct Handed {
    info: DeviceInfo,
    has_sums: bool,
    jobs: mpsc::UnboundedSender<Job>,
    seen: Arc<Seen>,
}

impl Handed {
    /// Hands an operation over.
    fn hand<T, F>(
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
        let job: Job = Box::new(move |core| {
            *seen.advice.lock().unwrap_or_else(PoisonError::into_inner) = advice(core);
            let future = run(Rc::clone(core));
            let core = Rc::clone(core);
            spawn(async move {
                let result = future.await;
                // Whoever is answered finds what was noticed on the way.
                seen.generation.store(core.forgotten(), Ordering::Release);
                drop(answer.send(result));
            })
            .detach();
        });
        let gone = || IoError::Unreachable("the array's thread has ended".into());
        if self.jobs.unbounded_send(job).is_err() {
            return IoFuture::ready(Err(gone()));
        }
        IoFuture::new(async move { answered.await.unwrap_or_else(|_| Err(gone())) })
    }
}

impl BlockIo for Handed {
    fn generation(&self) -> u64 {
        self.seen.generation.load(Ordering::Acquire)
    }

    fn may_forget(&self) -> bool {
        !self.has_sums
    }

    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        let checked = self.info.check(offset, dst.len() as u64);
        self.hand(checked, move |core| async move { core.read(offset, dst).await })
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        let checked = self.info.check(offset, src.len() as u64);
        self.hand(checked, move |core| write(core, offset, src, flags.fua))
    }

    fn flush(&self) -> IoFuture<()> {
        self.hand(Ok(()), |core| other(core, Op::Flush))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.hand(self.info.check(offset, len), move |core| other(core, Op::Discard(offset, len)))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        let checked = self.info.check(offset, len);
        self.hand(checked, move |core| other(core, Op::Zeroes(offset, len, flags.fua)))
    }

    fn advice(&self) -> Option<Advice> {
        *self.seen.advice.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
