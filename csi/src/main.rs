//! `longhaul-csi`: a driver of the Container Storage Interface (CSI) over the volumes and file systems of Longhaul
//! pools. It answers the calls of Kubernetes by calls of the program `longhaul`, and has no state of its own.

mod capacity;
mod controller;
mod create;
mod driver;
mod identity;
#[cfg(test)]
mod manifests;
mod mounts;
mod names;
mod node;
mod program;
mod request;
mod service;
mod snapshots;
mod stage;

/// The messages and services of `proto/csi.proto`.
#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub, dead_code, reason = "generated")]
mod v1 {
    tonic::include_proto!("csi.v1");
}

use clap::Parser;
use driver::Driver;
use program::Program;
use service::Endpoint;
use std::process::ExitCode;

/// Volumes and file systems of Longhaul pools, for Kubernetes (CSI)
///
/// The driver answers on a Unix socket. It calls the program longhaul, which reads
/// its settings, such as keys, from its configuration files.
#[derive(Debug, Parser)]
#[command(
    name = "longhaul-csi",
    version,
    max_term_width = 80,
    after_help = "\
Examples:
  longhaul-csi --controller --pool scratch --hostnqn nqn.2026-11.io.longhaul:csi
  longhaul-csi --node-id nqn.2026-11.io.longhaul:node:n1 --pool scratch --on-host"
)]
struct Args {
    /// Where to answer: unix:PATH
    #[arg(long, env = "CSI_ENDPOINT", value_name = "ENDPOINT", default_value = "unix:///csi/csi.sock")]
    endpoint: Endpoint,
    /// Name of the driver in the cluster
    #[arg(long, value_name = "NAME", default_value = "csi.longhaul.io")]
    driver_name: String,
    /// Pool to use; may be repeated
    #[arg(long = "pool", value_name = "POOL", required = true)]
    pools: Vec<String>,
    /// Catalog of the pools, as etcd:HOST:PORT [default: the one that this host
    /// knows each of them by]
    #[arg(long, value_name = "CATALOG")]
    catalog: Option<String>,
    /// Make, remove and publish volumes: the controller service
    #[arg(long, required_unless_present = "node_id")]
    controller: bool,
    /// Host NQN by which the controller manages the pools [default: that of this
    /// host]
    #[arg(long, value_name = "HOSTNQN", requires = "controller")]
    hostnqn: Option<String>,
    /// Attach and mount volumes: the node service, of the node with this host NQN
    #[arg(long, value_name = "HOSTNQN")]
    node_id: Option<String>,
    /// The program longhaul
    #[arg(long, value_name = "PROGRAM", default_value = "longhaul")]
    program: String,
    /// Run the program on the host, outside of this container, so that mounts stay
    /// when the container ends: with nsenter and systemd-run
    #[arg(long)]
    on_host: bool,
}

/// What runs the program of the host in a scope of its own: its processes do not end with the container's.
const ON_HOST: [&str; 11] = [
    "nsenter",
    "--target",
    "1",
    "--mount",
    "--",
    "systemd-run",
    "--scope",
    "--quiet",
    "--collect",
    "--setenv=LC_ALL=C",
    "--",
];

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(node) = args.node_id.as_ref().filter(|node| !names::is_nqn(node)) {
        eprintln!("longhaul-csi: --node-id {node} is no host NQN, such as nqn.2026-11.io.longhaul:node:n1");
        return ExitCode::from(2);
    }
    let before = args.on_host.then_some(ON_HOST).into_iter().flatten().map(str::to_owned);
    let words = before.chain([args.program]).collect();
    let mut driver = Driver::new(Program { words, catalog: args.catalog }, args.pools);
    (driver.manager, driver.node, driver.is_controller) = (args.hostnqn, args.node_id, args.controller);
    match service::run(driver, args.driver_name, &args.endpoint) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("longhaul-csi: cannot answer at {}: {e}", args.endpoint);
            ExitCode::FAILURE
        }
    }
}
