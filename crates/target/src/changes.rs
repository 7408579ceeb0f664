//! Changes of what a running target exports, and to whom.
//!
//! Invariants:
//! - a change is made as a whole or not at all: what can fail is done before ([`Target::prepare`]) or by
//!   [`TargetChanges::last_step`], and it is refused before anything of it is made;
//! - unless it is forced, no host loses a namespace, or its access, while it has a controller: a subsystem
//!   takes no new controllers from the look at its hosts until the change is made;
//! - connections and commands of subsystems that are not concerned notice nothing of it;
//! - a device is not given back before the commands to it have ended and what was written is durable, or
//!   that took too long or failed, which the result says.

use crate::access::HostLists;
use crate::exports::{PreparedExport, check_exports, full};
use crate::rates::HostRates;
use crate::subsystem::{Door, Link, Message, NSID_MAX, Namespace, Subsystem};
use crate::target::{Error, Shared, Target};
use longhaul_block::{BlockDevice, IoResult, TellsLosses};
use longhaul_engine::timeout;
use longhaul_wire::nqn::DISCOVERY_NQN;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How long the commands to a namespace that is removed may take to end: longer than a connection that is
/// drained waits for its own.
const END: Duration = Duration::from_secs(15);

/// See [`TargetChanges::last_step`].
pub type LastStep = Box<dyn FnOnce() -> Result<(), Error> + Send>;

/// What is to be changed.
#[derive(Default)]
pub struct TargetChanges {
    /// Namespaces to remove, by NQN and namespace identifier. A subsystem of exports that has none left is
    /// removed, and its controllers end.
    pub removed: Vec<(String, u32)>,
    /// Namespaces to do their I/O by another device from now on, which has the same content and size.
    pub replaced: Vec<(String, u32, Arc<dyn BlockDevice>)>,
    /// Namespaces to add. Identifiers of those that are removed are free for them.
    pub added: Vec<PreparedExport>,
    /// Which hosts may connect, and which of them may write, if that changes.
    pub hosts: Option<HostLists>,
    /// How fast hosts may read and write, if that changes.
    pub host_rates: Option<HostRates>,
    /// How many connections there may be, if that changes.
    pub max_connections: Option<usize>,
    /// Done once nothing else can keep the change from being made, and before hosts see anything of it. If it
    /// fails, nothing is changed: it takes back by itself what it has done.
    pub last_step: Option<LastStep>,
    /// Make the change also if hosts lose what they use.
    pub force: bool,
}

/// Hosts that would lose what they use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse {
    /// NQN of the subsystem.
    pub nqn: String,
    /// Namespaces that would be removed; none where hosts would not be allowed to connect, or to write, any
    /// more.
    pub nsids: Vec<u32>,
    /// NQNs of the hosts.
    pub hosts: Vec<String>,
}

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// Hosts would lose what they use.
    #[error("{} subsystems are in use", .0.len())]
    InUse(Vec<InUse>),
    /// There is no room for a namespace, or the last step has failed.
    #[error(transparent)]
    Export(#[from] Error),
}

/// A change that was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Identifiers of the namespaces that were added, in their order.
    pub nsids: Vec<u32>,
    /// Hosts that have lost what they used, by the NQN of the subsystem.
    pub lost: BTreeMap<String, BTreeSet<String>>,
    /// What could not be made durable of the namespaces that were removed, or has not ended: sentences.
    pub faults: Vec<String>,
}

/// A subsystem that loses namespaces, or hosts.
struct Concerned {
    subsystem: Arc<Subsystem>,
    /// Namespaces that are removed.
    nsids: Vec<u32>,
    /// All of its namespaces are, and none is added.
    ends: bool,
}

impl Concerned {
    /// Whether the host of a controller keeps its rights.
    fn leaves(&self, lists: &HostLists, link: &Link) -> bool {
        let rights = lists.of(&self.subsystem.nqn);
        if link.is_reader() { rights.may_read(&link.hostnqn) } else { rights.may_write(&link.hostnqn) }
    }

    /// Controllers of hosts that lose what they use.
    fn losers(&self, lists: &HostLists) -> Vec<Arc<Link>> {
        let keeps = |link: &Arc<Link>| self.nsids.is_empty() && self.leaves(lists, link);
        self.subsystem.links().into_iter().filter(|link| !keeps(link)).collect()
    }

    /// Controllers that end: the others stay, with the namespaces that are left.
    fn ending(&self, lists: &HostLists) -> Vec<Arc<Link>> {
        let stays = |link: &Arc<Link>| !self.ends && self.leaves(lists, link);
        self.subsystem.links().into_iter().filter(|link| !stays(link)).collect()
    }
}

