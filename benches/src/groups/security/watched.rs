//! What it costs to be watched: small reads of a target with and without metrics.

use super::super::{commands, memory_backend, window};
use crate::program::{self, Load, Target};
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The least share of the IOPS without metrics.
const FLOOR: f64 = 0.99;
const BS: u64 = 4096;
const DEPTHS: [u32; 2] = [32, 128];
/// A queue one longer than the deepest load.
const QUEUE_SIZE: &str = "129";
/// How often the metrics are fetched: far more often than Prometheus does by default.
const SCRAPES: Duration = Duration::from_secs(1);
const KILO: f64 = 1e3;

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "watched",
        &[
            "load",
            "1000 IOPS",
            "1000 IOPS with metrics",
            "of those without",
            "≥ 0.99",
            "CPU per I/O, µs",
            "with metrics",
        ],
    );
    let engine = setup.engines.first().context("no engine to measure with")?;
    let backend = memory_backend(setup);
    let plain = Target::start(setup, engine, &backend, &[])?;
    let watched = Target::start(setup, engine, &backend, &["--metrics", "127.0.0.1:0"])?;
    let at = watched.metrics().context("the target serves no metrics")?.to_owned();
    for target in [&plain, &watched] {
        target.fill(setup, engine)?;
    }
    for depth in DEPTHS {
        let load = Load::new("randread", BS, depth);
        let measured = setup.interleave(&[false, true], |&is_watched| {
            let target = if is_watched { &watched } else { &plain };
            let run = || {
                program::load(setup, engine, &target.uri, &load, Some(target), &["--queue-size", QUEUE_SIZE])
            };
            if is_watched { scraped(&at, run) } else { run() }
        })?;
        let [plain, watched] = [&measured[0], &measured[1]];
        let [iops, with] = [plain, watched].map(|m| Samples::of(m, |m| m.iops));
        let [cpu, cpu_with] = [plain, watched].map(|m| Samples::of(m, |m| m.cpu));
        let ratio = with.ratio(&iops);
        section.keep(&format!("depth {depth}"), "plain", "IOPS", &iops);
        section.keep(&format!("depth {depth}"), "with metrics", "IOPS", &with);
        section.row(vec![
            format!("4 KiB random reads, depth {depth}"),
            iops.show(KILO, 0),
            with.show(KILO, 0),
            ratio.show_ratio(),
            ratio.at_least(FLOOR).to_owned(),
            cpu.show(1e-6, 2),
            cpu_with.show(1e-6, 2),
        ]);
    }
    section
        .notes
        .push(format!("The metrics are fetched each {} s while they are measured", SCRAPES.as_secs()));
    section.commands = commands(
        setup,
        &backend,
        " --metrics 127.0.0.1:9464",
        &format!(
            "--rw randread --bs 4KiB --iodepth {} --queue-size {QUEUE_SIZE} {}",
            DEPTHS[0],
            window(setup)
        ),
    );
    section.commands.push("while sleep 1; do curl -s 127.0.0.1:9464/metrics > /dev/null; done".to_owned());
    Ok(section)
}

/// Runs something while metrics are fetched again and again.
fn scraped<T>(at: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let (end, until_end) = channel::<()>();
    std::thread::scope(|scope| {
        let scraping = scope.spawn(move || -> Result<()> {
            loop {
                scrape(at)?;
                if let Err(RecvTimeoutError::Disconnected) | Ok(()) = until_end.recv_timeout(SCRAPES) {
                    return Ok(());
                }
            }
        });
        let result = run();
        drop(end);
        scraping.join().map_err(|_| anyhow::anyhow!("the scraper panicked"))??;
        result
    })
}

fn scrape(at: &str) -> Result<()> {
    let mut stream = TcpStream::connect(at).with_context(|| format!("metrics at {at}"))?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    anyhow::ensure!(text.contains("longhaul_"), "no metrics at {at}: {text}");
    Ok(())
}
