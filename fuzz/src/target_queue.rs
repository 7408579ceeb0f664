//! The controller's end of a connection, with a driver that does anything
//! which it is allowed to do, in any order.
//!
//! Input: settings, then operations ([`op`]) with their arguments.

mod model;
pub mod op;

use crate::input::Input;
use crate::pdus::Pdu;
use crate::receiving::Receiving;
use longhaul_proto::target::{CommandData, QueueLimits, TargetConfig, TargetEvent, TargetQueue};
use longhaul_proto::transport::{BACKLOG_MAX, Batch, CloseReason, Endpoint, Piece};
use longhaul_wire::command::{Direction, Sgl, Sqe};
use longhaul_wire::completion::Status;
use longhaul_wire::digest::crc32c;
use longhaul_wire::pdu::{CommonHeader, DataPdu, Fes, Format, IcReq, PduType, TermReq, flags};
use model::{Answer, Host};
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::IntoBytes;

/// Operations of one input at most.
const OPS_MAX: usize = 1500;
/// Data of commands that the driver takes on, in bytes.
const LEN_MAX: u32 = 64 << 10;
/// Input that waits at most, in bytes: bounds the memory of the test itself.
const INBOX_MAX: usize = 1 << 20;
/// What the answers of the driver may add to the bound of the backlog.
const BACKLOG_SLACK: usize = 1 << 20;

/// A command as the driver knows it.
#[derive(Debug)]
struct Command {
    cid: u16,
    sqe: Sqe,
    data: CommandData,
    len: u32,
    /// In-capsule data was accepted, or data was asked for.
    fetching: bool,
    /// Bytes placed into the buffer so far.
    placed: u32,
    complete: bool,
    /// Bytes of a read that were queued.
    sent: u32,
    last_sent: bool,
}

struct Rig {
    queue: TargetQueue,
    config: TargetConfig,
    limits: QueueLimits,
    /// The largest limit so far: slots stay below twice that.
    entries_max: u16,
    connected: bool,
    commands: BTreeMap<u16, Command>,
    /// Slots with payload that was queued and not reported as sent.
    sending: BTreeSet<u16>,
    /// Those whose last piece was taken.
    reportable: Vec<u16>,
    host: Host,
    format: Format,
    inbox: Vec<u8>,
    last_pdu: Vec<u8>,
    /// Damage to the next PDU.
    damage: Option<(usize, u8)>,
    closed: Option<CloseReason>,
    /// The last batch was taken after the end.
    silent: bool,
    answers: u64,
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut rig = Rig::new(&mut input);
    for _ in 0..OPS_MAX {
        if input.is_empty() {
            break;
        }
        rig.step(&mut input);
    }
    rig.feed(usize::MAX);
    rig.finish();
}

