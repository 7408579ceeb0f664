//! A driver for a [`TargetQueue`] with a memory device behind it.

use longhaul_wire::command::{Direction, Sqe};
use longhaul_wire::completion::Status;
use std::collections::{HashMap, VecDeque};

use super::host::BLOCK;
use super::{Rng, flatten};
use crate::target::{CommandData, QueueLimits, TargetEvent, TargetQueue};
use crate::transport::{Batch, CloseReason, Endpoint, Want};

/// A command that has come.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// Slot of the command in the target's queue.
    pub slot: u16,
    /// The submission queue entry.
    pub sqe: Sqe,
    /// Data that came with the command, or is to be requested.
    pub data: CommandData,
}

/// How a target answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// At once, in order.
    AtOnce,
    /// When the input is used up, in random order, with reads in pieces of
    /// random sizes that interleave.
    Shuffled,
    /// Never: commands gather in [`TargetEnd::pending`], for the test.
    ByHand,
}

/// A controller with its device.
#[derive(Debug)]
pub struct TargetEnd {
    /// The state machine.
    pub queue: TargetQueue,
    /// Content of the device.
    pub device: Vec<u8>,
    /// Commands that wait for their answer.
    pub pending: Vec<Pending>,
    /// Writes whose data has come.
    pub complete: Vec<(u16, Result<(), Status>)>,
    /// Why the queue has ended.
    pub closed: Option<CloseReason>,
    /// Identifiers that the host has reused for another command.
    pub displaced: Vec<u16>,
    answers: Answers,
    /// Set when the connection is up, as Connect would.
    limits: QueueLimits,
    memory: HashMap<u16, Vec<u8>>,
    writes: HashMap<u16, Sqe>,
    /// Reads under way: slot and how much was sent.
    reads: Vec<(u16, u32)>,
    input: VecDeque<u8>,
    batch: Batch,
    rng: Rng,
}

impl TargetEnd {
    /// A driver for a device of `size` bytes.
    pub fn new(
        queue: TargetQueue,
        limits: QueueLimits,
        answers: Answers,
        size: usize,
        seed: u64,
    ) -> TargetEnd {
        TargetEnd {
            queue,
            device: vec![0; size],
            pending: Vec::new(),
            complete: Vec::new(),
            closed: None,
            displaced: Vec::new(),
            answers,
            limits,
            memory: HashMap::new(),
            writes: HashMap::new(),
            reads: Vec::new(),
            input: VecDeque::new(),
            batch: Batch::default(),
            rng: Rng::new(seed),
        }
    }

