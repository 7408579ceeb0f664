//! What a link is like, and how that changes while it is in use.

use crate::Error;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Longest delay of one direction: beyond it TCP itself gives up.
pub const MAX_DELAY: Duration = Duration::from_secs(30);

/// Lowest rate in bits per second: below it a packet takes over a minute.
pub const MIN_RATE: u64 = 1_000;

/// Highest rate in bits per second: above it no machine of today keeps up.
pub const MAX_RATE: u64 = 1_000_000_000_000;

/// The smallest queue unless it is given, in bytes: four of the largest
/// packets that TCP hands over at once, which a real sender would spread.
pub const MIN_QUEUE: u64 = 256 << 10;

/// How a router before the link bounds what waits for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Queue {
    /// One bandwidth-delay product, at least [`MIN_QUEUE`].
    #[default]
    Auto,
    /// So many bytes.
    Bytes(u64),
    /// As many bytes as the link carries in this time.
    Time(Duration),
    /// So many bandwidth-delay products.
    Products(f64),
}

/// One direction of a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DirectionConditions {
    /// From the end of a packet's transmission to its arrival.
    pub delay: Duration,
    /// The delay wanders within this much around its value, without reordering.
    pub jitter: Duration,
    /// IP bytes on the wire, in bits per second; no limit if `None`.
    pub rate: Option<u64>,
    /// What waits while the wire is busy; the rest is dropped at its tail.
    pub queue: Queue,
    /// Share of packets on the wire that are lost, independently of each other.
    pub loss: f64,
    /// Share of packets that are held back, so that later ones overtake them.
    pub reorder: f64,
    /// How long they are held back.
    pub reorder_by: Duration,
    /// Share of packets that arrive a second time.
    pub duplicate: f64,
    /// How much later the second one arrives.
    pub duplicate_after: Duration,
    /// Packets of more IP bytes than this vanish without a word, as behind a
    /// tunnel whose ICMP is filtered.
    pub black_hole: Option<u32>,
    /// Nothing passes, and packets on their way are lost.
    pub cut: bool,
}

impl Default for DirectionConditions {
    fn default() -> DirectionConditions {
        DirectionConditions {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            rate: None,
            queue: Queue::Auto,
            loss: 0.0,
            reorder: 0.0,
            reorder_by: Duration::from_millis(1),
            duplicate: 0.0,
            duplicate_after: Duration::from_millis(1),
            black_hole: None,
            cut: false,
        }
    }
}

impl DirectionConditions {
    /// Bytes of the queue, where there is one. A bandwidth-delay product counts
    /// twice the delay of this direction as the round trip.
    pub fn queue_bytes(&self) -> Option<u64> {
        let rate = self.rate?;
        let in_time = |time: Duration| {
            let bytes = u128::from(rate) * time.as_nanos() / 8_000_000_000;
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        let product = in_time(2 * self.delay);
        Some(match self.queue {
            Queue::Auto => product.max(MIN_QUEUE),
            Queue::Bytes(bytes) => bytes,
            Queue::Time(time) => in_time(time),
            Queue::Products(n) => (product as f64 * n) as u64,
        })
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = |what: &str| Err(Error::Invalid(what.to_owned()));
        for delay in [self.delay, self.jitter, self.reorder_by, self.duplicate_after] {
            if delay > MAX_DELAY {
                return wrong("a delay is at most 30 s each way");
            }
        }
        for share in [self.loss, self.reorder, self.duplicate] {
            if !(0.0..=1.0).contains(&share) {
                return wrong("a share of packets is between 0 and 100 %");
            }
        }
        if self.rate.is_some_and(|rate| !(MIN_RATE..=MAX_RATE).contains(&rate)) {
            return wrong("a rate is between 1 kb/s and 1 Tb/s");
        }
        match self.queue {
            Queue::Products(n) if !(0.0..=1e6).contains(&n) => {
                wrong("a queue is at most a million bandwidth-delay products")
            }
            _ => Ok(()),
        }
    }
}

/// Which of both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkDirection {
    /// From the client to the server.
    There,
    /// From the server to the client.
    Back,
}

/// Both directions of a link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// From the client to the server.
    pub there: DirectionConditions,
    /// From the server to the client.
    pub back: DirectionConditions,
}

impl Conditions {
    /// The same both ways: half of the round-trip time each, and this rate in
    /// bits per second.
    pub fn new(rtt: Duration, rate: Option<u64>) -> Conditions {
        let way = DirectionConditions { delay: rtt / 2, rate, ..DirectionConditions::default() };
        Conditions { there: way.clone(), back: way }
    }

    /// The delays of both directions.
    pub fn rtt(&self) -> Duration {
        self.there.delay + self.back.delay
    }

    /// These conditions with a change.
    ///
    /// # Errors
    /// What results makes no sense; it says why.
    pub fn with(&self, change: &Change) -> Result<Conditions, Error> {
        let mut next = self.clone();
        if change.direction != Some(LinkDirection::Back) {
            change.apply(&mut next.there);
        }
        if change.direction != Some(LinkDirection::There) {
            change.apply(&mut next.back);
        }
        next.check()?;
        Ok(next)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.there.check()?;
        self.back.check()
    }
}

