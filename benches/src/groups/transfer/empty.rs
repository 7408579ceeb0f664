//! A million empty files in a hundred thousand directories: names and metadata
//! alone, and the memory that they take.

use super::{Course, Place, copiers, notes, scaled};
use crate::reference::Who;
use crate::report::Section;
use crate::setup::Setup;
use anyhow::Result;
use std::fs::{self, File};

const FILES: u64 = 1_000_000;
const DIRECTORIES: u64 = 100_000;
/// The most memory that a side may take, in bytes.
const CEILING: f64 = (256u64 << 20) as f64;

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "empty",
        &["program", "files", "directories", "s", "files a second", "client, MiB", "server, MiB", "≤ 256"],
    );
    let place = Place::make(setup)?;
    let (files, directories) = (scaled(setup, FILES), scaled(setup, DIRECTORIES));
    let tree = place.here("tree");
    let mut made = 0;
    for i in 0..directories {
        let dir = tree.join(format!("{:03}/{i:06}", i / 1000));
        fs::create_dir_all(&dir)?;
        while made * directories < files * (i + 1) {
            File::create(dir.join(format!("f{made:07}")))?;
            made += 1;
        }
    }
    let setup = &Setup {
        target: setup.target.clone().anywhere(),
        load: setup.load.clone().anywhere(),
        ..setup.clone()
    };
    let (copiers, absent) = copiers(setup, &place.there(), &[Who::Rsync])?;
    let course = Course { setup, link: None, copiers: &copiers, plain: None };
    for (copier, taken) in copiers.iter().zip(course.measure("empty", &tree)?.0) {
        let [client, server] = &taken.memory;
        let most = client.most().max(server.most());
        let rate = taken.rate(files);
        section.keep("empty", copier.who.name(), "files a second", &rate);
        section.row(vec![
            copier.who.name().into(),
            files.to_string(),
            directories.to_string(),
            taken.show_seconds(1),
            rate.show(1.0, 0),
            client.show(1048576.0, 0),
            server.show(1048576.0, 0),
            match (copier.who, most <= CEILING) {
                (Who::Longhaul, true) => "yes",
                (Who::Longhaul, false) => "**no**",
                _ => "–",
            }
            .into(),
        ]);
    }
    notes(&mut section, setup, &absent);
    section
        .notes
        .push("over loopback; memory: the peak resident set, of the server since it was started, without its children".into());
    section.commands = vec![
        "longhaul agent --root there --insecure --user $(id -u) &".into(),
        "longhaul cp -r tree/. lh://localhost/copy --fsync none".into(),
    ];
    Ok(section)
}
