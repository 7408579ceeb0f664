//! What the hosts share: the catalog, the targets, the time, and what goes wrong.

use super::arrays::SimArray;
use super::plan::PoolPlan;
use super::turns::Turns;
use crate::random::Random;
use longhaul_catalog::{Catalog, FileCatalog, FileOptions, LeaseId, ManualClock, Txn};
use longhaul_pool::testing::{MemoryNamespace, MemoryTarget};
use longhaul_pool::{ArrayChange, Host, Label, NamespaceId, Pool, Quota, SpaceError, VolumeRecord};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use uuid::Uuid;

/// Name of the pool.
pub(super) const POOL: &str = "p";
/// The longest pause and cut, in turns.
const LONGEST: u64 = 60;

/// A change on its way, whose host does not wait for it any more.
pub(super) enum Late {
    Commit(Txn),
    Make { address: String, size: u64, label: Box<Label> },
    Remove { address: String, namespace: NamespaceId },
    Relabel { address: String, namespace: NamespaceId, label: Box<Label> },
    Change { array: Uuid, run: u64, change: ArrayChange },
}

/// What is left of a host between two calls.
#[derive(Clone, Default)]
pub(super) struct HostLine {
    pub(super) is_dead: bool,
    /// Turns until the catalog, or the targets, can be reached again.
    pub(super) no_catalog: u64,
    pub(super) no_targets: u64,
    /// It is paused: nothing of it runs.
    pub(super) is_paused: bool,
    /// Leases that its threads keep.
    pub(super) leases: BTreeSet<LeaseId>,
}

/// A volume whose making was acknowledged.
#[derive(Clone, Debug, Default)]
pub(super) struct Acknowledged {
    /// All names that it may have had.
    pub(super) names: BTreeSet<String>,
    pub(super) job: Option<String>,
    pub(super) expires: bool,
    /// A host has begun to remove it.
    pub(super) may_be_gone: bool,
}

/// An operation of a host that changes or ends volumes which exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meddling {
    /// Removal of the volume of a name.
    Remove(String),
    /// Release of a job.
    Release(String),
    /// Removal of all volumes with a lifetime.
    Expire,
    /// Another name for the volume of a name.
    Rename(String, String),
}

impl Acknowledged {
    /// These operations, which are under way at the same time, concern this volume, or may: also by a
    /// name that another one of them gives it.
    pub(super) fn meet_all<'a>(&mut self, all: impl Iterator<Item = &'a (Meddling, Option<u64>)> + Clone) {
        let mut names = 0;
        while names < self.names.len() {
            names = self.names.len();
            all.clone().for_each(|(meddling, _)| self.meet(meddling));
        }
    }

    fn meet(&mut self, meddling: &Meddling) {
        match meddling {
            Meddling::Remove(name) => self.may_be_gone |= self.names.contains(name),
            Meddling::Release(job) => self.may_be_gone |= self.job.as_ref() == Some(job),
            Meddling::Expire => self.may_be_gone |= self.expires,
            Meddling::Rename(name, to) if self.names.contains(name) => {
                self.names.insert(to.clone());
            }
            Meddling::Rename(..) => {}
        }
    }
}

/// How often each thing happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolCounts {
    /// Calls of all hosts.
    pub calls: u64,
    /// Volumes made.
    pub volumes: u64,
    /// Hosts that crashed.
    pub crashes: u64,
    /// Answers that were lost.
    pub lost: u64,
    /// Changes that took effect after their host had given up.
    pub late: u64,
    /// Hosts that were paused.
    pub pauses: u64,
    /// Hosts and targets that were cut off.
    pub cuts: u64,
    /// Hosts that were overtaken while they made a volume.
    pub overtaken: u64,
    /// Intents of lost hosts that others finished, and namespaces that they swept.
    pub recovered: u64,
    /// Changes of arrays for members that move.
    pub moved: u64,
    /// Writes to volumes that were acknowledged.
    pub writes: u64,
}

impl PoolCounts {
    /// Adds those of another run.
    pub fn add(&mut self, other: &PoolCounts) {
        for (sum, more) in [
            (&mut self.calls, other.calls),
            (&mut self.volumes, other.volumes),
            (&mut self.crashes, other.crashes),
            (&mut self.lost, other.lost),
            (&mut self.late, other.late),
            (&mut self.pauses, other.pauses),
            (&mut self.cuts, other.cuts),
            (&mut self.overtaken, other.overtaken),
            (&mut self.recovered, other.recovered),
            (&mut self.moved, other.moved),
            (&mut self.writes, other.writes),
        ] {
            *sum += more;
        }
    }
}

