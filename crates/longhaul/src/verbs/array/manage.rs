//! Requests to an array: to the process that runs it on this host, or else in this process, which
//! runs the array for the request.

use super::{AddSpare, ArrayArgs, GrowArray, Replace, Scrub, Stop, show};
use crate::arguments::InitiatorArgs;
use crate::events::{ArrayGrown, ArrayList, ArrayProgress, ArrayStopped, ListedArray, ScrubSummary};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::screen::Line;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use longhaul_block::units::format_size;
use longhaul_device::arrays::{
    ArrayAccess, ArrayClient, ArrayRecord, ArrayReply, ArrayRequest, SCHEME, read_status, status_json,
};
use serde_json::Value;
use std::time::Duration;

/// Interval of progress events.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Reads the progress of an operation from a status: the share done, from 0 to 1, and its text.
type ProgressOf = fn(&Value) -> Option<(f64, String)>;

struct Managed {
    record: ArrayRecord,
    access: ArrayAccess,
}

impl Managed {
    /// Finds the process that runs the array, or else runs it in this one.
    fn open(name: &str, initiator: &InitiatorArgs) -> Result<Managed, Failure> {
        let name = name.strip_prefix(SCHEME).unwrap_or(name);
        let record = ArrayRecord::find(name)?;
        let access = ArrayAccess::open(&record, || initiator.opener())?;
        if !access.is_own() {
            return Ok(Managed { record, access });
        }
        // With the members that were found on the devices.
        let record = ArrayRecord::find(&record.uuid.to_string())?;
        Ok(Managed { record, access })
    }

    fn ask(&self, request: ArrayRequest) -> ArrayReply {
        self.access.ask(request)
    }

    /// Sends a request, and reports progress until its reply.
    fn follow(&self, request: ArrayRequest, progress_of: ProgressOf, output: Output) -> ArrayReply {
        let line = Line::new();
        self.access.follow(request, PROGRESS_INTERVAL, |status| {
            output.event(&ArrayProgress { status: status.clone().into() });
            if let Some((share, words)) = progress_of(status) {
                line.show(Some(share), words);
            }
        })
    }

    /// Stops the array if this process runs it.
    fn end(self) -> Outcome {
        Ok(self.access.end()?)
    }
}

pub(super) fn status(args: &ArrayArgs, output: Output) -> Outcome {
    let name = args.array.strip_prefix(SCHEME).unwrap_or(&args.array);
    let record = ArrayRecord::find(name)?;
    // The array is not run for a status: that would write to its members, and would mark those
    // stale that are unreachable from this host only.
    let (status, running) = match ArrayClient::ask(&record, &ArrayRequest::Status) {
        Some(reply) => (reply?, true),
        None => (status_json(&read_status(&record, &args.initiator.opener())?), false),
    };
    show::summary(&status, Some(running), output);
    match status["health"].as_str() {
        Some("healthy") => Ok(()),
        health => {
            let (exit, name) =
                (if health == Some("degraded") { Exit::Partly } else { Exit::Failed }, &status["name"]);
            let name = name.as_str().unwrap_or_default();
            let detail = status["detail"].as_str().unwrap_or_default();
            let failure =
                Failure::new(exit, format!("array {name} is {}: {detail}", health.unwrap_or("unknown")));
            Err(Failure { in_result: true, ..failure })
        }
    }
}

pub(super) fn list(output: Output) -> Outcome {
    let all = ArrayRecord::all()?;
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(["NAME", "UUID", "DEVICES", "RUNS", "RECORDED FOR"]);
    for record in &all {
        let (name, uuid) = (&record.name, record.uuid.to_string());
        // A process that does not reply in time runs the array nevertheless.
        let answer = ArrayClient::ask(record, &ArrayRequest::Status);
        let runs = answer.is_some();
        let health =
            answer.and_then(Result::ok).and_then(|status| Some(status["health"].as_str()?.to_owned()));
        let user = record.registry.user();
        output.event(&ListedArray {
            uuid: uuid.clone(),
            name: name.clone(),
            devices: record.devices.clone(),
            running: runs,
            health: health.clone(),
            user: user.map(str::to_owned),
        });
        let state = match (runs, health) {
            (false, _) => "no".to_owned(),
            (true, health) => health.unwrap_or_else(|| "does not answer".into()),
        };
        table.add_row([name, &uuid, &record.devices.len().to_string(), &state, user.unwrap_or("you")]);
    }
    output.event(&ArrayList { arrays: all.len() });
    if !output.is_json() && !all.is_empty() {
        output.line(table.trim_fmt());
    } else if all.is_empty() {
        output.note("no array is known to you on this host: longhaul array create, or assemble");
    }
    Ok(())
}

