//! The spaces of targets, by NVMe's own commands.
//!
//! An address is `HOST:PORT/NQN`: the NQN of the space's subsystem is its identity too. This host has
//! to be an administrator there. `HOST:PORT/NQN?nsid=N` is a namespace of any target, [as a whole](crate::whole). What a pool writes on a namespace is in the label that the target
//! keeps with it: names, job and expiry in fields of their own, hosts as the ones that
//! the namespace is attached to, and the rest as text.
//!
//! To make or read an array, this host attaches the namespaces to itself; afterwards they are
//! attached to the hosts of their volume and no other. A crash in between leaves it attached.

use crate::error::{Error, Result};
use crate::label::Label;
use crate::record::VolumeRecord;
use crate::shape::VolumeLayout;
use crate::spaces::{Namespace, NamespaceId, Space, SpaceError, Spaces, Taken};
use crate::users::{preempt, user_of};
use crate::whole::{Whole, address_of, is_whole, member_of, nsid_of, only_files};
use crate::wire::{authority, from_wire, to_wire, uri_of};
use futures_util::future::try_join_all;
use longhaul_block::BlockDevice;
use longhaul_engine::{Handle, Thread, spawn};
use longhaul_initiator::namespaces::{
    Administrator, AllocatedNamespace, ManagementError, ManagementResult, NewNamespace,
};
use longhaul_initiator::{IO_PORT, Options, RemoteDevice, Uri, discover, parse_authority};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use uuid::Uuid;

/// Bytes of a logical block of namespaces.
const BLOCK_SIZE: u32 = 4096;
/// How long I/O to a new member waits for a connection that is lost: a target that comes back later is
/// one whose volume is undone.
const PATIENCE: Duration = Duration::from_secs(30);

/// See the module.
pub struct Targets {
    thread: Thread,
    options: Options,
    /// Connections by address.
    connected: Mutex<BTreeMap<String, Arc<Administrator>>>,
    /// Namespaces that are used as a whole, by address.
    wholes: Mutex<BTreeMap<String, Arc<dyn BlockDevice>>>,
    /// Round trips by address, the shortest of each.
    round_trips: Mutex<BTreeMap<String, Duration>>,
}

