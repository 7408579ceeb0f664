//! A namespace over several paths, opened on one thread.

use super::thread::{ThreadPaths, WaitingRequest};
use super::{Path, Shared};
use crate::error::Result;
use crate::io::RemoteIo;
use crate::path::IoDirection;
use crate::split::{join_reads, lengths};
use futures_channel::oneshot;
use futures_util::future::{join_all, try_join_all};
use longhaul_block::{
    Advice, BlockIo, IoError, IoFuture, IoResult, ReservationState, Reservations, WriteFlags, ZeroFlags,
};
use longhaul_engine::{Buf, BufMut, spawn};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// More than the product of its rate and the longest round trip is kept in flight for a path, so that
/// the requests for a short path do not run out while those of a long one are under way.
const HEADROOM: f64 = 1.25;

/// See the module, and [`MultipathDevice::open_io`](super::MultipathDevice::open_io).
pub struct MultipathIo(Rc<User>);

/// One that has opened the device. It counts as one user of each path.
pub(super) struct User {
    thread: Rc<ThreadPaths>,
    ios: RefCell<Vec<Option<Rc<RemoteIo>>>>,
}

impl std::fmt::Debug for MultipathIo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MultipathIo({} paths)", self.0.shared().paths.len())
    }
}

/// Lets requests that wait go when another one is done, also if its future is dropped.
struct RoomMade {
    thread: Rc<ThreadPaths>,
    number: usize,
}

impl Drop for RoomMade {
    fn drop(&mut self) {
        self.thread.ended(self.number);
    }
}

impl User {
    pub(super) fn new(thread: &Rc<ThreadPaths>, paths: usize) -> User {
        User { thread: Rc::clone(thread), ios: RefCell::new(vec![None; paths]) }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.thread.shared
    }

    /// The path `number`, if it is open on this thread.
    fn io(&self, number: usize) -> Option<Rc<RemoteIo>> {
        let mut ios = self.ios.borrow_mut();
        let known = &mut ios[number];
        if known.is_none() {
            *known = self.thread.io(number).map(|io| Rc::new(io.another()));
        }
        known.clone()
    }

    fn all(&self) -> impl Iterator<Item = (&Path, Rc<RemoteIo>)> {
        let paths = self.shared().paths.iter().enumerate();
        paths.filter_map(|(number, path)| Some((path, self.io(number)?)))
    }

    /// Begins an operation on the path on which it completes first, now or as soon as one has room.
    fn submit<T: Unpin + 'static>(
        self: &Rc<Self>,
        way: IoDirection,
        bytes: usize,
        begin: impl FnOnce(&RemoteIo) -> IoFuture<T> + 'static,
    ) -> IoFuture<T> {
        self.thread.open_new();
        let bytes = bytes as u64;
        if let Some(number) = self.thread.path_now(way, bytes) {
            return self.run(number, way, begin);
        }
        let (done, result) = oneshot::channel();
        let this = Rc::clone(self);
        let start = Box::new(move |number| {
            let running = this.run(number, way, begin);
            // It runs to its end, also if no one waits for it.
            spawn(async move { _ = done.send(running.await) }).detach();
        });
        self.thread.wait(way, WaitingRequest { bytes, start });
        IoFuture::new(async move { result.await.unwrap_or(Err(IoError::Aborted)) })
    }

    /// Begins an operation on a path.
    fn run<T: Unpin + 'static>(
        self: &Rc<Self>,
        number: usize,
        way: IoDirection,
        begin: impl FnOnce(&RemoteIo) -> IoFuture<T>,
    ) -> IoFuture<T> {
        let Some(io) = self.io(number) else {
            return IoFuture::ready(Err(IoError::Unreachable("the path is not open".into())));
        };
        self.thread.begun(number);
        let hops = self.shared().paths[number].hops(&io);
        let running = begin(&io);
        let this = Rc::clone(self);
        IoFuture::new(async move {
            let _room = RoomMade { thread: Rc::clone(&this.thread), number };
            let result = running.await;
            if way == IoDirection::Write && result.is_ok() {
                match this.shared().paths[number].hops(&io) == hops {
                    true => this.shared().paths[number].changed(),
                    // Another path may have done it.
                    false => this.shared().paths.iter().for_each(Path::changed),
                }
            }
            result
        })
    }

    /// Bytes of one request, in whole blocks: large ones are split, and spread over the paths.
    fn piece(&self) -> usize {
        let sizes = self.all().map(|(_, io)| io.max_transfer());
        sizes.max().unwrap_or(1 << 20)
    }

    async fn flush(self: Rc<Self>) -> IoResult<()> {
        let paths = self.shared().paths.iter().enumerate();
        let open = paths.filter_map(|(number, path)| Some((path, self.io(number)?, path.unflushed()?)));
        let gone = |path: &Path| path.controller().is_none_or(|controller| controller.check().is_err());
        // A path that is lost for good has no cache any more, or `generation` says so.
        let dirty: Vec<_> = open.filter(|(path, ..)| !gone(path)).collect();
        if dirty.is_empty() {
            return self.submit(IoDirection::Read, 0, |io| io.flush()).await;
        }
        let flushing = dirty.iter().map(|(path, io, written)| {
            let flushing = io.flush();
            async move {
                flushing.await?;
                path.flushed.fetch_max(*written, Ordering::AcqRel);
                Ok(())
            }
        });
        join_all(flushing).await.into_iter().collect()
    }
}

