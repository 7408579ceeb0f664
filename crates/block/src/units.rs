//! Sizes, times and rates as people write them.
//!
//! A single letter is binary, as in fio (`128k` is 131072); a unit that ends
//! in `iB` is binary; one that ends in `B` alone is decimal (`1GB` is 10^9).
//! Letter case does not matter. Fractions are exact or refused.

use std::time::Duration;

/// Why a number with a unit was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// No digits where a number has to begin.
    #[error("'{text}' does not begin with a number (expected {expected})")]
    NoNumber {
        /// The text to parse.
        text: String,
        /// A valid example.
        expected: &'static str,
    },
    /// An unknown unit.
    #[error("'{unit}' in '{text}' is not a unit (expected {expected})")]
    UnknownUnit {
        /// The text to parse.
        text: String,
        /// The part at fault.
        unit: String,
        /// The valid units.
        expected: &'static str,
    },
    /// Does not fit 64 bits.
    #[error("'{0}' is too large")]
    TooLarge(String),
    /// A fraction finer than the smallest unit.
    #[error("'{text}' is not a whole number of {of}")]
    Fraction {
        /// The text to parse.
        text: String,
        /// The smallest unit.
        of: &'static str,
    },
}

const SIZES: &str =
    "bytes, k, M, G, T, P or KiB, MiB, GiB, TiB, PiB (binary), or kB, MB, GB, TB, PB (decimal)";
const TIMES: &str = "ns, us, ms, s, min, h or d; seconds without a unit";
const RATES: &str = "bit, kbit, Mbit, Gbit, Tbit or b/s, kb/s, Mb/s, Gb/s, Tb/s (decimal)";

/// A size in bytes: `4096`, `4KiB`, `128k` (= KiB), `1GB` (decimal), `1.5GiB`.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    parse(text, SIZES, "bytes", |unit| {
        let (prefix, base) = match unit {
            "" | "b" => ("", 1),
            _ if unit.len() == 3 && unit.ends_with("ib") => (&unit[..1], 1024),
            _ if unit.len() == 2 && unit.ends_with('b') => (&unit[..1], 1000),
            _ if unit.len() == 2 && unit.ends_with('i') => (&unit[..1], 1024),
            _ => (unit, 1024),
        };
        power(prefix, base)
    })
}

/// A time: `15ms`, `1.5s`, `100us`, `2min`; seconds without a unit, as in fio.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    const S: u64 = 1_000_000_000;
    let ns = parse(text, TIMES, "nanoseconds", |unit| {
        Some(match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "" | "s" | "sec" => S,
            "m" | "min" => 60 * S,
            "h" => 3600 * S,
            "d" => 86_400 * S,
            _ => return None,
        })
    })?;
    Ok(Duration::from_nanos(ns))
}

/// A network rate in bits per second, always decimal: `1Gbit`, `2.5Gb/s`, `800M`.
pub fn parse_rate(text: &str) -> Result<u64, UnitError> {
    parse(text, RATES, "bits per second", |unit| {
        let prefix = ["bit/s", "bps", "b/s", "bit"].iter().find_map(|end| unit.strip_suffix(end));
        power(prefix.unwrap_or(unit), 1000)
    })
}

/// A share of one: `1%`, `0.01`, between 0 and 1.
pub fn parse_share(text: &str) -> Option<f64> {
    let (number, divisor) = match text.trim().strip_suffix('%') {
        Some(number) => (number, 100.0),
        None => (text.trim(), 1.0),
    };
    let share = number.trim().parse::<f64>().ok()? / divisor;
    (0.0..=1.0).contains(&share).then_some(share)
}

/// A size for people, binary: `1 GiB`, `1.5 MiB`, `512 B`.
pub fn format_size(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"])
}

/// A network rate for people, decimal: `9.41 Gb/s`.
pub fn format_rate(bits_per_second: f64) -> String {
    scaled(bits_per_second, 1000.0, &["b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s", "Pb/s"])
}

