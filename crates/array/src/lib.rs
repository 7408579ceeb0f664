//! Arrays: stripes, mirrors and parity over block devices.
//!
//! Members are [`BlockDevice`](longhaul_block::BlockDevice)s and so is the result: an array of
//! local files is used, and tested, like an array of remote namespaces. Nothing here depends on
//! what is behind a member.

#![forbid(unsafe_code)]

mod array;
mod assembly;
mod core;
mod device;
mod error;
mod event;
mod format;
mod heal;
mod io;
mod manage;
mod member;
mod options;
mod report;
mod session;
mod stripe;
#[cfg(test)]
mod testing;
mod without;

pub use array::{ArrayFuture, assemble, assemble_as, assemble_with, create, create_as, create_witnessed};
pub use assembly::copies::adopt_copies;
pub use assembly::create::Shape;
pub use assembly::measure::measure;
pub use assembly::survey::{Label, look, survey};
pub use core::HaltReason;
pub use device::ArrayDevice;
pub use error::ArrayError;
pub use format::geometry::{BLOCK, Geometry};
pub use format::layout::{
    DEFAULT_UNIT, Layout, LayoutError, MAX_UNIT, MAX_WIDTH, MIN_UNIT, MIN_WIDTH, path_unit, suited_unit,
};
pub use format::section::Growth;
pub use format::superblock::{Condition, MAX_NAME, MAX_SPARES, Unknown};
pub use heal::scrub::ScrubReport;
pub use io::Counts;
pub use member::MemberCounts;
pub use member::disconnect::OFFLINE_ROUND_TRIPS;
pub use options::Options;
pub use report::{Extent, Health, MemberStatus, Progress, Status};
pub use session::guard::Guard;
pub use session::memory::{Known, Memory};
pub use session::watch::{StoodStill, running_session, wait_for_end};
pub use session::witness::WITNESS_SIZE;
pub use stripe::{Stripe, StripeError};
#[cfg(feature = "switch-off")]
pub use without::Mechanism;
