//! Data sets over long links: many small files, sizes as they are met, and the
//! same bytes in a few large ones.

use super::{Course, MB, Place, ROUND_TRIP, commands, copiers, notes, over, scaled, write_noise};
use crate::link;
use crate::reference::{Copier, Iperf, Who};
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result};
use fastrand::Rng;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

const ROUND_TRIPS: [Duration; 3] = [Duration::from_micros(150), ROUND_TRIP, Duration::from_millis(262)];
/// Files of 4 KiB.
const SMALL: u64 = 2000;
/// Files of heavy-tailed sizes, and their bytes in all.
const MIX: u64 = 1000;
const BYTES: u64 = 1 << 30;

/// The most that the small files may take, in seconds, by round trip.
const SMALL_CEILINGS: [(Duration, f64); 2] = [(ROUND_TRIP, 0.6), (Duration::from_millis(262), 3.0)];
/// The least share of a plain stream for the mix and for large files, and of large
/// files for sizes as they are met.
const FLOOR: f64 = 0.95;
const FLOOR_REAL: f64 = 0.97;

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "sets",
        &[
            "link",
            "data set",
            "program",
            "s",
            "Mb/s",
            "iperf3, Mb/s",
            "of iperf3",
            "of its own `big`",
            "floor",
            "met",
            "CPU s a GB",
        ],
    );
    let place = Place::make(setup)?;
    let bytes = scaled(setup, BYTES);
    let scale = ["--scale".into(), bytes.to_string()];
    let small = ["--files".into(), scaled(setup, SMALL).to_string()];
    // The large files first: others are compared with them.
    let mut trees = vec![
        ("big", place.data_set(setup, "big", "big", &scale)?),
        ("real", place.data_set(setup, "real", "real", &scale)?),
        ("mix", mix(&place, scaled(setup, MIX), bytes)?),
        ("small", place.data_set(setup, "small", "small", &small)?),
    ];
    if !setup.sets.is_empty() {
        trees.retain(|(name, _)| setup.sets.iter().any(|one| one == name));
    }
    for &rtt in setup.round_trips(&ROUND_TRIPS) {
        let (link, setup) = over(setup, rtt)?;
        let iperf = Iperf::start(&setup)?.context("iperf3 is the reference here, and is not installed")?;
        let (mut copiers, absent) = copiers(&setup, &place.there(), &Who::OTHERS)?;
        copiers.insert(1, Copier::start(Who::Encrypted, &setup, &place.there())?);
        let course = Course { setup: &setup, link: Some(&link), copiers: &copiers, plain: Some(&iperf) };
        // Without them there is nothing to compare with.
        let mut big = vec![Samples(Vec::new()); copiers.len()];
        for (name, tree) in &trees {
            let case = format!("sets: {}, {name}", link::round_trip(rtt));
            let (taken, plain) = course.measure(&case, tree)?;
            let bytes = crate::reference::tally(tree)?.1;
            let rates: Vec<Samples> = taken.iter().map(|taken| taken.rate(bytes)).collect();
            if *name == "big" {
                big.clone_from(&rates);
            }
            for ((copier, taken), (rate, big)) in copiers.iter().zip(&taken).zip(rates.iter().zip(&big)) {
                let who = copier.who;
                section.keep(&case, who.name(), "seconds", &taken.seconds);
                let (of_plain, of_big) = (rate.ratio(&plain), rate.ratio(big));
                let [floor, met] = match who {
                    Who::Longhaul | Who::Encrypted => floor(name, rtt, &taken.seconds, &of_plain, &of_big),
                    _ => ["–"; 2].map(String::from),
                };
                let show = |ratio: &Samples| {
                    if ratio.0.is_empty() { "–".into() } else { ratio.show_ratio() }
                };
                section.row(vec![
                    link::round_trip(rtt),
                    (*name).into(),
                    who.name().into(),
                    taken.show_seconds(2),
                    taken.show_rate(bytes),
                    plain.show(MB, 0),
                    show(&of_plain),
                    show(&of_big),
                    floor,
                    met,
                    taken.show_cpu(bytes),
                ]);
            }
        }
        if section.notes.is_empty() {
            notes(&mut section, &setup, &absent);
        }
    }
    section.notes.push(
        "small: files of 4 KiB; mix: log-normal sizes with sigma 2.38; real and big: as `longhaul dataset` makes \
         them, with the same bytes within what one file more or less makes. iperf3: a new connection that moves as \
         many bytes, slow start included; what it takes to connect and to agree is not counted there, and is in \
         the copies. Encrypted: `--key-file` on both sides"
            .into(),
    );
    section.commands = commands(ROUND_TRIP);
    Ok(section)
}

/// What a data set has to reach, and whether it did.
fn floor(name: &str, rtt: Duration, seconds: &Samples, of_plain: &Samples, of_big: &Samples) -> [String; 2] {
    let [floor, met] = match name {
        "small" => match SMALL_CEILINGS.iter().find(|(far, _)| *far == rtt) {
            Some((_, ceiling)) => [format!("≤ {ceiling} s"), seconds.at_most(*ceiling).into()],
            None => ["–"; 2].map(String::from),
        },
        "real" => [format!("≥ {FLOOR_REAL} of `big`"), of_big.at_least(FLOOR_REAL).into()],
        _ => [format!("≥ {FLOOR} of iperf3"), of_plain.at_least(FLOOR).into()],
    };
    [floor, met]
}

/// Log-normal sizes that make up so many bytes.
fn mix(place: &Place, files: u64, bytes: u64) -> Result<PathBuf> {
    let dir = place.here("mix");
    let mut random = Rng::with_seed(1);
    for (i, size) in sizes(files, bytes).into_iter().enumerate() {
        let parent = dir.join(format!("d{:02}", i % 20));
        fs::create_dir_all(&parent)?;
        write_noise(&parent.join(format!("f{i:05}")), size, &mut random)?;
    }
    Ok(dir)
}

/// The quantiles of a log-normal distribution with sigma 2.38, scaled to `bytes`
/// in all, in an order that mixes them.
fn sizes(files: u64, bytes: u64) -> Vec<u64> {
    let quantile = |i: u64| (2.38 * normal((i as f64 + 0.5) / files as f64)).exp();
    let whole: f64 = (0..files).map(quantile).sum();
    // A step without a common divisor visits all of them.
    let step = (files * 2 / 5).max(1);
    let step = (step..).find(|step| gcd(*step, files) == 1).unwrap_or(1);
    (0..files).map(|i| (quantile(i * step % files) / whole * bytes as f64) as u64).collect()
}

/// The quantile of the normal distribution (Abramowitz and Stegun, 26.2.23: off by
/// less than 0.00045).
fn normal(p: f64) -> f64 {
    if p > 0.5 {
        return -normal(1.0 - p);
    }
    let t = (-2.0 * p.ln()).sqrt();
    let above = 2.515517 + t * (0.802853 + t * 0.010328);
    let below = 1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308));
    above / below - t
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_make_up_the_bytes_and_have_a_tail() {
        let sizes = sizes(1000, 1 << 30);
        let sum: u64 = sizes.iter().sum();
        assert!((1 << 30) - sum < 1000 && sizes.len() == 1000, "{sum}");
        let mut sorted = sizes.clone();
        sorted.sort_unstable();
        assert!(sorted[500] < 200_000 && sorted[999] > 100_000_000, "{} {}", sorted[500], sorted[999]);
        assert_ne!(sizes, sorted);
        assert!((normal(0.975) - 1.95996).abs() < 1e-3 && normal(0.5).abs() < 1e-3);
    }
}
