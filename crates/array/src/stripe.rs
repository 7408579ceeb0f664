//! Striping over devices (RAID0), without superblocks.
//!
//! Unit `k` of the array is unit `k / n` of member `k % n`. A range of the array is one contiguous
//! range on each member, but a member's units lie apart in memory: each is an operation of its own
//! on a window of the caller's buffer, all started together, so that nothing is copied.
//!
//! Invariants:
//! - every member has at least [`Stripe::rows`] units, and no byte behind them is touched;
//! - no operation on a member crosses a unit boundary, or is larger than the member accepts.

use crate::format::layout::{LayoutError, check_shape};
use crate::member::join;
use longhaul_block::{
    Advice, BlockDevice, BlockIo, DeviceInfo, IoFuture, IoResult, Open, WriteFlags, ZeroFlags,
};
use longhaul_engine::{BUF_MAX, Buf, BufMut, Segment};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// Largest operation, in bytes. Operations are split by units anyway; the limit keeps lists of
/// parts short.
const MAX_IO: u64 = 64 << 20;

/// Why devices cannot be striped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StripeError {
    /// The shape is out of bounds.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A member is smaller than one unit.
    #[error("{member} has {size} bytes, less than one stripe unit of {unit}")]
    TooSmall {
        /// Name of the device, as its `DeviceInfo` gives it.
        member: String,
        /// Its size in bytes.
        size: u64,
        /// Stripe unit in bytes.
        unit: u64,
    },
    /// A member's logical blocks are larger than a unit.
    #[error("{member} has logical blocks of {block} bytes, larger than the stripe unit of {unit}")]
    Block {
        /// Name of the device, as its `DeviceInfo` gives it.
        member: String,
        /// Its logical block size in bytes.
        block: u32,
        /// Stripe unit in bytes.
        unit: u64,
    },
}

/// Devices striped into one.
pub struct Stripe {
    members: Vec<Arc<dyn BlockDevice>>,
    map: StripeMap,
    name: String,
}

/// Address arithmetic. Sizes in bytes.
#[derive(Clone, Copy, Debug)]
struct StripeMap {
    members: u64,
    unit: u64,
    /// Units of each member.
    rows: u64,
    /// The largest operation on a member.
    piece: u64,
}

/// A part of a range on one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UnitPiece {
    member: usize,
    /// Offset on the member.
    offset: u64,
    len: u64,
}

impl StripeMap {
    fn width(&self) -> u64 {
        self.members * self.unit
    }

    /// The piece that begins at `offset` of the array and has at most `len` bytes.
    fn piece(&self, offset: u64, len: u64) -> UnitPiece {
        let (number, within) = (offset / self.unit, offset % self.unit);
        UnitPiece {
            member: (number % self.members) as usize,
            offset: number / self.members * self.unit + within,
            len: len.min(self.unit - within).min(self.piece),
        }
    }

    /// The pieces of a range, in order.
    fn pieces(self, offset: u64, len: u64) -> impl Iterator<Item = UnitPiece> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let piece = (done < len).then(|| self.piece(offset + done, len - done))?;
            done += piece.len;
            Some(piece)
        })
    }

    /// Length of the part of `0..end` that `member` holds.
    fn end_on(&self, end: u64, member: u64) -> u64 {
        let (rows, within) = (end / self.width(), end % self.width());
        rows * self.unit + within.saturating_sub(member * self.unit).min(self.unit)
    }

    /// The contiguous range of each member that a range touches: index, offset and length.
    fn ranges(self, offset: u64, len: u64) -> impl Iterator<Item = (usize, u64, u64)> {
        (0..self.members).filter_map(move |member| {
            let start = self.end_on(offset, member);
            let end = self.end_on(offset + len, member);
            (start < end).then_some((member as usize, start, end - start))
        })
    }
}

impl Stripe {
    /// Stripes `members` in units of `unit` bytes. Of each member as many whole units are used as
    /// the smallest one has.
    ///
    /// # Errors
    /// The shape is out of bounds, or does not suit a member.
    pub fn new(members: Vec<Arc<dyn BlockDevice>>, unit: u64) -> Result<Stripe, StripeError> {
        check_shape(members.len(), unit)?;
        let infos: Vec<DeviceInfo> = members.iter().map(|member| member.info()).collect();
        let (mut rows, mut piece) = (u64::MAX, unit);
        for info in &infos {
            if u64::from(info.block_size) > unit {
                return Err(StripeError::Block { member: info.name.clone(), block: info.block_size, unit });
            }
            if info.size < unit {
                return Err(StripeError::TooSmall { member: info.name.clone(), size: info.size, unit });
            }
            rows = rows.min(info.size / unit);
            piece = piece.min(u64::from(info.max_io));
        }
        // Whole blocks of any member.
        let block = infos.iter().map(|info| u64::from(info.block_size)).max().unwrap_or(1);
        let piece = (piece / block * block).max(block);
        let names: Vec<&str> = infos.iter().map(|info| info.name.as_str()).collect();
        let name = format!("stripe:{}", names.join("+"));
        let map = StripeMap { members: members.len() as u64, unit, rows, piece };
        Ok(Stripe { members, map, name })
    }

    /// Units used of each member.
    pub fn rows(&self) -> u64 {
        self.map.rows
    }

    fn join_infos(&self, infos: &[DeviceInfo]) -> DeviceInfo {
        let any = |f: fn(&DeviceInfo) -> bool| infos.iter().any(f);
        let width = self.map.width();
        DeviceInfo {
            name: self.name.clone(),
            size: self.map.rows * width,
            block_size: infos.iter().map(|info| info.block_size).max().unwrap_or(512),
            max_io: MAX_IO as u32,
            optimal_io: width.try_into().unwrap_or(0),
            read_only: any(|info| info.read_only),
            volatile_cache: any(|info| info.volatile_cache),
            discard: any(|info| info.discard),
            uuid: None,
        }
    }
}

