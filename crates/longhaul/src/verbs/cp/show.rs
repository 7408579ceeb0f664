//! Output of a copy: the live line, events and the summary.

use crate::events::{
    self, ChosenNumber, CopyNote, CopyPlanned, CopyProgress, CopySkipped, CopySummary, CopyTrouble,
    CopyTuned, SocketStatistics, ThreadStatistics,
};
use crate::live::{self, Pace};
use crate::output::Output;
use crate::screen::Line;
use longhaul_block::units::format_size;
use longhaul_transfer::host;
use longhaul_transfer::wire::{Action, Counts, Limit, Op, Tuned};
use longhaul_transfer::{Chosen, CopySpec, Endpoint, FILE_WORK, Monitor, Note, Snapshot, Stage, Summary};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval of updates of the live line.
const LIVE: Duration = Duration::from_millis(200);
/// Interval of progress events.
const EVENTS: Duration = Duration::from_secs(1);

/// What the progress thread returns at its end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProgressReport {
    /// Number of files whose content differs from what was sent.
    pub(super) mismatch: u64,
    /// Processor time of the threads.
    pub(super) threads: ThreadStatistics,
}

/// Samples the processor time of threads, which end before the copy does.
#[derive(Default)]
struct ThreadSampler(HashMap<u32, (f64, f64)>);

impl ThreadSampler {
    fn look(&mut self) {
        self.0.extend(host::threads().into_iter().map(|(id, ran, waited)| (id, (ran, waited))));
    }

    /// Shares of `time`.
    fn shares(&self, time: Duration) -> ThreadStatistics {
        let most = self.0.values().copied().max_by(|a, b| (a.0 + a.1).total_cmp(&(b.0 + b.1)));
        let (ran, waited) = most.unwrap_or_default();
        let share = |seconds: f64| (seconds / time.as_secs_f64().max(1e-9)).min(1.0);
        let of_ended = host::ended();
        let now = host::threads().into_iter().map(|(_, ran, waited)| (ran, waited));
        let (ran_s, waited_s) = now.fold(of_ended, |sum, one| (sum.0 + one.0, sum.1 + one.1));
        ThreadStatistics { busiest: share(ran), waited: share(waited), ran_s, waited_s }
    }
}

/// The thread that shows the progress of a copy.
pub(super) struct Progress {
    stop: Sender<()>,
    thread: JoinHandle<ProgressReport>,
}

impl Progress {
    pub(super) fn start(monitor: Arc<Monitor>, output: Output) -> Progress {
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || watch(&monitor, output, &stopped));
        Progress { stop, thread }
    }

    pub(super) fn stop(self) -> ProgressReport {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

fn watch(monitor: &Monitor, output: Output, stopped: &Receiver<()>) -> ProgressReport {
    let live_line = Line::new();
    let (mut live, mut last_event) = (false, Instant::now());
    let mut pace = CopyRates::new(Instant::now());
    let (mut troubles, mut sampler) = (ProgressReport::default(), ThreadSampler::default());
    loop {
        let end = stopped.recv_timeout(LIVE) != Err(RecvTimeoutError::Timeout);
        sampler.look();
        for trouble in monitor.take_troubles() {
            if trouble.op == Op::Skip {
                let (path, why) = (&trouble.message, "the names of unfinished copies begin so");
                output.note(format_args!("longhaul: {path}: left out: {why}"));
                output.event(&CopySkipped { path: path.clone(), message: why });
                continue;
            }
            troubles.mismatch += u64::from(trouble.op == Op::Verify);
            let (path, op) = (trouble.path.to_string(), trouble.op.name());
            output.note(format_args!("longhaul: {path}: {} ({op})", trouble.message));
            output.event(&CopyTrouble { path, op, message: trouble.message });
        }
        for planned in monitor.take_planned() {
            let (path, action) = (planned.path.to_string(), planned.action);
            output.line(format_args!("would {} {path}", words(action)));
            output.event(&CopyPlanned { path, action: action.name() });
        }
        for note in monitor.take_notes() {
            match note {
                Note::Words(words) => {
                    output.note(format_args!("longhaul: {words}"));
                    output.event(&CopyNote { message: words });
                }
                Note::Tuned { tuned, far } => output.event(&moved(tuned, far)),
            }
        }
        if end {
            drop(live_line);
            troubles.threads = sampler.shares(monitor.began().map(|at| at.elapsed()).unwrap_or_default());
            return troubles;
        }
        let Some(began) = monitor.began() else { continue };
        if !std::mem::replace(&mut live, true) {
            pace = CopyRates::new(began);
            last_event = began;
        }
        let now = monitor.now();
        pace.look(Instant::now(), &now);
        // No line before the copy begins, since ssh may ask for a password until then.
        live_line.show(share(&now), line(&now, &pace));
        if last_event.elapsed() >= EVENTS {
            last_event = Instant::now();
            output.event(&event(&now, &pace, began.elapsed()));
        }
    }
}

/// An action of a dry run, as text.
fn words(action: Action) -> &'static str {
    match action {
        Action::Send => "send",
        Action::Make => "make",
        Action::Metadata => "change mode, owner, time or attributes of",
        Action::Delete => "remove",
    }
}

