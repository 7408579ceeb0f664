//! `longhaul demo`: the main job on real input, on this machine alone.
//!
//! Two targets, each behind a relay that adds a round trip; a data set is
//! written to them, read back and compared, and the same bytes go over plain
//! TCP through the same kind of relay, to have something to compare with.

mod copy;
mod files;
mod plain;

use crate::exit::{Exit, Failure, Outcome};
use crate::names::{EngineArgs, parse_bytes, parse_rate, parse_time};
use crate::output::Output;
use copy::Copier;
use files::Source;
use indicatif::{ProgressBar, ProgressStyle};
use longhaul_block::units::{format_rate, format_size};
use longhaul_block::{BlockDevice, MemDevice};
use longhaul_initiator::{Options, RemoteDevice};
use longhaul_target::{Config, Target};
use longhaul_wan::{Link, Relay};
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Targets that the data set is spread over.
const TARGETS: usize = 2;
/// Block size of their namespaces in bytes.
const BLOCK: u32 = 4096;
const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Everything stays on this machine: memory, the temporary directory, and loopback. No root is needed.")]
pub(crate) struct Args {
    /// Copy the files of this directory, instead of a data set made for it
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Size of the data set that is made (sizes of files as in production transfers)
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = parse_bytes)]
    scale: u64,
    /// Round-trip time of the way to the targets
    #[arg(long, value_name = "TIME", default_value = "15ms", value_parser = parse_time)]
    rtt: Duration,
    /// Rate of the link to each target, or 0 for what this machine can do
    #[arg(long, value_name = "RATE", default_value = "2Gbit", value_parser = parse_rate)]
    rate: u64,
    #[command(flatten)]
    engine: EngineArgs,
}

impl Args {
    /// The way to one target.
    fn link(&self) -> Link {
        Link { rate: (self.rate > 0).then_some(self.rate), ..Link::round_trip(self.rtt) }
    }

    /// The same in words.
    fn link_name(&self) -> String {
        let rate = if self.rate > 0 { format_rate(self.rate as f64) } else { "no limit of rate".into() };
        format!("{} ms of round trip, {rate}", self.rtt.as_secs_f64() * 1e3)
    }
}

/// One direction: how long it took, and how long plain TCP did.
struct Phase {
    name: &'static str,
    bytes: u64,
    seconds: f64,
    plain: f64,
}

impl Phase {
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }

    fn plain_rate(&self) -> f64 {
        self.bytes as f64 / self.plain
    }

    fn ratio(&self) -> f64 {
        self.plain / self.seconds
    }
}

pub(crate) fn run(args: &Args, output: Output) -> Outcome {
    let source = match &args.data {
        Some(dir) => Source::of(dir)?,
        None => Source::make(args.scale, output)?,
    };
    let (files, bytes) = (source.files.len(), source.bytes());
    if bytes == 0 {
        return Err(Failure::failed(format!("{} has no file with content", source.dir.display())));
    }
    output.note(format_args!("{files} files, {} in {}", format_size(bytes), source.dir.display()));

    let stage = Stage::set(args, source.space_for_each(TARGETS))?;
    output.note(format_args!("{TARGETS} targets, each behind a link of its own: {}", args.link_name()));
    let copier = Copier::new(&source, &stage.devices, args.engine.config())?;

    let bar = progress(output, "write", bytes)?;
    let written = copier.write(&bar)?;
    bar.finish_and_clear();
    let bar = progress(output, "read", bytes)?;
    let (read, wrong) = copier.read_and_verify(&bar)?;
    bar.finish_and_clear();
    if let Some(first) = wrong.first() {
        return Err(Failure::new(
            Exit::Mismatch,
            format_args!("{} pieces differ, first: {first}", wrong.len()),
        ));
    }
    drop(copier);

    output.note("the same bytes over plain TCP");
    let plain =
        plain::measure(&|| args.link(), TARGETS, bytes, &args.engine.config()).map_err(Failure::failed)?;
    let phases = [
        Phase { name: "write", bytes, seconds: written, plain: plain.there },
        Phase { name: "read", bytes, seconds: read, plain: plain.back },
    ];
    report(&phases, files, args, output);
    Ok(())
}

/// Targets and relays; they end when it is dropped.
struct Stage {
    devices: Vec<Arc<dyn BlockDevice>>,
    _relays: Vec<Relay>,
    _targets: Vec<Target>,
}

impl Stage {
    /// Starts targets with `size` bytes each, and reaches them through relays.
    fn set(args: &Args, size: u64) -> Result<Stage, Failure> {
        let mut stage = Stage { devices: Vec::new(), _relays: Vec::new(), _targets: Vec::new() };
        for i in 1..=TARGETS {
            let config = Config {
                listen: vec![LOOPBACK],
                threads: 1,
                engine: args.engine.config(),
                ..Config::default()
            };
            let target = Target::start(config)?;
            let uuid = Uuid::new_v4();
            let nqn = format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}");
            let device = Arc::new(MemDevice::new(size, BLOCK).map_err(Failure::failed)?);
            target.export(&nqn, &format!("demo-{i}"), device, uuid)?;
            let relay =
                Relay::start_with(&args.engine.config(), LOOPBACK, target.addresses()[0], args.link())
                    .map_err(|e| Failure::failed(format!("cannot start a relay: {e}")))?;
            let uri = format!("nvme+tcp://{}/{nqn}", relay.local_addr());
            let uri = uri.parse().map_err(longhaul_initiator::Error::Uri)?;
            let options = Options { engine: args.engine.config(), ..Options::default() };
            stage.devices.push(RemoteDevice::connect_blocking(&uri, options)?);
            stage._relays.push(relay);
            stage._targets.push(target);
        }
        Ok(stage)
    }
}

fn progress(output: Output, name: &'static str, bytes: u64) -> Result<ProgressBar, Failure> {
    let bar = if output.is_live() { ProgressBar::new(bytes) } else { ProgressBar::hidden() };
    let style = "{prefix:6} {bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec} ETA {eta}";
    bar.set_style(ProgressStyle::with_template(style).map_err(Failure::failed)?);
    bar.set_prefix(name);
    Ok(bar)
}

fn report(phases: &[Phase], files: usize, args: &Args, output: Output) {
    let of = |p: &Phase| {
        json!({
            "bytes": p.bytes, "files": files, "seconds": p.seconds, "bytes_per_second": p.rate(),
            "plain_tcp_bytes_per_second": p.plain_rate(), "ratio": p.ratio(),
        })
    };
    let mut summary = json!({ "files": files, "rtt_ms": args.rtt.as_secs_f64() * 1e3, "rate": args.rate, "verified": true });
    for phase in phases {
        summary[phase.name] = of(phase);
    }
    output.event("summary", summary);
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["", "bytes", "files", "time", "throughput", "plain TCP", "ratio"]);
    for p in phases {
        table.add_row([
            p.name.to_owned(),
            format_size(p.bytes),
            files.to_string(),
            format!("{:.2} s", p.seconds),
            format_rate(p.rate() * 8.0),
            format_rate(p.plain_rate() * 8.0),
            format!("{:.2}", p.ratio()),
        ]);
    }
    output.line(table);
    output.line("every byte was read back and verified (XXH3-128)");
}
