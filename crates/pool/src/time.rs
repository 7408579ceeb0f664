//! Times for people.

use std::time::Duration;

const DAY: u64 = 24 * 60 * 60;
/// Days from 0000-03-01 to 1970-01-01.
const EPOCH: u64 = 719_468;
/// Days of 400 years.
const ERA: u64 = 146_097;

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
    // Of the Gregorian calendar, with years that begin in March, so that a leap day ends a year.
    let days = seconds / DAY + EPOCH;
    let (era, day) = (days / ERA, days % ERA);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let (hour, minute) = (seconds % DAY / 3600, seconds % 3600 / 60);
    format!("{:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC", era * 400 + year + later)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_764_110_400, "2025-11-25 22:40 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(format_time(seconds), text);
        }
        assert_eq!(end_of(Duration::MAX), None);
    }
}