fn number(one: &Chosen) -> ChosenNumber {
    ChosenNumber { stage: one.stage.name(), side: side(one.far), number: one.number, why: one.why.clone() }
}

/// The event of a change by the tuner.
fn moved(tuned: Tuned, far: bool) -> CopyTuned {
    let Tuned { stage, from, to, why } = tuned;
    CopyTuned { stage: stage.name(), side: side(far), from, to, why }
}

fn side(far: bool) -> &'static str {
    if far { "there" } else { "here" }
}

/// The numbers of streams, readers and writers chosen, and the congestion control, as text.
fn chosen(all: &[Chosen], summary: &Summary) -> String {
    let used = all.iter().filter(|one| one.stage != Stage::Send || one.far || summary.streams > 0);
    let numbers = used.map(|one| {
        let what = match one.stage {
            Stage::Send => "streams",
            Stage::Read => "readers",
            _ => "writers",
        };
        let place = if one.far { " there" } else { "" };
        format!("{} {what}{place} ({})", one.number, one.why)
    });
    numbers.chain(summary.congestion.clone()).collect::<Vec<_>>().join(", ")
}

/// Bits per second.
fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 * 8.0 / time.as_secs_f64().max(1e-9)
}

/// What limits the copy, as text.
fn limit(now: &Snapshot) -> Option<String> {
    Some(match now.limit? {
        Limit::Stage(stage) => stage.name().to_owned(),
        Limit::Rate => "--bwlimit".to_owned(),
        Limit::Silence => format!("the other side (silent for {} s)", now.silent.as_secs()),
    })
}

/// Rates of a copy: of its bytes, and of its work, which includes a cost per file.
struct CopyRates {
    bytes: Pace,
    work: Pace,
}

impl CopyRates {
    fn new(began: Instant) -> CopyRates {
        CopyRates { bytes: Pace::new(began, 0), work: Pace::new(began, 0) }
    }

    fn look(&mut self, at: Instant, now: &Snapshot) {
        self.bytes.look(at, now.counts.bytes);
        self.work.look(at, work(now.counts.files, now.counts.bytes));
    }

    /// Recent bits per second.
    fn rate(&self) -> Option<f64> {
        self.bytes.rate().map(|bytes| bytes * 8.0)
    }

    /// The remaining time. Files that need not be sent count as done.
    fn left(&self, now: &Snapshot) -> Option<Duration> {
        let Counts { files, bytes, same, failed, skipped, .. } = now.counts;
        let over = work(files.saturating_add(same).saturating_add(failed), bytes.saturating_add(skipped));
        let left = work(now.scanned_files, now.scanned_bytes).saturating_sub(over);
        match left {
            _ if !now.scan_done => None,
            0 => Some(Duration::ZERO),
            left => self.work.left(left),
        }
    }
}

