//! Making, listing and removing the file systems of a pool, and opening their members.
//!
//! A file system is a volume of the pool, whose namespaces have no array, and metadata in the catalog. The
//! volume is made first and removed first: metadata without a volume is what a crash leaves of a removal,
//! and is removed by the next one; a volume without metadata is what a crash leaves of making, and can only be
//! removed.

use crate::members::OpenMember;
use crate::programs::earlier_programs;
use crate::quota::{FsQuota, FsQuotas, LimitChange, Owner};
use crate::schema::{Keys, SegmentRecord, decode_filled, decode_session, decode_unfenced};
use crate::scrub::ScrubReport;
use crate::segment::{SegmentUse, Segments};
use crate::session::{FsOptions, TopDirectory, format, settings};
use crate::settings::FsSettings;
use crate::show::Showing;
use crate::snapshots::{FsSnapshot, FsSnapshots};
use crate::workers::PoolFs;
use longhaul_block::IoError;
use longhaul_catalog::{Catalog, Expect, Txn};
use longhaul_device::{Error, ErrorKind, Opener, Reason, Result};
use longhaul_initiator::Options;
use longhaul_pool::{
    Pool, Removed, VolumeName, VolumeRecord, VolumeRequest, VolumeState, check_name, file_segment,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// What names of file systems begin with.
pub const SCHEME: &str = "fs:";

/// How long I/O to a member waits for a connection that is lost. The member counts as missing then, until it
/// can be connected again.
const PATIENCE: Duration = Duration::from_secs(8);
/// Keys that one transaction removes.
const REMOVED: usize = 100;

/// `POOL/NAME`, with or without `fs:` before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsName {
    /// Name of the pool.
    pub pool: String,
    /// Name of the file system.
    pub name: String,
}

impl FromStr for FsName {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<FsName, String> {
        let VolumeName { pool, name } =
            text.strip_prefix(SCHEME).unwrap_or(text).parse().map_err(|e: String| {
                e.replace("is no volume", "is no file system").replace("of a volume", "of a file system")
            })?;
        Ok(FsName { pool, name })
    }
}

/// `POOL/NAME` or `POOL/NAME@SNAPSHOT`, with or without `fs:` before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsRef {
    /// The file system.
    pub fs: FsName,
    /// A snapshot of it.
    pub snapshot: Option<String>,
}

impl FromStr for FsRef {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<FsRef, String> {
        // No name of a pool or file system has such a character.
        let (fs, snapshot) = match text.split_once('@') {
            Some((fs, snapshot)) => (fs, Some(snapshot)),
            None => (text, None),
        };
        if let Some(snapshot) = snapshot {
            check_name("snapshot", snapshot).map_err(|e| e.to_string())?;
        }
        Ok(FsRef { fs: fs.parse()?, snapshot: snapshot.map(str::to_owned) })
    }
}

impl fmt::Display for FsRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.fs)?;
        self.snapshot.as_ref().map_or(Ok(()), |snapshot| write!(f, "@{snapshot}"))
    }
}

impl fmt::Display for FsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.name)
    }
}

/// A file system, as its metadata says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsStatus {
    /// Its volume.
    pub volume: VolumeRecord,
    /// It has metadata: otherwise it was not made whole, or the catalog was made again from the targets.
    pub is_whole: bool,
    /// Bytes of content that it has room for.
    pub size: u64,
    /// Bytes of content for which there is room.
    pub free: u64,
    /// Members that are filled: which one, segments done, and all.
    pub filling: Vec<(usize, u32, u32)>,
    /// Hosts that have it mounted, by session.
    pub sessions: Vec<(u64, String)>,
    /// Why a host that is lost is not fenced, and its segments are used by others a minute later; `None` if the
    /// targets refuse its writes.
    pub not_fenced: Option<String>,
}

/// Whether a volume is the data of a file system.
pub fn is_fs(volume: &VolumeRecord) -> bool {
    volume.shape.layout.is_files()
}

