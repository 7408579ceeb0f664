//! Dates of the Gregorian calendar, for people and for the documents that print them.

const DAY: u64 = 24 * 60 * 60;
/// Days from 0000-03-01 to 1970-01-01.
const EPOCH: u64 = 719_468;
/// Days of 400 years.
const ERA: u64 = 146_097;

/// A point in time in UTC, without leap seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UtcTime {
    /// The year, from 1970.
    pub year: u64,
    /// The month, from 1 for January to 12.
    pub month: u8,
    /// The day of the month, from 1.
    pub day: u8,
    /// The day of the week, from 0 for Sunday to 6.
    pub weekday: u8,
    /// The hour, 0 to 23.
    pub hour: u8,
    /// The minute, 0 to 59.
    pub minute: u8,
    /// The second, 0 to 59.
    pub second: u8,
}

impl UtcTime {
    /// The date of a time in seconds since 1970 (POSIX.1, "Seconds Since the Epoch").
    pub fn of_epoch_seconds(seconds: u64) -> UtcTime {
        // In years that begin in March, so that a leap day ends a year.
        let days = seconds / DAY + EPOCH;
        let (era, day) = (days / ERA, days % ERA);
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
        UtcTime {
            year: era * 400 + year + later,
            month: month as u8,
            day: day as u8,
            // 1970 began on a Thursday.
            weekday: ((seconds / DAY + 4) % 7) as u8,
            hour: (seconds % DAY / 3600) as u8,
            minute: (seconds % 3600 / 60) as u8,
            second: (seconds % 60) as u8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, date, time, weekday) in [
            (0, (1970, 1, 1), (0, 0, 0), 4),
            (951_782_399, (2000, 2, 28), (23, 59, 59), 1),
            (951_782_400, (2000, 2, 29), (0, 0, 0), 2),
            (1_764_110_400, (2025, 11, 25), (22, 40, 0), 2),
            (1_795_219_202, (2026, 11, 21), (0, 0, 2), 6),
            (4_107_542_400, (2100, 3, 1), (0, 0, 0), 1),
        ] {
            let found = UtcTime::of_epoch_seconds(seconds);
            assert_eq!((found.year, found.month, found.day), date, "{seconds}");
            assert_eq!((found.hour, found.minute, found.second), time, "{seconds}");
            assert_eq!(found.weekday, weekday, "{seconds}");
        }
    }
}
