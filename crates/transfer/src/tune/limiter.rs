//! Detects what limits the connections of a sender, from the kernel's `TCP_INFO`.
//!
//! A loss-based congestion control (CUBIC, Reno) fills the path's queue before it slows
//! down, which raises the round trip; a model-based one (BBR) needs no queue, and random
//! losses do not slow it down. So a loss-based connection without a queue is limited by
//! something other than the path.
//!
//! Invariants:
//! - a momentary rise of the round trip counts as a burst, not as a queue;
//! - the rate at which the path queued is remembered for [`REMEMBERED`]: between two
//!   overflows of a short queue the path is nearly full without one.

use super::connections::Limiter;
use longhaul_engine::net::TcpInfo;
use std::collections::VecDeque;
use std::time::Duration;

/// Share of the busy time with a full socket buffer from which on buffers are the limit.
const HELD_UP: f64 = 0.2;
/// The path queues if the round trip exceeds this multiple of the minimum plus this time;
/// router queues are longer than that.
const QUEUED: f64 = 1.05;
const QUEUED_MIN: Duration = Duration::from_micros(150);
/// Consecutive samples with a queue: a window sent in one burst raises the round trip for
/// one or two.
const STANDING: u32 = 4;
/// Below this round trip, loss recovery costs next to nothing.
const LOSSY_MIN: Duration = Duration::from_millis(3);
/// Length of the measuring window in round trips, and its minimum.
const WINDOW: u32 = 10;
const WINDOW_MIN: Duration = Duration::from_secs(1);
/// How long the rate at which the path queued is remembered, and the share of it from
/// which on the path counts as full.
const REMEMBERED: Duration = Duration::from_secs(60);
const FULL: f64 = 0.85;

/// Counters of all connections of a path at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TcpCounters {
    /// The moment, from any fixed origin.
    pub(crate) at: Duration,
    /// Bytes that the peer's TCP has acknowledged.
    pub(crate) acknowledged: u64,
    /// Bytes sent, retransmissions included, and bytes retransmitted.
    pub(crate) sent: u64,
    pub(crate) retransmitted: u64,
    /// Time with data to send, and of that with a full send buffer here or a closed window
    /// of the peer; added up over all connections.
    pub(crate) busy: Duration,
    pub(crate) held_up: Duration,
    /// Smoothed round trip of the busiest connection, and the minimum of all.
    pub(crate) rtt: Duration,
    pub(crate) min_rtt: Duration,
}

impl TcpCounters {
    /// Adds up the counters of connections.
    pub(crate) fn of(at: Duration, all: impl IntoIterator<Item = TcpInfo>) -> TcpCounters {
        let mut counted = TcpCounters { at, ..TcpCounters::default() };
        let mut busiest = 0;
        for info in all {
            counted.acknowledged += info.acknowledged;
            counted.sent += info.sent.unwrap_or_default();
            counted.retransmitted += info.resent.unwrap_or_default();
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

/// Detects the limiter from successive samples.
#[derive(Debug, Default)]
pub(crate) struct LimiterDetector {
    /// Whether the congestion control is model-based.
    models: bool,
    samples: VecDeque<TcpCounters>,
    /// Consecutive samples with a queue.
    standing: u32,
    /// The highest rate at which the path queued, in bytes a second, and the last time.
    ceiling: Option<(f64, Duration)>,
}

impl LimiterDetector {
    /// For connections with this congestion control, by the kernel's name.
    pub(crate) fn new(congestion: &str) -> LimiterDetector {
        LimiterDetector { models: congestion.starts_with("bbr"), ..LimiterDetector::default() }
    }

    /// Takes a sample; returns the limiter, and the share of retransmissions in the bytes
    /// sent since the last sample.
    pub(crate) fn sample(&mut self, now: TcpCounters) -> (Limiter, f64) {
        let window = (WINDOW * now.min_rtt).max(WINDOW_MIN);
        while self.samples.get(1).is_some_and(|second| now.at.saturating_sub(second.at) >= window) {
            self.samples.pop_front();
        }
        let last = self.samples.back().copied().unwrap_or_default();
        let first = self.samples.front().copied().unwrap_or(now);
        self.samples.push_back(now);
        let sent = now.sent.saturating_sub(last.sent);
        let retransmitted = now.retransmitted.saturating_sub(last.retransmitted) as f64 / sent.max(1) as f64;
        (self.limiter(first, now), retransmitted)
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
        match now.retransmitted > first.retransmitted && now.min_rtt >= LOSSY_MIN {
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

    /// Samples each 200 ms at 45 ms and 100 MB/s, modified by `change`; the last limiter.
    fn verdict(congestion: &str, change: impl Fn(u32, &mut TcpCounters)) -> Limiter {
        let mut detector = LimiterDetector::new(congestion);
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
            last = detector.sample(counted).0;
        }
        last
    }

    #[test]
    fn limiters_are_distinguished() {
        assert_eq!(verdict("cubic", |_, _| {}), Limiter::Window);
        assert_eq!(verdict("cubic", |n, look| look.retransmitted = u64::from(n) * 9000), Limiter::Loss);
        assert_eq!(verdict("cubic", |n, look| look.held_up = 100 * n * MS), Limiter::Buffer);
        assert_eq!(verdict("cubic", |_, look| look.rtt = 60 * MS), Limiter::Path);
        // Random losses do not slow BBR down.
        assert_eq!(verdict("bbr", |n, look| look.retransmitted = u64::from(n) * 9000), Limiter::Path);
        assert_eq!(verdict("bbr", |n, look| look.held_up = 100 * n * MS), Limiter::Buffer);
    }

    #[test]
    fn losses_in_the_own_queue_are_not_random_losses() {
        // A queue of a tenth of the bandwidth-delay product overflows every 5 s, and is empty in between.
        let own = |n: u32, look: &mut TcpCounters| {
            look.retransmitted = u64::from(n / 25) * 400_000;
            if n % 25 >= 20 {
                look.rtt = 49 * MS;
            }
        };
        assert_eq!(verdict("cubic", own), Limiter::Path);
        // A burst now and then is no queue.
        let bursts = |n: u32, look: &mut TcpCounters| {
            look.retransmitted = u64::from(n) * 9000;
            look.rtt = if n % 4 < 2 { 49 * MS } else { 45 * MS };
        };
        assert_eq!(verdict("cubic", bursts), Limiter::Loss);
        // A path that has become far slower than where it queued is judged again.
        let slower = |n: u32, look: &mut TcpCounters| {
            own(n, look);
            if n >= 25 {
                look.rtt = 45 * MS;
                look.acknowledged = 500_000_000 + u64::from(n - 25) * 10_000_000;
                look.retransmitted = u64::from(n) * 9000;
            }
        };
        assert_eq!(verdict("cubic", slower), Limiter::Loss);
    }

    #[test]
    fn the_share_of_retransmissions_is_that_since_the_last_sample() {
        let mut detector = LimiterDetector::new("cubic");
        let look = |n: u32, retransmitted| TcpCounters {
            at: 200 * n * MS,
            sent: 1000 * u64::from(n),
            retransmitted,
            ..TcpCounters::default()
        };
        detector.sample(look(1, 0));
        assert_eq!(detector.sample(look(2, 100)).1, 0.1);
        assert_eq!(detector.sample(look(3, 100)).1, 0.0);
    }
}
