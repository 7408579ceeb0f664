//! Keep Alive: is the host still there?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// KAS: timeouts count in units of 1 s (in units of 100 ms).
pub(super) const KAS: u16 = 10;

const GRANULARITY_MS: u64 = KAS as u64 * 100;

/// How long a discovery controller without Keep Alive stays without a
/// command: the fixed activity timeout of NVMe Base 2.1, two minutes.
const DISCOVERY_ACTIVITY: Duration = Duration::from_secs(120);

/// Marks that a command was taken; shared by the threads of all queues.
#[derive(Clone, Debug, Default)]
pub struct Traffic(Arc<AtomicBool>);

impl Traffic {
    /// A command was taken. Costs a load if one was marked already.
    #[inline]
    pub fn mark(&self) {
        // Only the flag itself is communicated, so no ordering is needed.
        if !self.0.load(Ordering::Relaxed) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// The host was silent for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired {
    /// The timeout that ran out.
    pub after: Duration,
}

#[derive(Debug)]
pub(super) struct KeepAlive {
    timeout: Option<Duration>,
    deadline: Option<Instant>,
    traffic: Traffic,
    discovery: bool,
    /// As the host said it, rounded up; 0 for none.
    kato_ms: u32,
}

impl KeepAlive {
    pub(super) fn new(kato_ms: u32, discovery: bool, now: Instant) -> KeepAlive {
        let mut keep_alive =
            KeepAlive { timeout: None, deadline: None, traffic: Traffic::default(), discovery, kato_ms: 0 };
        keep_alive.set(kato_ms, now);
        keep_alive
    }

    /// A new timeout in milliseconds; 0 for none.
    pub(super) fn set(&mut self, kato_ms: u32, now: Instant) {
        //= NVMe Base 2.1, Keep Alive: the timeout is rounded up to the granularity that KAS says
        let rounded = u64::from(kato_ms).next_multiple_of(GRANULARITY_MS);
        self.kato_ms = u32::try_from(rounded).unwrap_or(u32::MAX);
        self.timeout = match kato_ms {
            //= NVMe Base 2.1, Discovery controllers: without Keep Alive a fixed activity timeout of two minutes holds
            0 if self.discovery => Some(DISCOVERY_ACTIVITY),
            0 => None,
            _ => Some(Duration::from_millis(rounded)),
        };
        self.restart(now);
    }

    pub(super) fn kato_ms(&self) -> u32 {
        self.kato_ms
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout.unwrap_or_default()
    }

    /// A Keep Alive command, or the begin of an interval.
    pub(super) fn restart(&mut self, now: Instant) {
        self.traffic.take();
        self.deadline = self.timeout.map(|timeout| now + timeout);
    }

    pub(super) fn note_traffic(&self) {
        self.traffic.mark();
    }

    pub(super) fn traffic(&self) -> Traffic {
        self.traffic.clone()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether the host was silent for a whole interval.
    pub(super) fn check(&mut self, now: Instant) -> Option<Expired> {
        let (timeout, deadline) = (self.timeout?, self.deadline?);
        if now < deadline {
            return None;
        }
        //= NVMe Base 2.1, Traffic Based Keep Alive: a command taken during the interval begins a new one
        if self.traffic.take() {
            self.deadline = Some(now + timeout);
            return None;
        }
        self.deadline = None;
        Some(Expired { after: timeout })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    //= test: NVMe Base 2.1, Keep Alive
    #[test]
    fn silence_expires_once() {
        let start = Instant::now();
        let mut ka = KeepAlive::new(4500, false, start);
        assert_eq!((ka.kato_ms(), ka.timeout()), (5000, seconds(5)));
        assert_eq!(ka.deadline(), Some(start + seconds(5)));
        assert_eq!(ka.check(start + seconds(4)), None);
        ka.restart(start + seconds(4));
        assert_eq!(ka.check(start + seconds(8)), None);
        assert_eq!(ka.check(start + seconds(9)), Some(Expired { after: seconds(5) }));
        assert_eq!((ka.deadline(), ka.check(start + seconds(99))), (None, None));
    }

    //= test: NVMe Base 2.1, Traffic Based Keep Alive
    #[test]
    fn traffic_begins_a_new_interval() {
        let start = Instant::now();
        let mut ka = KeepAlive::new(5000, false, start);
        let io = ka.traffic();
        io.mark();
        io.mark();
        assert_eq!(ka.check(start + seconds(5)), None);
        assert_eq!(ka.deadline(), Some(start + seconds(10)));
        assert!(ka.check(start + seconds(10)).is_some());
    }

    //= test: NVMe Base 2.1, Discovery controllers
    #[test]
    fn no_timeout_but_for_discovery() {
        let start = Instant::now();
        assert_eq!(KeepAlive::new(0, false, start).deadline(), None);
        assert_eq!(KeepAlive::new(0, true, start).deadline(), Some(start + seconds(120)));
        assert_eq!(KeepAlive::new(u32::MAX, false, start).kato_ms(), u32::MAX);
    }
}
