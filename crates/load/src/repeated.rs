//! A load that is run several times, and the document with its results.

use crate::results::{JobResult, Results};
use crate::stats::DirStats;
use crate::watch::{Expect, Watched};
use longhaul_results::record::{Better, Cell, Code, Record, Run, TcpSample, middle};
use longhaul_results::schema::Output;

/// The runs of one load.
#[derive(Debug, Default)]
pub struct Repeated {
    runs: Vec<(Results, Run)>,
}

impl Repeated {
    /// An empty list of runs.
    pub fn new() -> Repeated {
        Repeated::default()
    }

    /// Adds a run, and decides whether it counts: `expect` are the properties of the
    /// path, `tcp` samples of its connections; `stopped` if the run was ended early.
    pub fn push(
        &mut self,
        results: Results,
        watched: &Watched,
        expect: &Expect,
        tcp: Vec<TcpSample>,
        stopped: bool,
    ) {
        let window = results.jobs.iter().map(|job| job.window).max().unwrap_or_default();
        // Without a path, retransmissions are of other connections.
        let retransmitted = expect.round_trip.and(watched.retransmitted);
        let watched = Watched { retransmitted, ..*watched };
        let mut validity = watched.judge(&Expect { window, ..*expect });
        if let Some(error) = results.error() {
            validity.mark(Code::Failed, format!("I/O failed: {error}"));
        }
        if results.verify().faults() > 0 {
            validity.mark(Code::Failed, format!("{} blocks had wrong content", results.verify().faults()));
        }
        if stopped {
            validity.mark(Code::Stopped, "it was ended before its time");
        }
        self.runs.push((results, Run { tcp, ..watched.run(validity) }));
    }

    /// Number of runs.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether there are no runs.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The runs, in order.
    pub fn results(&self) -> impl Iterator<Item = &Results> {
        self.runs.iter().map(|(results, _)| results)
    }

    /// The run with the median bandwidth, of those that count, or else of all.
    pub fn shown(&self) -> Option<usize> {
        let rate = |results: &Results| results.jobs.iter().map(|job| job.rate()).sum::<f64>();
        middle(self.runs.iter().map(|(results, run)| (rate(results), run.validity.valid)))
    }