/// Subsystems that take no new controllers until it is dropped.
struct ClosedDoors(Vec<Arc<Subsystem>>);

impl Drop for ClosedDoors {
    fn drop(&mut self) {
        for subsystem in &self.0 {
            subsystem.set_door(Door::Open);
        }
    }
}

fn hosts_of(links: &[Arc<Link>]) -> BTreeSet<String> {
    links.iter().map(|link| link.hostnqn.clone()).collect()
}

impl Target {
    /// Makes a change. Returns once the commands to what was removed have ended, and what was written to it
    /// is durable. Blocks.
    ///
    /// # Errors
    /// Nothing was changed: hosts use what they would lose, and it is not to be forced; or a subsystem has no
    /// room for a namespace; or the last step has failed.
    pub fn change(&self, changes: TargetChanges) -> Result<Applied, ChangeError> {
        let shared = &self.shared;
        let one_at_a_time = shared.access.order();
        let before = shared.access.lists();
        let lists = changes.hosts.clone().unwrap_or_else(|| before.clone());
        let concerned = concerned(shared, &changes, &before, &lists);
        has_room(shared, &changes)?;
        let mut doors = ClosedDoors(Vec::new());
        for one in &concerned {
            one.subsystem.set_door(Door::Closed);
            doors.0.push(Arc::clone(&one.subsystem));
        }
        let in_use: Vec<InUse> = concerned.iter().filter_map(|one| in_use(one, &lists)).collect();
        if !changes.force && !in_use.is_empty() {
            return Err(ChangeError::InUse(in_use));
        }
        changes.last_step.map_or(Ok(()), |step| step())?;
        // Nothing fails from here on.
        let lost = in_use.into_iter().map(|one| (one.nqn, one.hosts.into_iter().collect())).collect();
        let mut applied = Applied { lost, ..Applied::default() };
        if let Some(limit) = changes.max_connections {
            shared.connections.set_limit(limit);
        }
        let other_rates = changes.host_rates.is_some_and(|rates| shared.rates.set(rates));
        shared.access.set(lists.clone());
        for subsystem in shared.all().iter().chain([&shared.discovery]) {
            subsystem.set_hosts(lists.of(&subsystem.nqn));
            if other_rates {
                subsystem.reopen_all();
            }
        }
        let mut ending = Vec::new();
        let mut removed = Vec::new();
        for one in &concerned {
            ending.extend(one.ending(&lists));
            removed.extend(one.subsystem.withdraw(&one.nsids));
            if one.ends {
                shared.subsystems.write().unwrap_or_else(PoisonError::into_inner).remove(&one.subsystem.nqn);
                one.subsystem.set_door(Door::Removed);
                doors.0.retain(|subsystem| !Arc::ptr_eq(subsystem, &one.subsystem));
            }
        }
        for (nqn, nsid, device) in changes.replaced {
            if let Some(subsystem) = shared.subsystem(&nqn) {
                subsystem.replace_device(nsid, device);
            }
        }
        let mut shows = lists != before || concerned.iter().any(|one| one.ends);
        for export in changes.added {
            let (subsystem, created) = self.subsystem_of_exports(&export);
            shows |= created;
            // There is room, as was looked at above: one change is made at a time.
            applied.nsids.extend(subsystem.add_next(export.namespace));
        }
        drop(doors);
        // The discovery subsystem has no exports: its controllers end without force.
        let discovering = lists.of(DISCOVERY_NQN);
        ending
            .extend(shared.discovery.links().into_iter().filter(|link| !discovering.may_read(&link.hostnqn)));
        if shows {
            shared.discovery_changed();
        }
        // Hosts see the whole change now; another one need not wait for the end of what this one removes.
        drop(one_at_a_time);
        let ended = self.threads[0].handle().spawn(move || end(ending, removed));
        applied.faults = ended.wait().unwrap_or_default();
        Ok(applied)
    }

    /// Ends the controllers of a host in order: commands under way complete. It may connect again, if it is
    /// allowed and has its key. Returns how many there were. Blocks.
    pub fn disconnect(&self, hostnqn: &str) -> usize {
        let all = self.shared.all();
        let links = all.iter().chain([&self.shared.discovery]).flat_map(|subsystem| subsystem.links());
        let ending: Vec<Arc<Link>> = links.filter(|link| link.hostnqn == hostnqn).collect();
        let count = ending.len();
        let ended = self.threads[0].handle().spawn(move || end(ending, Vec::new()));
        // Nothing was removed that could be lost.
        let _ = ended.wait();
        count
    }

