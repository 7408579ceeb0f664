//! Results of a load, and their layout in fio's JSON.

use crate::Job;
use crate::stats::{DirStats, Latencies, Samples};
use crate::verify::{FaultKind, VerifyReport};
use crate::worker::{JobOutcome, Measurement, Usage};
use longhaul_block::{Advice, DeviceInfo, IoError};
use longhaul_results::schema::{self, Pairs};
use std::time::Duration;

/// The percentiles that fio lists.
const PERCENTILES: [f64; 17] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];

/// Upper bounds of fio's latency classes within each unit.
const CLASSES: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];

/// Results of one job.
#[derive(Clone, Debug)]
pub struct JobResult {
    /// Name of the device.
    pub device: String,
    /// Reads in the window.
    pub read: DirStats,
    /// Writes in the window, or discards if the load discards.
    pub write: DirStats,
    /// Flushes in the window.
    pub sync: Latencies,
    /// Length of the window: that of the job, or less if the load ended before.
    pub window: Duration,
    /// From the start to the last completion, the ramp and the drain included.
    pub elapsed: Duration,
    /// The I/O error that ended the job.
    pub error: Option<IoError>,
    /// Result of verification.
    pub verify: VerifyReport,
    /// The most I/Os in flight, by `iodepth` or by the device's advice.
    pub depth: u32,
    /// Last advice of the device, if the job uses it.
    pub advice: Option<Advice>,
    depths: [u64; 7],
    usage: Usage,
}

impl JobResult {
    pub(crate) fn new(device: DeviceInfo, outcome: JobOutcome) -> JobResult {
        let JobOutcome { record, window, elapsed, error, verify, usage, depth, advice } = outcome;
        let Measurement { read, write, sync, depths, .. } = record;
        let device = device.name;
        JobResult { device, read, write, sync, window, elapsed, error, verify, depth, advice, depths, usage }
    }

    /// Bytes per second in the window, both directions together.
    pub fn rate(&self) -> f64 {
        (self.read.bytes + self.write.bytes) as f64 / self.window.as_secs_f64().max(1e-9)
    }

    /// Adds a job of the same group.
    fn merge(&mut self, other: &JobResult) {
        self.read.merge(&other.read);
        self.write.merge(&other.write);
        self.sync.merge(&other.sync);
        self.window = self.window.max(other.window);
        self.elapsed = self.elapsed.max(other.elapsed);
        self.error = self.error.take().or_else(|| other.error.clone());
        self.verify.merge(&other.verify);
        self.depth = self.depth.max(other.depth);
        self.depths.iter_mut().zip(other.depths).for_each(|(a, b)| *a += b);
        self.usage.user += other.usage.user;
        self.usage.system += other.usage.system;
        self.usage.switches += other.usage.switches;
        self.usage.major_faults += other.usage.major_faults;
        self.usage.minor_faults += other.usage.minor_faults;
    }
}

/// Results of all jobs of a load.
#[derive(Clone, Debug)]
pub struct Results {
    /// The load that was run.
    pub job: Job,
    /// One entry per device and job, devices first.
    pub jobs: Vec<JobResult>,
}

impl Results {
    pub(crate) fn new(job: Job, jobs: Vec<JobResult>) -> Results {
        Results { job, jobs }
    }

    /// Results of all jobs, merged.
    pub fn total(&self) -> Option<JobResult> {
        let mut jobs = self.jobs.iter();
        let first = jobs.next()?.clone();
        Some(jobs.fold(first, |mut all, job| {
            all.merge(job);
            all
        }))
    }

    /// Results of verification of all jobs, merged.
    pub fn verify(&self) -> VerifyReport {
        self.jobs.iter().fold(VerifyReport::default(), |mut all, job| {
            all.merge(&job.verify);
            all
        })
    }

    /// The first I/O error of any job.
    pub fn error(&self) -> Option<&IoError> {
        self.jobs.iter().find_map(|job| job.error.as_ref())
    }

