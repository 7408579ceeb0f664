//! Copies within the machine, over loopback: where no link limits, the program
//! does. And what concurrency costs.

use super::{Course, Place, Taken, copiers, notes, scaled};
use crate::reference::{Copier, Who};
use crate::report::Section;
use crate::setup::Setup;
use anyhow::{Context, Result};
use std::path::Path;

/// Files of 4 KiB, and bytes in a few large ones.
const MANY: u64 = 20_000;
const FEW: u64 = 2 << 30;
/// The least rate, as a multiple of rsync's.
const FLOOR: f64 = 2.0;
/// Fixed concurrency of all stages, as a reference for the tuned one.
const FIXED: [&str; 5] = ["1", "2", "4", "8", "16"];

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section =
        Section::new("near", &["data set", "program", "s", "Mb/s", "of rsync", "≥ 2", "CPU s a GB"]);
    let place = Place::make(setup)?;
    let few = ["--scale".into(), scaled(setup, FEW).to_string()];
    let many = ["--files".into(), scaled(setup, MANY).to_string()];
    let trees = [
        ("many", place.data_set(setup, "small", "many", &many)?),
        ("few", place.data_set(setup, "big", "few", &few)?),
    ];
    // Every program may use both processors.
    let setup = &Setup {
        target: setup.target.clone().anywhere(),
        load: setup.load.clone().anywhere(),
        ..setup.clone()
    };
    let (copiers, absent) = copiers(setup, &place.there(), &Who::OTHERS)?;
    let rsync = copiers.iter().position(|copier| copier.who == Who::Rsync);
    for (name, tree) in &trees {
        let bytes = crate::reference::tally(tree)?.1;
        let course = Course { setup, link: None, copiers: &copiers, plain: None };
        let taken = course.measure(&format!("near: {name}"), tree)?.0;
        for (copier, one) in copiers.iter().zip(&taken) {
            let ratio = rsync.map(|at| one.rate(bytes).ratio(&taken[at].rate(bytes)));
            let floor = ratio.as_ref().filter(|_| copier.who == Who::Longhaul);
            section.keep(name, copier.who.name(), "seconds", &one.seconds);
            section.row(row(
                name,
                copier.who.name(),
                one,
                bytes,
                ratio
                    .as_ref()
                    .filter(|ratio| !ratio.0.is_empty())
                    .map_or("–".into(), |ratio| ratio.show_ratio()),
                floor.map_or("–", |ratio| ratio.at_least(FLOOR)),
            ));
        }
    }
    for (name, tree) in &trees {
        concurrency(setup, &mut section, name, tree, &place)?;
    }
    notes(&mut section, setup, &absent);
    section.notes.push(
        "many: files of 4 KiB; few: equal files. N at once: `--streams N --readers N --writers N` on both sides. What \
         reading ahead brings is measured by `longhaul study transfer`"
            .into(),
    );
    section.commands = vec![
        "longhaul agent --root there --insecure --user $(id -u) &".into(),
        "longhaul cp -r tree/. lh://localhost/copy --fsync none".into(),
        "rsync --daemon --no-detach --config rsyncd.conf &".into(),
        "rsync -a tree/ rsync://localhost/data/copy/".into(),
    ];
    Ok(section)
}

fn row(set: &str, who: &str, taken: &Taken, bytes: u64, ratio: String, floor: &str) -> Vec<String> {
    vec![
        set.into(),
        who.into(),
        taken.show_seconds(2),
        taken.show_rate(bytes),
        ratio,
        floor.into(),
        taken.show_cpu(bytes),
    ]
}

/// The same by how much is done at once.
fn concurrency(setup: &Setup, section: &mut Section, set: &str, tree: &Path, place: &Place) -> Result<()> {
    let start = |number: &str| -> Result<Copier> {
        let mut copier = Copier::start_with(Who::Longhaul, setup, &place.there(), &["--writers", number])?;
        let numbers = ["--streams", "--readers"].iter().flat_map(|flag| [(*flag).to_owned(), number.into()]);
        copier.extra.extend(numbers);
        Ok(copier)
    };
    let copiers: Vec<Copier> = FIXED.iter().map(|number| start(number)).collect::<Result<_>>()?;
    let bytes = crate::reference::tally(tree)?.1;
    let course = Course { setup, link: None, copiers: &copiers, plain: None };
    let taken = course.measure(&format!("near: {set}, by concurrency"), tree).context("by concurrency")?.0;
    for (number, one) in FIXED.iter().zip(&taken) {
        let who = format!("longhaul, {number} at once");
        section.keep(set, &who, "CPU s a GB", &one.cpu(bytes));
        section.row(row(set, &who, one, bytes, "–".into(), "–"));
    }
    Ok(())
}
