//! What `info --path` says of links that were chosen at random, against iperf3.

use super::super::memory_backend;
use super::{MB, client, commands, path_info};
use crate::link::Link;
use crate::program::Target;
use crate::reference::Iperf;
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result};
use longhaul_wan::{Conditions, Queue};
use std::time::Duration;

/// How far from iperf3 the answer may be.
const TOLERANCE: f64 = 0.05;

/// Links: a number of each kind, rates in bits per second and round trips in
/// seconds spread evenly over their logarithms.
const LINKS: u64 = 16;
const RATES: (f64, f64) = (50e6, 2e9);
const ROUND_TRIPS: (f64, f64) = (0.1e-3, 0.3);
const QUEUES: (f64, f64) = (0.1, 4.0);
const LOSSES: [f64; 4] = [0.0, 0.0, 0.0, 0.001];

/// A queue of less than this many packets drops parts of single bursts of the
/// sender's network card, whatever TCP does.
const QUEUE_LEAST: u64 = 64 << 10;

/// iperf3 is given the time that the measurement of the path takes.
const RAMP: Duration = Duration::from_secs(3);

struct Case {
    rate: u64,
    rtt: Duration,
    queue: u64,
    loss: f64,
}

/// What an answer can say of the cause.
const CAUSES: [&str; 5] = ["full", "loss", "socket", "hosts", "unknown"];

/// The result of one measurement of a path, and of iperf3 after it.
struct Answer {
    /// Bytes per second.
    rate: f64,
    connections: u16,
    /// Index in [`CAUSES`].
    cause: usize,
    /// Bytes per second of as many streams.
    reference: f64,
}

impl Answer {
    fn of(numbers: &[f64]) -> Option<Answer> {
        let &[rate, connections, cause, reference] = numbers else { return None };
        Some(Answer { rate, connections: connections as u16, cause: cause as usize, reference })
    }

    fn numbers(&self) -> [f64; 4] {
        [self.rate, self.connections.into(), self.cause as f64, self.reference]
    }
}

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "paths",
        &[
            "link",
            "queue",
            "loss",
            "said, Mb/s",
            "connections",
            "cause",
            "as many iperf3 streams, Mb/s",
            "ratio",
            "± 5 %",
        ],
    );
    for case in (0..LINKS).map(case) {
        let mut conditions = Conditions::new(case.rtt, Some(case.rate));
        for way in [&mut conditions.there, &mut conditions.back] {
            way.queue = Queue::Bytes(case.queue);
            way.loss = case.loss;
        }
        let link = Link::start(conditions, None)?;
        measure(setup, &link, &case, &mut section)?;
    }
    section.notes.push(format!(
        "{LINKS} links, the same in each run: rates of {} to {} Mb/s, round trips of {} to {} ms and queues of {} to {} \
         products of the two, one of each in every sixteenth of their logarithms; a quarter loses \
         0.1 % of the packets. Cause: what the answer says limits a connection; iperf3 gets as many streams as the \
         answer chose connections, in the same round",
        RATES.0 / 1e6,
        RATES.1 / 1e6,
        ROUND_TRIPS.0 * 1e3,
        ROUND_TRIPS.1 * 1e3,
        QUEUES.0,
        QUEUES.1,
    ));
    let first = case(0);
    section.commands = commands(setup, first.rate, first.rtt, &format!(" --queue {}", first.queue), "");
    section
        .commands
        .push(client(&format!("longhaul info URI --path --json --congestion {}", setup.congestion)));
    Ok(section)
}

