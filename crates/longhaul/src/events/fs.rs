//! `fs`

use super::Bytes;
use serde::Serialize;

/// `fs create`: the file system was made.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct FsMade {
    /// Its name, as `mount` takes it.
    pub(crate) name: String,
    /// UUID of the file system.
    pub(crate) uuid: String,
    /// Size that was asked for.
    pub(crate) size: Bytes,
    /// Redundancy of its stripes.
    pub(crate) layout: String,
    /// Members.
    pub(crate) width: usize,
    /// Addresses of the targets of its members.
    pub(crate) targets: Vec<String>,
    /// NQNs of the hosts that may mount it.
    pub(crate) hosts: Vec<String>,
}

/// `fs serve`: hosts can connect.
#[derive(Serialize)]
#[serde(tag = "event", rename = "ready")]
pub(crate) struct CatalogReady {
    /// The catalog, as `--catalog` of other hosts takes it.
    pub(crate) catalog: String,
    /// Addresses that the server listens on.
    pub(crate) listen: Vec<String>,
    /// The file that it serves.
    pub(crate) file: String,
    /// Hosts have to use TLS, with a key of `--keys`.
    pub(crate) tls: bool,
    /// Address at which metrics are served; null without `--metrics`.
    pub(crate) metrics: Option<String>,
}

/// `fs ls`: a file system.
#[derive(Serialize)]
#[serde(tag = "event", rename = "fs")]
pub(crate) struct FsListed {
    /// Its name, as `mount` takes it.
    pub(crate) name: String,
    /// Size that was asked for.
    pub(crate) size: Bytes,
    /// Redundancy of its stripes.
    pub(crate) layout: String,
    /// Members.
    pub(crate) width: usize,
    /// It is being made.
    pub(crate) creating: bool,
}

/// `fs ls`: the end of the list.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct FsList {
    /// Number of file systems.
    pub(crate) file_systems: usize,
    /// Their size together.
    pub(crate) size: Bytes,
}

/// `fs status`: all about a file system.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct FsShown {
    /// Its name, as `mount` takes it.
    pub(crate) name: String,
    /// UUID of the file system.
    pub(crate) uuid: String,
    /// `healthy`; `degraded` with members missing that redundancy makes up for; `failed` with more, or without
    /// metadata.
    pub(crate) health: String,
    /// Bytes of content that its segments have room for.
    pub(crate) size: Bytes,
    /// Bytes of content that its free segments have room for.
    pub(crate) free: Bytes,
    /// Redundancy of its stripes.
    pub(crate) layout: String,
    /// Members.
    pub(crate) members: Vec<FsMember>,
    /// NQNs of the hosts that may mount it.
    pub(crate) hosts: Vec<String>,
    /// The hosts that have it mounted.
    pub(crate) mounts: Vec<FsMount>,
    /// How writes of a host that was lost are kept from segments that others use: `at the targets`, which refuse
    /// them, or `by time`, with the reason in parentheses.
    pub(crate) fencing: String,
}

/// A member of a file system.
#[derive(Serialize)]
pub(crate) struct FsMember {
    /// URI with which its hosts connect to it; null if it is missing.
    pub(crate) uri: Option<String>,
    /// Size of the namespace.
    pub(crate) size: Bytes,
    /// Why its target does not answer; null if it does.
    pub(crate) error: Option<String>,
    /// The part of its units that is at this place, while it is filled after a move; null otherwise.
    pub(crate) filled: Option<f64>,
}

/// A mount of a file system.
#[derive(Serialize)]
pub(crate) struct FsMount {
    /// Number of the session.
    pub(crate) session: u64,
    /// The host.
    pub(crate) host: String,
}

/// `fs check`: what was found.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct FsChecked {
    /// Its name, as `mount` takes it.
    pub(crate) name: String,
    /// Objects that are no directories.
    pub(crate) files: u64,
    /// Directories.
    pub(crate) directories: u64,
    /// Bytes of content.
    pub(crate) bytes: Bytes,
    /// Segments that are not free.
    pub(crate) segments_used: u32,
    /// All segments.
    pub(crate) segments: u32,
    /// Snapshots, each of which was checked too.
    pub(crate) snapshots: u64,
    /// Bytes of content that only they have.
    pub(crate) kept: Bytes,
    /// Sessions that are over, whose things the next mount removes.
    pub(crate) left: usize,
    /// The usage of users and groups was wrong, and `--repair` had it counted anew.
    pub(crate) recounted: bool,
    /// Number of problems that are left.
    pub(crate) problems: usize,
    /// The first hundred of them, a sentence each.
    pub(crate) described: Vec<String>,
}