    /// Takes bytes from the connection.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.input.extend(bytes);
        self.pump();
    }

    /// Bytes that are stuck behind back-pressure.
    pub fn stuck(&self) -> usize {
        self.input.len()
    }

    /// Takes as much input as the queue wants.
    pub fn pump(&mut self) {
        loop {
            self.poll_events();
            let input = self.input.make_contiguous();
            if input.is_empty() {
                break;
            }
            let n = match self.queue.want() {
                Want::Nothing => break,
                Want::Bytes => self.queue.handle(input),
                Want::Payload { slot, offset, len } => {
                    let n = 1 + self.rng.below(input.len().min(len as usize));
                    let memory = self.memory.get_mut(&slot).expect("payload for accepted data");
                    memory[offset as usize..][..n].copy_from_slice(&input[..n]);
                    self.queue.handle_payload(&input[..n]);
                    n
                }
            };
            self.input.drain(..n);
        }
        if self.answers == Answers::Shuffled {
            self.shuffle();
        }
    }

    fn poll_events(&mut self) {
        while let Some(event) = self.queue.poll_event() {
            assert!(self.closed.is_none(), "{event:?} behind the last event");
            match event {
                TargetEvent::Ready(_) => self.queue.set_limits(self.limits),
                TargetEvent::Closed(reason) => self.closed = Some(reason),
                TargetEvent::Command { slot, sqe, data } => self.command(Pending { slot, sqe, data }),
                TargetEvent::DataComplete { slot, result } if self.answers == Answers::ByHand => {
                    self.complete.push((slot, result));
                }
                TargetEvent::DataComplete { slot, result } => self.store(slot, result),
                TargetEvent::Displaced { cid, .. } => self.displaced.push(cid),
            }
        }
    }

    fn command(&mut self, command: Pending) {
        match (self.answers, command.data) {
            (Answers::ByHand, _) => self.pending.push(command),
            // Holds up the connection, so it is not put off.
            (_, CommandData::InCapsule { .. }) => self.execute(command),
            (Answers::AtOnce, _) => self.execute(command),
            (Answers::Shuffled, _) => self.pending.push(command),
        }
    }

    /// Memory for a command's data.
    pub fn allocate(&mut self, slot: u16, len: u32) -> &mut Vec<u8> {
        let before = self.memory.insert(slot, vec![0; len as usize]);
        assert!(before.is_none(), "slot {slot} was not free");
        self.memory.get_mut(&slot).expect("just inserted")
    }

    /// Does what a command asks for.
    pub fn execute(&mut self, Pending { slot, sqe, data }: Pending) {
        let at = sqe.cdw10() as usize * BLOCK;
        let (CommandData::InCapsule { len } | CommandData::HostBuffer { len }) = data else {
            return self.queue.complete(slot, Status::SUCCESS, 0);
        };
        if at + len as usize > self.device.len() {
            return self.queue.complete(slot, Status::LBA_OUT_OF_RANGE, 0);
        }
        if sqe.direction() == Direction::ToHost {
            let content = self.device[at..at + len as usize].to_vec();
            self.allocate(slot, len).copy_from_slice(&content);
            match self.answers {
                Answers::Shuffled => self.reads.push((slot, 0)),
                _ => self.queue.send_data_and_complete(slot, 0, len, 0),
            }
            return;
        }
        self.allocate(slot, len);
        self.writes.insert(slot, sqe);
        match data {
            CommandData::InCapsule { .. } => self.queue.accept_payload(slot),
            _ => self.queue.request_data(slot),
        }
    }

    /// Writes the data of a write that has come to the device, or fails it.
    pub fn store(&mut self, slot: u16, result: Result<(), Status>) {
        let memory = self.memory.remove(&slot).expect("memory of a write");
        let at = self.writes.remove(&slot).expect("a write").cdw10() as usize * BLOCK;
        if result.is_ok() {
            self.device[at..at + memory.len()].copy_from_slice(&memory);
        }
        self.queue.complete(slot, result.err().unwrap_or(Status::SUCCESS), 0);
    }

    fn shuffle(&mut self) {
        while !self.pending.is_empty() || !self.reads.is_empty() {
            let pick = self.rng.below(self.pending.len() + self.reads.len());
            if pick < self.pending.len() {
                let command = self.pending.swap_remove(pick);
                self.execute(command);
                continue;
            }
            let pick = pick - self.pending.len();
            let (slot, sent) = self.reads[pick];
            let left = self.memory[&slot].len() as u32 - sent;
            let n = 1 + self.rng.below(left as usize) as u32;
            if n < left {
                self.queue.send_data(slot, sent, n, false);
                self.reads[pick].1 += n;
                continue;
            }
            self.reads.swap_remove(pick);
            if self.rng.below(2) == 0 {
                self.queue.send_data_and_complete(slot, sent, n, 0);
            } else {
                self.queue.send_data(slot, sent, n, true);
                self.queue.complete(slot, Status::SUCCESS, 0);
            }
        }
    }

    /// The bytes to send next; empty if nothing is queued.
    pub fn transmit(&mut self) -> Vec<u8> {
        if !self.queue.poll_transmit(&mut self.batch) {
            return Vec::new();
        }
        let memory = &self.memory;
        let (wire, last) = flatten(&mut self.batch, |slot| memory.get(&slot).expect("memory of a read"));
        for slot in last {
            self.memory.remove(&slot);
            self.queue.payload_sent(slot);
        }
        self.pump();
        wire
    }
}
