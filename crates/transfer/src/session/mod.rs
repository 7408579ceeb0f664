//! The protocol without I/O: what either side does with frames.
//!
//! [`Sender`] turns what was read into frames and answers into what is still
//! to be read; [`Receiver`] turns frames into jobs for whoever writes, and
//! finished jobs into answers. Neither knows sockets, files or clocks, so both
//! run in virtual time in the tests.
//!
//! What holds on the wire:
//! - every stream stands for itself: a file is announced on each stream before
//!   its first block there, so streams need no order among each other;
//! - nothing waits for an answer, but files that are asked about first, and
//!   those wait together;
//! - the receiving side's answers are bulk counts, and one frame for each
//!   object that failed.

mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub use receiver::{Done, Incoming, Job, Receiver, Told};
pub use sender::{Heard, Item, Outgoing, Sender, Wanted};

use crate::wire::Malformed;

/// The other side does not keep to the protocol.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A frame makes no sense.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A frame at the wrong time.
    #[error("the other side sent {0} when it could not be")]
    Unexpected(&'static str),
    /// More than the protocol allows.
    #[error("the other side sent too many {0}")]
    TooMany(&'static str),
    /// A name that this side did not ask for.
    #[error(
        "the other side sent {0}, which was not asked for: it is faulty or hostile; nothing more was taken from it"
    )]
    Unasked(String),
}

/// The most questions without an answer. With [`BATCH_ENTRIES`] files each
/// they ask about 65,536 files in a round trip.
///
/// [`BATCH_ENTRIES`]: crate::wire::BATCH_ENTRIES
pub const QUESTIONS: usize = 64;

/// The most files that are announced and not complete: what bounds the
/// receiver's memory and its descriptors. A sender does not come near it: blocks
/// are too large for that many to wait, and of files of holes alone, which have
/// none, the receiving side takes no more than half as many ends at once.
pub const OPEN_FILES: usize = 16 << 10;

/// What these may have of names and extended attributes together, in bytes: an
/// eighth of the most that so many could have.
pub const OPEN_BYTES: usize = 128 << 20;
