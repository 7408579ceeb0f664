//! A remote namespace opened on one thread.

use crate::call::{Data, Done};
use crate::error::io_error;
use crate::path::{ConnectionPool, IoDirection, Sharer};
use crate::split::{join_reads, lengths};
use futures_util::future::try_join_all;
use longhaul_block::{Advice, BlockIo, IoError, IoFuture, IoResult, Reservations, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut, Memory};
use longhaul_wire::command::{DsmRange, ReadWrite, Sqe, io};
use longhaul_wire::identify::oncs;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::Instant;
use zerocopy::IntoBytes;

/// Blocks of one range of Dataset Management or Write Zeroes are counted in
/// 16 bits (Write Zeroes, 0's based) or 32 bits (a range).
const ZEROES_BLOCKS_MAX: u64 = 1 << 16;

/// A remote namespace opened on one thread: see
/// [`RemoteDevice::open_io`](crate::RemoteDevice::open_io). It outlives its connection: operations
/// under way when that is lost wait for the next one.
pub struct RemoteIo {
    pub(crate) pool: Rc<ConnectionPool>,
    pub(crate) sharer: Rc<Sharer>,
    pub(crate) nsid: u32,
    /// Logical block size as a power of two.
    pub(crate) shift: u32,
    pub(crate) oncs: u16,
    /// Reservation capabilities of the namespace.
    pub(crate) rescap: u8,
    /// Bytes of one Write Zeroes at most, where the controller says.
    pub(crate) max_zeroes: Option<u64>,
}

/// Aborts operations that were begun by [`RemoteIo::abortable`].
#[derive(Clone)]
pub struct Abort {
    pool: Weak<ConnectionPool>,
    commands: Range<u64>,
}

impl Abort {
    /// Aborts outstanding operations: commands that were not sent are dropped, and for the others
    /// the target is asked to abort them. Returns when it has answered; an operation ends with
    /// [`IoError::Aborted`], or normally if the abort was too late. A write that was aborted may
    /// have been done in part.
    pub async fn abort(&self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.abort(&self.commands).await;
        }
    }
}

impl std::fmt::Debug for Abort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Abort({:?})", self.commands)
    }
}

impl std::fmt::Debug for RemoteIo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteIo(namespace {})", self.nsid)
    }
}

pub(crate) fn check(done: &Done) -> IoResult<()> {
    let status = done.cqe.status();
    if status.is_success() { Ok(()) } else { Err(io_error(status)) }
}

impl RemoteIo {
    /// Begins operations in `begin`, and gives what aborts them. (Dropping an
    /// [`IoFuture`] does not: the operation runs to its end.)
    pub fn abortable<T>(&self, begin: impl FnOnce(&RemoteIo) -> T) -> (T, Abort) {
        let first = self.pool.next_seq();
        let result = begin(self);
        let commands = first..self.pool.next_seq();
        (result, Abort { pool: Rc::downgrade(&self.pool), commands })
    }

    /// The same connections for another user of the device on this thread.
    pub(crate) fn another(&self) -> RemoteIo {
        let (pool, sharer) = (Rc::clone(&self.pool), self.pool.another_sharer());
        let RemoteIo { nsid, shift, oncs, rescap, max_zeroes, .. } = *self;
        RemoteIo { pool, sharer, nsid, shift, oncs, rescap, max_zeroes }
    }

    /// Bytes of one command: whole blocks.
    pub(crate) fn max_transfer(&self) -> usize {
        let block = 1 << self.shift;
        (self.pool.io_size() as usize & !(block - 1)).max(block)
    }

    fn lba(&self, bytes: u64) -> u64 {
        bytes >> self.shift
    }

    fn read_command(&self, offset: u64, dst: BufMut) -> impl Future<Output = IoResult<BufMut>> + use<> {
        let len = dst.len();
        let rw = ReadWrite::new(self.lba(offset), self.lba(len as u64) as u32);
        let sqe = rw.to_sqe(io::READ, self.nsid);
        let pending = self.pool.submit(&self.sharer, IoDirection::Read, sqe, Data::Read(Memory::Buf(dst)));
        async move {
            let done = pending.await?;
            check(&done)?;
            match done.memory {
                Some(Memory::Buf(buf)) if done.received as usize == len => Ok(buf),
                _ => Err(IoError::Integrity(format!("{} of {len} bytes came", done.received))),
            }
        }
    }

