//! Whether the other end of a connection is still there, and how to leave
//! one whose other end is not.

use super::{Free, TcpStream};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::Shutdown;
use std::time::Duration;

/// What TCP knows of the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Segments sent and not acknowledged.
    pub unacked: u32,
    /// Unanswered probes of a closed window.
    pub probes: u8,
    /// Time since the last acknowledgement came.
    pub last_ack: Duration,
    /// Smoothed round trip.
    pub round_trip: Duration,
    /// Largest packet that TCP sends on this path, in bytes.
    pub packet: u32,
    /// Bytes sent and not acknowledged, where the kernel says.
    pub unacked_bytes: Option<u64>,
}

impl TcpStream {
    /// What TCP knows of the other end.
    ///
    /// # Errors
    /// Of getsockopt(2).
    pub fn life(&self) -> io::Result<Life> {
        let info = self.info()?;
        let (unacked, probes, last_ack) = info.unanswered;
        let (packet, unacked_bytes) = (info.packet, info.unacked_bytes);
        Ok(Life { unacked, probes, last_ack, round_trip: info.rtt, packet, unacked_bytes })
    }

    /// Lets the kernel send keep-alive probes to an idle peer, at most `count`, `interval` (whole
    /// seconds) apart; without an answer, operations on the socket fail. The peer's kernel answers,
    /// however busy its programs are.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn keep_alive(&self, interval: Duration, count: u32) -> io::Result<()> {
        let settings = TcpKeepalive::new().with_time(interval).with_interval(interval).with_retries(count);
        match &self.end {
            Free::Kernel(source) => SockRef::from(&*source.fd).set_tcp_keepalive(&settings),
            Free::Simulated(wire) => {
                wire.keep_alive(interval, count);
                Ok(())
            }
        }
    }

    /// Ends both directions at once: tasks that wait in it return, and what
    /// the kernel has not sent yet is discarded when the socket is dropped.
    pub fn abandon(&self) {
        let socket = match &self.end {
            Free::Kernel(source) => SockRef::from(&*source.fd),
            Free::Simulated(wire) => return wire.abandon(),
        };
        // Both fail only on a connection that is closed already.
        let _ = socket.set_linger(Some(Duration::ZERO));
        let _ = socket.shutdown(Shutdown::Both);
    }
}
