//! The protocol between a catalog server and its clients: frames, as bytes. `docs/catalog-server.md` describes it.
//!
//! ```text
//! frame    length (4 bytes, big-endian, of what follows) | id (8 bytes, big-endian) | kind (1 byte) | body
//! number   LEB128: 7 bits a byte, the lowest first; the highest bit says that more follow
//! bytes    number (how many) | the bytes
//! ```
//!
//! Invariants:
//! - a frame has [`MAX_FRAME`] bytes at most, and nothing is allocated for what it only announces;
//! - a frame is decoded as a whole: what is left over behind its last field is an error;
//! - the first frame of either side has the same form in all versions of the protocol.

mod fields;
mod reply;
mod request;

pub use fields::Malformed;
pub use reply::{Piece, Reply};
pub(crate) use reply::{entry_size, event_size};
pub use request::{Change, Hello, KeyRange, Question, Request, Token};

use crate::types::MAX_TRANSACTION;

/// Version of the protocol.
pub const VERSION: u64 = 1;
/// TCP port of a catalog server unless another one is named.
pub const PORT: u16 = 7420;
/// Most bytes of a frame behind its length: the largest transaction, with the lengths of its keys and values.
pub const MAX_FRAME: usize = MAX_TRANSACTION + (128 << 10);
/// Bytes of entries after which a reply is continued in the next frame.
pub const PIECE: usize = 256 << 10;
/// Bytes of the length that a frame begins with.
pub const LENGTH: usize = 4;
/// Bytes of id and kind.
const HEAD: usize = 9;

/// Appends a frame.
fn frame(id: u64, kind: u8, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; LENGTH]);
    out.extend_from_slice(&id.to_be_bytes());
    out.push(kind);
    body(out);
    let length = u32::try_from(out.len() - at - LENGTH).unwrap_or(u32::MAX);
    out[at..at + LENGTH].copy_from_slice(&length.to_be_bytes());
}

/// The first frame of what was received, without its length, and the bytes that it takes with it; `None` if it is
/// not complete.
///
/// # Errors
/// It is too long, or too short to be a frame.
pub fn split(input: &[u8], most: usize) -> Result<Option<(&[u8], usize)>, Malformed> {
    let Some((length, rest)) = input.split_first_chunk::<LENGTH>() else { return Ok(None) };
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if !(HEAD..=most).contains(&length) {
        return Err(Malformed("the length of a frame is out of range"));
    }
    Ok(rest.get(..length).map(|frame| (frame, LENGTH + length)))
}

/// Id, kind and body of a frame.
fn open(frame: &[u8]) -> Result<(u64, u8, fields::Fields<'_>), Malformed> {
    let (id, rest) = frame.split_first_chunk::<8>().ok_or(Malformed("a frame is too short"))?;
    let (kind, body) = rest.split_first().ok_or(Malformed("a frame is too short"))?;
    Ok((u64::from_be_bytes(*id), *kind, fields::Fields::new(body)))
}
