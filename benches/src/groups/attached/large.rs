//! One large file on XFS, read and written in order as `dd bs=128k` does,
//! against a plain stream of as many bytes.

use super::place::{Place, sync};
use super::{MB, RATE, Site, client, commands, repeat};
use crate::link;
use crate::report::Section;
use crate::setup::Setup;
use anyhow::{Context, Result, ensure};
use longhaul_lab::filesystems::DeviceFormat;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

const ROUND_TRIPS: [Duration; 2] = [Duration::from_millis(15), Duration::from_millis(45)];
/// Bytes of the file: four seconds of the link.
const FILE: u64 = 512 << 20;
/// Bytes of a call.
const BS: usize = 128 << 10;
/// The least share of a plain stream that is good enough.
const FLOOR: f64 = 0.85;

struct Rig {
    place: Place,
    site: Site,
}

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section =
        Section::new("large", &["link", "load", "iperf3, Mb/s", "XFS, Mb/s", "of iperf3", "≥ 0.85"]);
    for &rtt in setup.round_trips(&ROUND_TRIPS) {
        let rig = std::cell::OnceCell::new();
        for write in [true, false] {
            measure(setup, rtt, write, &rig, &mut section)?;
        }
    }
    section.notes.push(
        "One file of 512 MiB through the page cache, in calls of 128 KiB, on XFS mounted by `longhaul mount`. \
         Written: from the first call until `fsync` has returned, space allocated on the way. Read: with none of it \
         in memory. iperf3: a new connection that moves as many bytes; both begin in slow start"
            .into(),
    );
    section.commands = commands(setup, ROUND_TRIPS[0], "");
    section.commands.extend([
        client("longhaul mkfs --fs xfs nvme+tcp://10.77.1.2/bench"),
        client("longhaul mount nvme+tcp://10.77.1.2/bench /mnt"),
        "dd if=/dev/zero of=/mnt/file bs=128k count=4096 conv=fsync".into(),
        "dd if=/mnt/file of=/mnt/file iflag=nocache oflag=nocache conv=notrunc,fdatasync count=0".into(),
        "dd if=/mnt/file of=/dev/null bs=128k".into(),
    ]);
    Ok(section)
}

fn start(setup: &Setup, rtt: Duration) -> Result<Rig> {
    let site = Site::start(setup, rtt, 1, &[])?;
    let place = Place::new(&site, "xfs", DeviceFormat::Xfs, &site.target.uris, &[])?;
    Ok(Rig { place, site })
}

fn measure(
    setup: &Setup,
    rtt: Duration,
    write: bool,
    rig: &std::cell::OnceCell<Rig>,
    section: &mut Section,
) -> Result<()> {
    let place = format!("{}, {}", link::rate(RATE), link::round_trip(rtt));
    let rw = if write { "write" } else { "read" };
    let case = format!("large: {place}, {rw}");
    let begin = || {
        if rig.get().is_none() {
            let _ = rig.set(start(setup, rtt)?);
        }
        let Some(Rig { place, .. }) = rig.get() else { return Ok(()) };
        place.trim()?;
        if !write {
            written(&place.path.join("file"))?;
        }
        Ok(())
    };
    let found = repeat(setup, &case, &[false, true], begin, |&ours| {
        let Rig { place, site } = rig.get().context("nothing was started")?;
        let file = place.path.join("file");
        if ours && write {
            place.trim()?;
        }
        let (rate, _) = site.link.mostly_on_time(|| match (ours, write) {
            (false, _) => site.iperf.bytes(&site.setup, write, FILE),
            (true, true) => written(&file),
            (true, false) => read(&file),
        })?;
        Ok([rate])
    })?;
    let [plain, ours] = &found[..] else { return Ok(()) };
    let ratio = ours[0].ratio(&plain[0]);
    section.keep(&case, "iperf3", "bytes/s", &plain[0]);
    section.keep(&case, "XFS", "bytes/s", &ours[0]);
    let met = ratio.at_least(FLOOR).into();
    section.row(vec![place, rw.into(), plain[0].show(MB, 0), ours[0].show(MB, 0), ratio.show_ratio(), met]);
    Ok(())
}

/// Rewrites the file, and makes it durable: bytes per second.
fn written(path: &Path) -> Result<f64> {
    let chunk: Vec<u8> = (0..BS).map(|n| (n % 251) as u8).collect();
    let mut file = File::create(path)?;
    sync(path)?;
    let began = Instant::now();
    for _ in 0..FILE / BS as u64 {
        file.write_all(&chunk)?;
    }
    file.sync_all()?;
    Ok(FILE as f64 / began.elapsed().as_secs_f64())
}

/// Reads all of the file, from the device: bytes per second.
fn read(path: &Path) -> Result<f64> {
    let mut file = File::open(path)?;
    // SAFETY: a system call without memory.
    let forgot = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    ensure!(forgot == 0, "the page cache keeps {}", path.display());
    let (mut chunk, mut bytes) = (vec![0; BS], 0);
    let began = Instant::now();
    loop {
        match file.read(&mut chunk)? {
            0 => break,
            n => bytes += n as u64,
        }
    }
    ensure!(bytes == FILE, "{bytes} bytes were read");
    Ok(FILE as f64 / began.elapsed().as_secs_f64())
}
