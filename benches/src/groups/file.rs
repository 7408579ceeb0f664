//! Files on the local disk against fio on the same file.

use super::{DiskFile, block_size, commands, window};
use crate::program::{self, Load, Measured, Target};
use crate::reference::{fio, fio_available};
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result};

/// The least share of fio's rate that is good enough.
const FLOOR: f64 = 0.9;

/// Bytes per second of the unit in the table.
const MB: f64 = 1e6;

#[derive(Clone, Copy)]
enum Subject {
    Fio,
    Local,
    Remote,
}

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "file",
        &[
            "load",
            "fio, MB/s",
            "bench on the file, MB/s",
            "of fio",
            "≥ 0.9",
            "through target, MB/s",
            "of fio",
            "≥ 0.9",
        ],
    );
    let version = fio_available().context("fio is the reference of this group, and it is not installed")?;
    let engine = setup.engines.first().context("no engine to measure with")?;
    let file = DiskFile::lay_out(setup)?;
    let backend = file.backend();
    let loads =
        [("randread", 4096, 32), ("randwrite", 4096, 32), ("read", 128 << 10, 16), ("write", 128 << 10, 16)]
            .map(|(rw, bs, depth)| Load::new(rw, bs, depth));
    for load in &loads {
        let measured = setup.interleave(&[Subject::Fio, Subject::Local, Subject::Remote], |subject| {
            let measured = match subject {
                Subject::Fio => fio(setup, &file.path, load),
                Subject::Local => program::load(setup, engine, &backend, load, None, &[]),
                Subject::Remote => remote(setup, engine, &backend, load),
            };
            Ok(measured?.rate)
        })?;
        let case = format!("{} {}, depth {}", block_size(load.bs), load.rw, load.iodepth.unwrap_or(1));
        let samples: Vec<Samples> = measured.into_iter().map(Samples).collect();
        for (subject, samples) in ["fio", "longhaul bench", "longhaul target"].iter().zip(&samples) {
            section.keep(&case, subject, "bytes/s", samples);
        }
        let mut cells = vec![case, samples[0].show(MB, 0)];
        for ours in &samples[1..] {
            let ratio = ours.ratio(&samples[0]);
            cells.extend([ours.show(MB, 0), ratio.show_ratio(), ratio.at_least(FLOOR).into()]);
        }
        section.row(cells);
    }
    section.notes.push(format!("{version}, io_uring with direct I/O, on the load's processor"));
    section.notes.push("The file was written in full beforehand; --engine of longhaul: ".to_owned() + engine);
    let window = window(setup);
    let load = format!("--rw randread --bs 4KiB --iodepth 32 {window}");
    section.commands = commands(setup, "file:FILE", "", &load);
    section.commands.push(format!("{}longhaul bench file:FILE {load}", setup.load.prefix()));
    section.commands.push(format!(
        "{}fio --name=reference --filename=FILE --ioengine=io_uring --direct=1 --rw=randread \
         --bs=4096 --iodepth=32 --time_based --runtime={}ms --ramp_time={}ms",
        setup.load.prefix(),
        setup.runtime.as_millis(),
        setup.ramp.as_millis()
    ));
    Ok(section)
}

/// A target locks the files that it serves, so it is there for its own
/// measurement only.
fn remote(setup: &Setup, engine: &str, backend: &str, load: &Load) -> Result<Measured> {
    let target = Target::start(setup, engine, backend, &[])?;
    program::load(setup, engine, &target.uri, load, Some(&target), &[])
}
