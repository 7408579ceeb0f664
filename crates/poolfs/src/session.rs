//! A session: one mount of a file system, on one host.
//!
//! Its record is under a lease, which a thread keeps. While it is there the session may change the file
//! system; each of its transactions expects it. When the host is lost, or cannot reach the catalog for as
//! long as the lease lasts, the record is gone: other sessions release its segments then, and remove the
//! files that it had open without names.

use crate::fence::{Guard, OverSession};
use crate::lease::Leases;
use crate::listing::Pages;
use crate::locks::LockTable;
use crate::members::{MemberStatus, Members, OpenMember};
use crate::node::OpenNode;
use crate::relocate::FileExtent;
use crate::schema::{CountersRecord, InodeRecord, Keys, encode_knows, encode_session, unreadable};
use crate::segment::Segments;
use crate::settings::{FsSettings, MemberPlace};
use crate::snapshots::{FsSnapshots, Numbered};
use crate::store::{NUMBERS, Store, lock};
use crate::view::SnapshotCatalog;
use longhaul_catalog::{Catalog, Commit, Error as CatalogError, Expect, LeaseId, Revision, Txn};
use longhaul_device::{Error, ErrorKind, Result};
use longhaul_engine::Config;
use longhaul_engine::buf::BufPool;
use longhaul_fs::{Errno, Time};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The lease is kept this many times while it lasts: one of these may be late.
const KEPT: u32 = 3;
/// Pause after a try that failed.
const RETRY: Duration = Duration::from_secs(1);
/// How often a transaction is tried that other hosts get ahead of.
const TRIES: usize = 100;
/// Bytes of units that are read and kept for others, at most: a path of 10 Gb/s has as many under way at 25 ms.
const READS: usize = 32 << 20;

/// How a file system is opened.
#[derive(Clone, Debug)]
pub struct FsOptions {
    /// Its name, for messages: `POOL/NAME`.
    pub name: String,
    /// What other hosts can read about this one.
    pub host: String,
    /// How long after the last sign of this host others take over what it leaves.
    pub ttl: Duration,
    /// How long a session is over before its segments are used by others: above what a write may be under
    /// way that the lost host has sent.
    pub settle: Duration,
    /// Interval at which the books of segments are made up, and what lost hosts leave is removed. Zero: only
    /// when space is short.
    pub tidy: Duration,
    /// Bytes of writes that are in memory.
    pub memory: usize,
    /// Leases on directories are taken: `close` and the making of names do not wait until they are durable.
    pub leases: bool,
    /// How long what waits for a catalog that is away waits, with leases.
    pub patience: Duration,
    /// Inodes that are remembered as they were read or put last: some hundred bytes each.
    pub remembered: usize,
    /// User and group that own new files.
    pub owner: (u32, u32),
    /// Engine of the thread that does the I/O of the members.
    pub engine: Config,
    /// The snapshot that is opened, instead of the file system as it is now. Nothing can be changed then.
    pub snapshot: Option<String>,
}

impl Default for FsOptions {
    fn default() -> FsOptions {
        FsOptions {
            name: "file system".into(),
            host: String::new(),
            ttl: Duration::from_secs(30),
            settle: Duration::from_secs(60),
            tidy: Duration::from_secs(5),
            memory: 64 << 20,
            leases: true,
            patience: Duration::from_secs(60),
            remembered: 1 << 16,
            owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            engine: Config::default(),
            snapshot: None,
        }
    }
}

/// A file that is open.
pub(crate) struct OpenHandle {
    pub(crate) node: Arc<OpenNode>,
    pub(crate) appends: bool,
    /// How many [losses](crate::node::NodeState::lose) of content its program has heard of.
    pub(crate) heard: u64,
}

