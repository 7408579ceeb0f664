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
//! Nothing here knows a protocol: namespaces are made by a [`Spaces`].

#![forbid(unsafe_code)]

mod claim;
mod create;
mod error;
mod import;
mod keys;
mod label;
mod name;
mod place;
mod pool;
mod record;
mod recover;
mod remove;
mod shape;
mod spaces;

pub use create::VolumeRequest;
pub use error::{Error, Result};
pub use import::{Import, Missing, import};
pub use label::Label;
pub use name::{MAX_NAME, check_name};
pub use place::{Candidate, Need, Shortage, place};
pub use pool::{Host, Pool, Status, TargetStatus};
pub use record::{
    Intent, IntentKind, Member, PoolRecord, Quota, TargetRecord, Usage, VolumeRecord, VolumeState,
};
pub use recover::Recovered;
pub use remove::Removed;
pub use shape::{Shape, VolumeLayout};
pub use spaces::{Namespace, Space, SpaceError, Spaces};
