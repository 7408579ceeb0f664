//! In the steady state the state machines do not allocate.

use longhaul_proto::host::{HostConfig, HostData, HostEvent, HostQueue};
use longhaul_proto::target::{CommandData, QueueLimits, TargetConfig, TargetEvent, TargetQueue};
use longhaul_proto::transport::{Batch, Endpoint, Piece, Want};
use longhaul_wire::command::Sqe;
use longhaul_wire::completion::Status;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    /// Allocations of this thread: the test harness has its own.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes everything on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `alloc` above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LEN: u32 = 4096;

struct Loop {
    host: HostQueue,
    target: TargetQueue,
    to_target: Batch,
    to_host: Batch,
    staging: Vec<u8>,
}

impl Loop {
    /// One queue full of commands, through staging buffers as a driver would.
    fn turn(&mut self, data: HostData) {
        let opcode = if matches!(data, HostData::Read { .. }) { 0x02 } else { 0x01 };
        while self.host.submit(Sqe::new(opcode), data).is_ok() {}
        while self.host.has_transmit() || self.target.has_transmit() {
            self.host_to_target();
            self.target_to_host();
        }
        assert_eq!(self.host.outstanding(), 0);
    }

    fn host_to_target(&mut self) {
        self.host.poll_transmit(&mut self.to_target);
        flatten(&mut self.to_target, &mut self.staging);
        let mut rest = &self.staging[..];
        while !rest.is_empty() {
            match self.target.want() {
                Want::Bytes => rest = &rest[self.target.handle(rest)..],
                Want::Payload { len, .. } => {
                    self.target.handle_payload(&rest[..len as usize]);
                    rest = &rest[len as usize..];
                }
                Want::Nothing => panic!("back-pressure"),
            }
            while let Some(event) = self.target.poll_event() {
                answer(&mut self.target, event);
            }
        }
        last_pieces(&self.to_target, |slot| self.host.payload_sent(slot));
        self.to_target.clear();
    }

    fn target_to_host(&mut self) {
        self.target.poll_transmit(&mut self.to_host);
        flatten(&mut self.to_host, &mut self.staging);
        let mut rest = &self.staging[..];
        while !rest.is_empty() {
            match self.host.want() {
                Want::Bytes => rest = &rest[self.host.handle(rest)..],
                Want::Payload { len, .. } => {
                    self.host.handle_payload(&rest[..len as usize]);
                    rest = &rest[len as usize..];
                }
                Want::Nothing => panic!("back-pressure"),
            }
        }
        while let Some(event) = self.host.poll_event() {
            assert!(!matches!(event, HostEvent::Closed(_)), "{event:?}");
        }
        last_pieces(&self.to_host, |slot| self.target.payload_sent(slot));
        self.to_host.clear();
    }
}

fn answer(target: &mut TargetQueue, event: TargetEvent) {
    match event {
        TargetEvent::Command { slot, data: CommandData::InCapsule { .. }, .. } => target.accept_payload(slot),
        TargetEvent::Command { slot, sqe, .. } if sqe.opcode == 0x02 => {
            target.send_data_and_complete(slot, 0, LEN, 0)
        }
        TargetEvent::Command { slot, .. } => target.request_data(slot),
        TargetEvent::DataComplete { slot, .. } => target.complete(slot, Status::SUCCESS, 0),
        TargetEvent::Ready(_) => {
            target.set_limits(QueueLimits { entries: 33, in_capsule: 8192, flow_control: false });
        }
        TargetEvent::Displaced { cid, .. } => panic!("{cid} is used twice"),
        TargetEvent::Closed(reason) => panic!("{reason}"),
    }
}

fn flatten(batch: &mut Batch, out: &mut Vec<u8>) {
    const PAYLOAD: [u8; LEN as usize] = [0; LEN as usize];
    batch.fill_digests(|_, _, len| longhaul_wire::digest::crc32c(&PAYLOAD[..len as usize]));
    out.clear();
    for piece in &batch.pieces {
        match *piece {
            Piece::Bytes { start, len } => {
                out.extend_from_slice(&batch.bytes[start as usize..][..len as usize])
            }
            Piece::Payload { len, .. } => out.extend_from_slice(&PAYLOAD[..len as usize]),
        }
    }
}

fn last_pieces(batch: &Batch, mut sent: impl FnMut(u16)) {
    for piece in &batch.pieces {
        if let Piece::Payload { slot, last: true, .. } = *piece {
            sent(slot);
        }
    }
}

#[test]
fn reads_and_writes_allocate_nothing() {
    for in_capsule in [0, 8192] {
        let config = HostConfig {
            entries: 33,
            in_capsule,
            header_digest: true,
            data_digest: true,
            ..HostConfig::default()
        };
        let mut all = Loop {
            host: HostQueue::new(config),
            target: TargetQueue::new(TargetConfig::default()),
            to_target: Batch::default(),
            to_host: Batch::default(),
            staging: Vec::new(),
        };
        all.host_to_target();
        all.target_to_host();
        let kinds = [HostData::Read { len: LEN }, HostData::Write { len: LEN }];
        // The vectors that swap places reach their size.
        for _ in 0..4 {
            kinds.iter().for_each(|&kind| all.turn(kind));
        }
        let before = COUNT.with(Cell::get);
        for _ in 0..100 {
            kinds.iter().for_each(|&kind| all.turn(kind));
        }
        assert_eq!(COUNT.with(Cell::get) - before, 0, "in capsule: {in_capsule}");
    }
}
