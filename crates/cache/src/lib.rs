//! Read-ahead and write-behind over a [`BlockDevice`](longhaul_block::BlockDevice).
//!
//! A [`Cache`] serves many users of a device at once, as a file system has them; front ends that
//! attach a device are built on it. A [`stream`] serves one user, as a file. Both write behind,
//! keep [`Unflushed`] changes and resend them in the same way (`write_behind`, `durable`); a cache
//! keeps read-ahead in cells for all readers (`read_ahead`), and a stream in chunks at its position
//! (`stream/reader`).

#![deny(unsafe_code)]

mod blocks;
mod cache;
mod durable;
mod losses;
mod order;
mod read_ahead;
mod room;
mod sequential;
pub mod stream;
mod unflushed;
mod write_behind;

pub use cache::Cache;
pub use losses::{ErrorCursor, Losses};
pub use sequential::{Continued, SequentialDetector};
pub use unflushed::{Change, Epoch, Unflushed};
