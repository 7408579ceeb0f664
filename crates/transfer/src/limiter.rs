//! What keeps the connections of a sending side from being faster, from what the
//! kernel counts of them.
//!
//! A loss-based congestion control (CUBIC, Reno) fills a path's queue before it
//! slows down, which shows as a rise of the round trip; one that models the path
//! (BBR) needs no queue, and is not slowed down by losses at random. So a connection
//! of the first kind that meets no queue is limited by something other than the path.
//!
//! Invariants:
//! - what raises the round trip for a moment is a burst, and no queue of the path;
//! - the rate at which a queue was seen counts for [`REMEMBERED`]: between two overflows
//!   of a short queue the path is nearly full without one.

use crate::streams::Limiter;
use longhaul_engine::net::TcpInfo;
use std::collections::VecDeque;
use std::time::Duration;

/// Share of the time with something to send, in which a socket buffer was full.
const HELD_UP: f64 = 0.2;
/// The path queues if the round trip is above this multiple of the least one and this
/// time. Shorter queues than that are none that a router has.
const QUEUED: f64 = 1.05;
const QUEUED_MIN: Duration = Duration::from_micros(150);
/// Looks in a row in which it has to. A window that goes out at once raises the round
/// trip for one or two.
const STANDING: u32 = 4;
/// Below this round trip, TCP repairs a loss sooner than it costs anything.
const LOSSY_MIN: Duration = Duration::from_millis(3);
/// Round trips for which what was seen counts, and the least time.
const WINDOW: u32 = 10;
const WINDOW_MIN: Duration = Duration::from_secs(1);
/// Time for which the rate is remembered at which the path was seen to queue, and the
/// share of it from which on the path is full.
const REMEMBERED: Duration = Duration::from_secs(60);
const FULL: f64 = 0.85;

/// What all connections of a path have counted up to a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TcpCounters {
    /// From any fixed moment.
    pub(crate) at: Duration,
    /// Bytes that were acknowledged.
    pub(crate) acknowledged: u64,
    /// Bytes that were sent, and of these the ones that were sent again.
    pub(crate) sent: u64,
    pub(crate) resent: u64,
    /// Time with something to send, and of that with a full socket buffer, here or at
    /// the other side; of all connections added up.
    pub(crate) busy: Duration,
    pub(crate) held_up: Duration,
    /// Smoothed round trip of the busiest connection, and the least of all.
    pub(crate) rtt: Duration,
    pub(crate) min_rtt: Duration,
}

impl TcpCounters {
    /// Adds up connections.
    pub(crate) fn of(at: Duration, all: impl IntoIterator<Item = TcpInfo>) -> TcpCounters {
        let mut counted = TcpCounters { at, ..TcpCounters::default() };
        let mut busiest = 0;
        for info in all {
            counted.acknowledged += info.acknowledged;
            counted.sent += info.sent.unwrap_or_default();
            counted.resent += info.resent.unwrap_or_default();
            counted.busy += info.busy.unwrap_or_default();
            counted.held_up += info.peer_window_limited.unwrap_or_default();
            counted.held_up += info.send_buffer_limited.unwrap_or_default();
            let least = info.min_rtt.unwrap_or(info.rtt);
            counted.min_rtt = if counted.min_rtt.is_zero() { least } else { counted.min_rtt.min(least) };
            if info.acknowledged >= busiest {
                (busiest, counted.rtt) = (info.acknowledged, info.rtt);
            }
        }
        counted
    }
}

/// What the last rounds have shown.
#[derive(Debug, Default)]
pub(crate) struct LimiterDetector {
    /// The congestion control models the path.
    models: bool,
    looks: VecDeque<TcpCounters>,
    /// Looks in a row with a raised round trip.
    standing: u32,
    /// The most bytes a second at which the path was seen to queue, and when it last was.
    ceiling: Option<(f64, Duration)>,
}

impl LimiterDetector {
    /// For connections of this congestion control, by the kernel's name.
    pub(crate) fn new(congestion: &str) -> LimiterDetector {
        LimiterDetector { models: congestion.starts_with("bbr"), ..LimiterDetector::default() }
    }

    /// Takes what was counted up to now: what limits, and the share of the bytes sent
    /// since the last time that were sent again.
    pub(crate) fn look(&mut self, now: TcpCounters) -> (Limiter, f64) {
        let window = (WINDOW * now.min_rtt).max(WINDOW_MIN);
        while self.looks.get(1).is_some_and(|second| now.at.saturating_sub(second.at) >= window) {
            self.looks.pop_front();
        }
        let last = self.looks.back().copied().unwrap_or_default();
        let first = self.looks.front().copied().unwrap_or(now);
        self.looks.push_back(now);
        let sent = now.sent.saturating_sub(last.sent);
        let resent = now.resent.saturating_sub(last.resent) as f64 / sent.max(1) as f64;
        (self.limiter(first, now), resent)
    }

