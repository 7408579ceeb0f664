//! Status and scrub report of an array as JSON, as replies of its control socket have them.

use longhaul_array::{Condition, Extent, Guard, HaltReason, Health, Progress, ScrubReport, Status};
use longhaul_initiator::PathStatus;
use longhaul_initiator::path::WayTraffic;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// B
type Bytes = u64;
/// B/s
type BytesPerSecond = f64;
/// s
type Seconds = f64;

/// The status of an array.
#[derive(Debug, Serialize)]
pub struct StatusReply {
    /// UUID of the array.
    pub uuid: String,
    /// Name of the array.
    pub name: String,
    /// `stripe`, `mirror`, `stripe+mirror`, `parity` or `double-parity`.
    pub layout: String,
    /// Size of the array.
    pub size: Bytes,
    /// Bytes of a stripe on one member.
    pub stripe_unit: Bytes,
    /// Bytes of the array in a stripe.
    pub stripe: Bytes,
    /// Number of members that may fail.
    pub redundancy: usize,
    /// `healthy`, `degraded` or `halted`.
    pub health: &'static str,
    /// Why it is halted, or what is at risk.
    pub detail: String,
    /// Why it is halted, in a word: `taken-over` by another host, `diverged` from what a member has
    /// recorded, `lost` more than its redundancy, or `stopped`; null while it works.
    pub halt: Option<&'static str>,
    /// What keeps other hosts from writing to the members while the array runs: `reservations`,
    /// `heartbeats`, or `mixed` if some members have no reservations.
    pub guard: &'static str,
    /// Number of superblocks written so far.
    pub generation: u64,
    /// The members, by index.
    pub members: Vec<MemberReply>,
    /// Names of the spares that are attached.
    pub spares: Vec<String>,
    /// Progress of a rebuild or resync; null without one.
    pub filling: Option<ProgressReply>,
    /// The scrub under way, or the last one.
    pub scrub: Option<ScrubReply>,
    /// Lost ranges found since the array was started.
    pub lost: Vec<ExtentReply>,
    /// All bytes that are lost: more than `lost` lists if there are many ranges.
    pub lost_bytes: Bytes,
    /// Number of regions that a crash would leave to resync.
    pub marked_regions: u64,
    /// Number of regions in all.
    pub regions: u64,
    /// Bytes of the journal in use.
    pub journal_used: Bytes,
    /// Number of stripe writes since the array was started, by kind.
    pub writes: WritesReply,
    /// Number of reads that used redundancy.
    pub reads: ReadsReply,
}

/// A member of an array.
#[derive(Debug, Serialize)]
pub struct MemberReply {
    /// `active`, `absent`, `failed`, `rebuilding`, or `catching-up`: under resync.
    pub condition: &'static str,
    /// Number of stripes done, of a rebuild or resync; else left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_stripes: Option<u64>,
    /// Number of stripes in all, of a rebuild or resync; else left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stripes: Option<u64>,
    /// Index in the array.
    pub index: usize,
    /// UUID of the member.
    pub uuid: String,
    /// Name of its device, if it is attached.
    pub device: Option<String>,
    /// Why it is not active.
    pub reason: String,
    /// What keeps other hosts from writing to it: `reservation` or `heartbeat`; null without a device.
    pub guard: Option<&'static str>,
    /// Number of blocks that did not match their checksums.
    pub mismatches: u64,
    /// Number of blocks repaired.
    #[serde(rename = "mended")]
    pub repaired: u64,
    /// Number of read errors.
    pub read_errors: u64,
    /// Number of hedged reads.
    pub hedged: u64,
}

/// Progress of a rebuild or resync.
#[derive(Debug, Serialize)]
pub struct ProgressReply {
    /// Index of the member.
    pub member: usize,
    /// Bytes done so far.
    pub done_bytes: Bytes,
    /// Bytes in all.
    pub total_bytes: Bytes,
    /// Time since the start.
    pub elapsed_seconds: Seconds,
    /// Mean rate since the start.
    pub bytes_per_second: BytesPerSecond,
    /// Estimated time left; null while the rate is zero.
    pub remaining_seconds: Option<Seconds>,
}