    /// The results in fio's layout; with `group_reporting`, all jobs as
    /// one entry.
    pub fn to_fio(&self, group_reporting: bool) -> schema::Output {
        let grouped;
        let jobs: &[JobResult] = if group_reporting {
            grouped = Vec::from_iter(self.total());
            &grouped
        } else {
            &self.jobs
        };
        let total: [f64; 2] =
            jobs.iter().fold([0.0; 2], |[r, w], j| [r + j.read.bw.mean, w + j.write.bw.mean]);
        schema::Output {
            global_options: Pairs(vec![
                ("ioengine".into(), "longhaul".into()),
                ("direct".into(), "1".into()),
            ]),
            jobs: jobs.iter().map(|job| self.job_to_fio(job, total)).collect(),
            ..schema::Output::now()
        }
    }

    fn job_to_fio(&self, job: &JobResult, total: [f64; 2]) -> schema::Job {
        let mut options = self.job.options();
        options.insert(1, ("filename".into(), job.device.clone()));
        let share = |part: Duration| 100.0 * part.as_secs_f64() / job.elapsed.as_secs_f64().max(1e-9);
        let per_call = |name: &str| {
            let names = ["0", "4", "8", "16", "32", "64", ">=64"];
            Pairs(names.map(|n| (n.to_owned(), if n == name { 100.0 } else { 0.0 })).to_vec())
        };
        // A load that discards writes nothing: its discards are counted in place of writes.
        let changes = direction(&job.write, job.window, total[1]);
        let [latency_ns, latency_us, latency_ms] = latency_classes([&job.read.lat, &job.write.lat]);
        schema::Job {
            jobname: self.job.name.clone(),
            groupid: 0,
            error: if job.verify.faults() > 0 { libc::EILSEQ } else { job.error.as_ref().map_or(0, errno) },
            eta: 0,
            elapsed: job.elapsed.as_secs_f64().ceil() as u64,
            job_options: Pairs(options),
            read: direction(&job.read, job.window, total[0]),
            write: if self.job.rw.trims() { schema::Direction::default() } else { changes.clone() },
            trim: if self.job.rw.trims() { changes } else { schema::Direction::default() },
            sync: schema::Sync { total_ios: job.sync.count(), lat_ns: latency(&job.sync, true) },
            job_runtime: job.window.as_millis() as u64,
            usr_cpu: share(job.usage.user),
            sys_cpu: share(job.usage.system),
            ctx: job.usage.switches,
            majf: job.usage.major_faults,
            minf: job.usage.minor_faults,
            iodepth_level: depth_levels(&job.depths),
            iodepth_submit: per_call("4"),
            iodepth_complete: per_call("4"),
            latency_ns,
            latency_us,
            latency_ms,
            latency_depth: job.depth,
            latency_target: 0,
            latency_percentile: 100.0,
            latency_window: 0,
            verify: self.job.verify.then(|| verify(&job.verify)),
            advice: job.advice.filter(|_| self.job.iodepth_auto).map(|advice| schema::Advice {
                read: advice.read,
                write: advice.write,
                io_size: advice.io_size,
                read_ahead: advice.read_ahead,
                commands: advice.commands,
            }),
        }
    }
}

fn direction(stats: &DirStats, window: Duration, group: f64) -> schema::Direction {
    if stats.ios == 0 {
        return schema::Direction::default();
    }
    let seconds = window.as_secs_f64().max(1e-9);
    let rate = |n: u64| n as f64 / seconds;
    let kib = |bytes: f64| bytes / 1024.0;
    let Samples { min, max, mean, count, .. } = stats.bw;
    schema::Direction {
        io_bytes: stats.bytes,
        io_kbytes: stats.bytes / 1024,
        bw_bytes: rate(stats.bytes) as u64,
        bw: kib(rate(stats.bytes)) as u64,
        iops: rate(stats.ios),
        runtime: window.as_millis() as u64,
        total_ios: stats.ios,
        short_ios: 0,
        drop_ios: 0,
        slat_ns: latency(&stats.slat, false),
        clat_ns: latency(&stats.clat, true),
        lat_ns: latency(&stats.lat, true),
        bw_min: kib(min) as u64,
        bw_max: kib(max) as u64,
        bw_agg: if group > 0.0 { 100.0 * mean / group } else { 0.0 },
        bw_mean: kib(mean),
        bw_dev: kib(stats.bw.stddev()),
        bw_samples: count,
        iops_min: stats.iops.min as u64,
        iops_max: stats.iops.max as u64,
        iops_mean: stats.iops.mean,
        iops_stddev: stats.iops.stddev(),
        iops_samples: stats.iops.count,
    }
}

