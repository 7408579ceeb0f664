//! `longhaul discover`.

use crate::exit::{Failure, Outcome};
use crate::names::InitiatorArgs;
use crate::output::Output;
use longhaul_initiator::{IO_PORT, discover, parse_authority};
use serde_json::json;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the target listens [default port: 4420; discovery controllers also use 8009]
    #[arg(value_name = "HOST[:PORT]")]
    host: String,
    #[command(flatten)]
    initiator: InitiatorArgs,
}

pub(crate) fn run(args: &Args, output: Output) -> Outcome {
    let (host, port) = parse_authority(&args.host).map_err(|e| {
        Failure::usage(format!("'{}': {e}; the form is HOST[:PORT], as in dtn1:{IO_PORT}", args.host))
    })?;
    let log = discover(&host, port, args.initiator.options())?;
    for record in &log.records {
        output.event(
            "record",
            json!({
                "subtype": record.kind_name(), "subnqn": record.subnqn, "trtype": record.transport_name(),
                "adrfam": record.family_name(), "traddr": record.traddr, "trsvcid": record.trsvcid,
                "portid": record.portid, "cntlid": record.cntlid, "asqsz": record.asqsz,
                "treq": record.treq, "sectype": record.sectype, "uri": record.uri(),
            }),
        );
    }
    output.event("summary", json!({ "generation": log.generation, "records": log.records.len() }));
    if !output.is_json() {
        let mut table = comfy_table::Table::new();
        table.load_preset(comfy_table::presets::NOTHING).set_header([
            "TYPE",
            "TRANSPORT",
            "ADDRESS",
            "SUBSYSTEM",
        ]);
        for record in &log.records {
            let address = format!("{}:{}", record.traddr, record.trsvcid);
            table.add_row([record.kind_name(), record.transport_name(), &address, &record.subnqn]);
        }
        output.line(format_args!("{table}\n{} records, generation {}", log.records.len(), log.generation));
    }
    Ok(())
}
