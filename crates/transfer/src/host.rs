//! Performance counters of a machine as text, which another machine can read from an
//! agent: either end of a copy may be the slow one, and each sees only itself.
//!
//! A line is a name, a space and a value. Names that end in `_s` are seconds counted
//! from a fixed moment in the past, so that the difference of two samples is the time
//! spent between them. Counters that a machine does not have are left out.

use longhaul_engine::procfs::{self, Process, seconds};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The greatest length of a sample, in bytes: a few lines for each processor and thread
/// of a large machine.
pub const TOLD_MAX: usize = 1 << 20;
fn read(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Identifies this machine: its machine-id(5), if it has one, and its host name.
pub(crate) fn name() -> String {
    ["/etc/machine-id", "/proc/sys/kernel/hostname"].iter().filter_map(|path| read(path)).collect()
}

/// Samples the counters of this machine and this process.
pub fn look() -> String {
    let mut sample = String::new();
    let mut add = |name: &str, value: &str| {
        if sample.len() + name.len() + value.len() + 2 <= TOLD_MAX {
            let _ = writeln!(sample, "{name} {value}");
        }
    };
    // `machine` changes with each boot, which distinguishes samples of different boots.
    for (name, path) in [
        ("machine", "/proc/sys/kernel/random/boot_id"),
        ("congestion", "/proc/sys/net/ipv4/tcp_congestion_control"),
        ("tcp_rmem", "/proc/sys/net/ipv4/tcp_rmem"),
        ("tcp_wmem", "/proc/sys/net/ipv4/tcp_wmem"),
        ("mtu_probing", "/proc/sys/net/ipv4/tcp_mtu_probing"),
    ] {
        if let Some(value) = read(path) {
            add(name, &value);
        }
    }
    if let Some(up) = read("/proc/uptime") {
        add("up_s", up.split(' ').next().unwrap_or_default());
    }
    let mine = Process::own().processors();
    for processor in procfs::processors(&fs::read_to_string("/proc/stat").unwrap_or_default()) {
        let Some(number) = processor.number else { continue };
        // Network interrupts may be served by processors that this process may not use.
        add(&format!("processor.{number}.interrupts_s"), &seconds(processor.interrupts).to_string());
        if mine.as_ref().is_none_or(|mine| mine.contains(&number)) {
            add(&format!("processor.{number}.busy_s"), &seconds(processor.busy).to_string());
            let governor = format!("/sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor");
            if let Some(governor) = read(&governor) {
                add(&format!("processor.{number}.governor"), &governor);
            }
        }
    }
    if let Some(ticks) = Process::own().ticks() {
        add("own_s", &seconds(ticks.own).to_string());
    }
    for (thread, ran, waited) in threads() {
        add(&format!("thread.{thread}.ran_s"), &ran.to_string());
        add(&format!("thread.{thread}.waited_s"), &waited.to_string());
    }
    let (ran, waited) = ended();
    add("ended.ran_s", &ran.to_string());
    add("ended.waited_s", &waited.to_string());
    sample
}

/// Nanoseconds that ended threads ran and waited for a processor; the kernel drops the
/// counters of a thread when it ends.
static ENDED: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Seconds that ended threads ran and waited for a processor, of those that recorded
/// their times.
pub fn ended() -> (f64, f64) {
    let [ran, waited] = ENDED.each_ref().map(|time| time.load(Relaxed) as f64 / 1e9);
    (ran, waited)
}

/// Records the run and wait times of a thread when it is dropped at the thread's end.
#[derive(Debug)]
pub(crate) struct ThreadTimes;

impl Drop for ThreadTimes {
    fn drop(&mut self) {
        let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        for (sum, word) in ENDED.iter().zip(text.split_whitespace()) {
            sum.fetch_add(word.parse().unwrap_or(0), Relaxed);
        }
    }
}

/// The threads of this process: id, seconds that each ran, and seconds that it waited for
/// a processor.
pub fn threads() -> Vec<(u32, f64, f64)> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let look = |name: String| {
        let text = fs::read_to_string(format!("/proc/self/task/{name}/schedstat")).ok()?;
        let mut words = text.split_whitespace().map(|word| word.parse::<f64>().ok());
        Some((name.parse().ok()?, words.next()?? / 1e9, words.next()?? / 1e9))
    };
    tasks.filter_map(|task| look(task.file_name().into_string().ok()?)).collect()
}

/// Parses a sample into values by name.
pub fn parse(sample: &str) -> BTreeMap<String, String> {
    let pairs = sample.lines().filter_map(|line| line.split_once(' '));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_the_counters_of_this_machine() {
        let sample = parse(&look());
        assert!(sample.contains_key("machine") && sample.contains_key("own_s"), "{sample:?}");
        assert!(sample.keys().any(|name| name.starts_with("processor.")), "{sample:?}");
        assert!(sample.keys().any(|name| name.starts_with("thread.")), "{sample:?}");
        assert!(sample["up_s"].parse::<f64>().is_ok_and(|up| up > 0.0));
    }

    #[test]
    fn threads_that_have_ended_still_count() {
        let (before, began) = (ended().0, std::time::Instant::now());
        let busy = std::thread::spawn(|| {
            let remembered = ThreadTimes;
            let mut sum = 0_u64;
            for n in 0..50_000_000_u64 {
                sum = std::hint::black_box(sum ^ n);
            }
            drop(remembered);
        });
        busy.join().expect("ended");
        let ran = ended().0 - before;
        assert!(ran > 0.0, "{ran}");
        // Threads of other tests may be counted too: bounded by 1,024 processors.
        assert!(ran <= 1024.0 * began.elapsed().as_secs_f64(), "{ran}");
        assert!(parse(&look())["ended.ran_s"].parse::<f64>().is_ok_and(|sample| sample >= before + ran));
    }
}