    fn write_command(&self, offset: u64, src: Buf, fua: bool) -> impl Future<Output = IoResult<()>> + use<> {
        let mut rw = ReadWrite::new(self.lba(offset), self.lba(src.len() as u64) as u32);
        rw.fua = fua;
        let sqe = rw.to_sqe(io::WRITE, self.nsid);
        let pending =
            self.pool.submit(&self.sharer, IoDirection::Write, sqe, Data::Write(Memory::Shared(src)));
        async move { check(&pending.await?) }
    }

    fn command(&self, sqe: Sqe, data: Data) -> impl Future<Output = IoResult<()>> + use<> {
        let pending = self.pool.submit_other(sqe, data);
        async move { check(&pending.await?) }
    }
}

impl BlockIo for RemoteIo {
    fn advice(&self) -> Option<Advice> {
        Some(self.pool.advice_each())
    }

    fn generation(&self) -> u64 {
        self.pool.disconnects()
    }

    fn away_since(&self) -> Option<Instant> {
        self.pool.away_since()
    }

    fn reservations(&self) -> Option<Rc<dyn Reservations>> {
        self.lasting_reservations()
    }

    fn shared_reservations(&self) -> Option<Rc<dyn Reservations>> {
        RemoteIo::shared_reservations(self)
    }

    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        let max = self.max_transfer();
        let whole = Rc::clone(&self.pool);
        if dst.is_empty() {
            return IoFuture::ready(Ok(dst));
        }
        if dst.len() <= max {
            let read = self.read_command(offset, dst);
            return IoFuture::new(async move {
                let _open = whole;
                read.await
            });
        }
        let mut reads = Vec::new();
        let (mut rest, mut at) = (dst, offset);
        for len in lengths(rest.len(), max).collect::<Vec<_>>() {
            let tail = rest.split_off(len);
            reads.push(self.read_command(at, rest));
            (rest, at) = (tail, at + len as u64);
        }
        IoFuture::new(async move {
            let _open = whole;
            join_reads(reads).await
        })
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        let max = self.max_transfer();
        let whole = Rc::clone(&self.pool);
        if src.is_empty() {
            return IoFuture::ready(Ok(()));
        }
        if src.len() <= max {
            let write = self.write_command(offset, src, flags.fua);
            return IoFuture::new(async move {
                let _open = whole;
                write.await
            });
        }
        let mut writes = Vec::new();
        let mut done = 0;
        for len in lengths(src.len(), max) {
            let part = src.slice(done..done + len);
            writes.push(self.write_command(offset + done as u64, part, flags.fua));
            done += len;
        }
        IoFuture::new(async move {
            let _open = whole;
            try_join_all(writes).await.map(drop)
        })
    }

    fn flush(&self) -> IoFuture<()> {
        let whole = Rc::clone(&self.pool);
        let flush = self.command(Sqe::flush(self.nsid), Data::None);
        IoFuture::new(async move {
            let _open = whole;
            flush.await
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        if self.oncs & oncs::DATASET_MANAGEMENT == 0 {
            return IoFuture::ready(Err(IoError::Unsupported("discard")));
        }
        let most = u64::from(u32::MAX) << self.shift;
        let mut commands = Vec::new();
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(most);
            let range = DsmRange::new(self.lba(offset + done), self.lba(piece) as u32);
            let data = Data::Write(Memory::Shared(Buf::copy_of(range.as_bytes())));
            commands.push(self.command(Sqe::deallocate(self.nsid, 1), data));
            done += piece;
        }
        let whole = Rc::clone(&self.pool);
        IoFuture::new(async move {
            let _open = whole;
            try_join_all(commands).await.map(drop)
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        if self.oncs & oncs::WRITE_ZEROES == 0 {
            return IoFuture::ready(Err(IoError::Unsupported("write zeroes")));
        }
        let most = self.max_zeroes.unwrap_or(u64::MAX).min(ZEROES_BLOCKS_MAX << self.shift);
        let mut commands = Vec::new();
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(most);
            let mut rw = ReadWrite::new(self.lba(offset + done), self.lba(piece) as u32);
            rw.fua = flags.fua;
            rw.deallocate = flags.may_deallocate;
            commands.push(self.command(rw.to_sqe(io::WRITE_ZEROES, self.nsid), Data::None));
            done += piece;
        }
        let whole = Rc::clone(&self.pool);
        IoFuture::new(async move {
            let _open = whole;
            try_join_all(commands).await.map(drop)
        })
    }
}
