//! Status and scrub report of an array as JSON, as replies of its control socket have them.

use longhaul_array::{Condition, Extent, Health, Progress, ScrubReport, Status};
use serde_json::{Value, json};

fn condition(condition: Condition, rows: u64) -> Value {
    match condition {
        Condition::Active => json!({ "condition": "active" }),
        Condition::Offline => json!({ "condition": "absent" }),
        Condition::Failed => json!({ "condition": "failed" }),
        Condition::Rebuilding { done, partial } => {
            let name = if partial { "catching-up" } else { "rebuilding" };
            json!({ "condition": name, "done_stripes": done, "stripes": rows })
        }
    }
}

fn progress(progress: &Progress) -> Value {
    json!({
        "member": progress.member, "done_bytes": progress.done, "total_bytes": progress.total,
        "elapsed_seconds": progress.elapsed.as_secs_f64(), "bytes_per_second": progress.rate(),
        "remaining_seconds": progress.remaining().map(|time| time.as_secs_f64()),
    })
}

fn extents(extents: &[Extent]) -> Vec<Value> {
    extents.iter().map(|range| json!({ "offset": range.offset, "bytes": range.len })).collect()
}

/// The report of a scrub: sizes are in bytes, times in seconds, and counts by member are in the order
/// of the members.
pub fn scrub_json(report: &ScrubReport) -> Value {
    json!({
        "finished": report.finished, "stripes_done": report.stripes.0, "stripes": report.stripes.1,
        "wrong_blocks": report.wrong, "unreadable_blocks": report.unreadable,
        "mended": report.repaired, "inconsistent": report.inconsistent, "lost": report.lost,
        "disagreeing": report.disagreeing, "disagreements": extents(&report.disagreements),
        "unsettled": report.unsettled, "waiting": report.waiting,
        "own_blocks": report.own,
        "elapsed_seconds": report.elapsed.as_secs_f64(),
    })
}

/// The status of an array: sizes are in bytes.
pub fn status_json(status: &Status) -> Value {
    let geometry = &status.geometry;
    let members: Vec<Value> = status
        .members
        .iter()
        .map(|member| {
            let mut value = condition(member.condition, geometry.rows);
            value["index"] = json!(member.index);
            value["uuid"] = json!(member.uuid.to_string());
            value["device"] = json!(member.device);
            value["reason"] = json!(member.reason);
            value["mismatches"] = json!(member.counts.mismatches);
            value["mended"] = json!(member.counts.repaired);
            value["read_errors"] = json!(member.counts.read_errors);
            value["hedged"] = json!(member.counts.hedged);
            value
        })
        .collect();
    let health = match status.health {
        Health::Healthy => "healthy",
        Health::Degraded => "degraded",
        Health::Halted => "halted",
    };
    json!({
        "uuid": status.uuid.to_string(), "name": status.name, "layout": geometry.layout.name(),
        "size": geometry.size(), "stripe_unit": geometry.unit, "stripe": geometry.stripe(),
        "redundancy": geometry.redundancy(), "health": health, "detail": status.detail,
        "generation": status.generation, "members": members, "spares": status.spares,
        "filling": status.rebuild.as_ref().map(progress), "scrub": status.scrub.as_ref().map(scrub_json),
        "lost": extents(&status.lost), "lost_bytes": status.lost_bytes,
        "marked_regions": status.marked_regions.0, "regions": status.marked_regions.1,
        "journal_used": status.journal_used,
        "writes": {
            "full": status.counts.full_writes, "read_modify": status.counts.modify_writes,
            "reconstruct": status.counts.reconstruct_writes, "degraded": status.counts.degraded_writes,
        },
        "reads": { "reconstructed": status.counts.reconstructed, "hedges_won": status.counts.hedges_won },
    })
}
