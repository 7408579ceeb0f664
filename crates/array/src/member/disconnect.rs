//! Members that are unreachable at this moment.
//!
//! A device reports the loss of its connection long before its operations fail. Meanwhile its data
//! is reconstructed from the other members, and journal records go to others. If it does not return
//! soon it is marked offline, and operations on it are given up.
//!
//! Invariants:
//! - a member is given up for this only while the array can do without all unreachable members: if
//!   it is this host that has lost its connection, all members are kept, and operations wait as
//!   they would for a single device;
//! - time during which the array could not do without them does not count, since members return one
//!   after another;
//! - data that is read around a member is verified like any reconstruction.

use crate::core::Core;
use crate::format::geometry::Role;
use crate::format::superblock::Condition;
use crate::heal::upkeep::{TaskGuard, is_over, pause};
use longhaul_engine::BufMut;
use std::rc::Rc;
use std::time::Duration;

/// Interval at which unreachable members are looked for.
const LOOK: Duration = Duration::from_millis(250);
/// Mean read times after which an unreachable member is marked offline, if those are longer than
/// [`Options::offline_timeout`](crate::Options::offline_timeout): about two attempts to connect.
pub const OFFLINE_ROUND_TRIPS: u32 = 16;

impl Core {
    /// Members in use that are unreachable: by the word of their devices, or by silence.
    pub(crate) fn out_of_reach(&self) -> Vec<usize> {
        self.members.usable().filter(|member| member.is_silent(self)).map(|member| member.index).collect()
    }

    /// Whether a member is unreachable for too long, and not needed.
    fn is_given_up(&self, index: usize) -> bool {
        let member = &self.members[index];
        let limit = self.options.offline_timeout.max(member.mean_read() * OFFLINE_ROUND_TRIPS);
        let all = self.options.member_timeout;
        let is_over = |time| match self.members.spared(time) {
            // All members were unreachable, and return one after another.
            spared if spared < time => spared >= all,
            spared => spared >= limit.min(all),
        };
        !self.members.misses(&self.out_of_reach()) && member.disconnected().is_some_and(is_over)
    }

    /// A range of a data unit, reconstructed without the unreachable members; `None` if the others
    /// do not suffice, or do not match their checksums.
    pub(crate) async fn around(self: &Rc<Self>, row: u64, unit: usize, at: u64, len: u64) -> Option<BufMut> {
        let disconnected = self.members.disconnected();
        if !self.members.is_whole_without(row, &disconnected) {
            return None;
        }
        let _together = self.io.locks.shared(row).await;
        if self.io.rows.is_torn(row) {
            return None;
        }
        let wanted = self.enough(row, &disconnected);
        let mut units = self.read_units(row, at, len, wanted, &disconnected).await.ok()?;
        if units.bad.len() > disconnected.len() || units.complete(len).is_err() {
            return None;
        }
        let bytes = units.data.into_iter().nth(unit).flatten()?;
        let contradicts = |member| !self.sums.contradicted(member, row, at, &bytes).is_empty();
        if self.members.holders(row, Role::Data(unit)).any(contradicts) {
            return None;
        }
        self.io.count(|counts| counts.reconstructed += 1);
        Some(bytes.into_mut())
    }
}

/// Marks unreachable members offline that the array does not need.
pub(crate) async fn watch(core: Rc<Core>) {
    let _running = TaskGuard::new(&core);
    while !is_over(&core) {
        pause(&core, LOOK).await;
        for index in core.members.disconnected() {
            if !core.is_given_up(index) {
                continue;
            }
            let time = core.members[index].disconnected().unwrap_or_default().as_secs_f64();
            let why = format!("it has lost its connection {time:.1} s ago");
            let still = || core.is_given_up(index);
            // A failure to publish halts the array and is logged there.
            let _ = core.lose_if(index, Condition::Offline, &why, still).await;
        }
    }
}
