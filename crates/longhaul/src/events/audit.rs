//! `target --audit`
//!
//! The page of the [audit log](../audit.md) has an example of each line, and the fields that any line may have.

use super::{Bytes, Seconds};
use serde::Serialize;

/// The target serves from now on.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename = "started")]
pub(crate) struct AuditStarted {
    /// Version of the program.
    pub(crate) version: String,
    /// Process ID.
    pub(crate) pid: u32,
    /// Addresses of the I/O port.
    pub(crate) listen: Vec<String>,
    /// Hosts have to authenticate.
    pub(crate) keys: bool,
    /// `off`; `allowed`, hosts may use TLS; or `required`, they have to.
    pub(crate) tls: &'static str,
}

/// The target has stopped: nothing happens after it.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename = "stopped")]
pub(crate) struct AuditStopped {
    /// Everything that hosts wrote is durable.
    pub(crate) clean: bool,
}

/// The file was opened again (SIGHUP): the first line of a file after the one before was renamed.
#[derive(Serialize)]
#[serde(tag = "event", rename = "reopened")]
pub(crate) struct AuditReopened {}

/// A host has a controller: of a subsystem, or of discovery.
#[derive(Serialize)]
#[serde(tag = "event", rename = "connected")]
pub(crate) struct HostConnected {
    /// NQN of the host.
    pub(crate) host: String,
    /// Its host identifier.
    pub(crate) hostid: Option<String>,
    /// Address and port that it comes from.
    pub(crate) address: String,
    /// NQN of the subsystem.
    pub(crate) subsystem: String,
    /// Its controller.
    pub(crate) controller: u16,
    /// Generation of the secret, or of the key for TLS without one, with which the host has authenticated; null if
    /// it has not.
    pub(crate) generation: Option<u32>,
    /// Its connection is encrypted with TLS.
    pub(crate) tls: bool,
    /// It may only read (`read-only-host`).
    pub(crate) read_only: bool,
}

/// A host was refused.
#[derive(Serialize)]
#[serde(tag = "event", rename = "refused")]
pub(crate) struct HostRefused {
    /// NQN that it gave; empty if it was refused before that.
    pub(crate) host: String,
    /// Host identifier that it gave; null if it was refused before that.
    pub(crate) hostid: Option<String>,
    /// Address and port that it comes from.
    pub(crate) address: String,
    /// NQN of the subsystem that it asked for; empty if it was refused before that.
    pub(crate) subsystem: String,
    /// Why: one of the [reasons](../audit.md#why-a-host-is-refused).
    pub(crate) why: &'static str,
    /// Generation of the retired secret or key for TLS that it used; null for other reasons.
    pub(crate) generation: Option<u32>,
}

/// A controller of a host has ended.
#[derive(Serialize)]
#[serde(tag = "event", rename = "disconnected")]
pub(crate) struct HostDisconnected {
    /// NQN of the host.
    pub(crate) host: String,
    /// Its host identifier.
    pub(crate) hostid: Option<String>,
    /// Address and port that it came from.
    pub(crate) address: String,
    /// NQN of the subsystem.
    pub(crate) subsystem: String,
    /// Its controller.
    pub(crate) controller: u16,
    /// How long it was connected.
    pub(crate) seconds: Seconds,
    /// What it has read.
    pub(crate) bytes_read: Bytes,
    /// What it has written.
    pub(crate) bytes_written: Bytes,
}

/// An administrator has changed a namespace of a space, or tried to.
#[derive(Serialize)]
#[serde(tag = "event", rename = "namespace")]
pub(crate) struct NamespaceChanged {
    /// `create`, `clone`, `delete`, `attach`, `detach`, `grow`, or `label` where only its purpose was changed.
    pub(crate) action: &'static str,
    /// NQN of the administrator.
    pub(crate) by: String,
    /// Host identifier of the administrator.
    pub(crate) hostid: Option<String>,
    /// Address and port that the administrator comes from.
    pub(crate) address: String,
    /// Name of the space.
    pub(crate) space: String,
    /// NQN of its subsystem.
    pub(crate) subsystem: String,
    /// Namespace ID; null if none was made.
    pub(crate) nsid: Option<u32>,
    /// UUID of the namespace; null if there is none.
    pub(crate) uuid: Option<String>,
    /// Pool and volume that it is for, `POOL/VOLUME`; empty without them.
    pub(crate) name: String,
    /// Its size; null if it is not known.
    pub(crate) size: Option<Bytes>,
    /// Hosts that got it, lost it, or have it.
    pub(crate) hosts: Vec<String>,
    /// Why it failed; null if it was done.
    pub(crate) error: Option<String>,
}

/// A host has changed the reservation of a namespace.
#[derive(Serialize)]
#[serde(tag = "event", rename = "reservation")]
pub(crate) struct ReservationChanged {
    /// `register`, `unregister`, `acquire`, `preempt`, `release` or `clear`.
    pub(crate) action: &'static str,
    /// NQN of the host.
    pub(crate) host: String,
    /// Its host identifier.
    pub(crate) hostid: Option<String>,
    /// Address and port that it comes from.
    pub(crate) address: String,
    /// NQN of the subsystem.
    pub(crate) subsystem: String,
    /// Namespace ID.
    pub(crate) nsid: u32,
    /// UUID of the namespace.
    pub(crate) uuid: Option<String>,
    /// Identifiers of the hosts whose registrations it ended; the first 32.
    pub(crate) preempted: Vec<String>,
}

/// A reload has added, removed or changed an export.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename = "export")]
pub(crate) struct ExportAudited {
    /// `add`, `remove` or `change`.
    pub(crate) action: &'static str,
    /// Name of the export.
    pub(crate) name: String,
    /// NQN of its subsystem.
    pub(crate) subsystem: String,
    /// Namespace ID.
    pub(crate) nsid: u32,
    /// UUID of the namespace.
    pub(crate) uuid: String,
    /// Names of the options that have changed.
    pub(crate) options: Vec<String>,
    /// Hosts of its own list that may read and write (`allow-host=`).
    pub(crate) hosts: Vec<String>,
    /// Hosts of its own list that may only read (`read-only-host=`). Where both are empty, the lists of the
    /// target apply, or it was removed.
    pub(crate) read_only_hosts: Vec<String>,
}

/// The configuration was read again, and is in force; `export` lines stand before it.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename = "reloaded")]
pub(crate) struct AuditReloaded {
    /// Hosts could lose what they use (SIGUSR1).
    pub(crate) forced: bool,
    /// Keys of other settings that were applied.
    pub(crate) settings: Vec<String>,
    /// Hosts of the target's list that may read and write (`--allow-host`), if a list was applied.
    pub(crate) hosts: Vec<String>,
    /// Hosts of the target's list that may only read (`--read-only-host`), if a list was applied. Where both
    /// are empty, every host may read and write.
    pub(crate) read_only_hosts: Vec<String>,
    /// Hosts that have lost what they used.
    pub(crate) lost: Vec<String>,
}

/// `ctl disconnect` has ended the controllers of a host; their `disconnected` lines stand beside it.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename = "host_ended")]
pub(crate) struct AuditHostEnded {
    /// NQN of the host.
    pub(crate) host: String,
    /// Controllers that it had.
    pub(crate) controllers: usize,
}

/// The configuration was read again, and nothing of it was applied.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename = "not_reloaded")]
pub(crate) struct AuditNotReloaded {
    /// Why.
    pub(crate) error: String,
}