    /// The namespace identifiers that are in use in a subsystem of exports.
    pub fn nsids(&self, nqn: &str) -> Vec<u32> {
        let found = self.shared.subsystem(nqn).filter(|subsystem| subsystem.managed.is_none());
        found.map(|subsystem| subsystem.namespaces().keys().copied().collect()).unwrap_or_default()
    }
}

/// The subsystems that lose something by the changes.
fn concerned(
    shared: &Shared,
    changes: &TargetChanges,
    before: &HostLists,
    lists: &HostLists,
) -> Vec<Concerned> {
    let mut found = Vec::new();
    for subsystem in shared.all() {
        let nqn = &subsystem.nqn;
        let there = subsystem.namespaces().clone();
        let of_exports = subsystem.managed.is_none();
        let removed = changes.removed.iter().filter(|(of, nsid)| of == nqn && there.contains_key(nsid));
        let nsids: Vec<u32> = removed
            .map(|(_, nsid)| *nsid)
            .filter(|_| of_exports)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        let is_added_to = changes.added.iter().any(|export| export.nqn == *nqn);
        let ends = !nsids.is_empty() && nsids.len() == there.len() && !is_added_to;
        if !nsids.is_empty() || before.of(nqn) != lists.of(nqn) {
            found.push(Concerned { subsystem, nsids, ends });
        }
    }
    found
}

/// Whether each subsystem takes the namespaces that are added, and has room for them.
fn has_room(shared: &Shared, changes: &TargetChanges) -> Result<(), Error> {
    let nqns: BTreeSet<&str> = changes.added.iter().map(|export| &*export.nqn).collect();
    for nqn in nqns {
        check_exports(shared, nqn)?;
        let there = shared.subsystem(nqn).map_or(0, |subsystem| subsystem.namespaces().len());
        let count = |nqns: &mut dyn Iterator<Item = &str>| nqns.filter(|of| *of == nqn).count();
        let added = count(&mut changes.added.iter().map(|export| &*export.nqn));
        let removed = count(&mut changes.removed.iter().map(|(of, _)| &**of));
        if (there + added).saturating_sub(removed) > NSID_MAX as usize {
            return Err(full(nqn));
        }
    }
    Ok(())
}

fn in_use(one: &Concerned, lists: &HostLists) -> Option<InUse> {
    let hosts: Vec<String> = hosts_of(&one.losers(lists)).into_iter().collect();
    let nqn = one.subsystem.nqn.clone();
    (!hosts.is_empty()).then(|| InUse { nqn, nsids: one.nsids.clone(), hosts })
}

/// Ends controllers, and namespaces that hosts do not see any more. What is wrong with the end of those.
async fn end(ending: Vec<Arc<Link>>, removed: Vec<Namespace>) -> Vec<String> {
    // All of them at a time.
    let drained: Vec<_> = ending.iter().map(|link| link.drain_io()).collect();
    let deadline = longhaul_engine::now() + END;
    for (link, drained) in ending.iter().zip(drained) {
        let _ = until(deadline, drained).await;
        link.send(0, Message::Drain);
    }
    let mut faults = Vec::new();
    for namespace in removed.iter().filter(|namespace| namespace.is_accessible()) {
        let name = namespace.device.info().name;
        if !until(deadline, namespace.users.absence()).await {
            faults.push(format!(
                "{name}: commands of hosts have not ended within {} s: its device is closed when they do",
                END.as_secs()
            ));
        }
        if let Err(e) = flush(&*namespace.device).await {
            faults.push(format!("{name}: not everything could be made durable: {e}"));
        }
    }
    faults
}

/// Whether something ends before a time.
async fn until(deadline: std::time::Instant, what: impl Future<Output = ()>) -> bool {
    timeout(deadline.saturating_duration_since(longhaul_engine::now()), what).await.is_ok()
}

async fn flush(device: &dyn BlockDevice) -> IoResult<()> {
    device.open().await?.flush().await
}

