//! What moving files costs: T = N·t0 + B/R.
//!
//! A copy of N files with B bytes in all takes t0 for each file, whatever its
//! size, and B/R for the bytes. (The model and the names are those of the
//! CCGRID 2019 study of data-transfer bottlenecks; it found t0 = 66.5 ms for
//! 5 GB in N files over 45 ms.) [`fit`] finds both by weighted least squares
//! from copies of different N, or B, or both; [`split`] says which stage t0
//! belongs to.

use longhaul_results::stats::{Interval, margin};

/// A copy that was timed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Copy {
    /// Number of files.
    pub files: f64,
    /// Bytes in all.
    pub bytes: f64,
    /// Seconds that it took.
    pub seconds: f64,
}

/// What noise is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Noise {
    /// In proportion to the time, as with most of what slows a copy.
    #[default]
    Proportional,
    /// The same for all copies.
    Constant,
}

/// The result of a fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// Seconds a file.
    pub t0: Interval,
    /// Bytes per second; the upper end is infinite where the bytes cost nothing
    /// that could be measured.
    pub rate: Interval,
    /// Share of the variance of the times that the model explains.
    pub explained: f64,
    /// Copies that it was found from.
    pub copies: usize,
}

/// Why nothing can be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// Two numbers from two copies leave nothing to judge them by.
    #[error("{0} copies are too few to fit t0 and R with an interval: three are needed")]
    TooFew(usize),
    /// One combination of files and bytes cannot separate their costs.
    #[error(
        "all copies have the same bytes for each file: the costs of files and of bytes cannot be separated"
    )]
    Alike,
    /// A time, or a number of files or bytes, is not a positive number.
    #[error("a copy has a time or a size that is not a positive number")]
    Senseless,
}

/// Fits t0 and R.
///
/// # Errors
/// Too few copies, or copies from which t0 and R cannot be separated.
pub fn fit(copies: &[Copy], noise: Noise) -> Result<Fit, FitError> {
    let good = |v: f64| v.is_finite() && v >= 0.0;
    if copies.iter().any(|c| !good(c.files) || !good(c.bytes) || !good(c.seconds) || c.seconds == 0.0) {
        return Err(FitError::Senseless);
    }
    if copies.len() < 3 {
        return Err(FitError::TooFew(copies.len()));
    }
    // Bytes in units of their mean, so that both columns are of a size.
    let unit = (copies.iter().map(|c| c.bytes).sum::<f64>() / copies.len() as f64).max(1.0);
    let files = (copies.iter().map(|c| c.files).sum::<f64>() / copies.len() as f64).max(1.0);
    let weight = |c: &Copy| match noise {
        Noise::Proportional => 1.0 / (c.seconds * c.seconds),
        Noise::Constant => 1.0,
    };
    let mut sums = [0.0; 5];
    for copy in copies {
        let (w, x, y, t) = (weight(copy), copy.files / files, copy.bytes / unit, copy.seconds);
        let terms = [w * x * x, w * x * y, w * y * y, w * x * t, w * y * t];
        sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
    }
    let [xx, xy, yy, xt, yt] = sums;
    let determinant = xx * yy - xy * xy;
    if determinant <= 1e-9 * xx * yy {
        return Err(FitError::Alike);
    }
    let (a, b) = ((yy * xt - xy * yt) / determinant, (xx * yt - xy * xt) / determinant);
    let freedom = (copies.len() - 2) as f64;
    let mean = {
        let all: f64 = copies.iter().map(weight).sum();
        copies.iter().map(|c| weight(c) * c.seconds).sum::<f64>() / all
    };
    let (mut left, mut whole) = (0.0, 0.0);
    for copy in copies {
        let off = copy.seconds - a * copy.files / files - b * copy.bytes / unit;
        left += weight(copy) * off * off;
        whole += weight(copy) * (copy.seconds - mean) * (copy.seconds - mean);
    }
    let variance = left / freedom;
    let reach = margin(freedom);
    let [of_a, of_b] = [yy, xx].map(|other| reach * (variance * other / determinant).sqrt());
    let per_byte = Interval::around(b / unit, of_b / unit);
    Ok(Fit {
        t0: Interval::around(a / files, of_a / files),
        rate: Interval { value: rate(per_byte.value), low: rate(per_byte.high), high: rate(per_byte.low) },
        explained: if whole > 0.0 { 1.0 - left / whole } else { 1.0 },
        copies: copies.len(),
    })
}

/// Bytes per second of seconds a byte.
fn rate(per_byte: f64) -> f64 {
    if per_byte > 0.0 { 1.0 / per_byte } else { f64::INFINITY }
}

