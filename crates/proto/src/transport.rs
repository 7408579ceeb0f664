//! What both ends of an NVMe/TCP connection have in common: taking PDUs out
//! of a byte stream, batching PDUs into one, and ending a connection that
//! went wrong.
//!
//! The driver owns the socket and all payload memory. It reads with one
//! vectored receive into `[what Want::Payload names, staging buffer]`, so that
//! bulk data lands where it belongs while the headers behind it land in
//! staging, and it writes a [`Batch`] with one vectored send.

mod endpoint;
mod fatal;
mod params;
mod rx;
mod tx;

pub use endpoint::Endpoint;
pub(crate) use endpoint::{Connection, ConnectionState, EndpointSide};
pub use fatal::{CloseReason, Fault};
pub use params::Params;
pub use rx::Want;
pub(crate) use rx::{Deframer, Role, StreamStep};
pub(crate) use tx::Tx;
pub use tx::{BACKLOG_MAX, Batch, DigestAt, Piece, RESPONSES_MAX};

/// The most entries of a queue. It bounds the cost of a connection, and leaves room in a transfer
/// tag and a command identifier to distinguish uses of a slot.
pub const ENTRIES_MAX: u16 = 4096;
