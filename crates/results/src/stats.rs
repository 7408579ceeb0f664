//! Means, ratios and straight lines with their confidence intervals.
//!
//! All intervals are two-sided with [`CONFIDENCE`], by Student's distribution:
//! samples are few, and their deviation is estimated from themselves.

/// Share of intervals that hold the true value.
pub const CONFIDENCE: f64 = 0.95;

/// A value, and between which it is with [`CONFIDENCE`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The estimate, such as a mean or a ratio.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end; infinite where nothing bounds it.
    pub high: f64,
}

impl Interval {
    /// Whether `value` is within.
    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }

    /// The value plus or minus its margin.
    pub fn around(value: f64, margin: f64) -> Interval {
        Interval { value, low: value - margin, high: value + margin }
    }
}

/// Number, mean and standard deviation of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Number of samples.
    pub n: usize,
    /// Their mean; 0 without any.
    pub mean: f64,
    /// Standard deviation of the sample; 0 with fewer than two.
    pub deviation: f64,
    /// Smallest sample; 0 without any.
    pub min: f64,
    /// Largest sample; 0 without any.
    pub max: f64,
}

impl Summary {
    /// Of these samples.
    pub fn of(samples: &[f64]) -> Summary {
        let n = samples.len();
        if n == 0 {
            return Summary::default();
        }
        let mean = samples.iter().sum::<f64>() / n as f64;
        let squares: f64 = samples.iter().map(|v| (v - mean) * (v - mean)).sum();
        Summary {
            n,
            mean,
            deviation: if n < 2 { 0.0 } else { (squares / (n - 1) as f64).sqrt() },
            min: samples.iter().copied().fold(f64::INFINITY, f64::min),
            max: samples.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }

    /// Where the true mean is; nothing with fewer than two samples.
    pub fn interval(&self) -> Option<Interval> {
        if self.n < 2 {
            return None;
        }
        let freedom = (self.n - 1) as f64;
        let margin = margin(freedom) * self.deviation / (self.n as f64).sqrt();
        Some(Interval::around(self.mean, margin))
    }
}

/// Ratio of the mean of `b` to that of `a`, of positive samples. The interval
/// needs two of each: Welch's, of the logarithms, since noise of rates and
/// times is in proportion to them. Nothing where a sample is not positive.
pub fn ratio(a: &[f64], b: &[f64]) -> Option<Result<Interval, f64>> {
    let positive = |samples: &[f64]| !samples.is_empty() && samples.iter().all(|v| *v > 0.0);
    if !positive(a) || !positive(b) {
        return None;
    }
    let logs = |samples: &[f64]| Summary::of(&samples.iter().map(|v| v.ln()).collect::<Vec<_>>());
    let (a, b) = (logs(a), logs(b));
    let value = b.mean - a.mean;
    if a.n < 2 || b.n < 2 {
        return Some(Err(value.exp()));
    }
    let share = |s: &Summary| s.deviation * s.deviation / s.n as f64;
    let (va, vb) = (share(&a), share(&b));
    let variance = va + vb;
    // Welch and Satterthwaite; without any noise the freedom does not matter.
    let freedom = match variance > 0.0 {
        true => variance * variance / (va * va / (a.n - 1) as f64 + vb * vb / (b.n - 1) as f64),
        false => 1.0,
    };
    let half = margin(freedom) * variance.sqrt();
    Some(Ok(Interval { value: value.exp(), low: (value - half).exp(), high: (value + half).exp() }))
}

/// How many standard errors an interval reaches to each side.
pub fn margin(freedom: f64) -> f64 {
    t_quantile(f64::midpoint(CONFIDENCE, 1.0), freedom)
}

/// The value that Student's variable of `freedom` degrees stays below with
/// probability `p` (0.5 to 1).
pub fn t_quantile(p: f64, freedom: f64) -> f64 {
    let mut high = 1.0;
    // Of one degree of freedom, 1 - 1e-9 lies near 3e8.
    while t_distribution(high, freedom) < p && high < 1e12 {
        high *= 2.0;
    }
    let mut low = 0.0;
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if t_distribution(middle, freedom) < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// Probability that Student's variable stays below `t`, which is not negative.
fn t_distribution(t: f64, freedom: f64) -> f64 {
    1.0 - 0.5 * beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))
}

