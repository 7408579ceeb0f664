//! Where a measurement was made.

use crate::setup::Setup;
use longhaul_block::units::format_size;
use std::fs;
use std::process::Command;

/// A list in Markdown of all that a number depends on. Measurements over
/// emulated links are bound to no processor, and have windows of their own.
pub(crate) fn conditions(setup: &Setup, local: bool) -> Vec<String> {
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let read =
        |path: &str| fs::read_to_string(path).map_or_else(|_| "unknown".into(), |s| s.trim().to_owned());
    let huge = read("/sys/kernel/mm/transparent_hugepage/enabled");
    let huge = huge.split(['[', ']']).nth(1).unwrap_or("unknown").to_owned();
    vec![
        format!(
            "Machine: {}, {cpus} processors{}, {} of memory, transparent huge pages {huge}; load average {} \
             when the run began",
            field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".into()),
            if virtual_machine() { " (virtual)" } else { "" },
            memory(),
            read("/proc/loadavg").split(' ').next().unwrap_or_default(),
        ),
        format!(
            "Kernel: {} {}; congestion control of all sockets: {} (the kernel's default: {})",
            read("/proc/sys/kernel/ostype"),
            read("/proc/sys/kernel/osrelease"),
            setup.congestion,
            read("/proc/sys/net/ipv4/tcp_congestion_control"),
        ),
        format!(
            "Program: {}{}{}",
            first_line(Command::new(&setup.program).arg("--version")).unwrap_or_else(|| "unknown".into()),
            commit(),
            if local { processors(setup) } else { String::new() },
        ),
        format!(
            "Each number: median (least–most) of {} measurements{}",
            setup.rounds,
            if local { window(setup) } else { ", interleaved".into() },
        ),
    ]
}

fn processors(setup: &Setup) -> String {
    match (setup.target.cpu, setup.load.cpu) {
        (Some(target), Some(load)) => format!("; target on processor {target}, load on processor {load}"),
        _ => String::new(),
    }
}

/// The commit of the working directory, and whether it is exactly that.
fn commit() -> String {
    let Some(commit) = first_line(Command::new("git").args(["rev-parse", "--short=12", "HEAD"])) else {
        return String::new();
    };
    let changed = first_line(Command::new("git").args(["status", "--porcelain", "--untracked-files=no"]));
    let changed = changed.is_some_and(|line| !line.is_empty());
    format!(", commit {commit}{}", if changed { " with changes" } else { "" })
}

/// The first line that a program prints, if it can be run.
pub(crate) fn first_line(command: &mut Command) -> Option<String> {
    let output = command.stdin(std::process::Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    output.status.success().then(|| text.lines().next().unwrap_or_default().trim().to_owned())
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory() -> String {
    let total = field("/proc/meminfo", "MemTotal");
    let kib = total.and_then(|t| t.trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.map_or_else(|| "unknown size".into(), |kib| format!("{:.0} GiB", kib as f64 / (1 << 20) as f64))
}

fn virtual_machine() -> bool {
    field("/proc/cpuinfo", "flags").is_some_and(|flags| flags.split(' ').any(|f| f == "hypervisor"))
}

fn window(setup: &Setup) -> String {
    let (runtime, ramp) = (setup.runtime.as_secs_f64(), setup.ramp.as_secs_f64());
    let size = format_size(setup.size);
    format!(" of {runtime} s after {ramp} s of load, interleaved; the device has {size}")
}
