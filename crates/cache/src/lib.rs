//! Read-ahead and write-behind over a [`BlockDevice`](longhaul_block::BlockDevice).
//!
//! A [`Cache`] serves many users of a device at once, as a file system has them:
//! front ends that attach a device stand on it. A [`stream`] serves one user, as a
//! file. What a device has acknowledged and may forget is kept in [`Unflushed`].

#![deny(unsafe_code)]

mod blocks;
mod cache;
mod order;
mod read_ahead;
mod sequential;
pub mod stream;
mod unflushed;

pub use cache::{Cache, ErrorCursor, Losses};
pub use sequential::{Continued, SequentialDetector};
pub use unflushed::{Change, Unflushed};
