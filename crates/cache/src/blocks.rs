//! Whole blocks of a device, in pieces that it takes.

use longhaul_block::{BlockIo, DeviceInfo, IoResult};
use longhaul_engine::{Buf, BufMut};

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