/// Work in bytes: each file costs as much as [`FILE_WORK`] bytes.
fn work(files: u64, bytes: u64) -> u64 {
    files.saturating_mul(FILE_WORK).saturating_add(bytes)
}

fn line(now: &Snapshot, pace: &CopyRates) -> String {
    let counts = now.counts;
    let of = |done: String, all: String| if now.scan_done { format!("{done}/{all}") } else { done };
    let files = of((counts.files + counts.same).to_string(), now.scanned_files.to_string());
    let bytes = of(format_size(counts.bytes + counts.skipped), format_size(now.scanned_bytes));
    let rates = pace.rate().map(|now| format!(" {:.3} Gb/s", now / 1e9));
    let limit = limit(now).map(|limit| format!(" limit: {limit}")).unwrap_or_default();
    format!("{files} files {bytes}{}{}{limit}", rates.unwrap_or_default(), live::eta(pace.left(now)))
}

/// The share of the work that is done, once the sources are scanned.
fn share(now: &Snapshot) -> Option<f64> {
    let Counts { files, bytes, same, failed, skipped, .. } = now.counts;
    let work = |files: u64, bytes: u64| files.saturating_mul(FILE_WORK).saturating_add(bytes) as f64;
    let done = work(files + same + failed, bytes + skipped);
    let all = work(now.scanned_files, now.scanned_bytes);
    (now.scan_done && all > 0.0).then(|| done / all)
}

fn event(now: &Snapshot, pace: &CopyRates, elapsed: Duration) -> CopyProgress {
    let counts = now.counts;
    let mean = rate(counts.bytes, elapsed);
    CopyProgress {
        seconds: elapsed.as_secs_f64(),
        files: counts.files,
        bytes: counts.bytes,
        same: counts.same,
        failed: counts.failed,
        metadata: counts.metadata,
        bytes_skipped: counts.skipped,
        eta_seconds: pace.left(now).map(|left| left.as_secs_f64()),
        bits_per_second: pace.rate().unwrap_or(mean),
        bits_per_second_mean: mean,
        files_found: now.scanned_files,
        bytes_found: now.scanned_bytes,
        scan_done: now.scan_done,
        limit: now.limit.map(Limit::name),
        silent_seconds: now.silent.as_secs_f64(),
    }
}

/// The kernel's statistics of the connections, for the summary event.
fn sockets(monitor: &Monitor) -> Option<SocketStatistics> {
    let info = monitor.sockets()?;
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    Some(SocketStatistics {
        round_trip_us: events::micros(info.rtt),
        round_trip_least_us: info.min_rtt.map(events::micros),
        retransmissions: info.retransmissions,
        packet: info.packet,
        busy: seconds(info.busy),
        peer_window_limited: seconds(info.peer_window_limited),
        send_buffer_limited: seconds(info.send_buffer_limited),
    })
}

