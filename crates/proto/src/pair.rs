//! Both ends of a connection joined in memory, with virtual time.
//!
//! Invariants: bytes arrive in order, once, and not before their time; time
//! advances only when nothing is left to do at the present moment.

#[cfg(test)]
mod distance;
mod host;
#[cfg(test)]
mod random;
mod rng;
mod target;
mod tcp;
#[cfg(test)]
mod tests;

pub use host::{BLOCK, CompletedCommand, HostEnd};
pub use rng::Rng;
pub use target::{Answers, Pending, TargetEnd};
pub use tcp::TcpLink;

use longhaul_wire::digest::crc32c;
use std::collections::VecDeque;
use std::time::Duration;

use crate::host::{HostConfig, HostQueue};
use crate::target::{QueueLimits, TargetConfig, TargetQueue};
use crate::transport::{Batch, Piece};
use tcp::Flow;

/// A batch as the bytes that go over the wire, and the slots whose last piece
/// is among them. `memory` is the payload memory of a slot.
pub fn flatten<'a>(batch: &mut Batch, memory: impl Fn(u16) -> &'a Vec<u8>) -> (Vec<u8>, Vec<u16>) {
    let part = |slot, offset: u32, len: u32| {
        if len == 0 { &[] } else { &memory(slot)[offset as usize..][..len as usize] }
    };
    batch.fill_digests(|slot, offset, len| crc32c(part(slot, offset, len)));
    let (mut wire, mut done) = (Vec::with_capacity(batch.wire_len() as usize), Vec::new());
    for piece in &batch.pieces {
        match *piece {
            Piece::Bytes { start, len } => wire.extend(&batch.bytes[start as usize..][..len as usize]),
            Piece::Payload { slot, offset, len, last } => {
                wire.extend(part(slot, offset, len));
                done.extend(last.then_some(slot));
            }
        }
    }
    (wire, done)
}

/// How a stream is cut up.
#[derive(Clone, Copy, Debug)]
pub enum Segments {
    /// Not at all: bytes sent at once arrive at once.
    Whole,
    /// Into pieces of this many bytes.
    Every(usize),
    /// Into pieces of random sizes up to this many bytes.
    UpTo(usize),
}

/// Everything about a [`Pair`].
#[derive(Clone, Copy, Debug)]
pub struct PairConfig {
    /// The host's wishes.
    pub host: HostConfig,
    /// The controller's offers.
    pub target: TargetConfig,
    /// What Connect would settle.
    pub limits: QueueLimits,
    /// How the controller answers.
    pub answers: Answers,
    /// Capacity of the device in bytes.
    pub device: usize,
    /// One-way delay of either direction.
    pub delay: Duration,
    /// Bytes per second, each way; or no limit.
    pub bandwidth: Option<u64>,
    /// TCP with all that it costs at a distance, in place of `bandwidth`.
    pub tcp: Option<TcpLink>,
    /// How the streams are cut up.
    pub segments: Segments,
    /// For everything that is random.
    pub seed: u64,
}

impl Default for PairConfig {
    fn default() -> PairConfig {
        let host = HostConfig { in_capsule: 1 << 20, ..HostConfig::default() };
        let limits = QueueLimits { entries: host.entries, in_capsule: 1 << 20, flow_control: false };
        PairConfig {
            host,
            target: TargetConfig::default(),
            limits,
            answers: Answers::AtOnce,
            device: 4 << 20,
            delay: Duration::from_millis(10),
            bandwidth: None,
            tcp: None,
            segments: Segments::Whole,
            seed: 1,
        }
    }
}

/// One direction of the connection.
#[derive(Debug, Default)]
struct Link {
    in_flight: VecDeque<(Duration, Vec<u8>)>,
    /// When the sender's interface has sent all it was given.
    idle_at: Duration,
    /// Everything that was ever sent, for tests to look at.
    sent: Vec<u8>,
    /// A bit to flip, counted from the start of the connection.
    flip: Option<u64>,
    /// Carries the bytes, if it is TCP; then none are remembered in `sent`.
    flow: Option<Flow>,
}

impl Link {
    /// Flips the bit that is to be flipped, if it is among these bytes.
    fn damage(&mut self, bytes: &mut [u8]) {
        let Some(bit) = self.flip else { return };
        let at = (bit / 8).checked_sub(self.sent.len() as u64);
        if let Some(byte) = at.and_then(|at| bytes.get_mut(at as usize)) {
            *byte ^= 1 << (bit % 8);
            self.flip = None;
        }
    }

    /// Whether it takes more from the sender.
    fn has_room(&self) -> bool {
        self.flow.as_ref().is_none_or(Flow::has_room)
    }

