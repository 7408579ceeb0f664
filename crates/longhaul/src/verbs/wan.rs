//! `longhaul wan`: an emulated long link between namespaces.

mod arguments;
mod command;
mod show;

use crate::arguments::parse_bytes;
use crate::events::{WanPaths, WanReady, WanSummary};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use arguments::{ConditionArgs, SetArgs, StatusArgs};
use clap::Subcommand;
use longhaul_wan::control::{self, Control, Request, Status};
use longhaul_wan::{Conditions, Error, Via, Wan, WanPlan};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::sync::Arc;

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Creates network namespaces joined by links with a planted delay, rate, queue
and loss, for the TCP of the kernel. Needs root. COMMAND runs in the namespace
of the client, and its exit status is passed on; without one the links stay
until SIGINT or SIGTERM. Server i has address 10.77.i.2. With --json, the output
of COMMAND goes to standard error.

Examples:
  longhaul wan --rtt 15ms --rate 1Gbit --loss 0.1% -- ping -c 3 10.77.1.2
  longhaul wan --rtt 100ms --rate 2Gbit --star 4 --name far &
  ip netns exec far-server1 iperf3 -s -D
  longhaul wan set far --link 1 --cut")]
pub(crate) struct WanArgs {
    #[command(subcommand)]
    verb: Option<WanVerb>,
    #[command(flatten)]
    conditions: ConditionArgs,
    /// Name of the path: its namespaces are NAME-client and NAME-server
    #[arg(long, default_value = "wan")]
    name: String,
    /// One client, and N servers (NAME-server1 …) each behind a link of its own
    #[arg(long, value_name = "N")]
    star: Option<usize>,
    /// Largest IP packet in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 9000)]
    mtu: u32,
    /// Limit of TCP buffers in the namespaces, or 0 for that of this machine
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_bytes)]
    tcp_buffers: u64,
    /// Memory for packets in flight, of all links together
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_bytes)]
    memory: u64,
    /// Seed of loss, jitter, reordering and duplicates [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Packet emulation: tun, netem, or auto (netem where the kernel has it and it supports the
    /// conditions)
    #[arg(long, value_name = "KIND", default_value = "auto")]
    via: Via,
    /// Command to run in the namespace of the client
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
enum WanVerb {
    /// Change a running path: any condition, cut, restore
    Set(SetArgs),
    /// Show running paths and what went through
    Status(StatusArgs),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        let exit = match e {
            Error::Invalid(_) | Error::NoLink(_) => Exit::Usage,
            Error::NotRunning(_) => Exit::Unreachable,
            _ => Exit::Failed,
        };
        Failure::new(exit, e)
    }
}

pub(crate) fn run(args: &WanArgs, output: Output) -> Outcome {
    match &args.verb {
        Some(WanVerb::Set(set)) => set_path(set, output),
        Some(WanVerb::Status(status)) => show_paths(status, output),
        None => emulate(args, output),
    }
}

fn set_path(args: &SetArgs, output: Output) -> Outcome {
    let change = Box::new(args.change()?);
    let status = control::ask(&args.name, &Request::Set { link: args.link, change })?;
    output.event(&WanSummary { path: show::path(&status), command_exit: None });
    for line in show::conditions(&status) {
        output.line(line);
    }
    Ok(())
}

fn show_paths(args: &StatusArgs, output: Output) -> Outcome {
    let names = args.name.clone().map_or_else(control::names, |name| vec![name]);
    let mut paths = Vec::new();
    for name in names {
        match control::ask(&name, &Request::Status { reset: args.reset }) {
            Ok(status) => paths.push(status),
            // Without a name, a socket that a killed process left is skipped.
            Err(Error::NotRunning(_)) if args.name.is_none() => {}
            Err(e) => return Err(e.into()),
        }
    }
    output.event(&WanPaths { paths: paths.iter().map(show::path).collect() });
    if paths.is_empty() {
        output.note("no emulated path is running");
    }
    for status in &paths {
        show::conditions(status).into_iter().chain(show::statistics(status)).for_each(|l| output.line(l));
    }
    Ok(())
}

impl WanArgs {
    fn plan(&self) -> Result<WanPlan, Failure> {
        let conditions = Conditions::default().with(&self.conditions.change())?;
        let memory = usize::try_from(self.memory).map_err(Failure::usage)?;
        Ok(WanPlan {
            star: self.star,
            mtu: self.mtu,
            tcp_buffers: (self.tcp_buffers > 0).then_some(self.tcp_buffers),
            memory,
            seed: self.seed,
            via: self.via,
            ..WanPlan::new(self.name.clone(), conditions)
        })
    }
}

fn emulate(args: &WanArgs, output: Output) -> Outcome {
    if args.conditions.rtt.is_none() {
        return Err(Failure::usage("--rtt is needed: how long is the link, such as --rtt 15ms?"));
    }
    // From here on signals are handled, so that none ends the process before it cleans up.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGCHLD]).map_err(Failure::failed)?;
    let wan = Arc::new(Wan::start(args.plan()?)?);
    let control = Control::start(&wan)?;
    let status = control::status(&wan, false)?;
    ready(&status, args, output);
    let exit = match args.command.split_first() {
        Some((program, rest)) => Some(command::run(&wan, program, rest, &mut signals, output)?),
        None => {
            signals.forever().find(|signal| *signal != SIGCHLD);
            None
        }
    };
    let status = control::status(&wan, false)?;
    drop(control);
    drop(wan);
    summary(&status, exit, output);
    match exit {
        // The exit status of the command becomes that of this program.
        Some(code) if code != 0 => std::process::exit(code),
        _ => Ok(()),
    }
}

fn ready(status: &Status, args: &WanArgs, output: Output) {
    output.event(&WanReady { path: show::path(status) });
    for line in show::conditions(status) {
        output.note(line);
    }
    if args.command.is_empty() {
        output.note(format_args!("enter with: ip netns exec {} COMMAND", status.client));
        output.note(format_args!("change with: longhaul wan set {}", status.name));
        if !output.is_json() {
            output.line(format_args!("ready {} {}", status.client, status.servers.join(" ")));
        }
    }
}

fn summary(status: &Status, exit: Option<i32>, output: Output) {
    output.event(&WanSummary { path: show::path(status), command_exit: Some(exit) });
    for line in show::statistics(status) {
        // With a command, standard output belongs to it.
        if exit.is_some() { output.note(line) } else { output.line(line) }
    }
}
