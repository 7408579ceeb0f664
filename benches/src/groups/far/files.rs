//! A thousand files at once, on one device and on six that are striped:
//! workload D of the study of NVMe/TCP over wide areas (2021).

use super::super::memory_backend;
use super::{MB, client, commands};
use crate::link::{self, Link};
use crate::program::{self, Load, Target};
use crate::reference::Iperf;
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result, ensure};
use longhaul_results::schema::Output;
use longhaul_wan::Conditions;
use std::process::Stdio;
use std::time::Duration;

/// The least share of a plain stream that is good enough.
const FLOOR: f64 = 0.9;

const RATE: u64 = 1_000_000_000;
const ROUND_TRIPS: [f64; 4] = [0.15, 15.0, 45.0, 100.0];

/// Files, and bytes of each.
const FILES: u32 = 1000;
const FILE: &str = "1MiB";
/// Bytes of a call.
const BS: u64 = 64 << 10;
/// Devices of the stripe.
const STRIPED: usize = 6;

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "files",
        &[
            "link",
            "devices",
            "load",
            "iperf3, Mb/s",
            "1,000 files, Mb/s",
            "of iperf3",
            "≥ 0.9",
            "I/O errors",
            "disconnects",
            "blocks verified, wrong",
        ],
    );
    for rtt in ROUND_TRIPS {
        let rtt = Duration::from_secs_f64(rtt / 1e3);
        for devices in [1, STRIPED] {
            let link = Link::start(Conditions::new(rtt, Some(RATE)), None)?;
            measure(setup, &link, devices, &mut section)?;
        }
    }
    section.notes.push(format!(
        "{FILES} jobs with a region of {FILE} each, all at the same time, in calls of 64 KiB. Rates: windows as \
         above. Errors, disconnects and content are of all of a cell's measurements, and of a run on top that \
         writes all the files once and reads them back: each block carries its address, generation and checksum"
    ));
    section.notes.push(format!(
        "Six devices: six namespaces of one target over the same link ({}), striped by 256 KiB in the \
         initiator",
        link::rate(RATE)
    ));
    let rtt = Duration::from_secs_f64(ROUND_TRIPS[1] / 1e3);
    section.commands = commands(setup, RATE, rtt, "", "");
    let load = format!("--rw write --bs 64KiB --numjobs {FILES} --offset-increment {FILE}");
    let congestion = &setup.congestion;
    section.commands.extend([
        client(&format!("longhaul bench URI {load} --runtime 2s --ramp 1150ms --congestion {congestion}")),
        client(&format!("longhaul bench URI {load} --verify crc32c --congestion {congestion}")),
        client(&format!(
            "longhaul bench URI URI URI URI URI URI --layout stripe {load} --congestion {congestion}"
        )),
    ]);
    Ok(section)
}

/// What happened besides.
#[derive(Default)]
struct Incidents {
    errors: i32,
    disconnects: u64,
    checked: u64,
    wrong: u64,
}

impl Incidents {
    fn add(&mut self, output: &Output) {
        self.errors += output.jobs.iter().map(|job| job.error).sum::<i32>();
        self.disconnects += output.paths.iter().map(|path| path.disconnects).sum::<u64>();
        for verify in output.jobs.iter().filter_map(|job| job.verify.as_ref()) {
            self.checked += verify.checked_blocks;
            self.wrong += verify.faults.0.iter().map(|(_, n)| n).sum::<u64>();
        }
    }
}

fn measure(setup: &Setup, link: &Link, devices: usize, section: &mut Section) -> Result<()> {
    let setup = &link.setup(setup, 1);
    let engine = setup.engines.first().context("no engine to measure with")?;
    let targets = Target::start_many(setup, engine, &memory_backend(setup), devices, &[])?;
    let iperf =
        Iperf::start(setup)?.context("iperf3 is the reference of this group, and is not installed")?;
    let name = format!("{}, {}", link::rate(RATE), link::round_trip(link.rtt()));
    for rw in ["write", "read"] {
        let mut incidents = Incidents::default();
        let measured = setup.interleave(&[true, false], |&ours| {
            link.on_time(|| {
                if !ours {
                    return iperf.run(setup, rw == "write", 128 << 10);
                }
                let output = files(setup, engine, &targets.uris, rw, true)?;
                incidents.add(&output);
                let job = output.jobs.first().context("a result without jobs")?;
                Ok(if rw == "write" { job.write.bw_bytes } else { job.read.bw_bytes } as f64)
            })
        })?;
        if rw == "write" {
            incidents.add(&files(setup, engine, &targets.uris, rw, false)?);
            ensure!(incidents.checked > 0, "nothing was verified");
        }
        let [ours, plain] = [0, 1].map(|i| Samples(measured[i].clone()));
        let case = format!("{name}, {devices}, {rw}");
        eprintln!("  {case}: {} of {}", ours.show(MB, 0), plain.show(MB, 0));
        section.keep(&case, "longhaul", "bytes/s", &ours);
        section.keep(&case, "iperf3", "bytes/s", &plain);
        let ratio = ours.ratio(&plain);
        section.row(vec![
            name.clone(),
            devices.to_string(),
            rw.into(),
            plain.show(MB, 0),
            ours.show(MB, 0),
            ratio.show_ratio(),
            ratio.at_least(FLOOR).into(),
            incidents.errors.to_string(),
            incidents.disconnects.to_string(),
            if rw == "write" { format!("{}, {}", incidents.checked, incidents.wrong) } else { "–".into() },
        ]);
    }
    Ok(())
}

/// Loads all files for a while, or writes them once and reads them back.
fn files(setup: &Setup, engine: &str, uris: &[String], rw: &'static str, timed: bool) -> Result<Output> {
    let (first, rest) = uris.split_first().context("no device")?;
    let mut command = program::bench(setup, engine, first);
    command.args(rest).args((!rest.is_empty()).then_some(["--layout", "stripe"]).iter().flatten());
    for (name, value) in (Load { numjobs: FILES, ..Load::tuned(rw, BS) }).options() {
        command.arg(format!("--{name}")).arg(value);
    }
    command.args(["--offset-increment", FILE]);
    if timed {
        let ms = |time: Duration| format!("{}ms", time.as_millis());
        command.args(["--runtime", &ms(setup.runtime), "--ramp", &ms(setup.ramp)]);
    } else {
        command.args(["--verify", "crc32c"]);
    }
    let child = setup.load.start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    serde_json::from_str(&program::output(crate::process::Guard(child))?).context("the load's result")
}
