//! Arrays as devices: records of their members, and the processes that run them.
//!
//! A superblock identifies a member, but does not say by which name it is opened. The *record* of
//! each array that was created or assembled on this host has those names, in the *registry* of the
//! user that did it; root also sees the registry of the user that called `sudo`. The process that
//! runs an array (a target, a load) serves a control socket for `array status` and the like.

mod access;
mod control;
mod last_known;
mod record;
mod registry;
mod report;
mod running;
mod watch;

pub use access::ArrayAccess;
pub use control::{ArrayClient, ArrayReply, ArrayRequest, grow, running};
pub use record::{ArrayRecord, ArraySettings};
pub use registry::Registry;
pub(crate) use report::paths_json;
pub use report::{
    ExtentReply, MemberReply, PathReply, PathsReply, ProgressReply, ReadsReply, ScrubReply, StatusReply,
    WayReply, WritesReply, scrub_json, status_json,
};
pub use running::{RunningArray, open_members, read_labels, read_status};
pub use watch::ArrayWatch;

/// Prefix of device names that mean an array.
pub const SCHEME: &str = "array:";
