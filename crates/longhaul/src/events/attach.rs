//! `attach`, `mount`, `mkfs`, `nbd`, connections

use super::{Bytes, Micros};
use serde::{Deserialize, Serialize};

/// `attach`: the device is at its path.
#[derive(Serialize, Deserialize)]
#[serde(tag = "event", rename = "ready")]
pub(crate) struct AttachReady {
    /// Path at which the device appears.
    pub(crate) path: String,
    /// How: a value of `--via`.
    pub(crate) via: String,
    /// The path of the device: a block device of the kernel, or `path`.
    pub(crate) device: String,
    /// The process that serves it.
    pub(crate) pid: u32,
    /// Size of the device.
    pub(crate) size: Bytes,
    /// Size of a block.
    pub(crate) block_size: u32,
    /// Optimal size of a request.
    pub(crate) optimal_io: u32,
    /// Writes are refused.
    pub(crate) read_only: bool,
    /// Why preferred ways were passed over, a sentence each.
    pub(crate) passed_over: Vec<String>,
    /// Address at which metrics are served; null without `--metrics`.
    pub(crate) metrics: Option<String>,
}

/// `mount`: the file system is mounted.
#[derive(Serialize, Deserialize)]
#[serde(tag = "event", rename = "ready")]
pub(crate) struct MountReady {
    /// Directory that the file system is mounted at.
    pub(crate) path: String,
    /// How: `fuse+loop`, or a value of `--via` and `+mount`.
    pub(crate) via: String,
    /// The path of the device.
    pub(crate) device: String,
    /// The process that serves it.
    pub(crate) pid: u32,
    /// Size of the device.
    pub(crate) size: Bytes,
    /// Writes are refused.
    pub(crate) read_only: bool,
    /// Kind of the file system.
    pub(crate) fs: String,
    /// Mount options of the file system.
    pub(crate) options: String,
    /// The journal was not replayed.
    pub(crate) journal_left: bool,
    /// Why preferred ways were passed over, a sentence each.
    pub(crate) passed_over: Vec<String>,
    /// `device`, if it is a loop device: the name that this field had at first.
    #[serde(rename = "loop")]
    pub(crate) loop_device: Option<String>,
    /// Address at which metrics are served; null without `--metrics`.
    pub(crate) metrics: Option<String>,
}

/// `mount`: a directory of another machine, or a file system in a pool, is mounted.
#[derive(Serialize, Deserialize)]
#[serde(tag = "event", rename = "ready")]
pub(crate) struct FarMountReady {
    /// Directory that it is mounted at.
    pub(crate) path: String,
    /// How: `agent`, or `pool`.
    pub(crate) via: String,
    /// The directory or file system, as it was named.
    pub(crate) source: String,
    /// The process that serves it.
    pub(crate) pid: u32,
    /// Changes are refused.
    pub(crate) read_only: bool,
    /// Address at which metrics are served; null without `--metrics`.
    pub(crate) metrics: Option<String>,
}

/// `attach`, `mount` with `--foreground`: a signal came while the device is used.
#[derive(Serialize)]
#[serde(tag = "event", rename = "waiting")]
pub(crate) struct Waiting {
    /// The processes that use it.
    pub(crate) users: Vec<String>,
}

/// `attach`, `mount` with `--foreground`: the device has another size.
#[derive(Serialize)]
#[serde(tag = "event", rename = "resized")]
pub(crate) struct DeviceResized {
    /// Its size now.
    pub(crate) size: Bytes,
}

/// `detach`, `umount`: the path is free.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct DetachSummary {
    /// Path that is free now.
    pub(crate) path: String,
    /// It ran with `--lazy`.
    pub(crate) lazily: bool,
}

/// `list`, `attach --list`: an attached device.
#[derive(Serialize)]
#[serde(tag = "event", rename = "attached")]
pub(crate) struct ListedAttachment {
    /// Path of the attachment, or of the mount.
    pub(crate) path: String,
    /// Names of its devices.
    pub(crate) devices: Vec<String>,
    /// How it is attached.
    pub(crate) via: String,
    /// Size of the device.
    pub(crate) size: Bytes,
    /// Writes are refused.
    pub(crate) read_only: bool,
    /// The process that serves it.
    pub(crate) pid: u32,
    /// That process lives.
    pub(crate) served: bool,
    /// The processes that use it.
    pub(crate) users: Vec<String>,
    /// `healthy`, or in a word why not; `lost` without its process.
    pub(crate) health: String,
    /// Why it is not healthy.
    pub(crate) trouble: Option<String>,
}

/// `list`: a configured attachment that is not attached.
#[derive(Serialize)]
#[serde(tag = "event", rename = "missing")]
pub(crate) struct MissingAttachment {
    /// Path of the attachment, or of the mount.
    pub(crate) path: String,
    /// Names of its devices.
    pub(crate) devices: Vec<String>,
}

/// `list`, `attach --list`: the end of the list.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct AttachmentList {
    /// Number of attached devices.
    pub(crate) attached: usize,
    /// Number of configured ones that are not attached.
    pub(crate) missing: usize,
}

/// `connect-all`, `disconnect-all`: the result of a line of the file.
#[derive(Serialize)]
#[serde(tag = "event", rename = "connection")]
pub(crate) struct ConnectionResult {
    /// Path of the attachment.
    pub(crate) path: String,
    /// Names of its devices.
    pub(crate) devices: Vec<String>,
    /// The connection was made or ended.
    pub(crate) done: bool,
    /// Why it failed; null if it did not.
    pub(crate) message: Option<String>,
}

/// `connect-all`, `disconnect-all`: the end.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct ConnectionsSummary {
    /// Number of connections that were made, of `connect-all`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connected: Option<usize>,
    /// Number of connections that were ended, of `disconnect-all`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disconnected: Option<usize>,
    /// Number of those for which nothing was to be done.
    pub(crate) already: usize,
    /// Number of those that failed.
    pub(crate) failed: usize,
}

/// `mkfs`: the file system was made.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct MkfsSummary {
    /// Kind of the file system.
    pub(crate) fs: String,
    /// Arguments that mkfs was called with.
    pub(crate) arguments: Vec<String>,
    /// Round trip to the device, which they depend on.
    pub(crate) round_trip_us: Micros,
    /// The command that mounts it.
    pub(crate) mount: String,
}

/// `nbd`: the exports can be connected to.
#[derive(Serialize)]
#[serde(tag = "event", rename = "ready")]
pub(crate) struct NbdReady {
    /// A URI for each export and address.
    pub(crate) uris: Vec<String>,
    /// Address at which metrics are served; null without `--metrics`.
    pub(crate) metrics: Option<String>,
}