impl Targets {
    /// Targets that are reached with these options; the host NQN of these is that of this host.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new(options: Options) -> Result<Targets> {
        let thread = Thread::start("longhaul-pool", options.engine.clone());
        let thread = thread.map_err(|e| Error::Local(format!("cannot start a thread: {e}")))?;
        let (connected, wholes, round_trips) = Default::default();
        Ok(Targets { thread, options, connected, wholes, round_trips })
    }

    /// How they are reached.
    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// The address of the space that `name` means: `HOST[:PORT]` where that target has one space, or
    /// `HOST[:PORT]/SPACE`, with its name or NQN. `HOST[:PORT]/NQN?nsid=N` means a namespace as a whole.
    ///
    /// # Errors
    /// The target cannot be reached, has no such space, or does not let this host manage it.
    pub fn find(&self, name: &str) -> Result<String> {
        let failed = |source| Error::Space { attempted: "find a space", address: name.to_owned(), source };
        if is_whole(name) {
            return address_of(name).map_err(failed);
        }
        let (machine, space) = name.split_once('/').map_or((name, None), |(a, b)| (a, Some(b)));
        let (host, port) = parse_authority(machine, IO_PORT)
            .map_err(|why| failed(SpaceError::Failed(format!("{why}: the form is HOST[:PORT][/SPACE]"))))?;
        let address = |nqn: &str| format!("{}/{nqn}", authority(&host, port));
        if let Some(nqn) = space.filter(|space| space.starts_with("nqn.")) {
            return Ok(address(nqn));
        }
        let found = discover(&host, port, self.options.clone()).map_err(|e| failed(e.into()))?;
        let mut nqns: Vec<String> =
            found.records.into_iter().filter(|r| r.uri().is_some()).map(|r| r.subnqn).collect();
        nqns.sort_unstable();
        nqns.dedup();
        if let Some(space) = space {
            nqns.retain(|nqn| nqn.rsplit(':').next() == Some(space));
        }
        // Which of them are spaces is known by what they offer to this host.
        let mut refused = None;
        let mut spaces = Vec::new();
        for nqn in nqns {
            match self.administrator(&address(&nqn)) {
                Ok(_) => spaces.push(nqn),
                Err(e) => refused = Some(e),
            }
        }
        match &spaces[..] {
            [nqn] => Ok(address(nqn)),
            [] => Err(failed(refused.unwrap_or_else(|| {
                let what = space.map_or_else(|| "no space".to_owned(), |space| format!("no space {space}"));
                let own = &self.options.hostnqn;
                SpaceError::Refused(format!(
                    "it has {what}: start 'longhaul target' there with --space NAME=dir:PATH and --admin {own}"
                ))
            }))),
            several => {
                let names: Vec<&str> =
                    several.iter().map(|nqn| nqn.rsplit(':').next().unwrap_or(nqn)).collect();
                let names = names.join(", ");
                Err(Error::Ambiguous(format!("target {name} has the spaces {names}: name one, as {machine}/NAME")))
            }
        }
    }

    /// NQN of this host.
    pub fn hostnqn(&self) -> &str {
        &self.options.hostnqn
    }

    /// The connection to a space; the first call makes it.
    fn administrator(&self, address: &str) -> std::result::Result<Arc<Administrator>, SpaceError> {
        let lock = || self.connected.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connected) = lock().get(address) {
            return Ok(Arc::clone(connected));
        }
        let made = Administrator::connect_blocking(&uri_of(address, None)?, self.options.clone())?;
        Ok(Arc::clone(lock().entry(address.to_owned()).or_insert(Arc::new(made))))
    }

    /// Runs `work` with a namespace that is used as a whole; the first call connects to it.
    fn with_whole<T, F>(
        &self,
        address: &str,
        work: impl FnOnce(Whole) -> F + Send + 'static,
    ) -> std::result::Result<T, SpaceError>
    where
        T: Send + 'static,
        F: Future<Output = std::result::Result<T, SpaceError>> + 'static,
    {
        let nsid = nsid_of(address)?;
        let known = self.wholes.lock().unwrap_or_else(PoisonError::into_inner).get(address).cloned();
        let device = match known {
            Some(device) => device,
            None => {
                // A host of its own: what it registers there is that of no session.
                let options = Options { hostid: Uuid::new_v4(), ..self.device_options() };
                let device = RemoteDevice::connect_blocking(&uri_of(address, Some(nsid))?, options)?;
                let kept = Arc::clone(&device);
                run(&self.thread.handle(), move || async move {
                    let io = kept.open().await?;
                    // Its connection lasts as long as the thread.
                    spawn(async move {
                        let _io = io;
                        std::future::pending::<()>().await;
                    })
                    .detach();
                    Ok(())
                })?;
                let mut all = self.wholes.lock().unwrap_or_else(PoisonError::into_inner);
                Arc::clone(all.entry(address.to_owned()).or_insert(device))
            }
        };
        run(&self.thread.handle(), move || async move { work(Whole::open(&device, nsid).await?).await })
    }

    /// Runs `work` with the connection to a space.
    fn with<T, F>(
        &self,
        address: &str,
        work: impl FnOnce(Arc<Administrator>) -> F + Send + 'static,
    ) -> std::result::Result<T, SpaceError>
    where
        T: Send + 'static,
        F: Future<Output = std::result::Result<T, SpaceError>> + 'static,
    {
        let administrator = self.administrator(address)?;
        run(&self.thread.handle(), move || work(administrator))
    }

    /// Replaces the hosts of a namespace as `change` says, if that makes a difference.
    fn change_hosts(
        &self,
        address: &str,
        namespace: NamespaceId,
        change: impl FnOnce(&mut Vec<String>) + Send + 'static,
    ) -> std::result::Result<bool, SpaceError> {
        if is_whole(address) {
            // Which hosts may connect, the administrator of that target says.
            return Ok(false);
        }
        self.with(address, move |space| async move {
            let mut label = current(&space, namespace).await?.label;
            let before = label.hosts.clone();
            change(&mut label.hosts);
            if label.hosts == before {
                return Ok(false);
            }
            space.set_label(namespace.nsid, &label).await?;
            Ok(true)
        })
    }

    /// Attaches a namespace to this host, if it is not; whether it was not.
    ///
    /// # Errors
    /// The target cannot be reached, or refuses.
    pub fn attach(&self, address: &str, namespace: NamespaceId) -> std::result::Result<bool, SpaceError> {
        let own = self.options.hostnqn.clone();
        self.change_hosts(address, namespace, move |hosts| {
            if !hosts.contains(&own) {
                hosts.push(own);
            }
        })
    }

    pub(crate) fn detach(
        &self,
        address: &str,
        namespace: NamespaceId,
    ) -> std::result::Result<(), SpaceError> {
        let own = self.options.hostnqn.clone();
        self.change_hosts(address, namespace, move |hosts| hosts.retain(|host| *host != own)).map(drop)
    }

    /// Whether the array on a namespace was started and not stopped.
    pub(crate) fn is_unstopped(
        &self,
        address: &str,
        namespace: NamespaceId,
    ) -> std::result::Result<bool, SpaceError> {
        Ok(self.superblock(address, namespace)?.is_some_and(|label| !label.clean))
    }

    /// What the superblock on a namespace says.
    fn superblock(
        &self,
        address: &str,
        namespace: NamespaceId,
    ) -> std::result::Result<Option<longhaul_array::Label>, SpaceError> {
        let was_detached = self.attach(address, namespace)?;
        let (uri, options) = (uri_of(address, Some(namespace.nsid))?, self.device_options());
        let found = run(&self.thread.handle(), move || async move {
            let device = connect(uri, namespace, options).await?;
            let label = longhaul_array::survey(&[device]).await.pop();
            Ok(label.transpose()?.flatten())
        });
        if was_detached {
            self.detach(address, namespace)?;
        }
        found
    }

    /// Runs `work` with those of the namespaces that can be connected to as devices, in their order; this host
    /// attaches them to itself for that time.
    fn with_members<T, F>(
        &self,
        members: &[(String, NamespaceId)],
        work: impl FnOnce(Vec<Arc<dyn BlockDevice>>) -> F + Send + 'static,
    ) -> std::result::Result<T, SpaceError>
    where
        T: Send + 'static,
        F: Future<Output = std::result::Result<T, SpaceError>> + 'static,
    {
        let was_detached =
            crate::pool::each(members, |(address, namespace)| self.attach(address, *namespace));
        let opened: Vec<(Uri, NamespaceId)> = members
            .iter()
            .map(|(address, namespace)| Ok((uri_of(address, Some(namespace.nsid))?, *namespace)))
            .collect::<std::result::Result<_, SpaceError>>()?;
        // A host of its own: what it reserves is that of no other process, also on machines that are clones.
        let options = Options { hostid: Uuid::new_v4(), ..self.device_options() };
        let done = run(&self.thread.handle(), move || async move {
            let connecting =
                opened.into_iter().map(|(uri, namespace)| connect(uri, namespace, options.clone()));
            let connected = futures_util::future::join_all(connecting).await;
            work(connected.into_iter().filter_map(std::result::Result::ok).collect()).await
        });
        for ((address, namespace), attached) in members.iter().zip(was_detached) {
            if attached == Ok(true) {
                self.detach(address, *namespace)?;
            }
        }
        done
    }

    fn device_options(&self) -> Options {
        Options { ctrl_loss: Some(PATIENCE), queues: 1, ..self.options.clone() }
    }
}

