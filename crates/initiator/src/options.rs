//! How a remote device is reached.

use crate::path::PathOptions;
use crate::uri::UriOptions;
use longhaul_auth::{HostKey, KeySource, TlsKey};
use longhaul_conn::transport::Transport;
use longhaul_engine::Config;
use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use uuid::Uuid;

/// Entries of an I/O queue: 128 KiB each make 128 MiB in flight, 10 Gb/s at
/// 100 ms. A controller that takes fewer gets fewer.
const QUEUE_SIZE: u16 = 1024;
/// Keep-alive time-out: long enough for a link that is busy or briefly cut.
const KATO: Duration = Duration::from_secs(15);
/// How long one step of setting up may take: several retransmissions of TCP
/// at 200 ms of round trip.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long I/O waits for a lost connection: as `nvme-cli` has it.
const CTRL_LOSS: Duration = Duration::from_secs(600);
/// How long a command may take: a disk that spins up, or a controller below
/// that is reset, takes half a minute.
const IO_TIMEOUT: Duration = Duration::from_secs(60);
/// Silence of TCP that ends a connection: four retransmissions on a short path.
pub(crate) const SILENCE: Duration = Duration::from_secs(3);
/// I/O queues that are connected together with the controller.
const QUEUES: u16 = 1;
/// R2Ts for one command at a time: the Linux kernel's target refuses hosts
/// that allow more than one.
const MAX_R2T: u32 = 1;
/// Transfers above this are split, whatever the controller allows: what our
/// own target takes in one capsule.
const MAX_TRANSFER: u32 = 1 << 20;

/// Settings of an initiator. [`Options::default`] is good for any path.
#[derive(Clone, Debug)]
pub struct Options {
    /// CRC32C over PDU headers, if the target grants it.
    pub hdr_digest: bool,
    /// CRC32C over PDU data, if the target grants it.
    pub data_digest: bool,
    /// Entries of each I/O queue (one fewer commands can be outstanding), at
    /// most what the controller has.
    pub queue_size: u16,
    /// I/O queues to connect at once with the controller; more are connected
    /// when threads open the device.
    pub queues: u16,
    /// Keep-alive time-out; zero switches it off.
    pub kato: Duration,
    /// How long one step of setting up may take.
    pub connect_timeout: Duration,
    /// How long I/O waits for a connection that is lost, before it fails;
    /// without it, for ever. Zero: nothing is tried again.
    pub ctrl_loss: Option<Duration>,
    /// How long a command may take once everything that was submitted before
    /// it is done. Then it is aborted and tried again; if it cannot be aborted
    /// and does not end in as much time again, another connection is made.
    /// Zero: for ever.
    pub io_timeout: Duration,
    /// Time for which TCP gets no acknowledgement after which a connection is given up; ten round
    /// trips if that is longer.
    pub silence: Duration,
    /// Keeps writes of a connection that was lost from taking effect after later ones. Only tests
    /// of this property switch it off.
    #[doc(hidden)]
    pub fencing: bool,
    /// Largest transfer of one command, in bytes.
    pub max_transfer: u32,
    /// R2Ts that a target may have outstanding for one command. More than one
    /// lets a target that asks for little at a time overlap round trips; not
    /// every target takes such a host.
    pub max_r2t: u32,
    /// NQN that this host calls itself.
    pub hostnqn: String,
    /// Keys by which hosts prove their identity to targets that require it, looked up at each connection. If this
    /// host also has a secret of the subsystem, it refuses a target that does not prove its own identity.
    pub keys: Option<Arc<dyn KeySource>>,
    /// Use TLS, with the key for it in [`keys`](Self::keys).
    pub tls: bool,
    /// Use TLS with a PSK that an authentication has made, by the secret in [`keys`](Self::keys) (secure channel
    /// concatenation). The connection of the authentication, and those to a discovery controller, are without TLS.
    pub concat: bool,
    /// Identifier of this host: one per running system.
    pub hostid: Uuid,
    /// Congestion control by the kernel's name, or its default.
    pub congestion: Option<String>,
    /// Transports that the program brings, by their names in URIs: `nvme+NAME://ADDRESS/SUBNQN`. A transport called
    /// `unix` replaces that of this library.
    pub transports: BTreeMap<String, Arc<dyn Transport>>,
    /// Tuning of the path.
    pub path: PathOptions,
    /// Engine of the thread that serves the admin queue.
    pub engine: Config,
}

