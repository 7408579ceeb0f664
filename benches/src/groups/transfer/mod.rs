//! Copies of trees of files, beside the programs that others use for them.

pub(crate) mod empty;
pub(crate) mod near;
pub(crate) mod per_file;
pub(crate) mod sets;
pub(crate) mod update;

use crate::link::{self, Link};
use crate::reference::{Copied, Copier, copiers};
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result, ensure};
use longhaul_wan::Conditions;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Bits per second in Mb/s, from bytes per second.
const MB: f64 = 1e6 / 8.0;
const GB: f64 = 1e9;

const RATE: u64 = 1_000_000_000;
const ROUND_TRIP: Duration = Duration::from_millis(45);

/// Both sides' directories on the disk, gone when dropped.
struct Place {
    dir: TempDir,
}

impl Place {
    fn make(setup: &Setup) -> Result<Place> {
        let dir = tempfile::Builder::new().prefix("longhaul-benches-").tempdir_in(&setup.dir);
        let dir = dir.with_context(|| format!("cannot make a directory in {}", setup.dir.display()))?;
        fs::create_dir(dir.path().join("there"))?;
        Ok(Place { dir })
    }

    /// Where servers write.
    fn there(&self) -> PathBuf {
        self.dir.path().join("there")
    }

    /// Where a tree to copy is, or will be.
    fn here(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A data set of ours.
    fn data_set(&self, setup: &Setup, name: &str, dir: &str, more: &[String]) -> Result<PathBuf> {
        let path = self.here(dir);
        let mut command = Command::new(&setup.program);
        command.args(["dataset", "make", name]).arg(&path).args(more).arg("--json");
        let output = command.output().context("longhaul dataset")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(path)
    }
}

/// A number of files or bytes at the scale that was asked for.
fn scaled(setup: &Setup, full: u64) -> u64 {
    ((full as f64 * setup.scale).round() as u64).max(1)
}

/// Content that nothing on the way compresses (Marsaglia's xorshift64).
fn write_noise(path: &Path, len: u64, state: &mut u64) -> Result<()> {
    let mut file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    let (mut left, mut piece) = (len, vec![0; 64 << 10]);
    while left > 0 {
        for word in piece.chunks_exact_mut(8) {
            *state ^= *state << 13;
            *state ^= *state >> 7;
            *state ^= *state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        let now = left.min(piece.len() as u64);
        file.write_all(&piece[..now as usize])?;
        left -= now;
    }
    Ok(())
}

/// What one program took for a tree, by round.
struct Taken(Vec<Copied>);

impl Taken {
    fn seconds(&self) -> Samples {
        Samples::of(&self.0, |copied| copied.seconds)
    }

    fn rate(&self, bytes: u64) -> Samples {
        Samples::of(&self.0, |copied| bytes as f64 / copied.seconds)
    }

    /// Processor seconds of both sides for a GB.
    fn cpu(&self, bytes: u64) -> Samples {
        Samples::of(&self.0, |copied| copied.cpu / bytes as f64 * GB)
    }

    fn memory(&self, side: usize) -> Samples {
        Samples::of(&self.0, |copied| copied.memory[side] as f64)
    }
}

/// Has each program copy a tree to an empty place, in turn.
fn measure(setup: &Setup, link: Option<&Link>, copiers: &[Copier], from: &Path) -> Result<Vec<Taken>> {
    let measured = setup.interleave(copiers, |copier: &Copier| {
        let copy = || {
            let copied = copier.copy(setup, from, "copy", false);
            // What a failure has left would be in the way of the next.
            let cleared = copier.clear("copy");
            let copied = copied.with_context(|| copier.who.name())?;
            cleared.map(|()| copied)
        };
        match link {
            Some(link) => Ok(link.mostly_on_time(copy)?.0),
            None => copy(),
        }
    })?;
    Ok(measured.into_iter().map(Taken).collect())
}

/// What is true of all of these tables.
fn notes(section: &mut Section, setup: &Setup, absent: &[String]) {
    section.notes.push(
        "from warm memory of one file system to the same, nothing synchronised; every copy begins with starting \
         the program on the client, its server running, and ends when that has ended; each is counted after it. \
         Longhaul compares checksums (XXH3-128), without encryption, and finds its concurrency itself; rsync \
         has its daemon (`-a`), no checksums of content, and the kernel's congestion control"
            .into(),
    );
    if setup.scale < 1.0 {
        section.notes.push(format!("data sets at {} of their full size", setup.scale));
    }
    for one in absent {
        section.notes.push(format!("not measured: {one}"));
    }
}

/// What a person runs for the same.
fn commands(rtt: Duration) -> Vec<String> {
    let rtt = link::round_trip(rtt).replace(' ', "");
    vec![
        format!("longhaul wan --rtt {rtt} --rate {}Gbit --name link &", RATE as f64 / 1e9),
        "ip netns exec link-server longhaul agent --listen 10.77.1.2:7400 --root there --insecure &".into(),
        "ip netns exec link-client longhaul cp -r tree/. lh://10.77.1.2/copy --fsync none".into(),
        "ip netns exec link-server rsync --daemon --no-detach --config rsyncd.conf &".into(),
        "ip netns exec link-client rsync -a tree/ rsync://10.77.1.2/data/copy/".into(),
    ]
}

/// A link of the usual rate, and how to measure over it.
fn over(setup: &Setup, rtt: Duration) -> Result<(Link, Setup)> {
    let rate = *setup.rates(&[RATE]).first().context("no rate")?;
    let link = Link::start(Conditions::new(rtt, Some(rate)), None)?;
    let inner = link.setup(setup, 1);
    Ok((link, inner))
}