/// The regularised incomplete beta function, by its continued fraction
/// (Abramowitz and Stegun 26.5.8) after Lentz.
fn beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    // The fraction converges fast on this side of the mean.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - beta(b, a, 1.0 - x);
    }
    let ln_front = libm::lgamma(a + b) - libm::lgamma(a) - libm::lgamma(b) + a * x.ln() + b * (1.0 - x).ln();
    let tiny = f64::MIN_POSITIVE.sqrt();
    let guard = |v: f64| if v.abs() < tiny { tiny } else { v };
    let (mut c, mut d) = (1.0, 1.0 / guard(1.0 - (a + b) * x / (a + 1.0)));
    let mut fraction = d;
    for m in 1..300 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let before = fraction;
        for step in [even, odd] {
            d = 1.0 / guard(1.0 + step * d);
            c = guard(1.0 + step / c);
            fraction *= c * d;
        }
        if (fraction / before - 1.0).abs() < 1e-15 {
            break;
        }
    }
    ln_front.exp() * fraction / a
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

    #[test]
    fn quantiles_are_those_of_the_tables() {
        let table = [
            (0.975, 1.0, 12.7062),
            (0.975, 2.0, 4.302_65),
            (0.975, 4.0, 2.776_45),
            (0.975, 9.0, 2.262_16),
            (0.95, 10.0, 1.812_46),
            (0.975, 30.0, 2.042_27),
            (0.975, 1e6, 1.959_97),
            (0.995, 5.0, 4.032_14),
            (0.5, 3.0, 0.0),
        ];
        for (p, freedom, value) in table {
            let found = t_quantile(p, freedom);
            assert!((found - value).abs() < 1e-3, "t({p}, {freedom}) = {found}, not {value}");
        }
    }

    #[test]
    fn means_have_the_deviation_of_the_book() {
        let all = Summary::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!((all.n, all.mean, all.min, all.max), (8, 5.0, 2.0, 9.0));
        assert!((all.deviation - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        let interval = all.interval().expect("eight samples");
        // 2.36462 · 2.13809 / √8
        assert!((interval.high - 5.0 - 1.787_49).abs() < 1e-4, "{interval:?}");
        assert_eq!(Summary::of(&[3.0]).interval(), None);
        assert_eq!(Summary::of(&[]).n, 0);
    }

    #[test]
    fn ratios_hold_the_truth_as_often_as_they_say() {
        let mut random = Rng::with_seed(42);
        let mut held = 0;
        let trials = 2000;
        for _ in 0..trials {
            let mut draw = |mean: f64| -> Vec<f64> {
                (0..5).map(|_| mean * (0.05 * normal(&mut random)).exp()).collect()
            };
            let (a, b) = (draw(200.0), draw(300.0));
            let interval = ratio(&a, &b).expect("positive").expect("five each");
            held += u32::from(interval.contains(1.5));
        }
        let share = f64::from(held) / f64::from(trials);
        assert!((0.935..=0.975).contains(&share), "{share} of the intervals hold 1.5");
    }

    #[test]
    fn a_ratio_without_spread_has_no_interval() {
        assert_eq!(ratio(&[2.0], &[4.0, 4.0]), Some(Err(2.0)));
        assert_eq!(ratio(&[0.0], &[4.0]), None);
        assert_eq!(ratio(&[], &[4.0]), None);
        let same = ratio(&[2.0, 2.0], &[4.0, 4.0]).expect("positive").expect("two each");
        assert_eq!((same.low, same.high), (2.0, 2.0));
    }
}
