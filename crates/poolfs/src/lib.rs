//! File systems in pools: files by name, striped over targets with parity, shared by hosts.
//!
//! A file system has a data namespace on each of its targets, and its metadata in the catalog of the pool.
//! [`PoolFs`] is one mount of it: a [`FileSystem`](longhaul_fs::FileSystem) whose reads and writes go to the
//! targets directly, with no server between.
//!
//! | room | contents |
//! |---|---|
//! | `schema`, `settings`, `extent`, `bytes` | keys and records in the catalog |
//! | `store` | optimistic transactions on them |
//! | `session` | one mount: its lease, its open files |
//! | `names`, `listing` | directories |
//! | `lease` | directories of which this host has a lease: what is made there is written behind |
//! | `locks` | flock(2) and fcntl(2) between hosts |
//! | `content`, `node`, `runs` | reading, writing, and the commit of what was written |
//! | `stripe`, `segment`, `members` | units with parity, where they are placed, and the devices |
//! | `fill`, `moving` | members at other places, and what is written there; for the pool that moves them |
//! | `replace` | members that are lost for good are made again on other targets |
//! | `cleaner` | segments become free again, and what lost hosts leave is removed |
//! | `compact`, `relocate`, `maps` | content moves out of segments that are mostly dead, and from there the map of a file is found |
//! | `calls`, `workers` | the calls of the interface, each on a thread |
//! | `snapshots`, `view` | what snapshots keep, and a snapshot as if it were the file system |
//! | `quota` | what users and groups have, and how much they may have |
//! | `check`, `scrub` | the metadata against itself; content against its checksums |
//! | `show` | what `longhaul top` shows of it |
//! | `client` | files by their paths, for programs |
//! | `manage` | making, listing and removing file systems, and opening their members |
//!
//! What is on the members and in the catalog, and why it survives crashes, is described in
//! `docs/file-systems.md`.

#![forbid(unsafe_code)]

mod bytes;
mod calls;
mod check;
mod cleaner;
mod client;
mod compact;
mod content;
mod extent;
mod fence;
mod fill;
mod lease;
mod listing;
mod locks;
mod manage;
mod maps;
mod members;
mod moving;
mod names;
mod node;
mod programs;
mod quota;
mod reaper;
mod relocate;
mod replace;
mod runs;
mod schema;
mod scrub;
mod segment;
mod session;
mod settings;
mod show;
mod snapshots;
mod store;
mod stripe;
pub mod testing;
mod view;
mod workers;

pub use check::{FsReport, check};
pub use client::{Client, OpenFile};
pub use fill::FillProgress;
pub use manage::{
    FsName, FsRef, FsStatus, SCHEME, create, find, is_fs, list, make_snapshot, open, quotas, recount, remove,
    remove_snapshot, resize, scrub, set_quota, snapshots, status,
};
pub use members::{MemberStatus, OpenMember};
pub use moving::HostMembers;
pub use quota::{FsQuota, LimitChange, Limits, Owner, Usage};
pub use replace::{Replacement, Replacer};
pub use scrub::ScrubReport;
pub use session::{FsOptions, TopDirectory};
pub use snapshots::{FsSnapshot, kept};
pub use workers::PoolFs;
