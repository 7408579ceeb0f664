//! Moving data sets: whole trees of files, at the speed of the link, whatever
//! the files.
//!
//! One pipeline of five stages: *scan*, *read*, *send*, *receive*, *write*, with
//! bounded queues between them. Scanning, reading and writing are threads
//! (file systems make who calls them wait); sending and receiving are tasks of
//! an engine, one for each stream.
//!
//! - Small files travel many in one frame, with their metadata and content;
//!   large ones in blocks of 1 MiB, which all readers read, all streams carry
//!   and all writers write. No file costs a round trip: the sender never waits
//!   for an answer, and hears of results in bulk.
//! - Back-pressure is TCP's: who cannot write does not receive.
//! - Every block and every small file has a checksum, made where it was read
//!   and compared where it is written.
//! - A file appears under its name when all of it is there. What is unfinished
//!   is found again by a later run of the same copy, block for block.
//! - What cannot be copied is told and left out; the rest goes on.
//!
//! | module | is |
//! |---|---|
//! | [`wire`] | names, entries, frames: what travels |
//! | [`session`] | both sides of the protocol, without I/O |
//! | `scan`, `ask`, `read` | the sending side's threads |
//! | `write`, `journal`, `delete` | the receiving side's threads |
//! | `asked` | what the receiving side asked for, and so takes |
//! | `tree` | a directory that is never left |
//! | `stamps` | which times a file system keeps |
//! | `made` | data without files, and the place where none is kept |
//! | [`host`] | what a machine is doing, told to another |
//! | `manifest` | a list of checksums for others to check |
//! | `pace` | a limit of the rate |
//! | `tuner`, `tune`, `gate` | how many threads and connections, by what they bring |
//! | `source`, `sink` | the two sides: queues, tasks and threads |
//! | `link` | frames over a connection |
//! | `seal` | encryption under them |
//! | `lobby` | connections that have not said yet what they want |
//! | `silence` | other sides that say nothing any more |
//! | `ssh` | an agent for one copy, started over ssh |
//! | `onward` | copies between two others |
//! | [`copy()`], [`Agent`] | who connects, and who is connected to |
//! | [`dataset`] | data sets to test with |

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
