//! One end of a TCP connection: its send and receive buffers, and the acknowledgements of the other
//! end.
//!
//! Invariants:
//! - bytes are numbered from 0 in each direction; a FIN counts as one;
//! - `queue` holds the bytes sent from `acked` on, and those yet to be sent;
//! - a packet out of order is dropped, and retransmitted (go-back-N): slower than real TCP, with
//!   the same result for its users.

use crate::random::Random;
use longhaul_engine::net::TcpInfo;
use longhaul_engine::{now, since};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::task::Waker;
use std::time::{Duration, Instant};

/// The least retransmission time-out (Linux: TCP_RTO_MIN).
const RTO_MIN: Duration = Duration::from_millis(200);
/// The longest (Linux: TCP_RTO_MAX).
const RTO_MAX: Duration = Duration::from_secs(120);
/// The first for a SYN (RFC 6298, section 2).
const RTO_SYN: Duration = Duration::from_secs(1);
/// Retransmissions of data after which a connection is given up (Linux:
/// tcp_retries2).
const RETRIES: u32 = 15;
/// The same for a SYN (Linux: tcp_syn_retries).
const RETRIES_SYN: u32 = 6;
/// The largest packet of Ethernet, in bytes: what `TcpInfo` says.
const PACKET: u32 = 1500;

/// A packet from one end to the other.
#[derive(Clone, Debug)]
pub(super) enum Packet {
    Syn,
    SynAck,
    /// Also an acknowledgement, or a probe, where there are no bytes.
    Data {
        seq: u64,
        bytes: Vec<u8>,
        fin: bool,
        ack: u64,
        window: u64,
        /// It wants an answer, though it brings nothing.
        asks: bool,
    },
    Rst,
}

impl Packet {
    /// Bytes of payload.
    pub(super) fn len(&self) -> usize {
        match self {
            Packet::Data { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Connecting,
    Open,
    Failed(ErrorKind),
}

/// Bounds of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) send_buffer: usize,
    pub(super) receive_buffer: usize,
    pub(super) segment: usize,
    /// Of the path.
    pub(super) round_trip: Duration,
}

#[derive(Debug)]
pub(super) struct End {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) phase: Phase,
    /// A program has it.
    pub(super) owned: bool,
    /// It was offered to the tasks that accept.
    pub(super) offered: bool,
    /// Bytes that are not sent when it is closed are discarded.
    pub(super) abandoned: bool,
    bounds: Bounds,
    queue: VecDeque<u8>,
    acked: u64,
    sent: u64,
    /// The peer takes bytes below this number.
    window_end: u64,
    fin: bool,
    fin_acked: bool,
    backoff: u32,
    /// The timer that counts; earlier ones do not.
    pub(super) timer: u64,
    timer_set: bool,
    received: VecDeque<u8>,
    expected: u64,
    peer_fin: bool,
    reads_end: bool,
    /// Window that was advertised to the peer last.
    told: u64,
    last_ack: Instant,
    probes: u8,
    retransmissions: u32,
    pub(super) heard: Instant,
    pub(super) keep_alive: Option<(Duration, u32)>,
    pub(super) unanswered: u32,
    pub(super) wakers: [Option<Waker>; 3],
}

/// The task that a change wakes.
pub(super) const CONNECTS: usize = 0;
pub(super) const RECEIVES: usize = 1;
pub(super) const SENDS: usize = 2;

impl End {
    pub(super) fn new(local: SocketAddr, remote: SocketAddr, phase: Phase, bounds: Bounds) -> End {
        End {
            local,
            remote,
            phase,
            owned: phase == Phase::Connecting,
            offered: false,
            abandoned: false,
            bounds,
            queue: VecDeque::new(),
            acked: 0,
            sent: 0,
            window_end: bounds.receive_buffer as u64,
            fin: false,
            fin_acked: false,
            backoff: 0,
            timer: 0,
            timer_set: false,
            received: VecDeque::new(),
            expected: 0,
            peer_fin: false,
            reads_end: false,
            told: bounds.receive_buffer as u64,
            last_ack: now(),
            probes: 0,
            retransmissions: 0,
            heard: now(),
            keep_alive: None,
            unanswered: 0,
            wakers: [const { None }; 3],
        }
    }