/// The report of a scrub; counts are of blocks of 4 KiB.
#[derive(Debug, Serialize)]
pub struct ScrubReply {
    /// It has come to its end.
    pub finished: bool,
    /// Number of stripes done.
    pub stripes_done: u64,
    /// Number of stripes in all.
    pub stripes: u64,
    /// Blocks that did not match, by member.
    pub wrong_blocks: Vec<u64>,
    /// Blocks that could not be read, by member.
    pub unreadable_blocks: Vec<u64>,
    /// Number of blocks repaired.
    #[serde(rename = "mended")]
    pub repaired: u64,
    /// Blocks that matched their checksums, but the others showed them to be wrong.
    pub inconsistent: u64,
    /// Blocks that cannot be repaired.
    pub lost: u64,
    /// Blocks that match their checksums but not each other, where it cannot be decided which is right.
    pub disagreeing: u64,
    /// The ranges of those.
    pub disagreements: Vec<ExtentReply>,
    /// Blocks that did not fit together while they were in use, and were not judged.
    pub unsettled: u64,
    /// Blocks that wait for missing members.
    pub waiting: u64,
    /// Blocks of the array's own records that were repaired.
    pub own_blocks: u64,
    /// Time that it took so far.
    pub elapsed_seconds: Seconds,
}

/// The paths to the members of an array that are remote namespaces, and what went over each.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PathsReply {
    /// When this was counted, on a clock of the machine that only goes forward.
    pub clock_ns: u64,
    /// The process that runs the array: another one counts from zero.
    pub pid: u32,
    /// The paths.
    pub paths: Vec<PathReply>,
}

/// A path to a member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PathReply {
    /// Name of the member's device.
    pub device: String,
    /// Host and port.
    pub address: String,
    /// `optimized`, `non-optimized`, `inaccessible`, or `lost`: it is being connected to again.
    pub state: String,
    /// Why there is no connection.
    pub why: Option<String>,
    /// The least round trip that was measured.
    pub round_trip_us: Option<u64>,
    /// How often its connection was lost.
    pub disconnects: u64,
    /// Reads over it.
    pub read: WayReply,
    /// Writes over it.
    pub write: WayReply,
}

/// Commands that move data in one direction, since the device was opened.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct WayReply {
    /// Number of commands completed.
    pub commands: u64,
    /// Their bytes.
    pub bytes: Bytes,
    /// The time that each of them took, added up.
    pub time_ns: u64,
    /// Number of commands in flight.
    pub in_flight: u64,
}

/// A range of an array.
#[derive(Debug, Serialize)]
pub struct ExtentReply {
    /// Where it begins.
    pub offset: Bytes,
    /// Length of the range.
    pub bytes: Bytes,
}

/// Stripe writes by kind.
#[derive(Debug, Serialize)]
pub struct WritesReply {
    /// Number of full-stripe writes.
    pub full: u64,
    /// Number of read-modify-writes.
    pub read_modify: u64,
    /// Number of reconstruct-writes.
    pub reconstruct: u64,
    /// Writes with members missing.
    pub degraded: u64,
}

/// Reads that used redundancy.
#[derive(Debug, Serialize)]
pub struct ReadsReply {
    /// Reads of data that was reconstructed.
    pub reconstructed: u64,
    /// Hedged reads that were faster.
    pub hedges_won: u64,
}

/// A condition: its name, and stripes done and in all.
fn condition(condition: Condition, rows: u64) -> (&'static str, Option<(u64, u64)>) {
    match condition {
        Condition::Active => ("active", None),
        Condition::Offline => ("absent", None),
        Condition::Failed => ("failed", None),
        Condition::Rebuilding { done, partial } => {
            (if partial { "catching-up" } else { "rebuilding" }, Some((done, rows)))
        }
    }
}

fn progress(progress: &Progress) -> ProgressReply {
    ProgressReply {
        member: progress.member,
        done_bytes: progress.done,
        total_bytes: progress.total,
        elapsed_seconds: progress.elapsed.as_secs_f64(),
        bytes_per_second: progress.rate(),
        remaining_seconds: progress.remaining().map(|time| time.as_secs_f64()),
    }
}

fn extents(extents: &[Extent]) -> Vec<ExtentReply> {
    extents.iter().map(|range| ExtentReply { offset: range.offset, bytes: range.len }).collect()
}

fn scrub(report: &ScrubReport) -> ScrubReply {
    ScrubReply {
        finished: report.finished,
        stripes_done: report.stripes.0,
        stripes: report.stripes.1,
        wrong_blocks: report.wrong.clone(),
        unreadable_blocks: report.unreadable.clone(),
        repaired: report.repaired,
        inconsistent: report.inconsistent,
        lost: report.lost,
        disagreeing: report.disagreeing,
        disagreements: extents(&report.disagreements),
        unsettled: report.unsettled,
        waiting: report.waiting,
        own_blocks: report.own,
        elapsed_seconds: report.elapsed.as_secs_f64(),
    }
}

