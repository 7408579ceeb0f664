//! What a seed stands for in the world of hosts and a network.

use crate::outcome::Replay;
use crate::random::Random;
use std::fmt;
use std::time::Duration;

/// What packets meet on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// The least time from one host to another.
    pub delay: Duration,
    /// What comes on top at most, packet by packet.
    pub jitter: Duration,
    /// Packets lost, of a million.
    pub loss: u32,
    /// Bytes of a connection that pass in a millisecond.
    pub bytes_per_ms: u64,
    /// Bytes of a packet at most: a segment of TCP, or what an offload engine
    /// makes one of.
    pub segment: usize,
    /// Bytes that a socket takes and that are not acknowledged.
    pub send_buffer: usize,
    /// Bytes that have come and are not read.
    pub receive_buffer: usize,
}

/// Everything about a simulation of hosts and a network but the single choices.
#[derive(Clone, Debug)]
pub struct NetworkPlan {
    /// Where all chance comes from.
    pub seed: u64,
    /// What the network is like.
    pub conditions: Conditions,
    /// Hosts, each with blocks of its own.
    pub hosts: u32,
    /// Blocks of each.
    pub blocks: u64,
    /// Bytes of a block.
    pub block: u32,
    /// Whether the target's disk has a cache that a power loss empties.
    pub volatile: bool,
    /// About how long an operation on it takes.
    pub latency: Duration,
    /// In-capsule data of the target, in bytes.
    pub in_capsule: u32,
    /// Engine threads of the target.
    pub threads: usize,
    /// Whether CRC32C protects headers and data.
    pub digests: (bool, bool),
    /// Entries of a queue.
    pub queue_size: u16,
    /// Connections of an initiator, if not measured.
    pub connections: Option<u16>,
    /// Keep-alive timeout of the hosts.
    pub kato: Duration,
    /// Tasks that put load on each host's blocks.
    pub clients: u32,
    /// Operations of each in a life.
    pub operations: u32,
    /// Lives of each host, all but the last ended by a crash.
    pub lives: u32,
    /// What goes wrong, at most.
    pub troubles: u32,
    /// Whether few blocks are written again and again while connections are
    /// reset soon after one another, and some operations of the disk take far
    /// longer than those after them: what an earlier connection has left behind
    /// meets what the next one does.
    pub close: bool,
    /// Whether hosts have two paths.
    pub two: Option<TwoPaths>,
}

/// A second path to the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwoPaths {
    /// What packets meet there.
    pub second: Conditions,
    /// Whether it leads to another target, and the two serve the disk in turn; else it leads to a
    /// second address of the target.
    pub heads: bool,
}

/// Plans in a hundred in which everything is close to each other.
const CLOSE: u32 = 40;

impl NetworkPlan {
    /// The plan of a seed.
    #[must_use]
    pub fn new(seed: u64) -> NetworkPlan {
        let mut random = Random::new(seed ^ 0x6e65_7477_6f72_6b00);
        let delay = Duration::from_micros(random.pick(&[25, 500, 5_000, 50_000]));
        let plan = NetworkPlan {
            seed,
            conditions: Conditions {
                delay,
                jitter: random.pick(&[Duration::ZERO, delay / 4, delay * 4]),
                loss: random.pick(&[0, 0, 100, 5_000]),
                bytes_per_ms: random.pick(&[1_000, 20_000, 1_000_000]),
                segment: random.pick(&[536, 1448, 8948, 65_000]),
                send_buffer: random.pick(&[4 << 10, 64 << 10, 4 << 20]),
                receive_buffer: random.pick(&[4 << 10, 64 << 10, 4 << 20]),
            },
            hosts: random.between(1, 2) as u32,
            blocks: random.between(8, 128),
            block: random.pick(&[512, 4096]),
            volatile: random.chance(70),
            latency: Duration::from_micros(random.pick(&[20, 1000, 15_000])),
            in_capsule: random.pick(&[0, 4096, 64 << 10, 1 << 20]),
            threads: random.between(1, 3) as usize,
            digests: (random.chance(30), random.chance(30)),
            queue_size: random.pick(&[2, 8, 128]),
            connections: random.pick(&[None, Some(1), Some(3)]),
            kato: Duration::from_secs(random.pick(&[2, 5, 15])),
            clients: random.between(1, 5) as u32,
            operations: random.between(5, 60) as u32,
            lives: random.pick(&[1, 1, 2, 3]),
            troubles: random.below(7) as u32,
            close: false,
            two: None,
        };
        if random.chance(CLOSE) { plan.closer(&mut random) } else { plan }
    }