/// See the module.
pub(crate) struct FsSession {
    pub(crate) settings: FsSettings,
    pub(crate) store: Store,
    pub(crate) members: Members,
    pub(crate) segments: Segments,
    pub(crate) leases: Leases,
    pub(crate) locks: LockTable,
    /// Bytes of writes that are in memory, and how many there may be.
    pub(crate) dirty: AtomicUsize,
    pub(crate) memory: usize,
    /// Buffers of units that are written.
    pub(crate) units: BufPool,
    /// Buffers of content that was read, which may be kept by a cache.
    pub(crate) replies: BufPool,
    pub(crate) owner: (u32, u32),
    pub(crate) nodes: Mutex<HashMap<u64, Arc<OpenNode>>>,
    pub(crate) handles: Mutex<HashMap<u64, OpenHandle>>,
    pub(crate) next_handle: AtomicU64,
    pub(crate) pages: Mutex<Pages>,
    pub(crate) settle: Duration,
    /// Sessions that were found to be over.
    pub(crate) over: Mutex<HashMap<u64, OverSession>>,
    /// Sessions from this number on are registered with the members; the largest number if none is known to be.
    pub(crate) fenced_from: AtomicU64,
    /// What lost sessions have left registered was looked for.
    pub(crate) has_swept: AtomicBool,
    /// One thread makes up the books at a time, and one moves content out of segments.
    pub(crate) cleans: Mutex<()>,
    pub(crate) compacts: Mutex<()>,
    /// Segments whose content could not be read to be moved.
    pub(crate) stuck: Mutex<BTreeSet<u32>>,
    /// Extents of stripes that have a wrong unit, with their inodes.
    pub(crate) wrong: Mutex<Vec<FileExtent>>,
    /// One thread follows the members at a time.
    pub(crate) follows: Mutex<()>,
    /// The session ends: what can be left is left.
    pub(crate) is_ending: AtomicBool,
    /// Inodes, chunks and snapshots of which what is kept is in very many pieces.
    pub(crate) large_kept: Mutex<BTreeSet<(u64, u64, u64)>>,
    /// A snapshot is open.
    pub(crate) is_snapshot: bool,
}

fn of_catalog(e: &CatalogError) -> Error {
    let kind = match e {
        CatalogError::Unreachable { .. } => ErrorKind::Unreachable,
        CatalogError::Busy { .. } => ErrorKind::TimedOut,
        CatalogError::Refused { .. } => ErrorKind::Refused,
        _ => ErrorKind::Failed,
    };
    Error::new(kind, e)
}

/// The top directory of a new file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopDirectory {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its permissions.
    pub mode: u32,
}

/// Makes the metadata of a new file system: its settings and the top directory.
///
/// # Errors
/// There is metadata of this file system already, or the catalog cannot be changed.
pub(crate) fn format(
    catalog: &dyn Catalog,
    uuid: Uuid,
    settings: &FsSettings,
    top: TopDirectory,
) -> Result<()> {
    let keys = Keys::new(uuid);
    let mode = rustix::fs::FileType::Directory.as_raw_mode() | top.mode & 0o7777;
    let root = InodeRecord::new(mode, (top.uid, top.gid), now());
    // The top directory is inode 1, and the one that it is in is itself.
    let root = InodeRecord { parent: ROOT, ..root };
    let mut counters = CountersRecord { inode: ROOT + 1, session: 1, version: CountersRecord::FIRST };
    if settings.fences.is_some() {
        counters.raise(CountersRecord::FENCES);
    }
    let key = keys.settings();
    let txn = Txn::new()
        .expect(&key, Expect::Absent)
        .put(&key, &settings.encode())
        .put(&keys.counters(), &counters.encode())
        .put(&keys.inode(ROOT), &root.encode());
    for _ in 0..TRIES {
        match catalog.commit(&txn) {
            Ok(Commit::Done(_)) => return Ok(()),
            Err(CatalogError::Unknown { .. }) => {}
            Ok(Commit::Conflict(_)) => {
                // It may be an earlier try whose answer was lost.
                let found = catalog.get(&keys.inode(ROOT)).map_err(|e| of_catalog(&e))?;
                let is_ours = found.is_some_and(|found| found.value == root.encode());
                return match is_ours {
                    true => Ok(()),
                    false => Err(Error::new(ErrorKind::Failed, "there is such a file system already")),
                };
            }
            Err(e) => return Err(of_catalog(&e)),
        }
    }
    Err(Error::new(ErrorKind::Failed, "it is unknown whether the file system was made: try again"))
}