/// What changes.
pub(super) struct SiteState {
    pub(super) random: Random,
    /// They are down for a number of turns.
    pub(super) targets: BTreeMap<String, MemoryTarget>,
    pub(super) hosts: Vec<HostLine>,
    pub(super) arrays: BTreeMap<Uuid, SimArray>,
    /// The last write of its array that each namespace has.
    pub(super) content: BTreeMap<Uuid, u64>,
    pub(super) late: Vec<Late>,
    pub(super) acknowledged: BTreeMap<Uuid, Acknowledged>,
    /// Operations with the call at which each ended, in the order in which they began.
    pub(super) meddling: Vec<(Meddling, Option<u64>)>,
    pub(super) violation: Option<String>,
    pub(super) counts: PoolCounts,
}

/// The shared parts of a simulation.
pub(super) struct Site {
    pub(super) plan: PoolPlan,
    pub(super) turns: Turns,
    pub(super) clock: Arc<ManualClock>,
    pub(super) catalog: Arc<FileCatalog>,
    state: Mutex<SiteState>,
    loud: bool,
}

/// How a call of a host ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallEnd {
    Done,
    /// Nothing was changed, and the host is told so.
    Unreachable,
    /// It takes effect, and the answer is lost.
    AnswerLost,
    /// It takes effect later, or never, and there is no answer.
    Late,
    /// The host has crashed.
    Dead,
}

impl Site {
    pub(super) fn new(plan: &PoolPlan, random: &mut Random, loud: bool) -> Site {
        let clock = Arc::new(ManualClock::new());
        let options = FileOptions { clock: Arc::<ManualClock>::clone(&clock), ..FileOptions::default() };
        let catalog = Arc::new(FileCatalog::in_memory_with(options).expect("a catalog in memory"));
        let target = |n: usize| (format!("t{n}"), MemoryTarget::new(format!("nqn.{n}"), plan.capacity));
        let state = SiteState {
            random: random.fork(),
            targets: (0..plan.targets).map(target).collect(),
            hosts: vec![HostLine::default(); plan.hosts],
            arrays: BTreeMap::new(),
            content: BTreeMap::new(),
            late: Vec::new(),
            acknowledged: BTreeMap::new(),
            meddling: Vec::new(),
            violation: None,
            counts: PoolCounts::default(),
        };
        let turns = Turns::new(plan.hosts, random.fork());
        Site { plan: plan.clone(), turns, clock, catalog, state: Mutex::new(state), loud }
    }