/// Prints the summary.
pub(super) fn summary(
    summary: &Summary,
    monitor: &Monitor,
    threads: ThreadStatistics,
    spec: &CopySpec,
    output: Output,
) {
    let (end, numbers) = (monitor.now(), monitor.chosen());
    let (counts, seconds) = (summary.counts, summary.elapsed.as_secs_f64());
    let mean = rate(counts.bytes, summary.elapsed);
    let dry_run = spec.options.dry_run;
    let path = end.best.map(|best| best * 8.0);
    let share = path.map(|path| rate(end.carried, summary.elapsed) / path.max(1.0));
    // Of a third-party copy only the two agents know the number of streams.
    let elsewhere = |end: &Endpoint| !matches!(end, Endpoint::Local(_) | Endpoint::Mounted { .. });
    let third = elsewhere(&spec.destination) && spec.sources.iter().all(elsewhere);
    let streams = (!third).then_some(summary.streams);
    output.event(&CopySummary {
        files: counts.files,
        others: counts.others,
        bytes: counts.bytes,
        same: counts.same,
        wanted: counts.wanted,
        deleted: counts.deleted,
        failed: counts.failed,
        metadata: counts.metadata,
        bytes_skipped: counts.skipped,
        seconds,
        bits_per_second: mean,
        resumed: summary.resumed,
        streams,
        congestion: summary.congestion.clone(),
        through_ssh: summary.through_ssh,
        dry_run,
        path_bits_per_second: path,
        path_share: share,
        chosen: numbers.iter().map(number).collect(),
        bytes_read: end.read_bytes,
        sockets: sockets(monitor),
        threads,
    });
    let mut words = vec![format!("{} files", counts.files), format_size(counts.bytes)];
    if counts.others > 0 {
        words.push(format!("{} directories and links", counts.others));
    }
    if dry_run {
        words = vec![format!("{} files would be sent", counts.wanted)];
    }
    if counts.same > 0 {
        words.push(format!("{} there already", counts.same));
    }
    if counts.metadata > 0 {
        let done = if dry_run { "would get" } else { "with" };
        words.push(format!("{} of them {done} other modes, owners, times or attributes", counts.metadata));
    }
    if counts.deleted > 0 {
        words.push(format!("{} {}", counts.deleted, if dry_run { "would be removed" } else { "removed" }));
    }
    if counts.failed > 0 {
        words.push(format!("{} failed", counts.failed));
    }
    let resumed = if summary.resumed { ", resumed" } else { "" };
    let words = words.join(", ");
    let share = match (path, share) {
        (Some(path), Some(share)) => {
            format!(", {:.0} % of the {:.3} Gb/s of the best second", share * 100.0, path / 1e9)
        }
        _ => String::new(),
    };
    output.line(format_args!("{words} in {seconds:.2} s, {:.3} Gb/s{share}{resumed}", mean / 1e9));
    let said = chosen(&numbers, summary);
    if !said.is_empty() {
        output.note(said);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates after ten seconds in which `counts` grew evenly.
    fn even(counts: Counts) -> CopyRates {
        let began = Instant::now();
        let mut pace = CopyRates::new(began);
        for second in 1..=10 {
            let Counts { files, bytes, .. } = counts;
            let counts = Counts { files: files * second / 10, bytes: bytes * second / 10, ..counts };
            pace.look(began + Duration::from_secs(second), &Snapshot { counts, ..Snapshot::default() });
        }
        pace
    }

    #[test]
    fn what_need_not_be_sent_is_not_left_to_do() {
        let counts = Counts { files: 10, bytes: 1 << 20, same: 80, skipped: 97 << 20, ..Counts::default() };
        let now = Snapshot {
            scanned_files: 100,
            scanned_bytes: 100 << 20,
            scan_done: true,
            counts,
            ..Snapshot::default()
        };
        let left = |now: &Snapshot| even(now.counts).left(now).map(|left| left.as_secs_f64().round());
        assert_eq!(left(&now), Some(18.0));
        let said = line(&now, &even(counts));
        assert!(said.starts_with("90/100 files 98 MiB/100 MiB") && said.contains("ETA 18 s"), "{said}");
        assert_eq!(left(&Snapshot { scan_done: false, ..now }), None);
        let tiny = Snapshot { scanned_bytes: 0, counts: Counts { files: 20, ..Counts::default() }, ..now };
        assert_eq!(left(&tiny), Some(40.0), "empty files take their time");
        let same = Counts { files: 0, bytes: 0, same: 100, skipped: 100 << 20, ..counts };
        assert_eq!(left(&Snapshot { counts: same, ..now }), Some(0.0), "all of it was there");
        let said = line(&now, &CopyRates::new(Instant::now()));
        assert!(!said.contains("ETA") && !said.contains("b/s"), "in the first second: {said}");
    }
}
