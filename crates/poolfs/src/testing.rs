//! A file system on disks in memory, for tests and simulations: hosts that crash, disks that fail.

use crate::members::OpenMember;
use crate::quota::{FsQuota, FsQuotas, LimitChange, Owner};
use crate::session::{FsOptions, TopDirectory, format};
use crate::settings::FsSettings;
use crate::snapshots::{FsSnapshot, FsSnapshots};
use crate::store::lock;
use crate::workers::PoolFs;
use crate::{FillProgress, FsReport, ScrubReport, check};
use longhaul_block::testing::FaultDisk;
use longhaul_block::{BlockDevice, IoError};
use longhaul_catalog::Catalog;
use longhaul_device::Result;
use longhaul_fs::Errno;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use uuid::Uuid;

/// Bytes of a segment on one disk.
pub const SEGMENT: u64 = 256 << 10;
/// Largest unit of a stripe.
pub const UNIT: u64 = 64 << 10;
/// Hosts of disks so far.
static HOSTS: AtomicU64 = AtomicU64::new(1);

/// A disk that hosts reach, or do not.
#[derive(Clone)]
pub struct TestDisk {
    /// The disk.
    pub disk: FaultDisk,
    gone: Arc<AtomicBool>,
}

impl TestDisk {
    fn new(segments: u32) -> TestDisk {
        TestDisk { disk: FaultDisk::new(SEGMENT * u64::from(segments)), gone: Arc::default() }
    }

    /// Takes the disk away, or gives it back.
    pub fn set_gone(&self, is_gone: bool) {
        self.gone.store(is_gone, Relaxed);
        self.disk.disconnect(is_gone);
    }
}

/// A file system in memory.
#[derive(Clone)]
pub struct TestFs {
    /// Its metadata.
    pub catalog: Arc<dyn Catalog>,
    /// Its members.
    pub disks: Vec<TestDisk>,
    /// Disks that members may move to.
    others: Arc<Mutex<BTreeMap<Uuid, TestDisk>>>,
    /// The disks have reservations, and each session is a host of its own for them.
    fences: bool,
    /// Identifies it.
    pub uuid: Uuid,
}

impl TestFs {
    /// Makes a file system with these units of data and parity on as many disks, of `segments` segments.
    ///
    /// # Errors
    /// The catalog cannot be changed.
    pub fn new(
        catalog: Arc<dyn Catalog>,
        members: usize,
        (data, parity): (usize, usize),
        segments: u32,
    ) -> Result<TestFs> {
        TestFs::made(catalog, members, (data, parity), segments, None)
    }

    /// The same on disks with reservations, by which lost sessions are fenced.
    ///
    /// # Errors
    /// The catalog cannot be changed.
    pub fn fenced(
        catalog: Arc<dyn Catalog>,
        members: usize,
        stripe: (usize, usize),
        segments: u32,
    ) -> Result<TestFs> {
        let fs = TestFs::made(catalog, members, stripe, segments, Some(1))?;
        Ok(TestFs { fences: true, ..fs })
    }

    /// On disks with reservations, as an earlier program has made it, which does not know them.
    ///
    /// # Errors
    /// The catalog cannot be changed.
    pub fn earlier(
        catalog: Arc<dyn Catalog>,
        members: usize,
        stripe: (usize, usize),
        segments: u32,
    ) -> Result<TestFs> {
        let fs = TestFs::made(catalog, members, stripe, segments, None)?;
        Ok(TestFs { fences: true, ..fs })
    }

    fn made(
        catalog: Arc<dyn Catalog>,
        members: usize,
        (data, parity): (usize, usize),
        segments: u32,
        fences: Option<u64>,
    ) -> Result<TestFs> {
        let settings = FsSettings {
            format: if fences.is_some() { FsSettings::FORMAT_FENCES } else { FsSettings::FORMAT },
            pool: Uuid::nil(),
            members,
            data,
            parity,
            unit: UNIT,
            segment: SEGMENT,
            segments,
            places: Vec::new(),
            fences,
        };
        let uuid = Uuid::new_v4();
        format(&*catalog, uuid, &settings, TopDirectory { uid: 1, gid: 2, mode: 0o755 })?;
        let disks = (0..members).map(|_| TestDisk::new(segments)).collect();
        Ok(TestFs { catalog, disks, others: Arc::default(), fences: false, uuid })
    }

