//! A refresh as lines: of a kind each, which is the first word.

use super::View;
use longhaul_block::units::{format_rate, format_size};
use longhaul_pool::live::{Answer, ArrayNow, FillingNow, PathNow, WayNow};
use longhaul_pool::{Status, shown};
use std::time::Duration;

/// An answer that is older than this is said to be.
const OLD: Duration = Duration::from_secs(5);

/// Escape sequences of a terminal (ECMA-48, Select Graphic Rendition).
const GOOD: &str = "\x1b[32m";
const BAD: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

/// The lines of a refresh, with colours or without. The columns fit into 80; what a line has to say
/// besides is behind them.
pub(super) fn lines(view: &View, has_colours: bool) -> Vec<String> {
    let elapsed = format!("{:.0} s", view.elapsed.as_secs_f64());
    let (read, write) = (["READ", "TIME"], ["WRITE", "TIME"]);
    let mut lines =
        vec![format!("{} {}", head("top", &elapsed, "STATE", None), columns("DEPTH", read, write))];
    for (name, answer) in &view.pools {
        pool(&mut lines, name, answer.as_ref(), has_colours);
    }
    for (name, _, answer) in &view.arrays {
        array(&mut lines, name, answer, has_colours);
    }
    if view.arrays.is_empty() {
        lines.push(view.none.to_owned());
    }
    lines
}

/// The first three columns: the kind, the name and the state, which may be good.
fn head(kind: &str, name: &str, state: &str, is_good: Option<bool>) -> String {
    let (begin, end) = match is_good {
        None => ("", ""),
        Some(true) => (GOOD, PLAIN),
        Some(false) => (BAD, PLAIN),
    };
    format!("{kind:7} {name:20} {begin}{state:9}{end}")
}

/// The columns of what goes over paths.
fn columns(depth: &str, read: [&str; 2], write: [&str; 2]) -> String {
    format!("{depth:>5} {:>9} {:>7} {:>9} {:>7}", read[0], read[1], write[0], write[1])
}

/// The same, of both directions: commands in flight, rates, and times of commands.
fn ways(read: WayNow, write: WayNow) -> String {
    let rate =
        |way: WayNow| way.bytes_per_second.map_or_else(|| "–".to_owned(), |rate| format_rate(rate * 8.0));
    let time = |way: WayNow| way.latency.map_or_else(|| "–".to_owned(), latency);
    let depth = (read.in_flight + write.in_flight).to_string();
    columns(&depth, [&rate(read), &time(read)], [&rate(write), &time(write)])
}

/// That an answer is old, which a source that hangs has.
fn age<T>(answer: &Answer<T>) -> String {
    let age = answer.at.elapsed();
    if age < OLD { String::new() } else { format!(", as of {:.0} s ago", age.as_secs_f64()) }
}

fn pool(lines: &mut Vec<String>, name: &str, answer: Option<&Answer<Status>>, has_colours: bool) {
    let colour = |is_good: bool| has_colours.then_some(is_good);
    let Some(answer) = answer else {
        lines.push(head("pool", name, "asked", None));
        return;
    };
    let status = match &answer.last {
        Ok(status) => status,
        Err(why) => {
            lines.push(format!("{} {why}{}", head("pool", name, "unknown", colour(false)), age(answer)));
            return;
        }
    };
    let (all, there) = (status.targets.len(), status.targets.iter().filter(|t| t.space.is_ok()).count());
    let capacity: u64 = status.targets.iter().map(|target| target.record.capacity).sum();
    let pending = match status.intents.len() {
        0 => String::new(),
        count => format!(", {count} pending"),
    };
    lines.push(format!(
        "{} {} of {} promised, {} volumes{pending}{}",
        head("pool", name, &format!("{there} of {all}"), colour(there == all)),
        format_size(status.usage.total()),
        format_size(capacity),
        status.volumes.len(),
        age(answer)
    ));
    for target in &status.targets {
        let name = shown(&target.record.address);
        lines.push(match &target.space {
            Ok(space) => format!(
                "{} {} of {} promised, {} free",
                head("target", &name, "there", colour(true)),
                format_size(target.used),
                format_size(target.record.capacity),
                format_size(space.free)
            ),
            Err(why) => format!("{} {why}", head("target", &name, "away", colour(false))),
        });
    }
}

fn array(lines: &mut Vec<String>, name: &str, answer: &Answer<ArrayNow>, has_colours: bool) {
    let colour = |is_good: bool| has_colours.then_some(is_good);
    let (kind, name) = name.split_once(':').unwrap_or(("array", name));
    let now = match &answer.last {
        Ok(now) => now,
        Err(why) => {
            lines.push(format!("{} {why}", head(kind, name, "unknown", colour(false))));
            return;
        }
    };
    lines.push(format!(
        "{} {} {}{}",
        head(kind, name, &now.health, colour(now.health == "healthy")),
        ways(now.total(|path| path.read), now.total(|path| path.write)),
        now.layout,
        age(answer)
    ));
    if !now.detail.is_empty() {
        lines.push(format!("        {}", now.detail));
    }
    if let Some(filling) = &now.filling {
        lines.push(rebuild(name, filling, colour(false)));
    }
    for path in &now.paths {
        lines.push(path_line(path, colour(path.state == "optimized")));
    }
}

fn rebuild(name: &str, filling: &FillingNow, is_good: Option<bool>) -> String {
    let rate = filling.rate.map_or_else(String::new, |rate| format!(", {}/s", format_size(rate as u64)));
    let left = filling.left.map_or_else(String::new, |left| format!(", {} left", time(left)));
    let share = format!("{:.0} %", filling.share() * 100.0);
    format!("{} member {}{rate}{left}", head("rebuild", name, &share, is_good), filling.member)
}

fn path_line(path: &PathNow, is_good: Option<bool>) -> String {
    let member = path.member.map_or_else(String::new, |member| format!(" #{member}"));
    let head = head("path", &format!("{}{member}", path.address), &path.state, is_good);
    if let Some(why) = &path.why {
        return format!("{head} {why}");
    }
    let round_trip =
        path.round_trip.map_or_else(String::new, |time| format!(" round trip {}", latency(time)));
    let lost = match path.disconnects {
        0 => String::new(),
        count => format!(", lost {count} times"),
    };
    format!("{head} {}{round_trip}{lost}", ways(path.read, path.write))
}

fn latency(time: Duration) -> String {
    match time.as_secs_f64() * 1e3 {
        ms if ms < 10.0 => format!("{ms:.2} ms"),
        ms if ms < 10_000.0 => format!("{ms:.0} ms"),
        ms => format!("{:.0} s", ms / 1e3),
    }
}

fn time(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", (seconds + 30) / 60),
        seconds => format!("{} h", (seconds + 1800) / 3600),
    }
}
