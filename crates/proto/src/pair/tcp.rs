//! One direction of a connection as TCP carries it over a long link, in virtual time: a bottleneck
//! with a queue, loss, and a sender with a congestion window (slow start, then CUBIC as in RFC
//! 9438).
//!
//! Delayed acknowledgements, the receiver's window, and loss or delay of acknowledgements are not
//! modelled: on a long link they cost nothing.
//!
//! Invariants:
//! - `unacked <= delivered <= unsent`, and `buffer` begins at `unacked`;
//! - bytes are delivered in order and once: nothing behind a hole is delivered until the hole is
//!   filled;
//! - the link never reorders, so a segment sent three before an acknowledged one is lost (as with
//!   RFC 8985).

use super::Rng;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Payload of a segment: Ethernet, with time stamps.
const MSS: u64 = 1448;
/// Bytes on the wire beside the payload: Ethernet, IP and TCP.
const OVERHEAD: u64 = 90;
/// Segments of the initial window (RFC 6928).
const INITIAL_WINDOW: u64 = 10;
/// Acknowledged segments behind a hole that make it a loss (RFC 5681).
const REORDERING: u64 = 3;
/// The part of the window that is kept after a loss (RFC 9438, β).
const BETA: f64 = 0.7;
/// Growth of the window in segments per cubic second (RFC 9438, C).
const CUBIC: f64 = 0.4;
/// Least time after which the sender looks after a lost tail.
const PROBE_MIN: Duration = Duration::from_millis(10);

/// A long link as TCP sees it.
#[derive(Clone, Copy, Debug)]
pub struct TcpLink {
    /// Bytes per second on the wire.
    pub rate: u64,
    /// Segments lost of a million, at random.
    pub loss_ppm: u32,
    /// Bytes that the bottleneck queues before it drops.
    pub queue: u64,
}

/// A transmission that is not acknowledged.
#[derive(Debug)]
struct Segment {
    /// Number of this transmission, in the order of sending.
    number: u64,
    seq: u64,
    len: u64,
    sent: Duration,
}

/// A segment that will arrive.
#[derive(Debug)]
struct Arrival {
    at: Duration,
    number: u64,
    seq: u64,
    len: u64,
}

/// Acknowledgement of a transmission.
#[derive(Debug)]
struct Ack {
    at: Duration,
    number: u64,
    len: u64,
    delivered: u64,
}

/// The sender's window (RFC 9438), in bytes.
#[derive(Debug)]
struct Window {
    size: f64,
    slow_start_below: f64,
    /// Size before the last loss, and when that was.
    before_loss: f64,
    lost_at: Duration,
    /// Losses of transmissions before this one are of the same event.
    recover: u64,
}

/// A cube root by Newton's way: the same on every machine.
fn cube_root(of: f64) -> f64 {
    let mut root = of.max(1.0);
    for _ in 0..64 {
        root -= (root * root * root - of) / (3.0 * root * root);
    }
    root
}

impl Window {
    fn grow(&mut self, now: Duration, rtt: Duration, acked: u64) {
        if self.size < self.slow_start_below {
            self.size += acked as f64;
            return;
        }
        let mss = MSS as f64;
        let plateau = cube_root(self.before_loss * (1.0 - BETA) / mss / CUBIC);
        let t = (now - self.lost_at + rtt).as_secs_f64() - plateau;
        let goal = (self.before_loss + CUBIC * t * t * t * mss).min(1.5 * self.size);
        // At least as fast as Reno would.
        let reno = mss * acked as f64 / self.size;
        let cubic = (goal - self.size).max(0.0) * acked as f64 / self.size;
        self.size += cubic.max(reno);
    }

    fn shrink(&mut self, now: Duration, sent: u64) {
        self.before_loss = self.size;
        self.size = (self.size * BETA).max(2.0 * MSS as f64);
        self.slow_start_below = self.size;
        (self.lost_at, self.recover) = (now, sent);
    }
}

/// One direction of a simulated connection.
#[derive(Debug)]
pub(super) struct Flow {
    link: TcpLink,
    delay: Duration,
    rng: Rng,
    /// From `unacked` on.
    buffer: VecDeque<u8>,
    unacked: u64,
    unsent: u64,
    window: Window,
    sent: u64,
    in_flight: VecDeque<Segment>,
    /// Bytes of these.
    flying: u64,
    arrivals: VecDeque<Arrival>,
    /// Lost, to be retransmitted: sequence number and length.
    lost: VecDeque<(u64, u64)>,
    /// When the bottleneck will have sent all that it has.
    idle_at: Duration,
    acks: VecDeque<Ack>,
    /// At the receiver: everything before is delivered.
    delivered: u64,
    /// Bytes received behind a hole: first byte and end.
    early: BTreeMap<u64, u64>,
}

impl Flow {
    pub(super) fn new(link: TcpLink, delay: Duration, seed: u64) -> Flow {
        let size = (INITIAL_WINDOW * MSS) as f64;
        Flow {
            link,
            delay,
            rng: Rng::new(seed),
            buffer: VecDeque::new(),
            unacked: 0,
            unsent: 0,
            window: Window {
                size,
                slow_start_below: f64::MAX,
                before_loss: size,
                lost_at: Duration::ZERO,
                recover: 0,
            },
            sent: 0,
            in_flight: VecDeque::new(),
            flying: 0,
            arrivals: VecDeque::new(),
            lost: VecDeque::new(),
            idle_at: Duration::ZERO,
            acks: VecDeque::new(),
            delivered: 0,
            early: BTreeMap::new(),
        }
    }

