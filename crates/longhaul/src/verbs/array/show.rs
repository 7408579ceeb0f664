//! Status, progress and scrub report of an array, as text.

use crate::events::ArraySummary;
use crate::live::eta;
use crate::output::Output;
use longhaul_block::units::format_size;
use serde_json::Value;
use std::time::Duration;

/// Reports the status as the result of the verb.
pub(super) fn summary(status: &Value, running: Option<bool>, output: Output) {
    output.event(&ArraySummary { status: status.clone().into(), running });
    if output.is_json() {
        return;
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let size = |value: &Value| format_size(value.as_u64().unwrap_or(0));
    let health = match text(&status["detail"]) {
        detail if detail.is_empty() => text(&status["health"]),
        detail => format!("{}: {detail}", text(&status["health"])),
    };
    output.line(format_args!("array:{} ({})", text(&status["name"]), text(&status["uuid"])));
    output.line(format_args!(
        "{}, {} in stripes of {} (unit {})",
        text(&status["layout"]),
        size(&status["size"]),
        size(&status["stripe"]),
        size(&status["stripe_unit"])
    ));
    output.line(format_args!("{health}"));
    output.line(guard(status));
    for member in status["members"].as_array().into_iter().flatten() {
        let device = member["device"].as_str().unwrap_or("no device");
        let mut line = format!("  {} {}: {device}", member["index"], text(&member["condition"]));
        if let (Some(done), Some(all)) = (member["done_stripes"].as_u64(), member["stripes"].as_u64()) {
            line += &format!(", {:.0} %", done as f64 * 100.0 / all.max(1) as f64);
        }
        let reason = text(&member["reason"]);
        if !reason.is_empty() {
            line += &format!(" ({reason})");
        }
        for (count, name) in
            [("mismatches", "wrong blocks"), ("mended", "repaired"), ("read_errors", "read errors")]
        {
            if let Some(n) = member[count].as_u64().filter(|n| *n > 0) {
                line += &format!(", {n} {name}");
            }
        }
        output.line(line);
    }
    for spare in status["spares"].as_array().into_iter().flatten() {
        output.line(format_args!("  spare: {}", text(spare)));
    }
    if let Some((_, words)) = rebuild_progress(status) {
        output.line(words);
    }
    for range in status["lost"].as_array().into_iter().flatten() {
        output.line(format_args!("  lost: {} bytes at {}", range["bytes"], range["offset"]));
    }
}

/// What keeps other hosts from writing, as a sentence.
fn guard(status: &Value) -> String {
    let members = status["members"].as_array().into_iter().flatten();
    let unreserved: Vec<String> = members
        .filter(|member| member["guard"] == "heartbeat")
        .map(|member| member["index"].to_string())
        .collect();
    match status["guard"].as_str() {
        Some("reservations") => "guarded by reservations".to_owned(),
        Some("mixed") => format!(
            "guarded by reservations, and by heartbeats where members have none: {}",
            unreserved.join(", ")
        ),
        _ => "guarded by heartbeats".to_owned(),
    }
}

/// Progress of a rebuild: the share done, from 0 to 1, and its text.
pub(super) fn rebuild_progress(status: &Value) -> Option<(f64, String)> {
    let now = &status["filling"];
    let (done, total) = (now["done_bytes"].as_u64()?, now["total_bytes"].as_u64()?);
    let rate = now["bytes_per_second"].as_f64().unwrap_or(0.0);
    let left = now["remaining_seconds"].as_f64().and_then(|s| Duration::try_from_secs_f64(s).ok());
    let words = format!(
        "rebuilding member {}: {}/{}, {}/s{}",
        now["member"],
        format_size(done),
        format_size(total),
        format_size(rate as u64),
        eta(left),
    );
    Some((done as f64 / total.max(1) as f64, words))
}

/// Progress of a scrub: the share done, from 0 to 1, and its text.
pub(super) fn scrub_progress(status: &Value) -> Option<(f64, String)> {
    let now = &status["scrub"];
    let (done, all) = (now["stripes_done"].as_u64()?, now["stripes"].as_u64()?);
    let words = format!("scrubbing: {done}/{all} stripes, {} blocks repaired", now["mended"]);
    Some((done as f64 / all.max(1) as f64, words))
}

/// Prints the result of a scrub, unless events are printed.
pub(super) fn scrub_summary(report: &Value, output: Output) {
    if output.is_json() {
        return;
    }
    output.line(format_args!(
        "{} of {} stripes: {} blocks repaired, {} lost, {} disagreeing ({:.1} s)",
        report["stripes_done"],
        report["stripes"],
        report["mended"],
        report["lost"],
        report["disagreeing"],
        report["elapsed_seconds"].as_f64().unwrap_or(0.0)
    ));
    for (what, words) in [("wrong_blocks", "wrong"), ("unreadable_blocks", "unreadable")] {
        for (member, count) in report[what].as_array().into_iter().flatten().enumerate() {
            if count.as_u64() > Some(0) {
                output.line(format_args!("  member {member} was {words} in {count} blocks"));
            }
        }
    }
    for (count, words) in [
        ("inconsistent", "matched their checksums, but the others showed them to be wrong"),
        ("unsettled", "did not fit together while they were in use, and were not judged"),
        ("waiting", "wait for missing members"),
    ] {
        if let Some(blocks) = report[count].as_u64().filter(|blocks| *blocks > 0) {
            output.line(format_args!("  {blocks} blocks {words}"));
        }
    }
    for range in report["disagreements"].as_array().into_iter().flatten() {
        output.line(format_args!("  disagreeing: {} bytes at {}", range["bytes"], range["offset"]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn progress_lines_fit_a_terminal_of_80_columns() {
        let (tib, days) = (1u64 << 40, 86_400.0);
        let filling = json!({ "filling": {
            "member": 63, "done_bytes": 7 * tib / 2, "total_bytes": 77 * tib / 5, "bytes_per_second": 2.34e9,
            "remaining_seconds": 1.5 * days,
        }});
        let scrub =
            json!({ "scrub": { "stripes_done": 20_130_000, "stripes": 20_130_001, "mended": 12_345 } });
        // The bar and the percentage take 20 columns.
        for (share, words) in
            [super::rebuild_progress(&filling), scrub_progress(&scrub)].into_iter().flatten()
        {
            assert!((0.0..=1.0).contains(&share) && words.len() <= 80 - 20, "{words}");
        }
        assert_eq!(super::rebuild_progress(&json!({ "filling": null })), None);
    }
}
