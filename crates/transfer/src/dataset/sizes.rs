//! Quantiles of a log-normal distribution, the same on every machine (the
//! transcendental functions are those of `libm`, not of the platform).

/// Sizes in bytes: log-normal, and none above `cap`.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogNormal {
    pub(super) median: f64,
    pub(super) sigma: f64,
    pub(super) cap: u64,
}

impl LogNormal {
    /// The size of file `index` of `count`: that at quantile (index + ½)/count.
    pub(super) fn quantile(&self, index: u64, count: u64) -> u64 {
        let p = (index as f64 + 0.5) / count as f64;
        let size = self.median * libm::exp(self.sigma * normal_quantile(p));
        // A float is cut at the ends of the integer's range.
        (size as u64).min(self.cap)
    }

    fn total(&self, count: u64) -> u64 {
        (0..count).map(|i| self.quantile(i, count)).sum()
    }

    /// The largest number of files, up to `limit`, that make up `bytes` bytes
    /// at most. More files are always more bytes but for rounding.
    pub(super) fn count_within(&self, bytes: u64, limit: u64) -> u64 {
        let mut above = 1;
        while above < limit && self.total(above) <= bytes {
            above = (above * 2).min(limit);
        }
        let (mut fits, mut above) = (above / 2, above + u64::from(above == limit));
        while fits + 1 < above {
            let middle = fits.midpoint(above);
            if self.total(middle) <= bytes { fits = middle } else { above = middle }
        }
        fits
    }
}

/// The quantile function of the normal distribution by P. J. Acklam's
/// rational approximation; relative error below 1.2e-9.
fn normal_quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969683028665376e1,
        2.209460984245205e2,
        -2.759285104469687e2,
        1.383_577_518_672_69e2,
        -3.066479806614716e1,
        2.506628277459239,
    ];
    const B: [f64; 5] = [
        -5.447609879822406e1,
        1.615858368580409e2,
        -1.556989798598866e2,
        6.680131188771972e1,
        -1.328068155288572e1,
    ];
    const C: [f64; 6] = [
        -7.784894002430293e-3,
        -3.223964580411365e-1,
        -2.400758277161838,
        -2.549732539343734,
        4.374664141464968,
        2.938163982698783,
    ];
    const D: [f64; 4] = [7.784695709041462e-3, 3.224671290700398e-1, 2.445134137142996, 3.754408661907416];
    /// Below and above its mirror the tails have their own approximation.
    const LOW: f64 = 0.02425;

    let horner = |coefficients: &[f64], x: f64| coefficients.iter().fold(0.0, |sum, c| sum * x + c);
    let tail = |p: f64| {
        let q = (-2.0 * libm::log(p)).sqrt();
        horner(&C, q) / (horner(&D, q) * q + 1.0)
    };
    if p < LOW {
        tail(p)
    } else if p > 1.0 - LOW {
        -tail(1.0 - p)
    } else {
        let q = p - 0.5;
        let r = q * q;
        horner(&A, r) * q / (horner(&B, r) * r + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_normal_quantiles_are_those_of_the_tables() {
        let table = [
            (0.5, 0.0),
            (0.841_344_746, 1.0),
            (0.975, 1.959_963_985),
            (0.99, 2.326_347_874),
            (0.999_9, 3.719_016_485),
        ];
        for (p, z) in table {
            assert!((normal_quantile(p) - z).abs() < 1e-7, "{p}: {}", normal_quantile(p));
            assert!((normal_quantile(1.0 - p) + z).abs() < 1e-7, "{p} mirrored");
        }
    }

    #[test]
    fn the_count_is_the_largest_that_fits() {
        let sizes = LogNormal { median: 1e6, sigma: 2.38, cap: 16_000_000_000 };
        for bytes in [0, 999_999, 1_000_000, 50_000_000, 1 << 30, 10 << 30] {
            let n = sizes.count_within(bytes, 1_000_000);
            assert!(sizes.total(n) <= bytes, "{n} files within {bytes}");
            assert!(sizes.total(n + 1) > bytes, "{} files above {bytes}", n + 1);
        }
        assert_eq!(sizes.count_within(u64::MAX, 100), 100);
    }
}
