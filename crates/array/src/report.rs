//! What an array says of itself.

use crate::core::Core;
use crate::device::ArrayDevice;
use crate::layout::Layout;
use crate::lost::Ranges;
use crate::member::{Member, MemberCounts};
use crate::scrub::ScrubReport;
use crate::superblock::Condition;
use crate::{Counts, Geometry};
use longhaul_block::IoResult;
use std::time::Duration;
use uuid::Uuid;

/// A range of the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// How far a member is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Which.
    pub member: usize,
    /// Bytes of it that are done.
    pub done: u64,
    /// Bytes of it to do.
    pub total: u64,
    /// Since when.
    pub elapsed: Duration,
}

impl Progress {
    /// Bytes per second so far.
    pub fn rate(&self) -> f64 {
        self.done as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Time to the end at this rate, once there is one.
    pub fn remaining(&self) -> Option<Duration> {
        let left = self.total.saturating_sub(self.done) as f64;
        Duration::try_from_secs_f64(left / self.rate()).ok()
    }
}

/// Work that goes on beside I/O.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tasks {
    pub(crate) filling: Option<Progress>,
    pub(crate) scrub: Option<ScrubReport>,
    pub(crate) lost: Ranges,
}

/// A member, as it is now.
#[derive(Clone, Debug)]
pub struct MemberStatus {
    /// Its place.
    pub index: usize,
    /// Its identity.
    pub uuid: Uuid,
    /// What the device is called, if there is one.
    pub device: Option<String>,
    /// What it is to the array.
    pub condition: Condition,
    /// Why, where it is not active.
    pub reason: String,
    /// What was counted since the array was started.
    pub counts: MemberCounts,
}

/// What an array can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Everything is there.
    Healthy,
    /// Members are missing, and everything can be read and written; or blocks are
    /// lost, and everything else can.
    Degraded,
    /// It does not write any more.
    Halted,
}

/// An array, as it is now.
#[derive(Clone, Debug)]
pub struct Status {
    /// Its identity.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// Its shape.
    pub geometry: Geometry,
    /// What it can do.
    pub health: Health,
    /// Why it is halted, or what is at risk.
    pub detail: String,
    /// Superblocks written, ever.
    pub generation: u64,
    /// The members, by place.
    pub members: Vec<MemberStatus>,
    /// Devices that wait for a place.
    pub spares: Vec<String>,
    /// The member that is being filled.
    pub filling: Option<Progress>,
    /// The scrub that runs, or the last one.
    pub scrub: Option<ScrubReport>,
    /// What nobody has any more, as far as it was found since the array was
    /// started, in order. Reading it is an error until it is written.
    pub lost: Vec<Extent>,
    /// Bytes that are lost: more than are listed, where there are many.
    pub lost_bytes: u64,
    /// Regions that would be looked at after a crash, of so many.
    pub marked_regions: (u64, u64),
    /// Bytes of the journal in use.
    pub journal_used: u64,
    /// What was counted since the array was started.
    pub counts: Counts,
}

impl Core {
    pub(crate) fn status(&self) -> Status {
        let members: Vec<MemberStatus> = self
            .members
            .iter()
            .map(|member| MemberStatus {
                index: member.index,
                uuid: member.uuid.get(),
                device: member.name(),
                condition: member.condition.get(),
                reason: reason(member),
                counts: member.counts.get(),
            })
            .collect();
        let silent = self.out_of_reach();
        let lost_bytes = self.upkeep.tasks.borrow().lost.bytes();
        let missing = self.members.iter().filter(|member| !member.is_active()).count();
        let (health, detail) = match (&*self.halted.borrow(), missing) {
            (Some(why), _) => (Health::Halted, why.clone()),
            _ if self.needs(&silent) && !silent.is_empty() => (Health::Degraded, waits_for(&silent)),
            (None, 0) if lost_bytes == 0 => (Health::Healthy, String::new()),
            (None, 0) => (Health::Degraded, loss(lost_bytes)),
            (None, missing) => {
                let waits = |member: &Member| is_gone(member.condition.get());
                let no_spare = self.spares.borrow().iter().all(|spare| spare.device.is_none());
                let no_spare = no_spare && self.members.iter().any(waits);
                let risk = at_risk(&self.geometry, missing, no_spare);
                let loss = (lost_bytes > 0).then(|| loss(lost_bytes));
                (Health::Degraded, loss.into_iter().chain([risk]).collect::<Vec<_>>().join("; "))
            }
        };
        let tasks = self.upkeep.tasks.borrow();
        Status {
            uuid: self.array,
            name: self.name.borrow().clone(),
            geometry: self.geometry,
            health,
            detail,
            generation: self.generation.get(),
            members,
            spares: self
                .spares
                .borrow()
                .iter()
                .filter_map(|spare| Some(spare.device.as_ref()?.info().name))
                .collect(),
            filling: tasks.filling,
            scrub: tasks.scrub.clone(),
            lost: tasks.lost.told(),
            lost_bytes: tasks.lost.bytes(),
            marked_regions: (self.intent.marked().len() as u64, self.geometry.regions()),
            journal_used: self.journal.used(),
            counts: self.counts.get(),
        }
    }
}

/// Whether a spare can take its place.
pub(crate) fn is_gone(condition: Condition) -> bool {
    matches!(condition, Condition::Absent | Condition::Failed)
}

/// What the loss of more members would do.
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
    match member.away().filter(|_| member.is_active()) {
        Some(time) => format!("it has lost its connection {:.1} s ago", time.as_secs_f64()),
        None => member.reason.borrow().clone(),
    }
}

/// What no member has any more.
fn loss(bytes: u64) -> String {
    format!("{bytes} bytes are lost: they read as errors until they are written")
}

fn waits_for(silent: &[usize]) -> String {
    let members: Vec<String> = silent.iter().map(ToString::to_string).collect();
    format!("waits for members {}, which are out of reach", members.join(", "))
}

impl ArrayDevice {
    /// What the array is at this moment.
    ///
    /// # Errors
    /// Its thread has ended.
    pub async fn status(&self) -> IoResult<Status> {
        self.ask(|core, answer| drop(answer.send(core.status()))).await
    }
}
