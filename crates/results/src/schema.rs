//! fio's JSON layout (`fio --output-format=json`), to write and to read.
//!
//! Names, nesting and units are fio's: `bw` in KiB/s and `bw_bytes` in bytes/s, `runtime` in
//! milliseconds, `*_ns` in nanoseconds. A missing field is read as zero, and an unknown one is
//! ignored, so that results of other versions of fio are read, too.

use crate::record::Record;
use longhaul_engine::{UtcTime, wall_time};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A whole result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Output {
    /// Program and version.
    #[serde(rename = "fio version")]
    pub version: String,
    /// Seconds since 1970.
    pub timestamp: u64,
    /// Milliseconds since 1970.
    pub timestamp_ms: u64,
    /// The same for people, in UTC.
    pub time: String,
    /// Options that all jobs share.
    #[serde(rename = "global options")]
    pub global_options: Pairs<String>,
    /// One entry a job, or a group of jobs.
    pub jobs: Vec<Job>,
    /// Always empty: remote devices have no entry in the kernel's statistics.
    pub disk_util: Vec<serde_json::Value>,
    /// The ways to remote devices that were measured and tuned; not in fio's
    /// layout.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<Path>,
    /// What this program knows beyond fio's layout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longhaul: Option<Record>,
}

impl Output {
    /// An empty document of this program with the present time. Every document begins as this one,
    /// so that all state program, version and time in the same way.
    pub fn now() -> Output {
        let now = wall_time();
        Output {
            version: concat!("longhaul-", env!("CARGO_PKG_VERSION")).into(),
            timestamp: now.as_secs(),
            timestamp_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            time: utc(now.as_secs()),
            ..Output::default()
        }
    }
}

/// Settings chosen for the path to a remote device, and the reasons.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Path {
    /// Name of the device, as it was given.
    pub device: String,
    /// Shortest round trip in microseconds.
    pub round_trip_us: f64,
    /// Connections of a thread.
    pub connections: u16,
    /// How often the device was lost and connected to again.
    pub disconnects: u64,
    /// The whole in a sentence.
    pub sentence: String,
}

/// Result of a job, or of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Job {
    /// Name of the job, or of the first one of a group.
    pub jobname: String,
    /// Number of the group.
    pub groupid: u32,
    /// An `errno`, or 0.
    pub error: i32,
    /// Seconds left: 0.
    pub eta: u64,
    /// Seconds since the start.
    pub elapsed: u64,
    /// Options of the job.
    #[serde(rename = "job options")]
    pub job_options: Pairs<String>,
    /// Reads of the job.
    pub read: Direction,
    /// Writes of the job.
    pub write: Direction,
    /// Discards of the job, which fio calls trims.
    pub trim: Direction,
    /// Flushes of the job.
    pub sync: Sync,
    /// Duration of the job in milliseconds.
    pub job_runtime: u64,
    /// Percent of the time on a processor in the program.
    pub usr_cpu: f64,
    /// Percent of the time on a processor in the kernel.
    pub sys_cpu: f64,
    /// Number of context switches.
    pub ctx: u64,
    /// Page faults that needed I/O.
    pub majf: u64,
    /// Page faults that did not.
    pub minf: u64,
    /// Percent of I/Os begun with as many under way.
    pub iodepth_level: Pairs<f64>,
    /// Percent of calls that handed over as many I/Os.
    pub iodepth_submit: Pairs<f64>,
    /// Percent of calls that brought back as many I/Os.
    pub iodepth_complete: Pairs<f64>,
    /// Percent of I/Os that took less than so many nanoseconds.
    pub latency_ns: Pairs<f64>,
    /// The same in microseconds.
    pub latency_us: Pairs<f64>,
    /// The same in milliseconds.
    pub latency_ms: Pairs<f64>,
    /// I/Os under way at a time.
    pub latency_depth: u32,
    /// 0: `latency_target` of fio is not supported.
    pub latency_target: u64,
    /// 0: `latency_percentile` of fio is not supported.
    pub latency_percentile: f64,
    /// 0: `latency_window` of fio is not supported.
    pub latency_window: u64,
    /// What `verify` found; not in fio's layout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify: Option<Verify>,
    /// With an automatic `iodepth`, what the device advised in the end; not
    /// in fio's layout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<Advice>,
}

