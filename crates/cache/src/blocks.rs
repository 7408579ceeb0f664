//! Any bytes of a device, as whole blocks in pieces that the device takes.

use futures_util::future::join_all;
use longhaul_block::{BlockIo, DeviceInfo, IoError, IoResult, WriteFlags};
use longhaul_engine::{Buf, BufMut};
use std::ops::Range;

/// The whole blocks around `len` bytes at `offset`.
///
/// # Errors
/// The bytes are not within the device.
pub(crate) fn around(info: &DeviceInfo, offset: u64, len: u64) -> IoResult<Range<u64>> {
    let end = offset.checked_add(len).filter(|&end| end <= info.size);
    let end = end.ok_or(IoError::OutOfRange { offset, len, size: info.size })?;
    let block = u64::from(info.block_size);
    Ok(offset / block * block..end.div_ceil(block) * block)
}

/// The whole blocks within `len` bytes at `offset`; may be empty.
pub(crate) fn within(info: &DeviceInfo, offset: u64, len: u64) -> Range<u64> {
    let block = u64::from(info.block_size);
    offset.div_ceil(block) * block..(offset + len) / block * block
}

/// Reads whole blocks, in pieces that the device takes. The pieces are begun
/// at once.
pub(crate) fn read(
    io: &dyn BlockIo,
    info: &DeviceInfo,
    offset: u64,
    len: usize,
) -> impl Future<Output = IoResult<Buf>> + use<> {
    let piece = info.max_io as usize;
    let (mut rest, mut at) = (Some(BufMut::zeroed(len)), offset);
    let mut pieces = Vec::with_capacity(len.div_ceil(piece));
    while let Some(mut part) = rest.take() {
        if part.len() > piece {
            rest = Some(part.split_off(piece));
        }
        let size = part.len() as u64;
        pieces.push(io.read(at, part));
        at += size;
    }
    async move {
        let mut whole: Option<BufMut> = None;
        for piece in pieces {
            let part = piece.await?;
            match &mut whole {
                None => whole = Some(part),
                Some(whole) => whole.unsplit(part).expect("split from it"),
            }
        }
        Ok(whole.unwrap_or_else(|| BufMut::zeroed(0)).freeze())
    }
}

/// Writes whole blocks.
///
/// # Errors
/// The first one of the pieces. All pieces have ended by then, so none of them can overwrite a
/// later change of the same blocks.
pub(crate) async fn write(
    io: &dyn BlockIo,
    info: &DeviceInfo,
    offset: u64,
    whole: &Buf,
    flags: WriteFlags,
) -> IoResult<()> {
    let mut pieces = Vec::new();
    let mut done = 0;
    while done < whole.len() {
        let size = (whole.len() - done).min(info.max_io as usize);
        let piece = whole.slice(done..done + size);
        pieces.push(io.write(offset + done as u64, piece, flags));
        done += size;
    }
    join_all(pieces).await.into_iter().collect()
}
