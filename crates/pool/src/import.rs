//! Making a catalog again from the labels at the targets.
//!
//! | step | a crash after it leaves |
//! |---|---|
//! | read all labels; refuse a pool that another catalog manages, or whose volumes hosts use | nothing |
//! | write the new manager to all labels | labels of two managers: the new one counts |
//! | read them again: no other host has done the same, and no volume was made meanwhile | the same |
//! | take volumes from the hosts that use them, if that is asked for | the same |
//! | write the records, the name of the pool last | records that no pool has |
//!
//! After a crash at any step the same import, by the same host, is made again.

use crate::error::{Error, Result};
use crate::keys;
use crate::label::Label;
use crate::manager::{FIRST, Manager};
use crate::name::check_name;
use crate::pool::{Host, Pool, each};
use crate::record::{
    Intent, IntentKind, Member, Moving, PoolRecord, Quota, TargetRecord, Usage, VolumeRecord, VolumeState,
    encode, encode_intent, encode_volume,
};
use crate::shape::Shape;
use crate::spaces::{Namespace, NamespaceId, machine, shown};
use crate::targets::{copied, identical};
use crate::time::wall_time;
use longhaul_catalog::{Expect, Txn};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// Records in one transaction: those of the widest volumes, 10 KiB each, are far below its limit.
const CHUNK: usize = 32;
/// Volumes that are looked at, and labels that are written, at a time.
const AT_ONCE: usize = 32;

/// What an import has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// Volumes whose members are all there.
    pub whole: Vec<String>,
    /// Volumes that lack members.
    pub missing: Vec<Missing>,
    /// Names that two volumes had: the second one got this one.
    pub renamed: Vec<(String, String)>,
    /// Volumes that were never published: a recovery removes their namespaces.
    pub left_over: usize,
    /// Labels that cannot be read: address, and why. They are left alone.
    pub unreadable: Vec<(String, String)>,
}

/// A volume that lacks members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Name of the volume.
    pub volume: String,
    /// Members that were not found; spares are not among them.
    pub members: Vec<usize>,
    /// Its redundancy makes up for them.
    pub is_usable: bool,
}

/// A namespace with its label, and its target.
type Found = (usize, Namespace, Label);

/// A volume, and where its namespaces are.
type Placed = (String, Vec<(String, NamespaceId)>);

/// Makes the records of a pool from the labels of its namespaces at the targets `addresses`. `wanted` is its
/// name or UUID, for targets that have several pools; the pool is called `name` then, or as its
/// labels say. This catalog manages the pool then, and one that did before does not any more.
///
/// # Errors
/// [`Error::Managed`] if another catalog manages the pool and has not exported it, [`Error::Used`] if hosts
/// use its volumes: nothing was changed then. A pool of this host's catalog, by the name of that, is not refused
/// for them: the catalog has lost it. The catalog has the pool; a target cannot be reached; there are labels of
/// no pool, or of several.
pub fn import(
    host: &Host,
    addresses: &[String],
    wanted: Option<&str>,
    name: Option<&str>,
) -> Result<(Pool, Import)> {
    bring_in(host, addresses, wanted, name, false)
}

/// As [`import()`], of a pool that another catalog manages or whose volumes hosts use as well: those lose
/// it.
///
/// # Errors
/// As for [`import()`]; or a volume cannot be taken from the host that uses it.
pub fn take_over(
    host: &Host,
    addresses: &[String],
    wanted: Option<&str>,
    name: Option<&str>,
) -> Result<(Pool, Import)> {
    bring_in(host, addresses, wanted, name, true)
}

