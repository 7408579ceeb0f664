//! `longhaul discover`.

use crate::arguments::{InitiatorArgs, parse_time};
use crate::events::{DiscoveryRecord, DiscoverySummary};
use crate::exit::{Exit, Failure, Outcome};
use crate::mdns;
use crate::output::Output;
use longhaul_initiator::{Discovery, IO_PORT, Options, SCHEME, Uri, discover, parse_authority};
use std::time::Duration;

#[derive(Debug, clap::Args)]
pub(crate) struct DiscoverArgs {
    /// Address of the target, or unix:PATH of its socket, or a URI of one of its devices [default
    /// port: 4420; discovery controllers also use 8009]
    #[arg(value_name = "HOST[:PORT]|URI", required_unless_present = "mdns")]
    host: Option<String>,
    /// Ask the local network for discovery controllers (mDNS, _nvme-disc._tcp), and list the
    /// exports of those that answer
    #[arg(long, conflicts_with = "host")]
    mdns: bool,
    /// Time to wait for answers of --mdns
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "2s", requires = "mdns")]
    mdns_time: Duration,
    #[command(flatten)]
    initiator: InitiatorArgs,
}

pub(crate) fn run(args: &DiscoverArgs, output: Output) -> Outcome {
    let options = args.initiator.options();
    let Some(given) = &args.host else { return on_this_network(args.mdns_time, &options, output) };
    let socket = given.parse::<Uri>().ok().filter(|uri| uri.transport == "unix");
    let socket = socket.map(|uri| format!("unix:{}", uri.host));
    if let Some(at) = socket.as_deref().or(Some(given.as_str()).filter(|given| given.starts_with("unix:"))) {
        show(&discover(at, 0, options)?, output);
        return Ok(());
    }
    // Only the host of a URI matters.
    let host = given.strip_prefix(SCHEME).and_then(|rest| rest.strip_prefix("://")).unwrap_or(given);
    let host = host.split(['/', '?']).next().unwrap_or(host);
    let (host, port) = parse_authority(host, IO_PORT).map_err(|e| {
        Failure::usage(format!("'{given}': {e}; the form is HOST[:PORT], as in dtn1:{IO_PORT}"))
    })?;
    show(&discover(&host, port, options)?, output);
    Ok(())
}

/// Lists the exports of all controllers that answer.
fn on_this_network(time: Duration, options: &Options, output: Output) -> Outcome {
    let controllers = mdns::browse(time)?;
    if controllers.is_empty() {
        return Err(Failure::new(
            Exit::Unreachable,
            format_args!(
                "no discovery controller of this network has answered within {} s: targets announce themselves with \
                 --mdns",
                time.as_secs_f64()
            ),
        ));
    }
    let mut failed = None;
    for at in &controllers {
        match discover(&at.ip().to_string(), at.port(), options.clone()) {
            Ok(log) => show(&log, output),
            Err(e) => {
                output.note(format_args!("longhaul: {at}: {e}"));
                failed = Some(*at);
            }
        }
    }
    match failed {
        None => Ok(()),
        Some(at) => Err(Failure::new(
            Exit::Partly,
            format_args!("{at} has answered by mDNS, and did not list its exports"),
        )),
    }
}

fn show(log: &Discovery, output: Output) {
    for record in &log.records {
        output.event(&DiscoveryRecord {
            subtype: record.kind_name().into(),
            subnqn: record.subnqn.clone(),
            trtype: record.transport_name().into(),
            adrfam: record.family_name().into(),
            traddr: record.traddr.clone(),
            trsvcid: record.trsvcid.clone(),
            portid: record.portid,
            cntlid: record.cntlid,
            asqsz: record.asqsz,
            treq: record.treq,
            sectype: record.sectype,
            uri: record.uri(),
        });
    }
    output.event(&DiscoverySummary { generation: log.generation, records: log.records.len() });
    if !output.is_json() {
        let mut table = comfy_table::Table::new();
        table.load_preset(comfy_table::presets::NOTHING).set_header(["TYPE", "URI"]);
        for record in &log.records {
            // Transports without a URI (RDMA, Fibre Channel) are shown by their fields.
            let uri = record.uri().unwrap_or_else(|| {
                format!("{} {}:{} {}", record.transport_name(), record.traddr, record.trsvcid, record.subnqn)
            });
            table.add_row([record.kind_name(), &uri]);
        }
        output.line(format_args!(
            "{}\n{} records, generation {}",
            table.trim_fmt(),
            log.records.len(),
            log.generation
        ));
    }
}
