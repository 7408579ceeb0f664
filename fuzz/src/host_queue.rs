//! The host's end of a connection, with commands under way and a driver that
//! sends and reports when it likes.
//!
//! Input: settings, then operations ([`op`]) with their arguments.

mod model;
pub mod op;

use crate::input::Input;
use crate::pdus::Pdu;
use crate::receiving::Receiving;
use longhaul_proto::host::{HostConfig, HostData, HostEvent, HostQueue, SubmitError};
use longhaul_proto::transport::{BACKLOG_MAX, Batch, CloseReason, Endpoint, Piece};
use longhaul_wire::command::Sqe;
use longhaul_wire::completion::{Cqe, Status};
use longhaul_wire::digest::crc32c;
use longhaul_wire::pdu::{CommonHeader, DataPdu, Fes, Format, IcResp, PduType, TermReq, flags};
use model::{Controller, Seen};
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::IntoBytes;

/// Operations of one input at most.
const OPS_MAX: usize = 1500;
/// Data of one command, in bytes.
const LEN_MAX: u32 = 64 << 10;
/// Input that waits at most, in bytes: bounds the memory of the test itself.
const INBOX_MAX: usize = 1 << 20;
/// What the commands of the driver may add to the bound of the backlog.
const BACKLOG_SLACK: usize = 1 << 20;

/// A command as the driver knows it.
#[derive(Clone, Copy, Debug)]
struct Command {
    fill: u8,
    data: HostData,
    placed: u32,
}

struct Rig {
    queue: HostQueue,
    config: HostConfig,
    commands: BTreeMap<u16, Command>,
    submitted: u8,
    /// Slots with payload in a batch that was taken, until they are reported.
    sending: BTreeSet<u16>,
    /// Those whose last piece was taken.
    reportable: Vec<u16>,
    controller: Controller,
    format: Format,
    inbox: Vec<u8>,
    damage: Option<(usize, u8)>,
    closed: Option<CloseReason>,
    silent: bool,
    ic_resp: bool,
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
    rig.finish();
}

