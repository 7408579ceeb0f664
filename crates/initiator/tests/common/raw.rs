//! A host without an engine, for things that the library never does: it sends only what a test
//! requests.

use longhaul_proto::host::{HostConfig, HostData, HostEvent, HostQueue};
use longhaul_proto::transport::{Batch, Endpoint, Piece, Want};
use longhaul_wire::command::Sqe;
use longhaul_wire::completion::Cqe;
use longhaul_wire::fabrics::{CNTLID_DYNAMIC, Cc, ConnectData, ConnectResponse, cattr, offset};
use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use uuid::Uuid;
use zerocopy::IntoBytes;

/// The host's NQN.
pub const HOSTNQN: &str = "nqn.2026-11.io.longhaul:test:raw";
pub const HOSTID: Uuid = Uuid::from_u128(7);

/// A connection on which a test writes PDUs byte by byte.
pub struct Raw {
    stream: TcpStream,
    queue: HostQueue,
    /// Data of commands by slot.
    memory: BTreeMap<u16, Vec<u8>>,
    events: VecDeque<HostEvent>,
}

impl Raw {
    /// Connects and agrees on parameters.
    pub fn open(addr: SocketAddr) -> Raw {
        let stream = TcpStream::connect(addr).expect("connected");
        stream.set_read_timeout(Some(super::PATIENCE)).expect("set");
        let queue =
            HostQueue::new(HostConfig { entries: 32, no_flow_control: true, ..HostConfig::default() });
        let mut raw = Raw { stream, queue, memory: BTreeMap::new(), events: VecDeque::new() };
        raw.send();
        assert!(matches!(raw.event(), Some(HostEvent::Ready(_))));
        raw
    }

    /// An admin queue, with the controller enabled; its identifier too.
    pub fn admin(addr: SocketAddr, subnqn: &str, kato_ms: u32) -> (Raw, u16) {
        Raw::admin_of(addr, subnqn, kato_ms, (HOSTNQN, HOSTID))
    }

    /// The same for another host.
    pub fn admin_of(addr: SocketAddr, subnqn: &str, kato_ms: u32, host: (&str, Uuid)) -> (Raw, u16) {
        let mut raw = Raw::open(addr);
        let cntlid = raw.connect(subnqn, 0, CNTLID_DYNAMIC, kato_ms, host);
        let cc = Cc(0).with_en(1).with_iosqes(6).with_iocqes(4);
        raw.submit(Sqe::property_set(offset::CC, false, cc.0.into()), None);
        assert!(raw.completion().1.status().is_success());
        (raw, cntlid)
    }

    /// An I/O queue of a controller.
    pub fn io(addr: SocketAddr, subnqn: &str, qid: u16, cntlid: u16) -> Raw {
        let mut raw = Raw::open(addr);
        raw.connect(subnqn, qid, cntlid, 0, (HOSTNQN, HOSTID));
        raw
    }

    fn connect(&mut self, subnqn: &str, qid: u16, cntlid: u16, kato_ms: u32, host: (&str, Uuid)) -> u16 {
        let data = ConnectData::new(host.1, cntlid, subnqn, host.0);
        let sqe = Sqe::connect(qid, 31, cattr::NO_FLOW_CONTROL, kato_ms);
        self.submit(sqe, Some(data.as_bytes().to_vec()));
        let cqe = self.completion().1;
        assert!(cqe.status().is_success(), "Connect: {}", cqe.status());
        ConnectResponse::from_dw0(cqe.dw0()).cntlid
    }

    /// Sends a command, with data to write; its slot.
    pub fn submit(&mut self, sqe: Sqe, write: Option<Vec<u8>>) -> u16 {
        let data = write.as_ref().map_or(HostData::None, |d| HostData::Write { len: d.len() as u32 });
        let slot = self.queue.submit(sqe, data).expect("room");
        self.memory.insert(slot, write.unwrap_or_default());
        self.send();
        slot
    }

    /// Sends a command that reads; its slot.
    pub fn submit_read(&mut self, sqe: Sqe, len: u32) -> u16 {
        let slot = self.queue.submit(sqe, HostData::Read { len }).expect("room");
        self.memory.insert(slot, vec![0; len as usize]);
        self.send();
        slot
    }

    /// The data of a slot.
    pub fn data(&self, slot: u16) -> &[u8] {
        &self.memory[&slot]
    }

    /// The command identifier of a slot.
    pub fn cid(&self, slot: u16) -> u16 {
        self.queue.cid(slot)
    }

    /// The next completion, with its slot.
    pub fn completion(&mut self) -> (u16, Cqe) {
        loop {
            match self.event().expect("the connection has ended") {
                HostEvent::Completion { slot, cqe, .. } => return (slot, cqe),
                HostEvent::Ready(_) => {}
                HostEvent::Closed(reason) => panic!("{reason}"),
            }
        }
    }

    /// Waits until the peer ends the connection, without sending a byte.
    pub fn wait_for_end(mut self) {
        while self.event().is_some() {}
    }

    /// The next event; none if the peer has ended the connection.
    fn event(&mut self) -> Option<HostEvent> {
        let mut input = [0; 65_536];
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let n = match self.stream.read(&mut input) {
                Ok(n) => n,
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => 0,
                Err(e) => panic!("{e}"),
            };
            if n == 0 {
                return None;
            }
            self.take(&input[..n]);
        }
    }

    fn take(&mut self, mut rest: &[u8]) {
        while !rest.is_empty() {
            let n = match self.queue.want() {
                Want::Bytes => self.queue.handle(rest),
                Want::Payload { slot, offset, len } => {
                    let n = rest.len().min(len as usize);
                    let memory = self.memory.get_mut(&slot).expect("a command that reads");
                    memory[offset as usize..][..n].copy_from_slice(&rest[..n]);
                    self.queue.handle_payload(&rest[..n]);
                    n
                }
                Want::Nothing => panic!("the queue is blocked"),
            };
            rest = &rest[n..];
            while let Some(event) = self.queue.poll_event() {
                self.events.push_back(event);
            }
            self.send();
        }
    }

    fn send(&mut self) {
        let mut batch = Batch::default();
        while self.queue.poll_transmit(&mut batch) {
            let mut out = Vec::new();
            let mut sent = Vec::new();
            for piece in &batch.pieces {
                match *piece {
                    Piece::Bytes { start, len } => {
                        out.extend_from_slice(&batch.bytes[start as usize..][..len as usize]);
                    }
                    Piece::Payload { slot, offset, len, last } => {
                        out.extend_from_slice(&self.memory[&slot][offset as usize..][..len as usize]);
                        sent.extend(last.then_some(slot));
                    }
                }
            }
            self.stream.write_all(&out).expect("sent");
            for slot in sent {
                self.queue.payload_sent(slot);
            }
        }
    }
}
