//! Opening devices for front ends.

use crate::error::invalid;
use crate::filesystem::{Content, Shape};
use crate::served::{Request, Requests, Served};
use longhaul_array::{Layout, Stripe, suited_unit};
use longhaul_block::filter::{Filtered, ReadOnly};
use longhaul_block::{BlockDevice, DeviceInfo, signature};
use longhaul_device::attached::DeviceLock;
use longhaul_device::{Device, Opener, Result};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Smallest optimal I/O size, in bytes, that is passed to a file system as a stripe unit.
const STRIPE_UNIT_MIN: u32 = 64 << 10;
/// File systems take stripe units that are a multiple of their block size, in bytes.
const STRIPE_UNIT_ALIGNMENT: u32 = 4096;
/// Reads that measure the round trip; the fastest one counts.
const PROBES: u64 = 5;

/// How devices are joined and used.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Opens each device.
    pub opener: Opener,
    /// Joins several devices: only a stripe, since other layouts have superblocks.
    pub layout: Option<Layout>,
    /// Bytes of a stripe on one device; `None`: suited to the devices.
    pub stripe_unit: Option<u64>,
    /// Refuse all writes.
    pub read_only: bool,
    /// Bytes of memory for read-ahead and write-behind.
    pub memory: u64,
}

/// A device that front ends can serve. Fields are dropped in this order: locks last.
pub struct OpenDevice {
    /// The request queue of the device.
    pub requests: Arc<dyn Requests>,
    /// Stripe unit in bytes, and data units in a stripe.
    stripe: Option<(u64, u64)>,
    /// The opened devices; arrays among them are stopped when dropped.
    devices: Vec<Device>,
    _locks: Vec<DeviceLock>,
}

impl OpenOptions {
    fn join(&self, mut devices: Vec<Arc<dyn BlockDevice>>) -> Result<Arc<dyn BlockDevice>> {
        match (self.layout, devices.len()) {
            (None, 1) => Ok(devices.remove(0)),
            (None, _) => Err(invalid("several devices: say how they make one, with --layout stripe")),
            (Some(Layout::Stripe), _) => {
                let unit = self.unit(&devices);
                Ok(Arc::new(Stripe::new(devices, unit).map_err(invalid)?))
            }
            (Some(layout), _) => Err(invalid(format!(
                "--layout {layout} needs superblocks on its members: make the array with longhaul array create"
            ))),
        }
    }

    fn unit(&self, devices: &[Arc<dyn BlockDevice>]) -> u64 {
        let infos: Vec<DeviceInfo> = devices.iter().map(|device| device.info()).collect();
        self.stripe_unit.unwrap_or_else(|| suited_unit(&infos))
    }

    /// Stripe unit in bytes, and data units in a stripe; `None` for a device without stripes.
    fn stripe(&self, devices: &[&Device], info: &DeviceInfo) -> Result<Option<(u64, u64)>> {
        if self.layout.is_some() {
            let blocks: Vec<_> = devices.iter().map(|device| device.block()).collect();
            return Ok(Some((self.unit(&blocks), devices.len() as u64)));
        }
        if let [Device::Array(array)] = devices {
            let geometry = array.wait(|device| async move { device.status().await })??.geometry;
            let data = geometry.data_units() as u64;
            return Ok((data > 1).then_some((geometry.unit, data)));
        }
        // Some disks report 65,535 sectors, which is not a stripe unit.
        let size = info.optimal_io;
        let is_stripe_unit = size >= STRIPE_UNIT_MIN && size.is_multiple_of(STRIPE_UNIT_ALIGNMENT);
        Ok(is_stripe_unit.then_some((u64::from(size), 1)))
    }
}

impl OpenDevice {
    /// Opens the devices with these names as one, to appear at `path`.
    ///
    /// # Errors
    /// A device cannot be opened, is in use on this host, or the devices cannot be joined.
    pub fn open(names: &[String], options: &OpenOptions, path: &Path) -> Result<OpenDevice> {
        let opener = options.opener.clone().for_threads(1);
        let devices = names.iter().map(|name| opener.open_blocking(name)).collect::<Result<Vec<_>>>()?;
        let mut locks = Vec::new();
        for (name, device) in names.iter().zip(&devices) {
            locks.extend(DeviceLock::take_all(device, options.read_only, name, path)?);
        }
        let mut device = options.join(devices.iter().map(|device| device.block()).collect())?;
        let stripe = options.stripe(&devices.iter().collect::<Vec<_>>(), &device.info())?;
        if options.read_only && !device.info().read_only {
            device = Arc::new(Filtered::new(device, ReadOnly));
        }
        let config = opener.config();
        let requests: Arc<dyn Requests> = Arc::new(Served::open(device, config, options.memory)?);
        Ok(OpenDevice { requests, stripe, devices, _locks: locks })
    }

    /// Stripe unit in bytes; `None` for a device without stripes.
    pub fn stripe_unit(&self) -> Option<u64> {
        self.stripe.map(|(unit, _)| unit)
    }

    /// The present faults of the devices, as [`Device::trouble`] returns them.
    pub fn trouble(&self) -> Option<String> {
        let found: Vec<String> = self.devices.iter().filter_map(Device::trouble).collect();
        (!found.is_empty()).then(|| found.join("; "))
    }

    /// The file system on the device.
    ///
    /// # Errors
    /// Of the device.
    pub fn content(&self) -> Result<Content> {
        let read = |offset, len| self.requests.wait(Request::Read { offset, len });
        Ok(Content::of(self.requests.info().size, read)?)
    }

    /// The content of the device by the signatures at its edges.
    ///
    /// # Errors
    /// Of the device.
    pub fn signature(&self) -> Result<signature::Content> {
        let size = self.requests.info().size;
        let len = signature::EDGE.min(size);
        let read = |offset| self.requests.wait(Request::Read { offset, len });
        Ok(signature::Content::of(size, &read(0)?, &read(size - len)?))
    }

    /// Size, stripes and round trip of the device, which file systems are tuned to.
    ///
    /// # Errors
    /// Of the device.
    pub fn shape(&self) -> Result<Shape> {
        let info = self.requests.info();
        let len = u64::from(info.block_size);
        let mut round_trip = Duration::MAX;
        for n in 1..=PROBES {
            let offset = info.size / (PROBES + 1) * n / len * len;
            let began = Instant::now();
            self.requests.wait(Request::Read { offset, len })?;
            round_trip = round_trip.min(began.elapsed());
        }
        Ok(Shape { size: info.size, block_size: info.block_size, stripe: self.stripe, round_trip })
    }
}