/// A change of conditions: a field that is `None` stays unchanged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// One direction only.
    pub direction: Option<LinkDirection>,
    /// Round-trip time; a direction has half of it.
    pub rtt: Option<Duration>,
    /// As [`DirectionConditions::jitter`].
    pub jitter: Option<Duration>,
    /// As [`DirectionConditions::rate`]; zero takes the limit away.
    pub rate: Option<u64>,
    /// As [`DirectionConditions::queue`].
    pub queue: Option<Queue>,
    /// As [`DirectionConditions::loss`].
    pub loss: Option<f64>,
    /// As [`DirectionConditions::reorder`].
    pub reorder: Option<f64>,
    /// As [`DirectionConditions::reorder_by`].
    pub reorder_by: Option<Duration>,
    /// As [`DirectionConditions::duplicate`].
    pub duplicate: Option<f64>,
    /// As [`DirectionConditions::duplicate_after`].
    pub duplicate_after: Option<Duration>,
    /// As [`DirectionConditions::black_hole`]; zero lets all sizes pass.
    pub black_hole: Option<u32>,
    /// As [`DirectionConditions::cut`].
    pub cut: Option<bool>,
}

impl Change {
    /// Cuts the link.
    pub fn cut() -> Change {
        Change { cut: Some(true), ..Change::default() }
    }

    /// Lets it carry again.
    pub fn restore() -> Change {
        Change { cut: Some(false), ..Change::default() }
    }

    /// Another round-trip time.
    pub fn rtt(rtt: Duration) -> Change {
        Change { rtt: Some(rtt), ..Change::default() }
    }

    /// The same for one direction only.
    #[must_use]
    pub fn only(self, direction: LinkDirection) -> Change {
        Change { direction: Some(direction), ..self }
    }

    fn apply(&self, way: &mut DirectionConditions) {
        fn set<T: Copy>(to: &mut T, from: Option<T>) {
            if let Some(value) = from {
                *to = value;
            }
        }
        set(&mut way.delay, self.rtt.map(|rtt| rtt / 2));
        set(&mut way.jitter, self.jitter);
        set(&mut way.rate, self.rate.map(|rate| (rate > 0).then_some(rate)));
        set(&mut way.queue, self.queue);
        set(&mut way.loss, self.loss);
        set(&mut way.reorder, self.reorder);
        set(&mut way.reorder_by, self.reorder_by);
        set(&mut way.duplicate, self.duplicate);
        set(&mut way.duplicate_after, self.duplicate_after);
        set(&mut way.black_hole, self.black_hole.map(|size| (size > 0).then_some(size)));
        set(&mut way.cut, self.cut);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_change_keeps_the_conditions_that_it_does_not_name() {
        let before = Conditions::new(20 * MS, Some(1_000_000_000));
        assert_eq!(before.with(&Change::default()).unwrap(), before);
        let after =
            before.with(&Change { loss: Some(0.5), ..Change::cut() }.only(LinkDirection::Back)).unwrap();
        assert_eq!(after.there, before.there);
        assert_eq!(after.back, DirectionConditions { cut: true, loss: 0.5, ..before.back.clone() });
        let after = after.with(&Change { rate: Some(0), ..Change::rtt(30 * MS) }).unwrap();
        assert_eq!((after.there.rate, after.back.delay, after.back.cut), (None, 15 * MS, true));
        assert_eq!(after.rtt(), 30 * MS);
    }

    #[test]
    fn invalid_conditions_are_refused() {
        let wrong = |change: Change| Conditions::default().with(&change).unwrap_err().to_string();
        assert!(wrong(Change { loss: Some(1.1), ..Change::default() }).contains("100 %"));
        assert!(wrong(Change { loss: Some(f64::NAN), ..Change::default() }).contains("100 %"));
        assert!(wrong(Change { rate: Some(10), ..Change::default() }).contains("1 kb/s"));
        assert!(wrong(Change::rtt(Duration::from_secs(100))).contains("30 s"));
        let queue = Some(Queue::Products(-1.0));
        assert!(wrong(Change { queue, ..Change::default() }).contains("bandwidth-delay"));
    }

    #[test]
    fn a_queue_follows_rate_and_delay() {
        let mut way = DirectionConditions {
            delay: 50 * MS,
            rate: Some(1_000_000_000),
            ..DirectionConditions::default()
        };
        assert_eq!(way.queue_bytes(), Some(12_500_000));
        way.queue = Queue::Products(0.1);
        assert_eq!(way.queue_bytes(), Some(1_250_000));
        way.queue = Queue::Time(MS);
        assert_eq!(way.queue_bytes(), Some(125_000));
        way.queue = Queue::Bytes(7);
        assert_eq!(way.queue_bytes(), Some(7));
        way.queue = Queue::Auto;
        way.delay = Duration::ZERO;
        assert_eq!(way.queue_bytes(), Some(MIN_QUEUE));
        way.rate = None;
        assert_eq!(way.queue_bytes(), None);
    }
}
