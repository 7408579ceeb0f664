//! A tree of which one file in a hundred has changed.

use super::{Place, ROUND_TRIP, commands, copiers, copy_of, notes, over, scaled, write_noise};
use crate::link::{self, Link};
use crate::reference::{Copier, Who};
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result};
use fastrand::Rng;
use std::path::{Path, PathBuf};

const FILES: u64 = 100_000;
/// One in so many has changed.
const ONE_IN: usize = 100;
const SIZE: u64 = 4096;

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "update",
        &["link", "program", "files", "changed", "s", "MB there", "MB back", "processor s"],
    );
    let place = Place::make(setup)?;
    let files = scaled(setup, FILES);
    let tree = place.data_set(setup, "small", "tree", &["--files".into(), files.to_string()])?;
    let mut all = Vec::new();
    list(&tree, &mut all)?;
    let changed: Vec<PathBuf> = all.into_iter().step_by(ONE_IN).collect();
    for &rtt in setup.round_trips(&[ROUND_TRIP]) {
        let (link, setup) = over(setup, rtt)?;
        let (copiers, absent) = copiers(&setup, &place.there(), &[Who::Rsync])?;
        for copier in &copiers {
            copier.copy(&setup, &tree, &copy_of(copier), false, None).context("the first copy")?;
        }
        let mut random = Rng::with_seed(99);
        // Each round changes the files once, for all programs alike.
        let mut rounds: Vec<Vec<[f64; 4]>> = copiers.iter().map(|_| Vec::new()).collect();
        for _ in 0..setup.rounds {
            for path in &changed {
                write_noise(path, SIZE, &mut random)?;
            }
            for (copier, found) in copiers.iter().zip(&mut rounds) {
                found.push(update(&setup, &link, copier, &tree)?);
            }
        }
        for (copier, found) in copiers.iter().zip(&rounds) {
            let number = |at: usize| Samples::of(found, |one| one[at]);
            section.keep(&link::round_trip(rtt), copier.who.name(), "seconds", &number(0));
            section.row(vec![
                link::round_trip(rtt),
                copier.who.name().into(),
                files.to_string(),
                changed.len().to_string(),
                number(0).show(1.0, 2),
                number(1).show(1e6, 2),
                number(2).show(1e6, 2),
                number(3).show(1.0, 2),
            ]);
            copier.clear(&copy_of(copier))?;
        }
        if section.notes.is_empty() {
            notes(&mut section, &setup, &absent);
        }
    }
    section.notes.push("MB: IP bytes on the link, of all packets of the copy".into());
    section.commands = commands(ROUND_TRIP);
    section
        .commands
        .push("ip netns exec link-client longhaul sync tree lh://10.77.1.2/copy --fsync none".into());
    Ok(section)
}

/// Seconds, bytes there and back, and processor seconds.
fn update(setup: &Setup, link: &Link, copier: &Copier, tree: &Path) -> Result<[f64; 4]> {
    let carried = || -> Result<[u64; 2]> {
        let statistics = link.statistics()?;
        let first = statistics.links.first().context("no link")?;
        Ok([first.there.bytes_in, first.back.bytes_in])
    };
    let before = carried()?;
    let copied = copier.copy(setup, tree, &copy_of(copier), true, None);
    let copied = copied.transpose().context("it was ended")?.with_context(|| copier.who.name())?;
    let after = carried()?;
    Ok([copied.seconds, (after[0] - before[0]) as f64, (after[1] - before[1]) as f64, copied.cpu])
}

fn list(dir: &Path, all: &mut Vec<PathBuf>) -> Result<()> {
    let mut names: Vec<_> = std::fs::read_dir(dir)?.collect::<Result<_, _>>()?;
    names.sort_by_key(std::fs::DirEntry::file_name);
    for entry in names {
        if entry.file_type()?.is_dir() {
            list(&entry.path(), all)?;
        } else {
            all.push(entry.path());
        }
    }
    Ok(())
}