    fn push(&mut self, config: &PairConfig, now: Duration, mut bytes: Vec<u8>) {
        if let Some(flow) = &mut self.flow {
            return flow.push(now, &bytes);
        }
        let took = config
            .bandwidth
            .map_or(Duration::ZERO, |rate| Duration::from_secs_f64(bytes.len() as f64 / rate as f64));
        self.idle_at = self.idle_at.max(now) + took;
        self.damage(&mut bytes);
        self.sent.extend(&bytes);
        self.in_flight.push_back((self.idle_at + config.delay, bytes));
    }

    /// When something happens on it.
    fn next(&self) -> Option<Duration> {
        match &self.flow {
            Some(flow) => flow.next(),
            None => self.in_flight.front().map(|f| f.0),
        }
    }

    fn arrived(&mut self, now: Duration) -> Option<Vec<u8>> {
        if let Some(flow) = &mut self.flow {
            return Some(flow.advance(now)).filter(|bytes| !bytes.is_empty());
        }
        self.in_flight.front().filter(|f| f.0 <= now)?;
        self.in_flight.pop_front().map(|f| f.1)
    }
}

/// A host and a target, and the link between them.
#[derive(Debug)]
pub struct Pair {
    /// The end that submits commands.
    pub host: HostEnd,
    /// The end that executes them.
    pub target: TargetEnd,
    config: PairConfig,
    now: Duration,
    to_target: Link,
    to_host: Link,
    rng: Rng,
}

impl Pair {
    /// A connection on which nothing has been sent.
    pub fn new(config: PairConfig) -> Pair {
        let (host, target) = (HostQueue::new(config.host), TargetQueue::new(config.target));
        let link =
            |seed| Link { flow: config.tcp.map(|tcp| Flow::new(tcp, config.delay, seed)), ..Link::default() };
        Pair {
            host: HostEnd::new(host, config.seed),
            target: TargetEnd::new(target, config.limits, config.answers, config.device, config.seed),
            config,
            now: Duration::ZERO,
            to_target: link(config.seed),
            to_host: link(config.seed + 1),
            rng: Rng::new(config.seed),
        }
    }

    /// A connection that is set up.
    pub fn connected(config: PairConfig) -> Pair {
        let mut pair = Pair::new(config);
        pair.run();
        assert!(pair.host.ready, "set up: {:?} {:?}", pair.host.closed, pair.target.closed);
        pair
    }

    /// The present moment.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Runs until nothing is in flight, and returns how many round trips of the
    /// link that took (rounded; bandwidth counts too, if it is limited).
    pub fn run(&mut self) -> u32 {
        let start = self.now;
        while self.step() {}
        let rtt = 2 * self.config.delay;
        if rtt.is_zero() { 0 } else { (self.now - start).div_duration_f64(rtt).round() as u32 }
    }

    /// Advances to the next moment at which something happens; `false` if nothing will.
    pub fn step(&mut self) -> bool {
        self.send();
        let Some(next) = [self.to_target.next(), self.to_host.next()].into_iter().flatten().min() else {
            return false;
        };
        self.now = next;
        self.deliver();
        true
    }

    /// Flips the bit that is sent `bits` bits from now, in one direction.
    pub fn flip_bit(&mut self, to_target: bool, bits: u64) {
        let link = if to_target { &mut self.to_target } else { &mut self.to_host };
        link.flip = Some(8 * link.sent.len() as u64 + bits);
    }

    /// Everything that the host has sent so far.
    pub fn sent_by_host(&self) -> &[u8] {
        &self.to_target.sent
    }

    /// Everything that the target has sent so far.
    pub fn sent_by_target(&self) -> &[u8] {
        &self.to_host.sent
    }

    fn send(&mut self) {
        loop {
            let a = if self.to_target.has_room() { self.host.transmit() } else { Vec::new() };
            let b = if self.to_host.has_room() { self.target.transmit() } else { Vec::new() };
            if a.is_empty() && b.is_empty() {
                return;
            }
            for (link, bytes) in [(&mut self.to_target, a), (&mut self.to_host, b)] {
                if !bytes.is_empty() {
                    link.push(&self.config, self.now, bytes);
                }
            }
        }
    }

    fn deliver(&mut self) {
        while let Some(bytes) = self.to_target.arrived(self.now) {
            for segment in cut(&bytes, self.config.segments, &mut self.rng) {
                self.target.receive(segment);
            }
        }
        while let Some(bytes) = self.to_host.arrived(self.now) {
            for segment in cut(&bytes, self.config.segments, &mut self.rng) {
                self.host.receive(segment);
            }
        }
    }
}

fn cut<'a>(mut bytes: &'a [u8], segments: Segments, rng: &mut Rng) -> Vec<&'a [u8]> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let n = match segments {
            Segments::Whole => bytes.len(),
            Segments::Every(n) => n,
            Segments::UpTo(n) => 1 + rng.below(n),
        };
        let (head, tail) = bytes.split_at(n.min(bytes.len()));
        out.push(head);
        bytes = tail;
    }
    out
}