fn of_catalog(e: longhaul_catalog::Error) -> Error {
    longhaul_pool::Error::from(e).into()
}

fn settings_of(pool: &Pool, volume: &VolumeRecord) -> Result<FsSettings> {
    let shape = &volume.shape;
    let Some((data, parity)) = shape.layout.file_stripe(shape.width) else {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("{} is no layout of a file system", shape.layout),
        ));
    };
    let segment = file_segment(shape.member_size);
    Ok(FsSettings {
        format: FsSettings::FORMAT_FENCES,
        pool: pool.record().uuid,
        members: shape.width,
        data,
        parity,
        unit: shape.unit,
        segment,
        segments: u32::try_from(shape.member_size / segment).unwrap_or(u32::MAX),
        places: Vec::new(),
        fences: Some(1),
    })
}

/// Makes a file system.
///
/// # Errors
/// Those of [`Pool::create_volume`].
pub fn create(pool: &Pool, request: &VolumeRequest, top: TopDirectory) -> Result<VolumeRecord> {
    sweep(pool)?;
    let volume = pool.create_volume(request)?;
    let made = settings_of(pool, &volume)
        .and_then(|settings| format(&*pool.host().catalog, volume.uuid, &settings, top));
    if let Err(e) = made {
        if let Err(left) = pool.remove_volume(&volume.name) {
            tracing::warn!("volume {} is left: {left}", volume.name);
        }
        return Err(e);
    }
    Ok(volume)
}

/// The volume of a file system.
///
/// # Errors
/// The pool has no file system of that name.
pub fn find(pool: &Pool, name: &str) -> Result<VolumeRecord> {
    let missing = |why: &str| {
        let what = format!("there is no file system called {name} in pool {}{why}", pool.record().name);
        Error::new(ErrorKind::Failed, what).because(Some(Reason::NotFound))
    };
    match pool.volume(name) {
        Ok(volume) if is_fs(&volume) => Ok(volume),
        Ok(_) => Err(missing(": that is a volume")),
        Err(longhaul_pool::Error::NotFound { .. }) => Err(missing("")),
        Err(e) => Err(e.into()),
    }
}

/// All file systems of a pool, by name.
///
/// # Errors
/// The catalog cannot be read.
pub fn list(pool: &Pool) -> Result<Vec<VolumeRecord>> {
    Ok(pool.volumes()?.into_iter().filter(is_fs).collect())
}

/// The sessions of a file system, each with its host.
pub(crate) fn sessions(catalog: &dyn Catalog, uuid: Uuid) -> Result<Vec<(u64, String)>> {
    let keys = Keys::new(uuid);
    let found = catalog.range(&keys.sessions(), None).map_err(of_catalog)?;
    let session = |entry: &longhaul_catalog::Entry| {
        Some((keys.parse(&entry.key, 1)?.0[0], decode_session(&entry.value)?))
    };
    Ok(found.entries.iter().filter_map(session).collect())
}

/// The members that are filled.
fn filling(catalog: &dyn Catalog, keys: &Keys, settings: &FsSettings) -> Result<Vec<(usize, u32, u32)>> {
    let members = (0..settings.members).filter(|member| settings.place(*member).fills);
    members
        .map(|member| {
            let found = catalog.get(&keys.filled(member as u64)).map_err(of_catalog)?;
            let done = found.and_then(|entry| decode_filled(&entry.value)).unwrap_or(0);
            Ok((member, done, settings.segments))
        })
        .collect()
}

