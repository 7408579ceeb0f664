//! Copies of trees of files, beside the programs that others use for them.

pub(crate) mod empty;
pub(crate) mod far_directory;
pub(crate) mod near;
pub(crate) mod per_file;
pub(crate) mod sets;
pub(crate) mod streams;
pub(crate) mod update;

use super::MB;
use crate::link::{self, Link};
use crate::reference::{Copier, Iperf, Who, copiers};
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use longhaul_wan::Conditions;
use std::cell::RefCell;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const GB: f64 = 1e9;

const RATE: u64 = 1_000_000_000;
const ROUND_TRIP: Duration = Duration::from_millis(45);

/// Both sides' directories on the disk, removed when dropped.
struct Place {
    dir: TempDir,
}

impl Place {
    fn make(setup: &Setup) -> Result<Place> {
        let dir = tempfile::Builder::new().prefix("longhaul-benches-").tempdir_in(&setup.dir);
        let dir = dir.with_context(|| format!("cannot make a directory in {}", setup.dir.display()))?;
        fs::create_dir(dir.path().join("there"))?;
        // A server that runs as another user has to reach it.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
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

    /// A data set of `longhaul dataset`.
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

/// Writes content that nothing on the way compresses.
pub(super) fn write_noise(path: &Path, len: u64, random: &mut Rng) -> Result<()> {
    let mut file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    let (mut left, mut piece) = (len, vec![0; 64 << 10]);
    while left > 0 {
        random.fill(&mut piece);
        let now = left.min(piece.len() as u64);
        file.write_all(&piece[..now as usize])?;
        left -= now;
    }
    Ok(())
}

/// A peer's copy that takes longer is not repeated, and is ended when it takes
/// longer still: a hundred such copies would take a day.
const SLOW: Duration = Duration::from_secs(15);
const LIMIT: Duration = Duration::from_secs(90);

/// The times of one program for a tree, by round; `None` if it did not end in time.
struct Taken {
    seconds: Samples,
    /// Processor seconds of both sides.
    cpu: Samples,
    /// Peak resident sets in bytes, of the client and of the server.
    memory: [Samples; 2],
}

/// The numbers of [`Taken`].
const NUMBERS: usize = 4;

impl Taken {
    fn rate(&self, bytes: u64) -> Samples {
        Samples::of(&self.seconds.0, |seconds| bytes as f64 / seconds)
    }

    /// Processor seconds of both sides for a GB.
    fn cpu(&self, bytes: u64) -> Samples {
        Samples::of(&self.cpu.0, |cpu| cpu / bytes as f64 * GB)
    }

    fn show_seconds(&self, digits: usize) -> String {
        if self.seconds.0.is_empty() {
            return format!("over {}", LIMIT.as_secs());
        }
        self.seconds.show(1.0, digits)
    }

    fn show_rate(&self, bytes: u64) -> String {
        if self.seconds.0.is_empty() { "–".into() } else { self.rate(bytes).show(MB, 0) }
    }

    fn show_cpu(&self, bytes: u64) -> String {
        if self.cpu.0.is_empty() { "–".into() } else { self.cpu(bytes).show(1.0, 1) }
    }
}

/// Copies to be measured, and where.
struct Course<'a> {
    setup: &'a Setup,
    link: Option<&'a Link>,
    copiers: &'a [Copier],
    /// Measured beside them: as many bytes in a new connection.
    plain: Option<&'a Iperf>,
}

/// A program, or the plain stream: one of those measured in turn.
#[derive(Clone, Copy)]
enum Subject<'a> {
    Copier(&'a Copier),
    Plain(&'a Iperf),
}

impl Course<'_> {
    /// Has each program copy a tree to an empty place, in turn; returns their times, in the same
    /// order, and bytes per second of the plain stream.
    fn measure(&self, case: &str, from: &Path) -> Result<(Vec<Taken>, Samples)> {
        let setup = self.setup;
        let subjects: Vec<Subject> =
            self.copiers.iter().map(Subject::Copier).chain(self.plain.map(Subject::Plain)).collect();
        let kept = setup.keep.as_ref().map(|keep| keep.get(case, subjects.len() * NUMBERS, setup.rounds));
        let numbers = match kept.transpose()?.flatten() {
            Some(kept) => kept,
            None => {
                let numbers = self.anew(case, &subjects, from)?;
                if let Some(keep) = &setup.keep {
                    keep.put(case, &numbers)?;
                }
                numbers
            }
        };
        let mut rows = numbers.into_iter().map(Samples);
        let mut taken: Vec<Taken> = Vec::new();
        while let (Some(seconds), Some(cpu), Some(here), Some(there)) =
            (rows.next(), rows.next(), rows.next(), rows.next())
        {
            taken.push(Taken { seconds, cpu, memory: [here, there] });
        }
        let plain = self.plain.and_then(|_| taken.pop()).map_or(Samples(Vec::new()), |plain| plain.seconds);
        Ok((taken, plain))
    }

    /// A row of samples for each number of each subject; that of the plain stream
    /// is bytes per second.
    fn anew(&self, case: &str, subjects: &[Subject], from: &Path) -> Result<Vec<Vec<f64>>> {
        let setup = self.setup;
        let bytes = crate::reference::tally(from)?.1;
        let slow = RefCell::new(HashSet::new());
        let measured = setup.interleave(subjects, |subject| -> Result<Option<[f64; NUMBERS]>> {
            let copier = match *subject {
                Subject::Plain(iperf) => {
                    let rate = self.on_time(|| iperf.bytes(setup, true, bytes))?;
                    eprintln!("  {case}, iperf3: {:.0} Mb/s", rate / MB);
                    return Ok(Some([rate, 0.0, 0.0, 0.0]));
                }
                Subject::Copier(copier) => copier,
            };
            let name = copier.who.name();
            if slow.borrow().contains(name) {
                return Ok(None);
            }
            let limit = Who::OTHERS.contains(&copier.who).then_some(LIMIT);
            let copied = self.on_time(|| {
                let to = copy_of(copier);
                let copied = copier.copy(setup, from, &to, false, limit);
                // What a failure has left would be in the way of the next.
                let cleared = copier.clear(&to);
                let copied = copied.with_context(|| name.to_owned())?;
                // A server whose client was ended may still write.
                if copied.is_some() { cleared.map(|()| copied) } else { Ok(copied) }
            })?;
            let seconds = copied.map(|copied| copied.seconds);
            if limit.is_some() && seconds.is_none_or(|seconds| seconds > SLOW.as_secs_f64()) {
                slow.borrow_mut().insert(name);
            }
            eprintln!("  {case}, {name}: {seconds:.2?} s");
            let [here, there] = copied.map_or([0; 2], |copied| copied.memory).map(|bytes| bytes as f64);
            Ok(copied.map(|copied| [copied.seconds, copied.cpu, here, there]))
        })?;
        let by_number = |subject: &Vec<Option<[f64; NUMBERS]>>| -> Vec<Vec<f64>> {
            (0..NUMBERS).map(|n| subject.iter().flatten().map(|numbers| numbers[n]).collect()).collect()
        };
        Ok(measured.iter().flat_map(by_number).collect())
    }

    fn on_time<T>(&self, measure: impl FnMut() -> Result<T>) -> Result<T> {
        let mut measure = measure;
        match self.link {
            Some(link) => Ok(link.mostly_on_time(measure)?.0),
            None => measure(),
        }
    }
}

/// Where a program copies to: each to a place of its own.
fn copy_of(copier: &Copier) -> String {
    format!("copy-{:?}", copier.who)
}

/// Notes that hold for all of these tables.
fn notes(section: &mut Section, setup: &Setup, absent: &[String]) {
    section.notes.push(
        "from warm memory of one file system to the same, nothing synchronised; every copy begins with starting \
         the program on the client, its server running, and ends when that has ended; each is counted after it. \
         Longhaul compares checksums (XXH3-128), without encryption, and finds its concurrency itself; rsync \
         has its daemon (`-a`), no checksums of content, and the kernel's congestion control"
            .into(),
    );
    section.notes.push(format!(
        "what takes others more than {} s is measured once, and ended after {} s",
        SLOW.as_secs(),
        LIMIT.as_secs()
    ));
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
        "ip netns exec link-server longhaul agent --listen 10.77.1.2:7400 --root there --insecure --user $(id -u) &".into(),
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
