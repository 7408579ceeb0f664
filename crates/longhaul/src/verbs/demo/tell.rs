//! The summary of the demo: rates compared with plain TCP, and what limits them.

use crate::events::{DemoPhase, DemoSpread, DemoSummary, DemoTrees, micros};
use crate::output::Output;
use longhaul_block::units::{format_rate, format_size};
use longhaul_lab::demo::{DemoOptions, Demonstration, Phase, PhaseSummary, SmallFileCopies, Spread, TARGETS};
use longhaul_lab::published::transfer::{RTT, T0};
use std::time::Duration;

/// Ratio to plain TCP from which on the link limits both.
const FULL: f64 = 0.97;
/// Share of the processors in use from which on they limit.
const BUSY: f64 = 0.85;

fn event(spread: Spread) -> DemoSpread {
    DemoSpread { median: spread.median, least: spread.least, most: spread.most }
}

/// The three values as text; a common unit is written once.
fn show(spread: Spread, format: impl Fn(f64) -> String) -> String {
    let [median, least, most] = [spread.median, spread.least, spread.most].map(format);
    let unit = median.rfind(' ').map_or("", |at| &median[at..]);
    match (least.strip_suffix(unit), most.strip_suffix(unit)) {
        (Some(least), Some(most)) => format!("{median} ({least} to {most})"),
        _ => format!("{median} ({least} to {most})"),
    }
}

/// What limits the rate of a phase, as text.
fn why(c: &PhaseSummary, rate: u64) -> String {
    let cpu = format!(
        "processors: {:.0} % for it ({:.0} % for plain TCP), {:.0} % for other programs",
        c.own_cpu * 100.0,
        c.plain_cpu * 100.0,
        c.others_cpu * 100.0
    );
    let share = c.ours.median * 8.0 / (rate as f64 * TARGETS as f64);
    let cause = match c.ratio.median {
        ratio if ratio >= FULL && rate > 0 => {
            format!("the links limit both: {:.1} % of them are filled", share * 100.0)
        }
        ratio if ratio >= FULL => "nothing but this machine limits either".into(),
        _ if c.own_cpu + c.others_cpu >= BUSY && c.others_cpu > c.own_cpu => {
            "other programs have most of the processors".into()
        }
        _ if c.own_cpu + c.others_cpu >= BUSY => {
            "the processors limit it: both ends and the links share them here".into()
        }
        _ => "neither the links nor the processors limit it; see 'longhaul info URI --path'".into(),
    };
    format!("{}: {cause}\n  {cpu}", c.name)
}

/// Prints the summary.
pub(super) fn tell(demonstration: &Demonstration, options: &DemoOptions, output: Output) {
    let Demonstration { files, bytes, window, phases, trees } = demonstration;
    let compared: Vec<PhaseSummary> = phases.iter().filter_map(Phase::compared).collect();
    let bits = |rate: f64| format_rate(rate * 8.0);
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["", "Longhaul", "plain TCP", "ratio"]);
    for c in &compared {
        table.add_row([
            c.name.to_owned(),
            show(c.ours, bits),
            show(c.plain, bits),
            show(c.ratio, |ratio| format!("{ratio:.3}")),
        ]);
    }
    let phase = |name: &str| {
        compared.iter().find(|c| c.name == name).map(|c| DemoPhase {
            bytes_per_second: event(c.ours),
            plain_tcp_bytes_per_second: event(c.plain),
            ratio: event(c.ratio),
            own_cpu: c.own_cpu,
            plain_tcp_cpu: c.plain_cpu,
            others_cpu: c.others_cpu,
            why: why(c, options.rate),
        })
    };
    let scp = trees.scp.as_ref();
    output.event(&DemoSummary {
        files: *files,
        bytes: *bytes,
        round_trip_us: micros(options.rtt),
        rate: options.rate,
        rounds: options.rounds,
        seconds: window.steady.as_secs_f64(),
        verified: true,
        write: phase("write"),
        read: phase("read"),
        trees: DemoTrees {
            files: trees.files,
            bytes: trees.bytes,
            seconds: event(trees.ours),
            scp_seconds: scp.ok().copied().map(event),
            scp_missing: scp.err().cloned(),
        },
    });
    output.line(table);
    output.line(format_args!(
        "median (least to most) of {} rounds of {:.1} s, once all was moved and {:.1} s over",
        options.rounds,
        window.steady.as_secs_f64(),
        window.start.as_secs_f64(),
    ));
    output.line(format_args!(
        "Longhaul: files on devices of {TARGETS} targets, read back and verified (XXH3-128)\n\
         plain TCP: one stream for each of the same links, no files, no checksums",
    ));
    for c in &compared {
        output.line(why(c, options.rate));
    }
    output.line(of_trees(trees, options.rtt));
}