/// The settings of a file system, if it has metadata.
pub(crate) fn settings(catalog: &dyn Catalog, uuid: Uuid, name: &str) -> Result<Option<FsSettings>> {
    Ok(settings_at(catalog, uuid, name)?.map(|(settings, _)| settings))
}

/// The settings with their revision.
pub(crate) fn settings_at(
    catalog: &dyn Catalog,
    uuid: Uuid,
    name: &str,
) -> Result<Option<(FsSettings, Revision)>> {
    let found = catalog.get(&Keys::new(uuid).settings()).map_err(|e| of_catalog(&e))?;
    found.map(|entry| Ok((FsSettings::decode(name, &entry.value)?, entry.modified))).transpose()
}

/// Inode of the top directory.
pub(crate) const ROOT: u64 = 1;

/// The time of the wall clock.
pub(crate) fn now() -> Time {
    let now = longhaul_engine::wall_time();
    Time { seconds: now.as_secs().cast_signed(), nanoseconds: now.subsec_nanos() }
}

/// A session that has begun.
struct SessionBegun {
    /// The snapshot that it is of.
    snapshot: Option<Numbered>,
    lease: LeaseId,
    /// Until when it certainly holds.
    valid: Instant,
    begun: Begun,
}

/// Begins a session under a lease that nothing keeps yet.
fn begin_by(
    catalog: &dyn Catalog,
    keys: &Keys,
    snapshots: &FsSnapshots<'_>,
    options: &FsOptions,
) -> Result<SessionBegun> {
    let snapshot = options.snapshot.as_ref().map(|snapshot| snapshots.find(snapshot)).transpose()?;
    let number = snapshot.as_ref().map_or(0, |snapshot| snapshot.number);
    let valid = longhaul_engine::now() + options.ttl;
    let lease = catalog.grant(options.ttl).map_err(|e| of_catalog(&e))?;
    let begun = begin(catalog, keys, lease, (&options.host, number))?;
    Ok(SessionBegun { snapshot, lease, valid, begun })
}