impl std::fmt::Debug for Stripe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stripe({})", self.name)
    }
}

impl BlockDevice for Stripe {
    fn granularity(&self) -> u32 {
        self.map.unit.try_into().unwrap_or(0)
    }

    fn info(&self) -> DeviceInfo {
        self.join_infos(&self.members.iter().map(|member| member.info()).collect::<Vec<_>>())
    }

    /// Refreshes the members; the size of the array stays, since the mapping depends on it.
    fn refresh(&self) -> IoResult<DeviceInfo> {
        let infos = self.members.iter().map(|member| member.refresh()).collect::<IoResult<Vec<_>>>()?;
        Ok(self.join_infos(&infos))
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move {
            // Concurrently: opening a member may take several round trips.
            let members = futures_util::future::try_join_all(self.members.iter().map(|m| m.open())).await?;
            let discard = self.members.iter().map(|member| member.info().discard).collect();
            let io: Rc<dyn BlockIo> =
                Rc::new(StripeIo { members, discard, map: self.map, info: self.info() });
            Ok(io)
        })
    }
}

struct StripeIo {
    members: Vec<Rc<dyn BlockIo>>,
    /// Which members support discard.
    discard: Vec<bool>,
    map: StripeMap,
    info: DeviceInfo,
}

impl StripeIo {
    fn check_write(&self, offset: u64, len: u64) -> IoResult<()> {
        if self.info.read_only {
            Err(longhaul_block::IoError::ReadOnly)
        } else {
            self.info.check(offset, len)
        }
    }
}

impl BlockIo for StripeIo {
    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        let len = dst.len() as u64;
        if let Err(e) = self.info.check(offset, len) {
            return IoFuture::ready(Err(e));
        }
        if len == 0 {
            return IoFuture::ready(Ok(dst));
        }
        let mut rest = dst;
        let mut reads = Vec::new();
        for piece in self.map.pieces(offset, len) {
            let tail = rest.split_off(piece.len as usize);
            let part = std::mem::replace(&mut rest, tail);
            reads.push(self.members[piece.member].read(piece.offset, part));
        }
        join::buffer(reads)
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        if let Err(e) = self.check_write(offset, src.len() as u64) {
            return IoFuture::ready(Err(e));
        }
        let mut done = 0;
        let write = |piece: UnitPiece| {
            let part = src.slice(done..done + piece.len as usize);
            done += part.len();
            self.members[piece.member].write(piece.offset, part, flags)
        };
        join::all(self.map.pieces(offset, src.len() as u64).map(write).collect())
    }

    fn flush(&self) -> IoFuture<()> {
        join::all(self.members.iter().map(|member| member.flush()).collect())
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        if let Err(e) = self.check_write(offset, len) {
            return IoFuture::ready(Err(e));
        }
        // Discard is a hint: members without it keep their content.
        let knows = |(member, ..): &(usize, u64, u64)| self.discard[*member];
        let ranges = self.map.ranges(offset, len).filter(knows);
        join::all(ranges.map(|(member, start, len)| self.members[member].discard(start, len)).collect())
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        if let Err(e) = self.check_write(offset, len) {
            return IoFuture::ready(Err(e));
        }
        let zero =
            |(member, start, len): (usize, u64, u64)| self.members[member].write_zeroes(start, len, flags);
        join::all(self.map.ranges(offset, len).map(zero).collect())
    }

    fn advice(&self) -> Option<Advice> {
        let advice: Vec<Option<Advice>> = self.members.iter().map(|member| member.advice()).collect();
        combine(&advice, self.map.width())
    }

    fn generation(&self) -> u64 {
        self.members.iter().fold(0, |sum, member| sum.wrapping_add(member.generation()))
    }

    fn may_forget(&self) -> bool {
        self.members.iter().any(|member| member.may_forget())
    }

    fn away_since(&self) -> Option<Instant> {
        self.members.iter().filter_map(|member| member.away_since()).min()
    }

    fn map_read(&self, offset: u64, len: usize) -> Option<Segment> {
        let piece = self.map.piece(offset, len as u64);
        if piece.len < len as u64 { None } else { self.members[piece.member].map_read(piece.offset, len) }
    }

    fn map_write(&self, offset: u64, len: usize) -> Option<Segment> {
        let piece = self.map.piece(offset, len as u64);
        if piece.len < len as u64 { None } else { self.members[piece.member].map_write(piece.offset, len) }
    }
}

/// Advice for the array: the sum of its members' advice. Members that share a link measure their
/// share of it, so that the sum is what the link holds, not a multiple of it.
pub(crate) fn combine(members: &[Option<Advice>], width: u64) -> Option<Advice> {
    if members.iter().all(Option::is_none) {
        return None;
    }
    let zero = Advice { read: 0, write: 0, io_size: 0, read_ahead: 0, commands: 0 };
    let sum = members.iter().map(|member| member.unwrap_or(Advice::LOCAL)).fold(zero, |sum, one| Advice {
        read: sum.read.saturating_add(one.read),
        write: sum.write.saturating_add(one.write),
        io_size: sum.io_size.saturating_add(one.io_size),
        read_ahead: sum.read_ahead.saturating_add(one.read_ahead),
        commands: sum.commands.saturating_add(one.commands),
    });
    // Full stripes, as far as one buffer holds them.
    let most = BUF_MAX as u64;
    let io_size =
        if width >= most { most } else { (u64::from(sum.io_size).min(most) / width).max(1) * width };
    Some(Advice { io_size: io_size as u32, ..sum })
}

#[cfg(test)]
mod tests;
