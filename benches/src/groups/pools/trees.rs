//! Trees of small files on a file system in a pool: unpacked, and walked by a host that has seen nothing of
//! them. The catalog is an etcd at the first of the targets, as far away as they are.

use super::mounted::{self, pool_by_etcd};
use super::{ADMIN, RATE, Site, TARGETS, target_commands};
use crate::link;
use crate::mount::Mount;
use crate::process::{self, Guard};
use crate::reference::Sshfs;
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ROUND_TRIPS: [Duration; 2] = [Duration::from_millis(15), Duration::from_millis(45)];
/// Files of a tree, and bytes of each.
const FILES: usize = 20_000;
const BYTES: usize = 4096;
/// Files of a directory, and directories of the one above.
const FAN_OUT: [usize; 2] = [100, 10];
/// Files that sshfs gets, which takes some round trips for each.
const PEER_FILES: usize = 40;
/// The longest that unpacking may take at the longest round trip, in seconds, and how many times as long as that
/// sshfs takes.
const CEILING: f64 = 20.0;
const FLOOR: f64 = 10.0;
/// The longest that walking through five trees may take, in seconds.
const WALK_CEILING: f64 = 3.0;
/// A program that takes longer is ended.
const LIMIT: Duration = Duration::from_secs(180);
const SIZE: &str = "4GiB";

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let header = [
        "link",
        "load",
        "entries",
        "s",
        "floor",
        "met",
        "a file, ms",
        "sshfs, a file, ms",
        "times as fast",
        "≥ 10",
    ];
    let mut section = Section::new("trees", &header);
    let home = tempfile::Builder::new().prefix("longhaul-benches-").tempdir_in(&setup.dir)?;
    let archives = [FILES, PEER_FILES].map(|files| archive(home.path(), files));
    let [archive, peer_archive] = archives;
    let (archive, peer_archive) = (archive?, peer_archive?);
    let (mut late, mut absent) = (0, None);
    for &rtt in setup.round_trips(&ROUND_TRIPS) {
        let site = FileSite::start(setup, rtt)?;
        let peer = Sshfs::start(&site.site.setup)?.map_err(|why| absent = Some(why)).ok();
        late += unpack(&site, peer.as_ref(), [&archive, &peer_archive], &mut section)?;
        late += walk(&site, &mut section)?;
    }
    notes(&mut section, late, absent.as_deref());
    Ok(section)
}

/// A pool with a file system, whose catalog is in etcd at the first target.
struct FileSite {
    _etcd: Guard,
    site: Site,
    /// Its links, for people.
    name: String,
}

impl FileSite {
    fn start(setup: &Setup, rtt: Duration) -> Result<FileSite> {
        let site = Site::at(setup, rtt)?;
        let etcd = pool_by_etcd(&site)?;
        site.run(&["fs", "create", "bench/files", "--size", SIZE, "--layout", "parity"])?;
        let name = format!("{}, {}", link::rate(RATE), link::round_trip(rtt));
        Ok(FileSite { _etcd: etcd, site, name })
    }

    fn mount(&self) -> Result<Mount<'_>> {
        mounted::mount(&self.site, "files")
    }
}

/// Makes an archive of a tree of this many files.
fn archive(home: &Path, files: usize) -> Result<PathBuf> {
    let (tree, archive) = (home.join("tree"), home.join(format!("{files}.tar")));
    let (mut content, mut random) = (vec![0; BYTES], fastrand::Rng::with_seed(1));
    let mut dir = PathBuf::new();
    for file in 0..files {
        let number = file / FAN_OUT[0];
        if file.is_multiple_of(FAN_OUT[0]) {
            dir = tree.join(format!("a{}/b{}", number / FAN_OUT[1], number % FAN_OUT[1]));
            fs::create_dir_all(&dir)?;
        }
        random.fill(&mut content);
        fs::write(dir.join(format!("f{file}")), &content)?;
    }
    finish(
        Command::new("tar")
            .arg("--create")
            .arg("--file")
            .arg(&archive)
            .arg("--directory")
            .arg(&tree)
            .arg("."),
    )?;
    fs::remove_dir_all(&tree)?;
    Ok(archive)
}

