//! The wire format: names, entries and frames.
//!
//! A frame is 8 bytes of header, a small head with its fields, and a body with bulk
//! data: the head is parsed on receipt, the body is passed on unparsed. All numbers are
//! little-endian.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | kind |
//! | 1 | zero |
//! | 2–3 | bytes of the head, at most [`HEAD_MAX`] |
//! | 4–7 | bytes of the body, at most [`BODY_MAX`] |
//!
//! The first frame on a connection is [`Frame::Hello`] or [`Frame::Join`], whose layout
//! is the same in every version; the answer names the version to use, or refuses.

mod call;
mod codec;
mod codes;
mod entry;
mod frame;
#[cfg(test)]
mod golden;
mod hello;
mod name;

pub(crate) use entry::is_carried;
pub(crate) use frame::HAVE_MAX;

pub use codec::Malformed;
pub use entry::{Content, Digest, Entry, EntryKind, Time, XATTR_BYTES_MAX, XATTRS_MAX, Xattr};
pub use frame::{
    Action, Batch, BatchReader, Close, Counts, Frame, Header, Limit, Op, Planned, Scanned, Stage, Trouble,
    Tuned, Want,
};
pub use hello::{
    Compare, CopyDirection, Durability, Hash, Hello, Onward, Options, Placement, Refusal, RefusalKind,
    Request, VERSION, Welcome,
};
pub use name::{COMPONENT_MAX, NameError, PATH_LEN_MAX, RESERVED, RelPath, printable, show};

/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 8;
/// The longest head, in bytes: enough for a path and a message.
pub const HEAD_MAX: usize = 16 << 10;
/// The longest body, in bytes: a block, or a nearly full batch with one more small file
/// and its metadata.
pub const BODY_MAX: usize = 2 << 20;
/// Bytes of a block: large enough to make the cost of its frame negligible, small enough
/// to spread a file over several connections.
pub const BLOCK: usize = 1 << 20;
/// Files up to this many bytes are sent in batches, larger ones in blocks.
pub const SMALL: u64 = 256 << 10;
/// A batch is complete with this many bytes of content and metadata.
pub const BATCH_BYTES: usize = 512 << 10;
/// A batch is complete with this many entries.
pub const BATCH_ENTRIES: usize = 1024;
