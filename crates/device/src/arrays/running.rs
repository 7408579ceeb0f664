//! An array that this process runs.

use super::control::{ArrayClient, ArrayRequest, ArrayServer};
use super::last_known::LastKnown;
use super::record::ArrayRecord;
use crate::error::{Error, ErrorKind, Result};
use crate::opener::Opener;
use longhaul_array::{
    ArrayDevice, ArrayError, Label, Memory, Options, Status, StoodStill, assemble_with, survey,
};
use longhaul_block::{BlockDevice, DeviceInfo};
use longhaul_engine::{Config, Thread};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;
use uuid::Uuid;

/// Interval at which devices that could not be opened, or were given up, are tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// An array that this process runs, until it is dropped or stopped.
pub struct RunningArray {
    /// Dropped before the array is stopped, so that no request reaches a stopped array.
    server: Option<ArrayServer>,
    device: Arc<ArrayDevice>,
    thread: Thread,
    stopped: AtomicBool,
    /// Members found at the start: the name that each was opened by, and its properties.
    members: Vec<(String, DeviceInfo)>,
    /// Ends the thread of [`search_members`] when dropped.
    _search_end: Sender<()>,
}

/// The devices that an array needs and has not opened.
struct MissingMembers {
    /// The array, as it was when it was opened.
    array: ArrayRecord,
    /// Names that could not be opened, or whose superblock could not be read.
    missing: Vec<String>,
    /// Member UUIDs of the other names, from their superblocks.
    known: HashMap<String, Uuid>,
    /// Names whose error was reported, which is done once.
    reported: HashSet<String>,
}

impl MissingMembers {
    /// Names to open again for the members `unattached`: their own, and those of unknown members,
    /// such as devices that were added since the start.
    fn names(&self, unattached: &[Uuid]) -> Vec<String> {
        let mut names = self.missing.clone();
        if !unattached.is_empty()
            && let Some(record) = self.array.reread()
        {
            let may_be = |name: &String| self.known.get(name).is_none_or(|uuid| unattached.contains(uuid));
            names.extend(record.devices.into_iter().filter(may_be));
            names.sort_unstable();
            names.dedup();
        }
        names
    }
}

/// Starts a thread that offers an array the devices that were unreachable when it was started, or
/// were given up later, once they can be opened. Dropping the result ends the thread.
fn search_members(
    mut search: MissingMembers,
    array: &Arc<ArrayDevice>,
    thread: longhaul_engine::Handle,
    opener: Opener,
) -> Sender<()> {
    let (until, ended) = channel();
    let array = Arc::downgrade(array);
    std::thread::spawn(move || {
        while ended.recv_timeout(RETRY_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let Some(running) = array.upgrade() else { return };
            let unattached = thread.spawn(move || async move { running.unattached_members().await }).wait();
            // An error means that the array has ended.
            let Ok(Ok(unattached)) = unattached else { return };
            for name in search.names(&unattached) {
                let Ok(device) = opener.open_blocking(&name) else { continue };
                let (Some(array), device) = (array.upgrade(), device.block()) else { return };
                let offered = thread.spawn(move || async move { array.offer(device).await }).wait();
                let Ok(offered) = offered else { return };
                match &offered {
                    Ok(taken) => {
                        search.reported.remove(&name);
                        if *taken {
                            tracing::info!("{name} is back");
                        }
                    }
                    // Reported once, not at each retry.
                    Err(e) if search.reported.insert(name.clone()) => tracing::warn!("{name}: {e}"),
                    Err(_) => {}
                }
                // I/O errors may be transient and are retried; a refusal is final.
                if !matches!(offered, Err(ArrayError::Io(_) | ArrayError::Device { .. })) {
                    search.missing.retain(|missing| *missing != name);
                }
            }
        }
    });
    until
}