/// Makes a file system `size` bytes large, at least, while it is used: its namespaces grow, and then it does.
///
/// # Errors
/// Those of [`Pool::resize_volume`].
pub fn resize(pool: &Pool, name: &str, size: u64) -> Result<VolumeRecord> {
    let volume = find(pool, name)?;
    let volume = pool.resize_volume(&volume.name, size)?;
    let catalog = &*pool.host().catalog;
    let key = Keys::new(volume.uuid).settings();
    loop {
        let entry = catalog.get(&key).map_err(of_catalog)?;
        let entry = entry.ok_or_else(|| Error::new(ErrorKind::Failed, format!("{name} has no metadata")))?;
        let before = FsSettings::decode(name, &entry.value)?;
        let segments = u32::try_from(volume.shape.member_size / before.segment).unwrap_or(u32::MAX);
        if segments <= before.segments {
            return Ok(volume);
        }
        let after = FsSettings { segments, ..before };
        let txn = Txn::new().expect(&key, Expect::Modified(entry.modified)).put(&key, &after.encode());
        // Whatever the answer is: it is looked at again.
        match catalog.commit(&txn) {
            Ok(_) | Err(longhaul_catalog::Error::Unknown { .. }) => {}
            Err(e) => return Err(of_catalog(e)),
        }
    }
}

/// Reads all content of a file system, with `limit` bytes a second at most, and repairs what is wrong. This host
/// has to be one of those that it is for.
///
/// # Errors
/// As for [`open`]; the catalog cannot be read.
pub fn scrub(
    pool: &Pool,
    name: &str,
    opener: &Opener,
    limit: Option<u64>,
    show: &mut dyn FnMut(&ScrubReport),
) -> Result<ScrubReport> {
    let fs = open(pool, name, opener, FsOptions { tidy: Duration::ZERO, ..FsOptions::default() })?;
    let failed =
        |e| Error::new(ErrorKind::Failed, format!("{name} is not read to its end: {e}; the log says why"));
    fs.session().scrub(limit, show).map_err(failed)
}

/// The segments of a file system that are not free.
fn segments_in_use(catalog: &dyn Catalog, keys: &Keys, name: &str) -> Result<BTreeMap<u32, SegmentUse>> {
    let damaged =
        || Error::new(ErrorKind::Failed, format!("records of {name} are damaged: run 'longhaul fs check'"));
    let records = catalog.range(&keys.segments(), None).map_err(of_catalog)?.entries;
    let accounts = catalog.range(&keys.accounts(), None).map_err(of_catalog)?.entries;
    let record = |entry: &longhaul_catalog::Entry| {
        let number = u32::try_from(keys.parse(&entry.key, 1)?.0[0]).ok()?;
        Some((number, SegmentRecord::decode(&entry.value)?))
    };
    let records: Option<BTreeMap<u32, SegmentRecord>> = records.iter().map(record).collect();
    let accounts = accounts.iter().map(|entry| &entry.value[..]);
    SegmentUse::sum(records.ok_or_else(damaged)?, accounts).ok_or_else(damaged)
}

/// Makes a snapshot of a file system, while it is used: what was durable before is in it.
///
/// # Errors
/// The pool has no such file system; [`ErrorKind::Refused`] if it has such a snapshot, as many as may be, or is
/// mounted by a program that does not know snapshots.
pub fn make_snapshot(pool: &Pool, fs: &str, name: &str) -> Result<FsSnapshot> {
    check_name("snapshot", name).map_err(Error::from)?;
    let made = with_snapshots(pool, fs, |snapshots| snapshots.make(name))?;
    Ok(FsSnapshot {
        name: made.record.name,
        made: made.record.made,
        revision: made.at,
        held: 0,
        is_removed: false,
        mounts: Vec::new(),
    })
}

/// The snapshots of a file system, the oldest first.
///
/// # Errors
/// The pool has no such file system, or its metadata cannot be read.
pub fn snapshots(pool: &Pool, fs: &str) -> Result<Vec<FsSnapshot>> {
    with_snapshots(pool, fs, |snapshots| snapshots.list())
}

