//! `longhaul info`.

use crate::exit::Outcome;
use crate::names::InitiatorArgs;
use crate::output::Output;
use longhaul_block::BlockDevice;
use longhaul_block::units::format_size;
use serde_json::json;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The namespace: nvme+tcp://HOST[:PORT]/SUBNQN[?nsid=N]
    uri: String,
    #[command(flatten)]
    initiator: InitiatorArgs,
}

pub(crate) fn run(args: &Args, output: Output) -> Outcome {
    let device = args.initiator.connect(&args.uri)?;
    let (controller, ns, info) = (device.controller(), device.namespace(), device.info());
    let round_trip = controller.round_trip;
    output.event(
        "summary",
        json!({
            "uri": info.name,
            "controller": {
                "address": controller.address, "subnqn": controller.subnqn, "cntlid": controller.cntlid,
                "model": controller.model, "serial": controller.serial, "firmware": controller.firmware,
                "version": controller.version, "max_transfer": controller.max_transfer,
                "in_capsule": controller.in_capsule, "queue_entries": controller.queue_entries,
                "queues": controller.queues, "kato_ms": controller.kato.as_millis() as u64,
                "traffic_keep_alive": controller.traffic_keep_alive, "hdr_digest": controller.hdr_digest,
                "data_digest": controller.data_digest, "write_cache": controller.write_cache,
                "resets_others": controller.resets_others,
            },
            "namespace": {
                "nsid": ns.nsid, "size": ns.size, "block_size": ns.block_size, "optimal_io": ns.optimal_io,
                "read_only": ns.read_only, "uuid": ns.uuid.map(|u| u.to_string()),
            },
            "path": {
                "round_trip_us": round_trip.0.as_micros() as u64, "variation_us": round_trip.1.as_micros() as u64,
                "congestion": controller.congestion,
            },
        }),
    );
    if output.is_json() {
        return Ok(());
    }
    let digests = match (controller.hdr_digest, controller.data_digest) {
        (true, true) => "header and data",
        (true, false) => "header",
        (false, true) => "data",
        (false, false) => "none",
    };
    let max = controller.max_transfer.map_or_else(|| "no limit".to_owned(), format_size);
    let optional = |on: bool, what: &str| if on { what.to_owned() } else { format!("no {what}") };
    let lines = [
        ("namespace", format!("{} of {}", ns.nsid, controller.subnqn)),
        ("size", format!("{} in blocks of {}", format_size(ns.size), format_size(ns.block_size.into()))),
        ("uuid", ns.uuid.map_or_else(|| "none".into(), |uuid| uuid.to_string())),
        ("access", if ns.read_only { "read-only".into() } else { "read and write".into() }),
        (
            "controller",
            format!(
                "{} {} (serial {}, NVMe {}), id {}",
                controller.model,
                controller.firmware,
                controller.serial,
                controller.version,
                controller.cntlid
            ),
        ),
        (
            "transfers",
            format!("{max} a command, {} of a write in the capsule", format_size(controller.in_capsule)),
        ),
        ("queues", format!("{} of {} entries", controller.queues, controller.queue_entries)),
        ("write cache", optional(controller.write_cache, "volatile write cache")),
        ("digests", digests.to_owned()),
        (
            "path",
            format!(
                "{} at {:.3} ms round trip (± {:.3} ms), {}",
                controller.address,
                round_trip.0.as_secs_f64() * 1e3,
                round_trip.1.as_secs_f64() * 1e3,
                controller.congestion
            ),
        ),
    ];
    for (name, value) in lines {
        output.line(format_args!("{name:12} {value}"));
    }
    Ok(())
}
