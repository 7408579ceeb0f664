//! The device that is to be attached: one, or several joined.

use crate::arguments::{InitiatorArgs, parse_bytes};
use crate::exit::Failure;
use crate::words::joins;
use longhaul_array::{Layout, Stripe, suited_unit};
use longhaul_attach::filesystem::{Content, Shape};
use longhaul_attach::{Request, Requests, Served};
use longhaul_block::filter::{Filtered, ReadOnly};
use longhaul_block::{BlockDevice, DeviceInfo, signature};
use longhaul_device::Device;
use longhaul_device::attached::DeviceLock;
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
#[derive(Debug, clap::Args)]
pub(crate) struct DeviceArgs {
    /// Join several devices: stripe, which writes no superblock to them (for
    /// other layouts see longhaul array)
    #[arg(long, value_name = "LAYOUT", value_parser = joins(), hide_possible_values = true)]
    layout: Option<Layout>,
    /// Bytes of a stripe on one device [default: suited to the devices, at least
    /// 256KiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, requires = "layout")]
    stripe_unit: Option<u64>,
    #[command(flatten)]
    pub(crate) using: UseArgs,
}

/// How a device is used.
#[derive(Debug, clap::Args)]
pub(crate) struct UseArgs {
    /// Refuse all writes; the device may then be attached several times
    #[arg(long)]
    read_only: bool,
    /// Memory for read-ahead and write-behind
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_bytes)]
    memory: u64,
    #[command(flatten)]
    initiator: InitiatorArgs,
}

/// A device that front ends can serve. Fields are dropped in this order: locks last.
pub(crate) struct OpenDevice {
    /// The request queue of the device.
    pub(crate) requests: Arc<dyn Requests>,
    /// Stripe unit in bytes, and data units in a stripe.
    stripe: Option<(u64, u64)>,
    /// The opened devices; arrays among them are stopped when dropped.
    devices: Vec<Device>,
    _locks: Vec<DeviceLock>,
}

impl UseArgs {
    /// Opens the device of this name, to appear at `path`.
    pub(crate) fn open(&self, name: &str, path: &Path) -> Result<OpenDevice, Failure> {
        self.open_as(&[name.to_owned()], path, |mut devices| match devices.pop() {
            Some(device) => Ok((device.block(), None)),
            None => Err(Failure::usage("no device was named")),
        })
    }

    /// Opens devices, to appear at `path`, as the one that `join` makes of them; `join` returns it
    /// with its stripe unit and data units.
    fn open_as(
        &self,
        names: &[String],
        path: &Path,
        join: impl FnOnce(Vec<&Device>) -> Result<(Arc<dyn BlockDevice>, Option<(u64, u64)>), Failure>,
    ) -> Result<OpenDevice, Failure> {
        let devices = names.iter().map(|name| self.initiator.open(name, 1)).collect::<Result<Vec<_>, _>>()?;
        let mut locks = Vec::new();
        for (name, device) in names.iter().zip(&devices) {
            locks.extend(DeviceLock::take_all(device, self.read_only, name, path)?);
        }
        let (mut device, stripe) = join(devices.iter().collect())?;
        if self.read_only && !device.info().read_only {
            device = Arc::new(Filtered::new(device, ReadOnly));
        }
        let config = self.initiator.opener().config();
        let requests: Arc<dyn Requests> = Arc::new(Served::open(device, config, self.memory)?);
        Ok(OpenDevice { requests, stripe, devices, _locks: locks })
    }
}

impl DeviceArgs {
    /// Opens the devices with these names, to appear at `path`.
    pub(crate) fn open(&self, names: &[String], path: &Path) -> Result<OpenDevice, Failure> {
        self.using.open_as(names, path, |devices| {
            let device = self.join(devices.iter().map(|device| device.block()).collect())?;
            let stripe = self.stripe(&devices, &device.info())?;
            Ok((device, stripe))
        })
    }

    fn join(&self, mut devices: Vec<Arc<dyn BlockDevice>>) -> Result<Arc<dyn BlockDevice>, Failure> {
        match (self.layout, devices.len()) {
            (None, 1) => Ok(devices.remove(0)),
            (None, _) => Err(Failure::usage("several devices: say how they make one, with --layout stripe")),
            (Some(Layout::Stripe), _) => {
                let unit = self.unit(&devices);
                Ok(Arc::new(Stripe::new(devices, unit).map_err(Failure::usage)?))
            }
            (Some(layout), _) => Err(Failure::usage(format!(
                "--layout {layout} needs superblocks on its members: make the array with longhaul array create"
            ))),
        }
    }

    fn unit(&self, devices: &[Arc<dyn BlockDevice>]) -> u64 {
        let infos: Vec<DeviceInfo> = devices.iter().map(|device| device.info()).collect();
        self.stripe_unit.unwrap_or_else(|| suited_unit(&infos))
    }

    /// Stripe unit in bytes, and data units in a stripe; `None` for a device without stripes.
    fn stripe(&self, devices: &[&Device], info: &DeviceInfo) -> Result<Option<(u64, u64)>, Failure> {
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

    /// The flags that join the devices of `opened` in the same way again. A stripe without
    /// superblock is not recorded on the devices, and their optimal I/O size may change, so the
    /// stripe unit is included even if it was not given.
    pub(crate) fn layout_flags(&self, opened: &OpenDevice) -> String {
        let unit = opened.stripe.map(|(unit, _)| format!(" --stripe-unit {unit}")).unwrap_or_default();
        self.layout.map(|layout| format!(" --layout {layout}{unit}")).unwrap_or_default()
    }
}

impl OpenDevice {
    /// The present faults of the devices, as [`Device::trouble`] returns them.
    pub(crate) fn trouble(&self) -> Option<String> {
        let found: Vec<String> = self.devices.iter().filter_map(Device::trouble).collect();
        (!found.is_empty()).then(|| found.join("; "))
    }

    /// The file system on the device.
    pub(crate) fn content(&self) -> Result<Content, Failure> {
        let read = |offset, len| self.requests.wait(Request::Read { offset, len });
        Ok(Content::of(self.requests.info().size, read)?)
    }

    /// The content of the device by the signatures at its edges.
    pub(crate) fn signature(&self) -> Result<signature::Content, Failure> {
        let size = self.requests.info().size;
        let len = signature::EDGE.min(size);
        let read = |offset| self.requests.wait(Request::Read { offset, len });
        Ok(signature::Content::of(size, &read(0)?, &read(size - len)?))
    }

    /// Size, stripes and round trip of the device, which file systems are tuned to.
    pub(crate) fn shape(&self) -> Result<Shape, Failure> {
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