fn bring_in(
    host: &Host,
    addresses: &[String],
    wanted: Option<&str>,
    name: Option<&str>,
    force: bool,
) -> Result<(Pool, Import)> {
    let mut targets = look(host, addresses)?;
    let (mut found, mut unreadable) = (Vec::new(), Vec::new());
    for (at, (target, namespaces)) in targets.iter_mut().enumerate() {
        for namespace in std::mem::take(namespaces) {
            match namespace.label.clone() {
                Some(Ok(label)) => found.push((at, namespace, label)),
                Some(Err(why)) => unreadable.push((target.address.clone(), why)),
                None => {}
            }
        }
    }
    let mut record = choose(&found, wanted, name)?;
    check_absent(host, &record)?;
    found.retain(|(_, _, label)| label.pool == record.uuid);
    let former = Manager::of_labels(found.iter().map(|(_, _, label)| label));
    let is_lost = former.as_ref().is_some_and(|manager| manager.is_of(host));
    if let Some(manager) = former.clone().filter(|m| m.released.is_none() && !is_lost && !force) {
        return Err(Error::Managed { pool: record.name, manager: Box::new(manager) });
    }
    let used = if is_lost { Vec::new() } else { used(host, &targets, &found, force)? };
    if !used.is_empty() && !force {
        let uses = used.into_iter().map(|(_, why)| why).collect();
        return Err(Error::Used { pool: record.name, uses });
    }
    record.manager = Some(match former {
        Some(own) if is_lost && own.released.is_none() => own,
        former => {
            let epoch = former.map_or(FIRST, |former| former.epoch) + 1;
            Manager::new(host, host.spaces.new_uuid(), epoch)
        }
    });
    claim(host, &targets, &found, &record)?;
    for ((volume, places), why) in used {
        tracing::warn!("pool {}: volume {volume} is taken from the host that uses it: {why}", record.name);
        let address = places.iter().map(|(address, _)| shown(address)).collect::<Vec<_>>().join(", ");
        let failed = |source| Error::Space { attempted: "take a volume from its host", address, source };
        host.spaces.evict(&places).map_err(failed)?;
    }
    for (at, _, label) in &found {
        targets[*at].0.domain.clone_from(&label.domain);
    }
    let targets: Vec<TargetRecord> = targets.into_iter().map(|(target, _)| target).collect();
    let pool = Pool { host: host.clone(), record };
    let mut import =
        Import { whole: Vec::new(), missing: Vec::new(), renamed: Vec::new(), left_over: 0, unreadable };
    let (volumes, intents) = gather(host, &targets, found, &mut import)?;
    write(&pool, &targets, &volumes, &intents)?;
    Ok((pool, import))
}

/// All targets with their namespaces.
fn look(host: &Host, addresses: &[String]) -> Result<Vec<(TargetRecord, Vec<Namespace>)>> {
    let looked = each(addresses, |address| {
        let failed = |source| Error::Space { attempted: "look", address: address.clone(), source };
        let space = host.spaces.space(address).map_err(failed)?;
        let namespaces = host.spaces.list(address).map_err(failed)?;
        // Its host fails as a whole, unless a label says more.
        let (address, domain) = (address.clone(), machine(address).to_owned());
        Ok((TargetRecord { id: space.id, address, domain, capacity: space.capacity }, namespaces))
    });
    let looked = looked.into_iter().collect::<Result<Vec<_>>>()?;
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    for (target, _) in &looked {
        if let Some(other) = seen.insert(&target.id, &target.address) {
            return Err(identical(&target.address, other, &target.id));
        }
    }
    // A copy of a disk at a target with an identity of its own.
    let mut seen: BTreeMap<Uuid, &str> = BTreeMap::new();
    for (target, namespaces) in &looked {
        for namespace in namespaces {
            if let Some(other) = seen.insert(namespace.id.uuid, &target.address) {
                return Err(copied(&target.address, other));
            }
        }
    }
    Ok(looked)
}

