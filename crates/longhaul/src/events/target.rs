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
