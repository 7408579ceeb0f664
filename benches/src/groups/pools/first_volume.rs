//! From nothing to a volume in use: the pool, a parity-protected volume on six targets, and its file system.

use super::{RTT, Site, TARGETS, target_commands};
use crate::link;
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

/// The longest that it may take, in seconds.
const CEILING: f64 = 10.0;
const SIZE: &str = "2GiB";
/// Bytes that are written, made durable and read back.
const CONTENT: usize = 16 << 20;
/// Of direct reads.
const ALIGNMENT: usize = 4096;

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let header = [
        "targets, round trip",
        "commands",
        "pool create, s",
        "volume create with XFS, s",
        "mount, s",
        "write and verify, s",
        "all, s",
        "≤ 10 s",
    ];
    let mut section = Section::new("first-volume", &header);
    let mut all: Vec<[f64; 4]> = Vec::new();
    let mut void = 0;
    for _ in 0..setup.rounds {
        let site = Site::start(setup)?;
        all.push(site.link.on_time(|| once(&site))?);
        void += site.link.void();
    }
    let step = |index: usize| Samples::of(&all, |times| times[index]);
    let sum = Samples::of(&all, |times| times.iter().sum());
    section.keep("first volume", "seconds to a mounted, verified volume", "s", &sum);
    let [pool, volume, mount, verify] = [0, 1, 2, 3].map(|index| step(index).show(1.0, 2));
    section.row(vec![
        format!("{TARGETS}, {}", link::round_trip(RTT)),
        "3".into(),
        pool,
        volume,
        mount,
        verify,
        sum.show(1.0, 2),
        sum.at_most(CEILING).into(),
    ]);
    section.notes.push(format!(
        "The targets run, with empty spaces on {} behind 1 Gb/s each; the host knows no pool. A volume of {SIZE}, layout \
         parity over {TARGETS} members. Verified: {} MiB are written to a file, made durable, and read from the volume \
         again. Measurements thrown away as the emulator was late: {void}",
        setup.dir.display(),
        CONTENT >> 20
    ));
    section.commands = target_commands();
    section.commands.extend([
        "longhaul pool create bench --target 10.77.1.2 …".to_owned(),
        format!("longhaul volume create bench/v --size {SIZE} --layout parity --fs xfs"),
        "longhaul mount volume:bench/v /mnt".to_owned(),
    ]);
    Ok(section)
}

/// Seconds of each command, and of a file that is written and verified. All is taken away again.
fn once(site: &Site) -> Result<[f64; 4]> {
    let at = site.home.path().join("mnt");
    fs::create_dir_all(&at)?;
    let dir = at.to_str().context("a path that is text")?;
    let pool = site.run(&site.create())?;
    let volume =
        site.run(&["volume", "create", "bench/v", "--size", SIZE, "--layout", "parity", "--fs", "xfs"])?;
    let mount = site.run(&["mount", "volume:bench/v", dir])?;
    let verified = verify(&at.join("file"));
    let mut undo = site.setup.load.command(&site.setup.program);
    crate::program::finish(undo.args(["umount", dir]), &site.setup).context("umount")?;
    site.run(&["volume", "rm", "bench/v"])?;
    site.run(&["pool", "destroy", "bench"])?;
    Ok([pool, volume, mount, verified?])
}

/// Writes a file, and compares it with what the volume has; the seconds that this takes.
fn verify(path: &Path) -> Result<f64> {
    let began = Instant::now();
    let mut content = vec![0; CONTENT];
    fastrand::Rng::with_seed(7).fill(&mut content);
    let mut file = fs::File::create(path)?;
    file.write_all(&content)?;
    file.sync_all()?;
    // Past the page cache.
    let mut file = fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let mut room = vec![0; CONTENT + ALIGNMENT];
    let at = room.as_ptr().align_offset(ALIGNMENT);
    let read = &mut room[at..at + CONTENT];
    file.read_exact(read)?;
    ensure!(read == content, "the file has another content than was written");
    Ok(began.elapsed().as_secs_f64())
}