    /// Whether the socket takes more: twice the window, as a kernel that
    /// tunes its buffers does.
    pub(super) fn has_room(&self) -> bool {
        (self.buffer.len() as f64) < 2.0 * self.window.size
    }

    /// Takes bytes from the application.
    pub(super) fn push(&mut self, now: Duration, bytes: &[u8]) {
        self.buffer.extend(bytes);
        self.transmit(now);
    }

    /// When something will happen.
    pub(super) fn next(&self) -> Option<Duration> {
        let (arrival, ack) = (self.arrivals.front().map(|a| a.at), self.acks.front().map(|a| a.at));
        [arrival, ack, self.probe_at()].into_iter().flatten().min()
    }

    /// When nothing is under way whose acknowledgement could reveal a lost tail, the sender probes
    /// for it (RFC 8985, tail loss probe).
    fn probe_at(&self) -> Option<Duration> {
        let under_way = !self.acks.is_empty() || !self.arrivals.is_empty();
        let last = self.in_flight.back().filter(|_| !under_way)?;
        Some(last.sent + (4 * self.delay).max(PROBE_MIN))
    }

    /// Advances to `now`; returns the bytes delivered.
    pub(super) fn advance(&mut self, now: Duration) -> Vec<u8> {
        let before = (self.delivered - self.unacked) as usize;
        if self.probe_at().is_some_and(|at| at <= now) {
            self.declare_lost(now, u64::MAX);
        }
        while self.arrivals.front().is_some_and(|a| a.at <= now) {
            let Some(arrival) = self.arrivals.pop_front() else { break };
            self.receive(&arrival);
        }
        let after = (self.delivered - self.unacked) as usize;
        let (a, b) = self.buffer.as_slices();
        let part = |s: &[u8], start: usize| {
            let range = before.saturating_sub(start).min(s.len())..after.saturating_sub(start).min(s.len());
            s[range].to_vec()
        };
        let bytes = [part(a, 0), part(b, a.len())].concat();
        while self.acks.front().is_some_and(|a| a.at <= now) {
            let Some(ack) = self.acks.pop_front() else { break };
            self.acknowledge(&ack);
        }
        self.transmit(now);
        bytes
    }

    fn receive(&mut self, arrival: &Arrival) {
        let Arrival { at, number, seq, len } = *arrival;
        if seq + len > self.delivered {
            self.early.insert(seq, seq + len);
        }
        while let Some(first) = self.early.first_entry().filter(|e| *e.key() <= self.delivered) {
            self.delivered = self.delivered.max(first.remove());
        }
        self.acks.push_back(Ack { at: at + self.delay, number, len, delivered: self.delivered });
    }

    fn acknowledge(&mut self, ack: &Ack) {
        if let Ok(at) = self.in_flight.binary_search_by_key(&ack.number, |s| s.number)
            && let Some(segment) = self.in_flight.remove(at)
        {
            self.flying -= segment.len;
            self.window.grow(ack.at, ack.at - segment.sent, ack.len);
        }
        self.declare_lost(ack.at, ack.number.saturating_sub(REORDERING));
        if ack.delivered > self.unacked {
            self.buffer.drain(..(ack.delivered - self.unacked) as usize);
            self.unacked = ack.delivered;
        }
    }

    /// Declares lost all that was sent before transmission `before` and has not been acknowledged.
    fn declare_lost(&mut self, now: Duration, before: u64) {
        while self.in_flight.front().is_some_and(|s| s.number < before) {
            let Some(segment) = self.in_flight.pop_front() else { break };
            if segment.number >= self.window.recover {
                self.window.shrink(now, self.sent);
            }
            self.flying -= segment.len;
            self.lost.push_back((segment.seq, segment.len));
        }
    }

    /// Sends as much as the window allows, retransmissions first.
    fn transmit(&mut self, now: Duration) {
        while (self.flying + MSS) as f64 <= self.window.size {
            let fresh = (self.unacked + self.buffer.len() as u64 - self.unsent).min(MSS);
            let (seq, len) = match self.lost.pop_front() {
                Some(again) => again,
                None if fresh > 0 => (self.unsent, fresh),
                None => return,
            };
            self.unsent = self.unsent.max(seq + len);
            let number = self.sent;
            self.in_flight.push_back(Segment { number, seq, len, sent: now });
            self.sent += 1;
            self.flying += len;
            if let Some(at) = self.arrival(now, len) {
                self.arrivals.push_back(Arrival { at, number, seq, len });
            }
        }
    }

    /// When a segment arrives that is sent now, if it does.
    fn arrival(&mut self, now: Duration, len: u64) -> Option<Duration> {
        let wire = len + OVERHEAD;
        let nanos = |bytes: u64| Duration::from_nanos(bytes * 1_000_000_000 / self.link.rate);
        if self.idle_at.saturating_sub(now) + nanos(wire) > nanos(self.link.queue) {
            return None;
        }
        self.idle_at = self.idle_at.max(now) + nanos(wire);
        let lost = self.rng.below(1_000_000) < self.link.loss_ppm as usize;
        (!lost).then_some(self.idle_at + self.delay)
    }
}
