//! Pools: the capacity of many targets, cut into volumes and given back.
//!
//! A target offers *spaces*, in which namespaces are made. A [`Pool`] knows its spaces, and makes a
//! volume by making a namespace on as many of them as the layout has members, in failure domains
//! of their own, and an array over these. What exists is recorded twice: in the catalog, which names
//! and coordinates, and in a [`Label`] on each namespace, from which a lost catalog is made again
//! ([`import()`]).
//!
//! Making and removing take several steps at several machines, each of which may be the last one of a
//! host. So each begins with an *intent* in the catalog, held by a lease; once that has run out,
//! any host undoes a volume that was not published, and finishes a removal ([`Pool::recover`]).
//!
//! Namespaces are made by a [`Spaces`]: [`Targets`] makes them at targets by NVMe's own commands. A namespace of a
//! target that makes none can be had as a whole, for a member of a file system: its label is in front of that. A volume
//! is opened as any device is, by its name `volume:POOL/NAME` ([`Volumes`]).

#![forbid(unsafe_code)]

mod access;
mod balance;
mod change;
mod claim;
mod create;
mod error;
mod import;
mod job;
mod keys;
mod known;
mod label;
pub mod live;
mod manager;
mod moving;
mod name;
mod nodes;
mod open;
mod place;
mod pool;
mod record;
mod recover;
mod remote;
mod remove;
mod resize;
mod run_array;
mod shape;
mod snapshot;
mod spaces;
mod targets;
pub mod testing;
mod time;
mod user;
mod users;
mod whole;
mod wire;

pub use access::{CATALOG_NQN, catalog_acceptor, catalog_access};
pub use balance::{PlannedMove, Removal};
pub use create::VolumeRequest;
pub use error::{Error, Result};
pub use import::{Import, Missing, import, take_over};
pub use job::{JobStatus, volume_of_job};
pub use known::{KnownPool, default_catalog};
pub use label::Label;
pub use manager::Manager;
pub use moving::{
    ArrayChange, ArrayView, Arrays, MemberAt, MoveBegun, MoveProgress, MoveRun, MoveStep, Role, RunArray,
};
pub use name::{MAX_NAME, check_name};
pub use nodes::{MAX_NODES, expand_nodes};
pub use open::{SCHEME, VolumeName, Volumes};
pub use place::{Candidate, Need, Shortage, place};
pub use pool::{Host, Pool, Status, TargetStatus, in_sequence};
pub use record::{
    BriefShape, Intent, IntentKind, Member, Moving, PoolRecord, Quota, SnapshotOf, TargetRecord, Usage,
    VolumeBrief, VolumeRecord, VolumeState,
};
pub use recover::Recovered;
pub use remote::Targets;
pub use remove::Removed;
pub use resize::Resizing;
pub use run_array::HostArrays;
pub use shape::{Shape, VolumeLayout, file_segment};
pub use snapshot::SnapshotRequest;
pub use spaces::{Namespace, NamespaceId, Space, SpaceError, Spaces, Taken, machine, shown};
pub use time::{end_of, format_time, wall_time};
pub use user::VolumeUser;
pub use whole::open_member;
