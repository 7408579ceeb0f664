//! An open device of any kind.

use crate::arrays::RunningArray;
use crate::error::{Error, Result};
use crate::single::SingleVolume;
use longhaul_array::Health;
use longhaul_block::BlockDevice;
use longhaul_initiator::{MultipathDevice, Outage, PathState, PathStatus, RemoteDevice};
use std::fmt;
use std::sync::Arc;

/// An open device.
pub enum Device {
    /// A local back end: a file, a block device, memory.
    Local(Arc<dyn BlockDevice>),
    /// A namespace of a target.
    Remote(Arc<RemoteDevice>),
    /// A namespace of a target, at several addresses.
    Multipath(Arc<MultipathDevice>),
    /// A namespace that is a volume by itself.
    Single(Box<SingleVolume>),
    /// An array that this process runs, and stops when the device is dropped.
    Array(Box<RunningArray>),
}

impl Device {
    /// The device as what everything stores blocks on. An array ends with the [`Device`], and I/O to it
    /// fails from then on.
    pub fn block(&self) -> Arc<dyn BlockDevice> {
        match self {
            Device::Local(device) => Arc::clone(device),
            Device::Remote(device) => Arc::<RemoteDevice>::clone(device),
            Device::Multipath(device) => Arc::<MultipathDevice>::clone(device),
            Device::Single(volume) => Arc::<RemoteDevice>::clone(volume.device()),
            Device::Array(array) => Arc::<longhaul_array::ArrayDevice>::clone(array.device()),
        }
    }

    /// The remote namespaces that it is: one for each path; none of a local device or an array.
    pub fn remotes(&self) -> Vec<Arc<RemoteDevice>> {
        match self {
            Device::Remote(device) => vec![Arc::clone(device)],
            Device::Multipath(device) => device.devices(),
            Device::Single(volume) => vec![Arc::clone(volume.device())],
            Device::Local(_) | Device::Array(_) => Vec::new(),
        }
    }

    /// Closes the device. An array is stopped, so that another process can run it.
    ///
    /// # Errors
    /// Not everything that an array wrote could be made durable.
    pub async fn close(self) -> Result<()> {
        match self {
            Device::Local(_) | Device::Remote(_) | Device::Multipath(_) | Device::Single(_) => Ok(()),
            // It waits for the thread of the array.
            Device::Array(array) => longhaul_engine::blocking(move || array.stop()).await,
        }
    }

    /// What is wrong with the device now, as `CONDITION: DETAIL` with a condition of one
    /// word (`unreachable`, `degraded`, …); `None` for a healthy device.
    /// It blocks until an array has replied.
    pub fn trouble(&self) -> Option<String> {
        match self {
            Device::Local(_) => None,
            Device::Remote(device) => trouble_of(device),
            Device::Single(volume) => trouble_of(volume.device()),
            Device::Multipath(device) => match device.outage() {
                Some(Outage { why, for_good: true }) => Some(format!("failed: {why}")),
                Some(Outage { why, for_good: false }) => Some(format!("unreachable: {why}")),
                None => {
                    let paths = device.paths();
                    let lost = |path: &PathStatus| path.state == PathState::Lost;
                    let why =
                        |path: PathStatus| format!("path {}: {}", path.address, path.why.unwrap_or_default());
                    let all = paths.len();
                    let whys: Vec<String> = paths.into_iter().filter(lost).map(why).collect();
                    let left = all - whys.len();
                    (left < all)
                        .then(|| format!("degraded: {left} of {all} paths are in use: {}", whys.join("; ")))
                }
            },
            Device::Array(array) => {
                let status = array.wait(|device| async move { device.status().await });
                match status.and_then(|status| status.map_err(Error::from)) {
                    Err(e) => Some(format!("failed: {e}")),
                    Ok(status) => match status.health {
                        Health::Healthy => None,
                        Health::Degraded => Some(format!("degraded: {}", status.detail)),
                        Health::Halted => Some(format!("halted: {}", status.detail)),
                    },
                }
            }
        }
    }
}

/// A connection that is given up for good is not retried: I/O fails at once.
fn trouble_of(device: &RemoteDevice) -> Option<String> {
    device
        .outage()
        .map(|Outage { why, for_good }| format!("{}: {why}", if for_good { "failed" } else { "unreachable" }))
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.block().info().name).finish()
    }
}
