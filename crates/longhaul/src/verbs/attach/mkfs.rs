//! `longhaul mkfs`.

use super::observe;
use super::open::DeviceArgs;
use crate::arguments::InitiatorArgs;
use crate::complete;
use crate::events::MkfsSummary;
use crate::exit::{Failure, Outcome};
use crate::output::{Output, say};
use longhaul_attach::filesystem::FileSystemKind;
use longhaul_attach::{NewFileSystem, OpenDevice, hidden_file};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Journal size and alignment are chosen from the stripes of the device and its
round trip, and printed. All data on the device is discarded.

Example:
  longhaul mkfs --fs xfs nvme+tcp://dtn1/scratch
  sudo longhaul mount nvme+tcp://dtn1/scratch /mnt/scratch")]
pub(crate) struct MkfsArgs {
    /// The device; several are joined by --layout
    #[arg(value_name = "DEVICE", required = true, add = complete::device())]
    devices: Vec<String>,
    /// xfs or ext4
    #[arg(long, value_name = "KIND")]
    fs: FileSystemKind,
    /// Label of the file system
    #[arg(long, value_name = "NAME")]
    label: Option<String>,
    /// Overwrite a device that holds data
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

pub(crate) fn run(args: &MkfsArgs, output: Output) -> Outcome {
    let (made, opened) = create(args)?;
    print_summary(args, &made, &opened, output);
    Ok(())
}

/// Makes a file system on a device that was made for it, without a summary.
pub(crate) fn make_on(device: String, fs: FileSystemKind, initiator: InitiatorArgs) -> Outcome {
    let device_args = DeviceArgs::of_one(initiator);
    let args = MkfsArgs { devices: vec![device], fs, label: None, force: false, device: device_args };
    create(&args).map(drop)
}

fn create(args: &MkfsArgs) -> Result<(NewFileSystem, OpenDevice), Failure> {
    let path = hidden_file()?;
    let opened = args.device.open(&args.devices, &path)?;
    let name = args.devices.join(" ");
    let new = NewFileSystem::check(&opened, name, args.fs, args.label.as_deref(), args.force)?;
    // From here on there is a mount to clean up: a signal is an event.
    let (event_sender, events) = observe::events()?;
    new.make(&opened, &path, (event_sender, &events), |text| say(text))?;
    Ok((new, opened))
}

fn print_summary(args: &MkfsArgs, made: &NewFileSystem, opened: &OpenDevice, output: Output) {
    let (arguments, round_trip) = (made.arguments(), made.round_trip().as_secs_f64() * 1e3);
    let options = args.device.layout_flags(opened);
    // Options precede the devices, since the argument after them is the directory.
    let mount = format!("longhaul mount{options} {} DIR", args.devices.join(" "));
    output.event(&MkfsSummary {
        fs: args.fs.name().to_owned(),
        arguments: arguments.to_vec(),
        round_trip_us: (round_trip * 1e3).round() as u64,
        mount: mount.clone(),
    });
    if !output.is_json() {
        output.line(format_args!("mkfs.{} {} (round trip {round_trip:.2} ms)", args.fs, arguments.join(" ")));
        output.line(mount);
    }
}