/// Opens devices in parallel. Those that cannot be opened are logged and left out.
pub fn open_members(names: &[String], opener: &Opener) -> Vec<(String, Arc<dyn BlockDevice>)> {
    let open = |name: &String| match opener.open_blocking(name) {
        Ok(device) => Some((name.clone(), device.block())),
        Err(e) => {
            tracing::warn!("{name}: {e}");
            None
        }
    };
    std::thread::scope(|scope| {
        let opening: Vec<_> = names.iter().map(|name| scope.spawn(move || open(name))).collect();
        opening.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
    })
}

/// Reads the superblocks of devices; `None` for a device that has no superblock.
///
/// # Errors
/// No engine with this configuration can be started. An invalid superblock gives an error in its
/// place.
pub fn read_labels(
    devices: &[Arc<dyn BlockDevice>],
    config: &Config,
) -> Result<Vec<std::result::Result<Option<Label>, ArrayError>>> {
    let thread = Thread::start("longhaul-array", config.clone()).map_err(Error::failed)?;
    let devices = devices.to_vec();
    let found = thread.handle().spawn(move || async move { survey(&devices).await }).wait();
    found.map_err(Error::failed)
}

/// Reads the status of an array from its members without running it: nothing is written.
///
/// # Errors
/// None of the members can be opened, or they are not members of one array.
pub fn read_status(record: &ArrayRecord, opener: &Opener) -> Result<Status> {
    let members = open_members(&record.devices, opener);
    if members.is_empty() {
        return Err(unusable(record));
    }
    let devices: Vec<Arc<dyn BlockDevice>> = members.into_iter().map(|(_, device)| device).collect();
    let thread = Thread::start("longhaul-array", opener.config()).map_err(Error::failed)?;
    let array = record.uuid;
    let status = thread
        .handle()
        .spawn(move || async move { longhaul_array::look(&devices, array, None).await })
        .wait();
    Ok(status.map_err(Error::failed)??)
}

pub(super) fn unusable(record: &ArrayRecord) -> Error {
    let why = format!("none of the {} devices of array {} can be used", record.devices.len(), record.name);
    Error::new(ErrorKind::Unreachable, why)
}

/// Refuses an array that another process of this host runs.
pub(super) fn check_not_here(record: &ArrayRecord) -> Result<()> {
    match ArrayClient::ask(record, &ArrayRequest::Status) {
        None => Ok(()),
        Some(Err(e)) if e.kind() == ErrorKind::TimedOut => Err(e),
        Some(_) => {
            let why = format!("array {} runs on this host already, in another process", record.name);
            Err(Error::new(ErrorKind::Refused, why))
        }
    }
}

impl RunningArray {
    /// Assembles and runs the array of a record.
    ///
    /// # Errors
    /// The array runs in another process of this host, or cannot be assembled.
    pub fn open(record: &ArrayRecord, opener: &Opener) -> Result<RunningArray> {
        RunningArray::open_as(record, opener, false)
    }

