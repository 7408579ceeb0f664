//! `longhaul discover`.

use crate::arguments::InitiatorArgs;
use crate::events::{DiscoveryRecord, DiscoverySummary};
use crate::exit::{Failure, Outcome};
use crate::output::Output;
use longhaul_initiator::{IO_PORT, SCHEME, discover, parse_authority};

#[derive(Debug, clap::Args)]
pub(crate) struct DiscoverArgs {
    /// Address of the target, or a URI of one of its devices [default port: 4420; discovery
    /// controllers also use 8009]
    #[arg(value_name = "HOST[:PORT]|URI")]
    host: String,
    #[command(flatten)]
    initiator: InitiatorArgs,
}

pub(crate) fn run(args: &DiscoverArgs, output: Output) -> Outcome {
    // Only the host of a URI matters.
    let host = args.host.strip_prefix(SCHEME).and_then(|rest| rest.strip_prefix("://")).unwrap_or(&args.host);
    let host = host.split(['/', '?']).next().unwrap_or(host);
    let (host, port) = parse_authority(host).map_err(|e| {
        Failure::usage(format!("'{}': {e}; the form is HOST[:PORT], as in dtn1:{IO_PORT}", args.host))
    })?;
    let log = discover(&host, port, args.initiator.options())?;
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
    Ok(())
}
