//! Faults between hosts and their target.
//!
//! Invariants:
//! - every fault is healed when [`Site::heal`] is done: operations that hosts wait for must
//!   complete then;
//! - a target is off, paused or being started by one fault at a time.

use super::heads::SharedHeads;
use super::plan::NetworkPlan;
use super::{Net, Planted};
use crate::disk::Disk;
use crate::model::Model;
use crate::network::run::Export;
use crate::random::Random;
use crate::world::World;
use longhaul_engine::simulated::Host;
use longhaul_engine::sleep;
use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

/// The target's address.
pub(super) const TARGET: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
/// Its second one, or that of the other head.
pub(super) const SECOND: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// The kinds of trouble of [`Site::one`] in plans where everything is close to
/// each other: resets above all.
const CLOSE: [u64; 10] = [4, 4, 4, 4, 4, 0, 2, 3, 6, 7];

/// How often something has happened to a simulated network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ways cut, both or one.
    pub cuts: u64,
    /// Number of connections that were reset.
    pub resets: u64,
    /// Number of targets that were killed.
    pub kills: u64,
    /// Targets that have lost their power.
    pub power: u64,
    /// Number of targets that were paused.
    pub pauses: u64,
    /// Times that a disk was very slow.
    pub slow: u64,
    /// Hosts that have crashed.
    pub crashes: u64,
    /// Heads that took the disk over from the other one.
    pub takeovers: u64,
}

impl Counts {
    /// All of them.
    #[must_use]
    pub fn all(&self) -> u64 {
        let Counts { cuts, resets, kills, power, pauses, slow, crashes, takeovers } = *self;
        cuts + resets + kills + power + pauses + slow + crashes + takeovers
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: &Counts) {
        self.cuts += other.cuts;
        self.resets += other.resets;
        self.kills += other.kills;
        self.power += other.power;
        self.pauses += other.pauses;
        self.slow += other.slow;
        self.crashes += other.crashes;
        self.takeovers += other.takeovers;
    }
}

/// The state that a host's load shares with the faults.
pub(super) struct Share {
    pub(super) model: Rc<RefCell<Model>>,
    /// Generation in which the last change began that was acknowledged.
    pub(super) acknowledged: Cell<Option<u64>>,
    /// The same when the target lost its power for the last time.
    pub(super) doubtful: Cell<Option<u64>>,
    /// How often that was.
    pub(super) losses: Cell<u64>,
}

/// The target, its disk, and the network.
pub(super) struct Site {
    pub(super) world: World,
    pub(super) net: Net,
    pub(super) disk: Disk,
    pub(super) plan: NetworkPlan,
    pub(super) planted: Planted,
    pub(super) shares: Vec<Rc<Share>>,
    pub(super) targets: [Cell<Option<Host>>; 2],
    /// A task pauses or restarts the target: no other may at the same time.
    busy: [Cell<bool>; 2],
    /// What two targets know of each other that serve the disk in turn.
    pub(super) heads: SharedHeads,
    pub(super) counts: Cell<Counts>,
    pub(super) failure: Rc<RefCell<Option<String>>>,
}

impl Site {
    pub(super) fn new(
        world: World,
        net: Net,
        disk: Disk,
        plan: NetworkPlan,
        planted: Planted,
        shares: Vec<Rc<Share>>,
        failure: Rc<RefCell<Option<String>>>,
    ) -> Site {
        Site {
            world,
            net,
            disk,
            plan,
            planted,
            shares,
            targets: Default::default(),
            busy: Default::default(),
            heads: SharedHeads::new(),
            counts: Cell::default(),
            failure,
        }
    }

    pub(super) fn count(&self, what: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        what(&mut counts);
        self.counts.set(counts);
    }

    /// Whether two targets serve the disk in turn.
    pub(super) fn has_heads(&self) -> bool {
        self.plan.two.is_some_and(|two| two.heads)
    }

    /// The address of a target by its number.
    pub(super) fn address(number: usize) -> IpAddr {
        [TARGET, SECOND][number]
    }

    pub(super) fn start_target(&self, number: usize) {
        self.targets[number].set(Some(Export::start(self, number)));
    }

