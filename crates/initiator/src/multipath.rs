//! A namespace that is reached over several paths: addresses of one subsystem, used together.
//!
//! Each path is a [`RemoteDevice`], an NVMe association of its own: its connections, its tuner, its
//! reconnects. Above them, each thread has one queue of requests and sends each request over the path
//! on which it is expected to complete first (`schedule`).
//!
//! Invariants:
//! - all paths lead to one namespace: NQN, NSID, UUID, NGUID, EUI64 and block size are the same; a
//!   path to another one is never used;
//! - a request is with one path at a time. That of a lost path goes to another one: a read at once, a
//!   change when nothing of the lost association can have an effect any more (`lost`), so that it
//!   lands before all later changes. One that a target has refused since it does not serve the
//!   namespace had no effect, and goes to another path at once;
//! - requests are sent over paths to targets that serve the namespace (ANA); without one they wait;
//! - once a target has taken the namespace over, no other one is believed that has said before, and
//!   still says, that it serves it: it may have been overtaken without knowing that yet, and read from
//!   memory what has changed. Such a path is *doubted*, and not used before its target takes over itself
//!   or has said so for long enough;
//! - a flush completes when all that was written before it is durable, whichever paths it took: every
//!   controller that has completed changes since is flushed;
//! - `generation` changes before a flush completes if what was not flushed may have been lost.

mod connect;
mod io;
mod lost;
mod schedule;
mod thread;

pub use io::MultipathIo;
pub use schedule::PathState;

use crate::controller::{Controller, Outage};
use crate::device::RemoteDevice;
use crate::error::Result;
use crate::info::NamespaceInfo;
use crate::io::RemoteIo;
use crate::options::Options;
use crate::path::{PathReport, Traffic};
use crate::uri::{PATHS_MAX, Uri};
use futures_channel::oneshot;
use longhaul_block::{BlockDevice, BlockIo, DeviceInfo, IoError, Open};
use longhaul_engine::now;
use longhaul_wire::log::AnaState;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Takeovers of several paths within this time are one: they lead to one target.
const TOGETHER: Duration = Duration::from_secs(2);

/// A remote namespace over several paths.
pub struct MultipathDevice {
    shared: Arc<Shared>,
    /// The tasks of the service thread end with it.
    _tasks: Vec<oneshot::Sender<()>>,
}

/// What the threads and the tasks of a device share.
pub(crate) struct Shared {
    name: String,
    options: Options,
    paths: Vec<Path>,
    /// Number of paths that have been connected.
    connected: AtomicU64,
    /// When the target of each path has taken the namespace over, and the paths, as bits, that are
    /// doubted since a later takeover.
    takeovers: Mutex<[Option<Instant>; PATHS_MAX]>,
    doubted: AtomicU64,
    /// The namespace, as the first path had it.
    namespace: OnceLock<NamespaceInfo>,
}

/// One address.
struct Path {
    address: String,
    uri: Uri,
    device: OnceLock<Arc<RemoteDevice>>,
    /// Changes completed over it, and how many of them a flush covers.
    written: AtomicU64,
    flushed: AtomicU64,
    /// Requests that its target has refused, so that others took them.
    refused: AtomicU64,
    /// Why it has not been connected.
    trouble: Mutex<Option<String>>,
}

/// A path, as it is at a moment.
#[derive(Clone, Debug)]
pub struct PathStatus {
    /// Host and port, as in the URI.
    pub address: String,
    /// What it can be used for.
    pub state: PathState,
    /// Round trip: the least one measured, or that of connecting. `None` before the first connection.
    pub round_trip: Option<Duration>,
    /// What its tuner has measured; `None` before the first I/O.
    pub report: Option<PathReport>,
    /// The I/O over it since the device was opened.
    pub traffic: Traffic,
    /// How often its connection was lost.
    pub disconnects: u64,
    /// Why there is no connection.
    pub why: Option<String>,
}

impl Path {
    fn controller(&self) -> Option<&Arc<Controller>> {
        self.device.get().map(|device| &device.controller)
    }

    /// Whether I/O can be sent over it.
    fn is_usable(&self) -> bool {
        self.controller().is_some_and(|controller| controller.usable_since().is_some())
    }

    /// Changes when requests that were sent over it may have been done over another one.
    fn hops(&self, io: &RemoteIo) -> u64 {
        io.pool.disconnects() + self.refused.load(Ordering::Acquire)
    }

    fn trouble(&self) -> MutexGuard<'_, Option<String>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self, shared: &Shared, number: usize) -> PathStatus {
        let address = self.address.clone();
        match self.device.get() {
            Some(device) => {
                let status = device.path_status();
                let state = match status.state {
                    PathState::Lost => PathState::Lost,
                    _ => shared.state(number, device.controller.access()),
                };
                PathStatus { address, state, ..status }
            }
            None => PathStatus {
                address,
                state: PathState::Lost,
                round_trip: None,
                report: None,
                traffic: Traffic::default(),
                disconnects: 0,
                why: self.trouble().clone(),
            },
        }
    }

    /// Something was changed over it.
    fn changed(&self) {
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    /// The number of changes that a flush over it has to cover, if there are any.
    fn unflushed(&self) -> Option<u64> {
        let written = self.written.load(Ordering::Acquire);
        (written > self.flushed.load(Ordering::Acquire)).then_some(written)
    }
}

impl Shared {
    /// The paths that have been connected, with their numbers.
    fn controllers(&self) -> impl Iterator<Item = (usize, &Arc<Controller>)> {
        self.paths.iter().enumerate().filter_map(|(number, path)| Some((number, path.controller()?)))
    }

