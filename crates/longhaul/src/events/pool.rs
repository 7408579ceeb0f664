//! `pool`

use super::{Bytes, BytesPerSecond, Seconds};
use longhaul_pool::{Manager, TargetStatus};
use serde::Serialize;

/// `pool create`: the pool was made.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct PoolMade {
    /// Its name.
    pub(crate) name: String,
    /// UUID of the pool.
    pub(crate) uuid: String,
    /// The catalog that it is in.
    pub(crate) catalog: String,
    /// Number of its targets.
    pub(crate) targets: usize,
    /// Capacity of their spaces.
    pub(crate) capacity: Bytes,
}

/// `pool ls`: a pool.
#[derive(Serialize)]
#[serde(tag = "event", rename = "pool")]
pub(crate) struct PoolListed {
    /// Its name.
    pub(crate) name: String,
    /// The catalog that it is in.
    pub(crate) catalog: String,
    /// Why its catalog cannot be read, or that it has no such pool; null otherwise.
    pub(crate) error: Option<String>,
}

/// `pool ls`: the end of the list.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct PoolList {
    /// Number of pools.
    pub(crate) pools: usize,
}

/// `pool status`: a target of the pool.
#[derive(Serialize)]
#[serde(tag = "event", rename = "target")]
pub(crate) struct PoolTargetListed {
    #[serde(flatten)]
    pub(crate) target: PoolTarget,
}

/// A target of a pool.
#[derive(Serialize)]
pub(crate) struct PoolTarget {
    /// Where it is: host, port and the NQN of its space.
    pub(crate) address: String,
    /// What fails together with it.
    pub(crate) domain: String,
    /// Capacity of its space.
    pub(crate) capacity: Bytes,
    /// Bytes that the pool has promised there.
    pub(crate) used: Bytes,
    /// Bytes that the target has free; null if it cannot be asked.
    pub(crate) free: Option<Bytes>,
    /// Why it cannot be asked; null if it answers.
    pub(crate) error: Option<String>,
}

impl From<&TargetStatus> for PoolTarget {
    fn from(target: &TargetStatus) -> PoolTarget {
        PoolTarget {
            address: target.record.address.clone(),
            domain: target.record.domain.clone(),
            capacity: target.record.capacity,
            used: target.used,
            free: target.space.as_ref().ok().map(|space| space.free),
            error: target.space.as_ref().err().map(ToString::to_string),
        }
    }
}

/// `pool status`: the pool as a whole.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct PoolSummary {
    /// Its name.
    pub(crate) name: String,
    /// UUID of the pool.
    pub(crate) uuid: String,
    /// The catalog that it is in.
    pub(crate) catalog: String,
    /// The host that made or imported it in that catalog; null if an earlier program did.
    pub(crate) manager: Option<PoolManager>,
    /// Number of its targets.
    pub(crate) targets: usize,
    /// Number of those that cannot be asked.
    pub(crate) unreachable: usize,
    /// Number of its volumes.
    pub(crate) volumes: usize,
    /// Capacity of all spaces.
    pub(crate) capacity: Bytes,
    /// Bytes of namespaces that are promised.
    pub(crate) used: Bytes,
    /// Most bytes of namespaces of all volumes; null without a limit.
    pub(crate) quota: Option<Bytes>,
    /// Most bytes of namespaces of each job; null without a limit.
    pub(crate) job_quota: Option<Bytes>,
    /// Volumes that are being made or removed, or wait for that.
    pub(crate) pending: Vec<PendingVolume>,
    /// What waits for a target, with the reason.
    pub(crate) waiting: Vec<String>,
}

/// The host that manages a pool in its catalog.
#[derive(Serialize)]
pub(crate) struct PoolManager {
    /// What its kernel calls the host.
    pub(crate) host: String,
    /// Its host NQN.
    pub(crate) hostnqn: String,
    /// When it made or imported the pool, in seconds since 1970.
    pub(crate) since: u64,
}

impl From<&Manager> for PoolManager {
    fn from(manager: &Manager) -> PoolManager {
        let Manager { host, hostnqn, since, .. } = manager.clone();
        PoolManager { host, hostnqn, since }
    }
}

/// A volume that is being made or removed.
#[derive(Serialize)]
pub(crate) struct PendingVolume {
    /// Name of the volume.
    pub(crate) volume: String,
    /// `create`, `remove`, `resize` or `move`.
    pub(crate) doing: &'static str,
    /// The host that began it.
    pub(crate) host: String,
    /// When, in seconds since 1970.
    pub(crate) since: u64,
}

/// `pool add-target`, `pool remove-target`: the targets that were added or removed.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct PoolTargetsChanged {
    /// Their addresses.
    pub(crate) targets: Vec<String>,
    /// Their capacity together.
    pub(crate) capacity: Bytes,
}

