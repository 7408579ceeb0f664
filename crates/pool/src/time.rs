//! Times for people.

use longhaul_engine::UtcTime;
use std::time::Duration;

/// Seconds since 1970 by the wall clock.
pub fn wall_time() -> u64 {
    longhaul_engine::wall_time().as_secs()
}

/// Seconds since 1970 at the end of a lifetime that begins now; `None` if it never ends.
pub fn end_of(lifetime: Duration) -> Option<u64> {
    wall_time().checked_add(lifetime.as_secs())
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
}
