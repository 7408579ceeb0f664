//! What a target is told.

use crate::memory::Memory;
use longhaul_engine::Config as EngineConfig;
use longhaul_proto::controller::HostAccess;
use longhaul_proto::target::IN_CAPSULE_MAX;
use std::net::SocketAddr;

/// In-capsule data of I/O queues: as large as an I/O, so that a write costs
/// one round trip.
const IN_CAPSULE: u32 = 1 << 20;
/// Bound of the target's memory.
const MEMORY: usize = 256 << 20;
/// The least MDTS that is offered, whatever the in-capsule size.
const MAX_TRANSFER_MIN: u32 = 1 << 20;
/// I/O queues of one controller: more than a large host has cores.
const MAX_QUEUES: u16 = 128;
/// Entries of a queue.
const MAX_QUEUE_SIZE: u16 = 1024;
/// Threads at most by default: each moves tens of gigabits a second.
const THREADS_MAX: usize = 8;

/// Settings of a target.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to serve I/O (and discovery).
    pub listen: Vec<SocketAddr>,
    /// Where to serve discovery too, usually port 8009. An address in use is
    /// no error: another target of this machine may serve it.
    pub discovery: Option<SocketAddr>,
    /// In-capsule data of I/O queues in bytes: 0 to 4 MiB.
    pub in_capsule: u32,
    /// Bound of the target's memory in bytes.
    pub memory: usize,
    /// Engine threads.
    pub threads: usize,
    /// The engine of each.
    pub engine: EngineConfig,
    /// Congestion control by the kernel's name, or its default.
    pub congestion: Option<String>,
    /// Grant header digests to hosts that ask.
    pub hdr_digest: bool,
    /// Grant data digests to hosts that ask.
    pub data_digest: bool,
    /// Which hosts may connect.
    pub hosts: HostAccess,
    /// I/O queues of one controller.
    pub max_queues: u16,
    /// Entries of a queue.
    pub max_queue_size: u16,
}

impl Default for Config {
    fn default() -> Config {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        Config {
            listen: Vec::new(),
            discovery: None,
            in_capsule: IN_CAPSULE,
            memory: MEMORY,
            threads,
            engine: EngineConfig::default(),
            congestion: None,
            hdr_digest: true,
            data_digest: true,
            hosts: HostAccess::Any,
            max_queues: MAX_QUEUES,
            max_queue_size: MAX_QUEUE_SIZE,
        }
    }
}

impl Config {
    /// The largest transfer of one command in bytes: what fits in a capsule,
    /// so that a host that keeps to MDTS never needs a second round trip.
    pub(crate) fn max_transfer(&self) -> u32 {
        (1 << self.in_capsule.max(1).ilog2()).max(MAX_TRANSFER_MIN)
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        if self.in_capsule > IN_CAPSULE_MAX {
            return Err(format!(
                "in-capsule size of {} bytes: at most {IN_CAPSULE_MAX} (4 MiB)",
                self.in_capsule
            ));
        }
        if !self.in_capsule.is_multiple_of(16) {
            return Err(format!("in-capsule size of {} bytes: it must be a multiple of 16", self.in_capsule));
        }
        if self.memory < Memory::MIN {
            return Err(format!(
                "memory bound of {} bytes: at least {} MiB is needed",
                self.memory,
                Memory::MIN >> 20
            ));
        }
        if self.threads == 0 || self.max_queues == 0 || self.max_queue_size < 2 {
            return Err("at least one thread, one queue and two entries are needed".into());
        }
        Ok(())
    }
}