/// Runs a program to its end; the seconds that it took.
pub(super) fn finish(command: &mut Command) -> Result<f64> {
    let name = command.get_program().to_string_lossy().into_owned();
    let began = Instant::now();
    let child = process::start(command.stdin(Stdio::null()).stdout(Stdio::null()), None)?;
    let mut child = Guard(child);
    if !process::ends_within(child.pid(), LIMIT) {
        bail!("{name} takes longer than {LIMIT:?}");
    }
    let taken = began.elapsed().as_secs_f64();
    let status = child.0.wait()?;
    ensure!(status.success(), "{name} ended with {status}");
    Ok(taken)
}

/// Unpacks an archive to an empty directory; the seconds until `tar` has ended, and until all is durable.
fn extract(archive: &Path, to: &Path) -> Result<[f64; 2]> {
    fs::create_dir(to).with_context(|| format!("cannot make {}", to.display()))?;
    let mut tar = Command::new("tar");
    let unpacked = finish(tar.arg("--extract").arg("--file").arg(archive).arg("--directory").arg(to))?;
    // A file system that keeps nothing back has nothing to do.
    let began = Instant::now();
    File::open(to)?.sync_all().with_context(|| format!("fsync of {}", to.display()))?;
    Ok([unpacked, unpacked + began.elapsed().as_secs_f64()])
}

/// Unpacks the archive once a round beside sshfs; measurements that count though the emulator was late.
fn unpack(
    site: &FileSite,
    peer: Option<&Sshfs>,
    [archive, peer_archive]: [&Path; 2],
    section: &mut Section,
) -> Result<u32> {
    let (mount, setup) = (site.mount()?, &site.site.setup);
    let (mut number, mut late) = (0, 0);
    let subjects: &[bool] = if peer.is_some() { &[true, false] } else { &[true] };
    let measured = setup.interleave(subjects, |&ours| {
        let (taken, is_late) = site.site.link.mostly_on_time(|| {
            number += 1;
            match (ours, peer) {
                (false, Some(peer)) => extract(peer_archive, &peer.path().join(number.to_string())),
                _ => extract(archive, &mount.at.join(number.to_string())),
            }
        })?;
        late += u32::from(is_late);
        let name = if ours { "longhaul" } else { "sshfs" };
        eprintln!("  {}, tar x, {name}: {:.2} s, durable after {:.2} s", site.name, taken[0], taken[1]);
        Ok(taken)
    })?;
    let by = |subject: usize, time: usize, files: usize| {
        let taken = measured.get(subject).map_or(&[][..], Vec::as_slice);
        Samples::of(taken, |taken| taken[time] / files as f64)
    };
    let (all, ours, theirs) = (by(0, 1, 1), by(0, 1, FILES), by(1, 0, PEER_FILES));
    let case = format!("{}, tar x", site.name);
    section.keep(&case, "until durable", "s", &all);
    section.keep(&case, "until tar has ended", "s", &by(0, 0, 1));
    section.keep(&case, "sshfs", "s a file", &theirs);
    let times = theirs.ratio(&ours);
    let mut row = vec![site.name.clone(), "tar x".into(), FILES.to_string(), all.show(1.0, 2)];
    row.extend([format!("≤ {CEILING} s"), all.at_most(CEILING).into(), ours.show(1e-3, 2)]);
    row.extend(match peer {
        Some(_) => [theirs.show(1e-3, 0), times.show(1.0, 0), times.at_least(FLOOR).into()],
        None => ["–"; 3].map(String::from),
    });
    section.row(row);
    Ok(late)
}

