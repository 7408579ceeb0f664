//! The remote namespaces that an opener has opened, for programs that watch the paths to them.

use crate::device::Device;
use longhaul_initiator::{MultipathDevice, PathStatus, RemoteDevice};
use std::sync::{Arc, Mutex, PoisonError, Weak};

#[derive(Clone, Debug)]
enum Opened {
    Remote(Weak<RemoteDevice>),
    Multipath(Weak<MultipathDevice>),
}

/// Names and devices; those that have been dropped are forgotten.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remotes(Arc<Mutex<Vec<(String, Opened)>>>);

impl Remotes {
    /// Adds a device; one that is not remote is passed over.
    pub(crate) fn add(&self, device: &Device) {
        let opened = match device {
            Device::Remote(device) => Opened::Remote(Arc::downgrade(device)),
            Device::Multipath(device) => Opened::Multipath(Arc::downgrade(device)),
            Device::Single(volume) => Opened::Remote(Arc::downgrade(volume.device())),
            Device::Local(_) | Device::Array(_) => return,
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, opened)| match opened {
            Opened::Remote(device) => device.strong_count() > 0,
            Opened::Multipath(device) => device.strong_count() > 0,
        });
        all.push((device.block().info().name, opened));
    }

    /// Each path to each device that is open, with the name of the device.
    pub(crate) fn paths(&self) -> Vec<(String, PathStatus)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut paths = Vec::new();
        for (name, opened) in all {
            match opened {
                Opened::Remote(device) => {
                    paths.extend(device.upgrade().map(|device| (name, device.path_status())));
                }
                Opened::Multipath(device) => {
                    let of_device = device.upgrade().map_or_else(Vec::new, |device| device.paths());
                    paths.extend(of_device.into_iter().map(|path| (name.clone(), path)));
                }
            }
        }
        paths
    }
}
