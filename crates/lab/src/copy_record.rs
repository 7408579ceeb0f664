//! The result file of a copy, in the format of `bench` and `study`.

use crate::emulated::{self, Link};
use longhaul_block::units::format_rate;
use longhaul_load::watch::{Expect, Watch, Watched, tcp_sample};
use longhaul_results::record::{Better, Cell, Code, Record, Validity};
use longhaul_results::schema::{self, Direction, Job};
use longhaul_transfer::wire::{Durability, Hash};
use longhaul_transfer::{CopySpec, Endpoint, Monitor, Stage, Summary};
use std::time::Duration;

/// Measurements that begin with a copy, for its record in the result.
pub struct CopyRecording {
    watch: Watch,
    link: Option<Link>,
}

/// The path of the data, as far as this machine can see it.
#[derive(Clone, Copy, Debug)]
enum DataPath {
    /// Within this machine, or between two others.
    NotFromHere,
    /// Over a path from or to this machine, with the round trip of its sockets.
    Over(Option<Duration>),
}

impl CopyRecording {
    /// Begins to measure.
    pub fn start() -> CopyRecording {
        CopyRecording { link: Link::here(), watch: Watch::start() }
    }

    /// The result of a copy by `verb`, `cp` or `sync`, which has ended.
    pub fn document(
        &self,
        verb: &str,
        spec: &CopySpec,
        summary: &Summary,
        monitor: &Monitor,
    ) -> schema::Output {
        let watched = self.watch.end();
        let sockets = monitor.sockets();
        let elsewhere =
            |endpoint: &Endpoint| !matches!(endpoint, Endpoint::Local(_) | Endpoint::Mounted { .. });
        let onward = spec.sources.iter().any(elsewhere) && elsewhere(&spec.destination);
        let way = match summary.streams > 0 && !onward {
            true => DataPath::Over(sockets.and_then(|info| info.min_rtt)),
            false => DataPath::NotFromHere,
        };
        let link = self.link.as_ref().map_or_else(Expect::default, Link::expect);
        let validity = judge(&watched, summary, way, &link);
        let mut record = Record::new("transfer", format!("{verb} to {}", spec.destination));
        record.conditions.0 = conditions(spec, summary, monitor, way);
        record.cells = cells(summary, &watched, &validity);
        let mut run = watched.run(validity);
        run.tcp = sockets.iter().map(|info| tcp_sample(watched.time, "a connection", info)).collect();
        record.runs = vec![run];
        record.shown_run = Some(0);
        record.judge();
        schema::Output { jobs: vec![job(verb, summary)], longhaul: Some(record), ..schema::Output::now() }
    }
}

/// Validity of the copy. `link` has the conditions of the emulated link, if there is one.
fn judge(watched: &Watched, summary: &Summary, way: DataPath, link: &Expect) -> Validity {
    let window = summary.elapsed;
    let mut validity = match way {
        DataPath::Over(measured) => {
            let round_trip = measured.or(link.round_trip);
            watched.judge(&Expect { window, round_trip, ..*link })
        }
        // This machine's retransmissions are of other connections.
        DataPath::NotFromHere => {
            Watched { retransmitted: None, ..*watched }.judge(&Expect { window, ..Expect::default() })
        }
    };
    if summary.counts.failed > 0 {
        let failed = summary.counts.failed;
        validity.mark(Code::Failed, format!("{failed} of the files and directories could not be copied"));
    }
    validity
}