impl FsSession {
    /// Opens the file system `uuid` on these members; also returns the revision of the catalog as of which the
    /// session has begun.
    pub(crate) fn open(
        catalog: Arc<dyn Catalog>,
        uuid: Uuid,
        members: Vec<(String, OpenMember)>,
        options: &FsOptions,
    ) -> Result<(FsSession, Revision)> {
        let failed = |why: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Failed, format!("file system {} cannot be used: {why}", options.name))
        };
        let Some((settings, settings_at)) = settings_at(&*catalog, uuid, &options.name)? else {
            return Err(failed(
                &"its metadata is missing: it was not made whole, or the catalog was made again from the targets; \
                  remove it with 'longhaul fs rm'",
            ));
        };
        if settings.members != members.len() {
            return Err(failed(&format!("it has {} members, not {}", members.len(), settings.members)));
        }
        let places: Vec<MemberPlace> = (0..settings.members).map(|member| settings.place(member)).collect();
        let keys = Keys::new(uuid);
        let snapshots = FsSnapshots { catalog: &*catalog, uuid, name: options.name.clone() };
        let buffers = BufPool::new(options.memory.min(READS));
        // The session begins while the members are opened, which takes as many round trips.
        let (members, begun) = std::thread::scope(|scope| {
            let opened = scope.spawn(|| {
                let opened = Members::open(members, &places, options.engine.clone(), buffers);
                let members = opened.map_err(|e| failed(&e))?;
                check_members(&members, &settings, &options.name)?;
                Ok(members)
            });
            let begun = begin_by(&*catalog, &keys, &snapshots, options);
            let members =
                opened.join().unwrap_or_else(|_| Err(failed(&"a thread that opens members failed")));
            (members, begun)
        });
        let mut begun = begun?;
        let members = members.inspect_err(|_| drop(catalog.revoke(begun.lease)))?;
        if longhaul_engine::now() + options.ttl / KEPT * (KEPT - 1) > begun.valid {
            // Members have taken long, and nothing has kept its lease.
            let _ = catalog.revoke(begun.lease);
            begun = begin_by(&*catalog, &keys, &snapshots, options)?;
        }
        let SessionBegun { snapshot, lease, valid, begun: Begun { session, at, numbers } } = begun;
        // The removal of a snapshot is refused from here on.
        if let (Some(name), Some(begun_with)) = (&options.snapshot, &snapshot)
            && snapshots.find(name).map_or(0, |found| found.number) != begun_with.number
        {
            let _ = catalog.revoke(lease);
            return Err(failed(&"its snapshot was removed meanwhile"));
        }
        let is_snapshot = snapshot.is_some();
        let fenced_from = settings.fences.unwrap_or(u64::MAX);
        let catalog: Arc<dyn Catalog> = match snapshot {
            Some(snapshot) => Arc::new(SnapshotCatalog::new(catalog, keys.clone(), &snapshot)),
            None => catalog,
        };
        let session = FsSession {
            leases: Leases::new(options.leases && !is_snapshot, options.patience),
            locks: LockTable::default(),
            segments: Segments::new(&settings),
            settings,
            store: Store::new(
                catalog,
                keys,
                (session, numbers),
                (lease, valid),
                settings_at,
                options.remembered,
            ),
            members,
            dirty: AtomicUsize::new(0),
            memory: options.memory,
            units: BufPool::new(options.memory),
            replies: BufPool::new(2 * options.memory),
            owner: options.owner,
            nodes: Mutex::default(),
            handles: Mutex::default(),
            next_handle: AtomicU64::new(1),
            pages: Mutex::default(),
            settle: options.settle,
            over: Mutex::default(),
            fenced_from: AtomicU64::new(fenced_from),
            has_swept: AtomicBool::new(false),
            cleans: Mutex::default(),
            compacts: Mutex::default(),
            stuck: Mutex::default(),
            follows: Mutex::default(),
            wrong: Mutex::default(),
            is_ending: AtomicBool::new(false),
            large_kept: Mutex::default(),
            is_snapshot,
        };
        if !is_snapshot {
            // Before it has a segment: see the invariants of fencing.
            let record = Arc::clone(session.store.record());
            session.members.guard(Guard::new(session.store.session(), record, fenced_from < u64::MAX));
            if let Err(e) = check_members(&session.members, &session.settings, &options.name) {
                session.revoke();
                return Err(e);
            }
        }
        session.store.read_snapshots().map_err(|e| failed(&e))?;
        if fenced_from < u64::MAX {
            session.note_unfenced();
        }
        Ok((session, at))
    }

    /// The time of changes.
    #[allow(clippy::unused_self, reason = "the clock of the session")]
    pub(crate) fn now(&self) -> Time {
        now()
    }

    /// The file, if it is open here.
    pub(crate) fn open_node(&self, inode: u64) -> Option<Arc<OpenNode>> {
        lock(&self.nodes).get(&inode).cloned()
    }

    /// Opens a file whose inode is known; returns its handle. If it `is_read`, this is how it is now, and what is
    /// known here may be older.
    pub(crate) fn open_handle(
        &self,
        inode: u64,
        record: InodeRecord,
        appends: bool,
        is_read: bool,
    ) -> (u64, Arc<OpenNode>) {
        let mut nodes = lock(&self.nodes);
        let node = match nodes.get(&inode) {
            Some(node) => Arc::clone(node),
            None => {
                let node = Arc::new(OpenNode::new(inode, record.clone()));
                nodes.insert(inode, Arc::clone(&node));
                node
            }
        };
        let mut state = node.lock();
        state.handles += 1;
        // Close-to-open: content of other hosts is seen from now on.
        if is_read && state.inode.stamp != record.stamp {
            // Another thread may have committed since it was read.
            state.replace(self.store.newest(inode).unwrap_or(record));
        }
        let heard = state.losses.0;
        drop((state, nodes));
        let handle = self.next_handle.fetch_add(1, Relaxed);
        lock(&self.handles).insert(handle, OpenHandle { node: Arc::clone(&node), appends, heard });
        (handle, node)
    }

    /// The result of a call for a handle; or, in place of a success, why content of its file was lost, if no call
    /// for this handle has reported that.
    pub(crate) fn report<T>(
        &self,
        handle: u64,
        result: std::result::Result<T, Errno>,
    ) -> std::result::Result<T, Errno> {
        let (reported, losses) = self.with_losses(handle, result);
        if let Some((losses, open)) = losses.zip(lock(&self.handles).get_mut(&handle)) {
            open.heard = open.heard.max(losses);
        }
        reported
    }

    /// As [`report`](Self::report) at a close, after which the next sync reports the same again: the close may be
    /// that of a copied descriptor.
    pub(crate) fn report_at_close(
        &self,
        handle: u64,
        result: std::result::Result<(), Errno>,
    ) -> std::result::Result<(), Errno> {
        self.with_losses(handle, result).0
    }

    /// What is reported, and the losses of which it tells, if it tells of any.
    fn with_losses<T>(
        &self,
        handle: u64,
        result: std::result::Result<T, Errno>,
    ) -> (std::result::Result<T, Errno>, Option<u64>) {
        let open = lock(&self.handles).get(&handle).map(|open| (Arc::clone(&open.node), open.heard));
        let Some((node, heard)) = open else { return (result, None) };
        match (node.lock().losses, &result) {
            ((losses, Some(why)), Ok(_)) if losses > heard => (Err(why), Some(losses)),
            ((losses, Some(why)), Err(e)) if why == *e => (result, Some(losses)),
            _ => (result, None),
        }
    }

    /// Keeps the lease until the sender is dropped.
    pub(crate) fn keep(self: &Arc<FsSession>, ttl: Duration) -> std::io::Result<Sender<()>> {
        let (end, ended) = channel::<()>();
        let session = Arc::clone(self);
        std::thread::Builder::new().name("longhaul-lease".into()).spawn(move || {
            let (store, lease) = (&session.store, session.store.lease());
            let mut kept = Instant::now();
            // It was granted before the members were opened.
            let mut pause = store.valid_for().saturating_sub(ttl / KEPT * (KEPT - 1));
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                pause = ttl / KEPT;
                let begun = Instant::now();
                match store.catalog().keep(lease) {
                    Ok(left) => {
                        kept = begun;
                        store.kept(begun + left.min(ttl));
                    }
                    Err(CatalogError::LeaseExpired(_)) => {
                        return store.record().run_out("");
                    }
                    // The next time may be in time yet.
                    Err(e) => {
                        tracing::warn!("the lease of the session is not kept: {e}");
                        pause = RETRY.min(ttl / KEPT);
                    }
                }
                if kept.elapsed() > ttl * 2 {
                    tracing::warn!("the session of this mount may have run out: the catalog does not answer");
                }
            }
        })?;
        Ok(end)
    }

    /// Takes the segment that is written to next while another one fills up, until the session ends.
    pub(crate) fn take_ahead_always(self: &Arc<FsSession>) -> std::io::Result<()> {
        self.segments.begin_ahead();
        let session = Arc::clone(self);
        let thread = std::thread::Builder::new().name("longhaul-segment".into());
        thread.spawn(move || session.segments.take_ahead(&session.store)).map(drop)
    }

    /// What is wrong with it, as `CONDITION: DETAIL`; `None` if nothing is.
    pub(crate) fn trouble(&self) -> Option<String> {
        if self.store.has_ended() {
            return Some("failed: its session has run out: unmount it, and mount it again".into());
        }
        let down: Vec<String> = self
            .members
            .status()
            .into_iter()
            .filter_map(|member| Some(format!("{}: {}", member.name, member.down?)))
            .collect();
        let (missing, may_be) = (down.len(), self.settings.parity);
        match missing {
            0 => self.members.filling().map(|name| format!("degraded: {name} is filled")),
            _ if missing > may_be => {
                Some(format!("failed: {missing} members are missing: {}", down.join("; ")))
            }
            _ => Some(format!("degraded: {missing} members are missing: {}", down.join("; "))),
        }
    }

    /// Ends the session: its segments are released, and its record is removed.
    pub(crate) fn end(&self) {
        if self.is_snapshot {
            return self.revoke();
        }
        if let Err(e) = self.write_out() {
            tracing::error!("new files and names are lost: {e}");
        }
        let open: Vec<Arc<OpenNode>> = lock(&self.nodes).values().cloned().collect();
        for node in open {
            if let Err(e) = self.commit(&node) {
                tracing::error!("inode {}: what was written is lost: {e}", node.inode);
            }
        }
        self.store.reaper.end();
        self.leases.end();
        self.is_ending.store(true, Relaxed);
        self.segments.end_ahead();
        self.segments.end();
        let _compacts = lock(&self.compacts);
        if let Err(e) = self.clean() {
            tracing::debug!("the books are left to another session: {e}");
        }
        self.revoke();
    }

    fn revoke(&self) {
        self.store.end();
        let leaving = self.members.leave();
        if let Err(e) = self.store.catalog().revoke(self.store.lease()) {
            tracing::debug!("the session is left to run out: {e}");
        }
        leaving.wait();
    }
}

