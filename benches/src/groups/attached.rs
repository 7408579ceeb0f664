//! Devices at a distance as local ones, and what file systems on them make of
//! it. Over emulated links; needs root, FUSE, loop devices, fio and iperf3.

pub(crate) mod agree;
pub(crate) mod first;
pub(crate) mod grid;
pub(crate) mod inline;
pub(crate) mod large;
mod load;
pub(crate) mod logs;
mod place;

use super::MB;
use crate::link::Link;
use crate::program::Target;
use crate::reference::Iperf;
use crate::report::Samples;
use crate::setup::Setup;
use anyhow::{Context, Result};
use load::Seen;
use longhaul_lab::filesystems::Load;
use longhaul_wan::Conditions;
use place::Place;
use std::time::Duration;
use tempfile::TempDir;

/// Rate of all links: the study had 100 Gb/s, which two processors do not.
const RATE: u64 = 1_000_000_000;

/// Bytes of each device: the files of four workloads and a journal.
const SIZE: u64 = 2 << 30;

/// Load before a window, and round trips on top of it and of the window; as
/// everywhere here both depend on nothing else.
const RAMP: Duration = Duration::from_millis(500);
const RAMP_ROUND_TRIPS: u32 = 30;
const WINDOW_ROUND_TRIPS: u32 = 10;

/// A target behind a link, and a place for local devices on this side.
struct Site {
    // Ended before the link is.
    target: Target,
    iperf: Iperf,
    home: TempDir,
    link: Link,
    setup: Setup,
    engine: String,
}

impl Site {
    /// A link with this round trip, and a target with so many exports and the
    /// arguments `more`.
    fn start(setup: &Setup, rtt: Duration, exports: usize, more: &[&str]) -> Result<Site> {
        let link = Link::start(Conditions::new(rtt, Some(RATE)), None)?;
        let home = tempfile::Builder::new().prefix("longhaul-benches-").tempdir()?;
        let base = link.setup(setup, 1);
        let setup = Setup {
            size: SIZE,
            ramp: RAMP + RAMP_ROUND_TRIPS * rtt,
            runtime: setup.runtime + WINDOW_ROUND_TRIPS * rtt,
            load: base.load.clone().at_home(home.path()),
            ..base
        };
        let engine = setup.engines.first().context("no engine to measure with")?.clone();
        let backend = super::memory_backend(&setup);
        let target = Target::start_many(&setup, &engine, &backend, exports, more)?;
        let iperf =
            Iperf::start(&setup)?.context("iperf3 is the reference of this group, and is not installed")?;
        Ok(Site { target, iperf, home, link, setup, engine })
    }

    /// What a load sees of a place; the same again if the emulator was late,
    /// and then it counts.
    fn seen(&self, place: &Place, load: &Load) -> Result<Seen> {
        let before = place.disconnects()?;
        let (mut seen, _) = self.link.mostly_on_time(|| load::run(load, &self.setup, place))?;
        seen.disconnects = place.disconnects()? - before;
        Ok(seen)
    }

    /// Bytes per second of a plain stream.
    fn plain(&self, write: bool) -> Result<f64> {
        Ok(self.link.mostly_on_time(|| self.iperf.run(&self.setup, write, 128 << 10))?.0)
    }
}

/// Several numbers of each subject of a case, measured once a round in turn,
/// or taken from `--keep`. By subject, and then by number.
fn repeat<S, const N: usize>(
    setup: &Setup,
    case: &str,
    subjects: &[S],
    begin: impl FnOnce() -> Result<()>,
    mut measure: impl FnMut(&S) -> Result<[f64; N]>,
) -> Result<Vec<Vec<Samples>>> {
    let rows = subjects.len() * N;
    let kept = setup.keep.as_ref().map(|keep| keep.get(case, rows, setup.rounds)).transpose()?;
    let numbers = match kept.flatten() {
        Some(kept) => kept,
        None => {
            begin().with_context(|| format!("before {case}"))?;
            let measured = setup.interleave(subjects, |subject| {
                let numbers = measure(subject).with_context(|| case.to_owned())?;
                let words: Vec<String> = numbers.iter().map(|n| format!("{n:.6}")).collect();
                eprintln!("  {case}: {}", words.join(" "));
                Ok(numbers)
            })?;
            let by_number = |subject: &Vec<[f64; N]>| {
                (0..N).map(|n| subject.iter().map(|numbers| numbers[n]).collect()).collect::<Vec<Vec<f64>>>()
            };
            let numbers: Vec<Vec<f64>> = measured.iter().flat_map(by_number).collect();
            if let Some(keep) = &setup.keep {
                keep.put(case, &numbers)?;
            }
            numbers
        }
    };
    let samples: Vec<Samples> = numbers.into_iter().map(Samples).collect();
    Ok(samples.chunks(N).map(<[Samples]>::to_vec).collect())
}

/// What a person runs to have the link and the target.
fn commands(setup: &Setup, rtt: Duration, more: &str) -> Vec<String> {
    let setup = &Setup { size: SIZE, ..setup.clone() };
    vec![
        format!(
            "longhaul wan --rtt {} --rate 1Gbit --name link &",
            crate::link::round_trip(rtt).replace(' ', "")
        ),
        format!(
            "ip netns exec link-server longhaul target --insecure --listen 10.77.1.2:4420 --export bench={} --threads 1 \
             --congestion {}{more} &",
            super::memory_backend(setup),
            setup.congestion
        ),
    ]
}

/// A command for a person to run on the client. `ip netns exec` would make a mount
/// namespace, whose mounts other processes do not see.
fn client(command: &str) -> String {
    format!("nsenter --net=/run/netns/link-client {command}")
}
