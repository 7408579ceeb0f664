//! The model of a copy, over many seeds: the planted costs lie within the intervals as often as the
//! intervals promise.

use fastrand::Rng;
use longhaul_lab::model::{Bounds, Copy, Fit, Noise, fit, split};
use longhaul_results::stats::CONFIDENCE;

/// Between two numbers, each power of ten as likely as another.
fn between(random: &mut Rng, low: f64, high: f64) -> f64 {
    low * (high / low).powf(random.f64())
}

/// A sample of the normal distribution with mean 0 and deviation 1 (Box and Muller).
fn normal(random: &mut Rng) -> f64 {
    let (u, v) = (1.0 - random.f64(), random.f64());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// Planted values, and copies of a ladder with few, some and many files.
fn ladder(random: &mut Rng, runs: usize) -> ((f64, f64), Vec<Copy>) {
    let (t0, bytes) = (between(random, 1e-4, 0.1), between(random, 1e7, 1e10));
    let many = between(random, 100.0, 2000.0).round();
    // The bytes take between a tenth and ten times what many files do.
    let rate = bytes / (many * t0) / between(random, 0.1, 10.0);
    let noise = between(random, 0.005, 0.08);
    let mut copies = Vec::new();
    for files in [8.0, (8.0 * many).sqrt().round(), many] {
        for _ in 0..runs {
            let seconds = (files * t0 + bytes / rate) * (1.0 + noise * normal(random));
            copies.push(Copy { files, bytes, seconds });
        }
    }
    ((t0, rate), copies)
}

#[test]
fn planted_values_are_within_their_intervals_as_often_as_those_say() {
    for runs in [2, 3, 5] {
        let (trials, mut held) = (1500, [0u32; 2]);
        for seed in 1..=trials {
            let mut random = Rng::with_seed(seed);
            let ((t0, rate), copies) = ladder(&mut random, runs);
            let found: Fit = fit(&copies, Noise::Proportional).expect("three sizes");
            held[0] += u32::from(found.t0.contains(t0));
            held[1] += u32::from(found.rate.contains(rate));
        }
        for held in held {
            let share = f64::from(held) / trials as f64;
            // 1500 trials know a share of 95 % to within 1.1 %; that the weights
            // are of the measured times costs a little.
            assert!((share - CONFIDENCE).abs() < 0.025, "{share} with {runs} runs of each");
        }
    }
}

#[test]
fn intervals_shrink_with_the_noise_and_the_number_of_runs() {
    let width = |runs: usize| {
        let mut sum = 0.0;
        for seed in 1..=200 {
            let (_, copies) = ladder(&mut Rng::with_seed(seed), runs);
            let found = fit(&copies, Noise::Proportional).expect("three sizes");
            sum += (found.t0.high - found.t0.low) / found.t0.value;
        }
        sum / 200.0
    };
    assert!(width(8) < 0.7 * width(2), "{} and {}", width(8), width(2));
}

#[test]
fn a_whole_that_overlaps_stages_is_between_the_longest_and_the_sum() {
    let (trials, mut held) = (1000, 0);
    for seed in 1..=trials {
        let mut random = Rng::with_seed(seed);
        let cost = [0; 3].map(|_| between(&mut random, 1e-3, 0.05));
        let (sum, most) = (cost.iter().sum::<f64>(), cost.iter().copied().fold(0.0, f64::max));
        let whole = most + random.f64() * (sum - most);
        let mut measured = |t0: f64| {
            let copies: Vec<Copy> = [8.0, 64.0, 512.0]
                .into_iter()
                .flat_map(|files| [files; 3])
                .map(|files| (files, (files * t0 + 0.5) * (1.0 + 0.02 * normal(&mut random))))
                .map(|(files, seconds)| Copy { files, bytes: 1e8, seconds })
                .collect();
            fit(&copies, Noise::Proportional).expect("three sizes").t0
        };
        let [read, network, write] = cost.map(&mut measured);
        let found = split(read, network, write, measured(whole));
        held += u32::from(found.bounds == Bounds::Held);
    }
    assert!(held >= 980, "{held} of {trials}");
}
