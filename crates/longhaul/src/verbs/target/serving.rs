//! The exports of a target that runs.
//!
//! Invariants:
//! - each export that is served is in the list, in the order in which they were added;
//! - the thread that watches an array has ended before the array is given back.

use super::exports::{ExportSource, OpenExport};
use super::standby::StandbyExport;
use crate::export::Export;
use crate::output::Output;
use longhaul_block::BlockDevice;
use longhaul_device::arrays::RunningArray;
use longhaul_device::{Device, Opener};
use longhaul_target::{ServedMedium, Target};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use uuid::Uuid;

/// An export that is served.
pub(super) struct ServedExport<'scope> {
    pub(super) export: Arc<Export>,
    pub(super) nqn: String,
    pub(super) nsid: u32,
    pub(super) uuid: Uuid,
    /// Of a local device, the back end without filters.
    pub(super) bare: Option<Arc<dyn BlockDevice>>,
    pub(super) place: Option<ServedMedium>,
    /// None of an array that another host may run: its thread has that.
    device: Option<Arc<Device>>,
    ending: Arc<AtomicBool>,
    /// Watches an array; its end has the array that it runs then.
    thread: Option<ScopedJoinHandle<'scope, Option<RunningArray>>>,
}

/// What is left of an export that is not served any more: to be dropped when no host can reach it.
pub(super) struct EndedExport {
    device: Option<Arc<Device>>,
    place: Option<ServedMedium>,
    _array: Option<RunningArray>,
}

impl EndedExport {
    /// Records the state of the medium, and closes the device.
    pub(super) fn close(self) {
        if let (Some(place), Some(device)) = (&self.place, &self.device) {
            place.end(&*device.block());
        }
    }
}

impl<'scope> ServedExport<'scope> {
    /// Nothing waits for its array any more.
    fn set_ending(&self) {
        self.ending.store(true, Ordering::SeqCst);
    }

    /// Waits until its thread has ended.
    pub(super) fn end(self) -> EndedExport {
        self.set_ending();
        let array = self.thread.and_then(|thread| thread.join().ok().flatten());
        EndedExport { device: self.device, place: self.place, _array: array }
    }
}

/// The exports that a target serves, and what their threads need.
pub(super) struct Serving<'scope, 'env> {
    pub(super) scope: &'scope Scope<'scope, 'env>,
    pub(super) target: &'env Target,
    pub(super) opener: &'env Opener,
    pub(super) output: Output,
    pub(super) exports: Vec<ServedExport<'scope>>,
}

impl<'scope> Serving<'scope, '_> {
    /// An export is served as this namespace from now on.
    pub(super) fn add(&mut self, open: OpenExport, nsid: u32) {
        let OpenExport { export, nqn, uuid, source, bare, place, .. } = open;
        let ending = Arc::<AtomicBool>::default();
        let seen = StandbyExport {
            export: Arc::clone(&export),
            nqn: nqn.clone(),
            at: (nsid, uuid),
            target: self.target,
            opener: self.opener,
            ending: Arc::clone(&ending),
            output: self.output,
        };
        let (device, thread) = match source {
            ExportSource::Here(device) => {
                let device = Arc::new(device);
                let watched = matches!(&*device, Device::Array(_)).then(|| Arc::clone(&device));
                let thread = watched.map(|device| {
                    self.scope.spawn(move || {
                        if let Device::Array(array) = &*device {
                            seen.watch(array);
                        }
                        None
                    })
                });
                (Some(device), thread)
            }
            ExportSource::Elsewhere(standby) => (None, Some(self.scope.spawn(move || seen.run(*standby)))),
        };
        let served = ServedExport { export, nqn, nsid, uuid, bare, place, device, ending, thread };
        self.exports.push(served);
    }

    /// Ends all of them.
    pub(super) fn end(self) -> Vec<EndedExport> {
        self.exports.iter().for_each(ServedExport::set_ending);
        self.exports.into_iter().map(ServedExport::end).collect()
    }
}
