//! Reads striped over servers by the Network Storage Manager.

use longhaul_results::published::{Publication, Statement};

/// The publication that the statements below are from.
pub static DOCUMENT: Publication = Publication {
    short: "Network Storage Manager",
    full: "O. Aldaoud, H. Kettani, K. Guduru, Q. Malluhi: Storage Performance over Fast Ethernet, Giga Ethernet, \
           Giga Ethernet TOE and InfiniBand (Jackson State University, Qatar University)",
};

const fn rate(megabytes: f64, what: &'static str) -> Statement {
    Statement::number(&DOCUMENT, "§3.2, Fig. 3", megabytes * 1e6, "B/s", what)
}

/// Over Fast Ethernet, from 1 to 4 servers.
pub const FAST_ETHERNET: [Statement; 4] = [
    rate(9.27, "read from 1 server over Fast Ethernet"),
    rate(18.0, "from 2 servers"),
    rate(26.0, "from 3 servers"),
    rate(32.0, "from 4 servers"),
];
/// Over Gigabit Ethernet.
pub const GIGABIT_ETHERNET: [Statement; 4] = [
    rate(47.0, "read from 1 server over Gigabit Ethernet"),
    rate(52.0, "from 2 servers"),
    rate(63.0, "from 3 servers"),
    rate(72.0, "from 4 servers"),
];
/// Over IP over InfiniBand.
pub const IP_OVER_INFINIBAND: [Statement; 4] = [
    rate(22.0, "read from 1 server over IP over InfiniBand"),
    rate(47.0, "from 2 servers"),
    rate(63.0, "from 3 servers"),
    rate(90.0, "from 4 servers"),
];
/// Over Gigabit Ethernet with a card that does TCP itself.
pub const OFFLOAD: [Statement; 4] = [
    rate(67.0, "read from 1 server over Gigabit Ethernet with TCP offload"),
    rate(80.0, "from 2 servers"),
    rate(10.0, "from 3 servers"),
    rate(5.0, "from 4 servers"),
];
/// The objects read, and the repetitions.
pub const CONDITIONS: [Statement; 3] = [
    Statement::number(
        &DOCUMENT,
        "§3.2",
        250e6,
        "B",
        "the file that is striped, read from the servers' memory",
    ),
    Statement::number(&DOCUMENT, "§3.2", 1e6, "B", "its blocks"),
    Statement::number(&DOCUMENT, "§3.1", 10.0, "runs", "of each number, of which the mean is given"),
];
/// Why throughput fell with three and four servers over TCP offload.
pub const CAUSE: Statement = Statement::words(
    &DOCUMENT,
    "§3.2",
    "throughput over TCP offload fell with three and four servers because of how that device processes TCP/IP",
);
/// Blocks of 128 KB.
pub const BLOCKS_128K: [Statement; 2] = [
    Statement::words(
        &DOCUMENT,
        "§3.2, Fig. 4",
        "three servers recovered over TCP offload with blocks of 128 KB",
    ),
    Statement::words(
        &DOCUMENT,
        "§3.2, Fig. 4",
        "four servers fell over TCP offload also with blocks of 128 KB",
    ),
];
/// Blocks of 64 KB.
pub const BLOCKS_64K: Statement = Statement::words(
    &DOCUMENT,
    "§3.2, Fig. 4",
    "TCP offload behaved as the other transports with blocks of 64 KB",
);
/// More servers over Gigabit Ethernet.
pub const GIGABIT_GROWTH: Statement = Statement::words(
    &DOCUMENT,
    "§3.2, Fig. 3",
    "four servers read 72 MB/s and one 47 MB/s over Gigabit Ethernet, about 53 % more",
);
/// More servers over Fast Ethernet.
pub const FAST_GROWTH: Statement = Statement::words(
    &DOCUMENT,
    "§3.2, Fig. 3",
    "four servers read 3.5 times as fast as one over Fast Ethernet",
);

/// All of them.
pub const ALL: &[&[Statement]] = &[
    &CONDITIONS,
    &FAST_ETHERNET,
    &GIGABIT_ETHERNET,
    &IP_OVER_INFINIBAND,
    &OFFLOAD,
    &[CAUSE],
    &BLOCKS_128K,
    &[BLOCKS_64K, GIGABIT_GROWTH, FAST_GROWTH],
];