    /// The plan of a seed in which hosts have two paths.
    #[must_use]
    pub fn with_two_paths(seed: u64) -> NetworkPlan {
        let mut random = Random::new(seed ^ 0x7061_7468_7300);
        let plan = NetworkPlan::new(seed);
        let delay = Duration::from_micros(random.pick(&[25, 500, 5_000, 50_000]));
        let second = Conditions {
            delay,
            jitter: random.pick(&[Duration::ZERO, delay / 4, delay * 4]),
            loss: random.pick(&[0, 0, 100, 5_000]),
            bytes_per_ms: random.pick(&[1_000, 20_000, 1_000_000]),
            ..plan.conditions
        };
        let two = Some(TwoPaths { second, heads: random.chance(50) });
        NetworkPlan { troubles: random.between(1, 9) as u32, two, ..plan }
    }

    /// The same with everything close to each other.
    fn closer(self, random: &mut Random) -> NetworkPlan {
        let delay = Duration::from_micros(random.pick(&[25, 500, 5_000]));
        let jitter = random.pick(&[Duration::ZERO, delay * 4]);
        let bytes_per_ms = self.conditions.bytes_per_ms.max(20_000);
        NetworkPlan {
            conditions: Conditions { delay, jitter, loss: 0, bytes_per_ms, ..self.conditions },
            blocks: random.between(2, 6),
            latency: Duration::from_micros(random.pick(&[20, 1000])),
            queue_size: random.pick(&[8, 128]),
            clients: random.between(2, 6) as u32,
            operations: random.between(60, 240) as u32,
            lives: 1,
            troubles: random.between(4, 16) as u32,
            close: true,
            ..self
        }
    }
}

impl Replay for NetworkPlan {
    fn again(&self) -> String {
        let world = if self.two.is_some() { "paths" } else { "network" };
        format!("cargo run --release -p longhaul-sim -- --world {world} --seed {}", self.seed)
    }
}

impl fmt::Display for NetworkPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.conditions;
        write!(
            f,
            "{:?} one way (+ up to {:?}), {} of a million lost, {} bytes/ms, segments of {}, buffers of {} and {}; \
             {} hosts with {} blocks of {} bytes{}, {:?}; {} in a capsule, {} threads, digests {:?}, {} entries, \
             {:?} connections, keep-alive {:?}; {} lives of {} × {} operations, {} troubles{}",
            c.delay,
            c.jitter,
            c.loss,
            c.bytes_per_ms,
            c.segment,
            c.send_buffer,
            c.receive_buffer,
            self.hosts,
            self.blocks,
            self.block,
            if self.volatile { ", volatile cache" } else { "" },
            self.latency,
            self.in_capsule,
            self.threads,
            self.digests,
            self.queue_size,
            self.connections,
            self.kato,
            self.lives,
            self.clients,
            self.operations,
            self.troubles,
            if self.close { ", close to each other" } else { "" }
        )?;
        let Some(TwoPaths { second: c, heads }) = self.two else { return Ok(()) };
        let to = if heads { "another head" } else { "another address" };
        let Conditions { delay, jitter, loss, bytes_per_ms, .. } = c;
        write!(
            f,
            "; second path to {to}: {delay:?} one way (+ up to {jitter:?}), {loss} of a million lost, \
             {bytes_per_ms} bytes/ms"
        )
    }
}
