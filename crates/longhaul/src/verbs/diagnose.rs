//! `longhaul diagnose`: finds the bottleneck of a copy ([`longhaul_lab::diagnose`]).

mod tell;

use crate::arguments::parse_bytes;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Output, save};
use longhaul_lab::diagnose::{self, CopySettings, DiagnoseOptions};
use longhaul_load::Stop;
use longhaul_results::schema;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Copies generated data, in SRC/longhaul-diagnose-PID and
DST/longhaul-diagnose-PID, and removes it at the end (on a remote destination,
an empty directory remains). SRC is a local directory; DST is a destination as
for cp. No other file is read, and no setting is changed: a remedy that changes
a machine is printed as a command.

Example:
  longhaul diagnose /data lh://dtn2:7400/incoming --try")]
pub(crate) struct DiagnoseArgs {
    /// Local directory to read from
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// Directory to write to, local or remote
    #[arg(value_name = "DST")]
    destination: OsString,
    /// Bytes of each copy [default: 64 MiB, or more if that takes less than 2 s or 20 round
    /// trips]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    bytes: Option<u64>,
    /// Largest number of files in a copy
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    files: u32,
    /// Runs of each copy
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=100))]
    runs: u16,
    /// Threads that read, and threads that write, of the copy to diagnose
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = super::cp::threads())]
    threads: u16,
    /// Data connections of that copy
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    streams: u16,
    /// Checksum of that copy
    #[arg(long, value_enum, default_value_t = super::cp::Checksum::Xxh3)]
    checksum: super::cp::Checksum,
    /// TCP congestion control of that copy, by the kernel's name [default: that of the machine]
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Encrypt, with the key of the agent in FILE
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    far: super::cp::far::FarArgs,
    /// Apply the remedy if it is a setting of the copy, and measure its effect
    #[arg(long = "try")]
    try_it: bool,
    /// Write the result to a file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl DiagnoseArgs {
    fn options(&self) -> DiagnoseOptions {
        DiagnoseOptions {
            source: self.source.clone(),
            destination: self.destination.clone(),
            bytes: self.bytes,
            files: self.files,
            runs: self.runs,
            copy: CopySettings {
                readers: self.threads,
                writers: self.threads,
                streams: self.streams,
                checksum: self.checksum.name(),
                congestion: self.congestion.clone(),
                rate: None,
            },
            key_file: self.key_file.clone(),
            far_options: self.far.words(),
            try_remedy: self.try_it,
        }
    }
}

pub(crate) fn run(args: &DiagnoseArgs, output: Output) -> Outcome {
    let stop = Stop::new();
    super::bench::stop_on_interrupt(&stop, output)?;
    tell_unread_counters(output);
    let diagnosis = diagnose::run(&args.options(), &stop, &|text| output.note(text))?;
    let document = schema::Output { longhaul: Some(diagnosis.record.clone()), ..schema::Output::now() };
    let saved = args.output.as_ref().map_or(Ok(()), |path| save(path, &document));
    tell::tell(&diagnosis, output);
    saved?;
    let Some(failure) = diagnosis.failure else { return Ok(()) };
    let kept =
        args.output.as_ref().map(|path| format!("; the measurements until then are in {}", path.display()));
    Err(Failure::new(Exit::Partly, format!("{failure}{}", kept.unwrap_or_default())))
}

/// Prints which counters of this machine cannot be read, if any: without them losses on the
/// path are not seen.
pub(super) fn tell_unread_counters(output: Output) {
    if let Some(why) = diagnose::unread_counters() {
        output.note(format_args!("longhaul: {why}"));
    }
}