/// Whether an array has a member on a namespace, by the superblocks that can be read; `None` without any.
fn verdict(labels: impl Iterator<Item = (Uuid, longhaul_array::Label)>, wanted: Uuid) -> Option<Taken> {
    let labels: Vec<(Uuid, longhaul_array::Label)> = labels.collect();
    let (_, newest) =
        labels.iter().filter(|(_, label)| label.current).max_by_key(|(_, label)| label.generation)?;
    if !newest.clean {
        return Some(Taken::InUse);
    }
    let has = labels.iter().any(|(id, label)| *id == wanted && label.current && label.array == newest.array);
    Some(if has { Taken::Yes } else { Taken::No })
}

/// Runs a future on an engine, for threads without one.
fn run<T, F>(engine: &Handle, work: impl FnOnce() -> F + Send + 'static) -> std::result::Result<T, SpaceError>
where
    T: Send + 'static,
    F: Future<Output = std::result::Result<T, SpaceError>> + 'static,
{
    engine.spawn(work).wait().map_err(|e| SpaceError::Failed(e.to_string()))?
}

/// A namespace, if it is still that one.
async fn current(
    space: &Administrator,
    namespace: NamespaceId,
) -> std::result::Result<AllocatedNamespace, SpaceError> {
    match found(space, namespace).await? {
        Some(found) => Ok(found),
        None => Err(SpaceError::Failed(format!("it has no namespace {} any more", namespace.uuid))),
    }
}

/// As [`current`]; `None` if it was removed.
async fn found(space: &Administrator, wanted: NamespaceId) -> ManagementResult<Option<AllocatedNamespace>> {
    match space.namespace(wanted.nsid).await {
        Ok(found) => Ok((found.uuid == wanted.uuid).then_some(found)),
        Err(ManagementError::NotFound { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Connects to a namespace as a device.
async fn connect(
    uri: Uri,
    namespace: NamespaceId,
    options: Options,
) -> std::result::Result<Arc<dyn BlockDevice>, SpaceError> {
    let device = RemoteDevice::connect(&uri, options).await?;
    member_of(device, namespace.uuid)
        .ok_or_else(|| SpaceError::Failed(format!("{uri} is not namespace {}", namespace.uuid)))
}

impl Spaces for Targets {
    fn space(&self, address: &str) -> std::result::Result<Space, SpaceError> {
        let id = uri_of(address, None)?.subnqn;
        if is_whole(address) {
            let id = format!("{id}?nsid={}", nsid_of(address)?);
            return self.with_whole(address, move |whole| async move { whole.space(id).await });
        }
        let (space, took) = self.with(address, |space| async move {
            let began = longhaul_engine::now();
            let capacity = space.capacity().await?;
            let took = longhaul_engine::now() - began;
            let bytes = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
            let (capacity, free) = (bytes(capacity.total), bytes(capacity.unallocated));
            Ok((Space { id, capacity, free, is_whole: false }, took))
        })?;
        let mut all = self.round_trips.lock().unwrap_or_else(PoisonError::into_inner);
        let shortest = all.entry(address.to_owned()).or_insert(took);
        *shortest = took.min(*shortest);
        Ok(space)
    }

    fn round_trip(&self, address: &str) -> Option<Duration> {
        self.round_trips.lock().unwrap_or_else(PoisonError::into_inner).get(address).copied()
    }

    fn taken(
        &self,
        members: &[(String, NamespaceId)],
        place: &(String, NamespaceId),
    ) -> std::result::Result<Taken, SpaceError> {
        let wanted = place.1.uuid;
        let found = self.with_members(members, move |devices| async move {
            let labels = longhaul_array::survey(&devices).await;
            let uuids = devices.iter().map(|device| device.info().uuid);
            Ok(verdict(uuids.zip(labels).filter_map(|(id, label)| Some((id?, label.ok()??))), wanted))
        });
        found?
            .ok_or_else(|| SpaceError::Unreachable("none of the members of its array can be read".to_owned()))
    }

    fn list(&self, address: &str) -> std::result::Result<Vec<Namespace>, SpaceError> {
        if is_whole(address) {
            return self.with_whole(address, |whole| async move { whole.list().await });
        }
        self.with(address, |space| async move {
            let namespace = |found: AllocatedNamespace| Namespace {
                id: NamespaceId { nsid: found.nsid, uuid: found.uuid },
                size: found.size,
                label: from_wire(&found),
            };
            Ok(space.list().await?.into_iter().map(namespace).collect())
        })
    }

    fn label(&self, address: &str, namespace: NamespaceId) -> std::result::Result<Option<Label>, SpaceError> {
        if is_whole(address) {
            let found = self.list(address)?.into_iter().find(|found| found.id == namespace);
            return Ok(found.and_then(|found| found.label?.ok()));
        }
        self.with(address, move |space| async move {
            Ok(found(&space, namespace).await?.and_then(|found| from_wire(&found)?.ok()))
        })
    }

    fn in_use(&self, members: &[(String, NamespaceId)]) -> std::result::Result<Option<String>, SpaceError> {
        self.with_members(members, |devices| async move { Ok(user_of(&devices).await) })
    }

    fn evict(&self, members: &[(String, NamespaceId)]) -> std::result::Result<(), SpaceError> {
        self.with_members(members, |devices| async move { preempt(&devices).await })
    }

    fn hostnqn(&self) -> String {
        self.options.hostnqn.clone()
    }

    fn make(&self, address: &str, size: u64, label: &Label) -> std::result::Result<NamespaceId, SpaceError> {
        if is_whole(address) {
            let label = label.clone();
            return self.with_whole(address, move |whole| async move { whole.make(size, &label).await });
        }
        let mut hosts = label.hosts.clone();
        // An array is made on it by this host.
        if label.shape.layout.has_array() && !hosts.contains(&self.options.hostnqn) {
            hosts.push(self.options.hostnqn.clone());
        }
        let new = NewNamespace { size, block_size: BLOCK_SIZE, label: to_wire(label, &hosts) };
        self.with(address, move |space| async move {
            let nsid = space.create_namespace(&new).await?;
            Ok(NamespaceId { nsid, uuid: space.namespace(nsid).await?.uuid })
        })
    }

    fn remove(&self, address: &str, namespace: NamespaceId) -> std::result::Result<(), SpaceError> {
        if is_whole(address) {
            return self.with_whole(address, move |whole| async move { whole.remove(namespace).await });
        }
        self.with(address, move |space| async move {
            if found(&space, namespace).await?.is_none() {
                return Ok(());
            }
            match space.delete_namespace(namespace.nsid).await {
                // Another host was first.
                Err(ManagementError::NotFound { .. }) => Ok(()),
                removed => Ok(removed?),
            }
        })
    }

    fn grow(&self, address: &str, namespace: NamespaceId, size: u64) -> std::result::Result<(), SpaceError> {
        if is_whole(address) {
            return self.with_whole(address, move |whole| async move { whole.grow(namespace, size).await });
        }
        self.with(address, move |space| async move {
            if current(&space, namespace).await?.size >= size {
                return Ok(());
            }
            Ok(space.grow_namespace(namespace.nsid, size).await?)
        })
    }

    fn relabel(
        &self,
        address: &str,
        namespace: NamespaceId,
        label: &Label,
    ) -> std::result::Result<(), SpaceError> {
        if is_whole(address) {
            let label = label.clone();
            return self
                .with_whole(address, move |whole| async move { whole.relabel(namespace, &label).await });
        }
        let label = to_wire(label, &label.hosts);
        self.with(address, move |space| async move {
            current(&space, namespace).await?;
            Ok(space.set_label(namespace.nsid, &label).await?)
        })
    }

    fn format(
        &self,
        volume: &VolumeRecord,
        members: &[(String, NamespaceId)],
    ) -> std::result::Result<Uuid, SpaceError> {
        let VolumeLayout::Array(layout) = volume.shape.layout else {
            return Err(SpaceError::Failed("a single namespace is no array".to_owned()));
        };
        let uri = |(address, namespace): &(String, NamespaceId)| {
            Ok((uri_of(address, Some(namespace.nsid))?, *namespace))
        };
        let uris = members.iter().map(uri).collect::<std::result::Result<Vec<_>, SpaceError>>()?;
        let (options, width) = (self.device_options(), volume.shape.width);
        let (name, unit) = (volume.name.clone(), volume.shape.unit);
        let shape = longhaul_array::Shape { name, layout, unit, force: false };
        let array = run(&self.thread.handle(), move || async move {
            let connecting = uris.into_iter().map(|(uri, of)| connect(uri, of, options.clone()));
            let devices = try_join_all(connecting).await?;
            let (members, spares) = devices.split_at(width.min(devices.len()));
            Ok(longhaul_array::create(members, spares, &shape).await?)
        })?;
        if !volume.hosts.contains(&self.options.hostnqn) {
            let detached =
                crate::pool::each(members, |(address, namespace)| self.detach(address, *namespace));
            detached.into_iter().collect::<std::result::Result<Vec<()>, SpaceError>>()?;
        }
        Ok(array)
    }

    fn check_clones(&self, address: &str, namespace: NamespaceId) -> std::result::Result<(), SpaceError> {
        if is_whole(address) {
            return Err(only_files());
        }
        self.with(address, move |space| async move {
            current(&space, namespace).await?;
            Ok(space.check_clones(namespace.nsid).await?)
        })
    }

    fn clone_of(
        &self,
        address: &str,
        source: NamespaceId,
        label: &Label,
    ) -> std::result::Result<NamespaceId, SpaceError> {
        // Its superblock is that of another array: no host of the volume is to see it yet.
        let own = vec![self.options.hostnqn.clone()];
        let label = to_wire(label, if label.copied { &own } else { &label.hosts });
        self.with(address, move |space| async move {
            current(&space, source).await?;
            let nsid = space.clone_namespace(source.nsid, &label).await?;
            Ok(NamespaceId { nsid, uuid: space.namespace(nsid).await?.uuid })
        })
    }

    fn adopt(
        &self,
        volume: &VolumeRecord,
        of: Uuid,
        members: &[(String, NamespaceId, Label)],
    ) -> std::result::Result<Uuid, SpaceError> {
        let uri = |(address, namespace, _): &(String, NamespaceId, Label)| {
            Ok((uri_of(address, Some(namespace.nsid))?, *namespace))
        };
        let uris = members.iter().map(uri).collect::<std::result::Result<Vec<_>, SpaceError>>()?;
        let (options, name) = (self.device_options(), volume.name.clone());
        let array = run(&self.thread.handle(), move || async move {
            let connecting = uris.into_iter().map(|(uri, of)| connect(uri, of, options.clone()));
            let devices = try_join_all(connecting).await?;
            Ok(longhaul_array::adopt_copies(&devices, of, &name).await?)
        })?;
        let relabelled = crate::pool::each(members, |(address, namespace, label)| {
            self.relabel(address, *namespace, label)
        });
        relabelled.into_iter().collect::<std::result::Result<Vec<()>, SpaceError>>()?;
        Ok(array)
    }

    fn array_on(
        &self,
        address: &str,
        namespace: NamespaceId,
    ) -> std::result::Result<Option<Uuid>, SpaceError> {
        Ok(self.superblock(address, namespace)?.map(|label| label.array))
    }
}