impl Fit {
    /// Seconds that it expects a copy to take.
    pub fn predict(&self, files: f64, bytes: f64) -> f64 {
        files * self.t0.value + if self.rate.value.is_finite() { bytes / self.rate.value } else { 0.0 }
    }
}

/// The stages of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Finding, opening and reading files.
    Read,
    /// Carrying files over the network.
    Network,
    /// Creating and writing files.
    Write,
}

impl Stage {
    /// All of them, in the order of a copy.
    pub const ALL: [Stage; 3] = [Stage::Read, Stage::Network, Stage::Write];

    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Read => "read",
            Stage::Network => "network",
            Stage::Write => "write",
        }
    }
}

/// Whether the whole is between what its stages allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bounds {
    /// The longest stage ≤ the whole ≤ the sum of the stages, within the
    /// uncertainty of the measurements.
    Held,
    /// Less than its longest stage alone: that stage was measured under other
    /// conditions.
    BelowLongest,
    /// More than all stages after one another: they disturb each other, or
    /// something outside the measured stages costs time.
    AboveSum,
}

impl Bounds {
    /// Its name in results and events.
    pub fn name(self) -> &'static str {
        match self {
            Bounds::Held => "held",
            Bounds::BelowLongest => "below-longest",
            Bounds::AboveSum => "above-sum",
        }
    }
}

/// What a file costs, by stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// Seconds a file of each stage alone, in the order of [`Stage::ALL`].
    pub stages: [Interval; 3],
    /// Seconds a file of the whole copy.
    pub whole: Interval,
    /// Share of the stages' sum, each.
    pub shares: [f64; 3],
    /// The longest stage: what bounds a copy that overlaps all of them.
    pub longest: Stage,
    /// The share of the possible overlap that was reached: 0 if the whole takes the sum of its
    /// stages, 1 if it takes no longer than its longest stage.
    pub overlap: f64,
    /// Whether the measurements go together.
    pub bounds: Bounds,
}