/// Refuses to go on with too few members.
fn check_members(members: &Members, settings: &FsSettings, name: &str) -> Result<()> {
    let down: Vec<MemberStatus> =
        members.status().into_iter().filter(|member| member.down.is_some()).collect();
    if down.len() <= settings.parity {
        return Ok(());
    }
    let why =
        |member: &MemberStatus| format!("{}: {}", member.name, member.down.as_deref().unwrap_or_default());
    let all: Vec<String> = down.iter().map(why).collect();
    let what = format!(
        "file system {name} has too few members: {} of {} cannot be reached, and {} may be missing: {}",
        down.len(),
        settings.members,
        settings.parity,
        all.join("; ")
    );
    Err(Error::new(ErrorKind::Unreachable, what))
}

/// What the beginning of a session has put into the catalog.
struct Begun {
    session: u64,
    /// Revision of the catalog.
    at: Revision,
    /// Numbers of new inodes: the first ones.
    numbers: std::ops::Range<u64>,
}

/// Puts the record of a session.
fn begin(catalog: &dyn Catalog, keys: &Keys, lease: LeaseId, (host, snapshot): (&str, u64)) -> Result<Begun> {
    for _ in 0..TRIES {
        let key = keys.counters();
        let entry = catalog.get(&key).map_err(|e| of_catalog(&e))?;
        let entry = entry.ok_or_else(|| Error::new(ErrorKind::Failed, "the file system was removed"))?;
        let Some(mut counters) = CountersRecord::decode(&entry.value) else {
            unreadable("the counters of the file system", &entry.value);
            return Err(Error::new(ErrorKind::Failed, "the counters of the file system cannot be read"));
        };
        let session = counters.session;
        counters.session += 1;
        // Nothing is made in a snapshot.
        let count = if snapshot == 0 { NUMBERS[0] } else { 0 };
        let numbers = counters.inode..counters.inode + count;
        counters.inode += count;
        let txn = Txn::new()
            .expect(&key, Expect::Modified(entry.modified))
            .put(&key, &counters.encode())
            .put_leased(&keys.knows(session), &encode_knows(FsSettings::LATEST, snapshot), lease)
            .put_leased(&keys.session(session), &encode_session(host), lease);
        match catalog.commit(&txn) {
            Ok(Commit::Done(at)) => return Ok(Begun { session, at, numbers }),
            // A number that was taken by a try whose answer was lost stays unused.
            Ok(Commit::Conflict(_)) | Err(CatalogError::Unknown { .. }) => {}
            Err(e) => return Err(of_catalog(&e)),
        }
    }
    Err(Error::new(ErrorKind::Failed, "other hosts changed the file system each time: try again"))
}
