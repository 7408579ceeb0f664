//! What fails beside the way between a host and its disks: disks, a host in the middle of its
//! load, and the witness.

use super::{Hosts, Owner};
use crate::disk::Fault;
use longhaul_array::Layout;
use longhaul_engine::{sleep, timeout};
use std::time::Duration;

/// How long a member is away at most, in milliseconds: longer than one is waited for.
const AWAY: u64 = 40_000;
/// The latest time at which a member leaves, in milliseconds after the load began.
const GOES: u64 = 2_000;
/// The latest time at which a host crashes, in durations of an operation.
const CRASHES: u64 = 200;
/// By when an array has noticed that a device was away: operations that were under way have
/// ended, and there was a heartbeat.
const NOTICED: Duration = Duration::from_secs(6);
/// How long a scrub may take: disks are small.
const SCRUBS: Duration = Duration::from_secs(3600);

impl Hosts<'_> {
    /// The host crashes in the middle of its load.
    pub(super) async fn crashed(&mut self, owner: Owner) -> Result<Owner, String> {
        let load = self.load(&owner);
        let clients = self.clients(&load);
        sleep(self.plan.latency * self.random.below(CRASHES) as u32).await;
        self.world.tell(format_args!("the host crashes under load"));
        owner.go_down();
        drop(clients);
        drop(load);
        self.check()?;
        self.contend().await
    }

    /// A member that the array can do without, or the witness, leaves and returns under load; or a
    /// member's data is silently damaged. The host may crash before that is repaired.
    pub(super) async fn failing(&mut self, owner: Owner) -> Result<Owner, String> {
        self.heal(&owner).await?;
        // One at a time is within the redundancy of every layout that has some.
        let spared = self.spared().first().copied();
        let Some(place) = self.witness().filter(|_| self.random.chance(30)).or(spared) else {
            return Ok(owner);
        };
        self.hurt = true;
        let (disk, is_member) = (self.disks[place].clone(), place < self.plan.width);
        if is_member && self.random.chance(40) {
            disk.plant(self.random.pick(&[Fault::Flip, Fault::Unreadable]));
            self.use_it(&owner).await?;
        } else {
            let power = is_member && self.random.chance(50);
            let (goes, away) = (self.random.below(GOES), self.random.below(AWAY));
            let absence = async {
                sleep(Duration::from_millis(goes)).await;
                disk.leave(power);
                sleep(Duration::from_millis(away)).await;
                disk.come_back();
                sleep(NOTICED).await;
            };
            let (used, ()) = futures_util::join!(self.use_it(&owner), absence);
            used?;
        }
        let owner = if self.random.chance(40) {
            self.world.tell(format_args!("the host crashes before that is repaired"));
            owner.go_down();
            self.contend().await?
        } else {
            owner
        };
        self.heal(&owner).await?;
        self.scrub(&owner).await?;
        self.hurt = false;
        Ok(owner)
    }

    /// Has everything repaired that is repaired by a look at it.
    async fn scrub(&self, owner: &Owner) -> Result<(), String> {
        if self.plan.layout == Layout::Stripe {
            return Ok(());
        }
        let scrubbed = timeout(SCRUBS, owner.array.scrub()).await.map_err(|_| "not scrubbed".to_owned())?;
        let report = scrubbed.map_err(|e| format!("scrub: {e}"))?;
        match report.lost + report.disagreeing + report.inconsistent {
            0 => Ok(()),
            count => Err(format!("a scrub has found {count} blocks lost, or at odds")),
        }
    }

    /// The witness is lost for good. The array continues, and another host gives the witness
    /// up, by a person's word, when it takes the array over.
    pub(super) async fn without_witness(&mut self, owner: Owner) -> Result<Owner, String> {
        self.heal(&owner).await?;
        let Some(witness) = self.witness() else { return self.contend_after_stop(owner).await };
        self.world.tell(format_args!("the witness is lost for good"));
        self.disks[witness].leave(true);
        self.use_it(&owner).await?;
        if self.random.chance(50) {
            self.stop(&owner).await?;
        } else {
            owner.go_down();
        }
        // All members together need no witness.
        let members = self.others(&[]);
        let next = self.attempt_again(&members).await;
        let next = next.map_err(|e| format!("all members without the witness: {e}"))?;
        self.hand_over();
        self.use_it(&next).await?;
        self.stop(&next).await?;
        let next = self.attempt_as(&members, true).await;
        let next = next.map_err(|e| format!("without the witness, with --degraded: {e}"))?;
        self.given_up = true;
        self.hand_over();
        self.use_it(&next).await?;
        // The witness that comes back is not of the array any more: no host opens it.
        self.disks[witness].come_back();
        self.contend_after_stop(next).await
    }

    async fn contend_after_stop(&mut self, owner: Owner) -> Result<Owner, String> {
        self.stop(&owner).await?;
        self.contend().await
    }
}
