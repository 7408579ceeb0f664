//! Units with prefixes, and where the marks of an axis stand.

/// How numbers of a unit are written: with one prefix for all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    divisor: f64,
    unit: String,
}

const BINARY: [(f64, &str); 5] =
    [(1.0, ""), (1024.0, "Ki"), (1_048_576.0, "Mi"), (1_073_741_824.0, "Gi"), (1_099_511_627_776.0, "Ti")];
const DECIMAL: [(f64, &str); 5] = [(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T")];
const SMALL: [(f64, &str); 4] = [(1e-9, "n"), (1e-6, "µ"), (1e-3, "m"), (1.0, "")];

impl Scale {
    /// For numbers of `unit` up to `most`. Sizes are binary, network rates are
    /// decimal bits, and times go down to nanoseconds.
    pub fn of(unit: &str, most: f64) -> Scale {
        let (steps, name): (&[(f64, &str)], _) = match unit {
            "B/s" | "B" => (&BINARY, unit),
            "bit/s" => (&DECIMAL, "b/s"),
            "IOPS" => (&DECIMAL, " IOPS"),
            "s" | "s/file" | "s/GiB" => (&SMALL, unit),
            other => (&[(1.0, "")], other),
        };
        let most = most.abs();
        let fits = steps.iter().rev().find(|(divisor, _)| most >= *divisor);
        // Values below the smallest prefix take the smallest; zero takes none.
        let one = steps.iter().find(|(divisor, _)| *divisor == 1.0);
        let chosen = if most > 0.0 { fits.or(steps.first()) } else { one };
        let (divisor, prefix) = chosen.copied().unwrap_or((1.0, ""));
        Scale { divisor, unit: format!("{prefix}{name}").trim().to_owned() }
    }

    /// The unit with its prefix.
    pub fn unit(&self) -> &str {
        &self.unit
    }

    /// The number without its unit, to three digits.
    pub fn number(&self, value: f64) -> String {
        let scaled = value / self.divisor;
        match scaled.abs() {
            v if !v.is_finite() => "∞".into(),
            v if v >= 99.95 || (v - v.round()).abs() <= 1e-9 * v => format!("{scaled:.0}"),
            v if v >= 9.995 => format!("{scaled:.1}"),
            v if v >= 0.0995 => format!("{scaled:.2}"),
            _ => format!("{scaled:.3}"),
        }
    }

    /// The number with its unit.
    pub fn with_unit(&self, value: f64) -> String {
        format!("{} {}", self.number(value), self.unit).trim().to_owned()
    }

    /// A round number not below `most`, and how far its marks are apart: 4 to
    /// 6 of them, of 1, 2, 2.5 or 5 times a power of ten in this scale.
    pub(super) fn marks(&self, most: f64, count: f64) -> (f64, f64) {
        let wanted = (most / self.divisor).max(f64::MIN_POSITIVE) / count;
        let power = 10f64.powf(wanted.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|s| s * power >= wanted * 0.999_999);
        let step = step.unwrap_or(10.0) * power * self.divisor;
        ((most / step - 1e-9).ceil().max(1.0) * step, step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_fit_the_number() {
        let said = |unit, value| Scale::of(unit, value).with_unit(value);
        assert_eq!(said("B/s", 1.5 * 1_048_576.0), "1.50 MiB/s");
        assert_eq!(said("bit/s", 9.41e9), "9.41 Gb/s");
        assert_eq!(said("s", 0.0665), "66.5 ms");
        assert_eq!(said("s", 25e-6), "25 µs");
        assert_eq!(said("IOPS", 123_456.0), "123 k IOPS");
        assert_eq!(said("s", 0.0), "0 s");
        assert_eq!(said("MB/s", 72.0), "72 MB/s");
        assert_eq!(said("", 1.25), "1.25");
        assert_eq!(Scale::of("s/file", 0.034).unit(), "ms/file");
    }

    #[test]
    fn marks_are_round_and_reach_the_top() {
        for most in [0.003, 1.0, 7.3, 99.0, 100.0, 12_345.6, 9.41e9] {
            let (top, step) = Scale::of("bit/s", most).marks(most, 5.0);
            let count = top / step;
            assert!(top >= most * 0.999 && (count - count.round()).abs() < 1e-6, "{most}: {top} by {step}");
            assert!((2.0..=6.0).contains(&count), "{most}: {count} marks");
        }
        assert_eq!(Scale::of("B/s", 3e6).marks(3e6, 5.0), (3.0 * 1_048_576.0, 1_048_576.0));
    }
}
