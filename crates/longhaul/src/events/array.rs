//! `array`

use super::Reply;
use longhaul_device::arrays::{ScrubReply, StatusReply};
use serde::Serialize;

/// `array create`: the array was created.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct ArrayCreated {
    /// UUID of the array.
    pub(crate) uuid: String,
    /// Name of the array.
    pub(crate) name: String,
    /// Bytes of a stripe on one member.
    pub(crate) stripe_unit: super::Bytes,
}

/// `array stop`: the array does not run any more.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct ArrayStopped {
    /// UUID of the array.
    pub(crate) uuid: String,
    /// Name of the array.
    pub(crate) name: String,
    /// It ran until now.
    pub(crate) ran: bool,
}

/// `array grow`: the array is as large as its members allow.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct ArrayGrown {
    /// UUID of the array.
    pub(crate) uuid: String,
    /// Name of the array.
    pub(crate) name: String,
    /// Its size before.
    pub(crate) before: super::Bytes,
    /// Its size now.
    pub(crate) size: super::Bytes,
}

/// `array list`: an array that is known on this host.
#[derive(Serialize)]
#[serde(tag = "event", rename = "array")]
pub(crate) struct ListedArray {
    /// UUID of the array.
    pub(crate) uuid: String,
    /// Name of the array.
    pub(crate) name: String,
    /// Names of its devices.
    pub(crate) devices: Vec<String>,
    /// A process of this host runs it.
    pub(crate) running: bool,
    /// `healthy`, `degraded` or `halted`; null if it does not run or reply.
    pub(crate) health: Option<String>,
    /// The user that it is recorded for; null for the present one.
    pub(crate) user: Option<String>,
}

/// `array list`: the end of the list.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct ArrayList {
    /// Number of arrays.
    pub(crate) arrays: usize,
}

/// `array replace`, `array scrub`: the status of the array, each second.
#[derive(Serialize)]
#[serde(tag = "event", rename = "progress")]
pub(crate) struct ArrayProgress {
    /// The status of the array.
    #[serde(flatten)]
    pub(crate) status: Reply<StatusReply>,
}

/// `array status`, `array assemble`, `array replace`, `array add-spare`: the status of the array.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct ArraySummary {
    /// The status of the array.
    #[serde(flatten)]
    pub(crate) status: Reply<StatusReply>,
    /// A process of this host runs the array: `array status` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) running: Option<bool>,
}

/// `array scrub`: the result.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct ScrubSummary {
    /// What it found and did.
    #[serde(flatten)]
    pub(crate) report: Reply<ScrubReply>,
}