impl Rig {
    fn new(input: &mut Input<'_>) -> Rig {
        let settings = input.u8();
        let config = TargetConfig {
            header_digest: settings & 1 != 0,
            data_digest: settings & 2 != 0,
            success_flag: settings & 4 != 0,
            cpda: input.pick(&[0, 1, 7, 31]),
            maxh2cdata: input.pick(&[4096, 8192, 1 << 20]),
            r2t_bytes: input.pick(&[u32::MAX, 1, 512, 4096, 6000]),
            c2h_bytes: input.pick(&[1 << 20, 512, 4096, 5000]),
        };
        let limits = QueueLimits {
            entries: input.pick(&[4, 1, 2, 16]),
            in_capsule: input.pick(&[4096, 0, 8192, 512]),
            flow_control: settings & 8 != 0,
        };
        let mut queue = TargetQueue::new(config);
        queue.set_limits(limits);
        Rig {
            queue,
            config,
            limits,
            // Before `set_limits` there were as many as before Connect.
            entries_max: longhaul_proto::target::ENTRIES_BEFORE_CONNECT.max(limits.entries),
            connected: false,
            commands: BTreeMap::new(),
            sending: BTreeSet::new(),
            reportable: Vec::new(),
            host: Host::default(),
            format: Format::default(),
            inbox: Vec::new(),
            last_pdu: Vec::new(),
            damage: None,
            closed: None,
            silent: false,
            answers: 0,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % op::COUNT {
            op::IC_REQ => self.ic_req(input),
            op::COMMAND => self.command(input),
            op::H2C_DATA => self.h2c_data(input),
            op::RAW => {
                let len = usize::from(input.u8());
                let bytes = input.bytes(len).to_vec();
                self.host.damaged = true;
                self.send(bytes);
            }
            op::TERM_REQ => {
                let fes = input.pick(&[Fes::InvalidHeaderField, Fes::SequenceError]);
                let quoted = vec![0x55; usize::from(input.u8() % 130)];
                let term = TermReq::new(PduType::H2CTermReq, fes, input.u32(), quoted.len());
                self.send([term.as_bytes(), &quoted].concat());
            }
            op::DAMAGE => self.damage = Some((input.u8().into(), input.u8())),
            op::REPEAT => {
                let times = usize::from(input.u8()) * 16;
                let room = (INBOX_MAX - self.inbox.len()) / self.last_pdu.len().max(1);
                self.host.damaged = true;
                self.inbox.extend(self.last_pdu.repeat(times.min(room)));
            }
            op::FEED => {
                let piece = input.u16();
                self.feed(if piece == 0 { usize::MAX } else { piece.into() });
            }
            op::FETCH => self.fetch(input),
            op::COMPLETE => self.complete(input),
            op::SEND_DATA => self.send_data(input),
            op::TRANSMIT => self.transmit(),
            op::PAYLOAD_SENT => self.payload_sent(input.u8().into()),
            _ => self.set_limits(input),
        }
        assert!(self.queue.open_commands() <= usize::from(self.entries_max));
    }

    // --- what the host sends ------------------------------------------------

    fn send(&mut self, mut pdu: Vec<u8>) {
        if let Some((at, xor)) = self.damage.take()
            && let Some(byte) = pdu.get_mut(at)
        {
            *byte ^= xor;
            self.host.damaged |= xor != 0;
        }
        if self.inbox.len() + pdu.len() > INBOX_MAX {
            self.host.damaged = true;
            return;
        }
        self.inbox.extend(&pdu);
        self.last_pdu = pdu;
    }

    fn ic_req(&mut self, input: &mut Input<'_>) {
        let bits = input.u8();
        let hpda = (bits >> 2) % 40;
        let mut req = IcReq::new(hpda, bits & 3, input.pick(&[0, 1, 3, u32::MAX]));
        if bits == 0xFF {
            req.pfv = 1.into();
        }
        self.send(req.as_bytes().to_vec());
        if self.host.ic_req.is_none() {
            self.host.ic_req = Some(req);
            self.format = Format {
                header_digest: self.config.header_digest && bits & 1 != 0,
                data_digest: self.config.data_digest && bits & 2 != 0,
                align: self.config.cpda,
            };
        }
    }

    fn command(&mut self, input: &mut Input<'_>) {
        let opcode = input.pick(&[0x01, 0x02, 0x00, 0x7F, 0x05, 0x09, 0x03, 0xC1]);
        let cid = u16::from(input.u8() % 24);
        let len = input.length();
        let carried = match input.u8() % 4 {
            0 => 0,
            1 => len,
            2 => len.wrapping_add(4),
            _ => input.length(),
        };
        let carried = carried.min(20_000);
        let sgl = match input.u8() % 5 {
            0 => Sgl::transport(len),
            1 => Sgl::in_capsule(0, len),
            2 => Sgl::in_capsule(input.u32().into(), len),
            _ => Sgl::make(0, len, input.u8()),
        };
        let mut sqe = Sqe::new(opcode).with_cid(cid).with_sgl(sgl).with_nsid(input.u8().into());
        if input.u8() == 0xFF {
            sqe.flags = input.u8();
        }
        let data = vec![0xA5; carried as usize];
        self.send(Pdu::encode(PduType::CapsuleCmd, 0, &sqe.to_bytes(), &data, self.format));
    }

    /// Answers an R2T, or nearly so.
    fn h2c_data(&mut self, input: &mut Input<'_>) {
        let which = usize::from(input.u8());
        let (cid, ttag, offset, left) = self.host.next_r2t(which).unwrap_or_default();
        let wanted = match input.u8() {
            0 => left,
            code => left.min(u32::from(code) * 64),
        };
        let mut len = wanted.min(self.config.maxh2cdata).min(LEN_MAX);
        let (mut cid, mut ttag, mut offset) = (cid, ttag, offset);
        let mut bits = if len == left { flags::LAST_PDU } else { 0 };
        let mut declared = len;
        let how = input.u8();
        self.host.damaged |= (0xF8..=0xFD).contains(&how);
        match how {
            0xF8 => cid ^= 1,
            0xF9 => ttag ^= 1 << (input.u8() % 16),
            0xFA => offset = offset.wrapping_add(input.u32()),
            0xFB => declared = declared.wrapping_add(input.u32()),
            0xFC => bits ^= flags::LAST_PDU,
            0xFD => {
                len += 4;
                declared = len;
            }
            _ => self.host.answered(which, len),
        }
        let (common, _) = CommonHeader::build(PduType::H2CData, bits, len, self.format);
        let header = DataPdu::new(common, cid, ttag, offset, declared);
        let data = vec![0x5A; len as usize];
        self.send(Pdu::encode(PduType::H2CData, bits, &header.as_bytes()[8..], &data, self.format));
    }

    fn announced(&mut self, slot: u16, sqe: Sqe, data: CommandData) {
        assert!(slot < 2 * self.entries_max, "slots are bounded");
        assert!(!self.sending.contains(&slot), "memory of slot {slot} is still being sent");
        let len = match data {
            CommandData::None => 0,
            CommandData::InCapsule { len } => {
                let most = if sqe.opcode == 0x7F { 8192 } else { 0 };
                assert!(len <= self.limits.in_capsule.max(most), "in-capsule data is bounded");
                len
            }
            CommandData::HostBuffer { len } => len,
        };
        assert!((len == 0) == (data == CommandData::None));
        let command = Command {
            cid: sqe.cid(),
            sqe,
            data,
            len,
            fetching: false,
            placed: 0,
            complete: false,
            sent: 0,
            last_sent: false,
        };
        assert!(self.commands.values().all(|c| c.cid != sqe.cid()), "identifiers are used once at a time");
        assert!(self.commands.insert(slot, command).is_none(), "slot {slot} is in use");
        assert_eq!(self.queue.find(sqe.cid()), Some(slot));
        self.host.submitted(sqe.cid(), len);
    }

    // --- what the driver does -----------------------------------------------

    /// An open command that fits.
    fn choose(&self, input: &mut Input<'_>, fits: impl Fn(&Command) -> bool) -> Option<u16> {
        let all: Vec<u16> = self.commands.iter().filter(|(_, c)| fits(c)).map(|(&slot, _)| slot).collect();
        let at = usize::from(input.u8());
        (!all.is_empty()).then(|| all[at % all.len()])
    }

    fn fetch(&mut self, input: &mut Input<'_>) {
        let writes = |c: &Command| match c.data {
            CommandData::None => false,
            CommandData::InCapsule { .. } => !c.fetching,
            CommandData::HostBuffer { len } => {
                !c.fetching && len <= LEN_MAX && c.sqe.direction() == Direction::ToController
            }
        };
        let Some(slot) = self.choose(input, writes) else { return };
        let command = self.commands.get_mut(&slot).expect("just chosen");
        command.fetching = true;
        match command.data {
            CommandData::InCapsule { .. } => self.queue.accept_payload(slot),
            _ => self.queue.request_data(slot),
        }
    }

    fn complete(&mut self, input: &mut Input<'_>) {
        let Some(slot) = self.choose(input, |_| true) else { return };
        let command = self.commands.remove(&slot).expect("just chosen");
        let status = input.pick(&[Status::SUCCESS, Status::INVALID_FIELD.dnr(), Status::ABORT_REQUESTED]);
        self.answers += 1;
        let draining = matches!(command.data, CommandData::HostBuffer { .. })
            && command.fetching
            && command.placed < command.len;
        self.queue.complete(slot, status, self.answers);
        if self.closed.is_none() {
            self.host.answer(command.cid, Answer { status, result: self.answers, draining });
        }
        self.connected = true;
    }

    fn send_data(&mut self, input: &mut Input<'_>) {
        let reads = |c: &Command| {
            matches!(c.data, CommandData::HostBuffer { len } if len <= LEN_MAX)
                && c.sqe.direction() == Direction::ToHost
                && !c.last_sent
        };
        let Some(slot) = self.choose(input, reads) else { return };
        let how = input.u8();
        let part = input.length();
        let command = self.commands.get_mut(&slot).expect("just chosen");
        let (offset, left) = (command.sent, command.len - command.sent);
        let len = if how & 1 != 0 { left } else { part.min(left) };
        command.sent += len;
        if len > 0 && self.closed.is_none() {
            self.sending.insert(slot);
        }
        if how & 2 == 0 {
            command.last_sent = how & 4 != 0 || command.sent == command.len;
            let last = command.last_sent;
            return self.queue.send_data(slot, offset, len, last);
        }
        let command = self.commands.remove(&slot).expect("just chosen");
        self.answers += 1;
        let result = if how & 8 != 0 { self.answers } else { 0 };
        if self.closed.is_none() {
            let status = Status::SUCCESS;
            self.host.answer(command.cid, Answer { status, result, draining: false });
        }
        self.queue.send_data_and_complete(slot, offset, len, result);
        self.connected = true;
    }

    fn set_limits(&mut self, input: &mut Input<'_>) {
        let entries = input.pick(&[1, 2, 8, 32]);
        let in_capsule = input.pick(&[0, 4096, 16384]);
        // Only until Connect, the first command, is answered.
        if self.connected {
            return;
        }
        self.limits = QueueLimits { entries, in_capsule, ..self.limits };
        self.entries_max = self.entries_max.max(entries);
        self.queue.set_limits(self.limits);
    }

    fn transmit(&mut self) {
        let mut batch = Batch::default();
        if !self.queue.poll_transmit(&mut batch) {
            assert!(!self.queue.has_transmit() && batch.is_empty());
            return;
        }
        assert!(!self.silent, "nothing is queued behind the end");
        assert!(batch.bytes.len() <= BACKLOG_MAX + BACKLOG_SLACK, "output is bounded");
        self.silent = self.closed.is_some();
        batch.fill_digests(|_, _, len| crc32c(&vec![0; len as usize]));
        for piece in &batch.pieces {
            match *piece {
                Piece::Bytes { start, len } => {
                    self.host.parser.push(&batch.bytes[start as usize..][..len as usize]);
                }
                Piece::Payload { slot, len, last, .. } => {
                    assert!(self.sending.contains(&slot), "memory of slot {slot} was given back");
                    self.host.parser.push(&vec![0; len as usize]);
                    self.reportable.extend(last.then_some(slot));
                }
            }
        }
        self.host.receive(self.limits.flow_control);
    }

    fn payload_sent(&mut self, at: usize) {
        if self.reportable.is_empty() {
            return;
        }
        let slot = self.reportable.swap_remove(at % self.reportable.len());
        assert!(self.sending.remove(&slot), "slot {slot} is reported once");
        self.queue.payload_sent(slot);
    }

    /// Checks the final state.
    fn finish(&mut self) {
        self.transmit();
        match self.closed {
            None => assert_eq!(self.host.terminated, None),
            Some(CloseReason::Terminated { .. }) => {
                assert_eq!(self.host.terminated, None, "a TermReq is not answered with another");
            }
            Some(CloseReason::Fault(fault)) => {
                assert_eq!(self.host.terminated, Some(fault.fes as u16), "a fault ends with a TermReq");
            }
        }
        if self.closed.is_none() {
            self.host.all_answered();
            assert!(!self.host.parser.is_within(), "whole PDUs are sent");
        }
        self.queue.handle(&[]);
        while !self.reportable.is_empty() {
            self.payload_sent(0);
        }
    }
}

impl Receiving for Rig {
    type Queue = TargetQueue;