/// Walks through the trees that were unpacked, each time from a new mount.
fn walk(site: &FileSite, section: &mut Section) -> Result<u32> {
    let mount = site.mount()?;
    let (entries, _) = lines(Command::new("find").arg(&mount.at))?;
    drop(mount);
    let mut late = 0;
    let walks: [(&str, &[&str]); 2] = [("find", &["find"]), ("ls -lR", &["ls", "-lR"])];
    let measured = site.site.setup.interleave(&walks, |(name, command)| {
        let (taken, is_late) = site.site.link.mostly_on_time(|| {
            let mount = site.mount()?;
            ensure!(mount.at.is_dir(), "{} is no directory", mount.at.display());
            let (found, taken) = lines(Command::new(command[0]).args(&command[1..]).arg(&mount.at))?;
            ensure!(found >= entries, "{name} has found {found} of {entries} entries");
            Ok(taken)
        })?;
        late += u32::from(is_late);
        eprintln!("  {}, {name}, {entries} entries: {taken:.2} s", site.name);
        Ok(taken)
    })?;
    for ((name, _), taken) in walks.iter().zip(measured) {
        let all = Samples(taken);
        section.keep(&format!("{}, {name}", site.name), "longhaul", "s", &all);
        let mut row = vec![site.name.clone(), (*name).into(), entries.to_string(), all.show(1.0, 2)];
        row.extend([format!("≤ {WALK_CEILING} s"), all.at_most(WALK_CEILING).into()]);
        row.extend(["–"; 4].map(String::from));
        section.row(row);
    }
    Ok(late)
}

/// Lines that a program prints, and the seconds that it took.
fn lines(command: &mut Command) -> Result<(usize, f64)> {
    let name = command.get_program().to_string_lossy().into_owned();
    let began = Instant::now();
    let child = process::start(command.stdin(Stdio::null()).stdout(Stdio::piped()), None)?;
    let mut child = Guard(child);
    let mut stdout = child.0.stdout.take().context("no pipe")?;
    let (mut bytes, mut found) = (vec![0; 64 << 10], 0);
    loop {
        ensure!(began.elapsed() < LIMIT, "{name} takes longer than {LIMIT:?}");
        match stdout.read(&mut bytes)? {
            0 => break,
            n => found += bytes[..n].iter().filter(|byte| **byte == b'\n').count(),
        }
    }
    let status = child.0.wait()?;
    ensure!(status.success(), "{name} ended with {status}");
    Ok((found, began.elapsed().as_secs_f64()))
}

fn notes(section: &mut Section, late: u32, absent: Option<&str>) {
    section.notes.push(format!(
        "A file system of layout parity over {TARGETS} targets behind {} each, with the catalog in an etcd beside the \
         first of them, as far away; one host, mounted with `--close lease`. Files of {BYTES} bytes, {} in a \
         directory, from an archive in the page cache",
        link::rate(RATE),
        FAN_OUT[0]
    ));
    section.notes.push(format!(
        "tar x: until an `fsync` of the directory has returned behind `tar`, when all is durable at the targets and in \
         etcd. sshfs, with its usual options, unpacks {PEER_FILES} files, without `fsync`, as it takes some round \
         trips for each; both are compared by the time for a file"
    ));
    section.notes.push(
        "find and ls -lR: of the trees of all rounds, by a mount that has just been made, so that nothing of them is \
         in memory on the host"
            .to_owned(),
    );
    if let Some(why) = absent {
        section.notes.push(format!("sshfs was not measured: {why}"));
    }
    section.notes.push(format!("{late} measurements count though the emulator was late twice in a row"));
    section.commands = target_commands();
    section.commands.extend([
        "ip netns exec link-server1 etcd --listen-client-urls http://10.77.1.2:2379 \
         --advertise-client-urls http://10.77.1.2:2379 &"
            .to_owned(),
        format!(
            "longhaul pool create bench --target 10.77.1.2 … --catalog etcd:10.77.1.2:2379 --hostnqn {ADMIN}"
        ),
        format!("longhaul fs create bench/files --size {SIZE} --layout parity"),
        "longhaul mount fs:bench/files /mnt --close lease".to_owned(),
        "mkdir /mnt/1; tar --extract --file tree.tar --directory /mnt/1; sync /mnt/1".to_owned(),
        "find /mnt; ls -lR /mnt  # each after umount and mount".to_owned(),
    ]);
}