    /// As [`Self::open`]; with `degraded`, also if missing members may hold newer data.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn open_as(record: &ArrayRecord, opener: &Opener, degraded: bool) -> Result<RunningArray> {
        check_not_here(record)?;
        let opener = &opener.clone().for_array();
        let members = open_members(&record.devices, opener);
        RunningArray::open_with(record, members, opener, degraded, None)
    }

    /// As [`Self::open_as`], with members that are open, by an opener for this array, and sessions that
    /// have ended.
    pub(super) fn open_with(
        record: &ArrayRecord,
        members: Vec<(String, Arc<dyn BlockDevice>)>,
        opener: &Opener,
        degraded: bool,
        stood_still: Option<StoodStill>,
    ) -> Result<RunningArray> {
        let devices: Vec<Arc<dyn BlockDevice>> =
            members.iter().map(|(_, device)| Arc::clone(device)).collect();
        let (mut ours, mut missing, mut known) = (Vec::new(), record.devices.clone(), HashMap::new());
        let mut found = Vec::new();
        missing.retain(|name| !members.iter().any(|(opened, _)| opened == name));
        for ((name, device), label) in members.iter().zip(read_labels(&devices, &opener.config())?) {
            match label {
                Ok(Some(label)) if label.array == record.uuid && label.current => {
                    known.insert(name.clone(), label.member);
                    found.push((name.clone(), device.info()));
                    ours.push(Arc::clone(device))
                }
                Ok(_) => tracing::warn!("{name} is not a member of array {} any more", record.name),
                Err(e) => {
                    tracing::warn!("{e}");
                    missing.push(name.clone());
                }
            }
        }
        if ours.is_empty() {
            return Err(unusable(record));
        }
        let mut updated = record.clone();
        updated.members.extend(known.iter().map(|(name, member)| (name.clone(), *member)));
        let search = MissingMembers { array: record.clone(), missing, known, reported: HashSet::new() };
        let mut running = RunningArray::start(record, ours, search, opener, (degraded, stood_still))?;
        running.members = found;
        if updated != *record
            && let Err(e) = updated.save()
        {
            tracing::warn!("array {}: cannot record which member is on which device: {e}", record.name);
        }
        Ok(running)
    }

    /// The members found at the start: the name that each was opened by, and its properties.
    pub fn members(&self) -> &[(String, DeviceInfo)] {
        &self.members
    }

    fn start(
        record: &ArrayRecord,
        devices: Vec<Arc<dyn BlockDevice>>,
        search: MissingMembers,
        opener: &Opener,
        (degraded, stood_still): (bool, Option<StoodStill>),
    ) -> Result<RunningArray> {
        let thread = Thread::start("longhaul-array", opener.config()).map_err(Error::failed)?;
        // The array waits for a member that it needs as long as the initiator tries to connect.
        let needed_timeout = opener.options.ctrl_loss.unwrap_or(Duration::MAX);
        let options = Options { needed_timeout, degraded, stood_still, ..record.settings.options() };
        let memory: Arc<dyn Memory> = Arc::new(LastKnown::of(record));
        let assemble =
            move || async move { assemble_with(&devices, options, Uuid::new_v4(), Some(memory)).await };
        let assembled = thread.handle().spawn(assemble).wait();
        let device = assembled.map_err(Error::failed)??;
        let server = match ArrayServer::start(record.clone(), Arc::clone(&device), opener.clone()) {
            Ok(server) => Some(server),
            Err(e) => {
                tracing::warn!(
                    "array {}: cannot serve its control socket, so longhaul array status cannot reach it: {e}",
                    record.name,
                );
                None
            }
        };
        let search_end = search_members(search, &device, thread.handle(), opener.clone());
        let (stopped, members) = (AtomicBool::new(false), Vec::new());
        Ok(RunningArray { server, device, thread, stopped, members, _search_end: search_end })
    }

    /// The array as a block device.
    pub fn device(&self) -> &Arc<ArrayDevice> {
        &self.device
    }

    /// Runs an asynchronous call on the array's engine and blocks until it is done; for threads
    /// without an engine.
    ///
    /// # Errors
    /// The array's engine has ended.
    pub fn wait<T, F>(&self, call: impl FnOnce(Arc<ArrayDevice>) -> F + Send + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let device = Arc::clone(&self.device);
        self.thread.handle().spawn(move || call(device)).wait().map_err(Error::failed)
    }

    /// Stops the array cleanly; a second call does nothing. It blocks until the array has stopped.
    ///
    /// # Errors
    /// Not everything could be made durable.
    pub fn stop(&self) -> Result<()> {
        if self.stopped.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        Ok(self.wait(|device| async move { device.stop().await })??)
    }
}

impl Drop for RunningArray {
    fn drop(&mut self) {
        drop(self.server.take());
        if let Err(e) = self.stop() {
            tracing::warn!("{e}");
        }
    }
}
