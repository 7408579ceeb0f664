//! `longhaul demo`: a demonstration on one machine.
//!
//! Two targets run behind relays that add a round trip. In each round, a data set is written to
//! them, read back and compared, and plain TCP through the same kind of relay is measured in
//! the same way, as the anchor. Then a tree of small files is copied over such a link, by
//! `longhaul cp` and by scp.

mod copy;
mod files;
mod plain;
mod scp;
mod tell;
mod temporary;
mod trees;
mod window;

use crate::arguments::{EngineArgs, parse_bytes, parse_rate, parse_time};
use crate::exit::{Exit, Failure, Outcome};
use crate::live::Pace;
use crate::output::Output;
use copy::Copier;
use files::DataSet;
use indicatif::{ProgressBar, ProgressStyle};
use longhaul_block::units::{format_rate, format_size};
use longhaul_block::{BlockDevice, MemDevice};
use longhaul_initiator::{Options, RemoteDevice};
use longhaul_target::{Config, Target};
use longhaul_transfer::dataset::Scale;
use longhaul_wan::{Link, Relay};
use plain::StreamDirection;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tell::{Phase, Spread};
use uuid::Uuid;
use window::Window;

/// Targets that the data set is spread over.
const TARGETS: usize = 2;
/// Block size of their namespaces in bytes.
const BLOCK: u32 = 4096;
/// Number of files and total size of the tree of small files, which have equal sizes.
const SMALL_FILES: u64 = 200;
const SMALL_BYTES: u64 = 25 << 20;
const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Uses memory, the temporary directory and loopback of this machine only, and
needs no root. Rates are measured after the ramp-up, for Longhaul and plain TCP
alike.")]
pub(crate) struct DemoArgs {
    /// Copy the files of this directory instead of a generated data set
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Size of the generated data set (file sizes as in production transfers)
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = parse_bytes)]
    scale: u64,
    /// Round-trip time to the targets
    #[arg(long, value_name = "TIME", default_value = "15ms", value_parser = parse_time)]
    rtt: Duration,
    /// Rate of the link to each target, or 0 for no limit
    #[arg(long, value_name = "RATE", default_value = "2Gbit", value_parser = parse_rate)]
    rate: u64,
    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    #[command(flatten)]
    engine: EngineArgs,
}

impl DemoArgs {
    /// The link to one target.
    fn link(&self) -> Link {
        Link { rate: (self.rate > 0).then_some(self.rate), ..Link::round_trip(self.rtt) }
    }

    /// Description of the link.
    fn link_name(&self) -> String {
        let rate = if self.rate > 0 { format_rate(self.rate as f64) } else { "no limit of rate".into() };
        format!("{} ms of round trip, {rate}", self.rtt.as_secs_f64() * 1e3)
    }
}

pub(crate) fn run(args: &DemoArgs, output: Output) -> Outcome {
    let source = match &args.data {
        Some(dir) => DataSet::of(dir)?,
        None => DataSet::make("demo", "real", Scale::bytes(args.scale), output)?,
    };
    let (files, bytes) = (source.files.len(), source.bytes());
    if bytes == 0 {
        return Err(Failure::failed(format!("{} has no file with content", source.dir.display())));
    }
    output.note(format_args!("{files} files, {} in {}", format_size(bytes), source.dir.display()));
    output.note(format_args!("{TARGETS} targets, each behind a link of its own: {}", args.link_name()));
    let window = Window::of(args.rtt);
    let phases = rates(&source, window, args, output)?;

    let small = Scale { files: Some(SMALL_FILES), bytes: Some(SMALL_BYTES) };
    let small = match &args.data {
        Some(_) => source,
        None => DataSet::make("demo-small", "equal", small, output)?,
    };
    let line = ProgressLine::new(output);
    let trees = trees::measure(&small, args, &|words| line.say(words))?;
    drop(line);
    tell::tell(&phases, (files, bytes), &trees, (args, window), output);
    Ok(())
}

/// Writes, reads and verifies in rounds, and measures plain TCP in each direction.
fn rates(source: &DataSet, window: Window, args: &DemoArgs, output: Output) -> Result<[Phase; 2], Failure> {
    let testbed = Testbed::start(args, source.space_for_each(TARGETS))?;
    let copier = Copier::new(source, &testbed.devices, args.engine.config())?;
    let mut phases = ["write", "read"].map(|name| Phase { name, ours: Vec::new(), plain: Vec::new() });
    let line = ProgressLine::new(output);
    for round in 1..=args.rounds {
        let progress = |stage: &str| line.follow(format!("round {round} of {}: {stage}", args.rounds));
        let plain = |way, progress: &mut dyn FnMut(u64)| {
            plain::measure(&|| args.link(), TARGETS, way, window, &args.engine.config(), progress)
                .map_err(|e| Failure::failed(format_args!("plain TCP: {e}")))
        };
        let [write, read] = &mut phases;
        write.ours.push(copier.write(window, &mut progress("write"))?);
        write.plain.push(plain(StreamDirection::There, &mut progress("plain TCP there"))?);
        let (counted, wrong) = copier.read_and_verify(window, &mut progress("read and verify"))?;
        if let Some(first) = wrong.first() {
            let message = format!("{} pieces differ, first: {first}", wrong.len());
            return Err(Failure::new(Exit::Mismatch, message));
        }
        read.ours.push(counted);
        read.plain.push(plain(StreamDirection::Back, &mut progress("plain TCP back"))?);
    }
    Ok(phases)
}

/// The progress line: hidden without a terminal, and removed on drop.
struct ProgressLine(ProgressBar);

impl ProgressLine {
    fn new(output: Output) -> ProgressLine {
        let bar = if output.is_live() {
            crate::screen::add(ProgressBar::new_spinner())
        } else {
            ProgressBar::hidden()
        };
        let style = ProgressStyle::with_template("{spinner} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        ProgressLine(bar)
    }

    fn say(&self, words: &str) {
        self.0.set_message(words.to_owned());
        self.0.tick();
    }

    /// Shows `what` with the current rate; the returned function takes the bytes moved so far.
    fn follow(&self, what: String) -> impl FnMut(u64) {
        self.say(&what);
        let mut pace = Pace::new(Instant::now(), 0);
        move |moved| {
            if pace.look(Instant::now(), moved) {
                let rate = pace.rate().map(|rate| format!(", {}", format_rate(rate * 8.0)));
                self.say(&format!("{what}{}", rate.unwrap_or_default()));
            }
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// The targets, the relays in front of them, and the devices reached through those.
struct Testbed {
    devices: Vec<Arc<dyn BlockDevice>>,
    _relays: Vec<Relay>,
    _targets: Vec<Target>,
}

impl Testbed {
    /// Starts targets with `size` bytes each, and connects to them through relays.
    fn start(args: &DemoArgs, size: u64) -> Result<Testbed, Failure> {
        let mut testbed = Testbed { devices: Vec::new(), _relays: Vec::new(), _targets: Vec::new() };
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
            testbed.devices.push(RemoteDevice::connect_blocking(&uri, options)?);
            testbed._relays.push(relay);
            testbed._targets.push(target);
        }
        Ok(testbed)
    }
}
