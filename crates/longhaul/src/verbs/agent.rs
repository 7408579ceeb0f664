//! `longhaul agent`.

use crate::exit::{Failure, Outcome};
use crate::names::{EngineArgs, parse_bytes};
use crate::output::Output;
use longhaul_target::is_loopback;
use longhaul_transfer::{Agent, AgentConfig};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Serves the directory to `longhaul cp` and `longhaul sync`, as lh://HOST:PORT/PATH with paths relative
to it. Nothing outside the directory is reached. There are no keys and no encryption yet: whoever
reaches the port may read and write as the user who runs this, so --insecure has to say that this is
wanted, except on a loopback address.

Example:
  longhaul agent --listen 192.0.2.7:7400 --root /srv/data --insecure")]
pub(crate) struct Args {
    /// Address and port to serve on
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7400")]
    listen: SocketAddr,
    /// The directory to serve
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// Serve without keys and encryption
    #[arg(long)]
    insecure: bool,
    /// Let nobody write
    #[arg(long)]
    read_only: bool,
    /// Threads that read, for each copy
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = super::cp::threads())]
    readers: u16,
    /// Threads that write, for each copy
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = super::cp::threads())]
    writers: u16,
    /// Bound of the memory for data on its way to the disk
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_bytes)]
    memory: u64,
    /// Congestion control, by the kernel's name (bbr, cubic, …)
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(crate) fn run(args: Args, output: Output) -> Outcome {
    if !args.insecure && !is_loopback(&args.listen) {
        return Err(Failure::usage(format_args!(
            "{} can be reached from other machines, and nothing is encrypted: say --insecure if the network \
             is trusted",
            args.listen
        )));
    }
    // From here on a signal is an event, also before all is ready.
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(Failure::failed)?;
    super::cp::raise_descriptors();
    let config = AgentConfig {
        listen: args.listen,
        root: args.root.clone(),
        read_only: args.read_only,
        readers: args.readers.into(),
        writers: args.writers.into(),
        memory: usize::try_from(args.memory).map_err(Failure::usage)?,
        congestion: args.congestion.clone(),
        engine: args.engine.config(),
    };
    let agent = Agent::start(config).map_err(Failure::failed)?;
    let uri = format!("lh://{}/", agent.address());
    output.event("ready", json!({ "listen": agent.address().to_string(), "uri": uri, "root": args.root }));
    if !output.is_json() {
        output.line(format_args!("ready {uri}"));
    }
    signals.forever().next();
    drop(agent);
    output.event("summary", json!({ "clean": true }));
    Ok(())
}
