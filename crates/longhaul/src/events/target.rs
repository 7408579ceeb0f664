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
    /// Its exports.
    pub(crate) exports: &'a [ExportFields],
}

/// An export.
#[derive(Serialize)]
pub(crate) struct ExportFields {
    /// Its name.
    pub(crate) name: String,
    /// NQN of its subsystem.
    pub(crate) nqn: String,
    /// Namespace ID.
    pub(crate) nsid: u32,
    /// URI.
    pub(crate) uri: String,
    /// The shortest URI.
    pub(crate) short: String,
    /// UUID of the namespace.
    pub(crate) uuid: String,
    /// Size.
    pub(crate) size: Bytes,
    /// Bytes of a logical block.
    pub(crate) block_size: u32,
}

/// `target`: an export has another size.
#[derive(Serialize)]
#[serde(tag = "event", rename = "resized")]
pub(crate) struct ExportResized {
    /// Its name.
    pub(crate) name: String,
    /// Namespace ID.
    pub(crate) nsid: u32,
    /// Its size now.
    pub(crate) size: Bytes,
}