    /// A disk of this many segments that a member can move to.
    pub fn add_disk(&self, segments: u32) -> (Uuid, TestDisk) {
        let (uuid, disk) = (Uuid::new_v4(), TestDisk::new(segments));
        lock(&self.others).insert(uuid, disk.clone());
        (uuid, disk)
    }

    /// Options without threads that work by themselves, and without waits.
    pub fn options() -> FsOptions {
        FsOptions {
            name: "test".into(),
            host: "host".into(),
            settle: std::time::Duration::ZERO,
            tidy: std::time::Duration::ZERO,
            memory: 4 << 20,
            leases: false,
            owner: (1, 2),
            ..FsOptions::default()
        }
    }

    /// The same for hosts that take leases on directories, by which names and files are written behind.
    pub fn leased() -> FsOptions {
        FsOptions { leases: true, ..TestFs::options() }
    }

    /// Opens it, by a catalog of the caller such as one that fails.
    ///
    /// # Errors
    /// Those of [`PoolFs::open`].
    pub fn open_by(&self, catalog: Arc<dyn Catalog>, options: &FsOptions) -> Result<PoolFs> {
        let host = self.fences.then(|| HOSTS.fetch_add(1, Relaxed));
        let member = |(index, disk): (usize, &TestDisk)| {
            let (own, others) = (disk.clone(), Arc::clone(&self.others));
            let open: OpenMember = Box::new(move |namespace| {
                let disk = match namespace {
                    Some(uuid) => {
                        lock(&others).get(&uuid).cloned().ok_or(IoError::Offline("removed".into()))?
                    }
                    None => own.clone(),
                };
                if disk.gone.load(Relaxed) {
                    return Err(IoError::Unreachable("the disk is gone".into()));
                }
                let disk = host.map_or_else(|| disk.disk.clone(), |host| disk.disk.for_host(host));
                Ok(Arc::new(disk.as_remote()) as Arc<dyn BlockDevice>)
            });
            (format!("disk {index}"), open)
        };
        let members = self.disks.iter().enumerate().map(member).collect();
        PoolFs::open(catalog, self.uuid, members, options)
    }

    /// Opens it.
    ///
    /// # Errors
    /// Those of [`PoolFs::open`].
    pub fn open(&self) -> Result<PoolFs> {
        self.open_by(Arc::clone(&self.catalog), &TestFs::options())
    }

    fn snapshots_of(&self) -> FsSnapshots<'_> {
        FsSnapshots { catalog: &*self.catalog, uuid: self.uuid, name: "test".into() }
    }

    /// Makes a snapshot; the revision that it is as of.
    ///
    /// # Errors
    /// There is one of this name, or a program that does not know snapshots.
    pub fn make_snapshot(&self, name: &str) -> Result<u64> {
        self.snapshots_of().make(name).map(|made| made.at)
    }

    /// All snapshots.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn snapshots(&self) -> Result<Vec<FsSnapshot>> {
        self.snapshots_of().list()
    }

    /// Begins to remove a snapshot: [`PoolFs::empty_removed`] goes on.
    ///
    /// # Errors
    /// No snapshot has this name, or a host has it mounted and `force` is not set.
    pub fn begin_snapshot_removal(&self, name: &str, force: bool) -> Result<()> {
        self.snapshots_of().begin_removal(name, force)
    }

    /// Opens a snapshot.
    ///
    /// # Errors
    /// Those of [`PoolFs::open`].
    pub fn open_snapshot(&self, name: &str) -> Result<PoolFs> {
        let options = FsOptions { snapshot: Some(name.to_owned()), ..TestFs::options() };
        self.open_by(Arc::clone(&self.catalog), &options)
    }

    fn quotas_of(&self) -> FsQuotas<'_> {
        FsQuotas { catalog: &*self.catalog, uuid: self.uuid, name: "test".into() }
    }

    /// Changes the limits of a user or a group.
    ///
    /// # Errors
    /// The catalog cannot be changed, or a program has it mounted that does not know quotas.
    pub fn set_quota(&self, owner: Owner, bytes: Option<u64>, files: Option<u64>) -> Result<FsQuota> {
        self.quotas_of().set(owner, LimitChange { bytes: Some(bytes), files: Some(files) })
    }

    /// As [`set_quota`](Self::set_quota), by a catalog of the caller such as one that fails.
    ///
    /// # Errors
    /// The same.
    pub fn set_quota_by(&self, catalog: &dyn Catalog, owner: Owner, change: LimitChange) -> Result<FsQuota> {
        FsQuotas { catalog, uuid: self.uuid, name: "test".into() }.set(owner, change)
    }

    /// What users and groups have, and may have.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn quotas(&self) -> Result<Vec<FsQuota>> {
        self.quotas_of().list()
    }

    /// Counts anew what users and groups have.
    ///
    /// # Errors
    /// The catalog cannot be changed.
    pub fn recount(&self) -> Result<bool> {
        self.quotas_of().recount()
    }

    /// Checks it.
    ///
    /// # Errors
    /// Those of [`check`].
    pub fn check(&self) -> Result<FsReport> {
        check(&*self.catalog, self.uuid, "test")
    }
}

