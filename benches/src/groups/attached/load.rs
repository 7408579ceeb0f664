//! Files read or written at the same time, by fio.

use super::RATE;
use super::place::Place;
use crate::process::Guard;
use crate::setup::Setup;
use anyhow::{Context, Result, ensure};
use longhaul_lab::filesystems::{DeviceFormat, Load};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// What a load found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Bytes per second.
    pub(super) rate: f64,
    /// Seconds until a call was taken, and from then until it was done.
    pub(super) submission: f64,
    pub(super) completion: f64,
    pub(super) errors: f64,
    pub(super) disconnects: f64,
}

/// The numbers of [`Seen`], in their order.
pub(super) const NUMBERS: usize = 5;

impl Seen {
    pub(super) fn numbers(self) -> [f64; NUMBERS] {
        [self.rate, self.submission, self.completion, self.errors, self.disconnects]
    }

    /// Reads what fio printed about one group of jobs.
    fn from_json(text: &str, write: bool) -> Result<Seen> {
        // fio may print a note before the JSON.
        let json = &text[text.find('{').with_context(|| format!("fio: {text}"))?..];
        let result: Value = serde_json::from_str(json).context("fio's result")?;
        let job = &result["jobs"][0];
        let direction = &job[if write { "write" } else { "read" }];
        let number = |value: &Value| value.as_f64().context("fio's result without a number");
        Ok(Seen {
            rate: number(&direction["bw_bytes"])?,
            submission: number(&direction["slat_ns"]["mean"])? / 1e9,
            completion: number(&direction["clat_ns"]["mean"])? / 1e9,
            // An error number of fio's, not how many there were.
            errors: f64::from(u8::from(number(&job["error"])? != 0.0)),
            disconnects: 0.0,
        })
    }
}

/// fio's command line, without when to stop.
fn command(load: &Load, place: &Place) -> Command {
    let mut command = Command::new("fio");
    command.args(["--ioengine=libaio", "--direct=1", "--thread", "--group_reporting"]);
    command.args(["--output-format=json", "--fallocate=none"]);
    for (name, value) in [
        ("name", load.name.to_owned()),
        ("rw", load.rw().to_owned()),
        ("bs", load.bs.to_string()),
        ("iodepth", load.depth.to_string()),
        ("numjobs", load.files.to_string()),
        ("size", load.size().to_string()),
    ] {
        command.arg(format!("--{name}={value}"));
    }
    if place.kind == DeviceFormat::Raw {
        command.arg(format!("--filename={}", place.path.display()));
        command.arg(format!("--offset_increment={}", load.size()));
    } else {
        command.arg(format!("--directory={}", place.path.display()));
        command.arg(format!("--filename_format={}.$jobnum", load.name));
    }
    command
}

/// What a person runs.
pub(super) fn words(load: &Load, setup: &Setup) -> String {
    format!(
        "fio --name={} --rw={} --bs={} --iodepth={} --numjobs={} --size={} --directory=/mnt --thread --direct=1 \
         --ioengine=libaio --fallocate=none --group_reporting --time_based --runtime={}ms --ramp_time={}ms \
         --write_bw_log=log --log_unix_epoch=1",
        load.name,
        load.rw(),
        load.bs,
        load.depth,
        load.files,
        load.size(),
        (setup.runtime + lead(load)).as_millis(),
        RAMP_SHOWN.as_millis()
    )
}

/// Writes all its files once, so that none has a hole.
pub(super) fn lay_out(load: &Load, setup: &Setup, place: &Place) -> Result<()> {
    let load = Load { write: true, ..*load };
    let seen = fio(setup, &mut command(&load, place), true)?;
    ensure!(seen.errors == 0.0, "the files could not be written");
    place.sync()
}

/// The part of a window that is not measured: jobs begin one after the other, and each has
/// completed some calls before all run.
fn lead(load: &Load) -> Duration {
    let bits = load.in_flight() * 8;
    STARTED * u32::try_from(load.files).unwrap_or(u32::MAX)
        + 3 * Duration::from_secs_f64(bits as f64 / RATE as f64)
}

/// Loads for a while. Errors of the I/O are a finding.
pub(super) fn run(load: &Load, setup: &Setup, place: &Place) -> Result<Seen> {
    let ms = |time: Duration| format!("{}ms", time.as_millis());
    let logs = tempfile::tempdir()?;
    let mut command = command(load, place);
    command.arg("--time_based").arg(format!("--runtime={}", ms(setup.runtime + lead(load))));
    command.arg(format!("--ramp_time={}", ms(setup.ramp)));
    command.arg(format!("--write_bw_log={}/log", logs.path().display())).arg("--log_unix_epoch=1");
    let mut seen = fio(setup, &mut command, load.write)?;
    if seen.errors == 0.0 {
        seen.rate = together(&completions(logs.path())?)?;
    }
    Ok(seen)
}

