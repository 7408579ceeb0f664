//! The configuration of a target.

use crate::access::HostLists;
use crate::audit::Audit;
use crate::auth::Keys;
use crate::memory::Memory;
use crate::rates::HostRates;
use crate::tls::TlsPolicy;
use longhaul_conn::transport::Transport;
use longhaul_engine::Config as EngineConfig;
use longhaul_proto::controller::HostAccess;
use longhaul_proto::target::IN_CAPSULE_MAX;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

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
/// The fewest connections that make sense: a quarter is one host's, and that
/// has an admin queue and an I/O queue.
const MAX_CONNECTIONS_LEAST: usize = 8;
/// Connections: thirty hosts of a hundred queues each.
const MAX_CONNECTIONS: usize = 4096;
/// Threads at most by default: each moves tens of gigabits a second.
const THREADS_MAX: usize = 8;

/// Time limits for peers. A slower peer holds memory, descriptors and table entries that others
/// need, and is disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// From the beginning of a connection to its Connect.
    pub connect: Duration,
    /// From the Connect of an admin queue, or from a reset, to CC.EN.
    pub enable: Duration,
    /// For the data of a command, from the moment at which it is received or
    /// asked for by R2T; besides the time that all data which the connection
    /// then owes takes at [`data_rate`](Self::data_rate).
    pub data: Duration,
    /// In bytes a second.
    pub data_rate: u64,
    /// For any progress: a connection with outstanding data sends
    /// [`stall_bytes`](Self::stall_bytes) (or all that is outstanding) in this time, and receives
    /// the answers to its requests.
    pub stall: Duration,
    /// Bytes that a connection must move within [`stall`](Self::stall).
    pub stall_bytes: u64,
}

impl Default for Patience {
    /// Generous: a TCP connection survives the loss of its path for half a minute, and a hundred
    /// queues may share a megabit a second.
    fn default() -> Patience {
        Patience {
            connect: Duration::from_secs(15),
            enable: Duration::from_secs(30),
            data: Duration::from_secs(30),
            data_rate: 8 << 10,
            stall: Duration::from_secs(60),
            stall_bytes: 64 << 10,
        }
    }
}

/// An address of a transport at which a target is to listen.
#[derive(Clone, Debug)]
pub struct TransportListener {
    /// The transport. Blocks of the target's memory are registered with it before they carry data.
    pub transport: Arc<dyn Transport>,
    /// The address there.
    pub address: String,
}

/// Settings of a target.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to serve I/O (and discovery).
    pub listen: Vec<SocketAddr>,
    /// Where to serve both over other transports than TCP.
    pub transports: Vec<TransportListener>,
    /// Where to serve discovery too, usually port 8009. An address in use is
    /// no error: another target of this machine may serve it.
    pub discovery: Option<SocketAddr>,
    /// In-capsule data of I/O queues in bytes: 0 to 4 MiB.
    pub in_capsule: u32,
    /// Bound of the target's memory in bytes.
    pub memory: usize,
    /// Number of engine threads, at least 1.
    pub threads: usize,
    /// The engine of each.
    pub engine: EngineConfig,
    /// Congestion control by the kernel's name, or its default.
    pub congestion: Option<String>,
    /// Grant header digests to hosts that ask.
    pub hdr_digest: bool,
    /// Grant data digests to hosts that ask.
    pub data_digest: bool,
    /// Which hosts may connect, and which of them may write.
    pub hosts: HostLists,
    /// How fast they may read and write.
    pub host_rates: HostRates,
    /// How hosts prove who they are: those that are in it may connect, and no others. Without it a host is
    /// who it says.
    pub keys: Option<Keys>,
    /// Whether connections use TLS, with the keys for it in [`keys`](Self::keys).
    pub tls: TlsPolicy,
    /// Hosts that may register with the discovery controller, which makes it a central one. With
    /// [`keys`](Self::keys) these hosts authenticate to it.
    pub registrars: Option<HostAccess>,
    /// I/O queues of one controller.
    pub max_queues: u16,
    /// Entries of a queue.
    pub max_queue_size: u16,
    /// Connections in all, as far as there are descriptors. One address may
    /// have half of them, one host a quarter.
    pub max_connections: usize,
    /// How long a peer may take.
    pub patience: Patience,
    /// Count commands and their times, for an [`Observer`](crate::Observer).
    pub statistics: bool,
    /// Receives the events that matter to security.
    pub audit: Option<Arc<dyn Audit>>,
}

impl Config {
    /// Whether a host may register subsystems with the discovery controller.
    pub(crate) fn may_register(&self, hostnqn: &str) -> bool {
        self.registrars.as_ref().is_some_and(|registrars| registrars.allows(hostnqn))
    }

    /// Whether the discovery controller is a central one, with which this host may not register.
    pub(crate) fn refuses_to_register(&self, hostnqn: &str) -> bool {
        self.registrars.is_some() && !self.may_register(hostnqn)
    }
}

impl Default for Config {
    fn default() -> Config {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        Config {
            listen: Vec::new(),
            transports: Vec::new(),
            discovery: None,
            in_capsule: IN_CAPSULE,
            memory: MEMORY,
            threads,
            engine: EngineConfig::default(),
            congestion: None,
            hdr_digest: true,
            data_digest: true,
            hosts: HostLists::default(),
            host_rates: HostRates::default(),
            keys: None,
            tls: TlsPolicy::Off,
            registrars: None,
            max_queues: MAX_QUEUES,
            max_queue_size: MAX_QUEUE_SIZE,
            max_connections: MAX_CONNECTIONS,
            patience: Patience::default(),
            statistics: false,
            audit: None,
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
        if self.tls != TlsPolicy::Off && !cfg!(feature = "tls") {
            return Err(longhaul_conn::TLS_MISSING.into());
        }
        if self.tls != TlsPolicy::Off && self.keys.is_none() {
            return Err("TLS without keys: name the directory of 'longhaul key make' with --keys".into());
        }
        if self.max_connections < MAX_CONNECTIONS_LEAST {
            return Err(format!("at least {MAX_CONNECTIONS_LEAST} connections are needed"));
        }
        if self.threads == 0 || self.max_queues == 0 || self.max_queue_size < 2 {
            return Err("at least one thread, one queue and two entries are needed".into());
        }
        Ok(())
    }
}