    /// Since when there is no path that can be used.
    fn away_since(&self) -> Option<Instant> {
        let mut latest = None;
        for (_, controller) in self.controllers() {
            if controller.usable_since().is_some() {
                return None;
            }
            // One that is lost for good counts as lost for ever.
            latest = latest.max(controller.unusable_since());
        }
        latest
    }

    /// The target of a path takes the namespace over; its controller is being changed. Those that have said before that they serve it
    /// are doubted; and so is this one while any of them is there and says it still, since what it says
    /// may be old.
    fn taken_over(&self, number: usize) {
        let mut takeovers = self.takeovers.lock().unwrap_or_else(PoisonError::into_inner);
        takeovers[number] = Some(now());
        let earlier =
            |at: &Option<Instant>| at.is_none_or(|at| now().saturating_duration_since(at) >= TOGETHER);
        let mut contested = false;
        for (other, path) in self.paths.iter().enumerate() {
            if other != number && earlier(&takeovers[other]) {
                contested |= path.is_usable();
                self.doubt(other);
                path.controller().inspect(|controller| controller.wake());
            }
        }
        match contested {
            true => self.doubt(number),
            false => self.trust(number),
        }
    }

    /// A path is not used before its target has been heard to serve the namespace for long enough.
    fn doubt(&self, number: usize) {
        self.doubted.fetch_or(1 << number, Ordering::AcqRel);
    }

    fn trust(&self, number: usize) {
        self.doubted.fetch_and(!(1 << number), Ordering::AcqRel);
    }

    fn is_doubted(&self, number: usize) -> bool {
        self.doubted.load(Ordering::Acquire) >> number & 1 == 1
    }

    /// What a connected path can be used for whose target reports this.
    fn state(&self, number: usize, access: AnaState) -> PathState {
        match self.is_doubted(number) {
            true => PathState::Inaccessible,
            false => PathState::of(access),
        }
    }

    /// Whether no path will ever be connected again.
    fn is_over(&self) -> bool {
        self.controllers().all(|(_, controller)| controller.check().is_err())
    }

    /// Why that is so.
    fn why_over(&self) -> Option<IoError> {
        let why = || self.controllers().find_map(|(_, controller)| controller.check().err());
        self.is_over().then(why).flatten().map(IoError::from)
    }

    fn first(&self) -> Option<&Arc<RemoteDevice>> {
        let there = || self.paths.iter().filter_map(|path| path.device.get());
        let usable = |device: &&Arc<RemoteDevice>| device.controller.usable_since().is_some();
        let connected = |device: &&Arc<RemoteDevice>| device.outage().is_none();
        there().find(usable).or_else(|| there().find(connected)).or_else(|| there().next())
    }
}

impl MultipathDevice {
    /// Connects to the namespace at all addresses of `uri`. One that cannot be reached is tried again
    /// for as long as the device is open.
    ///
    /// # Errors
    /// No address can be reached, or two of them lead to different namespaces.
    pub async fn connect(uri: &Uri, options: Options) -> Result<Arc<MultipathDevice>> {
        let (shared, tasks) = connect::connect(uri, options).await?;
        Ok(Arc::new(MultipathDevice { shared, _tasks: tasks }))
    }

    /// As [`connect`](Self::connect), for code that runs on no engine.
    ///
    /// # Errors
    /// As there.
    pub fn connect_blocking(uri: &Uri, options: Options) -> Result<Arc<MultipathDevice>> {
        let (shared, tasks) = connect::connect_blocking(uri, options)?;
        Ok(Arc::new(MultipathDevice { shared, _tasks: tasks }))
    }

    /// Each path, in the order of the URI.
    pub fn paths(&self) -> Vec<PathStatus> {
        let paths = self.shared.paths.iter().enumerate();
        paths.map(|(number, path)| path.status(&self.shared, number)).collect()
    }

    /// The devices of the paths that have been connected.
    pub fn devices(&self) -> Vec<Arc<RemoteDevice>> {
        self.shared.paths.iter().filter_map(|path| path.device.get().cloned()).collect()
    }

    /// How often a path was lost and had to be connected to again, all paths together.
    pub fn disconnects(&self) -> u64 {
        self.shared.controllers().map(|(_, controller)| controller.disconnects()).sum()
    }

    /// Why there is no path that can be used; nothing while there is one.
    pub fn outage(&self) -> Option<Outage> {
        let outages: Option<Vec<Outage>> =
            self.shared.controllers().map(|(_, controller)| controller.unusable_why()).collect();
        let outages = outages?;
        let for_good = outages.iter().all(|outage| outage.for_good);
        let why: Vec<String> = outages.into_iter().map(|outage| outage.why).collect();
        Some(Outage { why: why.join("; "), for_good })
    }

    /// Shuts all paths down and waits until they have. I/O that is under way fails.
    pub async fn close(&self) {
        futures_util::future::join_all(self.devices().iter().map(|device| device.close())).await;
    }

    /// Opens it on the calling engine thread.
    ///
    /// # Errors
    /// No path can be opened.
    pub async fn open_io(&self) -> Result<Rc<MultipathIo>> {
        MultipathIo::open(&self.shared).await.map(Rc::new)
    }
}

impl std::fmt::Debug for MultipathDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MultipathDevice({})", self.shared.name)
    }
}

impl BlockDevice for MultipathDevice {
    fn info(&self) -> DeviceInfo {
        let name = self.shared.name.clone();
        match self.shared.first() {
            Some(device) => DeviceInfo { name, ..device.info() },
            None => unreachable!("a device has a path that was connected"),
        }
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move { Ok(self.open_io().await? as Rc<dyn BlockIo>) })
    }
}
