//! Devices that change their size: hosts are notified.
//!
//! A file or a block device is asked for its size when the target is told to. An array that grows, or a
//! namespace of another target, has its size by itself, and is looked at every second.

use crate::subsystem::Subsystem;
use crate::target::Shared;
use longhaul_block::DeviceInfo;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often devices are looked at that change by themselves.
const CHECK: Duration = Duration::from_secs(1);

impl Shared {
    /// The subsystems of exports: namespaces of spaces grow by commands alone.
    pub(crate) fn exporting(&self) -> impl Iterator<Item = Arc<Subsystem>> {
        self.all().into_iter().filter(|subsystem| subsystem.managed.is_none())
    }

    /// Notifies hosts of devices that have another size than they were told, and returns these:
    /// subsystem, namespace, and the device as it is now.
    pub(crate) fn announce_sizes(&self) -> Vec<(String, u32, DeviceInfo)> {
        let mut changes = Vec::new();
        for subsystem in self.exporting() {
            let resized = subsystem.resized();
            let nsids: Vec<u32> = resized.iter().map(|(nsid, _)| *nsid).collect();
            if !nsids.is_empty() {
                subsystem.changed(&nsids);
            }
            changes.extend(resized.into_iter().map(|(nsid, info)| (subsystem.name.clone(), nsid, info)));
        }
        changes
    }
}

impl Subsystem {
    /// Namespaces whose devices have another size than hosts were told.
    fn resized(&self) -> Vec<(u32, DeviceInfo)> {
        let shown = self.view();
        let told = |nsid| shown.nvm().and_then(|nvm| nvm.namespace(nsid)).map(|shown| shown.blocks);
        let namespaces = self.namespaces();
        let changed = namespaces.iter().filter(|(nsid, namespace)| {
            told(**nsid).is_some_and(|blocks| blocks != namespace.view(**nsid).blocks)
        });
        changed.map(|(nsid, namespace)| (*nsid, namespace.device.info())).collect()
    }
}

/// Notices devices that grow by themselves: an array, a namespace of another target.
pub(crate) async fn watch(shared: Weak<Shared>) {
    loop {
        longhaul_engine::sleep(CHECK).await;
        let Some(shared) = shared.upgrade() else { return };
        for (name, nsid, info) in shared.announce_sizes() {
            tracing::info!("{name}: namespace {nsid} has {} bytes now", info.size);
        }
    }
}
