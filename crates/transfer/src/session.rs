//! The session protocol without I/O: how either side processes frames.
//!
//! [`Sender`] turns items into frames, and answers into files to read;
//! [`Receiver`] turns frames into jobs for the writer threads, and their results into
//! answers. Neither knows sockets, files or clocks, so the tests run both in virtual
//! time.
//!
//! On the wire:
//! - streams (data connections) are independent: a file is announced on each stream
//!   before its first block there, so no order between streams is needed;
//! - only files under an existence query wait for an answer, many at a time;
//! - the receiver answers with total counts, and one frame for each object that failed.

pub(crate) mod error;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub use receiver::{Incoming, JobResult, Receiver, SenderNotice, WriteJob};
pub use sender::{Outgoing, ReceiverMessage, Sender, SenderItem, WantedFile};

use crate::wire::Malformed;

/// A violation of the protocol by the other side.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A malformed frame.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A frame that the protocol does not allow at this point.
    #[error("protocol violation: the other side sent {0} at the wrong time")]
    Unexpected(&'static str),
    /// More of something than the protocol allows.
    #[error("protocol violation: the other side sent too many {0}")]
    TooMany(&'static str),
    /// A name that is not on the allow-list.
    #[error(
        "the other side sent {0}, which was not requested: it is faulty or hostile; nothing more was accepted from it"
    )]
    NotRequested(String),
}

/// The most unanswered existence queries. With [`BATCH_ENTRIES`] files each they cover
/// 65,536 files in a round trip.
///
/// [`BATCH_ENTRIES`]: crate::wire::BATCH_ENTRIES
pub const OPEN_QUERIES: usize = 64;

/// The most files that are announced and incomplete: bounds the receiver's memory and
/// descriptors. A correct sender stays far below: blocks are too large for so many files
/// to be in flight, and of files without blocks (holes alone) the receiver's job queue
/// takes half as many.
pub const OPEN_FILES: usize = 16 << 10;

/// The most memory of their names and extended attributes, in bytes: an eighth of what
/// so many files could have.
pub const OPEN_BYTES: usize = 128 << 20;
