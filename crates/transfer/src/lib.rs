//! Transfer of data sets: whole trees of files, at the speed of the link for large and
//! small files alike.
//!
//! A pipeline of five stages, *scan*, *read*, *send*, *receive* and *write*, with bounded
//! queues between them. Scanning, reading and writing run on threads, since file systems
//! block their callers; sending and receiving are tasks of an engine, one for each data
//! connection.
//!
//! - Small files are sent many to a frame, with metadata and content; large ones in blocks
//!   of 1 MiB, spread over all readers, connections and writers. No file costs a round
//!   trip: the sender does not wait for answers, and results are reported in bulk.
//! - Back-pressure is TCP's: a receiver that cannot write stops receiving.
//! - Each block and each small file has a checksum, computed by the reader and verified by
//!   the writer.
//! - A file gets its name when it is complete. A later run of the same copy resumes
//!   unfinished files block by block.
//! - Objects that cannot be copied are reported and skipped.
//!
//! | room | contents |
//! |---|---|
//! | [`wire`] | wire format: names, entries, frames, and the numbers of its codes |
//! | [`session`] | both sides of the protocol, without I/O |
//! | `link` | frames over a connection; the noise layer, and the timeout for silent peers |
//! | `tree` | directories that a path cannot leave: scan, names, filters, metadata |
//! | `send` | the sender: existence queries, reader threads, rate limit, synthetic sources |
//! | `receive` | the receiver: writer threads, journal, manifest, allow-list, null destination |
//! | `tune` | numbers of threads and connections, tuned by measurement; the concurrency gate |
//! | `agent` | [`Agent`], the server; third-party copies |
//! | `copy` | [`copy()`], the client; an agent for one copy, started over ssh |
//! | `far` | a directory of another machine as a file system: [`FarDirectory`], and its service |
//! | [`dataset`] | data sets for tests and experiments |
//!
//! Beside the rooms, used by several: `queue` (between the stages), `parallel` (one step for many
//! objects), `guard` (panics of threads), `monitor` (progress) and [`host`] (performance counters of a machine).

#![forbid(unsafe_code)]

mod agent;
mod copy;
pub mod dataset;
mod far;
mod guard;
pub mod host;
mod link;
mod monitor;
mod parallel;
mod queue;
mod receive;
mod send;
pub mod session;
mod tree;
mod tune;
pub mod wire;

pub use agent::{Agent, AgentConfig, AgentObserver, Bound, SessionCounts};
pub use copy::endpoint::Endpoint;
pub use copy::ssh::{Offer, Ssh, Via, carry};
pub use copy::{CopyError, CopySpec, Settings, Summary, copy};
pub use far::FarDirectory;
pub use link::LinkError;
pub use link::noise::Key;
pub use link::peer_timeout::PATIENCE;
pub use monitor::{Chosen, Monitor, Note, Snapshot};
pub use queue::Gauge;
pub use session::error::SessionError;
pub use tree::MountedFs;
pub use tree::filter::Filter;
pub use tune::{Concurrency, FILE_WORK, KnownPaths};
pub use wire::Stage;