    pub(super) fn wake(&mut self, side: usize) {
        self.wakers[side].take().into_iter().for_each(Waker::wake);
    }

    pub(super) fn fail(&mut self, why: ErrorKind) {
        if !matches!(self.phase, Phase::Failed(_)) {
            self.phase = Phase::Failed(why);
        }
        self.received.clear();
        self.queue.clear();
        (0..3).for_each(|side| self.wake(side));
    }

    /// The end of the queued bytes, with the FIN.
    fn end(&self) -> u64 {
        self.acked + self.queue.len() as u64 + u64::from(self.fin && !self.fin_acked)
    }

    /// Whether nothing is left to be done for a program that has closed it.
    pub(super) fn is_over(&self) -> bool {
        !self.owned && (matches!(self.phase, Phase::Failed(_)) || self.fin_acked)
    }

    fn window(&self) -> u64 {
        self.bounds.receive_buffer.saturating_sub(self.received.len()) as u64
    }

    fn packet(&mut self, seq: u64, bytes: Vec<u8>, fin: bool) -> Packet {
        self.told = self.window();
        let ack = self.expected + u64::from(self.peer_fin);
        Packet::Data { seq, bytes, fin, ack, window: self.told, asks: false }
    }

    pub(super) fn acknowledgement(&mut self) -> Packet {
        self.packet(self.sent, Vec::new(), false)
    }

    /// A question whether the peer is there, and has room.
    pub(super) fn probe(&mut self) -> Packet {
        self.told = self.window();
        let ack = self.expected + u64::from(self.peer_fin);
        Packet::Data { seq: self.sent, bytes: Vec::new(), fin: false, ack, window: self.told, asks: true }
    }

    /// Takes bytes to send; how many.
    pub(super) fn write(&mut self, bytes: &[u8]) -> usize {
        let room = self.bounds.send_buffer.saturating_sub(self.queue.len());
        let taken = bytes.len().min(room);
        self.queue.extend(&bytes[..taken]);
        taken
    }

    pub(super) fn writes_ended(&self) -> bool {
        self.fin
    }

    pub(super) fn end_writes(&mut self) {
        self.fin = true;
    }

    pub(super) fn end_reads(&mut self) {
        self.reads_end = true;
        self.wake(RECEIVES);
    }

    /// Bytes for the program; none at the end; nothing yet otherwise.
    pub(super) fn read(&mut self, most: usize, random: &mut Random) -> Option<Vec<u8>> {
        if self.received.is_empty() {
            return (self.peer_fin || self.reads_end).then(Vec::new);
        }
        let most = most.min(self.received.len());
        let len = if random.chance(30) { random.between(1, most as u64) as usize } else { most };
        Some(self.received.drain(..len).collect())
    }

    /// Whether a window update must be sent to the peer.
    pub(super) fn opens_window(&self) -> bool {
        // Not for every byte (RFC 9293, section 3.8.6.2.2).
        self.window() >= self.told + self.bounds.receive_buffer as u64 / 2
    }

    pub(super) fn has_unread(&self) -> bool {
        !self.received.is_empty()
    }

    /// The packets that may be sent now.
    pub(super) fn transmit(&mut self, random: &mut Random) -> Vec<Packet> {
        let mut packets = Vec::new();
        if self.phase != Phase::Open || self.fin_acked {
            return packets;
        }
        let data_end = self.acked + self.queue.len() as u64;
        while self.sent < data_end.min(self.window_end) {
            let left = (data_end.min(self.window_end) - self.sent) as usize;
            let most = left.min(self.bounds.segment);
            // Nor is a small piece of much sent while more is on its way (RFC
            // 9293, section 3.8.6.2.1).
            let small = most < self.bounds.segment && self.sent + (left as u64) < data_end;
            if small && self.sent > self.acked {
                break;
            }
            let len = if random.chance(20) { random.between(1, most as u64) as usize } else { most };
            let from = (self.sent - self.acked) as usize;
            let bytes = self.queue.range(from..from + len).copied().collect();
            let seq = self.sent;
            self.sent += len as u64;
            let packet = self.packet(seq, bytes, false);
            packets.push(packet);
        }
        if self.fin && self.sent == data_end {
            let packet = self.packet(data_end, Vec::new(), true);
            self.sent = data_end + 1;
            packets.push(packet);
        }
        packets
    }

