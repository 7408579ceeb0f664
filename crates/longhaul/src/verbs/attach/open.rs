//! How devices are named, joined and used.

use crate::arguments::{InitiatorArgs, parse_bytes};
use crate::exit::Failure;
use crate::words::joins;
use longhaul_array::Layout;
use longhaul_attach::{OpenDevice, OpenOptions};
use longhaul_device::Opener;
use std::path::Path;

/// Memory for read-ahead and write-behind, as `--memory` has by default, in bytes.
const MEMORY: u64 = 256 << 20;

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
    pub(super) read_only: bool,
    /// Memory for read-ahead and write-behind
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_bytes)]
    pub(super) memory: u64,
    #[command(flatten)]
    pub(super) initiator: InitiatorArgs,
}

impl UseArgs {
    fn options(&self, opener: &Opener) -> OpenOptions {
        OpenOptions {
            opener: opener.clone(),
            layout: None,
            stripe_unit: None,
            read_only: self.read_only,
            memory: self.memory,
        }
    }

    /// Opens the device of this name, to appear at `path`.
    pub(super) fn open_by(&self, opener: &Opener, name: &str, path: &Path) -> Result<OpenDevice, Failure> {
        Ok(OpenDevice::open(&[name.to_owned()], &self.options(opener), path)?)
    }
}

impl DeviceArgs {
    /// Of one device, with the defaults of the command line.
    pub(crate) fn of_one(initiator: InitiatorArgs) -> DeviceArgs {
        let using = UseArgs { read_only: false, memory: MEMORY, initiator };
        DeviceArgs { layout: None, stripe_unit: None, using }
    }

    /// Opens the devices with these names, to appear at `path`.
    pub(crate) fn open(&self, names: &[String], path: &Path) -> Result<OpenDevice, Failure> {
        self.open_by(&self.using.initiator.opener(), names, path)
    }

    /// The same, by an opener that others watch.
    pub(super) fn open_by(
        &self,
        opener: &Opener,
        names: &[String],
        path: &Path,
    ) -> Result<OpenDevice, Failure> {
        let DeviceArgs { layout, stripe_unit, using } = self;
        let options = OpenOptions { layout: *layout, stripe_unit: *stripe_unit, ..using.options(opener) };
        Ok(OpenDevice::open(names, &options, path)?)
    }

    /// The flags that join the devices of `opened` in the same way again. A stripe without
    /// superblock is not recorded on the devices, and their optimal I/O size may change, so the
    /// stripe unit is included even if it was not given.
    pub(crate) fn layout_flags(&self, opened: &OpenDevice) -> String {
        let unit = opened.stripe_unit().map(|unit| format!(" --stripe-unit {unit}")).unwrap_or_default();
        self.layout.map(|layout| format!(" --layout {layout}{unit}")).unwrap_or_default()
    }
}