/// Removes a snapshot, and frees what it alone has; bytes of that. One that a host has mounted only if `force` is
/// set: calls there fail from then on.
///
/// # Errors
/// The pool has no such file system or it no such snapshot; [`ErrorKind::Refused`] if it is mounted. If the file
/// system cannot be opened here, the snapshot is gone and its space is freed by a host that mounts it.
pub fn remove_snapshot(pool: &Pool, fs: &str, name: &str, opener: &Opener, force: bool) -> Result<u64> {
    let held = snapshots(pool, fs)?.into_iter().find(|one| one.name == name && !one.is_removed);
    with_snapshots(pool, fs, |snapshots| snapshots.begin_removal(name, force))?;
    let later = |e: Error| {
        let why = format!("{fs}@{name} is removed, and its space is freed by the next mount: {e}");
        Error::new(e.kind(), why)
    };
    let opened = find(pool, fs).and_then(|volume| open_for_moves(pool, &volume, opener)).map_err(later)?;
    let emptied = opened.session().empty_removed();
    emptied.map_err(|e| later(Error::new(ErrorKind::Failed, format!("{e}; the log says why"))))?;
    Ok(held.map_or(0, |one| one.held))
}

fn with_snapshots<T>(pool: &Pool, fs: &str, call: impl FnOnce(FsSnapshots<'_>) -> Result<T>) -> Result<T> {
    let (uuid, name) = with_metadata(pool, fs)?;
    call(FsSnapshots { catalog: &*pool.host().catalog, uuid, name })
}

fn with_quotas<T>(pool: &Pool, fs: &str, call: impl FnOnce(FsQuotas<'_>) -> Result<T>) -> Result<T> {
    let (uuid, name) = with_metadata(pool, fs)?;
    call(FsQuotas { catalog: &*pool.host().catalog, uuid, name })
}

/// A file system that has metadata of a version that this program knows, and its name with that of the pool.
fn with_metadata(pool: &Pool, fs: &str) -> Result<(Uuid, String)> {
    let volume = find(pool, fs)?;
    let name = format!("{}/{fs}", pool.record().name);
    match settings(&*pool.host().catalog, volume.uuid, &name)? {
        Some(_) => Ok((volume.uuid, name)),
        None => Err(Error::new(ErrorKind::Failed, format!("file system {name} has no metadata: remove it"))),
    }
}

/// Changes the limits of a user or a group, while the file system is used; what it has then. With the first limit of
/// all, the inodes are counted.
///
/// # Errors
/// The pool has no such file system, or its metadata cannot be read; [`ErrorKind::Refused`] if it is mounted by a
/// program that does not know quotas.
pub fn set_quota(pool: &Pool, fs: &str, owner: Owner, change: LimitChange) -> Result<FsQuota> {
    with_quotas(pool, fs, |quotas| quotas.set(owner, change))
}

/// What users and groups have in a file system that has quotas, and may have; none of one that has no quotas.
///
/// # Errors
/// The pool has no such file system, or its metadata cannot be read.
pub fn quotas(pool: &Pool, fs: &str) -> Result<Vec<FsQuota>> {
    with_quotas(pool, fs, |quotas| quotas.list())
}

/// Counts anew what users and groups have, while the file system is used; false if it has no quotas. No limit holds
/// meanwhile.
///
/// # Errors
/// The pool has no such file system, or its metadata cannot be read.
pub fn recount(pool: &Pool, fs: &str) -> Result<bool> {
    with_quotas(pool, fs, |quotas| quotas.recount())
}

/// What the metadata of a file system says.
///
/// # Errors
/// The pool has no such file system, or the catalog cannot be read.
pub fn status(pool: &Pool, name: &str) -> Result<FsStatus> {
    let volume = find(pool, name)?;
    let catalog = &*pool.host().catalog;
    let shown = format!("{}/{name}", pool.record().name);
    let Some(settings) = settings(catalog, volume.uuid, &shown)? else {
        return Ok(FsStatus {
            volume,
            is_whole: false,
            size: 0,
            free: 0,
            filling: Vec::new(),
            sessions: Vec::new(),
            not_fenced: None,
        });
    };
    let used = segments_in_use(catalog, &Keys::new(volume.uuid), &shown)?;
    Ok(FsStatus {
        is_whole: true,
        size: Segments::size(&settings, settings.segments),
        free: Segments::available(&settings, settings.segments, &used),
        filling: filling(catalog, &Keys::new(volume.uuid), &settings)?,
        sessions: sessions(catalog, volume.uuid)?,
        not_fenced: not_fenced(catalog, &Keys::new(volume.uuid), &settings)?,
        volume,
    })
}

/// Why a host that is lost is not fenced.
fn not_fenced(catalog: &dyn Catalog, keys: &Keys, settings: &FsSettings) -> Result<Option<String>> {
    if settings.fences.is_none() {
        let earlier = earlier_programs(catalog, keys, FsSettings::FORMAT_FENCES).map_err(of_catalog)?;
        let hosts = earlier.into_iter().collect::<Vec<_>>().join(", ");
        return Ok(Some(match hosts.is_empty() {
            true => "until it is mounted next".into(),
            false => format!("an earlier program has it mounted on {hosts}"),
        }));
    }
    let found = catalog.range(&keys.all_unfenced(), None).map_err(of_catalog)?.entries;
    let without: BTreeSet<String> =
        found.iter().filter_map(|entry| decode_unfenced(&entry.value)).flatten().collect();
    let without = without.into_iter().collect::<Vec<_>>().join(", ");
    Ok((!without.is_empty()).then(|| format!("{without} has no reservations")))
}

/// Removes a file system and its files. One that a host has mounted only if `force` is set: calls there fail
/// from then on.
///
/// # Errors
/// The pool has no such file system; [`ErrorKind::Refused`] if it is mounted.
pub fn remove(pool: &Pool, name: &str, force: bool) -> Result<Removed> {
    let volume = find(pool, name)?;
    let users = sessions(&*pool.host().catalog, volume.uuid)?;
    if !users.is_empty() && !force {
        let hosts: Vec<&str> = users.iter().map(|(_, host)| host.as_str()).collect();
        let why = format!(
            "file system {}/{name} is not removed: it is mounted on {}; unmount it, or give --force",
            pool.record().name,
            hosts.join(", ")
        );
        return Err(Error::new(ErrorKind::Refused, why).because(Some(Reason::InUse)));
    }
    let removed = pool.remove_volume(name)?;
    remove_metadata(&*pool.host().catalog, volume.uuid)?;
    sweep(pool)?;
    Ok(removed)
}

/// Removes all keys of a file system, its settings last, by which [`sweep`] finds it again.
fn remove_metadata(catalog: &dyn Catalog, uuid: Uuid) -> Result<()> {
    let keys = Keys::new(uuid);
    let last = keys.settings();
    let mut after = keys.all().to_vec();
    loop {
        let page = catalog.page(keys.all(), &after, REMOVED).map_err(of_catalog)?;
        let Some(end) = page.last() else { break };
        after.clone_from(&end.key);
        let gone = page.iter().filter(|entry| entry.key != last);
        let txn = gone.fold(Txn::new(), |txn, entry| txn.delete(&entry.key));
        commit(catalog, &txn)?;
    }
    commit(catalog, &Txn::new().delete(&last))
}

/// Makes a transaction that may be made twice.
fn commit(catalog: &dyn Catalog, txn: &Txn) -> Result<()> {
    loop {
        match catalog.commit(txn) {
            Err(longhaul_catalog::Error::Unknown { .. }) => {}
            result => return result.map(drop).map_err(of_catalog),
        }
    }
}

/// Removes metadata of file systems of this pool whose volumes are gone.
fn sweep(pool: &Pool) -> Result<()> {
    let catalog = &*pool.host().catalog;
    let all = b"fs/";
    let (mut after, mut found) = (all.to_vec(), Vec::new());
    loop {
        let page = catalog.page(all, &after, 1).map_err(of_catalog)?;
        let Some(entry) = page.first() else { break };
        let name = entry.key[all.len()..].split(|byte| *byte == b'/').next().unwrap_or_default();
        after = [&all[..], name, b"0"].concat();
        let Some(uuid) = std::str::from_utf8(name).ok().and_then(|name| name.parse::<Uuid>().ok()) else {
            continue;
        };
        // One of a later version is of a later program.
        if let Ok(Some(settings)) = settings(catalog, uuid, "")
            && settings.pool == pool.record().uuid
        {
            found.push(uuid);
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    // Read last: metadata is made after the volume.
    let intents = pool.intents()?.into_iter().map(|(intent, _)| intent.volume.uuid);
    let known: BTreeSet<Uuid> =
        pool.volumes()?.into_iter().map(|volume| volume.uuid).chain(intents).collect();
    found.into_iter().filter(|uuid| !known.contains(uuid)).try_for_each(|uuid| remove_metadata(catalog, uuid))
}

/// Opens a file system on this host, which has to be one of those that it is for.
///
/// # Errors
/// It does not exist, is not for this host, or has too few members that can be reached.
pub fn open(pool: &Pool, name: &str, opener: &Opener, options: FsOptions) -> Result<PoolFs> {
    let volume = find(pool, name)?;
    pool.check_usable(&volume, opener)?;
    let snapshot = options.snapshot.clone();
    let (mut fs, connections) = open_volume(pool, &volume, opener, options)?;
    let of = FsName { pool: pool.record().name.clone(), name: name.to_owned() };
    let shown = FsRef { fs: of, snapshot }.to_string();
    fs.show(Showing::new(fs.session(), shown, volume, connections));
    Ok(fs)
}

/// Opens a file system for its members to be moved, on a host that has them attached.
pub(crate) fn open_for_moves(pool: &Pool, volume: &VolumeRecord, opener: &Opener) -> Result<PoolFs> {
    // What this session does, it does when it is told to.
    let options = FsOptions { tidy: Duration::ZERO, ..FsOptions::default() };
    open_volume(pool, volume, opener, options).map(|(fs, _)| fs)
}

/// The file system, and what has opened its members.
fn open_volume(
    pool: &Pool,
    volume: &VolumeRecord,
    opener: &Opener,
    options: FsOptions,
) -> Result<(PoolFs, Opener)> {
    let name = &volume.name;
    if volume.state != VolumeState::Ready {
        let why = format!("file system {}/{name} is being made: mount it later", pool.record().name);
        return Err(Error::new(ErrorKind::Refused, why));
    }
    // Each session is a host of its own for the targets: so it is fenced alone, and a host may have several. Its
    // name (NQN), by which the targets allow it, is that of this host.
    let own = Options { hostid: Uuid::new_v4(), ctrl_loss: Some(PATIENCE), ..opener.options().clone() };
    let connections = Opener::new(own);
    let uris = pool.member_uris(volume)?;
    let member = |(uri, member): (Option<String>, &longhaul_pool::Member)| {
        let name = uri.clone().unwrap_or_else(|| "a member that was not found".into());
        let (opener, pool, volume) = (connections.clone(), pool.clone(), volume.uuid);
        let made_on = member.namespace.map(|id| id.uuid);
        let open: OpenMember = Box::new(move |namespace| {
            let found = match namespace {
                Some(other) if Some(other) != made_on => {
                    let found = pool.namespace_uri(volume, other);
                    found.map_err(|e| IoError::Unreachable(e.to_string()))?
                }
                _ => uri.clone(),
            };
            let wanted = namespace.or(made_on);
            let uri = &found.ok_or_else(|| IoError::Offline("it was not found".into()))?;
            let wanted = wanted.ok_or_else(|| IoError::Offline("it was not made".into()))?;
            longhaul_pool::open_member(&opener, uri, wanted)
        });
        (name, open)
    };
    let members = uris.into_iter().zip(&volume.members).map(member).collect();
    let options = FsOptions {
        name: format!("{}/{name}", pool.record().name),
        host: pool.host().name.clone(),
        engine: opener.config(),
        ..options
    };
    let fs = PoolFs::open(Arc::clone(&pool.host().catalog), volume.uuid, members, &options)?;
    Ok((fs, connections))
}
