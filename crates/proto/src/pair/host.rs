//! A driver for a [`HostQueue`] whose memory is vectors.

use longhaul_wire::command::Sqe;
use longhaul_wire::completion::Cqe;
use std::collections::{HashMap, VecDeque};

use super::{Rng, flatten};
use crate::host::{HostData, HostEvent, HostQueue, SubmitError};
use crate::transport::{Batch, CloseReason, Endpoint, Want};

/// Bytes of a logical block, in which the commands here count.
pub const BLOCK: usize = 512;

/// A completed command.
#[derive(Clone, Debug)]
pub struct CompletedCommand {
    /// What `submit` gave.
    pub slot: u16,
    /// The completion queue entry.
    pub cqe: Cqe,
    /// Bytes of a read that came.
    pub received: u32,
    /// The command's memory.
    pub memory: Vec<u8>,
}

/// A host with its memory.
#[derive(Debug)]
pub struct HostEnd {
    /// The state machine.
    pub queue: HostQueue,
    /// Whether the connection is set up.
    pub ready: bool,
    /// Completions, in order; to be taken by the test.
    pub done: Vec<CompletedCommand>,
    /// Why the queue has ended.
    pub closed: Option<CloseReason>,
    memory: HashMap<u16, Vec<u8>>,
    input: VecDeque<u8>,
    batch: Batch,
    rng: Rng,
}

impl HostEnd {
    /// A driver that splits payload at random places.
    pub fn new(queue: HostQueue, seed: u64) -> HostEnd {
        HostEnd {
            queue,
            ready: false,
            done: Vec::new(),
            closed: None,
            memory: HashMap::new(),
            input: VecDeque::new(),
            batch: Batch::default(),
            rng: Rng::new(seed),
        }
    }

    /// Submits a command; `memory` is written from or read into.
    pub fn submit(&mut self, sqe: Sqe, data: HostData, memory: Vec<u8>) -> Result<u16, SubmitError> {
        let slot = self.queue.submit(sqe, data)?;
        let before = self.memory.insert(slot, memory);
        assert!(before.is_none(), "slot {slot} was not free");
        Ok(slot)
    }

    /// Writes `data` at block `lba`.
    pub fn write(&mut self, lba: u32, data: Vec<u8>) -> Result<u16, SubmitError> {
        let sqe = Sqe::new(0x01).with_cdw(10, lba);
        self.submit(sqe, HostData::Write { len: data.len() as u32 }, data)
    }

    /// Reads `len` bytes from block `lba`.
    pub fn read(&mut self, lba: u32, len: usize) -> Result<u16, SubmitError> {
        let sqe = Sqe::new(0x02).with_cdw(10, lba);
        self.submit(sqe, HostData::Read { len: len as u32 }, vec![0; len])
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

    fn pump(&mut self) {
        loop {
            self.poll_events();
            let input = self.input.make_contiguous();
            if input.is_empty() {
                return;
            }
            let n = match self.queue.want() {
                Want::Nothing => return,
                Want::Bytes => self.queue.handle(input),
                Want::Payload { slot, offset, len } => {
                    let n = 1 + self.rng.below(input.len().min(len as usize));
                    let memory = self.memory.get_mut(&slot).expect("payload for a live command");
                    memory[offset as usize..][..n].copy_from_slice(&input[..n]);
                    self.queue.handle_payload(&input[..n]);
                    n
                }
            };
            self.input.drain(..n);
        }
    }

    fn poll_events(&mut self) {
        while let Some(event) = self.queue.poll_event() {
            assert!(self.closed.is_none(), "{event:?} behind the last event");
            match event {
                HostEvent::Ready(_) => self.ready = true,
                HostEvent::Closed(reason) => self.closed = Some(reason),
                HostEvent::Completion { slot, cqe, received } => {
                    let memory = self.memory.remove(&slot).expect("completion of a live command");
                    self.done.push(CompletedCommand { slot, cqe, received, memory });
                }
            }
        }
    }

    /// The bytes to send next; empty if nothing is queued.
    pub fn transmit(&mut self) -> Vec<u8> {
        if !self.queue.poll_transmit(&mut self.batch) {
            return Vec::new();
        }
        let memory = &self.memory;
        let (wire, last) =
            flatten(&mut self.batch, |slot| memory.get(&slot).expect("memory of a live command"));
        for slot in last {
            self.queue.payload_sent(slot);
        }
        self.pump();
        wire
    }
}
