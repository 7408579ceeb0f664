//! The document with the results of measurements.

use super::client::Measured;
use super::{Half, NetDirection, NetPlan};
use crate::watch::{Expect, Watched};
use longhaul_results::record::{Better, Cell, EVENTS, Record, Run, TcpSample, Validity, middle};
use longhaul_results::schema::{Direction, Job, Output, Pairs};
use std::time::Duration;

/// The runs of one plan.
#[derive(Clone, Debug)]
pub struct NetRuns {
    plan: NetPlan,
    server: String,
    runs: Vec<(Measured, Run)>,
}

/// Received bits per second of a direction.
fn rate(half: &Half, plan: &NetPlan) -> f64 {
    let bytes: u64 = half.received.iter().map(|stream| stream.bytes).sum();
    bytes as f64 * 8.0 / Duration::from_millis(plan.time_ms).as_secs_f64()
}

/// Retransmitted segments since the beginning of the window.
fn again(half: &Half, plan: &NetPlan) -> u64 {
    let of = |looks: &[TcpSample]| {
        let before = looks.iter().rev().find(|look| look.at_s * 1e3 <= plan.ramp_ms as f64);
        let last = looks.last().map_or(0, |look| look.retransmissions);
        last.saturating_sub(before.map_or(0, |look| look.retransmissions))
    };
    half.sent.iter().map(|stream| of(&stream.looks)).sum()
}

/// The samples of both ends for each stream of a direction.
fn looks(sender: &Half, receiver: &Half, name: &str, plan: &NetPlan) -> Vec<TcpSample> {
    let mut all = Vec::new();
    let interval = plan.interval_ms as f64 / 1e3;
    for (number, (sent, received)) in (1..).zip(sender.sent.iter().zip(&receiver.received)) {
        for (at, bytes) in received.intervals.iter().enumerate() {
            let look = sent.looks.get(at).cloned().unwrap_or_default();
            let at_s = interval * (at + 1) as f64;
            all.push(TcpSample { at_s, stream: format!("{name} {number}"), bytes: Some(*bytes), ..look });
        }
    }
    all
}

impl Measured {
    /// Received bits per second at the server and at the client, with `plan`.
    pub fn rates(&self, plan: &NetPlan) -> [Option<f64>; 2] {
        [
            plan.way.sends().then(|| rate(&self.there, plan)),
            plan.way.receives().then(|| rate(&self.here, plan)),
        ]
    }
}

impl NetRuns {
    /// An empty list of runs.
    pub fn new(plan: NetPlan, server: impl Into<String>) -> NetRuns {
        NetRuns { plan, server: server.into(), runs: Vec::new() }
    }

    /// Adds a run, and decides whether it counts: `watched` is the use of this machine,
    /// `expect` the properties of the link.
    pub fn push(&mut self, measured: Measured, watched: &Watched, expect: &Expect) {
        let plan = &self.plan;
        let share = [measured.here.retransmitted, measured.there.retransmitted].into_iter().flatten();
        let watched = Watched { retransmitted: share.reduce(f64::max), ..*watched };
        let expect = Expect {
            window: Duration::from_millis(plan.time_ms),
            round_trip: measured.round_trip,
            ..*expect
        };
        let validity = watched.judge(&expect);
        let mut tcp = looks(&measured.here, &measured.there, "to server", plan);
        tcp.extend(looks(&measured.there, &measured.here, "from server", plan));
        self.runs.push((measured, Run { tcp, ..watched.run(validity) }));
    }

    /// The results, in order.
    pub fn measured(&self) -> impl Iterator<Item = &Measured> {
        self.runs.iter().map(|(measured, _)| measured)
    }

    /// The validity of each run, in order.
    pub fn validity(&self) -> impl Iterator<Item = &Validity> {
        self.runs.iter().map(|(_, run)| &run.validity)
    }

    /// The document with all runs.
    pub fn document(&self) -> Output {
        let mut record = Record::new("netbench", format!("network to {}", self.server));
        let (plan, runs) = (&self.plan, &self.runs);
        let first = runs.first().map(|(measured, _)| measured);
        record.hosts.extend(first.map(|measured| measured.there.host.clone()));
        record.conditions = self.conditions();
        record.runs = runs.iter().map(|(_, run)| run.clone()).collect();
        // Both directions together.
        let rate = |measured: &Measured| measured.rates(plan).iter().flatten().sum::<f64>();
        let shown = middle(runs.iter().map(|(measured, run)| (rate(measured), run.validity.valid)));
        record.shown_run = shown;
        record.cells = self.cells();
        record.judge();
        Output {
            jobs: shown.map(|at| self.job(&runs[at].0)).into_iter().collect(),
            longhaul: Some(record),
            global_options: options(plan),
            ..Output::now()
        }
    }