fn measure(setup: &Setup, link: &Link, case: &Case, section: &mut Section) -> Result<()> {
    let plain = &link.setup(setup, 1);
    let plain = &Setup { ramp: plain.ramp.max(RAMP), ..plain.clone() };
    let engine = plain.engines.first().context("no engine to measure with")?;
    let target = Target::start(plain, engine, &memory_backend(plain), &[])?;
    let iperf =
        Iperf::start(plain)?.context("iperf3 is the reference of this group, and is not installed")?;
    let name = format!("{:.0} Mb/s, {:.3} ms", case.rate as f64 / 1e6, case.rtt.as_secs_f64() * 1e3);
    let case_name = format!("paths: {name}");
    let kept = match &setup.keep {
        Some(keep) => keep.get(&case_name, 4, setup.rounds)?,
        None => None,
    };
    let numbers = match kept {
        Some(kept) => kept,
        None => {
            let mut numbers = vec![Vec::new(); 4];
            for _ in 0..setup.rounds {
                let answer = link.on_time(|| ask(plain, &target, &iperf))?;
                eprintln!(
                    "  {name}, queue {}, loss {}: {:.1} on {} ({}), {:.1}",
                    case.queue,
                    case.loss,
                    answer.rate / MB,
                    answer.connections,
                    CAUSES[answer.cause],
                    answer.reference / MB
                );
                numbers.iter_mut().zip(answer.numbers()).for_each(|(all, one)| all.push(one));
            }
            if let Some(keep) = &setup.keep {
                keep.put(&case_name, &numbers)?;
            }
            numbers
        }
    };
    let round = |index: usize| Answer::of(&numbers.iter().map(|all| all[index]).collect::<Vec<_>>());
    let answers: Vec<Answer> = (0..setup.rounds as usize).filter_map(round).collect();
    let (said, references) = (Samples::of(&answers, |a| a.rate), Samples::of(&answers, |a| a.reference));
    let ratio = said.ratio(&references);
    let near = (ratio.median() - 1.0).abs() <= TOLERANCE;
    for (subject, samples) in [("longhaul", &said), ("as many streams", &references)] {
        section.keep(&name, subject, "bytes/s", samples);
    }
    let mut causes: Vec<_> = answers.iter().map(|a| CAUSES[a.cause]).collect();
    causes.sort_unstable();
    causes.dedup();
    section.row(vec![
        name,
        longhaul_block::units::format_size(case.queue),
        format!("{} %", case.loss * 100.0),
        said.show(MB, 0),
        Samples::of(&answers, |a| f64::from(a.connections)).show(1.0, 0),
        causes.join(", "),
        references.show(MB, 0),
        ratio.show_ratio(),
        if near { "yes" } else { "**no**" }.into(),
    ]);
    Ok(())
}

fn ask(setup: &Setup, target: &Target, iperf: &Iperf) -> Result<Answer> {
    let summary = path_info(setup, target, &[])?;
    let path = &summary["path"]["measured"];
    let limit = &path["limit"];
    let cause = match path["full"].as_bool() {
        _ if limit["loss"] == true => "loss",
        _ if limit["hosts"] == true => "hosts",
        _ if !limit.is_null() => "socket",
        Some(true) => "full",
        _ => "unknown",
    };
    let rate = path["bits_per_second"].as_f64().context("no rate")? / 8.0;
    let connections = path["connections"].as_u64().and_then(|n| u16::try_from(n).ok());
    let connections = connections.context("no connections")?;
    let reference = iperf.parallel(setup, false, 128 << 10, connections)?;
    let cause = CAUSES.iter().position(|one| *one == cause).context("a cause without a number")?;
    Ok(Answer { rate, connections, cause, reference })
}

/// Link `index`: of each range one link lies in each of as many equal parts as there are links
/// (a Latin square: the factors have no divisor in common with the number of links).
fn case(index: u64) -> Case {
    let at = |factor: u64| (((factor * index + factor / 2) % LINKS) as f64 + 0.5) / LINKS as f64;
    let within = |(least, most): (f64, f64), at: f64| least * (most / least).powf(at);
    let rate = within(RATES, at(3));
    let rtt = within(ROUND_TRIPS, at(5));
    let queue = within(QUEUES, at(11)) * rate * rtt / 8.0;
    Case {
        rate: rate as u64,
        rtt: Duration::from_secs_f64(rtt),
        queue: (queue as u64).max(QUEUE_LEAST),
        loss: LOSSES[index as usize % LOSSES.len()],
    }
}