impl Rig {
    fn new(input: &mut Input<'_>) -> Rig {
        let settings = input.u8();
        let config = HostConfig {
            header_digest: settings & 1 != 0,
            data_digest: settings & 2 != 0,
            no_flow_control: settings & 4 != 0,
            hpda: input.pick(&[0, 1, 7, 31]),
            maxr2t: input.pick(&[1, 2, 4, u32::MAX]),
            entries: input.pick(&[4, 2, 3, 17]),
            in_capsule: input.pick(&[4096, 0, 8192]),
        };
        Rig {
            queue: HostQueue::new(config),
            config,
            commands: BTreeMap::new(),
            submitted: 0,
            sending: BTreeSet::new(),
            reportable: Vec::new(),
            controller: Controller::default(),
            format: Format::default(),
            inbox: Vec::new(),
            damage: None,
            closed: None,
            silent: false,
            ic_resp: false,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % op::COUNT {
            op::IC_RESP => self.ic_resp(input),
            op::SUBMIT => self.submit(input),
            op::RESPONSE => self.response(input),
            op::C2H_DATA => self.c2h_data(input),
            op::R2T => self.r2t(input),
            op::RAW => {
                let len = usize::from(input.u8());
                let bytes = input.bytes(len).to_vec();
                self.controller.damaged = true;
                self.send(bytes);
            }
            op::TERM_REQ => {
                let fes = input.pick(&[Fes::InvalidHeaderField, Fes::SequenceError]);
                let quoted = vec![0x55; usize::from(input.u8() % 130)];
                let term = TermReq::new(PduType::C2HTermReq, fes, input.u32(), quoted.len());
                self.send([term.as_bytes(), &quoted].concat());
            }
            op::DAMAGE => self.damage = Some((input.u8().into(), input.u8())),
            op::FEED => {
                let piece = input.u16();
                self.feed(if piece == 0 { usize::MAX } else { piece.into() });
            }
            op::TRANSMIT => self.transmit(),
            op::PAYLOAD_SENT => self.payload_sent(input.u8().into()),
            _ => self.queue.set_in_capsule(input.length()),
        }
        assert!(self.queue.outstanding() < usize::from(self.config.entries));
        assert!(self.queue.outstanding() >= self.commands.len() || self.closed.is_some());
    }

    // --- what the controller sends ------------------------------------------

    fn send(&mut self, mut pdu: Vec<u8>) {
        if let Some((at, xor)) = self.damage.take()
            && let Some(byte) = pdu.get_mut(at)
        {
            *byte ^= xor;
            self.controller.damaged |= xor != 0;
        }
        if self.inbox.len() + pdu.len() > INBOX_MAX {
            self.controller.damaged = true;
            return;
        }
        self.inbox.extend(&pdu);
    }

    fn ic_resp(&mut self, input: &mut Input<'_>) {
        let bits = input.u8();
        let cpda = (bits >> 2) % 40;
        let mut resp = IcResp::new(cpda, bits & 3, input.pick(&[4096, 8192, 1 << 20, 4095]));
        if bits == 0xFF {
            resp.pfv = 1.into();
        }
        self.send(resp.as_bytes().to_vec());
        if !std::mem::replace(&mut self.ic_resp, true) {
            let [header_digest, data_digest] = [bits & 1 != 0, bits & 2 != 0];
            self.format = Format { header_digest, data_digest, align: self.config.hpda };
        }
    }

    /// A command on the wire that fits, and where it is.
    fn choose(&self, input: &mut Input<'_>, fits: impl Fn(&Seen) -> bool) -> Option<usize> {
        let all = &self.controller.commands;
        let fitting: Vec<_> = (0..all.len()).filter(|&at| fits(&all[at])).collect();
        let at = usize::from(input.u8());
        (!fitting.is_empty()).then(|| fitting[at % fitting.len()])
    }

    fn response(&mut self, input: &mut Input<'_>) {
        let at = self.choose(input, |_| true);
        let how = input.u8();
        let sqhd = input.pick(&[0xFFFF, 0, 1, 2, 3, 16, 400]);
        let cid = match at {
            Some(at) if how < 0xF0 => {
                let command = self.controller.commands.remove(at);
                // Success before all data was asked for is wrong.
                let short = command.writes && command.asked < command.len;
                self.controller.damaged |= short && how.is_multiple_of(4);
                command.cid
            }
            _ => {
                self.controller.damaged = true;
                u16::from(how) << 4 | u16::from(input.u8())
            }
        };
        let status = [Status::SUCCESS, Status::INVALID_FIELD, Status::ABORT_REQUESTED, Status::SUCCESS];
        let status = if how % 4 == 3 { Status::INTERNAL_ERROR } else { status[usize::from(how % 4)] };
        self.controller.damaged |= sqhd != 0xFFFF && sqhd >= self.config.entries;
        let cqe = Cqe::new(cid, status).with_result(how.into()).with_sqhd(sqhd);
        self.send(Pdu::encode(PduType::CapsuleResp, 0, &cqe.to_bytes(), &[], self.format));
    }

    fn c2h_data(&mut self, input: &mut Input<'_>) {
        let at = self.choose(input, |c| !c.writes && c.len > 0 && !c.last_sent && c.sent < c.len);
        let part = input.u8();
        let how = input.u8();
        let (mut cid, mut offset, mut len) = (0, 0, 16);
        let mut bits = 0;
        if let Some(at) = at {
            let command = &mut self.controller.commands[at];
            let left = command.len - command.sent;
            (cid, offset) = (command.cid, command.sent);
            len = if part == 0 { left } else { left.min(u32::from(part) * 64) };
            command.sent += len;
            if len == left || how & 4 != 0 {
                bits = flags::LAST_PDU;
                command.last_sent = true;
                if how & 8 != 0 {
                    bits |= flags::SUCCESS;
                    self.controller.commands.remove(at);
                }
            }
        }
        let mut declared = len;
        self.controller.damaged |= how >= 0xF9 || at.is_none();
        match how {
            0xF9 => cid ^= 1 << (input.u8() % 16),
            0xFA => offset = offset.wrapping_add(input.u32()),
            0xFB => declared = declared.wrapping_add(input.u32()),
            0xFC => bits ^= flags::LAST_PDU,
            0xFD => bits ^= flags::SUCCESS,
            0xFE => {
                len += 64;
                declared = len;
            }
            _ => {}
        }
        let (common, _) = CommonHeader::build(PduType::C2HData, bits, len, self.format);
        let header = DataPdu::new(common, cid, 0, offset, declared);
        let data = vec![0xC3; len as usize];
        self.send(Pdu::encode(PduType::C2HData, bits, &header.as_bytes()[8..], &data, self.format));
    }

    fn r2t(&mut self, input: &mut Input<'_>) {
        let at = self.choose(input, |c| c.writes && c.asked < c.len);
        let part = input.u8();
        let how = input.u8();
        let mut ttag = u16::from(input.u8());
        let (mut cid, mut offset, mut len, mut fill) = (0, 0, 16, 0);
        if let Some(at) = at {
            let command = &mut self.controller.commands[at];
            let left = command.len - command.asked;
            (cid, offset, fill) = (command.cid, command.asked, command.fill);
            len = if part == 0 { left } else { left.min(u32::from(part) * 64) };
            command.asked += len;
        }
        self.controller.damaged |= how >= 0xFA || at.is_none();
        match how {
            0xFA => cid ^= 1 << (input.u8() % 16),
            0xFB => offset = offset.wrapping_add(input.u32()),
            0xFC => len = len.wrapping_add(input.u32()),
            0xFD => ttag = 0xFFFF,
            _ => {}
        }
        self.controller.asked(cid, ttag, offset, len, fill);
        let (common, _) = CommonHeader::build(PduType::R2T, 0, 0, self.format);
        let header = DataPdu::new(common, cid, ttag, offset, len);
        self.send(Pdu::encode(PduType::R2T, 0, &header.as_bytes()[8..], &[], self.format));
    }

    // --- what the driver does -----------------------------------------------

    fn submit(&mut self, input: &mut Input<'_>) {
        let kind = input.u8();
        let len = input.length() % (LEN_MAX + 1);
        let (opcode, data) = match kind % 4 {
            0 => (0x02, HostData::Read { len }),
            1 => (0x01, HostData::Write { len }),
            2 => (0x7F, HostData::Write { len }),
            _ => (0x00, HostData::None),
        };
        let room = self.queue.room();
        match self.queue.submit(Sqe::new(opcode), data) {
            Ok(slot) => {
                assert!(room > 0 && slot < self.config.entries - 1);
                self.submitted = self.submitted.wrapping_add(1);
                let command = Command { fill: self.submitted, data, placed: 0 };
                assert!(self.commands.insert(slot, command).is_none(), "slot {slot} is in use");
                self.controller.fills.insert(self.queue.cid(slot), self.submitted);
            }
            Err(SubmitError::Full) => assert_eq!(room, 0),
            Err(SubmitError::NotReady) => assert!(self.controller.params.is_none()),
            Err(SubmitError::Closed) => assert!(self.closed.is_some()),
        }
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
        let commands = &self.commands;
        let fill = |slot: u16| commands.get(&slot).expect("memory of a command under way").fill;
        batch.fill_digests(|slot, _, len| crc32c(&vec![fill(slot); len as usize]));
        for piece in &batch.pieces {
            match *piece {
                Piece::Bytes { start, len } => {
                    self.controller.parser.push(&batch.bytes[start as usize..][..len as usize]);
                }
                Piece::Payload { slot, offset, len, last } => {
                    let HostData::Write { len: all } = commands[&slot].data else { panic!("not a write") };
                    assert!(offset.checked_add(len).is_some_and(|end| end <= all), "within its memory");
                    self.controller.parser.push(&vec![fill(slot); len as usize]);
                    self.sending.insert(slot);
                    self.reportable.extend(last.then_some(slot));
                }
            }
        }
        self.controller.receive();
    }

    fn payload_sent(&mut self, at: usize) {
        if self.reportable.is_empty() {
            return;
        }
        let slot = self.reportable.swap_remove(at % self.reportable.len());
        assert!(self.sending.remove(&slot), "slot {slot} is reported once");
        self.queue.payload_sent(slot);
        self.events();
    }

    /// Checks the final state.
    fn finish(&mut self) {
        self.feed(usize::MAX);
        self.transmit();
        while !self.reportable.is_empty() {
            self.payload_sent(0);
        }
        self.events();
        match self.closed {
            None | Some(CloseReason::Terminated { .. }) => assert_eq!(self.controller.terminated, None),
            Some(CloseReason::Fault(fault)) => {
                assert_eq!(self.controller.terminated, Some(fault.fes as u16), "a fault ends with a TermReq");
            }
        }
        if self.closed.is_none() {
            assert!(!self.controller.parser.is_within(), "whole PDUs are sent");
            self.controller.all_sent();
            if !self.controller.damaged {
                assert_eq!(
                    self.commands.len(),
                    self.controller.commands.len(),
                    "an answered command is complete"
                );
            }
        }
    }
}

impl Receiving for Rig {
    type Queue = HostQueue;

