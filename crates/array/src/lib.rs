//! Devices joined to one: stripes, mirrors and parity over block devices.
//!
//! Members are [`BlockDevice`](longhaul_block::BlockDevice)s and so is the
//! result: an array of files is used, and tested, as an array of namespaces a
//! continent away. Nothing here knows what is behind a member.

#![forbid(unsafe_code)]

mod join;
mod layout;
mod stripe;
#[cfg(test)]
mod testing;

pub use layout::{DEFAULT_UNIT, Layout, LayoutError, MAX_UNIT, MAX_WIDTH, MIN_UNIT, MIN_WIDTH, suited_unit};
pub use stripe::{Stripe, StripeError};