fn halt(reason: HaltReason) -> &'static str {
    match reason {
        HaltReason::TakenOver => "taken-over",
        HaltReason::Diverged => "diverged",
        HaltReason::Lost => "lost",
        HaltReason::Stopped => "stopped",
    }
}

/// What guards the members that have a device.
fn guard(status: &Status) -> &'static str {
    let guards = || status.members.iter().filter_map(|member| member.guard);
    match (guards().any(|one| one == Guard::Reservation), guards().any(|one| one == Guard::Heartbeat)) {
        (true, false) => "reservations",
        (true, true) => "mixed",
        (false, _) => "heartbeats",
    }
}

/// The report of a scrub as JSON: a [`ScrubReply`].
pub fn scrub_json(report: &ScrubReport) -> Value {
    json(&scrub(report))
}

fn way(traffic: WayTraffic) -> WayReply {
    WayReply {
        commands: traffic.commands,
        bytes: traffic.bytes,
        time_ns: u64::try_from(traffic.time.as_nanos()).unwrap_or(u64::MAX),
        in_flight: traffic.in_flight,
    }
}

/// Paths, each with the name of its device, as JSON: a [`PathsReply`].
pub(crate) fn paths_json(paths: &[(String, PathStatus)]) -> Value {
    let paths = paths.iter().map(|(device, path)| PathReply {
        device: device.clone(),
        address: path.address.clone(),
        state: path.state.to_string(),
        why: path.why.clone(),
        round_trip_us: path.round_trip.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX)),
        disconnects: path.disconnects,
        read: way(path.traffic.read),
        write: way(path.traffic.write),
    });
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let clock_ns = (now.tv_sec as u64).saturating_mul(1_000_000_000) + now.tv_nsec as u64;
    json(&PathsReply { clock_ns, pid: std::process::id(), paths: paths.collect() })
}

/// The status of an array as JSON: a [`StatusReply`].
pub fn status_json(status: &Status) -> Value {
    let geometry = &status.geometry;
    let members = status.members.iter().map(|member| {
        let (condition, stripes) = condition(member.condition, geometry.rows);
        MemberReply {
            condition,
            done_stripes: stripes.map(|(done, _)| done),
            stripes: stripes.map(|(_, all)| all),
            index: member.index,
            uuid: member.uuid.to_string(),
            device: member.device.clone(),
            reason: member.reason.clone(),
            guard: member.guard.map(|guard| match guard {
                Guard::Reservation => "reservation",
                Guard::Heartbeat => "heartbeat",
            }),
            mismatches: member.counts.mismatches,
            repaired: member.counts.repaired,
            read_errors: member.counts.read_errors,
            hedged: member.counts.hedged,
        }
    });
    let health = match status.health {
        Health::Healthy => "healthy",
        Health::Degraded => "degraded",
        Health::Halted => "halted",
    };
    json(&StatusReply {
        uuid: status.uuid.to_string(),
        name: status.name.clone(),
        layout: geometry.layout.name().into(),
        size: geometry.size(),
        stripe_unit: geometry.unit,
        stripe: geometry.stripe(),
        redundancy: geometry.redundancy(),
        health,
        detail: status.detail.clone(),
        halt: status.halt.map(halt),
        guard: guard(status),
        generation: status.generation,
        members: members.collect(),
        spares: status.spares.clone(),
        filling: status.rebuild.as_ref().map(progress),
        scrub: status.scrub.as_ref().map(scrub),
        lost: extents(&status.lost),
        lost_bytes: status.lost_bytes,
        marked_regions: status.marked_regions.0,
        regions: status.marked_regions.1,
        journal_used: status.journal_used,
        writes: WritesReply {
            full: status.counts.full_writes,
            read_modify: status.counts.modify_writes,
            reconstruct: status.counts.reconstruct_writes,
            degraded: status.counts.degraded_writes,
        },
        reads: ReadsReply {
            reconstructed: status.counts.reconstructed,
            hedges_won: status.counts.hedges_won,
        },
    })
}

/// A reply as JSON. Its keys are names of fields, so that it cannot fail.
fn json(reply: &impl Serialize) -> Value {
    serde_json::to_value(reply).unwrap_or_default()
}