    /// Makes the pool, of all targets but the last one.
    pub(super) fn make_pool(&self, host: &Host) -> Pool {
        let at = |n: usize| (format!("t{n}"), format!("rack{n}"));
        let targets: Vec<(String, String)> = (0..self.plan.targets - 1).map(at).collect();
        Pool::create(host, POOL, &targets, Quota::default()).expect("nothing is wrong yet")
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SiteState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts(&self) -> PoolCounts {
        self.lock().counts
    }

    pub(super) fn log(&self, host: usize, text: std::fmt::Arguments<'_>) {
        if self.loud {
            eprintln!("host {host}: {text}");
        }
    }

    /// Waits for the turn of a host, lets other things happen, and says how its call ends.
    pub(super) fn step(
        self: &Arc<Site>,
        host: usize,
        to_catalog: bool,
        call: std::fmt::Arguments<'_>,
    ) -> CallEnd {
        if self.lock().hosts[host].is_dead {
            return CallEnd::Dead;
        }
        self.turns.pass(host, 0);
        if self.is_hit(self.plan.pauses) {
            self.pause(host);
        }
        let end = self.decide(host, to_catalog);
        self.log(host, format_args!("{call}: {end:?}"));
        end
    }

    fn is_hit(&self, of_thousand: u64) -> bool {
        self.lock().random.below(1000) < of_thousand
    }

    fn pause(&self, host: usize) {
        let turns = {
            let mut state = self.lock();
            state.counts.pauses += 1;
            state.hosts[host].is_paused = true;
            state.random.between(1, LONGEST)
        };
        self.log(host, format_args!("paused for {turns} turns"));
        // Often for longer than its leases.
        let time = self.plan.ttl * self.lock().random.below(3) as u32;
        self.advance(time);
        self.turns.pass(host, turns);
        self.lock().hosts[host].is_paused = false;
    }

    fn decide(self: &Arc<Site>, host: usize, to_catalog: bool) -> CallEnd {
        let plan = &self.plan;
        let time = {
            let mut state = self.lock();
            state.pass_turn();
            let rarely = state.random.below(1000) < 5;
            let most = if rarely { plan.ttl.as_millis() as u64 } else { 500 };
            Duration::from_millis(state.random.below(most))
        };
        self.advance(time);
        let mut state = self.lock();
        state.counts.calls += 1;
        if state.random.below(1000) < plan.cuts {
            state.cut();
        }
        if state.random.chance(10) {
            self.arrive(&mut state);
        }
        if state.random.below(1000) < plan.crashes {
            state.counts.crashes += 1;
            state.hosts[host].is_dead = true;
            return state.random.pick(&[CallEnd::Dead, CallEnd::AnswerLost, CallEnd::Late]);
        }
        let line = &state.hosts[host];
        if if to_catalog { line.no_catalog > 0 } else { line.no_targets > 0 } {
            return CallEnd::Unreachable;
        }
        if state.random.below(1000) < plan.lost {
            state.counts.lost += 1;
            return state.random.pick(&[CallEnd::AnswerLost, CallEnd::Late, CallEnd::Unreachable]);
        }
        CallEnd::Done
    }

    /// Moves the clock; hosts that run and reach the catalog keep their leases.
    pub(super) fn advance(&self, time: Duration) {
        let step = self.plan.ttl / 4;
        let mut left = time;
        while !left.is_zero() {
            let now = left.min(step);
            left -= now;
            self.clock.advance(now);
            let mut state = self.lock();
            let live = |line: &&mut HostLine| !line.is_dead && !line.is_paused && line.no_catalog == 0;
            for line in state.hosts.iter_mut().filter(live) {
                line.leases.retain(|lease| self.catalog.keep(*lease).is_ok());
            }
        }
    }

    /// A change that was on its way takes effect; false if there is none.
    pub(super) fn arrive(self: &Arc<Site>, state: &mut SiteState) -> bool {
        if state.late.is_empty() {
            return false;
        }
        let count = state.late.len() as u64;
        let at = state.random.below(count) as usize;
        let late = state.late.swap_remove(at);
        self.apply(state, late);
        true
    }

    fn apply(self: &Arc<Site>, state: &mut SiteState, late: Late) {
        state.counts.late += 1;
        // A target that is down, or has no room by now, refuses it.
        match late {
            Late::Commit(txn) => drop(self.catalog.commit(&txn)),
            Late::Make { address, size, label } => drop(state.make(&address, size, &label)),
            Late::Remove { address, namespace } => drop(self.remove(state, &address, namespace)),
            Late::Relabel { address, namespace, label } => {
                drop(state.relabel(&address, namespace, &label));
            }
            Late::Change { array, run, change } => drop(state.change_array(array, run, &change)),
        }
    }

    /// Removes a namespace, which no volume may use.
    pub(super) fn remove(
        self: &Arc<Site>,
        state: &mut SiteState,
        address: &str,
        namespace: NamespaceId,
    ) -> Result<(), SpaceError> {
        let target = state.target(address)?;
        let Some(removed) = target.remove(namespace) else { return Ok(()) };
        let published = super::judge::published(self, removed.label.volume);
        let has = |volume: &VolumeRecord| {
            let mut members = volume.members.iter().filter_map(|member| member.namespace);
            members.any(|member| member == namespace) || state.is_member(volume, namespace.uuid)
        };
        if published.as_ref().is_some_and(has) {
            let what = format!("a namespace of volume {} was removed while it is used", removed.label.name);
            state.violation.get_or_insert(what);
        }
        Ok(())
    }
}

impl SiteState {
    pub(super) fn new_uuid(&mut self) -> Uuid {
        Uuid::from_u64_pair(self.random.bits(), self.random.bits())
    }

    /// A turn passes for all that lasts for turns.
    fn pass_turn(&mut self) {
        for line in &mut self.hosts {
            line.no_catalog = line.no_catalog.saturating_sub(1);
            line.no_targets = line.no_targets.saturating_sub(1);
        }
        for target in self.targets.values_mut() {
            target.down = target.down.saturating_sub(1);
        }
    }

    /// Cuts off a target, or a host from the catalog or from the targets.
    fn cut(&mut self) {
        self.counts.cuts += 1;
        let turns = self.random.between(1, LONGEST);
        let count = self.hosts.len() as u64;
        let host = self.random.below(count) as usize;
        match self.random.below(4) {
            0 => self.hosts[host].no_catalog = turns,
            1 => self.hosts[host].no_targets = turns,
            // The catalog is down for all hosts, and their leases run out.
            2 => self.hosts.iter_mut().for_each(|line| line.no_catalog = turns),
            _ => {
                let count = self.targets.len() as u64;
                let at = self.random.below(count) as usize;
                if let Some(target) = self.targets.values_mut().nth(at) {
                    target.down = turns;
                }
            }
        }
    }

    pub(super) fn target(&mut self, address: &str) -> Result<&mut MemoryTarget, SpaceError> {
        MemoryTarget::at(&mut self.targets, address)
    }

    pub(super) fn make(
        &mut self,
        address: &str,
        size: u64,
        label: &Label,
    ) -> Result<NamespaceId, SpaceError> {
        let uuid = self.new_uuid();
        self.target(address)?.make(uuid, size, label)
    }

    pub(super) fn relabel(
        &mut self,
        address: &str,
        namespace: NamespaceId,
        label: &Label,
    ) -> Result<(), SpaceError> {
        self.namespace(address, namespace)?.label = label.clone();
        Ok(())
    }

    pub(super) fn namespace(
        &mut self,
        address: &str,
        namespace: NamespaceId,
    ) -> Result<&mut MemoryNamespace, SpaceError> {
        self.target(address)?.namespace(namespace)
    }
}
