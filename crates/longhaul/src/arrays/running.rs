//! An array that this process runs.

use super::control::{Client, Request, Server};
use super::record::Record;
use crate::exit::{Exit, Failure};
use crate::names::Opener;
use longhaul_array::{ArrayDevice, ArrayError, Label, Options, assemble, survey};
use longhaul_block::{BlockDevice, DeviceInfo};
use longhaul_engine::{Config, Thread};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How often devices that could not be opened are tried again.
const SEEK: Duration = Duration::from_secs(10);

/// A running array, until it is dropped or stopped.
pub(crate) struct Running {
    /// What is asked for over the control socket ends before the array does.
    server: Option<Server>,
    device: Arc<ArrayDevice>,
    thread: Thread,
    stopped: AtomicBool,
    /// Its members as they were named and found.
    members: Vec<(String, DeviceInfo)>,
    /// Ends the search for devices that are missing, when dropped.
    _seeking: Option<Sender<()>>,
}

/// Offers an array its devices that were out of reach, once they are back.
fn seek(
    mut missing: Vec<String>,
    array: &Arc<ArrayDevice>,
    thread: longhaul_engine::Handle,
    opener: Opener,
) -> Sender<()> {
    let (until, ended) = channel();
    let array = Arc::downgrade(array);
    std::thread::spawn(move || {
        while !missing.is_empty() && ended.recv_timeout(SEEK) == Err(RecvTimeoutError::Timeout) {
            missing.retain(|name| {
                let Ok(device) = opener.open(name) else { return true };
                let Some(array) = array.upgrade() else { return false };
                let device = device.block();
                let offered = thread.spawn(move || async move { array.offer(device).await }).wait();
                match offered {
                    Ok(Ok(_)) => tracing::info!("{name} is back"),
                    Ok(Err(e)) => tracing::warn!("{e}"),
                    // The array has ended.
                    Err(_) => {}
                }
                false
            });
        }
    });
    until
}

/// Opens devices at the same time. What cannot be opened is told, and left
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

impl Running {
    /// Runs the array of a record.
    pub(crate) fn open(record: &Record, opener: &Opener) -> Result<Running, Failure> {
        if Client::ask(record.uuid, &Request::Status).is_some() {
            let why = format!("array {} runs on this host already, in another process", record.name);
            return Err(Failure::new(Exit::Refused, why));
        }
        let members = open_members(&record.devices, opener);
        let devices: Vec<Arc<dyn BlockDevice>> =
            members.iter().map(|(_, device)| Arc::clone(device)).collect();
        let (mut ours, mut missing) = (Vec::new(), record.devices.clone());
        let mut found = Vec::new();
        missing.retain(|name| !members.iter().any(|(opened, _)| opened == name));
        for ((name, device), label) in members.iter().zip(labels(&devices, &opener.config())?) {
            match label {
                Ok(Some(label)) if label.array == record.uuid && label.current => {
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
            let why =
                format!("none of the {} devices of array {} can be used", record.devices.len(), record.name);
            return Err(Failure::new(Exit::Unreachable, why));
        }
        let mut running = Running::start(record, ours, missing, opener)?;
        running.members = found;
        Ok(running)
    }

    /// The members that were there when it was started, by the names that a
    /// person gave them.
    pub(crate) fn members(&self) -> &[(String, DeviceInfo)] {
        &self.members
    }

    fn start(
        record: &Record,
        devices: Vec<Arc<dyn BlockDevice>>,
        missing: Vec<String>,
        opener: &Opener,
    ) -> Result<Running, Failure> {
        let thread = Thread::start("longhaul-array", opener.config()).map_err(Failure::failed)?;
        // A member that is needed is waited for as long as its initiator tries.
        let needed_timeout = opener.options.ctrl_loss.unwrap_or(Duration::MAX);
        let options = Options { needed_timeout, ..record.care.options() };
        let assembled =
            thread.handle().spawn(move || async move { assemble(&devices, options).await }).wait();
        let device = assembled.map_err(Failure::failed)??;
        let server = match Server::start(record.clone(), Arc::clone(&device), opener.clone()) {
            Ok(server) => Some(server),
            Err(e) => {
                tracing::warn!("array {}: nobody can ask for its status: {}", record.name, e.message);
                None
            }
        };
        let seeking = (!missing.is_empty()).then(|| seek(missing, &device, thread.handle(), opener.clone()));
        let (stopped, members) = (AtomicBool::new(false), Vec::new());
        Ok(Running { server, device, thread, stopped, members, _seeking: seeking })
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
