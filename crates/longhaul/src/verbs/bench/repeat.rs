//! Repeated runs of a load, with samples of its connections.

use super::{BenchArgs, OVERTIME, live_line, overtime, share, waits};
use crate::exit::Failure;
use crate::output::{Output, say};
use crate::screen::Line;
use longhaul_block::BlockDevice;
use longhaul_device::Device;
use longhaul_lab::emulated::{self, Link};
use longhaul_load::watch::{Expect, Watch, tcp_sample};
use longhaul_load::{Live, Repeated, Stop, Threads, run as run_load};
use longhaul_report::figure::Scale;
use longhaul_results::record::{Code, Run, TcpSample};
use longhaul_results::schema;
use longhaul_results::stats::Summary;
use std::sync::Arc;
use std::time::Duration;

/// Interval of samples of the connections.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Upper bound of samples of one run, which is reached after more than an hour.
const SAMPLES_MAX: usize = 4096;

/// Runs the load `--runs` times. If a run fails, returns those before it with the failure.
pub(super) fn run(
    args: &BenchArgs,
    named: &[Device],
    (devices, threads): (&[Arc<dyn BlockDevice>], &Threads),
    stop: &Stop,
) -> Result<(Repeated, Option<Failure>), Failure> {
    let mut runs = Repeated::new();
    for number in 1..=args.runs {
        let link = Link::here();
        let watch = Watch::start();
        let mut sampler = TcpSampler::default();
        let (line, mut warned) = (Line::new(), false);
        let mut progress = |now: &Live| {
            if overtime(args, now) >= OVERTIME && !std::mem::replace(&mut warned, true) {
                say(format_args!("longhaul: {}", waits(args)));
            }
            sampler.look(watch.elapsed(), named);
            let run = if args.runs > 1 { format!("run {number}/{} ", args.runs) } else { String::new() };
            line.show(share(now), format!("{run}{}", live_line(now, args.rw)));
        };
        let results = run_load(devices, &args.job(), threads, stop, &mut progress);
        drop(line);
        let watched = watch.end();
        let expect = link.map_or_else(Expect::default, |link| link.expect());
        let expect = expected(expect, round_trip(named));
        let results = match results {
            Ok(results) => results,
            Err(e) if runs.is_empty() => return Err(e.into()),
            Err(e) => return Ok((runs, Some(e.into()))),
        };
        runs.push(results, &watched, &expect, sampler.samples, stop.is_set());
        if stop.is_set() {
            break;
        }
    }
    Ok((runs, None))
}

/// Conditions for a valid run: those of the emulated link, with the round trip measured to a
/// device. Attached and mounted devices have no measured round trip, and use that of the link.
fn expected(link: Expect, measured: Option<Duration>) -> Expect {
    Expect { round_trip: measured.or(link.round_trip), ..link }
}

/// The longest round trip to a device.
fn round_trip(named: &[Device]) -> Option<Duration> {
    let of = |device: &Device| {
        let Device::Remote(device) = device else { return None };
        Some(device.path().map_or_else(|| device.controller().round_trip.0, |path| path.plan.rtt))
    };
    named.iter().filter_map(of).max()
}

/// Conditions that the results depend on besides the load.
pub(super) fn conditions(named: &[Device]) -> Vec<(String, String)> {
    let congestion = named.iter().filter_map(|device| match device {
        Device::Remote(device) => Some(device.controller().congestion.clone()),
        _ => None,
    });
    let mut congestion: Vec<String> = congestion.collect();
    congestion.dedup();
    let mut found: Vec<_> = emulated::words().into_iter().collect();
    if !congestion.is_empty() {
        found.push(("congestion control of sockets".into(), congestion.join(", ")));
    }
    if let Some(rtt) = round_trip(named) {
        found.push(("round trip".into(), format!("{:.3} ms", rtt.as_secs_f64() * 1e3)));
    }
    found
}

/// Samples of the connections during a run.
#[derive(Default)]
struct TcpSampler {
    samples: Vec<TcpSample>,
    next: Duration,
}

impl TcpSampler {
    fn look(&mut self, at: Duration, named: &[Device]) {
        if at < self.next || self.samples.len() >= SAMPLES_MAX {
            return;
        }
        self.next = at + SAMPLE_INTERVAL;
        for device in named {
            if let Device::Remote(device) = device
                && let Some(report) = device.path()
            {
                self.samples.push(tcp_sample(at, device.info().name, &report.tcp));
            }
        }
    }
}

/// Prints the spread of the runs, and which runs are not valid.
pub(in crate::verbs) fn print(document: &schema::Output, output: Output) {
    let Some(record) = &document.longhaul else { return };
    for cell in record.cells.iter().filter(|cell| matches!(cell.unit.as_str(), "B/s" | "bit/s")) {
        let spread = Summary::of(&cell.samples);
        let Some(interval) = spread.interval() else { continue };
        let scale = Scale::of(&cell.unit, spread.mean);
        let [low, high, least, most] =
            [interval.low, interval.high, spread.min, spread.max].map(|value| scale.number(value));
        let (mean, runs) = (scale.with_unit(spread.mean), spread.n);
        output.line(format_args!(
            "{}: {mean} over {runs} runs (95 % between {low} and {high}, least {least}, most {most})",
            cell.name
        ));
    }
    // The reason of a failed run is the error that the program ends with.
    let failed = |run: &&Run| run.validity.reasons.iter().any(|reason| reason.code == Code::Failed);
    for (number, run) in (1..).zip(&record.runs).filter(|(_, run)| !failed(run)) {
        for reason in &run.validity.reasons {
            output.note(format_args!("longhaul: run {number} does not count: {}", reason.detail));
        }
    }
    for cell in record.cells.iter().filter(|cell| !cell.validity.valid && !cell.samples.is_empty()) {
        for reason in &cell.validity.reasons {
            output.note(format_args!("longhaul: {} does not count: {}", cell.name, reason.detail));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_load::watch::Watched;

    #[test]
    fn a_load_on_what_is_attached_is_judged_by_the_link_below() {
        let ms = Duration::from_millis;
        let behind = Expect { round_trip: Some(ms(100)), ..Expect::default() };
        let seen = Watched { retransmitted: Some(0.5), ..Watched::default() };
        let codes = |expect: Expect| {
            let validity = seen.judge(&expect);
            validity.reasons.iter().map(|reason| reason.code).collect::<Vec<_>>()
        };
        let attached = expected(behind, None);
        assert_eq!(attached.round_trip, Some(ms(100)));
        assert_eq!(codes(attached), [Code::TooShort, Code::Retransmitting], "1 s is ten round trips");
        assert_eq!(expected(behind, Some(ms(7))).round_trip, Some(ms(7)), "a measurement is better");
        assert_eq!(expected(Expect::default(), None).round_trip, None);
    }
}
