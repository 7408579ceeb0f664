//! Arrays: stripes, mirrors and parity over block devices.
//!
//! Members are [`BlockDevice`](longhaul_block::BlockDevice)s and so is the result: an array of
//! local files is used, and tested, like an array of remote namespaces. Nothing here depends on
//! what is behind a member.

#![forbid(unsafe_code)]

mod admission;
mod arbitrate;
mod array;
mod assemble;
mod away;
mod bytes;
mod clock;
mod core;
mod current;
mod device;
mod error;
mod event;
mod fence;
mod geometry;
mod hedge;
mod history;
mod in_flight;
mod intent;
mod join;
mod journal;
mod layout;
mod locks;
mod lost;
mod manage;
mod measure;
mod member;
mod memory;
mod options;
mod overlay;
mod plan;
mod reach;
mod read;
mod read_cache;
mod rebuild;
mod report;
mod resync;
mod rows;
mod scrub;
mod sequential;
mod stripe;
mod sums;
mod superblock;
mod survey;
#[cfg(test)]
mod testing;
mod units;
mod upkeep;
mod verify;
mod window;
mod without;
mod witness;
mod write;

pub use array::{assemble, assemble_as, assemble_with, create, create_as, create_witnessed};
pub use assemble::Shape;
pub use away::AWAY_ROUND_TRIPS;
pub use core::Counts;
pub use device::ArrayDevice;
pub use error::ArrayError;
pub use geometry::{BLOCK, Geometry};
pub use layout::{
    DEFAULT_UNIT, Layout, LayoutError, MAX_UNIT, MAX_WIDTH, MIN_UNIT, MIN_WIDTH, path_unit, suited_unit,
};
pub use measure::measure;
pub use member::MemberCounts;
pub use memory::{Known, Memory};
pub use options::Options;
pub use report::{Extent, Health, MemberStatus, Progress, Status};
pub use scrub::ScrubReport;
pub use stripe::{Stripe, StripeError};
pub use superblock::{Condition, MAX_NAME, MAX_SPARES, Unknown};
pub use survey::{Label, look, survey};
#[cfg(feature = "switch-off")]
pub use without::Mechanism;
pub use witness::WITNESS_SIZE;