/// The volumes that hosts use, each with what shows that. With `force` one of which nothing can be found out
/// counts as unused.
fn used(
    host: &Host,
    targets: &[(TargetRecord, Vec<Namespace>)],
    found: &[Found],
    force: bool,
) -> Result<Vec<(Placed, String)>> {
    let mut volumes: BTreeMap<Uuid, Placed> = BTreeMap::new();
    for (at, namespace, label) in found.iter().filter(|(_, _, label)| !label.copied) {
        let (_, places) = volumes.entry(label.volume).or_insert_with(|| (label.name.clone(), Vec::new()));
        places.push((targets[*at].0.address.clone(), namespace.id));
    }
    let volumes: Vec<Placed> = volumes.into_values().collect();
    let mut used = Vec::new();
    for some in volumes.chunks(AT_ONCE) {
        let looked = each(some, |(_, places)| host.spaces.in_use(places));
        for (volume, looked) in some.iter().zip(looked) {
            match looked {
                Ok(None) => {}
                Ok(Some(why)) => used.push((volume.clone(), format!("volume {} is in use: {why}", volume.0))),
                Err(e) if force => tracing::warn!("whether volume {} is in use is not known: {e}", volume.0),
                Err(source) => {
                    let address = volume.1.first().map_or_else(String::new, |(address, _)| address.clone());
                    return Err(Error::Space { attempted: "look for users of a volume", address, source });
                }
            }
        }
    }
    Ok(used)
}

/// Writes the manager of the pool to all labels, and looks whether another host has done the same, or has made
/// volumes since the labels were read.
fn claim(
    host: &Host,
    targets: &[(TargetRecord, Vec<Namespace>)],
    found: &[Found],
    record: &PoolRecord,
) -> Result<()> {
    let others = found.iter().filter(|(_, _, label)| label.manager != record.manager);
    let labels: Vec<(&str, NamespaceId, Label)> = others
        .map(|(at, namespace, label)| {
            let label = Label { manager: record.manager.clone(), ..label.clone() };
            (targets[*at].0.address.as_str(), namespace.id, label)
        })
        .collect();
    if labels.is_empty() {
        return Ok(());
    }
    let chunks: Vec<_> = labels.chunks(labels.len().div_ceil(AT_ONCE)).collect();
    let written = each(&chunks, |labels| {
        labels.iter().try_for_each(|(address, namespace, label)| {
            let failed =
                |source| Error::Space { attempted: "write a label", address: (*address).to_owned(), source };
            host.spaces.relabel(address, *namespace, label).map_err(failed)
        })
    });
    written.into_iter().collect::<Result<Vec<()>>>()?;
    let known: BTreeSet<Uuid> = found.iter().map(|(_, namespace, _)| namespace.id.uuid).collect();
    let listed = each(targets, |(target, _)| {
        let failed = |source| Error::Space { attempted: "look", address: target.address.clone(), source };
        host.spaces.list(&target.address).map_err(failed)
    });
    let listed = listed.into_iter().collect::<Result<Vec<_>>>()?;
    let of_pool: Vec<(Uuid, &Label)> = listed
        .iter()
        .flatten()
        .filter_map(|namespace| Some((namespace.id.uuid, namespace.label.as_ref()?.as_ref().ok()?)))
        .filter(|(_, label)| label.pool == record.uuid)
        .collect();
    let labels = of_pool.iter().map(|(_, label)| *label);
    if let Some(manager) = Manager::successor(labels, record) {
        return Err(Error::Managed { pool: record.name.clone(), manager: Box::new(manager) });
    }
    match of_pool.iter().all(|(uuid, _)| known.contains(uuid)) {
        true => Ok(()),
        false => Err(Error::Contended(record.name.clone())),
    }
}