fn scaled(mut value: f64, base: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value >= base && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    let digits = match value {
        _ if value.fract() == 0.0 => 0,
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    let number = format!("{value:.digits$}");
    let number = if digits > 0 { number.trim_end_matches('0').trim_end_matches('.') } else { &number };
    format!("{number} {}", units[unit])
}

fn power(prefix: &str, base: u64) -> Option<u64> {
    let exponent = match prefix {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        _ => return None,
    };
    Some(base.pow(exponent))
}

/// `number[.fraction] unit` times what `unit_of` says, in exact arithmetic.
fn parse(
    text: &str,
    expected: &'static str,
    of: &'static str,
    unit_of: impl Fn(&str) -> Option<u64>,
) -> Result<u64, UnitError> {
    let too_large = || UnitError::TooLarge(text.into());
    let no_number = || UnitError::NoNumber { text: text.into(), expected };
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = (&trimmed[..end], trimmed[end..].trim().to_lowercase());
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || number.ends_with('.') {
        return Err(no_number());
    }
    let scale = unit_of(&unit).ok_or_else(|| UnitError::UnknownUnit {
        text: text.into(),
        unit: trimmed[end..].trim().into(),
        expected,
    })?;
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let mut value = whole.checked_mul(scale).ok_or_else(too_large)?;
    let fraction = fraction.trim_end_matches('0');
    if !fraction.is_empty() {
        // 18 digits are finer than any unit divided by any that exists.
        let not_whole = || UnitError::Fraction { text: text.into(), of };
        let parts: u128 = fraction.parse().map_err(|_| not_whole())?;
        let divisor = 10u128.checked_pow(fraction.len() as u32).ok_or_else(not_whole)?;
        let product = parts.checked_mul(u128::from(scale)).ok_or_else(not_whole)?;
        if !product.is_multiple_of(divisor) {
            return Err(not_whole());
        }
        let part = u64::try_from(product / divisor).map_err(|_| too_large())?;
        value = value.checked_add(part).ok_or_else(too_large)?;
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact() {
        let cases: &[(&str, u64)] = &[
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("4KiB", 4096),
            ("4kib", 4096),
            ("128k", 131_072),
            ("128K", 131_072),
            ("128Ki", 131_072),
            ("1kB", 1_000),
            ("1MB", 1_000_000),
            ("1m", 1 << 20),
            ("1GB", 1_000_000_000),
            ("1G", 1 << 30),
            ("1GiB", 1 << 30),
            ("1 GiB", 1 << 30),
            ("1.5GiB", 3 << 29),
            ("0.5k", 512),
            ("1.50GB", 1_500_000_000),
            ("3TiB", 3 << 40),
            ("16PiB", 16 << 50),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), Ok(*bytes), "{text}");
        }
    }

    #[test]
    fn times_are_exact() {
        let cases: &[(&str, Duration)] = &[
            ("15ms", Duration::from_millis(15)),
            ("1.5s", Duration::from_millis(1500)),
            ("100us", Duration::from_micros(100)),
            ("7µs", Duration::from_micros(7)),
            ("250ns", Duration::from_nanos(250)),
            ("30", Duration::from_secs(30)),
            ("2min", Duration::from_secs(120)),
            ("2m", Duration::from_secs(120)),
            ("1h", Duration::from_secs(3600)),
            ("0.25ms", Duration::from_micros(250)),
        ];
        for (text, time) in cases {
            assert_eq!(parse_duration(text), Ok(*time), "{text}");
        }
    }

    #[test]
    fn rates_are_decimal_bits() {
        let cases: &[(&str, u64)] = &[
            ("1Gbit", 1_000_000_000),
            ("2.5Gb/s", 2_500_000_000),
            ("800M", 800_000_000),
            ("10kbit/s", 10_000),
            ("9bps", 9),
            ("1bit", 1),
        ];
        for (text, rate) in cases {
            assert_eq!(parse_rate(text), Ok(*rate), "{text}");
        }
    }

    #[test]
    fn faults_are_named() {
        for text in ["", "k", ".5k", "1.", "1.2.3k", "-1", "x4"] {
            assert!(matches!(parse_size(text), Err(UnitError::NoNumber { .. })), "{text}");
        }
        for text in ["1x", "1KiBs", "1iB", "4kk", "1 2", "1Q"] {
            assert!(matches!(parse_size(text), Err(UnitError::UnknownUnit { .. })), "{text}");
        }
        for text in ["18446744073709551616", "16384PiB", "99999999999999999999999"] {
            assert!(matches!(parse_size(text), Err(UnitError::TooLarge(_))), "{text}");
        }
        for text in ["0.5", "1.3k", "0.0000000000000000000000000000000000000000001k"] {
            assert!(matches!(parse_size(text), Err(UnitError::Fraction { .. })), "{text}");
        }
        assert!(matches!(parse_duration("1 fortnight"), Err(UnitError::UnknownUnit { .. })));
        assert_eq!(
            parse_size("7 apples").map_err(|e| e.to_string()),
            Err(format!("'apples' in '7 apples' is not a unit (expected {SIZES})"))
        );
    }

    #[test]
    fn shares_are_within_one() {
        assert_eq!(parse_share("1%"), Some(0.01));
        assert_eq!(parse_share("0.25"), Some(0.25));
        assert_eq!(parse_share("100%"), Some(1.0));
        for text in ["101%", "-0.1", "2", "x", "", "NaN"] {
            assert_eq!(parse_share(text), None, "{text}");
        }
    }

    #[test]
    fn people_read_units() {
        assert_eq!(format_size(0), "0 B");
        assert_eq!(format_size(512), "512 B");
        assert_eq!(format_size(1536), "1.5 KiB");
        assert_eq!(format_size(1 << 30), "1 GiB");
        assert_eq!(format_size(100_000_000), "95.4 MiB");
        assert_eq!(format_rate(9_414_000_000.0), "9.41 Gb/s");
        assert_eq!(format_rate(100e9), "100 Gb/s");
    }
}