    /// Ends a target at once; with `power` its machine loses its power.
    fn stop_target(&self, number: usize, power: bool) {
        let Some(target) = self.targets[number].take() else { return };
        let how = if power { ", without power" } else { "" };
        self.world.tell(format_args!("target {number} is killed{how}"));
        if power {
            self.net.power(Site::address(number), false);
        }
        target.kill();
        if self.has_heads() {
            // The disk is elsewhere.
            return;
        }
        self.disk.crash(power, None);
        if power {
            for share in &self.shares {
                share.model.borrow_mut().lose_power();
                share.doubtful.set(share.acknowledged.get());
                share.losses.set(share.losses.get() + 1);
            }
        }
    }

    /// Everything is as it should be again.
    pub(super) async fn heal(&self) {
        self.world.tell(format_args!("heal"));
        while self.busy.iter().any(Cell::get) {
            sleep(Duration::from_millis(100)).await;
        }
        self.net.calm();
        self.disk.straggle(false);
    }

    /// One fault, and its end.
    async fn one(&self, host: IpAddr, random: &mut Random) {
        let close = self.plan.close;
        let most = if close {
            random.pick(&[20, 500, 6_000])
        } else {
            random.pick(&[20, 500, 4_000, 30_000, 100_000])
        };
        // Never zero: a killed target has ended before its successor starts.
        let time = Duration::from_millis(random.between(1, most));
        let kind = if close { random.pick(&CLOSE) } else { random.below(10) };
        // Which paths it concerns, and which target.
        let addresses = match self.plan.two {
            Some(_) => random.pick(&[&[TARGET][..], &[SECOND], &[TARGET, SECOND]]),
            None => &[TARGET],
        };
        let number = if self.has_heads() { random.below(2) as usize } else { 0 };
        if self.has_heads() && random.chance(15) {
            return self.heads.hand_over(number);
        }
        match kind {
            way @ 0..4 => {
                self.count(|counts| counts.cuts += 1);
                let ways = addresses.iter().flat_map(|address| {
                    let ways = [(host, *address), (*address, host)];
                    if way < 2 { ways.to_vec() } else { vec![ways[way as usize - 2]] }
                });
                let ways: Vec<_> = ways.collect();
                ways.iter().for_each(|(from, to)| self.net.cut(*from, *to, true));
                sleep(time).await;
                ways.iter().for_each(|(from, to)| self.net.cut(*from, *to, false));
            }
            4 => {
                self.count(|counts| counts.resets += 1);
                let both = random.chance(50);
                addresses.iter().for_each(|address| self.net.reset(host, *address, both));
            }
            5 => {
                self.count(|counts| counts.slow += 1);
                self.world.tell(format_args!("the disk is slow"));
                self.disk.straggle(true);
                sleep(time).await;
                self.disk.straggle(false);
            }
            6 if !self.busy[number].replace(true) => {
                self.count(|counts| counts.pauses += 1);
                if let Some(target) = self.targets[number].get() {
                    self.world.tell(format_args!("target {number} is paused"));
                    target.pause();
                    sleep(time).await;
                    target.resume();
                    self.world.tell(format_args!("target {number} continues"));
                }
                self.busy[number].set(false);
            }
            kind @ 7..10 if !self.busy[number].replace(true) => {
                let power = kind == 9;
                self.count(|counts| if power { counts.power += 1 } else { counts.kills += 1 });
                self.stop_target(number, power);
                sleep(time).await;
                if power {
                    self.net.power(Site::address(number), true);
                }
                self.start_target(number);
                self.busy[number].set(false);
            }
            _ => {}
        }
    }
}

/// Troubles, one after another, each with a host that it concerns.
pub(super) async fn trouble(site: Rc<Site>, hosts: Vec<IpAddr>, mut random: Random) {
    for _ in 0..site.plan.troubles {
        let most =
            if site.plan.close { random.pick(&[5, 50, 300]) } else { random.pick(&[5, 100, 2_000, 20_000]) };
        sleep(Duration::from_millis(random.below(most))).await;
        let host = random.pick(&hosts);
        site.one(host, &mut random).await;
    }
}