impl Default for Options {
    fn default() -> Options {
        let HostIdentity { hostnqn, hostid, .. } = host_identity();
        Options {
            hdr_digest: false,
            data_digest: false,
            queue_size: QUEUE_SIZE,
            queues: QUEUES,
            kato: KATO,
            connect_timeout: CONNECT_TIMEOUT,
            ctrl_loss: Some(CTRL_LOSS),
            io_timeout: IO_TIMEOUT,
            silence: SILENCE,
            fencing: true,
            max_transfer: MAX_TRANSFER,
            max_r2t: MAX_R2T,
            hostnqn,
            hostid,
            keys: None,
            tls: false,
            concat: false,
            congestion: None,
            transports: BTreeMap::new(),
            path: PathOptions::default(),
            engine: Config::default(),
        }
    }
}

impl Options {
    /// The key by which this host proves its identity to a subsystem.
    ///
    /// # Errors
    /// Its key cannot be read, in words.
    pub(crate) fn key(&self, subnqn: &str) -> Result<Option<HostKey>, String> {
        let Some(keys) = &self.keys else { return Ok(None) };
        Ok(keys.key_of(&self.hostnqn, subnqn)?.map(|keys| keys.current))
    }

    /// The key by which this host encrypts its connections to a subsystem.
    ///
    /// # Errors
    /// It has none, or it cannot be read, in words.
    pub fn tls_key(&self, subnqn: &str) -> Result<TlsKey, String> {
        let missing = || {
            format!(
                "this host, {}, has no key for TLS: 'longhaul key make --tls' makes one, and --keys names its \
                 directory",
                self.hostnqn
            )
        };
        let keys = self.keys.as_ref().ok_or_else(missing)?;
        keys.tls_key_of(&self.hostnqn, subnqn)?.map(|keys| keys.current).ok_or_else(missing)
    }

    /// With what a URI says on top.
    #[must_use]
    pub fn with_uri(mut self, uri: &UriOptions) -> Options {
        self.hdr_digest = uri.hdr_digest.unwrap_or(self.hdr_digest);
        self.data_digest = uri.data_digest.unwrap_or(self.data_digest);
        self.queue_size = uri.queue_size.unwrap_or(self.queue_size);
        self.ctrl_loss = uri.ctrl_loss.unwrap_or(self.ctrl_loss);
        // What a URI says counts more: it wants the one or the other.
        self.tls = uri.tls.unwrap_or(self.tls && uri.concat != Some(true));
        self.concat = uri.concat.unwrap_or(self.concat && uri.tls != Some(true));
        self.kato = uri.kato_ms.map_or(self.kato, |ms| Duration::from_millis(ms.into()));
        self.path.in_flight = uri.in_flight.or(self.path.in_flight);
        self.path.connections = uri.connections.or(self.path.connections);
        self.path.io_size = uri.io_size.or(self.path.io_size);
        self.path.read_ahead = uri.read_ahead.or(self.path.read_ahead);
        if let Some(hostnqn) = &uri.hostnqn {
            self.hostnqn.clone_from(hostnqn);
        }
        self
    }
}

/// The names by which targets know a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostIdentity {
    /// Its NQN.
    pub hostnqn: String,
    /// Its identifier (HOSTID).
    pub hostid: Uuid,
    /// The file that the NQN is from; `None` if it is another one in each process.
    pub source: Option<&'static str>,
}

/// The identity of this host: that of `nvme-cli` in `/etc/nvme`, else derived from the machine's
/// identity, else random for this process.
pub fn host_identity() -> HostIdentity {
    const NQN: &str = "/etc/nvme/hostnqn";
    const ID: &str = "/etc/nvme/hostid";
    const MACHINE: &str = "/etc/machine-id";
    static IDENTITY: OnceLock<HostIdentity> = OnceLock::new();
    let read =
        |path: &str| fs::read_to_string(path).ok().map(|s| s.trim().to_owned()).filter(|s| !s.is_empty());
    IDENTITY
        .get_or_init(|| {
            let given = read(ID).and_then(|id| id.parse().ok()).map(|id| (id, ID));
            let derived = || {
                let name = format!("longhaul host {}", read(MACHINE)?);
                Some((Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()), MACHINE))
            };
            let (hostid, source) = match given.or_else(derived) {
                Some((id, source)) => (id, Some(source)),
                None => (Uuid::new_v4(), None),
            };
            match read(NQN) {
                Some(hostnqn) => HostIdentity { hostnqn, hostid, source: Some(NQN) },
                None => {
                    let hostnqn = format!("nqn.2014-08.org.nvmexpress:uuid:{hostid}");
                    HostIdentity { hostnqn, hostid, source }
                }
            }
        })
        .clone()
}