/// Splits the cost of a file. The stages' are of copies that leave the others
/// out: files to nothing (read), nothing over the path to nothing (network),
/// nothing to files (write).
pub fn split(read: Interval, network: Interval, write: Interval, whole: Interval) -> Split {
    let stages = [read, network, write];
    let cost = stages.map(|stage| stage.value.max(0.0));
    let sum: f64 = cost.iter().sum();
    let (longest, most) = Stage::ALL
        .into_iter()
        .zip(cost)
        .fold((Stage::Read, f64::NEG_INFINITY), |best, next| if next.1 > best.1 { next } else { best });
    let room = sum - most;
    let overlap = if room > 0.0 { ((sum - whole.value) / room).clamp(0.0, 1.0) } else { 0.0 };
    let least = stages.iter().map(|stage| stage.low).fold(f64::NEG_INFINITY, f64::max);
    let bounds = if whole.high < least {
        Bounds::BelowLongest
    } else if whole.low > stages.iter().map(|stage| stage.high).sum() {
        Bounds::AboveSum
    } else {
        Bounds::Held
    };
    let shares = cost.map(|cost| if sum > 0.0 { cost / sum } else { 0.0 });
    Split { stages, whole, shares, longest, overlap, bounds }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    /// A sample of the normal distribution with mean 0 and deviation 1 (Box and Muller).
    fn normal(random: &mut Rng) -> f64 {
        let (u, v) = (1.0 - random.f64(), random.f64());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    const FILES: [f64; 6] = [1.0, 50.0, 100.0, 200.0, 500.0, 1000.0];

    /// Copies of 5 GB in so many files, `runs` of each, with noise of a share.
    fn copies(t0: f64, rate: f64, runs: usize, noise: f64, random: &mut Rng) -> Vec<Copy> {
        let mut all = Vec::new();
        for files in FILES {
            for _ in 0..runs {
                let seconds = (files * t0 + 5e9 / rate) * (1.0 + noise * normal(random));
                all.push(Copy { files, bytes: 5e9, seconds });
            }
        }
        all
    }

    #[test]
    fn planted_values_come_back() {
        // The published ones: 66.5 ms a file, and 16.5 s for 5 GB.
        let planted = copies(0.0665, 5e9 / 16.5, 1, 0.0, &mut Rng::with_seed(1));
        for noise in [Noise::Proportional, Noise::Constant] {
            let found = fit(&planted, noise).expect("six copies");
            assert!((found.t0.value - 0.0665).abs() < 1e-9, "{found:?}");
            assert!((found.rate.value / (5e9 / 16.5) - 1.0).abs() < 1e-9, "{found:?}");
            assert!((found.explained - 1.0).abs() < 1e-9);
            assert!((found.predict(1000.0, 5e9) - 83.0).abs() < 1e-6);
        }
    }

    #[test]
    fn intervals_hold_the_planted_values_as_often_as_they_say() {
        let mut random = Rng::with_seed(7);
        let (t0, rate, trials) = (0.0665, 5e9 / 16.5, 1000);
        let (mut t0_held, mut rate_held) = (0, 0);
        for _ in 0..trials {
            let found = fit(&copies(t0, rate, 3, 0.05, &mut random), Noise::Proportional).expect("fit");
            t0_held += u32::from(found.t0.contains(t0));
            rate_held += u32::from(found.rate.contains(rate));
        }
        for held in [t0_held, rate_held] {
            let share = f64::from(held) / f64::from(trials);
            // Weights by the measured time, not the true one, cost a little.
            assert!((0.925..=0.98).contains(&share), "{share} of the intervals hold it");
        }
    }

    #[test]
    fn files_and_bytes_may_both_differ() {
        let all: Vec<Copy> = [(10.0, 1e9), (1000.0, 1e9), (10.0, 9e9), (400.0, 3e9)]
            .map(|(files, bytes)| Copy { files, bytes, seconds: files * 0.01 + bytes / 1e9 })
            .to_vec();
        let found = fit(&all, Noise::Proportional).expect("four copies");
        assert!((found.t0.value - 0.01).abs() < 1e-9 && (found.rate.value / 1e9 - 1.0).abs() < 1e-9);
    }

    #[test]
    fn bytes_that_cost_nothing_have_no_rate() {
        let all: Vec<Copy> =
            [1.0, 10.0, 100.0].map(|files| Copy { files, bytes: 1.0, seconds: files * 0.5 }).to_vec();
        let found = fit(&all, Noise::Constant).expect("three copies");
        assert!((found.t0.value - 0.5).abs() < 1e-9 && found.rate.high.is_infinite(), "{found:?}");
        assert!(found.predict(2.0, 1.0).is_finite());
    }

    #[test]
    fn what_cannot_be_told_is_not_told() {
        let copy = |files: f64, bytes: f64, seconds: f64| Copy { files, bytes, seconds };
        let few = [copy(1.0, 1e6, 1.0), copy(2.0, 1e6, 2.0)];
        assert_eq!(fit(&few, Noise::Constant), Err(FitError::TooFew(2)));
        let alike = [copy(1.0, 1e6, 1.0), copy(2.0, 2e6, 2.0), copy(3.0, 3e6, 3.1)];
        assert_eq!(fit(&alike, Noise::Constant), Err(FitError::Alike));
        for wrong in [copy(1.0, 1.0, 0.0), copy(f64::NAN, 1.0, 1.0), copy(1.0, -1.0, 1.0)] {
            let all = [wrong, copy(1.0, 1.0, 1.0), copy(2.0, 1.0, 1.0)];
            assert_eq!(fit(&all, Noise::Constant), Err(FitError::Senseless));
        }
    }

    fn ms(value: f64, margin: f64) -> Interval {
        Interval::around(value / 1e3, margin / 1e3)
    }

    #[test]
    fn the_published_costs_are_within_their_bounds() {
        let found = split(ms(34.0, 1.0), ms(25.3, 1.0), ms(10.1, 1.0), ms(66.5, 2.0));
        assert_eq!((found.longest, found.bounds), (Stage::Read, Bounds::Held));
        assert!((found.shares.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        assert!((found.shares[0] - 34.0 / 69.4).abs() < 1e-9);
        // 69.4 - 66.5 of the 35.4 ms that could overlap.
        assert!((found.overlap - 2.9 / 35.4).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn what_does_not_go_together_is_told() {
        let bounds = |whole| split(ms(34.0, 1.0), ms(25.3, 1.0), ms(10.1, 1.0), whole).bounds;
        assert_eq!(bounds(ms(80.0, 2.0)), Bounds::AboveSum);
        assert_eq!(bounds(ms(30.0, 2.0)), Bounds::BelowLongest);
        assert_eq!(bounds(ms(33.0, 0.5)), Bounds::Held, "within the margins");
        let nothing = split(ms(0.0, 0.0), ms(0.0, 0.0), ms(0.0, 0.0), ms(0.0, 0.0));
        assert_eq!((nothing.overlap, nothing.shares), (0.0, [0.0; 3]));
    }
}
