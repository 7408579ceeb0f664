//! `target`

use super::Bytes;
use serde::Serialize;

/// `target`: its exports can be connected to.
#[derive(Serialize)]
#[serde(tag = "event", rename = "ready")]
pub(crate) struct TargetReady<'a> {
    /// Addresses of the I/O port.
    pub(crate) listen: Vec<String>,
    /// Address of the discovery port; null without one.
    pub(crate) discovery: Option<String>,
    /// Address at which metrics are served; null without `--metrics`.
    pub(crate) metrics: Option<String>,
    /// The namespaces that it exports.
    pub(crate) exports: &'a [ExportFields],
    /// The spaces in which administrators make namespaces.
    pub(crate) spaces: &'a [SpaceFields],
}

/// A namespace that the target exports.
#[derive(Serialize)]
pub(crate) struct ExportFields {
    /// Name of the export.
    pub(crate) name: String,
    /// NQN of its subsystem.
    pub(crate) nqn: String,
    /// Namespace ID, from 1.
    pub(crate) nsid: u32,
    /// URI with the full NQN.
    pub(crate) uri: String,
    /// The shortest URI.
    pub(crate) short: String,
    /// UUID of the namespace.
    pub(crate) uuid: String,
    /// Size of the namespace.
    pub(crate) size: Bytes,
    /// Bytes of a logical block.
    pub(crate) block_size: u32,
    /// `optimized` if this target serves it; `inaccessible` if it stands by for another one.
    pub(crate) access: &'static str,
}

/// `target`: an array or volume that is exported was taken over from another host, or by one.
#[derive(Serialize)]
#[serde(tag = "event", rename = "access")]
pub(crate) struct AccessChanged {
    /// Name of the export.
    pub(crate) name: String,
    /// Namespace ID, from 1.
    pub(crate) nsid: u32,
    /// `optimized` if this target serves it now; `inaccessible` if it does not.
    pub(crate) access: &'static str,
    /// Why it is inaccessible; null while it is served.
    pub(crate) why: Option<String>,
}

/// A space of the target.
#[derive(Serialize)]
pub(crate) struct SpaceFields {
    /// Name of the space.
    pub(crate) name: String,
    /// NQN of its subsystem.
    pub(crate) nqn: String,
    /// URI with the full NQN.
    pub(crate) uri: String,
    /// The shortest URI.
    pub(crate) short: String,
    /// Number of namespaces.
    pub(crate) namespaces: usize,
    /// Capacity of the space.
    pub(crate) total: Bytes,
    /// Capacity that no namespace has taken.
    pub(crate) unallocated: Bytes,
}

/// `target`: an export has another size.
#[derive(Serialize)]
#[serde(tag = "event", rename = "resized")]
pub(crate) struct ExportResized {
    /// Name of the export.
    pub(crate) name: String,
    /// Namespace ID, from 1.
    pub(crate) nsid: u32,
    /// Its size now.
    pub(crate) size: Bytes,
}

/// `target`: the configuration was read again (SIGHUP, SIGUSR1), and is in force.
#[derive(Serialize)]
#[serde(tag = "event", rename = "reloaded")]
pub(crate) struct Reloaded {
    /// Hosts could lose what they use (SIGUSR1).
    pub(crate) forced: bool,
    /// Exports that are new.
    pub(crate) added: Vec<ExportFields>,
    /// Exports that are not served any more.
    pub(crate) removed: Vec<ExportRemoved>,
    /// Exports with other options.
    pub(crate) changed: Vec<ExportChanged>,
    /// Keys of other settings that were applied.
    pub(crate) settings: Vec<String>,
    /// Keys that have changed, and are applied when the target is started again.
    pub(crate) restart: Vec<String>,
    /// NQNs of the hosts that have lost what they used.
    pub(crate) lost: Vec<String>,
}

/// An export that is not served any more.
#[derive(Serialize)]
pub(crate) struct ExportRemoved {
    /// Name of the export.
    pub(crate) name: String,
    /// NQN of its subsystem.
    pub(crate) nqn: String,
    /// Namespace ID that it had.
    pub(crate) nsid: u32,
    /// UUID of the namespace.
    pub(crate) uuid: String,
}

/// An export with other options.
#[derive(Serialize)]
pub(crate) struct ExportChanged {
    /// Name of the export.
    pub(crate) name: String,
    /// NQN of its subsystem.
    pub(crate) nqn: String,
    /// Namespace ID.
    pub(crate) nsid: u32,
    /// UUID of the namespace.
    pub(crate) uuid: String,
    /// Names of the options that have changed.
    pub(crate) options: Vec<String>,
}

/// `target`: the configuration was read again, and nothing of it was applied.
#[derive(Serialize)]
#[serde(tag = "event", rename = "not_reloaded")]
pub(crate) struct NotReloaded {
    /// Why, and what to do.
    pub(crate) message: String,
    /// The exports that hosts would lose; empty where it is for another reason.
    pub(crate) in_use: Vec<ExportInUse>,
}

/// Exports of one subsystem that hosts would lose.
#[derive(Serialize)]
pub(crate) struct ExportInUse {
    /// Names of the exports.
    pub(crate) name: String,
    /// NQN of their subsystem.
    pub(crate) nqn: String,
    /// They would be removed; else these hosts would not be allowed to use them.
    pub(crate) removed: bool,
    /// NQNs of the hosts that are connected.
    pub(crate) hosts: Vec<String>,
}