/// Milliseconds since the epoch and bytes of each call that was completed, by
/// job.
fn completions(logs: &Path) -> Result<Vec<Vec<(u64, u64)>>> {
    let mut jobs = Vec::new();
    for entry in fs::read_dir(logs)? {
        let text = fs::read_to_string(entry?.path())?;
        let call = |line: &str| {
            let mut fields = line.split(',').map(|field| field.trim().parse().ok());
            Some((fields.next()??, fields.nth(2)??))
        };
        let calls = text.lines().map(|line| call(line).with_context(|| format!("fio's log: {line}")));
        jobs.push(calls.collect::<Result<Vec<_>>>()?);
    }
    Ok(jobs)
}

/// Bytes per second while nine of ten jobs ran, and the least over any of those intervals. Each job
/// has its own runtime in fio, which adds up their bytes over all of these and divides by one.
fn together(jobs: &[Vec<(u64, u64)>]) -> Result<f64> {
    let sorted = |mut times: Vec<u64>| {
        times.sort_unstable();
        times
    };
    let first = sorted(jobs.iter().filter_map(|calls| calls.first()).map(|&(ms, _)| ms).collect());
    let last = sorted(jobs.iter().filter_map(|calls| calls.last()).map(|&(ms, _)| ms).collect());
    let late = first.len() / 10;
    let begin = *first.iter().nth_back(late).context("nothing was completed")?;
    let end = last[late];
    ensure!(
        end >= begin + SHORTEST,
        "{} jobs ran one after the other: the first nine of ten had begun after {} ms, and the last nine of ten \
         went on for {} ms",
        jobs.len(),
        begin - first[0],
        end - first[0]
    );
    let bytes: u64 =
        jobs.iter().flatten().filter(|(ms, _)| (begin + 1..=end).contains(ms)).map(|(_, bytes)| bytes).sum();
    Ok(bytes as f64 * 1e3 / (end - begin) as f64)
}

/// Milliseconds that say something.
const SHORTEST: u64 = 250;

/// What a job of fio takes to begin beside a thousand others.
const STARTED: Duration = Duration::from_millis(2);

/// Load before a window at the shortest distance.
const RAMP_SHOWN: Duration = super::RAMP;

fn fio(setup: &Setup, command: &mut Command, write: bool) -> Result<Seen> {
    let mut child = Guard(setup.load.start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?);
    let text = std::io::read_to_string(child.0.stdout.take().context("no pipe")?)?;
    child.0.wait()?;
    Seen::from_json(&text, write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fio_says_is_read() {
        let text = r#"note
{"jobs":[{"error":5,"write":{"bw_bytes":4096000,"slat_ns":{"mean":2000.0},"clat_ns":{"mean":3000000.0}}}]}"#;
        let seen = Seen::from_json(text, true).expect("a result");
        assert_eq!(seen.numbers(), [4_096_000.0, 2e-6, 3e-3, 1.0, 0.0]);
        assert!(Seen::from_json(text, false).is_err(), "nothing was read");
        assert!(Seen::from_json("fio: no", true).is_err());
    }

    #[test]
    fn what_was_done_while_all_ran_is_counted() {
        // A call of 1,000 bytes every 10 ms, and the same 300 ms later.
        let job = |begin: u64| (0..100).map(|n| (begin + 10 * n, 1000)).collect::<Vec<_>>();
        let rate = together(&[job(0), job(300), Vec::new()]).expect("a rate");
        assert!((rate - 200e3).abs() < 1.0, "{rate}");
        assert!(together(&[job(0), job(900)]).is_err() && together(&[Vec::new()]).is_err());
        // One of many is late.
        let many: Vec<_> = (0..20).map(|n| job(if n == 7 { 980 } else { n })).collect();
        let rate = together(&many).expect("a rate");
        assert!((rate - 1900e3).abs() < 50e3, "{rate}");
    }

    #[test]
    fn calls_are_found_in_logs() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("log_bw.1.log"), "1795337904433, 88442645, 0, 65536, 0\n")
            .expect("written");
        assert_eq!(completions(dir.path()).expect("read"), [[(1_795_337_904_433, 65536)]]);
        fs::write(dir.path().join("log_bw.2.log"), "17953379044\n").expect("written");
        assert!(completions(dir.path()).is_err());
    }
}