    /// The time after which the timer is to fire, if it has to be set.
    pub(super) fn set_timer(&mut self) -> Option<Duration> {
        let waits = self.phase == Phase::Connecting
            || self.phase == Phase::Open && !self.fin_acked && self.acked < self.end();
        if !waits || self.timer_set {
            return None;
        }
        self.timer_set = true;
        self.timer += 1;
        let first = match self.phase {
            Phase::Connecting => RTO_SYN,
            _ => RTO_MIN + self.bounds.round_trip * 2,
        };
        Some((first * (1u32 << self.backoff.min(16))).min(RTO_MAX))
    }

    /// The timer has fired: returns the packets to retransmit.
    pub(super) fn expire(&mut self, random: &mut Random) -> Vec<Packet> {
        self.timer_set = false;
        self.backoff += 1;
        self.retransmissions += 1;
        match self.phase {
            Phase::Connecting if self.backoff > RETRIES_SYN => self.fail(ErrorKind::TimedOut),
            Phase::Connecting => return vec![Packet::Syn],
            Phase::Open if self.backoff > RETRIES => self.fail(ErrorKind::TimedOut),
            Phase::Open => {
                let probe = self.window_end <= self.acked;
                self.sent = self.acked;
                let packets = self.transmit(random);
                if packets.is_empty() {
                    self.probes = self.probes.saturating_add(u8::from(probe));
                    return vec![self.probe()];
                }
                return packets;
            }
            Phase::Failed(_) => {}
        }
        Vec::new()
    }

    /// The peer has acknowledged everything below `ack`, and takes `window`
    /// bytes more.
    pub(super) fn acknowledged(&mut self, ack: u64, window: u64) {
        self.heard = now();
        (self.unanswered, self.probes) = (0, 0);
        if ack < self.acked {
            return;
        }
        self.last_ack = now();
        self.window_end = ack + window;
        if ack == self.acked || self.fin_acked {
            return;
        }
        let data_end = self.acked + self.queue.len() as u64;
        self.queue.drain(..(ack.min(data_end) - self.acked) as usize);
        self.acked = ack.min(data_end);
        self.sent = self.sent.max(self.acked);
        self.backoff = 0;
        self.fin_acked = self.fin && ack > data_end;
        // The timer starts again.
        self.timer_set = false;
        self.timer += 1;
        self.wake(SENDS);
    }

    /// Bytes have come, or the end of them.
    pub(super) fn arrive(&mut self, seq: u64, bytes: &[u8], fin: bool) {
        let skip = self.expected.saturating_sub(seq);
        if seq <= self.expected && !self.peer_fin && skip <= bytes.len() as u64 {
            let new = &bytes[skip as usize..];
            let room = self.window() as usize;
            let taken = new.len().min(room);
            self.expected += taken as u64;
            if !self.reads_end {
                self.received.extend(&new[..taken]);
            }
            self.peer_fin = fin && taken == new.len();
            if taken > 0 || self.peer_fin {
                self.wake(RECEIVES);
            }
        }
    }

    pub(super) fn connected(&mut self) {
        self.phase = Phase::Open;
        (self.backoff, self.timer_set) = (0, false);
        self.timer += 1;
        self.wake(CONNECTS);
    }

    pub(super) fn info(&self) -> TcpInfo {
        let in_flight = self.sent.saturating_sub(self.acked);
        let segments = in_flight.div_ceil(self.bounds.segment as u64);
        TcpInfo {
            rtt: self.bounds.round_trip,
            min_rtt: Some(self.bounds.round_trip),
            cwnd: self.bounds.receive_buffer as u64,
            in_flight,
            unanswered: (u32::try_from(segments).unwrap_or(u32::MAX), self.probes, since(self.last_ack)),
            packet: PACKET,
            unacked_bytes: Some(in_flight),
            retransmissions: self.retransmissions,
            out_of_order: Some(0),
            not_sent: Some((self.end() - self.sent.min(self.end())) as u32),
            received: self.expected,
            acknowledged: self.acked,
            ..TcpInfo::default()
        }
    }
}