impl MultipathIo {
    pub(super) async fn open(shared: &Arc<Shared>) -> Result<MultipathIo> {
        let thread = ThreadPaths::here(shared);
        thread.open().await?;
        Ok(MultipathIo(thread.user()))
    }
}

impl BlockIo for MultipathIo {
    fn advice(&self) -> Option<Advice> {
        let paths = self.0.all().filter(|(path, io)| path.is_usable() && io.pool.is_connected());
        let paths: Vec<_> = paths.map(|(_, io)| io).collect();
        let longest = paths.iter().map(|io| io.pool.plan().rtt.as_secs_f64()).fold(0.0, f64::max);
        let each = paths.iter().filter_map(|io| Some((io.advice()?, io.pool.plan(), io.pool.sharers())));
        let each = each.map(|(advice, plan, sharers)| {
            // The sum keeps short paths busy, too.
            let fills = |way: IoDirection| {
                (plan.rate[way as usize] * longest * HEADROOM) as u64 / u64::from(sharers.max(1))
            };
            let read = advice.read.max(fills(IoDirection::Read));
            let read_ahead = advice.read_ahead.saturating_add(read - advice.read);
            Advice { read, write: advice.write.max(fills(IoDirection::Write)), read_ahead, ..advice }
        });
        each.reduce(|a, b| Advice {
            read: a.read.saturating_add(b.read),
            write: a.write.saturating_add(b.write),
            io_size: a.io_size.max(b.io_size),
            read_ahead: a.read_ahead.saturating_add(b.read_ahead),
            commands: a.commands.saturating_add(b.commands),
        })
    }

    fn generation(&self) -> u64 {
        self.0.shared().controllers().map(|(_, controller)| controller.unconfirmed()).sum()
    }

    fn away_since(&self) -> Option<Instant> {
        self.0.shared().away_since()
    }

    fn reservations(&self) -> Option<Rc<dyn Reservations>> {
        self.0.reservations_of(RemoteIo::lasting_reservations)
    }

    fn shared_reservations(&self) -> Option<Rc<dyn Reservations>> {
        self.0.reservations_of(RemoteIo::shared_reservations)
    }

    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        let max = self.0.piece();
        if dst.is_empty() {
            return IoFuture::ready(Ok(dst));
        }
        if dst.len() <= max {
            return self.0.submit(IoDirection::Read, dst.len(), move |io| io.read(offset, dst));
        }
        let mut reads = Vec::new();
        let (mut rest, mut at) = (dst, offset);
        for len in lengths(rest.len(), max).collect::<Vec<_>>() {
            let tail = rest.split_off(len);
            reads.push(self.0.submit(IoDirection::Read, len, move |io| io.read(at, rest)));
            (rest, at) = (tail, at + len as u64);
        }
        IoFuture::new(async move { join_reads(reads).await })
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        let max = self.0.piece();
        if src.is_empty() {
            return IoFuture::ready(Ok(()));
        }
        let mut done = 0;
        let mut writes: Vec<_> = lengths(src.len(), max)
            .map(|len| {
                let (at, part) = (offset + done as u64, src.slice(done..done + len));
                done += len;
                self.0.submit(IoDirection::Write, len, move |io| io.write(at, part, flags))
            })
            .collect();
        match writes.len() {
            1 => writes.remove(0),
            _ => IoFuture::new(async move { try_join_all(writes).await.map(drop) }),
        }
    }

    fn flush(&self) -> IoFuture<()> {
        // An operation begins when it is called.
        let (done, result) = oneshot::channel();
        let flushing = Rc::clone(&self.0).flush();
        spawn(async move { _ = done.send(flushing.await) }).detach();
        IoFuture::new(async move { result.await.unwrap_or(Err(IoError::Aborted)) })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.0.submit(IoDirection::Write, 0, move |io| io.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.0.submit(IoDirection::Write, 0, move |io| io.write_zeroes(offset, len, flags))
    }
}

impl User {
    /// Those of the first path that has them, of those that are usable if there are any.
    fn reservations_of(
        self: &Rc<User>,
        of: impl Fn(&RemoteIo) -> Option<Rc<dyn Reservations>>,
    ) -> Option<Rc<dyn Reservations>> {
        let mut paths: Vec<_> = self.all().collect();
        paths.sort_by_key(|(path, _)| !path.is_usable());
        let first = paths.into_iter().find_map(|(_, io)| of(&io))?;
        Some(Rc::new(AllPaths { first, user: Rc::clone(self) }))
    }
}

/// Reservations belong to the host, whichever path a command takes; but each path must know of the
/// registration before it uses a new connection.
struct AllPaths {
    first: Rc<dyn Reservations>,
    user: Rc<User>,
}

impl AllPaths {
    fn registered(&self, key: Option<u64>) {
        for (_, controller) in self.user.shared().controllers() {
            controller.set_registered(key);
        }
    }
}

impl Reservations for AllPaths {
    fn register(&self, key: u64) -> IoFuture<()> {
        let (registering, user) = (self.first.register(key), Rc::clone(&self.user));
        let first = Rc::clone(&self.first);
        IoFuture::new(async move {
            registering.await?;
            AllPaths { first, user }.registered(Some(key));
            Ok(())
        })
    }

    fn unregister(&self, key: u64) -> IoFuture<()> {
        self.registered(None);
        self.first.unregister(key)
    }

    fn acquire(&self, key: u64) -> IoFuture<()> {
        self.first.acquire(key)
    }

    fn preempt(&self, key: u64, other: u64) -> IoFuture<()> {
        self.first.preempt(key, other)
    }

    fn report(&self) -> IoFuture<ReservationState> {
        self.first.report()
    }
}