/// The pool that is meant.
fn choose(found: &[Found], wanted: Option<&str>, name: Option<&str>) -> Result<PoolRecord> {
    let mut pools: BTreeMap<Uuid, &str> = BTreeMap::new();
    for (_, _, label) in found {
        pools.insert(label.pool, &label.pool_name);
    }
    let place = || "the labels of these targets".to_owned();
    if let Some(wanted) = wanted {
        pools.retain(|uuid, name| *name == wanted || uuid.to_string() == wanted);
        if pools.is_empty() {
            return Err(Error::NotFound { what: "pool", name: wanted.to_owned(), place: place() });
        }
    }
    let (uuid, found_name) = match pools.pop_first() {
        Some(first) if pools.is_empty() => first,
        Some((uuid, name)) => {
            let all = std::iter::once((uuid, name)).chain(pools);
            let all: Vec<String> = all.map(|(uuid, name)| format!("{name} ({uuid})")).collect();
            return Err(Error::Ambiguous(format!("there are several pools: name one of {}", all.join(", "))));
        }
        None => return Err(Error::NothingToImport),
    };
    let name = name.unwrap_or(found_name).to_owned();
    check_name("pool", &name)?;
    Ok(PoolRecord { uuid, name, quota: Quota::default(), manager: None })
}