    /// The document: the median run in fio's layout, and the record of all runs.
    pub fn document(&self, group_reporting: bool) -> Output {
        let shown = self.shown();
        let mut output = match shown {
            Some(at) => self.runs[at].0.to_fio(group_reporting),
            None => Output::default(),
        };
        let job = self.runs.first().map(|(results, _)| &results.job);
        let mut record = Record::new("bench", job.map(|job| job.name.clone()).unwrap_or_default());
        record.seed = job.map(|job| job.seed);
        record.conditions.0 = job.map(|job| job.options()).unwrap_or_default();
        record.runs = self.runs.iter().map(|(_, run)| run.clone()).collect();
        record.shown_run = shown;
        record.cells = self.cells();
        record.judge();
        output.longhaul = Some(record);
        output
    }

    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        let trims = self.runs.first().is_some_and(|(results, _)| results.job.rw.trims());
        for name in ["read", if trims { "trim" } else { "write" }] {
            let way = |job: &JobResult| -> DirStats {
                if name == "read" { job.read.clone() } else { job.write.clone() }
            };
            let [mut rate, mut iops] = [("bandwidth", "B/s"), ("IOPS", "IOPS")]
                .map(|(what, unit)| Cell::new(format!("{name} {what}"), unit, Better::Higher));
            let [mut mean, mut tail] =
                ["mean", "p99"].map(|what| Cell::new(format!("{name} latency {what}"), "s", Better::Lower));
            let [mut submission, mut completion] = ["submission", "completion"]
                .map(|what| Cell::new(format!("{name} {what} latency mean"), "s", Better::Lower));
            let mut any = false;
            for (results, run) in &self.runs {
                let Some(total) = results.total() else { continue };
                let (stats, seconds) = (way(&total), total.window.as_secs_f64().max(1e-9));
                any |= stats.ios > 0;
                rate.push(stats.bytes as f64 / seconds, &run.validity);
                iops.push(stats.ios as f64 / seconds, &run.validity);
                if stats.ios > 0 {
                    mean.push(stats.lat.mean() / 1e9, &run.validity);
                    tail.push(stats.lat.percentile(99.0) as f64 / 1e9, &run.validity);
                    submission.push(stats.slat.mean() / 1e9, &run.validity);
                    completion.push(stats.clat.mean() / 1e9, &run.validity);
                }
            }
            if any {
                cells.extend([rate, iops, mean, tail, submission, completion]);
            }
        }
        cells.push(self.cpu());
        cells
    }

    /// Processor time of this process, relative to the bytes transferred.
    fn cpu(&self) -> Cell {
        let mut cell = Cell::new("CPU", "s/GiB", Better::Lower);
        for (results, run) in &self.runs {
            let bytes: u64 = results.total().map_or(0, |total| total.read.bytes + total.write.bytes);
            if bytes > 0 {
                let gib = bytes as f64 / f64::from(1 << 30);
                cell.push((run.cpu.user_s + run.cpu.system_s) / gib, &run.validity);
            }
        }
        cell
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Job, Rw, Stop, Threads, run};
    use longhaul_block::{BlockDevice, MemDevice};
    use longhaul_engine::Config;
    use longhaul_results::record::Validity;
    use std::sync::Arc;
    use std::time::Duration;

    /// A load of a moment, with `runs` of it that are said to have lasted long
    /// enough.
    fn repeated(runs: usize) -> Repeated {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(1 << 20, 4096).expect("mapped"));
        let job = Job { rw: Rw::RandRead, iodepth: 4, seed: 7, ..Job::default() };
        let mut all = Repeated::new();
        for _ in 0..runs {
            let threads = Threads::Own(Config::default());
            let mut results =
                run(std::slice::from_ref(&device), &job, &threads, &Stop::new(), &mut |_| {}).expect("run");
            results.jobs.iter_mut().for_each(|job| job.window = Duration::from_secs(2));
            all.push(results, &Watched::default(), &Expect::default(), Vec::new(), false);
        }
        all
    }

    #[test]
    fn a_document_has_the_samples_of_all_runs() {
        let document = repeated(3).document(true);
        let record = document.longhaul.expect("a record");
        assert_eq!((record.seed, record.runs.len(), document.jobs.len()), (Some(7), 3, 1));
        assert!(record.shown_run.is_some_and(|run| run < 3));
        let names: Vec<&str> = record.cells.iter().map(|cell| cell.name.as_str()).collect();
        let latencies = ["read latency mean", "read latency p99"];
        let parts = ["read submission latency mean", "read completion latency mean"];
        let expected = [&["read bandwidth", "read IOPS"][..], &latencies, &parts, &["CPU"]].concat();
        assert_eq!(names, expected);
        // A mebibyte in two seconds, each time.
        assert_eq!(record.cells[0].samples, [524_288.0; 3]);
        assert_eq!(record.conditions.get("randseed").map(String::as_str), Some("7"));
    }

    #[test]
    fn a_run_that_was_ended_early_does_not_count() {
        let mut all = repeated(2);
        let (results, _) = all.runs[0].clone();
        all.push(results, &Watched::default(), &Expect::default(), Vec::new(), true);
        let record = all.document(false).longhaul.expect("a record");
        assert_eq!((record.cells[0].samples.len(), record.cells[0].left_out.len()), (2, 1));
        assert_eq!(record.cells[0].left_out[0].reasons[0].code, Code::Stopped);
        assert_ne!(record.shown_run, Some(2));
        assert!(!record.runs[2].validity.valid);
    }

    #[test]
    fn losses_count_where_there_is_a_path() {
        let lossy = Watched { retransmitted: Some(0.5), ..Watched::default() };
        let mut all = repeated(1);
        let (results, _) = all.runs[0].clone();
        all.push(results.clone(), &lossy, &Expect::default(), Vec::new(), false);
        let remote = Expect { round_trip: Some(Duration::from_millis(1)), ..Expect::default() };
        all.push(results, &lossy, &remote, Vec::new(), false);
        let valid: Vec<bool> = all.runs.iter().map(|(_, run)| run.validity.valid).collect();
        assert_eq!(valid, [true, true, false]);
    }

    #[test]
    fn a_document_without_runs_is_not_valid() {
        let record = Repeated::new().document(true).longhaul.expect("a record");
        assert!(!record.validity.valid && record.shown_run.is_none());
        assert_eq!(Validity::default(), Validity { valid: true, reasons: Vec::new() });
    }
}
