//! Connections of a copy: as many as it finds itself, against fixed numbers, and what a
//! plain stream beside it keeps.

use super::{MB, Place, commands, scaled, write_noise};
use crate::link::{self, Link};
use crate::reference::{Copier, Iperf, Who, tally};
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result};
use fastrand::Rng;
use longhaul_wan::Conditions;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FILES: u64 = 1000;
const BYTES: u64 = 1 << 30;

/// Least share of the best fixed number; most bytes on the wire for a byte of content; least
/// share of half of the link for a plain stream beside a copy.
const FLOOR: f64 = 0.99;
const WIRE: f64 = 1.02;
const BESIDE: f64 = 0.8;

/// Time for a copy and a plain stream to share a link before the stream is measured, and for
/// how long that is.
const MEETING: Duration = Duration::from_secs(5);
const WINDOW: Duration = Duration::from_secs(6);

/// Bytes that a plain stream has sent when a copy joins it, and how often they are looked at.
const UNDER_WAY: u64 = 4 << 20;
const LOOK: Duration = Duration::from_millis(10);

struct Case {
    rate: u64,
    rtt: Duration,
    loss: f64,
    /// Numbers of connections to compare with.
    fixed: &'static [u32],
}

const CASES: [Case; 5] = [
    Case { rate: 2_000_000_000, rtt: Duration::from_micros(150), loss: 0.0, fixed: &[1, 4, 16] },
    Case { rate: 1_000_000_000, rtt: Duration::from_millis(15), loss: 0.0, fixed: &[1, 4, 16] },
    Case { rate: 1_000_000_000, rtt: Duration::from_millis(45), loss: 0.0, fixed: &[1, 4, 16] },
    Case { rate: 1_000_000_000, rtt: Duration::from_millis(100), loss: 0.0, fixed: &[1, 4, 16] },
    Case { rate: 1_000_000_000, rtt: Duration::from_millis(80), loss: 0.005, fixed: &[8, 16, 32] },
];

#[derive(Clone, Copy)]
enum Subject {
    /// As users get it.
    Measured,
    /// The same, after an earlier copy to the same address.
    Again,
    Fixed(u32),
    /// As users get it, joining one iperf3 stream.
    Beside,
    /// One iperf3 stream that joins another one.
    Plain,
}

/// One copy, or the two streams.
#[derive(Clone, Copy)]
struct Run {
    /// Bytes of content per second.
    rate: f64,
    /// Bytes on the wire for each byte of content.
    wire: f64,
    /// Bytes per second of the plain stream.
    beside: f64,
}

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "streams",
        &[
            "link",
            "loss",
            "connections",
            "Mb/s",
            "of the best fixed number",
            "≥ 0.99",
            "bytes on the wire for a byte",
            "≤ 1.02",
            "iperf3 beside it, of half the link",
            "≥ 0.8",
        ],
    );
    let place = Place::make(setup)?;
    let tree = tree(setup, &place)?;
    for case in CASES {
        let chosen = |list: &[Duration]| list.is_empty() || list.contains(&case.rtt);
        if chosen(&setup.round_trips) {
            measure(setup, &place, &tree, &case, &mut section)?;
        }
    }
    section.notes.push(format!(
        "{} files of the same size, {} in all, from memory to a file system, `--fsync none`. Of the best fixed \
         number: of the one with the greatest median, in the same round. Beside iperf3: the copy joins an \
         iperf3 stream that has sent 4 MiB, which is measured for {WINDOW:?} after its first {MEETING:?}; the last \
         line of a link is iperf3 beside another iperf3 that joined it so. Wire: packets of up to 9,000 bytes with their IP headers, lost ones \
         too",
        scaled(setup, FILES),
        longhaul_block::units::format_size(scaled(setup, BYTES)),
    ));
    section.commands = commands(Duration::from_millis(45));
    Ok(section)
}

fn tree(setup: &Setup, place: &Place) -> Result<PathBuf> {
    let (dir, files) = (place.here("thousand"), scaled(setup, FILES));
    let mut random = Rng::with_seed(1);
    for i in 0..files {
        let parent = dir.join(format!("d{:02}", i % 20));
        fs::create_dir_all(&parent)?;
        write_noise(&parent.join(format!("f{i:05}")), scaled(setup, BYTES) / files, &mut random)?;
    }
    Ok(dir)
}

