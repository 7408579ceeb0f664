//! A directory of another machine that is mounted through the agent: one large file written and read in order, against
//! one plain stream, and how long a name takes to be looked up meanwhile.

use super::{MB, Place, RATE, ROUND_TRIP, over, scaled, write_noise};
use crate::link;
use crate::mount::Mount;
use crate::reference::{Copier, Iperf, Who};
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const ROUND_TRIPS: [Duration; 2] = [Duration::from_millis(15), ROUND_TRIP];
/// Bytes of the file.
const BYTES: u64 = 1 << 30;
/// Bytes of a call, as `cp` has them.
const PIECE: usize = 1 << 20;
/// How often a name is looked up that does not exist, and so is in no cache.
const LOOKUPS: Duration = Duration::from_millis(250);
/// The least share of the plain stream that is good enough.
const FLOOR: f64 = 0.95;

#[derive(Clone, Copy, Debug)]
enum Subject {
    /// iperf3, one stream.
    Plain,
    /// The mounted directory.
    Mounted,
}

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let header =
        ["link", "one file", "iperf3, Mb/s", "mounted, Mb/s", "of iperf3", "≥ 0.95", "a name meanwhile, ms"];
    let mut section = Section::new("far-directory", &header);
    let place = Place::make(setup)?;
    let (source, bytes) = (place.here("source"), scaled(setup, BYTES));
    write_noise(&source, bytes, &mut fastrand::Rng::with_seed(1))?;
    for &rtt in setup.round_trips(&ROUND_TRIPS) {
        measure(setup, rtt, (&place, &source, bytes), &mut section)?;
    }
    section.notes.push(format!(
        "One file of {} MiB, from and to memory, by calls of {} KiB. Written: from the making of the file until its \
         `fsync` has returned, and compared at the other side. Read: by a mount that has seen nothing of it, from its \
         opening. A name meanwhile: the median time of lookups of names that do not exist, four in a second",
        bytes >> 20,
        PIECE >> 10
    ));
    section.commands = vec![
        format!("longhaul wan --rtt 45ms --rate {}Gbit --name link &", RATE / 1_000_000_000),
        "ip netns exec link-server longhaul agent --listen 10.77.1.2:7400 --root there --insecure --user $(id -u) &"
            .into(),
        "ip netns exec link-client longhaul mount lh://10.77.1.2/ /mnt".into(),
        "dd if=source of=/mnt/large bs=1M conv=fsync; dd if=/mnt/large of=/dev/null bs=1M".into(),
        "iperf3 -c 10.77.1.2 --bytes 1G; iperf3 -c 10.77.1.2 --bytes 1G --reverse".into(),
    ];
    Ok(section)
}

/// Mounts what the agent at `address` serves.
fn mount<'s>(setup: &'s Setup, address: &str, at: &Path) -> Result<Mount<'s>> {
    let mut command = setup.load.command(&setup.program);
    command.args(["mount", &format!("lh://{address}/"), "--congestion", &setup.congestion]);
    Mount::new(setup, command, at)
}

fn measure(
    setup: &Setup,
    rtt: Duration,
    (place, source, bytes): (&Place, &Path, u64),
    section: &mut Section,
) -> Result<()> {
    let (link, setup) = over(setup, rtt)?;
    let setup = &setup;
    let iperf = Iperf::start(setup)?.context("iperf3 is the reference here, and is not installed")?;
    let agent = Copier::start(Who::Longhaul, setup, &place.there())?;
    let name = format!("{}, {}", link::rate(RATE), link::round_trip(rtt));
    let measured = setup.interleave(&[Subject::Plain, Subject::Mounted], |subject| {
        let (numbers, _) = link.mostly_on_time(|| match subject {
            Subject::Plain => {
                Ok([iperf.bytes(setup, true, bytes)?, iperf.bytes(setup, false, bytes)?, 0.0, 0.0])
            }
            Subject::Mounted => mounted(setup, &agent.address, (place, source, bytes)),
        })?;
        eprintln!("  {name}, {subject:?}: {:.0?} Mb/s", [numbers[0] / MB, numbers[1] / MB]);
        Ok(numbers)
    })?;
    for (direction, way) in ["written", "read"].into_iter().enumerate() {
        let by = |subject: usize, number: usize| Samples::of(&measured[subject], |numbers| numbers[number]);
        let (plain, ours, lookups) = (by(0, direction), by(1, direction), by(1, 2 + direction));
        let case = format!("{name}, {way}");
        section.keep(&case, "iperf3", "bytes/s", &plain);
        section.keep(&case, "longhaul mount", "bytes/s", &ours);
        let ratio = ours.ratio(&plain);
        let mut row = vec![name.clone(), way.into(), plain.show(MB, 0), ours.show(MB, 0)];
        row.extend([ratio.show_ratio(), ratio.at_least(FLOOR).into(), lookups.show(1e-3, 0)]);
        section.row(row);
    }
    Ok(())
}

/// Bytes per second of a write and of a read, and the seconds of a lookup beside each.
fn mounted(setup: &Setup, address: &str, (place, source, bytes): (&Place, &Path, u64)) -> Result<[f64; 4]> {
    let at = place.here("mounted");
    let (written, beside_write) = {
        let mount = mount(setup, address, &at)?;
        beside(&mount.at, || {
            let began = Instant::now();
            let mut to = File::create(mount.at.join("large"))?;
            each_piece(source, |piece| to.write_all(piece))?;
            to.sync_all()?;
            Ok(bytes as f64 / began.elapsed().as_secs_f64())
        })?
    };
    let there = place.there().join("large");
    ensure!(Command::new("cmp").arg(source).arg(&there).status()?.success(), "other content was written");
    let (read, beside_read) = {
        let mount = mount(setup, address, &at)?;
        beside(&mount.at, || {
            let began = Instant::now();
            let all = each_piece(&mount.at.join("large"), |_| Ok(()))?;
            ensure!(all == bytes, "{all} of {bytes} bytes were read");
            Ok(bytes as f64 / began.elapsed().as_secs_f64())
        })?
    };
    fs::remove_file(there)?;
    Ok([written, read, beside_write, beside_read])
}

/// Reads a file in order, and hands on each piece; its bytes.
fn each_piece(path: &Path, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> Result<u64> {
    let (mut from, mut piece, mut all) = (File::open(path)?, vec![0; PIECE], 0);
    loop {
        let count = from.read(&mut piece)?;
        if count == 0 {
            return Ok(all);
        }
        take(&piece[..count])?;
        all += count as u64;
    }
}

/// What `work` returns, and the median seconds of lookups below `at` meanwhile.
fn beside<T>(at: &Path, work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    std::thread::scope(|scope| {
        let (end, ended) = channel::<()>();
        let lookups = scope.spawn(move || {
            let mut taken = Vec::new();
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(LOOKUPS) {
                let (began, name) = (Instant::now(), at.join(format!("none-{}", taken.len())));
                let found = fs::symlink_metadata(name).is_ok();
                taken.push(if found { f64::INFINITY } else { began.elapsed().as_secs_f64() });
            }
            Samples(taken).median()
        });
        let done = work();
        drop(end);
        let lookups = lookups.join().map_err(|_| anyhow::anyhow!("the lookups ended early"))?;
        Ok((done?, lookups))
    })
}