/// `fs scrub`: what was found.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct FsScrubbed {
    /// Its name, as `mount` takes it.
    pub(crate) name: String,
    /// Bytes of units that were read.
    pub(crate) bytes: Bytes,
    /// Units whose content had another checksum.
    pub(crate) wrong: u64,
    /// Units that could not be read, as their members are missing.
    pub(crate) missing: u64,
    /// Bytes of files that were in stripes with wrong units, and were written anew.
    pub(crate) repaired: Bytes,
    /// Bytes of files that could not be written anew.
    pub(crate) waiting: Bytes,
    /// Bytes of files that are lost.
    pub(crate) lost: Bytes,
    /// Inodes of these files.
    pub(crate) files: Vec<u64>,
}

/// `fs resize`: the file system has grown.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct FsResized {
    /// Its name, as `mount` takes it.
    pub(crate) name: String,
    /// Size that was asked for before.
    pub(crate) before: Bytes,
    /// Size that it has now, at least.
    pub(crate) size: Bytes,
}

/// `fs snapshot`: the snapshot was made.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct FsSnapshotMade {
    /// Its name, as `mount` takes it.
    pub(crate) name: String,
    /// When it was made, in seconds since 1970.
    pub(crate) made: u64,
    /// The revision of the catalog that it is as of.
    pub(crate) revision: u64,
}

/// `fs snapshots`: a snapshot, the oldest first.
#[derive(Serialize)]
#[serde(tag = "event", rename = "snapshot")]
pub(crate) struct FsSnapshotListed {
    /// Its name, as `mount` takes it.
    pub(crate) name: String,
    /// When it was made, in seconds since 1970.
    pub(crate) made: u64,
    /// The revision of the catalog that it is as of.
    pub(crate) revision: u64,
    /// Bytes that are freed when it alone is removed.
    pub(crate) held: Bytes,
    /// It is being removed.
    pub(crate) removing: bool,
    /// Hosts that have it mounted.
    pub(crate) mounts: Vec<String>,
}

/// `fs snapshots`: the end of the list.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct FsSnapshotList {
    /// Number of snapshots.
    pub(crate) snapshots: usize,
    /// Bytes that only snapshots have, each once.
    pub(crate) kept: Bytes,
}

/// `fs quota set`: what the user or the group has and may have now.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct FsQuotaSet {
    /// The quota.
    #[serde(flatten)]
    pub(crate) quota: FsQuotaShown,
}

/// `fs quota show`: a user or a group that has something or a limit.
#[derive(Serialize)]
#[serde(tag = "event", rename = "quota")]
pub(crate) struct FsQuotaListed {
    /// The quota.
    #[serde(flatten)]
    pub(crate) quota: FsQuotaShown,
}

/// What a user or a group has and may have.
#[derive(Serialize)]
pub(crate) struct FsQuotaShown {
    /// Its name, as `mount` takes it.
    pub(crate) name: String,
    /// `user` or `group`.
    pub(crate) kind: String,
    /// UID or GID.
    pub(crate) id: u32,
    /// What this host calls the user or the group; null if it knows none of that number.
    pub(crate) owner: Option<String>,
    /// Bytes of content of its files.
    pub(crate) used: Bytes,
    /// Most bytes that it may have; null without a limit.
    pub(crate) limit: Option<Bytes>,
    /// Its files, directories and links.
    pub(crate) files: u64,
    /// Most of them that it may have; null without a limit.
    pub(crate) files_limit: Option<u64>,
}

/// `fs quota show`: the end of the list.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct FsQuotaList {
    /// Its name, as `mount` takes it.
    pub(crate) name: String,
    /// It has quotas: what users and groups have is counted.
    pub(crate) counted: bool,
    /// Number of users and groups.
    pub(crate) owners: usize,
    /// Those of them that have a limit.
    pub(crate) limited: usize,
}

/// `fs rm`: the file systems and snapshots are removed.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct FsRemoved {
    /// Their names.
    pub(crate) names: Vec<String>,
    /// What waits for a target and is removed later, with the reason.
    pub(crate) waiting: Vec<String>,
}
