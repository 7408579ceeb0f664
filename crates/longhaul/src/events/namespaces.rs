//! `ns`

use super::Bytes;
use serde::Serialize;

/// `ns create`: the namespace was made.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct NamespaceMade {
    /// Namespace ID.
    pub(crate) nsid: u32,
    /// UUID of the namespace.
    pub(crate) uuid: String,
    /// URI with which its hosts connect to it.
    pub(crate) uri: String,
    /// Size of the namespace.
    pub(crate) size: Bytes,
}

/// `ns ls`: a namespace of the space.
#[derive(Serialize)]
#[serde(tag = "event", rename = "namespace")]
pub(crate) struct NamespaceListed {
    /// Namespace ID.
    pub(crate) nsid: u32,
    /// UUID of the namespace.
    pub(crate) uuid: String,
    /// URI with which its hosts connect to it.
    pub(crate) uri: String,
    /// Size of the namespace.
    pub(crate) size: Bytes,
    /// Bytes of a logical block.
    pub(crate) block_size: u32,
    /// Capacity is taken as it is written to.
    pub(crate) thin: bool,
    /// NQNs of the hosts that it is attached to.
    pub(crate) hosts: Vec<String>,
    /// Its pool; empty if it has none.
    pub(crate) pool: String,
    /// Its volume; empty if it has none.
    pub(crate) volume: String,
    /// Its place in the layout of the volume; empty if it has none.
    pub(crate) layout: String,
    /// The job that it was made for; empty without a job.
    pub(crate) job: String,
    /// Time in seconds since 1970 after which it may be removed; null without one.
    pub(crate) expiry: Option<u64>,
}

/// `ns ls`: the end of the list.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct SpaceSummary {
    /// Number of namespaces.
    pub(crate) namespaces: usize,
    /// Capacity of the space.
    pub(crate) total: Bytes,
    /// Capacity that no namespace has taken.
    pub(crate) unallocated: Bytes,
}

/// `ns rm`: the namespaces were removed.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct NamespacesRemoved {
    /// Namespace IDs.
    pub(crate) nsids: Vec<u32>,
}

/// `ns attach`, `ns detach`: the hosts were changed.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct NamespaceAttached {
    /// Namespace ID.
    pub(crate) nsid: u32,
    /// NQNs of the hosts that it is attached to now.
    pub(crate) hosts: Vec<String>,
}

/// `ns grow`: the namespace is larger.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct NamespaceGrown {
    /// Namespace ID.
    pub(crate) nsid: u32,
    /// Its size now.
    pub(crate) size: Bytes,
}
