//! What the kernel knows of a connection: `TCP_INFO`.
//!
//! The kernel gives as many bytes of `struct tcp_info` (linux/tcp.h) as it
//! has; what an older one does not know is `None` here. The structure only
//! ever grew at its end, so each field has one place for good.

use std::time::Duration;

/// Bytes asked for: more than any kernel has so far.
pub(super) const INFO_LEN: usize = 320;

/// The state of a TCP connection at a moment. Counters begin at 0 with the
/// connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round trip.
    pub rtt: Duration,
    /// Mean deviation of the round trip (`tcpi_rttvar`).
    pub rtt_var: Duration,
    /// The least round trip of the last minutes (Linux 4.6).
    pub min_rtt: Option<Duration>,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// Bytes sent and not acknowledged, in whole segments.
    pub in_flight: u64,
    /// Segments sent and not acknowledged, unanswered probes of a closed window,
    /// and the time since the last acknowledgement came.
    pub unanswered: (u32, u8, Duration),
    /// Largest packet that TCP sends on this path, in bytes (the path's MTU as
    /// far as it is known).
    pub packet: u32,
    /// Bytes sent and not acknowledged, to the byte (Linux 4.19).
    pub unacked_bytes: Option<u64>,
    /// Segments retransmitted (Linux 2.6).
    pub retransmissions: u32,
    /// Bytes of data sent, retransmissions included (Linux 4.19).
    pub sent: Option<u64>,
    /// Bytes of `sent` that were retransmissions.
    pub resent: Option<u64>,
    /// Segments that came out of order: the peer's way has lost or reordered
    /// some (Linux 5.4).
    pub out_of_order: Option<u32>,
    /// Bytes per second that the peer has acknowledged of late (Linux 4.9).
    pub delivery_rate: Option<u64>,
    /// That rate was bounded by what there was to send.
    pub app_limited: bool,
    /// Bytes in the send buffer that were never sent (Linux 4.6).
    pub not_sent: Option<u32>,
    /// Time with something to send (Linux 4.9).
    pub busy: Option<Duration>,
    /// Of that, time in which the peer's window was full (Linux 4.9).
    pub peer_window_limited: Option<Duration>,
    /// Of that, time in which this end's send buffer was full (Linux 4.9).
    pub send_buffer_limited: Option<Duration>,
    /// Bytes that have come.
    pub received: u64,
    /// Bytes that the peer has acknowledged.
    pub acknowledged: u64,
    /// Bytes that this end allows the peer to send (Linux 6.2).
    pub receive_window: Option<u32>,
    /// Bytes that the peer allows this end to send (Linux 5.4).
    pub send_window: Option<u32>,
}

