//! `longhaul netbench`.

use crate::arguments::{self, EngineArgs, parse_bytes, parse_time};
use crate::events::{NetbenchReady, ServiceSummary};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::screen::Line;
use longhaul_block::units::format_rate;
use longhaul_engine::address::{self, ListenAddress, reachable};
use longhaul_lab::emulated::{self, Link};
use longhaul_load::Stop;
use longhaul_load::net::{
    Measured, NetDirection, NetError, NetPlan, NetRuns, PORT, Server, ServerConfig, measure,
};
use longhaul_load::watch::{Expect, Watch};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Measures the throughput of plain TCP on a network path, as iperf3 does, with a
server at one end and a client at the other. Bytes are counted where they
arrive, and TCP_INFO of each stream is sampled. Every client that can connect to
the server can make it send and receive: run it no longer than needed.

Examples:
  longhaul netbench --listen 192.0.2.7:7411
  longhaul netbench dtn2 --streams 4 --direction both --runs 5 \\
      --output network.json")]
pub(crate) struct NetbenchArgs {
    /// Server, as HOST[:PORT]
    #[arg(value_name = "HOST", required_unless_present = "listen", conflicts_with = "listen")]
    server: Option<String>,
    /// Run the server, on this address
    #[arg(long, value_name = "ADDR:PORT", value_parser = address::listen::<PORT>)]
    listen: Option<ListenAddress>,
    /// send (to the server), receive (from it) or both at the same time
    #[arg(long, value_name = "WAY", default_value = "send")]
    direction: NetDirection,
    /// TCP connections in each direction
    #[arg(short = 'P', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=128))]
    streams: u16,
    /// How long to measure
    #[arg(short = 't', long, value_name = "TIME", default_value = "10s", value_parser = parse_time)]
    time: Duration,
    /// How long to run before the measurement
    #[arg(short = 'O', long, value_name = "TIME", default_value = "2s", value_parser = parse_time)]
    ramp: Duration,
    /// Sampling interval of the streams
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    interval: Duration,
    /// Bytes of one send or receive call
    #[arg(short, long, value_name = "SIZE", default_value = "128KiB", value_parser = parse_bytes)]
    length: u64,
    /// Let the receiving kernel discard data instead of copying it (MSG_TRUNC), which
    /// excludes the cost of the receiver
    #[arg(short = 'Z', long)]
    zero_copy: bool,
    /// TCP congestion control of both ends, by the kernel's name (bbr, cubic, …)
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Number of runs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    runs: u16,
    /// Write the result (as --json prints it) to a file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

impl From<NetError> for Failure {
    fn from(e: NetError) -> Failure {
        let exit = match &e {
            NetError::Plan(_) => Exit::Usage,
            NetError::Unreachable { .. } | NetError::Lost { .. } => Exit::Unreachable,
            NetError::Refused { .. } => Exit::Refused,
            NetError::Stopped => Exit::Failed,
        };
        let hint = match &e {
            NetError::Unreachable { .. } => "; start 'longhaul netbench --listen ADDR:PORT' there",
            _ => "",
        };
        Failure::new(exit, format_args!("{e}{hint}"))
    }
}

/// `HOST`, `HOST:PORT` or `[ADDR]:PORT`.
fn resolve(name: &str) -> Result<SocketAddr, Failure> {
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let found = match name.rsplit_once(':') {
        _ if bare.parse::<std::net::IpAddr>().is_ok() => (bare, PORT).to_socket_addrs(),
        Some(_) => name.to_socket_addrs(),
        None => (name, PORT).to_socket_addrs(),
    };
    let none = |why: &dyn std::fmt::Display| {
        Failure::new(
            Exit::Unreachable,
            format_args!("cannot resolve '{name}': {why}; check the name, or use an address"),
        )
    };
    found.map_err(|e| none(&e))?.next().ok_or_else(|| none(&"it has no address"))
}

pub(crate) fn run(args: &NetbenchArgs, output: Output) -> Outcome {
    match (&args.listen, &args.server) {
        (Some(listen), _) => serve(arguments::resolve(listen)?, args, output),
        (None, Some(server)) => {
            super::diagnose::tell_unread_counters(output);
            ask(server, args, output)
        }
        (None, None) => Err(Failure::usage("give a server, or --listen to be one")),
    }
}

fn serve(listen: SocketAddr, args: &NetbenchArgs, output: Output) -> Outcome {
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(Failure::failed)?;
    super::cp::raise_descriptors();
    let server = Server::start(ServerConfig { listen, engine: args.engine.config() })
        .map_err(|e| Failure::failed(format!("cannot listen on {listen}: {e}")))?;
    let address = server.address().to_string();
    output.event(&NetbenchReady { listen: address });
    if !output.is_json() {
        output.line(format_args!("ready {}", reachable(server.address())));
    }
    signals.forever().next();
    drop(server);
    output.event(&ServiceSummary { clean: true });
    Ok(())
}

fn ask(name: &str, args: &NetbenchArgs, output: Output) -> Outcome {
    let server = resolve(name)?;
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let plan = NetPlan {
        way: args.direction,
        streams: args.streams,
        ramp_ms: millis(args.ramp),
        time_ms: millis(args.time),
        interval_ms: millis(args.interval),
        block: u32::try_from(args.length).unwrap_or(u32::MAX),
        discard: args.zero_copy,
        congestion: args.congestion.clone(),
    };
    super::cp::raise_descriptors();
    let stop = Stop::new();
    super::bench::stop_on_interrupt(&stop, output)?;
    let mut runs = NetRuns::new(plan.clone(), name);
    let mut broken = Ok(());
    for number in 1..=args.runs {
        let link = Link::here();
        let watch = Watch::start();
        let mut before = (Duration::ZERO, [0; 2]);
        let (live, all) = (Line::new(), (args.ramp + args.time).as_secs_f64());
        let mut progress = |at: Duration, bytes: [u64; 2]| {
            let share = at.as_secs_f64() / all.max(1e-9);
            live.show(Some(share), live_line(number, args.runs, (at, bytes), before));
            before = (at, bytes);
        };
        let measured = measure(server, &plan, &args.engine.config(), &stop, &mut progress);
        drop(live);
        let measured = match measured {
            Ok(measured) => measured,
            Err(e) if number == 1 => return Err(e.into()),
            // The runs before the failure are reported.
            Err(e) => {
                broken = Err(Failure::from(e));
                break;
            }
        };
        if !output.is_json() {
            output.line(line(number, args.runs, &measured, &plan));
        }
        let watched = watch.end();
        runs.push(measured, &watched, &link.map_or_else(Expect::default, |link| link.expect()));
        if stop.is_set() {
            break;
        }
    }
    let mut document = runs.document();
    if let Some(record) = &mut document.longhaul {
        record.conditions.0.extend(emulated::words());
    }
    let interrupted = if stop.is_set() { Err(super::bench::interrupted()) } else { Ok(()) };
    let outcome = super::bench::saved(&mut document, args.output.as_deref(), broken.and(interrupted));
    if output.is_json() {
        output.document(&serde_json::to_string_pretty(&document).map_err(Failure::failed)?);
    } else {
        super::bench::spread::print(&document, output);
    }
    outcome.map_err(|failure| Failure { in_result: output.is_json(), ..failure })
}

fn live_line(number: u16, runs: u16, now: (Duration, [u64; 2]), before: (Duration, [u64; 2])) -> String {
    let seconds = now.0.saturating_sub(before.0).as_secs_f64().max(1e-9);
    let rate = |way: usize| (now.1[way].saturating_sub(before.1[way])) as f64 * 8.0 / seconds;
    let mut text = format!("[run {number}/{runs}, {:.0} s]", now.0.as_secs_f64());
    for (way, name) in [(1, "sent"), (0, "received")] {
        if now.1[way] > 0 {
            text += &format!("  {name} {}", format_rate(rate(way)));
        }
    }
    text
}

/// A run as text.
fn line(number: u16, runs: u16, measured: &Measured, plan: &NetPlan) -> String {
    let mut words = Vec::new();
    for (rate, name) in measured.rates(plan).into_iter().zip(["to the server", "from the server"]) {
        words.extend(rate.map(|rate| format!("{} {name}", format_rate(rate))));
    }
    let rtt = measured
        .round_trip
        .map_or(String::new(), |rtt| format!(", round trip {:.2} ms", rtt.as_secs_f64() * 1e3));
    let cpu = |half: &longhaul_load::net::Half| {
        100.0 * (half.cpu.user_s + half.cpu.system_s) / half.seconds.max(1e-9)
    };
    let run = if runs > 1 { format!("run {number}: ") } else { String::new() };
    format!(
        "{run}{} on {} stream{}, {}{rtt}, processor {:.0} % here and {:.0} % there",
        words.join(", "),
        plan.streams,
        if plan.streams == 1 { "" } else { "s" },
        measured.congestion,
        cpu(&measured.here),
        cpu(&measured.there),
    )
}
