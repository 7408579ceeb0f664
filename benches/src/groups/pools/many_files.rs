//! A million files on a file system in a pool, beside a thousand: whether an operation costs the same, and how much
//! memory the mount has. All of it is on one machine, without links.

use super::mounted::{mount, pool_by_etcd};
use super::{ADMIN, Site};
use crate::process::{peak_memory, together};
use crate::report::{Samples, Section, met};
use crate::setup::Setup;
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Files of the two file systems, and of a directory.
const FILES: [usize; 2] = [1000, 1_000_000];
const FAN_OUT: usize = 1000;
/// New mounts that look at a directory in a round: one takes a tenth of a second.
const LOOKS: usize = 5;
/// Directories that are made and removed in a round.
const NEW: usize = 4;
/// Threads that make them.
const MAKERS: usize = 4;
const TARGETS: usize = 3;
/// The least share of the rate among a thousand files that is good enough among a million.
const FLOOR: f64 = 0.8;
/// The most memory of a mount in bytes, whatever it has walked through.
const CEILING: f64 = (256u64 << 20) as f64;
/// Their names as file systems.
const NAMES: [&str; 2] = ["few", "many"];

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let header =
        ["catalog", "operation", "1,000 files, a second", "1,000,000 files, a second", "of it", "≥ 0.8"];
    let mut section = Section::new("many-files", &header);
    for by_etcd in [true, false] {
        measure(setup, by_etcd, &mut section)?;
    }
    notes(&mut section);
    Ok(section)
}

/// The directory of this number.
fn directory(at: &Path, number: usize) -> PathBuf {
    at.join(format!("d{number:04}"))
}

/// The paths of the files of a directory.
fn files(directory: &Path) -> impl Iterator<Item = PathBuf> {
    (0..FAN_OUT).map(move |file| directory.join(format!("f{file:04}")))
}