    fn conditions(&self) -> Pairs<String> {
        let plan = &self.plan;
        let seconds = |ms: u64| format!("{} s", ms as f64 / 1e3);
        let way = match plan.way {
            NetDirection::Send => "to the server",
            NetDirection::Receive => "from the server",
            NetDirection::Both => "both at the same time",
        };
        let mut all = vec![
            ("server", self.server.clone()),
            ("direction", way.into()),
            ("streams each way", plan.streams.to_string()),
            ("ramp", seconds(plan.ramp_ms)),
            ("window", seconds(plan.time_ms)),
            ("bytes a call", plan.block.to_string()),
            ("receiver copies", if plan.discard { "no" } else { "yes" }.into()),
        ];
        if let Some((measured, _)) = self.runs.first() {
            all.push(("congestion control of sockets", measured.congestion.clone()));
            let rtt = measured.round_trip.map(|rtt| format!("{:.3} ms", rtt.as_secs_f64() * 1e3));
            all.extend(rtt.map(|rtt| ("round trip", rtt)));
        }
        Pairs(all.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }

    fn cells(&self) -> Vec<Cell> {
        let plan = &self.plan;
        let mut cells = Vec::new();
        for (index, name) in ["to server", "from server"].into_iter().enumerate() {
            let mut rate = Cell::new(format!("throughput {name}"), "bit/s", Better::Higher);
            let mut sent_again = Cell::new(format!("retransmissions {name}"), EVENTS, Better::Lower);
            for (measured, run) in &self.runs {
                let Some(bits) = measured.rates(plan)[index] else { continue };
                rate.push(bits, &run.validity);
                let sender = if index == 0 { &measured.here } else { &measured.there };
                sent_again.push(again(sender, plan) as f64, &run.validity);
            }
            if !rate.samples.is_empty() || !rate.left_out.is_empty() {
                cells.push(rate);
                cells.push(sent_again);
            }
        }
        let mut rtt = Cell::new("least round trip", "s", Better::Lower);
        let [mut here, mut there] =
            ["client", "server"].map(|end| Cell::new(format!("CPU of the {end}"), "s/GiB", Better::Lower));
        for (measured, run) in &self.runs {
            if let Some(least) = measured.round_trip {
                rtt.push(least.as_secs_f64(), &run.validity);
            }
            let bits: f64 = measured.rates(plan).iter().flatten().sum();
            let gib = bits / 8.0 * plan.length().as_secs_f64() / f64::from(1 << 30);
            for (cell, half) in [(&mut here, &measured.here), (&mut there, &measured.there)] {
                cell.push((half.cpu.user_s + half.cpu.system_s) / gib, &run.validity);
            }
        }
        cells.extend([rtt, here, there]);
        cells
    }

    /// fio's layout: bytes received here are reads, the others writes.
    fn job(&self, measured: &Measured) -> Job {
        let plan = &self.plan;
        let direction = |half: &Half| {
            let bytes: u64 = half.received.iter().map(|stream| stream.bytes).sum();
            let rate = bytes as f64 / Duration::from_millis(plan.time_ms).as_secs_f64();
            Direction {
                io_bytes: bytes,
                io_kbytes: bytes / 1024,
                bw_bytes: rate as u64,
                bw: (rate / 1024.0) as u64,
                runtime: plan.time_ms,
                ..Direction::default()
            }
        };
        let share = |seconds: f64| 100.0 * seconds / measured.here.seconds.max(1e-9);
        Job {
            jobname: "netbench".into(),
            read: direction(&measured.here),
            write: direction(&measured.there),
            job_runtime: plan.time_ms,
            usr_cpu: share(measured.here.cpu.user_s),
            sys_cpu: share(measured.here.cpu.system_s),
            ..Job::default()
        }
    }
}

/// The options, in fio's layout.
fn options(plan: &NetPlan) -> Pairs<String> {
    let options = [
        ("ioengine".to_owned(), "net".to_owned()),
        ("bs".to_owned(), plan.block.to_string()),
        ("numjobs".to_owned(), plan.streams.to_string()),
    ];
    Pairs(options.to_vec())
}

#[cfg(test)]
mod tests {
    use super::super::Received;
    use super::*;
    use longhaul_results::record::Code;

    #[test]
    fn the_run_in_the_middle_is_shown() {
        let plan = NetPlan { way: NetDirection::Receive, time_ms: 1000, ..NetPlan::default() };
        let mut runs = NetRuns::new(plan, "there");
        for bytes in [10, 50, 30, 40, 20] {
            let here = Half { received: vec![Received { bytes, intervals: Vec::new() }], ..Half::default() };
            let there = Half::default();
            let measured = Measured { here, there, congestion: String::new(), round_trip: None };
            runs.push(measured, &Watched::default(), &Expect::default());
        }
        let shown = |runs: &NetRuns| {
            let document = runs.document();
            (document.longhaul.expect("a record").shown_run, document.jobs[0].read.io_bytes)
        };
        assert_eq!(shown(&runs), (Some(2), 30));
        // A run that does not count is shown only if no run counts.
        runs.runs[2].1.validity.mark(Code::Stolen, "x");
        runs.runs[0].1.validity.mark(Code::Stolen, "x");
        assert_eq!(shown(&runs), (Some(3), 40));
        assert_eq!(
            NetRuns::new(NetPlan::default(), "there").document().longhaul.expect("a record").shown_run,
            None
        );
    }
}