pub(super) fn replace(args: Replace, output: Output) -> Outcome {
    let mut array = Managed::open(&args.array, &args.initiator)?;
    if let Some(rate) = args.rebuild_rate {
        array.ask(ArrayRequest::Rate { rate: Some(rate) })?;
    }
    let before = array.ask(ArrayRequest::Status)?;
    let replaced = before["members"][args.member]["uuid"].as_str().and_then(|uuid| uuid.parse().ok());
    let device = args.device.clone();
    array.ask(ArrayRequest::Replace { index: args.member, device, force: args.force })?;
    array.record.add(&args.device);
    array.record.save()?;
    let status =
        array.follow(ArrayRequest::Rebuilt { index: args.member }, show::rebuild_progress, output)?;
    if let Some(member) = replaced {
        array.record.remove_member(member, &args.device);
        array.record.save()?;
    }
    array.end()?;
    show::summary(&status, None, output);
    check_lost(&status)
}

fn check_lost(status: &Value) -> Outcome {
    match status["lost_bytes"].as_u64() {
        None | Some(0) => Ok(()),
        Some(bytes) => {
            let failure =
                Failure::new(Exit::Mismatch, format!("{bytes} bytes are lost; the status lists them"));
            Err(Failure { in_result: true, ..failure })
        }
    }
}

pub(super) fn add_spare(args: AddSpare, output: Output) -> Outcome {
    let mut array = Managed::open(&args.array, &args.initiator)?;
    array.ask(ArrayRequest::AddSpare { device: args.device.clone(), force: args.force })?;
    array.record.add(&args.device);
    array.record.save()?;
    let status = array.ask(ArrayRequest::Status)?;
    array.end()?;
    show::summary(&status, None, output);
    Ok(())
}

pub(super) fn grow(args: &GrowArray, output: Output) -> Outcome {
    let array = Managed::open(&args.array.array, &args.array.initiator)?;
    let reply = array.ask(ArrayRequest::Grow { least: None })?;
    let (uuid, name) = (array.record.uuid.to_string(), array.record.name.clone());
    array.end()?;
    let size = |field: &str| reply[field].as_u64().unwrap_or(0);
    let (before, after) = (size("before"), size("after"));
    output.event(&ArrayGrown { uuid, name: name.clone(), before, size: after });
    if after == before {
        let message = format!("nothing to do: no stripe more fits on the members of array {name}");
        return args.nothing.nothing(message, output);
    }
    if !output.is_json() {
        output.line(format_args!(
            "array:{name} has {} instead of {}",
            format_size(after),
            format_size(before)
        ));
    }
    Ok(())
}

pub(super) fn scrub(args: &Scrub, output: Output) -> Outcome {
    let array = Managed::open(&args.array.array, &args.array.initiator)?;
    let report = array.follow(ArrayRequest::Scrub { rate: args.rate }, show::scrub_progress, output)?;
    array.end()?;
    output.event(&ScrubSummary { report: report.clone().into() });
    show::scrub_summary(&report, output);
    if report["finished"] != true {
        return Err(Failure {
            in_result: true,
            ..Failure::new(Exit::Partly, "the scrub has not come to its end")
        });
    }
    let count = |name: &str| report[name].as_u64().unwrap_or(0);
    let (exit, why) = match (count("lost"), count("disagreeing"), count("waiting")) {
        (0, 0, 0) => return Ok(()),
        (0, 0, waiting) => {
            (Exit::Partly, format!("{waiting} blocks cannot be repaired before the missing members are back"))
        }
        (0, blocks, _) => (
            Exit::Mismatch,
            format!(
                "{blocks} blocks match their checksums but not each other: a member has lost writes, and \
                 the array cannot determine which. Nothing was changed. Compare the ranges that are listed with \
                 what should be there; then replace the member that is to blame (longhaul array replace), or \
                 rewrite those ranges, each as a whole"
            ),
        ),
        (lost, ..) => (Exit::Mismatch, format!("{lost} blocks cannot be repaired")),
    };
    Err(Failure { in_result: true, ..Failure::new(exit, why) })
}

pub(super) fn stop(args: &Stop, output: Output) -> Outcome {
    let name = args.array.array.strip_prefix(SCHEME).unwrap_or(&args.array.array);
    let record = ArrayRecord::find(name)?;
    let summary = |ran: bool| {
        output.event(&ArrayStopped { uuid: record.uuid.to_string(), name: record.name.clone(), ran });
    };
    match ArrayClient::ask(&record, &ArrayRequest::Stop) {
        None => {
            summary(false);
            let message = format!("nothing to do: array {} does not run on this host", record.name);
            args.nothing.nothing(message, output)
        }
        Some(reply) => {
            reply?;
            summary(true);
            output.note(format_args!("array {} is stopped", record.name));
            Ok(())
        }
    }
}