/// Makes a directory of empty files, and waits until they are durable.
fn make(directory: &Path) -> Result<()> {
    fs::create_dir(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    for file in files(directory) {
        File::create(&file).with_context(|| format!("cannot make {}", file.display()))?;
    }
    File::open(directory)?.sync_all().with_context(|| format!("fsync of {}", directory.display()))
}

/// Removes a directory and its files, and waits until that is durable.
fn remove(directory: &Path) -> Result<()> {
    files(directory).try_for_each(fs::remove_file)?;
    File::open(directory)?.sync_all()?;
    fs::remove_dir(directory).with_context(|| format!("cannot remove {}", directory.display()))
}

/// Makes as many directories.
fn fill(at: &Path, directories: usize) -> Result<()> {
    let maker = |maker| (maker..directories).step_by(MAKERS).try_for_each(|one| make(&directory(at, one)));
    together(0..MAKERS, maker).map(drop)
}

/// Seconds for an operation on all files of a directory.
fn time(directory: &Path, operation: impl Fn(&Path) -> io::Result<()>) -> Result<f64> {
    let began = Instant::now();
    for file in files(directory) {
        operation(&file).with_context(|| file.display().to_string())?;
    }
    Ok(began.elapsed().as_secs_f64())
}

/// Creates, looks at and opens the files of a directory a round, on each of the file systems.
fn measure(setup: &Setup, by_etcd: bool, section: &mut Section) -> Result<()> {
    let site = Site::local(setup, TARGETS)?;
    let (catalog, _etcd) = match by_etcd {
        true => ("etcd", Some(pool_by_etcd(&site)?)),
        false => {
            site.run(&site.create())?;
            ("file", None)
        }
    };
    for (name, count) in NAMES.into_iter().zip(FILES) {
        site.run(&["fs", "create", &format!("bench/{name}"), "--size", "1GiB", "--layout", "parity"])?;
        let (mount, began) = (mount(&site, name)?, Instant::now());
        fill(&mount.at, count / FAN_OUT)?;
        let (seconds, memory) = (began.elapsed().as_secs_f64(), peak_memory(mount.pid())? >> 20);
        eprintln!("  {catalog}, {count} files: made in {seconds:.1} s, the mount had {memory} MiB");
        if count == FILES[1] {
            section.notes.push(format!(
                "{catalog}: {MAKERS} threads made {count} files and {} directories in {seconds:.0} s; the peak resident \
                 set of the mount was {memory} MiB; at most {} MiB: {}",
                count / FAN_OUT,
                CEILING as u64 >> 20,
                met(memory <= CEILING as u64 >> 20)
            ));
        }
    }
    let (mut round, mut looks) = (0, 0);
    let measured = setup.interleave(&[0, 1], |&which| {
        let (name, directories) = (NAMES[which], FILES[which] / FAN_OUT);
        round += 1;
        let (mut stat, mut open) = (0.0, 0.0);
        for _ in 0..LOOKS {
            looks += 1;
            // A mount that has seen nothing of it, and any directory that none has looked at.
            let mount = mount(&site, name)?;
            let old = directory(&mount.at, (looks * 37) % directories);
            stat += time(&old, |file| fs::symlink_metadata(file).map(drop))?;
            open += time(&old, |file| File::open(file).map(drop))?;
        }
        let [stat, open] = [stat, open].map(|seconds| (LOOKS * FAN_OUT) as f64 / seconds);
        let mount = mount(&site, name)?;
        let new: Vec<PathBuf> = (0..NEW).map(|one| mount.at.join(format!("new{round}-{one}"))).collect();
        let began = Instant::now();
        new.iter().try_for_each(|directory| make(directory))?;
        let create = (NEW * FAN_OUT) as f64 / began.elapsed().as_secs_f64();
        let began = Instant::now();
        new.iter().try_for_each(|directory| remove(directory))?;
        let remove = (NEW * FAN_OUT) as f64 / began.elapsed().as_secs_f64();
        let rates = [create, stat, open, remove];
        eprintln!("  {catalog}, {name}: {rates:.0?} a second");
        Ok(rates)
    })?;
    let operations = ["create, durable", "stat, cold", "open and close", "remove, durable"];
    for (number, operation) in operations.into_iter().enumerate() {
        let [few, many] = [0, 1].map(|which| Samples::of(&measured[which], |rates: &[f64; 4]| rates[number]));
        for (which, samples) in NAMES.into_iter().zip([&few, &many]) {
            section.keep(&format!("{catalog}, {operation}"), which, "a second", samples);
        }
        let ratio = many.ratio(&few);
        section.row(vec![
            catalog.into(),
            operation.into(),
            few.show(1.0, 0),
            many.show(1.0, 0),
            ratio.show_ratio(),
            ratio.at_least(FLOOR).into(),
        ]);
    }
    walk(&site, catalog, section)
}

/// Walks through all files by a new mount.
fn walk(site: &Site, catalog: &str, section: &mut Section) -> Result<()> {
    let mount = mount(site, NAMES[1])?;
    let (mut found, began) = (0, Instant::now());
    for number in 0..FILES[1] / FAN_OUT {
        for entry in fs::read_dir(directory(&mount.at, number))? {
            entry?.metadata()?;
            found += 1;
        }
    }
    ensure!(found == FILES[1], "{found} of {} files were found", FILES[1]);
    let (seconds, memory) = (began.elapsed().as_secs_f64(), peak_memory(mount.pid())?);
    section.notes.push(format!(
        "{catalog}: all names and attributes were read by a new mount in {seconds:.0} s, whose peak resident set was \
         {} MiB then; at most {} MiB: {}",
        memory >> 20,
        CEILING as u64 >> 20,
        met(memory as f64 <= CEILING)
    ));
    Ok(())
}

fn notes(section: &mut Section) {
    section.notes.push(format!(
        "Layout parity over {TARGETS} targets on the loopback of one machine, mounted with `--close lease`; {FAN_OUT} \
         empty files in a directory. In a round, for each file system, each of {LOOKS} new mounts looks at all files of a \
         directory and opens them, one by one; another makes {NEW} new directories with as many files, and removes \
         those. Durable: until an `fsync` of the directory has returned"
    ));
    section.commands = vec![
        format!(
            "longhaul target --insecure --listen 127.0.0.1:4420 --space fast=dir:/srv/1,size=8GiB --admin {ADMIN} &  \
             # and so on"
        ),
        "etcd --quota-backend-bytes 8589934592 &".to_owned(),
        format!(
            "longhaul pool create bench --target 127.0.0.1:4420 … --catalog etcd:127.0.0.1:2379 --hostnqn {ADMIN}"
        ),
        "longhaul fs create bench/many --size 1GiB --layout parity".to_owned(),
        "longhaul mount fs:bench/many /mnt --close lease".to_owned(),
    ];
}
