//! Detects MTU black holes: links that deliver small packets and silently drop large ones, say
//! behind a tunnel whose router's ICMP is filtered. Connections are made, small commands are
//! answered, and bulk data hangs.
//!
//! A connection alone cannot distinguish that from a cut link. The admin queue beside it can: its
//! Keep Alive is a small packet each way.

use crate::watch::Silent;
use longhaul_wire::identify::IDENTIFY_LEN;
use std::time::Duration;

/// IP and TCP headers of a packet, with time stamps.
const HEADERS: u64 = 52;
/// Packets of up to this size pass everywhere: the least that every IPv4 link
/// carries is 576 bytes.
const SMALL: u64 = 576;
/// Identify commands that bring a large answer, at most: a fraction of an admin
/// queue's entries.
const IDENTIFY_MAX: usize = 8;

const CAUSE: &str = "larger packets seem to vanish on the way (an MTU black hole; until the path is fixed, a lower \
                     MTU of the interface helps)";

/// Why nothing was acknowledged, given that the admin queue was answered in the same time. `None`
/// if only small packets were sent, or if the peer's window is closed.
pub(crate) fn there(silent: &Silent) -> Option<String> {
    let bytes = silent.life.unacked_bytes.unwrap_or(u64::MAX).saturating_add(HEADERS);
    let packet = bytes.min(silent.life.packet.into());
    let is_one = silent.life.unacked > 0 && packet > SMALL;
    is_one.then(|| {
        format!("{silent}, though small packets are: those of {packet} bytes do not get there; {CAUSE}")
    })
}

/// Why `bytes` of an answer have not come for `waited`, though smaller answers
/// have, and the question was acknowledged.
pub(crate) fn back(bytes: usize, waited: Duration) -> String {
    let seconds = waited.as_secs_f64();
    format!("{bytes} bytes of an answer have not come for {seconds:.1} s, though small ones do; {CAUSE}")
}

/// How many Identify commands bring more than a full packet back.
pub(crate) fn identifies(packet: u32) -> usize {
    (2 * packet as usize).div_ceil(IDENTIFY_LEN).clamp(1, IDENTIFY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_engine::net::Life;

    fn silent(unacked: u32, packet: u32, unacked_bytes: Option<u64>) -> Silent {
        let life = Life {
            unacked,
            probes: 0,
            last_ack: Duration::from_secs(3),
            round_trip: Duration::ZERO,
            packet,
            unacked_bytes,
        };
        Silent { since: longhaul_engine::now(), life }
    }

    #[test]
    fn the_size_of_what_vanishes_is_named_and_small_packets_are_no_black_hole() {
        let there = |packet, bytes| there(&silent(1, packet, bytes));
        assert!(there(9000, Some(131_072)).is_some_and(|s| s.contains("those of 9000 bytes")));
        assert!(there(9000, Some(4168)).is_some_and(|s| s.contains("those of 4220 bytes")));
        assert!(there(1500, None).is_some_and(|s| s.contains("those of 1500 bytes")));
        assert_eq!(there(9000, Some(72)), None);
        assert_eq!(super::there(&silent(0, 9000, None)), None, "its window is closed");
        assert!(
            back(8192, Duration::from_secs(3)).starts_with("8192 bytes of an answer have not come for 3.0 s")
        );
    }

    #[test]
    fn the_question_brings_more_than_a_packet() {
        for packet in [0, 576, 1500, 9000, 65_535] {
            let bytes = identifies(packet) * IDENTIFY_LEN;
            assert!(bytes > 2 * packet as usize || identifies(packet) == IDENTIFY_MAX, "{packet}");
            assert!(bytes > 0);
        }
    }
}
