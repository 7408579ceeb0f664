//! Faults between hosts and their target.
//!
//! Invariants:
//! - every fault is healed when [`Site::heal`] is done: operations that hosts wait for must
//!   complete then;
//! - the target is off, paused or being started by one fault at a time.

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
}

impl Counts {
    /// All of them.
    #[must_use]
    pub fn all(&self) -> u64 {
        let Counts { cuts, resets, kills, power, pauses, slow, crashes } = *self;
        cuts + resets + kills + power + pauses + slow + crashes
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
    pub(super) target: Cell<Option<Host>>,
    /// A task pauses or restarts the target: no other may at the same time.
    busy: Cell<bool>,
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
            target: Cell::new(None),
            busy: Cell::new(false),
            counts: Cell::default(),
            failure,
        }
    }

    pub(super) fn count(&self, what: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        what(&mut counts);
        self.counts.set(counts);
    }

    pub(super) fn start_target(&self) {
        self.target.set(Some(Export::start(self)));
    }

    /// Ends the target at once; with `power` its machine loses its power.
    fn stop_target(&self, power: bool) {
        let Some(target) = self.target.take() else { return };
        self.world.tell(format_args!("the target is killed{}", if power { ", without power" } else { "" }));
        if power {
            self.net.power(TARGET, false);
        }
        target.kill();
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
        while self.busy.get() {
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
        match kind {
            way @ 0..4 => {
                self.count(|counts| counts.cuts += 1);
                let ways = [(host, TARGET), (TARGET, host)];
                let ways = if way < 2 { &ways[..] } else { &ways[way as usize - 2..][..1] };
                ways.iter().for_each(|(from, to)| self.net.cut(*from, *to, true));
                sleep(time).await;
                ways.iter().for_each(|(from, to)| self.net.cut(*from, *to, false));
            }
            4 => {
                self.count(|counts| counts.resets += 1);
                self.net.reset(host, TARGET, random.chance(50));
            }
            5 => {
                self.count(|counts| counts.slow += 1);
                self.world.tell(format_args!("the disk is slow"));
                self.disk.straggle(true);
                sleep(time).await;
                self.disk.straggle(false);
            }
            6 if !self.busy.replace(true) => {
                self.count(|counts| counts.pauses += 1);
                if let Some(target) = self.target.get() {
                    self.world.tell(format_args!("the target is paused"));
                    target.pause();
                    sleep(time).await;
                    target.resume();
                    self.world.tell(format_args!("the target continues"));
                }
                self.busy.set(false);
            }
            kind @ 7..10 if !self.busy.replace(true) => {
                let power = kind == 9;
                self.count(|counts| if power { counts.power += 1 } else { counts.kills += 1 });
                self.stop_target(power);
                sleep(time).await;
                if power {
                    self.net.power(TARGET, true);
                }
                self.start_target();
                self.busy.set(false);
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
