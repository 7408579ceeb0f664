//! Times for people.

use crate::error::{Error, Result};
use longhaul_engine::UtcTime;
use std::time::Duration;

/// Seconds since 1970 by the wall clock.
pub fn wall_time() -> u64 {
    longhaul_engine::wall_time().as_secs()
}

/// Seconds since 1970 at the end of a lifetime that begins now, rounded up, so that it is never shorter;
/// `None` if it never ends.
pub fn end_of(lifetime: Duration) -> Option<u64> {
    let end = longhaul_engine::wall_time().checked_add(lifetime)?;
    end.as_secs().checked_add(u64::from(end.subsec_nanos() > 0))
}

/// Whether a thing can be made that may be removed after `lifetime`.
///
/// # Errors
/// [`Error::Shape`] for one that would end at once, or never.
pub(crate) fn check_lifetime(lifetime: Option<Duration>) -> Result<()> {
    let why = match lifetime {
        Some(Duration::ZERO) => "its lifetime is 0: give a longer one",
        Some(lifetime) if end_of(lifetime).is_none() => {
            "its lifetime has no end: give a shorter one, or none"
        }
        _ => return Ok(()),
    };
    Err(Error::Shape(why.to_owned()))
}

/// A time in seconds since 1970 as `2026-11-25 22:40 UTC`.
pub fn format_time(seconds: u64) -> String {
    let UtcTime { year, month, day, hour, minute, .. } = UtcTime::of_epoch_seconds(seconds);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_for_people() {
        assert_eq!(format_time(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(format_time(1_764_110_400), "2025-11-25 22:40 UTC");
        assert_eq!(end_of(Duration::MAX), None);
    }

    #[test]
    fn a_lifetime_is_never_shorter_than_asked() {
        let lifetime = Duration::from_secs(1);
        let earliest = longhaul_engine::wall_time() + lifetime;
        let end = end_of(lifetime).map(Duration::from_secs).expect("it ends");
        assert!(end >= earliest, "{end:?} {earliest:?}");
    }
}