/// The comparison with scp on a tree of small files.
fn of_trees(trees: &SmallFileCopies, rtt: Duration) -> String {
    let seconds = |seconds: f64| format!("{seconds:.2} s");
    let what = format!(
        "{} files of {} together over one such link, encrypted\n  longhaul cp {}",
        trees.files,
        format_size(trees.bytes),
        show(trees.ours, seconds)
    );
    match &trees.scp {
        Ok(scp) => format!(
            "{what}\n  scp {}, {:.1} times as long: {:.1} round trips for each file",
            show(*scp, seconds),
            scp.median / trees.ours.median,
            scp.median / rtt.as_secs_f64().max(1e-9) / trees.files as f64,
        ),
        Err(why) => {
            format!(
                "{what}\n  no scp to compare with: {why}\n  published: {:.1} ms for each file over {:.0} ms, \
                 {:.1} s for as many\n  ({})",
                T0.value() * 1e3,
                RTT.value() * 1e3,
                T0.value() * trees.files as f64,
                T0.source(),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_lab::demo::MeasuredRate;

    #[test]
    fn small_files_are_compared_with_scp_or_with_what_was_published() {
        let spread = |seconds| Spread::of(&[seconds]).expect("a number");
        let mut trees =
            SmallFileCopies { files: 200, bytes: 25 << 20, ours: spread(0.2), scp: Ok(spread(12.0)) };
        let rtt = Duration::from_millis(15);
        let said = of_trees(&trees, rtt);
        assert!(
            said.contains("scp 12.00 s (12.00 to 12.00), 60.0 times as long: 4.0 round trips for each"),
            "{said}"
        );
        trees.scp = Err("sshd is not installed".into());
        let said = of_trees(&trees, rtt);
        assert!(
            said.contains("sshd is not installed\n  published: 66.5 ms for each file over 45 ms"),
            "{said}"
        );
        assert!(said.contains("13.3 s for as many\n  (Transfer study"), "{said}");
    }

    #[test]
    fn a_spread_writes_a_common_unit_once() {
        let shown = Spread::of(&[4e9, 3.91e9, 9e8]).map(|spread| show(spread, format_rate));
        assert_eq!(shown.as_deref(), Some("3.91 Gb/s (900 Mb/s to 4 Gb/s)"));
        let shown = Spread::of(&[4e9, 3.92e9]).map(|spread| show(spread, format_rate));
        assert_eq!(shown.as_deref(), Some("3.96 Gb/s (3.92 to 4)"));
    }

    #[test]
    fn a_ratio_has_its_reason() {
        let rate = 2_000_000_000;
        let counted = |share: f64, own_cpu| MeasuredRate { rate: share * 5e8, own_cpu, others_cpu: 0.05 };
        let of = |ours, cpu| {
            let (ours, plain) = (vec![counted(ours, cpu)], vec![counted(1.0, 0.3)]);
            why(&Phase { name: "write", ours, plain }.compared().expect("numbers"), rate)
        };
        assert!(of(0.99, 0.9).starts_with("write: the links limit both: 99.0 % of them"));
        assert!(of(0.6, 0.9).contains("the processors limit it"));
        let busy = MeasuredRate { rate: 3e8, own_cpu: 0.2, others_cpu: 0.8 };
        let phase = Phase { name: "write", ours: vec![busy], plain: vec![counted(1.0, 0.3)] };
        assert!(why(&phase.compared().expect("numbers"), rate).contains("other programs have most"));
        assert!(of(0.6, 0.3).contains("neither the links nor the processors"));
        let said = of(0.6, 0.3);
        assert!(
            said.contains("processors: 30 % for it (30 % for plain TCP), 5 % for other programs"),
            "{said}"
        );
    }
}
