//! Output of an emulated path, as text and as JSON.

use crate::events::{self, WanDropped, WanLateness, WanLink, WanPath, WanWay};
use longhaul_block::units::{format_rate, format_size};
use longhaul_wan::control::Status;
use longhaul_wan::{Conditions, DirectionConditions, DirectionStatistics, Lateness, LinkStatistics, Queue};
use std::time::Duration;

/// If the 99th percentile of lateness exceeds this share of the round-trip time, and
/// [`LATE_FLOOR`], a warning is printed.
const LATE_SHARE: f64 = 0.02;
/// Lateness that affects no experiment.
const LATE_FLOOR: Duration = Duration::from_micros(100);

/// Status of a path as an event has it.
pub(super) fn path(status: &Status) -> WanPath {
    let links = status.conditions.iter().zip(&status.servers).zip(&status.statistics.links).enumerate();
    let stats = &status.statistics;
    let link = |(i, ((conditions, server), counted)): (usize, ((&Conditions, &String), &LinkStatistics))| {
        let address = |end: u8| format!("10.77.{}.{end}", i + 1);
        WanLink {
            link: i + 1,
            server: server.clone(),
            client_address: address(1),
            server_address: address(2),
            round_trip_us: events::micros(conditions.rtt()),
            there: way(&conditions.there, &counted.there),
            back: way(&conditions.back, &counted.back),
        }
    };
    WanPath {
        name: status.name.clone(),
        pid: status.pid,
        via: status.via.clone(),
        client: status.client.clone(),
        links: links.map(link).collect(),
        elapsed_s: stats.elapsed.as_secs_f64(),
        cpu_s: stats.cpu.as_secs_f64(),
        memory: stats.memory,
        real_time: stats.real_time,
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn way(way: &DirectionConditions, n: &DirectionStatistics) -> WanWay {
    let late = &n.lateness;
    WanWay {
        delay_ms: millis(way.delay),
        jitter_ms: millis(way.jitter),
        rate: way.rate,
        queue_bytes: way.queue_bytes(),
        loss: way.loss,
        reorder: way.reorder,
        reorder_by_ms: millis(way.reorder_by),
        duplicate: way.duplicate,
        duplicate_after_ms: millis(way.duplicate_after),
        black_hole: way.black_hole,
        cut: way.cut,
        packets_in: n.packets_in,
        bytes_in: n.bytes_in,
        packets_out: n.packets_out,
        bytes_out: n.bytes_out,
        dropped: WanDropped {
            queue: n.dropped_queue,
            loss: n.dropped_loss,
            cut: n.dropped_cut,
            black_hole: n.dropped_black_hole,
            memory: n.dropped_memory,
            device: n.dropped_device,
        },
        reordered: n.reordered,
        duplicated: n.duplicated,
        errors: n.errors,
        queue_max: n.queue_max,
        late_us: WanLateness {
            mean: micros(late.mean),
            p50: micros(late.p50),
            p99: micros(late.p99),
            p999: micros(late.p999),
            max: micros(late.max),
        },
    }
}

/// A line for each link: its ends, their addresses, and its conditions.
pub(super) fn conditions(status: &Status) -> Vec<String> {
    let links = status.conditions.iter().zip(&status.servers).enumerate();
    links
        .map(|(i, (conditions, server))| {
            let i = i + 1;
            let ends = format!("{} 10.77.{i}.1 <-> 10.77.{i}.2 {server}", status.client);
            format!("{ends}: {} (via {})", both(conditions), status.via)
        })
        .collect()
}

fn both(conditions: &Conditions) -> String {
    let Conditions { there, back } = conditions;
    let rtt = millis(conditions.rtt());
    if there == back {
        return format!("{rtt} ms, {}", words(there));
    }
    format!("{rtt} ms; there: {}; back: {}", words(there), words(back))
}

fn words(way: &DirectionConditions) -> String {
    let mut words = vec![match way.rate {
        Some(rate) => format_rate(rate as f64),
        None => "no limit of rate".to_owned(),
    }];
    if let Some(queue) = way.queue_bytes() {
        let auto = if way.queue == Queue::Auto { " (auto)" } else { "" };
        words.push(format!("queue {}{auto}", format_size(queue)));
    }
    let percent = |share: f64| format!("{} %", (share * 1e8).round() / 1e6);
    if way.loss > 0.0 {
        words.push(format!("loss {}", percent(way.loss)));
    }
    if !way.jitter.is_zero() {
        words.push(format!("jitter ± {} ms", millis(way.jitter)));
    }
    if way.reorder > 0.0 {
        words.push(format!("{} held back by {} ms", percent(way.reorder), millis(way.reorder_by)));
    }
    if way.duplicate > 0.0 {
        words.push(format!("{} again after {} ms", percent(way.duplicate), millis(way.duplicate_after)));
    }
    if let Some(size) = way.black_hole {
        words.push(format!("swallows above {size} bytes"));
    }
    if way.cut {
        words.push("CUT".to_owned());
    }
    words.join(", ")
}

/// Counters of the links, a line for each direction, and a warning if packets were late because
/// the machine was busy.
pub(super) fn statistics(status: &Status) -> Vec<String> {
    let stats = &status.statistics;
    let mut lines = Vec::new();
    for (i, link) in stats.links.iter().enumerate() {
        for (name, n) in [("there", &link.there), ("back", &link.back)] {
            lines.push(format!("link {} {name}: {}", i + 1, counted(n)));
        }
    }
    let seconds = stats.elapsed.as_secs_f64();
    if stats.cpu.is_zero() {
        return lines;
    }
    let percent = 100.0 * stats.cpu.as_secs_f64() / seconds.max(1e-9);
    let priority = if stats.real_time { "real-time" } else { "normal" };
    lines.push(format!("{seconds:.1} s, {percent:.0} % of a core at {priority} priority"));
    let shortest = status.conditions.iter().map(Conditions::rtt).min().unwrap_or_default();
    let bearable = shortest.mul_f64(LATE_SHARE).max(LATE_FLOOR);
    if stats.late_p99() > bearable {
        lines.push(format!(
            "the machine was busy: 1 % of the packets were over {:.0} µs late; repeat a measurement",
            micros(stats.late_p99())
        ));
    }
    if stats.lost_here() > 0 {
        lines.push(format!("the emulator itself lost {} packets; repeat a measurement", stats.lost_here()));
    }
    lines
}

fn counted(n: &DirectionStatistics) -> String {
    let causes = [
        ("queue", n.dropped_queue),
        ("loss", n.dropped_loss),
        ("cut", n.dropped_cut),
        ("black hole", n.dropped_black_hole),
        ("memory", n.dropped_memory),
        ("device", n.dropped_device),
        ("errors", n.errors),
    ];
    let causes: Vec<_> =
        causes.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {n}")).collect();
    let dropped = if causes.is_empty() { "none".to_owned() } else { causes.join(", ") };
    let mut line = format!(
        "{} packets, {} arrived; dropped: {dropped}; queue at most {}",
        n.packets_out,
        format_size(n.bytes_out),
        format_size(n.queue_max)
    );
    for (what, n) in [("held back", n.reordered), ("twice", n.duplicated)] {
        if n > 0 {
            line += &format!("; {what} {n}");
        }
    }
    if n.lateness != Lateness::default() {
        let [mean, p99, max] = [n.lateness.mean, n.lateness.p99, n.lateness.max].map(micros);
        line += &format!("; late by {mean:.1} µs, p99 {p99:.0}, max {max:.0}");
    }
    line
}
