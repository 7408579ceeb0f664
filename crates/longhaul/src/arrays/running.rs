//! An array that this process runs.

use super::control::{ArrayClient, ArrayServer, Request};
use super::kept::LastKnown;
use super::record::ArrayRecord;
use crate::exit::{Exit, Failure};
use crate::names::Opener;
use longhaul_array::{ArrayDevice, ArrayError, Label, Memory, Options, Status, assemble_with, survey};
use longhaul_block::{BlockDevice, DeviceInfo};
use longhaul_engine::{Config, Thread};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;
use uuid::Uuid;

/// How often devices that could not be opened, or were given up, are tried again.
const SEEK: Duration = Duration::from_secs(10);

/// A running array, until it is dropped or stopped.
pub(crate) struct Running {
    /// What is asked for over the control socket ends before the array does.
    server: Option<ArrayServer>,
    device: Arc<ArrayDevice>,
    thread: Thread,
    stopped: AtomicBool,
    /// Its members as they were named and found.
    members: Vec<(String, DeviceInfo)>,
    /// Ends the search for devices that are missing, when dropped.
    _search_end: Sender<()>,
}

/// The devices of an array, as far as it has to look for them.
struct MissingMembers {
    array: Uuid,
    /// Names that could not be opened, or did not say what they are.
    missing: Vec<String>,
    /// What the others have said that they are.
    known: HashMap<String, Uuid>,
    /// Names of which it was reported why they cannot be used.
    reported: HashSet<String>,
}

impl MissingMembers {
    /// Names to open anew for members that need it: theirs, and those of which
    /// nothing is known, such as what was added since.
    fn names(&self, forsaken: &[Uuid]) -> Vec<String> {
        let mut names = self.missing.clone();
        if !forsaken.is_empty()
            && let Ok(record) = ArrayRecord::find(&self.array.to_string())
        {
            let may_be = |name: &String| self.known.get(name).is_none_or(|uuid| forsaken.contains(uuid));
            names.extend(record.devices.into_iter().filter(may_be));
            names.sort_unstable();
            names.dedup();
        }
        names
    }
}

/// Offers an array its devices that were out of reach when it was started, or for
/// so long that they were given up, once they are back.
fn search_members(
    mut search: MissingMembers,
    array: &Arc<ArrayDevice>,
    thread: longhaul_engine::Handle,
    opener: Opener,
) -> Sender<()> {
    let (until, ended) = channel();
    let array = Arc::downgrade(array);
    std::thread::spawn(move || {
        while ended.recv_timeout(SEEK) == Err(RecvTimeoutError::Timeout) {
            let Some(asked) = array.upgrade() else { return };
            let forsaken = thread.spawn(move || async move { asked.unattached_members().await }).wait();
            // The array has ended.
            let Ok(Ok(forsaken)) = forsaken else { return };
            for name in search.names(&forsaken) {
                let Ok(device) = opener.open(&name) else { continue };
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
                    // Once, however often it is tried.
                    Err(e) if search.reported.insert(name.clone()) => tracing::warn!("{name}: {e}"),
                    Err(_) => {}
                }
                // What has failed may go well the next time; what is refused does not.
                if !matches!(offered, Err(ArrayError::Io(_) | ArrayError::Device { .. })) {
                    search.missing.retain(|missing| *missing != name);
                }
            }
        }
    });
    until
}

/// Opens devices at the same time. What cannot be opened is reported, and left
/// out.
pub(crate) fn open_members(names: &[String], opener: &Opener) -> Vec<(String, Arc<dyn BlockDevice>)> {
    let open = |name: &String| match opener.open(name) {
        Ok(device) => Some((name.clone(), device.block())),
        Err(failure) => {
            tracing::warn!("{name}: {}", failure.message);
            None
        }
    };
    std::thread::scope(|scope| {
        let opening: Vec<_> = names.iter().map(|name| scope.spawn(move || open(name))).collect();
        opening.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
    })
}

/// Reads what devices say of themselves.
pub(crate) fn labels(
    devices: &[Arc<dyn BlockDevice>],
    config: &Config,
) -> Result<Vec<Result<Option<Label>, ArrayError>>, Failure> {
    let thread = Thread::start("longhaul-array", config.clone()).map_err(Failure::failed)?;
    let devices = devices.to_vec();
    let found = thread.handle().spawn(move || async move { survey(&devices).await }).wait();
    found.map_err(Failure::failed)
}