/// How much to keep in flight, in bytes and commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Advice {
    /// Bytes of reads.
    pub read: u64,
    /// Bytes of writes.
    pub write: u64,
    /// Bytes of one I/O.
    pub io_size: u32,
    /// Bytes to read ahead.
    pub read_ahead: u64,
    /// Operations beyond which more only wait.
    pub commands: u32,
}

/// I/O of one kind: reads, writes or discards.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Direction {
    /// Bytes moved by completed I/O.
    pub io_bytes: u64,
    /// KiB moved, rounded down.
    pub io_kbytes: u64,
    /// Bytes per second.
    pub bw_bytes: u64,
    /// KiB per second.
    pub bw: u64,
    /// I/Os per second.
    pub iops: f64,
    /// Duration in milliseconds.
    pub runtime: u64,
    /// Number of I/Os that completed.
    pub total_ios: u64,
    /// I/Os that ended early: none.
    pub short_ios: u64,
    /// I/Os dropped: none.
    pub drop_ios: u64,
    /// From the call until the I/O is submitted.
    pub slat_ns: Latency,
    /// From the submission until the completion.
    pub clat_ns: Latency,
    /// From the call until the completion.
    pub lat_ns: Latency,
    /// Smallest sample in KiB/s.
    pub bw_min: u64,
    /// Largest sample in KiB/s.
    pub bw_max: u64,
    /// Share of the group in percent.
    pub bw_agg: f64,
    /// Mean of the samples in KiB/s.
    pub bw_mean: f64,
    /// Standard deviation of the samples in KiB/s.
    pub bw_dev: f64,
    /// How many samples.
    pub bw_samples: u64,
    /// Smallest sample in I/Os per second.
    pub iops_min: u64,
    /// Largest sample in I/Os per second.
    pub iops_max: u64,
    /// Mean of the samples.
    pub iops_mean: f64,
    /// Standard deviation of the samples.
    pub iops_stddev: f64,
    /// How many samples.
    pub iops_samples: u64,
}

/// Latencies in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// Shortest latency, in nanoseconds.
    pub min: u64,
    /// Longest latency, in nanoseconds.
    pub max: u64,
    /// Mean latency, in nanoseconds.
    pub mean: f64,
    /// Standard deviation of the latencies.
    pub stddev: f64,
    /// Number of latencies.
    #[serde(rename = "N")]
    pub n: u64,
    /// By percent, as `"99.000000"`.
    #[serde(skip_serializing_if = "Pairs::is_empty")]
    pub percentile: Pairs<u64>,
}

/// Flushes of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sync {
    /// Number of flushes that completed.
    pub total_ios: u64,
    /// From call to completion.
    pub lat_ns: Latency,
}

/// What `verify` found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verify {
    /// Number of blocks that were verified.
    pub checked_blocks: u64,
    /// Wrong ones by kind.
    pub faults: Pairs<u64>,
    /// The first ones, as sentences.
    pub first: Vec<String>,
}

/// A JSON object that keeps its order.
#[derive(Clone, Debug, PartialEq)]
pub struct Pairs<T>(pub Vec<(String, T)>);

impl<T> Default for Pairs<T> {
    fn default() -> Pairs<T> {
        Pairs(Vec::new())
    }
}

impl<T> Pairs<T> {
    /// Whether it has nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The values, sorted by name; of two of one name the last.
    pub fn by_name(&self) -> BTreeMap<&str, &T> {
        self.0.iter().map(|(name, value)| (name.as_str(), value)).collect()
    }

    /// The value of `name`.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }
}

impl<T: Serialize> Serialize for Pairs<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pairs<T>, D::Error> {
        struct Entries<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = Pairs<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<T>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    pairs.push(entry);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Entries(std::marker::PhantomData))
    }
}

/// `Sat Nov 21 00:00:02 2026`, as fio prints it.
fn utc(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let UtcTime { year, month, day, weekday, hour, minute, second } = UtcTime::of_epoch_seconds(seconds);
    let (weekday, month) = (DAYS[usize::from(weekday)], MONTHS[usize::from(month - 1)]);
    format!("{weekday} {month} {day:2} {hour:02}:{minute:02}:{second:02} {year}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_fio_does() {
        assert_eq!(utc(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(utc(951_782_399), "Mon Feb 28 23:59:59 2000");
        assert_eq!(utc(951_782_400), "Tue Feb 29 00:00:00 2000");
        assert_eq!(utc(1_795_219_202), "Sat Nov 21 00:00:02 2026");
    }
}