impl PoolFs {
    /// Ends as a host does that is lost: what was not committed is gone, and its session is there until its
    /// lease has run out.
    pub fn lose(self) {
        self.crash();
    }

    /// Makes up the books of segments now, and removes what lost hosts leave.
    ///
    /// # Errors
    /// `EIO` if the catalog cannot be changed.
    pub fn tidy(&self) -> std::result::Result<(), Errno> {
        self.session().clean()
    }

    /// Begins to fence, if no earlier program has it mounted; and ends what lost sessions have left registered.
    ///
    /// # Errors
    /// `EIO` if the catalog cannot be changed.
    pub fn begin_fencing(&self) -> std::result::Result<(), Errno> {
        self.session().begin_fencing()?;
        self.session().sweep_registrations()
    }

    /// Directories whose lease it has.
    pub fn leased(&self) -> usize {
        self.session().leases.held()
    }

    /// Number of its session.
    pub fn number(&self) -> u64 {
        self.session().store.session()
    }

    /// Frees what only snapshots have that are being removed.
    ///
    /// # Errors
    /// `EIO` if the catalog cannot be changed.
    pub fn empty_removed(&self) -> std::result::Result<(), Errno> {
        self.session().empty_removed()
    }

    /// Moves content out of segments that are mostly dead; how many segments became free.
    ///
    /// # Errors
    /// `EIO` if the catalog or the members cannot be changed.
    pub fn compact(&self) -> std::result::Result<usize, Errno> {
        self.session().compact_now()
    }

    /// A member is on this disk from now on. It moves, or what it had is lost.
    ///
    /// # Errors
    /// `EIO` if the catalog cannot be changed.
    pub fn place_member(&self, member: usize, disk: Uuid, moves: bool) -> std::result::Result<(), Errno> {
        self.session().place_member(member, disk, moves)
    }

    /// Writes what a member is to have to where it is now.
    ///
    /// # Errors
    /// `EIO` if the catalog or the member cannot be changed.
    pub fn fill(&self, member: usize) -> std::result::Result<FillProgress, Errno> {
        self.session().fill(member, None, &mut |_| {})
    }

    /// It has as many segments from now on.
    ///
    /// # Errors
    /// `EIO` if the catalog cannot be changed.
    pub fn grow(&self, segments: u32) -> std::result::Result<(), Errno> {
        self.session().grow(segments)
    }

    /// Reads everything, and repairs it.
    ///
    /// # Errors
    /// `EIO` if the catalog cannot be read.
    pub fn scrub(&self) -> std::result::Result<ScrubReport, Errno> {
        self.session().scrub(None, &mut |_| {})
    }

    /// Repairs what reads have found to be wrong; how many stripes were.
    ///
    /// # Errors
    /// `EIO` if the catalog or the members cannot be changed.
    pub fn repair(&self) -> std::result::Result<usize, Errno> {
        self.session().repair_noted()
    }

    /// Tries now to open members that are missing.
    pub fn find_members(&self) {
        self.session().members.open_again();
    }

    /// Bytes of writes that are in memory.
    pub fn unwritten(&self) -> usize {
        self.session().dirty.load(Relaxed)
    }

    /// The lease of its session, to end it as if it had run out.
    pub fn lease(&self) -> longhaul_catalog::LeaseId {
        self.session().store.lease()
    }

    /// As if the lease of its session had run out by the clock of this host.
    pub fn outlive_lease(&self) {
        self.session().store.kept(longhaul_engine::now());
    }
}