/// How the array of a record is, without running it: nothing is written.
pub(crate) fn look(record: &ArrayRecord, opener: &Opener) -> Result<Status, Failure> {
    let members = open_members(&record.devices, opener);
    if members.is_empty() {
        return Err(unusable(record));
    }
    let devices: Vec<Arc<dyn BlockDevice>> = members.into_iter().map(|(_, device)| device).collect();
    let thread = Thread::start("longhaul-array", opener.config()).map_err(Failure::failed)?;
    let array = record.uuid;
    let looked = thread
        .handle()
        .spawn(move || async move { longhaul_array::look(&devices, array, None).await })
        .wait();
    Ok(looked.map_err(Failure::failed)??)
}

fn unusable(record: &ArrayRecord) -> Failure {
    let why = format!("none of the {} devices of array {} can be used", record.devices.len(), record.name);
    Failure::new(Exit::Unreachable, why)
}

impl Running {
    /// Runs the array of a record.
    pub(crate) fn open(record: &ArrayRecord, opener: &Opener) -> Result<Running, Failure> {
        Running::open_as(record, opener, false)
    }

    /// The same; `degraded` if a person has said that it is to begin though members
    /// that are not there may have gone on without the others.
    pub(crate) fn open_as(record: &ArrayRecord, opener: &Opener, degraded: bool) -> Result<Running, Failure> {
        if let Some(reply) = ArrayClient::ask(record, &Request::Status) {
            if let Err(failure) = reply
                && failure.exit == Exit::TimedOut
            {
                return Err(failure);
            }
            let why = format!("array {} runs on this host already, in another process", record.name);
            return Err(Failure::new(Exit::Refused, why));
        }
        let members = open_members(&record.devices, opener);
        let devices: Vec<Arc<dyn BlockDevice>> =
            members.iter().map(|(_, device)| Arc::clone(device)).collect();
        let (mut ours, mut missing, mut known) = (Vec::new(), record.devices.clone(), HashMap::new());
        let mut found = Vec::new();
        missing.retain(|name| !members.iter().any(|(opened, _)| opened == name));
        for ((name, device), label) in members.iter().zip(labels(&devices, &opener.config())?) {
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
        let search = MissingMembers { array: record.uuid, missing, known, reported: HashSet::new() };
        let mut running = Running::start(record, ours, search, opener, degraded)?;
        running.members = found;
        Ok(running)
    }

    /// The members that were there when it was started, by the names that a
    /// person gave them.
    pub(crate) fn members(&self) -> &[(String, DeviceInfo)] {
        &self.members
    }

    fn start(
        record: &ArrayRecord,
        devices: Vec<Arc<dyn BlockDevice>>,
        search: MissingMembers,
        opener: &Opener,
        degraded: bool,
    ) -> Result<Running, Failure> {
        let thread = Thread::start("longhaul-array", opener.config()).map_err(Failure::failed)?;
        // A member that is needed is waited for as long as its initiator tries.
        let needed_timeout = opener.options.ctrl_loss.unwrap_or(Duration::MAX);
        let options = Options { needed_timeout, degraded, ..record.care.options() };
        let memory: Arc<dyn Memory> = Arc::new(LastKnown::of(record));
        let assemble =
            move || async move { assemble_with(&devices, options, Uuid::new_v4(), Some(memory)).await };
        let assembled = thread.handle().spawn(assemble).wait();
        let device = assembled.map_err(Failure::failed)??;
        let server = match ArrayServer::start(record.clone(), Arc::clone(&device), opener.clone()) {
            Ok(server) => Some(server),
            Err(e) => {
                tracing::warn!("array {}: nobody can ask for its status: {}", record.name, e.message);
                None
            }
        };
        let search_end = search_members(search, &device, thread.handle(), opener.clone());
        let (stopped, members) = (AtomicBool::new(false), Vec::new());
        Ok(Running { server, device, thread, stopped, members, _search_end: search_end })
    }

    pub(crate) fn device(&self) -> &Arc<ArrayDevice> {
        &self.device
    }

    /// Runs something that waits, from a thread without an engine.
    pub(crate) fn wait<T, F>(
        &self,
        ask: impl FnOnce(Arc<ArrayDevice>) -> F + Send + 'static,
    ) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let device = Arc::clone(&self.device);
        self.thread.handle().spawn(move || ask(device)).wait().map_err(Failure::failed)
    }

    /// Stops it in order.
    pub(crate) fn stop(&self) -> Result<(), Failure> {
        if self.stopped.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        Ok(self.wait(|device| async move { device.stop().await })??)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.server.take());
        if let Err(failure) = self.stop() {
            tracing::warn!("{}", failure.message);
        }
    }
}
