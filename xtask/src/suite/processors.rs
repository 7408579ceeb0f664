//! The share of the machine's processors that is idle, or would be without programs of lower priority;
//! and the time that they spent on programs.

use std::time::{Duration, Instant};

/// Measures from one look to the next.
#[derive(Debug, Default)]
pub(crate) struct Idleness {
    last: Option<(Instant, Times)>,
    /// In tests: the share without a look.
    #[cfg(test)]
    share: Option<f64>,
}

/// Of all processors together since the machine started, in clock ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    idle: u64,
    all: u64,
}

impl Idleness {
    /// The share that was idle since the last look that was answered, 0 to 1; `None` before `least` has
    /// passed since then, and where the system does not say.
    pub(crate) fn over(&mut self, least: Duration) -> Option<f64> {
        #[cfg(test)]
        if self.share.is_some() {
            return self.share;
        }
        let now = Instant::now();
        if self.last.is_some_and(|(then, _)| now - then < least) {
            return None;
        }
        let times = Times::parse(&std::fs::read_to_string("/proc/stat").ok()?)?;
        let (_, before) = self.last.replace((now, times))?;
        times.idle_since(before)
    }

    #[cfg(test)]
    pub(crate) fn always(share: f64) -> Idleness {
        Idleness { last: None, share: Some(share) }
    }
}

impl Times {
    /// Reads the first line of `/proc/stat` (proc_stat(5)): user, nice, system, idle, iowait, irq, softirq,
    /// steal. A processor that waits for I/O is idle, and so is one that a program of lower priority has:
    /// it gives way.
    fn parse(stat: &str) -> Option<Times> {
        let ticks = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
        let ticks: Vec<u64> = ticks.map(|ticks| ticks.parse().ok()).collect::<Option<_>>()?;
        (ticks.len() == 8).then(|| Times { idle: ticks[1] + ticks[3] + ticks[4], all: ticks.iter().sum() })
    }

    fn idle_since(self, before: Times) -> Option<f64> {
        // iowait may decrease (proc_stat(5)).
        let (idle, all) = (self.idle.saturating_sub(before.idle), self.all.saturating_sub(before.all));
        (all > 0).then(|| (idle as f64 / all as f64).min(1.0))
    }
}

/// Length of a clock tick, the same on all architectures (`USER_HZ`, proc_pid_stat(5)).
const TICK: Duration = Duration::from_millis(10);

/// Processor time of all processes that this one has started and waited for, and of those that they
/// waited for; `None` where the system does not say.
pub(crate) fn spent() -> Option<Duration> {
    children(&std::fs::read_to_string("/proc/self/stat").ok()?)
}

/// `cutime` and `cstime` of `/proc/PID/stat`: the fields 16 and 17. The second one is a name, which may have
/// blanks.
fn children(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let ticks: Vec<u32> = fields.split(' ').skip(13).take(2).map_while(|field| field.parse().ok()).collect();
    (ticks.len() == 2).then(|| TICK * ticks.iter().sum::<u32>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_children_is_that_of_user_and_system() {
        let stat = "7 (a ) b) R 1 7 7 0 -1 4194304 1 2 3 4 500 600 120 31 20 0 1 0 9 9";
        assert_eq!(children(stat), Some(Duration::from_millis(1510)));
        assert_eq!(children("7 (a) R 1"), None);
        assert!(spent().is_some());
    }

    #[test]
    fn waiting_for_io_and_what_gives_way_is_idle_and_guests_do_not_count_twice() {
        let before = Times::parse("cpu  10 0 10 100 20 0 0 0 5 0\ncpu0 1").unwrap();
        assert_eq!(before, Times { idle: 120, all: 140 });
        let after = Times::parse("cpu  30 10 30 120 50 0 0 0 25 0\n").unwrap();
        assert_eq!(after.idle_since(before), Some(0.6));
        assert_eq!(before.idle_since(before), None, "no tick passed");
        assert_eq!(Times::parse("cpu  1 2 3"), None);
        assert_eq!(Times::parse(""), None);
    }

    #[test]
    fn a_look_is_answered_once_its_time_has_passed() {
        let mut idleness = Idleness::default();
        assert_eq!(idleness.over(Duration::ZERO), None, "there is nothing to compare with");
        assert_eq!(idleness.over(Duration::from_secs(3600)), None, "too early");
        assert!(idleness.last.is_some());
    }
}