/// `pool rebalance`, `pool remove-target`, `volume repair`: a member moves, or would with `--dry-run`.
#[derive(Serialize)]
#[serde(tag = "event", rename = "move")]
pub(crate) struct MemberMoves {
    /// The volume: pool and name.
    pub(crate) volume: String,
    /// Number of the member; spares follow the members.
    pub(crate) member: usize,
    /// Address of the target that it is at; null if that is not known.
    pub(crate) from: Option<String>,
    /// Address of the target that it moves to.
    pub(crate) to: String,
    /// Size of the member.
    pub(crate) size: Bytes,
}

/// `pool rebalance`, `pool remove-target`, `pool recover`, `volume repair`: how far a move has come, once a
/// second.
#[derive(Serialize)]
#[serde(tag = "event", rename = "progress")]
pub(crate) struct MoveProgressed {
    /// The volume: pool and name.
    pub(crate) volume: String,
    /// Number of the member.
    pub(crate) member: usize,
    /// Bytes copied or rebuilt.
    pub(crate) done_bytes: Bytes,
    /// Bytes in all.
    pub(crate) total_bytes: Bytes,
    /// Rate so far.
    pub(crate) bytes_per_second: BytesPerSecond,
    /// Time left; null if it cannot be told yet.
    pub(crate) remaining_seconds: Option<Seconds>,
}

/// `pool rebalance`, `volume repair`: what has moved; also of `pool remove-target` with `--dry-run`, or if
/// members have not moved.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct MembersMoved {
    /// Number of members that have moved.
    pub(crate) moved: usize,
    /// Their size together; with `--dry-run` of those that would move.
    pub(crate) bytes: Bytes,
    /// Those that have not, with the reason.
    pub(crate) failed: Vec<String>,
    /// What waits for a target or another host, with the reason.
    pub(crate) waiting: Vec<String>,
    /// Nothing was changed.
    pub(crate) dry_run: bool,
}

/// `pool import`: the records were made again.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct PoolImported {
    /// Its name.
    pub(crate) name: String,
    /// UUID of the pool.
    pub(crate) uuid: String,
    /// The catalog that it is in now.
    pub(crate) catalog: String,
    /// Volumes whose members are all there.
    pub(crate) whole: Vec<String>,
    /// Volumes that lack members.
    pub(crate) missing: Vec<IncompleteVolume>,
    /// Volumes that were never finished; their namespaces are removed.
    pub(crate) left_over: usize,
    /// Labels that cannot be read, with the reasons: they are left alone.
    pub(crate) unreadable: Vec<String>,
}

/// A volume that lacks members.
#[derive(Serialize)]
pub(crate) struct IncompleteVolume {
    /// Name of the volume.
    pub(crate) volume: String,
    /// Numbers of the members that were not found, from 0.
    pub(crate) members: Vec<usize>,
    /// Its redundancy makes up for them.
    pub(crate) usable: bool,
}

/// `pool export`, `pool destroy`: the pool is not in its catalog any more.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct PoolGone {
    /// Its name.
    pub(crate) name: String,
}

/// `pool recover`: what lost hosts had begun is finished.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct PoolRecovered {
    /// Volumes that were undone or removed.
    pub(crate) finished: usize,
    /// Volumes that a host still works on, or that was lost a short time ago.
    pub(crate) held: usize,
    /// Namespaces removed that no record named.
    pub(crate) swept: usize,
    /// What waits for a target, with the reason.
    pub(crate) waiting: Vec<String>,
}

/// `pool allocate`: a volume of the job.
#[derive(Serialize)]
#[serde(tag = "event", rename = "allocated")]
pub(crate) struct JobVolume {
    /// The node that it is for; null if it is for the job as a whole.
    pub(crate) node: Option<String>,
    /// Its name as a device.
    pub(crate) device: String,
    /// NQNs of the hosts that may use it.
    pub(crate) hosts: Vec<String>,
    /// The command that mounts it, but for the directory; null without a file system.
    pub(crate) mount: Option<String>,
}

/// `pool allocate`: all volumes were made.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct JobAllocated {
    /// The job.
    pub(crate) job: String,
    /// Number of its volumes.
    pub(crate) volumes: usize,
    /// When they may be removed, in seconds since 1970; null if never.
    pub(crate) expires: Option<u64>,
}

/// `pool release`: the job has no volumes any more.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct JobReleased {
    /// The job.
    pub(crate) job: String,
    /// Volumes that were removed by this command.
    pub(crate) volumes: Vec<String>,
    /// What waits for a target and is removed later, with the reason.
    pub(crate) waiting: Vec<String>,
}

/// `pool jobs`: a job.
#[derive(Serialize)]
#[serde(tag = "event", rename = "job")]
pub(crate) struct JobListed {
    /// The job.
    pub(crate) job: String,
    /// The pool.
    pub(crate) pool: String,
    /// Its volumes.
    pub(crate) volumes: Vec<String>,
    /// Bytes of namespaces that are promised to it.
    pub(crate) bytes: Bytes,
    /// When its first volume may be removed, in seconds since 1970; null if never.
    pub(crate) expires: Option<u64>,
    /// Volumes that are being made or removed, or wait for that.
    pub(crate) pending: usize,
}

/// `pool jobs`: the end of the list.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct JobList {
    /// Number of jobs.
    pub(crate) jobs: usize,
}
