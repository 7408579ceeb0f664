//! `volume`

use super::{Bytes, Seconds};
use serde::Serialize;

/// `volume create`: the volume was made.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct VolumeMade {
    /// Its name as a device.
    pub(crate) device: String,
    /// UUID of the volume.
    pub(crate) uuid: String,
    /// Size that was asked for.
    pub(crate) size: Bytes,
    /// Distribution over the members.
    pub(crate) layout: String,
    /// Addresses of the targets of its members, spares last.
    pub(crate) targets: Vec<String>,
    /// NQNs of the hosts that may use it.
    pub(crate) hosts: Vec<String>,
    /// Its file system; null if none was made.
    pub(crate) fs: Option<String>,
}

/// `volume ls`: a volume.
#[derive(Serialize)]
#[serde(tag = "event", rename = "volume")]
pub(crate) struct VolumeListed<'a> {
    /// Its pool.
    pub(crate) pool: &'a str,
    /// Its name.
    pub(crate) name: &'a str,
    /// Size that was asked for.
    pub(crate) size: Bytes,
    /// Distribution over the members.
    pub(crate) layout: &'a str,
    /// Members, without spares.
    pub(crate) width: usize,
    /// Members that wait to replace one.
    pub(crate) spares: usize,
    /// The job that it was made for; null without a job.
    pub(crate) job: Option<&'a str>,
    /// When it may be removed, in seconds since 1970; null if never.
    pub(crate) expires: Option<u64>,
    /// It is being made.
    pub(crate) creating: bool,
    /// Of a snapshot: name of its source volume, which may be gone.
    pub(crate) snapshot_of: Option<&'a str>,
}

/// `volume ls`: the end of the list.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct VolumeList {
    /// Number of volumes.
    pub(crate) volumes: usize,
    /// Their size together.
    pub(crate) size: Bytes,
}

/// `volume info`: all about a volume.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct VolumeInfo {
    /// Its name as a device.
    pub(crate) device: String,
    /// UUID of the volume.
    pub(crate) uuid: String,
    /// Size that was asked for.
    pub(crate) size: Bytes,
    /// Distribution over the members.
    pub(crate) layout: String,
    /// Members, without spares.
    pub(crate) width: usize,
    /// Members that wait to replace one.
    pub(crate) spares: usize,
    /// Stripe unit; 0 for a single namespace.
    pub(crate) stripe_unit: Bytes,
    /// Its namespaces take capacity as they are written to.
    pub(crate) thin: bool,
    /// UUID of its array; null for a single namespace.
    pub(crate) array: Option<String>,
    /// Members, then spares.
    pub(crate) members: Vec<VolumeMember>,
    /// NQNs of the hosts that may use it.
    pub(crate) hosts: Vec<String>,
    /// The job that it was made for; null without a job.
    pub(crate) job: Option<String>,
    /// When it may be removed, in seconds since 1970; null if never.
    pub(crate) expires: Option<u64>,
    /// The host that made it.
    pub(crate) made_by: String,
    /// When, in seconds since 1970.
    pub(crate) made_at: u64,
    /// It is being made.
    pub(crate) creating: bool,
    /// A resize that has begun and not ended; null without one.
    pub(crate) resizing: Option<VolumeResizing>,
    /// A member that moves to another target; null without one.
    pub(crate) moving: Option<VolumeMoving>,
    /// Of a snapshot: its source.
    pub(crate) snapshot_of: Option<VolumeSource>,
    /// Health of its array, as the process of this host that runs it says; null if none does.
    pub(crate) health: Option<String>,
}

/// A resize of a volume that has begun and not ended.
#[derive(Serialize)]
pub(crate) struct VolumeResizing {
    /// Size that it is to have.
    pub(crate) size: Bytes,
    /// The host that began it.
    pub(crate) host: String,
    /// When, in seconds since 1970.
    pub(crate) since: u64,
    /// A host is at it; otherwise it has to be finished.
    pub(crate) under_way: bool,
}

/// A member of a volume that moves to another target.
#[derive(Serialize)]
pub(crate) struct VolumeMoving {
    /// Which of its members and spares.
    pub(crate) index: usize,
    /// URI of the namespace that it is on; null if that is missing.
    pub(crate) from: Option<String>,
    /// URI of the namespace that it moves to; null until that was made.
    pub(crate) to: Option<String>,
    /// Address of the target that it moves to; null if the pool does not know it any more.
    pub(crate) target: Option<String>,
    /// The host that began it.
    pub(crate) host: String,
    /// When, in seconds since 1970.
    pub(crate) since: u64,
    /// A host is at it; otherwise it has to be finished.
    pub(crate) under_way: bool,
    /// Bytes that are there, if a process of this host runs the array; null otherwise.
    pub(crate) done: Option<Bytes>,
    /// Bytes in all; null with `done`.
    pub(crate) total: Option<Bytes>,
}

/// The volume that another one is a snapshot of.
#[derive(Serialize)]
pub(crate) struct VolumeSource {
    /// Its UUID.
    pub(crate) uuid: String,
    /// Its name: the present one, or the last one that is known.
    pub(crate) name: String,
    /// It is still there.
    pub(crate) exists: bool,
}

/// `volume snapshot`: the snapshot was made.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct VolumeSnapshot {
    /// Its name as a device.
    pub(crate) device: String,
    /// What it is a snapshot of, as a device.
    pub(crate) of: String,
    /// UUID of the snapshot.
    pub(crate) uuid: String,
    /// Size that was asked for the volume.
    pub(crate) size: Bytes,
    /// Addresses of the targets of its members.
    pub(crate) targets: Vec<String>,
    /// NQNs of the hosts that may use it.
    pub(crate) hosts: Vec<String>,
    /// For how long writes to the volume were held; 0 for a single namespace.
    pub(crate) held_seconds: Seconds,
}

/// A member of a volume.
#[derive(Serialize)]
pub(crate) struct VolumeMember {
    /// URI with which its hosts connect to it; null if it is missing.
    pub(crate) uri: Option<String>,
    /// UUID of the namespace; null if it is missing.
    pub(crate) namespace: Option<String>,
    /// Size of the namespace.
    pub(crate) size: Bytes,
}

/// `volume resize`: the volume has its size.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct VolumeResized {
    /// Its name as a device.
    pub(crate) device: String,
    /// Size that was asked for before.
    pub(crate) before: Bytes,
    /// Size that is asked for now.
    pub(crate) size: Bytes,
    /// Size of its array, if a process of this host runs it; null otherwise.
    pub(crate) array: Option<Bytes>,
}

/// `volume rm`: the volumes are removed.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct VolumesRemoved {
    /// Their names as devices.
    pub(crate) volumes: Vec<String>,
    /// What waits for a target and is removed later, with the reason.
    pub(crate) waiting: Vec<String>,
}

/// `volume rename`: the volume has another name.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct VolumeRenamed {
    /// Its new name as a device.
    pub(crate) device: String,
}

/// `volume open`, `volume close`: the hosts were changed.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct VolumeOpened {
    /// Its name as a device.
    pub(crate) device: String,
    /// NQNs of the hosts that may use it now.
    pub(crate) hosts: Vec<String>,
    /// Targets that do not know of it yet, with the reason.
    pub(crate) waiting: Vec<String>,
}
