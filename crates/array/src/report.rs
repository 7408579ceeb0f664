//! Status of a running array.

use crate::array::ArrayFuture;
use crate::core::{Core, HaltReason};
use crate::device::ArrayDevice;
use crate::format::layout::Layout;
use crate::format::superblock::Condition;
use crate::heal::lost::LostRanges;
use crate::heal::scrub::ScrubReport;
use crate::member::{Member, MemberCounts};
use crate::session::guard::Guard;
use crate::{Counts, Geometry};
use longhaul_block::IoResult;
use std::time::Duration;
use uuid::Uuid;

/// A range of the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Progress of a rebuild or resync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Index of the member.
    pub member: usize,
    /// Bytes of the member that are done.
    pub done: u64,
    /// Bytes of the member in total.
    pub total: u64,
    /// Time since the start.
    pub elapsed: Duration,
}

impl Progress {
    /// Mean rate in bytes per second.
    pub fn rate(&self) -> f64 {
        self.done as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Estimated time left at this rate; `None` while the rate is zero.
    pub fn remaining(&self) -> Option<Duration> {
        let left = self.total.saturating_sub(self.done) as f64;
        Duration::try_from_secs_f64(left / self.rate()).ok()
    }
}

/// State of background work.
#[derive(Clone, Debug, Default)]
pub(crate) struct BackgroundWork {
    pub(crate) rebuild: Option<Progress>,
    pub(crate) scrub: Option<ScrubReport>,
    pub(crate) lost: LostRanges,
}

/// Status of a member.
#[derive(Clone, Debug)]
pub struct MemberStatus {
    /// Index in the array.
    pub index: usize,
    /// UUID of the member.
    pub uuid: Uuid,
    /// Name of the device, if it is attached.
    pub device: Option<String>,
    /// Condition of the member.
    pub condition: Condition,
    /// Why it is not active.
    pub reason: String,
    /// What keeps other hosts from writing to it while the array runs; `None` without a device.
    pub guard: Option<Guard>,
    /// Counts since the array was started.
    pub counts: MemberCounts,
}

/// Overall state of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// All members are active, and nothing is lost.
    Healthy,
    /// Members are missing, but all data is there; or blocks are lost, and everything else can be
    /// read and written.
    Degraded,
    /// The array does not write any more.
    Halted,
}

/// Status of an array.
#[derive(Clone, Debug)]
pub struct Status {
    /// UUID of the array.
    pub uuid: Uuid,
    /// Name of the array, as its superblocks give it.
    pub name: String,
    /// Shape of the array.
    pub geometry: Geometry,
    /// Whether it is whole, lacks redundancy or data, or has halted.
    pub health: Health,
    /// Why it has halted, or what is at risk.
    pub detail: String,
    /// The class of the reason why it has halted, or was stopped.
    pub halt: Option<HaltReason>,
    /// Superblocks written so far.
    pub generation: u64,
    /// The members, by index.
    pub members: Vec<MemberStatus>,
    /// Names of the spares that are attached.
    pub spares: Vec<String>,
    /// Progress of the member under rebuild or resync.
    pub rebuild: Option<Progress>,
    /// The scrub in progress, or the last one.
    pub scrub: Option<ScrubReport>,
    /// Lost ranges found since the array was started, in order. Reading them is an error until they
    /// are written.
    pub lost: Vec<Extent>,
    /// Bytes that are lost: more than `lost` lists, if there are many ranges.
    pub lost_bytes: u64,
    /// Regions that a crash would leave to resync, and regions in total.
    pub marked_regions: (u64, u64),
    /// Bytes of the journal in use.
    pub journal_used: u64,
    /// Counts since the array was started.
    pub counts: Counts,
}

impl Core {
    pub(crate) fn status(&self) -> Status {
        let members: Vec<MemberStatus> = self
            .members
            .iter()
            .map(|member| MemberStatus {
                index: member.index,
                uuid: member.uuid(),
                device: member.name(),
                condition: member.condition(),
                reason: reason(member),
                guard: member.name().map(|_| self.guard_of(member.uuid())),
                counts: member.counts.get(),
            })
            .collect();
        let silent = self.out_of_reach();
        let lost_bytes = self.upkeep.work.borrow().lost.bytes();
        let missing = self.members.inactive();
        let (health, detail) = match (self.why_halted(), missing) {
            (Some(why), _) => (Health::Halted, why),
            _ if self.members.needs(&silent) && !silent.is_empty() => (Health::Degraded, waits_for(&silent)),
            (None, 0) if lost_bytes == 0 => (Health::Healthy, String::new()),
            (None, 0) => (Health::Degraded, loss(lost_bytes)),
            (None, missing) => {
                let no_spare = self.spares.names().is_empty() && self.members.iter().any(Member::is_missing);
                let risk = at_risk(&self.geometry(), missing, no_spare);
                let loss = (lost_bytes > 0).then(|| loss(lost_bytes));
                (Health::Degraded, loss.into_iter().chain([risk]).collect::<Vec<_>>().join("; "))
            }
        };
        let work = self.upkeep.work.borrow();
        Status {
            uuid: self.array,
            name: self.name.clone(),
            geometry: self.geometry(),
            health,
            detail,
            halt: self.halt_reason(),
            generation: self.publication.generation(),
            members,
            spares: self.spares.names(),
            rebuild: work.rebuild,
            scrub: work.scrub.clone(),
            lost: work.lost.listed(),
            lost_bytes: work.lost.bytes(),
            marked_regions: (self.intent.marked().len() as u64, self.geometry().regions()),
            journal_used: self.journal.used(),
            counts: self.io.counts(),
        }
    }
}

/// Whether a spare may replace a member in this condition.
pub(crate) fn may_be_replaced(condition: Condition) -> bool {
    matches!(condition, Condition::Offline | Condition::Failed)
}

/// Consequence of the loss of more members.
pub(crate) fn at_risk(geometry: &Geometry, missing: usize, no_spare: bool) -> String {
    let left = match geometry.layout {
        Layout::StripeMirror => 0,
        _ => geometry.redundancy().saturating_sub(missing),
    };
    let risk = match left {
        0 => "the loss of one more member can lose data".to_owned(),
        left => format!("the loss of {left} more loses nothing"),
    };
    if no_spare { format!("{risk}; no spare is left") } else { risk }
}

/// Why a member is not active, or does not answer.
fn reason(member: &Member) -> String {
    match member.disconnected().filter(|_| member.is_active()) {
        Some(time) => format!("it has lost its connection {:.1} s ago", time.as_secs_f64()),
        None => member.state.reason(),
    }
}

/// Describes lost data.
fn loss(bytes: u64) -> String {
    format!("{bytes} bytes are lost: reads of them fail until they are written")
}

fn waits_for(silent: &[usize]) -> String {
    let members: Vec<String> = silent.iter().map(ToString::to_string).collect();
    format!("waits for members {}, which are out of reach", members.join(", "))
}

impl ArrayDevice {
    /// The status at this moment.
    ///
    /// # Errors
    /// The array's thread has ended.
    pub fn status(&self) -> ArrayFuture<'_, IoResult<Status>> {
        Box::pin(self.ask(|core, answer| drop(answer.send(core.status()))))
    }
}
