//! What the services share: the program, the pools, and which volume is being worked on.

use crate::names::Id;
use crate::program::{Program, VolumeInfo};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use tonic::Status;

/// The driver of one node, the controller, or both.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) program: Program,
    /// Pools that it makes volumes in.
    pub(crate) pools: Vec<String>,
    /// NQN by which it manages pools; `None` for the one of this host.
    pub(crate) manager: Option<String>,
    /// NQN by which this node uses volumes: its node ID. `None` of a controller.
    pub(crate) node: Option<String>,
    pub(crate) is_controller: bool,
    busy: Mutex<BTreeSet<String>>,
}

/// A volume that one call works on, until this is dropped.
#[derive(Debug)]
pub(crate) struct Busy {
    driver: Arc<Driver>,
    what: String,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.driver.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.what);
    }
}

impl Driver {
    pub(crate) fn new(program: Program, pools: Vec<String>) -> Driver {
        Driver { program, pools, manager: None, node: None, is_controller: false, busy: Mutex::default() }
    }

    /// Runs one call, which waits for processes, on a thread of its own. It goes on when the client gives up: what
    /// the program does is not interrupted, and the volume stays busy until it has ended.
    pub(crate) async fn call<T: Send + 'static>(
        self: &Arc<Self>,
        name: &'static str,
        work: impl FnOnce(&Arc<Driver>) -> Result<T, Status> + Send + 'static,
    ) -> Result<tonic::Response<T>, Status> {
        let driver = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || {
            let result = work(&driver);
            // Here, and not after the await: also of a call whose client has given up.
            if let Err(status) = &result {
                eprintln!("longhaul-csi: {name}: {:?}: {}", status.code(), status.message());
            }
            result
        });
        let done = done.await.map_err(|e| Status::internal(format!("{name} has ended early: {e}")))?;
        done.map(tonic::Response::new)
    }

    /// Takes a volume, or anything else that one call at a time works on.
    ///
    /// # Errors
    /// `ABORTED` while another call works on it (CSI, "Timeouts", "Error Scheme").
    pub(crate) fn take(self: &Arc<Self>, what: &str) -> Result<Busy, Status> {
        if !self.busy.lock().unwrap_or_else(PoisonError::into_inner).insert(what.to_owned()) {
            return Err(Status::aborted(format!("another call works on {what}: try again later")));
        }
        Ok(Busy { driver: Arc::clone(self), what: what.to_owned() })
    }

    /// Looks a volume up that is wholly there; `None` if there is none.
    ///
    /// # Errors
    /// Its pool is not one of this driver, or cannot be asked.
    pub(crate) fn look_up(&self, host: Option<&str>, id: &Id) -> Result<Option<VolumeInfo>, Status> {
        if !self.pools.contains(&id.pool) {
            let why = format!("{id}: this driver was not started with --pool {}", id.pool);
            return Err(Status::failed_precondition(why));
        }
        Ok(self.program.info(host, &id.path())?.filter(|info| info.kind() == id.kind))
    }

    /// A volume by its ID.
    ///
    /// # Errors
    /// `NOT_FOUND`; `ABORTED` while it is being made.
    pub(crate) fn volume(&self, host: Option<&str>, text: &str) -> Result<(Id, VolumeInfo), Status> {
        let id = Id::volume(required("volume_id", text)?).ok_or_else(|| no_volume(text))?;
        self.found(host, id)
    }

    /// As [`volume`](Self::volume), of an ID that was read.
    ///
    /// # Errors
    /// As of [`volume`](Self::volume).
    pub(crate) fn found(&self, host: Option<&str>, id: Id) -> Result<(Id, VolumeInfo), Status> {
        let info = self.look_up(host, &id)?.ok_or_else(|| no_volume(&id.to_string()))?;
        if info.creating {
            return Err(Status::aborted(format!("{id} is being made: try again later")));
        }
        Ok((id, info))
    }
}

/// A field that the specification requires.
///
/// # Errors
/// `INVALID_ARGUMENT` if it is empty.
pub(crate) fn required<'a>(name: &str, value: &'a str) -> Result<&'a str, Status> {
    if value.is_empty() {
        Err(Status::invalid_argument(format!("the request has no {name}")))
    } else {
        Ok(value)
    }
}

/// The error of an ID that no volume has.
pub(crate) fn no_volume(id: &str) -> Status {
    Status::not_found(format!("there is no volume {id}"))
}

/// The error of a call to the operating system.
pub(crate) fn failed(attempted: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> Status {
    move |e| Status::internal(format!("cannot {attempted}: {e}"))
}