impl Subsystem {
    /// Has a namespace do its I/O by another device of the same content.
    fn replace_device(&self, nsid: u32, device: Arc<dyn BlockDevice>) {
        if let Some(namespace) = self.namespaces().get_mut(&nsid) {
            namespace.device = Arc::new(TellsLosses::new(device));
        }
        self.changed(&[]);
        self.reopen();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use longhaul_block::MemDevice;
    use longhaul_proto::controller::HostAccess;
    use uuid::Uuid;

    const A: &str = "nqn.2014-08.org.example:a";
    const B: &str = "nqn.2014-08.org.example:b";

    fn target() -> Target {
        let listen = vec!["127.0.0.1:0".parse().expect("an address")];
        Target::start(Config { listen, threads: 1, ..Config::default() }).expect("started")
    }

    fn disk() -> Arc<dyn BlockDevice> {
        Arc::new(MemDevice::new(1 << 20, 4096).expect("mapped"))
    }

    fn prepared(target: &Target, nqn: &str) -> PreparedExport {
        target.prepare(nqn, "x", disk(), Uuid::new_v4(), None).expect("prepared")
    }

    fn shown(target: &Target) -> Vec<String> {
        target.shared.all().iter().map(|subsystem| subsystem.nqn.clone()).collect()
    }

    #[test]
    fn a_subsystem_lives_as_long_as_it_has_namespaces() {
        let target = target();
        let added = vec![prepared(&target, A), prepared(&target, A), prepared(&target, B)];
        let applied = target.change(TargetChanges { added, ..TargetChanges::default() }).expect("changed");
        assert_eq!(applied, Applied { nsids: vec![1, 2, 1], ..Applied::default() });
        assert_eq!(shown(&target), [A, B]);
        let removed = vec![(A.to_owned(), 1), (B.to_owned(), 1), (B.to_owned(), 7)];
        target.change(TargetChanges { removed, ..TargetChanges::default() }).expect("changed");
        assert_eq!((shown(&target), target.nsids(A)), (vec![A.to_owned()], vec![2]));
        // The identifier that is free is given out again, also by the change that frees it.
        let removed = vec![(A.to_owned(), 2)];
        let added = vec![prepared(&target, A), prepared(&target, A)];
        let changes = TargetChanges { removed, added, ..TargetChanges::default() };
        assert_eq!(target.change(changes).expect("changed").nsids, [1, 2]);
        assert!(target.stop());
    }

    #[test]
    fn a_subsystem_that_has_no_room_keeps_the_whole_change_from_being_made() {
        let target = target();
        for _ in 0..NSID_MAX {
            target.export(A, "x", disk(), Uuid::new_v4()).expect("exported");
        }
        let changes = |removed: Vec<(String, u32)>| TargetChanges {
            removed,
            added: vec![prepared(&target, B), prepared(&target, A)],
            ..TargetChanges::default()
        };
        let e = target.change(changes(Vec::new())).expect_err("no room");
        assert!(e.to_string().contains("1024 namespaces"), "{e}");
        assert_eq!(shown(&target), [A]);
        target.change(changes(vec![(A.to_owned(), 5)])).expect("room for one");
        assert_eq!(shown(&target), [A, B]);
    }

    #[test]
    fn a_last_step_that_fails_keeps_the_change_from_being_made() {
        let target = target();
        let by = |last_step: LastStep| TargetChanges {
            added: vec![prepared(&target, A)],
            last_step: Some(last_step),
            ..TargetChanges::default()
        };
        let e = target.change(by(Box::new(|| Err(Error::Export("x".into()))))).expect_err("it fails");
        assert!(matches!(e, ChangeError::Export(_)) && shown(&target).is_empty(), "{e}");
        target.change(by(Box::new(|| Ok(())))).expect("it succeeds");
        assert_eq!(shown(&target), [A]);
        // What is refused for another reason does not get to it.
        (1..NSID_MAX).for_each(|_| _ = target.export(A, "x", disk(), Uuid::new_v4()).expect("exported"));
        let e = target.change(by(Box::new(|| unreachable!("there is no room")))).expect_err("no room");
        assert!(matches!(e, ChangeError::Export(_)), "{e}");
    }

    #[test]
    fn lists_of_hosts_are_those_of_the_last_change() {
        let target = target();
        target.export(A, "x", disk(), Uuid::new_v4()).expect("exported");
        let only = |host: &str| HostAccess::Only([host.to_owned()].into());
        let hosts = HostLists { all: only("one").into(), of: [(B.to_owned(), only("two").into())].into() };
        let added = vec![prepared(&target, B)];
        let changes = TargetChanges { hosts: Some(hosts), added, ..TargetChanges::default() };
        target.change(changes).expect("changed");
        let of = |nqn: &str| target.shared.subsystem(nqn).expect("a subsystem").view().hosts.clone();
        assert_eq!((of(A), of(B), of(DISCOVERY_NQN)), (only("one"), only("two"), only("one")));
    }

    #[test]
    fn what_has_no_nqn_is_not_exported() {
        let target = target();
        let e = target.prepare("x", "x", disk(), Uuid::new_v4(), None).expect_err("no NQN");
        assert!(matches!(e, Error::Export(_)), "{e}");
    }
}
