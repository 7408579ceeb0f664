//! Finds the socket buffer that keeps a connection from filling its path.
//!
//! The kernel's counts of the time that a sender waits reveal both local buffers and the peer's
//! receive buffer. The peer's send buffer is inferred: data arrives more slowly than the path
//! carries it, while the local window is open.

use super::types::IoDirection;
use longhaul_engine::net::TcpInfo;
use std::fmt;
use std::time::Duration;

/// A sender that waits for this share of its busy time is held up.
const HELD_UP: f64 = 0.2;
/// The used share of a receive window from which on the window limits the sender: the kernel
/// enlarges it ahead of the data.
const WINDOW_USED: f64 = 0.7;

/// What the sockets of a path have shown in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sockets {
    /// Share of the busy time in which our send buffer was full.
    pub send_buffer: f64,
    /// Share of the busy time in which the peer's window was full.
    pub peer_window: f64,
    /// Our congestion control models the path (BBR): it needs no queue to fill it, and is not
    /// slowed down by a loss.
    pub models_path: bool,
    /// Bytes that we allow the peer to send on one connection, the least.
    pub receive_window: Option<u64>,
}

/// A socket buffer that is too small for a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketLimit {
    /// The buffer, and the end that it belongs to.
    pub buffer: Buffer,
    /// Bytes in flight that one connection was seen to reach with it.
    pub bytes: u64,
}

/// What keeps one connection from filling a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A socket buffer.
    Socket(SocketLimit),
    /// Segments are lost while no queue is there: TCP slows down for each.
    Loss,
    /// No connection and not the path: nothing queues on it, nothing is lost, and
    /// more connections bring no more.
    Hosts,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Socket(limit) => limit.fmt(f),
            Limit::Loss => f.write_str("loss on the way"),
            Limit::Hosts => f.write_str("the far side's device, or a processor"),
        }
    }
}

/// One of the four buffers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// Local, for sending: `net.ipv4.tcp_wmem` here.
    Send,
    /// Local, for receiving: `net.ipv4.tcp_rmem` here.
    Receive,
    /// The peer's, for sending: `net.ipv4.tcp_wmem` there.
    FarSend,
    /// The peer's, for receiving: `net.ipv4.tcp_rmem` there.
    FarReceive,
}

impl Buffer {
    /// The setting that bounds it.
    pub fn setting(self) -> &'static str {
        match self {
            Buffer::Send | Buffer::FarSend => "net.ipv4.tcp_wmem",
            Buffer::Receive | Buffer::FarReceive => "net.ipv4.tcp_rmem",
        }
    }

    /// Whether it is the peer's.
    pub fn is_far(self) -> bool {
        matches!(self, Buffer::FarSend | Buffer::FarReceive)
    }
}

impl fmt::Display for SocketLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.buffer.is_far() { "the far side" } else { "this side" };
        let bytes = longhaul_block::units::format_size(self.bytes);
        write!(f, "{} ({bytes} in flight) on {side}", self.buffer.setting())
    }
}

impl Sockets {
    /// Whether nothing but the path can limit what we send.
    pub(super) fn path_limits(&self, way: IoDirection) -> bool {
        way == IoDirection::Write && self.models_path && self.send_buffer.max(self.peer_window) < HELD_UP
    }

    /// What holds up `way` with `bytes` in flight a connection.
    pub(super) fn name(&self, way: IoDirection, bytes: u64, lost: bool) -> Limit {
        let buffer = match way {
            IoDirection::Write if self.send_buffer.max(self.peer_window) >= HELD_UP => {
                if self.send_buffer >= self.peer_window { Buffer::Send } else { Buffer::FarReceive }
            }
            _ if lost => return Limit::Loss,
            IoDirection::Write => Buffer::Send,
            IoDirection::Read => match self.receive_window {
                Some(window) if bytes as f64 > WINDOW_USED * window as f64 => Buffer::Receive,
                _ => Buffer::FarSend,
            },
        };
        Limit::Socket(SocketLimit { buffer, bytes })
    }

    /// What changed on some connections between two looks at each.
    pub(super) fn between(pairs: impl Iterator<Item = (TcpInfo, TcpInfo)>) -> Sockets {
        let mut sockets = Sockets::default();
        let mut busy = Duration::ZERO;
        let (mut send, mut peer) = (Duration::ZERO, Duration::ZERO);
        for (before, now) in pairs {
            let grown = |a: Option<Duration>, b: Option<Duration>| {
                b.unwrap_or_default().saturating_sub(a.unwrap_or_default())
            };
            busy += grown(before.busy, now.busy);
            send += grown(before.send_buffer_limited, now.send_buffer_limited);
            peer += grown(before.peer_window_limited, now.peer_window_limited);
            let window = now.receive_window.map(u64::from);
            sockets.receive_window = match (sockets.receive_window, window) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        let share = |part: Duration| match busy.as_secs_f64() {
            0.0 => 0.0,
            busy => (part.as_secs_f64() / busy).min(1.0),
        };
        sockets.send_buffer = share(send);
        sockets.peer_window = share(peer);
        sockets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_buffer_is_told_from_the_others() {
        let buffer = |sockets: Sockets, way, bytes| match sockets.name(way, bytes, false) {
            Limit::Socket(limit) => limit.buffer,
            other => panic!("{other:?}"),
        };
        let sockets = Sockets {
            send_buffer: 0.8,
            peer_window: 0.1,
            receive_window: Some(6 << 20),
            ..Sockets::default()
        };
        assert_eq!(buffer(sockets, IoDirection::Write, 1 << 20), Buffer::Send);
        assert_eq!(buffer(sockets, IoDirection::Read, 5 << 20), Buffer::Receive);
        assert_eq!(buffer(sockets, IoDirection::Read, 2 << 20), Buffer::FarSend);
        let text = sockets.name(IoDirection::Read, 4 << 20, false).to_string();
        assert_eq!(text, "net.ipv4.tcp_wmem (4 MiB in flight) on the far side");
        assert_eq!(sockets.name(IoDirection::Read, 4 << 20, true), Limit::Loss);
        let sockets =
            Sockets { send_buffer: 0.0, peer_window: 0.5, receive_window: None, ..Sockets::default() };
        assert_eq!(buffer(sockets, IoDirection::Write, 1 << 20), Buffer::FarReceive);
        assert_eq!(buffer(sockets, IoDirection::Read, 1 << 20), Buffer::FarSend);
    }

    #[test]
    fn shares_are_of_the_busy_time() {
        let ms = Duration::from_millis;
        let before = TcpInfo { busy: Some(ms(100)), send_buffer_limited: Some(ms(50)), ..TcpInfo::default() };
        let now = TcpInfo {
            busy: Some(ms(200)),
            send_buffer_limited: Some(ms(110)),
            receive_window: Some(7),
            ..TcpInfo::default()
        };
        let sockets = Sockets::between([(before, now), (TcpInfo::default(), TcpInfo::default())].into_iter());
        assert!((sockets.send_buffer - 0.6).abs() < 1e-9);
        assert_eq!((sockets.peer_window, sockets.receive_window), (0.0, Some(7)));
        assert_eq!(Sockets::between(std::iter::empty()), Sockets::default());
    }
}