fn latency(all: &Latencies, percentiles: bool) -> schema::Latency {
    let percentile = if percentiles && all.count() > 0 {
        PERCENTILES.map(|p| (format!("{p:.6}"), all.percentile(p))).to_vec()
    } else {
        Vec::new()
    };
    schema::Latency {
        min: all.min(),
        max: all.max(),
        mean: all.mean(),
        stddev: all.stddev(),
        n: all.count(),
        percentile: Pairs(percentile),
    }
}

/// Shares of total latency in fio's classes: ns, µs and ms.
fn latency_classes(all: [&Latencies; 2]) -> [Pairs<f64>; 3] {
    let count: u64 = all.iter().map(|l| l.count()).sum();
    let share = |from, to| {
        let n: u64 = all.iter().map(|l| l.count_between(from, to)).sum();
        if count == 0 { 0.0 } else { 100.0 * n as f64 / count as f64 }
    };
    let mut below = 0;
    [1, 1_000, 1_000_000].map(|unit| {
        // fio's list of milliseconds has two more classes: two seconds, and longer.
        let more: &[u64] = if unit == 1_000_000 { &[2000] } else { &[] };
        let mut classes = Vec::new();
        for class in CLASSES.iter().chain(more) {
            classes.push((class.to_string(), share(below, (class * unit).max(below))));
            below = below.max(class * unit);
        }
        if unit == 1_000_000 {
            classes.push((">=2000".into(), share(below, u64::MAX)));
        }
        Pairs(classes)
    })
}

fn depth_levels(depths: &[u64; 7]) -> Pairs<f64> {
    let total: u64 = depths.iter().sum();
    let share = |n: u64| if total == 0 { 0.0 } else { 100.0 * n as f64 / total as f64 };
    let names = ["1", "2", "4", "8", "16", "32", ">=64"];
    Pairs(names.into_iter().zip(depths).map(|(name, n)| (name.into(), share(*n))).collect())
}

fn verify(report: &VerifyReport) -> schema::Verify {
    schema::Verify {
        checked_blocks: report.checked_blocks,
        faults: Pairs(
            FaultKind::ALL.map(|kind| (kind.name().replace(' ', "_"), report.count(kind))).to_vec(),
        ),
        first: report.first.iter().map(ToString::to_string).collect(),
    }
}

/// The `errno` for fio's `error` field.
fn errno(error: &IoError) -> i32 {
    match error {
        IoError::OutOfRange { .. } | IoError::Unaligned { .. } => libc::EINVAL,
        IoError::ReadOnly => libc::EROFS,
        IoError::NoSpace => libc::ENOSPC,
        IoError::Unsupported(_) => libc::EOPNOTSUPP,
        IoError::Integrity(_) => libc::EILSEQ,
        IoError::Aborted => libc::ECANCELED,
        IoError::Refused(_) => libc::EACCES,
        IoError::Reserved => libc::EBADE,
        IoError::Unreachable(_) | IoError::Offline(_) => libc::ENOTCONN,
        IoError::Medium(_) => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_every_latency_once() {
        let mut all = Latencies::default();
        for ns in [1, 3, 800, 1_500, 70_000, 999_000, 3_000_000, 1_500_000_000, 5_000_000_000] {
            all.record(ns);
        }
        let classes = latency_classes([&all, &Latencies::default()]);
        let share = |unit: usize, name: &str| classes[unit].get(name).copied().unwrap_or(-1.0) / 100.0 * 9.0;
        let expect = [
            (0, "2"),
            (0, "4"),
            (0, "1000"),
            (1, "2"),
            (1, "100"),
            (1, "1000"),
            (2, "4"),
            (2, "2000"),
            (2, ">=2000"),
        ];
        for (unit, name) in expect {
            assert!((share(unit, name) - 1.0).abs() < 1e-9, "{name}: {}", share(unit, name));
        }
        let sum: f64 = classes.iter().flat_map(|c| &c.0).map(|(_, share)| share).sum();
        assert!((sum - 100.0).abs() < 1e-9);
    }
}
