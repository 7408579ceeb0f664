//! An array that another process may run, watched until it has ended.

use super::record::ArrayRecord;
use super::running::{RunningArray, check_not_here, open_members, read_labels, unusable};
use crate::error::{Error, Result};
use crate::opener::Opener;
use longhaul_array::{BLOCK, Geometry, Options, StoodStill, wait_for_end};
use longhaul_block::{BlockDevice, DeviceInfo};
use longhaul_engine::Thread;
use std::sync::Arc;

/// The members of an array, opened by a host that stands by for it. Nothing is written to them.
pub struct ArrayWatch {
    record: ArrayRecord,
    opener: Opener,
    members: Vec<(String, Arc<dyn BlockDevice>)>,
    stood_still: Option<StoodStill>,
}

impl ArrayWatch {
    /// Opens the members, whether or not another process runs the array.
    ///
    /// # Errors
    /// None of the members can be opened.
    pub fn open(record: &ArrayRecord, opener: &Opener) -> Result<ArrayWatch> {
        let opener = opener.clone().for_threads(1).for_array();
        let members = open_members(&record.devices, &opener);
        if members.is_empty() {
            return Err(unusable(record));
        }
        Ok(ArrayWatch { record: record.clone(), opener, members, stood_still: None })
    }

    fn devices(&self) -> Vec<Arc<dyn BlockDevice>> {
        self.members.iter().map(|(_, device)| Arc::clone(device)).collect()
    }

    /// Properties of the array as a device, by its newest superblock, and the preferred alignment of
    /// writes to it, as [`BlockDevice::granularity`].
    ///
    /// # Errors
    /// No member has a superblock of the array.
    pub fn properties(&self) -> Result<(DeviceInfo, u32)> {
        let labels = read_labels(&self.devices(), &self.opener.config())?;
        let own = labels.into_iter().flatten().flatten().filter(|label| label.array == self.record.uuid);
        let newest = own.max_by_key(|label| label.generation).ok_or_else(|| unusable(&self.record))?;
        let geometry: Geometry = newest.geometry;
        let members: Vec<DeviceInfo> = self.members.iter().map(|(_, device)| device.info()).collect();
        let info = DeviceInfo {
            name: format!("{}{}", super::SCHEME, newest.name),
            size: geometry.size(),
            block_size: BLOCK as u32,
            max_io: members.iter().map(|info| info.max_io).min().unwrap_or(0),
            optimal_io: geometry.stripe().try_into().unwrap_or(0),
            read_only: false,
            volatile_cache: members.iter().any(|info| info.volatile_cache),
            discard: members.iter().any(|info| info.discard),
            uuid: Some(self.record.uuid),
        };
        // In a mirror the stripe unit has no meaning.
        let unit = if geometry.data_units() > 1 { geometry.unit.try_into().unwrap_or(0) } else { 0 };
        Ok((info, unit))
    }

    /// Waits until no session runs the array any more; false if `given_up` says so first. It blocks.
    ///
    /// # Errors
    /// No engine can be started.
    pub fn wait_for_end(&mut self, given_up: impl Fn() -> bool + Send + 'static) -> Result<bool> {
        let thread = Thread::start("longhaul-watch", self.opener.config()).map_err(Error::failed)?;
        let (devices, array) = (self.devices(), self.record.uuid);
        let options: Options = self.record.settings.options();
        let wait = move || async move { wait_for_end(&devices, array, &options, given_up).await };
        match thread.handle().spawn(wait).wait().map_err(Error::failed)? {
            Some(stood_still) => {
                self.stood_still = Some(stood_still);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Runs the array in this process. After [`Self::wait_for_end`] it takes the members over without
    /// another wait, unless the session lives after all.
    ///
    /// # Errors
    /// Those of [`RunningArray::open`].
    pub fn start(self) -> Result<RunningArray> {
        check_not_here(&self.record)?;
        RunningArray::open_with(&self.record, self.members, &self.opener, false, self.stood_still)
    }
}