    fn queue(&mut self) -> &mut HostQueue {
        &mut self.queue
    }

    fn inbox(&mut self) -> &mut Vec<u8> {
        &mut self.inbox
    }

    fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    fn payload(&mut self, window: &[u8], slot: u16, offset: u32, len: u32) -> usize {
        let command = self.commands.get_mut(&slot).expect("payload is for a command under way");
        let HostData::Read { len: asked } = command.data else { panic!("payload is for a read") };
        let end = offset.checked_add(len).expect("payload ends within 4 GiB");
        assert!(len > 0 && end <= asked, "payload is within the command's buffer");
        assert_eq!(offset, command.placed, "no byte comes twice");
        let n = window.len().min(len as usize);
        command.placed += n as u32;
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
                HostEvent::Ready(params) => {
                    assert!(
                        self.config.header_digest || !params.header_digest,
                        "only digests that were requested"
                    );
                    assert!(
                        self.config.data_digest || !params.data_digest,
                        "only digests that were requested"
                    );
                    // ICReq, which has no digests, went before.
                    self.transmit();
                    self.controller.ready(params);
                }
                HostEvent::Completion { slot, cqe, received } => {
                    let command = self.commands.remove(&slot).expect("a completion is reported once");
                    assert!(!self.sending.contains(&slot), "memory of slot {slot} is still being sent");
                    assert_eq!(received, command.placed);
                    assert_eq!(cqe.cid(), self.queue.cid(slot));
                    let bad = cqe.status().is(Status::TRANSIENT_TRANSPORT);
                    assert!(!bad || self.controller.damaged, "undamaged data has the right digest");
                }
                HostEvent::Closed(reason) => self.closed = Some(reason),
            }
        }
    }
}