    fn limiter(&mut self, first: TcpCounters, now: TcpCounters) -> Limiter {
        let busy = now.busy.saturating_sub(first.busy).as_secs_f64();
        let held_up = now.held_up.saturating_sub(first.held_up).as_secs_f64();
        if busy > 0.0 && held_up >= HELD_UP * busy {
            return Limiter::Buffer;
        }
        if self.models {
            return Limiter::Path;
        }
        let elapsed = now.at.saturating_sub(first.at).as_secs_f64();
        let rate = now.acknowledged.saturating_sub(first.acknowledged) as f64 / elapsed.max(1e-6);
        self.standing = if is_queued(now.rtt, now.min_rtt) { self.standing + 1 } else { 0 };
        self.ceiling = self.ceiling.filter(|(_, at)| now.at.saturating_sub(*at) < REMEMBERED);
        if self.standing >= STANDING {
            let most = self.ceiling.map_or(rate, |(ceiling, _)| ceiling.max(rate));
            self.ceiling = Some((most, now.at));
            return Limiter::Path;
        }
        if self.ceiling.is_some_and(|(ceiling, _)| rate >= FULL * ceiling) {
            return Limiter::Path;
        }
        match now.resent > first.resent && now.min_rtt >= LOSSY_MIN {
            true => Limiter::Loss,
            false => Limiter::Window,
        }
    }
}

fn is_queued(rtt: Duration, least: Duration) -> bool {
    rtt > least.mul_f64(QUEUED) + QUEUED_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Looks each 200 ms at 45 ms and 100 MB/s, changed by `change`; the last verdict.
    fn verdict(congestion: &str, change: impl Fn(u32, &mut TcpCounters)) -> Limiter {
        let mut signs = LimiterDetector::new(congestion);
        let mut last = Limiter::Path;
        for n in 1..=40u32 {
            let bytes = u64::from(n) * 20_000_000;
            let mut counted = TcpCounters {
                at: 200 * n * MS,
                acknowledged: bytes,
                sent: bytes,
                busy: 200 * n * MS,
                rtt: 45 * MS,
                min_rtt: 45 * MS,
                ..TcpCounters::default()
            };
            change(n, &mut counted);
            last = signs.look(counted).0;
        }
        last
    }

    #[test]
    fn what_limits_connections_is_told_apart() {
        assert_eq!(verdict("cubic", |_, _| {}), Limiter::Window);
        assert_eq!(verdict("cubic", |n, look| look.resent = u64::from(n) * 9000), Limiter::Loss);
        assert_eq!(verdict("cubic", |n, look| look.held_up = 100 * n * MS), Limiter::Buffer);
        assert_eq!(verdict("cubic", |_, look| look.rtt = 60 * MS), Limiter::Path);
        // Losses do not slow such a connection down.
        assert_eq!(verdict("bbr", |n, look| look.resent = u64::from(n) * 9000), Limiter::Path);
        assert_eq!(verdict("bbr", |n, look| look.held_up = 100 * n * MS), Limiter::Buffer);
    }

    #[test]
    fn losses_of_the_own_queue_are_no_loss_at_random() {
        // A queue of a tenth of a product overflows every five seconds, and is empty in between.
        let own = |n: u32, look: &mut TcpCounters| {
            look.resent = u64::from(n / 25) * 400_000;
            if n % 25 >= 20 {
                look.rtt = 49 * MS;
            }
        };
        assert_eq!(verdict("cubic", own), Limiter::Path);
        // A burst now and then is no queue.
        let bursts = |n: u32, look: &mut TcpCounters| {
            look.resent = u64::from(n) * 9000;
            look.rtt = if n % 4 < 2 { 49 * MS } else { 45 * MS };
        };
        assert_eq!(verdict("cubic", bursts), Limiter::Loss);
        // A path that has become far slower than where it queued is judged anew.
        let slower = |n: u32, look: &mut TcpCounters| {
            own(n, look);
            if n >= 25 {
                look.rtt = 45 * MS;
                look.acknowledged = 500_000_000 + u64::from(n - 25) * 10_000_000;
                look.resent = u64::from(n) * 9000;
            }
        };
        assert_eq!(verdict("cubic", slower), Limiter::Loss);
    }

    #[test]
    fn the_share_of_what_is_sent_again_is_of_the_last_look() {
        let mut signs = LimiterDetector::new("cubic");
        let look = |n: u32, resent| TcpCounters {
            at: 200 * n * MS,
            sent: 1000 * u64::from(n),
            resent,
            ..TcpCounters::default()
        };
        signs.look(look(1, 0));
        assert_eq!(signs.look(look(2, 100)).1, 0.1);
        assert_eq!(signs.look(look(3, 100)).1, 0.0);
    }
}
