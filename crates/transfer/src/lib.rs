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
//! | module | contents |
//! |---|---|
//! | [`wire`] | wire format: names, entries, frames |
//! | [`session`] | both sides of the protocol, without I/O |
//! | `scan`, `existence_query`, `read` | threads of the sender |
//! | `write`, `journal`, `delete` | threads of the receiver |
//! | `allow_list` | names that a receiver accepts |
//! | `tree`, `root` | file operations that cannot leave a directory; resolution of paths |
//! | `stamps`, `case_folding` | properties of the destination's file system |
//! | `synthetic` | synthetic sources, and the null destination |
//! | [`host`] | performance counters of a machine, for a remote reader |
//! | `manifest` | list of checksums for `b3sum` |
//! | `rate_limit` | limit of the sending rate |
//! | `tuner`, `streams`, `limiter`, `tune`, `gate` | numbers of threads and connections, tuned by measurement |
//! | `source`, `sink` | sender and receiver: queues, tasks and threads |
//! | `link` | frames over a connection |
//! | `noise` | encryption below the frames |
//! | `pending` | connections to an agent before their greeting |
//! | `peer_timeout` | timeout for silent peers |
//! | `ssh` | an agent for one copy, started over ssh |
//! | `third_party` | copies between two agents |
//! | [`copy()`], [`Agent`] | the client, and the server |
//! | [`dataset`] | data sets for tests and experiments |

#![forbid(unsafe_code)]

mod agent;
mod allow_list;
mod case_folding;
mod copy;
mod copy_task;
pub mod dataset;
mod delete;
mod endpoint;
mod existence_query;
mod filter;
mod gate;
mod guard;
pub mod host;
mod journal;
mod limiter;
mod link;
mod manifest;
mod monitor;
mod noise;
mod output;
mod peer_timeout;
mod pending;
mod queue;
mod rate_limit;
mod read;
mod root;
mod scan;
pub mod session;
mod sink;
mod source;
mod ssh;
mod stamps;
mod streams;
mod synthetic;
mod third_party;
mod tree;
mod tune;
mod tuner;
pub mod wire;
mod write;

pub use agent::{Agent, AgentConfig, Bound};
pub use copy::{CopyError, CopySpec, Settings, Summary, copy};
pub use endpoint::Endpoint;
pub use filter::Filter;
pub use link::LinkError;
pub use monitor::{Chosen, Monitor, Note, Snapshot};
pub use noise::Key;
pub use peer_timeout::PATIENCE;
pub use queue::Gauge;
pub use source::SessionError;
pub use ssh::{Offer, Ssh, Via, carry};
pub use tune::{Concurrency, FILE_WORK};
pub use wire::Stage;
