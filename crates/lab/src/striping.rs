//! The experiment of the Network Storage Manager: reads striped over 1 to 4 servers, by transport.

use crate::published::striping as said;
use longhaul_results::published::Statement;

/// Largest number of servers.
pub const SERVERS: usize = 4;
/// Rate of a link of Fast Ethernet in bits per second.
pub const FAST_ETHERNET: u64 = 100_000_000;
/// Rate of a link of Gigabit Ethernet in bits per second.
pub const GIGABIT_ETHERNET: u64 = 1_000_000_000;

/// Stripe units in bytes, and their names: that of the published values, and smaller ones that the
/// publication tried for TCP offload.
pub const UNITS: [(u64, &str); 3] = [(1 << 20, "1 MiB"), (128 << 10, "128 KiB"), (64 << 10, "64 KiB")];

/// A transport: the rate of its link in bits per second, or why it cannot be emulated, and the
/// published throughput of 1 to 4 servers.
#[derive(Clone, Copy, Debug)]
pub struct Transport {
    /// Its name in results.
    pub name: &'static str,
    /// Rate of the link in bits per second, or why this machine has no such link.
    pub link: Result<u64, &'static str>,
    /// Throughput of 1 to 4 servers.
    pub published: [Statement; SERVERS],
    /// The published statement on more servers.
    pub growth: Option<&'static Statement>,
    /// Whether the network card does TCP itself.
    pub offload: bool,
}

/// The transports of the publication.
pub static TRANSPORTS: [Transport; 4] = [
    Transport {
        name: "Fast Ethernet",
        link: Ok(FAST_ETHERNET),
        published: said::FAST_ETHERNET,
        growth: Some(&said::FAST_GROWTH),
        offload: false,
    },
    Transport {
        name: "Gigabit Ethernet",
        link: Ok(GIGABIT_ETHERNET),
        published: said::GIGABIT_ETHERNET,
        growth: Some(&said::GIGABIT_GROWTH),
        offload: false,
    },
    Transport {
        name: "IP over InfiniBand",
        link: Err("this machine has no InfiniBand"),
        published: said::IP_OVER_INFINIBAND,
        growth: None,
        offload: false,
    },
    Transport {
        name: "TCP offload",
        link: Err("this machine has no network card that does TCP itself"),
        published: said::OFFLOAD,
        growth: None,
        offload: true,
    },
];

impl Transport {
    /// The transport whose links have this rate.
    pub fn of_rate(rate: u64) -> Option<&'static Transport> {
        TRANSPORTS.iter().find(|transport| transport.link == Ok(rate))
    }

    /// The published finding about this many servers and stripe units of `unit` bytes.
    pub fn found(&self, servers: usize, unit: u64) -> Option<&'static Statement> {
        match (unit >> 10, servers) {
            _ if !self.offload => None,
            (1024, 3..) => Some(&said::CAUSE),
            (128, 3) => Some(&said::BLOCKS_128K[0]),
            (128, 4) => Some(&said::BLOCKS_128K[1]),
            (64, _) => Some(&said::BLOCKS_64K),
            _ => None,
        }
    }
}