    fn queue(&mut self) -> &mut TargetQueue {
        &mut self.queue
    }

    fn inbox(&mut self) -> &mut Vec<u8> {
        &mut self.inbox
    }

    fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    fn payload(&mut self, window: &[u8], slot: u16, offset: u32, len: u32) -> usize {
        let command = self.commands.get_mut(&slot).expect("payload is for an open command");
        assert!(command.fetching, "payload is for a command that asked for it");
        let end = offset.checked_add(len).expect("payload ends within 4 GiB");
        assert!(len > 0 && end <= command.len, "payload is within the command's buffer");
        let n = window.len().min(len as usize);
        command.placed += n as u32;
        assert!(command.placed <= command.len, "no byte comes twice");
        if self.queue.params().data_digest || n.is_multiple_of(2) {
            self.queue.handle_payload(&window[..n]);
        } else {
            self.queue.handle_payload_len(n);
        }
        n
    }

    fn events(&mut self) {
        while let Some(event) = self.queue.poll_event() {
            assert!(self.closed.is_none(), "{event:?} behind the last event");
            match event {
                TargetEvent::Ready(params) => self.host.ready(params, &self.config),
                TargetEvent::Command { slot, sqe, data } => self.announced(slot, sqe, data),
                TargetEvent::DataComplete { slot, result } => {
                    let command = self.commands.get_mut(&slot).expect("data of an open command");
                    assert!(command.placed == command.len && !command.complete, "all of it, once");
                    command.complete = true;
                    assert!(result.is_ok() || self.queue.params().data_digest);
                    assert!(result.is_ok() || self.host.damaged, "undamaged data has the right digest");
                }
                TargetEvent::Displaced { .. } => unreachable!("no command is held"),
                TargetEvent::Closed(reason) => self.closed = Some(reason),
            }
        }
    }
}