fn measure(setup: &Setup, place: &Place, tree: &Path, case: &Case, section: &mut Section) -> Result<()> {
    let mut conditions = Conditions::new(case.rtt, Some(case.rate));
    conditions.there.loss = case.loss;
    conditions.back.loss = case.loss;
    let link = Link::start(conditions, None)?;
    let setup = &link.setup(setup, 1);
    let mut copier = Copier::start(Who::Longhaul, setup, &place.there())?;
    let bytes = tally(tree)?.1 as f64;
    let plain = [(); 2].map(|()| Iperf::start(setup));
    let [one, two] = plain;
    let missing = "iperf3 is the reference of this group, and is not installed";
    let (one, two) = (&one?.context(missing)?, &two?.context(missing)?);
    let met = &Setup { ramp: MEETING, runtime: WINDOW, ..setup.clone() };
    let name = format!("{}, {}", link::rate(case.rate), link::round_trip(case.rtt));
    let mut subjects = vec![Subject::Measured];
    if case.loss > 0.0 {
        subjects.push(Subject::Again);
        copier.remembers = true;
        copier.copy(setup, tree, "copy", false, None)?;
        copier.clear("copy")?;
    }
    let first_fixed = subjects.len();
    subjects.extend(case.fixed.iter().map(|&n| Subject::Fixed(n)));
    subjects.extend([Subject::Beside, Subject::Plain]);
    let measured = setup.interleave(&subjects, |&subject| {
        copier.remembers = matches!(subject, Subject::Again);
        copier.extra = match subject {
            Subject::Fixed(n) => vec!["--streams".into(), n.to_string()],
            _ => Vec::new(),
        };
        let copy = || -> Result<f64> {
            let copied = copier.copy(setup, tree, "copy", false, None);
            copier.clear("copy")?;
            Ok(bytes / copied?.context("a copy without a limit ends")?.seconds)
        };
        let (run, _) = link.mostly_on_time(|| {
            let before = link.statistics()?.links[0].there.bytes_in;
            let (rate, beside) = match subject {
                Subject::Measured | Subject::Again | Subject::Fixed(_) => (copy()?, f64::NAN),
                Subject::Beside => joining(&link, copy, || one.run(met, true, 128 << 10))?,
                Subject::Plain => {
                    joining(&link, || two.run(met, true, 128 << 10), || one.run(met, true, 128 << 10))?
                }
            };
            let wire = (link.statistics()?.links[0].there.bytes_in - before) as f64 / bytes;
            Ok(Run { rate, wire, beside })
        })?;
        eprintln!(
            "  {name}, {}: {:.0} Mb/s, wire {:.3}, beside it {:.0}",
            label(subject),
            run.rate / MB,
            run.wire,
            run.beside / MB
        );
        Ok(run)
    })?;
    let rates: Vec<Samples> = measured.iter().map(|runs| Samples::of(runs, |run| run.rate)).collect();
    let fixed = &rates[first_fixed..first_fixed + case.fixed.len()];
    let best = fixed.iter().max_by(|a, b| a.median().total_cmp(&b.median())).context("no fixed number")?;
    for ((subject, runs), rate) in subjects.iter().zip(&measured).zip(&rates) {
        section.keep(&name, &label(*subject), "bytes/s", rate);
        let wire = Samples::of(runs, |run| run.wire);
        let half = Samples::of(runs, |run| run.beside / (case.rate as f64 / 8.0 / 2.0));
        let of_best = rate.ratio(best);
        let none = || "–".to_owned();
        let ours = matches!(subject, Subject::Measured | Subject::Again);
        let alone = ours || matches!(subject, Subject::Fixed(_));
        // On a lossy link the losses of the link itself are sent again, too.
        let wire_counts = ours && case.loss == 0.0;
        section.row(vec![
            name.clone(),
            format!("{} %", case.loss * 100.0),
            label(*subject),
            rate.show(MB, 0),
            if alone { of_best.show_ratio() } else { none() },
            if ours { of_best.at_least(FLOOR).into() } else { none() },
            if alone { wire.show(1.0, 3) } else { none() },
            if wire_counts { wire.at_most(WIRE).into() } else { none() },
            if alone { none() } else { half.show_ratio() },
            if matches!(subject, Subject::Beside) { half.at_least(BESIDE).into() } else { none() },
        ]);
    }
    Ok(())
}

/// Runs `one` beside `other`, once that has sent [`UNDER_WAY`]: what each brought. Of two plain streams that begin
/// a tenth of a second apart, the first has three quarters of the link for a long time.
fn joining(
    link: &Link,
    one: impl FnOnce() -> Result<f64>,
    other: impl FnOnce() -> Result<f64> + Send,
) -> Result<(f64, f64)> {
    let sent = || -> Result<u64> { Ok(link.statistics()?.links[0].there.bytes_in) };
    let begun = sent()? + UNDER_WAY;
    std::thread::scope(|scope| {
        let other = scope.spawn(other);
        while sent()? < begun && !other.is_finished() {
            std::thread::sleep(LOOK);
        }
        let one = one()?;
        Ok((one, other.join().expect("a thread that does not panic")?))
    })
}

fn label(subject: Subject) -> String {
    match subject {
        Subject::Measured => "measured".into(),
        Subject::Again => "measured, second copy".into(),
        Subject::Fixed(n) => n.to_string(),
        Subject::Beside => "measured, beside iperf3".into(),
        Subject::Plain => "iperf3 beside iperf3".into(),
    }
}