fn conditions(spec: &CopySpec, summary: &Summary, monitor: &Monitor, way: DataPath) -> Vec<(String, String)> {
    let sources: Vec<String> = spec.sources.iter().map(ToString::to_string).collect();
    let options = spec.options;
    let mut all = vec![
        ("from".to_owned(), sources.join(" ")),
        ("to".to_owned(), spec.destination.to_string()),
        ("checksum".to_owned(), if options.hash == Hash::Quick { "xxh3" } else { "blake3" }.to_owned()),
        (
            "durable".to_owned(),
            match options.durability {
                Durability::None => "when the system likes to",
                Durability::End => "at the end",
                Durability::File => "every file",
            }
            .to_owned(),
        ),
    ];
    let mut add = |name: &str, value: String| all.push((name.to_owned(), value));
    if summary.streams > 0 {
        add("connections", summary.streams.to_string());
    }
    for one in monitor.chosen().iter().filter(|one| one.stage != Stage::Send) {
        let what = if one.stage == Stage::Read { "readers" } else { "writers" };
        let side = if one.far { "there" } else { "here" };
        add(&format!("{what} {side}"), one.number.to_string());
    }
    if let Some(congestion) = &summary.congestion {
        add("congestion control of sockets", congestion.clone());
    }
    if let DataPath::Over(Some(rtt)) = way {
        add("round trip", format!("{:.3} ms", rtt.as_secs_f64() * 1e3));
    }
    if spec.rate > 0 {
        add("no faster than", format_rate(spec.rate as f64 * 8.0));
    }
    for (what, so) in [
        ("read again once written", options.verify),
        ("through ssh", summary.through_ssh),
        ("taken up again", summary.resumed),
    ] {
        if so {
            add(what, "yes".into());
        }
    }
    if summary.counts.same > 0 {
        add("files there already", summary.counts.same.to_string());
    }
    all.extend(emulated::words());
    all
}

fn cells(summary: &Summary, watched: &Watched, validity: &Validity) -> Vec<Cell> {
    let (counts, seconds) = (summary.counts, summary.elapsed.as_secs_f64());
    let bytes = counts.bytes as f64;
    let mut cells = Vec::new();
    let mut add = |name: &str, unit: &str, better, value: f64| {
        let mut cell = Cell::new(name, unit, better);
        cell.push(value, validity);
        cells.push(cell);
    };
    add("throughput", "bit/s", Better::Higher, bytes * 8.0 / seconds.max(1e-9));
    add("time", "s", Better::Lower, seconds);
    add("files", "files", Better::Higher, counts.files as f64);
    if counts.bytes > 0 {
        let gib = bytes / f64::from(1 << 30);
        add("CPU", "s/GiB", Better::Lower, (watched.cpu.user_s + watched.cpu.system_s) / gib);
    }
    cells
}

/// The copy as a job of fio: all bytes count as writes.
fn job(verb: &str, summary: &Summary) -> Job {
    let (bytes, seconds) = (summary.counts.bytes, summary.elapsed.as_secs_f64().max(1e-9));
    let runtime = u64::try_from(summary.elapsed.as_millis()).unwrap_or(u64::MAX);
    let rate = bytes as f64 / seconds;
    Job {
        jobname: verb.to_owned(),
        write: Direction {
            io_bytes: bytes,
            io_kbytes: bytes / 1024,
            bw_bytes: rate as u64,
            bw: (rate / 1024.0) as u64,
            runtime,
            ..Direction::default()
        },
        job_runtime: runtime,
        ..Job::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_copy_counts_as_any_run_does() {
        let seen = Watched { retransmitted: Some(0.5), ..Watched::default() };
        let codes = |ms: u32, way, link: &Expect, failed| {
            let mut summary = Summary { elapsed: MS * ms, streams: 1, ..Summary::default() };
            summary.counts.failed = failed;
            let validity = judge(&seen, &summary, way, link);
            validity.reasons.iter().map(|reason| reason.code).collect::<Vec<_>>()
        };
        let none = Expect::default();
        let over = DataPath::Over(Some(100 * MS));
        assert_eq!(codes(1500, DataPath::NotFromHere, &none, 0), []);
        assert_eq!(codes(900, DataPath::NotFromHere, &none, 0), [Code::TooShort]);
        assert_eq!(codes(1500, over, &none, 0), [Code::TooShort, Code::Retransmitting]);
        assert_eq!(codes(2500, over, &none, 0), [Code::Retransmitting]);
        // An emulated link that loses packets, and no socket with a measured round trip.
        let lossy = Expect { round_trip: Some(100 * MS), retransmitted: 0.9, ..none };
        assert_eq!(codes(2500, DataPath::Over(None), &lossy, 0), []);
        assert_eq!(codes(1500, DataPath::Over(None), &lossy, 0), [Code::TooShort]);
        assert_eq!(codes(2500, DataPath::NotFromHere, &none, 3), [Code::Failed]);
    }
}