impl TcpInfo {
    /// Several connections as one: windows, bytes, rates and counters add up,
    /// of round trips it is the least, of other times the most.
    pub fn together<'a>(all: impl IntoIterator<Item = &'a TcpInfo>) -> TcpInfo {
        let mut all = all.into_iter();
        let Some(first) = all.next() else { return TcpInfo::default() };
        let sum = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        let sum_u32 = |a: Option<u32>, b: Option<u32>| Some(a?.saturating_add(b?));
        let least = |a: Option<Duration>, b: Option<Duration>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        all.fold(*first, |a, b| TcpInfo {
            rtt: a.rtt.min(b.rtt),
            rtt_var: a.rtt_var.max(b.rtt_var),
            min_rtt: least(a.min_rtt, b.min_rtt),
            cwnd: a.cwnd.saturating_add(b.cwnd),
            in_flight: a.in_flight.saturating_add(b.in_flight),
            unanswered: (
                a.unanswered.0.saturating_add(b.unanswered.0),
                a.unanswered.1.max(b.unanswered.1),
                a.unanswered.2.max(b.unanswered.2),
            ),
            packet: a.packet.min(b.packet),
            unacked_bytes: sum(a.unacked_bytes, b.unacked_bytes),
            retransmissions: a.retransmissions.saturating_add(b.retransmissions),
            sent: sum(a.sent, b.sent),
            resent: sum(a.resent, b.resent),
            out_of_order: sum_u32(a.out_of_order, b.out_of_order),
            delivery_rate: sum(a.delivery_rate, b.delivery_rate),
            app_limited: a.app_limited && b.app_limited,
            not_sent: sum_u32(a.not_sent, b.not_sent),
            busy: a.busy.max(b.busy),
            peer_window_limited: a.peer_window_limited.max(b.peer_window_limited),
            send_buffer_limited: a.send_buffer_limited.max(b.send_buffer_limited),
            received: a.received.saturating_add(b.received),
            acknowledged: a.acknowledged.saturating_add(b.acknowledged),
            receive_window: sum_u32(a.receive_window, b.receive_window),
            send_window: sum_u32(a.send_window, b.send_window),
        })
    }

    /// Reads what the kernel gave.
    pub(super) fn decode(bytes: &[u8]) -> TcpInfo {
        let u32_at = |at: usize| {
            let field = bytes.get(at..at + 4)?;
            Some(u32::from_ne_bytes([field[0], field[1], field[2], field[3]]))
        };
        let u64_at = |at: usize| {
            let field = bytes.get(at..at + 8)?;
            Some(u64::from_ne_bytes(field.try_into().ok()?))
        };
        let unacked_bytes = || {
            let (sent, again, acked) = (u64_at(200)?, u64_at(208)?, u64_at(120)?);
            Some(sent.saturating_sub(again).saturating_sub(acked))
        };
        let micros = |us: u32| Duration::from_micros(us.into());
        let mss = u64::from(u32_at(16).unwrap_or_default());
        let segments = |at| mss * u64::from(u32_at(at).unwrap_or_default());
        // Bit 0 of the byte behind the window scales, in the order in which
        // the compiler lays out bit fields here.
        let app = if cfg!(target_endian = "little") { 1 } else { 0x80 };
        // All ones: there is no sample yet.
        let sampled = |us: &u32| *us != u32::MAX;
        TcpInfo {
            rtt: micros(u32_at(68).unwrap_or_default()),
            rtt_var: micros(u32_at(72).unwrap_or_default()),
            min_rtt: u32_at(148).filter(sampled).map(micros),
            cwnd: segments(80),
            in_flight: segments(24),
            unanswered: (
                u32_at(24).unwrap_or_default(),
                bytes.get(3).copied().unwrap_or_default(),
                Duration::from_millis(u32_at(56).unwrap_or_default().into()),
            ),
            packet: u32_at(60).unwrap_or_default(),
            unacked_bytes: unacked_bytes(),
            retransmissions: u32_at(100).unwrap_or_default(),
            sent: u64_at(200),
            resent: u64_at(208),
            out_of_order: u32_at(224),
            delivery_rate: u64_at(160),
            app_limited: bytes.get(7).is_some_and(|flags| flags & app != 0),
            not_sent: u32_at(144),
            busy: u64_at(168).map(Duration::from_micros),
            peer_window_limited: u64_at(176).map(Duration::from_micros),
            send_buffer_limited: u64_at(184).map(Duration::from_micros),
            received: u64_at(128).unwrap_or_default(),
            acknowledged: u64_at(120).unwrap_or_default(),
            receive_window: u32_at(232),
            send_window: u32_at(228),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_connections_are_as_one() {
        let ms = Duration::from_millis;
        let a = TcpInfo {
            rtt: ms(20),
            min_rtt: Some(ms(15)),
            cwnd: 100,
            delivery_rate: Some(7),
            ..TcpInfo::default()
        };
        let b = TcpInfo {
            rtt: ms(30),
            cwnd: 50,
            retransmissions: 2,
            delivery_rate: Some(1),
            ..TcpInfo::default()
        };
        let both = TcpInfo::together([&a, &b]);
        assert_eq!((both.rtt, both.min_rtt, both.cwnd), (ms(20), Some(ms(15)), 150));
        assert_eq!((both.delivery_rate, both.retransmissions, both.busy), (Some(8), 2, None));
        assert_eq!(TcpInfo::together([&a]), a);
        assert_eq!(TcpInfo::together([]), TcpInfo::default());
    }

    #[test]
    fn fields_that_a_kernel_does_not_have_are_missing() {
        let mut bytes = [0; 236];
        bytes[16..20].copy_from_slice(&1000u32.to_ne_bytes());
        bytes[68..72].copy_from_slice(&15_000u32.to_ne_bytes());
        bytes[80..84].copy_from_slice(&10u32.to_ne_bytes());
        bytes[60..64].copy_from_slice(&9000u32.to_ne_bytes());
        bytes[120..128].copy_from_slice(&700u64.to_ne_bytes());
        bytes[148..152].copy_from_slice(&14_900u32.to_ne_bytes());
        bytes[160..168].copy_from_slice(&125_000_000u64.to_ne_bytes());
        bytes[184..192].copy_from_slice(&7u64.to_ne_bytes());
        bytes[200..208].copy_from_slice(&1000u64.to_ne_bytes());
        bytes[208..216].copy_from_slice(&200u64.to_ne_bytes());
        bytes[232..236].copy_from_slice(&65_536u32.to_ne_bytes());
        let info = TcpInfo::decode(&bytes);
        assert_eq!(info.rtt, Duration::from_millis(15));
        assert_eq!((info.cwnd, info.min_rtt), (10_000, Some(Duration::from_micros(14_900))));
        assert_eq!((info.delivery_rate, info.receive_window), (Some(125_000_000), Some(65_536)));
        assert_eq!(info.send_buffer_limited, Some(Duration::from_micros(7)));
        assert_eq!((info.packet, info.unacked_bytes), (9000, Some(100)));
        assert_eq!((info.sent, info.resent), (Some(1000), Some(200)));
        // Linux 3.10 gave 104 bytes.
        let old = TcpInfo::decode(&bytes[..104]);
        assert_eq!((old.rtt, old.cwnd), (info.rtt, info.cwnd));
        assert_eq!((old.packet, old.unacked_bytes), (9000, None));
        assert_eq!((old.min_rtt, old.delivery_rate, old.out_of_order), (None, None, None));
        assert_eq!(TcpInfo::decode(&[]), TcpInfo::default());
        bytes[148..152].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(TcpInfo::decode(&bytes).min_rtt, None);
    }
}