/// Puts namespaces together to volumes, and what was never published to intents.
fn gather(
    host: &Host,
    targets: &[TargetRecord],
    found: Vec<Found>,
    import: &mut Import,
) -> Result<(Vec<VolumeRecord>, Vec<Intent>)> {
    let mut parts: BTreeMap<Uuid, Vec<Found>> = BTreeMap::new();
    for part in found {
        parts.entry(part.2.volume).or_default().push(part);
    }
    let (mut volumes, mut intents, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (uuid, parts) in parts {
        let Some((_, _, label)) = parts.iter().max_by_key(|(_, _, label)| (label.renames, label.shape.size))
        else {
            continue;
        };
        // A resize may have ended before the labels had the new size.
        let largest = parts.iter().map(|(_, namespace, _)| namespace.size).max().unwrap_or(0);
        let mut volume = VolumeRecord {
            uuid,
            name: label.name.clone(),
            renames: label.renames,
            shape: Shape { member_size: largest.max(label.shape.member_size), ..label.shape },
            members: vec![Member { target: String::new(), namespace: None }; label.shape.members()],
            // The superblock of a clone that was not adopted is that of another volume's array.
            array: match parts.iter().any(|(_, _, label)| label.copied) {
                true => None,
                false => array_of(host, targets, &parts)?,
            },
            hosts: label.hosts.clone(),
            job: label.job.clone(),
            expires: label.expires,
            thin: label.thin,
            made_by: label.made_by.clone(),
            made_at: label.made_at,
            state: VolumeState::Ready,
            moving: None,
            snapshot_of: label.snapshot_of.clone(),
        };
        // One that a member moves to is the member itself if it is not found where it was.
        let (moved, settled): (Vec<_>, Vec<_>) = parts.iter().partition(|(_, _, label)| label.joining);
        for (at, namespace, label) in settled.into_iter().chain(moved) {
            let found = Member { target: targets[*at].id.clone(), namespace: Some(namespace.id) };
            match volume.members.get_mut(label.index) {
                Some(member) if member.namespace.is_some() && label.joining => {
                    volume.moving.get_or_insert(Moving { index: label.index, to: found });
                }
                Some(member) => *member = found,
                None => {}
            }
        }
        // An array is made before the volume is published, over all of its members.
        if volume.array.is_none() && volume.shape.layout.has_array() {
            import.left_over += 1;
            let (host, since) = ("an import".to_owned(), wall_time());
            intents.push(Intent {
                uuid: Uuid::new_v4(),
                kind: IntentKind::Remove,
                volume,
                host,
                since,
                former: None,
            });
            continue;
        }
        if !names.insert(volume.name.clone()) || check_name("volume", &volume.name).is_err() {
            let to = format!("volume-{uuid}");
            import.renamed.push((std::mem::replace(&mut volume.name, to.clone()), to.clone()));
            names.insert(to);
        }
        let lost: Vec<usize> =
            (0..volume.shape.width).filter(|i| volume.members[*i].namespace.is_none()).collect();
        if lost.is_empty() {
            import.whole.push(volume.name.clone());
        } else {
            let is_usable = lost.len() <= volume.shape.redundancy();
            import.missing.push(Missing { volume: volume.name.clone(), members: lost, is_usable });
        }
        // A recovery asks its array where the member is.
        if let Some(moving) = &volume.moving {
            let (host, since) = ("an import".to_owned(), wall_time());
            let place = VolumeRecord { members: vec![moving.to.clone()], moving: None, ..volume.clone() };
            let (uuid, kind) = (Uuid::new_v4(), IntentKind::Move);
            intents.push(Intent { uuid, kind, volume: place, host, since, former: None });
        }
        volumes.push(volume);
    }
    import.whole.sort_unstable();
    import.missing.sort_unstable_by(|a, b| a.volume.cmp(&b.volume));
    Ok((volumes, intents))
}

/// The array that the namespaces of a volume have a superblock of.
fn array_of(host: &Host, targets: &[TargetRecord], parts: &[Found]) -> Result<Option<Uuid>> {
    for (at, namespace, label) in parts {
        if !label.shape.layout.has_array() {
            return Ok(None);
        }
        let address = &targets[*at].address;
        let failed =
            |source| Error::Space { attempted: "read a namespace", address: address.clone(), source };
        if let Some(array) = host.spaces.array_on(address, namespace.id).map_err(failed)? {
            return Ok(Some(array));
        }
    }
    Ok(None)
}

/// Refuses a pool that the catalog has, or whose name it has.
fn check_absent(host: &Host, record: &PoolRecord) -> Result<()> {
    for known in host.pools()? {
        let known = Pool::open(host, &known)?.record;
        if known.uuid == record.uuid {
            return Err(Error::Imported(known.name));
        }
    }
    match host.catalog.get(&keys::pool(&record.name))? {
        None => Ok(()),
        Some(_) => Err(Error::Exists { what: "pool", name: record.name.clone() }),
    }
}

/// Writes all records, the name of the pool last: before that it is not there, and an import that
/// was interrupted is made again.
fn write(pool: &Pool, targets: &[TargetRecord], volumes: &[VolumeRecord], intents: &[Intent]) -> Result<()> {
    let (uuid, name) = (pool.uuid(), keys::pool(&pool.record.name));
    let catalog = &pool.host.catalog;
    let exists = || Error::Exists { what: "pool", name: pool.record.name.clone() };
    check_absent(&pool.host, &pool.record)?;
    let mut usage = Usage::default();
    let mut records = Vec::new();
    for target in targets {
        records.push((keys::target(uuid, &target.id), encode(target)));
    }
    for volume in volumes {
        usage.add(volume);
        records.push((keys::volume(uuid, &volume.name), encode_volume(volume)));
    }
    for intent in intents {
        usage.add(&intent.volume);
        records.push((keys::intent(uuid, &intent.uuid.to_string()), encode_intent(intent)));
    }
    // Of an import that was interrupted.
    let old = catalog.range(&keys::all(uuid), None)?.entries;
    for chunk in old.chunks(CHUNK) {
        let txn = chunk.iter().fold(Txn::new().expect(&name, Expect::Absent), |txn, e| txn.delete(&e.key));
        pool.host.commit(&txn, || Ok(false))?;
    }
    for chunk in records.chunks(CHUNK) {
        let txn = Txn::new().expect(&name, Expect::Absent);
        let txn = chunk.iter().fold(txn, |txn, (key, value)| txn.put(key, value));
        if !pool.host.commit(&txn, || Ok(false))? {
            return Err(exists());
        }
    }
    let txn = Txn::new().expect(&name, Expect::Absent).put(&name, &encode(&pool.record));
    let txn = txn.put(&keys::usage(uuid), &encode(&usage));
    let is_made = || Ok(catalog.get(&name)?.is_some_and(|entry| entry.value == encode(&pool.record)));
    if pool.host.commit(&txn, is_made)? { Ok(()) } else { Err(exists()) }
}
